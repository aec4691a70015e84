"""Sets of references in Parquet: read file by file, within a bound, whoever wrote them."""

from __future__ import annotations

import asyncio
import io
import json
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from fsspec.implementations.reference import LazyReferenceMapper
from numpy.typing import NDArray

import shardstore
from shardstore.errors import Conflict, Corruption, InvalidInput, Unsupported
from shardstore.format.references.parquet import (
    MISSING,
    MOST_NBYTES,
    MOST_ROWS,
    ReferenceRows,
    SetFiles,
    SetMetadata,
    decode_rows,
    encode_metadata,
    encode_rows,
)
from shardstore.model.ranges import EVERYTHING
from shardstore.opening.open import open_storage
from shardstore.storage.base import Failed, Found, Read
from shardstore.storage.references.parquet_set import _kept_nbytes
from shardstore.testing.storage_suite import SyncStorage, on_io_loop, values
from tests.documents import array_v3
from tests.storage.http.http_servers import WebServer
from tests.storage.references.reference_sets import open_references, open_set

RECORD = 16
V2 = {"zarr_format": 2, "dtype": "|u1", "compressor": None, "filters": None, "order": "C", "fill_value": 255}


def v2(shape: tuple[int, ...], chunks: tuple[int, ...], **more: Any) -> dict[str, Any]:
    return {**V2, "shape": shape, "chunks": chunks, **more}


def v3(shape: tuple[int, ...], chunks: tuple[int, ...], encoding: Mapping[str, Any]) -> dict[str, Any]:
    return array_v3(shape, chunks, chunk_key_encoding=encoding, fill_value=255)


def rows_of(url: str, first: int, count: int, *, missing: tuple[int, ...] = (), tokens: Mapping[str, str] | None = None) -> ReferenceRows:
    """Rows whose chunks are of 4 bytes, one behind the other."""
    numbers = np.arange(first, first + count, dtype=np.int64)
    target = np.where(np.isin(numbers, missing), MISSING, 0).astype(np.int32)
    return ReferenceRows([url], target, numbers * 4, np.full(count, 4), {}, tokens or {})


def metadata(documents: Mapping[str, Any], record_size: int = RECORD) -> bytes:
    return json.dumps({"metadata": documents, "record_size": record_size}).encode()


def chunk(number: int) -> bytes:
    return bytes((4 * number + i) % 251 for i in range(4))


DATA = b"".join(map(chunk, range(1000)))


# -- requests and memory -----------------------------------------------------------------------------------------------


def test_the_first_chunk_takes_three_requests(server: WebServer) -> None:
    server.objects |= {"/s/data": DATA, "/s/refs/.zmetadata": metadata({"x/.zarray": v2((40, 40), (2, 2))})}
    for record in range(25):
        server.objects[f"/s/refs/x/refs.{record}.parq"] = encode_rows(rows_of(f"{server.url}/s/data", record * RECORD, RECORD))
    s = SyncStorage(open_storage(f"reference::{server.url}/s/refs"))
    assert s.get("x/1.2") == chunk(22)
    asked = [f"{one.method} {one.path} {one.range or ''}".rstrip() for one in server.asked]
    assert asked == ["GET /s/refs/.zmetadata", "GET /s/refs/x/refs.1.parq", "GET /s/data bytes=88-91"]
    server.asked.clear()
    assert s.get("x/1.3") == chunk(23)
    assert s.stat("x/1.4") is not None
    assert server.methods() == ["GET bytes=92-95"]
    assert s.children() == ([], ["x/"])
    assert s.get("x/20.0") is None
    assert s.get("x/01.3") is None
    assert server.methods() == []
    many = s.read_many(*(Read(f"x/{i}.{j}", (EVERYTHING,)) for i in range(20) for j in range(20)))
    assert [values(found)[0] for found in many if isinstance(found, Found)] == [chunk(n) for n in range(400)]
    methods = server.methods()
    assert (methods.count("GET"), len(methods)) == (24, 25)  # the other files, and one range of all chunks
    assert set(s.keys("x/3.")) == {f"x/3.{j}" for j in range(20)}


