"""One server by several spellings and names: what lies there is known to be one place, or is not overwritten."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import s3fs

from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.engine.moving import copy_nodes, move_between
from shardstore.errors import InvalidInput
from shardstore.opening.location import Location, canonical_url, location_of, may_be_one, why_not_apart
from shardstore.opening.open import open_storage
from tests.maintenance.packing.gate.test_whose import files, made, pack

FRESH = {"skip_instance_cache": True}
"""A client that nobody has connected yet, with what another test's environment said."""


def at(url: str, **options: Any) -> Location:
    return location_of(open_storage(url, FRESH | options))


def configured(endpoint: str, place: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> dict[str, Any]:
    place.write_text(text.format(endpoint))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(place))
    return {}


def named(endpoint: str, monkeypatch: pytest.MonkeyPatch, variable: str) -> dict[str, Any]:
    monkeypatch.setenv(variable, endpoint)
    return {}


SPELLINGS: dict[str, Callable[[str, Path, pytest.MonkeyPatch], dict[str, Any]]] = {
    "itself": lambda e, p, m: {"endpoint_url": e},
    "slash": lambda e, p, m: {"endpoint_url": f"{e}/"},
    "capitals": lambda e, p, m: {"endpoint_url": e.replace("http", "HTTP")},
    "client_kwargs": lambda e, p, m: {"client_kwargs": {"endpoint_url": f"{e}//"}},
    "environment": lambda e, p, m: named(e, m, "AWS_ENDPOINT_URL"),
    "environment of S3": lambda e, p, m: named(f"{e}/", m, "AWS_ENDPOINT_URL_S3"),
    "configuration": lambda e, p, m: configured(e, p, m, "[default]\nendpoint_url = {}\n"),
    "configured service": lambda e, p, m: configured(e, p, m, "[default]\nservices = x\n[services x]\ns3 =\n  endpoint_url = {}/\n"),
}


class Bucket:
    """A hierarchy in S3 that must stay as it is."""

    def __init__(self, url: str, options: dict[str, Any], source: Path) -> None:
        self.url, self.path = f"{url}/t", f"{url.removeprefix('s3://')}/t"
        self.fs = s3fs.S3FileSystem(**options)
        self.fs.pipe({f"{self.path}/{key}": data for key, data in files(source).items()})
        self.before = self.objects()

    def objects(self) -> dict[str, bytes]:
        self.fs.invalidate_cache()
        return {str(key): data for key, data in self.fs.cat(self.fs.find(self.path)).items()}

    def check(self) -> None:
        assert self.objects() == self.before


@pytest.fixture
def bucket(s3_url: tuple[str, dict[str, Any]], tmp_path: Path) -> Bucket:
    return Bucket(*s3_url, made(tmp_path / "o"))


