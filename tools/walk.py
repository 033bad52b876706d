"""Print the walk of `Pruner(model, Adam).prune(0.9)`: which functions of ours are called, and through which files.

    python tools/walk.py            # the two numbers
    python tools/walk.py --calls    # each call, indented by depth, with its file

Comprehensions, generator expressions and lambdas are left out: they are part of the function they stand in.
"""

import argparse
import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

import prunewald as pw

ROOT = Path(pw.__file__).parent


class Call(NamedTuple):
    """One call of a function of ours."""

    file: str
    function: str
    depth: int


def walk() -> list[Call]:
    """Construct a Pruner on two trained Linear layers, prune to 90 %, and record every call on the way."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 10))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
    pw.Pruner(model, optimizer).detach()  # what is imported or cached at first use is no part of the walk
    calls: list[Call] = []
    depth = 0

    def watch(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth
        code = frame.f_code
        if not code.co_filename.startswith(str(ROOT)) or code.co_name.startswith("<"):
            return
        if event == "call":
            file = Path(code.co_filename).relative_to(ROOT).as_posix()
            calls.append(Call(file, code.co_qualname, depth))
            depth += 1
        elif event == "return":
            depth -= 1

    sys.setprofile(watch)
    try:
        pw.Pruner(model, optimizer).prune(0.9)
    finally:
        sys.setprofile(None)
    return calls


def changes(calls: list[Call]) -> int:
    """How often the walk enters another file, the first included."""
    return 1 + sum(one.file != other.file for one, other in pairwise(calls))


def main() -> None:
    """Print the walk."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", action="store_true", help="print each call")
    calls = walk()
    if parser.parse_args().calls:
        for call in calls:
            print(f"{'  ' * call.depth}{call.function}  ({call.file})")
    functions, files = {(c.file, c.function) for c in calls}, {c.file for c in calls}
    print(f"{len(calls)} calls of {len(functions)} functions in {len(files)} files, {changes(calls)} changes of file")


if __name__ == "__main__":
    main()
