"""What a server that speaks S3 honours, found out by requests that write nothing on servers that do.

A server that does not know conditional writes may answer 200 to them and overwrite: success alone proves nothing, so the
question is asked such that the right answer is a refusal.
"""

from __future__ import annotations

import asyncio
import secrets
import uuid
from dataclasses import dataclass
from typing import Any

from shardstore.model.generation import Generation
from shardstore.storage.capabilities import Capabilities
from shardstore.storage.object_requests import RequestFailed
from shardstore.storage.s3_client import S3Client

_REFUSED = (404, 409, 412)
_NOT_KNOWN = (400, 405, 501)

CLAIMED_WITHOUT_PROBE = Capabilities(pinned_reads=True, durable=True)
"""Reads compare the ETag of the answer themselves, so they need nothing of the server but an ETag."""


@dataclass
class ServerFacts:
    """What is known of one endpoint and bucket, shared by all storages of this process."""

    capabilities: Capabilities | None = None
    multipart_conditions: bool | None = None
    """Whether CompleteMultipartUpload honours conditions: moto and Ceph do not."""
    etag_unquoted: bool = False
    """Whether ``If-Match`` of a PUT matches only without quotes, as with Ceph; learned when it is refused with them."""
    warned: bool = False

    def if_match(self, generation: Generation) -> str:
        """The header's value for a write."""
        return generation.token.strip('"') if self.etag_unquoted else generation.token


_facts: dict[tuple[str, str], ServerFacts] = {}


def facts_of(client: S3Client) -> ServerFacts:
    return _facts.setdefault((client.endpoint, client.bucket), ServerFacts())


def forget_facts() -> None:
    """Ask again; for tests, and after a server was updated."""
    _facts.clear()


def _made_up_etag() -> str:
    return f'"{secrets.token_hex(16)}"'


def _probe_key() -> str:
    return f".shardstore-probe-{uuid.uuid4().hex}"


async def _is_refused(client: S3Client, method: str, key: str, **parameters: Any) -> bool | None:
    """Whether the server refuses a request that it should; ``None`` where it does not know such requests."""
    try:
        await client.call(method, "probing conditional writes with", key, **parameters)
    except RequestFailed as exc:
        if exc.code == "NoSuchBucket":
            raise
        if exc.status in _REFUSED:
            return True
        if exc.status in _NOT_KNOWN:
            return None
        raise
    return False


async def probe_server(client: S3Client) -> Capabilities:
    """Ask for the abilities of the server: two requests that change nothing where it has them all."""
    key = _probe_key()
    swap, delete = await asyncio.gather(
        _is_refused(client, "put_object", key, Body=b"", IfMatch=_made_up_etag()),
        _is_refused(client, "delete_object", _probe_key(), IfMatch=_made_up_etag()),
    )
    # No server is known that honours If-Match but not If-None-Match, which came first; the reverse has to be tried.
    create = True if swap else await _probe_create(client, key)
    return Capabilities(
        pinned_reads=True, durable=True, compare_and_swap=swap is True, create_if_absent=create, conditional_delete=delete is True
    )


async def _probe_create(client: S3Client, key: str) -> bool:
    """Create an object, and see whether creating it again is refused."""
    try:
        first = await _is_refused(client, "put_object", key, Body=b"")
        again = await _is_refused(client, "put_object", key, Body=b"", IfNoneMatch="*")
        return first is False and again is True
    finally:
        await client.call("delete_object", "removing the probe", key)


async def probe_multipart(client: S3Client) -> bool:
    """Whether a multipart upload can be made conditional. Leaves nothing, whatever the answer."""
    key = _probe_key()
    created = await client.call("create_multipart_upload", "probing multipart uploads with", key)
    upload_id = created["UploadId"]
    refused: bool | None = None
    try:
        part = await client.call("upload_part", "probing multipart uploads with", key, UploadId=upload_id, PartNumber=1, Body=b"p")
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        refused = await _is_refused(
            client, "complete_multipart_upload", key, UploadId=upload_id, MultipartUpload=parts, IfMatch=_made_up_etag()
        )
    finally:
        if refused is False:
            await client.call("delete_object", "removing the probe", key)
        else:
            await client.call("abort_multipart_upload", "removing the probe", key, UploadId=upload_id)
    return refused is True
