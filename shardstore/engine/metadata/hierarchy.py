"""The hierarchy of nodes by path: array metadata, looked up, cached and revalidated.

Stale metadata destroys data: a client that remembers "``ct`` is not an array" would write a chunk straight onto a stored
shard. So what is absent is never remembered for a write, and what is present is read again before a write once it is
older than the time to live. For reads the remembered layout is checked again together with each index that is loaded.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from shardstore.errors import AccessDenied, Corruption, NotFound
from shardstore.format.json_text import JsonObject, loads_object
from shardstore.format.metadata_faults import looks_like_metadata, missing_members
from shardstore.format.metadata_v3 import ArrayLayout, PlainArray, is_array, is_group, parse_layout, parse_plain
from shardstore.format.store_keys import join, metadata_key, metadata_path, possible_owners
from shardstore.format.v2.keys import ARRAY_NAME
from shardstore.model.chunks import ChunkCoords
from shardstore.model.containers import Lru
from shardstore.model.generation import Generation
from shardstore.storage.base import Absent, Changed, Failed, Found, ReadOutcome, Storage, document_read, in_its_place
from shardstore.storage.joined_reads import JoinedReads
from shardstore.stored.detect import restored_arrays
from shardstore.tasks import LONG_AGO, moment

logger = logging.getLogger(__name__)

NEVER = float("-inf")
MANY_KEYS = 8
"""So many keys are worth looking at all together. Fewer are left to the reader, which locates and reads them in one call."""
_MOST_ABSENT = 10_000  # paths that were asked for and not there; worth a request each, no more


@dataclass(frozen=True, slots=True)
class Node:
    """The contents of one metadata document. ``layout`` of a sharded array, ``plain`` of another whose chunk keys are known."""

    path: str
    kind: Literal["sharded", "array", "group", "other"]
    generation: Generation
    validated_at: float
    layout: ArrayLayout | None = None
    plain: PlainArray | None = None
    reason: str = ""
    """The reason, in words, why it passes through."""
    damage: Literal["json", "empty", ""] = ""
    """The damage of an "other" node: JSON of another kind, or cut JSON, or no bytes at all; all may have been the metadata of an array."""
    is_uncommitted: bool = False
    """True if an open transaction creates it: no other client may have written any part of it."""
    metadata_server_time: float = NEVER
    """The time, by the server's clock, when it last answered with this version of the document; ``NEVER`` if it gives no time."""

    @property
    def array(self) -> ArrayLayout | PlainArray | None:
        """The array, sharded or not, if its chunk keys are known."""
        return self.layout or self.plain

    def coords_of(self, relative_key: str) -> ChunkCoords | None:
        """Return the chunk that a key relative to this node names, or ``None`` if this node has no such chunk."""
        array = self.layout or self.plain
        return None if array is None else array.key_encoding.decode(relative_key, array.ndim)


class Glance(NamedTuple):
    """What was known of a path before a thread read its document: the node, and how often this process had forgotten or doubted one."""

    node: Node | None
    doubts: int


class ChunkTarget(NamedTuple):
    """A chunk of a sharded array: ``slot`` of the shard at ``shard_coords``."""

    key: str
    node: Node
    layout: ArrayLayout
    shard_coords: ChunkCoords
    shard_key: str
    slot: int

    @classmethod
    def of(cls, key: str, node: Node, layout: ArrayLayout, coords: ChunkCoords) -> ChunkTarget:
        """Return the target of the chunk at ``coords``."""
        shard_coords = layout.grid.shard_of(coords)
        return cls(key, node, layout, shard_coords, shard_key(node.path, layout, shard_coords), layout.grid.slot_of(coords))


