"""What servers, and networks before them, do wrong: behaviours for ``tests.harness.misbehaving_server``.

A behaviour is a coroutine function of a request and of ``send``, which has a request carried out by the real server. It
returns what the client gets::

    async def lie(request: Request, send: Send) -> Outcome:
        return replace(await send(request), status=200)

Faults are what any network does now and then: a client has to cope. Hostility is what a server does always, because it does
not know better: a client has to notice. Nothing here does input or output.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import urlsplit

Headers = tuple[tuple[str, str], ...]


def _with(headers: Headers, name: str, value: str | None) -> Headers:
    """``headers`` with one that has another value; ``None``: without it."""
    others = tuple(pair for pair in headers if pair[0].lower() != name.lower())
    return others if value is None else (*others, (name, value))


def _find(headers: Headers, name: str) -> str | None:
    return next((value for given, value in headers if given.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asked for. ``target`` is path and query as they came, nothing decoded."""

    method: str
    target: str
    headers: Headers
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        return _find(self.headers, name)

    def with_header(self, name: str, value: str | None) -> Request:
        """The same with this header; ``None``: without it."""
        return replace(self, headers=_with(self.headers, name, value))

    @property
    def range(self) -> str | None:
        """The range that is asked for; Azure's clients sign another header than HTTP's."""
        return self.header("x-ms-range") or self.header("Range")

    def with_range(self, value: str | None) -> Request:
        """The same with this range; ``None``: without any."""
        name = "Range" if self.header("x-ms-range") is None else "x-ms-range"
        return self.with_header(name, value)

    def without_query(self, *names: str) -> Request:
        """The same without these parameters of the query."""
        path, _, query = self.target.partition("?")
        kept = "&".join(pair for pair in query.split("&") if pair.partition("=")[0] not in names)
        return replace(self, target=f"{path}?{kept}" if kept else path)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answers. ``Content-Length`` follows from the body; the answer to HEAD has it as a header."""

    status: int
    headers: Headers = ()
    body: bytes = b""

    def header(self, name: str) -> str | None:
        return _find(self.headers, name)

    def with_header(self, name: str, value: str | None) -> Answer:
        """The same with this header; ``None``: without it."""
        return replace(self, headers=_with(self.headers, name, value))


@dataclass(frozen=True, slots=True)
class CutOff:
    """The answer is announced with its full length; after ``nbytes`` of its body the connection ends."""

    answer: Answer
    nbytes: int


@dataclass(frozen=True, slots=True)
class Flood:
    """The answer, behind whose body zeros go on and on: until there are ``most_nbytes``, or the client leaves.

    ``announced`` is its ``Content-Length``; ``None``: it is sent in chunks, and nothing is announced. It ends with a reset, or, where
    it ``ends``, as it should.
    """

    answer: Answer
    announced: int | None
    most_nbytes: int
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Broken:
    """No answer: the connection ends, with a reset (``RST``) or as if the server had nothing to say."""

    is_reset: bool


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer, and the connection stays."""


Outcome = Answer | CutOff | Flood | Broken | Silence
Send = Callable[[Request], Awaitable[Answer]]
Behaviour = Callable[[Request, Send], Awaitable[Outcome]]
Dialect = Literal["s3", "gcs", "azure"]


# -- faults ------------------------------------------------------------------------------------------------------------

