"""Objects in S3 and servers that speak its language, through an s3fs instance's own client calls.

s3fs's file interface is not used: it drops conditions on large writes, reads large objects by several requests that can see several
versions, and remembers listings. A generation is an ETag.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from shardstore.errors import InvalidInput, ShardStoreError, StorageError, Unsupported
from shardstore.model.capabilities import Capabilities
from shardstore.model.containers import batched
from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import ByteRequest, BytesLike, Segment
from shardstore.storage.abilities import Leftover, ListsLeftovers
from shardstore.storage.base import CHANGED, DirListing, ObjectInfo, check_directory
from shardstore.storage.requests.bucket import BucketStorage
from shardstore.storage.requests.outcomes import (
    RequestFailed,
    canonical_etag,
    etag_condition,
    generation_of,
    refuse_encoded,
    version_of,
)
from shardstore.storage.requests.ranged_reads import RangeOutcome, RangePart, checked_part, range_header, received
from shardstore.storage.s3.client import (
    S3Client,
    S3Facts,
    facts_of,
    probe_server,
    translated,
)
from shardstore.storage.s3.compose import compose, copy_object
from shardstore.storage.s3.parts import COPY_PAYS_NBYTES
from shardstore.storage.s3.upload import put, put_large

MULTIPART_BYTES = 64 << 20

_KEYS_A_DELETE = 1000
_READ_ATTEMPTS = 3
_BLOCK_NBYTES = 1 << 18


async def _blocks(body: Any) -> AsyncIterator[bytes]:
    while block := await body.read(_BLOCK_NBYTES):
        yield block


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """A multipart upload to ``key`` that was neither completed nor aborted; ``begun`` by the server's clock, aware of its time zone.

    The server keeps the parts of such uploads, and charges for them.
    """

    key: str
    upload_id: str
    begun: datetime


class S3Storage(BucketStorage[S3Client], ListsLeftovers):
    """Objects below ``path`` (``bucket/prefix``) of ``fs``, an ``s3fs.S3FileSystem`` whose loop is fsspec's IO loop.

    Bodies above ``multipart_bytes`` are uploaded in parts. ``probe`` finds out what a server honours.
    """

    kind = "s3"
    client_class = S3Client
    # Reads need only an ETag in the answer.
    claimed_without_probe = Capabilities(
        pinned_reads=True, durable=True, across_machines=True, compose=True, copy_pays_nbytes=COPY_PAYS_NBYTES
    )
    looks_before_deletes = True

    def __init__(self, fs: Any, path: str, concurrency: int = 64, multipart_bytes: int = MULTIPART_BYTES) -> None:
        super().__init__(fs, path, concurrency, multipart_bytes)

    @property
    def _facts(self) -> S3Facts:
        return facts_of(self.client)

    @property
    def capabilities(self) -> Capabilities:
        facts, known = self._facts, super().capabilities
        # What is conditional elsewhere has to be so when parts are put together; if nothing is, they always can be.
        conditional = False not in (facts.multipart_conditions, facts.copies_on_condition) or not known.compare_and_swap
        return known if facts.copies_parts is not False and conditional else replace(known, compose=False)

    async def _ask_server(self) -> Capabilities:
        return await probe_server(self.client, self.claimed_without_probe)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def get(self, key: str, request: ByteRequest, generation: Generation | None, most_nbytes: int | None = None) -> RangeOutcome:
        parameters: dict[str, str] = {"Key": self.client.full_key(key)}
        if (header := range_header(request)) is not None:
            parameters["Range"] = header
        if (etag := etag_condition(generation)) is not None:
            parameters["IfMatch"] = etag
        try:
            response, body = await self._get_body(key, request, parameters, most_nbytes)
        except RequestFailed as exc:
            return await self.after_refusal(exc, key, request, generation)
        found = generation_of(response, key)
        if generation is not None and found != generation:  # the server ignored If-Match
            return CHANGED
        refuse_encoded(response.get("ContentEncoding"), key, "aws-chunked")
        if isinstance(body, bytes):
            view, nbytes = checked_part(request, response["ResponseMetadata"]["HTTPStatusCode"], response.get("ContentRange"), body, key)
        else:
            view, nbytes = body
        return RangePart(found, nbytes, view, self.client.times_of(response))

    async def _get_body(
        self, key: str, request: ByteRequest, parameters: dict[str, str], most_nbytes: int | None
    ) -> tuple[dict[str, Any], bytes | tuple[memoryview, int]]:
        """Return the answer and its body, or, if the whole object came instead, the wanted part of it and its size. Asks again if
        the connection breaks within the body, which s3fs's retries do not cover.
        """
        attempt = 0
        async with self.client.bound.slot():
            while True:
                attempt += 1
                response = await self.client.unbounded_call("get_object", "reading", repr(key), **parameters)
                try:
                    status = response["ResponseMetadata"]["HTTPStatusCode"]
                    content_range, nbytes = response.get("ContentRange"), response.get("ContentLength")
                    async with response["Body"] as body:
                        return response, await received(
                            *(request, status, content_range, nbytes, body.read, _blocks(body)), most_nbytes, key, self.unasked_nbytes
                        )
                except ShardStoreError:
                    raise
                except Exception as exc:
                    if attempt == _READ_ATTEMPTS:
                        raise translated(exc, "reading", repr(key), self.client.bucket) from exc

    # -- writing -------------------------------------------------------------------------------------------------------

    async def _put(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        store = put if nbytes <= self.part_bytes else put_large
        return await store(self.client, key, body, nbytes, condition)

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        if not self.capabilities.compose:
            raise Unsupported(f"composing {key!r}: {self.endpoint} cannot copy a part of an object into its new version, on a condition")
        try:
            return await compose(self.client, self, key, source, segments, condition)
        finally:
            self.client.forget_listing(key)

    async def _copy_from(self, origin: S3Client, source: str, target: str) -> Generation | None:
        return await copy_object(self.client, source, target, origin)

    async def delete_many(self, keys: Sequence[str]) -> None:
        await asyncio.gather(*(self._delete_batch(batch) for batch in batched(keys, _KEYS_A_DELETE)))

    async def _delete_batch(self, keys: Sequence[str]) -> None:
        wanted = {"Objects": [{"Key": self.client.full_key(key)} for key in keys], "Quiet": True}
        try:
            response = await self.client.call_bucket("delete_objects", "deleting objects of", Delete=wanted)
        finally:
            for key in keys:
                self.client.forget_listing(key)
        if errors := [error for error in response.get("Errors", ()) if error.get("Code") != "NoSuchKey"]:
            first = errors[0]
            raise StorageError(
                f"{len(errors)} of {len(keys)} objects of {self.url} could not be deleted, the first of them "
                f"{self.client.own_key(first.get('Key', ''))!r}: {first.get('Code')}: {first.get('Message')}"
            )

    # -- looking -------------------------------------------------------------------------------------------------------

    async def _pages(self, prefix: str, *, directory: bool, after: str | None = None) -> AsyncIterator[DirListing]:
        parameters = {"Delimiter": "/"} if directory else {}
        if after is not None:
            parameters["StartAfter"] = self.client.full_key(after)
        while True:
            page = await self.client.call_bucket("list_objects_v2", "listing", Prefix=self.client.full_key(prefix), **parameters)
            prefixes = [self.client.own_key(entry["Prefix"]) for entry in page.get("CommonPrefixes", ())]
            yield DirListing(tuple(self._infos(page)), tuple(prefixes))
            if not page.get("IsTruncated"):
                return
            parameters["ContinuationToken"] = page["NextContinuationToken"]

    def _infos(self, page: dict[str, Any]) -> list[ObjectInfo]:
        return [
            ObjectInfo(self.client.own_key(entry["Key"]), int(entry["Size"]), version_of(entry["ETag"], entry))
            for entry in page.get("Contents", ())
            if not entry["Key"].endswith("/")  # the markers by which some tools pretend that there are directories
        ]

    async def version_suffixes(self) -> dict[tuple[str, str], str]:
        """Return, by key and token, what behind the URL of an object names that version of it, of all versions that the bucket keeps.

        Raises:
            InvalidInput: the bucket keeps no versions.
            StorageError: the server does not list them.
        """
        found: dict[tuple[str, str], str] = {}
        markers: dict[str, str] = {}
        full = self.client.full_key("") if self.client.prefix else ""
        while True:
            page = await self.client.call_bucket("list_object_versions", "listing the versions of", Prefix=full, **markers)
            for version in page.get("Versions", ()):
                if version["VersionId"] == "null":
                    raise InvalidInput(
                        f"{self.url} has objects without a version, such as {version['Key']!r}: let the bucket keep versions"
                    )
                found[self.client.own_key(version["Key"]), canonical_etag(version["ETag"])] = f"?versionId={version['VersionId']}"
            if not page.get("IsTruncated"):
                return found
            markers = {"KeyMarker": page["NextKeyMarker"], "VersionIdMarker": page["NextVersionIdMarker"]}

    # -- what was left -------------------------------------------------------------------------------------------------

    async def unfinished_uploads(self, prefix: str) -> AsyncIterator[UnfinishedUpload]:
        """Yield every unfinished upload to a key that starts with ``prefix``. Raises ``StorageError`` if the server does not list them."""
        markers: dict[str, str] = {}
        full = self.client.full_key(prefix) if prefix or self.client.prefix else ""
        while True:
            page = await self.client.call_bucket("list_multipart_uploads", "listing the unfinished uploads of", Prefix=full, **markers)
            for upload in page.get("Uploads", ()):
                yield UnfinishedUpload(self.client.own_key(upload["Key"]), upload["UploadId"], upload["Initiated"])
            if not page.get("IsTruncated"):
                return
            markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Abort an upload, and free its parts; one that has ended by now is no error."""
        try:
            await self.client.call("abort_multipart_upload", "aborting the upload of", upload.key, UploadId=upload.upload_id)
        except RequestFailed as exc:
            if exc.code != "NoSuchUpload":
                raise

    async def leftovers(self, prefix: str) -> Sequence[Leftover]:
        """Return unfinished multipart uploads below ``prefix``: their writers died, or are at work."""
        check_directory(prefix)
        return [
            Leftover(found.key, "upload", f"a multipart upload {found.upload_id} that was begun at {found.begun} and not ended")
            async for found in self.unfinished_uploads(prefix)
        ]
