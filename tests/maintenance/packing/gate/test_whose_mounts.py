"""Mounts inside a source or a target: what lies there has another place too, and is neither erased nor read while it is written.

Those that are really mounted need root, on Linux; elsewhere the table of the mounts is a file of the tests' own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import shardstore
from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.engine.moving import copy_nodes, move_between
from shardstore.errors import Conflict, InvalidInput
from shardstore.opening import location
from shardstore.opening.location import location_of, why_not_apart
from shardstore.storage.local.mounts import Mounts
from shardstore.storage.local.storage import LocalStorage
from tests.apps.cli.running import run
from tests.maintenance.packing.gate.test_whose import files, made, pack, values

Mount = Callable[..., None]


@pytest.fixture
def mount() -> Iterator[Mount]:
    """Mounts a directory at another, or an empty file system; until the end of the test."""
    if sys.platform != "linux" or os.geteuid() or not all(map(shutil.which, ("mount", "umount"))):
        pytest.skip("only root can mount, on Linux")
    points: list[Path] = []

    def mount(point: Path, directory: Path | None = None) -> None:
        point.mkdir(parents=True, exist_ok=True)
        how = ["-t", "tmpfs", "tmpfs"] if directory is None else ["--bind", str(directory)]
        done = subprocess.run(["mount", *how, str(point)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
        points.append(point)

    yield mount
    for point in reversed(points):
        subprocess.run(["umount", str(point)], check=True)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("part", ["", "a", "a/c"])
def test_a_source_that_is_mounted_in_the_target_is_known(tmp_path: Path, mount: Mount, part: str, overwrite: bool) -> None:
    source, target = made(tmp_path / "s"), made(tmp_path / "t", 5)
    mount(target / "m", source / part)
    before = files(source)
    with pytest.raises(InvalidInput, match="overlap"):
        pack(source, target, overwrite=overwrite)
    assert files(source) == before


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("part", ["", "a/c"])
def test_a_target_that_is_mounted_in_the_source_is_known(tmp_path: Path, mount: Mount, part: str, overwrite: bool) -> None:
    source, target = made(tmp_path / "s"), made(tmp_path / "t", 3)
    shutil.rmtree(source / "a/c")
    mount(source / "a/c", target / part)
    before = files(target)
    with pytest.raises(InvalidInput, match="overlap"):
        pack(source, target, overwrite=overwrite)
    for transfer in (copy_nodes, move_between):
        with pytest.raises(InvalidInput, match="overlap"):
            run_sync(transfer(Engine(LocalStorage(source)), "a", Engine(LocalStorage(target)), "a", overwrite=True))
    assert files(target) == before


def test_what_is_mounted_in_a_target_is_not_erased(tmp_path: Path, mount: Mount) -> None:
    source, target, elsewhere = made(tmp_path / "s"), made(made(tmp_path / "t", 5), 6, "b"), made(tmp_path / "elsewhere", 9)
    mount(target / "a/m", elsewhere)
    before = files(tmp_path)
    told = f"another directory or file system is mounted at '{target}/a/m'"
    with pytest.raises(Conflict, match=told):
        pack(source, target, overwrite=True)
    assert f"it would be refused: in file://{target} {told}" in " ".join(pack(source, target, overwrite=True, dry_run=True).notes)
    for arguments in (["cp", "--overwrite", f"{source}/a", f"{target}/a"], ["mv", "--overwrite", f"{source}/a", f"{target}/a"]):
        outcome = run(*arguments)
        assert (outcome.code, told in outcome.error) == (6, True)
    for arguments in (["rm", "-r", "-y", f"{target}/a"], ["rm", "-r", "-y", str(target)], ["mv", f"{target}/a", f"{tmp_path}/new"]):
        outcome = run(*arguments)
        assert (outcome.code, told in outcome.error) == (6, True)
    assert files(tmp_path) == before
    assert run("rm", "-y", f"{target}/b").code == 0  # where nothing is mounted


def test_a_disk_in_a_target_can_be_used(tmp_path: Path, mount: Mount) -> None:
    """A part of the target lies on another disk; a run that erases nothing but what runs have made can go there."""
    source, target = made(tmp_path / "s"), tmp_path / "t"
    mount(target / "a")
    assert pack(source, target).complete
    assert (target / "a/c/0").exists()
    shutil.rmtree(source / "a")
    made(source, 4, "b")
    assert pack(source, target).complete
    assert not (target / "a/c").exists()
    assert values(target, "b") == [4] * 8


def test_the_target_may_be_a_mount_itself(tmp_path: Path, mount: Mount) -> None:
    source, target = made(tmp_path / "s"), made(tmp_path / "disk/t", 5)
    mount(tmp_path / "t", target)
    assert pack(source, tmp_path / "t", overwrite=True).complete
    assert values(target) == [3] * 8


def test_arrays_on_a_mounted_disk_are_kept_up(tmp_path: Path, mount: Mount) -> None:
    (tmp_path / "p").mkdir()
    mount(tmp_path / "p/a")
    pack(made(tmp_path / "s"), tmp_path / "p")
    assert shardstore.compact(tmp_path / "p").shards == 2
    assert shardstore.repair(tmp_path / "p").shards == 2


# -- without root ------------------------------------------------------------------------------------------------------


def table(monkeypatch: pytest.MonkeyPatch, place: Path, *mounts: tuple[Path, str, Path | str, str]) -> None:
    """Let these be the mounts, with a place each, a device, a root in it, and a kind and source; the root's directory besides."""
    lines = [f"{i} 1 {device} {root} {point} rw - {kind} rw" for i, (point, device, root, kind) in enumerate(mounts)]
    place.write_text("\n".join(["9 1 254:0 / / rw - ext4 /dev/vda rw", *lines]))
    monkeypatch.setattr(location, "Mounts", partial(Mounts, mountinfo=str(place)))


