"""Killed, interrupted, run again, run in parts: the same bytes in the end, and nothing is visible before."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import Conflict, InvalidInput
from shardstore.progress.steps import Progress
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests.harness.scale import sized
from tests.maintenance.packing.sources import read_by_zarr, stored
from tests.stored import StorageObjects, copy_tree, snapshot

CHUNKS = sized(1200, 600)
KILLS = sized(20, 4)
COUNTS = (40,)
PROGRAM = """
import json, sys, shardstore
source, target, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
print("begin", flush=True)
shardstore.pack(source, target, **options)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "a.zarr"
    group = zarr.open_group(root, mode="w")
    array = group.create_array("x", shape=(4 * CHUNKS,), chunks=(4,), dtype="<i8")
    array[...] = np.random.default_rng(1).integers(0, 2**40, 4 * CHUNKS)
    group.create_array("g/y", shape=(8, 8), chunks=(8, 1), dtype="<f4")[...] = 3
    (root / "notes.txt").write_text("notes")
    return root


@pytest.fixture(scope="module")
def wanted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    target = tmp_path_factory.mktemp("wanted") / "b.zarr"
    assert pack(source, target).complete
    return stored(target)


POLICY: Any = {"x": COUNTS, "*": "auto"}


def pack(source: Any, target: Any, **options: Any) -> Any:
    return shardstore.pack(source, target, chunks_per_shard=POLICY, **options)


def test_again_does_nothing(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.zarr"
    first = pack(source, target)
    before = {path: path.stat().st_mtime_ns for path in target.rglob("*") if path.is_file()}
    again = pack(source, target)
    assert (again.done, again.skipped, again.complete) == (0, first.units, True)
    assert {path: path.stat().st_mtime_ns for path in target.rglob("*") if path.is_file()} == before


def test_what_is_not_what_was_recorded_is_done_again(source: Path, tmp_path: Path, wanted: dict[str, bytes]) -> None:
    target = tmp_path / "b.zarr"
    pack(source, target)
    (target / "x/c/0").unlink()
    (target / "x/c/1").write_bytes(b"short")
    data = bytearray((target / "x/c/2").read_bytes())
    data[-30] ^= 1  # in the index
    (target / "x/c/2").write_bytes(data)
    (target / "notes.txt").unlink()
    report = pack(source, target)
    assert (report.done, report.complete) == (4, True)
    assert stored(target) == wanted


def test_a_source_that_has_changed_is_noticed(source: Path, tmp_path: Path) -> None:
    mine, target, fresh = tmp_path / "a.zarr", tmp_path / "b.zarr", tmp_path / "c.zarr"
    shutil.copytree(source, mine)
    pack(mine, target)
    array = zarr.open_array(mine, path="x", mode="r+")
    array[4 * COUNTS[0] : 4 * COUNTS[0] + 4] = 7  # as long as before, in the second shard
    shutil.rmtree(mine / "g/y/c")  # none is left of that
    report = pack(mine, target)
    assert (report.done, report.complete) == (1, True)
    pack(mine, fresh)
    assert stored(target) == stored(fresh)
    assert not (target / "g/y/c").exists()


def test_a_source_that_has_grown_keeps_its_shards(tmp_path: Path) -> None:
    """Shards are never longer than the array, but readers may have the target open: what is renewed is not laid out anew."""
    mine, target = tmp_path / "a.zarr", tmp_path / "b.zarr"
    group = zarr.open_group(mine, mode="w")
    array = group.create_array("x", shape=(3, 8, 8), chunks=(1, 8, 8), dtype="<i4")
    array[...] = 1
    group.create_array("one", shape=(1, 8, 8), chunks=(1, 8, 8), dtype="<i4")[...] = 1
    shardstore.pack(mine, target)
    first = (target / "x/c/0/0/0").read_bytes()
    array.append(np.full((5, 8, 8), 2, dtype="<i4"))
    zarr.open_array(mine, path="one", mode="r+").append(np.full((1, 8, 8), 2, dtype="<i4"))
    report = shardstore.pack(mine, target)
    assert report.complete
    assert {a.path: a.chunks_per_shard for a in report.arrays} == {"x": (3, 1, 1), "one": None}
    assert (target / "x/c/0/0/0").read_bytes() == first
    assert (read_by_zarr(target, "x") == np.repeat([1, 2], [3, 5])[:, None, None]).all()
    assert (read_by_zarr(target, "one")[1] == 2).all()
    again = shardstore.pack(mine, target, overwrite=True)
    assert {a.path: a.chunks_per_shard for a in again.arrays} == {"x": (8, 1, 1), "one": (2, 1, 1)}


def test_a_target_that_was_written_by_others_is_noticed(source: Path, tmp_path: Path, wanted: dict[str, bytes]) -> None:
    """A chunk inside a shard was replaced in place: the size and the index are what they were."""
    target = tmp_path / "b.zarr"
    pack(source, target)
    data = bytearray((target / "x/c/3").read_bytes())
    data[10] ^= 1
    (target / "x/c/3").write_bytes(data)
    assert pack(source, target).done == 1
    assert stored(target) == wanted


def test_back_and_forth(source: Path, tmp_path: Path, wanted: dict[str, bytes]) -> None:
    """The latest of what was recorded counts, in whatever order the record is read."""
    mine, target = tmp_path / "a.zarr", tmp_path / "b.zarr"
    shutil.copytree(source, mine)
    chunk = mine / "x/c/7"
    pack(mine, target)
    for _ in range(6):
        chunk.write_bytes(chunk.read_bytes()[::-1])
        assert pack(mine, target).complete
    assert stored(target) == wanted


def test_a_source_that_changes_meanwhile_is_refused(source: Path, tmp_path: Path) -> None:
    mine, target = tmp_path / "a.zarr", tmp_path / "b.zarr"
    shutil.copytree(source, mine)

    def change(progress: Progress) -> None:
        if progress.phase == "listing" and progress.objects > CHUNKS:
            key = mine / "x/c/5"
            key.write_bytes(key.read_bytes()[::-1])

    with pytest.raises(shardstore.Incomplete, match=r"'x/c/5'.*was replaced since it was listed") as caught:
        pack(mine, target, progress=change)
    report: Any = caught.value.report
    assert [(unit.path, unit.name) for unit in report.failed] == [("x", "c/0")]
    assert not list(target.rglob("zarr.json"))
    report = pack(mine, target, only_failed=True)
    assert (report.done, report.complete) == (1, True)


def test_parts(source: Path, tmp_path: Path, wanted: dict[str, bytes]) -> None:
    target = tmp_path / "b.zarr"
    seen: list[int] = []
    for number in (3, 1, 4, 2):
        report = pack(source, target, part=f"{number}/4")
        seen.append(report.done)
        assert report.complete == (number == 2)
        assert (target / "zarr.json").exists() == (number == 2)
    assert sum(seen) == report.units
    assert min(seen) > 0
    assert stored(target) == wanted


def test_parts_at_once(source: Path, tmp_path: Path, wanted: dict[str, bytes]) -> None:
    target = tmp_path / "b.zarr"
    with open(os.devnull, "w") as nowhere:
        running = [started(source, target, {"part": f"{n + 1}/3"}, nowhere) for n in range(3)]
        assert [process.wait(120) for process in running] == [0, 0, 0]
    assert stored(target) == wanted


def started(source: Any, target: Any, options: dict[str, Any], stdout: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    arguments = json.dumps({"chunks_per_shard": {"x": list(COUNTS), "*": "auto"}, **options})
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(source), str(target), arguments], stdout=stdout, text=True)


