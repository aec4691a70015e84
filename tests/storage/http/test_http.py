"""The HTTP storage, against servers that do what they should, and others."""

from __future__ import annotations

import asyncio
import pickle
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

import shardstore
from shardstore.errors import AccessDenied, InvalidInput, ReadOnly, StorageError, Unsupported
from shardstore.model.generation import UNCONDITIONAL, Generation
from shardstore.model.ranges import EVERYTHING, ByteOffset, ByteRange, ByteRequest, ByteSuffix, resolve
from shardstore.opening.open import open_storage
from shardstore.storage.base import ABSENT, CHANGED, Found, Read, Storage
from shardstore.storage.http.client import Retries, children, forget_facts
from shardstore.storage.http.storage import HTTPStorage
from shardstore.testing.storage_suite import SyncStorage, on_io_loop, values
from tests.storage.http.http_servers import Asked, Behaviour, WebServer

DATA = random.Random(5).randbytes(1000)
OTHER = random.Random(6).randbytes(1000)

REQUESTS: list[ByteRequest] = [
    ByteRange(0, 1),
    ByteRange(10, 200),
    ByteRange(999, 1000),
    ByteRange(900, 5000),
    ByteRange(1000, 1001),
    ByteRange(2000, 3000),
    ByteRange(7, 7),
    ByteOffset(0),
    ByteOffset(990),
    ByteOffset(1000),
    ByteOffset(5000),
    ByteSuffix(0),
    ByteSuffix(16),
    ByteSuffix(1000),
    ByteSuffix(4096),
]


@pytest.fixture
def server() -> Iterator[WebServer]:
    forget_facts()
    server = WebServer()
    server.objects["/root/a"] = DATA
    yield server
    server.close()
    forget_facts()


def storage_at(server: WebServer, root: str = "/root", attempts: int = 3, **options: Any) -> HTTPStorage:
    fs = fsspec.filesystem("http", skip_instance_cache=True, **options)
    return HTTPStorage(fs, server.url + root, retries=Retries(attempts, first_seconds=0.0))


@pytest.fixture
def storage(server: WebServer) -> HTTPStorage:
    return storage_at(server)


def generation(s: SyncStorage, key: str = "a") -> Generation:
    info = s.stat(key)
    assert info is not None
    assert info.generation is not None
    return info.generation


def test_it_is_a_storage(storage: HTTPStorage, s: SyncStorage, server: WebServer) -> None:
    assert isinstance(storage, Storage)
    assert (storage.kind, storage.url) == ("http", server.url + "/root")
    opened = open_storage(server.url + "/root/")
    assert isinstance(opened, HTTPStorage)
    assert opened.url == storage.url
    copy = pickle.loads(pickle.dumps(opened))
    assert copy == opened
    assert hash(copy) == hash(opened)
    assert opened != open_storage(server.url + "/elsewhere")
    assert SyncStorage(copy).get("a") == DATA
    on_io_loop(storage.close())
    assert s.get("a") == DATA


# -- reading, and what servers make of ranges --------------------------------------------------------------------------

BEHAVIOURS = {
    "all": Behaviour(),
    "no suffixes: 416": Behaviour(suffix="416"),
    "no suffixes: 501": Behaviour(suffix="501"),
    "no suffixes: whole": Behaviour(suffix="whole"),
    "no suffixes: first bytes": Behaviour(suffix="first"),
    "no ranges": Behaviour(ranges=False),
    "no ranges, no length": Behaviour(ranges=False, length=False),
    "no ranges, no versions": Behaviour(ranges=False, etag="none", last_modified=False),
    "no head": Behaviour(head=False),
    "no head, no suffixes": Behaviour(head=False, suffix="416"),
    "no totals": Behaviour(total=False),
    "dates only": Behaviour(etag="none"),
    "no versions": Behaviour(etag="none", last_modified=False, suffix="416"),
    "weak etags": Behaviour(etag="weak"),
    "bare etags": Behaviour(etag="bare"),
    "etags that match nothing": Behaviour(if_match="refused"),
    "if-match ignored": Behaviour(if_match="ignored"),
}


