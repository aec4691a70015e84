"""Sets of references for tests: storages that count what they are asked, and sets made of objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardstore.opening.open import open_storage
from shardstore.storage.base import ObjectInfo, Read, ReadOutcome, Storage
from shardstore.storage.references.storage import ReferenceStorage
from shardstore.storage.wrappers import StorageWrapper
from shardstore.testing.storage_suite import SyncStorage


class Counted(StorageWrapper):
    """Remembers the reads of each call."""

    def __init__(self, inner: Storage, calls: list[Sequence[Read]]) -> None:
        super().__init__(inner)
        self.calls = calls

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        self.calls.append(list(reads))
        return await self.inner.read(reads)

    async def stat(self, key: str) -> ObjectInfo | None:
        return await self.inner.stat(key)


def open_set(fo: object, **options: Any) -> SyncStorage:
    return SyncStorage(open_references(fo, **options))


def open_references(fo: object, **options: Any) -> ReferenceStorage:
    storage = open_storage("reference://", {"fo": str(fo) if isinstance(fo, Path) else fo, **options})
    assert isinstance(storage, ReferenceStorage)
    return storage


def counted_targets(storage: ReferenceStorage) -> list[Sequence[Read]]:
    """The reads of all targets of a storage from now on, call by call."""
    calls: list[Sequence[Read]] = []
    targets: Any = storage.targets
    opener = targets._opener
    targets._opener = lambda target, options: Counted(opener(target, options), calls)
    return calls


def write_set(path: Path, refs: dict[str, Any], **members: Any) -> Path:
    path.write_text(json.dumps({"version": 1, "refs": refs, **members}))
    return path
