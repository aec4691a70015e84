"""Snapshots of versioned stores behind an ``@`` in a URL: ``URL@branch``, ``URL@tag`` or ``URL@<id of a snapshot>``, and a path in it.

``storage.opening.snapshot_urls`` cuts URLs, asks for the pointer of a store, and loads this where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from shardstore._sync import run_sync
from shardstore.engine.options import EngineOptions
from shardstore.errors import Corruption, InvalidInput, NotFound, ReadOnly, Unsupported
from shardstore.extras import how_to_install
from shardstore.format.snapshots.state import Snapshot, State
from shardstore.format.snapshots.structure import Structure
from shardstore.format.store_keys import check_node_path, join
from shardstore.model.redaction import redacted
from shardstore.opening.open import open_storage
from shardstore.opening.snapshot_place import POINTER_KEY, WHY_READ_ONLY, NewHierarchy, Pinned, SnapshotName, SnapshotPlace
from shardstore.plan.policy import ShardingPolicy
from shardstore.snapshots.catalog import DEFAULT_NAME, Pointer, StorageCatalog, pointer_in
from shardstore.snapshots.conflicts import ConflictDetector
from shardstore.snapshots.files import StoreFiles
from shardstore.snapshots.lookup import snapshot_of, still_there
from shardstore.snapshots.session import WHY_FLAGGED, SessionCore
from shardstore.snapshots.session_storage import SessionStorage
from shardstore.snapshots.versioned_store import COMMIT_TRIES, CommitRequest, CurrentState, VersionedStore
from shardstore.snapshots.virtual_files import VirtualFiles
from shardstore.storage.base import Found, Storage


def _cut(state: State, rest: str, url: str) -> tuple[Snapshot, str, str]:
    """Return the snapshot that the longest beginning of a text names, this beginning, and the path behind it. Raises ``NotFound``."""
    parts = rest.split("/")
    for number in range(len(parts), 0, -1):
        name = "/".join(parts[:number])
        if name in state.refs or name in state.snapshots:
            return snapshot_of(state, name), name, "/".join(parts[number:])
    try:
        return snapshot_of(state, parts[0]), "", ""
    except NotFound as exc:
        raise NotFound(f"{url}@{rest} names no snapshot: {exc}. `shardstore snapshots log {url}` shows them") from exc


async def find_snapshot(name: SnapshotName, storage: Storage, found: Found, pinned: Pinned | None) -> NamedSnapshot | None:
    """Return the snapshot that a target names; see ``SnapshotFinder``."""
    try:
        pointer = pointer_in(found, POINTER_KEY, storage.url)
    except Corruption:  # a file of this name that is not of a versioned store
        return None
    return await _in_store(name, _store(storage), pointer, pinned)


@contextmanager
def needing_pyarrow(what: str) -> Iterator[None]:
    """Say in the block how to install pyarrow if it is missing; ``what`` takes it. Raises ``Unsupported``."""
    try:
        yield
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "pyarrow":
            raise
        raise Unsupported(f"{what} takes pyarrow: {how_to_install('parquet')}") from exc


async def current_state(storage: Storage) -> State:
    """Return the state of the versioned store whose files, and whose pointer, are at the root of a storage. Raises ``NotFound``."""
    return (await _store(storage).now()).state


async def state_at(target: Any, storage_options: Mapping[str, Any] | None = None) -> State:
    """Return the state of the versioned store at a URL, whose pointer lies next to its files. Raises ``NotFound``."""
    return await current_state(open_storage(target, dict(storage_options or {}) or None))


def _files_of(name: SnapshotName) -> Storage:
    return open_storage(name.target, name.storage_options, transport=name.transport)


def _store(storage: Storage) -> VersionedStore:
    return VersionedStore(StoreFiles(storage), StorageCatalog(storage), DEFAULT_NAME)


async def _in_store(name: SnapshotName, store: VersionedStore, pointer: Pointer, pinned: Pinned | None) -> NamedSnapshot:
    async def read(current: CurrentState) -> NamedSnapshot:
        state = current.state
        if pinned is None:
            snapshot, ref, path = _cut(state, name.rest, store.url)
        else:
            if not f"{name.rest}/".startswith(f"{pinned.ref}/"):
                raise NotFound(f"{store.url} was opened at {pinned.ref!r}, and {name.rest!r} is not in it")
            snapshot = still_there(state, pinned.snapshot_id, store.url)
            ref, path = pinned.ref, name.rest[len(pinned.ref) + 1 :]
        with needing_pyarrow(f"{store.url} is a versioned store, and to read one"):
            structure = await store.files.structure(snapshot.structure)
        return NamedSnapshot(name, Pinned(ref, snapshot.id), path, store.url, snapshot, structure)

    return await store.with_current_state(read, pointer)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class NamedSnapshot(SnapshotPlace):
    """A snapshot that a target names, or what lies below a path in it."""

    store_url: str
    """The URL of the store, without credentials."""
    snapshot: Snapshot
    structure: Structure
    root: str = ""
    """The path in the snapshot that is the root of what ``open`` returns."""

    def __reduce__(self) -> tuple[object, tuple[SnapshotName, Pinned, str]]:
        return _again, (self.name, self.pinned, self.root)

    @property
    def url(self) -> str:
        whole = f"{self.store_url}@{self.pinned.ref}"
        return f"{whole}/{self.root}" if self.root else whole

    @property
    def described(self) -> str:
        written = datetime.fromtimestamp(self.snapshot.timestamp_ms / 1000, UTC)
        return f"{self.snapshot.id} of {written:%Y-%m-%d %H:%M:%S} UTC: {self.snapshot.properties.get('message', '')}"

    @property
    def depth(self) -> int:
        return self.name.depth + 1 + self.pinned.ref.count("/")

    def below(self, path: str) -> NamedSnapshot:
        return replace(self, root=path)

    def new_hierarchy(self, pack: ShardingPolicy, max_memory: int) -> NewHierarchy:
        return run_sync(_new_hierarchy(self, pack, max_memory))

    def open(self) -> SessionStorage:
        storage = _files_of(self.name)
        session = SessionCore(StoreFiles(storage), self.snapshot, _below(self.structure, self.root), None)
        session.why_read_only = WHY_READ_ONLY
        limits = EngineOptions().read_limits(storage.kind)
        again = partial(_open_again, self.name, self.pinned, self.root)
        return SessionStorage(session, self.url, limits, VirtualFiles(storage), again, partial(current_state, storage))


async def _new_hierarchy(place: NamedSnapshot, pack: ShardingPolicy, max_memory: int) -> NewHierarchy:
    store = _store(_files_of(place.name))
    branch = place.pinned.ref
    current = await store.now()
    ref = current.state.refs.get(branch)
    if ref is None or ref.type != "branch":
        raise ReadOnly(f"{redacted(place.url)} is not a branch, so nothing can be written there: name a branch, such as @main")
    check_node_path(place.path)
    current, tip = await store.opened(lambda state: state.snapshots[state.ref(branch, "branch").snapshot])
    structure = await store.files.structure(tip.structure)
    session = SessionCore(store.files, tip, structure, branch, pack=pack, max_memory=max_memory, began=current.state.generation)
    if structure.is_flagged:
        session.why_read_only = WHY_FLAGGED
    session.check_writable("writing")
    return _BranchHierarchy(store, current, session, place)


class _BranchHierarchy(NewHierarchy):
    """A hierarchy that is written apart, and becomes part of a branch by one commit."""

    def __init__(self, store: VersionedStore, current: CurrentState, session: SessionCore, place: NamedSnapshot) -> None:
        self._store, self._current, self._session, self._path = store, current, session, place.path
        self._staged = staging_session(session)
        self.files = store.files.given
        limits = EngineOptions().read_limits(self.files.kind)
        self.storage = SessionStorage(self._staged, place.below(place.path).url, limits, VirtualFiles(self.files), None, store.state)
        there = list(session.nodes_below(place.path).values())
        is_empty = not there or (len(there) == 1 and not there[0].is_array and not there[0].columns.attributes and not there[0].attributes)
        self.takes_place_of = None if is_empty else "1 node" if len(there) == 1 else f"{len(there)} nodes"

    async def commit(self, message: str) -> str:
        replaces = self.takes_place_of is not None
        insert(self._session, self._staged, self._path, replaces=replaces)
        # In place of the whole hierarchy, any commit since is a conflict.
        solver = None if replaces and not self._path else ConflictDetector()
        return await self._store.commit(self._session, self._current, CommitRequest(message, None, solver, COMMIT_TRIES))


def staging_session(session: SessionCore) -> SessionCore:
    """Return a session without nodes, to write a hierarchy that becomes part of ``session`` as a whole, or never.

    Its chunks go into the same chunk files as those of ``session``, and its nodes get ids that no node of that has.
    """
    staged = SessionCore(session.files, session.snapshot, replace(session.base, nodes={}), session.branch)
    staged.gatherer, staged.ids = session.gatherer, session.ids
    return staged


def insert(session: SessionCore, staged: SessionCore, path: str, *, replaces: bool) -> None:
    """Put a staged hierarchy at a path of its session, in place of what is there. Groups above the path are made.

    With ``replaces`` all that is there becomes other nodes, but for the root: a concurrent change of any of it is a conflict. Without it,
    a group that takes the place of a group keeps its id, and a concurrent change inside of that group is none.

    Raises:
        InvalidInput: a node above the path is an array, or no node can have this path. Nothing was changed.
        ReadOnly: nothing can be changed.
    """
    session.check_writable(f"writing {path!r}")
    check_node_path(path)
    if (above := session.array_above(path)) is not None:
        raise InvalidInput(f"nothing can be put at {path!r}: {above!r} is an array")
    old = session.nodes_below(path)
    for one in old:
        session.remove_node(one)
    session.make_groups_above(path)
    kept = {one: node.id for one, node in old.items() if not node.is_array and (not replaces or not one)}
    for below, node in staged.nodes.items():
        at = join(path, below) if below else path
        new = session.nodes[at] = replace(node, path=at, id=node.id if node.is_array else kept.get(at, node.id))
        session.documents[new.id] = staged.documents[node.id][0], session.new_serial()
    session.add_staged(staged)


def _below(structure: Structure, root: str) -> Structure:
    """Return the nodes at and below a path, by their paths from there."""
    if not root:
        return structure
    below = {path[len(root) + 1 :]: node for path, node in structure.nodes.items() if f"{path}/".startswith(f"{root}/")}
    return replace(structure, nodes={path: replace(node, path=path) for path, node in below.items()})


def _again(name: SnapshotName, pinned: Pinned, root: str) -> NamedSnapshot:
    """Return the snapshot in another process, by requests."""
    store = _store(_files_of(name))
    pointer = run_sync(store.now()).pointer
    return run_sync(_in_store(name, store, pointer, pinned)).below(root)


def _open_again(name: SnapshotName, pinned: Pinned, root: str) -> SessionStorage:
    return _again(name, pinned, root).open()
