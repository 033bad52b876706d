"""The code in README and docs runs as it stands."""

import ast
import copy
import dataclasses
import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import prunewald as pw
from prunewald.lab.architectures import MLP

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page):
    return BLOCK.findall((ROOT / page).read_text())


class Net(nn.Module):
    """What the README's reader has: a model with a few layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3)
        self.fc1 = nn.Linear(64, 48)
        self.fc2 = nn.Linear(48, 32)
        self.top = nn.ModuleDict({"head": nn.Linear(32, 2)})

    def forward(self, x):
        hidden = self.fc2(self.fc1(self.conv1(x).relu().flatten(1)).relu()).relu()
        return self.top["head"](hidden)


def train(model, optimizer, epochs):
    for _ in range(10 * epochs):
        x = torch.randn(16, 1, 6, 6)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), (x[:, 0, 2, 2] > 0).long()).backward()
        optimizer.step()


def test_the_readme_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model, fresh = Net(), Net()
    names = {
        "model": model,
        "fresh_model": fresh,
        "optimizer": torch.optim.RMSprop(model.parameters(), lr=1e-3),
        "train": train,
        "epochs": 30,
        "total_steps": 300,
        "retrain_epochs": 2,
        "loader": [torch.randn(64, 1, 6, 6) for _ in range(4)],
        "nn": nn,
    }
    front_door, *others = blocks("README.md")
    exec(front_door, names)
    assert names["report"].sparsity == pytest.approx(0.9, abs=0.01)
    assert {row.name: int((fresh.get_parameter(row.name) != 0).sum()) for row in names["report"].rows} == {
        row.name: row.kept for row in names["report"].rows
    }
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters(), strict=True))
    assert "pruned by MagnitudeUncertainty(lam=0.01), sigma from PseudoBootstrap" in capsys.readouterr().out
    names["pruner"].detach()
    for statement in (one for block in others for one in ast.parse(block).body):  # a reader takes one of these lines
        names["model"] = Net()
        names["optimizer"] = torch.optim.RMSprop(names["model"].parameters(), lr=1e-3)
        train(names["model"], names["optimizer"], 1)
        names["pruner"] = pw.Pruner(names["model"], names["optimizer"])
        exec(ast.unparse(statement), names)
    assert "sigma from SecondMoment()" in capsys.readouterr().out


PAGES = ["docs/guide.md", "docs/ensemble.md", "docs/strategies.md", "docs/compression.md", "docs/page.md"]
PAGES += ["docs/refit.md", "docs/shrinking.md"]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_docs_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in blocks(page)[page == "docs/compression.md" :]:  # whose first is the reader's own model, below
        exec(block, names)


@pytest.mark.filterwarnings("ignore:.* output rows have no weight left")
def test_the_page_on_calibration_runs_from_top_to_bottom(capsys, one_thread):
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in blocks("docs/calibration.md"):
        exec(block, names)
    assert "20 batches of data, by pruner.observe()" in capsys.readouterr().out
    assert names["report"].criterion == "MagnitudeUncertainty()"
    assert names["pruner"].sparsity == pytest.approx(0.7, abs=0.01)


@pytest.mark.filterwarnings("ignore:.*")  # Lightning's own: loggers that are not there, few workers, short epochs
def test_the_page_on_lightning_runs_from_top_to_bottom(tmp_path, monkeypatch, one_thread):
    lightning = pytest.importorskip("lightning", reason="pip install 'prunewald[lightning]'")

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
            self.head = nn.Linear(16, 2)

        def training_step(self, batch, batch_idx):
            return nn.functional.cross_entropy(self.head(self.net(batch[0])), batch[1])

        def configure_optimizers(self):
            return torch.optim.RMSprop(self.parameters(), lr=1e-3)

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    x = torch.randn(64, 8)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()), batch_size=16)
    names = {"Classifier": Classifier, "model": Classifier(), "train_loader": loader}
    first, *others = blocks("docs/lightning.md")
    assert len([line for line in first.splitlines() if line]) <= 10, "the ten lines to copy"
    for block in (first, *others):
        exec(block, names)
    assert names["resumed"].pruner.sparsity == pytest.approx(0.9, abs=0.01)


class Small(nn.Module):
    """What the reader of a page on an integration has."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(12, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.fc2(self.fc1(x).relu())


