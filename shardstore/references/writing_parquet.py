"""Write a set of references in Parquet, window by window: a window is some rows of one array, as many as the memory bound allows.

A window ends where the source need not read an index twice, if the bound allows that. All shards that have chunks in it are read, their
references scattered to its rows, and every full record encoded and stored. A record in which no chunk exists is not stored, which means
the same to readers.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from shardstore._sync import run_sync
from shardstore.errors import InvalidInput, Unsupported
from shardstore.extras import how_to_install
from shardstore.format.json_text import JsonObject, NumberText
from shardstore.format.references.parquet import MISSING, ReferenceRows, encode_rows, record_name
from shardstore.format.store_keys import join
from shardstore.references.batches import ReferenceBatch, ReferencedArray, size_of
from shardstore.references.places import write_bytes
from shardstore.references.report import Tally
from shardstore.storage.base import Storage
from shardstore.tasks import gather_all

Targets = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]

ROW_NBYTES = 20  # target int32, offset and length int64
_RECORDS_AT_ONCE = 8


@dataclass(slots=True)
class RecordWriter:
    """Writes the records of arrays to ``storage``."""

    storage: Storage
    record_size: int
    max_memory: int
    tally: Tally
    set_id: str = field(default_factory=lambda: uuid4().hex)
    written: dict[tuple[str, int], str] = field(default_factory=dict)
    """By path of the array and number, the tokens of all records that were written so far."""
    nbytes: int = 0
    """Bytes that were written so far."""
    _waiting: list[tuple[str, int, bytes]] = field(default_factory=list)

    def write(self, number: int, array: ReferencedArray, place: str, fill: bytes | None) -> None:
        """Write the records of one array into the directory ``place``. ``fill`` are the bytes that stand for missing chunks, if any. Raises
        ``ShardStoreError`` as reading the source does, and storing a record.
        """
        size = size_of(array)
        buffer = _RowBuffer(array, self.record_size, fill)
        most = max(self.record_size, self.max_memory // ROW_NBYTES)
        at = 0
        while at < size:
            chunks = array.window(at, most) if fill is None else range(at, min(size, at + most))
            if not chunks:
                break
            for record, rows in buffer.skip(chunks.start):
                self._put(place, record, rows)
            buffer.extend(chunks.stop)
            for batch in self.tally.counted(number, array.batches(chunks.start, chunks.stop)):
                buffer.scatter(batch, chunks.stop, self.tally)
            for record, rows in buffer.records():
                self._put(place, record, rows)
            at = chunks.stop
        for record, rows in buffer.last():
            self._put(place, record, rows)
        self._flush()

    def tokens(self) -> dict[str, str]:
        """Return the tokens of all records that were written so far, by key."""
        return {join(path, record_name(number)): token for (path, number), token in self.written.items()}

    def _put(self, path: str, number: int, rows: ReferenceRows) -> None:
        data = encode_rows(replace(rows, set_id=self.set_id))
        self.nbytes += len(data)
        self._waiting.append((path, number, data))
        if len(self._waiting) == _RECORDS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        some, self._waiting = self._waiting, []
        if some:
            run_sync(self._store(some))

    async def _store(self, records: list[tuple[str, int, bytes]]) -> None:
        writes = (write_bytes(self.storage, join(path, record_name(number)), data) for path, number, data in records)
        for (path, number, _), outcome in zip(records, await gather_all(*writes), strict=True):
            self.written[path, number] = outcome.token


class _RowBuffer:
    """The rows of an array from ``start``, a multiple of the record size, on."""

    def __init__(self, array: ReferencedArray, record_size: int, fill: bytes | None) -> None:
        self._size = size_of(array)
        self._record_size = record_size
        self._fill = fill
        self.start = 0
        self.filled = 0
        """The end of the rows whose references are there."""
        self._target: Targets = np.empty(0, np.int32)
        self._offset: Numbers = np.empty(0, np.int64)
        self._nbytes: Numbers = np.empty(0, np.int64)
        self._inline: dict[int, bytes] = {}  # by number of the chunk
        self._targets: list[str] = []
        self._numbers: dict[str, int] = {}
        self._generations: dict[str, str] = {}

    def extend(self, stop: int) -> None:
        """Make room for the rows up to ``stop``."""
        more = stop - self.start - len(self._target)
        self._target = np.concatenate([self._target, np.full(more, MISSING, np.int32)])
        self._offset = np.concatenate([self._offset, np.zeros(more, np.int64)])
        self._nbytes = np.concatenate([self._nbytes, np.zeros(more, np.int64)])

    def scatter(self, batch: ReferenceBatch, stop: int, tally: Tally) -> None:
        """Take those references of a batch that lie in the window and were not there before."""
        chunks, rows = batch.chunks, batch.rows
        inside = (chunks >= self.filled) & (chunks < stop)
        kept = slice(None) if inside.all() else np.flatnonzero(inside)
        numbers = np.array([*(self._number(url, rows) for url in rows.targets), MISSING], dtype=np.int32)  # the last is that of MISSING
        at = chunks[kept] - self.start
        self._target[at] = numbers[rows.target[kept]]
        self._offset[at] = rows.offset[kept]
        self._nbytes[at] = rows.nbytes[kept]
        inline = {int(chunks[row]): data for row, data in rows.inline.items() if inside[row]}
        self._inline |= inline
        tally.count(len(at), len(inline))

    def _number(self, url: str, rows: ReferenceRows) -> int:
        number = self._numbers.setdefault(url, len(self._targets))
        if number == len(self._targets):
            self._targets.append(url)
        if (generation := rows.generations.get(url)) is not None:
            self._generations[url] = generation
        return number

    def skip(self, chunk: int) -> Iterator[tuple[int, ReferenceRows]]:
        """Go on with ``chunk``: those before it do not exist. Yield the record that ends on the way."""
        record = chunk // self._record_size * self._record_size
        if record > self.start:
            yield from self.last()
            self.start = record
        self.extend(max(chunk, self.filled))
        self.filled = self.start + len(self._target)

    def last(self) -> Iterator[tuple[int, ReferenceRows]]:
        """Yield what is left as one record, padded."""
        if rest := len(self._target) % self._record_size:
            self.extend(self.start + len(self._target) + self._record_size - rest)
        yield from self.records()

    def records(self) -> Iterator[tuple[int, ReferenceRows]]:
        """Yield the full records of the window with their numbers, and drop their rows."""
        self.filled = self.start + len(self._target)
        count = len(self._target) // self._record_size
        for i in range(count):
            rows = self._record(i * self._record_size, min(self._record_size, self._size - self.start - i * self._record_size))
            if rows is not None:
                yield self.start // self._record_size + i, rows
        taken = count * self._record_size
        # Copied, so that what was taken is given back.
        self._offset, self._nbytes = self._offset[taken:].copy(), self._nbytes[taken:].copy()
        self._target, self._targets = _only_used(self._target[taken:], self._targets)
        self.start += taken
        self._inline = {chunk: data for chunk, data in self._inline.items() if chunk >= self.start}
        self._numbers = {url: number for number, url in enumerate(self._targets)}
        self._generations = {url: token for url, token in self._generations.items() if url in self._numbers}

    def _record(self, first: int, real: int) -> ReferenceRows | None:
        """Return the record that begins at a row; ``None`` if none of its chunks exists. ``real`` rows of it are chunks of the array."""
        part = slice(first, first + self._record_size)
        own, targets = _only_used(self._target[part], self._targets)
        chunk = self.start + first
        inline: dict[int, bytes] = {}
        if self._inline or self._fill is not None:
            rows = np.flatnonzero(own[:real] == MISSING).tolist()
            inline = {row: data for row in rows if (data := self._inline.get(chunk + row, self._fill)) is not None}
        if not targets and not inline:
            return None
        generations = {url: self._generations[url] for url in targets if url in self._generations}
        return ReferenceRows(targets, own, self._offset[part], self._nbytes[part], inline, generations)


def _only_used(target: Targets, targets: list[str]) -> tuple[Targets, list[str]]:
    """Return numbers of targets, and the targets, without those that no number names."""
    used = np.unique(target[target != MISSING])
    renumbered = np.full(len(targets) + 1, MISSING, np.int32)  # the last is that of MISSING
    renumbered[used] = np.arange(len(used), dtype=np.int32)
    return renumbered[target], [targets[number] for number in used.tolist()]


def check_root(array: ReferencedArray, root_as: str | None) -> str:
    """Return the directory of an array's records. Raises ``InvalidInput`` for an array at the root without ``root_as``."""
    if any(segment.startswith(".z") for segment in (array.path or root_as or "").split("/")):
        raise InvalidInput(f"fsspec takes names that begin with '.z', as in {array.path or root_as!r}, for metadata: write JSON instead")
    if array.path:
        return array.path
    if root_as is None:
        raise InvalidInput("the array at the root cannot be read from Parquet, neither by fsspec nor by GDAL: root_as='data' names it")
    return root_as


