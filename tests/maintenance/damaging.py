"""Healthy hierarchies, drawn at random, and one fault each that is injected into them.

What must be found is told by a second reader (``tests.shards``), which knows nothing of the code under test.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

import shardstore
from tests.shards import MISSING, Sharding, crc32c, encode_index, index_entries, sharded_arrays
from tests.stored import Objects, document

COMPRESSORS: dict[str, list[Any] | None] = {
    "raw": None,
    "crc": [Crc32cCodec()],
    "zstd": [ZstdCodec(level=1)],
    "zstd+crc": [ZstdCodec(level=1), Crc32cCodec()],
    "blosc": [BloscCodec(cname="lz4")],
    "gzip": [GzipCodec(level=1)],
}


@dataclass
class Hierarchy:
    """A stored hierarchy, the sharded arrays in it, and what their chunks are made by."""

    objects: Objects
    layouts: dict[str, Sharding]
    codecs: dict[str, str]
    itemsizes: dict[str, int]

    def shards(self, path: str) -> list[str]:
        """The keys of an array's shards."""
        return [key for key in self.objects.keys() if key.startswith(path + "/") and self.layouts[path].coords(key) is not None]  # noqa: SIM118

    def chunk_nbytes(self, path: str) -> int | None:
        """Of every encoded chunk, where they are all alike."""
        if self.codecs[path] not in ("raw", "crc"):
            return None
        nbytes = int(np.prod(self.layouts[path].chunk_shape)) * self.itemsizes[path]
        return nbytes + (4 if self.codecs[path] == "crc" else 0)

    def has_chunk_checksums(self, path: str) -> bool:
        return self.codecs[path].endswith("crc")

    def get(self, key: str) -> bytes:
        data = self.objects.get(key)
        assert data is not None
        return data


def make_healthy(target: Any, objects: Objects, rng: random.Random, fixed: dict[str, Any] | None = None) -> Hierarchy:
    """A group with two sharded arrays of random shapes, an array that is not sharded, and attributes."""
    given: dict[str, Any] = {"storage_options": fixed, "fsync": False}
    root = zarr.open_group(shardstore.open(target, chunks_per_shard=None, **given), mode="w")
    root.attrs["made"] = "for this test"
    codecs: dict[str, str] = {}
    itemsizes: dict[str, int] = {}
    for name in ("a", "g/b"):
        ndim = rng.choice((1, 2, 2, 3))
        per_shard = (*(rng.randint(1, 4) for _ in range(ndim - 1)), rng.randint(2, 4))
        chunk = tuple(rng.randint(1, 4) for _ in range(ndim))
        shape = tuple(rng.randint(1, 3 * c * p) for c, p in zip(chunk, per_shard, strict=True))
        dtype = rng.choice(("u1", "i2", "f4", "f8"))
        codecs[name] = rng.choice(list(COMPRESSORS))
        store = shardstore.open(
            target,
            chunks_per_shard={name: per_shard, "*": None},
            index_location=rng.choice(("start", "end")),
            index_checksum=rng.random() < 0.5,
            **given,
        )
        array = zarr.open_group(store, mode="a").create_array(
            name, shape=shape, chunks=chunk, dtype=dtype, compressors=COMPRESSORS[codecs[name]] or (), filters=None, fill_value=0
        )
        itemsizes[name] = np.dtype(dtype).itemsize
        numbers = np.random.default_rng(rng.getrandbits(32))
        values = numbers.integers(1, 200, shape).astype(dtype)
        if rng.random() < 0.5:
            values[numbers.random(shape) < 0.4] = 3
        region = tuple(slice(0, rng.randint(1, n)) for n in shape)
        array[region] = values[region]
    plain = root.create_array("plain", shape=(6,), chunks=(2,), dtype="i4", compressors=None)
    plain[:4] = [1, 2, 3, 4]
    return Hierarchy(objects, sharded_arrays(objects), codecs, itemsizes)


