"""Requests below one URL through the user's fsspec HTTP filesystem, with its session, headers and credentials; the answers; and index
pages, as web servers make them for directories.

Requests ask for the identity encoding, so that ranges are ranges of the object. Redirects are followed; the last answer counts. Errors
are translated here, once. Nothing of aiohttp is imported: its exceptions are recognised by their names.
"""

from __future__ import annotations

import asyncio
import codecs
import random
import re
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

from shardstore.errors import AccessDenied, InvalidInput, ShardStoreError, StorageError, Unsupported
from shardstore.model.advice import UNSAID, storage_option
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteRequest
from shardstore.model.redaction import redacted, shown_cause
from shardstore.storage.inferred_versions import unversioned
from shardstore.storage.requests.outcomes import CHECK_ADDRESS, Bound, RequestFailed, is_unreachable, modified_seconds, server_times
from shardstore.storage.requests.ranged_reads import UNASKED_NBYTES, check_most, cut, cut_unannounced, exactly, most_of

# -- answers -----------------------------------------------------------------------------------------------------------


_SETTLED_SECONDS = 2  # dates are of whole seconds
_TOTAL = re.compile(r"bytes (?:\d+-\d+|\*)/(\d+)")


@dataclass(frozen=True, slots=True)
class HTTPAnswer:
    """An answer, its body cut to what was wanted.

    ``parts`` are the wanted ranges of a whole object (status 200), whose size is ``nbytes``; or the body as it came (206), where
    ``nbytes`` is the object's size if the answer gives it; or nothing.
    """

    status: int
    headers: Mapping[str, str]
    parts: tuple[memoryview, ...] = ()
    nbytes: int | None = None

    @property
    def generation(self) -> Generation:
        """The version: its ETag, or else its date with its size, or else a name that nothing else has."""
        return generation_of(self.headers, self.nbytes or 0)


class UnsettledDate(Generation):
    """A version by a date that another version can still get: the object was stored in the last seconds, or the server does not say when
    it answers. Equal tokens mean equal dates and sizes, and no more.
    """

    __slots__ = ()

    @property
    def digest(self) -> int:
        return 0


def is_strong(generation: Generation) -> bool:
    """Return whether the version is an ETag that promises equal bytes."""
    return generation.token.startswith('"')


def generation_of(headers: Mapping[str, str], nbytes: int) -> Generation:
    """Return the version of an object of ``nbytes`` from the ``headers`` of an answer."""
    etag = headers.get("ETag", "").strip()
    stored = modified_seconds(headers)
    if etag.startswith(('"', "W/")):
        return Generation(etag, stored)
    if etag:
        return Generation(f"etag={etag}-{nbytes}", stored)  # not in quotes, as the standard has it: compared only
    if modified := headers.get("Last-Modified", "").strip():
        token = f"modified={modified}-{nbytes}"
        times = server_times(modified, headers.get("Date"))
        is_settled = times is not None and times.asked - times.stored >= _SETTLED_SECONDS
        return Generation(token, stored) if is_settled else UnsettledDate(token, stored)
    return unversioned(nbytes)


def is_encoded(headers: Mapping[str, str]) -> bool:
    """Return whether the server compressed the body although it was asked not to; sizes and ranges are of the compressed bytes then."""
    return headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity")


def total_of(headers: Mapping[str, str]) -> int | None:
    """Return the size of the object, from ``Content-Range``."""
    found = _TOTAL.fullmatch(headers.get("Content-Range", "").strip())
    return int(found[1]) if found else None


def _is_of_directory(response: Any) -> bool:
    """Return whether a server has sent the request for an object on to the directory of that name: it shows a page of it, and no object."""
    if not response.history:
        return False
    asked, answered = response.history[0].url.path, response.url.path
    return answered.endswith("/") and not asked.endswith("/") and answered[:-1].rpartition("/")[2] == asked.rpartition("/")[2]


async def take_head(response: Any) -> HTTPAnswer:
    """Return an answer that has no body. A directory is no object, and so absent."""
    headers = response.headers
    if _is_of_directory(response):
        return HTTPAnswer(404, headers)
    length = headers.get("Content-Length", "").strip()
    known = length.isdecimal() and not is_encoded(headers)
    return HTTPAnswer(response.status, headers, (), int(length) if known else None)


