"""The command line: `prunewald demo`, `reproduce`, `compare`, `results`, `page`; `pack`, `unpack`, `inspect`."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, get_args

from prunewald import __version__
from prunewald.ensemble.saving import SavedError
from prunewald.lab import records, summary
from prunewald.lab.compare import compare
from prunewald.lab.data import DataError
from prunewald.lab.demo import demo
from prunewald.lab.machine import Machine, MachineError
from prunewald.lab.methods import SIGMAS
from prunewald.lab.pages import describe, needs, pages
from prunewald.lab.records import ResultsError
from prunewald.lab.reproduce import reproduce
from prunewald.lab.settings import (
    CONTEST,
    EXPERIMENTS,
    NETWORKS,
    OPTIMIZERS,
    PRESETS,
    Settings,
    SettingsError,
    contest,
    read_toml,
    settings,
)
from prunewald.lab.showing import page
from prunewald.storage import dense, inspect
from prunewald.storage.codes.streams import Codec
from prunewald.storage.positions import Positions
from prunewald.storage.values import LOSSY
from prunewald.util.text import printable


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    args = _parser().parse_args(argv)
    command = f"prunewald {args.command}"
    try:
        _COMMANDS[args.command](args)
    except _KNOWN as error:
        said = "\n".join(map(printable, str(error).split("\n")))  # it may quote a file
        print(f"{command}: {said}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\n{command}: stopped", file=sys.stderr)
        return 130
    return 0


class _BadValue(ValueError):
    """A setting the user gave is out of range."""


_KNOWN = (DataError, SettingsError, ResultsError, SavedError, MachineError, _BadValue, OSError, ImportError)


def _demo(args: argparse.Namespace) -> None:
    given = {"repetitions": args.seeds, "epochs": args.epochs, "retrain_epochs": args.retrain_epochs}
    chosen = settings("fashion-mnist", "demo", **given, levels=sorted(args.levels))
    print(f"\n{demo(chosen, args.out, args.data, args.workers)}")


def _reproduce(args: argparse.Namespace) -> None:
    chosen = settings(args.experiment, args.preset, **_given(args))
    print(f"\n{reproduce(chosen, args.out, _machine(args))}")


def _compare(args: argparse.Namespace) -> None:
    names = list(CONTEST) if args.name == "all" else [args.name]
    chosen = [contest(name, args.preset, **_given(args)) for name in names]
    print(f"\n{compare(chosen, args.out, _machine(args))}")


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of a file, and the flags over them."""
    names = [field.name for field in fields(Settings) if field.name != "experiment"]
    given = {} if args.config is None else read_toml(args.config)
    return given | {name: value for name in names if (value := getattr(args, name)) is not None}


def _machine(args: argparse.Namespace) -> Machine:
    return Machine(**{field.name: getattr(args, field.name) for field in fields(Machine)})


def _results(args: argparse.Namespace) -> None:
    if args.action == "import":
        folder, new = records.import_(args.folder, args.file or Path("results"))
        print(f"{new} new records in {printable(str(folder))}")
    elif args.action == "export":
        if args.file is None:
            raise ResultsError("export needs a file to write, such as results.tar.xz")
        print(f"{records.export(args.folder, args.file)} records in {args.file}")
    elif args.action == "choose":
        for row, value in summary.choice(records.read_records(args.folder)):
            print(f"{value:7.2f} % of the validation data  {row}")
    else:
        try:
            print("\n".join(map(str, pages(args.folder))) if args.action == "pages" else describe(args.folder))
        except ImportError as error:
            raise ImportError(needs(error)) from error


def _page(args: argparse.Namespace) -> None:
    with _one_line():
        print(page(args.source, args.out))


def _pack(args: argparse.Namespace) -> None:
    how = {name: getattr(args, name) for name in ("values", "size", "codec", "positions", "max_bytes")}
    with _one_line():
        print(dense.pack(args.checkpoint, args.file, **how))


