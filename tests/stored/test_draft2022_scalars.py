"""The one chunk of a 0-d array, which the draft calls ``c`` and zarr-python 2.18 calls ``c0``."""

from __future__ import annotations

import uuid

import pytest

from shardstore.errors import InvalidInput
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, Generation, IfGeneration
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Absent, Changed, ConditionFailed
from shardstore.storage.memory import MemoryStorage
from shardstore.stored.draft2022.documents import IMPLICIT
from shardstore.stored.draft2022.storage import DraftStorage
from shardstore.testing.storage_suite import SyncStorage
from tests.stored.hierarchies import array, draft_array, fill, generation_of


@pytest.mark.parametrize(("chunks_per_shard", "written"), [([], "c"), ([1], "c0"), (None, "c0")])
@pytest.mark.parametrize("path", ["", "x"])
def test_the_chunk_of_a_0d_array(path: str, chunks_per_shard: list[int] | None, written: str, i: SyncStorage, s: SyncStorage) -> None:
    document, key = (f"meta/root/{path}.array.json", f"{path}/c") if path else ("meta/root.array.json", "c")
    data = f"data/root/{path}/".replace("//", "/")
    i.put(document, draft_array([], [], chunks_per_shard))
    assert s.read(key, EVERYTHING) == Absent()
    for name in ("c", "c0"):
        i.put(data + name, b"1" + name.encode())
        assert s.get(key) == b"1" + name.encode()
        assert s.keys(key) == [key]
        assert key in s.children(f"{path}/".lstrip("/"))[0]
        assert s.keys(f"{key}/") == []
        assert s.children(f"{key}/") == ([], [])
        stored = i.stat(data + name)
        assert stored is not None
        info = s.stat(key)
        assert info is not None
        assert (info.key, info.generation) == (key, stored.generation)
        new = s.put(key, b"2", IfGeneration(stored.generation or IMPLICIT))  # where it was found
        assert i.get(data + name) == b"2"
        with pytest.raises(ConditionFailed):
            s.put(key, b"3", IF_ABSENT)
        assert s.read(key, EVERYTHING, generation=stored.generation) == Changed()
        assert s.delete(key, IfGeneration(new))
        assert i.keys(data) == []
    s.put(key, b"new", IF_ABSENT)
    assert i.keys(data) == [data + written]
    i.put(data + "c", b"1c")
    i.put(data + "c0", b"1c0")
    assert s.get(key) == b"1" + written.encode()
    assert [info.generation for info in s.infos(key)] == [generation_of(s, key)]
    s.copy(key, "copied")
    assert s.get("copied") == b"1" + written.encode()
    assert s.delete(key)
    assert i.keys(f"{data}c") == ([f"{data}copied"] if not path else [])
    fill(i, {data + "c": b"", data + "c0": b""})
    s.delete_many(key, "nothing")
    assert i.keys(f"{data}c") == ([f"{data}copied"] if not path else [])


def test_the_key_of_a_1d_array_never_reaches_a_0d_one(i: SyncStorage, s: SyncStorage) -> None:
    fill(i, {"meta/root/x.array.json": draft_array([], []), "data/root/x/c0": b"chunk"})
    with pytest.raises(InvalidInput, match="'x/c/0' has no counterpart"):
        s.put("x/c/0", b"2")
    assert s.delete("x/c/0") is False
    s.delete_many("x/c/0")
    assert s.get("x/c") == b"chunk"


@pytest.mark.parametrize("by_copy", [False, True])
def test_the_chunk_of_a_0d_array_that_was_stored_before_its_document(by_copy: bool, i: SyncStorage, s: SyncStorage) -> None:
    """zarr-python 2.18 looks at ``c0`` only."""
    fill(i, {"meta/root/old.array.json": draft_array([], [], [1]), "meta/root/draft.array.json": draft_array([], [], [])})
    for path in ("x", "y"):
        s.put(f"{path}/c", b"early")
    if by_copy:
        s.copy("old/zarr.json", "x/zarr.json")
    else:
        s.put("x/zarr.json", array([], [], ()), IF_ABSENT)
    s.copy("draft/zarr.json", "y/zarr.json")  # whose author looks at "c"
    assert i.keys("data/") == ["data/root/x/c0", "data/root/y/c"]
    assert (s.get("x/c"), s.get("y/c")) == (b"early", b"early")
    i.put("data/root/x/c", b"another")
    s.put("x/zarr.json", array([], [], (), attributes={"a": 1}))
    assert i.keys("data/root/x") == ["data/root/x/c", "data/root/x/c0"]  # only a new document settles that


def test_a_chunk_that_is_written_while_it_settles_is_not_lost() -> None:
    class Overtaken(MemoryStorage):
        async def copy(self, source: str, target: str) -> Generation | None:
            copied = await super().copy(source, target)
            await self.write(source, [b"newer"], 5, UNCONDITIONAL)
            return copied

    inner = Overtaken(f"/overtaken-{uuid.uuid4().hex}")
    s = SyncStorage(DraftStorage(inner))
    s.put("x/c", b"older")
    s.put("x/zarr.json", array([], []))
    assert s.get("x/c") == b"newer"


def test_without_a_0d_array_c_is_a_key_like_others(i: SyncStorage, s: SyncStorage) -> None:
    fill(i, {"meta/root/x.array.json": draft_array([4], [2]), "data/root/x/c0": b"first"})
    s.put("x/c", b"foreign")
    s.put("y/c", b"foreign too")
    assert i.get("data/root/x/c") == b"foreign"
    assert (s.get("x/c"), s.get("x/c/0"), s.get("y/c")) == (b"foreign", b"first", b"foreign too")
    assert s.keys("x/c") == ["x/c", "x/c/0"]
    assert s.delete("x/c")
    assert s.keys("x/c") == ["x/c/0"]
    s.delete_many("x/c/0", "y/c")
    assert i.keys("data/") == []
