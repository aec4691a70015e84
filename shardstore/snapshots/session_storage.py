"""A session as a storage: its keys are those of final Zarr v3, one object a chunk. So everything that works on storages works on sessions.

What is written is seen at once by whoever reads through the same session, and by nobody else before the commit.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption, InvalidInput, ReadOnly, ShardStoreError
from shardstore.format.metadata_v3 import METADATA_NAME
from shardstore.format.snapshots.file_names import CHUNKS, encode_id
from shardstore.format.snapshots.manifest import GONE, INLINE, ChunkRefs, VirtualCheck
from shardstore.format.store_keys import join, metadata_path
from shardstore.model.capabilities import Capabilities
from shardstore.model.coalescing import ReadLimits, coalesce_all
from shardstore.model.generation import Condition, Generation, IfAbsent, IfGeneration
from shardstore.model.ranges import BytesLike, cut, resolve
from shardstore.snapshots.session import ABSENT as NO_PLACE
from shardstore.snapshots.session import HELD, ArrayKeys, Places, Session
from shardstore.snapshots.virtual_files import VirtualFiles
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
    Storage,
)
from shardstore.storage.fallbacks import ReadsAndWrites, check_directory, direct_children
from shardstore.storage.requests.body import joined
from shardstore.storage.requests.conditions import check_deletion

_WITHOUT_REQUESTS = (HELD, INLINE)


class SessionStorage(ReadsAndWrites):
    """The nodes and chunks of one session as objects."""

    kind = "snapshot"

    def __init__(
        self,
        session: Session,
        url: str,
        limits: ReadLimits,
        virtual: VirtualFiles,
        again: Callable[[], SessionStorage] | None = None,
    ) -> None:
        self.session = session
        self._url = url
        self._limits = limits
        self._virtual = virtual
        self._again = again

    def __reduce__(self) -> tuple[Callable[[], SessionStorage], tuple[()]]:
        if self._again is None:
            raise InvalidInput(
                f"the store of the writable session {self.url} cannot be pickled: what another process writes into it would be lost. Give "
                "workers session.fork(), which travels as a whole, and merge what comes back by session.merge"
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
    def leads_elsewhere(self) -> bool:
        """True if virtual references may lead to files of others."""
        return bool(self._virtual.prefixes)

    @property
    def identity(self) -> str:
        """A text that tells this session from others."""
        return f"{self._url}#{id(self.session)}"

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
            across_machines=True,  # nobody else writes into a session
        )

    async def probe(self) -> Capabilities:
        return self.capabilities

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        outcomes: list[ReadOutcome] = [ABSENT] * len(reads)
        for keys, numbers, coords in self._by_array([read.key for read in reads]):
            await self._read_chunks(keys, numbers, coords, reads, outcomes)
        for number, read in enumerate(reads):
            if (path := metadata_path(read.key)) is not None:
                outcomes[number] = await self._read_document(path, read)
        return outcomes

    async def _read_document(self, path: str, read: Read) -> ReadOutcome:
        try:
            found = await self.session.document(path)
        except ShardStoreError as exc:
            return Failed(exc)
        return ABSENT if found is None else _of_bytes(read, memoryview(found[0]), Generation(found[1]))

    def _by_array(self, keys: Sequence[str]) -> list[tuple[ArrayKeys, list[int], npt.NDArray[np.uint64]]]:
        """Return the keys of chunks by array: their numbers, and which chunks they are, ``(n, ndim)``."""
        owners: dict[int, tuple[ArrayKeys, list[int], list[tuple[int, ...]]]] = {}
        last: ArrayKeys | None = None
        rest: Sequence[int] = range(len(keys))
        if len(keys) > 1 and (first := self.session.owner(keys[0])) is not None and first.ndim:
            cut_off = len(first.prefix)
            if all(key.startswith(first.prefix) for key in keys):
                together = first.encoding.decode_all([key[cut_off:] for key in keys], first.ndim)
                if together is not None:
                    return [(first, list(rest), together.astype(np.uint64))]
        for number in rest:
            key = keys[number]
            if metadata_path(key) is not None:
                continue
            keys_of = last if last is not None and last.prefix and key.startswith(last.prefix) else self.session.owner(key)
            coords = None if keys_of is None else keys_of.coords(key)
            if keys_of is not None and coords is not None:
                last = keys_of
                _, numbers, places = owners.setdefault(keys_of.node.id, (keys_of, [], []))
                numbers.append(number)
                places.append(coords)
        return [
            (keys_of, numbers, np.array(places, dtype=np.uint64).reshape(len(places), keys_of.ndim))
            for keys_of, numbers, places in owners.values()
        ]

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
            for number in numbers:
                outcomes[number] = Failed(exc)
            return
        stored: list[int] = []
        tokens: list[str] = []
        for at, number in enumerate(numbers):
            read, file = reads[number], int(places.file[at])
            if file in (NO_PLACE, GONE):
                continue
            token = _token(places, at, file)
            tokens.append(token)
            if read.generation is not None and read.generation.token != token:
                outcomes[number] = CHANGED
            elif file in _WITHOUT_REQUESTS:
                outcomes[number] = _of_bytes(read, memoryview(places.data[at]), Generation(token))
            else:
                stored.append(at)
        if stored:
            await self._read_stored(places, np.array(stored), [numbers[at] for at in stored], reads, outcomes)

    async def _read_stored(
        self,
        places: Places,
        stored: npt.NDArray[np.intp],
        numbers: Sequence[int],
        reads: Sequence[Read],
        outcomes: list[ReadOutcome],
    ) -> None:
        """Read chunks that lie in files: neighbours share a request, and all requests are one round."""
        starts, ends = _wanted(places, stored, [reads[number] for number in numbers])
        files = places.file[stored]
        groups = [(int(file), np.flatnonzero(files == file)) for file in np.unique(files)]
        plans = [coalesce_all(starts[within], ends[within], self._limits) for _, within in groups]
        asked = [(places.files[file], plan.requests, places.checks.get(file)) for (file, _), plan in zip(groups, plans, strict=True)]
        answers = await self._virtual.read(asked)
        for (file, within), plan, answer in zip(groups, plans, answers, strict=True):
            name = places.files[file]
            if isinstance(answer, ShardStoreError):
                for at in within.tolist():
                    outcomes[numbers[at]] = Failed(answer)
                continue
            for at, data in zip(within.tolist(), plan.cut(answer), strict=True):
                number, place = numbers[at], int(stored[at])
                read = reads[number]
                nbytes = int(places.nbytes[place])
                if len(data) != int(ends[at] - starts[at]):
                    outcomes[number] = Failed(_cut_off(read.key, name, self.url))
                    continue
                view = memoryview(data)
                inside = [resolve(request, nbytes) for request in read.ranges]
                begin = min((one.start for one in inside), default=0)
                buffers = tuple(view[one.start - begin : one.end - begin] for one in inside)
                outcomes[number] = Found(Generation(_token(places, place, file)), nbytes, buffers)

    async def stat(self, key: str) -> ObjectInfo | None:
        if (path := metadata_path(key)) is not None:
            found = await self.session.document(path)
            return None if found is None else ObjectInfo(key, len(found[0]), Generation(found[1]))
        for keys, _, coords in self._by_array([key]):
            places = await self.session.places(keys.node, coords)
            if places.exists[0]:
                return ObjectInfo(key, int(places.nbytes[0]), Generation(_token(places, 0, int(places.file[0]))))
        return None

    # -- listing -------------------------------------------------------------------------------------------------------

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        if self.session.reads is not None:
            self.session.reads.list_nodes(prefix)
        is_changing = self.session.branch is not None  # of what a session has changed itself, the serial would have to be looked up
        for path in list(self.session.nodes):
            key = join(path, METADATA_NAME)
            if key.startswith(prefix) and (info := await self.stat(key)) is not None:
                yield info
        for node in list(self.session.arrays_below(prefix)):
            keys = self.session.keys_of(node)
            async for refs in self.session.all_refs(node):
                for row, (coords, nbytes) in enumerate(zip(refs.coords.tolist(), refs.nbytes.tolist(), strict=True)):
                    key = keys.key(tuple(coords))
                    if key.startswith(prefix):
                        yield ObjectInfo(key, nbytes, None if is_changing else _version_of(refs, row))

    async def list_dir(self, prefix: str) -> DirListing:
        check_directory(prefix)
        inside_array = prefix and self.session.owner(prefix) is not None
        infos: dict[str, ObjectInfo] = {}
        if inside_array:
            infos = {info.key: info async for info in self.list(prefix)}
            keys, prefixes = direct_children(infos, prefix)
            return DirListing(tuple(infos[key] for key in keys), prefixes)
        if self.session.reads is not None:
            self.session.reads.list_nodes(prefix)
        paths = [join(path, METADATA_NAME) for path in self.session.nodes]
        keys, prefixes = direct_children([key for key in paths if key.startswith(prefix)], prefix)
        found = [info for key in keys if (info := await self.stat(key)) is not None]
        return DirListing(tuple(found), prefixes)

    # -- writing -------------------------------------------------------------------------------------------------------

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        data = await joined(body, nbytes, key)
        self.session.check_writable(f"writing {key!r}")
        await self._check(key, condition)
        if (path := metadata_path(key)) is not None:
            return Generation(f"w{await self.session.set_document(path, data)}")
        keys = self.session.owner(key)
        coords = None if keys is None else keys.coords(key)
        if keys is None or coords is None:
            raise InvalidInput(
                f"{key!r} is neither the document of a node nor a chunk of an array in {self.url}: a versioned store holds nothing else. "
                "Create the array first"
            )
        return Generation(f"w{await self.session.write_chunk(keys.node, coords, data)}")

    async def _check(self, key: str, condition: Condition) -> None:
        if not isinstance(condition, IfAbsent | IfGeneration):
            return
        info = await self.stat(key)
        if isinstance(condition, IfAbsent) and info is not None:
            raise ConditionFailed(f"{key!r} exists in {self.url}")
        if isinstance(condition, IfGeneration) and (info is None or info.generation != condition.generation):
            raise ConditionFailed(f"{key!r} in {self.url} is not the version that was asked for")

    async def rename_prefix(self, source: str, target: str) -> bool:
        try:
            return self.session.move(source, target)
        except ReadOnly:
            raise
        except InvalidInput as exc:
            raise ConditionFailed(str(exc)) from exc

    async def delete(self, key: str, condition: Condition) -> bool:
        check_deletion(key, condition)
        self.session.check_writable(f"deleting {key!r}")
        await self._check(key, condition)
        if await self.stat(key) is None:
            return False
        await self.delete_many([key])
        return True

    async def delete_many(self, keys: Sequence[str]) -> None:
        if keys:
            self.session.check_writable(f"deleting {keys[0]!r}")
        chunks = self._by_array(keys)
        for keys_of, _, coords in chunks:
            places = await self.session.places(keys_of.node, coords)
            for one in coords[places.exists].tolist():
                self.session.erase_chunk(keys_of.node, tuple(one))
        for key in keys:
            if (path := metadata_path(key)) is not None:
                self.session.remove_node(path)

    async def close(self) -> None:
        """Do nothing: the session's files belong to the repository."""


