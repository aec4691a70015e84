"""Arguments and options that several commands take."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from shardstore.errors import InvalidInput

DEBUG = "shardstore.debug"


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


def storage_options(text: str | None, pairs: list[str] | None, name: str = "--storage-options") -> dict[str, Any]:
    """Return the options of a filesystem, from a JSON object and ``key=value`` pairs; the pairs take precedence.

    Raises:
        InvalidInput: the text is not a JSON object, a pair has no ``=``, or its value begins as JSON but is none.
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
            raise InvalidInput(f"the value of option {key} begins as JSON and is none ({exc}): quote all of it for the shell") from exc
        return text
    return text if key in _TEXTS and isinstance(value, int | float) else value
