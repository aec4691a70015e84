"""The options of a store by name and type, so that a type checker knows what ``shardstore.open`` takes.

``shardstore.engine.options.EngineOptions`` and the checks of ``Handle.make`` say what values mean, and refuse wrong ones at runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypedDict

from shardstore.engine.options import Flavour, Present, Stored, StrategyName
from shardstore.format.presentation import PresentLevel
from shardstore.format.shard_index import IndexLocation
from shardstore.opening.kinds import Transport
from shardstore.plan.commits import ChunkOrder, Strategy
from shardstore.plan.policy import ShardingPolicy
from shardstore.storage.local.rules import Locks

PresentOption: TypeAlias = Present | Flavour
"""What clients see: the name of a flavour, or a flavour."""

ChunksPerShard: TypeAlias = ShardingPolicy
"""Which arrays are sharded when they are created, and how."""


class FurtherOptions(TypedDict, total=False):
    """Options of a store in addition to those that ``shardstore.open`` names itself. Sizes in bytes, times in seconds."""

    lost_transformers: Mapping[str, tuple[int, ...]]
    present_level: PresentLevel
    index_location: IndexLocation
    index_checksum: bool
    chunk_order: ChunkOrder
    max_dead_fraction: float
    metadata_ttl: float
    require_atomic: bool
    index_cache_bytes: int
    gap_bytes: int | None
    first_bytes: int | None
    request_bytes: int
    max_memory: int
    commit_concurrency: int
    copy_window_bytes: int
    commit_attempts: int
    fsync: bool
    locks: Locks
    transport: Transport
    static: bool | None


class StoreOptions(FurtherOptions, total=False):
    """All options of a store that every face takes."""

    chunks_per_shard: ChunksPerShard
    stored: Stored
    present: PresentOption
    strategy: StrategyName | Strategy


class OpenOptions(FurtherOptions, total=False):
    """The options of ``shardstore.open`` that it does not name itself."""

    pipeline: bool


class ZarrStoreOptions(StoreOptions, total=False):
    """The options of ``ShardedStore.from_url``."""

    read_only: bool
    pipeline: bool
    storage_options: dict[str, Any] | None
