# mypy: ignore-errors
# The types are those of zarr-python 2, which is not installed where they are checked.
"""Programs of zarr-python 2, run by its own interpreter: each gets a store and does what such programs do.

``python programs.py NAME URL`` runs one on ``shardstore.get_mapper(URL, present="v2")`` and on a plain ``MemoryStore``, compares what
both hold and what both read, and prints as JSON what was counted.
"""

from __future__ import annotations

import gzip
import json
import sys
import types
from collections.abc import Callable, MutableMapping
from typing import Any

import numcodecs
import numpy as np
import zarr

Store = MutableMapping[str, bytes]
Program = Callable[[Any], None]

PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


gzip.time = types.SimpleNamespace(time=lambda: 0.0)  # type: ignore[attr-defined]  # which gzip writes into its header


def numbers(*shape: int, dtype: str = "<i4") -> Any:
    return np.arange(1, 1 + int(np.prod(shape))).reshape(shape).astype(dtype)


@program
def arrays(store: Any) -> None:
    """Create, assign, read, partial updates, missing chunks."""
    root = zarr.open_group(store, mode="w")
    for ndim in range(1, 5):
        shape = (7, 6, 5, 4)[:ndim]
        array = root.create_dataset(f"a{ndim}", shape=shape, chunks=(2,) * ndim, dtype="<f4", fill_value=-1)
        array[(slice(0, 3),) * ndim] = numbers(*array[(slice(0, 3),) * ndim].shape, dtype="<f4")
        array[(2,) * ndim] = 99
    root.create_dataset("never", shape=(9, 9), chunks=(3, 3), dtype="u1")
    root.create_dataset("fortran", data=numbers(5, 6, 7), chunks=(2, 3, 4), order="F", compressor=None)  # handed on as arrays of order F
    root.create_dataset("null", data=numbers(5, 5), chunks=(3, 3), fill_value=None)  # all of it: there is nothing for what is missing


@program
def scalars(store: Any) -> None:
    root = zarr.open_group(store, mode="w")
    array = root.create_dataset("zero", shape=(), dtype="<i8", fill_value=0)
    array[()] = 42
    root.create_dataset("empty", shape=(0, 3), chunks=(1, 3), dtype="<i2")


@program
def dtypes(store: Any) -> None:
    root = zarr.open_group(store, mode="w")
    for dtype in ("|b1", "|i1", "|u1", "<i2", ">i2", "<u4", ">u8", "<f2", "<f4", ">f8", "<c8", "<c16"):
        array = root.create_dataset(dtype.strip("<>|") + ("be" if dtype[0] == ">" else ""), shape=(5, 4), chunks=(2, 2), dtype=dtype)
        array[...] = numbers(5, 4) % 2 if dtype == "|b1" else numbers(5, 4).astype(dtype)
    times = root.create_dataset("time", shape=(6,), chunks=(2,), dtype="<M8[s]", fill_value=None)
    times[...] = np.arange("2022-02-18", "2022-02-24", dtype="<M8[D]").astype("<M8[s]")
    root.create_dataset("delta", data=np.arange(6).astype("<m8[ms]"), chunks=(4,))
    root.create_dataset("text", data=np.array(["a", "bb", "ccc", "dddd"], dtype="<U4"), chunks=(3,))
    root.create_dataset("bytes", data=np.array([b"a", b"bb", b"ccc"], dtype="|S3"), chunks=(2,))


@program
def compressors(store: Any) -> None:
    root = zarr.open_group(store, mode="w")
    for name, compressor in {
        "blosc": numcodecs.Blosc("zstd", clevel=3, shuffle=numcodecs.Blosc.BITSHUFFLE),
        "zstd": numcodecs.Zstd(level=4),
        "gzip": numcodecs.GZip(level=6),
        "zlib": numcodecs.Zlib(level=2),
        "bz2": numcodecs.BZ2(level=3),
        "lz4": numcodecs.LZ4(),
        "none": None,
    }.items():
        root.create_dataset(name, data=numbers(8, 8), chunks=(3, 3), compressor=compressor)
    root.create_dataset("delta", data=numbers(20), chunks=(6,), filters=[numcodecs.Delta("<i4")], compressor=numcodecs.Zlib())
    root.create_dataset("fortran", data=numbers(5, 6, 7), chunks=(2, 3, 4), order="F")


