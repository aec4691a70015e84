"""Hierarchies that other implementations wrote show exactly their values, their chunks' bytes and their keys."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import Corruption
from shardstore.storage.memory import MemoryStorage
from tests import view
from tests.golden import GoldenCase, HandmadeCase, golden_cases, handmade_cases
from tests.shards import presented, sharded_arrays
from tests.stored import LocalObjects, Objects, StorageObjects, as_zarr_memory, copy_tree, snapshot

GOLDEN = golden_cases()
HANDMADE = handmade_cases()

# zarr warns of `gzip_over_shard` and of nested sharding, which is what those cases are about.
pytestmark = [pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")]


@pytest.fixture(params=["pipeline", "no pipeline"])
def pipeline(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "pipeline")


@pytest.fixture(params=["local", "memory"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(source: Path, kind: str, *, pipeline: bool = True) -> tuple[shardstore.ShardedStore, Objects]:
    """A view of the files below ``source``, in place or copied into memory, and the objects below it."""
    if kind == "local":
        return shardstore.open(str(source), read_only=True, pipeline=pipeline), LocalObjects(source)
    storage = MemoryStorage(f"/golden-{uuid.uuid4().hex}")
    objects = StorageObjects(storage)
    copy_tree(source, objects)
    return shardstore.open(storage, read_only=True, pipeline=pipeline), objects


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.name)
def test_values(case: GoldenCase, kind: str, pipeline: bool) -> None:
    store, _ = opened(case.store, kind, pipeline=pipeline)
    for path, expected in case.arrays.items():
        array = zarr.open_array(store, path=path, mode="r")
        np.testing.assert_array_equal(array[...], expected)
        assert array.dtype == expected.dtype


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.name)
def test_chunk_bytes_and_listing(case: GoldenCase, kind: str) -> None:
    store, objects = opened(case.store, kind)
    expected = presented(objects)
    shown = view.contents(store)
    assert sorted(shown) == sorted(expected)
    documents = {key for key in expected if key.endswith("zarr.json")}
    assert {key: shown[key] for key in shown if key not in documents} == {key: expected[key] for key in expected if key not in documents}
    for key in sorted(expected.keys() - documents)[:: 1 + len(expected) // 300]:
        assert view.getsize(store, key) == len(expected[key])
        assert view.exists(store, key)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.name)
def test_directories(case: GoldenCase, kind: str) -> None:
    store, objects = opened(case.store, kind)
    shown = presented(objects)
    directories = {""} | {"/".join(key.split("/")[:depth]) for key in shown for depth in range(1, key.count("/") + 1)}
    for directory in sorted(directories):
        prefix = f"{directory}/" if directory else ""
        names = {key.removeprefix(prefix).split("/")[0] for key in shown if key.startswith(prefix)}
        assert view.list_dir(store, directory) == sorted(names), directory


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.name)
def test_missing_chunks_are_missing(case: GoldenCase) -> None:
    store, objects = opened(case.store, "local")
    shown = presented(objects)
    for layout in sharded_arrays(objects).values():
        for coords in np.ndindex(*layout.grid_shape):
            key = layout.key(coords)
            assert (view.get(store, key) is not None) == (key in shown), key
            assert view.exists(store, key) == (key in shown), key


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.name)
def test_metadata_says_nothing_of_shards(case: GoldenCase, kind: str) -> None:
    """Presented: inner chunk shape and inner codecs; everything else as stored. What cannot be shown passes through."""
    store, objects = opened(case.store, kind)
    layouts = sharded_arrays(objects)
    for key, data in snapshot(objects).items():
        if not key.endswith("zarr.json"):
            continue
        shown_bytes = view.get(store, key)
        assert shown_bytes is not None
        shown, stored = json.loads(shown_bytes), json.loads(data)
        layout = layouts.get(key.removesuffix("zarr.json").rstrip("/"))
        if layout is not None:
            stored["chunk_grid"]["configuration"]["chunk_shape"] = list(layout.chunk_shape)
            stored["codecs"] = stored["codecs"][0]["configuration"]["codecs"]
        if "consolidated_metadata" in stored:
            prefix = key.removesuffix("zarr.json")
            for path, child in stored["consolidated_metadata"]["metadata"].items():
                inner = layouts.get(prefix + path)
                if inner is not None:
                    child["chunk_grid"]["configuration"]["chunk_shape"] = list(inner.chunk_shape)
                    child["codecs"] = child["codecs"][0]["configuration"]["codecs"]
        assert shown == stored


def shown_below(keys: set[str], prefix: str) -> set[str]:
    """The names directly below ``prefix``; those that go on end in ``/``."""
    rests = [key.removeprefix(prefix) for key in keys if key.startswith(prefix)]
    return {prefix + name + slash for name, slash, _ in (rest.partition("/") for rest in rests)}


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.name)
def test_the_transformers_view(case: GoldenCase, kind: str) -> None:
    """The same keys and bytes in the words of the transformer's specification; it lists prefixes that may be empty."""
    store, objects = opened(case.store, kind)
    transformer = shardstore.ShardingTransformer(case.store if kind == "local" else objects_storage(objects), read_only=True)
    shown = view.contents(store)
    assert list(transformer.list()) == sorted(shown)
    assert transformer.get_partial_values([(key, (1, 5)) for key in shown]) == [value[1:6] for value in shown.values()]
    for key, value in shown.items():
        assert transformer.get(key) == value
    directories = {""} | {key[: i + 1] for key in shown for i, character in enumerate(key) if character == "/"}
    for directory in directories:
        assert list(transformer.list_prefix(directory)) == sorted(key for key in shown if key.startswith(directory))
        keys, prefixes = transformer.list_dir(directory)
        exact = shown_below(set(shown), directory)
        assert set(keys) == {name for name in exact if not name.endswith("/")}
        assert set(prefixes) >= {name for name in exact if name.endswith("/")}
        assert all(prefix.startswith(directory) and prefix.endswith("/") for prefix in prefixes)


