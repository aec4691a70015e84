"""A server of S3 whose client may not list the bucket: it answers 403 of every object that is absent."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import fsspec
import pytest
import zarr
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

import shardstore
from shardstore.errors import AccessDenied

_DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


class Policy:
    """A WSGI application in front of moto's that denies what a policy without ``s3:ListBucket`` denies."""

    def __init__(self) -> None:
        self.app = DomainDispatcherApplication(create_backend_app)
        self.may_list = True

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if self.may_list:
            return self.app(environ, start_response)
        answers: list[tuple[str, Any]] = []
        body = b"".join(self.app(environ, lambda status, headers, *_: answers.append((status, headers))))
        status, headers = answers[0]
        lists = environ["REQUEST_METHOD"] == "GET" and environ["PATH_INFO"].count("/") < 2
        if not status.startswith("404") and not lists:
            start_response(status, headers)
            return [body]
        start_response("403 Forbidden", [("Content-Type", "application/xml"), ("Content-Length", str(len(_DENIED)))])
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else _DENIED]


@pytest.fixture
def store() -> Iterator[tuple[str, dict[str, Any]]]:
    """The URL of a group ``g`` in a bucket, with a sharded array, and the options to open it; the client may not list any more."""
    policy = Policy()
    server = make_server("127.0.0.1", 0, policy, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = {"key": "any", "secret": "any", "endpoint_url": f"http://127.0.0.1:{server.server_port}"}
    try:
        bucket = f"bucket-{uuid.uuid4().hex}"
        fsspec.filesystem("s3", **options).mkdir(bucket)
        made = shardstore.open(f"s3://{bucket}/top/g", storage_options=options, chunks_per_shard=(2,))
        zarr.create_array(made, name="a", shape=(8,), chunks=(2,), dtype="u1", compressors=None)[...] = 1
        policy.may_list = False
        yield f"s3://{bucket}/top/g", options
    finally:
        server.shutdown()
        server.server_close()


def test_what_is_there_is_read(store: tuple[str, dict[str, Any]]) -> None:
    url, options = store
    group = zarr.open_group(shardstore.open(url, storage_options=options, read_only=True), mode="r")
    assert group["a"][...].tolist() == [1] * 8  # type: ignore[index,union-attr]
    chunks = shardstore.get_mapper(url, storage_options=options)
    assert ".zgroup" not in chunks
    with pytest.raises(AccessDenied):
        chunks["no/zarr.json"]
    assert chunks["a/c/0"] == b"\1\1"


def test_a_chunk_is_read_by_its_url(store: tuple[str, dict[str, Any]]) -> None:
    """Where the hierarchy begins is looked for in what may be absent above it."""
    url, options = store
    with fsspec.open(f"sharded::{url}/a/c/3", s3=options) as file:
        assert file.read() == b"\1\1"
    files, path = fsspec.url_to_fs(f"sharded::{url}", s3=options)
    assert files.cat(f"{path}/a/c/3") == b"\1\1"
