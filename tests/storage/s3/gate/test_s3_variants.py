"""S3 as others run it, or let others pay for it: requester-pays and public buckets, and servers that are not AWS."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import s3fs

from shardstore.errors import AccessDenied, InvalidInput, StorageError
from shardstore.model.generation import IF_ABSENT, IfGeneration
from shardstore.model.ranges import ByteRange, ByteSuffix
from shardstore.opening.open import open_storage
from shardstore.storage.base import Found
from shardstore.storage.requests.bucket import forget_facts
from shardstore.storage.s3.storage import S3Storage
from shardstore.testing.storage_suite import SyncStorage, on_io_loop, pieces

S3Url = tuple[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def fresh_facts() -> Iterator[None]:
    forget_facts()
    yield
    forget_facts()


class Wire:
    """The requests that an s3fs instance really sends: method, path with query, and headers in lower case."""

    def __init__(self, fs: Any) -> None:
        self.sent: list[tuple[str, str, dict[str, str]]] = []
        client = on_io_loop(self._connected(fs))
        client.meta.events.register("before-send.s3", self._note)

    @staticmethod
    async def _connected(fs: Any) -> Any:
        await fs.set_session()
        return fs._s3

    def _note(self, request: Any, **_: Any) -> None:
        headers = {name.lower(): value.decode() if isinstance(value, bytes) else str(value) for name, value in request.headers.items()}
        self.sent.append((request.method, str(request.url).partition("//")[2].partition("/")[2], headers))

    def kinds(self) -> set[str]:
        """Method, with what tells operations of the same method apart."""
        marks = ("uploads", "uploadId", "partNumber", "delete", "list-type")
        return {" ".join([method, *(mark for mark in marks if mark in path.partition("?")[2])]) for method, path, _ in self.sent}


def everything(storage: S3Storage) -> None:
    """Every operation of a storage, with every sort of upload."""
    s = SyncStorage(storage)
    on_io_loop(storage.probe())
    first = s.put("a", b"1", IF_ABSENT)
    s.put("a", b"22", IfGeneration(first))
    assert s.get("a") == b"22"
    assert isinstance(s.read("a", ByteRange(0, 1), ByteSuffix(1)), Found)
    assert s.stat("a") is not None
    large = bytes(17 << 20)
    s.put("large", large)
    assert s.copy("large", "copy") is not None
    s.put("large 2", large, IF_ABSENT)
    with pytest.raises(InvalidInput):
        s.write("large", pieces(large), len(large) + 1)
    assert s.keys() == ["a", "copy", "large", "large 2"]
    assert s.children() == (["a", "copy", "large", "large 2"], [])
    assert s.delete("a")
    s.delete_many("copy", "large", "large 2")
    assert s.keys() == []


ALL_KINDS = {
    "PUT",
    "GET",
    "HEAD",
    "DELETE",
    "GET list-type",
    "POST uploads",
    "PUT uploadId partNumber",
    "POST uploadId",
    "DELETE uploadId",
    "POST delete",
}


def as_in_2025(self: Any, method: Any, *akwarglist: Any, **kwargs: Any) -> Any:
    """How s3fs 2025.10 puts a call together: without who pays."""
    parameters = self.s3_additional_kwargs.copy()
    for more in akwarglist:
        parameters.update(more)
    parameters.update(kwargs)
    return self._filter_kwargs(method, parameters)


@pytest.mark.parametrize("pays", [True, False])
def test_who_pays_is_said_in_every_request(s3_url: S3Url, pays: bool) -> None:
    url, options = s3_url
    fs = s3fs.S3FileSystem(**options, requester_pays=pays, skip_instance_cache=True)
    wire = Wire(fs)
    everything(S3Storage(fs, url, multipart_bytes=16 << 20))
    assert wire.kinds() == ALL_KINDS
    assert {headers.get("x-amz-request-payer") for _, _, headers in wire.sent} == {"requester" if pays else None}


def test_who_pays_is_said_with_versions_of_s3fs_that_leave_it_to_the_caller(s3_url: S3Url, monkeypatch: pytest.MonkeyPatch) -> None:
    url, options = s3_url
    fs = s3fs.S3FileSystem(**options, requester_pays=True, skip_instance_cache=True)
    monkeypatch.setattr(s3fs.S3FileSystem, "_get_s3_method_kwargs", as_in_2025)
    wire = Wire(fs)
    storage = S3Storage(fs, url)
    s = SyncStorage(storage)
    on_io_loop(storage.probe())
    s.put("a", b"1")
    assert s.get("a") == b"1"
    assert s.keys() == ["a"]
    s.delete_many("a")
    assert {headers.get("x-amz-request-payer") for _, _, headers in wire.sent} == {"requester"}


def test_options_by_url(s3_url: S3Url) -> None:
    url, options = s3_url
    storage = open_storage(url, {"s3": options | {"requester_pays": True}}, transport="fsspec")
    assert isinstance(storage, S3Storage)
    assert storage.fs.req_kw == {"RequestPayer": "requester"}


# -- anonymous ---------------------------------------------------------------------------------------------------------


def test_anonymous_requests_are_not_signed(s3_url: S3Url) -> None:
    url, options = s3_url
    SyncStorage(open_storage(url, options)).put("a", b"123")
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    owner = s3fs.S3FileSystem(**options)
    owner.call_s3("put_bucket_acl", Bucket=bucket, ACL="public-read")
    owner.call_s3("put_object_acl", Bucket=bucket, Key=f"{prefix}/a", ACL="public-read")
    storage = open_storage(url, {"anon": True, "endpoint_url": options["endpoint_url"], "skip_instance_cache": True}, transport="fsspec")
    assert isinstance(storage, S3Storage)
    wire = Wire(storage.fs)
    s = SyncStorage(storage)
    assert s.get("a") == b"123"
    assert s.keys() == ["a"]
    assert s.stat("a") is not None
    assert s.get("nothing") is None
    assert wire.kinds() == {"GET", "HEAD", "GET list-type"}
    assert not any("authorization" in headers for _, _, headers in wire.sent)
    signed = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    wire = Wire(signed)
    assert SyncStorage(S3Storage(signed, url)).get("a") == b"123"
    assert all("authorization" in headers for _, _, headers in wire.sent)


def test_private_buckets_name_the_remedies(s3_url: S3Url, monkeypatch: pytest.MonkeyPatch) -> None:
    url, options = s3_url
    storage = open_storage(url, {"anon": True, "endpoint_url": options["endpoint_url"]}, transport="fsspec")

    async def denied(*_: Any, **__: Any) -> Any:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(storage.fs, "_call_s3", denied)  # type: ignore[attr-defined]
    with pytest.raises(AccessDenied, match=r"ListBucket.*anon.*requester_pays"):
        SyncStorage(storage).get("a")


# -- other servers -----------------------------------------------------------------------------------------------------


def test_endpoints_are_given_in_either_way(s3_url: S3Url) -> None:
    url, options = s3_url
    SyncStorage(open_storage(url, options)).put("a", b"123")
    other = {k: v for k, v in options.items() if k != "endpoint_url"}
    storage = open_storage(
        url, other | {"client_kwargs": {"endpoint_url": options["endpoint_url"], "region_name": "eu-west-1"}}, transport="fsspec"
    )
    assert isinstance(storage, S3Storage)
    assert SyncStorage(storage).get("a") == b"123"
    assert storage.endpoint == options["endpoint_url"]
    assert on_io_loop(storage.probe()).atomic_commits


def test_a_missing_bucket_names_itself_and_the_remedy(s3_url: S3Url) -> None:
    _, options = s3_url
    bucket = f"missing-{uuid.uuid4().hex}"
    s = SyncStorage(open_storage(f"s3://{bucket}/x", options, transport="fsspec"))
    attempts: list[Callable[[], object]] = [
        lambda: s.get("a"),
        lambda: s.put("a", b"1"),
        lambda: s.keys(),
        lambda: s.put("a", b"1", IF_ABSENT),
        lambda: s.delete_many("a"),
    ]
    for attempt in attempts:
        with pytest.raises(StorageError, match=rf"bucket '{bucket}' does not exist.*Create it.*endpoint_url"):
            attempt()
