"""Servers that do not do what they say: each is detected, or the ability is refused, and never is a value wrong.

What cannot be detected, and so is not tested: a server that honours conditions while it is asked whether it does, and not later; one
that answers 404 for what is there (it is believed, and what is read is missing); one that labels wrong bytes of a chunk as the right
ones, of the right length (what protects a chunk is a checksum among its codecs; the index has one); one that hands out the same ETag
for other bytes. Old versions served after newer ones look like the past: whole, and no write is based on them.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from shardstore.engine.actions import SetValue
from shardstore.errors import ShardStoreError, StorageError, Unsupported
from shardstore.model.generation import IF_ABSENT
from shardstore.model.ranges import ByteRange, ByteSuffix
from shardstore.storage.base import ConditionFailed
from shardstore.storage.s3 import client as s3_client
from shardstore.storage.s3.storage import S3Storage
from shardstore.testing.storage_suite import SyncStorage, on_io_loop
from tests import shards
from tests.harness import misbehaviours as mis
from tests.harness.misbehaving_server import MisbehavingServer
from tests.harness.scale import FULL
from tests.limits import resend_at_once
from tests.torture.conftest import Record
from tests.torture.wire import (
    A_SHARD,
    CHUNKS,
    DOCUMENT,
    INITIAL,
    NBYTES,
    PLAIN,
    PRESENTED,
    STORED,
    Case,
    Client,
    Kind,
    Values,
    Wire,
    chunk_key,
    forget,
    shard_bytes,
    value,
    wire,
    without_checksums,
)

Bucket = tuple[str, dict[str, Any]]
WRITES = ("PUT", "POST", "DELETE")


def _of_night(server: str) -> Any:
    return pytest.param(server, marks=pytest.mark.night)


@pytest.fixture(scope="module", params=["s3", _of_night("s3 over obstore"), "gcs", "azure", _of_night("azure over obstore"), "http"])
def server(request: pytest.FixtureRequest) -> Iterator[Wire]:
    kind, _, transport = request.param.partition(" over ")
    endpoint = "" if kind == "http" else request.getfixturevalue(f"{kind}_endpoint")
    with wire(kind, endpoint, transport or "fsspec") as running:
        yield running


@pytest.fixture(autouse=True)
def fresh(server: Wire, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    resend_at_once(monkeypatch)
    forget()
    without_checksums(server.server)
    yield
    forget()
    server.server.behave()


# -- reading -----------------------------------------------------------------------------------------------------------

Outcome = bytes | Exception | None


def attempt(act: Callable[[], list[Outcome]], count: int) -> list[Outcome]:
    try:
        return act()
    except ShardStoreError as exc:
        return [exc] * count


def names_what_it_is_about(error: Exception) -> bool:
    return isinstance(error, ShardStoreError) and any(name in str(error) for name in ("'x/", "'x'", "'p/", "'p'"))


def _as_presented(document: Outcome) -> Outcome:
    """``PRESENTED`` where it says the same."""
    try:
        same = isinstance(document, bytes) and json.loads(document) == json.loads(PRESENTED)
    except ValueError:
        same = False
    return PRESENTED if same else document


class Reading:
    """What a client reads, held against the truth. ``wrong`` holds what is neither that nor an error which says what it is about."""

    def __init__(self, undetectable: tuple[str, ...] = ()) -> None:
        self._undetectable = undetectable
        self.right = 0
        self.errors: list[Exception] = []
        self.wrong: list[str] = []

    def judge(self, what: str, found: list[Outcome], truth: list[bytes | None]) -> None:
        for one, expected in zip(found, truth, strict=True):
            if isinstance(one, Exception):
                self.errors.append(one)
                if not names_what_it_is_about(one):
                    self.wrong.append(f"{what}: {one!r}")
            elif one == expected:
                self.right += 1
            elif what not in self._undetectable:
                self.wrong.append(f"{what}: {one!r} for {expected!r}")

    def all(self, client: Client, truth: Values) -> None:
        """Chunks cold, with the index known, several, in part; documents; an array that is not sharded."""

        def chunks(what: str, *numbers: int) -> None:
            self.judge(what, attempt(lambda: client.read(*numbers), len(numbers)), [truth[number] for number in numbers])

        chunks("cold", 1)
        chunks("with the index known", 2)
        chunks("missing", CHUNKS - 1)
        chunks("selection", *range(CHUNKS))
        part = truth[3]
        self.judge("part", attempt(lambda: client.get([chunk_key(3)], ByteSuffix(5)), 1), [None if part is None else part[-5:]])
        self.judge("part", attempt(lambda: client.get([chunk_key(3)], ByteRange(3, 9)), 1), [None if part is None else part[3:9]])
        (document,) = attempt(lambda: client.get([DOCUMENT]), 1)
        self.judge("metadata", [_as_presented(document)], [PRESENTED])
        self.judge("not sharded", attempt(lambda: client.get([PLAIN]), 1), [value(99, 1)])


@dataclass(frozen=True, slots=True)
class Hostile:
    """A way to serve reads wrongly. Of the kinds ``detected`` something must fail; of others everything must be right."""

    install: Callable[[MisbehavingServer, Kind], object]
    detected: tuple[Kind, ...] = ("s3", "gcs", "azure", "http")
    undetectable: tuple[str, ...] = ()
    """What is read without ranges and checksums, so that nothing shows what is missing at the end."""


def dialect(kind: Kind) -> mis.Dialect:
    return "s3" if kind == "http" else kind


def of_objects(behaviour: mis.Behaviour) -> Callable[[MisbehavingServer, Kind], object]:
    """For requests that read objects, not for those that list, or look up in GCS."""

    def install(server: MisbehavingServer, _kind: Kind) -> object:
        return server.on(behaviour, method="GET", where=lambda r: "list-type" not in r.target and not r.target.startswith("/storage/v1"))

    return install


def of_versions(change: Callable[[str], str | None]) -> Callable[[MisbehavingServer, Kind], object]:
    """The header that names the version, in every answer."""

    def install(server: MisbehavingServer, kind: Kind) -> object:
        return server.on(mis.change_header("X-Goog-Generation" if kind == "gcs" else "ETag", change))

    return install


def of_content_range(change: Callable[[str], str | None]) -> Callable[[MisbehavingServer, Kind], object]:
    return of_objects(mis.change_header("Content-Range", change))


WHOLE = ("metadata", "not sharded")
HOSTILE: dict[str, Hostile] = {
    "conditions ignored": Hostile(of_objects(mis.ignore_conditions()), ()),
    "412 to everything": Hostile(lambda s, k: of_objects(mis.refuse(412, dialect(k)))(s, k)),
    "suffixes: whole": Hostile(of_objects(mis.wrong_suffix("whole")), ("s3", "gcs")),
    "suffixes: first bytes": Hostile(of_objects(mis.wrong_suffix("first")), ("s3", "gcs")),
    "suffixes: first bytes as last": Hostile(of_objects(mis.wrong_suffix("first, as if last")), ("s3", "gcs", "http")),
    "suffixes: 416": Hostile(of_objects(mis.wrong_suffix("refused")), ("s3", "gcs")),
    "ranges ignored": Hostile(of_objects(mis.ignore_range()), ()),
    "ranges from elsewhere": Hostile(of_objects(mis.shift_ranges(NBYTES))),
    "whole object as range": Hostile(of_objects(mis.whole_as_range())),
    "Content-Range: off by one": Hostile(of_content_range(mis.shifted_range(1))),
    "Content-Range: wrong total": Hostile(of_content_range(mis.wrong_total(9))),
    "Content-Range: missing": Hostile(of_content_range(lambda _: None)),
    "Content-Range: nonsense": Hostile(of_content_range(lambda _: "items 1-2/3")),
    "bodies: short": Hostile(of_objects(mis.cut_body())),
    "bodies: short in secret": Hostile(of_objects(mis.cut_body(is_announced=False)), undetectable=WHOLE),
    "bodies: empty in secret": Hostile(of_objects(mis.cut_body(is_announced=False, keep=0)), undetectable=WHOLE),
    "bodies: compressed": Hostile(of_objects(mis.gzipped())),
    "version: another each time": Hostile(of_versions(mis.another_each_time()), ("azure",)),
    "version: missing": Hostile(of_versions(lambda _: None), ("s3", "azure")),
    "version: weak": Hostile(lambda s, _: s.on(mis.change_header("ETag", "W/".__add__)), ()),
    "version: not in quotes": Hostile(lambda s, _: s.on(mis.change_header("ETag", lambda v: v.strip('"'))), ()),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_reads_are_right_or_refused(server: Wire, name: str, record: Record) -> None:
    hostile = HOSTILE[name]
    case = Case(server)
    case.put_plain()
    hostile.install(server.server, server.kind)
    reading = Reading(hostile.undetectable)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* ignores byte ranges", RuntimeWarning)
        reading.all(case.client(), INITIAL)
        if FULL or server.kind != "s3":
            reading.all(case.client(gap_bytes=0), INITIAL)
    assert not reading.wrong, reading.wrong
    assert bool(reading.errors) is (server.kind in hostile.detected), reading.errors
    record(f"{reading.right} values right, {len(reading.errors)} refused, 0 wrong")


def rewrite(case: Case, shard: int) -> Callable[[], None]:
    """Another client's rewrite of a shard: its chunks lie elsewhere afterwards, all but one with the same values."""

    def act() -> None:
        first = shard * A_SHARD
        assert case.client(direct=True).write({first: value(first, 2)}) == [None]

    return act


