"""Values of a batch of writes: the bytes that callers give, and the error that they get."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardstore.errors import InvalidInput


def given_bytes(value: object, key: object) -> bytes:
    """The bytes of a value for ``key``, as they lie in memory: zarr-python 2 hands on chunks of order F as arrays of order F.

    Numbers and lists, of which ``bytes`` would make zeros or small bytes, are none.

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


def raise_failed(errors: Sequence[Exception | None]) -> None:
    """Raise the first error of a batch, with a note that says how many keys it is about; nothing where there is none."""
    failed = [error for error in errors if error is not None]
    if not failed:
        return
    if len(errors) > 1:
        failed[0].add_note(f"{len(failed)} of {len(errors)} keys of this batch failed, the others are stored")
    raise failed[0]
