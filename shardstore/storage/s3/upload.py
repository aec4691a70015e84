"""Store one S3 object: by a single PUT, or a multipart upload for large ones."""

from __future__ import annotations

import asyncio
import functools
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import IO, Any

from shardstore.errors import StorageError, Unsupported
from shardstore.model.generation import Condition, Generation, IfGeneration, Unconditional
from shardstore.storage.requests.lost_answers import Failure, ObjectWrite
from shardstore.storage.requests.outcomes import WRITE_ID, Head, RequestFailed, generation_of
from shardstore.storage.requests.parts import part_bytes_for, upload_parts
from shardstore.storage.requests.writes import Body, groups, joined, parts
from shardstore.storage.s3.client import S3Client, condition_parameters, facts_of, member_of, probe_multipart, translated
from shardstore.storage.s3.parts import MAX_PARTS

logger = logging.getLogger(__name__)

_MAX_PUT_BYTES = 5 << 30


class S3Write(ObjectWrite):
    """One write of one S3 object."""

    def __init__(self, client: S3Client, key: str, condition: Condition) -> None:
        super().__init__(key, client.url, condition, client.head)
        self.client = client
        self._unquoted = False
        self._tried: set[bool] = set()

    @property
    def metadata(self) -> dict[str, str]:
        theirs: Mapping[str, str] = self.client.fs.s3_additional_kwargs.get("Metadata") or {}
        return {**theirs, WRITE_ID: self.write_id}

    @property
    def headers(self) -> dict[str, str]:
        facts = facts_of(self.client)
        if isinstance(self.condition, IfGeneration):
            self._unquoted = facts.etag_unquoted
            self._tried.add(self._unquoted)
        return condition_parameters(self.condition, facts)

    async def stored(self, response: Mapping[str, Any]) -> Generation:
        """Return the version that this write made, from the answer to it; Ceph leaves the ETag out when an upload is completed.

        Raises:
            RequestFailed: neither the answer nor the object shows the version: as if the answer had been lost.
        """
        version = generation_of(response, self.key) if response.get("ETag") else await self.unnamed_version()
        if isinstance(self.condition, IfGeneration):
            facts = facts_of(self.client)
            facts.etag_unquoted, facts.etag_wording_is_proved = self._unquoted, True
        return version

    def failure(self, exc: RequestFailed) -> Failure:
        if exc.code == "NoSuchUpload":  # completed by the first of two requests, or aborted
            return Failure.LOST
        return super().failure(exc)

    def has_other_etag_syntax(self, exc: RequestFailed) -> bool:
        """Return whether the ETag can be written in the other way, with quotes or without, if that has not been tried."""
        facts = facts_of(self.client)
        if exc.status != 412 or (facts.etag_wording_is_proved and facts.etag_unquoted == self._unquoted):
            return False
        if facts.etag_unquoted == self._unquoted:  # or another write has just changed it
            facts.etag_unquoted = not self._unquoted
        return facts.etag_unquoted not in self._tried

    @property
    def versions_come_again(self) -> bool:
        return True  # an ETag is made from the bytes

    @property
    def etag_syntax_confirmed(self) -> bool:
        return facts_of(self.client).etag_wording_is_proved


Send = Callable[..., Awaitable[Mapping[str, Any]]]
"""A function that stores an object by one request. It takes PutObject's names: ``Body``, ``Metadata``, and ``IfMatch`` or ``IfNoneMatch``;
its answer has those names too. Raises ``RequestFailed``.
"""


async def put(client: S3Client, key: str, body: Body, nbytes: int, condition: Condition, send: Send | None = None) -> Generation:
    """Store a body that fits into memory by one request, or by one of ``send``, another transport to the same place."""
    data = await joined(body, nbytes, key)
    send = send or functools.partial(client.call, "put_object", "writing", key)
    write = S3Write(client, key, condition)
    return await write.carry_out(lambda: send(Body=data, Metadata=write.metadata, **write.headers))


async def put_large(client: S3Client, key: str, body: Body, nbytes: int, condition: Condition) -> Generation:
    """Store a large body in bounded memory: in parts, or through a local file if parts cannot be made conditional."""
    if not isinstance(condition, Unconditional):
        facts = facts_of(client)
        if facts.multipart_conditions is None:
            facts.multipart_conditions = await probe_multipart(client)
        if not facts.multipart_conditions:
            return await _put_spooled(client, key, body, nbytes, condition)
    write = S3Write(client, key, condition)
    async with multipart_upload(client, key, Metadata=write.metadata) as upload_id:
        etags = await _upload_parts(client, key, upload_id, body, nbytes)
        return await complete(write, upload_id, etags)


