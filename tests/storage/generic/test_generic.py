"""The storage of every filesystem that has none of its own, over filesystems of all sorts."""

from __future__ import annotations

import base64
import json
import os
import pickle
import threading
import time
import uuid
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.implementations.reference import ReferenceFileSystem

import shardstore
from shardstore.errors import AccessDenied, InvalidInput, ReadOnly, StorageError, Unsupported
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, Generation, IfGeneration
from shardstore.model.ranges import EVERYTHING, ByteOffset, ByteRange, ByteRequest, ByteSuffix
from shardstore.opening.open import open_storage
from shardstore.storage.base import ABSENT, CHANGED, ConditionFailed, Failed, Found, ObjectInfo, Read
from shardstore.storage.generic import calls as generic_calls
from shardstore.storage.generic.storage import GenericStorage
from shardstore.storage.inferred_versions import agrees, is_unversioned, unversioned, version_of
from shardstore.testing.storage_suite import StorageSuite, SyncStorage, on_io_loop, pieces, values
from tests.harness.own_memory import OwnMemory

pytestmark = pytest.mark.filterwarnings("ignore:the filesystem .* does not honour conditional writes")

S3Url = tuple[str, dict[str, Any]]
DATA = bytes(range(256)) * 4


class TickingLocal(LocalFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Local files whose writes are one step, and whose clock ticks for each: the kernel's does so every few milliseconds only."""

    protocol = ("ticking", "file")
    ticks = 0
    ticking = threading.Lock()

    def _publish(self, temp: str, path: str) -> None:
        with TickingLocal.ticking:
            TickingLocal.ticks += 1
            now = time.time_ns() // 10**9 * 10**9 - TickingLocal.ticks * 10**6
            os.utime(temp, ns=(now, now))
            os.replace(temp, path)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        temp = f"{os.path.dirname(path)}/.{uuid.uuid4().hex}"
        Path(temp).write_bytes(value)
        self._publish(temp, path)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        self.pipe_file(path2, Path(path1).read_bytes())


class Recording(OwnMemory):
    """Notes calls, and lets a test come between."""

    protocol = "recording"

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.before: Callable[[str], object] = lambda _call: None

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self.before(call)

    def info(self, path: str, **kwargs: Any) -> Any:
        self._note("info")
        return super().info(path, **kwargs)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> Any:
        self._note(f"cat {start} {end}")
        return super().cat_file(path, start, end, **kwargs)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        self._note("pipe")
        super().pipe_file(path, value, mode, **kwargs)

    def put_file(self, lpath: str, rpath: str, **kwargs: Any) -> None:
        self._note("put")
        super().put_file(lpath, rpath, **kwargs)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        self._note("cp")
        super().cp_file(path1, path2, **kwargs)

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        self._note("ls")
        return super().ls(path, detail, **kwargs)


@pytest.fixture
def fs() -> Recording:
    return Recording()


@pytest.fixture
def s(fs: Recording) -> SyncStorage:
    return SyncStorage(GenericStorage(fs, "/root"))


# -- the suite ---------------------------------------------------------------------------------------------------------


class TestRootOfMemory(StorageSuite):
    @pytest.fixture
    def storage(self) -> GenericStorage:
        return GenericStorage(OwnMemory(), "")


class TestAsynchronous(StorageSuite):
    """The same through coroutines."""

    @pytest.fixture
    def storage(self) -> GenericStorage:
        return GenericStorage(AsyncFileSystemWrapper(OwnMemory()), "/x/y")


class TestDirectories(StorageSuite):
    """Over real directories, which have to be made, and go when they are empty."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> GenericStorage:
        return GenericStorage(DirFileSystem(str(tmp_path), TickingLocal(skip_instance_cache=True)), "a/b")


# -- reading -----------------------------------------------------------------------------------------------------------


def test_calls_of_reads(fs: Recording, s: SyncStorage) -> None:
    generation = s.put("a", DATA)
    cases: list[tuple[tuple[ByteRequest, ...], list[str]]] = [
        ((EVERYTHING,), ["cat 0 1024"]),
        ((ByteSuffix(4),), ["cat 1020 1024"]),
        ((ByteRange(3, 5), ByteRange(7, 7), ByteOffset(1020), ByteRange(2000, 3000)), ["cat 3 5", "cat 1020 1024"]),
        ((), []),
    ]
    for ranges, expected in cases:
        fs.calls.clear()
        assert isinstance(s.read("a", *ranges, generation=generation), Found)
        assert fs.calls == [*expected, "info"]  # it was last looked at behind the write


def test_an_object_that_is_replaced_while_it_is_read(fs: Recording, s: SyncStorage) -> None:
    generation = s.put("a", b"old!")

    def replace_once(call: str) -> None:
        if call.startswith("cat"):
            fs.before = lambda _call: None
            MemoryFileSystem.pipe_file(fs, "/root/a", b"new!")

    fs.before = replace_once
    assert s.read("a", EVERYTHING, generation=generation) == CHANGED
    s.put("a", b"old!")
    fs.before = replace_once
    assert s.get("a") == b"new!"
    fs.before = lambda call: MemoryFileSystem.pipe_file(fs, "/root/a", b"????") if call.startswith("cat") else None
    assert s.read("a", EVERYTHING) == CHANGED  # for ever


def test_missing_bytes_are_an_error(fs: Recording, s: SyncStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    s.put("a", DATA)
    monkeypatch.setattr(Recording, "cat_file", lambda *_args, **_kwargs: b"123")
    with pytest.raises(StorageError, match=r"'a'.*gave 3 bytes for \[10, 20\), and says that it has 1024"):
        s.read("a", ByteRange(10, 20))


@pytest.mark.parametrize("wrap", [lambda fs: fs, AsyncFileSystemWrapper])
def test_filesystems_that_do_not_tell_sizes_or_versions(fs: Recording, monkeypatch: pytest.MonkeyPatch, wrap: Any) -> None:
    def info(self: Recording, path: str, **kwargs: Any) -> Any:
        return {**MemoryFileSystem.info(self, path, **kwargs), "size": None, "created": None}

    monkeypatch.setattr(Recording, "info", info)
    s = SyncStorage(GenericStorage(wrap(fs), "/root"))
    generation = s.put("a", DATA)
    assert is_unversioned(generation)
    for pinned in (None, generation):
        found = s.read("a", ByteRange(3, 5), ByteSuffix(2), ByteOffset(5000), generation=pinned)
        assert isinstance(found, Found)
        assert (found.nbytes, values(found)) == (1024, [DATA[3:5], DATA[-2:], b""])
    stat = s.stat("a")
    assert stat == ObjectInfo("a", 1024, None)
    assert s.read("a", EVERYTHING, generation=s.put("a", b"new")) != CHANGED
    assert s.read("a", EVERYTHING, generation=generation) == CHANGED  # another size, at least
    assert s.read("b", EVERYTHING) == ABSENT


def test_what_a_buffered_file_reads_ahead_is_not_fetched(tmp_path: Path) -> None:
    fetched: list[tuple[int, int]] = []

    class Buffered(fsspec.spec.AbstractBufferedFile):  # type: ignore[misc]  # fsspec ships no types
        def _fetch_range(self, start: int, end: int) -> bytes:
            fetched.append((start, end))
            return DATA[start:end]

    class Remote(fsspec.spec.AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
        protocol = "remote"

        def info(self, path: str, **_: Any) -> Any:
            return {"name": path, "size": len(DATA), "type": "file", "ETag": "1"}

        def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
            return Buffered(self, path, mode, **kwargs)

    s = SyncStorage(GenericStorage(Remote(), "/root"))
    found = s.read("a", ByteSuffix(16), ByteRange(2, 4))
    assert isinstance(found, Found)
    assert values(found) == [DATA[-16:], DATA[2:4]]
    assert fetched == [(2, 4), (1008, 1024)]


def test_errors_of_reads(fs: Recording, s: SyncStorage) -> None:
    s.put("a", DATA)
    for raised, error, match in [
        (PermissionError("no"), AccessDenied, "'a' in .*access was denied"),
        (OSError("ftp://me:secret@host is down"), StorageError, "ftp://host is down"),
        (RuntimeError(), StorageError, "RuntimeError"),
        (NotImplementedError("cat"), Unsupported, "cannot do that"),
    ]:

        def fail(_call: str, raised: Exception = raised) -> None:
            raise raised

        fs.before = fail
        (outcome,) = s.read_many(Read("a", (EVERYTHING,)))
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, error)
        assert outcome.error.__cause__ is raised
        with pytest.raises(error, match=match) as caught:
            s.read("a", EVERYTHING)
        assert "secret" not in str(caught.value)
        for attempt in (lambda: s.stat("a"), lambda: s.children()):
            with pytest.raises(error):
                attempt()


def test_filesystems_that_are_not_safe_in_threads_get_one_call_at_once(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(50):
            archive.writestr(f"{i}", bytes([i]) * 100_000)
    url = f"zip://::file://{tmp_path}/a.zip"
    for storage in (open_storage(url), open_storage(f"simplecache::{url}")):
        outcomes = on_io_loop(storage.read([Read(f"{i}", (ByteRange(50_000, 50_002), ByteSuffix(3), ByteRange(0, 1))) for i in range(50)]))
        for i, outcome in enumerate(outcomes):
            assert isinstance(outcome, Found), outcome
            assert values(outcome) == [bytes([i]) * 2, bytes([i]) * 3, bytes([i])]


# -- versions ----------------------------------------------------------------------------------------------------------


def test_versions_from_metadata() -> None:
    def version(**info: Any) -> Generation | None:
        return version_of(info, 7)

    assert version(name="a", size=7, type="file") is None
    assert version(mtime=None, ETag="") is None
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"ETag": "1"}, {"ETag": "2"}),
        ({"mtime": 1.0}, {"mtime": 2.0}),
        ({"mtime": 1.0, "ino": 1}, {"mtime": 1.0, "ino": 2}),
        ({"Last-Modified": "x"}, {"Last-Modified": "y"}),
        ({"CRC": 1}, {"CRC": 2}),
    ]
    for a, b in pairs:
        assert version(**a) is not None
        assert version(**a) == version(**a)
        assert version(**a) != version(**b)
        assert version_of(a, 7) != version_of(a, 8)
    assert version(etag="1", mtime=1) == version(ETag="1", mtime=2)
    moment = OwnMemory()
    moment.pipe_file("/a", b"1")
    created = moment.info("/a")["created"]
    assert version(created=created) == version(created=created.timestamp())


def test_objects_without_a_version_agree_by_size() -> None:
    assert unversioned(7) != unversioned(7)
    assert agrees(unversioned(7), unversioned(7))
    assert not agrees(unversioned(7), unversioned(8))
    assert not agrees(unversioned(7), Generation("mtime=1-7"))
    assert agrees(Generation("mtime=1-7"), Generation("mtime=1-7"))


# -- writing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda fs: fs, AsyncFileSystemWrapper])
def test_large_bodies_go_through_a_file(fs: Recording, wrap: Any) -> None:
    storage = GenericStorage(wrap(fs), "/root")
    storage.spool_bytes = 100
    s = SyncStorage(storage)
    s.put("a", DATA[:100])
    s.put("b", DATA[:101])
    s.write("c", pieces(DATA, DATA), 2048)
    assert [call for call in fs.calls if call in ("pipe", "put")] == ["pipe", "put", "put"]
    assert [s.get(key) for key in "abc"] == [DATA[:100], DATA[:101], DATA * 2]
    with pytest.raises(InvalidInput):
        s.write("c", pieces(DATA), 2048)
    assert s.get("c") == DATA * 2


def test_conditions_are_checked_first_and_that_is_said_once(fs: Recording, s: SyncStorage) -> None:
    with pytest.warns(RuntimeWarning, match=r"the filesystem 'recording' does not honour.*one writer"):
        first = s.put("a", b"1", IF_ABSENT)
    second = s.put("a", b"2", IfGeneration(first))
    for condition in (IF_ABSENT, IfGeneration(first)):
        with pytest.raises(ConditionFailed):
            s.put("a", b"3", condition)
    with pytest.raises(ConditionFailed):
        s.delete("a", IfGeneration(first))
    assert s.get("a") == b"2"
    assert s.delete("a", IfGeneration(second))
    with pytest.raises(ConditionFailed):
        s.put("a", b"3", IfGeneration(second))


def test_the_version_of_another_writer_is_not_taken_for_ones_own(fs: Recording, s: SyncStorage) -> None:
    def another(call: str) -> None:
        if call == "info":
            fs.before = lambda _call: None
            MemoryFileSystem.pipe_file(fs, "/root/a", b"longer")

    fs.before = another
    mine = s.put("a", b"mine")
    assert is_unversioned(mine)
    assert s.read("a", EVERYTHING, generation=mine) == CHANGED


def test_errors_of_writes(fs: Recording, s: SyncStorage, tmp_path: Path) -> None:
    for raised, error, match in [
        (PermissionError("no"), AccessDenied, "access was denied"),
        (OSError(30, "Read-only file system"), ReadOnly, "reading only"),
        (OSError("this filesystem is read-only"), ReadOnly, "reading only"),
        (NotImplementedError(), Unsupported, "cannot do that"),
        (ValueError("x"), StorageError, "ValueError: x"),
    ]:

        def fail(call: str, raised: Exception = raised) -> None:
            if call == "pipe":
                raise raised

        fs.before = fail
        with pytest.raises(error, match=match):
            s.put("a", b"1")
    local = SyncStorage(GenericStorage(LocalFileSystem(skip_instance_cache=True), str(tmp_path)))
    local.put("a", b"1")
    for key in ("a/b", "a/b/c"):
        with pytest.raises(StorageError, match="part of the path above"):
            local.put(key, b"1")
    local.put("d/e", b"1")
    with pytest.raises(StorageError, match="a directory has this name"):
        local.put("d", b"1")
    with pytest.raises(InvalidInput):
        local.put("", b"1")


def test_directories_go_when_they_are_empty_but_never_the_root(tmp_path: Path) -> None:
    s = SyncStorage(GenericStorage(LocalFileSystem(skip_instance_cache=True), str(tmp_path / "root")))
    s.put("a/b/c", b"1")
    s.put("a/d", b"1")
    s.delete("a/b/c")
    assert os.listdir(tmp_path / "root" / "a") == ["d"]
    s.put("a/b/c", b"1")
    s.delete_many("a/b/c", "a/d")
    assert os.listdir(tmp_path / "root") == []


@pytest.mark.parametrize("raised", [FileExistsError, FileNotFoundError])
def test_a_directory_that_is_removed_while_it_is_made(tmp_path: Path, raised: type[OSError]) -> None:
    class Racing(LocalFileSystem):  # type: ignore[misc]  # fsspec ships no types
        """Somebody else makes the directory a moment earlier, and removes it a moment later."""

        calls = 0

        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            self.calls += 1
            if self.calls == 1:
                raise raised(path)
            super().makedirs(path, exist_ok)

    fs = Racing(skip_instance_cache=True)
    s = SyncStorage(GenericStorage(fs, str(tmp_path / "root")))
    s.put("a/b", b"1")
    assert (fs.calls, s.get("a/b")) == (2, b"1")


def test_other_filesystems_keep_empty_directories(tmp_path: Path) -> None:
    class Unsafe(LocalFileSystem):  # type: ignore[misc]  # fsspec ships no types
        protocol = "webdav"  # whose rmdir takes all that is below

        def rmdir(self, path: str) -> None:
            raise AssertionError(path)

    s = SyncStorage(GenericStorage(Unsafe(skip_instance_cache=True), str(tmp_path)))
    s.put("a/b", b"1")
    assert s.delete("a/b")
    assert s.children() == ([], ["a/"])


def test_no_buckets_are_made(tmp_path: Path) -> None:
    class Bucket(LocalFileSystem):  # type: ignore[misc]  # fsspec ships no types
        protocol = ("abfs", "az")

    s = SyncStorage(GenericStorage(Bucket(skip_instance_cache=True), str(tmp_path / "bucket")))
    with pytest.raises(StorageError, match="FileNotFoundError"):
        s.put("a", b"1")
    assert os.listdir(tmp_path) == []


def test_copies_stay_within_the_filesystem(fs: Recording, s: SyncStorage) -> None:
    generation = s.put("a", DATA)
    fs.calls.clear()
    copied = s.copy("a", "b/c")
    assert copied == getattr(s.stat("b/c"), "generation", None)
    assert "cp" in fs.calls
    assert not [call for call in fs.calls if call.startswith(("cat", "pipe", "put"))]
    assert s.copy("a", "a") == generation
    assert s.get("b/c") == DATA
    fs.before = lambda call: exec("raise NotImplementedError") if call == "cp" else None
    s.put("a", b"new")
    assert s.copy("a", "b/c") is not None
    assert s.get("b/c") == b"new"
    versions = iter(range(1000))
    fs.before = lambda call: MemoryFileSystem.pipe_file(fs, "/root/a", b"%04d" % next(versions)) if call.startswith(("cp", "cat")) else None
    with pytest.raises(StorageError, match="replaced again and again"):
        s.copy("a", "b/c")


def test_require_atomic(fs: Recording) -> None:
    store = shardstore.open((fs, "/root"), require_atomic=True, chunks_per_shard=(2,))
    array = zarr.create_array(store, shape=(4,), chunks=(1,), dtype="i4")
    with pytest.raises(Unsupported, match=r"compare-and-swap.*require_atomic"):
        array[:] = 1
    array = zarr.open_array(shardstore.open((fs, "/root")))
    with pytest.warns(RuntimeWarning, match="one writer"):
        array[:] = [1, 2, 3, 4]
    array[1] = 7
    assert np.array_equal(array[:], [1, 7, 3, 4])
    assert sorted(MemoryFileSystem.find(fs, "/root")) == ["/root/c/0", "/root/c/1", "/root/zarr.json"]


# -- listing -----------------------------------------------------------------------------------------------------------


def test_what_may_not_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s = SyncStorage(GenericStorage(LocalFileSystem(skip_instance_cache=True), str(tmp_path)))
    s.put("a/b", b"1")
    ls = LocalFileSystem.ls

    def denied(self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        if path.endswith("/a"):
            raise PermissionError(path)
        return ls(self, path, *args, **kwargs)

    monkeypatch.setattr(LocalFileSystem, "ls", denied)
    with pytest.raises(AccessDenied):
        s.keys()
    with pytest.raises(AccessDenied):
        s.children("a/")


def test_listings_are_not_remembered() -> None:
    class Forgetful(OwnMemory):
        """Answers out of its cache until that is dropped."""

        protocol = "forgetful"

        def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
            if path not in self.dircache:
                self.dircache[path] = super().ls(path, detail=True, **kwargs)
            return self.dircache[path]

        def invalidate_cache(self, path: str | None = None) -> None:
            self.dircache.clear()

    fs = Forgetful()
    s = SyncStorage(GenericStorage(fs, "/root"))
    s.put("a", b"1")
    assert s.children() == (["a"], [])
    fs.pipe_file("/root/b", b"1")
    assert s.children() == (["a", "b"], [])


# -- identity ----------------------------------------------------------------------------------------------------------


def test_pickles_and_equality(tmp_path: Path) -> None:
    storage = GenericStorage(
        fsspec.filesystem("simplecache", target_protocol="memory", cache_storage=str(tmp_path)), "/x", "simplecache::memory://x"
    )
    copy = pickle.loads(pickle.dumps(storage))
    assert copy == storage
    assert hash(copy) == hash(storage)
    assert copy.url == storage.url == "simplecache::memory://x"
    assert copy != GenericStorage(storage.fs, "/y")
    assert (storage.kind, storage.capabilities.pinned_reads) == ("generic", False)
    assert "memory://x" in repr(storage)


def test_places_that_look_alike_are_told_apart(tmp_path: Path) -> None:
    def references(value: str) -> Any:
        return ReferenceFileSystem({"version": 1, "refs": {"a": value}}, skip_instance_cache=True)

    mine, other = OwnMemory(), OwnMemory()
    assert GenericStorage(mine, "/x").identity == GenericStorage(mine, "x/").identity
    assert GenericStorage(mine, "/x").identity != GenericStorage(mine, "/y").identity
    assert GenericStorage(mine, "/x").identity != GenericStorage(other, "/x").identity
    assert GenericStorage(references("1"), "").identity == GenericStorage(references("1"), "").identity
    assert GenericStorage(references("1"), "").identity != GenericStorage(references("2"), "").identity


def test_urls(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"version": 1, "refs": {}}')
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x/y", b"1")
    archive_fs = fsspec.filesystem("zip", fo=f"{tmp_path}/a.zip")
    for storage, url in [
        (GenericStorage(archive_fs, "x"), f"zip://x::file://{tmp_path}/a.zip"),
        (GenericStorage(fsspec.filesystem("simplecache", fs=archive_fs), ""), f"simplecache::zip://::file://{tmp_path}/a.zip"),
        (GenericStorage(DirFileSystem("x", archive_fs), ""), f"zip://x::file://{tmp_path}/a.zip"),
        (GenericStorage(OwnMemory(), "/x/y"), "memory:///x/y"),
        (open_storage(f"reference::file://{tmp_path}/a.json"), f"reference::file://{tmp_path}/a.json"),
        (open_storage(f"zip://x::file://{tmp_path}/a.zip"), f"zip://x::file://{tmp_path}/a.zip"),
    ]:
        assert storage.url == url


# -- stored hierarchies behind archives, references and caches -----------------------------------------------------------

EXPECTED = np.arange(60 * 40, dtype="i4").reshape(60, 40)


def write_hierarchy(url: str, options: dict[str, Any] | None = None) -> None:
    store = shardstore.open(url, chunks_per_shard={"ct": (4, 2)}, storage_options=options)
    root = zarr.create_group(store, attributes={"name": "ünïcødé"})
    root.create_array("ct", shape=EXPECTED.shape, chunks=(5, 10), dtype="i4")[:] = EXPECTED
    root.create_array("plain", shape=(4,), chunks=(2,), dtype="i4")[:] = [1, 2, 3, 4]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    write_hierarchy(f"{tmp_path}/data.zarr")
    return tmp_path / "data.zarr"


def check_view(target: Any, options: dict[str, Any] | None = None, *, message: str = "reading only") -> None:
    """Chunks, values, listing and refusal through the view of a hierarchy that cannot be written."""
    store = shardstore.open(target, storage_options=options)
    group = zarr.open_group(store, mode="r")
    assert group.attrs["name"] == "ünïcødé"
    assert sorted(name for name, _ in group.members()) == ["ct", "plain"]
    array = group["ct"]
    assert isinstance(array, zarr.Array)
    assert (array.chunks, array.shards) == ((5, 10), None)
    assert np.array_equal(array[:], EXPECTED)
    assert np.array_equal(array[7:33:3, 5:25], EXPECTED[7:33:3, 5:25])
    assert array.nchunks_initialized == 48
    with pytest.raises(ReadOnly, match=message), warnings.catch_warnings(action="ignore"):  # of what no storage of this kind can
        zarr.open_array(store, path="ct")[0, 0] = 1
    with pytest.raises(ReadOnly, match=message):
        zarr.create_group(store, path="new")


def archive_of(stored: Path, compression: int) -> Path:
    path = stored.parent / "data.zip"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for file in sorted(stored.rglob("*")):
            if file.is_file() and not file.name.startswith("."):
                archive.write(file, f"in/{file.relative_to(stored)}")
    return path


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip(stored: Path, compression: int) -> None:
    path = archive_of(stored, compression)
    check_view(f"zip://in::file://{path}")
    check_view((fsspec.filesystem("zip", fo=str(path)), "in"))


def references_of(stored: Path) -> dict[str, Any]:
    """References of all forms: a range of a file, a whole file, text, and base64."""
    refs: dict[str, Any] = {}
    whole = stored.parent / "all.bin"
    with whole.open("wb") as file:
        for path in sorted(stored.rglob("*")):
            key = str(path.relative_to(stored))
            if not path.is_file() or path.name.startswith("."):
                continue
            data = path.read_bytes()
            if key == "zarr.json":
                refs[key] = data.decode()
            elif key.startswith("plain/c/"):
                refs[key] = "base64:" + base64.b64encode(data).decode()
            elif key.endswith(("/0/0", "zarr.json")):
                refs[key] = [f"file://{path}"]
            else:
                refs[key] = [f"file://{whole}", file.tell(), len(data)]
                file.write(data)
    return {"version": 1, "refs": refs}


def test_references(stored: Path) -> None:
    references = references_of(stored)
    kinds = {str(len(value)) if isinstance(value, list) else value[:7] for value in references["refs"].values()}
    assert {"1", "3", "base64:"} < kinds
    path = stored.parent / "refs.json"
    path.write_text(json.dumps(references))
    check_view(f"reference::file://{path}")
    check_view((fsspec.filesystem("reference", fo=references, skip_instance_cache=True), ""))
    s = SyncStorage(open_storage(f"reference::file://{path}"))
    for key in references["refs"]:
        data = (stored / key).read_bytes()
        assert s.get(key) == data
        found = s.read(key, ByteSuffix(4), ByteRange(1, 3))
        assert isinstance(found, Found)
        assert values(found) == [data[-4:], data[1:3]]
        assert [info.nbytes for info in s.infos(key) if info.key == key] == [len(data)]
    assert s.keys() == sorted(references["refs"])
    assert s.keys("plain/") == sorted(key for key in references["refs"] if key.startswith("plain/"))


def test_references_to_what_is_gone_are_errors(stored: Path) -> None:
    references = references_of(stored)
    (stored.parent / "all.bin").unlink()
    s = SyncStorage(GenericStorage(fsspec.filesystem("reference", fo=references, skip_instance_cache=True), ""))
    key = next(key for key, value in references["refs"].items() if len(value) == 3)
    with pytest.raises(StorageError, match="ReferenceNotReachable"):
        s.get(key)


def test_references_on_s3(s3_url: S3Url) -> None:
    url, options = s3_url
    write_hierarchy(url, options)
    s3 = fsspec.filesystem("s3", **options)
    root = s3._strip_protocol(url)
    refs = {path.removeprefix(f"{root}/"): [f"s3://{path}", 0, info["size"]] for path, info in s3.find(root, detail=True).items()}
    s3.pipe_file(f"{root}-refs.json", json.dumps({"version": 1, "refs": refs}).encode())
    check_view(
        f"reference::{url}-refs.json",
        {"reference": {"remote_protocol": "s3", "remote_options": options}, "s3": options},
    )


def test_a_simple_cache_over_s3(s3_url: S3Url, tmp_path: Path) -> None:
    url, options = s3_url
    write_hierarchy(url, options)
    all_options = {"s3": options, "simplecache": {"cache_storage": str(tmp_path)}}
    check_view(f"simplecache::{url}", all_options)
    assert os.listdir(tmp_path)
    # What was read stays as it is, in spite of what happens below: index and chunks of one version.
    with fsspec.open(f"{url}/ct/c/0/0", "wb", **options) as file:
        file.write(b"something else")
    check_view(f"simplecache::{url}", all_options)


@pytest.mark.filterwarnings("ignore:.*_io.BufferedRandom:pytest.PytestUnraisableExceptionWarning")  # fsspec's block cache leaves it open
@pytest.mark.filterwarnings("ignore:unclosed file <_io.BufferedRandom:ResourceWarning")
@pytest.mark.parametrize("protocol", ["filecache", "blockcache"])
def test_other_caches(stored: Path, protocol: str) -> None:
    check_view(f"{protocol}::file://{stored}", {protocol: {"cache_storage": str(stored.parent / "cache")}})


def test_no_two_readers_store_an_object_in_a_cache_at_once(tmp_path: Path) -> None:
    """What another thread is still storing looks to a simple cache as if it were stored."""
    held: list[bool] = []

    class Watching(Recording):
        protocol = "watching"

        def get_file(self, rpath: str, lpath: str, **kwargs: Any) -> None:
            held.append(any(lock.locked() for lock in generic_calls._locks[cache]))
            super().get_file(rpath, lpath, **kwargs)

    below = Watching()
    for i in range(20):
        below.pipe_file(f"/root/{i}", DATA)
    cache = fsspec.filesystem("simplecache", fs=below, cache_storage=str(tmp_path))
    outcomes = on_io_loop(GenericStorage(cache, "/root").read([Read(f"{i % 20}", (ByteSuffix(4),)) for i in range(100)]))
    assert [values(found) for found in outcomes if isinstance(found, Found)] == [[DATA[-4:]]] * 100
    assert held == [True] * 20


def test_denied_access_is_not_absence_to_a_cache(fs: Recording, tmp_path: Path) -> None:
    class Denying(Recording):
        protocol = "denying"

        def info(self, path: str, **kwargs: Any) -> Any:
            raise PermissionError(path)

    s = SyncStorage(GenericStorage(fsspec.filesystem("simplecache", fs=Denying(), cache_storage=str(tmp_path)), "/x"))
    with pytest.raises(AccessDenied):
        s.get("a")


def test_writing_to_what_cannot_be_written(stored: Path, tmp_path: Path) -> None:
    archive = archive_of(stored, zipfile.ZIP_STORED)
    references = fsspec.filesystem("reference", fo=references_of(stored), skip_instance_cache=True)
    for storage, key in [
        (GenericStorage(fsspec.filesystem("zip", fo=str(archive)), "in"), "zarr.json"),
        (GenericStorage(references, ""), "zarr.json"),
        (GenericStorage(fsspec.filesystem("simplecache", target_protocol="file"), str(stored)), "zarr.json"),
    ]:
        s = SyncStorage(storage)
        before = s.get(key)
        attempts: list[tuple[Callable[..., object], tuple[Any, ...]]] = [
            (s.put, ("zarr.json", b"1")),
            (s.put, ("new", b"1", IF_ABSENT)),
            (s.copy, ("zarr.json", "new")),
            (s.delete, ("zarr.json",)),
            (s.delete_many, ("zarr.json",)),
        ]
        for attempt, arguments in attempts:
            with pytest.raises(ReadOnly, match="reading only"):
                attempt(*arguments)
        with pytest.raises(Unsupported):
            s.compose("zarr.json", Generation("x"), [], UNCONDITIONAL)
        assert s.rename_prefix("ct", "new") is False
        s.delete_many()
        assert s.get(key) == before
        assert s.get("new") is None


def test_archives_that_are_being_written_are_refused(tmp_path: Path) -> None:
    zipfile.ZipFile(tmp_path / "a.zip", "w").close()
    for mode in ("w", "a"):
        with pytest.raises(InvalidInput, match="make an archive of it"):
            GenericStorage(fsspec.filesystem("zip", fo=f"{tmp_path}/{mode}.zip", mode=mode, skip_instance_cache=True), "")


def test_forked_processes_read_archives_for_themselves(stored: Path) -> None:
    """Parent and child share the position in an open file; reading through it at once would mix them up."""
    storage = open_storage(f"zip://in::file://{archive_of(stored, zipfile.ZIP_STORED)}")
    assert isinstance(storage, GenericStorage)
    child = os.fork()
    if child == 0:
        try:
            again = open_storage((storage.fs, "in"))
            assert isinstance(again, GenericStorage)
            os._exit(0 if again.fs is not storage.fs and SyncStorage(again).get("zarr.json") is not None else 1)
        except BaseException:  # noqa: BLE001  # a child of pytest's must not go on as pytest
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
