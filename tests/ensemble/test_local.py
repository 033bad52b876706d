"""Seeds, chunks, models that cannot be vectorised, and wrong arguments."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from prunewald.ensemble import SGD, RMSprop, draws, local, train_many, trial_step
from prunewald.ensemble.swap import Swap
from prunewald.ensemble.vmap_trainer import VmapTrainer
from prunewald.uncertainty import PseudoBootstrap

pytestmark = pytest.mark.usefixtures("one_thread")

SEEDS = (5, 0, 2**40 + 5, 7)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 3, 3),
        nn.Dropout1d(0.2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 6),
        nn.Dropout(0.3),
        nn.Linear(6, 3),
    ).double()


def data() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(50, 2, 6, generator=g, dtype=torch.float64), torch.randint(0, 3, (50,), generator=g)


def many(make=net, **options):
    x, y = data()
    common = {"seeds": SEEDS, "epochs": 3, "batch_size": 20, "optimizer": RMSprop(lr=1e-3), "how": "vmap"}
    return train_many(make, x, y, **common | {"progress": False} | options)


def same(a, b):
    for name in a.params:
        torch.testing.assert_close(a.params[name], b.params[name], rtol=1e-6, atol=1e-12)
    for name in a.buffers:
        torch.testing.assert_close(a.buffers[name], b.buffers[name], rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(a.losses, b.losses, rtol=1e-6, atol=1e-12)
    assert a.seeds == b.seeds


def part(result, rows):
    """The result as if only these replicas had been trained."""
    return type(result)(
        make=result.make,
        seeds=tuple(result.seeds[r] for r in rows),
        params={name: tensor[rows] for name, tensor in result.params.items()},
        buffers={name: tensor[rows] for name, tensor in result.buffers.items()},
        losses=result.losses[rows],
        second_moment={},
        estimates=(),
        how="",
    )


def test_draws_belong_to_a_seed():
    orders, rows = draws.order(SEEDS, 30, epoch=4), draws.bootstrap(SEEDS, 30)
    for r, seed in enumerate(SEEDS):
        assert torch.equal(orders[r], draws.order([seed], 30, epoch=4)[0])
        assert torch.equal(rows[r], draws.bootstrap([seed], 30)[0])
        assert sorted(orders[r].tolist()) == list(range(30))
    assert len({tuple(order.tolist()) for order in (*orders, *draws.order(SEEDS, 30, epoch=5))}) == 8


def test_draws_are_uniform_and_unrelated():
    keys = draws.chain(draws.seed_key(range(50), draws.NOISE)[:, None], torch.arange(40, dtype=torch.int32)[:, None])
    words = draws.bits(keys, 500).view(-1, 500)
    unit = (words.double() + 2**31) / 2**32
    n = unit.numel()
    counts = torch.histc(unit.float(), 64, 0, 1).double()
    assert ((counts - n / 64) ** 2 / (n / 64)).sum() < 110  # chi-square, 63 degrees of freedom: p < 2e-4
    centred = (unit - 0.5) * 12**0.5
    for other in (centred.roll(1, 0), centred.roll(40, 0), centred.roll(1, 1)):
        assert (centred * other).mean().abs() < 5 / n**0.5
    for bit in range(32):
        assert abs(((words >> bit) & 1).double().mean() - 0.5) < 2.5 / n**0.5
    rows = draws.bootstrap(range(200), 100)
    assert (rows.min(), rows.max()) == (0, 99)
    assert abs(torch.stack([row.unique().numel() * torch.ones(()) for row in rows]).mean() - 63.4) < 0.8


def test_dropout_keeps_the_right_share():
    kept = draws.keep(draws.seed_key([1], draws.NOISE)[0], torch.Size([100, 1000]), 0.3)
    assert abs(kept.double().mean() - 0.7) < 0.006


@pytest.mark.parametrize("how", ["vmap", "loop"])
def test_a_replica_depends_on_its_own_seed_only(how):
    whole = many(how=how, resample="bootstrap")
    same(many(how=how, resample="bootstrap", chunk=3), whole)
    same(many(how=how, resample="bootstrap", seeds=[7, 0]), part(whole, [3, 1]))
    assert not torch.equal(whole.params["4.weight"][0], whole.params["4.weight"][1])


def test_dropout_noise_is_the_same_both_ways():
    same(many(), many(how="loop"))


def test_dropout_differs_by_replica_and_step():
    start = net().state_dict()
    result = many(start=start, optimizer=SGD(lr=0.0), batch_size=50, epochs=2)
    assert result.losses.unique().numel() == result.losses.numel()


def drawn_apart(noise) -> list[bool]:
    """The dimensions along which noise differs."""
    return [bool((noise != noise.narrow(d, 0, 1)).any()) for d in range(noise.dim())]


DROPOUTS = [
    *((F.dropout, n) for n in (1, 2, 3, 4)),
    *((F.dropout1d, n) for n in (2, 3)),
    *((F.dropout2d, n) for n in (2, 3, 4, 5)),
    *((F.dropout3d, n) for n in (3, 4, 5)),
]


@pytest.mark.filterwarnings("ignore:dropout[23]d. Received")
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("dropout", "dims"), DROPOUTS)
def test_dropout_drops_what_torch_drops(dropout, dims, together):
    def ours(x, key):
        with Swap(key, torch.zeros((), dtype=torch.int32), fast=False):
            return dropout(x, 0.5)

    x, keys = torch.ones((8,) * dims), draws.seed_key([1, 2], draws.NOISE)
    noise = vmap(ours)(x.expand(2, *x.shape), keys) if together else torch.stack([ours(x, key) for key in keys])
    torch.manual_seed(0)
    wanted = drawn_apart(dropout(x, 0.5))
    assert noise.unique().tolist() == [0, 2]
    assert drawn_apart(noise) == [True, *wanted]
    assert drawn_apart(noise[1]) == wanted


@pytest.mark.parametrize("how", ["vmap", "loop"])
def test_dropout_warns_and_fails_as_torch_does(how):
    def dropping(dropout, p):
        class Drops(nn.Sequential):
            def forward(self, x: Tensor) -> Tensor:
                out: Tensor = super().forward(dropout(x, p))
                return out

        return lambda: Drops(nn.Flatten(), nn.Linear(12, 3).double())

    with pytest.warns(UserWarning, match="Received a 3D input to dropout2d"):
        result = many(dropping(F.dropout2d, 0.3), how=how)
    same(result, many(dropping(F.dropout1d, 0.3), how=how))
    with pytest.raises(ValueError, match="between 0 and 1, but got 1.5"):
        many(dropping(F.dropout, 1.5), how=how)


def test_same_start():
    result = many(start="same", optimizer=SGD(lr=0.0))
    torch.manual_seed(SEEDS[0])
    assert all(torch.equal(p, result.params[n][r]) for n, p in net().named_parameters() for r in range(4))


def test_a_module_is_given():
    model = net()
    result = many(model, start="same", optimizer=SGD(lr=0.0))
    assert torch.equal(result.params["4.weight"][2], model[4].weight)
    whole = many(model)
    same(many(model, seeds=[7, 0]), part(whole, [3, 1]))
    assert not torch.equal(whole.params["4.weight"][0], whole.params["4.weight"][1])
    model[4] = nn.ParameterList([torch.zeros(1)])
    with pytest.raises(ValueError, match="ParameterList.*has no reset_parameters"):
        many(model)


def test_batch_norm_is_vectorised_with_its_statistics():
    def make():
        return nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(12, 3)).double()

    assert trial_step.cannot_vmap(job_of(make)) == ""
    result = many(make)
    same(result, many(make, how="loop"))
    assert (result.buffers["1.num_batches_tracked"] == 9).all()


def job_of(make):
    """The job that train_many would run."""
    kept = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prunewald.ensemble.many.train", lambda job, *_: kept.append(job))
        many(make)
    return kept[0]


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(12, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x.flatten(1))
        return -x if x.mean() > 0 else x


class Counting(Branching):
    """Keeps a buffer by assignment, which vmap cannot see."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + x.detach().abs().sum()
        out: Tensor = self.fc(x.flatten(1))
        return out