def fill_chunk(path: str, zarray: JsonObject) -> bytes:
    """Return one chunk of a Zarr v2 array, encoded by its own filters and compressor; zeros where the array has no fill value. Raises
    ``Unsupported`` if the fill value or a codec is not known, or numcodecs is not installed.
    """
    try:
        dtype = np.dtype(zarray["dtype"])
        chunk: Any = np.empty(zarray["chunks"], dtype)
        chunk[...] = _fill_value(zarray.get("fill_value"), dtype)
        steps = [*(zarray.get("filters") or ()), *([zarray["compressor"]] if zarray.get("compressor") else ())]
        if not steps:
            return bytes(chunk.tobytes())
        import numcodecs

        for configuration in steps:
            chunk = numcodecs.get_codec(dict(configuration)).encode(chunk)
        return bytes(memoryview(chunk).cast("B")) if not isinstance(chunk, np.ndarray) else chunk.tobytes()
    except ModuleNotFoundError as exc:
        raise Unsupported(f"missing='fill' needs numcodecs to encode a chunk of array {path!r}: {how_to_install('zarr')}") from exc
    except (TypeError, ValueError, KeyError) as exc:
        raise Unsupported(
            f"missing='fill' cannot make a chunk of array {path!r} from its fill value: {exc}; missing='null' leaves it out"
        ) from exc


def _fill_value(value: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(value, NumberText):
        value = float(value.text)
    if value is None:
        return np.zeros((), dtype)
    if isinstance(value, str) and dtype.kind in "SV":
        return np.frombuffer(base64.standard_b64decode(value), dtype)[0]
    if isinstance(value, str) and dtype.kind not in "fUO":
        raise ValueError(f"fill value {value!r}")
    if isinstance(value, list):  # of complex numbers
        return complex(*(float(part) for part in value))
    return np.array(value, dtype)
