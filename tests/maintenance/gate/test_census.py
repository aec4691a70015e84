"""A census: what it counts, its file, its pictures, and what it shows when a store is verified against it."""

from __future__ import annotations

import json
import random
import uuid
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given

import shardstore
from shardstore.engine.engine import Engine
from shardstore.errors import Corruption, InvalidInput, NotFound, StorageError, Unsupported
from shardstore.maintenance.census import ArrayCensus, Census, bitmap_nbytes, census_from_bytes, merged, read_census, take_census
from shardstore.maintenance.execution import Execution, Part
from shardstore.maintenance.verify.run import verify_engine
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests.engine.hooked import HookedStorage
from tests.golden import golden_cases
from tests.maintenance.damaging import make_healthy
from tests.shards import shard_chunks, sharded_arrays
from tests.stored import LocalObjects, Objects, StorageObjects, document


def taken(storage: Any, path: str = "", **options: Any) -> Census:
    return take_census(Engine(storage), path, execution=Execution(workers=2), **options)


def existing(array: ArrayCensus) -> set[tuple[int, ...]]:
    """The chunks that a census has, told the slow way."""
    found = set()
    for coords, bitmap in zip(array.coords.tolist(), array.bitmaps, strict=True):
        bits = "".join(f"{byte:08b}" for byte in bitmap.tolist())
        for slot in range(array.slots):
            if bits[slot] == "1":
                inside = np.unravel_index(slot, array.chunks_per_object) if array.chunks_per_object else ()
                found.add(tuple(int(c * p + i) for c, p, i in zip(coords, array.chunks_per_object, inside, strict=True)))
    return found


def truth(objects: Objects, path: str) -> set[tuple[int, ...]]:
    """The chunks of a sharded array that exist, in its shape, as a second reader sees them."""
    layout = sharded_arrays(objects)[path]
    found = set()
    for key in objects.keys():  # noqa: SIM118 - no mapping
        coords = layout.coords(key) if key.startswith(f"{path}/" if path else "") else None
        if coords is not None:
            found |= {c for name, _ in shard_chunks(layout, coords, objects.get(key) or b"") if (c := layout.coords(name)) is not None}
    return {c for c in found if all(i < g for i, g in zip(c, layout.grid_shape, strict=True))}


@pytest.mark.parametrize("seed", range(8))
def test_it_has_the_chunks_that_exist(seed: int) -> None:
    storage = MemoryStorage(f"/census-{uuid.uuid4().hex}")
    hierarchy = make_healthy(storage, StorageObjects(storage), random.Random(seed))
    census = taken(storage)
    assert [array.path for array in census.arrays] == ["a", "g/b", "plain"]
    for path in hierarchy.layouts:
        array = census.array(path)
        assert existing(array) == truth(hierarchy.objects, path)
        assert array.chunks == len(existing(array))
        assert array.objects == len(hierarchy.shards(path))
        assert array.stored_nbytes == sum(len(hierarchy.get(key)) for key in hierarchy.shards(path))
    plain = census.array("plain")
    assert (existing(plain), plain.possible_chunks, plain.is_sharded) == ({(0,), (1,)}, 3, False)


def test_golden_stores() -> None:
    for case in golden_cases():
        objects = LocalObjects(case.store)
        census = taken(LocalStorage(case.store))
        for path in sharded_arrays(objects):
            assert existing(census.array(path)) == truth(objects, path), case.name


def test_chunks_outside_of_the_shape_do_not_count() -> None:
    storage = MemoryStorage(f"/census-{uuid.uuid4().hex}")
    zarr.create_array(shardstore.open(storage, chunks_per_shard=(3,)), name="x", shape=(20,), chunks=(2,), dtype="u1")[...] = 1
    objects = StorageObjects(storage)
    objects.put("x/zarr.json", json.dumps(document(objects, "x/zarr.json") | {"shape": [8]}).encode())
    array = taken(storage).array("x")
    assert existing(array) == {(0,), (1,), (2,), (3,)}
    assert (array.objects, array.possible_objects, array.chunks, array.possible_chunks) == (2, 2, 4, 4)