@dataclass(frozen=True, slots=True)
class LocatedChunks:
    """Many chunks of one sharded array: the number of the shard that each chunk lies in, ``(n,)``, and its slot there, ``(n,)``."""

    node: Node
    layout: ArrayLayout
    shard_coords: list[ChunkCoords]
    shard_keys: list[str]
    of_shard: npt.NDArray[np.intp]
    slots: npt.NDArray[np.int64]

    @classmethod
    def at(cls, node: Node, layout: ArrayLayout, coords: npt.NDArray[np.int64]) -> LocatedChunks:
        """Return the chunks at these positions of an array, ``(n, ndim)``."""
        shards, of_shard, slots = layout.grid.split_all(coords)
        shard_coords: list[ChunkCoords] = [tuple(row) for row in shards.tolist()]
        return cls(node, layout, shard_coords, [shard_key(node.path, layout, row) for row in shard_coords], of_shard, slots)

    def targets(self, keys: Sequence[str]) -> list[Target]:
        """Return the targets one by one; ``keys`` are the keys that were located."""
        return [
            ChunkTarget(key, self.node, self.layout, self.shard_coords[i], self.shard_keys[i], slot)
            for key, i, slot in zip(keys, self.of_shard.tolist(), self.slots.tolist(), strict=True)
        ]

    def numbers(self) -> list[npt.NDArray[np.intp]]:
        """Return the numbers of the chunks in each shard, in their order."""
        order = np.argsort(self.of_shard, kind="stable")
        return np.split(order, np.searchsorted(self.of_shard[order], np.arange(1, len(self.shard_keys))))

    def subset(self, numbers: Sequence[int]) -> LocatedChunks:
        """Return the chunks of these numbers, in the order of the numbers."""
        shards, of_shard = np.unique(self.of_shard[numbers], return_inverse=True)
        coords, keys = [self.shard_coords[i] for i in shards], [self.shard_keys[i] for i in shards]
        return LocatedChunks(self.node, self.layout, coords, keys, of_shard, self.slots[numbers])


@dataclass(frozen=True, slots=True)
class MetadataTarget:
    """The metadata document of the node at ``path``."""

    key: str
    path: str


@dataclass(frozen=True, slots=True)
class PlainTarget:
    """A key that is stored as it is presented."""

    key: str
    unreadable: str = ""
    """The reason why the document of a node that may own the key cannot be read; an object at the key may be a shard then."""
    may_read: bool = True
    """False if that document looks like damaged metadata. If it never was metadata, the object cannot be a shard."""
    may_create: bool = True
    """False if that document looks like the rest of metadata. An empty one does not count: zarr's own tests create chunks next to it."""


@dataclass(frozen=True, slots=True)
class GoneTarget:
    """A chunk of an array that was sharded and has been deleted by another client: what lies at its key is no chunk."""

    key: str


Target = ChunkTarget | MetadataTarget | PlainTarget | GoneTarget


def shard_key(path: str, array: PlainArray, shard_coords: ChunkCoords) -> str:
    """Return the key of a shard, or of a chunk of an array without shards."""
    return join(path, array.key_encoding.encode(shard_coords))


def same_shards(now: ArrayLayout | None, before: ArrayLayout | None) -> bool:
    """Return whether chunks lie where they lay; the array's shape may have changed. ``None`` is the layout of an array without shards."""
    if now is None or before is None:
        return now is before
    return (now.chunk_shape, now.key_encoding, now.index_format) == (before.chunk_shape, before.key_encoding, before.index_format)


def _located_with(first: ChunkTarget, keys: Sequence[str]) -> LocatedChunks | None:
    """Return the chunks, all of the array of ``first``; ``None`` if their keys do not all begin with that array's path and ``c``."""
    node, layout = first.node, first.layout
    if layout.key_encoding.name != "default":
        return None
    before = join(node.path, "")
    if not all(key.startswith(before) for key in keys):
        return None
    coords = layout.key_encoding.decode_all([key[len(before) :] for key in keys] if before else keys, layout.ndim)
    return None if coords is None else LocatedChunks.at(node, layout, coords)


