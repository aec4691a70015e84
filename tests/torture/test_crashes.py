"""Writers of local files that are killed: what was acknowledged is there, the rest is old or new, nothing is held or left."""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardstore
from shardstore.storage.local.range_locks import DIRECTORY_LOCK
from tests.appended import shown
from tests.harness.crash import AfterAcknowledgements, AtCall, ChildFailed, Crasher, random_moment
from tests.harness.scale import EVERY, FULL, moments, sized
from tests.shards import shard_chunks, sharded_arrays
from tests.stored import LocalObjects
from tests.torture.conftest import Record
from tests.torture.crash_workers import (
    APPENDING_REQUESTS,
    DOCUMENT,
    SHARDS,
    SLOTS,
    Change,
    acknowledge_and_fail,
    append_on,
    append_once,
    apply,
    changes,
    opened,
    wait_for_ever,
    write_on,
    write_once,
)
from tests.torture.crew import ROOT
from tests.torture.places import APPENDING, Place

Chunks = dict[int, bytes]
MODES = ["auto", "append", "cluster", "network"]


@pytest.fixture(scope="module")
def crasher() -> Iterator[Crasher]:
    # The package imports its faces when they are first used: so that each child need not.
    with Crasher(["tests.torture.crash_workers", "shardstore.adapters.mapping.mapping", "s3fs"], [str(ROOT)]) as running:
        yield running


def create(root: Path) -> None:
    opened(str(root), "auto")["a/zarr.json"] = DOCUMENT


def stored(root: Path) -> list[Chunks]:
    """The chunks of each shard, by a reader that shares nothing with shardstore."""
    objects = LocalObjects(root)
    layout = sharded_arrays(objects)["a"]
    found: list[Chunks] = []
    for shard in range(SHARDS):
        data = shown(root / layout.key((shard,)))
        found.append(
            {int(key.rpartition("/")[2]): chunk for key, chunk in shard_chunks(layout, (shard,), data)} if data is not None else {}
        )
    return found


def changed(chunks: Chunks, change: Change, shard: int) -> Chunks:
    """One shard after a change."""
    mine = {chunk: data for chunk, data in change.items() if chunk // SLOTS == shard}
    return {chunk: data for chunk, data in (chunks | mine).items() if data is not None}


def hidden(root: Path) -> set[str]:
    """Temporary files, and locks of objects."""
    return {str(path.relative_to(root)) for path in root.rglob(".*") if path.name != DIRECTORY_LOCK}


def files(root: Path, names: set[str]) -> set[tuple[str, int, int]]:
    """The very files: a name may come again."""
    found = {name: (root / name).stat() for name in names}
    return {(name, status.st_ino, status.st_ctime_ns) for name, status in found.items()}


def check_no_lock_is_held(root: Path) -> None:
    for path in root.rglob(".*"):
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))


@pytest.mark.night
@pytest.mark.parametrize("mode", MODES)
def test_killed_at_random_moments(crasher: Crasher, tmp_path: Path, record: Record, mode: str) -> None:
    kills = sized(1000, 12) if mode == "auto" else sized(200, 5)
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    root = tmp_path / "root"
    create(root)
    model = stored(root)
    left: set[tuple[str, int, int]] = set()
    acknowledged = in_the_middle = finished = 0
    for run in range(kills):
        moment = random_moment(rng, 6, 0.006)
        ended = crasher.run(write_on, str(root), seed, run, mode, run % 4 == 0, at=moment)
        where = f"seed {seed}, run {run}, {moment}, {len(ended.acknowledged)} acknowledged"
        assert ended.was_killed, where
        assert [*ended.acknowledged] == [str(i) for i in range(len(ended.acknowledged))], where
        check_no_lock_is_held(root)
        written = changes(seed, run)
        for change in itertools.islice(written, len(ended.acknowledged)):
            model = [changed(chunks, change, shard) for shard, chunks in enumerate(model)]
        under_way = next(written)
        found = stored(root)
        for shard, chunks in enumerate(found):
            # Of a shard that was being written, all of the change or nothing of it.
            assert chunks in (model[shard], changed(model[shard], under_way, shard)), f"{where}: shard {shard}"
        finished += found != model
        model = found
        # This run wrote into the directory of all the shards, and so swept up what the one before had left.
        still = files(root, hidden(root))
        assert not left & still, where
        left = still
        in_the_middle += bool(left)
        acknowledged += len(ended.acknowledged)
    # So does a writer that was not born to be killed; it waits for no lock.
    crasher.run(write_once, str(root), {0: b"the last"}, mode, False)
    assert hidden(root) == set()
    assert stored(root)[0] == model[0] | {0: b"the last"}
    if FULL:
        assert in_the_middle > kills // 20
    record(
        f"{kills} kills (seed {seed}), {acknowledged} acknowledged changes: none lost; {in_the_middle} kills left hidden files, "
        f"{finished} an unacknowledged change that was stored: all swept up"
    )


