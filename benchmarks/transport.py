"""The two transports to S3 and GCS, s3fs and gcsfs against obstore: seconds, and seconds of CPU of the client's process.

``python benchmarks/transport.py [--rounds N] [--quick] [--json FILE]``. Over moto and fake-gcs-server, which can be written to and are slow
enough to be what is waited for; and over a server that costs next to nothing, where the client is. Each contender runs in a process of its
own, one after the other, round by round; what is compared are medians of the ratios of a round. On GCS only reads are compared: writes and
listings go through gcsfs with either.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from counting_s3 import counting_s3
from lean_server import LISTED, OBJECT_NBYTES, key_of, lean_server

TRANSPORTS = ("fsspec", "obstore")
RANGES, RANGE_NBYTES = 256, 64 << 10
WHOLE = 32
WRITTEN, WRITTEN_NBYTES = 64, 1 << 20

LABELS = {
    "ranges": f"{RANGES} ranges of {RANGE_NBYTES >> 10} KiB",
    "whole": f"{WHOLE} objects of {OBJECT_NBYTES >> 20} MiB",
    "list": f"listing {LISTED:,} objects",
    "write": f"writing {WRITTEN} objects of {WRITTEN_NBYTES >> 20} MiB",
}
OF_KIND = {"s3": ("ranges", "whole", "list", "write"), "gs": ("ranges", "whole")}


# -- one contender -----------------------------------------------------------------------------------------------------


def one(url: str, options: dict[str, Any], workloads: list[str], prefix: str) -> dict[str, dict[str, float]]:
    """In this process: every workload once, after a first request that opens a connection."""
    import fsspec.asyn

    from shardstore.model.generation import UNCONDITIONAL
    from shardstore.model.ranges import EVERYTHING, ByteRange
    from shardstore.opening.open import open_storage
    from shardstore.storage.base import Found, Read

    storage = open_storage(url, options)
    data = os.urandom(WRITTEN_NBYTES)
    starts = random.Random(1).sample(range(OBJECT_NBYTES - RANGE_NBYTES), RANGES)

    async def ranges() -> int:
        (found,) = await storage.read([Read("parts", tuple(ByteRange(start, start + RANGE_NBYTES) for start in starts))])
        assert isinstance(found, Found), found
        return sum(map(len, found.buffers))

    async def whole() -> int:
        outcomes = await storage.read([Read(f"whole-{i}", (EVERYTHING,)) for i in range(WHOLE)])
        return sum(len(outcome.buffers[0]) for outcome in outcomes if isinstance(outcome, Found))

    async def list_() -> int:
        return len([info async for info in storage.list("l/")])

    async def write() -> int:
        await asyncio.gather(*(storage.write(f"{prefix}/{i}", [data], len(data), UNCONDITIONAL) for i in range(WRITTEN)))
        return WRITTEN * WRITTEN_NBYTES

    expected = {"ranges": RANGES * RANGE_NBYTES, "whole": WHOLE * OBJECT_NBYTES, "list": LISTED, "write": WRITTEN * WRITTEN_NBYTES}
    run: dict[str, Callable[[], Coroutine[Any, Any, int]]] = {"ranges": ranges, "whole": whole, "list": list_, "write": write}

    def on_loop(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, fsspec.asyn.get_loop()).result()

    on_loop(storage.read([Read("parts", (ByteRange(0, 1),))]))
    measured: dict[str, dict[str, float]] = {}
    for name in workloads:
        began, cpu = time.perf_counter(), time.process_time()
        assert on_loop(run[name]()) == expected[name]
        measured[name] = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
    # What obstore was asked for in vain would be measured twice.
    assert not getattr(storage, "asked_below", 0), "obstore did not carry all of it"
    return measured


def in_a_process(url: str, options: dict[str, Any], workloads: tuple[str, ...]) -> dict[str, dict[str, float]]:
    argument = json.dumps({"url": url, "options": options, "workloads": workloads, "prefix": uuid.uuid4().hex})
    done = subprocess.run([sys.executable, __file__, "--one", argument], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{options.get('transport')} on {url} failed ({done.returncode}):\n{done.stderr}")
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


# -- places ------------------------------------------------------------------------------------------------------------


def fill(url: str, options: dict[str, Any], *, with_list: bool) -> None:
    """Store what is read."""
    import fsspec.asyn

    from shardstore.model.generation import UNCONDITIONAL
    from shardstore.opening.open import open_storage

    storage = open_storage(url, options, transport="obstore")  # the faster one

    async def zeros(nbytes: int) -> AsyncIterator[bytes]:
        for _ in range(nbytes >> 20):
            yield bytes(1 << 20)

    async def work() -> None:
        for name in ("parts", *(f"whole-{i}" for i in range(WHOLE))):
            await storage.write(name, zeros(OBJECT_NBYTES), OBJECT_NBYTES, UNCONDITIONAL)
        keys = [key_of(i).removeprefix("root/") for i in range(LISTED if with_list else 0)]
        for start in range(0, len(keys), 500):
            await asyncio.gather(*(storage.write(key, [b"1"], 1, UNCONDITIONAL) for key in keys[start : start + 500]))

    asyncio.run_coroutine_threadsafe(work(), fsspec.asyn.get_loop()).result()


@contextmanager
def moto() -> Iterator[tuple[str, dict[str, Any]]]:
    with counting_s3() as server:
        options = {"key": "test", "secret": "test", "endpoint_url": server.endpoint, "client_kwargs": {"region_name": "us-east-1"}}
        url = f"s3://{server.bucket}/root"
        fill(url, options, with_list=True)
        yield url, options


@contextmanager
def fake_gcs_server() -> Iterator[tuple[str, dict[str, Any]]]:
    import gcsfs

    from tests.harness.gcs_emulator import gcs_emulator

    with gcs_emulator(with_xml=True) as endpoint:
        options = {"token": "anon", "endpoint_url": endpoint, "project": "test"}
        gcsfs.GCSFileSystem(**options).call("POST", "b", project="test", json={"name": "bucket"})
        fill("gs://bucket/root", options, with_list=False)
        yield "gs://bucket/root", options


@contextmanager
def lean_s3() -> Iterator[tuple[str, dict[str, Any]]]:
    with lean_server() as endpoint:
        options = {"key": "test", "secret": "test", "endpoint_url": endpoint, "client_kwargs": {"region_name": "us-east-1"}}
        yield "s3://bucket/root", options


@contextmanager
def lean_gcs() -> Iterator[tuple[str, dict[str, Any]]]:
    with lean_server() as endpoint:
        yield "gs://bucket/root", {"token": "anon", "endpoint_url": endpoint, "project": "test"}


SERVERS = {"moto": moto, "a lean S3": lean_s3, "fake-gcs-server": fake_gcs_server, "a lean GCS": lean_gcs}
QUICK = ("a lean S3", "a lean GCS")


# -- the run -----------------------------------------------------------------------------------------------------------

Rounds = list[dict[str, dict[str, dict[str, float]]]]
"""Of each round, by transport and workload: seconds, and seconds of CPU."""


def measure(rounds: int, servers: tuple[str, ...]) -> dict[str, Rounds]:
    found: dict[str, Rounds] = {name: [] for name in servers}
    with ExitStack() as running:
        places = {name: running.enter_context(SERVERS[name]()) for name in servers}
        for number in range(rounds):
            for name, (url, options) in places.items():
                # First one, then the other: what the machine does meanwhile is to hit both.
                order = TRANSPORTS if number % 2 else TRANSPORTS[::-1]
                workloads = OF_KIND[url.partition("://")[0]]
                found[name].append({of: in_a_process(url, {**options, "transport": of}, workloads) for of in order})
                print(f"round {number + 1}: {name}", file=sys.stderr)
    return found


def rows(found: dict[str, Rounds]) -> list[tuple[str, str, dict[str, float]]]:
    """Server, workload, and the medians: of both transports, and of the ratios, in which more than 1 is for obstore."""
    lines = []
    for server, rounds in found.items():
        for workload in rounds[0]["obstore"]:
            medians: dict[str, float] = {}
            for what in ("seconds", "cpu"):
                for transport in TRANSPORTS:
                    medians[f"{transport} {what}"] = statistics.median(one[transport][workload][what] for one in rounds)
                ratios = [one["fsspec"][workload][what] / max(one["obstore"][workload][what], 1e-9) for one in rounds]
                medians[f"ratio {what}"] = statistics.median(ratios)
            lines.append((server, workload, medians))
    return lines


def table(lines: list[tuple[str, str, dict[str, float]]]) -> str:
    text = ["| server | | fsspec | obstore | × faster | CPU: fsspec | obstore | × less |", "|---|---|--:|--:|--:|--:|--:|--:|"]
    for server, workload, m in lines:
        text.append(
            f"| {server} | {LABELS[workload]} | {m['fsspec seconds']:.3f} s | {m['obstore seconds']:.3f} s | {m['ratio seconds']:.1f} "
            f"| {m['fsspec cpu']:.3f} s | {m['obstore cpu']:.3f} s | {m['ratio cpu']:.1f} |"
        )
    return "\n".join(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="one round, over the lean server only")
    parser.add_argument("--json", help="where to write the results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.update(
        AWS_EC2_METADATA_DISABLED="true",
        GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT="false",  # with it, gcsfs asks emulators over gRPC, for minutes
        NO_PROXY="127.0.0.1",
        no_proxy="127.0.0.1",
    )
    if given.one:
        print(json.dumps(one(**json.loads(given.one))))
        return 0
    # Servers hold a connection for each request that is under way.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    found = measure(1, QUICK) if given.quick else measure(given.rounds, tuple(SERVERS))
    lines = rows(found)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"medians of {1 if given.quick else given.rounds} rounds; {machine}\n\n{table(lines)}")
    if given.json:
        result = {"machine": machine, "rounds": found, "medians": [[server, workload, m] for server, workload, m in lines]}
        Path(given.json).write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
