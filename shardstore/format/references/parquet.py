"""Files of references in Parquet, and the document next to them.

::

    set/.zmetadata            {"metadata": {key: document}, "record_size": n, "shardstore": {"set": "5f0c…", "records": {"a/b": [[0, 2]]}}}
    set/a/b/refs.0.parq       the first n chunks of the array a/b, in C order of the grid of chunks
    set/a/b/refs.1.parq       the next; the last is as long, whatever the array has. One without any chunk may be missing

    path     optional utf8      a URL
    offset   required int64     its first byte
    size     required int64     how many; offset and size 0: all of it
    raw      optional binary    the bytes themselves. If neither path nor raw is there, the chunk is missing

The metadata of a file hold ``pandas``, without which fastparquet reads the numbers as floats, and ``shardstore``: the versions of the
objects, by URL, that the references were made of, and the set that the file belongs to. The document names the same set, and the numbers of
the files that it has for each array, so that a file which another run wrote, or which is gone, is not taken for one of this set. Readers
that do not know ``shardstore`` leave it alone.

Specification: fsspec's reference sets, "Parquet references".
"""

from __future__ import annotations

import io
import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption, InvalidInput, Unsupported
from shardstore.extras import needed
from shardstore.format.arrow_tables import column, numbers_column, numbers_of
from shardstore.format.json_text import dumps

METADATA_NAME = ".zmetadata"

MOST_ROWS = 1 << 24
MOST_NBYTES = 256 << 20
"""The largest file: rows, and bytes before they are compressed."""
MOST_URL_NBYTES = 1 << 16
"""The longest URL."""

MOST_CHUNKS = 2**62
"""The most chunks of an array: their numbers are 64-bit integers."""
MOST_OFFSET = 2**62
"""No reference ends behind this byte."""

MISSING = -1
"""The number in place of a target's, of a row that has none: it is missing, or its bytes are in the set."""

_NAMES = ("path", "offset", "size", "raw")
_OWN = b"shardstore"
_PANDAS_TYPES = {"path": ("unicode", "object"), "offset": ("int64",) * 2, "size": ("int64",) * 2, "raw": ("bytes", "object")}


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceRows:
    """The references of successive chunks, ``(n,)`` each."""

    targets: Sequence[str]
    """The URLs."""
    target: npt.NDArray[np.int32]
    """The number of each chunk's URL, or ``MISSING``."""
    offset: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]
    """With ``offset`` 0 and ``nbytes`` 0, all of the target."""
    inline: Mapping[int, bytes] = field(default_factory=dict)
    """By row, the bytes of chunks that are in the set itself."""
    generations: Mapping[str, str] = field(default_factory=dict)
    """By URL, the tokens of the versions that the references were made of, as far as they are known."""
    set_id: str | None = None
    """The set that the file belongs to; ``None`` if it does not say."""

    def __len__(self) -> int:
        return len(self.target)


@dataclass(frozen=True, slots=True)
class SetFiles:
    """The files of references of one set, of this package's own making."""

    set_id: str
    """A text that no other set has."""
    records: Mapping[str, Sequence[range]]
    """By path of the array, the numbers of its files, in ascending order."""

    @classmethod
    def of(cls, set_id: str, records: Iterable[tuple[str, int]]) -> SetFiles:
        """Return the files with these paths and numbers."""
        found: dict[str, list[range]] = {}
        for path, number in sorted(records):
            runs = found.setdefault(path, [])
            if runs and runs[-1].stop == number:
                runs[-1] = range(runs[-1].start, number + 1)
            else:
                runs.append(range(number, number + 1))
        return cls(set_id, found)

    def has(self, path: str, number: int) -> bool:
        """Return whether the set has a file."""
        runs = self.records.get(path, ())
        at = bisect_right(runs, number, key=lambda run: run.start) - 1
        return at >= 0 and number in runs[at]


@dataclass(frozen=True, slots=True)
class SetMetadata:
    """The document next to the files of references."""

    documents: Mapping[str, Any]
    """By key, the documents of nodes, as JSON or as text."""
    record_size: int
    files: SetFiles | None = None
    """The files that the set has; ``None`` if it does not say, as those of other programs."""


