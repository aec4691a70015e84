"""Selections in the calling thread give what zarr's own way gives: values, types, strides and errors; whatever happens to the store."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.storage import LoggingStore

import shardstore
from shardstore.adapters.zarr import short_path
from shardstore.engine.engine import Engine
from shardstore.model.durations import Duration
from shardstore.native.kernel import kernel
from shardstore.storage.local.storage import LocalStorage
from tests.harness.scale import EXAMPLES

SHAPE, CHUNK, PER_SHARD = (64, 48), (8, 8), (4, 3)
VALUES = np.arange(64 * 48, dtype="i4").reshape(SHAPE) + 1

Outcome = tuple[Any, ...]


uses_kernel = True


@pytest.fixture(autouse=True, params=[True, pytest.param(False, marks=pytest.mark.gate)], ids=["kernel", "python"])
def decoder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Chunks are decoded and encoded by the kernel, where there is one, or by Python."""
    global uses_kernel
    uses_kernel = request.param
    yield
    uses_kernel = True


@pytest.fixture(autouse=True)
def no_time_in_gzip(monkeypatch: pytest.MonkeyPatch) -> None:
    """The header of what gzip encodes has the second of the encoding: two arrays with the same values would differ at times."""
    monkeypatch.setattr(gzip, "time", SimpleNamespace(time=lambda: 0.0))


def opened(root: Path, *, per_shard: Any = PER_SHARD, ttl: Duration = "60s", **options: Any) -> shardstore.ShardedStore:
    return shardstore.open(root, chunks_per_shard=per_shard, fsync=False, metadata_ttl=ttl, kernel=uses_kernel, **options)


def elsewhere(root: Path, *, per_shard: Any = PER_SHARD) -> shardstore.ShardedStore:
    """As another process has it: what it writes is not announced to the stores here."""
    return shardstore.open(LocalStorage(root, fsync=False), chunks_per_shard=per_shard)


def created(root: Path, *, per_shard: Any = PER_SHARD, ttl: Duration = "60s", **options: Any) -> zarr.Array[Any]:
    array = zarr.create_array(opened(root, per_shard=per_shard, ttl=ttl), shape=SHAPE, chunks=CHUNK, dtype="i4", fill_value=7, **options)
    array[...] = VALUES
    array[...]
    return array


def reads_by_kernel() -> bool:
    return uses_kernel and kernel() is not None


@contextmanager
def zarrs_own_way() -> Iterator[None]:
    short_path.is_enabled = False
    try:
        yield
    finally:
        short_path.is_enabled = True


def outcome(select: Callable[[], Any]) -> Outcome:
    """Everything that a caller can see of a result."""
    try:
        found = select()
    except Exception as exc:  # noqa: BLE001  # any is compared
        return "error", type(exc).__name__, str(exc)
    if isinstance(found, np.ndarray):
        strides = found.strides if found.size > 1 else None
        return "array", type(found), found.dtype, found.shape, strides, found.flags.writeable, found.tobytes()
    return "scalar", type(found), getattr(found, "dtype", None), found.tobytes() if isinstance(found, np.generic) else found


def check_same(array: zarr.Array[Any], selection: Any) -> bool:
    """Check that both ways give the same; return whether the short one was gone."""
    with zarrs_own_way():
        expected = outcome(lambda: array[selection])
    is_short = False
    read = short_path.read_selection

    def noted(array: Any, selection: Any) -> Any:
        nonlocal is_short
        found = read(array, selection)
        is_short = found is not None
        return found

    short_path.read_selection = noted
    try:
        assert outcome(lambda: array[selection]) == expected
    finally:
        short_path.read_selection = read
    return is_short


class Index:
    def __index__(self) -> int:
        return 3

    def __repr__(self) -> str:
        return "Index()"


@pytest.mark.parametrize("step", [2**62, 2**63, 10**30])
def test_steps_longer_than_any_array(tmp_path: Path, step: int) -> None:
    """They are given to the kernel, and to numpy, as numbers of 64 bits."""
    array = created(tmp_path)
    assert check_same(array, np.s_[3:50:step, ::step])