@pytest.mark.filterwarnings("ignore:.*ignores byte ranges")
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_every_range_of_every_server(server: WebServer, s: SyncStorage, name: str) -> None:
    server.behaviour = BEHAVIOURS[name]
    for data in (DATA, b""):
        server.objects["/root/a"] = data
        pinned = s.read("a")
        assert isinstance(pinned, Found)
        assert pinned.nbytes == len(data)
        for asked in (None, pinned.generation):
            for request in REQUESTS:
                wanted = resolve(request, len(data))
                found = s.read("a", request, generation=asked)
                assert isinstance(found, Found), request
                assert found.nbytes == len(data)
                assert values(found) == [data[wanted.start : wanted.end]], request
                assert all(buffer.readonly for buffer in found.buffers)
            found = s.read("a", *REQUESTS, generation=asked)
            assert isinstance(found, Found)
            assert values(found) == [data[r.start : r.end] for r in (resolve(request, len(data)) for request in REQUESTS)]
        assert s.read("nothing", *REQUESTS) == ABSENT
        assert s.read("nothing") == ABSENT
        assert s.stat("nothing") is None


def test_requests_of_reads(server: WebServer, s: SyncStorage) -> None:
    pinned = generation(s)
    server.methods()
    cases: list[tuple[tuple[ByteRequest, ...], Generation | None, list[str]]] = [
        ((ByteSuffix(3),), None, ["GET bytes=-3"]),
        ((EVERYTHING,), None, ["GET"]),
        ((ByteRange(0, 2), ByteRange(3, 3), ByteOffset(8)), None, ["GET bytes=0-1", "GET bytes=8-"]),
        ((ByteRange(0, 2), ByteSuffix(1)), pinned, ["GET bytes=-1", "GET bytes=0-1"]),
        ((ByteRange(3, 3),), None, ["HEAD"]),
        ((), pinned, ["HEAD"]),
        ((ByteOffset(1000),), pinned, ["GET bytes=1000-", "HEAD"]),
    ]
    for ranges, asked, expected in cases:
        assert isinstance(s.read("a", *ranges, generation=asked), Found)
        asked_for = server.asked
        assert sorted(server.methods()) == expected
        for one in asked_for:
            assert one.headers["accept-encoding"] == "identity"
            pins = one.method == "GET" and (asked is not None or one.range == "bytes=8-")
            assert one.headers.get("if-match") == (pinned.token if pins else None)


def test_a_server_that_ignores_ranges_is_asked_once_an_object(server: WebServer, s: SyncStorage) -> None:
    server.behaviour.ranges = False
    ranges = (ByteRange(0, 4), ByteRange(500, 600), ByteOffset(990), ByteRange(2000, 2001))
    with pytest.warns(RuntimeWarning, match=re.escape(server.url) + " ignores byte ranges"):
        found = s.read("a", *ranges)
    for _ in range(2):  # it is said once: another warning would be an error
        assert isinstance(found, Found)
        assert values(found) == [DATA[:4], DATA[500:600], DATA[990:], b""]
        assert server.methods() == ["GET bytes=0-3"]
        found = s.read("a", *ranges, generation=found.generation)
    assert server.methods() == ["GET bytes=0-3"]
    server.behaviour.ranges = True  # it learned
    for _ in range(2):
        found = s.read("a", ByteRange(0, 4), ByteRange(500, 600))
        assert isinstance(found, Found)
        assert values(found) == [DATA[:4], DATA[500:600]]
        assert server.methods() == ["GET bytes=0-3", "GET bytes=500-599"]


def test_whole_objects_say_nothing_against_ranges(server: WebServer, s: SyncStorage) -> None:
    server.behaviour.ranges = False
    for request in (ByteSuffix(5000), ByteRange(0, 1000), EVERYTHING):
        assert isinstance(s.read("a", request), Found)  # a warning would be an error


