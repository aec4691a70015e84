"""Files over a store, without FUSE: what is asked of the storage, faults at every request, and the order in which things are stored."""

from __future__ import annotations

import asyncio
import errno
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.adapters.file_access import AlreadyExists, FileAccess
from shardstore.adapters.handle import Handle
from shardstore.apps.mounting.errnos import Refused, error_number
from shardstore.apps.mounting.files import Files
from shardstore.apps.mounting.held_back import Limits
from shardstore.apps.mounting.names import DIRECTORY, is_document, is_scratch
from shardstore.engine.actions import SetValue
from shardstore.errors import Conflict, ReadOnly, ShardStoreError, StorageError
from shardstore.model.ranges import EVERYTHING, ByteRange
from shardstore.opening.open import open_storage
from shardstore.storage.base import Storage
from shardstore.testing.faults import Fail, Fault, FaultStorage, at_every_request
from shardstore.testing.storage_suite import on_io_loop as run_sync
from tests.apps.mounting.conftest import DATA, make_store

NEVER = Limits(idle_seconds=1e6, age_seconds=1e6, wait_seconds=1e6, erase_seconds=1e6)
NEW = b"what is new"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def files_of(url: str | Storage, *, present: str = "v3", **options: Any) -> Files:
    return Files(FileAccess.open(url, {}, {"chunks_per_shard": (4, 4, 4), "present": present}), **({"limits": NEVER} | options))


def put(files: Files, path: str, data: bytes, *, exclusive: bool = False) -> None:
    """Create or replace a file, as programs do."""

    async def write() -> None:
        there = await files.find(path) is not None
        file = await (files.edit(path, truncates=True) if there else files.create(path, exclusive=exclusive))
        file.write(0, data)
        try:
            await files.flush(file)
        finally:
            await files.release(file)

    run_sync(write())


def get(files: Files, path: str) -> bytes:
    async def read() -> bytes:
        file = await files.open(path)
        data = bytes(await file.read(0, 1 << 30))
        await files.release(file)
        return data

    return run_sync(read())


def native(url: str, key: str) -> bytes | None:
    value = run_sync(Handle.make(url, None, {}).engine.get((key, EVERYTHING)))
    return None if value is None else bytes(value)


def everything(files: Files, path: str = "") -> dict[str, int]:
    """Return all files with their sizes, as ``find`` would list them."""
    found: dict[str, int] = {}
    for entry in run_sync(files.names.entries(path)):
        full = f"{path}/{entry.name}" if path else entry.name
        if entry.nbytes == DIRECTORY:
            found |= everything(files, full)
        else:
            found[full] = entry.nbytes
    return found


# -- names -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0.0123456789abcdef0123456789abcdef.partial", True),
        ("0.__lock", True),
        (".zarr.json.Ab3dEf", True),
        (".zarr.json.swp", True),
        ("zarr.json~", True),
        (".#zarr.json", True),
        (".fuse_hidden00001", True),
        ("sedA1b2C3", True),
        ("zarr.json", False),
        (".zgroup", False),
        (".zattrs.backup", False),
        ("sediment", False),
        ("0.0.0", False),
        ("notes.txt", False),
    ],
)
def test_scratch_names_are_those_that_programs_use_for_a_moment(name: str, expected: bool) -> None:
    assert is_scratch(name) is expected


def test_documents_are_known_in_every_format() -> None:
    assert all(map(is_document, ["zarr.json", "a/zarr.json", ".zarray", "a/.zattrs", "meta/root/a.array.json", "meta/root.group.json"]))
    assert not any(map(is_document, ["a/c/0", "zarr.json.partial", "a.array.json"]))


# -- what is asked of the storage ------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(tmp_path: Path) -> tuple[Files, FaultStorage, Clock]:
    """A mount of 8 shards, and the requests to its storage."""
    make_store(str(tmp_path / "data.zarr"))
    storage = FaultStorage(open_storage(str(tmp_path / "data.zarr"), {}))
    clock = Clock()
    return files_of(storage, clock=clock), storage, clock


def test_find_asks_for_each_index_once(counted: tuple[Files, FaultStorage, Clock]) -> None:
    files, storage, _ = counted
    storage.plan()
    found = everything(files)
    assert len(found) == 2 + 8 * 64
    of_shards = [request for request in storage.requests if request.operation == "read" and "/c/" in request.key]
    assert len(of_shards) == 8
    assert sum(request.operation in ("list", "list_dir") for request in storage.requests) <= 3  # the root, the array, all below it
    storage.plan()
    for path, nbytes in found.items():
        assert run_sync(files.find(path)) == nbytes
    assert run_sync(files.find("ct/c/0/0/0.__lock")) is None
    assert storage.requests == []


