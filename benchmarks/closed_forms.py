"""How closely the closed forms agree with statsmodels on real data sets: the largest relative difference of an error.

The data sets, in their raw units, and the comparison are those of the tests (tests/uncertainty/real_data.py).
"""

import torch
from tests.uncertainty.real_data import ESTIMATORS, REGRESSIONS, disagreement

from benchmarks.bench import parser, record


def main() -> None:
    """Print a line for each data set."""
    options = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    numbers: dict[str, dict[str, float]] = {}
    for name in REGRESSIONS:
        numbers[name] = {}
        for estimator in ESTIMATORS:
            for dtype in (torch.float64, torch.float32):
                worst = max(disagreement(name, estimator, dtype, observed)[0] for observed in (False, True))
                numbers[name][f"{estimator}, {str(dtype).removeprefix('torch.')}"] = float(f"{worst:.2g}")
        print(f"{name:<22}" + "".join(f"{key}: {value:.1e}   " for key, value in numbers[name].items()))
    record(options.json, numbers)


if __name__ == "__main__":
    main()
