"""Options of functions: checks of their values, and how signatures and the command line show them."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, TypeVar

from shardstore.errors import InvalidInput

F = TypeVar("F", bound=Callable[..., Any])


def check_flags(**values: object) -> None:
    """Raise ``InvalidInput`` if one is neither ``True`` nor ``False``: Python would silently take ``"no"`` for true."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise InvalidInput(f"{name} {value!r} is neither True nor False")


def defaults_of(options: type) -> dict[str, Any]:
    """Return the defaults of the fields of a dataclass, by name, of those that have one."""
    made = {each.name: each.default_factory() for each in fields(options) if each.default_factory is not MISSING}
    return made | {each.name: each.default for each in fields(options) if each.default is not MISSING}


def with_options(options: type, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """Return a decorator that has the signature of a function name each option of its last parameter, ``**options: Unpack[options]``.

    Type checkers read ``Unpack``. ``help`` and notebooks read the signature of the function instead, so each option is written there. What
    the function does stays the same.

    Args:
        options: a ``TypedDict``.
        defaults: the default of each option, by name.
    """

    def decorate(function: F) -> F:
        own = inspect.signature(function)
        *named, _ = own.parameters.values()
        for name, kind in options.__annotations__.items():
            annotation = getattr(kind, "__forward_arg__", kind)  # its text, as other annotations are
            named.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotation))
        function.__signature__ = own.replace(parameters=named)  # type: ignore[attr-defined]  # which ``inspect.signature`` returns
        return function

    return decorate


def unknown_option(name: str, known: Collection[str], remedy: str | None = None) -> InvalidInput:
    """Return the error for an option that a function does not have. Without a ``remedy`` it names the nearest one, or all of them."""
    if remedy is None:
        close = difflib.get_close_matches(name, known, 1)
        remedy = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(known))}"
    return InvalidInput(f"option {name!r} is not known: {remedy}")


COUNTED_IN_CHUNKS = "did you mean chunks_per_shard? It counts chunks, and the shards of zarr count elements"
"""The remedy for ``shards``."""


Form = Literal["text", "number", "texts", "bytes", "duration", "counts", "prices"]
"""The forms of values on the command line: texts; whole numbers of at least 0; several texts, each after its own flag; a number of bytes,
such as ``512MiB``; a duration, such as ``7d``; a JSON object of counts for each dimension; and several ``NAME=NUMBER``. Flags have no
value there.
"""


Group = Literal["Options", "Shape", "Selection", "Run", "Storage", "Expert"]
"""The groups of options in a help, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class CommandOption:
    """An option on the command line: in the metadata of a field of a dataclass, or in ``Annotated`` of a parameter of a command, which has
    its name, type and default. An option that several commands have is declared once: it means the same for all of them.
    """

    help: str
    metavar: str | None = None
    form: Form = "text"
    flags: tuple[str, ...] = ()
    """The flags, where they are not ``--`` and the field's name, with ``no-`` before it if the default is true."""
    most: int | None = None
    """The largest number."""
    group: Group = "Options"
    default: str | None = None
    """The default in the help, in words, where the value itself says nothing."""


KEY = "command"
"""The name of a ``CommandOption`` in the metadata of a field."""


def option(
    default: Any,
    shown: CommandOption | str,
    metavar: str | None = None,
    *,
    form: Form = "text",
    flags: tuple[str, ...] = (),
    group: Group = "Options",
    words: str | None = None,
) -> Any:
    """Return the field of a dataclass for an option that the command line has too; ``shown`` may be its help alone, and ``words`` are
    the default in the help.

    A ``default`` that can be called makes the default.
    """
    if isinstance(shown, str):
        shown = CommandOption(shown, metavar, form, flags, group=group, default=words)
    return field(default_factory=default, metadata={KEY: shown}) if callable(default) else field(default=default, metadata={KEY: shown})


# -- options that several functions and commands have: they mean the same for all of them ----------------------------------

DRY_RUN = CommandOption("Change nothing: show what would be done.")
OVERWRITE = CommandOption("Replace what is there already.")
MESSAGE = CommandOption("The message of the commit.", "TEXT", flags=("--message", "-m"))
INCLUDE = CommandOption("Take only paths that match, with all below them; repeatable.", "PATTERN", "texts", group="Selection")
EXCLUDE = CommandOption("Leave out paths that match, with all below them; repeatable.", "PATTERN", "texts", group="Selection")
CHUNK_ORDER = CommandOption("The order of chunks in a shard.", "C|F|morton", flags=("--chunk-order",), group="Shape")
CHUNKS_PER_SHARD = CommandOption(
    "How many chunks a shard has.", "N,N|auto|none|JSON", flags=("--chunks-per-shard", "-s"), group="Shape", default="auto"
)
ACCESS = CommandOption("What one read takes, such as '1,:,:'; repeatable.", "PATTERN", "texts", flags=("--access", "-a"))
FAST = CommandOption("Read metadata only: no shard is looked at.")
OLDER_THAN = CommandOption("Remove only what is older, such as 30d or 12h.", "AGE", "duration")
AT = CommandOption("The snapshot: a branch, a tag or an id.", "REF", flags=("--at",), default="main")
SHOW = CommandOption("Show at most this many.", "N", "number", flags=("--show", "-n"))
OUTPUT = CommandOption("Where the result goes.", "PLACE", flags=("--output",))
DIM = CommandOption("The dimension along which arrays grow.", "NAME")
