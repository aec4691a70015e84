"""shardstore: packs many Zarr chunks into shard objects, on local disks, S3, Google Cloud Storage and behind any fsspec URL.

``open`` gives a store for zarr-python, ``get_mapper`` a mapping; ``sharded::`` in front of a URL does it without an import.
Importing this imports neither zarr nor s3fs: what needs them is loaded when it is asked for. Where an extra is missing, a name that needs
it is there too, and using it is an error that says how to install the extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardstore import errors
from shardstore.errors import (
    AccessDenied,
    Conflict,
    Corruption,
    Incomplete,
    InvalidInput,
    NoSpace,
    NotFound,
    ReadOnly,
    ShardStoreError,
    SnapshotExpired,
    StorageError,
    Undecodable,
    Unsupported,
    WriteOutcomeUnknown,
)

if TYPE_CHECKING:
    from typing import Unpack

    from shardstore import references, snapshots
    from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
    from shardstore.adapters.handle import FurtherOptions, OpenOptions
    from shardstore.adapters.mapping.mapping import ShardedMap
    from shardstore.adapters.tools.align import align
    from shardstore.adapters.tools.verification import census, verify
    from shardstore.adapters.tools.versions import show_versions
    from shardstore.adapters.transformer import ShardingTransformer
    from shardstore.adapters.zarr.append import append
    from shardstore.adapters.zarr.store import ShardedStore
    from shardstore.apps.mounting.mounts import mount, unmount
    from shardstore.apps.reports.reporting import report
    from shardstore.apps.server.running import serve
    from shardstore.engine.options import Flavour, Present, Stored, StrategyName
    from shardstore.maintenance.compact import compact
    from shardstore.maintenance.packing.pack import pack, reshard, unpack
    from shardstore.maintenance.repair.run import repair
    from shardstore.plan.commits import Strategy
    from shardstore.plan.policy import ShardingPolicy

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "Conflict",
    "Corruption",
    "Incomplete",
    "InvalidInput",
    "NoSpace",
    "NotFound",
    "ReadOnly",
    "ShardStoreError",
    "ShardedFileSystem",
    "ShardedMap",
    "ShardedStore",
    "ShardingTransformer",
    "SnapshotExpired",
    "StorageError",
    "Undecodable",
    "Unsupported",
    "WriteOutcomeUnknown",
    "align",
    "append",
    "census",
    "compact",
    "errors",
    "get_mapper",
    "mount",
    "open",
    "pack",
    "references",
    "repair",
    "report",
    "reshard",
    "serve",
    "show_versions",
    "snapshots",
    "unmount",
    "unpack",
    "verify",
]

_LAZY = {
    "ShardedFileSystem": "shardstore.adapters.fsspec.filesystem",
    "ShardedMap": "shardstore.adapters.mapping.mapping",
    "ShardedStore": "shardstore.adapters.zarr.store",
    "ShardingTransformer": "shardstore.adapters.transformer",
    "align": "shardstore.adapters.tools.align",
    "append": "shardstore.adapters.zarr.append",
    "pack": "shardstore.maintenance.packing.pack",
    "reshard": "shardstore.maintenance.packing.pack",
    "unpack": "shardstore.maintenance.packing.pack",
    "compact": "shardstore.maintenance.compact",
    "repair": "shardstore.maintenance.repair.run",
    "report": "shardstore.apps.reports.reporting",
    "census": "shardstore.adapters.tools.verification",
    "show_versions": "shardstore.adapters.tools.versions",
    "verify": "shardstore.adapters.tools.verification",
    "serve": "shardstore.apps.server",
    "mount": "shardstore.apps.mounting.mounts",
    "unmount": "shardstore.apps.mounting.mounts",
}

_NEED_ZARR = {"ShardedStore": ("zarr", "; get_mapper works without"), "append": ("zarr",)}
"""The names that need an extra, each with it and what the error says behind it."""


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name in ("references", "snapshots"):
        from importlib import import_module

        return import_module(f"shardstore.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'shardstore' has no attribute {name!r}")
    from shardstore.extras import load

    return load(f"shardstore.{name}", _LAZY[name], *_NEED_ZARR.get(name, ()))


def open(
    url: Any,
    *,
    read_only: bool = False,
    chunks_per_shard: ShardingPolicy = "auto",
    stored: Stored = "auto",
    present: Present | Flavour = "v3",
    strategy: StrategyName | Strategy = "rewrite",
    storage_options: dict[str, Any] | None = None,
    **options: Unpack[OpenOptions],
) -> ShardedStore:
    """Open a store for zarr-python.

    Args:
        url: a path, any fsspec URL or chain, an fsspec filesystem with a path as ``(fs, path)``, an fsspec mapping, a store of
            zarr-python, or a ``shardstore.storage.base.Storage``.
        read_only: refuse every write.
        chunks_per_shard: which arrays are sharded when they are created: ``"auto"`` (about 64 MiB decoded a shard, at most
            1,024 chunks; small coordinates are not sharded), ``None`` (none), one tuple with a number of chunks for each
            dimension, a mapping from path patterns to those, or a function of ``shardstore.plan.policy.ArrayInfo``. Arrays
            that exist keep the sharding that they have.
        stored: what new hierarchies are on the storage. ``"auto"``: what is there already, and ``"codec"`` where there is nothing;
            ``"codec"``: Zarr v3 sharded by the codec ``sharding_indexed``, which every Zarr v3 reader knows; ``"transformer"``: a hierarchy
            of the 2022 draft, sharded by its storage transformer; ``"transformer-v3"``: Zarr v3 sharded by that transformer.
        present: what clients see. ``"v3"``: Zarr v3; ``"v2"``: the documents and keys of Zarr v2; ``"draft"``: those of a stored hierarchy
            of the 2022 draft; or a ``shardstore.presented.view.PresentedFlavour``.
        strategy: how a shard is updated. ``"rewrite"``: a new object without dead bytes; ``"append"``: new chunks and a new index go
            behind what is there; ``"keep"``: a new object in which old chunks lie where they lay, so that readers of other libraries who
            have read an index find these chunks after a commit; or a ``shardstore.plan.commits.Strategy``.
        storage_options: for the filesystem: credentials, endpoint, retries.
        options: further ones, described in ``docs/reference/options.md``:

            - of new arrays: ``index_location`` (``"end"`` or ``"start"``), ``index_checksum``, ``chunk_order`` (``"C"``, ``"F"`` or
              ``"morton"``);
            - of arrays whose shards hold shards: ``present_level`` (how many levels clients do not see, or ``"innermost"``);
            - of arrays of the 2022 draft: ``lost_transformers`` (the chunks per shard, by path, of those whose documents have lost their
              storage transformer);
            - of writing: ``metadata_ttl`` (seconds), ``require_atomic``, ``max_dead_fraction``, ``max_memory``, ``commit_concurrency``,
              ``commit_attempts``, ``copy_window_bytes``, ``fsync`` and ``locks`` (``"auto"`` or ``"cluster"``) of local disks;
            - of reading: ``index_cache_bytes``, ``gap_bytes``, ``first_bytes``, ``request_bytes``, ``static`` (nothing changes while the
              store is open), ``transport`` (``"fsspec"`` or ``"obstore"``), ``pipeline`` (zarr hands whole selections to the engine),
              ``kernel`` (native code decodes and encodes chunks of local arrays, if the package has it).

    Raises:
        InvalidInput: an option or the URL's protocol is not known, or has a value that cannot be right.
        Unsupported: a package that the storage needs is missing.

    Specification: Zarr v3, sharding codec 1.0.
    """
    store: type[ShardedStore] = __getattr__("ShardedStore")
    return store(
        url,
        read_only=read_only,
        storage_options=storage_options,
        chunks_per_shard=chunks_per_shard,
        stored=stored,
        present=present,
        strategy=strategy,
        **options,
    )


def get_mapper(
    url: Any,
    *,
    read_only: bool = False,
    chunks_per_shard: ShardingPolicy = "auto",
    stored: Stored = "auto",
    present: Present | Flavour = "v3",
    strategy: StrategyName | Strategy = "rewrite",
    storage_options: dict[str, Any] | None = None,
    **options: Unpack[FurtherOptions],
) -> ShardedMap:
    """Open a store as a mapping from presented keys to bytes, for programs that take a mapping. zarr is not needed.

    Arguments and errors are those of ``open``, but for ``pipeline``, which is zarr's. Where zarr-python 2 is installed, what is returned
    with ``present="v2"`` is a store of its own too, to which it hands whole batches.
    """
    from shardstore.adapters.mapping import mapping_class

    return mapping_class(present)(
        url,
        read_only=read_only,
        storage_options=storage_options,
        chunks_per_shard=chunks_per_shard,
        stored=stored,
        present=present,
        strategy=strategy,
        **options,
    )
