"""The whole history of a repository of Icechunk as one of ours: chunks stay where they are, as virtual references, or are copied.

Each snapshot is written onto its parent, by what differs between them, the oldest first; then branches and tags. Nodes keep their identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from shardstore._sync import run_sync
from shardstore.adapters.versioned.opened import OpenedStore
from shardstore.adapters.versioned.session import Session
from shardstore.errors import InvalidInput, Unsupported
from shardstore.format.chunk_keys import parse_chunk_key_encoding
from shardstore.format.json_text import loads_object
from shardstore.format.metadata_v3 import METADATA_NAME
from shardstore.format.snapshots.structure import Node
from shardstore.format.store_keys import join
from shardstore.snapshots.reachable import Progress
from shardstore.snapshots.session import Session as SessionCore
from shardstore.snapshots.session import ndim_of
from shardstore.snapshots.versioned_store import FIRST_BRANCH
from shardstore.snapshots.virtual_files import virtual_refs

_WORK = "shardstore-import"
"""The branch on which snapshots are written; it is removed."""
_NATIVE, _VIRTUAL, _INLINE = 1, 2, 3
"""The values of ``icechunk.ChunkType``."""


def check_source(source: Any) -> None:
    """Raise ``InvalidInput`` or ``Unsupported`` if a source is no repository of icechunk 2."""
    if not type(source).__module__.startswith("icechunk"):
        raise InvalidInput(f"the source is an icechunk.Repository, not a {type(source).__name__}: open it by icechunk.Repository.open")
    if not hasattr(source.readonly_session(FIRST_BRANCH).store, "array_chunk_iterator"):
        raise Unsupported("this version of icechunk does not say where its chunks lie: import with icechunk 2, on Python 3.12 or newer")


def import_history(opened: OpenedStore, source: Any, chunks_url: str | None, say: Progress) -> dict[str, str]:
    """Write the history of a repository of icechunk into a new one of ours; return our ids of snapshots by its.

    ``chunks_url``: the folder of its chunk files; ``None``: their bytes are copied.
    """
    state = run_sync(opened.store.now()).state
    ids: dict[str, str] = {}
    first = state.ref(FIRST_BRANCH, "branch").snapshot
    snapshots = _in_order(source)
    run_sync(opened.store.create_ref(_WORK, first, "branch"))
    for number, (info, parent) in enumerate(snapshots):
        say("importing snapshots", number, len(snapshots))
        run_sync(opened.store.reset_branch(_WORK, first if parent is None else ids[parent], None))
        ids[info.id] = _Import(opened, source, chunks_url).write(info, parent)
    branches, tags = ({name: lookup(name) for name in names} for names, lookup in _refs(source))
    for name, snapshot in branches.items():
        if name == FIRST_BRANCH:
            run_sync(opened.store.reset_branch(name, ids[snapshot], None))
        else:
            run_sync(opened.store.create_ref(name, ids[snapshot], "branch"))
    for name, snapshot in tags.items():
        run_sync(opened.store.create_ref(name, ids[snapshot], "tag"))
    run_sync(opened.store.delete_ref(_WORK, "branch"))
    return ids


def _refs(source: Any) -> tuple[tuple[Iterable[str], Any], tuple[Iterable[str], Any]]:
    return (sorted(source.list_branches()), source.lookup_branch), (sorted(source.list_tags()), source.lookup_tag)


def _in_order(source: Any) -> list[tuple[Any, str | None]]:
    """Return all snapshots to which branches and tags lead, each behind its parent, and the parent's id."""
    found: dict[str, tuple[Any, str | None]] = {}
    for names, lookup in _refs(source):
        for name in names:
            line = list(source.ancestry(snapshot_id=lookup(name)))
            for at in range(len(line) - 1, -1, -1):
                parent = line[at + 1].id if at + 1 < len(line) else None
                found.setdefault(line[at].id, (line[at], parent))
    return list(found.values())