def test_what_comes_after_the_wanted_bytes_is_not_waited_for(server: WebServer, s: SyncStorage) -> None:
    server.behaviour.ranges = False
    server.objects["/root/large"] = bytes(range(256)) * (1 << 16)
    with pytest.warns(RuntimeWarning, match="ignores"):
        found = s.read("large", ByteRange(3, 9))
    assert isinstance(found, Found)
    assert values(found) == [bytes(range(3, 9))]
    assert found.nbytes == 1 << 24
    assert server.left.wait(30)  # more than the sockets hold was not taken


def test_suffixes_that_are_not_known_cost_a_look_up(server: WebServer, s: SyncStorage) -> None:
    server.behaviour.suffix = "416"
    assert isinstance(s.read("a", ByteSuffix(10)), Found)
    assert server.methods() == ["GET bytes=-10", "HEAD", "GET bytes=990-999"]
    assert isinstance(s.read("a", ByteSuffix(10)), Found)
    assert server.methods() == ["HEAD", "GET bytes=990-999"]


def test_bytes_from_elsewhere_are_an_error(server: WebServer, s: SyncStorage) -> None:
    server.behaviour.shift = 1
    with pytest.raises(StorageError, match="bytes 11-20/1000"):
        s.read("a", ByteRange(10, 20))


def test_compressed_ranges_are_an_error(server: WebServer, s: SyncStorage) -> None:
    server.behaviour.headers["Content-Encoding"] = "gzip"
    with pytest.raises(StorageError, match=r"'a'.*Content-Encoding 'gzip'"):
        s.read("a", ByteRange(10, 20))
    assert server.methods() == ["GET bytes=10-19"]  # another attempt would not help


@pytest.mark.parametrize("key", ["with space", "ünïcødé/键", "c/0/0", ".zarray", "a+b&c=d%20?#", "dots.../..a", "~x"])
def test_keys(server: WebServer, s: SyncStorage, key: str) -> None:
    server.objects[f"/root/{key}"] = b"1"
    assert s.get(key) == b"1"


# -- versions ----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*ignores byte ranges")
@pytest.mark.parametrize("if_match", ["yes", "ignored"])
@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("etag", ["strong", "weak", "bare"])
def test_an_object_that_was_replaced(server: WebServer, s: SyncStorage, etag: str, ranges: bool, if_match: str) -> None:
    server.behaviour = Behaviour(etag=etag, ranges=ranges, if_match=if_match)
    old = generation(s)
    server.objects["/root/a"] = OTHER
    for asked in ((), (EVERYTHING,), (ByteRange(1, 2), ByteSuffix(1)), (ByteRange(0, 0),), (ByteOffset(5000),)):
        assert s.read("a", *asked, generation=old) == CHANGED
        assert isinstance(s.read("a", *asked, generation=generation(s)), Found)
    del server.objects["/root/a"]
    assert s.read("a", EVERYTHING, generation=old) == ABSENT


def test_weak_etags_are_not_sent(server: WebServer, s: SyncStorage) -> None:
    server.behaviour.etag = "weak"
    assert isinstance(s.read("a", EVERYTHING, generation=generation(s)), Found)
    assert all("if-match" not in one.headers for one in server.asked)


def test_dates_and_sizes_tell_versions_apart_where_there_is_no_etag(server: WebServer, s: SyncStorage) -> None:
    server.behaviour.etag = "none"
    old = generation(s)
    assert generation(s) == old
    server.objects["/root/a"] = DATA + b"!"
    assert s.read("a", ByteRange(0, 1), generation=old) == CHANGED


