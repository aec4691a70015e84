"""Processes that commit to a local repository until they are killed."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import random
import threading
import time
from typing import Any

import numpy as np
import zarr

from shardstore.errors import Conflict
from shardstore.snapshots import BasicConflictSolver, Repository

ARRAYS, CHUNKS, CHUNK = ("a", "b", "g/c"), 2, 128
"""Each chunk is a KiB, so that it goes into a chunk file."""


def create(url: str) -> None:
    repo = Repository.create(url, fsync=False)
    with repo.transaction(message="arrays", metadata={"value": 0}) as store:
        zarr.create_group(store, path="g")
        for path in ARRAYS:
            zarr.create_array(store, name=path, shape=(CHUNKS * CHUNK,), chunks=(CHUNK,), dtype="i8", compressors=None)


def end_with_parent() -> None:
    """Let this process end when the one that started it ends, also by a kill: nobody else would stop it, and it would fill the disk."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def commit_for_ever(url: str, acknowledged: str, first: int) -> None:
    """Write one value after the other into all chunks, and note each in a file once it is committed."""
    end_with_parent()
    rng = random.Random(first)
    repo = Repository.open(url, fsync=False, pack=rng.choice([None, "auto", (2,)]), max_memory=rng.choice([1, 3000, 1 << 20]))
    with open(acknowledged, "ab", buffering=0) as file:
        for value in range(first, first + 1_000_000):
            session = repo.writable_session()
            for path in ARRAYS:
                zarr.open_array(session.store, path=path, mode="r+")[:] = value
            session.commit(f"{value}", {"value": value}, rebase_with=BasicConflictSolver())
            os.write(file.fileno(), b"%d\n" % value)


def commit_beside_collections(url: str, acknowledged: str, first: int, clock_is_off_by: float) -> None:
    """Likewise, with another clock; a session whose files a collection has taken is given up, and the value committed by another one."""
    end_with_parent()
    rng = random.Random(first)
    repo = Repository.open(url, fsync=False, pack=rng.choice([None, (2,)]), max_memory=rng.choice([1, 1 << 20]))
    repo._store.clock = lambda: time.time() + clock_is_off_by
    with open(acknowledged, "ab", buffering=0) as file:
        for value in range(first, first + 1_000_000):
            while True:
                session = repo.writable_session()
                try:
                    for path in ARRAYS:
                        zarr.open_array(session.store, path=path, mode="r+")[:] = value
                        time.sleep(rng.choice([0, 0.01]))
                    session.commit(f"{value}", {"value": value}, rebase_with=BasicConflictSolver())
                except Conflict:
                    continue
                break
            os.write(file.fileno(), b"%d\n" % value)


def value_of(session: Any) -> int:
    """Return the value that all chunks of a snapshot have. Raises ``AssertionError`` if they have several."""
    found = {int(value) for path in ARRAYS for value in np.asarray(zarr.open_array(session.store, path=path, mode="r")[:])}
    assert len(found) == 1, f"snapshot {session.snapshot_id} is torn: {found}"
    return found.pop()
