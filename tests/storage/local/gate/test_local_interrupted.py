"""Local writes that are cancelled again and again, that are interrupted, or replaced by someone who takes no locks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

import shardstore
from shardstore.errors import StorageError
from shardstore.model.generation import UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Changed, Read
from shardstore.storage.local import locks as local_locks
from shardstore.storage.local.locks import locked, wait_for_lock
from shardstore.storage.local.mounts import Mount
from shardstore.storage.local.range_locks import DIRECTORY_LOCK, locked_range
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.local.temporary import TemporaryFile
from shardstore.testing.storage_suite import on_io_loop


def test_a_file_is_not_closed_while_a_thread_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the writer is cancelled: the number of the descriptor may be another file's by then."""
    storage = LocalStorage(tmp_path)
    inside, go_on = threading.Event(), threading.Event()
    seen: list[str] = []
    append, close = TemporaryFile.append, TemporaryFile.close

    def slow_append(self: TemporaryFile, views: Iterable[memoryview]) -> None:
        inside.set()
        assert go_on.wait(60)
        seen.append("written")
        append(self, views)

    def noted_close(self: TemporaryFile) -> None:
        seen.append("closed")
        close(self)

    monkeypatch.setattr(TemporaryFile, "append", slow_append)
    monkeypatch.setattr(TemporaryFile, "close", noted_close)

    async def body() -> AsyncIterator[bytes]:
        yield b"x"

    async def run() -> None:
        writing = asyncio.ensure_future(storage.write("k", body(), 1, UNCONDITIONAL))
        await asyncio.to_thread(inside.wait, 60)
        for _ in range(3):
            writing.cancel()
            for _ in range(20):
                await asyncio.sleep(0.001)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await storage.close()

    on_io_loop(run())
    assert seen[0] == "written"
    assert list(tmp_path.iterdir()) == []


def test_the_version_of_another_is_not_taken_for_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a network mount, where another machine's locks may not hold."""
    monkeypatch.setattr("shardstore.storage.local.storage.mount_of", lambda _path: Mount(str(tmp_path), "nfs4"))
    storage = LocalStorage(tmp_path)
    sync_names = TemporaryFile._sync_names

    def replaced_at_once(self: TemporaryFile, is_kept: bool) -> None:
        sync_names(self, is_kept)
        (tmp_path / "theirs").write_bytes(b"theirs")
        os.replace(tmp_path / "theirs", tmp_path / "k")

    monkeypatch.setattr(TemporaryFile, "_sync_names", replaced_at_once)
    generation = on_io_loop(storage.write("k", [b"ours!!"], 6, UNCONDITIONAL))
    assert on_io_loop(storage.read([Read("k", (EVERYTHING,), generation)])) == [Changed()]
    on_io_loop(storage.close())


# -- a writer that waits for a lock ------------------------------------------------------------------------------------

WAITING_WRITER = """
import sys
from functools import partial
import shardstore
from shardstore.storage.local import locks, range_locks

def told(wait, *arguments):
    print("waiting", flush=True)
    wait(*arguments)

locks.wait_for_lock = range_locks.wait_for_lock = partial(told, locks.wait_for_lock)

store = shardstore.get_mapper(sys.argv[1], locks="cluster")
try:
    store["k"] = b"new"
finally:
    print("raised", flush=True)
"""


@pytest.mark.usefixtures("interruptible")
@pytest.mark.skipif(sys.platform != "linux", reason="locks='cluster' needs Linux")
@pytest.mark.parametrize("held", [locked, locked_range])
def test_one_interrupt_ends_a_writer_that_waits_for_a_lock(held: Callable[[str], AbstractContextManager[None]], tmp_path: Path) -> None:
    """A pool's thread that waited in the system call itself was joined as the interpreter ended, until a second interrupt."""
    store = shardstore.get_mapper(tmp_path)
    store["k"] = b"old"
    command = [sys.executable, "-c", WAITING_WRITER, str(tmp_path)]
    with held(str(tmp_path / "k")), subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "waiting\n"
            writer.send_signal(signal.SIGINT)
            said, errors = writer.communicate(timeout=60)
        finally:
            writer.kill()
    assert (said, writer.returncode) == ("raised\n", -signal.SIGINT)
    assert errors.endswith("KeyboardInterrupt\n")
    assert store["k"] == b"old"
    assert {name.name for name in tmp_path.iterdir()} <= {"k", DIRECTORY_LOCK}
    store["k"] = b"newer"
    assert store["k"] == b"newer"


THREADS = """
import sys, threading, time
import shardstore
from shardstore.storage.local.locks import locked

store = shardstore.get_mapper(sys.argv[1])
store["k"] = b"old"
def masks():
    found = {}
    for thread in threading.enumerate():
        try:
            with open(f"/proc/self/task/{thread.native_id}/status") as status:
                (blocked,) = [int(line.split()[1], 16) for line in status if line.startswith("SigBlk:")]
        except FileNotFoundError:  # it has not begun, or has ended
            continue
        found[thread.name.partition("_")[0]] = bool(blocked & 2)
    return found

with locked(sys.argv[1] + "/k"):
    writer = threading.Thread(target=store.__setitem__, args=("k", b"new"), daemon=True)
    writer.start()
    until = time.monotonic() + 60  # a thread blocks the signal a moment after it has begun
    while time.monotonic() < until:
        found = masks()
        if "shardstore-lock" in found and all(found[name] for name in found if name.startswith("shardstore-")):
            break
for name, is_blocked in found.items():
    print(name, is_blocked)
writer.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the masks of threads are looked up in /proc")
def test_threads_of_pools_leave_interrupts_to_the_main_thread(tmp_path: Path) -> None:
    """The system gives a signal to any thread that takes it; the main thread, which waits for a result, would notice nothing."""
    told = subprocess.run([sys.executable, "-c", THREADS, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120)
    masks = dict(line.rsplit(" ", 1) for line in told.stdout.splitlines())
    assert masks["MainThread"] == "False"
    ours = {name: mask for name, mask in masks.items() if name.startswith("shardstore-")}
    assert {"shardstore-lock", "shardstore-write"} <= set(ours)
    assert set(ours.values()) == {"True"}, ours


def test_a_lock_that_is_not_waited_for_any_more_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that is left behind in the system call gets the lock later, and keeps nobody out with it."""
    path = str(tmp_path / "k")
    monkeypatch.setattr(local_locks, "wait_for_lock", partial(wait_for_lock, grace_seconds=0))
    monkeypatch.setattr(local_locks, "_Interpreter", EndingInterpreter)
    with ThreadPoolExecutor(1) as pool:
        with locked(path), pytest.raises(StorageError, match="since this process began to exit: nothing was written"):
            pool.submit(hold_once, path).result(60)
        for _ in range(20):
            pool.submit(hold_once, path).result(60)
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_outlives_the_main_thread_gets_a_lock_that_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "k")
    monkeypatch.setattr(local_locks, "wait_for_lock", partial(wait_for_lock, look_seconds=0, grace_seconds=60))
    monkeypatch.setattr(local_locks, "_Interpreter", EndingInterpreter)
    with ThreadPoolExecutor(1) as pool:
        with locked(path):
            waiting = pool.submit(hold_once, path)
            assert EndingInterpreter.asked.wait(60)
        waiting.result(60)


class EndingInterpreter:
    """One that has begun to end."""

    asked = threading.Event()

    def is_ending(self) -> bool:
        self.asked.set()
        return True

    def close(self) -> None:
        """Nothing was opened."""


def hold_once(path: str) -> None:
    with locked(path):
        pass
