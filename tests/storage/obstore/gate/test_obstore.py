"""The obstore transport: the same contract as the storages below it, and the same versions."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import obstore
import pytest
import zarr

import shardstore
from shardstore.errors import AccessDenied, StorageError, WriteOutcomeUnknown
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, Generation, IfGeneration
from shardstore.model.ranges import EVERYTHING, ByteOffset, ByteRange, ByteRequest, ByteSuffix
from shardstore.opening.open import open_storage
from shardstore.storage.azure.storage import AzureStorage
from shardstore.storage.base import Absent, Changed, ConditionFailed, Found, Read
from shardstore.storage.obstore.azure import ObstoreAzureStorage
from shardstore.storage.obstore.gcs import ObstoreGCSStorage
from shardstore.storage.obstore.s3 import ObstoreS3Storage
from shardstore.storage.requests.bucket import forget_facts
from shardstore.testing.storage_suite import StorageSuite, SyncStorage, on_io_loop, values
from tests.harness import misbehaviours as mis
from tests.harness.azurite import signed_connection_string
from tests.harness.misbehaving_server import MisbehavingServer
from tests.limits import resend_at_once
from tests.storage.obstore.obstore_proxied import OURS, THEIRS, AnyObstore, Proxied, Url, proxied

pytestmark = pytest.mark.usefixtures("fresh_facts")


class TestObstoreS3Storage(StorageSuite):
    @pytest.fixture
    def storage(self, on_s3: ObstoreS3Storage) -> ObstoreS3Storage:
        return on_s3


class TestObstoreGCSStorage(StorageSuite):
    @pytest.fixture
    def storage(self, on_gcs: ObstoreGCSStorage) -> ObstoreGCSStorage:
        return on_gcs


class TestObstoreAzureStorage(StorageSuite):
    @pytest.fixture
    def storage(self, on_azure: ObstoreAzureStorage) -> ObstoreAzureStorage:
        return on_azure


# -- the same place by two ways ----------------------------------------------------------------------------------------


@pytest.fixture(params=["s3", "gcs", "azure"])
def both(request: pytest.FixtureRequest) -> AnyObstore:
    found: AnyObstore = request.getfixturevalue(f"on_{request.param}")
    return found


def test_both_transports_name_the_same_versions(both: AnyObstore) -> None:
    """What one stores the other finds, pins and replaces; so caches and pickles of the one are good for the other."""
    over, below = SyncStorage(both), SyncStorage(both.inner)
    first = over.put("d/a", b"first", IF_ABSENT)
    ranges = (ByteRange(1, 3), ByteSuffix(2), EVERYTHING)
    assert over.read("d/a", *ranges, generation=first) == below.read("d/a", *ranges, generation=first)
    assert over.stat("d/a") == below.stat("d/a")
    assert over.infos() == below.infos()
    assert on_io_loop(both.list_dir("d/")) == on_io_loop(both.inner.list_dir("d/"))
    second = below.put("d/a", b"second", IfGeneration(first))
    assert over.read("d/a", EVERYTHING, generation=first) == Changed()
    assert over.read("d/a", EVERYTHING, generation=second) == below.read("d/a", EVERYTHING)
    with pytest.raises(ConditionFailed):
        over.put("d/a", b"third", IfGeneration(first))
    over.put("d/a", b"third", IfGeneration(second))
    assert below.get("d/a") == b"third"
    assert both.asked_below == 0


def test_two_clients_of_either_transport_lose_none_of_the_chunks_of_a_shard(both: AnyObstore) -> None:
    zarr.create_array(shardstore.ShardedStore(both, chunks_per_shard=(16,)), name="a", shape=(64,), chunks=(4,), dtype="i4", fill_value=-1)
    arrays = [zarr.open_array(shardstore.ShardedStore(storage), path="a", mode="r+") for storage in (both, both.inner)]

    def write(which: int) -> None:
        for chunk in range(which, 16, 2):
            arrays[which][4 * chunk : 4 * chunk + 4] = np.arange(4 * chunk, 4 * chunk + 4)

    writers = [threading.Thread(target=write, args=(which,)) for which in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    for storage in (both, both.inner):
        np.testing.assert_array_equal(zarr.open_array(shardstore.ShardedStore(storage), path="a")[:], np.arange(64))


def test_pickles_and_equality(both: AnyObstore) -> None:
    SyncStorage(both).put("a", b"1")
    copy = pickle.loads(pickle.dumps(both))
    assert copy == both
    assert hash(copy) == hash(both)
    assert both != both.inner
    assert SyncStorage(copy).get("a") == b"1"


FORKED = """
import os, sys, json
from shardstore.opening.open import open_storage
from shardstore.testing.storage_suite import SyncStorage
url, options = json.loads(sys.argv[1])
storage = open_storage(url, options, transport="obstore")
assert SyncStorage(storage).get("a") == b"1"
child = os.fork()
if child == 0:
    again = open_storage(url, options, transport="obstore")
    os._exit(0 if SyncStorage(again).get("a") == b"1" and SyncStorage(again).put("b", b"2") else 1)
