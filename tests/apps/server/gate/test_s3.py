"""The S3 endpoint: listings page by page, and errors in S3's XML."""

from __future__ import annotations

import os
import random
from datetime import datetime
from email.utils import formatdate, parsedate_to_datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import zarr

import shardstore
from shardstore._sync import run_sync
from shardstore.apps.server import serve
from shardstore.apps.server.buckets import Listings, open_served
from shardstore.format.v2.keys import is_document
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests.apps.server.conftest import DATA, Client, connected, reading

NS = {"s3": "http://s3.amazonaws.com/doc/2006-03-01/"}


def listed(http: Any, bucket: str, **parameters: Any) -> tuple[list[tuple[str, int]], list[str]]:
    """All keys with their sizes, and common prefixes, over all pages."""
    keys: list[tuple[str, int]] = []
    prefixes: list[str] = []
    given = {"list-type": "2", **{name.replace("_", "-"): value for name, value in parameters.items()}}
    for _ in range(2000):
        root = ElementTree.fromstring(http.get(bucket, params=given).raise_for_status().content)
        found = root.findall("s3:Contents", NS)
        keys += [(one.findtext("s3:Key", "", NS), int(one.findtext("s3:Size", "", NS))) for one in found]
        prefixes += [one.text or "" for one in root.findall("s3:CommonPrefixes/s3:Prefix", NS)]
        assert len(found) <= int(root.findtext("s3:MaxKeys", "", NS))
        if root.findtext("s3:IsTruncated", "", NS) == "false":
            return keys, prefixes
        given["continuation-token"] = root.findtext("s3:NextContinuationToken", "", NS)
    raise AssertionError("it has no end")


@pytest.mark.parametrize("bucket", ["zarr3", "zarr2", "stored"])
@pytest.mark.parametrize("most", [pytest.param(1, marks=pytest.mark.gate), 7, 1000])
def test_keys_are_listed_in_order_and_once(client: Client, store: Path, bucket: str, most: int) -> None:
    wanted = {
        "zarr3": lambda: reading(store),
        "zarr2": lambda: dict(shardstore.get_mapper(str(store), read_only=True, present="v2")),
        "stored": lambda: {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()},
    }[bucket]()
    keys, prefixes = listed(client.http, bucket, max_keys=most)
    assert keys == sorted((key, len(data)) for key, data in wanted.items())
    assert prefixes == []


@pytest.mark.parametrize("bucket", ["zarr3", "stored"])
@pytest.mark.parametrize("prefix", ["", "ct/", "ct/c/", "ct/c/1", "ct/c/0/", "deep/pl", "notes/", "nothing/", "zarr.json", "ct"])
@pytest.mark.parametrize("most", [pytest.param(1, marks=pytest.mark.gate), 3, pytest.param(1000, marks=pytest.mark.gate)])
def test_prefixes_and_delimiters(client: Client, store: Path, bucket: str, prefix: str, most: int) -> None:
    everything = [key for key, _ in listed(client.http, bucket)[0]]
    inside = [key for key in everything if key.startswith(prefix)]
    assert [key for key, _ in listed(client.http, bucket, prefix=prefix, max_keys=most)[0]] == inside
    keys, prefixes = listed(client.http, bucket, prefix=prefix, delimiter="/", max_keys=most)
    cut = {prefix + key[len(prefix) :].partition("/")[0] + "/" for key in inside if "/" in key[len(prefix) :]}
    assert prefixes == sorted(cut)
    assert [key for key, _ in keys] == [key for key in inside if "/" not in key[len(prefix) :]]


def test_listing_from_any_key_on(client: Client) -> None:
    everything = [key for key, _ in listed(client.http, "zarr3")[0]]
    rng = random.Random(0)
    for after in [*rng.sample(everything, 10), "ct/c/1/", "ct", "a", "zzz", "ct/c/0/0/0~"]:
        assert [key for key, _ in listed(client.http, "zarr3", start_after=after)[0]] == [key for key in everything if key > after]


def test_version_1_of_listings(client: Client) -> None:
    everything = [key for key, _ in listed(client.http, "stored")[0]]
    found: list[str] = []
    marker = ""
    while True:
        root = ElementTree.fromstring(client.http.get("stored", params={"prefix": "", "marker": marker, "max-keys": "3"}).content)
        found += [one.text or "" for one in root.findall("s3:Contents/s3:Key", NS)]
        if root.findtext("s3:IsTruncated", "", NS) == "false":
            break
        marker = root.findtext("s3:NextMarker", "", NS)
    assert found == everything


