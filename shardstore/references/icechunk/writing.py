"""``write_icechunk``: refer to all chunks of a hierarchy in a repository of icechunk, by virtual references.

::

    documents of v3, chunk keys in the default encoding    as icechunk has no other
    a chunk                                                a virtual reference: URL, offset, length, checksum of the whole object
    a chunk that goes into the set                         an ordinary chunk of the repository

icechunk 2 takes the references of a block of chunks as columns, of one checksum; all else is given to it as single references, many in a
call.
A reference outside of the repository's virtual chunk containers is only *returned* by icechunk, and is an error here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from shardstore._sync import run_sync
from shardstore.errors import InvalidInput, NotFound
from shardstore.format.chunk_keys import ChunkKeyEncoding
from shardstore.format.json_text import JsonObject, NumberText, dumps, loads_object
from shardstore.format.metadata_v3 import METADATA_NAME
from shardstore.format.references.parquet import MISSING, ReferenceRows
from shardstore.format.store_keys import check_key, groups_above, join
from shardstore.model.chunks import strides
from shardstore.model.options import check_flags
from shardstore.model.redaction import redacted
from shardstore.opening.references import names_version
from shardstore.progress.shown import reported
from shardstore.references.batches import ReferenceBatch, ReferencedArray, ReferenceSource, ReferredObject, size_of
from shardstore.references.choices import Choices, Described, Paths, base_of, check_patterns, chosen, described
from shardstore.references.icechunk.checksums import (
    ChecksumChoice,
    Checksums,
    SetChecksums,
    StoreChecksums,
    check_choice,
    checksum_of,
)
from shardstore.references.icechunk.library import container_lines, get_bytes, is_major_2, location_of, opening_lines, put_bytes, translated
from shardstore.references.icechunk.library import library as icechunk_library
from shardstore.references.opening import check_taken_unchanged, open_hierarchy, open_set_source
from shardstore.references.report import ReferenceProgress, ReferenceReport, Tally
from shardstore.references.sets import is_set, known_source
from shardstore.references.stores import OnError, store_source
from shardstore.storage.base import UNKNOWN_NBYTES
from shardstore.storage.known_references import KnowsReferences

if TYPE_CHECKING:  # an extra
    import icechunk

_KEYS = ChunkKeyEncoding()
_KEY_ENCODING = {"name": "default", "configuration": {"separator": "/"}}
_PROTOCOLS = ("file", "s3", "gs", "gcs", "http", "https")
_REFERENCES_AT_ONCE = 32768
_BLOCK_REFERENCES = 64  # a call for fewer costs more than to give them one by one, many in a call: 15 µs

Numbers = npt.NDArray[np.int64]


def write_icechunk(
    source: Any,
    repository: icechunk.Repository | icechunk.Session,
    *,
    branch: str = "main",
    path: str = "",
    checksum: ChecksumChoice = "auto",
    message: str | None = None,
    commit: bool = True,
    paths: Paths | None = None,
    base_url: str | None = None,
    inline_nbytes: int = 0,
    overwrite: bool = False,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[ReferenceProgress], None] | bool | None = None,
) -> ReferenceReport:
    """Write virtual references to all chunks of a hierarchy into a repository of icechunk: of shards, to the inner chunks.

    The repository's config needs a virtual chunk container that the objects are in. The references are committed all together, or not
    at all. Chunks of no bytes, which no codec can decode, are left out where icechunk does not store them.

    Args:
        source: what ``shardstore.open`` takes: a Zarr hierarchy, sharded or not, of v3, v2 or the 2022 draft; a snapshot of a versioned
            store, whose references have no checksums, since chunk files never change; or a set of references, by a URL that begins with
            ``reference::``. The objects have to be local files, or on S3, GCS or HTTP, which icechunk can read.
        repository: an open ``icechunk.Repository``; or a writable ``icechunk.Session``, which is left for the caller to commit.
        branch: the branch that is committed to; of a session, its own.
        path: the group in the repository that the hierarchy becomes; ``""`` is the root. Groups above it are made.
        checksum: how icechunk finds out that an object has been replaced, and refuses to read it. ``"etag"``, on S3 only: each change of
            bytes is seen. ``"last_modified"``: icechunk keeps times in whole seconds, so a change within the second in which the object
            was written is not seen. ``"auto"``: the former on S3, the latter elsewhere, and none where there is neither. ``None``: replaced
            objects are read as if they were the old ones, which gives wrong values. Over HTTP and on GCS, times protect only if the server
            honours ``If-Unmodified-Since``. Over HTTP the time of each object costs one more request, on buckets one more listing.
        message: of the commit.
        commit: ``False`` is for a session.
        paths: by pattern of paths, the first that matches: ``None`` leaves an array out, ``"shards"`` refers to whole shards, ``"chunks"``
            is the default; or a mapping of ``inline_nbytes`` for these arrays only.
        base_url: in front of the keys of objects, instead of the store's own URL; percent-encoded, as in all URLs. There are no checksums
            then.
        inline_nbytes: chunks of up to so many bytes are copied into the repository.
        overwrite: replace arrays that are there at the same paths, and nodes of the other kind with all that is below them, and the
            attributes of groups. Other nodes stay.
        on_error: ``"skip"`` leaves damaged shards out, and reports them.
        storage_options: of the source's filesystem: credentials, endpoint, retries. icechunk needs its own, in the container.
        progress: called now and then with a ``ReferenceProgress``; or ``True``: it is shown on stderr.

    Raises:
        InvalidInput: an argument cannot be right, an object is in no virtual chunk container, arrays cannot be described so, or there are
            nodes at the same paths already.
        Unsupported: icechunk is not installed.
        Corruption: a shard or a metadata document is damaged.
        NotFound: there is no hierarchy at the source, or no such branch.
        Conflict: a shard kept changing, or another writer committed to the branch first.
        StorageError: a request failed, or icechunk did. After all of these nothing is committed; a session is as it was before, or if it
            had changes already, holds a part of the new ones.
    """
    check_flags(commit=commit, overwrite=overwrite)
    library = icechunk_library()
    session, is_ours = _session(library, repository, branch, commit=commit)
    found, checksums = _opened(source, checksum, paths, base_url, inline_nbytes, on_error=on_error, options=storage_options)
    shown = described(found, "v3", only_v2_keys=False)
    had_changes = session.has_uncommitted_changes
    snapshot = None
    with reported(progress, ReferenceProgress.step) as say:
        tally = Tally(found.arrays, say, mixed_protocols=True)
        target = _SessionWriter(library, session, checksums, tally, found)
        try:
            with translated(session.branch or branch):
                run_sync(target.write_documents(shown, check_key(path) if path else path, overwrite=overwrite))
                for number, array in enumerate(found.arrays):
                    target.write_array(number, array, join(path, array.path) if array.path else path)
                if is_ours:
                    snapshot = session.commit(message or f"References to the chunks of {redacted(found.url)}")
        except BaseException as exc:
            if not had_changes:
                session.discard_changes()
            elif target.has_begun:
                exc.add_note("The session may hold a part of the references besides its earlier changes: do not commit it")
            raise
    return ReferenceReport(
        source=found.url,
        target=" ".join(str(cast(Any, repository).storage).split()) if is_ours else "a session of icechunk",
        format="icechunk",
        flavour="v3",
        why="icechunk knows no other",
        arrays=len(found.arrays),
        references=tally.references,
        inlined=tally.inlined,
        missing=tally.missing,
        targets=len(target.keys),
        nbytes=target.nbytes,
        is_pinned=checksums.are_complete(),
        left_out=dict(found.left_out),
        index_requests=found.index_requests,
        how_to_open=opening_lines(repository, session, found.base_url, session.branch or branch, path),
        snapshot=snapshot,
    )


@dataclass(frozen=True, slots=True)
class SnapshotChanges:
    """The differences between two snapshots, as a session of icechunk is to carry them out; nodes are named by their paths."""

    gone: frozenset[str] = frozenset()
    """Nodes that are removed first, with all below them."""
    groups: frozenset[str] = frozenset()
    """Groups that are written."""
    arrays: frozenset[str] = frozenset()
    """Arrays that are written with all of their chunks: new ones, or of which the older one is in ``gone``."""
    documents: frozenset[str] = frozenset()
    """Arrays that stay, and get another document."""
    erased: Mapping[str, npt.NDArray[np.uint64]] = field(default_factory=dict)
    """Chunks of arrays that stay, ``(n, ndim)``, which are removed."""
    written: Mapping[str, npt.NDArray[np.uint64]] = field(default_factory=dict)
    """Chunks of arrays that stay, ``(n, ndim)``, which are written."""


def write_changes(session: Any, source: KnowsReferences, changes: SnapshotChanges) -> dict[str, int]:
    """Make what has changed in a snapshot part of a session of icechunk, by virtual references; return how much that was, by the names of
    ``IcechunkExport``. Raises as ``Repository.export_icechunk``; the session holds a part then.
    """
    library = icechunk_library()
    base = base_of(source.stored_in, "absolute", None, "")
    _check_protocol(base)
    found = known_source(source, base, {*changes.arrays, *changes.documents, *changes.written}.__contains__)
    found.left_out.clear()
    groups = {path: node.v3 for path, node in found.groups.items() if path in changes.groups and node.v3 is not None}
    found.groups.clear()
    tally = Tally(found.arrays, None, mixed_protocols=True)
    target = _SessionWriter(library, session, Checksums(), tally, found)
    shown = described(found, "v3", only_v2_keys=False).documents
    documents = {path: by_name[METADATA_NAME] for path, by_name in shown.items() if path in changes.arrays | changes.documents}
    with translated(session.branch):
        run_sync(target.replace_nodes(changes, groups, documents))
        for number, array in enumerate(found.arrays):
            if array.path in changes.arrays:
                target.write_array(number, array, array.path)
            elif (coords := changes.written.get(array.path)) is not None:
                target.write_array(number, _SomeChunks(array, coords), array.path)
    return {"references": tally.references, "copied": tally.inlined, "without_bytes": target.without_bytes, "texts": target.texts}


def rewrite_root(session: Any) -> None:
    """Write the document of the root unchanged, so that there is something to commit."""

    async def rewrite() -> None:
        was = await get_bytes(session.store, METADATA_NAME)
        assert was is not None  # every snapshot of a versioned store has a root
        document = loads_object(was)
        other = {"attributes": {**document.get("attributes", {}), "shardstore.rewritten": True}}
        await put_bytes(session.store, METADATA_NAME, dumps(document | other))  # the same document would be no change
        await put_bytes(session.store, METADATA_NAME, was)

    with translated(session.branch):
        run_sync(rewrite())


# -- opening -------------------------------------------------------------------------------------------------------------


def _session(library: Any, repository: Any, branch: str, *, commit: bool) -> tuple[Any, bool]:
    """Return a writable session, and whether it is to be committed here."""
    if isinstance(repository, library.Session):
        if repository.read_only:
            raise InvalidInput("the session is read-only: give repository.writable_session(branch), or the repository")
        return repository, False
    if not isinstance(repository, library.Repository):
        raise InvalidInput(f"repository is an icechunk.Repository or icechunk.Session, not of type {type(repository).__name__}")
    if not commit:
        raise InvalidInput("commit=False is for a session, which you commit yourself: give repository.writable_session(branch)")
    if branch not in (branches := sorted(repository.list_branches())):
        raise NotFound(f"the repository has no branch {branch!r}: it has {', '.join(map(repr, branches))}")
    return repository.writable_session(branch), True


def _opened(
    source: Any,
    checksum: ChecksumChoice,
    paths: Paths | None,
    base_url: str | None,
    inline_nbytes: int,
    *,
    on_error: OnError,
    options: Mapping[str, Any] | None,
) -> tuple[ReferenceSource, Checksums]:
    check_choice(checksum)
    choices = Choices(paths, inline_nbytes=inline_nbytes, on_error=on_error)
    if is_set(source):
        if base_url is not None:
            raise InvalidInput("base_url is for hierarchies: the references of a set are taken unchanged")
        references, of_set = open_set_source(source, choices, options)
        return of_set, SetChecksums(references.targets, checksum)
    storage = open_hierarchy(source, options)
    if (known := storage.ability(KnowsReferences)) is not None:
        check_taken_unchanged(choices)
        found = known_source(known, base_of(known.stored_in, "absolute", base_url, ""), lambda path: chosen(choices, path) is not None)
        check_patterns(choices, found.array_paths())
        return found, Checksums()
    base = base_of(storage, "absolute", base_url, "")
    protocol = _check_protocol(base)
    found = store_source(storage, base, lambda path: chosen(choices, path), pinned=False, on_error=on_error)
    check_patterns(choices, found.array_paths())
    if not_v3 := {array.path: array.flavour for array in found.arrays if array.flavour not in (None, "v3")}:
        path, flavour = next(iter(not_v3.items()))
        raise InvalidInput(f"flavour {flavour!r} for array {path!r}: icechunk knows documents of v3 only")
    plain = found.stored_key
    is_encoded = base_url is not None or protocol in ("http", "https")
    found.base_url = base if is_encoded else location_of(base)
    if not base.startswith(("http://", "https://")):  # over HTTP, URLs are encoded in every set
        found.stored_key = lambda key: location_of(plain(key))
    return found, StoreChecksums(storage, checksum, None if base_url is not None else lambda key: base + plain(key))


def _check_protocol(base: str) -> str:
    """Return the protocol of a URL. Raises ``InvalidInput`` if icechunk does not read it."""
    if (protocol := base.partition("://")[0]) not in _PROTOCOLS:
        raise InvalidInput(
            f"icechunk does not read objects at {redacted(base)}: it knows {', '.join(_PROTOCOLS)}, and not {protocol}. base_url names "
            "another way to them"
        )
    return protocol


def _objects_of(rows: ReferenceRows, whole: npt.NDArray[np.int32]) -> list[ReferredObject]:
    """Return the objects of a set's references. The sizes of those at the numbers ``whole`` are to be looked up."""
    needed = set(whole.tolist())
    return [
        ReferredObject(url, rows.generations.get(url), UNKNOWN_NBYTES if number in needed else 0) for number, url in enumerate(rows.targets)
    ]