class Noisy(Branching):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc((x + torch.randn_like(x)).flatten(1))
        return out


@pytest.mark.parametrize("make", [Branching, Counting, Noisy])
def test_other_models_are_trained_one_by_one_and_it_says_why(make, capsys):
    result = many(make, how="auto")
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    assert "one by one" in said
    assert result.how == f"loop: {said.split('vectorised: ')[1]}"
    same(many(make, how="auto", seeds=[7, 0]), part(result, [3, 1]))


def test_an_error_of_the_model_is_raised():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        many(lambda: nn.Sequential(nn.Flatten(), nn.Linear(5, 3)).double(), how="auto")


def test_on_a_cpu_the_faster_way_is_taken(monkeypatch):
    many(how="auto")
    times = {"VmapTrainer": 1.0, "LoopTrainer": 2.0}
    monkeypatch.setattr(trial_step, "step_seconds", lambda trainer, batches: times[type(trainer).__name__])
    assert many(how="auto").how == "vmap"
    times["VmapTrainer"] = 3.0
    assert many(how="auto").how == "loop: faster here (2000.00 ms a step against 3000.00)"


def test_chunks_fit_into_memory(monkeypatch):
    whole, sizes = many(), []
    need = trial_step.footprint(job_of(net))
    weights = 8 * sum(p.numel() for p in net().parameters())
    assert 6 * weights < need < 60 * weights + 50_000
    monkeypatch.setattr(local, "memory", lambda device: int(2.5 * need))

    class Watched(VmapTrainer):
        def __init__(self, job):
            sizes.append(len(job.seeds))
            super().__init__(job)

    monkeypatch.setattr(local, "VmapTrainer", Watched)
    same(many(), whole)
    assert sizes == [2, 2]


