"""Hugging Face's batches and outputs as calibration data, with the loss that a model computes itself."""

import copy

import pytest
import torch
from torch.nn import functional as F

import prunewald as pw
from prunewald.uncertainty import FisherDiagonal, LayerLeastSquares

pytest.importorskip("transformers", reason="Transformers is not installed")

from tests.trainers import transformers

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = SMALL | {"vocab_size": 50, "max_position_embeddings": 32}
T5 = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}


def made(kind):
    torch.manual_seed(0)
    hf = transformers
    if kind == "llama":
        return hf.LlamaForCausalLM(hf.LlamaConfig(num_key_value_heads=2, **TEXT)).eval()
    if kind == "t5":
        return hf.T5ForConditionalGeneration(hf.T5Config(decoder_start_token_id=0, pad_token_id=0, **T5)).eval()
    if kind == "vit":
        return hf.ViTForImageClassification(hf.ViTConfig(image_size=16, patch_size=8, **SMALL)).eval()
    if kind == "masked":
        return hf.BertForMaskedLM(hf.BertConfig(**TEXT)).eval()
    return hf.BertForSequenceClassification(hf.BertConfig(num_labels=1 + (kind == "classes"), **TEXT)).eval()


def batches(kind, count=10):
    generator = torch.Generator().manual_seed(1)
    return [batch(kind, generator) for _ in range(count)]


def batch(kind, generator):
    ids = torch.randint(3, 50, (4, 9), generator=generator)
    mask = (torch.arange(9) < torch.tensor([9, 6, 3, 9])[:, None]).long()
    labels = {
        "classes": torch.randint(2, (4,), generator=generator),
        "number": torch.randn(4, generator=generator),
        "masked": torch.where(torch.rand(4, 9, generator=generator) < 0.4, ids, -100),
    }
    if kind == "vit":
        return {"pixel_values": torch.randn(4, 3, 16, 16, generator=generator), "labels": labels["classes"]}
    if kind == "masked":
        ids = ids.masked_fill(labels["masked"] != -100, 2)
    own = labels.get(kind, ids.masked_fill(mask == 0, -100))
    return transformers.BatchEncoding({"input_ids": ids, "attention_mask": mask, "labels": own})


KINDS = ["llama", "masked", "classes", "number", "vit", "t5"]


@pytest.mark.parametrize("kind", KINDS)
def test_one_line_of_data_and_a_model_of_a_file_is_pruned_by_tau(kind):
    model, data = made(kind), batches(kind)
    before = copy.deepcopy(model.state_dict())
    pruner = pw.Pruner(model)
    assert set(pruner.observe(data)) == set(pruner.masks)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    report = pruner.prune(0.5)
    assert report.criterion == "MagnitudeUncertainty()"
    assert pruner.sparsity == pytest.approx(0.5, abs=0.001)


@pytest.mark.parametrize("kind", KINDS)
def test_the_fisher_diagonal_of_the_loss_that_a_model_computes_itself(kind):
    model, data = made(kind).double(), batches(kind, 1)
    for one in data:
        one.update({k: v.double() for k, v in one.items() if v.is_floating_point()})
    found = FisherDiagonal().estimate(model, data)
    squares = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    variance = 1.0
    if kind == "number":
        with torch.no_grad():
            residuals = torch.cat([model(**one).logits[:, 0] - one["labels"] for one in data])
        variance = residuals.square().mean()
    for one in data:
        for at in range(4):
            row = {key: value[at : at + 1] for key, value in one.items()}
            y, model_loss = row["labels"], model(**row).loss
            counted = (y[:, 1:] if kind == "llama" else y) != -100
            loss = model_loss * int(counted.sum()) if kind != "number" else model_loss / 2
            grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
            for name, grad in zip(squares, grads, strict=True):
                squares[name] += 0 if grad is None else grad.square()
    least = 1e-9 * max(float(square.max()) for square in squares.values())  # of rounding alone, sigma is anything
    for name, square in squares.items():
        torch.testing.assert_close(found[name].pow(-2), square / variance**2, rtol=1e-5, atol=least)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_of_layers_are_met_without_a_loss(kind):
    model, data = made(kind), batches(kind, 3)
    pruner = pw.Pruner(model, criterion="wanda")
    assert pruner.observe(data) == {}
    assert pruner.prune(0.5).criterion == "Wanda()"
    met = LayerLeastSquares().estimate(made(kind), data, limit=2)
    assert met.keys() >= {name for name in pruner.masks if "patch" not in name}


def test_what_a_loss_of_our_own_is_given():
    model, data = made("classes"), batches("classes")
    seen = []

    def loss(returned, labels):
        seen.append(returned.loss)
        return F.cross_entropy(returned.logits, labels)

    found = [pw.Pruner(model).observe(data, given) for given in (loss, F.cross_entropy, "cross_entropy", None)]
    assert found == [found[0]] * 4
    assert seen == [None] * 10


def test_keys_that_a_model_does_not_take():
    data = [{"text": batches("classes", 1)[0]["input_ids"], "label": torch.zeros(4).long()}]
    with pytest.raises(TypeError, match=r"BertForSequenceClassification.*'text', 'label'.*input_ids"):
        pw.Pruner(made("classes")).observe(data, "cross_entropy")
    unlabelled = [{"input_ids": one["input_ids"]} for one in batches("classes")]
    with pytest.raises(ValueError, match="SequenceClassifierOutput with 'logits'.*'labels'"):
        pw.Pruner(made("classes")).observe(unlabelled)
