"""Local writes that are cancelled again and again, or replaced by someone who takes no locks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from shardstore.model.generation import UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Changed, Read
from shardstore.storage.local import LocalStorage
from shardstore.storage.local_mounts import Mount
from shardstore.storage.local_temporary import TemporaryFile
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
    monkeypatch.setattr("shardstore.storage.local.mount_of", lambda _path: Mount(str(tmp_path), "nfs4"))
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