class _Import:
    """The import of one snapshot."""

    def __init__(self, opened: OpenedStore, source: Any, chunks_url: str | None) -> None:
        self._opened = opened
        self._source = source
        self._chunks_url = chunks_url

    def write(self, info: Any, parent: str | None) -> str:
        """Write a snapshot onto its parent, the tip of the branch of work; return its id."""
        moment = run_sync(self._opened.store.now())
        tip = moment.state.snapshots[moment.state.ref(_WORK, "branch").snapshot]
        session = Session(self._opened, moment, tip, branch=_WORK)
        theirs = self._source.readonly_session(snapshot_id=info.id)
        run_sync(self._write(session._core, theirs, info, parent))
        if parent is None and not session.has_uncommitted_changes:
            return tip.id  # nothing was there yet: the first snapshot here holds an empty group
        metadata = {**(info.metadata or {}), "icechunk.snapshot": info.id, "icechunk.written_at": info.written_at.isoformat()}
        return session.commit(info.message or f"snapshot {info.id}", metadata, allow_empty=True)

    async def _write(self, core: SessionCore, theirs: Any, info: Any, parent: str | None) -> None:
        store = theirs.store
        if parent is None:
            paths = [key.removesuffix(METADATA_NAME).rstrip("/") async for key in store.list() if key.rpartition("/")[2] == METADATA_NAME]
            for path in sorted(paths, key=lambda path: (path.count("/"), path)):
                await self._put_document(core, store, path)
            for path in paths:
                if core.nodes[path].is_array:
                    await self._put_chunks(core, store, path, None)
            return
        diff = self._source.diff(from_snapshot_id=parent, to_snapshot_id=info.id)
        for before, after in diff.moved_nodes:
            if core.has_nodes_at(_plain(before)):  # what is below has moved with it
                core.move(_plain(before), _plain(after))
        for path in map(_plain, (*diff.deleted_arrays, *diff.deleted_groups)):
            core.remove_node(path)
        new = {*map(_plain, (*diff.new_groups, *diff.new_arrays))}
        written = new | {*map(_plain, (*diff.updated_groups, *diff.updated_arrays))}
        for path in sorted(written, key=lambda path: (path.count("/"), path)):
            if path in new and path in core.nodes and path:
                core.remove_node(path)  # another node of the same name
            await self._put_document(core, store, path)
        chunks = {_plain(path): coords for path, coords in dict(diff.updated_chunks).items()}
        for path in sorted(chunks.keys() | {path for path in new if core.nodes[path].is_array}):
            await self._put_chunks(core, store, path, None if path in new else chunks[path])

    async def _put_document(self, core: SessionCore, store: Any, path: str) -> None:
        await core.set_document(path, await _bytes_of(store, join(path, METADATA_NAME)))

    async def _put_chunks(self, core: SessionCore, store: Any, path: str, changed: Iterable[Iterable[int]] | None) -> None:
        """Write the chunks of an array; ``changed`` are those that may be others than before, ``None``: all."""
        node = core.array(path)
        wanted = None if changed is None else {tuple(int(one) for one in coords) for coords in changed}
        there: set[tuple[int, ...]] = set()
        async for coords, kinds, paths, offsets, lengths, inlined in store.array_chunk_iterator(f"/{path}"):
            rows = range(len(coords)) if wanted is None else [row for row, one in enumerate(map(tuple, coords.tolist())) if one in wanted]
            there.update(tuple(one) for one in coords[list(rows)].tolist())
            await self._put_batch(core, node, store, np.array(rows, dtype=np.intp), coords, kinds, paths, offsets, lengths, inlined)
        for one in sorted((wanted or set()) - there):
            core.erase_chunk(node, one)

    async def _put_batch(
        self,
        core: SessionCore,
        node: Node,
        store: Any,
        rows: npt.NDArray[np.intp],
        coords: npt.NDArray[np.uint32],
        kinds: npt.NDArray[np.uint8],
        paths: list[str],
        offsets: npt.NDArray[np.uint64],
        lengths: npt.NDArray[np.uint64],
        inlined: Mapping[int, bytes],
    ) -> None:
        is_stored = kinds[rows] == _INLINE
        if self._chunks_url is None:
            is_stored |= kinds[rows] == _NATIVE
        encoding = parse_chunk_key_encoding(node.document["chunk_key_encoding"])
        assert encoding is not None
        for row in rows[is_stored].tolist():
            at = tuple(coords[row].tolist())
            data = inlined[row] if row in inlined else await _bytes_of(store, join(node.path, encoding.encode(at)))
            await core.write_chunk(node, at, bytes(data))
        left = rows[~is_stored]
        if len(left):
            urls = [paths[row] if kinds[row] == _VIRTUAL else f"{self._chunks_url}{paths[row]}" for row in left.tolist()]
            for url in set(urls):
                self._opened.virtual.check_authorised(url)
            core.set_refs(node, virtual_refs(ndim_of(node), coords[left], urls, offsets[left], lengths[left]))


async def _bytes_of(store: Any, key: str) -> bytes:
    from zarr.core.buffer import default_buffer_prototype  # comes with icechunk, and is slow to import

    data = await store.get(key, default_buffer_prototype())
    if data is None:
        raise InvalidInput(f"the repository of icechunk has no {key!r}, though it says so")
    found: bytes = data.to_bytes()
    if key.endswith(METADATA_NAME):
        loads_object(found)
    return found


def _plain(path: str) -> str:
    return path.strip("/")
