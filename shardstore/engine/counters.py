"""Counters of the requests, bytes and commits of an engine."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class Counters:
    """Counted since the engine was made, or since ``reset``; ``requests`` as an object store would count them. From any thread."""

    requests: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    chunks_read: int = 0
    chunks_written: int = 0
    commits: int = 0
    conflicts: int = 0
    """Commits that were planned again because another writer had replaced the shard first."""
    retried_reads: int = 0
    """Reads that were repeated because the shard changed in between."""
    index_hits: int = 0
    index_misses: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def __reduce__(self) -> tuple[type[Counters], tuple[int, ...]]:
        return type(self), tuple(self.as_dict().values())  # a lock does not travel

    def add(
        self,
        *,
        requests: int = 0,
        bytes_read: int = 0,
        bytes_written: int = 0,
        chunks_read: int = 0,
        chunks_written: int = 0,
        commits: int = 0,
        conflicts: int = 0,
        retried_reads: int = 0,
        index_hits: int = 0,
        index_misses: int = 0,
    ) -> None:
        """Count so many more of each."""
        with self._lock:
            self.requests += requests
            self.bytes_read += bytes_read
            self.bytes_written += bytes_written
            self.chunks_read += chunks_read
            self.chunks_written += chunks_written
            self.commits += commits
            self.conflicts += conflicts
            self.retried_reads += retried_reads
            self.index_hits += index_hits
            self.index_misses += index_misses

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _NAMES}

    def reset(self) -> None:
        with self._lock:
            for name in _NAMES:
                setattr(self, name, 0)


_NAMES = tuple(each.name for each in fields(Counters) if not each.name.startswith("_"))
