"""Direct calls give what zarr's codecs give, to the bit, and of damaged chunks nothing but an error.

zarr-python's own pipeline on an array without shards is what everything is compared with.
"""

from __future__ import annotations

import gzip
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numcodecs.blosc
import numcodecs.zstd
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, note, settings
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as wrappers
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import BufferPrototype, NDBuffer, cpu, default_buffer_prototype
from zarr.storage import MemoryStore

import shardstore
from shardstore.adapters.zarr import codec_chains
from shardstore.adapters.zarr.chunks import ChunkCodec, decode_chunk, gather_chunks, scatter_chunks
from shardstore.adapters.zarr.codec_chains import DirectChain, SyncChain, compile_chain
from shardstore.errors import Corruption
from shardstore.storage.memory import MemoryStorage
from tests import view
from tests.limits import limit_pipeline
from tests.together.test_differential import Values, agree, selections

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore::zarr.errors.UnstableSpecificationWarning", "ignore::zarr.errors.ZarrUserWarning", "ignore::FutureWarning"
    )
]

SETTINGS = settings(suppress_health_check=list(HealthCheck))

DTYPES = [
    *("bool", "i1", "u1", "<i2", ">u2", "<i4", ">i8", "<f2", "<f4", ">f4", "<f8", ">f8", "<c8", ">c16"),
    *("<M8[s]", ">M8[ms]", "<m8[ns]", "<U2", ">U3", "S3", "V5"),
    [("a", "<i2"), ("b", "<f4")],
]


