# mypy: ignore-errors
# The types are those of zarr-python 2, which is not installed where they are checked.
"""zarr-python 2.18's own sharding transformer: ``draft_programs.py WHAT PATH``, run by its own interpreter.

``write`` makes arrays and a file of what is in them, ``read`` and ``update`` go by such a file; ``write-stacked`` makes arrays of two
transformers, one upon the other. ``view``, ``view-as-store``, ``view-stacked`` and ``own-store`` are zarr-python 2.18 over shardstore's
mapping, compared with a plain store of its own.

Needs the environment variables ``ZARR_V3_EXPERIMENTAL_API=1`` and ``ZARR_V3_SHARDING=1``, and pytest, which the decoder of metadata of 2.18
imports.
"""

from __future__ import annotations

import sys
from typing import Any

import numcodecs
import numpy as np
import zarr
from zarr._storage.v3 import KVStoreV3
from zarr._storage.v3_storage_transformers import ShardingStorageTransformer

import shardstore

LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {"shape": (37,), "chunks": (5,), "dtype": "<f8", "per_shard": (3,)},
    "two": {"shape": (10, 12), "chunks": (2, 3), "dtype": ">i4", "per_shard": (2, 2), "compressor": numcodecs.Zlib(2)},
    "dots": {"shape": (10, 12), "chunks": (2, 3), "dtype": "<u2", "per_shard": (4, 1), "dimension_separator": "."},
    "group/three": {"shape": (5, 6, 7), "chunks": (2, 2, 2), "dtype": "|u1", "per_shard": (1, 2, 4), "order": "F"},
    "four": {"shape": (3, 4, 5, 6), "chunks": (1, 2, 2, 3), "dtype": "<i2", "per_shard": (2, 2, 1, 2), "compressor": None},
}


def values(name: str) -> Any:
    layout = LAYOUTS[name]
    return np.arange(1, 1 + int(np.prod(layout["shape"]))).reshape(layout["shape"]).astype(layout["dtype"])


