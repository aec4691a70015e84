"""Find, open and write the place of a set: one file, or a directory. A set may not lie in its own source."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from shardstore._sync import run_sync
from shardstore.errors import Corruption, InvalidInput, NotFound
from shardstore.format.references.parquet import METADATA_NAME
from shardstore.format.references.pins import PINS_SUFFIX, UNPINNED, PinSection, SetDigest, section_of
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation
from shardstore.model.ranges import EVERYTHING
from shardstore.model.redaction import redacted
from shardstore.opening.address import Address, text_of
from shardstore.opening.location import location_of
from shardstore.opening.open import open_storage
from shardstore.storage.base import Found, Read, Storage, read_one

_MEMBERS = re.compile(rb'"(refs|gen|templates|([^"]*/)?(\.zgroup|\.zarray|\.zattrs|\.zmetadata|zarr\.json))"\s*:')
_PIECE = 4 * 2**20
UNPINNED_SECTION = PinSection(UNPINNED, None, {})
JSON_SUFFIXES = (".json", ".json.gz", ".json.zst")


@dataclass(frozen=True, slots=True)
class SetPlace:
    """The place of a set: one object of ``storage``, or, with an empty ``name``, everything in it."""

    storage: Storage
    name: str
    url: str
    has_options: bool = False
    """True if ``storage`` was opened with options."""

    @property
    def shown(self) -> str:
        """The URL for people, and for other programs: without credentials."""
        return redacted(self.url)

    @property
    def directory(self) -> str:
        """The URL of the directory that relative URLs in the set are relative to."""
        return self.url if not self.name else self.url.rpartition("/")[0]

    @property
    def pins_key(self) -> str:
        return self.name + PINS_SUFFIX

    @property
    def main_key(self) -> str:
        """The key of the object without which there is no set."""
        return self.name or METADATA_NAME

    async def keys(self) -> set[str]:
        """Return all keys of ``storage``."""
        return {info.key async for info in self.storage.list("")}


def open_set(target: Any, options: Mapping[str, Any] | None, *, is_directory: bool) -> SetPlace:
    """Return the place of a set. Its URL is absolute. Raises ``InvalidInput`` if ``target`` is no path or URL, or names no object."""
    if not isinstance(target, str | os.PathLike):
        raise InvalidInput(f"the place of a set of references is a path or a URL, not of type {type(target).__name__}")
    text = text_of(target)
    address = Address.parse(text)
    if not address.segments:
        raise InvalidInput(f"{redacted(text)!r} names no place for a set of references below it: give a name in it")
    if is_directory and address.segments[-1].endswith(JSON_SUFFIXES):
        raise InvalidInput(f"{redacted(text)!r} is the name of a set in JSON: give one in Parquet another name, since readers go by it")
    whole = address.at(len(address.segments))
    url = f"file://{whole}" if not address.protocol else whole
    if is_directory:
        return SetPlace(open_storage(whole, dict(options or {}) or None), "", url, bool(options))
    above = address.at(len(address.segments) - 1)
    return SetPlace(open_storage(above, dict(options or {}) or None), address.segments[-1], url, bool(options))


def find_set(target: Any, options: Mapping[str, Any] | None, *, or_pins: bool = False) -> SetPlace:
    """Return the place of a set that exists, or with ``or_pins``, of what is left of one in Parquet that was being replaced;
    ``reference::`` in front of it is left out.

    Raises:
        InvalidInput: ``target`` is no path or URL.
        NotFound: there is no set.
        StorageError: a request failed.
    """
    if isinstance(target, str):
        target = target.removeprefix("reference::")
    kinds = (False,) if os.fspath(target).endswith(JSON_SUFFIXES) else (True, False)
    places = [open_set(target, options, is_directory=is_directory) for is_directory in kinds]
    for place in places:
        if run_sync(place.storage.stat(place.main_key)) is not None:
            return place
    if or_pins and not places[0].name and run_sync(places[0].storage.stat(places[0].pins_key)) is not None:
        return places[0]
    raise NotFound(f"there is no set of references at {places[0].shown}: neither a file, nor a directory with {METADATA_NAME}")


def pins_of(place: SetPlace) -> PinSection:
    """Return what a set says it was made of.

    Raises:
        Corruption: that cannot be read, or is of another set.
        NotFound: it says nothing, as sets of other programs, and those written with ``pins=False`` or ``base_url``.
        StorageError: a request failed.
    """
    data = run_sync(read_object(place.storage, place.pins_key))
    try:
        digest = None
        if data is not None and place.name:
            digest = SetDigest(0, 0).extended(run_sync(read_object(place.storage, place.main_key)) or b"")
        found = UNPINNED_SECTION if data is None else section_of(data, digest)
    except Corruption as exc:
        raise Corruption(f"{place.pins_key!r} next to the set {place.shown}: {exc}. Write the set again") from exc
    if found is None:
        raise Corruption(f"{place.pins_key!r} next to the set {place.shown} is of another set: write the set again")
    if not found.origin.store:
        raise NotFound(
            f"the set {place.shown} does not say which versions it was made of: there is no {place.pins_key!r} next to it. Write it again "
            "with pins, which are the default, and without base_url; of a set that was made of other sets, write these again first"
        )
    return found


def options_for(source: Any, target: Any, options: Mapping[str, Any] | None, given: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the options of the set's storage: those of the source's, if none are given and both have one protocol."""
    if given is None and options and isinstance(source, str) and isinstance(target, str):
        return options if Address.parse(source).protocol == Address.parse(target).protocol else None
    return given


def options_of_set(target: Any, options: Mapping[str, Any] | None, given: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the options of the filesystem of a set that exists: those of the store, if none are given and the set is not a local one."""
    if given is not None or not isinstance(target, str):
        return given
    return None if Address.parse(target.removeprefix("reference::")).is_absolute else options


def check_apart(source: Storage, place: SetPlace) -> None:
    """Raise ``InvalidInput`` if the set would lie in its source, or the source in the set."""
    if location_of(source).overlaps(location_of(place.storage, place.name)):
        raise InvalidInput(
            f"the source {redacted(source.url)} and the set {place.shown} overlap: a set has to lie outside of what it refers to"
        )


def begins_like_set(head: bytes, name: str) -> bool:
    """Return whether a file of this name that begins so can be a set in JSON."""
    if name.endswith(".gz"):
        return head.startswith(b"\x1f\x8b")
    if name.endswith(".zst"):
        return head.startswith(b"\x28\xb5\x2f\xfd")
    return head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{") and _MEMBERS.search(head) is not None


async def read_object(storage: Storage, key: str) -> bytes | None:
    """Return an object, ``None`` if there is none. Raises ``StorageError`` if the request failed."""
    outcome = await read_one(storage, Read(key, (EVERYTHING,)))
    return bytes(outcome.buffers[0]) if isinstance(outcome, Found) else None


async def write_file(storage: Storage, key: str, file: IO[bytes], nbytes: int, condition: Condition = UNCONDITIONAL) -> None:
    """Store the content of an open file as one object."""

    async def pieces() -> AsyncIterator[bytes]:
        file.seek(0)
        while piece := await asyncio.to_thread(file.read, _PIECE):
            yield piece

    await storage.write(key, pieces(), nbytes, condition)


async def write_bytes(storage: Storage, key: str, data: bytes, condition: Condition = UNCONDITIONAL) -> Generation:
    """Store one object, and return its version."""
    return await storage.write(key, [data], len(data), condition)
