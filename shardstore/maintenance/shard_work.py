"""Shared parts of all runs that replace shards: when they may, how much memory they hold, and how they report."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from shardstore.errors import Unsupported
from shardstore.model.capabilities import Capabilities
from shardstore.storage.base import Storage

T = TypeVar("T")

MOST_FAILED = 100_000  # that are listed, so that they can be tried again


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """A count of things, and the first of them."""

    count: int = 0
    first: tuple[T, ...] = ()

    @classmethod
    def of(cls, items: Sequence[T], most: int = 1000) -> Listed[T]:
        return cls(len(items), tuple(items[:most]))


@dataclass(frozen=True, slots=True)
class FailedShard:
    """A shard that was given up, and the reason; it is unchanged."""

    path: str
    """The path of the array."""
    key: str
    error: Exception


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """The progress of a run."""

    phase: Literal["looking", "working"]
    """The phase: first the indices of all shards are looked at, then the work on some of them is done."""
    shards: int
    """The number of shards finished in this phase."""
    total_shards: int | None = None
    """The total number of shards; ``None`` while the listing goes on."""
    nbytes: int | None = None
    """Bytes of the finished shards, where that is known."""
    total_nbytes: int | None = None
    failed: int = 0


def can_delete_emptied(capabilities: Capabilities) -> bool:
    """Return whether a shard without chunks may be removed: not where that could remove a chunk that is written at the same time."""
    return capabilities.conditional_delete or not capabilities.compare_and_swap


async def check_can_swap(storage: Storage, exclusive: bool) -> None:
    """Check, before shards are replaced, that no writer's update can be lost.

    Raises:
        Unsupported: the storage has no compare-and-swap, and others may write.
    """
    capabilities = await storage.probe()
    if exclusive:
        return
    if not capabilities.atomic_commits:
        raise Unsupported(
            f"{storage.url} offers no compare-and-swap: a chunk that another client writes while its shard is replaced would be lost. "
            "Stop all writers, and say exclusive=True (--exclusive)"
        )
    if not capabilities.across_machines:
        warnings.warn(
            f"{storage.url} lies on a network file system: chunks that another machine writes while their shard is replaced can be lost. "
            "Let all writers run on this machine, or say locks='cluster' where the file system's locks reach across machines",
            RuntimeWarning,
            stacklevel=2,
        )
