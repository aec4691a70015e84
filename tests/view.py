"""Asks a store of zarr's interface from synchronous code, and in bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync


def get(store: Store, key: str, byte_range: ByteRequest | None = None) -> bytes | None:
    value = sync(store.get(key, default_buffer_prototype(), byte_range))
    return None if value is None else value.to_bytes()


def get_many(store: Store, key_ranges: Iterable[tuple[str, ByteRequest | None]]) -> list[bytes | None]:
    values = sync(store.get_partial_values(default_buffer_prototype(), key_ranges))
    return [None if value is None else value.to_bytes() for value in values]


def put(store: Store, key: str, data: bytes) -> None:
    sync(store.set(key, cpu.Buffer.from_bytes(data)))


def put_if_absent(store: Store, key: str, data: bytes) -> None:
    sync(store.set_if_not_exists(key, cpu.Buffer.from_bytes(data)))


def put_many(store: Store, items: Iterable[tuple[str, bytes]]) -> None:
    """One call for all: a store that can makes one batch of them."""
    sync(store._set_many([(key, cpu.Buffer.from_bytes(data)) for key, data in items]))


def delete(store: Store, key: str) -> None:
    sync(store.delete(key))


def delete_dir(store: Store, prefix: str) -> None:
    sync(store.delete_dir(prefix))


def exists(store: Store, key: str) -> bool:
    return sync(store.exists(key))


def getsize(store: Store, key: str) -> int:
    return sync(store.getsize(key))


async def _collected(items: AsyncIterator[str]) -> list[str]:
    return sorted([item async for item in items])


def keys(store: Store, prefix: str = "") -> list[str]:
    """Every key that starts with ``prefix``, sorted; a key listed twice is here twice."""
    return sync(_collected(store.list_prefix(prefix)))


def list_dir(store: Store, prefix: str) -> list[str]:
    return sync(_collected(store.list_dir(prefix)))


def contents(store: Store, prefix: str = "") -> dict[str, bytes]:
    """Every value by key, read through the store itself."""
    found = {}
    for key in keys(store, prefix):
        value = get(store, key)
        assert value is not None, f"{key!r} is listed but not there"
        found[key] = value
    return found
