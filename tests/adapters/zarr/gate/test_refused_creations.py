"""A creation through zarr that the store refuses changes nothing: what was to be overwritten is kept, and no parents are left behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.buffer import Buffer
from zarr.storage import FsspecStore, LocalStore, LoggingStore

import shardstore
from shardstore.errors import InvalidInput
from tests.stored import LocalObjects, on_io_loop

VALUES = np.arange(1, 257, dtype="i4").reshape(16, 16)
DESCRIBED: dict[str, Any] = {"shape": (16, 16), "chunks": (4, 4), "dtype": "i4"}


class Subclass(shardstore.ShardedStore):
    """Handles keys in its own way, so that zarr must not pass it by."""

    async def set(self, key: str, value: Buffer) -> None:
        await super().set(key, value)


def opened(root: Path, **options: Any) -> shardstore.ShardedStore:
    return shardstore.open(str(root), fsync=False, **options)


def by_url(root: Path, **options: Any) -> FsspecStore:
    store = FsspecStore.from_url(f"sharded::file://{root}", storage_options={"sharded": {"fsync": False, **options}})
    assert isinstance(store, FsspecStore)
    return store


def fails(info: object) -> None:
    raise RuntimeError("no decision")


OWN: dict[str, Any] = {"shards": (8, 8)}
NESTED: dict[str, Any] = {"shards": (8, 8), "serializer": zarr.codecs.ShardingCodec(chunk_shape=(2, 2)), "compressors": None}
V2: dict[str, Any] = {"zarr_format": 2}

REFUSED: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "own shards without the pipeline": (lambda root: opened(root, pipeline=False), OWN),
    "own shards through a wrapper": (lambda root: LoggingStore(opened(root), log_level="ERROR"), OWN),
    "own shards through a subclass": (lambda root: Subclass(str(root), fsync=False), OWN),
    "own shards by URL without the pipeline": (lambda root: by_url(root, pipeline=False), OWN),
    "own shards in shards below the level": (lambda root: opened(root, present_level="innermost"), NESTED),
    "own shards under the keys of v2": (lambda root: opened(root, present="v2"), OWN),
    "v3 under the keys of v2": (lambda root: opened(root, present="v2"), {}),
    "v3 under the keys of v2, by URL": (lambda root: by_url(root, present="v2"), {}),
    "v2 where shards were asked for": (lambda root: opened(root, chunks_per_shard=(2, 2)), V2),
    "shards of another rank": (lambda root: opened(root, chunks_per_shard=(2, 2, 2)), {}),
    "shards of another rank, by URL": (lambda root: by_url(root, chunks_per_shard=(2, 2, 2)), {}),
    "shards of another rank, through a wrapper": (lambda root: LoggingStore(opened(root, chunks_per_shard=(2,)), log_level="ERROR"), {}),
    "shards of another rank under the keys of v2": (lambda root: opened(root, present="v2", chunks_per_shard=(2,)), V2),
    "a policy that fails": (lambda root: opened(root, chunks_per_shard=fails), {}),
}


def create_array(store: Any, path: str, options: dict[str, Any]) -> None:
    zarr.create_array(store, name=path, **DESCRIBED, **options, overwrite=True)


def from_array(store: Any, path: str, options: dict[str, Any]) -> None:
    zarr.create_array(store, name=path, data=VALUES, chunks=(4, 4), **options, overwrite=True)


def create(store: Any, path: str, options: dict[str, Any]) -> None:
    """zarr's older function, which takes the codecs themselves."""
    given = dict(DESCRIBED | options)
    if "shards" in given:
        inner = given.pop("serializer", None)
        given.pop("compressors", None)
        codecs: dict[str, Any] = {} if inner is None else {"codecs": [inner]}
        given |= {"codecs": iter([zarr.codecs.ShardingCodec(chunk_shape=given["chunks"], **codecs)]), "chunks": given.pop("shards")}
    zarr.create(store=store, path=path, overwrite=True, **given)


