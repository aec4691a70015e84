"""Chunks that a library wrote as Zarr v2, read as Zarr v3 below the translated document, and the other way round: equal values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numcodecs
import numpy as np
import pytest
import tensorstore
import zarr
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.storage import MemoryStore

from shardstore.format import json_text
from shardstore.format.json_text import dumps_zarr2
from shardstore.format.metadata_v3 import parse_plain
from shardstore.format.v2.documents import array_from_v2, array_to_v2, consolidated_from_v2, consolidated_to_v2, group_from_v2, group_to_v2
from shardstore.format.v2.keys import canonical_chunk_key, v2_chunk_key

# Of numcodecs' codecs, of data types without a specification, and of consolidated metadata, in v3.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part"),
]

Entries = dict[str, Buffer]
Json = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """An array of v2; what is left unsaid is the same for all: two dimensions, a chunk at the edge, one missing."""

    name: str
    dtype: Any
    fill_value: Any = 0
    filters: Any = ()
    compressor: Any = field(default_factory=lambda: numcodecs.Zstd(1))
    order: Literal["C", "F"] = "C"
    separator: str = "."
    shape: tuple[int, ...] = (5, 3)
    chunks: tuple[int, ...] = (2, 2)

    def values(self) -> np.ndarray[Any, Any]:
        return values_of(np.dtype(self.dtype) if self.dtype is not str else np.dtype(object), self.shape)


def values_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Values that differ from element to element, and would be others in another byte order."""
    count = int(np.prod(shape))
    if dtype.names:
        values = np.zeros(shape, dtype)
        for name in dtype.names:
            values[name] = values_of(dtype[name], shape)
        return values
    texts = ["", "a", "é日", "xyz"]
    if dtype.kind == "O":
        return np.array([texts[i % 4] + "long" * i for i in range(count)], object).reshape(shape)
    if dtype.kind == "U":
        return np.array([texts[i % 4] for i in range(count)]).astype(dtype).reshape(shape)
    if dtype.kind in "SV":
        return np.array([bytes([97 + i, 0, 99]) for i in range(count)], dtype).reshape(shape)
    numbers = np.arange(1, count + 1)
    if dtype.kind in "mM":
        return numbers.astype("i8").view(dtype.newbyteorder("=")).astype(dtype).reshape(shape)
    return (numbers % 2 if dtype.kind == "b" else numbers + 0.5j if dtype.kind == "c" else numbers).astype(dtype).reshape(shape)


def plain(array: Any) -> list[Any]:
    """Bytes in one byte order, or objects: equal where the values are, NaN and NaT among them."""
    array = np.asarray(array)
    if array.dtype.names:
        return [plain(array[name]) for name in array.dtype.names]
    if array.dtype.kind in "OTU":
        return list(array.ravel().tolist())
    return [array.dtype.newbyteorder("<").str, np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()]


