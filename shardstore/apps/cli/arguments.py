"""Arguments and options that several commands take, each declared once, here: it means the same for all of them.

A set of options is a dataclass, and a command takes it as one parameter.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from rich.markup import escape

from shardstore.apps.cli.output import said_if_slow
from shardstore.errors import InvalidInput
from shardstore.model.durations import seconds_of
from shardstore.model.options import CHUNKS_PER_SHARD, DRY_RUN, FAST, KEY, OVERWRITE, CommandOption, Form, Group
from shardstore.model.redaction import redacted
from shardstore.progress.shown import without_progress

if TYPE_CHECKING:
    from shardstore.adapters.store_paths import StorePath

DEBUG = "shardstore.debug"
_WAITING = "waiting for the storage to answer"


def _note_verbose(context: typer.Context, value: bool) -> bool:
    context.meta[DEBUG] = value or context.meta.get(DEBUG, False)
    return value


def argument(metavar: str, text: str) -> Any:
    """Return a positional argument, for ``Annotated``: its name in the help, and what it is. A default is not shown."""
    return typer.Argument(metavar=metavar, help=text, show_default=False)


Url = Annotated[str, argument("URL", "A path, URL or chain of URLs: of a store, a node in it, or a key.")]
StoreUrl = Annotated[str, argument("URL", "A versioned store: a path, URL or chain of URLs.")]

AsJson = Annotated[bool, CommandOption("Print the result as JSON.", flags=("--json",))]
DryRun = Annotated[bool, DRY_RUN]
Yes = Annotated[bool, CommandOption("Do not ask.", flags=("--yes", "-y"))]
Overwrite = Annotated[bool, OVERWRITE]
Recursive = Annotated[bool, CommandOption("Include all that is below.", flags=("--recursive", "-r"))]
Fast = Annotated[bool, FAST]
Explain = Annotated[bool, CommandOption("Show what can be found, and what cannot.")]
Shards = Annotated[str, CHUNKS_PER_SHARD]
VirtualPrefix = Annotated[
    list[str] | None, CommandOption("Where outside chunks may lie: a URL ending in /; repeatable.", "URL", group="Expert")
]


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """The options of the filesystem of a URL."""

    options: Annotated[
        list[str] | None,
        CommandOption("A filesystem option, such as anon=true; repeatable.", "KEY=VALUE", flags=("--option", "-o"), group="Storage"),
    ] = None
    options_json: Annotated[
        str | None, CommandOption("All of them, as one JSON object.", "JSON", flags=("--storage-options",), group="Storage")
    ] = None

    def parsed(self) -> dict[str, Any]:
        """Return the options by name. Raises ``InvalidInput`` as ``storage_options`` does."""
        return storage_options(self.options_json, self.options)

    def resolve(self, url: str) -> StorePath:
        """Return the place that a URL names. Raises as ``shardstore.adapters.store_paths.resolve``."""
        from shardstore.adapters.store_paths import resolve  # of commands, which --help does without

        with said_if_slow(_WAITING):
            return resolve(url, self.parsed())


@dataclass(frozen=True, slots=True)
class PairOptions(StorageOptions):
    """The options of the filesystems of a source and a target."""

    target_options_json: Annotated[
        str | None,
        CommandOption("Those of the second place, if they differ, as JSON.", "JSON", flags=("--target-options",), group="Storage"),
    ] = None

    def parsed_target(self) -> dict[str, Any] | None:
        """Return the options that are for the target alone; ``None`` if it has those of the source."""
        return other_options(self.target_options_json, "--target-options")

    def parsed_pair(self, source: str, target: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options of the filesystems of two URLs."""
        from shardstore.adapters.store_paths import pair_options

        one, other = pair_options(source, target, self.parsed(), self.parsed_target())
        return dict(one), dict(other)

    def resolve_pair(self, source: str, target: str) -> tuple[StorePath, StorePath]:
        """Return the places that two URLs name. Raises as ``shardstore.adapters.store_paths.resolve``."""
        from shardstore.adapters.store_paths import resolve_pair

        with said_if_slow(_WAITING):
            return resolve_pair(source, target, *self.parsed_pair(source, target))


@dataclass(frozen=True, slots=True)
class Without:
    """The fields of a set of options that a command does not have, in ``Annotated``."""

    names: frozenset[str]