def _token(places: Places, at: int, file: int) -> str:
    """Return what tells the bytes of a chunk from others: files do not change, so their place does."""
    if (serial := places.serials.get(at)) is not None:
        return f"w{serial}"
    if file == INLINE:
        return _inline_token(places.data[at])
    return _place_token(places.files[file], int(places.offset[at]), int(places.nbytes[at]), places.checks.get(file))


def _version_of(refs: ChunkRefs, row: int) -> Generation | None:
    """Return the version of a chunk that no session has changed; ``None`` if its file may be replaced, and nothing would tell it."""
    file = int(refs.file[row])
    if file == INLINE:
        return Generation(_inline_token(refs.inline[row]))
    name, check = refs.files[file], refs.checks.get(file)
    if isinstance(name, str) and check is None:
        return None
    return Generation(_place_token(name, int(refs.offset[row]), int(refs.nbytes[row]), check))


def _inline_token(data: bytes) -> str:
    return f"i{hashlib.blake2b(data, digest_size=16).hexdigest()}"


def _place_token(name: bytes | str, offset: int, nbytes: int, check: VirtualCheck | None) -> str:
    if isinstance(name, bytes):
        return f"{encode_id(name)}:{offset}:{nbytes}"
    return f"{name}:{offset}:{nbytes}" if check is None else f"{name}:{offset}:{nbytes}:{check.etag or ''}:{check.last_modified or ''}"


def _of_bytes(read: Read, data: memoryview, generation: Generation) -> ReadOutcome:
    if read.generation is not None and read.generation != generation:
        return CHANGED
    return Found(generation, len(data), tuple(cut(data, request) for request in read.ranges))


def _wanted(places: Places, stored: npt.NDArray[np.intp], reads: Sequence[Read]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the bytes of its file that each read needs, all that lies between its ranges included: first and behind the last."""
    starts = places.offset[stored].astype(np.int64)
    nbytes = places.nbytes[stored].astype(np.int64)
    ends = starts + nbytes
    for at, read in enumerate(reads):
        inside = [resolve(request, int(nbytes[at])) for request in read.ranges]
        first, last = min((one.start for one in inside), default=0), max((one.end for one in inside), default=0)
        starts[at], ends[at] = starts[at] + first, starts[at] + max(first, last)
    return starts, ends


def _cut_off(key: str, name: bytes | str, url: str) -> Corruption:
    where = f"chunk file {CHUNKS}{encode_id(name)}" if isinstance(name, bytes) else f"virtual file {name}"
    return Corruption(f"{key!r} in {url}: {where} ends before the chunk does; restore the file, or erase the chunk")
