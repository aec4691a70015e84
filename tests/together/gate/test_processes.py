"""Stores travel: pickled, compared, into threads, forked and spawned processes, and under any event loop."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec.asyn
import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

import shardstore
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests import view, workers
from tests.stored import LocalObjects

ROOT = Path(__file__).parents[3]
WORKERS = 3


def create(store: shardstore.ShardedStore, name: str = "x") -> zarr.Array[Any]:
    return zarr.create_array(store, name=name, shape=(workers.CHUNKS,), chunks=(1,), dtype="u1", compressors=None, fill_value=0)


def all_written() -> list[int]:
    return [workers.values_of(chunk % WORKERS) for chunk in range(workers.CHUNKS)]


def environment() -> dict[str, str]:
    """For a child that imports this checkout's tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}


def shards(root: Path) -> list[str]:
    return [key for key in LocalObjects(root).keys() if not key.endswith("zarr.json")]  # noqa: SIM118 - no mapping


# -- pickled and compared ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["local", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any] | None]:
    if request.param == "local":
        return str(tmp_path), None
    if request.param == "memory":
        return f"memory://processes-{uuid.uuid4().hex}", None
    bucket, options = request.getfixturevalue("s3_url")
    return f"{bucket.rstrip('/')}/{uuid.uuid4().hex}", options


def test_a_pickled_store_is_the_same_store(url: tuple[str, dict[str, Any] | None]) -> None:
    store = shardstore.open(url[0], storage_options=url[1], chunks_per_shard=(4,), index_location="start")
    create(store)[...] = all_written()
    copy = pickle.loads(pickle.dumps(store))
    assert copy == store
    assert hash(copy) == hash(store)
    assert (copy.read_only, str(copy)) == (store.read_only, str(store))
    np.testing.assert_array_equal(zarr.open_array(copy, path="x", mode="r")[...], all_written())
    create(copy, "y")[0] = 1  # the options came along
    assert (copy.chunks_per_shard("y"), copy.layout("y").index_format.location) == ((4,), "start")
    np.testing.assert_array_equal(zarr.open_array(store, path="y", mode="r")[:2], [1, 0])


def test_a_pickled_transformer_is_the_same_transformer(url: tuple[str, dict[str, Any] | None]) -> None:
    create(shardstore.open(url[0], storage_options=url[1], chunks_per_shard=(4,)))[...] = all_written()
    transformer = shardstore.ShardingTransformer(url[0], storage_options=url[1])
    copy = pickle.loads(pickle.dumps(transformer))
    assert copy == transformer
    assert copy.list() == transformer.list()
    assert copy.get("x/c/1") == bytes([workers.values_of(1)])


def test_a_pickle_holds_no_data(tmp_path: Path) -> None:
    store = shardstore.open(str(tmp_path), chunks_per_shard=(4,))
    array = zarr.create_array(store, name="x", shape=(2**20,), chunks=(2**17,), dtype="u1", compressors=None)
    array[...] = np.arange(2**20) % 251
    np.asarray(array[...])
    assert len(pickle.dumps(store)) < 10_000


def test_a_pickled_array_works(tmp_path: Path) -> None:
    array = create(shardstore.open(str(tmp_path), chunks_per_shard=(4,)))
    copy = pickle.loads(pickle.dumps(array))
    copy[...] = all_written()
    np.testing.assert_array_equal(array[...], all_written())


def test_equal_means_same_place_and_same_options(tmp_path: Path) -> None:
    def opened(folder: str = "a", **options: Any) -> shardstore.ShardedStore:
        return shardstore.open(str(tmp_path / folder), **options)

    assert opened() == opened()
    assert hash(opened()) == hash(opened())
    assert len({opened(), opened(), opened("b")}) == 2
    assert opened() == opened(chunks_per_shard="auto")
    for other in (opened("b"), opened(read_only=True), opened(chunks_per_shard=(2,)), opened(index_location="start")):
        assert opened() != other
    assert opened() != str(tmp_path / "a")
    assert opened(read_only=True) == opened().with_read_only(True)


# -- threads -------------------------------------------------------------------------------------------------------------


def in_threads(actions: list[Callable[[], Any]]) -> list[Any]:
    """Run all at once; their results."""
    start = threading.Barrier(len(actions))

    def run(action: Callable[[], Any]) -> Any:
        start.wait()
        return action()

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(run, actions))


@pytest.mark.parametrize("kind", ["memory", "local"])
@pytest.mark.parametrize("engines", ["one engine", "an engine each"])
def test_threads_share_a_shard(tmp_path: Path, kind: str, engines: str) -> None:
    path = f"/threads-{uuid.uuid4().hex}"

    def client() -> shardstore.ShardedStore:
        storage = LocalStorage(str(tmp_path)) if kind == "local" else MemoryStorage(path)
        return shardstore.open(TraceStorage(storage), chunks_per_shard=(workers.CHUNKS,))

    first = client()
    create(first)
    stores = [first] * WORKERS if engines == "one engine" else [client() for _ in range(WORKERS)]
    in_threads([lambda i=i: workers.write_share(stores[i], "x", i, WORKERS) for i in range(WORKERS)])  # type: ignore[misc]
    assert workers.read_all(first, "x") == all_written()
    assert workers.read_all(client(), "x") == all_written()


