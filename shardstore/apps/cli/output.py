"""Output of commands: results on stdout; questions, progress, warnings and errors on stderr; and exit codes."""

from __future__ import annotations

import json
import re
import sys
import textwrap
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, NoReturn, Protocol, TextIO, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from shardstore.apps.cli.words import in_own_words
from shardstore.errors import (
    NO_SUCH_BUCKET,
    AccessDenied,
    Conflict,
    Corruption,
    Incomplete,
    InvalidInput,
    NotFound,
    ShardStoreError,
    StorageError,
    Unsupported,
)
from shardstore.model.words import count, plural
from shardstore.progress.shown import is_hidden, step_bar
from shardstore.progress.steps import Step

T = TypeVar("T")

_NO_TERMINAL_WIDTH = 100_000  # columns: into a file or a pipe nothing is wrapped or cut

_LEAST_COLUMNS = 30  # for the text behind a label

_KEYS_SHOWN = 8  # of items that are alike; --json has more

# Checksums and numbers differ between findings whose words are the same.
_VARYING = re.compile(r"\b[0-9a-f]{8}\b|\d+")


def _console(file: TextIO) -> Console:
    """Return a console as wide as the screen, or, without a screen, as wide as needed."""
    return Console(file=file, highlight=False, markup=False, emoji=False, width=None if file.isatty() else _NO_TERMINAL_WIDTH)


def show(*renderables: RenderableType) -> None:
    """Print results for people on stdout; in a file or a pipe, lines have no trailing blanks."""
    console = _console(sys.stdout)
    if sys.stdout.isatty():
        for renderable in renderables:
            console.print(renderable)
        return
    with console.capture() as captured:
        for renderable in renderables:
            console.print(renderable)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().split("\n")[:-1])


def wrapped(label: str, text: str, style: str = "", *, indent: int = 0) -> Text:
    """Return a paragraph behind its label, in lines as wide as the screen; without a screen it is one line."""
    width = max(columns_of_screen() or _NO_TERMINAL_WIDTH, indent + len(label) + _LEAST_COLUMNS)
    margin = " " * indent
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=margin + label,
        subsequent_indent=margin + " " * len(label),
        break_long_words=False,  # keys and URLs are copied from there
        break_on_hyphens=False,
    )
    paragraph = Text("\n".join(lines or [margin + label]), no_wrap=True, overflow="ignore")
    if style:
        paragraph.stylize(style, indent, indent + len(label))
    return paragraph


def columns_of_screen() -> int | None:
    """Return the width of the terminal that results go to, in columns; ``None`` if they go elsewhere."""
    return _console(sys.stdout).width if sys.stdout.isatty() else None


def has_colours() -> bool:
    """Return whether results go to a terminal that shows colours."""
    return sys.stdout.isatty() and _console(sys.stdout).color_system is not None


def stderr_console() -> Console:
    """Return the console for errors, warnings, questions and progress."""
    return _console(sys.stderr)


def complain(label: str, text: str) -> None:
    """Print ``error: …`` or ``warning: …``, one line, on stderr."""
    style = "bold red" if label == "error" else "bold yellow"
    stderr_console().print(Text.assemble((f"{label}: ", style), text), soft_wrap=True)


def end(code: ExitCode, text: str) -> NoReturn:
    """Print an error, after all results, and end the command with an exit code."""
    sys.stdout.flush()
    complain("error", text)
    raise typer.Exit(code)


def print_result(as_json: bool, document: Any, *lines: str) -> None:
    """Print a result on stdout: for programs, or for people."""
    if as_json:
        print_json(document)
        return
    for line in lines:
        typer.echo(line)


def print_json(document: Any) -> None:
    """Print a document on stdout, and nothing else."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


class JsonList:
    """A list of objects on stdout, written as they arrive: together they are one JSON document."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, item: dict[str, Any]) -> None:
        sys.stdout.write(("[\n " if self._count == 0 else ",\n ") + json.dumps(item, ensure_ascii=False))
        self._count += 1

    def end(self) -> None:
        sys.stdout.write("\n]\n" if self._count else "[]\n")


