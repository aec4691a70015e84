"""Filesystems without versions: how often they are asked; and places in which nothing changes."""

from __future__ import annotations

import json
import pickle
import random
import tarfile
import uuid
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from fsspec import AbstractFileSystem
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.registry import _registry

import shardstore
from shardstore.errors import InvalidInput, ReadOnly, StorageError
from shardstore.model.containers import Lru
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteSuffix
from shardstore.opening.open import open_storage
from shardstore.storage.base import Absent, Changed, Failed, Found, Read
from shardstore.storage.generic.links import is_static
from shardstore.storage.generic.storage import GenericStorage
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.static import StaticStorage
from shardstore.testing.storage_suite import SyncStorage, on_io_loop
from tests.harness.own_memory import OwnMemory

VALUES = np.arange(64 * 64, dtype="f4").reshape(64, 64)


class Plain(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A filesystem that tells sizes, and of versions only what ``traces`` holds; counts what it is asked."""

    protocol = "plain"
    cachable = False

    def __init__(self, name: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.objects: dict[str, bytes] = {}
        self.traces: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        self.calls.append(f"info {path}")
        path = self._strip_protocol(path)
        if path not in self.objects:
            raise FileNotFoundError(path)
        return {"name": path, "type": "file", "size": len(self.objects[path]), **self.traces.get(path, {})}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        self.calls.append(f"cat {path}")
        data = self.objects.get(self._strip_protocol(path))
        if data is None:
            raise FileNotFoundError(path)
        if end is not None and end > len(data):
            raise ValueError("416 past the end")  # as servers say
        return data[start:end]

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        self.calls.append(f"ls {path}")
        below = self._strip_protocol(path) + "/"
        files = [name for name in self.objects if name.startswith(below) and "/" not in name[len(below) :]]
        directories = {below + name[len(below) :].partition("/")[0] for name in self.objects if name.startswith(below)} - set(files)
        if not files and not directories:
            raise FileNotFoundError(path)
        entries = [{"name": name, "type": "file", "size": len(self.objects[name])} for name in files]
        return entries + [{"name": name, "type": "directory", "size": 0} for name in directories]

    def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        self.calls.append(f"pipe {path}")
        self.objects[self._strip_protocol(path)] = value

    def asked(self, of: str = "") -> list[str]:
        """Kinds of the calls about paths that end like this, since the last time."""
        calls, self.calls = self.calls, []
        return [call.partition(" ")[0] for call in calls if call.endswith(of)]


def plain() -> Plain:
    """Another than all before it, which its name says: stores on filesystems of equal options share what they know."""
    return Plain(name=uuid.uuid4().hex)


@pytest.fixture
def fs(tmp_path: Path) -> Plain:
    """With the array ``a``: 16 shards of 16 raw chunks."""
    array = zarr.create_array(
        str(tmp_path / "source"), name="a", shape=(64, 64), chunks=(4, 4), shards=(16, 16), dtype="f4", compressors=None, fill_value=0
    )
    array[...] = VALUES
    fs = plain()
    for path in (tmp_path / "source").rglob("*"):
        if path.is_file():
            fs.objects[f"p/{path.relative_to(tmp_path / 'source').as_posix()}"] = path.read_bytes()
    return fs


def read_chunks(array: Any, count: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        i, j = rng.randrange(16), rng.randrange(16)
        there = slice(4 * i, 4 * i + 4), slice(4 * j, 4 * j + 4)
        np.testing.assert_array_equal(array[there], VALUES[there])


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["threads", "loop"])
def test_one_request_a_chunk_where_nothing_changes(fs: Plain, through: str) -> None:
    given = fs if through == "threads" else AsyncFileSystemWrapper(fs)
    array = zarr.open_array(shardstore.open((given, "p"), static=True, metadata_ttl=0), path="a", mode="r")
    fs.asked()
    read_chunks(array, 200, 1)
    assert sorted(fs.asked()) == ["cat"] * (16 + 200) + ["info"] * 16  # each shard is looked at once, with its index
    read_chunks(array, 100, 2)
    assert fs.asked() == ["cat"] * 100


@pytest.mark.parametrize("with_versions", [False, True])
def test_one_look_a_chunk_where_something_may_change(fs: Plain, with_versions: bool) -> None:
    fs.traces = {path: {"etag": "1"} for path in fs.objects} if with_versions else {}
    array = zarr.open_array(shardstore.open((fs, "p"), metadata_ttl="10000w"), path="a", mode="r")
    read_chunks(array, 200, 1)
    fs.asked()
    read_chunks(array, 100, 2)
    assert fs.asked() == ["cat", "info"] * 100
    np.testing.assert_array_equal(array[...], VALUES)
    assert [call.partition(" ")[0] for call in fs.calls if "/c/" in call].count("info") == 16  # one a shard and round


def test_reads_of_one_object_share_their_look() -> None:
    fs = plain()
    fs.objects["p/a"] = b"0123456789"
    s = SyncStorage(GenericStorage(fs, "p"))
    reads = [Read("a", (ByteRange(i, i + 1), ByteSuffix(1))) for i in range(5)]
    outcomes = s.read_many(*reads, Read("b", (EVERYTHING,)))
    assert [tuple(map(bytes, found.buffers)) for found in outcomes if isinstance(found, Found)] == [(b"%d" % i, b"9") for i in range(5)]
    assert outcomes[5] == Absent()
    assert fs.asked("/a").count("info") == 2  # the first time, before and behind
    s.read_many(*reads)
    assert fs.asked() == ["cat"] * 10 + ["info"]


# -- changes are seen --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trace", ["etag", None])
def test_replaced_and_removed_objects_are_seen_without_static(trace: str | None) -> None:
    fs = plain()

    def store(data: bytes, version: int) -> None:
        fs.objects["p/a"] = data
        fs.traces["p/a"] = {} if trace is None else {trace: str(version)}

    s = SyncStorage(GenericStorage(fs, "p"))
    store(b"0123456789", 1)
    first = s.read("a", ByteSuffix(2))
    assert isinstance(first, Found)
    assert s.read("a", ByteRange(0, 10), generation=first.generation) != Changed()
    store(b"abc", 2)  # shorter, so that the filesystem refuses the range
    assert s.read("a", ByteRange(0, 10), generation=first.generation) == Changed()
    store(b"abcdef", 3)
    again = s.read("a", ByteSuffix(2))
    assert isinstance(again, Found)
    assert (bytes(again.buffers[0]), again.nbytes) == (b"ef", 6)
    assert s.read("a", EVERYTHING, generation=first.generation) == Changed()
    del fs.objects["p/a"]
    assert s.read("a", EVERYTHING) == s.read("a", ByteRange(0, 1), generation=again.generation) == Absent()
    store(b"gh", 4)
    assert s.get("a") == b"gh"


def test_object_that_changes_with_every_read_is_no_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = plain()
    s = SyncStorage(GenericStorage(fs, "p"))
    changes = version = 0
    plain_cat = fs.cat_file

    def cat_file(path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        nonlocal changes
        data: bytes = plain_cat(path, start, end)
        if changes:
            changes -= 1
            store()
        return data

    def store() -> None:
        nonlocal version
        version += 1
        fs.objects["p/a"] = bytes([version]) * 8
        fs.traces["p/a"] = {"etag": str(version)}

    store()
    monkeypatch.setattr(fs, "cat_file", cat_file)
    for count in range(3):
        changes = count
        found = s.read("a", ByteRange(0, 2), ByteSuffix(2))
        assert isinstance(found, Found)
        assert bytes(found.buffers[0]) == bytes(found.buffers[1])
    changes = 100
    assert s.read("a", ByteRange(0, 2), ByteSuffix(2)) == Changed()


@pytest.mark.filterwarnings("ignore:.*offers no compare-and-swap:RuntimeWarning")
def test_shards_rewritten_by_others_are_read_as_they_are_now(fs: Plain) -> None:
    reader = zarr.open_array(shardstore.open((fs, "p"), metadata_ttl=0), path="a", mode="r")
    read_chunks(reader, 20, 1)
    source = OwnMemory()
    written = shardstore.open((source, "/q"), chunks_per_shard=(4, 4))
    array = zarr.create_array(written, name="a", shape=(64, 64), chunks=(4, 4), dtype="f4", compressors=None, fill_value=0)
    array[...] = -VALUES
    array[0:4, 0:60] = 0  # erased: other sizes
    for path in source.find("/q"):
        fs.objects["p" + path.removeprefix("/q")] = source.cat_file(path)
    expected = -VALUES
    expected[0:4, 0:60] = 0
    np.testing.assert_array_equal(reader[0:16], expected[0:16])


def test_what_is_remembered_is_bounded() -> None:
    fs = plain()
    storage = GenericStorage(fs, "p", static=True)
    storage._seen = Lru(10)
    s = SyncStorage(storage)
    for i in range(20):
        fs.objects[f"p/{i}"] = b"1"
        assert s.get(str(i)) == b"1"
    assert len(storage._seen) == 10
    fs.asked()
    assert (s.get("19"), s.get("0")) == (b"1", b"1")
    assert fs.asked() == ["cat", "info", "cat"]


def test_object_replaced_against_the_word_is_an_error_where_it_shows() -> None:
    fs = plain()
    fs.objects["p/a"] = b"0123456789"
    s = SyncStorage(GenericStorage(fs, "p", static=True))
    assert s.get("a") == b"0123456789"
    fs.objects["p/a"] = b"012"
    (failed,) = s.read_many(Read("a", (EVERYTHING,)))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, StorageError)
    assert s.get("a") == b"012"  # and it is looked at again


# -- what is static ----------------------------------------------------------------------------------------------------


def test_archives_and_references_are_static_unless_told_otherwise(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"1")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "x", "x")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(tmp_path / "x", "x")
    (tmp_path / "refs.json").write_text(json.dumps({"x": [f"file://{tmp_path}/x"]}))
    for url in (f"zip://::file://{tmp_path}/a.zip", f"tar://::file://{tmp_path}/a.tar", f"reference::file://{tmp_path}/refs.json"):
        storage = open_storage(url)
        assert storage.capabilities.static, url
        assert SyncStorage(storage).get("x") == b"1"
        assert not open_storage(url, static=False).capabilities.static
        assert not open_storage(url, {"static": False}).capabilities.static
        cache = open_storage(f"simplecache::{url}", {"cache_storage": str(tmp_path / "cache")})
        assert cache.capabilities.static
        with pytest.raises(ReadOnly, match="for reading only"):
            SyncStorage(storage).put("y", b"1")
    assert not open_storage(f"simplecache::file://{tmp_path}", {"cache_storage": str(tmp_path / "cache")}).capabilities.static


@pytest.mark.parametrize(("protocol", "attribute"), [("git", "ref"), ("github", "root"), ("gist", "sha")])
def test_revisions_are_static_by_their_hash_only(protocol: str, attribute: str) -> None:
    fs = type("Repository", (Plain,), {"protocol": protocol})()
    for revision, expected in [("a" * 40, True), ("0" * 64, True), ("main", False), ("v1.0", False), ("abcdef1", False), (None, False)]:
        setattr(fs, attribute, revision)
        assert is_static(fs) is expected, revision
        assert GenericStorage(fs, "").capabilities.static is expected
    assert not is_static(plain())


def test_where_static_is_said(fs: Plain, tmp_path: Path) -> None:
    fsspec.register_implementation("plain", Plain, clobber=True)
    try:
        for options in ({"static": True}, {"plain": {"static": True}}):
            storage = open_storage("plain://x", options)
            assert isinstance(storage, GenericStorage)
            assert storage.static
        assert not open_storage("plain://x").capabilities.static
    finally:
        del _registry["plain"]
    assert shardstore.get_mapper((fs, "p"), static=True).engine.storage.capabilities.static
    assert shardstore.open(GenericStorage(fs, "p"), static=True).engine.storage.capabilities.static
    linked, _ = fsspec.core.url_to_fs(f"sharded::file://{tmp_path}", static=True)
    assert linked.engine.storage.capabilities.static
    with pytest.raises(InvalidInput, match="given twice"):
        open_storage(str(tmp_path), {"static": True}, static=False)
    for wrong in ("yes", 1, "true"):
        with pytest.raises(InvalidInput, match="neither True nor False"):
            shardstore.open((fs, "p"), static=wrong)  # type: ignore[arg-type]  # refused
        with pytest.raises(InvalidInput, match="neither True nor False"):
            open_storage(str(tmp_path), {"static": wrong})


def test_stores_share_an_engine_only_where_they_say_the_same(tmp_path: Path) -> None:
    one, other, again = (shardstore.open(tmp_path, static=static) for static in (True, None, True))
    assert one.engine is again.engine
    assert one.engine is not other.engine


def test_pickles_and_equality(fs: Plain, tmp_path: Path) -> None:
    said, unsaid = GenericStorage(fs, "p", static=True), GenericStorage(fs, "p")
    assert said != unsaid
    assert said == unsaid.with_static(True)
    local = open_storage(tmp_path, static=True)
    assert isinstance(local, StaticStorage)
    assert pickle.loads(pickle.dumps(local)) == local
    assert local != LocalStorage(tmp_path)
    assert pickle.loads(pickle.dumps(shardstore.open(tmp_path, static=True))).engine.storage.capabilities.static


# -- kinds that have versions ------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*offers no compare-and-swap:RuntimeWarning")
@pytest.mark.parametrize("place", ["local", "memory", "plain"])
def test_nothing_is_written_where_nothing_changes(place: str, tmp_path: Path) -> None:
    target: Any = {"local": str(tmp_path), "memory": f"memory://{tmp_path}", "plain": (plain(), "p")}[place]
    SyncStorage(open_storage(target)).put("a", b"1")
    storage = open_storage(target, static=True)
    s = SyncStorage(storage)
    assert s.get("a") == b"1"
    for change in (
        lambda: s.put("b", b"2"),
        lambda: s.put("b", b"2", IF_ABSENT),
        lambda: on_io_loop(storage.delete("a", UNCONDITIONAL)),
        lambda: on_io_loop(storage.delete_many(["a"])),
        lambda: on_io_loop(storage.copy("a", "b")),
    ):
        with pytest.raises(ReadOnly, match=r"static=True, which says .* open it without"):
            change()
    assert SyncStorage(open_storage(target)).get("a") == b"1"
    store = shardstore.open(target, static=True)
    with pytest.raises(ReadOnly, match="static=True"):
        zarr.create_array(store, name="x", shape=(4,), chunks=(2,), dtype="i4")
    assert SyncStorage(open_storage(target)).get("x/zarr.json") is None


def test_metadata_is_not_read_again_where_nothing_changes(tmp_path: Path) -> None:
    written = zarr.create_array(shardstore.open(tmp_path, chunks_per_shard=(4,)), name="a", shape=(64,), chunks=(4,), dtype="i4")
    written[...] = np.arange(64)
    for static, expected in ((True, 10), (None, 20)):
        store = shardstore.open(tmp_path, static=static, metadata_ttl=0, pipeline=False)
        array = zarr.open_array(store, path="a", mode="r")
        for i in range(4):
            array[16 * i]
        before = store.counters.requests
        for i in range(10):
            assert array[5 * i] == 5 * i
        assert store.counters.requests - before == expected
