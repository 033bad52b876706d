"""Outputs of an exported model beside those of the model itself."""

from collections.abc import Mapping

import torch
from torch import Tensor

# How far an output may be from the model's own, as a share of its largest; twice the precision of the two 16-bit types
# is about one in 500 and one in 60, and layers add up. Integers and bools are compared exactly.
TOLERANCES = {torch.float64: 1e-7, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def compared(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor], tolerance: float | None, what: str) -> float:
    """The largest difference of any output, relative to that output's largest; one above `tolerance` is an error.

    Without one it is that of the output's dtype. `what` gave the outputs that are compared with the model's.
    """
    largest = 0.0
    for name, expected in wanted.items():
        given = got[name].detach().cpu()
        expected = expected.detach().cpu()
        if (given.shape, given.dtype) != (expected.shape, expected.dtype):
            raise ValueError(
                f"{what}'s output {name!r} is {_kind(given)}, and the model's {_kind(expected)}: nothing was written"
            )
        if expected.is_floating_point():
            most = TOLERANCES.get(expected.dtype, 1e-4) if tolerance is None else tolerance
            difference = relative(given, expected)
            if not difference <= most:
                raise ValueError(
                    f"{what}'s output {name!r} differs from the model's by {difference:.2g} of its largest, above "
                    f"tolerance={most!r}: nothing was written"
                )
            largest = max(largest, difference)
        elif not torch.equal(given, expected):
            raise ValueError(
                f"{what}'s output {name!r} ({expected.dtype}) differs from the model's in "
                f"{int((given != expected).sum())} of {expected.numel()} entries, and what is no floating-point number "
                "is compared exactly: nothing was written"
            )
    return largest


def relative(given: Tensor, expected: Tensor) -> float:
    """The largest difference over the largest finite entry; infinite and NaN entries have to be the same."""
    a, b = given.to(torch.float64), expected.to(torch.float64)
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return 0.0
    finite = b[b.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    difference = float((a - b)[~same].abs().max())
    return difference / max(largest, 1e-12)


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
