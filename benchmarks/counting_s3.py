"""An S3 server on this machine, moto, in a process of its own, that counts what every client asks of it."""

from __future__ import annotations

import io
import json
import logging
import multiprocessing
import multiprocessing.connection
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.request import urlopen

COUNTS_PATH = "/-/counts"
"""Where a server that counts tells its counts, and forgets them."""
_START_SECONDS = 120.0


@dataclass(slots=True)
class Counts:
    """Since the counters were last read. Bytes are those of bodies."""

    requests: dict[str, int] = field(default_factory=dict)
    """By method."""
    bytes_read: int = 0
    bytes_written: int = 0


class _CountingApp:
    """A WSGI application in front of another, which it asks one request at a time.

    S3 promises that each request is atomic. moto by itself does not keep that: of two PUTs to one key at once, one closes
    the value while the other still reads it.
    """

    def __init__(self, app: Callable[..., Iterable[bytes]], seconds: float) -> None:
        self._app = app
        self._seconds = seconds
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._read = self._written = 0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        nbytes = int(environ.get("CONTENT_LENGTH") or 0)
        sent = environ["wsgi.input"].read(nbytes)  # a slow client keeps nobody else waiting
        environ["wsgi.input"] = io.BytesIO(sent)
        if environ["PATH_INFO"] != COUNTS_PATH:
            time.sleep(self._seconds)
        with self._lock:
            if environ["PATH_INFO"] == COUNTS_PATH:
                return self._take_counts(start_response)
            self._requests[environ["REQUEST_METHOD"]] += 1
            self._written += nbytes
            answer = self._app(environ, start_response)
            try:
                body = b"".join(answer)
            finally:
                close = getattr(answer, "close", None)
                if close is not None:
                    close()
            self._read += len(body)
        return [body]

    def _take_counts(self, start_response: Callable[..., Any]) -> Iterable[bytes]:
        counts = {"requests": dict(self._requests), "bytes_read": self._read, "bytes_written": self._written}
        self._requests.clear()
        self._read = self._written = 0
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(counts).encode()]


def _serve(pipe: multiprocessing.connection.Connection[Any, Any], as_aws: bool, seconds: float) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    if as_aws:
        from tests.harness.moto_as_aws import behave_as_aws

        behave_as_aws()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = _CountingApp(cast("Callable[..., Iterable[bytes]]", DomainDispatcherApplication(create_backend_app)), seconds)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    pipe.send(server.server_address[1])
    server.serve_forever()


@dataclass(frozen=True, slots=True)
class CountingS3:
    """A running server with an empty bucket ``bucket``."""

    endpoint: str
    bucket: str = "safety"

    def take_counts(self) -> Counts:
        """What was asked since the last call."""
        return take_counts(self.endpoint)


def take_counts(url: str) -> Counts:
    """What a server that counts was asked since the last call."""
    with urlopen(url + COUNTS_PATH, timeout=60) as answer:
        return Counts(**json.load(answer))


@contextmanager
def counting_s3(*, as_aws: bool = False, seconds: float = 0.0) -> Iterator[CountingS3]:
    """Start the server, and end it with the block; with ``as_aws`` it honours the conditions that AWS honours and moto does not.

    Each answer takes ``seconds`` longer, while others are answered.
    """
    import s3fs

    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, as_aws, seconds), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_START_SECONDS):
            raise TimeoutError(f"the S3 server did not start within {_START_SECONDS:.0f} s")
        server = CountingS3(f"http://127.0.0.1:{ours.recv()}")
        s3fs.S3FileSystem(key="test", secret="test", endpoint_url=server.endpoint).call_s3("create_bucket", Bucket=server.bucket)
        yield server
    finally:
        process.terminate()
        process.join()
        ours.close()
