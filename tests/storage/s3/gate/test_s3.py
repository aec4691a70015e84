"""The S3 storage, against moto, and against servers and networks that behave as they should not."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import s3fs

from shardstore.errors import AccessDenied, Conflict, StorageError, WriteOutcomeUnknown
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, IfGeneration
from shardstore.model.ranges import EVERYTHING, ByteOffset, ByteRange, ByteRequest, ByteSuffix
from shardstore.opening.open import open_storage
from shardstore.storage.base import Changed, ConditionFailed, Failed, Found, Read, ServerTimes
from shardstore.storage.requests.bucket import forget_facts
from shardstore.storage.requests.outcomes import WRITE_ID
from shardstore.storage.requests.parts import part_bytes_for
from shardstore.storage.s3.client import S3Client, facts_of
from shardstore.storage.s3.parts import MAX_PARTS
from shardstore.storage.s3.storage import S3Storage
from shardstore.testing.storage_suite import StorageSuite, SyncStorage, on_io_loop, pieces, values

S3Url = tuple[str, dict[str, Any]]


@pytest.fixture
def storage(s3_url: S3Url) -> Iterator[S3Storage]:
    url, options = s3_url
    opened = open_storage(url, options, transport="fsspec")
    assert isinstance(opened, S3Storage)
    yield opened
    forget_facts()


class Calls:
    """Records the calls of an s3fs instance, and lets a test come between."""

    def __init__(self, fs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, dict[str, Any]]] = []
        self.before: Callable[[str, dict[str, Any]], Any] = lambda _method, parameters: parameters
        self.after: Callable[[str, dict[str, Any], Any], Any] = lambda _method, _parameters, response: response
        original = fs._call_s3

        async def call(method: str, *lists: Any, **parameters: Any) -> Any:
            self.made.append((method, parameters))
            parameters = self.before(method, dict(parameters))
            response = await original(method, *lists, **parameters)
            return self.after(method, parameters, response)

        monkeypatch.setattr(fs, "_call_s3", call)

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.made]


@pytest.fixture
def calls(storage: S3Storage, monkeypatch: pytest.MonkeyPatch) -> Calls:
    on_io_loop(storage.probe())
    return Calls(storage.fs, monkeypatch)


def ignore(*names: str) -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    """As a server does that does not know these parameters."""
    return lambda _method, parameters: {name: value for name, value in parameters.items() if name not in names}


class TestS3Storage(StorageSuite):
    pass


# -- probing -----------------------------------------------------------------------------------------------------------


def test_a_conforming_server_is_left_as_it_was(storage: S3Storage, s: SyncStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not storage.capabilities.compare_and_swap
    calls = Calls(storage.fs, monkeypatch)
    capabilities = on_io_loop(storage.probe())
    assert capabilities.atomic_commits
    assert capabilities.conditional_delete
    assert storage.capabilities == capabilities
    assert calls.methods == ["put_object", "put_object", "put_object", "delete_object", "head_object", "delete_object"]
    assert s.keys() == []
    on_io_loop(S3Storage(storage.fs, storage.path).probe())
    assert len([method for method in calls.methods if method == "put_object"]) == 3


def test_a_server_that_ignores_conditions(storage: S3Storage, s: SyncStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(storage.fs, monkeypatch)
    calls.before = ignore("IfMatch", "IfNoneMatch")
    capabilities = on_io_loop(storage.probe())
    assert s.keys() == []
    assert (capabilities.pinned_reads, capabilities.create_if_absent, capabilities.compare_and_swap) == (True, False, False)
    assert not capabilities.conditional_delete
    with pytest.warns(RuntimeWarning, match="one writer"):
        first = s.put("a", b"1", IF_ABSENT)
    second = s.put("a", b"2", IfGeneration(first))  # warned once
    with pytest.raises(ConditionFailed):
        s.put("a", b"3", IF_ABSENT)
    with pytest.raises(ConditionFailed):
        s.put("a", b"3", IfGeneration(first))
    # Reads are pinned all the same.
    assert s.read("a", EVERYTHING, generation=first) == Changed()
    assert isinstance(s.read("a", ByteRange(0, 1), ByteSuffix(1), generation=second), Found)


def test_a_server_that_knows_create_only(storage: S3Storage, s: SyncStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(storage.fs, monkeypatch)
    calls.before = ignore("IfMatch")
    capabilities = on_io_loop(storage.probe())
    assert (capabilities.create_if_absent, capabilities.compare_and_swap) == (True, False)
    assert s.keys() == []


def test_a_server_that_wants_etags_unquoted(storage: S3Storage, s: SyncStorage, calls: Calls) -> None:
    def like_ceph(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if method == "put_object" and parameters.get("IfMatch", "").startswith('"'):
            parameters["IfMatch"] = '"never"'
        return parameters

    calls.before = like_ceph
    first = s.put("a", b"1")
    second = s.put("a", b"2", IfGeneration(first))
    before = len(calls.made)
    third = s.put("a", b"3", IfGeneration(second))
    assert calls.methods[before:] == ["put_object"]  # learned
    with pytest.raises(ConditionFailed):
        s.put("a", b"4", IfGeneration(first))
    assert s.infos()[0].generation == third


# -- lost answers ------------------------------------------------------------------------------------------------------


def losing(calls: Calls, what: str) -> None:
    """Carry out the next ``what``, then send it again as a proxy or client does whose answer was lost."""
    original = calls.after

    def again(method: str, parameters: dict[str, Any], response: Any) -> Any:
        if method != what:
            return response
        calls.after = original
        error = OSError(22, "At least one of the pre-conditions you specified did not hold")
        error.__cause__ = refusal = Exception()
        refusal.response = {"Error": {"Code": "PreconditionFailed"}, "ResponseMetadata": {"HTTPStatusCode": 412}}  # type: ignore[attr-defined]
        raise error

    calls.after = again


def test_our_own_write_is_no_conflict(s: SyncStorage, calls: Calls) -> None:
    losing(calls, "put_object")
    first = s.put("a", b"1", IF_ABSENT)
    losing(calls, "put_object")
    second = s.put("a", b"2", IfGeneration(first))
    assert s.infos()[0].generation == second
    assert s.get("a") == b"2"


def break_connection(calls: Calls, what: str, carried_out: bool) -> None:
    def broken_after(method: str, _parameters: dict[str, Any], response: Any) -> Any:
        if method == what:
            raise ConnectionResetError("the connection broke")
        return response

    def broken_before(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if method == what:
            raise ConnectionResetError("the connection broke")
        return parameters

    if carried_out:
        calls.after = broken_after
    else:
        calls.before = broken_before


def test_a_lost_answer(s: SyncStorage, calls: Calls) -> None:
    break_connection(calls, "put_object", carried_out=True)
    first = s.put("a", b"1", IF_ABSENT)
    s.put("a", b"2")
    with pytest.raises(ConditionFailed):
        s.put("a", b"3", IfGeneration(first))
    calls.after = lambda _method, _parameters, response: response
    break_connection(calls, "put_object", carried_out=False)
    with pytest.raises(WriteOutcomeUnknown, match="'a'"):
        s.put("a", b"3")
    assert s.get("a") == b"2"


def test_an_answer_that_cannot_be_settled(s: SyncStorage, calls: Calls) -> None:
    def all_down(method: str, _parameters: dict[str, Any]) -> dict[str, Any]:
        raise ConnectionResetError(f"{method}: the connection broke")

    calls.before = all_down
    with pytest.raises(WriteOutcomeUnknown, match="cannot be looked up"):
        s.put("a", b"1")
    (outcome,) = s.read_many(Read("a", (EVERYTHING,)))
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, StorageError)


def test_a_body_that_breaks_off_is_asked_for_again(s: SyncStorage, calls: Calls) -> None:
    generation = s.put("a", b"0123456789")
    failures = iter([True, False])

    class Breaking:
        async def __aenter__(self) -> Breaking:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def read(self) -> bytes:
            raise ConnectionResetError("the connection broke")

    def after(method: str, _parameters: dict[str, Any], response: Any) -> Any:
        if method == "get_object" and next(failures):
            response["Body"].close()
            return {**response, "Body": Breaking()}
        return response

    calls.after = after
    assert s.read("a", ByteRange(2, 4)) == Found(generation, 10, (memoryview(b"23"),))


# -- reading -----------------------------------------------------------------------------------------------------------


def test_requests_of_reads(s: SyncStorage, calls: Calls) -> None:
    generation = s.put("a", b"0123456789")
    for ranges, pinned, expected in [
        ((ByteSuffix(3),), None, ["get_object"]),
        ((ByteRange(0, 2), ByteRange(3, 3), ByteOffset(8)), None, ["get_object"] * 2),
        ((ByteRange(0, 2), ByteSuffix(1)), generation, ["get_object"] * 2),
        ((ByteRange(3, 3),), None, ["head_object"]),
        ((), generation, ["head_object"]),
        ((ByteOffset(10),), generation, ["get_object", "head_object"]),
    ]:
        before = len(calls.made)
        assert isinstance(s.read("a", *ranges, generation=pinned), Found)
        assert calls.methods[before:] == expected, ranges
    conditions = [parameters.get("IfMatch") for method, parameters in calls.made if method == "get_object"]
    assert conditions == [None, None, generation.token, generation.token, generation.token, generation.token]


def test_times_are_told_by_aws_alone(s: SyncStorage, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere they may be those of files."""
    before = time.time()
    s.put("a", b"0123456789")

    def times(*ranges: ByteRequest) -> ServerTimes | None:
        outcome = s.read("a", *ranges)
        assert isinstance(outcome, Found)
        return outcome.times

    assert times(EVERYTHING) is None
    monkeypatch.setattr(S3Client, "is_aws", True)
    cases: list[list[ByteRequest]] = [[EVERYTHING], [ByteRange(2, 4)], [ByteSuffix(3), ByteRange(0, 1)]]
    for ranges in cases:
        told = times(*ranges)
        assert told is not None
        assert before - 2 < told.stored <= told.asked < time.time() + 2

    def without(name: str) -> Callable[..., Any]:
        def after(method: str, _parameters: dict[str, Any], response: Any) -> Any:
            if method == "get_object":
                response["ResponseMetadata"]["HTTPHeaders"][name] = "soon"
            return response

        return after

    for name in ("date", "last-modified"):
        calls.after = without(name)
        assert times(EVERYTHING) is None


