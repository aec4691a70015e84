"""Makes columns of Arrow, and reads whole files of Parquet, without what pyarrow does in passing.

``pyarrow.array`` imports pandas, where that is installed, which takes a fifth of a second at best: columns are made from buffers here.

``pyarrow.parquet.read_table`` reads through pyarrow's datasets, in threads of its own. One of them may hold the bytes after the table is
there. A process that ends before that thread is aborted: the thread would release an object of an interpreter that is gone.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption

if TYPE_CHECKING:  # an extra
    import pyarrow as pa

_SEAL_NBYTES = 4
_TAIL_NBYTES = 8

Missing = npt.NDArray[np.bool_] | None
"""Which of ``(n,)`` values are null; ``None``: none."""


def numbers_column(kind: pa.DataType, values: npt.NDArray[Any], missing: Missing = None) -> pa.Array:
    """Return a column of ``(n,)`` numbers, whose dtype is that of ``kind``."""
    import pyarrow as pa  # an extra

    return pa.Array.from_buffers(kind, len(values), [_validity(missing), pa.py_buffer(np.ascontiguousarray(values))])


def bytes_column(kind: pa.DataType, lengths: npt.NDArray[np.int64], data: bytes, missing: Missing = None) -> pa.Array:
    """Return a column of bytes or text: ``(n,)`` values of these lengths, one behind the other in ``data``, less than 2 GiB."""
    import pyarrow as pa  # an extra

    ends = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=ends[1:])
    return pa.Array.from_buffers(kind, len(lengths), [_validity(missing), pa.py_buffer(ends), pa.py_buffer(data)])


def column(kind: pa.DataType, values: Sequence[Any], *, nullable: bool = True) -> pa.Array:
    """Return a column of Python's values, nested ones too, of which each number fits. ``None`` is null; if there are no nulls, it is some
    value that is never read. Raises ``ValueError`` if a member that may not be null is.
    """
    import pyarrow as pa  # an extra

    nulls = [value is None for value in values]
    if nullable and all(nulls) and not pa.types.is_nested(kind):
        return pa.nulls(len(values), kind)
    missing = np.array(nulls, dtype=np.bool_) if nullable and any(nulls) else None
    if pa.types.is_nested(kind):
        return _nested_column(kind, values, _validity(missing))
    if pa.types.is_integer(kind):
        dtype = np.dtype(f"{'i' if pa.types.is_signed_integer(kind) else 'u'}{kind.bit_width // 8}")
        return numbers_column(kind, np.array([0 if value is None else value for value in values], dtype=dtype), missing)
    encoded = [b"" if value is None else value.encode() if isinstance(value, str) else value for value in values]
    return bytes_column(kind, np.array(list(map(len, encoded)), dtype=np.int64), b"".join(encoded), missing)


def _nested_column(kind: pa.DataType, values: Sequence[Any], validity: pa.Buffer | None) -> pa.Array:
    """Return the column of structures or lists, whose members are columns of their own."""
    import pyarrow as pa  # an extra

    buffers = [validity]
    if pa.types.is_struct(kind):
        children = [_member(member, values) for member in kind]
    elif pa.types.is_fixed_size_list(kind):
        filler = [None] * kind.list_size
        children = [column(kind.value_type, list(chain.from_iterable(filler if value is None else value for value in values)))]
    else:
        lists = [() if value is None else value for value in values]
        buffers.append(pa.py_buffer(np.cumsum([0, *map(len, lists)], dtype=np.int32)))
        children = [column(kind.value_type, list(chain.from_iterable(lists)))]
    return pa.Array.from_buffers(kind, len(values), buffers, children=children)


def _member(member: pa.Field, values: Sequence[dict[str, Any] | None]) -> pa.Array:
    """Return the column of one member of these values."""
    found = [None if value is None else value.get(member.name) for value in values]
    if not member.nullable and any(one is None and value is not None for one, value in zip(found, values, strict=True)):
        raise ValueError(f"{member.name} is missing")
    return column(member.type, found, nullable=member.nullable)


def read_parquet(data: bytes | memoryview, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a file, of all columns or some. Raises ``pyarrow.ArrowException`` or ``OSError`` if it is none."""
    import pyarrow as pa  # an extra
    import pyarrow.parquet as pq

    return pq.ParquetFile(pa.BufferReader(data)).read(columns=None if columns is None else list(columns), use_threads=False)


def write_sealed(table: pa.Table, **options: Any) -> bytes:
    """Return the bytes of a file of these rows, ``sealed``; ``options`` are those of ``pyarrow.parquet.write_table``."""
    import pyarrow.parquet as pq  # an extra

    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return sealed(file.getvalue())


def sealed(data: bytes) -> bytes:
    """Return a file of Parquet with the crc32c of all its other bytes in it.

    ::

        | PAR1 | pages | crc32c: uint32, little-endian | footer | nbytes of the footer: uint32 | PAR1 |

    Readers of Parquet find the footer from the end, and pages by their offsets from the start: none looks between them.
    """
    (nbytes,) = struct.unpack_from("<I", data, len(data) - _TAIL_NBYTES)
    at = len(data) - _TAIL_NBYTES - nbytes
    return data[:at] + struct.pack("<I", google_crc32c.value(data)) + data[at:]


def read_sealed(data: bytes | memoryview, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a file that was ``sealed``, as ``read_parquet`` does. Raises ``Corruption`` too, if its checksum is wrong."""
    whole = bytes(data)
    if len(whole) >= _TAIL_NBYTES:
        (nbytes,) = struct.unpack_from("<I", whole, len(whole) - _TAIL_NBYTES)
        at = len(whole) - _TAIL_NBYTES - nbytes - _SEAL_NBYTES
        if at >= 0 and google_crc32c.value(whole[:at] + whole[at + _SEAL_NBYTES :]) == struct.unpack_from("<I", whole, at)[0]:
            return read_parquet(whole, columns)
    raise Corruption(f"its {len(whole)} bytes are not those that were written: their checksum is wrong")


def numbers_of(column: pa.Array | pa.ChunkedArray, dtype: type[np.generic], default: int = 0) -> npt.NDArray[Any]:
    """Return a column of numbers of this type, ``default`` where they are null. ``to_numpy`` would import pandas, if it is installed."""
    array = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.full(len(array), default, dtype=dtype)
    values = np.frombuffer(data, dtype=dtype)[array.offset : array.offset + len(array)]
    return np.where(is_valid(array), values, dtype(default)) if array.null_count else values


def is_valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which of ``(n,)`` values are not null."""
    bits = array.buffers()[0]
    if bits is None:
        return np.full(len(array), not array.null_count)
    there = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), bitorder="little")[array.offset : array.offset + len(array)]
    return there.astype(np.bool_)


def _validity(missing: Missing) -> pa.Buffer | None:
    import pyarrow as pa  # an extra

    return None if missing is None or not missing.any() else pa.py_buffer(np.packbits(~missing, bitorder="little"))
