"""Requests to one bucket through the user's gcsfs instance, with errors translated once, here; and probes of what the server honours.

Credentials, endpoint, billing project and retries stay those of the instance: it sends a request again, up to six times and
with at least a second in between, after 408, 429, 500 to 504 and broken connections. Nothing of gcsfs or aiohttp is imported.

gcsfs reads the whole body of any answer, in ``_request``. For one request it is replaced by a copy of itself, with the same
credentials, options and connections, whose session returns bounded answers: no more is read than was asked for.

Bodies of uploads can be sent again: ``multipart/related`` with the object's metadata and checksum in front. The checksum is sent too, so
that a server that checks it (Google's does) stores nothing if bytes were lost on the way.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO, Any

import google_crc32c

from shardstore.errors import NO_SUCH_BUCKET, AccessDenied, ShardStoreError, StorageError
from shardstore.model.advice import check_endpoint, storage_option
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation, IfAbsent, IfGeneration, Unconditional
from shardstore.model.ranges import ByteRequest
from shardstore.model.redaction import redacted, shown_cause, unusable_options
from shardstore.storage.requests.bucket import BucketClient, BucketFacts, facts_about
from shardstore.storage.requests.outcomes import WRITE_ID, Head, RequestFailed, is_unreachable, modified_seconds, probe_key
from shardstore.storage.requests.probes import is_refused, probe_conditions, remove
from shardstore.storage.requests.ranged_reads import REFUSAL_NBYTES, at_most, received
from shardstore.storage.requests.writes import Body, groups

# -- bounded answers ---------------------------------------------------------------------------------------------------


_ENCODINGS = ("X-Goog-Stored-Content-Encoding", "Content-Encoding")


def encoding_of(headers: Any) -> str | None:
    """Return the encoding that makes the received bytes differ from the counted ones; ``None`` if there is none."""
    return next((headers[name] for name in _ENCODINGS if headers.get(name, "identity") != "identity"), None)


@dataclass(slots=True)
class Allowed:
    """The allowed answers to a request for bytes of the object ``key``: ``request`` of it, or all of it, up to ``most_nbytes``."""

    request: ByteRequest
    most_nbytes: int | None
    key: str
    unasked_nbytes: int
    part: tuple[memoryview, int] | None = None
    """The wanted part of a whole object that came although less was asked for, and the object's size. The body is empty then."""


class _BoundedAnswer:
    """An answer of aiohttp with a bounded body."""

    def __init__(self, answer: Any, allowed: Allowed) -> None:
        self._answer = answer
        self._allowed = allowed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._answer, name)

    async def read(self) -> bytes:
        answer, allowed = self._answer, self._allowed
        blocks = answer.content.iter_any()
        allowed.part = None
        if answer.status not in (200, 206):
            return await at_most(blocks, REFUSAL_NBYTES)
        if encoding_of(answer.headers) is not None:
            return b""  # it is refused for that
        content_range, nbytes = answer.headers.get("Content-Range"), answer.content_length
        body = await received(
            *(allowed.request, answer.status, content_range, nbytes, answer.read, blocks),
            *(allowed.most_nbytes, allowed.key, allowed.unasked_nbytes),
        )
        if isinstance(body, bytes):
            return body
        allowed.part = body
        return b""


class _BoundedSession:
    """A session of aiohttp with bounded answers."""

    def __init__(self, session: Any, allowed: Allowed) -> None:
        self._session = session
        self._allowed = allowed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    @asynccontextmanager
    async def request(self, *arguments: Any, **options: Any) -> AsyncIterator[_BoundedAnswer]:
        async with self._session.request(*arguments, **options) as answer:
            yield _BoundedAnswer(answer, self._allowed)


async def bounded(fs: Any, allowed: Allowed) -> Any:
    """Return ``fs``, a ``gcsfs.GCSFileSystem``, for one request whose answers are bounded by ``allowed``."""
    await fs._set_session()
    copied = object.__new__(type(fs))  # not by its class, which would look for credentials
    vars(copied).update(vars(fs))
    copied._session = _BoundedSession(fs._session, allowed)
    return copied