@pytest.mark.parametrize("seconds", [10**10 + 1, 2**33, -(2**31)], ids=["in 2286", "in 2242", "in 1901"])
def test_shards_with_times_far_away(tmp_path: Path, seconds: int) -> None:
    """Some file systems keep times whose nanoseconds have more than 64 bits."""
    array = created(tmp_path)
    shard = tmp_path / "c" / "0" / "0"
    os.utime(shard, ns=(0, seconds * 10**9 + 123_457))
    if shard.stat().st_mtime_ns // 10**9 != seconds:
        pytest.skip("this file system does not keep such times")
    array[...]  # the index of this version
    check_same(array, np.s_[0:20, 0:9])
    assert np.array_equal(array[...], VALUES)


@pytest.mark.parametrize(
    "selection",
    [np.s_[1, 2], np.s_[..., 1, 2], np.s_[-1, -48], ..., (), 5, np.s_[3:50:7, 5], np.s_[:, 8:16], np.s_[Index() : 9], np.s_[0:8, 0:8]],
    ids=str,
)
def test_what_goes_the_short_way(tmp_path: Path, selection: Any) -> None:
    assert check_same(created(tmp_path), selection)


@pytest.mark.parametrize(
    "selection",
    [
        *(np.int64(1), True, [1, 2], None, 1.0, Index(), np.s_[64, 0], np.s_[1, 2, 3], np.s_[::0], np.s_[::-1], np.s_[3:3]),
        *(np.s_[1.0:3], np.s_[..., ...], np.array([1, 2]), VALUES > 5, "name"),
    ],
    ids=str,
)
def test_what_is_left_to_zarr(tmp_path: Path, selection: Any) -> None:
    assert not check_same(created(tmp_path), selection)


def test_nothing_but_the_calling_thread_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = created(tmp_path)
    store: Any = array.store
    array.store_path.store.counters.reset()  # type: ignore[attr-defined]
    monkeypatch.setattr(zarr.AsyncArray, "_get_selection", None)
    monkeypatch.setattr(Engine, "get_many", None)
    monkeypatch.setattr(Engine, "plan_read", None)
    assert array[9, 9] == VALUES[9, 9]
    assert (store.counters.requests, store.counters.chunks_read, store.counters.index_hits) == (1, 1, 1)
    assert np.array_equal(array[:20, :30], VALUES[:20, :30])


def test_an_absent_shard_holds_fill_values_and_needs_no_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array: Any = zarr.create_array(opened(tmp_path), shape=SHAPE, chunks=CHUNK, dtype="i4", fill_value=7)
    array[:8, :8] = 1
    array[0, 0]
    monkeypatch.setattr(zarr.AsyncArray, "_get_selection", None)
    assert array[40, 40] == 7  # in a shard that is not there
    assert array[9, 9] == 7  # a chunk that is not in its shard
    assert (array[8:32, 8:24] == 7).all()  # several
    assert (array[32:] == 7).all()
    assert array[...].sum() == 64 + 7 * (VALUES.size - 64)


def test_chunks_that_appear_are_seen(tmp_path: Path) -> None:
    """Though their shard was found absent, or its index had no such chunk, a moment before."""
    array = created(tmp_path)
    array[32:] = 7
    array[:8, :8] = 7
    for where in (np.s_[40, 40], np.s_[0, 0]):
        assert array[where] == 7
        zarr.open_array(elsewhere(tmp_path), mode="r+")[where] = 1
        assert array[where] == 1


def written(root: Path) -> None:
    zarr.open_array(elsewhere(root), mode="r+")[:20, :20] = 5


def resized(root: Path) -> None:
    zarr.open_array(elsewhere(root), mode="r+").resize((16, 48))


def replaced(root: Path) -> None:
    zarr.create_array(elsewhere(root, per_shard=(2, 2)), shape=SHAPE, chunks=(4, 4), dtype="i4", overwrite=True)[...] = 3


def damaged(root: Path) -> None:
    (file,) = root.glob("c/0/0")
    data = bytearray(file.read_bytes())
    data[20] ^= 255
    data[200] ^= 255
    file.write_bytes(data)


@pytest.mark.parametrize("ttl", [0, "60s"])
@pytest.mark.parametrize("change", [written, resized, replaced, damaged, shutil.rmtree])
def test_what_another_process_does(tmp_path: Path, ttl: Duration, change: Callable[[Path], None]) -> None:
    root = tmp_path / "a"
    array = created(root, ttl=ttl)
    check_same(array, np.s_[:9, :9])
    change(root)
    for selection in (np.s_[0, 0], np.s_[:9, :22], np.s_[10:30, :22], ...):
        check_same(array, selection)


