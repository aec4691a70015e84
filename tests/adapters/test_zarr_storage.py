"""Stores of zarr-python as underlying storage: the contract, verify, census and pack over them, icechunk of both majors, and refusals."""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import zarr
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem
from obstore.store import MemoryStore as ObstoreMemory
from zarr.abc.store import Store
from zarr.core.buffer import cpu, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, LoggingStore, MemoryStore, ObjectStore, StorePath, WrapperStore, ZipStore

import shardstore
from shardstore.adapters.zarr_storage import ZarrStorage
from shardstore.errors import AccessDenied, Conflict, Incomplete, InvalidInput, ReadOnly, StorageError, Unsupported
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, IfGeneration
from shardstore.model.ranges import EVERYTHING, ByteOffset, ByteRange, ByteSuffix
from shardstore.opening.location import location_of
from shardstore.opening.open import open_storage
from shardstore.storage.abilities import VersionedByRange
from shardstore.storage.base import ABSENT, CHANGED, ConditionFailed, Failed, Found, Read
from shardstore.storage.requests.ranged_reads import TooMuch
from shardstore.testing.storage_suite import StorageSuite, SyncStorage, on_io_loop, values
from tests.harness.own_memory import OwnMemory

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(writers that share|one writer|conditional).*:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:.*ObjectStore.*"),
]

SMALL = np.arange(40 * 30, dtype="i4").reshape(40, 30)
BIG = bytes(range(256)) * 1024  # 256 KiB: read in ranges


def filled(store: Any) -> Any:
    """The store, with an array of plain chunks and one of shards, in a group."""
    group = zarr.open_group(store, mode="w", zarr_format=3)
    group.create_array("a", shape=SMALL.shape, chunks=(5, 5), dtype="i4")[:] = SMALL
    group.create_array("g/b", shape=(64,), chunks=(4,), shards=(16,), dtype="f8")[:50] = np.arange(50)
    return store


def check_values(store: Any) -> None:
    group = zarr.open_group(store, mode="r")
    np.testing.assert_array_equal(group["a"][:], SMALL)  # type: ignore[index]  # an array
    np.testing.assert_array_equal(group["g/b"][:50], np.arange(50))  # type: ignore[index]  # an array
    np.testing.assert_array_equal(group["g/b"][50:], np.zeros(14))  # type: ignore[index]  # an array


def same_census(one: Any, other: Any) -> bool:
    """Return whether two censuses say the same of all arrays."""
    facts = [
        [[np.asarray(getattr(array, name)).tolist() for name in array.__slots__] for array in census.arrays] for census in (one, other)
    ]
    return bool(facts[0]) and facts[0] == facts[1]


def sync_keys(store: Store) -> list[str]:
    async def keys() -> list[str]:
        return [key async for key in store.list()]

    return sorted(sync(keys()))


def put(store: Store, key: str, data: bytes) -> None:
    sync(store.set(key, cpu.Buffer.from_bytes(data)))


def value(store: Store, key: str) -> bytes | None:
    found = sync(store.get(key, default_buffer_prototype()))
    return None if found is None else found.to_bytes()


# -- the contract --------------------------------------------------------------------------------------------------------


class TestPathInWrappedMemoryStore(StorageSuite):
    @pytest.fixture
    def storage(self) -> ZarrStorage:
        store = MemoryStore()
        for key in ("zarr.json", "in/zarr.json", "in/the", "in/them/c/0"):
            put(store, key, b"elsewhere")
        return ZarrStorage(WrapperStore(store), "in/the")


class TestLocalStore(StorageSuite):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> ZarrStorage:
        return ZarrStorage(LocalStore(tmp_path / "store"))


class TestFsspecStore(StorageSuite):
    @pytest.fixture
    def storage(self) -> ZarrStorage:
        fs = AsyncFileSystemWrapper(OwnMemory(), asynchronous=True)
        return ZarrStorage(FsspecStore(fs, path="/store"))


class TestObjectStore(StorageSuite):
    @pytest.fixture
    def storage(self) -> ZarrStorage:
        return ZarrStorage(ObjectStore(ObstoreMemory()))


