"""Copies between storages that the server, or the kernel, makes: where that can be, and ``None`` where not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardstore.model.generation import UNCONDITIONAL
from shardstore.opening.open import open_storage
from shardstore.opening.transports import Transport
from shardstore.storage.abilities import copy_between
from shardstore.storage.base import Storage
from shardstore.storage.s3.storage import S3Storage
from shardstore.storage.wrappers import innermost
from shardstore.testing.storage_suite import SyncStorage, on_io_loop
from tests.storage.s3.gate.test_s3 import Refusal

S3Url = tuple[str, dict[str, Any]]
GCSUrl = tuple[str, dict[str, Any]]
BODY = bytes(range(256)) * 100


def made_in(source: Storage, target: Storage) -> object:
    """Store an object at ``x/a``, copy it to ``y/b``, and return what the copy returned."""
    on_io_loop(source.write("x/a", [BODY], len(BODY), UNCONDITIONAL))
    return on_io_loop(copy_between(source, "x/a", target, "y/b"))


def check_copied(source: Storage, target: Storage) -> None:
    made = made_in(source, target)
    assert SyncStorage(target).get("y/b") == BODY
    (info,) = SyncStorage(target).infos("y/b")
    assert info.generation == made
    assert on_io_loop(copy_between(source, "nothing", target, "y/c")) is None
    assert SyncStorage(target).infos("y/c") == []


def test_local_roots(tmp_path: Path) -> None:
    check_copied(open_storage(tmp_path / "one"), open_storage(tmp_path / "two", fsync=False))


def below(storage: Storage) -> S3Storage:
    found = innermost(storage)
    assert isinstance(found, S3Storage)
    return found


@pytest.mark.parametrize("transport", ["fsspec", "obstore"])
def test_s3_prefixes_take_one_request_without_a_byte(transport: Transport, s3_url: S3Url, monkeypatch: pytest.MonkeyPatch) -> None:
    url, options = s3_url
    source, target = open_storage(f"{url}/one", options, transport=transport), open_storage(f"{url}/two", options, transport=transport)
    check_copied(source, target)
    fs = below(target).fs
    made: list[str] = []
    original = fs._call_s3

    async def call(method: str, *given: Any, **parameters: Any) -> Any:
        made.append(method)
        return await original(method, *given, **parameters)

    monkeypatch.setattr(fs, "_call_s3", call)
    on_io_loop(copy_between(source, "x/a", target, "y/d"))
    assert made == ["copy_object"]


def test_same_key_below_another_prefix_is_copied(s3_url: S3Url) -> None:
    """A copy onto itself is none; the same key elsewhere is not itself."""
    url, options = s3_url
    source, target = open_storage(f"{url}/one", options), open_storage(f"{url}/two", options)
    on_io_loop(source.write("a", [BODY], len(BODY), UNCONDITIONAL))
    assert on_io_loop(copy_between(source, "a", target, "a")) is not None
    assert SyncStorage(target).get("a") == BODY


def test_s3_buckets(s3_url: S3Url) -> None:
    url, options = s3_url
    source = open_storage(url, options)
    below(source).fs.call_s3("create_bucket", Bucket="another-bucket")
    check_copied(source, open_storage("s3://another-bucket/there", options))


def test_s3_in_parts_between_prefixes(s3_url: S3Url) -> None:
    url, options = s3_url
    source, target = open_storage(f"{url}/one", options), open_storage(f"{url}/two", options)
    part = 5 << 20
    body = BODY * (2 * part // len(BODY)) + b"tail"
    on_io_loop(source.write("a", [body], len(body), UNCONDITIONAL))
    client, fs = below(target).client, below(target).fs
    client.max_copy_bytes = client.min_copied_part_bytes = part
    original = fs._call_s3

    async def like_aws(method: str, *given: Any, **parameters: Any) -> Any:
        if method == "copy_object":
            raise Refusal("InvalidRequest", 400)
        return await original(method, *given, **parameters)

    fs._call_s3 = like_aws
    try:
        assert on_io_loop(copy_between(source, "a", target, "b")) is not None
    finally:
        del fs._call_s3
    assert SyncStorage(target).get("b") == body


def test_s3_with_other_credentials_is_left_to_the_caller(s3_url: S3Url) -> None:
    url, options = s3_url
    others = {**options, "key": "another"}
    assert made_in(open_storage(f"{url}/one", options), open_storage(f"{url}/two", others)) is None


def test_gcs_prefixes(gcs_url: GCSUrl) -> None:
    url, options = gcs_url
    check_copied(open_storage(f"{url}/one", options), open_storage(f"{url}/two", options))


@pytest.mark.parametrize("target", [lambda tmp_path: tmp_path / "two", lambda _: "memory://copied-to"], ids=["local", "memory"])
def test_other_kinds_are_left_to_the_caller(target: Callable[[Path], Any], tmp_path: Path) -> None:
    opened = open_storage(target(tmp_path))
    assert made_in(open_storage("memory://copied-from"), opened) is None
    assert SyncStorage(opened).infos("y/b") == []
