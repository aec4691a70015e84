"""Values by HTTP: bodies, ranges, preconditions, directories, and what is said in error."""

from __future__ import annotations

import json
import random
import re
from email.utils import formatdate
from html import unescape
from pathlib import Path

import fsspec
import httpx
import numpy as np
import pytest
import zarr

import shardstore
from shardstore.adapters.read_views import StoredView, ValueRead, VersionedValue
from shardstore.apps.server import serve
from shardstore.apps.server.buckets import Bucket
from shardstore.engine.metadata.hierarchy import Hierarchy
from shardstore.errors import AccessDenied, Conflict, Corruption, InvalidInput, NotFound, StorageError, Unsupported
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteRange
from shardstore.storage.inferred_versions import unversioned
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests.apps.server.conftest import DATA, Client, connected, reading
from tests.apps.server.gate.test_s3 import Counted

CHUNK = "zarr3/ct/c/0/0/0"


def test_every_value_of_every_view(client: Client, store: Path) -> None:
    wanted = reading(store)
    assert len(wanted) > 50
    for key, data in wanted.items():
        found = client.get(f"zarr3/{key}")
        assert (found.status_code, found.content) == (200, data), key
        assert found.headers["content-length"] == str(len(data))
        assert found.headers["etag"].startswith('"')
        is_document = key.endswith("zarr.json")
        assert found.headers["content-type"] == ("application/json" if is_document else "application/octet-stream")
        head = client.get(f"zarr3/{key}", "HEAD")
        assert (head.status_code, head.content) == (200, b"")
        assert {name: head.headers[name] for name in ("etag", "content-length", "content-type")} == {
            name: found.headers[name] for name in ("etag", "content-length", "content-type")
        }
    as_v2 = shardstore.get_mapper(str(store), read_only=True, present="v2")
    for key in as_v2:
        assert client.get(f"zarr2/{key}").content == bytes(as_v2[key]), key
    for path in store.rglob("*"):
        if path.is_file():
            assert client.get(f"stored/{path.relative_to(store)}").content == path.read_bytes(), path


@pytest.mark.parametrize(
    ("asked", "status", "part", "said"),
    [
        ("bytes=0-9", 206, slice(0, 10), "bytes 0-9/{n}"),
        ("bytes=5-", 206, slice(5, None), "bytes 5-{last}/{n}"),
        ("bytes=-5", 206, slice(-5, None), "bytes {n5}-{last}/{n}"),
        ("bytes=3-99999999999999999999999", 206, slice(3, None), "bytes 3-{last}/{n}"),
        ("bytes=-99999999999999999999999", 206, slice(0, None), "bytes 0-{last}/{n}"),
        ("bytes=0-1,3-4", 200, slice(None), None),
        ("bytes=9-3", 200, slice(None), None),
        ("lines=0-9", 200, slice(None), None),
        ("bytes=999999-", 416, None, "bytes */{n}"),
        ("bytes=-0", 416, None, "bytes */{n}"),
    ],
)
@pytest.mark.parametrize("path", [CHUNK, "zarr3/ct/zarr.json", "zarr2/ct/.zarray", "stored/ct/c/0/0/0", "zarr3/notes/read me.txt"])
def test_ranges(client: Client, path: str, asked: str, status: int, part: slice | None, said: str | None) -> None:
    whole = client.get(path).content
    found = client.get(path, range=asked)
    n = len(whole)
    assert found.status_code == status
    assert found.headers.get("content-range") == (said and said.format(n=n, last=n - 1, n5=n - 5))
    if part is not None:
        assert found.content == whole[part]
    assert client.get(path, "HEAD", range=asked).status_code == 200  # which is of GET only


def test_ranges_of_an_empty_value(client: Client) -> None:
    for asked, status in (("bytes=0-", 416), ("bytes=-5", 200), ("bytes=-0", 416), ("bytes=0-0", 416)):
        assert client.get("zarr3/notes/empty", range=asked).status_code == status, asked
    assert client.get("zarr3/notes/empty").content == b""


