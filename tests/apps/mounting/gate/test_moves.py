"""Directories that are renamed while programs work in them: every acknowledged byte is in the array that the file belonged to."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.apps.mounting.errnos import Refused
from shardstore.apps.mounting.files import Files
from shardstore.apps.mounting.mounts import Mount
from shardstore.apps.mounting.names import DIRECTORY, Child, Place, path_of
from shardstore.storage.local.locks import locked
from shardstore.testing.storage_suite import on_io_loop as run_sync
from tests.apps.mounting.conftest import DATA, make_store
from tests.apps.mounting.gate.test_mounted import wait_until
from tests.apps.mounting.gate.test_races import Gate, read, until_it_waits, write
from tests.apps.mounting.test_files import files_of, native

NEW = b"what is new"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The arrays ``ct`` and ``other``, and a group with notes."""
    url = str(tmp_path / "data.zarr")
    make_store(url)
    group: Any = zarr.open_group(shardstore.open(url, chunks_per_shard=(2, 2, 2)), mode="r+")
    group.create_array("other", shape=(8, 8, 8), chunks=(4, 4, 4), dtype="u1")[:] = 5
    group.create_group("notes")
    return url


def place_of(files: Files, path: str, name: str | None = None) -> Place:
    """Return a place as the kernel names it: an inode, or a name in one."""
    inode = files.names.inodes.at(path)
    inode.lookups += 1
    return inode if name is None else Child(inode, name)


async def write_to(files: Files, opening: Awaitable[Any]) -> None:
    file = await opening
    file.write(0, NEW)
    await files.flush(file)
    await files.release(file)


async def edit(files: Files) -> None:
    await write_to(files, files.edit(place_of(files, "ct/c/0/0/0"), truncates=True))


async def append(files: Files) -> None:
    await write_to(files, files.edit(place_of(files, "ct/c/0/0/0"), truncates=False, appends=True))


async def create(files: Files) -> None:
    await write_to(files, files.create(place_of(files, "ct/c/0/0", "0"), exclusive=False))


async def truncate(files: Files) -> None:
    await files.truncate(place_of(files, "ct/c/0/0/0"), 1)


async def unlink(files: Files) -> None:
    await files.unlink(place_of(files, "ct/c/0/0", "0"))


async def rename(files: Files) -> None:
    await files.rename(place_of(files, "ct/c/0/0", "scratch"), place_of(files, "ct/c/0/0", "0"))


async def link(files: Files) -> None:
    source, target = place_of(files, "ct/c/0/0/scratch"), place_of(files, "ct/c/0/0", "0")
    await files.unlink(target)
    await files.link(source, target)


async def mkdir(files: Files) -> None:
    directory, notes = place_of(files, "ct", "made"), place_of(files, "ct", "notes")
    await files.mkdir(directory)
    await write_to(files, files.create(notes, exclusive=False))


