"""The GCS storage, against fake-gcs-server, and against servers and networks that behave as they should not."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import gzip
import io
import json
import pickle
import re
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import gcsfs
import gcsfs.retry
import google_crc32c
import numpy as np
import pytest
import zarr
from gcp_storage_emulator.server import create_server

from shardstore import ShardedStore
from shardstore.errors import AccessDenied, InvalidInput, StorageError, Unsupported, WriteOutcomeUnknown
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, Generation, IfGeneration
from shardstore.model.ranges import EVERYTHING, ByteOffset, ByteRange, ByteSuffix
from shardstore.storage.base import ABSENT, CHANGED, ConditionFailed, Failed, Found, ObjectInfo, Read
from shardstore.storage.gcs.client import facts_of
from shardstore.storage.gcs.storage import GCSStorage
from shardstore.storage.requests.bucket import forget_facts
from shardstore.testing.storage_suite import StorageSuite, SyncStorage, on_io_loop, pieces, values

GCSUrl = tuple[str, dict[str, Any]]
Answer = tuple[int, Any, Any, bytes]


def make_storage(endpoint: str, **options: Any) -> GCSStorage:
    """A place in a fresh bucket."""
    fs = gcsfs.GCSFileSystem(token="anon", endpoint_url=endpoint, project="test")
    bucket = f"bucket-{uuid.uuid4().hex}"
    fs.call("POST", "b", project="test", json={"name": bucket})
    return GCSStorage(fs, f"{bucket}/root", **options)


@pytest.fixture
def storage(gcs_endpoint: str) -> Iterator[GCSStorage]:
    yield make_storage(gcs_endpoint)
    forget_facts()


class Calls:
    """Records the requests of a gcsfs instance, above its retries, and lets a test come between."""

    def __init__(self, fs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, dict[str, Any]]] = []
        self.send = fs._request
        self.between: Callable[..., Any] = self.send
        self.location = fs._location

        async def request(method: str, path: str, *parts: str, **options: Any) -> Any:
            self.made.append((self.name(method, path, options), options))
            return await self.between(method, path, *parts, **options)

        monkeypatch.setattr(fs, "_request", request)

    def name(self, method: str, path: str, options: dict[str, Any]) -> str:
        if "rewriteTo" in path:
            return "rewrite"
        if "upload_id=" in path:
            return {"PUT": "part", "DELETE": "abort"}[method]
        if "/upload/" in path:
            return str(options["uploadType"])
        if options.get("alt") == "media":
            return "media"
        return "list" if path == "b/{}/o" else {"GET": "look", "DELETE": "delete"}[method]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.made]

    def when(self, name: str, act: Callable[..., Any], times: int = 10**9) -> None:
        """Let ``act(send, *arguments, **options)`` answer the next requests of this name."""
        left = times

        async def between(method: str, path: str, *parts: str, **options: Any) -> Any:
            nonlocal left
            if self.name(method, path, options) != name or not left:
                return await self.send(method, path, *parts, **options)
            left -= 1
            return await act(self.send, method, path, *parts, **options)

        self.between = between

    def ignore(self, *names: str) -> None:
        """As a server does that does not know these parameters and headers."""

        async def between(*arguments: str, **options: Any) -> Any:
            headers = {name: value for name, value in (options.pop("headers", None) or {}).items() if name not in names}
            return await self.send(*arguments, headers=headers, **{k: v for k, v in options.items() if k not in names})

        self.between = between


@pytest.fixture
def calls(storage: GCSStorage, monkeypatch: pytest.MonkeyPatch) -> Calls:
    on_io_loop(storage.probe())
    return Calls(storage.fs, monkeypatch)


class TestGCSStorage(StorageSuite):
    pass


class TestGCSStorageInParts(StorageSuite):
    """Everything but what is empty goes through resumable uploads, or through a file."""

    @pytest.fixture
    def storage(self, storage: GCSStorage) -> GCSStorage:
        return GCSStorage(storage.fs, storage.path, resumable_bytes=0)


# -- a hostile server --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile_endpoint() -> Iterator[str]:
    """A server that answers 200 to every condition and ignores it, knows no suffixes and tells no generation with the bytes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = create_server("127.0.0.1", port, in_memory=True)
    server._storage._write_config_to_file = lambda: None  # into memory again, of everything, with every request
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def hostile(hostile_endpoint: str) -> Iterator[GCSStorage]:
    yield make_storage(hostile_endpoint, concurrency=2)
    forget_facts()


@pytest.mark.filterwarnings("ignore:.* does not honour conditional writes:RuntimeWarning")
class TestHostileServer(StorageSuite):
    @pytest.fixture
    def storage(self, hostile: GCSStorage) -> GCSStorage:
        return hostile


def test_nothing_is_claimed_that_a_server_ignores(hostile: GCSStorage) -> None:
    s = SyncStorage(hostile)
    capabilities = on_io_loop(hostile.probe())
    assert s.keys() == []
    assert (capabilities.create_if_absent, capabilities.compare_and_swap, capabilities.conditional_delete) == (False, False, False)
    assert not capabilities.atomic_commits
    with pytest.warns(RuntimeWarning, match="one writer"):
        first = s.put("a", b"1", IF_ABSENT)
    second = s.put("a", b"2", IfGeneration(first))  # warned once
    for condition in (IF_ABSENT, IfGeneration(first)):
        with pytest.raises(ConditionFailed):
            s.put("a", b"3", condition)
    with pytest.raises(ConditionFailed):
        s.delete("a", IfGeneration(first))
    assert s.infos() == [ObjectInfo("a", 1, second)]


