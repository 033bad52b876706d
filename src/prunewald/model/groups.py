"""Coupled groups: all that goes from a model when one of its units goes, a channel, a neuron or an attention head."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from torch import Tensor

Role: TypeAlias = Literal["makes", "reads", "beside"]


@dataclass(frozen=True)
class Member:
    """Where the units of a group are in one tensor of a model, a parameter or a buffer.

    `at[u]` are the positions of unit u along `axis`, all of one width: (units, width). A weight "makes" its units (rows
    of a layer), or "reads" them (columns of the next); a bias, or an entry of a norm, is "beside" what makes them.
    """

    name: str
    axis: int
    at: Tensor
    role: Role


@dataclass(frozen=True)
class Group:
    """Units that can go one by one, each with all that goes with it; `name` is the first layer that makes them."""

    name: str
    units: int
    members: tuple[Member, ...]
