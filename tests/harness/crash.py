"""Processes that are killed in the middle of their work: at a random moment, or at the n-th system call.

A ``Crasher`` runs functions in children, one after the other::

    def write_much(child: Child, root: str) -> None:      # in an importable module
        for i in range(1000):
            store.set(f"{i}", b"...")
            child.acknowledge(str(i))                     # durable, says the store

    with Crasher(["my.module"]) as crasher:
        ended = crasher.run(write_much, root, at=AfterAcknowledgements(7, delay_seconds=0.001))
        ended.acknowledged                                # ('0', '1', ..., '7', perhaps more)

Each child is forked from an interpreter that has imported the modules and done nothing else, so a start costs milliseconds, and
the child begins as a fresh process does: without threads, event loops or caches. POSIX only.

What a loss of power leaves, which takes more than the death of a process does, ``tests.harness.lost_power`` shows.

At requests of a storage instead of system calls, give the child a ``shardstore.testing.faults.FaultStorage`` that ``Kill``s.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import random
import select
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from tests.harness.system_calls import SystemCalls, kill

_GUARD_SECONDS = 300.0  # no measure of speed: what says nothing for so long hangs
_LINE_BYTES = 4096  # PIPE_BUF: what is written to a pipe at once is there whole or not at all


@dataclass(frozen=True, slots=True)
class AfterAcknowledgements:
    """The child is killed ``delay_seconds`` after it has acknowledged ``count`` times."""

    count: int
    delay_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class AtCall:
    """The child is killed at system call number ``at``, from 1, of what it does in ``Child.counted``: before it, or ``after``."""

    at: int
    after: bool = False


Moment = AfterAcknowledgements | AtCall


def random_moment(rng: random.Random, acknowledgements: int, seconds: float) -> AfterAcknowledgements:
    """After 1 to ``acknowledgements`` of them, and up to ``seconds`` more."""
    return AfterAcknowledgements(rng.randint(1, acknowledgements), rng.random() * seconds)


@dataclass(frozen=True, slots=True)
class Ended:
    """What is known of a child that has ended."""

    acknowledged: tuple[str, ...]
    calls: tuple[str, ...]
    """The system calls of ``Child.counted``, by function; none where the child was killed."""
    was_killed: bool


class Child:
    """What a function in a child knows of its parent."""

    def __init__(self, to_parent: int, moment: AtCall | None) -> None:
        self._to_parent = to_parent
        self._moment = moment
        self._calls: list[str] = []

    def acknowledge(self, text: str) -> None:
        """Tell the parent, at once. ``text`` is one line of at most 4,000 bytes."""
        self._tell("ack", text)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """The part of the work in which system calls are counted, and the child dies at the one that it was asked for."""
        calls = SystemCalls() if self._moment is None else SystemCalls(self._moment.at, kill, after=self._moment.after)
        with calls:
            yield
        self._calls += calls.calls

    def _tell(self, what: str, text: str) -> None:
        line = f"{what} {text}\n".encode()
        if len(line) > _LINE_BYTES or text.count("\n"):
            raise ValueError(f"{text[:100]!r}… is no line of at most {_LINE_BYTES} bytes")
        _write(self._to_parent, line)

    def _finish(self) -> None:
        for start in range(0, len(self._calls), 100):
            self._tell("calls", " ".join(self._calls[start : start + 100]))


class ChildFailed(Exception):
    """A function in a child raised; the message is its traceback."""


class Crasher:
    """Runs functions in children that may be killed. One at a time; not to be shared between threads.

    ``preload`` names modules that every child needs: they are imported once. ``path`` is put in front of ``sys.path`` there.
    """

    def __init__(self, preload: Sequence[str] = (), path: Sequence[str] = ()) -> None:
        self._preload = list(preload)
        self._path = [*path, *sys.path]
        self._process: subprocess.Popen[bytes] | None = None
        self._from_server = -1
        self._buffer = b""

    def __enter__(self) -> Crasher:
        self._from_server, theirs = os.pipe()
        try:
            # Libraries of linear algebra start threads when they are imported; a process with threads cannot be forked safely.
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            code = "import sys; sys.path[:0] = sys.argv[2:]; from tests.harness.crash import serve; serve(int(sys.argv[1]))"
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, str(theirs), *self._path], stdin=subprocess.PIPE, pass_fds=(theirs,), env=environment
            )
        finally:
            os.close(theirs)
        self._send(self._preload)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        if exc is not None:
            self._process.kill()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from_server)

    def run(self, function: Callable[..., None] | str, *arguments: object, at: Moment | None = None) -> Ended:
        """Call ``function(child, *arguments)`` in a child, and wait until it has ended or was killed.

        ``function`` is importable, given itself or as ``"module:function"``; ``arguments`` can be pickled.

        Raises:
            ChildFailed: it raised.
            TimeoutError: nothing was heard for minutes.
        """
        name = function if isinstance(function, str) else f"{function.__module__}:{function.__qualname__}"
        # Pickled here: the server is to know nothing of what it passes on, and to import nothing for it.
        self._send((name, pickle.dumps(arguments), at if isinstance(at, AtCall) else None))
        acknowledged: list[str] = []
        calls: list[str] = []
        failure: list[str] = []
        pid = 0
        killed = False
        while True:
            if isinstance(at, AfterAcknowledgements) and pid and not killed and len(acknowledged) >= at.count:
                time.sleep(at.delay_seconds)
                os.kill(pid, signal.SIGKILL)  # the server reaps no child before it is told to: the number is still this child's
                killed = True
            what, _, text = self._line().partition(" ")
            match what:
                case "pid":
                    pid = int(text)
                case "ack":
                    acknowledged.append(text)
                case "calls":
                    calls += text.split()
                case "failed":
                    failure.append(text)
                case "ended":
                    break
                case _:
                    raise ChildFailed(f"a child wrote {what!r}")
        self._send(None)
        if failure:
            raise ChildFailed("\n".join(failure))
        was_killed = int(text) == signal.SIGKILL
        if not was_killed and int(text):
            raise ChildFailed(f"{name} ended by signal {text}")
        return Ended(tuple(acknowledged), tuple(calls), was_killed)

    def _send(self, message: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        data = pickle.dumps(message)
        self._process.stdin.write(struct.pack("<Q", len(data)) + data)
        self._process.stdin.flush()

    def _line(self) -> str:
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._from_server], [], [], _GUARD_SECONDS)
            if not ready:
                raise TimeoutError(f"a child said nothing for {_GUARD_SECONDS} seconds")
            data = os.read(self._from_server, 1 << 16)
            if not data:
                raise ChildFailed("the process that starts the children has ended; its last words are on the error stream")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()


# -- in the other process ----------------------------------------------------------------------------------------------


def serve(to_parent: int) -> None:
    """What the process that starts the children does until its input ends."""
    for module in _receive() or ():
        importlib.import_module(module)
    while (request := _receive()) is not None:
        if threading.active_count() > 1:
            raise RuntimeError(f"importing started threads, so children cannot be forked: {threading.enumerate()}")
        pid = os.fork()
        if pid == 0:
            _be_child(to_parent, *request)
        _write(to_parent, f"pid {pid}\n".encode())
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        is_signal = ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
        # Everything that the child wrote is in the pipe already.
        _write(to_parent, f"ended {ended.si_status if is_signal else 0}\n".encode())
        _receive()  # until then the parent may send signals to that number
        os.waitpid(pid, 0)


def _be_child(to_parent: int, name: str, arguments: bytes, moment: AtCall | None) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # the requests are the server's
    try:
        module, _, function = name.partition(":")
        child = Child(to_parent, moment)
        getattr(importlib.import_module(module), function)(child, *pickle.loads(arguments))
        child._finish()
    except BaseException:  # noqa: BLE001  # raised again in the parent
        for line in traceback.format_exc().splitlines():
            _write(to_parent, f"failed {line[:1000]}\n".encode())
    finally:
        os._exit(0)


def _receive() -> Any:
    """One message of the parent, read without a buffer, which a child would inherit; ``None`` at the end too."""
    head = _read(8)
    if len(head) < 8:
        return None
    return pickle.loads(_read(struct.unpack("<Q", head)[0]))


def _read(nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes and (piece := os.read(0, nbytes - len(data))):
        data += piece
    return data


def _write(fd: int, data: bytes) -> None:
    if os.write(fd, data) != len(data):
        raise OSError("a line was cut")
