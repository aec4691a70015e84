"""Objects in Google Cloud Storage, through a gcsfs instance's own requests to the JSON API.

gcsfs's file interface is not used: it has no conditions but "create", reads large objects by requests that can see several versions,
and remembers listings. A generation is GCS's generation number.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardstore.errors import StorageError, Unsupported
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import ByteRequest, BytesLike, Segment, resolve
from shardstore.storage.base import ABSENT, CHANGED, DirListing, ObjectInfo
from shardstore.storage.gcs.client import (
    OBJECT,
    Allowed,
    GCSAnswer,
    GCSClient,
    GCSFacts,
    can_match,
    encoding_of,
    facts_of,
    head_of,
    probe_server,
)
from shardstore.storage.gcs.upload import put, put_large
from shardstore.storage.requests.bucket import BucketStorage
from shardstore.storage.requests.outcomes import RequestFailed, modified_seconds
from shardstore.storage.requests.ranged_reads import RangeOutcome, RangePart, checked_part, range_header

RESUMABLE_BYTES = 64 << 20

_COPY_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """A copy that takes more steps."""


@dataclass(frozen=True, slots=True)
class _Media:
    """An answer with bytes; if the whole object came instead of a part, ``cut`` has the wanted bytes and the object's size."""

    answer: GCSAnswer
    cut: tuple[memoryview, int] | None

    def part(self, request: ByteRequest, key: str) -> tuple[memoryview, int]:
        """Return the bytes of ``request`` and the size of the object. Raises ``StorageError`` if it is an answer to something else."""
        return self.cut or checked_part(request, self.answer.status, self.answer.headers.get("Content-Range"), self.answer.body, key)


