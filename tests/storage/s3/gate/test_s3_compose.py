"""Composing on S3: what is long is copied by the server, what is sent is counted, and nothing is left of what fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from shardstore.errors import StorageError, Unsupported
from shardstore.model.generation import UNCONDITIONAL, Generation, IfGeneration
from shardstore.model.ranges import CopiedRange, NewBytes, Segment
from shardstore.opening.open import open_storage
from shardstore.storage.base import ConditionFailed
from shardstore.storage.requests.bucket import forget_facts
from shardstore.storage.s3.client import facts_of
from shardstore.storage.s3.parts import COPY_PAYS_NBYTES
from shardstore.storage.s3.storage import S3Storage
from shardstore.testing.storage_suite import SyncStorage, on_io_loop
from tests.storage.s3.gate.test_s3 import Calls, Refusal, S3Url, honour_on_completion, ignore, losing, unfinished_uploads

OLD = bytes(range(256)) * (12 * 4096)  # 12 MiB
APPEND: list[Segment] = [CopiedRange(0, len(OLD) - 100), NewBytes(b"new chunk"), NewBytes(b"index")]
APPENDED = OLD[:-100] + b"new chunkindex"


@pytest.fixture
def storage(s3_url: S3Url) -> Iterator[S3Storage]:
    url, options = s3_url
    opened = open_storage(url, options, transport="fsspec")
    assert isinstance(opened, S3Storage)
    yield opened
    forget_facts()


@pytest.fixture
def calls(storage: S3Storage, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Of a server that makes completions conditional, as AWS does."""
    on_io_loop(storage.probe())
    made = Calls(storage.fs, monkeypatch)
    honour_on_completion(storage, made)
    facts = facts_of(storage.client)
    facts.multipart_conditions = facts.copies_parts = facts.copies_on_condition = True
    return made


@pytest.fixture
def old(s: SyncStorage, calls: Calls) -> Generation:
    generation = s.put("a", OLD)
    calls.made.clear()
    return generation


def sent(calls: Calls) -> int:
    return sum(len(parameters.get("Body", b"")) for _, parameters in calls.made)


def test_an_append_copies_the_old_object(s: SyncStorage, calls: Calls, old: Generation, storage: S3Storage) -> None:
    new = s.compose("a", old, APPEND, IfGeneration(old))
    # One of them is how moto is made to honour the condition.
    methods = ["complete_multipart_upload", "create_multipart_upload", "head_object", "upload_part", "upload_part_copy"]
    assert sorted(calls.methods) == methods
    assert sent(calls) == len(b"new chunkindex")
    copy = next(parameters for method, parameters in calls.made if method == "upload_part_copy")
    assert copy["CopySourceIfMatch"] == old.token
    assert s.get("a") == APPENDED
    assert s.infos()[0].generation == new
    assert unfinished_uploads(storage) == 0
    with pytest.raises(ConditionFailed):
        s.compose("a", old, APPEND, IfGeneration(old))


def test_short_ranges_are_read_and_sent_between_long_ones(s: SyncStorage, calls: Calls, old: Generation) -> None:
    segments: list[Segment] = [
        NewBytes(b"<"),
        CopiedRange(500, 300),
        CopiedRange(0, COPY_PAYS_NBYTES),
        CopiedRange(10, 20),
        NewBytes(b"|"),
        CopiedRange(len(OLD) - 5, 5),
    ]
    s.compose("a", old, segments, IfGeneration(old))
    assert s.get("a") == b"<" + OLD[500:800] + OLD[:COPY_PAYS_NBYTES] + OLD[10:30] + b"|" + OLD[-5:]
    assert calls.methods.count("upload_part_copy") == 1
    assert calls.methods.count("upload_part") == 2
    assert sent(calls) < (5 << 20) + 100


def test_what_has_no_long_range_is_written_by_one_request(s: SyncStorage, calls: Calls, old: Generation) -> None:
    s.compose("a", old, [CopiedRange(0, 1000), NewBytes(b"new"), CopiedRange(5000, 10)], IfGeneration(old))
    assert s.get("a") == OLD[:1000] + b"new" + OLD[5000:5010]
    assert calls.methods == ["get_object", "put_object", "get_object"]


@pytest.mark.parametrize("condition", ["old", "none"])
def test_a_source_that_is_replaced_meanwhile(s: SyncStorage, calls: Calls, old: Generation, storage: S3Storage, condition: str) -> None:
    """moto ignores the condition on copied parts: the upload is not completed nevertheless."""
    original = storage.fs._call_s3

    async def call(method: str, *lists: Any, **parameters: Any) -> Any:
        response = await original(method, *lists, **parameters)
        if method == "upload_part_copy":
            key = storage.client.full_key("a")
            await original("put_object", Bucket=storage.client.bucket, Key=key, Body=b"another")
        return response

    storage.fs._call_s3 = call
    with pytest.raises(ConditionFailed):
        s.compose("a", old, APPEND, IfGeneration(old) if condition == "old" else UNCONDITIONAL)
    storage.fs._call_s3 = original
    assert s.get("a") == b"another"
    assert unfinished_uploads(storage) == 0


@pytest.mark.parametrize("failing", ["create_multipart_upload", "upload_part_copy", "upload_part", "complete_multipart_upload"])
def test_a_failure_leaves_the_old_object(s: SyncStorage, calls: Calls, old: Generation, storage: S3Storage, failing: str) -> None:
    def before(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if method == failing:
            raise Refusal("InvalidArgument", 400)
        return parameters

    calls.before = before
    with pytest.raises(StorageError):
        s.compose("a", old, APPEND, IfGeneration(old))
    assert s.get("a") == OLD
    assert unfinished_uploads(storage) == 0


def test_an_answer_that_is_lost(s: SyncStorage, calls: Calls, old: Generation) -> None:
    losing(calls, "complete_multipart_upload")
    new = s.compose("a", old, APPEND, IfGeneration(old))
    assert s.get("a") == APPENDED
    assert s.infos()[0].generation == new


def test_a_server_without_conditions_on_completion(s: SyncStorage, storage: S3Storage) -> None:
    assert on_io_loop(storage.probe()).compose
    old = s.put("a", OLD)
    with pytest.raises(Unsupported, match="ignores conditions on multipart uploads"):
        s.compose("a", old, APPEND, IfGeneration(old))  # moto
    assert not storage.capabilities.compose
    assert s.get("a") == OLD
    assert s.keys() == ["a"]


def test_where_nothing_is_conditional_anyway(s: SyncStorage, storage: S3Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(storage.fs, monkeypatch)
    calls.before = ignore("IfMatch", "IfNoneMatch", "CopySourceIfMatch")
    on_io_loop(storage.probe())
    old = s.put("a", OLD)
    s.compose("a", old, APPEND, UNCONDITIONAL)
    assert s.get("a") == APPENDED
    assert "head_object" in calls.methods


def test_a_server_that_does_not_copy_parts(s: SyncStorage, calls: Calls, old: Generation, storage: S3Storage) -> None:
    def before(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if method == "upload_part_copy":
            raise Refusal("NotImplemented", 501)
        return parameters

    calls.before = before
    with pytest.raises(Unsupported, match="does not copy parts"):
        s.compose("a", old, APPEND, IfGeneration(old))
    assert not storage.capabilities.compose
    assert s.get("a") == OLD
    assert unfinished_uploads(storage) == 0
