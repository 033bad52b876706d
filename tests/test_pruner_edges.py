"""What breaks pruners in practice: odd modules, odd targets, pruning again and again, compiled steps, copies."""

import copy
import pickle

import pytest
import torch
from torch import nn

import prunewald as pw
from tests.training import loss_of, train, wide

pytestmark = pytest.mark.usefixtures("one_thread")


def sparsity(model):
    weights = [p for p in model.parameters() if p.dim() > 1]
    return sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [pw.PseudoBootstrap(last=5), pw.PseudoBootstrap(last=5, total_steps=10), None])
def test_a_compiled_optimizer_step(recipe):
    def steps(model, step, numbers):
        for number in numbers:
            model.zero_grad()
            loss_of(model, number).backward()
            step()

    sigmas = []
    for backend in (None, "eager"):
        model = wide()
        optimizer = torch.optim.Adam(model.parameters())
        pruner = pw.Pruner(model, optimizer, uncertainty=recipe or pw.SecondMoment())
        step = torch.compile(optimizer.step, backend=backend) if backend else optimizer.step
        steps(model, step, range(10))
        sigmas.append(pruner.sigma())
        pruner.prune(0.5)
        steps(model, step, range(10, 13))
        assert sparsity(model) == 0.5
    for name, sigma in sigmas[0].items():
        torch.testing.assert_close(sigmas[1][name], sigma, rtol=1e-3, atol=1e-9)


@pytest.mark.filterwarnings("ignore:.*lost all weights")
@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("uncertainty", [pw.SecondMoment(), pw.PseudoBootstrap(last=5)])
def test_pruning_goes_on_to_the_very_end(scope, uncertainty):
    model = wide()
    optimizer = torch.optim.Adam(model.parameters())
    pruner = pw.Pruner(model, optimizer, uncertainty=uncertainty, scope=scope)
    for level in (0.9, 0.99, 0.995, 0.997):
        train(model, optimizer, 10)
        pruner.prune(level)
        wanted = round(level * 600) if scope == "global" else sum(min(round(level * n), n - 1) for n in (120, 400, 80))
        assert round(sparsity(model) * 600) == wanted


@pytest.mark.parametrize("criterion", [None, pw.Wald(), pw.MagnitudeUncertainty(relative_to="model")])
def test_a_layer_of_one_weight(criterion):
    model = nn.Sequential(nn.Linear(6, 1), nn.Linear(1, 1), nn.Linear(1, 4))
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, 10)
    pw.Pruner(model, optimizer, criterion=criterion).prune(0.5)
    assert model[1].weight != 0


def test_masks_with_the_same_number_of_places_are_targets_of_their_own():
    model = wide()
    a, b = torch.zeros(20, 6, dtype=torch.bool), torch.zeros(20, 6, dtype=torch.bool)
    a[0], b[1] = True, True
    pruner = pw.Pruner(model, targets=[("0.weight", a), ("0.weight", b)], criterion="magnitude", scope="layer")
    report = pruner.prune(0.5)
    assert [row.name for row in report.rows] == ["0.weight[6 places]", "0.weight[6 places] #2"]
    assert (model[0].weight == 0).sum(1).tolist() == [3, 3] + [0] * 18
    with pytest.raises(ValueError, match="overlaps"):
        pw.Pruner(model, targets=[("0.weight", a), ("0.weight", a.clone())])


def test_a_key_that_names_a_slice_means_that_slice():
    model = wide()
    with pytest.raises(ValueError, match=r"'0.weight\[0:2\]'.*'2.weight'"):
        pw.Pruner(model, criterion="magnitude").prune({"0.weight[0:2]": 0.9})
    assert sparsity(model) == 0
    pruner = pw.Pruner(model, criterion="magnitude", targets=["0.weight[0]", "0.weight[1]"])
    pruner.prune({"0.weight[ 0]": 0.5})
    assert (model[0].weight == 0).sum(1).tolist() == [3] + [0] * 19


def test_a_place_named_twice_is_refused():
    with pytest.raises(ValueError, match="'0.weight' twice: give each place once"):
        pw.Pruner(wide(), targets=[("0.weight", [0, 0, 1])])


@pytest.mark.parametrize("first", [torch.float32, torch.float64])
def test_float32_and_float64_in_one_order(first):
    second = torch.float64 if first == torch.float32 else torch.float32
    model = nn.Sequential(nn.Linear(100, 100).to(first), nn.Linear(100, 100).to(second))
    before = torch.cat([layer.weight.detach().double().flatten().abs() for layer in model])
    pruner = pw.Pruner(model, criterion="magnitude", scope="global")
    pruner.prune(0.5)
    kept = torch.cat([mask.flatten() for mask in pruner.masks.values()])
    assert int(kept.sum()) == 10_000
    assert before[kept].min() >= before[~kept].max()


def test_no_score_brings_a_pruned_weight_back():
    model = wide()
    pruner = pw.Pruner(model, criterion=lambda stats: torch.where(stats.weight < 0, -torch.inf, 1.0))
    before = None
    for level in (0.2, 0.4, 0.8):
        pruner.prune(level)
        assert before is None or all((pruner.masks[n] <= before[n]).all() for n in before)
        before = pruner.masks
    pruner.prune(threshold=-1e30)
    assert pruner.sparsity >= 0.8


