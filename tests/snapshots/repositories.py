"""What tests of repositories have in common."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import zarr

from shardstore.snapshots import Repository
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.storage_suite import on_io_loop
from shardstore.testing.trace import TraceStorage

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return on_io_loop(coroutine)


def new_repository(place: object, **options: Any) -> Repository:
    """Return a repository in memory, at a place of its own."""
    return Repository.create(f"memory://{place}", **options)


def traced_repository(place: Path, **options: Any) -> tuple[Repository, TraceStorage]:
    """Return a repository in memory whose requests are counted."""
    trace = TraceStorage(MemoryStorage(str(place)))
    return Repository.create(trace, **options), trace


def create_array(session: Any, path: str, data: np.ndarray[Any, Any], chunks: tuple[int, ...], **options: Any) -> Any:
    """Create an array in a session, and write it."""
    array = zarr.create_array(session.store, name=path, shape=data.shape, chunks=chunks, dtype=data.dtype, **options)
    array[...] = data
    return array


def read_array(session: Any, path: str) -> Any:
    """Return all of an array in a session."""
    return zarr.open_array(session.store, path=path, mode="r")[...]
