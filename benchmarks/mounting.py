"""What a mount costs: processor time of a file, requests to S3, and time beside s3fs-fuse and a disk.

``python benchmarks/mounting.py [--rounds N] [--quick] [--page FILE] [--json FILE]``, as root or with fusermount3, Linux only. What is
compared is measured in the same round, over the same server; medians are shown. Without the program ``s3fs`` that comparison is left out.
What the library costs by itself, with files in memory, is measured beside it (``mounting_floor.py``).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from machine import versions

import shardstore

SHAPE, CHUNK, PER_SHARD = (64, 512, 512), (8, 64, 16), (4, 4, 8)  # 2,048 chunks of 16 KiB in 16 shards
CHUNKS, SHARDS = 2048, 16
NAMES = 200_000

BARS = {
    "find_us": 150.0,
    "cat_us": 400.0,
    "find_of_s3fs": 8.0,
    "cat_of_s3fs": 8.0,
    "requests": 120,
    "ls_seconds": 8.0,
    "copy_of_disk": 0.5,
    "commits_a_shard": 2.0,
    "cat_of_floor": 2.0,
}
AT_LEAST = {"find_of_s3fs", "cat_of_s3fs", "copy_of_disk"}


class Requests(logging.Handler):
    """Counts the requests that a server in this process answers."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def count(self, text: str = "") -> int:
        return sum(text in line for line in self.lines)