def update(array: Any, expected: Any) -> None:
    """Part of chunks, whole chunks to the fill value, and an erased one."""
    first = tuple(slice(0, max(1, n // 2)) for n in expected.shape)
    for data in (array, expected):
        data[first] = 7
        data[(slice(-1, None),) * expected.ndim] = 99


def write(path: str) -> None:
    store = zarr.DirectoryStoreV3(path)
    held = {}
    for name, layout in LAYOUTS.items():
        options = {k: v for k, v in layout.items() if k != "per_shard"}
        transformer = ShardingStorageTransformer("indexed", chunks_per_shard=layout["per_shard"])
        array = zarr.create(store=store, path=name, zarr_version=3, fill_value=0, storage_transformers=[transformer], **options)
        inside = tuple(slice(0, max(1, n - 3)) for n in layout["shape"])  # some chunks, and some shards, stay missing
        held[name] = np.zeros(layout["shape"], layout["dtype"])
        array[inside] = held[name][inside] = values(name)[inside]
        update(array, held[name])
    np.savez(f"{path}.npz", **{name.replace("/", "|"): value for name, value in held.items()})


def opened(path: str, name: str) -> Any:
    return zarr.open_array(zarr.DirectoryStoreV3(path), path=name, mode="r+", zarr_version=3)


def read(path: str) -> None:
    with np.load(f"{path}.npz") as held:
        for name, value in held.items():
            np.testing.assert_array_equal(opened(path, name.replace("|", "/"))[...], value)


def update_all(path: str) -> None:
    with np.load(f"{path}.npz") as held:
        changed = dict(held.items())
    for name, value in changed.items():
        array = opened(path, name.replace("|", "/"))
        update(array, value)
        np.testing.assert_array_equal(array[...], value)
    np.savez(f"{path}.npz", **changed)


# -- over shardstore's mapping --------------------------------------------------------------------------------------------


def two_a_side(array: Any) -> tuple[int, ...]:
    return (2,) * len(array.shape)


def program(store: Any) -> dict[str, Any]:
    """What programs of 2.18 do with stores of the draft; the values of every array that is left."""
    group = zarr.group(store=store, path="g", zarr_version=3)
    group.attrs["title"] = "é"
    array = group.create_dataset("a", shape=(10, 12), chunks=(2, 3), dtype=">i4", compressor=numcodecs.Zlib(2))
    array[:5] = np.arange(60).reshape(5, 12)
    array.attrs.update(unit="m", scale=1.5)
    array.resize(8, 12)
    array[7, :] = 5
    array.append(np.ones((3, 12)))
    array.oindex[[0, 3, 9], 2:5] = -1
    one = zarr.create(store=store, path="one", shape=(7,), chunks=(2,), dtype="<f8", fill_value=np.nan, zarr_version=3)
    one[1:4] = 2
    scalar = zarr.create(store=store, path="scalar", shape=(), chunks=(), dtype="<f8", zarr_version=3)
    scalar[...] = 3
    deep = group.create_dataset(
        "deep/er", shape=(5, 6, 7), chunks=(2, 2, 2), dtype="|u1", dimension_separator=".", order="F", compressor=None
    )
    deep[:, 2:4] = 9
    deep[:2] = 0
    del store["data/root/g/deep/er/c0.1.0"]
    gone = zarr.group(store=store, path="gone", zarr_version=3)
    gone.create_dataset("x", shape=(9, 9), chunks=(2, 2), dtype="|u1")[:] = 1
    zarr.storage.rmdir(store, "gone")
    assert sorted(group) == ["a", "deep"]
    assert [name for name, _ in group.arrays()] == ["a"]
    return {"g/a": array[...], "one": one[...], "scalar": scalar[...], "g/deep/er": deep[...]}


def same_as_plain(store: Any, path: str) -> None:
    """Every key and every value is that of a plain store, and an error is an error there too."""
    plain = KVStoreV3({})
    held = program(store)
    for name, value in program(plain).items():
        np.testing.assert_array_equal(held[name], value)
    expected = {key: bytes(value) for key, value in plain.items()}
    assert {key: bytes(value) for key, value in store.items()} == expected
    for prefix in sorted({key[: i + 1] for key in expected for i, letter in enumerate(key) if letter == "/"}):
        assert sorted(store.list_prefix(prefix)) == sorted(plain.list_prefix(prefix)), prefix
        assert sorted(map(sorted, store.list_dir(prefix))) == sorted(map(sorted, plain.list_dir(prefix))), prefix
    np.savez(f"{path}.npz", **{name.replace("/", "|"): value for name, value in held.items()})


def view(path: str) -> None:
    same_as_plain(KVStoreV3(shardstore.get_mapper(path, present="draft", chunks_per_shard=two_a_side)), path)


def view_as_store(path: str) -> None:
    """The mapping itself is a store of 2.18, which hands whole batches to it."""
    store = shardstore.get_mapper(path, present="draft", chunks_per_shard=two_a_side)
    same_as_plain(store, path)
    array = zarr.create(store=store, path="new", shape=(16, 16), chunks=(2, 2), dtype="<i4", zarr_version=3)
    before = store.counters.commits
    array[:] = 7
    assert store.counters.commits == before + 16, "one commit a shard"
    before = store.counters.requests
    assert (array[:] == 7).all()
    assert store.counters.requests <= before + 2 * 16
    zarr.storage.rename(store, "new", "moved/here")
    assert (zarr.open_array(store, path="moved/here", mode="r", zarr_version=3)[:] == 7).all()
    assert not [key for key in store.list() if "new" in key]
    zarr.storage.rmdir(store, "moved")
    assert not [key for key in store.list() if "moved" in key]


def view_stacked(path: str) -> None:
    options: dict[str, Any] = {"present": "draft", "chunks_per_shard": two_a_side}
    same_as_plain(KVStoreV3(shardstore.get_mapper(shardstore.ShardingTransformer(path, **options), **options)), path)


def own_store(path: str) -> None:
    """A store of 2.18 is what lies below; its own transformer reads what was stored there."""
    below = zarr.DirectoryStoreV3(path)
    same_as_plain(KVStoreV3(shardstore.get_mapper(below, present="draft", chunks_per_shard=two_a_side)), path)


def write_stacked(path: str) -> None:
    transformers = [ShardingStorageTransformer("indexed", chunks_per_shard=n) for n in ((2, 3), (2, 1))]
    store = zarr.DirectoryStoreV3(path)
    array = zarr.create(
        store=store, path="x", shape=(16, 20), chunks=(2, 2), dtype="|u1", zarr_version=3, storage_transformers=transformers
    )
    array[:13] = np.arange(260).reshape(13, 20).astype("|u1")
    np.savez(f"{path}.npz", x=array[...])


PROGRAMS = {
    "write": write,
    "read": read,
    "update": update_all,
    "view": view,
    "view-as-store": view_as_store,
    "view-stacked": view_stacked,
    "own-store": own_store,
    "write-stacked": write_stacked,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](sys.argv[2])
