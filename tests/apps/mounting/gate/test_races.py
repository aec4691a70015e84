"""Changes of one name that overlap: what was acknowledged last is what is stored, and what is read."""

from __future__ import annotations

import asyncio
import errno
import io
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import zarr

import shardstore
from shardstore.apps.mounting.errnos import Refused, error_number
from shardstore.apps.mounting.files import Files
from shardstore.apps.mounting.held_back import Limits
from shardstore.apps.mounting.names import DIRECTORY
from shardstore.apps.mounting.writing import MEMORY_NBYTES
from shardstore.errors import NoSpace, NotFound, StorageError, WriteOutcomeUnknown
from shardstore.model.ranges import EVERYTHING
from shardstore.opening.open import open_storage
from shardstore.testing.faults import DropReply, Fault, FaultStorage
from shardstore.testing.storage_suite import on_io_loop as run_sync
from tests.apps.mounting.conftest import make_store
from tests.apps.mounting.test_files import Clock, files_of, native

KEY = "ct/c/0/0/0"
NEW = b"what is new"
SOON = Limits(idle_seconds=0.1, age_seconds=0.5, wait_seconds=30)


@pytest.fixture
def url(tmp_path: Path) -> str:
    make_store(str(tmp_path / "data.zarr"))
    return str(tmp_path / "data.zarr")


async def write(files: Files, path: str, data: bytes) -> None:
    there = await files.find(path) is not None
    file = await (files.edit(path, truncates=True) if there else files.create(path, exclusive=False))
    file.write(0, data)
    await files.flush(file)
    await files.release(file)


async def read(files: Files, path: str) -> bytes:
    file = await files.open(path)
    data = bytes(await file.read(0, 1 << 20))
    await files.release(file)
    return data


class Gate:
    """A method whose ``number``-th call waits, before or after it does its work, until the gate is opened."""

    def __init__(self, method: Callable[..., Awaitable[Any]], *, number: int = 1, before: bool = True) -> None:
        self.begun = asyncio.Event()
        self.opened = asyncio.Event()
        self._method = method
        self._left = number
        self._before = before

    async def __call__(self, *arguments: Any) -> Any:
        self._left -= 1
        waits = self._left == 0
        if waits and self._before:
            self.begun.set()
            await self.opened.wait()
        done = await self._method(*arguments)
        if waits and not self._before:
            self.begun.set()
            await self.opened.wait()
        return done


async def until_it_waits(task: asyncio.Task[Any]) -> None:
    """Let a task go on until it waits for another one."""
    for _ in range(100):
        await asyncio.sleep(0)
    assert not task.done()


