"""A real server, seen through a proxy that misbehaves on demand.

Requests go on byte for byte, ``Host`` included, so that signatures stay right; answers come back the same way, with nothing
decompressed and no redirect followed. Rules decide which requests are treated otherwise::

    with MisbehavingServer("http://127.0.0.1:9000") as server:
        lost = server.on(drop_reply(), method="PUT", nth=3)           # the third PUT is carried out, its answer is lost
        server.on(ignore_conditions(), method="DELETE")                 # always
        storage = open_storage("s3://bucket/root", {"endpoint_url": server.url, …})
        …
        assert lost.acted == 1
        print([request.method for request in server.requests])

The behaviours are in ``tests.harness.misbehaviours``; own ones are coroutine functions like those. It needs aiohttp
(``shardstore[http]``), holds whole bodies in memory, and speaks HTTP without TLS.
"""

from __future__ import annotations

import asyncio
import io
import re
import socket
import struct
import threading
from collections.abc import Callable, Container
from types import TracebackType
from typing import Self

from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web
from multidict import CIMultiDict
from yarl import URL

from tests.harness.misbehaviours import Answer, Behaviour, Broken, CutOff, Flood, Outcome, Request, Send, Silence

# Of one connection, not of the message: each side has its own.
_OF_CONNECTION = frozenset({"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "expect"})
_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_UPSTREAM_SECONDS = 120.0
_MAX_HEADER_BYTES = 1 << 16
_ZEROS = bytes(1 << 16)


class _Instead(Exception):
    """What becomes of a request that gets no answer; through the behaviours that wait for one."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Rule:
    """Which requests a behaviour is for. Counts are of this rule, since it was made."""

    def __init__(self, behaviour: Behaviour, matches: Callable[[Request], bool], nth: Container[int] | None) -> None:
        self.behaviour = behaviour
        self.matched = 0
        """Requests that it is for, without regard to ``nth``."""
        self.acted = 0
        """Requests that the behaviour was given."""
        self._matches = matches
        self._nth = nth

    def is_due(self, request: Request) -> bool:
        """Count ``request``; whether the behaviour is for it."""
        if not self._matches(request):
            return False
        self.matched += 1
        return self._nth is None or self.matched in self._nth

    def before(self, send: Send) -> Send:
        """What sends a request through the behaviour, and from there by ``send``."""

        async def behaving(request: Request) -> Answer:
            self.acted += 1
            outcome = await self.behaviour(request, send)
            if isinstance(outcome, Answer):
                return outcome
            raise _Instead(outcome)

        return behaving


class MisbehavingServer:
    """A proxy before the server at ``upstream`` (``http://host:port``), in a thread of its own, from ``with`` to its end.

    Where a behaviour raises, its client sees a reset connection, and ``behave`` or the end of ``with`` raises the same.

    Rules may be changed at any time, from any thread. Of several that are due for a request the one made last comes first: what it
    sends goes to the one made before it.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream.rstrip("/")
        self.url = ""
        """Where the proxy is; known within the ``with`` block."""
        self._requests: list[Request] = []
        self._rules: tuple[Rule, ...] = ()
        self._errors: list[Exception] = []
        self._flooded = 0
        self._floods = 0
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="misbehaving-server", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._loop is not None
        assert self._end is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        if error is None:
            self._raise()

    # -- rules -----------------------------------------------------------------------------------------------------

    def on(
        self,
        behaviour: Behaviour,
        *,
        method: str | Container[str] | None = None,
        target: str | None = None,
        header: str | None = None,
        where: Callable[[Request], bool] | None = None,
        nth: int | Container[int] | None = None,
    ) -> Rule:
        """Let ``behaviour`` decide requests of these methods, whose path with query contains the regular expression ``target``, that
        have the ``header``, and for which ``where`` is true; of those only the ``nth``, counted from 1."""
        methods = {method} if isinstance(method, str) else method
        pattern = None if target is None else re.compile(target)

        def matches(request: Request) -> bool:
            return (
                (methods is None or request.method in methods)
                and (pattern is None or pattern.search(request.target) is not None)
                and (header is None or request.header(header) is not None)
                and (where is None or where(request))
            )

        rule = Rule(behaviour, matches, {nth} if isinstance(nth, int) else nth)
        self._rules = (*self._rules, rule)
        return rule

    def behave(self) -> None:
        """Forget all rules, and the requests so far. Raises what a behaviour raised meanwhile."""
        self._rules = ()
        self._requests = []
        self._flooded = 0
        self._raise()

    def _raise(self) -> None:
        errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    @property
    def requests(self) -> list[Request]:
        """What was asked for since ``behave``, in the order in which requests were complete."""
        return list(self._requests)

    @property
    def flooded(self) -> int:
        """How many bytes of bodies without end clients have taken since ``behave``, with what the connections hold on their way."""
        return self._flooded

    @property
    def floods(self) -> int:
        """How many bodies are being sent right now: their clients have neither read them to the end nor closed the connection."""
        return self._floods

    # -- the server ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as exc:  # noqa: BLE001  # handed to whoever waits for the start
            self._failure = exc
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        # A connection for each request: on a kept one, aiohttp would send again what a server may have carried out.
        connector = TCPConnector(force_close=True, limit=0)
        timeout = ClientTimeout(total=_UPSTREAM_SECONDS)
        async with ClientSession(connector=connector, auto_decompress=False, skip_auto_headers=_NOT_ADDED, timeout=timeout) as session:

            async def handle(incoming: web.Request) -> web.StreamResponse:
                return await self._handle(session, incoming)

            application = web.Application(client_max_size=0)  # no limit
            application.router.add_route("*", "/{any:.*}", handle)
            runner = web.AppRunner(
                application,
                access_log=None,
                auto_decompress=False,
                max_field_size=_MAX_HEADER_BYTES,
                shutdown_timeout=0.1,  # 0 would wait for ever for clients that keep their connection open
                lingering_time=0.0,
            )
            await runner.setup()
            try:
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                host, port = runner.addresses[0][:2]
                self.url = f"http://{host}:{port}"
                self._started.set()
                await self._end.wait()
            finally:
                connections = [] if runner.server is None else [one.transport for one in runner.server.connections]
                await runner.cleanup()
                for transport in connections:  # one whose client does not read would stay open for what it has not sent
                    if transport is not None:
                        transport.abort()
                await asyncio.sleep(0)  # they close in the next step of the loop

    async def _handle(self, session: ClientSession, incoming: web.Request) -> web.StreamResponse:
        headers = tuple((name, value) for name, value in incoming.headers.items() if name.lower() not in _OF_CONNECTION)
        request = Request(incoming.method, incoming.raw_path, headers, await incoming.read())
        self._requests.append(request)

        async def forward(asked: Request) -> Answer:
            return await self._forward(session, asked)

        send: Send = forward
        for rule in [rule for rule in self._rules if rule.is_due(request)]:
            send = rule.before(send)
        try:
            outcome: Outcome = await send(request)
        except _Instead as instead:
            outcome = instead.outcome
        except (ClientError, TimeoutError) as exc:
            outcome = Answer(502, (("Content-Type", "text/plain"),), f"the server behind the proxy: {exc}".encode())
        except Exception as exc:  # noqa: BLE001  # of a behaviour: raised where the test can see it
            self._errors.append(exc)
            outcome = Broken(is_reset=True)
        return await self._respond(incoming, outcome)

    async def _forward(self, session: ClientSession, request: Request) -> Answer:
        headers = CIMultiDict((name, value) for name, value in request.headers if name.lower() != "content-length")
        has_body = request.body or request.header("Content-Length") is not None
        async with session.request(
            request.method,
            URL(self.upstream + request.target, encoded=True),
            headers=headers,
            data=io.BytesIO(request.body) if has_body else None,
            allow_redirects=False,
        ) as response:
            body = await response.read()
            kept = [(name, value) for name, value in response.headers.items() if name.lower() not in _OF_CONNECTION]
            if request.method != "HEAD":
                kept = [(name, value) for name, value in kept if name.lower() != "content-length"]
            # An upload goes on where the server says: through here.
            moved = [
                (n, self.url + v.removeprefix(self.upstream)) if n.lower() == "location" and v.startswith(self.upstream) else (n, v)
                for n, v in kept
            ]
            return Answer(response.status, tuple(moved), body)

    async def _respond(self, incoming: web.Request, outcome: Outcome) -> web.StreamResponse:
        match outcome:
            case Answer(status, headers, body):
                return web.Response(status=status, headers=CIMultiDict(headers), body=body)
            case CutOff(answer, nbytes):
                announced = CIMultiDict(answer.with_header("Content-Length", str(len(answer.body))).headers)
                response = web.StreamResponse(status=answer.status, headers=announced)
                await response.prepare(incoming)
                await response.write(answer.body[:nbytes])
                _end_connection(incoming, is_reset=False)
                return response
            case Flood():
                return await self._flood(incoming, outcome)
            case Broken(is_reset):
                _end_connection(incoming, is_reset=is_reset)
                return web.Response()
            case Silence():
                assert self._end is not None
                await self._end.wait()
                _end_connection(incoming, is_reset=True)
                return web.Response()

    async def _flood(self, incoming: web.Request, flood: Flood) -> web.StreamResponse:
        length = None if flood.announced is None else str(flood.announced)
        response = web.StreamResponse(
            status=flood.answer.status, headers=CIMultiDict(flood.answer.with_header("Content-Length", length).headers)
        )
        await response.prepare(incoming)
        sent = flood.answer.body
        before = self._flooded if flood.ends else 0  # one without end counts all that was sent before
        self._floods += 1
        try:
            while self._flooded - before < flood.most_nbytes:
                await response.write(sent)
                self._flooded += len(sent)
                sent = _ZEROS
        except (ConnectionError, ClientError):  # the client has left
            return response
        finally:
            self._floods -= 1
        if not flood.ends:
            _end_connection(incoming, is_reset=True)
        return response


def _end_connection(incoming: web.Request, *, is_reset: bool) -> None:
    """Close the connection; what was written before a close without reset still goes out."""
    transport = incoming.transport
    if transport is None:  # the client went first
        return
    if is_reset:
        connection: socket.socket = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    else:
        transport.close()