def _unpack(args: argparse.Namespace) -> None:
    with _one_line():
        dense.unpack(args.file, args.checkpoint, max_bytes=args.max_bytes)


def _inspect(args: argparse.Namespace) -> None:
    with _one_line():
        found = inspect(args.file, max_bytes=args.max_bytes)
    print(f"{found}\n\n{found.report}" if args.report and found.report else found)


@contextmanager
def _one_line() -> Iterator[None]:
    """Turn a ValueError about a file or a setting into the one line that `main` prints, without a traceback."""
    try:
        yield
    except ValueError as error:
        raise _BadValue(str(error)) from error


_COMMANDS = {
    "demo": _demo,
    "reproduce": _reproduce,
    "compare": _compare,
    "results": _results,
    "page": _page,
    "pack": _pack,
    "unpack": _unpack,
    "inspect": _inspect,
}


_ABOUT = (
    "Prune neural networks by M&U, magnitude and uncertainty: |w| / (lambda + sigma), lambda = lambda* times std(w)."
)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="prunewald", description=_ABOUT)
    parser.add_argument("--version", action="version", version=f"prunewald {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    _demo_flags(commands.add_parser("demo", help="train, prune, retrain and compare, in about two minutes"))
    reproducing = commands.add_parser("reproduce", help="the paper's experiments", allow_abbrev=False)
    reproducing.add_argument("experiment", help=", ".join(EXPERIMENTS))
    reproducing.add_argument("--preset", default="quick", help=f"{', '.join(PRESETS)} (default %(default)s)")
    _run_flags(reproducing, Path("results"))
    comparing = commands.add_parser("compare", help="the contest of criteria and allocations", allow_abbrev=False)
    comparing.add_argument("name", metavar="NETWORK", help=f"{', '.join(CONTEST)}; or all")
    comparing.add_argument("--preset", default="contest", help="contest, quick (default %(default)s)")
    _run_flags(comparing, Path("results/contest"))
    results = commands.add_parser("results", help="tables of results; pack and unpack them")
    results.add_argument("action", choices=["table", "pages", "choose", "export", "import"])
    results.add_argument("folder", type=Path, help="the results' folder; for import, the archive")
    where = "export: the archive to write; import: where the folder goes (default ./results)"
    results.add_argument("file", type=Path, nargs="?", help=where)
    showing = commands.add_parser("page", help="a run or a file as one HTML page, to be opened anywhere")
    showing.add_argument("source", type=Path, metavar="RUN_OR_FILE", help="a folder of results, or a packed file")
    where = "the page to write (default: page.html in the folder, or beside the file)"
    showing.add_argument("out", type=Path, nargs="?", help=where)
    _storage_flags(commands)
    return parser


def _storage_flags(commands: Any) -> None:
    pack = commands.add_parser("pack", help="a checkpoint with zeros in it, as a small file")
    pack.add_argument("checkpoint", type=Path, help="a .safetensors file, or a state dict that torch.save wrote")
    pack.add_argument("file", type=Path, help="the packed file to write")
    pack.add_argument("--values", choices=LOSSY, help="weights in fewer bits (default: bit for bit)")
    pack.add_argument("--size", type=int, default=32, help="values in a codebook, 2 to 256 (default %(default)s)")
    pack.add_argument("--codec", choices=get_args(Codec), default="auto", help="(default: the smallest)")
    pack.add_argument("--positions", choices=get_args(Positions), default="auto", help="(default: the smallest)")
    unpack = commands.add_parser("unpack", help="a packed file as a dense .safetensors file")
    inspecting = commands.add_parser("inspect", help="where the bytes of a packed file are")
    for parser in (unpack, inspecting):
        parser.add_argument("file", type=Path, help="the packed file")
    for parser in (pack, unpack, inspecting):
        parser.add_argument("--max-bytes", type=int, help="memory the tensors may take (default: 1 GiB or more)")
    unpack.add_argument("checkpoint", type=Path, help="the .safetensors file to write")
    inspecting.add_argument("--report", action="store_true", help="print the pruning report too")


def _demo_flags(parser: argparse.ArgumentParser) -> None:
    usual = settings("fashion-mnist", "demo")
    says = {"seeds": "networks to train", "epochs": "epochs of training", "retrain-epochs": "epochs after pruning"}
    for name, number in zip(says, (usual.repetitions, usual.epochs, usual.retrain_epochs), strict=True):
        parser.add_argument(f"--{name}", type=int, default=number, help=f"{says[name]} (default %(default)s)")
    what = f"fractions to prune (default {' '.join(map(str, usual.levels))})"
    parser.add_argument("--levels", type=float, nargs="+", default=usual.levels, metavar="FRACTION", help=what)
    parser.add_argument("--data", type=Path, metavar="DIR", help="the full Fashion-MNIST (default: the embedded part)")
    where = "where the files go, over those of an earlier demo (default ./demo)"
    parser.add_argument("--out", type=Path, default=Path("demo"), metavar="DIR", help=where)
    parser.add_argument("--workers", type=int, default=0, help="processes (default: one a processor)")


def _run_flags(parser: argparse.ArgumentParser, out: Path) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings from a TOML file; a flag overrides it")
    parser.add_argument("--out", type=Path, default=out, metavar="DIR", help="(default ./%(default)s)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the data (default: $PRUNEWALD_DATA)")
    parser.add_argument("--device", help="cpu or cuda (default: a GPU where there is one)")
    parser.add_argument("--executor", choices=["ray"], help="divide the networks over a Ray cluster")
    parser.add_argument("--address", help="of the Ray cluster (default: this machine)")
    parser.add_argument("--workers", type=int, default=0, help="processes on a CPU (default: one a processor)")
    parser.add_argument("--piece", type=int, default=0, help="networks between two savings (default: a few minutes)")
    parser.add_argument("--minutes", type=float, help="stop after the piece in which they are over, to go on later")
    limit = "stop before so many seconds are over, to go on later: no piece begins that would not be done by then"
    parser.add_argument("--limit-seconds", type=float, metavar="N", help=limit)
    group = parser.add_argument_group("settings, instead of the preset's")
    for field in fields(Settings):
        if field.name != "experiment":
            group.add_argument(f"--{field.name.replace('_', '-')}", **_flag_of(field))


_SAYS = {
    "repetitions": "networks",
    "epochs": "of the dense training",
    "retrain_epochs": "after each pruning",
    "rows": f"methods: abs, random, M&U as SIGMA:LAMBDA*, as in moment:1@lamp; SIGMA: {', '.join(SIGMAS)}",
    "levels": "fractions of the dense layers' weights to prune",
    "first_seed": "of the first network",
    "iterative": "one chain through the levels",
    "last": "B, the snapshots of a pseudo bootstrap",
    "replicas": "of a bootstrap",
    "bootstrap_repetitions": "networks that have bootstrap rows",
    "images": "to train on (0: all)",
    "side": "pixels of imagenet100's images",
    "network": f"{', '.join(NETWORKS)}: paper is the experiment's own",
    "optimizer": ", ".join(OPTIMIZERS),
    "momentum": "of sgd",
    "prune": "dense layers, or all weights",
    "watch": "last epochs that movement and platon are gathered over",
    "calibration": "images of a pass at the trained network",
    "tries": "of each row, chosen from on validation images: 1 to 3",
}


def _flag_of(field: Any) -> dict[str, Any]:
    words = {"help": _SAYS.get(field.name, "")}
    many = {"rows": str, "levels": float}
    if field.name in many:
        return words | {"nargs": "+", "type": many[field.name]}
    if field.type is bool:
        return words | {"action": argparse.BooleanOptionalAction, "default": None}
    return words | {"type": field.type}


if __name__ == "__main__":
    sys.exit(main())
