"""One session: a snapshot, and what has been changed since. No other session sees a change before it is committed.

The nodes of a session are those of its snapshot until they change; its chunks are looked up among its own first, and then in the manifests,
the newest first (D25).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shardstore.errors import InvalidInput, NotFound, ReadOnly
from shardstore.format.chunk_keys import ChunkKeyEncoding, parse_chunk_key_encoding
from shardstore.format.json_text import JsonObject, dumps, loads_object
from shardstore.format.metadata_v3 import mentions_sharding
from shardstore.format.snapshots.manifest import GONE, ChunkRefs, check_settable, merged, subset, without_gone
from shardstore.format.snapshots.node_columns import NodeColumns, to_columns, to_document
from shardstore.format.snapshots.state import Snapshot
from shardstore.format.snapshots.structure import ManifestPart, Node, Structure
from shardstore.format.store_keys import check_node_path, check_node_paths, groups_above, join
from shardstore.model.chunks import ChunkCoords
from shardstore.opening.snapshot_place import HOW_TO_CHANGE
from shardstore.plan.policy import ShardingPolicy
from shardstore.snapshots.chunk_files import ABSENT, FOLDED_AT, HELD, ArrayChanges, ChunkGatherer, ChunkPlaces, Written
from shardstore.snapshots.conflicts import ReadSet
from shardstore.snapshots.files import KnownRefs, StoreFiles

MAX_MEMORY = 256 << 20
"""The bytes of chunks that a session holds before it stores some, by default."""

WHY_FLAGGED = "its structure has flags that this version of shardstore does not know"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A commit of a session whose outcome may be unknown."""

    snapshot: Snapshot
    serial: int
    """The session's, at that time: what was changed since is no part of the snapshot."""


@dataclass(frozen=True, slots=True)
class ArrayKeys:
    """The form of the keys of an array's chunks."""

    node: Node
    prefix: str
    """The path of the array with ``/``, or ``""`` for the root."""
    encoding: ChunkKeyEncoding
    ndim: int

    def coords(self, key: str) -> ChunkCoords | None:
        """Return the chunk of a key that starts with ``prefix``; ``None`` if it is none of this array."""
        return self.encoding.decode(key[len(self.prefix) :], self.ndim)

    def key(self, coords: ChunkCoords) -> str:
        return self.prefix + self.encoding.encode(coords)


