"""A million references into shards of 4,096 chunks: written, opened and read, beside fsspec, kerchunk's way of writing, and VirtualiZarr.

``python benchmarks/references.py [--rounds N] [--side N] [--page FILE]``. Each contender runs in a process of its own, one after the other,
round by round; what is compared are medians. Ends with 1 if a bar is not held. The shards are sparse files with true indices.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import util
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from latency_http import latency_http
from machine import machine, versions

PER_SHARD = 16  # chunks along each of three dimensions
CHUNK = (8, 8, 8)
LATENCY_SECONDS = 0.020
NEIGHBOURS = 10  # chunks along each dimension: 1,000 in all

Result = dict[str, float]


# -- data --------------------------------------------------------------------------------------------------------------


def make(root: Path, side: int) -> None:
    """Write an array of ``side`` chunks along each of three dimensions, whose chunks are nothing but zeros."""
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [side * c for c in CHUNK],
        "data_type": "uint16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [c * PER_SHARD for c in CHUNK]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "attributes": {},
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": list(CHUNK),
                    "codecs": [
                        {"name": "bytes", "configuration": {"endian": "little"}},
                        {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
                    ],
                    "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
                    "index_location": "end",
                },
            }
        ],
    }
    (root / "a").mkdir(parents=True)
    (root / "zarr.json").write_text(json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}))
    (root / "a/zarr.json").write_text(json.dumps(document))
    rng = np.random.default_rng(0)
    for coords in itertools.product(range(-(-side // PER_SHARD)), repeat=3):
        held = [min(PER_SHARD, side - c * PER_SHARD) for c in coords]
        inside = np.zeros((PER_SHARD,) * 3, dtype=np.bool_)
        inside[: held[0], : held[1], : held[2]] = True
        sizes = np.where(inside, rng.integers(500, 1000, inside.shape), 0).reshape(-1)
        entries = np.full((inside.size, 2), 2**64 - 1, dtype="<u8")
        there = inside.reshape(-1)
        entries[there, 0], entries[there, 1] = (np.cumsum(sizes) - sizes)[there], sizes[there]
        index = entries.tobytes()
        path = root / "a/c" / "/".join(map(str, coords))
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            file.seek(int(sizes.sum()))
            file.write(index + google_crc32c.value(index).to_bytes(4, "little"))


def make_real(root: Path) -> None:
    """Write an array of 20 × 20 × 20 chunks that can be decoded."""
    import zarr

    import shardstore

    values = np.random.default_rng(0).integers(0, 1000, (160, 160, 160), dtype="u2")
    store = shardstore.open(root, chunks_per_shard=(PER_SHARD,) * 3)
    zarr.create_array(store, name="a", shape=values.shape, chunks=CHUNK, dtype="u2")[...] = values


# -- contenders --------------------------------------------------------------------------------------------------------


def shards_of(place: Path) -> list[tuple[str, Any, Any]]:
    """The URL and the references of each shard, as the bare loops take them: numbers of chunks, offsets and lengths."""
    side = json.loads((place / "data/a/zarr.json").read_text())["shape"][0] // CHUNK[0]
    found = []
    for coords in itertools.product(range(-(-side // PER_SHARD)), repeat=3):
        path = place / "data/a/c" / "/".join(map(str, coords))
        entries = np.frombuffer(path.read_bytes()[-(16 * PER_SHARD**3 + 4) : -4], dtype="<u8").reshape(-1, 2)
        there = np.flatnonzero(entries[:, 0] != 2**64 - 1)
        inside = np.array(np.unravel_index(there, (PER_SHARD,) * 3)).T
        chunks = inside + np.array(coords) * PER_SHARD
        found.append((f"file://{path}", chunks.tolist(), entries[there].tolist()))
    return found


def json_by_shardstore(place: Path) -> Callable[[], None]:
    from shardstore import references

    return lambda: print_nothing(references.write_json(place / "data", place / "ours.json", overwrite=True))


def json_by_bare_loop(place: Path) -> Callable[[], None]:
    """Nothing but formatting and writing: the indices are in memory, decoded."""
    shards = shards_of(place)

    def run() -> None:
        with open(place / "bare.json", "w") as file:
            file.write('{"version": 1, "refs": {\n')
            for url, chunks, entries in shards:
                for (i, j, k), (offset, nbytes) in zip(chunks, entries, strict=True):
                    file.write(f'"a/{i}.{j}.{k}": ["{url}", {offset}, {nbytes}],\n')
            file.write("}}")

    return run


def parquet_by_shardstore(place: Path) -> Callable[[], None]:
    import pyarrow.parquet  # noqa: F401  # so that nobody's time has an import in it

    from shardstore import references

    return lambda: print_nothing(references.write_parquet(place / "data", place / "ours.refs", overwrite=True))


def parquet_by_fsspec(place: Path) -> Callable[[], None]:
    """As kerchunk writes references in Parquet: one by one, through fsspec's LazyReferenceMapper."""
    import fastparquet  # noqa: F401  # likewise
    import fsspec
    from fsspec.implementations.reference import LazyReferenceMapper

    shards = shards_of(place)
    zarray = (place / "ours.refs/.zmetadata").read_text()

    def run() -> None:
        target = str(place / "theirs.refs")
        mapper = LazyReferenceMapper.create(target, fs=fsspec.filesystem("file"), record_size=100_000)
        for key, document in json.loads(zarray)["metadata"].items():
            mapper[key] = json.dumps(document).encode()
        for url, chunks, entries in shards:
            for (i, j, k), (offset, nbytes) in zip(chunks, entries, strict=True):
                mapper[f"a/{i}.{j}.{k}"] = [url, offset, nbytes]
        mapper.flush()

    return run


