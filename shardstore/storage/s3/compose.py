"""Put an S3 object together from ranges of its old version and new bytes, most of it without a download.

    create upload ─► copied parts (UploadPartCopy, If-Match) and sent ones, together ─► complete, on the condition

The old version is pinned in every request that takes bytes of it. It is not enough that the object has that version when the upload is
completed: an ETag is made of the bytes, and comes back with them. So servers other than AWS are asked, by the first upload, whether
they honour the condition on copied parts (moto and Ceph do not), and whether they copy the range that was asked for. Whatever goes
wrong aborts the upload, and the old object stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence

from shardstore.errors import InvalidInput, Unsupported
from shardstore.model.generation import Condition, Generation, IfGeneration, Unconditional
from shardstore.model.ranges import ByteRange, BytesLike, CopiedRange, NewBytes, Segment
from shardstore.storage.base import ConditionFailed, Found, Read, ReadOutcome, Storage, unless_failed
from shardstore.storage.requests.outcomes import RequestFailed
from shardstore.storage.s3.client import S3Client, S3Facts, facts_of, member_of
from shardstore.storage.s3.copy import copy_part, is_source_gone
from shardstore.storage.s3.parts import MAX_PARTS, CopiedPart, SentPart, plan_parts
from shardstore.storage.s3.probe import probe_copied_parts, probe_copies_on_condition, probe_multipart
from shardstore.storage.s3.upload import S3Write, complete, multipart_upload

_SENT_AT_ONCE = 6  # parts of about 8 MiB, of each of which aiohttp makes a copy
_COPIED_AT_ONCE = 16
_NOT_KNOWN = (405, 501)
_GAP_BYTES = 512 << 10  # ranges that are this near are read by one request: what lies between costs less than another


async def compose(
    client: S3Client, storage: Storage, key: str, source: Generation, segments: Sequence[Segment], condition: Condition
) -> Generation:
    """Carry out ``Storage.compose``. Where no range is worth a copy, the bytes are read and written.

    Raises:
        ConditionFailed: the condition does not hold, or ``source`` is gone.
        Unsupported: the server does not make uploads conditional, or knows no copied parts; ``facts_of`` remembers it.
    """
    parts = plan_parts(segments)
    if not any(isinstance(part, CopiedPart) for part in parts):
        return await _send_all(storage, key, source, [part for part in parts if isinstance(part, SentPart)], condition)
    facts = facts_of(client)
    await _check_conditions(client, facts, key, condition)
    write = S3Write(client, key, condition)
    async with multipart_upload(client, key, Metadata=write.metadata) as upload_id:
        etags = await _Upload(client, storage, facts, key, upload_id, source).send(parts)
        await _check_copies(client, facts, key, upload_id, parts, condition)
        if condition != IfGeneration(source):  # with it, completing the upload is that check
            await _check_source(client, key, source)
        return await complete(write, upload_id, etags)


async def _send_all(storage: Storage, key: str, source: Generation, parts: Sequence[SentPart], condition: Condition) -> Generation:
    async def pieces() -> AsyncIterator[BytesLike]:
        for part in parts:
            for piece in await _bytes_of(storage, key, source, part):
                yield piece

    if not parts or not any(isinstance(segment, CopiedRange) for part in parts for segment in part.segments):
        (outcome,) = await storage.read([Read(key, (), source)])  # nothing would show that the source is gone
        _found(outcome, key)
    return await storage.write(key, pieces(), sum(part.nbytes for part in parts), condition)


async def _check_conditions(client: S3Client, facts: S3Facts, key: str, condition: Condition) -> None:
    if isinstance(condition, Unconditional):
        return
    if facts.multipart_conditions is None:
        facts.multipart_conditions = await probe_multipart(client)
    if not facts.multipart_conditions:
        raise Unsupported(f"{client.endpoint} ignores conditions on multipart uploads: {key!r} has to be written by a single request")


async def _check_copies(
    client: S3Client, facts: S3Facts, key: str, upload_id: str, parts: Sequence[CopiedPart | SentPart], condition: Condition
) -> None:
    """Check that these parts are what the server was asked for. Servers are asked once; AWS never, since its manual can be trusted."""
    if client.is_aws:
        return
    if facts.copies_parts is None:
        copied = {number: part.nbytes for number, part in enumerate(parts, 1) if isinstance(part, CopiedPart)}
        facts.copies_parts = await probe_copied_parts(client, key, upload_id, copied)
    if not facts.copies_parts:
        raise Unsupported(f"{client.endpoint} copies other ranges of objects than it is asked for: {key!r} has to be sent")
    if isinstance(condition, Unconditional):
        return
    if facts.copies_on_condition is None:
        try:
            facts.copies_on_condition = await probe_copies_on_condition(client, key, upload_id, min(len(parts) + 1, MAX_PARTS))
        except RequestFailed as exc:
            if exc.status == 404 and exc.code == "NoSuchKey":
                raise _gone(key) from exc
            raise
    if not facts.copies_on_condition:
        raise Unsupported(f"{client.endpoint} ignores conditions on copied parts: {key!r} has to be sent")


async def _check_source(client: S3Client, key: str, source: Generation) -> None:
    head = await client.head(key)
    if head is None or head.generation != source:
        raise _gone(key)


def _gone(key: str) -> ConditionFailed:
    return ConditionFailed(f"{key!r} is not the version to copy from any more")


class _Upload:
    """One multipart upload whose parts are being sent."""

    def __init__(self, client: S3Client, storage: Storage, facts: S3Facts, key: str, upload_id: str, source: Generation) -> None:
        self._client = client
        self._storage = storage
        self._facts = facts
        self._key = key
        self._upload_id = upload_id
        self._source = source
        self._sent = asyncio.Semaphore(_SENT_AT_ONCE)
        self._copied = asyncio.Semaphore(_COPIED_AT_ONCE)

    async def send(self, parts: Iterable[CopiedPart | SentPart]) -> dict[int, str]:
        """Send the parts, and return the ETag of each, by number."""
        try:
            async with asyncio.TaskGroup() as uploads:
                tasks = {number: uploads.create_task(self._part(number, part)) for number, part in enumerate(parts, 1)}
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None  # the first; the rest are consequences
        return {number: task.result() for number, task in tasks.items()}

    async def _part(self, number: int, part: CopiedPart | SentPart) -> str:
        if isinstance(part, CopiedPart):
            async with self._copied:
                return await self._copy(number, part)
        async with self._sent:
            body = b"".join(await _bytes_of(self._storage, self._key, self._source, part))
            response = await self._client.call(
                "upload_part", "writing a part of", self._key, UploadId=self._upload_id, PartNumber=number, Body=body
            )
            return member_of(response, "ETag", "writing a part of", self._key)

    async def _copy(self, number: int, part: CopiedPart) -> str:
        copied = ByteRange(part.offset, part.offset + part.nbytes)
        try:
            etag = await copy_part(self._client, self._key, self._source, copied, self._key, self._upload_id, number, "copying a part of")
        except RequestFailed as exc:
            if exc.status == 412 and not self._client.is_aws:
                await self._check_refusal(exc)
            if is_source_gone(exc):
                raise _gone(self._key) from exc
            if exc.status in _NOT_KNOWN:
                self._facts.copies_parts = False
                raise Unsupported(f"{self._client.endpoint} does not copy parts of objects: {self._key!r} has to be sent") from exc
            raise
        self._facts.refused_wrongly = False
        return etag

    async def _check_refusal(self, refusal: RequestFailed) -> None:
        """Raise ``Unsupported`` if the server refuses to copy the version that is there, and not for the first time."""
        head = await self._client.head(self._key)
        if head is None or head.generation != self._source:
            return
        if self._facts.refused_wrongly:
            self._facts.copies_on_condition = False
            raise Unsupported(
                f"{self._client.endpoint} refuses to copy the version that is there: {self._key!r} has to be sent"
            ) from refusal
        self._facts.refused_wrongly = True


async def _bytes_of(storage: Storage, key: str, source: Generation, part: SentPart) -> list[BytesLike]:
    """Return the bytes of a part; ranges of the old version are read, near ones together."""
    copies = [segment for segment in part.segments if isinstance(segment, CopiedRange)]
    spans: list[ByteRange] = []
    for copy in sorted(copies, key=lambda copy: copy.offset):
        end = copy.offset + copy.nbytes
        if spans and copy.offset - spans[-1].end <= _GAP_BYTES:
            spans[-1] = ByteRange(spans[-1].start, max(spans[-1].end, end))
        else:
            spans.append(ByteRange(copy.offset, end))
    buffers: list[memoryview] = []
    if spans:
        (outcome,) = await storage.read([Read(key, tuple(spans), source)])
        found = _found(outcome, key)
        for span, buffer in zip(spans, found.buffers, strict=True):
            if len(buffer) != span.end - span.start:
                raise InvalidInput(f"bytes [{span.start}, {span.end}) of {key!r} cannot be copied: it has {found.nbytes}")
        buffers = list(found.buffers)

    def old(copy: CopiedRange) -> memoryview:
        span, buffer = next((s, b) for s, b in zip(spans, buffers, strict=True) if s.start <= copy.offset < s.end)
        return buffer[copy.offset - span.start : copy.offset - span.start + copy.nbytes]

    return [
        old(segment) if isinstance(segment, CopiedRange) else segment.data if isinstance(segment, NewBytes) else bytes(segment.nbytes)
        for segment in part.segments
    ]


def _found(outcome: ReadOutcome, key: str) -> Found:
    outcome = unless_failed(outcome)
    if not isinstance(outcome, Found):
        raise _gone(key)
    return outcome