# -- bodies ------------------------------------------------------------------------------------------------------------


_STEP_BYTES = 1 << 20


def resource(full_key: str, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the object resource of a new version."""
    return {
        "name": full_key,
        "contentType": "application/octet-stream",
        # Otherwise GCS serves publicly readable objects from caches for an hour, also after they were replaced.
        "cacheControl": "no-cache",
        "metadata": dict(metadata),
    }


class Checksum:
    """CRC-32C in the form of the JSON API: four bytes, big-endian, in base64."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, view: memoryview | bytes) -> None:
        for start in range(0, len(view), _STEP_BYTES):  # the library takes nothing but bytes: copied a little at a time
            self._value = google_crc32c.extend(self._value, bytes(view[start : start + _STEP_BYTES]))

    def __str__(self) -> str:
        return base64.b64encode(self._value.to_bytes(4, "big")).decode("ascii")


class Unclosed(io.BytesIO):
    """Bytes to send, as a file that stays open: aiohttp closes what it has sent, but a retry needs it again."""

    def close(self) -> None:
        """Do nothing: it stays open, and is freed with its memory."""


class _UnclosedFile(io.FileIO):
    """A file to send that stays open, on a descriptor that its owner closes."""

    def close(self) -> None:
        """Do nothing: it stays open until its owner closes the descriptor."""


class _Envelope:
    """The envelope around the bytes in the request."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.checksum = Checksum()
        self._document = document
        self._boundary = uuid.uuid4().hex

    @property
    def headers(self) -> dict[str, str]:
        return {"Content-Type": f'multipart/related; boundary="{self._boundary}"'}

    def _head(self) -> bytes:
        """Return the part before the bytes; it has the same length whatever the checksum."""
        document = json.dumps({**self._document, "crc32c": str(self.checksum)})
        return (
            f"--{self._boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{document}\r\n"
            f"--{self._boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
        ).encode("ascii")

    def _tail(self) -> bytes:
        return f"\r\n--{self._boundary}--\r\n".encode("ascii")


class MemoryBody(_Envelope):
    """A body of pieces that are in memory; they are copied once."""

    def __init__(self, views: Sequence[memoryview | bytes], document: Mapping[str, Any]) -> None:
        super().__init__(document)
        for view in views:
            self.checksum.update(view)
        self._whole = b"".join([self._head(), *views, self._tail()])

    def start(self) -> io.BytesIO:
        """Return the request's body, from its start."""
        return Unclosed(self._whole)


class SpooledBody(_Envelope):
    """A body that went through a local file, which the caller opened and closes."""

    def __init__(self, file: IO[bytes], document: Mapping[str, Any]) -> None:
        super().__init__(document)
        self._file = file

    async def spool(self, body: Body, nbytes: int, key: str) -> None:
        """Write all of ``body`` to the file. Raises ``InvalidInput`` if it is not ``nbytes`` long."""
        await asyncio.to_thread(self._file.write, self._head())  # its room
        async for group in groups(body, nbytes, _STEP_BYTES, key):
            for view in group:
                self.checksum.update(view)
            await asyncio.to_thread(self._file.writelines, group)
        await asyncio.to_thread(self._file.write, self._tail())
        self._file.seek(0)
        self._file.write(self._head())
        self._file.flush()

    def start(self) -> io.FileIO:
        """Return the request's body, from its start."""
        body = _UnclosedFile(self._file.fileno(), "rb", closefd=False)
        body.seek(0)
        return body


# -- requests ----------------------------------------------------------------------------------------------------------


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


def condition_query(condition: Condition) -> dict[str, str]:
    """Return the parameters that make a request conditional."""
    match condition:
        case IfAbsent():
            return {"ifGenerationMatch": "0"}
        case IfGeneration(generation):
            return {"ifGenerationMatch": generation.token}
        case Unconditional():
            return {}


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


_ANONYMOUS = storage_option("gs", "token", "anon")


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
            has_credentials = getattr(getattr(self.fs, "credentials", None), "credentials", None) is not None
            how = "with the credentials of this filesystem" if has_credentials else "to anonymous requests"
            denied = AccessDenied(
                f"{what}: the server denied access {how} ({text}). Give the file of a service account, {storage_option('gs', 'token')}; "
                f"for a public bucket {_ANONYMOUS}"
            )
            denied.status = status
            return denied
        if type(exc).__module__.startswith("google.auth"):
            return AccessDenied(
                f"{what}: no usable credentials were found ({text}). Give the file of a service account, {storage_option('gs', 'token')}; "
                f"for a public bucket {_ANONYMOUS}"
            )
        if is_unreachable(exc):
            error = RequestFailed(f"{what}: {self.endpoint} cannot be reached: {check_endpoint('gs')} ({text})")
            error.is_unreachable = True
            return error
        if isinstance(exc, TypeError | AttributeError | KeyError) and not self._bucket_seen:
            return unusable_options(f"{what} failed", self.fs.storage_options, exc)
        error = RequestFailed(f"{what} failed: {status or type(exc).__name__}: {text}")
        error.status = status
        return error

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
            f"the bucket {self.bucket!r} does not exist at {self.endpoint}. Create it, or correct its name. If it is on another server, "
            f"give the address of that: {storage_option('gs', 'endpoint_url')}"
        )
        error.status, error.code = 404, NO_SUCH_BUCKET
        return error

    async def head(self, key: str) -> Head | None:
        """Return version and size of the live object, ``None`` if there is none."""
        answer = await self.object("GET", OBJECT, key, "looking up", query={"fields": "generation,size,metadata"})
        return None if answer is None else head_of(answer.json(f"looking up {key!r}"), key)

    async def put_empty(self, key: str, condition: Condition) -> None:
        body = MemoryBody([], resource(self.full_key(key), {}))
        query = {"uploadType": "multipart", **condition_query(condition)}
        await self.insert("probing conditional writes", query, headers=body.headers, data=body.start())

    async def delete(self, key: str, condition: Condition, action: str = "deleting") -> bool:
        return await self.object("DELETE", OBJECT, key, action, query=condition_query(condition)) is not None

    async def insert(self, what: str, query: Mapping[str, str], **options: Any) -> GCSAnswer:
        """Make one request to the upload endpoint."""
        path = f"{self.fs._location}/upload/storage/v1/b/{{}}/o"
        try:
            return await self.request("POST", path, self.bucket, what=what, query=query, **options)
        except RequestFailed as exc:
            if exc.status == 404:
                raise self.no_bucket() from exc
            raise


