"""Storing one GCS object: by one request, or by a resumable upload for large ones, and what to do when the answer is lost.

gcsfs sends an upload again when its answer was lost, and a conditional one then fails against its own success. So every write
carries an id in the object's custom metadata, and after any refusal or lost answer a look tells whose object is there.
"""

from __future__ import annotations

import asyncio
import logging
import re
import tempfile
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from shardstore.errors import StorageError, Unsupported, WriteOutcomeUnknown
from shardstore.model.generation import Condition, Generation, IfAbsent, IfGeneration, Unconditional
from shardstore.storage.body import Body, checked_views, joined, parts
from shardstore.storage.conditions import failed
from shardstore.storage.gcs_body import Checksum, MemoryBody, SpooledBody, Unclosed, resource
from shardstore.storage.gcs_client import WRITE_ID, Answer, GCSClient, Head, RequestFailed, can_match
from shardstore.storage.gcs_probe import facts_of, probe_resumable

logger = logging.getLogger(__name__)

PART_BYTES = 16 << 20
"""Of a resumable upload, which holds two of them in memory. A multiple of 256 KiB, as GCS asks for."""

_MAX_SPOOLED_BYTES = 5 << 30
_ABORT_SECONDS = 5.0

_PERSISTED = re.compile(r"bytes=0-(\d+)")
_CONDITION_PARAMETER = re.compile(r"(?<=[?&])ifGenerationMatch=\d+&?")


class _Write:
    """One write of one object: its id, its condition, and the judgement of its answers."""

    def __init__(self, client: GCSClient, key: str, nbytes: int, condition: Condition) -> None:
        if isinstance(condition, IfGeneration) and not can_match(condition.generation):
            raise failed(key, client.url)
        self.client = client
        self.key = key
        self.nbytes = nbytes
        self.condition = condition
        self.write_id = uuid.uuid4().hex
        self.what = f"writing {key!r}"

    @property
    def resource(self) -> dict[str, Any]:
        return resource(self.client.full_key(self.key), {WRITE_ID: self.write_id})

    @property
    def conditions(self) -> dict[str, str]:
        match self.condition:
            case IfAbsent():
                return {"ifGenerationMatch": "0"}
            case IfGeneration(generation):
                return {"ifGenerationMatch": generation.token}
            case Unconditional():
                return {}

    async def stored(self, answer: Answer, checksum: Checksum) -> Generation:
        """The version that this write made, from the answer to it. Raises ``StorageError`` where other bytes were stored."""
        made: Mapping[str, Any] = answer.json(self.what)
        if str(made.get("size", self.nbytes)) != str(self.nbytes) or made.get("crc32c", str(checksum)) != str(checksum):
            raise StorageError(
                f"{self.what}: {self.client.endpoint} stored other bytes than were sent (size {made.get('size')}, CRC-32C "
                f"{made.get('crc32c')}; sent were {self.nbytes} bytes, {checksum}). Write it again"
            )
        if made.get("generation"):
            return Generation(str(made["generation"]))
        head = await self.client.head(self.key)
        if head is not None and head.write_id == self.write_id:
            return head.generation
        return Generation(f"replaced-{self.write_id}")  # stored, and replaced by another writer since: matches nothing any more

    async def judge(self, exc: RequestFailed, *, all_sent: bool = True) -> Generation:
        """The version that was stored in spite of ``exc``; without ``all_sent`` that cannot be.

        Raises:
            ConditionFailed: the condition does not hold, and the object is not ours. (Where ours was stored, its answer lost, the
                request sent again, *and* another writer has replaced the object since, that looks the same.)
            StorageError: refused; nothing was stored.
            WriteOutcomeUnknown: it may have been stored.
        """
        refused = exc.status == 412 and not isinstance(self.condition, Unconditional)
        lost = all_sent and (exc.status is None or exc.status == 408 or exc.status >= 500)
        if not refused and not lost and exc.status != 429:
            raise exc
        head = await self._look(exc, lost)
        if head is not None and head.write_id == self.write_id:
            logger.info("the write of %r was stored although its answer was: %s", self.key, exc)
            return head.generation
        if lost:
            raise WriteOutcomeUnknown(
                f"the answer to writing {self.key!r} to {self.client.url} was lost, and what is there now is not this write: "
                f"it may still be carried out, or have been replaced. {exc}"
            ) from exc
        if not refused:
            raise StorageError(
                f"{exc}. GCS takes about one update a second of an object: write more of a shard at a time, or from fewer writers"
            ) from exc
        if isinstance(self.condition, IfGeneration) and head is not None and head.generation == self.condition.generation:
            raise StorageError(f"{self.client.endpoint} refuses to match the generation that it gave for {self.key!r}") from exc
        raise failed(self.key, self.client.url) from exc

    async def _look(self, exc: RequestFailed, lost: bool) -> Head | None:
        try:
            return await self.client.head(self.key)
        except StorageError as head_error:
            if not lost and exc.status != 412:
                raise exc from head_error
            raise WriteOutcomeUnknown(
                f"the answer to writing {self.key!r} to {self.client.url} was lost, and it cannot be looked up: {head_error}. "
                "Read it, and write it again where that is needed"
            ) from exc