@asynccontextmanager
async def multipart_upload(client: S3Client, key: str, action: str = "writing", **parameters: Any) -> AsyncIterator[str]:
    """Begin an upload to ``key``, and yield its id; the upload is aborted if the block fails.

    Until the upload is completed the old object stays; the server keeps the parts, and charges for them, until it is aborted.
    """
    created = await client.call("create_multipart_upload", action, key, **parameters)
    upload_id = member_of(created, "UploadId", action, key)
    try:
        yield upload_id
    except BaseException:
        await asyncio.shield(asyncio.ensure_future(abort(client, key, upload_id)))
        raise


async def _upload_parts(client: S3Client, key: str, upload_id: str, body: Body, nbytes: int) -> dict[int, str]:
    """Upload the parts; return the ETag of each, by number."""

    async def upload(number: int, part: bytes) -> str:
        response = await client.call("upload_part", "writing a part of", key, UploadId=upload_id, PartNumber=number, Body=part)
        return member_of(response, "ETag", "writing a part of", key)

    pieces = parts(body, nbytes, part_bytes_for(nbytes, client.min_uploaded_part_bytes, MAX_PARTS), key)
    return dict(enumerate(await upload_parts(pieces, upload), 1))


async def complete(write: S3Write, upload_id: str, etags: Mapping[int, str], action: str = "completing") -> Generation:
    """Complete an upload: make the parts, by number, the object, on the condition of ``write``. ``action`` is what an error calls it."""
    listed = {"Parts": [{"PartNumber": number, "ETag": etags[number]} for number in sorted(etags)]}
    while True:
        try:
            response = await write.client.call(
                "complete_multipart_upload", action, write.key, UploadId=upload_id, MultipartUpload=listed, **write.headers
            )
            return await write.stored(response)
        except RequestFailed as exc:
            if write.failure(exc) is Failure.FINAL and (head := await _looked_up(write)) is not None and head.write_id == write.write_id:
                return head.generation  # completed by a request that was sent before; servers refuse the second one in many ways
            # After 409 the parts are of no use any more: AWS asks for a new upload.
            if (stored := await write.judge(exc, can_resend=exc.status != 409)) is not None:
                return stored


async def _looked_up(write: S3Write) -> Head | None:
    with suppress(StorageError):  # the refusal is what is reported
        return await write.client.head(write.key)
    return None


async def abort(client: S3Client, key: str, upload_id: str) -> None:
    """Abort an upload; log a warning if it stays."""
    try:
        await client.call("abort_multipart_upload", "aborting the upload of", key, UploadId=upload_id)
    except StorageError as exc:
        if getattr(exc, "code", "") != "NoSuchUpload":
            logger.warning("an unfinished multipart upload of %r stays in %s: %s", key, client.url, exc)


async def _put_spooled(client: S3Client, key: str, body: Body, nbytes: int, condition: Condition) -> Generation:
    """Store the body by one conditional PUT from a temporary local file, for servers that ignore conditions on multipart uploads."""
    if nbytes > _MAX_PUT_BYTES:
        raise Unsupported(
            f"{client.endpoint} ignores conditions on multipart uploads, and {key!r} ({nbytes} bytes) is too large for a single PUT: "
            "use smaller shards there"
        )
    write = S3Write(client, key, condition)
    with tempfile.TemporaryFile() as file:
        async for group in groups(body, nbytes, 1 << 20, key):
            await asyncio.to_thread(file.writelines, group)
        return await write.carry_out(lambda: _put_file(write, file, nbytes))


async def _put_file(write: S3Write, file: IO[bytes], nbytes: int) -> dict[str, Any]:
    """Send a file without s3fs's retries, which would send one that was read to its end again, as nothing; botocore's rewind it."""
    client = write.client
    file.seek(0)
    async with client.bound.slot():
        try:
            await client.fs.set_session()
            method = (await client.fs.get_s3(client.bucket)).put_object
            parameters = client.fs._get_s3_method_kwargs(
                method,
                client.fs.req_kw,
                Bucket=client.bucket,
                Key=client.full_key(write.key),
                Body=file,
                ContentLength=nbytes,
                Metadata=write.metadata,
                **write.headers,
            )
            response: dict[str, Any] = await method(**parameters)
        except Exception as exc:
            raise translated(exc, "writing", repr(write.key), client.bucket) from exc
    return response