@pytest.mark.parametrize("conditions", ["honoured", "ignored"])
@pytest.mark.parametrize("gap", ["one range", "two ranges"])
def test_a_shard_is_rewritten_between_index_and_chunks(server: Wire, conditions: str, gap: str, record: Record) -> None:
    """Where the server ignores the condition on a read, the version of its answer tells."""
    case = Case(server)
    if server.kind == "http":
        moved = shard_bytes(0, dict(reversed(INITIAL.items())) | {0: value(0, 2), 3: None})
    client = case.client(gap_bytes=0 if gap == "two ranges" else None)
    assert client.read(1) == [value(1, 1)]
    if conditions == "ignored":
        server.server.on(mis.ignore_conditions(), method=("GET", "HEAD"))

    def change() -> None:
        if server.kind == "http":
            case.objects.put("x/c/0", moved)
        else:
            rewrite(case, 0)()

    rule = server.server.on(mis.meanwhile(change), method="GET", target=r"x(/|%2F)c(/|%2F)0", nth=2 if gap == "two ranges" else 1)
    found = client.read(0, 2) if gap == "two ranges" else client.read(2)
    assert rule.acted == 1
    wanted = [value(0, 2), value(2, 1)] if gap == "two ranges" else [value(2, 1)]
    assert found == wanted
    record("right")


