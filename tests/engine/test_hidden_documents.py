"""Servers that answer "access denied" of all objects that are absent, as S3 does without the permission to list a bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import AccessDenied, StorageError
from shardstore.model.generation import Condition
from shardstore.storage.base import Absent, DirListing, Failed, ObjectInfo, Read, ReadOutcome, Storage
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.trace import TraceStorage
from tests.stored import on_io_loop

GROUP = b'{"zarr_format": 3, "node_type": "group"}'


class Unlisted(TraceStorage):
    """A storage that does not say what is absent, nor lists; some objects may not be read either."""

    def __init__(self, inner: Storage, *denied: str, conditions: bool = True) -> None:
        super().__init__(inner)
        self.denied = denied
        self.capabilities_left = conditions
        self.reads: list[str] = []

    @property
    def capabilities(self) -> Any:
        known = self.inner.capabilities
        return known if self.capabilities_left else replace(known, create_if_absent=False, compare_and_swap=False)

    async def probe(self) -> Any:
        return self.capabilities

    def _denied(self, key: str) -> AccessDenied:
        return AccessDenied(f"reading {key!r}: the server denied access (AccessDenied)")

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        self.reads += [read.key for read in reads]
        outcomes = await self.inner.read(reads)
        return [
            Failed(self._denied(read.key)) if isinstance(outcome, Absent) or read.key in self.denied else outcome
            for read, outcome in zip(reads, outcomes, strict=True)
        ]

    async def stat(self, key: str) -> ObjectInfo | None:
        found = await self.inner.stat(key)
        if found is None or key in self.denied:
            raise self._denied(key)
        return found

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for info in [await self.stat(f"{prefix} that is listed")]:  # which is denied
            if info is not None:
                yield info

    async def list_dir(self, prefix: str) -> DirListing:
        raise self._denied(prefix)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A group with a sharded array and an unsharded one; and a group of Zarr v2 with an array."""
    group = zarr.create_group(zarr.storage.LocalStore(tmp_path / "s"))
    group.create_array("a", shape=(8,), chunks=(2,), shards=(4,), dtype="u1")[...] = 1
    group.create_array("p", shape=(8,), chunks=(2,), dtype="u1")[...] = 2
    of_v2 = zarr.storage.LocalStore(tmp_path / "s/of_v2")
    zarr.create_array(of_v2, name="v2", shape=(4,), chunks=(2,), dtype="u1", zarr_format=2)[...] = 3
    return tmp_path / "s"


def test_what_is_there_is_read(root: Path) -> None:
    group = zarr.open_group(shardstore.open(Unlisted(LocalStorage(root)), read_only=True), mode="r")
    for path, value in (("a", 1), ("p", 2)):
        array = zarr.open_array(group.store, path=path, mode="r")
        assert set(np.ravel(array[...]).tolist()) == {value}


def test_an_array_of_v2_is_read(root: Path) -> None:
    array = zarr.open_array(shardstore.open(Unlisted(LocalStorage(root)), read_only=True), path="of_v2/v2", mode="r")
    assert array[...].tolist() == [3] * 4  # type: ignore[union-attr]


def test_an_array_of_v2_with_a_directory_a_dimension_is_read(root: Path) -> None:
    """The key of a chunk may also be one of an array at the directory, of which nothing can be known."""
    made: Any = zarr.create_array(
        zarr.storage.LocalStore(root),
        name="of_v2/nested",
        shape=(4, 4),
        chunks=(2, 2),
        dtype="u1",
        zarr_format=2,
        chunk_key_encoding={"name": "v2", "separator": "/"},
    )
    made[...] = 4
    array: Any = zarr.open_array(shardstore.open(Unlisted(LocalStorage(root)), read_only=True), path="of_v2/nested", mode="r")
    assert (array[...] == 4).all()


def test_a_child_is_read_below_a_group_without_a_document(root: Path) -> None:
    (root / "zarr.json").unlink()
    chunks = shardstore.get_mapper(Unlisted(LocalStorage(root)), read_only=True)
    assert len(chunks["a/c/3"]) > 0
    assert chunks["a/zarr.json"][:1] == b"{"


