"""Requests below one URL through the user's fsspec HTTP filesystem: its session, headers and credentials.

Requests ask for the identity encoding, so that ranges are ranges of the object. Redirects are followed; the last answer counts. Errors
are translated here, once. Nothing of aiohttp is imported: its exceptions are recognised by their names.
"""

from __future__ import annotations

import asyncio
import random
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

from shardstore.errors import AccessDenied, InvalidInput, ShardStoreError, StorageError
from shardstore.model.redaction import redacted, shown_cause
from shardstore.storage.connection_errors import CHECK_ADDRESS, is_unreachable
from shardstore.storage.requests.bound import Bound
from shardstore.storage.requests.outcomes import RequestFailed

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


def _is_of_connection(exc: BaseException) -> bool:
    """Return whether ``exc`` says that there is no whole answer; an answer that cannot be parsed is another error."""
    if isinstance(exc, OSError | TimeoutError | asyncio.IncompleteReadError):
        return True
    names = {base.__name__ for base in type(exc).__mro__ if base.__module__.partition(".")[0] == "aiohttp"}
    return bool(names & {"ClientConnectionError", "ClientPayloadError"})


def _is_of_client(exc: BaseException) -> bool:
    return any(base.__name__ == "ClientError" and base.__module__.partition(".")[0] == "aiohttp" for base in type(exc).__mro__)


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
            if _is_of_connection(exc):
                broken = _Broken(f"{type(exc).__name__}: {redacted(str(exc))}".rstrip(": "))
                broken.is_unreachable = is_unreachable(exc)
                raise broken from shown_cause(exc)
            if _is_of_client(exc) or isinstance(exc, TypeError):  # a redirect without end, or an option that aiohttp does not know
                raise StorageError(
                    f"{method} of {redacted(url)!r} failed: {type(exc).__name__}: {redacted(str(exc))}. "
                    "Check the address and the storage_options"
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
            return AccessDenied(
                f"{what}: {reason}. Some servers say so of what does not exist, too; credentials go into storage_options, as "
                "headers={'Authorization': …} or client_kwargs={'auth': …}"
            )
        error = RequestFailed(f"{what} failed: {reason}" + (f" ({failures} attempts)" if failures > 1 else ""))
        error.status = status
        return error