@dataclass(frozen=True)
class Injected:
    """What was done, and what has to be found: some finding of one of ``kinds`` at ``key``, or, where ``must`` is ``False``, no error."""

    fault: str
    key: str
    kinds: frozenset[str] = frozenset()
    must: bool = True


INDEX = frozenset({"index", "entry", "entry-in-index", "chunk-size"})
CHUNK = frozenset({"chunk-checksum", "chunk-header"})


def is_nonsense(hierarchy: Hierarchy, path: str, key: str, shard: bytes) -> bool:
    """Whether a reader that knows the formats, and nothing of what was there before, can know that a shard is damaged."""
    layout = hierarchy.layouts[path]
    if len(shard) < layout.index_nbytes:
        return True
    try:
        entries = index_entries(layout, shard)
    except AssertionError:
        return True
    start = len(shard) - layout.index_nbytes if layout.index_at_end else 0
    for offset, nbytes in entries:
        if offset == nbytes == MISSING:
            continue
        end = offset + nbytes
        if end > len(shard) or (nbytes and offset < start + layout.index_nbytes and end > start):
            return True
        if hierarchy.chunk_nbytes(path) not in (None, nbytes):
            return True
        if hierarchy.has_chunk_checksums(path) and not has_right_checksum(shard[offset:end]):
            return True
    return False


def has_right_checksum(chunk: bytes) -> bool:
    return len(chunk) >= 4 and crc32c(chunk[:-4]) == int.from_bytes(chunk[-4:], "little")


def some_shard(hierarchy: Hierarchy, rng: random.Random) -> tuple[str, str]:
    """An array's path, and the key of one of its shards."""
    path = rng.choice([path for path in sorted(hierarchy.layouts) if hierarchy.shards(path)])
    return path, rng.choice(hierarchy.shards(path))


def replaced(hierarchy: Hierarchy, fault: str, path: str, key: str, shard: bytes) -> Injected:
    """Put other bytes in a shard's place: they have to be found where they are nonsense, and may be found by a header elsewhere."""
    hierarchy.objects.put(key, shard)
    return Injected(fault, key, INDEX | CHUNK, is_nonsense(hierarchy, path, key, shard))


def flip(data: bytes, at: int, rng: random.Random) -> bytes:
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


# -- faults ------------------------------------------------------------------------------------------------------------


def index_byte_flipped(hierarchy: Hierarchy, rng: random.Random) -> Injected:
    path, key = some_shard(hierarchy, rng)
    layout, shard = hierarchy.layouts[path], hierarchy.get(key)
    at = rng.randrange(layout.index_nbytes) + (len(shard) - layout.index_nbytes if layout.index_at_end else 0)
    injected = replaced(hierarchy, "index byte flipped", path, key, flip(shard, at, rng))
    assert injected.must or not layout.checksum  # with a checksum every one is found
    return injected


def truncated(hierarchy: Hierarchy, rng: random.Random) -> Injected:
    path, key = some_shard(hierarchy, rng)
    shard = hierarchy.get(key)
    injected = replaced(hierarchy, "truncated", path, key, shard[: rng.randrange(len(shard))])
    layout = hierarchy.layouts[path]
    assert injected.must or not (layout.checksum and layout.index_at_end)
    assert injected.must or layout.index_at_end  # the last chunk ends at the end of a healthy shard
    return injected


def trailing_garbage(hierarchy: Hierarchy, rng: random.Random) -> Injected:
    path, key = some_shard(hierarchy, rng)
    injected = replaced(hierarchy, "trailing garbage", path, key, hierarchy.get(key) + rng.randbytes(rng.randint(1, 40)))
    if hierarchy.layouts[path].index_at_end:
        assert injected.must or not hierarchy.layouts[path].checksum
        return injected
    return replace(injected, kinds=frozenset({"dead"}), must=True)  # valid where the index is at the start, and noted


