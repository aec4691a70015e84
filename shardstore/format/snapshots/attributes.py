"""Files of attributes that are too long for the structure, which every reader takes whole (D19).

::

    attrs     binary, a row for each node that has such: JSON in UTF-8. Structures refer to a row by its number

The file has a checksum, as ``arrow_tables.sealed`` says.

Specification: Icechunk draft, "Attributes Files", which says no more than that there are some.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardstore.errors import Corruption
from shardstore.format.arrow_tables import column, read_sealed, write_sealed

MOST_INLINE_NBYTES = 16 << 10
"""Attributes up to this stay in the structure file."""


def encode_attributes(rows: Sequence[bytes]) -> bytes:
    """Return the bytes of a file of these attributes."""
    import pyarrow as pa  # an extra

    schema = pa.schema([pa.field("attrs", pa.binary(), nullable=False)])
    return write_sealed(pa.Table.from_arrays([column(pa.binary(), rows)], schema=schema), compression="zstd", use_dictionary=False)


def decode_attributes(data: bytes | memoryview) -> list[bytes]:
    """Return the attributes of a file, by row. Raises ``Corruption`` if it is none."""
    import pyarrow as pa  # an extra

    try:
        rows: list[bytes | None] = read_sealed(data, ["attrs"])["attrs"].to_pylist()
    except (pa.ArrowException, OSError, ValueError, KeyError) as exc:
        raise Corruption(f"this is no file of attributes: {type(exc).__name__}: {exc}") from exc
    if any(row is None for row in rows):
        raise Corruption("a file of attributes has a row without any")
    return [row for row in rows if row is not None]
