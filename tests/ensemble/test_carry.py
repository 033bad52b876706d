"""Training on: two calls, with the optimizer's state carried over, against one loop that never stopped."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prunewald.ensemble import SGD, Adam, AdamW, RMSprop, draws, train_many
from tests.ensemble.helpers import BATCH, RECIPES, SEEDS, N, Net, close, data

pytestmark = pytest.mark.usefixtures("one_thread")

FIRST, THEN = 2, 3
ROWS = [2, 0, 0, 1, 2]  # of the first training, for the second
FIRST_ORDER = ("exp_avg", "momentum_buffer", "grad_avg")


def masks_of(rows) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(1)
    return {"fc.weight": torch.rand(len(rows), 8, 27, generator=g) > 0.7, "out.weight": torch.rand(4, 8) > 0.5}


def plain(seed, recipe, mask):
    """One model and one optimizer: some epochs, a pruning, and some more."""
    x, y = data()
    torch.manual_seed(seed)
    model = Net()
    params = dict(model.named_parameters())
    optimizer = getattr(torch.optim, type(recipe).__name__)(model.parameters(), **vars(recipe))
    for epoch in range(FIRST + THEN):
        if epoch == FIRST:
            for name, alive in mask.items():
                params[name].data *= alive
                for key in FIRST_ORDER:
                    if (state := optimizer.state[params[name]].get(key)) is not None:
                        state *= alive
        for rows in draws.order([seed], N, epoch)[0].tensor_split(math.ceil(N / BATCH)):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            for name, alive in mask.items():
                if epoch >= FIRST:
                    params[name].grad *= alive
            optimizer.step()
    return model, optimizer


def many(recipe, how, make=Net, xy=None, **options):
    common = {"seeds": SEEDS, "batch_size": BATCH, "keep_optimizer": True, "progress": False}
    return train_many(make, *(xy or data()), optimizer=recipe, how=how, **common | options)


@pytest.mark.parametrize("how", ["vmap", "loop"])
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_pruned_and_trained_on_as_by_one_optimizer(recipe, how):
    dense = many(recipe, how, epochs=FIRST)
    start, masks = dense.rows(ROWS), masks_of(ROWS)
    before = {name: {key: t.clone() for key, t in table.items()} for name, table in start.optimizer_state.items()}
    on = many(recipe, how, epochs=THEN, start=start, seeds=start.seeds, masks=masks, first_epoch=FIRST, chunk=3)
    for r, row in enumerate(ROWS):
        own = {"fc.weight": masks["fc.weight"][r], "out.weight": masks["out.weight"]}
        model, optimizer = plain(SEEDS[row], recipe, own)
        for name, param in model.named_parameters():
            close(on.params[name][r], param.detach())
            state = {key: t for key, t in optimizer.state[param].items() if isinstance(t, Tensor)}
            kept = on.optimizer_state.get(name, {})
            assert kept.keys() == state.keys()
            for key, value in state.items():
                close(kept[key][r], value)
            if name in own:
                assert (on.params[name][r][~own[name]] == 0).all()
    for name, table in before.items():
        assert all(torch.equal(t, start.optimizer_state[name][key]) for key, t in table.items())


def rich() -> nn.Module:
    """Dropout, running statistics, weights in another layout, and a parameter that is one number."""

    class Rich(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)
            self.fc, self.drop = nn.Linear(48, 4), nn.Dropout(0.3)
            self.scale, self.idle = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(2))
            self.double().to(memory_format=torch.channels_last)  # type: ignore[call-overload]

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.fc(self.drop(F.relu(self.norm(self.conv(x))).flatten(1) * self.scale))
            return out

    return Rich()


class Noisy(Net):
    """With noise from torch's own generator, which the plain loop alone allows."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn_like(x))


@pytest.mark.parametrize("recipe", RECIPES[1:], ids=str)
@pytest.mark.parametrize(("how", "make"), [("vmap", rich), ("loop", rich), ("loop", Noisy)])
def test_two_calls_are_one(recipe, how, make):
    options = {"make": make, "resample": "bootstrap"}
    whole = many(recipe, how, epochs=FIRST + THEN, **options)
    first = many(recipe, how, epochs=FIRST, **options)
    on = many(recipe, how, epochs=THEN, start=first, first_epoch=FIRST, **options)
    for ours, wanted in (
        (on.state, whole.state),
        (on.second_moment, whole.second_moment),
        *((on.optimizer_state[name], table) for name, table in whole.optimizer_state.items()),
    ):
        assert ours.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert ours[name].shape == tensor.shape
            assert torch.equal(ours[name], tensor) if how == "loop" else close(ours[name], tensor) is None
    torch.testing.assert_close(on.losses, whole.losses[:, FIRST:])
    assert ("idle" in whole.params) == (make is rich)
    assert "idle" not in whole.optimizer_state


