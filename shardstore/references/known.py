"""Snapshots of versioned stores as sources of sets: they know where their chunks lie, so nothing is looked for.

The references lead to chunk files, which never change, and to whatever virtual references lead to: batches have what the snapshot knows of
each of these files, and a set is pinned by their ETags. A set is not whole any more once the snapshot has expired and its files were
collected: tag the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

import numpy as np
import numpy.typing as npt

from shardstore._sync import run_sync
from shardstore.errors import NotFound
from shardstore.format.metadata_v3 import is_array, parse_plain
from shardstore.format.references.documents import NodeDocuments
from shardstore.format.references.parquet import MISSING, MOST_CHUNKS, ReferenceRows
from shardstore.format.references.pins import object_url
from shardstore.references.batches import ReferenceBatch, ReferencedArray, ReferenceSource, strides
from shardstore.references.sets import PinsByUrl
from shardstore.storage.known_references import KnownReferences, KnowsReferences

_ONE_VERSION = (
    "leave arrays out by paths (--exclude), so that one is left, or write the set with pins=False (--no-pins), by which chunks are read "
    "from whatever is there"
)


class KnownArray(ReferencedArray):
    """An array of a snapshot."""

    def __init__(
        self, storage: KnowsReferences, base: str, path: str, node: NodeDocuments, grid: tuple[int, ...], pins: PinsByUrl | None
    ) -> None:
        super().__init__(path, node, grid)
        self._storage = storage
        self._place = path
        """The path in the snapshot, which stays when the array gets another one."""
        self._base = base
        self._pins = pins
        self._known: tuple[KnownReferences, npt.NDArray[np.intp], npt.NDArray[np.int64]] | None = None

    def _read(self) -> tuple[KnownReferences, npt.NDArray[np.intp], npt.NDArray[np.int64]]:
        """Return all references, the rows of those inside of the array's shape, and the numbers of their chunks, which ascend."""
        if self._known is None:
            found = run_sync(self._storage.known_references(self._place))
            rows = np.flatnonzero((found.coords < np.array(self.chunk_grid, dtype=np.int64)).all(axis=1))  # chunks outside are never read
            numbers = (found.coords[rows] * strides(self.chunk_grid)).sum(axis=1, dtype=np.int64)
            self._known = found, rows, numbers
        return self._known

    def window(self, start: int, most: int) -> range:
        _, _, numbers = self._read()
        at = int(np.searchsorted(numbers, start))
        return range(0) if at == len(numbers) else range(first := int(numbers[at]), min(prod(self.chunk_grid), first + most))

    def batches(self, start: int, stop: int) -> Iterator[ReferenceBatch]:
        found, inside, numbers = self._read()
        begin, end = np.searchsorted(numbers, (start, stop)).tolist()
        rows = inside[begin:end]
        if not len(rows):
            return
        used, target = np.unique(found.target[rows], return_inverse=True)
        numbers_of_files = [number for number in used.tolist() if number >= 0]
        files = [found.files[number] for number in numbers_of_files]
        urls = [file if "://" in file else object_url(self._base, file) for file in files]
        generations: dict[str, str] = {}
        for number, url in zip(numbers_of_files, urls, strict=True):
            if self._pins is not None and "://" in found.files[number]:  # chunk files never change
                check = found.checks.get(number)
                self._pins.note(url, None if check is None else check.etag)
                if check is not None and check.etag is not None:
                    generations[url] = check.etag
        is_inline = found.target[rows] < 0
        ninline = int((used < 0).sum())
        yield ReferenceBatch(
            numbers[begin:end],
            ReferenceRows(
                urls,
                np.where(is_inline, MISSING, target - ninline).astype(np.int32),
                np.where(is_inline, 0, found.offset[rows]),
                np.where(is_inline, 0, found.nbytes[rows]),
                {place: found.inline[int(rows[place])] for place in np.flatnonzero(is_inline).tolist()},
                generations,
            ),
            checks=[found.checks.get(number) for number in numbers_of_files] if found.checks else (),
        )


def known_source(storage: KnowsReferences, base: str, choose: Callable[[str], bool], *, is_pinned: bool = False) -> ReferenceSource:
    """Return a snapshot as a source; ``base`` comes in front of the keys of its files, ``choose`` says which arrays are taken.

    ``is_pinned``: note one version for each URL, as sets have it. The batches of a snapshot that refers to two versions of one URL raise
    ``InvalidInput`` then; by their ``checks`` they tell these apart.

    Raises:
        NotFound: it has no nodes.
        Corruption: it cannot be read.
    """
    pins = PinsByUrl(remedy=_ONE_VERSION) if is_pinned else None
    source = ReferenceSource(storage.url, {}, [], is_pinned=is_pinned, pins={} if pins is None else pins)
    documents = run_sync(storage.known_documents())
    if not documents:
        raise NotFound(f"there is no Zarr hierarchy at {storage.url}")

    def array_of(path: str, node: NodeDocuments) -> KnownArray | str | None:
        if not choose(path):
            return None
        plain = parse_plain(documents[path])
        if isinstance(plain, str):
            return plain
        grid = tuple(-(-n // c) for n, c in zip(plain.shape, plain.chunk_shape, strict=True))
        if prod(grid) > MOST_CHUNKS:
            return f"its grid has more than {MOST_CHUNKS} chunks"
        return KnownArray(storage, base, path, node, grid, pins)

    source.add({path: NodeDocuments(document, is_array=is_array(document)) for path, document in documents.items()}, array_of)
    return source
