"""Packing 20,000 chunks: beside the leanest plain loops, zarr-python and tensorstore, on a local disk; and over 20 ms of latency.

``python benchmarks/pack.py [--rounds N] [--chunks N] [--json FILE] [--large]``. Each contender runs in a process of its own, one after the
other, round by round; what is compared are medians of the ratios of a round. Nobody flushes to disk, but for the durable times beside.
Ends with 1 where a bar is not held.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

CHUNK = (32, 32, 32)
SHARD = (8, 8, 8)  # in chunks
LATENCY_SECONDS = 0.020
CONCURRENCY = 64

# (contender, how it is compared, bar): "at most" is shardstore's time over the contender's, "at least" the contender's over shardstore's.
BARS = (("plain loop", "at most", 2.0), ("zarr-python", "at least", 15.0), ("tensorstore", "at least", 1.5))


# -- the source --------------------------------------------------------------------------------------------------------


def shape_of(chunks: int) -> tuple[int, int, int]:
    """Of at least so many chunks: 28 × 28 along the last two dimensions where there are very many."""
    side = 28 if chunks >= 20_000 else 10
    return -(-chunks // side**2) * CHUNK[0], side * CHUNK[1], side * CHUNK[2]


def make_source(root: Path, chunks: int) -> None:
    """Smooth 16-bit volumes with noise, as microscopes give them: a chunk of 64 KiB takes about 20 compressed."""
    import zarr

    shape = shape_of(chunks)
    array = zarr.create_array(root, shape=shape, chunks=CHUNK, dtype="<u2", compressors=zarr.codecs.ZstdCodec(level=1))
    rng = np.random.default_rng(0)
    for z in range(0, shape[0], CHUNK[0]):
        slab = rng.normal(1000, 2, (CHUNK[0], *shape[1:])).astype("<u2")
        array[z : z + CHUNK[0]] = slab


# -- contenders --------------------------------------------------------------------------------------------------------


def files_below(source: Path) -> list[str]:
    return sorted(os.path.join(directory, name) for directory, _, names in os.walk(source / "c") for name in names)


def append_all(names: list[str], target: str) -> None:
    """Reads each file by its own size and appends its bytes: no index, no check, no metadata."""
    with open(target, "wb", buffering=0) as out:
        for name in names:
            fd = os.open(name, os.O_RDONLY)
            try:
                out.write(os.read(fd, os.fstat(fd).st_size))
            finally:
                os.close(fd)


def plain_loop(source: Path, target: Path, threads: int) -> Callable[[], None]:
    names = files_below(source)
    target.mkdir()

    def run() -> None:
        if threads == 1:
            append_all(names, str(target / "all"))
            return
        half = len(names) // 2
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(append_all, [names[:half], names[half:]], [str(target / "a"), str(target / "b")]))

    return run


def by_shardstore(source: Path, target: Path, **options: Any) -> Callable[[], None]:
    import shardstore

    function = shardstore.pack  # imported before it is timed

    def run() -> None:
        assert function(str(source), str(target), chunks_per_shard=SHARD, **options).complete

    return run


def by_zarr(source: Path, target: Path) -> Callable[[], None]:
    import zarr

    def run() -> None:
        old = zarr.open_array(source, mode="r")
        shards = tuple(c * n for c, n in zip(CHUNK, SHARD, strict=True))
        codec = zarr.codecs.ZstdCodec(level=1)
        new = zarr.create_array(target, shape=old.shape, chunks=CHUNK, shards=shards, dtype=old.dtype, compressors=codec)
        for corner in np.ndindex(*(-(-n // s) for n, s in zip(old.shape, shards, strict=True))):
            where = tuple(slice(i * s, (i + 1) * s) for i, s in zip(corner, shards, strict=True))
            new[where] = old[where]

    return run


def by_tensorstore(source: Path, target: Path) -> Callable[[], None]:
    import tensorstore as ts

    document = json.loads((source / "zarr.json").read_text())
    codecs = document["codecs"]
    sharding = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": list(CHUNK),
            "codecs": codecs,
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        },
    }
    shards = [c * n for c, n in zip(CHUNK, SHARD, strict=True)]
    metadata = {
        "shape": document["shape"],
        "data_type": document["data_type"],
        "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shards}},
        "codecs": [sharding],
    }

    def run() -> None:
        context = ts.Context({"file_io_sync": False})
        old = ts.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": str(source)}}, open=True, context=context).result()
        store = {"driver": "file", "path": str(target)}
        new = ts.open({"driver": "zarr3", "kvstore": store, "metadata": metadata}, create=True, open=True, context=context).result()
        for corner in np.ndindex(*(-(-n // s) for n, s in zip(old.shape, shards, strict=True))):
            box = tuple(slice(i * s, min((i + 1) * s, n)) for i, s, n in zip(corner, shards, old.shape, strict=True))
            new[box].write(old[box]).result()

    return run


CONTENDERS: dict[str, Callable[[Path, Path], Callable[[], None]]] = {
    # What is in the page cache is not waited for: more workers would only wait for each other.
    "shardstore": lambda source, target: by_shardstore(source, target, fsync=False, workers=1),
    "shardstore, durable": lambda source, target: by_shardstore(source, target, workers=1),
    "plain loop, 1 thread": lambda source, target: plain_loop(source, target, 1),
    "plain loop, 2 threads": lambda source, target: plain_loop(source, target, 2),
    "zarr-python": by_zarr,
    "tensorstore": by_tensorstore,
}


def timed(name: str, source: Path, target: Path) -> dict[str, float]:
    """In this process: what one contender takes, imports aside."""
    run = CONTENDERS[name](source, target)
    warm(source)
    began, cpu = time.perf_counter(), time.process_time()
    run()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"seconds": seconds, "cpu": cpu, "peak_mib": peak_mib()}


def warm(source: Path) -> None:
    """Read the source into the page cache, and touch as much memory as will be written: a virtual machine gives what is free back to its
    host, and to get it again takes longer than all that is measured here.
    """
    total = 0
    for name in files_below(source):
        with open(name, "rb", buffering=0) as file:
            total += len(file.read())
    touched = mmap.mmap(-1, 2 * total + (1 << 20))
    for at in range(0, len(touched), mmap.PAGESIZE):
        touched[at] = 1
    touched.close()


def peak_mib() -> float:
    """The most memory that this process has had. Not by getrusage, which begins with what the process had that started it."""
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def in_a_process(*arguments: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


# -- over a network ----------------------------------------------------------------------------------------------------


def over_latency(chunks: int) -> dict[str, float]:
    """From and to memory, each request 20 ms long: beside as many requests as it makes, at that many at once."""
    import shardstore
    from shardstore._sync import run_sync
    from shardstore.model.generation import UNCONDITIONAL
    from shardstore.storage.memory import MemoryStorage
    from shardstore.testing.latency import LatencyStorage
    from shardstore.testing.trace import TraceStorage

    source, target, record = (MemoryStorage(f"/bench/{what}") for what in ("source", "target", "record"))
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [chunks],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 1, "checksum": False}}],
    }

    async def fill() -> None:
        await source.write("zarr.json", [data := json.dumps(document).encode()], len(data), UNCONDITIONAL)
        for i in range(chunks):
            await source.write(f"c/{i}", [bytes(4096)], 4096, UNCONDITIONAL)

    run_sync(fill())
    slow_source = TraceStorage(LatencyStorage(source, LATENCY_SECONDS, concurrency=CONCURRENCY))
    slow_target = TraceStorage(LatencyStorage(target, LATENCY_SECONDS, concurrency=CONCURRENCY))
    function = shardstore.pack
    began = time.perf_counter()
    assert function(slow_source, slow_target, chunks_per_shard=(200,), record=record).complete
    seconds = time.perf_counter() - began
    # The listing is one page after the other; the rest of the source's requests and the target's are those that can be at once.
    lists = sum(event.requests for event in slow_source.events + slow_target.events if event.op == "list")
    requests = sum(event.requests for event in slow_source.events + slow_target.events) - lists
    return {"seconds": seconds, "requests": requests, "lists": lists, "bound": (lists + requests / CONCURRENCY) * LATENCY_SECONDS}


# -- memory ------------------------------------------------------------------------------------------------------------


def large_shards() -> dict[str, float]:
    """Peak memory of packing 2 GiB into one shard."""
    import shardstore

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "a.zarr/c").mkdir(parents=True)
        nbytes, chunks = 2**20, 2048
        document = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [nbytes * chunks],
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [nbytes]}},
            "chunk_key_encoding": {"name": "default"},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
        }
        (root / "a.zarr/zarr.json").write_text(json.dumps(document))
        for i in range(chunks):
            (root / f"a.zarr/c/{i}").write_bytes(bytes([i % 256]) * nbytes)
        began = time.perf_counter()
        report = shardstore.pack(root / "a.zarr", root / "b.zarr", chunks_per_shard=(chunks,), fsync=False)
        assert report.complete
        seconds = time.perf_counter() - began
    return {"seconds": seconds, "peak_mib": peak_mib()}


# -- the run -----------------------------------------------------------------------------------------------------------


def measure(rounds: int, chunks: int, folder: Path) -> dict[str, Any]:
    source = folder / "source.zarr"
    make_source(source, chunks)
    times: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for number in range(rounds):
        for name in CONTENDERS:
            target = folder / "target"
            times[name].append(in_a_process("--one", name, str(source), str(target)))
            for path in (target, folder / "target.pack"):
                shutil.rmtree(path, ignore_errors=True)
            print(f"round {number + 1}: {name}: {times[name][-1]['seconds']:.3f} s", file=sys.stderr)
    sizes = [os.path.getsize(name) for name in files_below(source)]
    return {
        "chunks": len(sizes),
        "mean_chunk_nbytes": statistics.mean(sizes),
        "times": times,
        "latency": in_a_process("--latency", str(min(chunks, 20_000))),
        "memory": in_a_process("--memory"),
    }


def ratios(found: dict[str, Any]) -> dict[str, float]:
    """Medians over the rounds: shardstore's time over the faster plain loop's, and the others' over shardstore's."""
    times = {name: [one["seconds"] for one in of_name] for name, of_name in found["times"].items()}
    plain = [min(pair) for pair in zip(times["plain loop, 1 thread"], times["plain loop, 2 threads"], strict=True)]
    return {
        "plain loop": statistics.median(mine / loop for mine, loop in zip(times["shardstore"], plain, strict=True)),
        **{
            name: statistics.median(theirs / mine for mine, theirs in zip(times["shardstore"], times[name], strict=True))
            for name in ("zarr-python", "tensorstore")
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chunks", type=int, default=20_000)
    parser.add_argument("--folder", help="on which disk", default=None)
    parser.add_argument("--json", help="where to write the results")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--latency", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(timed(given.one[0], Path(given.one[1]), Path(given.one[2]))))
        return 0
    if given.latency or given.memory:
        print(json.dumps(over_latency(given.latency) if given.latency else large_shards()))
        return 0
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        found = measure(given.rounds, given.chunks, Path(folder))
    found["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    found["ratios"] = ratios(found)
    size = found["mean_chunk_nbytes"] / 1024
    print(f"{found['chunks']:,} zstd chunks of {size:.1f} KiB; {found['machine']}; medians of {given.rounds} rounds")
    for name, of_name in found["times"].items():
        seconds, cpu = (statistics.median(one[what] for one in of_name) for what in ("seconds", "cpu"))
        print(f"  {name:24} {seconds:8.3f} s  {cpu:8.3f} s of CPU  {max(one['peak_mib'] for one in of_name):6.0f} MiB")
    held = []
    for name, how, bar in BARS:
        ratio = found["ratios"][name]
        ok = ratio <= bar if how == "at most" else ratio >= bar
        held.append(ok)
        said = f"takes {ratio:.2f} × the fastest {name}" if how == "at most" else f"is {ratio:.1f} × faster than {name}"
        print(f"  {'held' if ok else 'NOT HELD'}: shardstore {said} ({how} {bar:g})")
    latency, memory = found["latency"], found["memory"]
    over = latency["seconds"] / latency["bound"]
    requests, lists = int(latency["requests"]), int(latency["lists"])
    held += [over <= 1.25, memory["peak_mib"] < 300]
    print(f"  {'held' if over <= 1.25 else 'NOT HELD'}: over 20 ms latency {latency['seconds']:.2f} s, {over:.2f} × (at most 1.25)")
    print(f"      its {requests:,} requests, {CONCURRENCY} at once, and {lists:,} pages of listing one after the other")
    print(
        f"  {'held' if memory['peak_mib'] < 300 else 'NOT HELD'}: {memory['peak_mib']:.0f} MiB at most for a shard of 2 GiB (less than 300)"
    )
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
