"""Where xarray's tests write, in place of their own stores."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec

import shardstore
from shardstore.plan.policy import ArrayInfo
from shardstore.snapshots import Repository, Session


class Url(str):
    """A URL that can be used where the tests use a path, as far as they do. It is a string, so to xarray it is a URL.

    Whether something is there is asked of the store that the first URL names: it presents what lies below.
    """

    _top: str

    def __new__(cls, url: str, top: str | None = None) -> Url:
        self = super().__new__(cls, url)
        self._top = url if top is None else top
        return self

    def __truediv__(self, name: str) -> Url:
        return Url(f"{self}/{name}" if name else self, self._top)

    def _info(self) -> dict[str, Any] | None:
        filesystem, path = fsspec.url_to_fs(self._top)
        try:
            info: dict[str, Any] = filesystem.info(path + self.removeprefix(self._top))
        except FileNotFoundError:
            return None
        return info

    def exists(self) -> bool:
        return self._info() is not None

    def is_file(self) -> bool:
        return (info := self._info()) is not None and info["type"] == "file"

    def is_dir(self) -> bool:
        return (info := self._info()) is not None and info["type"] == "directory"


@contextmanager
def memory_url() -> Iterator[Url]:
    path = f"/xarray-{uuid.uuid4().hex}"
    yield Url(f"sharded::memory:/{path}")
    memory = fsspec.filesystem("memory")
    if memory.exists(path):
        memory.rm(path, recursive=True)


@contextmanager
def file_url() -> Iterator[Url]:
    with TemporaryDirectory() as directory:
        yield Url(f"sharded::file://{Path(directory).as_posix()}/test.zarr")


def everything(info: ArrayInfo) -> tuple[int, ...] | None:
    """Shards for every array that can have any, the smallest coordinate too; no two dimensions alike."""
    if info.document["zarr_format"] == 2:
        return None
    return tuple(2 + axis for axis in range(len(info.shape))) or None


@contextmanager
def store() -> Iterator[shardstore.ShardedStore]:
    with memory_url() as url:
        yield shardstore.open(url.removeprefix("sharded::"), chunks_per_shard=everything)


def walk(top: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """``os.walk`` for a URL too: the keys that are presented."""
    if "::" not in top:
        yield from os.walk(top)
        return
    filesystem, path = fsspec.url_to_fs(top)
    for root, directories, files in filesystem.walk(path):
        yield top + root.removeprefix(path), directories, files


def _empty_session() -> tuple[Repository, Session]:
    """A new repository, and a session without its root, which xarray creates by default only if nothing is there."""
    repository = Repository.create(f"memory://xarray-{uuid.uuid4().hex}")
    session = repository.writable_session()
    del session.mapping()["zarr.json"]
    return repository, session


@contextmanager
def session() -> Iterator[shardstore.ShardedStore]:
    """The store of one session, of which nothing is committed."""
    _, empty = _empty_session()
    yield empty.store


class CommittedStore(shardstore.ShardedStore):
    """The store of a session; ``commit`` commits what was written, and goes on with a new session."""

    def __init__(self) -> None:
        self.repository, self._session = _empty_session()
        super().__init__(self._session.storage, chunks_per_shard=None, stored="codec")

    def commit(self) -> None:
        if self._session.has_uncommitted_changes:
            self._session.commit("what was written")
            self._session = self.repository.writable_session()
            self._handle = self._session.store._handle

    def committed(self) -> shardstore.ShardedStore:
        """Return the store of a read-only session that shows everything that was written."""
        self.commit()
        return self.repository.readonly_session().store


@contextmanager
def committed_session() -> Iterator[CommittedStore]:
    """A store that is committed by whoever has written something."""
    yield CommittedStore()
