"""Answers for the value of one key: ranges and preconditions, one version in each response, in pieces where it is long.

::

    If-Match        read that version only; else 412        If-Range       read that version, or all of what is there now
    If-None-Match   look at the version first; 304          Range          206, 416

Specification: RFC 9110, sections 13 and 14.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from email.utils import formatdate

from shardstore.adapters.read_views import ValueRead, VersionedValue, VersionGone
from shardstore.apps.server.buckets import Bucket, Moved
from shardstore.apps.server.http_rules import if_range, parse_entity_tags, parse_range, satisfied
from shardstore.errors import NotFound, Unsupported
from shardstore.format.v2.keys import is_document
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING, ByteOffset, ByteRange, ByteRequest, BytesLike, ByteSuffix
from shardstore.model.words import size

PIECE_NBYTES = 8 * 2**20
"""A longer value is read and sent in pieces of this length."""

MOST_AT_ONCE_NBYTES = 64 * 2**20
"""Bytes that are read at once, where a storage gives no versions by which several reads could be of one."""

_ATTEMPTS = 10
_MOST_SHOWN = 100  # characters of what a client says, in messages

Headers = list[tuple[bytes, bytes]]


class Refusal(Exception):
    """The request is answered by an error, with this status, message and further headers."""

    def __init__(self, status: int, message: str, headers: Headers | None = None, code: str = "") -> None:
        """``code``: the word of S3 for it, if it is not that of the status."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or []


