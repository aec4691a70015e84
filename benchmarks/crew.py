"""Processes that do their jobs at the same moment: several spawned children of the benchmark, which live through its rounds."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# Nothing takes as long: a process that has not answered by then hangs, and the benchmark says so instead of hanging too.
_GUARD_SECONDS = 900.0
_LEAVE_SECONDS = 30.0


class Job(ABC, Generic[T]):
    """What one process is to do. Pickled into it."""

    @abstractmethod
    def prepare(self) -> Callable[[], T]:
        """Do what is not to be measured, such as opening; what is returned runs when all processes are ready."""


@dataclass(frozen=True, slots=True)
class _Raised:
    text: str


class CrewError(Exception):
    """A process of the crew failed or died; its own traceback is in the message."""


def _serve(pipe: multiprocessing.connection.Connection[Any, Any]) -> None:
    with suppress(EOFError, KeyboardInterrupt):  # the parent has gone, or is about to
        while (job := pipe.recv()) is not None:
            try:
                run = job.prepare()
                pipe.send(None)
                pipe.recv()
                result = run()
            except Exception:  # noqa: BLE001 - handed to the parent, which raises it
                result = _Raised(traceback.format_exc())
            pipe.send(result)


@dataclass(slots=True)
class _Member:
    process: multiprocessing.context.SpawnProcess
    pipe: multiprocessing.connection.Connection[Any, Any]

    def tell(self, message: Any) -> None:
        """Raises ``CrewError`` where the process has died."""
        try:
            self.pipe.send(message)
        except BrokenPipeError as exc:
            raise self._died() from exc

    def _died(self) -> CrewError:
        self.process.join(_LEAVE_SECONDS)
        return CrewError(f"a process ended with exit code {self.process.exitcode}")

    def answer(self) -> Any:
        """The next message. Raises ``CrewError`` where the process failed, died or hangs."""
        try:
            if not self.pipe.poll(_GUARD_SECONDS):
                raise CrewError(f"a process did not answer for {_GUARD_SECONDS:.0f} s")
            message = self.pipe.recv()
        except (EOFError, ConnectionResetError) as exc:
            raise self._died() from exc
        if isinstance(message, _Raised):
            raise CrewError(message.text)
        return message


@dataclass(slots=True)
class Crew:
    """A context manager; its processes start when they are first needed, and end with it."""

    _members: list[_Member] = field(default_factory=list)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        for member in self._members:
            with suppress(OSError):
                member.pipe.send(None)
        for member in self._members:
            member.process.join(_LEAVE_SECONDS)
            if member.process.exitcode is None:  # it hangs, or is busy with a round that was given up
                member.process.kill()
                member.process.join()
            member.pipe.close()

    def run(self, jobs: Sequence[Job[Any]], at_start: Callable[[], None] | None = None) -> list[Any]:
        """Do the jobs, each in a process of its own, starting together; their results, in order.

        ``at_start`` is called when all are prepared. Raises ``CrewError``; the crew is of no use afterwards.
        """
        while len(self._members) < len(jobs):
            self._members.append(_new_member())
        members = self._members[: len(jobs)]
        for member, job in zip(members, jobs, strict=True):
            member.tell(job)
        for member in members:
            member.answer()
        if at_start is not None:
            at_start()
        for member in members:
            member.tell(None)
        return [member.answer() for member in members]


def _new_member() -> _Member:
    context = multiprocessing.get_context("spawn")  # threads and event loops of the libraries do not survive a fork
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    return _Member(process, ours)
