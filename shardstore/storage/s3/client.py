"""Calls to one bucket through the user's s3fs instance, with errors translated once, here.

Credentials, endpoint and retries stay those of the instance. Nothing of s3fs or botocore is imported: their exceptions are recognised
by the response that they carry.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from shardstore.errors import AccessDenied, ShardStoreError, StorageError
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import Generation
from shardstore.model.redaction import unusable_options
from shardstore.storage.base import ServerTimes
from shardstore.storage.connection_errors import CHECK_ENDPOINT, is_unreachable
from shardstore.storage.inferred_versions import modified_seconds
from shardstore.storage.requests.bucket import BucketClient
from shardstore.storage.requests.outcomes import WRITE_ID, Head, RequestFailed, server_times

_NO_PLAIN_BUCKET = re.compile(r":|--[a-z0-9]+-s3$|-s3alias$|\.mrap$")  # ARNs, and the endings that AWS keeps for itself

_ALIAS = re.compile(r":|--ol-s3$|-s3alias$|\.mrap$")  # of access points, also such to a part of a bucket


def canonical_etag(etag: str) -> str:
    """Return the ETag in quotes, as headers have it: some servers leave them out in some answers. Weak ones stay unchanged."""
    return etag if etag.startswith("W/") else '"' + etag.strip('"') + '"'


def head_of(response: Mapping[str, Any], key: str) -> Head:
    """Return version and size from the answer to a HEAD."""
    return Head(generation_of(response, key), int(response["ContentLength"]), response.get("Metadata", {}).get(WRITE_ID))


def generation_of(response: Mapping[str, Any], key: str) -> Generation:
    """Return the version that an answer is about."""
    etag = response.get("ETag")
    if not etag:
        raise StorageError(f"the server's answer for {key!r} has no ETag: its versions cannot be distinguished")
    return version_of(etag, response)


def version_of(etag: str, facts: Mapping[str, Any]) -> Generation:
    """Return the version with this ETag; ``facts`` of the object, in an answer or a listing, may say when it was stored."""
    return Generation(canonical_etag(etag), modified_seconds(facts))


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


def translated(exc: Exception, action: str, where: str, bucket: str) -> ShardStoreError:
    """Return the error to raise, from ``exc``, if a request failed."""
    if isinstance(exc, ShardStoreError):
        return exc
    if _has_no_credentials(exc):
        return AccessDenied(
            f"{action} {where}: no usable credentials were found ({exc}); give storage_options with key and secret, or profile, "
            "or anon=True for public buckets"
        )
    if is_unreachable(exc):
        error = RequestFailed(f"{action} {where}: the server cannot be reached: {CHECK_ENDPOINT} ({exc})")
        error.is_unreachable = True
        return error
    response = _response_of(exc)
    code = str(response.get("Error", {}).get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if status is None and code.isdecimal():
        status = int(code)
    if status in (401, 403) or (status is None and isinstance(exc, PermissionError)):
        return AccessDenied(
            f"{action} {where}: the server denied access ({code or exc}). Without the permission ListBucket it says so of absent ones too; "
            "public buckets may need storage_options={'anon': True}, buckets whose requester pays {'requester_pays': True}"
        )
    if code == "NoSuchBucket":
        error = RequestFailed(
            f"{action} {where}: the bucket {bucket!r} does not exist there. Create it, or correct its name; if it is on another server "
            "than AWS's, give that as storage_options={'endpoint_url': …}"
        )
    else:
        error = RequestFailed(f"{action} {where} failed: {code or type(exc).__name__}: {exc}")
    error.status, error.code = status, code
    return error


@dataclass
class S3Facts:
    """The known facts of one endpoint and bucket, shared by all storages of this process."""

    capabilities: Capabilities | None = None
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
    warned: bool = False

    def if_match(self, generation: Generation) -> str:
        """Return the header's value of ``If-Match`` for a write."""
        return generation.token.strip('"') if self.etag_unquoted else generation.token


_facts: dict[tuple[str, str], S3Facts] = {}


def facts_of(client: S3Client) -> S3Facts:
    """Return the facts of the client's endpoint and bucket."""
    return _facts.setdefault((client.endpoint, client.bucket), S3Facts())


def forget_facts() -> None:
    """Forget all facts, so that servers are asked again; for tests, and after a server was updated."""
    _facts.clear()


class S3Client(BucketClient):
    """Requests on the objects below ``prefix`` of ``bucket``; at most ``concurrency`` at once."""

    scheme = "s3"
    max_copy_bytes = 5 << 30
    """The largest object that CopyObject takes."""
    min_copied_part_bytes = 512 << 20
    min_uploaded_part_bytes = 8 << 20

    @property
    def endpoint(self) -> str:
        """The server that this talks to, as far as its abilities matter."""
        return str(getattr(self.fs, "endpoint_url", None) or (self.fs.client_kwargs or {}).get("endpoint_url") or "aws")

    @property
    def is_aws(self) -> bool:
        """True if the server is Amazon's own, whose manual can be trusted; known for sure after ``connect``, or a request.

        The environment and the configuration files can name another one too, which s3fs does not know.
        """
        endpoint = self._connected() or self.endpoint
        return endpoint == "aws" or (urlsplit(endpoint).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def _connected(self) -> str | None:
        """Return the server that the client of s3fs is connected to, if it is."""
        endpoint = getattr(getattr(getattr(self.fs, "_s3", None), "meta", None), "endpoint_url", None)
        return None if endpoint is None else str(endpoint)

    async def server(self) -> str:
        await self.connect()
        return self._connected() or self.endpoint

    @property
    def is_alias(self) -> bool:
        return _ALIAS.search(self.bucket) is not None

    async def connect(self) -> None:
        """Find out for sure which server this talks to. Raises as ``call`` does."""
        try:
            await self.fs.set_session()
        except Exception as exc:
            raise translated(exc, "connecting to", self.url, self.bucket) from exc

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
            raise translated(exc, action, where, self.bucket) from exc
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
