"""What reading through a snapshot costs: the same arrays in a sharded store and in a repository with the same shards, in turn."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from snapshot_rows import Clock, Result
from zarr.codecs import BloscCodec, ZstdCodec

import shardstore
from shardstore.opening.open import open_storage
from shardstore.snapshots import Repository
from shardstore.testing.latency import LatencyStorage

LATENCY_SECONDS = 0.020


@dataclass(frozen=True, slots=True)
class Array:
    """One array that is read."""

    name: str
    chunk: tuple[int, int, int]
    codec: Any

    def values(self, side: int) -> Any:
        """Return a cube of ``side`` elements along each dimension, that compresses to about a half."""
        return np.random.default_rng(0).integers(0, 256, (side,) * 3).astype("uint16")


LARGE = Array("512 KiB chunks", (64, 64, 64), ZstdCodec(level=1))
SMALL = Array("16 KiB chunks", (16, 16, 32), BloscCodec(cname="lz4", clevel=1, shuffle="shuffle"))
ARRAYS = (LARGE, SMALL)


def _plane(array: Any) -> Any:
    return array[array.shape[0] // 2 + 3]


def _box(array: Any) -> Any:
    start, size = array.shape[0] // 4 + 5, array.shape[0] // 4
    return array[(slice(start, start + size),) * 3]


def _everything(array: Any) -> Any:
    return array[...]


SELECTIONS: dict[str, Callable[[Any], Any]] = {"plane": _plane, "box": _box, "everything": _everything}


def make(place: Path, side: int) -> None:
    """Write each array into a sharded store, and into a repository."""
    plain = shardstore.open(place / "plain", chunks_per_shard="auto", fsync=False)
    repository = Repository.create(place / "repository", fsync=False, pack="auto")
    session = repository.writable_session()
    for one in ARRAYS:
        values = one.values(side)
        for store in (plain, session.store):
            zarr.create_array(
                store, name=one.name.replace(" ", "-"), shape=values.shape, chunks=one.chunk, dtype=values.dtype, compressors=one.codec
            )[...] = values
    session.commit("arrays")


def _open(kind: str, place: Path, one: Array, *, is_far: bool) -> Any:
    storage: Any = open_storage(place / ("plain" if kind == "plain" else "repository"), fsync=False)
    if is_far:
        storage = LatencyStorage(storage, LATENCY_SECONDS)
    path = one.name.replace(" ", "-")
    if kind == "plain":
        return zarr.open_array(shardstore.open(storage, read_only=True), path=path, mode="r")
    return zarr.open_array(Repository.open(storage).readonly_session("main").store, path=path, mode="r")


def measure(place: Path, rounds: int, side: int) -> list[tuple[str, dict[str, Result]]]:
    """Return for each reading its name and the medians of both, and of the ratios of each round; opening is not a part of any."""
    found: list[tuple[str, dict[str, Result]]] = []
    for one in ARRAYS:
        wanted = one.values(side)
        for where in ("local", "20 ms away"):
            for name, select in SELECTIONS.items():
                runs: dict[tuple[str, str], list[Result]] = {}
                for number in range(rounds):
                    for kind in ("plain", "snapshot") if number % 2 == 0 else ("snapshot", "plain"):
                        array = _open(kind, place, one, is_far=where != "local")
                        for state in ("cold", "warm"):
                            gc.collect()
                            clock = Clock()
                            values = select(array)
                            runs.setdefault((kind, state), []).append(clock.read())
                            assert np.array_equal(values, select(wanted))
                for state in ("cold", "warm"):
                    plain, snapshot = (runs[kind, state] for kind in ("plain", "snapshot"))
                    # The one round more of a snapshot whose manifests are not known is not counted.
                    more = {"seconds": LATENCY_SECONDS if state == "cold" and where != "local" else 0.0}
                    ratios = {
                        what: statistics.median((b[what] - more.get(what, 0.0)) / a[what] for a, b in zip(plain, snapshot, strict=True))
                        for what in plain[0]
                    }
                    both = {
                        kind: {what: statistics.median(run[what] for run in runs[kind, state]) for what in plain[0]}
                        for kind in ("plain", "snapshot")
                    }
                    found.append((f"{name}, {one.name}, {where}, {state}", both | {"ratio": ratios}))
    return found
