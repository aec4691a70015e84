"""A session as a storage: its keys are those of final Zarr v3, one object a chunk. So everything that works on storages works on sessions.

What is written is visible at once through the same session, and nowhere else before the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from shardstore.engine.reading.read_plan import Carrier, ChunkSource, PlannedObject, ReadPlan, read_parts
from shardstore.errors import Corruption, InvalidInput, ReadOnly, ShardStoreError, SnapshotExpired
from shardstore.format.json_text import JsonObject, loads_object
from shardstore.format.snapshots.file_names import CHUNKS, encode_id
from shardstore.format.snapshots.manifest import GONE, INLINE, VirtualCheck, in_a_row
from shardstore.format.snapshots.state import State
from shardstore.format.store_keys import groups_above, metadata_path
from shardstore.model.capabilities import Capabilities
from shardstore.model.coalescing import ReadLimits
from shardstore.model.containers import batched
from shardstore.model.generation import Condition, Generation, IfAbsent, IfGeneration, Unconditional
from shardstore.model.ranges import ByteRange, BytesLike, cut, resolve
from shardstore.model.redaction import redacted
from shardstore.opening.location import ANYWHERE, HasPhysicalLocation, Location, location_of
from shardstore.snapshots.chunk_files import ABSENT as NO_PLACE
from shardstore.snapshots.chunk_files import HELD, ChunkPlaces, file_name, token_in_file, token_of_inline, token_of_written
from shardstore.snapshots.files import MissingFile
from shardstore.snapshots.session import ArrayKeys, SessionCore
from shardstore.snapshots.session_listing import document_info, list_directory, list_keys, version_in
from shardstore.snapshots.virtual_files import Asked, VirtualFiles
from shardstore.storage.abilities import BlockingReads, HasIdentity
from shardstore.storage.base import (
    ABSENT,
    CHANGED,
    ConditionFailed,
    DirListing,
    Failed,
    Found,
    ObjectInfo,
    Read,
    ReadOutcome,
    ReadsAndWrites,
    Storage,
    check_directory,
)
from shardstore.storage.known_references import ChunksInFile, FileFault, KnownReferences, KnowsReferences
from shardstore.storage.requests.writes import check_deletion, joined
from shardstore.storage.wrappers import Counters

T = TypeVar("T")

_WITHOUT_REQUESTS = (HELD, INLINE)
_FILES_AT_ONCE = 64
_UNCHANGED = object()


class SessionStorage(ReadsAndWrites, ChunkSource, HasIdentity, HasPhysicalLocation, KnowsReferences):
    """The nodes and chunks of one session as objects."""

    kind = "snapshot"

    def __init__(
        self,
        session: SessionCore,
        url: str,
        limits: ReadLimits,
        virtual: VirtualFiles,
        again: Callable[[], SessionStorage] | None = None,
        now: Callable[[], Awaitable[State]] | None = None,
    ) -> None:
        self.session = session
        self._url = url
        self._limits = limits
        self._virtual = virtual
        self._again = again
        self._now = now
        """Returns the current state of the store, in which the session's snapshot may have expired."""

    def __reduce__(self) -> tuple[Callable[[], SessionStorage], tuple[()]]:
        if self._again is None:
            raise InvalidInput(
                f"the store of the writable session {self.url} cannot be pickled: what another process writes into it would be lost. Give "
                "workers session.fork(), which can be pickled, and merge what comes back by session.merge"
            )
        return self._again, ()

    def __repr__(self) -> str:
        return f"SessionStorage({self.url!r})"

    @property
    def url(self) -> str:
        return self._url

    @property
    def stored_in(self) -> Storage:
        """The storage of the repository's files."""
        return self.session.files.storage

    @property
    def identity(self) -> str:
        """A text that no other session has."""
        return f"{self._url}#{id(self.session)}"

    def lies_in(self, path: str, *, links: bool) -> Location:
        """Return the location of ``path``, whose chunks are anywhere in the files of the store."""
        own = Location(frozenset({f"{self.identity} {self.url}/{path}".rstrip("/")}))
        files = location_of(self.stored_in, links=links)
        if path:  # of two paths in one session, as much is known
            return replace(own, only_read=files.places)
        unknown = files.unknown | (ANYWHERE if self._virtual.prefixes else frozenset())  # virtual references lead elsewhere
        return replace(own, served=files.served, unknown=unknown, only_read=files.places)

    @property
    def capabilities(self) -> Capabilities:
        if self.session.branch is None:
            return Capabilities(pinned_reads=True, static=True, across_machines=True)
        return Capabilities(
            pinned_reads=True,
            create_if_absent=True,
            compare_and_swap=True,
            conditional_delete=True,
            unique_versions=True,
            exactly_once=True,
            across_machines=True,  # no other process writes into a session
        )

    async def probe(self) -> Capabilities:
        return self.capabilities

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        outcomes: list[ReadOutcome] = [ABSENT] * len(reads)
        arrays = self._by_array([read.key for read in reads])
        await asyncio.gather(*(self._read_chunks(keys, numbers, coords, reads, outcomes) for keys, numbers, coords in arrays))
        for number, read in enumerate(reads):
            if (path := metadata_path(read.key)) is not None:
                outcomes[number] = await self._read_document(path, read)
        return outcomes

    async def _read_document(self, path: str, read: Read) -> ReadOutcome:
        try:
            found = await self.session.document(path)
        except ShardStoreError as exc:
            return Failed(await self._explained(exc))
        return ABSENT if found is None else _found_in_memory(read, memoryview(found[0]), version_in(self.session, found[1]))

    async def _explained(self, error: ShardStoreError) -> ShardStoreError:
        """Return the error; if a file is missing because the snapshot has expired, one that says so."""
        if not isinstance(error, MissingFile) or self._now is None:
            return error
        try:
            state = await self._now()
        except ShardStoreError:
            return error
        if self.session.snapshot.id in state.snapshots:
            return error
        return SnapshotExpired(
            f"snapshot {self.session.snapshot.id} of {self.session.files.url} has expired, and a garbage collection has removed files that "
            "only it needed: open a newer snapshot"
        )

    @asynccontextmanager
    async def _explaining(self) -> AsyncIterator[None]:
        """Raise, where a file is missing in the block, the error that says so better, as ``_explained`` does."""
        try:
            yield
        except MissingFile as exc:
            raise await self._explained(exc) from exc

    def _by_array(self, keys: Sequence[str]) -> list[tuple[ArrayKeys, list[int], npt.NDArray[np.uint64]]]:
        """Return the keys of chunks by array: their numbers, and which chunks they are, ``(n, ndim)``."""
        if (whole := self._in_one_array(keys)) is not None:
            return [whole]
        owners: dict[int, tuple[ArrayKeys, list[int], list[tuple[int, ...]]]] = {}
        last: ArrayKeys | None = None
        for number, key in enumerate(keys):
            if metadata_path(key) is not None:
                continue
            keys_of = last if last is not None and last.prefix and key.startswith(last.prefix) else self.session.owner(key)
            coords = None if keys_of is None else keys_of.coords(key)
            if keys_of is not None and coords is not None:
                last = keys_of
                _, numbers, places = owners.setdefault(keys_of.node.id, (keys_of, [], []))
                numbers.append(number)
                places.append(coords)
            elif keys_of is None and self.session.reads is not None:
                self.session.reads.documents.update(groups_above(key))  # a chunk of what they would be
        return [
            (keys_of, numbers, np.array(places, dtype=np.uint64).reshape(len(places), keys_of.ndim))
            for keys_of, numbers, places in owners.values()
        ]

    def _in_one_array(self, keys: Sequence[str]) -> tuple[ArrayKeys, list[int], npt.NDArray[np.uint64]] | None:
        """Return several keys, decoded in one step, if all are chunks of the array of the first; else ``None``."""
        first = self.session.owner(keys[0]) if len(keys) > 1 else None
        if first is None or not first.ndim or not all(key.startswith(first.prefix) for key in keys):
            return None
        coords = first.encoding.decode_all([key[len(first.prefix) :] for key in keys], first.ndim)
        return None if coords is None else (first, list(range(len(keys))), coords.astype(np.uint64))

    async def _read_chunks(
        self,
        keys: ArrayKeys,
        numbers: Sequence[int],
        coords: npt.NDArray[np.uint64],
        reads: Sequence[Read],
        outcomes: list[ReadOutcome],
    ) -> None:
        try:
            places = await self.session.places(keys.node, coords)
        except ShardStoreError as exc:
            error = await self._explained(exc)
            for number in numbers:
                outcomes[number] = Failed(error)
            return
        stored: list[int] = []
        for at, number in enumerate(numbers):
            read, file = reads[number], int(places.file[at])
            if file in (NO_PLACE, GONE):
                continue
            token = _token(places, at, file)
            if read.generation is not None and read.generation.token != token:
                outcomes[number] = CHANGED
            elif file in _WITHOUT_REQUESTS:
                outcomes[number] = _found_in_memory(read, memoryview(places.data[at]), version_in(self.session, token))
            else:
                stored.append(at)
        if stored:
            await self._read_stored(places, np.array(stored), [numbers[at] for at in stored], reads, outcomes)

    async def _read_stored(
        self,
        places: ChunkPlaces,
        stored: npt.NDArray[np.intp],
        numbers: Sequence[int],
        reads: Sequence[Read],
        outcomes: list[ReadOutcome],
    ) -> None:
        """Read what is wanted of chunks that lie in files."""
        starts, lengths = _wanted(places, stored, [reads[number] for number in numbers])
        found = await self._read_spans(places, stored, starts, lengths, [reads[number].key for number in numbers])
        for number, place, view in zip(numbers, stored.tolist(), found, strict=True):
            if isinstance(view, ShardStoreError):
                outcomes[number] = Failed(view)
                continue
            nbytes = int(places.nbytes[place])
            inside = [resolve(request, nbytes) for request in reads[number].ranges]
            begin = min((one.start for one in inside), default=0)
            buffers = tuple(view[one.start - begin : one.end - begin] for one in inside)
            outcomes[number] = Found(version_in(self.session, _token(places, place, int(places.file[place]))), nbytes, buffers)

    async def _read_spans(
        self,
        places: ChunkPlaces,
        stored: npt.NDArray[np.intp],
        starts: npt.NDArray[np.int64],
        nbytes: npt.NDArray[np.int64],
        keys: Sequence[str],
    ) -> list[memoryview | ShardStoreError]:
        """Read these bytes of the file of each chunk: neighbours share a request, and all requests are one round."""
        files, objects, of_object = _by_file(places, stored)
        numbers = np.arange(len(stored))
        parts = read_parts(objects, numbers, of_object, starts, nbytes, self._limits.gap_bytes, self._limits.request_bytes)
        asked = [(places.files[files[part.at]], part.read.ranges, places.checks.get(files[part.at])) for part in parts]
        found: list[memoryview | ShardStoreError] = [memoryview(b"")] * len(stored)
        for part, answer in zip(parts, await self._virtual.read(asked), strict=True):
            if isinstance(answer, ShardStoreError):
                error = await self._explained(answer)
                for at in part.numbers:
                    found[at] = error
                continue
            for at, piece in zip(part.numbers, part.cut(answer), strict=True):
                is_whole = len(piece) == nbytes[at]
                found[at] = piece if is_whole else _cut_off(keys[at], places.files[files[part.at]], self.url)
        return found

    # -- many chunks of one array, for the engine ------------------------------------------------------------------------

    def plans_reads(self) -> bool:
        below = self.session.files.given.ability(BlockingReads)
        return below is not None and below.reads_in_threads()

    async def plan_read(self, keys: Sequence[str], counters: Counters) -> ReadPlan | None:
        below, places = self.session.files.given.ability(BlockingReads), await self._places_of_all(keys)
        if places is None or below is None:
            return None
        is_own = np.array([isinstance(file, bytes) for file in places.files], dtype=np.bool_)
        in_files = (places.file >= 0) & (places.nbytes > 0)
        in_files[in_files] = is_own[places.file[in_files]]
        numbers = np.flatnonzero(in_files)
        _, objects, of_object = _by_file(places, numbers)
        return ReadPlan(
            Carrier(below, counters, self._limits.gap_bytes),
            objects,
            numbers,
            of_object,
            places.offset[numbers].astype(np.int64),
            places.nbytes[numbers].astype(np.int64),
            missing=np.flatnonzero(~places.exists).tolist(),
            rest=np.flatnonzero(places.exists & ~in_files).tolist(),
        )

    async def chunk_values(self, keys: Sequence[str]) -> list[memoryview | ShardStoreError | None] | None:
        places = await self._places_of_all(keys)
        if places is None:
            return None
        values: list[memoryview | ShardStoreError | None] = [None] * len(keys)
        for at in np.flatnonzero(np.isin(places.file, _WITHOUT_REQUESTS)).tolist():
            values[at] = memoryview(places.data[at])
        stored = np.flatnonzero(places.file >= 0)
        if len(stored):
            starts, nbytes = places.offset[stored].astype(np.int64), places.nbytes[stored].astype(np.int64)
            found = await self._read_spans(places, stored, starts, nbytes, [keys[at] for at in stored.tolist()])
            for at, value in zip(stored.tolist(), found, strict=True):
                values[at] = value
        return values

    async def _places_of_all(self, keys: Sequence[str]) -> ChunkPlaces | None:
        """Return where chunks of one array are; ``None`` if they are not of one array, or cannot be found."""
        arrays = self._by_array(keys)
        if len(arrays) != 1 or len(arrays[0][1]) != len(keys):
            return None
        keys_of, _, coords = arrays[0]
        try:
            return await self.session.places(keys_of.node, coords)
        except ShardStoreError:  # reading one by one fails too, and says of which key
            return None

    async def known_documents(self) -> dict[str, JsonObject]:
        found: dict[str, JsonObject] = {}
        for path in list(self.session.nodes):
            async with self._explaining():
                document = await self.session.document(path)
            if document is not None:
                found[path] = loads_object(document[0])
        return found

    async def known_references(self, path: str) -> KnownReferences:
        """Return where the chunks of an array lie; those that wait for a file are given as bytes."""
        node = self.session.array(path)
        async with self._explaining():
            refs = await self.session.all_refs(node)
        if refs is None:
            refs = in_a_row([], self.session.keys_of(node).ndim)
        files = [CHUNKS + file_name(file) if isinstance(file, bytes) else file for file in refs.files]
        return KnownReferences(
            refs.coords.astype(np.int64),
            refs.file,
            refs.offset.astype(np.int64),
            refs.nbytes.astype(np.int64),
            files,
            refs.inline,
            refs.checks,
        )

    async def file_faults(self, path: str) -> AsyncIterator[FileFault]:
        seen: dict[tuple[bytes | str, VirtualCheck | None], int] = {}
        for node in self.session.nodes_below(path).values():
            refs = await self.session.all_refs(node) if node.is_array else None
            if refs is None:
                continue
            in_files = refs.file > INLINE
            ends = np.zeros(len(refs.files), dtype=np.uint64)
            np.maximum.at(ends, refs.file[in_files], (refs.offset + refs.nbytes)[in_files])
            asked: list[Asked] = []
            for number in np.flatnonzero(ends).tolist():
                file, check, end = refs.files[number], refs.checks.get(number), int(ends[number])
                if seen.get((file, check), 0) < end:
                    seen[file, check] = end
                    asked.append((file, (ByteRange(end - 1, end),), check))
            for some in batched(asked, _FILES_AT_ONCE):
                for (file, _, check), answer in zip(some, await self._virtual.read(some), strict=True):
                    name = CHUNKS + file_name(file) if isinstance(file, bytes) else redacted(file)
                    if isinstance(answer, ShardStoreError):
                        yield FileFault(node.path, name, answer)
                    elif not len(answer[0]):
                        yield FileFault(
                            node.path, name, Corruption(f"it is shorter than {seen[file, check]} bytes, which chunks say that it has")
                        )

    async def file_with(self, keys: Sequence[str]) -> ChunksInFile | None:
        if self.session.branch is not None or (places := await self._places_of_all(keys)) is None:
            return None
        names = {places.files[number] if number >= 0 else "" for number in set(places.file.tolist())}
        name = names.pop() if len(names) == 1 else ""
        return ChunksInFile(CHUNKS + file_name(name), places.offset.astype(np.int64)) if isinstance(name, bytes) else None

    async def stat(self, key: str) -> ObjectInfo | None:
        if (path := metadata_path(key)) is not None:
            return await document_info(self.session, key, path)
        for keys, _, coords in self._by_array([key]):
            async with self._explaining():
                places = await self.session.places(keys.node, coords)
            if places.exists[0]:
                return ObjectInfo(key, int(places.nbytes[0]), version_in(self.session, _token(places, 0, int(places.file[0]))))
        return None

    # -- listing -------------------------------------------------------------------------------------------------------

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async with self._explaining():
            async for info in list_keys(self.session, prefix):
                yield info

    async def list_dir(self, prefix: str) -> DirListing:
        check_directory(prefix)
        async with self._explaining():
            return await list_directory(self.session, prefix)

    # -- writing -------------------------------------------------------------------------------------------------------

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        data = await joined(body, nbytes, key)
        self.session.check_writable(f"writing {key!r}")
        if (path := metadata_path(key)) is not None:
            serial = await self.session.set_document(path, data, lambda: self._check(key, condition))
            return Generation(token_of_written(serial))
        if not isinstance(condition, Unconditional):
            await self._settled(key, lambda: self._check(key, condition))
        keys = self.session.owner(key)
        coords = None if keys is None else keys.coords(key)
        if keys is None or coords is None:
            raise InvalidInput(
                f"{key!r} is neither the document of a node nor a chunk of an array in {self.url}: a versioned store holds nothing else. "
                "Create the array first"
            )
        return Generation(token_of_written(await self.session.write_chunk(keys.node, coords, data)))

    async def _settled(self, key: str, look: Callable[[], Awaitable[T]]) -> T:
        """Call ``look`` until the key does not change while it runs, and return what it found last. So what the caller does next, without
        an ``await`` in between, is one step with the look.
        """
        while True:
            before = self._own(key)
            found = await look()
            if all(one is other for one, other in zip(before, self._own(key), strict=True)):
                return found

    def _own(self, key: str) -> tuple[object, object, object]:
        """Return the session's own objects for a key: node, document or chunk. Each change of the key replaces one of them, so two calls
        that return the same objects prove that nothing has changed between them. The files of the snapshot never change.
        """
        if (path := metadata_path(key)) is not None:
            return *self.session.own_document(path), None
        keys = self.session.owner(key)
        if keys is None:
            return None, None, None
        changes, coords = self.session.changes.get(keys.node.id), keys.coords(key)
        if changes is None or coords is None:
            return keys.node, None, None
        return keys.node, changes.chunks.get(coords, _UNCHANGED), changes.bulk

    async def _check(self, key: str, condition: Condition) -> None:
        if isinstance(condition, Unconditional):
            return
        info = await self.stat(key)
        if isinstance(condition, IfAbsent):
            if info is not None:
                raise ConditionFailed(f"{key!r} exists in {self.url}")
        elif info is None or info.generation != condition.generation:
            raise self._another_version(key)

    def _another_version(self, key: str) -> ConditionFailed:
        return ConditionFailed(f"{key!r} in {self.url} is not the version that was asked for")

    async def rename_prefix(self, source: str, target: str) -> bool:
        if not self.session.nodes_below(source):
            return False
        try:
            return self.session.move(source, target)
        except ReadOnly:
            raise
        except InvalidInput as exc:
            if target.startswith(f"{source}/"):
                raise
            raise ConditionFailed(str(exc)) from exc

    async def delete(self, key: str, condition: Condition) -> bool:
        check_deletion(key, condition)
        self.session.check_writable(f"deleting {key!r}")

        async def is_there() -> bool:
            info = await self.stat(key)
            if info is not None and isinstance(condition, IfGeneration) and info.generation != condition.generation:
                raise self._another_version(key)
            return info is not None

        there = await self._settled(key, is_there)
        if (path := metadata_path(key)) is not None:
            return self.session.remove_node(path)
        keys = self.session.owner(key)
        coords = None if keys is None else keys.coords(key)
        if keys is not None and coords is not None:
            self.session.erase_chunk(keys.node, coords)
        return there

    async def delete_many(self, keys: Sequence[str]) -> None:
        if keys:
            self.session.check_writable(f"deleting {keys[0]!r}")
        for keys_of, _, coords in self._by_array(keys):
            # Also where there is none: another session may commit one before this one, which is a conflict then.
            for one in coords.tolist():
                self.session.erase_chunk(keys_of.node, tuple(one))
        for key in keys:
            if (path := metadata_path(key)) is not None:
                self.session.remove_node(path)

    async def close(self) -> None:
        """Do nothing: the session's files belong to the repository."""


