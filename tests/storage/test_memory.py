"""The memory storage, and what plain fsspec sees of it."""

from __future__ import annotations

import pickle
import uuid

import fsspec
import pytest

from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, IfGeneration
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Changed, ConditionFailed, Found
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.storage_suite import StorageSuite, SyncStorage


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage(f"/test-{uuid.uuid4().hex}")


class TestMemoryStorage(StorageSuite):
    pass


def test_fsspec_sees_what_is_written(storage: MemoryStorage, s: SyncStorage) -> None:
    s.put("a/b/c", b"123")
    fs = fsspec.filesystem("memory")
    root = storage.path
    assert fs.cat_file(f"{root}/a/b/c") == b"123"
    assert fs.ls(root, detail=False) == [f"{root}/a"]
    assert fs.find(root) == [f"{root}/a/b/c"]
    assert fs.info(f"{root}/a/b/c")["size"] == 3
    with fs.open(f"{root}/a/b/c", "rb") as file:
        assert file.read() == b"123"
    s.delete("a/b/c")
    assert not fs.exists(f"{root}/a")


def test_what_fsspec_writes_is_seen(storage: MemoryStorage, s: SyncStorage) -> None:
    fs = fsspec.filesystem("memory")
    path = f"{storage.path}/a"
    fs.pipe_file(path, b"one")
    first = s.stat("a")
    assert first is not None
    assert first == s.stat("a")
    fs.pipe_file(path, b"two")
    assert first.generation is not None
    assert s.read("a", EVERYTHING, generation=first.generation) == Changed()
    with pytest.raises(ConditionFailed):
        s.put("a", b"new", IfGeneration(first.generation))
    with pytest.raises(ConditionFailed):
        s.put("a", b"new", IF_ABSENT)
    second = s.stat("a")
    with fs.open(path, "ab") as file:
        file.write(b"+")
    assert s.stat("a") != second
    assert s.get("a") == b"two+"


def test_an_object_where_an_empty_directory_was(storage: MemoryStorage, s: SyncStorage) -> None:
    fs = fsspec.filesystem("memory")
    fs.makedirs(f"{storage.path}/a/b")
    s.put("a/b", b"1")
    assert fs.cat_file(f"{storage.path}/a/b") == b"1"
    assert fs.isfile(f"{storage.path}/a/b")
    with fs.open(f"{storage.path}/a/b") as file:
        assert file.read() == b"1"


def test_renamed_objects_are_those_of_fsspec(storage: MemoryStorage, s: SyncStorage) -> None:
    fs = fsspec.filesystem("memory")
    root = storage.path
    s.put("a/b/c", b"123")
    generation = s.infos()[0].generation
    fs.makedirs(f"{root}/n/b/c")
    assert s.rename_prefix("a", "n") is True
    assert fs.find(root) == [f"{root}/n/b/c"]
    assert fs.isfile(f"{root}/n/b/c")
    assert s.infos()[0].generation == generation
    with fs.open(f"{root}/n/b/c", "ab") as file:
        file.write(b"4")
    fs.store[f"{root}/n/b/c"].commit()
    assert fs.find(root) == [f"{root}/n/b/c"]
    assert s.get("n/b/c") == b"1234"


def test_copies_share_their_bytes(s: SyncStorage) -> None:
    data = bytes(1000)
    s.write("a", [data], len(data), UNCONDITIONAL)
    s.copy("a", "b")
    found = s.read("b", EVERYTHING)
    assert isinstance(found, Found)
    assert found.buffers[0].obj is data


def test_reads_share_the_stored_bytes(s: SyncStorage) -> None:
    data = bytes(1000)
    s.write("a", [data], len(data), UNCONDITIONAL)
    first, second = s.read("a", EVERYTHING), s.read("a", EVERYTHING)
    assert isinstance(first, Found)
    assert isinstance(second, Found)
    assert first.buffers[0].obj is second.buffers[0].obj is data


def test_pickles_and_equality(storage: MemoryStorage, s: SyncStorage) -> None:
    s.put("a", b"1")
    copy = pickle.loads(pickle.dumps(storage))
    assert copy == storage
    assert hash(copy) == hash(storage)
    assert SyncStorage(copy).get("a") == b"1"
    assert copy != MemoryStorage("/elsewhere")


@pytest.mark.parametrize("path", ["memory://x/y", "/x/y", "x/y/", "memory:///x/y"])
def test_one_root_has_one_name(path: str) -> None:
    assert MemoryStorage(path) == MemoryStorage("/x/y")
    assert MemoryStorage(path).url == "memory://x/y"
