"""Models with LoRA: the weights are the targets, adapters are left out, and what merging does to zeros is said."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import prunewald as pw
from prunewald.model.layouts import survey
from tests.transcriptions import LoraLinear, with_lora

pytestmark = pytest.mark.usefixtures("one_thread")

BASES = ["0.base_layer.weight", "2.base_layer.weight"]


def adapted() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = with_lora(nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4)))
    return model


def trainable(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(x, x[:, :4].argmax(1)) for x in torch.randn(6, 16, 12, generator=generator)]


def train(model: nn.Module, optimizer: Optimizer) -> None:
    for x, y in batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def zeros(model: nn.Module) -> float:
    weights = [model.get_parameter(name) for name in BASES]
    return sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)


def merge(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, LoraLinear):
            module.merge()


def test_weights_are_the_targets_and_adapters_are_listed_as_left_out():
    model = adapted()
    optimizer = trainable(model)
    pruner = pw.Pruner(model, optimizer)
    assert [part.name for part in pruner.slices] == BASES
    train(model, optimizer)
    report = pruner.prune(0.5)
    (left_out,) = [note for note in report.notes if "left out" in note]
    for name in ("0.lora_A.default.weight", "2.lora_B.default.weight"):
        assert name in left_out
    adapters = {name: p.clone() for name, p in model.named_parameters() if "lora_" in name}
    train(model, optimizer)
    assert zeros(model) == pruner.sparsity == 0.5
    assert all(bool((model.get_parameter(name) != before).all()) for name, before in adapters.items())


def test_adapters_that_are_named_are_targets():
    assert [s.name for s in pw.Pruner(adapted(), targets="*lora_A*").slices] == [
        "0.lora_A.default.weight",
        "2.lora_A.default.weight",
    ]


def test_the_zeros_that_an_adapter_adds_to_are_noted():
    report = pw.Pruner(adapted(), criterion="magnitude").prune(0.5)
    (note,) = [note for note in report.notes if "adapters add to" in note]
    assert "0.base_layer.weight" in note
    assert "merge first" in note
    assert not any("adapters" in note for note in pw.Pruner(nn.Linear(4, 4)).prune(0.5).notes)


def test_following_that_note_gives_zeros_in_what_the_layer_multiplies_with():
    model = adapted()
    train(model, trainable(model))
    merge(model)
    pw.Pruner(model, criterion="magnitude").prune(0.5)
    assert zeros(model) == 0.5


def test_a_frozen_base_goes_by_magnitude_and_the_advice_of_the_note_works():
    model = adapted()
    optimizer = trainable(model)
    train(model, optimizer)
    pruner = pw.Pruner(model, optimizer)
    report = pruner.prune(0.5)
    assert report.criterion == "Magnitude()"
    note = report.notes[0]
    assert "'0.base_layer.weight' does not require gradients" in note
    advice = "uncertainty=pw.uncertainty.LayerLeastSquares().estimate(model, batches)"
    assert advice in note
    sigma = eval(advice.partition("=")[2], {"pw": pw, "model": model, "batches": batches()})
    report = pruner.prune(0.7, uncertainty=sigma)
    assert report.criterion == "MagnitudeUncertainty()"
    assert report.sparsity == pytest.approx(0.7, abs=0.01)


def test_a_layer_frozen_after_training_goes_by_magnitude_and_does_not_raise():
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    model[0].requires_grad_(False)
    report = pw.Pruner(model, optimizer).prune(0.5)
    assert report.criterion == "Magnitude()"
    assert "'0.weight' does not require gradients" in report.notes[0]


def test_after_a_merge_the_sparsity_is_that_of_the_weights_and_a_warning_names_the_merge(tmp_path):
    model = adapted()
    optimizer = trainable(model)
    pruner = pw.Pruner(model, optimizer, criterion="magnitude")
    pruner.prune(0.5)
    train(model, optimizer)
    merge(model)
    assert zeros(model) < 0.01
    assert pruner.sparsity == zeros(model)
    assert "are not zero" in repr(pruner)
    with pytest.warns(UserWarning, match="0.base_layer.weight.*merged"):
        pw.save(pruner, tmp_path / "model.pw")
    assert zeros(model) == pruner.sparsity == 0.5
    stored = pw.load(tmp_path / "model.pw")
    assert sum(int((stored[name] == 0).sum()) for name in BASES) == 128


def test_other_adapters_and_modules_of_the_same_name():
    class Hada(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base_layer = nn.Linear(4, 4)
            self.hada_w1_a = nn.ParameterDict({"default": torch.randn(4, 2)})

    class LoRALinear(nn.Linear):  # loralib's and torchtune's hold the weight themselves
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.lora_a = nn.Linear(4, 2)

    class Aggregation(nn.Module):  # of DLA, which has no adapter
        def __init__(self) -> None:
            super().__init__()
            self.base_layer = nn.Linear(4, 4)
            self.level = nn.Linear(4, 4)

    found = survey(nn.ModuleDict({"h": Hada(), "l": LoRALinear(), "d": Aggregation()}))
    assert set(found.weights) == {"h.base_layer.weight", "l.weight", "d.base_layer.weight", "d.level.weight"}
    assert set(found.adapted) == {"h.base_layer.weight", "l.weight"}
    assert set(found.others) == {"h.hada_w1_a.default", "l.lora_a.weight"}
