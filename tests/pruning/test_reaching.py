"""Dead is what no gradient of the data reaches, whatever decays, penalties and clipping do to the gradient."""

import copy
import io
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler

import prunewald as pw
from prunewald.pruning.reaching import Reach

pytestmark = pytest.mark.usefixtures("one_thread")

INPUTS, LIVE = 32, 10  # 69 % of the inputs are constant
STEPS = 100
UNKNOWN = "which weights are dead is not known"


def batch(step: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(step)
    x = torch.zeros(8, INPUTS)
    x[:, :LIVE] = torch.randn(8, LIVE, generator=g)
    return x, x[:, :3].sin()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, 12), nn.Tanh(), nn.Linear(12, 3))


def trained(make: Any, steps: int = STEPS, penalty: Any = None, late: bool = False, **choices: Any) -> pw.Pruner:
    model = net()
    optimizer = make(model.parameters())
    pruner = None if late else pw.Pruner(model, optimizer, **choices)
    go_on(model, optimizer, steps, penalty)
    return pruner or pw.Pruner(model, optimizer, **choices)


def go_on(model: nn.Module, optimizer: Any, steps: int, penalty: Any = None, first: int = 0) -> None:
    for step in range(first, first + steps):
        x, y = batch(step)
        loss = (model(x) - y).square().mean()
        if penalty is not None:
            loss = loss + penalty([p for p in model.parameters() if p.dim() > 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def finds_the_constant_inputs(pruner: pw.Pruner) -> bool:
    dead = pruner.dead()
    constant = torch.arange(INPUTS) >= LIVE
    return torch.equal(dead["0.weight"], constant.expand(12, -1)) and not dead["2.weight"].any()


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Adam": (partial(torch.optim.Adam, lr=1e-3), {}),
    "AdamW": (partial(torch.optim.AdamW, lr=1e-3, weight_decay=0), {}),
    "RMSprop": (partial(torch.optim.RMSprop, lr=1e-3), {}),
    "SGD": (partial(torch.optim.SGD, lr=1e-2, momentum=0.9), {"uncertainty": pw.PseudoBootstrap(last=20)}),
    "SGD, batch means": (partial(torch.optim.SGD, lr=1e-2), {"uncertainty": pw.BatchMeans(length=10)}),
    "SGD, average": (partial(torch.optim.SGD, lr=1e-2), {"uncertainty": pw.SecondMoment()}),
}


def both(weights: Any) -> Tensor:
    total: Tensor = 1e-5 * pw.companions.l1(weights) + 3e-4 * pw.companions.l2(weights)
    return total + 1e-5 * pw.companions.group_lasso(weights)


EXTRAS: dict[str, tuple[dict[str, Any], Any]] = {
    "nothing": ({}, None),
    "decay": ({"weight_decay": 1e-4}, None),
    "l1": ({}, lambda weights: 1e-4 * pw.companions.l1(weights)),
    "l2": ({}, lambda weights: 1e-4 * pw.companions.l2(weights)),
    "l2, by rows": ({}, lambda weights: 1e-4 * pw.companions.l2([row for weight in weights for row in weight])),
    "three terms": ({"weight_decay": 1e-5}, both),
}


@pytest.mark.filterwarnings("ignore:standard errors from", "ignore:batches of")
@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_dead_weights_are_found_under_every_decay_and_penalty(name, extra):
    make, choices = OPTIMIZERS[name]
    options, penalty = EXTRAS[extra]
    pruner = trained(partial(make, **options), penalty=penalty, **choices)
    assert finds_the_constant_inputs(pruner)
    report = pruner.prune(0.5)
    assert report.rows[0].dead == pytest.approx(1 - LIVE / INPUTS)
    assert not any(UNKNOWN in note for note in report.notes)
    assert not pruner.masks["0.weight"][:, LIVE:].all()


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("name", ["Adam", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta"])
def test_attached_after_training_coupled_decay_hides_them_and_the_report_says_so(name, decoupled):
    options = {"weight_decay": 1e-4}
    if decoupled and name in ("RMSprop", "Adagrad", "Adadelta"):
        options = {}
    elif decoupled:
        options["decoupled_weight_decay"] = True
    pruner = trained(partial(getattr(torch.optim, name), **options), late=True)
    if decoupled:
        assert finds_the_constant_inputs(pruner)
        return
    assert pruner.dead() == {}
    report = pruner.prune(0.5, dry_run=True)
    (note,) = (note for note in report.notes if UNKNOWN in note)
    assert name in note
    assert "pruner.observe(batches, loss)" in note
    assert report.rows[0].dead is None
    assert pruner.observe(map(batch, range(5)), nn.functional.mse_loss) == {"0.weight": 12 * 22, "2.weight": 0}
    assert finds_the_constant_inputs(pruner)
    assert not any(UNKNOWN in note for note in pruner.prune(0.5).notes)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.filterwarnings("ignore:standard errors from", "ignore:batches of")
def test_below_a_hundred_steps_they_are_unknown_and_observing_tells(name):
    make, choices = OPTIMIZERS[name]
    pruner = trained(make, STEPS - 1, **choices)
    assert pruner.dead() == {}
    assert any("99 of 100" in note for note in pruner.choose(0.5)[1].notes)
    pruner.observe([batch(0)], nn.functional.mse_loss)
    assert finds_the_constant_inputs(pruner)


def test_below_a_pass_they_are_unknown_where_its_length_is_known():
    pruner = trained(torch.optim.Adam, 149, uncertainty=pw.SecondMoment(samples=1200, batch_size=8))
    assert pruner.dead() == {}
    assert any("149 of 150" in note for note in pruner.choose(0.5)[1].notes)
    go_on(pruner.model, pruner.optimizers[0], 1, first=149)
    assert finds_the_constant_inputs(pruner)


def test_what_dies_later_is_found_and_what_is_seen_once_in_a_block_is_alive():
    model = nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.Adam(model.parameters())
    pruner = pw.Pruner(model, optimizer)

    def step(at: int) -> None:
        optimizer.zero_grad()
        shown = torch.tensor([1.0, at % 100 == 57, at < 50, 0.0])  # always, once a block, at first, never
        model(shown).square().sum().backward()
        optimizer.step()

    for at in range(199):
        step(at)
    assert pruner.dead()["weight"].any(0).tolist() == [False, False, False, True]
    step(199)
    step(200)
    assert pruner.dead()["weight"].any(0).tolist() == [False, False, True, True]


def test_rare_tokens_of_a_sparse_embedding():
    model = nn.Sequential(nn.Embedding(50, 4, sparse=True), nn.Flatten(), nn.Linear(8, 2).requires_grad_(False))
    optimizer = torch.optim.SGD([model[0].weight], lr=0.1)
    recipe = pw.PseudoBootstrap(last=250, total_steps=250)
    pruner = pw.Pruner(model, optimizer, uncertainty=recipe, targets="0")
    for step in range(250):
        optimizer.zero_grad()
        tokens = torch.tensor([[step % 10, 40 if step == 3 else 10]])  # 40 once in the pass
        model(tokens).square().sum().backward()
        assert model[0].weight.grad.is_sparse
        optimizer.step()
    reached = {*range(11), 40}
    assert pruner.dead()["0.weight"].all(1).tolist() == [token not in reached for token in range(50)]


@pytest.mark.parametrize("way", ["clipped", "accumulated", "scaled"])
def test_loops_that_change_the_gradient_afterwards(way):
    model = net()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, weight_decay=1e-5)
    pruner = pw.Pruner(model, optimizer)
    scaler = GradScaler("cpu", init_scale=2.0**10, growth_interval=40, enabled=way == "scaled")
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(3 if way == "accumulated" else 1):
            x, y = batch(3 * step + part)
            weights = [model[0].weight, model[2].weight]
            loss = (model(x) - y).square().mean() + both(weights)
            if way == "scaled" and step % 30 == 7:
                loss = loss * torch.inf  # such a step is skipped
            scaler.scale(loss).backward()
        if way == "clipped":
            nn.utils.clip_grad_norm_(model.parameters(), 1e-30)
        scaler.step(optimizer)
        scaler.update()
    go_on(model, optimizer, 10)
    assert finds_the_constant_inputs(pruner)


def test_a_gradient_written_by_hand_is_taken_as_it_is():
    model = nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = pw.Pruner(model, optimizer, uncertainty="pseudo-bootstrap")
    for _ in range(200):
        model.weight.grad = torch.tensor([[1.0, 0, 0], [0, 0, 1]])
        optimizer.step()
    assert pruner.dead()["weight"].tolist() == [[False, True, True], [True, True, False]]


def test_a_step_inside_the_backward_pass():
    model = net()
    optimizers = {p: torch.optim.Adam([p], lr=1e-3) for p in model.parameters()}
    pruner = pw.Pruner(model, optimizers.values())
    for p in optimizers:
        p.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
        p.register_post_accumulate_grad_hook(lambda p: optimizers[p].zero_grad())
    for step in range(STEPS):
        x, y = batch(step)
        (model(x) - y).square().mean().backward()
    assert finds_the_constant_inputs(pruner)


def test_without_an_optimizer():
    model = net()
    pruner = pw.Pruner(model, uncertainty=pw.PseudoBootstrap(last=20))
    for step in range(STEPS):
        x, y = batch(step)
        model.zero_grad()
        (model(x) - y).square().mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.01 * p.grad
        pruner.apply_()
    assert finds_the_constant_inputs(pruner)


def test_a_model_that_is_compiled():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=1e-4)
    pruner = pw.Pruner(model, optimizer)
    whole = torch.compile(model, backend="aot_eager")
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        (whole(x) - y).square().mean().backward()
        optimizer.step()
    assert finds_the_constant_inputs(pruner)


def test_a_frozen_layer_is_never_dead():
    model = net()
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
    pruner = pw.Pruner(model, optimizer, uncertainty=pw.PseudoBootstrap(last=20), targets=["0", "2"])
    go_on(model, optimizer, STEPS)
    assert pruner.dead().keys() == {"2.weight"}
    with pytest.raises(ValueError, match="does not require gradients"):
        pruner.prune(0.5)
    frozen = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2))
    data = [(torch.zeros(2, 4), torch.zeros(2, 2))]
    assert pw.Pruner(frozen).observe(data, nn.functional.mse_loss) == {"1.weight": 0}


