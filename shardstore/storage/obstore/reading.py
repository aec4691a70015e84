"""A storage on S3 or GCS that reads through obstore, and leaves to the storage below it what obstore cannot do as well.

The user's filesystem stays: its options give the place and the credentials, and its requests do the rest. So both transports find the
same versions, a server is probed once for both, and both can work on one store at the same time.

obstore's ``get_ranges`` takes no condition and asks for more than was wanted: each range is a request of its own, conditional on the
version, and the answer's version is compared whether the server honoured that or not. A whole object is asked for as a range, since
only then is the answer compared with the request. Some requests get no plain answer: for an empty object, a range past the end, a
server that ignores ranges, a refusal, a broken connection. These are repeated by the storage below, with its retries and its errors. So
is every 404, until obstore has once found an object there.

Checksums that S3 sends with whole objects are compared by botocore, and not by obstore: TLS protects the bytes on their way, the
checksums of index and chunks the whole of it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Generic, TypeVar

from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import ByteRequest, BytesLike, Segment
from shardstore.model.redaction import redacted
from shardstore.storage.abilities import ObstoreCarried
from shardstore.storage.base import ABSENT, CHANGED, DirListing, ObjectInfo
from shardstore.storage.gcs.storage import GCSStorage
from shardstore.storage.obstore import requests as obstore_requests
from shardstore.storage.obstore.requests import Bucket, ObstoreAnswer
from shardstore.storage.requests.outcomes import RequestFailed
from shardstore.storage.requests.ranged_reads import NOTHING, RangedReads, RangeOutcome, RangePart
from shardstore.storage.s3.storage import S3Storage
from shardstore.storage.wrappers import StorageWrapper

logger = logging.getLogger(__name__)

_ELSEWHERE = (301, 302, 307, 308)
_FIRST_ANSWERS = 3
"""The number of unusable first answers, without a usable one, after which obstore is given up: otherwise every request would be made
twice.
"""

Below = TypeVar("Below", S3Storage, GCSStorage)


class ObstoreStorage(RangedReads, StorageWrapper, ObstoreCarried, Generic[Below]):
    """The same place as ``inner``; reads go through obstore. Kinds define how a bucket is opened, and what names a version."""

    inner: Below

    def __init__(self, inner: Below) -> None:
        super().__init__(inner)
        self._is_given_up = False
        self._useless = 0
        self._has_found = False
        self._has_told = False
        self.asked_below = 0
        """The number of reads that the storage below answered, although obstore was asked first."""

    def __reduce__(self) -> tuple[type[ObstoreStorage[Below]], tuple[Below]]:
        return type(self), (self.inner,)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.inner == self.inner

    def __hash__(self) -> int:
        return hash((type(self), self.inner))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def bucket(self) -> Bucket | None:
        """Return the bucket as obstore opens it now; ``None`` if requests have to go another way. Raises no exceptions of obstore."""
        raise NotImplementedError

    def version_of(self, answer: ObstoreAnswer) -> Generation | None:
        """Return the version that an answer speaks of, named as the storage below does."""
        raise NotImplementedError

    def condition_on(self, generation: Generation) -> str | None:
        """Return the ETag to ask for, if the version has one that can match."""
        raise NotImplementedError

    def is_left_out(self) -> bool:
        """Return whether obstore is not used: in a forked process, or after it was given up."""
        return self._is_given_up or not obstore_requests.can_run()

    def leave_out(self, reason: Exception) -> None:
        """Warn once that obstore cannot be used for this place; it is tried again with the next request."""
        level = logging.DEBUG if self._has_told else logging.WARNING
        self._has_told = True
        text = redacted(str(reason)).partition("\n")[0]
        logger.log(level, "%s is reached through fsspec's transport, since obstore cannot open it: %s", self.url, text)

    def heed(self, refusal: RequestFailed) -> None:
        """Note what a refusal, which is no usable answer, says about all later requests."""
        logger.debug("asked again through fsspec's transport: %s", refusal)
        if refusal.status in _ELSEWHERE:
            reason = "it is not where the filesystem's endpoint and region say; give the region, client_kwargs={'region_name': …}"
        elif refusal.status is None and not self._has_found:
            self._useless += 1
            if self._useless < _FIRST_ANSWERS:
                return
            reason = f"none of its first answers was of use: {refusal}"
        else:
            return
        if not self._is_given_up:
            self._is_given_up = True
            logger.warning("requests to %s go through fsspec's transport from now on: %s", self.url, reason)

    def _is_absent(self, refusal: RequestFailed) -> bool:
        """Return whether a refusal says that there is no object. It does only if the server is known to find objects that exist.

        A server that does not speak as obstore expects, such as an emulator without GCS's XML interface, also answers 404.
        """
        return refusal.is_absent and self._has_found

    # -- reading -------------------------------------------------------------------------------------------------------

    async def get(self, key: str, request: ByteRequest, generation: Generation | None, most_nbytes: int | None = None) -> RangeOutcome:
        if (bucket := await self.bucket()) is None:
            return await self.inner.get(key, request, generation, most_nbytes)
        if_match = None if generation is None else self.condition_on(generation)
        try:
            async with self.inner.client.bound.slot():
                answer = await obstore_requests.get(bucket, self.inner.client.full_key(key), request, if_match, most_nbytes)
        except RequestFailed as exc:
            if exc.status == 412 and if_match is not None:
                return CHANGED
            if self._is_absent(exc):
                return ABSENT
            self.heed(exc)
            return await self._get_below(key, request, generation, most_nbytes)
        self._has_found = True
        found = self.version_of(answer)
        if found is None or answer.is_encoded:
            return await self._get_below(key, request, generation, most_nbytes)
        if generation is not None and found != generation:
            return CHANGED
        return RangePart(found, answer.nbytes, answer.data)

    async def _get_below(self, key: str, request: ByteRequest, generation: Generation | None, most_nbytes: int | None) -> RangeOutcome:
        self.asked_below += 1
        return await self.inner.get(key, request, generation, most_nbytes)

    async def look_up(self, key: str, generation: Generation | None) -> RangeOutcome:
        if (bucket := await self.bucket()) is None:
            return await self.inner.look_up(key, generation)
        try:
            async with self.inner.client.bound.slot():
                answer = await obstore_requests.head(bucket, self.inner.client.full_key(key))
            found = self.version_of(answer)
            self._has_found = True
        except RequestFailed as exc:
            if self._is_absent(exc):
                return ABSENT
            self.heed(exc)
            found = None
        if found is None:
            self.asked_below += 1
            return await self.inner.look_up(key, generation)
        return CHANGED if generation is not None and found != generation else RangePart(found, answer.nbytes, NOTHING)

    # -- the rest ------------------------------------------------------------------------------------------------------

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        return await self.inner.write(key, body, nbytes, condition)

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        return await self.inner.compose(key, source, segments, condition)

    async def copy(self, source: str, target: str) -> Generation | None:
        return await self.inner.copy(source, target)

    async def rename_prefix(self, source: str, target: str) -> bool:
        return await self.inner.rename_prefix(source, target)

    async def delete(self, key: str, condition: Condition) -> bool:
        return await self.inner.delete(key, condition)

    async def delete_many(self, keys: Sequence[str]) -> None:
        await self.inner.delete_many(keys)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        return self.inner.list(prefix)

    async def list_dir(self, prefix: str) -> DirListing:
        return await self.inner.list_dir(prefix)
