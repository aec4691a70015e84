"""What a survey counts, against what a second reader of the stored objects finds."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.engine.engine import Engine
from shardstore.errors import Conflict, NotFound
from shardstore.maintenance.survey.run import ArraySurvey, Survey, Usage, survey
from shardstore.model.generation import UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Found, Read, ReadOutcome
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests.shards import MISSING, Sharding, encode_index, index_entries, sharded_arrays
from tests.stored import Objects, StorageObjects, document, on_io_loop

pytestmark = [pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")]


def surveyed(storage: Any, path: str = "", **options: Any) -> Survey:
    return on_io_loop(survey(Engine(storage), path, **options))


def array_of(found: Survey, path: str) -> ArraySurvey:
    (array,) = (a for a in found.arrays if a.path == path)
    return array


def usage_of(found: Survey, path: str) -> Usage:
    usage = array_of(found, path).usage
    assert usage is not None
    return usage


def truth(objects: Objects, layout: Sharding) -> dict[str, int]:
    """Objects, chunks and bytes of one sharded array, by marking every byte of every shard."""
    sums = dict.fromkeys(("objects", "stored_nbytes", "chunks", "chunk_nbytes", "dead_nbytes", "chunks_outside"), 0)
    for key in objects.keys():  # noqa: SIM118 - no mapping
        coords = layout.coords(key)
        if coords is None:
            continue
        shard = objects.get(key)
        assert shard is not None
        used = bytearray(len(shard))
        at = len(shard) - layout.index_nbytes if layout.index_at_end else 0
        used[at : at + layout.index_nbytes] = b"\1" * layout.index_nbytes
        for slot, (offset, nbytes) in enumerate(index_entries(layout, shard)):
            if (offset, nbytes) == (MISSING, MISSING):
                continue
            used[offset : offset + nbytes] = b"\1" * nbytes
            inside = np.unravel_index(slot, layout.chunks_per_shard)
            chunk = [c * p + int(i) for c, p, i in zip(coords, layout.chunks_per_shard, inside, strict=True)]
            is_inside = all(c < g for c, g in zip(chunk, layout.grid_shape, strict=True))
            sums["chunks" if is_inside else "chunks_outside"] += 1
            sums["chunk_nbytes"] += nbytes if is_inside else 0
        is_inside = all(c * p < g for c, p, g in zip(coords, layout.chunks_per_shard, layout.grid_shape, strict=True))
        sums["objects"] += is_inside
        sums["stored_nbytes"] += len(shard)
        sums["dead_nbytes"] += used.count(0)
    return sums


def matches(objects: Objects, found: Survey, path: str) -> Usage:
    usage = usage_of(found, path)
    expected = truth(objects, sharded_arrays(objects)[path])
    assert {name: getattr(usage, name) for name in expected} == expected
    return usage


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage(f"/survey-{uuid.uuid4().hex}")


@pytest.fixture
def objects(storage: MemoryStorage) -> StorageObjects:
    return StorageObjects(storage)


def make(storage: Any, **options: Any) -> zarr.Group:
    """A group with a half-filled sharded array, a whole one in a group, and a small one that is not sharded."""
    policy = {"ct": (2, 3), "scans/pt": (4,), "*": None}
    root = zarr.open_group(shardstore.open(storage, chunks_per_shard=policy, **options), mode="w")
    ct = root.create_array("ct", shape=(30, 35), chunks=(5, 5), dtype="u2", fill_value=0)
    ct[:12, :] = np.random.default_rng(0).integers(1, 9999, (12, 35), dtype="u2")
    pt = root.create_group("scans").create_array("pt", shape=(40,), chunks=(4,), dtype="f4", compressors=None)
    pt[...] = np.arange(40, dtype="f4") + 1
    time = root.create_array("time", shape=(6,), chunks=(2,), dtype="i8", compressors=None)
    time[:4] = [1, 2, 3, 4]
    return root


@pytest.mark.parametrize("index_location", ["start", "end"])
@pytest.mark.parametrize("index_checksum", [True, False])
def test_counts_are_those_of_the_stored_objects(
    storage: MemoryStorage, objects: StorageObjects, index_location: str, index_checksum: bool
) -> None:
    make(storage, index_location=index_location, index_checksum=index_checksum)
    found = surveyed(storage)
    assert (found.kind, found.groups, [a.path for a in found.arrays]) == ("group", 2, ["ct", "scans/pt", "time"])
    ct = matches(objects, found, "ct")
    assert (ct.objects, ct.possible_objects, ct.chunks, ct.possible_chunks) == (6, 9, 21, 42)
    pt = matches(objects, found, "scans/pt")
    assert (pt.objects, pt.possible_objects, pt.chunks, pt.possible_chunks, pt.chunk_nbytes) == (3, 3, 10, 10, 160)
    time = usage_of(found, "time")
    assert (time.objects, time.possible_objects, time.chunks, time.stored_nbytes, time.dead_nbytes) == (2, 3, 2, 32, 0)
    every = objects.keys()
    assert (found.objects, found.stored_nbytes) == (len(every), sum(len(objects.get(key) or b"") for key in every))
    assert (found.other_objects, found.damage, found.unreadable, found.consolidated) == (0, (), (), ())


def test_forms_are_told(storage: MemoryStorage) -> None:
    make(storage)
    ct = array_of(surveyed(storage), "ct")
    assert (ct.shape, ct.data_type, ct.item_nbytes) == ((30, 35), "uint16", 2)
    assert (ct.chunk_shape, ct.stored_shape, ct.chunks_per_shard) == ((5, 5), (10, 15), (2, 3))
    assert (ct.is_sharded, ct.reason, ct.index_location, ct.index_checksum) == (True, "", "end", True)
    assert [codec.partition("(")[0] for codec in ct.codecs] == ["bytes", "zstd"]
    assert [codec.partition("(")[0] for codec in ct.stored_codecs] == ["sharding_indexed"]
    time = array_of(surveyed(storage), "time")
    assert (time.is_sharded, time.reason, time.stored_shape, time.chunks_per_shard) == (False, "it is not sharded", (2,), None)


def test_dead_bytes_and_shared_bytes(storage: MemoryStorage, objects: StorageObjects) -> None:
    make(storage)
    layout = sharded_arrays(objects)["scans/pt"]
    chunk = b"0123456789abcdef"
    # Two chunks share half of their bytes, one lies apart, 5 bytes belong to nobody.
    entries = [(0, 16), (8, 16), (29, 16), (MISSING, MISSING)]
    objects.put("scans/pt/c/0", (chunk + chunk)[:24] + b"dead!" + chunk + encode_index(layout, entries))
    usage = matches(objects, surveyed(storage), "scans/pt")
    assert (usage.dead_nbytes, usage.chunks) == (5, 9)


def test_a_resized_array_has_chunks_outside_its_shape(storage: MemoryStorage, objects: StorageObjects) -> None:
    make(storage)
    stored = document(objects, "scans/pt/zarr.json")
    objects.put("scans/pt/zarr.json", json.dumps(stored | {"shape": [12]}).encode())
    usage = matches(objects, surveyed(storage), "scans/pt")
    assert (usage.chunks, usage.chunks_outside, usage.chunk_nbytes_outside) == (3, 7, 112)
    assert (usage.objects, usage.possible_objects, usage.objects_outside) == (1, 1, 2)
    time = document(objects, "time/zarr.json")
    objects.put("time/zarr.json", json.dumps(time | {"shape": [2]}).encode())
    plain = usage_of(surveyed(storage), "time")
    assert (plain.chunks, plain.chunks_outside, plain.stored_nbytes) == (1, 1, 32)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_damage_is_listed_and_the_rest_counted(storage: MemoryStorage, objects: StorageObjects) -> None:
    make(storage)
    layout = sharded_arrays(objects)["scans/pt"]
    broken = objects.get("scans/pt/c/0")
    assert broken is not None
    objects.put("scans/pt/c/0", flipped(broken, len(broken) - 6))
    objects.put("scans/pt/c/1", b"short")
    entries = [(0, 16), (10**9, 16), (MISSING, 3), (MISSING, MISSING)]
    objects.put("scans/pt/c/2", b"0123456789abcdef" + encode_index(layout, entries))
    found = surveyed(storage)
    assert [(d.path, d.key) for d in found.damage] == [("scans/pt", f"scans/pt/c/{i}") for i in range(3)]
    checksum, truncated, entry = (d.what for d in found.damage)
    assert "checksum" in checksum
    assert "5 bytes" in truncated
    assert "index entry 1" in entry
    assert "and 1 more" in entry
    usage = usage_of(found, "scans/pt")
    assert (usage.damaged_objects, usage.objects, usage.chunks, usage.chunk_nbytes, usage.dead_nbytes) == (3, 3, 1, 16, 0)
    assert found.damaged_objects == 3
    assert usage_of(found, "ct").chunks == 21


def test_arrays_that_pass_through_say_why(storage: MemoryStorage, objects: StorageObjects) -> None:
    make(storage)
    stored = document(objects, "ct/zarr.json")
    wrapped = stored | {"codecs": [*stored["codecs"], {"name": "gzip", "configuration": {"level": 1}}]}
    objects.put("ct/zarr.json", json.dumps(wrapped).encode())
    objects.put("scans/pt/zarr.json", json.dumps(document(objects, "scans/pt/zarr.json") | {"chunk_grid": {"name": "odd"}}).encode())
    objects.put("bad/zarr.json", b"{")
    found = surveyed(storage)
    ct, pt = array_of(found, "ct"), array_of(found, "scans/pt")
    assert (ct.is_sharded, ct.reason) == (False, "another codec wraps or precedes sharding_indexed")
    assert usage_of(found, "ct").objects == 6
    assert (pt.is_sharded, pt.reason, pt.chunk_shape) == (False, "its chunk grid is not regular", None)
    assert (usage_of(found, "scans/pt").possible_chunks, usage_of(found, "scans/pt").other_objects) == (None, 3)
    assert [(u.path, "JSON" in u.reason) for u in found.unreadable] == [("bad", True)]


def test_other_objects_are_counted_where_they_lie(storage: MemoryStorage, objects: StorageObjects) -> None:
    make(storage)
    objects.put("README.md", b"12345")
    objects.put("ct/notes/a.txt", b"123")
    objects.put("ct/c/0", b"1")  # no key of a two-dimensional array
    found = surveyed(storage)
    assert (found.other_objects, found.other_nbytes) == (1, 5)
    assert (usage_of(found, "ct").other_objects, usage_of(found, "ct").other_nbytes) == (2, 4)
    matches(objects, found, "ct")


def test_an_array_inside_an_array_has_its_own_chunks(storage: MemoryStorage, objects: StorageObjects) -> None:
    """It should not be there, but the engine shows its chunks where it is."""
    make(storage)
    objects.put("ct/sub/zarr.json", objects.get("time/zarr.json") or b"")
    objects.put("ct/sub/c/0", b"0123456789abcdef")
    found = surveyed(storage)
    assert (usage_of(found, "ct/sub").objects, usage_of(found, "ct").other_objects) == (1, 0)


def test_only_what_is_below_the_path(storage: MemoryStorage, objects: StorageObjects) -> None:
    make(storage)
    zarr.open_group(shardstore.open(storage)).create_array("ct2", shape=(4,), chunks=(2,), dtype="u1")
    found = surveyed(storage, "ct")
    assert (found.kind, found.path, found.groups, [a.path for a in found.arrays]) == ("array", "ct", 0, ["ct"])
    matches(objects, found, "ct")
    group = surveyed(storage, "scans/")
    assert (group.kind, group.groups, [a.path for a in group.arrays]) == ("group", 1, ["scans/pt"])
    with pytest.raises(NotFound, match="no node at"):
        surveyed(storage, "nowhere")


@pytest.mark.parametrize("path", ["", "scans"])
def test_fast_reads_metadata_only(storage: MemoryStorage, objects: StorageObjects, path: str) -> None:
    make(storage)
    trace = TraceStorage(storage)
    found = surveyed(trace, path, indices=False)
    assert [a.path for a in found.arrays] == [a.path for a in surveyed(storage, path).arrays]
    assert all(a.usage is None for a in found.arrays)
    assert found.objects is None
    assert [e.key for e in trace.events if e.op == "list"] == []
    assert [e.key for e in trace.events if e.op == "read" and not e.key.endswith("zarr.json")] == []
    assert [e.key for e in trace.events if e.op == "list_dir" and e.key.startswith(("ct/", "scans/pt/", "time/"))] == []


def test_fast_finds_hierarchies_in_a_directory_that_is_none(storage: MemoryStorage, objects: StorageObjects) -> None:
    make(MemoryStorage(f"{storage.url.removeprefix('memory:/')}/a/one.zarr"))
    make(MemoryStorage(f"{storage.url.removeprefix('memory:/')}/two.zarr"))
    names = [f"{root}/{path}" for root in ("a/one.zarr", "two.zarr") for path in ("ct", "scans/pt", "time")]
    assert [a.path for a in surveyed(storage, indices=False).arrays] == names
    assert [a.path for a in surveyed(storage).arrays] == names


def test_consolidated_metadata_is_compared(storage: MemoryStorage, objects: StorageObjects) -> None:
    root = make(storage)
    zarr.consolidate_metadata(root.store)
    (group,) = surveyed(storage).consolidated
    assert (group.path, group.arrays, group.is_stale) == ("", 3, False)
    (fast,) = surveyed(storage, indices=False).consolidated
    assert not fast.is_stale
    stored = document(objects, "time/zarr.json")
    objects.put("time/zarr.json", json.dumps(stored | {"attributes": {"units": "s"}}).encode())
    (group,) = surveyed(storage).consolidated
    assert group.is_stale
    objects.put("time/zarr.json", json.dumps(stored).encode())
    objects.delete("scans/pt/zarr.json")
    (group,) = surveyed(storage).consolidated
    assert (group.arrays, group.is_stale) == (3, True)


def test_one_listing_and_one_request_a_shard(storage: MemoryStorage) -> None:
    make(storage)
    trace = TraceStorage(storage)
    surveyed(trace)
    assert [e.op for e in trace.events if e.op not in ("read", "list")] == []
    assert sum(e.op == "list" for e in trace.events) == 1
    shards = [e for e in trace.events if e.op == "read" and not e.key.endswith("zarr.json")]
    assert len(shards) == len({e.key for e in shards}) == 6 + 3
    documents = [e.key for e in trace.events if e.op == "read" and e.key.endswith("zarr.json")]
    assert documents.pop(0) == "zarr.json"  # the first request to a place: what is stored there?
    assert len(documents) == len(set(documents))


def test_many_shards_are_looked_into_in_batches(storage: MemoryStorage, objects: StorageObjects) -> None:
    store = shardstore.open(storage, chunks_per_shard=(2,))
    array = zarr.create_array(store, name="x", shape=(3000,), chunks=(1,), dtype="u1", compressors=None, fill_value=0)
    array[...] = 1
    trace = TraceStorage(storage)
    seen: list[int] = []
    found = surveyed(trace, progress=seen.append)
    usage = matches(objects, found, "x")
    assert (usage.objects, usage.chunks) == (1500, 3000)
    rounds: dict[int, int] = {}
    for event in trace.events:
        if event.op == "read":
            rounds[event.round] = rounds.get(event.round, 0) + 1
    assert max(rounds.values()) <= 256
    assert seen == sorted(seen)
    assert seen[-1] == 1500 + 2  # and two documents


def test_0d_and_root_arrays(tmp_path: Path) -> None:
    native = zarr.create_array(str(tmp_path / "n.zarr"), shape=(), dtype="f8", compressors=None)
    native[...] = 2.5
    found = surveyed(LocalStorage(tmp_path / "n.zarr"))
    assert (found.kind, [a.path for a in found.arrays]) == ("array", [""])
    usage = usage_of(found, "")
    assert (usage.objects, usage.possible_objects, usage.chunk_nbytes) == (1, 1, 8)
    sharded = zarr.create_array(str(tmp_path / "s.zarr"), shape=(8, 8), chunks=(2, 2), shards=(4, 4), dtype="u1", compressors=None)
    sharded[...] = 1
    usage = usage_of(surveyed(LocalStorage(tmp_path / "s.zarr")), "")
    assert (usage.objects, usage.chunks, usage.chunk_nbytes, usage.dead_nbytes) == (4, 16, 64, 0)


class Resharding(TraceStorage):
    """Another client stores the array anew, with other shards, right before the first shard is read."""

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        if any(not read.key.endswith("zarr.json") for read in reads):
            (stored,) = await self.inner.read([Read("x/zarr.json", (EVERYTHING,))])
            assert isinstance(stored, Found)
            other = json.loads(bytes(stored.buffers[0]))
            other["codecs"][0]["configuration"]["chunk_shape"] = [1]
            data = json.dumps(other).encode()
            await self.inner.write("x/zarr.json", [data], len(data), UNCONDITIONAL)
        return await super().read(reads)


def test_shards_of_an_array_that_changes_meanwhile_are_not_called_damaged(storage: MemoryStorage, objects: StorageObjects) -> None:
    store = shardstore.open(storage, chunks_per_shard=(4,))
    array = zarr.create_array(store, name="x", shape=(16,), chunks=(2,), dtype="u1", compressors=None, fill_value=0)
    array[...] = 1
    objects.put("x/c/0", b"not a shard of the array that was")
    with pytest.raises(Conflict, match="changed while its shards were checked"):
        surveyed(Resharding(storage))