def cases() -> Iterator[Case]:
    for kind in ("b1", "i1", "u1"):
        yield Case(kind, f"|{kind}", 1)
    for order in "<>":
        for kind in ("i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "M8[ns]", "M8[25s]", "m8[us]", "m8[D]"):
            yield Case(f"{kind} {order}", order + kind, 7)
        yield Case(f"U3 {order}", f"{order}U3", "é")
        yield Case(f"order F {order}", f"{order}i4", 9, order="F", separator="/", shape=(5, 3, 4), chunks=(2, 2, 3))
    yield Case("S3", "|S3", b"ab")
    yield Case("V3", "|V3", b"ab\1")
    yield Case("strings", str, "fill", filters=[numcodecs.VLenUTF8()])
    # Fields inside fields are written as v2 by zarr-python 3, but not read: the golden chunks have them.
    dtype = np.dtype([("a", "<i4"), ("b", "|S3"), ("x", "<f4"), ("v", "|V2"), ("u", "<U2")])
    yield Case("structured", dtype, values_of(dtype, (2,))[1], order="F")
    times = np.dtype([("t", "<M8[s]"), ("x", "|u1")])  # of which numcodecs' compressors make no buffer
    yield Case("structured times", times, values_of(times, (2,))[1], compressor=None)
    for name, fill in (("NaN", np.nan), ("Infinity", np.inf), ("-Infinity", -np.inf), ("-0.0", -0.0), ("0.1", 0.1)):
        yield Case(f"f4 {name}", "<f4", np.float32(fill))
        yield Case(f"c16 {name}", "<c16", complex(1, fill))
    for unit in ("M8[us]", "m8[s]"):
        yield Case(f"NaT {unit}", f"<{unit}", np.array("NaT", unit)[()])
    yield Case("u8 largest", "<u8", 2**64 - 1)
    yield Case("i8 least", "<i8", -(2**63))
    for number, compressor in enumerate(
        [
            None,
            numcodecs.Blosc(),
            numcodecs.Blosc("zstd", 3, numcodecs.Blosc.BITSHUFFLE, 64),
            numcodecs.Blosc("lz4hc", 9, numcodecs.Blosc.NOSHUFFLE),
            numcodecs.Blosc("blosclz", 1, numcodecs.Blosc.AUTOSHUFFLE),
            numcodecs.Zstd(5, checksum=True),
            numcodecs.GZip(3),
            numcodecs.Zlib(7),
            numcodecs.LZ4(3),
            numcodecs.BZ2(2),
            numcodecs.LZMA(preset=2),
        ]
    ):
        for dtype_ in ("<f8", "|u1", ">i2"):
            yield Case(f"compressor {number} {dtype_}", dtype_, compressor=compressor, order="F" if number % 2 else "C")
    for name, dtype_, filters in FILTERS:
        yield Case(f"filters {name}", dtype_, filters=filters)
        yield Case(f"filters {name}, 1-d", dtype_, filters=filters, order="F", shape=(7,), chunks=(3,), separator="/")
    yield Case("scalar", "<f4", 3, shape=(), chunks=())


FILTERS: list[tuple[str, str, list[Any]]] = [
    ("delta", "<i4", [numcodecs.Delta("<i4")]),
    ("delta to i2, shuffle", "<i4", [numcodecs.Delta("<i4", "<i2"), numcodecs.Shuffle(2)]),
    ("shuffle", ">f4", [numcodecs.Shuffle(4)]),
    ("bitround", "<f4", [numcodecs.BitRound(10)]),
    ("quantize", "<f8", [numcodecs.Quantize(2, "<f8")]),
    ("fixedscaleoffset", "<f8", [numcodecs.FixedScaleOffset(1, 10, "<f8", "<i4")]),
    ("fixedscaleoffset to u1", "<f4", [numcodecs.FixedScaleOffset(0, 1, "<f4", "|u1")]),
    ("fixedscaleoffset, delta", "<f8", [numcodecs.FixedScaleOffset(1, 10, "<f8", "<i4"), numcodecs.Delta("<i4")]),
    ("astype", "<i8", [numcodecs.AsType("<i2", "<i8")]),
    ("packbits", "|b1", [numcodecs.PackBits()]),
    ("crc32", "<u2", [numcodecs.CRC32()]),
    ("crc32c at the end", "<u2", [numcodecs.get_codec({"id": "crc32c", "location": "end"})]),
    ("adler32, zlib", ">u2", [numcodecs.Adler32(), numcodecs.Zlib(1)]),
    ("fletcher32", "|S3", [numcodecs.Fletcher32()]),
    ("jenkins", "<u4", [numcodecs.get_codec({"id": "jenkins_lookup3", "initval": 7})]),
]
CASES = list(cases())


def buffer(data: bytes) -> Buffer:
    return default_buffer_prototype().buffer.from_bytes(data)


def create_v2(case: Case) -> Entries:
    """The array as zarr-python 3 writes it in format 2, all but its last row of chunks."""
    entries: Entries = {}
    array = zarr.create_array(
        MemoryStore(entries),
        zarr_format=2,
        shape=case.shape,
        chunks=case.chunks,
        dtype=case.dtype,
        fill_value=case.fill_value,
        filters=case.filters or None,
        compressors=case.compressor,
        order=case.order,
        chunk_key_encoding={"name": "v2", "separator": case.separator},
    )
    fill_in(array, case)
    return entries


def fill_in(array: Any, case: Case) -> None:
    if case.shape:
        array[: case.chunks[0]] = case.values()[: case.chunks[0]]
    else:
        array[...] = case.values()


def to_v3(entries: Entries) -> Entries:
    """A hierarchy of one array of v2 as v3: the document translated, the keys mapped, the chunks as they are."""
    attributes = entries.get(".zattrs")
    zattrs = None if attributes is None else json_text.loads_object(attributes.to_bytes())
    document = array_from_v2(json_text.loads_object(entries[".zarray"].to_bytes()), zattrs)
    encoding, ndim = parsed(document)
    translated = {"zarr.json": buffer(json_text.dumps(document))}
    for key in entries.keys() - {".zarray", ".zattrs"}:
        canonical = canonical_chunk_key(key, encoding, ndim)
        assert canonical is not None
        translated[canonical] = entries[key]
    return translated


def to_v2(entries: Entries) -> Entries:
    document = json_text.loads_object(entries["zarr.json"].to_bytes())
    zarray, zattrs = array_to_v2(document)
    encoding, ndim = parsed(document)
    translated = {".zarray": buffer(dumps_zarr2(zarray))} | ({} if zattrs is None else {".zattrs": buffer(dumps_zarr2(zattrs))})
    for key in entries.keys() - {"zarr.json"}:
        shown = v2_chunk_key(key, encoding, ndim)
        assert shown is not None
        translated[shown] = entries[key]
    return translated


def parsed(document: Json) -> tuple[Any, int]:
    found = parse_plain(document)
    assert not isinstance(found, str)
    return found.key_encoding, len(found.shape)


def read(entries: Entries, zarr_format: Any) -> Any:
    array = zarr.open_array(MemoryStore(entries), mode="r", zarr_format=zarr_format)
    assert isinstance(array, zarr.Array)
    return array[...]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_zarr_python_3_reads_chunks_of_v2_as_v3(case: Case) -> None:
    entries = create_v2(case)
    expected = read(entries, 2)
    translated = to_v3(entries)
    assert plain(read(translated, 3)) == plain(expected)
    assert {key: value.to_bytes() for key, value in to_v2(translated).items() if not key.startswith(".")} == {
        key: value.to_bytes() for key, value in entries.items() if not key.startswith(".")
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_zarr_python_3_writes_as_v3_what_is_read_as_v2(case: Case) -> None:
    """An array whose document came from v2: a library of v3 writes chunks, and a client of v2 reads them."""
    before = create_v2(case)
    entries = {"zarr.json": to_v3(before)["zarr.json"]}
    array = zarr.open_array(MemoryStore(entries), mode="r+")
    fill_in(array, case)
    assert len(entries) == len(before) - 1  # one document less
    assert plain(read(to_v2(entries), 2)) == plain(read(before, 2))


@pytest.mark.parametrize("case", [c for c in CASES if not c.filters or c.dtype is str], ids=lambda case: case.name)
def test_what_zarr_python_3_creates_in_v3_is_read_as_v2(case: Case) -> None:
    """An array of v3 that v2 had no part in, in the spelling of zarr-python 3, without filters and with its own compressor."""
    entries: Entries = {}
    array = zarr.create_array(MemoryStore(entries), shape=case.shape, chunks=case.chunks, dtype=case.dtype, fill_value=case.fill_value)
    fill_in(array, case)
    assert plain(read(to_v2(entries), 2)) == plain(read(entries, 3))


@pytest.mark.parametrize("case", [c for c in CASES if c.dtype in ("<i4", ">i4", "<f8", ">i2", "|u1", "<c16", "|b1")], ids=lambda c: c.name)
def test_tensorstore_reads_both(case: Case) -> None:
    """What both of its drivers know: core data types and codecs."""
    entries = create_v2(case)
    translated = to_v3(entries)
    document = json_text.loads_object(translated["zarr.json"].to_bytes())
    if any(codec["name"].startswith("numcodecs.") for codec in document["codecs"]):
        with pytest.raises(ValueError, match=r"numcodecs\."):
            read_tensorstore("zarr3", translated)
        return
    assert plain(read_tensorstore("zarr3", translated)) == plain(read(entries, 2))
    if not case.filters and case.compressor != numcodecs.Zstd(5, checksum=True):  # which its driver of v2 has not
        assert plain(read_tensorstore("zarr", entries)) == plain(read_tensorstore("zarr3", translated))


def read_tensorstore(driver: str, entries: Entries) -> Any:
    context = tensorstore.Context()
    kvstore = tensorstore.KvStore.open("memory://", context=context).result()
    for key, value in entries.items():
        kvstore.write(key, value.to_bytes()).result()
    return tensorstore.open({"driver": driver, "kvstore": "memory://"}, context=context, open=True).result().read().result()


def names_of(array: Any) -> Any:
    return array.metadata.dimension_names


def test_consolidated_metadata_of_v2_opens_in_zarr_python_3() -> None:
    metadata: Json = {".zgroup": {"zarr_format": 2}, ".zattrs": {"title": "x"}}
    metadata |= {"g/.zgroup": {"zarr_format": 2}, "g/sub/.zgroup": {"zarr_format": 2}, "g/sub/.zattrs": {"deep": True}}
    for path, names in (("a", ["x", "y"]), ("g/sub/b", ["t", "x"]), ("implicit/c", ["x", "y"])):
        metadata[f"{path}/.zarray"] = json_text.loads_object(create_v2(CASES[0])[".zarray"].to_bytes())
        metadata[f"{path}/.zattrs"] = {"_ARRAY_DIMENSIONS": names, "units": "K"}
    zmetadata = {"zarr_consolidated_format": 1, "metadata": metadata}
    document = group_from_v2(metadata[".zgroup"], metadata[".zattrs"])
    document["consolidated_metadata"] = consolidated_from_v2(zmetadata)
    group = zarr.open_consolidated(MemoryStore({"zarr.json": buffer(json_text.dumps(document))}))
    assert group.attrs.asdict() == {"title": "x"}
    assert group["g/sub"].attrs.asdict() == {"deep": True}
    for path, expected in (("a", ("x", "y")), ("g/sub/b", ("t", "x")), ("implicit/c", ("x", "y"))):
        array = group[path]
        assert names_of(array) == expected
        assert array.attrs["units"] == "K"
    assert consolidated_to_v2(document) == zmetadata


def test_consolidated_metadata_of_zarr_python_3_opens_as_v2() -> None:
    entries: Entries = {}
    root = zarr.create_group(MemoryStore(entries), attributes={"title": "x"})
    sub = root.create_group("g/sub", attributes={"deep": True})
    sub.create_array("b", shape=(5, 3), chunks=(2, 2), dtype="<f4", dimension_names=["t", "x"], attributes={"units": "K"})
    zarr.consolidate_metadata(MemoryStore(entries))
    document = json_text.loads_object(entries["zarr.json"].to_bytes())
    shown = consolidated_to_v2(document)
    assert shown is not None
    zgroup, zattrs = group_to_v2(document)
    seen = {".zgroup": buffer(dumps_zarr2(zgroup)), ".zattrs": buffer(dumps_zarr2(zattrs)), ".zmetadata": buffer(dumps_zarr2(shown))}
    group = zarr.open_consolidated(MemoryStore(seen), zarr_format=2)
    assert group.attrs.asdict() == {"title": "x"}
    assert group["g/sub"].attrs.asdict() == {"deep": True}
    array = group["g/sub/b"]
    assert isinstance(array, zarr.Array)
    assert array.attrs.asdict() == {"_ARRAY_DIMENSIONS": ["t", "x"], "units": "K"}
    assert (array.shape, array.chunks, array.dtype) == ((5, 3), (2, 2), np.dtype("<f4"))
