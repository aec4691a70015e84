"""Versions of shards in storages that have none: told by their indices, whichever request or write these come from."""

from __future__ import annotations

from collections.abc import Callable

from shardstore.format.shard_index import IndexFormat
from shardstore.model.generation import Generation
from shardstore.model.ranges import BytesLike
from shardstore.storage.base import Storage, ToldByRanges
from shardstore.storage.wrappers.base import innermost


class IndexVersions:
    """The versions by which the shards of one storage are read, once their indices are known."""

    def __init__(self, storage: Storage) -> None:
        inmost = innermost(storage)
        self._told_by = inmost if isinstance(inmost, ToldByRanges) else None

    def named(self, generation: Generation, index_format: IndexFormat, encoded: Callable[[], BytesLike]) -> Generation:
        """``generation``, or that by which a shard of this index, ``encoded``, can be read again where it names nothing.

        A shard that was written, or came whole, is read by one round then, as one whose index was read.
        """
        if self._told_by is None:
            return generation
        return self._told_by.version_by(index_format.request(), encoded()) or generation
