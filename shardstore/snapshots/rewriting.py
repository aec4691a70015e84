"""Puts scattered chunks together: where several commits have written a cell of an array, its chunks become one chunk file again.

::

    cell    | file of the first commit, with dead chunks | file of one chunk | file of one chunk |      ─►   one shard

That is a commit like any other, by differences. Bytes are moved unchanged. No chunk gets another value, so it contradicts no other
session; and a chunk that another session commits concurrently counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardstore.errors import ShardStoreError
from shardstore.format.snapshots.manifest import INLINE, ChunkRefs
from shardstore.format.snapshots.structure import Node
from shardstore.snapshots.chunk_files import MOST_INLINE_CHUNKS, inline_chunks
from shardstore.snapshots.reachable import Progress
from shardstore.snapshots.session import SessionCore
from shardstore.snapshots.session_storage import SessionStorage


@dataclass(slots=True)
class Repacked:
    """The amounts that were put together."""

    cells: int = 0
    chunks: int = 0
    nbytes: int = 0


async def repack(session: SessionCore, storage: SessionStorage, say: Progress, *, dry_run: bool) -> Repacked:
    """Write the chunks of all cells again that lie in several files; ``storage`` is the session's. With ``dry_run`` only count them. Raises
    ``ShardStoreError``: a chunk cannot be read, or a file not be stored. The session holds a part: discard its changes.
    """
    done = Repacked()
    for path in sorted(path for path, node in session.nodes.items() if node.is_array):
        node = session.nodes[path]
        refs = await session.all_refs(node)
        if refs is None or not len(refs):
            continue
        scattered = list(_scattered(session, node, refs))
        for number, rows in enumerate(scattered):
            say(f"repacking {path or '/'}", number, len(scattered))
            if not dry_run:
                await _write_again(session, storage, node, refs.coords[rows])
            done.cells += 1
            done.chunks += len(rows)
            done.nbytes += int(refs.nbytes[rows].sum())
    return done


async def _write_again(session: SessionCore, storage: SessionStorage, node: Node, coords: npt.NDArray[np.uint64]) -> None:
    keys_of = session.keys_of(node)
    chunks = list(map(tuple, coords.tolist()))
    values = await storage.chunk_values([keys_of.key(one) for one in chunks])
    assert values is not None  # they are of one array
    for one, value in zip(chunks, values, strict=True):
        if isinstance(value, ShardStoreError):
            raise value
        if value is not None:
            await session.write_chunk(node, one, bytes(value))


def _scattered(session: SessionCore, node: Node, refs: ChunkRefs) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the rows of each cell whose chunks would lie elsewhere if they were written at once; virtual ones stay where they are."""
    cells = session.gatherer.cells_of(node)
    if cells.grid is None:
        return
    is_virtual = np.array([isinstance(file, str) for file in refs.files] + [False], dtype=np.bool_)  # the last is what is inline
    own = np.flatnonzero(~is_virtual[np.maximum(refs.file, -1)] | (refs.file == INLINE))
    if not len(own):
        return
    counts = np.array(cells.grid.chunks_per_shard, dtype=np.uint64)
    cell_of = refs.coords[own] // counts
    order = np.lexsort(cell_of.T[::-1]) if cell_of.shape[1] else np.arange(len(own))
    ordered = cell_of[order]
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    begins = np.flatnonzero(is_first).tolist()
    for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
        rows = own[np.sort(order[begin:end])]
        files = refs.file[rows]
        ninline = int(np.count_nonzero(files == INLINE))
        nfiles = len(np.unique(files[files != INLINE]))
        is_full = len(rows) >= cells.nchunks(tuple(int(one) for one in ordered[begin].tolist()))
        wanted = inline_chunks(refs.nbytes[rows], is_full=is_full)
        if nfiles > 1 or (ninline and not wanted and len(rows) > 1) or ninline > MOST_INLINE_CHUNKS:
            yield rows