def with_single_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the function for the program's parser: it takes the fields of each set as options of their own, and those of every command.

    A set is a dataclass. Options are its fields with a ``CommandOption`` in their metadata, or with one, or an ``Option`` of the parser, in
    ``Annotated``, as parameters have it; other fields keep their defaults.
    """
    hints = get_type_hints(command, include_extras=True)
    sets: dict[str, _Set] = {name: found for name, hint in hints.items() if (found := _Set.find(hint)) is not None}
    parameters: list[Parameter] = []
    readers: dict[str, Callable[[Any], Any]] = {}
    for name, parameter in signature(command).parameters.items():
        if name in sets:
            parameters += sets[name].parameters
        else:
            parameters.append(_parameter(name, parameter.default, hints[name]))
            readers |= _reader_of_parameter(name, hints[name])
    parameters += [_parameter(name, False, annotation) for name, annotation in _OF_EVERY_COMMAND.items()]
    parameters.sort(key=_place_in_help)

    @wraps(command)
    def run(*, quiet: bool, no_progress: bool, verbose: bool, **given: Any) -> None:
        if quiet and given.get("as_json"):
            raise InvalidInput("--quiet prints no results, and --json prints them: give one of them")
        with _said(quiet=quiet, no_progress=no_progress, verbose=verbose):
            made = {name: found.make(given) for name, found in sets.items()}
            made |= {name: read(given.pop(name)) for name, read in readers.items()}
            command(**given, **made)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # what typer builds the command from
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


_OF_EVERY_COMMAND: Mapping[str, Any] = {
    "quiet": Annotated[bool, CommandOption("Print no results: only warnings and errors.", flags=("--quiet", "-q"))],
    "no_progress": Annotated[bool, CommandOption("Show no progress.")],
    "verbose": Annotated[
        bool,
        typer.Option(
            *("--verbose", "-v"),
            help="Log what happens, and show the traceback of an error.",
            callback=_note_verbose,
            is_eager=True,  # an error of another option has a traceback too
            metavar="",
            show_default=False,
        ),
    ],
}

_GROUPS: tuple[str, ...] = get_args(Group)


def _place_in_help(parameter: Parameter) -> int:
    """Return the number of the group that an option is in: the parser shows groups in the order in which they begin."""
    return _GROUPS.index(getattr(parameter.annotation.__metadata__[0], "rich_help_panel", None) or _GROUPS[0])


@contextmanager
def _said(*, quiet: bool, no_progress: bool, verbose: bool) -> Iterator[None]:
    """Print, during the block, what the user wants to see."""
    with ExitStack() as during:
        if quiet:
            during.enter_context(redirect_stdout(during.enter_context(open(os.devnull, "w"))))
        if quiet or no_progress:
            during.enter_context(without_progress())
        if verbose:
            during.enter_context(_logged())
        yield


@contextmanager
def _logged() -> Iterator[None]:
    """Print on stderr, during the block, what the package logs."""
    log, handler = logging.getLogger("shardstore"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def help_of(function: Callable[..., None]) -> str:
    """Return the help of a command from its docstring: a paragraph is one line, but each example has its own, behind a ``$``."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    lines = [each.replace("\n  ", "\n$ ") if each.startswith("Examples:") else " ".join(each.split()) for each in paragraphs]
    return escape("\n\n".join(lines))


@dataclass(frozen=True, slots=True)
class _Set:
    """A set of options of a command."""

    cls: type[Any]
    parameters: list[Parameter]
    readers: Mapping[str, Callable[[Any], Any]]
    """What makes the value of a field from what is given on the command line."""

    @classmethod
    def find(cls, hint: Any) -> _Set | None:
        left_out = next((extra.names for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, Without)), frozenset[str]())
        group = getattr(hint, "__origin__", hint) if left_out else hint
        if not is_dataclass(group) or not isinstance(group, type):
            return None
        types = get_type_hints(group, include_extras=True)
        parameters: list[Parameter] = []
        readers: dict[str, Callable[[Any], Any]] = {}
        for each in fields(group):
            if each.name in left_out:
                continue
            if KEY in each.metadata:
                parameters.append(_parameter_of(each))
                readers[each.name] = _reader_of(each)
            elif hasattr(types[each.name], "__metadata__"):
                parameters.append(_parameter(each.name, each.default, types[each.name]))
        return cls(group, parameters, readers)

    def make(self, given: dict[str, Any]) -> Any:
        """Take the set's values out of what is given on the command line, and return the set. Raises ``InvalidInput``."""
        taken = {parameter.name: given.pop(parameter.name) for parameter in self.parameters}
        read = {name: self.readers[name](value) if name in self.readers else value for name, value in taken.items()}
        return self.cls(**{name: value for name, value in read.items() if value is not None or name not in self.readers})