assert os.waitpid(child, 0)[1] == 0
assert SyncStorage(storage).get("b") == b"2"
"""


def test_a_forked_process_does_without(s3_url: Url, on_s3: ObstoreS3Storage) -> None:
    """obstore's threads do not come along: a request would wait for ever."""
    SyncStorage(on_s3).put("a", b"1")
    done = subprocess.run([sys.executable, "-c", FORKED, json.dumps(s3_url)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "does not work in a process that was forked" in done.stderr


# -- in the calling thread ---------------------------------------------------------------------------------------------


def test_chunks_of_known_shards_are_read_in_the_calling_thread(both: AnyObstore, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(64, dtype="i4")
    array = zarr.create_array(
        shardstore.ShardedStore(both, chunks_per_shard=(8,), metadata_ttl="1h"), name="a", shape=(64,), chunks=(4,), dtype="i4"
    )
    array[:] = values
    np.testing.assert_array_equal(array[:], values)
    below = both.asked_below
    asked: list[str] = []
    get = obstore.get

    def noted(store: Any, path: str, *, options: Any) -> Any:
        asked.append(path)
        return get(store, path, options=options)

    monkeypatch.setattr(obstore, "get", noted)
    with monkeypatch.context() as patched:
        patched.setattr(zarr.AsyncArray, "_get_selection", None)
        for chunk in range(16):
            np.testing.assert_array_equal(array[4 * chunk : 4 * chunk + 4], values[4 * chunk : 4 * chunk + 4])
    assert len(asked) == 16
    other = zarr.open_array(shardstore.ShardedStore(both.inner), path="a", mode="r+")
    other[:4] = 9
    np.testing.assert_array_equal(array[:4], 9)  # by the engine, which finds another version
    assert both.asked_below == below


def blocking(storage: AnyObstore, key: str, *ranges: ByteRequest, generation: Generation | None) -> Any:
    (outcome,) = storage.read_blocking([Read(key, ranges, generation)])
    return outcome


def test_one_range_of_one_version_is_read_in_the_calling_thread(both: AnyObstore) -> None:
    s = SyncStorage(both)
    old = s.put("a", b"0123456789")
    assert blocking(both, "a", ByteRange(2, 5), generation=old) == Changed()  # before the server is known to find objects
    assert s.get("a") == b"0123456789"
    assert blocking(both, "a", ByteRange(2, 5), generation=old) == Found(old, 10, (memoryview(b"234"),))
    for ranges in ((), (EVERYTHING,), (ByteSuffix(2),), (ByteRange(0, 2), ByteRange(4, 6)), (ByteRange(3, 3),), (ByteRange(8, 12),)):
        assert blocking(both, "a", *ranges, generation=old) == Changed()
    assert blocking(both, "a", ByteRange(2, 5), generation=None) == Changed()
    assert blocking(both, "nothing", ByteRange(2, 5), generation=old) == Changed()
    new = s.put("a", b"abcdefghij")
    assert blocking(both, "a", ByteRange(2, 5), generation=old) == Changed()
    assert blocking(both, "a", ByteRange(2, 5), generation=new) == Found(new, 10, (memoryview(b"cde"),))
    assert both.asked_below == 0


def test_what_is_no_plain_answer_is_left_to_the_engine(wired: Proxied) -> None:
    generation = wired.s.put("a", b"0123456789")
    assert wired.s.get("a") == b"0123456789"
    for behaviour in (
        *(mis.refuse(503), mis.refuse(403), mis.break_off(), mis.cut_body(), mis.cut_body(is_announced=False), mis.ignore_range()),
        *(mis.change_header("ETag", lambda _: None), mis.change_header("ETag", lambda _: '"other"'), _adding("Content-Encoding", "gzip")),
    ):
        wired.sent()
        wired.server.on(behaviour)
        assert blocking(wired.storage, "a", ByteRange(2, 5), generation=generation) == Changed()
        assert wired.sent() == [("GET", OURS)]
    assert blocking(wired.storage, "a", ByteRange(2, 5), generation=generation) == Found(generation, 10, (memoryview(b"234"),))
    wired.s.put("a", b"abcdefghij")
    wired.server.on(mis.ignore_conditions(), method="GET")
    assert blocking(wired.storage, "a", ByteRange(2, 5), generation=generation) == Changed()


# -- on the wire -------------------------------------------------------------------------------------------------------


@pytest.fixture
def s3(s3_url: Url) -> Iterator[Proxied]:
    with MisbehavingServer(s3_url[1]["endpoint_url"]) as server:
        yield proxied(server, s3_url)


@pytest.fixture
def azure(azure_url: Url, azure_endpoint: str) -> Iterator[Proxied]:
    account = urlsplit(azure_endpoint)
    with MisbehavingServer(f"{account.scheme}://{account.netloc}") as server:
        yield proxied(server, (azure_url[0], {"connection_string": signed_connection_string(f"{server.url}{account.path}")}))


@pytest.fixture(params=["s3", "azure"])
def wired(request: pytest.FixtureRequest) -> Proxied:
    found: Proxied = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def gcs(xml_url: Url) -> Iterator[Proxied]:
    """Past the proxy go the requests of gcsfs: the emulator knows its XML interface by the name of its host."""
    with MisbehavingServer(xml_url[1]["endpoint_url"]) as server:
        yield proxied(server, xml_url)


def test_requests_of_reads_and_writes(s3: Proxied) -> None:
    s = s3.s
    generation = s.put("a", b"0123456789", IF_ABSENT)
    assert s3.sent() == [("PUT", OURS)]
    cases: list[tuple[tuple[ByteRequest, ...], Generation | None, list[str]]] = [
        ((ByteSuffix(3),), None, ["GET"]),
        ((ByteRange(0, 2), ByteRange(3, 3), ByteOffset(8)), None, ["GET"] * 2),
        ((ByteRange(0, 2), ByteSuffix(1)), generation, ["GET"] * 2),
        ((EVERYTHING,), generation, ["GET"]),
        ((ByteRange(3, 3),), None, ["HEAD"]),
        ((), generation, ["HEAD"]),
    ]
    for ranges, pinned, expected in cases:
        assert isinstance(s.read("a", *ranges, generation=pinned), Found)
        conditions = [request.header("If-Match") for request in s3.server.requests if request.method == "GET"]
        assert conditions[1:] == [generation.token] * len(conditions[1:])
        assert conditions[:1] in ([], [None if pinned is None else generation.token])
        assert s3.sent() == [(method, OURS) for method in expected], ranges
    assert s.read("nothing", EVERYTHING) == Absent()
    assert s.stat("nothing") is None
    assert s3.sent() == [("GET", OURS), ("HEAD", OURS)]
    s.put("a", b"1", IfGeneration(generation))
    assert s.keys() == ["a"]
    assert s.children() == (["a"], [])
    assert s3.sent() == [("PUT", OURS), ("GET", OURS), ("GET", OURS)]
    assert s3.storage.asked_below == 0


def test_requests_of_reads_and_writes_on_azure(azure: Proxied) -> None:
    """As many as by the client of adlfs: the end of a blob whose size is not known takes two."""
    s, below = azure.s, azure.storage.inner
    assert isinstance(below, AzureStorage)
    generation = s.put("a", b"0123456789", IF_ABSENT)
    assert azure.sent() == [("PUT", OURS)]
    cases: list[tuple[tuple[ByteRequest, ...], Generation | None, list[str]]] = [
        ((ByteSuffix(3),), None, ["GET"] * 2),
        ((ByteSuffix(3),), generation, ["GET"] * 2),
        ((ByteSuffix(10),), None, ["GET"]),
        ((ByteSuffix(9 << 20),), None, ["HEAD", "GET"]),
        ((ByteRange(0, 2), ByteRange(3, 3), ByteOffset(8)), None, ["GET"] * 2),
        ((EVERYTHING,), generation, ["GET"]),
        ((ByteRange(3, 3),), None, ["HEAD"]),
        ((), generation, ["HEAD"]),
    ]
    for ranges, pinned, expected in cases:
        for way, is_ours in ((s, OURS), (SyncStorage(below), THEIRS)):
            below._sizes.clear()
            outcome = way.read("a", *ranges, generation=pinned)
            assert isinstance(outcome, Found)
            first, *rest = [request.header("If-Match") for request in azure.server.requests]
            assert first == (None if pinned is None or expected[0] == "HEAD" else generation.token)
            assert rest == [generation.token] * len(rest)
            assert azure.sent() == [(method, is_ours) for method in expected], ranges
    for seen in (lambda: s.read("a", ByteRange(0, 1)), lambda: s.put("a", b"0123456789"), lambda: s.infos()):
        below._sizes.clear()
        seen()
        azure.sent()
        outcome = s.read("a", ByteSuffix(3))
        assert isinstance(outcome, Found)
        assert values(outcome) == [b"789"]
        assert azure.sent() == [("GET", OURS)]
    assert s.read("nothing", EVERYTHING) == s.read("nothing", ByteSuffix(2)) == Absent()
    assert s.stat("nothing") is None
    assert azure.sent() == [("GET", OURS), ("GET", OURS), ("HEAD", OURS)]
    assert s.keys() == ["a"]
    assert s.delete("a")
    assert azure.sent() == [("GET", THEIRS), ("DELETE", THEIRS)]
    assert azure.storage.asked_below == 0


def test_a_blob_that_changes_between_the_requests_for_its_end(azure: Proxied) -> None:
    azure.s.put("a", b"0123456789")
    below = azure.storage.inner
    newer = SyncStorage(type(below)(below.fs, below.path)).put("a", b"abc")
    azure.sent()
    assert azure.s.read("a", ByteSuffix(2)) == Found(newer, 3, (memoryview(b"bc"),))
    assert azure.sent() == [("GET", OURS)] * 3  # refused; from the start; the end


def test_what_azure_has_that_is_no_object_and_what_cannot_be_written(on_azure: ObstoreAzureStorage) -> None:
    s = SyncStorage(on_azure)
    on_io_loop(sdk(on_azure, "d").upload_blob(b"", metadata={"hdi_isfolder": "true"}))
    s.put("empty", b"")
    assert s.read("d", EVERYTHING) == s.read("d", ByteSuffix(3)) == Absent()
    assert s.stat("d") is None
    assert s.get("empty") == b""
    assert s.keys() == ["empty"]
    generation = s.put("leased", b"1")
    on_io_loop(sdk(on_azure, "leased").acquire_lease())
    for condition in (UNCONDITIONAL, IfGeneration(generation)):
        with pytest.raises(StorageError, match=r"'leased'.*LeaseIdMissing") as caught:
            s.put("leased", b"2", condition)
        assert not isinstance(caught.value, ConditionFailed | WriteOutcomeUnknown)
    s.put("cold", b"1")
    on_io_loop(sdk(on_azure, "cold").set_standard_blob_tier("Archive"))
    with pytest.raises(StorageError, match=r"'cold'.*archive tier.*rehydrate"):
        s.get("cold")
    # Blocks that another writer has sent, and never stored, are a blob to Azurite.
    on_io_loop(sdk(on_azure, "begun").stage_block(f"{'0' * 32}-000001", b"1"))
    s.put("begun", b"2", IF_ABSENT)
    assert s.get("begun") == b"2"


def test_absence_that_is_the_first_answer_is_believed(wired: Proxied) -> None:
    assert wired.s.read("nothing", EVERYTHING) == Absent()
    assert wired.sent() == [("GET", OURS)]
    assert wired.s.stat("nothing") is None
    assert wired.sent() == [("HEAD", OURS)]


def test_a_container_that_is_gone_is_no_missing_blob(azure: Proxied) -> None:
    azure.s.put("a", b"1")
    assert azure.s.get("a") == b"1"
    client = azure.storage.inner.client
    on_io_loop(client.fs.service_client.delete_container(client.bucket))
    with pytest.raises(StorageError, match="does not exist"):
        azure.s.get("a")


def test_what_is_large_on_azure_is_written_as_blocks(azure: Proxied) -> None:
    below = azure.storage.inner
    assert isinstance(below, AzureStorage)
    small = SyncStorage(ObstoreAzureStorage(AzureStorage(below.fs, below.path, put_bytes=4)))
    small.put("a", b"1234")
    assert azure.sent() == [("PUT", OURS)]
    small.put("a", b"12345")
    assert azure.sent() == [("PUT", THEIRS)] * 2
    assert small.get("a") == b"12345"


def test_a_server_of_azure_that_ignores_conditions_is_found_out(azure: Proxied) -> None:
    generation = azure.s.put("a", b"1")
    azure.s.put("a", b"2")
    forget_facts()
    azure.server.on(mis.ignore_conditions(), method="PUT")
    with pytest.warns(RuntimeWarning, match="does not honour"), pytest.raises(ConditionFailed):
        azure.s.put("a", b"3", IF_ABSENT)
    with pytest.raises(ConditionFailed):
        azure.s.put("a", b"3", IfGeneration(generation))
    assert azure.s.get("a") == b"2"


def test_listings_that_adlfs_remembers_show_what_was_written(on_azure: ObstoreAzureStorage) -> None:
    s, fs, path = SyncStorage(on_azure), on_azure.inner.fs, on_azure.inner.path
    s.put("d/a", b"1")
    assert fs.ls(f"{path}/d", detail=False) == [f"{path}/d/a"]
    s.put("d/b", b"1")
    assert fs.ls(f"{path}/d", detail=False) == [f"{path}/d/a", f"{path}/d/b"]


def sdk(storage: ObstoreAzureStorage, key: str) -> Any:
    """Microsoft's own client of a blob."""
    client = storage.inner.client
    return storage.inner.fs.service_client.get_blob_client(client.bucket, client.full_key(key))


def test_keys_that_obstore_does_not_take_are_written_by_the_storage_below(wired: Proxied) -> None:
    generation = wired.s.put("a//b", b"12345", IF_ABSENT)
    assert wired.sent() == [("PUT", THEIRS)]
    with pytest.raises(ConditionFailed):
        wired.s.put("a//b", b"1", IF_ABSENT)
    assert wired.s.read("a//b", ByteRange(1, 3)) == Found(generation, 5, (memoryview(b"23"),))


def test_what_is_no_plain_answer_is_asked_again(wired: Proxied) -> None:
    s = wired.s
    generation = s.put("a", b"0123456789")
    s.put("empty", b"")
    of_nothing: list[tuple[str, ByteRequest]] = [("a", ByteRange(10, 12)), ("empty", EVERYTHING), ("empty", ByteSuffix(3))]
    for key, request in of_nothing:
        wired.sent()
        outcome = s.read(key, request)
        assert isinstance(outcome, Found)
        assert values(outcome) == [b""]
        assert wired.sent()[:2] == [("GET", OURS), ("GET", THEIRS)]
    assert s.get("a") == b"0123456789"
    wired.sent()
    for behaviour in (mis.refuse(503), mis.break_off(), mis.cut_body(), mis.ignore_range(), mis.change_header("ETag", lambda _: None)):
        before = wired.storage.asked_below
        wired.server.on(behaviour, where=lambda request: "object_store" in (request.header("User-Agent") or ""))
        assert s.read("a", ByteRange(2, 5), generation=generation) == Found(generation, 10, (memoryview(b"234"),))
        assert wired.storage.asked_below == before + 1
        assert wired.sent() == [("GET", OURS), ("GET", THEIRS)]


def test_a_body_that_is_short_in_secret_is_not_believed(wired: Proxied) -> None:
    wired.s.put("a", b"0123456789")
    wired.server.on(mis.cut_body(is_announced=False), method="GET")
    for request in (ByteRange(2, 8), ByteSuffix(4)):
        with pytest.raises(StorageError, match="'a'"):
            wired.s.read("a", request)


def test_a_server_that_ignores_the_condition_of_a_read(wired: Proxied) -> None:
    old = wired.s.put("a", b"old")
    wired.s.put("a", b"new")
    wired.server.on(mis.ignore_conditions(), method=("GET", "HEAD"))
    assert wired.s.read("a", EVERYTHING, generation=old) == Changed()
    assert wired.s.read("a", generation=old) == Changed()


def test_compressed_bytes_are_not_the_value(wired: Proxied) -> None:
    wired.s.put("a", b"0123456789")
    wired.server.on(mis.change_header("Content-Encoding", lambda _: "gzip"), method="GET")
    wired.server.on(_adding("Content-Encoding", "gzip"), method="GET")
    with pytest.raises(StorageError, match="Content-Encoding gzip"):
        wired.s.read("a", ByteRange(0, 3))


def _adding(name: str, text: str) -> mis.Behaviour:
    async def behave(request: mis.Request, send: mis.Send) -> mis.Outcome:
        answer = await send(request)
        return mis.Answer(answer.status, (*answer.headers, (name, text)), answer.body)

    return behave


def test_an_answer_that_is_lost(wired: Proxied, monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore sends nothing twice: its own success would look like another's. A look tells whose object is there."""
    resend_at_once(monkeypatch)
    s = wired.s
    wired.server.on(mis.drop_reply(), method="PUT", nth=1)
    first = s.put("a", b"1", IF_ABSENT)
    assert wired.sent() == [("PUT", OURS), ("HEAD", THEIRS)]
    wired.server.on(mis.drop_reply(is_reset=True), method="PUT", nth=1)
    second = s.put("a", b"2", IfGeneration(first))
    assert wired.sent() == [("PUT", OURS), ("HEAD", THEIRS)]
    wired.server.on(mis.break_off(), method="PUT", nth=1)
    third = s.put("a", b"3", IfGeneration(second))
    assert wired.sent() == [("PUT", OURS), ("HEAD", THEIRS), ("PUT", OURS)]
    wired.server.on(mis.twice(), method="PUT", nth=1)  # as a proxy does; the second is refused
    s.put("a", b"4", IfGeneration(third))
    with pytest.raises(ConditionFailed):
        s.put("a", b"5", IfGeneration(third))
    wired.server.behave()
    wired.server.on(mis.break_off(), method="PUT")
    with pytest.raises(WriteOutcomeUnknown, match="'a'"):
        s.put("a", b"6")
    wired.server.behave()
    assert s.get("a") == b"4"


def test_a_cancelled_request_gives_its_place_to_others(wired: Proxied) -> None:
    over, below = wired.storage, wired.storage.inner
    narrow: Any = type(over)(type(below)(below.fs, below.path, concurrency=1))  # type: ignore[arg-type]
    SyncStorage(narrow).put("a", b"1")
    waiting = wired.server.on(mis.never_answer(), nth=1)

    async def cancelled(work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.ensure_future(work)
        while not waiting.acted:  # noqa: ASYNC110 - in the thread of the server
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    on_io_loop(cancelled(narrow.read([Read("a", (EVERYTHING,))])))
    assert SyncStorage(narrow).get("a") == b"1"
    waiting = wired.server.on(mis.never_answer(is_carried_out=False), nth=1)
    on_io_loop(cancelled(narrow.write("a", [b"2"], 1, UNCONDITIONAL)))
    assert SyncStorage(narrow).get("a") == b"1"


@pytest.mark.parametrize("status", [400, 403])
def test_a_write_that_is_refused_is_told_of_as_without_obstore(wired: Proxied, status: int) -> None:
    wired.server.on(mis.refuse(status), method="PUT")
    with pytest.raises(AccessDenied if status == 403 else StorageError, match="'a'"):
        wired.s.put("a", b"1", IF_ABSENT)


def test_a_server_that_wants_etags_unquoted(s3: Proxied) -> None:
    async def like_ceph(request: mis.Request, send: mis.Send) -> mis.Outcome:
        condition = request.header("If-Match") or ""
        return await send(request.with_header("If-Match", f'"{condition}"')) if not condition.startswith('"') else mis.refusal(412)

    first = s3.s.put("a", b"1")
    s3.server.on(like_ceph, method="PUT", header="If-Match")
    second = s3.s.put("a", b"2", IfGeneration(first))
    s3.server.behave()
    s3.server.on(like_ceph, method="PUT", header="If-Match")
    s3.s.put("a", b"3", IfGeneration(second))
    assert s3.sent() == [("PUT", OURS)]  # learned


def test_a_bucket_that_is_elsewhere(s3: Proxied, caplog: pytest.LogCaptureFixture) -> None:
    s3.s.put("a", b"1")
    s3.server.on(mis.refuse(301), where=lambda request: "object_store" in (request.header("User-Agent") or ""))
    assert s3.s.get("a") == b"1"
    assert s3.s.get("a") == b"1"
    assert s3.sent() == [("PUT", OURS), ("GET", OURS), ("GET", THEIRS), ("GET", THEIRS)]
    assert len([record for record in caplog.records if "region" in record.message]) == 1


def test_obstore_is_given_up_where_no_answer_is_of_use(wired: Proxied, caplog: pytest.LogCaptureFixture) -> None:
    generation = wired.s.put("a", b"0123456789")
    wired.sent()
    wired.server.on(mis.ignore_range(), where=lambda request: "object_store" in (request.header("User-Agent") or ""))
    for _ in range(5):
        assert wired.s.read("a", ByteRange(2, 5), generation=generation) == Found(generation, 10, (memoryview(b"234"),))
    assert [is_ours for _, is_ours in wired.sent()] == [OURS, THEIRS] * 3 + [THEIRS] * 2
    assert (
        len([record for record in caplog.records if "none of its first answers" in record.message and record.levelname == "WARNING"]) == 1
    )


@pytest.mark.parametrize("kind", ["s3", "azure"])
def test_a_missing_bucket(kind: str, request: pytest.FixtureRequest) -> None:
    scheme = "az" if kind == "azure" else kind
    storage = open_storage(f"{scheme}://no-such-bucket/x", request.getfixturevalue(f"{kind}_url")[1], transport="obstore")
    actions: list[Callable[[SyncStorage], object]] = [
        lambda s: s.read("a", EVERYTHING),
        lambda s: s.put("a", b"1"),
        lambda s: s.keys(),
        lambda s: s.children(),
    ]
    for action in actions:
        with pytest.raises(StorageError, match="'no-such-bucket' does not exist"):
            action(SyncStorage(storage))


def test_reads_of_gcs_are_compared(gcs: Proxied) -> None:
    """The emulator behind this proxy does not know the XML interface, by the name of its host: nothing is taken for missing."""
    generation = gcs.s.put("a", b"0123456789")
    gcs.sent()
    assert gcs.s.read("a", ByteRange(2, 5)) == Found(generation, 10, (memoryview(b"234"),))
    assert gcs.sent() == [("GET", OURS), ("GET", THEIRS)]
    assert gcs.storage.asked_below == 1


# -- listings ----------------------------------------------------------------------------------------------------------


def test_listings_without_markers_and_of_names_that_obstore_does_not_take(on_s3: ObstoreS3Storage) -> None:
    s, fs = SyncStorage(on_s3), on_s3.inner.fs
    for key in ("d/a", "d/b", "e"):
        s.put(key, b"1")
    assert s.keys() == ["d/a", "d/b", "e"]
    assert on_s3.asked_below == 0
    bucket, _, root = on_s3.inner.path.partition("/")
    for key in (f"{root}/", f"{root}/d/", f"{root}/d/deep/"):
        fs.call_s3("put_object", Bucket=bucket, Key=key, Body=b"")
    assert s.infos() == SyncStorage(on_s3.inner).infos()
    assert s.keys() == ["d/a", "d/b", "e"]
    assert s.children("d/") == (["d/a", "d/b"], ["d/deep/"])
    assert on_s3.asked_below == 3
    for key in (f"{root}/x//y", f"{root}/../z"):
        fs.call_s3("put_object", Bucket=bucket, Key=key, Body=b"1")
    assert s.keys() == SyncStorage(on_s3.inner).keys() == ["../z", "d/a", "d/b", "e", "x//y"]
    assert s.get("../z") == b"1"


def test_a_listing_goes_on_where_obstore_stopped(on_s3: ObstoreS3Storage) -> None:
    on_s3.keys_per_page = 3
    s = SyncStorage(on_s3)
    keys = [f"k/{i}" for i in range(9)]
    for key in keys:
        s.put(key, b"" if key == "k/7" else b"1")
    assert s.keys("k/") == keys
    assert on_s3.asked_below == 1
    assert s.keys("k") == keys  # part of a name: not asked of obstore
    assert on_s3.asked_below == 1
