"""How many modules of the package a selection, an assignment, a commit, a pack and a mounted file go through; how often chunks are located.

Modules of ``model`` and ``format`` do not count: they are values and pure functions, which nobody has to follow.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore._sync import run_async, run_sync
from shardstore.adapters.file_access import FileAccess
from shardstore.adapters.zarr import chunk_pipeline
from shardstore.apps.mounting.files import Files
from shardstore.format.chunk_keys import ChunkKeyEncoding
from shardstore.snapshots import Repository

PACKAGE = str(Path(shardstore.__file__).parent) + "/"
VALUES = ("model/", "format/")


def modules_entered(run: Callable[[], object]) -> set[str]:
    """The modules of which a function is called, in any thread."""
    entered: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE):
            entered.add(name.removeprefix(PACKAGE))

    threads: Any = threading
    threads.setprofile_all_threads(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        threads.setprofile_all_threads(None)
    return {name for name in entered if not name.startswith(VALUES)}


def made(url: str, chunk: int = 16, **options: Any) -> Any:
    store = shardstore.open(url, chunks_per_shard=(4, 4), **options)
    n = 16 * chunk
    array = zarr.create_array(store, name="a", shape=(n, n), chunks=(chunk, chunk), dtype="u2")
    array[...] = np.arange(n * n, dtype="u2").reshape(n, n)
    return array


needs_profile = pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 cannot profile threads that run already")


@needs_profile
def test_a_warm_local_selection_goes_through_few_modules(tmp_path: Path) -> None:
    array = made(str(tmp_path), metadata_ttl="1h")
    for most, part in [(15, (slice(10, 30), slice(10, 30))), (14, (slice(10, 100), slice(10, 100)))]:
        array[part]
        entered = modules_entered(partial(array.__getitem__, part))
        assert len(entered) <= most, sorted(entered)


def test_few_chunks_in_memory_are_read_without_a_hop_to_the_io_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = made(str(tmp_path), metadata_ttl="1h")
    array[0:20, 0:20]
    hops: list[object] = []

    async def noting(coroutine: Coroutine[Any, Any, Any]) -> Any:
        hops.append(coroutine)
        return await run_async(coroutine)

    monkeypatch.setattr(chunk_pipeline, "run_async", noting)
    array[0:20, 0:20]
    assert not hops


@needs_profile
def test_an_assignment_of_a_chunk_goes_through_few_modules(tmp_path: Path) -> None:
    array = made(str(tmp_path), metadata_ttl="1h")
    array[0:16, 0:16] = 1
    entered = modules_entered(lambda: array.__setitem__((slice(0, 16), slice(0, 16)), 2))
    assert len(entered) <= 30, sorted(entered)


@needs_profile
def test_a_commit_goes_through_few_modules(tmp_path: Path) -> None:
    repository = Repository.create(str(tmp_path))
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, name="a", shape=(64, 64), chunks=(16, 16), dtype="u2")
    array[...] = 1
    session.commit("made")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a")[0:32, 0:32] = 2
    entered = modules_entered(lambda: session.commit("changed"))
    assert len(entered) <= 22, sorted(entered)


@needs_profile
def test_a_pack_goes_through_few_modules(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "plain"), shape=(128, 128), chunks=(16, 16), dtype="u2")[...] = 1
    shardstore.pack(str(tmp_path / "plain"), str(tmp_path / "first"))
    entered = modules_entered(lambda: shardstore.pack(str(tmp_path / "plain"), str(tmp_path / "second")))
    assert len(entered) <= 40, sorted(entered)


@needs_profile
def test_a_read_of_a_mounted_file_goes_through_few_modules(tmp_path: Path) -> None:
    made(str(tmp_path))
    files = Files(FileAccess.open(str(tmp_path), {}, {}))

    async def read() -> bytes:
        file = await files.open("a/c/0/0")
        try:
            return bytes(await file.read(0, 1 << 20))
        finally:
            await files.release(file)

    assert run_sync(read())
    entered = modules_entered(lambda: run_sync(read()))
    assert len(entered) <= 20, sorted(entered)


@pytest.mark.gate
@needs_profile
@pytest.mark.parametrize(("transport", "most"), [("fsspec", 22), ("obstore", 30)])
def test_a_cold_selection_on_s3_goes_through_few_modules(s3_url: tuple[str, dict[str, Any]], transport: Any, most: int) -> None:
    url, options = s3_url
    made(url, storage_options=options)
    array = zarr.open_array(shardstore.open(url, storage_options=options, transport=transport), path="a", mode="r")
    entered = modules_entered(lambda: array[10:100, 10:100])
    assert len(entered) <= most, sorted(entered)


@pytest.mark.gate
@needs_profile
@pytest.mark.parametrize(("transport", "most"), [("fsspec", 31), ("obstore", 35)])
def test_an_assignment_on_s3_goes_through_few_modules(s3_url: tuple[str, dict[str, Any]], transport: Any, most: int) -> None:
    url, options = s3_url
    array = made(url, storage_options=options, metadata_ttl="1h", transport=transport)
    array[0:16, 0:32] = 1
    entered = modules_entered(lambda: array.__setitem__((slice(0, 16), slice(0, 32)), 2))
    assert len(entered) <= most, sorted(entered)


def test_each_chunk_of_a_selection_is_located_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    located: list[str] = []
    decode_all = ChunkKeyEncoding.decode_all

    def noting(self: ChunkKeyEncoding, keys: Any, ndim: int) -> Any:
        located.extend(keys)
        return decode_all(self, keys, ndim)

    monkeypatch.setattr(ChunkKeyEncoding, "decode_all", noting)
    chunks = [f"c/{i}/{j}" for i in range(7) for j in range(7)]
    for url, is_cold in [(str(tmp_path), False), (str(tmp_path / "cold"), True), ("memory://path-of-a-read", False)]:
        array = made(url)
        if is_cold:
            array = zarr.open_array(shardstore.open(url), path="a", mode="r")
        located.clear()
        array[0:100, 0:100]
        assert sorted(located) == ([] if url.startswith("/") else chunks), url  # no key is made on the short path
    array = made("memory://path-of-waves", 128)  # so much that it is read in several waves
    located.clear()
    array[...]
    assert sorted(located) == sorted(f"c/{i}/{j}" for i in range(16) for j in range(16))