def test_old_versions_are_whole_and_nothing_is_based_on_them(server: Wire) -> None:
    """A cache that is never told: what it serves was true once; a write that would build on it is refused."""
    case = Case(server)
    server.server.on(mis.Stale(), method=("GET", "HEAD"))
    assert case.client().read(0, 1) == [value(0, 1), value(1, 1)]
    new = INITIAL | {0: value(0, 2), 1: None}
    if server.kind == "http":
        case.put_shards(new)
        assert case.client().read(0, 1) == [value(0, 1), value(1, 1)]
        return
    assert case.client(direct=True).write({0: value(0, 2), 1: None}) == [None, None]
    client = case.client()
    assert client.read(0, 1) == [value(0, 1), value(1, 1)]
    (error,) = client.write({2: value(2, 2)})
    assert isinstance(error, ShardStoreError), error
    assert "x/c/0" in str(error)
    assert case.stored() == new


# -- writing -----------------------------------------------------------------------------------------------------------


def writes_to(shard: int) -> str:
    return rf"x(/|%2F)c(/|%2F){shard}(\?|&|$)"


ALL_CONDITIONS = mis.ignore_conditions()


@dataclass(frozen=True, slots=True)
class Ignoring:
    """A server that ignores conditions on some requests, and what it cannot do therefore."""

    methods: tuple[str, ...]
    lacks: frozenset[str]
    kinds: tuple[Kind, ...] = ("s3",)
    behaviour: mis.Behaviour = ALL_CONDITIONS
    large: bool = False
    """Whether writes go in parts."""


async def _knows_only_what_is_there(request: mis.Request, send: mis.Send) -> mis.Outcome:
    """DELETE as some servers have it: 404 where there is nothing, and conditions are not known."""
    bare = request.with_header("If-Match", None)
    there = await send(mis.Request("HEAD", bare.target, bare.headers, b""))
    return await send(bare) if there.status == 200 else mis.refusal(404)


async def _ignores_if_match_of_blocks(request: mis.Request, send: mis.Send) -> mis.Outcome:
    return await send(request.with_header("If-Match", None) if "comp=blocklist" in request.target else request)