def _parameter(name: str, default: Any, annotation: Any) -> Parameter:
    """Return a keyword of a command; a ``CommandOption`` in its annotation becomes an option of the parser."""
    shown = next((extra for extra in getattr(annotation, "__metadata__", ()) if isinstance(extra, CommandOption)), None)
    if shown is not None:
        annotation = Annotated[annotation.__origin__, _of_parser(name, default, shown)]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _of_parser(name: str, default: Any, shown: CommandOption) -> Any:
    is_number = shown.form == "number"
    has_default = default is not None and default is not Parameter.empty and default != ""
    return typer.Option(
        *(shown.flags or _flags(name, default)),
        metavar="" if isinstance(default, bool) else shown.metavar,
        help=escape(shown.help) + (f" [dim]\\[default: {shown.default}][/dim]" if shown.default and not has_default else ""),
        show_default=has_default,
        min=0 if is_number else None,
        max=shown.most if is_number else None,
        rich_help_panel=None if shown.group == _GROUPS[0] else shown.group,
    )


_TYPES: Mapping[Form, Any] = {"number": int | None, "texts": list[str] | None, "prices": list[str] | None}


def _parameter_of(option: Field[Any]) -> Parameter:
    """Return the parameter of a command for a field with a ``CommandOption``."""
    shown: CommandOption = option.metadata[KEY]
    is_flag = isinstance(option.default, bool)
    default: Any = None
    if is_flag:
        default = False
    elif shown.form == "bytes" and isinstance(option.default, int):
        default = f"{option.default >> 20}MiB" if option.default else "0"
    elif isinstance(option.default, str | int):
        default = option.default
    shown = replace(shown, flags=shown.flags or _flags(option.name, option.default))
    return _parameter(option.name, default, Annotated[bool if is_flag else _TYPES.get(shown.form, str | None), shown])


def flag_of(option: Field[Any]) -> str:
    """Return the first flag of a field with a ``CommandOption``."""
    shown: CommandOption = option.metadata[KEY]
    return (shown.flags or _flags(option.name, option.default))[0]


def _flags(name: str, default: Any) -> tuple[str]:
    return (f"--{'no-' if default is True else ''}{name.replace('_', '-')}",)


def _reader_of(option: Field[Any]) -> Callable[[Any], Any]:
    """Return the function that makes the value of a field from what is given for it; it returns ``None`` if nothing is."""
    shown: CommandOption = option.metadata[KEY]
    if option.default is True:
        return lambda given: not given
    return _reader(shown, option.name, option.default)


def _reader(shown: CommandOption, name: str, default: Any) -> Callable[[Any], Any]:
    (flag, *_) = shown.flags or _flags(name, default)
    reader = _READERS.get(shown.form)
    return lambda given: None if given is None or given == [] else reader(flag, given) if reader else given


def _reader_of_parameter(name: str, annotation: Any) -> dict[str, Callable[[Any], Any]]:
    """Return the function that reads the value of a parameter, by its name; nothing if it needs none."""
    shown = next((extra for extra in getattr(annotation, "__metadata__", ()) if isinstance(extra, CommandOption)), None)
    return {name: _reader(shown, name, None)} if shown is not None and shown.form in _READERS else {}


# -- values ------------------------------------------------------------------------------------------------------------

_BYTES = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?b?)\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(name: str, text: str) -> int:
    """Return the bytes of ``512MiB``, ``1.5 GB`` or ``65536``: with ``i`` in powers of 1024, without it in powers of 1000.

    Raises:
        InvalidInput: the text has another form.
    """
    match = _BYTES.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{name} {text!r} is not a number of bytes: give one such as 512MiB or 2GB")
    base = 1024 if match[3].lower().startswith("i") else 1000
    return int(float(match[1]) * base ** _POWERS[match[2].lower()])


def parse_object(name: str, text: str, example: str = "") -> dict[str, Any]:
    """Return the members of a JSON object. Raises ``InvalidInput``, whose message ends with the ``example``."""
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise InvalidInput(f"{name} is not JSON ({exc}): give an object{example}") from exc
    if not isinstance(found, dict):
        raise InvalidInput(f"{name} is a JSON {type(found).__name__}: give an object{example}")
    return found


def _parse_counts(name: str, text: str) -> dict[str, Any]:
    """Return a JSON object whose lists, which are numbers for each dimension, are tuples."""
    return {path: tuple(counts) if isinstance(counts, list) else counts for path, counts in parse_object(name, text).items()}


def _parse_prices(name: str, pairs: list[str]) -> dict[str, float]:
    prices: dict[str, float] = {}
    for pair in pairs:
        kind, _, price = pair.partition("=")
        try:
            prices[kind] = float(price)
        except ValueError as exc:
            raise InvalidInput(f"{name} {pair!r} is not of the form put=0.005") from exc
    return prices


