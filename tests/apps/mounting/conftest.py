"""Real mounts for tests, each with a watchdog: a mount that hangs is taken away, and the test fails instead of waiting for ever."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.apps.mounting.mounts import Mount
from shardstore.errors import StorageError

WATCHDOG_SECONDS = 100.0

DATA = np.random.default_rng(28).integers(0, 9, (32, 64, 64)).astype("u2")


def needs(program: str) -> None:
    """Skip a test where a program is missing; or fail, as ``can_mount`` does."""
    if shutil.which(program) is None:
        if os.environ.get("SHARDSTORE_MOUNT"):
            pytest.fail(f"{program} is missing")
        pytest.skip(f"{program} is missing: make mount-test installs it")


def make_store(url: str, **options: Any) -> None:
    """A group with a sharded array of 8 shards of 64 chunks each."""
    group = zarr.open_group(shardstore.open(url, chunks_per_shard=(4, 4, 4), **options), mode="w", attributes={"title": "in May"})
    array = group.create_array("ct", shape=DATA.shape, chunks=(4, 8, 8), dtype=DATA.dtype)
    array[:] = DATA


@pytest.fixture
def store(tmp_path: Path) -> Path:
    make_store(str(tmp_path / "data.zarr"))
    return tmp_path / "data.zarr"


def take_away(directory: str) -> None:
    """Unmount whatever is mounted there, also if its process is dead or hangs."""
    program = ["fusermount3", "-uz"] if shutil.which("fusermount3") else ["umount", "-l"]
    subprocess.run([*program, directory], capture_output=True, check=False)


def _has_died(one: Mount) -> bool:
    """Return whether a test has killed the process of a mount."""
    try:
        return one.wait(0)
    except StorageError:
        return True


@pytest.fixture
def mount(can_mount: None, tmp_path: Path) -> Iterator[Callable[..., Mount]]:
    """Return a function that mounts a store at a directory of its own, with the arguments of ``shardstore.mount``."""
    mounted: list[Mount] = []
    timers: list[threading.Timer] = []

    def give_up(one: Mount) -> None:
        take_away(one.directory)
        os.kill(one.pid, 9)

    def make(url: str | Path, *, watchdog_seconds: float = WATCHDOG_SECONDS, **options: Any) -> Mount:
        directory = tmp_path / f"mnt{len(mounted)}"
        directory.mkdir()
        one = shardstore.mount(url, directory, **options)
        mounted.append(one)
        timer = threading.Timer(watchdog_seconds, give_up, [one])
        timer.start()
        timers.append(timer)
        return one

    yield make
    for timer in timers:
        timer.cancel()
    try:
        for one in mounted:
            if not _has_died(one) and not one.wait(0):
                one.unmount()
    finally:
        for one in mounted:
            take_away(one.directory)


def run(*command: str | Path, check: bool = True, seconds: float = 60, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program on a mount, with a watchdog of its own."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=seconds, check=False, **options)
    assert not check or done.returncode == 0, (command, done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return done
