"""The package icechunk: its errors as ours, and objects of its zarr stores as bytes. Nothing else of shardstore imports it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shardstore.errors import Conflict, StorageError, Unsupported
from shardstore.extras import how_to_install


def library() -> Any:
    """Return the package. Raises ``Unsupported`` if it is not installed."""
    try:
        import icechunk
    except ModuleNotFoundError as exc:
        raise Unsupported(f"repositories of icechunk need icechunk: {how_to_install('icechunk')}") from exc
    return icechunk


def is_major_2(icechunk: Any) -> bool:
    """Return whether this is icechunk 2 or newer, which takes and gives references as columns."""
    return hasattr(icechunk.IcechunkStore, "array_chunk_iterator")


@contextmanager
def translated(branch: str) -> Iterator[None]:
    """Raise errors of icechunk as ours, in a block that commits to a branch. Raises ``Unsupported`` if icechunk is not installed."""
    icechunk = library()
    try:
        yield
    except icechunk.ConflictError as exc:
        raise Conflict(f"another writer committed to branch {branch!r} first: nothing was committed. Start again") from exc
    except icechunk.IcechunkError as exc:
        raise StorageError(f"icechunk: {exc}") from exc


async def get_bytes(store: Any, key: str) -> bytes | None:
    """Return the object at a key of a zarr store of icechunk; ``None`` if there is none."""
    from zarr.core.buffer import default_buffer_prototype  # comes with icechunk, and is slow to import

    data = await store.get(key, default_buffer_prototype())
    return None if data is None else bytes(data.to_bytes())


async def put_bytes(store: Any, key: str, data: bytes) -> None:
    """Store an object at a key of a zarr store of icechunk."""
    from zarr.core.buffer import default_buffer_prototype  # comes with icechunk, and is slow to import

    await store.set(key, default_buffer_prototype().buffer.from_bytes(data))
