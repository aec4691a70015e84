"""Reads and writes the files of one versioned store. None is ever changed, so whatever was read once is kept as long as there is room."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption, StorageError, WriteOutcomeUnknown
from shardstore.format.snapshots.file_names import (
    ATTRIBUTES,
    ID_NBYTES,
    MANIFESTS,
    STRUCTURES,
    RandomBytes,
    encode_id,
    generation_of_garbage_list,
    generation_of_state,
)
from shardstore.format.snapshots.manifest import ChunkRefs, CoordSearch, in_a_row
from shardstore.format.snapshots.manifest_groups import (
    ManifestGroups,
    chunk_ids,
    decode_rows,
    footer_range,
    manifest_rows,
    missing_footer_nbytes,
    virtual_files,
)
from shardstore.format.snapshots.state import State, decode_state
from shardstore.format.snapshots.structure import MOST_NARROW, ManifestFile, Structure, decode_attributes, decode_structure
from shardstore.model.containers import Lru
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteRequest, BytesLike
from shardstore.storage.base import Changed, ConditionFailed, Found, Read, Storage, read_one
from shardstore.storage.wrappers import CheckedStorage

if TYPE_CHECKING:  # an extra
    import pyarrow as pa

T = TypeVar("T")

MANIFEST_CACHE_BYTES = 256 << 20
"""The bound on decoded manifests, and parts of them, that are kept."""

MANIFEST_ROWS = 1 << 20
COLUMN_NBYTES = 1 << 30
"""Arrow's columns of bytes and of text have less than 2 GiB."""

WHOLE_NBYTES = 1 << 20
"""A manifest up to this length is read whole, by one request."""

_NODES_KEPT = 1 << 15
"""In all structures that are kept; a rebase needs those of all commits since the session began."""
_STRUCTURE_SIZE = 10
"""The size of a structure without its nodes, counted in nodes."""
_ATTRIBUTES_KEPT = 8
_STATES_KEPT = 4


class MissingFile(Corruption):
    """A file that a snapshot, or a collection, needs is not there: it was removed, or the state that names it has been replaced."""