def _with_entry(hierarchy: Hierarchy, rng: random.Random, fault: str, entry: Callable[[int], tuple[int, int]]) -> Injected:
    path, key = some_shard(hierarchy, rng)
    layout, shard = hierarchy.layouts[path], hierarchy.get(key)
    entries = index_entries(layout, shard)
    entries[rng.randrange(len(entries))] = entry(len(shard))
    index = encode_index(layout, entries)
    body = shard[: -len(index)] + index if layout.index_at_end else index + shard[len(index) :]
    hierarchy.objects.put(key, body)
    return Injected(fault, key, frozenset({"entry"}))


def entry_past_the_end(hierarchy: Hierarchy, rng: random.Random) -> Injected:
    def entry(nbytes: int) -> tuple[int, int]:
        offset = rng.randrange(nbytes)
        return offset, nbytes - offset + rng.randint(1, 2 ** rng.randint(1, 62))

    return _with_entry(hierarchy, rng, "entry past the end", entry)


def wrapped_offset(hierarchy: Hierarchy, rng: random.Random) -> Injected:
    def entry(nbytes: int) -> tuple[int, int]:
        back = rng.randint(2, 2**40)
        return 2**64 - back, back + rng.randrange(nbytes)

    return _with_entry(hierarchy, rng, "wrapped offset", entry)


def half_empty_entry(hierarchy: Hierarchy, rng: random.Random) -> Injected:
    some = rng.randrange(100)
    return _with_entry(hierarchy, rng, "half-empty entry", lambda nbytes: (MISSING, some) if rng.random() < 0.5 else (some, MISSING))


def chunk_bytes_flipped(hierarchy: Hierarchy, rng: random.Random) -> Injected:
    path, key = some_shard(hierarchy, rng)
    layout, shard = hierarchy.layouts[path], hierarchy.get(key)
    offset, nbytes = rng.choice([entry for entry in index_entries(layout, shard) if entry[0] != MISSING])
    hierarchy.objects.put(key, flip(shard, offset + rng.randrange(nbytes), rng))
    return Injected("chunk bytes flipped", key, frozenset({"chunk-checksum"}), hierarchy.has_chunk_checksums(path))


def another_shard_shape(hierarchy: Hierarchy, rng: random.Random) -> Injected:
    """Without a checksum of the index, found where one of the array's shards is nonsense under the new shape."""
    path, key = some_shard(hierarchy, rng)
    name = f"{path}/zarr.json"
    stored = document(hierarchy.objects, name)
    chunk_shape = stored["chunk_grid"]["configuration"]["chunk_shape"]
    inner = hierarchy.layouts[path].chunk_shape
    axis = rng.randrange(len(inner))
    old = chunk_shape[axis]
    while chunk_shape[axis] == old:
        chunk_shape[axis] = inner[axis] * rng.randint(1, 6)
    hierarchy.objects.put(name, json.dumps(stored).encode())
    now = replace(hierarchy, layouts=sharded_arrays(hierarchy.objects))
    bad = [key for key in now.shards(path) if is_nonsense(now, path, key, now.get(key))]
    assert bad or not now.layouts[path].checksum
    return Injected("another shard shape in the metadata", bad[0] if bad else key, INDEX | CHUNK, bool(bad))


def stray_object(hierarchy: Hierarchy, rng: random.Random) -> Injected:
    key = rng.choice(["notes.txt", "a/notes.txt", "g/b/c/readme", "plain/c/0/0/0/0/0", "g/2024/01.log", "a/c.bak", "g/zarr.json.old"])
    hierarchy.objects.put(key, b"something")
    return Injected("stray object", key, frozenset({"stray"}))


def metadata_not_json(hierarchy: Hierarchy, rng: random.Random) -> Injected:
    key = rng.choice(["zarr.json", "a/zarr.json", "g/zarr.json", "g/b/zarr.json", "plain/zarr.json"])
    data = hierarchy.get(key)
    spoiled = rng.choice([data[: rng.randrange(len(data) - 1)], b"", b"\xff" + data, data.replace(b":", b"=", 1), b"[]", data + b"}"])
    hierarchy.objects.put(key, spoiled)
    return Injected("metadata that is not JSON", key, frozenset({"not-json"}))