def test_readers_see_one_moment_of_a_shard(tmp_path: Path) -> None:
    """While a writer rewrites a whole shard, with chunks that move, a selection inside the shard is all old or all new."""
    rounds = 30
    writer = shardstore.open(TraceStorage(LocalStorage(str(tmp_path))), chunks_per_shard=(8,), fsync=False)
    array = zarr.create_array(writer, name="x", shape=(8 * 512,), chunks=(512,), dtype="u2", fill_value=0)
    array[...] = 1
    done = threading.Event()

    def write() -> None:
        rng = np.random.default_rng(0)
        try:
            for value in range(2, 2 + rounds):
                # Compressed chunks of another length each time: what an old index says of them is wrong.
                noise = np.where(rng.random(8 * 512) < value / 40, 1, 0).astype("u2")
                array[...] = 2 * value + noise
        finally:
            done.set()

    def read() -> int:
        reader = zarr.open_array(shardstore.open(TraceStorage(LocalStorage(str(tmp_path)))), path="x", mode="r")
        reads = 0
        while not done.is_set() or reads == 0:
            values = np.unique(np.asarray(reader[...]) // 2)
            assert len(values) == 1, values
            reads += 1
        return reads

    in_threads([write, read, read])


# -- processes -----------------------------------------------------------------------------------------------------------


def in_fork(action: Callable[[], object]) -> None:
    """Run ``action`` in a forked child; fail where it fails."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            action()
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
            raise
        finally:
            os._exit(status)
    _, waited = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(waited) == 0


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
# Newer Pythons warn that forking with threads may hang: that it does not is what is tested.
may_fork = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@needs_fork
@may_fork
def test_a_forked_child_reads_and_writes(tmp_path: Path) -> None:
    store = shardstore.open(str(tmp_path), chunks_per_shard=(4,))
    array = create(store)
    array[...] = all_written()

    def child() -> None:
        np.testing.assert_array_equal(array[...], all_written())
        array[0] = 99
        array[5] = 98
        create(store, "y")[0:3] = 7

    in_fork(child)
    expected = all_written()
    expected[0], expected[5] = 99, 98
    assert workers.read_all(store, "x") == expected
    assert workers.read_all(store, "y")[:4] == [7, 7, 7, 0]
    array[1] = 97
    expected[1] = 97
    assert workers.read_all(store, "x") == expected


@needs_fork
@may_fork
def test_a_forked_child_reaches_s3(s3_url: tuple[str, dict[str, Any]]) -> None:
    """A forked s3fs refuses to work: the child has to build its own."""
    store = shardstore.open(f"{s3_url[0].rstrip('/')}/{uuid.uuid4().hex}", storage_options=s3_url[1], chunks_per_shard=(4,))
    array = create(store)
    array[...] = all_written()

    def child() -> None:
        np.testing.assert_array_equal(array[...], all_written())
        array[0] = 99

    in_fork(child)
    assert workers.read_all(store, "x")[0] == 99


@needs_fork
@may_fork
def test_forked_children_share_a_shard_with_their_parent(tmp_path: Path) -> None:
    store = shardstore.open(str(tmp_path), chunks_per_shard=(workers.CHUNKS,))
    create(store)
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=workers.write_share, args=(store, "x", i, WORKERS)) for i in range(1, WORKERS)]
    for child in children:
        child.start()
    workers.write_share(store, "x", 0, WORKERS)
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert workers.read_all(store, "x") == all_written()
    assert len(shards(tmp_path)) == 1


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessPoolExecutor]:
    # A child imports what it is to run by the parent's path, which the runner may have left alone.
    monkeypatch.syspath_prepend(str(ROOT))
    with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize(
    ("in_store", "in_array"),
    [({"chunks_per_shard": (1, 4)}, {}), ({"chunks_per_shard": None}, {}), ({"chunks_per_shard": None}, {"shards": (64, 64)})],
    ids=["sharded", "not sharded", "shards of its own"],
)
def test_spawned_processes_share_a_chunk(
    tmp_path: Path, spawned: ProcessPoolExecutor, in_store: dict[str, Any], in_array: dict[str, Any]
) -> None:
    store = shardstore.open(tmp_path, fsync=False, **in_store)
    zarr.create_array(store, name="x", shape=(64, 64), chunks=(64, 16), dtype="u1", fill_value=0, **in_array)
    for share in [spawned.submit(workers.write_rows, store, "x", i, WORKERS) for i in range(WORKERS)]:
        share.result()
    expected = np.broadcast_to(np.arange(1, 65, dtype="u1")[:, None], (64, 64))
    np.testing.assert_array_equal(zarr.open_array(str(tmp_path), path="x", mode="r")[...], expected)


def test_spawned_processes_share_a_shard(tmp_path: Path, spawned: ProcessPoolExecutor) -> None:
    """zarr-python's own sharding loses up to half of the chunks here."""
    store = shardstore.open(str(tmp_path), chunks_per_shard=(workers.CHUNKS,))
    create(store)
    shares = [spawned.submit(workers.write_share, store, "x", i, WORKERS) for i in range(WORKERS)]
    assert sum(share.result() for share in shares) == workers.CHUNKS
    assert workers.read_all(store, "x") == all_written()
    assert len(shards(tmp_path)) == 1
    transformer = shardstore.ShardingTransformer(str(tmp_path))
    assert spawned.submit(workers.transformer_get, transformer, "x/c/1").result() == bytes([workers.values_of(1)])
    assert spawned.submit(workers.read_all, store, "x").result() == all_written()


STALE = """
import sys, shardstore
from tests import view
store = shardstore.open(sys.argv[1], metadata_ttl="1h")
print(view.get(store, "ct/c/0"), flush=True)
sys.stdin.readline()
view.put(store, "ct/c/1", b"\\x63")
"""


def test_another_process_that_saw_no_array_writes_into_its_shards(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STALE, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "None\n"
        array = create(shardstore.open(str(tmp_path), chunks_per_shard=(4,)), "ct")
        array[0:4] = [1, 2, 3, 4]
        other.communicate("go on\n")
    assert other.returncode == 0
    assert workers.read_all(shardstore.open(str(tmp_path)), "ct")[:5] == [1, 0x63, 3, 4, 0]
    assert shards(tmp_path) == ["ct/c/0"]


LEAVE = """
import sys, json, shardstore, zarr
store = shardstore.open(sys.argv[1], chunks_per_shard=(4,), storage_options=json.loads(sys.argv[2]))
array = zarr.create_array(store, name="x", shape=(8,), chunks=(1,), dtype="u1", fill_value=0)
array[...] = 5
print(int(array[...].sum()))
"""


def test_leaving_the_interpreter_says_nothing(url: tuple[str, dict[str, Any] | None]) -> None:
    command = [sys.executable, "-c", LEAVE, url[0], json.dumps(url[1])]
    left = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert (left.returncode, left.stdout, left.stderr) == (0, "40\n", "")


# -- event loops ---------------------------------------------------------------------------------------------------------


def test_any_event_loop_may_await(tmp_path: Path) -> None:
    store = shardstore.open(str(tmp_path), chunks_per_shard=(4,))
    create(store)[...] = all_written()

    async def read() -> list[bytes]:
        values = await asyncio.gather(*(store.get(f"x/c/{i}", default_buffer_prototype()) for i in range(workers.CHUNKS)))
        return [value.to_bytes() for value in values if value is not None]

    expected = [bytes([value]) for value in all_written()]
    assert asyncio.run(read()) == expected
    assert asyncio.run(read()) == expected  # another loop, the first being closed
    assert in_threads([lambda: asyncio.run(read())] * 3) == [expected] * 3
    assert fsspec.asyn.sync(fsspec.asyn.get_loop(), read) == expected


def test_a_synchronous_call_on_the_io_loop_is_an_error_and_no_deadlock(tmp_path: Path) -> None:
    transformer = shardstore.ShardingTransformer(str(tmp_path))

    async def block() -> None:
        transformer.get("x/c/0")

    with pytest.raises(RuntimeError, match="loop"):
        fsspec.asyn.sync(fsspec.asyn.get_loop(), block)


def test_a_cancelled_read_harms_nobody(tmp_path: Path) -> None:
    store = shardstore.open(str(tmp_path), chunks_per_shard=(4,))
    create(store)[...] = all_written()

    async def cancel() -> None:
        reads = [asyncio.ensure_future(store.get(f"x/c/{i}", default_buffer_prototype())) for i in range(8)]
        await asyncio.sleep(0)
        for read in reads[::2]:
            read.cancel()
        values = await asyncio.gather(*reads, return_exceptions=True)
        for i, value in enumerate(values):
            if i % 2:
                assert not isinstance(value, BaseException)
                assert value is not None
                assert value.to_bytes() == bytes([all_written()[i]])

    asyncio.run(cancel())
    assert view.get(store, "x/c/0") == bytes([all_written()[0]])


def test_importing_shardstore_imports_neither_zarr_nor_s3fs() -> None:
    script = "import sys, shardstore; print(sorted({'zarr', 's3fs', 'gcsfs', 'botocore'} & {name.split('.')[0] for name in sys.modules}))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment(), check=True)
    assert ran.stdout == "[]\n"
