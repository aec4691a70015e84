"""What users call targets."""

from __future__ import annotations

import asyncio
import re
import sys
import traceback
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import fsspec
import gcsfs
import pytest
import requests
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from packaging.version import Version

from shardstore.errors import AccessDenied, Corruption, InvalidInput, NotFound, StorageError, Unsupported
from shardstore.model.redaction import redacted, shown_cause
from shardstore.opening.open import open_storage
from shardstore.storage.gcs.client import GCSClient
from shardstore.storage.generic.storage import GenericStorage
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.requests.bucket import split_bucket
from shardstore.storage.room import is_full
from shardstore.storage.s3.client import translated
from shardstore.storage.s3.storage import S3Storage
from shardstore.testing.storage_suite import SyncStorage
from tests.harness.own_memory import OwnMemory


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = LocalStorage(tmp_path / "a b")
    for target in (
        tmp_path / "a b",
        str(tmp_path / "a b"),
        f"{tmp_path}/a b/",
        "a b",
        "./a b",
        f"file://{tmp_path}/a b",
        f"local://{tmp_path}/a b",
    ):
        assert open_storage(target) == expected, target
    assert open_storage(tmp_path, fsync=False) == LocalStorage(tmp_path, fsync=False)
    assert open_storage(f"file://{tmp_path}", {"auto_mkdir": True}) == LocalStorage(tmp_path)
    assert open_storage((fsspec.filesystem("file"), str(tmp_path))) == LocalStorage(tmp_path)
    assert open_storage(fsspec.get_mapper(f"file://{tmp_path}/x")) == LocalStorage(tmp_path / "x")


def test_memory() -> None:
    expected = MemoryStorage("/x/y")
    for target in ("memory://x/y", "memory:///x/y", (fsspec.filesystem("memory"), "x/y"), fsspec.get_mapper("memory://x/y")):
        assert open_storage(target) == expected, target
    assert open_storage("memory://x/y", {"memory": {"global_store": True}}) == expected
    own = OwnMemory()
    storage = open_storage((own, "x"))
    assert isinstance(storage, GenericStorage)
    assert storage.fs is own


def test_storages_are_returned_as_they_are() -> None:
    storage = MemoryStorage("/x")
    assert open_storage(storage) is storage