def test_files_that_are_read_in_order_are_read_ahead(counted: tuple[Files, FaultStorage, Clock]) -> None:
    files, storage, _ = counted
    paths = [path for path in everything(files) if "/c/" in path]
    storage.plan()
    for path in paths:
        assert get(files, path)
    of_shards = [request for request in storage.requests if request.operation == "read" and "/c/" in request.key]
    # Of each shard at most two indices and two ranges: the first chunk of all is read alone, and then the rest of its shard.
    assert len(of_shards) <= 8 * 2 + 2


def test_what_was_read_ahead_is_checked_by_one_request_a_shard(counted: tuple[Files, FaultStorage, Clock], tmp_path: Path) -> None:
    files, storage, clock = counted
    paths = [path for path in everything(files) if "/c/" in path]
    for path in paths:
        get(files, path)
    group: Any = zarr.open_group(shardstore.open(str(tmp_path / "data.zarr")), mode="r+")
    group["ct"][:4, :8, :8] = 77  # the first chunk, by somebody else
    clock.now += 2
    changed = native(str(tmp_path / "data.zarr"), paths[0])
    assert get(files, paths[0]) == changed
    storage.plan()
    same = [path for path in paths if path.startswith("ct/c/7/")]  # of four shards that nobody has changed
    for path in same:
        assert get(files, path) == native(str(tmp_path / "data.zarr"), path)
    reads = [request for request in storage.requests if request.operation == "read" and "/c/" in request.key]
    nbytes = [asked.end - asked.start for request in reads if isinstance(asked := request.range, ByteRange)]
    assert len(reads) - len(nbytes) == 4, "one index a shard"
    assert sum(nbytes) == 0


def test_names_that_no_listing_knows_are_listed_soon(counted: tuple[Files, FaultStorage, Clock]) -> None:
    files, storage, _ = counted
    assert run_sync(files.find("ct/zarr.json")) is not None
    storage.plan()
    for i in range(8):
        for j in range(8):
            for k in range(8):
                assert run_sync(files.find(f"ct/c/{i}/{j}/{k}")) is not None
    assert len(storage.requests) < 100  # 512 files


def test_a_listing_that_has_expired_is_made_anew_as_a_whole(counted: tuple[Files, FaultStorage, Clock]) -> None:
    files, storage, clock = counted
    found = everything(files)
    clock.now += 2
    storage.plan()
    for path, nbytes in found.items():
        if "/c/" in path:
            assert run_sync(files.find(path)) == nbytes
    reads = [request for request in storage.requests if request.operation == "read" and "/c/" in request.key]
    assert len(reads) <= 8 + 2  # the index of the first file, and then that of each shard
    assert sum(request.operation in ("list", "list_dir") for request in storage.requests) == 1


def test_old_listings_are_forgotten(counted: tuple[Files, FaultStorage, Clock]) -> None:
    files, _, clock = counted
    files.tree.most_names, files.tree.whole_names = 40, 0  # so that each directory has a listing of its own

    async def list_rows(first: int, last: int) -> list[str]:
        for i in range(first, last):
            for j in range(8):
                await files.tree.names(f"ct/c/{i}/{j}")
                clock.now += 0.3
        return [name async for name in _known(files)]

    async def _known(files: Files) -> AsyncIterator[str]:
        for i in range(8):
            for j in range(8):
                if files.tree.nbytes(f"ct/c/{i}/{j}/0") is not None:
                    yield f"{i}/{j}"

    assert run_sync(list_rows(0, 4))[-1] == "3/7"
    known = run_sync(list_rows(4, 8))
    assert len(known) <= 5
    assert known[-1] == "7/7"


def test_directories_of_chunks_are_not_asked_for(counted: tuple[Files, FaultStorage, Clock]) -> None:
    files, storage, _ = counted
    assert run_sync(files.find("ct/c")) == DIRECTORY
    storage.plan()
    assert run_sync(files.find("ct/c/7")) == DIRECTORY
    assert run_sync(files.find("ct/c/7/7")) == DIRECTORY
    assert storage.requests == []


