"""Algorithm 1 of the paper against its literal transcription: store everything, take the standard deviation."""

import pytest
import torch
from torch import nn

import prunewald as pw

pytestmark = pytest.mark.usefixtures("one_thread")


def run(recipe, steps, model=None, optimizer=None, on_step=None):
    """Train a small network for `steps` steps with a Pruner attached; return it and every snapshot."""
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = optimizer or torch.optim.RMSprop(model.parameters(), lr=1e-3)
    pruner = pw.Pruner(model, optimizer, criterion=pw.Wald(), uncertainty=recipe)
    snapshots = []
    for step in range(steps):
        x = torch.randn(16, 6)
        x[:, 2] = 0  # an input that is always zero: its weights never get a gradient
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
        snapshots.append({n: p.detach().clone() for n, p in model.named_parameters() if p.dim() > 1})
        if on_step:
            on_step(step + 1, pruner)
    return pruner, snapshots


def literal(snapshots):
    return {name: torch.stack([s[name] for s in snapshots]).double().std(0) for name in snapshots[0]}


def assert_sigma(pruner, snapshots):
    exact = literal(snapshots)
    for name, sigma in pruner.sigma().items():
        torch.testing.assert_close(sigma.double(), exact[name], rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_last_b_of_a_known_number_of_steps_exactly(compiled):
    pruner, snapshots = run(pw.PseudoBootstrap(last=20, total_steps=50, compiled=compiled), 50)
    assert_sigma(pruner, snapshots[30:])


def test_all_steps_can_be_the_window():
    pruner, snapshots = run(pw.PseudoBootstrap(last=12, total_steps=12), 12)
    assert_sigma(pruner, snapshots)


def test_every_kth_step_over_the_whole_training():
    pruner, snapshots = run(pw.PseudoBootstrap(every=7), 50)
    assert_sigma(pruner, snapshots[6::7])


def test_every_kth_step_ends_at_the_last_one_when_it_is_known():
    pruner, snapshots = run(pw.PseudoBootstrap(every=7, total_steps=50), 50)
    assert_sigma(pruner, snapshots[0::7])


def test_the_last_b_of_every_kth():
    pruner, snapshots = run(pw.PseudoBootstrap(last=4, every=7, total_steps=50), 50)
    assert_sigma(pruner, snapshots[28::7])


def test_nothing_is_stored_before_the_window():
    held = {}
    run(
        pw.PseudoBootstrap(last=3, total_steps=9),
        9,
        on_step=lambda n, pruner: held.update({n: len(pruner.state_dict()["states"][0]["blocks"])}),
    )
    assert held == {n: int(n > 6) for n in range(1, 10)}


def test_nothing_is_collected_after_the_window():
    pruner, snapshots = run(pw.PseudoBootstrap(last=5, total_steps=20), 23)
    with pytest.warns(UserWarning, match="step 23.*total_steps=20"):
        assert_sigma(pruner, snapshots[15:20])


@pytest.mark.parametrize("last", [*range(2, 31), 49, 50])
def test_a_rolling_window_is_right_to_ten_percent_at_every_step(last):
    sizes = {}

    def look(step, pruner):
        state = pruner.state_dict()["states"][0]
        sizes[step] = sum(block["count"] for block in state["blocks"])
        vectors = len(state["shift"]) + sum(len(b["mean"]) + len(b["m2"]) for b in state["blocks"])
        assert vectors <= 15 * 2  # of each of the two tensors
        assert not any(b["moved"] for b in state["blocks"])  # the Pruner watches that

    pruner, snapshots = run(pw.PseudoBootstrap(last=last), 130, on_step=look)
    for step, size in sizes.items():
        assert size == step if step < 0.9 * last else abs(size - last) <= 0.1 * last
    assert_sigma(pruner, snapshots[-sizes[130] :])


def test_a_rolling_window_forgets_a_gradient_that_left_it():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))

    def cut(step, pruner):
        if step == 30:
            model[0].weight.register_hook(lambda grad: grad * (torch.arange(8) != 3)[:, None])

    pruner, _ = run(pw.PseudoBootstrap(last=20), 300, model=model, on_step=cut)
    dead = pruner.dead()["0.weight"]
    assert dead[3].all()
    assert dead[:, 2].all()
    assert int(dead.sum()) < 20


