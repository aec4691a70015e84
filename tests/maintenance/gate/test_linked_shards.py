"""Shards behind links in the middle of a store are neither repaired nor compacted, nor is anything kept in the store itself."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import shardstore
from shardstore.errors import Conflict, InvalidInput
from shardstore.storage.local.storage import LocalStorage
from tests.apps.cli.running import run
from tests.maintenance.laid_out import DEAD, array_document, laid_out, put_array
from tests.maintenance.packing.gate.test_whose import files
from tests.stored import StorageObjects


def store(path: Path) -> Path:
    """Two arrays with a loose shard and a torn one each; the shards of ``a`` lie elsewhere, behind a link."""
    objects = StorageObjects(LocalStorage(path))
    for name in "ab":
        layout = put_array(objects, name, array_document())
        objects.put(f"{name}/c/0", laid_out(layout, [(3, b"3" * 40), (DEAD, b"x" * 500)]))
        objects.put(f"{name}/c/1", laid_out(layout, [(3, b"3" * 40)]) + b"torn")
    shutil.move(path / "a/c", path.with_name("elsewhere"))
    (path / "a/c").symlink_to(path.with_name("elsewhere"))
    return path


def repaired(url: Any, **options: Any) -> Any:
    return shardstore.repair(url, allow_reverting=True, **options)


@pytest.mark.parametrize("function", [shardstore.compact, repaired])
def test_only_the_shards_of_the_store_itself_are_maintained(tmp_path: Path, function: Any) -> None:
    place, elsewhere = store(tmp_path / "p"), tmp_path / "elsewhere"
    before, own = files(elsewhere), files(place / "b")
    report = function(place)
    assert (report.shards, report.failed.count) == (2, 2)
    assert {failed.key for failed in report.failed.first} == {"a/c/0", "a/c/1"}
    assert f"is reached through the link {place}/a/c in the middle of a store" in str(report.failed.first[0].error)
    assert files(elsewhere) == before
    assert files(place / "b") != own


def test_dry_runs_tell_of_links_too(tmp_path: Path) -> None:
    place = store(tmp_path / "p")
    assert shardstore.compact(place, dry_run=True).failed.count == 2
    assert shardstore.repair(place).failed.count == 2


@pytest.mark.parametrize("function", [shardstore.compact, repaired])
def test_a_path_or_a_root_behind_a_link_is_refused(tmp_path: Path, function: Any) -> None:
    store(tmp_path / "far")
    place = store(tmp_path / "p")
    (place / "lnk").symlink_to(tmp_path / "far")
    before = files(tmp_path)
    with pytest.raises(Conflict, match=f"'lnk/b' in file://{place} is reached through the link {place}/lnk"):
        function(place, path="lnk/b")
    (place / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    with pytest.raises(Conflict, match=f"is reached through the link {place}/lnk"):
        function(place / "lnk/b")
    (place / "zarr.json").unlink()
    assert files(tmp_path) == before


def test_the_commands_name_the_link(tmp_path: Path) -> None:
    place = store(tmp_path / "p")
    for command in (["compact", str(place)], ["repair", "--yes", str(place)]):
        outcome = run(*command)
        assert outcome.code != 0
        assert f"{place}/a/c" in outcome.out + outcome.err


@pytest.mark.parametrize("place", ["alias", "alias/q", "p/q", ".", "linked/q", "dir::file://{}/p"])
def test_the_quarantine_is_not_in_the_store_by_whatever_name(tmp_path: Path, place: str) -> None:
    store(tmp_path / "p")
    (tmp_path / "alias").symlink_to(tmp_path / "p")
    (tmp_path / "linked").symlink_to(tmp_path / "elsewhere")  # from where shards are read
    before = files(tmp_path)
    given = place.format(tmp_path) if "::" in place else tmp_path / place
    with pytest.raises(InvalidInput, match=r"the quarantine .* and the store .* overlap"):
        shardstore.repair(tmp_path / "p", quarantine=given)
    assert files(tmp_path) == before


def test_the_quarantine_beside_a_store_is_not_a_link_to_it(tmp_path: Path) -> None:
    store(tmp_path / "p")
    (tmp_path / "p.quarantine").symlink_to(tmp_path / "p")
    with pytest.raises(InvalidInput, match="overlap"):
        shardstore.repair(tmp_path / "p")
    assert shardstore.repair(tmp_path / "p", dry_run=True).quarantine is None
