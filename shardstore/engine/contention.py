"""Contention between writers: back-off after a lost race, fairness, and when a writer gives up.

A writer that has the shard's index needs one request to commit; one that has just lost needs two. So the winner of one race would win
the next ones, until it has nothing left to write. Four rules make it fair, without a message between the writers:

- Waits are drawn at random, up to a few times the duration of an attempt on this storage.
- A writer that has lost often waits less, so that none is overtaken for ever.
- A writer that has won a contested object waits before it writes the same object again.
- A writer that writes the same object again and again without losing pauses briefly now and then, so that another gets a turn: it
  cannot see whether one waits.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from shardstore.errors import Conflict
from shardstore.model.containers import Lru
from shardstore.storage.base import ConditionFailed
from shardstore.storage.wrappers import Counters

logger = logging.getLogger(__name__)

_MOST_RIVALS = 16.0  # waits grow to at most this many attempts
_PATIENT_LOSSES = 8  # the share of a wait falls to its least with this many losses in a row
_LEAST_PATIENCE = 0.35  # not nothing: many writers that have lost often would delay each other
_FADING = 0.75  # of what is remembered of rivals, for each commit that met none
_FEW_RIVALS = 0.5  # below which an object is not contested any more
_LONGEST_WAIT_SECONDS = 30.0
_FIRST_SERIES = 16.0  # attempts without a pause before the first stop; twice as many before the next one
_LONGEST_SERIES = 64.0
_STOP = 8.0  # attempts: time enough for one of another client, which has to read more, and waits between its own
_REMEMBERED_OBJECTS = 4096

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[object]]
Clock = Callable[[], float]


class Outdated(Exception):
    """An attempt of a swap was planned from a remembered state that is not the current one. It lost no race."""


@dataclass(slots=True)
class _Contest:
    """The state of one contested object."""

    rivals: float = 0.0
    """The number of other clients that write it at the same time, estimated from recent losses."""
    attempt_seconds: float = 0.0
    """The seconds that an attempt to write it takes."""

    @property
    def window_seconds(self) -> float:
        return min(self.rivals * self.attempt_seconds, _LONGEST_WAIT_SECONDS)


@dataclass(slots=True)
class _Series:
    """A series of commits of one object by this client, one right after the other, none of them contested."""

    began: float
    ended: float
    attempt_seconds: float
    allowed: float = _FIRST_SERIES
    """The number of attempts that it may last."""

    def goes_on(self, now: float) -> bool:
        """Return whether a commit that begins now leaves no time for a commit of another client."""
        return now - self.ended < 2 * self.attempt_seconds

    @property
    def is_due_to_stop(self) -> bool:
        return self.ended - self.began >= self.allowed * self.attempt_seconds


class Contention:
    """The objects at which this client has met rivals. Used on one event loop only."""

    def __init__(
        self, attempts: int, counters: Counters, clock: Clock, sleep: Sleep = asyncio.sleep, rng: random.Random | None = None
    ) -> None:
        self.attempts = attempts
        self.counters = counters
        self.clock = clock
        self.sleep = sleep
        self.rng = rng or random.Random(os.urandom(16))
        self._contests: Lru[str, _Contest] = Lru(_REMEMBERED_OBJECTS)
        self._series: Lru[str, _Series] = Lru(_REMEMBERED_OBJECTS)

    def turn(self, key: str) -> Turn:
        """Return one write of the object at ``key``, until it succeeds or gives up."""
        return Turn(self, key)

    def contest(self, key: str) -> _Contest | None:
        """Return the contest for the object, if one is remembered."""
        return self._contests.peek(key)

    def contested(self, key: str) -> _Contest:
        """Note that the object has a rival."""
        self._series.pop(key)
        return self._contests.get(key) or self._contests.put(key, _Contest())

    def forget(self, key: str) -> None:
        self._contests.pop(key)

    def stop_seconds(self, key: str) -> float:
        """Return how long to stop before the object is written once more."""
        series = self._series.peek(key)
        if series is None:
            return 0.0
        if not series.goes_on(self.clock()):
            self._series.pop(key)
            return 0.0
        return min(_STOP * series.attempt_seconds, _LONGEST_WAIT_SECONDS) if series.is_due_to_stop else 0.0

    def committed(self, key: str, began: float) -> None:
        """Note that the object was written without a conflict."""
        now = self.clock()
        series = self._series.get(key) or self._series.put(key, _Series(began, now, now - began))
        if series.is_due_to_stop:  # and has stopped
            series.began, series.allowed = began, min(2 * series.allowed, _LONGEST_SERIES)
        series.ended, series.attempt_seconds = now, (series.attempt_seconds + now - began) / 2


class Turn:
    """One write of one object, attempted until it succeeds."""

    def __init__(self, contention: Contention, key: str) -> None:
        self._contention = contention
        self._key = key
        self._losses = 0
        self._began = contention.clock()

    @property
    def has_lost(self) -> bool:
        return self._losses > 0

    async def start(self) -> None:
        """Wait before the first attempt: if this client has just won a race, or has written all the time, let other clients go first."""
        contest = self._contention.contest(self._key)
        if contest is not None:
            await self._wait(contest.window_seconds)
        elif seconds := self._contention.stop_seconds(self._key):
            await self._contention.sleep(seconds)
            self._began = self._contention.clock()

    async def swap(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what ``attempt`` returns, which reads the object, decides, and writes on condition that it is still what was read.

        It is called again after each ``ConditionFailed``, which counts as a lost race, and at once after ``Outdated``, which does not: then
        it has to read what it took from memory. ``what`` names the object in messages.

        Raises:
            Conflict: it lost too many times in a row.
        """
        while True:
            try:
                return await attempt()
            except Outdated:
                continue
            except ConditionFailed as exc:
                await self.lost(what, exc)

    async def lost(self, what: str, cause: Exception) -> None:
        """Wait before the write is planned again, after another writer won the race.

        Raises:
            Conflict: it lost too many times in a row.
        """
        contention = self._contention
        contention.counters.add(conflicts=1)
        self._losses += 1
        if self._losses >= contention.attempts:
            raise Conflict(f"other writers kept changing {what}; nothing of this write was stored: try again") from cause
        logger.debug("conflict on %s: %s", what, cause)
        took = contention.clock() - self._began
        contest = contention.contested(self._key)
        contest.attempt_seconds = (contest.attempt_seconds + took) / 2 if contest.attempt_seconds else took
        contest.rivals = min(contest.rivals + 1, _MOST_RIVALS)
        await self._wait(contest.window_seconds * max(_LEAST_PATIENCE, 1 - self._losses / _PATIENT_LOSSES))

    def won(self) -> None:
        """Note that the write is done."""
        if self._losses:
            return
        self._contention.committed(self._key, self._began)
        contest = self._contention.contest(self._key)
        if contest is not None:
            contest.rivals *= _FADING
            if contest.rivals < _FEW_RIVALS:
                self._contention.forget(self._key)

    async def _wait(self, window_seconds: float) -> None:
        await self._contention.sleep(self._contention.rng.uniform(0, window_seconds))
        self._began = self._contention.clock()
