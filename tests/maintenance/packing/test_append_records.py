"""Records of appends stay where rows are appended: no copy, export or set of references has them, and upkeep leaves them alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardstore
from shardstore import references
from shardstore.storage.local.storage import LocalStorage
from tests.maintenance.records import KEY, make, put, record
from tests.stored import LocalObjects, document, snapshot

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")

STRAY = "g/y/time.append.json"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A store with a record, and with an object of the same name where no array has the dimension."""
    place = tmp_path / "data.zarr"
    make(LocalStorage(place, fsync=False))
    for key in (KEY, STRAY):
        put(LocalStorage(place, fsync=False), record(10).reserve("aa", 3, 30), key)
    return place


@pytest.mark.parametrize("how", ["pack", "reshard", "unpack"])
def test_packing_leaves_the_record_out(source: Path, tmp_path: Path, how: str) -> None:
    target = tmp_path / "packed.zarr"
    shardstore.pack(source, target) if how == "pack" else getattr(shardstore, how)(source, target)
    keys = LocalObjects(target).keys()
    assert [key for key in keys if key.endswith(".append.json")] == [STRAY]
    assert document(LocalObjects(target), "g/time/zarr.json")["shape"] == [10]


def test_packing_again_changes_nothing_after_an_append_has_reserved(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed.zarr"
    shardstore.pack(source, target)
    before = snapshot(LocalObjects(target))
    put(LocalStorage(source, fsync=False), record(10).reserve("bb", 1, 30))
    shardstore.pack(source, target)
    assert snapshot(LocalObjects(target)) == before


def test_references_have_no_record(source: Path, tmp_path: Path) -> None:
    references.write_json(source, tmp_path / "refs.json")
    refs = json.loads((tmp_path / "refs.json").read_text())["refs"]
    assert "g/time/.zarray" in refs
    assert not [key for key in refs if "append" in key]


@pytest.mark.parametrize("how", ["compact", "repair", "census", "verify"])
def test_upkeep_leaves_the_record_alone(source: Path, how: str) -> None:
    before = snapshot(LocalObjects(source))
    assert getattr(shardstore, how)(source) is not None
    assert snapshot(LocalObjects(source)) == before


def test_a_census_is_the_same_with_and_without_a_record(source: Path) -> None:
    def counted() -> list[tuple[str, int, int]]:
        return [(array.path, array.objects, array.stored_nbytes) for array in shardstore.census(source).arrays]

    with_record = counted()
    (source / KEY).unlink()
    assert counted() == with_record