def chains() -> dict[str, tuple[Any, ...]]:
    """Codecs from bytes to bytes, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the codecs of numcodecs have no specification
        return {
            "raw": (),
            "crc32c": (Crc32cCodec(),),
            "zstd": (ZstdCodec(level=1),),
            "zstd, checksums": (ZstdCodec(level=1, checksum=True), Crc32cCodec()),
            "checksum inside": (Crc32cCodec(), ZstdCodec(level=0)),
            "blosc": (BloscCodec(cname="lz4", clevel=5),),
            "blosc, crc32c": (BloscCodec(cname="zstd", clevel=1, shuffle="bitshuffle", typesize=4), Crc32cCodec()),
            "gzip": (GzipCodec(level=1),),
            "two compressors": (BloscCodec(cname="blosclz", shuffle="noshuffle"), GzipCodec(level=5)),
            "numcodecs blosc": (wrappers.Blosc(cname="lz4", clevel=1, shuffle=1, blocksize=0),),
            "numcodecs zstd": (wrappers.Zstd(level=2),),
            "numcodecs zlib, crc32": (wrappers.Zlib(level=1), wrappers.CRC32()),
            "numcodecs shuffle, lz4": (wrappers.Shuffle(elementsize=2), wrappers.LZ4(acceleration=1)),
            "numcodecs gzip": (wrappers.GZip(level=1),),
        }


CHAINS = chains()


@contextmanager
def reproducible() -> Iterator[None]:
    """Write equal bytes at any time of day. Memory for results is never what was freed a moment ago and holds the right bytes already."""

    def filled(shape: Any, dtype: Any, order: Any = "C") -> cpu.NDBuffer:
        made = np.dtype(dtype)
        array: Values = np.ndarray(shape, made, bytearray(b"\xaa" * max(1, prod(shape) * made.itemsize)), order=order)
        return cpu.NDBuffer.from_numpy_array(array)

    with (
        mock.patch.object(gzip.time, "time", return_value=1e9),  # type: ignore[attr-defined]
        mock.patch.object(cpu.NDBuffer, "empty", filled),
    ):
        yield


@st.composite
def elements(draw: st.DrawFn, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Values:
    """Any bits, few of them: payloads of NaN, both zeros, numbers that only another byte order makes of them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if dtype.kind in "US" or (dtype.kind == "f" and draw(st.booleans())):
        few = np.array(["", "a", "bc"] if dtype.kind in "US" else [0.0, -0.0, np.nan, 1.5, np.inf], dtype)
        picked: Values = few[rng.integers(0, draw(st.integers(1, len(few))), shape)]
        return picked
    bits = rng.integers(0, 2 if dtype.kind == "b" else 256, (*shape, dtype.itemsize), dtype="B")
    return bits.reshape(-1).view(dtype).reshape(shape)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """How both arrays are created."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = tuple(draw(st.lists(st.integers(1, 7), max_size=3)))
    orders = [None, *({tuple(reversed(range(len(shape)))), (*range(1, len(shape)), 0)} if len(shape) > 1 else ())]
    order = draw(st.sampled_from(orders))
    numeric = dtype.kind in "iufc"
    return {
        "shape": shape,
        "chunks": tuple(draw(st.integers(1, 4)) for _ in shape),
        "dtype": dtype,
        "fill_value": draw(st.sampled_from([0, -0.0, float("nan")]))
        if dtype.kind == "f"
        else draw(st.sampled_from([0, 1]))
        if numeric
        else None,
        "filters": None if order is None else [TransposeCodec(order=order)],
        "compressors": list(CHAINS[draw(st.sampled_from(sorted(CHAINS)))]) or None,
        "config": {"order": draw(st.sampled_from("CF")), "write_empty_chunks": draw(st.booleans())},
    }


def same_bits(got: Any, expected: Any) -> None:
    got, expected = np.asarray(got), np.asarray(expected)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert got.tobytes() == expected.tobytes()


@SETTINGS
@given(data=st.data())
def test_arrays_read_and_write_as_zarr_has_it(data: st.DataObject) -> None:
    made = data.draw(specs())
    note(str(made))
    plain_store, storage = MemoryStore(), MemoryStorage(f"/direct-{uuid.uuid4().hex}")
    store = shardstore.open(storage, chunks_per_shard=tuple(3 for _ in made["shape"]))
    with reproducible():
        plain: Any = zarr.create_array(plain_store, **made)
        ours: Any = zarr.create_array(store, **made)
        limit_pipeline(ours, destination_bytes=1 if data.draw(st.booleans()) else 2**16)
        for _ in range(data.draw(st.integers(1, 4))):
            writes = data.draw(selections(plain, unique=True))
            shape = np.shape(writes.read(plain))
            values = data.draw(elements(made["dtype"], data.draw(st.sampled_from([shape, ()]))))
            if data.draw(st.booleans()) and made["dtype"].fields is None:
                values = values.astype(made["dtype"].newbyteorder("S"))
            agree(ours, plain, partial(writes.write, value=values))
            reads = data.draw(selections(plain, unique=False))
            same_bits(reads.read(ours), reads.read(plain))
        same_bits(ours[...], plain[...])
        # Every chunk has the same bytes, and the same chunks are missing.
        chunks = {key: value for key, value in view.contents(plain_store).items() if not key.endswith("zarr.json")}
        assert {key: value for key, value in view.contents(store).items() if not key.endswith("zarr.json")} == chunks


@pytest.mark.parametrize("dtype", ["V5", "S3", "<U2", ">f4", "V70000"])
def test_arrays_without_dimensions_are_decoded_into_the_output(dtype: str) -> None:
    spec = spec_of((), dtype)
    codec, chain = codec_of(spec, *CHAINS["blosc"], into=True)
    element = np.array("ab" if dtype == "<U2" else 1.5 if dtype == ">f4" else b"ab", dtype)
    out = np.zeros((), dtype)
    with reproducible():
        scatter_chunks(codec, [info_of(spec)], [chain.encode(element)], cpu.NDBuffer.from_numpy_array(out), ())
    same_bits(out, element)


# -- single chunks ------------------------------------------------------------------------------------------------------

KEY = "some/c/1"
GUARD = 64


def spec_of(shape: tuple[int, ...] = (6, 5), dtype: str = "<f4", **changes: Any) -> ArraySpec:
    parsed = zarr.dtype.parse_dtype(np.dtype(dtype), zarr_format=3)
    options: dict[str, Any] = {"fill_value": parsed.default_scalar(), "prototype": default_buffer_prototype(), **changes}
    return ArraySpec(shape=shape, dtype=parsed, config=ArrayConfig(order="C", write_empty_chunks=True), **options)


def codec_of(spec: ArraySpec, *codecs: Any, into: bool = False) -> tuple[ChunkCodec, DirectChain]:
    """The codecs of one array; ``into``: chunks of every size are decompressed into memory that is there."""
    codec = ChunkCodec((zarr.codecs.BytesCodec(), *codecs), spec, 1 if into else 2**16)
    chain = codec.chain(spec)
    assert isinstance(chain, DirectChain)
    return codec, chain


def info_of(spec: ArraySpec, out_selection: tuple[Any, ...] | None = None) -> tuple[Any, ...]:
    whole = tuple(slice(0, n) for n in spec.shape)
    return SimpleNamespace(path=KEY), spec, whole, whole if out_selection is None else out_selection, True


def decoded_by_zarr(codec: ChunkCodec, spec: ArraySpec, data: bytes) -> Values | None:
    """What zarr's codecs make of a chunk, or ``None``; they are kept from what would make Blosc read past the end."""
    assert codec.is_sync(spec)
    try:
        return decode_chunk(SyncChain(codec.codecs, spec), SimpleNamespace(path=KEY), memoryview(data))
    except Corruption:
        return None