def test_documents_are_listed_last_and_directories_first(counted: tuple[Files, FaultStorage, Clock]) -> None:
    files, _, _ = counted
    put(files, "ct/a note", b"x")
    assert [entry.name for entry in run_sync(files.names.entries("ct"))] == ["c", "a note", "zarr.json"]
    assert [entry.name for entry in run_sync(files.names.entries("ct/c"))] == [str(i) for i in range(8)]


def test_a_copy_with_held_back_files_commits_each_shard_once(counted: tuple[Files, FaultStorage, Clock], tmp_path: Path) -> None:
    whole, _, _ = counted
    files = files_of(str(tmp_path / "data.zarr"), durable="fsync")
    commits = files.store.presented.counters.commits
    for directory in ("new", "new/c", *(f"new/c/{i}" for i in range(8)), *(f"new/c/{i}/{j}" for i in range(8) for j in range(8))):
        run_sync(files.mkdir(directory))
    for path in everything(whole, "ct"):  # directories first: chunks come before their document
        put(files, path.replace("ct/", "new/", 1), get(whole, path))
    assert native(str(tmp_path / "data.zarr"), "new/zarr.json") is None
    run_sync(files.sync())
    assert files.store.presented.counters.commits - commits == 8
    stored: Any = zarr.open_group(shardstore.open(str(tmp_path / "data.zarr")), mode="r")["new"]
    np.testing.assert_array_equal(stored[:], DATA)


def test_removing_an_array_commits_each_shard_once(counted: tuple[Files, FaultStorage, Clock], tmp_path: Path) -> None:
    files, _, _ = counted
    commits = files.store.presented.counters.commits
    paths = everything(files, "ct")
    for path in paths:
        if path != "ct/zarr.json":
            run_sync(files.unlink(path))
    run_sync(files.unlink("ct/zarr.json"))
    assert files.store.presented.counters.commits - commits <= 9  # the first one is erased at once
    assert not [path for path in (tmp_path / "data.zarr/ct").rglob("*") if path.is_file()]


# -- faults ----------------------------------------------------------------------------------------------------------------


def _close(files: Files) -> None:
    put(files, "ct/c/0/0/0", NEW)


def _change_a_part(files: Files) -> None:
    async def change() -> None:
        file = await files.edit("ct/c/0/0/0", truncates=False)
        file.write(0, NEW)
        try:
            await files.flush(file)
        finally:
            await files.release(file)

    run_sync(change())


def _rename(files: Files) -> None:
    put(files, "ct/c/0/0/0.abc.partial", NEW)
    run_sync(files.rename("ct/c/0/0/0.abc.partial", "ct/c/0/0/0"))


@pytest.mark.parametrize("attempt", [_close, _change_a_part, _rename])
def test_a_failed_request_is_an_error_of_close_and_leaves_the_old_value(attempt: Callable[[Files], None], tmp_path: Path) -> None:
    tries = 0

    def once(fault: Fault) -> bool:
        nonlocal tries
        tries += 1
        url = str(tmp_path / f"{tries}.zarr")
        make_store(url)
        old = native(url, "ct/c/0/0/0")
        assert old is not None
        storage = FaultStorage(open_storage(url, {}), [fault])
        files = files_of(storage)
        error: ShardStoreError | None = None
        try:
            attempt(files)
        except ShardStoreError as exc:
            error = exc
        was_struck = bool(storage.struck)
        storage.plan()
        if error is not None:
            assert error_number(error) == errno.EIO
            assert native(url, "ct/c/0/0/0") == old
            assert get(files, "ct/c/0/0/0") == old
            attempt(files)  # and the mount goes on
        stored = native(url, "ct/c/0/0/0")
        assert stored == (NEW + old[len(NEW) :] if attempt is _change_a_part else NEW)
        assert get(files, "ct/c/0/0/0") == stored
        run_sync(files.end())
        return was_struck

    assert at_every_request(Fail(), once) >= 3