def shown(text: str) -> str:
    """Return, for a message, what a client has sent: in quotes, cut, and without control characters."""
    return repr(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…")


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What a request asks for: the texts of its headers, ``None`` where there is none."""

    is_head: bool = False
    if_match: str | None = None
    if_none_match: str | None = None
    if_range: str | None = None
    range: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A response: all of its body, or the first piece of several."""

    status: int
    headers: Headers
    body: BytesLike = b""
    rest: AsyncGenerator[BytesLike, None] | None = None


class _Again(Exception):
    """The version that was looked at is gone: decide again what is to be sent."""


async def answer(bucket: Bucket, key: str, asked: ReadRequest, cache_control: bytes, piece_nbytes: int = PIECE_NBYTES) -> Reply:
    """Reply GET, or HEAD, of a key that has been checked.

    Raises:
        NotFound: there is no such value.
        Refusal: a precondition does not hold (412), or the range cannot be satisfied (416).
        Moved: it kept changing while it was read.
        ShardStoreError: it could not be read.
    """
    for _ in range(_ATTEMPTS):
        try:
            return await _Attempt(bucket, key, asked, cache_control, piece_nbytes).answer()
        except _Again:
            continue
    raise Moved(key)


@dataclass(slots=True)
class _Attempt:
    """One decision about a request. ``pinned``: the version that is sent; ``is_asked_for`` if the client has asked for no other."""

    bucket: Bucket
    key: str
    asked: ReadRequest
    cache_control: bytes
    piece_nbytes: int
    pinned: Generation | None = None
    is_asked_for: bool = False

    async def answer(self) -> Reply:
        asked = self.asked
        if asked.if_match is not None:
            await self._match(asked.if_match)
        if asked.if_none_match is not None and (unchanged := await self._not_modified(asked.if_none_match)) is not None:
            return unchanged
        request = None if asked.is_head or asked.range is None else parse_range(asked.range)
        if request is not None and asked.if_range is not None and not await self._in_range_of(asked.if_range):
            request = None
        if asked.is_head:
            found = await self._found(())
            return Reply(200, self._headers(found.version, found.nbytes))
        return await self._send(request)

    # -- preconditions -------------------------------------------------------------------------------------------------

    def _failed(self) -> Refusal:
        return Refusal(412, f"{self.key!r} is not the version that the request asks for: ask again without If-Match")

    async def _match(self, text: str) -> None:
        tags = parse_entity_tags(text)
        if tags.any:
            return
        self.is_asked_for = True
        if tags.only is not None and (known := self.bucket.generation(tags.only)) is not None:
            self.pinned = known
            return
        found = await self.bucket.look(self.key)
        if found is None or not tags.match_strongly(self.bucket.etag(found.version)):
            raise self._failed()
        self.pinned = found.version

    async def _not_modified(self, text: str) -> Reply | None:
        found = await self.bucket.look(self.key)
        if found is None:
            raise self._absent()
        if self.pinned is not None and found.version != self.pinned:
            raise self._failed()
        etag = self.bucket.etag(found.version)
        if parse_entity_tags(text).match_weakly(etag):
            return Reply(304, [*self._etag(found.version), (b"cache-control", self.cache_control)])
        self.pinned = found.version
        return None

    async def _in_range_of(self, text: str) -> bool:
        """Return whether the range is to be sent: ``If-Range`` names the version that is there, which is pinned then."""
        etag = if_range(text)
        if etag is None:
            return False
        found = await self.bucket.look(self.key)
        if found is None:
            raise self._absent()
        if self.bucket.etag(found.version) != etag:
            return False
        if self.pinned is not None and found.version != self.pinned:
            raise self._failed() if self.is_asked_for else _Again
        self.pinned = found.version
        return True

    def _absent(self) -> Exception:
        if self.asked.if_match is not None:
            return self._failed()
        return NotFound(f"there is no {self.key!r}")

    # -- what is sent --------------------------------------------------------------------------------------------------

    async def _found(self, ranges: tuple[ByteRequest, ...]) -> VersionedValue:
        try:
            found = await self.bucket.read(ValueRead(self.key, ranges, self.pinned))
        except VersionGone:
            raise self._failed() if self.is_asked_for else _Again from None
        if found is None:
            raise self._absent()
        return found

    async def _send(self, request: ByteRequest | None) -> Reply:
        if isinstance(request, ByteSuffix) and request.nbytes > self.piece_nbytes:
            found = await self._found(())
            self.pinned = found.version
            request = ByteRange(max(0, found.nbytes - request.nbytes), found.nbytes)
        found = await self._found((self._first_piece(request),))
        if not found.has_known_size:
            self.pinned = found.version
            found = await self._found((EVERYTHING,))
            found = replace(found, nbytes=len(found.buffers[0]))
            inside = self._inside(request, found.nbytes)
            return self._answer(request, found, inside, found.buffers[0][inside.start : inside.end], None)
        inside = self._inside(request, found.nbytes)
        if inside.end - inside.start > self.piece_nbytes and self.bucket.etag(found.version) is None:
            return await self._at_once(request, inside)
        (piece,) = found.buffers
        if len(piece) != min(inside.end - inside.start, self.piece_nbytes):
            raise _Again
        rest = None
        if inside.start + len(piece) < inside.end:
            rest = self._pieces(found.version, inside.start + len(piece), inside.end)
        return self._answer(request, found, inside, piece, rest)

    async def _at_once(self, request: ByteRequest | None, inside: ByteRange) -> Reply:
        """Return a long part of a value by one read: where the storage gives no versions, a second one could be of another version."""
        nbytes = inside.end - inside.start
        if nbytes > MOST_AT_ONCE_NBYTES:
            raise Unsupported(
                f"{self.key!r}: its storage has no object versions, so {size(nbytes)} would have to be read by one request: "
                f"ask for ranges of at most {size(MOST_AT_ONCE_NBYTES)}"
            )
        found = await self._found((inside,))
        if len(found.buffers[0]) != nbytes:
            raise _Again
        return self._answer(request, found, inside, found.buffers[0], None)

    def _first_piece(self, request: ByteRequest | None) -> ByteRequest:
        most = self.piece_nbytes
        match request:
            case ByteRange(start, end):
                return ByteRange(start, min(end, start + most))
            case ByteOffset(start):
                return ByteRange(start, start + most)
            case ByteSuffix():
                return request
            case None:
                return ByteRange(0, most)

    def _inside(self, request: ByteRequest | None, nbytes: int) -> ByteRange:
        if request is None or _is_of_nothing(request, nbytes):
            return ByteRange(0, nbytes)
        inside = satisfied(request, nbytes)
        if inside is None:
            message = f"{self.key!r} has {nbytes} bytes, and the range that is asked for has none of them"
            raise Refusal(416, message, [(b"content-range", b"bytes */%d" % nbytes)])
        return inside

    def _answer(
        self,
        request: ByteRequest | None,
        found: VersionedValue,
        inside: ByteRange,
        piece: memoryview,
        rest: AsyncGenerator[BytesLike, None] | None,
    ) -> Reply:
        headers = self._headers(found.version, inside.end - inside.start)
        if request is None or _is_of_nothing(request, found.nbytes):
            return Reply(200, headers, piece, rest)
        headers.append((b"content-range", b"bytes %d-%d/%d" % (inside.start, inside.end - 1, found.nbytes)))
        return Reply(206, headers, piece, rest)

    async def _pieces(self, generation: Generation, start: int, end: int) -> AsyncGenerator[BytesLike, None]:
        """Yield the rest of one version, the next piece being read while one is sent. Raises ``Moved`` if it is gone."""

        async def read(at: int) -> memoryview:
            wanted = ByteRange(at, min(end, at + self.piece_nbytes))
            try:
                found = await self.bucket.read(ValueRead(self.key, (wanted,), generation))
            except VersionGone:
                raise Moved(self.key) from None
            if found is None or len(found.buffers[0]) != wanted.end - wanted.start:
                raise Moved(self.key)
            return found.buffers[0]

        reading = asyncio.ensure_future(read(start))
        try:
            for at in range(start, end, self.piece_nbytes):
                piece = await reading
                following = at + self.piece_nbytes
                if following < end:
                    reading = asyncio.ensure_future(read(following))
                yield piece
        finally:
            reading.cancel()

    def _etag(self, generation: Generation) -> Headers:
        etag = self.bucket.etag(generation)
        return [] if etag is None else [(b"etag", etag.encode())]

    def _headers(self, generation: Generation, nbytes: int) -> Headers:
        modified = formatdate(self.bucket.modified(generation), usegmt=True)
        return [
            (b"content-type", b"application/json" if is_document(self.key) else b"application/octet-stream"),
            (b"content-length", b"%d" % nbytes),
            (b"accept-ranges", b"bytes"),
            (b"cache-control", self.cache_control),
            (b"last-modified", modified.encode()),
            *self._etag(generation),
        ]


def _is_of_nothing(request: ByteRequest, nbytes: int) -> bool:
    """Return whether a suffix of an empty value is asked for, which is the empty value, and no range can say so."""
    return not nbytes and isinstance(request, ByteSuffix) and request.nbytes > 0
