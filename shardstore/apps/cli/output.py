"""Output of commands: results on stdout, everything else on stderr. Tables for people, JSON for programs."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TextIO, TypeVar

from rich.console import Console, RenderableType
from rich.text import Text

from shardstore.model.words import count, plural

T = TypeVar("T")

_NO_TERMINAL_WIDTH = 100_000  # columns: into a file or a pipe nothing is wrapped or cut

_COLUMNS = 80  # of paragraphs if there is no screen
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
    """Return a paragraph behind its label, in lines as wide as the screen, or of 80 columns without a screen."""
    width = max(columns_of_screen() or _COLUMNS, indent + len(label) + _LEAST_COLUMNS)
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
