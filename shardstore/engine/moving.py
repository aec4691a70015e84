"""Copies and moves whole nodes as they are stored. Nothing is decoded, and the sharding stays.

A *node* here is everything at or below a presented path: an array, a group with all that is in it, or a single object; ``""`` is the root.

A copy writes data first, then documents, the deepest first and the topmost last. Elsewhere documents are written first; but no client reads
the target of a copy yet, and a document over missing shards would show fill values that were never written. A copy that ends early
leaves objects below the target and no node there; arrays inside a group may be there already, whole. Copying again with
``overwrite=True`` does it over, ``erase_prefix`` removes them.

The records of appends (``format.append_record``) stay behind: their reservations are of programs that append to the source.

Let no client write to what is being moved. A write to the source that another client planned before the move and carries out after it
can leave a stray object there. Such a write is refused if the shard that it has read is gone, and always once ``metadata_ttl`` has passed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from shardstore.engine.appending.records import closed_records, is_record
from shardstore.engine.index_cache import IndexCache
from shardstore.engine.metadata.hierarchy import Hierarchy, Node
from shardstore.engine.options import EngineOptions
from shardstore.engine.writing.erasing import Erasing
from shardstore.errors import Conflict, InvalidInput, NotFound, ShardStoreError, StorageError
from shardstore.format.chunk_keys import looks_like_chunk_prefix
from shardstore.format.json_text import dumps, parse_object
from shardstore.format.metadata_v3 import is_array
from shardstore.format.presentation import sharded_otherwise
from shardstore.format.store_keys import ancestors, check_key, check_node_path, groups_above, join, metadata_path
from shardstore.format.v2.keys import is_document
from shardstore.model.containers import batched
from shardstore.model.generation import UNCONDITIONAL, Condition
from shardstore.model.ranges import EVERYTHING, ByteRange, BytesLike
from shardstore.opening.location import Location, location_of, why_not_apart
from shardstore.storage.abilities import FileTree
from shardstore.storage.base import ABSENT, Absent, ConditionFailed, Found, LeadsNowhere, ObjectInfo, Read, Storage, in_its_place, read_one
from shardstore.storage.boundaries import check_no_links, check_no_mounts, check_own
from shardstore.storage.local.storage import LocalFiles
from shardstore.storage.local.walk import LINK_TO_NOWHERE
from shardstore.storage.wrappers import innermost
from shardstore.stored.detect import is_draft
from shardstore.tasks import MemoryBudget, uninterrupted

Progress = Callable[[int, int], None]
"""Called with the numbers of objects and of bytes that have been copied so far."""

_OBJECTS_AT_ONCE = 32
_DELETED_AT_ONCE = 1000
_PIECE_BYTES = 8 << 20
_TRIES = 5

# What one object on its way between two storages can hold in memory: a piece, and the parts of an upload, or twice all of it.
_MOST_HELD_BYTES = 128 << 20


class _Replaced(ShardStoreError):
    """The object that is being read was replaced; nothing of it has been stored."""


# -- places ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """The parts of an engine that copying and moving need: its stored objects, and its caches of them."""

    storage: Storage
    hierarchy: Hierarchy
    indices: IndexCache
    erasing: Erasing
    options: EngineOptions
    no_transaction: Callable[[], Awaitable[None]]
    """Waits for a commit that is under way; raises ``InvalidInput`` where a transaction is open."""


class HasNodes(Protocol):
    """An engine."""

    @property
    def node_access(self) -> NodeAccess: ...


@dataclass(frozen=True, slots=True)
class _NodePlace:
    """A presented path of one engine."""

    nodes: NodeAccess
    path: str

    @property
    def storage(self) -> Storage:
        return self.nodes.storage

    @property
    def below(self) -> str:
        """The prefix of the keys below it."""
        return join(self.path, "")

    async def location(self, *, links: bool = False) -> Location:
        return await asyncio.to_thread(location_of, self.storage, self.path, links=links)

    def __str__(self) -> str:
        return f"{self.path!r} in {self.storage.url}"

    def key_at(self, key: str, other: _NodePlace) -> str:
        """Return the key at ``other`` of an object that has ``key`` here."""
        inside = key[len(self.path) :].lstrip("/")
        return join(other.path, inside) if inside else other.path

    async def objects(self) -> AsyncIterator[ObjectInfo]:
        """Yield every stored object at or below this. A link to nowhere is none: one in a source is refused, one in a target is cut."""
        if self.path:
            with suppress(LeadsNowhere):
                if (found := await self.storage.stat(self.path)) is not None:
                    yield found
        async for found in self.storage.list(self.below):
            yield found

    async def is_free(self) -> bool:
        async for _ in self.objects():
            return False
        return True

    def forget(self) -> None:
        """Forget everything that is known below this place, absence included."""
        self.nodes.hierarchy.forget_below(self.path)
        self.nodes.indices.drop_prefix(self.below)

    def forget_moved(self, arrays: Iterable[Node]) -> None:
        """Treat the moved arrays as if another client had deleted them: a client that still writes to one gets ``NotFound``, and no
        stray object is made.
        """
        self.forget()
        for node in arrays:
            self.nodes.hierarchy.put(node)
            self.nodes.hierarchy.learn(node.path, ABSENT)


# -- what is refused ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Contents:
    """The contents of a source: an object at its path, objects below it, or both; and whether the target is overwritten."""

    at: bool
    below: bool
    overwrites: bool = False


async def _begin(source: _NodePlace, target: _NodePlace, overwrite: bool, *, moves: bool = False) -> _Contents:
    """Return what is at the source. Refuse what cannot be done, before anything is changed.

    Raises:
        InvalidInput: a path is not valid; the places overlap, or something is to be overwritten and it is not known whether they do; one
            of them lies among the chunk keys of a sharded array; or a transaction is open.
        NotFound: there is nothing at the source.
        StorageError: links in the source lead to what is not there.
        Conflict: there is something at the target, and it is not to be overwritten; or what would be written or removed is reached through
            a link, or mounted there.
    """
    for place in (source, target):
        if place.path and metadata_path(check_key(place.path)) is not None:
            raise InvalidInput(f"{place.path!r} is the metadata of a node, which is copied and moved whole: name the node")
    check_node_path(target.path)
    for place in (source, target):
        await place.nodes.no_transaction()
    for place in (source, target) if moves else (target,):
        await check_own(place.storage, place.path)
    one, other = await source.location(links=overwrite), await target.location()
    if one.overlaps(other):
        raise InvalidInput(f"{source} and {target} overlap: nothing can be copied or moved onto, into or out of itself")
    for place in (source, target):
        await _check_no_chunks(place)
    await _check_links(source)
    found = await _contents(source)
    if found.at and not target.path:
        raise InvalidInput(f"{source} is a single object, which cannot become the root of {target.storage.url}: give it a name there")
    if moves:
        await check_no_mounts(source.storage, source.path)
    is_free = await target.is_free()
    if not overwrite:
        if not is_free:
            raise Conflict(
                f"there is something at {target} already: choose another target, remove it first, or give overwrite=True to replace it"
            )
        await check_no_links(target.storage, target.path)
    elif not is_free:
        await check_no_mounts(target.storage, target.path)
        if (doubt := why_not_apart([(str(source), one), (str(target), other)])) is not None:
            raise InvalidInput(
                f"{doubt}, so {target} may be what is still to be read: choose a target where nothing is, or name the place by its URL. "
                "Nothing was changed"
            )
    return replace(found, overwrites=overwrite and not is_free)


async def _check_no_chunks(place: _NodePlace) -> None:
    """Raise ``InvalidInput`` if the place has a chunk key of a sharded array, or several below it."""
    cuts = [(path, rest) for path, rest in ancestors(place.below) if rest and looks_like_chunk_prefix(rest)]
    nodes = await place.nodes.hierarchy.load((path for path, _ in cuts), even_damaged=True)
    for path, rest in cuts:
        node = nodes[path]
        if node is None or node.layout is None:
            continue
        encoding, ndim = node.layout.key_encoding, node.layout.ndim
        settled = encoding.leading_coords(rest, ndim)
        if encoding.decode(rest.rstrip("/"), ndim) is not None or encoding.prefix_of(settled, ndim) == rest:
            raise InvalidInput(
                f"{place.path!r} belongs to the chunks of the sharded array {path!r} in {place.storage.url}: whole nodes are "
                f"copied and moved, such as {path!r}; read and write single chunks instead"
            )


async def _check_links(source: _NodePlace) -> None:
    """Raise ``StorageError`` where links in a local source lead to what is not there, or a special file is in an object's place: a copy
    without it would show fill values.
    """
    if (local := source.storage.ability(LocalFiles)) is not None:
        found = await local.obstacles("" if is_draft(source.storage) else source.below)
        if found and found[0].what == LINK_TO_NOWHERE:
            raise _unreachable(source.storage, found[0].key)
        if found:
            raise in_its_place(found[0].key, found[0].what, f" in {source.storage.url}")


def _unreachable(storage: Storage, key: str) -> StorageError:
    return StorageError(
        f"{key!r} in {storage.url} leads to what is not there: make that reachable again, or remove it. A copy without it would show fill "
        "values"
    )


async def _check_gone(storage: Storage, key: str) -> None:
    """Raise ``StorageError`` where an object that was just found absent is listed still: a reference to what is not there."""
    async for found in storage.list(key):
        if found.key == key:
            raise _unreachable(storage, key)


async def _contents(source: _NodePlace) -> _Contents:
    """Return what is at the source. A node has a document; only what is none is listed. Raises ``NotFound`` if there is nothing."""
    nodes = await source.nodes.hierarchy.load([source.path], even_damaged=True)
    at = bool(source.path) and await source.storage.stat(source.path) is not None
    if nodes[source.path] is not None:
        return _Contents(at, below=True)
    async for _ in source.storage.list(source.below):
        return _Contents(at, below=True)
    if not at:
        raise NotFound(f"there is nothing at {source}")
    return _Contents(at, below=False)


async def _clear(target: _NodePlace, found: _Contents) -> None:
    """Erase what is at the target; a single object that will be replaced by another stays until then."""
    try:
        if target.path and not found.at:
            await target.storage.delete(target.path, UNCONDITIONAL)
        await target.nodes.erasing.erase_prefix(target.below)
    finally:
        target.forget()


# -- copying -----------------------------------------------------------------------------------------------------------


class _Objects:
    """The number of some objects, their bytes, and a digest of their versions that does not depend on the order."""

    def __init__(self) -> None:
        self.count = 0
        self.nbytes = 0
        self.versions = 0

    def add(self, found: ObjectInfo) -> None:
        version = "" if found.generation is None else found.generation.token
        digest = hashlib.blake2b(f"{found.key}\0{found.nbytes}\0{version}".encode(errors="surrogatepass"), digest_size=16).digest()
        self.count += 1
        self.nbytes += found.nbytes
        self.versions = (self.versions + int.from_bytes(digest)) % 2**128


async def _census(place: _NodePlace, left_out: Collection[str] = ()) -> _Objects:
    objects = _Objects()
    async for found in place.objects():
        if found.key not in left_out:
            objects.add(found)
    return objects


class _Copying:
    """One copy of everything at or below ``source``, which ``_begin`` has allowed."""

    def __init__(self, source: _NodePlace, target: _NodePlace, overwrite: bool, progress: Progress | None, *, overwrites: bool) -> None:
        """Prepare a copy. ``overwrite``: that is allowed; ``overwrites``: there is something at the target."""
        self.source = source
        self.target = target
        self._overwrites = overwrites
        self.listed = _Objects()
        self.records: set[str] = set()
        self.copied = 0
        self.nbytes = 0
        self._overwrite = overwrite
        self._progress = progress
        self._by_server = _stores_alike(source, target)
        # Between a hierarchy of the draft and final Zarr v3 the shards stay, and documents name the other means of sharding.
        self._is_translated = is_draft(source.storage) != is_draft(target.storage)
        self._budget = MemoryBudget(source.nodes.options.max_memory)
        self._documents: list[ObjectInfo] = []

    async def run(self) -> None:
        """Copy all objects, each of them of one version.

        Objects at the target go when they are replaced, and the rest when all data has been copied. Only documents, and objects that are
        in the way, go before that.
        """
        try:
            if self._overwrites:
                await self._read_beginning()
            if self._overwrite and (tree := self.target.storage.ability(FileTree)) is not None:
                await tree.cut_links(self.target.below)
            left = await self._make_way() if self._overwrites else set()
            await self._copy_all(self._data())
            await self._delete(left)
            steps: dict[tuple[int, bool], list[ObjectInfo]] = {}
            for found in self._documents:
                # The attributes of a v2 node belong to it: they come before the document that makes it one.
                steps.setdefault((-found.key.count("/"), not found.key.endswith(".zattrs")), []).append(found)
            for step in sorted(steps):
                await self._copy_all(_given(steps[step]))
            if not self.copied:
                raise Conflict(f"there was something at {self.source}, and then nothing could be read there: nothing was copied")
        except Exception as exc:
            exc.add_note(
                f"{self.copied} objects of {self.source} had been copied to {self.target}, and no node is there yet that would miss any: "
                "copy again and overwrite them, or erase them"
            )
            raise
        finally:
            self.target.forget()

    async def _read_beginning(self) -> None:
        """Read the beginning of the first object that is no document: a source that cannot be read costs the target nothing.

        Raises:
            StorageError: it cannot be read.
        """
        async for found in self.source.objects():
            if is_document(found.key):
                continue
            first = EVERYTHING if found.nbytes <= _PIECE_BYTES else ByteRange(0, _PIECE_BYTES)
            outcome = await read_one(self.source.storage, Read(found.key, (first,)))
            if isinstance(outcome, Found):
                return
            await _check_gone(self.source.storage, found.key)

    async def _make_way(self) -> set[str]:
        """Remove documents from the target, because new data would be misread by them, and objects that are in the way.

        Return the other keys there that nothing will be copied to.
        """
        old = {found.key async for found in self.target.objects()}
        new = {self.source.key_at(found.key, self.target) async for found in self._objects()}
        above_new = {above for key in new for above in groups_above(key)}
        documents = {key for key in old if is_document(key)}
        await self._delete(sorted(documents, key=lambda key: (key.count("/"), key)))
        in_the_way = {key for key in old - documents if key in above_new or any(above in new for above in groups_above(key))}
        await self._delete(in_the_way)
        return old - documents - in_the_way - new

    async def _delete(self, keys: Collection[str]) -> None:
        for some in batched(list(keys), _DELETED_AT_ONCE):
            await self.target.storage.delete_many(some)

    async def check(self) -> None:
        """Check, before the source is erased, that everything is at the target, and that the source is still what was copied.

        Raises:
            Conflict: it is not; source and target stay unchanged.
        """
        source, target = await _census(self.source, self.records), await _census(self.target)
        if (source.count, source.versions) != (self.listed.count, self.listed.versions):
            raise Conflict(
                f"{self.source} was written to while it was being moved. It stays, and {self.target} holds what was copied: see that "
                "no client writes, then move it again with overwrite=True"
            )
        # A document of another flavour has another size.
        if target.count != self.copied or not (self._is_translated or target.nbytes == self.nbytes):
            raise Conflict(
                f"{self.copied} objects of {self.nbytes} bytes were copied to {self.target}, where there are {target.count} of "
                f"{target.nbytes} bytes now: another client writes there. {self.source} stays unchanged"
            )

    async def _objects(self) -> AsyncIterator[ObjectInfo]:
        """Yield the objects of the source that are copied; note the records of appends, which are not."""
        async for found in self.source.objects():
            if found.key != self.source.path and await is_record(self.source.nodes.hierarchy, found.key):
                self.records.add(found.key)
            else:
                yield found

    async def _data(self) -> AsyncIterator[ObjectInfo]:
        """Yield the objects of the source that are no documents; note the documents."""
        async for found in self._objects():
            self.listed.add(found)
            if is_document(found.key):
                self._documents.append(found)
            else:
                yield found

    async def _copy_all(self, objects: AsyncIterator[ObjectInfo]) -> None:
        free = asyncio.Semaphore(_OBJECTS_AT_ONCE)

        async def one(found: ObjectInfo) -> None:
            try:
                await self._copy(found)
            finally:
                free.release()

        try:
            async with asyncio.TaskGroup() as copies:
                async for found in objects:
                    await free.acquire()
                    copies.create_task(one(found))
        except BaseExceptionGroup as group:
            first = group.exceptions[0]
            raise first from first.__cause__  # the other errors are consequences

    async def _copy(self, found: ObjectInfo) -> None:
        """Copy one object, unless it is gone by now.

        Raises:
            StorageError: it is listed still, and leads to what is not there.
        """
        key = self.source.key_at(found.key, self.target)
        nbytes: int | None = found.nbytes
        if not self._by_server:
            async with self._budget.hold(min(2 * found.nbytes, _MOST_HELD_BYTES)):
                nbytes = await self._carry(found, key)
        elif await self.target.storage.copy(found.key, key) is None:
            nbytes = None
        if nbytes is None:
            await _check_gone(self.source.storage, found.key)
            return
        self.copied += 1
        self.nbytes += nbytes
        if self._progress is not None:
            self._progress(self.copied, self.nbytes)

    async def _carry(self, found: ObjectInfo, key: str) -> int | None:
        """Read one version of an object from the source and write it to the target; return its size, or ``None`` if it is gone."""
        first = EVERYTHING if found.nbytes <= _PIECE_BYTES else ByteRange(0, _PIECE_BYTES)
        for _ in range(_TRIES):
            outcome = await read_one(self.source.storage, Read(found.key, (first,)))
            if isinstance(outcome, Absent):
                return None
            if not isinstance(outcome, Found):
                continue
            translated = self._translated(outcome) if self._is_translated and metadata_path(found.key) is not None else None
            nbytes = outcome.nbytes if translated is None else len(translated)
            pieces = self._pieces(found.key, outcome) if translated is None else [translated]
            try:
                await self.target.storage.write(key, pieces, nbytes, await self._condition())
            except _Replaced:
                continue
            except ConditionFailed as exc:
                raise Conflict(f"another client wrote {key!r} in {self.target.storage.url} while it was being copied there") from exc
            return nbytes
        raise Conflict(f"{found.key!r} in {self.source.storage.url} kept changing while it was being copied: try again")

    def _translated(self, found: Found) -> bytes | None:
        """Return an array's document if it has to name the other means of sharding at the target; ``None`` if it stays unchanged."""
        document = parse_object(found.buffers[0])
        if document is None or not is_array(document):
            return None
        by_transformer = self.target.nodes.options.shards_by_transformer(is_draft=is_draft(self.target.storage))
        translated = sharded_otherwise(document, by_transformer=by_transformer)
        return None if translated is document else dumps(translated)

    async def _pieces(self, key: str, first: Found) -> AsyncIterator[BytesLike]:
        """Yield the bytes of the version that ``first`` is the beginning of."""
        yield first.buffers[0]
        for start in range(len(first.buffers[0]), first.nbytes, _PIECE_BYTES):
            end = min(start + _PIECE_BYTES, first.nbytes)
            outcome = await read_one(self.source.storage, Read(key, (ByteRange(start, end),), first.generation))
            if not isinstance(outcome, Found) or len(outcome.buffers[0]) != end - start:
                raise _Replaced(f"{key!r} was replaced while it was being copied")
            yield outcome.buffers[0]

    async def _condition(self) -> Condition:
        return UNCONDITIONAL if self._overwrite else (await self.target.storage.probe()).condition_on(None)


