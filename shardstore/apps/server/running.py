"""Runs the application by uvicorn on fsspec's IO loop, where the engines run: no request crosses threads."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

import httptools
import uvicorn
from fsspec.asyn import get_loop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shardstore.apps.server.access import LOOPBACK, is_loopback
from shardstore.apps.server.asgi import Application, BrokenOff, Receive, Scope, Send, application
from shardstore.errors import InvalidInput, StorageError

STOP_SECONDS = 10
"""What is under way when the server is stopped has so long to end."""

_MOST_HEADER_NBYTES = 64 * 2**10
_MOST_CONNECTIONS = 1000
_OTHER_DESCRIPTORS = 256  # for files, and connections to storages
_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def _most_connections() -> int:
    """Return how many connections to have at once: of the descriptors that this process may have, some are for other things."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        _MOST_CONNECTIONS if allowed == resource.RLIM_INFINITY else min(_MOST_CONNECTIONS, max(allowed - _OTHER_DESCRIPTORS, allowed // 2))
    )


@dataclass(slots=True)
class Limits:
    """How many clients the server serves, and how long it waits for them. A connection has the values that are set when it is opened."""

    header_seconds: float = 30.0
    """The time that a client has to send the headers of a request."""
    stalled_seconds: float = 60.0
    """The time after which a connection is closed whose client reads nothing of a response."""
    connections: int = field(default_factory=_most_connections)
    """The connections that are open at once. For another one, one that is idle is closed."""


