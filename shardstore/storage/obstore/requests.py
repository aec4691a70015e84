"""Single requests through obstore, without its retries, and the meaning of its answers and errors.

obstore shows the status of a refusal by the class of an exception, or only in its text. Any outcome other than a plain answer or a
plain refusal is left to the client that the user configured, which asks again by its own rules.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import GCSStore, S3Store

from shardstore.model.ranges import ByteOffset, ByteRange, ByteRequest
from shardstore.model.redaction import redacted, shown_cause
from shardstore.storage.requests.outcomes import RequestFailed
from shardstore.storage.requests.ranged_reads import check_most

if TYPE_CHECKING:  # of the stubs only
    from obstore.store import ClientConfig, RetryConfig

logger = logging.getLogger(__name__)

Bucket = S3Store | GCSStore

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

_is_forked = False


def _after_fork() -> None:
    """Note that this process was forked: the threads on which obstore works stayed behind, so a request of the
    child would wait for ever.
    """
    global _is_forked
    _is_forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _let_go() -> None:
    """Wait at exit: obstore's threads release the bytes that they were given a moment after their answer. One that does so when the
    interpreter is gone aborts the process after all its work is done: two of fourteen that ended with writes.
    """
    time.sleep(_LAST_MOMENT_SECONDS)


atexit.register(_let_go)

_has_told = False


def can_run() -> bool:
    """Return whether obstore works in this process: not in one that was forked after obstore had been imported."""
    global _has_told
    if _is_forked and not _has_told:
        _has_told = True
        logger.warning("obstore does not work in a forked process: requests go through fsspec's transport; spawned processes can use it")
    return not _is_forked


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
    """Return a range in obstore's form. A whole object is asked for as a range too: only the answer to a range is compared with the
    request.
    """
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


async def get(bucket: Bucket, full_key: str, request: ByteRequest, if_match: str | None, most_nbytes: int | None = None) -> ObstoreAnswer:
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
    body = result.stream(min_chunk_size=max(1, end - start))
    try:
        check_most(end - start, most_nbytes, what)
        with _errors(what):
            answer = _answer(result, await _all_of(body, end - start))
    finally:
        del body  # the traceback of an error would hold it
    if len(answer.data) != end - start:
        raise RequestFailed(f"{what}: the server announced bytes {start} to {end} but sent {len(answer.data)}")
    return answer


async def _all_of(body: obstore.BytesStream, nbytes: int) -> memoryview:
    """Return the bytes of an answer that announced ``nbytes`` of them. If more come, no more than about twice as many are read."""
    pieces: list[memoryview] = []
    held = 0
    async for piece in body:  # to its end, or the connection is not used again
        pieces.append(memoryview(piece))
        held += len(piece)
        if held > nbytes:
            break
    return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


async def head(bucket: Bucket, full_key: str) -> ObstoreAnswer:
    """Return version and size of an object, without bytes. Raises ``RequestFailed``."""
    with _errors(f"looking up {full_key!r}"):
        return _answer(await obstore.get_async(bucket, full_key, options={"head": True}), memoryview(b""))


async def put(bucket: Bucket, full_key: str, data: bytes, mode: obstore.PutMode, metadata: Mapping[str, str]) -> str | None:
    """Store an object by one request; return its ETag. Raises ``RequestFailed``."""
    with _errors(f"writing {full_key!r}"):
        stored = await obstore.put_async(bucket, full_key, data, attributes=dict(metadata), mode=mode, use_multipart=False)
    return stored["e_tag"]


@contextmanager
def _errors(what: str) -> Iterator[None]:
    try:
        yield
    except (BaseError, OSError, ValueError) as exc:  # ValueError: a key that obstore does not take
        raise failed(exc, what) from shown_cause(exc)


def failed(exc: Exception, what: str) -> RequestFailed:
    """Return the failure that a request's exception means."""
    text = str(exc).partition("\n\nDebug source")[0]
    error = RequestFailed(f"{what} failed: {redacted(text)}")
    matched = _STATUS.search(text)
    if matched:
        error.status = int(matched[1])
    elif "redirect without LOCATION" in text:  # as AWS answers for a bucket in another region
        error.status = 301
    elif isinstance(exc, FileNotFoundError):
        error.status = 404
    elif isinstance(exc, PreconditionError | AlreadyExistsError):
        error.status = 412
    elif isinstance(exc, PermissionError):
        error.status = 403
    code = _CODE.search(text)
    error.code = code[1] if code else ""
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