@pytest.mark.parametrize(
    "bucket",
    [
        "bucket",
        "a.bucket--of-s3",
        "plain-s3",
        "files-1a2b-ext-s3alias",
        "arn:aws:s3:us-east-1:123456789012:accesspoint/files",
        "fast--use1-az4--x-s3",
        "made--ol-s3",
        "many.mrap",
    ],
)
def test_times_of_files_are_not_believed(storage: S3Storage, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor on AWS, where a bucket may be a file system."""
    monkeypatch.setattr(S3Client, "is_aws", True)
    then = "Sun, 22 Nov 2026 08:00:00 GMT"
    answer = {"ResponseMetadata": {"HTTPHeaders": {"last-modified": then, "date": then}}}
    told = S3Client(storage.fs, bucket, "", 1).times_of(answer)
    assert (told is not None) == (bucket in ("bucket", "plain-s3"))
    assert (
        S3Client(storage.fs, "bucket", "", 1).times_of({**answer, "ETag": '"0123-2"'}) is None
    )  # begun long before it was stored, perhaps


def test_aws_is_told_by_what_is_connected_to(s3_url: S3Url, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment may name another server, which s3fs does not say."""
    _, options = s3_url
    endpoint = options["client_kwargs"]["endpoint_url"] if "client_kwargs" in options else options["endpoint_url"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    fs = s3fs.S3FileSystem(key=options["key"], secret=options["secret"], skip_instance_cache=True)
    client = S3Client(fs, "bucket", "", 1)
    assert client.endpoint == "aws"
    on_io_loop(client.connect())
    assert not client.is_aws
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    there = S3Client(s3fs.S3FileSystem(anon=True, skip_instance_cache=True), "bucket", "", 1)
    on_io_loop(there.connect())
    assert there.is_aws


def test_a_server_that_ignores_ranges(s: SyncStorage, calls: Calls) -> None:
    s.put("a", b"0123456789")
    calls.before = ignore("Range")
    outcome = s.read("a", ByteRange(2, 4), ByteSuffix(3), ByteOffset(9), ByteOffset(20))
    assert isinstance(outcome, Found)
    assert values(outcome) == [b"23", b"789", b"9", b""]


@pytest.mark.parametrize(
    "lie", [{"ContentRange": "bytes 3-5/10"}, {"ContentRange": "bytes 2-3/*"}, {"ContentRange": None}, {"ContentRange": "bytes 2-4/5"}]
)
def test_a_server_that_answers_with_another_range(s: SyncStorage, calls: Calls, lie: dict[str, Any]) -> None:
    s.put("a", b"0123456789")
    calls.after = lambda method, _parameters, response: {**response, **lie} if method == "get_object" else response
    with pytest.raises(StorageError, match="'a'"):
        s.read("a", ByteRange(2, 4))


def test_a_version_that_changes_between_ranges(storage: S3Storage, s: SyncStorage, calls: Calls) -> None:
    s.put("a", b"old")
    target = f"{storage.path}/a"
    code = (
        "import s3fs, sys\n"
        "fs = s3fs.S3FileSystem(key='test', secret='test', endpoint_url=sys.argv[1])\n"
        "fs.pipe_file(sys.argv[2], b'newer')\n"
    )
    changed = False

    def after(method: str, _parameters: dict[str, Any], response: Any) -> Any:
        nonlocal changed
        if method == "get_object" and not changed:
            changed = True  # by another client, between our two requests
            subprocess.run([sys.executable, "-c", code, storage.fs.endpoint_url, target], check=True, timeout=60)
        return response

    calls.after = after
    outcome = s.read("a", ByteRange(0, 3), ByteOffset(0))
    assert isinstance(outcome, Found)
    assert values(outcome) == [b"new", b"newer"]


# -- large objects -----------------------------------------------------------------------------------------------------

PART = 5 << 20
LARGE = os.urandom(1 << 20) * 12


@pytest.fixture
def large(storage: S3Storage) -> SyncStorage:
    parted = S3Storage(storage.fs, storage.path, multipart_bytes=1 << 20)
    parted.client.min_uploaded_part_bytes = PART
    return SyncStorage(parted)


def unfinished_uploads(storage: S3Storage) -> int:
    bucket = storage.path.partition("/")[0]
    return len(storage.fs.call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads", []))


def test_part_sizes() -> None:
    for nbytes in (1, 64 << 20, 16 * 10_000 << 20, (16 * 10_000 << 20) + 1, 5 << 40):
        size = part_bytes_for(nbytes, S3Client.min_uploaded_part_bytes, MAX_PARTS)
        assert size >= 8 << 20
        assert -(-nbytes // size) <= 10_000
        assert size % (1 << 20) == 0


def test_a_multipart_upload(storage: S3Storage, large: SyncStorage, calls: Calls) -> None:
    generation = large.write("a", pieces(LARGE[:7], LARGE[7 : 9 << 20], LARGE[9 << 20 :]), len(LARGE))
    assert calls.methods.count("upload_part") == 3
    assert large.get("a") == LARGE
    assert large.infos()[0].generation == generation
    assert unfinished_uploads(storage) == 0


def test_a_completion_without_an_etag(large: SyncStorage, calls: Calls) -> None:
    """As Ceph answers."""

    def after(method: str, _parameters: dict[str, Any], response: Any) -> Any:
        if method == "complete_multipart_upload":
            return {name: value for name, value in response.items() if name != "ETag"}
        return response

    calls.after = after
    generation = large.write("a", [LARGE], len(LARGE))
    assert large.infos()[0].generation == generation


def test_conditions_where_parts_cannot_have_them(storage: S3Storage, large: SyncStorage, calls: Calls) -> None:
    first = large.write("a", pieces(LARGE), len(LARGE), IF_ABSENT)  # moto ignores If-Match on completion
    assert facts_of(storage.client).multipart_conditions is False
    assert large.get("a") == LARGE
    second = large.write("a", [LARGE[:-1]], len(LARGE) - 1, IfGeneration(first))
    for condition in (IF_ABSENT, IfGeneration(first)):
        with pytest.raises(ConditionFailed):
            large.write("a", [LARGE], len(LARGE), condition)
    assert large.infos()[0].generation == second
    assert large.keys() == ["a"]
    assert unfinished_uploads(storage) == 0


def honour_on_completion(storage: S3Storage, calls: Calls) -> None:
    """Moto as AWS: conditions of a completion are checked."""
    client = storage.client
    original = storage.fs._call_s3

    async def call(method: str, *lists: Any, **parameters: Any) -> Any:
        if method == "complete_multipart_upload" and "IfMatch" in parameters:
            await original("head_object", Bucket=client.bucket, Key=parameters["Key"], IfMatch=parameters["IfMatch"])
        return await original(method, *lists, **parameters)

    storage.fs._call_s3 = call


def test_conditional_multipart_uploads(storage: S3Storage, large: SyncStorage, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage.fs, "_call_s3", storage.fs._call_s3)  # restored afterwards
    honour_on_completion(storage, calls)
    first = large.write("a", pieces(LARGE), len(LARGE), IF_ABSENT)
    assert facts_of(storage.client).multipart_conditions is True
    second = large.write("a", pieces(LARGE), len(LARGE), IfGeneration(first))
    losing(calls, "complete_multipart_upload")
    third = large.write("a", [LARGE[:-1]], len(LARGE) - 1, IfGeneration(second))
    for condition in (IF_ABSENT, IfGeneration(first)):
        with pytest.raises(ConditionFailed):
            large.write("a", [LARGE], len(LARGE), condition)
    assert large.infos()[0].generation == third
    assert large.keys() == ["a"]
    assert unfinished_uploads(storage) == 0


def test_a_failing_part_leaves_nothing(storage: S3Storage, large: SyncStorage, calls: Calls) -> None:
    def before(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if method == "upload_part" and parameters["PartNumber"] == 2:
            raise ConnectionResetError("the connection broke")
        return parameters

    calls.before = before
    with pytest.raises(StorageError, match="the connection broke"):
        large.write("a", [LARGE], len(LARGE))
    assert large.keys() == []
    assert unfinished_uploads(storage) == 0


def test_a_cancelled_upload_leaves_nothing(storage: S3Storage, large: SyncStorage, calls: Calls) -> None:
    async def cancel() -> None:
        started = asyncio.Event()

        async def body() -> Any:
            yield LARGE[: 6 << 20]
            started.set()
            await asyncio.sleep(60)

        task = asyncio.ensure_future(large.storage.write("a", body(), len(LARGE), UNCONDITIONAL))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    on_io_loop(cancel())
    assert "abort_multipart_upload" in calls.methods
    assert unfinished_uploads(storage) == 0


# -- copying -----------------------------------------------------------------------------------------------------------


class Refusal(Exception):
    """As s3fs raises it: botocore's answer is attached."""

    def __init__(self, code: str, status: int) -> None:
        super().__init__(code)
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


def test_a_copy_is_one_request_and_keeps_metadata(storage: S3Storage, s: SyncStorage, calls: Calls) -> None:
    bucket, _, prefix = storage.path.partition("/")
    headers = {"ContentType": "image/x", "CacheControl": "no-cache", "Metadata": {"who": "me"}}
    storage.fs.call_s3("put_object", Bucket=bucket, Key=f"{prefix}/a b+é", Body=b"1", **headers)
    calls.made.clear()
    copied = s.copy("a b+é", "d/b")
    assert calls.methods == ["copy_object"]
    head = storage.fs.call_s3("head_object", Bucket=bucket, Key=f"{prefix}/d/b")
    assert (head["ETag"], head["ContentType"], head["CacheControl"], head["Metadata"]["who"]) == (
        copied and copied.token,
        "image/x",
        "no-cache",
        "me",
    )
    assert s.copy("d/b", "d/b") == copied
    assert storage.fs.ls(f"{storage.path}/d", detail=False) == [f"{storage.path}/d/b"]
    s.copy("d/b", "d/c")
    assert storage.fs.ls(f"{storage.path}/d", detail=False) == [
        f"{storage.path}/d/b",
        f"{storage.path}/d/c",
    ]


def test_the_write_id_of_the_source_confirms_no_other_write(s: SyncStorage, calls: Calls) -> None:
    """A write whose answer is lost while a copy takes its key: the id that comes with the copy is not that write's."""
    s.put("a", b"source")
    first = s.put("b", b"1")

    def race(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if method == "put_object":
            calls.before = lambda _method, given: given
            raise TimeoutError("no answer")
        return parameters

    calls.before = race
    copied = s.copy("a", "b")
    with pytest.raises((WriteOutcomeUnknown, ConditionFailed)):
        s.put("b", b"2", IfGeneration(first))
    assert (s.get("b"), s.infos("b")[0].generation) == (b"source", copied)


def test_a_copy_that_is_not_confirmed_is_an_error(s: SyncStorage, calls: Calls) -> None:
    s.put("a", b"1")
    calls.after = lambda method, _parameters, response: {} if method == "copy_object" else response
    with pytest.raises(StorageError, match="does not say that it was copied"):
        s.copy("a", "b")


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        ("SlowDown", 503, "copying 'a' to 'b' failed: SlowDown"),
        ("InvalidRequest", 400, "copying 'a' to 'b' failed: InvalidRequest"),
        ("NoSuchBucket", 404, "the bucket .* does not exist"),
        ("AccessDenied", 403, "denied access"),
    ],
)
def test_errors_of_copies(s: SyncStorage, calls: Calls, code: str, status: int, message: str) -> None:
    s.put("a", b"1")

    def refuse(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if method == "copy_object":
            raise Refusal(code, status)
        return parameters

    calls.before = refuse
    with pytest.raises(StorageError, match=message):
        s.copy("a", "b")
    assert s.keys() == ["a"]


@pytest.fixture
def parted(storage: S3Storage, s: SyncStorage, calls: Calls) -> SyncStorage:
    """A server whose CopyObject takes little, and an object ``a`` that is longer."""
    storage.client.max_copy_bytes = storage.client.min_copied_part_bytes = PART
    s.put("a", bytes(range(256)) * (2 * PART // 256) + b"tail")

    def like_aws(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if method == "copy_object":
            raise Refusal("InvalidRequest", 400)
        return parameters

    calls.before = like_aws
    calls.made.clear()
    return s


def test_a_copy_in_parts(storage: S3Storage, parted: SyncStorage, calls: Calls) -> None:
    copied = parted.copy("a", "b")
    assert copied is not None
    before = ["copy_object", "head_object", "head_object", "create_multipart_upload"]
    assert calls.methods == [*before, *["upload_part_copy"] * 3, "head_object", "complete_multipart_upload"]
    ranges = sorted(parameters["CopySourceRange"] for method, parameters in calls.made if method == "upload_part_copy")
    assert ranges == [f"bytes=0-{PART - 1}", f"bytes={2 * PART}-{2 * PART + 3}", f"bytes={PART}-{2 * PART - 1}"]
    assert parted.get("b") == parted.get("a")
    assert parted.infos("b")[0].generation == copied
    assert parted.copy("nothing", "c") is None


def test_a_copy_in_parts_keeps_metadata(storage: S3Storage, parted: SyncStorage, calls: Calls) -> None:
    bucket, _, prefix = storage.path.partition("/")
    storage.fs.call_s3(
        "put_object", Bucket=bucket, Key=f"{prefix}/a", Body=bytes(PART + 1), ContentType="image/x", Metadata={"who": "me", WRITE_ID: "old"}
    )
    parted.copy("a", "b")
    head = storage.fs.call_s3("head_object", Bucket=bucket, Key=f"{prefix}/b")
    assert (head["ContentType"], head["Metadata"]["who"], head["ContentLength"]) == ("image/x", "me", PART + 1)
    assert head["Metadata"][WRITE_ID] != "old"


def test_a_source_that_is_replaced_between_its_parts(storage: S3Storage, parted: SyncStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """moto ignores the condition on the parts, as Ceph does: that the source has changed is seen behind them."""
    new = b"n" * (2 * PART + 1)
    recorded = storage.fs._call_s3
    replaced = False

    async def call(method: str, *lists: Any, **parameters: Any) -> Any:
        nonlocal replaced
        if method == "upload_part_copy" and not replaced:
            replaced = True
            await storage.write("a", [new], len(new), UNCONDITIONAL)
        return await recorded(method, *lists, **parameters)

    monkeypatch.setattr(storage.fs, "_call_s3", call)
    copied = parted.copy("a", "b")
    assert parted.get("b") == new
    assert parted.infos("b")[0].generation == copied
    assert unfinished_uploads(storage) == 0


def test_a_source_that_comes_back_between_its_parts(storage: S3Storage, parted: SyncStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes have the same ETag, but another write has stored them; the part between them was of others."""
    old = parted.get("a")
    assert old is not None
    new = b"n" * len(old)
    recorded = storage.fs._call_s3
    replaced = False

    async def call(method: str, *lists: Any, **parameters: Any) -> Any:
        nonlocal replaced
        if method != "upload_part_copy" or replaced:
            return await recorded(method, *lists, **parameters)
        replaced = True
        await storage.write("a", [new], len(new), UNCONDITIONAL)
        answer = await recorded(method, *lists, **parameters)
        await storage.write("a", [old], len(old), UNCONDITIONAL)
        return answer

    monkeypatch.setattr(storage.fs, "_call_s3", call)
    assert parted.copy("a", "b") is not None
    assert replaced
    assert parted.get("b") == old
    assert unfinished_uploads(storage) == 0


def test_a_source_that_keeps_changing(storage: S3Storage, parted: SyncStorage, calls: Calls) -> None:
    def another_version(method: str, _parameters: dict[str, Any], response: Any) -> Any:
        if method == "upload_part_copy":
            calls.after = next_head
        return response

    def next_head(method: str, parameters: dict[str, Any], response: Any) -> Any:
        if method == "head_object":
            calls.after = another_version
            return {**response, "ETag": '"another"'}
        return response

    calls.after = another_version
    with pytest.raises(Conflict, match="kept changing"):
        parted.copy("a", "b")
    assert calls.methods.count("create_multipart_upload") == 5
    assert unfinished_uploads(storage) == 0
    assert parted.keys() == ["a"]


def test_a_server_that_refuses_parts_of_another_version(storage: S3Storage, parted: SyncStorage, calls: Calls) -> None:
    before = calls.before

    def refuse(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if method == "upload_part_copy" and calls.methods.count("create_multipart_upload") == 1:
            assert parameters["CopySourceIfMatch"].startswith('"')
            raise Refusal("PreconditionFailed", 412)
        return before(method, parameters)  # type: ignore[no-any-return]

    calls.before = refuse
    assert parted.copy("a", "b") is not None
    assert calls.methods.count("create_multipart_upload") == 2
    assert parted.get("b") == parted.get("a")
    assert unfinished_uploads(storage) == 0


@pytest.mark.parametrize("failing", ["upload_part_copy", "head_object", "complete_multipart_upload"])
def test_a_failing_copy_in_parts_leaves_nothing(storage: S3Storage, parted: SyncStorage, calls: Calls, failing: str) -> None:
    before = calls.before

    def fail(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if method == failing and "upload_part_copy" in calls.methods:
            raise Refusal("InternalError", 400)
        return before(method, parameters)  # type: ignore[no-any-return]

    calls.before = fail
    with pytest.raises(StorageError, match="InternalError"):
        parted.copy("a", "b")
    calls.before = before
    assert unfinished_uploads(storage) == 0
    assert parted.keys() == ["a"]


def test_a_completed_copy_whose_answer_is_lost(parted: SyncStorage, calls: Calls) -> None:
    def lose(method: str, _parameters: dict[str, Any], response: Any) -> Any:
        if method == "complete_multipart_upload":
            raise TimeoutError("no answer")
        return response

    calls.after = lose
    copied = parted.copy("a", "b")
    assert parted.infos("b")[0].generation == copied
    before = calls.before

    def never(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        if method == "complete_multipart_upload":
            raise TimeoutError("no answer")
        return before(method, parameters)  # type: ignore[no-any-return]

    calls.before = never
    with pytest.raises(WriteOutcomeUnknown, match="'c'"):
        parted.copy("a", "c")


@pytest.mark.parametrize(("code", "status"), [("InvalidPart", 400), ("NoSuchKey", 404), ("NotImplemented", 501)])
def test_a_completed_copy_whose_second_completion_is_refused(parted: SyncStorage, calls: Calls, code: str, status: int) -> None:
    """The first answer was lost, and the request was sent again below: the copy is there."""

    def refuse(method: str, _parameters: dict[str, Any], response: Any) -> Any:
        if method == "complete_multipart_upload":
            raise Refusal(code, status)
        return response

    calls.after = refuse
    copied = parted.copy("a", "b")
    assert parted.infos("b")[0].generation == copied


def test_a_completed_copy_without_an_etag(parted: SyncStorage, calls: Calls) -> None:
    def like_ceph(method: str, _parameters: dict[str, Any], response: Any) -> Any:
        return {k: v for k, v in response.items() if k != "ETag"} if method == "complete_multipart_upload" else response

    calls.after = like_ceph
    copied = parted.copy("a", "b")
    assert parted.infos("b")[0].generation == copied


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_s3fs_sees_what_is_written(storage: S3Storage, s: SyncStorage) -> None:
    fs = storage.fs
    s.put("d/a", b"1")
    assert fs.find(storage.path) == [f"{storage.path}/d/a"]
    s.put("d/b", b"2")
    assert fs.ls(f"{storage.path}/d") == [f"{storage.path}/d/a", f"{storage.path}/d/b"]
    s.delete("d/a")
    assert not fs.exists(f"{storage.path}/d/a")
    fs.ls(f"{storage.path}/d")
    s.delete_many("d/b")
    assert not fs.exists(f"{storage.path}/d")


def test_deletes_and_listings_by_the_thousand(s: SyncStorage, calls: Calls) -> None:
    s.put("a", b"1")
    s.delete_many("a", *(f"n/{i}" for i in range(2500)))
    assert calls.methods.count("delete_objects") == 3
    assert s.keys() == []


def test_deletes_that_fail(s: SyncStorage, calls: Calls) -> None:
    denied = [{"Key": "root/a", "Code": "AccessDenied", "Message": "no"}]
    calls.after = lambda method, _parameters, response: {**response, "Errors": denied} if method == "delete_objects" else response
    with pytest.raises(StorageError, match=r"1 of 2 .*'a'"):
        s.delete_many("a", "b")


def test_a_missing_bucket(s3_endpoint: str) -> None:
    s = SyncStorage(
        open_storage("s3://no-such-bucket/x", {"key": "test", "secret": "test", "endpoint_url": s3_endpoint}, transport="fsspec")
    )
    for action in (lambda: s.read("a", EVERYTHING), lambda: s.put("a", b"1", IF_ABSENT), s.keys, s.children):
        with pytest.raises(StorageError, match="'no-such-bucket' does not exist"):
            action()


def test_missing_credentials(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    s = SyncStorage(open_storage("s3://bucket/x", {"endpoint_url": s3_endpoint, "skip_instance_cache": True}, transport="fsspec"))
    with pytest.raises(AccessDenied, match=r"storage_options=.*{'anon': True}"):
        s.read("a", EVERYTHING)
    with pytest.raises(AccessDenied, match="storage_options"):
        s.put("a", b"1")


def test_denied_access(s: SyncStorage, calls: Calls) -> None:
    def deny(_method: str, _parameters: dict[str, Any]) -> dict[str, Any]:
        raise PermissionError("Access Denied")

    calls.before = deny
    with pytest.raises(AccessDenied, match="'a'"):
        s.read("a", EVERYTHING)
    with pytest.raises(AccessDenied, match="'a'"):
        s.put("a", b"1")


def test_pickles_and_equality(storage: S3Storage, s: SyncStorage) -> None:
    s.put("a", b"1")
    copy = pickle.loads(pickle.dumps(storage))
    assert copy == storage
    assert hash(copy) == hash(storage)
    assert SyncStorage(copy).get("a") == b"1"


def test_instances_of_another_loop_are_replaced(storage: S3Storage, s: SyncStorage) -> None:
    s.put("a", b"1")
    options = storage.fs.storage_options

    async def other_loop() -> S3Storage:
        theirs = s3fs.S3FileSystem(**{**options, "asynchronous": True}, loop=asyncio.get_running_loop())
        opened = open_storage((theirs, storage.path), transport="fsspec")
        assert isinstance(opened, S3Storage)
        assert opened.fs is not theirs
        return opened

    opened = asyncio.run(other_loop())
    assert not opened.fs.asynchronous
    assert SyncStorage(opened).get("a") == b"1"


def test_importing_shardstore_imports_no_s3fs() -> None:
    imported = "import sys, shardstore.opening.open, shardstore.storage.s3.storage"
    code = f"{imported}; assert not {{'s3fs', 'botocore', 'aiobotocore'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
