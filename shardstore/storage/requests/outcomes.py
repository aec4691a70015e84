"""Requests to a server: the bound on how many are made at once, and the answers that clients of object stores give about an object, and
about a request that failed.

Nothing of aiohttp, botocore or requests is imported: the classes of their exceptions are recognised by name.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from shardstore.errors import NO_SUCH_BUCKET, StorageError
from shardstore.model.generation import Generation
from shardstore.storage.base import ServerTimes


class Bound:
    """At most ``limit`` holders at once: ``async with bound.slot(): …``.

    A semaphore belongs to one loop, but a storage outlives it: after a fork fsspec starts another loop, which needs another
    semaphore.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a bound of {limit} would let nothing through")
        self.limit = limit
        self._semaphore: asyncio.Semaphore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def slot(self) -> asyncio.Semaphore:
        """Return the semaphore of the running loop, to be entered."""
        loop = asyncio.get_running_loop()
        if self._semaphore is None or self._loop is not loop:
            self._semaphore, self._loop = asyncio.Semaphore(self.limit), loop
        return self._semaphore

    def __reduce__(self) -> tuple[type[Bound], tuple[int]]:
        return Bound, (self.limit,)


# aiohttp's, botocore's and requests' words for it; the rest are Python's own.
_UNREACHABLE = frozenset(
    {"ClientConnectorError", "ConnectionTimeoutError"}
    | {"EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError"}
    | {"ConnectTimeout", "ProxyError", "gaierror", "ConnectionRefusedError"}
)
_OF_REQUESTS = "ConnectionError"  # elsewhere the name stands for connections that broke, too

CHECK_ADDRESS = "check the network, and host and port of the URL"


def is_unreachable(exc: BaseException) -> bool:
    """Return whether no connection was made. A connection that broke, or an answer that was a refusal, is another error."""
    return any(
        base.__name__ in _UNREACHABLE or (base.__name__ == _OF_REQUESTS and base.__module__.partition(".")[0] == "requests")
        for error in (exc, exc.__cause__)
        if error is not None
        for base in type(error).__mro__
    )


WRITE_ID = "shardstore-write-id"
"""Name, in an object's user metadata, of the id of the write that made it."""

PROBE_PREFIX = ".shardstore-probe-"
"""The prefix of the names of empty objects that find out what a server honours; one is left if its process dies before it is removed."""


def probe_key() -> str:
    """Return a new name of such an object."""
    return f"{PROBE_PREFIX}{uuid.uuid4().hex}"


class RequestFailed(StorageError):
    """A request that the server refused, or whose answer did not come (``status`` is ``None`` then).

    The storages of this room judge it. For every other room it is a ``StorageError``.
    """

    @property
    def is_absent(self) -> bool:
        """True if the server says that there is no such object, or not in the version that the request names."""
        return self.status == 404 and self.code != NO_SUCH_BUCKET

    @property
    def is_lost(self) -> bool:
        """True if the answer never came, or does not show if the request was carried out."""
        return self.status is None or self.status == 408 or (self.status >= 500 and self.status != 501)

    @property
    def is_busy(self) -> bool:
        """True if the server did nothing, and asks to try again: another request was running, or there were too many."""
        return self.status in (409, 429)


@dataclass(frozen=True, slots=True)
class Head:
    """The version and size that a look at an object shows."""

    generation: Generation
    nbytes: int
    write_id: str | None


def canonical_etag(etag: str) -> str:
    """Return the ETag in quotes, as headers have it: some servers leave them out in some answers. Weak ones stay unchanged."""
    return etag if etag.startswith("W/") else '"' + etag.strip('"') + '"'


def generation_of(facts: Mapping[str, Any], key: str) -> Generation:
    """Return the version that an answer is about, from its ETag."""
    etag = facts.get("ETag")
    if not etag:
        raise StorageError(f"the server's answer for {key!r} has no ETag: its versions cannot be distinguished")
    return version_of(etag, facts)


def version_of(etag: str, facts: Mapping[str, Any]) -> Generation:
    """Return the version with this ETag; ``facts`` of the object, in an answer or a listing, may say when it was stored."""
    return Generation(canonical_etag(etag), modified_seconds(facts))


def etag_condition(generation: Generation | None) -> str | None:
    """Return the ETag on whose condition a version is read; ``None``: the answer has to be compared, as a weak ETag never matches."""
    return None if generation is None or generation.token.startswith("W/") else generation.token


def refuse_encoded(encoding: str | None, key: str, *harmless: str) -> None:
    """Raise ``StorageError`` if an object is stored in an encoding, so that its bytes differ from those that are counted."""
    if (encoding or "identity") not in ("identity", *harmless):
        raise StorageError(
            f"reading {key!r}: its stored bytes are compressed, so ranges of it cannot be read. Store it without Content-Encoding "
            f"{encoding}"
        )


def server_times(last_modified: str | None, date: str | None) -> ServerTimes | None:
    """Return the times in the headers of an answer (RFC 9110, sections 6.6.1 and 8.8.2); ``None`` if they have none."""
    try:
        return ServerTimes(parsedate_to_datetime(last_modified or "").timestamp(), parsedate_to_datetime(date or "").timestamp())
    except ValueError:
        return None


_TIME_NAMES = ("LastModified", "Last-Modified", "updated", "last_modified", "mtime", "modified", "timeCreated")


def modified_ns(info: Mapping[str, Any]) -> int | None:
    """Return when an object was last modified by its metadata ``info``, in nanoseconds since the epoch; ``None`` if they do not say so."""
    value = next((info[name] for name in _TIME_NAMES if info.get(name) not in (None, "")), None)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value) if value[:1].isdigit() else parsedate_to_datetime(value)
        except ValueError:
            return None
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    return None if not isinstance(value, int | float) else int(value * 10**9)


def modified_seconds(info: Mapping[str, Any]) -> float | None:
    """Return the same in seconds."""
    found = modified_ns(info)
    return None if found is None else found / 10**9