@pytest.mark.parametrize("ttl", [0, "60s"])
@pytest.mark.parametrize("change", [written, resized, replaced, shutil.rmtree])
def test_what_another_process_does_to_an_array_without_shards(tmp_path: Path, ttl: Duration, change: Callable[[Path], None]) -> None:
    root = tmp_path / "a"
    array = created(root, per_shard=None, ttl=ttl)
    assert check_same(array, np.s_[:9, :9]) == reads_by_kernel()
    change(root)
    for selection in (np.s_[0, 0], np.s_[:9, :22], np.s_[10:30, :22], ...):
        check_same(array, selection)


def test_chunks_without_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reads them as shards of one chunk that have no index; Python's codecs leave them to zarr."""
    array: Any = created(tmp_path, per_shard=None)
    store: Any = array.store
    for selection in (np.s_[0, 0], np.s_[3:30:2, 4:9], np.s_[-1], ...):
        assert check_same(array, selection) == reads_by_kernel()
    array[8:16, 8:16] = 7
    assert not (tmp_path / "c/1/1").exists()
    assert check_same(array, np.s_[9, 9]) == reads_by_kernel()
    assert check_same(array, np.s_[:24, :24]) == reads_by_kernel()
    before = store.counters.requests, store.counters.chunks_read
    array[:24, :24]
    if reads_by_kernel():
        assert (store.counters.requests, store.counters.chunks_read) == (before[0] + 8, before[1] + 8)
    (tmp_path / "c/0/0").write_bytes(b"no frame")
    assert not check_same(array, np.s_[0, 0])
    (tmp_path / "c/0/0").unlink()
    (tmp_path / "c/0/0").mkdir()
    assert not check_same(array, np.s_[0, 0])


def test_an_absent_shard_proves_no_layout(tmp_path: Path) -> None:
    """However fresh the document is said to be: another process may have stored the chunks in larger shards since."""
    array = created(tmp_path)
    array[32:] = 7
    assert array[40, 40] == 7
    larger = elsewhere(tmp_path, per_shard=(8, 6))
    zarr.create_array(larger, shape=SHAPE, chunks=CHUNK, dtype="i4", fill_value=7, overwrite=True)[...] = VALUES
    assert array[40, 40] == VALUES[40, 40]
    assert np.array_equal(array[32:], VALUES[32:])


def test_a_document_that_is_not_fresh_is_looked_at(tmp_path: Path) -> None:
    assert check_same(created(tmp_path, ttl=0), np.s_[0, 0])


def test_what_the_array_or_its_store_is(tmp_path: Path) -> None:
    array = created(tmp_path)
    store = array.store

    class Subclass(zarr.Array):  # type: ignore[type-arg]
        def get_orthogonal_selection(self, *args: Any, **kwargs: Any) -> Any:
            return np.zeros(3)

    assert np.array_equal(Subclass(array._async_array)[1:3], np.zeros(3))
    assert not check_same(zarr.open_array(LoggingStore(store, log_level="CRITICAL"), mode="r"), np.s_[0, 0])
    assert check_same(zarr.open_array(opened(tmp_path, read_only=True), mode="r"), np.s_[0, 0])
    assert not check_same(zarr.open_array(opened(tmp_path, pipeline=False), mode="r"), np.s_[0, 0])
    fortran = zarr.open_array(store, mode="r", config={"order": "F"})
    assert check_same(fortran, np.s_[3:30, 4:9])
    with store.transaction():  # type: ignore[attr-defined]
        array[:8, :8] = 99
        assert not check_same(array, np.s_[0, 0])
    assert check_same(array, np.s_[0, 0])
    array.resize((70, 48))
    assert check_same(array, np.s_[60:70])
    array.resize((10, 48))
    assert check_same(array, np.s_[5:10])


def test_a_missing_chunk_that_is_to_be_an_error(tmp_path: Path) -> None:
    array: Any = created(tmp_path)
    array[:8, :8] = 7
    try:
        strict = array.with_config({"read_missing_chunks": False})
    except (AttributeError, TypeError):
        pytest.skip("this version of zarr has no such setting")
    assert not check_same(strict, np.s_[0, 0])


