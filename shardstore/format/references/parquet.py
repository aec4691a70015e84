"""Files of references in Parquet, and the document beside them.

::

    set/.zmetadata            {"metadata": {key: document}, "record_size": n}
    set/a/b/refs.0.parq       the first n chunks of the array a/b, in C order of the grid of chunks
    set/a/b/refs.1.parq       the next; the last is as long, whatever the array has. One without any chunk may be missing

    path     optional utf8      a URL
    offset   required int64     its first byte
    size     required int64     how many; offset and size 0: all of it
    raw      optional binary    the bytes themselves. If neither path nor raw is there, the chunk is missing

The metadata of a file hold ``pandas``, without which fastparquet reads the numbers as floats, and ``shardstore``: the versions of the
objects, by URL, that the references were made of. Readers that do not know it leave it alone.

Specification: fsspec's reference sets, "Parquet references".
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption, Unsupported
from shardstore.extras import how_to_install

if TYPE_CHECKING:  # an extra
    import pyarrow as pa

METADATA_NAME = ".zmetadata"

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

    def __len__(self) -> int:
        return len(self.target)


def record_name(number: int) -> str:
    """Return the name of a file of references in the directory of its array."""
    return f"refs.{number}.parq"


def encode_rows(rows: ReferenceRows) -> bytes:
    """Return a file of these rows.

    Raises:
        Unsupported: pyarrow is not installed.
    """
    pa, pq = _pyarrow()
    missing = rows.target == MISSING
    paths = pa.DictionaryArray.from_arrays(
        pa.array(np.where(missing, 0, rows.target), type=pa.int32(), mask=missing), pa.array(list(rows.targets), pa.string())
    )
    raw: list[bytes | None] = [None] * len(rows) if rows.inline else []
    for row, data in rows.inline.items():
        raw[row] = data
    numbers = [pa.array(np.where(missing, 0, column), type=pa.int64()) for column in (rows.offset, rows.nbytes)]
    columns = [paths.dictionary_decode(), *numbers, pa.array(raw, pa.binary()) if raw else pa.nulls(len(rows), pa.binary())]
    table = pa.Table.from_arrays(columns, schema=_schema())
    file = io.BytesIO()
    writer = pq.ParquetWriter(
        file,
        table.schema,
        compression="zstd",
        use_dictionary=["path"],
        column_encoding={"offset": "DELTA_BINARY_PACKED", "size": "DELTA_BINARY_PACKED"},
        write_statistics=False,
        store_schema=False,
    )
    with writer:
        writer.write_table(table, row_group_size=max(1, len(rows)))
        writer.add_key_value_metadata(_key_values(rows.generations))
    return file.getvalue()


def decode_rows(data: bytes | memoryview, most: int) -> ReferenceRows:
    """Return the first ``most`` rows of a file.

    Raises:
        Corruption: it is no such file, or a number in it is negative.
        Unsupported: pyarrow is not installed.
    """
    pa, pq = _pyarrow()
    try:
        file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(data)), read_dictionary=["path"])
        table = file.read(columns=list(_NAMES)).slice(0, most)
        path, offset, size, raw = (table.column(name).combine_chunks() for name in _NAMES)
        if not pa.types.is_dictionary(path.type):
            path = path.dictionary_encode()
        targets = path.dictionary.cast(pa.string()).to_pylist()
        target = path.indices.cast(pa.int32()).fill_null(MISSING).to_numpy(zero_copy_only=False)
        offsets, sizes = (column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) for column in (offset, size))
        inline = _inline(raw)
        own = (file.metadata.metadata or {}).get(_OWN)
    except (pa.ArrowException, OSError, KeyError, AttributeError) as exc:
        raise Corruption(f"it is not a file of references: {exc}") from exc
    if (offsets < 0).any() or (sizes < 0).any():
        raise Corruption("it has a reference with a negative offset or size")
    return ReferenceRows(targets, target, offsets, sizes, inline, _generations(own))


def _inline(raw: Any) -> dict[int, bytes]:
    rows = np.flatnonzero(raw.is_valid().to_numpy(zero_copy_only=False)).tolist() if raw.null_count < len(raw) else []
    return {row: raw[row].as_py() for row in rows}


def _generations(own: bytes | None) -> dict[str, str]:
    try:
        found = json.loads(own or b"{}")
        return {str(url): str(token) for url, token in found["generations"].items()} if found else {}
    except (ValueError, KeyError, AttributeError, TypeError) as exc:
        raise Corruption(f"the versions in a file of references cannot be read: {exc!r}") from exc


def _schema() -> pa.Schema:
    pa, _ = _pyarrow()
    fields = [
        pa.field("path", pa.string()),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("raw", pa.binary()),
    ]
    return pa.schema(fields)


def _key_values(generations: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a file."""
    columns = [
        {"name": name, "field_name": name, "pandas_type": pandas, "numpy_type": numpy, "metadata": None}
        for name, (pandas, numpy) in _PANDAS_TYPES.items()
    ]
    metadata = {"pandas": json.dumps({"index_columns": [], "column_indexes": [], "columns": columns, "pandas_version": "2.2.0"})}
    return metadata | ({_OWN.decode(): json.dumps({"generations": dict(generations)})} if generations else {})


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError as exc:
        raise Unsupported(f"sets of references in Parquet need pyarrow: {how_to_install('parquet')}") from exc
    return pa, pq