def encode_metadata(metadata: SetMetadata) -> bytes:
    """Return the bytes of the document."""
    document: dict[str, Any] = {"metadata": dict(metadata.documents), "record_size": metadata.record_size}
    if (files := metadata.files) is not None:
        records = {path: [[run.start, run.stop] for run in runs] for path, runs in files.records.items()}
        document[_OWN.decode()] = {"set": files.set_id, "records": records}
    return dumps(document)


def decode_metadata(data: bytes | memoryview) -> SetMetadata:
    """Return the document from its bytes. Raises ``Corruption`` if it is none."""
    try:
        document = json.loads(bytes(data))
        own = document.get(_OWN.decode())
        files = None
        if own is not None:
            records = {str(path): [range(start, stop) for start, stop in runs] for path, runs in own["records"].items()}
            if not all(a.stop < b.start for runs in records.values() for a, b in pairwise(runs)):
                raise ValueError("the numbers of its files are not in order")
            files = SetFiles(str(own["set"]), records)
        metadata = SetMetadata(dict(document["metadata"]), int(document["record_size"]), files)
    except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise Corruption(f"it is not the metadata of a set of references: {exc!r:.500}") from exc
    if metadata.record_size < 1:
        raise Corruption(f"it is not the metadata of a set of references: record_size is {metadata.record_size}")
    return metadata


def record_name(number: int) -> str:
    """Return the name of a file of references in the directory of its array."""
    return f"refs.{number}.parq"


def encode_rows(rows: ReferenceRows) -> bytes:
    """Return a file of these rows. Raises ``Unsupported`` if pyarrow is not installed."""
    pa, pq = _pyarrow()
    missing = rows.target == MISSING
    urls = [url.encode() for url in rows.targets]
    lengths = np.array(list(map(len, urls)), dtype=np.int64)
    if (nbytes := int(lengths[rows.target[~missing]].sum())) >= 2**31:  # the limit of a column, which repeats a URL for each of its rows
        raise InvalidInput(f"a file of references would hold {nbytes} bytes of URLs: choose a smaller record_size")
    indices = numbers_column(pa.int32(), np.where(missing, 0, rows.target).astype(np.int32), missing)
    paths = pa.DictionaryArray.from_arrays(indices, _texts(pa.string(), urls)).dictionary_decode()
    raw = _texts(pa.binary(), [rows.inline.get(row) for row in range(len(rows))]) if rows.inline else pa.nulls(len(rows), pa.binary())
    numbers = [numbers_column(pa.int64(), np.where(missing, 0, values)) for values in (rows.offset, rows.nbytes)]
    kinds = (pa.string(), pa.int64(), pa.int64(), pa.binary())
    schema = pa.schema([pa.field(name, kind, nullable=name in ("path", "raw")) for name, kind in zip(_NAMES, kinds, strict=True)])
    table = pa.Table.from_arrays([paths, *numbers, raw], schema=schema)
    file = io.BytesIO()
    writer = pq.ParquetWriter(
        file,
        table.schema,
        compression="zstd",
        use_dictionary=["path"],
        dictionary_pagesize_limit=MOST_NBYTES,  # or each URL is written once for each of its rows
        column_encoding={"offset": "DELTA_BINARY_PACKED", "size": "DELTA_BINARY_PACKED"},
        write_statistics=["raw"],
        store_schema=False,
    )
    with writer:
        writer.write_table(table, row_group_size=max(1, len(rows)))
        writer.add_key_value_metadata(_key_values(rows))
    return file.getvalue()