@pytest.mark.parametrize("work", [edit, append, create, truncate, unlink, rename, link, mkdir])
@pytest.mark.parametrize("durable", ["close", "fsync"])
def test_what_waits_for_a_rename_is_done_in_the_directory_that_it_was_asked_for(
    url: str, work: Callable[[Files], Coroutine[Any, Any, None]], durable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two programs: one renames ``ct`` and gives its name to another array, the other works in ``ct`` meanwhile."""
    files = files_of(url, durable=durable)
    old, other = native(url, "ct/c/0/0/0") or b"", native(url, "other/c/0/0/0")
    left: dict[object, bytes | None] = {append: old + NEW, create: NEW + old[len(NEW) :], truncate: old[:1], unlink: None, mkdir: old}
    expected = left.get(work, NEW)

    async def run() -> None:
        if work in (rename, link):
            await write(files, "ct/c/0/0/scratch", NEW)
        gate = Gate(files.store.move_prefix)
        monkeypatch.setattr(files.store, "move_prefix", gate)
        renaming = asyncio.create_task(files.rename("ct", "moved"))
        await gate.begun.wait()
        for path in ("ct", "ct/c/0/0", "ct/c/0/0/0", "ct/c/0/0/scratch"):
            place_of(files, path)
        again = asyncio.create_task(files.rename("other", "ct"))
        working = asyncio.create_task(work(files))
        await until_it_waits(working)
        gate.opened.set()
        await asyncio.gather(renaming, again, working)
        if work is mkdir:
            assert await files.find("moved/made") == DIRECTORY
            assert await files.find("ct/made") is None
        await files.sync()

    run_sync(run())
    assert run_sync(files.end()) == []
    assert native(url, "moved/c/0/0/0") == expected
    assert native(url, "ct/c/0/0/0") == other
    assert native(url, "moved/notes") == (NEW if work is mkdir else None)
    assert native(url, "ct/notes") is None


@pytest.mark.parametrize("ends", [True, False])
def test_what_is_only_read_waits_for_a_rename_of_its_directory_alone(url: str, ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(url)
    old, other = native(url, "ct/c/0/0/0") or b"", native(url, "other/c/0/0/0") or b""

    async def run() -> None:
        gate = Gate(files.store.move_prefix)
        monkeypatch.setattr(files.store, "move_prefix", gate)
        chunk, directory = place_of(files, "ct/c/0/0/0"), place_of(files, "ct/c/0/0")
        renaming = asyncio.create_task(files.rename("ct", "moved"))
        await gate.begun.wait()
        assert bytes(await read(files, "other/c/0/0/0")) == other  # does not wait
        questions: list[Coroutine[Any, Any, Any]] = [files.look(chunk), files.entries(directory), files.open(chunk)]
        asking = [asyncio.create_task(question) for question in questions]
        for task in asking:
            await until_it_waits(task)
        if not ends:
            renaming.cancel()
        gate.opened.set()
        await asyncio.gather(renaming, return_exceptions=True)
        looked, entries, opened = await asyncio.gather(*asking)
        name = "moved" if ends else "ct"
        assert looked == (f"{name}/c/0/0/0", len(old))
        assert entries[0] == f"{name}/c/0/0"
        assert len(entries[1]) == 8
        assert bytes(await opened.read(0, 1000)) == old

    run_sync(run())


def test_a_file_that_is_renamed_while_it_is_opened_is_the_one_that_was_opened(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(url)

    async def run() -> None:
        await write(files, "notes/a", b"first")
        await write(files, "notes/b", b"second")
        gate = Gate(files.store.read, before=False)
        monkeypatch.setattr(files.store, "read", gate)
        opening = asyncio.create_task(files.edit(place_of(files, "notes/a"), truncates=False, appends=True))
        await gate.begun.wait()
        await files.rename("notes/a", "notes/last")
        await files.rename("notes/b", "notes/a")
        gate.opened.set()
        file = await opening
        file.write(0, b" part")
        await files.flush(file)
        await files.release(file)
        await files.sync()

    run_sync(run())
    assert run_sync(files.end()) == []
    assert native(url, "notes/a") == b"second"
    assert native(url, "notes/last") == b"first part"


def test_a_place_whose_directory_was_removed_is_refused(url: str) -> None:
    files = files_of(url)
    run_sync(files.mkdir("empty"))
    place = place_of(files, "empty", "file")
    run_sync(files.rmdir("empty"))
    run_sync(files.mkdir("empty"))
    for asked in (files.look(place), files.open(place), files.create(place, exclusive=False), files.mkdir(place)):
        with pytest.raises(Refused) as caught:
            run_sync(asked)
        assert caught.value.number == errno.ESTALE
    assert run_sync(files.names.entries("empty")) == []


def test_times_and_places_go_with_a_renamed_directory(url: str) -> None:
    files = files_of(url)
    place = place_of(files, "notes/a")
    run_sync(write(files, "notes/a", NEW))
    files.names.set_mtime("notes/a", 1234)
    run_sync(files.rename("notes", "others"))
    assert path_of(place) == "others/a"
    assert files.names.mtime_ns("others/a") == 1234
    assert files.names.mtime_ns("notes/a") == files.names.began_ns


# -- on a mount ------------------------------------------------------------------------------------------------------------

_PROGRAM = """
import os, sys
os.chdir(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    try:
        exec(line)
        print("done", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


class Program:
    """A program that works in a directory and does what it is told to; ``wait`` returns how that ended."""

    def __init__(self, directory: str | Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self.wait() == "ready"

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")

    def wait(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def waits_for_the_mount(self) -> bool:
        return "request_wait" in Path(f"/proc/{self._process.pid}/wchan").read_text()

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.mark.parametrize("durable", ["close", "fsync"])
def test_programs_in_a_directory_that_is_renamed_lose_nothing(
    url: str, mount: Callable[..., Mount], durable: str, request: pytest.FixtureRequest
) -> None:
    """One writes a chunk that the storage does not take yet; one renames an array, and gives its name to another one; one works in it."""
    mounted = mount(url, durable=durable)
    slow, renaming, working = (Program(f"{mounted.directory}{path}") for path in ("", "", "/ct/c/0/0"))
    for program in (slow, renaming, working):
        request.addfinalizer(program.end)
    other = native(url, "other/c/0/0/0")
    with locked(f"{url}/other/c/0/0/0"):
        slow.tell("f = open('other/c/1/1/1', 'wb'); f.write(b'slow'); f.flush(); os.fsync(f.fileno()); f.close()")
        wait_until(slow.waits_for_the_mount)
        renaming.tell("os.rename('ct', 'moved'); os.rename('other', 'ct')")
        wait_until(renaming.waits_for_the_mount)
        working.tell(f"f = os.open('0', os.O_WRONLY | os.O_TRUNC); os.write(f, {NEW!r}); os.fsync(f); os.close(f)")
        wait_until(working.waits_for_the_mount)
    assert [program.wait() for program in (slow, renaming, working)] == ["done"] * 3
    mounted.unmount()
    assert native(url, "moved/c/0/0/0") == NEW
    assert native(url, "ct/c/0/0/0") == other
    assert native(url, "ct/c/1/1/1") == b"slow"
    moved: Any = zarr.open_group(shardstore.open(url), mode="r")["moved"]
    np.testing.assert_array_equal(moved[4:], DATA[4:])
