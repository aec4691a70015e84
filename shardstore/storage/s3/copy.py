"""Copy one S3 object within its server, by requests that carry none of its bytes.

CopyObject copies one version, whole, with its metadata. It takes at most 5 GiB: longer objects are put together from parts. Each part
is copied on condition that the source still has the ETag that was seen first.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

from shardstore.errors import Conflict, StorageError, WriteOutcomeUnknown
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteRange
from shardstore.storage.requests.outcomes import WRITE_ID, RequestFailed
from shardstore.storage.s3.client import S3Client, canonical_etag, generation_of, head_of
from shardstore.storage.s3.parts import MAX_PARTS
from shardstore.storage.s3.upload import abort, multipart_upload

_TOO_LARGE = (400, 413, 501)  # AWS calls it InvalidRequest, other servers call it otherwise: the size is looked up
_PARTS_AT_ONCE = 16
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
    old, write_id = head_of(head, source), uuid.uuid4().hex
    kept = {name: head[name] for name in _KEPT_HEADERS if head.get(name)}
    metadata = {**head.get("Metadata", {}), WRITE_ID: write_id}
    async with multipart_upload(client, target, f"copying {source!r} to", Metadata=metadata, **kept) as upload_id:
        etags = await _copy_parts(client, source, target, upload_id, old.generation, old.nbytes, origin)
        # Some servers ignore the condition on the parts. The same bytes may have come back, by another write.
        if etags is not None and await origin.head(source) == old:
            return await _complete(client, source, target, upload_id, etags, write_id)
        await abort(client, target, upload_id)
    return None


async def _copy_parts(
    client: S3Client, source: str, target: str, upload_id: str, version: Generation, nbytes: int, origin: S3Client
) -> list[dict[str, Any]] | None:
    """Copy the parts; return the list that completes the upload, or ``None`` if the source is another version now."""
    part_bytes = max(client.min_copied_part_bytes, -(-nbytes // MAX_PARTS))
    free = asyncio.Semaphore(_PARTS_AT_ONCE)

    async def copy(number: int, start: int) -> dict[str, Any]:
        async with free:
            copied, action = ByteRange(start, min(start + part_bytes, nbytes)), f"copying a part of {source!r} to"
            etag = await copy_part(client, source, version, copied, target, upload_id, number, action, origin)
        return {"PartNumber": number, "ETag": etag}

    try:
        async with asyncio.TaskGroup() as group:
            copies = [group.create_task(copy(i, start)) for i, start in enumerate(range(0, nbytes, part_bytes), 1)]
    except BaseExceptionGroup as failed:
        first = failed.exceptions[0]
        if isinstance(first, RequestFailed) and is_source_gone(first):
            return None
        raise first from None  # the rest are consequences
    return [task.result() for task in copies]


async def _complete(client: S3Client, source: str, target: str, upload_id: str, parts: list[dict[str, Any]], write_id: str) -> Generation:
    try:
        response = await client.call(
            "complete_multipart_upload", f"copying {source!r} to", target, UploadId=upload_id, MultipartUpload={"Parts": parts}
        )
        if response.get("ETag"):
            return generation_of(response, target)
    except RequestFailed as exc:
        # Completed twice, by a request that was sent again, or completed and the answer lost: then the object is ours.
        head = await client.head(target)
        if head is not None and head.write_id == write_id:
            return head.generation
        if exc.status is not None and 400 <= exc.status < 500 and exc.code != "NoSuchUpload":
            raise
        raise _unknown(client, source, target) from exc
    head = await client.head(target)  # Ceph leaves the ETag out of the answer
    if head is not None and head.write_id == write_id:
        return head.generation
    raise _unknown(client, source, target)


def _unknown(client: S3Client, source: str, target: str) -> WriteOutcomeUnknown:
    return WriteOutcomeUnknown(
        f"the answer to copying {source!r} to {target!r} in {client.url} was lost, and what is there now is not this copy: try again"
    )
