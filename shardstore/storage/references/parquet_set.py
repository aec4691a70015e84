"""A set of references in Parquet: its metadata are read first, and a file of references when a chunk in it is asked for.

The chunks of an array are numbered in C order of its grid, which its document says, in Zarr v2 or v3. Recently read files are kept in
columns, up to a bound in bytes. A file that the set does not have has no chunks. One that it says to have, and that is gone or of
another set, is an error.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import prod

import numpy as np

from shardstore.errors import Conflict, Corruption, ShardStoreError, StorageError, Unsupported
from shardstore.format.chunk_keys import ChunkKeyEncoding, NumberedChunks, parse_chunk_key_encoding
from shardstore.format.references.parquet import (
    METADATA_NAME,
    MISSING,
    MOST_CHUNKS,
    MOST_NBYTES,
    ReferenceRows,
    SetMetadata,
    decode_metadata,
    decode_rows,
    record_name,
)
from shardstore.format.references.table import Reference, value_of
from shardstore.format.v2.keys import is_document
from shardstore.model.containers import Lru
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Absent, Found, Read, direct_children, document_read, read_one
from shardstore.storage.references.entries import Entry, PinnedReference, SetPlace, Targets

CACHE_BYTES = 64 << 20
"""The bound of the files of references that are kept, decoded."""

_FILES_AT_ONCE = 8
_ROW_NBYTES = 20
_INLINE_NBYTES = 120  # of an entry in a dictionary, and of its bytes besides what they hold
_DECODED_HERE_NBYTES = 512 << 10  # more takes so long that other tasks on the loop would wait

_MOST_ASKED_FOR = 64  # files of a set that does not say which it has; where there may be more, they are listed
_RECORD_NAME = re.compile(r"refs\.([0-9]+)\.parq", re.ASCII)

_NO_ROWS = ReferenceRows((), np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))


class ParquetSet:
    """The references of the set at ``place``, whose metadata are ``documents``, of ``record_size`` chunks a file."""

    def __init__(
        self,
        place: SetPlace,
        metadata: SetMetadata,
        targets: Targets,
        *,
        pins: bool,
        cache_bytes: int,
        version: str = "",
    ) -> None:
        self.version = version
        self._place = place
        documents = metadata.documents.items()
        self._documents = {key: value if isinstance(value, str) else json.dumps(value) for key, value in documents}
        self._sorted_documents = sorted(self._documents)
        self._record_size = metadata.record_size
        self._files = metadata.files
        self._old_set_id: str | None = None
        self._targets = targets
        self._pins = pins
        most = max(1, cache_bytes)
        # The file that was read last is kept whatever its size: its chunks are asked for one by one.
        self._cache: Lru[tuple[str, int], ReferenceRows] = Lru(most, lambda rows: min(most, _kept_nbytes(rows)))
        self._arrays = _arrays_in(place, self._documents)
        self._bound = asyncio.Semaphore(_FILES_AT_ONCE)
        self._reading: dict[tuple[str, int], asyncio.Future[ReferenceRows]] = {}
        self._pid = os.getpid()

    # -- files ---------------------------------------------------------------------------------------------------------

    async def _rows(self, array: NumberedChunks, record: int) -> ReferenceRows:
        """Return the rows of one file; several that ask for it at once share one request."""
        if self._pid != os.getpid():  # forked: what was under way belongs to the parent's loop
            self._reading, self._bound, self._pid = {}, asyncio.Semaphore(_FILES_AT_ONCE), os.getpid()
        if self._files is not None and not self._files.has(array.path, record):
            return _NO_ROWS
        name = (array.path, record)
        if (rows := self._cache.get(name)) is not None:
            return rows
        reading = self._reading.get(name)
        if reading is None:
            reading = self._reading[name] = asyncio.ensure_future(self._read(array, record))
            reading.add_done_callback(lambda done: self._done(name, done))
        return await asyncio.shield(reading)

    def _done(self, name: tuple[str, int], reading: asyncio.Future[ReferenceRows]) -> None:
        self._reading.pop(name, None)
        if not reading.cancelled() and reading.exception() is None:
            self._cache.put(name, reading.result())

    async def _read(self, array: NumberedChunks, record: int) -> ReferenceRows:
        file = self._place.key(array.above + record_name(record))
        async with self._bound:
            outcome = await read_one(self._place.storage, Read(file, (EVERYTHING,), most_nbytes=MOST_NBYTES))
            if isinstance(outcome, Absent):
                if self._files is None:
                    return _NO_ROWS
                raise Conflict(
                    f"{self._shown(array, record)} is gone: if {self._place.url} was replaced while it was open, open it again, "
                    "else write it again"
                )
            if not isinstance(outcome, Found):
                raise StorageError(f"{self._shown(array, record)} was replaced while it was being read: try again")
            data = outcome.buffers[0]
            most = min(self._record_size, array.count - record * self._record_size)
            try:
                if len(data) < _DECODED_HERE_NBYTES:
                    rows = decode_rows(data, most)
                else:
                    rows = await asyncio.to_thread(decode_rows, data, most)
            except (Corruption, Unsupported) as exc:
                raise type(exc)(f"{self._shown(array, record)}: {exc}") from exc
        if not await self._is_own(rows.set_id):
            raise Conflict(
                f"{self._shown(array, record)} belongs to another set: if {self._place.url} was replaced while it was open, open it again, "
                "else write it again"
            )
        if self._pins and rows.generations:
            self._targets.allow(list(rows.generations))
        return rows

    async def _is_own(self, set_id: str | None) -> bool:
        """Return whether a file of this set may say that it belongs to ``set_id``.

        fsspec leaves the names out of a set that it adds to: then files may have the set's old name, or none. Where that is so when the
        first file with a name is read is shown by the metadata, which are replaced before any file.
        """
        if self._files is not None:
            return set_id == self._files.set_id
        if set_id is not None and self._old_set_id is None:
            info = await self._place.storage.stat(self._place.key(METADATA_NAME))
            if info is None or (info.generation is not None and self.version and info.generation.token != self.version):
                return False
            self._old_set_id = set_id
        return set_id in (None, self._old_set_id)

    async def _records(self, array: NumberedChunks, asked: range) -> Iterable[int]:
        """Return the numbers of the files that exist, of those that are ``asked`` for; or more, if they are few."""
        if self._files is not None:
            runs = self._files.records.get(array.path, ())
            return chain.from_iterable(range(max(run.start, asked.start), min(run.stop, asked.stop)) for run in runs)
        if len(asked) <= _MOST_ASKED_FOR:
            return asked
        above = self._place.key(array.above)
        names = [info.key[len(above) :] async for info in self._place.storage.list(above + "refs.")]
        found = (int(named[1]) for name in names if (named := _RECORD_NAME.fullmatch(name)) is not None)
        return sorted(number for number in found if number in asked)

    def _shown(self, array: NumberedChunks, record: int) -> str:
        return f"{self._place.url}/{array.above}{record_name(record)}"

    def _entry(self, rows: ReferenceRows, row: int) -> Entry | None:
        data = rows.inline.get(row)
        if data is not None:
            return data
        target = int(rows.target[row]) if row < len(rows) else MISSING
        if target == MISSING:
            return None
        url, offset, nbytes = rows.targets[target], int(rows.offset[row]), int(rows.nbytes[row])
        reference = Reference(url, offset, nbytes if offset or nbytes else None)
        return PinnedReference(reference, rows.generations.get(url) if self._pins else None)

    # -- keys ----------------------------------------------------------------------------------------------------------

    def _place_of(self, key: str) -> tuple[NumberedChunks, int] | None:
        """Return the array and the number of the chunk that has this key."""
        above = key
        while above:
            above = above.rpartition("/")[0]
            array = self._arrays.get(above)
            if array is not None and (number := array.number_of(key[len(array.above) :])) is not None:
                return array, number
        return None

    async def find(self, keys: Sequence[str]) -> list[Entry | ShardStoreError | None]:
        entries: list[Entry | ShardStoreError | None] = [None] * len(keys)
        of_file: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for i, key in enumerate(keys):
            if (text := self._documents.get(key)) is not None:
                entries[i] = value_of(text, key)
            elif (place := self._place_of(key)) is not None:
                record, row = divmod(place[1], self._record_size)
                of_file.setdefault((place[0].path, record), []).append((i, row))

        async def look(path: str, record: int, wanted: Sequence[tuple[int, int]]) -> None:
            try:
                rows = await self._rows(self._arrays[path], record)
            except ShardStoreError as exc:
                for i, _ in wanted:
                    entries[i] = exc
                return
            for i, row in wanted:
                entries[i] = self._entry(rows, row)

        await asyncio.gather(*(look(path, record, wanted) for (path, record), wanted in of_file.items()))
        return entries

    async def items(self, prefix: str) -> AsyncIterator[tuple[str, Entry]]:
        for key in self._documents_below(prefix):
            yield key, value_of(self._documents[key], key)
        for array in self._arrays.values():
            async for key, entry in self._chunks(array, prefix):
                yield key, entry

    def _documents_below(self, prefix: str) -> Iterator[str]:
        for i in range(bisect_left(self._sorted_documents, prefix), len(self._sorted_documents)):
            if not self._sorted_documents[i].startswith(prefix):
                break
            yield self._sorted_documents[i]

    async def _chunks(self, array: NumberedChunks, prefix: str) -> AsyncIterator[tuple[str, Entry]]:
        """Yield the chunks of an array whose keys start with ``prefix``, file by file, in the order of keys in each."""
        numbers = array.numbers_below(prefix)
        if not numbers:
            return
        first, last = numbers.start // self._record_size, (numbers.stop - 1) // self._record_size
        for record in await self._records(array, range(first, last + 1)):
            rows = await self._rows(array, record)
            first = record * self._record_size
            there = np.flatnonzero(rows.target != MISSING).tolist()
            some = sorted({row for row in (*there, *rows.inline) if first + row in numbers})
            keys = array.keys_of([first + row for row in some]) if some else []
            for key, row in sorted(zip(keys, some, strict=True)):
                if key.startswith(prefix) and key not in self._documents and (entry := self._entry(rows, row)) is not None:
                    yield key, entry

    async def children(self, prefix: str) -> tuple[list[tuple[str, Entry]], list[str]]:
        names, prefixes = direct_children(self._documents_below(prefix), prefix)
        found: list[tuple[str, Entry]] = [(key, value_of(self._documents[key], key)) for key in names]
        deeper = dict.fromkeys(prefixes)
        for array in self._arrays.values():
            if not prefix.startswith(array.above):  # the directories of its documents are those of its chunks
                continue
            async for key, entry in self._chunks(array, prefix):
                name, slash, _ = key[len(prefix) :].partition("/")
                if slash:
                    deeper[f"{prefix}{name}/"] = None
                else:
                    found.append((key, entry))
        return sorted(found, key=lambda item: item[0]), sorted(deeper)

    async def documents(self) -> list[str]:
        return [key for key in self._sorted_documents if is_document(key)]

    async def urls(self) -> AsyncIterator[str | None]:
        for array in self._arrays.values():
            for record in await self._records(array, range(-(-array.count // self._record_size))):
                for url in (await self._rows(array, record)).targets:
                    yield url


def _kept_nbytes(rows: ReferenceRows) -> int:
    """Return about how many bytes the rows of one file take in memory."""
    texts = (*rows.inline.values(), *filter(None, rows.targets), *filter(None, rows.generations))
    return _ROW_NBYTES * len(rows) + _INLINE_NBYTES + sum(_INLINE_NBYTES + len(text) for text in texts)


async def read_parquet_set(place: SetPlace, targets: Targets, *, pins: bool, cache_bytes: int) -> ParquetSet | None:
    """Read the metadata of a set; ``None``: there is none in Parquet.

    Raises:
        Corruption: the metadata contradict their specification.
        StorageError: they cannot be read.
    """
    outcome = await read_one(place.storage, document_read(place.key(METADATA_NAME)))
    if not isinstance(outcome, Found):
        return None
    try:
        metadata = decode_metadata(outcome.buffers[0])
    except Corruption as exc:
        raise Corruption(f"{place.url}/{METADATA_NAME}: {exc}") from exc
    return ParquetSet(place, metadata, targets, pins=pins, cache_bytes=cache_bytes, version=outcome.generation.token)


def _arrays_in(place: SetPlace, documents: Mapping[str, str]) -> dict[str, NumberedChunks]:
    """Return the arrays of a set by path. Where an array has a document of each version, that of Zarr v2 counts: the files are by it."""
    found: dict[str, NumberedChunks] = {}
    for key, text in documents.items():
        path, _, name = key.rpartition("/")
        if name not in (".zarray", "zarr.json") or (name == "zarr.json" and f"{path}/.zarray".lstrip("/") in documents):
            continue
        try:
            document = json.loads(text)
            if name == ".zarray":
                shape, chunks = document["shape"], document["chunks"]
                encoding = ChunkKeyEncoding("v2", "/" if document.get("dimension_separator") == "/" else ".")
            elif document["node_type"] == "array":
                shape, chunks = document["shape"], document["chunk_grid"]["configuration"]["chunk_shape"]
                known = parse_chunk_key_encoding(document["chunk_key_encoding"])
                if known is None:
                    raise ValueError("its chunk_key_encoding is not known")
                encoding = known
            else:
                continue
            grid = tuple(-(-int(n) // int(c)) for n, c in zip(shape, chunks, strict=True))
            if any(n < 0 for n in grid) or prod(grid) > MOST_CHUNKS:
                raise ValueError(f"its grid is {grid}")
        except (ArithmeticError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as exc:
            raise Corruption(
                f"{place.url}/{key}, in the metadata of a set of references, is not the document of an array: {exc!r:.500}"
            ) from exc
        found[path] = NumberedChunks(path, grid, encoding)
    return found
