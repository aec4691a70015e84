"""Options of an engine, with defaults that suit most. Metadata contains only the layout of new arrays, none of the other options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from shardstore.errors import InvalidInput
from shardstore.format.presentation import PresentLevel
from shardstore.format.shard_index import IndexCodecs, IndexFormat, IndexLocation
from shardstore.format.storage_transformers import transformer_index_format
from shardstore.model.chunk_orders import ChunkOrder, check_chunk_order
from shardstore.model.coalescing import ReadLimits
from shardstore.model.options import check_flags
from shardstore.opening.kinds import default_index_location, read_sizes
from shardstore.plan.commits import Strategy
from shardstore.plan.policy import ShardingPolicy, validate_policy
from shardstore.plan.strategies import strategy_of

Stored = Literal["auto", "codec", "transformer", "transformer-v3"]
"""The formats that can be stored: final Zarr v3 sharded by the codec ``sharding_indexed``; a hierarchy of the 2022 draft, sharded by its
storage transformer; final Zarr v3 sharded by that transformer. ``"auto"``: what is there already, ``"codec"`` where there is nothing."""

Present = Literal["v3", "v2", "draft"]
"""The flavours that clients can see: final Zarr v3, Zarr v2, or the 2022 draft."""

StrategyName = Literal["rewrite", "append", "keep"]
"""The names of the strategies that update shards."""

_STORED: tuple[Stored, ...] = get_args(Stored)
_BY_TRANSFORMER = ("transformer", "transformer-v3")

_COUNTS = {
    "request_bytes": 1,
    "max_memory": 1,
    "commit_concurrency": 1,
    "copy_window_bytes": 1,
    "commit_attempts": 1,
    "index_cache_bytes": 0,
    "gap_bytes": 0,
    "first_bytes": 0,
}
"""Options that are whole numbers, each with its minimum."""

_BY_KIND = ("gap_bytes", "first_bytes")
"""Options whose value ``None`` means: by kind of storage."""


@dataclass(frozen=True)
class Flavour:
    """The facts that an engine has to know about the flavour that its clients see. By default that is final Zarr v3, the engine's own."""

    name: str = "v3"
    """The value of the option ``present``."""
    words: str = "final Zarr v3"
    """The flavour in messages."""
    shows_draft: bool = False
    """Only a stored hierarchy of the 2022 draft can be seen: documents come with the stored ones, clients shard by storage
    transformers of their own, and a document may be erased before the shards of its array, as the draft erases an array."""
    hides_kept: bool = True
    """Clients neither see nor write the attribute that keeps what Zarr v3 cannot hold of a document of Zarr v2."""
    moves_nodes: bool = True
    """Whole nodes can be copied and moved."""

    @property
    def is_canonical(self) -> bool:
        """Return whether this is final Zarr v3, under whose keys the engine itself works."""
        return self.name == "v3"