def in_group(store: Any, path: str, options: dict[str, Any]) -> None:
    of_group = zarr.core.group.GroupMetadata(zarr_format=options.get("zarr_format", 3))
    group = zarr.Group(zarr.AsyncGroup(of_group, zarr.storage.StorePath(store)))
    group.create_array(path, **DESCRIBED, **{name: value for name, value in options.items() if name != "zarr_format"}, overwrite=True)


def hierarchy(store: Any, path: str, options: dict[str, Any]) -> None:
    metadata = zarr.create_array({}, **DESCRIBED, **options).metadata
    list(zarr.create_hierarchy(store=store, nodes={path: metadata}, overwrite=True))


WAYS = [create_array, from_array, create, in_group, hierarchy]


def contents(root: Path) -> dict[str, bytes | None]:
    objects = LocalObjects(root)
    keys = objects.keys()
    return {key: objects.get(key) for key in keys}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("case", REFUSED)
def test_what_was_to_be_overwritten_is_kept_and_nothing_is_left_behind(
    case: str, way: Callable[[Any, str, dict[str, Any]], None], tmp_path: Path
) -> None:
    zarr.create_array(opened(tmp_path, chunks_per_shard=(2, 2)), name="g/a", **DESCRIBED)[...] = VALUES
    before = contents(tmp_path)
    make, options = REFUSED[case]
    for path in ("g/a", "h/deep/a"):
        with pytest.raises(InvalidInput):
            way(make(tmp_path), path, options)
        assert contents(tmp_path) == before
    np.testing.assert_array_equal(zarr.open_array(opened(tmp_path), path="g/a")[...], VALUES)


@pytest.mark.parametrize("present", ["v2", "draft"])
def test_groups_of_v3_under_other_keys(present: str, tmp_path: Path) -> None:
    stored: Any = {"v2": "codec", "draft": "transformer"}[present]
    zarr.create_array(opened(tmp_path, stored=stored, chunks_per_shard=(2, 2)), name="g/a", **DESCRIBED)[...] = VALUES
    before = contents(tmp_path)
    store = opened(tmp_path, present=present)
    for refused in (
        lambda: zarr.create_group(store, overwrite=True),
        lambda: zarr.create_group(store, path="g", overwrite=True),
        lambda: zarr.Group.from_store(store, overwrite=True),
        lambda: zarr.create_array(store, name="g/a", **DESCRIBED, **OWN, overwrite=True),
        lambda: zarr.create_array(store, **DESCRIBED, overwrite=True),
        lambda: zarr.create_array(store, name="new/b", **DESCRIBED),
    ):
        with pytest.raises(InvalidInput, match="Zarr v3 document, and this view is of"):
            refused()
        assert contents(tmp_path) == before


def test_an_array_that_is_shown_whole_is_not_overwritten_without_the_pipeline(tmp_path: Path) -> None:
    """Such an array is sharded for every client, so there the document alone does not tell an update from a creation."""
    codecs: list[Any] = [zarr.codecs.ShardingCodec(chunk_shape=(4, 4)), zarr.codecs.Crc32cCodec()]

    def creation(store: Any) -> Any:
        return zarr.create(store=store, path="a", shape=(16, 16), chunks=(8, 8), dtype="i4", codecs=codecs, zarr_format=3, overwrite=True)

    with pytest.warns(UserWarning, match="partial"):
        creation(opened(tmp_path))[...] = VALUES
    before = contents(tmp_path)
    with pytest.warns(UserWarning, match="partial"), pytest.raises(InvalidInput, match="asks for shards itself"):
        creation(opened(tmp_path, pipeline=False))
    assert contents(tmp_path) == before


def test_an_array_of_v2_is_not_overwritten_by_one_that_is_refused(tmp_path: Path) -> None:
    zarr.create_array(opened(tmp_path, chunks_per_shard=None), name="a", **DESCRIBED, **V2)[...] = VALUES
    with pytest.raises(InvalidInput, match="present='v2'"):
        create_array(opened(tmp_path, chunks_per_shard=(2, 2)), "a", V2)
    np.testing.assert_array_equal(zarr.open_array(LocalStore(tmp_path), path="a")[...], VALUES)