# -- objects that are read in ranges -------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else LocalStore(tmp_path / "store")


def test_ranges_of_a_large_object(store: Store) -> None:
    s = SyncStorage(ZarrStorage(store))
    s.put("big", BIG)
    n = len(BIG)
    for request, expected in (
        (ByteRange(5, 9), BIG[5:9]),
        (ByteRange(n - 3, n + 100), BIG[-3:]),
        (ByteRange(n, n + 1), b""),
        (ByteOffset(n - 7), BIG[-7:]),
        (ByteOffset(n + 7), b""),
        (ByteSuffix(100), BIG[-100:]),
        (ByteSuffix(n + 100), BIG),
        (EVERYTHING, BIG),
    ):
        found = s.read("big", request)
        assert isinstance(found, Found)
        assert (found.nbytes, values(found)) == (n, [expected])
    found = s.read("big", ByteSuffix(4), ByteRange(0, 0), ByteRange(2, 5))
    assert isinstance(found, Found)
    assert values(found) == [BIG[-4:], b"", BIG[2:5]]
    assert s.read("nothing", ByteSuffix(4)) == ABSENT


def test_a_version_of_a_large_object_is_told_by_what_was_read_first(store: Store) -> None:
    s = SyncStorage(ZarrStorage(store))
    s.put("big", BIG)
    first = s.read("big", ByteSuffix(100))
    assert isinstance(first, Found)
    assert isinstance(s.read("big", ByteRange(0, 10), generation=first.generation), Found)
    put(store, "big", b"x" * 20 + BIG[20:])  # the witness stays: nothing tells that it is another version, and none is claimed
    assert isinstance(s.read("big", ByteRange(0, 10), generation=first.generation), Found)
    assert not s.storage.capabilities.pinned_reads
    put(store, "big", BIG[:-1] + b"x")
    assert s.read("big", ByteRange(0, 10), generation=first.generation) == CHANGED
    assert s.read("big", generation=first.generation) == CHANGED
    told = s.storage
    assert isinstance(told, VersionedByRange)
    version = told.version_by(ByteSuffix(100), BIG[-100:])
    assert version == first.generation
    assert told.version_by(ByteSuffix(1), b"") is None


class Replacing(WrapperStore[Any]):
    """Replaces an object just after it was read for the n-th time."""

    def __init__(self, store: Store, after: int = 0, data: bytes = b"") -> None:
        super().__init__(store)
        self.after, self.data, self.gets = after, data, 0

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        found = await super().get(key, prototype, byte_range)
        self.gets += 1
        if self.gets == self.after:
            await self._store.set(key, cpu.Buffer.from_bytes(self.data))
        return found


@pytest.mark.parametrize("data", [bytes(len(BIG)), BIG[: 70 << 10]], ids=["same length", "shorter"])
def test_a_large_object_that_is_replaced_between_its_ranges_has_changed(data: bytes) -> None:
    inner = MemoryStore()
    put(inner, "big", BIG)
    store = Replacing(inner, 1, data)
    sync(store.getsize("big"))
    counted = store.gets  # zarr's wrappers read the object for its size
    s = SyncStorage(ZarrStorage(Replacing(inner, counted + 1, data)))
    put(inner, "big", BIG)
    assert s.read("big", ByteSuffix(100), ByteRange(1000, 2000)) == CHANGED
    put(inner, "big", BIG)
    s = SyncStorage(ZarrStorage(Replacing(inner, counted, data)))  # between its size and its bytes
    found = s.read("big", ByteSuffix(100))
    assert found == CHANGED if len(data) < len(BIG) else isinstance(found, Found)


def test_a_document_longer_than_allowed_is_not_read() -> None:
    store = MemoryStore()
    put(store, "big", BIG)
    put(store, "small", b"x" * 100)
    for key in ("big", "small"):
        (outcome,) = on_io_loop(ZarrStorage(store).read([Read(key, (EVERYTHING,), most_nbytes=99)]))
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, TooMuch)
        assert key in str(outcome.error)


