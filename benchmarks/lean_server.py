"""A server on this machine that costs next to nothing, so that what a client costs shows: objects of zeros, and listings made beforehand.

It speaks as much of S3 and of GCS, by JSON and by XML, as reads, listings and single writes take. Nothing is stored: every object is
there, of 8 MiB and of one version.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import multiprocessing.connection
import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

OBJECT_NBYTES = 8 << 20
LISTED = 10_000
_A_PAGE = 1000
_START_SECONDS = 60.0

_ETAG = '"0123456789abcdef0123456789abcdef"'
_GENERATION = "1700000000000001"
_DATE = "Tue, 14 Nov 2023 22:13:20 GMT"
_RANGE = re.compile(rb"\r\nrange: bytes=(\d+)-(\d*)", re.IGNORECASE)
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


async def _serve(pipe: multiprocessing.connection.Connection) -> None:
    pages = {start: _s3_page(start) for start in range(0, LISTED, _A_PAGE)}
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(pages), "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _run(pipe: multiprocessing.connection.Connection) -> None:
    asyncio.run(_serve(pipe))


@contextmanager
def lean_server() -> Iterator[str]:
    """Its address, in a process of its own until the end of the block."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs,), daemon=True)
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