class SessionCore:
    """The nodes and chunks that one session sees. Runs on the IO loop; not by several loops or processes."""

    def __init__(
        self,
        files: StoreFiles,
        snapshot: Snapshot,
        structure: Structure,
        branch: str | None,
        *,
        pack: ShardingPolicy = "auto",
        max_memory: int = MAX_MEMORY,
        serializable: bool = False,
        began: int = 0,
    ) -> None:
        self.files = files
        self.began = began
        """The generation of the state with which it began."""
        self.snapshot = snapshot
        self.base = structure
        self.branch = branch
        """The branch that a commit moves; ``None``: nothing can be changed."""
        self.why_read_only = "" if branch is not None else "it was opened to read"
        self.reads = ReadSet() if serializable else None
        """What was read; ``None`` where that does not count."""
        self.gatherer = ChunkGatherer(files, pack, max_memory)
        self.folded_at = FOLDED_AT
        """The number of stored chunks of an array at which they become references."""
        self.nodes: dict[str, Node] = dict(structure.nodes)
        self.changes: dict[int, ArrayChanges] = {}
        self.documents: dict[int, tuple[bytes, int]] = {}
        """Documents as they were written, with their serials."""
        self.serial = 0
        """Grows with each change."""
        self.attempts: list[Attempt] = []
        """Commits whose outcome is unknown: the answer was lost."""
        self._pid = os.getpid()
        self._array_keys: dict[int, ArrayKeys] = {}
        self.ids = {node.id for node in structure.nodes.values()}
        """The ids that nodes have or had in this session."""

    # -- nodes ---------------------------------------------------------------------------------------------------------

    @property
    def is_changed(self) -> bool:
        return any(self.changes.values()) or self.nodes != self.base.nodes

    @asynccontextmanager
    async def frozen(self, reason: str) -> AsyncIterator[None]:
        """Refuse changes while the block runs, for this reason. The block begins when all writes that are under way have ended."""
        before, self.why_read_only = self.why_read_only, reason
        try:
            await self.gatherer.settled()
            yield
        finally:
            if self.why_read_only == reason:
                self.why_read_only = before

    @contextmanager
    def appending(self) -> Iterator[None]:
        """Let the session be changed while it is being committed. What an append reads does not count: it is repeated if that changes."""
        before, self.why_read_only, self.reads = (self.why_read_only, self.reads), "", None
        try:
            yield
        finally:
            self.why_read_only, self.reads = before

    def committed(self, snapshot: Snapshot) -> None:
        """Note that everything is part of a snapshot now."""
        self.why_read_only = f"it has been committed, as snapshot {snapshot.id}"
        self.snapshot = snapshot

    def carried_out(self, snapshots: Container[str]) -> Attempt | None:
        """Return the attempt to commit whose snapshot is among these; ``None`` if none is."""
        return next((attempt for attempt in self.attempts if attempt.snapshot.id in snapshots), None)

    def check_writable(self, what: str) -> None:
        """Raise ``ReadOnly`` if nothing can be changed."""
        if self._pid != os.getpid():
            raise ReadOnly(
                f"{what} in {self.files.url}: this session belongs to the process that opened it, and what another one writes into it "
                "would be lost. Give it session.fork() by pickle, and merge what comes back"
            )
        if self.why_read_only:
            raise ReadOnly(f"{what} in {self.files.url}: this session cannot write, since {self.why_read_only}. {HOW_TO_CHANGE}")

    def array(self, path: str) -> Node:
        """Return the array at a path. Raises ``NotFound`` if there is none."""
        node = self.nodes.get(path)
        if node is None or not node.is_array:
            raise NotFound(f"there is no array at {path!r} in this session of {self.files.url}")
        return node

    def new_serial(self) -> int:
        self.serial += 1
        return self.serial

    def new_node_id(self) -> int:
        """Return an id that no node has, nor had in this session (D14)."""
        while (found := int.from_bytes(self.files.random(4))) in self.ids:
            pass
        self.ids.add(found)
        return found

    async def document(self, path: str) -> tuple[bytes, str] | None:
        """Return the document of the node at a path, and a text that names its version at this path; ``None`` if there is no node."""
        node = self.nodes.get(path)
        if self.reads is not None:
            self.reads.read_document(path, node)
        if node is None:
            return None
        if (written := self.documents.get(node.id)) is not None:
            return written[0], f"w{written[1]}"
        data = dumps(to_document(await self.full_columns(node)))
        # A rebase or a merge may give the node another document.
        return data, f"b{hashlib.blake2b(data, digest_size=16).hexdigest()}"

    async def full_columns(self, node: Node) -> NodeColumns:
        """Return the columns of a node with its attributes, wherever they are."""
        if node.attributes is None:
            return node.columns
        return replace(node.columns, attributes=await self.files.attributes(node.attributes.file, node.attributes.row))

    def own_document(self, path: str) -> tuple[Node | None, tuple[bytes, int] | None]:
        """Return the node at a path, and its document if it was written. Each write makes a new object of one of the two."""
        node = self.nodes.get(path)
        return node, None if node is None else self.documents.get(node.id)

    async def set_document(self, path: str, data: bytes, check: Callable[[], Awaitable[None]] | None = None) -> int:
        """Make the node at a path, or change it; return the serial of the document.

        ``check`` raises if it may not be written; the document does not change between that and the write.

        Raises:
            InvalidInput: it is no document of Zarr v3, or one that a versioned store cannot hold; or no node can have this path.
        """
        self.check_writable(f"writing {join(path, 'zarr.json')!r}")
        while True:
            old, written = self.own_document(path)
            if check is not None:
                await check()
            if old is None:
                check_node_path(path)
            columns = _columns_of(path, loads_object(data))
            was = None if old is None else await self.full_columns(old)
            self.check_writable(f"writing {join(path, 'zarr.json')!r}")
            if self.nodes.get(path) is old and (old is None or self.documents.get(old.id) is written):
                return self._put_document(path, data, columns, old, was)

    def _put_document(self, path: str, data: bytes, columns: NodeColumns, old: Node | None, was: NodeColumns | None) -> int:
        """Replace the node ``old``, whose columns with all attributes are ``was``."""
        if old is not None and _ndim(old.columns) != _ndim(columns):
            self.remove_node(path)
            old = None
        if old is None:
            node = Node(self._group_id(path) if columns.array is None else self.new_node_id(), path, columns)
        else:
            if self.reads is not None:  # only what differs from the old document counts as changed
                self.reads.read_attributes(old)
            if was == columns:
                node = old
            elif was is not None and was.attributes == columns.attributes:
                node = replace(old, columns=replace(columns, attributes=old.columns.attributes))
            else:
                node = replace(old, columns=columns, attributes=None)
        self.nodes[path] = node
        self._array_keys.pop(node.id, None)
        serial = self.new_serial()
        self.documents[node.id] = data, serial
        return serial

    def _group_id(self, path: str) -> int:
        """Return the id for a group that is made at a path: that of the group which was there, if this session has removed it."""
        was = self.base.nodes.get(path)
        if was is None or was.is_array or any(node.id == was.id for node in self.nodes.values()):
            return self.new_node_id()
        return was.id

    def remove_node(self, path: str) -> bool:
        """Remove a node, and all chunks that it has; return whether there was one."""
        self.check_writable(f"deleting {path!r}")
        node = self.nodes.pop(path, None)
        if node is None:
            return False
        self._find(node)
        self.new_serial()
        self.changes.pop(node.id, None)
        self.documents.pop(node.id, None)
        self._array_keys.pop(node.id, None)
        self.gatherer.forget_array(node.id)
        return True

    def make_group(self, path: str) -> None:
        """Make the node at a path a group without attributes."""
        self.nodes[path] = Node.of(self._group_id(path), path, {"zarr_format": 3, "node_type": "group"})

    def make_groups_above(self, path: str) -> None:
        for parent in groups_above(path):
            if parent not in self.nodes:
                self.make_group(parent)

    def array_above(self, path: str) -> str | None:
        """Return the path of an array above a path, where no node can be then; ``None`` if there is none."""
        return next((one for one in groups_above(path) if (node := self.nodes.get(one)) is not None and node.is_array), None)

    def nodes_below(self, path: str) -> dict[str, Node]:
        """Return the node at a path and all below it, by path; ``""`` is the root of all."""
        return {one: node for one, node in self.nodes.items() if not path or f"{one}/".startswith(f"{path}/")}

    def move(self, source: str, target: str) -> bool:
        """Move the node at a path, and all below it, as ``Session.move``; return whether there was anything. Groups above are made."""
        self.check_writable(f"moving {source!r}")
        check_node_path(target)
        if not source or f"{target}/".startswith(f"{source}/"):
            raise InvalidInput(f"{source!r} cannot be moved to {target!r}, which is inside of it")
        if any(path == target or path.startswith(f"{target}/") for path in self.nodes):
            raise InvalidInput(f"{source!r} cannot be moved to {target!r}: there is something already; move or delete that first")
        if (above := self.array_above(target)) is not None:
            raise InvalidInput(f"{source!r} cannot be moved to {target!r}: {above!r} is an array")
        moving = self.nodes_below(source)
        if moving:
            self.new_serial()
            self.make_groups_above(target)
        for path in moving:
            node = self.nodes.pop(path)
            self._find(node)
            self._array_keys.pop(node.id, None)
            self.nodes[target + path[len(source) :]] = replace(node, path=target + path[len(source) :])
        return bool(moving)

    def rearrange(self, paths: Mapping[str, str]) -> None:
        """Move nodes, each from one path to another, all at once: a path may be taken that another node leaves. Those that are not named
        are removed, with their chunks.
        """
        self.check_writable("moving nodes")
        check_node_paths(paths.values())
        for path in [path for path in self.nodes if path not in paths]:
            self.remove_node(path)
        self.new_serial()
        nodes = [(self.nodes[before], after) for before, after in paths.items()]
        self.nodes = {after: node if node.path == after else replace(node, path=after) for node, after in nodes}
        self._array_keys = {}

    def _find(self, node: Node) -> None:
        if self.reads is not None:
            self.reads.find(node)

    # -- keys ----------------------------------------------------------------------------------------------------------

    def keys_of(self, node: Node) -> ArrayKeys:
        """Return how the keys of an array's chunks are written."""
        known = self._array_keys.get(node.id)
        if known is None:
            encoding = parse_chunk_key_encoding(node.document["chunk_key_encoding"])
            assert encoding is not None  # or its document would have been refused
            prefix = f"{node.path}/" if node.path else ""
            known = self._array_keys[node.id] = ArrayKeys(node, prefix, encoding, ndim_of(node))
        return known

    def owner(self, key: str) -> ArrayKeys | None:
        """Return the array that a key may be a chunk of: the outermost one that it lies below."""
        at = key.find("/")
        while at >= 0:
            node = self.nodes.get(key[:at])
            if node is not None and node.is_array:
                return self.keys_of(node)
            at = key.find("/", at + 1)
        root = self.nodes.get("")
        return self.keys_of(root) if root is not None and root.is_array else None

    # -- chunks --------------------------------------------------------------------------------------------------------

    async def places(self, node: Node, coords: npt.NDArray[np.uint64]) -> ChunkPlaces:
        """Return where ``(n, ndim)`` chunks of an array are."""
        places = ChunkPlaces.unknown(len(coords))
        self._own_places(node, coords, places)
        if self.reads is not None:
            self.reads.read_chunks(node, coords[places.file == ABSENT])
        await self._stored_places(node, coords, places)
        return places

    def _own_places(self, node: Node, coords: npt.NDArray[np.uint64], places: ChunkPlaces) -> None:
        changes = self.changes.get(node.id)
        if not changes:
            return
        if changes.bulk is not None:
            rows = changes.bulk.find(coords)
            numbers = np.flatnonzero(rows >= 0)
            places.take(changes.bulk, numbers, rows[numbers])
        if not changes.chunks:
            return
        for number, one in enumerate(map(tuple, coords.tolist())):
            if one not in changes.chunks:
                continue
            places.data.pop(number, None)
            places.serials.pop(number, None)
            chunk = changes.chunks[one]
            if chunk is None:
                places.file[number] = GONE
                continue
            places.nbytes[number], places.serials[number] = chunk.nbytes, chunk.serial
            if chunk.data is not None:
                places.file[number], places.data[number] = HELD, chunk.data
            else:
                assert chunk.file is not None
                places.file[number], places.offset[number] = len(places.files), chunk.offset
                places.files.append(chunk.file)

    async def _stored_places(self, node: Node, coords: npt.NDArray[np.uint64], places: ChunkPlaces) -> None:
        """Look up in the manifests what the session has not changed; all of them at once."""
        left = np.flatnonzero(places.file == ABSENT)
        if not len(left) or not node.manifests:
            return
        asked: list[tuple[ManifestPart, npt.NDArray[np.intp]]] = []
        for part in node.manifests:
            inside = left[is_inside(coords[left], part)]
            if len(inside):
                asked.append((part, inside))
        found = await asyncio.gather(*(self.files.find(part.file, node.id, coords[numbers]) for part, numbers in asked))
        for (_, numbers), pieces in zip(asked, found, strict=True):  # the later ones count
            for known, which, rows in pieces:
                places.take(known, numbers[which], rows)

    async def without_needless(self, node: Node, refs: ChunkRefs) -> ChunkRefs:
        """Return the references without those that say that a chunk is gone which no manifest has."""
        gone = np.flatnonzero(refs.file == GONE)
        if not len(gone):
            return refs
        places = ChunkPlaces.unknown(len(gone))
        await self._stored_places(node, refs.coords[gone], places)
        kept = np.ones(len(refs), dtype=np.bool_)
        kept[gone] = places.exists
        return subset(refs, np.flatnonzero(kept))

    async def write_chunk(self, node: Node, coords: ChunkCoords, data: bytes) -> int:
        """Change a chunk; return its serial. Raises ``ShardStoreError``: a chunk file that became complete could not be stored; the chunk
        is changed, and waits.
        """
        self.check_writable(f"writing a chunk of {node.path!r}")
        self._find(node)
        chunk = Written(self.new_serial(), len(data), data)
        self.gatherer.forget(node, coords)
        changes = self.changes.setdefault(node.id, ArrayChanges())
        changes.chunks[coords] = chunk
        await self.gatherer.add(node, coords, chunk)
        changes.fold(len(coords), self.folded_at)
        return chunk.serial

    def erase_chunk(self, node: Node, coords: ChunkCoords) -> None:
        """Erase a chunk, whether it is there or not."""
        self.check_writable(f"erasing a chunk of {node.path!r}")
        self._find(node)
        self.new_serial()
        self.gatherer.forget(node, coords)
        self.changes.setdefault(node.id, ArrayChanges()).chunks[coords] = None

    def set_refs(self, node: Node, refs: ChunkRefs) -> None:
        """Let chunks be where these references say. Raises ``InvalidInput`` if they cannot be stored."""
        self.check_writable(f"setting references of {node.path!r}")
        check_settable(refs)
        self._find(node)
        self._put_refs(node, refs)

    def _put_refs(self, node: Node, refs: ChunkRefs) -> None:
        self.new_serial()
        changes = self.changes.setdefault(node.id, ArrayChanges())
        for coords in map(tuple, refs.coords.tolist()) if changes.chunks else ():
            if changes.chunks.pop(coords, None) is not None:
                self.gatherer.forget(node, coords)
        changes.bulk = KnownRefs(refs if changes.bulk is None else merged(changes.bulk.refs, refs))

    async def all_refs(self, node: Node) -> ChunkRefs | None:
        """Return references of all chunks of an array that are there; ``None`` if nothing ever was."""
        if self.reads is not None:
            self.reads.list_chunks(node)
        whole = self.changes[node.id].refs(ndim_of(node)) if self.changes.get(node.id) else None
        for part in reversed(node.manifests):
            older = await self.files.refs_of(part.file, node.id, ndim_of(node))
            whole = older if whole is None else merged(older, whole)
        return None if whole is None else without_gone(whole)

    def changed_chunks(self) -> dict[int, npt.NDArray[np.uint64]]:
        """Return the chunks that were written or erased, by array, ``(n, ndim)``."""
        ndims = {node.id: ndim_of(node) for node in self.nodes.values()}
        found: dict[int, npt.NDArray[np.uint64]] = {}
        for array, changes in self.changes.items():
            if not changes or array not in ndims:
                continue
            coords = np.array(list(changes.chunks), dtype=np.uint64).reshape(len(changes.chunks), ndims[array])
            found[array] = coords if changes.bulk is None else np.concatenate([coords, changes.bulk.refs.coords])
        return found

    def stored_files(self) -> set[bytes]:
        """Return the ids of the chunk files to which the session's changes refer, of those that are stored."""
        return {file for changes in self.changes.values() for file in changes.stored_files()}

    def take_over(self, other: SessionCore) -> None:
        """Copy all changes of a fork into this session. The nodes of the fork have already been combined with those of this session."""
        self.new_serial()
        self.began = min(self.began, other.began)  # its chunk files may be as old, and garbage to a collection since then
        before = {node.id: node for node in self.nodes.values()}
        self.nodes, self._array_keys = other.nodes, {}
        self.ids |= other.ids
        nodes = {node.id: node for node in self.nodes.values()}
        self._take_changes(other.changes, nodes)
        self._keep_documents(before, nodes)
        for one, (document, _) in other.documents.items():
            if one in nodes:
                self.documents[one] = document, self.new_serial()
        if self.reads is not None and other.reads is not None:
            self.reads.update(other.reads)

    def _take_changes(self, taken: Mapping[int, ArrayChanges], nodes: Mapping[int, Node]) -> None:
        """Add the changes of a fork to those of this session, as far as their arrays are among ``nodes``, by id; the fork's count."""
        self.changes = {one: changes for one, changes in self.changes.items() if one in nodes}
        for one, changes in taken.items():
            if not changes or one not in nodes:
                continue
            if changes.bulk is not None:
                self._put_refs(nodes[one], changes.bulk.refs)
            own = self.changes.setdefault(one, ArrayChanges())
            for coords, chunk in changes.chunks.items():
                self.gatherer.forget(nodes[one], coords)
                own.chunks[coords] = None if chunk is None else replace(chunk, serial=self.new_serial())

    def _keep_documents(self, before: Mapping[int, Node], now: Mapping[int, Node]) -> None:
        """Forget the written documents of nodes, by id, that are gone, or that say something else now."""
        self.documents = {
            one: document
            for one, document in self.documents.items()
            if one in now and (one not in before or now[one].says_the_same(before[one]))
        }

    def add_staged(self, staged: SessionCore) -> None:
        """Add the changed chunks of a session whose nodes have become those of this one."""
        for changes in staged.changes.values():
            for chunk in changes.chunks.values():
                if chunk is not None:
                    chunk.serial += self.serial  # no two versions of one key have the same
        self.serial += staged.serial
        self.changes |= staged.changes

    def give_up_chunks(self, node: Node, coords: npt.NDArray[np.uint64]) -> None:
        """Forget what was done to ``(n, ndim)`` chunks of an array."""
        changes = self.changes[node.id]
        for one in map(tuple, coords.tolist()):
            if changes.chunks.pop(one, None) is not None:
                self.gatherer.forget(node, one)
        if changes.bulk is not None and len(coords):
            refs = changes.bulk.refs
            kept = np.ones(len(refs), dtype=np.bool_)
            rows = changes.bulk.find(coords)
            kept[rows[rows >= 0]] = False
            changes.bulk = KnownRefs(subset(refs, np.flatnonzero(kept)))

    def move_chunks(self, node: Node, axis: int, by: int) -> None:
        """Let all changed chunks of an array be those that lie ``by`` further along an axis. ``node`` is the array as it is now."""
        if (changes := self.changes.get(node.id)) is not None:
            changes.move(axis, by)
            self.gatherer.move(node, axis, by)

    def renumber(self, array: int, new: int) -> None:
        """Give a node that this session has made another id."""
        if (changes := self.changes.pop(array, None)) is not None:
            self.changes[new] = changes
        if (document := self.documents.pop(array, None)) is not None:
            self.documents[new] = document
        self.gatherer.renumber(array, new)

    def adopt(self, base: Structure, nodes: dict[str, Node]) -> None:
        """Make another snapshot the base of this session, with these nodes as its current ones."""
        self.base = base
        self.replace_nodes(nodes)

    def replace_nodes(self, nodes: dict[str, Node]) -> None:
        """Make these the nodes of this session; what was changed of arrays that are gone is forgotten."""
        before = {node.id: node for node in self.nodes.values()}
        self.nodes, self._array_keys = nodes, {}
        now = {node.id: node for node in nodes.values()}
        self.ids |= now.keys()
        self._keep_documents(before, now)
        self.changes = {one: changes for one, changes in self.changes.items() if one in now}

    def discard(self) -> None:
        self.new_serial()
        for array in self.changes:
            self.gatherer.forget_array(array)
        self.nodes = dict(self.base.nodes)
        self.changes, self.documents, self._array_keys = {}, {}, {}

    def arrays_below(self, prefix: str) -> Iterable[Node]:
        """Return the arrays of which some keys may start with a prefix."""
        for path, node in self.nodes.items():
            own = f"{path}/" if path else ""
            if node.is_array and (own.startswith(prefix) or prefix.startswith(own)):
                yield node