def test_s3(s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url
    storage = open_storage(url, options, transport="fsspec")
    assert isinstance(storage, S3Storage)
    assert storage.url == url
    assert open_storage(url, {"s3": options}, transport="fsspec") == storage
    assert open_storage(url.replace("s3://", "s3a://") + "/", {**options, "transport": "fsspec"}) == storage
    assert open_storage((storage.fs, url), transport="fsspec") == storage
    with pytest.raises(InvalidInput, match="bucket"):
        open_storage("s3://", options)


@pytest.mark.parametrize(
    ("url", "kind", "shown"),
    [
        ("gs://b/x/", "gcs", "gs://b/x"),
        ("gcs://b/x", "gcs", "gs://b/x"),
        ("http://host/x/", "http", "http://host/x"),
        ("https://me:secret@host/x?sig=secret", "http", "https://host/x?…"),
        ("simplecache::memory://x/y", "generic", "simplecache::memory://x/y"),
        ("simplecache::https://me:secret@host/x?sig=secret", "generic", "simplecache::https://host/x?…"),
        ("dir::memory://x/y", "memory", "memory://x/y"),
    ],
)
def test_kinds(url: str, kind: str, shown: str) -> None:
    options = {"token": "anon"} if kind == "gcs" else {}
    storage = open_storage(url, options)
    assert storage.kind == kind
    assert storage.url == shown
    assert "secret" not in repr(storage)


def test_filesystems_of_every_kind(s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url
    gcs = fsspec.filesystem("gs", token="anon")
    http = fsspec.filesystem("http")
    for target, kind in [
        ((fsspec.filesystem("s3", **options), url), "s3"),
        ((gcs, "b/x"), "gcs"),
        ((http, "http://host/x"), "http"),
        (http.get_mapper("http://host/x"), "http"),
        ((fsspec.filesystem("simplecache", fs=gcs), "b/x"), "generic"),
        ((AsyncFileSystemWrapper(fsspec.filesystem("memory")), "x"), "generic"),
        (fsspec.get_mapper("simplecache::memory://x"), "generic"),
    ]:
        storage = open_storage(target)
        assert storage.kind == kind
        assert storage.url


def test_directories_of_filesystems_are_what_they_are_of(tmp_path: Path, s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url
    s3 = fsspec.filesystem("s3", **options)
    assert open_storage((DirFileSystem(url, s3), "a/b")) == open_storage(f"{url}/a/b", options)
    assert open_storage((DirFileSystem("a", DirFileSystem(url, s3)), "/b/")) == open_storage(f"{url}/a/b", options)
    assert open_storage((DirFileSystem(str(tmp_path), fsspec.filesystem("file")), "x")) == LocalStorage(tmp_path / "x")
    assert open_storage((DirFileSystem("/x", fsspec.filesystem("memory")), "")) == MemoryStorage("/x")
    assert open_storage(f"dir::file://{tmp_path}") == LocalStorage(tmp_path)
    storage = open_storage((DirFileSystem("https://host/x", fsspec.filesystem("https")), "y"))
    assert storage.url == "https://host/x/y"


def test_filesystems_of_other_loops_are_made_anew(s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url
    loop = asyncio.new_event_loop()
    for name, path, more in [("s3", url, options), ("http", "http://host/x", {}), ("gs", "b/x", {"token": "anon"})]:
        theirs = fsspec.filesystem(name, asynchronous=True, loop=loop, skip_instance_cache=True, **more)
        storage: Any = open_storage((theirs, path), transport="fsspec")
        assert storage.fs is not theirs
        assert storage.fs.loop is fsspec.asyn.get_loop()
        assert not storage.fs.asynchronous
        again: Any = open_storage((storage.fs, path), transport="fsspec")
        assert again.fs is storage.fs
    loop.close()


# -- chains ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["sharded::memory://x/y", "sharded://::memory://x/y"])
def test_our_own_protocol_in_front_means_the_same(url: str, tmp_path: Path) -> None:
    assert open_storage(url) == MemoryStorage("/x/y")
    assert open_storage(f"sharded::{tmp_path}/a b") == LocalStorage(tmp_path / "a b")
    with pytest.raises(InvalidInput, match=r"pass them to open\(\) as arguments"):
        open_storage(url, {"sharded": {"strategy": "rewrite"}})
    with pytest.raises(InvalidInput, match="anon means nothing"):
        open_storage(url, {"anon": True})


@pytest.mark.parametrize(
    "url",
    [
        "simplecache::sharded::memory://x",
        "sharded::sharded::memory://x",
        "sharded://ct::memory://x",
        "sharded://memory://x",
        "dir::sharded",
    ],
)
def test_views_of_views_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="view of a store"):
        open_storage(url)


def test_filesystems_that_read_through_a_view_are_refused() -> None:
    class ShardedLike(MemoryFileSystem):  # type: ignore[misc]  # fsspec ships no types
        protocol = "sharded"

    view = ShardedLike()
    for fs in (view, DirFileSystem("/x", view), fsspec.filesystem("simplecache", fs=view), AsyncFileSystemWrapper(view)):
        with pytest.raises(InvalidInput, match="view of a store"):
            open_storage((fs, "x"))


def test_options_of_links(s3_url: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    url, options = s3_url
    cache = {"cache_storage": str(tmp_path)}
    given = {"s3": dict(options), "simplecache": dict(cache)}
    storage = open_storage(f"simplecache::{url}", given)
    assert isinstance(storage, GenericStorage)
    assert storage.fs.fs.endpoint_url == options["endpoint_url"]
    assert storage.fs.storage == [str(tmp_path)]
    assert given == {"s3": options, "simplecache": cache}
    storage = open_storage(f"simplecache::{url}", {"s3": options, **cache})
    assert storage.fs.storage == [str(tmp_path)]  # type: ignore[attr-defined]
    with pytest.raises(InvalidInput, match=r"xyz .*ignore.*under its name: storage_options={'s3': {'xyz': …}}"):
        open_storage(f"simplecache::{url}", {"xyz": True})
    with pytest.raises(InvalidInput, match=r"gs .*has no link 'gs': give storage_options={'s3': {'NAME': …}}"):
        open_storage(f"simplecache::{url}", {"s3": options, "gs": {"token": "anon"}})
    with pytest.raises(InvalidInput, match=r"no dictionary: give storage_options={'s3': {'NAME': …}}"):
        open_storage(f"simplecache::{url}", {"s3": "anon"})


def test_options_under_no_protocol_are_for_the_link_that_knows_them(tmp_path: Path) -> None:
    given = {"anon": True, "cache_storage": str(tmp_path), "client_kwargs": {"region_name": "r"}}
    storage: Any = open_storage("simplecache::s3://b/x", given)
    assert storage.fs.storage == [str(tmp_path)]
    assert storage.fs.fs.storage_options == {"anon": True, "client_kwargs": {"region_name": "r"}}
    storage = open_storage("simplecache::s3://b/x", {"simplecache": {"cache_storage": str(tmp_path)}, "s3": {"key": "k"}, "anon": True})
    assert storage.fs.fs.storage_options == {"key": "k", "anon": True}
    for url, of_kind in (("s3a://b/x", "s3"), ("gs://b/x", "gcs"), ("http://h/x", "https")):
        named: Any = open_storage(url, {of_kind: {"use_listings_cache": False}}, transport="fsspec")
        assert named.fs.storage_options == {"use_listings_cache": False}
    with pytest.raises(InvalidInput, match=r"skip of .* is not known to the filesystem 'simplecache'"):
        open_storage("simplecache::s3://b/x", {"anon": True, "skip": 1})


def test_options_that_fsspec_would_drop_arrive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x", b"1")
    url = f"zip://::file://{tmp_path}/a.zip"
    for options in ({"mode": "a"}, {"zip": {"mode": "a"}}):
        with pytest.raises(InvalidInput, match="mode='a'"):
            open_storage(url, options)
    assert open_storage(url, {"mode": "r"}).kind == "generic"


@pytest.mark.parametrize(
    ("url", "options", "hint"),
    [
        ("s3://b/x", {"endpont_url": "x"}, "did you mean storage_options={'s3': {'endpoint_url': …}}?"),
        ("s3://b/x", {"s3": {"request_pays": True}}, "did you mean storage_options={'s3': {'requester_pays': …}}?"),
        ("s3a://b/x", {"Anon": True}, "did you mean storage_options={'s3a': {'anon': …}}?"),
        ("s3://b/x", {"region_name": "eu-west-1"}, "give storage_options={'s3': {'client_kwargs': {'region_name': …}}}"),
        ("s3://b/x", {"zzz": 1}, "documentation"),
        ("gs://b/x", {"projct": "p"}, "did you mean storage_options={'gs': {'project': …}}?"),
        ("https://host/x", {"header": {}}, "did you mean storage_options={'https': {'headers': …}}?"),
        ("reference::memory://x.json", {"remote_protcol": "s3"}, "did you mean storage_options={'reference': {'remote_protocol': …}}?"),
    ],
)
def test_options_that_would_be_ignored(url: str, options: dict[str, Any], hint: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(hint)):
        open_storage(url, options)


def test_options_that_are_passed_on(s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url
    more = {"profile": None, "client_kwargs": {"region_name": "us-east-1"}, "use_listings_cache": False, "username": "me"}
    assert open_storage(url, {k: v for k, v in options.items() if k != "key"} | more).kind == "s3"
    assert open_storage("http://host/x", {"headers": {}, "ssl": False, "client_kwargs": {}, "block_size": 0}).kind == "http"
    assert open_storage("gs://b/x", {"token": "anon", "project": "p", "endpoint_url": "http://127.0.0.1:1"}).kind == "gcs"


def test_options_of_filesystems_that_are_not_known() -> None:
    class Foreign(MemoryFileSystem):  # type: ignore[misc]  # fsspec ships no types
        protocol = "foreign"

        def __init__(self, known: int = 0, **kwargs: Any) -> None:
            super().__init__(**kwargs)

    class Strict(MemoryFileSystem):  # type: ignore[misc]  # fsspec ships no types
        protocol = "strict"

        def __init__(self, known: int = 0) -> None:
            super().__init__()

    for cls in (Foreign, Strict):
        fsspec.register_implementation(cls.protocol, cls, clobber=True)
    try:
        assert open_storage("foreign://x", {"known": 1}).url == "foreign://x"
        with pytest.warns(UserWarning, match="the storage option knwon of 'foreign://x' is not known"):
            open_storage("foreign://x", {"knwon": 1})
        with pytest.raises(InvalidInput, match="knwon"):
            open_storage("strict://x", {"knwon": 1})
    finally:
        for cls in (Foreign, Strict):
            del _registry[cls.protocol]


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "package", "url", "remedy"),
    [
        ("s3", "s3fs", "s3://bucket/x", "pip install 'shardstore[s3]'"),
        ("s3a", "s3fs", "s3a://bucket/x", "pip install 'shardstore[s3]'"),
        ("gs", "gcsfs", "gs://bucket/x", "pip install 'shardstore[gcs]'"),
        ("https", "aiohttp", "https://host/x", "pip install 'shardstore[http]'"),
        ("s3", "s3fs", "simplecache::s3://bucket/x", "pip install 'shardstore[s3]'"),
        ("az", "adlfs", "az://container/x", "pip install 'shardstore[azure]'"),
    ],
)
def test_missing_packages(monkeypatch: pytest.MonkeyPatch, protocol: str, package: str, url: str, remedy: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    monkeypatch.delitem(_registry, protocol, raising=False)
    with pytest.raises(Unsupported, match=re.escape(remedy)) as caught:
        open_storage(url, {"anon": True} if "::" in url else None)  # which no other link knows
    assert repr(url) in str(caught.value)
    assert repr(protocol) in str(caught.value)


@pytest.mark.parametrize("url", ["sss://bucket/x", "simplecach::s3://bucket/x", "foo::s3://bucket/x", "simplecache::foo://bucket/x"])
def test_unknown_protocols(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not known: .*memory"):
        open_storage(url)


def test_errors_name_what_was_meant_and_no_secrets() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'memory'"):
        open_storage("memry://x")
    with pytest.raises(InvalidInput, match="did you mean 'simplecache'"):
        open_storage("simplecach::memory://x")
    for url in ("ftpp://user:secret@host/x", "zip://x::ftpp://user:secret@host/x", "foo::https://host/x?secret"):
        with pytest.raises(InvalidInput) as caught:
            open_storage(url)
        assert "secret" not in str(caught.value)


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "bad.zip").write_bytes(b"no archive")
    (tmp_path / "bad.json").write_bytes(b"{")
    for url, error, match in [
        (f"zip://::file://{tmp_path}/nothing.zip", NotFound, "nothing.zip"),
        (f"zip://::file://{tmp_path}/bad.zip", StorageError, "BadZipFile"),
        (f"reference::file://{tmp_path}/bad.json", Corruption, r"bad\.json: it is not a JSON object"),
        ("ftp://user:secret@127.0.0.1:1/x", StorageError, "ftp://127.0.0.1:1/x"),
    ]:
        with pytest.raises(error, match=match) as caught:
            open_storage(url)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://AKIA:SE-CRET@bucket/x", "s3://AKIA:SE/CRET@bucket/x", "gs://me:SE-CRET@bucket/x"])
def test_credentials_in_the_url_of_a_bucket(url: str) -> None:
    with pytest.raises(InvalidInput, match="Credentials are not part of it, but options: storage_options=") as caught:
        open_storage(url, {"anon": True} if url.startswith("s3") else {"token": "anon"})
    assert not {word for word in ("AKIA", "me:", "SE", "CRET") if word in str(caught.value)}


def test_buckets() -> None:
    assert split_bucket("bucket/a@b:c", "s3") == ("bucket", "a@b:c")
    arn = "arn:aws:s3:us-west-2:123456789012:accesspoint"
    assert split_bucket(f"{arn}/x", "s3") == (arn, "x")
    with pytest.raises(InvalidInput, match=re.escape("'gs://' names no bucket: give gs://BUCKET/PATH")):
        open_storage("gs://", {"token": "anon"})


@pytest.mark.parametrize("token", ["/no/such", "./no", "~/no", "no/such.json"])
def test_a_token_that_looks_like_a_file(token: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(f"token {token!r} of 'gs://bucket/x' is not a file")):
        open_storage("gs://bucket/x", {"token": token})


@pytest.mark.skipif(Version(version("gcsfs")) < Version("2026.2"), reason="older ones make no request here")
def test_tokens_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    token = ".".join(("ya29", "SECRET"))  # as a traceback shows the lines of this file, too

    def lose(*arguments: object, **options: object) -> NoReturn:
        raise requests.exceptions.ConnectionError(f"Max retries exceeded with url: /tokeninfo?access_token={token} (Caused by …)")

    monkeypatch.setattr("requests.get", lose)
    with pytest.raises(StorageError, match="cannot be reached: check the network") as caught:
        open_storage("gs://bucket/x", {"token": token, "skip_instance_cache": True})
    assert token not in "".join(traceback.format_exception(caught.value))


def test_redaction() -> None:
    assert redacted("url: /t?access_token=ya29.x&b=1 (x)") == "url: /t?access_token=…&b=1 (x)"
    assert redacted("/k?X-Amz-Signature=abc&X-Amz-Security-Token=d/e=") == "/k?X-Amz-Signature=…&X-Amz-Security-Token=…"
    assert redacted("give token= (a file), or token='anon'") == "give token= (a file), or token='anon'"
    harmless, telling = ValueError("a"), ValueError("b")
    telling.__context__ = ValueError("sig=abc")
    assert (shown_cause(harmless), shown_cause(telling)) == (harmless, None)


def test_causes_that_lead_back_to_where_they_came_from_are_looked_at_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert shown_cause(first) is first


def test_names_in_memory_with_an_at_are_shown() -> None:
    assert redacted("memory://run.ice@main/ct, sftp://me:secret@host/a@b") == "memory://run.ice@main/ct, sftp://host/a@b"
    assert redacted("memory://me:secret@x") == "memory://x"


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("s3://b/x", {"endpoint_url": "notaurl"}, "endpoint_url 'notaurl' of 's3://b/x' needs http:// or https://"),
        ("gs://b/x", {"endpoint_url": 5}, "needs http:// or https://"),
        ("s3://b/x", {"client_kwargs": {"endpoint_url": "host:80"}}, "endpoint_url 'host:80'"),
        (
            "s3://b/x",
            {"config_kwargs": 5, "key": "SECRET"},
            "check these options of the filesystem: config_kwargs, key (AttributeError: ",
        ),
    ],
)
def test_options_with_values_that_cannot_be_right(url: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(said)) as caught:
        SyncStorage(open_storage(url, options)).get("a")
    assert "SECRET" not in str(caught.value)


def test_servers_that_cannot_be_reached() -> None:
    lost = type("EndpointConnectionError", (Exception,), {})("Could not connect")
    error = translated(lost, "looking up", "'k'", "bucket")
    assert "cannot be reached: check the network, and the address of the server, storage_options={'s3': {'endpoint_url': …}}" in str(error)
    fs = gcsfs.GCSFileSystem(token="anon", endpoint_url="http://127.0.0.1:1")
    error = GCSClient(fs, "b", "", 1).translated(type("ClientConnectorError", (OSError,), {})("no such host"), "listing gs://b")
    assert "http://127.0.0.1:1 cannot be reached: check the network" in str(error)
    refused: Any = OSError("no")
    refused.response = {"Error": {"Code": "QuotaExceeded"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    full: Any = translated(refused, "writing", "'k'", "bucket")
    assert (type(full), full.status, full.code, is_full(full)) == (AccessDenied, 403, "QuotaExceeded", True)
    broken = translated(ConnectionResetError("reset"), "reading", "'k'", "bucket")
    assert "cannot be reached" not in str(broken)


def test_windows_drives_are_no_protocols() -> None:
    for target in ("c:\\data", "C:/data", "c://data"):
        assert isinstance(open_storage(target), LocalStorage)


@pytest.mark.parametrize("target", ["", 3, None, ("x", "y"), fsspec.filesystem("memory"), ["x"]])
def test_what_is_no_target(target: object) -> None:
    with pytest.raises(InvalidInput):
        open_storage(target)


@pytest.mark.parametrize("target", ["x", "memory://x", "file:///x", Path("x"), MemoryStorage("x")])
def test_options_that_mean_nothing(target: object) -> None:
    with pytest.raises(InvalidInput, match=r"storage[_ ]option"):
        open_storage(target, {"key": "x"})