def open_json_by_shardstore(place: Path) -> Callable[[], None]:
    from shardstore.opening.open import open_storage

    return lambda: print_nothing(open_storage(f"reference::{place}/ours.json"))


def open_json_by_json(place: Path) -> Callable[[], None]:
    def run() -> None:
        with open(place / "ours.json") as file:
            print_nothing(json.load(file))

    return run


def open_json_by_fsspec(place: Path) -> Callable[[], None]:
    from fsspec.implementations.reference import ReferenceFileSystem

    return lambda: print_nothing(ReferenceFileSystem(str(place / "ours.json"), remote_protocol="file").info("a/0.0.0"))


def first_chunk_by_shardstore(place: Path) -> Callable[[], None]:
    """In a process that has imported nothing: as a user's first lines take."""

    def run() -> None:
        from shardstore._sync import run_sync
        from shardstore.model.ranges import EVERYTHING
        from shardstore.opening.open import open_storage
        from shardstore.storage.base import Read

        print_nothing(run_sync(open_storage(f"reference::{place}/ours.refs").read([Read("a/0.0.0", (EVERYTHING,))])))

    return run


def first_chunk_by_fsspec(place: Path) -> Callable[[], None]:
    def run() -> None:
        from fsspec.implementations.reference import ReferenceFileSystem

        target = str(place / "ours.refs")
        print_nothing(ReferenceFileSystem(target, remote_protocol="file", skip_instance_cache=True).cat_file("a/0.0.0"))

    return run


def again(first: Callable[[Path], Callable[[], None]]) -> Callable[[Path], Callable[[], None]]:
    """The same, twenty times, when everything has been imported."""

    def prepare(place: Path) -> Callable[[], None]:
        run = first(place)
        run()
        return lambda: print_nothing([run() for _ in range(20)])

    return prepare


