"""The storage of a store: its kind and its abilities, and the format of what is stored there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardstore.model.capabilities import Capabilities
from shardstore.opening.kinds import kind_named
from shardstore.opening.snapshot_place import SnapshotPlace
from shardstore.presented.flavours import Presented
from shardstore.stored.detect import is_draft

Stored = Literal["v3", "2022 draft"]


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """What is stored, and on what."""

    kind: str
    capabilities: Capabilities
    is_known: bool
    """False if the server has not been asked yet what it honours."""
    stored: Stored
    presented: str
    snapshot: SnapshotPlace | None = None


def storage_facts(engine: Presented, snapshot: SnapshotPlace | None, probed: Capabilities | None = None) -> StorageFacts:
    """Return the facts about the storage of an engine, whose documents have been read; ``probed`` are the answers of its server."""
    storage = engine.storage
    capabilities = probed or storage.capabilities
    kind = kind_named(storage.kind)
    is_known = probed is not None or kind is None or not kind.is_probed or capabilities.atomic_commits
    stored: Stored = "2022 draft" if is_draft(storage) else "v3"
    return StorageFacts(storage.kind, capabilities, is_known, stored, engine.options.present.name, snapshot)
