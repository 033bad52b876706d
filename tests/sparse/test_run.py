"""run_sparse from outside: what it returns computes what the dense model does, and says what it is."""

import copy
import io
import threading
import warnings
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import prunewald as pw
from prunewald.sparse import SpeedReport
from prunewald.sparse.backends import BACKENDS, Way
from prunewald.sparse.compiler import library
from prunewald.sparse.compressed import Compressed
from prunewald.sparse.sparse_layers import FusedSequential, SparseLinear

needs_c = pytest.mark.skipif(isinstance(library(), str), reason="no C compiler here")


def mlp(sparsity=0.95, sizes=(96, 256, 192, 10)):
    torch.manual_seed(0)
    layers = []
    for inputs, outputs in pairwise(sizes):
        layer = nn.Linear(inputs, outputs)
        layer.weight.data *= torch.rand(outputs, inputs) >= sparsity
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@pytest.fixture(autouse=True)
def _quick(one_thread, monkeypatch):
    """Any gain will do here, even of a busy machine: what is tested is what was replaced, not when."""
    from prunewald.sparse import fusing, run, trial

    for module in (fusing, run, trial):
        monkeypatch.setattr(module, "clearly_faster", lambda times, base, name, margin: True)
    monkeypatch.setattr("prunewald.sparse.stopwatch._ROUNDS", 1)
    monkeypatch.setattr("prunewald.sparse.stopwatch._BLOCK", 1e-9)


def same(fast, model, *args):
    with torch.inference_mode():
        torch.testing.assert_close(fast(*args), model(*args), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backends", [BACKENDS, *BACKENDS])
@pytest.mark.parametrize("batch", [1, 3, 64])
def test_the_copy_gives_what_the_model_gives(backends, batch):
    model = mlp()
    before = copy.deepcopy(model.state_dict())
    fast = pw.run_sparse(model, torch.randn(batch, 96), backends=backends)
    if backends == "c" and isinstance(library(), str):
        assert not fast.report.replaced
    same(fast, model, torch.randn(batch, 96))
    assert type(model) is nn.Sequential
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(param.requires_grad for param in model.parameters())


@pytest.mark.parametrize("made_for", [1, 5, 40])
@pytest.mark.parametrize("shape", [(1, 96), (2, 96), (17, 96), (200, 96), (0, 96), (3, 7, 96), (2, 0, 96), (96,)])
def test_other_batches_and_shapes_are_right(made_for, shape):
    model = mlp()
    fast = pw.run_sparse(model, torch.randn(made_for, 96))
    assert fast.report.replaced
    same(fast, model, torch.randn(shape))


def test_inputs_that_are_not_contiguous():
    model = mlp()
    fast = pw.run_sparse(model, torch.randn(8, 96))
    x = torch.randn(96, 16).t()[::2]
    assert not x.is_contiguous()
    same(fast, model, x)
    same(fast, model, torch.randn(1, 96).expand(8, 96))
    same(fast, model, torch._neg_view(torch.randn(8, 96)))


def test_wrong_widths_and_types_are_refused_as_torch_does():
    model = mlp()
    fast = pw.run_sparse(model, torch.randn(8, 96))
    for x in (torch.randn(8, 95), torch.randn(8, 96, dtype=torch.float64), torch.tensor(1.0)):
        with pytest.raises(RuntimeError) as wanted:
            model(x)
        with pytest.raises(RuntimeError) as got:
            fast(x)
        assert str(got.value) == str(wanted.value)


def test_the_report_has_every_weight_and_prints():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 64), nn.ReLU())
    model[2].weight.data *= torch.rand(64, 144) >= 0.95
    fast = pw.run_sparse(model, torch.randn(1, 1, 8, 8))
    rows = {row.name: row for row in fast.report.layers}
    assert rows["2"].zeros > 0.9
    assert rows["2"].way
    assert rows["2"].faster == rows["2"].dense / rows["2"].sparse
    assert "Conv2d" in rows["0.weight"].reason
    assert "a tensor (1, 1, 8, 8), 1 thread" in str(fast.report)
    assert "Conv2d" in fast.report._repr_html_()
    assert fast.report.to_dict()["layers"][0]["shape"] == [64, 144]
    same(fast, model, torch.randn(5, 1, 8, 8))