async def take_body(
    response: Any, wanted: Sequence[ByteRequest], most_nbytes: int | None, key: str, what: str, unasked_nbytes: int = UNASKED_NBYTES
) -> HTTPAnswer:
    """Return an answer to GET; of a whole object only the ``wanted`` parts are kept. ``what`` begins messages about the object ``key``.

    Raises ``TooMuch`` if the answer has more than was asked for, is a whole object of more than ``most_nbytes``, or of unknown length and
    more than ``unasked_nbytes`` too long. A directory is no object, and so absent.
    """
    headers = response.headers
    if _is_of_directory(response):
        return HTTPAnswer(404, headers)
    if response.status == 206:
        if is_encoded(headers):
            raise StorageError(
                f"{what}: the server sends ranges of a compressed object (Content-Encoding {headers['Content-Encoding']!r}) although it "
                "was asked for the object itself: store it without Content-Encoding"
            )
        most = most_of(wanted[0], headers.get("Content-Range"), response.content_length, most_nbytes, key)
        known = response.content_length is not None
        data = await response.read() if known else await exactly(response.content.iter_any(), most, what)
        return HTTPAnswer(206, headers, (memoryview(data),), total_of(headers))
    if response.status != 200:
        return HTTPAnswer(response.status, headers, (), total_of(headers))
    if is_encoded(headers) or response.content_length is None:
        parts, nbytes = await cut_unannounced(response.content.iter_any(), wanted, most_nbytes, what, unasked_nbytes)
        return HTTPAnswer(200, headers, parts, nbytes)
    nbytes = response.content_length
    check_most(nbytes, most_nbytes, what)
    return HTTPAnswer(200, headers, await cut(response.content.iter_any(), wanted, nbytes, what), nbytes)


# -- requests ----------------------------------------------------------------------------------------------------------


T = TypeVar("T")

ABSENT_STATUS = (404, 410)
_DENIED_STATUS = (401, 403, 407)
_AGAIN_STATUS = (408, 425, 429, 500, 502, 503, 504)

_OWN_HEADERS = frozenset({"accept-encoding", "if-match", "if-none-match", "if-range", "if-modified-since", "if-unmodified-since", "range"})


@dataclass(frozen=True, slots=True)
class Retries:
    """The rules for retries of a request that got no answer, or one that promises a better one later.

    The n-th pause is a random part of ``first_seconds * 2**n``, at most ``longest_seconds``; at least as long as the server's
    ``Retry-After`` asks for, as far as that is not longer than ``longest_seconds``.
    """

    attempts: int = 5
    first_seconds: float = 0.25
    longest_seconds: float = 10.0

    def pause(self, failures: int, retry_after: str | None) -> float:
        """Return the seconds to wait after so many ``failures``, at least one."""
        longest: float = min(self.first_seconds * 2**failures, self.longest_seconds)
        asked = float(retry_after) if retry_after is not None and retry_after.strip().isdecimal() else 0.0
        return max(longest * random.uniform(0.5, 1.0), min(asked, self.longest_seconds))


class _Broken(Exception):
    """The connection failed, or broke within an answer."""

    is_unreachable: bool = False


@dataclass
class HTTPFacts:
    """The observed behaviour of one server; ``None``: not seen yet. An answer that contradicts a fact corrects it."""

    ranges: bool | None = None
    """True if it sends ranges of objects, rather than the whole object instead."""
    suffixes: bool | None = None
    """True if it understands ranges that count from the end."""
    head: bool | None = None
    """True if HEAD shows the size."""
    if_match: bool = True
    """True if it matches the ETags that it gives."""
    warned: bool = False

    @property
    def lacks_suffixes(self) -> bool:
        """True if it sends ranges, but none that counts from the end."""
        return self.suffixes is False and self.ranges is not False

    def ignored_a_range(self, origin: str) -> None:
        """Note that an answer held the whole object, although a range of it was asked for."""
        self.ranges = False
        if not self.warned:
            self.warned = True
            warnings.warn(
                f"{origin} ignores byte ranges and sends whole objects: reading a chunk costs the whole shard there. Serve the data "
                "from a server that supports range requests, or copy it first",
                RuntimeWarning,
                stacklevel=2,
            )


