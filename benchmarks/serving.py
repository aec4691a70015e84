"""What serving costs: processor time of a chunk, requests to a distant storage, memory of many answers at once; and what a report costs.

``python benchmarks/serving.py [--rounds N] [--quick] [--page FILE] [--json FILE]``. Each server runs in a process of its own, and so does
what it is compared with: the engine's read, uvicorn with an application that does nothing, nginx on plain files (where it is installed),
and a proxy that asks its storage for one object a chunk. What is compared is measured in the same round; medians are shown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from latency_http import KINDS_PATH, latency_http
from machine import versions

import shardstore

HERE = Path(__file__).resolve()
CHUNK_NBYTES = 16 << 10
GRID = 16  # chunks along each dimension: 256 in one shard
CONNECTIONS = 16
LATENCY_SECONDS = 0.020
IN_FLIGHT, IN_FLIGHT_NBYTES = 256, 1 << 20
SHARDS = 10_000

BARS = {
    "cpu_of_parts": 1.3,
    "cpu_of_nginx": 10.0,
    "latency_ratio": 5.0,
    "index_requests": 1,
    "object_requests": 32,
    "in_flight_mib": 400.0,
    "report_of_info": 1.2,
    "report_mib": 300.0,
    "repr_ms": 100.0,
}
AT_LEAST = {"latency_ratio"}


# -- servers in processes of their own -----------------------------------------------------------------------------------


@contextmanager
def process(*arguments: str) -> Iterator[tuple[str, int]]:
    """A server's URL, which it prints as its last word, and its process."""
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            yield started.stdout.readline().split()[-1], started.pid
        finally:
            started.send_signal(signal.SIGINT)
            started.wait(30)


def serving(store: str, *options: str) -> Any:
    return process("-m", "shardstore", "serve", store, "--port", "0", *options)


def run_application(app: Any) -> None:
    """Serve an application as the command does, until the process is interrupted."""
    from shardstore.apps.server.running import Serving

    with Serving(app, socket.create_server(("127.0.0.1", 0)), "127.0.0.1") as made:
        print(made.url, flush=True)
        try:
            while not made.wait(0.5):
                pass
        except KeyboardInterrupt:
            pass


def _answer(body: bytes) -> Sequence[dict[str, Any]]:
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]}
    return start, {"type": "http.response.body", "body": body}


def run_empty() -> None:
    messages = _answer(bytes(CHUNK_NBYTES))

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    run_application(app)


def run_proxy(url: str) -> None:
    """A proxy of plain objects: one request to the storage for each that it gets."""
    from shardstore.model.ranges import EVERYTHING
    from shardstore.opening.open import open_storage
    from shardstore.storage.base import Found, Read

    storage = open_storage(url, {})

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        (found,) = await storage.read([Read(scope["path"].lstrip("/"), (EVERYTHING,))])
        assert isinstance(found, Found), found
        for message in _answer(bytes(found.buffers[0])):
            await send(message)

    run_application(app)


def run_engine(store: str, reads: int) -> None:
    """Print the seconds of processor time of so many reads of a chunk, 16 at a time."""
    from shardstore._sync import run_sync
    from shardstore.adapters.handle import Handle
    from shardstore.model.ranges import EVERYTHING
    from shardstore.storage.base import Read

    engine = Handle.find(store, None, {}).engine.canonical
    paths = keys()

    async def read(number: int) -> None:
        for i in range(number, reads, CONNECTIONS):
            await engine.read_versions([Read(paths[i % len(paths)], (EVERYTHING,))])

    async def all_of_them() -> float:
        await asyncio.gather(*(read(n) for n in range(CONNECTIONS)))
        began = time.process_time()
        await asyncio.gather(*(read(n) for n in range(CONNECTIONS)))
        return time.process_time() - began

    print(run_sync(all_of_them()))


