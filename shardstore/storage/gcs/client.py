"""Requests to one bucket through the user's gcsfs instance, with errors translated once, here.

Credentials, endpoint, billing project and retries stay those of the instance: it sends a request again, up to six times and
with at least a second in between, after 408, 429, 500 to 504 and broken connections. Nothing of gcsfs or aiohttp is imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardstore.errors import AccessDenied, ShardStoreError, StorageError
from shardstore.model.generation import Generation
from shardstore.model.redaction import redacted, shown_cause, unusable_options
from shardstore.storage.connection_errors import CHECK_ENDPOINT, is_unreachable
from shardstore.storage.gcs.bounded import Allowed, bounded
from shardstore.storage.inferred_versions import modified_seconds
from shardstore.storage.requests.bucket import BucketClient
from shardstore.storage.requests.outcomes import WRITE_ID, Head, RequestFailed

OBJECT = "b/{}/o/{}"
"""Path of an object in the JSON API, for bucket and full key."""


@dataclass(frozen=True, slots=True)
class GCSAnswer:
    """An answer of the server; the names of headers are found in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self, what: str) -> dict[str, Any]:
        """Return the body as a JSON object. Raises ``StorageError`` if it is no JSON object."""
        try:
            document = json.loads(self.body)
        except ValueError as exc:
            raise StorageError(f"{what}: the server answered {self.status} with something that is not JSON") from exc
        if not isinstance(document, dict):
            raise StorageError(f"{what}: the server answered {self.status} with JSON that is no object")
        return document


def head_of(resource: Mapping[str, Any], key: str) -> Head:
    """Return size and version from an object resource of the JSON API."""
    generation, nbytes = resource.get("generation"), resource.get("size")
    if not generation or nbytes is None:
        raise StorageError(f"the server's answer for {key!r} lacks generation or size: its versions cannot be distinguished")
    return Head(Generation(str(generation), modified_seconds(resource)), int(nbytes), (resource.get("metadata") or {}).get(WRITE_ID))


def can_match(generation: Generation) -> bool:
    """Return whether an object in GCS can have this generation: a number above 0, which stands for no object."""
    return generation.token.isdecimal() and generation.token != "0"


def _status_of(exc: Exception) -> int | None:
    """Return the status that gcsfs turned into ``exc``; ``None`` if there was no answer."""
    if isinstance(exc, FileNotFoundError):
        return 404
    if isinstance(exc, FileExistsError):
        return 412
    if isinstance(exc, PermissionError) or (isinstance(exc, OSError) and str(exc).startswith("Forbidden")):
        return 403
    if isinstance(exc, ValueError):  # a refusal whose text says "invalid", or a requester that has to pay
        return 400
    for name in ("code", "status"):
        code = getattr(exc, name, None)
        if isinstance(code, int) or (isinstance(code, str) and code.isdecimal()):
            return int(code)
    return None