def test_conditions_are_checked_first() -> None:
    s = SyncStorage(ZarrStorage(MemoryStore()))
    for data in (b"1", BIG):
        old = s.put("a", data)
        with pytest.raises(ConditionFailed):
            s.put("a", b"2", IF_ABSENT)
        new = s.put("a", data[::-1] + b"2", IfGeneration(old))
        with pytest.raises(ConditionFailed):
            s.put("a", b"3", IfGeneration(old))
        assert s.delete("a", IfGeneration(new)) is True
    s.put("big", BIG)
    seen = s.read("big", ByteSuffix(8))
    assert isinstance(seen, Found)
    s.put("big", BIG + b"1", IfGeneration(seen.generation))
    with pytest.raises(ConditionFailed):
        s.put("big", BIG, IfGeneration(seen.generation))


@pytest.mark.parametrize("made", [ZarrStorage(MemoryStore()), ZarrStorage(LocalStore("/nowhere"))], ids=["memory", "local"])
def test_no_capability_is_claimed(made: ZarrStorage) -> None:
    capabilities = on_io_loop(made.probe())
    assert not any(getattr(capabilities, name) for name in capabilities.__slots__ if name != "copy_pays_nbytes")


# -- directories ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["local", "fsspec"])
def test_a_directory_is_no_object_and_is_not_deleted(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a/empty").mkdir(parents=True)
    (tmp_path / "a/x").write_bytes(b"1")
    store = LocalStore(tmp_path) if kind == "local" else FsspecStore.from_url(f"file://{tmp_path}")
    s = SyncStorage(ZarrStorage(store))
    assert s.read("a") == ABSENT
    assert s.read("a", EVERYTHING) == ABSENT
    assert s.stat("a/empty") is None
    assert s.delete("a") is False
    s.delete_many("a", "a/empty")
    assert (tmp_path / "a/x").exists()
    assert (tmp_path / "a/empty").is_dir()
    assert s.children("a/") == (["a/x"], [])


def test_a_store_that_is_not_there_is_empty(tmp_path: Path) -> None:
    for store in (LocalStore(tmp_path / "none", read_only=True), ZipStore(tmp_path / "none.zip")):
        s = SyncStorage(ZarrStorage(store))
        assert s.keys() == []
        assert s.children() == ([], [])
        assert s.get("zarr.json") is None
    assert list(tmp_path.iterdir()) == []


# -- verify, census, pack, open ------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_verify_and_census_say_the_same_as_of_the_url(tmp_path: Path) -> None:
    filled(LocalStore(tmp_path / "x"))
    of_url = shardstore.verify(str(tmp_path / "x"), deep=True)
    counted = shardstore.census(str(tmp_path / "x"), contents=True)
    assert of_url.is_sound
    stores: list[Any] = [filled(MemoryStore()), LocalStore(tmp_path / "x"), LoggingStore(filled(MemoryStore()), log_level="CRITICAL")]
    stores.append(FsspecStore.from_url(f"file://{tmp_path}/x"))
    for store in stores:
        report = shardstore.verify(store, deep=True)
        assert (report.arrays, report.findings, report.counts, report.objects, report.unread) == (
            of_url.arrays,
            of_url.findings,
            of_url.counts,
            of_url.objects,
            of_url.unread,
        )
        assert same_census(shardstore.census(store, contents=True), counted)
        assert shardstore.verify(store, census=counted).is_sound


def test_verify_finds_damage_and_what_is_gone() -> None:
    store = filled(MemoryStore())
    counted = shardstore.census(store)
    shard = value(store, "g/b/c/1")
    assert shard is not None
    put(store, "g/b/c/1", shard[:-1] + bytes([shard[-1] ^ 1]))
    sync(store.delete("a/c/0/0"))
    kinds = shardstore.verify(store, census=counted).counts
    assert sum(kinds.values()) >= 2
    assert any("index" in kind for kind in kinds)


def test_a_path_in_a_store_is_a_place(tmp_path: Path) -> None:
    store = filled(MemoryStore())
    assert shardstore.verify(StorePath(store, "g"), deep=True).objects == 6
    shardstore.pack(StorePath(store, "a"), StorePath(store, "packed"), chunks_per_shard=(4, 3))
    packed = zarr.open_array(store, path="packed", mode="r")
    assert packed.shards == (20, 15)
    assert {key.partition("/")[0] for key in sync_keys(store)} == {"zarr.json", "a", "g", "packed", "packed.pack"}
    np.testing.assert_array_equal(packed[:], SMALL)


def test_pack_from_and_into_stores(tmp_path: Path) -> None:
    source = filled(MemoryStore())
    targets: list[Any] = [MemoryStore(), LocalStore(tmp_path / "l"), str(tmp_path / "url"), MemoryStore()]
    targets.append(FsspecStore.from_url(f"file://{tmp_path}/f", storage_options={"auto_mkdir": True}))
    for target in targets:
        report = shardstore.pack(source, target, chunks_per_shard={"a": (4, 3), "**": "auto"})
        assert report.complete
        check_values(target)
        assert zarr.open_array(target, path="a", mode="r").shards == (20, 15)
        assert shardstore.verify(target, deep=True).is_sound
        again = shardstore.pack(source, target, chunks_per_shard={"a": (4, 3), "**": "auto"})  # goes on, with the same result
        assert again.complete
        assert again.unversioned
        check_values(target)


def test_a_run_into_a_store_goes_on_where_the_source_has_versions(tmp_path: Path) -> None:
    filled(LocalStore(tmp_path / "x"))
    target = LocalStore(tmp_path / "y")
    first = shardstore.pack(str(tmp_path / "x"), target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y", "y.pack"]
    again = shardstore.pack(str(tmp_path / "x"), target)
    assert (again.complete, again.done, again.skipped) == (True, 0, first.done)
    sync(target.delete("g/b/c/0"))
    assert shardstore.pack(str(tmp_path / "x"), target).done >= 1
    check_values(target)
    with pytest.raises(InvalidInput, match="cannot be packed in parts"):
        shardstore.pack(target, MemoryStore(), part="1/2")


def test_what_replaces_shards_says_what_it_needs(repository: icechunk.Repository) -> None:
    for store in (filled(MemoryStore()), filled(repository.writable_session("main").store)):
        with pytest.raises(Unsupported, match="no compare-and-swap"):
            shardstore.compact(store)
        with pytest.raises(InvalidInput, match=r"no place next to this \w+Store: say quarantine=URL"):
            shardstore.repair(store, exclusive=True)
        with pytest.raises(InvalidInput, match="overlap"):
            shardstore.repair(store, quarantine=StorePath(store, "q"), exclusive=True)
        shard = value(store, "g/b/c/1")
        assert shard is not None
        put(store, "g/b/c/1", shard[:-1] + bytes([shard[-1] ^ 1]))
        assert not shardstore.verify(store).is_sound
        kept = MemoryStore()
        shardstore.repair(store, quarantine=kept, exclusive=True)
        assert shardstore.verify(store).is_sound
        assert sync_keys(kept)


def test_writing_without_conditions_warns_once() -> None:
    view = shardstore.ShardedStore(MemoryStore(), chunks_per_shard=(4,))

    def write() -> None:
        zarr.create_array(view, name="a", shape=(64,), chunks=(4,), dtype="i4")[:] = 1
        zarr.open_array(view, path="a")[:4] = 2

    with pytest.warns(RuntimeWarning, match="no compare-and-swap") as caught:
        write()
    assert len(caught) == 1


def test_a_store_is_opened_and_written_through_shards() -> None:
    store = MemoryStore()
    view = shardstore.ShardedStore(store, chunks_per_shard=(4, 4))
    array = zarr.create_array(view, name="new", shape=(64, 64), chunks=(4, 4), dtype="i4")
    array[:] = np.arange(64 * 64).reshape(64, 64)
    assert value(store, "new/c/3/3") is not None
    assert value(store, "new/c/4/4") is None
    np.testing.assert_array_equal(zarr.open_array(store, path="new", mode="r")[:], array[:])
    opened = sync(shardstore.ShardedStore.open(store))
    np.testing.assert_array_equal(zarr.open_array(opened, path="new", mode="r")[:], array[:])
    with pytest.raises(Unsupported, match="atomic"):
        zarr.open_array(shardstore.open(store, require_atomic=True), path="new")[:4, :4] = 1
    mapped = shardstore.get_mapper(store)
    assert "new/c/15/15" in mapped


def test_the_store_runs_on_the_loop_of_zarr() -> None:
    loops = set()

    class Watched(WrapperStore[Any]):
        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            loops.add(asyncio.get_running_loop())
            return await super().get(key, prototype, byte_range)

    store = Watched(filled(MemoryStore()))
    shardstore.verify(store)
    sync(store.get("zarr.json", default_buffer_prototype()))
    assert len(loops) == 1


# -- icechunk ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> icechunk.Repository:
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repository")))


@pytest.mark.gate
def test_pack_into_a_session_of_icechunk_and_out_of_its_snapshot(repository: icechunk.Repository, tmp_path: Path) -> None:
    source = filled(MemoryStore())
    session = repository.writable_session("main")
    report = shardstore.pack(source, session.store, chunks_per_shard={"a": (4, 3), "**": "auto"})
    assert report.complete
    written = shardstore.verify(session.store, deep=True)
    assert written.is_sound
    assert shardstore.census(session.store).arrays
    session.commit("packed")
    snapshot = repository.readonly_session("main")
    check_values(snapshot.store)
    read = shardstore.verify(snapshot.store, deep=True)
    assert read.is_sound
    assert (read.arrays, read.objects) == (written.arrays, written.objects)
    assert same_census(shardstore.census(snapshot.store, contents=True), shardstore.census(session.store, contents=True))
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:  # a snapshot is the same in each process
        unpacked = shardstore.unpack(snapshot.store, str(tmp_path / "unpacked"), executor=processes)
    assert (unpacked.complete, unpacked.unversioned) == (True, ())
    check_values(LocalStore(tmp_path / "unpacked"))
    assert shardstore.unpack(snapshot.store, str(tmp_path / "unpacked")).done == 0  # nothing has changed


def test_every_range_of_a_chunk_in_icechunk(repository: icechunk.Repository) -> None:
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(1 << 20,), chunks=(1 << 18,), dtype="u1", compressors=None)
    array[: 1 << 18] = np.frombuffer(BIG, "u1")
    array[1 << 18 : (1 << 18) + 100] = 1
    for held in (session.store, None):
        if held is None:
            session.commit("x")
            held = repository.readonly_session("main").store
        s = SyncStorage(ZarrStorage(held))
        for request, expected in (
            (ByteRange(len(BIG) - 1, len(BIG) + 50), BIG[-1:]),
            (ByteRange(len(BIG), len(BIG) + 50), b""),
            (ByteOffset(len(BIG)), b""),
            (ByteOffset(len(BIG) + 1), b""),
            (ByteSuffix(10), BIG[-10:]),
            (ByteSuffix(len(BIG) * 2), BIG),
            (ByteRange(3, 3), b""),
        ):
            found = s.read("a/c/0", request)
            assert isinstance(found, Found)
            assert values(found) == [expected]
        assert s.read("a/c/3", ByteSuffix(10)) == ABSENT  # icechunk says that it has 0 bytes
        assert s.stat("a/c/3") is None
        for key in ("nothing", "a", "a/c", "x.bin", ".zarray", "b/zarr.json", "b/c/0", "a/c/0/README", ".pack/job.json"):
            assert s.read(key, EVERYTHING) == ABSENT, key
            assert s.stat(key) is None
        everything = s.keys()
        assert [key for key in everything if key != "zarr.json"] == ["a/c/0", "a/c/1", "a/zarr.json"]
        for prefix in ("a/c/", "a/c", "a/c/0", "b/", "a/", "a"):
            assert s.keys(prefix) == [key for key in everything if key.startswith(prefix)]
        assert s.children("a/") == (["a/zarr.json"], ["a/c/"])
        assert s.children("a/c/") == (["a/c/0", "a/c/1"], [])
        assert s.children("b/") == ([], [])


def test_a_snapshot_of_icechunk_is_static_and_a_session_is_not(repository: icechunk.Repository) -> None:
    session = repository.writable_session("main")
    filled(session.store)
    writable = ZarrStorage(session.store)
    assert not writable.capabilities.static
    assert not ZarrStorage(session.store.with_read_only(True)).capabilities.static  # the session still changes
    first = session.commit("1")
    snapshot = ZarrStorage(repository.readonly_session("main").store)
    assert snapshot.capabilities.static
    assert first in snapshot.url
    infos = SyncStorage(snapshot).infos()
    assert {info.generation for info in infos} == {SyncStorage(snapshot).stat("zarr.json").generation}  # type: ignore[union-attr]  # it is there
    again = pickle.loads(pickle.dumps(snapshot))
    assert SyncStorage(again).infos() == infos
    other = repository.writable_session("main")
    zarr.open_group(other.store)["a"][0, 0] = 5  # type: ignore[index]  # an array
    other.commit("2")
    newer = SyncStorage(ZarrStorage(repository.readonly_session("main").store))
    old = infos[0].generation
    assert newer.read(infos[0].key, generation=old) == CHANGED


def test_icechunk_refuses_other_objects_by_name(repository: icechunk.Repository) -> None:
    session = repository.writable_session("main")
    filled(session.store)
    s = SyncStorage(ZarrStorage(session.store))
    for key in ("x.bin", ".zarray", "a/.zattrs", ".shardstore/x"):
        with pytest.raises(Unsupported, match=r"writing .*icechunk stores the documents and chunks of Zarr v3 only") as info:
            s.put(key, b"1")
        assert key in str(info.value)
    with pytest.raises(StorageError, match="writing 'nothing/c/0'"):
        s.put("nothing/c/0", b"1")
    source = filled(MemoryStore())
    put(source, "a/README", b"other")
    with pytest.raises(Incomplete, match="a/README"):
        shardstore.pack(source, repository.writable_session("main").store)
    snapshot = SyncStorage(ZarrStorage(repository.readonly_session("main").store))
    with pytest.raises(ReadOnly, match=r"writing 'zarr\.json'.*read-only"):
        snapshot.put("zarr.json", b"{}")
    with pytest.raises(ReadOnly, match=r"deleting 'zarr\.json'"):
        snapshot.delete("zarr.json")


def test_a_session_with_changes_is_not_packed_into_or_overwritten(repository: icechunk.Repository) -> None:
    session = repository.writable_session("main")
    filled(session.store)
    with pytest.raises(Conflict, match="already"):
        shardstore.pack(filled(MemoryStore()), session.store)
    with pytest.raises(InvalidInput, match="cannot be traced"):
        shardstore.pack(filled(MemoryStore()), session.store, overwrite=True)
    check_values(session.store)


def test_a_session_of_icechunk_is_written_through_shards(repository: icechunk.Repository) -> None:
    session = repository.writable_session("main")
    view = shardstore.ShardedStore(session.store, chunks_per_shard=(4, 4))
    array = zarr.create_array(view, name="new", shape=(64, 64), chunks=(4, 4), dtype="i4")
    array[:] = np.arange(64 * 64).reshape(64, 64)
    session.commit("written")
    stored = zarr.open_array(repository.readonly_session("main").store, path="new", mode="r")
    assert stored.shards == (16, 16)
    np.testing.assert_array_equal(stored[:], np.arange(64 * 64).reshape(64, 64))


def test_messages_never_format_a_store(monkeypatch: pytest.MonkeyPatch, repository: icechunk.Repository) -> None:
    session = repository.writable_session("main")
    store = filled(session.store)

    def refuse(self: object) -> str:
        raise AssertionError("a store of icechunk is not to be formatted on the IO loop")

    for name in ("__str__", "__repr__"):
        monkeypatch.setattr(type(store), name, refuse)
    s = SyncStorage(ZarrStorage(store))
    for call in (lambda: s.put("x.bin", b""), lambda: s.put("nothing/c/0", b"1"), lambda: shardstore.pack(store, store)):
        with pytest.raises(shardstore.ShardStoreError, match="IcechunkStore"):
            call()
    assert "IcechunkStore" in repr(s.storage)


# -- places --------------------------------------------------------------------------------------------------------------


def test_a_target_in_its_source_is_found(tmp_path: Path, repository: icechunk.Repository) -> None:
    memory = filled(MemoryStore())
    filled(LocalStore(tmp_path / "x"))
    session = repository.writable_session("main")
    filled(session.store)
    with zipfile.ZipFile(tmp_path / "z.zip", "w"):
        pass
    local = str(tmp_path / "x")
    for source, target in (
        (memory, memory),
        (memory, memory.with_read_only(False)),
        (memory, StorePath(memory, "g/deeper")),
        (StorePath(memory, "g"), memory),
        (memory, WrapperStore(memory)),
        (LocalStore(local), local),
        (local, LocalStore(tmp_path / "x/y")),
        (LocalStore(local), FsspecStore.from_url(f"file://{local}")),
        (f"file://{local}", FsspecStore.from_url(f"file://{tmp_path}")),
        (session.store, session.store),
        (session.store, StorePath(session.store, "sub")),
        (ZipStore(tmp_path / "z.zip"), str(tmp_path)),
    ):
        with pytest.raises(InvalidInput, match="overlap"):
            shardstore.pack(source, target)
    check_values(memory)
    check_values(session.store)


def test_places_that_only_look_alike_are_apart(repository: icechunk.Repository, tmp_path: Path) -> None:
    one, other = MemoryStore(), MemoryStore()  # equal to zarr, since both hold the same
    sessions = [repository.writable_session("main").store for _ in range(2)]
    for a, b in (
        (one, other),
        (StorePath(one, "g"), StorePath(one, "gg")),
        (sessions[0], sessions[1]),
        (LocalStore(tmp_path / "x"), LocalStore(tmp_path / "xx")),
    ):
        found = [location_of(open_storage(store)) for store in (a, b)]
        assert not found[0].overlaps(found[1])
        assert not found[1].overlaps(found[0])
        assert found[0].overlaps(found[0])
    assert location_of(ZarrStorage(one)).is_known
    assert not location_of(ZarrStorage(sessions[0])).is_known


# -- refusals ------------------------------------------------------------------------------------------------------------


def test_read_only_stores_are_only_read(tmp_path: Path) -> None:
    filled(LocalStore(tmp_path / "x"))
    with pytest.raises(ReadOnly):
        shardstore.pack(filled(MemoryStore()), LocalStore(tmp_path / "new", read_only=True))
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    for store in (filled(MemoryStore()).with_read_only(True), LocalStore(tmp_path / "x", read_only=True)):
        s = SyncStorage(ZarrStorage(store))
        with pytest.raises(ReadOnly, match=r"writing 'new'.*read-only: open it for writing"):
            s.put("new", b"1")
        with pytest.raises(ReadOnly, match="read-only: open it for writing"):
            s.delete("zarr.json")
        with pytest.raises(ReadOnly, match="read-only: open it for writing"):
            s.delete_many("zarr.json")
        with pytest.raises(ReadOnly):
            shardstore.pack(filled(MemoryStore()), StorePath(store, "new"))
        check_values(store)


def test_a_zip_is_packed_into_once_and_nothing_in_it_is_replaced(tmp_path: Path) -> None:
    store = ZipStore(tmp_path / "z.zip", mode="w")
    assert shardstore.pack(filled(MemoryStore()), store).complete
    s = SyncStorage(ZarrStorage(store))
    with pytest.raises(Unsupported, match=r"replacing 'zarr\.json': a ZipStore can neither remove nor replace"):
        s.put("zarr.json", b"{}")
    with pytest.raises(Unsupported, match=r"deleting 'zarr\.json'"):
        s.delete("zarr.json")
    with pytest.raises(Unsupported, match="deleting"):
        s.delete_many("zarr.json")
    s.put("new", b"1")
    assert s.get("new") == b"1"
    store.close()
    with zipfile.ZipFile(tmp_path / "z.zip") as file:
        assert len(file.namelist()) == len(set(file.namelist()))
        assert not any("pack" in name for name in file.namelist())
    check_values(ZipStore(tmp_path / "z.zip"))
    assert shardstore.verify(ZipStore(tmp_path / "z.zip"), deep=True).arrays


def test_a_closed_zip_is_not_erased_by_looking_at_it(tmp_path: Path) -> None:
    store = filled(ZipStore(tmp_path / "z.zip", mode="w"))
    store.close()
    nbytes = (tmp_path / "z.zip").stat().st_size
    if store._zmode == "w":  # zarr up to 3.3 would open it again for writing
        with pytest.raises(InvalidInput, match="closed"):
            shardstore.verify(store)
    else:
        shardstore.verify(store)
    assert (tmp_path / "z.zip").stat().st_size >= nbytes


class Limited(WrapperStore[Any]):
    supports_listing = False
    supports_deletes = False
    supports_writes = False


def test_what_a_store_does_not_support_is_named() -> None:
    store = Limited(filled(MemoryStore()))
    s = SyncStorage(ZarrStorage(store))
    assert s.get("zarr.json")
    with pytest.raises(Unsupported, match=r"listing 'a/'.*MemoryStore.*cannot list"):
        s.keys("a/")
    with pytest.raises(Unsupported, match="cannot list"):
        s.children()
    with pytest.raises(Unsupported, match="cannot list"):
        shardstore.verify(store)
    with pytest.raises(ReadOnly, match="writing 'x'"):
        s.put("x", b"1")


class Failing(WrapperStore[Any]):
    error: Exception = OSError("the first line\nthe second")

    async def getsize(self, key: str) -> int:
        raise self.error


def test_errors_of_a_store_name_the_key() -> None:
    store = Failing(MemoryStore())
    with pytest.raises(StorageError, match=r"reading 'a/zarr\.json' in zarr://MemoryStore-.* failed: OSError: the first line$"):
        SyncStorage(ZarrStorage(store)).read("a/zarr.json", EVERYTHING)
    store.error = PermissionError("no")
    with pytest.raises(AccessDenied, match="reading 'a'"):
        SyncStorage(ZarrStorage(store)).stat("a")


def test_views_of_this_package_are_refused(tmp_path: Path) -> None:
    view = shardstore.ShardedStore(MemoryStore())
    for target in (view, WrapperStore(view), StorePath(view, "a"), FsspecStore.from_url(f"sharded::file://{tmp_path}")):
        with pytest.raises(InvalidInput, match="shardstore view of a store"):
            shardstore.open(target)


def test_a_store_in_memory_is_not_sent_to_other_processes() -> None:
    storage = ZarrStorage(MemoryStore())
    with pytest.raises(InvalidInput, match="memory of this process"):
        pickle.dumps(storage)
    local = ZarrStorage(LocalStore("/somewhere"), "path")
    assert (pickle.loads(pickle.dumps(local)).url, local.kind) == (local.url, "zarr")


def test_options_do_not_go_with_a_store() -> None:
    with pytest.raises(InvalidInput, match="has its own options"):
        open_storage(MemoryStore(), {"anon": True})
    with pytest.raises(InvalidInput, match="a zarr store or a storage, not of type list"):
        open_storage([])


def test_a_static_store_is_not_written() -> None:
    store = filled(MemoryStore())
    storage = open_storage(store, static=True)
    assert storage.capabilities.static
    with pytest.raises(ReadOnly):
        on_io_loop(storage.write("x", [b"1"], 1, UNCONDITIONAL))


def test_urls_of_stores_name_their_place(tmp_path: Path) -> None:
    assert ZarrStorage(LocalStore(tmp_path), "p").url == f"file://{tmp_path}/p"
    fs = AsyncFileSystemWrapper(LocalFileSystem(), asynchronous=True)
    assert ZarrStorage(FsspecStore(fs, path=str(tmp_path))).url == f"file://{tmp_path}"
    memory = MemoryStore()
    assert ZarrStorage(memory).url == ZarrStorage(memory.with_read_only(True)).url
    assert ZarrStorage(memory).url != ZarrStorage(MemoryStore()).url