def test_a_server_that_tells_no_generation_with_the_bytes(hostile: GCSStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads are pinned all the same, by a look before and one after."""
    s = SyncStorage(hostile)
    generation = s.put("a", b"0123456789")
    calls = Calls(hostile.fs, monkeypatch)
    assert s.read("a", ByteSuffix(3)) == Found(generation, 10, (memoryview(b"789"),))
    assert calls.names == ["media", "look", "media", "look"]
    assert s.read("a", ByteSuffix(3)) == Found(generation, 10, (memoryview(b"789"),))
    assert calls.names[4:] == ["look", "media", "look"]
    # No suffix was asked for: this server would have answered with all of the object.
    assert [options["headers"].get("Range") for name, options in calls.made if name == "media"] == ["bytes=-3", "bytes=7-9", "bytes=7-9"]
    newer = None

    async def replaced(send: Callable[..., Any], *arguments: str, **options: Any) -> Any:
        nonlocal newer
        answer = await send(*arguments, **options)
        newer = await hostile.write("a", [b"newer"], 5, UNCONDITIONAL)
        return answer

    calls.when("media", replaced, times=1)
    assert s.read("a", EVERYTHING, generation=generation) == CHANGED
    calls.when("media", replaced, times=1)
    assert s.read("a", EVERYTHING) == Found(Generation(newer.token), 5, (memoryview(b"newer"),)) if newer else False


# -- probing -----------------------------------------------------------------------------------------------------------


def test_probing(storage: GCSStorage, s: SyncStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not storage.capabilities.compare_and_swap
    calls = Calls(storage.fs, monkeypatch)
    capabilities = on_io_loop(storage.probe())
    assert capabilities.atomic_commits
    assert not capabilities.conditional_delete  # fake-gcs-server ignores it, and deletes
    assert storage.capabilities == capabilities
    assert calls.names == ["multipart", "multipart", "multipart", "delete", "delete"]
    assert s.keys() == []
    on_io_loop(GCSStorage(storage.fs, storage.path).probe())
    assert calls.names[5:] == ["list"]


def test_google_is_left_as_it_was(storage: GCSStorage, s: SyncStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(storage.fs), "on_google", True)
    calls = Calls(storage.fs, monkeypatch)
    capabilities = on_io_loop(storage.probe())
    assert capabilities.atomic_commits
    assert capabilities.conditional_delete
    assert calls.names == ["multipart"]
    assert s.keys() == []


def test_a_server_that_knows_create_only(storage: GCSStorage, s: SyncStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(storage.fs, monkeypatch)

    async def between(*arguments: str, **options: Any) -> Any:
        if options.get("ifGenerationMatch") != "0":
            options.pop("ifGenerationMatch", None)
        return await calls.send(*arguments, **options)

    calls.between = between
    capabilities = on_io_loop(storage.probe())
    assert (capabilities.create_if_absent, capabilities.compare_and_swap) == (True, False)
    assert s.keys() == []


# -- reading -----------------------------------------------------------------------------------------------------------


def test_requests_of_reads(s: SyncStorage, calls: Calls) -> None:
    generation = s.put("a", b"0123456789")
    for ranges, pinned, expected in [
        ((ByteSuffix(3),), None, ["media"]),
        ((ByteRange(0, 2), ByteRange(3, 3), ByteOffset(8)), None, ["media"] * 2),
        ((ByteRange(0, 2), ByteSuffix(1)), generation, ["media"] * 2),
        ((ByteRange(3, 3),), None, ["look"]),
        ((), generation, ["look"]),
        ((ByteOffset(10),), generation, ["media", "look"]),
    ]:
        before = len(calls.made)
        assert isinstance(s.read("a", *ranges, generation=pinned), Found)
        assert calls.names[before:] == expected, ranges
    conditions = [options.get("ifGenerationMatch") for name, options in calls.made if name == "media"]
    assert conditions == [None, None, generation.token, generation.token, generation.token, generation.token]
    before = len(calls.made)
    assert s.read("nothing", ByteSuffix(3)) == ABSENT
    assert calls.names[before:] == ["media"]


def test_a_pin_that_the_server_checks(s: SyncStorage, calls: Calls) -> None:
    """As Google's, which answers 412; fake-gcs-server sends the other version."""
    old = s.put("a", b"old")
    s.put("a", b"new")

    async def refuse(*_: Any, **options: Any) -> Any:
        assert options["ifGenerationMatch"] == old.token
        raise FileExistsError("a")

    calls.when("media", refuse)
    assert s.read("a", EVERYTHING, ByteSuffix(1), generation=old) == CHANGED


def test_a_server_that_ignores_ranges(s: SyncStorage, calls: Calls) -> None:
    s.put("a", b"0123456789")
    calls.ignore("Range")
    outcome = s.read("a", ByteRange(2, 4), ByteSuffix(3), ByteOffset(9), ByteOffset(20))
    assert isinstance(outcome, Found)
    assert values(outcome) == [b"23", b"789", b"9", b""]


@pytest.mark.parametrize("request_", [ByteRange(2, 4), ByteSuffix(2)], ids=repr)
@pytest.mark.parametrize(
    "content_range", ["bytes 3-5/10", "bytes 2-3/*", "bytes 2-4/5", "bytes 4-2/10", "bytes 0-1/10", "bytes 0-9/10", "", "bytes 8-9/11"]
)
def test_a_server_that_answers_with_another_range(s: SyncStorage, calls: Calls, request_: Any, content_range: str) -> None:
    s.put("a", b"0123456789")

    async def lie(send: Callable[..., Any], *arguments: str, **options: Any) -> Answer:
        status, headers, info, body = await send(*arguments, **options)
        return status, {**headers, "X-Goog-Generation": headers["X-Goog-Generation"], "Content-Range": content_range}, info, body

    calls.when("media", lie)
    with pytest.raises(StorageError, match="'a'"):
        s.read("a", request_)


def test_objects_that_are_stored_compressed(storage: GCSStorage, s: SyncStorage) -> None:
    """The server sends them decompressed, and counts bytes in neither form reliably."""
    data = gzip.compress(b"0123456789" * 10)
    storage.fs.pipe_file(f"{storage.path}/a", data, fixed_key_metadata={"content_encoding": "gzip"})
    for request in (EVERYTHING, ByteRange(2, 4), ByteSuffix(3), ByteOffset(5)):
        with pytest.raises(StorageError, match=r"'a'.*Content-Encoding gzip"):
            s.read("a", request)


def test_a_version_that_changes_between_ranges(storage: GCSStorage, s: SyncStorage, calls: Calls) -> None:
    s.put("a", b"old")

    async def replaced(send: Callable[..., Any], *arguments: str, **options: Any) -> Any:
        answer = await send(*arguments, **options)
        await storage.write("a", [b"newer"], 5, UNCONDITIONAL)
        return answer

    calls.when("media", replaced, times=1)
    outcome = s.read("a", ByteRange(0, 3), ByteOffset(0))
    assert isinstance(outcome, Found)
    assert values(outcome) == [b"new", b"newer"]


# -- lost answers ------------------------------------------------------------------------------------------------------


class Network:
    """Comes between gcsfs's retries and the server."""

    def __init__(self, fs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.acts: list[Callable[[Any], Any]] = []
        self.slept: list[float] = []
        session = on_io_loop(fs._set_session())

        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        def request(**options: Any) -> Any:
            answer = session.request(**options)
            return self.acts.pop(0)(answer) if self.acts and options["method"] != "GET" else answer

        monkeypatch.setattr(gcsfs.retry, "asyncio", SimpleNamespace(sleep=sleep))
        monkeypatch.setattr(fs, "_session", SimpleNamespace(request=request, closed=False))

    @staticmethod
    @asynccontextmanager
    async def lose(answer: Any) -> AsyncIterator[Any]:
        """The request is carried out, the connection breaks."""
        async with answer as response:
            if await response.read() is not None:
                raise aiohttp.ServerDisconnectedError
            yield response

    @staticmethod
    @asynccontextmanager
    async def too_many(answer: Any) -> AsyncIterator[Any]:
        answer.close()

        async def read() -> bytes:
            return b'{"error": {"code": 429, "message": "The object exceeded the rate limit"}}'

        yield SimpleNamespace(status=429, headers={}, request_info=None, read=read)


@pytest.fixture
def network(storage: GCSStorage, monkeypatch: pytest.MonkeyPatch) -> Network:
    on_io_loop(storage.probe())
    return Network(storage.fs, monkeypatch)


def test_our_own_write_is_no_conflict(s: SyncStorage, network: Network) -> None:
    """gcsfs sends a write again whose answer was lost; the server refuses the second."""
    network.acts = [network.lose]
    first = s.put("a", b"1", IF_ABSENT)
    network.acts = [network.lose]
    second = s.put("a", b"2", IfGeneration(first))
    assert len(network.slept) == 2
    assert s.infos() == [ObjectInfo("a", 1, second)]
    assert s.get("a") == b"2"
    network.acts = [network.lose]
    with pytest.raises(ConditionFailed):
        s.put("a", b"3", IfGeneration(first))


def test_too_many_updates_of_an_object(s: SyncStorage, network: Network) -> None:
    network.acts = [network.too_many] * 3
    first = s.put("a", b"1", IF_ABSENT)
    assert len(network.slept) == 3
    assert min(network.slept) >= 1.0
    network.acts = [network.too_many] * 6  # gcsfs gives up
    second = s.put("a", b"2", IfGeneration(first))
    assert s.infos() == [ObjectInfo("a", 1, second)]
    network.acts = [network.too_many] * 24
    with pytest.raises(StorageError, match="one update a second") as caught:
        s.put("a", b"3", IfGeneration(second))
    assert not isinstance(caught.value, WriteOutcomeUnknown)
    assert s.infos() == [ObjectInfo("a", 1, second)]


async def broken_after(send: Callable[..., Any], *arguments: str, **options: Any) -> Any:
    await send(*arguments, **options)
    raise ConnectionResetError("the connection broke")


async def broken_before(_send: Callable[..., Any], *_arguments: str, **_options: Any) -> Any:
    raise ConnectionResetError("the connection broke")


def test_a_lost_answer(s: SyncStorage, calls: Calls) -> None:
    calls.when("multipart", broken_after)
    first = s.put("a", b"1", IF_ABSENT)
    second = s.put("a", b"2")
    with pytest.raises(ConditionFailed):
        s.put("a", b"3", IfGeneration(first))
    calls.when("multipart", broken_before)
    for condition in (UNCONDITIONAL, IfGeneration(second)):
        with pytest.raises(WriteOutcomeUnknown, match="'a'"):
            s.put("a", b"3", condition)
    assert s.infos() == [ObjectInfo("a", 1, second)]


def saying(body: bytes, *, carried_out: bool) -> Callable[..., Any]:
    """A success that names no version."""

    async def act(send: Callable[..., Any], *arguments: str, **options: Any) -> Any:
        if carried_out:
            await send(*arguments, **options)
        return 200, {}, None, body

    return act


@pytest.mark.parametrize("body", [b"", b"{}", b"<html>please sign in</html>"])
def test_a_success_that_names_no_version(s: SyncStorage, calls: Calls, body: bytes) -> None:
    """It may be the answer of something before the server: what was not stored is not acknowledged."""
    calls.when("multipart", saying(body, carried_out=False))
    for condition in (UNCONDITIONAL, IF_ABSENT):
        with pytest.raises(WriteOutcomeUnknown, match="'a'"):
            s.put("a", b"1", condition)
    calls.when("multipart", saying(body, carried_out=False), times=1)
    first = s.put("a", b"1", IF_ABSENT)
    assert s.infos() == [ObjectInfo("a", 1, first)]
    calls.when("multipart", saying(body, carried_out=True))
    second = s.put("a", b"22", IfGeneration(first))
    assert s.infos() == [ObjectInfo("a", 2, second)]


@pytest.mark.parametrize("body", [b"", b"{}", b"<html>please sign in</html>"])
def test_what_was_there_is_not_taken_for_what_came_after(storage: GCSStorage, s: SyncStorage, calls: Calls, body: bytes) -> None:
    """Without a condition nothing else would show that the write is lost."""
    in_parts = SyncStorage(GCSStorage(storage.fs, storage.path, resumable_bytes=0))
    for writer, name in ((s, "multipart"), (in_parts, "part")):
        calls.between = calls.send
        s.put("a", b"old")
        calls.when(name, saying(body, carried_out=False))
        with pytest.raises(WriteOutcomeUnknown, match="'a'"):
            writer.write("a", [b"newer"], 5)
        assert s.get("a") == b"old"


@pytest.mark.parametrize("code", [400, 403])
def test_a_success_that_cannot_be_looked_up(s: SyncStorage, calls: Calls, code: int) -> None:
    async def between(method: str, path: str, *parts: str, **options: Any) -> Any:
        name = calls.name(method, path, options)
        if name == "look":
            raise gcsfs.retry.HttpError({"code": code, "message": "no"})
        answer = await calls.send(method, path, *parts, **options)
        return (200, {}, None, b"{}") if name == "multipart" else answer

    calls.between = between
    with pytest.raises(WriteOutcomeUnknown, match="'a'"):
        s.put("a", b"new")
    calls.between = calls.send
    assert s.get("a") == b"new"


@pytest.mark.parametrize("code", [400, 413, 503])
def test_refusals(s: SyncStorage, calls: Calls, code: int) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise gcsfs.retry.HttpError({"code": code, "message": "no"})

    calls.when("multipart", refuse)
    before = len(calls.made)
    with pytest.raises(WriteOutcomeUnknown if code == 503 else StorageError, match="'a'"):
        s.put("a", b"1")
    assert calls.names[before:] == (["multipart", "look"] * 4 if code == 503 else ["multipart"])


def test_an_answer_that_cannot_be_settled(s: SyncStorage, calls: Calls) -> None:
    async def all_down(*_: Any, **__: Any) -> Any:
        raise ConnectionResetError("the connection broke")

    calls.between = all_down
    with pytest.raises(WriteOutcomeUnknown, match="cannot be looked up"):
        s.put("a", b"1")
    (outcome,) = s.read_many(Read("a", (EVERYTHING,)))
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, StorageError)


def damage(options: dict[str, Any]) -> dict[str, Any]:
    """The options of an upload, of which one byte changes on its way."""
    sent = options["data"].read()
    options["data"] = io.BytesIO(sent.replace(b"precious", b"precioud"))
    return options


def test_damage_on_the_way_is_noticed(storage: GCSStorage, s: SyncStorage, calls: Calls) -> None:
    async def damaging(send: Callable[..., Any], *arguments: str, **options: Any) -> Any:
        return await send(*arguments, **damage(options))

    calls.when("multipart", damaging)
    with pytest.raises(StorageError, match=r"'a'.*other bytes"):
        s.put("a", b"precious")
    calls.when("part", damaging)
    with pytest.raises(StorageError, match=r"'b'.*other bytes"):
        SyncStorage(GCSStorage(storage.fs, storage.path, resumable_bytes=0)).put("b", b"precious")


def test_a_server_that_checks_stores_nothing_damaged(hostile: GCSStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksum goes with the bytes."""
    s = SyncStorage(hostile)
    generation = s.put("a", b"precious")
    calls = Calls(hostile.fs, monkeypatch)

    async def damaging(send: Callable[..., Any], *arguments: str, **options: Any) -> Any:
        return await send(*arguments, **damage(options))

    calls.when("multipart", damaging)
    with pytest.raises(StorageError, match="CRC32C"):
        s.put("a", b"new and precious")
    assert s.infos() == [ObjectInfo("a", 8, generation)]


# -- large objects -----------------------------------------------------------------------------------------------------

PART = 256 << 10
LARGE = bytes(range(256)) * (PART // 256) * 2 + b"the rest"


@pytest.fixture
def large(storage: GCSStorage) -> SyncStorage:
    parted = GCSStorage(storage.fs, storage.path, resumable_bytes=1000)
    parted.client.upload_part_bytes = PART
    return SyncStorage(parted)


class HonouringUploads:
    """Lets resumable uploads check, when they end, the condition that they were started with, as Google's do."""

    def __init__(self, calls: Calls, bucket: str) -> None:
        self.calls = calls
        self.bucket = bucket
        self.lock = asyncio.Lock()
        self.conditions: dict[str, tuple[str, str]] = {}
        calls.between = self.between

    async def between(self, method: str, path: str, *parts: str, **options: Any) -> Any:
        name = self.calls.name(method, path, options)
        if name == "part":
            matched = re.fullmatch(r"bytes \d+-(\d+)/(\d+)", options["headers"]["Content-Range"])
            assert matched is not None
            async with self.lock:
                if int(matched[1]) + 1 == int(matched[2]) and path in self.conditions:
                    await self.check(*self.conditions[path], path)
                return await self.calls.send(method, path, *parts, **options)
        answer = await self.calls.send(method, path, *parts, **options)
        if name == "resumable" and "ifGenerationMatch" in options:
            self.conditions[answer[1]["Location"]] = (options["name"], options["ifGenerationMatch"])
        return answer

    async def check(self, key: str, wanted: str, path: str) -> None:
        try:
            _, _, _, body = await self.calls.send("GET", "b/{}/o/{}", self.bucket, key)
            found = json.loads(body)["generation"]
        except FileNotFoundError:
            found = "0"
        if found != wanted:
            raise FileExistsError(path)


@pytest.fixture
def honouring(storage: GCSStorage, calls: Calls) -> HonouringUploads:
    return HonouringUploads(calls, storage.path.partition("/")[0])


def test_an_upload_in_parts(large: SyncStorage, calls: Calls) -> None:
    generation = large.write("a", pieces(LARGE[:7], LARGE[7:-9], LARGE[-9:]), len(LARGE))
    assert calls.names == ["resumable", "part", "part", "part"]
    # Google's checks the bytes against this before they become the object.
    checksum = base64.b64encode(google_crc32c.value(LARGE).to_bytes(4, "big")).decode()
    hashes = [options["headers"].get("X-Goog-Hash") for name, options in calls.made if name == "part"]
    assert hashes == [None, None, f"crc32c={checksum}"]
    assert large.get("a") == LARGE
    assert large.infos() == [ObjectInfo("a", len(LARGE), generation)]


def test_aborting_has_no_condition(large: SyncStorage, calls: Calls) -> None:
    """Google's server puts the condition into the address of the upload, and would check it."""
    aborted: list[str] = []

    async def between(method: str, path: str, *parts: str, **options: Any) -> Any:
        name = calls.name(method, path, options)
        if name == "part":
            raise ConnectionResetError("the connection broke")
        if name == "abort":
            aborted.append(path)
        answer = await calls.send(method, path, *parts, **options)
        if name == "resumable":
            location = answer[1]["Location"].replace("?", "?ifGenerationMatch=12&")
            return answer[0], {"Location": location}, *answer[2:]
        return answer

    calls.between = between
    with pytest.raises(StorageError):
        large.write("a", [LARGE], len(LARGE))
    (path,) = aborted
    assert "?uploadType=resumable&" in path
    assert "upload_id" in path
    assert "ifGenerationMatch" not in path


def test_a_server_that_keeps_less_than_a_part(large: SyncStorage, calls: Calls) -> None:
    kept = iter([1000, 1])

    async def keep_less(send: Callable[..., Any], *arguments: str, **options: Any) -> Any:
        nbytes = next(kept)
        data, headers = options.pop("data").read(), options.pop("headers")
        start = int(headers["Content-Range"].removeprefix("bytes ").partition("-")[0])
        headers["Content-Range"] = f"bytes {start}-{start + nbytes - 1}/{len(LARGE)}"
        return await send(*arguments, data=data[:nbytes], headers=headers, **options)

    calls.when("part", keep_less, times=2)
    large.write("a", [LARGE], len(LARGE))
    assert calls.names.count("part") == 5
    assert large.get("a") == LARGE


@pytest.mark.parametrize("kept", ["", "bytes=0-99999999", "nonsense"])
def test_a_server_that_keeps_what_was_not_sent(large: SyncStorage, calls: Calls, kept: str) -> None:
    async def keep(*_: Any, **__: Any) -> Answer:
        return 308, {"Range": kept}, None, b""

    calls.when("part", keep)
    with pytest.raises(StorageError, match="'a'"):
        large.write("a", [LARGE], len(LARGE))
    assert calls.names[-1] == "abort"


@pytest.mark.parametrize("nbytes", [2 * PART, PART, len(LARGE) + 1])
def test_a_large_body_of_another_length_leaves_the_old_object(large: SyncStorage, calls: Calls, nbytes: int) -> None:
    generation = large.put("a", b"old")
    for condition in (UNCONDITIONAL, IfGeneration(generation)):
        with pytest.raises(InvalidInput):
            large.write("a", pieces(LARGE[:PART], LARGE[PART : 2 * PART], LARGE[2 * PART :]), nbytes, condition)
        assert large.infos() == [ObjectInfo("a", 3, generation)]
    assert calls.names.count("abort") == 1  # the conditional one went through a file


def test_conditions_where_parts_cannot_have_them(storage: GCSStorage, large: SyncStorage, calls: Calls) -> None:
    first = large.write("a", pieces(LARGE), len(LARGE), IF_ABSENT)
    assert facts_of(storage.client).resumable_conditions is False  # fake-gcs-server ignores them
    assert large.keys() == ["a"]
    assert large.get("a") == LARGE
    before = len(calls.made)
    second = large.write("a", [LARGE[:-1]], len(LARGE) - 1, IfGeneration(first))
    assert calls.names[before:] == ["multipart"]
    for condition in (IF_ABSENT, IfGeneration(first)):
        with pytest.raises(ConditionFailed):
            large.write("a", [LARGE], len(LARGE), condition)
    assert large.infos() == [ObjectInfo("a", len(LARGE) - 1, second)]


def test_a_spooled_body_carries_its_checksum(storage: GCSStorage, large: SyncStorage, calls: Calls) -> None:
    facts_of(storage.client).resumable_conditions = False
    sent: list[bytes] = []

    async def record(send: Callable[..., Any], *arguments: str, **options: Any) -> Any:
        sent.append(options["data"].read())
        return await send(*arguments, **options)

    calls.when("multipart", record)
    large.write("a", pieces(LARGE), len(LARGE), IF_ABSENT)
    (body,) = sent
    checksum = base64.b64encode(google_crc32c.value(LARGE).to_bytes(4, "big"))
    assert b'"crc32c": "%s"' % checksum in body
    assert LARGE in body


def test_a_spooled_body_is_sent_again(storage: GCSStorage, large: SyncStorage, network: Network) -> None:
    facts_of(storage.client).resumable_conditions = False
    network.acts = [network.too_many, network.lose]
    generation = large.write("a", pieces(LARGE), len(LARGE), IF_ABSENT)
    assert len(network.slept) == 2
    assert large.get("a") == LARGE
    assert large.infos() == [ObjectInfo("a", len(LARGE), generation)]


def test_what_is_too_large_for_a_file_is_refused(large: SyncStorage) -> None:
    assert isinstance(large.storage, GCSStorage)
    large.storage.client.max_spooled_bytes = 2000
    with pytest.raises(Unsupported, match="smaller shards"):
        large.write("a", [LARGE], len(LARGE), IF_ABSENT)
    large.write("a", [LARGE], len(LARGE))


def test_conditional_uploads_in_parts(storage: GCSStorage, large: SyncStorage, calls: Calls, honouring: HonouringUploads) -> None:
    first = large.write("a", pieces(LARGE), len(LARGE), IF_ABSENT)
    assert facts_of(storage.client).resumable_conditions is True
    assert large.keys() == ["a"]
    before = len(calls.made)
    second = large.write("a", pieces(LARGE[:-1]), len(LARGE) - 1, IfGeneration(first))
    assert calls.names[before:] == ["resumable", "part", "part", "part"]
    for condition in (IF_ABSENT, IfGeneration(first)):
        with pytest.raises(ConditionFailed):
            large.write("a", [LARGE], len(LARGE), condition)
    assert calls.names.count("abort") == 2
    assert large.infos() == [ObjectInfo("a", len(LARGE) - 1, second)]


@pytest.mark.parametrize("parts_have_conditions", [True, False])
def test_racing_large_writes_have_one_winner(
    storage: GCSStorage, large: SyncStorage, calls: Calls, honouring: HonouringUploads, parts_have_conditions: bool
) -> None:
    facts_of(storage.client).resumable_conditions = parts_have_conditions
    old = large.put("a", b"old")

    async def race() -> list[int]:
        async def write(i: int) -> bool:
            data = b"%d" % i * len(LARGE)
            try:
                await large.storage.write("a", pieces(data), len(data), IfGeneration(old))
            except ConditionFailed:
                return False
            return True

        won = await asyncio.gather(*(write(i) for i in range(6)))
        return [i for i, mine in enumerate(won) if mine]

    (winner,) = on_io_loop(race())
    assert large.get("a") == b"%d" % winner * len(LARGE)
    assert ("part" in calls.names) is parts_have_conditions


def test_a_lost_last_answer(storage: GCSStorage, large: SyncStorage, calls: Calls) -> None:
    async def lose_last(send: Callable[..., Any], *arguments: str, **options: Any) -> Any:
        answer = await send(*arguments, **options)
        if answer[0] != 308:
            raise ConnectionResetError("the connection broke")
        return answer

    calls.when("part", lose_last)
    generation = large.write("a", [LARGE], len(LARGE))
    assert large.infos() == [ObjectInfo("a", len(LARGE), generation)]


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_last_answer_that_names_no_version(large: SyncStorage, calls: Calls, carried_out: bool) -> None:
    async def say_nothing(send: Callable[..., Any], *arguments: str, **options: Any) -> Any:
        _, last, nbytes = map(int, re.findall(r"\d+", options["headers"]["Content-Range"]))
        is_last = last == nbytes - 1
        answer = await send(*arguments, **options) if carried_out or not is_last else None
        return (200, {}, None, b"{}") if is_last else answer

    calls.when("part", say_nothing)
    if carried_out:
        generation = large.write("a", [LARGE], len(LARGE))
        assert large.infos() == [ObjectInfo("a", len(LARGE), generation)]
        return
    with pytest.raises(WriteOutcomeUnknown, match="'a'"):
        large.write("a", [LARGE], len(LARGE))
    assert large.keys() == []


def test_a_failing_part_leaves_nothing(large: SyncStorage, calls: Calls) -> None:
    calls.when("part", broken_before)
    with pytest.raises(StorageError, match="the connection broke") as caught:
        large.write("a", [LARGE], len(LARGE))
    assert not isinstance(caught.value, WriteOutcomeUnknown)  # there was more to come
    assert calls.names == ["resumable", "part", "abort"]
    assert large.keys() == []


def test_a_cancelled_upload_leaves_nothing(large: SyncStorage, calls: Calls) -> None:
    async def cancel() -> None:
        waiting = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield LARGE[: 2 * PART]
            waiting.set()
            await asyncio.Event().wait()

        task = asyncio.ensure_future(large.storage.write("a", body(), len(LARGE), UNCONDITIONAL))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    on_io_loop(cancel())
    assert calls.names[-1] == "abort"
    assert large.keys() == []


# -- copying -----------------------------------------------------------------------------------------------------------


def test_a_copy_is_one_request(s: SyncStorage, calls: Calls) -> None:
    s.put("a", b"1")
    before = len(calls.made)
    s.copy("a", "b")
    assert calls.names[before:] == ["rewrite"]


def test_a_copy_in_steps_is_of_one_version(storage: GCSStorage, s: SyncStorage, calls: Calls) -> None:
    first = s.put("a", b"first")
    newer: list[Generation] = []

    async def in_steps(send: Callable[..., Any], *arguments: str, **options: Any) -> Any:
        source = options.get("sourceGeneration")
        token = options.pop("rewriteToken", None)
        if token is None:
            return 200, {}, None, json.dumps({"done": False, "rewriteToken": f"of-{source}"}).encode()
        assert token == f"of-{source}"
        if not newer:
            assert source == first.token
            newer.append(await storage.write("a", [b"newer"], 5, UNCONDITIONAL))
        return await send(*arguments, **options)

    calls.when("rewrite", in_steps)
    copied = s.copy("a", "b")
    assert copied is not None
    assert [options.get("sourceGeneration") for name, options in calls.made if name == "rewrite"] == [
        None,
        first.token,
        first.token,
        newer[0].token,
        newer[0].token,
    ]
    assert s.get("b") == b"newer"
    s.delete("a")
    assert s.copy("a", "b") is None


@pytest.mark.parametrize("replaced", [2, 3])
def test_a_source_that_is_replaced_all_the_time(storage: GCSStorage, s: SyncStorage, calls: Calls, replaced: int) -> None:
    s.put("a", b"first")
    left = replaced

    async def in_steps(send: Callable[..., Any], *arguments: str, **options: Any) -> Any:
        nonlocal left
        if "sourceGeneration" not in options:
            return 200, {}, None, b'{"done": false, "rewriteToken": "t"}'
        if left:
            left -= 1
            await storage.write("a", [b"newer"], 5, UNCONDITIONAL)
        return await send(*arguments, **options)

    calls.when("rewrite", in_steps)
    if replaced == 2:
        assert s.copy("a", "b") is not None
        assert s.get("b") == b"newer"
    else:
        with pytest.raises(StorageError, match="replaced 3 times"):
            s.copy("a", "b")


def test_a_copy_that_does_not_end(s: SyncStorage, calls: Calls) -> None:
    s.put("a", b"1")

    async def stuck(*_: Any, **__: Any) -> Answer:
        return 200, {}, None, b'{"done": false}'

    calls.when("rewrite", stuck)
    with pytest.raises(StorageError, match="'a' to 'b'"):
        s.copy("a", "b")


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_conditional_deletes(storage: GCSStorage, s: SyncStorage, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """On servers that honour them, as Google's, they are one request."""
    monkeypatch.setattr(type(storage.fs), "on_google", True)
    forget_facts()
    old, new = s.put("a", b"1", IF_ABSENT), s.put("a", b"2")

    async def check(send: Callable[..., Any], *arguments: str, **options: Any) -> Any:
        if options.pop("ifGenerationMatch") != new.token:
            raise FileExistsError("a")
        return await send(*arguments, **options)

    calls.when("delete", check)
    with pytest.raises(ConditionFailed):
        s.delete("a", IfGeneration(old))
    before = len(calls.made)
    assert s.delete("a", IfGeneration(new)) is True
    assert s.delete("a", IfGeneration(new)) is False
    assert calls.names[before:] == ["delete", "delete"]


def test_what_is_written_is_not_served_from_caches(storage: GCSStorage, large: SyncStorage) -> None:
    """Publicly readable objects are, for an hour, unless they say otherwise."""
    large.put("a", b"1")
    large.put("b", LARGE)
    large.copy("b", "c")
    assert [storage.fs.info(f"{storage.path}/{key}")["cacheControl"] for key in "abc"] == ["no-cache"] * 3


def test_requests_at_once(storage: GCSStorage, calls: Calls) -> None:
    few = GCSStorage(storage.fs, storage.path, concurrency=3)
    under_way: list[int] = [0, 0]

    async def count(*arguments: str, **options: Any) -> Any:
        under_way[0] += 1
        under_way[1] = max(under_way)
        try:
            return await calls.send(*arguments, **options)
        finally:
            under_way[0] -= 1

    calls.between = count
    SyncStorage(few).read_many(*(Read(f"{i}", (EVERYTHING, ByteSuffix(1))) for i in range(20)))
    assert under_way == [0, 3]


def test_gcsfs_sees_what_is_written(storage: GCSStorage, s: SyncStorage) -> None:
    fs = storage.fs
    s.put("d/a", b"1")
    assert fs.find(storage.path) == [f"{storage.path}/d/a"]
    s.put("d/b", b"2")
    assert fs.ls(f"{storage.path}/d") == [f"{storage.path}/d/a", f"{storage.path}/d/b"]
    s.delete("d/a")
    assert not fs.exists(f"{storage.path}/d/a")
    assert fs.ls(f"{storage.path}/d") == [f"{storage.path}/d/b"]
    s.copy("d/b", "d/c")
    assert fs.ls(f"{storage.path}/d") == [f"{storage.path}/d/b", f"{storage.path}/d/c"]
    s.delete_many("d/b", "d/c")
    assert not fs.exists(f"{storage.path}/d")


def test_listings_in_pages_without_markers(storage: GCSStorage, s: SyncStorage, calls: Calls) -> None:
    keys = [f"d/{i}" for i in range(7)]
    for key in [*keys, "e/f"]:
        s.put(key, b"1")

    async def pages_of_three(send: Callable[..., Any], *arguments: str, **options: Any) -> Answer:
        status, headers, info, body = await send(*arguments, maxResults="3", **options)
        page = json.loads(body)
        if "pageToken" not in options:  # fake-gcs-server stores no markers
            page["items"] = [{"name": "root/d/", "size": "0", "generation": "1"}, *page.get("items", [])]
        return status, headers, info, json.dumps(page).encode()

    calls.when("list", pages_of_three)
    before = len(calls.made)
    assert s.keys() == [*keys, "e/f"]
    assert calls.names[before:] == ["list"] * 3
    assert s.children("d/") == (keys, [])
    assert s.children() == ([], ["d/", "e/"])


def test_deletes_that_fail(s: SyncStorage, calls: Calls) -> None:
    for key in "abc":
        s.put(key, b"1")

    async def deny(send: Callable[..., Any], *arguments: str, **options: Any) -> Any:
        if arguments[-1].endswith("b"):
            raise OSError("Forbidden: no")
        return await send(*arguments, **options)

    calls.when("delete", deny)
    with pytest.raises(AccessDenied, match=r"1 of 3 .*'b'"):
        s.delete_many("a", "b", "c")
    assert s.keys() == ["b"]


def test_a_missing_bucket(gcs_endpoint: str) -> None:
    fs = gcsfs.GCSFileSystem(token="anon", endpoint_url=gcs_endpoint)
    actions: list[Callable[[SyncStorage], object]] = [
        lambda s: s.read("a", EVERYTHING),
        lambda s: s.stat("a"),
        lambda s: s.put("a", b"1"),
        lambda s: s.put("a", b"1", IF_ABSENT),
        lambda s: s.delete("a"),
        lambda s: s.copy("a", "b"),
        lambda s: s.keys(),
        lambda s: s.children(),
    ]
    for action in actions:
        with pytest.raises(StorageError, match="'no-such-bucket' does not exist"):
            action(SyncStorage(GCSStorage(fs, "no-such-bucket/x")))
    forget_facts()


@pytest.mark.parametrize(
    "error",
    [
        OSError("Forbidden: https://storage.googleapis.com/x\nno"),
        gcsfs.retry.HttpError({"code": 401, "message": "Anonymous caller does not have storage.objects.get access"}),
    ],
    ids=["403", "401"],
)
def test_denied_access(s: SyncStorage, calls: Calls, error: Exception) -> None:
    async def deny(*_: Any, **__: Any) -> Any:
        raise error

    calls.between = deny
    for action in (lambda: s.read("a", EVERYTHING), lambda: s.put("a", b"1"), lambda: s.delete("a"), lambda: s.stat("a")):
        with pytest.raises(AccessDenied, match=r"'a'.*anonymous.*storage_options={'gs': {'token': …}}"):
            action()


def test_a_path_without_a_bucket() -> None:
    with pytest.raises(InvalidInput, match="bucket"):
        GCSStorage(gcsfs.GCSFileSystem(token="anon"), "gs://")


def test_compose_is_left_to_the_engine(s: SyncStorage) -> None:
    with pytest.raises(Unsupported):
        s.compose("a", Generation("1"), [], UNCONDITIONAL)


def test_pickles_and_equality(storage: GCSStorage, s: SyncStorage) -> None:
    s.put("a", b"1")
    copy = pickle.loads(pickle.dumps(storage))
    assert copy == storage
    assert hash(copy) == hash(storage)
    assert copy != GCSStorage(storage.fs, f"{storage.path}/b")
    assert SyncStorage(copy).get("a") == b"1"


def test_importing_shardstore_imports_no_gcsfs() -> None:
    code = "import sys, shardstore.storage.gcs.storage; assert not {'gcsfs', 'aiohttp', 'google.auth', 'google.cloud'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# -- with the engine above ---------------------------------------------------------------------------------------------


def test_an_array_in_gcs(storage: GCSStorage, s: SyncStorage) -> None:
    data = np.arange(64 * 64, dtype="u2").reshape(64, 64)
    array = zarr.create_array(ShardedStore(storage, chunks_per_shard=(4, 4)), name="a", shape=(64, 64), chunks=(8, 8), dtype="u2")
    array[:] = data
    assert s.keys("a/c/") == ["a/c/0/0", "a/c/0/1", "a/c/1/0", "a/c/1/1"]
    again = zarr.open_array(ShardedStore(GCSStorage(storage.fs, storage.path)), path="a")
    np.testing.assert_array_equal(again[:], data)
    np.testing.assert_array_equal(zarr.open_array(zarr.storage.FsspecStore(_async(storage), path=storage.path), path="a")[:], data)


def _async(storage: GCSStorage) -> Any:
    """A filesystem of the same options for zarr's own store, which reads what is stored."""
    return gcsfs.GCSFileSystem(**{**storage.fs.storage_options, "asynchronous": True})


@pytest.mark.parametrize("resumable_bytes", [0, 1 << 20])
def test_two_clients_lose_none_of_the_chunks_of_a_shard(storage: GCSStorage, resumable_bytes: int) -> None:
    clients = [GCSStorage(storage.fs, storage.path, resumable_bytes=resumable_bytes) for _ in range(2)]
    zarr.create_array(ShardedStore(storage, chunks_per_shard=(16,)), name="a", shape=(64,), chunks=(4,), dtype="i4", fill_value=-1)
    arrays = [zarr.open_array(ShardedStore(client), path="a", mode="r+") for client in clients]

    def write(which: int) -> None:
        for chunk in range(which, 16, 2):
            arrays[which][4 * chunk : 4 * chunk + 4] = np.arange(4 * chunk, 4 * chunk + 4)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(write, range(2)))
    np.testing.assert_array_equal(zarr.open_array(ShardedStore(storage), path="a")[:], np.arange(64))
