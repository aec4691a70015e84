"""JSON as zarr-python 2 writes it: sorted members, four spaces per indent, ASCII; numbers kept as text are written unchanged."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

from shardstore.format.json_text import NumberText

_MARKER = uuid.uuid4().hex  # never written, so no string of a document holds it by chance or by intent
_MARKED = re.compile(f'"{_MARKER}(.*?){_MARKER}"')


def dumps(document: Any) -> bytes:
    """Return the bytes of ``.zarray``, ``.zgroup``, ``.zattrs`` and ``.zmetadata``, equal to those of zarr-python 2.18."""
    return _text(document, indent=4).encode("ascii")


def same_text(one: Any, other: Any) -> bool:
    """Return whether two parsed documents are the same except for the order of members: ``0``, ``0.0`` and ``false`` differ."""
    return _text(one, indent=None) == _text(other, indent=None)


def _text(document: Any, indent: int | None) -> str:
    text = json.dumps(document, indent=indent, sort_keys=True, ensure_ascii=True, separators=(",", ": "), default=_mark)
    return _MARKED.sub(r"\1", text)


def _mark(value: object) -> str:
    if isinstance(value, NumberText):
        return f"{_MARKER}{value.text}{_MARKER}"
    raise TypeError(f"{type(value).__name__} has no place in a JSON document")
