"""Compaction: dead bytes go, values stay, and nobody's shard is touched that should not be."""

from __future__ import annotations

import json
import os
import struct
import uuid
import warnings
from concurrent.futures import CancelledError, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import zarr
from hypothesis import given

import shardstore
from shardstore.errors import Conflict, InvalidInput, NotFound, ShardStoreError, StorageError, Unsupported
from shardstore.format.shard_index import EMPTY, IndexCodecs, IndexFormat, ShardIndex
from shardstore.maintenance.compact import CompactReport
from shardstore.maintenance.pins import Pin, parse_pins
from shardstore.maintenance.shards import dead_nbytes
from shardstore.model.capabilities import Capabilities
from shardstore.model.chunk_orders import ChunkOrder
from shardstore.model.generation import UNCONDITIONAL, Generation
from shardstore.model.ranges import CopiedRange
from shardstore.opening.open import open_storage
from shardstore.plan.commits import DeleteShard, WriteShard, plan_compaction
from shardstore.storage.local import storage as local_storage
from shardstore.storage.local.mounts import Mount
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.faults import Cancel, Change, DropReply, Fail, Fault, FaultStorage, Refuse, Truncate
from shardstore.testing.trace import TraceStorage
from tests.engine.hooked import HookedStorage, document, fresh_memory
from tests.harness.scale import at_requests
from tests.maintenance.laid_out import DEAD, array_document, laid_out, put_array
from tests.plan.carrying_out import sent
from tests.shards import Sharding, encode_index, index_entries, presented, sharded_arrays
from tests.stored import Objects, StorageObjects, on_io_loop, snapshot

LOOSE, TIGHT, EMPTIED = "a/c/0", "a/c/1", "a/c/2"


def chunk(number: int, nbytes: int = 40) -> bytes:
    return bytes([number]) * nbytes


def fill(objects: Objects, **how: Any) -> Sharding:
    """A loose shard, a tight one, one without chunks, and one outside the array's shape."""
    layout = put_array(objects, "a", array_document(shape=(96,), **how))
    objects.put(LOOSE, laid_out(layout, [(3, chunk(3)), (DEAD, chunk(200, 500)), (0, chunk(1)), (DEAD, chunk(201, 9)), (7, b"")]))
    objects.put(TIGHT, laid_out(layout, [(slot, chunk(10 + slot)) for slot in range(8)]))
    objects.put(EMPTIED, laid_out(layout, [(DEAD, chunk(202, 60))]))
    objects.put("a/c/5", laid_out(layout, [(1, chunk(51)), (DEAD, chunk(203, 300))]))
    return layout


def dead_bytes(layout: Sharding, shard: bytes) -> int:
    used = bytearray(len(shard))
    at = len(shard) - layout.index_nbytes if layout.index_at_end else 0
    used[at : at + layout.index_nbytes] = b"\1" * layout.index_nbytes
    for offset, nbytes in index_entries(layout, shard):
        if nbytes != EMPTY:
            used[offset : offset + nbytes] = b"\1" * nbytes
    return used.count(0)


