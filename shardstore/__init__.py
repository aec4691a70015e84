"""shardstore: packs many Zarr chunks into shard objects, on local disks, S3, Google Cloud Storage and behind any fsspec URL.

``open`` gives a store for zarr-python, ``get_mapper`` a mapping; ``sharded::`` in front of a URL does it without an import.
Importing this imports neither zarr nor s3fs: what needs them is loaded when it is asked for. Where an extra is missing, a name that needs
it is there too, and using it is an error that says how to install the extra.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":  # local files are locked as POSIX has it, and no test runs there
    raise ImportError("shardstore does not run on Windows: install it in the Windows Subsystem for Linux")

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
    from shardstore import references, snapshots
    from shardstore.adapters.entry import get_mapper, open
    from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
    from shardstore.adapters.mapping.mapping import ShardedMap
    from shardstore.adapters.tools.align import align
    from shardstore.adapters.tools.verification import census, verify
    from shardstore.adapters.tools.versions import show_versions
    from shardstore.adapters.transformer import ShardingTransformer
    from shardstore.adapters.versioned.repository import Repository
    from shardstore.adapters.zarr.append import append
    from shardstore.adapters.zarr.store import ShardedStore
    from shardstore.apps.mounting.mounts import Mount, mount, unmount
    from shardstore.apps.reports.reporting import Report, report
    from shardstore.apps.server.running import serve
    from shardstore.maintenance.census import Census
    from shardstore.maintenance.compact import CompactReport, compact
    from shardstore.maintenance.packing.pack import pack, reshard, unpack
    from shardstore.maintenance.packing.run import PackReport
    from shardstore.maintenance.repair.run import RepairReport, repair
    from shardstore.maintenance.verify.run import VerifyReport

    __version__: str

__all__ = [
    "AccessDenied",
    "Census",
    "CompactReport",
    "Conflict",
    "Corruption",
    "Incomplete",
    "InvalidInput",
    "Mount",
    "NoSpace",
    "NotFound",
    "PackReport",
    "ReadOnly",
    "RepairReport",
    "Report",
    "Repository",
    "ShardStoreError",
    "ShardedFileSystem",
    "ShardedMap",
    "ShardedStore",
    "ShardingTransformer",
    "SnapshotExpired",
    "StorageError",
    "Undecodable",
    "Unsupported",
    "VerifyReport",
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
    "Census": "shardstore.maintenance.census",
    "CompactReport": "shardstore.maintenance.compact",
    "Mount": "shardstore.apps.mounting.mounts",
    "PackReport": "shardstore.maintenance.packing.run",
    "RepairReport": "shardstore.maintenance.repair.run",
    "Report": "shardstore.apps.reports.reporting",
    "VerifyReport": "shardstore.maintenance.verify.run",
    "Repository": "shardstore.adapters.versioned.repository",
    "ShardedFileSystem": "shardstore.adapters.fsspec.filesystem",
    "ShardedMap": "shardstore.adapters.mapping.mapping",
    "ShardedStore": "shardstore.adapters.zarr.store",
    "ShardingTransformer": "shardstore.adapters.transformer",
    "align": "shardstore.adapters.tools.align",
    "append": "shardstore.adapters.zarr.append",
    "get_mapper": "shardstore.adapters.entry",
    "open": "shardstore.adapters.entry",
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
    if name == "__version__":
        return _version()
    if name in ("references", "snapshots"):
        from importlib import import_module

        return import_module(f"shardstore.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'shardstore' has no attribute {name!r}")
    from shardstore.extras import load

    return load(f"shardstore.{name}", _LAZY[name], *_NEED_ZARR.get(name, ()))


def _version() -> str:
    """Return the version that is installed. It is made of the tag of the repository while the package is built."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("shardstore")
    except PackageNotFoundError:  # files on Python's path that were never installed
        return "unknown"