def record_by_pyarrow(place: Path) -> Callable[[], None]:
    """Nothing but pyarrow reading one record, of 100,000 references: part of the above for shardstore."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = (place / "ours.refs/a/refs.0.parq").read_bytes()

    def run() -> None:
        print_nothing(pq.ParquetFile(pa.BufferReader(data), read_dictionary=["path"]).read())

    run()
    return run


def _neighbours(place: Path, *, ours: bool) -> Callable[[], None]:
    import zarr

    url, size = (place / "url").read_text(), NEIGHBOURS * CHUNK[0]
    target = f"{url}/real.json"
    options = {"fo": target, "remote_protocol": "http", "remote_options": {"asynchronous": True}}

    def run() -> None:
        if ours:
            import shardstore

            store: Any = shardstore.open(f"reference::{target}")
        else:
            store = zarr.storage.FsspecStore.from_url("reference://", storage_options=options)
        array = zarr.open_array(store, path="a", mode="r", zarr_format=2)
        assert np.asarray(array[40 : 40 + size, 40 : 40 + size, 40 : 40 + size]).any()

    return run


def neighbours_by_shardstore(place: Path) -> Callable[[], None]:
    return _neighbours(place, ours=True)


def neighbours_by_fsspec(place: Path) -> Callable[[], None]:
    return _neighbours(place, ours=False)


def _repository(place: Path, name: str) -> Any:
    """A new repository of icechunk that may refer to the data."""
    import icechunk

    config, prefix = icechunk.RepositoryConfig.default(), f"file://{place}/data/"
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, icechunk.local_filesystem_store(f"{place}/data")))
    shutil.rmtree(place / name, ignore_errors=True)
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(place / name)), config)


def icechunk_by_shardstore(place: Path) -> Callable[[], None]:
    from shardstore import references

    repository = _repository(place, "ours.ice")
    return lambda: print_nothing(references.write_icechunk(place / "data", repository))


def icechunk_by_virtualizarr(place: Path) -> Callable[[], None]:
    """Nothing but the writer: the manifest is in memory."""
    import xarray as xr
    from virtualizarr.manifests import ChunkManifest, ManifestArray
    from virtualizarr.manifests.utils import create_v3_array_metadata

    document = json.loads((place / "data/a/zarr.json").read_text())
    side = document["shape"][0] // CHUNK[0]
    paths = np.empty((side,) * 3, dtype=np.dtypes.StringDType())
    offsets, lengths = np.zeros((2, *paths.shape), dtype="u8")
    for url, chunks, entries in shards_of(place):
        at = tuple(np.array(chunks).T)
        paths[at], offsets[at], lengths[at] = url, *np.array(entries, dtype="u8").T
    manifest = ChunkManifest.from_arrays(paths=paths, offsets=offsets, lengths=lengths)
    shape, codecs = tuple(document["shape"]), document["codecs"][0]["configuration"]["codecs"]
    metadata = create_v3_array_metadata(
        shape=shape,
        data_type=np.dtype("u2"),
        chunk_shape=CHUNK,
        fill_value=0,
        codecs=codecs,
        dimension_names=list("zyx"),
    )
    found = xr.Dataset({"a": (list("zyx"), ManifestArray(metadata=metadata, chunkmanifest=manifest))})
    repository = _repository(place, "theirs.ice")

    def run() -> None:
        session = repository.writable_session("main")
        found.vz.to_icechunk(session.store, last_updated_at=datetime.now(UTC))
        session.commit("references")

    return run


def print_nothing(result: object) -> None:
    """Hold a result until it has been measured."""
    assert result is not None


CONTENDERS: dict[str, Callable[[Path], Callable[[], None]]] = {
    function.__name__.replace("_", " "): function
    for function in (
        json_by_shardstore,
        json_by_bare_loop,
        parquet_by_shardstore,
        parquet_by_fsspec,
        open_json_by_shardstore,
        open_json_by_json,
        open_json_by_fsspec,
        first_chunk_by_shardstore,
        first_chunk_by_fsspec,
        record_by_pyarrow,
        neighbours_by_shardstore,
        neighbours_by_fsspec,
    )
}

if util.find_spec("virtualizarr") is not None:  # it wants Python 3.12
    CONTENDERS |= {"icechunk by shardstore": icechunk_by_shardstore, "icechunk by virtualizarr": icechunk_by_virtualizarr}
CONTENDERS |= {f"{name}, 20 times": again(CONTENDERS[name]) for name in ("first chunk by shardstore", "first chunk by fsspec")}


# -- measuring ---------------------------------------------------------------------------------------------------------


def measured(name: str, place: Path) -> Result:
    """Run one contender in this process."""
    run = CONTENDERS[name](place)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    seconds, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"cpu": cpu, "seconds": seconds, "before_mib": before, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def in_process(name: str, place: Path) -> Result:
    command = [sys.executable, "-W", "ignore", __file__, "--one", name, str(place)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "0"})
    found: Result = json.loads(done.stdout)
    return found


def measure(rounds: int, place: Path) -> dict[str, Result]:
    runs: dict[str, list[Result]] = {name: [] for name in CONTENDERS}
    for _ in range(rounds):
        for name in CONTENDERS:
            runs[name].append(in_process(name, place))
    return {name: {what: statistics.median(run[what] for run in some) for what in some[0]} for name, some in runs.items()}


@dataclass(frozen=True, slots=True)
class Bar:
    what: str
    measured: float
    bar: float
    unit: str = "×"

    @property
    def is_held(self) -> bool:
        return self.measured <= self.bar

    @property
    def line(self) -> str:
        return (
            f"| {self.what} | {self.measured:.2f} {self.unit} | ≤ {self.bar:g} {self.unit} | {'held' if self.is_held else '**not held**'} |"
        )


def counted(place: Path) -> list[Bar]:
    """What is counted, not timed: requests."""
    from shardstore import references
    from shardstore.opening.open import open_storage
    from shardstore.testing.trace import TraceStorage

    def index_reads(trace: TraceStorage) -> int:
        return sum(event.op == "read" and "/c/" in event.key and not event.key.endswith("zarr.json") for event in trace.events)

    make(place / "thousand", 9 * PER_SHARD + 1)  # 10 × 10 × 10 shards
    trace = TraceStorage(open_storage(place / "thousand"))
    report = references.write_json(trace, place / "counted.json", overwrite=True)
    bars = [Bar("requests for the index of each shard", index_reads(trace) / report.targets, 1.0, "")]
    shards = [path for path in (place / "thousand/a/c").rglob("*") if path.is_file()]
    changed = shards[:: len(shards) // 10]
    for path in changed:
        os.utime(path)
    trace = TraceStorage(open_storage(place / "thousand"))
    references.update(place / "counted.json", trace)
    lists = sum(event.op == "list" for event in trace.events)
    bars.append(
        Bar(f"requests for indices of `update`, {len(changed)} of {len(shards)} shards changed", index_reads(trace), len(changed), "")
    )
    bars.append(Bar("listings of `update`", lists, 1, ""))
    return bars


def bars_of(found: dict[str, Result], place: Path, references: int) -> list[Bar]:
    def ratio(one: str, other: str, what: str = "cpu") -> float:
        return found[one][what] / found[other][what]

    with_icechunk = [
        Bar("`write_icechunk`, reading of indices included, time over that of VirtualiZarr's writer alone", ratio(*names, "seconds"), 1.2)
        for names in [("icechunk by shardstore", "icechunk by virtualizarr")]
        if names[0] in found
    ]
    parquet_nbytes = sum(path.stat().st_size for path in (place / "ours.refs").rglob("*.parq"))
    return [
        Bar(
            "`write_json`, processor time over that of a bare loop that formats the same lines",
            ratio("json by shardstore", "json by bare loop"),
            1.6,
        ),
        Bar("`write_json`, peak memory", found["json by shardstore"]["peak_mib"], 150, "MiB"),
        Bar("`write_parquet`, time over that of LazyReferenceMapper", ratio("parquet by shardstore", "parquet by fsspec", "seconds"), 0.1),
        Bar("`write_parquet`, size of a reference", parquet_nbytes / references, 6, "bytes"),
        Bar("JSON opened, processor time over that of `json.load`", ratio("open json by shardstore", "open json by json"), 1.3),
        Bar("JSON opened, peak memory over that of fsspec", ratio("open json by shardstore", "open json by fsspec", "peak_mib"), 0.45),
        Bar(
            "Parquet opened and its first chunk read, processor time over that of fsspec",
            ratio("first chunk by shardstore, 20 times", "first chunk by fsspec, 20 times"),
            1 / 3,
        ),
        Bar(
            "1,000 neighbouring chunks over 20 ms latency, opening included, time over that of zarr on fsspec",
            ratio("neighbours by shardstore", "neighbours by fsspec", "seconds"),
            0.5,
        ),
        *with_icechunk,
    ]


def page(found: dict[str, Result], bars: list[Bar], side: int, rounds: int, where: str) -> str:
    packages = versions(["shardstore", "fsspec", "pyarrow", "pandas", "fastparquet", "zarr", "numpy", "icechunk", "virtualizarr"])
    record = 20 * found["record by pyarrow"]["cpu"] / found["first chunk by fsspec, 20 times"]["cpu"]
    lines = [
        "# References, measured",
        "",
        f"{side**3:,} references, to {side} × {side} × {side} chunks in shards of 16 × 16 × 16 chunks.",
        f"Times are medians of {rounds} rounds. Each contender runs in a process of its own.",
        "`make bench-references` measures this and writes the page.",
        "A *bar* is a target; it is held if the measured value reaches it. The unit × is a ratio to what the line names.",
        "",
        f"{where}.",
        "",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in packages.items()) + ".",
        "",
        "| what | measured | bar | |",
        "|---|---|---|---|",
        *(bar.line for bar in bars),
        "",
        "Two of these numbers have a lower limit that shardstore cannot change.",
        f"For the first chunk, pyarrow's reading of one record alone takes {record:.2f} of fsspec's time.",
        "In `write_icechunk`, the calls of icechunk take four fifths of the time, which differs by a third from run to run.",
        "",
        "| contender | processor time | time | peak memory |",
        "|---|---|---|---|",
    ]
    for name, one in found.items():
        lines.append(f"| {name} | {one['cpu']:.3f} s | {one['seconds']:.3f} s | {one['peak_mib']:.0f} MiB |")
    return "\n".join([*lines, ""])


def large(place: Path) -> Bar:
    """Peak memory of ``write_parquet`` with ten million references."""
    make(place / "data", 215)
    return Bar("`write_parquet` of 9,938,375 references, peak memory", in_process("parquet by shardstore", place)["peak_mib"], 350, "MiB")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", type=int, default=100, help="chunks along each dimension")
    parser.add_argument("--small", action="store_true", help="leave out the ten million references")
    parser.add_argument("--page", help="where to write the page")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(given.one[0], Path(given.one[1]))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        make(place / "data", given.side)
        make_real(place / "real")
        in_process("json by shardstore", place)
        in_process("parquet by shardstore", place)
        with latency_http(place, LATENCY_SECONDS) as url:
            from shardstore import references

            (place / "url").write_text(url)
            references.write_json(place / "real", place / "real.json", base_url=f"{url}/real")
            found = measure(given.rounds, place)
        bars = bars_of(found, place, given.side**3)
        if not given.small:  # before what is counted: a process that is started has the memory of this one for a moment
            with tempfile.TemporaryDirectory() as other:
                bars.append(large(Path(other)))
        bars += counted(place)

    text = page(found, bars, given.side, given.rounds, machine(None))
    print(text)
    if given.page:
        Path(given.page).write_text(text)
    return 0 if all(bar.is_held for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