@contextmanager
def nginx(root: Path) -> Iterator[tuple[str, int]]:
    """nginx with one worker on plain files."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = Path(tempfile.mkdtemp())
    user = "user root;" if os.geteuid() == 0 else ""
    (place / "nginx.conf").write_text(
        f"{user} worker_processes 1; daemon off; pid {place}/pid; error_log /dev/null;\nevents {{}}\n"
        f"http {{ access_log off; keepalive_requests 1000000; server {{ listen 127.0.0.1:{port}; root {root}; }} }}\n"
    )
    with subprocess.Popen(["nginx", "-p", str(place), "-c", str(place / "nginx.conf")], stderr=subprocess.DEVNULL) as master:
        try:
            time.sleep(1)
            children = Path(f"/proc/{master.pid}/task/{master.pid}/children").read_text().split()
            yield f"http://127.0.0.1:{port}/", int(children[0])
        finally:
            master.terminate()
            master.wait(10)
            shutil.rmtree(place)


# -- clients ---------------------------------------------------------------------------------------------------------------


def keys() -> list[str]:
    return [f"a/c/{i}/{j}" for i in range(GRID) for j in range(GRID)]


def load(url: str, paths: Sequence[str], connections: int = CONNECTIONS) -> float:
    """GET all paths over so many connections; return the seconds that it took."""
    host, _, port = url.removeprefix("http://").rstrip("/").partition(":")

    async def client(mine: Sequence[str]) -> None:
        reader, writer = await asyncio.open_connection(host, int(port), limit=4 << 20)
        for path in mine:
            writer.write(f"GET /{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        writer.close()

    async def all_of_them() -> None:
        await asyncio.gather(*(client(paths[n::connections]) for n in range(connections)))

    began = time.perf_counter()
    asyncio.run(all_of_them())
    return time.perf_counter() - began


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_of(url: str, pid: int, prefix: str, requests: int) -> float:
    """Processor time of the server for a request, in microseconds."""
    paths = [prefix + key for key in keys()]
    load(url, paths)
    before = processor_seconds(pid)
    load(url, (paths * (requests // len(paths) + 1))[:requests])
    return (processor_seconds(pid) - before) / requests * 1e6


# -- what is measured ------------------------------------------------------------------------------------------------------


def make_stores(place: Path) -> tuple[Path, Path]:
    """The same array in one shard, and as plain chunks."""
    chunk = (128, 64)  # of uint16
    shape = (GRID * chunk[0], GRID * chunk[1])
    data = np.random.default_rng(0).integers(0, 1 << 16, shape, dtype="u2")
    for name, shards in (("sharded", shape), ("plain", None)):
        group = zarr.create_group(place / name)
        group.create_array("a", data=data, chunks=chunk, shards=shards, compressors=None)
    return place / "sharded", place / "plain"


def processor_time(sharded: Path, plain: Path, requests: int) -> dict[str, float]:
    found: dict[str, float] = {}
    engine = subprocess.run(
        [sys.executable, str(HERE), "--engine", str(sharded), str(requests)], capture_output=True, text=True, check=True
    )
    found["engine_us"] = float(engine.stdout) / requests * 1e6
    with process(str(HERE), "--empty") as (url, pid):
        found["empty_us"] = cpu_of(url, pid, "", requests)
    with serving(str(sharded)) as (url, pid):
        found["chunk_us"] = cpu_of(url, pid, "zarr3/", requests)
    found["cpu_of_parts"] = found["chunk_us"] / (found["engine_us"] + found["empty_us"])
    if shutil.which("nginx"):
        with nginx(plain) as (url, pid):
            found["nginx_us"] = cpu_of(url, pid, "", requests)
        found["cpu_of_nginx"] = found["chunk_us"] / found["nginx_us"]
    return found


def over_latency(place: Path) -> dict[str, float]:
    """256 chunks of one shard by 16 connections, where each answer of the storage takes 20 ms."""
    found: dict[str, float] = {}
    with latency_http(place, LATENCY_SECONDS) as below:

        def requests() -> dict[str, int]:
            with urllib.request.urlopen(below + KINDS_PATH) as answer:
                kinds: dict[str, int] = json.load(answer)
                return kinds

        contenders: list[tuple[str, Any, str]] = [
            ("proxy", process(str(HERE), "--proxy", f"{below}/plain"), ""),
            ("fresh", serving(f"{below}/sharded", "--no-report"), "zarr3/"),
            ("at_rest", serving(f"{below}/sharded", "--no-report", "--max-age", "3600"), "zarr3/"),
            ("empty", process(str(HERE), "--empty"), ""),
        ]
        for name, server, prefix in contenders:
            with server as (url, _):
                if name != "empty":
                    load(url, [f"{prefix}a/zarr.json"], 1)
                requests()
                found[f"{name}_seconds"] = load(url, [prefix + key for key in keys()])
                kinds = requests()
                found[f"{name}_requests"] = sum(kinds.values())
                found[f"{name}_index_requests"] = kinds.get("end", 0)
                found[f"{name}_object_requests"] = kinds.get("other", 0)
    found["latency_ratio"] = found["proxy_seconds"] / found["at_rest_seconds"]
    found["index_requests"] = max(found["fresh_index_requests"], found["at_rest_index_requests"])
    found["object_requests"] = max(found["fresh_object_requests"], found["at_rest_object_requests"])
    return found


def in_flight(place: Path) -> dict[str, float]:
    """The most memory that the server had while 256 values of 1 MiB were on their way."""
    data = np.zeros((IN_FLIGHT, IN_FLIGHT_NBYTES), dtype="u1")
    data[:] = np.random.default_rng(0).integers(0, 256, IN_FLIGHT_NBYTES, dtype="u1")
    zarr.create_array(place / "large", name="a", data=data, chunks=(1, IN_FLIGHT_NBYTES), shards=(16, IN_FLIGHT_NBYTES), compressors=None)
    with serving(str(place / "large")) as (url, pid):
        load(url, [f"zarr3/a/c/{i}/0" for i in range(IN_FLIGHT)] * 2, IN_FLIGHT)
        (peak,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return {"in_flight_mib": int(peak.split()[1]) / 1024}


def reporting(place: Path, shards: int) -> dict[str, float]:
    """``shardstore report`` beside ``shardstore info``, on one array of many shards, and the repr of a store of 20 arrays."""
    side = int(shards**0.5)
    store = shardstore.open(place / "many", chunks_per_shard=(8, 8))
    array = zarr.create_array(store, name="a", shape=(side * 64, side * 64), chunks=(8, 8), dtype="u1", compressors=None)
    array[:64, :64] = 1
    one = (place / "many/a/c/0/0").read_bytes()
    for i in range(side):
        (place / f"many/a/c/{i}").mkdir(exist_ok=True)
        for j in range(side):
            (place / f"many/a/c/{i}/{j}").write_bytes(one)
    found: dict[str, float] = {}
    for name, options in (("info", ()), ("report", ("--output", str(place / "report.html"), "--overwrite"))):
        times = []
        for _ in range(3):
            began = time.perf_counter()
            command = [sys.executable, "-m", "shardstore", name, str(place / "many"), *options]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - began)
        found[f"{name}_seconds"] = min(times)
    found["report_of_info"] = found["report_seconds"] / found["info_seconds"]
    found["report_mib"] = peak_of(command)
    found["page_mb"] = (place / "report.html").stat().st_size / 1e6
    twenty = zarr.create_group(place / "twenty")
    for number in range(20):
        twenty.create_array(f"a{number}", shape=(64, 64), chunks=(8, 8), shards=(32, 32), dtype="u2")
    shown = shardstore.open(place / "twenty", read_only=True)
    shown._repr_html_()
    times = []
    for _ in range(9):
        began = time.perf_counter()
        shown._repr_html_()
        times.append(time.perf_counter() - began)
    found["repr_ms"] = statistics.median(times) * 1000
    return found


def peak_of(command: Sequence[str]) -> float:
    """The most memory of a command, in MiB."""
    program = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL);"
    program += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    done = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True, check=True)
    return int(done.stdout) / (1024 if sys.platform != "darwin" else 1024 * 1024)


# -- what came of it -------------------------------------------------------------------------------------------------------


def measured(rounds: int, *, quick: bool) -> dict[str, float]:
    every: list[dict[str, float]] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            sharded, plain = make_stores(place)
            one = processor_time(sharded, plain, 1024 if quick else 16_384)
            one |= over_latency(place)
            one |= in_flight(place)
            one |= reporting(place, 100 if quick else SHARDS)
            every.append(one)
    return {name: statistics.median(one[name] for one in every) for name in every[0]}


def holds(name: str, value: float) -> bool:
    return value >= BARS[name] if name in AT_LEAST else value <= BARS[name]


def page_of(found: dict[str, float]) -> str:
    rows: list[tuple[str, str, str]] = []

    def row(what: str, value: str, bar: str = "") -> None:
        said = ""
        if bar in found:
            sign = "≥" if bar in AT_LEAST else "≤"
            said = f"{sign} {BARS[bar]:g}: {'held' if holds(bar, found[bar]) else '**not held**'}"
        rows.append((what, value, said))

    def time_and_requests(name: str) -> str:
        return f"{found[f'{name}_seconds']:.2f} s, {found[f'{name}_requests']:.0f} requests"

    row("a chunk of 16 KiB, 16 connections: processor time", f"{found['chunk_us']:.0f} µs")
    row("— the engine's read alone", f"{found['engine_us']:.0f} µs")
    row("— uvicorn with an empty application", f"{found['empty_us']:.0f} µs")
    row("— all of it, over the sum of these two", f"{found['cpu_of_parts']:.2f} ×", "cpu_of_parts")
    if "nginx_us" in found:
        row("— nginx on plain files", f"{found['nginx_us']:.0f} µs")
        row("— all of it, over nginx", f"{found['cpu_of_nginx']:.1f} ×", "cpu_of_nginx")
    row("256 chunks of a shard over 20 ms of latency: a proxy of plain objects", time_and_requests("proxy"))
    row("— served by shardstore without `--max-age`", time_and_requests("fresh"))
    row("— served by shardstore with `--max-age`", time_and_requests("at_rest"))
    row("— an empty application, which sends no request to a storage", f"{found['empty_seconds']:.2f} s")
    row("— the time of the proxy, over that with `--max-age`", f"{found['latency_ratio']:.1f} ×", "latency_ratio")
    row("— requests for the index, with and without `--max-age`", f"{found['index_requests']:.0f}", "index_requests")
    row("— requests for chunks, with and without `--max-age`", f"{found['object_requests']:.0f}", "object_requests")
    row("256 values of 1 MiB in transfer at once: memory", f"{found['in_flight_mib']:.0f} MiB", "in_flight_mib")
    row("a report of 10,000 shards", f"{found['report_seconds']:.2f} s")
    row("— its time, over that of `shardstore info` on the same store", f"{found['report_of_info']:.2f} ×", "report_of_info")
    row("— memory", f"{found['report_mib']:.0f} MiB", "report_mib")
    row("the repr of a store of 20 arrays in a notebook, warm", f"{found['repr_ms']:.0f} ms", "repr_ms")
    table = "\n".join(f"| {' | '.join(one)} |" for one in rows)
    used = ", ".join(f"{name} {version}" for name, version in versions(["uvicorn", "httptools", "starlette", "zarr", "fsspec"]).items())
    return f"""# What serving and reporting cost