CONTRADICTIONS: dict[str, Callable[[dict[str, Any]], object]] = {
    "chunk grid of another rank": lambda d: d["chunk_grid"]["configuration"]["chunk_shape"].append(1),
    "shape of another rank": lambda d: d["shape"].append(7),
    "negative shape": lambda d: d["shape"].__setitem__(0, -1),
    "no chunk grid": lambda d: d.pop("chunk_grid"),
    "no codecs": lambda d: d.pop("codecs"),
    "no data type": lambda d: d.pop("data_type"),
    "no fill value": lambda d: d.pop("fill_value"),
    "empty codecs": lambda d: d.__setitem__("codecs", []),
    "fill value of another type": lambda d: d.__setitem__("fill_value", "red"),
    "fill value out of range": lambda d: d.update(data_type="uint8", fill_value=256),
    "zero chunk": lambda d: d["chunk_grid"]["configuration"]["chunk_shape"].__setitem__(0, 0),
    "names of another rank": lambda d: d.__setitem__("dimension_names", ["x"] * (len(d["shape"]) + 1)),
    "attributes that are a list": lambda d: d.__setitem__("attributes", []),
    "another node type": lambda d: d.__setitem__("node_type", "arrray"),
    "another format": lambda d: d.__setitem__("zarr_format", 4),
    "two codecs that make bytes": lambda d: d["codecs"].append({"name": "bytes", "configuration": {"endian": "little"}}),
    "codecs in the wrong order": lambda d: d["codecs"].insert(0, {"name": "crc32c"}),
}

SHARDED_CONTRADICTIONS: dict[str, Callable[[dict[str, Any]], object]] = {
    "shard shape not divisible": lambda d: d["chunk_grid"]["configuration"]["chunk_shape"].__setitem__(
        0, d["codecs"][0]["configuration"]["chunk_shape"][0] * 2 + 1 if d["codecs"][0]["configuration"]["chunk_shape"][0] > 1 else 0
    ),
    "inner chunk of another rank": lambda d: d["codecs"][0]["configuration"]["chunk_shape"].append(1),
    "no inner codecs": lambda d: d["codecs"][0]["configuration"].pop("codecs"),
    "no index codecs": lambda d: d["codecs"][0]["configuration"].pop("index_codecs"),
    "an impossible index location": lambda d: d["codecs"][0]["configuration"].__setitem__("index_location", "middle"),
    "inner codecs in the wrong order": lambda d: d["codecs"][0]["configuration"]["codecs"].insert(0, {"name": "crc32c"}),
}


def metadata_contradicts_itself(hierarchy: Hierarchy, rng: random.Random) -> Injected:
    path = rng.choice(["a", "g/b", "plain"])
    kinds = CONTRADICTIONS if path == "plain" else CONTRADICTIONS | SHARDED_CONTRADICTIONS
    name = rng.choice(sorted(kinds))
    key = f"{path}/zarr.json"
    stored = document(hierarchy.objects, key)
    kinds[name](stored)
    hierarchy.objects.put(key, json.dumps(stored).encode())
    return Injected(f"metadata that contradicts itself: {name}", key, frozenset({"contradiction"}))


# -- faults that a census shows --------------------------------------------------------------------------------------------

Census = Literal["", "index", "contents"]
"""What the hierarchy is verified against: no census, one of indexes, or one of whole objects."""

OUT_OF_PLACE = INDEX | CHUNK | {"misplaced", "changed", "missing", "outside"}


def _index_of(layout: Sharding, shard: bytes) -> bytes:
    return shard[-layout.index_nbytes :] if layout.index_at_end else shard[: layout.index_nbytes]


