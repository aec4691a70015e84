"""Known chunks of remote shards are read by obstore in the caller's thread, on condition of the version; whatever else, by the engine."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import obstore
import pytest
import zarr

import shardstore
from shardstore.adapters.zarr import short_path
from tests.adapters.zarr.test_short_path import CHUNK, PER_SHARD, SHAPE, VALUES, check_same


def opened(s3_url: tuple[str, dict[str, Any]], **options: Any) -> shardstore.ShardedStore:
    url, storage_options = s3_url
    return shardstore.open(
        url, storage_options=storage_options, chunks_per_shard=PER_SHARD, **{"transport": "obstore", "metadata_ttl": "1h", **options}
    )


@pytest.fixture
def array(s3_url: tuple[str, dict[str, Any]]) -> Any:
    """An array whose documents and indices are known."""
    made = zarr.create_array(opened(s3_url), shape=SHAPE, chunks=CHUNK, dtype="i4", fill_value=7)
    made[...] = VALUES
    made[...]
    return made


def test_a_known_chunk_needs_no_loop_and_one_request(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    get = obstore.get

    def noted(store: Any, path: str, *, options: Any) -> Any:
        asked.append(options)
        return get(store, path, options=options)

    monkeypatch.setattr(obstore, "get", noted)
    monkeypatch.setattr(zarr.AsyncArray, "_get_selection", None)
    array.store.counters.reset()
    assert array[9, 9] == VALUES[9, 9]
    assert array.store.counters.requests == 1
    (options,) = asked
    assert options["if_match"]
    with ThreadPoolExecutor(8) as pool:  # as the workers of a DataLoader
        found = list(pool.map(lambda n: array[n * 7 % 64, n * 5 % 48], range(60)))
    assert found == [VALUES[n * 7 % 64, n * 5 % 48] for n in range(60)]
    assert len(asked) == 61


@pytest.mark.parametrize("selection", [np.s_[:20, :20], np.s_[40:64:3, 26:47:2], np.s_[7:9, 23], np.s_[0, :16]], ids=str)
def test_known_chunks_of_one_shard_need_no_loop_and_one_request(array: Any, selection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_same(array, selection)
    array.store.counters.reset()
    monkeypatch.setattr(zarr.AsyncArray, "_get_selection", None)
    assert np.array_equal(array[selection], VALUES[selection])
    assert array.store.counters.requests == 1
    assert array.store.counters.index_hits == 1


def test_another_version_is_read_by_the_engine(array: Any, s3_url: tuple[str, dict[str, Any]]) -> None:
    for selection in (np.s_[9, 9], np.s_[:20, :20]):
        assert check_same(array, selection)
        other = zarr.open_array(shardstore.open(s3_url[0], storage_options=s3_url[1]), mode="r+")
        other[:16, :16] = np.max(array[selection]) + 1
        assert np.array_equal(array[selection], other[selection])
        assert check_same(array, selection)


def test_what_the_engine_is_asked_for(array: Any, s3_url: tuple[str, dict[str, Any]]) -> None:
    assert not check_same(array, np.s_[:40, :20])  # chunks of several shards
    large = zarr.open_array(opened(s3_url), mode="r")
    pipeline: Any = large._async_array.codec_pipeline
    pipeline.limits = replace(pipeline.limits, request_bytes=8 * 256)
    assert np.array_equal(large[...], VALUES)
    assert not check_same(large, np.s_[:20, :20])  # so many bytes that several threads decode them
    assert check_same(large, np.s_[:16, :20])
    apart = zarr.open_array(opened(s3_url, gap_bytes=0), mode="r")
    assert np.array_equal(apart[...], VALUES)
    assert not check_same(apart, np.s_[:16, :8])  # two requests
    assert check_same(apart, np.s_[:8, :16])
    array[8:16, 8:16] = 7
    assert not check_same(array, np.s_[9, 9])  # a chunk that is not in its shard
    assert check_same(array, np.s_[:20, :20])  # unless other chunks of that shard are read
    array[:8, :16] = 7
    assert not check_same(array, np.s_[:8, :16])
    array.store.engine.hierarchy.distrust("")
    assert short_path.read_selection(array._async_array, np.s_[0, 0]) is None  # a document that is not fresh
    assert check_same(array, np.s_[20, 20])  # and is fresh again


def test_a_request_that_fails_is_repeated_by_the_engine(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise OSError("connection reset")

    monkeypatch.setattr(obstore, "get", refused)
    assert not check_same(array, np.s_[9, 9])
    assert not check_same(array, np.s_[:20, :20])
    assert array[9, 9] == VALUES[9, 9]


WORKERS = """
import json, multiprocessing, os, sys, warnings
import numpy as np, obstore, zarr, shardstore
from shardstore.adapters.zarr import short_path

def read(array, expected):
    def asked(*args, **kwargs):
        requests.append(args)
        return get(*args, **kwargs)

    get, obstore.get, requests = obstore.get, asked, []
    for _ in range(2):  # the first one looks at the document, and at the index
        requests.clear()
        short = [short_path.read_selection(array._async_array, part) is not None for part in (np.s_[9, 9], np.s_[:20, :20])]
        assert (array[...] == expected).all() and (array[:20, :20] == expected[:20, :20]).all() and array[9, 9] == expected[9, 9]
    return short, len(requests)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    url, options = json.loads(sys.argv[1])
    array = zarr.open_array(shardstore.open(url, storage_options=options, transport="obstore", metadata_ttl="1h"), mode="r")
    expected = array[...]
    assert read(array, expected) == ([True, True], 4)
    found = {}
    for method in ("fork", "forkserver", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            found[method] = pool.apply(read, (array, expected))
    child = os.fork()
    if child == 0:  # with everything that its parent knows, as the workers of a DataLoader
        os._exit(0 if read(array, expected) == ([False, False], 0) else 1)
    assert os.waitpid(child, 0)[1] == 0
    print(json.dumps(found))
"""


def test_workers_that_are_spawned_read_in_the_calling_thread_and_forked_ones_without_obstore(
    array: Any, s3_url: tuple[str, dict[str, Any]], tmp_path: Any
) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    done = subprocess.run([sys.executable, str(script), json.dumps(s3_url)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "does not work in a process that was forked" in done.stderr
    assert json.loads(done.stdout) == {"fork": [[False, False], 0], "forkserver": [[True, True], 4], "spawn": [[True, True], 4]}
