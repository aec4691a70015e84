"""Runs the application by uvicorn on fsspec's IO loop, where the engines run: no request crosses threads."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any

import uvicorn
from fsspec.asyn import get_loop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shardstore.errors import InvalidInput, StorageError
from shardstore.server.access import LOOPBACK
from shardstore.server.application import Application, application

STOP_SECONDS = 10
"""What is under way when the server is stopped has so long to end."""

_HEADER_SECONDS = 30.0
"""So long a client may take to send the headers of a request, and so long for any bytes of the answer to go out."""
_STALLED_SECONDS = 60.0
_MOST_HEADER_NBYTES = 64 * 2**10
_MOST_CONNECTIONS = 1000
_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class _Connection(HttpToolsProtocol):
    """A connection that is given up if the client sends headers without end, or slowly, or takes nothing of the answer."""

    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _nbytes = 0
    _in_headers = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Headers and body are sent one after the other: without this the body waits until the client has acknowledged the headers.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._deadline = self.loop.call_later(_HEADER_SECONDS, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_headers:
            self._nbytes += len(data)
            if self._nbytes > _MOST_HEADER_NBYTES and b"\r\n\r\n" not in data:
                self.transport.write(_TOO_LONG)
                self.transport.close()
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True
        if self._deadline is None:
            self._deadline = self.loop.call_later(_HEADER_SECONDS, self._give_up)

    def on_headers_complete(self) -> None:
        self._in_headers, self._nbytes = False, 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_headers, self._nbytes = True, 0

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(_STALLED_SECONDS, self._give_up)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self._give_up()
        super().timeout_keep_alive_handler()

    def _give_up(self) -> None:
        self.transport.abort()

    def _cancel(self) -> None:
        for timer in (self._deadline, self._stalled):
            if timer is not None:
                timer.cancel()
        self._deadline = self._stalled = None


class Serving:
    """A server that runs in this process until it is closed. Also a context manager."""

    def __init__(self, app: Application, listening: socket.socket, shown_host: str) -> None:
        self.application = app
        port = listening.getsockname()[1]
        self.url = f"http://{shown_host}:{port}/"
        """The URL of the server, with ``/`` at its end."""
        config = uvicorn.Config(
            app,
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=STOP_SECONDS,
            limit_concurrency=_MOST_CONNECTIONS,
            backlog=1024,
        )
        self._server = uvicorn.Server(config)
        self._ended: Future[None] = asyncio.run_coroutine_threadsafe(self._run(listening), get_loop())

    async def _run(self, listening: socket.socket) -> None:
        await self._server.serve(sockets=[listening])

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
        options: those of ``shardstore.server.application``.

    Raises:
        InvalidInput: an argument cannot be right.
        StorageError: the port is taken, or there is no such address.
        NotFound, Unsupported: the store cannot be opened.
    """
    is_here = host in ("127.0.0.1", "::1", "localhost")
    names = [*LOOPBACK, *hosts] if is_here else [*hosts] or None
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