def test_what_is_held_back_is_kept_until_it_is_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    storage = FaultStorage(open_storage(url, {}))
    files = files_of(storage, durable="fsync")
    put(files, "ct/c/0/0/0", NEW)
    put(files, "ct/c/7/7/7", NEW)
    storage.plan(Fault(1, Fail(), frozenset({"write", "compose"}), "ct/c/0/*", times=None))
    for _ in range(2):
        with pytest.raises(StorageError):
            run_sync(files.sync())
    assert native(url, "ct/c/7/7/7") == NEW
    assert get(files, "ct/c/0/0/0") == NEW
    assert native(url, "ct/c/0/0/0") != NEW
    assert run_sync(files.held.end()) == ["ct/c/0/0/0"]
    assert "'ct/c/0/0/0' could not be stored" in caplog.text
    storage.plan()
    run_sync(files.sync())
    assert native(url, "ct/c/0/0/0") == NEW


# -- others who write ------------------------------------------------------------------------------------------------------


def test_a_part_is_not_written_over_what_others_have_stored(tmp_path: Path) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    files = files_of(url)

    async def run(others: Callable[[], Awaitable[None]]) -> None:
        file = await files.edit("ct/c/0/0/0", truncates=False)
        await others()
        file.write(0, NEW)
        try:
            await files.flush(file)
        finally:
            await files.release(file)

    other = Handle.make(url, None, {"metadata_ttl": "0.5s"}).engine

    async def same_shard() -> None:
        await other.update_many([("ct/c/0/0/1", SetValue(b"beside"))])

    async def same_chunk() -> None:
        await other.update_many([("ct/c/0/0/0", SetValue(b"theirs"))])

    run_sync(run(same_shard))
    assert native(url, "ct/c/0/0/1") == b"beside"
    with pytest.raises(Conflict):
        run_sync(run(same_chunk))
    assert native(url, "ct/c/0/0/0") == b"theirs"


def test_a_reader_that_closes_a_file_does_not_store_what_another_is_writing(tmp_path: Path) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    old = native(url, "ct/c/0/0/0")
    files = files_of(url)

    async def read_while_it_is_written() -> None:
        writer = await files.edit("ct/c/0/0/0", truncates=True)
        writer.write(0, NEW[:5])
        reader = await files.open("ct/c/0/0/0")
        assert await reader.read(0, 100) == NEW[:5]
        await files.flush(reader)
        await files.release(reader)
        value = await Handle.make(url, None, {}).engine.get(("ct/c/0/0/0", EVERYTHING))
        assert value == old
        writer.write(5, NEW[5:])
        await files.flush(writer)
        await files.release(writer)

    run_sync(read_while_it_is_written())
    assert native(url, "ct/c/0/0/0") == NEW


@pytest.mark.parametrize("closes", [1, 2])
@pytest.mark.parametrize("cuts", [False, True])
def test_a_chunk_that_was_only_emptied_is_stored_when_it_can_only_be_meant(tmp_path: Path, closes: int, cuts: bool) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    old = native(url, "ct/c/0/0/0")
    files = files_of(url)

    async def empty() -> None:
        writer = await files.edit("ct/c/0/0/0", truncates=True)
        if cuts:
            writer.buffer.truncate(0, stays=True)
        for _ in range(closes):  # a shell closes a descriptor that it has duplicated before anything is written
            await files.flush(writer)
        value = await Handle.make(url, None, {}).engine.get(("ct/c/0/0/0", EVERYTHING))
        assert value == (b"" if cuts or closes > 1 else old)
        await files.release(writer)

    run_sync(empty())
    assert native(url, "ct/c/0/0/0") == b""


def test_another_file_can_be_empty_when_it_is_closed(tmp_path: Path) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    files = files_of(url)

    async def touch() -> None:
        writer = await files.create("ct/notes", exclusive=False)
        await files.flush(writer)
        value = await Handle.make(url, None, {}).engine.get(("ct/notes", EVERYTHING))
        assert value is not None
        assert not value.nbytes
        await files.release(writer)

    run_sync(touch())


def test_an_emptied_chunk_whose_storing_fails_is_told_by_sync(tmp_path: Path) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    storage = FaultStorage(open_storage(url, {}))
    files = files_of(storage)

    async def empty() -> None:
        writer = await files.edit("ct/c/0/0/0", truncates=True)
        await files.flush(writer)
        storage.plan(Fault(1, Fail(), frozenset({"write", "compose"}), "ct/c/0/*", times=None))
        await files.release(writer)
        with pytest.raises(StorageError):
            await files.sync()
        storage.plan()
        await files.sync()

    run_sync(empty())
    assert native(url, "ct/c/0/0/0") == b""


