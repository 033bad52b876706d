"""The plan of the house: folders are layers, rooms are small, names are few and each stands for one thing."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import prunewald as pw

# A layer imports only from itself and from those before it.
LAYERS = (
    "util",
    "distributed",
    "statistics",
    "model",
    "core",
    "ensemble",
    "uncertainty",
    "baselines",
    "pruning",
    "storage",
    "masks",
    "companions",
    "export",
    "refitting",
    "sparse",
    "pruner",
    "shrinking",
    "quantisation",
    "strategies",
    "integrations",
    "figures",
    "web",
    "lab",
    "cli",
)
PROGRAMS = {"lab", "cli"}  # they alone use the library as a user does, through its front door
HEAVY = {
    "matplotlib",
    "scipy",
    "tqdm",
    "pandas",
    "safetensors",
    "constriction",
    "PIL",
    "ray",
    "onnxruntime",
    "onnxscript",
    "lightning",
    "transformers",
    "accelerate",
    "peft",
    "torch_pruning",
}
# Loaded with the package: two enter their short names, and a pruning by significance needs p-values.
AT_ONCE = {"baselines", "uncertainty", "statistics"}
# Shared code looks these up by name on what others made: losses, compiled modules, optimizers, newer torch. Nothing of
# our own.
LOOKED_UP = {"found_inf", "hooked", "optimizer", "state"}
LOOKED_UP |= {"_wrapped_by_lr_sched", "generator", "param_groups", "reduction", "sampler", "set_stance"}
SHARED = ("core", "model", "uncertainty", "baselines", "pruning", "refitting", "pruner", "quantisation", "strategies")

ROOT = Path(pw.__file__).parent
TREES = {path.relative_to(ROOT): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}
FRONT_DOOR = Path("__init__.py")


def layer(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def imports(node: ast.AST, late: bool = True) -> Iterator[str]:
    """Every module that is imported; without `late` only those that are loaded with the file itself."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            here = child.module == "prunewald"
            yield from (f"prunewald.{alias.name}" if here else str(child.module) for alias in child.names)
        elif late or not (isinstance(child, ast.FunctionDef) or _for_types_only(child)):
            yield from imports(child, late)


def _for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def size(function: ast.FunctionDef) -> int:
    """The lines of a function, its signature among them, without those of its docstring."""
    first, end = function.body[0], function.end_lineno or 0
    docstring = (first.end_lineno or 0) - first.lineno + 1 if ast.get_docstring(function) else 0
    return end - function.lineno + 1 - docstring


# ---- layers --------------------------------------------------------------------------------------------------------


def test_every_folder_and_module_at_the_top_is_a_layer():
    assert {layer(path) for path in TREES if path != FRONT_DOOR} == set(LAYERS)
    assert len(list(ROOT.glob("*.py"))) <= 8


def test_a_layer_imports_only_from_those_before_it():
    found = set()
    for path, tree in TREES.items():
        for module in imports(tree) if path != FRONT_DOOR else ():
            package, _, rest = module.partition(".")
            above = rest.partition(".")[0]
            if package == "prunewald" and above not in LAYERS:
                assert layer(path) in PROGRAMS, f"{path} imports the front door"
            elif package == "prunewald" and LAYERS.index(above) > LAYERS.index(layer(path)):
                found.add(f"{layer(path)} imports {above}")
    assert found == set()


def test_heavy_packages_are_imported_only_when_used():
    for path, tree in TREES.items():
        assert not HEAVY & {module.split(".")[0] for module in imports(tree, late=False)}, path


def test_shared_code_looks_up_nothing_of_our_own_by_name():
    """What is optional has a default in a base class, where one can see it."""
    found = set()
    for path, tree in TREES.items():
        for node in ast.walk(tree) if layer(path) in SHARED else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
                found |= {arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant)}
    assert found == LOOKED_UP


# ---- rooms ---------------------------------------------------------------------------------------------------------


def test_no_two_modules_have_the_same_name():
    names = Counter(path.stem for path in TREES)
    assert {name for name, count in names.items() if count > 1} == {"__init__"}


def test_files_and_functions_are_short():
    assert [str(path) for path in TREES if len((ROOT / path).read_text().splitlines()) > 400] == []
    functions = [(path, node) for path, tree in TREES.items() for node in ast.walk(tree)]
    long = {f"{path} {node.name}" for path, node in functions if isinstance(node, ast.FunctionDef) and size(node) > 40}
    assert long == set()


# ---- public names --------------------------------------------------------------------------------------------------


def test_the_public_names_are_few_and_all_that_is_shown():
    assert len(pw.__all__) <= 40
    assert dir(pw) == sorted([*pw.__all__, "__version__"])
    with pytest.raises(AttributeError, match="'Prunner'.*Pruner"):
        pw.Prunner  # noqa: B018


@pytest.mark.parametrize("name", pw.__all__)
def test_every_public_name_is_there_and_has_a_docstring(name):
    assert getattr(pw, name).__doc__
    assert getattr(pw, name) is getattr(pw, name)


@pytest.mark.slow
def test_modules_are_loaded_when_asked_for():
    """In a process of its own, since other tests have loaded them here."""
    modules = {name for name in pw.__all__ if name in LAYERS}
    code = "import sys, prunewald; print(*(name for name in sys.modules if name.startswith('prunewald.')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name for name in modules if f"prunewald.{name}" in loaded} == AT_ONCE
