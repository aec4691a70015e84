"""Objects behind HTTP and HTTPS, read-only, through an fsspec HTTP filesystem's own session.

fsspec's file interface is not used: it compares no versions, takes whole objects for ranges where a server ignores those, and does not
retry. A generation is an ETag; without one, date and size; without those, nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from shardstore.errors import ReadOnly, StorageError
from shardstore.model.capabilities import Capabilities
from shardstore.model.containers import batched
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteRange, ByteRequest, ByteSuffix, resolve
from shardstore.storage.abilities import HasIdentity, OnFilesystem
from shardstore.storage.base import ABSENT, CHANGED, Absent, Changed, DirListing, ObjectInfo, ReadsOnly, check_directory
from shardstore.storage.http.client import (
    ABSENT_STATUS,
    HTTPAnswer,
    HTTPClient,
    HTTPFacts,
    Retries,
    facts_of,
    is_strong,
    page,
    take_body,
    take_head,
)
from shardstore.storage.inferred_versions import agrees
from shardstore.storage.requests.ranged_reads import (
    NOTHING,
    RangedReads,
    RangeOutcome,
    RangePart,
    TooMuch,
    as_list,
    checked_part,
    range_header,
)

_ATTEMPTS = 3
_LISTING_DEPTH = 64  # of directories below each other; symbolic links can make a server show more without end
_LOOK_UPS_AT_ONCE = 256

_CHANGED_STATUS = 412
_PAST_THE_END_STATUS = 416
_NO_SUFFIX_STATUS = (400, 416, 501)  # what servers answer to a range that counts from the end, and do not know
_NO_HEAD_STATUS = (400, 401, 403, 405, 501)  # signed addresses, to which some servers redirect, are for one method


class HTTPStorage(ReadsOnly, RangedReads, HasIdentity, OnFilesystem):
    """Objects below the URL ``root`` through ``fs``, an ``fsspec`` ``HTTPFileSystem`` whose loop is fsspec's IO loop.

    A query in ``root`` goes with the request for every object, as tokens for a container need it. A signed URL of a single
    object cannot be a root.

    Reads with a generation are checked against the ETag of every answer, and ask for it by ``If-Match`` if it is strong.
    ``pinned_reads`` is claimed once answers have been seen, and all of them had a strong ETag: weak ETags and dates of whole seconds
    are compared too, but prove nothing. Listing reads the index pages that some servers make.
    """

    kind = "http"

    def __init__(self, fs: Any, root: str, concurrency: int = 64, retries: Retries | None = None) -> None:
        self.fs = fs
        self.concurrency = concurrency
        self.retries = retries or Retries()
        self._client = HTTPClient(fs, root, concurrency, self.retries)
        self._only_strong: bool | None = None

    def __reduce__(self) -> tuple[type[HTTPStorage], tuple[Any, str, int, Retries]]:
        return type(self), (self.fs, self._client.root, self.concurrency, self.retries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HTTPStorage) and (other._client.root, other.fs) == (self._client.root, self.fs)

    def __hash__(self) -> int:
        return hash((HTTPStorage, self._client.root))

    def __repr__(self) -> str:
        return f"HTTPStorage({self.url!r})"

    @property
    def url(self) -> str:
        return self._client.url

    @property
    def identity(self) -> str:
        """A text that identifies this place, which ``url`` does not: it includes the user and the query. Not to be shown."""
        return self._client.root

    @property
    def _facts(self) -> HTTPFacts:
        return facts_of(self._client.origin)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(pinned_reads=self._only_strong is True)

    async def probe(self) -> Capabilities:
        if self._only_strong is None:
            await self.look_up("zarr.json", None)
        return self.capabilities

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def may_ignore_ranges(self) -> bool:
        return self._facts.ranges is not True

    async def get(self, key: str, request: ByteRequest, generation: Generation | None, most_nbytes: int | None = None) -> RangeOutcome:
        found = await self.get_first(key, [request], generation, most_nbytes)
        return found[0] if isinstance(found, list) else found

    async def get_first(
        self, key: str, requests: Sequence[ByteRequest], generation: Generation | None, most_nbytes: int | None = None
    ) -> list[RangePart] | Absent | Changed:
        first = requests[0]
        is_suffix = isinstance(first, ByteSuffix)
        if is_suffix and self._facts.lacks_suffixes:
            return await self._fetch_counted(key, requests, generation)
        try:
            answer = await self._get(key, requests, generation, most_nbytes)
        except TooMuch:
            if not is_suffix:
                raise
            return await self._fetch_counted(key, requests, generation)  # it may have taken the suffix for something else
        if answer.status in ABSENT_STATUS:
            return ABSENT
        if answer.status == _CHANGED_STATUS:
            return await self._mismatch(key, requests, generation)
        if answer.status == 200:
            self._learn_from_whole(first, answer)
        elif answer.status == 206:
            partial_answer = await self._checked(key, first, answer)
            if partial_answer is None:
                return await self._fetch_counted(key, requests, generation)
            answer = partial_answer
        elif is_suffix:
            return await self._fetch_counted(key, requests, generation)
        else:
            return as_list(await self.past_the_end(key, first, generation))
        found = self._version(answer)
        if generation is not None and not agrees(generation, found):
            return CHANGED
        return [RangePart(found, answer.nbytes or 0, data) for data in answer.parts]

    async def _get(self, key: str, requests: Sequence[ByteRequest], generation: Generation | None, most_nbytes: int | None) -> HTTPAnswer:
        headers: dict[str, str] = {}
        accept = [*ABSENT_STATUS, _PAST_THE_END_STATUS]
        if (asked := range_header(requests[0])) is not None:
            headers["Range"] = asked
            if isinstance(requests[0], ByteSuffix):
                accept += _NO_SUFFIX_STATUS
        if generation is not None and is_strong(generation) and self._facts.if_match:
            headers["If-Match"] = generation.token
            accept.append(_CHANGED_STATUS)
        what = f"reading {key!r}"
        take = partial(take_body, wanted=requests, most_nbytes=most_nbytes, key=key, what=what, unasked_nbytes=self.unasked_nbytes)
        return await self._client.request("GET", self._client.url_of(key), headers, what, take, tuple(accept))

    def _learn_from_whole(self, request: ByteRequest, answer: HTTPAnswer) -> None:
        """Note what an answer with the whole object says about the server, if less was asked for."""
        nbytes = answer.nbytes or 0
        if range_header(request) is None or resolve(request, nbytes) == ByteRange(0, nbytes):
            return
        if isinstance(request, ByteSuffix):
            self._facts.suffixes = False
        if not isinstance(request, ByteSuffix) or answer.headers.get("Accept-Ranges", "").strip().lower() == "none":
            self._facts.ignored_a_range(self._client.origin)

    async def _with_size(self, key: str, answer: HTTPAnswer) -> HTTPAnswer:
        """Return ``answer`` with the object's size, which a server may leave out of an answer with a range."""
        if answer.nbytes is not None or not answer.headers.get("Content-Range", "").strip().endswith("/*"):
            return answer
        part = await self.look_up(key, None)
        if not isinstance(part, RangePart):
            raise StorageError(f"reading {key!r} in {self.url}: the object was removed while it was being read")
        return HTTPAnswer(answer.status, answer.headers, answer.parts, part.nbytes)

    async def _checked(self, key: str, request: ByteRequest, answer: HTTPAnswer) -> HTTPAnswer | None:
        """Return an answer of status 206 with the range that was asked for; ``None`` if the server took a suffix for something else."""
        self._facts.ranges = True
        answer = await self._with_size(key, answer)
        content_range = answer.headers.get("Content-Range", "").strip()
        if answer.nbytes is not None:
            content_range = content_range.partition("/")[0] + f"/{answer.nbytes}"
        data = answer.parts[0].obj
        assert isinstance(data, bytes)  # the body as it came
        is_suffix = isinstance(request, ByteSuffix)
        try:
            part = checked_part(request, 206, content_range, data, key)[0]
        except StorageError:
            if not is_suffix:
                raise
            return None
        if is_suffix:
            self._facts.suffixes = True
        return HTTPAnswer(answer.status, answer.headers, (part,), answer.nbytes)

    def _version(self, answer: HTTPAnswer) -> Generation:
        """Return the version that an answer speaks of, and note whether the server's versions are strong."""
        found = answer.generation
        self._only_strong = is_strong(found) and self._only_strong is not False
        return found

    async def _mismatch(
        self, key: str, requests: Sequence[ByteRequest], generation: Generation | None
    ) -> list[RangePart] | Absent | Changed:
        """Handle a server's answer that it has another version. Some say so about the ETag that they gave a moment ago."""
        part = await self.look_up(key, generation)
        if not isinstance(part, RangePart):
            return part
        self._facts.if_match = False
        return await self.get_first(key, requests, generation)

    async def _fetch_counted(
        self, key: str, requests: Sequence[ByteRequest], generation: Generation | None
    ) -> list[RangePart] | Absent | Changed:
        """Fetch a range that counts from the end as one that is counted from the start, of one version, for servers without such ranges."""
        part = await self.look_up(key, generation)
        if not isinstance(part, RangePart):
            return part
        wanted = resolve(requests[0], part.nbytes)
        if wanted.start == wanted.end:
            return [part]
        self._facts.suffixes = False
        first: ByteRequest = ByteRange(wanted.start, wanted.end)
        # Pinned by what the look-up saw, if only its size: of an object that grew since then, these are not the last bytes.
        return await self.get_first(key, [first, *requests[1:]], generation or part.generation)

    async def look_up(self, key: str, generation: Generation | None) -> RangeOutcome:
        answer = await self._look(key)
        if answer.status in ABSENT_STATUS:
            return ABSENT
        if answer.nbytes is None:
            raise StorageError(f"looking up {key!r} in {self.url}: the server does not report its size")
        found = self._version(answer)
        if generation is not None and not agrees(generation, found):
            return CHANGED
        return RangePart(found, answer.nbytes, NOTHING)

    async def _look(self, key: str) -> HTTPAnswer:
        """Return size and version by HEAD, or by the first byte if HEAD shows neither."""
        url, what, facts = self._client.url_of(key), f"looking up {key!r}", self._facts
        if facts.head is not False:
            accept = (*ABSENT_STATUS, *_NO_HEAD_STATUS)
            answer = await self._client.request("HEAD", url, {}, what, take_head, accept)
            if answer.status in ABSENT_STATUS:
                return answer
            if answer.status not in _NO_HEAD_STATUS and answer.nbytes is not None:
                facts.head = True
                return answer
        first = [ByteRange(0, 1)]
        take = partial(take_body, wanted=first, most_nbytes=None, key=key, what=what, unasked_nbytes=self.unasked_nbytes)
        seen = (*ABSENT_STATUS, _PAST_THE_END_STATUS)
        answer = await self._client.request("GET", url, {"Range": "bytes=0-0"}, what, take, seen)
        if answer.status in (200, 206) and facts.head is None:
            facts.head = False
        if answer.status == _PAST_THE_END_STATUS:  # it is empty; refusals seldom tell the version
            return await self._client.request("GET", url, {}, what, take, ABSENT_STATUS)
        return answer

    # -- writing -------------------------------------------------------------------------------------------------------

    def refusal(self, action: str, key: str) -> ReadOnly:
        return ReadOnly(
            f"{action} {key!r} in {self.url}: HTTP is for reading only. Open the place by the protocol of its storage (s3://, gs://, "
            "a path …), or write to another"
        )

    # -- looking -------------------------------------------------------------------------------------------------------

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for info in self._walk(prefix[: prefix.rfind("/") + 1], prefix, _LISTING_DEPTH):
            yield info

    async def _walk(self, directory: str, prefix: str, depth: int) -> AsyncIterator[ObjectInfo]:
        """Yield the objects below ``directory`` whose keys start with ``prefix``, in key order."""
        if depth == 0:
            raise StorageError(
                f"listing {self.url}: directories are nested {_LISTING_DEPTH} deep, down to {directory!r}: is there a loop of links?"
            )
        keys = [key for key in await page(self._client, directory) if key.startswith(prefix)]
        for some in batched(keys, _LOOK_UPS_AT_ONCE):
            infos = await self._stat_many([key for key in some if not key.endswith("/")])
            for key in some:
                if key.endswith("/"):
                    async for found in self._walk(key, prefix, depth - 1):
                        yield found
                elif (info := infos.get(key)) is not None:
                    yield info

    async def _stat_many(self, keys: Sequence[str]) -> dict[str, ObjectInfo | None]:
        """Look at many objects: pages show no exact sizes, and may have links to what does not exist."""
        return dict(zip(keys, await asyncio.gather(*(self.stat(key) for key in keys)), strict=True))

    async def list_dir(self, prefix: str) -> DirListing:
        check_directory(prefix)
        keys = await page(self._client, prefix)
        infos = await self._stat_many([key for key in keys if not key.endswith("/")])
        return DirListing(tuple(info for info in infos.values() if info is not None), tuple(key for key in keys if key.endswith("/")))
