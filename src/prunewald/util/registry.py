"""A short name for every part a user can choose: the name in a config file, on a command line, in a result."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T", bound=type)
Wrap = Callable[[Any], Any]  # what a caller gave, as a part; None where it cannot be one


@dataclass
class Kind:
    """One kind of part: its base class, an example for error messages, and what else is taken for one."""

    base: type
    example: str
    wrap: Wrap
    known: dict[str, type]
    others: dict[str, str]  # further names, in small letters, and the short name that each stands for


_kinds: dict[str, Kind] = {}


def kind(name: str, base: type, example: str, wrap: Wrap = lambda given: None) -> None:
    """Enter a kind of part."""
    _kinds[name] = Kind(base, example, wrap, {}, {})


def wraps(name: str, wrap: Wrap) -> None:
    """Say what else a kind takes for a part."""
    _kinds[name].wrap = wrap


def register(name_of_kind: str, name: str, *others: str) -> Callable[[T], T]:
    """Class decorator: enter a class under `name` among the parts of this kind; it is found by the others too."""

    def enter(cls: T) -> T:
        own = _kinds[name_of_kind]
        for one in (name, *others):
            if (taken := own.others.get(one, one)) in own.known:
                raise ValueError(f"{name_of_kind} {one!r} is registered already, as {own.known[taken].__qualname__}")
        own.known[name] = cls
        own.others |= dict.fromkeys(others, name)
        return cls

    return enter


criterion = partial(register, "criterion")
uncertainty = partial(register, "uncertainty")
allocation = partial(register, "scope")
pattern = partial(register, "pattern")
schedule = partial(register, "schedule")


def known(name_of_kind: str) -> dict[str, type]:
    """Every registered class of a kind, by its short name."""
    return dict(_kinds[name_of_kind].known)


def canonical(name_of_kind: str, name: str) -> str:
    """The short name that one of the other names stands for, however its letters are written; else the name itself."""
    return _kinds[name_of_kind].others.get(name.lower(), name)


def names(name_of_kind: str, name: str) -> list[str]:
    """All names of a part that is known by one of them, the short name first; the name alone where none is known."""
    own = canonical(name_of_kind, name)
    return [own, *(other for other, of in _kinds[name_of_kind].others.items() if of == own)]


def make(name_of_kind: str, choice: Any) -> Any:
    """The part a user means: a short name or a class gives it with its defaults, an instance is taken as it is."""
    own = _kinds[name_of_kind]
    if isinstance(choice, str):
        if choice in own.known or (choice := canonical(name_of_kind, choice)) in own.known:
            return own.known[choice]()
        raise ValueError(f"unknown {name_of_kind} {choice!r}; known: {', '.join(sorted({*own.known, *own.others}))}")
    if isinstance(choice, type) and issubclass(choice, own.base):
        return choice()
    part = choice if isinstance(choice, own.base) else own.wrap(choice)
    if part is None:
        given, short = repr(choice)[:200], ", ".join(map(repr, sorted(own.known)))
        raise TypeError(f"{name_of_kind}={given}: give one such as {own.example}, or a short name: {short}")
    return part


def name_of(name_of_kind: str, part: object) -> str:
    """The short name a part is registered under, or its class name."""
    cls = type(part)
    return next((name for name, known in _kinds[name_of_kind].known.items() if known is cls), cls.__name__)


def brief(part: Any) -> str:
    """A part as its repr, without the fields that have their default; a function by its name."""
    if not is_dataclass(part):
        return str(getattr(part, "__name__", repr(part)))
    changed = [f"{f.name}={getattr(part, f.name)!r}" for f in fields(part) if getattr(part, f.name) != f.default]
    return f"{type(part).__name__}({', '.join(changed)})"