def test_places_are_known_by_all_of_their_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    ext4, nfs = "ext4 /dev/vdb", "nfs4 server:/{}"

    def overlap(*mounts: tuple[Path, str, Path | str, str]) -> bool:
        table(monkeypatch, tmp_path / "mountinfo", *mounts)
        here, there = location_of(LocalStorage(one)), location_of(LocalStorage(other))
        assert why_not_apart([("here", here), ("there", there)]) is None
        assert here.overlaps(there) is there.overlaps(here)
        return here.overlaps(there)

    assert not overlap()
    assert overlap((one / "m", "254:0", other, ext4))
    assert overlap((one / "m", "254:0", other / "a", ext4))
    assert overlap((one / "m", "254:0", other.parent, ext4))
    assert not overlap((one / "m", "254:0", f"{other}b", ext4))
    assert overlap((one, "8:1", "/data", ext4), (other / "m", "8:1", "/data/b", ext4))
    assert not overlap((one, "8:1", "/data", ext4), (other, "8:1", "/more", ext4))
    assert not overlap((one, "8:1", "/", ext4), (other, "8:2", "/", ext4))
    assert overlap((one / "x", "8:1", "/", ext4), (other / "y", "8:1", "/", ext4))
    assert not overlap((one, "0:50", "/", nfs.format("home")), (other, "0:50", "/", nfs.format("scratch")))
    assert overlap((one, "0:50", "/", nfs.format("home")), (other, "0:50", "/", nfs.format("home")))


def test_what_is_mounted_is_not_known_where_the_system_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a directory of another device shows that something is mounted there, and not what."""
    source, target, look = made(tmp_path / "s"), made(tmp_path / "t", 5), os.lstat
    mounted = str(source / "a/c")

    def lstat(path: str, *args: object, **options: object) -> os.stat_result:
        status = look(path)
        return os.stat_result((*status[:2], status.st_dev + 1, *status[3:])) if str(path).startswith(mounted) else status

    monkeypatch.setattr(location, "Mounts", partial(Mounts, mountinfo=str(tmp_path / "absent")))
    assert pack(source, target, overwrite=True).complete
    monkeypatch.setattr(os, "lstat", lstat)
    assert [mount.point for mount in Mounts(str(tmp_path / "absent")).below([str(source)])] == [mounted]
    with pytest.raises(InvalidInput, match="cannot be traced to where its bytes are"):
        pack(source, target, overwrite=True)
    assert pack(source, tmp_path / "new").complete
