"""Sources that name what cannot be reached, or read: the target, old or new, loses nothing by it, and is not called complete."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.engine.moving import copy_nodes, move_between
from shardstore.errors import Incomplete, ShardStoreError, StorageError
from shardstore.opening.open import open_storage


def made(path: Path, value: int = 3, dtype: str = "i4", **more: Any) -> Path:
    array = zarr.open_group(path, mode="a").create_array("a", shape=(8,), chunks=(1,), dtype=dtype, compressors=None, **more)
    array[...] = value
    return path


def files(path: Path) -> dict[str, bytes]:
    found = {p.relative_to(path).as_posix(): p for p in path.rglob("*") if p.is_file() and "shardstore-lock" not in p.name}
    return {name: found[name].read_bytes() for name in sorted(found)}


def values(path: Path) -> list[int]:
    found: list[int] = np.asarray(zarr.open_group(path, mode="r")["a"]).tolist()
    return found


def pack(source: Any, target: Any, **options: Any) -> Any:
    return shardstore.pack(source, target, chunks_per_shard=(2,), fsync=False, **options)


def whole_references(source: Path, place: Path) -> str:
    place.write_text(json.dumps({k: v.decode() if k.endswith("json") else [f"file://{source / k}"] for k, v in files(source).items()}))
    return f"reference::{place}"


def span_references(source: Path, place: Path) -> str:
    references = {k: v.decode() if k.endswith("json") else [f"file://{source / k}", 0, len(v)] for k, v in files(source).items()}
    place.write_text(json.dumps(references))
    return f"reference::{place}"


def linked_chunks(source: Path, place: Path) -> str:
    """As an annex of files has it: each chunk is a link to where its bytes are."""
    shutil.copytree(source, place)
    for path in (place / "a/c").iterdir():
        path.unlink()
        path.symlink_to(source / "a/c" / path.name)
    return str(place)


def linked_directory(source: Path, place: Path) -> str:
    shutil.copytree(source, place)
    shutil.rmtree(place / "a/c")
    (place / "a/c").symlink_to(source / "a/c")
    return str(place)


NAMED = {"whole references": whole_references, "linked chunks": linked_chunks, "linked directory": linked_directory}


@pytest.mark.parametrize("by", NAMED)
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_named_and_not_there_is_no_chunk_that_was_erased(tmp_path: Path, by: str, overwrite: bool) -> None:
    disk, target = made(tmp_path / "disk"), tmp_path / "t"
    source = NAMED[by](disk, tmp_path / "source")
    assert pack(source, target).complete
    disk.rename(tmp_path / "unmounted")
    before = files(target)
    for options in ({}, {"dry_run": True}):
        with pytest.raises(StorageError, match=r"names '?a/c.*what these lead to is not there"):
            pack(source, target, overwrite=overwrite, **options)
    assert files(target) == before
    (tmp_path / "unmounted").rename(disk)
    assert pack(source, target, overwrite=overwrite).complete
    assert values(target) == [3] * 8


def test_a_reference_to_what_is_not_there_is_no_chunk_that_is_missing(tmp_path: Path) -> None:
    disk = made(tmp_path / "disk")
    source = whole_references(disk, tmp_path / "source")
    (disk / "a/c/5").unlink()
    array = zarr.open_array(shardstore.open(source), path="a", mode="r")
    assert np.asarray(array[:5]).tolist() == [3] * 5
    with pytest.raises(StorageError, match="refers for 'a/c/5' to what is not there"):
        array[5]
    assert array[6] == 3


@pytest.mark.parametrize("by", NAMED)
def test_one_thing_that_is_not_there_is_named_and_can_be_left_out(tmp_path: Path, by: str) -> None:
    disk, target = made(tmp_path / "disk"), tmp_path / "t"
    zarr.open_group(disk).create_array("b", shape=(2,), chunks=(1,), dtype="i4")[...] = 7
    source = NAMED[by](disk, tmp_path / "source")
    if by == "linked directory":
        shutil.rmtree(disk / "a/c")
    else:
        (disk / "a/c/5").unlink()
    with pytest.raises(StorageError, match=r"a/c"):
        pack(source, target)
    assert not target.exists()
    assert pack(source, target, exclude="a").complete
    assert sorted(zarr.open_group(target, mode="r").array_keys()) == ["b"]


@pytest.mark.parametrize("by", [*NAMED, "references"])
@pytest.mark.parametrize("move", [False, True])
def test_nothing_is_copied_over_by_what_is_not_there(tmp_path: Path, by: str, move: bool) -> None:
    if move and "references" in by:
        pytest.skip("references are read only")
    disk, target = made(tmp_path / "disk"), made(tmp_path / "t", 5, "f8")
    source = (NAMED | {"references": span_references})[by](disk, tmp_path / "source")
    disk.rename(tmp_path / "unmounted")
    before = files(target)
    transfer = move_between if move else copy_nodes
    with pytest.raises(ShardStoreError):
        run_sync(transfer(Engine(open_storage(source)), "", Engine(open_storage(target)), "", overwrite=True))
    assert files(target) == before
    assert values(target) == [5.0] * 8


def v2_made(path: Path) -> Path:
    array = zarr.open_group(path, mode="a", zarr_format=2).create_array("a", shape=(8,), chunks=(1,), dtype="f8", compressors=None)
    array[...] = 5
    return path


def linked(path: Path) -> Path:
    made(path.with_name("elsewhere"), 5)
    made(path, 5)
    shutil.rmtree(path / "a/c")
    (path / "a/c").symlink_to(path.with_name("elsewhere") / "a/c")
    return path


def square(path: Path) -> Path:
    """Its chunks lie where those of one dimension cannot be: in directories with their names."""
    zarr.open_group(path, mode="a").create_array("a", shape=(2, 2), chunks=(1, 1), dtype="f8", compressors=None)[...] = 5
    return path


OLD = {"v3": lambda path: made(path, 5, "f8"), "v2": v2_made, "links": linked, "more dimensions": square}


@pytest.mark.parametrize("old", OLD)
def test_a_source_that_cannot_be_read_costs_an_overwritten_target_nothing(tmp_path: Path, old: str) -> None:
    disk = made(tmp_path / "disk")
    source, target = span_references(disk, tmp_path / "refs.json"), OLD[old](tmp_path / "t")
    disk.rename(tmp_path / "unmounted")
    before, links = files(target), [path for path in target.rglob("*") if path.is_symlink()]
    with pytest.raises(Incomplete, match="could not be done"):
        pack(source, target, overwrite=True)
    assert files(target) == before
    assert [path for path in target.rglob("*") if path.is_symlink()] == links
    assert np.unique(np.asarray(zarr.open_group(target, mode="r")["a"])).tolist() == [5.0]
    (tmp_path / "unmounted").rename(disk)
    assert pack(source, target, overwrite=old == "links").complete  # goes on, but for links, which only overwriting removes
    assert values(target) == [3] * 8
    assert files(target).keys() == {"zarr.json", "a/zarr.json", "a/c/0", "a/c/1", "a/c/2", "a/c/3"}


def test_an_array_that_cannot_be_read_keeps_its_document_while_others_are_replaced(tmp_path: Path) -> None:
    source, target = made(tmp_path / "s", shards=(8,)), made(tmp_path / "t", 5, "f8")
    for path, value in ((source, 3), (target, 5)):
        zarr.open_group(path).create_array("b", shape=(8,), chunks=(1,), dtype="i2", compressors=None)[...] = value
    shard = source / "a/c/0"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\xff")
    with pytest.raises(Incomplete):
        pack(source, target, overwrite=True)
    assert values(target) == [5.0] * 8


def test_a_renewed_target_keeps_the_document_of_an_array_that_cannot_be_read(tmp_path: Path) -> None:
    disk, target = made(tmp_path / "disk"), tmp_path / "t"
    source = span_references(disk, tmp_path / "refs.json")
    pack(source, target)
    shutil.rmtree(disk)
    made(disk, 9, "f8")
    span_references(disk, tmp_path / "refs.json")
    disk.rename(tmp_path / "unmounted")
    with pytest.raises(Incomplete):
        pack(source, target)
    assert values(target) == [3] * 8
    (tmp_path / "unmounted").rename(disk)
    assert pack(source, target).complete
    assert values(target) == [9.0] * 8