def test_out_of_memory_halves_the_chunk(monkeypatch):
    whole = many()

    class Small(VmapTrainer):
        def __init__(self, job):
            if len(job.seeds) > 1:
                raise torch.cuda.OutOfMemoryError
            super().__init__(job)

    monkeypatch.setattr(local, "VmapTrainer", Small)
    same(many(), whole)


def test_progress_is_shown(capsys):
    many(progress=True, epochs=2)
    assert "8/8" in capsys.readouterr().err


def test_squared_error_and_frozen_parameters():
    def make():
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.Linear(3, 1)).double()
        model[1].weight.requires_grad_(False)
        return model

    x, y = data()
    common = {"loss": F.mse_loss, "epochs": 2, "seeds": [1, 2], "progress": False, "optimizer": SGD(lr=0.1)}
    result = train_many(make, x, y[:, None].double(), how="vmap", **common)
    same(result, train_many(make, x, y[:, None].double(), how="loop", **common))
    torch.manual_seed(2)
    assert torch.equal(result.params["1.weight"][1], make()[1].weight)


SUMS = [
    nn.CrossEntropyLoss(reduction="sum"),
    partial(F.cross_entropy, reduction="sum"),
    lambda output, target: F.cross_entropy(output, target, reduction="sum") - 100 * len(target),
]


@pytest.mark.parametrize("how", ["vmap", "loop"])
@pytest.mark.parametrize("loss", SUMS)
def test_losses_are_means_of_a_summed_loss_too(loss, how):
    def mean(output, target):
        return loss(output, target) / len(target)

    common = {"batch_size": 7, "optimizer": SGD(lr=0.0), "how": how}
    torch.testing.assert_close(many(loss=loss, **common).losses, many(loss=mean, **common).losses)


@pytest.mark.parametrize("how", ["vmap", "loop"])
def test_a_loss_for_each_sample_is_refused(how):
    with pytest.raises(ValueError, match=r"loss gives .*: must be one number a batch"):
        many(loss=nn.CrossEntropyLoss(reduction="none"), how=how)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": [-1]}, "seed -1"),
        ({"epochs": 0}, "epochs=0"),
        ({"start": "warm"}, "start='warm'"),
        ({"start": {"4.weight": torch.zeros(6, 12)}}, "differ in '0.bias'"),
        ({"resample": "jackknife"}, "resample='jackknife'"),
        ({"resample": torch.zeros(3, 50, dtype=torch.long)}, r"must be \(4, m\)"),
        ({"masks": {"fc.weight": torch.ones(1)}}, "no parameter 'fc.weight'"),
        ({"masks": {"4.weight": torch.ones(2, 6, 12)}}, r"must be \(6, 12\), or \(4, 6, 12\)"),
        ({"collect": PseudoBootstrap(last=10)}, "total_steps=9"),
        ({"collect": "jackknife"}, "unknown uncertainty"),
        ({"executor": "dask"}, "executor='dask'"),
        ({"how": "fast"}, "how='fast'"),
        ({"chunk": 0}, "chunk=0"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        many(**options)


def test_nothing_collected():
    with pytest.raises(ValueError, match="nothing was collected"):
        _ = many(epochs=1).sigma


@pytest.mark.parametrize("how", ["auto", "vmap", "loop"])
def test_more_rows_than_there_are_data(how):
    x, y = data()
    rows = torch.randint(0, len(x), (2, len(x) + 40), generator=torch.Generator().manual_seed(0))
    result = train_many(net, x, y, seeds=[0, 1], epochs=1, resample=rows, how=how, progress=False)
    assert len(result) == 2


@pytest.mark.parametrize("rows", [[[-1, 0]], [[0, 10_000]], [[]]])
def test_rows_that_are_not_there(rows):
    x, y = data()
    with pytest.raises(ValueError, match="resample has rows .*: must be whole numbers from 0 to"):
        train_many(net, x, y, seeds=[0], epochs=1, resample=torch.tensor(rows), progress=False)
