"""The commands: measure, pack, table."""

import argparse
import os
from pathlib import Path

import torch

import benchmarks.refitting
from benchmarks.refitting.corpus import DOCUMENTATION
from benchmarks.refitting.networks import NETWORKS


def main() -> None:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.refitting",
        description=benchmarks.refitting.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("measure", "pack", "table"))
    parser.add_argument("--out", type=Path, required=True, help="a folder for networks, records and tables")
    parser.add_argument("--data", type=Path, help="a folder of data sets, as the lab takes it")
    parser.add_argument("--text", type=Path, default=DOCUMENTATION, help="the pages of python3-doc")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--phases", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="of what is measured, these only"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "measure":
        from benchmarks.refitting.measuring import measure

        measure(options)
    elif options.what == "pack":
        from benchmarks.refitting.measuring import about
        from benchmarks.refitting.records import pack

        pack(options.out, about(options))
    else:
        from benchmarks.refitting.pages import write

        write(options.out)


if __name__ == "__main__":
    # Some processors' AMX units stop the program where a virtual machine does not pass them on.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    main()