@contextmanager
def moto() -> Iterator[tuple[str, Requests]]:
    """The endpoint of an S3 server in this process, and its requests."""
    from moto.server import ThreadedMotoServer

    requests = Requests()
    log = logging.getLogger("werkzeug")
    log.addHandler(requests)
    log.setLevel(logging.INFO)
    log.propagate = False
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}", requests
    server.stop()
    log.removeHandler(requests)


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(command: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def find(directory: str | Path) -> str:
    return f"find {directory} -type f -size +0"


def cat(directory: str | Path) -> str:
    return f"find {directory} -type f -name '[0-9]*' | xargs cat"


def make(url: str, **options: Any) -> None:
    data = np.random.default_rng(0).integers(0, 2**16, SHAPE).astype("u2")  # random: compression leaves it as it is
    group = zarr.open_group(shardstore.open(url, chunks_per_shard=PER_SHARD, **options), mode="w")
    group.create_array("ct", shape=SHAPE, chunks=CHUNK, dtype="u2", compressors=None)[:] = data


# -- what is measured --------------------------------------------------------------------------------------------------------


def on_disk(place: Path) -> dict[str, float]:
    """Processor time of the mount's process for each file; copies into it beside copies on the same disk."""
    make(str(place / "data.zarr"))
    (place / "mnt").mkdir()
    with shardstore.mount(str(place / "data.zarr"), place / "mnt") as mounted:
        found = looked_through(place / "mnt", mounted.pid)
        subprocess.run(["cp", "-r", place / "mnt/ct", place / "plain"], check=True)
    disk = timed(f"cp -r {place}/plain {place}/copied && sync -f {place}/copied")  # as durable as fsync of a mount is
    with in_memory(place / "plain", place / "mnt") as pid:
        found |= {f"floor_{name}": value for name, value in looked_through(place / "mnt", pid).items()}
        found["floor_copy_of_disk"] = disk / timed(f"cp -r {place}/plain {place}/mnt/new && sync -f {place}/mnt/new")
    found["cat_of_floor"] = found["cat_us"] / found["floor_cat_us"]
    with shardstore.mount(str(place / "data.zarr"), place / "mnt", durable="fsync", chunks_per_shard=PER_SHARD):
        copied = timed(f"cp -r {place}/plain {place}/mnt/new && sync -f {place}/mnt/new")
    found["copy_seconds"] = copied
    found["copy_of_disk"] = disk / copied
    return found


def looked_through(mounted: Path, pid: int) -> dict[str, float]:
    """Processor time of a mount's process for each file that is found, and for each that is read."""
    found = {}
    for name, command in (("find_us", find(mounted / "ct")), ("cat_us", cat(mounted / "ct"))):
        before = processor_seconds(pid)
        timed(command)
        found[name] = (processor_seconds(pid) - before) / CHUNKS * 1e6
    return found


@contextmanager
def in_memory(source: Path, directory: Path) -> Iterator[int]:
    """Files that a process holds in memory, mounted, below ``ct``; gives its number."""
    shown = source.parent / "shown"
    shown.mkdir()
    (shown / "ct").symlink_to(source)
    process = subprocess.Popen([sys.executable, Path(__file__).with_name("mounting_floor.py"), shown, directory])
    try:
        for _ in range(300):
            if os.path.ismount(directory):
                break
            time.sleep(0.1)
        else:
            raise TimeoutError(f"nothing is mounted at {directory}")
        yield process.pid
    finally:
        detach(directory)
        process.wait()


def on_s3(place: Path) -> dict[str, float]:
    """Time and requests of a mount of S3, beside s3fs-fuse on the same chunks as plain objects, and commits of a copy into it."""
    found: dict[str, float] = {}
    with moto() as (endpoint, requests):
        options = {"key": "test", "secret": "test", "endpoint_url": endpoint}
        import s3fs

        fs = s3fs.S3FileSystem(**options)
        bucket = f"b{uuid.uuid4().hex}"  # the servers of one process have the same objects
        url = f"s3://{bucket}/data.zarr"
        fs.mkdir(bucket)
        make(url, storage_options=options)
        mnt = place / "mnt"
        mnt.mkdir()
        requests.lines.clear()
        with shardstore.mount(url, mnt, storage_options=options):
            opening = len(requests.lines)
            found["find_seconds"] = timed(find(mnt / "ct"))
            found["cat_seconds"] = timed(cat(mnt / "ct"))
            found["requests"] = len(requests.lines)
            found["requests_of_opening"] = opening
            subprocess.run(["cp", "-r", mnt / "ct", place / "plain"], check=True)
        requests.lines.clear()
        with shardstore.mount(url, mnt, storage_options=options, durable="fsync", chunks_per_shard=PER_SHARD):
            timed(f"cp -r {place}/plain {mnt}/new && sync {mnt}/new")
        found["commits_a_shard"] = requests.count(f'"PUT /{bucket}/data.zarr/new/c/') / SHARDS
        if shutil.which("s3fs") is not None:
            fs.mkdir(f"{bucket}-plain")
            fs.put(f"{place}/plain", f"{bucket}-plain/ct", recursive=True)
            with s3fs_fuse(f"{bucket}-plain", endpoint, place) as beside:
                find_seconds, cat_seconds = timed(find(beside / "ct")), timed(cat(beside / "ct"))
            found |= {
                "s3fs_find_seconds": find_seconds,
                "s3fs_cat_seconds": cat_seconds,
                "find_of_s3fs": find_seconds / found["find_seconds"],
                "cat_of_s3fs": cat_seconds / found["cat_seconds"],
            }
    return found


def detach(directory: Path) -> None:
    program = next(name for name in ("fusermount3", "fusermount", "umount") if shutil.which(name))
    subprocess.run([program, *(["-u"] if program != "umount" else []), directory], check=True)


@contextmanager
def s3fs_fuse(bucket: str, endpoint: str, place: Path) -> Iterator[Path]:
    """A bucket mounted by s3fs-fuse."""
    passwords, directory = place / "passwd", place / "s3fs"
    passwords.write_text("test:test\n")
    passwords.chmod(0o600)
    directory.mkdir()
    asked = f"url={endpoint},use_path_request_style,passwd_file={passwords}"
    subprocess.run(["s3fs", bucket, directory, "-o", asked], check=True)
    try:
        for _ in range(100):
            if os.path.ismount(directory):
                break
            time.sleep(0.1)
        yield directory
    finally:
        detach(directory)


def many_names(place: Path, names: int) -> dict[str, float]:
    """Seconds of ``ls -l`` of one directory with so many chunks."""
    (place / "mnt").mkdir()
    url = str(place / "many.zarr")
    group = zarr.open_group(shardstore.open(url, chunks_per_shard=(4096,)), mode="w")
    group.create_array("ct", shape=(names,), chunks=(1,), dtype="u1", compressors=None, fill_value=0)[:] = 1
    with shardstore.mount(url, place / "mnt"):
        return {"ls_seconds": timed(f"ls -l {place}/mnt/ct/c")}


def measured(rounds: int, *, quick: bool) -> dict[str, float]:
    """Return the medians of all rounds."""
    names = NAMES // 20 if quick else NAMES
    # The first part takes little time, and differs most from one time to the next.
    parts: list[Callable[[Path], dict[str, float]]] = [*[on_disk] * 3, on_s3, lambda place: many_names(place, names)]
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for part in parts:
            with tempfile.TemporaryDirectory(prefix="mounting-") as directory:
                for name, value in part(Path(directory)).items():
                    found.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in found.items()}


