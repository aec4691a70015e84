"""Changes of one name that overlap: what was acknowledged last is what is stored, and what is read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from shardstore._sync import run_sync
from shardstore.mounting.errnos import Refused
from shardstore.mounting.files import Files
from shardstore.mounting.held_back import Limits
from tests.mounting.conftest import make_store
from tests.mounting.test_files import Clock, files_of, native

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

    def __init__(self, method: Callable[[Sequence[Any]], Awaitable[Any]], *, number: int = 1, before: bool = True) -> None:
        self.begun = asyncio.Event()
        self.opened = asyncio.Event()
        self._method = method
        self._left = number
        self._before = before

    async def __call__(self, arguments: Sequence[Any]) -> Any:
        self._left -= 1
        waits = self._left == 0
        if waits and self._before:
            self.begun.set()
            await self.opened.wait()
        done = await self._method(arguments)
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
        gate = Gate(files.store.update_many)
        monkeypatch.setattr(files.store, "update_many", gate)
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
        gate = Gate(files.store.update_many, number=2)  # after the document
        monkeypatch.setattr(files.store, "update_many", gate)
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
        gate = Gate(files.store.update_many)
        monkeypatch.setattr(files.store, "update_many", gate)
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
        gate = Gate(files.store.read_versions, before=False)
        monkeypatch.setattr(files.store, "read_versions", gate)
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
        refused = [one for one in made if isinstance(one, Refused)]
        assert len(refused) == exclusive
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
