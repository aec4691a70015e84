"""A storage on S3, GCS or Azure that reads through obstore, and leaves to the storage below it what obstore cannot do as well.

The user's filesystem stays: its options give the place and the credentials, and its requests do the rest. So both transports find the
same versions, a server is probed once for both, and both can work on one store at the same time.

obstore's ``get_ranges`` takes no condition and asks for more than was wanted: each range is a request of its own, conditional on the
version, and the answer's version is compared whether the server honoured that or not. A whole object is asked for as a range, since
only then is the answer compared with the request. obstore shows the status of a refusal by the class of an exception, or only in its text.
Some requests get no plain answer: for an empty object, a range past the end, a server that ignores ranges, a refusal, a broken connection.
These are repeated by the storage below, with its retries and its errors; obstore's own are off. So is a 404 that does not say that there is
no such key, until obstore has once found an object there.

Checksums that S3 sends with whole objects are compared by botocore, and not by obstore: TLS protects the bytes on their way, the
checksums of index and chunks the whole of it.
"""

from __future__ import annotations

import atexit
import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, S3Store

from shardstore.errors import NO_SUCH_BUCKET
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteOffset, ByteRange, ByteRequest
from shardstore.model.redaction import redacted, shown_cause
from shardstore.storage.abilities import BlockingReads, ObstoreCarried
from shardstore.storage.azure.storage import AzureStorage
from shardstore.storage.base import ABSENT, CHANGED, Found, Read, ReadOutcome
from shardstore.storage.gcs.storage import GCSStorage
from shardstore.storage.obstore.forks import WHY_NOT, can_run
from shardstore.storage.requests.outcomes import RequestFailed
from shardstore.storage.requests.ranged_reads import NOTHING, RangedReads, RangeOutcome, RangePart, check_most
from shardstore.storage.s3.storage import S3Storage
from shardstore.storage.wrappers import StorageWrapper

if TYPE_CHECKING:  # of the stubs only
    from obstore.store import ClientConfig, RetryConfig

logger = logging.getLogger(__name__)

Bucket = S3Store | GCSStore | AzureStore

ONCE: RetryConfig = {"max_retries": 0, "retry_timeout": timedelta(0)}
"""No retries: a request that is repeated unseen cannot be counted, and a conditional one fails against its own success."""

LONGEST_REQUEST = timedelta(days=1)
"""The longest time for a request: by default obstore ends one after 30 seconds, whatever its size. A connection without data is ended by
the read timeout.
"""

_LAST_MOMENT_SECONDS = 0.1

# In the order of their words: a status stands behind the URL, which holds no spaces, and before the server's text.
_STATUS = re.compile(r"Error performing [A-Z]+ \S+ in .*?Server returned non-2xx status code: (\d{3})", re.DOTALL)
_CODE = re.compile(r"<Code>([^<]*)</Code>")


def _let_go() -> None:
    """Wait at exit: obstore's threads release what they were given, bytes of a write and futures of any request, a moment after their
    answer. One that does so when the interpreter is gone aborts the process after all its work is done: two of fourteen that ended with
    writes, and some that ended with reads.
    """
    time.sleep(_LAST_MOMENT_SECONDS)


atexit.register(_let_go)


@dataclass(frozen=True, slots=True)
class ObstoreAnswer:
    """The result of a read: ``data`` of an object of ``nbytes`` bytes, and what identifies its version."""

    etag: str
    version: str | None
    nbytes: int
    is_encoded: bool
    """True if the bytes are the value compressed, by their Content-Encoding."""
    modified: float
    data: memoryview


def _range(request: ByteRequest) -> Any:
    """Return a range in obstore's form, also for a whole object: only the answer to a range is compared with the request."""
    match request:
        case ByteRange(start, end):
            return start, end
        case ByteOffset(start):
            return {"offset": start}
    return {"suffix": request.nbytes}


