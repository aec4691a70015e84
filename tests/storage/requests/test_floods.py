"""Servers that send more than they were asked for: storages read no more of it than that, and say so."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obstore
import pytest

import shardstore
from shardstore.errors import ShardStoreError
from shardstore.model.ranges import EVERYTHING, ByteOffset, ByteRange, ByteRequest, ByteSuffix, resolve
from shardstore.opening.open import open_storage
from shardstore.opening.transports import Transport
from shardstore.storage.base import CHANGED, Absent, Failed, Found, Read
from shardstore.storage.http.client import forget_facts
from shardstore.storage.obstore.reading import ObstoreStorage
from shardstore.storage.requests.ranged_reads import UNASKED_NBYTES, TooMuch, cut, cut_unannounced, exactly
from shardstore.testing.storage_suite import SyncStorage
from tests.harness.azurite import ACCOUNT, signed_connection_string
from tests.harness.misbehaving_server import MisbehavingServer
from tests.harness.misbehaviours import flood, ignore_range
from tests.storage.http.http_servers import WebServer
from tests.torture.wire import without_checksums

MIB = 1 << 20
MOST_IN_CONNECTIONS = 24 * MIB
"""What buffers of the system hold of two answers, which no client has taken."""

FLOOD = 96 * MIB
DATA = bytes(range(256)) * 4


@dataclass
class Flooded:
    """A storage with the object ``a`` behind a proxy that can flood."""

    kind: str
    server: MisbehavingServer
    s: SyncStorage

    def limit(self, unasked_nbytes: int) -> None:
        """Let no more be read of a body of unknown length, beyond what was asked for."""
        storage: Any = self.s.storage
        if isinstance(storage, ObstoreStorage):
            storage = storage.inner  # which reads what obstore does not understand
        assert storage.unasked_nbytes == UNASKED_NBYTES
        storage.unasked_nbytes = unasked_nbytes

    def read(self, *ranges: ByteRequest, most_nbytes: int | None = None) -> Any:
        (outcome,) = self.s.read_many(Read("a", ranges, None, None, most_nbytes))
        assert self.server.flooded < MOST_IN_CONNECTIONS
        return outcome


@pytest.fixture(params=["http", "s3", "s3-obstore", "gcs", "azure", "azure-obstore"])
def place(request: pytest.FixtureRequest) -> Iterator[Flooded]:
    kind: str = request.param
    if kind == "http":
        forget_facts()
        web = WebServer()
        web.objects["/root/a"] = DATA
        with MisbehavingServer(web.url) as server:
            yield Flooded(kind, server, SyncStorage(open_storage(f"{server.url}/root")))
        web.close()
        forget_facts()
        return
    transport: Transport = "obstore" if "obstore" in kind else "fsspec"
    if kind.startswith("azure"):
        url, options = request.getfixturevalue("azure_url")
        endpoint: str = request.getfixturevalue("azure_endpoint")
        SyncStorage(open_storage(url, options)).put("a", DATA)
        with MisbehavingServer(endpoint.removesuffix(f"/{ACCOUNT}")) as server:
            opened = open_storage(url, {"connection_string": signed_connection_string(f"{server.url}/{ACCOUNT}")}, transport=transport)
            assert SyncStorage(opened).get("a") == DATA
            yield Flooded(kind, server, SyncStorage(opened))
        return
    url, options = request.getfixturevalue("gcs_url" if kind == "gcs" else "s3_url")
    SyncStorage(open_storage(url, options)).put("a", DATA)
    with MisbehavingServer(options["endpoint_url"]) as server:
        opened = open_storage(url, {**options, "endpoint_url": server.url}, transport=transport)
        assert SyncStorage(opened).get("a") == DATA  # obstore is trusted once it has found something
        yield Flooded(kind, server, SyncStorage(opened))


def failed(outcome: Any) -> ShardStoreError:
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, ShardStoreError)
    assert re.search(r"'(root/)?a'", str(outcome.error))  # obstore is told the key in the bucket
    return outcome.error


@pytest.mark.parametrize("request_", [ByteRange(0, 132), ByteSuffix(132)], ids=["range", "suffix"])
@pytest.mark.parametrize("announced", [2**40, None], ids=["announced", "in chunks"])
def test_range_that_is_followed_by_more_is_refused(place: Flooded, request_: ByteRequest, announced: int | None) -> None:
    place.server.on(flood(announced=announced, most_nbytes=FLOOD), method="GET")
    failed(place.read(request_))


@pytest.mark.parametrize("announced", [2**40, None], ids=["announced", "in chunks"])
def test_range_that_is_followed_by_more_is_left_to_the_engine_in_the_calling_thread(place: Flooded, announced: int | None) -> None:
    storage = place.s.storage
    if not isinstance(storage, ObstoreStorage):
        pytest.skip("only obstore reads servers in the calling thread")
    whole = place.read(EVERYTHING)
    place.server.on(flood(announced=announced, most_nbytes=FLOOD), method="GET")
    assert storage.read_blocking([Read("a", (ByteRange(0, 132),), whole.generation)]) == [CHANGED]
    assert place.server.flooded < MOST_IN_CONNECTIONS


def test_range_of_which_more_is_announced_is_refused(place: Flooded) -> None:
    place.server.on(flood(content_range=f"bytes 0-{2**40 - 1}/{2**40}", most_nbytes=FLOOD), method="GET")
    failed(place.read(ByteRange(0, 132)))
    place.server.behave()
    place.server.on(flood(content_range=f"bytes 0-131/{2**40}", most_nbytes=FLOOD), method="GET")
    failed(place.read(ByteSuffix(132)))


@pytest.mark.filterwarnings("ignore:.* ignores byte ranges:RuntimeWarning")
def test_whole_object_instead_of_a_range_is_left_once_the_range_has_come(place: Flooded) -> None:
    place.server.on(flood(status=200, content_range="", most_nbytes=FLOOD), method="GET")
    outcome = place.read(ByteRange(0, 132))
    assert isinstance(outcome, Failed) or (isinstance(outcome, Found) and bytes(outcome.buffers[0]) == DATA[:132])


@pytest.mark.filterwarnings("ignore:.* ignores byte ranges:RuntimeWarning")
@pytest.mark.parametrize("request_", [ByteRange(0, 132), ByteRange(900, 1032), ByteSuffix(132)], ids=["first", "range", "suffix"])
def test_whole_object_of_unknown_length_is_not_read_without_end(place: Flooded, request_: ByteRequest) -> None:
    place.limit(MIB)
    place.server.on(flood(announced=None, status=200, content_range="", most_nbytes=FLOOD), method="GET")
    error = failed(place.read(request_))
    assert isinstance(error, TooMuch)
    assert "ignores byte ranges" in str(error)
    assert f"{MIB} more than were asked for" in str(error)


@pytest.mark.filterwarnings("ignore:.* ignores byte ranges:RuntimeWarning")
def test_whole_object_of_unknown_length_that_ends_in_time_is_read(place: Flooded) -> None:
    """Its length is learned, and ranges are cut out of it."""
    place.limit(2 * MIB)
    for request_ in (ByteRange(0, 132), ByteRange(900, 1032), EVERYTHING):
        place.server.behave()
        without_checksums(place.server)  # of the body that is not flooded
        place.server.on(ignore_range(), method="GET")
        place.server.on(flood(announced=None, most_nbytes=MIB, ends=True), method="GET")
        outcome = place.read(request_)
        assert isinstance(outcome, Found)
        whole = DATA + bytes(outcome.nbytes - len(DATA))
        assert MIB <= len(whole) < 2 * MIB
        wanted = resolve(request_, len(whole))
        assert bytes(outcome.buffers[0]) == whole[wanted.start : wanted.end]


@pytest.mark.parametrize("announced", [2**40, None], ids=["announced", "in chunks"])
def test_whole_object_that_is_too_long_for_what_it_is_is_not_read(place: Flooded, announced: int | None) -> None:
    place.server.on(flood(announced=announced, status=200, content_range="", most_nbytes=FLOOD), method="GET")
    error = failed(place.read(EVERYTHING, most_nbytes=MIB))
    assert f"at most {MIB}" in str(error)


@pytest.mark.parametrize("announced", [2**40, None], ids=["announced", "in chunks"])
def test_limit_holds_for_a_range_that_comes_instead_of_the_whole_object(place: Flooded, announced: int | None) -> None:
    whole = f"bytes 0-{2**40 - 1}/{2**40}"
    place.server.on(flood(announced=announced, status=206, content_range=whole, most_nbytes=FLOOD), method="GET")
    error = failed(place.read(EVERYTHING, most_nbytes=MIB))
    assert f"at most {MIB}" in str(error)


def test_error_that_is_kept_keeps_no_connection(place: Flooded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that collects errors would otherwise keep one connection open for each of them."""
    kept = []
    get_async = obstore.get_async

    def get_and_keep(*arguments: Any, **options: Any) -> Any:
        kept.append(get_async(*arguments, **options))
        return kept[-1]

    monkeypatch.setattr(obstore, "get_async", get_and_keep)  # as its threads keep an answer now and then, until their next call
    whole = f"bytes 0-{2**40 - 1}/{2**40}"
    place.server.on(flood(announced=2**40, status=206, content_range=whole, most_nbytes=FLOOD), method="GET")
    before = len(place.server.requests)
    gc.disable()  # it would close connections now and then that nothing else closes
    try:
        error = failed(place.read(EVERYTHING, most_nbytes=MIB))
        while place.server.floods:  # until the run's timeout
            time.sleep(0.01)
    finally:
        gc.enable()
    assert "at most" in str(error)
    assert len(place.server.requests) == before + 1


