"""Answers to gcsfs's requests with bounded bodies: no more is read than was asked for.

gcsfs reads the whole body of any answer, in ``_request``. For one request it is replaced by a copy of itself, with the same
credentials, options and connections, whose session returns bounded answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from shardstore.model.ranges import ByteRequest
from shardstore.storage.requests.ranged_reads import REFUSAL_NBYTES, received

_ENCODINGS = ("X-Goog-Stored-Content-Encoding", "Content-Encoding")


def encoding_of(headers: Any) -> str | None:
    """Return the encoding that makes the received bytes differ from the counted ones; ``None`` if there is none."""
    return next((headers[name] for name in _ENCODINGS if headers.get(name, "identity") != "identity"), None)


@dataclass(slots=True)
class Allowed:
    """The allowed answers to a request for bytes of the object ``key``: ``request`` of it, or all of it, up to ``most_nbytes``."""

    request: ByteRequest
    most_nbytes: int | None
    key: str
    unasked_nbytes: int
    part: tuple[memoryview, int] | None = None
    """The wanted part of a whole object that came although less was asked for, and the object's size. The body is empty then."""


class _BoundedAnswer:
    """An answer of aiohttp with a bounded body."""

    def __init__(self, answer: Any, allowed: Allowed) -> None:
        self._answer = answer
        self._allowed = allowed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._answer, name)

    async def read(self) -> bytes:
        answer, allowed = self._answer, self._allowed
        blocks = answer.content.iter_any()
        allowed.part = None
        if answer.status not in (200, 206):
            return await _first(blocks, REFUSAL_NBYTES)
        if encoding_of(answer.headers) is not None:
            return b""  # it is refused for that
        content_range, nbytes = answer.headers.get("Content-Range"), answer.content_length
        body = await received(
            *(allowed.request, answer.status, content_range, nbytes, answer.read, blocks),
            *(allowed.most_nbytes, allowed.key, allowed.unasked_nbytes),
        )
        if isinstance(body, bytes):
            return body
        allowed.part = body
        return b""


async def _first(blocks: AsyncIterator[bytes], nbytes: int) -> bytes:
    body = bytearray()
    async for block in blocks:
        body += block
        if len(body) >= nbytes:
            break
    return bytes(body[:nbytes])


class _BoundedSession:
    """A session of aiohttp with bounded answers."""

    def __init__(self, session: Any, allowed: Allowed) -> None:
        self._session = session
        self._allowed = allowed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    @asynccontextmanager
    async def request(self, *arguments: Any, **options: Any) -> AsyncIterator[_BoundedAnswer]:
        async with self._session.request(*arguments, **options) as answer:
            yield _BoundedAnswer(answer, self._allowed)


async def bounded(fs: Any, allowed: Allowed) -> Any:
    """Return ``fs``, a ``gcsfs.GCSFileSystem``, for one request whose answers are bounded by ``allowed``."""
    await fs._set_session()
    copied = object.__new__(type(fs))  # not by its class, which would look for credentials
    vars(copied).update(vars(fs))
    copied._session = _BoundedSession(fs._session, allowed)
    return copied