def test_damaged_shards_are_told() -> None:
    storage = MemoryStorage(f"/census-{uuid.uuid4().hex}")
    zarr.create_array(shardstore.open(storage, chunks_per_shard=(2,)), name="x", shape=(8,), chunks=(2,), dtype="u1")[...] = 1
    StorageObjects(storage).put("x/c/1", b"short")
    census = taken(storage)
    assert (census.damaged, existing(census.array("x"))) == (("x/c/1",), {(0,), (1,)})


def test_there_is_nothing() -> None:
    with pytest.raises(NotFound):
        taken(MemoryStorage(f"/census-{uuid.uuid4().hex}"))
    storage = MemoryStorage(f"/census-{uuid.uuid4().hex}")
    zarr.open_group(shardstore.open(storage), mode="w")
    assert taken(storage).arrays == ()
    with pytest.raises(NotFound, match="no array 'x'"):
        taken(storage).array("x")


def test_it_runs_on_other_executors(tmp_path: Path) -> None:
    make_healthy(str(tmp_path), LocalObjects(tmp_path), random.Random(3))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        there = shardstore.census(str(tmp_path), executor=executor, contents=True)
    assert there.to_bytes() == shardstore.census(str(tmp_path), contents=True).to_bytes()


# -- the file ----------------------------------------------------------------------------------------------------------


@st.composite
def arrays(draw: st.DrawFn) -> ArrayCensus:
    ndim = draw(st.integers(0, 3))
    per_object = tuple(draw(st.lists(st.integers(1, 5), min_size=ndim, max_size=ndim)))
    shape = tuple(draw(st.lists(st.integers(0, 2**60), min_size=ndim, max_size=ndim)))
    n = draw(st.integers(0, 4))
    numbers = np.random.default_rng(draw(st.integers(0, 2**32)))
    return ArrayCensus(
        draw(st.text(max_size=5)),
        shape,
        (1,) * ndim,
        per_object,
        draw(st.booleans()),
        numbers.integers(0, 2**60, (n, ndim)),
        numbers.integers(0, 2**60, n),
        numbers.integers(0, 256, (n, 16), dtype=np.uint8),
        numbers.integers(0, 256, (n, bitmap_nbytes(per_object)), dtype=np.uint8),
    )


def same(one: Census, other: Census) -> bool:
    def members(array: ArrayCensus) -> list[Any]:
        blocks = (array.coords, array.nbytes, array.digests, array.bitmaps)
        return [array.path, array.shape, array.chunk_shape, array.chunks_per_object, array.is_sharded, *(b.tolist() for b in blocks)]

    return one.of_contents == other.of_contents and [members(a) for a in one.arrays] == [members(a) for a in other.arrays]


@given(st.lists(arrays(), max_size=3), st.booleans())
def test_the_file_says_what_the_census_says(some: list[ArrayCensus], of_contents: bool) -> None:
    census = Census(tuple(some), of_contents)
    assert same(census_from_bytes(census.to_bytes()), census)


def test_objects_that_can_hold_no_chunk_hold_none() -> None:
    """A damaged file may say so."""
    array = ArrayCensus(
        "a",
        (4,),
        (1,),
        (0,),
        True,
        np.zeros((1, 1), np.int64),
        np.ones(1, np.int64),
        np.zeros((1, 16), np.uint8),
        np.zeros((1, 0), np.uint8),
    )
    assert census_from_bytes(Census((array,), False).to_bytes()).arrays[0].chunks == 0