BY_ETAG: tuple[Kind, ...] = ("s3", "azure")
SWAP = frozenset({"compare_and_swap", "create_if_absent"})
IGNORING: dict[str, Ignoring] = {
    "nothing": Ignoring((), frozenset(), BY_ETAG),
    "nothing, in parts": Ignoring((), frozenset(), BY_ETAG, large=True),
    "PUT": Ignoring(("PUT",), SWAP, BY_ETAG),
    "PUT and DELETE": Ignoring(("PUT", "DELETE"), SWAP | {"conditional_delete"}, BY_ETAG),
    "PUT if absent": Ignoring(("PUT",), frozenset({"create_if_absent"}), BY_ETAG, behaviour=mis.without_header("If-None-Match")),
    "PUT if the same": Ignoring(("PUT",), frozenset({"compare_and_swap"}), behaviour=mis.without_header("If-Match")),
    "PUT if the same, of blocks too": Ignoring(("PUT",), SWAP, ("azure",), behaviour=_ignores_if_match_of_blocks, large=True),
    "DELETE": Ignoring(("DELETE",), frozenset({"conditional_delete"}), BY_ETAG),
    "DELETE, and 404 for what is not there": Ignoring(("DELETE",), frozenset({"conditional_delete"}), behaviour=_knows_only_what_is_there),
    "Complete": Ignoring(("POST",), frozenset(), large=True),
    "GET and HEAD": Ignoring(("GET", "HEAD"), frozenset(), BY_ETAG),
    "uploads": Ignoring(("POST",), SWAP | {"conditional_delete"}, ("gcs",)),
    "ends of resumable uploads": Ignoring(("PUT",), frozenset({"conditional_delete"}), ("gcs",), large=True),
    "GET": Ignoring(("GET",), frozenset({"conditional_delete"}), ("gcs",)),  # fake-gcs-server knows none on DELETE
}
FLAGS = ("compare_and_swap", "create_if_absent", "conditional_delete")


of_each_kind = pytest.mark.parametrize(
    ("server", "ignoring"),
    [pytest.param(kind, name, id=f"{kind}-{name}") for name, one in IGNORING.items() for kind in one.kinds],
    indirect=True,
)


@pytest.fixture
def ignoring(request: pytest.FixtureRequest, server: Wire) -> Ignoring:
    found = IGNORING[request.param]
    if found.methods:
        server.server.on(found.behaviour, method=found.methods)
    return found


def opened(case: Case, ignoring: Ignoring, **options: Any) -> Client:
    sizes = {"s3": "multipart_bytes", "gcs": "resumable_bytes", "azure": "put_bytes"}
    return Client(case.storage(**({sizes[case.wire.kind]: 1} if ignoring.large else {})), **options)


@of_each_kind
def test_what_a_server_ignores_it_is_not_trusted_with(server: Wire, ignoring: Ignoring) -> None:
    case = Case(server)
    before = server.objects.keys()
    client = opened(case, ignoring)
    capabilities = on_io_loop(client.storage.probe())
    assert {name for name in FLAGS if not getattr(capabilities, name)} == ignoring.lacks
    assert server.objects.keys() == before  # probes leave nothing
    if not capabilities.atomic_commits:
        (error,) = opened(case, ignoring, require_atomic=True).write({1: value(1, 2)})
        assert isinstance(error, Unsupported)
        assert case.stored() == INITIAL
        with pytest.warns(RuntimeWarning, match="no compare-and-swap"):
            assert client.write({1: value(1, 2)}) == [None]
    else:
        assert client.write({1: value(1, 2)}) == [None]
    assert case.stored() == INITIAL | {1: value(1, 2)}


