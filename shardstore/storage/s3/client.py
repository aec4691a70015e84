"""Calls to one bucket through the user's s3fs instance, with errors translated once, here; and probes of what the server honours.

Credentials, endpoint and retries stay those of the instance. Nothing of s3fs or botocore is imported: their exceptions are recognised
by the response that they carry.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from shardstore.errors import NO_SUCH_BUCKET, AccessDenied, ShardStoreError, StorageError
from shardstore.model.advice import check_endpoint, storage_option
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import Condition, Generation, IfAbsent, IfGeneration, Unconditional
from shardstore.model.redaction import unusable_options
from shardstore.storage.base import ServerTimes
from shardstore.storage.requests.bucket import BucketClient, BucketFacts, facts_about
from shardstore.storage.requests.outcomes import (
    WRITE_ID,
    Head,
    RequestFailed,
    generation_of,
    is_unreachable,
    probe_key,
    server_times,
)
from shardstore.storage.requests.probes import NOT_KNOWN, is_refused, probe_conditions, remove

_NO_PLAIN_BUCKET = re.compile(r":|--[a-z0-9]+-s3$|-s3alias$|\.mrap$")  # ARNs, and the endings that AWS keeps for itself

_ALIAS = re.compile(r":|--ol-s3$|-s3alias$|\.mrap$")  # of access points, also such to a part of a bucket


def head_of(response: Mapping[str, Any], key: str) -> Head:
    """Return version and size from the answer to a HEAD."""
    return Head(generation_of(response, key), int(response["ContentLength"]), response.get("Metadata", {}).get(WRITE_ID))


def member_of(response: Mapping[str, Any], name: str, action: str, key: str) -> str:
    """Return a member that an answer must have for the work to go on."""
    value: str | None = response.get(name)
    if not value:
        raise StorageError(f"{action} {key!r}: the server's answer has no {name}")
    return value


def _response_of(exc: BaseException) -> Mapping[str, Any]:
    """Return the server's answer that botocore attached to its error, which s3fs makes the cause of its own."""
    for error in (exc, exc.__cause__):
        response = getattr(error, "response", None)
        if isinstance(response, Mapping):
            return response
    return {}


def _has_no_credentials(exc: BaseException) -> bool:
    names = {base.__name__ for error in (exc, exc.__cause__) if error is not None for base in type(error).__mro__}
    return not names.isdisjoint({"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"})


AWS = "aws"
"""The name of Amazon's own servers in ``S3Client.endpoint``."""

_ANONYMOUS = storage_option("s3", "anon", True)


