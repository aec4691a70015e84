"""Values of a batch: the bytes that callers give or get, and the error that they get."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from shardstore.engine.reading.shard_chunks import Value
from shardstore.errors import InvalidInput


def given_bytes(value: object, key: object) -> bytes:
    """Return the bytes of a value for ``key``, as they lie in memory: zarr-python 2 hands on chunks of order F as arrays of order F.

    Numbers and lists are refused: ``bytes`` would make zeros or small bytes of them.

    Raises:
        InvalidInput: the value is not bytes, nor anything that gives its memory as such.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.tobytes("A")  # times give no buffer
    try:
        return memoryview(value).tobytes("A")  # type: ignore[arg-type]  # whether it is a buffer is what is asked
    except (TypeError, ValueError) as exc:
        raise InvalidInput(f"the value for {key!r} is not bytes but {type(value).__name__}: encode it first") from exc


def values_of(outcomes: Iterable[Value]) -> list[memoryview | None]:
    """Return the values of a batch of reads, or raise the first error."""
    values: list[memoryview | None] = []
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        values.append(outcome)
    return values


def raise_first(outcomes: Iterable[object]) -> None:
    """Raise the first outcome that is an error, if there is one."""
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


def raise_failed(errors: Sequence[Exception | None]) -> None:
    """Raise the first error of a batch, if there is one, with a note that says how many keys failed."""
    failed = [error for error in errors if error is not None]
    if not failed:
        return
    if len(errors) > 1:
        failed[0].add_note(f"{len(failed)} of {len(errors)} keys of this batch failed, the rest are stored")
    raise failed[0]
