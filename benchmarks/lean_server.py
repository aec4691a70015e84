"""A server on this machine that costs next to nothing, so that what a client costs shows: objects of zeros, and listings made beforehand.

It speaks as much of S3 and of GCS, by JSON and by XML, as reads, listings and single writes take. Nothing is stored: every object is
there, of 8 MiB and of one version. One that keeps what is written speaks S3 only, with conditions, and counts what it is asked.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import multiprocessing.connection
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from counting_s3 import COUNTS_PATH

OBJECT_NBYTES = 8 << 20
LISTED = 10_000
_A_PAGE = 1000
_START_SECONDS = 60.0

_ETAG = '"0123456789abcdef0123456789abcdef"'
_GENERATION = "1700000000000001"
_DATE = "Tue, 14 Nov 2023 22:13:20 GMT"
_RANGE = re.compile(rb"\r\nrange: bytes=(\d+)-(\d*)", re.IGNORECASE)
_ANY_RANGE = re.compile(rb"\r\nrange: bytes=(\d*)-(\d*)", re.IGNORECASE)
_IF_MATCH = re.compile(rb"\r\nif-match:([^\r]+)", re.IGNORECASE)
_IF_NONE_MATCH = re.compile(rb"\r\nif-none-match:", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_ZEROS = memoryview(bytes(OBJECT_NBYTES))


def key_of(number: int) -> str:
    return f"root/l/{number:05d}"


def _s3_page(start: int) -> bytes:
    stop = min(start + _A_PAGE, LISTED)
    entries = "".join(
        f"<Contents><Key>{key_of(i)}</Key><LastModified>2023-11-14T22:13:20.000Z</LastModified><ETag>&quot;{i:032x}&quot;</ETag>"
        "<Size>1</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for i in range(start, stop)
    )
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{stop}</NextContinuationToken>"
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>'
        f"<KeyCount>{stop - start}</KeyCount><MaxKeys>{_A_PAGE}</MaxKeys>"
        f"{more if stop < LISTED else '<IsTruncated>false</IsTruncated>'}{entries}</ListBucketResult>"
    ).encode()


class _Connection(asyncio.Protocol):
    """One connection: requests one after the other."""

    pages: dict[int, bytes]

    def __init__(self, pages: dict[int, bytes]) -> None:
        self.pages = pages
        self._received = bytearray()
        self._body = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._received[:end])
            length = _LENGTH.search(head)
            total = end + 4 + (int(length[1]) if length else 0)
            if length and b"100-continue" in head.lower() and len(self._received) == end + 4 and total > end + 4:
                self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
            if len(self._received) < total:
                return
            self._body = bytes(memoryview(self._received)[end + 4 : total])
            del self._received[:total]
            self._answer(head)

    def _send(self, data: bytes | memoryview) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def _answer(self, head: bytes) -> None:
        method, target = head.split(b" ", 2)[:2]
        parts = urlsplit(target.decode())
        if method in (b"PUT", b"POST", b"DELETE"):
            self._reply("200 OK", b"", f"ETag: {_ETAG}\r\n")
        elif "list-type" in parts.query:
            start = parse_qs(parts.query).get("continuation-token", ["0"])
            self._reply("200 OK", self.pages[int(start[0])], "Content-Type: application/xml\r\n")
        elif "/download/" not in parts.path and "/storage/v1/" in parts.path:
            resource = {"kind": "storage#object", "generation": _GENERATION, "size": str(OBJECT_NBYTES)}
            self._reply("200 OK", json.dumps(resource).encode(), "Content-Type: application/json\r\n")
        else:
            self._object(head, method)

    def _object(self, head: bytes, method: bytes) -> None:
        version = f"ETag: {_ETAG}\r\nX-Goog-Generation: {_GENERATION}\r\nLast-Modified: {_DATE}\r\nAccept-Ranges: bytes\r\n"
        wanted = _RANGE.search(head)
        if wanted is None:
            self._reply("200 OK", _ZEROS, version, has_body=method == b"GET")
            return
        start, last = int(wanted[1]), min(int(wanted[2] or OBJECT_NBYTES), OBJECT_NBYTES - 1)
        part = _ZEROS[start : last + 1]
        self._reply(
            "206 Partial Content", part, f"{version}Content-Range: bytes {start}-{last}/{OBJECT_NBYTES}\r\n", has_body=method == b"GET"
        )

    def _reply(self, status: str, body: bytes | memoryview, headers: str, *, has_body: bool = True) -> None:
        self._send(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode())
        if has_body and len(body):
            self._send(body)


@dataclass(frozen=True, slots=True)
class _Kept:
    data: bytes
    etag: str


class _Keeping(_Connection):
    """One connection to a bucket that keeps what is written."""

    objects: ClassVar[dict[str, _Kept]] = {}
    requests: ClassVar[Counter[str]] = Counter()

    def _answer(self, head: bytes) -> None:
        method, target = (part.decode() for part in head.split(b" ", 2)[:2])
        parts = urlsplit(target)
        key = unquote(parts.path)
        if key == COUNTS_PATH:
            counts = {"requests": dict(self.requests), "bytes_read": 0, "bytes_written": 0}
            self.requests.clear()
            self._reply("200 OK", json.dumps(counts).encode(), "Content-Type: application/json\r\n")
            return
        self.requests[method] += 1
        found = self.objects.get(key)
        if "list-type" in parts.query:
            self._reply("200 OK", self._listing(parts), "Content-Type: application/xml\r\n")
        elif refusal := _refusal(head, found, is_write=method in ("PUT", "DELETE")):
            status, code = refusal
            text = f"<Error><Code>{code}</Code></Error>".encode()
            self._reply(status, text, "Content-Type: application/xml\r\n", has_body=method != "HEAD")
        elif method == "PUT":
            kept = self.objects[key] = _Kept(self._body, f'"{uuid.uuid4().hex}"')
            self._reply("200 OK", b"", f"ETag: {kept.etag}\r\n")
        elif method == "DELETE":
            self.objects.pop(key, None)
            self._reply("204 No Content", b"", "")
        elif found is not None:
            self._send_kept(head, method, found)

    def _send_kept(self, head: bytes, method: str, found: _Kept) -> None:
        nbytes = len(found.data)
        version = f"ETag: {found.etag}\r\nLast-Modified: {_DATE}\r\nAccept-Ranges: bytes\r\n"
        wanted = _ANY_RANGE.search(head)
        if wanted is None:
            self._reply("200 OK", found.data, version, has_body=method == "GET")
            return
        first, last = wanted[1], wanted[2]
        start = int(first) if first else max(0, nbytes - int(last))
        stop = min(int(last) + 1, nbytes) if first and last else nbytes
        if start >= nbytes:
            self._reply("416 Range Not Satisfiable", b"", f"Content-Range: bytes */{nbytes}\r\n")
            return
        part = memoryview(found.data)[start:stop]
        self._reply("206 Partial Content", part, f"{version}Content-Range: bytes {start}-{stop - 1}/{nbytes}\r\n", has_body=method == "GET")

    def _listing(self, parts: SplitResult) -> bytes:
        """One page, of everything below a prefix."""
        prefix = parse_qs(parts.query).get("prefix", [""])[0]
        root = parts.path.rstrip("/") + "/"
        names = [key.removeprefix(root) for key in sorted(self.objects) if key.startswith(root + prefix)]
        entries = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>2023-11-14T22:13:20.000Z</LastModified>"
            f"<ETag>{escape(self.objects[root + name].etag)}</ETag><Size>{len(self.objects[root + name].data)}</Size></Contents>"
            for name in names
        )
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>'
            f"<KeyCount>{len(names)}</KeyCount><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
        ).encode()


def _refusal(head: bytes, found: _Kept | None, *, is_write: bool) -> tuple[str, str] | None:
    """The status and code of a refusal, by the conditions of a request; ``None``: it is carried out."""
    matched, absent = _IF_MATCH.search(head), _IF_NONE_MATCH.search(head)
    if matched and found is not None and matched[1].strip().decode() != found.etag:
        return "412 Precondition Failed", "PreconditionFailed"
    if absent and found is not None:
        return "412 Precondition Failed", "PreconditionFailed"
    if found is None and (matched or not is_write):
        return "404 Not Found", "NoSuchKey"
    return None


async def _serve(pipe: multiprocessing.connection.Connection, keeps: bool) -> None:
    pages = {} if keeps else {start: _s3_page(start) for start in range(0, LISTED, _A_PAGE)}
    kind = _Keeping if keeps else _Connection
    server = await asyncio.get_running_loop().create_server(lambda: kind(pages), "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _run(pipe: multiprocessing.connection.Connection, keeps: bool) -> None:
    asyncio.run(_serve(pipe, keeps))


@contextmanager
def lean_server(*, keeps: bool = False) -> Iterator[str]:
    """Its address, in a process of its own until the end of the block. ``keeps``: what is written."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs, keeps), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_START_SECONDS):
            raise TimeoutError(f"the server did not start within {_START_SECONDS:.0f} s")
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()
        ours.close()