def holds(name: str, value: float) -> bool:
    return value >= BARS[name] if name in AT_LEAST else value <= BARS[name]


_WORDS = {
    "find_us": "`find -size` on a local disk, processor time of the mount for each file (µs)",
    "cat_us": "`cat` of all chunks in order, processor time of the mount for each file (µs)",
    "find_of_s3fs": "`find -size` on S3, speed over that of s3fs-fuse on the same chunks as plain objects",
    "cat_of_s3fs": "`cat` of all chunks on S3, speed over that of s3fs-fuse",
    "requests": "requests of mounting, `find` and `cat` together, on S3",
    "ls_seconds": "`ls -l` of 200,000 names in one directory (s)",
    "copy_of_disk": "`cp -r` and `sync -f` of 2,048 chunks into a mount with `--durable fsync`: rate, over that of a copy on the same disk",
    "commits_a_shard": "commits of each shard in such a copy, on S3",
    "cat_of_floor": "`cat` of all chunks, processor time, over that of the simple file system below",
}


_SECONDS = {
    "copy_seconds": "that copy",
    "find_seconds": "`find` on S3",
    "s3fs_find_seconds": "with s3fs-fuse",
    "cat_seconds": "`cat` on S3",
    "s3fs_cat_seconds": "with s3fs-fuse",
    "ls_seconds": "`ls -l`",
}


def page_of(found: dict[str, float]) -> str:
    """Return the page of the results."""
    lines = [
        "# What a mount costs",
        "",
        "Measured by `make bench-mounting`: programs that do not know shards read 2,048 chunks of 16 KiB in 16 shards through a mount.",
        "Processor time is that of the mount's process. S3 is moto, on the same machine: both sides of a comparison include its cost.",
        "A *bar* is a target; it is held if the measured value reaches it.",
        f"{', '.join(f'{name} {version}' for name, version in versions(['fsspec', 's3fs', 'zarr', 'pyfuse3']).items())}.",
        "",
        "| | bar | measured | |",
        "|---|---|---|---|",
    ]
    for name, words in _WORDS.items():
        if name in found:
            sign = "≥" if name in AT_LEAST else "≤"
            lines.append(
                f"| {words} | {sign} {BARS[name]:g} | {found[name]:.3g} | {'held' if holds(name, found[name]) else '**not held**'} |"
            )
    lines += [
        "",
        (
            f"A simple file system with the same library, pyfuse3, and the same files in memory takes: "
            f"`find` {found['floor_find_us']:.0f} µs, `cat` {found['floor_cat_us']:.0f} µs per file. "
            f"A copy into it has {found['floor_copy_of_disk']:.2f} × the rate of the disk."
        ),
        "",
        "Times in seconds: " + ", ".join(f"{words} {found[name]:.2f}" for name, words in _SECONDS.items() if name in found) + ".",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and say which bars are not held by the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="fewer names")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.quick and arguments.page is not None:
        parser.error("--quick lists fewer names than the page says")
    found = measured(arguments.rounds, quick=arguments.quick)
    for name, value in found.items():
        bar = f"  bar {BARS[name]:g}: {'held' if holds(name, value) else 'NOT HELD'}" if name in BARS else ""
        print(f"{name:24} {value:10.3f}{bar}")
    if arguments.page is not None:
        arguments.page.write_text(page_of(found))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1))
    raise SystemExit(any(not holds(name, found[name]) for name in BARS if name in found))


if __name__ == "__main__":
    main()