OPERATIONS: dict[str, tuple[Change, Change]] = {
    "create": ({}, {0: b"new", 3: b"new" * 100}),
    "update": (dict.fromkeys(range(10), b"old" * 50), {2: b"new" * 70, 12: b"new"}),
    "delete": ({0: b"old", 5: b"old"}, {0: None, 5: None}),
}


# What is left out in short runs differs only in the locks, and in what happens between two calls.
EVERY_CALL = [(mode, after) for mode in MODES for after in (False, True) if FULL or (mode in ("auto", "append") and not after)]


@pytest.mark.parametrize(("mode", "after"), EVERY_CALL, ids=[f"{'after' if after else 'before'}-{mode}" for mode, after in EVERY_CALL])
@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_at_every_system_call(crasher: Crasher, tmp_path: Path, record: Record, name: str, mode: str, after: bool) -> None:
    before, change = OPERATIONS[name]
    start = tmp_path / "start"
    create(start)
    store = opened(str(start), "auto", fsync=False)
    apply(store, before)
    old, new = stored(start)[0], changed(stored(start)[0], change, 0)
    became_new = 0
    for at in moments(itertools.count(1)):
        root = tmp_path / "root"
        shutil.copytree(start, root)
        ended = crasher.run(write_once, str(root), change, mode, True, at=AtCall(at, after))
        found = stored(root)[0]
        assert found == new if ended.acknowledged else found in (old, new), at
        became_new += found == new
        check_no_lock_is_held(root)
        crasher.run(write_once, str(root), {7: b"next"}, mode, False)
        assert stored(root)[0] == found | {7: b"next"}, at
        assert hidden(root) == set(), at
        shutil.rmtree(root)
        if not ended.was_killed:
            break
    assert 10 < len(ended.calls) < at
    in_place = mode == "append" and name == "update"
    assert {"fdatasync" if in_place else "fsync", "fcntl" if mode == "network" else "flock"} <= set(ended.calls)
    assert became_new
    when = "after" if after else "before"
    record(f"killed {when} one in {EVERY} of {len(ended.calls)} system calls: old or new, and nothing left by the next write")


# -- appends on S3 and Azure -----------------------------------------------------------------------------------------------------


def stored_at(place: Place) -> list[Chunks]:
    """As ``stored``, of a store on S3 or Azure."""
    objects = place.objects
    layout = sharded_arrays(objects)["a"]
    shards = [objects.get(layout.key((shard,))) for shard in range(SHARDS)]
    return [
        {} if data is None else {int(key.rpartition("/")[2]): chunk for key, chunk in shard_chunks(layout, (shard,), data)}
        for shard, data in enumerate(shards)
    ]


def check_swept(place: Place) -> int:
    """What killed writers have left are unfinished uploads, which are told, and end when somebody says so; how many."""
    options: dict[str, Any] = {"storage_options": place.storage_options}
    told = [finding for finding in shardstore.verify(place.url, **options).findings if finding.kind == "upload"]
    swept = shardstore.repair(place.url, older_than=0, **options).leftovers.uploads
    assert len(told) == swept
    assert not [finding for finding in shardstore.verify(place.url, **options).findings if finding.kind == "upload"]
    return swept


