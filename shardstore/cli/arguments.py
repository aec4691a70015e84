"""Arguments and options that several commands take. A group of options is a dataclass, and a command takes it as one parameter."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

from shardstore.adapters.store_paths import StorePath, pair_options, resolve, resolve_pair
from shardstore.cli.progress import said_if_slow
from shardstore.errors import InvalidInput

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
        one, other = pair_options(source, target, self.parsed(), self.parsed_target())
        return dict(one), dict(other)

    def resolve_pair(self, source: str, target: str) -> tuple[StorePath, StorePath]:
        """Return the places that two URLs name. Raises as ``shardstore.adapters.store_paths.resolve``."""
        with said_if_slow(_WAITING):
            return resolve_pair(source, target, *self.parsed_pair(source, target))


def with_single_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the function for the program's parser: it takes the fields of each group as options of their own, and ``--debug``."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        types = get_type_hints(groups[name], include_extras=True)
        parameters += [_option(field.name, field.default, types[field.name]) for field in fields(groups[name])]
    parameters.append(_option("debug", False, Debug))

    @wraps(command)
    def run(*, debug: bool, **given: Any) -> None:
        made = {name: group(**{field.name: given.pop(field.name) for field in fields(group)}) for name, group in groups.items()}
        command(**given, **made)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # what typer builds the command from
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _option(name: str, default: Any, annotation: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


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
