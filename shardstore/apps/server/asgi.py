"""The ASGI application: which request goes where, and what is said in error.

::

    /           the report                      /zarr3/…  /zarr2/…  /stored/…    values and directories, and buckets of S3
    /healthz    "ok"

Requests for values go by a plain ASGI callable, since routing costs more than reading a small chunk. Everything else is Starlette's, and
other programs can mount the application like any of its kind. All work is done on fsspec's IO loop, on whatever loop the server runs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from shardstore._sync import run_async
from shardstore.adapters.read_views import leads_outside
from shardstore.apps.server import s3_answers
from shardstore.apps.server.access import Access
from shardstore.apps.server.buckets import (
    LISTING_HEADERS,
    Bucket,
    Listings,
    Moved,
    Served,
    as_html,
    as_html_pieces,
    as_json,
    open_served,
    page_of,
    relative_link,
)
from shardstore.apps.server.front_page import FrontPage
from shardstore.apps.server.http_rules import parse_entity_tags
from shardstore.apps.server.values import PIECE_NBYTES, Headers, ReadRequest, Refusal, Reply, answer, shown
from shardstore.errors import (
    AccessDenied,
    Conflict,
    Corruption,
    InvalidInput,
    NotFound,
    ShardStoreError,
    SnapshotExpired,
    StorageError,
    Unsupported,
)
from shardstore.format.store_keys import check_directory, check_key
from shardstore.format.v2.keys import is_document
from shardstore.model.durations import Duration, timedelta_of
from shardstore.model.redaction import redacted
from shardstore.model.words import printable

logger = logging.getLogger(__name__)

T = TypeVar("T")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MOST_IN_FLIGHT = 256

CROWDED = 32
"""While more values than these are under way, they go in smaller pieces."""
CROWDED_PIECE_NBYTES = 2**20
_SENT_AT_ONCE = 256 * 2**10
"""Bytes that are handed to the server at once: it copies what the client does not take."""
MOST_KEY_NBYTES = 1024
"""Bytes of the longest key that is looked for: those of S3."""
MOST_SEGMENTS = 100
_MOST_SHOWN = 200  # characters of what a client asks for, in messages
_PATIENCE_SECONDS = 1.0
"""Until then it is not checked whether the client is still there."""

_NOSNIFF: Headers = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")]


@dataclass(frozen=True, slots=True)
class _BucketRequest:
    """A request for a key or a directory of a bucket, or for the bucket."""

    key: str
    has_slash: bool
    """True if there is a slash behind the name of the bucket."""
    query: bytes
    parameters: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    is_head: bool
    is_s3: bool
    """True if a client of S3 asks."""

    @classmethod
    def of(cls, key: str, has_slash: bool, query: bytes, headers: Mapping[bytes, bytes], *, is_head: bool) -> _BucketRequest:
        parameters = s3_answers.parameters_of(query) if query else {}
        is_s3 = _is_from_sdk(headers) or s3_answers.is_presigned(parameters)
        return cls(key, has_slash, query, parameters, headers, is_head, is_s3)


class Application(Starlette):
    """A store, served for reading."""

    def __init__(
        self, served: Served, access: Access, *, max_age: int, in_flight: int, listing: bool, report: bool, piece_nbytes: int
    ) -> None:
        super().__init__(routes=[Route("/", self._front, methods=["GET"]), Route("/healthz", _healthy, methods=["GET"])])
        self.router.redirect_slashes = False
        self.served = served
        self.load = Load(in_flight)
        self._access = access
        self.front_page = FrontPage(served, has_token=access.token is not None, has_report=report)
        self._cache_control = b"no-cache" if not max_age else b"max-age=%d" % max_age
        self._listings = Listings() if listing else None
        self._piece_nbytes = piece_nbytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        try:
            await self._answer(scope, receive, send)
        except _Gone:
            return

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _combined(scope["headers"])
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        always = [*_NOSNIFF, *self._access.headers(headers.get(b"origin"))]
        if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
            always.append((b"connection", b"close"))  # whatever the body is, it is not read
        is_head = scope["method"] == "HEAD"
        try:
            self._access.check_host(headers)
            if scope["method"] == "OPTIONS":
                found = Reply(204, [*_NOSNIFF, *self._access.preflight(headers)])
                await _send_answer(send, receive, found, path, is_head=False)
                return
            if scope["method"] not in ("GET", "HEAD"):
                raise Refusal(405, "this server is read-only", [(b"allow", b"GET, HEAD, OPTIONS")])
            if path != "/healthz":
                self._access.check_token(headers, scope["query_string"])
            name, slash, rest = path[1:].partition("/")
            if (bucket := self.served.buckets.get(name)) is not None:
                await (self.load.enter() if self.load.has_room else _until_gone(self.load.enter(), receive))
                try:
                    try:
                        request = _BucketRequest.of(rest, bool(slash), scope["query_string"], headers, is_head=is_head)
                        found = await _until_gone(run_async(self._from_bucket(bucket, request)), receive)
                    except Exception as exc:  # noqa: BLE001  # every error has an answer
                        found = self._refused(exc, path, headers)
                    found.headers.extend(always)
                    await _send_answer(send, receive, found, path, is_head=is_head)
                finally:
                    self.load.leave()  # not before all is sent: until then it is in memory
                return
            if rest or name not in ("", "healthz"):
                raise self._nothing_at(name, path, headers)
            if name == "healthz" or not _asks_for_buckets(headers, scope["query_string"]):
                await super().__call__(scope, receive, _adding(send, always))
                return
            found = Reply(200, [(b"content-type", b"application/xml")], s3_answers.buckets(self.served.buckets))
        except (Refusal, Busy) as exc:
            found = self._refused(exc, path, headers)
        found.headers.extend(always)
        await _send_answer(send, receive, found, path, is_head=is_head)

    def _nothing_at(self, name: str, path: str, headers: Mapping[bytes, bytes]) -> Refusal:
        if name in self.served.store.absent:
            return Refusal(404, f"there is no /{name}/: {self.served.store.absent[name]}")
        there = ", ".join(f"/{one}/" for one in self.served.buckets)
        code = "NoSuchBucket" if _is_from_sdk(headers) else ""
        return Refusal(404, f"there is nothing at {shown(path)}: there are {there}", code=code)

    # -- buckets ---------------------------------------------------------------------------------------------------------

    async def _from_bucket(self, bucket: Bucket, request: _BucketRequest) -> Reply:
        key = request.key
        _check_length(key)
        if key and not key.endswith("/"):
            return await self._value(bucket, request)
        if key and request.is_s3:
            raise NotFound(f"there is no {key!r}")  # a client of S3 asks for an object of that name, not for a directory
        if not key and (request.is_s3 or s3_answers.names_operation(request.parameters)):
            return await self._s3_listing(bucket, request)
        if not key and not request.has_slash:
            # Clients of S3 ask for a bucket by HEAD, and follow no redirection.
            return Reply(200, [(b"content-length", b"0")]) if request.is_head else _to_directory(bucket.name, request.query)
        return await self._directory(bucket, key, request.parameters, request.headers)

    async def _value(self, bucket: Bucket, request: _BucketRequest) -> Reply:
        if request.parameters:
            s3_answers.check_object(request.parameters)
        headers = request.headers
        asked = ReadRequest(
            request.is_head,
            _text(headers, b"if-match"),
            _text(headers, b"if-none-match"),
            _text(headers, b"if-range"),
            _text(headers, b"range"),
        )
        piece = self._piece_nbytes if self.load.running <= CROWDED else min(self._piece_nbytes, CROWDED_PIECE_NBYTES)
        try:
            return await answer(bucket, check_key(request.key), asked, self._cache_control, piece)
        except NotFound:
            if asked.range is None and not request.is_s3 and await self._is_directory(bucket, request.key):
                return _to_directory(request.key, request.query)
            raise

    async def _s3_listing(self, bucket: Bucket, request: _BucketRequest) -> Reply:
        if request.is_head:
            return Reply(200, [(b"content-length", b"0")])
        if self._listings is None:
            raise Refusal(403, "this server gives no listings")
        body = await s3_answers.bucket_answer(bucket, self._listings, request.parameters)
        return Reply(200, [(b"content-type", b"application/xml"), (b"content-length", b"%d" % len(body))], body)

    async def _is_directory(self, bucket: Bucket, key: str) -> bool:
        """Return whether a request for a key without a value is one for a directory, whose last slash is missing."""
        return self._listings is not None and not is_document(key) and await bucket.view.is_directory(key, looks=True)

    async def _directory(self, bucket: Bucket, prefix: str, parameters: Mapping[str, str], headers: Mapping[bytes, bytes]) -> Reply:
        if self._listings is None:
            raise NotFound("this server gives no listings")
        if "//" in f"/{prefix}":
            raise InvalidInput(f"{prefix!r} has an empty segment")
        page = await page_of(self._listings, bucket, check_directory(prefix), parameters.get("after", ""))
        is_nothing = prefix and not page.entries and not parameters.get("after")
        if is_nothing and not await bucket.view.is_directory(prefix[:-1], looks=False):
            raise NotFound(f"there is nothing below {prefix!r}")
        title = f"/{bucket.name}/{prefix}"
        accepted = headers.get(b"accept", b"")
        always: Headers = [*LISTING_HEADERS, (b"vary", b"Accept")]
        if parameters.get("format") == "json" or b"application/json" in accepted:
            body, kind = as_json(page), b"application/json"
        elif page.more is None or b"text/html" in accepted:
            body, kind = as_html(page, title), b"text/html; charset=utf-8"
        else:  # no browser
            pieces = as_html_pieces(self._listings, bucket, page, title)
            return Reply(200, [*always, (b"content-type", b"text/html; charset=utf-8")], rest=pieces)
        return Reply(200, [*always, (b"content-type", kind), (b"content-length", b"%d" % len(body))], body)

    # -- the page --------------------------------------------------------------------------------------------------------

    async def _front(self, request: Request) -> Response:
        if "renew" in request.query_params:
            await run_async(self._renew())
            return Response(status_code=303, headers={"location": "./", "cache-control": "no-store"})
        try:
            page = await run_async(self.front_page.get(str(request.base_url)))
        except Exception as exc:  # noqa: BLE001  # every error has an answer
            refused = self._refused(exc, "/", dict(request.headers.raw))
            return Response(bytes(refused.body), refused.status, {name.decode(): value.decode() for name, value in refused.headers})
        headers = {name.decode(): value.decode() for name, value in page.headers} | {"etag": page.etag}
        if parse_entity_tags(request.headers.get("if-none-match", "")).match_weakly(page.etag):
            return Response(status_code=304, headers=headers)
        return Response(page.body, headers=headers)

    async def _renew(self) -> None:
        self.front_page.renew()

    # -- errors ----------------------------------------------------------------------------------------------------------

    def _refused(self, exc: Exception, path: str, headers: Mapping[bytes, bytes]) -> Reply:
        path = path[:_MOST_SHOWN]
        status, more = _status_of(exc)
        message = redacted(str(exc))
        if status >= 500 and status != 503 and not isinstance(exc, Refusal):  # that is no fault of the server's
            _log(path, exc)
        if isinstance(exc, Busy):
            message = "too many requests are under way: come again"
        elif isinstance(exc, Moved):
            message = f"{shown(path)} kept changing while it was read: come again"
        elif not isinstance(exc, ShardStoreError | Refusal):
            message = "an error that shardstore does not expect: the server's log has it"
        if b"application/json" in headers.get(b"accept", b""):
            body, kind = json.dumps({"status": status, "error": message, "path": path}).encode(), b"application/json"
        else:
            code = exc.code if isinstance(exc, Refusal) else ""
            body, kind = s3_answers.error(status, message, path, code), b"application/xml"
        lines = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"cache-control", b"no-cache")]
        return Reply(status, [*lines, *more], body)


def _log(path: str, exc: Exception) -> None:
    """Log that a request failed, in one line: paths and messages hold what clients send. Errors that are not expected have their places
    in the code, too.
    """
    lines = [printable(f"{path[:_MOST_SHOWN]}: {redacted(str(exc))}")]
    error: BaseException | None = None if isinstance(exc, ShardStoreError) else exc
    while error is not None:
        lines += [printable(f"{type(error).__name__}: {redacted(str(error))}"), *traceback.format_tb(error.__traceback__)]
        error = error.__cause__ or error.__context__
    logger.warning("%s", "\n".join(lines))


def _to_directory(name: str, query: bytes) -> Reply:
    """Return the redirection to a directory from its name without the slash, relative to it: a proxy may show it elsewhere."""
    where = relative_link(name.rpartition("/")[2]).encode() + b"/" + (b"?" + query if query else b"")
    return Reply(307, [(b"location", where), (b"content-length", b"0"), (b"cache-control", b"no-cache")])


def _status_of(exc: Exception) -> tuple[int, Headers]:
    again: Headers = [(b"retry-after", b"1")]
    match exc:
        case Refusal():
            return exc.status, exc.headers
        case Busy() | Moved() | Conflict():
            return 503, again
        case NotFound():
            return 404, []
        case InvalidInput():
            return 400, []
        case Corruption() | SnapshotExpired():  # not 404 or 410, which clients take for a chunk that was never written
            return 500, []
        case Unsupported():
            return 501, []
        case AccessDenied():
            return (403 if leads_outside(exc) else 502), []  # where the storage refuses, it is not the client who may not
        case StorageError():
            return (504 if _timed_out(exc) else 502), []
    return 500, []


def _timed_out(exc: BaseException | None) -> bool:
    while exc is not None:
        if isinstance(exc, TimeoutError):
            return True
        exc = exc.__cause__
    return False


# -- load ----------------------------------------------------------------------------------------------------------------


class Busy(Exception):
    """There are as many requests as are carried out at once, and as many again that wait."""


class Load:
    """The requests in flight of one server."""

    def __init__(self, most: int = MOST_IN_FLIGHT) -> None:
        self.most = most
        self.running = 0
        """How many are being carried out."""
        self.refused = 0
        """How many were refused so far."""
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def has_room(self) -> bool:
        """True if a request would not have to wait."""
        return self.running < self.most and not self._queue

    async def enter(self) -> None:
        """Begin one request, when there is room; ``leave`` ends it. Raises ``Busy``."""
        if self.has_room:
            self.running += 1
            return
        if len(self._queue) >= self.most:
            self.refused += 1
            raise Busy
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn  # the request that leaves hands its place over
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            else:
                self._queue.remove(turn)
            raise

    def leave(self) -> None:
        """End one request."""
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1


# -- sending -------------------------------------------------------------------------------------------------------------


class BrokenOff(Exception):
    """A response ends before the length that it has promised. What is wrong has been logged: the server closes the connection."""


class _Gone(BaseException):
    """The client has gone away: no answer is sent."""


async def _until_gone(work: Coroutine[object, object, T], receive: Receive) -> T:
    """Return what is worked out; if the client goes away before, that is cancelled. Raises ``_Gone``."""
    me = asyncio.current_task()
    assert me is not None
    is_gone = False
    watching: list[asyncio.Task[None]] = []  # the task that waits for the client to go away, once it has begun

    async def watch() -> None:
        nonlocal is_gone
        await _disconnected(receive)
        is_gone = True
        me.cancel()

    timer = asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, lambda: watching.append(asyncio.ensure_future(watch())))
    try:
        return await work
    except asyncio.CancelledError:
        if is_gone:
            raise _Gone from None
        raise
    finally:
        timer.cancel()
        for task in watching:
            task.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_answer(send: Send, receive: Receive, found: Reply, path: str, *, is_head: bool) -> None:
    """Send a response.

    Raises:
        BrokenOff: the rest of it could not be read.
    """
    await send({"type": "http.response.start", "status": found.status, "headers": found.headers})
    if is_head or (found.rest is None and len(found.body) <= _SENT_AT_ONCE):
        await send({"type": "http.response.body", "body": b"" if is_head else found.body})
        return
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await _in_pieces(send, memoryview(found.body), gone)
        while found.rest is not None and (piece := await run_async(_next(found.rest))) is not None:
            await _in_pieces(send, memoryview(piece), gone)
        await send({"type": "http.response.body", "body": b""})
    except _Gone:
        pass
    except Moved:  # an answer never mixes two versions
        raise BrokenOff from None
    except Exception as exc:
        _log(path, exc)
        raise BrokenOff from exc
    finally:
        gone.cancel()
        if found.rest is not None:
            await run_async(found.rest.aclose())


async def _in_pieces(send: Send, data: memoryview, gone: asyncio.Future[None]) -> None:
    for start in range(0, len(data), _SENT_AT_ONCE):
        if gone.done():
            raise _Gone
        await send({"type": "http.response.body", "body": data[start : start + _SENT_AT_ONCE], "more_body": True})


async def _next(rest: Any) -> Any:
    return await anext(rest, None)


def _adding(send: Send, headers: Headers) -> Send:
    """Return a ``send`` that adds headers to the response."""

    async def adding(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *headers]
        await send(message)

    return adding


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1")


def _combined(lines: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return header values by name; those of several lines are one list (RFC 9110, section 5.3)."""
    headers: dict[bytes, bytes] = {}
    for name, value in lines:
        headers[name] = value if name not in headers else headers[name] + b", " + value
    return headers