def _location(url: str) -> str:
    """Return the URL of an object in a set as icechunk has it. Raises ``InvalidInput``: icechunk does not read it."""
    if url.startswith("/"):
        url = f"file://{url}"
    protocol = url.partition("://")[0]
    if protocol not in _PROTOCOLS or names_version(url):
        raise InvalidInput(f"icechunk does not read {redacted(url)}, which the set refers to: it knows {', '.join(_PROTOCOLS)}")
    return url if protocol in ("http", "https") else location_of(url)


# -- writing -------------------------------------------------------------------------------------------------------------


def _block_of(
    grid: tuple[int, ...], urls: Sequence[str], chunks: Numbers, target: npt.NDArray[np.int32], offsets: Numbers, lengths: Numbers
) -> tuple[tuple[int, ...], tuple[int, ...], list[str], npt.NDArray[np.uint64]] | None:
    """Return the smallest block that has these chunks: its first one, its shape, the location of each, empty of a missing one, and the
    offset and length of each, ``(2, n)``. ``None`` if they fill less than half of it, or the grid has no dimensions.

    ``chunks`` are numbers in C order of the grid, ``(n,)`` as their URLs' numbers, offsets and lengths; there is at least one.
    """
    if not grid:
        return None
    axes = np.unravel_index(chunks, grid)
    first = tuple(int(axis.min()) for axis in axes)
    shape = tuple(int(axis.max()) - start + 1 for axis, start in zip(axes, first, strict=True))
    if (size := math.prod(shape)) > 2 * len(chunks):
        return None
    at = np.ravel_multi_index([axis - start for axis, start in zip(axes, first, strict=True)], shape)
    locations: npt.NDArray[np.object_] = np.full(size, "", dtype=object)
    locations[at] = urls[0] if len(urls) == 1 else np.array(urls, dtype=object)[target]
    columns = np.zeros((2, size), dtype=np.uint64)
    columns[0, at], columns[1, at] = offsets, lengths
    return first, shape, locations.tolist(), columns