@pytest.mark.gate
def test_a_listing_by_prefix_reads_the_files_it_needs(server: WebServer) -> None:
    server.objects["/s/refs/.zmetadata"] = metadata({"x/.zarray": v2((64, 16), (1, 1)), "x/.zattrs": {}, "y/.zarray": v2((4,), (1,))})
    for record in range(64):
        server.objects[f"/s/refs/x/refs.{record}.parq"] = encode_rows(rows_of("s3://b/x", record * 16, 16, missing=(17,)))
    s = SyncStorage(open_storage(f"reference::{server.url}/s/refs"))
    server.asked.clear()
    assert set(s.keys("x/1.")) == {f"x/1.{j}" for j in range(16)} - {"x/1.1"}
    assert [asked.path for asked in server.asked] == ["/s/refs/x/refs.1.parq"]
    server.asked.clear()
    assert s.keys("x/.z") == ["x/.zarray", "x/.zattrs"]
    assert s.children() == ([], ["x/", "y/"])
    assert server.asked == []
    assert len(s.children("x/")[0]) == 64 * 16 + 1


def test_rows_without_a_url_have_a_size_in_memory() -> None:
    """Their URL is the one that the user gives for all references."""
    targets: Any = [None, "x"]
    number = np.zeros(2, np.int64)
    rows = ReferenceRows(targets, np.array([0, 1], np.int32), number, number)
    assert _kept_nbytes(rows) > _kept_nbytes(replace(rows, targets=[]))


def test_files_are_kept_within_a_bound(server: WebServer) -> None:
    server.objects |= {"/s/data": DATA, "/s/refs/.zmetadata": metadata({"x/.zarray": v2((160,), (1,))})}
    for record in range(10):
        server.objects[f"/s/refs/x/refs.{record}.parq"] = encode_rows(rows_of(f"{server.url}/s/data", record * 16, 16))
    storage: Any = open_storage(f"reference::{server.url}/s/refs", {"cache_bytes": 2500})
    s = SyncStorage(storage)
    for _ in range(2):
        for number in range(0, 160, 8):
            assert s.get(f"x/{number}") == chunk(number)
    files = [asked.path for asked in server.asked if asked.path.endswith(".parq")]
    assert len(files) == 20
    cache = storage._set._cache
    assert 1 < len(cache) < 10
    assert 0 < cache.used <= 2500


def test_readers_of_one_file_share_its_request(server: WebServer) -> None:
    server.objects |= {"/s/data": DATA, "/s/refs/.zmetadata": metadata({"x/.zarray": v2((16,), (1,))})}
    server.objects["/s/refs/x/refs.0.parq"] = encode_rows(rows_of(f"{server.url}/s/data", 0, 16))
    storage = open_storage(f"reference::{server.url}/s/refs")

    async def read_all() -> None:
        await asyncio.gather(*(storage.read([Read(f"x/{i}", (EVERYTHING,))]) for i in range(16)))

    on_io_loop(read_all())
    assert [asked.path for asked in server.asked].count("/s/refs/x/refs.0.parq") == 1


# -- keys --------------------------------------------------------------------------------------------------------------


