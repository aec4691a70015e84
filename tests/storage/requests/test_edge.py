"""Errors of requests leave the storages of servers as classes of ``shardstore.errors``."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import gcsfs
import pytest
import s3fs
from fsspec.implementations.http import HTTPFileSystem

import shardstore
from shardstore.errors import NO_SUCH_BUCKET, ShardStoreError, StorageError, WriteOutcomeUnknown
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import Generation, IfGeneration, Unconditional
from shardstore.model.ranges import EVERYTHING, CopiedRange
from shardstore.storage.base import Failed, Read
from shardstore.storage.gcs.client import GCSClient
from shardstore.storage.gcs.storage import GCSStorage
from shardstore.storage.http.client import HTTPClient
from shardstore.storage.http.storage import HTTPStorage
from shardstore.storage.requests.bucket import forget_facts
from shardstore.storage.requests.outcomes import RequestFailed, as_known
from shardstore.storage.s3.client import S3Client, facts_of
from shardstore.storage.s3.storage import S3Storage

VERSION = IfGeneration(Generation('"x"'))


def failing(monkeypatch: pytest.MonkeyPatch, status: int | None, code: str) -> S3Storage:
    """A storage each of whose requests fails."""

    async def fail(*_arguments: Any, **_parameters: Any) -> None:
        error = RequestFailed(f"answered {status} {code}")
        error.status, error.code = status, code
        raise error from aiohttp.ClientError("below")

    async def nothing(self: Any) -> None:
        return None

    monkeypatch.setattr(S3Client, "unbounded_call", fail)
    monkeypatch.setattr(S3Client, "connect", nothing)
    return S3Storage(s3fs.S3FileSystem(anon=True, endpoint_url="http://127.0.0.1:9"), f"bucket-{status}-{code}/x".lower())


async def all_of(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


async def read(storage: S3Storage) -> None:
    (outcome,) = await storage.read([Read("k", (EVERYTHING,))])
    assert isinstance(outcome, Failed)
    raise outcome.error


async def compose(storage: S3Storage) -> None:
    facts_of(storage.client).capabilities = Capabilities(compose=True, compare_and_swap=True)
    try:
        await storage.compose("k", VERSION.generation, [CopiedRange(0, 1)], VERSION)
    finally:
        forget_facts()


CALLS: dict[str, Callable[[Any], Any]] = {
    "read": read,
    "stat": lambda storage: storage.stat("k"),
    "write": lambda storage: storage.write("k", [b"1"], 1, Unconditional()),
    "write_if": lambda storage: storage.write("k", [b"1"], 1, VERSION),
    "compose": compose,
    "copy": lambda storage: storage.copy("k", "other"),
    "delete": lambda storage: storage.delete("k", Unconditional()),
    "delete_many": lambda storage: storage.delete_many(["k"]),
    "list": lambda storage: all_of(storage.list("")),
    "list_dir": lambda storage: storage.list_dir(""),
    "probe": lambda storage: storage.probe(),
    "version_suffixes": lambda storage: storage.version_suffixes(),
    "unfinished_uploads": lambda storage: all_of(storage.unfinished_uploads("")),
    "leftovers": lambda storage: storage.leftovers(""),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_failed_request_is_a_storage_error(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    storage = failing(monkeypatch, 400, "Strange")
    with pytest.raises(StorageError, match="answered 400 Strange") as raised:
        asyncio.run(CALLS[name](storage))
    error = raised.value
    assert type(error) is StorageError
    assert (error.status, error.code, error.is_unreachable, error.has_no_place) == (400, "Strange", False, False)
    assert "RequestFailed" not in "".join(traceback.format_exception(error))
    assert isinstance(error.__cause__, aiohttp.ClientError)


@pytest.mark.parametrize("name", CALLS)
def test_a_missing_bucket_is_an_error_without_those_below(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    storage = failing(monkeypatch, 404, NO_SUCH_BUCKET)
    with pytest.raises(StorageError, match=NO_SUCH_BUCKET) as raised:
        asyncio.run(CALLS[name](storage))
    assert raised.value.has_no_place
    assert (raised.value.__cause__, raised.value.__suppress_context__) == (None, True)


OF_GCS: dict[str, Callable[[Any], Any]] = {
    **{name: CALLS[name] for name in ("read", "stat", "write", "copy", "delete", "delete_many", "list", "list_dir")},
    "delete_if": lambda storage: storage.delete("k", IfGeneration(Generation("5"))),
    "keeps_versions": lambda storage: storage.keeps_versions(),
}
OF_HTTP = {name: CALLS[name] for name in ("read", "stat", "list", "list_dir", "probe")}


@pytest.mark.parametrize(
    ("cls", "name"), [(GCSStorage, name) for name in OF_GCS] + [(HTTPStorage, name) for name in OF_HTTP], ids=lambda value: str(value)
)
def test_a_failed_request_of_google_and_of_http_is_a_storage_error(monkeypatch: pytest.MonkeyPatch, cls: Any, name: str) -> None:
    async def fail(*_arguments: Any, **_parameters: Any) -> None:
        error = RequestFailed("answered 400")
        error.status = 400
        raise error

    monkeypatch.setattr(GCSClient, "request", fail)
    monkeypatch.setattr(HTTPClient, "request", fail)
    storage = GCSStorage(gcsfs.GCSFileSystem(token="anon"), "b/x") if cls is GCSStorage else HTTPStorage(HTTPFileSystem(), "http://h/x")
    with pytest.raises(StorageError, match="answered 400") as raised:
        asyncio.run((OF_GCS | OF_HTTP if cls is GCSStorage else OF_HTTP)[name](storage))
    assert type(raised.value) is StorageError


def test_causes_are_known_too() -> None:
    error: ShardStoreError = WriteOutcomeUnknown("who knows")
    error.__cause__, error.__cause__.__cause__ = RequestFailed("lost"), error  # leads back
    assert as_known(error) is error
    assert type(error.__cause__) is StorageError


def test_faces_leave_out_their_own_frames_where_there_is_no_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, 404, NO_SUCH_BUCKET)
    chunks = shardstore.get_mapper("s3://nowhere/x", storage_options={"anon": True})
    for use in (lambda: chunks["k"], lambda: list(chunks), lambda: chunks.update(k=b"1"), lambda: "k" in chunks):
        with pytest.raises(StorageError, match=NO_SUCH_BUCKET) as raised:
            use()
        assert len(traceback.extract_tb(raised.value.__traceback__)) <= 7, use
