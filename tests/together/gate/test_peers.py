"""What shardstore writes is ordinary Zarr: plain zarr-python, tensorstore and zarrs read it with equal values."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import tensorstore
import zarr
import zarrs  # noqa: F401 - registers its codec pipeline with zarr
from zarr.core.array import CompressorsLike, FiltersLike, SerializerLike

import shardstore
from shardstore.model.chunk_orders import ChunkOrder
from tests.documents import array_v3, sharding_codec
from tests.shards import sharded_arrays
from tests.stored import LocalObjects

Values = npt.NDArray[Any]
Reader = Callable[[Path, str], Values]

# Fixed-length strings and bytes have no specification yet, and zarr says so each time; the layout of their chunks is no concern here.
pytestmark = [pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")]


def by_zarr_python(root: Path, path: str) -> Values:
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}):
        return np.asarray(zarr.open_array(str(root), path=path, mode="r")[...])


def by_tensorstore(root: Path, path: str) -> Values:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{root / path}/"}}
    return np.asarray(tensorstore.open(spec).result().read().result())


def by_zarrs(root: Path, path: str) -> Values:
    # For what it cannot read, zarrs warns and hands over to zarr-python, which would test zarr-python again.
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}), warnings.catch_warnings():
        warnings.simplefilter("error")
        return np.asarray(zarr.open_array(str(root), path=path, mode="r")[...])


PEERS: dict[str, Reader] = {"zarr-python": by_zarr_python, "tensorstore": by_tensorstore, "zarrs": by_zarrs}

NUMBERS = ("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
TIMES = ("M8[s]", "M8[10us]", "m8[ms]")
STRINGS = ("U4", "S3")
VARIABLE = "string"  # zarr's name for strings of any length

# What each peer reads at all, of arrays that zarr-python shards itself: found by trying.
READABLE: dict[str, tuple[str, ...]] = {
    "zarr-python": (*NUMBERS, *TIMES, *STRINGS, VARIABLE),
    "tensorstore": NUMBERS,
    "zarrs": (*NUMBERS, *TIMES, VARIABLE),
}


def some_values(dtype: str, shape: tuple[int, ...]) -> Values:
    """Values that differ from each other as far as the type allows."""
    count = int(np.prod(shape))
    if dtype == VARIABLE:
        return np.array(["é" * (i % 4) + str(i) for i in range(count)], dtype=object).reshape(shape)
    if dtype.startswith(("U", "S")):
        return np.array([f"{i}" for i in range(count)]).astype(dtype).reshape(shape)
    numbers: Values = (np.arange(count) * 37 + 1) % 120
    if dtype == "bool":
        numbers = numbers % 3 == 0
    elif dtype.startswith("c"):
        numbers = numbers + 1j * (120 - numbers)
    return numbers.astype(dtype).reshape(shape)


@dataclass(frozen=True)
class Written:
    """How an array is created and filled through shardstore."""

    dtype: str = "i4"
    shape: tuple[int, ...] = (11, 13)
    chunks: tuple[int, ...] = (2, 3)
    chunks_per_shard: tuple[int, ...] = (3, 2)
    path: str = "x"
    encoding: Literal["default", "v2"] = "default"
    separator: Literal["/", "."] = "/"
    index_location: Literal["start", "end"] = "end"
    index_checksum: bool = True
    chunk_order: ChunkOrder = "C"
    fill_value: Any = None
    filters: FiltersLike = "auto"
    serializer: SerializerLike = "auto"
    compressors: CompressorsLike = "auto"

    def create(self, root: Path) -> zarr.Array[Any]:
        store = shardstore.open(
            str(root),
            chunks_per_shard=self.chunks_per_shard,
            index_location=self.index_location,
            index_checksum=self.index_checksum,
            chunk_order=self.chunk_order,
        )
        return zarr.create_array(
            store,
            name=self.path,
            shape=self.shape,
            chunks=self.chunks,
            dtype=self.dtype,
            fill_value=self.fill_value,
            chunk_key_encoding={"name": self.encoding, "separator": self.separator},
            filters=self.filters,
            serializer=self.serializer,
            compressors=self.compressors,
        )


def check(root: Path, path: str, expected: Values, readers: dict[str, Reader] | None = None) -> None:
    assert path in sharded_arrays(LocalObjects(root)), "stored without shards, so nothing would be tested"
    for peer, read in (readers or PEERS).items():
        np.testing.assert_array_equal(read(root, path), expected, err_msg=peer)


@pytest.mark.parametrize(("peer", "dtype"), [(peer, dtype) for peer in PEERS for dtype in READABLE[peer]])
def test_data_types(tmp_path: Path, peer: str, dtype: str) -> None:
    written = Written(dtype=dtype)
    expected = some_values(dtype, written.shape)
    written.create(tmp_path)[...] = expected
    check(tmp_path, "x", expected, {peer: PEERS[peer]})


LAYOUTS = {
    "plain": Written(),
    "index at start": Written(index_location="start"),
    "no checksum": Written(index_checksum=False),
    "F order": Written(chunk_order="F"),
    "F order of 3 dimensions, index at start": Written(
        shape=(5, 6, 7), chunks=(1, 2, 2), chunks_per_shard=(2, 3, 4), chunk_order="F", index_location="start"
    ),
    "Morton order": Written(chunk_order="morton"),
    "default dot": Written(separator="."),
    "v2 slash": Written(encoding="v2"),
    "v2 dot": Written(encoding="v2", separator="."),
    "v2 dot, index at start": Written(encoding="v2", separator=".", index_location="start"),
    "one chunk a shard": Written(chunks_per_shard=(1, 1)),
    "shard larger than the array": Written(chunks_per_shard=(16, 8)),
    "array of one element": Written(shape=(1, 1)),
    "1-d": Written(shape=(29,), chunks=(3,), chunks_per_shard=(4,)),
    "4-d": Written(shape=(3, 4, 5, 6), chunks=(2, 2, 2, 2), chunks_per_shard=(1, 2, 3, 2)),
    "fill value": Written(fill_value=7),
    "NaN as fill value": Written(dtype="f4", fill_value=np.nan),
    "in groups": Written(path="a/b c/ä"),
    "group named c": Written(path="c/0"),
    "raw": Written(compressors=None),
    "big-endian": Written(compressors=None, serializer=zarr.codecs.BytesCodec(endian="big")),
    "transposed, gzip, checksum": Written(
        filters=[zarr.codecs.TransposeCodec(order=(1, 0))], compressors=[zarr.codecs.GzipCodec(level=1), zarr.codecs.Crc32cCodec()]
    ),
    "blosc": Written(compressors=[zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=4)]),
}


@pytest.mark.parametrize("written", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_layouts(tmp_path: Path, written: Written) -> None:
    expected = some_values(written.dtype, written.shape)
    written.create(tmp_path)[...] = expected
    check(tmp_path, written.path, expected)


@pytest.mark.parametrize(
    ("chunk_order", "positions"),
    [
        ("C", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
        ("F", [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15]),
        # Two by two, and in twos of those; the last dimension runs first.
        ("morton", [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]),
    ],
)
def test_chunk_order_in_the_shard(tmp_path: Path, chunk_order: ChunkOrder, positions: list[int]) -> None:
    written = Written(dtype="u1", shape=(4, 4), chunks=(1, 1), chunks_per_shard=(4, 4), chunk_order=chunk_order, compressors=None)
    array = written.create(tmp_path)
    expected = np.arange(1, 17, dtype="u1").reshape(4, 4)
    array[...] = expected
    array[2, 1] = expected[2, 1] = 99  # a rewritten shard is as ordered as a new one
    shard = (tmp_path / "x/c/0/0").read_bytes()
    np.testing.assert_array_equal(list(shard[:16]), expected.reshape(-1)[positions])
    check(tmp_path, "x", expected)


@pytest.mark.parametrize("written", [LAYOUTS["plain"], LAYOUTS["index at start"], LAYOUTS["v2 dot"]], ids=["plain", "start", "v2 dot"])
def test_missing_and_rewritten_chunks(tmp_path: Path, written: Written) -> None:
    """Shards that were written in pieces, shrank, or vanished when their last chunk became the fill value."""
    array = replace(written, fill_value=9).create(tmp_path)
    expected = np.full(written.shape, 9, dtype=written.dtype)
    changes: list[tuple[Any, int]] = [
        (np.s_[2:5, 3:8], 1),
        (np.s_[0, 0], 2),
        (np.s_[10, 12], 3),
        (np.s_[2:4, 3:6], 9),  # one whole chunk back to the fill value
        (np.s_[6:, 6:], 9),  # whole shards too
        (np.s_[9, ::4], 4),
        (np.s_[10, 12], 5),
    ]
    for region, value in changes:
        array[region] = value
        expected[region] = value
        check(tmp_path, written.path, expected)
    array[...] = 9
    expected[...] = 9
    check(tmp_path, written.path, expected)
    assert [key for key in LocalObjects(tmp_path).keys() if not key.endswith("zarr.json")] == []  # noqa: SIM118 - no mapping


@pytest.mark.parametrize("index_location", ["start", "end"])
@pytest.mark.parametrize("encoding", ["default", "v2"])
def test_zero_dimensions(tmp_path: Path, encoding: Literal["default", "v2"], index_location: Literal["start", "end"]) -> None:
    written = Written(dtype="f8", shape=(), chunks=(), chunks_per_shard=(), encoding=encoding, index_location=index_location)
    array = written.create(tmp_path)
    array[...] = -2.5
    assert array[()] == -2.5
    check(tmp_path, "x", np.array(-2.5))


def test_resized(tmp_path: Path) -> None:
    written = Written(shape=(8, 9), chunks=(2, 3), chunks_per_shard=(2, 2), fill_value=0)
    expected = some_values("i4", (8, 9))
    array = written.create(tmp_path)
    array[...] = expected
    array.resize((13, 5))
    grown = np.zeros((13, 5), dtype="i4")
    grown[:8] = expected[:, :5]
    check(tmp_path, "x", grown)
    array.append(some_values("i4", (2, 5)))
    check(tmp_path, "x", np.concatenate([grown, some_values("i4", (2, 5))]))


def test_what_a_peer_wrote_goes_on_being_readable_by_it(tmp_path: Path) -> None:
    """tensorstore writes, shardstore changes some chunks, tensorstore reads and changes others, shardstore reads."""
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "gzip", "configuration": {"level": 1}}]
    index_codecs = [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "crc32c"}]
    sharding = sharding_codec([2, 2], codecs, index_codecs=index_codecs, index_location="start")
    encoding = {"name": "default", "configuration": {"separator": "."}}
    metadata = array_v3([9, 9], [4, 6], data_type="uint16", chunk_key_encoding=encoding, codecs=[sharding])
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path / 'x'}/"}}
    theirs = tensorstore.open({**spec, "metadata": metadata}, create=True).result()
    expected = some_values("u2", (9, 9))
    theirs.write(expected).result()

    ours = zarr.open_array(shardstore.open(str(tmp_path)), path="x", mode="r+")
    assert ours.chunks == (2, 2)
    assert ours.shards is None
    ours[3:6, 1:8] = 500
    expected[3:6, 1:8] = 500
    np.testing.assert_array_equal(by_tensorstore(tmp_path, "x"), expected)
    check(tmp_path, "x", expected)

    theirs = tensorstore.open(spec).result()
    theirs[0:2, 0:2].write(7).result()
    expected[0:2, 0:2] = 7
    np.testing.assert_array_equal(ours[...], expected)


def test_consolidated_metadata_is_true_on_both_sides(tmp_path: Path) -> None:
    store = shardstore.open(str(tmp_path), chunks_per_shard=(2, 2))
    root = zarr.create_group(store, attributes={"title": "root"})
    expected = some_values("u2", (5, 7))
    root.create_group("g").create_array("x", shape=(5, 7), chunks=(2, 2), dtype="u2")[...] = expected
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr: consolidated metadata is no part of the specification
        zarr.consolidate_metadata(store)

    stored = zarr.open_consolidated(str(tmp_path))["g/x"]
    assert isinstance(stored, zarr.Array)
    assert stored.shards == (4, 4)
    np.testing.assert_array_equal(stored[...], expected)
    shown = zarr.open_consolidated(store)["g/x"]
    assert isinstance(shown, zarr.Array)
    assert (shown.shards, shown.chunks) == (None, (2, 2))
    np.testing.assert_array_equal(shown[...], expected)


def test_the_example_of_zep_2_is_opened_by_zarr_python(tmp_path: Path) -> None:
    """It names the codec ``bytes`` ``endian``, which zarr-python does not know: it is shown by the name of today."""
    old = {"name": "endian", "configuration": {"endian": "little"}}
    gzip = {"name": "gzip", "configuration": {"level": 1}}
    sharding = sharding_codec([2, 3], [old, gzip], index_codecs=[old, {"name": "crc32c"}])
    document = array_v3([5, 7], [4, 6], data_type="int32", codecs=[sharding], attributes={})
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    array = zarr.open_array(shardstore.open(str(tmp_path)), mode="r+")
    values = some_values("i4", (5, 7))
    array[...] = values
    array.attrs["note"] = "the stored codecs keep their names"
    stored = json.loads((tmp_path / "zarr.json").read_bytes())
    assert stored["codecs"] == document["codecs"]
    # The same bytes under today's names, for a peer that does not know the old ones.
    today = sharding_codec([2, 3], [{"name": "bytes", "configuration": {"endian": "little"}}, gzip])
    (tmp_path / "zarr.json").write_text(json.dumps(document | {"codecs": [today]}))
    for read in PEERS.values():
        np.testing.assert_array_equal(read(tmp_path, ""), values)
