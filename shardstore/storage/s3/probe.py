"""Probes of what a server that speaks S3 honours, once for each endpoint, bucket and process; nothing is left behind.

A server that does not know conditional writes may answer 200 to them and overwrite: success alone proves nothing, so each question is
such that the right answer is a refusal.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

from shardstore.model.capabilities import Capabilities
from shardstore.storage.requests.outcomes import RequestFailed, probe_key
from shardstore.storage.s3.client import S3Client, member_of
from shardstore.storage.s3.parts import COPY_PAYS_NBYTES

_REFUSED = (404, 409, 412)
_NOT_KNOWN = (400, 405, 501)
_TRIES = 3

CLAIMED_WITHOUT_PROBE = Capabilities(pinned_reads=True, durable=True, across_machines=True, compose=True, copy_pays_nbytes=COPY_PAYS_NBYTES)
"""Capabilities that need no probe: reads compare the ETag of the answer themselves, so they need only an ETag from the server."""


def _made_up_etag() -> str:
    return f'"{secrets.token_hex(16)}"'


async def _is_refused(client: S3Client, method: str, key: str, **parameters: Any) -> bool | None:
    """Return whether the server refuses a request that it should; ``None`` if it does not know such requests."""
    try:
        await client.call(method, "probing conditional writes with", key, **parameters)
    except RequestFailed as exc:
        if exc.code == "NoSuchBucket":
            raise
        if exc.code == "NoSuchUpload":  # completed, if the answer was lost and the client asked again
            return False
        if exc.status in _REFUSED:
            return True
        if exc.status in _NOT_KNOWN:
            return None
        raise
    return False


async def probe_server(client: S3Client) -> Capabilities:
    """Ask for the abilities of the server: on AWS by two requests that change nothing, on other servers also by some about an object
    that is removed again.

    Some servers know one condition and not the other, or answer 404 to any DELETE of an absent object.
    """
    await client.connect()
    if client.is_aws:
        swap, delete = await asyncio.gather(
            _is_refused(client, "put_object", probe_key(), Body=b"", IfMatch=_made_up_etag()),
            _is_refused(client, "delete_object", probe_key(), IfMatch=_made_up_etag()),
        )
        create = swap  # its manual can be believed
    else:
        swap, create, delete = await _probe_object(client, probe_key())
    return Capabilities(
        pinned_reads=True,
        durable=True,
        across_machines=True,
        compare_and_swap=swap is True,
        create_if_absent=create is True,
        conditional_delete=delete is True,
        compose=True,
        copy_pays_nbytes=COPY_PAYS_NBYTES,
    )


async def _probe_object(client: S3Client, key: str) -> tuple[bool | None, bool | None, bool | None]:
    """Return whether the server refuses to replace an absent object, to create an existing one, and to delete another version of it."""
    try:
        swap = await _is_refused(client, "put_object", key, Body=b"", IfMatch=_made_up_etag())
        if await _is_refused(client, "put_object", key, Body=b"") is not False:
            return swap, None, None
        create = await _is_refused(client, "put_object", key, Body=b"", IfNoneMatch="*")
        delete = await _is_refused(client, "delete_object", key, IfMatch=_made_up_etag())
        # Carried out, its answer lost, and sent again, a DELETE is refused because there is nothing any more.
        return swap, create, delete and await client.head(key) is not None
    finally:
        await _remove(client, key)


async def _remove(client: S3Client, key: str) -> None:
    try:
        await client.call("delete_object", "removing the probe", key)
    except RequestFailed as exc:
        if not exc.is_absent:
            raise


async def probe_multipart(client: S3Client) -> bool:
    """Return whether a multipart upload can be made conditional. Leaves nothing, whatever the answer."""
    for _ in range(_TRIES):
        if (honoured := await _probe_upload(client, probe_key())) is not None:
            return honoured
    raise RequestFailed(
        f"it cannot be found out whether {client.endpoint} honours conditions on multipart uploads: another client, such as "
        f"shardstore repair, has aborted each of {_TRIES} uploads that were begun to test it. Try again later"
    )


async def _probe_upload(client: S3Client, key: str) -> bool | None:
    """Return whether the server refuses to complete an upload on a condition; ``None`` if the upload was aborted by another process."""
    created = await client.call("create_multipart_upload", "probing multipart uploads with", key)
    upload_id = member_of(created, "UploadId", "probing multipart uploads with", key)
    refused: bool | None = None
    try:
        part = await client.call("upload_part", "probing multipart uploads with", key, UploadId=upload_id, PartNumber=1, Body=b"p")
        parts = {"Parts": [{"PartNumber": 1, "ETag": member_of(part, "ETag", "probing multipart uploads with", key)}]}
        refused = await _is_refused(
            client, "complete_multipart_upload", key, UploadId=upload_id, MultipartUpload=parts, IfMatch=_made_up_etag()
        )
    finally:
        if refused is False:
            is_stored = await client.head(key) is not None
            await _remove(client, key)
        else:
            is_stored = False
            await client.call("abort_multipart_upload", "removing the probe", key, UploadId=upload_id)
    return None if refused is False and not is_stored else refused is True


async def probe_copied_parts(client: S3Client, key: str, upload_id: str, copied: Mapping[int, int]) -> bool:
    """Return whether the copied parts, by number, have as many bytes as was asked for.

    Some servers do not know ranges in copies, and copy the whole object; the answer to a copy does not show that.
    """
    try:
        listed = await client.call("list_parts", "looking at the parts of", key, UploadId=upload_id)
    except RequestFailed as exc:
        if exc.status in (*_NOT_KNOWN, 404) and exc.code != "NoSuchUpload":  # which repair may have aborted
            return False  # what cannot be looked at is not trusted
        raise
    sizes = {int(part["PartNumber"]): int(part["Size"]) for part in listed.get("Parts", ())}
    pairs = [(nbytes, sizes[number]) for number, nbytes in copied.items() if number in sizes]  # of the first page
    return bool(pairs) and all(wanted == found for wanted, found in pairs)


async def probe_copies_on_condition(client: S3Client, key: str, upload_id: str, number: int) -> bool:
    """Return whether the server refuses to copy another version of ``key`` than is there. A copy becomes part ``number``."""
    try:
        await client.call(
            "upload_part_copy",
            "probing conditional copies with",
            key,
            UploadId=upload_id,
            PartNumber=number,
            CopySource={"Bucket": client.bucket, "Key": client.full_key(key)},
            CopySourceRange="bytes=0-0",
            CopySourceIfMatch=_made_up_etag(),
        )
    except RequestFailed as exc:
        if exc.status == 412:
            return True
        raise
    return False
