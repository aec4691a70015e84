"""What functions that take ``progress`` do with it, and the display of the commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

from shardstore.errors import InvalidInput
from shardstore.progress.steps import Lines, Report, Step

P = ParamSpec("P")

_is_hidden = False


@contextmanager
def without_progress() -> Iterator[None]:
    """Show no progress during the block, even where it is asked for: for a program that runs one command."""
    global _is_hidden
    _is_hidden, before = True, _is_hidden
    try:
        yield
    finally:
        _is_hidden = before


def is_hidden() -> bool:
    """Return whether progress is not shown now."""
    return _is_hidden


@contextmanager
def step_bar(clock: Callable[[], float] = time.monotonic, *, says_end: bool = False) -> Iterator[Report]:
    """Show steps on stderr during the block; may be called from any thread. On a terminal that is a bar, if rich is installed.

    Elsewhere there are lines, after a while; with ``says_end`` the last step has one in any case.
    """
    if _is_hidden:
        yield _ignored
        return
    if sys.stderr.isatty():
        try:
            from shardstore.progress.bar import drawn_bar  # needs an extra
        except ModuleNotFoundError as exc:
            if (exc.name or "").partition(".")[0] != "rich":
                raise
        else:
            with drawn_bar(clock) as report:
                yield report
            return
    lines = Lines(clock)
    yield lines
    if says_end:
        lines.end()


@contextmanager
def reported(progress: Callable[P, None] | bool | None, step: Callable[P, Step]) -> Iterator[Callable[P, None]]:
    """Yield the function that is to be called with the progress of a task, during the block.

    Args:
        progress: as the user gives it: a function, which is yielded; ``True``: what ``step`` makes of it is shown on stderr; ``False`` or
            ``None``: nothing is done with it.

    Raises:
        InvalidInput: it is something else.
    """
    if progress is True:
        with step_bar(says_end=True) as report:
            yield lambda *args, **kwargs: report(step(*args, **kwargs))
    elif progress is None or progress is False:
        yield _ignored
    elif callable(progress):
        yield progress
    else:
        raise InvalidInput(f"progress={progress!r} is neither a function nor True, which shows it on stderr, nor None")


def _ignored(*args: object, **kwargs: object) -> None:
    """Do nothing."""