def _answer(result: obstore.GetResult, data: memoryview) -> ObstoreAnswer:
    meta = result.meta
    encoding = result.attributes.get("Content-Encoding") or "identity"
    is_encoded = encoding not in ("identity", "aws-chunked")
    return ObstoreAnswer(meta["e_tag"] or "", meta["version"], meta["size"], is_encoded, meta["last_modified"].timestamp(), data)


async def get_range(
    bucket: Bucket, full_key: str, request: ByteRequest, if_match: str | None, most_nbytes: int | None = None
) -> ObstoreAnswer:
    """Read one range of an object. Raises ``RequestFailed``, also if the answer has another range, or fewer or more bytes; ``TooMuch``
    if the object, which is asked for whole, has more than ``most_nbytes``.
    """
    options: obstore.GetOptions = {"range": _range(request)}
    if if_match is not None:
        options["if_match"] = if_match
    what = f"reading {full_key!r}"
    with _errors(what):
        result = await obstore.get_async(bucket, full_key, options=options)
    start, end = result.range
    # It takes the connection out of the result: obstore's threads may hold that one until the next call, whichever that is.
    body = result.stream(min_chunk_size=end - start + 1)  # so one piece is all of it, to its end
    try:
        check_most(end - start, most_nbytes, what)
        with _errors(what):
            answer = _answer(result, await _all_of(body))
    finally:
        del body  # the traceback of an error would hold it
    if len(answer.data) != end - start:
        raise RequestFailed(f"{what}: the server announced bytes {start} to {end} but sent {len(answer.data)}")
    return answer


async def _all_of(body: obstore.BytesStream) -> memoryview:
    """Return the bytes of an answer, whose pieces are longer than what it announced: the first is all of it, or there is too much."""
    async for piece in body:
        return memoryview(piece)
    return NOTHING


def get_range_blocking(bucket: Bucket, full_key: str, wanted: ByteRange, if_match: str | None) -> ObstoreAnswer | None:
    """Read as ``get_range`` does, in the calling thread, a range that is not empty; return ``None`` where that would raise."""
    options: obstore.GetOptions = {"range": (wanted.start, wanted.end)}
    if if_match is not None:
        options["if_match"] = if_match
    nbytes = wanted.end - wanted.start
    data = NOTHING
    try:
        result = obstore.get(bucket, full_key, options=options)
        if result.range != (wanted.start, wanted.end):
            return None
        for piece in result.stream(min_chunk_size=nbytes + 1):
            data = memoryview(piece)
            break
    except (BaseError, OSError, ValueError):
        return None
    return _answer(result, data) if len(data) == nbytes else None


async def get_head(bucket: Bucket, full_key: str) -> ObstoreAnswer:
    """Return version and size of an object, without bytes. Raises ``RequestFailed``."""
    with _errors(f"looking up {full_key!r}"):
        return _answer(await obstore.get_async(bucket, full_key, options={"head": True}), memoryview(b""))


def put_mode(conditions: Mapping[str, str]) -> obstore.PutMode:
    """Return the conditions of a PutObject, by its names, in obstore's form."""
    if "IfNoneMatch" in conditions:
        return "create"
    return {"e_tag": conditions["IfMatch"]} if "IfMatch" in conditions else "overwrite"


async def put_object(bucket: Bucket, full_key: str, data: bytes, mode: obstore.PutMode, metadata: Mapping[str, str]) -> str | None:
    """Store an object by one request; return its ETag. Raises ``RequestFailed``."""
    with _errors(f"writing {full_key!r}"):
        stored = await obstore.put_async(bucket, full_key, data, attributes=dict(metadata), mode=mode, use_multipart=False)
    return stored["e_tag"]


async def delete_object(bucket: Bucket, full_key: str) -> None:
    """Delete an object by one request, if there is one. Raises ``RequestFailed``."""
    with _errors(f"deleting {full_key!r}"):
        await obstore.delete_async(bucket, full_key)


