"""The local storage on ext4 with inodes of 128 bytes, which has no room for fractions of a second; mounted for these tests, as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Found
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.storage_suite import StorageSuite, SyncStorage
from tests.storage.swapped_chunks import check_readers_of_swapped_chunks


class SmallInodes:
    """A file system in a file, mounted over a loop device."""

    def __init__(self, directory: Path) -> None:
        self.image = directory / "image"
        self.point = directory / "mounted"
        self.point.mkdir()
        with open(self.image, "wb") as file:
            file.truncate(32 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-I", "128", str(self.image)], check=True, capture_output=True)

    def mount(self) -> None:
        subprocess.run(["mount", "-o", "loop", str(self.image), str(self.point)], check=True, capture_output=True)

    def unmount(self) -> None:
        if os.path.ismount(self.point) and subprocess.run(["umount", str(self.point)], capture_output=True).returncode:
            subprocess.run(["umount", "-l", str(self.point)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallInodes]:
    if sys.platform != "linux" or os.geteuid():
        pytest.skip("only root can mount, on Linux")
    if not all(map(shutil.which, ("mkfs.ext4", "mount", "umount"))):
        pytest.skip("there is no mkfs.ext4, mount or umount")
    disk = SmallInodes(tmp_path_factory.mktemp("ext4"))
    try:
        disk.mount()
    except subprocess.CalledProcessError as exc:
        pytest.skip(f"no loop device can be mounted here: {exc.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        disk.unmount()


@pytest.fixture
def place(mounted: SmallInodes, tmp_path: Path) -> Path:
    """An empty directory there."""
    place = mounted.point / tmp_path.name
    place.mkdir()
    return place


@pytest.fixture
def storage(place: Path) -> LocalStorage:
    return LocalStorage(place, fsync=False)


class TestSmallInodes(StorageSuite):
    pass


def test_it_is_what_it_is_mounted_for(place: Path) -> None:
    """Fractions of a second are gone at once, not only when the inode leaves memory: so what is read back is what stays."""
    path = place / "a"
    path.write_bytes(b"1")
    os.utime(path, ns=(1, 1_700_000_000_123_456_789))
    assert (path.stat().st_mtime_ns, path.stat().st_ctime_ns % 10**9) == (1_700_000_000_000_000_000, 0)


@pytest.mark.parametrize("strategy", ["rewrite", "append"])
def test_an_index_is_never_believed_of_the_next_version(strategy: Literal["rewrite", "append"], place: Path) -> None:
    check_readers_of_swapped_chunks(place, strategy)


def test_names_outlast_memory_and_are_the_same_in_every_process(storage: LocalStorage, mounted: SmallInodes) -> None:
    s = SyncStorage(storage)
    version = s.put("a", b"1")
    program = """if True:
        import os, sys
        from shardstore.storage.local.versions import generation_of
        print(generation_of(os.stat(sys.argv[1]), sys.argv[1]).token)
    """
    mounted.unmount()
    mounted.mount()
    said = subprocess.run([sys.executable, "-c", program, f"{storage.root}/a"], capture_output=True, check=True, text=True).stdout
    assert said == f"{version.token}\n"
    assert len(said.split("-")) == 6
    assert isinstance(s.read("a", EVERYTHING, generation=version), Found)
