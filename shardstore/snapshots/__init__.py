"""Versioned stores: commits that are all or nothing, branches, tags and time travel, on the Icechunk draft of August 2024.

    repo = shardstore.Repository.create("s3://bucket/run.ice")
    with repo.transaction("main", message="day 1") as store:
        ds.to_zarr(store)

A store is its files, which never change, and one pointer to the current state.

Contributors: the files are in ``format.snapshots``, the pointer in ``catalog.py``; ``adapters.versioned`` has what programs use. Begin with
``session.py``, what a session sees, and ``commit.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardstore.snapshots.catalog import Catalog, Pointer, PointerMoved, StorageCatalog
from shardstore.snapshots.collect import Collected, Expired
from shardstore.snapshots.conflicts import BasicConflictSolver, ConflictDetector, ConflictError, ConflictType, NodeConflict
from shardstore.snapshots.diffs import Diff
from shardstore.snapshots.lookup import SnapshotInfo
from shardstore.snapshots.sql_catalog import SQLCatalog

if TYPE_CHECKING:
    from shardstore.adapters.versioned.icechunk_export import IcechunkExport
    from shardstore.adapters.versioned.repository import Repository
    from shardstore.adapters.versioned.session import ForkSession, Session

__all__ = [
    "BasicConflictSolver",
    "Catalog",
    "Collected",
    "ConflictDetector",
    "ConflictError",
    "ConflictType",
    "Diff",
    "Expired",
    "ForkSession",
    "IcechunkExport",
    "NodeConflict",
    "Pointer",
    "PointerMoved",
    "Repository",
    "SQLCatalog",
    "Session",
    "SnapshotInfo",
    "StorageCatalog",
]

_FACES = {
    "ForkSession": "session",
    "IcechunkExport": "icechunk_export",
    "Repository": "repository",
    "Session": "session",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _FACES:
        raise AttributeError(f"module 'shardstore.snapshots' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"shardstore.adapters.versioned.{_FACES[name]}"), name)  # the layer above