def test_without_versions_the_size_is_all_there_is(server: WebServer, s: SyncStorage) -> None:
    server.behaviour = Behaviour(etag="none", last_modified=False)
    old = generation(s)
    assert generation(s) != old
    assert isinstance(s.read("a", ByteRange(0, 1), ByteRange(3, 4), generation=old), Found)
    server.objects["/root/a"] = DATA + b"!"
    assert s.read("a", ByteRange(0, 1), generation=old) == CHANGED


def test_ranges_of_one_read_are_of_one_version(server: WebServer, s: SyncStorage) -> None:
    versions = iter(range(100))
    server.before = lambda _asked: server.objects.update({"/root/a": b"%03d" % next(versions) * 300})
    assert s.read("a", ByteRange(0, 4), ByteRange(10, 14)) == CHANGED
    assert server.methods() == ["GET bytes=0-3", "GET bytes=10-13", "HEAD"] * 3  # tried again, but not for ever

    def once(_asked: Asked) -> None:
        server.before = lambda _asked: None
        server.objects["/root/a"] = OTHER

    server.objects["/root/a"] = DATA
    server.before = lambda _asked: setattr(server, "before", once)
    found = s.read("a", ByteRange(0, 4), ByteRange(10, 14))
    assert isinstance(found, Found)
    assert values(found) == [OTHER[:4], OTHER[10:14]]


@pytest.mark.parametrize("etag", ["strong", "none"])
def test_an_object_that_grows_before_its_end_is_read(server: WebServer, s: SyncStorage, etag: str) -> None:
    server.behaviour = Behaviour(suffix="416", etag=etag, last_modified=False)
    assert isinstance(s.read("a", ByteSuffix(4)), Found)  # now it is known to know no suffixes

    def grown(_asked: Asked) -> None:
        server.before = lambda _asked: None
        server.objects["/root/a"] = DATA + OTHER

    server.before = lambda _asked: setattr(server, "before", grown)
    found = s.read("a", ByteSuffix(4))
    assert isinstance(found, Found)
    assert (found.nbytes, values(found)) == (2000, [OTHER[-4:]])


def test_what_pinning_is_worth_is_claimed_when_it_was_seen(server: WebServer) -> None:
    for etag, worth in (("strong", True), ("weak", False), ("bare", False), ("none", False)):
        server.behaviour.etag = etag
        storage = storage_at(server)
        s = SyncStorage(storage)
        assert not storage.capabilities.pinned_reads
        assert not on_io_loop(storage.probe()).pinned_reads  # there is no zarr.json
        assert isinstance(s.read("a", ByteRange(0, 1)), Found)
        assert storage.capabilities.pinned_reads is worth, etag
        assert not storage.capabilities.atomic_commits
    server.behaviour.etag = "strong"
    server.objects["/root/zarr.json"] = b"{}"
    assert on_io_loop(storage_at(server).probe()).pinned_reads
    assert not storage.capabilities.pinned_reads
    s.get("a")  # one answer without an ETag was seen: it stays so
    assert not storage.capabilities.pinned_reads


# -- redirects ---------------------------------------------------------------------------------------------------------


def test_redirects_are_followed_and_pinned_by_the_last_answer(server: WebServer, s: SyncStorage) -> None:
    there = WebServer()
    try:
        there.objects["/data/a"] = OTHER
        server.redirects["/root/"] = f"{there.url}/data/"
        assert s.get("a") == OTHER
        pinned = generation(s)
        assert pinned.token == there.etag(OTHER)
        assert isinstance(s.read("a", ByteRange(0, 4), ByteSuffix(3), generation=pinned), Found)
        assert {one.range for one in there.asked if one.headers.get("if-match") == pinned.token} == {"bytes=0-3", "bytes=-3"}
        there.objects["/data/a"] = DATA
        assert s.read("a", ByteRange(0, 4), generation=pinned) == CHANGED
        assert s.read("nothing", EVERYTHING) == ABSENT
        there.behaviour.head = False  # as an address that is signed for GET
        assert s.stat("a") is not None
    finally:
        there.close()