class GCSStorage(BucketStorage[GCSClient]):
    """Objects below ``path`` (``bucket/prefix``) of ``fs``, a ``gcsfs.GCSFileSystem`` whose loop is fsspec's IO loop.

    Bodies above ``resumable_bytes`` are uploaded in parts. ``probe`` finds out what a server honours.
    """

    kind = "gcs"
    client_class = GCSClient
    claimed_without_probe = Capabilities(pinned_reads=True, durable=True, across_machines=True, unique_versions=True)

    def __init__(self, fs: Any, path: str, concurrency: int = 64, resumable_bytes: int = RESUMABLE_BYTES) -> None:
        super().__init__(fs, path, concurrency, resumable_bytes)

    @property
    def _facts(self) -> GCSFacts:
        return facts_of(self.client)

    async def _ask_server(self) -> Capabilities:
        return await probe_server(self.client, self.claimed_without_probe)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def get(self, key: str, request: ByteRequest, generation: Generation | None, most_nbytes: int | None = None) -> RangeOutcome:
        if generation is not None and not can_match(generation):
            return await self.look_up(key, generation)  # absent, or changed
        if not self._facts.tells_generation:
            return await self._get_between_looks(key, request, generation, most_nbytes)
        # Not by generation=: a bucket that keeps old versions would serve one that was replaced or deleted long ago.
        pin = {} if generation is None else {"ifGenerationMatch": generation.token}
        try:
            media = await self._get_media(key, request, pin, most_nbytes)
        except RequestFailed as exc:
            return await self.after_refusal(exc, key, request, generation)
        if media is None:
            return ABSENT
        answer = media.answer
        token = answer.headers.get("X-Goog-Generation")
        if not token:
            self._facts.tells_generation = False
            return await self._get_between_looks(key, request, generation, most_nbytes)
        found = Generation(token, modified_seconds(answer.headers))
        if generation is not None and found != generation:  # the server ignored the condition
            return CHANGED
        if answer.status == 206 and not answer.body:  # what fake-gcs-server says of an empty object, in place of 416
            return await self.past_the_end(key, request, found)
        view, nbytes = media.part(request, key)
        return RangePart(found, nbytes, view)

    async def _get_media(self, key: str, request: ByteRequest, condition: dict[str, str], most_nbytes: int | None) -> _Media | None:
        """Read one range; return ``None`` if the object is absent or changed. Raises ``StorageError`` if the object is stored
        compressed, which GCS would undo.
        """
        headers = {"Accept-Encoding": "identity"}  # or aiohttp would ask for compressed bytes, and undo that
        if (wanted := range_header(request)) is not None:
            headers["Range"] = wanted
        path = f"{self.fs._location}/download/storage/v1/{OBJECT}"
        allowed = Allowed(request, most_nbytes, key, self.unasked_nbytes)
        answer = await self.client.object(
            "GET", path, key, "reading", headers=headers, query={"alt": "media", **condition}, allowed=allowed
        )
        if answer is None:
            return None
        if (encoding := encoding_of(answer.headers)) is not None:
            raise StorageError(
                f"reading {key!r}: it is stored with Content-Encoding {encoding}, so the server sends other bytes than it counts. "
                "Store it without (gcloud storage cp without -z or -Z)"
            )
        return _Media(answer, allowed.part)

    async def _get_between_looks(
        self, key: str, request: ByteRequest, generation: Generation | None, most_nbytes: int | None
    ) -> RangeOutcome:
        """Read one range from a server that does not give its version with it: the object must be the same before and after."""
        before = await self.look_up(key, generation)
        if not isinstance(before, RangePart):
            return before
        wanted = resolve(request, before.nbytes)
        if wanted.start == wanted.end:
            return before
        media = await self._get_media(key, wanted, {}, most_nbytes)
        after = await self.look_up(key, before.generation)
        if not isinstance(after, RangePart):
            return after
        if media is None:
            raise StorageError(f"reading {key!r}: the server's answers contradict each other: the object exists, and it does not")
        view, nbytes = media.part(wanted, key)
        if nbytes != before.nbytes:
            raise StorageError(f"reading {key!r}: the server says that it has {before.nbytes} bytes, and sends a part of {nbytes}")
        return RangePart(before.generation, nbytes, view)

    # -- writing -------------------------------------------------------------------------------------------------------

    async def _put(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        store = put if nbytes <= self.part_bytes else put_large
        return await store(self.client, key, body, nbytes, condition)

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        raise Unsupported(
            f"composing {key!r}: on GCS only whole objects can be put together, so the bytes to keep have to be read and written"
        )

    async def _copy_from(self, origin: GCSClient, source: str, target: str) -> Generation | None:
        # What is copied in one step is of one version; more are needed only between places or classes of storage.
        copied = await self._rewrite(origin, source, target, None)
        attempt = 0
        while isinstance(copied, _Unfinished):
            if (head := await origin.head(source)) is None:
                return None
            if attempt == _COPY_ATTEMPTS:
                raise StorageError(f"copying {source!r} to {target!r}: the source was replaced {attempt} times while it was copied")
            attempt += 1
            copied = await self._rewrite(origin, source, target, head.generation) or copied
        return copied

    async def _rewrite(self, origin: GCSClient, source: str, target: str, generation: Generation | None) -> Generation | _Unfinished | None:
        """Copy within the server, all steps for one ``generation``, or the first step of whatever is there; ``None`` without a source."""
        client = self.client
        path, names = f"{OBJECT}/rewriteTo/{OBJECT}", (origin.bucket, origin.full_key(source), client.bucket, client.full_key(target))
        what = f"copying {source!r} to {target!r}"
        query = {} if generation is None else {"sourceGeneration": generation.token}
        while True:
            answer = await client.found("POST", path, *names, what=what, headers={"Content-Type": "application/json"}, query=query)
            if answer is None:
                return None
            rewritten = answer.json(what)
            if rewritten.get("done"):
                return head_of(rewritten.get("resource") or {}, target).generation
            if generation is None:
                return _Unfinished()
            if not rewritten.get("rewriteToken"):
                raise StorageError(f"{what}: the server neither completed the copy nor gave a token to continue it")
            query["rewriteToken"] = rewritten["rewriteToken"]

    def may_match(self, generation: Generation) -> bool:
        return can_match(generation)

    async def keeps_versions(self) -> bool:
        """Return whether the bucket keeps objects that have been replaced.

        Raises:
            AccessDenied: these credentials may not see the settings of the bucket.
            StorageError: the request failed.
        """
        what = f"looking up whether the bucket of {self.url} keeps versions"
        answer = await self.client.request("GET", "b/{}", self.client.bucket, what=what, query={"fields": "versioning"})
        return bool((answer.json(what).get("versioning") or {}).get("enabled"))

    # -- looking -------------------------------------------------------------------------------------------------------

    async def _pages(self, prefix: str, *, directory: bool, after: str | None = None) -> AsyncIterator[DirListing]:
        assert after is None  # no caller asks for it here
        what = f"listing {self.url}"
        query = {"prefix": self.client.full_key(prefix), "fields": "items(name,size,generation),prefixes,nextPageToken"}
        if directory:
            query["delimiter"] = "/"
        while True:
            try:
                answer = await self.client.request("GET", "b/{}/o", self.client.bucket, what=what, query=query)
            except RequestFailed as exc:
                if exc.status == 404:
                    raise self.client.no_bucket() from exc
                raise
            page = answer.json(what)
            yield DirListing(tuple(self._infos(page)), tuple(sorted(self.client.own_key(name) for name in page.get("prefixes") or ())))
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def _infos(self, page: dict[str, Any]) -> list[ObjectInfo]:
        infos: list[ObjectInfo] = []
        for item in page.get("items") or ():
            if item["name"].endswith("/"):  # the markers by which some tools pretend that there are directories
                continue
            key = self.client.own_key(item["name"])
            head = head_of(item, key)
            infos.append(ObjectInfo(key, head.nbytes, head.generation))
        return sorted(infos, key=lambda info: info.key)  # it is sorted already, but not by emulators
