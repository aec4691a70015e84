"""The keys of a million chunks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from contenders import Address, Contender, OpenArray, Place, ShardStore, StorageName, TensorStore, ZarrPython, counted
from counting_s3 import Counts
from datasets import Form, Scale, make_grid
from field import SHARDSTORE, TENSORSTORE, ZARR, is_limit
from leanest import LIMITS
from shard_files import EMPTY, Layout, layout_of, shard_path

from workloads.workload import Arena, Extra, Task, Workload, checksum, made

NAME = "grid"


def lean_keys(array: Path, prefix: str) -> list[str]:
    """Indices are decoded, and of each chunk that is there its key is built: two dimensions."""
    layout = layout_of(array)
    rows, columns = layout.chunks_per_shard
    keys: list[str] = []
    for name in sorted(os.listdir(array / "c")):
        for number in sorted(os.listdir(array / "c" / name)):
            fd = os.open(shard_path(array, (int(name), int(number))), os.O_RDONLY)
            data = os.pread(fd, layout.index_nbytes, os.fstat(fd).st_size - layout.index_nbytes)
            os.close(fd)
            keys += _keys_of(layout, data, prefix, int(name) * rows, int(number) * columns)
    return keys


def _keys_of(layout: Layout, data: bytes, prefix: str, first_row: int, first_column: int) -> list[str]:
    rows, columns = layout.chunks_per_shard
    present = (layout.decode_index(data)[:, 0] != EMPTY).reshape(rows, columns)
    names = [str(first_column + i) for i in range(columns)]
    found: list[str] = []
    for row, there in enumerate(present):
        start = f"{prefix}/c/{first_row + row}/"
        if there.all():
            found += [start + name for name in names]
        else:
            found += [start + names[i] for i in there.nonzero()[0].tolist()]
    return found


@dataclass(frozen=True, slots=True)
class Mapped(Contender):
    """shardstore's mapping, which gives all keys in a list."""

    name: str = "shardstore, mapping"

    def open(self, address: Address) -> OpenArray:
        raise NotImplementedError("it lists")


@dataclass(frozen=True, slots=True)
class Listing(Workload):
    """As each can: zarr-python cannot say which chunks a shard has, tensorstore lists shard by shard and gives coordinates."""

    def make(self, root: Path, scale: Scale, storage: StorageName) -> None:
        made(root, NAME, make_grid, scale.grid)

    def prepare(self, arena: Arena) -> Task:
        contender, form = arena.contender, arena.scale.grid
        lister = _lister(contender, arena.place, arena.directory, form)
        found: list[Sequence[Any]] = []

        def run() -> None:
            found.append(lister.list())

        def facts() -> Extra:
            return {"operations": len(found[0]), "asked_nbytes": lister.shards * form.index_nbytes}

        return Task(run, lambda: checksum(["\n".join(sorted(map(lister.key_of, found[0]))).encode()]), lister.counts, facts)


@dataclass(frozen=True, slots=True)
class _Lister:
    list: Callable[[], Sequence[Any]]
    shards: int
    counts: Callable[[], Counts | None] = lambda: None
    key_of: Callable[[Any], str] = str


def _lister(contender: Contender, place: Place, directory: Path, form: Form) -> _Lister:
    shards = [(i, j) for i in range(form.shape[0] // form.shards[0]) for j in range(form.shape[1] // form.shards[1])]
    if isinstance(contender, ShardStore):
        store = contender.store(place)
        zarr.open_array(store, path=NAME, mode="r")
        return _Lister(lambda: asyncio.run(_chunk_keys(store)), len(shards), lambda: counted(store))
    if isinstance(contender, Mapped):
        mapping = SHARDSTORE.mapping(place)
        mapping[f"{NAME}/zarr.json"]
        prefix = f"{NAME}/c/"
        return _Lister(lambda: mapping.list_prefix(prefix), len(shards), lambda: counted(mapping))
    if isinstance(contender, TensorStore):
        return _Lister(lambda: _list_shards(contender, place, shards, form), len(shards), key_of=lambda c: f"{NAME}/c/{c[0]}/{c[1]}")
    if is_limit(contender.name) and place.endpoint is None and not place.latency_seconds:
        return _Lister(lambda: lean_keys(directory / NAME, NAME), len(shards))
    raise NotImplementedError("its interface has shards, not chunks" if isinstance(contender, ZarrPython) else "it is measured locally")


async def _chunk_keys(store: Any) -> list[str]:
    return [key async for key in store.list_prefix(f"{NAME}/c/")]


def _list_shards(contender: TensorStore, place: Place, shards: Sequence[tuple[int, int]], form: Form) -> list[tuple[int, int]]:
    """All shards at once; their keys are coordinates in the shard, four bytes each, and are given as those in the array."""
    import tensorstore

    context = tensorstore.Context()
    rows, columns = (s // c for s, c in zip(form.shards, form.chunks, strict=True))
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    below = contender.below(place, f"{NAME}/c")["kvstore"]
    member = "base_url" if below["driver"] == "http" else "path"
    listings = []
    for i, j in shards:
        base = {**below, member: f"{below[member]}{i}/{j}"}
        spec = {"driver": "zarr3_sharding_indexed", "base": base, "grid_shape": [rows, columns], "index_codecs": codecs}
        listings.append(tensorstore.KvStore.open(spec, context=context).result().list())
    found: list[tuple[int, int]] = []
    for (i, j), listing in zip(shards, listings, strict=True):
        local = np.frombuffer(b"".join(listing.result()), ">u4").reshape(-1, 2) + np.array([i * rows, j * columns])
        found += map(tuple, local.tolist())
    return found


LISTING = (
    Listing(
        "listing",
        "The keys of 10⁶ chunks of 100 shards",
        ("local", "latency", "s3"),
        (LIMITS[1], SHARDSTORE, Mapped(), ZARR, TENSORSTORE),
    ),
)
