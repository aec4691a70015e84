"""Processes that append to one versioned store at once. What each has been acknowledged is returned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr

from shardstore.snapshots import Repository


@dataclass(frozen=True)
class Acknowledged:
    """Rows whose commit has returned."""

    start: int
    first: int
    """The number in the first of them; the next ones follow."""
    count: int
    snapshot: str


def rows(first: int, count: int) -> xr.Dataset:
    """Return rows of which each shows its own number in all variables."""
    numbers = np.arange(first, first + count) + 1
    return xr.Dataset({"tas": (("time", "x"), numbers[:, None] * 10.0 + np.arange(3))}, coords={"time": numbers})


def begin(url: str, time_chunk: int, tas_chunk: int, count: int) -> None:
    """Make a repository with some rows."""
    with Repository.create(url, fsync=False).transaction(message="begin") as store:
        rows(0, count).to_zarr(store, mode="w", encoding={"time": {"chunks": (time_chunk,)}, "tas": {"chunks": (tas_chunk, 3)}})


def append_rounds(url: str, worker: int, rounds: int, counts: list[int]) -> list[Acknowledged]:
    """Append a piece in each round."""
    repo, done = Repository.open(url, fsync=False), []
    for number in range(rounds):
        first, count = 10_000 * worker + 100 * number, counts[(worker + number) % len(counts)]
        session = repo.writable_session()
        found = session.append(rows(first, count), "time", message=f"{worker} {number}")
        done.append(Acknowledged(found.start, first, count, session.snapshot_id))
    return done