DAMAGED_CHAINS = sorted(name for name in CHAINS if "numcodecs" not in name)


@pytest.mark.parametrize("into", [True, False], ids=["into the output", "into new memory"])
@pytest.mark.parametrize("name", DAMAGED_CHAINS)
@SETTINGS
@given(data=st.data())
def test_damaged_chunks_are_errors_and_nothing_is_written_outside(name: str, into: bool, data: st.DataObject) -> None:
    spec = spec_of()
    codec, chain = codec_of(spec, *CHAINS[name], into=into)
    values = np.arange(30, dtype="<f4").reshape(6, 5) * data.draw(st.sampled_from([0, 1]))
    whole = bytes(chain.encode(values))
    damage = data.draw(st.sampled_from(["cut", "flip", "append", "header", "twice", "empty"]))
    damaged = bytearray(whole)
    match damage:
        case "cut":
            del damaged[data.draw(st.integers(0, len(whole) - 1)) :]
        case "flip":
            damaged[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        case "append":
            damaged += data.draw(st.binary(min_size=1, max_size=20) | st.just(b"\0"))
        case "header":
            start = data.draw(st.integers(0, min(16, len(whole) - 1)))
            damaged[start : start + 4] = data.draw(st.binary(min_size=1, max_size=4))
        case "twice":
            damaged += whole
        case "empty":
            damaged.clear()
    expected = decoded_by_zarr(codec, spec, bytes(damaged))
    canvas = np.full(chain.nbytes + 2 * GUARD, 0xAA, "B")
    middle = canvas[GUARD:-GUARD].view("<f4").reshape(6, 5)
    out = default_buffer_prototype().nd_buffer.from_numpy_array(middle)
    with reproducible():
        if expected is None:
            with pytest.raises(Corruption, match=KEY):
                scatter_chunks(codec, [info_of(spec)], [memoryview(bytes(damaged))], out, ())
        else:  # what was changed is not looked at
            scatter_chunks(codec, [info_of(spec)], [memoryview(bytes(damaged))], out, ())
            same_bits(middle, expected)
    assert set(canvas[:GUARD]) == set(canvas[-GUARD:]) == {0xAA}


@pytest.mark.parametrize("into", [True, False], ids=["into the output", "into new memory"])
@pytest.mark.parametrize("name", sorted(CHAINS))
def test_chunks_of_another_size_are_errors(name: str, into: bool) -> None:
    """Whole and sound, and of another array: nothing may be left over, nor taken for it what was in that memory."""
    spec = spec_of()
    codec, _ = codec_of(spec, *CHAINS[name], into=into)
    for shape in ((6, 4), (6, 6), (1, 1)):
        other = spec_of(shape)
        encoded = codec_of(other, *CHAINS[name])[1].encode(np.arange(np.prod(shape), dtype="<f4").reshape(shape))
        out = np.full((6, 5), 7, "<f4")
        with reproducible(), pytest.raises(Corruption, match=KEY):
            scatter_chunks(codec, [info_of(spec)], [encoded], cpu.NDBuffer.from_numpy_array(out), ())


def zstd_frame(content_nbytes: int, block: bytes) -> bytes:
    """A frame that says it holds so many bytes, with one raw block."""
    header = b"\x28\xb5\x2f\xfd" + bytes([0b11100000]) + content_nbytes.to_bytes(8, "little")
    return header + (len(block) << 3 | 1).to_bytes(3, "little") + block


@pytest.mark.parametrize("into", [True, False])
def test_a_zstd_header_that_lies_is_an_error(into: bool) -> None:
    """Of the size that is wanted, with less behind it: memory that was there would be taken for the rest of the chunk."""
    spec = spec_of((8,), "u1")
    codec, chain = codec_of(spec, ZstdCodec(), into=into)
    good = zstd_frame(8, b"abcdefgh")
    assert chain.decode(memoryview(good)).tobytes() == b"abcdefgh"
    for frame in (zstd_frame(8, b"abcd"), zstd_frame(4, b"abcd"), zstd_frame(2**62, b"abcdefgh"), zstd_frame(4, b"abcdefgh"), good + good):
        out = np.full(8, 0x55, "u1")
        with reproducible(), pytest.raises(Corruption, match=KEY):
            scatter_chunks(codec, [info_of(spec)], [memoryview(frame)], cpu.NDBuffer.from_numpy_array(out), ())


def without_size(values: bytes) -> bytes:
    """A Zstandard frame that does not say how many bytes it holds, as writers of streams make them."""
    return b"\x28\xb5\x2f\xfd\0\x58" + (len(values) << 3 | 1).to_bytes(3, "little") + values


def in_two(encode: Callable[[bytes], bytes], values: bytes) -> bytes:
    return encode(values[: len(values) // 2]) + encode(values[len(values) // 2 :])


UNUSUAL: dict[str, tuple[Any, Callable[[bytes], bytes]]] = {
    "zstd, no size": (ZstdCodec(), without_size),
    "zstd, two frames": (ZstdCodec(), partial(in_two, lambda half: zstd_frame(len(half), half))),
    "zstd, two frames without sizes": (ZstdCodec(), partial(in_two, without_size)),
    "gzip, two members": (GzipCodec(), partial(in_two, gzip.compress)),
}


@pytest.mark.parametrize("into", [True, False], ids=["into the output", "into new memory"])
@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_chunks_are_read_like_others(name: str, into: bool) -> None:
    """What a library cannot decompress in place is copied there, into outputs in one piece and into others."""
    compressor, encode = UNUSUAL[name]
    spec = spec_of((6, 5))
    codec, _ = codec_of(spec, compressor, into=into)
    values = np.arange(30, dtype="<f4").reshape(6, 5)
    data = memoryview(encode(values.tobytes()))
    for width in (5, 7):
        out = np.full((6, width), 7, "<f4")
        with reproducible():
            scatter_chunks(codec, [info_of(spec, (slice(0, 6), slice(0, 5)))], [data], cpu.NDBuffer.from_numpy_array(out), ())
        same_bits(out[:, :5], values)
        assert (out[:, 5:] == 7).all()


@pytest.mark.parametrize("name", ["blosc", "zstd", "checksum inside"])
@pytest.mark.parametrize("ndim_dropped", [0, 1])
def test_chunks_are_decompressed_in_their_place(name: str, ndim_dropped: int) -> None:
    """Where a chunk lies in one piece in the output, nothing is decoded elsewhere and copied."""
    spec = spec_of((1, 128, 256))
    codec, chain = codec_of(spec, *CHAINS[name])
    given = np.arange(128 * 256, dtype="<f4").reshape(1, 128, 256)
    encoded = chain.encode(given)
    out = np.zeros((2, 128, 256) if not ndim_dropped else (128, 256), "<f4")
    info = list(info_of(spec))
    info[3] = (slice(1, 2), slice(0, 128), slice(0, 256))[ndim_dropped:]
    if ndim_dropped:
        info[2] = (0, *info[2][1:])
    places: list[bool] = []

    def spy(library: Any) -> Any:
        def decompress(data: Any, destination: Any = None) -> Any:
            places.append(destination is not None and np.shares_memory(destination, out))
            return library.decompress(data, destination)

        return SimpleNamespace(decompress=decompress)

    with mock.patch.object(codec_chains, "blosc", spy(numcodecs.blosc)), mock.patch.object(codec_chains, "zstd", spy(numcodecs.zstd)):
        scatter_chunks(codec, [tuple(info)], [encoded], cpu.NDBuffer.from_numpy_array(out), ())
    # What lies under a checksum is taken out of it first.
    assert places == ([False] if name == "checksum inside" else [True])
    same_bits(out[1:] if not ndim_dropped else out[None], given)


def test_chunks_that_do_not_lie_in_one_piece_share_one_scratch() -> None:
    spec = spec_of((128, 128))
    codec, chain = codec_of(spec, ZstdCodec())
    given = np.arange(128 * 256, dtype="<f4").reshape(128, 256)
    infos = [info_of(spec, (slice(0, 128), slice(start, start + 128))) for start in (0, 128)]
    encoded = [chain.encode(given[:, start : start + 128]) for start in (0, 128)]
    out = np.zeros((128, 256), "<f4")
    destinations: list[int] = []

    def decompress(data: Any, destination: Any = None) -> Any:
        destinations.append(destination.ctypes.data)
        return numcodecs.zstd.decompress(data, destination)

    with mock.patch.object(codec_chains, "zstd", SimpleNamespace(decompress=decompress)):
        scatter_chunks(codec, infos, encoded, cpu.NDBuffer.from_numpy_array(out), ())
    assert len(destinations) == 2
    assert len(set(destinations)) == 1
    same_bits(out, given)


def test_what_is_contiguous_is_written_without_a_copy() -> None:
    spec = spec_of((4, 5))
    codec, _ = codec_of(spec)
    value = np.arange(40, dtype="<f4").reshape(8, 5)
    infos = [info_of(spec, (slice(start, start + 4), slice(0, 5))) for start in (0, 4)]
    new = gather_chunks(codec, infos, [None, None], cpu.NDBuffer.from_numpy_array(value), ())
    for data, start in zip(new, (0, 4), strict=True):
        assert data is not None
        assert np.shares_memory(np.frombuffer(data, "B"), value)
        assert data == value[start : start + 4].tobytes()


class OtherBuffer(cpu.Buffer):
    pass


class OtherNDBuffer(cpu.NDBuffer):
    pass


class Subclass(np.ndarray[Any, Any]):
    """May do anything too."""


class OtherCodec(ZstdCodec):
    """May do anything."""


def test_what_is_not_known_is_left_to_zarr() -> None:
    spec = spec_of()
    raw = zarr.codecs.BytesCodec()
    assert compile_chain((raw, ZstdCodec()), spec) is not None
    assert compile_chain((raw, OtherCodec()), spec) is None
    assert compile_chain((raw,), spec_of(prototype=BufferPrototype(OtherBuffer, OtherNDBuffer))) is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert compile_chain((wrappers.Delta(dtype="<f4"), raw), spec) is None
    strings: Any = zarr.create_array(MemoryStore(), shape=(4,), chunks=(2,), dtype=str)
    assert compile_chain(strings.metadata.codecs, spec) is None


@pytest.mark.parametrize("name", sorted(CHAINS))
def test_without_direct_calls_chunks_are_the_same(name: str) -> None:
    """Values of a type that is not the array's, and buffers of another kind, are encoded and decoded by zarr's codecs."""
    spec = spec_of()
    codec, chain = codec_of(spec, *CHAINS[name])
    values = np.arange(30, dtype="<f4").reshape(6, 5)
    with reproducible():
        (by_zarr,) = gather_chunks(codec, [info_of(spec)], [None], cpu.NDBuffer.from_numpy_array(values.view(Subclass)), ())
        assert by_zarr == chain.encode(values)
    out = np.zeros((6, 5), "<f4")
    scatter_chunks(codec, [info_of(spec)], [by_zarr], cpu.NDBuffer.from_numpy_array(out.view(Subclass)), ())
    same_bits(out, values)


def test_memory_of_another_kind_is_given_what_zarr_would_give_it() -> None:
    store = shardstore.open(MemoryStorage(f"/direct-{uuid.uuid4().hex}"), chunks_per_shard=(2,))
    array: Any = zarr.create_array(store, shape=(8,), chunks=(2,), dtype="<i4")
    array[...] = np.arange(8)
    prototype = BufferPrototype(OtherBuffer, OtherNDBuffer)
    got = array.get_basic_selection(slice(1, 7), prototype=prototype)
    np.testing.assert_array_equal(got, np.arange(1, 7))


def test_equality_with_the_fill_value_is_decided_as_zarr_does() -> None:
    """Chunks of which the first element agrees and a later one may not."""
    for dtype, fill, others in (
        ("<f4", 0.0, [0.0, -0.0, np.nan, 1]),
        (">f8", -0.0, [0.0, -0.0]),
        ("<f2", np.nan, [np.nan, 0.0]),
        ("<c8", 0, [0, -0.0, complex(0, np.nan)]),
        ("<i4", 3, [3, 4]),
        ("bool", True, [True, False]),
    ):
        scalar = np.dtype(dtype).type(fill)
        spec = ArraySpec(
            shape=(700, 50),
            dtype=zarr.dtype.parse_dtype(np.dtype(dtype), zarr_format=3),
            fill_value=scalar,
            config=ArrayConfig(order="C", write_empty_chunks=False),
            prototype=default_buffer_prototype(),
        )
        codec = ChunkCodec((zarr.codecs.BytesCodec(),), spec)
        assert isinstance(codec.chain(spec), DirectChain)
        for other in others:
            for at in ((0, 0), (0, 49), (350, 7), (699, 49)):
                values = np.full((700, 50), scalar, dtype)
                values[at] = other
                expected: NDBuffer = cpu.NDBuffer.from_numpy_array(values)
                (new,) = gather_chunks(codec, [info_of(spec)], [None], expected, ())
                assert (new is None) == expected.all_equal(scalar), (dtype, other, at)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["str", "variable_length_bytes"])
def test_elements_that_are_python_objects_are_written_and_read(dtype: str, order: Any) -> None:
    """Texts, and bytes that end with NUL, one by one and by axes that an integer selects."""
    store = shardstore.open(f"memory://objects-{dtype}-{order}", chunks_per_shard=(2, 1))
    config = ArrayConfig.from_dict({"order": order})
    array = zarr.create_array(store, name="a", shape=(4, 6), chunks=(2, 3), dtype=dtype, config=config)
    values = np.full((4, 6), "" if dtype == "str" else b"", object)
    for at in np.ndindex(2, 6):
        values[1::2][at] = f"{at}" if dtype == "str" else f"{at}\0".encode()
    array[...] = values
    array[0, 1:5] = values[0, 1:5] = values[3, 1:5]
    array[2:3, 2] = values[2:3, 2] = values[1:2, 0]
    array[:, 3] = values[:, 3] = values[:, 4]
    for selection in (..., (slice(None), 2), (3, slice(1, 5)), (slice(1, 3), slice(2, 6)), (slice(1, 2), 1), (3, 4)):
        assert np.asarray(array[selection], object).tolist() == np.asarray(values[selection], object).tolist(), selection


def test_values_in_arrays_of_other_classes_are_written(tmp_path: Path) -> None:
    """Maps of files, matrices, masked arrays, whole chunks and parts of them."""
    values = np.arange(24, dtype="f4").reshape(4, 6)
    mapped = np.memmap(tmp_path / "values", "f4", "w+", shape=(4, 6))
    mapped[...] = values
    masked = np.ma.masked_array(values, values % 5 == 1)
    for number, other in enumerate((mapped, values.view(np.matrix), masked)):
        store = shardstore.open(f"memory://other-classes-{number}", chunks_per_shard=(2, 1))
        array = zarr.create_array(store, name="a", shape=(4, 6), chunks=(2, 3), dtype="f4")
        array[...] = other
        same_bits(array[...], values)
        array[1:4, 2:5] = other[0:3, 0:3]
        same_bits(array[1:4, 2:5], values[0:3, 0:3])