def _checked_duration(name: str, text: str) -> str:
    seconds_of(name, text)
    return text


_READERS: Mapping[Form, Callable[[str, Any], Any]] = {
    "bytes": parse_bytes,
    "duration": _checked_duration,
    "counts": _parse_counts,
    "prices": _parse_prices,
}


def parse_policy(text: str) -> Any:
    """Return how many chunks go into a shard, as ``shardstore.pack`` takes it. Raises ``InvalidInput``."""
    if text.lower() in ("auto", "none"):
        return "auto" if text.lower() == "auto" else None
    if text.lstrip().startswith("{"):
        return {pattern: _counts(counts) for pattern, counts in parse_object("--chunks-per-shard", text).items()}
    return _counts(text)


def _counts(given: Any) -> Any:
    if given is None or (isinstance(given, str) and given.lower() in ("auto", "none")):
        return None if given is None or given.lower() == "none" else "auto"
    parts = given if isinstance(given, list) else str(given).replace("x", ",").split(",")
    try:
        return tuple(int(part) for part in parts)
    except (TypeError, ValueError) as exc:
        raise InvalidInput(f"--chunks-per-shard {given!r}: give a number for each dimension, such as 4,4,4, or 'auto' or 'none'") from exc


# -- options of filesystems --------------------------------------------------------------------------------------------


def other_options(text: str | None, name: str) -> dict[str, Any] | None:
    """Return the options of a second filesystem, from a JSON object; ``None`` if none are given. Raises as ``storage_options``."""
    return None if text is None else storage_options(text, None, name)


def storage_options(text: str | None, pairs: list[str] | None, name: str = "--storage-options") -> dict[str, Any]:
    """Return the options of a filesystem, from a JSON object and ``key=value`` pairs; the pairs take precedence.

    Raises:
        InvalidInput: the text is not a JSON object, a pair has no ``=``, or its value begins like JSON but is not.
    """
    options: dict[str, Any] = {}
    if text is not None:
        options |= parse_object(name, text, ", such as '{\"anon\": true}', or use -o anon=true")
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise InvalidInput(f"option {key!r} is not of the form key=value, such as -o anon=true")
        options[key] = _value(key, value)
    return options


# Names and passwords, which can look like numbers.
_TEXTS = frozenset({"key", "secret", "token", "profile", "username", "password", "endpoint_url", "project", "host"})


def _value(key: str, text: str) -> Any:
    try:
        value = json.loads(text.lower() if text in ("True", "False") else text)  # as Python spells them
    except ValueError as exc:
        if text.lstrip().startswith(("{", "[")):
            raise InvalidInput(f"the value of option {key} begins like JSON but is not ({exc}): quote all of it for the shell") from exc
        return text
    return text if key in _TEXTS and isinstance(value, int | float) else value


_SECRETS = re.compile(r"(.*_)?(key|secret|token|password|username|user|credentials?|connection_string|auth)", re.IGNORECASE)
_DESCRIPTOR = "SHARDSTORE_ARGUMENTS"
"""The variable that has, in the environment of a restarted program, the descriptor of a file with its arguments."""


def secret_in(url: str, options: Mapping[str, Any]) -> str | None:
    """Return the name of something in a URL or in options, at whatever depth, that seems to be a credential."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            if (found := secret_in("", value)) is not None:
                return found
        elif _SECRETS.fullmatch(name) and value not in (None, "anon", False):
            return name
    return "user in the URL" if redacted(url) != url else None


class HiddenArguments:
    """The arguments of this program. A program that runs for days restarts itself, with its arguments in a file without a name."""

    def __init__(self) -> None:
        self._given: list[str] | None = None

    def restore(self) -> None:
        """Take the arguments out of the file, if that is where they are; the program calls it first."""
        descriptor = os.environ.pop(_DESCRIPTOR, None)
        if descriptor is None:
            self._given = sys.argv[1:]
            return
        with open(int(descriptor), "rb") as file:
            file.seek(0)
            sys.argv[1:] = json.load(file)

    def hide(self, shown: list[str]) -> None:
        """Restart the program, with the arguments ``shown`` in lists of processes. Does nothing if that was done, or if none are known."""
        if self._given is None or not hasattr(os, "memfd_create"):
            return
        descriptor = os.memfd_create("arguments", 0)  # without a flag it stays open
        os.write(descriptor, json.dumps(self._given).encode())
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, "-P", "-m", "shardstore", *shown], os.environ | {_DESCRIPTOR: str(descriptor)})


ARGUMENTS = HiddenArguments()