def objects_storage(objects: Objects) -> MemoryStorage:
    assert isinstance(objects, StorageObjects)
    assert isinstance(objects.storage, MemoryStorage)
    return objects.storage


def rewritable(source: Path, kind: str, tmp_path: Path, *, pipeline: bool = True) -> tuple[shardstore.ShardedStore, Objects]:
    """A view of a copy that may be written."""
    if kind == "local":
        copy_tree(source, LocalObjects(tmp_path))
        return shardstore.open(str(tmp_path), pipeline=pipeline), LocalObjects(tmp_path)
    _, objects = opened(source, "memory")
    return shardstore.open(objects_storage(objects), pipeline=pipeline), objects


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.name)
def test_a_write_keeps_every_other_chunk_byte_for_byte(case: GoldenCase, kind: str, tmp_path: Path) -> None:
    """One chunk of every shard is replaced, then one is erased: the index formats and orders of other writers are kept."""
    store, objects = rewritable(case.store, kind, tmp_path)
    expected = presented(objects)
    metadata = {key: value for key, value in snapshot(objects).items() if key.endswith("zarr.json")}
    for path, layout in sharded_arrays(objects).items():
        chunks = sorted(key for key in expected if layout.coords(key) is not None)
        replaced, erased = chunks[:: 2 * layout.chunks_in_shard], chunks[1 :: 2 * layout.chunks_in_shard]
        for key in replaced:
            expected[key] = bytes(255 - byte for byte in expected[key])  # of the same length: codecs may ask for it
            view.put(store, key, expected[key])
        for key in erased:
            del expected[key]
            view.delete(store, key)
        assert presented(objects) == expected, path
    assert {key: value for key, value in snapshot(objects).items() if key.endswith("zarr.json")} == metadata
    shown = view.contents(store)
    assert {key: shown[key] for key in shown if key not in metadata} == {key: expected[key] for key in expected if key not in metadata}


def by_name(name: str) -> GoldenCase:
    (case,) = [case for case in GOLDEN if case.name == name]
    return case


def test_a_codec_around_the_shards_passes_through(kind: str) -> None:
    """Offsets refer to the decompressed shard there, so no chunk has bytes of its own."""
    case = by_name("sharding_indexed/gzip_over_shard")
    store, objects = opened(case.store, kind)
    assert view.contents(store) == snapshot(objects)


@pytest.mark.parametrize("name", ["sharding_indexed/nested_sharding", "tensorstore/ts_nested_v2keys"])
def test_nested_shards_are_shown_one_level_down(name: str, kind: str) -> None:
    case = by_name(name)
    store, _ = opened(case.store, kind)
    (path,) = case.arrays
    shown = json.loads(view.get(store, f"{path}/zarr.json") or b"")
    stored = json.loads((case.store / path / "zarr.json").read_bytes())
    outer = stored["codecs"][0]["configuration"]
    assert shown["codecs"] == outer["codecs"]
    assert shown["codecs"][0]["name"] == "sharding_indexed"
    assert shown["chunk_grid"]["configuration"]["chunk_shape"] == outer["chunk_shape"]
    array = zarr.open_array(store, path=path, mode="r")
    # What zarr calls shards are the inner shards, each under a chunk key of the view.
    assert array.shards == tuple(outer["chunk_shape"])


def test_groups_open_with_and_without_consolidated_metadata(kind: str) -> None:
    case = by_name("sharding_indexed/group_of_arrays")
    store, _ = opened(case.store, kind)
    for group in (
        zarr.open_group(store, mode="r"),
        zarr.open_consolidated(store, mode="r"),
        zarr.open_group(store, mode="r", use_consolidated=False),
    ):
        assert dict(group.attrs) == {"title": "root"}
        assert dict(group["a/b"].attrs) == {"n": None, "l": [1, 2.5, "x"]}
        members = dict(group.members(max_depth=None))
        assert sorted(members) == ["a", "a/b", "a/b/mask", "a/plain"]
        for path, expected in case.arrays.items():
            array = members[path]
            assert isinstance(array, zarr.Array)
            assert array.shards is None
            np.testing.assert_array_equal(array[...], expected)
        mask = members["a/b/mask"]
        assert isinstance(mask, zarr.Array)
        assert mask.chunks == (2, 2)