def test_in_a_transaction_too(tmp_path: Path) -> None:
    store = opened(tmp_path, chunks_per_shard={"a": (2, 2), "*": (2,)})
    zarr.create_array(store, name="a", **DESCRIBED)[...] = VALUES
    with store.transaction():
        with pytest.raises(InvalidInput, match="dimensions"):
            create_array(store, "b", {})
        create_array(store, "a", {})
        with pytest.raises(InvalidInput, match="dimensions"):
            create_array(opened(tmp_path, chunks_per_shard=(2,)), "a", {})
    assert sorted(contents(tmp_path)) == ["a/zarr.json", "zarr.json"]


def test_what_zarr_itself_refuses_is_refused_before_anything_is_deleted(tmp_path: Path) -> None:
    store = opened(tmp_path)
    zarr.create_array(store, name="a", **DESCRIBED)[...] = VALUES
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="divisible"):
        zarr.create_array(store, name="a", shape=(16, 16), chunks=(4, 4), shards=(6, 8), dtype="i4", overwrite=True)
    assert contents(tmp_path) == before


def test_arguments_that_can_be_gone_through_once_are_taken(tmp_path: Path) -> None:
    codecs: list[Any] = [zarr.codecs.TransposeCodec(order=(1, 0)), zarr.codecs.BytesCodec()]
    array: Any = zarr.create(
        store=opened(tmp_path), path="a", shape=(16, 16), chunks=(4, 4), dtype="i4", codecs=iter(codecs), zarr_format=3
    )
    assert [type(codec).__name__ for codec in array.metadata.codecs] == ["TransposeCodec", "BytesCodec"]


@pytest.mark.skipif(
    tuple(int(part) for part in zarr.__version__.split(".")[:3]) < (3, 4, 1), reason="zarr before 3.4.1 deletes before it knows the array"
)
def test_what_is_opened_to_be_overwritten(tmp_path: Path) -> None:
    zarr.create_array(opened(tmp_path), name="g/a", **DESCRIBED)[...] = VALUES
    before = contents(tmp_path)
    with pytest.raises(InvalidInput, match="dimensions"):
        zarr.open_array(opened(tmp_path, chunks_per_shard=(2,)), path="g/a", mode="w", **DESCRIBED)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("first", ["zarr", "the filesystem"])
def test_the_first_that_a_process_does_by_url(first: str, tmp_path: Path) -> None:
    """zarr has to ask before the filesystem has been used for anything, also where that was made before zarr was imported."""
    zarr.create_array(opened(tmp_path), name="g/a", **DESCRIBED)[...] = VALUES
    before = contents(tmp_path)
    url = f"sharded::file://{tmp_path}"
    early = f"fsspec.core.url_to_fs({url!r}, asynchronous=True, pipeline=False)" if first == "the filesystem" else ""
    code = f"""
import fsspec
{early}
import zarr
zarr.create_array({url!r}, name="g/a", shape=(16, 16), chunks=(4, 4), shards=(8, 8), dtype="i4", overwrite=True,
                  storage_options={{"pipeline": False}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "asks for shards itself" in done.stderr
    assert contents(tmp_path) == before


def test_on_the_loop_of_the_storage(tmp_path: Path) -> None:
    """Where zarr itself runs there, nothing can be waited for from outside of it."""
    zarr.create_array(opened(tmp_path, chunks_per_shard=(2, 2)), name="g/a", **DESCRIBED)[...] = VALUES
    before = contents(tmp_path)
    for store in (opened(tmp_path, pipeline=False), by_url(tmp_path, pipeline=False)):
        with pytest.raises(InvalidInput, match="asks for shards itself"):
            on_io_loop(zarr.api.asynchronous.create_array(store, name="g/a", **DESCRIBED, **OWN, overwrite=True))
        assert contents(tmp_path) == before