def test_the_page_of_a_directory_is_no_object(server: WebServer, s: SyncStorage) -> None:
    """Web servers send clients on to it that leave out the last slash."""
    server.behaviour.pages = True
    server.objects["/root/group/x"] = DATA
    assert s.read("group", EVERYTHING, ByteRange(0, 1)) == ABSENT
    assert s.read("group", ByteSuffix(4)) == ABSENT
    assert s.stat("group") is None
    assert s.get("group/x") == DATA
    assert "group/" in s.children()[1]


def test_redirects_without_end(server: WebServer, s: SyncStorage) -> None:
    server.redirects["/root"] = f"{server.url}/root"
    with pytest.raises(StorageError, match="TooManyRedirects"):
        s.get("a")
    assert len(server.asked) < 30  # one attempt


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [500, 502, 503, 504, 429, 408, "drop", "break"])
def test_passing_failures(server: WebServer, s: SyncStorage, failure: int | str) -> None:
    server.failures = [failure, failure]
    assert s.get("a") == DATA
    server.failures = [failure] * 30
    with pytest.raises(StorageError, match=r"reading 'a' in http://127.0.0.1:\d+/root failed: .*\(3 attempts\)"):
        s.get("a")


def test_other_refusals_are_final(server: WebServer, s: SyncStorage) -> None:
    server.failures = [418]
    with pytest.raises(StorageError, match="the server answered 418") as caught:
        s.get("a")
    assert not isinstance(caught.value, AccessDenied)
    assert len(server.asked) == 1


def test_one_failure_leaves_the_others_of_a_batch(server: WebServer, s: SyncStorage) -> None:
    server.objects["/root/b"] = OTHER
    server.before = lambda asked: server.failures.append(418 if asked.path.endswith("/a") else "ok")
    failed, found = s.read_many(Read("a", (EVERYTHING,)), Read("b", (EVERYTHING,)))
    assert "418" in str(getattr(failed, "error", ""))
    assert isinstance(found, Found)


def test_nobody_there(server: WebServer) -> None:
    server.close()
    with pytest.raises(StorageError, match="Cannot connect"):
        SyncStorage(storage_at(server)).get("a")


def test_pauses_between_attempts(server: WebServer) -> None:
    fs = fsspec.filesystem("http", skip_instance_cache=True)
    storage = HTTPStorage(fs, server.url + "/root", retries=Retries(4, first_seconds=1.0, longest_seconds=3.0))
    paused: list[float] = []

    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    storage._client.sleep = sleep
    server.failures = [503, "break", 503]
    assert SyncStorage(storage).get("a") == DATA
    assert [1.0 <= paused[0] <= 2.0, *(1.5 <= pause <= 3.0 for pause in paused[1:])] == [True] * 3
    assert Retries().pause(1, "2") == 2.0
    assert Retries(longest_seconds=3.0).pause(1, "3600") == 3.0
    assert Retries(first_seconds=1.0).pause(1, "Wed, 21 Oct 2015 07:28:00 GMT") >= 1.0


@pytest.mark.parametrize("status", [401, 403])
def test_denied(server: WebServer, s: SyncStorage, status: int) -> None:
    server.failures = [status] * 10
    with pytest.raises(AccessDenied, match=r"'a'.*what does not exist.*{'headers': "):
        s.get("a")
    with pytest.raises(AccessDenied):
        s.stat("a")


def test_gone_is_absent(server: WebServer, s: SyncStorage) -> None:
    server.behaviour.absent_status = 410
    assert s.read("nothing", EVERYTHING) == ABSENT
    assert s.stat("nothing") is None


# -- options and secrets -----------------------------------------------------------------------------------------------