def test_a_document_is_absent_only_where_another_shows_the_node(root: Path) -> None:
    chunks = shardstore.get_mapper(Unlisted(LocalStorage(root)), read_only=True)
    for key in ("a/.zarray", "a/.zgroup", "a/.zattrs", "of_v2/v2/zarr.json", ".zmetadata"):
        assert key not in chunks, key
        with pytest.raises(KeyError):
            chunks[key]
    for key in ("no/zarr.json", "no/.zarray", "no/.zattrs"):
        with pytest.raises(AccessDenied):
            chunks[key]


def test_a_document_that_is_denied_never_makes_a_shard_of_it_a_chunk(root: Path) -> None:
    """The bytes of the shard are there, and may be read: taken for a chunk they would be wrong."""
    denied = Unlisted(LocalStorage(root), "a/zarr.json")
    chunks = shardstore.get_mapper(denied)
    for key in ("a/c/0", "a/c/1", "a/c/7"):
        with pytest.raises(AccessDenied, match=r"a/zarr\.json"):
            chunks[key]
        with pytest.raises(AccessDenied):
            chunks[key] = b"chunk"
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    changes: list[Callable[[], Any]] = [lambda: chunks.rmdir("a"), lambda: chunks.rmdir("a/c"), lambda: chunks.pop("a/c/0")]
    for change in changes:
        with pytest.raises(StorageError):
            change()
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_a_known_document_stays_denied(root: Path) -> None:
    storage = Unlisted(LocalStorage(root))
    chunks = shardstore.get_mapper(storage, metadata_ttl=0)
    assert len(chunks["a/c/0"]) > 0
    storage.denied = ("a/zarr.json",)
    shard = (root / "a/c/0").read_bytes()
    for key in ("a/c/0", "a/c/1", "a/zarr.json"):
        with pytest.raises(AccessDenied):
            chunks[key]
        with pytest.raises(AccessDenied):
            chunks[key] = GROUP
    assert (root / "a/c/0").read_bytes() == shard


def test_a_group_is_created_on_the_condition_that_there_is_none(root: Path) -> None:
    storage = Unlisted(LocalStorage(root), "zarr.json")
    chunks = shardstore.get_mapper(storage)
    chunks["g/zarr.json"] = GROUP
    assert (root / "g/zarr.json").exists()
    before = (root / "zarr.json").read_bytes()
    with pytest.raises(AccessDenied):  # there is one, which may not be seen
        chunks["zarr.json"] = GROUP
    assert (root / "zarr.json").read_bytes() == before


def test_nothing_is_created_without_conditions(root: Path) -> None:
    chunks = shardstore.get_mapper(Unlisted(LocalStorage(root), conditions=False))
    with pytest.raises(AccessDenied):
        chunks["g/zarr.json"] = GROUP
    assert not (root / "g").exists()


def test_documents_are_looked_for_once_more_only_where_one_is_denied(root: Path) -> None:
    storage = Unlisted(LocalStorage(root))
    chunks = shardstore.get_mapper(storage, read_only=True)
    assert len(chunks["p/c/0"]) > 0
    assert storage.reads.count("p/zarr.json") == 1
    assert not [key for key in storage.reads if key.endswith((".zarray", ".zgroup"))]


def test_a_write_that_needs_to_know_more_is_refused(root: Path) -> None:
    """What is in the way of a new array cannot be seen without listing."""
    store = shardstore.open(Unlisted(LocalStorage(root)))
    with pytest.raises(AccessDenied):
        zarr.create_array(store, name="new", shape=(8,), chunks=(2,), dtype="u1")
    assert not (root / "new").exists()


def test_conditions_are_those_of_the_storage(root: Path) -> None:
    conditions: list[Condition] = []

    class Watched(Unlisted):
        async def write(self, key: str, body: Any, nbytes: int, condition: Condition) -> Any:
            conditions.append(condition)
            return await self.inner.write(key, body, nbytes, condition)

    shardstore.get_mapper(Watched(LocalStorage(root)))["g/zarr.json"] = GROUP
    assert [type(condition).__name__ for condition in conditions] == ["IfAbsent"]
    assert on_io_loop(LocalStorage(root).stat("g/zarr.json")) is not None


def test_a_view_of_v2_reads_what_is_there(root: Path) -> None:
    chunks = shardstore.get_mapper(Unlisted(LocalStorage(root)), read_only=True, present="v2")
    assert len(chunks["a/0"]) > 0
    assert chunks["a/.zarray"][:1] == chunks[".zgroup"][:1] == b"{"
