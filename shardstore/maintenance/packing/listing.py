"""List a hierarchy once: its documents, and its objects by array, as numbers of 24 bytes per object, whatever their keys.

Zarr v3, the 2022 draft and Zarr v2 are distinguished by their documents; a hierarchy of the draft appears as final Zarr v3
(``DraftStorage``). A key is a chunk's, or a shard's, only if an array's document says so, so documents are read as soon as they are
needed. In Zarr v3 the key of a chunk shows where its array would be; in Zarr v2 the document is listed before the chunks, as ``.``
comes before digits. Keys that still come before their documents wait until the end.
"""

from __future__ import annotations

import re
from array import array as numbers
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption, InvalidInput, ShardStoreError
from shardstore.format.append_record import record_place
from shardstore.format.chunk_keys import ChunkKeyEncoding
from shardstore.format.json_text import JsonObject, loads_object
from shardstore.format.metadata_v3 import METADATA_NAME, encoded_chunk_nbytes, is_array, is_group, parse_layout, parse_plain
from shardstore.format.object_layout import ObjectLayout
from shardstore.format.presentation import present_array
from shardstore.format.store_keys import ancestors, groups_above, join, metadata_key, metadata_path
from shardstore.format.v2.documents import array_from_v2, group_from_v2
from shardstore.format.v2.kept import Kept, with_attributes
from shardstore.format.v2.keys import ARRAY_NAME, ATTRIBUTES_NAME, CONSOLIDATED_NAME, DOCUMENT_NAMES, GROUP_NAME
from shardstore.maintenance.execution import pages
from shardstore.model.containers import batched
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import UNKNOWN_NBYTES, Absent, Found, LeadsNowhere, ObjectInfo, Read, Storage, in_its_place, unless_failed
from shardstore.tasks import gather_all

_MOST_OBJECTS = 2**62  # so that numbers of objects fit into int64


def version_digest(generation: Generation | None) -> int:
    """Return ``Generation.digest`` of a version; 0 if the storage's listing gives none."""
    return 0 if generation is None else generation.digest


ROW = np.dtype([("number", "<i8"), ("nbytes", "<i8"), ("version", "<u8")])
"""One object: its number, its size in bytes, and ``version_digest``."""

Rows = npt.NDArray[np.void]
"""Rows of a table: ``(n,)`` of ``ROW``."""


class ObjectTable:
    """A table of objects that are being listed."""

    __slots__ = ("_nbytes", "_numbers", "_versions")

    def __init__(self) -> None:
        self._numbers = numbers("q")
        self._nbytes = numbers("q")
        self._versions = numbers("Q")

    def add(self, number: int, nbytes: int, version: int) -> None:
        self._numbers.append(number)
        self._nbytes.append(nbytes)
        self._versions.append(version)

    def __len__(self) -> int:
        return len(self._numbers)

    def rows(self) -> Rows:
        """Return all objects by number; the last one counts if one was listed twice."""
        rows = np.empty(len(self), dtype=ROW)
        for name, column in (("number", self._numbers), ("nbytes", self._nbytes), ("version", self._versions)):
            rows[name] = column
        rows = rows[np.argsort(rows["number"], kind="stable")]
        if len(rows) > 1:
            is_last = np.append(rows["number"][1:] != rows["number"][:-1], True)
            rows = rows[is_last]
        return rows


# -- the source ---------------------------------------------------------------------------------------------------------


T = TypeVar("T")

_MOST_DIRECTORIES = 100_000  # whose meaning is remembered
_SIZES_AT_ONCE = 256
_DOCUMENT_NAMES = frozenset((METADATA_NAME, *DOCUMENT_NAMES))
_MOST_WAITING = 1_000_000  # keys that nothing is known of yet

# The key of a chunk in the default encoding of Zarr v3: the path of its array, and the coordinates.
_DEFAULT_KEY = re.compile(r"(?:(.*)/)?c(?:(?:/[0-9]+)*|(?:\.[0-9]+)+)", re.DOTALL)