def test_groups_root_arrays_and_every_way_to_write_keys(memory: SyncStorage) -> None:
    memory.put("data", DATA)
    url = f"{memory.storage.url}/data"
    v2_keys, default = {"name": "v2", "configuration": {"separator": "."}}, {"name": "default"}
    documents: dict[str, Any] = {
        ".zgroup": {"zarr_format": 2},
        "g/h/a/.zarray": v2((4, 6), (2, 2)),
        "slash/.zarray": v2((4, 6), (2, 2), dimension_separator="/"),
        "dual/.zarray": v2((4, 6), (2, 2)),
        "dual/zarr.json": v3((4, 6), (2, 2), v2_keys),
        "third/zarr.json": v3((4, 6), (2, 2), default),
        "text/.zarray": json.dumps(v2((), ())),
        "empty/.zarray": v2((0, 3), (1, 1)),
        "group/zarr.json": {"zarr_format": 3, "node_type": "group"},
    }
    memory.put("refs/.zmetadata", metadata(documents, 4))
    for path in ("g/h/a", "slash", "dual", "third"):
        memory.put(f"refs/{path}/refs.1.parq", encode_rows(rows_of(url, 4, 4)))  # the first file is missing
    rows = ReferenceRows([url], np.array([0, MISSING], np.int32), np.zeros(2, np.int64), np.zeros(2, np.int64), {})
    memory.put("refs/text/refs.0.parq", encode_rows(rows))
    s = open_set(f"{memory.storage.url}/refs")
    chunks = {"g/h/a": ("1.1", "1.2"), "slash": ("1/1", "1/2"), "dual": ("1.1", "1.2"), "third": ("c/1/1", "c/1/2")}
    for path, (first, second) in chunks.items():
        assert (s.get(f"{path}/{first}"), s.get(f"{path}/{second}")) == (chunk(4), chunk(5)), path
        assert s.get(f"{path}/{first.replace('1', '0')}") is None
        assert set(s.keys(f"{path}/")) - set(documents) == {f"{path}/{first}", f"{path}/{second}"}
    assert s.get("text/0") == DATA
    assert s.keys("empty/") == ["empty/.zarray"]
    assert s.children("slash/") == (["slash/.zarray"], ["slash/1/"])
    assert s.children("slash/1/") == (["slash/1/1", "slash/1/2"], [])
    assert s.children("third/") == (["third/zarr.json"], ["third/c/"])
    assert s.children("g/") == ([], ["g/h/"])
    assert json.loads(s.get("dual/zarr.json") or b"")["zarr_format"] == 3
    assert set(s.keys()) == set(documents) | {f"{path}/{name}" for path, names in chunks.items() for name in names} | {"text/0"}
    root = {".zarray": v2((4, 6), (2, 2)), "sub/.zarray": v2((4, 6), (2, 2))}
    memory.put("root/.zmetadata", metadata(root, 4))
    memory.put("root/refs.1.parq", encode_rows(rows_of(url, 4, 4)))
    s = open_set(f"{memory.storage.url}/root/")
    assert (s.get("1.1"), s.get("sub/1.1"), s.children()) == (chunk(4), None, ([".zarray", "1.1", "1.2"], ["sub/"]))


def test_files_that_are_gone_or_of_another_set_are_no_missing_chunks(memory: SyncStorage) -> None:
    memory.put("data", DATA)
    url = f"{memory.storage.url}/data"
    files = SetFiles.of("mine", [("x", 0), ("x", 1), ("x", 2), ("x", 4)])
    assert files.records == {"x": [range(3), range(4, 5)]}
    assert [files.has("x", number) for number in range(-1, 6)] == [False, True, True, True, False, True, False]
    memory.put("refs/.zmetadata", encode_metadata(SetMetadata({"x/.zarray": v2((96,), (1,))}, RECORD, files)))
    for record, owner in ((0, "mine"), (1, "yours"), (2, None), (3, "mine")):
        memory.put(f"refs/x/refs.{record}.parq", encode_rows(replace(rows_of(url, record * RECORD, RECORD), set_id=owner)))
    s = open_set(f"{memory.storage.url}/refs")
    assert (s.get("x/1"), s.get("x/49"), s.get("x/81")) == (chunk(1), None, None)  # the set has no file 3, and none of 5
    for record, words in ((1, "belongs to another set"), (2, "belongs to another set"), (4, "is gone")):
        (outcome,) = s.read_many(Read(f"x/{record * RECORD}", (EVERYTHING,)))
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, Conflict)
        assert f"/refs/x/refs.{record}.parq {words}" in str(outcome.error)
    with pytest.raises(Conflict, match="belongs to another set"):
        s.keys("x/")


def test_what_a_set_says_of_its_files_is_checked(memory: SyncStorage) -> None:
    def put(own: object) -> None:
        memory.put(
            "refs/.zmetadata", json.dumps({"metadata": {"x/.zarray": v2((10**9,), (1,))}, "record_size": 1, "shardstore": own}).encode()
        )

    for own in (1, {}, {"set": "a", "records": 1}, {"set": "a", "records": {"x": [[1, "a"]]}}, {"set": "a", "records": {"x": [1]}}):
        put(own)
        with pytest.raises(Corruption, match="metadata of a set"):
            open_set(f"{memory.storage.url}/refs")
    put({"set": "a", "records": {"x": [[0, 2**62]]}})
    with pytest.raises(Conflict, match=r"refs\.0\.parq is gone"):
        open_set(f"{memory.storage.url}/refs").keys("x/")