def test_the_bytes_are_those_of_the_page() -> None:
    """The format, spelled out once: whoever changes it needs another version."""
    array = ArrayCensus(
        "x", (5,), (1,), (3,), True, np.array([[1]]), np.array([77]), np.full((1, 16), 9, np.uint8), np.array([[0b101_00000]], np.uint8)
    )
    data = Census((array,)).to_bytes()
    import zlib

    assert data[:13] == b"\x89shardcensus\n"
    assert data[13:17] == b"\x01\x00\x00\x00"
    body = zlib.decompress(data[29:])
    assert int.from_bytes(data[17:25], "little") == len(body)
    header_nbytes = int.from_bytes(body[:4], "little")
    assert json.loads(body[4 : 4 + header_nbytes]) == {
        "arrays": [{"path": "x", "shape": [5], "chunk_shape": [1], "chunks_per_object": [3], "sharded": True, "objects": 1}]
    }
    assert body[4 + header_nbytes :] == (1).to_bytes(8, "little") + (77).to_bytes(8, "little") + b"\x09" * 16 + b"\xa0"


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    storage = MemoryStorage(f"/census-{uuid.uuid4().hex}")
    make_healthy(storage, StorageObjects(storage), random.Random(0))
    data = taken(storage).to_bytes()
    for at in range(len(data)):
        with pytest.raises(Corruption):
            census_from_bytes(data[:at] + bytes([data[at] ^ 0x24]) + data[at + 1 :])
        with pytest.raises(Corruption):
            census_from_bytes(data[:at])
    (tmp_path / "x.census").write_bytes(b"{}")
    with pytest.raises(Corruption, match=r"x\.census: this is not a census"):
        read_census(tmp_path / "x.census")
    with pytest.raises(NotFound):
        read_census(tmp_path / "y.census")


def test_it_is_small_and_the_same_each_time(tmp_path: Path) -> None:
    store = shardstore.open(str(tmp_path), chunks_per_shard=(100,), fsync=False)
    array = zarr.create_array(store, name="x", shape=(4_000,), chunks=(1,), dtype="u1", compressors=None, fill_value=0)
    array[...] = (np.random.default_rng(0).random(4_000) < 0.9).astype("u1")
    one, other = (shardstore.census(str(tmp_path)) for _ in range(2))
    assert one.to_bytes() == other.to_bytes()
    assert len(one.to_bytes()) < 4_000 // 8 + 40 * (16 + 16) + 300
    one.write(tmp_path / "x.census")
    assert same(read_census(tmp_path / "x.census"), one)


# -- a store beside an older census ----------------------------------------------------------------------------------------


def found_since(storage: MemoryStorage, census: Census) -> set[tuple[str, str]]:
    report = verify_engine(Engine(storage), execution=Execution(workers=2), census=census)
    return {(finding.kind, finding.key) for finding in report.findings}


@pytest.mark.parametrize("of_contents", [False, True])
def test_what_changed_since(of_contents: bool) -> None:
    storage = MemoryStorage(f"/census-{uuid.uuid4().hex}")
    store = shardstore.open(storage, chunks_per_shard={"x": (4,), "*": None})
    root = zarr.open_group(store, mode="w")
    x = root.create_array("x", shape=(320,), chunks=(20,), dtype="f8")
    values = np.random.default_rng(0).random(320)
    for i in range(16):
        values[20 * i : 20 * i + i] = 1  # each chunk is compressed to another length
    x[...] = values
    y = root.create_array("y", shape=(4,), chunks=(2,), dtype="f8", compressors=None)
    y[...] = 1
    census = taken(storage, of_contents=of_contents)
    assert found_since(storage, census) == set()
    x[20:40] = 5  # in shard 0: compressed shorter than what was there
    y[0] = 5
    assert found_since(storage, census) == {("changed", "x/c/0")} | ({("changed", "y/c/0")} if of_contents else set())
    x[0:20] = 0  # a chunk is erased
    assert found_since(storage, census) >= {("missing", "x/c/0")}
    objects = StorageObjects(storage)
    objects.delete("x/c/1")
    objects.put("x/c/2", objects.get("x/c/3") or b"")
    objects.delete("y/c/1")
    found = found_since(storage, census)
    assert found >= {("missing", "x/c/1"), ("missing", "y/c/1")}
    assert ({("misplaced", "x/c/2"), ("changed", "x/c/2")} & found) != set()
    objects.delete("y/zarr.json")
    assert ("missing", "y/zarr.json") in found_since(storage, census)
    x.resize((160,))
    assert ("missing", "x/c/3") not in found_since(storage, census)


