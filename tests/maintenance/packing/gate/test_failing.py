"""Faults in source and target, at every request: the run says what failed, nothing is visible, and the next one completes."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import Conflict, ShardStoreError, StorageError
from shardstore.storage.base import Storage
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.faults import DropReply, Fail, Fault, FaultStorage, TimeOut, Truncate
from shardstore.testing.trace import TraceStorage
from tests.harness.scale import FULL, moments
from tests.maintenance.packing.sources import stored
from tests.stored import StorageObjects, copy_tree, snapshot


@pytest.fixture(scope="module")
def hierarchy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "a.zarr"
    group = zarr.open_group(root, mode="w")
    group.create_array("x", data=np.arange(32, dtype="<i4"), chunks=(2,))
    group.create_array("g/y", data=np.ones((4, 4), "<f4"), chunks=(2, 2), shards=(4, 2))
    (root / "notes.txt").write_text("notes")
    return root


def memory(hierarchy: Path | None = None) -> MemoryStorage:
    storage = MemoryStorage(f"/failing-{uuid.uuid4().hex}")
    if hierarchy is not None:
        copy_tree(hierarchy, StorageObjects(storage))
    return storage


def pack(source: Storage, target: Storage, record: Storage, **options: Any) -> Any:
    return shardstore.pack(source, target, chunks_per_shard=lambda info: (4,) * len(info.shape), record=record, workers=1, **options)


@pytest.fixture(scope="module")
def wanted(hierarchy: Path) -> dict[str, bytes]:
    target = memory()
    pack(memory(hierarchy), target, memory())
    return snapshot(StorageObjects(target))


def requests_of(hierarchy: Path) -> tuple[int, int]:
    """How many requests a run makes of the source and of the target."""
    source, target = TraceStorage(memory(hierarchy)), TraceStorage(memory())
    pack(source, target, memory())
    return len(source.events), len(target.events)


@pytest.mark.parametrize("fault", [Fail(), TimeOut(0.001), DropReply(), Truncate(1)], ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("where", ["source", "target", "record"])
def test_at_every_request(where: str, fault: Any, hierarchy: Path, wanted: dict[str, bytes]) -> None:
    struck = completed = 0
    for at in moments(range(1, sum(requests_of(hierarchy)) + 20), sparse=2):
        places: dict[str, Storage] = {"source": memory(hierarchy), "target": memory(), "record": memory()}
        faulty = FaultStorage(places[where])
        faulty.plan(Fault(at, fault))
        inner = places["target"]
        try:
            report = pack(**(places | {where: faulty}), retries=0)
        except ShardStoreError as exc:
            struck += 1
            assert not [key for key in snapshot(StorageObjects(inner)) if key == "zarr.json"] or where != "source"
            if isinstance(exc, shardstore.Incomplete):
                report = exc.report
                assert report.failed  # type: ignore[attr-defined]
                assert all(unit.error for unit in report.failed)  # type: ignore[attr-defined]
        else:
            completed += 1
            assert report.complete
            assert snapshot(StorageObjects(inner)) == wanted
            if not faulty.struck:
                break
        assert pack(**places).complete
        assert snapshot(StorageObjects(inner)) == wanted
    assert completed
    if FULL and (not isinstance(fault, Truncate) or where == "source"):
        assert struck


@pytest.mark.parametrize("where", ["source", "target"])
def test_tried_again(where: str, hierarchy: Path, wanted: dict[str, bytes]) -> None:
    """One failed request of a unit costs nothing but another try."""
    places: dict[str, Storage] = {"source": memory(hierarchy), "target": memory(), "record": memory()}
    faulty = FaultStorage(places[where])
    faulty.plan(Fault(2, Fail(), operations=frozenset({"read" if where == "source" else "write"}), keys="x/c/*"))
    assert pack(**(places | {where: faulty})).complete
    assert faulty.struck
    assert snapshot(StorageObjects(places["target"])) == wanted


def test_what_fails_for_good_is_named_and_the_rest_is_done(hierarchy: Path, tmp_path: Path, wanted: dict[str, bytes]) -> None:
    source = FaultStorage(memory(hierarchy))
    source.plan(*(Fault(n, Fail(), operations=frozenset({"read"}), keys="x/c/9") for n in range(1, 50)))
    target, record = memory(), memory()
    with pytest.raises(shardstore.Incomplete, match=r"1 of \d+ units could not be done: unit c/2 of x: ") as caught:
        pack(source, target, record)
    report: Any = caught.value.report
    assert [(unit.path, unit.name) for unit in report.failed] == [("x", "c/2")]
    assert report.done == report.units - 1
    there = snapshot(StorageObjects(target))
    assert there == {key: data for key, data in wanted.items() if not key.endswith("zarr.json") and key != "x/c/2"}
    again = pack(source.inner, target, record, only_failed=True)
    assert (again.done, again.complete) == (1, True)
    assert snapshot(StorageObjects(target)) == wanted


def test_an_error_that_is_none_of_ours_is_reported_too(hierarchy: Path) -> None:
    class Strange(FaultStorage):
        async def write(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("out of cheese")

    with pytest.raises(shardstore.Incomplete, match="RuntimeError: out of cheese"):
        pack(memory(hierarchy), Strange(memory()), memory())


def test_a_full_disk(hierarchy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, bytes]) -> None:
    """Local source and target: that is done in one thread, without the protocol in between."""
    from shardstore.storage.local.temporary import TemporaryFile

    def full(self: Any, views: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(TemporaryFile, "append", full)
        with pytest.raises((shardstore.Incomplete, StorageError), match="No space left on device"):
            shardstore.pack(hierarchy, tmp_path / "b.zarr", record=memory())
    assert not stored(tmp_path / "b.zarr") if (tmp_path / "b.zarr").exists() else True


def test_an_occupied_target_is_refused_before_the_source_is_listed(tmp_path: Path) -> None:
    source = MemoryStorage(f"/occupied-{uuid.uuid4().hex}")
    zarr.create_array(shardstore.open(source, chunks_per_shard=None), name="x", shape=(8,), chunks=(2,), dtype="i4")[...] = 1
    trace = TraceStorage(source)
    (tmp_path / "b.zarr").mkdir()
    (tmp_path / "b.zarr/notes.txt").write_text("in the way")
    with trace.count() as block, pytest.raises(Conflict, match="no earlier run has made"):
        shardstore.pack(trace, tmp_path / "b.zarr")
    assert [event for event in block.events if event.op == "list"] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.zarr"]
    report = shardstore.pack(source, tmp_path / "b.zarr", dry_run=True)
    assert any("no earlier run has made" in note for note in report.notes)