def test_the_files_of_a_large_set_are_asked_for_only_if_they_exist(server: WebServer, memory: SyncStorage) -> None:
    documents = {"x/.zarray": v2((16 * 10**7, 16), (1, 1)), "xy/.zarray": v2((16,), (1,))}
    url = f"{memory.storage.url}/data"
    memory.put("data", DATA)
    memory.put("refs/.zmetadata", metadata(documents))
    for record in (3, 10**8):
        memory.put(f"refs/x/refs.{record}.parq", encode_rows(rows_of(url, 0, RECORD)))
    memory.put("refs/x/refs.txt.parq", b"")
    memory.put("refs/xy/refs.0.parq", encode_rows(rows_of(url, 0, RECORD)))
    s = open_set(f"{memory.storage.url}/refs")
    expected = {f"x/{row}.{column}" for row in (3, 10**8) for column in range(16)}
    assert set(s.keys("x/")) == {"x/.zarray"} | expected
    server.objects["/s/.zmetadata"] = encode_metadata(SetMetadata(documents, RECORD, SetFiles.of("mine", [("x", 3), ("x", 10**8)])))
    for record in (3, 10**8):
        server.objects[f"/s/x/refs.{record}.parq"] = encode_rows(replace(rows_of(f"{server.url}/d", 0, RECORD), set_id="mine"))
    assert set(SyncStorage(open_storage(f"reference::{server.url}/s")).keys("x/")) == {"x/.zarray"} | expected
    assert sorted(one.path for one in server.asked) == ["/s/.zmetadata", "/s/x/refs.100000000.parq", "/s/x/refs.3.parq"]


def test_values_in_the_set(memory: SyncStorage) -> None:
    inline = {0: b"", 1: b"base64:YQ==", 2: b"\xff\x00"}
    rows = ReferenceRows([], np.full(16, MISSING, np.int32), np.zeros(16, np.int64), np.zeros(16, np.int64), inline)
    memory.put("refs/.zmetadata", metadata({"x/.zarray": v2((10,), (1,))}))
    memory.put("refs/x/refs.0.parq", encode_rows(rows))
    s = open_set(f"{memory.storage.url}/refs")
    assert [s.get(f"x/{i}") for i in range(4)] == [b"", b"base64:YQ==", b"\xff\x00", None]
    assert s.keys("x/0") == ["x/0"]


def test_relative_urls_are_relative_to_the_set(memory: SyncStorage) -> None:
    memory.put("data", DATA)
    memory.put("refs/.zmetadata", metadata({"x/.zarray": v2((16,), (1,))}))
    memory.put("refs/x/refs.0.parq", encode_rows(rows_of("../data", 0, 16)))
    assert open_set(f"{memory.storage.url}/refs").get("x/3") == chunk(3)


def test_pins_are_in_each_file(memory: SyncStorage) -> None:
    memory.put("data", DATA)
    url = f"{memory.storage.url}/data"
    info = memory.stat("data")
    assert info is not None
    assert info.generation is not None
    memory.put("refs/.zmetadata", metadata({"x/.zarray": v2((32,), (1,))}))
    memory.put("refs/x/refs.0.parq", encode_rows(rows_of(url, 0, 16, tokens={url: info.generation.token})))
    memory.put("refs/x/refs.1.parq", encode_rows(rows_of(url, 16, 16)))
    s = open_set(f"{memory.storage.url}/refs")
    assert (s.get("x/1"), s.get("x/17")) == (chunk(1), chunk(17))
    memory.put("data", DATA[::-1])
    pinned, free = s.read_many(Read("x/1", (EVERYTHING,)), Read("x/17", (EVERYTHING,)))
    assert isinstance(free, Found)
    assert isinstance(pinned, Failed)
    assert isinstance(pinned.error, Conflict)
    assert open_set(f"{memory.storage.url}/refs", pins=False).get("x/1") == DATA[::-1][4:8]


