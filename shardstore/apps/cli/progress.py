"""Progress of commands: the bar of a single action, and a word where something takes long to begin."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from shardstore.apps.cli.output import stderr_console
from shardstore.progress.shown import step_bar
from shardstore.progress.steps import Step

_SILENT_SECONDS = 4.0


class ProgressBar(Protocol):
    """A progress bar; may be called from any thread."""

    def __call__(self, done: int, total: int | None = None, nbytes: int | None = None) -> None: ...


@contextmanager
def progress_bar(action: str, noun: str) -> Iterator[ProgressBar]:
    """Show the bar of a single action during the block, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total=None, nbytes=None: None
        return
    with step_bar() as report:
        yield lambda done, total=None, nbytes=None: report(Step(action, done, total, nbytes, noun=noun))


@contextmanager
def said_if_slow(text: str, after_seconds: float = _SILENT_SECONDS) -> Iterator[None]:
    """Print ``text`` on stderr, if that is a terminal, after the block has taken so long."""
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(after_seconds, lambda: stderr_console().print(f"{text} …"))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