@contextmanager
def _errors(what: str) -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError, ValueError) as exc:
        raise failed(exc, what) from shown_cause(exc)


def failed(exc: Exception, what: str) -> RequestFailed:
    """Return the failure that a request's exception means."""
    text = str(exc).partition("\n\nDebug source")[0]
    error = RequestFailed(f"{what} failed: {redacted(text)}")
    matched = _STATUS.search(text)
    if matched:
        error.status = int(matched[1])
    elif isinstance(exc, ValueError):  # a key that obstore does not take: nothing was sent
        error.status = 400
    elif "redirect without LOCATION" in text:  # as AWS answers for a bucket in another region
        error.status = 301
    elif isinstance(exc, FileNotFoundError):
        error.status = 404
    elif isinstance(exc, PreconditionError | AlreadyExistsError):
        error.status = 412
    elif isinstance(exc, PermissionError):
        error.status = 403
    code = _CODE.search(text)
    error.code = "" if code is None else NO_SUCH_BUCKET if code[1] == "ContainerNotFound" else code[1]  # Azure's word for it
    return error


def client_options(endpoint: str, connect_timeout: float | None, read_timeout: float | None) -> ClientConfig:
    """Return the options for connections to a server; if they are given, obstore reads none of them from the environment."""
    options: ClientConfig = {
        "allow_http": endpoint.startswith("http://"),
        "allow_invalid_certificates": False,
        "timeout": LONGEST_REQUEST,
    }
    if connect_timeout is not None:
        options["connect_timeout"] = timedelta(seconds=connect_timeout)
    if read_timeout is not None:
        options["read_timeout"] = timedelta(seconds=read_timeout)
    return options


NO_SUCH_KEY = "NoSuchKey"
_ELSEWHERE = (301, 302, 307, 308)
_FIRST_ANSWERS = 3
"""The number of unusable first answers, without a usable one, after which obstore is given up: otherwise every request would be made
twice.
"""

A = TypeVar("A")
Below = TypeVar("Below", S3Storage, GCSStorage, AzureStorage)


