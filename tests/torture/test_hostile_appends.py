"""Appends to shards in S3 on servers that lie about each of their requests: old or new, whole, and nothing that was acknowledged is lost.

::

    begin (create the upload) ─► copy (a part of the old object) and part (the new one), together ─► end (complete it), look (HEAD)

What cannot be detected: a server that answers that all went well, with an ETag, and has done nothing, or something else.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from shardstore.errors import ShardStoreError
from shardstore.storage.requests.bucket import forget_facts
from shardstore.storage.s3.storage import S3Storage
from shardstore.storage.wrappers import innermost
from shardstore.testing.storage_suite import on_io_loop
from tests.harness import misbehaviours as mis
from tests.harness.scale import FULL
from tests.limits import resend_at_once
from tests.torture.conftest import Record
from tests.torture.small_parts import limit_parts
from tests.torture.wire import A_SHARD, CHUNKS, INITIAL, Case, Client, Values, Wire, shard_bytes, value, wire, without_checksums

SHARD = "x/c/0"
NEW: Values = {1: value(1, 2)}


@pytest.fixture(scope="module")
def server(aws_endpoint: str) -> Iterator[Wire]:
    with wire("s3", aws_endpoint) as running:
        yield running


@pytest.fixture(autouse=True)
def fresh(server: Wire, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    resend_at_once(monkeypatch)
    forget_facts()
    limit_parts(small=True)
    yield
    limit_parts(small=False)
    forget_facts()
    server.server.behave()


Which = Callable[[mis.Request], bool]


def _is_of_shard(request: mis.Request) -> bool:
    return request.path.replace("%2F", "/").endswith(SHARD)


STEPS: dict[str, Which] = {
    "begin": lambda r: r.method == "POST" and "uploads" in r.target and _is_of_shard(r),
    "copy": lambda r: r.header("x-amz-copy-source") is not None and _is_of_shard(r),
    "part": lambda r: r.method == "PUT" and "uploadId=" in r.target and r.header("x-amz-copy-source") is None and _is_of_shard(r),
    "end": lambda r: r.method == "POST" and "uploadId=" in r.target and _is_of_shard(r),
    "look": lambda r: r.method == "HEAD" and _is_of_shard(r),
}


def appending(case: Case) -> Client:
    """A client that knows its server, and appends from its next commit on."""
    client = Client(case.storage(), strategy="append")
    on_io_loop(client.storage.probe())
    assert client.write({A_SHARD: value(A_SHARD, 1)}) == [None]
    assert client.storage.capabilities.compose
    return client


def unfinished(case: Case) -> int:
    async def count() -> int:
        storage = innermost(case.storage(direct=True))
        assert isinstance(storage, S3Storage)
        return len([upload async for upload in storage.unfinished_uploads("")])

    return on_io_loop(count())


def check(case: Case, truth: Values) -> None:
    assert case.stored() == truth
    assert case.client(direct=True).read(*range(CHUNKS)) == [truth[chunk] for chunk in range(CHUNKS)]


def written(case: Case, client: Client, old: Values, new: Values) -> bool:
    """Write ``new`` while the server lies, and again when it does not; whether the first was acknowledged."""
    errors = client.write(new)
    case.wire.server.behave()
    assert all(error is None or isinstance(error, ShardStoreError) for error in errors), errors
    stored, is_new = case.stored(), not any(errors)
    assert stored == old | new or (not is_new and stored == old), errors
    check(case, stored)
    assert client.read(*range(CHUNKS)) == [stored[chunk] for chunk in range(CHUNKS)]
    assert client.write(new) == [None] * len(new)
    check(case, old | new)
    return is_new


# -- what an append does ---------------------------------------------------------------------------------------------------


def test_an_append_is_what_is_tested(server: Wire) -> None:
    case = Case(server)
    client = appending(case)
    server.server.behave()
    old = case.objects.get(SHARD)
    assert client.write(NEW) == [None]
    seen = server.server.requests
    assert {step: sum(map(which, seen)) for step, which in STEPS.items()} == {"begin": 1, "copy": 1, "part": 1, "end": 1, "look": 0}
    now = case.objects.get(SHARD)
    assert old is not None
    assert now is not None
    assert now.startswith(old[: -(16 * A_SHARD + 4)])
    assert len(now) > len(old)
    check(case, INITIAL | NEW)


# -- lies ------------------------------------------------------------------------------------------------------------------


def _xml(code: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>made up</Message></Error>'.encode()


def says(status: int, body: bytes, *, carried_out: bool = False) -> mis.Behaviour:
    """Another answer than the true one."""

    async def behave(request: mis.Request, send: mis.Send) -> mis.Outcome:
        if carried_out:
            await send(request)
        return mis.Answer(status, (("Content-Type", "application/xml"),), b"" if request.method == "HEAD" else body)

    return behave


def _other_etag(request: mis.Request, send: mis.Send) -> Any:
    """Header and body name a version that nobody made."""

    async def behave() -> mis.Outcome:
        answer = await send(request)
        body = re.sub(rb"(<ETag>)[^<]*", rb"\1&quot;" + b"0" * 32 + b"&quot;", answer.body)
        changed = replace(answer, body=body)
        return changed if answer.header("ETag") is None else changed.with_header("ETag", f'"{"0" * 32}"')

    return behave()


def _no_etag(request: mis.Request, send: mis.Send) -> Any:
    async def behave() -> mis.Outcome:
        answer = await send(request)
        return replace(answer, body=re.sub(rb"<ETag>[^<]*</ETag>", b"", answer.body)).with_header("ETag", None)

    return behave()


LIES: dict[str, mis.Behaviour] = {
    **{
        f"{status} {code}": says(status, _xml(code))
        for status, code in [
            (412, "PreconditionFailed"),
            (409, "ConditionalRequestConflict"),
            (404, "NoSuchKey"),
            (404, "NoSuchUpload"),
            (500, "InternalError"),
        ]
    },
    "412, carried out": says(412, _xml("PreconditionFailed"), carried_out=True),
    "409, carried out": says(409, _xml("ConditionalRequestConflict"), carried_out=True),
    "404, carried out": says(404, _xml("NoSuchUpload"), carried_out=True),
    "an error in a 200": says(200, _xml("InternalError")),
    "an error in a 200, carried out": says(200, _xml("InternalError"), carried_out=True),
    "412 in a 200": says(200, _xml("PreconditionFailed")),
    "an empty 200": says(200, b""),
    "an empty 200, carried out": says(200, b"", carried_out=True),
    "spaces in a 200": says(200, b" \n " * 20),
    "a page in a 200": says(200, b"<html><body>please sign in</body></html>"),
    "204": says(204, b""),
    "cut": mis.cut_body(),
    "cut in secret": mis.cut_body(is_announced=False),
    "the answer is lost": mis.drop_reply(),
    "not carried out": mis.break_off(),
    "twice": mis.twice(),
    "another ETag": _other_etag,
    "no ETag": _no_etag,
}

IN_EVERY_RUN = ("412, carried out", "an error in a 200", "an empty 200")


@pytest.mark.parametrize("step", [step for step in STEPS if step != "look"])
@pytest.mark.parametrize("always", [False, True] if FULL else [False], ids=lambda always: "always" if always else "once")
def test_lies_about_one_request(server: Wire, step: str, always: bool, record: Record) -> None:
    case = Case(server)
    client = appending(case)
    old, acknowledged = INITIAL, 0
    names = list(LIES) if FULL else IN_EVERY_RUN
    for number, name in enumerate(names, 2):
        new: Values = {1: value(1, number)}
        rule = server.server.on(LIES[name], where=STEPS[step], nth=None if always else 1)
        try:
            acknowledged += written(case, client, old, new)
            assert rule.acted
            assert step == "begin" or unfinished(case) == 0  # nobody can abort an upload whose name was never told
        except BaseException as exc:
            exc.add_note(f"{name!r} at {step!r}")
            raise
        old = old | new
    record(f"{len(names)} lies, {acknowledged} times written nevertheless, the rest refused; old or new each time")


# -- what a server does not do as it is asked ------------------------------------------------------------------------------------


def _half_the_range(request: mis.Request, send: mis.Send) -> Any:
    first, last = (int(number) for number in re.findall(r"\d+", request.header("x-amz-copy-source-range") or ""))
    return send(request.with_header("x-amz-copy-source-range", f"bytes={first}-{(first + last) // 2}"))


IGNORING: dict[str, tuple[str, mis.Behaviour]] = {
    "nothing": ("begin", mis.without_header("none")),
    "conditions on copies": ("copy", mis.without_header("x-amz-copy-source-if-match")),
    "conditions on completions": ("end", mis.without_header("If-Match")),
    "ranges of copies": ("copy", mis.without_header("x-amz-copy-source-range")),
    "ends of ranges of copies": ("copy", _half_the_range),
}


@pytest.fixture(params=IGNORING)
def ignoring(request: pytest.FixtureRequest, server: Wire) -> str:
    step, behaviour = IGNORING[request.param]
    # The probe of completions has a key of its own.
    server.server.on(behaviour, where=(lambda r: r.method == "POST") if step == "end" else STEPS[step])
    name: str = request.param
    return name


def test_what_a_server_ignores_it_is_not_trusted_with(server: Wire, ignoring: str) -> None:
    case = Case(server)
    client = Client(case.storage(), strategy="append")
    assert client.write(NEW) == [None]
    check(case, INITIAL | NEW)
    assert client.storage.capabilities.compose is (ignoring == "nothing")
    assert unfinished(case) == 0
    old = case.objects.get(SHARD)
    assert old is not None
    assert client.write({1: value(1, 3)}) == [None]
    check(case, INITIAL | {1: value(1, 3)})
    now = case.objects.get(SHARD)
    assert now is not None
    assert (len(now) > len(old)) is (ignoring == "nothing")


def test_a_server_that_refuses_every_copy_is_sent_the_shard(server: Wire) -> None:
    """It says that the object is another, which is not true."""
    case = Case(server)
    client = appending(case)
    server.server.on(says(412, _xml("PreconditionFailed")), where=STEPS["copy"])
    assert client.write(NEW) == [None]
    check(case, INITIAL | NEW)
    assert not client.storage.capabilities.compose
    assert unfinished(case) == 0


@pytest.mark.parametrize("moment", ["begin", "copy", "part", "end", "the answer is lost"])
def test_no_chunk_is_lost_to_another_append(server: Wire, ignoring: str, moment: str) -> None:
    """Another writer's commit before each request of ours, or behind the last one, whose answer is lost."""
    if not FULL and ignoring != "nothing":
        pytest.skip("at full size")
    case = Case(server)
    theirs: Values = {2: value(2, 3)}
    client = Client(case.storage(), strategy="append")
    on_io_loop(client.storage.probe())

    def act() -> None:
        assert case.client(direct=True, strategy="append").write(theirs) == [None]

    async def overtaken(request: mis.Request, send: mis.Send) -> mis.Outcome:
        await send(request)
        await asyncio.to_thread(act)
        return mis.Broken(is_reset=True)

    if moment == "the answer is lost":
        rule = server.server.on(overtaken, where=STEPS["end"], nth=1)
    else:
        rule = server.server.on(mis.meanwhile(act), where=STEPS[moment], nth=1)
    assert client.write(NEW) == [None]
    if not rule.acted:
        assert ignoring != "nothing"
        act()
    check(case, INITIAL | theirs | NEW)
    assert unfinished(case) == 0


