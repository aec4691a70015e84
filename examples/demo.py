"""Store a real volume as plain chunks and as shards, read it in several ways, compare bit for bit, and count.

The volume is an MRI of a head, 197 × 233 × 189 voxels, in chunks of 16³. It is written twice: by zarr-python with one
object a chunk, and through shardstore with up to 64 chunks an object. It is then read back

- by zarr-python from the plain chunks,
- by plain zarr-python from the shards, as any Zarr v3 reader would, and
- through shardstore from the shards: through zarr, chunk by chunk through the transformer, and by URL alone, as any
  program does that speaks fsspec: zarr.open("sharded::s3://…").

    python examples/demo.py                                   # a temporary directory
    python examples/demo.py s3://bucket/prefix                # any place that fsspec can write to

Everything is written below a new directory of the given place, which is removed at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import fsspec
import numpy as np
import numpy.typing as npt
import zarr
from nifti import read_nifti
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import FsspecStore, LocalStore, WrapperStore

import shardstore
from shardstore.errors import ShardStoreError
from shardstore.opening.open import open_storage
from shardstore.testing.trace import TraceStorage

VOLUME = Path(__file__).parent / "data" / "mni_icbm152_t1_tal_nlin_sym_09a_converted.nii.gz"
NAME = "t1"
CHUNKS = (16, 16, 16)
CHUNKS_PER_SHARD = (4, 4, 4)

Selection = tuple[slice | int, ...]
SELECTIONS: dict[str, Selection] = {
    "the whole volume": (slice(None), slice(None), slice(None)),
    "one plane": (slice(None), slice(None), 94),
    "one chunk": (slice(96, 112), slice(112, 128), slice(80, 96)),
}


# ---------------------------------------------------------------------------------------------------- counting


@dataclass(slots=True)
class Cost:
    """What one step asked of the underlying storage, and how long it took."""

    requests: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    seconds: float = 0.0


class CountingStore(WrapperStore[Store]):
    """Any of zarr's own stores, with its requests and their bytes counted."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.cost = Cost()

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        self.cost.requests += 1
        value = await self._store.get(key, prototype, byte_range)
        self.cost.bytes_read += 0 if value is None else len(value)
        return value

    async def get_ranges(
        self, key: str, byte_ranges: Sequence[ByteRequest | None], **options: Any
    ) -> AsyncIterator[Sequence[tuple[int, Buffer | None]]]:
        # Newer zarr (3.1 has no such method) merges neighbouring ranges. The base class does so over `get`, where each
        # merged request counts; the wrapped store would do it out of sight.
        base: Any = Store
        async for batch in base.get_ranges(self, key, byte_ranges, **options):
            yield batch

    async def set(self, key: str, value: Buffer) -> None:
        self.cost.requests += 1
        self.cost.bytes_written += len(value)
        await self._store.set(key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        self.cost.requests += 1
        self.cost.bytes_written += len(value)
        await self._store.set_if_not_exists(key, value)

    async def delete(self, key: str) -> None:
        self.cost.requests += 1
        await self._store.delete(key)

    async def exists(self, key: str) -> bool:
        self.cost.requests += 1
        return await self._store.exists(key)

    def reset(self) -> None:
        self.cost = Cost()


def traced_cost(storage: TraceStorage) -> Cost:
    summary = storage.summary()
    return Cost(summary.requests, summary.bytes_read, summary.bytes_written)


# ---------------------------------------------------------------------------------------------------- places


@dataclass(frozen=True, slots=True)
class Place:
    """A new directory somewhere, for the two stores of the demo."""

    url: str
    storage_options: dict[str, Any]

    @property
    def is_local(self) -> bool:
        return "://" not in self.url

    def by_url_alone(self, name: str) -> tuple[str, dict[str, Any]]:
        """What a program that knows nothing of shardstore is given to open the directory ``name`` through it."""
        below = f"file://{self.url}" if self.is_local else self.url
        protocol = below.partition("://")[0]
        return f"sharded::{below}/{name}", {protocol: self.storage_options} if self.storage_options else {}

    def native_store(self, name: str, *, read_only: bool = False) -> CountingStore:
        """zarr-python's own store for the directory ``name``."""
        url = f"{self.url}/{name}"
        store: Store
        if self.is_local:
            store = LocalStore(url, read_only=read_only)
        else:
            store = FsspecStore.from_url(url, storage_options=self.storage_options, read_only=read_only)
        return CountingStore(store)

    def traced_storage(self, name: str) -> TraceStorage:
        """What shardstore calls underlying storage, for the directory ``name``."""
        return TraceStorage(open_storage(f"{self.url}/{name}", self.storage_options))

    def objects(self, name: str) -> dict[str, int]:
        """Every stored object with its size, as fsspec lists them; shardstore is not asked."""
        filesystem, root = fsspec.url_to_fs(f"{self.url}/{name}", **self.storage_options)
        filesystem.invalidate_cache()
        return {path: int(info["size"]) for path, info in filesystem.find(root, detail=True).items()}

    def contents(self, directory: str, prefix: str) -> dict[str, bytes]:
        """The bytes of every stored object below ``directory``, keyed by ``prefix`` and the rest of its path."""
        filesystem, root = fsspec.url_to_fs(f"{self.url}/{directory}", **self.storage_options)
        return {prefix + path.removeprefix(root): bytes(data) for path, data in filesystem.cat(filesystem.find(root)).items()}

    def remove(self) -> None:
        filesystem, root = fsspec.url_to_fs(self.url, **self.storage_options)
        filesystem.invalidate_cache()
        filesystem.rm(root, recursive=True)


@contextmanager
def new_place(url: str | None, storage_options: dict[str, Any], *, keep: bool) -> Iterator[Place]:
    """A directory of its own at ``url`` (default: among the temporary files), removed afterwards unless ``keep``."""
    base = url.removeprefix("file://").rstrip("/") if url else tempfile.gettempdir()
    if "://" not in base:
        base = str(Path(base).absolute())
    place = Place(f"{base}/shardstore-demo-{uuid.uuid4().hex[:8]}", storage_options)
    open_storage(place.url, storage_options)  # first of all: it says in one line what is wrong with a URL
    try:
        yield place
    finally:
        if keep:
            print(f"\nkept: {place.url}")
        else:
            place.remove()


# ---------------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True, slots=True)
class Row:
    step: str
    layout: str
    cost: Cost


def size(nbytes: int) -> str:
    if nbytes == 0:
        return "–"
    return f"{nbytes / 1e6:,.2f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:,.1f} kB"


def duration(seconds: float) -> str:
    """Milliseconds, or seconds from ten on."""
    return f"{seconds:,.1f} s" if seconds >= 10 else f"{seconds * 1e3:,.1f} ms"


def print_table(rows: list[Row]) -> None:
    print(f"\n{'':36}{'requests':>10}{'read':>13}{'written':>13}{'time':>11}")
    step = ""
    for row in rows:
        if row.step != step:
            step = row.step
            print(step)
        cost = row.cost
        columns = f"{cost.requests:>10,}{size(cost.bytes_read):>13}{size(cost.bytes_written):>13}{duration(cost.seconds):>11}"
        print(f"  {row.layout:34}{columns}")


# ---------------------------------------------------------------------------------------------------- the steps


def check(what: str, ok: bool) -> None:
    print(f"  {'ok' if ok else 'DIFFERENT':10}{what}")
    if not ok:
        sys.exit(f"the demo failed: {what}")


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def write_native(place: Place, volume: npt.NDArray[np.generic]) -> Row:
    store = place.native_store("plain.zarr")

    def write() -> None:
        array = zarr.create_array(store, name=NAME, shape=volume.shape, chunks=CHUNKS, dtype=volume.dtype)
        array[...] = volume

    seconds = timed(write)
    store.cost.seconds = seconds
    return Row("write the volume", "zarr-python, one object a chunk", store.cost)


def write_sharded(place: Place, volume: npt.NDArray[np.generic]) -> Row:
    storage = place.traced_storage("sharded.zarr")
    # Without the kernel both encode by one version of zstd, so that bytes can be compared.
    # adlfs, through which zarr-python alone reads below, cannot read the end of an object.
    location: Literal["start", "end"] = "start" if storage.kind == "azure" else "end"
    store = shardstore.open(storage, chunks_per_shard=CHUNKS_PER_SHARD, index_location=location, kernel=False)

    def write() -> None:
        array = zarr.create_array(store, name=NAME, shape=volume.shape, chunks=CHUNKS, dtype=volume.dtype)
        array[...] = volume

    seconds = timed(write)
    cost = traced_cost(storage)
    cost.seconds = seconds
    return Row("write the volume", "shardstore", cost)


def open_array(store: Store) -> zarr.Array[Any]:
    array = zarr.open_group(store, mode="r")[NAME]
    assert isinstance(array, zarr.Array)
    return array


def read_steps(place: Place, volume: npt.NDArray[np.generic]) -> list[Row]:
    """Each selection in three ways. Every reading starts cold: a new store, an array just opened."""
    rows = []
    for what, selection in SELECTIONS.items():
        for layout, directory in [("zarr-python, one object a chunk", "plain.zarr"), ("zarr-python, from the shards", "sharded.zarr")]:
            store = place.native_store(directory, read_only=True)
            array = open_array(store)
            store.reset()
            start = time.perf_counter()
            values = array[selection]
            store.cost.seconds = time.perf_counter() - start
            check(f"{what}: {layout}", np.array_equal(values, volume[selection]))
            rows.append(Row(f"read {what}", layout, store.cost))

        storage = place.traced_storage("sharded.zarr")
        array = open_array(shardstore.open(storage, read_only=True))
        storage.reset()
        start = time.perf_counter()
        values = array[selection]
        seconds = time.perf_counter() - start
        cost = traced_cost(storage)
        cost.seconds = seconds
        check(f"{what}: shardstore", np.array_equal(values, volume[selection]))
        rows.append(Row(f"read {what}", "shardstore", cost))
    return rows


def compare_chunks(place: Place) -> None:
    """Through the transformer's operations, the shards hold exactly the chunks that the plain store holds."""
    plain = place.contents(f"plain.zarr/{NAME}/c", f"{NAME}/c")
    transformer = shardstore.ShardingTransformer(f"{place.url}/sharded.zarr", storage_options=place.storage_options)

    keys = sorted(transformer.list_prefix(f"{NAME}/c/"))
    check(f"the transformer lists the same {len(plain):,} chunk keys", keys == sorted(plain))

    values = transformer.get_partial_values([(key, (0, None)) for key in keys])
    check("the transformer gives the same bytes for every chunk", all(v == plain[k] for k, v in zip(keys, values, strict=True)))

    key = max(plain, key=lambda k: len(plain[k]))
    check(f"get({key!r}) gives the same {len(plain[key]):,} bytes", transformer.get(key) == plain[key])
    parts = transformer.get_partial_values([(key, (0, 16)), (key, (100, 32)), ("t1/c/99/99/99", (0, 4))])
    check("ranges of a chunk, and a chunk that is not there", parts == [plain[key][:16], plain[key][100:132], None])


def read_by_url(place: Place, volume: npt.NDArray[np.generic]) -> None:
    """No shardstore in sight: a URL for zarr, and one for fsspec."""
    url, options = place.by_url_alone("sharded.zarr")
    array = zarr.open_group(url, mode="r", storage_options=options)[NAME]
    assert isinstance(array, zarr.Array)
    check(f"zarr.open({url.partition('::')[0] + '::…'!r}) reads the same volume", np.array_equal(array[...], volume))

    filesystem, root = fsspec.url_to_fs(url, **options)
    plain = place.contents(f"plain.zarr/{NAME}/c", f"{NAME}/c")
    found = {path.removeprefix(root + "/"): data for path, data in filesystem.cat(filesystem.find(f"{root}/{NAME}/c")).items()}
    check("fsspec finds the same files with the same bytes", found == plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", help="where to write; default: a temporary directory")
    parser.add_argument("--storage-options", type=json.loads, default={}, metavar="JSON", help="options for the fsspec filesystem")
    parser.add_argument("--keep", action="store_true", help="leave what was written")
    arguments = parser.parse_args()

    volume = read_nifti(VOLUME)
    print(f"{VOLUME.name}: {' × '.join(map(str, volume.shape))} voxels, {volume.dtype}, {volume.nbytes / 1e6:.1f} MB")
    print(f"shardstore {shardstore.__version__}, zarr-python {zarr.__version__}")

    with new_place(arguments.url, arguments.storage_options, keep=arguments.keep) as place:
        print(f"chunks of {CHUNKS}, shards of {CHUNKS_PER_SHARD} chunks, below {place.url}\n")
        rows = [write_native(place, volume), write_sharded(place, volume)]

        print("bit for bit:")
        rows += read_steps(place, volume)
        compare_chunks(place)
        read_by_url(place, volume)

        print_table(rows)
        print()
        for label, directory in [("one object a chunk", "plain.zarr"), ("shards", "sharded.zarr")]:
            sizes = place.objects(directory)
            print(f"{label:20}{len(sizes):>7,} objects {size(sum(sizes.values())):>12} stored")


if __name__ == "__main__":
    try:
        main()
    except ShardStoreError as error:
        sys.exit(f"demo: {error}")
