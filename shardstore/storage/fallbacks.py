"""Fallbacks for kinds of storage that have no such operation of their own."""

from __future__ import annotations

from collections.abc import Sequence

from shardstore.errors import InvalidInput, Unsupported
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation
from shardstore.model.ranges import EVERYTHING, Segment
from shardstore.storage.base import UNKNOWN_NBYTES, Failed, Found, ObjectInfo, Read, Storage


class ReadsAndWrites:
    """The operations of a storage that reads and writes objects, and has no request that does more at once."""

    async def compose(self: Storage, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        raise no_compose(key, self.url)

    async def copy(self: Storage, source: str, target: str) -> Generation | None:
        (outcome,) = await self.read([Read(source, (EVERYTHING,))])
        if isinstance(outcome, Failed):
            raise outcome.error
        return await self.write(target, outcome.buffers, outcome.nbytes, UNCONDITIONAL) if isinstance(outcome, Found) else None

    async def rename_prefix(self, source: str, target: str) -> bool:
        return False

    async def stat(self: Storage, key: str) -> ObjectInfo | None:
        """Return size and version by reading no bytes of the object, or all of it where that does not show its size."""
        (outcome,) = await self.read([Read(key, ())])
        if isinstance(outcome, Found) and outcome.nbytes == UNKNOWN_NBYTES:
            (outcome,) = await self.read([Read(key, (EVERYTHING,))])
        if isinstance(outcome, Failed):
            raise outcome.error
        return ObjectInfo(key, outcome.nbytes, outcome.generation) if isinstance(outcome, Found) else None


def no_compose(key: str, url: str) -> Unsupported:
    return Unsupported(f"composing {key!r}: in {url} the bytes to keep have to be read and written")


def check_directory(prefix: str) -> None:
    """Raise ``InvalidInput`` where a prefix to list directly below is not that of a directory."""
    if prefix and not prefix.endswith("/"):
        raise InvalidInput(f"{prefix!r} names no directory: it has to be empty or end with '/'")