def test_the_page_on_accelerate_runs_from_top_to_bottom(tmp_path, monkeypatch):
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "yes")
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
    data = torch.utils.data.TensorDataset(torch.randn(160, 12), torch.randint(0, 4, (160,)))
    names = {"torch": torch, "loss": nn.functional.cross_entropy, "model": model}
    names["loader"] = torch.utils.data.DataLoader(data, batch_size=8)
    names["optimizer"] = torch.optim.Adam(model.parameters())
    *training, log = blocks("docs/accelerate.md")
    for block in training:
        exec(block, names)
    assert names["pruner"].sparsity == pytest.approx(0.9, abs=0.01)
    told = []
    tracker = SimpleNamespace(name="own", main_process_only=True, log=lambda values, step: told.append((values, step)))
    names["accelerator"].trackers = [tracker]
    exec(log, names)
    ((values, step),) = told
    assert values["sparsity"] == names["pruner"].sparsity
    assert {"sparsity/0.weight", "sparsity/2.weight"} < values.keys()
    assert step == names["pruner"].steps == 10


@pytest.mark.filterwarnings("ignore:.* output rows have no weight left")
def test_the_page_on_peft_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    pytest.importorskip("peft", reason="peft is not installed")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    batches = [(torch.randn(8, 12), torch.randint(0, 4, (8,))) for _ in range(5)]

    def train(model, optimizer):
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    names = {"torch": torch, "train": train, "base": Small(), "Net": Small, "batches": batches}
    for block in (one for one in blocks("docs/peft.md") if "Trainer" not in one):
        exec(block, names)
    assert names["merged"].fc1.weight.count_nonzero() + names["merged"].fc2.weight.count_nonzero() == 256
    assert "are masked where these are pruned" in capsys.readouterr().out
    x = batches[0][0]
    torch.testing.assert_close(names["again"](x), names["adapted"](x))


def test_from_megabytes_to_kilobytes_in_five_lines(tmp_path, monkeypatch, one_thread):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = MLP()
    optimizer = torch.optim.Adam(model.parameters())

    def train(epochs):
        for _ in range(3 * epochs):
            x = torch.randn(32, 1, 28, 28)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), (x[:, 0, 0, 0] > 0).long()).backward()
            optimizer.step()

    train(5)
    block = blocks("docs/compression.md")[0]
    assert len(block.split("\n\n")[1].splitlines()) == 5
    exec(block, {"model": model, "optimizer": optimizer, "train": train})
    assert 5.8e6 < sum(param.nbytes for param in model.parameters()) < 5.9e6
    assert Path("model.pw").stat().st_size < 45_000
    small = pw.load("model.pw", into=MLP())
    assert torch.equal(small.classifier[0].weight, model.classifier[0].weight)
    assert sum(int((param == 0).sum()) for param in small.parameters()) > 0.97 * 1_455_104


def test_the_page_on_torchs_own_pruning_runs(tmp_path, monkeypatch, one_thread):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = Net()
    names = {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3), "train": train, "Net": Net}
    train(model, names["optimizer"], 2)
    for block in blocks("docs/torch-prune.md"):
        exec(block, names)
    assert type(names["pruner"]) is pw.Pruner


