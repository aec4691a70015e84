"""Targets that are too small, or full: compared before anything is written, and the first refusal ends the run."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import Incomplete, NoSpace, StorageError
from shardstore.maintenance.packing.record import Record
from shardstore.maintenance.packing.run import PackReport
from shardstore.storage.generic import calls as generic_errors
from shardstore.storage.local import files as local_files
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.requests.outcomes import RequestFailed
from shardstore.storage.room import is_full, room_at
from shardstore.testing.trace import TraceStorage
from tests.maintenance.packing.sources import read_by_zarr
from tests.stored import StorageObjects, copy_tree

CHUNKS, CHUNK_NBYTES, A_SHARD = 400, 2048, 4
SHARD_NBYTES = A_SHARD * (CHUNK_NBYTES + 16) + 4


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "a.zarr"
    shape = (CHUNKS * CHUNK_NBYTES // 8,)
    array = zarr.create_array(root, shape=shape, chunks=(CHUNK_NBYTES // 8,), dtype="<i8", compressors=None)
    array[...] = np.arange(1, shape[0] + 1)
    return root


def pack(source: Any, target: Any, **options: Any) -> PackReport:
    return shardstore.pack(source, target, chunks_per_shard=(A_SHARD,), **options)


def has_left(monkeypatch: pytest.MonkeyPatch, nbytes: int, files: int = 10**6) -> None:
    """A file system with one byte a block, so that numbers are exact."""
    found = SimpleNamespace(f_blocks=10**9, f_bavail=nbytes, f_frsize=1, f_files=10**6, f_favail=files)
    monkeypatch.setattr(os, "statvfs", lambda path: found)


# -- before it begins --------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_not_begun(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "b.zarr"
    least = CHUNKS // A_SHARD * SHARD_NBYTES
    has_left(monkeypatch, least)  # the document would not fit
    with pytest.raises(NoSpace, match=r"about 807\.6 KiB are to be written, and 806\.6 KiB are free in .*check_space=False"):
        pack(source, target)
    assert list(tmp_path.iterdir()) == []
    report = pack(source, target, dry_run=True)
    assert any("it does not fit" in note for note in report.notes)
    has_left(monkeypatch, 10**9, files=CHUNKS // A_SHARD)
    with pytest.raises(NoSpace, match="about 101 files are to be made"):
        pack(source, target)
    has_left(monkeypatch, least)
    assert pack(source, target, check_space=False).complete
    stored = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    shutil.rmtree(target)
    shutil.rmtree(tmp_path / "b.zarr.pack")
    has_left(monkeypatch, stored, files=CHUNKS // A_SHARD + 1)
    assert pack(source, target).complete


def test_what_is_there_already_counts(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "b.zarr"
    pack(source, target)
    has_left(monkeypatch, 0, files=0)
    assert pack(source, target).skipped == CHUNKS // A_SHARD
    (target / "c/0").unlink()
    has_left(monkeypatch, SHARD_NBYTES)
    with pytest.raises(NoSpace, match=r"What is there, [0-9.]+ KiB, stays until all else is written: erase it first"):
        pack(source, target, overwrite=True)  # the old goes when the new is whole
    assert (target / "zarr.json").exists()
    assert (target / "c/1").exists()


def test_shards_that_are_taken_apart_for_several_others_count_once(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards, other = tmp_path / "b.zarr", tmp_path / "c.zarr"
    pack(source, shards)
    has_left(monkeypatch, CHUNKS * (CHUNK_NBYTES + 16) + 4 * CHUNKS // 3 + 4096)
    assert shardstore.reshard(shards, other, chunks_per_shard=(3,)).complete


def test_parts_need_their_share(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_left(monkeypatch, CHUNKS // A_SHARD * SHARD_NBYTES // 2 + 4096)
    assert not pack(source, tmp_path / "b.zarr", part="1/2").failed


@pytest.mark.parametrize("found", [OSError(errno.ENOSYS, "no"), SimpleNamespace(f_blocks=0)], ids=["refused", "without a size"])
def test_file_systems_that_do_not_tell(found: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def ask(path: str) -> Any:
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(os, "statvfs", ask)
    assert room_at(str(tmp_path / "not/there/yet")) is None


# -- while it goes on --------------------------------------------------------------------------------------------------


class SmallStorage(TraceStorage):
    """Holds ``most_nbytes``, and refuses what is more."""

    def __init__(self, inner: Any, most_nbytes: int) -> None:
        super().__init__(inner)
        self.most_nbytes = most_nbytes
        self.refused = 0
        self._held: dict[str, int] = {}

    async def write(self, key: str, body: Any, nbytes: int, condition: Any) -> Any:
        if sum(self._held.values()) + nbytes > self.most_nbytes:
            self.refused += 1
            if isinstance(body, AsyncIterator):
                async for _ in body:
                    pass
            raise NoSpace(f"writing {key!r} failed: Disk quota exceeded")
        self._held[key] = nbytes
        return await super().write(key, body, nbytes, condition)


@pytest.mark.parametrize("workers", [1, 4])
def test_the_first_refusal_ends_the_run(workers: int, source: Path) -> None:
    target, record = SmallStorage(MemoryStorage(f"/full-{uuid.uuid4().hex}"), 10 * SHARD_NBYTES), MemoryStorage(f"/rec-{uuid.uuid4().hex}")
    with pytest.raises(
        Incomplete, match=r"no room left: the run stopped with 10 of 100 units done \(writing .* Disk quota exceeded"
    ) as caught:
        pack(source, target, record=record, workers=workers)
    report = caught.value.report
    assert isinstance(report, PackReport)
    assert (report.done, len(report.failed), report.missing, report.complete) == (10, 1, 90, False)
    assert target.refused <= 2 * workers  # what was under way
    assert isinstance(caught.value.__cause__, NoSpace)
    target.most_nbytes = 10**9
    again = pack(source, target, record=record)
    assert (again.skipped, again.done, again.complete) == (10, 90, True)


def test_a_record_that_has_no_room_ends_the_run_too(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Record, "units_per_segment", 7)
    target = MemoryStorage(f"/full-{uuid.uuid4().hex}")
    record = SmallStorage(MemoryStorage(f"/rec-{uuid.uuid4().hex}"), 1500)
    with pytest.raises(Incomplete, match=r"no room left.*units-") as caught:
        pack(source, target, record=record, workers=1)
    report = caught.value.report
    assert isinstance(report, PackReport)
    assert not report.failed
    assert report.done < 30
    record.most_nbytes = 10**9
    again = pack(source, target, record=record)
    assert again.complete
    assert again.skipped + again.done == CHUNKS // A_SHARD


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_what_says_that_there_is_no_room(number: int) -> None:
    exc = OSError(number, os.strerror(number))
    assert type(local_files.translated(exc, "c/0", "writing")) is NoSpace
    assert type(generic_errors.translated(exc, "writing", "c/0", "sftp://h/x")) is NoSpace
    assert type(local_files.translated(OSError(errno.EIO, "io"), "c/0", "writing")) is StorageError
    quota, other = RequestFailed("refused"), RequestFailed("refused")
    quota.status, quota.code = 403, "QuotaExceeded"
    other.status, other.code = 403, "AccessDenied"
    assert (is_full(quota), is_full(other)) == (True, False)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root on Linux can mount a small file system")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place)], check=False, capture_output=True).returncode:
        pytest.skip("mounts are not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_full(source: Path, small_disk: Path) -> None:
    target = small_disk / "b.zarr"
    with pytest.raises(NoSpace, match=r"256\.0 KiB are free in "):
        pack(source, target)
    assert list(small_disk.iterdir()) == []
    with pytest.raises(Incomplete, match="No space left on device") as caught:
        pack(source, target, check_space=False, workers=2)
    report = caught.value.report
    assert isinstance(report, PackReport)
    assert (len(report.failed), report.complete) == (1, False)
    assert 5 < report.done < 40
    assert not list(target.rglob(".shardstore*"))
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    # The record may have had no room left for what was done in the last seconds, which is done again then.
    assert pack(source, target).complete
    assert (read_by_zarr(target, "") == np.arange(1, CHUNKS * CHUNK_NBYTES // 8 + 1)).all()


def test_sources_in_memory_are_compared_too(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = MemoryStorage(f"/source-{uuid.uuid4().hex}")
    copy_tree(source, StorageObjects(held))
    has_left(monkeypatch, 1000)
    with pytest.raises(NoSpace):
        shardstore.pack(held, tmp_path / "b.zarr")
    with pytest.raises(NoSpace):
        shardstore.unpack(held, tmp_path / "b.zarr")
