"""The one rule for requests whose answer was lost or is a refusal, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from shardstore.errors import AccessDenied, ShardStoreError, StorageError, WriteOutcomeUnknown
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, Condition, Generation, IfGeneration
from shardstore.storage.azure.blocks import AzureWrite
from shardstore.storage.base import ConditionFailed
from shardstore.storage.gcs.upload import _Write as GCSWrite
from shardstore.storage.requests import lost_answers
from shardstore.storage.requests.bucket import forget_facts
from shardstore.storage.requests.lost_answers import ObjectWrite, delete_object
from shardstore.storage.requests.outcomes import Head, RequestFailed
from shardstore.storage.s3.upload import S3Write

OLD, OURS, OTHER = Generation("1"), Generation("2"), Generation("3")
IF_OLD = IfGeneration(OLD)


class Client:
    """A place with one object, of one version or none."""

    url, endpoint, bucket = "test://place", "test://", "place"

    def __init__(self) -> None:
        self.there: Generation | None = None
        self.write_id: str | None = None
        self.looks = 0
        self.look_error: StorageError | None = None

    async def head(self, _key: str) -> Head | None:
        self.looks += 1
        if self.look_error is not None:
            raise self.look_error
        return None if self.there is None else Head(self.there, 1, self.write_id if self.there == OURS else None)


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often it was waited, without waiting."""
    waited: list[int] = []

    async def wait(sends: int) -> None:
        waited.append(sends)

    monkeypatch.setattr(lost_answers, "wait_to_resend", wait)
    forget_facts()
    return waited


def failed_with(status: int | None, code: str = "") -> RequestFailed:
    error = RequestFailed(f"answered {status} {code}")
    error.status, error.code = status, code
    return error


def new_write(kind: str, client: Client, condition: Condition) -> ObjectWrite:
    # A client of the tests knows nothing but looking.
    any_client: Any = client
    makers: dict[str, Callable[[], ObjectWrite]] = {
        "s3": lambda: S3Write(any_client, "a", condition),
        "gcs": lambda: GCSWrite(any_client, "a", 1, condition),
        "azure": lambda: AzureWrite(any_client, "a", condition),
    }
    write = makers[kind]()
    client.write_id = write.write_id
    return write


def judged(kind: str, there: Generation | None, condition: Condition, status: int | None, code: str = "") -> object:
    """``"stored"``, ``"again"`` or the class of the error."""
    client = Client()
    write = new_write(kind, client, condition)
    client.there = there
    try:
        stored = asyncio.run(write.judge(failed_with(status, code)))
    except ShardStoreError as exc:
        return type(exc)
    if stored is None:
        return "again"
    assert stored == OURS
    return "stored"


LOST = (None, 408, 500, 502, 503, 504)


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
@pytest.mark.parametrize("status", [*LOST, 429, 409])
def test_a_lost_answer_or_a_busy_server(kind: str, status: int | None) -> None:
    for condition in (IF_OLD, IF_ABSENT, UNCONDITIONAL):
        assert judged(kind, OURS, condition, status) == "stored"
    assert judged(kind, OLD, IF_OLD, status) == "again"
    assert judged(kind, None, IF_ABSENT, status) == "again"
    assert judged(kind, OTHER, IF_OLD, status) is ConditionFailed
    assert judged(kind, None, IF_OLD, status) is ConditionFailed
    assert judged(kind, OTHER, IF_ABSENT, status) is ConditionFailed
    assert judged(kind, OTHER, UNCONDITIONAL, status) == "again"


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_a_refused_condition(kind: str) -> None:
    for status in (412, 404):
        assert judged(kind, OURS, IF_OLD, status) == "stored"
        assert judged(kind, OTHER, IF_OLD, status) is ConditionFailed
        assert judged(kind, None, IF_OLD, status) is ConditionFailed
        assert judged(kind, OTHER, IF_ABSENT, status) is ConditionFailed
        assert judged(kind, None, IF_ABSENT, status) is ConditionFailed  # gone since
    if kind != "s3":
        assert judged(kind, OLD, IF_OLD, 412) is StorageError


def test_a_version_that_comes_again_is_tried_again_and_a_server_that_never_matches_is_an_error(waits: list[int]) -> None:
    """Another writer changes the object and changes it back: equal bytes are an equal ETag."""
    client, etag = Client(), Generation('"old"')
    write = new_write("s3", client, IfGeneration(etag))
    assert isinstance(write, S3Write)
    client.there = etag
    sent = []
    for _ in range(4):
        sent.append(write.headers["IfMatch"])
        assert asyncio.run(write.judge(failed_with(412))) is None
    assert waits == [1, 2, 3], "the other way to write an ETag is tried at once"
    assert sent == ['"old"', "old"] * 2
    sent.append(write.headers["IfMatch"])
    with pytest.raises(StorageError, match="does not accept the version"):
        asyncio.run(write.judge(failed_with(412)))
    client.there = OTHER
    with pytest.raises(ConditionFailed):
        asyncio.run(write.judge(failed_with(412)))


