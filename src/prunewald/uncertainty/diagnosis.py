"""Sigmas with a word on whether to believe them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class BlockDiagnosis:
    """What the matrices of one block of parameters looked like: what the paper had to find out by hand."""

    params: tuple[str, ...]
    size: int
    rank: int
    condition: float
    negative: int  # variances that came out negative
    score: float  # the mean score in units of its standard error, root mean square over parameters: 1 at an optimum


@dataclass(frozen=True)
class Diagnosis:
    """Whether the standard errors can be believed."""

    samples: int
    blocks: tuple[BlockDiagnosis, ...]
    bad: dict[str, int]  # parameters with entries that have no standard error, and how many

    def __str__(self) -> str:
        lines = [f"{self.samples:,} samples"]
        for block in self.blocks:
            names = ", ".join(block.params[:3]) + (", ..." if len(block.params) > 3 else "")
            lines.append(
                f"{names}: rank {block.rank:,} of {block.size:,}, condition {block.condition:.1e}, "
                f"{block.negative:,} negative variances, mean score {block.score:.2g} standard errors from 0"
            )
        lines += [f"no standard error for {count:,} entries of {name}" for name, count in self.bad.items()]
        return "\n".join(lines)


class Sigmas(dict[str, Tensor]):
    """Sigma by parameter name, with a diagnosis; NaN where there is none, infinite where a weight is pruned."""

    diagnosis: Diagnosis
    notes: tuple[str, ...] = ()  # what to know before these are taken as standard errors