V3 = Flavour()


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options by which an engine reads, writes and creates. Sizes in bytes, times in seconds."""

    chunks_per_shard: ShardingPolicy = "auto"
    """The policy that says which arrays are sharded when they are created; see ``shardstore.plan.policy``."""
    stored: Stored = "auto"
    """The format of the hierarchy that is stored, and the means by which new arrays are sharded."""
    lost_transformers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The chunks per shard of arrays of the 2022 draft, by path, whose documents have lost their storage transformer."""
    present: Flavour = V3
    """The flavour that clients see. The option of the same name also takes the name of a flavour."""
    present_level: PresentLevel = 1
    """The number of levels of sharding that are taken off, where shards hold shards. Storage transformers are all taken off in any case."""
    index_location: IndexLocation | None = None
    """The place of the shard index in the shards of new arrays; ``None``: by kind of storage, or the end if another option needs that."""
    index_checksum: bool = True
    """True if new arrays protect the shard index by ``crc32c``."""
    chunk_order: ChunkOrder = "C"
    """The order of the chunks inside the shards that are written."""
    strategy: StrategyName | Strategy = "rewrite"
    """The way to update shards: ``"rewrite"`` makes a new object without dead bytes; ``"append"`` puts new chunks and a new index behind
    what is there, which is copied by the storage, or stays in place; ``"keep"`` makes a new object in which the chunks of the replaced
    version lie where they lay; or a strategy of one's own."""
    max_dead_fraction: float = 0.5
    """The fraction of a shard's bytes that may be dead, referred to by nothing. Past that ``"append"`` rewrites the shard, and ``"keep"``
    uses dead bytes again."""
    metadata_ttl: float = 1.0
    """Before a write, array metadata older than this is read again."""
    require_atomic: bool = False
    """Refuse to write where the storage has no compare-and-swap, instead of warning once."""
    index_cache_bytes: int = 64 * 2**20
    """Decoded shard indices that are kept."""
    gap_bytes: int | None = None
    """Ranges of a shard at most this far apart share a request; ``None``: by kind of storage."""
    request_bytes: int = 16 * 2**20
    """Ranges are not merged into requests longer than this."""
    first_bytes: int | None = None
    """The bytes that are read with the index of a small shard, to get all of it by one request if that saves a round; ``None``: by kind of
    storage."""
    max_memory: int = 256 * 2**20
    """Bytes that a transaction holds in memory before it spills, and that commits hold at once of the chunks they keep."""
    commit_concurrency: int = 16
    """Shards that are committed at once."""
    copy_window_bytes: int = 64 * 2**20
    """Kept chunks of a shard are read in pieces of at most this where the storage cannot copy them itself."""
    commit_attempts: int = 100
    """Commits of one shard that may lose against other writers in a row before ``Conflict``."""
    kernel: bool = True
    """Decode and encode chunks of local arrays by the kernel, native code, if the package has one."""

    def __post_init__(self) -> None:
        validate_policy(self.chunks_per_shard)
        self._check_stored()
        self._check_level()
        check_chunk_order(self.chunk_order, "chunk_order")
        self._check_strategy()
        lost: object = self.lost_transformers
        if not isinstance(lost, Mapping) or not all(isinstance(k, str) and _are_counts(v) for k, v in lost.items()):
            raise InvalidInput(f"lost_transformers {lost!r} is not a mapping from paths of arrays to tuples of positive whole numbers")
        ttl: object = self.metadata_ttl
        if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not ttl >= 0:
            raise InvalidInput(f"metadata_ttl {ttl!r} is not a number of seconds")
        for name, minimum in _COUNTS.items():
            value = getattr(self, name)
            is_count = isinstance(value, int) and not isinstance(value, bool) and value >= minimum
            if not is_count and (value is not None or name not in _BY_KIND):
                raise InvalidInput(f"{name} {value!r} is not a whole number of at least {minimum}")
        check_flags(index_checksum=self.index_checksum, require_atomic=self.require_atomic, kernel=self.kernel)

    def _check_stored(self) -> None:
        if self.index_location not in (None, "start", "end"):
            raise InvalidInput(f"index_location {self.index_location!r} is neither 'start' nor 'end'")
        if self.stored not in _STORED:
            raise InvalidInput(f"stored {self.stored!r} is not known: there are {', '.join(map(repr, _STORED))}")
        if self.present.shows_draft and self.stored not in ("auto", "transformer"):
            raise InvalidInput(
                f"stored={self.stored!r} cannot be presented as the 2022 draft: present={self.present.name!r} shows a stored draft "
                "hierarchy"
            )
        if self.stored in _BY_TRANSFORMER and self.index_location == "start":
            raise InvalidInput(f"stored={self.stored!r} has its index at the end of a shard, not at the start")

    def _check_level(self) -> None:
        level: object = self.present_level
        if level != "innermost" and (isinstance(level, bool) or not isinstance(level, int) or level < 1):
            raise InvalidInput(f"present_level {level!r} is neither 'innermost' nor a whole number of at least 1")
        if self.present.shows_draft and level != 1:
            raise InvalidInput(
                f"present_level={level!r} does not work with present={self.present.name!r}: clients of the draft use "
                "storage transformers themselves, and wrap one ShardingTransformer in another for each level"
            )

    def _check_strategy(self) -> None:
        strategy = strategy_of(self.strategy)
        fraction: object = self.max_dead_fraction
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction < 1:
            raise InvalidInput(f"max_dead_fraction {fraction!r} is not a number from 0 to less than 1")
        if self.stored in _BY_TRANSFORMER:
            stored = transformer_index_format((1,))
        else:
            stored = self._index_format((1,), self.index_location or "end")
        if (need := strategy.unsuited(stored)) is not None:
            raise InvalidInput(
                f"strategy={strategy.name!r} needs {need}: leave index_location, index_checksum and stored at their defaults, or use "
                "strategy='rewrite'"
            )

    def shards_by_transformer(self, *, is_draft: bool) -> bool:
        """Return whether new arrays are sharded by a storage transformer; ``is_draft``: in a hierarchy of the 2022 draft."""
        return is_draft or self.stored in _BY_TRANSFORMER

    def index_format(self, chunks_per_shard: tuple[int, ...], kind: str, *, by_transformer: bool) -> IndexFormat:
        """Return how the shards of a new array are indexed on a kind of storage."""
        if by_transformer:
            return transformer_index_format(chunks_per_shard)
        stored = self._index_format(chunks_per_shard, self.index_location or default_index_location(kind))
        is_suited = strategy_of(self.strategy).unsuited(stored) is None
        return stored if is_suited else self._index_format(chunks_per_shard, "end")

    def _index_format(self, chunks_per_shard: tuple[int, ...], location: IndexLocation) -> IndexFormat:
        return IndexFormat(chunks_per_shard, IndexCodecs("little", self.index_checksum), location)

    def read_limits(self, kind: str) -> ReadLimits:
        """Return gap and size limits for a kind of storage, and what is asked for with an index."""
        gap, first = read_sizes(kind)
        return ReadLimits(
            gap if self.gap_bytes is None else self.gap_bytes, self.request_bytes, first if self.first_bytes is None else self.first_bytes
        )


def _are_counts(value: object) -> bool:
    return isinstance(value, tuple | list) and all(type(n) is int and n > 0 for n in value)
