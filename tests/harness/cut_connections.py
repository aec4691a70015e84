"""A proxy before PostgreSQL that cuts connections: what a client sees of a network that fails at the end of a transaction.

::

    with CutConnections(place) as proxy:                  # the directory of the server's socket, tests.harness.postgres
        proxy.cut("COMMIT\\0", CARRIED_OUT)               # the next one reaches the server; its client never hears of it
        ...
    assert proxy.cuts == 1

Messages pass as they are; without TLS. A rule is for one message, the next that contains its text, of any connection.
"""

from __future__ import annotations

import enum
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from tests.harness.postgres import PORT

_READY = ord("Z")
_ENDS = b"QS"  # types of the messages of a client that the server answers in full
_GUARD_SECONDS = 60.0  # no measure of speed: what waits for so long hangs


class Fate(enum.Enum):
    """What becomes of a message at which the client's connection is cut."""

    CARRIED_OUT = "the server gets it, and its answer is thrown away"
    LOST = "the server does not get it: its side of the connection ends too"
    LATE = "the server gets it when the next connection has sent a message with the same statement's text before it"


CARRIED_OUT, LOST, LATE = Fate.CARRIED_OUT, Fate.LOST, Fate.LATE


@dataclass(slots=True)
class _Rule:
    text: bytes
    fate: Fate
    then: Callable[[], object]
    until: bytes


class CutConnections:
    """The proxy, from ``with`` to its end, in threads."""

    def __init__(self, place: Path) -> None:
        self._upstream = f"{place}/.s.PGSQL.{PORT}"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._rules: list[_Rule] = []
        self._late: list[tuple[_Rule, socket.socket, bytes]] = []
        self._open: list[socket.socket] = []
        self._is_down = False
        self.cuts = 0
        """The connections that were cut by rules."""
        self.errors: list[Exception] = []
        """What ``then`` of a rule has raised."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            self._is_down = True
            for one in (self._listener, *self._open):
                _end(one)
        if error is None and self.errors:
            raise self.errors[0]

    @property
    def url(self) -> str:
        """SQLAlchemy's URL of the database behind the proxy."""
        host, port = self._listener.getsockname()[:2]
        return f"postgresql+psycopg://me@{host}:{port}/postgres?sslmode=disable&gssencmode=disable"

    def cut(self, text: str, fate: Fate, then: Callable[[], object] = lambda: None, *, until: str = "") -> None:
        """Cut the client's connection at its next message with ``text``; call ``then`` before it notices.

        A ``LATE`` message reaches the server behind the next one with the text ``until``, of whatever connection.
        """
        with self._lock:
            self._rules.append(_Rule(text.encode(), fate, then, until.encode()))

    def go_down(self) -> None:
        """Cut all connections, and refuse new ones."""
        with self._lock:
            self._is_down = True
            for one in self._open:
                _end(one)

    def come_up(self) -> None:
        """Take connections again."""
        with self._lock:
            self._is_down = False

    # -- connections ---------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            with self._lock:
                if self._is_down:
                    _end(client)
                    continue
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._upstream)
                self._open += [client, server]
            connection = _Connection(client, server)
            threading.Thread(target=self._from_client, args=(connection,), daemon=True).start()
            threading.Thread(target=connection.from_server, daemon=True).start()

    def _from_client(self, connection: _Connection) -> None:
        with suppress(OSError), connection.client.makefile("rb") as incoming:
            is_first = True
            while message := _message(incoming.read, typed=not is_first):
                is_first = False
                rule = self._due(message)
                if rule is not None:
                    self._cut(connection, rule, message, incoming)
                    if rule.fate is LATE:
                        return  # the server's side stays as it is
                    break
                connection.server.sendall(message)
                self._deliver_behind(message)
        _end(connection.server)
        _end(connection.client)

    def _due(self, message: bytes) -> _Rule | None:
        with self._lock:
            for rule in self._rules:
                if rule.text in message:
                    self._rules.remove(rule)
                    return rule
        return None

    def _cut(self, connection: _Connection, rule: _Rule, message: bytes, incoming: BinaryIO) -> None:
        match rule.fate:
            case Fate.CARRIED_OUT:
                connection.is_deaf = True
                connection.server.sendall(message)
                while message[0] not in _ENDS and (message := _message(incoming.read, typed=True)):
                    connection.server.sendall(message)
                if not connection.has_answered.wait(_GUARD_SECONDS):
                    self.errors.append(TimeoutError("the server does not answer"))
            case Fate.LOST:
                _end(connection.server)
            case Fate.LATE:
                connection.is_deaf = True
                with self._lock:
                    self._late.append((rule, connection.server, message))
        try:
            rule.then()
        except Exception as exc:  # noqa: BLE001  # raised where the test can see it
            self.errors.append(exc)
        self.cuts += 1
        _end(connection.client)

    def _deliver_behind(self, message: bytes) -> None:
        with self._lock:
            due = [late for late in self._late if late[0].until in message]
            self._late = [late for late in self._late if late not in due]
        for _, server, text in due:
            server.sendall(text)


class _Connection:
    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.is_deaf = False
        """True: the client gets no answers any more."""
        self.has_answered = threading.Event()
        """Set when the server has answered in full, while the client is deaf."""

    def from_server(self) -> None:
        with suppress(OSError), self.server.makefile("rb") as incoming:
            while message := _message(incoming.read, typed=True):
                if not self.is_deaf:
                    self.client.sendall(message)
                elif message[0] == _READY:
                    self.has_answered.set()
        if not self.is_deaf:
            _end(self.client)


def _message(read: Callable[[int], bytes], *, typed: bool) -> bytes:
    """Return the next message, whole; empty at the end. The first one of a client has no type."""
    head = read(5 if typed else 4)
    if len(head) < 4 + typed:
        return b""
    length: int = struct.unpack_from("!I", head, int(typed))[0]
    return head + read(length - 4)


def _end(one: socket.socket) -> None:
    """Shut a connection down, which wakes whoever reads from it, and close it."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
