"""Arguments and options that several commands take. A group of options is a dataclass, and a command takes it as one parameter."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from shardstore.apps.cli.progress import said_if_slow
from shardstore.errors import InvalidInput
from shardstore.model.options import KEY, CommandOption, Form

if TYPE_CHECKING:
    from shardstore.adapters.store_paths import StorePath

DEBUG = "shardstore.debug"
_WAITING = "waiting for the storage to answer"


def _note_debug(context: typer.Context, value: bool) -> bool:
    context.meta[DEBUG] = value or context.meta.get(DEBUG, False)
    return value


Url = Annotated[
    str, typer.Argument(metavar="URL", help="A path, URL or chain of URLs: of a store, a node in it, or a key.", show_default=False)
]
OptionsJson = Annotated[
    str | None,
    typer.Option("--storage-options", metavar="JSON", help="Options of the filesystem, as a JSON object: credentials, endpoint, retries."),
]
OptionPairs = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="KEY=VALUE", help="One option of the filesystem; may be repeated. VALUE is JSON, or else text."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error.", callback=_note_debug, is_eager=True, show_default=False)
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Erase what is at DST first.")]
TargetOptionsJson = Annotated[
    str | None,
    typer.Option("--target-options", metavar="JSON", help="Options of the filesystem of DST, where they differ from those of SRC."),
]
AgainstOptionsJson = Annotated[
    str | None,
    typer.Option("--against-options", metavar="JSON", help="Options of the filesystem of the other copy, where they differ."),
]


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """The options of the filesystem of a URL."""

    options_json: OptionsJson = None
    options: OptionPairs = None

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

    target_options_json: TargetOptionsJson = None

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
    """The fields of a group of options that a command does not have, in ``Annotated``."""

    names: frozenset[str]


def with_single_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the function for the program's parser: it takes the fields of each group as options of their own, and ``--debug``.

    A group is a dataclass. Options are its fields with a ``CommandOption`` in their metadata, or with an ``Option`` of the parser in their
    type; other fields keep their defaults.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, _Group] = {name: group for name, hint in hints.items() if (group := _Group.find(hint)) is not None}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if name in groups:
            parameters += groups[name].parameters
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name]))
    parameters.append(_parameter("debug", False, Debug))

    @wraps(command)
    def run(*, debug: bool, **given: Any) -> None:
        made = {name: group.make(given) for name, group in groups.items()}
        command(**given, **made)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # what typer builds the command from
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


@dataclass(frozen=True, slots=True)
class _Group:
    """A group of options of a command."""

    cls: type[Any]
    parameters: list[Parameter]
    readers: Mapping[str, Callable[[Any], Any]]
    """What makes the value of a field from what is given on the command line."""

    @classmethod
    def find(cls, hint: Any) -> _Group | None:
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
        """Take the group's values out of what is given on the command line, and return the group. Raises ``InvalidInput``."""
        taken = {parameter.name: given.pop(parameter.name) for parameter in self.parameters}
        read = {name: self.readers[name](value) if name in self.readers else value for name, value in taken.items()}
        return self.cls(**{name: value for name, value in read.items() if value is not None or name not in self.readers})


def _parameter(name: str, default: Any, annotation: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_TYPES: Mapping[Form, Any] = {"number": int | None, "texts": list[str] | None, "prices": list[str] | None}


def _parameter_of(option: Field[Any]) -> Parameter:
    """Return the parameter of a command for a field with a ``CommandOption``."""
    shown: CommandOption = option.metadata[KEY]
    is_flag = isinstance(option.default, bool)
    default: Any = None
    if is_flag:
        default = False
    elif shown.form == "bytes" and isinstance(option.default, int):
        default = f"{option.default >> 20}MiB"
    elif isinstance(option.default, str | int):
        default = option.default
    flags = shown.flags or _flags(option)
    is_number = shown.form == "number"
    of_parser = typer.Option(
        *flags,
        metavar=shown.metavar,
        help=shown.help,
        show_default=default is not None,
        min=0 if is_number else None,
        max=shown.most if is_number else None,
    )
    return _parameter(option.name, default, Annotated[bool if is_flag else _TYPES.get(shown.form, str | None), of_parser])


def _flags(option: Field[Any]) -> tuple[str]:
    return (f"--{'no-' if option.default is True else ''}{option.name.replace('_', '-')}",)


def _reader_of(option: Field[Any]) -> Callable[[Any], Any]:
    """Return the function that makes the value of a field from what is given for it; it returns ``None`` if nothing is."""
    shown: CommandOption = option.metadata[KEY]
    if option.default is True:
        return lambda given: not given
    (flag, *_) = shown.flags or _flags(option)
    reader = _READERS.get(shown.form)
    return lambda given: None if given is None or given == [] else reader(flag, given) if reader else given


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


def parse_object(name: str, text: str) -> dict[str, Any]:
    """Return the members of a JSON object. Raises ``InvalidInput``."""
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise InvalidInput(f"{name} is not JSON ({exc})") from exc
    if not isinstance(found, dict):
        raise InvalidInput(f"{name} is a JSON {type(found).__name__}: give an object")
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


_READERS: Mapping[Form, Callable[[str, Any], Any]] = {"bytes": parse_bytes, "counts": _parse_counts, "prices": _parse_prices}


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
        try:
            document = json.loads(text)
        except ValueError as exc:
            raise InvalidInput(f"{name} is not JSON ({exc}): give an object, such as '{{\"anon\": true}}', or use -o anon=true") from exc
        if not isinstance(document, dict):
            raise InvalidInput(f"{name} is a JSON {type(document).__name__}: give an object, such as '{{\"anon\": true}}'")
        options |= document
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
        value = json.loads(text)
    except ValueError as exc:
        if text.lstrip().startswith(("{", "[")):
            raise InvalidInput(f"the value of option {key} begins like JSON but is not ({exc}): quote all of it for the shell") from exc
        return text
    return text if key in _TEXTS and isinstance(value, int | float) else value


StoreUrl = Annotated[str, typer.Argument(metavar="URL", help="A versioned store: a path, URL or chain of URLs.", show_default=False)]
