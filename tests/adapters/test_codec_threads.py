"""The threads that decode: no more than processors, and none where nobody reads or writes."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from shardstore.adapters import codec_threads
from shardstore.adapters.codec_threads import INLINE_BYTES, in_threads

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

    assert asyncio.run(selections()) == [[range(3), range(3, 6), range(6, 10)]] * 5
    assert most <= 3
    left = codec_threads_of_this_process()
    assert len(left) <= 3
    for thread in left:
        thread.join(10)
    assert not any(thread.is_alive() for thread in left)


@pytest.mark.usefixtures("three")
def test_an_error_is_raised_when_all_have_ended() -> None:
    ended: list[int] = []

    def work(start: int, _end: int) -> None:
        if not start:
            raise ValueError("the first")
        time.sleep(0.02)
        ended.append(start)

    with pytest.raises(ValueError, match="the first"):
        asyncio.run(in_threads(3, LARGE, work))
    assert sorted(ended) == [1, 2]
    for thread in codec_threads_of_this_process():
        thread.join(10)
    assert not codec_threads_of_this_process()
