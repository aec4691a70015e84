"""The file beside a set of references that says what the references were made of: the store, how, and which version of each object.

::

    {"references": 1, "store": "s3://bucket/data.zarr", "base": "s3://bucket/data.zarr/", "path": "", "arguments": {…}}
    {"key": "ct/c/0/0", "generation": "\"9b2c…\"", "nbytes": 1048576}
    {"key": "ct/c/0/1", …}

A line per object, after the first one. Beside a set in JSON, ``refs.json``, it is ``refs.json.pins``; in one in Parquet it is ``.pins``.
The lines but the first are also those that ``shardstore compact --pins`` takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shardstore.errors import Corruption

PINS_SUFFIX = ".pins"
_VERSION = 1


class PinnedObject(NamedTuple):
    """One version of an object: its key from the root of the store, its token and its size in bytes."""

    key: str
    generation: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class PinnedStore:
    """The origin of a set's references."""

    store: str
    """The URL of the store's root."""
    base: str
    """The beginning of the URLs in the set, in front of the keys; empty if the set's URLs lead to other objects than the store's."""
    path: str = ""
    """The path of the node that the set is of."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments that the set was written with, without defaults."""


def encode_pins(origin: PinnedStore, objects: Iterable[PinnedObject]) -> Iterator[bytes]:
    """Yield the lines of the file."""
    head = {"references": _VERSION, "store": origin.store, "base": origin.base, "path": origin.path, "arguments": dict(origin.arguments)}
    yield json.dumps(head).encode() + b"\n"
    for key, generation, nbytes in objects:
        yield json.dumps({"key": key, "generation": generation, "nbytes": nbytes}).encode() + b"\n"


def decode_pins(data: bytes | memoryview) -> tuple[PinnedStore, dict[str, PinnedObject]]:
    """Return the origin of a set, and the objects by key.

    Raises:
        Corruption: it is no such file.
    """
    try:
        first, *lines = bytes(data).splitlines()
        head = json.loads(first)
        if head["references"] != _VERSION:
            raise Corruption(f"pins of version {head['references']!r} are not known here: 1 is")
        origin = PinnedStore(str(head["store"]), str(head["base"]), str(head["path"]), dict(head["arguments"]))
        objects = (json.loads(line) for line in lines)
        return origin, {one["key"]: PinnedObject(str(one["key"]), str(one["generation"]), int(one["nbytes"])) for one in objects}
    except (ValueError, KeyError, TypeError) as exc:
        raise Corruption(f"the pins of a set of references cannot be read: {exc!r}") from exc
