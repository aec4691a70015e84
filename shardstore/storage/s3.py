"""Objects in S3 and servers that speak its language, through an s3fs instance's own client calls.

Past s3fs's file interface: that drops conditions on large writes, reads large objects by several requests that can see
several versions, and remembers listings. A generation is an ETag.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardstore.errors import InvalidInput, ShardStoreError, StorageError, Unsupported
from shardstore.model.generation import Condition, Generation, IfAbsent, IfGeneration, Unconditional
from shardstore.model.ranges import ByteRequest, BytesLike, resolve
from shardstore.storage.base import (
    ABSENT,
    CHANGED,
    Absent,
    Changed,
    ConditionFailed,
    DirListing,
    Failed,
    Found,
    ObjectInfo,
    Read,
    ReadOutcome,
    Segment,
)
from shardstore.storage.capabilities import Capabilities
from shardstore.storage.s3_client import RequestFailed, S3Client, canonical_etag, generation_of, translated
from shardstore.storage.s3_probe import CLAIMED_WITHOUT_PROBE, ServerFacts, facts_of, probe_server
from shardstore.storage.s3_ranges import checked_part, is_empty, range_header
from shardstore.storage.s3_upload import put, put_large

MULTIPART_BYTES = 64 << 20

_KEYS_A_DELETE = 1000
_READ_ATTEMPTS = 3
_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class _Part:
    """One range of one version."""

    generation: Generation
    nbytes: int
    data: memoryview


class S3Storage:
    """Objects below ``path`` (``bucket/prefix``) of ``fs``, an ``s3fs.S3FileSystem`` whose loop is fsspec's IO loop.

    Bodies above ``multipart_bytes`` are uploaded in parts. What a server honours is found out by ``probe``.
    """

    def __init__(self, fs: Any, path: str, concurrency: int = 64, multipart_bytes: int = MULTIPART_BYTES) -> None:
        stripped = str(fs._strip_protocol(path)).strip("/")
        bucket, _, prefix = stripped.partition("/")
        if not bucket:
            raise InvalidInput(f"{path!r} names no bucket")
        self.fs = fs
        self.path = stripped
        self.concurrency = concurrency
        self.multipart_bytes = multipart_bytes
        self._client = S3Client(fs, bucket, prefix, concurrency)

    def __reduce__(self) -> tuple[type[S3Storage], tuple[Any, str, int, int]]:
        return type(self), (self.fs, self.path, self.concurrency, self.multipart_bytes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, S3Storage) and (other.path, other.fs) == (self.path, self.fs)

    def __hash__(self) -> int:
        return hash((S3Storage, self.path))

    def __repr__(self) -> str:
        return f"S3Storage({self.url!r})"

    @property
    def url(self) -> str:
        return self._client.url

    @property
    def kind(self) -> str:
        return "s3"

    @property
    def _facts(self) -> ServerFacts:
        return facts_of(self._client)

    @property
    def capabilities(self) -> Capabilities:
        return self._facts.capabilities or CLAIMED_WITHOUT_PROBE

    async def probe(self) -> Capabilities:
        facts = self._facts
        if facts.capabilities is None:
            # Two that ask at once learn the same.
            facts.capabilities = await probe_server(self._client)
        return facts.capabilities

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        return await asyncio.gather(*(self._read_one(read) for read in reads))

    async def _read_one(self, read: Read) -> ReadOutcome:
        try:
            for _ in range(_READ_ATTEMPTS):
                outcome = await self._read_version(read)
                if not isinstance(outcome, Changed) or read.generation is not None:
                    break
        except ShardStoreError as exc:
            return Failed(exc)
        return outcome

    async def _read_version(self, read: Read) -> ReadOutcome:
        """All ranges of one version: the one asked for, or the one that the first answer shows."""
        asked = [i for i, request in enumerate(read.ranges) if not is_empty(request)]
        if not asked:
            return await self._read_nothing(read)
        generation = read.generation
        parts: list[_Part | Absent | Changed] = []
        if generation is None:
            first = await self._get(read.key, read.ranges[asked[0]], None)
            if not isinstance(first, _Part):
                return first
            generation = first.generation
            parts.append(first)
        rest = asked[len(parts) :]
        parts += await asyncio.gather(*(self._get(read.key, read.ranges[i], generation) for i in rest))
        buffers = [_NOTHING] * len(read.ranges)
        nbytes = 0
        for i, part in zip(asked, parts, strict=True):
            if not isinstance(part, _Part):
                return part if read.generation is not None else CHANGED
            buffers[i] = part.data
            nbytes = part.nbytes
        return Found(generation, nbytes, tuple(buffers))

    async def _read_nothing(self, read: Read) -> ReadOutcome:
        part = await self._look_up(read.key, read.generation)
        return Found(part.generation, part.nbytes, (_NOTHING,) * len(read.ranges)) if isinstance(part, _Part) else part

    async def _look_up(self, key: str, generation: Generation | None) -> _Part | Absent | Changed:
        head = await self._client.head(key)
        if head is None:
            return ABSENT
        if generation is not None and head.generation != generation:
            return CHANGED
        return _Part(head.generation, head.nbytes, _NOTHING)

    async def _get(self, key: str, request: ByteRequest, generation: Generation | None) -> _Part | Absent | Changed:
        """One range by one request; of ``generation`` only, where it is given."""
        parameters: dict[str, str] = {"Key": self._client.full_key(key)}
        if (header := range_header(request)) is not None:
            parameters["Range"] = header
        if generation is not None and not generation.token.startswith("W/"):  # a weak one never matches: compared below
            parameters["IfMatch"] = generation.token
        try:
            response, data = await self._get_body(key, parameters)
        except RequestFailed as exc:
            if exc.status == 404 and exc.code != "NoSuchBucket":
                return ABSENT
            if exc.status == 412:
                return CHANGED
            if exc.status == 416:
                return await self._past_the_end(key, request, generation)
            raise
        found = generation_of(response, key)
        if generation is not None and found != generation:  # the server ignored If-Match
            return CHANGED
        view, nbytes = checked_part(request, response["ResponseMetadata"]["HTTPStatusCode"], response.get("ContentRange"), data, key)
        return _Part(found, nbytes, view)

    async def _get_body(self, key: str, parameters: dict[str, str]) -> tuple[dict[str, Any], bytes]:
        """Answer and body; asks again where the connection breaks within the body, which s3fs's retries do not cover."""
        attempt = 0
        async with self._client.bound.slot():
            while True:
                attempt += 1
                response = await self._client.unbounded_call("get_object", "reading", repr(key), **parameters)
                try:
                    async with response["Body"] as body:
                        return response, await body.read()
                except Exception as exc:
                    if attempt == _READ_ATTEMPTS:
                        raise translated(exc, "reading", repr(key), self._client.bucket) from exc

    async def _past_the_end(self, key: str, request: ByteRequest, generation: Generation | None) -> _Part | Absent | Changed:
        """The range starts at or after the end, or the object is empty; HEAD tells which version that is true of."""
        part = await self._look_up(key, generation)
        if not isinstance(part, _Part):
            return part
        wanted = resolve(request, part.nbytes)
        if wanted.start == wanted.end:
            return part
        if generation is None:  # it grew in between
            return CHANGED
        raise StorageError(f"reading {key!r}: the server says that {range_header(request)!r} is past the end, of {part.nbytes} bytes")

    # -- writing -------------------------------------------------------------------------------------------------------

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        if not self._honours(condition, await self.probe() if not isinstance(condition, Unconditional) else self.capabilities):
            await self._check_first(key, condition)
            condition = Unconditional()
        store = put if nbytes <= self.multipart_bytes else put_large
        try:
            return await store(self._client, key, body, nbytes, condition)
        finally:
            self._client.forget_listing(key)

    def _honours(self, condition: Condition, capabilities: Capabilities) -> bool:
        match condition:
            case IfAbsent():
                return capabilities.create_if_absent
            case IfGeneration():
                return capabilities.compare_and_swap
            case Unconditional():
                return True

    async def _check_first(self, key: str, condition: Condition) -> None:
        """Check, for a server that does not: what was true a while ago is still refused, what changes in between is lost."""
        facts = self._facts
        if not facts.warned:
            facts.warned = True
            warnings.warn(
                f"{self._client.endpoint} does not honour conditional writes: writers that share an object of {self.url} can lose "
                "each other's updates. Let one writer at a time write there",
                RuntimeWarning,
                stacklevel=2,
            )
        head = await self._client.head(key)
        holds = head is None if isinstance(condition, IfAbsent) else head is not None
        if isinstance(condition, IfGeneration):
            holds = head is not None and head.generation == condition.generation
        if not holds:
            raise ConditionFailed(f"{key!r} in {self.url} is not what the write's condition asks for")

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        raise Unsupported(f"composing {key!r}: on S3 the bytes to keep have to be read and written")

    async def delete(self, key: str, condition: Condition) -> bool:
        if isinstance(condition, IfAbsent):
            raise InvalidInput(f"deleting {key!r} on condition that it is absent makes no sense")
        parameters: dict[str, str] = {}
        if isinstance(condition, IfGeneration) and (await self.probe()).conditional_delete:
            parameters["IfMatch"] = self._facts.if_match(condition.generation)
        # The answer to DELETE is the same whether there was an object or not.
        head = await self._client.head(key)
        if head is None:
            return False
        if isinstance(condition, IfGeneration) and head.generation != condition.generation:
            raise ConditionFailed(f"{key!r} in {self.url} is not the version to delete")
        try:
            await self._client.call("delete_object", "deleting", key, **parameters)
        except RequestFailed as exc:
            if not parameters or exc.status not in (404, 409, 412) or exc.code == "NoSuchBucket":
                raise
            if await self._client.head(key) is None:
                return True  # seen a moment ago: deleted by this request, sent twice, or by another writer
            raise ConditionFailed(f"{key!r} in {self.url} is not the version to delete") from exc
        finally:
            self._client.forget_listing(key)
        return True

    async def delete_many(self, keys: Sequence[str]) -> None:
        batches = [keys[start : start + _KEYS_A_DELETE] for start in range(0, len(keys), _KEYS_A_DELETE)]
        await asyncio.gather(*(self._delete_batch(batch) for batch in batches))

    async def _delete_batch(self, keys: Sequence[str]) -> None:
        wanted = {"Objects": [{"Key": self._client.full_key(key)} for key in keys], "Quiet": True}
        try:
            response = await self._client.call_bucket("delete_objects", "deleting objects of", Delete=wanted)
        finally:
            for key in keys:
                self._client.forget_listing(key)
        errors = [error for error in response.get("Errors", ()) if error.get("Code") != "NoSuchKey"]
        if errors:
            first = errors[0]
            raise StorageError(
                f"{len(errors)} of {len(keys)} objects of {self.url} could not be deleted, the first of them "
                f"{self._client.own_key(first.get('Key', ''))!r}: {first.get('Code')}: {first.get('Message')}"
            )

    # -- looking -------------------------------------------------------------------------------------------------------

    async def stat(self, key: str) -> ObjectInfo | None:
        head = await self._client.head(key)
        return None if head is None else ObjectInfo(key, head.nbytes, head.generation)

    async def _pages(self, prefix: str, **parameters: str) -> AsyncIterator[dict[str, Any]]:
        full = self._client.full_key(prefix)
        while True:
            page = await self._client.call_bucket("list_objects_v2", "listing", Prefix=full, **parameters)
            yield page
            if not page.get("IsTruncated"):
                return
            parameters["ContinuationToken"] = page["NextContinuationToken"]

    def _infos(self, page: dict[str, Any]) -> list[ObjectInfo]:
        return [
            ObjectInfo(self._client.own_key(entry["Key"]), int(entry["Size"]), Generation(canonical_etag(entry["ETag"])))
            for entry in page.get("Contents", ())
            if not entry["Key"].endswith("/")  # the markers by which some tools pretend that there are directories
        ]

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for page in self._pages(prefix):
            for info in self._infos(page):
                yield info

    async def list_dir(self, prefix: str) -> DirListing:
        if prefix and not prefix.endswith("/"):
            raise InvalidInput(f"{prefix!r} names no directory: it has to be empty or end with '/'")
        objects: list[ObjectInfo] = []
        prefixes: list[str] = []
        async for page in self._pages(prefix, Delimiter="/"):
            objects += self._infos(page)
            prefixes += [self._client.own_key(entry["Prefix"]) for entry in page.get("CommonPrefixes", ())]
        return DirListing(tuple(objects), tuple(prefixes))

    async def close(self) -> None:
        """The s3fs instance is the user's, and stays open."""