async def _given(objects: Iterable[ObjectInfo]) -> AsyncIterator[ObjectInfo]:
    for found in objects:
        yield found


async def copy_nodes(
    source: HasNodes, source_path: str, target: HasNodes, target_path: str, *, overwrite: bool = False, progress: Progress | None = None
) -> int:
    """Copy everything at or below a path to another one, of the same store or another; return the number of stored objects.

    Each object is copied as one version of it. Within one storage the storage copies it (``Storage.copy``); between two storages the bytes
    pass through here, in bounded memory. With ``overwrite``, the target is replaced object by object, and the rest of it goes when
    all data has been copied. May be cancelled at any time, which leaves the same as a failure: see the head of this module.

    Raises:
        InvalidInput: the paths overlap, or it is not certain that what is to be overwritten is another place; they name a document or
            chunks of a sharded array, or a transaction is open. Nothing was changed.
        NotFound: there is nothing at the source. Nothing was changed.
        Conflict: there is something at the target, which stays unchanged; or it lies behind a link (``storage.boundaries``); or another
            client writes there, or keeps changing the source.
    """
    here, there = _NodePlace(source.node_access, source_path), _NodePlace(target.node_access, target_path)
    found = await _begin(here, there, overwrite)
    copying = _Copying(here, there, overwrite, progress, overwrites=found.overwrites)
    await copying.run()
    return copying.copied


