"""Writers of sets that fail, or are killed, at any request: there is no set then, or a whole one."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore import references
from shardstore.errors import NotFound, ShardStoreError
from shardstore.references import places
from shardstore.storage.base import Storage
from shardstore.storage.opening.open import open_storage
from shardstore.testing.faults import DropReply, Effect, Fail, Fault, FaultStorage, Kill
from tests.harness.crash import Child, Crasher
from tests.references.reading import by_fsspec

pytestmark = [pytest.mark.filterwarnings("ignore")]  # of pandas, about fastparquet

ROOT = Path(__file__).parents[2]
OLD, NEW = np.arange(40, dtype="i4"), np.arange(40, dtype="i4")[::-1]
FORMS: dict[str, dict[str, Any]] = {"json": {}, "parquet": {"record_size": 6}}


def make(root: Path) -> None:
    """Two stores, and a set of the first."""
    for name, values in (("old.zarr", OLD), ("new.zarr", NEW)):
        store = shardstore.open(root / name, chunks_per_shard=(4,))
        zarr.create_array(store, name="x", shape=(40,), chunks=(2,), dtype="i4")[...] = values


def write(root: Path, source: str, form: str, faults: list[Fault]) -> list[FaultStorage]:
    """Write a set through storages with faults, which are returned."""
    opened: list[FaultStorage] = []

    def faulty(*arguments: Any) -> Storage:
        opened.append(FaultStorage(open_storage(*arguments), faults))
        return opened[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "open_storage", faulty)
        getattr(references, f"write_{form}")(root / source, root / "set", overwrite=True, **FORMS[form])
    return opened


def write_killed(child: Child, root: str, form: str, at: int, after: bool) -> None:
    write(Path(root), "new.zarr", form, [Fault(at, Kill(after))])
    child.acknowledge("whole")


def check_none_or_whole(root: Path, form: str, *, had_one: bool) -> str:
    """Check what is there; return which."""
    try:
        place = places.find_set(root / "set", None)
    except NotFound:
        assert form == "parquet" or not had_one  # a set in JSON is replaced in one step
        return "none"
    values = by_fsspec(root / "set", "x", 2)
    assert references.check(root / "set").is_sound
    assert len(references.pins(root / "set")) == 5
    is_new = bool((values == NEW).all())
    np.testing.assert_array_equal(values, NEW if is_new else OLD)
    assert places.pins_of(place).origin.store.endswith("new.zarr" if is_new else "old.zarr")
    return "new" if is_new else "old"


@pytest.mark.slow
@pytest.mark.parametrize("had_one", [False, True], ids=["first", "replacing"])
@pytest.mark.parametrize("effect", [Fail(), DropReply()], ids=["fails", "answer lost"])
@pytest.mark.parametrize("form", FORMS)
def test_fails_at_every_request(form: str, effect: Effect, had_one: bool, tmp_path: Path) -> None:
    seen = set()
    for at in itertools.count(1):
        root = tmp_path / str(at)
        make(root)
        if had_one:
            write(root, "old.zarr", form, [])
        try:
            opened = write(root, "new.zarr", form, [Fault(at, effect)])
        except ShardStoreError:
            pass
        else:
            assert check_none_or_whole(root, form, had_one=had_one) == "new"
            if not any(storage.struck for storage in opened):
                break
        seen.add(check_none_or_whole(root, form, had_one=had_one))
        write(root, "new.zarr", form, [])  # which always goes on from there
        assert check_none_or_whole(root, form, had_one=had_one) == "new"
    assert at > 3
    assert seen >= ({"old"} if had_one and form == "json" else {"none"})


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("had_one", [False, True], ids=["first", "replacing"])
@pytest.mark.parametrize("form", FORMS)
def test_killed_at_every_request(form: str, had_one: bool, after: bool, tmp_path: Path) -> None:
    with Crasher(["shardstore.references", "tests.references.test_writing_faults"], [str(ROOT)]) as crasher:
        for at in itertools.count(1):
            root = tmp_path / str(at)
            make(root)
            if had_one:
                write(root, "old.zarr", form, [])
            ended = crasher.run(write_killed, str(root), form, at, after)
            found = check_none_or_whole(root, form, had_one=had_one)
            if not ended.was_killed:
                assert found == "new"
                break
            write(root, "new.zarr", form, [])
            assert check_none_or_whole(root, form, had_one=had_one) == "new"
    assert at > 3