@pytest.mark.parametrize("bucket", ["zarr3", "zarr2", "stored"])
@pytest.mark.parametrize("whole", [False, True])
def test_pages_of_a_listing_take_one_pass(tmp_path: Path, bucket: str, whole: bool) -> None:
    zarr.create_array(tmp_path / "s", name="ct", data=DATA, chunks=(4, 4, 8), shards=(32, 32, 8))
    with serve(tmp_path / "s", port=0) as serving, connected(serving) as http:
        wanted = listed(http, bucket)[0]
        served = serving.application.served.buckets[bucket]
        listings = Counted(served, whole=whole)
        served.view = listings
        assert listed(http, bucket, max_keys=10)[0] == wanted
        directories = {key[: key.rfind("/") + 1] for key, _ in wanted} | {"", "ct/", "ct/c/"}
        assert len(listings.asked) == len(set(listings.asked))  # none twice
        assert len(listings.asked) <= (1 if whole else 3 * len(directories))


@pytest.mark.parametrize(("bucket", "indices"), [("zarr3", 4), ("zarr2", 4), ("stored", 0)])
def test_tags_and_times_in_listings_cost_no_request(bucket: str, indices: int) -> None:
    trace = TraceStorage(MemoryStorage(f"tags-{bucket}"))
    group = zarr.create_group(shardstore.open(trace, chunks_per_shard={"ct": (4, 4, 1), "*": None}))
    group.create_array("ct", data=DATA, chunks=(8, 8, 8))
    group.create_array("deep/plain", data=np.arange(10), chunks=(4,))
    with serve(trace, port=0) as serving, connected(serving) as http:
        with trace.count() as block:
            root = ElementTree.fromstring(http.get(f"{bucket}?list-type=2").content)
        others = [event for event in block.events if not is_document(event.key)]  # those are read for their sizes
        assert sorted(event.op for event in others) == ["list", *["read"] * indices]
        assert {event.nbytes for event in others if event.op == "read"} <= {16 * 16 + 4}
        entries = root.findall("s3:Contents", NS)
        assert len(entries) > (60 if bucket != "stored" else 8)
        for entry in entries:
            head = http.head(f"{bucket}/{entry.findtext('s3:Key', '', NS)}").headers
            assert entry.findtext("s3:ETag", "", NS) == head["etag"]
            assert _seconds(entry) == parsedate_to_datetime(head["last-modified"]).timestamp()


def _seconds(entry: Any) -> float:
    return datetime.fromisoformat(entry.findtext("s3:LastModified", "", NS)).timestamp()


