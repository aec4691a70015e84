"""Answers of an HTTP server: the version that one speaks of, and the bytes that it holds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardstore.errors import StorageError
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteRequest
from shardstore.storage.inferred_versions import modified_seconds, unversioned
from shardstore.storage.requests.outcomes import server_times
from shardstore.storage.requests.ranged_reads import UNASKED_NBYTES, check_most, cut, cut_unannounced, exactly, most_of

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