def _positions(grid: tuple[int, ...], chunks: Numbers) -> list[list[int]]:
    if not grid:
        return [[] for _ in chunks]
    found: list[list[int]] = np.stack(np.unravel_index(chunks, grid), axis=-1).tolist() if len(chunks) else []
    return found


class _SomeChunks(ReferencedArray):
    """An array of which only some chunks are referred to, those at ``coords``."""

    def __init__(self, array: ReferencedArray, coords: npt.NDArray[np.uint64]) -> None:
        super().__init__(array.path, array.node, array.chunk_grid)
        self.flavour = array.flavour
        self._array = array
        self._numbers = (coords.astype(np.int64) * strides(array.chunk_grid)).sum(axis=1, dtype=np.int64)

    def window(self, start: int, most: int) -> range:
        return self._array.window(start, most)

    def batches(self, start: int, stop: int) -> Iterator[ReferenceBatch]:
        for batch in self._array.batches(start, stop):
            kept = np.flatnonzero(np.isin(batch.chunks, self._numbers))
            rows = batch.rows
            inline = {place: rows.inline[row] for place, row in enumerate(kept.tolist()) if row in rows.inline}
            some = ReferenceRows(rows.targets, rows.target[kept], rows.offset[kept], rows.nbytes[kept], inline, rows.generations)
            yield ReferenceBatch(batch.chunks[kept], some, batch.objects, batch.checks)