def test_thawed_layers_are_watched_from_then_on():
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    pruner = pw.Pruner(model, optimizer)
    go_on(model, optimizer, STEPS)
    model[0].requires_grad_(True)
    go_on(model, optimizer, STEPS - 1, first=STEPS)
    assert pruner.dead().keys() == {"2.weight"}
    go_on(model, optimizer, 1)
    assert finds_the_constant_inputs(pruner)


def test_hooks_do_not_travel_and_go_with_the_pruner():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    pruner = pw.Pruner(model, optimizer)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert not any(p._backward_hooks for p in other.parameters())
    assert model[0].weight._backward_hooks
    pruner.detach()
    assert not any(p._backward_hooks for p in model.parameters())


@pytest.mark.parametrize(
    "choices",
    [{"criterion": "magnitude"}, {"uncertainty": {"0.weight": torch.ones(12, INPUTS)}, "targets": "0"}],
    ids=str,
)
def test_nothing_is_watched_where_no_sigma_is_estimated(choices):
    model = net()
    pw.Pruner(model, torch.optim.Adam(model.parameters()), **choices)
    assert not any(p._backward_hooks for p in model.parameters())


def test_two_pruners_and_a_hook_that_cuts_the_gradient():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    pruners = [pw.Pruner(model, optimizer) for _ in range(2)]
    model[0].weight.register_hook(lambda grad: grad * (torch.arange(12) != 5)[:, None])
    go_on(model, optimizer, STEPS, lambda weights: 1e-4 * pw.companions.l2(weights[1:]))
    for pruner in pruners:
        dead = pruner.dead()
        assert dead["0.weight"][5].all()
        assert not dead["0.weight"][:5, :LIVE].any()
        assert not dead["2.weight"].any()