def test_headers_of_the_user_are_sent(server: WebServer) -> None:
    server.headers_wanted = {"Authorization": "Bearer secret"}
    options: dict[str, Any] = {"headers": {"Authorization": "Bearer secret", "accept-encoding": "gzip", "Range": "bytes=0-1"}}
    s = SyncStorage(storage_at(server, **options))
    assert s.get("a") == DATA
    assert server.asked[-1].headers["accept-encoding"] == "identity"
    s = SyncStorage(storage_at(server, client_kwargs={"headers": {"Authorization": "Bearer secret"}}))
    assert s.get("a") == DATA
    with pytest.raises(AccessDenied):
        SyncStorage(storage_at(server)).get("a")


def test_users_in_the_url(server: WebServer) -> None:
    server.headers_wanted = {"Authorization": "Basic bWU6c2VjcmV0"}
    url = server.url.replace("://", "://me:secret@") + "/root"
    storage = open_storage(url)
    assert SyncStorage(storage).get("a") == DATA
    assert storage.url == server.url + "/root"
    server.headers_wanted = {"Authorization": "Basic other"}
    with pytest.raises(AccessDenied) as caught:
        SyncStorage(storage).get("a")
    assert "secret" not in str(caught.value)


def test_a_query_goes_with_every_request(server: WebServer) -> None:
    storage = storage_at(server, "/root?sv=1&sig=secret%2Bvalue")
    s = SyncStorage(storage)
    assert s.get("a") == DATA
    assert s.stat("a") is not None
    assert {one.path.partition("?")[2] for one in server.asked} == {"sv=1&sig=secret%2Bvalue"}
    assert storage.url == f"{server.url}/root?…"
    for failures in ([418], [403], ["drop"] * 30):
        server.failures = list(failures)
        with pytest.raises(StorageError) as caught:
            s.get("a")
        assert "secret" not in str(caught.value)
        assert "/root?…" in str(caught.value)
    server.close()
    with pytest.raises(StorageError) as caught:
        s.get("a")
    assert "secret" not in str(caught.value)


def test_places_that_look_alike_are_told_apart(server: WebServer) -> None:
    addresses = ["http://host/x", "http://me:1@host/x", "http://me:2@host/x", "http://host/x?v=1", "http://host/x?v=2"]
    fs = fsspec.filesystem("http")
    assert len({HTTPStorage(fs, address).identity for address in addresses}) == len(addresses)
    assert HTTPStorage(fs, "http://host/x/").identity == HTTPStorage(fs, "http://host/x").identity


def test_what_is_no_root(server: WebServer) -> None:
    for root, match in (("#x", "fragment"), ("?q#x", "fragment")):
        with pytest.raises(InvalidInput, match=match):
            storage_at(server, root)
    with pytest.raises(InvalidInput, match="host"):
        HTTPStorage(fsspec.filesystem("http"), "http:///x")


# -- writing -----------------------------------------------------------------------------------------------------------


def test_nothing_can_be_written(s: SyncStorage, server: WebServer) -> None:
    for attempt in (
        lambda: s.put("a", b"1"),
        lambda: s.compose("a", Generation('"x"'), [], UNCONDITIONAL),
        lambda: s.copy("a", "b"),
        lambda: s.rename_prefix("a", "b"),
        lambda: s.delete("a"),
        lambda: s.delete_many("a", "b"),
    ):
        with pytest.raises(ReadOnly, match=r"'a'.* in http://127.*reading only.*s3://"):
            attempt()
    s.delete_many()
    assert server.asked == []


# -- listing -----------------------------------------------------------------------------------------------------------

KEYS = ["a", "b c", "ct-3", "ct.x", "ct/c/0/0", "ct/c/0/1", "ct/zarr.json", "ct2/zarr.json", "zarr.json", "ä%20?/x"]


@pytest.fixture
def listed(server: WebServer) -> WebServer:
    server.behaviour.pages = True
    server.objects = {f"/root/{key}": key.encode() for key in KEYS} | {"/root2/x": b"1"}
    return server


