"""A set of references, or a snapshot of a versioned store, as the source of another set: its arrays with their documents, and its
references unchanged. Nothing is looked for.

The references of a set in JSON are in memory; of one in Parquet, records are read as their chunks are asked for. Those of a snapshot lead
to chunk files, which never change, and to whatever virtual references lead to: batches have what the snapshot knows of each of these files,
and a set is pinned by their ETags. A set is not whole any more once the snapshot has expired and its files were collected: tag it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from shardstore._sync import run_sync
from shardstore.errors import Conflict, InvalidInput, NotFound, ShardStoreError
from shardstore.format.chunk_keys import ChunkKeyEncoding, NumberedChunks
from shardstore.format.metadata_v3 import is_array, parse_plain
from shardstore.format.references.documents import NodeDocuments
from shardstore.format.references.parquet import MISSING, MOST_CHUNKS, ReferenceRows
from shardstore.format.references.pins import PinnedObject, PinSection, object_url
from shardstore.maintenance.nodes import plan_v2_array
from shardstore.maintenance.pins import is_held
from shardstore.model.chunks import strides
from shardstore.model.redaction import redacted
from shardstore.opening.address import Address, is_known, text_of
from shardstore.opening.open import open_storage
from shardstore.opening.references import absolute_url
from shardstore.references.batches import ReferenceBatch, ReferencedArray, ReferenceSource, read_nodes
from shardstore.references.places import SetPlace
from shardstore.storage.base import Storage
from shardstore.storage.known_references import KnownReferences, KnowsReferences
from shardstore.storage.references.entries import PinnedReference
from shardstore.storage.references.storage import ReferenceStorage

_CHUNKS_AT_ONCE = 20_000
_MOST_ASKED_FOR = 4_000_000  # chunks of a range; of more, the keys that exist are listed first


class PinsByUrl(dict[str, PinnedObject]):
    """The versions of objects that sets were made of, by URL."""

    def __init__(self, *, keeps_relative: bool = False, remedy: str = "bring them up to date with shardstore refs update first") -> None:
        super().__init__()
        self._remedy = remedy
        self.keeps_relative = keeps_relative
        """True if relative URLs stay what they are: the new set is where the old one is."""
        self.are_complete = True
        """True if the version of every object is known."""

    def note(self, url: str, token: str | None) -> None:
        """Note an object. Raises ``InvalidInput`` if another version of it was noted."""
        if token is None:
            self.are_complete = False
        elif self.setdefault(url, PinnedObject(url, token, 0)).generation != token:
            raise InvalidInput(
                f"the references were made of two versions of {redacted(url)}, and a set says one for each URL: {self._remedy}"
            )


class SetArray(ReferencedArray):
    """An array of a set."""

    def __init__(
        self,
        references: ReferenceStorage,
        path: str,
        node: NodeDocuments,
        encoding: ChunkKeyEncoding,
        grid: tuple[int, ...],
        pins: PinsByUrl,
    ) -> None:
        super().__init__(path, node, grid)
        self.references = references
        """The set."""
        self._numbered = NumberedChunks(path, grid, encoding)
        """The chunks in the set, whose path stays when the array gets another one."""
        self._pins = pins

    def noting(self, pins: PinsByUrl) -> SetArray:
        """Return the same array, which notes the objects that it refers to in other ``pins``."""
        return SetArray(self.references, self._numbered.path, self.node, self._numbered.encoding, self.chunk_grid, pins)

    def key(self, chunk: int) -> str:
        """Return the key of a chunk in the set."""
        return self._numbered.keys_of([chunk])[0]

    def window(self, start: int, most: int) -> range:
        if prod(self.chunk_grid) <= _MOST_ASKED_FOR:
            return super().window(start, most)
        at = int(np.searchsorted(self._existing, start))
        if at == len(self._existing):
            return range(0)
        start = int(self._existing[at])
        last = int(np.searchsorted(self._existing, start + most)) - 1
        return range(start, int(self._existing[last]) + 1)

    def batches(self, start: int, stop: int) -> Iterator[ReferenceBatch]:
        if stop - start <= _MOST_ASKED_FOR:
            for first in range(start, stop, _CHUNKS_AT_ONCE):
                yield self.references_to(np.arange(first, min(stop, first + _CHUNKS_AT_ONCE), dtype=np.int64))
            return
        there = self._existing
        there = there[(there >= start) & (there < stop)]
        for first in range(0, len(there), _CHUNKS_AT_ONCE):
            yield self.references_to(there[first : first + _CHUNKS_AT_ONCE])

    @cached_property
    def _existing(self) -> npt.NDArray[np.int64]:
        """The numbers of the chunks that the set has, ascending: of a large grid most may be missing."""
        return np.array(sorted(run_sync(self._numbers_listed())), dtype=np.int64)

    async def _numbers_listed(self) -> list[int]:
        above = self._numbered.above
        numbers = [self._numbered.number_of(key[len(above) :]) async for key in self.references.keys(above)]
        return [number for number in numbers if number is not None]

    def references_to(self, chunks: npt.NDArray[np.int64]) -> ReferenceBatch:
        """Return the references to those of the chunks that the set has, in the order of the numbers.

        Raises:
            Corruption: a record cannot be read.
            StorageError: a request failed.
        """
        entries = run_sync(self.references.find(self._numbered.keys_of(chunks)))
        kept: list[int] = []
        numbers: dict[str, int] = {}
        generations: dict[str, str] = {}
        inline: dict[int, bytes] = {}
        rows: list[tuple[int, int, int]] = []
        for i, entry in enumerate(entries):
            if isinstance(entry, ShardStoreError):
                raise entry
            if entry is None:
                continue
            if isinstance(entry, PinnedReference):
                url, offset, nbytes = entry.reference
                if url is None:
                    raise InvalidInput(f"a reference of array {self._numbered.path!r} names no URL: say which one by the option target")
                if "://" not in url and not self._pins.keeps_relative:
                    url = self.references.targets.absolute(url)
                self._pins.note(url, entry.token)
                if entry.token is not None:
                    generations[url] = entry.token
                if nbytes == 0:
                    inline[len(kept)] = b""
                rows.append((numbers.setdefault(url, len(numbers)) if nbytes != 0 else MISSING, offset, nbytes or 0))
            else:
                inline[len(kept)] = entry
                rows.append((MISSING, 0, 0))
            kept.append(i)
        columns = np.array(rows, dtype=np.int64).reshape(len(rows), 3)
        found = ReferenceRows(list(numbers), columns[:, 0].astype(np.int32), columns[:, 1], columns[:, 2], inline, generations)
        return ReferenceBatch(chunks[kept], found)


def reference_storage(target: Any, options: Mapping[str, Any] | None) -> ReferenceStorage:
    """Return the storage of a set, given with ``reference::`` in front or without it.

    Raises:
        InvalidInput: it is no set.
        ShardStoreError: it cannot be opened.
    """
    if not isinstance(target, Storage) and not str(target).startswith("reference://"):
        url = text_of(target).removeprefix("reference::")
        target = f"reference::{url}"
        if options and not all(isinstance(value, Mapping) for value in options.values()):
            options = {Address.parse(url).protocol: dict(options)}  # of the filesystem that the set is in, not of the set itself
    storage = open_storage(target, dict(options or {}) or None)
    if (references := storage.ability(ReferenceStorage)) is None:
        raise InvalidInput(f"{storage.url} is not a set of references")
    return references


def store_of(place: SetPlace, section: PinSection) -> str:
    """Return the URL of the store that a set was made of. If its references are relative, the store has moved with the set.

    Raises:
        InvalidInput: its references are relative to a place that has no URL that other programs know.
        Corruption: they lead out of the storage of the set.
    """
    base = section.origin.base
    if not base or "://" in base or is_known(base.partition("::")[0]) or base.startswith("/"):
        return section.origin.store
    return absolute_url(Address.parse(place.directory), base).rstrip("/")


def is_set(source: object) -> bool:
    """Return whether a source is named as a set of references."""
    return isinstance(source, str) and source.startswith(("reference::", "reference://"))


def set_source(references: ReferenceStorage, choose: Callable[[str], bool], pins: PinsByUrl | None = None) -> ReferenceSource:
    """Return a set as a source; ``choose`` says which arrays are taken. Its ``pins`` are by URL; several sets may share them.

    Raises:
        NotFound: it has no arrays and no groups.
        Corruption: it cannot be read.
        StorageError: a request failed.
    """
    known = PinsByUrl() if pins is None else pins
    source = ReferenceSource(references.url, {}, [], pins=known)
    nodes = run_sync(read_nodes(references, run_sync(references.document_keys())))
    if not nodes:
        raise NotFound(f"there is no Zarr hierarchy in {references.url}")

    def array_of(path: str, node: NodeDocuments) -> SetArray | str | None:
        if not choose(path):
            return None
        if (grid := _grid_of(path, node)) is None:
            return "its metadata do not say where its chunks are"
        if prod(grid[1]) > MOST_CHUNKS:
            return f"its grid has more than {MOST_CHUNKS} chunks"
        return SetArray(references, path, node, *grid, known)

    source.add(nodes, array_of)
    return source


def _grid_of(path: str, node: NodeDocuments) -> tuple[ChunkKeyEncoding, tuple[int, ...]] | None:
    """Return the encoding of an array's chunk keys, and its grid of chunks. Documents of v3 count, if there are those of both."""
    if node.v3 is not None:
        plain = parse_plain(node.v3)
        if isinstance(plain, str):
            return None
        return plain.key_encoding, plain.chunk_grid_shape
    plan = None if node.v2 is None else plan_v2_array(path, node.v2)
    return None if plan is None else (plan.key_encoding, plan.chunk_grid)