def test_implicit_groups_open(kind: str) -> None:
    """tensorstore and zarrs write no document for the groups above an array."""
    case = by_name("tensorstore/ts_start_gzip_dot")
    store, _ = opened(case.store, kind)
    array = zarr.open(store, path="g/b", mode="r")
    assert isinstance(array, zarr.Array)
    np.testing.assert_array_equal(array[...], case.arrays["g/b"])
    assert "b" in view.list_dir(store, "g")


@pytest.mark.parametrize("case", [case for case in HANDMADE if case.values is not None], ids=lambda case: case.path)
def test_unusual_shards_are_read(case: HandmadeCase, kind: str, pipeline: bool) -> None:
    store, _ = opened(case.store, kind, pipeline=pipeline)
    array = zarr.open_array(store, path=case.path, mode="r")
    np.testing.assert_array_equal(array[...], case.values)
    for chunk in range(array.cdata_shape[0]):
        np.testing.assert_array_equal(array.blocks[chunk], array[2 * chunk : 2 * chunk + 2])


@pytest.mark.parametrize("case", [case for case in HANDMADE if case.values is not None], ids=lambda case: case.path)
def test_unusual_shards_are_written(case: HandmadeCase, kind: str, pipeline: bool, tmp_path: Path) -> None:
    """Other entries may name the same bytes, or bytes that overlap, so nothing of the old shard may be reused in place."""
    store, objects = rewritable(case.store, kind, tmp_path, pipeline=pipeline)
    array = zarr.open_array(store, path=case.path, mode="r+")
    expected = np.array(case.values, dtype="u1")
    for first, value in ((2, 77), (0, 0), (4, 88)):
        array[first : first + 2] = value
        expected[first : first + 2] = value
        np.testing.assert_array_equal(array[...], expected)
        native = zarr.open_array(as_zarr_memory(objects), path=case.path, mode="r")
        np.testing.assert_array_equal(native[...], expected)


def test_chunks_beyond_the_shape_survive_a_write(kind: str, tmp_path: Path) -> None:
    """The array may have been larger, and may be again."""
    (case,) = [case for case in HANDMADE if case.path == "v_beyond_shape"]
    store, _ = rewritable(case.store, kind, tmp_path)
    assert view.get(store, "v_beyond_shape/c/3") == b"\7\10"
    zarr.open_array(store, path=case.path, mode="r+")[0:2] = 9
    assert view.get(store, "v_beyond_shape/c/3") == b"\7\10"


CORRUPT = [case for case in HANDMADE if case.values is None]


def good_values(case: HandmadeCase) -> dict[int, bytes]:
    """The chunks that stay readable, as every case of the family holds them: 1, 2 | 3, 4 | 5, 6 | 7, 8."""
    return {chunk: bytes([2 * chunk + 1, 2 * chunk + 2]) for chunk in range(4) if chunk not in case.bad_chunks}


@pytest.mark.parametrize("case", CORRUPT, ids=lambda case: case.path)
def test_corrupt_shards_are_errors_that_name_key_and_shard(case: HandmadeCase, kind: str) -> None:
    store, _ = opened(case.store, kind)
    shard = f"{case.path}/c/0"
    good = good_values(case)
    for chunk in range(4):
        key = f"{case.path}/c/{chunk}"
        if chunk in case.bad_chunks:
            with pytest.raises(Corruption) as raised:
                view.get(store, key)
            # A damaged index is the shard's, whichever chunk was asked for; a damaged entry is one chunk's.
            assert shard in str(raised.value)
            assert case.index_is_bad or f"c/{chunk}" in str(raised.value)
            with pytest.raises(Corruption):
                view.getsize(store, key)
        else:
            assert view.get(store, key) == good[chunk]
            assert view.getsize(store, key) == len(good[chunk])


@pytest.mark.parametrize("case", CORRUPT, ids=lambda case: case.path)
def test_corruption_fails_only_the_batches_that_ask_for_it(case: HandmadeCase, kind: str) -> None:
    store, _ = opened(case.store, kind)
    good = good_values(case)
    keys = [f"{case.path}/c/{chunk}" for chunk in good]
    assert view.get_many(store, [(key, None) for key in keys]) == list(good.values())
    with pytest.raises(Corruption):
        view.get_many(store, [(f"{case.path}/c/{chunk}", None) for chunk in range(4)])


@pytest.mark.parametrize("case", CORRUPT, ids=lambda case: case.path)
def test_corrupt_shards_through_zarr(case: HandmadeCase, kind: str, pipeline: bool) -> None:
    store, _ = opened(case.store, kind, pipeline=pipeline)
    array = zarr.open_array(store, path=case.path, mode="r")
    good = good_values(case)
    with pytest.raises(Corruption):
        array[...]
    for chunk in range(4):
        if chunk in case.bad_chunks:
            with pytest.raises(Corruption) as raised:
                array.blocks[chunk]
            assert case.path in str(raised.value)
            assert case.index_is_bad or f"c/{chunk}" in str(raised.value)
        else:
            np.testing.assert_array_equal(array.blocks[chunk], list(good[chunk]))
