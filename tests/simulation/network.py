"""The way between clients and servers: it takes time, loses, repeats and delays.

An exchange is one request and one answer. Whatever happens to it, the server carries the request out at one moment, or never, or twice; the
client gets the answer, or an error that does not say which. What the server has got it carries out, though the client be dead by then.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tests.simulation.loop import SimulationLoop, current_process

T = TypeVar("T")


class ConnectionLost(OSError):
    """No answer came: whether the request was carried out is not known."""


class ConnectTimeout(OSError):
    """No connection was made."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The answer of a server: a status, and what came with it."""

    status: int
    code: str = ""
    content: T | None = None


@dataclass(frozen=True, slots=True)
class Conduct:
    """The conduct of a network: the probability of each fault, for each exchange, and how long requests take, ``mean_seconds`` one way."""

    mean_seconds: float = 0.02
    lost_request: float = 0.0
    lost_answer: float = 0.0
    late: float = 0.0
    """The client gives up, and the request is carried out later, up to ``latest_seconds``."""
    latest_seconds: float = 600.0
    twice: float = 0.0
    """Something on the way sends the request again; the second answer arrives."""
    error_before: float = 0.0
    """The server fails without having done anything: 500 or 503."""
    error_after: float = 0.0
    """The server fails after it did what was asked for."""
    throttled: float = 0.0
    torn: float = 0.0
    """The connection breaks within the body of an answer."""


FAULTS = ("lost_request", "lost_answer", "late", "twice", "error_before", "error_after", "throttled", "torn")


@dataclass
class Network:
    """The network of one world."""

    loop: SimulationLoop
    rng: random.Random
    conduct: Conduct = field(default_factory=Conduct)
    faults: Counter[str] = field(default_factory=Counter)
    """How often each fault happened."""
    cut_off: set[str] = field(default_factory=set)
    """The names of the processes that cannot reach any server now."""
    exchanges: int = 0

    def latency(self) -> float:
        return self.rng.expovariate(1 / self.conduct.mean_seconds)

    def happens(self, fault: str) -> bool:
        """Draw whether a fault happens now, and count it."""
        if self.rng.random() >= getattr(self.conduct, fault):
            return False
        self.faults[fault] += 1
        return True

    async def exchange(self, carry_out: Callable[[], Answer[T]]) -> Answer[T]:
        """Let a server carry out a request, and return its answer.

        Raises:
            ConnectionLost, ConnectTimeout: no answer came.
        """
        self.exchanges += 1
        process = current_process()
        if process is not None and process.name in self.cut_off:
            await asyncio.sleep(1.0)
            raise ConnectTimeout("the server cannot be reached")
        if self.happens("throttled"):
            await asyncio.sleep(2 * self.latency())
            return Answer(self.rng.choice([429, 503]), "SlowDown")
        if self.happens("lost_request"):
            await asyncio.sleep(5.0)
            raise ConnectionLost("the connection was reset")
        if self.happens("late"):
            self._at_server(self.rng.uniform(0, self.conduct.latest_seconds), carry_out)
            await asyncio.sleep(5.0)
            raise ConnectionLost("the request timed out")
        arrived: asyncio.Future[Answer[T]] = self.loop.create_future()
        wanted = self.happens("twice")
        if wanted:
            self._at_server(self.latency(), carry_out)
        fails = self.happens("error_before")
        way_back = self.latency()

        def serve() -> Answer[T]:
            if fails:
                return Answer(self.rng.choice([500, 503]), "InternalError")
            return carry_out()

        self._at_server(self.latency() * (2 if wanted else 1), serve, arrived, way_back)
        answer = await arrived
        if self.happens("lost_answer"):
            raise ConnectionLost("the connection was reset")
        if answer.status < 400 and self.happens("error_after"):
            return Answer(500, "InternalError")
        return answer

    def _at_server(
        self, seconds: float, carry_out: Callable[[], Answer[T]], arrived: asyncio.Future[Answer[T]] | None = None, way_back: float = 0.0
    ) -> None:
        """Carry a request out after a time, whatever becomes of the client."""

        def serve() -> None:
            answer = carry_out()
            if arrived is not None:
                self.loop.call_later(way_back, deliver, answer)

        def deliver(answer: Answer[T]) -> None:
            assert arrived is not None
            if not arrived.done():
                arrived.set_result(answer)

        contextvars.Context().run(self.loop.call_later, seconds, serve)
