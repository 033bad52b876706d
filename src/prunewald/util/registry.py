"""A short name for every part a user can choose: the name in a config file, on a command line, in a result."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T", bound=type)

_parts: dict[str, dict[str, type]] = {}


def register(kind: str, name: str) -> Callable[[T], T]:
    """Class decorator: enter a class under `name` among the parts of this `kind`."""

    def enter(cls: T) -> T:
        taken = _parts.setdefault(kind, {})
        if name in taken:
            raise ValueError(f"{kind} {name!r} is registered already, as {taken[name].__qualname__}")
        taken[name] = cls
        return cls

    return enter


criterion = partial(register, "criterion")
uncertainty = partial(register, "uncertainty")
allocation = partial(register, "allocation")
pattern = partial(register, "pattern")
schedule = partial(register, "schedule")


def parts(kind: str) -> dict[str, type]:
    """Every registered class of a kind, by its short name."""
    return dict(_parts.get(kind, {}))


def make(kind: str, choice: Any) -> Any:
    """The part a user means: a short name or a class gives it with its defaults, anything else is taken as it is."""
    if isinstance(choice, type):
        return choice()
    if not isinstance(choice, str):
        return choice
    known = parts(kind)
    if choice not in known:
        raise ValueError(f"unknown {kind} {choice!r}; known: {', '.join(sorted(known))}")
    return known[choice]()


def name_of(kind: str, part: object) -> str:
    """The short name a part is registered under, or its class name."""
    cls = type(part)
    return next((name for name, known in parts(kind).items() if known is cls), cls.__name__)


def brief(part: object) -> str:
    """A part as its repr, without the fields that have their default."""
    if not is_dataclass(part):
        return getattr(part, "__name__", repr(part))
    changed = [f"{f.name}={getattr(part, f.name)!r}" for f in fields(part) if getattr(part, f.name) != f.default]
    return f"{type(part).__name__}({', '.join(changed)})"
