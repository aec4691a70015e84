"""The arrays that the benchmark reads, and the sizes of everything, by scale: ``tiny`` for tests, ``quick``, ``full``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import zarr
from contenders import StorageName
from shard_files import Coords, layout_of, shard_path
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec
from zarr.core.buffer import default_buffer_prototype

Values = npt.NDArray[Any]
ScaleName = Literal["tiny", "quick", "full"]
CodecName = Literal["zstd", "blosc", "gzip", "raw"]
_COMPRESSORS: dict[CodecName, Any] = {
    "zstd": ZstdCodec(),
    "blosc": BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"),
    "gzip": GzipCodec(),
    "raw": None,
}
UNSHARDED = "-unsharded"
"""Ends the name of the copy of an array that has no shards."""


@dataclass(frozen=True, slots=True)
class Form:
    """Shape, chunks and shards of an array, in elements."""

    shape: Coords
    chunks: Coords
    shards: Coords
    dtype: str = "<u2"
    codec: CodecName = "zstd"

    @property
    def nbytes(self) -> int:
        """Decoded."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def chunk_nbytes(self) -> int:
        """Decoded."""
        return prod(self.chunks) * np.dtype(self.dtype).itemsize

    @property
    def chunks_per_shard(self) -> int:
        return prod(self.shards) // prod(self.chunks)

    @property
    def index_nbytes(self) -> int:
        """Of one shard: 16 bytes a chunk, and a checksum."""
        return 16 * self.chunks_per_shard + 4

    def boxes(self, shape: Coords) -> Iterator[tuple[slice, ...]]:
        """The boxes of this shape that the array is divided into."""
        for corner in product(*(range(-(-n // s)) for n, s in zip(self.shape, shape, strict=True))):
            yield tuple(slice(i * s, min((i + 1) * s, n)) for i, s, n in zip(corner, shape, self.shape, strict=True))


@dataclass(frozen=True, slots=True)
class Scale:
    """How large everything is, and how often it is measured."""

    name: ScaleName
    volume: Form
    """Read and written whole, in planes and in boxes, on a local disk."""
    slab: Form
    """Its planes and boxes are read over a network."""
    tiles: Form
    """Many small shards: read whole and in planes over a network, where the requests take longer than the codecs."""
    many_tiles: Form
    """More of them, so that what is done once a selection matters less."""
    pages: Form
    """Short raw chunks, read one by one and in batches."""
    stack: Form
    """Of one shard, written in layers, or chunk by chunk."""
    tall_stack: Form
    """Of one larger shard of as many chunks, written chunk by chunk."""
    block: Form
    """One large raw shard, of which single chunks are replaced."""
    grid: Form
    """A million chunks of one byte, to be listed."""
    cube: Form
    """Read and written beside one another in one process, with each codec."""
    sheets: Form
    """Larger, so that a plane has many chunks; its planes are read likewise."""
    coarse_sheets: Form
    """The same of chunks that are eight times as large."""
    distant: Form
    """Its chunks are read one by one from S3."""
    public: Form
    """The array of the public ``zarrs/zarr_benchmarks``, in its chunks, which are shards where there are inner ones: with 1,024 elements
    along each dimension as there in ``full``."""
    arrays: int
    """In the hierarchy that is opened."""
    updates: int
    """Of single chunks of the block, one by one; of those who rewrite the shard for each, ``slow_updates``."""
    slow_updates: int
    single_reads: int
    """Of chunks, one by one; over a network ``remote_reads``."""
    remote_reads: int
    batches: int
    """Of 1,000 chunks; over a network ``remote_batches``."""
    remote_batches: int
    boxes: int
    rounds: dict[StorageName, int]
    update_rounds: int
    """Of those with the block, in which bytes matter more than seconds."""
    turns: int
    """Of contenders beside one another in one process; ``peer_turns`` of those that no bar is set for."""
    peer_turns: int
    public_turns: int
    """Of each contender with the public array."""


SCALES: dict[ScaleName, Scale] = {
    "tiny": Scale(
        "tiny",
        volume=Form((32, 64, 64), (16, 16, 16), (32, 32, 32)),
        slab=Form((32, 64, 64), (16, 16, 16), (32, 32, 32)),
        tiles=Form((32, 32, 64), (16, 16, 16), (16, 16, 32)),
        many_tiles=Form((32, 64, 64), (16, 16, 16), (16, 16, 32)),
        pages=Form((64 * 1024,), (1024,), (16 * 1024,), "|u1", codec="raw"),
        stack=Form((32, 32, 32), (8, 16, 16), (32, 32, 32)),
        tall_stack=Form((64, 32, 32), (16, 16, 16), (64, 32, 32)),
        block=Form((128 * 1024,), (1024,), (128 * 1024,), codec="raw"),
        grid=Form((40, 40), (1, 1), (20, 20), "|u1", codec="raw"),
        cube=Form((64, 64, 64), (16, 16, 16), (32, 32, 32)),
        sheets=Form((64, 64, 64), (16, 16, 16), (32, 32, 32)),
        coarse_sheets=Form((64, 64, 64), (32, 32, 32), (64, 64, 64)),
        distant=Form((64, 32, 32), (16, 16, 16), (32, 32, 32)),
        public=Form((64, 64, 64), (16, 16, 16), (32, 32, 32)),
        arrays=6,
        updates=4,
        slow_updates=2,
        single_reads=20,
        remote_reads=4,
        batches=2,
        remote_batches=1,
        boxes=2,
        rounds={"local": 1, "latency": 1, "s3": 1, "far s3": 1},
        update_rounds=1,
        turns=2,
        peer_turns=1,
        public_turns=2,
    ),
    "quick": Scale(
        "quick",
        volume=Form((128, 512, 512), (32, 32, 32), (64, 256, 256)),
        slab=Form((128, 256, 512), (32, 32, 32), (64, 128, 256)),
        tiles=Form((256, 256, 256), (16, 16, 32), (32, 32, 64)),
        many_tiles=Form((512, 512, 256), (16, 16, 32), (32, 32, 64)),
        pages=Form((64 * 2**20,), (4096,), (16 * 2**20,), "|u1", codec="raw"),
        stack=Form((128, 128, 256), (16, 32, 32), (128, 128, 256)),
        tall_stack=Form((512, 256, 256), (64, 32, 64), (512, 256, 256)),
        block=Form((128 * 2**20,), (32 * 1024,), (128 * 2**20,), codec="raw"),
        grid=Form((1000, 1000), (1, 1), (100, 100), "|u1", codec="raw"),
        cube=Form((256, 256, 256), (32, 32, 32), (128, 128, 128)),
        sheets=Form((256, 512, 512), (32, 32, 32), (128, 128, 128)),
        coarse_sheets=Form((256, 512, 512), (64, 64, 64), (256, 256, 256)),
        distant=Form((512, 256, 256), (32, 32, 32), (128, 128, 128)),
        public=Form((512, 512, 512), (64, 64, 64), (256, 256, 256)),
        arrays=1000,
        updates=100,
        slow_updates=4,
        single_reads=2000,
        remote_reads=24,
        batches=9,
        remote_batches=1,
        boxes=8,
        rounds={"local": 3, "latency": 3, "s3": 1, "far s3": 1},
        update_rounds=1,
        turns=24,
        peer_turns=6,
        public_turns=7,
    ),
    "full": Scale(
        "full",
        volume=Form((512, 1024, 1024), (32, 32, 32), (128, 256, 256)),
        slab=Form((256, 512, 512), (32, 32, 32), (64, 128, 256)),
        tiles=Form((512, 512, 256), (16, 16, 32), (32, 32, 64)),
        many_tiles=Form((512, 512, 256), (16, 16, 32), (32, 32, 64)),
        pages=Form((512 * 2**20,), (4096,), (16 * 2**20,), "|u1", codec="raw"),
        stack=Form((128, 128, 256), (16, 32, 32), (128, 128, 256)),
        tall_stack=Form((512, 256, 256), (64, 32, 64), (512, 256, 256)),
        block=Form((128 * 2**20,), (32 * 1024,), (128 * 2**20,), codec="raw"),
        grid=Form((1000, 1000), (1, 1), (100, 100), "|u1", codec="raw"),
        cube=Form((256, 256, 256), (32, 32, 32), (128, 128, 128)),
        sheets=Form((256, 512, 512), (32, 32, 32), (128, 128, 128)),
        coarse_sheets=Form((256, 512, 512), (64, 64, 64), (256, 256, 256)),
        distant=Form((512, 256, 256), (32, 32, 32), (128, 128, 128)),
        public=Form((1024, 1024, 1024), (64, 64, 64), (256, 256, 256)),
        arrays=1000,
        updates=100,
        slow_updates=100,
        single_reads=10_000,
        remote_reads=100,
        batches=20,
        remote_batches=5,
        boxes=32,
        rounds={"local": 7, "latency": 5, "s3": 5, "far s3": 5},
        update_rounds=3,
        turns=60,
        peer_turns=12,
        public_turns=7,
    ),
}


# -- contents ----------------------------------------------------------------------------------------------------------


def contents(form: Form, seed: int = 0) -> Values:
    """A smooth field with noise, as instruments give it; of what is stored raw, noise."""
    rng = np.random.default_rng(seed)
    if form.codec == "raw":
        return rng.integers(0, 2 ** (8 * np.dtype(form.dtype).itemsize), form.shape, form.dtype)
    axes = np.ogrid[tuple(slice(0, 6, n * 1j) for n in form.shape)]
    smooth = sum(np.sin(axis + i) for i, axis in enumerate(axes)) * 300 + 1000
    noise = rng.integers(0, 16, form.shape, np.uint8)  # gives a half of the size of uint16, about
    values: Values = (smooth + noise).astype(form.dtype)
    return values


# -- what lies below a root --------------------------------------------------------------------------------------------


def create(root: Path | str, name: str, form: Form, *, sharded: bool = True, store: Any = None) -> zarr.Array[Any]:
    """An array without chunks, as zarr-python creates it; below the root, or in a store of zarr-python's."""
    return zarr.create_array(
        str(root) if store is None else store,
        name=name,
        shape=form.shape,
        chunks=form.chunks,
        shards=form.shards if sharded else None,
        dtype=form.dtype,
        compressors=_COMPRESSORS[form.codec],
        fill_value=0,
        zarr_format=3,
    )


def make(root: Path, name: str, form: Form, *, unsharded: bool = False) -> None:
    """An array with ``contents``, and on demand its copy without shards."""
    values = contents(form)
    create(root, name, form)[...] = values
    if unsharded:
        create(root, name + UNSHARDED, form, sharded=False)[...] = values


def make_raw(root: Path, name: str, form: Form) -> None:
    """The same of one dimension and raw chunks, without a call for each of them."""
    create(root, name, form)
    layout = layout_of(root / name)
    data = contents(form).view("u1")
    (per_shard,) = layout.chunks_per_shard
    step = per_shard * form.chunk_nbytes
    index = np.column_stack([np.arange(per_shard, dtype="u8") * form.chunk_nbytes, np.full(per_shard, form.chunk_nbytes, "u8")])
    for number in range(len(data) // step):
        path = shard_path(root / name, (number,))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data[number * step : (number + 1) * step].tobytes() + layout.encode_index(index))


def make_grid(root: Path, name: str, form: Form) -> None:
    """All chunks of one byte each."""
    create(root, name, form)
    layout = layout_of(root / name)
    count = prod(layout.chunks_per_shard)
    index = np.column_stack([np.arange(count, dtype="u8"), np.ones(count, "u8")])
    body = bytes(i % 255 + 1 for i in range(count)) + layout.encode_index(index)
    for shard in product(*(range(n // s) for n, s in zip(form.shape, form.shards, strict=True))):
        path = shard_path(root / name, shard)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)


def make_hierarchy(root: Path, name: str, arrays: int) -> None:
    """Sharded arrays without chunks, fifty a group."""
    form = Form((1024, 1024), (64, 64), (512, 512))
    group = zarr.create_group(str(root), path=name, zarr_format=3)
    (root / name / "g0").mkdir()
    first = create(root, f"{name}/g0/a0", form)
    document = first.metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"].to_bytes()
    plain = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": dict(group.attrs)})
    for number in range(arrays):
        path = root / name / f"g{number // 50}" / f"a{number}"
        path.mkdir(parents=True, exist_ok=True)
        (path / "zarr.json").write_bytes(document)
        (path.parent / "zarr.json").write_text(plain)


def warm(root: Path) -> None:
    """Read all files below a root into the page cache."""
    for directory, _, names in os.walk(root):
        for name in names:
            Path(directory, name).read_bytes()