def test_limit_leaves_what_is_within_it(place: Flooded) -> None:
    outcome = place.read(EVERYTHING, most_nbytes=len(DATA))
    assert isinstance(outcome, Found)
    assert bytes(outcome.buffers[0]) == DATA
    failed(place.read(EVERYTHING, most_nbytes=len(DATA) - 1))


@pytest.mark.parametrize("status", [404, 403])
def test_text_of_a_refusal_is_not_read_to_its_end(place: Flooded, status: int) -> None:
    if place.kind.startswith("s3") or "obstore" in place.kind:
        pytest.skip("botocore and obstore read the texts of refusals themselves")
    place.server.on(flood(status=status, most_nbytes=FLOOD), method="GET", target="alt=media" if place.kind == "gcs" else None)
    outcome = place.read(ByteRange(0, 132))
    assert isinstance(outcome, Absent) if status == 404 else isinstance(outcome, Failed)


def test_document_without_end_is_an_error_that_names_it() -> None:
    forget_facts()
    web = WebServer()
    web.objects["/x.zarr/a/zarr.json"] = b"{}"
    with MisbehavingServer(web.url) as server:
        server.on(flood(most_nbytes=FLOOD), method="GET")
        store = shardstore.get_mapper(f"{server.url}/x.zarr")
        with pytest.raises(ShardStoreError, match=r"zarr\.json.* 1099511627776 bytes"):
            store["a/c/0"]
        assert server.flooded < MOST_IN_CONNECTIONS
    web.close()
    forget_facts()