def test_sparsity_counts_the_zeros_that_are_there_already():
    model = wide()
    optimizer = torch.optim.Adam(model.parameters())
    first = pw.Pruner(model, optimizer, criterion="magnitude")
    first.prune(0.5)
    first.detach()
    with torch.no_grad():
        model[0].weight[:, :2].add_(0.1)
    for _ in range(5):
        optimizer.zero_grad()
        x = torch.randn(16, 6)
        x[:, :2] = 0  # these weights are dead, and not zero
        model(x).square().sum().backward()
        for p in model.parameters():
            p.grad[p == 0] = 0
        optimizer.step()
    zeros = sparsity(model)
    pw.Pruner(model, optimizer).prune(0.6)
    assert 0.4 < zeros < 0.6
    assert sparsity(model) == pytest.approx(0.6, abs=0.002)


def test_a_column_of_scales_beside_a_weight_is_none():
    layer = nn.Linear(10, 20)
    layer.register_parameter("weight_g", nn.Parameter(torch.ones(20, 1)))
    assert list(pw.Pruner(nn.Sequential(layer), criterion="magnitude").masks) == ["0.weight"]


def test_a_linear_layer_with_norm_in_its_name_is_a_linear_layer():
    class NormalizedLinear(nn.Linear):
        pass

    assert list(pw.Pruner(nn.Sequential(NormalizedLinear(3, 3)), criterion="magnitude").masks) == ["0.weight"]


def test_an_empty_parameter_is_no_target_and_a_lazy_one_an_error():
    assert list(pw.Pruner(nn.ParameterDict({"w1": torch.ones(0, 4), "w2": torch.ones(3, 4)})).masks) == ["w2"]
    with pytest.raises(ValueError, match="'0.weight'.*run one batch"):
        pw.Pruner(nn.Sequential(nn.LazyLinear(3)))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy, pickle.dumps])
def test_a_pruner_does_not_copy_and_says_what_does(duplicate):
    pruner = pw.Pruner(wide(), criterion="magnitude")
    with pytest.raises(TypeError, match=r"new Pruner.*state_dict\(\)"):
        duplicate(pruner)


def test_masks_are_copies():
    pruner = pw.Pruner(wide(), criterion="magnitude")
    pruner.prune(0.5)
    pruner.masks["0.weight"].fill_(True)
    assert pruner.sparsity == 0.5


def test_the_same_optimizer_twice_is_one():
    model = wide()
    optimizer = torch.optim.Adam(model.parameters())
    pruner = pw.Pruner(model, [optimizer, optimizer], uncertainty=pw.PseudoBootstrap(last=5, total_steps=10))
    train(model, optimizer, 10)
    assert pruner.prune(0.5).sparsity == 0.5


class FusedAdam(torch.optim.Optimizer):
    """Keeps a second moment, and counts its steps by group, as apex's of this name does."""

    def __init__(self, params):
        super().__init__(params, {"betas": (0.9, 0.99), "step": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] += 1
            for p in group["params"]:
                average = self.state[p].setdefault("exp_avg_sq", torch.zeros_like(p))
                average.mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
                p.sub_(1e-3 * p.grad)


def test_steps_counted_by_group():
    model, other = wide(), wide()
    optimizer = FusedAdam(model.parameters())
    train(model, optimizer, 10)
    plain = torch.optim.SGD(other.parameters(), lr=1e-3)
    own = pw.Pruner(other, plain, uncertainty=pw.SecondMoment(decay=0.99))
    train(other, plain, 10)
    sigma = pw.Pruner(model, optimizer, uncertainty="second-moment").sigma()
    for name, expected in own.sigma().items():
        torch.testing.assert_close(sigma[name], expected)


def test_an_untouched_layer_needs_no_score():
    pruner = pw.Pruner(wide(), criterion="magnitude")
    row = pruner.prune({"0": 0.5}).rows[1]
    assert (row.kept, row.threshold, row.overlap) == (400, None, 1.0)


def test_numpy_sigmas_and_classes_for_parts():
    model = wide()
    sigma = {n: torch.rand_like(p).numpy() for n, p in model.named_parameters()}
    assert pw.Pruner(model, criterion=pw.Wald, uncertainty=sigma).prune(0.5).criterion == "Wald()"


def test_a_compiled_model_is_saved_and_loaded_by_its_plain_names(tmp_path):
    model = wide()
    pw.save(torch.compile(model), tmp_path / "a.pw")
    fresh = nn.Sequential(*copy.deepcopy(list(model)))
    with torch.no_grad():
        fresh[0].weight.zero_()
    pw.load(tmp_path / "a.pw", into=torch.compile(fresh))
    assert torch.equal(fresh[0].weight, model[0].weight)
    with pytest.raises(FileNotFoundError, match="missing"):
        pw.save(model, tmp_path / "missing" / "a.pw")


@pytest.mark.parametrize("settings", [{"last": 2.5}, {"last": 1}, {"every": 0}, {"total_steps": "10"}])
def test_whole_numbers_only(settings):
    ((name, value),) = settings.items()
    with pytest.raises(ValueError, match=f"{name}={value!r}: give a whole number"):
        pw.PseudoBootstrap(**settings)


def test_tau_refuses_a_negative_lambda():
    with pytest.raises(ValueError, match="lam=-3.0: give a number"):
        pw.tau(torch.ones(2), torch.ones(2), -3.0)
