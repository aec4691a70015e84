"""The list of garbage: files of a versioned store to which nothing referred when a garbage collection looked, as Parquet.

::

    key      utf8, ascending     relative to the root of the store
    since    int64               milliseconds since the epoch, by the collector's clock: when a collection first found nothing that refers,
                                 after the last time that a snapshot needed the file
    doomed   uint8               1: the collection that wrote the list removes it

The file has a checksum, as ``arrow_tables.sealed`` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption
from shardstore.format.arrow_tables import bytes_column, numbers_column, read_sealed, write_sealed


@dataclass(frozen=True, slots=True, eq=False)
class Garbage:
    """``n`` files to which nothing refers."""

    keys: npt.NDArray[np.bytes_]
    """``(n,)``, ascending."""
    since: npt.NDArray[np.int64]
    doomed: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def doomed_keys(self) -> npt.NDArray[np.bytes_]:
        """``(n,)``, ascending: the keys of those that are removed."""
        return self.keys[self.doomed]

    def since_of(self, keys: npt.NDArray[np.bytes_], otherwise: int) -> npt.NDArray[np.int64]:
        """Return since when keys have been garbage; ``otherwise`` for those that are not in the list."""
        if not len(self):
            return np.full(len(keys), otherwise, dtype=np.int64)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self) - 1)
        return np.where(self.keys[places] == keys, self.since[places], otherwise)


_AT_ONCE = 1 << 16
"""Keys that are values of Python at one time: there may be millions."""

NO_GARBAGE = Garbage(np.zeros(0, dtype="S1"), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_))


def encode_garbage(garbage: Garbage) -> bytes:
    """Return the bytes of a list."""
    import pyarrow as pa  # an extra

    lengths = np.char.str_len(garbage.keys).astype(np.int64)
    pieces = (b"".join(garbage.keys[start : start + _AT_ONCE].tolist()) for start in range(0, len(garbage), _AT_ONCE))
    kinds = {"key": pa.string(), "since": pa.int64(), "doomed": pa.uint8()}
    columns = [
        bytes_column(kinds["key"], lengths, b"".join(pieces)),
        numbers_column(kinds["since"], garbage.since),
        numbers_column(kinds["doomed"], garbage.doomed.astype(np.uint8)),
    ]
    schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])
    return write_sealed(pa.Table.from_arrays(columns, schema=schema), compression="zstd", use_dictionary=["since", "doomed"])


def decode_garbage(data: bytes | memoryview) -> Garbage:
    """Return the content of a list. Raises ``Corruption`` if it is none."""
    import pyarrow as pa  # an extra

    try:
        table = read_sealed(data, ["key", "since", "doomed"])
        batches = table.to_batches(max_chunksize=_AT_ONCE)
        keys = _together([np.array([key.encode() for key in one["key"].to_pylist()], dtype=np.bytes_) for one in batches], "S1")
        since, doomed = (_together([np.array(one[name].to_pylist(), dtype="i8") for one in batches], "i8") for name in ("since", "doomed"))
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as exc:
        raise Corruption(f"this is no list of garbage: {type(exc).__name__}: {exc}") from exc
    return Garbage(keys, since, doomed.astype(np.bool_))


def _together(pieces: list[npt.NDArray[Any]], dtype: str) -> npt.NDArray[Any]:
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=dtype)
