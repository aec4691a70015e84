"""Store one GCS object: by one request, or by a resumable upload for large ones."""

from __future__ import annotations

import asyncio
import logging
import re
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from shardstore.errors import ShardStoreError, StorageError, Unsupported
from shardstore.model.generation import Condition, Generation, IfGeneration, Unconditional
from shardstore.storage.gcs.client import (
    Checksum,
    GCSAnswer,
    GCSClient,
    MemoryBody,
    SpooledBody,
    Unclosed,
    can_match,
    condition_query,
    facts_of,
    probe_resumable,
    resource,
)
from shardstore.storage.requests.lost_answers import Failure, ObjectWrite
from shardstore.storage.requests.outcomes import WRITE_ID, RequestFailed
from shardstore.storage.requests.writes import Body, checked_views, failed, joined, parts

logger = logging.getLogger(__name__)

_ABORT_SECONDS = 5.0

_PERSISTED = re.compile(r"bytes=0-(\d+)")
_CANCELLED = 499  # Google's answer to an upload that was cancelled as was asked for
_CONDITION_PARAMETER = re.compile(r"(?<=[?&])ifGenerationMatch=\d+&?")


class _Write(ObjectWrite):
    """One write of one GCS object."""

    def __init__(self, client: GCSClient, key: str, nbytes: int, condition: Condition) -> None:
        if isinstance(condition, IfGeneration) and not can_match(condition.generation):
            raise failed(key, client.url)
        super().__init__(key, client.url, condition, client.head)
        self.client = client
        self.nbytes = nbytes
        self.what = f"writing {key!r}"
        self.checksum = Checksum()
        """That of the body, once all of it was seen."""

    @property
    def resource(self) -> dict[str, Any]:
        return resource(self.client.full_key(self.key), {WRITE_ID: self.write_id})

    async def stored(self, answer: GCSAnswer) -> Generation:
        """Return the version that this write made, from the answer to it.

        Raises:
            RequestFailed: neither the answer nor the object shows the version: as if the answer had been lost.
            StorageError: other bytes were stored.
        """
        checksum = self.checksum
        made: Mapping[str, Any] = {}
        with suppress(StorageError):  # no document: the object has to tell
            made = answer.json(self.what)
        if str(made.get("size", self.nbytes)) != str(self.nbytes) or made.get("crc32c", str(checksum)) != str(checksum):
            raise StorageError(
                f"{self.what}: {self.client.endpoint} stored other bytes than were sent (size {made.get('size')}, CRC-32C "
                f"{made.get('crc32c')}; sent were {self.nbytes} bytes, {checksum}). Write it again"
            )
        return Generation(str(made["generation"])) if made.get("generation") else await self.unnamed_version()

    def busy_error(self, exc: RequestFailed) -> StorageError:
        return StorageError(
            f"{exc}. GCS takes about one update a second of an object: write more of a shard at a time, or from fewer writers"
        )


async def put(client: GCSClient, key: str, body: Body, nbytes: int, condition: Condition) -> Generation:
    """Store a body that fits into memory by one request."""
    write = _Write(client, key, nbytes, condition)
    views = checked_views(body, nbytes, key) if isinstance(body, Sequence) else [await joined(body, nbytes, key)]
    return await _send_whole(write, MemoryBody(views, write.resource))


async def _send_whole(write: _Write, body: MemoryBody | SpooledBody) -> Generation:
    write.checksum = body.checksum
    query = {"uploadType": "multipart", **condition_query(write.condition)}
    return await write.carry_out(lambda: write.client.insert(write.what, query, headers=body.headers, data=body.start()))


async def put_large(client: GCSClient, key: str, body: Body, nbytes: int, condition: Condition) -> Generation:
    """Store a large body in bounded memory: in parts, or through a local file if parts cannot be made conditional."""
    write = _Write(client, key, nbytes, condition)
    if not isinstance(condition, Unconditional):
        facts = facts_of(client)
        if facts.resumable_conditions is None:
            facts.resumable_conditions = await probe_resumable(client)
        if not facts.resumable_conditions:
            return await _put_spooled(write, body)
    return await _put_resumable(write, body)


async def _put_spooled(write: _Write, body: Body) -> Generation:
    """Store the body by one conditional request from a temporary local file, for servers that ignore conditions on resumable uploads."""
    if write.nbytes > write.client.max_spooled_bytes:
        raise Unsupported(
            f"{write.client.endpoint} ignores conditions on resumable uploads, and {write.key!r} ({write.nbytes} bytes) is too large "
            "for a single request: use smaller shards there"
        )
    with tempfile.TemporaryFile() as file:
        spooled = SpooledBody(file, write.resource)
        await spooled.spool(body, write.nbytes, write.key)
        return await _send_whole(write, spooled)