# -- moving ------------------------------------------------------------------------------------------------------------


async def move_between(
    source: HasNodes, source_path: str, target: HasNodes, target_path: str, *, overwrite: bool = False, progress: Progress | None = None
) -> int:
    """Move everything at or below a path; return how many objects were copied for it, or 1 if one rename did it.

    It is renamed in one step if the storage can do that. Otherwise it is copied, checked, and then erased at the source: a
    failure or cancellation before the erasure leaves the source unchanged, one after it leaves the target whole. The erasure is carried
    out even when the call is cancelled, because a source that has lost some of its shards and kept its metadata shows fill values.

    Raises as ``copy_nodes``, and:
        Conflict: the source was written to during the move, or rows are being appended to it. It stays, and the target holds a copy. Or
            the source lies behind a link, or a link in it would lead elsewhere from its new place: nothing was changed.
    """
    here, there = _NodePlace(source.node_access, source_path), _NodePlace(target.node_access, target_path)
    found = await _begin(here, there, overwrite, moves=True)
    arrays = [node for node in here.nodes.hierarchy.export() if node.path == here.path or node.path.startswith(here.below)]
    if not found.at and here.path and there.path and _stores_alike(here, there) and await _rename(here, there, found):
        here.forget_moved(arrays)
        if progress is not None:
            progress(1, 0)
        return 1
    copying = _Copying(here, there, overwrite, progress, overwrites=found.overwrites)
    await copying.run()
    async with closed_records(here.storage, copying.records):
        await copying.check()
    await uninterrupted(_erase_moved(here, found, arrays))
    return copying.copied