@pytest.mark.night
@pytest.mark.parametrize("after", [False, True] if FULL else [False], ids=lambda after: "after" if after else "before")
@pytest.mark.parametrize("place", APPENDING[1:], indirect=True)
def test_killed_at_every_request_of_an_append(crasher: Crasher, place: Place, record: Record, after: bool) -> None:
    store = place.mapper(chunks_per_shard=(SLOTS,))
    store["a/zarr.json"] = DOCUMENT
    apply(store, dict.fromkeys(range(10), b"old" * 50))
    became_new = 0
    for at in itertools.count(1):
        change: Change = {2: b"%d" % at * 70, 12: b"new %d" % at}
        old, new = stored_at(place)[0], changed(stored_at(place)[0], change, 0)
        ended = crasher.run(append_once, place, change, at, after)
        found = stored_at(place)[0]
        assert found == new if ended.acknowledged else found in (old, new), at
        became_new += found == new
        if ended.acknowledged:
            break
    assert set(APPENDING_REQUESTS[place.kind]) <= set(ended.acknowledged[0].split())
    assert became_new == (2 if after else 1)
    record(f"{place.kind}: {at - 1} kills: old or new; {check_swept(place)} unfinished uploads were told, and swept up")


@pytest.mark.skipif(not FULL, reason="at full size: every request is struck in every run")
@pytest.mark.parametrize("place", APPENDING[1:], indirect=True)
def test_killed_at_random_moments_of_appends(crasher: Crasher, place: Place, record: Record) -> None:
    kills = 200
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    place.mapper(chunks_per_shard=(SLOTS,))["a/zarr.json"] = DOCUMENT
    model = stored_at(place)
    acknowledged = finished = 0
    for run in range(kills):
        moment = random_moment(rng, 6, 0.06)
        ended = crasher.run(append_on, place, seed, run, at=moment)
        where = f"seed {seed}, run {run}, {moment}, {len(ended.acknowledged)} acknowledged"
        written = changes(seed, run)
        for change in itertools.islice(written, len(ended.acknowledged)):
            model = [changed(chunks, change, shard) for shard, chunks in enumerate(model)]
        under_way = next(written)
        settle()
        found = stored_at(place)
        for shard, chunks in enumerate(found):
            assert chunks in (model[shard], changed(model[shard], under_way, shard)), f"{where}: shard {shard}"
        finished += found != model
        model = found
        acknowledged += len(ended.acknowledged)
    record(
        f"{place.kind}: {kills} kills (seed {seed}), {acknowledged} acknowledged changes: none lost; "
        f"{finished} an unacknowledged change that was stored; {check_swept(place)} unfinished uploads were told, and swept up"
    )


def settle() -> None:
    """A request that a killed client has sent may still be carried out: the server is given the time for it."""
    time.sleep(0.3)


# -- the harness itself ------------------------------------------------------------------------------------------------


def test_a_child_is_killed_when_it_has_acknowledged_enough(crasher: Crasher) -> None:
    ended = crasher.run(wait_for_ever, ["a", "b c", "d"], at=AfterAcknowledgements(3))
    assert (ended.acknowledged, ended.was_killed, ended.calls) == (("a", "b c", "d"), True, ())


def test_what_a_child_raises_is_raised(crasher: Crasher) -> None:
    with pytest.raises(ChildFailed, match=r"(?s)acknowledge_and_fail.*ValueError: on purpose: x"):
        crasher.run(acknowledge_and_fail, "x")
    with pytest.raises(ChildFailed, match="no_such"):
        crasher.run("tests.torture.crash_workers:no_such")
    with pytest.raises(ChildFailed, match="no line"):
        crasher.run("tests.torture.crash_workers:wait_for_ever", ["two\nlines"])


def test_moments_are_drawn_from_the_seed() -> None:
    moments = [[random_moment(random.Random(seed), 4, 0.5) for _ in range(3)] for seed in (1, 1, 2)]
    assert moments[0] == moments[1] != moments[2]
    rng = random.Random(3)
    drawn = [random_moment(rng, 4, 0.5) for _ in range(200)]
    assert {moment.count for moment in drawn} == {1, 2, 3, 4}
    assert all(0 <= moment.delay_seconds < 0.5 for moment in drawn)
