"""A collector beside writers whose clocks are days apart: nothing that a snapshot needs is ever removed, and no commit is lost."""

from __future__ import annotations

import itertools
import multiprocessing
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from shardstore.errors import SnapshotExpired
from shardstore.snapshots import Repository
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.storage_suite import SyncStorage
from tests.harness.crash import Crasher
from tests.harness.scale import moments
from tests.snapshots import kill_workers
from tests.snapshots.commit_workers import FUTURE, collect_and_die
from tests.snapshots.committing import contents_of, make_history
from tests.snapshots.kill_workers import commit_beside_collections, create, value_of
from tests.snapshots.whole import check_whole

DAY = 86_400.0
CLOCKS = (-DAY, DAY, -DAY / 2, 0.0)
ROOT = Path(__file__).parents[3]
_NUMBERS = 1_000_000


def collect_beside_writers(place: Path, commits: int) -> tuple[int, int]:
    """Let all but the tip expire, and collect without grace, again and again, while writers commit; return how many commits there were, and
    how many files were removed.
    """
    url = str(place / "repo")
    create(url)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([kill_workers.__name__])
    files = [place / f"{number}.acknowledged" for number in range(len(CLOCKS))]
    running = []
    for number, (file, clock) in enumerate(zip(files, CLOCKS, strict=True)):
        file.touch()
        process = context.Process(target=commit_beside_collections, args=(url, str(file), (number + 1) * _NUMBERS, clock), daemon=True)
        process.start()
        running.append(process)

    def acknowledged() -> set[int]:
        return {int(line) for file in files for line in file.read_bytes().split(b"\n")[:-1]}

    repo = Repository.open(url, fsync=False)
    removed = 0
    try:
        while len(acknowledged()) < commits:
            repo.expire_snapshots(FUTURE)
            removed += sum(repo.garbage_collect(timedelta()).removed.values())
            try:
                assert value_of(repo.readonly_session()) >= 0
            except SnapshotExpired:  # it has expired since
                continue
            assert all(process.is_alive() for process in running)
    finally:
        for process in running:
            process.kill()
            process.join()
    again = Repository.open(url, fsync=False)
    assert again.verify().findings == []
    last = value_of(again.readonly_session())
    newest = {value // _NUMBERS: value for value in sorted(acknowledged())}
    assert last >= newest.get(last // _NUMBERS, 0)  # of its writer, none after it was acknowledged
    again.expire_snapshots(FUTURE)
    again.garbage_collect(timedelta())
    assert again.verify().findings == []
    assert again.stats().unneeded.files == 0
    return len(acknowledged()), removed


@pytest.mark.parametrize("after", [pytest.param(False, marks=pytest.mark.night, id="before"), pytest.param(True, id="after")])
def test_killed_at_every_request(tmp_path: Path, after: bool) -> None:
    """The next run ends what the dead one began, and nothing is left."""
    make_history(LocalStorage(tmp_path / "history", fsync=False))
    shown = {branch: contents_of(Repository.open(str(tmp_path / "history")).readonly_session(branch)) for branch in ("main", "side")}
    with Crasher(["tests.snapshots.commit_workers", "shardstore.adapters.versioned.repository", "pyarrow.parquet"], [str(ROOT)]) as crasher:
        for at in moments(itertools.count(1)):
            root = tmp_path / str(at)
            shutil.copytree(tmp_path / "history", root)
            ended = crasher.run(collect_and_die, str(root), at, after)
            storage = LocalStorage(root, fsync=False)
            check_whole(storage)
            repo = Repository.open(str(root), fsync=False)
            repo.expire_snapshots(FUTURE)
            repo.garbage_collect(timedelta())
            needed = check_whole(storage)
            assert {info.key for info in SyncStorage(storage).infos() if info.key[:2] in ("s/", "a/", "m/", "c/")} == needed
            assert {branch: contents_of(repo.readonly_session(branch)) for branch in shown} == shown
            if not ended.was_killed:
                break
    assert at > 10


def test_nothing_that_is_needed_is_collected(tmp_path: Path) -> None:
    commits, removed = collect_beside_writers(tmp_path, 40)
    assert removed > commits


@pytest.mark.night
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_nothing_that_is_needed_is_collected_in_ten_thousand_commits(tmp_path: Path, seed: int) -> None:
    commits, removed = collect_beside_writers(tmp_path, 1000)
    assert removed > commits