class _Connection(HttpToolsProtocol):
    """A connection that is given up if the client sends headers without end, or slowly, or takes nothing of the answer; and while it is
    idle, if there are too many.
    """

    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _nbytes = 0
    _in_headers = True
    _has_begun = False  # a request, whose headers are not complete
    _has_asked = False  # for anything, so far
    _idle_since = 0.0

    def __init__(self, limits: Limits, **options: Any) -> None:
        super().__init__(**options)
        self._header_seconds = limits.header_seconds
        self._stalled_seconds = limits.stalled_seconds
        self._most_connections = limits.connections
        self.limit_concurrency = limits.connections + 1  # all of these are being answered
        self._application, self.app = self.app, self._carry_out

    async def _carry_out(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reply a request. A response that cannot be completed ends with the connection, and its reason has been logged."""
        try:
            await self._application(scope, receive, send)
        except BrokenOff:
            self.transport.abort()
            cycle: Any = getattr(send, "__self__", None)  # that of this request: later ones may wait behind it
            cycle.disconnected = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Headers and body are sent one after the other: without this the body waits until the client has acknowledged the headers.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._deadline = self.loop.call_later(self._header_seconds, self._give_up)
        self._idle_since = self.loop.time()
        self._make_room()

    def _make_room(self) -> None:
        """If there are too many connections, close one that is idle: the first that has asked for nothing, or else the one that has been
        idle for longest.
        """
        if len(self.connections) <= self._most_connections:
            return
        held = [one for one in self.connections if isinstance(one, _Connection) and one is not self and one._is_held]
        idle = [one for one in held if one._is_idle and not one.transport.get_write_buffer_size()]  # what is there is still being sent
        if len(held) >= self._most_connections and idle:
            min(idle, key=lambda one: (one._has_asked, one._idle_since)).transport.abort()

    @property
    def _is_held(self) -> bool:
        """True unless the connection is about to end by itself."""
        return not self.transport.is_closing() or self.transport.get_write_buffer_size() > 0

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_headers:
            self._nbytes += len(data)
            if self._nbytes > _MOST_HEADER_NBYTES and b"\r\n\r\n" not in data:
                self._refuse(_TOO_LONG)
                return
        super().data_received(data)
        # Part of a request has come; or bytes that begin none, such as empty lines, which have ended the time that it may be idle.
        if self._deadline is None and (self._has_begun or (self.timeout_keep_alive_task is None and self._is_idle)):
            self._deadline = self.loop.call_later(self._header_seconds, self._give_up)

    @property
    def _is_idle(self) -> bool:
        """True if no response is under way."""
        cycle: Any = self.cycle  # None before the first request, whatever its type says
        return cycle is None or cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        if self._is_idle:
            super().send_400_response(msg)
            self._watch_closing()
        else:
            self._refuse(b"")

    def _refuse(self, answer: bytes) -> None:
        """Close the connection, with an answer unless another one is under way: it would become a part of that one's body."""
        if not self._is_idle:
            self.transport.abort()
            return
        self.transport.write(answer)
        self.transport.close()
        self._watch_closing()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = self._has_begun = True

    def on_headers_complete(self) -> None:
        self._in_headers = self._has_begun = False
        self._has_asked = True
        self._nbytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if not self.url.startswith(b"/") and (host := _host_of(self.url)) is not None:
            # What a request line names stands for Host (RFC 9112, section 3.2.2), which is checked later.
            self.headers[:] = [(name, value) for name, value in self.headers if name != b"host"] + [(b"host", host)]
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_headers, self._nbytes = True, 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._idle_since = self.loop.time()
        self._watch_closing()

    def shutdown(self) -> None:
        super().shutdown()
        self._watch_closing()

    def _watch_closing(self) -> None:
        """See to it that a connection ends that is closed, but whose client does not take the last bytes."""
        if self.transport.is_closing() and self.transport.get_write_buffer_size() and self._stalled is None:
            self._stalled = self.loop.call_later(self._stalled_seconds, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self._stalled_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()
        self._watch_closing()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def _give_up(self) -> None:
        """End a connection whose client has not sent a request in time; not while it is still being answered, and may not send."""
        if self._is_idle:
            self.transport.abort()
        else:
            self._deadline = self.loop.call_later(self._header_seconds, self._give_up)

    def _cancel(self) -> None:
        for timer in (self._deadline, self._stalled):
            if timer is not None:
                timer.cancel()
        self._deadline = self._stalled = None


def _host_of(url: bytes) -> bytes | None:
    """Return the host, with its port, of the absolute URL of a request line."""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserError:
        return None
    if not parsed.host:
        return None
    host: bytes = b"[%b]" % parsed.host if b":" in parsed.host else parsed.host
    port: Any = parsed.port  # None where there is none, whatever its type says
    return host if port is None else host + b":%d" % port


class Serving:
    """A server that runs in this process until it is closed. Also a context manager."""

    def __init__(self, app: Application, listening: socket.socket, shown_host: str) -> None:
        self.application = app
        port = listening.getsockname()[1]
        self.url = f"http://{shown_host}:{port}/"
        """The URL of the server, with ``/`` at its end."""
        self.limits = Limits()
        config = uvicorn.Config(
            app,
            http=partial(_Connection, self.limits),  # type: ignore[arg-type]  # whatever makes a protocol
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=STOP_SECONDS,
            backlog=1024,
        )
        self._server = uvicorn.Server(config)
        self._ended: Future[None] = asyncio.run_coroutine_threadsafe(self._run(listening), get_loop())

    async def _run(self, listening: socket.socket) -> None:
        await self._server.serve(sockets=[listening])
        self._break_off()  # those that have been closed, and whose clients do not take the last bytes

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Serving({self.url!r})"

    def stop(self, *, at_once: bool = False) -> None:
        """Take no more requests, and let what is under way end within ten seconds; or break it off ``at_once``. Does not wait."""
        self._server.should_exit = True
        if at_once:
            self._server.force_exit = True
            get_loop().call_soon_threadsafe(self._break_off)

    def _break_off(self) -> None:
        """Close all connections: from Python 3.12 on, a server waits for them."""
        for connection in list(self._server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the server has ended, at most so many seconds; return whether it has."""
        try:
            self._ended.result(seconds)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Stop, and wait until the server has ended."""
        self.stop()
        self.wait()


def serve(url: Any, *, host: str = "127.0.0.1", port: int = 8080, hosts: Sequence[str] = (), **options: Any) -> Serving:
    """Serve a store over HTTP for reading, in this process, and return at once.

    Args:
        url: what ``shardstore.open`` takes, or ``URL@ref``.
        host: the address to listen at; by default this machine only.
        port: 0: any that is free; ``Serving.url`` says which.
        hosts: names of the server besides ``localhost``, ``127.0.0.1`` and ``[::1]``. Where it listens at another address, any name is
            right, unless some are given.
        options: those of ``shardstore.apps.server.application``.

    Raises:
        InvalidInput: an argument cannot be right.
        StorageError: the port is taken, or there is no such address.
        NotFound, Unsupported: the store cannot be opened.
    """
    names = [*LOOPBACK, host, *hosts] if is_loopback(host) else [*hosts] or None
    app = application(url, hosts=names, **options)
    given: object = port
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < 2**16:
        raise InvalidInput(f"port {port!r} is not a number from 0 to 65535")
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024)
    except OSError as exc:
        raise StorageError(
            f"nothing can listen at {host}, port {port}: {exc.strerror or exc}. Give another port; 0 takes a free one"
        ) from exc
    shown = "127.0.0.1" if host in ("0.0.0.0", "localhost") else "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
    return Serving(app, listening, shown)
