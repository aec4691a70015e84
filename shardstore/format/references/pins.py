"""The file next to a set of references that says what the references were made of: the store, how, and which version of each object.

::

    {"references": 1, "store": "s3://bucket/data.zarr", "base": "s3://bucket/data.zarr/", "set": {"nbytes": 912, "crc32c": "0a…"}, …}
    {"key": "ct/c/0/0", "generation": "\\"9b2c…\\"", "nbytes": 1048576}
    {"key": "ct/c/0/1", …}

A line per object, after the first one. Next to a set in JSON, ``refs.json``, it is ``refs.json.pins``; in one in Parquet it is ``.pins``.
While a set in JSON is replaced, the file has two such sections, one after the other: for the set that is there, and for the one that comes.
Which is the right one is shown by ``set``, size and checksum of the set's bytes. A section without a store is that of a set without pins.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

import google_crc32c

from shardstore.errors import Corruption

PINS_SUFFIX = ".pins"
_VERSION = 1
_SAFE = "/!$&'()*+,;=:@~"  # of a path, by RFC 3986


class PinnedObject(NamedTuple):
    """One version of an object: its key from the root of the store, its token and its size in bytes."""

    key: str
    generation: str
    nbytes: int
    stored: str = ""
    """The key that it is stored under, if that is another one: in a hierarchy of the 2022 draft."""


@dataclass(frozen=True, slots=True)
class SetDigest:
    """Size and checksum of the stored bytes of a set in JSON."""

    nbytes: int
    crc32c: int

    def extended(self, data: bytes | memoryview) -> SetDigest:
        """Return the digest of what this is one of, with ``data`` behind it."""
        return SetDigest(self.nbytes + len(data), google_crc32c.extend(self.crc32c, bytes(data)))


@dataclass(frozen=True, slots=True)
class PinnedStore:
    """The origin of a set's references."""

    store: str
    """The URL of the store's root."""
    base: str
    """The beginning of the URLs in the set, in front of the keys; empty if the set's URLs lead to other objects than the store's."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments that the set was written with, without defaults."""


UNPINNED = PinnedStore("", "")
"""The origin of a set that does not say what it was made of."""


def object_url(base: str, stored_key: str) -> str:
    """Return the URL of an object in a set: over HTTP names are percent-encoded, elsewhere they are unchanged."""
    return base + (quote(stored_key, safe=_SAFE) if base.startswith(("http://", "https://")) else stored_key)


class PinSection(NamedTuple):
    """The origin of one set, its digest if it is in JSON, and the objects by key."""

    origin: PinnedStore
    digest: SetDigest | None
    objects: dict[str, PinnedObject]


def encode_pins(origin: PinnedStore, digest: SetDigest | None, objects: Iterable[PinnedObject]) -> bytes:
    """Return one section of the file."""
    head = {
        "references": _VERSION,
        "store": origin.store,
        "base": origin.base,
        "arguments": dict(origin.arguments),
        "set": None if digest is None else {"nbytes": digest.nbytes, "crc32c": f"{digest.crc32c:08x}"},
    }
    lines = (
        json.dumps({"key": key, "generation": generation, "nbytes": nbytes} | ({"stored": stored} if stored else {}))
        for key, generation, nbytes, stored in objects
    )
    return "\n".join([json.dumps(head), *lines, ""]).encode()


def decode_pins(data: bytes | memoryview) -> list[PinSection]:
    """Return the sections of the file. Raises ``Corruption`` if it is no such file."""
    sections: list[PinSection] = []
    try:
        for line in bytes(data).splitlines():
            found = json.loads(line)
            if "references" in found:
                if found["references"] != _VERSION:
                    raise Corruption(f"pins of version {found['references']!r} are not known: {_VERSION} is")
                digest = None if found["set"] is None else SetDigest(int(found["set"]["nbytes"]), int(found["set"]["crc32c"], 16))
                origin = PinnedStore(str(found["store"]), str(found["base"]), dict(found["arguments"]))
                sections.append(PinSection(origin, digest, {}))
            else:
                one = PinnedObject(str(found["key"]), str(found["generation"]), int(found["nbytes"]), str(found.get("stored", "")))
                sections[-1].objects[one.key] = one
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as exc:
        raise Corruption(f"the pins of a set of references cannot be read: {exc!r}") from exc
    return sections


def section_of(data: bytes | memoryview, digest: SetDigest | None) -> PinSection | None:
    """Return the section that belongs to a set with this digest; ``None`` if there is none. Raises ``Corruption`` as ``decode_pins``."""
    return next((section for section in decode_pins(data) if section.digest == digest), None)
