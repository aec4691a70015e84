"""The measurements of ``benchmarks/snapshots.py`` that run in a process of their own, each for one side."""

from __future__ import annotations

import io
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import snapshot_sides as sides
import zarr
from snapshot_sides import CHUNK, OURS, is_ours, opened, prefix_of

COMMITS = 7
"""In one process, of which the first is not counted."""
SMALL = (16, 16, 8)
"""A chunk of 4 KiB."""

Result = dict[str, float]


class Clock:
    """Processor time and time since it was made."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def read(self) -> Result:
        return {"cpu": time.process_time() - self._cpu, "seconds": time.perf_counter() - self._wall}


def medians(runs: list[Result]) -> Result:
    return {what: statistics.median(run[what] for run in runs) for what in runs[0]}


def _mtime(path: Path) -> int:
    return path.stat().st_mtime_ns


def memory_mib(what: str) -> float:
    """Return a line of what the system says of this process's memory, in MiB."""
    found = re.search(rf"^{what}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def _files(place: Path) -> dict[Path, tuple[int, int]]:
    found = {}
    for path in place.rglob("*"):
        if path.is_file():
            status = path.stat()
            found[path] = status.st_size, status.st_mtime_ns
    return found


def _written(before: dict[Path, tuple[int, int]], after: dict[Path, tuple[int, int]]) -> dict[Path, int]:
    """Return the sizes of files that are new or were replaced."""
    return {path: size for path, (size, mtime) in after.items() if before.get(path) != (size, mtime)}


# -- commits -----------------------------------------------------------------------------------------------------------


def _commit_one_chunk(repository: Any, path: str, coords: tuple[int, ...], chunk: tuple[int, ...], values: Any) -> None:
    session = repository.writable_session("main")
    array = zarr.open_array(session.store, path=path, mode="r+")
    array[tuple(slice(c * n, (c + 1) * n) for c, n in zip(coords, chunk, strict=True))] = values
    session.commit("one chunk")


def _commits(repository: Any, place: Path, path: str, chunk: tuple[int, ...]) -> Result:
    rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
    runs: list[Result] = []
    for number in range(COMMITS):
        values = rng.integers(0, 2**16, chunk).astype("uint16")
        before = _files(place)
        clock = Clock()
        _commit_one_chunk(repository, path, tuple(rng.integers(1, 5, len(chunk)).tolist()), chunk, values)
        run = clock.read()
        written = _written(before, _files(place))
        run |= {"nbytes": sum(written.values()), "objects": len(written)}
        if number:
            runs.append(run)
    return medians(runs)


def commit_to_million(side: str, place: Path) -> Result:
    """One chunk to an array of a million references."""
    name = {sides.PEER: "peer", sides.PEER_SPLIT: "peer-split"}.get(side, "ours")
    return _commits(opened(side, place / name, prefix_of(place)), place / name, "a", CHUNK)


def commit_to_small_array(side: str, place: Path) -> Result:
    """One chunk to an array of 10⁴ chunks that were written through zarr."""
    name = "small-ours" if is_ours(side) else "small-peer"
    return _commits(opened(side, place / name), place / name, "a", CHUNK)


def make_small_arrays(place: Path, grid: tuple[int, ...]) -> None:
    for side, name in ((OURS, "small-ours"), (sides.PEER, "small-peer")):
        session = sides.create(side, place / name).writable_session("main")
        array = sides.new_array(session, "a", grid)
        array[...] = np.random.default_rng(0).integers(0, 2**16, array.shape).astype("uint16")
        session.commit("all chunks")


def set_million(side: str, place: Path, grid: tuple[int, ...]) -> Result:
    """Set references to all chunks of an array, and commit them."""
    from shardstore.format.snapshots.file_names import encode_id

    refs = sides.table(grid)
    names = [prefix_of(place) + encode_id(number.to_bytes(12)) for number in range(1, refs.nfiles + 1)]
    urls = [names[file] for file in refs.file]
    target = place / "set"
    shutil.rmtree(target, ignore_errors=True)
    session = sides.create(side, target, prefix_of(place)).writable_session("main")
    sides.new_array(session, "a", grid)
    clock = Clock()
    sides.set_references(side, session, "a", grid, refs, urls)
    was_set = clock.read()
    session.commit("references")
    found = clock.read() | {"set_cpu": was_set["cpu"], "set_seconds": was_set["seconds"], "peak_mib": memory_mib("VmHWM")}
    found["nbytes"] = sum(path.stat().st_size for path in target.rglob("*") if path.parent.name in ("m", "manifests"))
    shutil.rmtree(target)
    return found


def rename_million(side: str, place: Path) -> Result:
    """Move an array of a million references, and commit that; and back."""
    name = "ours" if is_ours(side) else "peer"
    repository = opened(side, place / name, prefix_of(place))
    runs: list[Result] = []
    for number in range(2 * COMMITS):
        before = _files(place / name)
        session = repository.writable_session("main") if is_ours(side) else repository.rearrange_session("main")
        slash = "" if is_ours(side) else "/"
        clock = Clock()
        session.move(*(f"{slash}{path}" for path in (("a", "b") if number % 2 == 0 else ("b", "a"))))
        moved = clock.read()
        session.commit("renamed")
        run = clock.read() | {"move_cpu": moved["cpu"], "move_seconds": moved["seconds"]}
        written = _written(before, _files(place / name))
        run |= {"nbytes": sum(written.values()), "manifests": sum(path.parent.name in ("m", "manifests") for path in written)}
        if number:
            runs.append(run)
    return medians(runs) | {"manifests": max(run["manifests"] for run in runs)}


def write_small_chunks(side: str, place: Path, grid: tuple[int, ...]) -> Result:
    """Write many chunks of 4 KiB into a new array, and commit them."""
    target = place / "small-chunks"
    shutil.rmtree(target, ignore_errors=True)
    repository = sides.create(side, target)
    shape = tuple(n * c for n, c in zip(grid, SMALL, strict=True))
    values = np.random.default_rng(0).integers(0, 2**16, shape).astype("uint16")
    before = _files(target)
    session = repository.writable_session("main")
    clock = Clock()
    array = sides.new_array(session, "a", grid, SMALL)
    array[...] = values
    session.commit("small chunks")
    found = clock.read()
    written = _written(before, _files(target))
    found |= {"objects": len(written), "nbytes": sum(written.values()), "chunks": float(np.prod(grid))}
    if is_ours(side):
        from shardstore.format.json_text import loads_object
        from shardstore.plan.policy import chunks_per_shard

        counts = chunks_per_shard("auto", "a", loads_object(session.mapping()["a/zarr.json"])) or (1,) * len(grid)
        found["shards"] = float(np.prod([-(-n // count) for n, count in zip(grid, counts, strict=True)]))
    shutil.rmtree(target)
    return found


# -- opening -----------------------------------------------------------------------------------------------------------


def _first_chunk(repository: Any) -> None:
    _check_first_chunk(repository.readonly_session("main").store)


def _check_first_chunk(store: Any) -> None:
    array = zarr.open_array(store, path="a", mode="r")
    found = array[tuple(slice(0, n) for n in CHUNK)]
    assert np.array_equal(np.asarray(found), sides.first_chunk()[0])


def _open_first(side: str, place: Path, prefix: str) -> Result:
    sides.import_everything(side)
    sides.first_chunk()  # numcodecs and all of zarr
    imported = set(sys.modules)
    before = memory_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
    clock = Clock()
    _first_chunk(opened(side, place, prefix))
    found = clock.read()
    late = [name for name in set(sys.modules) - imported if not name.startswith("encodings")]
    return found | {"mib": memory_mib("VmHWM") - before, "late_imports": len(late)}


def open_million(side: str, place: Path) -> Result:
    """Open a repository and read the first of a million chunks, in a process that has only imported what is needed."""
    return _open_first(side, place / ("ours" if is_ours(side) else "peer"), prefix_of(place))


def open_many(side: str, place: Path) -> Result:
    """Likewise of a hundred million chunks."""
    return _open_first(side, place / "many", "")


# -- many writers ------------------------------------------------------------------------------------------------------


def _prepare(repository: Any, commits: int, count: int) -> None:
    session = repository.writable_session("main")
    sides.new_array(session, "a", (count, commits, 1))
    tip = session.commit("array")
    for number in range(count):
        repository.create_branch(f"branch-{number}", tip)


def write_as(side: str, repository: Any, number: int, commits: int, *, branches: bool) -> None:
    """Make commits, a chunk each, onto the common branch or one of this writer's own."""
    branch = f"branch-{number}" if branches else "main"
    solver = sides.conflict_detector(side)
    values = np.full(CHUNK, number + 1, dtype="uint16")
    for at in range(commits):
        session = repository.writable_session(branch)
        zarr.open_array(session.store, path="a", mode="r+")[number * 8 : number * 8 + 8, at * 8 : at * 8 + 8, :] = values
        session.commit("a chunk", rebase_with=solver)


def _lost(repository: Any, commits: int, count: int, *, branches: bool) -> int:
    """Return how many commits are not there, though no writer got an error; raise if there is anything else."""
    lost = 0
    for number in range(count if branches else 1):
        session = repository.readonly_session(f"branch-{number}" if branches else "main")
        found = np.asarray(zarr.open_array(session.store, path="a", mode="r")[:, :, 0])[::8, ::8]
        wanted = np.repeat(np.arange(1, count + 1, dtype="uint16")[:, None], commits, axis=1)
        if branches:
            wanted[np.arange(count) != number] = 0
        assert ((found == wanted) | (found == 0)).all()
        lost += int(np.count_nonzero(found != wanted))
    return lost


def _by_threads(side: str, repository: Any, commits: int, count: int, *, branches: bool) -> Result:
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            write_as(side, repository, number, commits, branches=branches)
        except BaseException as exc:  # noqa: BLE001  # raised below
            errors.append(exc)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    clock = Clock()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = clock.read()
    if errors:
        raise errors[0]
    return found


def _by_processes(side: str, place: Path, commits: int, count: int, *, branches: bool) -> Result:
    command = [sys.executable, "-W", "ignore", __file__, side, str(place), str(commits), str(int(branches))]
    writers = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for number in range(count)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    clock = Clock()
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    done = [writer.stdout.readline() for writer in writers if writer.stdout is not None]
    found = clock.read()
    for writer in writers:
        writer.communicate()
        assert not writer.returncode
    return found | {"cpu": sum(map(float, done))}


def writers(side: str, place: Path, commits: int, count: int, *, branches: bool, processes: bool) -> Result:
    """Several writers at once, each of which commits so many times: processes to a local disk, or threads to a repository in memory."""
    target = place / "shared"
    if processes:
        shutil.rmtree(target, ignore_errors=True)
        _prepare(sides.create(side, target), commits, count)
        found = _by_processes(side, target, commits, count, branches=branches)
        repository = opened(side, target)
    else:
        repository = sides.create_in_memory(side)
        _prepare(repository, commits, count)
        found = _by_threads(side, repository, commits, count, branches=branches)
    return found | {"rate": count * commits / found["seconds"], "lost": _lost(repository, commits, count, branches=branches)}


def main() -> None:
    """Be one of the writers of ``_by_processes``."""
    side, place, commits, branches, number = sys.argv[1:]
    repository = opened(side, Path(place))
    sides.import_everything(side)
    print("ready", flush=True)
    sys.stdin.readline()
    clock = Clock()
    write_as(side, repository, int(number), int(commits), branches=bool(int(branches)))
    print(clock.read()["cpu"], flush=True)


# -- limits ------------------------------------------------------------------------------------------------------------


def least(side: str, place: Path) -> Result:
    """What no commit in Python can save: zarr opens an array and sets one chunk, pyarrow writes the manifest and the structure, to memory;
    ``local_seconds``: and the system writes five files, each under another name first.
    """
    import pyarrow.parquet as pq

    store = zarr.storage.MemoryStore()
    zarr.create_array(store, name="a", shape=(128, 40, 8), chunks=CHUNK, dtype="uint16")
    structure, manifest = (pq.ParquetFile(max((place / "small-ours" / folder).iterdir(), key=_mtime)).read() for folder in ("s", "m"))
    tables = [structure, manifest.slice(0, 1)]
    values = np.ones(CHUNK, dtype="uint16")
    target = place / "least"
    target.mkdir(exist_ok=True)
    runs: list[Result] = []
    for number in range(200):
        clock = Clock()
        zarr.open_array(store, path="a", mode="r+")[0:8, 0:8, :] = values
        for table in tables:
            pq.write_table(table, io.BytesIO(), compression="snappy", use_dictionary=False, write_statistics=False)
        run = clock.read()
        for file in range(5):
            with open(target / "temporary", "wb") as opened_file:
                opened_file.write(bytes(2000))
            os.replace(target / "temporary", target / f"{number}-{file}")
        run["local_seconds"] = clock.read()["seconds"]
        runs.append(run)
    shutil.rmtree(target)
    return medians(runs[10:])


# -- counted -----------------------------------------------------------------------------------------------------------


def counted(place: Path) -> Result:
    """Count the requests of shardstore to the million references: to open them and read the first chunk, by a URL and by a repository, and
    to commit one chunk.
    """
    import shardstore
    from shardstore.opening import snapshot_urls
    from shardstore.opening.open import open_storage
    from shardstore.snapshots import named
    from shardstore.testing.trace import TraceStorage

    by_url: list[TraceStorage] = []

    def traced(*arguments: Any, **options: Any) -> TraceStorage:
        by_url.append(TraceStorage(open_storage(*arguments, **options)))
        return by_url[-1]

    with patch.object(named, "open_storage", traced), patch.object(snapshot_urls, "open_storage", traced):
        _check_first_chunk(shardstore.open(f"{place}/ours@main"))
    trace = TraceStorage(open_storage(place / "ours", fsync=False))
    with trace.count() as block:
        _first_chunk(opened(OURS, trace))
    first = block.summary()
    repository = opened(OURS, trace)
    with trace.count() as block:
        values = np.random.default_rng(1).integers(0, 2**16, CHUNK).astype("uint16")
        _commit_one_chunk(repository, "a", (1, 1, 1), CHUNK, values)
    writes = [event for event in block.events if event.op == "write"]
    return {
        "open_requests": sum(event.requests for one in by_url for event in one.events),
        "repository_requests": first.requests,
        "open_nbytes": first.bytes_read,
        "commit_writes": len(writes),
        "commit_nbytes": sum(event.nbytes for event in writes),
        "commit_reads": sum(event.requests for event in block.events if event.op == "read"),
    }


ROWS: dict[str, Callable[..., Result]] = {
    function.__name__: function
    for function in (
        commit_to_million,
        commit_to_small_array,
        set_million,
        rename_million,
        write_small_chunks,
        open_million,
        open_many,
        writers,
        least,
    )
}

if __name__ == "__main__":
    main()
