"""Instances of ``sharded``: shared, compared, pickled, in other loops, threads and processes, and with bad options."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import fsspec.asyn
import numpy as np
import pytest
import zarr
from fsspec import AbstractFileSystem
from zarr.storage import FsspecStore

import shardstore
from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
from shardstore.engine.metadata.hierarchy import HierarchyRegistry
from shardstore.errors import InvalidInput, NotFound
from shardstore.storage.wrappers import innermost
from tests import workers
from tests.adapters.places import RAW, Place, array_document, make_place, memory_place
from tests.shards import presented, sharded_arrays

ARRAY = array_document((32,), (2,), codecs=RAW)
OPTIONS: dict[str, Any] = {"chunks_per_shard": (4,), "index_location": "start"}


@pytest.fixture
def fs(place: Place) -> ShardedFileSystem:
    fs = place.filesystem(**OPTIONS)
    fs.pipe({"a/zarr.json": ARRAY, **{f"a/c/{i}": bytes([i, i]) for i in range(8)}})
    return fs


# -- one engine ----------------------------------------------------------------------------------------------------------


def test_every_face_on_a_place_shares_one_engine(place: Place, fs: ShardedFileSystem) -> None:
    """And each sees at once what another has written, in its own loop or thread."""
    storage_options = place.storage_options or None
    store = shardstore.open(place.url, storage_options=storage_options, **OPTIONS)
    mapping = shardstore.get_mapper(place.url, storage_options=storage_options, **OPTIONS)
    of_zarr = FsspecStore.from_url(f"sharded::{place.url}", storage_options=place.link_options(**OPTIONS))
    assert of_zarr.fs is not fs, "zarr's runs on a loop of its own"
    assert of_zarr.fs.asynchronous
    faces = [fs.engine, store.engine, mapping.engine, of_zarr.fs.engine]
    assert len({id(engine) for engine in faces}) == 1

    arrays: list[Any] = [zarr.open_array(of_zarr, path="a", mode="r+"), zarr.open_array(store, path="a", mode="r+")]
    writers: list[Callable[[int], None]] = [
        lambda value: fs.pipe_file("a/c/3", bytes([value, value])),
        lambda value: mapping.__setitem__("a/c/3", bytes([value, value])),
        lambda value: arrays[0].__setitem__(slice(6, 8), value),
        lambda value: arrays[1].__setitem__(slice(6, 8), value),
    ]
    for value, write in enumerate(writers, 100):
        write(value)
        both = bytes([value, value])
        assert fs.cat_file("a/c/3") == mapping["a/c/3"] == both
        assert [array[6:8].tolist() for array in arrays] == [[value, value]] * 2
    commits = fs.counters.commits
    arrays[0][...] = 7
    assert fs.counters.commits == commits + 4, "one assignment through zarr's own store is one commit a shard"


def test_metadata_that_one_face_replaces_is_seen_by_the_others(place: Place, fs: ShardedFileSystem) -> None:
    """Also by those with other options, whose engines are others: the array is deleted and made anew in another layout."""
    sibling = place.filesystem(chunks_per_shard=(8,))
    mapping = shardstore.get_mapper(place.url, storage_options=place.storage_options or None, index_cache_bytes=0, metadata_ttl="1h")
    assert len({id(fs.engine), id(sibling.engine), id(mapping.engine)}) == 3
    assert sibling.cat_file("a/c/3") == mapping["a/c/3"] == b"\x03\x03"
    fs.rm("a", recursive=True)
    assert not sibling.exists("a/c/3")
    assert "a/zarr.json" not in mapping
    fs.pipe_file("a/zarr.json", array_document((32,), (1,), attributes={"second": True}))
    fs.pipe_file("a/c/3", b"s")
    assert b"second" in mapping["a/zarr.json"]
    assert b"second" in sibling.cat_file("a/zarr.json")
    assert sibling.cat_file("a/c/3") == mapping["a/c/3"] == b"s"


def test_what_siblings_know_of_a_layout_is_not_believed_for_ever(place: Place) -> None:
    a = place.filesystem(chunks_per_shard=(4,), metadata_ttl="1h")
    b = place.filesystem(chunks_per_shard=(8,), metadata_ttl="1h")
    assert a.engine is not b.engine
    for turn, (writer, reader) in enumerate([(a, b), (b, a)] * 2):
        writer.pipe({"x/zarr.json": ARRAY, **{f"x/c/{i}": bytes([turn, i]) for i in range(16)}})
        assert reader.cat([f"x/c/{i}" for i in range(16)]) == {f"{place.path}/x/c/{i}": bytes([turn, i]) for i in range(16)}
        reader.pipe_file("x/c/5", b"rr")
        assert writer.cat_file("x/c/5") == b"rr"
        assert presented(place.objects)["x/c/5"] == b"rr"
        assert sharded_arrays(place.objects)["x"].chunks_per_shard == ((4,) if writer is a else (8,))
        writer.rm("x", recursive=True)
        assert not reader.exists("x/c/5")
        with pytest.raises(NotFound):
            reader.cat_file("x/c/5")


def test_a_store_in_a_store_sees_what_is_written_through_the_outer_one(place: Place) -> None:
    """Two roots, one inside of the other: two engines, of which the outer one changes the layout of an array."""
    outer = place.filesystem(chunks_per_shard=(4,))
    inner = Place(f"{place.url}/g", place.storage_options).filesystem(chunks_per_shard=(4,))
    outer.pipe({"g/x/zarr.json": ARRAY, **{f"g/x/c/{i}": bytes([0, i]) for i in range(16)}})
    assert inner.cat_file("x/c/5") == bytes([0, 5])
    inner.pipe_file("x/c/6", b"ii")
    assert outer.cat_file("g/x/c/6") == b"ii"
    outer.rm("g/x", recursive=True)
    other = place.filesystem(chunks_per_shard=(8,))
    other.pipe({"g/x/zarr.json": ARRAY, **{f"g/x/c/{i}": bytes([1, i]) for i in range(16)}})
    assert inner.cat_file("x/c/5") == bytes([1, 5])
    assert inner.cat_file("x/c/15") == bytes([1, 15])


@pytest.mark.parametrize("ndim", [0, 1, 3])
def test_chunks_of_an_array_that_another_process_has_made_anew(place: Place, ndim: int) -> None:
    """In other dimensions: their keys are none of the array that this process remembers."""
    mine = place.filesystem(chunks_per_shard=None, metadata_ttl=0.0)
    other = place.filesystem(chunks_per_shard=(2, 2))
    other.engine.hierarchy.join(HierarchyRegistry(), place.url)  # tells nobody, as another process
    mine.pipe_file("a/zarr.json", array_document((8,) * ndim, (2,) * ndim))
    assert not mine.exists("a/c/0/0")
    other.rm("a", recursive=True)
    other.pipe({"a/zarr.json": array_document((8, 8), (2, 2)), "a/c/0/1": b"1234"})
    assert mine.cat_file("a/c/0/1") == b"1234"
    assert mine.cat_ranges(["a/c/0/1"], 1, 3) == [b"23"]


def test_instances_are_those_of_fsspec(place: Place, fs: ShardedFileSystem) -> None:
    assert place.filesystem(**OPTIONS) is fs
    assert fs == place.filesystem(**OPTIONS)
    assert hash(fs) == hash(place.filesystem(**OPTIONS))
    assert place.filesystem(**OPTIONS, read_only=True) != fs
    assert fsspec.filesystem("sharded", fo=place.path, target_protocol=fsspec.core.split_protocol(place.url)[0],
                             target_options=place.storage_options, **OPTIONS).engine is fs.engine  # fmt: skip
    below, path = fsspec.core.url_to_fs(place.url, **place.storage_options)
    assert ShardedFileSystem(fo=path, fs=below, **OPTIONS).cat_file("a/c/3") == b"\x03\x03"
    assert ShardedFileSystem(fo=place.url, target_options=place.storage_options, **OPTIONS).cat_file("a/c/3") == b"\x03\x03"


def test_instances_travel(place: Place, fs: ShardedFileSystem) -> None:
    """Pickled and as JSON: what comes back is the same place with the same options."""
    for again in (
        pickle.loads(pickle.dumps(fs)),
        AbstractFileSystem.from_json(fs.to_json()),
        AbstractFileSystem.from_dict(fs.to_dict()),
        FsspecStore.from_mapper(fs.get_mapper("")).fs,
        pickle.loads(pickle.dumps(fs.get_mapper(""))).fs,
    ):
        assert again.engine is fs.engine
        assert again.handle.recipe.options == fs.handle.recipe.options
    fresh = pickle.loads(pickle.dumps(fs))
    assert fresh is fs, "instances are remembered"
    assert type(fs)(**fs.storage_options) is fs


def test_an_engine_goes_with_its_last_face() -> None:
    place = memory_place()
    fs = place.filesystem(skip_instance_cache=True)
    threads = threading.active_count()
    for _ in range(3):
        again = place.filesystem(skip_instance_cache=True)
        assert again is not fs
        assert again.engine is fs.engine
    del again
    gc.collect()
    assert threading.active_count() <= threads


# -- loops and threads ---------------------------------------------------------------------------------------------------


async def test_asynchronous_instances_in_the_users_own_loop(place: Place, fs: ShardedFileSystem) -> None:
    assert asyncio.get_running_loop() is not fsspec.asyn.get_loop()
    options = {**place.link_options(**OPTIONS), "asynchronous": True}
    mine, _ = await asyncio.to_thread(lambda: fsspec.core.url_to_fs(f"sharded::{place.url}", **options))
    assert mine.asynchronous
    assert mine is not fs
    assert mine.engine is fs.engine
    assert await mine._cat_file("a/c/3") == b"\x03\x03"
    fs.counters.reset()
    await mine._pipe({f"a/c/{i}": bytes([8, i]) for i in range(16)})
    assert fs.counters.commits == 4
    await asyncio.gather(*(mine._pipe_file(f"a/c/{i}", bytes([9, i])) for i in range(16)))
    assert fs.counters.commits < 4 + 16, "files that come together are a batch"
    got = await mine._cat_ranges([f"a/c/{i}" for i in range(16)], [0] * 16, [2] * 16)
    assert got == [bytes([9, i]) for i in range(16)]
    assert len(await mine._find("a/c")) == 16
    assert [level[0] async for level in mine._walk("a")] == [f"{place.path}/a", f"{place.path}/a/c"]
    await mine._rm("a", recursive=True)
    assert not await mine._exists("a")
    with pytest.raises(NotFound):
        await mine._cat_file("a/c/3")


def test_many_loops_and_threads_at_once(place: Place, fs: ShardedFileSystem) -> None:
    """Nothing is lost of what threads with loops of their own, and ones without, write into the same shards."""
    options = place.link_options(**OPTIONS)

    def in_a_loop(worker: int) -> None:
        async def run() -> None:
            mine = fsspec.filesystem("sharded", fo=place.path, target_protocol=fsspec.core.split_protocol(place.url)[0],
                                     target_options=place.storage_options, asynchronous=True, **options["sharded"])  # fmt: skip
            for i in range(worker, 16, 4):
                await mine._pipe_file(f"a/c/{i}", bytes([worker, i]))
                assert await mine._cat_file(f"a/c/{i}") == bytes([worker, i])

        asyncio.run(run())

    def plainly(worker: int) -> None:
        for i in range(worker, 16, 4):
            fs.pipe_file(f"a/c/{i}", bytes([worker, i]))
            assert fs.cat_file(f"a/c/{i}") == bytes([worker, i])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda worker: (in_a_loop if worker % 2 else plainly)(worker), range(4)))
    assert {k: v for k, v in presented(place.objects).items() if "/c/" in k} == {f"a/c/{i}": bytes([i % 4, i]) for i in range(16)}


def test_a_call_on_the_io_loop_itself_is_an_error_and_no_deadlock(fs: ShardedFileSystem) -> None:
    async def call() -> bytes:
        return bytes(fs.cat_file("a/c/3"))

    with pytest.raises(RuntimeError):
        fsspec.asyn.sync(fsspec.asyn.get_loop(), call)


# -- processes -----------------------------------------------------------------------------------------------------------


@pytest.mark.gate
@pytest.mark.parametrize("kind", ["local", "s3"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_in_other_processes(kind: str, method: str, request: pytest.FixtureRequest) -> None:
    """An inherited instance, or one out of a pickle, works in a child, and writers of one shard lose nothing."""
    place = make_place(kind, request)
    fs = place.filesystem(**OPTIONS)
    fs.pipe({"a/zarr.json": ARRAY, **{f"a/c/{i}": bytes([i, i]) for i in range(8)}})
    assert fs.cat_file("a/c/3") == b"\x03\x03"
    workers.inherited = fs
    with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
        work = [pool.submit(workers.write_some, None if method == "fork" else fs, worker) for worker in range(2)]
        assert [future.result(timeout=120) for future in work] == [8, 8]
    assert fs.cat([f"a/c/{i}" for i in range(16)]) == {f"{place.path}/a/c/{i}": bytes([100 + i % 2, i]) for i in range(16)}
    assert fs.cat_file("a/c/3") == bytes([101, 3]), "the parent goes on"


# -- options -------------------------------------------------------------------------------------------------------------


def refused() -> Iterator[tuple[Callable[[], object], type[Exception], str]]:
    memory = memory_place().url
    yield lambda: fsspec.filesystem("sharded"), InvalidInput, "sharded:// alone names no storage: put one below it, as in sharded::s3://"
    yield lambda: fsspec.open("sharded://x/y").open(), InvalidInput, "names no storage"
    yield (
        lambda: fsspec.core.url_to_fs(f"sharded::{memory}", sharded={"chunk_per_shard": (2,)}),
        InvalidInput,
        "did you mean 'chunks_per_shard'",
    )
    yield lambda: fsspec.core.url_to_fs(f"sharded::{memory}", chunks_per_shard=0), InvalidInput, "chunks_per_shard 0 is neither"
    yield lambda: fsspec.core.url_to_fs(f"sharded::{memory}", present="v4"), InvalidInput, "present 'v4'"
    yield (
        lambda: fsspec.core.url_to_fs("sharded::s3://b/x", endpoint="k", secret="s"),
        InvalidInput,
        "endpoint of 's3://b/x' is not known .* did you mean storage_options={'s3': {'endpoint_url': …}}",
    )
    yield lambda: fsspec.core.url_to_fs("sharded::memory://x", anon=True), InvalidInput, "anon means nothing to 'memory:///x': leave it out"
    yield lambda: ShardedFileSystem(fo="x", fs=fsspec.filesystem("memory"), anon=True), InvalidInput, "option 'anon' is not known"
    yield lambda: ShardedFileSystem(fo=5), InvalidInput, "fo=5 is not a path"  # type: ignore[arg-type]
    yield lambda: ShardedFileSystem(fo="x", fs="s3"), InvalidInput, "fs='s3' is not an fsspec filesystem"
    yield lambda: ShardedFileSystem(fo="x", target_protocol=5), InvalidInput, "target_protocol=5"  # type: ignore[arg-type]
    yield lambda: ShardedFileSystem(fo="x", fs=fsspec.filesystem("memory"), target_protocol="s3"), InvalidInput, "either fs, or"
    yield lambda: ShardedFileSystem(fo="x", target_protocol="nope"), (InvalidInput, ValueError), "nope"  # type: ignore[misc]
    yield lambda: ShardedFileSystem(fo="/x", target_protocol="memory", read_only="yes"), InvalidInput, "read_only 'yes'"  # type: ignore[arg-type]
    yield lambda: ShardedFileSystem(fo="/x", target_protocol="memory", pipeline=1), InvalidInput, "pipeline 1"  # type: ignore[arg-type]


@pytest.mark.parametrize(("use", "error", "message"), list(refused()))
def test_errors_say_what_to_do(use: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        use()


def test_options_under_no_protocol_are_for_the_link_that_knows_them(tmp_path: Path) -> None:
    def below(url: str, **options: Any) -> Any:
        return innermost(fsspec.core.url_to_fs(url, **options)[0].handle.engine.storage)

    for url in ("sharded::s3://b/x", "sharded::s3a://b/x"):
        assert below(url, anon=True, requester_pays=True, read_only=True).fs.storage_options == {"anon": True, "requester_pays": True}
    assert below("sharded::gs://b/x", gs={"project": "p"}, token="anon").fs.storage_options == {"project": "p", "token": "anon"}
    chain = below("sharded::simplecache::s3://b/x", anon=True, cache_storage=str(tmp_path)).fs
    assert (chain.fs.storage_options, chain.storage) == ({"anon": True}, [str(tmp_path)])
    by_hand: Any = innermost(ShardedFileSystem(fo="s3://b/x", s3={"anon": True}, requester_pays=True).handle.engine.storage)
    assert by_hand.fs.storage_options == {"anon": True, "requester_pays": True}


def test_options_out_of_json(tmp_path: Path) -> None:
    """Lists for tuples, as JSON and YAML have them."""
    fs = Place(f"file://{tmp_path}").filesystem(chunks_per_shard=[2])
    again = AbstractFileSystem.from_json(fs.to_json())
    assert again.engine is fs.engine
    fs.pipe({"zarr.json": ARRAY, "c/0": b"00", "c/1": b"11"})
    assert sharded_arrays(Place(f"file://{tmp_path}").objects)[""].chunks_per_shard == (2,)
    by_pattern = Place(f"file://{tmp_path}").filesystem(chunks_per_shard={"a*": [4], "*": None})
    assert AbstractFileSystem.from_json(by_pattern.to_json()).engine is by_pattern.engine


def test_no_secret_is_shown(s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url
    fs = Place(url, {**options, "secret": "hush-hush"}).filesystem()
    for text in (repr(fs), str(fs.handle.url), fs.engine.storage.url):
        assert "hush-hush" not in text
    np.testing.assert_equal(fs.handle.url, url)
