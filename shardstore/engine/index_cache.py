"""The indices of shards that are remembered, the proofs that a shard has the layout that its array's document describes, and retries of
operations whose layout turned out to be stale.

An object does not show by which document it was written: two layouts of an array can have indices of the same length, and the same
key may name a chunk at first, and a shard later. But objects are deleted before a document is written that gives them another meaning.
Say an object was read with layout L. It has layout L if the document described L at some time while this version of the object existed, or
if the document describes L after the read. There are four proofs:

=============  ===================================================================  =====================================================
proof          how it proves                                                        where, and at what cost
=============  ===================================================================  =====================================================
guarded read   the storage compares the version of the document in the step in      local files, memory; none
               which it reads the object
server time    by the clock of the server, the object was stored a minute before    AWS; none, but objects that are younger need
               the server answered with the document                                another proof
read again     the document is read after the object, and has the same layout       elsewhere; a request for each array and batch, in
                                                                                    the round of the chunks that an index locates, or
                                                                                    in a round of its own
trusted        documents never change                                               static storages, ``metadata_ttl=inf``; none
=============  ===================================================================  =====================================================

A guarded read and the server's time prove at once, with the read of the object itself. An index that has a proof is *verified*, as long as
its version lasts: chunks are then read with it, and no further proof is needed. Of an array whose document a transaction has yet to write,
nothing is stored that could be compared: it needs no proof, and its indices do not become verified.

Apart from proofs, a document is *fresh* for ``metadata_ttl``: past it, it is read again with whatever is read of its array.

The cache is bounded in bytes. An entry counts only while a read of its generation succeeds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from shardstore.engine.metadata.hierarchy import NEVER, Hierarchy, Node, same_shards
from shardstore.errors import Conflict
from shardstore.format.shard_index import IndexFormat, ShardIndex
from shardstore.format.store_keys import join, metadata_key
from shardstore.model.chunks import ChunkLocation
from shardstore.model.containers import Lru
from shardstore.model.generation import Generation
from shardstore.model.ranges import BytesLike
from shardstore.storage.abilities import VersionedByRange
from shardstore.storage.base import Found, Guard, Read, ReadOutcome, Storage, document_read
from shardstore.tasks import LONG_AGO, Answered, moment

T = TypeVar("T")

_ENTRY_OVERHEAD = 512  # of the objects around the array
_VERSION_OVERHEAD = 256
_TRIES = 5
_CERTAIN_SECONDS = 60.0  # the clocks of one server's machines differ by less, and the time that it gives is rounded to a second


@dataclass(frozen=True, slots=True)
class CachedIndex:
    """The index of one version of a shard that is ``object_nbytes`` long."""

    index_format: IndexFormat
    generation: Generation
    object_nbytes: int
    index: ShardIndex
    is_verified: bool = False
    carried_versions: Mapping[int, Generation] = field(default_factory=dict)
    """By slot, the versions of chunks that this process has carried over from earlier versions of the shard."""
    known_since: int = field(default_factory=moment, compare=False)
    """The moment at which this version was known to be stored."""

    @property
    def cost(self) -> int:
        return self.index.nbytes + _ENTRY_OVERHEAD + len(self.carried_versions) * _VERSION_OVERHEAD

    def version(self, slot: int, where: ChunkLocation) -> Generation:
        """Return the version of the chunk in a slot; the chunk lies at ``where``."""
        return self.carried_versions.get(slot) or chunk_version(self.generation, slot, where)


class IndexCache:
    """A cache that drops the least recently used index first. It has no lock: all but ``peek`` is called on one event loop only."""

    def __init__(self, limit_bytes: int) -> None:
        self._entries: Lru[str, CachedIndex] = Lru(limit_bytes, lambda entry: entry.cost)

    def get(self, shard_key: str, index_format: IndexFormat) -> CachedIndex | None:
        """Return the entry, unless it was decoded in another format than the array has now."""
        entry = self._entries.get(shard_key)
        if entry is not None and entry.index_format != index_format:
            self.drop(shard_key)
            return None
        return entry

    def peek(self, shard_key: str, index_format: IndexFormat, *, unverified: bool) -> CachedIndex | None:
        """Return a verified entry as ``get`` does, or any with ``unverified``; from any thread.

        Changes nothing, except that the entry counts as just used.
        """
        entry = self._entries.peek(shard_key)
        if entry is None or entry.index_format != index_format or not (entry.is_verified or unverified):
            return None
        self._entries.touch(shard_key)
        return entry

    def put(self, shard_key: str, entry: CachedIndex) -> None:
        self._entries.put(shard_key, entry)

    def verify(self, shard_key: str, entry: CachedIndex) -> CachedIndex:
        """Return ``entry`` as verified; the cache has it so too, unless it has another one by now."""
        verified = replace(entry, is_verified=True)
        if self._entries.peek(shard_key) is entry:
            self._entries.put(shard_key, verified)
        return verified

    def drop(self, shard_key: str) -> None:
        self._entries.pop(shard_key)

    def drop_prefix(self, prefix: str) -> None:
        for key in self._entries:
            if key.startswith(prefix):
                self.drop(key)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def used_bytes(self) -> int:
        return self._entries.used


def chunk_version(shard: Generation, slot: int, where: ChunkLocation) -> Generation:
    """Return the version of a chunk, made of the version of its shard, its slot and its place there.

    It differs if the bytes may differ, and it is the version of no other chunk of the shard. While commits of this process carry the chunk
    over unchanged, it keeps the version that it had when it was first seen (``CachedIndex.carried_versions``).
    """
    return Generation(f"{shard.token}:{slot}:{where.offset}:{where.nbytes}", shard.modified)


def parse_chunk_version(version: Generation) -> tuple[Generation, int, ChunkLocation] | None:
    """Return the shard's version, and the chunk's slot and place in it, or ``None`` if it is the version of something else."""
    shard, *place = version.token.rsplit(":", 3)
    if len(place) != 3 or not all(number.isdecimal() for number in place):
        return None
    slot, offset, nbytes = map(int, place)
    return Generation(shard, version.modified), slot, ChunkLocation(offset, nbytes)


class IndexVersions:
    """The versions by which the shards of one storage are read, once their indices are known."""

    def __init__(self, storage: Storage) -> None:
        self._versions = storage.ability(VersionedByRange)

    def named(self, generation: Generation, index_format: IndexFormat, encoded: Callable[[], BytesLike]) -> Generation:
        """Return the version to read the shard by: ``generation``, or one made from the index where the storage has no versions.

        ``encoded`` returns the bytes of the index. With such a version a shard that was written, or read whole, is read in one round.
        """
        if self._versions is None:
            return generation
        return self._versions.version_by(index_format.request(), encoded()) or generation


# -- proofs ------------------------------------------------------------------------------------------------------------


class StaleLayout(Exception):
    """The array's metadata changed since its layout was looked up: the keys have to be located again."""