def test_what_is_listed_is_not_asked_for_again() -> None:
    storage = MemoryStorage(f"/census-{uuid.uuid4().hex}")
    hierarchy = make_healthy(storage, StorageObjects(storage), random.Random(0))
    census = taken(storage)
    hierarchy.objects.delete(hierarchy.shards("a")[0])
    trace = TraceStorage(storage)
    report = verify_engine(Engine(trace), execution=Execution(workers=2), census=census)
    assert [finding.kind for finding in report.findings] == ["missing"]
    assert [event.op for event in trace.events].count("stat") == 1


def test_another_layout_than_the_censuss() -> None:
    storage = MemoryStorage(f"/census-{uuid.uuid4().hex}")
    censuses = []
    for shard in ((4,), (2,)):
        store = shardstore.open(storage, chunks_per_shard=shard)
        array = zarr.create_array(store, name="x", shape=(32,), chunks=(2,), dtype="f8", overwrite=True)
        array[...] = 1
        censuses.append(taken(storage))
    assert found_since(storage, censuses[1]) == set()
    assert found_since(storage, censuses[0]) == {("differs", "x/zarr.json")}


# -- pictures ----------------------------------------------------------------------------------------------------------


def census_of(mask: npt.NDArray[np.bool_], per_object: tuple[int, ...]) -> ArrayCensus:
    """A census of an array whose chunks are elements: those exist that ``mask`` says."""
    storage = MemoryStorage(f"/census-{uuid.uuid4().hex}")
    store = shardstore.open(storage, chunks_per_shard=per_object)
    array = zarr.create_array(store, name="x", shape=mask.shape, chunks=(1,) * mask.ndim, dtype="u1", compressors=None, fill_value=0)
    array[...] = mask.astype("u1")
    return taken(storage).array("x")


@pytest.mark.parametrize(("rows", "columns"), [(100, 100), (7, 11), (3, 2), (1, 1), (5, 100)])
def test_density_is_the_share_of_chunks_behind_each_cell(rows: int, columns: int) -> None:
    mask = np.random.default_rng(0).random((3, 13, 17)) < 0.4
    seen = census_of(mask, (2, 4, 4)).density(rows, columns)
    assert (seen.axes, seen.chunks) == ((1, 2), (13, 17))
    height, width = min(rows, 13), min(columns, 17)
    expected, behind = np.zeros((height, width)), np.zeros((height, width))
    for i, j, k in np.ndindex(mask.shape):
        cell = j * height // 13, k * width // 17
        behind[cell] += 1
        expected[cell] += mask[i, j, k]
    np.testing.assert_allclose(seen.cells, expected / behind)


def test_density_of_other_ranks_and_axes() -> None:
    mask = np.random.default_rng(0).random((3, 13, 17)) < 0.4
    array = census_of(mask, (2, 4, 4))
    np.testing.assert_allclose(array.density(99, 99, (0, 2)).cells, mask.mean(axis=1))
    np.testing.assert_allclose(array.density(99, 99, (2, 0)).cells, mask.mean(axis=1).T)
    np.testing.assert_allclose(array.density(99, 99, (0, 5)).cells, array.density(99, 99).cells)
    with pytest.raises(InvalidInput):
        array.density(9, 9, (1, 1))
    line = census_of(mask[0, 0], (4,)).density(9, 99)
    assert line.axes == (None, 0)
    np.testing.assert_allclose(line.cells, mask[:1, 0])
    assert bare((), 1).density(9, 9).cells.tolist() == [[1.0]]
    assert bare((0, 4), 0).density(9, 9).cells.size == 0


