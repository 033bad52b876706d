"""The import rule: vocabulary <- core <- estimation <- edge <- results <- programs."""

import ast
from pathlib import Path

import prunewald

ROOT = Path(prunewald.__file__).parent
LEVELS = [
    {"registry", "weights", "targets", "report", "progress", "files"},
    {
        "criteria",
        "baselines",
        "allocation",
        "patterns",
        "selection",
        "inference",
        "learn_then_test",
        "companions",
        "clusters",
        "optimizers",
        "schedules",
    },
    {"uncertainty", "ensemble"},
    {
        "scoring",
        "checks",
        "significance",
        "choice",
        "holding",
        "watching",
        "pruner",
        "surgery",
        "strategies",
        "quantisation",
    },
    {"storage", "masks", "export", "figures"},
    {"lab", "cli"},
]
LEVEL = {name: i for i, names in enumerate(LEVELS) for name in names}
HEAVY = {"matplotlib", "scipy", "tqdm", "pandas", "safetensors", "constriction", "PIL", "ray"}
FILES = [path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py"]


def own(module: str) -> str:
    return module.split(".")[1]


def imports(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""


def test_every_module_has_a_level():
    assert {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in FILES} <= set(LEVEL)


def test_no_module_imports_from_a_level_above():
    for path in FILES:
        here = LEVEL[path.relative_to(ROOT).parts[0].removesuffix(".py")]
        for module in imports(ast.walk(ast.parse(path.read_text()))):
            if module == "prunewald":
                assert here == len(LEVELS) - 1, f"{path} imports the front door; only programs do"
            elif module.startswith("prunewald."):
                assert LEVEL[own(module)] <= here, f"{path} imports {module}"


def test_heavy_packages_are_imported_only_when_used():
    for path in FILES:
        for module in imports(ast.parse(path.read_text()).body):
            assert module.split(".")[0] not in HEAVY, f"{path} imports {module} at the top"


def test_the_public_names_are_few_documented_and_there():
    assert len(prunewald.__all__) <= 40
    for name in prunewald.__all__:
        assert getattr(prunewald, name).__doc__, f"{name} has no docstring"
