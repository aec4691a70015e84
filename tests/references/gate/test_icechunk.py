"""Virtual references in repositories of icechunk: what they show, when they are refused, and when none are committed."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gcsfs
import icechunk
import numpy as np
import numpy.typing as npt
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore

import shardstore
from shardstore import references
from shardstore.errors import Conflict, Corruption, InvalidInput, NotFound, StorageError, Unsupported
from shardstore.format.chunk_keys import ChunkKeyEncoding, parse_chunk_key_encoding
from shardstore.model.ranges import ByteSuffix
from shardstore.opening.open import open_storage
from shardstore.references import ReferenceProgress, write_icechunk
from shardstore.testing.faults import Fail, Fault, FaultStorage
from tests import view
from tests.golden import FIXTURES, GoldenCase, golden_cases, handmade_cases
from tests.harness.gcs_emulator import gcs_emulator
from tests.storage.http.http_servers import WebServer

pytestmark = [pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")]

S3Url = tuple[str, dict[str, Any]]
Values = dict[str, npt.NDArray[Any]]

IS_2 = not icechunk.__version__.startswith("1.")
REFUSALS = (icechunk.IcechunkError, ValueError)


def access(prefix: str) -> Any:
    if prefix.startswith("file:"):
        return getattr(icechunk.credentials, "LocalFileSystemAccess", None)
    return icechunk.s3_credentials(access_key_id="test", secret_access_key="test")


def repository(place: Path | None, prefix: str, store: Any = None) -> Any:
    """A new repository that may refer to what is below ``prefix``, in memory if ``place`` is ``None``."""
    config = icechunk.RepositoryConfig.default()
    given = icechunk.local_filesystem_store(prefix.removeprefix("file://")) if store is None else store
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, given))
    storage = icechunk.in_memory_storage() if place is None else icechunk.local_filesystem_storage(str(place))
    credentials = icechunk.containers_credentials({prefix: access(prefix)})
    return icechunk.Repository.create(storage, config, authorize_virtual_chunk_access=credentials)


def on_files(folder: Path) -> Any:
    return repository(None, f"file://{folder}/")


def on_s3(s3_url: S3Url) -> Any:
    url, options = s3_url
    store = icechunk.s3_store(region="us-east-1", endpoint_url=options["endpoint_url"], allow_http=True, force_path_style=True)
    return repository(None, url.rpartition("/")[0] + "/", store)


def store_of(repository: Any, branch: str = "main") -> Any:
    return repository.readonly_session(branch).store


def commits(repository: Any) -> int:
    return len(list(repository.ancestry(branch="main")))


def document_of(store: Any, path: str = "") -> dict[str, Any] | None:
    data = sync(store.get(f"{path}/zarr.json".lstrip("/"), default_buffer_prototype()))
    return None if data is None else json.loads(data.to_bytes())


def chunks_of(store: Any, path: str, document: Mapping[str, Any]) -> dict[tuple[int, ...], bytes]:
    """The bytes of all chunks of an array that are there."""
    encoding = parse_chunk_key_encoding(document["chunk_key_encoding"])
    assert encoding is not None
    grid = [
        -(-size // chunk) for size, chunk in zip(document["shape"], document["chunk_grid"]["configuration"]["chunk_shape"], strict=True)
    ]
    found = {}
    for coords in np.ndindex(*grid):
        data = sync(store.get(f"{path}/{encoding.encode(coords)}".lstrip("/"), default_buffer_prototype()))
        if data is not None:
            found[coords] = data.to_bytes()
    return found


def storable(chunks: Mapping[tuple[int, ...], bytes]) -> dict[tuple[int, ...], bytes]:
    """The chunks that icechunk stores."""
    return {coords: data for coords, data in chunks.items() if data or not IS_2}


def check_same_bytes(source: Path, repository: Any, path: str = "") -> int:
    """Check that all arrays have the chunks, byte for byte, that the view of the source has; return the number of the chunks."""
    ours = shardstore.open(str(source), read_only=True)
    theirs = store_of(repository)
    count = 0
    for key, data in view.contents(ours).items():
        name = key.removesuffix("zarr.json").rstrip("/")
        if not key.endswith("zarr.json") or json.loads(data)["node_type"] != "array":
            continue
        there = document_of(theirs, f"{path}/{name}".strip("/"))
        assert there is not None
        assert parse_chunk_key_encoding(there["chunk_key_encoding"]) == ChunkKeyEncoding()
        if there["chunk_grid"] != json.loads(data)["chunk_grid"]:  # shards in shards: the view shows the outer ones' chunks
            continue
        expected = chunks_of(ours, name, json.loads(data))
        assert chunks_of(theirs, f"{path}/{name}".strip("/"), there) == {
            coords: data for coords, data in expected.items() if data or not IS_2
        }
        count += len(expected)
    return count


def make(place: Path | str, options: dict[str, Any] | None = None, *, size: int = 64) -> Values:
    """A hierarchy of all kinds of arrays, and its values; the largest has ``size`` times a few more elements."""
    store = shardstore.open(
        str(place), storage_options=options, chunks_per_shard={"g/a": (2, 2), "g/deep/many": (16, 16), "g/t": (2, 2), "*": "auto"}
    )
    values: Values = {}

    def add(name: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str = "i4", **named: Any) -> None:
        array = zarr.create_array(store, name=name, shape=shape, chunks=chunks, dtype=dtype, fill_value=7, **named)
        values[name] = (np.arange(int(np.prod(shape))).reshape(shape) % 120 + 8).astype(dtype)
        array[...] = values[name]

    zarr.create_group(store, attributes={"title": "all kinds"})
    add("g/a", (8, 7), (2, 2))
    add("g/deep/many", (size, size + 6), (2, 2), compressors=None)
    add("g/big", (9,), (2,), ">f8")
    add("g/t", (6, 4), (2, 2), filters=[zarr.codecs.TransposeCodec(order=(1, 0))])
    add("scalar", (), ())
    zarr.open_array(store, path="g/a")[2:4, 2:6] = 7
    values["g/a"][2:4, 2:6] = 7
    zarr.create_array(store, name="nothing", shape=(5,), chunks=(2,), dtype="i2", fill_value=-3)
    values["nothing"] = np.full(5, -3, "i2")
    zarr.create_array(store, name="none", shape=(0, 3), chunks=(2, 2), dtype="i2")
    values["none"] = np.empty((0, 3), "i2")
    return values


def check_values(store: Any, values: Values, path: str = "") -> None:
    for name, expected in values.items():
        array = zarr.open_array(store, path=f"{path}/{name}".strip("/"), mode="r")
        np.testing.assert_array_equal(array[...], expected)


# -- what is shown -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "inline_nbytes"), [("", 0), ("ours/x", 0), ("y", 20), ("z", 10**6)])
def test_all_kinds_of_arrays_are_read_as_by_the_source(tmp_path: Path, path: str, inline_nbytes: int) -> None:
    values = make(tmp_path / "data #?% x.zarr")
    target = on_files(tmp_path)
    steps: list[ReferenceProgress] = []
    report = write_icechunk(
        tmp_path / "data #?% x.zarr", target, path=path, inline_nbytes=inline_nbytes, message="all", progress=steps.append
    )
    check_values(store_of(target), values, path)
    assert check_same_bytes(tmp_path / "data #?% x.zarr", target, path) == report.references
    root = document_of(store_of(target), path)
    assert root is not None
    assert root["attributes"] == {"title": "all kinds"}
    assert document_of(store_of(target), "") is not None
    assert (report.format, report.flavour, report.arrays, report.left_out) == ("icechunk", "v3", 7, {})
    assert report.is_pinned
    assert report.missing == 2 + 3  # two chunks of g/a, all of nothing
    if inline_nbytes in (0, 10**6):
        assert report.inlined == (report.references if inline_nbytes else 0)
    else:
        assert 0 < report.inlined < report.references
    last = next(iter(target.ancestry(branch="main")))
    assert (last.id, last.message) == (report.snapshot, "all")
    assert steps[-1].references == report.references


@pytest.mark.night
@pytest.mark.parametrize("case", golden_cases(), ids=lambda case: case.name)
def test_shards_of_other_implementations_show_the_same_bytes_and_values(case: GoldenCase) -> None:
    target = on_files(FIXTURES)
    report = write_icechunk(case.store, target)
    assert report.references > 0
    assert check_same_bytes(case.store, target) in (report.references, 0)
    check_values(store_of(target), case.arrays)


@pytest.mark.night
@pytest.mark.parametrize("folder", sorted((FIXTURES / "transformer2022").glob("*/store")), ids=lambda folder: folder.parent.name)
def test_hierarchies_of_the_2022_draft_show_the_same_bytes(folder: Path) -> None:
    target = on_files(FIXTURES)
    report = write_icechunk(folder, target)
    assert check_same_bytes(folder, target) == report.references > 0


def test_unusual_shards_show_the_same_bytes_and_damaged_ones_are_left_out() -> None:
    cases = handmade_cases()
    folder = cases[0].store
    healthy = [case.path for case in cases if case.values is not None]
    damaged = [case.path for case in cases if case.values is None]
    target = on_files(FIXTURES)
    report = write_icechunk(folder, target, paths=dict.fromkeys(damaged))
    for path in healthy:
        expected = chunks_of(shardstore.open(str(folder), read_only=True), path, document_of(shardstore.open(str(folder)), path) or {})
        there = chunks_of(store_of(target), path, document_of(store_of(target), path) or {})
        assert there == storable(expected), path
    assert set(damaged) <= set(report.left_out)
    with pytest.raises(Corruption):
        write_icechunk(folder, target, path="all")
    report = write_icechunk(folder, target, path="all", on_error="skip")
    assert any("/c" in key for key in report.left_out)
    assert commits(target) == 3


def test_chunks_of_no_bytes_are_stored_or_left_out_and_reported(tmp_path: Path) -> None:
    array = zarr.create_array(LocalStore(tmp_path / "d"), shape=(6,), chunks=(2,), dtype="i4", fill_value=0)
    array[...] = 5
    (tmp_path / "d" / "c" / "1").write_bytes(b"")
    report = write_icechunk(tmp_path / "d", target := on_files(tmp_path))
    if IS_2:
        assert (report.references, report.missing) == (2, 1)
        assert "1 chunks of array '' have no bytes" in report.left_out["c/1"]
        np.testing.assert_array_equal(zarr.open_array(store_of(target), mode="r")[...], [5, 5, 0, 0, 5, 5])
    else:
        assert (report.references, report.missing, report.left_out) == (3, 0, {})
        assert sync(store_of(target).get("c/1", default_buffer_prototype())).to_bytes() == b""


@pytest.mark.parametrize("dtype", ["<i4", ">f8", "<U3"])
@pytest.mark.parametrize("separator", [".", "/"])
def test_unsharded_v2_arrays_are_read_as_v3(tmp_path: Path, dtype: str, separator: str) -> None:
    with np.errstate(all="ignore"):
        values = np.arange(12).reshape(4, 3).astype(dtype)
    group = zarr.create_group(LocalStore(tmp_path / "d"), zarr_format=2, attributes={"v": 2})
    encoding: Any = {"name": "v2", "separator": separator}
    for order in ("C", "F"):
        array = group.create_array(
            f"g/{order}", shape=(4, 3), chunks=(2, 2), dtype=dtype, order=order, chunk_key_encoding=encoding, attributes={"k": 1}
        )
        array[...] = values
    report = write_icechunk(tmp_path / "d", target := on_files(tmp_path))
    assert report.references == 8
    for order in ("C", "F"):
        array = zarr.open_array(store_of(target), path=f"g/{order}", mode="r", zarr_format=3)
        np.testing.assert_array_equal(array[...], values)
        assert dict(array.attrs) == {"k": 1}


def test_an_array_at_the_root_and_below_a_path(tmp_path: Path) -> None:
    store = shardstore.open(str(tmp_path / "d"), chunks_per_shard=(4,))
    zarr.create_array(store, shape=(10,), chunks=(2,), dtype="i4", fill_value=-1)[:9] = np.arange(9)
    target = on_files(tmp_path)
    write_icechunk(tmp_path / "d", target)
    write_icechunk(tmp_path / "d", below := on_files(tmp_path), path="deep/er")
    np.testing.assert_array_equal(zarr.open_array(store_of(below), path="deep/er", mode="r")[...], [*range(9), -1])
    np.testing.assert_array_equal(zarr.open_array(store_of(target), mode="r")[...], [*range(9), -1])
    with pytest.raises(InvalidInput, match="there is an array at ''"):
        write_icechunk(tmp_path / "d", target, path="below")


def test_whole_shards_and_arrays_that_are_left_out(tmp_path: Path) -> None:
    values = make(tmp_path / "d")
    report = write_icechunk(
        tmp_path / "d", target := on_files(tmp_path), paths={"g/deep/*": "shards", "g/big": None, "g/t": {"inline_nbytes": 100}}
    )
    del values["g/big"]
    check_values(store_of(target), values)
    document = document_of(store_of(target), "g/deep/many")
    assert document is not None
    assert [codec["name"] for codec in document["codecs"]] == ["sharding_indexed"]
    assert len(chunks_of(store_of(target), "g/deep/many", document)) == 6
    assert report.left_out == {"g/big": "as was asked for"}
    assert document_of(store_of(target), "g/big") is None
    assert report.inlined == 6


def test_each_index_is_read_by_one_request(tmp_path: Path) -> None:
    make(tmp_path / "d")
    storage = FaultStorage(open_storage(str(tmp_path / "d")))
    write_icechunk(storage, on_files(tmp_path))
    reads = Counter(request.key for request in storage.requests if request.operation == "read" and "/c" in request.key)
    shards = [path.relative_to(tmp_path / "d").as_posix() for path in (tmp_path / "d").rglob("c/**/*") if path.is_file()]
    assert set(reads) <= set(shards)
    assert set(reads.values()) == {1}
    assert all(isinstance(r.range, ByteSuffix) for r in storage.requests if r.operation == "read" and r.key in reads)
    assert not [request for request in storage.requests if request.operation == "stat"]


@pytest.mark.parametrize("is_saved", [True, False])
def test_the_lines_of_the_report_open_the_repository(tmp_path: Path, is_saved: bool) -> None:
    values = make(tmp_path / "d")
    target = repository(tmp_path / "repo", f"file://{tmp_path}/d/")
    if is_saved:
        target.save_config()
    report = write_icechunk(tmp_path / "d", target, path="here")
    if "save_config" in report.how_to_open:
        assert not is_saved
        target.save_config()
    found: dict[str, Any] = {}
    exec(report.how_to_open, found)
    check_values(found["session"].store, values, "here")
    assert isinstance(found["node"], zarr.Group)


# -- objects that are replaced -----------------------------------------------------------------------------------------


def test_a_replaced_file_is_refused_once_its_time_differs(tmp_path: Path) -> None:
    store = shardstore.open(str(tmp_path / "d"), chunks_per_shard=(4,))
    array = zarr.create_array(store, shape=(8,), chunks=(1,), dtype="i4", compressors=None)
    array[...] = np.arange(8)
    target, other = on_files(tmp_path), on_files(tmp_path)
    assert write_icechunk(tmp_path / "d", target).is_pinned
    assert not write_icechunk(tmp_path / "d", other, checksum=None).is_pinned
    shard = tmp_path / "d" / "c" / "0"
    later = shard.stat().st_mtime_ns + 2 * 10**9
    os.utime(shard, ns=(later, later))
    seen = zarr.open_array(store_of(target), mode="r")
    with pytest.raises(REFUSALS, match="checksum"):
        seen[:4]
    np.testing.assert_array_equal(seen[4:], np.arange(4, 8))
    np.testing.assert_array_equal(zarr.open_array(store_of(other), mode="r")[...], np.arange(8))


def test_a_time_of_a_whole_second_is_kept_as_it_is(tmp_path: Path) -> None:
    zarr.create_array(LocalStore(tmp_path / "d"), shape=(2,), chunks=(2,), dtype="i4")[...] = 1
    os.utime(tmp_path / "d" / "c" / "0", ns=(10**18, 10**18))
    write_icechunk(tmp_path / "d", target := on_files(tmp_path), checksum="last_modified")
    np.testing.assert_array_equal(zarr.open_array(store_of(target), mode="r")[...], [1, 1])
    os.utime(tmp_path / "d" / "c" / "0", ns=(10**18, 10**18 + 10**9))
    with pytest.raises(REFUSALS, match="checksum"):
        zarr.open_array(store_of(target), mode="r")[...]


@pytest.mark.night
@pytest.mark.parametrize("checksum", ["auto", "etag", "last_modified", None])
def test_all_kinds_of_arrays_on_s3(s3_url: S3Url, checksum: Any) -> None:
    url, options = s3_url
    values = make(url, options, size=4)
    target = on_s3(s3_url)
    report = write_icechunk(url, target, storage_options=options, checksum=checksum)
    check_values(store_of(target), values)
    assert report.is_pinned == (checksum is not None)


def test_odd_names_of_objects_on_s3(s3_url: S3Url) -> None:
    url, options = s3_url
    root = f"{url}/a #?% b+c"
    array = zarr.create_array(
        shardstore.open(root, storage_options=options, chunks_per_shard=(2,)), name="x y#", shape=(6,), chunks=(1,), dtype="i4"
    )
    array[...] = np.arange(6)
    target = on_s3(s3_url)
    write_icechunk(root, target, storage_options=options)
    np.testing.assert_array_equal(zarr.open_array(store_of(target), path="x y#", mode="r")[...], np.arange(6))


def test_a_replaced_object_on_s3_is_refused_and_its_bytes_are_known_again(s3_url: S3Url) -> None:
    url, options = s3_url
    array = zarr.create_array(
        shardstore.open(url, storage_options=options, chunks_per_shard=(4,)), shape=(8,), chunks=(1,), dtype="i4", compressors=None
    )
    array[...] = np.arange(8)
    target = on_s3(s3_url)
    write_icechunk(url, target, storage_options=options)
    storage = open_storage(url, options, transport="fsspec")
    fs: Any = storage.client.fs  # type: ignore[attr-defined]  # of S3Storage
    key = url.removeprefix("s3://") + "/c/0"
    before = fs.cat_file(key)
    seen = zarr.open_array(store_of(target), mode="r")
    np.testing.assert_array_equal(seen[...], np.arange(8))
    fs.pipe_file(key, before[:-1] + b"?")
    with pytest.raises(REFUSALS, match="checksum"):
        seen[:4]
    np.testing.assert_array_equal(seen[4:], np.arange(4, 8))
    fs.pipe_file(key, before)
    np.testing.assert_array_equal(seen[...], np.arange(8))


# -- of sets -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json", "parquet", "unpinned", "relative", "inline"])
def test_a_set_is_a_source(form: str, tmp_path: Path) -> None:
    values = make(tmp_path / "data #?% x.zarr")
    given: dict[str, dict[str, Any]] = {
        "json": {},
        "parquet": {"record_size": 7},
        "unpinned": {"pins": False},
        "relative": {"urls": "relative"},
        "inline": {"inline_nbytes": 20},
    }
    options = given[form]
    write = references.write_parquet if form == "parquet" else references.write_json
    of_set = write(tmp_path / "data #?% x.zarr", tmp_path / "set", **options)
    target = on_files(tmp_path)
    report = write_icechunk(f"reference::{tmp_path}/set", target, path="of/set")
    check_values(store_of(target), values, "of/set")
    assert report.references == of_set.references
    assert report.inlined == of_set.inlined
    assert (report.arrays, report.is_pinned, report.left_out) == (7, True, {})
    shard = next(path for path in (tmp_path / "data #?% x.zarr/g/a").rglob("*") if path.is_file() and path.name != "zarr.json")
    later = shard.stat().st_mtime_ns + 2 * 10**9
    os.utime(shard, ns=(later, later))
    with pytest.raises(REFUSALS):
        check_values(store_of(target), values, "of/set")
    if form in ("json", "parquet"):
        pinned = on_files(tmp_path)
        write_icechunk(f"reference::{tmp_path}/set", pinned)  # of the version that the set was made of
        with pytest.raises(REFUSALS):
            check_values(store_of(pinned), values)


def test_whole_objects_of_a_set_have_their_sizes(tmp_path: Path) -> None:
    values = np.arange(24, dtype="<i4").reshape(4, 6)
    for row in range(2):
        (tmp_path / f"row {row}").write_bytes(values[2 * row : 2 * row + 2].tobytes())
    document = {"zarr_format": 2, "shape": [4, 6], "chunks": [2, 6], "dtype": "<i4", "order": "C", "fill_value": 0, "compressor": None}
    refs = {f"{row}.0": [f"{tmp_path}/row {row}"] for row in range(2)}
    (tmp_path / "set.json").write_text(json.dumps({".zarray": json.dumps(document | {"filters": None})} | refs))
    target = on_files(tmp_path)
    assert write_icechunk(f"reference::{tmp_path}/set.json", target, checksum="last_modified").references == 2
    np.testing.assert_array_equal(zarr.open_array(store_of(target), mode="r")[...], values)
    (tmp_path / "row 1").unlink()
    with pytest.raises(Conflict, match="row 1"):
        write_icechunk(f"reference::{tmp_path}/set.json", on_files(tmp_path))


def test_a_set_of_objects_on_s3_has_their_etags(s3_url: S3Url) -> None:
    url, options = s3_url
    values = make(f"{url}/data.zarr", options, size=4)
    references.write_json(f"{url}/data.zarr", f"{url}/set.json", storage_options=options)
    target = on_s3((f"{url}/data.zarr", options))
    report = write_icechunk(f"reference::{url}/set.json", target, storage_options=options, checksum="etag")
    assert report.is_pinned
    check_values(store_of(target), values)
    array = zarr.open_array(shardstore.open(f"{url}/data.zarr", storage_options=options), path="g/a")
    array[...] = array[...]
    array[0] = 1
    with pytest.raises(REFUSALS):
        check_values(store_of(target), values)


def test_sets_that_icechunk_cannot_follow_are_refused(tmp_path: Path) -> None:
    document = {"zarr_format": 2, "shape": [2], "chunks": [1], "dtype": "|u1", "order": "C", "fill_value": 0, "compressor": None}
    target = on_files(tmp_path)
    for url in ("memory://a", "s3://bucket/a?versionId=5", "gs://bucket/a#17", "zip://a::file:///b.zip"):
        (tmp_path / "set.json").write_text(json.dumps({"x/.zarray": json.dumps(document | {"filters": None}), "x/0": [url, 0, 1]}))
        with pytest.raises(InvalidInput, match="icechunk does not read"):
            write_icechunk(f"reference::{tmp_path}/set.json", target, checksum=None)
    with pytest.raises(InvalidInput, match="base_url is for hierarchies"):
        write_icechunk(f"reference::{tmp_path}/set.json", target, base_url="s3://b")
    assert commits(target) == 1


# -- what is refused, and what is committed ----------------------------------------------------------------------------


def test_references_outside_of_the_containers_are_refused_and_the_lines_of_the_error_mend_it(tmp_path: Path) -> None:
    values = make(tmp_path / "sub d#" / "data")
    target = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    with pytest.raises(InvalidInput, match=r"refuses a reference to file:///.*so that it was not set") as caught:
        write_icechunk(tmp_path / "sub d#" / "data", target)
    assert commits(target) == 1
    found: dict[str, Any] = {"icechunk": icechunk, "repository": target}
    exec(str(caught.value).partition("add one:\n")[2], found)
    report = write_icechunk(tmp_path / "sub d#" / "data", found["repository"])
    exec(report.how_to_open, found)
    check_values(found["session"].store, values)


def test_after_a_failure_at_any_request_nothing_is_committed(tmp_path: Path) -> None:
    make(tmp_path / "d")
    for at in itertools.count(1):
        target = on_files(tmp_path)
        storage = FaultStorage(open_storage(str(tmp_path / "d")), [Fault(at, Fail())])
        try:
            write_icechunk(storage, target)
        except StorageError:
            assert commits(target) == 1
            assert document_of(store_of(target)) is None
        else:
            assert commits(target) == 2
        if not storage.struck:
            break
    assert at > 8
    assert commits(target) == 2


def test_a_session_of_a_failure_has_no_changes_but_those_of_others(tmp_path: Path) -> None:
    make(tmp_path / "d")
    target = on_files(tmp_path)
    fault = Fault(3, Fail(), frozenset({"read"}), "*/c/*")
    session = target.writable_session("main")
    with pytest.raises(StorageError, match="planned"):
        write_icechunk(FaultStorage(open_storage(str(tmp_path / "d")), [fault]), session)
    assert not session.has_uncommitted_changes
    zarr.create_group(session.store, path="mine")
    with pytest.raises(StorageError, match="planned") as caught:
        write_icechunk(FaultStorage(open_storage(str(tmp_path / "d")), [fault]), session)
    assert "do not commit it" in caught.value.__notes__[0]
    assert document_of(session.store, "mine") is not None


def test_a_session_is_left_to_its_owner(tmp_path: Path) -> None:
    values = make(tmp_path / "d")
    target = on_files(tmp_path)
    session = target.writable_session("main")
    zarr.create_group(session.store, path="mine")
    report = write_icechunk(tmp_path / "d", session, path="theirs", commit=False)
    assert report.snapshot is None
    assert commits(target) == 1
    check_values(session.store, values, "theirs")
    session.commit("both")
    check_values(store_of(target), values, "theirs")
    found: dict[str, Any] = {"storage": target.storage}
    target.save_config()
    exec(report.how_to_open, found)
    check_values(found["session"].store, values, "theirs")
    with pytest.raises(InvalidInput, match="read-only"):
        write_icechunk(tmp_path / "d", target.readonly_session("main"))


def test_another_commit_in_between_is_a_conflict(tmp_path: Path) -> None:
    make(tmp_path / "d")
    target = on_files(tmp_path)

    def interfere(_: ReferenceProgress) -> None:
        if commits(target) == 1:
            other = target.writable_session("main")
            zarr.create_group(other.store, path="other")
            other.commit("other")

    with pytest.raises(Conflict, match="'main' first"):
        write_icechunk(tmp_path / "d", target, progress=interfere)
    assert commits(target) == 2
    assert document_of(store_of(target), "g/a") is None


def test_nodes_are_replaced_only_when_that_is_asked_for(tmp_path: Path) -> None:
    values = make(tmp_path / "d")
    target = on_files(tmp_path)
    session = target.writable_session("main")
    zarr.create_group(session.store, attributes={"title": "another"})
    zarr.create_array(session.store, name="g/a/inner", shape=(1,), chunks=(1,), dtype="i4")
    zarr.create_array(session.store, name="g/deep", shape=(1,), chunks=(1,), dtype="i4")
    zarr.create_array(session.store, name="scalar", shape=(9,), chunks=(1,), dtype="i4")[...] = 1
    zarr.create_array(session.store, name="g/other", shape=(2,), chunks=(1,), dtype="i4")[...] = 1
    assert (document_of(session.store, "g") or {})["attributes"] == {}
    session.commit("there")
    with pytest.raises(InvalidInput, match=r"4 nodes at the same paths, such as '', 'g/a', 'g/deep', 'scalar'"):
        write_icechunk(tmp_path / "d", target)
    assert commits(target) == 2
    write_icechunk(tmp_path / "d", target, overwrite=True)
    check_values(store_of(target), values | {"g/other": np.ones(2, "i4")})
    root = document_of(store_of(target))
    assert root is not None
    assert root["attributes"] == {"title": "all kinds"}
    assert document_of(store_of(target), "g/a/inner") is None
    write_icechunk(tmp_path / "d", target, overwrite=True)
    check_values(store_of(target), values)


def test_another_branch(tmp_path: Path) -> None:
    values = make(tmp_path / "d")
    target = on_files(tmp_path)
    with pytest.raises(NotFound, match="no branch 'new': it has 'main'"):
        write_icechunk(tmp_path / "d", target, branch="new")
    target.create_branch("new", target.lookup_branch("main"))
    write_icechunk(tmp_path / "d", target, branch="new")
    check_values(store_of(target, "new"), values)
    assert commits(target) == 1


def test_another_url_of_the_objects(tmp_path: Path) -> None:
    values = make(tmp_path / "d")
    (tmp_path / "moved").symlink_to(tmp_path / "d")
    target = repository(None, f"file://{tmp_path}/moved/")
    report = write_icechunk(tmp_path / "d", target, base_url=f"file://{tmp_path}/moved")
    check_values(store_of(target), values)
    assert not report.is_pinned


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"checksum": "md5"}, "not one of 'auto'"),
        ({"checksum": "etag"}, "on S3 only"),
        ({"checksum": "last_modified", "base_url": "https://x/y"}, "with base_url"),
        ({"base_url": "ftp://x/y"}, "icechunk does not read objects at ftp://x/y"),
        ({"on_error": "ignore"}, "neither 'raise' nor 'skip'"),
        ({"paths": {"g/a": {"flavour": "v2"}}}, "documents of v3 only"),
        ({"commit": False}, "is for a session"),
        ({"commit": 1}, "commit"),
        ({"path": "../x"}, "segment"),
        ({"path": "/x"}, "relative"),
        ({"inline_nbytes": -1}, "not a number of bytes"),
        ({"paths": {"misspelt": None}}, "'misspelt' matches the path of no array"),
        ({"paths": {"g/misspelt*": "shards"}}, "matches the path of no array"),
    ],
)
def test_arguments_that_cannot_be_right(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    make(tmp_path / "d")
    target = on_files(tmp_path)
    with pytest.raises(InvalidInput, match=message):
        write_icechunk(tmp_path / "d", target, **arguments)
    assert commits(target) == 1


def test_what_icechunk_cannot_read_is_refused(tmp_path: Path) -> None:
    make("memory://for-icechunk/d")
    with pytest.raises(InvalidInput, match="icechunk does not read objects at memory:"):
        write_icechunk("memory://for-icechunk/d", on_files(tmp_path))
    with pytest.raises(InvalidInput, match="not of type str"):
        write_icechunk("memory://for-icechunk/d", str(tmp_path))  # type: ignore[arg-type]  # what a user may give
    with pytest.raises(NotFound, match="no Zarr hierarchy"):
        write_icechunk(tmp_path / "empty", on_files(tmp_path))


def test_a_store_of_zarr_is_read_as_the_place_that_it_names(tmp_path: Path) -> None:
    values = make(tmp_path / "d")
    target = on_files(tmp_path)
    write_icechunk(LocalStore(tmp_path / "d"), target)
    check_values(store_of(target), values)
    with pytest.raises(InvalidInput, match="no reference can lead into"):
        write_icechunk(zarr.storage.MemoryStore(), on_files(tmp_path / "other"))


def test_icechunk_is_imported_when_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, shardstore.references; sys.exit('icechunk' in sys.modules or 'zarr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    monkeypatch.setitem(sys.modules, "icechunk", None)
    with pytest.raises(Unsupported, match=r"pip install 'shardstore\[icechunk]'"):
        write_icechunk("x", None)  # type: ignore[arg-type]  # it is not looked at


# -- other kinds of storage --------------------------------------------------------------------------------------------


def test_objects_on_gcs_are_read_and_have_times() -> None:
    """The emulator does not look at If-Unmodified-Since: what icechunk makes of the times is not tested here."""
    with gcs_emulator(with_xml=True) as endpoint:
        options = {"token": "anon", "endpoint_url": endpoint, "project": "test"}
        bucket = f"bucket-{uuid.uuid4().hex}"
        gcsfs.GCSFileSystem(**options).call("POST", "b", project="test", json={"name": bucket})
        values = make(f"gs://{bucket}/root", options, size=4)
        store = icechunk.gcs_store({"base_url": endpoint, "skip_signature": "true", "allow_http": "true"})
        config = icechunk.RepositoryConfig.default()
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(f"gs://{bucket}/", store))
        credentials = icechunk.containers_credentials({f"gs://{bucket}/": icechunk.gcs_credentials(anonymous=True)})
        target = icechunk.Repository.create(icechunk.in_memory_storage(), config, authorize_virtual_chunk_access=credentials)
        report = write_icechunk(f"gs://{bucket}/root", target, storage_options=options)
        assert report.is_pinned
        check_values(store_of(target), values)


@pytest.mark.skipif(not IS_2, reason="icechunk 1 matches no URL that has a port with a container")
@pytest.mark.parametrize("etag", ["strong", "weak", "none"])
def test_objects_behind_http_are_read_on_condition_of_their_date(tmp_path: Path, etag: str) -> None:
    values = make(tmp_path, size=4)
    server = WebServer()
    try:
        server.behaviour.pages = True
        server.behaviour.etag = etag
        server.objects = {f"/a #/{file.relative_to(tmp_path)}": file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
        config = icechunk.RepositoryConfig.default()
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(f"{server.url}/", icechunk.http_store({"allow_http": "true"})))
        credentials = icechunk.containers_credentials({f"{server.url}/": getattr(icechunk.credentials, "HttpAccess")})  # noqa: B009  # of 2 only
        target = icechunk.Repository.create(icechunk.in_memory_storage(), config, authorize_virtual_chunk_access=credentials)
        assert write_icechunk(f"{server.url}/a%20%23", target).is_pinned
        server.asked.clear()
        check_values(store_of(target), values)
        assert {one.headers.get("if-unmodified-since") for one in server.asked} == {"Tue, 02 Jan 2024 03:04:05 GMT"}
    finally:
        server.close()