@pytest.mark.parametrize(
    "spelling", [name if name in ("slash", "environment of S3") else pytest.param(name, marks=pytest.mark.night) for name in SPELLINGS]
)
def test_a_source_is_known_however_its_server_is_spelled(
    tmp_path: Path, s3_endpoint: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    options, other = {"endpoint_url": s3_endpoint, **FRESH}, SPELLINGS[spelling](s3_endpoint, tmp_path / "config", monkeypatch) | FRESH
    for ours, theirs in ((options, other), (other, options)):
        for overwrite in (False, True):
            with pytest.raises(InvalidInput, match="overlap"):
                pack(bucket.url, bucket.url, storage_options=ours, target_options=theirs, overwrite=overwrite, include="a")
        for transfer in (copy_nodes, move_between):
            here, there = Engine(open_storage(bucket.url, ours)), Engine(open_storage(bucket.url, theirs))
            with pytest.raises(InvalidInput, match="overlap"):
                run_sync(transfer(here, "a", there, "a", overwrite=True))
    bucket.check()


def test_references_to_a_bucket_are_known_however_they_get_there(
    tmp_path: Path, s3_endpoint: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = {"endpoint_url": s3_endpoint, **FRESH}
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    for beginning in ("s3:/", s3_endpoint):
        sets = {
            key.removeprefix(f"{bucket.path}/"): data.decode() if key.endswith("json") else [f"{beginning}/{key}"]
            for key, data in bucket.before.items()
        }
        (tmp_path / "refs.json").write_text(json.dumps(sets))
        with pytest.raises(InvalidInput, match="overlap"):
            pack(f"reference::{tmp_path}/refs.json", bucket.url, target_options=target, overwrite=True)
    bucket.check()


def test_a_server_of_two_names_is_not_overwritten(tmp_path: Path, s3_endpoint: str, bucket: Bucket) -> None:
    """Nobody knows that it is one; where nothing is at the target, nothing can be lost."""
    ours = {"endpoint_url": s3_endpoint, **FRESH}
    theirs = {"endpoint_url": s3_endpoint.replace("127.0.0.1", "localhost"), **FRESH}
    with pytest.raises(InvalidInput, match="may be one place: their servers have an address in common"):
        pack(bucket.url, bucket.url, storage_options=ours, target_options=theirs, overwrite=True)
    for transfer in (copy_nodes, move_between):
        here, there = Engine(open_storage(bucket.url, ours)), Engine(open_storage(bucket.url, theirs))
        with pytest.raises(InvalidInput, match="may be one place"):
            run_sync(transfer(here, "a", there, "a", overwrite=True))
    bucket.check()
    assert pack(bucket.url, f"{bucket.url}2", storage_options=ours, target_options=theirs).complete
    assert pack(bucket.url, f"{bucket.url}2", storage_options=ours, target_options=theirs, overwrite=True).complete
    bucket.check()


def test_the_same_bucket_on_another_server_can_be_overwritten() -> None:
    one, other = at("s3://b/x", endpoint_url="http://127.0.0.1:9000"), at("s3://b/x", endpoint_url="http://127.0.0.1:9010")
    assert not one.overlaps(other)
    assert why_not_apart([("one", one), ("other", other)]) is None


def test_all_addresses_of_aws_lead_to_one_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    bucket = at("s3://some.bucket/x", anon=True)
    others = [
        at("s3://some.bucket/x/a", anon=True, client_kwargs={"region_name": "eu-west-1"}),
        at("s3://some.bucket", anon=True, use_ssl=False),
        at("s3://some.bucket/x", anon=True, endpoint_url="https://s3.dualstack.us-west-2.amazonaws.com"),
        at("https://some.bucket.s3.eu-west-1.amazonaws.com/x"),
        at("https://s3-us-west-2.amazonaws.com/some.bucket/x/a%20b"),
    ]
    assert all(bucket.overlaps(other) for other in others)
    assert not any(at("s3://bucket/x", anon=True).overlaps(other) for other in others)


def test_an_access_point_may_be_any_bucket_there(tmp_path: Path) -> None:
    point = at("s3://arn:aws:s3:us-west-2:123456789012:accesspoint/mine/x", anon=True)
    for url, is_apart in (("s3://b/x", False), ("s3://b-s3alias/x", False), (str(tmp_path), True), ("memory://x", True)):
        other = location_of(open_storage(url, {"anon": True, **FRESH} if url.startswith("s3:") else None))
        assert (why_not_apart([("the point", point), ("the other", other)]) is None) is is_apart


def test_gcs_is_known_by_whatever_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    def gcs(**options: Any) -> Location:
        return at("gs://b/x", token="anon", **options)

    google = gcs()
    assert google.overlaps(gcs(endpoint_url="https://storage.googleapis.com/"))
    assert google.overlaps(at("https://b.storage.googleapis.com/x/y"))
    assert google.overlaps(at("https://storage.googleapis.com/b"))
    assert google.overlaps(at("s3://b/x", anon=True, endpoint_url="https://storage.googleapis.com"))
    given = gcs(endpoint_url="http://LOCALHOST:4443/")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://localhost:4443")
    assert gcs().overlaps(given)
    assert not gcs().overlaps(google)


def test_http_is_known_by_whatever_spelling() -> None:
    place = at("https://host/a/b")
    for other in ("https://Host:443/a/b/", "https://me:secret@host/a/b/c", "https://host./a?token=x", "https://host/%61/b"):
        assert place.overlaps(at(other)), other
    for other in ("http://host/a/b", "https://host:8443/a/b", "https://other/a/b", "https://host/a/bc"):
        assert not place.overlaps(at(other)), other


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("http://a:9000", "http://b:9000", True),
        ("http://a:9000", "http://c:9000", False),
        ("http://a:9000", "http://b:9001", False),
        ("http://a", "https://b", True),
        ("http://local:1", "http://[::1]:1", True),
        ("http://a", "http://unknown", True),
        ("https://s3.amazonaws.com", "https://unknown", False),
    ],
)
def test_servers_are_compared_by_address(monkeypatch: pytest.MonkeyPatch, one: str, other: str, expected: bool) -> None:
    addresses = {"a": ["10.0.0.1", "10.0.0.2"], "b": ["10.0.0.2"], "c": ["10.0.0.3"], "local": ["127.0.0.1"], "::1": ["::1"]}

    def getaddrinfo(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        if host not in addresses:
            raise OSError(host)
        return [(0, 0, 0, "", (address, 0)) for address in addresses[host]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert may_be_one(one, other) is may_be_one(other, one) is expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://bucket.vpce-1a2b-3c.s3.us-east-1.vpce.amazonaws.com", "https://s3.amazonaws.com"),
        ("https://b.bucket.vpce-1a2b-3c.s3.us-east-1.vpce.amazonaws.com/k", "https://s3.amazonaws.com/b/k"),
        ("https://s3-accelerate.amazonaws.com/b", "https://s3.amazonaws.com/b"),
        ("https://s3.cn-north-1.amazonaws.com.cn/b", "https://s3.amazonaws.com.cn/b"),
        ("https://s3.amazonaws.com.example.org/b", "https://s3.amazonaws.com.example.org/b"),
        ("http://[FE80::1]:9000/b/", "http://[fe80::1]:9000/b"),
    ],
)
def test_urls_of_one_place(url: str, expected: str) -> None:
    assert canonical_url(url) == expected