async def put(client: GCSClient, key: str, body: Body, nbytes: int, condition: Condition) -> Generation:
    """Store a body that fits into memory by one request."""
    write = _Write(client, key, nbytes, condition)
    views = checked_views(body, nbytes, key) if isinstance(body, Sequence) else [await joined(body, nbytes, key)]
    return await _send_whole(write, MemoryBody(views, write.resource))


async def _send_whole(write: _Write, body: MemoryBody | SpooledBody) -> Generation:
    try:
        query = {"uploadType": "multipart", **write.conditions}
        answer = await write.client.insert(write.what, query, headers=body.headers, data=body.start())
    except RequestFailed as exc:
        return await write.judge(exc)
    return await write.stored(answer, body.checksum)


async def put_large(client: GCSClient, key: str, body: Body, nbytes: int, condition: Condition) -> Generation:
    """Store a large body in bounded memory: in parts; through a local file where that cannot be made conditional."""
    write = _Write(client, key, nbytes, condition)
    if not isinstance(condition, Unconditional):
        facts = facts_of(client)
        if facts.resumable_conditions is None:
            facts.resumable_conditions = await probe_resumable(client)
        if not facts.resumable_conditions:
            return await _put_spooled(write, body)
    return await _put_resumable(write, body)


async def _put_spooled(write: _Write, body: Body) -> Generation:
    """One conditional request from a temporary local file, for servers that ignore conditions on resumable uploads."""
    if write.nbytes > _MAX_SPOOLED_BYTES:
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
    query = {"uploadType": "resumable", "name": client.full_key(write.key), **write.conditions}
    headers = {"X-Upload-Content-Type": "application/octet-stream", "X-Upload-Content-Length": str(write.nbytes)}
    try:
        started = await client.insert(write.what, query, document=write.resource, headers=headers)
    except RequestFailed as exc:
        return await write.judge(exc, all_sent=False)
    location = started.headers.get("Location")
    if not location:
        raise StorageError(f"{write.what}: {client.endpoint} started a resumable upload without telling where")
    # Until its last byte has arrived the old object stays.
    upload = _ResumableUpload(write, location)
    try:
        return await upload.send_all(body)
    except BaseException:
        await asyncio.shield(asyncio.ensure_future(upload.abort()))
        raise


async def _with_last(pieces: AsyncIterator[bytes]) -> AsyncIterator[tuple[bytes, bool]]:
    """Each piece, and whether it is the last one; which is known, and the body's length checked, once there is no other."""
    held: bytes | None = None
    async for piece in pieces:
        if held is not None:
            yield held, False
        held = piece
    if held is not None:
        yield held, True


class _ResumableUpload:
    """A session of one upload: its parts, one after the other."""

    def __init__(self, write: _Write, location: str) -> None:
        self._write = write
        self._location = location
        self._checksum = Checksum()
        self._offset = 0

    async def send_all(self, body: Body) -> Generation:
        write = self._write
        async for part, is_last in _with_last(parts(body, write.nbytes, PART_BYTES, write.key)):
            self._checksum.update(part)
            try:
                answer = await self._send(part, is_last)
            except RequestFailed as exc:
                return await write.judge(exc, all_sent=is_last)
            if answer is not None:
                return await write.stored(answer, self._checksum)
        raise StorageError(f"{write.what}: the server has all {write.nbytes} bytes but does not end the upload")

    async def _send(self, part: bytes, is_last: bool) -> Answer | None:
        """Send one part, the rest of it again where the server kept less; the answer that ends the upload."""
        write = self._write
        while part:
            end = self._offset + len(part)
            headers = {"Content-Range": f"bytes {self._offset}-{end - 1}/{write.nbytes}", "Content-Type": "application/octet-stream"}
            if is_last:
                headers["X-Goog-Hash"] = f"crc32c={self._checksum}"
            what = f"writing a part of {write.key!r}"
            answer = await write.client.request("PUT", self._location, what=what, headers=headers, data=Unclosed(part))
            if answer.status != 308:
                if not is_last:
                    raise StorageError(f"{write.what}: the server ended the upload at {end} of {write.nbytes} bytes: write it again")
                return answer
            matched = _PERSISTED.fullmatch(answer.headers.get("Range", ""))
            kept = (int(matched[1]) + 1 if matched else 0) - self._offset
            if not 0 < kept <= len(part):
                raise StorageError(f"{write.what}: of bytes {self._offset} to {end} the server kept {answer.headers.get('Range')!r}")
            self._offset += kept
            part = part[kept:]
        return None

    async def abort(self) -> None:
        """Tell the server to forget the parts; what cannot be told now it forgets after a week."""
        what = f"aborting the upload of {self._write.key!r}"
        location = _CONDITION_PARAMETER.sub("", self._location)
        try:
            async with asyncio.timeout(_ABORT_SECONDS):
                await self._write.client.request("DELETE", location, what=what)
        except (StorageError, TimeoutError) as exc:
            if getattr(exc, "status", None) not in (404, 410):
                logger.warning("an unfinished resumable upload of %r stays in %s: %s", self._write.key, self._write.client.url, exc)
