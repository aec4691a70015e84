"""Fallbacks for kinds of storage that have no such operation of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence

from shardstore.errors import InvalidInput, ReadOnly, Unsupported
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation
from shardstore.model.ranges import EVERYTHING, BytesLike, Segment
from shardstore.storage.base import UNKNOWN_NBYTES, Abilities, Found, ObjectInfo, Read, Storage, read_one


class ReadsAndWrites(Abilities):
    """The operations of a storage that reads and writes objects, and has no request that does more at once."""

    async def compose(self: Storage, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        raise no_compose(key, self.url)

    async def copy(self: Storage, source: str, target: str) -> Generation | None:
        outcome = await read_one(self, Read(source, (EVERYTHING,)))
        return await self.write(target, outcome.buffers, outcome.nbytes, UNCONDITIONAL) if isinstance(outcome, Found) else None

    async def rename_prefix(self, source: str, target: str) -> bool:
        return False

    async def stat(self: Storage, key: str) -> ObjectInfo | None:
        """Return size and version by reading no bytes of the object, or all of it if that does not show its size."""
        outcome = await read_one(self, Read(key, ()))
        if isinstance(outcome, Found) and outcome.nbytes == UNKNOWN_NBYTES:
            outcome = await read_one(self, Read(key, (EVERYTHING,)))
        return ObjectInfo(key, outcome.nbytes, outcome.generation) if isinstance(outcome, Found) else None


class ReadsOnly(Abilities):
    """The changing operations of a storage that is only read: each raises the error that ``refusal`` returns."""

    def refusal(self, action: str, key: str) -> ReadOnly:
        """Return the error for ``action``, such as "writing", on the object or prefix ``key``."""
        raise NotImplementedError

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        raise self.refusal("writing", key)

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        raise self.refusal("writing", key)

    async def copy(self, source: str, target: str) -> Generation | None:
        raise self.refusal(f"copying {source!r} to", target)

    async def rename_prefix(self, source: str, target: str) -> bool:
        raise self.refusal(f"moving {source!r} to", target)

    async def delete(self, key: str, condition: Condition) -> bool:
        raise self.refusal("deleting", key)

    async def delete_many(self, keys: Sequence[str]) -> None:
        if keys:
            raise self.refusal("deleting", keys[0])


def no_compose(key: str, url: str) -> Unsupported:
    return Unsupported(f"composing {key!r}: in {url} the bytes to keep have to be read and written")


def direct_children(keys: Iterable[str], prefix: str) -> tuple[list[str], tuple[str, ...]]:
    """Return those of ``keys``, which start with ``prefix``, that lie directly below it, and the prefixes of deeper ones, each once."""
    objects: list[str] = []
    prefixes: dict[str, None] = {}
    for key in keys:
        name, slash, _ = key[len(prefix) :].partition("/")
        if slash:
            prefixes[f"{prefix}{name}/"] = None
        elif name:
            objects.append(key)
    return objects, tuple(prefixes)


def check_directory(prefix: str) -> None:
    """Raise ``InvalidInput`` if a prefix to list directly below is not that of a directory."""
    if prefix and not prefix.endswith("/"):
        raise InvalidInput(f"{prefix!r} names no directory: it has to be empty or end with '/'")