@of_each_kind
def test_no_chunk_is_lost_to_another_writer(server: Wire, ignoring: Ignoring, record: Record) -> None:
    """Another writer's commit at the moment before each request of ours that changes a shard; then what both stored is there."""
    case = Case(server)
    client = opened(case, ignoring)
    if not on_io_loop(client.storage.probe()).atomic_commits:
        pytest.skip("one writer a shard is the rule there: it has been said")
    moments = 0

    def at_the_moment(act: Callable[[], None]) -> None:
        """Before the first request that changes one of our shards."""

        def look(request: mis.Request) -> bool:
            named = request.target + request.body[:2000].decode("latin-1")
            return "/x/c/" in named.replace("%2F", "/") and request.method in WRITES

        rule = server.server.on(mis.meanwhile(act), where=look, nth=1)
        rules.append(rule)

    rules: list[Any] = []

    def others(values: Values) -> Callable[[], None]:
        def act() -> None:
            assert case.client(direct=True).write(values) == [None] * len(values)
            truth.update(values)

        return act

    truth = dict(INITIAL)
    steps: list[tuple[Values, Values]] = [
        ({1: value(1, 2)}, {2: value(2, 3)}),  # a chunk
        ({0: None, 1: None}, {3: value(3, 3)}),  # erased, with others left
        ({4: None, 5: None, 6: None}, {7: value(7, 3)}),  # the shard would be empty
        ({7: None}, {4: value(4, 4)}),
        ({4: None}, {4: None, 5: value(5, 5)}),
        ({5: None}, {}),  # and is
        ({6: value(6, 6)}, {5: value(5, 6)}),  # comes back
    ]
    for ours, theirs in steps:
        if theirs:
            at_the_moment(others(theirs))
        assert client.write(ours) == [None] * len(ours)
        if theirs:
            assert rules[-1].acted == 1
            moments += 1
        truth.update(ours)
        assert case.stored() == truth, (ours, theirs)
    record(f"{moments} commits of another at the moment of ours, 0 chunks lost")


@of_each_kind
def test_creating_is_decided_by_the_server(server: Wire, ignoring: Ignoring) -> None:
    """Two create one object; the other one comes first at the last moment."""
    case = Case(server)
    client = opened(case, ignoring)
    if not on_io_loop(client.storage.probe()).create_if_absent:
        pytest.skip("it is not claimed")
    server.server.on(
        mis.meanwhile(lambda: case.objects.put("new", b"theirs")), target=r"(/|%2F|=)new(\?|&|$)|uploadType=multipart", method=WRITES, nth=1
    )
    with pytest.raises(ConditionFailed):
        SyncStorage(client.storage).put("new", b"ours", IF_ABSENT)
    assert case.objects.get("new") == b"theirs"


@pytest.mark.parametrize("server", ["s3"], indirect=True)
@pytest.mark.parametrize("nth", [1, 2])
def test_a_probe_is_not_deceived_by_a_request_that_is_sent_again(server: Wire, nth: int) -> None:
    """The probe's DELETE is carried out against its condition, its answer lost; the client asks again, and nothing is there any more."""
    case = Case(server)
    before = server.objects.keys()
    server.server.on(_knows_only_what_is_there, method="DELETE")
    server.server.on(mis.drop_reply(), method="DELETE", nth=nth)
    capabilities = on_io_loop(case.storage(retries=True).probe())
    assert (capabilities.compare_and_swap, capabilities.create_if_absent, capabilities.conditional_delete) == (True, True, False)
    assert server.objects.keys() == before


@pytest.mark.parametrize("server", ["s3", "gcs", "azure"], indirect=True)
def test_no_chunk_is_written_below_metadata_that_come_cut_short(server: Wire) -> None:
    """Where an array's shards lie is not known then; an object of the chunk's own would never be found again, or be one of the shards."""
    case = Case(server)
    short = mis.cut_body(is_announced=False)
    server.server.on(short, method="GET", where=lambda r: "zarr.json" in r.target and not r.target.startswith("/storage/v1"))
    before = case.objects.keys()
    for chunk in (1, 2, 5):  # of which the first has the key of a shard
        (error,) = case.client().write({chunk: value(chunk, 2)})
        assert isinstance(error, ShardStoreError), error
        assert names_what_it_is_about(error)
    assert case.objects.keys() == before
    assert case.stored() == INITIAL


@pytest.mark.parametrize("server", ["s3", "gcs", "azure"], indirect=True)
def test_a_withdrawn_shard_takes_no_chunk_of_another_along(server: Wire) -> None:
    """A transaction loses its new array to another client, and removes its shards at the moment when that client writes into one."""
    case = Case(server)
    if server.kind == "s3":
        server.server.on(mis.ignore_conditions(), method="DELETE")
    client, other = case.client(), case.client(direct=True)

    def create() -> None:
        case.objects.put("y/zarr.json", STORED)

    def write() -> None:
        assert on_io_loop(other.engine.update_many([("y/c/1", SetValue(value(1, 9)))])) == [None]

    def is_of(key: str) -> Callable[[mis.Request], bool]:
        return lambda r: r.method in WRITES and f"/y/{key}" in (r.target + r.body[:2000].decode("latin-1")).replace("%2F", "/")

    on_io_loop(client.engine.begin())
    client.put("y/zarr.json", PRESENTED)
    client.put("y/c/0", value(0, 8))
    created = server.server.on(mis.meanwhile(create), where=is_of("zarr.json"), nth=1)
    withdrawn = server.server.on(mis.meanwhile(write), where=is_of("c/0"), nth=2)  # the first one stores it
    with pytest.raises(ShardStoreError):
        on_io_loop(client.engine.commit())
    assert (created.acted, withdrawn.acted) == (1, 1)
    assert shards.presented(case.objects).get("y/c/1") == value(1, 9)