_facts: dict[str, HTTPFacts] = {}


def facts_of(origin: str) -> HTTPFacts:
    return _facts.setdefault(origin, HTTPFacts())


def forget_facts() -> None:
    """Forget all facts, so that they are learned again; for tests, and after a server was reconfigured."""
    _facts.clear()


class HTTPClient:
    """Requests for the objects below ``root``; at most ``concurrency`` at once.

    The query of ``root``, if any, goes with every request: tokens for a whole container are given in this way.
    """

    def __init__(self, fs: Any, root: str, concurrency: int, retries: Retries) -> None:
        parts = urlsplit(root)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InvalidInput(f"{redacted(root)!r} is not a URL of HTTP: it needs http:// or https:// and a host")
        if parts.fragment:
            raise InvalidInput(f"{redacted(root)!r} has a fragment (#…), which is never sent to a server: leave it out, or write # as %23")
        self.fs = fs
        self.retries = retries
        self.bound = Bound(concurrency)
        self._base = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
        self._query = parts.query
        self.root = self._base + (f"?{self._query}" if self._query else "")
        self.origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        """The server; what is learned about it is kept under this name."""
        self.sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    @property
    def url(self) -> str:
        return redacted(self.root)

    def url_of(self, key: str) -> str:
        """Return the URL of ``key``, or of the page of a directory, whose ``key`` is ``""`` or ends with ``/``.

        Each character stands for itself, so ``%`` and ``?`` are quoted.
        """
        return f"{self._base}/{quote(key)}" + (f"?{self._query}" if self._query else "")

    def _request_options(self, headers: Mapping[str, str]) -> dict[str, Any]:
        options = dict(self.fs.kwargs)
        theirs = {name: value for name, value in dict(options.pop("headers", None) or {}).items() if name.lower() not in _OWN_HEADERS}
        options["headers"] = {**theirs, "Accept-Encoding": "identity", **headers}
        return {"allow_redirects": True, **options, "raise_for_status": False}

    @asynccontextmanager
    async def _answer(self, method: str, url: str, headers: Mapping[str, str]) -> AsyncIterator[Any]:
        """Yield the answer to one request; exceptions of aiohttp, here or in the body of the ``with``, are translated into ours."""
        try:
            session = await self.fs.set_session()
            async with session.request(method, self.fs.encode_url(url), **self._request_options(headers)) as response:
                yield response
        except ShardStoreError:
            raise
        except Exception as exc:
            names = {base.__name__ for base in type(exc).__mro__ if base.__module__.partition(".")[0] == "aiohttp"}
            has_no_whole_answer = isinstance(exc, OSError | TimeoutError | asyncio.IncompleteReadError)
            if has_no_whole_answer or names & {"ClientConnectionError", "ClientPayloadError"}:
                broken = _Broken(f"{type(exc).__name__}: {redacted(str(exc))}".rstrip(": "))
                broken.is_unreachable = is_unreachable(exc)
                raise broken from shown_cause(exc)
            if "ClientError" in names or isinstance(exc, TypeError):  # a redirect without end, or an option that aiohttp does not know
                raise StorageError(
                    f"{method} of {redacted(url)!r} failed: {type(exc).__name__}: {redacted(str(exc))}. "
                    "Check the address, and the options of the filesystem"
                ) from shown_cause(exc)
            raise

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        what: str,
        take: Callable[[Any], Awaitable[T]],
        accept: tuple[int, ...] = (),
    ) -> T:
        """Make a request, and return what ``take`` makes of the answer, whose status is one of success or one of ``accept``.

        The request is repeated if there was no whole answer, or one that asks for that. ``what`` completes "… failed" in messages.

        Raises:
            AccessDenied: status 401, 403 or 407.
            RequestFailed: any other status, or no answer.
        """
        failures = 0
        async with self.bound.slot():
            while True:
                retry_after = None
                status = None
                try:
                    async with self._answer(method, url, headers) as response:
                        status = response.status
                        if 200 <= status < 300 or status in accept:
                            return await take(response)
                        reason = f"the server answered {status} {response.reason or ''}".rstrip()
                        retry_after = response.headers.get("Retry-After")
                        cause: _Broken | None = None
                except _Broken as exc:
                    status, reason, cause = None, str(exc), exc
                failures += 1
                if (status is not None and status not in _AGAIN_STATUS) or failures >= self.retries.attempts:
                    if cause is not None and cause.is_unreachable:
                        lost = RequestFailed(f"{what} in {self.url}: {self.origin} cannot be reached: {CHECK_ADDRESS} ({reason})")
                        lost.is_unreachable = True
                        raise lost from cause
                    raise self._refusal(status, f"{what} in {self.url}", reason, failures) from cause
                await self.sleep(self.retries.pause(failures, retry_after))

    def _refusal(self, status: int | None, what: str, reason: str, failures: int) -> StorageError:
        if status in _DENIED_STATUS:
            denied = AccessDenied(
                f"{what}: {reason}. Some servers give the same answer for what does not exist. Credentials are given as "
                f"{storage_option('https', 'headers', {'Authorization': UNSAID})} or "
                f"{storage_option('https', 'client_kwargs', {'auth': UNSAID})}"
            )
            denied.status = status
            return denied
        error = RequestFailed(f"{what} failed: {reason}" + (f" ({failures} attempts)" if failures > 1 else ""))
        error.status = status
        return error