@pytest.fixture(params=["memory", "local", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "s3":
        return open_storage(*request.getfixturevalue("s3_url"))
    return LocalStorage(tmp_path / "root", fsync=False) if request.param == "local" else fresh_memory()


SWAPS = Capabilities(pinned_reads=True, create_if_absent=True, compare_and_swap=True, across_machines=True)
"""Of a storage that replaces on condition, and neither copies nor deletes so."""


def compact(storage: Any, **options: Any) -> CompactReport:
    return shardstore.compact(storage, workers=2, **options)


# -- what becomes of shards ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index_location", ["start", "end"])
@pytest.mark.parametrize("order", ["C", "F", "morton"])
def test_dead_bytes_go_and_chunks_stay(storage: Any, index_location: str, order: Any) -> None:
    objects = StorageObjects(storage)
    layout = fill(objects, index_location=index_location)
    before = snapshot(objects)
    values = presented(objects)
    report = compact(storage, chunk_order=order)
    assert presented(objects) == values
    assert objects.get(TIGHT) == before[TIGHT]
    loose = objects.get(LOOSE)
    assert loose is not None
    assert dead_bytes(layout, loose) == 0
    assert len(loose) == layout.index_nbytes + 80
    assert objects.get(EMPTIED) in (None, laid_out(layout, []))
    assert (report.shards, report.rewritten, report.deleted) in [(4, 2, 1), (4, 3, 0)]
    after = snapshot(objects)
    assert report.nbytes_freed == sum(map(len, before.values())) - sum(map(len, after.values())) >= 849
    assert (report.failed.count, report.damaged.count, report.pinned.count) == (0, 0, 0)
    again = compact(storage)
    assert (again.rewritten, again.deleted, again.nbytes_freed) == (0, 0, 0)
    assert snapshot(objects) == after


def test_a_dry_run_changes_nothing_and_says_what_a_run_does(storage: Any) -> None:
    objects = StorageObjects(storage)
    fill(objects)
    before = snapshot(objects)
    dry = compact(storage, dry_run=True)
    assert snapshot(objects) == before
    done = compact(storage)
    assert (dry.shards, dry.rewritten, dry.deleted, dry.nbytes_freed, dry.dead_nbytes) == (
        done.shards,
        done.rewritten,
        done.deleted,
        done.nbytes_freed,
        done.dead_nbytes,
    )
    assert dry.is_dry_run


@pytest.mark.parametrize(
    ("ratio", "nbytes", "is_rewritten"), [(0.0, None, True), (0.4, None, True), (0.5, None, False), (1.0, 100, True), (1.0, 101, False)]
)
def test_the_bound(ratio: float, nbytes: int | None, is_rewritten: bool) -> None:
    storage = fresh_memory()
    objects = StorageObjects(storage)
    layout = put_array(objects, "a", array_document(per_shard=(2,)))
    shard = laid_out(layout, [(0, chunk(1, 100 - layout.index_nbytes)), (DEAD, chunk(0, 100))])
    objects.put("a/c/0", shard)
    assert compact(storage, dead_ratio=ratio, dead_bytes=nbytes).rewritten == is_rewritten
    assert (objects.get("a/c/0") == shard) != is_rewritten


def test_chunks_that_share_bytes_go_on_sharing_them(storage: Any) -> None:
    objects = StorageObjects(storage)
    layout = put_array(objects, "a", array_document())
    objects.put("a/c/0", laid_out(layout, [(DEAD, chunk(0, 900)), (5, chunk(5)), (DEAD, b"x"), (2, chunk(2))], {0: 5, 1: 5, 7: 2}))
    values = presented(objects)
    compact(storage)
    assert presented(objects) == values
    shard = objects.get("a/c/0")
    assert shard is not None
    assert len(shard) == layout.index_nbytes + 80


def test_a_shard_with_a_chunk_on_its_index_is_left_when_nothing_is_gained() -> None:
    index_format = IndexFormat((1,))
    entries = np.array([[40, 20 + 16]], dtype=np.uint64)  # all of the index, and what is before it
    plan = plan_compaction(index_format, ShardIndex(entries), 76)
    assert isinstance(plan, WriteShard)
    assert plan.nbytes == 56
    storage = fresh_memory()
    objects = StorageObjects(storage)
    layout = put_array(objects, "a", array_document(per_shard=(1,)))
    body = b"\0" * 10
    shard = body + encode_index(layout, [(9, 21)])
    objects.put("a/c/0", shard)
    report = compact(storage, dead_ratio=0.0)
    assert (report.rewritten, objects.get("a/c/0")) == (0, shard)


@given(st.data())
def test_plans_keep_every_chunk_and_nothing_else(data: st.DataObject) -> None:
    """Of any entries, overlapping ones too, against a copy byte by byte."""
    nslots = data.draw(st.integers(1, 12))
    location: Any = data.draw(st.sampled_from(["start", "end"]))
    index_format = IndexFormat((nslots,), IndexCodecs(), location)
    body = data.draw(st.integers(0, 60))
    total = body + index_format.nbytes
    low = index_format.nbytes if location == "start" else 0
    entries = np.full((nslots, 2), EMPTY, dtype=np.uint64)
    for slot in data.draw(st.sets(st.integers(0, nslots - 1))):
        start = data.draw(st.integers(low, low + body))
        entries[slot] = start, data.draw(st.integers(0, low + body - start))
    old = ShardIndex(entries)
    content = bytes(data.draw(st.permutations(range(256))))[:total] if total <= 256 else bytes(i % 251 for i in range(total))
    plan = plan_compaction(index_format, old, total, data.draw(st.sampled_from(["C", "F", "morton"])))
    if isinstance(plan, DeleteShard):
        assert not old.present().any()
        return
    new = b"".join(content[s.offset : s.offset + s.nbytes] if isinstance(s, CopiedRange) else sent(s) for s in plan.segments)
    assert len(new) == plan.nbytes == total - dead_nbytes(index_format, old, total)
    index = index_format.decode(index_format.slice_from(memoryview(new), len(new)))
    assert np.array_equal(index.entries, plan.index.entries)
    assert np.array_equal(index.present(), old.present())
    assert dead_nbytes(index_format, index, len(new)) == 0
    for slot in np.flatnonzero(old.present()).tolist():
        before, after = old.location(slot, total), index.location(slot, len(new))
        assert before is not None
        assert after is not None
        assert content[before.offset : before.offset + before.nbytes] == new[after.offset : after.offset + after.nbytes]


def test_without_shared_bytes_chunks_lie_in_the_order_that_is_asked_for() -> None:
    index_format = IndexFormat((2, 2, 2))
    entries = np.full((8, 2), EMPTY, dtype=np.uint64)
    for place, slot in enumerate([7, 2, 5, 0, 4, 1, 6, 3]):
        entries[slot] = 3 * place, 2
    total = 24 + index_format.nbytes
    orders: dict[ChunkOrder, list[int]] = {"C": list(range(8)), "F": [0, 4, 2, 6, 1, 5, 3, 7], "morton": list(range(8))}
    for order, expected in orders.items():
        plan = plan_compaction(index_format, ShardIndex(entries.reshape(2, 2, 2, 2)), total, order)
        assert isinstance(plan, WriteShard)
        assert np.argsort(plan.index.flat[:, 0]).tolist() == expected
    wide = IndexFormat((2, 4))
    plan = plan_compaction(wide, ShardIndex(entries.reshape(2, 4, 2)), total, "morton")
    assert isinstance(plan, WriteShard)
    assert np.argsort(plan.index.flat[:, 0]).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


# -- what is left alone ----------------------------------------------------------------------------------------------------


def test_pinned_shards_are_left_alone_and_reported(storage: Any) -> None:
    objects = StorageObjects(storage)
    fill(objects)
    before = snapshot(objects)
    pins = [Pin("/" + LOOSE), Pin("a/c/5", "another version"), Pin(EMPTIED)]
    for dry_run in (True, False):
        report = compact(storage, pins=pins, dry_run=dry_run)
        assert sorted(report.pinned.first) == [LOOSE, EMPTIED]
        assert (report.rewritten, report.deleted) == (1, 0)
    assert objects.get(LOOSE) == before[LOOSE]
    assert objects.get(EMPTIED) == before[EMPTIED]
    assert objects.get("a/c/5") != before["a/c/5"]


def test_a_pin_of_the_version_that_is_there_holds_it(storage: Any) -> None:
    objects = StorageObjects(storage)
    fill(objects)
    found = _generation(storage, LOOSE)
    before = objects.get(LOOSE)
    assert compact(storage, pins=[Pin(LOOSE, found.token)]).pinned.first == (LOOSE,)
    assert objects.get(LOOSE) == before
    assert compact(storage).rewritten == 1


@pytest.mark.parametrize("key", ["", "a/c/0/", "./a/c/0", "a//c/0", "../a/c/0", "//a/c/0"])
def test_a_pin_whose_key_no_object_can_have_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match="key"):
        Pin(key)
    if key:
        with pytest.raises(InvalidInput, match="line 1 of the pins"):
            parse_pins(key)


@pytest.mark.parametrize("dry_run", [True, False])
def test_pins_that_hold_nothing_are_refused(storage: Any, dry_run: bool) -> None:
    """A misspelt pin would let the shard be rewritten that it was to hold."""
    objects = StorageObjects(storage)
    fill(objects)
    before = snapshot(objects)
    with pytest.raises(InvalidInput, match=r"3 of 4 pins match nothing: 'a', 'a/c', 'nothing/c/0'"):
        compact(storage, pins=[Pin("a"), Pin("a/c"), Pin("nothing/c/0"), Pin(LOOSE)], dry_run=dry_run)
    assert snapshot(objects) == before


@pytest.mark.parametrize(
    ("key", "held"),
    [
        ("a/c/3", (LOOSE,)),  # no shard has that place: a chunk of the first one
        ("a/c/23", (EMPTIED,)),  # the last chunk
        ("a/c/5", ("a/c/5",)),  # the shard that is stored there, outside of the array's shape; not the chunk
        (EMPTIED, (EMPTIED,)),  # the shard; as a chunk it would lie in the first one
    ],
)
def test_a_pin_of_a_chunk_holds_its_shard_where_no_shard_has_that_key(storage: Any, key: str, held: tuple[str, ...]) -> None:
    objects = StorageObjects(storage)
    fill(objects)
    before = snapshot(objects)
    report = compact(storage, pins=[Pin(key)])
    assert report.pinned.first == held
    after = snapshot(objects)
    assert {key for key in before if key != TIGHT and after.get(key) == before[key]} == {*held, "a/zarr.json"}


def test_where_the_shard_of_a_pin_is_not_stored_the_chunk_of_that_key_is_held() -> None:
    storage = fresh_memory()
    objects = StorageObjects(storage)
    fill(objects)
    objects.delete(TIGHT)
    assert compact(storage, pins=[Pin(TIGHT)], dry_run=True).pinned.first == (LOOSE,)
    assert compact(storage, pins=[Pin(TIGHT, "a version that was stored there")], dry_run=True).pinned.first == ()


def test_pins_outside_of_the_shape_of_their_array_are_refused(storage: Any) -> None:
    objects = StorageObjects(storage)
    fill(objects)
    put_array(objects, "g/none", array_document(shape=(0,)))
    before = snapshot(objects)
    pins = [Pin("a/c/24"), Pin("a/c/123456", "a version"), Pin("g/none/c/0"), Pin(LOOSE)]
    has = r"array 'a' has shards up to 'a/c/2' and chunks up to 'a/c/23'"
    message = rf"3 of 4 pins match nothing: 'a/c/123456' \({has}\), 'a/c/24' \({has}\), 'g/none/c/0' \(array 'g/none' has no chunks\):"
    with pytest.raises(InvalidInput, match=message):
        compact(storage, pins=pins)
    assert snapshot(objects) == before


def test_pins_of_chunks_that_are_no_shards() -> None:
    """Nothing rewrites these; they may be among the pins of a set of references."""
    storage = fresh_memory()
    objects = StorageObjects(storage)
    fill(objects)
    plain = array_document(shape=(12,))
    plain["codecs"], plain["chunk_grid"]["configuration"]["chunk_shape"] = [{"name": "bytes"}], [4]
    objects.put("g/plain/zarr.json", json.dumps(plain).encode())
    assert compact(storage, pins=[Pin("g/plain/c/2"), Pin("g/plain/c/0", "a version")], dry_run=True).pinned.count == 0
    with pytest.raises(InvalidInput, match=r"'g/plain/c/3' \(array 'g/plain' has chunks up to 'g/plain/c/2'\)"):
        compact(storage, pins=[Pin("g/plain/c/3")], dry_run=True)
    objects.put("g/plain/c/3", b"from before it was resized")
    assert compact(storage, pins=[Pin("g/plain/c/3")], dry_run=True).pinned.count == 0


def test_pins_with_a_generation_cost_no_requests_of_their_own() -> None:
    storage = fresh_memory()
    objects = StorageObjects(storage)
    fill(objects)
    put_array(objects, "g/b", array_document(shape=(40_000,)))
    pins = [Pin(f"g/b/c/{n}", f"version {n}") for n in range(1250)]
    traced = TraceStorage(storage)
    requests = []
    for some in (pins[:1], pins):
        with traced.count() as block:
            compact(traced, pins=some, dry_run=True)
        requests.append(len(block.events))
    assert requests[0] == requests[1]
    with traced.count() as block:
        compact(traced, pins=[*pins, Pin("g/b/c/7"), Pin("g/b/c/1300", "outside")], dry_run=True)
    assert len(block.events) == requests[0] + 2


def test_a_pin_of_a_version_holds_it_under_another_name_and_mode(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "store")
    objects = StorageObjects(storage)
    fill(objects)
    before = objects.get(LOOSE)
    held = [Pin(LOOSE, _generation(storage, LOOSE).token)]
    file = tmp_path / "store" / LOOSE
    os.link(file, tmp_path / "another name")
    file.chmod(0o640)
    assert _generation(storage, LOOSE).token != held[0].generation
    assert compact(storage, pins=held).pinned.first == (LOOSE,)
    assert objects.get(LOOSE) == before
    file.write_bytes(before or b"")  # by another program: that is another version
    assert compact(storage, pins=held).rewritten == 1


def _generation(storage: Any, key: str) -> Generation:
    info = on_io_loop(storage.stat(key))
    assert info is not None
    assert info.generation is not None
    found: Generation = info.generation
    return found


def test_pins_from_a_file() -> None:
    text = 'a/c/0\n\n{"key": "b/c/1", "generation": "x"}\n{"key": "c"}\n'
    assert parse_pins(text) == [Pin("a/c/0"), Pin("b/c/1", "x"), Pin("c")]
    for wrong in ("{", '{"generation": "x"}', '{"key": "a", "generation": 3}'):
        with pytest.raises(InvalidInput, match="line 1"):
            parse_pins(wrong)


def test_damaged_shards_are_left_and_reported(storage: Any) -> None:
    objects = StorageObjects(storage)
    layout = fill(objects)
    loose = objects.get(LOOSE)
    assert loose is not None
    objects.put(LOOSE, loose[:-1] + b"?")
    entries = [(0, 40), (10**6, 1), *[(EMPTY, EMPTY)] * 6]
    objects.put("a/c/3", b"\0" * 400 + encode_index(layout, entries))
    before = snapshot(objects)
    report = compact(storage)
    assert sorted(damage.key for damage in report.damaged.first) == [LOOSE, "a/c/3"]
    assert objects.get(LOOSE) == before[LOOSE]
    assert objects.get("a/c/3") == before["a/c/3"]
    assert objects.get("a/c/5") != before["a/c/5"]


def test_only_what_lies_below_the_path_and_in_this_part() -> None:
    storage = fresh_memory()
    objects = StorageObjects(storage)
    for name in ("g/a", "g/b", "h"):
        layout = put_array(objects, name, array_document(shape=(1000,)))
        for shard in range(8):
            objects.put(f"{name}/c/{shard}", laid_out(layout, [(0, chunk(shard)), (DEAD, chunk(0, 900))]))
    before = snapshot(objects)
    assert compact(storage, path="g/b").rewritten == 8
    assert {key for key, data in snapshot(objects).items() if data != before[key]} == {f"g/b/c/{shard}" for shard in range(8)}
    reports = [compact(storage, part=f"{i}/3") for i in (1, 2, 3)]
    assert sum(report.rewritten for report in reports) == 16
    assert sum(report.shards for report in reports) == 24
    assert min(report.shards for report in reports) > 0
    with pytest.raises(NotFound):
        compact(storage, path="nowhere")


def test_arguments_that_cannot_be_right() -> None:
    storage = fresh_memory()
    wrongs: list[dict[str, Any]] = [
        {"dead_ratio": 2},
        {"dead_ratio": True},
        {"dead_bytes": 0},
        {"chunk_order": "Z"},
        {"part": "0/3"},
        {"pins": ["a/c/0"]},
        {"path": "../x"},
    ]
    for wrong in wrongs:
        with pytest.raises(InvalidInput):
            compact(storage, **wrong)


# -- storages and their requests -------------------------------------------------------------------------------------------


def test_requests_and_bytes(storage: Any) -> None:
    objects = StorageObjects(storage)
    layout = fill(objects)
    traced = TraceStorage(storage)
    can_compose = storage.capabilities.compose and not storage.capabilities.copy_pays_nbytes  # S3 copies long ranges only
    with traced.count() as looking:
        compact(traced, dry_run=True)
    shard_reads = [event for event in looking.events if event.op == "read" and "/c/" in event.key]
    assert len(shard_reads) == 4
    assert all(event.nbytes == layout.index_nbytes for event in shard_reads)
    assert looking.summary().bytes_written == 0
    with traced.count() as working:
        compact(traced, pins=[Pin(EMPTIED), Pin("a/c/5")])
    written = [event for event in working.events if event.op in ("write", "compose", "delete")]
    assert [(event.op, event.key) for event in written] == [("compose" if can_compose else "write", LOOSE)]
    # Looked at by all; then once more by itself, where the storage does not copy with all of it, since it is small.
    assert len([event for event in working.events if event.op == "read" and event.key == LOOSE]) == 2
    assert working.summary().bytes_written == layout.index_nbytes + (0 if can_compose else 80)


def test_large_shards_are_streamed() -> None:
    inner = fresh_memory()
    objects = StorageObjects(inner)
    layout = put_array(objects, "a", array_document())
    parts = [(slot, bytes([slot]) * 3_000_000) for slot in (6, 1, 3)]
    objects.put("a/c/0", laid_out(layout, [(DEAD, bytes(5_000_000)), *parts]))
    values = presented(objects)
    hooked = HookedStorage(inner)
    hooked.capabilities_override = SWAPS
    traced = TraceStorage(hooked)
    with traced.count() as block:
        assert compact(traced, max_memory=2**20).rewritten == 1
    assert presented(objects) == values
    assert max(event.nbytes for event in block.events if event.op == "read") <= 2**20


def test_without_compare_and_swap_only_when_nobody_else_writes() -> None:
    inner = fresh_memory()
    objects = StorageObjects(inner)
    fill(objects)
    values = presented(objects)
    hooked = HookedStorage(inner)
    hooked.capabilities_override = Capabilities()
    with pytest.raises(Unsupported, match="exclusive"):
        compact(hooked)
    assert compact(hooked, dry_run=True).rewritten == 2
    report = compact(hooked, exclusive=True)
    assert (report.rewritten, report.deleted) == (2, 1)
    assert presented(objects) == values
    assert objects.get(EMPTIED) is None


def test_an_emptied_shard_is_not_deleted_where_that_could_hit_a_new_chunk() -> None:
    inner = fresh_memory()
    objects = StorageObjects(inner)
    layout = fill(objects)
    hooked = HookedStorage(inner)
    hooked.capabilities_override = SWAPS
    assert compact(hooked, dead_ratio=0.9).rewritten == 0
    report = compact(hooked)
    assert (report.rewritten, report.deleted) == (3, 0)
    assert objects.get(EMPTIED) == laid_out(layout, [])
    assert hooked.count("delete") == 0


def test_on_a_network_file_system_it_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_storage, "mount_of", lambda path: Mount("/", "nfs4"))
    fill(StorageObjects(LocalStorage(tmp_path, fsync=False)))
    with pytest.warns(RuntimeWarning, match="network file system"):
        compact(str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compact(str(tmp_path), exclusive=True)


def test_processes_do_the_work_too(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path, fsync=False)
    objects = StorageObjects(storage)
    fill(objects)
    values = presented(objects)
    with ProcessPoolExecutor(2) as executor:
        report = shardstore.compact(str(tmp_path), executor=executor)
    assert (report.rewritten, report.deleted) == (2, 1)
    assert presented(objects) == values


def test_a_draft_hierarchy() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    store = shardstore.get_mapper(url, stored="transformer", chunks_per_shard=(4,), present="v3")
    root = shardstore.get_mapper(url, stored="transformer", chunks_per_shard=(4,))
    root["a/zarr.json"] = document((16,), (4,))
    for number in range(4):
        store[f"a/c/{number}"] = chunk(number)
    storage = open_storage(url)
    objects = StorageObjects(storage)
    (key,) = (key for key in objects.keys() if key.startswith("data/"))  # noqa: SIM118 - no mapping
    shard = objects.get(key)
    assert shard is not None
    numbers = struct.unpack("<8Q", shard[-64:])
    shifted = struct.pack("<8Q", *(n + 1000 * (i % 2 == 0) for i, n in enumerate(numbers)))
    objects.put(key, b"\0" * 1000 + shard[:-64] + shifted)
    assert compact(url).rewritten == 1
    assert objects.get(key) == shard
    assert shardstore.get_mapper(url)["a/c/3"] == chunk(3)


# -- beside others, and when things fail -----------------------------------------------------------------------------------


def test_a_chunk_that_is_written_in_between_is_kept() -> None:
    inner = fresh_memory()
    objects = StorageObjects(inner)
    layout = fill(objects)
    hooked = HookedStorage(inner)
    times = 0

    async def interfere(operation: str, key: str) -> None:
        nonlocal times
        if operation == "compose" and key == LOOSE and times < 2:
            times += 1
            data = laid_out(layout, [(3, chunk(90 + times)), (DEAD, chunk(0, 300))])
            await inner.write(LOOSE, [data], len(data), UNCONDITIONAL)

    hooked.before = interfere
    report = compact(hooked)
    assert report.failed.count == 0
    assert times == 2
    assert objects.get(LOOSE) == laid_out(layout, [(3, chunk(92))])


def test_whoever_keeps_writing_wins() -> None:
    inner = fresh_memory()
    objects = StorageObjects(inner)
    layout = fill(objects)
    hooked = HookedStorage(inner)

    async def interfere(operation: str, key: str) -> None:
        if operation == "compose" and key == LOOSE:
            data = laid_out(layout, [(3, chunk(9)), (DEAD, chunk(0, 300))])
            await inner.write(LOOSE, [data], len(data), UNCONDITIONAL)

    hooked.before = interfere
    report = compact(hooked)
    (failed,) = report.failed.first
    assert failed.key == LOOSE
    assert isinstance(failed.error, Conflict)
    assert report.rewritten == 1  # the other one


@pytest.mark.parametrize("other", [None, array_document(shape=(96,), per_shard=(4,), chunk=(8,))], ids=["gone", "laid out otherwise"])
def test_shards_of_an_array_that_changed_meanwhile_are_left(other: dict[str, Any] | None) -> None:
    inner = fresh_memory()
    objects = StorageObjects(inner)
    fill(objects)
    before = snapshot(objects)
    hooked = HookedStorage(inner)
    has_changed = False

    async def interfere(operation: str, key: str) -> None:
        nonlocal has_changed
        if key == LOOSE and not has_changed:  # it is looked at, and its document was read before
            has_changed = True
            data = json.dumps(other).encode()
            if other is None:
                await inner.delete("a/zarr.json", UNCONDITIONAL)
            else:
                await inner.write("a/zarr.json", [data], len(data), UNCONDITIONAL)

    hooked.before = interfere
    report = compact(hooked)
    assert report.rewritten == report.deleted == 0
    assert {key: data for key, data in snapshot(objects).items() if "/c/" in key} == {k: v for k, v in before.items() if "/c/" in k}


def test_shards_of_another_layout_are_not_taken_for_damaged_ones() -> None:
    inner = fresh_memory()
    objects = StorageObjects(inner)
    fill(objects)
    other = array_document(shape=(96,), per_shard=(4,), chunk=(8,))
    layout = put_array(StorageObjects(fresh_memory()), "a", other)
    hooked = HookedStorage(inner)

    async def interfere(operation: str, key: str) -> None:
        if key == LOOSE and hooked.count("read", LOOSE) == 1:  # listed, and not looked at yet
            for name, data in (("a/zarr.json", json.dumps(other).encode()), (LOOSE, laid_out(layout, [(0, chunk(9))]))):
                await inner.write(name, [data], len(data), UNCONDITIONAL)

    hooked.before = interfere
    report = compact(hooked)
    assert report.damaged.count == 0
    assert {type(failed.error) for failed in report.failed.first} == {Conflict}
    hooked.before = None
    assert compact(hooked, path="a").damaged.count == 3  # those that were left of the old one


EFFECTS = [Fail(), Change(), DropReply(), Truncate(nbytes=7), Refuse(), Cancel(), Cancel(after=True)]


@pytest.mark.parametrize("effect", EFFECTS, ids=repr)
@pytest.mark.parametrize("can_compose", [True, False])
def test_at_every_request_old_or_new(effect: Any, can_compose: bool) -> None:
    inner = fresh_memory()
    objects = StorageObjects(inner)
    fill(objects)
    before = snapshot(objects)
    values = presented(objects)
    hooked = HookedStorage(inner)
    if not can_compose:
        hooked.capabilities_override = replace(SWAPS, conditional_delete=True)
    compact(hooked)
    after = snapshot(objects)

    def attempt(fault: Fault) -> bool:
        for key, data in before.items():
            objects.put(key, data)
        faulty = FaultStorage(hooked, [fault])
        try:
            assert shardstore.compact(faulty, workers=1).failed.count <= 1
        except (ShardStoreError, CancelledError):
            raised = True
        else:
            raised = False
        assert bool(faulty.struck) or not raised
        now = snapshot(objects)
        assert all(data in (before.get(key), after.get(key)) for key, data in now.items())
        assert presented(objects) == values
        assert shardstore.compact(hooked, workers=1).failed.count == 0
        assert snapshot(objects) == after
        return bool(faulty.struck)

    at_requests(effect, attempt, least=8)


def test_a_request_that_fails_once_is_tried_again_and_one_that_always_fails_is_reported() -> None:
    inner = fresh_memory()
    fill(StorageObjects(inner))
    once = FaultStorage(inner, [Fault(1, Fail(), frozenset({"compose"}), LOOSE)])
    report = compact(once)
    assert once.struck
    assert (report.rewritten, report.failed.count) == (2, 0)
    fill(StorageObjects(inner))
    always = FaultStorage(inner, [Fault(1, Fail(), frozenset({"compose"}), LOOSE, times=None)])
    report = compact(always)
    (failed,) = report.failed.first
    assert (failed.path, failed.key, report.rewritten) == ("a", LOOSE, 1)
    assert isinstance(failed.error, StorageError)


def test_a_real_array_reads_the_same(storage: Any) -> None:
    values = np.arange(64 * 64, dtype="u2").reshape(64, 64)
    array = zarr.create_array(shardstore.open(storage, chunks_per_shard=(4, 4)), name="x", shape=(64, 64), chunks=(8, 8), dtype="u2")
    array[...] = values
    objects = StorageObjects(storage)
    layout = sharded_arrays(objects)["x"]
    key = "x/c/1/0"
    shard = objects.get(key)
    assert shard is not None
    parts = [(slot, shard[o : o + n]) for slot, (o, n) in enumerate(index_entries(layout, shard))]
    objects.put(key, laid_out(layout, [*parts[8:], (DEAD, shard), *parts[:8]]))
    assert compact(storage).rewritten == 1
    assert objects.get(key) == shard
    assert np.array_equal(zarr.open_array(shardstore.open(storage, metadata_ttl=0), path="x", mode="r")[...], values)
