"""A store as a mount holds it: values that are read, pinned and changed by key, and directories."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from shardstore.adapters.handle import Handle
from shardstore.adapters.read_views import ReadResult, ValueRead, read_values
from shardstore.engine.actions import Action, Creation, EraseValue, Revise, SetIfMissing, SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.pinned import OpenValue, PinnedValue
from shardstore.errors import Conflict
from shardstore.model.ranges import BytesLike
from shardstore.model.redaction import redacted
from shardstore.opening.address import scheme_of, text_of
from shardstore.presented.flavours import Presented
from shardstore.storage.base import Storage
from shardstore.storage.local.mounts import mount_of
from shardstore.storage.local.storage import LocalFiles


class AlreadyExists(Conflict):
    """A value that was to be created is there already."""


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A change of one value: it becomes ``data``, or what ``revise`` makes of the value that is there (``None``: absent); with neither, it
    is erased. With ``creates`` it becomes ``data`` only where there is no value.
    """

    data: BytesLike | None = None
    revise: Callable[[bytes | None], bytes | None] | None = None
    creates: bool = False

    def action(self, creation: Creation) -> Action:
        """Return the action that carries it out; ``creation`` says afterwards whether it has created the value."""
        if self.revise is not None:
            return Revise(self.revise)
        if self.data is None:
            return EraseValue()
        return SetIfMissing(self.data, creation) if self.creates else SetValue(self.data)


ERASE = Change()

KeyChange = tuple[str, Change]


PinnedVersion: TypeAlias = OpenValue
"""One version of a value, to be read piece by piece."""


def shares_object(pinned: PinnedVersion) -> bool:
    """Return whether the stored object may hold other values too, so that writing those replaces it."""
    return isinstance(pinned, PinnedValue) and pinned.is_chunk


def place_of(pinned: PinnedVersion) -> str | None:
    """Return the key of the stored object, offset and size, as text; ``None`` of a document, and of a value that is held in memory."""
    return f"{pinned.stored_key} {pinned.offset} {pinned.nbytes}" if isinstance(pinned, PinnedValue) else None


class FileAccess:
    """The values of a store by key. Coroutines run on fsspec's IO loop."""

    def __init__(self, store: Presented) -> None:
        self.presented = store
        self.is_canonical = isinstance(store, Engine)
        """True if the keys are those of final Zarr v3."""
        self.shows_draft = store.options.present.shows_draft
        """True if the keys are those of the 2022 draft."""
        self.is_static = store.storage.capabilities.static
        """True if nothing in the store ever changes, as in a snapshot."""
        # These are the store's own.
        self.pin = store.pin
        self.size = store.size
        self.layout = store.layout
        self.shard_groups = store.shard_groups
        self.list_dir = store.list_dir
        self.list_batches = store.list_batches
        self.move_prefix = store.move_prefix

    @classmethod
    def open(cls, target: str | Path | Storage, storage_options: Mapping[str, Any], options: Mapping[str, Any]) -> FileAccess:
        """Open what ``shardstore.open`` takes, with its options. Not called on the IO loop. Raises as ``Handle.find``."""
        return cls(Handle.find(target, dict(storage_options) or None, dict(options)).engine)

    @property
    def url(self) -> str:
        """The URL of the store, without credentials."""
        return redacted(self.presented.storage.url)

    @property
    def local_directory(self) -> str | None:
        """The directory that the store is, if it is one of this machine."""
        local = self.presented.storage.ability(LocalFiles)
        return None if local is None else local.root

    async def read(self, reads: Sequence[ValueRead]) -> Sequence[ReadResult]:
        """Read values, all in one round."""
        return await read_values(self.presented.read_versions, reads)

    async def change(self, changes: Sequence[KeyChange]) -> Sequence[Exception | None]:
        """Carry out changes, durable on return; return the error of each, or ``None``. They are carried out even when this is cancelled."""
        creations = [Creation() for _ in changes]
        updates = [(key, change.action(creation)) for (key, change), creation in zip(changes, creations, strict=True)]
        errors = await self.presented.update_many(updates)
        return [
            AlreadyExists(f"{key!r} has been created by another program since it was opened here")
            if error is None and change.creates and not creation.happened
            else error
            for (key, change), creation, error in zip(changes, creations, errors, strict=True)
        ]


def portable_target(target: str | os.PathLike[str]) -> str | Path:
    """Return a URL as text, and a path object as an absolute path, which another process can open too."""
    text = text_of(target)
    return text if isinstance(target, str) or scheme_of(text) else Path(text)


def mounted_kind(directory: str) -> str | None:
    """Return the type of the file system that is mounted at a directory without links; ``None`` if none is mounted just there."""
    there = mount_of(directory)
    return there.kind if there is not None and there.point == directory else None