class KnownRefs:
    """References of one array that have been decoded, to be searched."""

    def __init__(self, refs: ChunkRefs) -> None:
        self.refs = refs
        self._search: CoordSearch | None = None

    @property
    def nbytes(self) -> int:
        """About the memory that they take."""
        refs = self.refs
        inline = sum(map(len, refs.inline.values())) + 100 * len(refs.inline)
        return (
            refs.coords.nbytes + refs.file.nbytes + refs.offset.nbytes + refs.nbytes.nbytes + 8 * len(refs) + inline + 60 * len(refs.files)
        )

    def find(self, coords: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
        """Return the row of each of ``(n, ndim)`` chunks; -1 where it is not there."""
        if self._search is None:
            self._search = CoordSearch(self.refs.coords)
        return self._search.find(coords)


class StoreFiles:
    """The files below the root of one store."""

    def __init__(self, storage: Storage, random: RandomBytes = secrets.token_bytes, cache_bytes: int = MANIFEST_CACHE_BYTES) -> None:
        self.storage: Storage = CheckedStorage(storage)
        self.given = storage
        """The storage itself, which threads may read."""
        self.random = random
        self.manifest_rows = MANIFEST_ROWS
        """References in one manifest at most."""
        self.column_nbytes = COLUMN_NBYTES
        """Bytes of the values in one column of a manifest at most, about."""
        self.draft_row = MOST_NARROW
        """The last row of a manifest at which the references of an array begin, and of a file of attributes, by the draft's schema."""
        self._states: Lru[str, State] = Lru(_STATES_KEPT)
        self._structures: Lru[str, Structure] = _cache(_NODES_KEPT, lambda one: _STRUCTURE_SIZE + len(one.nodes))
        self._attributes: Lru[str, list[bytes]] = Lru(_ATTRIBUTES_KEPT)
        self._footers: Lru[str, ManifestGroups] = _cache(cache_bytes // 8, lambda groups: groups.nbytes)
        self._rows: Lru[str, pa.Table] = _cache(cache_bytes // 8, lambda rows: rows.nbytes)
        self._refs: Lru[tuple[object, ...], Mapping[int, KnownRefs]] = _cache(cache_bytes, _nbytes_of_refs)
        self._on_their_way: dict[object, asyncio.Task[Any]] = {}

    @property
    def url(self) -> str:
        return self.storage.url

    def new_id(self) -> bytes:
        """Return a new id: that of a file, a snapshot."""
        return self.random(ID_NBYTES)

    def new_name(self) -> str:
        return encode_id(self.new_id())

    # -- reading -------------------------------------------------------------------------------------------------------

    async def state(self, location: str, store_id: str) -> State:
        """Return the state in a file. Raises ``Corruption``: there is none, or it is that of another store (D2)."""
        state = self._states.get(location)
        if state is None:
            state = self._states.put(location, await self._content(location, decode_state))
        if state.id != store_id:
            raise Corruption(
                f"{location!r} in {self.url} is a state of the store {state.id}, and the catalog says that this is {store_id}: "
                "another store was put in its place, or its catalog was copied"
            )
        return state

    async def structure(self, name: str) -> Structure:
        """Return the structure of a snapshot. Raises ``Corruption`` if the file is missing or damaged."""
        key = STRUCTURES + name
        return await self._kept(self._structures, name, key, lambda: self._content(key, decode_structure))

    async def attributes(self, name: str, row: int) -> bytes:
        """Return the attributes in a row of a file of attributes. Raises ``Corruption`` if there is none."""
        key = ATTRIBUTES + name
        rows = await self._kept(self._attributes, name, key, lambda: self._content(key, decode_attributes))
        if row >= len(rows):
            raise Corruption(f"{ATTRIBUTES}{name} in {self.url} has {len(rows)} rows, and a node has its attributes in row {row}")
        return rows[row]

    async def find(
        self, file: ManifestFile, array: int, coords: npt.NDArray[np.uint64]
    ) -> Sequence[tuple[KnownRefs, npt.NDArray[np.intp], npt.NDArray[np.intp]]]:
        """Return where a manifest has some of ``(n, ndim)`` chunks: references, the numbers of chunks, and the row of each.

        Reads the whole manifest if it is small, else its footer and the groups in question, by two rounds of requests at most, of which
        nothing is read that is known.
        """
        ndims = {array: coords.shape[1]}
        if file.nbytes <= WHOLE_NBYTES:
            known = await self._all(file, ndims)
            return [] if array not in known else _found(known[array], np.arange(len(coords)), coords)
        groups = (await self._groups(file)).with_chunks(array, coords)
        decoded = await self.decoded(file, list(groups), ndims)
        found: list[tuple[KnownRefs, npt.NDArray[np.intp], npt.NDArray[np.intp]]] = []
        for number, known in zip(groups, decoded, strict=True):
            if array in known:
                found += _found(known[array], groups[number], coords)
        return found

    async def refs_of(self, file: ManifestFile, array: int, ndim: int) -> ChunkRefs:
        """Return all references that a manifest has of an array."""
        if file.nbytes <= WHOLE_NBYTES:
            known = [await self._all(file, {array: ndim})]
        else:
            groups = await self._groups(file)
            known = await self.decoded(file, groups.numbers_for(array), {array: ndim})
        return in_a_row([one[array].refs for one in known if array in one], ndim)

    async def chunk_ids_of(self, file: ManifestFile) -> list[bytes]:
        """Return the ids of the chunk files to which a manifest refers, each once. Reads the whole manifest, and keeps nothing of it."""
        return chunk_ids(await self.whole(MANIFESTS + file.name), file)

    async def virtual_files_of(self, file: ManifestFile) -> set[tuple[str, str | None]]:
        """Return the virtual files to which a manifest refers, with their ETags, as ``chunk_ids_of`` does."""
        return virtual_files(await self.whole(MANIFESTS + file.name), file)

    async def _all(self, file: ManifestFile, ndims: Mapping[int, int]) -> Mapping[int, KnownRefs]:
        """Return all references of a small manifest; kept by array, since the rank of other arrays is not known here."""
        (array,) = ndims
        if (known := self._refs.get((file.name, array))) is not None:
            return known
        rows = await self._kept(self._rows, file.name, MANIFESTS + file.name, lambda: self._read_rows(file))
        known = self._refs.get((file.name, array))  # another reader may have decoded them since
        return self._keep((file.name, array), decode_rows(rows, file, ndims)) if known is None else known

    async def _read_rows(self, file: ManifestFile) -> pa.Table:
        return manifest_rows(await self.whole(MANIFESTS + file.name), file)

    async def _groups(self, file: ManifestFile) -> ManifestGroups:
        return await self._kept(self._footers, file.name, MANIFESTS + file.name, lambda: self._read_groups(file))

    async def _read_groups(self, file: ManifestFile) -> ManifestGroups:
        key, first = MANIFESTS + file.name, footer_range(file)
        (end,) = await self._ranges(key, [first])
        if missing := missing_footer_nbytes(end):
            (before,) = await self._ranges(key, [ByteRange(max(0, first.start - missing), first.start)])
            end = memoryview(bytes(before) + bytes(end))
        return ManifestGroups.decode(file, end)

    async def decoded(self, file: ManifestFile, numbers: Sequence[int], ndims: Mapping[int, int]) -> list[Mapping[int, KnownRefs]]:
        """Return the references of groups of a manifest, all that are not known by one round of requests."""
        groups = await self._groups(file)
        (array,) = ndims
        known = {number: self._refs.get((file.name, number, array)) for number in numbers}
        missing = [number for number in numbers if known[number] is None]
        if missing:
            buffers = await self._ranges(MANIFESTS + file.name, [groups.ranges[number] for number in missing])
            for number, data in zip(missing, buffers, strict=True):
                found = self._refs.get((file.name, number, array))  # another reader may have read it since
                known[number] = found or self._keep((file.name, number, array), groups.decode_group(number, data, ndims))
        return [one for number in numbers if (one := known[number]) is not None]

    def _keep(self, key: tuple[object, ...], refs: Mapping[int, ChunkRefs]) -> Mapping[int, KnownRefs]:
        return self._refs.put(key, {array: KnownRefs(one) for array, one in refs.items()})

    async def _kept(self, cache: Lru[str, T], name: str, key: str, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return a value from a cache, or else what ``read`` returns, which is kept there.

        ``key`` is that of the file: concurrent calls for it get the same value, and only the first reads.
        """
        if (known := cache.get(name)) is not None:
            return known
        mine = key, os.getpid()  # in a forked child the loop of a reading does not run
        reading: asyncio.Task[T] | None = self._on_their_way.get(mine)
        if reading is None:

            async def fill() -> T:
                return cache.put(name, await read())

            reading = self._on_their_way[mine] = asyncio.ensure_future(fill())
            reading.add_done_callback(lambda done: self._arrived(mine, done))
        return await asyncio.shield(reading)  # a caller that is cancelled takes it from no other

    def _arrived(self, key: object, reading: asyncio.Task[Any]) -> None:
        del self._on_their_way[key]
        if not reading.cancelled():
            reading.exception()  # looked at, though all callers may be gone

    async def _content(self, key: str, decode: Callable[[memoryview], T]) -> T:
        return self.content_of(key, decode, await self.whole(key))

    def content_of(self, key: str, decode: Callable[[memoryview], T], data: memoryview) -> T:
        """Return what a file holds. Raises ``Corruption``, with its key, if ``decode`` does."""
        try:
            return decode(data)
        except Corruption as exc:
            raise Corruption(f"{key!r} in {self.url} is damaged: {exc}. Restore the file") from exc

    async def whole(self, key: str) -> memoryview:
        """Return the bytes of a file. Raises ``MissingFile`` if it is missing."""
        (data,) = await self._ranges(key, [EVERYTHING])
        return data

    async def _ranges(self, key: str, ranges: Sequence[ByteRequest]) -> Sequence[memoryview]:
        outcome = await read_one(self.storage, Read(key, tuple(ranges)))
        if isinstance(outcome, Found):
            for wanted, got in zip(ranges, outcome.buffers, strict=True):
                if isinstance(wanted, ByteRange) and len(got) != wanted.end - wanted.start:
                    raise Corruption(
                        f"{key!r} in {self.url} has {outcome.nbytes} bytes, and should have {wanted.end} at least: it is cut off"
                    )
            return outcome.buffers
        if isinstance(outcome, Changed):
            raise Corruption(f"{key!r} in {self.url} was changed while it was read, which no file of a versioned store ever is")
        if generation_of_state(key) is not None:
            raise MissingFile(f"the state file {key!r} is not in {self.url}: the store is elsewhere than its catalog says, or was removed")
        what = "a snapshot" if generation_of_garbage_list(key) is None else "the next garbage collection"
        raise MissingFile(f"{key!r} is not in {self.url}, though {what} needs it: it was removed; restore the file")

    # -- writing -------------------------------------------------------------------------------------------------------

    async def write(self, key: str, data: Sequence[BytesLike]) -> None:
        """Store a new file under a new random name. Raises ``StorageError``: it may be stored or not. Nothing refers to it, so that makes
        no difference.
        """
        nbytes = sum(map(len, data))
        condition = IF_ABSENT if self.storage.capabilities.create_if_absent else UNCONDITIONAL
        try:
            await self.storage.write(key, data, nbytes, condition)
        except ConditionFailed as exc:
            raise Corruption(f"{key!r} is in {self.url} already, though its name is random: look at the source of random numbers") from exc
        except WriteOutcomeUnknown as exc:
            raise StorageError(f"{exc}. Nothing refers to that file: nothing was committed, so try again") from exc

    def keep_state(self, location: str, state: State) -> None:
        self._states.put(location, state)

    def keep_refs(self, file: ManifestFile, arrays: Mapping[int, ChunkRefs]) -> None:
        """Keep the references that a manifest has which this process writes, if it is small."""
        if file.nbytes <= WHOLE_NBYTES:
            for array, refs in arrays.items():
                self._keep((file.name, array), {array: refs})

    def keep_structure(self, name: str, structure: Structure) -> None:
        self._structures.put(name, structure)


def _cache(limit: int, size: Callable[[T], int]) -> Lru[Any, T]:
    """Return a cache that keeps even a value larger than the limit until another one is put: it is needed again in the next step."""
    most = max(1, limit)  # with 0, no value would count
    return Lru(most, lambda value: min(most, size(value)))


def _nbytes_of_refs(arrays: Mapping[int, KnownRefs]) -> int:
    return 200 + sum(refs.nbytes for refs in arrays.values())


def _found(known: KnownRefs, numbers: npt.NDArray[np.intp], coords: npt.NDArray[np.uint64]) -> list[Any]:
    rows = known.find(coords[numbers])
    is_there = rows >= 0
    return [(known, numbers[is_there], rows[is_there])] if is_there.any() else []