def alike(items: Iterable[T], says: Callable[[T], str], apart: Callable[[T], Hashable] = lambda item: None) -> list[tuple[T, list[T]]]:
    """Return the first of each group of items that are equal except for numbers and checksums, with the rest of the group, in order.

    Items with different ``apart`` are in different groups.
    """
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault((apart(item), _VARYING.sub("0", says(item))), []).append(item)
    return [(group[0], group[1:]) for group in groups.values()]


def show_more(keys: Sequence[str], margin: str) -> None:
    """Print how many more there are, and the keys of some; nothing if there are none.

    A repeated key is that of an object with several findings.
    """
    if not keys:
        return
    objects = list(dict.fromkeys(keys))
    where = f", in {plural(len(objects), 'object')}" if len(objects) < len(keys) else ""
    named = ", ".join(objects[:_KEYS_SHOWN])
    rest = f" and {count(len(objects) - _KEYS_SHOWN)} more" if len(objects) > _KEYS_SHOWN else ""
    show(wrapped(margin, f"and {plural(len(keys), 'more', 'more')} like this{where}: {named}{rest}"))


class ExitCode(IntEnum):
    """The meanings of a command's exit codes, for scripts."""

    OK = 0
    FAILED = 1
    INVALID = 2
    NOT_FOUND = 3
    DENIED = 4
    CORRUPT = 5
    CONFLICT = 6
    UNSUPPORTED = 7
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "the storage failed, or something else went wrong",
    ExitCode.INVALID: "wrong usage, or input that cannot be right; nothing was changed",
    ExitCode.NOT_FOUND: "there is no such key, node, bucket or file",
    ExitCode.DENIED: "access was denied",
    ExitCode.CORRUPT: "damaged data was found",
    ExitCode.CONFLICT: "the target exists, or another writer changed it first",
    ExitCode.UNSUPPORTED: "the storage or this version cannot do that",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.BROKEN_PIPE: "the reader of the output has stopped reading",
}

_BY_CLASS: tuple[tuple[type[Exception], ExitCode], ...] = (
    (NotFound, ExitCode.NOT_FOUND),
    (AccessDenied, ExitCode.DENIED),
    (InvalidInput, ExitCode.INVALID),
    (Corruption, ExitCode.CORRUPT),
    (Conflict, ExitCode.CONFLICT),
    (Unsupported, ExitCode.UNSUPPORTED),
)


def first_error(exc: BaseException) -> BaseException:
    """Return the error that matters: for a group, its first one."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return exc


def exit_code(exc: BaseException) -> ExitCode:
    """Return the exit code for an exception; for incomplete long work, that of the first failure."""
    if isinstance(exc, Incomplete) and exc.__cause__ is not None:
        first = exit_code(exc.__cause__)
        return ExitCode.FAILED if first is ExitCode.INVALID else first  # INVALID says that nothing was changed
    if isinstance(exc, StorageError) and exc.code == NO_SUCH_BUCKET:
        return ExitCode.NOT_FOUND
    return next((code for cls, code in _BY_CLASS if isinstance(exc, cls)), ExitCode.FAILED)


def message(exc: BaseException) -> str:
    """Return the message for an exception, in one line and in the words of the command line."""
    text = " ".join(str(exc).split())
    if not isinstance(exc, ShardStoreError):
        name = type(exc).__name__
        text = f"{name}: {text}" if text else name
        text += " (not an error that shardstore expects: --verbose shows where it comes from)"
    notes = [" ".join(note.split()) for note in getattr(exc, "__notes__", ())]
    return in_own_words(" ".join([text, *(f"[{note}]" for note in notes)]))


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
    if is_hidden() or not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(after_seconds, lambda: stderr_console().print(f"{text} …"))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def is_interactive() -> bool:
    """Return whether a user can answer a question on a terminal."""
    return sys.stdin.isatty()


def ask(doing: str, nothing: str) -> None:
    """Ask whether to go on; if the answer is no, end the command with the message ``nothing``, which says what was not done.

    ``doing`` says what would be done: "remove array data.zarr/ct: 9 objects".

    Raises:
        InvalidInput: there is no terminal to ask on.
    """
    if not is_interactive():
        raise InvalidInput(f"this would {doing}. Give --yes to do it")
    stderr_console().print(f"This would {doing}.")
    if not typer.confirm("Go on?", err=True):
        end(ExitCode.FAILED, nothing)