def _texts(kind: Any, values: Sequence[bytes | None]) -> Any:
    """Return a column of text or bytes."""
    nbytes = sum(len(value) for value in values if value is not None)
    if nbytes > (most := MOST_NBYTES // 2):  # with room for all else
        raise InvalidInput(f"a file of references would hold {nbytes} bytes; {most} are the most: choose a smaller record_size")
    return column(kind, values)


def decode_rows(data: bytes | memoryview, most: int) -> ReferenceRows:
    """Return the first ``most`` rows of a file.

    Raises:
        Corruption: it is no such file, or a number in it is negative.
        Unsupported: pyarrow is not installed.
    """
    pa, pq = _pyarrow()
    try:
        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(data)), read_dictionary=["path", "raw"])  # no value is there more than once
        _check_size(file.metadata)
        names = _NAMES[:-1] if _has_no_bytes(file.metadata) else _NAMES
        table = file.read(columns=list(names)).slice(0, most)
        columns = map(table.column, names)
        path, offset, size, *raw = (one.chunk(0) if one.num_chunks == 1 else one.combine_chunks() for one in columns)
        if not pa.types.is_dictionary(path.type):
            path = path.dictionary_encode()
        targets = _short_texts(path.dictionary.cast(pa.string()))
        target = numbers_of(path.indices.cast(pa.int32()), np.int32, MISSING)
        offsets, sizes = (numbers_of(column.cast(pa.int64()), np.int64) for column in (offset, size))
        inline = _inline(raw[0]) if raw else {}
        own = (file.metadata.metadata or {}).get(_OWN)
    except (pa.ArrowException, OSError, KeyError, AttributeError) as exc:
        raise Corruption(f"it is not a file of references: {exc}") from exc
    if (offsets < 0).any() or (sizes < 0).any() or (offsets > MOST_OFFSET - sizes).any():
        raise Corruption("it has a reference with a negative offset or size, or one that ends past every possible object")
    return ReferenceRows(targets, target, offsets, sizes, inline, *_own_metadata(own))


def _check_size(metadata: Any) -> None:
    """Raise ``Unsupported`` if a file says that it becomes so large that it would fill the memory."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    nbytes = sum(group.total_byte_size for group in groups)
    if metadata.num_rows > MOST_ROWS or nbytes > MOST_NBYTES:
        raise Unsupported(f"it has {metadata.num_rows} rows of {nbytes} bytes: at most {MOST_ROWS} rows of {MOST_NBYTES} bytes are read")


def _has_no_bytes(metadata: Any) -> bool:
    """Return whether a file is known to have no chunks in itself: then their column need not be read, which takes a quarter of the time."""
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        columns = [one for one in map(group.column, range(group.num_columns)) if one.path_in_schema == "raw"]
        known = [one.statistics for one in columns]
        if not any(one is not None and one.has_null_count and one.null_count == group.num_rows for one in known):
            return False
    return True


def _inline(raw: Any) -> dict[int, bytes]:
    """Return the bytes of chunks by row; those that are the same are one object."""
    if raw.null_count == len(raw):
        return {}
    pa, _ = _pyarrow()
    if not pa.types.is_dictionary(raw.type):
        raw = raw.dictionary_encode()
    values = raw.dictionary.cast(pa.binary()).to_pylist()
    numbers = numbers_of(raw.indices.cast(pa.int32()), np.int32, MISSING)
    return {row: values[int(numbers[row])] for row in np.flatnonzero(numbers != MISSING).tolist()}


def _short_texts(column: Any) -> list[str]:
    """Return the URLs of a column. Raises ``Corruption`` if one is too long for any."""
    ends = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1] if len(column) else np.zeros(1)
    if (longest := int(np.diff(ends).max(initial=0))) > MOST_URL_NBYTES:
        raise Corruption(f"it has a URL of {longest} bytes; {MOST_URL_NBYTES} are the most")
    found: list[str] = column.to_pylist()
    return found


def _own_metadata(own: bytes | None) -> tuple[dict[str, str], str | None]:
    """Return the versions of objects by URL, and the set that the file belongs to."""
    if own is None:
        return {}, None
    try:
        found = json.loads(own)
        set_id = found.get("set")
        return {str(url): str(token) for url, token in found["generations"].items()}, None if set_id is None else str(set_id)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as exc:
        raise Corruption(f"the versions in a file of references cannot be read: {exc!r}") from exc


def _key_values(rows: ReferenceRows) -> dict[str, str]:
    """Return the metadata of a file."""
    columns = [
        {"name": name, "field_name": name, "pandas_type": pandas, "numpy_type": numpy, "metadata": None}
        for name, (pandas, numpy) in _PANDAS_TYPES.items()
    ]
    pandas = {"index_columns": [], "column_indexes": [], "columns": columns, "pandas_version": "2.2.0"}
    own = {"generations": dict(rows.generations)} | ({} if rows.set_id is None else {"set": rows.set_id})
    return {"pandas": json.dumps(pandas), _OWN.decode(): json.dumps(own)}


def _pyarrow() -> tuple[Any, Any]:
    what = "sets of references in Parquet need pyarrow"
    return needed("pyarrow", "parquet", what), needed("pyarrow.parquet", "parquet", what)