def test_after_a_pruning_it_begins_anew():
    pruner = trained(OPTIMIZERS["SGD"][0], **OPTIMIZERS["SGD"][1])
    pruner.prune(0.5)
    go_on(pruner.model, pruner.optimizers[0], STEPS - 1)
    assert pruner.dead() == {}
    go_on(pruner.model, pruner.optimizers[0], 1)
    assert finds_the_constant_inputs(pruner) or pruner.masks["0.weight"].sum() < 200


@pytest.mark.parametrize("steps", [30, 100, 130, 250])
def test_a_resume_is_exact(steps):
    make, choices = OPTIMIZERS["SGD"]
    pruner = trained(make, steps, **choices)
    if steps == 130:
        pruner.observe([batch(0)], nn.functional.mse_loss)
    file = io.BytesIO()
    torch.save(pruner.state_dict(), file)
    file.seek(0)
    model = copy.deepcopy(pruner.model)
    optimizer = make(model.parameters())
    optimizer.load_state_dict(copy.deepcopy(pruner.optimizers[0].state_dict()))
    again = pw.Pruner(model, optimizer, **choices)
    again.load_state_dict(torch.load(file, weights_only=True))
    for each in (pruner, again):
        go_on(each.model, each.optimizers[0], 90, first=steps)
    one, other = pruner.dead(), again.dead()
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert repr(one) == repr(other)
    _same(pruner.state_dict()["reach"], again.state_dict()["reach"])


def _same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other)


def test_a_state_from_before_this_was_kept_loads():
    pruner = trained(torch.optim.Adam, 10)
    state = {key: value for key, value in pruner.state_dict().items() if key != "reach"}
    pruner.load_state_dict(state)
    assert pruner.dead() == {}


def test_a_byte_a_weight_and_no_more():
    weight = nn.Parameter(torch.randn(50, 40))
    reach = Reach({"w": weight}, [["w"]], 100, on=True)
    for _ in range(250):
        weight.grad = None
        (weight * torch.randn(50, 40)).sum().backward()
        reach.update_(0)
    assert sum(marks.untyped_storage().nbytes() for marks in reach._marks.values()) == weight.numel()
    reach.release()