def test_the_ways_can_be_mixed():
    recipe = Adam(lr=3e-3)
    whole = many(recipe, "loop", make=rich, epochs=3)
    for ways in (("vmap", "loop"), ("loop", "vmap")):
        first = many(recipe, ways[0], make=rich, epochs=1)
        on = many(recipe, ways[1], make=rich, epochs=2, start=first, first_epoch=1)
        for name, tensor in whole.state.items():
            close(on.state[name], tensor)


def test_a_state_without_that_of_the_optimizer_begins_anew():
    recipe = RMSprop(lr=1e-3)
    first = many(recipe, "vmap", epochs=1)
    anew, on = (many(recipe, "vmap", epochs=1, start=start) for start in (first.state, first))
    assert not torch.allclose(anew.params["fc.weight"], on.params["fc.weight"])
    kept = first.optimizer_state
    given = many(recipe, "vmap", epochs=1, start=first.state, optimizer_state=kept)
    assert torch.equal(given.params["fc.weight"], on.params["fc.weight"])
    without = many(recipe, "vmap", epochs=1, keep_optimizer=False)
    assert without.optimizer_state == {}
    again = many(recipe, "vmap", epochs=1, start=without)
    assert torch.equal(again.params["fc.weight"], anew.params["fc.weight"])


def test_a_part_may_be_frozen_in_between():
    def frozen():
        model = Net()
        model.conv.requires_grad_(False)
        return model

    first = many(AdamW(), "vmap", epochs=1)
    on = many(AdamW(), "vmap", make=frozen, epochs=1, start=first)
    assert torch.equal(on.params["conv.weight"], first.params["conv.weight"])
    assert on.optimizer_state.keys() == first.optimizer_state.keys() - {"conv.weight", "conv.bias"}


class Choosing(nn.Module):
    """Some replicas never use a part, and have no optimizer state of it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(36, 4).double(), nn.Linear(36, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = (self.one if self.one.bias.sum() > -9 else self.other)(x.flatten(1))
        return out


def test_replicas_without_a_state_of_all_parameters():
    state = {name: t.expand(3, *t.shape).clone() for name, t in Choosing().state_dict().items()}
    state["one.bias"][1] = -10
    options = {"make": Choosing, "recipe": Adam(), "how": "loop", "start": state}
    whole, first = many(**options, epochs=2), many(**options, epochs=1)
    assert first.optimizer_state["other.bias"]["step"].tolist() == [0, 5, 0]
    on = many(**options | {"start": first}, epochs=1, first_epoch=1)
    for name, tensor in whole.state.items():
        assert torch.equal(on.state[name], tensor)


@pytest.mark.parametrize("how", ["vmap", "loop"])
def test_seeds_may_repeat(how):
    options = {"make": rich, "epochs": 2, "resample": "bootstrap", "recipe": RMSprop(lr=1e-3), "how": how}
    each, twice = many(**options), many(**options, seeds=[4, 3, 4, 11, 3])
    for name, tensor in twice.state.items():
        close(tensor, each.state[name][[2, 0, 2, 1, 0]])


def test_replicas_of_unequal_age():
    """Adam's correction is one number for all that are trained together."""
    recipe = Adam()
    young, old = (many(recipe, "loop", epochs=epochs) for epochs in (1, 2))
    table = {
        name: {key: torch.cat([t[:1], old.optimizer_state[name][key][1:]]) for key, t in kept.items()}
        for name, kept in young.optimizer_state.items()
    }
    start = replace(young, optimizer_state=table)
    alone = many(recipe, "loop", epochs=1, start=start)
    assert alone.optimizer_state["fc.weight"]["step"].tolist() == [10, 15, 15]
    with pytest.raises(ValueError, match="5 to 10 steps.*how='loop'"):
        many(recipe, "vmap", epochs=1, start=start)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": Adam()}, "square_avg, step.*exp_avg, exp_avg_sq, step"),
        ({"recipe": SGD(lr=0.1)}, "square_avg, step.*SGD.*nothing"),
        ({"optimizer_state": {"fc": {}}}, "no parameter 'fc'.*fc.weight"),
        ({"optimizer_state": {"fc.weight": {"square_avg": torch.zeros(2, 8, 27), "step": torch.ones(3)}}}, r"\(3, 8,"),
        ({"optimizer_state": {"fc.weight": {"square_avg": torch.zeros(8, 27), "step": torch.ones(4)}}}, r"\(3,\)"),
        ({"first_epoch": -1}, "first_epoch=-1"),
    ],
)
def test_wrong_arguments(options, message):
    first = many(RMSprop(lr=1e-3), "vmap", epochs=1)
    with pytest.raises(ValueError, match=message):
        many(**{"recipe": RMSprop(), "how": "vmap", "epochs": 1, "start": first} | options)