def test_a_dense_model_stays_dense_and_the_table_says_why():
    net = Tokens()
    fast = pw.run_sparse(net, torch.randn(2, 5, 64))
    assert not fast.report.replaced
    assert fast.report.faster == 1
    assert [type(one) for one in fast.modules()] == [type(one) for one in net.modules()]
    assert "fewer than 30%" in str(fast.report)


class Tokens(nn.Module):
    """One layer used twice, another that is tied to it, and one that nobody calls."""

    def __init__(self, sparsity=0.0):
        super().__init__()
        torch.manual_seed(1)
        self.up, self.down, self.idle = nn.Linear(64, 128, bias=False), nn.Linear(128, 64), nn.Linear(3, 3)
        self.up.weight.data *= torch.rand(128, 64) >= sparsity
        self.down.weight.data *= torch.rand(64, 128) >= sparsity
        self.head = nn.Linear(64, 128, bias=False)
        self.head.weight = self.up.weight

    def forward(self, x):
        return self.head(self.down(self.up(self.down(self.up(x)))))


def test_layers_used_twice_tied_and_idle():
    net = Tokens(0.95)
    fast = pw.run_sparse(net, torch.randn(2, 5, 64))
    rows = {row.name: row for row in fast.report.layers}
    assert "called 2 times" in rows["up"].reason
    assert "does not call it" in rows["idle"].reason
    assert rows["up"].samples == 10
    assert isinstance(fast.head, SparseLinear)
    same(fast, net, torch.randn(3, 2, 64))
    assert list(fast.state_dict()) != []
    assert set(fast.state_dict()) == set(net.state_dict())


