"""Documents that are read and translated in the thread that asks: what it costs, when it is not done, and that none is staler for it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

import shardstore
from shardstore._sync import run_sync
from shardstore.engine import engine as engine_module
from shardstore.engine.metadata.hierarchy import Hierarchy
from shardstore.engine.reading.read_plan import Planner
from shardstore.errors import InvalidInput
from shardstore.model.ranges import EVERYTHING, ByteRange
from shardstore.storage.base import Found
from shardstore.storage.local.reading import READS_CACHED
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.trace import TraceStorage

pytestmark = pytest.mark.skipif(not READS_CACHED, reason="only Linux tells what is in memory")

PROTOTYPE = default_buffer_prototype()
NAMES = [f"a{i}" for i in range(20)]


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel holds in memory is its own affair: reads of cached bytes just read."""
    monkeypatch.setattr("shardstore.storage.local.reading._cached_pread", lambda fd, nbytes, offset: os.pread(fd, nbytes, offset))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A group of 20 sharded arrays."""
    group = zarr.create_group(shardstore.open(tmp_path, chunks_per_shard=(4,), fsync=False))
    for name in NAMES:
        group.create_array(name, shape=(8,), chunks=(1,), dtype="u1", fill_value=0)[:] = 1
    return tmp_path


def opened(place: Path, **options: Any) -> Any:
    """A store of an engine of its own, which has found out what is stored."""
    store = shardstore.open(LocalStorage(place, fsync=False), metadata_ttl="1h", **options)
    run_sync(store.engine.get(("zarr.json", EVERYTHING)))
    return store


def short(store: Any, key: str, request: Any = EVERYTHING) -> bytes | None:
    found = store.engine.short_value(key, request)
    return None if found is None else bytes(found)


def asked(store: Any, key: str) -> bytes:
    return bytes(run_sync(store.engine.get((key, EVERYTHING))))


def known(store: Any, path: str) -> Any:
    return store.engine.canonical.hierarchy.known(path)


def after_the_read(monkeypatch: pytest.MonkeyPatch, happen: Callable[[], object]) -> None:
    """Let something happen, once, between the read of a document in the calling thread and what is made of it."""
    read = Planner.document

    def document(self: Planner, path: str) -> Found | None:
        found = read(self, path)
        monkeypatch.setattr(Planner, "document", read)
        happen()
        return found

    monkeypatch.setattr(Planner, "document", document)


def test_members_are_opened_without_the_loop(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(place)
    group: Any = zarr.open_group(store, mode="r", use_consolidated=False)
    before = store.counters.requests
    with monkeypatch.context() as patch:
        patch.setattr(engine_module.Engine, "get", None)
        members = dict(group.arrays())
        assert group["a3"].chunks == (1,)
    assert sorted(members) == sorted(NAMES)
    assert all(array.chunks == (1,) for array in members.values())
    assert store.counters.requests - before == 2 + len(NAMES) + 1  # one listing, with the group's document, and each document once


def test_the_array_is_remembered(place: Path) -> None:
    store, by_loop = opened(place), opened(place)
    assert short(store, "a5/zarr.json") == asked(by_loop, "a5/zarr.json")
    assert store.engine.canonical.hierarchy.is_fresh(known(store, "a5"))
    before, before_too = store.counters.requests, by_loop.counters.requests
    for one in (store, by_loop):
        assert len({asked(one, f"a5/c/{i}") for i in range(8)}) == 1
    assert store.counters.requests - before == by_loop.counters.requests - before_too


def test_they_are_those_that_the_loop_reads(place: Path) -> None:
    store = opened(place)
    for key in ("zarr.json", *(f"{name}/zarr.json" for name in NAMES)):
        assert short(store, key) == asked(store, key)
    assert short(store, "a1/zarr.json", ByteRange(2, 9)) == asked(store, "a1/zarr.json")[2:9]
    with pytest.raises(InvalidInput):
        short(store, "a\\b/zarr.json")


def test_first_the_loop_finds_out_what_is_stored(place: Path) -> None:
    store = shardstore.open(LocalStorage(place, fsync=False))
    assert short(store, "a1/zarr.json") is None
    asked(store, "zarr.json")
    assert short(store, "a1/zarr.json") is not None


def test_what_the_loop_is_asked_for(place: Path) -> None:
    assert short(opened(place, present_level=2), "a1/zarr.json") is None  # the shown document is not made from the stored one alone
    assert short(shardstore.open(TraceStorage(LocalStorage(place)), metadata_ttl="1h"), "a1/zarr.json") is None
    (place / "a1/zarr.json").write_bytes(b"{")
    assert short(opened(place), "a1/zarr.json") is None
    (place / "a1/zarr.json").write_bytes((place / "a2/zarr.json").read_bytes() + b" " * 2**16)
    assert short(opened(place), "a1/zarr.json") is None
    store = opened(place)
    with store.transaction():
        zarr.open_array(store, path="a2").attrs["x"] = 1
        assert short(store, "a2/zarr.json") is None
        assert json.loads(sync(store.get("a2/zarr.json", PROTOTYPE)).to_bytes())["attributes"] == {"x": 1}
    assert json.loads(short(store, "a2/zarr.json") or b"")["attributes"] == {"x": 1}


def test_after_one_that_is_not_in_memory_the_loop_reads_some(place: Path) -> None:
    store = opened(place)
    assert short(store, "none/zarr.json") is None
    assert [short(store, f"{name}/zarr.json") is not None for name in NAMES[:12]] == [False] * 9 + [True] * 3


def test_changes_of_another_process_are_seen_at_once(place: Path) -> None:
    store, other = opened(place), opened(place)
    assert known(store, "a1") is None
    assert short(store, "a1/zarr.json") is not None
    zarr.open_array(other, path="a1").attrs["x"] = 1
    assert short(store, "a1/zarr.json") is None  # another version is known: the loop compares
    assert json.loads(asked(store, "a1/zarr.json"))["attributes"] == {"x": 1}
    assert json.loads(short(store, "a1/zarr.json") or b"")["attributes"] == {"x": 1}
    sync(other.delete_dir("a2"))
    assert short(store, "a2/zarr.json") is None


def test_a_document_that_is_written_meanwhile_is_not_remembered(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(place)
    new = json.dumps(json.loads(asked(store, "a1/zarr.json")) | {"shape": [9]}).encode()
    store.engine.canonical.hierarchy.forget("a1")
    after_the_read(monkeypatch, lambda: sync(store.set("a1/zarr.json", PROTOTYPE.buffer.from_bytes(new))))
    assert short(store, "a1/zarr.json") is None
    assert known(store, "a1").layout.shape == (9,)


@pytest.mark.parametrize("is_known", [True, False])
def test_an_array_that_is_erased_meanwhile_is_not_remembered(place: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool) -> None:
    store = opened(place)
    if is_known:
        asked(store, "a1/zarr.json")
    after_the_read(monkeypatch, lambda: sync(store.delete_dir("a1")))
    assert short(store, "a1/zarr.json") is not None  # it was there when it was asked for
    assert known(store, "a1") is None


def test_what_another_engine_announces_meanwhile_is_doubted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(place)
    hierarchy: Hierarchy = store.engine.canonical.hierarchy
    after_the_read(monkeypatch, lambda: hierarchy.distrust("a1"))
    assert short(store, "a1/zarr.json") is not None
    assert known(store, "a1") is None
    assert short(store, "a1/zarr.json") is not None
    assert hierarchy.is_fresh(known(store, "a1"))
    after_the_read(monkeypatch, lambda: hierarchy.distrust("a1"))
    assert short(store, "a1/zarr.json") is not None
    assert not hierarchy.is_fresh(known(store, "a1"))


def test_where_another_client_deleted_an_array_the_loop_looks(place: Path) -> None:
    store = opened(place)
    assert short(store, "a1/zarr.json") is not None
    document = (place / "a1/zarr.json").read_bytes()
    (place / "a1/zarr.json").unlink()
    assert run_sync(store.engine.get(("a1/zarr.json", EVERYTHING))) is None
    (place / "a1/zarr.json").write_bytes(document)
    assert short(store, "a1/zarr.json") is None
    assert asked(store, "a1/zarr.json") == short(store, "a1/zarr.json")
