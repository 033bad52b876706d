"""A progress bar that works without tqdm, by showing nothing."""

import sys
from contextlib import AbstractContextManager
from typing import Protocol


class Bar(Protocol):
    """What is used of a progress bar."""

    def update(self, n: int = 1) -> object:
        """Move on by n."""

    def set_description_str(self, desc: str, refresh: bool = True) -> object:
        """Say what is under way."""


class _Silent:
    def update(self, n: int = 1) -> None: ...

    def set_description_str(self, desc: str, refresh: bool = True) -> None: ...

    def __enter__(self) -> "_Silent":
        return self

    def __exit__(self, *error: object) -> None: ...


def progress_bar(total: int | None, unit: str = "it", show: bool = True) -> AbstractContextManager[Bar]:
    """Return a bar to use in a with statement: tqdm's, or a silent one where tqdm is not installed or not wanted."""
    if not show:
        return _Silent()
    try:
        from tqdm import tqdm
    except ImportError:
        return _Silent()
    bar: AbstractContextManager[Bar] = tqdm(total=total, unit=unit, dynamic_ncols=True)
    return bar


def note(line: str) -> None:
    """Say one line on the error stream, above a bar if there is one."""
    try:
        from tqdm import tqdm
    except ImportError:
        print(line, file=sys.stderr)
    else:
        tqdm.write(line, file=sys.stderr)
