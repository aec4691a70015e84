"""Unfinished multipart uploads, neither completed nor aborted: the server keeps their parts, and charges for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime

from shardstore.storage.requests.outcomes import RequestFailed
from shardstore.storage.s3.client import S3Client


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """One upload to ``key``; ``begun`` by the server's clock, aware of its time zone."""

    key: str
    upload_id: str
    begun: datetime


async def unfinished_uploads(client: S3Client, prefix: str) -> AsyncIterator[UnfinishedUpload]:
    """Yield every upload to a key that starts with ``prefix``. Raises ``RequestFailed`` where the server does not list them."""
    markers: dict[str, str] = {}
    full = client.full_key(prefix) if prefix or client.prefix else ""
    while True:
        page = await client.call_bucket("list_multipart_uploads", "listing the unfinished uploads of", Prefix=full, **markers)
        for upload in page.get("Uploads", ()):
            yield UnfinishedUpload(client.own_key(upload["Key"]), upload["UploadId"], upload["Initiated"])
        if not page.get("IsTruncated"):
            return
        markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


async def abort_upload(client: S3Client, upload: UnfinishedUpload) -> None:
    """Abort an upload, and free its parts; one that has ended by now is no error."""
    try:
        await client.call("abort_multipart_upload", "aborting the upload of", upload.key, UploadId=upload.upload_id)
    except RequestFailed as exc:
        if exc.code != "NoSuchUpload":
            raise