def test_a_shard_that_is_another_while_it_is_copied_and_the_old_one_again_afterwards(server: Wire, ignoring: str) -> None:
    """An ETag is made of the bytes: with equal ones it comes again, so the condition on the completion does not show it."""
    case = Case(server)
    old = case.objects.get(SHARD)
    assert old is not None
    other = shard_bytes(0, {0: b"0" * 200, 1: b"1", 2: b"2" * 7, 3: b"3"})

    async def swapped(request: mis.Request, send: mis.Send) -> mis.Outcome:
        await asyncio.to_thread(case.objects.put, SHARD, other)
        answer = await send(request)
        await asyncio.to_thread(case.objects.put, SHARD, old)
        return answer

    client = Client(case.storage(), strategy="append")
    on_io_loop(client.storage.probe())
    rule = server.server.on(swapped, where=STEPS["copy"], nth=1)
    assert client.write(NEW) == [None]
    assert rule.acted or ignoring == "conditions on completions"
    check(case, INITIAL | NEW)


def test_nothing_is_appended_to_what_a_cache_remembers(server: Wire) -> None:
    case = Case(server)
    client = appending(case)
    without_checksums(server.server)
    server.server.on(mis.Stale(), method=("GET", "HEAD"))
    assert client.read(0, 1) == [value(0, 1), value(1, 1)]
    theirs: Values = {0: value(0, 2), 1: None}
    assert case.client(direct=True, strategy="append").write(theirs) == [None, None]
    (error,) = client.write({2: value(2, 2)})
    assert isinstance(error, ShardStoreError), error
    check(case, INITIAL | theirs)
    assert unfinished(case) == 0


