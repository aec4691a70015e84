"""Reads whole files of Parquet from memory, in the thread that asks.

``pyarrow.parquet.read_table`` reads through pyarrow's datasets, in threads of its own. One of them may be the last that holds the bytes,
after the table is there. A process that ends meanwhile is aborted, since by then nobody can let go of an object of Python's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # an extra
    import pyarrow as pa


def read_parquet(data: bytes | memoryview, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a file, of all columns or some. Raises ``pyarrow.ArrowException`` or ``OSError`` if it is none."""
    import pyarrow as pa  # an extra
    import pyarrow.parquet as pq

    return pq.ParquetFile(pa.BufferReader(data)).read(columns=None if columns is None else list(columns), use_threads=False)