def storable(value: Any) -> Any:
    """Return a value of metadata as icechunk can keep it: it has no numbers beyond 64 bits, and none that are not finite, so these become
    texts.
    """
    if isinstance(value, Mapping):
        return {str(name): storable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [storable(one) for one in value]
    if isinstance(value, NumberText) and not math.isfinite(float(value.text)):  # 1e400 too
        return value.text
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
        return str(value)
    return value


def _is_written(path: str, document: JsonObject, there: JsonObject | None, above: frozenset[str]) -> bool:
    """Return whether the document of a node is to be stored where ``there`` is; ``above`` are the groups above the target. Raises
    ``InvalidInput``: an array is in the place of one of these.
    """
    if there is not None and there.get("node_type") == document["node_type"] == "group":
        attributes = document.get("attributes")
        return path not in above and bool(attributes) and attributes != there.get("attributes")
    if there is not None and path in above:
        raise InvalidInput(f"there is an array at {path!r} in the repository, which cannot hold other nodes: choose another path")
    return True


def _replaces(document: JsonObject, there: JsonObject | None) -> bool:
    """Return whether a document takes the place of something: of an array, of a node of the other kind, or of attributes."""
    if there is None:
        return False
    return bool(there.get("attributes")) or not there.get("node_type") == document["node_type"] == "group"


@dataclass(slots=True)
class _SessionWriter:
    """The nodes and chunks of one session."""

    library: Any
    session: Any
    checksums: Checksums
    tally: Tally
    source: ReferenceSource
    texts: int = 0
    """Nodes with attributes that have become texts."""
    without_bytes: int = 0
    """Chunks of no bytes that icechunk does not store."""
    nbytes: int = 0
    """Bytes of documents and of chunks that were copied."""
    keys: set[str] = field(default_factory=set)
    """The objects that are referred to."""
    has_begun: bool = False
    """True once the session was changed."""
    _waiting: list[Any] = field(default_factory=list)
    """References that are not given to icechunk yet, as ``VirtualChunkSpec``."""

    async def replace_nodes(self, changes: SnapshotChanges, groups: Mapping[str, JsonObject], arrays: Mapping[str, JsonObject]) -> None:
        """Remove what is gone, and write the documents of these nodes, whether they are there or not."""
        store = self.session.store
        for path in sorted(changes.gone, key=len, reverse=True):
            await store.delete_dir(path)
        for path, coords in changes.erased.items():
            await self._erase(path, coords.tolist())
        documents = dict(groups) | {path: document | {"chunk_key_encoding": _KEY_ENCODING} for path, document in arrays.items()}
        for path in sorted(documents, key=lambda path: (path.count("/") + bool(path), path)):
            attributes = documents[path].get("attributes")
            if (kept := storable(attributes)) != attributes:
                documents[path] = documents[path] | {"attributes": kept}
                self.texts += 1
            await self._put(join(path, METADATA_NAME), dumps(documents[path]))

    async def _erase(self, path: str, coords: Iterable[Iterable[int]]) -> None:
        """Remove chunks of an array, whether they are there or not."""
        for one in coords:
            await self.session.store.delete(join(path, _KEYS.encode(tuple(one))))

    async def write_documents(self, shown: Described, path: str, *, overwrite: bool) -> None:
        """Write the documents of all nodes below ``path``, and those of the groups above it that are missing. Raises ``InvalidInput``:
        there are nodes already, and they are not to be replaced.
        """
        above = frozenset(groups_above(path))
        documents = {join(path, node) if node else path: found[METADATA_NAME] for node, found in shown.documents.items()}
        for group in groups_above(path):
            documents.setdefault(group, {"zarr_format": 3, "node_type": "group", "attributes": {}})
        there = {path: await self._document(path) for path in documents}
        written = {path: document for path, document in documents.items() if _is_written(path, document, there[path], above)}
        replaced = [path for path, document in written.items() if _replaces(document, there[path])]
        if replaced and not overwrite:
            named = ", ".join(map(repr, sorted(replaced)[:5]))
            raise InvalidInput(
                f"the repository has {len(replaced)} nodes at the same paths, such as {named}: overwrite=True replaces them. Nothing was "
                "written"
            )
        self.has_begun = True
        for path in replaced:
            if "array" in (written[path]["node_type"], (there[path] or {}).get("node_type")):
                await self.session.store.delete_dir(path)
        for path in sorted(written, key=lambda path: (path.count("/") + bool(path), path)):
            document = written[path]
            if document["node_type"] == "array":
                document = document | {"chunk_key_encoding": _KEY_ENCODING}
            await self._put(join(path, METADATA_NAME), dumps(document))

    async def _document(self, path: str) -> JsonObject | None:
        data = await get_bytes(self.session.store, join(path, METADATA_NAME))
        return None if data is None else loads_object(data)

    async def _put(self, key: str, data: bytes) -> None:
        await put_bytes(self.session.store, key, data)
        self.nbytes += len(data)

    def write_array(self, number: int, array: ReferencedArray, path: str) -> None:
        """Write the references of one array, whose document is at ``path``."""
        empty: list[int] = []
        for batch in self.tally.counted(number, array.batches(0, size_of(array))):
            rows = batch.rows
            inline = self._stored(batch, empty)
            run_sync(self._put_chunks(path, array.chunk_grid, inline))
            kept = np.flatnonzero(rows.target != MISSING) if rows.inline else slice(None)
            self._refer(array.chunk_grid, path, batch, kept)
            self.tally.count(len(rows) - (len(rows.inline) - len(inline)), len(inline))
        self._flush(path)
        if empty:
            self.without_bytes += len(empty)
            run_sync(self._erase(path, _positions(array.chunk_grid, np.array(empty))))  # older ones, of bytes
            key = _KEYS.encode(tuple(_positions(array.chunk_grid, np.array(empty[:1]))[0]))
            self.source.left_out[join(path, key)] = (
                f"{len(empty)} chunks of array {array.path!r} have no bytes, which icechunk does not store and no codec can decode: they "
                "are read as fill values. This is the first"
            )

    def _stored(self, batch: ReferenceBatch, empty: list[int]) -> dict[int, bytes]:
        """Return the bytes to store by number of the chunk; note in ``empty`` those chunks that cannot be stored."""
        inline = {int(batch.chunks[row]): data for row, data in batch.rows.inline.items()}
        if is_major_2(self.library):  # which refuses chunks of no bytes
            empty += [chunk for chunk, data in inline.items() if not data]
            inline = {chunk: data for chunk, data in inline.items() if data}
        return inline

    async def _put_chunks(self, path: str, grid: tuple[int, ...], inline: Mapping[int, bytes]) -> None:
        for coords, data in zip(_positions(grid, np.array(list(inline), dtype=np.int64)), inline.values(), strict=True):
            await self._put(join(path, _KEYS.encode(tuple(coords))), data)

    def _refer(self, grid: tuple[int, ...], path: str, batch: ReferenceBatch, kept: Any) -> None:
        rows = batch.rows
        chunks, target = batch.chunks[kept], rows.target[kept]
        if not len(chunks):
            return
        urls = rows.targets if batch.objects else [_location(url) for url in rows.targets]
        offsets = rows.offset[kept]
        objects, lengths = self._completed(batch, target, offsets, rows.nbytes[kept])
        checksums = list(map(checksum_of, urls, batch.checks)) if batch.checks else self.checksums.of(objects)
        if is_major_2(self.library) and len(chunks) >= _BLOCK_REFERENCES and all(one == checksums[0] for one in checksums):
            block = _block_of(grid, urls, chunks, target, offsets, lengths)
            if block is not None:
                first, shape, locations, columns = block
                store = self.session.store
                refused = store.set_virtual_refs_arr(path, shape, locations, *columns, arr_offset=first, checksum=checksums[0])
                if refused:
                    raise self._outside(locations[int(np.ravel_multi_index(np.subtract(refused[0], first), shape))])
                return
        new = self.library.VirtualChunkSpec
        fields = (_positions(grid, chunks), target.tolist(), offsets.tolist(), lengths.tolist())
        versions = [(one, None) if isinstance(one, str) else (None, one) for one in checksums]  # ETag, time of modification
        self._waiting += [new(c, urls[t], o, n, *versions[t]) for c, t, o, n in zip(*fields, strict=True)]
        if len(self._waiting) >= _REFERENCES_AT_ONCE:
            self._flush(path)

    def _completed(
        self, batch: ReferenceBatch, target: npt.NDArray[np.int32], offsets: Numbers, lengths: Numbers
    ) -> tuple[list[ReferredObject], Numbers]:
        """Return the objects of a batch with what is needed of them, and the lengths of references, those to whole objects too."""
        whole = (offsets == 0) & (lengths == 0)
        objects = self.checksums.completed(batch.objects or _objects_of(batch.rows, target[whole]))
        self.keys.update(one.key for one in objects)
        if whole.any():
            sizes = np.array([one.nbytes for one in objects], dtype=np.int64)
            lengths = np.where(whole, sizes[target], lengths)
        return objects, lengths

    def _flush(self, path: str) -> None:
        some, self._waiting = self._waiting, []
        if some and (refused := self.session.store.set_virtual_refs(path, some)):
            raise self._outside(next(one.location for one in some if tuple(one.index) == tuple(refused[0])))

    def _outside(self, url: str) -> InvalidInput:
        return InvalidInput(
            f"icechunk refuses a reference to {redacted(url)}: it is in no virtual chunk container of the repository's config, so that "
            f"it was not set. These lines add one:\n{container_lines(url, self.source.base_url)}"
        )
