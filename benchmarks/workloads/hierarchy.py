"""A hierarchy of a thousand arrays, opened."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zarr
from contenders import Contender, Place, ShardStore, StorageName, TensorStore, ZarrPython, counted, native_store
from counting_s3 import Counts
from datasets import Scale, make_hierarchy
from field import SHARDSTORE, TENSORSTORE, ZARR
from leanest import LIMITS
from metered_store import MeteredStore

from workloads.workload import Arena, Extra, Task, Workload, checksum, made

NAME = "hierarchy"
Opened = dict[str, tuple[int, ...]]
"""The shape of each array, by path."""


@dataclass(frozen=True, slots=True)
class Hierarchy(Workload):
    """Found by listing, and every array opened. tensorstore knows no groups: it lists the documents itself and opens all arrays at once."""

    def make(self, root: Path, scale: Scale, storage: StorageName) -> None:
        made(root, NAME, make_hierarchy, scale.arrays)

    def prepare(self, arena: Arena) -> Task:
        found: list[Opened] = []
        open_all, counts = _opener(arena.contender, arena.place, arena.directory, arena.scale.arrays)

        def run() -> None:
            found.append(open_all())

        def facts() -> Extra:
            return {"operations": len(found[0])}

        return Task(run, lambda: checksum([json.dumps(sorted(found[0].items())).encode()]), counts, facts)


def _nothing() -> None:
    return None


def _opener(contender: Contender, place: Place, directory: Path, arrays: int) -> tuple[Callable[[], Opened], Callable[[], Counts | None]]:
    if isinstance(contender, ShardStore):
        store = contender.store(place)
        return lambda: _members(store), lambda: counted(store)
    if isinstance(contender, ZarrPython):
        native = native_store(place)
        return lambda: _members(native), lambda: native.so_far() if isinstance(native, MeteredStore) else None
    if isinstance(contender, TensorStore):
        if place.http_url is not None:
            raise NotImplementedError("its HTTP driver does not list")
        return lambda: _by_tensorstore(contender, place), _nothing
    if place.endpoint is not None:
        raise NotImplementedError("it is measured on files")
    if place.latency_seconds:
        counts = Counts({"requests": 0})
        return lambda: asyncio.run(_requests_alone(directory / NAME, place.latency_seconds, counts)), lambda: Counts(dict(counts.requests))
    return lambda: _documents(directory / NAME), _nothing


def _members(store: Any) -> Opened:
    group = zarr.open_group(store, path=NAME, mode="r", use_consolidated=False)
    return {path: node.shape for path, node in group.members(max_depth=None) if isinstance(node, zarr.Array)}


def _by_tensorstore(contender: TensorStore, place: Place) -> Opened:
    import tensorstore

    below = contender.below(place, NAME)
    context = tensorstore.Context(below["context"])
    keys = tensorstore.KvStore.open(below["kvstore"], context=context).result().list().result()
    paths = [key.decode().removesuffix("/zarr.json") for key in keys if key.count(b"/") == 2]
    opening = [
        tensorstore.open({"driver": "zarr3", "kvstore": contender.below(place, f"{NAME}/{path}")["kvstore"]}, context=context)
        for path in paths
    ]
    return {path: tuple(array.result().shape) for path, array in zip(paths, opening, strict=True)}


def _documents(root: Path) -> Opened:
    """Every document is read and parsed, and nothing else."""
    found: Opened = {}
    for directory, _, names in os.walk(root):
        if "zarr.json" in names:
            document = json.loads(Path(directory, "zarr.json").read_bytes())
            if document["node_type"] == "array":
                found[os.path.relpath(directory, root)] = tuple(document["shape"])
    return found


async def _requests_alone(root: Path, seconds: float, counts: Counts) -> Opened:
    """A listing a level, all of it at once, then all documents, 64 at once."""
    slots = asyncio.Semaphore(64)

    async def request() -> None:
        counts.requests["requests"] += 1
        async with slots:
            await asyncio.sleep(seconds)

    found = _documents(root)
    await request()
    await asyncio.gather(*(request() for _ in {os.path.dirname(path) for path in found}))
    await asyncio.gather(*(request() for _ in found))
    return found


HIERARCHY = (
    Hierarchy(
        "hierarchy", "A hierarchy of 1,000 arrays opened", ("local", "latency", "s3"), (LIMITS[1], LIMITS[2], SHARDSTORE, ZARR, TENSORSTORE)
    ),
)
