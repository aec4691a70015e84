"""Callers that want the same at the same moment share a request: never one that began before what they may see."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from shardstore._sync import run_sync
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.abilities import ReadsOneByOne
from shardstore.storage.base import Found, Read, ReadOutcome
from shardstore.storage.joined_reads import JoinedReads
from shardstore.tasks import LONG_AGO, Joined, moment
from tests.engine.hooked import HookedStorage, fresh_memory


class Requests:
    """Requests for one thing, each of which ends when it is let go, with its number."""

    def __init__(self) -> None:
        self.joined: Joined[int] = Joined()
        self.held: list[asyncio.Future[None]] = []
        self.cancelled = 0

    async def _request(self) -> int:
        number = len(self.held)
        self.held.append(asyncio.get_running_loop().create_future())
        try:
            await self.held[number]
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return number

    def ask(self, since: int = LONG_AGO, *, patiently: bool = False) -> asyncio.Task[int]:
        async def answer() -> int:
            return (await self.joined.get("it", self._request, since, patiently=patiently)).answer

        return asyncio.ensure_future(answer())


def on_loop(test: Callable[[Requests], Awaitable[None]]) -> None:
    async def run() -> None:
        await test(Requests())

    run_sync(run())


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_all_who_ask_while_a_request_is_under_way_share_it() -> None:
    async def test(requests: Requests) -> None:
        asked = [requests.ask() for _ in range(8)]
        await settled()
        requests.held[0].set_result(None)
        assert await asyncio.gather(*asked) == [0] * 8
        later = requests.ask()
        await settled()
        requests.held[1].set_result(None)
        assert await later == 1
        assert len(requests.held) == 2

    on_loop(test)


def test_a_request_that_began_too_early_is_not_joined() -> None:
    async def test(requests: Requests) -> None:
        early = requests.ask()
        await settled()
        since = moment()
        late = [requests.ask(since) for _ in range(3)]
        await settled()
        requests.held[1].set_result(None)
        assert await asyncio.gather(*late) == [1] * 3
        requests.held[0].set_result(None)
        assert await early == 0
        assert len(requests.held) == 2

    on_loop(test)


def test_those_who_wait_patiently_share_the_next_one() -> None:
    async def test(requests: Requests) -> None:
        first = requests.ask(moment(), patiently=True)
        await settled()
        waiting = [requests.ask(moment(), patiently=True) for _ in range(3)]
        await settled()
        assert len(requests.held) == 1
        requests.held[0].set_result(None)
        await settled()
        requests.held[1].set_result(None)
        assert await asyncio.gather(first, *waiting) == [0, 1, 1, 1]

    on_loop(test)


@pytest.mark.parametrize("number", [0, 2])
def test_a_cancelled_caller_does_not_cancel_the_request_of_the_rest(number: int) -> None:
    async def test(requests: Requests) -> None:
        asked = [requests.ask() for _ in range(3)]
        await settled()
        asked[number].cancel()
        await settled()
        requests.held[0].set_result(None)
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(outcomes.pop(number), asyncio.CancelledError)
        assert outcomes == [0, 0]
        assert not requests.cancelled

    on_loop(test)


def test_a_request_that_no_caller_waits_for_is_cancelled_and_not_joined() -> None:
    async def test(requests: Requests) -> None:
        asked = [requests.ask() for _ in range(3)]
        await settled()
        for one in asked:
            one.cancel()
        await asyncio.wait(asked)
        later = requests.ask()
        await settled()
        assert requests.cancelled == 1
        requests.held[1].set_result(None)
        assert await later == 1

    on_loop(test)


def test_an_error_is_raised_to_all() -> None:
    async def test(requests: Requests) -> None:
        asked = [requests.ask() for _ in range(3)]
        await settled()
        requests.held[0].set_exception(ValueError("refused"))
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert [str(outcome) for outcome in outcomes] == ["refused"] * 3

    on_loop(test)


class OneByOne(HookedStorage, ReadsOneByOne):
    """A storage that makes a request for each range."""


@pytest.mark.parametrize(("storage", "requests"), [(OneByOne, 5), (HookedStorage, 8)])
def test_equal_reads_of_one_storage(storage: type[HookedStorage], requests: int) -> None:
    """Two callers read the same three objects, and each one of its own."""
    place = fresh_memory()
    held = storage(place)
    joined = JoinedReads(held)
    release: list[asyncio.Event] = []

    async def hold(operation: str, key: str) -> None:
        await release[0].wait()

    async def read(own: str) -> Sequence[ReadOutcome]:
        reads = [Read(key, (EVERYTHING,)) for key in ("a", own, "b", "absent")]
        answers = await joined.read(reads, [LONG_AGO, None, LONG_AGO, LONG_AGO])
        assert all(0 < read.began < read.ended for read in answers)
        return [read.answer for read in answers]

    async def test() -> None:
        release.append(asyncio.Event())
        for key in ("a", "b", "c", "d"):
            await place.write(key, [key.encode()], 1, place.capabilities.condition_on(None))
        held.before = hold
        both = asyncio.gather(read("c"), read("d"))
        await settled()
        release[0].set()
        for own, outcomes in zip("cd", await both, strict=True):
            found = [bytes(outcome.buffers[0]) for outcome in outcomes if isinstance(outcome, Found)]
            assert found == [b"a", own.encode(), b"b"]
            assert not isinstance(outcomes[3], Found)

    run_sync(test())
    assert len(held.seen) == requests
