"""JSON documents that keep what this package does not understand: members, their order, and the form of every number.

Python reads ``1e400`` as infinity and ``0.10`` as ``0.1``. Attributes belong to the user, so a number whose form
Python would not write again is kept as its text (``NumberText``).
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from typing import Any

from shardstore.errors import Corruption
from shardstore.model.ranges import BytesLike

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NumberText:
    """A number whose exact value only its text holds: ``1e400``, ``1.50``, ``-0``, ``NaN``."""

    text: str


def _parse_int(text: str) -> int | NumberText:
    if len(text) > 4000:  # Python refuses to convert numbers of more than 4,300 digits
        return NumberText(text)
    value = int(text)
    return value if str(value) == text else NumberText(text)


def _parse_float(text: str) -> float | NumberText:
    value = float(text)
    return value if repr(value) == text else NumberText(text)


def loads(data: BytesLike) -> Any:
    """Parse a document. Raises ``Corruption`` if it is not JSON in UTF-8, or nested too deeply."""
    try:
        return json.loads(str(data, "utf-8"), parse_int=_parse_int, parse_float=_parse_float, parse_constant=NumberText)
    except (ValueError, RecursionError) as exc:
        raise Corruption(f"not a JSON document ({type(exc).__name__}: {str(exc)[:200]})") from exc


def loads_object(data: BytesLike) -> JsonObject:
    """Parse a document that has to be an object. Raises ``Corruption`` as ``loads`` does, or where it is no object."""
    document = loads(data)
    if not isinstance(document, dict):
        raise Corruption(f"the JSON document is a {type(document).__name__}, an object was expected")
    return document


def parse_object(data: BytesLike) -> JsonObject | None:
    """Parse a document; ``None`` where it is not JSON, or no object."""
    try:
        return loads_object(data)
    except Corruption:
        return None


def dumps(document: Any) -> bytes:
    """Write a document, indented by two spaces as by zarr-python; numbers kept as text are written unchanged."""
    return _text(document, indent=2).encode()


def dumps_line(document: Any) -> str:
    """Return the text of a document in one line, without blanks."""
    return _text(document, compact=True)


def dumps_zarr2(document: Any) -> bytes:
    """Write a document of Zarr v2 or of the 2022 draft with the bytes of zarr-python 2.18: sorted members, four spaces an indent, ASCII."""
    return _text(document, indent=4, sort_keys=True).encode("ascii")


def same_text(one: Any, other: Any) -> bool:
    """Return whether two parsed documents are the same except for the order of members: ``0``, ``0.0`` and ``false`` differ."""
    return _text(one, sort_keys=True) == _text(other, sort_keys=True)


def _text(document: Any, *, indent: int | None = None, sort_keys: bool = False, compact: bool = False) -> str:
    marker = ""

    def mark(value: object) -> str:
        nonlocal marker
        if not isinstance(value, NumberText):
            raise TypeError(f"{type(value).__name__} has no place in a JSON document")
        marker = marker or uuid.uuid4().hex  # no string of the document can hold it by chance or by intent
        return f"{marker}{value.text}{marker}"

    text = json.dumps(document, indent=indent, sort_keys=sort_keys, separators=(",", ":") if compact else None, default=mark)
    return re.sub(f'"{marker}(.*?){marker}"', r"\1", text) if marker else text