def test_who_creates_a_file_that_others_have_created_is_told_at_close(tmp_path: Path) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    mapper = shardstore.get_mapper(url)
    del mapper["ct/c/0/0/0"]
    files = files_of(url)

    async def run() -> None:
        file = await files.create("ct/c/0/0/0", exclusive=True)
        file.write(0, NEW)
        await asyncio.to_thread(mapper.__setitem__, "ct/c/0/0/0", b"theirs")
        try:
            await files.flush(file)
        finally:
            await files.release(file)

    with pytest.raises(AlreadyExists) as caught:
        run_sync(run())
    assert error_number(caught.value) == errno.EEXIST
    assert native(url, "ct/c/0/0/0") == b"theirs"


def test_of_two_mounts_one_creates_an_empty_file_that_must_be_new(tmp_path: Path) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    one, other = files_of(url), files_of(url)
    for files in (one, other):
        assert run_sync(files.find("ct/lock")) is None  # and is believed for a while
    held = run_sync(one.create("ct/lock", exclusive=True))
    with pytest.raises(AlreadyExists) as caught:
        run_sync(other.create("ct/lock", exclusive=True))
    assert error_number(caught.value) == errno.EEXIST
    held.write(0, b"by one")
    run_sync(one.flush(held))
    run_sync(one.release(held))
    assert native(url, "ct/lock") == b"by one"


def test_a_removed_file_is_erased_when_that_returns(tmp_path: Path) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    files = files_of(url)
    run_sync(files.unlink("ct/c/0/0/0"))
    assert native(url, "ct/c/0/0/0") is None
    paths = [path for path in everything(files, "ct/c") if path != "ct/c/0/0/0"]
    for path in paths:
        run_sync(files.unlink(path))
    assert native(url, paths[-1]) is not None  # of many, it is held back
    for directory in (*{path.rpartition("/")[0] for path in paths}, *(f"ct/c/{i}" for i in range(8)), "ct/c"):
        run_sync(files.rmdir(directory))
    shardstore.get_mapper(url)[paths[-1]] = NEW  # what comes after rm -r is not erased
    run_sync(files.sync())
    assert run_sync(files.end()) == []
    assert native(url, paths[-1]) == NEW


def test_erasures_that_are_held_back_are_stored_soon(tmp_path: Path) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    files = files_of(url, limits=Limits(idle_seconds=1e6, age_seconds=1e6, wait_seconds=1e6), clock=Clock())
    for name in range(8):
        run_sync(files.unlink(f"ct/c/0/0/{name}"))
    for _ in range(3000):
        if not files.held.pending:
            break
        time.sleep(0.01)
    assert native(url, "ct/c/0/0/7") is None


@pytest.mark.parametrize("error", [StorageError("gone"), ReadOnly("read only")])
def test_a_file_that_cannot_be_erased_is_still_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ShardStoreError) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    files = files_of(url)
    old = native(url, "ct/c/0/0/0")

    async def refuse(updates: Sequence[Any]) -> list[ShardStoreError]:
        return [error] * len(updates)

    with monkeypatch.context() as patched:
        patched.setattr(files.store, "change", refuse)
        with pytest.raises(type(error)):
            run_sync(files.unlink("ct/c/0/0/0"))
    assert get(files, "ct/c/0/0/0") == old
    run_sync(files.unlink("ct/c/0/0/0"))
    assert native(url, "ct/c/0/0/0") is None


def test_a_long_chunk_can_be_read_while_another_of_its_shard_is_written(tmp_path: Path) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    mapper = shardstore.get_mapper(url)
    long = np.random.default_rng(1).bytes(17 << 20)  # longer than what is read whole
    mapper["ct/c/0/0/0"] = long
    files = files_of(url)
    file = run_sync(files.open("ct/c/0/0/0"))

    def read(begin: int, end: int) -> bytes:
        return bytes(run_sync(file.read(begin, end - begin)))

    assert read(0, 1000) == long[:1000]
    assert read(1000, 2000) == long[1000:2000]
    assert read(5 << 20, 6 << 20) == long[5 << 20 : 6 << 20]
    mapper["ct/c/0/0/1"] = NEW
    assert read(1 << 20, 2 << 20) == long[1 << 20 : 2 << 20]
    mapper["ct/c/0/0/0"] = NEW
    assert read(16 << 20, 18 << 20) == long[16 << 20 :]
    run_sync(files.release(file))


