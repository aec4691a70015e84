"""A web server on 127.0.0.1 that behaves as a test asks, and remembers what it was asked for."""

from __future__ import annotations

import hashlib
import html
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    """By name in lower case."""

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


@dataclass
class Behaviour:
    """What a server does unlike the standard, or need not do by it."""

    ranges: bool = True
    suffix: str = "yes"
    """``yes``; ``416``, ``501``: refused so; ``whole``: answered with all; ``first``: taken for the first bytes."""
    etag: str = "strong"
    """``strong``, ``weak``, ``bare`` (not in quotes), ``none``."""
    last_modified: bool = True
    if_match: str = "yes"
    """``yes``, ``ignored``, ``refused`` (never matches)."""
    head: bool = True
    length: bool = True
    """Whether the size is announced: in chunks otherwise."""
    total: bool = True
    """Whether ``Content-Range`` tells the size of the object."""
    shift: int = 0
    """How far ranges come from elsewhere than they were asked for."""
    pages: bool = False
    """Whether directories have pages."""
    absent_status: int = 404
    headers: dict[str, str] = field(default_factory=dict)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients leave in the middle of answers: that is no news."""


class WebServer:
    """``objects`` by path (``/a/b``), served in threads until ``close``."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.behaviour = Behaviour()
        self.asked: list[Asked] = []
        self.failures: list[int | str] = []
        """What becomes of the next requests: a status; ``drop``: no answer; ``break``: the body ends early; ``ok``."""
        self.redirects: dict[str, str] = {}
        """From a path's beginning to an address's."""
        self.before: Callable[[Asked], object] = lambda _asked: None
        self.headers_wanted: dict[str, str] = {}
        self.left = threading.Event()
        """Set when a client went before it had all of a body."""
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def methods(self) -> list[str]:
        """Methods and ranges of what was asked since the last call."""
        asked, self.asked = self.asked, []
        return [f"{one.method} {one.range}" if one.range else one.method for one in asked]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # it would make every answer wait for the client's acknowledgement

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                server.answer(self)

            def do_HEAD(self) -> None:
                server.answer(self)

        return Handler

    # -- answers -------------------------------------------------------------------------------------------------------

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = Asked(handler.command, handler.path, {name.lower(): value for name, value in handler.headers.items()})
        self.asked.append(asked)
        self.before(asked)
        failure = self.failures.pop(0) if self.failures else "ok"
        path = unquote(asked.path.partition("?")[0])
        if failure == "drop":
            handler.close_connection = True
            return
        if isinstance(failure, int):
            self._send(handler, failure, {}, b"failed")
            return
        if any(asked.headers.get(name.lower()) != value for name, value in self.headers_wanted.items()):
            self._send(handler, 401, {}, b"who are you?")
            return
        for start, target in self.redirects.items():
            if path.startswith(start):
                self._send(handler, 302, {"Location": target + quote(path[len(start) :])}, b"")
                return
        if self.behaviour.pages and path.endswith("/"):
            self._page(handler, path)
            return
        data = self.objects.get(path)
        if data is None and self.behaviour.pages and any(name.startswith(f"{path}/") for name in self.objects):
            self._send(handler, 301, {"Location": quote(path.rpartition("/")[2]) + "/"}, b"")
            return
        if data is None:
            self._send(handler, self.behaviour.absent_status, {}, b"<html>nothing</html>")
            return
        if asked.method == "HEAD" and not self.behaviour.head:
            self._send(handler, 405, {}, b"")
            return
        self._object(handler, asked, data, broken=failure == "break")

    def _page(self, handler: BaseHTTPRequestHandler, path: str) -> None:
        names = {
            key[len(path) :].partition("/")[0] + ("/" if "/" in key[len(path) :] else "") for key in self.objects if key.startswith(path)
        }
        if not names and path.count("/") > 2:
            self._send(handler, 404, {}, b"")
            return
        links = "".join(f'<li><a href="{html.escape(quote(name))}">{html.escape(name)}</a></li>' for name in sorted(names))
        page = f'<html><a href="?C=N;O=D">Name</a><a href="../">up</a><a href="https://elsewhere/x">x</a><ul>{links}</ul></html>'
        self._send(handler, 200, {"Content-Type": "text/html; charset=utf-8"}, page.encode())

    def etag(self, data: bytes) -> str:
        digest = hashlib.md5(data).hexdigest()
        return {"strong": f'"{digest}"', "weak": f'W/"{digest}"', "bare": digest, "none": ""}[self.behaviour.etag]

    def _object(self, handler: BaseHTTPRequestHandler, asked: Asked, data: bytes, broken: bool) -> None:
        behaviour = self.behaviour
        headers = dict(behaviour.headers)
        if behaviour.etag != "none":
            headers["ETag"] = self.etag(data)
        if behaviour.last_modified:
            headers["Last-Modified"] = "Tue, 02 Jan 2024 03:04:05 GMT"
        wanted = asked.headers.get("if-match")
        if wanted is not None and behaviour.if_match != "ignored" and (behaviour.if_match == "refused" or wanted != self.etag(data)):
            self._send(handler, 412, headers, b"")
            return
        ranges = self._range(asked.range, len(data)) if asked.range and behaviour.ranges and asked.method == "GET" else None
        if isinstance(ranges, int):
            self._send(handler, ranges, {"Content-Range": f"bytes */{len(data)}"} if behaviour.total else {}, b"")
            return
        status, body = 200, data
        if ranges is not None:
            start, end = ranges
            status, body = 206, data[start:end]
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data) if behaviour.total else '*'}"
        self._send(handler, status, headers, body, broken)

    def _range(self, header: str, nbytes: int) -> tuple[int, int] | int | None:
        """Start and end; or the status that refuses; or ``None``: all of it."""
        first, _, last = header.removeprefix("bytes=").partition("-")
        shift = self.behaviour.shift
        if first:
            start, end = int(first), min(nbytes, int(last) + 1) if last else nbytes
            return (start + shift, end + shift) if start < nbytes else 416
        match self.behaviour.suffix:
            case "whole":
                return None
            case "first":
                return 0, min(nbytes, int(last))
            case "yes":
                return (max(0, nbytes - int(last)), nbytes) if nbytes else 416
            case status:
                return int(status)

    def _send(self, handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes, broken: bool = False) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        chunked = not self.behaviour.length and status == 200
        handler.send_header(*(("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(len(body)))))
        handler.end_headers()
        if handler.command == "HEAD":
            return
        if broken:
            body, handler.close_connection = body[: len(body) // 2], True
        try:
            if not chunked:
                handler.wfile.write(body)
                return
            for start in range(0, len(body), 100):
                piece = body[start : start + 100]
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            if not broken:
                handler.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            handler.close_connection = True
            self.left.set()