@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_an_upload_that_is_gone_refuses_nothing(server: Wire) -> None:
    """The same with the end of a multipart upload: of the second request the server says that there is no such upload."""

    async def gone(_request: mis.Request, _send: mis.Send) -> mis.Outcome:
        return mis.Answer(404, (("Content-Type", "application/xml"),), b"<Error><Code>NoSuchUpload</Code><Message>gone</Message></Error>")

    case = Case(server)
    before = server.objects.keys()
    server.server.on(mis.ignore_conditions(), method="POST")
    server.server.on(gone, method="POST", target="uploadId=", nth=2)
    server.server.on(mis.drop_reply(), method="POST", target="uploadId=", nth=1)
    storage = case.storage(retries=True)
    assert isinstance(storage, S3Storage)
    assert not on_io_loop(s3_client.probe_multipart(storage.client))
    assert server.objects.keys() == before


@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_an_upload_that_somebody_has_aborted_proves_nothing(server: Wire) -> None:
    """As ``repair`` aborts those of clients that stood still for long: a server that honours conditions was said to ignore them."""

    async def aborted(request: mis.Request, send: mis.Send) -> mis.Outcome:
        await send(replace(request, method="DELETE", body=b""))
        return mis.Answer(404, (("Content-Type", "application/xml"),), b"<Error><Code>NoSuchUpload</Code><Message>gone</Message></Error>")

    async def refused(_request: mis.Request, _send: mis.Send) -> mis.Outcome:
        return mis.Answer(412, (("Content-Type", "application/xml"),), b"<Error><Code>PreconditionFailed</Code></Error>")

    case = Case(server)
    before = server.objects.keys()
    server.server.on(refused, method="POST", target="uploadId=")
    server.server.on(aborted, method="POST", target="uploadId=", nth=1)
    storage = case.storage()
    assert isinstance(storage, S3Storage)
    assert on_io_loop(s3_client.probe_multipart(storage.client))
    server.server.on(aborted, method="POST", target="uploadId=")
    with pytest.raises(StorageError, match="has aborted each of 3 uploads"):
        on_io_loop(s3_client.probe_multipart(storage.client))
    server.server.on(aborted, method="GET", target="uploadId=")
    with pytest.raises(StorageError, match="NoSuchUpload"):
        on_io_loop(s3_client.probe_copied_parts(storage.client, "a", "none", {1: 1}))
    assert server.objects.keys() == before


@pytest.mark.parametrize("server", ["s3", "s3 over obstore"], indirect=True)
@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("always", [False, True])
def test_an_empty_answer_acknowledges_nothing(server: Wire, in_parts: bool, always: bool) -> None:
    """Of something before the server, that has not passed the request on."""

    async def empty(_request: mis.Request, _send: mis.Send) -> mis.Outcome:
        return mis.Answer(200)

    case = Case(server)
    client = Client(case.storage(**({"multipart_bytes": 1} if in_parts else {})))
    on_io_loop(client.storage.probe())
    rule = server.server.on(empty, method="PUT", target=writes_to(0), nth=None if always else 1)
    (error,) = client.write({1: value(1, 2)})
    assert rule.acted
    assert isinstance(error, ShardStoreError) is always, error
    server.server.behave()
    assert case.stored() == (INITIAL if always else INITIAL | {1: value(1, 2)})


@pytest.mark.parametrize("server", ["s3", "gcs"], indirect=True)
def test_a_range_that_is_said_to_be_past_the_end_is_no_change(server: Wire) -> None:
    case = Case(server)
    server.server.on(mis.wrong_suffix("refused"))
    with pytest.raises(StorageError, match=r"'x/c/0'.*past the end"):
        SyncStorage(case.storage()).read("x/c/0", ByteSuffix(4))
