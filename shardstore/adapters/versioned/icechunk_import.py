"""The whole history of a repository of Icechunk as a versioned store: chunks stay in place, as virtual references, or are copied.

Snapshots keep their ids and times; what ``icechunk_export`` has written becomes again what it was, by what its metadata says. Each snapshot
is compared with its parent as a whole: documents, and where chunks lie, but for arrays whose manifests both share. Nodes keep their
identity through renames.

::

    a virtual chunk                     a virtual reference to the same bytes
    a native chunk                      a virtual reference to Icechunk's chunk file, which never changes; or a copy
    an inline chunk                     an inline chunk
    a chunk that is a shard             its inner chunks, of which the array is then one, likewise
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from shardstore._sync import run_sync
from shardstore.adapters.versioned.opened import OpenedStore
from shardstore.errors import InvalidInput, ShardStoreError, Unsupported
from shardstore.format.chunk_keys import ChunkKeyEncoding
from shardstore.format.json_text import dumps, loads_object
from shardstore.format.shard_index import ShardIndex
from shardstore.format.snapshots.manifest import GONE as GONE_FILE
from shardstore.format.snapshots.manifest import INLINE as INLINE_FILE
from shardstore.format.snapshots.manifest import ChunkRefs, in_a_row, subset
from shardstore.format.snapshots.state import Ref, check_ref_name
from shardstore.format.store_keys import join, metadata_key
from shardstore.model.containers import Lru, batched
from shardstore.model.ranges import ByteRange
from shardstore.model.redaction import redacted
from shardstore.references.icechunk.histories import (
    INLINE,
    NATIVE,
    Coords,
    ShownArray,
    SourceChunks,
    SourceHistory,
    SourceNode,
    SourceSnapshot,
    chunks_of,
    history_of,
    inner_chunks,
    nodes_of,
    opened_source,
    origin_in,
    shown_array,
    value_of,
    without_origin,
)
from shardstore.references.icechunk.library import local_path, translated
from shardstore.snapshots.lookup import FIRST_BRANCH
from shardstore.snapshots.new_history import NewHistory
from shardstore.snapshots.reachable import Progress
from shardstore.snapshots.session import SessionCore
from shardstore.storage.base import LeadsNowhere

_AT_ONCE = 32
_SNAPSHOTS_KEPT = 9
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CHUNKS = "chunks/"
"""The folder of the chunk files in a repository of Icechunk."""
_KEYS = ChunkKeyEncoding()
"""Icechunk has no other."""

_SourceView = tuple[Any, Mapping[str, SourceNode]]
"""A snapshot of the source: its zarr store, and its nodes by path; ``None`` and no nodes, if there is no snapshot."""


def chunks_of_source(source: Any, options: Mapping[str, Any] | None, source_url: str | None, *, copy: bool) -> tuple[Any, str | None]:
    """Return the repository of icechunk, and the URL of the folder of its chunk files; ``None`` if they are copied. Raises as
    ``opened_source``, and ``InvalidInput`` if it is not known where its files are.
    """
    if source_url is not None and not isinstance(source_url, str):
        raise InvalidInput(f"source_url is the URL of a folder, not of type {type(source_url).__name__}")
    if copy and source_url is not None:
        raise InvalidInput("source_url says where chunks are that stay, and copy=True copies them: give one of the two")
    with translated(FIRST_BRANCH):
        repository, place = opened_source(source, options or {})
    if copy:
        return repository, None
    place = place if source_url is None else source_url
    if place is None:
        raise InvalidInput(
            "icechunk does not say where the files of this repository are: give copy=True to copy its chunks (in Python: or source_url, as "
            "s3://bucket/repo)"
        )
    return repository, f"{place if '://' in place else f'file://{local_path(place)}'}".rstrip("/") + f"/{_CHUNKS}"


def import_history(opened: OpenedStore, source: Any, chunks_url: str | None, say: Progress) -> None:
    """Make a store of the history of a repository of icechunk. ``chunks_url``: the folder of its chunk files; ``None``: they are copied."""
    with translated(FIRST_BRANCH):
        history = history_of(source)
        refs = _refs_of(history)
        options = opened.options
        new = NewHistory(opened.store, pack=options.pack, max_memory=options.max_memory)
        run_sync(opened.store.check_new())
        try:
            ids = _Import(opened, source, chunks_url, new).write(history, say)
            run_sync(new.publish({name: Ref(ids[ref.snapshot], ref.type) for name, ref in refs.items()}))
        except BaseException:
            run_sync(new.give_up())
            raise


def _refs_of(history: SourceHistory) -> dict[str, Ref]:
    """Return the branches and tags, which point to snapshots of the source. Raises ``InvalidInput`` if a store cannot have them."""
    if both := sorted(history.branches.keys() & history.tags.keys()):
        raise InvalidInput(
            f"{both[0]!r} is a branch and a tag of the repository of icechunk, and a versioned store has one of that name: make another "
            "branch there, delete this one, and import again"
        )
    if FIRST_BRANCH not in history.branches:
        raise InvalidInput(f"the repository of icechunk has no branch {FIRST_BRANCH!r}, which every versioned store has: create it there")
    found = {name: Ref(snapshot, "branch") for name, snapshot in history.branches.items()}
    found |= {name: Ref(snapshot, "tag") for name, snapshot in history.tags.items()}
    for name, ref in found.items():
        try:
            check_ref_name(name)
        except InvalidInput as exc:
            raise InvalidInput(
                f"the {ref.type} {name!r} of the repository of icechunk cannot be imported: {exc}. Make one of another name there, delete "
                "this one, and import again"
            ) from exc
    return found


def _refs(coords: Coords, file: Any, offset: Any, nbytes: Any, files: Iterable[str] = (), inline: Sequence[bytes] = ()) -> ChunkRefs:
    """Return references to ``(n, ndim)`` chunks in any order; each column has one value for all, or ``n``."""
    columns = (np.broadcast_to(np.asarray(one, kind), len(coords)) for one, kind in ((file, "i4"), (offset, "u8"), (nbytes, "u8")))
    file, offset, nbytes = columns
    return ChunkRefs(coords, file, offset, nbytes, list(files), dict(enumerate(inline)))


def _gone(coords: Coords) -> ChunkRefs:
    return _refs(coords, GONE_FILE, 0, 0)


def _inline(coords: Coords, data: Sequence[bytes]) -> ChunkRefs:
    return _refs(coords, INLINE_FILE, 0, [len(one) for one in data], inline=data)


def _in_files(coords: Coords, urls: Sequence[str], offset: Any, nbytes: Any) -> ChunkRefs:
    numbers = {url: number for number, url in enumerate(dict.fromkeys(urls))}
    return _refs(coords, [numbers[url] for url in urls], offset, nbytes, numbers)


class _Import:
    """One history on its way into a store that is not there yet."""

    def __init__(self, opened: OpenedStore, source: Any, chunks_url: str | None, new: NewHistory) -> None:
        self._opened = opened
        self._source = source
        self._chunks_url = chunks_url
        self._new = new
        self._is_folder_checked = False
        self._known_nodes: Lru[str, dict[str, SourceNode]] = Lru(_SNAPSHOTS_KEPT)

    def write(self, history: SourceHistory, say: Progress) -> dict[str, str]:
        """Write all snapshots; return their ids by those of the source."""
        ids: dict[str, str] = {}
        roots = _roots(history)
        snapshots = [one for one in history.snapshots if one.id not in roots]
        for number, snapshot in enumerate(snapshots):
            say("importing snapshots", number, len(snapshots))
            ids[snapshot.id] = self._write(snapshot, None if snapshot.parent in roots else snapshot.parent, ids)
        say("importing snapshots", len(snapshots), len(snapshots))
        return ids

    def _write(self, snapshot: SourceSnapshot, parent: str | None, ids: Mapping[str, str]) -> str:
        origin = origin_in(snapshot.metadata)
        is_ours = origin is not None and origin.snapshot not in self._new.snapshots
        id_ = origin.snapshot if origin is not None and is_ours else snapshot.id
        when = origin.written_at if origin is not None and is_ours else snapshot.written_at
        metadata = without_origin(snapshot.metadata) if is_ours else snapshot.metadata
        try:
            run_sync(self._change(None if parent is None else ids[parent], self._at(parent), self._at(snapshot.id)))
        except (InvalidInput, Unsupported) as exc:
            raise type(exc)(
                f"snapshot {snapshot.id} of {snapshot.written_at:%Y-%m-%d %H:%M} cannot be imported: {exc}. If it is an old one, let it "
                "expire in Icechunk (expire_snapshots), and import again"
            ) from exc
        run_sync(self._new.add(id_, (when - _EPOCH) // timedelta(milliseconds=1), snapshot.message, metadata))
        return id_

    def _at(self, snapshot: str | None) -> _SourceView:
        if snapshot is None:
            return None, {}
        nodes = self._known_nodes.get(snapshot)
        if nodes is None:
            nodes = self._known_nodes.put(snapshot, run_sync(nodes_of(self._source, snapshot)))
        return self._source.readonly_session(snapshot_id=snapshot).store, nodes

    # -- nodes ---------------------------------------------------------------------------------------------------------

    async def _change(self, parent: str | None, before: _SourceView, after: _SourceView) -> None:
        """Bring a session on a snapshot of the new store from what its parent shows to what a snapshot shows."""
        session = await self._new.session(parent)
        (older_store, older_nodes), (store, nodes) = before, after
        documents = await _documents_of(store, {path: path for path in nodes})
        shown = {path: shown_array(loads_object(documents[path]), path) for path, node in nodes.items() if node.is_array}
        same = _same_nodes(older_nodes, nodes)
        older_documents = await _documents_of(older_store, {path: old.path for path, old in same.items() if old.is_array})
        earlier = {path: shown_array(loads_object(document), same[path].path) for path, document in older_documents.items()}
        kept = {path: old for path, old in same.items() if path not in earlier or earlier[path].has_same_chunks(shown[path])}
        root = session.nodes.get("")
        stays = "" not in nodes and root is not None and not root.is_array  # a store always has a root, the source may have none
        session.rearrange({old.path: path for path, old in kept.items()} | ({"": ""} if stays else {}))
        for path in sorted(nodes, key=lambda path: (path.count("/") + bool(path), path)):
            await session.set_document(path, documents[path] if path not in shown else dumps(shown[path].document))
        for path in sorted(shown):
            old = kept.get(path)
            if old is None:
                await self._change_chunks(session, path, shown[path], store, None)
            elif old.manifests != nodes[path].manifests or earlier[path].chunk_grid != shown[path].chunk_grid:
                was = (await chunks_of(older_store, old.path, len(shown[path].object_grid))).inside(earlier[path].object_grid)
                await self._change_chunks(session, path, shown[path], store, (earlier[path], was))

    # -- chunks --------------------------------------------------------------------------------------------------------

    async def _change_chunks(
        self, session: SessionCore, path: str, shown: ShownArray, store: Any, was: tuple[ShownArray, SourceChunks] | None
    ) -> None:
        """Refer to the chunks of an array of the zarr store, or copy them, but for those that are where ``was`` has them: the parent."""
        ndim = len(shown.object_grid)
        now = (await chunks_of(store, path, ndim)).inside(shown.object_grid)
        pieces: list[ChunkRefs] = []
        if was is not None:
            earlier, chunks = was
            new, gone = now.since(chunks)
            if earlier.layout is not None:
                gone = inner_chunks(earlier.layout, gone, {}, np.zeros(len(gone), np.uint64)).coords
            pieces.append(_gone(gone))
            # A shard that stays shows other inner chunks in an array of another shape.
            now = now if shown.layout is not None and earlier.chunk_grid != shown.chunk_grid else new
        copied = now.kinds == NATIVE if self._chunks_url is None else np.zeros(len(now), dtype=np.bool_)
        in_place = np.flatnonzero((now.kinds == NATIVE) & ~copied)
        if len(in_place) and not self._is_folder_checked:
            await self._check_folder(self._url(NATIVE, now.paths[in_place[0]]))
        left, native = now.rows(np.flatnonzero(~copied)), now.rows(np.flatnonzero(copied))
        pieces += self._whole(left) if shown.layout is None else await self._inside(shown, left)
        if shown.layout is not None and len(native):
            pieces.append(_gone(inner_chunks(shown.layout, native.coords, {}, native.lengths).coords))
        refs = in_a_row(pieces, ndim)
        if len(refs):
            session.set_refs(session.array(path), subset(refs, np.lexsort(refs.coords.T[::-1]) if ndim else np.arange(len(refs))))
        await self._copy(session, path, shown, store, native.coords)

    def _whole(self, chunks: SourceChunks) -> list[ChunkRefs]:
        inline, stored = np.flatnonzero(chunks.kinds == INLINE), np.flatnonzero(chunks.kinds != INLINE)
        return [
            _inline(chunks.coords[inline], [chunks.inline[row] for row in inline.tolist()]),
            _in_files(chunks.coords[stored], self._urls(chunks, stored), chunks.offsets[stored], chunks.lengths[stored]),
        ]

    async def _inside(self, shown: ShownArray, shards: SourceChunks) -> list[ChunkRefs]:
        assert shown.layout is not None
        inline = [row for row in range(len(shards)) if shards.kinds[row] == INLINE]
        stored = np.flatnonzero(shards.kinds != INLINE)
        urls = dict(zip(stored.tolist(), self._urls(shards, stored), strict=True))
        indices = {row: _index_in(shown, shards.inline[row]) for row in inline}
        indices |= await self._indices(shown, shards, urls)
        found = inner_chunks(shown.layout, shards.coords, indices, shards.lengths)
        is_inline = np.isin(found.shard, inline)
        held, rows = np.flatnonzero(found.exists & is_inline), np.flatnonzero(found.exists & ~is_inline)
        spans = zip(found.shard[held].tolist(), found.offsets[held].tolist(), found.lengths[held].tolist(), strict=True)
        begins = shards.offsets[found.shard[rows]] + found.offsets[rows]
        return [
            _inline(found.coords[held], [shards.inline[shard][offset : offset + nbytes] for shard, offset, nbytes in spans]),
            _in_files(found.coords[rows], [urls[shard] for shard in found.shard[rows].tolist()], begins, found.lengths[rows]),
            _gone(found.coords[~found.exists]),
        ]

    async def _indices(self, shown: ShownArray, shards: SourceChunks, urls: Mapping[int, str]) -> dict[int, ShardIndex]:
        assert shown.layout is not None
        format_ = shown.layout.index_format
        asked = []
        for row, url in urls.items():
            begin, end = int(shards.offsets[row]), int(shards.offsets[row] + shards.lengths[row])
            at = begin if format_.location == "start" else max(begin, end - format_.nbytes)
            asked.append((url, (ByteRange(at, min(end, at + format_.nbytes)),), None))
        found: dict[int, ShardIndex] = {}
        for row, answer in zip(urls, await self._opened.virtual.read(asked), strict=True):
            if isinstance(answer, ShardStoreError):
                raise answer
            found[row] = format_.decode(bytes(answer[0]))
        return found

    async def _copy(self, session: SessionCore, path: str, shown: ShownArray, store: Any, coords: Coords) -> None:
        """Copy chunks of the source; of shards, what is inside of them."""
        for some in batched(coords.tolist(), _AT_ONCE):
            data = await _all(value_of(store, join(path, _KEYS.encode(tuple(one)))) for one in some)
            if shown.layout is None:
                for one, value in zip(some, data, strict=True):
                    await session.write_chunk(session.array(path), tuple(one), value)
                continue
            nbytes = np.array([len(value) for value in data], dtype=np.uint64)
            indices = {row: _index_in(shown, value) for row, value in enumerate(data)}
            found = inner_chunks(shown.layout, np.array(some, dtype=np.uint64), indices, nbytes)
            for row in np.flatnonzero(found.exists).tolist():
                begin, length = int(found.offsets[row]), int(found.lengths[row])
                value = data[found.shard[row]][begin : begin + length]
                await session.write_chunk(session.array(path), tuple(found.coords[row].tolist()), value)

    def _urls(self, chunks: SourceChunks, rows: npt.NDArray[np.intp]) -> list[str]:
        """Return the URLs of chunks in these rows. Raises ``InvalidInput`` if one is below no authorised prefix."""
        places = list(zip(chunks.kinds[rows].tolist(), chunks.paths[rows].tolist(), strict=True))
        urls = {place: self._url(*place) for place in dict.fromkeys(places)}
        return [urls[place] for place in places]

    def _url(self, kind: int, path: str) -> str:
        if kind == NATIVE:
            assert self._chunks_url is not None
            return f"{self._chunks_url}{path}"
        url = path if path.startswith(("http://", "https://")) else unquote(path)
        try:
            self._opened.virtual.check_authorised(url)
        except InvalidInput as exc:
            raise InvalidInput(
                f"virtual references of the repository of icechunk lead to {redacted(url)}, and may lead "
                f"{', '.join(map(redacted, self._opened.virtual.prefixes)) or 'nowhere'}: if you trust it, give "
                f"virtual_prefixes=['{redacted(url).rpartition('/')[0]}/']. There is no repository"
            ) from exc
        return url

    async def _check_folder(self, url: str) -> None:
        """Check that one chunk file is where the source is said to be: all are in one folder. Raises ``InvalidInput``."""
        self._is_folder_checked = True
        try:
            await self._opened.virtual.sizes([url])
        except LeadsNowhere as exc:
            raise InvalidInput(
                f"{exc}: give copy=True to copy its chunks (in Python: or source_url, where the files of the repository of icechunk are)"
            ) from exc


def _same_nodes(before: Mapping[str, SourceNode], after: Mapping[str, SourceNode]) -> dict[str, SourceNode]:
    """Return the nodes that a later snapshot still has, whatever their documents say by then, by their paths there."""
    by_id = {node.id: node for node in before.values()}
    found = {path: by_id.get(node.id) for path, node in after.items()}
    return {path: old for path, old in found.items() if old is not None and old.is_array == after[path].is_array}


def _roots(history: SourceHistory) -> set[str]:
    """Return the first snapshot of a repository of icechunk that an export has made, which holds nothing, unless a branch or tag names it:
    it stands before the first one of the export.
    """
    named = {*history.branches.values(), *history.tags.values()}
    found: set[str] = set()
    for one in history.snapshots:
        if not one.is_initial or one.id in named:
            continue
        origins = [origin_in(child.metadata) for child in history.snapshots if child.parent == one.id]
        if origins and all(origin is not None and origin.parent is None for origin in origins):
            found.add(one.id)
    return found


def _index_in(shown: ShownArray, shard: bytes) -> ShardIndex:
    assert shown.layout is not None
    format_ = shown.layout.index_format
    view = memoryview(shard)
    return format_.decode(format_.slice_from(view, len(view)) if format_.location == "end" else view[: format_.nbytes])


async def _documents_of(store: Any, paths: Mapping[str, str]) -> dict[str, bytes]:
    """Return the documents of nodes of the source, named as their paths are in ``paths``."""
    return dict(zip(paths, await _all(value_of(store, metadata_key(path)) for path in paths.values()), strict=True))


async def _all(coroutines: Iterable[Any]) -> list[bytes]:
    """Return the results of coroutines, some at once."""
    found: list[bytes] = []
    for some in batched(list(coroutines), _AT_ONCE):
        found += await asyncio.gather(*some)
    return found