@pytest.mark.parametrize("path", [KEY, "notes.txt"])
def test_a_file_that_is_written_while_its_erasure_is_under_way_stays(url: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(url)

    async def run() -> None:
        await write(files, path, b"old")
        gate = Gate(files.store.change)
        monkeypatch.setattr(files.store, "change", gate)
        removing = asyncio.create_task(files.unlink(path))
        await gate.begun.wait()
        assert path in files.held.pending
        writing = asyncio.create_task(write(files, path, NEW))
        await until_it_waits(writing)
        gate.opened.set()
        await asyncio.gather(removing, writing)
        await files.sync()
        assert await read(files, path) == NEW

    run_sync(run())
    assert run_sync(files.end()) == []
    assert native(url, path) == NEW


@pytest.mark.parametrize("path", [KEY, "notes.txt"])
def test_a_file_that_is_written_before_its_erasure_begins_stays(url: str, path: str) -> None:
    files = files_of(url, clock=Clock())  # so that all erasures but the first one are held back

    async def run() -> None:
        await write(files, path, b"old")
        await files.unlink("ct/c/7/7/7")
        await files.unlink(path)
        assert path in files.held.pending
        await write(files, path, NEW)
        await files.sync()
        assert await read(files, path) == NEW

    run_sync(run())
    assert run_sync(files.end()) == []
    assert native(url, path) == NEW


def test_a_chunk_that_is_written_while_it_is_stored_with_its_document_is_the_last_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(url)
    document = native(url, "ct/zarr.json")
    assert document is not None

    async def run() -> None:
        await files.mkdir("new")
        await write(files, "new/c/0/0/0", b"old")
        gate = Gate(files.store.change, number=2)  # after the document
        monkeypatch.setattr(files.store, "change", gate)
        storing = asyncio.create_task(write(files, "new/zarr.json", document))
        await gate.begun.wait()
        writing = asyncio.create_task(write(files, "new/c/0/0/0", NEW))
        await until_it_waits(writing)
        gate.opened.set()
        await asyncio.gather(storing, writing)

    run_sync(run())
    assert native(url, "new/c/0/0/0") == NEW


@pytest.mark.parametrize("path", [KEY, "notes.txt"])
@pytest.mark.parametrize("durable", ["close", "fsync"])
@pytest.mark.parametrize("follows", [False, True])
def test_closing_a_file_that_is_being_removed_does_not_bring_it_back(
    url: str, path: str, durable: str, follows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_of(url, durable=durable, write_memory=0, clock=Clock())

    async def run() -> None:
        await write(files, path, b"old")
        await files.sync()
        if follows:
            await files.unlink("ct/c/7/7/7")
        file = await files.edit(path, truncates=True)
        file.write(0, NEW)
        gate = Gate(files.store.change)
        monkeypatch.setattr(files.store, "change", gate)
        tasks = [asyncio.create_task(files.unlink(path)), asyncio.create_task(files.flush(file))]
        if not follows:
            await gate.begun.wait()
            await until_it_waits(tasks[0])
        gate.opened.set()
        await asyncio.gather(*tasks)
        await files.release(file)
        assert await files.find(path) is None
        await files.sync()

    run_sync(run())
    run_sync(files.end())
    assert native(url, path) is None


def test_what_was_read_before_a_commit_of_this_mount_is_not_used_after_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(url)

    async def run() -> None:
        await files.names.entries("ct")
        await read(files, "ct/c/0/0/0")
        gate = Gate(files.store.read, before=False)
        monkeypatch.setattr(files.store, "read", gate)
        reading = asyncio.create_task(read(files, "ct/c/0/0/1"))  # which reads ahead
        await gate.begun.wait()
        await write(files, "ct/c/0/0/2", NEW)
        gate.opened.set()
        await reading
        assert await read(files, "ct/c/0/0/2") == NEW

    run_sync(run())


def test_a_file_that_is_renamed_while_it_is_open_can_be_written_on(url: str) -> None:
    files = files_of(url)

    async def run() -> None:
        file = await files.edit(KEY, truncates=False)
        file.write(0, b"first")
        await files.rename(KEY, "ct/c/0/0/1")
        file.write(5, b"then")
        await files.flush(file)
        await files.release(file)

    run_sync(run())
    stored = native(url, "ct/c/0/0/1")
    assert stored is not None
    assert stored.startswith(b"firstthen")


@pytest.mark.parametrize("exclusive", [False, True])
def test_of_two_who_create_a_file_at_once_one_is_refused_only_if_it_was_to_be_new(url: str, exclusive: bool) -> None:
    files = files_of(url)

    async def run() -> None:
        made = await asyncio.gather(*(files.create("notes.txt", exclusive=exclusive) for _ in range(2)), return_exceptions=True)
        refused = [one for one in made if isinstance(one, BaseException)]
        assert [error_number(one) for one in refused] == [errno.EEXIST] * exclusive
        for one in made:
            if not isinstance(one, BaseException):
                one.write(0, NEW)
                await files.flush(one)
                await files.release(one)

    run_sync(run())
    assert native(url, "notes.txt") == NEW


@pytest.mark.parametrize("path", [KEY, "zarr.json"])
def test_what_has_only_a_scratch_name_stays_stored(url: str, path: str) -> None:
    files = files_of(url, limits=SOON)
    old = native(url, path)

    async def run() -> None:
        await files.rename(path, f"{path}~")
        await asyncio.sleep(0.3)
        assert await files.find(path) is None
        await files.sync()

    run_sync(run())
    assert run_sync(files.end()) == []
    assert native(url, path) == old


def test_removing_a_backup_erases_what_it_was_of(url: str) -> None:
    files = files_of(url)

    async def run() -> None:
        await files.rename(KEY, f"{KEY}~")
        await files.unlink(f"{KEY}~")
        await files.sync()

    run_sync(run())
    assert native(url, KEY) is None


def test_erasures_below_the_target_of_a_rename_do_not_hit_what_is_moved_there(url: str) -> None:
    files = files_of(url)

    async def run() -> None:
        await files.mkdir("other")
        for key in ("other/x", "plain/x"):
            if await files.find(key.partition("/")[0]) is None:
                await files.mkdir(key.partition("/")[0])
            await write(files, key, key.encode())
        await files.unlink("plain/x")
        await files.rmdir("plain")
        await files.rename("other", "plain")
        await files.sync()
        assert await read(files, "plain/x") == b"other/x"

    run_sync(run())
    run_sync(files.end())
    assert native(url, "plain/x") == b"other/x"


def test_a_sparse_file_can_be_read_and_one_beyond_4_gib_is_refused(url: str) -> None:
    files = files_of(url)

    async def run() -> None:
        file = await files.create("sparse", exclusive=True)
        file.write(3 << 30, b"end")
        assert file.nbytes == (3 << 30) + 3
        assert await file.read(1 << 30, 4) == bytes(4)
        with pytest.raises(Refused, match="4 GiB"):
            file.write(5 << 30, b"end")
        file.buffer.truncate(3)
        await files.flush(file)
        await files.release(file)

    run_sync(run())
    assert native(url, "sparse") == bytes(3)


# -- an independent attack's findings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", ["close", "fsync"])
@pytest.mark.parametrize(("source", "target"), [("notes.txt", "notes.1"), ("notes.tmp", "notes.1"), (KEY, "ct/c/0/0/1")])
def test_a_file_that_is_renamed_and_then_written_on_is_stored(url: str, durable: str, source: str, target: str) -> None:
    files = files_of(url, durable=durable)

    async def run() -> None:
        there = await files.find(source) is not None
        file = await (files.edit(source, truncates=True) if there else files.create(source, exclusive=False))
        file.write(0, b"one")
        await files.fsync(file)
        await files.rename(source, target)
        for _ in range(2):  # before what was renamed is stored, and after
            file.write(file.nbytes, b" more")
            await files.flush(file)
            await files.sync()
        await files.release(file)

    run_sync(run())
    assert run_sync(files.end()) == []
    assert native(url, source) is None
    assert native(url, target) == b"one more more"


def test_the_old_name_is_erased_only_after_the_new_one_is_stored(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(url, durable="fsync")
    old = native(url, KEY)

    async def refuse(updates: Sequence[Any]) -> list[StorageError]:
        return [StorageError("gone")] * len(updates)

    with monkeypatch.context() as patched:
        patched.setattr(files.store, "change", refuse)
        with pytest.raises(StorageError):
            run_sync(files.rename(KEY, "ct/c/0/0/1"))
    assert run_sync(read(files, KEY)) == old
    assert run_sync(files.end()) == []
    assert native(url, KEY) == old


@pytest.mark.parametrize("way", ["create", "rename", "link"])
def test_what_must_be_new_waits_for_the_erasure_of_the_old_one(url: str, way: str) -> None:
    files, other = files_of(url, clock=Clock()), files_of(url)
    opened: list[tuple[Files, Any]] = []

    async def take(files: Files) -> None:
        if way == "create":
            opened.append((files, await files.create("lock", exclusive=True)))
            return
        scratch = await files.create("lock.tmp", exclusive=False)
        await files.release(scratch)
        if way == "rename":
            await files.rename("lock.tmp", "lock", no_replace=True)
        else:
            await files.link("lock.tmp", "lock")

    async def run() -> None:
        await write(files, "lock", b"old")
        await files.unlink("ct/c/7/7/7")
        await files.unlink("lock")
        assert "lock" in files.held.pending  # its erasure is held back
        await take(files)
        await files.sync()
        with pytest.raises(Refused):
            await take(other)
        for one, file in opened:
            await one.release(file)

    run_sync(run())
    for one in (files, other):
        assert run_sync(one.end()) == []
    assert native(url, "lock") == b""


def test_a_close_waits_for_what_becomes_of_an_unlink(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(url)

    async def run() -> None:
        await write(files, "notes.txt", b"old")
        file = await files.edit("notes.txt", truncates=True)
        file.write(0, NEW)

        async def refuse(updates: Sequence[Any]) -> list[StorageError]:
            return [StorageError("gone")] * len(updates)

        gate = Gate(refuse)
        with monkeypatch.context() as patched:
            patched.setattr(files.store, "change", gate)
            removing = asyncio.create_task(files.unlink("notes.txt"))
            await gate.begun.wait()
            closing = asyncio.create_task(files.flush(file))
            await until_it_waits(closing)
            patched.undo()
            gate.opened.set()
            with pytest.raises(StorageError):
                await removing
            await closing
        await files.release(file)
        assert await read(files, "notes.txt") == NEW
        await write(files, "notes.txt", b"newer")

    run_sync(run())
    assert native(url, "notes.txt") == b"newer"


def test_a_small_chunk_is_opened_while_another_of_its_shard_is_written(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(url)
    old = native(url, KEY)
    pin = files.store.pin

    async def slow(key: str) -> Any:
        pinned = await pin(key)
        await asyncio.to_thread(shardstore.get_mapper(url).__setitem__, "ct/c/0/0/1", NEW)
        return pinned

    monkeypatch.setattr(files.store, "pin", slow)
    assert run_sync(files.find(KEY)) is not None
    assert run_sync(read(files, KEY)) == old


def no_space() -> OSError:
    return OSError(errno.ENOSPC, "no space left")


def test_a_file_that_found_no_room_is_not_stored(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(url)

    async def run() -> None:
        await write(files, "notes.txt", b"old")
        file = await files.edit("notes.txt", truncates=True)
        file.write(0, bytes(MEMORY_NBYTES))
        disk = Disk()
        with monkeypatch.context() as patched:
            patched.setattr("tempfile.TemporaryFile", lambda *_, **__: disk)
            with pytest.raises(OSError, match="no space"):
                file.write(MEMORY_NBYTES, b"more")
        disk.is_full = False
        with pytest.raises(NoSpace, match=r"notes\.txt"):
            await files.flush(file)
        file.buffer.truncate(0)
        file.write(0, NEW)
        await files.flush(file)
        await files.release(file)

    run_sync(run())
    assert native(url, "notes.txt") == NEW


class Disk(io.BytesIO):
    """A temporary file on a disk that is full."""

    is_full = True

    def write(self, data: Any) -> int:
        if self.is_full:
            raise no_space()
        return super().write(data)


@pytest.mark.parametrize("method", ["rename", "create", "link"])
def test_what_is_stored_is_told_though_nothing_can_be_asked_afterwards(url: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(url)

    async def run() -> None:
        await write(files, f"{KEY}.tmp", NEW)
        await files.unlink(KEY)

        async def fail(_path: str) -> bool:
            raise StorageError("gone")

        commit = files.held.commit

        async def committing(*arguments: Any) -> None:
            await commit(*arguments)
            monkeypatch.setattr(files.tree, "chunk_area", fail)

        monkeypatch.setattr(files.held, "commit", committing)
        if method == "create":
            await files.release(await files.create("ct/lock", exclusive=True))
        else:
            await getattr(files, method)(f"{KEY}.tmp", KEY)

    run_sync(run())
    assert run_sync(files.end()) == []
    assert native(url, "ct/lock" if method == "create" else KEY) == (b"" if method == "create" else NEW)


@pytest.mark.parametrize("durable", ["close", "fsync"])
def test_a_file_that_is_closed_while_it_gets_a_scratch_name_can_be_read(url: str, durable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(url, durable=durable)

    async def run() -> None:
        await write(files, "notes.txt", b"old")
        file = await files.edit("notes.txt", truncates=True)
        file.write(0, NEW)
        await files.flush(file)
        gate = Gate(files.held.settle)
        monkeypatch.setattr(files.held, "settle", gate)
        renaming = asyncio.create_task(files.rename("notes.txt", "notes.txt~"))
        await gate.begun.wait()
        await files.release(file)
        gate.opened.set()
        await renaming
        assert await read(files, "notes.txt~") == NEW
        await files.rename("notes.txt~", "notes.txt")

    run_sync(run())
    assert run_sync(files.end()) == []
    assert native(url, "notes.txt") == NEW


def test_a_file_that_is_removed_while_it_is_being_opened_is_not_found(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(url, durable="fsync", clock=Clock())

    async def run() -> None:
        await write(files, "notes.txt", b"old")
        await files.sync()
        gate = Gate(files.store.read, before=False)
        monkeypatch.setattr(files.store, "read", gate)
        opening = asyncio.create_task(files.edit("notes.txt", truncates=False))
        await gate.begun.wait()
        await files.unlink("ct/c/7/7/7")
        await files.unlink("notes.txt")
        gate.opened.set()
        with pytest.raises(NotFound):
            await opening

    run_sync(run())
    assert run_sync(files.end()) == []
    assert native(url, "notes.txt") is None


def test_a_value_whose_answer_was_lost_is_no_value_of_others(url: str) -> None:
    storage = FaultStorage(open_storage(url, {}))
    files = files_of(storage)

    async def run() -> None:
        await write(files, "notes.txt", b"old")
        file = await files.edit("notes.txt", truncates=False, appends=True)
        file.write(0, b" one")
        storage.plan(Fault(1, DropReply(), frozenset({"write"})))
        with pytest.raises(WriteOutcomeUnknown):
            await files.fsync(file)
        storage.plan()
        file.write(0, b" two")
        await files.flush(file)
        await files.release(file)

    run_sync(run())
    assert native(url, "notes.txt") == b"old one two"


def test_a_spilled_value_that_cannot_be_read_keeps_nothing_else_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(url, durable="fsync", write_memory=10, clock=Clock())

    async def run() -> None:
        await write(files, "spilled", b"x" * 20)
        await files.unlink("ct/c/7/7/7")
        await files.unlink(KEY)
        with monkeypatch.context() as patched:
            patched.setattr(type(files.held.pending["spilled"].data), "read", lambda _: (_ for _ in ()).throw(no_space()))
            with pytest.raises(OSError, match="no space"):
                await files.sync()
            assert list(files.held.pending) == ["spilled"]
        await files.sync()

    run_sync(run())
    assert native(url, "spilled") == b"x" * 20


def test_attributes_of_zarr_2_are_removed_before_the_node(url: str) -> None:
    zarr.open_array(shardstore.open(url), path="ct", mode="r+").attrs["units"] = "K"
    files = files_of(url, present="v2")
    documents = [entry.name for entry in run_sync(files.names.entries("ct"))][-2:]
    assert documents == [".zattrs", ".zarray"]


@pytest.mark.parametrize("durable", ["close", "fsync"])
@pytest.mark.parametrize("waits", [False, True])
def test_an_empty_chunk_that_was_closed_is_stored_when_fsync_returns(
    url: str, durable: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel does not wait for the release of a closed file before it asks for ``fsync`` of another one."""
    files = files_of(url, durable=durable)

    async def run() -> None:
        file = await files.create("early/c/0", exclusive=False)
        await files.flush(file)
        gate = Gate(files._early.is_early)
        monkeypatch.setattr(files._early, "is_early", gate)
        async with files._moves.change() if not waits else files._moves.move():
            releasing = asyncio.create_task(files.release(file))
            if waits:
                await until_it_waits(releasing)
            else:
                await gate.begun.wait()
            syncing = asyncio.create_task(files.sync())
            await until_it_waits(syncing)
        gate.opened.set()
        await syncing
        assert "early/c/0" not in files.held.pending
        stored = await files.store.presented.get(("early/c/0", EVERYTHING))
        assert stored is not None
        assert bytes(stored) == b""
        await releasing

    run_sync(run())


@pytest.mark.parametrize("before", ["rm", "rm after another", "mv", "mv to a backup"])
@pytest.mark.parametrize("durable", ["close", "fsync"])
@pytest.mark.parametrize("becomes", ["a new directory", "a renamed one"])
def test_a_name_of_which_an_erasure_is_held_back_can_be_that_of_a_directory(url: str, before: str, durable: str, becomes: str) -> None:
    files = files_of(url, durable=durable, clock=Clock())

    async def run() -> None:
        await write(files, "log", b"old")
        if before.startswith("rm"):
            await files.unlink(KEY if before == "rm" else "ct/c/7/7/7")
            await files.unlink("log")
        else:
            await files.rename("log", "log.1" if before == "mv" else "log~")
        if becomes == "a new directory":
            await files.mkdir("log")
        else:
            await files.mkdir("made")
            await write(files, "made/file", b"in it")
            await files.rename("made", "log")
        assert await files.find("log") == DIRECTORY
        assert "log" in [entry.name for entry in await files.names.entries("") if entry.nbytes == DIRECTORY]
        await write(files, "log/today", NEW)
        await files.sync()
        assert await read(files, "log/today") == NEW
        if before.startswith("mv"):
            assert await read(files, "log.1" if before == "mv" else "log~") == b"old"

    run_sync(run())
    assert run_sync(files.end()) == []
    assert native(url, "log/today") == NEW
    assert native(url, "log") is None


@pytest.mark.parametrize("becomes", ["create", "rename", "link"])
@pytest.mark.parametrize("name", ["log", "5"])
def test_a_directory_of_which_erasures_are_held_back_can_be_replaced_by_a_file(url: str, becomes: str, name: str) -> None:
    files = files_of(url, clock=Clock())

    async def run() -> None:
        await files.mkdir(name)
        for file in ("one", "two"):
            await write(files, f"{name}/{file}", b"old")
        await files.rename(f"{name}/one", "one~")
        await files.unlink("ct/c/7/7/7")
        await files.unlink(f"{name}/two")
        await files.rmdir(name)
        if becomes == "create":
            await write(files, name, NEW)
        else:
            await write(files, "new.tmp", NEW)
            await getattr(files, becomes)("new.tmp", name)
        assert await read(files, name) == NEW
        assert await read(files, "one~") == b"old"
        await files.sync()

    run_sync(run())
    assert run_sync(files.end()) == []
    assert native(url, name) == NEW


@pytest.mark.parametrize("listed", [[], ["ct"], ["ct", "ct/c", "ct/c/0", "ct/c/7"]])
def test_an_empty_directory_of_chunks_is_there_whatever_was_listed(url: str, listed: list[str]) -> None:
    mapper = shardstore.get_mapper(url)
    for key in [key for key in mapper if key.startswith("ct/c/7/")]:
        del mapper[key]
    files = files_of(url)

    async def run() -> None:
        for path in listed:
            await files.names.entries(path)
        assert "7" not in [entry.name for entry in await files.names.entries("ct/c")]
        assert await files.find("ct/c/7") == DIRECTORY
        assert await files.find("ct/c/7/3") == DIRECTORY
        assert await files.find("ct/c/8") is None  # beyond the grid
        assert await files.find("ct/c/7/3/0") is None
        await write(files, "ct/c/7/3/0", NEW)
        assert [entry.name for entry in await files.names.entries("ct/c/7")] == ["3"]

    run_sync(run())
    assert native(url, "ct/c/7/3/0") == NEW


@pytest.mark.parametrize("change", ["remove", "remove all", "write", "move", "forget"])
@pytest.mark.parametrize("path", ["ct", "notes"])
def test_what_is_changed_while_it_is_listed_is_listed_all_the_same(
    url: str, path: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = files_of(url, clock=Clock()).tree
    mapper = shardstore.get_mapper(url)
    mapper["notes/one"] = mapper["notes/two"] = b"old"
    file, other = ("ct/c/0/0/0", "ct/c/7/7/8") if path == "ct" else ("notes/one", "notes/three")
    name = "list_batches" if path == "ct" else "list_dir"
    method = getattr(tree.store, name)
    begun, opened = asyncio.Event(), asyncio.Event()

    async def slow_batches(prefix: str) -> AsyncIterator[Any]:
        batches = [batch async for batch in method(prefix)]
        begun.set()
        await opened.wait()
        for batch in batches:
            yield batch

    async def slow_level(prefix: str) -> Any:
        found = await method(prefix)
        begun.set()
        await opened.wait()
        return found

    async def run() -> None:
        await tree._space(path)  # else the second listing waits for this, and may begin after the change
        monkeypatch.setattr(tree.store, name, slow_batches if path == "ct" else slow_level)
        listings = [asyncio.create_task(tree.names(path)) for _ in range(2)]
        finding = asyncio.create_task(tree.find(file))
        await begun.wait()
        monkeypatch.undo()
        match change:
            case "remove":
                tree.remove(file)
            case "remove all":
                tree.remove(path)
            case "write":
                tree.put(file, len(NEW))
                tree.put(other, 1)
            case "move":
                tree.moved("somewhere", "else")
                asyncio.get_running_loop().call_soon(tree.forget, path)
            case "forget":
                asyncio.get_running_loop().call_soon(tree.forget, path)
        opened.set()
        listed, again, found = *await asyncio.gather(*listings), await finding
        assert again.names == listed.names
        if change == "remove all":
            return
        expected = {"c", "zarr.json"} if path == "ct" else {"one", "two"} - ({"one"} if change == "remove" else set())
        assert set(listed.names) == expected | ({"three"} if change == "write" and path == "notes" else set())
        if path == "notes":  # in an array the chunk itself is asked for
            assert (found is None) is (change == "remove")
        if change == "write":
            assert await tree.find(file) == len(NEW)
            assert await tree.find(other) == 1

    run_sync(run())


def test_a_chunk_is_found_while_one_level_above_it_is_listed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = files_of(url, clock=Clock()).tree

    async def run() -> None:
        gate = Gate(tree.store.list_dir)
        monkeypatch.setattr(tree.store, "list_dir", gate)
        level = asyncio.create_task(tree.find("ct/notes"))
        await gate.begun.wait()
        sizes = [await tree.find(f"ct/c/{i}/{j}/0") for i in range(4) for j in range(4)]  # so many that all of them are listed
        assert None not in sizes
        gate.opened.set()
        assert await level is None

    run_sync(run())


@pytest.mark.parametrize("moves", [False, True])
def test_a_removed_directory_stays_removed_while_a_file_of_it_has_a_temporary_name(url: str, moves: bool) -> None:
    clock = Clock()
    files, other = files_of(url, clock=clock), files_of(url)

    async def run() -> None:
        await files.mkdir("top")
        await write(files, "top/kept", b"kept")
        await files.mkdir("top/sub")
        await write(files, "top/sub/one", b"old")
        await files.rename("top/sub/one", "one~")  # it keeps its old name on the storage
        await files.rmdir("top/sub")
        top = "moved" if moves else "top"
        if moves:
            await files.rename("top", "moved")
        clock.now += 1000
        assert await files.find(f"{top}/sub") is None
        assert [entry.name for entry in await files.names.entries(top)] == ["kept"]
        await write(other, f"{top}/sub/two", NEW)  # by another client
        clock.now += 1000
        assert await files.find(f"{top}/sub") == DIRECTORY
        assert [entry.name for entry in await files.names.entries(f"{top}/sub")] == ["two"]

    run_sync(run())
    assert run_sync(files.end()) == []
    assert native(url, f"{'moved' if moves else 'top'}/sub/one") == b"old"


@pytest.mark.parametrize("durable", ["close", "fsync"])
def test_a_long_file_is_stored_without_being_read_into_memory(url: str, durable: str) -> None:
    files = files_of(url, durable=durable)
    nbytes = 8 * MEMORY_NBYTES

    async def run() -> None:
        file = await files.create("sparse", exclusive=False)
        file.write(nbytes, b"end")
        tracemalloc.start()
        try:
            await files.flush(file)
            await files.sync()
            assert tracemalloc.get_traced_memory()[1] < MEMORY_NBYTES
        finally:
            tracemalloc.stop()
        await files.release(file)

    run_sync(run())
    assert run_sync(files.end()) == []
    assert native(url, "sparse") == bytes(nbytes) + b"end"


@pytest.mark.parametrize("durable", ["close", "fsync"])
@pytest.mark.parametrize("change", ["write", "shorten", "lengthen", "empty"])
def test_a_long_file_that_is_changed_while_it_is_stored_is_stored_as_it_was(
    url: str, durable: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_of(url, durable=durable)
    nbytes = 2 * MEMORY_NBYTES
    first = b"begin".ljust(nbytes, b"\0") + b"end"
    second = {"write": b"other" + first[5:], "shorten": first[:7], "lengthen": first.ljust(nbytes + 9, b"\0"), "empty": b"new"}[change]

    async def run() -> None:
        file = await files.create("long", exclusive=False)
        file.write(0, b"begin")
        file.write(nbytes, b"end")
        if durable == "fsync":
            await files.flush(file)
        gate = Gate(files.store.change)
        monkeypatch.setattr(files.store, "change", gate)
        storing = asyncio.create_task(files.flush(file) if durable == "close" else files.sync())
        await gate.begun.wait()
        match change:
            case "write":
                file.write(0, b"other")
            case "shorten":
                file.buffer.truncate(7)
            case "lengthen":
                file.buffer.truncate(len(second))
            case "empty":
                file.buffer.truncate(0)
                file.write(0, b"new")
        gate.opened.set()
        await storing
        assert bytes(await files.store.presented.get(("long", EVERYTHING)) or b"") == first
        assert bytes(await file.read(0, nbytes + 100)) == second
        await files.flush(file)
        await files.release(file)

    run_sync(run())
    assert run_sync(files.end()) == []
    assert native(url, "long") == second


def test_a_directory_that_is_renamed_while_the_one_above_is_listed_is_listed_under_its_new_name(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = files_of(url, clock=Clock()).tree
    shardstore.get_mapper(url)["notes/one"] = b"old"

    async def run() -> None:
        gate = Gate(tree.store.list_dir, before=False)
        monkeypatch.setattr(tree.store, "list_dir", gate)
        listing = asyncio.create_task(tree.names(""))
        await gate.begun.wait()
        await tree.store.move_prefix("notes", "moved")
        tree.moved("notes", "moved")
        gate.opened.set()
        assert "moved" in (await listing).names
        assert await tree.find("notes") is None

    run_sync(run())
