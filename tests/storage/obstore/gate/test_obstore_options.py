"""What the obstore transport takes over from s3fs and gcsfs, what it refuses, and where it can be asked for."""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import gcsfs
import numpy as np
import pytest
import s3fs
import zarr

import shardstore
from shardstore.errors import AccessDenied, InvalidInput, Unsupported
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteSuffix
from shardstore.opening.open import open_storage
from shardstore.storage.base import Changed, Found, Read
from shardstore.storage.obstore import s3_settings
from shardstore.storage.obstore.gcs import ObstoreGCSStorage
from shardstore.storage.obstore.gcs import current_settings as gcs_settings
from shardstore.storage.obstore.s3 import ObstoreS3Storage
from shardstore.storage.s3.storage import S3Storage
from shardstore.testing.storage_suite import SyncStorage, on_io_loop
from shardstore.testing.trace import TraceStorage
from tests.harness.misbehaving_server import MisbehavingServer
from tests.storage.obstore.obstore_proxied import OURS, Url, proxied

pytestmark = pytest.mark.usefixtures("fresh_facts")


def test_credentials_are_those_of_s3fs(s3_url: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment holds, of which obstore would complete what it was not told."""
    for name, text in {
        "AWS_SESSION_TOKEN": "somebody's",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_REQUEST_PAYER": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
    }.items():
        monkeypatch.setenv(name, text)
    with MisbehavingServer(s3_url[1]["endpoint_url"]) as server:
        with_key = proxied(server, s3_url, client_kwargs={"region_name": "eu-west-3"})
        with_key.s.put("a", b"1")
        (request,) = server.requests
        authorization = request.header("Authorization") or ""
        assert "Credential=test/" in authorization
        assert "/eu-west-3/s3/" in authorization
        assert request.header("X-Amz-Security-Token") is None
        assert request.header("X-Amz-Request-Payer") is None
        with_token = proxied(server, s3_url, token="session", requester_pays=True)
        assert with_token.s.get("a") == b"1"
        ours = [request for request in server.requests if "object_store" in (request.header("User-Agent") or "")]
        assert {request.header("X-Amz-Security-Token") for request in ours} == {"session"}
        assert {request.header("X-Amz-Request-Payer") for request in ours} == {"requester"}


def test_anonymous_requests_are_not_signed(s3_url: Url) -> None:
    with MisbehavingServer(s3_url[1]["endpoint_url"]) as server:
        signed = proxied(server, s3_url)
        signed.s.put("a", b"1")
        options = {name: value for name, value in s3_url[1].items() if name not in ("key", "secret")}
        anonymous = open_storage(s3_url[0], {**options, "endpoint_url": server.url, "anon": True}, transport="obstore")
        server.behave()
        with pytest.raises(AccessDenied):
            SyncStorage(anonymous).stat("a")
        assert "object_store" in (server.requests[0].header("User-Agent") or "")
        assert server.requests[0].header("Authorization") is None


def test_renewed_credentials_are_taken_over(on_s3: ObstoreS3Storage) -> None:
    on_io_loop(on_s3.inner.fs.set_session())
    first = on_io_loop(on_s3.bucket())
    assert on_io_loop(on_s3.bucket()) is first
    on_s3.inner.fs._s3._request_signer._credentials.token = "new"
    assert on_io_loop(on_s3.bucket()) is not first
    settings = on_io_loop(s3_settings.S3SettingsReader(on_s3.inner.client).current())
    assert settings is not None
    assert settings.credential == ("test", "test", "new")
    assert "test" not in repr(settings)


def test_settings_of_a_connection(s3_url: Url, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_bytes(b"-----BEGIN CERTIFICATE-----")
    config = {"connect_timeout": 2, "read_timeout": 7, "s3": {"addressing_style": "virtual"}, "proxies": {"http": "http://user:secret@p:1"}}
    options = {**s3_url[1], "config_kwargs": config, "client_kwargs": {"verify": str(authority)}}
    storage = open_storage(s3_url[0], options, transport="obstore")
    assert isinstance(storage, ObstoreS3Storage)
    settings = on_io_loop(s3_settings.S3SettingsReader(storage.inner.client).current())
    assert settings is not None
    assert "secret" not in repr(settings)
    given = s3_settings._client_options(settings)
    assert (given["connect_timeout"], given["read_timeout"]) == (timedelta(seconds=2), timedelta(seconds=7))
    assert (given["proxy_url"], given["root_certificate"]) == ("http://user:secret@p:1", b"-----BEGIN CERTIFICATE-----")
    assert (given["allow_http"], given["allow_invalid_certificates"]) == (True, False)
    unverified = dataclasses.replace(settings, verify=False, proxies=())
    assert s3_settings._client_options(unverified)["allow_invalid_certificates"] is True
    bucket = s3_settings.opened("bucket", unverified)
    assert bucket.config["endpoint"] == settings.endpoint.replace("://", "://bucket.")
    with pytest.raises(Unsupported, match="proxies"):
        s3_settings._client_options(dataclasses.replace(settings, proxies=(("https", "http://p:1"),)))


def test_a_place_that_obstore_cannot_open_is_reached_without(on_s3: ObstoreS3Storage, caplog: pytest.LogCaptureFixture) -> None:
    on_s3.inner.fs.client_kwargs["verify"] = "/no/such/file"
    for _ in range(2):
        SyncStorage(on_s3).put("a", b"1")
        assert SyncStorage(on_s3).get("a") == b"1"
    told = [record for record in caplog.records if "cannot open it" in record.message]
    assert [record.levelname for record in told][:2] == ["WARNING", "DEBUG"] or len(told) == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"s3_additional_kwargs": {"SSECustomerKey": "k"}}, "SSECustomerKey"),
        ({"config_kwargs": {"s3": {"use_accelerate_endpoint": True}}}, "use_accelerate_endpoint"),
        ({"config_kwargs": {"signature_version": "s3"}}, "signature_version"),
        ({"client_kwargs": {"config": None}}, "config"),
    ],
)
def test_options_that_obstore_would_not_heed_are_refused(s3_url: Url, options: dict[str, Any], named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        open_storage(s3_url[0], {**s3_url[1], **options}, transport="obstore")
    assert isinstance(open_storage(s3_url[0], {**s3_url[1], **options}), S3Storage)


def test_settings_of_the_environment_that_only_obstore_knows_are_refused(s3_url: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SERVER_SIDE_ENCRYPTION", "aws:kms")
    with pytest.raises(Unsupported, match="AWS_SERVER_SIDE_ENCRYPTION"):
        open_storage(s3_url[0], s3_url[1], transport="obstore")


@pytest.mark.parametrize("bucket", ["arn:aws:s3:eu-west-1:123456789012:accesspoint", "bucket--use1-az4--x-s3"])
def test_buckets_that_are_none_are_refused(bucket: str) -> None:
    with pytest.raises(Unsupported, match=r"access points|directory buckets"):
        open_storage((s3fs.S3FileSystem(anon=True), f"{bucket}/x"), transport="obstore")


def test_what_only_s3fs_sends_along_is_sent_by_it(s3_url: Url) -> None:
    with MisbehavingServer(s3_url[1]["endpoint_url"]) as server:
        tagged = proxied(server, s3_url, s3_additional_kwargs={"StorageClass": "STANDARD_IA"})
        tagged.s.put("a", b"1")
        assert server.requests[0].header("X-Amz-Storage-Class") == "STANDARD_IA"
        assert tagged.s.get("a") == b"1"
        assert ("GET", OURS) in tagged.sent()


def test_credentials_are_those_of_gcsfs(on_gcs: ObstoreGCSStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "/no/such/file")
    SyncStorage(on_gcs).put("a", b"1")
    assert SyncStorage(on_gcs).get("a") == b"1"
    fs = on_gcs.inner.fs
    assert gcs_settings(on_gcs.inner.client).bearer is None

    class Credentials:
        def apply(self, headers: dict[str, str]) -> None:
            headers.update({"authorization": "Bearer theirs", "x-goog-user-project": "quota"})

    monkeypatch.setattr(fs, "credentials", Credentials())
    monkeypatch.setattr(fs, "requester_pays", "payer")
    settings = gcs_settings(on_gcs.inner.client)
    assert (settings.bearer, settings.headers) == ("theirs", (("x-goog-user-project", "payer"),))
    assert "theirs" not in repr(settings)
    with pytest.raises(Unsupported, match="session_kwargs"):
        open_storage((gcsfs.GCSFileSystem(token="anon", session_kwargs={"trust_env": True}), "b/x"), transport="obstore")


def test_storages_that_have_but_one_transport(tmp_path: Path, s3_url: Url) -> None:
    for target in (os.fspath(tmp_path), "memory://x", "https://example.com/x", "simplecache::s3://bucket/x"):
        with pytest.raises(Unsupported, match="transport"):
            open_storage(target, transport="obstore")
    with pytest.raises(InvalidInput, match="'curl'"):
        open_storage(s3_url[0], {**s3_url[1], "transport": "curl"})
    with pytest.raises(InvalidInput, match="twice"):
        open_storage(s3_url[0], {**s3_url[1], "transport": "fsspec"}, transport="obstore")


def test_storages_that_are_wrapped(on_s3: ObstoreS3Storage) -> None:
    traced = TraceStorage(on_s3)
    assert open_storage(traced, transport="obstore") is traced
    with pytest.raises(Unsupported, match="TraceStorage"):
        open_storage(TraceStorage(on_s3.inner), transport="obstore")
    SyncStorage(traced).put("a", b"12345")
    with traced.count() as block:
        SyncStorage(traced).read("a", ByteRange(1, 3), ByteSuffix(1))
        SyncStorage(traced).keys()
    assert (block.summary().requests, block.summary().bytes_read) == (3, 3)


def test_the_extra_is_named_where_it_is_missing(s3_url: Url, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("shardstore.storage.obstore.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(Unsupported, match=r"pip install 'shardstore\[s3]'"):
        open_storage(s3_url[0], s3_url[1], transport="obstore")


def innermost_but_one(storage: Any) -> Any:
    while not isinstance(storage.inner, S3Storage):
        storage = storage.inner
    return storage


def test_every_face_takes_the_transport(s3_url: Url) -> None:
    url, options = s3_url
    store = shardstore.open(url, storage_options=options, transport="obstore", chunks_per_shard=(4,))
    zarr.create_array(store, name="a", shape=(16,), chunks=(2,), dtype="i4")[:] = np.arange(16)
    assert isinstance(innermost_but_one(store._handle.engine.storage), ObstoreS3Storage)
    with_option = {**options, "transport": "obstore"}
    mapper = shardstore.get_mapper(url, storage_options=with_option)
    np.testing.assert_array_equal(zarr.open_array(shardstore.open(url, storage_options=with_option), path="a")[:], np.arange(16))
    assert "a/zarr.json" in mapper
    fs, path = fsspec.core.url_to_fs(f"sharded::{url}", s3=with_option)
    assert len(fs.ls(f"{path}/a/c")) == 8
    other, path = fsspec.core.url_to_fs(f"sharded::{url}", s3=options, sharded={"transport": "obstore"})
    assert len(other.ls(f"{path}/a/c")) == 8
    assert shardstore.verify(url, storage_options=with_option).is_sound
    (outcome,) = on_io_loop(open_storage(url, {"s3": with_option}).read([Read("a/c/0", (ByteSuffix(4),))]))
    assert isinstance(outcome, Found)


def test_an_engine_has_one_transport(s3_url: Url) -> None:
    url, options = s3_url
    stores = [shardstore.get_mapper(url, storage_options=options, transport=transport) for transport in ("obstore", "fsspec")]
    assert stores[0]._handle.engine is not stores[1]._handle.engine
    assert pickle.loads(pickle.dumps(stores[0]))._handle.engine is stores[0]._handle.engine


def test_a_made_up_version_matches_nothing(on_gcs: ObstoreGCSStorage) -> None:
    SyncStorage(on_gcs).put("a", b"1")
    assert SyncStorage(on_gcs).read("a", EVERYTHING, generation=Generation("replaced-1")) == Changed()