def test_list(listed: WebServer, s: SyncStorage) -> None:
    for prefix in ("", "c", "ct", "ct/", "ct/c", "ct/c/", "ct/c/0/1", "b", "nothing", "nothing/", "ct/c/0/1/", "ä"):
        assert s.keys(prefix) == sorted(key for key in KEYS if key.startswith(prefix)), prefix
    assert [info for info in s.infos() if info.key == "ct.x"] == [s.stat("ct.x")]


def test_list_dir(listed: WebServer, s: SyncStorage) -> None:
    assert s.children() == (["a", "b c", "ct-3", "ct.x", "zarr.json"], ["ct/", "ct2/", "ä%20?/"])
    assert s.children("ct/") == (["ct/zarr.json"], ["ct/c/"])
    assert s.children("ct/c/0/") == (["ct/c/0/0", "ct/c/0/1"], [])
    assert s.children("nothing/") == ([], [])
    with pytest.raises(InvalidInput):
        s.children("ct")


def test_listings_are_not_remembered(listed: WebServer) -> None:
    s = SyncStorage(storage_at(listed, use_listings_cache=True))
    assert s.keys("new") == []
    listed.objects["/root/new"] = b"1"
    assert s.keys("new") == ["new"]


def test_servers_without_pages(server: WebServer, s: SyncStorage) -> None:
    for status in (404, 403):
        server.behaviour.absent_status = status
        for prefix in ("", "ct/"):
            with pytest.raises(Unsupported, match="open_consolidated"):
                s.children(prefix)
        with pytest.raises(Unsupported, match="no pages"):
            s.keys()
    server.objects["/root/"] = b"<html><a href='a'>a</a></html>"  # not said to be HTML
    with pytest.raises(Unsupported, match="no pages"):
        s.children()


def test_circles_end(listed: WebServer, s: SyncStorage) -> None:
    endless = {f"/root/{'x/' * n}y" for n in range(1, 100)}
    listed.objects = dict.fromkeys(endless, b"1")
    with pytest.raises(StorageError, match="loop of links"):
        s.keys()


@pytest.mark.parametrize(
    ("href", "child"),
    [
        ("zarr.json", "zarr.json"),
        ("./zarr.json", "zarr.json"),
        ("/data/x/c/", "c/"),
        ("https://host/data/x/c%20d", "c d"),
        ("a?download=1", "a"),
        ("a&amp;b", "a&b"),
        ("?C=N;O=D", None),
        ("../", None),
        ("/data/x/", None),
        ("/data/x2/a", None),
        ("a/b", None),
        ("https://other/data/x/a", None),
        ("mailto:me@host", None),
        ("http://[", None),
        ("", None),
        ("#top", None),
    ],
)
def test_links(href: str, child: str | None) -> None:
    page = f"<html><body><a class=x href='{href}'>link</a>"
    for url in ("https://host/data/x", "https://host/data/x/", "https://host/data/x/?q=1"):
        assert children(page, url) == ([] if child is None else [child])


def test_reads_go_on_at_once_within_the_bound(server: WebServer) -> None:
    storage = HTTPStorage(fsspec.filesystem("http", skip_instance_cache=True), server.url + "/root", concurrency=3)
    under_way = most = 0

    class Counting:
        def __init__(self, semaphore: asyncio.Semaphore) -> None:
            self.semaphore = semaphore

        async def __aenter__(self) -> None:
            nonlocal under_way, most
            await self.semaphore.acquire()
            under_way += 1
            most = max(most, under_way)

        async def __aexit__(self, *_: object) -> None:
            nonlocal under_way
            under_way -= 1
            self.semaphore.release()

    slot = storage._client.bound.slot
    storage._client.bound.slot = lambda: Counting(slot())  # type: ignore[method-assign, assignment, return-value]
    outcomes = SyncStorage(storage).read_many(*(Read("a", (ByteRange(i, i + 1),)) for i in range(20)))
    assert [values(found) for found in outcomes if isinstance(found, Found)] == [[DATA[i : i + 1]] for i in range(20)]
    assert most == 3