def ndim_of(node: Node) -> int:
    """Return the dimensions of an array; -1 for a group."""
    return _ndim(node.columns)


def _ndim(columns: NodeColumns) -> int:
    return -1 if columns.array is None else len(columns.array["shape"])


def is_inside(coords: npt.NDArray[np.uint64], part: ManifestPart) -> npt.NDArray[np.bool_]:
    """Return which of ``(n, ndim)`` chunks lie in the box of a manifest."""
    if not part.extent:
        return np.ones(len(coords), dtype=np.bool_)
    bounds = np.array(part.extent, dtype=np.uint64)
    inside: npt.NDArray[np.bool_] = np.all((coords >= bounds[:, 0]) & (coords < bounds[:, 1]), axis=1)
    return inside


def _columns_of(path: str, document: JsonObject) -> NodeColumns:
    """Return the columns of a document that a versioned store can hold. Raises ``InvalidInput``."""
    where = repr(path) if path else "the root"
    if document.get("zarr_format") != 3:
        raise InvalidInput(f"the document of {where} is not one of Zarr v3: open the session with present='v2' to write Zarr v2")
    columns = to_columns(document)
    if columns.array is None:
        return columns
    if mentions_sharding(document.get("codecs")) or document.get("storage_transformers"):
        raise InvalidInput(
            f"the array {where} is to be created with shards. In a versioned store, chunks are gathered into shards by the store itself: "
            "leave shards out, and give pack= when the repository is opened, if you want other shards than those by default"
        )
    if parse_chunk_key_encoding(document.get("chunk_key_encoding")) is None:
        raise InvalidInput(f"the array {where} has a chunk key encoding that is not known: {document.get('chunk_key_encoding')!r}")
    return columns
