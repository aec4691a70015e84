"""Write a set of references in JSON: streamed, one entry a line, in a fixed order.

::

    {"version": 1, "refs": {
    ".zgroup": "{\"zarr_format\": 2}",
    "ct/.zarray": "{…}",
    "ct/0.0": ["s3://bucket/data.zarr/ct/c/0/0", 0, 1048576],
    …
    }}

The text is collected in a temporary file, since object stores have to know its size before they take it.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from math import prod
from typing import IO, Protocol

import numpy as np
import numpy.typing as npt

from shardstore.errors import InvalidInput
from shardstore.extras import needed
from shardstore.format.chunk_keys import ChunkKeyEncoding
from shardstore.format.json_text import JsonObject, dumps
from shardstore.format.references.documents import key_encoding
from shardstore.format.references.parquet import MISSING
from shardstore.format.references.pins import SetDigest
from shardstore.format.store_keys import join
from shardstore.references.batches import ReferenceBatch, ReferencedArray, Shards, size_of
from shardstore.references.choices import Described
from shardstore.references.report import Tally

_ENTRIES_AT_ONCE = 50_000


class DigestedFile:
    """A temporary file that notes the digest of what is written to it. It stays open when a compressor closes it."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.digest = SetDigest(0, 0)

    def write(self, data: bytes) -> int:
        self.digest = self.digest.extended(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        self.flush()


@contextmanager
def compressed(file: DigestedFile, name: str) -> Iterator[Writes]:
    """Give what to write the text to, compressed if the set's name ends so. Raises ``Unsupported`` if ``.zst`` lacks pyarrow."""
    if name.endswith(".gz"):
        with gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as text:
            yield text
    elif name.endswith(".zst"):
        pa = needed("pyarrow", "parquet", "sets that end in .zst need pyarrow")
        sink = pa.PythonFile(file, mode="w")
        text = pa.CompressedOutputStream(sink, "zstd")
        yield text
        text.close()
    else:
        yield file


class Writes(Protocol):
    """Something that bytes are written to."""

    def write(self, data: bytes, /) -> object: ...


def write_lines(
    file: Writes, described: Described, arrays: Sequence[ReferencedArray], tally: Tally, *, version: int, template: str, generators: bool
) -> None:
    """Write the text of a set. ``template`` is the beginning of URLs that the template ``u`` stands for; empty for none.

    Raises:
        InvalidInput: a name holds what readers of version 1 take for a template.
        ShardStoreError: as reading the source does.
    """
    lines = _Lines(file, version, template)
    lines.begin()
    for path, by_name in described.documents.items():
        for name, document in by_name.items():
            lines.entry(join(path, name), dumps(document).decode())
    generated: list[str] = []
    for number, array in enumerate(arrays):
        encoding = key_encoding(described.documents[array.path])
        batches = tally.counted(number, array.batches(0, size_of(array)))
        if generators:
            taken: list[ReferenceBatch] = []
            gen = generator_of(array, encoding, template, batches, taken)
            if gen is not None:
                generated.append(gen)
                tally.count(size_of(array), 0)
                continue
            batches = chain(taken, batches)  # no index is read twice
        for batch in batches:
            tally.count(len(batch.chunks), len(batch.rows.inline))
            lines.batch(array, encoding, batch)
    lines.end(generated)


class _Lines:
    """Writes entries, separated by commas."""

    def __init__(self, file: Writes, version: int, template: str) -> None:
        self._file = file
        self._version = version
        self._template = template
        self._separator = "\n"

    def begin(self) -> None:
        templates = f'"templates": {{"u": {json.dumps(self._template)}}}, ' if self._template else ""
        self._file.write(f'{{"version": 1, {templates}"refs": {{'.encode() if self._version else b"{")

    def end(self, generated: list[str]) -> None:
        gen = ', "gen": [\n' + ",\n".join(generated) + "\n]" if generated else ""
        self._file.write(f"\n}}{gen}}}\n".encode() if self._version else b"\n}\n")

    def entry(self, key: str, text: str) -> None:
        self._write(f"{json.dumps(key)}: {json.dumps(text)}")

    def batch(self, array: ReferencedArray, encoding: ChunkKeyEncoding, batch: ReferenceBatch) -> None:
        chunks, rows = batch.chunks, batch.rows
        head = json.dumps(join(array.path, "k"))[:-2]
        targets = [self._target(url) for url in rows.targets]
        for start in range(0, len(chunks), _ENTRIES_AT_ONCE):
            part = slice(start, start + _ENTRIES_AT_ONCE)
            begins, ends = _keys(array, encoding, chunks[part], head)
            offsets, lengths = rows.offset[part].tolist(), rows.nbytes[part].tolist()
            if len(targets) == 1 and not rows.inline and rows.nbytes[part].all():
                between = f'": {targets[0]}, '
                found = [f"{begin}{end}{between}{o}, {n}]" for begin, end, o, n in zip(begins, ends, offsets, lengths, strict=True)]
            else:
                spans = [f", {o}, {n}]" if o or n else "]" for o, n in zip(offsets, lengths, strict=True)]
                found = [
                    f'{begin}{end}": ' + (_inline(rows.inline[row]) if target == MISSING else targets[target] + span)
                    for row, (begin, end, target, span) in enumerate(
                        zip(begins, ends, rows.target[part].tolist(), spans, strict=True), start
                    )
                ]
            if found:
                self._write(",\n".join(found))

    def _write(self, text: str) -> None:
        self._file.write((self._separator + text).encode())
        self._separator = ",\n"

    def _target(self, url: str) -> str:
        """Return the beginning of a reference, up to its URL."""
        if self._version and _ANNOTATION.search(url):
            raise InvalidInput(f"the URL {url!r} holds what readers take for a template: version=0 has none")
        if self._template and _BRACE.search(url):
            raise InvalidInput(f"the URL {url!r} has a brace, which fsspec takes for a part of a template: leave out templates=True")
        if self._template and url.startswith(self._template):
            return "[" + json.dumps("{{u}}" + url[len(self._template) :])
        return "[" + json.dumps(url)


_BRACE = re.compile("[{}]")
_ANNOTATION = re.compile(r"\{[{%#]")


def _keys(
    array: ReferencedArray, encoding: ChunkKeyEncoding, chunks: npt.NDArray[np.int64], head: str
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the keys of chunks in two parts, the first with ``head`` in front."""
    if not array.chunk_grid:
        return [head] * len(chunks), [encoding.encode(())] * len(chunks)
    return encoding.encode_halves(np.unravel_index(chunks, array.chunk_grid), head)


def _inline(data: bytes) -> str:
    return f'"base64:{base64.b64encode(data).decode()}"' if data else '""'


# -- generated keys ------------------------------------------------------------------------------------------------------


def generator_of(
    array: ReferencedArray, encoding: ChunkKeyEncoding, template: str, batches: Iterator[ReferenceBatch], taken: list[ReferenceBatch]
) -> str | None:
    """Return the entry of ``gen`` that stands for all references of an array, proven against each of them; ``None`` if there is none. What
    was taken of ``batches`` until that was known is put into ``taken``.

    There is one if every shard is there and full, and the offset in a shard grows by the length of a chunk from slot to slot.
    """
    if array.shards is None or not array.chunk_grid or _ANNOTATION.search(array.path + array.shards.url(["0"] * len(array.chunk_grid))):
        return None  # what is in braces would be taken for a variable
    counts = array.shards.chunks_per_shard
    if any(g % c for g, c in zip(array.chunk_grid, counts, strict=True)):
        return None
    first = _regular_place(batches, prod(counts), taken)
    if first is None or sum(len(batch.chunks) for batch in taken) != size_of(array):
        return None
    return json.dumps(_generator(array.path, array.chunk_grid, array.shards, encoding, template, first))


def _regular_place(batches: Iterator[ReferenceBatch], nslots: int, taken: list[ReferenceBatch]) -> tuple[int, int] | None:
    """Return the offset of the first chunk and the length of each chunk, if these are the same in all shards, each of which is full and has
    its chunks one behind the other; ``None`` if not, or if there is no shard. What was taken of ``batches`` is put into ``taken``.
    """
    first: tuple[int, int] | None = None
    for batch in batches:
        taken.append(batch)
        rows = batch.rows
        if rows.inline or len(rows.targets) != 1 or len(batch.chunks) != nslots:
            return None
        offset, nbytes = int(rows.offset[0]), int(rows.nbytes[0])
        first = first or (offset, nbytes)
        steps = np.arange(nslots, dtype=np.int64) * nbytes
        if (offset, nbytes) != first or not nbytes or not (rows.nbytes == nbytes).all() or not (rows.offset == offset + steps).all():
            return None
    return first


def _generator(
    path: str, chunk_grid: tuple[int, ...], in_shards: Shards, encoding: ChunkKeyEncoding, template: str, first: tuple[int, int]
) -> JsonObject:
    """Return the generator of an array whose shards all have their first chunk, and lengths, as ``_regular_place`` returns them."""
    counts = in_shards.chunks_per_shard
    base, nbytes = first
    shards = [f"s{i}" for i in range(len(counts))]
    slots = [f"o{i}" for i in range(len(counts))]
    chunk_names = [f"{{{{{s} * {n} + {o}}}}}" for s, n, o in zip(shards, counts, slots, strict=True)]
    slot = slots[0]
    for n, o in zip(counts[1:], slots[1:], strict=True):
        slot = f"({slot}) * {n} + {o}"
    url = in_shards.url([f"{{{{{s}}}}}" for s in shards])
    if template and url.startswith(template):
        url = "{{u}}" + url[len(template) :]
    return {
        "key": join(path, encoding.separator.join((["c"] if encoding.name == "default" else []) + chunk_names)),
        "url": url,
        "offset": f"{{{{({slot}) * {nbytes} + {base}}}}}",
        "length": str(nbytes),
        "dimensions": {s: {"stop": g // n} for s, g, n in zip(shards, chunk_grid, counts, strict=True)}
        | {o: {"stop": n} for o, n in zip(slots, counts, strict=True)},
    }