def bare(shape: tuple[int, ...], objects: int) -> ArrayCensus:
    """Of an array of one-element chunks, each an object, ``objects`` of which exist, all at the origin."""
    ndim = len(shape)
    coords, nbytes = np.zeros((objects, ndim), np.int64), np.ones(objects, np.int64)
    digests, bitmaps = np.zeros((objects, 16), np.uint8), np.full((objects, 1), 128, np.uint8)
    return ArrayCensus("", shape, (1,) * ndim, (1,) * ndim, False, coords, nbytes, digests, bitmaps)


def test_pictures_in_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from shardstore.adapters.tools.verification import picture_saver

    census = Census((census_of(np.random.default_rng(0).random((30, 40)) < 0.5, (4, 4)), census_of(np.ones(5, np.bool_), (2,))))
    for suffix, magic in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        for name in ("one", "other"):
            picture_saver()(census, tmp_path / f"{name}{suffix}", None)
        assert (tmp_path / f"one{suffix}").read_bytes().startswith(magic)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "other.png").read_bytes()
    with pytest.raises(InvalidInput, match=r"has to end with \.png or \.svg"):
        picture_saver()(census, tmp_path / "one.txt", None)


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from shardstore.adapters.tools.verification import picture_saver

    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "shardstore.adapters.tools.census_plot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(Unsupported, match=r"pip install 'shardstore\[plot]'"):
        picture_saver()


# -- by parts, and what could not be read ------------------------------------------------------------------------------


def two_arrays() -> MemoryStorage:
    storage = MemoryStorage(f"/census-{uuid.uuid4().hex}")
    store = shardstore.open(storage, chunks_per_shard={"sharded": (3,), "*": None})
    for name in ("sharded", "plain"):
        zarr.create_array(store, name=name, shape=(40,), chunks=(2,), dtype="u1")[...] = 1
    return storage


def test_parts_together_are_the_whole() -> None:
    storage = two_arrays()
    whole = taken(storage)
    parts = [take_census(Engine(storage), execution=Execution(workers=1, part=Part(i + 1, 3))) for i in range(3)]
    assert all(0 < sum(array.objects for array in part.arrays) < sum(array.objects for array in whole.arrays) for part in parts)
    assert merged(parts).to_bytes() == whole.to_bytes()
    assert merged([whole, *parts]).to_bytes() == whole.to_bytes()


def test_censuses_that_do_not_go_together() -> None:
    storage = two_arrays()
    whole = taken(storage)
    with pytest.raises(InvalidInput, match="in the same way"):
        merged([whole, taken(storage, of_contents=True)])
    array = whole.arrays[0]
    other = replace(whole, arrays=(replace(array, chunk_shape=tuple(2 * n for n in array.chunk_shape)),))
    with pytest.raises(InvalidInput, match="laid out"):
        merged([whole, other])
    with pytest.raises(InvalidInput, match="no census"):
        merged([])


def test_what_could_not_be_read_is_told_and_can_be_counted_later() -> None:
    storage = two_arrays()
    whole = taken(storage)
    broken = HookedStorage(storage)

    async def breaks(operation: str, key: str) -> None:
        if operation == "read" and key == key_that_fails:
            raise StorageError("the server is tired")

    key_that_fails = "sharded/c/2"
    broken.before = breaks
    first = take_census(Engine(broken), execution=Execution(workers=1, retries=0))
    failed = {unread.key for unread in first.failed}
    assert failed == {key_that_fails}
    assert first.to_bytes() != whole.to_bytes()
    rest = take_census(Engine(storage), execution=Execution(only=frozenset(failed)))
    assert sum(array.objects for array in rest.arrays) == len(failed)
    assert merged([first, rest]).to_bytes() == whole.to_bytes()
