"""Writers that are killed at random moments: no commit is lost that was acknowledged, and no snapshot shows a part of one.

When a writer is killed is left to chance; what has to hold does not depend on it.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from pathlib import Path

import pytest
import zarr

from shardstore.snapshots import Repository
from tests.snapshots import kill_workers
from tests.snapshots.kill_workers import commit_for_ever, create, value_of

_NUMBERS = 1_000_000
"""The values of one process."""


def lives_and_deaths(place: Path, commits: int, kills: int, seed: int, *, writers: int) -> int:
    """Let writers commit, of which one after the other is killed; return the number of commits that were acknowledged."""
    rng = random.Random(seed)
    url = str(place / "repo")
    create(url)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([kill_workers.__name__])
    files: list[Path] = []

    def start() -> multiprocessing.process.BaseProcess:
        files.append(place / f"{len(files)}.acknowledged")
        files[-1].touch()
        process = context.Process(target=commit_for_ever, args=(url, str(files[-1]), len(files) * _NUMBERS), daemon=True)
        process.start()
        return process

    def acknowledged() -> list[int]:
        # What is behind the last line feed was not acknowledged.
        return [int(line) for file in files for line in file.read_bytes().split(b"\n")[:-1]]

    running = [start() for _ in range(writers)]
    repo = Repository.open(url, fsync=False)
    try:
        for kill in range(1, kills + 1):
            while len(acknowledged()) < commits * kill / kills:
                assert value_of(repo.readonly_session()) >= 0
                assert all(process.is_alive() for process in running)
            time.sleep(rng.uniform(0, 0.03))
            victim = rng.randrange(writers)
            running[victim].kill()
            running[victim].join()
            running[victim] = start()
    finally:
        for process in running:
            process.kill()
            process.join()
    repo = Repository.open(url, fsync=False)
    shown: list[int] = []
    for info in list(repo.ancestry())[:-1]:
        value = value_of(repo.readonly_session(snapshot_id=info.id))
        assert value == info.metadata.get("value", 0)
        shown.append(value)
    assert len(set(shown)) == len(shown)
    assert set(acknowledged()) <= set(shown)
    assert len(shown) - 1 - len(acknowledged()) <= kills + writers  # who was killed between the commit and the note
    with repo.transaction(message="after all") as store:  # nobody has left a lock
        zarr.open_array(store, path="a", mode="r+")[:] = 0
    return len(acknowledged())


def test_no_commit_of_killed_writers_is_lost_or_torn(tmp_path: Path) -> None:
    assert lives_and_deaths(tmp_path, 24, 4, 0, writers=2) >= 24


@pytest.mark.night
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(20))
def test_ten_thousand_commits_of_killed_writers(tmp_path: Path, seed: int) -> None:
    """Twenty repositories of 500 commits each: the state, which every commit writes again, stays short."""
    assert lives_and_deaths(tmp_path, 500, 60, 1000 + seed, writers=3) >= 500