class HierarchyRegistry:
    """The hierarchies of this process that look at one kind of storage, each with the URL of its root.

    Engines with other options, or with another root of the same store, do not share what they know.
    """

    def __init__(self) -> None:
        self._roots: WeakKeyDictionary[Hierarchy, str] = WeakKeyDictionary()
        self._lock = threading.Lock()  # engines are made in any thread

    def add(self, member: Hierarchy, url: str) -> None:
        with self._lock:
            self._roots[member] = url.rstrip("/")

    def url_of(self, member: Hierarchy) -> str | None:
        with self._lock:
            return self._roots.get(member)

    def seeing(self, member: Hierarchy, path: str) -> list[tuple[Hierarchy, str]]:
        """Return the other hierarchies that see ``path`` of ``member``, or something below it, each with its own path for it."""
        with self._lock:
            mine = self._roots.get(member)
            place = f"{mine}/{path}" if path else mine
            if place is None:
                return []
            roots = [(other, root) for other, root in self._roots.items() if other is not member]
        inside = [(other, "") for other, root in roots if root == place or root.startswith(place + "/")]
        return inside + [(other, place[len(root) + 1 :]) for other, root in roots if place.startswith(root + "/")]


class Hierarchy:
    """The nodes of one store, as far as they have been asked for. Used on one event loop only, but for what says "from any thread"."""

    def __init__(
        self, storage: Storage, ttl: float, clock: Callable[[], float], deep_arrays: Mapping[str, object] = MappingProxyType({})
    ) -> None:
        self._storage = storage
        self.joined = JoinedReads(storage)
        """The reads of documents, and of what is proven by them, that may share a request."""
        self.deep_arrays = deep_arrays
        """The paths of arrays whose shards are not stored objects, as ``LevelledStorage`` keeps them; read from any thread."""
        self._given_ttl = ttl
        self._clock = clock
        self._nodes: dict[str, Node] = {}
        self._absent: Lru[str, float] = Lru(_MOST_ABSENT)  # path -> when; for reads only
        self._hidden: Lru[str, AccessDenied] = Lru(_MOST_ABSENT)  # paths whose documents may not be read, or are absent
        self._vanished: dict[str, Node] = {}  # sharded arrays that another client deleted
        self.being_filled: set[str] = set()
        """The paths of arrays in which a whole shard that is written is probably not there yet: this process has created them, or found a
        shard of theirs absent that it was to write.
        """
        self._lost: Lru[str, bool] = Lru(_MOST_ABSENT)  # where another client deleted a node: asked for each time, as it may come back
        self._pending: dict[str, Node] = {}  # nodes whose documents a transaction writes after their chunks
        self._siblings = HierarchyRegistry()
        self._doubts = 0
        self._doubted_at = LONG_AGO
        self._lock = threading.Lock()  # of _nodes and _doubts, for ``take``

    # -- what is known ---------------------------------------------------------------------------------------------

    def known(self, path: str) -> Node | None:
        return self._pending.get(path) or self._nodes.get(path)

    def is_pending(self, path: str) -> bool:
        """Return whether a transaction has yet to write the document of ``path``."""
        return path in self._pending

    @cached_property
    def _ttl(self) -> float:
        """The time to live in seconds. It is set at the first use: until then a local root may be mounted, which changes capabilities."""
        return math.inf if self._storage.capabilities.static else self._given_ttl

    @property
    def never_checks(self) -> bool:
        """Return whether documents are never read again."""
        return self._ttl == math.inf

    def is_fresh(self, node: Node) -> bool:
        return node.path in self._pending or self.is_recent(node.validated_at)

    def now(self) -> float:
        return self._clock()

    def is_recent(self, at: float) -> bool:
        """Return whether what was seen at this time of ``now`` need not be looked at again."""
        return self._clock() - at <= self._ttl

    @contextmanager
    def pending(self, nodes: Iterable[Node]) -> Iterator[None]:
        """Use these nodes in the block, whatever is stored: a transaction writes their documents after their chunks."""
        self._pending = {node.path: node for node in nodes}
        try:
            yield
        finally:
            self._pending = {}

    def put(self, node: Node) -> None:
        with self._lock:
            self._nodes[node.path] = node
        self._absent.pop(node.path)
        self._vanished.pop(node.path, None)

    def glance(self, path: str) -> Glance | None:
        """Return what is known of a path whose document any thread may read for ``take``; ``None`` if the loop has to: something else than
        the node is remembered of it, or nothing has been read yet, which may mount the place. From any thread.
        """
        if not self._nodes or self._pending or path in self._absent or path in self._vanished or path in self._hidden:
            return None
        doubts = self._doubts
        return Glance(self._nodes.get(path), doubts)

    def take(self, node: Node, before: Glance) -> bool:
        """Remember a node whose document was read after ``before``, unless it was changed, forgotten or doubted since. From any thread.

        Returns ``False`` if the document is not to be believed before the loop has read it: another version of it is known.
        """
        with self._lock:
            known = self._nodes.get(node.path)
            if known is not None and known.generation != node.generation:
                return False
            if known is before.node and self._doubts == before.doubts:
                self._nodes[node.path] = node
        return True

    def wrote(self, node: Node) -> None:
        """Remember a node whose document this process has just written."""
        self._doubt_reads()
        self.put(node)

    def may_join(self, since: int = LONG_AGO) -> int:
        """Return the moment after which a read of a document has to begin, for one that has to begin after ``since``: also after what
        this process has changed or doubts; and after this call if documents are read each time.
        """
        return max(since, self._doubted_at) if self._ttl > 0 else moment()

    def _doubt_reads(self) -> None:
        """Let ``take`` remember no document that a thread is reading now, and let no read join one that is under way."""
        with self._lock:
            self._doubts += 1
            self._doubted_at = moment()

    def forget(self, path: str) -> None:
        self._doubt_reads()
        self._nodes.pop(path, None)
        self._absent.pop(path)
        self._vanished.pop(path, None)
        self._lost.pop(path)

    def forget_below(self, path: str) -> None:
        """Forget a node and everything inside it, because this process has removed it."""
        for known in self._known_below(path):
            self.forget(known)
        for other, theirs in self._siblings.seeing(self, path):
            for known in other._known_below(theirs):
                other._ask_again(known)

    def _known_below(self, path: str) -> list[str]:
        inside = join(path, "")
        return [p for p in (*self._nodes, *self._absent, *self._vanished) if p == path or p.startswith(inside)]

    # -- other engines of this process -----------------------------------------------------------------------------

    def join(self, siblings: HierarchyRegistry, url: str) -> None:
        """Inform the other hierarchies of changes from now on, and be informed by them. ``url`` is that of the root."""
        siblings.add(self, url)
        self._siblings = siblings

    def bring(self, other: Hierarchy) -> None:
        """Let ``other``, which works on the same root, join where this one has joined."""
        if (url := self._siblings.url_of(self)) is not None:
            other.join(self._siblings, url)

    def announce(self, path: str) -> None:
        """Inform the other hierarchies that this process has just written or erased the document of ``path``."""
        for other, theirs in self._siblings.seeing(self, path):
            other._ask_again(theirs)

    def doubt(self, path: str) -> None:
        """Read the document of ``path`` again before it is believed: this process may have written or erased it."""
        self._ask_again(path)
        self.announce(path)

    def _ask_again(self, path: str) -> None:
        self._absent.pop(path)
        self.distrust(path)

    def confirmed(self, path: str, generation: Generation) -> None:
        """Note that the document of ``path`` was seen to be still of this version."""
        if (known := self._nodes.get(path)) is not None and known.generation == generation:
            self._nodes[path] = replace(known, validated_at=self._clock())

    def distrust(self, path: str) -> None:
        """Read the document of ``path`` again before it is believed, because it may have changed."""
        self._doubt_reads()
        if (node := self._nodes.get(path)) is not None:
            self._nodes[path] = replace(node, validated_at=NEVER)

    def distrust_all(self) -> None:
        """Read every document again before it is believed, and look again for what was absent."""
        for path in self._known_below(""):
            self._ask_again(path)

    def export(self) -> list[Node]:
        """Return arrays and their generations, to travel with a pickle; at the other end they count as stale."""
        arrays = (n for n in self._nodes.copy().values() if n.kind in ("sharded", "array") and n.path not in self.deep_arrays)
        return [replace(n, validated_at=NEVER) for n in arrays]

    def restore(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            self._nodes.setdefault(node.path, node)

    # -- reading documents -----------------------------------------------------------------------------------------

    def describe(self, path: str, data: bytes | memoryview, generation: Generation) -> tuple[Node, JsonObject | None]:
        """Return the node that a stored document describes, and the document itself if it is JSON."""
        now = self._clock()
        try:
            document = loads_object(data)
        except Corruption as exc:
            text = bytes(data)
            damage: Literal["json", "empty", ""] = "json" if looks_like_metadata(text) else "" if text.strip() else "empty"
            return Node(path, "other", generation, now, reason=f"its metadata is {exc}", damage=damage), None
        if is_group(document):
            return Node(path, "group", generation, now), document
        if not is_array(document):
            return Node(path, "other", generation, now, reason="its metadata is not that of a Zarr v3 node", damage="json"), document
        layout = parse_layout(document)
        if not isinstance(layout, ArrayLayout) and (missing := missing_members(document)):
            # Its chunks may lie in shards, which are not to be taken for chunks.
            return Node(path, "other", generation, now, reason=f"its metadata has no {', '.join(missing)}", damage="json"), document
        if isinstance(layout, ArrayLayout):
            if path in restored_arrays(self._storage):
                layout = layout.for_any_chunks()
            return Node(path, "sharded", generation, now, layout=layout), document
        plain = parse_plain(document)
        return Node(path, "array", generation, now, plain=plain if isinstance(plain, PlainArray) else None, reason=layout), document

    async def load(
        self, paths: Iterable[str], *, even_damaged: bool = False, even_hidden: bool = False, since: int | None = None
    ) -> dict[str, Node | None]:
        """Read the documents of ``paths`` in one round, and remember what they say; ``None`` where there is none; with ``even_hidden`` also
        where nothing is known of it but that it may not be read. The reads begin after the moment ``since``; ``None``: after this call.

        Raises:
            AccessDenied: a document may not be read, unless ``even_hidden``. Of a node that is known, it is raised in any case.
            Corruption: the document of an array that was sharded is no longer one, unless ``even_damaged``.
        """
        asked = list(dict.fromkeys(paths))
        nodes: dict[str, Node | None] = {path: self._pending.get(path) for path in asked}
        wanted = [path for path in asked if nodes[path] is None]
        if not wanted:
            return nodes
        after = moment() if since is None else self.may_join(since)
        answers = await self.joined.read([document_read(metadata_key(path)) for path in wanted], [after] * len(wanted))
        for path, outcome in zip(wanted, (read.answer for read in answers), strict=True):
            self._hidden.pop(path)
            is_known = not even_hidden or path in self._nodes or path in self._vanished
            if isinstance(outcome, Failed) and isinstance(outcome.error, AccessDenied) and not is_known:
                self._hidden.put(path, outcome.error)
            else:
                nodes[path] = self.learn(path, outcome, even_damaged=even_damaged)
        return nodes

    async def _check_hidden(self, owners: list[tuple[str, str]]) -> None:
        """Raise ``AccessDenied`` if the document of a possible owner of a chunk key may not be read: the object there may be a shard.

        A server that may not say which objects there are answers so for all that are absent, and so for arrays of Zarr v2, whose own
        document shows them. The outermost array owns the key.
        """
        denied = next((path for path, _ in owners if path in self._hidden), None)
        if denied is not None and (error := self._hidden.peek(denied)) is not None:
            (zarray,) = await self._storage.read([document_read(join(denied, ARRAY_NAME))])
            if not isinstance(zarray, Found):
                raise error

    def learn(self, path: str, outcome: ReadOutcome, *, even_damaged: bool = False, described: Node | None = None) -> Node | None:
        """Remember what a read of a node's document gave; ``described``, where given, is the node that it describes.

        The layout of an array whose document was damaged afterwards stays known, so that its shards are not taken for chunks.

        Raises:
            Corruption: the document of an array that was sharded is no longer one, unless ``even_damaged``.
        """
        match outcome:
            case Failed(error):
                raise error
            case Absent(is_directory=True):
                raise in_its_place(metadata_key(path), "a directory")
            case Absent() | Changed():
                self._learn_absence(path)
                return None
            case Found(generation, _, (data,)):
                known = self._nodes.get(path)
                server_time = NEVER if outcome.times is None else outcome.times.asked
                if known is not None and known.generation == generation:
                    node = replace(known, validated_at=self._clock(), metadata_server_time=max(server_time, known.metadata_server_time))
                else:
                    node = described or self.describe(path, data, generation)[0]
                    if known is not None and known.kind == "sharded" and node.kind == "other":
                        if even_damaged:
                            return node
                        raise Corruption(
                            f"{metadata_key(path)!r} was the metadata of a sharded array and no longer is: {node.reason}; "
                            "restore it before reading or writing its chunks"
                        )
                    node = replace(node, metadata_server_time=server_time)
                    logger.debug("node %r: %s %s", path, node.kind, node.reason)
                self.put(node)
                return node
            case _:
                raise AssertionError(f"a whole-object read gave {outcome!r}")

    def _learn_absence(self, path: str) -> None:
        self._doubt_reads()
        gone = self._nodes.pop(path, None)
        if gone is not None:
            self._lost.put(path, True)
            if gone.kind == "sharded":
                self._vanished[path] = gone
        if path not in self._lost:
            self._absent.put(path, self._clock())

    async def node(self, path: str, *, fresh: bool = False) -> Node | None:
        """Return the node at ``path``; with ``fresh``, as the storage has it now."""
        known = self.known(path)
        if known is not None and not fresh:
            return known
        return (await self.load([path], since=None if fresh else LONG_AGO))[path]

    # -- from keys to chunks ---------------------------------------------------------------------------------------

    async def locate(self, keys: Sequence[str], *, for_write: bool) -> list[Target]:
        """Return what each key means. That takes at most one round of metadata requests as a rule, and none if all arrays are fresh.

        Raises:
            NotFound: (writes) the key is a chunk of an array that was sharded and that has been deleted or moved.
        """
        if (together := await self.locate_together(keys, for_write=for_write)) is not None:
            return together.targets(keys)
        targets: list[Target | None] = [None] * len(keys)
        undecided: list[tuple[int, list[tuple[str, str]]]] = []
        for i, key in enumerate(keys):
            path = metadata_path(key)
            if path is not None:
                targets[i] = MetadataTarget(key, path)
            else:
                undecided.append((i, possible_owners(key)))
        loaded: set[str] = set()
        while undecided:
            to_load: dict[str, None] = {}
            waiting: list[tuple[int, list[tuple[str, str]]]] = []
            for i, owners in undecided:
                found = await self._decide(keys[i], owners, loaded, for_write)
                if isinstance(found, list):
                    to_load.update(dict.fromkeys(found))
                    waiting.append((i, owners))
                else:
                    targets[i] = found
            if to_load:
                await self.load(to_load, even_hidden=True, since=None if for_write else LONG_AGO)
                loaded.update(to_load)
            undecided = waiting
        return [t for t in targets if t is not None]

    async def _decide(
        self, key: str, owners: list[tuple[str, str]], loaded: Collection[str], for_write: bool
    ) -> ChunkTarget | PlainTarget | GoneTarget | list[str]:
        """Return what a key means, which is no document's; or the paths of the documents that have to be read first.

        A known array only has to be confirmed; otherwise every possible owner has to be asked. ``loaded`` were read just now.
        """
        owner = self.owner(owners)
        if owner is not None:
            node, coords = owner
            if self.may_trust(node, for_write) or node.path in loaded:
                return PlainTarget(key) if node.layout is None else ChunkTarget.of(key, node, node.layout, coords)
            return [node.path]
        if missing := [path for path, _ in owners if path not in loaded and (for_write or not self._recently_asked(path))]:
            return missing
        await self._check_hidden(owners)
        return GoneTarget(key) if self._vanished_owner(owners, for_write) else self._plain(key, owners)

    def fresh_chunk(self, key: str) -> ChunkTarget | None:
        """Return the chunk that ``key`` means, if it is known, its array need not be looked at again, and its shard is a stored object.

        From any thread.
        """
        owner = None if self._pending or metadata_path(key) is not None else self.owner(possible_owners(key))
        if owner is None or (layout := self.stored_layout(owner[0])) is None or not self.is_fresh(owner[0]):
            return None
        return ChunkTarget.of(key, owner[0], layout, owner[1])

    def stored_layout(self, node: Node | None) -> ArrayLayout | None:
        """Return the layout of a sharded array whose shards are stored objects, and which no transaction changes; from any thread."""
        return None if node is None or self.stored_array(node) is None else node.layout

    def stored_array(self, node: Node) -> PlainArray | None:
        """Return an array, sharded or not, whose shards or chunks are stored objects, and which no transaction changes; from any thread."""
        return None if self._pending or node.is_uncommitted or node.path in self.deep_arrays else node.array

    async def locate_together(self, keys: Sequence[str], *, for_write: bool) -> LocatedChunks | None:
        """Locate many keys, if all are chunks of the sharded array of the first one; otherwise return ``None``.

        If keys begin with the path of a known array and ``c/`` or ``c.``, no array further out can be the owner. Raises as that does.
        """
        if len(keys) < MANY_KEYS:
            return None
        (first,) = await self.locate(keys[:1], for_write=for_write)
        return _located_with(first, keys) if isinstance(first, ChunkTarget) else None

    def fresh_together(self, keys: Sequence[str]) -> LocatedChunks | None:
        """Do the same if the array is known and fresh; from any thread."""
        first = self.fresh_chunk(keys[0]) if len(keys) >= MANY_KEYS else None
        return None if first is None else _located_with(first, keys)

    def may_trust(self, node: Node, for_write: bool) -> bool:
        """Return whether the remembered document of an array need not be read again.

        For reads a sharded array is checked again together with its indices. An array that is not sharded has no indices: only its
        document shows whether its chunk keys have become shards.
        """
        return self.is_fresh(node) or (not for_write and node.layout is not None)

    def owner(self, owners: list[tuple[str, str]], *, fresh: bool = False) -> tuple[Node, ChunkCoords] | None:
        """Return the outermost known array that has such a chunk, and the chunk; ``owners`` are the ``possible_owners`` of its key.

        With ``fresh``, arrays whose documents have to be read again do not count.
        """
        for path, rest in owners:
            node = self.known(path)
            if node is not None and (coords := node.coords_of(rest)) is not None and (not fresh or self.is_fresh(node)):
                return node, coords
        return None

    def _recently_asked(self, path: str) -> bool:
        """Return whether the document of ``path`` was read, or found absent, a short while ago, so that a read need not ask for it."""
        known = self.known(path)
        return self.recently_absent(path) if known is None else self.is_fresh(known)

    def recently_absent(self, path: str) -> bool:
        at = self._absent.peek(path)
        return at is not None and self._clock() - at <= self._ttl

    def vanished(self, path: str) -> Node | None:
        """Return the sharded array that this process knew at ``path``, where another client has deleted it since."""
        return self._vanished.get(path)

    def _vanished_owner(self, owners: list[tuple[str, str]], for_write: bool) -> bool:
        """Return whether the key is a chunk of an array that was sharded and is gone: it must not become an object of its own."""
        for path, rest in owners:
            node = self._vanished.get(path)
            if node is None or node.coords_of(rest) is None:
                continue
            if for_write:
                raise NotFound(
                    f"array {path!r} was sharded and has been deleted or moved: create it again, or open what is there now, "
                    "before writing its chunks"
                )
            return True
        return False

    def _plain(self, key: str, owners: list[tuple[str, str]]) -> PlainTarget:
        unreadable = [node for path, _ in owners if (node := self.known(path)) is not None and node.kind == "other"]
        if not unreadable:
            return PlainTarget(key)
        worst = max(unreadable, key=lambda node: ("", "empty", "json").index(node.damage))
        return PlainTarget(key, f"{metadata_key(worst.path)!r}: {worst.reason}", not worst.damage, worst.damage != "json")