_S3_CODES = {
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    416: "InvalidRange",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


_AZURE_CODES = {
    403: "AuthorizationFailure",
    404: "BlobNotFound",
    409: "PendingCopyOperation",
    412: "ConditionNotMet",
    416: "InvalidRange",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServerBusy",
}


def without_header(name: str) -> Behaviour:
    """The server does not see a header of requests."""

    async def behave(request: Request, send: Send) -> Outcome:
        return await send(request.with_header(name, None))

    return behave


def refusal(status: int, dialect: Dialect = "s3") -> Answer:
    """An answer that says no, as S3, the JSON API of GCS or Azure words it."""
    if dialect == "gcs":
        text = json.dumps({"error": {"code": status, "message": f"made up: {status}"}})
        return Answer(status, (("Content-Type", "application/json"),), text.encode())
    codes = _AZURE_CODES if dialect == "azure" else _S3_CODES
    code = codes.get(status, "InternalError")
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>made up: {status}</Message></Error>'
    return Answer(status, (("Content-Type", "application/xml"), ("x-ms-error-code", code)), text.encode())


def refuse(status: int, dialect: Dialect = "s3") -> Behaviour:
    """Answer with a failure; the request is not carried out."""

    async def behave(request: Request, _send: Send) -> Outcome:
        answer = refusal(status, dialect)
        return replace(answer, body=b"") if request.method == "HEAD" else answer

    return behave


def break_off() -> Behaviour:
    """Reset the connection; the request is not carried out."""

    async def behave(_request: Request, _send: Send) -> Outcome:
        return Broken(is_reset=True)

    return behave


def flood(
    *,
    status: int | None = None,
    content_range: str | None = None,
    announced: int | None = 2**40,
    most_nbytes: int = 32 << 20,
    ends: bool = False,
) -> Behaviour:
    """Answer as the server does, and never stop sending; with another status or ``Content-Range``, where these are given. See ``Flood``."""

    async def behave(request: Request, send: Send) -> Outcome:
        answer = await send(request)
        if status is not None:
            answer = replace(answer, status=status)
        if content_range is not None:
            answer = answer.with_header("Content-Range", content_range)
        return Flood(answer, announced, most_nbytes, ends)

    return behave


def drop_reply(*, is_reset: bool = False) -> Behaviour:
    """Carry the request out, and end the connection without an answer."""

    async def behave(request: Request, send: Send) -> Outcome:
        await send(request)
        return Broken(is_reset)

    return behave


def never_answer(*, is_carried_out: bool = True) -> Behaviour:
    """Say nothing, and keep the connection: what the client's timeout is for."""

    async def behave(request: Request, send: Send) -> Outcome:
        if is_carried_out:
            await send(request)
        return Silence()

    return behave


def cut_body(*, is_announced: bool = True, keep: float = 0.5) -> Behaviour:
    """Send the first ``keep`` (a fraction) of the body. Not ``is_announced``: its length is adjusted, and nothing in HTTP shows it."""

    async def behave(request: Request, send: Send) -> Outcome:
        answer = await send(request)
        if not answer.body:  # nothing to cut; and to HEAD the length is another's
            return answer
        nbytes = int(len(answer.body) * keep)
        return CutOff(answer, nbytes) if is_announced else replace(answer, body=answer.body[:nbytes])

    return behave


def delay(seconds: float) -> Behaviour:
    """Take that long before the request is carried out."""

    async def behave(request: Request, send: Send) -> Outcome:
        await asyncio.sleep(seconds)
        return await send(request)

    return behave


def twice() -> Behaviour:
    """Carry the request out two times, and answer with the second answer: a proxy that tries again by itself."""

    async def behave(request: Request, send: Send) -> Outcome:
        await send(request)
        return await send(request)

    return behave


def meanwhile(act: Callable[[], object]) -> Behaviour:
    """Call ``act``, in a thread, before the request is carried out: another client, at just that moment."""

    async def behave(request: Request, send: Send) -> Outcome:
        await asyncio.to_thread(act)
        return await send(request)

    return behave


# -- hostility: conditions and ranges ----------------------------------------------------------------------------------

_CONDITION_HEADERS = ("If-Match", "If-None-Match", "x-amz-copy-source-if-match")
_CONDITION_PARAMETERS = ("ifGenerationMatch", "ifGenerationNotMatch", "ifMetagenerationMatch", "ifMetagenerationNotMatch")


def ignore_conditions() -> Behaviour:
    """Carry the request out whatever it is conditional on.

    Headers are taken away that S3 clients sign: a server that checks signatures refuses such requests.
    """

    async def behave(request: Request, send: Send) -> Outcome:
        for name in _CONDITION_HEADERS:
            request = request.with_header(name, None)
        return await send(request.without_query(*_CONDITION_PARAMETERS))

    return behave


def ignore_range() -> Behaviour:
    """Answer with the whole object and status 200."""

    async def behave(request: Request, send: Send) -> Outcome:
        return await send(request.with_range(None))

    return behave


SuffixFault = Literal["whole", "first", "first, as if last", "refused"]


def wrong_suffix(fault: SuffixFault) -> Behaviour:
    """Serve ranges that count from the end wrongly: all of the object, or its first bytes, in a 206 that says so; its first bytes in a
    206 that says that they are the last; or a 416."""

    async def behave(request: Request, send: Send) -> Outcome:
        matched = re.fullmatch(r"bytes=-(\d+)", request.range or "")
        if matched is None:
            return await send(request)
        if fault == "refused":
            return refusal(416)
        answer = await send(request.with_range(None))
        if answer.status != 200:
            return answer
        total = len(answer.body)
        nbytes = total if fault == "whole" else min(total, int(matched[1]))
        start = total - nbytes if fault == "first, as if last" else 0
        partial = replace(answer, status=206, body=answer.body[:nbytes])
        return partial.with_header("Content-Range", f"bytes {start}-{start + nbytes - 1}/{total}")

    return behave


def shift_ranges(by: int) -> Behaviour:
    """Serve ranges from that much further on, and say so; suffixes are served as asked."""

    async def behave(request: Request, send: Send) -> Outcome:
        matched = re.fullmatch(r"bytes=(\d+)-(\d+)", request.range or "")
        if matched is None:
            return await send(request)
        start, last = (int(number) + by for number in matched.groups())
        return await send(request.with_range(f"bytes={start}-{last}"))

    return behave


def whole_as_range() -> Behaviour:
    """Serve the whole object where a range is asked for, in a 206 that says that it is the range."""

    async def behave(request: Request, send: Send) -> Outcome:
        answer = await send(request)
        if answer.status != 206:
            return answer
        return replace(answer, body=(await send(request.with_range(None))).body)

    return behave


def change_header(name: str, change: Callable[[str], str | None]) -> Behaviour:
    """Change one header of every answer that has it; ``None`` takes it away."""

    async def behave(request: Request, send: Send) -> Outcome:
        answer = await send(request)
        value = answer.header(name)
        return answer if value is None else answer.with_header(name, change(value))

    return behave


def shifted_range(by: int) -> Callable[[str], str]:
    """Of a ``Content-Range``: it starts, and ends, that much later."""

    def change(value: str) -> str:
        start, last, total = (int(number) for number in re.findall(r"\d+", value))
        return f"bytes {start + by}-{last + by}/{total}"

    return change


def wrong_total(by: int) -> Callable[[str], str]:
    """Of a ``Content-Range``: the object is that much longer."""

    def change(value: str) -> str:
        start, last, total = (int(number) for number in re.findall(r"\d+", value))
        return f"bytes {start}-{last}/{total + by}"

    return change


# -- hostility: versions and bodies ------------------------------------------------------------------------------------


def another_each_time() -> Callable[[str], str]:
    """Of an ETag or a generation number: never the same twice, although the object is."""
    numbers = itertools.count(1)

    def change(value: str) -> str:
        digits = value.strip('"')
        if digits.isdecimal():
            return str(int(digits) + next(numbers))
        return f'"{next(numbers):032x}"'

    return change


def gzipped() -> Behaviour:
    """Compress every body that is not empty, and say so, as some caches do unasked. ``Content-Range`` stays as it was."""

    async def behave(request: Request, send: Send) -> Outcome:
        answer = await send(request)
        if not answer.body or answer.status not in (200, 206):
            return answer
        return replace(answer, body=gzip.compress(answer.body)).with_header("Content-Encoding", "gzip")

    return behave


class Stale:
    """Serves every object as it was when it was first asked for, with its version, ranges and ``If-Match`` included: a cache that
    is never told of changes. To be given for GET and HEAD; the answers of listings stay as they were, too."""

    def __init__(self) -> None:
        self._seen: dict[str, Answer] = {}

    async def __call__(self, request: Request, send: Send) -> Outcome:
        path = urlsplit(request.target).path
        media = request.range is not None or "alt=media" in request.target
        name = f"{path}?media" if media or "?" not in request.target else request.target
        if name not in self._seen:
            whole = replace(request, method="GET").without_query(*_CONDITION_PARAMETERS).with_range(None)
            answer = await send(whole.with_header("If-Match", None))
            if answer.status != 200:
                return answer
            self._seen[name] = answer
        kept = self._seen[name]
        wanted = request.header("If-Match")
        if wanted is not None and wanted != kept.header("ETag"):
            return refusal(412)
        if request.method == "HEAD":
            return replace(kept, body=b"").with_header("Content-Length", str(len(kept.body)))
        return _part(kept, request.range)


def _part(whole: Answer, header: str | None) -> Answer:
    """The part of ``whole`` that a ``Range`` asks for."""
    if header is None:
        return whole
    total = len(whole.body)
    first, _, last = header.removeprefix("bytes=").partition("-")
    start = int(first) if first else max(0, total - int(last))
    end = min(total, int(last) + 1) if first and last else total
    if start >= end:
        return refusal(416)
    return replace(whole, status=206, body=whole.body[start:end]).with_header("Content-Range", f"bytes {start}-{end - 1}/{total}")