def test_buffers_that_are_configured_afterwards(tmp_path: Path) -> None:
    array = created(tmp_path)
    assert check_same(array, np.s_[0, 0])
    with zarr.config.set({"ndbuffer": "zarr.buffer.gpu.NDBuffer"}):
        assert short_path.read_selection(array._async_array, np.s_[0, 0]) is None
    assert check_same(array, np.s_[0, 0])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of newer Pythons, where there are threads: that it works is tested
def test_it_is_read_in_a_forked_child_in_threads_and_in_a_running_loop(tmp_path: Path) -> None:
    array = created(tmp_path)
    if (child := os.fork()) == 0:
        os._exit(0 if np.array_equal(array[:33, :33], VALUES[:33, :33]) else 1)
    assert os.waitpid(child, 0)[1] == 0

    def is_right(x: int) -> bool:
        return np.array_equal(array[x : x + 20, 3:40:7], VALUES[x : x + 20, 3:40:7])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(is_right, [n * 37 % 40 for n in range(240)]))

    async def inside() -> Any:
        return array[:40, :40]

    assert np.array_equal(asyncio.run(inside()), VALUES[:40, :40])


def test_chunks_are_whole_while_another_store_writes(tmp_path: Path) -> None:
    array = created(tmp_path)
    other = zarr.open_array(opened(tmp_path), mode="r+")
    ended = threading.Event()

    def write() -> None:
        for k in range(60):
            other[:32, :24] = k
        ended.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not ended.is_set():
        for x in (0, 8):
            chunk = array[x : x + 8, :8]
            assert len(np.unique(chunk)) == 1 or np.array_equal(chunk, VALUES[x : x + 8, :8])
    thread.join()


@pytest.mark.usefixtures("interruptible")
@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread")
def test_it_can_be_interrupted(tmp_path: Path) -> None:
    array = created(tmp_path)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        all(np.any(array[...]) for _ in itertools.count())
    assert np.array_equal(array[...], VALUES)


# -- random arrays -----------------------------------------------------------------------------------------------------

_DTYPES = ["u1", "i2", "<u4", ">u4", "f8", ">f8", "f2", "c8", ">c16", "bool", "M8[s]", ">M8[ms]", "m8[us]", "S5", "U3", ">U3", "V7"]
_STRUCTURED = [("a", "i4"), ("b", "f8")]
_COMPRESSORS = [
    *(None, ZstdCodec(level=1), ZstdCodec(level=1, checksum=True), GzipCodec(level=1)),
    *(BloscCodec(cname="lz4", clevel=3, shuffle=shuffle) for shuffle in ("shuffle", "noshuffle", "bitshuffle")),
]


def values_of(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if dtype.kind in "SU":
        return rng.integers(0, 999, shape).astype(str).astype(dtype)
    if dtype.fields is not None:
        return np.array([(int(n), float(n)) for n in rng.integers(0, 99, int(np.prod(shape)))], dtype).reshape(shape)
    if dtype.kind == "V":
        return rng.integers(0, 256, int(np.prod(shape)) * dtype.itemsize, "u1").view(dtype).reshape(shape)
    return rng.integers(0, 2 if dtype.kind == "b" else 100, shape).astype("i8").astype(dtype)


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, Any]:
    dtype = np.dtype(draw(st.sampled_from([*_DTYPES, _STRUCTURED])))
    ndim = draw(st.integers(0, 4))
    chunks = draw(st.tuples(*[st.integers(1, 6)] * ndim))
    per_shard = draw(st.tuples(*[st.integers(1, 3)] * ndim))
    shape = tuple(draw(st.integers(1, 2 * c * p + 2)) for c, p in zip(chunks, per_shard, strict=True))
    compressor = draw(st.sampled_from(_COMPRESSORS))
    made: dict[str, Any] = {
        "shape": shape,
        "chunks": chunks,
        "dtype": dtype,
        "per_shard": None if draw(st.integers(0, 3)) == 0 else per_shard if ndim else "auto",
        "filters": [TransposeCodec(order=draw(st.permutations(range(ndim))))] if ndim > 1 and draw(st.booleans()) else None,
        "compressors": [c for c in (compressor, draw(st.sampled_from([None, Crc32cCodec()]))) if c is not None] or None,
        "config": {"order": draw(st.sampled_from("CF")), "write_empty_chunks": draw(st.booleans())},
        "fill_value": values_of(dtype, (1,), 5)[0] if draw(st.booleans()) else None,
    }
    if dtype.fields is None and draw(st.booleans()):
        made["serializer"] = BytesCodec(endian=draw(st.sampled_from(["big", "little"])))
    return made


