"""The server itself: writers beside readers, load, slow and rude clients, and how it ends."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import zarr
from starlette.applications import Starlette
from starlette.routing import Mount

import shardstore
from shardstore._sync import run_sync
from shardstore.apps.server import application, serve
from tests.apps.server.conftest import Client, connected, reading
from tests.harness.scale import EXAMPLES

CHUNK = "zarr3/ct/c/0/0/0"
ANSWERS = 20 * EXAMPLES


def address(serving: Any) -> tuple[str, int]:
    host, _, port = serving.url.removeprefix("http://").rstrip("/").partition(":")
    return host, int(port)


def raw(serving: Any, request: bytes, seconds: float = 10.0) -> bytes:
    """Send bytes, and return all that is answered until the server closes the connection, or so many seconds have passed."""
    with socket.create_connection(address(serving)) as connection:
        connection.settimeout(seconds)
        connection.sendall(request)
        found = b""
        try:
            while data := connection.recv(65536):
                found += data
        except (TimeoutError, ConnectionResetError):
            return found
        return found


# -- writers beside readers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answers", [ANSWERS, pytest.param(100_000, marks=[pytest.mark.night, pytest.mark.timeout(3600)])])
def test_no_answer_mixes_versions(tmp_path: Path, answers: int) -> None:
    """Each value of the array is one number, and another one with each commit; two halves of a chunk are fetched with ``If-Match``."""
    zarr.create_array(
        tmp_path / "s", shape=(64, 64), chunks=(16, 16), shards=(64, 64), dtype="u4", compressors=None, fill_value=0
    )  # never written
    array = zarr.open_array(shardstore.open(str(tmp_path / "s"), fsync=False), mode="r+")
    array[...] = 1
    stop = threading.Event()
    commits = 0

    def write() -> None:
        nonlocal commits
        for number in range(2, 1 << 30):
            if stop.is_set():
                return
            array[...] = number
            commits += 1

    def read(seed: int) -> tuple[int, int]:
        rng = random.Random(seed)
        pairs = gone = 0
        with connected(serving) as http:
            for _ in range(answers // 8 // 2):
                path = f"zarr3/c/{rng.randrange(4)}/{rng.randrange(4)}"
                first = http.get(path, headers={"range": "bytes=0-511"})
                second = http.get(path, headers={"range": "bytes=512-", "if-match": first.headers["etag"]})
                if second.status_code in (412, 503):
                    gone += 1
                    continue
                assert (first.status_code, second.status_code) == (206, 206)
                values = set(np.frombuffer(first.content + second.content, "<u4").tolist())
                assert len(values) == 1, values
                pairs += 1
        return pairs, gone

    with serve(tmp_path / "s", port=0) as serving, ThreadPoolExecutor(9) as pool:
        writer = pool.submit(write)
        try:
            found = list(pool.map(read, range(8)))
        finally:
            stop.set()
        writer.result()
    assert commits > 5
    assert sum(pairs for pairs, _ in found) > 0
    assert sum(gone for _, gone in found) > 0


# -- load ------------------------------------------------------------------------------------------------------------------


def test_more_than_twice_the_load_is_sent_away(store: Path) -> None:
    with serve(store, port=0, in_flight=4) as serving:
        bucket = serving.application.served.buckets["zarr3"]
        gate, real = asyncio.Event(), bucket.read

        async def held(read: Any) -> Any:
            await gate.wait()
            return await real(read)

        bucket.read = held  # type: ignore[method-assign]
        with ThreadPoolExecutor(20) as pool:
            with connected(serving) as http:
                requests = [pool.submit(httpx.get, serving.url + CHUNK, trust_env=False, timeout=60) for _ in range(20)]
                while serving.application.load.refused < 12:
                    time.sleep(0.01)
                assert http.get("healthz").status_code == 200  # what is no read is answered
            run_sync(_open(gate))
            answers = [request.result() for request in requests]
        assert sorted(answer.status_code for answer in answers) == [200] * 8 + [503] * 12
        assert all(answer.headers["retry-after"] == "1" for answer in answers if answer.status_code == 503)
        assert httpx.get(serving.url + CHUNK, trust_env=False).status_code == 200
        deadline = time.monotonic() + 10
        while serving.application.load.running and time.monotonic() < deadline:  # the last one ends after its answer is sent
            time.sleep(0.01)
        assert serving.application.load.running == 0


async def _open(gate: asyncio.Event) -> None:
    gate.set()


def test_client_that_goes_away_cancels_its_read(store: Path) -> None:
    with serve(store, port=0) as serving:
        bucket = serving.application.served.buckets["zarr3"]
        cancelled = threading.Event()

        async def forever(read: Any) -> Any:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        bucket.read = forever  # type: ignore[method-assign]
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(serving.url + CHUNK, trust_env=False, timeout=1.5)
        assert cancelled.wait(10)
        while serving.application.load.running:
            time.sleep(0.01)


def test_client_that_goes_away_ends_what_is_sent(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 255, (1 << 25,), dtype="u1")
    zarr.create_array(tmp_path / "s", data=data, chunks=data.shape, shards=data.shape, compressors=None)
    with serve(tmp_path / "s", port=0, piece_nbytes=1 << 20) as serving:
        for _ in range(3):
            with socket.create_connection(address(serving)) as connection:
                connection.sendall(b"GET /zarr3/c/0 HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert connection.recv(1000)
        deadline = time.monotonic() + 30
        while serving.application.load.running and time.monotonic() < deadline:
            time.sleep(0.01)
        assert serving.application.load.running == 0


# -- rude clients ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /zarr3/ct/zarr.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /",
        b"GET /zarr3/ct/zarr.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nGET /",
        b"GET /zarr3/ct/zarr.json HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        b"GET /zarr3/ct/zarr.json HTTP/1.1\r\nHost: localhost\r\n folded: yes\r\n\r\n",
        b"GET /zarr3/ct/zarr.json HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET /zarr3/ct/zarr.json\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET zarr3/ct HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"rubbish\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    ],
)
def test_requests_that_are_none_get_no_data(client: Client, request_: bytes) -> None:
    found = raw(client.serving, request_, 3)
    first = found.partition(b"\r\n")[0]
    assert not first or first.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5", b"HTTP/1.1 200"))
    assert found.count(b"HTTP/1.1 ") <= 1  # nothing behind it is taken for another request
    if b" 200 " in first:
        assert b"connection: close" in found.lower()
    assert client.get(CHUNK).status_code == 200


def test_body_of_a_request_is_not_another_request(client: Client) -> None:
    body = b"GET /zarr3/ct/zarr.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    found = raw(client.serving, head + body)
    assert found.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in found.lower()


def test_headers_without_end_are_refused(client: Client) -> None:
    found = raw(client.serving, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"x-long: " + b"y" * 200_000)
    assert not found or found.startswith(b"HTTP/1.1 431")  # the answer may be lost, since the server reads no more
    assert client.get(CHUNK).status_code == 200


def test_escapes_of_all_kinds(own: Client, store: Path) -> None:
    (store.parent / "secret").write_bytes(b"secret")
    rng = random.Random(0)
    parts = [
        "..",
        "%2e%2e",
        "%2E.",
        ".",
        "%2f",
        "%5c",
        "\\",
        "//",
        "/",
        "ct",
        "secret",
        "%00",
        "%c0%ae%c0%ae",
        "%252e%252e",
        ";",
        "..;",
        "data.zarr",
    ]
    for _ in range(300):
        path = "".join(f"/{rng.choice(parts)}" for _ in range(rng.randrange(1, 6)))
        bucket = rng.choice(["zarr3", "zarr2", "stored"])
        found = raw_get(own, f"/{bucket}{path}")
        assert b"secret\r\n" not in found
        assert not found.endswith(b"secret")
        assert found.startswith((b"HTTP/1.1 40", b"HTTP/1.1 30", b"HTTP/1.1 200")), path


def raw_get(client: Client, path: str) -> bytes:
    return raw(client.serving, b"GET " + path.encode("latin-1") + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")


def test_many_requests_on_one_connection(client: Client, store: Path) -> None:
    wanted = reading(store)
    keys = [key for key in wanted if " " not in key]
    requests = b"".join(b"GET /zarr3/%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % key.encode() for key in keys)
    found = raw(client.serving, requests + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert found.count(b"HTTP/1.1 200 OK") == len(keys) + 1
    assert all(wanted[key] in found for key in keys)


# -- mounting, and the end -------------------------------------------------------------------------------------------------


def test_application_is_mounted_on_another_loop(store: Path) -> None:
    app = application(store)
    mounted = Starlette(routes=[Mount("/data", app)])

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(mounted), base_url="http://any.example") as http:
            paths = ("/data/zarr3/ct/c/0/0/0", "/data/zarr3/ct/", "/data/healthz", "/data/", "/data/zarr3", "/data/zarr3/no")
            return await asyncio.gather(*(http.get(path) for path in paths))

    found = asyncio.run(ask())
    assert [answer.status_code for answer in found] == [200, 200, 200, 200, 307, 404]
    assert found[0].content == reading(store)["ct/c/0/0/0"]
    assert str(found[4].url.join(found[4].headers["location"])) == "http://any.example/data/zarr3/"


def test_end_of_the_block_ends_the_server(store: Path) -> None:
    with serve(store, port=0) as serving:
        assert httpx.get(serving.url + "healthz", trust_env=False).text == "ok"
        url = serving.url
    assert serving.wait(0)
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)
    assert not [thread for thread in threading.enumerate() if "uvicorn" in thread.name]


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.gate)])
def test_command_serves_until_it_is_told_to_stop(store: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "shardstore", "serve", str(store), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = process.stdout.readline()
        assert said.startswith(f"serving file://{store} at http://127.0.0.1:")
        url = said.split()[-1]
        assert httpx.get(url + CHUNK, trust_env=False).content == reading(store)["ct/c/0/0/0"]
        process.send_signal(number)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""


@pytest.mark.gate
def test_second_signal_breaks_off_what_is_under_way(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 255, (1 << 26,), dtype="u1")
    zarr.create_array(tmp_path / "s", data=data, chunks=data.shape, shards=data.shape, compressors=None)
    with subprocess.Popen(
        [sys.executable, "-m", "shardstore", "serve", str(tmp_path / "s"), "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        with httpx.stream("GET", url + "zarr3/c/0", trust_env=False) as got:
            assert got.status_code == 200
            process.send_signal(signal.SIGINT)
            time.sleep(1)
            assert process.poll() is None  # the client is still to get the rest
            process.send_signal(signal.SIGINT)
            assert process.wait(8) == 0


def test_bodies_do_not_wait_for_acknowledgements_of_headers(own: Client) -> None:
    """They are sent one after the other: with Nagle's algorithm each answer took 40 ms."""
    assert own.get(CHUNK).status_code == 200
    (connection,) = own.serving._server.server_state.connections
    assert connection.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