@program
def fill_values(store: Any) -> None:
    root = zarr.open_group(store, mode="w")
    for name, value in {"nan": np.nan, "inf": np.inf, "ninf": -np.inf, "zero": 0, "half": 0.5}.items():
        array = root.create_dataset(name, shape=(6, 6), chunks=(2, 2), dtype="<f8", fill_value=value)
        array[0, 0] = 1.5
    root.create_dataset("bytes", shape=(4,), chunks=(2,), dtype="|S3", fill_value=b"abc")
    root.create_dataset("true", shape=(4,), chunks=(2,), dtype="|b1", fill_value=True)


@program
def resizing(store: Any) -> None:
    root = zarr.open_group(store, mode="w")
    array = root.create_dataset("a", data=numbers(10, 10), chunks=(3, 3))
    array.attrs["before"] = True
    array.append(numbers(2, 10))
    array.resize(9, 14)
    array[:, 10:] = 5
    array.append(numbers(9, 1), axis=1)
    array.resize(4, 4)


@program
def fancy_indexing(store: Any) -> None:
    array = zarr.open_array(store, mode="w", shape=(20, 20), chunks=(3, 4), dtype="<i4", fill_value=0)
    array.oindex[[1, 5, 19], [0, 7, 8]] = numbers(3, 3)
    array.vindex[[2, 2, 17], [3, 4, 19]] = [7, 8, 9]
    mask = np.zeros((20, 20), bool)
    mask[4:9, 11:13] = True
    array.set_mask_selection(mask, 77)
    array[::3, 1] = -1
    array[-1, -2:] = [5, 6]
    array.blocks[1, 1] = 3


@program
def structured(store: Any) -> None:
    values = np.array([(1, 2.5, b"x"), (3, 4.5, b"yz")], dtype=[("a", "<i4"), ("b", "<f8"), ("c", "S2")])
    zarr.open_group(store, mode="w").create_dataset("s", data=values, chunks=(1,))


@program
def groups(store: Any) -> None:
    root = zarr.open_group(store, mode="w")
    root.attrs["title"] = "grüße"
    inner = root.require_group("a/b/c")
    inner.attrs.update({"list": [1, 2.5, None], "nested": {"x": True}})
    inner.create_dataset("0", data=numbers(4, 4), chunks=(2, 2))
    root["a"].create_dataset("c", data=numbers(6), chunks=(4,), dimension_separator="/")
    del inner.attrs["nested"]
    assert [name for name, _ in root.groups()] == ["a"]
    assert sorted(root["a"]) == ["b", "c"]
    assert root["a/c"].shape == (6,)
    assert "a/b/c/0" in root
    assert "a/b/c/1" not in root
    root.create_group("gone").create_dataset("x", data=numbers(3), chunks=(1,))
    del root["gone"]
    root.create_dataset("again", data=numbers(9), chunks=(2,))
    root.create_dataset("again", data=numbers(4, 4), chunks=(4, 2), overwrite=True)


@program
def moving(store: Any) -> None:
    root = zarr.open_group(store, mode="w")
    root.create_dataset("x/a", data=numbers(5, 5), chunks=(2, 2)).attrs["k"] = 1
    root.move("x", "y")
    assert "x" not in root


@program
def copying(store: Any) -> None:
    source = zarr.group()
    source.attrs["s"] = 1
    source.create_dataset("g/a", data=numbers(6, 6), chunks=(4, 4), fill_value=3).attrs["u"] = "m"
    source.create_group("h").attrs["only"] = "attributes"
    zarr.copy_store(source.store, store, dest_path="copied")
    zarr.group(store)
    zarr.copy(source["g/a"], zarr.open_group(store), name="again")
    zarr.copy_all(source, zarr.open_group(store).require_group("all"))


