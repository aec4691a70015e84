"""The whole history of a repository as one of Icechunk, by virtual references into its chunk files: no chunk is copied.

Each snapshot is written onto its parent, by what differs between them, the oldest first, on a branch of work. What readers look at comes
last: tags, branches, and behind all of them ``main``. So an export that was interrupted shows an empty ``main``, and no tag.

::

    a snapshot      a commit, with shardstore.snapshot, .parent and .written_at in its metadata: its id and time are icechunk's own
    a chunk         a virtual reference; of those that are in manifests, the bytes
    the first one   follows the first snapshot that every repository of icechunk has, which holds nothing
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from inspect import signature
from typing import Any

import numpy as np

from shardstore._sync import run_sync
from shardstore.adapters.versioned.opened import OpenedStore
from shardstore.adapters.versioned.session import Session
from shardstore.errors import InvalidInput
from shardstore.format.snapshots.file_names import CHUNKS
from shardstore.format.snapshots.state import Snapshot, State
from shardstore.format.snapshots.structure import Node
from shardstore.model.chunks import ChunkCoords
from shardstore.model.redaction import redacted
from shardstore.opening.address import Address, text_of
from shardstore.opening.open import open_storage
from shardstore.references.choices import base_of
from shardstore.references.icechunk.histories import Coords, ShownArray, origin_metadata
from shardstore.references.icechunk.library import add_containers, credentials_for, library, location_of, place_of, storage_at, translated
from shardstore.references.icechunk.writing import SnapshotChanges, rewrite_root, storable, write_changes
from shardstore.snapshots.diffs import Diff, diff
from shardstore.snapshots.inspection import virtual_files
from shardstore.snapshots.lookup import FIRST_BRANCH
from shardstore.snapshots.reachable import Progress
from shardstore.snapshots.session import SessionCore
from shardstore.snapshots.versioned_store import CurrentState
from shardstore.storage.base import Storage

_WORK = "shardstore-export"
"""The branch on which snapshots are written, or the beginning of its name; it is removed."""


@dataclass(frozen=True, slots=True)
class IcechunkExport:
    """A history that was written into a repository of Icechunk."""

    location: str
    """Where it is, without credentials."""
    snapshots: Mapping[str, str]
    """The ids of Icechunk by those of the repository, in the order of commits."""
    branches: int
    tags: int
    references: int
    """The chunks that were written, over all snapshots."""
    copied: int
    """Those of them whose bytes were copied, since they lie in manifests."""
    without_bytes: int
    """Chunks of no bytes, which Icechunk does not store, and no codec can decode: they are read as fill values."""
    authorize_virtual_chunk_access: dict[str, Any] = field(repr=False)
    """The argument of ``icechunk.Repository.open`` for readers: credentials by place of the chunk files."""
    texts: int = 0
    """Nodes, over all snapshots, with attributes that are not finite numbers, which Icechunk cannot hold: they have become texts."""

    def __repr__(self) -> str:
        counts = f"{len(self.snapshots)} snapshots, {self.branches} branches, {self.tags} tags, {self.references:,} references"
        return f"<IcechunkExport to {self.location!r}: {counts}>"


def export(
    opened: OpenedStore, target: Any, config: Any, target_options: Mapping[str, Any] | None, say: Progress, *, dry_run: bool = False
) -> IcechunkExport:
    """Write the history into a new repository of icechunk; see ``Repository.export_icechunk``."""
    icechunk = library()
    current = run_sync(opened.store.now())
    storage = storage_at(target, target_options or {})
    shown = place_of(storage) or (" ".join(str(storage).split()) if isinstance(target, icechunk.Storage) else redacted(str(target)))
    if config is not None and not isinstance(config, icechunk.RepositoryConfig):
        raise InvalidInput(f"config is an icechunk.RepositoryConfig, not of type {type(config).__name__}")
    config = icechunk.RepositoryConfig.default() if config is None else icechunk.RepositoryConfig.default().merge(config)  # a copy
    check_names(current.state)
    ids, counts = dict.fromkeys(current.state.snapshots, ""), Counter[str]()
    with translated(_WORK):
        own = base_of(opened.store.files.given, "absolute", None, "") + CHUNKS
        options_of = partial(_options_of, opened)
        containers = add_containers(config, [own, *opened.options.virtual_prefixes], options_of)
        access = credentials_for(containers.values(), options_of)
        _check_containers(opened, config, say)
        if isinstance(target, icechunk.Storage):
            is_there = icechunk.Repository.exists(storage)
        else:  # without icechunk, which would make the folder
            is_there = run_sync(_has_any(open_storage(text_of(target), dict(target_options or {}) or None)))
        if is_there:
            raise _something_there(shown)
        if not dry_run:
            ids, counts = _Export(opened, current, _created(storage, config, shown)).write(say)
    types = [ref.type for ref in current.state.refs.values()]
    return IcechunkExport(
        location=shown,
        snapshots=ids,
        branches=types.count("branch"),
        tags=types.count("tag"),
        references=counts["references"],
        copied=counts["copied"],
        without_bytes=counts["without_bytes"],
        authorize_virtual_chunk_access=access,
        texts=counts["texts"],
    )


def check_names(state: State) -> None:
    """Raise ``InvalidInput`` if icechunk does not take a name of a branch or tag: different versions of it refuse different ones."""
    icechunk = library()
    trial = icechunk.Repository.create(icechunk.in_memory_storage())
    first = trial.lookup_branch(FIRST_BRANCH)
    for name, ref in state.refs.items():
        if name == FIRST_BRANCH:
            continue
        try:
            (trial.create_tag if ref.type == "tag" else trial.create_branch)(name, first)
            is_taken = name in (trial.list_tags() if ref.type == "tag" else trial.list_branches())
        except icechunk.IcechunkError:
            is_taken = False
        if not is_taken:
            raise InvalidInput(
                f"icechunk {icechunk.__version__} takes no {ref.type} of the name {name!r}: make one of another name at the same snapshot, "
                "delete this one, and export again. Nothing was written"
            )


# -- places ------------------------------------------------------------------------------------------------------------


def _options_of(opened: OpenedStore, url: str) -> Mapping[str, Any]:
    """Return the options of the place of a URL, as fsspec has them."""
    if f"{url.rstrip('/')}/".startswith(f"{opened.store.url.rstrip('/')}/"):
        return opened.options.storage_options or {}
    return opened.options.options_of_virtual.get(Address.parse(url).protocol, {})


def _check_containers(opened: OpenedStore, config: Any, say: Progress) -> None:
    """Raise ``InvalidInput`` if the config has no container for an object elsewhere to which a snapshot refers."""
    prefixes = tuple(one.url_prefix for one in (config.virtual_chunk_containers or {}).values())
    outside = sorted(url for url, _ in run_sync(virtual_files(opened.store, say)) if not location_of(url).startswith(prefixes))
    if outside:
        place = redacted(outside[0]).rpartition("/")[0]
        raise InvalidInput(
            f"snapshots refer to {len(outside)} objects elsewhere, such as {redacted(outside[0])}, for which the repository of icechunk "
            f"would have no virtual chunk container: give virtual_prefixes=['{place}/'], or what lies above, when this one is opened "
            "(in Python: or config= with a container). Nothing was written"
        )


async def _has_any(storage: Storage) -> bool:
    async for _ in storage.list(""):
        return True
    return False


def _something_there(shown: str) -> InvalidInput:
    return InvalidInput(
        f"there is something at {shown} already, and a history is exported into a new repository only: give another place, or remove what "
        "is there. An export that was interrupted leaves a part, with an empty branch main"
    )


def _created(storage: Any, config: Any, shown: str) -> Any:
    """Return a new repository of icechunk, whose stored config has the containers. Raises ``InvalidInput`` if there is something."""
    icechunk = library()
    try:
        repository = icechunk.Repository.create(storage, config)
    except icechunk.IcechunkError as exc:
        if "clean" not in str(exc) and "exists" not in str(exc):
            raise
        raise _something_there(shown) from exc
    repository.save_config()
    return repository


# -- snapshots ---------------------------------------------------------------------------------------------------------


class _Export:
    """One history on its way into a repository of icechunk."""

    def __init__(self, opened: OpenedStore, current: CurrentState, target: Any) -> None:
        self._opened = opened
        self._current = current
        self._target = target
        self._work = next(name for number in itertools.count() if (name := f"{_WORK}{number or ''}") not in current.state.refs)
        self._first = target.lookup_branch(FIRST_BRANCH)
        """The snapshot that every repository of icechunk begins with, which holds nothing."""
        self._ids: dict[str, str] = {}
        self._counts: Counter[str] = Counter()

    def write(self, say: Progress) -> tuple[dict[str, str], Counter[str]]:
        """Write all snapshots, and then tags and branches; return the ids of snapshots by ours, and what ``write_changes`` counts."""
        state = self._current.state
        self._target.create_branch(self._work, self._first)
        for number, snapshot in enumerate(state.snapshots.values()):  # parents come first
            say("exporting snapshots", number, len(state.snapshots))
            base = self._first if snapshot.parent is None else self._ids[snapshot.parent]
            if self._target.lookup_branch(self._work) != base:
                self._target.reset_branch(self._work, base)
            self._ids[snapshot.id] = self._write(snapshot)
        for name, ref in state.refs.items():
            if ref.type == "tag":
                self._target.create_tag(name, self._ids[ref.snapshot])
            elif name != FIRST_BRANCH:
                self._target.create_branch(name, self._ids[ref.snapshot])
        self._target.delete_branch(self._work)
        self._target.reset_branch(FIRST_BRANCH, self._ids[state.ref(FIRST_BRANCH, "branch").snapshot])
        say("exporting snapshots", len(state.snapshots), len(state.snapshots))
        return self._ids, self._counts

    def _write(self, snapshot: Snapshot) -> str:
        """Write one snapshot onto its parent, the tip of the branch of work; return its id in the target."""
        after = Session(self._opened, self._current, snapshot)
        if snapshot.parent is None:
            groups = frozenset(path for path, node in after._core.nodes.items() if not node.is_array)
            changes = SnapshotChanges(groups=groups, arrays=frozenset(after._core.nodes) - groups)
        else:
            before = Session(self._opened, self._current, self._current.state.snapshots[snapshot.parent])
            changes = run_sync(_between(before._core, after._core))
        session = self._target.writable_session(self._work)
        self._counts.update(write_changes(session, after.storage, changes))
        message = str(snapshot.properties.get("message", ""))
        metadata = _metadata(snapshot)
        if not session.has_uncommitted_changes:
            if "allow_empty" in signature(session.commit).parameters:
                return str(session.commit(message, metadata=metadata, allow_empty=True))
            rewrite_root(session)  # icechunk 1 has no commits without changes
        return str(session.commit(message, metadata=metadata))


async def _between(before: SessionCore, after: SessionCore) -> SnapshotChanges:
    found = await diff(before, after)
    nodes = after.nodes
    gone, written = _nodes_of(found, nodes)
    same = {path for path in (*found.updated_arrays, *found.updated_chunks) if path not in written}
    groups = {path for path in written if not nodes[path].is_array}
    erased, put = {}, {}
    for path in sorted(same):
        changed = await _changed_chunks(before, after, path, found.updated_chunks.get(path, ()))
        grids = [np.array(ShownArray(session.nodes[path].document, None).chunk_grid, dtype=np.uint64) for session in (before, after)]
        is_there = (await after.places(nodes[path], changed)).exists & (changed < grids[1]).all(axis=1)
        erased[path], put[path] = changed[~is_there & (changed < grids[0]).all(axis=1)], changed[is_there]
    return SnapshotChanges(
        gone=frozenset(gone),
        groups=frozenset(groups),
        arrays=frozenset(written - groups),
        documents=frozenset(path for path in found.updated_arrays if path in same),
        erased={path: coords for path, coords in erased.items() if len(coords)},
        written={path: coords for path, coords in put.items() if len(coords)},
    )


def _nodes_of(found: Diff, nodes: Mapping[str, Node]) -> tuple[set[str], set[str]]:
    """Return the paths that are gone, and those of nodes to be written whole, which arrays that stay are not."""
    moved_from, moved_to = ({pair[number] for pair in found.moved_nodes} for number in (0, 1))
    gone = {*found.deleted_groups, *found.deleted_arrays, *moved_from}
    written = {*found.new_groups, *found.new_arrays, *found.updated_groups, *moved_to}
    # What is below a path that goes, and stays in the snapshot, as a node of the same name does that was replaced, is written too.
    written |= {path for path in nodes for lost in gone if not lost or path == lost or path.startswith(f"{lost}/")}
    return gone, written


async def _changed_chunks(before: SessionCore, after: SessionCore, path: str, changed: Sequence[ChunkCoords]) -> Coords:
    """Return the chunks of an array that stays, ``(n, ndim)``, which were changed, or are inside of its shape in one snapshot only.

    The target never has chunks outside of a shape, which the repository may have: an array that grows again shows them again.
    """
    grids = [ShownArray(session.nodes[path].document, None).chunk_grid for session in (before, after)]
    found = [np.array(list(changed), dtype=np.uint64).reshape(len(changed), len(grids[0]))] if changed else []
    if grids[0] != grids[1]:
        for session, other in ((before, grids[1]), (after, grids[0])):
            refs = await session.all_refs(session.nodes[path])
            if refs is not None and len(refs):
                found.append(refs.coords[(refs.coords >= np.array(other, dtype=np.uint64)).any(axis=1)])
    if not found:
        return np.zeros((0, len(grids[0])), dtype=np.uint64)
    coords = np.concatenate(found)
    return coords[:1] if not coords.shape[1] else np.unique(coords, axis=0)


# -- metadata ----------------------------------------------------------------------------------------------------------


def _metadata(snapshot: Snapshot) -> dict[str, Any]:
    own = snapshot.properties.get("metadata")
    when = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
    user = {str(name): storable(value) for name, value in own.items()} if isinstance(own, Mapping) else {}
    return user | origin_metadata(snapshot.id, snapshot.parent, when)
