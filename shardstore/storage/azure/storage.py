"""Blobs in Azure Blob Storage, through the client of an adlfs instance. A generation is an ETag.

adlfs's file interface is not used: it has no conditions where it writes in blocks, and remembers listings.

Azure knows no suffix ranges: the end of a blob is asked for by its size, as a listing, a read or a write has shown it. Where that is not
known, the first request asks for as many bytes from the start: its answer shows the size, and is all of a small blob.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

from shardstore.errors import Conflict
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation
from shardstore.model.ranges import ByteRange, ByteRequest, BytesLike, ByteSuffix, CopiedRange, NewBytes, Segment, resolve
from shardstore.storage.azure.blocks import compose, put, put_large
from shardstore.storage.azure.client import (
    AzureClient,
    Wanted,
    probe_server,
)
from shardstore.storage.base import ABSENT, CHANGED, Changed, ConditionFailed, DirListing, ObjectInfo
from shardstore.storage.requests.bucket import BucketFacts, BucketStorage, facts_about
from shardstore.storage.requests.outcomes import RequestFailed, etag_condition, generation_of, refuse_encoded, version_of
from shardstore.storage.requests.parts import sent_parts, sent_pieces
from shardstore.storage.requests.ranged_reads import RangedReads, RangeOutcome, RangePart, checked_part, range_header

PUT_BYTES = 64 << 20
COPY_PAYS_NBYTES = 8 << 20
"""The least size of a range that is worth the requests of blocks: a smaller one is read and written as fast."""

_COPY_ATTEMPTS = 5
_MOST_GUESSED_BYTES = 8 << 20  # of a suffix that is asked for without a look at the size


class AzureStorage(BucketStorage[AzureClient]):
    """Blobs below ``path`` (``container/prefix``) of ``fs``, an ``adlfs.AzureBlobFileSystem`` whose loop is fsspec's IO loop.

    Bodies above ``put_bytes`` are uploaded in blocks. ``probe`` finds out what a server honours.
    """

    kind = "azure"
    client_class = AzureClient
    claimed_without_probe = Capabilities(
        pinned_reads=True, durable=True, across_machines=True, unique_versions=True, compose=True, copy_pays_nbytes=COPY_PAYS_NBYTES
    )

    most_sizes = 1 << 16
    """The most sizes that are remembered: 16 MB, with keys of usual lengths."""

    def __init__(self, fs: Any, path: str, concurrency: int = 64, put_bytes: int = PUT_BYTES) -> None:
        super().__init__(fs, path, concurrency, put_bytes)
        self._sizes: dict[str, tuple[Generation, int]] = {}
        """The versions and sizes that were seen last, by key: with one, the end of a blob takes one request. The oldest are forgotten."""

    @property
    def _facts(self) -> BucketFacts:
        return facts_about(self.client, BucketFacts)

    async def _ask_server(self) -> Capabilities:
        return await probe_server(self.client, self.claimed_without_probe)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def get(self, key: str, request: ByteRequest, generation: Generation | None, most_nbytes: int | None = None) -> RangeOutcome:
        if isinstance(request, ByteSuffix):
            return await self.get_suffix(self, key, request, generation)
        headers = {} if (etag := etag_condition(generation)) is None else {"If-Match": etag}
        if (wanted := range_header(request)) is not None:
            headers["x-ms-range"] = wanted
        try:
            answer = await self.client.request(
                "GET",
                self.client.full_key(key),
                f"reading {key!r}",
                headers=headers,
                wanted=Wanted(request, most_nbytes, key, self.unasked_nbytes),
            )
        except RequestFailed as exc:
            return await self.after_refusal(exc, key, request, generation)
        if answer.is_directory:
            return ABSENT
        found = generation_of(answer.headers, key)
        if generation is not None and found != generation:  # the server ignored If-Match
            return CHANGED
        refuse_encoded(answer.headers.get("Content-Encoding"), key)
        if answer.status == 206 and not answer.body:  # what Azurite says of an empty blob, in place of 416
            return await self.past_the_end(key, request, found)
        if isinstance(answer.body, bytes):
            view, nbytes = checked_part(request, answer.status, answer.headers.get("Content-Range"), answer.body, key)
        else:
            view, nbytes = answer.body
        self.remember(key, found, nbytes)
        return RangePart(found, nbytes, view)

    def remember(self, key: str, generation: Generation, nbytes: int) -> None:
        """Remember the size of a version, for reads of its end."""
        self._sizes[key] = generation, nbytes
        if len(self._sizes) > self.most_sizes:
            del self._sizes[next(iter(self._sizes))]

    async def get_suffix(self, reader: RangedReads, key: str, request: ByteSuffix, generation: Generation | None) -> RangeOutcome:
        """Read the end of a blob by requests of ``reader``: of this storage, or of another transport to the same place."""
        version, nbytes = self._sizes.pop(key, (None, 0))
        if nbytes and version is not None and generation in (None, version):
            end = await reader.get(key, resolve(request, nbytes), version)
            if generation is not None or not isinstance(end, Changed):
                return end
        if request.nbytes > _MOST_GUESSED_BYTES:
            first = await reader.look_up(key, generation)
        else:
            first = await reader.get(key, ByteRange(0, request.nbytes), generation)
        if not isinstance(first, RangePart) or len(first.data) == first.nbytes:
            return first
        return await reader.get(key, resolve(request, first.nbytes), first.generation)

    # -- writing -------------------------------------------------------------------------------------------------------

    async def _put(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        store = put if nbytes <= self.part_bytes else put_large
        stored = await store(self.client, key, body, nbytes, condition)
        self.remember(key, stored, nbytes)
        return stored

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        condition = await self.checked(key, condition)
        try:
            return await compose(self.client, self, key, source, segments, condition)
        finally:
            self.client.forget_listing(key)

    async def _copy_from(self, origin: AzureClient, source: str, target: str) -> Generation | None:
        # Azure copies in one step only what needs no authorisation, or bears it in its URL: so the bytes go through this process.
        there = self if origin is self.client else type(self)(self.fs, f"{origin.bucket}/{origin.prefix}")
        for _ in range(_COPY_ATTEMPTS):
            first = await there.get(source, ByteRange(0, self.client.block_bytes), None)
            if not isinstance(first, RangePart):
                return None
            rest = CopiedRange(len(first.data), first.nbytes - len(first.data))
            whole = sent_parts([NewBytes(first.data), rest], self.client.block_bytes)
            try:
                return await self._put(target, sent_pieces(there, source, first.generation, whole), first.nbytes, UNCONDITIONAL)
            except ConditionFailed:  # the source was replaced before its rest was read
                continue
        raise Conflict(f"{source!r} in {origin.url} kept changing while it was being copied: try again")

    # -- looking -------------------------------------------------------------------------------------------------------

    async def _pages(self, prefix: str, *, directory: bool, after: str | None = None) -> AsyncIterator[DirListing]:
        assert after is None  # no caller asks for it here
        what = f"listing {self.url}"
        query = {"restype": "container", "comp": "list", "include": "metadata", "prefix": self.client.full_key(prefix)}
        if directory:
            query["delimiter"] = "/"
        while True:
            page = (await self.client.request("GET", "", what, query=query)).xml(what)
            prefixes = sorted(self.client.own_key(_name_of(found)) for found in page.iterfind("Blobs/BlobPrefix"))
            infos = [info for blob in page.iterfind("Blobs/Blob") if (info := self._info(blob)) is not None]
            yield DirListing(tuple(infos), tuple(prefixes))
            if not (marker := page.findtext("NextMarker")):
                return
            query["marker"] = marker

    def _info(self, blob: ElementTree.Element) -> ObjectInfo | None:
        """Return an entry of a listing; ``None`` of the marker of a directory."""
        name, nbytes = _name_of(blob), int(blob.findtext("Properties/Content-Length") or 0)
        folder = blob.findtext("Metadata/hdi_isfolder") or ""
        if name.endswith("/") or blob.findtext("Properties/ResourceType") == "directory" or folder.lower() == "true":
            return None
        version = version_of(blob.findtext("Properties/Etag") or "", {"Last-Modified": blob.findtext("Properties/Last-Modified")})
        info = ObjectInfo(self.client.own_key(name), nbytes, version)
        self.remember(info.key, version, nbytes)
        return info


def _name_of(element: ElementTree.Element) -> str:
    """Return the name in an entry of a listing; one with characters that XML cannot hold is encoded."""
    name = element.find("Name")
    text = "" if name is None else name.text or ""
    return unquote(text) if name is not None and name.get("Encoded") == "true" else text