def translated(exc: Exception, action: str, where: str, bucket: str, endpoint: str = AWS) -> ShardStoreError:
    """Return the error to raise, from ``exc``, if a request failed."""
    if isinstance(exc, ShardStoreError):
        return exc
    if _has_no_credentials(exc):
        return AccessDenied(
            f"{action} {where}: no usable credentials were found ({exc}). Give key and secret, or {storage_option('s3', 'profile')}; "
            f"for a public bucket {_ANONYMOUS}"
        )
    if is_unreachable(exc):
        lost = RequestFailed(f"{action} {where}: the server cannot be reached: {check_endpoint('s3')} ({exc})")
        lost.is_unreachable = True
        return lost
    response = _response_of(exc)
    error: StorageError
    code = str(response.get("Error", {}).get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if status is None and code.isdecimal():
        status = int(code)
    if status in (401, 403) or (status is None and isinstance(exc, PermissionError)):
        error = AccessDenied(
            f"{action} {where}: the server denied access ({code or exc}). Without the permission ListBucket it says so of what does not "
            f"exist, too. A public bucket may need {_ANONYMOUS}, and one whose requester pays "
            f"{storage_option('s3', 'requester_pays', True)}"
        )
    elif code == NO_SUCH_BUCKET:
        error = RequestFailed(
            f"the bucket {bucket!r} does not exist {'on AWS' if endpoint == AWS else f'at {endpoint}'}. Create it, or correct its name. "
            f"If it is on another server, give the address of that: {storage_option('s3', 'endpoint_url')}"
        )
    else:
        error = RequestFailed(f"{action} {where} failed: {code or type(exc).__name__}: {exc}")
    error.status, error.code = status, code
    return error


@dataclass
class S3Facts(BucketFacts):
    """See ``BucketFacts``."""

    multipart_conditions: bool | None = None
    """True if CompleteMultipartUpload honours conditions: moto and Ceph do not."""
    copies_parts: bool | None = None
    """True if the server knows UploadPartCopy, and copies the range that it is asked for."""
    copies_on_condition: bool | None = None
    """True if UploadPartCopy honours conditions on the source: moto and Ceph do not."""
    refused_wrongly: bool = False
    """True if it has refused to copy the version that was there, and has not copied any since."""
    etag_unquoted: bool = False
    """True if ``If-Match`` of a PUT matches only without quotes, as with Ceph; learned when it is refused with them."""
    etag_wording_is_proved: bool = False
    """True if a PUT on condition of an ETag has succeeded in that wording."""

    def if_match(self, generation: Generation) -> str:
        """Return the header's value of ``If-Match`` for a write."""
        return generation.token.strip('"') if self.etag_unquoted else generation.token


def facts_of(client: S3Client) -> S3Facts:
    """Return the facts of the client's endpoint and bucket."""
    return facts_about(client, S3Facts)


def condition_parameters(condition: Condition, facts: S3Facts) -> dict[str, str]:
    """Return what makes a request conditional, by the names of parameters."""
    match condition:
        case IfAbsent():
            return {"IfNoneMatch": "*"}
        case IfGeneration(generation):
            return {"IfMatch": facts.if_match(generation)}
        case Unconditional():
            return {}


class S3Client(BucketClient):
    """Requests on the objects below ``prefix`` of ``bucket``; at most ``concurrency`` at once."""

    scheme = "s3"
    max_copy_bytes = 5 << 30
    """The largest object that CopyObject takes."""
    min_copied_part_bytes = 512 << 20
    min_uploaded_part_bytes = 8 << 20
    found_server: str | None = None
    """The server that another transport to the same place has found out."""

    @property
    def endpoint(self) -> str:
        """The server that this talks to, as far as its abilities matter."""
        return str(getattr(self.fs, "endpoint_url", None) or (self.fs.client_kwargs or {}).get("endpoint_url") or AWS)

    @property
    def is_aws(self) -> bool:
        """True if the server is Amazon's own, whose manual can be trusted; known for sure after ``connect``, or a request.

        The environment and the configuration files can name another one too, which s3fs does not know.
        """
        endpoint = self._connected() or self.endpoint
        return endpoint == AWS or (urlsplit(endpoint).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def _connected(self) -> str | None:
        """Return the server that the client of s3fs is connected to, if it is; or would be, as another transport has found out."""
        endpoint = getattr(getattr(getattr(self.fs, "_s3", None), "meta", None), "endpoint_url", None)
        return self.found_server if endpoint is None else str(endpoint)

    async def server(self) -> str:
        await self.connect()
        return self._connected() or self.endpoint

    @property
    def is_alias(self) -> bool:
        return _ALIAS.search(self.bucket) is not None

    async def connect(self) -> None:
        """Find out for sure which server this talks to. Raises as ``call`` does."""
        if self._connected() is not None:
            return
        try:
            await self.fs.set_session()
        except Exception as exc:
            raise translated(exc, "connecting to", self.url, self.bucket, self.endpoint) from exc

    def times_of(self, response: Mapping[str, Any]) -> ServerTimes | None:
        """Return when AWS stored the object of an answer, and when it answered. ``None`` if these may be other times.

        Other servers may show the times of files, which programs can set. So may AWS where the bucket is something else, which its name
        shows: an access point, perhaps to a file system; a directory bucket, where objects are renamed with their times; or objects
        that a function makes. For an upload in parts, as its ETag shows, it is the time at which the upload began.
        """
        if not self.is_aws or _NO_PLAIN_BUCKET.search(self.bucket) or "-" in str(response.get("ETag")):
            return None
        headers = response["ResponseMetadata"].get("HTTPHeaders", {})
        return server_times(headers.get("last-modified"), headers.get("date"))

    async def unbounded_call(self, method: str, action: str, where: str, **parameters: Any) -> dict[str, Any]:
        """Make one request, for a caller that holds a slot of ``bound``."""
        try:
            # Who pays goes with every request: not all versions of s3fs add it to all calls. Operations that do not know it do without.
            response: dict[str, Any] = await self.fs._call_s3(method, self.fs.req_kw, Bucket=self.bucket, **parameters)
        except Exception as exc:
            if isinstance(exc, TypeError | AttributeError | KeyError | ValueError) and getattr(self.fs, "_s3", self) is None:
                raise unusable_options(f"{action} {where} failed", self.fs.storage_options, exc) from exc
            raise translated(exc, action, where, self.bucket, self.endpoint) from exc
        return response

    async def call(self, method: str, action: str, key: str, **parameters: Any) -> dict[str, Any]:
        """Make one request on the object of ``key``. Raises ``AccessDenied`` or ``RequestFailed``."""
        async with self.bound.slot():
            return await self.unbounded_call(method, action, repr(key), Key=self.full_key(key), **parameters)

    async def call_bucket(self, method: str, action: str, **parameters: Any) -> dict[str, Any]:
        """Make one request on the bucket."""
        async with self.bound.slot():
            return await self.unbounded_call(method, action, self.url, **parameters)

    async def head(self, key: str, **conditions: str) -> Head | None:
        """Return version and size of the object, ``None`` if there is none. A failed condition is ``RequestFailed``, status 412."""
        try:
            response = await self.call("head_object", "looking up", key, **conditions)
        except RequestFailed as exc:
            if exc.is_absent:
                return None
            raise
        return head_of(response, key)

    async def put_empty(self, key: str, condition: Condition) -> None:
        await self.call("put_object", PROBING, key, Body=b"", **condition_parameters(condition, facts_of(self)))

    async def delete(self, key: str, condition: Condition, action: str = "deleting") -> bool:
        await self.call("delete_object", action, key, **condition_parameters(condition, facts_of(self)))
        return True


# -- probes ------------------------------------------------------------------------------------------------------------


PROBING = "probing conditional writes with"
_REFUSED = (404, 409, 412)
_TRIES = 3


def _made_up_etag() -> str:
    return f'"{secrets.token_hex(16)}"'


async def probe_server(client: S3Client, claimed: Capabilities) -> Capabilities:
    """Return ``claimed`` with what the server honours: asked of AWS by two requests that change nothing."""
    await client.connect()
    made_up = Generation(_made_up_etag())
    if not client.is_aws:
        return await probe_conditions(client, claimed, made_up, is_trusted=False, refusals=_REFUSED)
    swap, delete = await asyncio.gather(
        is_refused(client.put_empty(probe_key(), IfGeneration(made_up)), _REFUSED),
        is_refused(client.delete(probe_key(), IfGeneration(made_up), PROBING), _REFUSED),
    )
    honoured = swap is True  # create, too: its manual can be believed
    return replace(claimed, compare_and_swap=honoured, create_if_absent=honoured, conditional_delete=delete is True)


async def probe_multipart(client: S3Client) -> bool:
    """Return whether a multipart upload can be made conditional. Leaves nothing, whatever the answer."""
    for _ in range(_TRIES):
        if (honoured := await _probe_upload(client, probe_key())) is not None:
            return honoured
    raise RequestFailed(
        f"shardstore cannot determine whether {client.endpoint} honours conditions on multipart uploads: another client, such as "
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
        end = client.call("complete_multipart_upload", PROBING, key, UploadId=upload_id, MultipartUpload=parts, IfMatch=_made_up_etag())
        refused = await is_refused(end, _REFUSED)
    finally:
        if refused is False:
            is_stored = await client.head(key) is not None
            await remove(client, key)
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
        if exc.status in (*NOT_KNOWN, 404) and exc.code != "NoSuchUpload":  # which repair may have aborted
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