@pytest.mark.gate
def test_a_small_file_that_becomes_large_is_not_read(memory: SyncStorage) -> None:
    """Neither rows that take no room, nor one text that is all the same."""
    schema = pa.schema([("path", pa.string()), ("offset", pa.int64()), ("size", pa.int64()), ("raw", pa.binary())])
    memory.put("refs/.zmetadata", metadata({"x/.zarray": v2((32,), (1,))}))
    rows, more = MOST_ROWS // 2, MOST_ROWS // 2 + 1
    zeros = pa.array(np.zeros(more, np.int64))
    file = io.BytesIO()
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for count in (rows, more):
            columns = [pa.nulls(count, pa.string()), zeros[:count], zeros[:count], pa.nulls(count, pa.binary())]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=more)
    assert len(file.getvalue()) < 1 << 20
    memory.put("refs/x/refs.0.parq", file.getvalue())
    text = io.BytesIO()
    column = pa.array([b"a" * (MOST_NBYTES + 1)], pa.binary())
    row = [pa.nulls(1, pa.string()), pa.array([0]), pa.array([0]), column]
    pq.write_table(pa.table(row, schema=schema), text, compression="zstd", use_dictionary=False, write_statistics=False)
    assert len(text.getvalue()) < 1 << 20
    memory.put("refs/x/refs.1.parq", text.getvalue())
    del column, row
    s = open_set(f"{memory.storage.url}/refs")
    for outcome in s.read_many(Read("x/1", (EVERYTHING,)), Read("x/17", (EVERYTHING,))):
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, Unsupported)
        assert "are read" in str(outcome.error)


@pytest.mark.gate
def test_bytes_that_come_again_and_again_are_held_once(memory: SyncStorage) -> None:
    """A small file whose rows share one value of a mebibyte."""
    schema = pa.schema([("path", pa.string()), ("offset", pa.int64()), ("size", pa.int64()), ("raw", pa.binary())])
    raw = pa.array([b"a" * (1 << 20)] * 1500, pa.binary())
    zeros = pa.array(np.zeros(1500, np.int64))
    file = io.BytesIO()
    table = pa.table([pa.nulls(1500, pa.string()), zeros, zeros, raw], schema=schema)
    pq.write_table(table, file, compression="zstd", dictionary_pagesize_limit=4 << 20)
    del raw, table
    assert len(file.getvalue()) < 100_000
    tracemalloc.start()
    rows = decode_rows(file.getvalue(), 1500)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(rows.inline) == 1500
    assert len(rows.inline[1499]) == 1 << 20
    assert peak < 4 << 20


def test_what_is_beyond_every_object_or_in_no_order_is_refused(memory: SyncStorage) -> None:
    rows = rows_of("memory://a", 0, 16)
    rows.offset[2] = 2**63 - 1
    with pytest.raises(Corruption, match="past every possible object"):
        decode_rows(encode_rows(rows), 16)
    with pytest.raises(Corruption, match="a URL of 70000 bytes"):
        decode_rows(encode_rows(rows_of("s" * 70_000, 0, 16)), 16)
    good: dict[str, Any] = {"metadata": {"x/.zarray": v2((32,), (1,))}, "record_size": 1}
    for wrong in (
        {"shardstore": {"set": "a", "records": {"x": [[3, 4], [0, 1]]}}},
        {"record_size": float("inf")},
        {"metadata": {"x/.zarray": v2((10**30,), (1,))}},
    ):
        memory.put("refs/.zmetadata", json.dumps(good | wrong).encode())
        with pytest.raises(Corruption, match="metadata of a set"):
            open_set(f"{memory.storage.url}/refs").keys("")


def test_what_is_written_can_be_read() -> None:
    """However often rows name URLs, which are written once."""
    urls = [f"{number:>600}" for number in range(4096)]
    count = MOST_NBYTES // 500
    target = np.arange(count, dtype=np.int32) % len(urls)
    data = encode_rows(ReferenceRows(urls, target, np.ones(count, np.int64), np.ones(count, np.int64)))
    assert len(decode_rows(data, count)) == count
    wide = ReferenceRows(["u" * 50_000], np.zeros(50_000, np.int32), np.ones(50_000, np.int64), np.ones(50_000, np.int64))
    with pytest.raises(InvalidInput, match="smaller record_size"):
        encode_rows(wide)