def test_preconditions(client: Client, store: Path) -> None:
    for path in (CHUNK, "zarr3/ct/zarr.json", "zarr2/ct/0.0.0".replace(".", "/"), "stored/ct/c/0/0/0"):
        found = client.get(path)
        etag = found.headers["etag"]
        again = client.get(path, if_none_match=etag)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        for text, status in (
            (f"W/{etag}", 304),
            (f'"other", {etag}', 304),
            ("*", 304),
            ('"other"', 200),
            ("rubbish", 200),
        ):
            assert client.get(path, if_none_match=text).status_code == status, text
            assert client.get(path, "HEAD", if_none_match=text).status_code == status, text
        for text, status in ((etag, 200), ("*", 200), (f'"other", {etag}', 200), (f"W/{etag}", 412), ('"other"', 412), ("rubbish", 412)):
            assert client.get(path, if_match=text).status_code == status, text
        assert client.get(path, if_match=etag, range="bytes=2-3").content == found.content[2:4]
        for text, status in ((etag, 206), (f"W/{etag}", 200), ('"other"', 200), ("Thu, 26 Nov 2026 00:00:00 GMT", 200)):
            assert client.get(path, if_range=text, range="bytes=2-3").status_code == status, text
        assert client.get(path, if_match=etag, if_none_match=etag).status_code == 304
        assert client.get(path, if_match='"other"', if_none_match=etag).status_code == 412
    for header in ("if_match", "if_none_match"):
        assert client.get("zarr3/ct/c/7/7/0", **{header: "*"}).status_code == (412 if header == "if_match" else 404)


def test_entity_tags_are_those_of_other_processes_and_tell_nothing(own: Client, store: Path) -> None:
    etags = [own.get(path).headers["etag"] for path in (CHUNK, "zarr2/ct/0/0/0", "zarr3/ct/c/0/1/0")]
    assert len(set(etags)) == 3
    with serve(store, port=0) as other, connected(other) as http:
        assert http.get(CHUNK).headers["etag"] == etags[0]
        other.application.served.buckets["zarr3"]._versions.clear()
        assert http.get(CHUNK, headers={"if-match": etags[0]}).status_code == 200  # one that it does not know
        assert http.get(CHUNK, headers={"if-none-match": etags[0]}).status_code == 304
    assert all(str(store.stat().st_ino) not in etag for etag in etags)


def test_version_that_is_gone(own: Client, store: Path) -> None:
    array = zarr.open_array(shardstore.open(str(store)), path="ct", mode="r+")
    etag = own.get(CHUNK).headers["etag"]
    array[:8, :8] = 7
    changed = own.get(CHUNK, if_match=etag)
    assert changed.status_code == 412
    now = own.get(CHUNK, if_range=etag, range="bytes=0-3")
    assert now.status_code == 200
    assert now.headers["etag"] != etag
    assert own.get(CHUNK, if_none_match=etag).status_code == 200
    array[:8, :8] = 0
    assert own.get(CHUNK).status_code == 404
    assert own.get(CHUNK, if_match=now.headers["etag"]).status_code == 412


@pytest.mark.parametrize(
    ("modified", "shown"),
    [(None, 1000), (999.75, 999), (1000.25, 1000), (1000.5, 1000), (5000.0, 1000), (-1.0, 1000), (0.0, 0), (float("nan"), 1000)],
)
def test_the_time_of_a_version_is_never_to_come(modified: float | None, shown: int) -> None:
    storage = MemoryStorage()
    bucket = Bucket("stored", StoredView(storage, Hierarchy(storage, 1.0, lambda: 0.0)), clock=lambda: 1000.25)
    assert bucket.modified(Generation("x", modified)) == shown
    assert bucket.modified(None) == 1000


def test_where_no_version_is_told_each_listing_has_another_tag(store: Path) -> None:
    (store / "long").write_bytes(b"?")
    with serve(store, port=0) as serving, connected(serving) as http:
        bucket = serving.application.served.buckets["stored"]
        tags = {bucket.listed_etag(unversioned(1)) for _ in range(10)} | {bucket.listed_etag(None) for _ in range(10)}
        assert len(tags) == 20
        assert all(re.fullmatch('"[0-9a-f]{24}-1"', tag) for tag in [*tags, http.get(CHUNK).headers["etag"]])


def test_cache_control_and_types_are_said(store: Path) -> None:
    with serve(store, port=0, max_age="1min") as serving, connected(serving) as http:
        assert http.get(CHUNK).headers["cache-control"] == "max-age=60"
        assert http.get("zarr3/ct/c/9/9/9").headers["cache-control"] == "no-cache"  # a chunk may come
    with serve(store, port=0) as serving, connected(serving) as http:
        assert http.get(CHUNK).headers["cache-control"] == "no-cache"
        assert http.get(CHUNK, headers={"accept-encoding": "gzip"}).headers.get("content-encoding") is None
        assert http.get(CHUNK).headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("piece", [7, *(pytest.param(piece, marks=pytest.mark.gate) for piece in (1, 4096, 10_000))])
