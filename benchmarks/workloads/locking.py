"""The share of a read during which other threads of Python cannot run."""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from contenders import StorageName, Values
from datasets import CodecName, Scale
from field import FUSED_PIPELINE, SHARDSTORE, TENSORSTORE, WITHOUT_KERNEL, ZARR

from workloads.side_by_side import CODECS, make_smooth
from workloads.workload import Arena, Extra, Task, Workload, checksum, made, opened

_ROUNDS = 2  # of several reads each
_READS = 7
_ALONE_SECONDS = 0.2
_SWITCH_SECONDS = 1e-4


@dataclass(slots=True)
class _Counter:
    """A thread in pure Python that counts as fast as it gets the lock."""

    number: int = 0
    is_over: bool = False
    rate: float = 0.0
    """A second, while no thread wants the lock."""
    thread: int = 0
    _has_begun: threading.Event = field(default_factory=threading.Event)

    def count(self, processor: int | None) -> None:
        if processor is not None:
            os.sched_setaffinity(0, {processor})
        self.thread = threading.get_native_id()
        self._has_begun.set()
        while not self.is_over:
            self.number += 1

    def ready_seconds(self) -> float:
        """Return for how long the thread has run, or waited for a processor only: other programs take that, and not the lock."""
        try:
            ran, waited, _ = Path(f"/proc/self/task/{self.thread}/schedstat").read_text().split()
        except OSError:
            return self.number / self.rate
        return (int(ran) + int(waited)) / 1e9

    @contextmanager
    def running(self, processor: int | None) -> Iterator[None]:
        thread = threading.Thread(target=self.count, args=(processor,))
        thread.start()
        self._has_begun.wait()
        before, began = self.number, time.perf_counter()
        time.sleep(_ALONE_SECONDS)
        self.rate = (self.number - before) / (time.perf_counter() - began)
        try:
            yield
        finally:
            self.is_over = True
            thread.join()


def _processors() -> tuple[int | None, int | None]:
    """One for the read and all of its threads, and one for the counter."""
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        return None, None
    first, second, *_ = sorted(os.sched_getaffinity(0))
    return first, second


@dataclass(frozen=True, slots=True)
class LockShare(Workload):
    """A full read on one processor, while a thread on another one counts.

    The time that the counter neither ran nor waited for a processor is the time that the read held the lock; where the system does not say,
    what its number lacks to its rate alone. The share is that of the read without the counter.
    Python's switch interval is 0.1 ms here, so that the read does not wait for the counter.
    """

    codec: CodecName

    def rounds(self, scale: Scale, storage: StorageName) -> int:
        return min(_ROUNDS, scale.rounds[storage])

    def make(self, root: Path, scale: Scale, storage: StorageName) -> None:
        made(root, f"cube-{self.codec}", make_smooth, replace(scale.cube, codec=self.codec))

    def prepare(self, arena: Arena) -> Task:
        here, there = _processors()
        if here is not None:
            os.sched_setaffinity(0, {here})  # before a library asks how many there are, and starts threads
        array = opened(arena, f"cube-{self.codec}")
        everything = tuple(slice(0, n) for n in arena.scale.cube.shape)
        found: list[Values] = [array.read(everything)]

        def read() -> float:
            found.clear()
            began = time.perf_counter()
            found.append(array.read(everything))
            return time.perf_counter() - began

        def run() -> Extra:
            alone = statistics.median(read() for _ in range(_READS))
            counter = _Counter()
            sys.setswitchinterval(_SWITCH_SECONDS)
            with counter.running(there):
                before = counter.ready_seconds()
                seconds = sum(read() for _ in range(_READS))
                held = max(0.0, seconds - (counter.ready_seconds() - before))
            return {"seconds": alone, "lock_share": held / _READS / alone}

        return Task(run, lambda: checksum(found))


LOCKING = tuple(
    LockShare(
        f"{codec}: lock",
        f"An array of 32 MiB read whole on one processor, {codec}",
        ("local",),
        (SHARDSTORE, WITHOUT_KERNEL, TENSORSTORE, FUSED_PIPELINE, ZARR),
        codec,
    )
    for codec in (*CODECS, "gzip")
)
