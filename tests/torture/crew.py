"""Processes that begin at the same moment: spawned once, given one round of tasks after the other."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).parents[2]

_GUARD_SECONDS = 1800.0  # no measure of speed: what takes longer hangs
_READY = "ready"
_ABORTED = 0  # the board's first cell


class Aborted(Exception):
    """Another task of the round has failed."""


class Together:
    """What a task shares with the others of its round: the moment at which they begin, and a board of numbers that all see.

    A cell of ``board`` is written by one task, read by any.
    """

    def __init__(self, connection: Connection, path: str, cells: int) -> None:
        self._connection = connection
        self._board: npt.NDArray[np.int64] = np.memmap(path, np.int64, "r+", shape=(1 + cells,))
        self.board = self._board[1:]

    def start(self) -> None:
        """Wait until every task of the round has come here; to be called once, when all is opened."""
        self._connection.send(_READY)
        self._connection.recv()

    def wait(self, condition: Callable[[], bool]) -> None:
        """Look at the board until ``condition`` holds.

        Raises:
            Aborted: another task has failed.
        """
        while not condition():
            self.check()
            time.sleep(0.0005)

    def check(self) -> None:
        """Raises ``Aborted`` where another task has failed."""
        if self._board[_ABORTED]:
            raise Aborted

    def abort(self) -> None:
        self._board[_ABORTED] = 1


@dataclass(frozen=True, slots=True)
class _Raised:
    text: str
    is_consequence: bool


@dataclass(frozen=True, slots=True)
class Job:
    """``task(*arguments, together)``, for one process; importable there."""

    task: Callable[..., Any]
    arguments: tuple[Any, ...]


def _serve(connection: Connection) -> None:
    """What a process of a crew does until its pipe is closed."""
    while True:
        try:
            job, path, cells = connection.recv()
        except EOFError:
            return
        together = Together(connection, path, cells)
        outcome: Any
        try:
            outcome = job.task(*job.arguments, together)
        except BaseException as exc:  # noqa: BLE001  # raised again by whoever sent the job
            together.abort()
            outcome = _Raised(traceback.format_exc(), isinstance(exc, Aborted))
        connection.send(outcome)


class Crew:
    """As many processes as the largest round so far needed."""

    def __init__(self) -> None:
        self._members: list[tuple[BaseProcess, Connection]] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        for _, connection in self._members:
            connection.close()
        for process, _ in self._members:
            process.join(30)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        self._members = []

    def _grow(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        if str(ROOT) not in sys.path:
            sys.path.insert(0, str(ROOT))  # a child imports its tasks by its parent's path
        while len(self._members) < count:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._members.append((process, ours))

    def run(self, jobs: Sequence[Job], cells: int = 0) -> list[Any]:
        """Carry out one job in each of as many processes, begun together; their results in order.

        Raises:
            AssertionError: jobs failed; with their tracebacks.
        """
        self._grow(len(jobs))
        connections = [connection for _, connection in self._members[: len(jobs)]]
        descriptor, path = tempfile.mkstemp(prefix="board-")
        try:
            os.truncate(descriptor, 8 * (1 + cells))
            for connection, job in zip(connections, jobs, strict=True):
                connection.send((job, path, cells))
            outcomes: list[Any] = [self._receive(connection) for connection in connections]
            waiting = [connection for connection, outcome in zip(connections, outcomes, strict=True) if outcome == _READY]
            for connection in waiting:
                connection.send(_READY)
            results = [self._receive(c) if c in waiting else o for c, o in zip(connections, outcomes, strict=True)]
        except BaseException:
            # Processes in the middle of something are of no use to the next round.
            for process, _ in self._members:
                process.kill()
            self.__exit__(None, None, None)
            raise
        finally:
            os.close(descriptor)
            os.unlink(path)
        failed = [result for result in results if isinstance(result, _Raised)]
        causes = [result.text for result in failed if not result.is_consequence]
        assert not failed, f"{len(failed)} of {len(jobs)} processes failed:\n" + "\n".join(causes)
        return results

    @staticmethod
    def _receive(connection: Connection) -> Any:
        if not connection.poll(_GUARD_SECONDS):
            raise TimeoutError(f"a process said nothing for {_GUARD_SECONDS} seconds")
        return connection.recv()