_SizedKey: TypeAlias = tuple[str, int, int]
"""Key, size and version of an object, as ``SizedObject`` has them."""

_V2_KEY = re.compile(r"(?:.*/)?[0-9]+(?:\.[0-9]+)*", re.DOTALL)


@dataclass(slots=True)
class SourceArray:
    """An array that can be moved chunk by chunk."""

    path: str
    document: JsonObject
    """The presented document, as Zarr v3: its chunks are moved."""
    stored: JsonObject
    """The stored document, as Zarr v3: sharded, or the same."""
    layout: ObjectLayout
    table: ObjectTable = field(default_factory=ObjectTable)
    outside: int = 0
    """The number of objects outside of the array's grid."""
    encoded_chunk_nbytes: int | None = None
    """The size of every chunk, where the codecs give all of them the same."""


class SizedObject(NamedTuple):
    """A stored object. ``version`` is ``version_digest``, 0 if the storage gave none."""

    key: str
    nbytes: int
    version: int


@dataclass(slots=True)
class SourceNodes:
    """The nodes and objects that one listing has found."""

    arrays: dict[str, SourceArray] = field(default_factory=dict)
    passed: dict[str, tuple[JsonObject, str]] = field(default_factory=dict)
    """Arrays whose chunks cannot be identified, with the reason: their objects are among the other ones."""
    groups: dict[str, JsonObject] = field(default_factory=dict)
    """The documents of groups, as Zarr v3; of Zarr v2 with ``.zattrs``."""
    consolidated_v2: dict[str, JsonObject] = field(default_factory=dict)
    """The ``.zmetadata`` of groups."""
    refused: dict[str, str] = field(default_factory=dict)
    """Nodes whose documents cannot be expressed, or read, with the reason."""
    others: list[SizedObject] = field(default_factory=list)
    """The objects that are neither documents nor part of a known array."""
    unreachable: list[str] = field(default_factory=list)
    """The keys of objects that are listed and cannot be found: references, or links, to something that is not there."""
    objects: int = 0
    nbytes: int = 0
    documents: int = 0

    def has_key(self, key: str) -> bool:
        """Return whether ``key`` is that of a document, or of an object of a known array."""
        if key.rpartition("/")[2] in _DOCUMENT_NAMES:
            return True
        return any(path in self.arrays and self.arrays[path].layout.has_key(rest) for path, rest in ancestors(key))


async def list_source(storage: Storage, progress: Callable[[int], None] | None = None, *, most_waiting: int = _MOST_WAITING) -> SourceNodes:
    """List everything in ``storage``, once, and read its documents. ``progress`` is called with the number of objects seen.

    Raises:
        InvalidInput: an array has more objects than can be numbered, or too many objects belong to no array.
        StorageError: a request failed.
    """
    listing = _Listing(storage, most_waiting)
    async for page in pages(storage, ""):
        await listing.take(page)
        if progress is not None:
            progress(listing.nodes.objects)
    await listing.settle()
    if progress is not None:
        progress(listing.nodes.objects)
    return listing.nodes


