"""What an engine has done so far."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """Counted since the engine was made, or since ``reset``; ``requests`` as an object store would count them."""

    requests: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    chunks_read: int = 0
    chunks_written: int = 0
    commits: int = 0
    conflicts: int = 0
    """Commits that were planned again because another writer was faster."""
    retried_reads: int = 0
    """Reads that were repeated because the shard changed in between."""
    index_hits: int = 0
    index_misses: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)

    def reset(self) -> None:
        for name in asdict(self):
            setattr(self, name, 0)
