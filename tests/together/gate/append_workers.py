"""Programs that append to one dataset, each in a process of its own; some of them kill themselves at a step of an append."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal

import numpy as np
import xarray as xr

import shardstore
from shardstore.format.append_record import AppendRecord, is_record_key
from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import BytesLike, Segment
from shardstore.opening.open import open_storage
from shardstore.storage.base import Storage
from shardstore.storage.wrappers import StorageWrapper

Step = Literal["reserved", "shard", "done", "document", "root", "shown"]

ROWS_AT_START = 3
ENCODING = {"time": {"chunks": (5,)}, "a": {"chunks": (4, 3), "shards": (8, 6)}, "b": {"chunks": (2, 4), "shards": (4, 8)}}
"""Of ``time``, each chunk is an object; ``b`` grows along its last dimension."""


def rows(first: int, count: int) -> xr.Dataset:
    """Rows with numbers from ``first`` on, in the coordinate and twice in each of two arrays."""
    numbers = np.arange(first, first + count)
    arrays = {"a": (("time", "x"), np.repeat(numbers[:, None], 6, 1)), "b": (("y", "time"), np.repeat(numbers[None], 4, 0))}
    return xr.Dataset(arrays, coords={"time": numbers})


@dataclass(frozen=True, slots=True)
class Death:
    """The process dies ``before`` or after the write that is the ``nth`` one of a step."""

    step: Step
    nth: int = 1
    before: bool = False


class Deadly(StorageWrapper):
    """``inner``, where a process dies at a step of the first append after it is armed."""

    def __init__(self, inner: Storage, death: Death) -> None:
        super().__init__(inner)
        self._death = death
        self._seen = 0
        self._tried = ""
        self._id: str | None = None
        """Of the reservation, once there is one; ``_tried`` is written to make one."""
        self.is_armed = True

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        with self._dying(self._step(key, body)):
            return await self.inner.write(key, body, nbytes, condition)

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        with self._dying("shard" if self.is_armed else None):
            return await self.inner.compose(key, source, segments, condition)

    @contextmanager
    def _dying(self, step: Step | None) -> Iterator[None]:
        """Die before or after the block, if it is the write to die at. A write that loses its race does not count."""
        is_it = step == self._death.step and self._seen + 1 == self._death.nth
        if is_it and self._death.before:
            os.kill(os.getpid(), signal.SIGKILL)
        yield
        if is_it:
            os.kill(os.getpid(), signal.SIGKILL)
        self._seen += step == self._death.step
        if step == "reserved":
            self._id = self._tried

    def _step(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike]) -> Step | None:
        if not self.is_armed:
            return None
        if not is_record_key(key):
            return "root" if key == "zarr.json" else "document" if key.endswith("/zarr.json") else "shard"
        assert not isinstance(body, AsyncIterator)
        record = AppendRecord.parse(key, b"".join(body))
        if self._id is None:
            self._tried = record.open[-1].id
            return "reserved"
        ours = record.find(self._id)
        if ours is None and record.shown == record.committed:
            return "shown"
        return "done" if ours is None or ours.done else None  # else: a sign of life, or the eviction of another


def work(
    connection: Connection[Any, Any], url: str, options: dict[str, Any] | None, writer: int, appends: int, death: Death | None
) -> None:
    """Append 1 to 7 rows at a time, and send ``(start, stop, first number)`` of each; with ``death``, die in the last one."""
    rng = np.random.default_rng(writer)
    storage = None if death is None else Deadly(open_storage(url, options), death)
    if storage is None:
        store = shardstore.open(url, storage_options=options)
    else:
        storage.is_armed = False
        store = shardstore.open(storage)
    for number in range(appends):
        if storage is not None and number == appends - 1:
            storage.is_armed = True
        first, count = 1000 * writer + 10 * number, int(rng.integers(1, 8))
        appended = shardstore.append(store, rows(first, count), "time", lease="1s")
        connection.send((appended.start, appended.stop, first))
    connection.close()