@pytest.mark.parametrize("bucket", ["zarr3", "zarr2", "stored"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("delimiter", ["", "/"])
def test_listings_show_the_tags_and_times_of_what_is_stored(store: Path, bucket: str, whole: bool, delimiter: str) -> None:
    """Each shard, document and other object has a time of its own; a chunk has that of its shard."""
    times: dict[str, float] = {}
    for number, path in enumerate(sorted(path for path in store.rglob("*") if path.is_file())):
        times[str(path.relative_to(store))] = 1.6e9 + number
        os.utime(path, (0, 1.6e9 + number + 0.7504321))  # of a whole millisecond, a file could be without a settled version
    with serve(store, port=0) as serving, connected(serving) as http:
        served = serving.application.served.buckets[bucket]
        served.view = Counted(served, whole=whole)
        keys = {key for key, _ in listed(http, bucket)[0]}
        below = {f"{key.rpartition('/')[0]}/".lstrip("/") for key in keys} if delimiter else {""}
        seen: dict[str, float] = {}
        for prefix in below:
            root = ElementTree.fromstring(http.get(bucket, params={"list-type": "2", "prefix": prefix, "delimiter": delimiter}).content)
            for entry in root.findall("s3:Contents", NS):
                key = entry.findtext("s3:Key", "", NS)
                seen[key] = _seconds(entry)
                for method in ("GET", "HEAD"):
                    head = http.request(method, f"{bucket}/{key}").headers
                    assert head["etag"] == entry.findtext("s3:ETag", "", NS), key
                    assert head["last-modified"] == formatdate(seen[key], usegmt=True), key
        assert seen.keys() == keys
        assert {key: at for key, at in seen.items() if key in times and "/c/" not in key} == {
            key: at for key, at in times.items() if key in keys and "/c/" not in key
        }
        chunk = "ct/5/2/0" if bucket == "zarr2" else "ct/c/5/2/0"
        if bucket == "stored":
            assert {key: seen[key] for key in times} == times
        else:
            assert seen[chunk] == times["ct/c/1/0/0"]
        if bucket == "zarr2":
            assert seen["ct/.zarray"] == seen["ct/.zattrs"] == times["ct/zarr.json"]


class Counted:
    """A source that notes what is listed, and, unless ``whole``, always has too much to be listed at once."""

    def __init__(self, bucket: Any, *, whole: bool) -> None:
        self._source = bucket.view
        self._whole = whole
        self.read = self._source.read
        self.is_directory = self._source.is_directory
        self.identifies = self._source.identifies
        self.asked: list[tuple[str, str]] = []

    async def list_dir(self, prefix: str, *, exact: bool) -> Any:
        self.asked.append(("directory", prefix))
        return await self._source.list_dir(prefix, exact=exact)

    async def list_below(self, prefix: str, most: int) -> Any:
        self.asked.append(("below", prefix))
        return await self._source.list_below(prefix, most) if self._whole else None


@pytest.mark.parametrize("bucket", ["zarr3", "zarr2", "stored"])
def test_large_directories_are_listed_in_the_same_order(own: Client, bucket: str) -> None:
    served = own.serving.application.served.buckets[bucket]
    wanted = {prefix: listed(own.http, bucket, prefix=prefix, max_keys=9) for prefix in ("", "ct/c/1", "ct/", "deep/", "ct/c/0/0")}
    served.view = Counted(served, whole=False)
    for prefix, found in wanted.items():
        assert listed(own.http, bucket, prefix=prefix, max_keys=4) == found
        for after in [key for key, _ in found[0]][::7]:
            assert listed(own.http, bucket, prefix=prefix, start_after=after)[0] == [one for one in found[0] if one[0] > after]


def test_other_operations(client: Client) -> None:
    assert b"LocationConstraint" in client.get("zarr3?location").content
    assert client.get("zarr3?list-type=2", "HEAD").status_code == 200
    assert client.get("zarr3", "HEAD", x_amz_content_sha256="UNSIGNED-PAYLOAD").status_code == 200
    buckets = client.get("", authorization="AWS4-HMAC-SHA256 Credential=a/b").content
    assert [f"<Name>{name}</Name>".encode() in buckets for name in ("zarr3", "zarr2", "stored")] == [True] * 3
    for path in (
        "zarr3?acl",
        "zarr3?uploads",
        "zarr3?versioning",
        "zarr3/ct/c/0/0/0?tagging",
        "zarr3/ct/zarr.json?versionId=1",
        "zarr3?list-type=2&delimiter=x",
    ):
        assert client.get(path).status_code == 501, path
    for path in ("zarr3?list-type=2&max-keys=x", "zarr3?list-type=2&continuation-token=%21"):
        assert client.get(path).status_code == 400, path
    missing = client.get("zarr3/nothing")
    assert b"<Code>NoSuchKey</Code>" in missing.content
    assert client.get("zarr3/ct/zarr.json?x-id=GetObject").status_code == 200


def test_names_that_xml_and_urls_encode(tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "s")
    names = ["a&b<c>", "ä ö", "%41", "a+b", "q?#"]
    for name in names:
        (tmp_path / "s" / name).write_bytes(b"x")
    with serve(tmp_path / "s", port=0) as serving, connected(serving) as http:
        assert [key for key, _ in listed(http, "stored")[0]] == sorted([*names, "zarr.json"])
        text = http.get("stored?list-type=2&encoding-type=url").text
        assert "%2541" in text
        assert "a%26b%3Cc%3E" in text


def test_listings_are_remembered_for_the_next_page_only_and_not_for_long(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    for number in range(4):
        (tmp_path / "s" / str(number)).touch()
    now = [0.0]
    bucket = open_served(tmp_path / "s", None).buckets["stored"]
    listings = Listings(lambda: now[0])

    async def names(after: str, goes_on: bool) -> list[str]:
        return [entry.name async for entry in listings.below(bucket, "", after, goes_on=goes_on)]

    assert run_sync(names("", False)) == ["0", "1", "2", "3"]
    (tmp_path / "s/9").touch()
    assert run_sync(names("1", True)) == ["2", "3"]  # as it was for the page before
    assert run_sync(names("1", False)) == ["2", "3", "9"]
    (tmp_path / "s/99").touch()
    now[0] += 60
    assert run_sync(names("1", True)) == ["2", "3", "9", "99"]
