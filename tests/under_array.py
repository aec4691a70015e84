"""Keys of any kind as chunk keys of one array, and a store of zarr-python that turns them into each other.

So suites that never write the document of an array reach its chunks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, Self

from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype

import shardstore
from tests.documents import array_v3, sharding_codec

RANK = 4  # as deep as the suite's keys go
GRID = 4096
SHARDED_ROOT = array_v3(
    [GRID] * RANK,
    [4] * RANK,
    codecs=[sharding_codec([1] * RANK, [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}])],
    attributes={},
)

# Each name that occurs in the suite's keys gets a number, in the order in which they occur; 0 is left for dimensions that a
# key does not use. 1, 10, 11, ... come first, because there one name is a prefix of the other: the trap of `ct` and `ct2`.
_NUMBERS = [1, *range(10, 20), *range(2, 10), *range(20, GRID)]
_names: list[str] = []


def _number(name: str) -> str:
    if name not in _names:
        _names.append(name)
    return str(_NUMBERS[_names.index(name)])


def _name(number: str) -> str:
    return _names[_NUMBERS.index(int(number))]


def chunk_key(key: str) -> str:
    """``foo/bar`` becomes ``c/1/10/0/0``: one dimension a level."""
    numbers = [_number(name) for name in key.split("/")]
    assert len(numbers) <= RANK
    return "/".join(["c", *numbers, *["0"] * (RANK - len(numbers))])


def chunk_prefix(prefix: str) -> str:
    numbers = [_number(name) for name in prefix.strip("/").split("/") if name]
    return "/".join(["c", *numbers]) + ("/" if prefix.endswith("/") or not numbers else "")


def suite_key(key: str) -> str:
    return "/".join(_name(number) for number in key.split("/")[1:] if number != "0")


class UnderShardedArray(Store):
    """A store whose keys are chunks of a sharded array in a ShardedStore.

    By composition: a subclass would translate keys twice where one of ShardedStore's methods calls another.
    """

    def __init__(self, sharded: shardstore.ShardedStore | None = None, *, read_only: bool = False, **kwargs: Any) -> None:
        super().__init__(read_only=read_only)
        self.sharded = sharded if sharded is not None else shardstore.ShardedStore(read_only=read_only, **kwargs)

    @property
    def read_from(self) -> shardstore.ShardedStore:
        """The store that is read: the one that is written, unless a subclass has another."""
        return self.sharded

    @classmethod
    async def open(cls, *args: Any, **kwargs: Any) -> Self:
        store = cls(*args, **kwargs)
        await store._open()
        return store

    async def _open(self) -> None:
        await super()._open()
        await self.sharded._ensure_open()

    def close(self) -> None:
        super().close()
        self.sharded.close()

    def with_read_only(self, read_only: bool = False) -> UnderShardedArray:
        sharded = self.sharded.with_read_only(read_only)
        assert isinstance(sharded, shardstore.ShardedStore)
        return UnderShardedArray(sharded, read_only=read_only)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnderShardedArray) and self.sharded == other.sharded

    def __hash__(self) -> int:
        return hash(self.sharded)

    def __repr__(self) -> str:
        return f"UnderShardedArray({self.sharded!r})"

    @property
    def supports_writes(self) -> bool:
        return self.sharded.supports_writes

    @property
    def supports_deletes(self) -> bool:
        return self.sharded.supports_deletes

    @property
    def supports_listing(self) -> bool:
        return self.sharded.supports_listing

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        return await self.read_from.get(chunk_key(key), prototype, byte_range)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return await self.read_from.get_partial_values(prototype, ((chunk_key(key), byte_range) for key, byte_range in key_ranges))

    async def exists(self, key: str) -> bool:
        return await self.read_from.exists(chunk_key(key))

    async def set(self, key: str, value: Buffer) -> None:
        await self.sharded.set(chunk_key(key), value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        await self.sharded.set_if_not_exists(chunk_key(key), value)

    async def _set_many(self, values: Iterable[tuple[str, Buffer]]) -> None:
        await self.sharded._set_many((chunk_key(key), value) for key, value in values)

    async def delete(self, key: str) -> None:
        await self.sharded.delete(chunk_key(key))

    async def delete_dir(self, prefix: str) -> None:
        await self.sharded.delete_dir(chunk_prefix(prefix))

    async def is_empty(self, prefix: str) -> bool:
        return await self.read_from.is_empty(chunk_prefix(prefix))

    async def clear(self) -> None:
        # Clearing the sharded store would take the array away with its chunks.
        await self.sharded.delete_dir("c")

    async def getsize(self, key: str) -> int:
        return await self.read_from.getsize(chunk_key(key))

    async def getsize_prefix(self, prefix: str) -> int:
        return await self.read_from.getsize_prefix(chunk_prefix(prefix))

    async def list(self) -> AsyncIterator[str]:
        async for key in self.read_from.list():
            if key != "zarr.json":
                yield suite_key(key)

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        async for key in self.read_from.list_prefix(chunk_prefix(prefix)):
            yield suite_key(key)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        async for number in self.read_from.list_dir(chunk_prefix(prefix)):
            yield _name(number)