def _along(n: int) -> st.SearchStrategy[Any]:
    bound = st.none() | st.integers(-n - 2, n + 2)
    return st.integers(-n, n - 1) | st.builds(slice, bound, bound, st.none() | st.integers(1, n + 1))


@st.composite
def selections(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    parts: list[Any] = [draw(_along(n)) for n in shape[: draw(st.integers(0, len(shape)))]]
    if draw(st.booleans()):
        at = draw(st.integers(0, len(parts)))
        parts[at : at + draw(st.integers(0, 2))] = [...]
    return parts[0] if len(parts) == 1 and draw(st.booleans()) else tuple(parts)


@given(arrays(), st.data())
@settings(max_examples=EXAMPLES * 2, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_arrays_are_read_both_ways(tmp_path: Path, made: dict[str, Any], data: st.DataObject) -> None:
    root = tmp_path / os.urandom(8).hex()
    store = opened(root, per_shard=made.pop("per_shard"), ttl=data.draw(st.sampled_from(["0s", "60s"])))
    with suppress(TypeError, ValueError, NotImplementedError):  # not every codec takes every type
        array: Any = None
        array = zarr.create_array(store, **made)
    if array is None:
        return
    if made["shape"]:
        for _ in range(data.draw(st.integers(0, 3))):  # other chunks are missing
            at = [data.draw(st.integers(0, n - 1)) // c * c for n, c in zip(made["shape"], made["chunks"], strict=True)]
            region = tuple(slice(a, a + c) for a, c in zip(at, made["chunks"], strict=True))
            array[region] = values_of(made["dtype"], made["shape"], 1)[region]
    else:
        array[...] = values_of(made["dtype"], (), 1)
    for _ in range(4):
        check_same(array, data.draw(selections(made["shape"])))


# -- whole shards that are assigned ------------------------------------------------------------------------------------


def stored(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def check_same_stored(array: zarr.Array[Any], other: zarr.Array[Any], roots: Sequence[Path], selection: Any, value: Any) -> bool:
    """Assign both ways, to arrays that are the same; check that the same is stored, or raised; return whether the short one was gone."""
    was_short = False
    write = short_path.write_selection

    def noted(array: Any, selection: Any, value: Any) -> bool:
        nonlocal was_short
        was_short = write(array, selection, value)
        return was_short

    def assign(array: zarr.Array[Any]) -> None:
        array[selection] = value

    short_path.write_selection = noted
    try:
        found = outcome(lambda: assign(array))
    finally:
        short_path.write_selection = write
    with zarrs_own_way():
        assert found == outcome(lambda: assign(other))
    assert stored(roots[0]) == stored(roots[1])
    return was_short


@pytest.mark.parametrize(
    ("selection", "value"),
    [
        (..., VALUES),
        (np.s_[:], VALUES),
        (np.s_[32:, -24:], VALUES[::2, ::2]),
        (np.s_[..., 0:24], VALUES.copy(order="F")[:, 3:27]),
        (..., np.where(VALUES % 97 < 90, 7, VALUES).astype("i4")),
        (np.s_[:32], np.full((32, 48), 7, "i4")),
        (..., np.broadcast_to(np.arange(48, dtype="i4"), SHAPE)),
    ],
    ids=str,
)
def test_whole_shards_are_written_the_short_way(tmp_path: Path, selection: Any, value: Any) -> None:
    roots = [tmp_path / "short", tmp_path / "own"]
    assert check_same_stored(created(roots[0]), created(roots[1]), roots, selection, value) == (uses_kernel and kernel() is not None)


@pytest.mark.parametrize(
    ("selection", "value"),
    [
        (..., 5),
        (..., VALUES.tolist()),
        (..., VALUES.astype("i8")),
        (..., VALUES.astype(">i4")),
        (..., VALUES[0]),
        (..., VALUES[::-1]),
        (..., VALUES.view(np.ma.MaskedArray)),
        (..., VALUES[1:]),
        (np.s_[:31], VALUES[:31]),
        (np.s_[1:33], VALUES[:32]),
        (np.s_[::2], VALUES[::2]),
        (5, VALUES[5]),
        (np.s_[0:32, 5], VALUES[0:32, 5]),
        (np.arange(32), VALUES[:32]),
        (VALUES > 5, VALUES[VALUES > 5]),
        (np.s_[0:0], VALUES[:0]),
    ],
    ids=str,
)
def test_what_else_is_assigned_is_left_to_zarr(tmp_path: Path, selection: Any, value: Any) -> None:
    roots = [tmp_path / "short", tmp_path / "own"]
    assert not check_same_stored(created(roots[0]), created(roots[1]), roots, selection, value)


def test_a_store_that_may_not_be_written_refuses_in_both_ways(tmp_path: Path) -> None:
    created(tmp_path)
    array = zarr.open_array(opened(tmp_path), mode="r")
    assert not check_same_stored(array, array, [tmp_path, tmp_path], ..., VALUES + 1)
    assert np.array_equal(array[...], VALUES)


def test_a_transaction_holds_whole_shards_back(tmp_path: Path) -> None:
    array = created(tmp_path)
    store: Any = array.store
    before = stored(tmp_path)
    with store.transaction():
        array[...] = VALUES + 1
        assert stored(tmp_path) == before
    assert np.array_equal(array[...], VALUES + 1)


def test_whole_shards_are_not_written_over_another_layout(tmp_path: Path) -> None:
    """Another process has replaced the array by one with other shards: an array as old as this one writes chunks of that."""
    array = created(tmp_path, ttl=0)
    shutil.rmtree(tmp_path)
    new: Any = zarr.create_array(elsewhere(tmp_path, per_shard=(2, 2)), shape=SHAPE, chunks=CHUNK, dtype="i4", fill_value=7)
    array[...] = VALUES
    assert np.array_equal(new[...], VALUES)
    assert np.array_equal(zarr.open_array(str(tmp_path), mode="r")[...], VALUES)


def test_one_commit_and_one_request_a_shard(tmp_path: Path) -> None:
    array = created(tmp_path)
    counters = array.store.counters  # type: ignore[attr-defined]
    found = []
    for way in (nullcontext(), zarrs_own_way()):
        counters.reset()
        with way:
            array[...] = VALUES + 1
        found.append((counters.requests, counters.bytes_written, counters.commits, counters.chunks_written))
    assert found[0] == found[1]
    assert found[0][2:] == (4, 48)


@given(arrays(), st.data())
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_arrays_are_written_both_ways(tmp_path: Path, made: dict[str, Any], data: st.DataObject) -> None:
    name = os.urandom(8).hex()
    roots = [tmp_path / name / "short", tmp_path / name / "own"]
    per_shard = made.pop("per_shard")
    if made["shape"] and data.draw(st.booleans()):
        sides = zip(made["chunks"], per_shard or made["chunks"], strict=True)
        made["shape"] = tuple(data.draw(st.integers(1, 2)) * c * p for c, p in sides)
    written: list[Any] = []
    with suppress(TypeError, ValueError, NotImplementedError):  # not every codec takes every type
        written = [zarr.create_array(opened(root, per_shard=per_shard), **made) for root in roots]
    if len(written) == 2:
        value = values_of(made["dtype"], made["shape"], 1)
        if made["shape"] and made["fill_value"] is not None and data.draw(st.booleans()):
            value[: data.draw(st.integers(0, len(value)))] = made["fill_value"]
        check_same_stored(written[0], written[1], roots, ..., value)


def test_the_method_is_set_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for by each read of a document, and setting it empties CPython's caches of the class."""
    names: list[str] = []

    class Counting(type):
        def __setattr__(cls, name: str, value: object) -> None:
            names.append(name)
            super().__setattr__(name, value)

    class Array(metaclass=Counting):
        def __getitem__(self, selection: object) -> None: ...

    monkeypatch.setattr(zarr, "Array", Array)
    short_path.shorten_selections()
    short_path.shorten_selections()
    assert names == ["__getitem__", "__setitem__"]