Measured by `make bench-serving`, which runs each server, and each program that it is compared with, in a process of its own. Numbers are
medians of the rounds of one run. A *bar* is a target; it is held if the measured value reaches it.

Python {sys.version.split()[0]}, {used}; {os.cpu_count()} cores.

| what | measured | bar |
|---|---|---|
{table}

**nginx** sends files from the page cache without reading them itself, in {found.get("nginx_us", 0):.0f} µs. The engine of shardstore
finds the chunk in the index of its shard, opens the shard and checks its version. That alone takes
{found["engine_us"]:.0f} µs for a chunk here.

**Over a network with 20 ms.** Chunks that are requested together are read together. With 16 connections there are 16 rounds of requests
to the storage, each for all connections. Without `--max-age`, each round has to ask the storage for the current version, so it is not
faster than a proxy. With `--max-age`, or for a snapshot, blocks of a shard are read ahead, and most chunks come from memory. Three
requests, one after the other, remain (60 ms), and the processor time of 256 chunks, {0.256 * found["chunk_us"]:.0f} ms.
A fifth of the proxy's 16 rounds of 20 ms would be 64 ms.
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--page", type=Path)
    arguments.add_argument("--json", type=Path)
    arguments.add_argument("--empty", action="store_true", help=argparse.SUPPRESS)
    arguments.add_argument("--proxy", help=argparse.SUPPRESS)
    arguments.add_argument("--engine", nargs=2, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    inner: list[tuple[Any, Callable[[], None]]] = [
        (given.empty, run_empty),
        (given.proxy, lambda: run_proxy(given.proxy)),
        (given.engine, lambda: run_engine(given.engine[0], int(given.engine[1]))),
    ]
    for wanted, run in inner:
        if wanted:
            run()
            return
    found = measured(given.rounds, quick=given.quick)
    text = page_of(found)
    print(text)
    if given.page is not None:
        given.page.write_text(text)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2))
    missed = [] if given.quick else [name for name in BARS if name in found and not holds(name, found[name])]
    if missed:
        print("not held:", ", ".join(missed), file=sys.stderr)


if __name__ == "__main__":
    main()
