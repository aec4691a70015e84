"""Lists the keys of a session: the documents of its nodes and the chunks of its arrays, in key order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import numpy as np
import numpy.typing as npt

from shardstore.format.metadata_v3 import METADATA_NAME
from shardstore.format.snapshots.manifest import INLINE, ChunkRefs, subset
from shardstore.format.snapshots.structure import Node
from shardstore.format.store_keys import join
from shardstore.model.generation import Generation
from shardstore.snapshots.chunk_files import ArrayChanges, file_name, token_in_file, token_of_inline, token_of_written
from shardstore.snapshots.session import ArrayKeys, SessionCore
from shardstore.storage.base import DirListing, ObjectInfo, direct_children

_AT_ONCE = 1000


async def list_keys(session: SessionCore, prefix: str) -> AsyncIterator[ObjectInfo]:
    """Yield every key of a session that starts with a prefix, in key order, as long as no array has nodes below it."""
    if session.reads is not None:
        session.reads.list_nodes(prefix)
    # All chunk keys of an array begin with its path, and no key of another node does: they are one block.
    blocks: list[tuple[str, str, Node | None]] = [
        (key, path, None) for path in session.nodes if (key := join(path, METADATA_NAME)).startswith(prefix)
    ]
    blocks += [(join(node.path, ""), node.path, node) for node in session.arrays_below(prefix)]
    for key, path, array in sorted(blocks, key=lambda block: block[0]):
        if array is None:
            if (info := await document_info(session, key, path)) is not None:
                yield info
            continue
        keys = session.keys_of(array)
        refs = await _refs_below(session, keys, prefix)
        for info in _infos(session, keys, refs, session.changes.get(array.id)):
            if info.key.startswith(prefix):
                yield info


async def list_directory(session: SessionCore, prefix: str) -> DirListing:
    """Return the direct children of a prefix, which is ``""`` or ends with ``/``, in key order."""
    if session.reads is not None:
        session.reads.list_nodes(prefix)
    documents = {key: path for path in session.nodes if (key := join(path, METADATA_NAME)).startswith(prefix)}
    names, prefixes = direct_children(documents, prefix)
    infos = [await document_info(session, key, documents[key]) for key in names]
    chunks: list[ObjectInfo] = []
    for array in list(session.arrays_below(prefix)):
        keys = session.keys_of(array)
        if not prefix.startswith(keys.prefix):
            continue  # its document is deeper, too
        refs = await _refs_below(session, keys, prefix)
        below = _prefixes(keys, refs, prefix)
        if below is None:
            found = {info.key: info for info in _infos(session, keys, refs, session.changes.get(array.id)) if info.key.startswith(prefix)}
            direct, deeper = direct_children(found, prefix)
            chunks += [found[key] for key in direct]
            below = list(deeper)
        prefixes = (*prefixes, *below)
    objects = sorted([*(info for info in infos if info is not None), *chunks], key=lambda info: info.key)
    return DirListing(tuple(objects), tuple(sorted(dict.fromkeys(prefixes))))


async def document_info(session: SessionCore, key: str, path: str) -> ObjectInfo | None:
    """Return the size and the version of a document; ``None`` if there is no such node."""
    found = await session.document(path)
    return None if found is None else ObjectInfo(key, len(found[0]), version_in(session, found[1]))


def version_in(session: SessionCore, token: str) -> Generation:
    """Return the version with this token. What a snapshot holds was stored when the snapshot was committed, or earlier."""
    return Generation(token, session.snapshot.timestamp_ms / 1000 if session.why_read_only else None)


async def _refs_below(session: SessionCore, keys: ArrayKeys, prefix: str) -> ChunkRefs | None:
    """Return the references of an array's chunks, in key order, without many whose keys do not start with the prefix."""
    found = await session.all_refs(keys.node)
    if found is None:
        return None
    leading = keys.encoding.leading_coords(prefix[len(keys.prefix) :], keys.ndim) if prefix.startswith(keys.prefix) else ()
    if leading:
        found = subset(found, np.flatnonzero((found.coords[:, : len(leading)] == np.array(leading, dtype=np.uint64)).all(axis=1)))
    order = _key_order(found.coords)
    return found if order is None else subset(found, order)


def _key_order(coords: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp] | None:
    """Return the rows of ``(n, ndim)`` ascending coordinates in the order of their keys; ``None`` if that is their own order.

    Keys are compared number by number, and numbers digit by digit: what separates and ends numbers comes before all digits.
    """
    if all(map(_same_length, coords.T)):
        return None
    axes: list[npt.NDArray[np.intp]] = []
    for axis in coords.T:
        values, numbers = np.unique(axis, return_inverse=True)
        places = np.empty(len(values), dtype=np.intp)
        places[np.argsort(np.array(list(map(str, values.tolist()))))] = np.arange(len(values))
        axes.append(places[numbers.reshape(-1)])
    return np.lexsort(axes[::-1])


def _same_length(numbers: npt.NDArray[np.uint64]) -> bool:
    """Return whether all numbers have as many digits: then they are in the same order as numbers and as text."""
    return not len(numbers) or len(str(int(numbers.min()))) == len(str(int(numbers.max())))


def _infos(session: SessionCore, keys: ArrayKeys, refs: ChunkRefs | None, changes: ArrayChanges | None) -> Iterator[ObjectInfo]:
    """Yield the chunks of references, as keys with sizes and versions."""
    if refs is None:
        return
    written = changes.chunks if changes is not None else {}
    names = list(map(file_name, refs.files))
    for start in range(0, len(refs), _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        coords = list(map(tuple, refs.coords[rows].tolist()))
        places = zip(refs.file[rows].tolist(), refs.offset[rows].tolist(), refs.nbytes[rows].tolist(), strict=True)
        for row, (one, (file, offset, nbytes)) in enumerate(zip(coords, places, strict=True), start):
            if (chunk := written.get(one)) is not None:
                token = token_of_written(chunk.serial)
            elif file == INLINE:
                token = token_of_inline(refs.inline[row])
            elif isinstance(refs.files[file], str) and file not in refs.checks:
                yield ObjectInfo(keys.key(one), nbytes)  # the file may be replaced, which nothing would show
                continue
            else:
                token = token_in_file(names[file], offset, nbytes, refs.checks.get(file))
            yield ObjectInfo(keys.key(one), nbytes, version_in(session, token))


def _prefixes(keys: ArrayKeys, refs: ChunkRefs | None, prefix: str) -> list[str] | None:
    """Return the prefixes directly below one inside of an array, if there can be no keys next to them; ``None`` if there can."""
    if refs is None or not len(refs):
        return []
    rest = prefix[len(keys.prefix) :]
    if keys.encoding.separator != "/" or not keys.ndim:
        return None
    if keys.encoding.name == "default" and not rest:
        return [f"{prefix}c/"]
    leading = keys.encoding.leading_coords(rest, keys.ndim)
    if keys.encoding.prefix_of(leading, keys.ndim) != rest:
        return []
    depth = len(leading)
    if depth >= keys.ndim - 1:
        return None
    return [f"{prefix}{number}/" for number in np.unique(refs.coords[:, depth]).tolist()]