def test_long_values_go_in_pieces_of_one_version(tmp_path: Path, piece: int) -> None:
    rng = np.random.default_rng(0)
    zarr.create_array(
        tmp_path / "s", data=rng.integers(0, 255, (400, 25), dtype="u1"), chunks=(200, 25), shards=(400, 25), compressors=None
    )
    wanted = reading(tmp_path / "s")["c/0/0"]
    steps = 1 if piece > 100 else 10
    with serve(tmp_path / "s", port=0, piece_nbytes=piece) as serving, connected(serving) as http:
        assert http.get("zarr3/c/0/0").content == wanted
        for first in range(0, len(wanted), max(1, len(wanted) // (40 // steps))):
            assert http.get("zarr3/c/0/0", headers={"range": f"bytes={first}-{first + 30}"}).content == wanted[first : first + 31]
            assert http.get("zarr3/c/0/0", headers={"range": f"bytes=-{first + 1}"}).content == wanted[-first - 1 :]


def test_value_that_is_replaced_while_it_is_sent_breaks_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = np.random.default_rng(0).integers(0, 255, (1 << 25,), dtype="u1")
    zarr.create_array(tmp_path / "s", data=data, chunks=data.shape, shards=data.shape, compressors=None)
    with serve(tmp_path / "s", port=0, piece_nbytes=1 << 20) as serving, connected(serving) as http, http.stream("GET", "zarr3/c/0") as got:
        parts = got.iter_bytes(1 << 16)
        some = [next(parts)]
        zarr.open_array(shardstore.open(str(tmp_path / "s")), mode="r+")[:] = 1
        with pytest.raises(httpx.RemoteProtocolError):
            some.extend(parts)
    first = b"".join(some)
    assert 0 < len(first) < len(data)
    assert first == data[: len(first)].tobytes()
    assert caplog.records == []


@pytest.mark.parametrize("error", [StorageError("the network\nis gone"), ValueError("a mistake\nof ours")], ids=lambda e: type(e).__name__)
def test_value_whose_rest_cannot_be_read_breaks_off_and_says_why_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    data = np.zeros(1 << 22, "u1")
    zarr.create_array(tmp_path / "s", data=data, chunks=data.shape, shards=data.shape, compressors=None, fill_value=1)
    with serve(tmp_path / "s", port=0, piece_nbytes=1 << 20) as serving, connected(serving) as http:
        bucket = serving.application.served.buckets["zarr3"]
        real = bucket.read

        async def fails(read: ValueRead) -> VersionedValue | None:
            (wanted,) = read.ranges
            if isinstance(wanted, ByteRange) and wanted.start >= 1 << 21:
                raise error
            return await real(read)

        bucket.read = fails  # type: ignore[method-assign]
        with pytest.raises(httpx.RemoteProtocolError):
            http.get("zarr3/c/0")
        assert http.get("healthz").status_code == 200
    (record,) = caplog.records
    lines = record.getMessage().splitlines()
    assert "/zarr3/c/0: " in lines[0]
    assert "\\n" in lines[0]
    assert (len(lines) == 1) is isinstance(error, StorageError)


# -- directories -----------------------------------------------------------------------------------------------------------


def test_directories(client: Client) -> None:
    found = client.get("zarr3/?format=json").json()
    assert found["prefixes"] == ["ct/", "deep/", "gz/", "notes/"]
    assert [value["name"] for value in found["values"]] == ["zarr.json"]
    assert client.get("zarr3/ct/c/0/0/", accept="application/json").json()["values"][0]["name"] == "0"
    page = client.get("zarr3/notes/")
    assert page.headers["content-type"].startswith("text/html")
    assert '<a href="read%20me.txt">read me.txt</a>' in page.text
    assert client.get("zarr3/nothing/").status_code == 404
    assert client.get("zarr3").headers["location"] == "zarr3/"
    assert client.get("zarr2/ct/?format=json").json()["values"][0]["name"] == ".zarray"
    assert client.get("").status_code == 200
    assert "/zarr3/" in client.get("").text
    assert client.get("healthz").text == "ok"


def test_names_are_escaped(tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "s").create_array("1<script>alert('x')</script>&\"", data=np.arange(3))
    with serve(tmp_path / "s", port=0) as serving, connected(serving) as http:
        page = http.get("zarr3/")
        assert "<script" not in page.text
        assert "script" in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        name = http.get("zarr3/?format=json").json()["prefixes"][0]
        assert http.get(f"zarr3/{name}zarr.json").status_code == 200
    with serve(tmp_path / "s", port=0, listing=False) as serving, connected(serving) as http:
        assert http.get("zarr3/").status_code == 404
        assert http.get("zarr3?list-type=2").status_code == 403


def test_directory_in_pages(tmp_path: Path) -> None:
    (tmp_path / "s/many").mkdir(parents=True)
    zarr.create_group(tmp_path / "s", overwrite=False)
    names = sorted(f"{number:x}" for number in range(10_050))
    for name in names:
        (tmp_path / "s/many" / name).touch()
    found: list[str] = []
    with serve(tmp_path / "s", port=0) as serving, connected(serving) as http:
        after: str | None = ""
        while after is not None:
            page = http.get("zarr3/many/", params={"format": "json", "after": after}).json()
            found += [value["name"] for value in page["values"]]
            after = page["after"]
    assert found == names


def test_programs_get_all_names_on_one_page(tmp_path: Path) -> None:
    (tmp_path / "s/many").mkdir(parents=True)
    for number in range(20_050):
        (tmp_path / f"s/many/{number:x}").touch()
    names = {f"{number:x}" for number in range(20_050)}
    with serve(tmp_path / "s", port=0) as serving, connected(serving) as http:
        served = serving.application.served.buckets["stored"]
        counted = Counted(served, whole=True)
        served.view = counted
        found = re.findall('href="([^"]*)"', http.get("stored/many/").text)
        assert sorted(found) == sorted(["../", *names])
        assert len(counted.asked) == 1
        assert http.head("stored/many/").content == b""
        page = http.get("stored/many/", headers={"accept": "text/html,*/*"}).text  # for people
        assert page.count("href=") == 10_002
        assert '<a href="?after=many%2F' in page


@pytest.mark.parametrize("bucket", ["zarr3", "zarr2", "stored"])
def test_directories_without_their_slash_are_redirected_to(client: Client, bucket: str) -> None:
    chunks = "ct/0" if bucket == "zarr2" else "ct/c/0"
    for path in ("ct", "deep", "deep/plain", "notes", chunks):
        for method in ("GET", "HEAD"):
            found = client.get(f"{bucket}/{path}?token=a%2Fb", method)
            assert (found.status_code, found.headers["location"]) == (307, f"{path.rpartition('/')[2]}/?token=a%2Fb"), path
        moved = client.http.get(f"{bucket}/{path}", follow_redirects=True)
        assert moved.headers["content-type"].startswith("text/html")
        assert str(moved.url) == f"{client.serving.url}{bucket}/{path}/"
    chunk_like = ("ct/0.0.0", "ct/99", "ct/0.0") if bucket == "zarr2" else ("ct/c.0.0.0", "ct/c/99", "ct/c/0.0", "ct/c/0/0.0")
    for path in ("nothing", "ct/nothing/at/all", "ct/zarr.json/x", "zarr.jso", "ct/.zarray/", "notes/empty/", *chunk_like):
        assert client.http.get(f"{bucket}/{path}", follow_redirects=True).status_code == 404, path
    for headers in ({"range": "bytes=0-9"}, {"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}):  # objects are asked for
        assert client.http.get(f"{bucket}/ct", headers=headers).status_code == 404


@pytest.mark.parametrize("bucket", ["zarr3", "zarr2", "stored"])
def test_every_directory_that_is_shown_is_there(client: Client, bucket: str) -> None:
    """Also those of chunks in which no chunk exists: programs that walk the pages take 404 for an error."""
    waiting, seen = [f"{bucket}/"], 0
    while waiting:
        page = client.get(waiting.pop())
        assert page.status_code == 200, page.url
        seen += 1
        waiting += [str(page.url.join(link)) for link in re.findall('href="([^.][^"]*/)"', page.text)]
    assert seen > 10
    assert client.get(f"{bucket}/ct/nothing/").status_code == client.get(f"{bucket}/nothing/").status_code == 404


def test_missing_values_cost_no_listing(tmp_path: Path) -> None:
    trace = TraceStorage(MemoryStorage(str(tmp_path)))
    zarr.create_array(shardstore.open(trace, chunks_per_shard=(4, 4, 1)), name="ct", shape=(256, 256, 8), chunks=(8, 8, 8), dtype="u1")
    zarr.create_array(shardstore.open(trace, chunks_per_shard=None), name="no", shape=(256, 256, 8), chunks=(8, 8, 8), dtype="u1")
    with serve(trace, port=0) as serving, connected(serving) as http:
        missing = {"zarr3": "ct/c/{}/0/0", "zarr2": "ct/{}/0/0", "stored": "ct/c/{}/0/0"}
        missing_plain = {"zarr3": "no/c/{}/0/0", "zarr2": "no/{}/0/0", "stored": "no/c/{}/0/0"}
        for bucket, chunk in [*missing.items(), *missing_plain.items()]:
            for document in ("zarr.json", ".zarray", "x/zarr.json", "x/.zgroup", ".zmetadata"):
                http.get(f"{bucket}/{document}")
            with trace.count() as block:
                assert [http.get(f"{bucket}/{chunk.format(number)}").status_code for number in range(8)] == [404] * 8
            assert not [event for event in block.events if event.op.startswith("list")], bucket
            chunks = [event for event in block.events if not event.key.endswith("zarr.json")]
            assert len(chunks) == 8, bucket
        with trace.count() as block:
            assert http.get("zarr3/ct/c/0").status_code == 307  # among chunks
        assert not [event for event in block.events if event.op.startswith("list")]


def test_links_of_a_listing_are_what_they_name(tmp_path: Path) -> None:
    names = ["http-data", "https:", "a:b", "a b", "%41", "q?#", "http", "ä", "&amp;", "'\"", "..x", "mailto:x"]
    for name in names:
        (tmp_path / "s" / name).mkdir(parents=True)
        (tmp_path / "s" / name / "http:x").write_bytes(name.encode())
    with serve(tmp_path / "s", port=0) as serving, connected(serving) as http:
        fs = fsspec.filesystem("http", skip_instance_cache=True)
        found = {url: bytes(data) for url, data in fs.cat(fs.find(f"{serving.url}stored/")).items()}
        assert sorted(found.values()) == sorted(name.encode() for name in names)
        page = http.get("stored/")
        for link in re.findall('href="([^"]*)"', page.text)[1:]:
            inside = page.url.join(unescape(link))
            assert str(inside).startswith(f"{serving.url}stored/")
            assert http.get(inside).status_code == 200
            assert http.get(str(inside).rstrip("/"), follow_redirects=True).url == inside


# -- errors ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("zarr3/ct/c/9/9/9", 404),
        ("zarr3/ct/c/00/0/0", 404),
        ("nothing/ct", 404),
        ("zarr3x/ct", 404),
        ("zarr3/ct//c", 400),
        ("zarr3/%2e%2e/secret", 400),
        ("zarr3/ct/%2e%2e/%2e%2e/secret", 400),
        ("zarr3/ct\\c", 400),
        ("zarr3/ct%00", 400),
        ("zarr3/%2Fetc/passwd", 400),
        ("stored/%2e%2e/%2e%2e/etc/passwd", 400),
        ("stored/%2fetc%2fpasswd", 400),
        ("zarr3/%2e%2e/", 400),
        ("zarr3//", 400),
    ],
)
def test_paths_that_lead_nowhere(client: Client, path: str, status: int) -> None:
    request = client.http.build_request("GET", client.serving.url)
    request.url = httpx.URL(client.serving.url, raw_path=b"/" + path.encode())
    found = client.http.send(request)
    assert found.status_code == status, found.text
    assert b"root:" not in found.content


def test_only_reading_is_served(client: Client) -> None:
    for method in ("PUT", "POST", "DELETE", "PATCH", "TRACE"):
        found = client.get(CHUNK, method)
        assert found.status_code == 405
        assert found.headers["allow"] == "GET, HEAD, OPTIONS"


def test_damage_is_500_with_the_place(store: Path) -> None:
    shard = store / "ct/c/0/0/0"
    shard.write_bytes(shard.read_bytes()[:-3] + b"xyz")
    with serve(store, port=0) as serving, connected(serving) as http:
        found = http.get(CHUNK)
        assert found.status_code == 500
        assert "<Code>InternalError</Code>" in found.text
        assert "ct/c/0/0/0" in found.text
        as_json = http.get(CHUNK, headers={"accept": "application/json"})
        assert json.loads(as_json.content)["status"] == 500
        assert "ct/c/0/0/0" in json.loads(as_json.content)["error"]
        assert http.head(CHUNK).status_code == 500
        assert http.get("stored/ct/c/0/0/0").status_code == 200


def test_reads_of_one_tick_are_one_batch_and_304_reads_no_chunk(tmp_path: Path) -> None:
    trace = TraceStorage(MemoryStorage(str(tmp_path)))
    zarr.create_array(shardstore.open(trace, chunks_per_shard=(4, 4, 1)), name="ct", data=DATA, chunks=(8, 8, 8))
    with serve(trace, port=0) as serving, connected(serving) as http:
        with trace.count() as block:
            etag = http.get(CHUNK).headers["etag"]
        index, chunk = (event for event in block.events if event.key == "ct/c/0/0/0")
        assert index.nbytes > 0
        assert chunk.nbytes > 0
        with trace.count() as block:
            assert http.get(CHUNK, headers={"if-none-match": etag}).status_code == 304
            assert http.head(CHUNK).status_code == 200
        index_nbytes = 16 * 16 + 4
        assert [event.nbytes for event in block.events if event.key.startswith("ct/c/") and event.nbytes] == [index_nbytes, index_nbytes]


def test_random_requests_agree_with_the_store(client: Client, store: Path) -> None:
    """Any combination of method, range and preconditions, against what the grammar says."""
    rng = random.Random(0)
    wanted = reading(store)
    keys = [*wanted, "ct/c/9/9/9"]
    for _ in range(100):
        key = rng.choice(keys)
        headers: dict[str, str] = {}
        if rng.random() < 0.5:
            headers["range"] = f"bytes={rng.choice(['', rng.randrange(900)])}-{rng.choice(['', rng.randrange(900)])}"
        if rng.random() < 0.3:
            headers[rng.choice(["if-match", "if-none-match", "if-range"])] = rng.choice(
                ["*", '"x"', client.get(f"zarr3/{key}").headers.get("etag", "")]
            )
        found = client.get(f"zarr3/{key}", rng.choice(["GET", "HEAD"]), **headers)
        assert found.status_code in (200, 206, 304, 404, 412, 416), (key, headers)
        if found.status_code == 206:
            first, last = map(int, found.headers["content-range"].removeprefix("bytes ").partition("/")[0].split("-"))
            assert found.content == wanted[key][first : last + 1]
        elif found.status_code == 200 and found.content:
            assert found.content == wanted[key]


def test_snapshot_is_served(tmp_path: Path) -> None:
    repo = shardstore.snapshots.Repository.create(tmp_path / "run.ice", fsync=False)
    with repo.transaction(message="one") as made:
        zarr.create_array(made, name="ct", data=DATA, chunks=(8, 8, 8))
    with serve(f"{tmp_path}/run.ice@main", port=0) as serving, connected(serving) as http:
        first = http.get(CHUNK)
        assert first.status_code == 200
        assert http.get("zarr2/ct/.zarray").json()["shape"] == [64, 64, 8]
        assert http.get("stored/c").status_code == 404
        assert "chunk files" in http.get("").text
        with repo.transaction(message="two") as made:
            zarr.open_array(made, path="ct", mode="r+")[...] = 1
        assert http.get(CHUNK).content == first.content  # what is named is one snapshot
        committed = [one.written_at for one in repo.ancestry("main")][1]
        for path in (CHUNK, "zarr3/ct/zarr.json", "zarr2/ct/.zarray"):
            assert http.head(path).headers["last-modified"] == formatdate(int(committed.timestamp()), usegmt=True)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (AccessDenied("the bucket is closed"), 502, "ServiceUnavailable"),
        (StorageError("the network is gone"), 502, "ServiceUnavailable"),
        (Conflict("it kept changing"), 503, "SlowDown"),
        (Corruption("a bit is flipped"), 500, "InternalError"),
        (Unsupported("this version cannot"), 501, "NotImplemented"),
        (NotFound("it is not there"), 404, "NoSuchKey"),
        (InvalidInput("no such thing"), 400, "InvalidArgument"),
        (ValueError("a mistake of ours, with a s3://user:password@secret/"), 500, "InternalError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_what_the_storage_says_is_said_with_its_status(own: Client, error: Exception, status: int, code: str) -> None:
    async def fails(_read: object) -> object:
        raise error

    own.serving.application.served.buckets["zarr3"].read = fails  # type: ignore[assignment, method-assign]
    found = own.get(CHUNK)
    assert found.status_code == status
    assert f"<Code>{code}</Code>" in found.text
    if isinstance(error, ValueError) and not isinstance(error, InvalidInput):
        assert "password" not in found.text
    else:
        assert str(error) in found.text
    assert own.get(CHUNK, "HEAD").status_code == status
    timed_out = StorageError("nothing was heard")
    timed_out.__cause__ = TimeoutError()
    error = timed_out
    assert own.get(CHUNK).status_code == 504