def killed_after(source: Any, target: Any, seconds: float, options: dict[str, Any]) -> bool:
    """Whether it was killed, and not done before."""
    process = started(source, target, options)
    assert process.stdout is not None
    assert process.stdout.readline() == "begin\n"
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    process.stdout.close()
    return process.wait() == -signal.SIGKILL


def test_killed_again_and_again(source: Path, tmp_path: Path, wanted: dict[str, bytes]) -> None:
    rng = random.Random(5)
    kills = 0
    target = tmp_path / "b.zarr"
    while kills < KILLS:
        was_killed = killed_after(source, target, rng.uniform(0.0, 1.0), {"fsync": False})
        kills += was_killed
        there = {path.relative_to(target).as_posix(): path.read_bytes() for path in target.rglob("*") if path.is_file()}
        whole = {key: data for key, data in there.items() if not key.rpartition("/")[2].startswith(".")}
        assert whole.items() <= wanted.items()
        if not was_killed:
            assert there == wanted
            shutil.rmtree(target)
            shutil.rmtree(f"{target}.pack")
    assert pack(source, target).complete
    leftovers = {key for key in stored(target) if key.rpartition("/")[2].startswith(".")}
    assert {key: data for key, data in stored(target).items() if key not in leftovers} == wanted


def test_killed_on_s3(source: Path, s3_url: tuple[str, dict[str, Any]], wanted: dict[str, bytes]) -> None:
    url, options = s3_url
    fs = fsspec.filesystem("s3", **options, use_listings_cache=False, skip_instance_cache=True)
    rng = random.Random(6)
    kills = 0
    while kills < max(2, KILLS // 3):
        was_killed = killed_after(source, url, rng.uniform(0.0, 3.0), {"target_options": options})
        kills += was_killed
        fs.invalidate_cache()
        root = url.removeprefix("s3://")
        there = {path.removeprefix(f"{root}/"): fs.cat_file(path) for path in fs.find(root)}
        assert {key: data for key, data in there.items() if not key.startswith(".shardstore-probe-")}.items() <= wanted.items()
        if not was_killed:
            assert there == wanted
            fs.rm(root, recursive=True)
            fs.rm(f"{root}.pack", recursive=True)
    assert pack(source, url, target_options=options).complete
    fs.invalidate_cache()
    assert {path.removeprefix(f"{root}/"): fs.cat_file(path) for path in fs.find(root)} == wanted


def test_what_is_left_of_asking_the_server_is_in_nobodys_way(source: Path, wanted: dict[str, bytes]) -> None:
    """Killed at the very beginning: there is an empty object, and no record yet."""
    target = MemoryStorage(f"/{uuid.uuid4().hex}/target")
    StorageObjects(target).put(".shardstore-probe-0123", b"")
    assert pack(source, target, record=MemoryStorage(f"/{uuid.uuid4().hex}/record")).complete
    assert snapshot(StorageObjects(target)) == wanted


def test_interrupted_once(source: Path, tmp_path: Path, wanted: dict[str, bytes]) -> None:
    target = tmp_path / "b.zarr"

    def interrupt(progress: Progress) -> None:
        if progress.phase == "packing" and progress.objects >= CHUNKS // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(source, target, progress=interrupt, workers=2)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("shardstore-work")]
    before = set(stored(target))
    assert before
    assert not any(key.endswith("zarr.json") for key in before)
    report = pack(source, target)
    assert report.skipped > 0
    assert report.complete
    assert stored(target) == wanted


# -- what is refused -----------------------------------------------------------------------------------------------------


def test_what_is_there_already_stays(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.zarr"
    zarr.create_array(target, shape=(3,), dtype="i4")
    before = stored(target)
    with pytest.raises(Conflict, match="no earlier run has made"):
        pack(source, target)
    assert stored(target) == before
    assert pack(source, target, overwrite=True).complete
    assert read_by_zarr(target, "x").shape == (4 * CHUNKS,)


def test_other_options_than_before(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "b.zarr"
    pack(source, target)
    with pytest.raises(Conflict, match="chunk_checksums was False and is True"):
        pack(source, target, chunk_checksums=True)
    assert pack(source, target, chunk_checksums=True, overwrite=True).complete


@pytest.mark.parametrize("where", ["a.zarr", "a.zarr/inside", "."])
def test_a_target_in_the_source(where: str, source: Path) -> None:
    with pytest.raises(InvalidInput, match="overlap"):
        pack(source, source.parent / where)


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"part": "0/3"},
        {"part": "2/3", "overwrite": True},
        {"max_memory": 5},
        {"stored": "v3"},
        {"chunk_order": "Z"},
        {"prices": {"head": 1}},
        {"prices": {"put": -1}},
        {"dry_run": 1},
        {"include": 5},
        {"shards": (2,)},
        {"index_location": "middle"},
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], source: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        pack(source, tmp_path / "b.zarr", **options)
    assert not list(tmp_path.iterdir())


def test_nothing_at_the_source(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for where in ("nowhere", "empty"):
        with pytest.raises(shardstore.NotFound, match="no Zarr node"):
            shardstore.pack(tmp_path / where, tmp_path / "b.zarr")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty"]


# -- counted -------------------------------------------------------------------------------------------------------------


def test_requests(source: Path, wanted: dict[str, bytes], tmp_path: Path) -> None:
    """One listing; one read of each document and each chunk; one write for each shard, document and other object."""
    name = uuid.uuid4().hex
    inner, target, record = (MemoryStorage(f"/{name}/{what}") for what in ("source", "target", "record"))
    copy_tree(source, StorageObjects(inner))
    objects = len(snapshot(StorageObjects(inner)))
    read, written = TraceStorage(inner), TraceStorage(target)
    estimate = pack(read, written, dry_run=True, record=record)
    assert not snapshot(StorageObjects(target))
    assert not snapshot(StorageObjects(record))
    with read.count() as reading, written.count() as writing:
        report = pack(read, written, record=record)
    assert snapshot(StorageObjects(target)) == wanted
    assert report.objects_before == estimate.objects_before == objects
    assert report.objects_after == estimate.objects_after == len(wanted)
    assert report.nbytes_after == estimate.nbytes_after == sum(map(len, wanted.values()))
    assert sum(event.requests for event in reading.events if event.op == "list") == estimate.requests.lists == -(-objects // 1000)
    reads = [event.key for event in reading.events if event.op == "read"]
    assert sorted(reads) == sorted(["zarr.json", *snapshot(StorageObjects(inner))])  # the root's also tells whether it is a draft
    assert estimate.requests.gets == objects
    writes = [event.key for event in writing.events if event.op == "write"]
    assert sorted(writes) == sorted(wanted)
    assert estimate.requests.puts == len(wanted)
    documents = sum(key.endswith("zarr.json") for key in wanted)
    assert [key.endswith("zarr.json") for key in writes] == [False] * (len(wanted) - documents) + [True] * documents
    assert writes[-1] == "zarr.json"
    assert {event.op for event in writing.events} <= {"write", "read", "list"}