@pytest.mark.parametrize("at", [3, 1500, 5 << 20])
def test_a_long_chunk_is_one_version_while_it_is_read(tmp_path: Path, at: int) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    mapper = shardstore.get_mapper(url)
    long = bytearray(17 << 20)
    mapper["ct/c/0/0/0"] = bytes(long)
    file = run_sync(files_of(url).open("ct/c/0/0/0"))
    for begin, end in ((0, 1000), (1000, 2000), (5 << 20, 6 << 20)):
        run_sync(file.read(begin, end - begin))
    long[at] = 1
    mapper["ct/c/0/0/0"] = bytes(long)
    with pytest.raises(Conflict, match="was replaced while it was being read"):
        run_sync(file.read(7 << 20, 100))


# -- order -----------------------------------------------------------------------------------------------------------------


def test_chunks_wait_for_the_document_of_their_array(tmp_path: Path) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    files = files_of(url)
    document = get(files, "ct/zarr.json")
    for directory in ("new", "new/c", "new/c/0", "new/c/0/0"):
        run_sync(files.mkdir(directory))
    put(files, "new/c/0/0/0", NEW)
    assert native(url, "new/c/0/0/0") is None
    assert get(files, "new/c/0/0/0") == NEW
    put(files, "new/zarr.json", document)
    assert native(url, "new/c/0/0/0") == NEW
    assert json.loads((tmp_path / "data.zarr/new/zarr.json").read_bytes())["codecs"][0]["name"] == "sharding_indexed"


def test_a_stored_chunk_is_not_renamed_to_one_that_comes_before_its_document(tmp_path: Path) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    files = files_of(url)
    old = native(url, "ct/c/0/0/0")
    for directory in ("new", "new/c", "new/c/0", "new/c/0/0"):
        run_sync(files.mkdir(directory))
    with pytest.raises(Refused) as caught:
        run_sync(files.rename("ct/c/0/0/0", "new/c/0/0/0"))
    assert caught.value.number == errno.EXDEV
    assert not (tmp_path / "data.zarr/new").exists()  # where it would be taken for a shard
    assert native(url, "ct/c/0/0/0") == old


def test_chunks_without_an_array_are_stored_as_they_are_in_the_end(tmp_path: Path) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    files = files_of(url)
    run_sync(files.mkdir("lone"))
    put(files, "lone/0.0", NEW)
    assert not (tmp_path / "data.zarr/lone").exists()
    assert run_sync(files.end()) == []
    assert (tmp_path / "data.zarr/lone/0.0").read_bytes() == NEW


def test_a_refused_document_keeps_its_chunks_back(tmp_path: Path) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    files = files_of(url, durable="fsync")
    for directory in ("new", "new/c", "new/c/0", "new/c/0/0"):
        run_sync(files.mkdir(directory))
    put(files, "new/c/0/0/0", NEW)
    put(files, "new/zarr.json", (tmp_path / "data.zarr/ct/zarr.json").read_bytes())  # which has shards of its own
    with pytest.raises(ShardStoreError):
        run_sync(files.sync())
    assert run_sync(files.end()) == ["new/c/0/0/0", "new/zarr.json"]
    assert not (tmp_path / "data.zarr/new").exists()


def test_held_back_files_are_stored_when_nothing_comes_any_more(tmp_path: Path) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    files = files_of(url, durable="fsync", limits=Limits(idle_seconds=0.05, age_seconds=0.2, wait_seconds=0.5))
    put(files, "ct/c/0/0/0", NEW)

    for _ in range(3000):
        if not files.held.pending:
            break
        time.sleep(0.01)
    assert native(url, "ct/c/0/0/0") == NEW


def test_nothing_is_written_where_only_reading_is_allowed(tmp_path: Path) -> None:
    url = str(tmp_path / "data.zarr")
    make_store(url)
    files = files_of(url, read_only=True)
    attempts: list[Coroutine[Any, Any, Any]] = [
        files.create("ct/c/0/0/0", exclusive=False),
        files.edit("ct/c/0/0/0", truncates=True),
        files.unlink("ct/c/0/0/0"),
        files.rename("ct/c/0/0/0", "ct/c/0/0/1"),
        files.mkdir("new"),
        files.rmdir("ct"),
        files.truncate("ct/c/0/0/0", 1),
    ]
    for attempt in attempts:
        with pytest.raises(ReadOnly) as caught:
            run_sync(attempt)
        assert error_number(caught.value) == errno.EROFS