def _stores_alike(source: _NodePlace, target: _NodePlace) -> bool:
    """Return whether objects can be copied or renamed as they are stored."""
    return innermost(source.storage) == innermost(target.storage) and is_draft(source.storage) == is_draft(target.storage)


async def _rename(source: _NodePlace, target: _NodePlace, found: _Contents) -> bool:
    try:
        try:
            return await target.storage.rename_prefix(source.path, target.path)
        except ConditionFailed:
            if not found.overwrites:
                raise
        # The kind can rename, and the source is whole, in the same storage: now the old target may go.
        await _clear(target, found)
        return await target.storage.rename_prefix(source.path, target.path)
    except ConditionFailed as exc:
        if await target.is_free():
            return False  # hidden files of a writer that died are in the way: a copy works in spite of them
        raise Conflict(f"another client wrote to {target} just now; {source} stays unchanged") from exc
    except BaseException:
        source.forget()  # it may have been carried out
        raise
    finally:
        target.forget()


async def _erase_moved(source: _NodePlace, found: _Contents, arrays: Iterable[Node]) -> None:
    try:
        if found.at:
            await source.storage.delete(source.path, UNCONDITIONAL)
        if found.below:
            await source.nodes.erasing.erase_prefix(source.below)
    except BaseException:
        source.forget()
        raise
    source.forget_moved(arrays)
