"""Copy and put together S3 objects within their server, most of it without a download.

CopyObject copies one version, whole, with its metadata. It takes at most 5 GiB: longer objects are put together from parts. Each part
is copied on condition that the source still has the ETag that was seen first.

An object is put together from ranges of its old version and new bytes::

    create upload ─► copied parts (UploadPartCopy, If-Match) and sent ones, together ─► complete, on the condition

The old version is pinned in every request that takes bytes of it. It is not enough that the object has that version when the upload is
completed: an ETag is made of the bytes, and comes back with them. So servers other than AWS are asked, by the first upload, whether
they honour the condition on copied parts (moto and Ceph do not), and whether they copy the range that was asked for. Whatever goes
wrong aborts the upload, and the old object stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any

from shardstore.errors import Conflict, StorageError, Unsupported
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation, IfGeneration, Unconditional
from shardstore.model.ranges import ByteRange, Segment
from shardstore.storage.base import Storage
from shardstore.storage.requests.outcomes import WRITE_ID, RequestFailed, canonical_etag
from shardstore.storage.requests.parts import PARTS_AT_ONCE, SentPart, bytes_of, source_gone, write_instead
from shardstore.storage.s3.client import (
    S3Client,
    S3Facts,
    facts_of,
    head_of,
    member_of,
    probe_copied_parts,
    probe_copies_on_condition,
    probe_multipart,
)
from shardstore.storage.s3.parts import MAX_PARTS, CopiedPart, plan_parts
from shardstore.storage.s3.upload import S3Write, abort, complete, multipart_upload

_TOO_LARGE = (400, 413, 501)  # AWS calls it InvalidRequest, other servers call it otherwise: the size is looked up
_COPIED_AT_ONCE = 16
_ATTEMPTS = 5

# Everything that a HEAD shows and that a multipart upload can be given; CopyObject keeps it by itself.
_KEPT_HEADERS = ("CacheControl", "ContentDisposition", "ContentEncoding", "ContentLanguage", "ContentType", "WebsiteRedirectLocation")


async def copy_object(client: S3Client, source: str, target: str, origin: S3Client) -> Generation | None:
    """Store one version of ``source`` at ``target``; return the new object's version, or ``None`` if there is no source.

    ``source`` is a key of ``origin``, which talks to the same server with the same credentials.

    The copy keeps the user metadata, with the id of the write that made the source. That cannot confirm a wrong write: an id is drawn
    for one write, and looked for only at the key of that write, while its answer is missing.

    Raises:
        Conflict: a source of more than 5 GiB kept changing.
    """
    if _copy_source(origin, source) == _copy_source(client, target):  # S3 refuses that
        head = await client.head(target)
        return None if head is None else head.generation
    try:
        response = await client.call("copy_object", f"copying {source!r} to", target, CopySource=_copy_source(origin, source))
    except RequestFailed as exc:
        if exc.is_absent:
            return None
        if exc.status in _TOO_LARGE and ((head := await origin.head(source)) is None or head.nbytes > client.max_copy_bytes):
            return await _copy_large(client, source, target, origin)
        raise
    return _copied_version(response.get("CopyObjectResult"), source)


def _copy_source(client: S3Client, key: str) -> dict[str, str]:
    """Return the member of a copying request that names the object to copy from."""
    return {"Bucket": client.bucket, "Key": client.full_key(key)}


async def copy_part(
    client: S3Client,
    source: str,
    version: Generation,
    copied: ByteRange,
    target: str,
    upload_id: str,
    number: int,
    action: str,
    origin: S3Client | None = None,
) -> str:
    """Copy a range of one version of ``source`` to part ``number`` of an upload to ``target``; return the ETag of the part.

    ``source`` is a key of ``origin``, by default of the same client.
    """
    response = await client.call(
        "upload_part_copy",
        action,
        target,
        UploadId=upload_id,
        PartNumber=number,
        CopySource=_copy_source(origin or client, source),
        CopySourceRange=f"bytes={copied.start}-{copied.end - 1}",
        CopySourceIfMatch=version.token,
    )
    return _copied_version(response.get("CopyPartResult"), source).token


def is_source_gone(refusal: RequestFailed) -> bool:
    """Return whether ``copy_part`` was refused because the source is absent, or another version now."""
    return refusal.status == 412 or (refusal.status == 404 and refusal.code == "NoSuchKey")


def _copied_version(result: Mapping[str, Any] | None, source: str) -> Generation:
    """Return the version that a copy made. A server that starts to answer before it has copied can report a failure only in a 200."""
    if not result or not result.get("ETag"):
        raise StorageError(f"copying {source!r}: the server's answer does not say that it was copied")
    return Generation(canonical_etag(result["ETag"]))


async def _copy_large(client: S3Client, source: str, target: str, origin: S3Client) -> Generation | None:
    for _ in range(_ATTEMPTS):
        try:
            head = await origin.call("head_object", "looking up", source)
        except RequestFailed as exc:
            if exc.is_absent:
                return None
            raise
        copied = await _copy_version(client, source, target, head, origin)
        if copied is not None:
            return copied
    raise Conflict(f"{source!r} in {origin.url} kept changing while it was being copied: try again")


async def _copy_version(client: S3Client, source: str, target: str, head: Mapping[str, Any], origin: S3Client) -> Generation | None:
    """Copy the version of ``head``, in parts; return ``None``, with nothing stored, if it has been replaced."""
    old, write = head_of(head, source), S3Write(client, target, UNCONDITIONAL)
    kept = {name: head[name] for name in _KEPT_HEADERS if head.get(name)}
    metadata = {**head.get("Metadata", {}), WRITE_ID: write.write_id}
    async with multipart_upload(client, target, f"copying {source!r} to", Metadata=metadata, **kept) as upload_id:
        etags = await _copy_parts(client, source, target, upload_id, old.generation, old.nbytes, origin)
        # Some servers ignore the condition on the parts. The same bytes may have come back, by another write.
        if etags is not None and await origin.head(source) == old:
            return await complete(write, upload_id, etags, f"copying {source!r} to")
        await abort(client, target, upload_id)
    return None


async def _copy_parts(
    client: S3Client, source: str, target: str, upload_id: str, version: Generation, nbytes: int, origin: S3Client
) -> dict[int, str] | None:
    """Copy the parts; return the ETag of each, by number, or ``None`` if the source is another version now."""
    part_bytes = max(client.min_copied_part_bytes, -(-nbytes // MAX_PARTS))
    free = asyncio.Semaphore(_COPIED_AT_ONCE)

    async def copy(number: int, start: int) -> str:
        async with free:
            copied, action = ByteRange(start, min(start + part_bytes, nbytes)), f"copying a part of {source!r} to"
            return await copy_part(client, source, version, copied, target, upload_id, number, action, origin)

    try:
        return await _parts(copy(i, start) for i, start in enumerate(range(0, nbytes, part_bytes), 1))
    except RequestFailed as exc:
        if is_source_gone(exc):
            return None
        raise


async def _parts(copies: Iterable[Coroutine[Any, Any, str]]) -> dict[int, str]:
    """Make the parts of an upload; return the ETag of each, by number, or raise the first error, after which no part is made any more."""
    try:
        async with asyncio.TaskGroup() as uploads:
            tasks = {number: uploads.create_task(copy) for number, copy in enumerate(copies, 1)}
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None  # the first; the rest are consequences
    return {number: task.result() for number, task in tasks.items()}


_NOT_KNOWN = (405, 501)


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
        return await write_instead(storage, key, source, [part for part in parts if isinstance(part, SentPart)], condition)
    facts = facts_of(client)
    await _check_conditions(client, facts, key, condition)
    write = S3Write(client, key, condition)
    async with multipart_upload(client, key, Metadata=write.metadata) as upload_id:
        etags = await _Upload(client, storage, facts, key, upload_id, source).send(parts)
        await _check_copies(client, facts, key, upload_id, parts, condition)
        if condition != IfGeneration(source):  # with it, completing the upload is that check
            head = await client.head(key)
            if head is None or head.generation != source:
                raise source_gone(key)
        return await complete(write, upload_id, etags)


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
                raise source_gone(key) from exc
            raise
    if not facts.copies_on_condition:
        raise Unsupported(f"{client.endpoint} ignores conditions on copied parts: {key!r} has to be sent")


class _Upload:
    """One multipart upload whose parts are being sent."""

    def __init__(self, client: S3Client, storage: Storage, facts: S3Facts, key: str, upload_id: str, source: Generation) -> None:
        self._client = client
        self._storage = storage
        self._facts = facts
        self._key = key
        self._upload_id = upload_id
        self._source = source
        self._sent = asyncio.Semaphore(PARTS_AT_ONCE)
        self._copied = asyncio.Semaphore(_COPIED_AT_ONCE)

    async def send(self, parts: Iterable[CopiedPart | SentPart]) -> dict[int, str]:
        """Send the parts, and return the ETag of each, by number."""
        return await _parts(self._part(number, part) for number, part in enumerate(parts, 1))

    async def _part(self, number: int, part: CopiedPart | SentPart) -> str:
        if isinstance(part, CopiedPart):
            async with self._copied:
                return await self._copy(number, part)
        async with self._sent:
            body = b"".join(await bytes_of(self._storage, self._key, self._source, part))
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
                raise source_gone(self._key) from exc
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