@program
def consolidated(store: Any) -> None:
    root = zarr.open_group(store, mode="w")
    root.attrs["a"] = 1
    root.create_dataset("x/y", data=numbers(4, 6), chunks=(2, 3)).attrs["_ARRAY_DIMENSIONS"] = ["lat", "lon"]
    root.create_dataset("z", shape=(3,), chunks=(1,))
    zarr.consolidate_metadata(store)
    again = zarr.open_consolidated(store)
    np.testing.assert_array_equal(again["x/y"][...], numbers(4, 6))
    again["x/y"][0, 0] = 50


@program
def ome_zarr(store: Any) -> None:
    """A pyramid as OME-Zarr 0.4 has it: arrays named by numbers, chunks separated by slashes."""
    root = zarr.open_group(store, mode="w")
    axes = [{"name": name, "type": "channel" if name == "c" else "space"} for name in "cyx"]
    datasets = [
        {"path": str(level), "coordinateTransformations": [{"type": "scale", "scale": [1.0, 2.0**level, 2.0**level]}]} for level in range(3)
    ]
    root.attrs["multiscales"] = [{"version": "0.4", "axes": axes, "datasets": datasets, "name": "image"}]
    image = numbers(2, 40, 48, dtype="<u2")
    for level in range(3):
        data = image[:, :: 2**level, :: 2**level]
        array = root.create_dataset(str(level), shape=data.shape, chunks=(1, 8, 8), dtype="<u2", dimension_separator="/", fill_value=0)
        array[...] = data
    root.create_group("labels").attrs["labels"] = ["0"]


def values_of(store: Any) -> dict[str, Any]:
    """Every array that zarr-python 2 finds, by path."""
    found: dict[str, Any] = {}
    root = zarr.open(store, mode="r")
    if isinstance(root, zarr.Array):
        return {"": root[...]}
    root.visititems(lambda path, node: found.update({path: node[...]}) if isinstance(node, zarr.Array) else None)
    return found


def urls(root: str) -> None:
    """Arrays over ``sharded::`` URLs."""
    import fsspec

    import shardstore

    url, options = f"sharded::file://{root}", {"sharded": {"present": "v2", "chunks_per_shard": (2, 2)}}
    group = zarr.open_group(fsspec.get_mapper(url, **options), mode="w")
    group.create_dataset("a", data=numbers(7, 5), chunks=(2, 2))
    again = zarr.open_group(url, mode="r+", storage_options=options)["a"]
    assert again[...].tolist() == numbers(7, 5).tolist()
    again[:3] = 9
    expected = np.where(np.arange(7)[:, None] < 3, 9, numbers(7, 5)).tolist()
    stores = (fsspec.get_mapper(url, **options), shardstore.get_mapper(root, present="v2"))
    assert [zarr.open_group(store, mode="r")["a"][...].tolist() for store in stores] == [expected] * 2


def main(name: str, url: str) -> None:
    import shardstore

    if name == "urls":
        urls(url)
        sys.stdout.write("{}")
        return
    options: dict[str, Any] = {"present": "v2", "chunks_per_shard": lambda info: (2,) * len(info.shape)}
    store, plain = shardstore.get_mapper(url, **options), zarr.MemoryStore()
    PROGRAMS[name](store)
    PROGRAMS[name](plain)
    for seen in (store, shardstore.get_mapper(url, **options, index_cache_bytes=0)):
        held = dict(seen.items())
        assert sorted(held) == sorted(plain), sorted(set(held) ^ set(plain))
        assert {k: v for k, v in held.items() if v != bytes(plain[k])} == {}
        values, expected = values_of(seen), values_of(plain)
        assert values.keys() == expected.keys()
        for path, value in expected.items():
            np.testing.assert_array_equal(values[path], value)
    np.savez(f"{url}.npz", **{path or "__root__": value for path, value in values_of(plain).items()})
    sys.stdout.write(json.dumps({"keys": len(held), "requests": store.counters.requests, "commits": store.counters.commits}))


if __name__ == "__main__":
    main(*sys.argv[1:])
