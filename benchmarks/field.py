"""Who takes part in the benchmark: shardstore, its peers, and the physical limits."""

from __future__ import annotations

from contenders import FUSED, ZARRS, Contender, Icechunk, ShardStore, TensorStore, ZarrPython
from leanest import LIMITS

SHARDSTORE = ShardStore()
APPEND = ShardStore("shardstore, append", strategy="append")
OVER_OBSTORE = ShardStore("shardstore, obstore", transport="obstore")
WITHOUT_KERNEL = ShardStore("shardstore, without its kernel", kernel=False)
DURABLE = ShardStore("shardstore, durable", fsync=True)
DURABLE_APPEND = ShardStore("shardstore, append, durable", strategy="append", fsync=True)

ZARR = ZarrPython()
FUSED_PIPELINE = ZarrPython("zarr-python, fused pipeline", pipeline=FUSED)
ZARRS_PIPELINE = ZarrPython("zarr-python, zarrs pipeline", pipeline=ZARRS)
UNSHARDED = ZarrPython("zarr-python, unsharded", unsharded=True)

TENSORSTORE = TensorStore()
CACHED = TensorStore("tensorstore, cache pool", cache_nbytes=2**30)
CREDULOUS = TensorStore("tensorstore, cache pool, nothing validated", cache_nbytes=2**30, validates=False)
TRANSACTIONS = TensorStore("tensorstore, transactions", own_transactions=True)

ICECHUNK = Icechunk()

READERS: tuple[Contender, ...] = (
    *LIMITS,
    SHARDSTORE,
    ZARR,
    FUSED_PIPELINE,
    ZARRS_PIPELINE,
    UNSHARDED,
    TENSORSTORE,
    CACHED,
)
WRITERS: tuple[Contender, ...] = (*LIMITS, SHARDSTORE, DURABLE, ZARR, FUSED_PIPELINE, ZARRS_PIPELINE, UNSHARDED, TENSORSTORE, TRANSACTIONS)
UPDATERS: tuple[Contender, ...] = (
    *LIMITS,
    APPEND,
    SHARDSTORE,
    DURABLE_APPEND,
    ZARR,
    FUSED_PIPELINE,
    ZARRS_PIPELINE,
    TENSORSTORE,
    TRANSACTIONS,
)
"""Those that write parts of shards."""


def is_limit(name: str) -> bool:
    return any(name == limit.name for limit in LIMITS)
