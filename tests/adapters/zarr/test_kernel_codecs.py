"""What the kernel encodes is what Python encodes: the same chunks are stored, and plain zarr reads the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec

import shardstore
from shardstore.adapters.zarr import chunk_pipeline, chunks
from shardstore.adapters.zarr.kernel_codecs import EncodedShard
from shardstore.native.kernel import kernel

KERNEL = kernel()
pytestmark = pytest.mark.skipif(KERNEL is None, reason="there is no kernel")
USES_ZSTD_OF_NUMCODECS = KERNEL is not None and "numcodecs" in KERNEL.libraries()["zstd, encoding"]

SHAPE, CHUNK = (24, 40), (8, 8)
COMPRESSORS: dict[str, Any] = {
    "none": None,
    "crc32c": Crc32cCodec(),
    "zstd": [ZstdCodec(level=1)],
    "zstd-checksum-crc32c": [ZstdCodec(level=3, checksum=True), Crc32cCodec()],
    "blosc-lz4": BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"),
    "blosc-zstd-bits": BloscCodec(cname="zstd", clevel=1, shuffle="bitshuffle"),
}


def values(dtype: str, fill: Any) -> Any:
    """Random elements; the first chunks hold nothing but the fill value, and one but a single element."""
    data = np.random.default_rng(0).integers(1, 50, SHAPE).astype(dtype)
    data[:8, :24] = fill
    data[7, 23] = 1
    return data


def stored(root: Path, data: Any, *, uses_kernel: bool, chunk: tuple[int, ...] = CHUNK, **options: Any) -> dict[str, bytes]:
    store = shardstore.open(root, chunks_per_shard=(2, 2), fsync=False, kernel=uses_kernel)
    array = zarr.create_array(store, shape=data.shape, chunks=chunk, dtype=data.dtype, **options)
    array[...] = data
    np.testing.assert_array_equal(zarr.open_array(str(root), mode="r")[...], data)  # zarr's own, which sees shards
    mapper = shardstore.get_mapper(root)
    return {key: mapper[key] for key in mapper if key.startswith("c/")}


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", "<i4", "f8"])
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_chunks_are_the_same(tmp_path: Path, compressor: str, dtype: str, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = in_their_file = 0
    by_kernel, into_file = chunks._encoded_by_kernel, EncodedShard.write

    def counted(*args: Any) -> Any:
        nonlocal encoded
        found = by_kernel(*args)
        encoded += len(found)
        return found

    def written(self: EncodedShard, file: int, slots: Any) -> Any:
        nonlocal in_their_file
        in_their_file += len(slots)
        return into_file(self, file, slots)

    monkeypatch.setattr(chunks, "_encoded_by_kernel", counted)
    monkeypatch.setattr(EncodedShard, "write", written)
    data = np.asarray(values(dtype, 7), order=order)
    filters = [TransposeCodec(order=(1, 0))] if order == "F" else None
    options: dict[str, Any] = {"compressors": COMPRESSORS[compressor], "fill_value": np.array(7).astype(dtype)[()], "filters": filters}
    mine = stored(tmp_path / "kernel", data, uses_kernel=True, **options)
    assert (encoded, in_their_file) == (7, 8)  # two shards are whole
    by_python = stored(tmp_path / "python", data, uses_kernel=False, **options)
    assert (encoded, in_their_file) == (7, 8)
    assert mine.keys() == by_python.keys()
    assert len(mine) == 13
    if not compressor.startswith("zstd") or USES_ZSTD_OF_NUMCODECS:  # other versions of zstd choose other matches
        assert mine == by_python


def test_a_small_chunk_that_does_not_compress_gets_no_longer(tmp_path: Path) -> None:
    data = np.frombuffer(np.random.default_rng(0).bytes(6 * 9 * 16), "c16").reshape(6, 9)
    codec = BloscCodec(cname="lz4", clevel=5, shuffle="noshuffle")
    options: dict[str, Any] = {"compressors": codec, "fill_value": 0, "chunk": (3, 3), "config": {"write_empty_chunks": True}}
    assert stored(tmp_path / "kernel", data, uses_kernel=True, **options) == stored(tmp_path / "python", data, uses_kernel=False, **options)


def test_chunks_of_length_one_are_assigned_by_an_integer(tmp_path: Path) -> None:
    array: Any = zarr.create_array(
        shardstore.open(tmp_path, chunks_per_shard=(2, 2)), shape=(4, 16), chunks=(4, 1), dtype="i4", fill_value=0
    )
    array[:, 3] = np.arange(4, dtype="i4")
    assert array[:, 3].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("dtype", "fill", "written"),
    [("f4", 0.0, -0.0), ("f8", np.nan, np.nan), ("f8", -0.0, 0.0), ("c16", 0, complex(0, -0.0)), ("M8[s]", "NaT", "NaT"), ("S3", b"", b"")],
    ids=str,
)
def test_what_equals_the_fill_value_is_decided_as_by_zarr(tmp_path: Path, dtype: str, fill: Any, written: Any) -> None:
    data = np.zeros(SHAPE, dtype)
    data[...] = written
    data[0, 0] = np.array(1).astype(dtype)
    options: dict[str, Any] = {"compressors": None, "fill_value": np.array(fill).astype(dtype)[()]}
    assert stored(tmp_path / "kernel", data, uses_kernel=True, **options) == stored(tmp_path / "python", data, uses_kernel=False, **options)


def test_what_is_left_to_python(tmp_path: Path) -> None:
    """Chunks at the edge, parts of chunks, elements of another byte order, and codecs that the kernel does not encode."""
    cases: list[tuple[Any, dict[str, Any]]] = [
        (values("<i4", 7)[:20, :37], {"compressors": [ZstdCodec(level=1)]}),
        (values("<i4", 7).astype(">i4"), {"compressors": [ZstdCodec(level=1)]}),
        (values("<i4", 7), {"compressors": [GzipCodec(level=1)]}),
        (values("<i4", 7)[::-1], {"compressors": None}),
    ]
    for number, (data, options) in enumerate(cases):
        mine, other = (stored(tmp_path / f"{number}-{on}", data, uses_kernel=on, fill_value=7, **options) for on in (True, False))
        assert mine.keys() == other.keys()  # gzip writes the time
    array = zarr.open_array(shardstore.open(tmp_path / "0-True"), mode="r+")
    array[3:11, 5:13] = 9
    assert np.array_equal(array[3:11, 5:13], np.full((8, 8), 9))
    array[...] = 3
    assert np.array_equal(array[...], np.full((20, 37), 3))


def test_plain_chunks_that_lie_as_they_are_stored_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[memoryview | None] = []
    gather = chunks.gather_chunks

    def gathered(*args: Any) -> Any:
        found = gather(*args)
        given.extend(found)
        return found

    monkeypatch.setattr(chunk_pipeline, "gather_chunks", gathered)
    data = np.arange(1, 129, dtype="i4").reshape(16, 8)
    array = zarr.create_array(
        shardstore.open(tmp_path, chunks_per_shard=None, fsync=False), shape=(16, 8), chunks=(8, 8), dtype="i4", compressors=None
    )
    array[...] = data
    assert len(given) == 2
    assert all(chunk is not None and np.shares_memory(np.frombuffer(chunk, "i4"), data) for chunk in given)
    np.testing.assert_array_equal(zarr.open_array(str(tmp_path), mode="r")[...], data)
