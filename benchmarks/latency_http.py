"""A server of files on this machine, in a process of its own, whose answers take as long as over a network, and which counts them.

For clients whose requests cannot be delayed inside their own process. It knows GET and HEAD, ranges, ETags and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import multiprocessing.connection
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from counting_s3 import COUNTS_PATH

KINDS_PATH = "/-/kinds"
"""What is there: how many requests there were for metadata, for the ends of objects, and others, since it was asked for last."""
_START_SECONDS = 60.0


class _Files:
    def __init__(self, root: Path, seconds: float) -> None:
        self._root = root
        self._seconds = seconds
        self._requests: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()  # of what is asked for: metadata, the end of an object, or anything else
        self._nbytes = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, kept alive."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                request, *lines = head.split("\r\n")
                method, path, _ = request.split(" ")
                headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                if path == KINDS_PATH:
                    answer = _response("200 OK", json.dumps(dict(self._kinds)).encode(), {})
                    self._kinds.clear()
                else:
                    answer = self._counts() if path == COUNTS_PATH else await self._answer(method, path, headers)
                writer.writelines(answer)
                await writer.drain()
        writer.close()

    def _counts(self) -> list[bytes]:
        body = json.dumps({"requests": dict(self._requests), "bytes_read": self._nbytes, "bytes_written": 0}).encode()
        self._requests.clear()
        self._nbytes = 0
        return _response("200 OK", body, {})

    async def _answer(self, method: str, path: str, headers: dict[str, str]) -> list[bytes]:
        self._requests[method] += 1
        is_end = headers.get("range", "").startswith("bytes=-")
        self._kinds["metadata" if path.endswith("zarr.json") else "end" if is_end else "other"] += 1
        await asyncio.sleep(self._seconds)
        try:
            fd = os.open(self._root / path.lstrip("/"), os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return _response("404 Not Found", b"", {})
        try:
            facts = os.fstat(fd)
            if stat.S_ISDIR(facts.st_mode):
                return _response("404 Not Found", b"", {})
            etag = f'"{facts.st_ino:x}-{facts.st_mtime_ns:x}"'
            if headers.get("if-none-match") == etag:
                return _response("304 Not Modified", b"", {"ETag": etag})
            if headers.get("if-match", etag) != etag:
                return _response("412 Precondition Failed", b"", {"ETag": etag})
            start, end = _range_of(headers.get("range", ""), facts.st_size)
            body = b"" if method == "HEAD" else os.pread(fd, end - start, start)
        finally:
            os.close(fd)
        self._nbytes += len(body)
        if "range" not in headers:
            return _response("200 OK", body, {"ETag": etag}, facts.st_size)
        return _response("206 Partial Content", body, {"ETag": etag, "Content-Range": f"bytes {start}-{end - 1}/{facts.st_size}"})


def _range_of(header: str, nbytes: int) -> tuple[int, int]:
    """Start and exclusive end of what a ``Range`` asks for of so many bytes."""
    first, _, last = header.removeprefix("bytes=").partition("-")
    if not first:
        return (max(0, nbytes - int(last)), nbytes) if last else (0, nbytes)
    return int(first), min(int(last) + 1, nbytes) if last else nbytes


def _response(status: str, body: bytes, headers: dict[str, str], nbytes: int | None = None) -> list[bytes]:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if nbytes is None else nbytes}", "Accept-Ranges: bytes"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ["\r\n".join([*lines, "", ""]).encode("latin-1"), body]


def _serve(pipe: multiprocessing.connection.Connection[int, None], root: Path, seconds: float) -> None:
    async def run() -> None:
        server = await asyncio.start_server(_Files(root, seconds).serve, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


@contextmanager
def latency_http(root: Path, seconds: float) -> Iterator[str]:
    """The URL of a server that shows the files below ``root`` while the block runs; each answer takes ``seconds``."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, root, seconds), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_START_SECONDS):
            raise TimeoutError(f"the HTTP server did not start within {_START_SECONDS:.0f} s")
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()
        ours.close()