def test_sparse_document_of_a_gibibyte_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with (tmp_path / "a/zarr.json").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(ShardStoreError, match=r"a/zarr\.json.* 1073741824 bytes"):
        shardstore.get_mapper(str(tmp_path))["a/c/0"]


# -- bodies ------------------------------------------------------------------------------------------------------------


async def blocks(data: bytes, nbytes: int) -> Any:
    for start in range(0, len(data), nbytes):
        yield data[start : start + nbytes]


WANTED: list[ByteRequest] = [
    *(ByteRange(0, 3), ByteRange(5, 900), ByteRange(7, 7)),
    *(ByteSuffix(0), ByteSuffix(10), ByteSuffix(2000), ByteOffset(1000)),
]


@pytest.mark.parametrize("nbytes", [1, 7, 512, 4096])
async def test_ranges_are_cut_out_of_whole_bodies(nbytes: int) -> None:
    expected = [DATA[0:3], DATA[5:900], b"", b"", DATA[-10:], DATA, DATA[1000:]]
    known = await cut(blocks(DATA, nbytes), WANTED, len(DATA), "reading")
    unknown, length = await cut_unannounced(blocks(DATA, nbytes), WANTED, None, "reading")
    assert [bytes(part) for part in known] == [bytes(part) for part in unknown] == expected
    assert length == len(DATA)
    assert await exactly(blocks(DATA, nbytes), len(DATA), "reading") == DATA
    with pytest.raises(TooMuch, match="more than the 1023 bytes"):
        await exactly(blocks(DATA, nbytes), len(DATA) - 1, "reading")
    with pytest.raises(TooMuch, match="at most 1023"):
        await cut_unannounced(blocks(DATA, nbytes), WANTED, len(DATA) - 1, "reading")


@pytest.mark.parametrize("nbytes", [1, 7, 512])
async def test_body_of_unknown_length_is_left_where_more_than_the_limit_was_not_asked_for(nbytes: int) -> None:
    cases: list[tuple[list[ByteRequest], int]] = [
        ([ByteRange(0, 3), ByteRange(5, 900)], 900),
        ([ByteSuffix(10)], 10),
        ([ByteSuffix(7), ByteRange(1, 3)], 7),
    ]
    for wanted, asked in cases:
        most = len(DATA) - asked
        _, length = await cut_unannounced(blocks(DATA, nbytes), wanted, None, "reading", most)
        assert length == len(DATA)
        with pytest.raises(TooMuch, match=f"{most - 1} more than were asked for.*Content-Length"):
            await cut_unannounced(blocks(DATA, nbytes), wanted, None, "reading", most - 1)
    await cut_unannounced(blocks(DATA, nbytes), [ByteOffset(1000)], None, "reading", 0)
