"""``shardstore.open`` and ``shardstore.get_mapper``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import shardstore
from shardstore.adapters.handle import StoreOptions, takes_store_options
from shardstore.adapters.mapping import mapping_class

if TYPE_CHECKING:
    from shardstore.adapters.mapping.mapping import ShardedMap
    from shardstore.adapters.zarr.store import ShardedStore


@takes_store_options
def open(
    url: Any,
    *,
    read_only: bool = False,
    storage_options: dict[str, Any] | None = None,
    pipeline: bool = True,
    **options: Unpack[StoreOptions],
) -> ShardedStore:
    """Open a store for zarr-python.

    Args:
        url: a path, any fsspec URL or chain, an fsspec filesystem with a path as ``(fs, path)``, an fsspec mapping, a store of
            zarr-python, or a ``shardstore.storage.base.Storage``.
        read_only: refuse every write.
        storage_options: for the filesystem: credentials, endpoint, retries.
        pipeline: hand whole selections and assignments of zarr to the engine: then an assignment is one commit a shard.
        chunks_per_shard: which arrays are sharded when they are created. ``"auto"``: about 64 MiB decoded a shard, at most 1,024 chunks;
            small coordinates are not sharded. ``None``: none. Or one tuple with a number of chunks for each dimension, a mapping from path
            patterns to those, or a function of ``shardstore.plan.policy.ArrayInfo``. Arrays that exist keep the sharding that they have.
        index_location: where a shard has its index, ``"end"`` or ``"start"``; ``None``: at the end, on Azure at the start.
        index_checksum: protect the index by a CRC-32C.
        chunk_order: the order of the chunks in a shard: ``"C"``, ``"F"`` or ``"morton"``.
        stored: what new hierarchies are on the storage. ``"auto"``: what is there already, and ``"codec"`` where there is nothing.
            ``"codec"``: Zarr v3 sharded by the codec ``sharding_indexed``, which every Zarr v3 reader knows. ``"transformer"``: a hierarchy
            of the 2022 draft, sharded by its storage transformer. ``"transformer-v3"``: Zarr v3 sharded by that transformer.
        present: what clients see. ``"v3"``: Zarr v3. ``"v2"``: the documents and keys of Zarr v2. ``"draft"``: those of a stored hierarchy
            of the 2022 draft. Or a ``shardstore.presented.view.PresentedFlavour``.
        present_level: how many levels clients do not see, where shards hold shards: a number, or ``"innermost"``.
        lost_transformers: by path, the chunks per shard of arrays of the 2022 draft whose documents have lost them.
        strategy: how a shard is updated. ``"rewrite"``: a new object without dead bytes. ``"append"``: new chunks and a new index go behind
            what is there. ``"keep"``: a new object in which old chunks lie where they lay, so that readers of other libraries who have read
            an index find these chunks after a commit. Or a ``shardstore.plan.commits.Strategy``.
        max_dead_fraction: with more dead bytes than this part of a shard, ``"append"`` rewrites it, and ``"keep"`` uses them again.
        metadata_ttl: metadata older than this, such as ``"1s"`` or a ``timedelta``, is read again before a write.
        require_atomic: refuse to write where the storage has no conditional writes, instead of warning once.
        fsync: on local disks, a write is flushed to the disk before it returns.
        locks: on local disks, ``"cluster"`` where writers on several machines share a network mount, or ``"auto"``.
        max_memory: bytes that a transaction holds before it spills, and bytes of kept chunks that commits hold at once.
        commit_concurrency: how many shards are committed at once.
        commit_attempts: how many commits of a shard may lose against other writers in a row, before ``Conflict``.
        copy_window_bytes: chunks that a commit keeps are read in pieces of at most this size.
        static: nothing changes while the store is open, so nothing is looked at twice; ``None``: by kind of storage.
        index_cache_bytes: bytes of decoded shard indices that are kept.
        gap_bytes: ranges of a shard at most this far apart share a request; ``None``: by kind of storage.
        first_bytes: bytes that are read with the index of a small shard; ``None``: by kind of storage.
        request_bytes: ranges are not merged into requests longer than this.
        transport: for S3, Google Cloud Storage and Azure, ``"obstore"``, ``"fsspec"``, or ``"auto"``: obstore where it can do as well.
        kernel: decode and encode chunks of local arrays by native code, if the package has it.

    Raises:
        InvalidInput: an option or the URL's protocol is not known, or has a value that cannot be right.
        Unsupported: a package that the storage needs is missing.

    Specification: Zarr v3, sharding codec 1.0.
    """
    return shardstore.ShardedStore(url, read_only=read_only, storage_options=storage_options, pipeline=pipeline, **options)


@takes_store_options
def get_mapper(
    url: Any, *, read_only: bool = False, storage_options: dict[str, Any] | None = None, **options: Unpack[StoreOptions]
) -> ShardedMap:
    """Open a store as a mapping from presented keys to bytes, for programs that take a mapping. zarr is not needed.

    Arguments and errors are those of ``open``, but for ``pipeline``, which is zarr's. Where zarr-python 2 is installed, what is returned
    with ``present="v2"`` is a store of its own too, to which it hands whole batches.
    """
    store = mapping_class(options.get("present"))
    return store(url, read_only=read_only, storage_options=storage_options, **options)