# -- resumable uploads -------------------------------------------------------------------------------------------------


async def _put_resumable(write: _Write, body: Body) -> Generation:
    client = write.client
    query = {"uploadType": "resumable", "name": client.full_key(write.key), **condition_query(write.condition)}
    headers = {"X-Upload-Content-Type": "application/octet-stream", "X-Upload-Content-Length": str(write.nbytes)}
    try:
        started = await client.insert(write.what, query, document=write.resource, headers=headers)
    except RequestFailed as exc:
        raise await _not_sent(write, exc) from exc
    location = started.headers.get("Location")
    if not location:
        raise StorageError(f"{write.what}: {client.endpoint} started a resumable upload, but did not say at which address")
    # Until its last byte has arrived the old object stays.
    upload = _ResumableUpload(write, location)
    try:
        return await upload.send_all(body)
    except BaseException:
        await asyncio.shield(asyncio.ensure_future(upload.abort()))
        raise


async def _not_sent(write: _Write, exc: RequestFailed) -> ShardStoreError:
    """Return the error to raise if not all bytes have been sent, so that nothing can have been stored."""
    match write.failure(exc):
        case Failure.REFUSED:
            return failed(write.key, write.client.url)
        case Failure.BUSY:
            return write.busy_error(exc)
        case _:
            return exc


async def _with_last(pieces: AsyncIterator[bytes]) -> AsyncIterator[tuple[bytes, bool]]:
    """Yield each piece, and whether it is the last one: that is known, and the body's length checked, when there is no further piece."""
    held: bytes | None = None
    async for piece in pieces:
        if held is not None:
            yield held, False
        held = piece
    if held is not None:
        yield held, True


class _ResumableUpload:
    """A session of one upload, which sends its parts one after the other."""

    def __init__(self, write: _Write, location: str) -> None:
        self._write = write
        self._location = location
        self._offset = 0

    async def send_all(self, body: Body) -> Generation:
        write = self._write
        async for part, is_last in _with_last(parts(body, write.nbytes, write.client.upload_part_bytes, write.key)):
            self._write.checksum.update(part)
            if (stored := await self._send(part, is_last)) is not None:
                return stored
        raise StorageError(f"{write.what}: the server has all {write.nbytes} bytes but does not end the upload")

    async def _send(self, part: bytes, is_last: bool) -> Generation | None:
        """Send one part, and its rest again if the server kept less; return the version that the last part makes."""
        write = self._write
        while part:
            end = self._offset + len(part)
            headers = {"Content-Range": f"bytes {self._offset}-{end - 1}/{write.nbytes}", "Content-Type": "application/octet-stream"}
            if is_last:
                headers["X-Goog-Hash"] = f"crc32c={write.checksum}"
            what = f"writing a part of {write.key!r}"
            try:
                answer = await write.client.request("PUT", self._location, what=what, headers=headers, data=Unclosed(part))
                if is_last and answer.status != 308:
                    return await write.stored(answer)
            except RequestFailed as exc:
                if not is_last:
                    raise await _not_sent(write, exc) from exc
                if (stored := await write.judge(exc)) is not None:
                    return stored
                continue
            if answer.status != 308:
                raise StorageError(f"{write.what}: the server ended the upload at {end} of {write.nbytes} bytes: write it again")
            matched = _PERSISTED.fullmatch(answer.headers.get("Range", ""))
            kept = (int(matched[1]) + 1 if matched else 0) - self._offset
            if not 0 < kept <= len(part):
                raise StorageError(f"{write.what}: of bytes {self._offset} to {end} the server kept {answer.headers.get('Range')!r}")
            self._offset += kept
            part = part[kept:]
        return None

    async def abort(self) -> None:
        """Tell the server to forget the parts. Without that it forgets them after a week."""
        what = f"aborting the upload of {self._write.key!r}"
        location = _CONDITION_PARAMETER.sub("", self._location)
        try:
            async with asyncio.timeout(_ABORT_SECONDS):
                await self._write.client.request("DELETE", location, what=what)
        except (StorageError, TimeoutError) as exc:
            if getattr(exc, "status", None) not in (_CANCELLED, 404, 410):
                logger.warning(
                    "an unfinished resumable upload of %r stays in %s: %s", self._write.key, self._write.client.url, str(exc) or "no answer"
                )