def test_the_state_dict_is_the_dense_models_both_ways():
    model, other = mlp(), mlp(0.9)
    fast = pw.run_sparse(model, torch.randn(1, 96))
    assert list(fast.state_dict()) == list(model.state_dict())
    plain = mlp(0.5)
    plain.load_state_dict(fast.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    same(fast, model, torch.randn(1, 96))
    fast.load_state_dict(other.state_dict())  # other zeros, too
    same(fast, other, torch.randn(1, 96))
    fast[2].load_state_dict(model[2].state_dict())  # one layer, behind the back of the chain
    other[2].load_state_dict(model[2].state_dict())
    same(fast, other, torch.randn(1, 96))


def test_a_state_dict_that_does_not_fit_is_refused_as_torch_does():
    fast = pw.run_sparse(mlp(), torch.randn(1, 96))
    for change in (lambda d: d.pop("2.weight"), lambda d: d.update({"0.extra": torch.ones(1)})):
        state = mlp().state_dict()
        change(state)
        with pytest.raises(RuntimeError) as wanted:
            mlp().load_state_dict(state)
        with pytest.raises(RuntimeError) as got:
            fast.load_state_dict(state)
        assert str(got.value).split(":")[1:] == str(wanted.value).split(":")[1:]
    with pytest.raises(RuntimeError, match="size mismatch for 0.weight"):
        fast.load_state_dict(mlp(sizes=(97, 256, 192, 10)).state_dict())
    assert fast.load_state_dict({}, strict=False).missing_keys


@pytest.mark.parametrize("way", ["save", "deepcopy"])
def test_copies_and_files_run_as_before(way):
    model = mlp()
    fast = pw.run_sparse(model, torch.randn(1, 96))
    same(fast, model, torch.randn(1, 96))
    if way == "deepcopy":
        again = copy.deepcopy(fast)
    else:
        buffer = io.BytesIO()
        torch.save(fast, buffer)
        buffer.seek(0)
        again = torch.load(buffer, weights_only=False)
    assert str(again.report) == str(fast.report)
    assert type(again) is type(fast)
    same(again, model, torch.randn(1, 96))
    same(again, model, torch.randn(33, 96))


@needs_c
def test_where_there_is_no_compiler_a_loaded_model_runs_by_torch_and_says_so(monkeypatch):
    model = mlp()
    fast = copy.deepcopy(pw.run_sparse(model, torch.randn(1, 96), backends="c"))
    for place in ("backends.library", "native.library"):
        monkeypatch.setattr(f"prunewald.sparse.{place}", lambda: "no C compiler was found")
    with pytest.warns(UserWarning, match="no C compiler was found: .* torch CSR"):
        same(fast, model, torch.randn(1, 96))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(fast, model, torch.randn(1, 96))


@needs_c
def test_where_there_is_no_avx512_a_loaded_model_runs_by_rows_and_says_so(monkeypatch):
    layer = mlp()[0]
    fast = SparseLinear(Compressed.of(layer.weight, layer.bias), Way("c", "tiles"), 1)
    monkeypatch.setattr("prunewald.sparse.native.library", lambda: SimpleNamespace(tiles=False))
    with pytest.warns(UserWarning, match="AVX-512.* run by C, rows"):
        same(fast, layer, torch.randn(1, 96))


@needs_c
def test_chains_become_one_call_and_children_stay():
    model = mlp()
    fast = pw.run_sparse(model, torch.randn(1, 96))
    assert isinstance(fast, FusedSequential)
    assert isinstance(fast[0], SparseLinear)
    assert [name for name, _ in fast.named_children()] == ["0", "1", "2", "3", "4"]
    assert fast.report.layers[-1].name == "0 to 4"
    same(fast[:2], model[:2], torch.randn(1, 96))
    fast[1] = model[1] = nn.Tanh()  # now it is another model
    same(fast, model, torch.randn(1, 96))


def test_dropout_in_a_chain_drops_once_it_is_trained():
    model = nn.Sequential(mlp()[0], nn.Dropout(0.9), nn.ReLU(), nn.Linear(256, 4))
    fast = pw.run_sparse(model, torch.randn(1, 96))
    same(fast, model.eval(), torch.randn(1, 96))
    x = torch.randn(1, 96)
    assert not torch.equal(fast.train()(x), fast(x))


def test_a_chain_with_other_modules_between_and_around():
    first, last = mlp(), mlp(sizes=(10, 64, 64, 3))
    model = nn.Sequential(nn.Flatten(), *first, nn.Sigmoid(), *last, nn.Softmax(1))
    fast = pw.run_sparse(model, torch.randn(2, 4, 24))
    same(fast, model, torch.randn(2, 4, 24))
    same(fast, model, torch.randn(70, 4, 24))


def test_chains_within_chains():
    inner = nn.Sequential(nn.Tanh(), *mlp(sizes=(64, 64, 64)))
    model = nn.Sequential(*mlp(sizes=(64, 64, 64)), inner)
    fast = pw.run_sparse(model, torch.randn(1, 64))
    lines = [row.name for row in fast.report.layers if not row.shape]
    if isinstance(library(), str):
        assert lines == []
    else:
        assert lines == ["0 to 2", "3.1 to 3.3"]
        assert isinstance(fast[3], FusedSequential)
        assert fast._steps()[1] == fast._made_for
    assert not [type(one) for one in fast.modules() if type(one) is nn.Linear]
    same(fast, model, torch.randn(3, 64))


def test_hooks_within_a_chain_run():
    model = mlp()
    fast, seen = pw.run_sparse(model, torch.randn(1, 96)), []
    handle = fast[1].register_forward_hook(lambda module, args, output: seen.append(output))
    x = torch.randn(1, 96)
    same(fast, model, x)
    torch.testing.assert_close(seen, [model[:2](x).detach()], rtol=1e-4, atol=1e-4)
    handle.remove()
    same(fast, model, x)
    assert len(seen) == 1


def test_a_layer_that_stands_twice_in_a_chain():
    layer = mlp(sizes=(64, 64))[0]
    model = nn.Sequential(layer, nn.ReLU(), layer, nn.Sequential(layer, nn.ReLU()))
    fast = pw.run_sparse(model, torch.randn(1, 64))
    assert fast.report.replaced
    assert len(fast) == 4
    assert fast[0] is fast[2]
    same(fast, model, torch.randn(3, 64))


def test_gradients_of_inputs_are_right():
    model = mlp()
    fast = pw.run_sparse(model, torch.randn(4, 96))
    x = torch.randn(4, 96)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    fast(a).square().sum().backward()
    model(b).square().sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def test_a_model_that_is_a_single_layer_and_one_without_a_weight_left():
    layer = mlp()[0]
    fast = pw.run_sparse(layer, torch.randn(1, 96))
    assert isinstance(fast, SparseLinear)
    same(fast, layer, torch.randn(1, 96))
    nn.init.zeros_(layer.weight)
    for batch in (1, 8):
        fast = pw.run_sparse(layer, torch.randn(batch, 96))
        same(fast, layer, torch.randn(batch, 96))


def test_hugging_faces_conv1d():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    layer = transformers.pytorch_utils.Conv1D(192, 64)
    layer.weight.data *= torch.rand(64, 192) >= 0.95
    model = nn.Sequential(layer, nn.ReLU())
    fast = pw.run_sparse(model, torch.randn(2, 5, 64))
    assert isinstance(fast[0], SparseLinear)
    same(fast, model, torch.randn(2, 5, 64))
    assert torch.equal(fast.state_dict()["0.weight"], layer.weight)
    fast.load_state_dict(model.state_dict())
    same(fast, model, torch.randn(2, 5, 64))


def test_a_pruner_is_taken_as_its_model_stands_now():
    model = mlp(0.0)
    pruner = pw.Pruner(model, torch.optim.Adam(model.parameters()))
    pruner.prune(0.95)
    fast = pw.run_sparse(pruner, torch.randn(1, 96))
    assert fast.report.replaced
    same(fast, model, torch.randn(1, 96))
    assert not any(hook for module in fast.modules() for hook in module._forward_pre_hooks.values())
    model(torch.randn(4, 96)).sum().backward()
    assert pruner.sparsity == pytest.approx(0.95, abs=0.001)


def test_layers_that_are_not_plain_stay_dense():
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    for layer in net:
        layer.weight.data *= torch.rand(64, 64) >= 0.95
    nn.utils.parametrize.register_parametrization(net[0], "weight", nn.Tanh())
    net[1].register_forward_hook(_does_nothing)
    net[2].forward = partial(nn.Linear.forward, net[2])
    with torch.no_grad():
        wanted = net(torch.ones(1, 64))
    fast = pw.run_sparse(net, torch.randn(1, 64))
    reasons = {row.name: row.reason for row in fast.report.layers}
    assert "parametrize" in reasons["0"]
    assert "hooks" in reasons["1"]
    assert "forward of its own" in reasons["2"]
    torch.testing.assert_close(fast(torch.ones(1, 64)), wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_stay_dense(dtype):
    model = mlp().to(dtype)
    fast = pw.run_sparse(model, torch.randn(1, 96, dtype=dtype))
    assert not fast.report.replaced
    assert "only float32" in str(fast.report)
    same(fast, model, torch.randn(1, 96, dtype=dtype))


def test_derivatives_of_torch_func_are_right():
    model = mlp()
    fast, x = pw.run_sparse(model, torch.randn(1, 96)), torch.randn(5, 96)
    torch.testing.assert_close(torch.func.vmap(fast)(x), model(x), rtol=1e-4, atol=1e-4)
    with forward_ad.dual_level():
        pairs = [forward_ad.unpack_dual(one(forward_ad.make_dual(x, torch.ones_like(x)))) for one in (fast, model)]
    torch.testing.assert_close(pairs[0].tangent, pairs[1].tangent, rtol=1e-4, atol=1e-4)


def test_weights_that_are_set_from_outside_are_refused():
    fast = pw.run_sparse(mlp(), torch.randn(1, 96))
    with pytest.raises(AttributeError, match="load_state_dict"):
        torch.func.functional_call(fast, mlp(0.5).state_dict(), (torch.randn(1, 96),))


def test_a_model_that_draws_numbers_is_compared_fairly_and_leaves_the_generator_as_it_was():
    before = torch.get_rng_state()
    fast = pw.run_sparse(Drawing(), torch.ones(1, 96))
    assert fast.report.replaced
    assert fast(input=torch.ones(1, 96)).shape == (1, 256)
    torch.set_rng_state(before)
    pw.run_sparse(Drawing(), torch.ones(1, 96))
    assert torch.equal(torch.get_rng_state(), before)


class Drawing(nn.Module):
    """Dropout that eval mode does not end."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            self.fc = mlp()[0]

    def forward(self, input):
        return nn.functional.dropout(self.fc(input=input), 0.5)


def test_a_model_that_torch_has_pruned_is_left_dense_or_refused_with_the_remedy():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    nn.utils.prune.l1_unstructured(model[0], "weight", 0.95)
    with pytest.raises(ValueError, match=r"cannot be copied.*prune.remove\(\)"):
        pw.run_sparse(model, torch.randn(1, 64))
    nn.utils.prune.remove(model[0], "weight")
    assert pw.run_sparse(model, torch.randn(1, 64)).report.replaced


def test_an_example_that_does_not_fit_leaves_no_trace():
    model = mlp()
    with pytest.raises(RuntimeError, match="96"):
        pw.run_sparse(model, torch.randn(1, 95))
    assert not any("forward" in vars(module) for module in model.modules())


def test_what_cannot_run_here_is_refused():
    model, x = mlp(), torch.randn(1, 96)
    with pytest.raises(TypeError, match="model='fc'.*Pruner"):
        pw.run_sparse("fc", x)
    with pytest.raises(ValueError, match="backends='gpu'.*'torch', 'mkl', 'c'"):
        pw.run_sparse(model, x, backends="gpu")
    with pytest.raises(ValueError, match=r"margin=-1: give a number of at least 0|margin=-1"):
        pw.run_sparse(model, x, margin=-1)
    with pytest.raises(ValueError, match=r"'0.weight' is on meta.*cpu\(\)"):
        pw.run_sparse(mlp().to("meta"), x)
    with pytest.raises(ValueError, match="tensor on meta"):
        pw.run_sparse(model, x.to("meta"))
    fast = pw.run_sparse(model, x)
    with pytest.raises(ValueError, match="already"):
        pw.run_sparse(fast, x)
    for change in (fast.half, fast.double, lambda: fast.to("meta")):
        with pytest.raises(RuntimeError, match="run_sparse"):
            change()
    same(fast.float().to("cpu").eval(), model, x)


def test_a_model_with_a_report_of_its_own_keeps_it():
    with pytest.warns(UserWarning, match="'sparse_report'"):
        fast = pw.run_sparse(Own(), torch.randn(1, 96))
    assert fast.report == "mine"
    assert isinstance(fast.sparse_report, SpeedReport)


def _does_nothing(*_):
    return None


class Own(nn.Module):
    """A model whose user has used the name already."""

    def __init__(self):
        super().__init__()
        self.report, self.fc = "mine", mlp()[0]

    def forward(self, x, scale=1.0):
        return self.fc(x) * scale


@pytest.mark.filterwarnings("ignore:the model has a 'report'")
def test_examples_by_position_and_by_name():
    for given in ((torch.randn(1, 96), 2.0), {"x": torch.randn(1, 96), "scale": 2.0}):
        assert pw.run_sparse(Own(), given).sparse_report.replaced


def test_outputs_that_are_not_finite_leave_the_model_dense():
    model = nn.Sequential(mlp()[0], nn.ReLU())
    fast = pw.run_sparse(model, torch.full((1, 96), float("nan")))
    assert not fast.report.replaced
    assert "no backend gave the dense layer's results" in str(fast.report)


def test_threads_of_python_may_share_a_model():
    model = mlp()
    fast = pw.run_sparse(model, torch.randn(1, 96))
    inputs = [torch.randn(1, 96) for _ in range(8)]
    wanted = [model(x) for x in inputs]
    wrong = []

    def work(x, want):
        wrong.extend(x for _ in range(200) if not torch.allclose(fast(x), want, rtol=1e-4, atol=1e-4))

    workers = [threading.Thread(target=work, args=pair) for pair in zip(inputs, wanted, strict=True)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    assert wrong == []


@pytest.mark.slow
def test_exported_and_compiled_and_traced():
    model = mlp()
    fast = pw.run_sparse(model, torch.randn(2, 96))
    x = torch.randn(2, 96)
    exported = torch.export.export(fast, (x,)).module()
    same(exported, model, x)
    same(exported, model, torch.randn(2, 96))
    compiled = torch.compile(fast, backend="eager")
    same(compiled, model, torch.randn(2, 96))
    traced = torch.jit.trace(fast, x)
    same(traced, model, torch.randn(2, 96))