# -- probes ------------------------------------------------------------------------------------------------------------


_MADE_UP = Generation("1")  # generations are microseconds since 1970


@dataclass
class GCSFacts(BucketFacts):
    """See ``BucketFacts``."""

    resumable_conditions: bool | None = None
    """True if the end of a resumable upload honours the condition of its start: fake-gcs-server's does not. ``None``: not known yet."""
    tells_generation: bool = True
    """True if an answer with an object's bytes gives its generation: gcp-storage-emulator's does not."""


def facts_of(client: GCSClient) -> GCSFacts:
    return facts_about(client, GCSFacts)


async def probe_server(client: GCSClient, claimed: Capabilities) -> Capabilities:
    """Return ``claimed`` with what the server honours."""
    return await probe_conditions(client, claimed, _MADE_UP, is_trusted=client.is_google)


async def probe_resumable(client: GCSClient) -> bool:
    """Return whether a resumable upload honours its condition when it ends, not only when it starts. Nothing is left behind."""
    key = probe_key()
    what = "probing resumable uploads"
    document = resource(client.full_key(key), {})
    query = {"uploadType": "resumable", "name": client.full_key(key), "ifGenerationMatch": "0"}
    started = await client.insert(what, query, document=document)
    try:
        await client.put_empty(key, UNCONDITIONAL)
        # The condition held when the upload was started, and does not any more.
        end = client.request("PUT", started.headers.get("Location", ""), what=what, headers={"Content-Range": "bytes 0-0/1"}, data=b"p")
        return await is_refused(end) is True
    finally:
        await remove(client, key)
