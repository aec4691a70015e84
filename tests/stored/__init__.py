"""The objects below a view, read and written past shardstore's engine.

Set-up and checks must not go through the code under test, or a bug that is made twice is seen never.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import fsspec
import fsspec.asyn
from zarr.core.buffer import Buffer, cpu
from zarr.storage import MemoryStore

from shardstore.model.generation import UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Failed, Found, ObjectInfo, Read, Storage

T = TypeVar("T")


class Objects(Protocol):
    """One root of stored objects, by key."""

    def get(self, key: str) -> bytes | None: ...

    def put(self, key: str, data: bytes) -> None: ...

    def delete(self, key: str) -> None: ...

    def keys(self) -> list[str]: ...


def on_io_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of ``coroutine``, run where shardstore runs everything: on fsspec's IO loop."""

    async def awaited() -> T:
        return await coroutine

    result: T = fsspec.asyn.sync(fsspec.asyn.get_loop(), awaited)
    return result


class LocalObjects:
    """Files below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, key: str) -> bytes | None:
        path = self.root / key
        return path.read_bytes() if path.is_file() else None

    def put(self, key: str, data: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def delete(self, key: str) -> None:
        (self.root / key).unlink()

    def keys(self) -> list[str]:
        # Lock and temporary files of shardstore are hidden files, and no objects.
        files = (path.relative_to(self.root) for path in self.root.rglob("*") if path.is_file())
        return sorted(path.as_posix() for path in files if not any(part.startswith(".") for part in path.parts))


class StorageObjects:
    """Objects of one of shardstore's own storages, through the storage protocol only."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def get(self, key: str) -> bytes | None:
        (outcome,) = on_io_loop(self.storage.read([Read(key, (EVERYTHING,))]))
        if isinstance(outcome, Failed):
            raise outcome.error
        return bytes(outcome.buffers[0]) if isinstance(outcome, Found) else None

    def put(self, key: str, data: bytes) -> None:
        on_io_loop(self.storage.write(key, [data], len(data), UNCONDITIONAL))

    def delete(self, key: str) -> None:
        on_io_loop(self.storage.delete(key, UNCONDITIONAL))

    def keys(self) -> list[str]:
        async def collect(infos: AsyncIterator[ObjectInfo]) -> list[str]:
            return sorted([info.key async for info in infos])

        return on_io_loop(collect(self.storage.list("")))


class FsspecObjects:
    """Objects of any fsspec filesystem, through a filesystem of its own that remembers no listing."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        options = {**(storage_options or {}), "skip_instance_cache": True, "use_listings_cache": False}
        self.fs, root = fsspec.core.url_to_fs(url, **options)
        self.root = root.rstrip("/")

    def get(self, key: str) -> bytes | None:
        try:
            data: bytes = self.fs.cat_file(f"{self.root}/{key}")
        except FileNotFoundError:
            return None
        return data

    def put(self, key: str, data: bytes) -> None:
        self.fs.pipe_file(f"{self.root}/{key}", data)

    def delete(self, key: str) -> None:
        self.fs.rm_file(f"{self.root}/{key}")

    def keys(self) -> list[str]:
        self.fs.invalidate_cache()
        return sorted(path.removeprefix(f"{self.root}/") for path in self.fs.find(self.root))


def snapshot(objects: Objects) -> dict[str, bytes]:
    """Every object by key: equal snapshots mean that nothing was changed."""
    return {key: data for key in objects.keys() if (data := objects.get(key)) is not None}  # noqa: SIM118 - no mapping


def copy_tree(source: Path, target: Objects) -> None:
    """Put every file below ``source`` into ``target``, hidden ones too."""
    for path in sorted(source.rglob("*")):
        if path.is_file():
            target.put(path.relative_to(source).as_posix(), path.read_bytes())


def document(objects: Objects, key: str) -> dict[str, Any]:
    """The JSON object stored at ``key``."""
    data = objects.get(key)
    assert data is not None, f"nothing is stored at {key!r}"
    parsed: dict[str, Any] = json.loads(data)
    return parsed


def as_zarr_memory(objects: Objects) -> MemoryStore:
    """The stored objects as a store of zarr's own, so that plain zarr-python can be asked what they mean."""
    contents: dict[str, Buffer] = {key: cpu.Buffer.from_bytes(data) for key, data in snapshot(objects).items()}
    return MemoryStore(contents)