async def with_fresh_layout(attempt: Callable[[], Awaitable[T]], conflict: str) -> T:
    """Return what ``attempt`` returns. It locates its keys itself, and is called again if the layout was stale.

    Raises:
        Conflict: it was stale each time; ``conflict`` is the message.
    """
    for _ in range(_TRIES):
        with suppress(StaleLayout):
            return await attempt()
    raise Conflict(conflict)


async def each_with_fresh_layout(numbers: Iterable[int], attempt: Callable[[list[int]], Awaitable[list[int]]]) -> list[int]:
    """Carry out the operations of these numbers; return the numbers of those whose layout was stale each time.

    ``attempt`` locates the keys of the numbers that it is given, and returns those whose layout was stale.
    """
    pending = list(numbers)
    for _ in range(_TRIES):
        if not pending:
            break
        pending = await attempt(pending)
    return pending


class LayoutProof:
    """Proves the layouts of what is read of one store. A layout is given by the node by which the read was planned."""

    def __init__(self, storage: Storage, hierarchy: Hierarchy, indices: IndexCache) -> None:
        self._storage = storage
        self._hierarchy = hierarchy
        self._indices = indices

    def is_needed(self, node: Node) -> bool:
        """Return whether what is read by this layout has to be proven."""
        return not self._hierarchy.never_checks and not self._hierarchy.is_pending(node.path)

    def is_sure(self, index: CachedIndex) -> bool:
        """Return whether an index has a proof, or is trusted; from any thread."""
        return index.is_verified or self._hierarchy.never_checks

    # -- proofs that come with a read ------------------------------------------------------------------------------

    def may_come_with_read(self, node: Node) -> bool:
        """Return whether a read may bring its own proof. If not, the document has to be read after it."""
        return node.metadata_server_time > NEVER or self._hierarchy.never_checks or self._storage.capabilities.guarded_reads

    def guard(self, node: Node) -> Guard | None:
        """Return the guard for reads by the layout of ``node``: its document. ``None`` if the storage has no guarded reads."""
        known = self._hierarchy.known(node.path)
        if known is None or not self._storage.capabilities.guarded_reads or self._hierarchy.is_pending(node.path):
            return None
        # Where another read has just learnt of another layout, this one has to find out.
        return Guard(metadata_key(node.path), known.generation) if same_shards(known.layout, node.layout) else None

    def came_with_read(self, node: Node, guard: Guard | None, outcome: ReadOutcome) -> bool:
        """Return whether a read brought its own proof: by its guard, or by the time when the object was stored.

        The time is compared with that of the document as it was known before the read, or was seen since.
        """
        if guard is not None:
            return True
        if not isinstance(outcome, Found) or outcome.times is None:
            return False
        now = self._hierarchy.known(node.path)
        renewed = now.metadata_server_time if now is not None and same_shards(now.layout, node.layout) else NEVER
        return outcome.times.stored + _CERTAIN_SECONDS < max(renewed, node.metadata_server_time)

    # -- the document, read again ----------------------------------------------------------------------------------

    async def read(
        self,
        reads: Sequence[Read],
        arrays: Iterable[Node],
        unproven: Mapping[str, int] = MappingProxyType({}),
        since: Sequence[int | None] | None = None,
    ) -> list[Answered[ReadOutcome]]:
        """Carry out reads, and in the same round read the documents of ``arrays`` that are not fresh, or at whose paths something is
        ``unproven``: what was read before the moment that is given. Returns the answers to ``reads``; ``since`` is that of ``JoinedReads``.

        Raises:
            StaleLayout: one of these arrays is laid out otherwise.
        """
        asked = {n.path: n for n in arrays if (n.path in unproven and self.is_needed(n)) or not self._is_fresh(n)}
        if not reads and not asked:
            return []
        moments = [self._hierarchy.may_join(unproven.get(path, LONG_AGO)) for path in asked]
        since = [None] * len(reads) if since is None else since
        answers = await self._hierarchy.joined.read([*reads, *(document_read(metadata_key(path)) for path in asked)], [*since, *moments])
        documents = zip(asked, answers[len(reads) :], strict=True)
        self._compare(asked, {path: self._hierarchy.learn(path, read.answer) for path, read in documents})
        return answers[: len(reads)]

    def _is_fresh(self, node: Node) -> bool:
        known = self._hierarchy.known(node.path)
        return known is not None and known.layout == node.layout and self._hierarchy.is_fresh(known)

    async def confirm(self, arrays: Iterable[Node]) -> None:
        """Read the documents of arrays again, in a round of its own: as the proof of what was read, or because damage may be a layout that
        is stale.

        Raises:
            StaleLayout: one of the arrays is laid out otherwise.
        """
        before = {node.path: node for node in arrays}
        self._compare(before, await self._hierarchy.load(before))

    def _compare(self, before: Mapping[str, Node], now: Mapping[str, Node | None]) -> None:
        changed = False
        for path, node in before.items():
            seen = now[path]
            if seen is None or not same_shards(seen.layout, node.layout):
                self._indices.drop_prefix(join(path, ""))
                changed = True
        if changed:
            raise StaleLayout

    def verify(self, node: Node, shard_key: str, index: CachedIndex) -> CachedIndex:
        """Return the index, which has just been proven, as verified."""
        return index if index.is_verified or self._hierarchy.is_pending(node.path) else self._indices.verify(shard_key, index)