def test_weights_without_a_gradient_are_dead_though_weight_decay_moves_them():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, weight_decay=0.1)
    pruner, _ = run(pw.PseudoBootstrap(last=10, total_steps=100), 100, model, optimizer)
    assert pruner.dead()["0.weight"][:, 2].all()
    assert (pruner.sigma()["0.weight"][:, 2] > 0).all()
    assert torch.equal(pruner.dead()["0.weight"].sum(0) == 8, torch.arange(6) == 2)


def test_steps_count_anew_from_each_prune():
    seen = {}

    def prune(step, pruner):
        if step in (20, 40):
            seen[step] = {n: s.clone() for n, s in pruner.sigma().items()}
            pruner.prune(0.2 * step / 20)

    _, snapshots = run(pw.PseudoBootstrap(last=5, total_steps=20), 40, on_step=prune)
    for step, sigma in seen.items():
        exact = literal(snapshots[step - 5 : step])
        for name in sigma:
            torch.testing.assert_close(sigma[name].double(), exact[name], rtol=1e-5, atol=1e-12)


def test_a_dry_run_does_not_start_it_anew():
    pruner, _ = run(pw.PseudoBootstrap(last=5, total_steps=100), 100)
    assert str(pruner.prune(0.5, dry_run=True)).replace("would prune", "pruned") == str(pruner.prune(0.5))


def test_master_weights_are_read_where_there_are_any():
    model = nn.Linear(4, 3, bias=False).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    pruner = pw.Pruner(model, optimizer, criterion=pw.Wald(), uncertainty=pw.PseudoBootstrap(last=5, total_steps=5))
    masters = [torch.rand(3, 4) for _ in range(5)]
    for master in masters:
        model.weight.grad = torch.ones_like(model.weight)
        optimizer.state[model.weight]["master_param"] = master
        optimizer.step()
    torch.testing.assert_close(pruner.sigma()["weight"], torch.stack(masters).std(0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"last": 1}, "last=1"),
        ({"last": 0}, "last=0"),
        ({"every": 0}, "every=0"),
        ({"last": 300, "total_steps": 200}, r"PseudoBootstrap\(last=300, total_steps=200\).*lower `last`"),
        ({"last": 50, "every": 5, "total_steps": 200}, "250 steps.*lower `last`"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        pw.PseudoBootstrap(**settings)


def test_the_paper_s_window_is_the_default():
    assert pw.PseudoBootstrap().last == 200
    assert pw.PseudoBootstrap(every=3).last is None


@pytest.mark.parametrize("steps", [0, 1])
def test_fewer_than_two_snapshots_is_an_error(steps):
    pruner, _ = run(pw.PseudoBootstrap(last=5), steps)
    before = [p.clone() for p in pruner.model.parameters()]
    with pytest.raises(ValueError, match=rf"{steps} snapshot\(s\) after {steps} step.*train on"):
        pruner.prune(0.5)
    assert all(torch.equal(a, b) for a, b in zip(before, pruner.model.parameters(), strict=True))


def test_a_short_window_warns():
    pruner, _ = run(pw.PseudoBootstrap(last=50), 20)
    with pytest.warns(UserWarning, match="20 snapshots.*last=50"):
        pruner.prune(0.5)
    pruner, _ = run(pw.PseudoBootstrap(last=5, total_steps=20), 18)
    with pytest.warns(UserWarning, match="step 18.*total_steps=20.* 3 snapshots"):
        pruner.prune(0.5)