def test_the_page_on_torch_pruning_runs(tmp_path, monkeypatch, one_thread):
    pytest.importorskip("torch_pruning", reason="docs/torch-pruning.md needs torch-pruning")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = Net()
    names = {"model": model, "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3), "train": train, "Net": Net}
    train(model, names["optimizer"], 2)
    for block in blocks("docs/torch-pruning.md"):
        exec(block, names)
    assert names["model"].fc2.out_features == 16


@pytest.mark.filterwarnings("ignore:.* output rows have no weight left")  # of a tiny model
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # peft asks transformers
def test_adapters_are_masked_in_a_trainer_as_the_page_on_peft_has_it(tmp_path, one_thread):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
    from prunewald.integrations.peft import mask_adapters
    from tests.trainers import llama, made, rows

    model = peft.get_peft_model(made(llama), peft.LoraConfig(r=2, target_modules=["q_proj", "up_proj"]))
    args = transformers.TrainingArguments(str(tmp_path), max_steps=6, use_cpu=True, report_to="none")
    names = {"model": model, "args": args, "train_data": rows(model), "mask_adapters": mask_adapters}
    (block,) = [block for block in blocks("docs/peft.md") if "Trainer" in block]
    exec(block, names)
    masks = names["callback"].pruner.masks
    assert not any(names["merged"].get_parameter(name)[~mask].any() for name, mask in masks.items())
    assert sum(int((~mask).sum()) for mask in masks.values()) > 0.89 * sum(mask.numel() for mask in masks.values())


@pytest.mark.filterwarnings("ignore:.* output rows have no weight left")  # of a tiny model
def test_the_page_of_transformers_runs_from_top_to_bottom(tmp_path, monkeypatch, one_thread):
    transformers = pytest.importorskip("transformers", reason="Transformers is not installed")
    from tests.trainers import llama, made, rows

    monkeypatch.chdir(tmp_path)
    model = made(llama)
    args = transformers.TrainingArguments("out", max_steps=102, save_steps=101, use_cpu=True, report_to="none")
    names = {"model": model, "args": args, "train_data": rows(model)}
    first, *others = blocks("docs/transformers.md")
    exec(first, names)
    assert names["callback"].pruner.sparsity == pytest.approx(0.9, abs=0.001)
    assert len(first.splitlines()) <= 10
    for block in others:  # each with a model of its own
        names["model"] = made(llama)
        exec(block, names)
        args.max_steps += 1  # the last one goes on from a checkpoint
    assert names["trainer"].state.global_step == 104
    assert names["callback"].pruner.sparsity == pytest.approx(0.9, abs=0.001)


def test_the_five_lines_of_contributing_are_a_criterion(monkeypatch):
    from prunewald.core import criteria
    from prunewald.util import registry

    kinds = {name: dataclasses.replace(kind, known=dict(kind.known)) for name, kind in registry._kinds.items()}
    monkeypatch.setattr(registry, "_kinds", kinds)
    (block,) = blocks("CONTRIBUTING.md")
    exec(block, vars(criteria) | {"__name__": "prunewald.core.criteria"})
    model = Net()
    by_square, by_size = (pw.Pruner(copy.deepcopy(model), criterion=name) for name in ("squared", "magnitude"))
    by_square.prune(0.5)
    by_size.prune(0.5)
    assert all(torch.equal(mask, by_size.masks[name]) for name, mask in by_square.masks.items())


def test_every_public_name_is_in_the_api_page():
    page = (ROOT / "docs/api.md").read_text()
    assert [name for name in pw.__all__ if f"`{name}" not in page] == []


def test_the_signatures_in_the_api_page_are_true():
    page = (ROOT / "docs/api.md").read_text()
    shown = dict(re.findall(r"`(\w+)\((.*?)\)`", page))
    for name in ("Magnitude", "MagnitudeUncertainty", "Wald", "Random", "PseudoBootstrap", "SecondMoment", "Pruner"):
        parameters = inspect.signature(getattr(pw, name)).parameters
        given = [word.partition("=")[0].strip() for word in shown[name].split(",") if word.strip() not in ("", "*")]
        assert given == list(parameters)
        for word in shown[name].split(","):
            key, equals, value = word.strip().partition("=")
            assert not equals or eval(value) == parameters[key].default


MODULES = {found.name for found in pkgutil.walk_packages(pw.__path__, "prunewald.")}
NEED_EXTRAS = {"prunewald.ensemble.kernels"}  # Triton's, which not every machine has


@pytest.mark.parametrize("name", sorted(MODULES - NEED_EXTRAS))
def test_doctests(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_links_between_pages_lead_somewhere():
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name} links to {link}"
