"""How many modules of the package a selection of zarr goes through, and how often its chunks are located.

Modules of ``model`` and ``format`` do not count: they are values and pure functions, which nobody has to follow.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.format.chunk_keys import ChunkKeyEncoding

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


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 cannot profile threads that run already")
def test_a_warm_local_selection_goes_through_few_modules(tmp_path: Path) -> None:
    array = made(str(tmp_path))
    array[10:100, 10:100]
    entered = modules_entered(lambda: array[10:100, 10:100])
    assert len(entered) <= 14, sorted(entered)


@pytest.mark.gate
@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 cannot profile threads that run already")
def test_a_cold_selection_on_s3_goes_through_few_modules(s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url
    made(url, storage_options=options)
    array = zarr.open_array(shardstore.open(url, storage_options=options), path="a", mode="r")
    entered = modules_entered(lambda: array[10:100, 10:100])
    assert len(entered) <= 20, sorted(entered)


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
        assert sorted(located) == chunks, url
    array = made("memory://path-of-waves", 128)  # so much that it is read in several waves
    located.clear()
    array[...]
    assert sorted(located) == sorted(f"c/{i}/{j}" for i in range(16) for j in range(16))
