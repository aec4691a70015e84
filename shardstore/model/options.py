"""Options of functions: checks of their values, and how the command line shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from shardstore.errors import InvalidInput


def check_flags(**values: object) -> None:
    """Raise ``InvalidInput`` if one is neither ``True`` nor ``False``: Python would silently take ``"no"`` for true."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise InvalidInput(f"{name} {value!r} is neither True nor False")


Form = Literal["text", "number", "texts", "bytes", "counts", "prices"]
"""The forms of values on the command line: texts; whole numbers of at least 0; several texts, each after its own flag; a number of bytes,
such as ``512MiB``; a JSON object of counts for each dimension; and several ``NAME=NUMBER``. Flags have no value there.
"""


@dataclass(frozen=True, slots=True)
class CommandOption:
    """An option on the command line: in the metadata of a field of a dataclass, or in ``Annotated`` of a parameter of a command, which has
    its name, type and default.
    """

    help: str
    metavar: str | None = None
    form: Form = "text"
    flags: tuple[str, ...] = ()
    """The flags, where they are not ``--`` and the field's name, with ``no-`` before it if the default is true."""
    most: int | None = None
    """The largest number."""


KEY = "command"
"""The name of a ``CommandOption`` in the metadata of a field."""


def option(
    default: Any, shown: CommandOption | str, metavar: str | None = None, *, form: Form = "text", flags: tuple[str, ...] = ()
) -> Any:
    """Return the field of a dataclass for an option that the command line has too; ``shown`` may be its help alone.

    A ``default`` that can be called makes the default.
    """
    if isinstance(shown, str):
        shown = CommandOption(shown, metavar, form, flags)
    return field(default_factory=default, metadata={KEY: shown}) if callable(default) else field(default=default, metadata={KEY: shown})