class _Listing:
    """The state of one listing."""

    def __init__(self, storage: Storage, most_waiting: int) -> None:
        self.nodes = SourceNodes()
        self._most_waiting = most_waiting
        self._storage = storage
        self._may_be_dual = storage.kind == "references"
        """True if nodes may be described in Zarr v2 and in v3, alike: then that of v3 counts."""
        self._looked_for: set[str] = set()  # keys of documents that have been read, or found absent
        self._v2: dict[str, dict[str, JsonObject]] = {}  # by path and name
        self._v3: set[str] = set()  # paths
        self._directories: dict[str, tuple[SourceArray, int | None] | None] = {}
        self._waiting: defaultdict[str, list[_SizedKey]] = defaultdict(list)  # by directory
        self._n_waiting = 0
        self._of_unknown_size: list[tuple[SourceArray, int]] = []

    # -- a page --------------------------------------------------------------------------------------------------------

    async def take(self, page: list[ObjectInfo]) -> None:
        """Count the objects of a page for their arrays; keys whose arrays are not known yet wait."""
        documents, objects, directories = self._sorted(page)
        if self._may_be_dual:  # before any chunk is counted for the other description
            documents += [metadata_key(key.rpartition("/")[0]) for key in documents]
        matches = (match for key in directories.values() if (match := _DEFAULT_KEY.fullmatch(key)) is not None)
        await self._read(dict.fromkeys((*documents, *(metadata_key(match[1] or "") for match in matches))))
        unknown = self._assign(objects)
        if unknown and await self._look_above(key for of_directory in unknown.values() for key, _, _ in of_directory):
            unknown = self._assign(unknown)
        for directory, of_directory in unknown.items():
            self._waiting[directory] += of_directory
            self._n_waiting += len(of_directory)
        if self._n_waiting > self._most_waiting:
            raise InvalidInput(
                f"{of_directory[-1][0]!r} in {self._storage.url}, and {self._most_waiting:,} objects before it, belong to no array whose "
                "document had been listed by then: name the node that is to be packed"
            )

    def _sorted(self, page: list[ObjectInfo]) -> tuple[list[str], Mapping[str, list[_SizedKey]], Mapping[str, str]]:
        """Return the keys of documents, all other objects by directory, and a key of each directory that is new."""
        documents: list[str] = []
        objects: defaultdict[str, list[_SizedKey]] = defaultdict(list)
        directories: dict[str, str] = {}
        self.nodes.objects += len(page)
        self.nodes.nbytes += sum(info.nbytes for info in page if info.nbytes != UNKNOWN_NBYTES)
        for key, nbytes, generation in page:
            directory, _, name = key.rpartition("/")
            if name in _DOCUMENT_NAMES:
                self.nodes.documents += 1
                documents.append(key)
            else:
                objects[directory].append((key, nbytes, version_digest(generation)))
                if directory not in self._directories:
                    directories.setdefault(directory, key)
                    if "." in name:
                        directories[key] = key
        return documents, objects, directories

    async def _look_above(self, keys: Iterable[str]) -> bool:
        """Look for arrays of Zarr v3 with chunk names as in Zarr v2, which are listed before their documents; return whether that may have
        found any.
        """
        sought: dict[str, None] = {}
        for key in keys:
            match = _V2_KEY.fullmatch(key)
            while match is not None and key:
                key = key.rpartition("/")[0]
                sought[metadata_key(key)] = None
                if not key.rpartition("/")[2].isdecimal():
                    break
        new = [key for key in sought if key not in self._looked_for]
        await self._read(new)
        return bool(new)

    async def settle(self) -> None:
        """End the listing: waiting keys belong to arrays that are known by now, or to no array."""
        self._settle_groups()
        self._directories.clear()
        for others in self._assign(self._waiting).values():
            self.nodes.others += [SizedObject(*found) for found in others if not self._is_record(found[0])]
        self._waiting.clear()
        for array in self.nodes.arrays.values():
            if prod(grid := array.layout.object_grid) >= _MOST_OBJECTS:
                raise InvalidInput(f"array {array.path!r} has a grid of {grid} objects, which is too large to be packed")
        for (array, number), info in await self._looked_up(
            [(join(array.path, array.layout.keys(np.array([number]))[0]), (array, number)) for array, number in self._of_unknown_size]
        ):
            array.table.add(number, info.nbytes, version_digest(info.generation))  # the last listed one counts
        unknown = {found.key for found in self.nodes.others if found.nbytes == UNKNOWN_NBYTES}
        if unknown:
            known = [found for found in self.nodes.others if found.key not in unknown]
            looked_up = await self._looked_up([(key, key) for key in sorted(unknown)])
            self.nodes.others = known + [SizedObject(key, info.nbytes, version_digest(info.generation)) for key, info in looked_up]

    async def _looked_up(self, objects: list[tuple[str, T]]) -> list[tuple[T, ObjectInfo]]:
        """Look up objects, by key, whose sizes the listing did not give; return each that is there with what comes with its key."""
        there: list[tuple[T, ObjectInfo]] = []
        for some in batched(objects, _SIZES_AT_ONCE):
            for (key, given), info in zip(some, await gather_all(*(self._reachable(key) for key, _ in some)), strict=True):
                if info is None:
                    self.nodes.unreachable.append(key)
                else:
                    there.append((given, info))
                    self.nodes.nbytes += info.nbytes
        return there

    async def _reachable(self, key: str) -> ObjectInfo | None:
        try:
            return await self._storage.stat(key)
        except LeadsNowhere:
            return None

    # -- whose an object is --------------------------------------------------------------------------------------------

    def _assign(self, objects: Mapping[str, list[_SizedKey]]) -> dict[str, list[_SizedKey]]:
        """Count objects, by directory, for their arrays; return those that belong to no known array."""
        unknown: dict[str, list[_SizedKey]] = {}
        for directory, of_directory in objects.items():
            if directory not in self._directories:
                if len(self._directories) >= _MOST_DIRECTORIES:
                    self._directories.clear()
                self._directories[directory] = self._meaning(directory)
            meaning = self._directories[directory]
            others = of_directory if meaning is None else self._count(*meaning, len(directory) + 1 if directory else 0, of_directory)
            if others:
                unknown[directory] = others
        return unknown

    def _is_record(self, key: str) -> bool:
        """Return whether the object is the record of appends to an array: its reservations are of programs that append to the source."""
        if (place := record_place(key)) is None:
            return False
        path, dim = place
        array = self.nodes.arrays.get(path)
        document = self.nodes.passed.get(path, ({}, ""))[0] if array is None else array.stored
        return dim in (document.get("dimension_names") or ())

    def _count(self, array: SourceArray, base: int | None, start: int, objects: list[_SizedKey]) -> list[_SizedKey]:
        """Count the objects of a directory for ``array``; return those that do not belong to it. The names in their keys begin at
        ``start``.
        """
        layout = array.layout
        others: list[_SizedKey] = []
        add = array.table.add
        for found in objects:
            key, nbytes, version = found
            name = key[start:]
            number: int | None
            if base is None:
                coords = layout.key_encoding.decode(name, layout.ndim)
                if coords is None:
                    others.append(found)
                    continue
                number = layout.number_of(coords)
            elif not (name.isascii() and name.isdecimal()) or (name[0] == "0" and len(name) > 1):
                others.append(found)
                continue
            else:
                last = int(name)
                number = base + last if base >= 0 and last < layout.object_grid[-1] else None
            if number is None:
                array.outside += 1
            else:
                add(number, nbytes, version)
                if nbytes == UNKNOWN_NBYTES:
                    self._of_unknown_size.append((array, number))
        return others

    def _meaning(self, directory: str) -> tuple[SourceArray, int | None] | None:
        """Return the array of the objects in a directory. A number comes with it where the name of each object is its last coordinate: the
        number of the first object, or -1 where all are outside of the grid. Without a number the name holds all coordinates.
        """
        path, inside = directory, ""
        while True:
            array = self.nodes.arrays.get(path)
            if array is not None:
                layout = array.layout
                if not inside:
                    return array, None
                coords = layout.key_encoding.decode(f"{inside}/0", layout.ndim)
                if coords is not None and layout.ndim:
                    first = layout.number_of(coords)
                    return array, -1 if first is None else first
            if not path:
                return None
            path, _, last = path.rpartition("/")
            inside = f"{last}/{inside}" if inside else last

    # -- documents -----------------------------------------------------------------------------------------------------

    async def _read(self, keys: Iterable[str]) -> None:
        wanted = [key for key in keys if key not in self._looked_for]
        if not wanted:
            return
        self._looked_for.update(wanted)
        outcomes = await self._storage.read([Read(key, (EVERYTHING,)) for key in wanted])
        for key, outcome in zip(wanted, outcomes, strict=True):
            outcome = unless_failed(outcome)
            if isinstance(outcome, Absent) and outcome.is_directory:
                raise in_its_place(key, "a directory")
            if isinstance(outcome, Found):
                self._take_document(key, bytes(outcome.buffers[0]))

    def _take_document(self, key: str, data: bytes) -> None:
        path, _, name = key.rpartition("/")
        try:
            document = loads_object(data)
        except Corruption as exc:
            self.nodes.refused[path] = f"{key!r}: {exc}"
            return
        self._directories.clear()
        if metadata_path(key) is not None:
            self._take_v3(path, document)
            return
        if self._may_be_dual and path in self._v3:
            return
        self._v2.setdefault(path, {})[name] = document
        if name == CONSOLIDATED_NAME:
            self.nodes.consolidated_v2[path] = document
        elif name == ARRAY_NAME or (name == ATTRIBUTES_NAME and ARRAY_NAME in self._v2[path]):
            self._take_v2_array(path)

    def _take_v3(self, path: str, stored: JsonObject) -> None:
        self._v3.add(path)
        if self._may_be_dual:
            for known in (self._v2, self.nodes.arrays, self.nodes.refused, self.nodes.consolidated_v2):
                known.pop(path, None)
        if is_group(stored):
            self.nodes.groups[path] = stored
            return
        if not is_array(stored):
            self.nodes.refused[path] = f"{metadata_key(path)!r} is the document of neither an array nor a group"
            return
        sharded = parse_layout(stored)
        if not isinstance(sharded, str):
            layout = ObjectLayout.of(sharded)
            presented = present_array(stored)
            self.nodes.arrays[path] = SourceArray(path, presented, stored, layout, encoded_chunk_nbytes=sharded.encoded_chunk_nbytes)
            return
        plain = parse_plain(stored)
        if isinstance(plain, str) or sharded != "it is not sharded":
            self.nodes.passed[path] = stored, plain if isinstance(plain, str) else sharded
            return
        nbytes = encoded_chunk_nbytes(plain.chunk_shape, stored.get("data_type"), stored.get("codecs"))
        self.nodes.arrays[path] = SourceArray(path, stored, stored, ObjectLayout.of(plain), encoded_chunk_nbytes=nbytes)

    def _take_v2_array(self, path: str) -> None:
        documents = self._v2[path]
        known = self.nodes.arrays.get(path)
        try:
            document = array_from_v2(documents[ARRAY_NAME], documents.get(ATTRIBUTES_NAME))
        except ShardStoreError as exc:
            self.nodes.refused[path] = str(exc)
            return
        if known is not None:
            known.document = known.stored = document
            return
        plain = parse_plain(document)
        assert not isinstance(plain, str)  # array_from_v2 writes no other
        layout = replace(ObjectLayout.of(plain), key_encoding=ChunkKeyEncoding("v2", plain.key_encoding.separator))
        nbytes = encoded_chunk_nbytes(plain.chunk_shape, document["data_type"], document["codecs"])
        self.nodes.arrays[path] = SourceArray(path, document, document, layout, encoded_chunk_nbytes=nbytes)

    def _settle_groups(self) -> None:
        """Add the groups of Zarr v2, and the groups above its nodes that have no document: zarr-python 3 needs them to find its way."""
        for path, documents in self._v2.items():
            if path in self._v3:
                self.nodes.refused[path] = "it has documents of both Zarr v2 and v3: remove those that do not count"
            elif GROUP_NAME in documents and ARRAY_NAME in documents:
                self.nodes.refused[path] = f"it has both {GROUP_NAME} and {ARRAY_NAME}: remove the one that does not count"
            elif GROUP_NAME in documents:
                try:
                    self.nodes.groups[path] = group_from_v2(documents[GROUP_NAME], documents.get(ATTRIBUTES_NAME))
                except ShardStoreError as exc:
                    self.nodes.refused[path] = str(exc)
        for path in [path for path, documents in self._v2.items() if {ARRAY_NAME, GROUP_NAME} & set(documents)]:
            for above in groups_above(path):
                if not any(above in known for known in (self.nodes.groups, self.nodes.refused, self.nodes.arrays, self.nodes.passed)):
                    self.nodes.groups[above] = with_attributes({"zarr_format": 3, "node_type": "group"}, None, Kept(implicit=True))
