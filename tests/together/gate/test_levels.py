"""Shards that hold shards: presented at their innermost level by ``present_level``, of storage transformers in any case."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import shutil
import threading
import uuid
from pathlib import Path
from typing import Any

import fsspec
import hypothesis
import numpy as np
import numpy.typing as npt
import pytest
import tensorstore
import zarr
from hypothesis import strategies as st

import shardstore
from shardstore import ShardingTransformer
from shardstore._sync import run_sync
from shardstore.engine.options import StrategyName
from shardstore.errors import InvalidInput, Unsupported
from shardstore.format.presentation import PresentLevel
from shardstore.storage.memory import MemoryStorage
from tests import view
from tests.adapters.transformer.layers import CountedCalls, Store, document, layered
from tests.documents import array_v3, sharding_codec
from tests.golden import golden_cases

Values = npt.NDArray[Any]
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
CHECKSUM = {"name": "crc32c"}
pytestmark = [pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")]


def sharding(chunk_shape: tuple[int, ...], *codecs: dict[str, Any], location: str = "end", checksum: bool = True) -> dict[str, Any]:
    index_codecs = [LITTLE, CHECKSUM] if checksum else [LITTLE]
    return sharding_codec(chunk_shape, codecs, index_codecs=index_codecs, index_location=location)


def metadata(shape: tuple[int, ...], shards: tuple[int, ...], *codecs: dict[str, Any], separator: str = "/") -> dict[str, Any]:
    encoding = {"name": "default", "configuration": {"separator": separator}}
    attributes = {"by": "tensorstore"}
    return array_v3(shape, shards, data_type="uint16", chunk_key_encoding=encoding, codecs=list(codecs), attributes=attributes)


THREE_LEVELS = metadata(
    (20, 26), (8, 12), sharding((4, 6), sharding((4, 3), sharding((2, 1), LITTLE, GZIP), location="start"), checksum=False)
)


def by_tensorstore(root: Path, created: dict[str, Any] | None = None) -> Any:
    spec: dict[str, Any] = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{root}/"}}
    if created is not None:
        spec |= {"metadata": created, "create": True}
    return tensorstore.open(spec).result()


def written(root: Path, created: dict[str, Any]) -> Values:
    shape = created["shape"]
    values: Values = (np.arange(math.prod(shape)) % 60_000 + 1).astype("u2").reshape(shape)
    by_tensorstore(root, created)[...] = values
    return values


def read_by_tensorstore(root: Path) -> Values:
    return np.asarray(by_tensorstore(root).read().result())


def stored_document(root: Path) -> dict[str, Any]:
    """As it is stored, but for an empty list that zarr-python adds."""
    loaded: dict[str, Any] = json.loads((root / "zarr.json").read_bytes())
    assert loaded.pop("storage_transformers", []) == []
    return loaded


def opened(root: Path, **options: Any) -> zarr.Array[Any]:
    return zarr.open_array(shardstore.open(str(root), **{"present_level": "innermost"} | options), mode="r+")


# -- what is shown ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("level", "chunks"), [(1, (4, 6)), (2, (4, 3)), (3, (2, 1)), (9, (2, 1)), ("innermost", (2, 1))])
def test_so_many_levels_are_taken_off(tmp_path: Path, level: Any, chunks: tuple[int, ...]) -> None:
    expected = written(tmp_path, THREE_LEVELS)
    store = shardstore.open(str(tmp_path), present_level=level)
    shown = json.loads(view.get(store, "zarr.json") or b"")
    assert shown["chunk_grid"]["configuration"]["chunk_shape"] == list(chunks)
    assert [codec["name"] for codec in shown["codecs"]] == (["bytes", "gzip"] if chunks == (2, 1) else ["sharding_indexed"])
    np.testing.assert_array_equal(zarr.open_array(store, mode="r")[...], expected)
    grid = itertools.product(range(-(-20 // chunks[0])), range(-(-26 // chunks[1])))
    keys = sorted(f"c/{i}/{j}" for i, j in grid)
    assert view.keys(store) == [*keys, "zarr.json"]
    assert view.list_dir(store, "c") == sorted({key.split("/")[1] for key in keys})
    assert view.list_dir(store, "c/3") == sorted(key.split("/")[2] for key in keys if key.startswith("c/3/"))
    assert view.keys(store, "c/1/") == [key for key in keys if key.startswith("c/1/")]


@pytest.mark.parametrize("name", ["sharding_indexed/nested_sharding", "tensorstore/ts_nested_v2keys"])
def test_nested_shards_of_others(name: str) -> None:
    (case,) = [case for case in golden_cases() if case.name == name]
    store = shardstore.open(str(case.store), read_only=True, present_level="innermost")
    for path, expected in case.arrays.items():
        array = zarr.open_array(store, path=path, mode="r")
        assert array.shards is None
        np.testing.assert_array_equal(array[...], expected)
        assert array.nchunks_initialized == len(view.keys(store, path)) - 1


def test_arrays_of_one_level_and_of_none_are_shown_as_ever(tmp_path: Path) -> None:
    plain, deep = shardstore.open(str(tmp_path)), shardstore.open(str(tmp_path), present_level="innermost")
    group = zarr.create_group(deep)
    group.create_array("one", shape=(8, 8), chunks=(2, 2), dtype="u2")
    with shardstore.open(str(tmp_path), chunks_per_shard=None, present_level=2) as unsharded:
        zarr.open_group(unsharded).create_array("none", shape=(4,), chunks=(2,), dtype="u2")[...] = 3
    deep = shardstore.open(str(tmp_path), present_level="innermost", chunks_per_shard=(2, 2))
    zarr.open_group(deep)["one"][...] = 5  # type: ignore[index]  # an array
    written(tmp_path / "three", THREE_LEVELS)
    for name in ("one", "none"):
        assert view.get(plain, f"{name}/zarr.json") == view.get(deep, f"{name}/zarr.json")
        keys = view.keys(plain, f"{name}/c")
        assert view.keys(deep, f"{name}/c") == keys
        assert view.get_many(deep, [(key, None) for key in keys]) == view.get_many(plain, [(key, None) for key in keys])
    assert len(view.keys(deep, "three/c")) == 10 * 26
    assert view.keys(deep) == [*sorted(key for name in ("one", "none", "three") for key in view.keys(deep, f"{name}/")), "zarr.json"]


@pytest.mark.parametrize("level", [0, -1, True, 1.5, "outermost", None])
def test_levels_that_are_none(level: Any) -> None:
    with pytest.raises(InvalidInput, match=r"present_level .* is neither 'innermost' nor a whole number of at least 1"):
        shardstore.open("memory://levels", present_level=level)


def test_clear_refusals() -> None:
    with pytest.raises(InvalidInput, match="present_level='innermost' does not work with present='draft'"):
        ShardingTransformer("memory://levels", present="draft", present_level="innermost")
    with pytest.raises(Unsupported, match="this storage has no object versions"):
        ShardingTransformer(Store(), present_level=2)


@pytest.mark.parametrize("face", ["mapper", "transformer", "filesystem", "from_url", "pickle"])
def test_every_face_takes_the_option(tmp_path: Path, face: str) -> None:
    expected = written(tmp_path, THREE_LEVELS)
    inner = shardstore.get_mapper(str(tmp_path), present_level=3)
    data = inner["c/0/7"]
    match face:
        case "mapper":
            assert len(inner) == 261
        case "transformer":
            transformer = ShardingTransformer(str(tmp_path), present_level="innermost")
            assert transformer.get("c/0/7") == data
            assert transformer.list_dir("c/9/") == ([f"c/9/{j}" for j in sorted(range(26), key=str)], [])
        case "filesystem":
            fs, path = fsspec.url_to_fs(f"sharded::file://{tmp_path}", sharded={"present_level": "innermost"})
            assert fs.cat_file(f"{path}/c/0/7") == data
            array = zarr.open_array(f"sharded::file://{tmp_path}", storage_options={"sharded": {"present_level": 3}}, mode="r")
            np.testing.assert_array_equal(array[...], expected)
        case "from_url":
            assert view.get(shardstore.ShardedStore.from_url(f"file://{tmp_path}", present_level=3), "c/0/7") == data
        case "pickle":
            store = shardstore.open(str(tmp_path), present_level=3)
            assert view.get(store, "c/0/7") == data
            other = pickle.loads(pickle.dumps(store))
            assert view.get(other, "c/0/7") == data
            assert "c/" not in str(other._handle._nodes)


# -- reading and writing ---------------------------------------------------------------------------------------------------


@st.composite
def nested(draw: st.DrawFn) -> dict[str, Any]:
    ndim = draw(st.integers(1, 3))
    sizes = st.tuples(*[st.integers(1, 2)] * ndim)
    shape = draw(sizes)
    last: list[dict[str, Any]] = draw(st.sampled_from([[], [GZIP], [CHECKSUM]]))
    codecs = [LITTLE, *last]
    for _ in range(draw(st.integers(1, 3))):
        codecs = [sharding(shape, *codecs, location=draw(st.sampled_from(["start", "end"])), checksum=draw(st.booleans()))]
        shape = tuple(c * n for c, n in zip(shape, draw(sizes), strict=True))
        if draw(st.booleans()):
            order = tuple(draw(st.permutations(range(ndim))))
            codecs = [{"name": "transpose", "configuration": {"order": list(order)}}, *codecs]
            shape = tuple(shape[order.index(i)] for i in range(ndim))
    return metadata(draw(st.tuples(*[st.integers(1, 11)] * ndim)), shape, *codecs, separator=draw(st.sampled_from(["/", "."])))


@hypothesis.settings(
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.generate],  # to shrink a failure takes longer than a test may
)
@hypothesis.given(created=nested(), data=st.data(), level=st.sampled_from([3, "innermost"]))
def test_values_go_both_ways(tmp_path: Path, created: dict[str, Any], data: st.DataObject, level: Any) -> None:
    root = tmp_path / "x"
    shutil.rmtree(root, ignore_errors=True)
    expected = written(root, created)
    before = stored_document(root)
    store = shardstore.open(str(root), present_level=level)
    array = zarr.open_array(store, mode="r+", config={"write_empty_chunks": False})
    np.testing.assert_array_equal(array[...], expected)
    for value in (7, 0):  # 0 is the fill value: whole chunks of it are erased
        starts = [data.draw(st.integers(0, n - 1)) for n in expected.shape]
        region = tuple(slice(start, start + data.draw(st.integers(1, 9))) for start in starts)
        array[region] = expected[region] = value
        np.testing.assert_array_equal(read_by_tensorstore(root), expected)
    np.testing.assert_array_equal(opened(root, present_level=level)[...], expected)
    chunks = array.chunks
    blocks = itertools.product(*(range(0, n, c) for n, c in zip(expected.shape, chunks, strict=True)))
    full = sum(bool(expected[tuple(slice(a, a + c) for a, c in zip(block, chunks, strict=True))].any()) for block in blocks)
    assert len(view.keys(store)) - 1 == full
    array.attrs["a"] = 1
    assert stored_document(root) == before | {"attributes": {"by": "tensorstore", "a": 1}}


@pytest.mark.parametrize("strategy", ["rewrite", "append"])
def test_resizing_and_transactions(tmp_path: Path, strategy: StrategyName) -> None:
    created = metadata((20, 26), (8, 12), sharding((4, 6), sharding((2, 3), LITTLE)))
    expected = written(tmp_path, created)
    before = stored_document(tmp_path)
    store = shardstore.open(str(tmp_path), present_level=2, strategy=strategy)
    array = zarr.open_array(store, mode="r+")
    with store.transaction():
        array[3:9] = expected[3:9] = 4
        array[5] = expected[5] = 6
        np.testing.assert_array_equal(array[...], expected)
        assert not np.array_equal(read_by_tensorstore(tmp_path), expected)
    np.testing.assert_array_equal(read_by_tensorstore(tmp_path), expected)
    array.resize((7, 26))
    assert stored_document(tmp_path) == before | {"shape": [7, 26]}
    assert len(view.keys(store, "c")) == 4 * 9
    array.append(expected[:4])
    np.testing.assert_array_equal(read_by_tensorstore(tmp_path), np.concatenate([expected[:7], expected[:4]]))
    view.delete_dir(store, "c")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [tmp_path / "zarr.json"]


def test_single_chunks_are_read_again_and_again(tmp_path: Path) -> None:
    """Of stored shards they are read in the calling thread, and selections in threads: not of shards that lie in others."""
    expected = written(tmp_path, THREE_LEVELS)
    array = opened(tmp_path, metadata_ttl=math.inf)
    for _ in range(3):
        np.testing.assert_array_equal(array[2:4, 7], expected[2:4, 7])
        np.testing.assert_array_equal(array[...], expected)
    store = array.store
    assert isinstance(store, shardstore.ShardedStore)
    engine = store._handle.engine
    keys = [f"c/0/{j}" for j in range(16)]
    assert engine.hierarchy.fresh_chunk(keys[0]) is None
    assert run_sync(engine.plan_read(keys)) is None
    one = shardstore.open(str(tmp_path), present_level=1, metadata_ttl=math.inf)
    np.testing.assert_array_equal(zarr.open_array(one)[...], expected)
    assert one._handle.engine.hierarchy.fresh_chunk("c/0/0") is not None


@pytest.mark.parametrize("same_store", [True, False])
def test_writers_of_one_stored_shard_lose_nothing(tmp_path: Path, same_store: bool) -> None:
    """256 chunks in 16 shards of one stored object, by four writers, each of which writes a part of every shard."""
    by_tensorstore(tmp_path, metadata((16, 16), (16, 16), sharding((4, 4), sharding((1, 1), LITTLE))))
    expected: Values = np.arange(1, 257, dtype="u2").reshape(16, 16)
    options: list[dict[str, Any]] = [{"present_level": 2}] * 4 if same_store else [{"present_level": 2, "gap_bytes": i} for i in range(4)]
    arrays = [zarr.open_array(shardstore.open(str(tmp_path), **each), mode="r+") for each in options]
    errors: list[Exception] = []

    def write(number: int) -> None:
        try:
            for row in range(number, 16, 4):
                arrays[number][row] = expected[row]
        except Exception as exc:  # noqa: BLE001  # shown below
            errors.append(exc)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    np.testing.assert_array_equal(read_by_tensorstore(tmp_path), expected)
    assert len([p for p in (tmp_path / "c").rglob("*") if p.is_file()]) == 1


def test_views_of_two_levels_write_one_array(tmp_path: Path) -> None:
    """What one writes the other reads, from the same stored shards."""
    expected = written(tmp_path, THREE_LEVELS)
    arrays = [opened(tmp_path, present_level=level) for level in (1, 2, 3)]
    for i, array in enumerate(arrays * 2):
        array[i : i + 3, ::2] = expected[i : i + 3, ::2] = 1000 + i
        for other in arrays:
            np.testing.assert_array_equal(other[...], expected)
    np.testing.assert_array_equal(read_by_tensorstore(tmp_path), expected)


def test_the_view_of_zarr_v2(tmp_path: Path) -> None:
    expected = written(tmp_path, THREE_LEVELS)
    array = zarr.open_array(shardstore.open(str(tmp_path), present="v2", present_level="innermost"), mode="r+", zarr_format=2)
    assert array.chunks == (2, 1)
    array[3] = expected[3] = 9
    np.testing.assert_array_equal(array[...], expected)
    np.testing.assert_array_equal(read_by_tensorstore(tmp_path), expected)


# -- documents -------------------------------------------------------------------------------------------------------------


def test_consolidated_metadata(tmp_path: Path) -> None:
    store = shardstore.open(str(tmp_path), present_level="innermost", chunks_per_shard=(2, 2))
    group = zarr.create_group(store)
    group.create_array("one", shape=(8, 8), chunks=(2, 2), dtype="u2")
    written(tmp_path / "three", THREE_LEVELS)
    before = stored_document(tmp_path / "three")
    zarr.consolidate_metadata(store)
    inside = json.loads((tmp_path / "zarr.json").read_bytes())["consolidated_metadata"]["metadata"]
    assert inside["three"]["codecs"] == before["codecs"]
    assert inside["one"]["codecs"][0]["name"] == "sharding_indexed"
    levels: list[tuple[PresentLevel, tuple[int, int]]] = [("innermost", (2, 1)), (1, (4, 6))]
    for level, chunks in levels:
        shown = zarr.open_consolidated(shardstore.open(str(tmp_path), present_level=level))
        assert shown["three"].chunks == (2, 1) if level == "innermost" else shown["three"].shards == chunks  # type: ignore[union-attr]  # an array
    zarr.open_group(store).attrs["note"] = 1
    again = json.loads((tmp_path / "zarr.json").read_bytes())
    assert again["consolidated_metadata"]["metadata"] == inside
    assert again["attributes"] == {"note": 1}


@pytest.mark.parametrize("transaction", [False, True])
@pytest.mark.parametrize("overwrite", ["delete", "overwrite"])
def test_another_array_in_its_place(tmp_path: Path, transaction: bool, overwrite: str) -> None:
    """Created by this client it has one level, whatever was there; and the other way round."""
    zarr.create_group(shardstore.open(str(tmp_path)))
    for level in (2, "innermost"):
        written(tmp_path / "x", THREE_LEVELS)
        store = shardstore.open(str(tmp_path), present_level=level, chunks_per_shard=(2, 2), metadata_ttl=0)
        group = zarr.open_group(store, mode="r+")
        assert isinstance(group["x"], zarr.Array)
        assert np.asarray(group["x"][0, 3]) == 4

        def recreate(group: zarr.Group = group) -> None:
            if overwrite == "delete":
                del group["x"]
            made = group.create_array("x", shape=(9, 9), chunks=(2, 2), dtype="u2", overwrite=overwrite == "overwrite", compressors=None)
            made[...] = 8

        if transaction:
            with store.transaction():
                recreate()
        else:
            recreate()
        np.testing.assert_array_equal(read_by_tensorstore(tmp_path / "x"), np.full((9, 9), 8))
        assert stored_document(tmp_path / "x")["chunk_grid"]["configuration"]["chunk_shape"] == [4, 4]
        np.testing.assert_array_equal(opened(tmp_path / "x", present_level=level)[...], np.full((9, 9), 8))
        # Another client puts an array with levels there again.
        shutil.rmtree(tmp_path / "x")
        expected = written(tmp_path / "x", THREE_LEVELS)
        np.testing.assert_array_equal(zarr.open_array(store, path="x")[...], expected)
        shutil.rmtree(tmp_path / "x")


def test_what_decides_the_bytes_of_chunks_cannot_change(tmp_path: Path) -> None:
    written(tmp_path, THREE_LEVELS)
    before = stored_document(tmp_path)
    mapper = shardstore.get_mapper(str(tmp_path), present_level="innermost")
    shown = json.loads(mapper["zarr.json"])
    with pytest.raises(InvalidInput, match="cannot change while it has chunks"):
        mapper["zarr.json"] = json.dumps(shown | {"codecs": [LITTLE]}).encode()
    assert stored_document(tmp_path) == before
    for key in [key for key in mapper if key != "zarr.json"]:
        del mapper[key]
    mapper["zarr.json"] = json.dumps(shown | {"codecs": [LITTLE]}).encode()
    mapper["c/0/0"] = b"abcd"
    assert mapper["c/0/0"] == b"abcd"
    assert read_by_tensorstore(tmp_path)[:2, 0].tobytes() == b"abcd"


def test_a_client_cannot_create_levels_that_it_would_not_see(tmp_path: Path) -> None:
    nested = zarr.codecs.ShardingCodec(chunk_shape=(4, 4), codecs=[zarr.codecs.ShardingCodec(chunk_shape=(2, 2))])
    one = zarr.codecs.ShardingCodec(chunk_shape=(2, 2))
    given: dict[str, Any] = {"shape": (8, 8), "chunks": (8, 8), "dtype": "u2", "compressors": None, "filters": None}
    for level in (2, "innermost"):
        store = shardstore.open(str(tmp_path), present_level=level)
        with pytest.raises(InvalidInput, match="create it through a store with present_level=1"):
            zarr.create_array(store, name="x", serializer=nested, **given)
        assert not (tmp_path / "x").exists()
        made = zarr.create_array(store, name=f"one-{level}", serializer=one, **given)
        made[...] = 3
        np.testing.assert_array_equal(zarr.open_array(store, path=f"one-{level}")[...], np.full((8, 8), 3))
        assert zarr.open_array(store, path=f"one-{level}").chunks == (2, 2)
    zarr.create_array(shardstore.open(str(tmp_path)), name="x", serializer=nested, **given)[...] = 5
    np.testing.assert_array_equal(opened(tmp_path / "x")[...], np.full((8, 8), 5))
    np.testing.assert_array_equal(read_by_tensorstore(tmp_path / "x"), np.full((8, 8), 5))


def test_copied_and_moved_as_it_is_stored(tmp_path: Path) -> None:
    zarr.create_group(shardstore.open(str(tmp_path)))
    expected = written(tmp_path / "x", THREE_LEVELS)
    before = stored_document(tmp_path / "x")
    fs, root = fsspec.url_to_fs(f"sharded::file://{tmp_path}", sharded={"present_level": "innermost"})
    fs.copy(f"{root}/x", f"{root}/y", recursive=True)
    fs.mv(f"{root}/x", f"{root}/z", recursive=True)
    for name in "yz":
        assert stored_document(tmp_path / name) == before
        np.testing.assert_array_equal(read_by_tensorstore(tmp_path / name), expected)
        np.testing.assert_array_equal(opened(tmp_path / name)[...], expected)
    assert not (tmp_path / "x").exists()
    fs.rm(f"{root}/y", recursive=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["z", "zarr.json"]


# -- storage transformers --------------------------------------------------------------------------------------------------


def stacked(layers: int) -> tuple[MemoryStorage, ShardingTransformer]:
    place = MemoryStorage(f"/levels-{uuid.uuid4().hex}")
    top, _ = layered(place, layers)
    top.set("meta/root/x.array.json", document((20, 20), (2, 2)))
    return place, top


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_several_transformers_are_all_taken_off(layers: int) -> None:
    place, top = stacked(layers)
    store = shardstore.open(place, metadata_ttl=0)
    array = zarr.open_array(store, path="x", mode="r+")
    assert array.chunks == (2, 2)
    expected = (np.arange(400) % 250 + 1).astype("u1").reshape(20, 20)
    array[...] = expected
    array[3:9, 4] = expected[3:9, 4] = 7
    np.testing.assert_array_equal(zarr.open_array(shardstore.open(place), path="x", mode="r")[...], expected)
    chunks = [f"x/c/{i}/{j}" for i in range(10) for j in range(10)]
    assert view.keys(store, "x/c") == sorted(chunks)
    assert view.keys(store) == [*sorted(chunks), "x/zarr.json", "zarr.json"]
    # The draft's own client, with as many transformers, sees the same.
    theirs = [key.replace("x/c/", "data/root/x/c") for key in chunks]
    assert top.list_prefix("data/") == sorted(theirs)
    assert top.get_partial_values([(key, None) for key in theirs]) == view.get_many(store, [(key, None) for key in chunks])
    top.set(theirs[11], top.get(theirs[0]) or b"")
    expected[2:4, 2:4] = expected[:2, :2]
    np.testing.assert_array_equal(array[...], expected)
    before = json.loads(top.get("meta/root/x.array.json") or b"")
    array.attrs["unit"] = "K"
    array.resize((20, 5))
    assert json.loads(top.get("meta/root/x.array.json") or b"") == before | {"attributes": {"unit": "K"}, "shape": [20, 5]}
    expected = expected[:, :5]
    np.testing.assert_array_equal(array[...], expected)
    array[...] = 0
    assert view.keys(store, "x/c") == [] or array.config.write_empty_chunks
    view.delete_dir(store, "x")
    assert view.keys(store) == ["zarr.json"]
    assert top.list() == ["zarr.json"]


def test_a_draft_array_with_one_transformer_takes_no_more_calls_than_before() -> None:
    """What is shown of it lies in stored objects: nothing is put between."""
    place, top = stacked(1)
    top.set("data/root/x/c0/0", b"xxxx")
    counted = CountedCalls(place)
    store = ShardingTransformer(counted, metadata_ttl=math.inf)
    assert store.get("x/c/0/0") == b"xxxx"
    with counted.block() as calls:
        assert store.get("x/c/0/0") == b"xxxx"
    assert calls == {"get_partial_values": 1}
    with counted.block() as calls:
        store.set("x/c/1/1", b"yyyy")
    assert calls["set"] == 1
    assert calls["get_partial_values"] <= 1