def test_a_file_that_means_harm_fails_alone(memory: SyncStorage, server: WebServer) -> None:
    memory.put("data", DATA)
    url = f"{memory.storage.url}/data"
    memory.put("refs/.zmetadata", metadata({"x/.zarray": v2((64,), (1,))}))
    memory.put("refs/x/refs.0.parq", encode_rows(rows_of(url, 0, 16)))
    memory.put("refs/x/refs.1.parq", b"PAR1")
    memory.put("refs/x/refs.2.parq", encode_rows(rows_of(url, 0, 16))[:-100])
    rows = rows_of(url, 0, 16)
    rows.offset[3], rows.nbytes[4] = -4, 2**62
    memory.put("refs/x/refs.3.parq", encode_rows(rows))
    s = open_set(f"{memory.storage.url}/refs")
    outcomes = s.read_many(*(Read(f"x/{i}", (EVERYTHING,)) for i in (1, 17, 33, 49)))
    assert isinstance(outcomes[0], Found)
    for record, outcome in enumerate(outcomes[1:], 1):
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, Corruption)
        assert f"/refs/x/refs.{record}.parq" in str(outcome.error)
    server.objects["/s/.zmetadata"] = memory.get("refs/.zmetadata") or b""
    for tokens in ({}, {"file:///etc/passwd": "1"}):
        server.objects["/s/x/refs.0.parq"] = encode_rows(rows_of("file:///etc/passwd", 0, 16, tokens=tokens))
        with pytest.raises(InvalidInput, match="allow_protocols"):
            SyncStorage(open_storage(f"reference::{server.url}/s")).get("x/0")


# -- sets of other programs ----------------------------------------------------------------------------------------------


def values_of(fo: Path, path: str, **options: Any) -> NDArray[Any]:
    store = shardstore.open("reference://", storage_options={"fo": str(fo), **options})
    return np.asarray(zarr.open_array(store, path=path, mode="r")[...])


OLD_ENGINE = pytest.mark.filterwarnings("ignore:The 'fastparquet' engine is deprecated")


@OLD_ENGINE
@pytest.mark.parametrize("engine", ["fastparquet", "pyarrow"])
def test_a_set_of_fsspec(engine: str, tmp_path: Path) -> None:
    if engine == "fastparquet":
        pytest.importorskip("fastparquet")
    raw = np.arange(9 * 10, dtype="<u2").reshape(9, 10)
    (tmp_path / "data").write_bytes(b"head" + raw.tobytes())
    out = LazyReferenceMapper.create(str(tmp_path / "refs"), record_size=3, engine=engine)
    out[".zgroup"] = b'{"zarr_format": 2}'
    for path in ("x", "deep/er/x"):
        document = {**V2, "dtype": "<u2", "shape": [9, 10], "chunks": [1, 10], "fill_value": 0}
        out[f"{path}/.zarray"] = json.dumps(document).encode()
        for i in range(9):
            if i != 4:
                out[f"{path}/{i}.0"] = [f"file://{tmp_path}/data", 4 + 20 * i, 20]
    out.flush()
    expected = raw.copy()
    expected[4] = 0
    for path in ("x", "deep/er/x"):
        np.testing.assert_array_equal(values_of(tmp_path / "refs", path), expected)


@OLD_ENGINE
@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")
def test_sets_of_kerchunk(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    hdf = pytest.importorskip("kerchunk.hdf")
    df = pytest.importorskip("kerchunk.df")
    data = np.random.default_rng(1).integers(0, 50, (40, 60)).astype("<i4")
    with h5py.File(tmp_path / "a b.h5", "w") as file:
        file.create_dataset("x", data=data, chunks=(7, 11), compression="gzip", shuffle=True)
        file.create_dataset("g/y", data=data[0], chunks=(9,))
    refs = hdf.SingleHdf5ToZarr(str(tmp_path / "a b.h5"), inline_threshold=0).translate()
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    pytest.importorskip("fastparquet")
    df.refs_to_dataframe(refs, str(tmp_path / "refs.parquet"), record_size=10)
    for name in ("refs.json", "refs.parquet"):
        shown = open_references(tmp_path / name)
        assert set(SyncStorage(shown).keys("g/y/")) >= {f"g/y/{i}" for i in range(7)}
        np.testing.assert_array_equal(values_of(tmp_path / name, "x"), data)
        np.testing.assert_array_equal(values_of(tmp_path / name, "g/y"), data[0])
        shardstore.pack(
            "reference://", tmp_path / f"{name}.zarr", storage_options={"fo": str(tmp_path / name)}, chunks_per_shard=(2, 2), include="x"
        )
        np.testing.assert_array_equal(zarr.open_array(str(tmp_path / f"{name}.zarr"), path="x", mode="r")[...], data)