async def _nobodys(request: mis.Request, send: mis.Send) -> mis.Outcome:
    return (await send(request)).with_header("x-amz-meta-shardstore-write-id", None)


LOOKS: dict[str, mis.Behaviour] = {
    "404": says(404, b""),
    "403": says(403, b""),
    "500": says(500, b""),
    "412": says(412, b""),
    "of nobody": _nobodys,
    "without ETag": _no_etag,
    "of another version": _other_etag,
    "lost": mis.drop_reply(),
}


@pytest.mark.parametrize("look", [*LOOKS, "stale"])
@pytest.mark.parametrize("end", ["the answer is lost", "an empty 200", "an empty 200, carried out", "412, carried out", "no ETag"])
def test_a_look_that_lies_about_what_became_of_an_append(server: Wire, end: str, look: str) -> None:
    if not FULL and (end, look) not in (("the answer is lost", "of nobody"), ("the answer is lost", "stale"), ("an empty 200", "stale")):
        pytest.skip("at full size")
    case = Case(server)
    client = appending(case)
    if look == "stale":
        without_checksums(server.server)
        server.server.on(mis.Stale(), method=("GET", "HEAD"))
        assert client.read(0) == [value(0, 1)]
    else:
        server.server.on(LOOKS[look], where=STEPS["look"])
    server.server.on(LIES[end], where=STEPS["end"], nth=1)
    written(case, client, INITIAL, NEW)
    assert unfinished(case) == 0