def _put_elsewhere(hierarchy: Hierarchy, fault: str, path: str, key: str, shard: bytes, against: Census) -> Injected:
    layout, old = hierarchy.layouts[path], hierarchy.objects.get(key)
    coords = layout.coords(key)
    assert coords is not None
    must = is_nonsense(hierarchy, path, key, shard)
    if any(c * n >= g for c, n, g in zip(coords, layout.chunks_per_shard, layout.grid_shape, strict=True)):
        must = True
    elif against == "contents" and old is not None:
        must = must or old != shard
    elif against == "index" and old is not None:
        must = must or (_index_of(layout, old), len(old)) != (_index_of(layout, shard), len(shard))
    hierarchy.objects.put(key, shard)
    return Injected(fault, key, OUT_OF_PLACE, must)


def shard_under_a_wrong_key(hierarchy: Hierarchy, rng: random.Random, against: Census) -> Injected:
    path, key = some_shard(hierarchy, rng)
    layout = hierarchy.layouts[path]
    others = [other for other in hierarchy.shards(path) if other != key]
    beyond = layout.key(tuple(-(-g // n) + rng.randrange(3) for g, n in zip(layout.grid_shape, layout.chunks_per_shard, strict=True)))
    target = rng.choice([*others, beyond])
    shard = hierarchy.get(key)
    if rng.random() < 0.5:
        hierarchy.objects.delete(key)
        if against:
            hierarchy.objects.put(target, shard)
            return Injected("shard under a wrong key", key, frozenset({"missing"}))
    return _put_elsewhere(hierarchy, "shard under a wrong key", path, target, shard, against)


def shard_of_another_array(hierarchy: Hierarchy, rng: random.Random, against: Census) -> Injected:
    path, key = some_shard(hierarchy, rng)
    (other,) = set(hierarchy.layouts) - {path}
    sources = hierarchy.shards(other)
    shard = hierarchy.get(rng.choice(sources)) if sources else b""
    return _put_elsewhere(hierarchy, "shard of another array", path, key, shard, against)


def missing_shard(hierarchy: Hierarchy, rng: random.Random, against: Census) -> Injected:
    _, key = some_shard(hierarchy, rng)
    hierarchy.objects.delete(key)
    return Injected("missing shard", key, frozenset({"missing"}), bool(against))


# -- what dead writers leave, on disks and on S3 ---------------------------------------------------------------------------


def leftover_file(root: Path, rng: random.Random) -> Injected:
    """A temporary file, or a lock file, beside some object."""
    beside = rng.choice([path for path in sorted(root.rglob("*")) if path.is_file()])
    random_part = f"{rng.getrandbits(24):06x}-{rng.randint(2, 99999)}.{rng.getrandbits(48):012x}"
    is_lock = rng.random() < 0.5
    name = f".{beside.name}.shardstore-lock" if is_lock else f".{beside.name}.{random_part}.shardstore-tmp"
    path = beside.with_name(name)
    path.write_bytes(b"" if is_lock else beside.read_bytes()[: rng.randrange(50)])
    return Injected("leftover temporary or lock file", path.relative_to(root).as_posix(), frozenset({"lock" if is_lock else "temporary"}))


def unfinished_upload(fs: Any, url: str, hierarchy: Hierarchy, rng: random.Random) -> Injected:
    """Of an object that exists, or of one that does not."""
    key = rng.choice([*hierarchy.objects.keys(), "a/c/9/9", "g/new"])
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    fs.call_s3("create_multipart_upload", Bucket=bucket, Key=f"{prefix}/{key}")
    return Injected("unfinished multipart upload", key, frozenset({"upload"}))


BESIDE_A_CENSUS = [shard_under_a_wrong_key, shard_of_another_array, missing_shard]

FAULTS = [
    index_byte_flipped,
    truncated,
    trailing_garbage,
    entry_past_the_end,
    wrapped_offset,
    half_empty_entry,
    chunk_bytes_flipped,
    another_shard_shape,
    stray_object,
    metadata_not_json,
    metadata_contradicts_itself,
]
