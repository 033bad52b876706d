"""Sequences with a label at each position: a sample is a sequence, as a loop over them finds it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from prunewald.uncertainty import FisherDiagonal, LayerLeastSquares

pytestmark = pytest.mark.usefixtures("one_thread")
VOCABULARY, LENGTH = 5, 4


class Tagger(nn.Module):
    """Classes for each position, at the end or, as torch has them, before the positions."""

    def __init__(self, second=False):
        super().__init__()
        self.words, self.head = nn.Embedding(7, 3), nn.Linear(3, VOCABULARY)
        self.second = second

    def forward(self, input_ids, attention_mask=None):
        output = self.head(self.words(input_ids).cumsum(1).tanh())
        return output.movedim(-1, 1) if self.second else {"logits": output, "hidden": input_ids}


class Recurrent(Tagger):
    """One that torch.func cannot take."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(3, 3, batch_first=True)

    def forward(self, input_ids):
        return self.head(self.cell(self.words(input_ids))[0])


class NextToken(Tagger):
    """One that computes its own loss, of labels that it shifts."""

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = super().forward(input_ids)["logits"]
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def data(ignored=-100):
    generator = torch.manual_seed(2)
    ids = torch.randint(VOCABULARY, (11, LENGTH), generator=generator)
    labels = torch.randint(VOCABULARY, (11, LENGTH), generator=generator)
    labels[0, 2:], labels[3], labels[5, :3] = ignored, ignored, ignored
    return ids, labels


def by_loop(model, ids, value):
    """1 / sqrt of the sum over sequences of squared gradients of their summed negative log-likelihood."""
    squares = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for at in range(len(ids)):
        found = torch.autograd.grad(value(at), list(model.parameters()), allow_unused=True)
        for name, grad in zip(squares, found, strict=True):
            squares[name] += 0 if grad is None else grad.square()
    return {name: square.rsqrt() for name, square in squares.items()}


def close(found, expected):
    assert found.keys() == expected.keys()
    for name, sigma in found.items():
        torch.testing.assert_close(sigma, expected[name], rtol=1e-8, atol=0)


@pytest.mark.parametrize("make", [Tagger, lambda: Tagger(second=True), Recurrent], ids=["last", "second", "one by one"])
@pytest.mark.parametrize("ignored", [-100, 1])
def test_a_sequence_is_a_sample_with_the_sum_over_its_counted_positions(make, ignored):
    torch.manual_seed(0)
    model, (ids, labels) = make().double(), data(ignored)

    def value(at):
        output = model(ids[at : at + 1])
        rows = output["logits"][0] if isinstance(output, dict) else output[0].T if output.shape[1] == 5 else output[0]
        counted = labels[at] != ignored
        return F.cross_entropy(rows[counted], labels[at][counted], reduction="sum")

    loss = nn.CrossEntropyLoss(ignore_index=ignored)
    pairs = list(zip(ids.split(4), labels.split(4), strict=True))
    found = FisherDiagonal().estimate(model, pairs, loss)
    close(found, by_loop(model, ids, value))
    dicts = [{"input_ids": x, "labels": y} for x, y in pairs]
    close(FisherDiagonal().estimate(model, iter(dicts), loss), found)
    assert found.diagnosis.samples == int((labels != ignored).any(1).sum()) < 11


def test_the_loss_that_a_model_computes_itself_is_known_with_its_shift():
    torch.manual_seed(0)
    model, (ids, labels) = NextToken().double(), data()

    def value(at):
        counted = int((labels[at, 1:] != -100).sum())
        loss = model(ids[at : at + 1], labels=labels[at : at + 1])["loss"]
        return loss * counted if counted else model.head.weight.sum() * 0

    pairs = [{"input_ids": x, "labels": y} for x, y in zip(ids.split(4), labels.split(4), strict=True)]
    for given in (pairs, iter(pairs)):
        found = FisherDiagonal().estimate(model, given)
        close(found, by_loop(model, ids, value))
    assert found.diagnosis.samples == 10


def test_drawn_labels_of_sequences_tend_to_the_information_of_all_their_positions():
    torch.manual_seed(0)
    model, ids = Tagger().double(), torch.tensor([[1, 2, 3]])
    given, copies = torch.tensor([[0, -100, 0]]), 4000
    exact = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for position in (0, 2):
        p = model(ids)["logits"][0, position].softmax(0).detach()
        for label in range(VOCABULARY):
            loss = -model(ids)["logits"][0, position].log_softmax(0)[label]
            for name, grad in zip(exact, torch.autograd.grad(loss, list(model.parameters())), strict=True):
                exact[name] += p[label] * grad.square()
    batch = ids.expand(copies, -1), given.expand(copies, -1)
    found = FisherDiagonal("model", seed=1).estimate(model, [batch], "cross_entropy")
    for name, sigma in found.items():
        torch.testing.assert_close(sigma, (copies * exact[name]).rsqrt(), rtol=0.1, atol=0)


def test_what_cannot_be_told_is_an_error_that_says_what_to_do():
    model, (ids, labels) = Tagger(), data()
    with pytest.raises(ValueError, match=r"outputs \(1, 4, 5\) and labels \(1, 3\).*a label for each row"):
        FisherDiagonal().estimate(model, [(ids, labels[:, :3])], "cross_entropy")
    square = torch.randint(VOCABULARY, (3, 5))
    with pytest.raises(ValueError, match=r"\(1, 5, 5\).*\(1, 5\).*whose length is another"):
        FisherDiagonal().estimate(model, [(square, square)], "cross_entropy")
    with pytest.raises(ValueError, match=r"labels are the input_ids themselves.*loss=None"):
        FisherDiagonal().estimate(model, [{"input_ids": ids, "labels": ids}], "cross_entropy")
    with pytest.raises(ValueError, match="loss of its own.*loss="):
        FisherDiagonal().estimate(model, [{"input_ids": ids, "labels": labels}])


def test_a_loss_of_its_own_that_is_no_likelihood_is_refused():
    class Hinge(NextToken):
        def forward(self, input_ids, labels=None):
            return {"loss": self.head.weight.square().sum(), "logits": super().forward(input_ids)["logits"]}

    ids, labels = data()
    with pytest.raises(ValueError, match=r"computes itself.*\(11, 4, 5\).*\(11, 4\).*give loss="):
        FisherDiagonal().estimate(Hinge(), [{"input_ids": ids, "labels": labels}])


def test_padding_is_not_met_by_layers():
    torch.manual_seed(0)
    model, (ids, _) = Tagger(), data()
    mask = (torch.arange(LENGTH) < 3).long().expand(11, -1)
    found = LayerLeastSquares().estimate(model, [{"input_ids": ids, "attention_mask": mask}])
    expected = LayerLeastSquares().estimate(model, [ids[:, :3]])
    torch.testing.assert_close(found["head.weight"], expected["head.weight"])