def test_the_way_to_write_an_etag_is_learned_where_the_object_keeps_changing() -> None:
    """As on Ceph, which knows ETags without quotes only: every refusal looks like a conflict."""
    client, etag = Client(), Generation('"old"')
    sent = []
    for _ in range(4):
        write = new_write("s3", client, IfGeneration(etag))
        assert isinstance(write, S3Write)
        client.there = OTHER
        sent.append(write.headers["IfMatch"])
        with pytest.raises(ConditionFailed):
            asyncio.run(write.judge(failed_with(412)))
    assert sent == ['"old"', "old"] * 2


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
@pytest.mark.parametrize("status", [400, 405, 411, 413, 416, 501])
def test_a_final_refusal_is_raised_without_a_look(kind: str, status: int) -> None:
    client = Client()
    for condition in (IF_OLD, UNCONDITIONAL):
        with pytest.raises(RequestFailed):
            asyncio.run(new_write(kind, client, condition).judge(failed_with(status)))
    assert client.looks == 0
    assert judged("s3", None, IF_OLD, 404, "NoSuchBucket") is RequestFailed
    assert judged("s3", OLD, IF_OLD, 404, "NoSuchUpload") == "again"


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_answers_that_keep_getting_lost(kind: str, waits: list[int]) -> None:
    for status, error in ((None, WriteOutcomeUnknown), (503, WriteOutcomeUnknown), (429, StorageError)):
        client = Client()
        write = new_write(kind, client, IF_ABSENT)
        waits.clear()
        for _ in range(3):
            assert asyncio.run(write.judge(failed_with(status))) is None
        assert waits == [1, 2, 3]
        with pytest.raises(error) as caught:
            asyncio.run(write.judge(failed_with(status)))
        assert isinstance(caught.value, WriteOutcomeUnknown) == (error is WriteOutcomeUnknown)
        client.there = OURS  # the last one was stored after all
        assert asyncio.run(write.judge(failed_with(status))) == OURS


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_what_cannot_be_looked_at_is_unknown(kind: str) -> None:
    client = Client()
    for look_error in (AccessDenied("no"), failed_with(None)):
        client.look_error = look_error
        for condition, status in ((IF_OLD, None), (IF_OLD, 412), (UNCONDITIONAL, 500)):
            with pytest.raises(WriteOutcomeUnknown, match="looked up"):
                asyncio.run(new_write(kind, client, condition).judge(failed_with(status)))


def test_where_nothing_can_be_sent_again() -> None:
    cases: list[tuple[Generation, Condition, int, type[Exception]]] = [
        (OLD, IF_OLD, 409, ConditionFailed),
        (OTHER, IF_OLD, 409, ConditionFailed),
        (OTHER, UNCONDITIONAL, 409, RequestFailed),
        (OLD, IF_OLD, 503, RequestFailed),
    ]
    for there, condition, status, expected in cases:
        client = Client()
        write = new_write("s3", client, condition)
        client.there = there
        with pytest.raises(expected):
            asyncio.run(write.judge(failed_with(status), can_resend=False))
    client.there = OURS
    client.write_id = write.write_id
    assert asyncio.run(write.judge(failed_with(409), can_resend=False)) == OURS


# -- deleting ----------------------------------------------------------------------------------------------------------


def deleted(there: Generation | None, condition: Condition, answers: list[RequestFailed], after: Generation | None) -> object:
    """What ``delete_object`` returns or raises, and how many requests it sent; ``after`` is there when the answers have failed."""
    client = Client()
    client.there = there
    sent = 0

    async def send() -> bool:
        nonlocal sent
        sent += 1
        if answers:
            client.there = after
            raise answers.pop(0)
        return True

    try:
        return asyncio.run(delete_object(send, client.head, "a", client.url, condition)), sent
    except ShardStoreError as exc:
        return type(exc), sent


@pytest.mark.parametrize("status", [*LOST, 409, 429])
def test_a_lost_answer_to_a_delete(status: int | None) -> None:
    answer: Callable[[], RequestFailed] = lambda: failed_with(status)  # noqa: E731
    assert deleted(OLD, IF_OLD, [answer()], after=None) == (True, 1)
    assert deleted(OLD, IF_OLD, [answer()], after=OLD) == (True, 2)
    assert deleted(OLD, UNCONDITIONAL, [answer()] * 3, after=OTHER) == (True, 4)
    assert deleted(OLD, IF_OLD, [answer()], after=OTHER) == (ConditionFailed, 1)
    assert deleted(OLD, IF_OLD, [answer() for _ in range(9)], after=OLD) == (WriteOutcomeUnknown, 4)


def test_a_refused_delete() -> None:
    assert deleted(OLD, IF_OLD, [failed_with(412)], after=OTHER) == (ConditionFailed, 1)
    assert deleted(OLD, IF_OLD, [failed_with(412)], after=None) == (True, 1)  # sent twice
    assert deleted(OLD, IF_OLD, [failed_with(404)], after=None) == (True, 1)
    assert deleted(OLD, IF_OLD, [failed_with(412)], after=OLD) == (ConditionFailed, 1)  # changed back since
    for status, code in ((400, ""), (404, "NoSuchBucket"), (501, "")):
        assert deleted(OLD, IF_OLD, [failed_with(status, code)], after=None) == (RequestFailed, 1)