class ObstoreStorage(RangedReads, StorageWrapper, BlockingReads, ObstoreCarried, Generic[Below]):
    """The same place as ``inner``; reads go through obstore. Kinds define how a bucket is opened, and what names a version."""

    inner: Below
    absent_code: ClassVar[str] = NO_SUCH_KEY
    """The code of a refusal that says that there is no such object."""

    def __init__(self, inner: Below, is_asked: bool = True) -> None:
        super().__init__(inner)
        self._is_asked = is_asked
        self._bucket: Bucket | None = None
        """The bucket as it was opened last; its credentials may have expired."""
        self._given_up: str | None = None
        """Why obstore is not asked any more."""
        self._useless = 0
        self._has_found = False
        self._has_warned = False
        self.asked_below = 0
        """The number of reads that the storage below answered, although obstore was asked first."""

    def __reduce__(self) -> tuple[type[ObstoreStorage[Below]], tuple[Below, bool]]:
        return type(self), (self.inner, self._is_asked)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.inner == self.inner

    def __hash__(self) -> int:
        return hash((type(self), self.inner))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def ability(self, kind: type[A]) -> A | None:
        """Return an ability of this storage, or of the one below, which is the same place: the server copies between both."""
        found = super().ability(kind)
        return self.inner.ability(kind) if found is None else found

    async def bucket(self) -> Bucket | None:
        """Return the bucket as obstore opens it now; ``None`` if requests have to go another way. Raises no exceptions of obstore."""
        raise NotImplementedError

    def version_of(self, answer: ObstoreAnswer) -> Generation | None:
        """Return the version that an answer speaks of, named as the storage below does."""
        raise NotImplementedError

    def condition_on(self, generation: Generation) -> str | None:
        """Return the ETag to ask for, if the version has one that can match."""
        raise NotImplementedError

    @property
    def why_left_out(self) -> str | None:
        return self._given_up if can_run() else WHY_NOT

    def is_left_out(self) -> bool:
        """Return whether obstore is not used: in a forked process, or after it was given up."""
        why_not = self.why_left_out
        if why_not is not None:
            self._warn(f"requests to {self.url} go through fsspec's transport: {why_not}")
        return why_not is not None

    def _warn(self, message: str) -> None:
        """Log once that requests go another way: as a warning if the user has asked for obstore."""
        if not self._has_warned:
            self._has_warned = True
            logger.log(logging.WARNING if self._is_asked else logging.DEBUG, "%s", message)

    def leave_out(self, reason: Exception) -> None:
        """Note that obstore cannot be used for this place; it is tried again with the next request."""
        text = redacted(str(reason)).partition("\n")[0]
        self._warn(f"{self.url} is reached through fsspec's transport, since obstore cannot open it: {text}")

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
        self._given_up = self._given_up or reason

    def _is_absent(self, refusal: RequestFailed) -> bool:
        """Return whether a refusal says that there is no object. It does if its text says so, or if the server is known to find objects.

        A server that does not speak as obstore expects, such as an emulator without GCS's XML interface, also answers 404.
        """
        if refusal.is_absent and refusal.code == self.absent_code:
            self._has_found = True
        return refusal.is_absent and self._has_found

    # -- reading -------------------------------------------------------------------------------------------------------

    async def get(self, key: str, request: ByteRequest, generation: Generation | None, most_nbytes: int | None = None) -> RangeOutcome:
        if (bucket := await self.bucket()) is None:
            return await self.inner.get(key, request, generation, most_nbytes)
        if_match = None if generation is None else self.condition_on(generation)
        try:
            async with self.inner.client.bound.slot():
                answer = await get_range(bucket, self.inner.client.full_key(key), request, if_match, most_nbytes)
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

    def reads_in_threads(self) -> bool:
        return False

    def read_page_cache(self, read: Read) -> None:
        return None

    def read_in_memory(self, read: Read) -> None:
        return None

    def file_of(self, key: str, version: Generation) -> None:
        return None

    def read_blocking(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Read one range of one version of each object; ``CHANGED`` where that is to be asked for in another way, whatever the reason."""
        return [self._read_blocking(read) for read in reads]

    def _read_blocking(self, read: Read) -> ReadOutcome:
        bucket, version, ranges = self._bucket, read.generation, read.ranges
        if bucket is None or version is None or self.is_left_out() or not self._has_found or len(ranges) != 1:
            return CHANGED
        wanted = ranges[0]
        if not isinstance(wanted, ByteRange) or wanted.start >= wanted.end:
            return CHANGED
        answer = get_range_blocking(bucket, self.inner.client.full_key(read.key), wanted, self.condition_on(version))
        if answer is None or answer.is_encoded or self.version_of(answer) != version:
            return CHANGED  # the other way has retries, and words
        return Found(version, answer.nbytes, (answer.data,))

    async def _get_below(self, key: str, request: ByteRequest, generation: Generation | None, most_nbytes: int | None) -> RangeOutcome:
        self.asked_below += 1
        return await self.inner.get(key, request, generation, most_nbytes)

    async def look_up(self, key: str, generation: Generation | None) -> RangeOutcome:
        if (bucket := await self.bucket()) is None:
            return await self.inner.look_up(key, generation)
        try:
            answer = await self._head(bucket, self.inner.client.full_key(key))
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

    async def _head(self, bucket: Bucket, full_key: str) -> ObstoreAnswer:
        async with self.inner.client.bound.slot():
            try:
                return await get_head(bucket, full_key)
            except RequestFailed as exc:
                if not exc.is_absent or self._has_found:
                    raise
                return await get_range(bucket, full_key, ByteRange(0, 1), None)  # its refusal has a text, which a HEAD's has not