class OlderSet:
    """The references of a set into objects that are still what they were."""

    def __init__(self, references: ReferenceStorage, objects: Mapping[str, PinnedObject]) -> None:
        self._objects = objects
        source = set_source(references, lambda path: True, PinsByUrl(keeps_relative=True))
        self._arrays = {array.path: array for array in source.arrays if isinstance(array, SetArray)}

    def references(
        self, path: str, chunk_grid: tuple[int, ...], key: str, token: str | None, chunks: npt.NDArray[np.int64]
    ) -> ReferenceBatch | None:
        """Return the references into the object at ``key``, which may hold ``chunks``; ``None`` if it, or the array's grid, has changed."""
        pinned, array = self._objects.get(key), self._arrays.get(path)
        if pinned is None or array is None or len(array.chunk_grid) != len(chunk_grid):
            return None
        if token is None or not is_held(frozenset({pinned.generation}), token):
            return None
        older = chunks
        if array.chunk_grid != chunk_grid:
            coords = np.array(np.unravel_index(chunks, chunk_grid), dtype=np.int64).reshape(len(chunk_grid), len(chunks))
            if (coords >= np.array(array.chunk_grid, dtype=np.int64)[:, None]).any():
                return None  # the shard may hold chunks that were outside of the array
            older = coords.T @ strides(array.chunk_grid)
        try:
            found = array.references_to(older)
        except Conflict:  # its file was replaced by one of the new set
            return None
        if older is chunks:
            return found
        order = np.argsort(older)
        return ReferenceBatch(chunks[order[np.searchsorted(older, found.chunks, sorter=order)]], found.rows)


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
        if prod(plain.chunk_grid_shape) > MOST_CHUNKS:
            return f"its grid has more than {MOST_CHUNKS} chunks"
        return KnownArray(storage, base, path, node, plain.chunk_grid_shape, pins)

    source.add({path: NodeDocuments(document, is_array=is_array(document)) for path, document in documents.items()}, array_of)
    return source