# -- index pages: the links to children --------------------------------------------------------------------------------


_NO_PAGE_STATUS = (400, 403)
_MOST_PAGE_NBYTES = 256 << 20  # some millions of links


def _known(charset: str | None) -> str:
    """Return the name of an encoding that Python knows."""
    try:
        return codecs.lookup(charset or "utf-8").name
    except LookupError:
        return "utf-8"


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def children(page: str, url: str) -> list[str]:
    """Return the names directly below ``page``, which is at ``url``, that its links point to; names of directories end with ``/``.

    They are sorted, each once. A link to another place, to a deeper level, or to the page itself in another order is no child.
    """
    parser = _Links()
    parser.feed(page)
    parser.close()
    base = urlsplit(url)
    directory = base.path if base.path.endswith("/") else base.path + "/"
    names: set[str] = set()
    for href in parser.found:
        try:
            link = urlsplit(urljoin(base._replace(path=directory).geturl(), href.strip()))
        except ValueError:  # not a URL
            continue
        if link.netloc != base.netloc or not unquote(link.path).startswith(unquote(directory)):
            continue
        name = unquote(link.path)[len(unquote(directory)) :]
        if name.rstrip("/") in ("", ".", "..") or "/" in name.removesuffix("/"):
            continue
        names.add(name)
    return sorted(names)


async def page(client: HTTPClient, directory: str) -> list[str]:
    """Return full keys of what the index page of ``directory`` links to; keys of directories end with ``/``.

    Raises ``Unsupported`` if the server makes no such pages.
    """
    names = await _names(client, directory)
    if names is None and directory and await _names(client, "") is not None:
        return []  # there are pages, but not of this one: it does not exist
    if names is None or (not names and not directory):
        raise Unsupported(
            f"listing {client.url}: this server makes no pages that list what is there. Open arrays by their path, or a hierarchy that "
            "has consolidated metadata with zarr.open_consolidated; if it is a bucket, use its own protocol (s3://, gs://)"
        )
    return [directory + name for name in names]


async def _names(client: HTTPClient, directory: str) -> list[str] | None:
    """Return the children that the page of ``directory`` shows; ``None`` if there is no such page."""

    async def take(response: Any) -> list[str] | None:
        if response.status != 200 or response.content_type not in ("text/html", "application/xhtml+xml"):
            return None
        page = await exactly(response.content.iter_any(), _MOST_PAGE_NBYTES, f"listing {directory!r}")
        return children(page.decode(_known(response.charset), "replace"), str(response.url))

    return await client.request(
        "GET",
        client.url_of(directory),
        {},
        f"listing {directory!r}" if directory else "listing what is there",
        take,
        (*ABSENT_STATUS, *_NO_PAGE_STATUS),
    )
