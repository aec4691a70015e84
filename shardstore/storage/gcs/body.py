"""Bodies of uploads to GCS that can be sent again: ``multipart/related`` with the object's metadata and checksum in front.

The checksum is sent too, so that a server that checks it (Google's does) stores nothing if bytes were lost on the way.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import IO, Any

import google_crc32c

from shardstore.storage.requests.body import Body, groups

_STEP_BYTES = 1 << 20


def resource(full_key: str, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the object resource of a new version."""
    return {
        "name": full_key,
        "contentType": "application/octet-stream",
        # Otherwise GCS serves publicly readable objects from caches for an hour, also after they were replaced.
        "cacheControl": "no-cache",
        "metadata": dict(metadata),
    }


class Checksum:
    """CRC-32C in the form of the JSON API: four bytes, big-endian, in base64."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, view: memoryview | bytes) -> None:
        for start in range(0, len(view), _STEP_BYTES):  # the library takes nothing but bytes: copied a little at a time
            self._value = google_crc32c.extend(self._value, bytes(view[start : start + _STEP_BYTES]))

    def __str__(self) -> str:
        return base64.b64encode(self._value.to_bytes(4, "big")).decode("ascii")


class Unclosed(io.BytesIO):
    """Bytes to send, as a file that stays open: aiohttp closes what it has sent, but a retry needs it again."""

    def close(self) -> None:
        """Do nothing: it stays open, and is freed with its memory."""


class _UnclosedFile(io.FileIO):
    """A file to send that stays open, on a descriptor that its owner closes."""

    def close(self) -> None:
        """Do nothing: it stays open until its owner closes the descriptor."""


class _Envelope:
    """The envelope around the bytes in the request."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.checksum = Checksum()
        self._document = document
        self._boundary = uuid.uuid4().hex

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": f'multipart/related; boundary="{self._boundary}"'}

    def _head(self) -> bytes:
        """Return the part before the bytes; it has the same length whatever the checksum."""
        document = json.dumps({**self._document, "crc32c": str(self.checksum)})
        return (
            f"--{self._boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{document}\r\n"
            f"--{self._boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
        ).encode("ascii")

    def _tail(self) -> bytes:
        return f"\r\n--{self._boundary}--\r\n".encode("ascii")


class MemoryBody(_Envelope):
    """A body of pieces that are in memory; they are copied once."""

    def __init__(self, views: Sequence[memoryview | bytes], document: Mapping[str, Any]) -> None:
        super().__init__(document)
        for view in views:
            self.checksum.update(view)
        self._whole = b"".join([self._head(), *views, self._tail()])

    def start(self) -> io.BytesIO:
        """Return the request's body, from its start."""
        return Unclosed(self._whole)


class SpooledBody(_Envelope):
    """A body that went through a local file, which the caller opened and closes."""

    def __init__(self, file: IO[bytes], document: Mapping[str, Any]) -> None:
        super().__init__(document)
        self._file = file

    async def spool(self, body: Body, nbytes: int, key: str) -> None:
        """Write all of ``body`` to the file. Raises ``InvalidInput`` if it is not ``nbytes`` long."""
        await asyncio.to_thread(self._file.write, self._head())  # its room
        async for group in groups(body, nbytes, _STEP_BYTES, key):
            for view in group:
                self.checksum.update(view)
            await asyncio.to_thread(self._file.writelines, group)
        await asyncio.to_thread(self._file.write, self._tail())
        self._file.seek(0)
        self._file.write(self._head())
        self._file.flush()

    def start(self) -> io.FileIO:
        """Return the request's body, from its start."""
        body = _UnclosedFile(self._file.fileno(), "rb", closefd=False)
        body.seek(0)
        return body