class GCSClient(BucketClient):
    """Requests on the objects below ``prefix`` of ``bucket``; at most ``concurrency`` at once."""

    scheme = "gs"
    upload_part_bytes = 16 << 20
    """The size of the parts of a resumable upload, which holds two of them in memory. A multiple of 256 KiB, as GCS requires."""
    max_spooled_bytes = 5 << 30
    """The largest body that goes through a local file."""

    def __init__(self, fs: Any, bucket: str, prefix: str, concurrency: int) -> None:
        super().__init__(fs, bucket, prefix, concurrency)
        self._bucket_seen = False

    @property
    def endpoint(self) -> str:
        """The server that this talks to."""
        return str(self.fs._location)

    @property
    def is_google(self) -> bool:
        """True if the server is Google's own, whose manual can be trusted."""
        return bool(getattr(self.fs, "on_google", False))

    def translated(self, exc: Exception, what: str) -> ShardStoreError:
        """Return the error to raise, from ``exc``, if the request for ``what`` failed."""
        if isinstance(exc, ShardStoreError):
            return exc
        status, text = _status_of(exc), redacted(" ".join(str(exc).split()))  # gcsfs puts the server's text on a line of its own
        if status in (401, 403):
            how = "with the credentials of this filesystem" if self._has_credentials() else "to anonymous requests"
            return AccessDenied(
                f"{what}: the server denied access {how} ({text}). Give storage_options with token= (a service account's file, "
                'or "google_default"), or token="anon" for public buckets'
            )
        if type(exc).__module__.startswith("google.auth"):
            return AccessDenied(
                f'{what}: no usable credentials were found ({text}); give storage_options with token=, or token="anon" for public buckets'
            )
        if is_unreachable(exc):
            error = RequestFailed(f"{what}: {self.endpoint} cannot be reached: {CHECK_ENDPOINT} ({text})")
            error.is_unreachable = True
            return error
        if isinstance(exc, TypeError | AttributeError | KeyError) and not self._bucket_seen:
            return unusable_options(f"{what} failed", self.fs.storage_options, exc)
        error = RequestFailed(f"{what} failed: {status or type(exc).__name__}: {text}")
        error.status = status
        return error

    def _has_credentials(self) -> bool:
        return getattr(getattr(self.fs, "credentials", None), "credentials", None) is not None

    async def request(
        self,
        method: str,
        path: str,
        *parts: str,
        what: str,
        headers: Mapping[str, str] | None = None,
        data: Any = None,
        document: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        allowed: Allowed | None = None,
    ) -> GCSAnswer:
        """Make one request, which gcsfs repeats by its own rules; ``parts`` are quoted and filled into ``path``. Where ``allowed`` is
        given, no more of the answer is read than it allows.

        Raises ``AccessDenied`` or ``RequestFailed``.
        """
        async with self.bound.slot():
            try:
                fs = self.fs if allowed is None else await bounded(self.fs, allowed)
                status, answered, _, body = await fs._request(
                    method, path, *parts, headers=headers, json=document, data=data, **(query or {})
                )
            except Exception as exc:  # noqa: BLE001 - none is lost, but for the chain of one that shows a token
                raise self.translated(exc, what) from shown_cause(exc)
        if status < 400:
            self._bucket_seen = True
        return GCSAnswer(status, answered, body)

    async def found(self, method: str, path: str, *parts: str, what: str, **options: Any) -> GCSAnswer | None:
        """Make one request on an object; return ``None`` if there is no such object, or not in the version that the request names."""
        try:
            return await self.request(method, path, *parts, what=what, **options)
        except RequestFailed as exc:
            if exc.status != 404:
                raise
        await self._check_bucket()
        return None

    async def object(self, method: str, path: str, key: str, action: str, **options: Any) -> GCSAnswer | None:
        """Make one request on the object of ``key``; return ``None`` as ``found`` does."""
        return await self.found(method, path, self.bucket, self.full_key(key), what=f"{action} {key!r}", **options)

    async def _check_bucket(self) -> None:
        """Ask once whether the bucket exists: gcsfs gives nothing about a 404 but the path."""
        if self._bucket_seen:
            return
        try:
            await self.request("GET", "b/{}/o", self.bucket, what=f"listing {self.url}", query={"maxResults": "1", "fields": "kind"})
        except RequestFailed as exc:
            if exc.status == 404:
                raise self.no_bucket() from exc
            raise
        except AccessDenied:  # who may read need not be allowed to list: not known, then
            return

    def no_bucket(self) -> RequestFailed:
        """Return the error of a bucket that does not exist."""
        error = RequestFailed(
            f"the bucket {self.bucket!r} does not exist at {self.endpoint}. Create it, or correct its name; if it is on another server "
            "than Google's, give that as storage_options={'endpoint_url': …}"
        )
        error.status, error.code = 404, "NoSuchBucket"
        return error

    async def head(self, key: str) -> Head | None:
        """Return version and size of the live object, ``None`` if there is none."""
        answer = await self.object("GET", OBJECT, key, "looking up", query={"fields": "generation,size,metadata"})
        return None if answer is None else head_of(answer.json(f"looking up {key!r}"), key)

    async def insert(self, what: str, query: Mapping[str, str], **options: Any) -> GCSAnswer:
        """Make one request to the upload endpoint."""
        path = f"{self.fs._location}/upload/storage/v1/b/{{}}/o"
        try:
            return await self.request("POST", path, self.bucket, what=what, query=query, **options)
        except RequestFailed as exc:
            if exc.status == 404:
                raise self.no_bucket() from exc
            raise
