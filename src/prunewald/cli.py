"""The command line: `prunewald demo`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from prunewald import __version__
from prunewald.lab.data import DataError
from prunewald.lab.demo import Demo, farewell, run


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    args = _parser().parse_args(argv)
    try:
        _demo(args)
    except (DataError, _BadValue, OSError, ImportError) as error:
        print(f"prunewald demo: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nprunewald demo: stopped", file=sys.stderr)
        return 130
    return 0


class _BadValue(ValueError):
    """A setting the user gave is out of range."""


def _demo(args: argparse.Namespace) -> None:
    given = {name: value for name, value in vars(args).items() if name != "command"}
    try:
        config = Demo(**given)
    except ValueError as error:
        raise _BadValue(str(error)) from error
    result = run(config)
    print(f"\n{result}\n\n{farewell(result)}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="prunewald", description="Prune neural networks by magnitude and uncertainty.")
    parser.add_argument("--version", action="version", version=f"prunewald {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="train, prune, retrain and compare, in about two minutes")
    demo.add_argument("--seeds", type=int, default=Demo.seeds, help="networks to train (default %(default)s)")
    demo.add_argument("--epochs", type=int, default=Demo.epochs, help="epochs of training (default %(default)s)")
    demo.add_argument(
        "--retrain-epochs",
        type=int,
        default=Demo.retrain_epochs,
        help="epochs after pruning (default %(default)s)",
    )
    demo.add_argument(
        "--levels", type=float, nargs="+", default=Demo.levels, metavar="FRACTION", help="fractions to prune"
    )
    demo.add_argument("--data", type=Path, metavar="DIR", help="the full Fashion-MNIST (default: the embedded part)")
    demo.add_argument("--out", type=Path, default=Demo.out, metavar="DIR", help="where the files go (default ./demo)")
    demo.add_argument("--workers", type=int, default=0, help="processes (default: one a processor)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
