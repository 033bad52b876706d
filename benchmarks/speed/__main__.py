"""The commands: measure, table, accuracy, figure."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import benchmarks.speed
from benchmarks.speed.networks import NETWORKS


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.speed",
        description=benchmarks.speed.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("measure", "table", "accuracy", "figure"))
    parser.add_argument("--json", type=Path, required=True, help="the numbers")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--levels", type=float, nargs="+", help="these instead of the network's own")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--blocks", type=int, default=25, help="turns of each way")
    parser.add_argument("--data", type=Path, help="a folder of data sets, as the lab takes it")
    parser.add_argument("--out", type=Path, help="where trained networks are kept")
    parser.add_argument("--png", type=Path, help="the figure")
    options = parser.parse_args()
    found: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {}
    if options.what == "table":
        from benchmarks.speed.tables import table

        print(table({name: found[name] for name in NETWORKS if name in found}), end="")
    elif options.what == "figure":
        from benchmarks.speed.figure import draw

        options.png.parent.mkdir(parents=True, exist_ok=True)
        draw(found["accuracy"]["points"]).savefig(options.png, dpi=130)
    elif options.what == "accuracy":
        from benchmarks.speed.accuracy import measure as points

        write(options.json, found | {"accuracy": points(options)})
    else:
        from benchmarks.speed.measuring import measure

        for name in options.networks:
            for part in measure(name, options, found.get(name, {})):
                found[name] = part
                write(options.json, found)


def write(path: Path, found: dict[str, Any]) -> None:
    """The file is replaced as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".tmp")
    new.write_text(json.dumps(found, indent=1) + "\n")
    new.replace(path)


if __name__ == "__main__":
    # Some processors' AMX units stop the program where a virtual machine does not pass them on.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    main()