def _check_length(key: str) -> None:
    """Refuse keys that no object has, and that would cost a look at each directory above: one request for each segment."""
    if key.count("/") > MOST_SEGMENTS or (len(key) > MOST_KEY_NBYTES // 4 and len(key.encode(errors="replace")) > MOST_KEY_NBYTES):
        raise Refusal(400, f"keys have at most {MOST_KEY_NBYTES} bytes and {MOST_SEGMENTS} segments", code="KeyTooLongError")


def _is_from_sdk(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a client of S3 asks: it signs, or is one of Amazon's that was configured not to."""
    is_signed = headers.get(b"authorization", b"").startswith(b"AWS4-") or b"x-amz-content-sha256" in headers
    return is_signed or b"amz-sdk-invocation-id" in headers


def _asks_for_buckets(headers: Mapping[bytes, bytes], query: bytes) -> bool:
    return _is_from_sdk(headers) or b"x-id=ListBuckets" in query or s3_answers.is_presigned(s3_answers.parameters_of(query))


async def _healthy(_request: Request) -> Response:
    return PlainTextResponse("ok")


def application(
    url: Any,
    *,
    storage_options: Mapping[str, Any] | None = None,
    cors: Sequence[str] = (),
    token: str | None = None,
    hosts: Sequence[str] | None = None,
    max_age: Duration = 0,
    in_flight: int = MOST_IN_FLIGHT,
    stored: bool = True,
    listing: bool = True,
    report: bool = True,
    follow_links: bool = False,
    piece_nbytes: int = PIECE_NBYTES,
) -> Application:
    """Return an ASGI application that serves a store for reading, to run by any server of ASGI or to mount in another application.

    Args:
        url: what ``shardstore.open`` takes: a store, or one snapshot of a versioned one, ``URL@ref``.
        storage_options: for the filesystem: credentials, endpoint, retries.
        cors: origins of web pages that may read, as ``https://viewer.example``; ``"*"`` for all.
        token: what a request has to have: in ``Authorization: Bearer``, as ``?token=``, or as the access key id of a client of S3.
        hosts: names that ``Host`` may have; ``None``: any.
        max_age: how long clients may keep a value without asking; 0: they ask each time, and get 304 if it has not changed.
        in_flight: requests that are carried out at once; as many more wait, and the rest are answered 503.
        stored: show the stored objects too, below ``/stored/``.
        listing: list directories and buckets.
        report: the page at ``/`` is the report, which takes a listing and the indices of all shards when it is first asked for; otherwise
            it is made of metadata alone.
        follow_links: links in a local directory may lead out of it; otherwise what is there is 403, and listings leave it out.
        piece_nbytes: a longer value is read in pieces of this length.

    Raises:
        InvalidInput: an argument cannot be right.
        NotFound, StorageError, Unsupported: the store cannot be opened.
    """
    numbers: list[tuple[str, object, int]] = [("in_flight", in_flight, 1), ("piece_nbytes", piece_nbytes, 1)]
    for name, value, least in numbers:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidInput(f"{name} {value!r} is not a whole number of at least {least}")
    access = Access.of(hosts, cors, token)
    max_age_seconds = int(timedelta_of("max_age", max_age).total_seconds())
    return Application(
        open_served(url, storage_options, stored=stored, max_age=max_age_seconds, follow_links=follow_links),
        access,
        max_age=max_age_seconds,
        in_flight=in_flight,
        listing=listing,
        report=report,
        piece_nbytes=piece_nbytes,
    )
