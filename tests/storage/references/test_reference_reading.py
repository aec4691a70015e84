"""Sets of references: how what they lead to is read: requests, versions, and errors that name what is wrong."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import pickle
import time
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
import zarr

import shardstore
from shardstore.errors import Conflict, Corruption, InvalidInput, ReadOnly, ShardStoreError, StorageError
from shardstore.format.references.pins import PinnedObject, PinnedStore, SetDigest, encode_pins
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteSuffix
from shardstore.opening.location import location_of
from shardstore.opening.open import open_storage
from shardstore.storage.base import CHANGED, UNKNOWN_NBYTES, Failed, Found, Read
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.storage_suite import SyncStorage, on_io_loop, values
from tests.golden import FIXTURES
from tests.harness.own_memory import OwnMemory
from tests.maintenance.packing.sources import references
from tests.storage.http.http_servers import Asked, WebServer
from tests.storage.references.reference_sets import counted_targets, open_references, open_set, write_set

DATA = bytes(range(256)) * 100


def error_of(s: SyncStorage, key: str, *, kind: type[ShardStoreError] = ShardStoreError) -> str:
    with pytest.raises(kind) as caught:
        s.get(key)
    return str(caught.value)


# -- goldens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "folder", sorted(path.parent for path in (FIXTURES / "kerchunk").glob("*/expected_refs.json")), ids=lambda p: p.name
)
def test_every_fixture_without_options(folder: Path) -> None:
    references(folder)  # puts its targets into memory
    description = json.loads((folder / "case.json").read_text())
    s = open_set(folder / description["refs"])
    expected = json.loads((folder / "expected_refs.json").read_text())
    if (folder / "targets").is_dir():
        found = {key: s.get(key) for key in s.keys()}  # noqa: SIM118 - no mapping
        assert set(found) == set(expected)
        for key, reference in expected.items():
            if "url" in reference:
                target = (folder / "targets" / reference["url"].rpartition("fx/")[2]).read_bytes()
                start = reference.get("offset", 0)
                assert found[key] == target[start : start + reference.get("length", len(target))], key
    for key, reference in expected.items():
        info = s.stat(key)
        assert info is not None
        assert "length" not in reference or info.nbytes == reference["length"]


# -- requests ----------------------------------------------------------------------------------------------------------


def test_neighbouring_chunks_of_one_object_share_requests(memory: SyncStorage) -> None:
    memory.put("a", DATA)
    url = f"{memory.storage.url}/a"
    storage = open_references({f"c/{i}": [url, 25 * i, 25] for i in range(1000)})
    calls = counted_targets(storage)
    outcomes = on_io_loop(storage.read([Read(f"c/{i}", (EVERYTHING,)) for i in reversed(range(1000))]))
    found = [values(outcome)[0] for outcome in outcomes if isinstance(outcome, Found)]
    assert found == [DATA[25 * i : 25 * i + 25] for i in reversed(range(1000))]
    assert [[len(read.ranges) for read in call] for call in calls] == [[1]]


def test_each_storage_is_asked_once_for_a_batch(memory: SyncStorage, tmp_path: Path) -> None:
    for name in ("a", "b"):
        memory.put(name, DATA)
        (tmp_path / name).write_bytes(DATA)
    refs: dict[str, Any] = {"inline": "text"}
    for place in (memory.storage.url, f"file://{tmp_path}"):
        for name in ("a", "b"):
            refs |= {f"{len(refs)}/{i}": [f"{place}/{name}", 1000 * i, 10] for i in range(20)}
            refs[f"{len(refs)}/all"] = [f"{place}/{name}"]
    storage = open_references(refs, max_gap=100)
    calls = counted_targets(storage)
    outcomes = on_io_loop(storage.read([Read(key, (ByteRange(2, 5), ByteSuffix(1))) for key in refs]))
    for value, outcome in zip(refs.values(), outcomes, strict=True):
        data = value.encode() if isinstance(value, str) else DATA if len(value) == 1 else DATA[value[1] : value[1] + 10]
        assert isinstance(outcome, Found)
        assert (values(outcome), outcome.nbytes) == ([data[2:5], data[-1:]], len(data))
    assert sorted(len(call) for call in calls) == [4, 4]
    assert {len(read.ranges) for call in calls for read in call} == {2, 20}


def test_a_set_in_json_and_its_pins_are_one_round(server: WebServer) -> None:
    server.objects |= {"/x/refs.json": json.dumps({"a": [f"{server.url}/x/data", 5, 10]}).encode(), "/x/data": DATA}
    s = SyncStorage(open_storage(f"reference::{server.url}/x/refs.json"))
    assert sorted(asked.path for asked in server.asked) == ["/x/refs.json", "/x/refs.json.pins"]
    server.asked.clear()
    assert s.get("a") == DATA[5:15]
    assert server.methods() == ["GET bytes=5-14"]
    server.asked.clear()
    open_storage(f"reference::{server.url}/x/refs.json", {"pins": False})
    assert [asked.path for asked in server.asked] == ["/x/refs.json"]


@pytest.mark.gate
def test_a_large_set_is_read_in_pieces_of_one_version(server: WebServer) -> None:
    text = json.dumps({f"c/{i}": [f"{server.url}/x/data", i, 10] for i in range(200_000)}).encode()
    assert 8 << 20 < len(text) < 16 << 20
    server.objects |= {"/x/refs.json": text, "/x/data": DATA}
    url = f"reference::{server.url}/x/refs.json"
    s = SyncStorage(open_storage(url))
    assert [asked.range for asked in server.asked if asked.path.endswith("json")] == ["bytes=0-8388607", "bytes=8388608-16777215"]
    assert s.get("c/1000") == DATA[1000:1010]
    assert len(s.infos("c/1999")) == 111

    def replace(asked: Asked) -> None:
        if asked.range == "bytes=8388608-16777215":
            server.objects["/x/refs.json"] = text[:-1] + b" "

    server.before = replace
    with pytest.raises(StorageError, match="was replaced while it was being read"):
        open_storage(url)


def test_listing_asks_nothing_of_ranges(memory: SyncStorage) -> None:
    memory.put("a", DATA)
    url = f"{memory.storage.url}/a"
    storage = open_references({"x/0": [url, 0, 7], "x/1": "text", "y/0": [url], "y/z/1": [url, 1, 2], "gone": [f"{url}-not", 3, 4]})
    calls = counted_targets(storage)
    s = SyncStorage(storage)
    assert [(info.key, info.nbytes) for info in s.infos()] == [("gone", 4), ("x/0", 7), ("x/1", 4), ("y/0", len(DATA)), ("y/z/1", 2)]
    assert s.children("y/") == (["y/0"], ["y/z/"])
    assert s.children() == (["gone"], ["x/", "y/"])
    assert calls == []


# -- versions ----------------------------------------------------------------------------------------------------------


def test_a_generation_is_honoured(memory: SyncStorage) -> None:
    memory.put("shard", DATA)
    url = f"{memory.storage.url}/shard"
    s = open_set({"whole": [url], "part": [url, 100, 50], "inline": "text"})
    for key, nbytes in (("whole", len(DATA)), ("part", 50)):
        first = s.read(key, ByteSuffix(4))
        assert isinstance(first, Found)
        assert isinstance(s.read(key, ByteRange(1, 3), generation=first.generation), Found)
        memory.put("shard", DATA[::-1])
        assert s.read(key, ByteRange(1, 3), generation=first.generation) == CHANGED
        assert s.read(key, EVERYTHING, generation=Generation("made-up")) == CHANGED
        again = s.read(key, EVERYTHING)
        assert isinstance(again, Found)
        assert (again.nbytes, again.generation == first.generation) == (nbytes, False)
        memory.put("shard", DATA)
    inline = s.read("inline", EVERYTHING)
    assert isinstance(inline, Found)
    assert isinstance(s.read("inline", EVERYTHING, generation=inline.generation), Found)
    assert s.read("inline", EVERYTHING, generation=Generation("made-up")) == CHANGED


def pinned_set(directory: Path, storage: Any, refs: dict[str, Any], keys: list[str], name: str = "refs.json") -> Path:
    """A set whose objects, ``keys`` of ``storage``, are pinned at the versions that they have now."""
    s = SyncStorage(storage)
    objects = []
    for key in keys:
        first = s.read(key)
        assert isinstance(first, Found)
        s.read(key, generation=first.generation)  # waits until the version has a name that lasts
        found = s.read(key)
        assert isinstance(found, Found)
        objects.append(PinnedObject(key, found.generation.token, found.nbytes))
    path = write_set(directory / name, refs)
    origin = PinnedStore(storage.url, storage.url + "/")
    (directory / f"{name}.pins").write_bytes(encode_pins(origin, SetDigest(0, 0).extended(path.read_bytes()), objects))
    return path


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_a_pinned_object_that_changed_is_a_conflict_and_never_other_bytes(kind: str, memory: SyncStorage, tmp_path: Path) -> None:
    storage = memory.storage if kind == "memory" else LocalStorage(tmp_path / "data")
    s = SyncStorage(storage)
    for key in ("a", "b"):
        s.put(key, DATA)
    refs = {"x/0": [f"{storage.url}/a", 10, 20], "x/1": [f"{storage.url}/b", 10, 20], "y": [f"{storage.url}/a"]}
    path = pinned_set(tmp_path, storage, refs, ["a", "b"])
    shown = open_set(path)
    first = shown.read("x/0", EVERYTHING)
    assert isinstance(first, Found)
    assert values(first) == [DATA[10:30]]
    s.put("a", DATA[::-1])
    outcomes = shown.read_many(*(Read(key, (EVERYTHING,)) for key in ("x/0", "x/1", "y")), Read("x/0", (EVERYTHING,), first.generation))
    assert [type(outcome) for outcome in outcomes] == [Failed, Found, Failed, Failed]
    for outcome, key in zip((outcomes[0], outcomes[2]), ("x/0", "y"), strict=True):
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, Conflict)
        for words in (repr(key), f"{storage.url}/a has changed", "refs.json", "shardstore refs update"):
            assert words in str(outcome.error)
    assert open_set(path, pins=False).get("x/0") == DATA[::-1][10:30]


def test_a_name_or_mode_of_a_pinned_file_is_no_change(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "data")
    SyncStorage(storage).put("a", DATA)
    path = pinned_set(tmp_path, storage, {"x": [f"{storage.url}/a", 10, 20], "y": [f"{storage.url}/a"]}, ["a"])
    s = open_set(path)
    before = s.read("x", EVERYTHING)
    time.sleep(0.02)
    os.chmod(tmp_path / "data/a", 0o600)
    os.link(tmp_path / "data/a", tmp_path / "data/other name")
    after = s.read("x", EVERYTHING)
    assert after == before
    assert isinstance(after, Found)
    assert s.get("y") == DATA
    assert isinstance(s.read("x", EVERYTHING, generation=after.generation), Found)
    os.utime(tmp_path / "data/a")
    assert "has changed" in error_of(s, "x", kind=Conflict)


def test_pins_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    path = write_set(tmp_path / "refs.json", {"a": "1"})
    (tmp_path / "refs.json.pins").write_bytes(b"no pins")
    with pytest.raises(Corruption, match=r"refs\.json: the pins"):
        open_set(path)
    assert open_set(path, pins=False).get("a") == b"1"


def test_a_sharded_array_behind_whole_files_is_read_of_one_version(tmp_path: Path) -> None:
    store = shardstore.open(tmp_path / "data.zarr", chunks_per_shard=(4,))
    array = zarr.create_array(store, name="a", shape=(16,), chunks=(2,), dtype="i4", compressors=None, fill_value=0)
    array[...] = np.arange(16)
    refs: dict[str, Any] = {
        path.relative_to(tmp_path / "data.zarr").as_posix(): [str(path)] for path in (tmp_path / "data.zarr").rglob("c/*")
    }
    refs["a/zarr.json"] = json.loads((tmp_path / "data.zarr/a/zarr.json").read_text())
    shown = zarr.open_array(shardstore.open("reference://", storage_options={"fo": refs}), path="a", mode="r")
    np.testing.assert_array_equal(shown[...], np.arange(16))
    array[...] = np.arange(16) * 2
    np.testing.assert_array_equal(shown[...], np.arange(16) * 2)


# -- faults ------------------------------------------------------------------------------------------------------------


def test_a_reference_past_the_end_is_an_error_that_names_it(memory: SyncStorage) -> None:
    memory.put("a", b"12345")
    url = f"{memory.storage.url}/a"
    s = open_set({"good": [url, 1, 3], "past": [url, 3, 3], "far": [url, 2**62, 5], "huge": [url, 0, 2**62]})
    outcomes = s.read_many(*(Read(key, (ByteRange(0, 2),)) for key in ("good", "past", "far", "huge")))
    assert [type(outcome) for outcome in outcomes] == [Found, Failed, Failed, Failed]
    for key, place in (("past", r"[3, 6)"), ("far", f"[{2**62}, "), ("huge", f"[0, {2**62})")):
        message = error_of(s, key, kind=Corruption)
        assert f"{key!r} to bytes {place}" in message
        assert f"{url}, but it has 5" in message


def test_what_is_not_there_is_an_error_and_no_absent_chunk(memory: SyncStorage, tmp_path: Path) -> None:
    s = open_set({"a": [f"{memory.storage.url}/none", 1, 3], "b": [f"file://{tmp_path}/none"], "c": ["base64:x"], "d": "base64:a"})
    for key in ("a", "b"):
        assert f"refers for {key!r} to what is not there, " in error_of(s, key, kind=StorageError)
    with pytest.raises(StorageError, match="refers for 'b' to what is not there, "):
        s.stat("b")
    assert [(info.key, info.nbytes) for info in s.infos("b")] == [("b", UNKNOWN_NBYTES)]
    assert "'d'" in error_of(s, "d", kind=Corruption)
    assert s.get("e") is None
    assert s.stat("e") is None
    for attempt in (lambda: s.put("a", b"1"), lambda: s.delete("a"), lambda: s.delete_many("a"), lambda: s.copy("a", "b")):
        with pytest.raises(ReadOnly):
            attempt()


def test_most_bytes_of_a_document(memory: SyncStorage) -> None:
    memory.put("a", DATA)
    url = f"{memory.storage.url}/a"
    s = open_set({"part": [url, 0, 2000], "inline": "x" * 2000})
    for key in ("part", "inline"):
        (outcome,) = s.read_many(Read(key, (EVERYTHING,), most_nbytes=1000))
        assert isinstance(outcome, Failed)


# -- where references lead ---------------------------------------------------------------------------------------------


def test_names_are_taken_raw(tmp_path: Path, server: WebServer, memory: SyncStorage) -> None:
    for name in ("a b#c?d%20e", "ü%zz", "[x]*"):
        (tmp_path / name).write_bytes(name.encode())
        memory.put(name, name.encode())
        urls = [f"file://{tmp_path}/{name}", f"{tmp_path}/{name}", name, f"{memory.storage.url}/{name}"]
        s = open_set(write_set(tmp_path / "refs.json", {str(i): [url, 0, len(name.encode())] for i, url in enumerate(urls)}))
        assert [s.get(str(i)) for i in range(len(urls))] == [name.encode()] * len(urls)
    server.objects |= {"/x/a b%": b"quoted", "/x/é#": b"raw"}
    s = open_set({"a": [f"{server.url}/x/a%20b%25", 0, 6], "b": [f"{server.url}/x/é#"], "c": [f"{server.url}/x/a b%?token=1"]})
    assert [s.get(key) for key in "abc"] == [b"quoted", b"raw", b"quoted"]
    assert server.asked[-1].path.endswith("?token=1")


def test_relative_urls_are_relative_to_the_set(tmp_path: Path, server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sets").mkdir()
    (tmp_path / "data").write_bytes(DATA)
    (tmp_path / "sets/near").write_bytes(DATA[1:])
    refs: dict[str, Any] = {"a": ["../data", 0, 9], "b": ["near", 0, 9], "c": ["./x/../near"]}
    path = write_set(tmp_path / "sets/refs.json", refs)
    for fo in (str(path), f"file://{path}"):
        s = open_set(fo)
        assert [s.get(key) for key in "abc"] == [DATA[:9], DATA[1:10], DATA[1:]]
    monkeypatch.chdir(tmp_path / "sets")
    assert open_set("refs.json").get("a") == DATA[:9]
    assert open_set(refs).get("b") == DATA[1:10]  # of a dictionary, as fsspec: to the working directory
    server.objects |= {"/x/sets/refs.json": path.read_bytes(), "/x/data": DATA, "/x/sets/near": DATA[1:]}
    s = SyncStorage(open_storage(f"reference::{server.url}/x/sets/refs.json"))
    assert [s.get(key) for key in "abc"] == [DATA[:9], DATA[1:10], DATA[1:]]
    server.objects["/x/sets/refs.json"] = json.dumps({"a": ["../../../../etc/passwd", 0, 9]}).encode()
    s = SyncStorage(open_storage(f"reference::{server.url}/x/sets/refs.json"))
    assert "leads above the directory" in error_of(s, "a", kind=Corruption)


def test_urls_without_protocol_are_of_remote_protocol(memory: SyncStorage) -> None:
    memory.put("a", DATA)
    path = memory.storage.url.removeprefix("memory:/")
    for url in (f"{path}/a", f"{path[1:]}/a"):
        assert open_set({"x": [url, 5, 10]}, remote_protocol="memory").get("x") == DATA[5:15]


def test_the_target_of_references_without_url(memory: SyncStorage) -> None:
    memory.put("a", DATA)
    refs = {"x": [None, 5, 10], "y": [None]}
    s = open_set(refs, target=f"{memory.storage.url}/a")
    assert (s.get("x"), s.get("y")) == (DATA[5:15], DATA)
    assert "name its object by storage_options" in error_of(open_set(refs), "x", kind=InvalidInput)


def test_options_reach_the_storages_of_targets(server: WebServer, tmp_path: Path) -> None:
    server.objects |= {"/x/data": DATA, "/x/refs.json": b"{}"}
    server.headers_wanted = {"X-Token": "mine"}
    headers = {"headers": {"X-Token": "mine"}, "skip_instance_cache": True}
    url = f"{server.url}/x/data"
    path = write_set(tmp_path / "refs.json", {"a": [url, 5, 10]})
    server.objects["/x/refs.json"] = path.read_bytes()
    local, remote = f"reference::file://{path}", f"reference::{server.url}/x/refs.json"
    for target, options in (
        (local, {"reference": {"remote_protocol": "http", "remote_options": headers}}),
        (local, {"remote_options": headers}),
        (local, {"http": headers}),
        (local, {"reference": {"fs": {"http": headers}}}),
        (local, {"fs": fsspec.filesystem("http", **headers)}),
        (remote, {"http": headers}),
        ("reference://", {"fo": f"{server.url}/x/refs.json", "target_options": headers}),
    ):
        assert SyncStorage(open_storage(target, options)).get("a") == DATA[5:15], (target, list(options))
    with pytest.raises(StorageError):
        SyncStorage(open_storage(local)).get("a")


def test_a_filesystem_of_the_users(tmp_path: Path) -> None:
    own = OwnMemory()
    own.pipe_file("/deep/a", DATA)
    for fs in (own, {"memory": own}):
        s = open_set({"x": ["memory://deep/a", 5, 10], "y": ["memory:///deep/a"]}, fs=fs)
        assert (s.get("x"), s.get("y")) == (DATA[5:15], DATA)


def test_chains(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("in/data", DATA)
        archive.writestr("in/refs.json", json.dumps({"a": ["data", 5, 10], "b": [f"zip://in/data::file://{tmp_path}/a.zip", 5, 10]}))
    s = SyncStorage(open_storage(f"reference::zip://in/refs.json::file://{tmp_path}/a.zip"))
    assert (s.get("a"), s.get("b")) == (DATA[5:15], DATA[5:15])


def test_options_with_values_that_cannot_be_right(tmp_path: Path) -> None:
    for options in ({"pins": "no"}, {"allow_protocols": 3}, {"remote_options": "anon"}, {"fs": "s3"}, {"cache_bytes": "1"}):
        with pytest.raises(InvalidInput, match=next(iter(options))):
            open_set({}, **options)
    with pytest.raises(InvalidInput, match=r"did you mean storage_options=\{'reference': \{'allow_protocols'"):
        open_set({}, allow_protocol="file")
    for fo in (3, None, ["x"]):
        with pytest.raises(InvalidInput, match="neither a path"):
            open_set(fo)


# -- the storage itself ------------------------------------------------------------------------------------------------


def test_it_is_told_from_others_and_can_be_pickled(tmp_path: Path) -> None:
    path = write_set(tmp_path / "refs.json", {"sub/a": "1", "b": "2"})
    url = f"reference::file://{path}"
    storage = open_storage(url)
    assert (storage.kind, storage.url, storage.capabilities.static, storage.capabilities.pinned_reads) == ("references", url, True, False)
    copy = pickle.loads(pickle.dumps(storage))
    assert copy == storage
    assert hash(copy) == hash(storage)
    assert copy.identity == storage.identity == open_storage(url, {"skip_instance_cache": True}).identity  # type: ignore[attr-defined]  # of this kind
    assert SyncStorage(copy).keys() == ["b", "sub/a"]
    others = [open_storage(url, {"pins": False}), open_storage(f"reference://sub::file://{path}"), open_storage(url, static=False)]
    for other in others:
        assert other != storage
        assert other.identity != storage.identity  # type: ignore[attr-defined]  # of this kind
    assert SyncStorage(others[1]).keys() == ["a"]
    assert SyncStorage(others[1]).children() == (["a"], [])
    assert not others[2].capabilities.static
    given = [open_references({"a": text}) for text in ("1", "1", "2")]
    assert given[0] == given[1] != given[2]
    assert given[0].identity == given[1].identity != given[2].identity


@pytest.mark.gate
@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_sets(suffix: str, tmp_path: Path) -> None:
    text = json.dumps({f"c/{i}": ["u", i, 1] for i in range(50_000)}).encode()
    data = gzip.compress(text[:1000]) + gzip.compress(text[1000:]) if suffix == ".gz" else pa.compress(text, "zstd", asbytes=True)
    path = tmp_path / f"refs.json{suffix}"
    path.write_bytes(data)
    assert len(open_set(path).infos("c/1")) == 11_111
    for damaged in (data[: len(data) // 2], b"no" + data):
        path.write_bytes(damaged)
        with pytest.raises(Corruption, match=rf"refs\.json\{suffix}"):
            open_set(path)


def _child(storage: Any, results: Any) -> None:
    results.put([SyncStorage(storage).get(key) for key in ("a", "b")])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_reads_on(tmp_path: Path, server: WebServer) -> None:
    server.objects["/x/data"] = DATA
    (tmp_path / "data").write_bytes(DATA)
    storage = open_references({"a": [f"{server.url}/x/data", 5, 10], "b": [f"{tmp_path}/data", 5, 10]})
    s = SyncStorage(storage)
    assert (s.get("a"), s.get("b")) == (DATA[5:15], DATA[5:15])
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_child, args=(storage, results))
    child.start()
    assert results.get(timeout=60) == [DATA[5:15], DATA[5:15]]
    child.join()


def test_locations_of_sets_and_what_they_lead_to(tmp_path: Path, server: WebServer) -> None:
    path = write_set(tmp_path / "refs.json", {"a": [f"{tmp_path}/data/x", 0, 1], "b": [f"{server.url}/x/y"], "c": ["near", 0, 1]})
    found = location_of(open_storage(f"reference::file://{path}"))
    assert {str(path), f"{tmp_path}/data/x", f"{tmp_path}/near"} <= found.places
    assert any(place.endswith("/x/y") for place in found.served)
    assert found.is_known
    with pytest.raises(InvalidInput, match="overlap"):
        shardstore.pack(f"reference::file://{path}", tmp_path / "data")
