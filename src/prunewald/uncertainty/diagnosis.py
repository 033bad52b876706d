"""Sigmas with a word on whether to believe them."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from prunewald.util.text import some

_SHOWN = 3  # so many parameters of a block are named
_FAR = 2.0  # standard errors: a mean score beyond that is no chance
_POOR = 1e6  # a condition: there is a direction of weights in which the data tell a thousandth of what they could
_ROUGH = 1e-2  # a relative error by rounding
_FAR_NOTE = (
    "the mean score of {} is {:.2g} standard errors from 0: standard errors are those of a minimum of the loss, and "
    "these weights are none; train on, without a penalty"
)
# What a Wald test by the diagonal of the information has to say of itself.
EACH_ALONE = (
    "tested: standard errors at a minimum of the loss, of each weight as if all others were known; where steps are "
    "constant or inputs correlate they are too small"
)


@dataclass(frozen=True)
class BlockDiagnosis:
    """What the matrices of one block of parameters looked like: what the paper had to find out by hand.

    Rank and condition are those of the information scaled to a unit diagonal, so that units do not matter, and without
    the parameters that the data tell nothing of.
    """

    params: tuple[str, ...]
    size: int
    rank: int
    condition: float
    negative: int  # variances that came out negative
    score: float  # the mean score in units of its standard error, root mean square: 0 at the data's own optimum
    untold: int = 0  # parameters that the data tell nothing of
    error: float = 0.0  # about how far off, relatively, rounding lets the standard errors be

    @property
    def singular(self) -> bool:
        """Whether the information about what the data do tell of has no inverse."""
        return self.rank < self.size - self.untold

    def named(self) -> str:
        """Its parameters in a few words."""
        return some(self.params, _SHOWN)

    def notes(self) -> list[str]:
        """What a reader of the standard errors should know."""
        notes = []
        if self.singular:
            of = f"rank {self.rank:,} of {self.size - self.untold:,}"
            notes.append(
                f"the information about {self.named()} is singular, of {of}: the data tell of some weights only "
                "together (of the outputs of a softmax, one is redundant)"
            )
        elif self.untold < self.size and (self.condition > _POOR or self.error > _ROUGH):
            notes.append(
                f"the information about {self.named()} has condition {self.condition:.0e}: the data hardly tell some "
                f"weights apart, and rounding lets their standard errors be off by a share of {self.error:.0e}"
            )
        if self.untold:
            notes.append(f"the data tell nothing of {self.untold:,} weights of {self.named()}: their sigma is infinite")
        if self.negative:
            notes.append(f"{self.negative:,} variances of {self.named()} are negative: the Hessian is no minimum's")
        return [*notes, *far(self.score, self.params)]


def far(score: float, params: Sequence[str]) -> list[str]:
    """A note where a mean score, in its standard errors, is too far from zero for a minimum of the loss."""
    return [_FAR_NOTE.format(some(params, _SHOWN), score)] if score > _FAR else []


@dataclass(frozen=True)
class Diagnosis:
    """Whether the standard errors can be believed."""

    samples: int
    blocks: tuple[BlockDiagnosis, ...]
    bad: dict[str, int]  # parameters with entries that have no standard error, and how many

    def __str__(self) -> str:
        lines = [f"{self.samples:,} samples"]
        lines += [
            f"{block.named()}: rank {block.rank:,} of {block.size:,}, condition {block.condition:.1e}, "
            f"{block.negative:,} negative variances, mean score {block.score:.2g} standard errors from 0"
            for block in self.blocks
        ]
        lines += [f"no standard error for {count:,} entries of {name}" for name, count in self.bad.items()]
        return "\n".join(lines)


class Sigmas(dict[str, Tensor]):
    """Sigma by parameter name, with a diagnosis; NaN where there is none, infinite where a weight is pruned."""

    diagnosis: Diagnosis
    notes: tuple[str, ...] = ()  # what to know before these are taken as standard errors; a report shows them
    degrees: float | None = None  # of freedom, where weight / sigma is t-distributed
    caveat: str = ""  # what to know of a Wald test by them
    untested: str = ""  # why they are no standard errors, and what to do, where a Wald test makes no sense
