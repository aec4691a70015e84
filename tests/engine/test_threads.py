"""The threads that decode: no more than processors, and none where nobody reads or writes."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
import time

import pytest

from shardstore import threads as codec_threads
from shardstore.threads import INLINE_BYTES, in_threads, run_in_threads

LARGE = INLINE_BYTES + 1


def codec_threads_of_this_process() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("shardstore-codec")]


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    for thread in codec_threads_of_this_process():
        thread.join(10)
    monkeypatch.setattr(codec_threads, "threads_at_once", lambda: 3)


@pytest.mark.usefixtures("three")
def test_selections_that_overlap_share_them_and_the_last_one_ends_them() -> None:
    lock, now, most = threading.Lock(), 0, 0

    def work(start: int, end: int) -> range:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.005)
        with lock:
            now -= 1
        return range(start, end)

    async def selections() -> list[list[range]]:
        return await asyncio.gather(*(in_threads(10, LARGE, work) for _ in range(5)))

    assert asyncio.run(selections()) == [[range(i, i + 1) for i in range(10)]] * 5
    assert most <= 3
    left = codec_threads_of_this_process()
    assert len(left) <= 3
    for thread in left:
        thread.join(10)
    assert not any(thread.is_alive() for thread in left)


@pytest.mark.usefixtures("three")
def test_all_pieces_are_done_once_and_told_in_order() -> None:
    results = asyncio.run(in_threads(1000, LARGE, range))
    assert [i for result in results for i in result] == list(range(1000))
    assert len(results) > 3  # short enough that threads end at about the same time


@pytest.mark.usefixtures("three")
def test_an_error_stops_the_others_and_is_raised_when_they_have_ended() -> None:
    stopped, numbers, ended = threading.Event(), itertools.count(), []

    def run() -> None:
        if not next(numbers):
            raise ValueError("the first")
        ended.append(stopped.wait(10))

    with pytest.raises(ValueError, match="the first"):
        asyncio.run(run_in_threads(3, LARGE, run, stopped.set))
    assert ended == [True, True]


@pytest.mark.usefixtures("three")
def test_an_error_of_a_piece() -> None:
    begun: list[int] = []
    ended: list[int] = []

    def work(start: int, _end: int) -> None:
        begun.append(start)
        if not start:
            raise ValueError("the first")
        time.sleep(0.005)
        ended.append(start)

    with pytest.raises(ValueError, match="the first"):
        asyncio.run(in_threads(1000, LARGE, work))
    assert sorted([0, *ended]) == sorted(begun)


def test_threads_leave_interrupts_to_the_main_thread() -> None:
    with codec_threads._threads.used() as pool:
        assert signal.SIGINT in pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, set()).result(60)