# -- stored hierarchies ------------------------------------------------------------------------------------------------

EXPECTED = np.arange(60 * 40, dtype="i4").reshape(60, 40)


def publish(server: WebServer, directory: Path, values: NDArray[np.int32], consolidate: bool = False) -> None:
    """Serve a sharded hierarchy below ``/data``."""
    store = shardstore.open(directory, chunks_per_shard={"ct": (4, 2)})
    root = zarr.create_group(store, overwrite=True)
    root.create_array("ct", shape=values.shape, chunks=(5, 10), dtype="i4")[:] = values
    if consolidate:
        zarr.consolidate_metadata(store)
    for file in directory.rglob("*"):
        if file.is_file() and not file.name.startswith("."):
            server.objects[f"/data/{file.relative_to(directory)}"] = file.read_bytes()


@pytest.mark.filterwarnings("ignore:.*ignores byte ranges")
@pytest.mark.parametrize("behaviour", [Behaviour(), Behaviour(ranges=False), Behaviour(suffix="416"), Behaviour(etag="none")])
def test_a_view_over_http(server: WebServer, tmp_path: Path, behaviour: Behaviour) -> None:
    publish(server, tmp_path, EXPECTED)
    server.behaviour = behaviour
    store = shardstore.open(f"{server.url}/data")
    group = zarr.open_group(store, mode="r")  # which lists nothing
    array = group["ct"]
    assert isinstance(array, zarr.Array)
    assert (array.chunks, array.shards) == ((5, 10), None)
    assert np.array_equal(array[:], EXPECTED)
    assert np.array_equal(array[7:33:3, 5:25], EXPECTED[7:33:3, 5:25])
    with pytest.raises(Unsupported, match="open_consolidated"):
        list(group.members())
    with pytest.raises(ReadOnly, match="HTTP is for reading only"):
        zarr.create_group(store, path="new")
    server.behaviour = replace(behaviour, pages=True)
    assert [name for name, _ in group.members()] == ["ct"]
    assert array.nchunks_initialized == 48


def test_consolidated_metadata_needs_no_listing(server: WebServer, tmp_path: Path) -> None:
    publish(server, tmp_path, EXPECTED, consolidate=True)
    group = zarr.open_consolidated(shardstore.open(f"{server.url}/data"))
    ((name, array),) = group.members()
    assert name == "ct"
    assert isinstance(array, zarr.Array)
    assert array.shards is None
    assert np.array_equal(array[:], EXPECTED)


def test_requests_of_a_view(server: WebServer, tmp_path: Path) -> None:
    publish(server, tmp_path, EXPECTED)
    array = zarr.open_array(shardstore.open(f"{server.url}/data", metadata_ttl="10000w"), path="ct", mode="r")
    server.methods()
    assert np.array_equal(array[5:10, 10:20], EXPECTED[5:10, 10:20])
    assert len(server.methods()) == 3  # the index of a shard; a chunk, and the document beside it
    assert np.array_equal(array[0:5, 0:10], EXPECTED[0:5, 0:10])
    (asked,) = server.asked
    assert asked.headers["if-match"] == server.etag(server.objects["/data/ct/c/0/0"])


def test_a_shard_that_is_replaced_between_its_index_and_its_chunk(server: WebServer, tmp_path: Path) -> None:
    publish(server, tmp_path / "new", -EXPECTED * 1000)
    new = server.objects["/data/ct/c/0/0"]
    publish(server, tmp_path / "old", EXPECTED)
    array = zarr.open_array(shardstore.open(f"{server.url}/data"), path="ct", mode="r")

    def before(asked: Asked) -> None:
        if asked.path.endswith("/c/0/0") and "if-match" in asked.headers:
            server.objects["/data/ct/c/0/0"] = new

    server.before = before
    assert np.array_equal(array[5:10, 10:20], -EXPECTED[5:10, 10:20] * 1000)