def _token(places: ChunkPlaces, at: int, file: int) -> str:
    """Return the version of a chunk, as a text."""
    if (serial := places.serials.get(at)) is not None:
        return token_of_written(serial)
    if file == INLINE:
        return token_of_inline(places.data[at])
    return token_in_file(file_name(places.files[file]), int(places.offset[at]), int(places.nbytes[at]), places.checks.get(file))


def _found_in_memory(read: Read, data: memoryview, generation: Generation) -> ReadOutcome:
    if read.generation is not None and read.generation != generation:
        return CHANGED
    return Found(generation, len(data), tuple(cut(data, request) for request in read.ranges))


def _wanted(
    places: ChunkPlaces, stored: npt.NDArray[np.intp], reads: Sequence[Read]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the bytes of its file that each read needs, all that lies between its ranges included: the first, and how many."""
    starts, nbytes = places.offset[stored].astype(np.int64), places.nbytes[stored].astype(np.int64)
    for at, read in enumerate(reads):
        inside = [resolve(request, int(nbytes[at])) for request in read.ranges]
        first, last = min((one.start for one in inside), default=0), max((one.end for one in inside), default=0)
        starts[at], nbytes[at] = starts[at] + first, max(0, last - first)
    return starts, nbytes


def _by_file(places: ChunkPlaces, stored: npt.NDArray[np.intp]) -> tuple[list[int], list[PlannedObject], npt.NDArray[np.int64]]:
    """Return the numbers of the files that these chunks lie in, the files as objects, and which of them each chunk lies in."""
    files, of_object = np.unique(places.file[stored], return_inverse=True)
    in_order = stored[np.argsort(of_object, kind="stable")]
    ends = np.cumsum(np.bincount(of_object, minlength=len(files))).tolist()
    names = [places.files[file] for file in files.tolist()]
    keys = [CHUNKS + file_name(name) if isinstance(name, bytes) else name for name in names]
    objects = [PlannedObject(key, None, in_order[begin:end]) for key, begin, end in zip(keys, [0, *ends], ends, strict=False)]
    return files.tolist(), objects, of_object


def _cut_off(key: str, name: bytes | str, url: str) -> Corruption:
    where = f"chunk file {CHUNKS}{encode_id(name)}" if isinstance(name, bytes) else f"virtual file {name}"
    return Corruption(f"{key!r} in {url}: {where} ends before the chunk does; restore the file, or erase the chunk")
