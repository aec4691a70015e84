"""The root of the paths of the filesystem, whatever the URL points to; and ordinary calls that lost values, or put them elsewhere."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

import shardstore
from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
from shardstore.errors import InvalidInput, NotFound


@pytest.fixture
def hierarchy(tmp_path: Path) -> str:
    """The URL of a group ``data.zarr`` with an array ``x/ct`` of 4 × 4 chunks in 2 × 2 shards."""
    url = f"file://{tmp_path}/data.zarr"
    group = zarr.open_group(f"sharded::{url}", mode="w", storage_options={"chunks_per_shard": [2, 2], "skip_instance_cache": True})
    group.create_array("x/ct", shape=(8, 8), chunks=(2, 2), dtype="i4")[...] = np.arange(64).reshape(8, 8)
    return url


def opened(url: str, **options: Any) -> tuple[ShardedFileSystem, str]:
    fs, path = fsspec.url_to_fs(url, skip_instance_cache=True, **options)
    assert isinstance(fs, ShardedFileSystem)
    return fs, path


@pytest.mark.parametrize("inside", ["zarr.json", "x/ct/zarr.json", "x/ct/c/0/0", "x/ct/c/3/1"])
def test_a_url_of_a_single_file_is_seen_from_its_hierarchy(hierarchy: str, inside: str) -> None:
    fs, root = opened(f"sharded::{hierarchy}")
    expected = fs.cat(f"{root}/{inside}")
    other, path = opened(f"sharded::{hierarchy}/{inside}")
    assert path == f"{root}/{inside}"
    assert other.cat(path) == other.cat_file(path) == expected
    assert other.cat_ranges([path], [0], [4]) == [expected[:4]]
    assert other.info(path) == {"name": path, "size": len(expected), "type": "file"}
    assert other.exists(path)
    assert other.isfile(path)
    assert not other.isdir(path)
    with fsspec.open(f"sharded::{hierarchy}/{inside}", skip_instance_cache=True) as file:
        assert file.read() == expected
    assert other.engine is fs.engine


def test_a_chunk_is_written_into_its_shard_by_its_url_alone(hierarchy: str) -> None:
    fs, root = opened(f"sharded::{hierarchy}")
    chunk = fs.cat(f"{root}/x/ct/c/0/1")
    with fsspec.open(f"sharded::{hierarchy}/x/ct/c/3/3", "wb", skip_instance_cache=True) as file:
        file.write(chunk)
    assert fs.cat(f"{root}/x/ct/c/3/3") == chunk
    array = zarr.open_array(f"{hierarchy}/x/ct", mode="r")
    assert array.shards == (4, 4)
    np.testing.assert_array_equal(array[6:, 6:], array[:2, 2:4])
    other, path = opened(f"sharded::{hierarchy}/x/ct/c/2/2")
    other.rm_file(path)
    assert not fs.exists(f"{root}/x/ct/c/2/2")
    assert fs.exists(f"{root}/x/ct/c/2/3")


def test_a_directory_among_the_chunks_shows_chunks_and_no_shards(hierarchy: str) -> None:
    fs, path = opened(f"sharded::{hierarchy}/x/ct/c")
    assert fs.ls(path, detail=False) == [f"{path}/{i}" for i in range(4)]
    assert fs.find(path) == [f"{path}/{i}/{j}" for i in range(4) for j in range(4)]
    assert len(fs.find("x/ct/c")) == 16, "relative paths begin at the hierarchy"


def test_patterns(hierarchy: str) -> None:
    files = fsspec.open_files(f"sharded::{hierarchy}/x/ct/c/0/*", skip_instance_cache=True)
    assert [file.path.rpartition("/x/ct/")[2] for file in files] == ["c/0/0", "c/0/1", "c/0/2", "c/0/3"]


def test_a_node_is_a_root(hierarchy: str) -> None:
    fs, path = opened(f"sharded::{hierarchy}/x/ct")
    assert fs.ls(path, detail=False) == [f"{path}/c", f"{path}/zarr.json"]
    assert zarr.open_array(f"sharded::{hierarchy}/x/ct", mode="r").chunks == (2, 2)


def test_what_belongs_to_no_hierarchy(tmp_path: Path) -> None:
    url = f"sharded::file://{tmp_path}/notes.txt"
    with pytest.raises(NotFound, match="nothing at"), fsspec.open(url, skip_instance_cache=True):
        pass
    with fsspec.open(url, "wb", skip_instance_cache=True) as file:
        file.write(b"hello")
    assert (tmp_path / "notes.txt").read_bytes() == b"hello"
    fs, path = opened(url)
    assert fs.cat(path) == b"hello"
    fs, path = opened(f"sharded::file://{tmp_path}")
    with pytest.raises(IsADirectoryError):
        fs.cat_file(path)


def test_a_new_store_inside_of_a_group_is_a_store(hierarchy: str) -> None:
    """The group around it has no say in what lies there."""
    fs, path = opened(f"sharded::{hierarchy}/new", sharded={"chunks_per_shard": [2]})
    fs.pipe(f"{path}/a", b"1")
    assert fs.find(path) == [f"{path}/a"]
    assert fs.key_of(path) == ""


def test_looking_costs_one_request_where_there_is_a_node(hierarchy: str) -> None:
    fs, path = opened(f"sharded::{hierarchy}/x/ct", sharded={"commit_attempts": 7})  # an engine of its own
    fs.counters.reset()
    fs.cat_file(f"{path}/zarr.json")
    assert fs.counters.requests == 2


@pytest.fixture
def root(tmp_path: Path) -> str:
    """The path of a group with an array ``ct`` of 8 × 8 chunks in 4 × 4 shards."""
    store = shardstore.open(tmp_path / "d.zarr", chunks_per_shard=(4, 4))
    group = zarr.open_group(store, mode="w")
    group.create_array("ct", shape=(16, 16), chunks=(2, 2), dtype="i4")[...] = np.arange(1, 257).reshape(16, 16)
    return str(tmp_path / "d.zarr")


def sharded(fo: str, **options: Any) -> ShardedFileSystem:
    return ShardedFileSystem(fo=fo, target_protocol="file", skip_instance_cache=True, **options)


def strays(root: str) -> list[str]:
    """Stored files that are neither documents nor shards of ``ct``."""
    found = [str(p.relative_to(root)) for p in Path(root).rglob("*") if p.is_file()]
    return [name for name in found if not name.endswith("zarr.json") and not (name.startswith("ct/c/") and name.count("/") == 3)]


# -- the root is found out once, whoever asks --------------------------------------------------------------------------


def test_threads_that_use_a_new_instance_at_once_write_where_they_mean_to(root: str) -> None:
    for _ in range(5):
        fs = sharded(f"{root}/ct/c/0/0")
        value = sharded(root).cat_file(f"{root}/ct/c/7/7")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(fs.pipe_file, [f"{root}/ct/c/{i}/0" for i in range(8)], [value] * 8))
        assert fs.engine is sharded(root).engine
        assert strays(root) == []
        np.testing.assert_array_equal(zarr.open_array(f"{root}/ct", mode="r")[:, :2], np.tile([[239, 240], [255, 256]], (8, 1)))


async def test_tasks_that_use_a_new_instance_at_once(root: str) -> None:
    fs = sharded(f"{root}/ct/c/0/0", asynchronous=True)
    found = await asyncio.gather(*(fs._exists(f"{root}/ct/c/{i}/0") for i in range(20)))
    assert found == [True] * 8 + [False] * 12


def test_a_full_path_given_first_is_a_full_path(root: str) -> None:
    value = sharded(root).cat_file("ct/c/7/7")
    with sharded(f"{root}/ct/c/1/1").open(f"{root}/ct/c/0/1", "wb") as file:
        file.write(value)
    assert sharded(root).cat_file("ct/c/0/1") == value
    fs = sharded(f"{root}/ct/c/1/1")
    assert len(fs.cat([f"{root}/ct/c/0/0", f"{root}/ct/c/3/3"])) == 2
    fs = sharded(f"{root}/ct/c/1/1")
    fs.cp(f"{root}/ct/c/0/1", f"{root}/ct/c/2/2")
    assert sharded(root).cat_file("ct/c/2/2") == value
    assert strays(root) == []


def test_a_transaction_holds_back_what_a_new_instance_writes(root: str) -> None:
    old, value = (sharded(root).cat_file(f"ct/c/{i}/{i}") for i in (0, 7))
    path = f"{root}/ct/c/0/0"
    fs = sharded(path)
    with pytest.raises(KeyError) as caught, fs.transaction:  # noqa: PT012  # the block is what is tested
        fs.pipe_file(path, value)
        raise KeyError
    assert "1 held-back keys were discarded" in caught.value.__notes__[0]
    assert sharded(root).cat_file(path) == old
    fs = sharded(path)
    with fs.transaction:
        fs.pipe_file(path, value)
    assert sharded(root).cat_file(path) == value


def test_an_instance_that_looked_too_early_looks_again(tmp_path: Path) -> None:
    path = f"{tmp_path}/later.zarr/ct/c/0/0"
    fs = sharded(path)
    assert not fs.exists(path)
    assert not fs.isdir(path)
    group = zarr.open_group(shardstore.open(tmp_path / "later.zarr", chunks_per_shard=(2,)), mode="w")
    group.create_array("ct", shape=(8,), chunks=(2,), dtype="i4", chunk_key_encoding={"name": "default", "separator": "/"})[...] = 1
    fs = sharded(f"{tmp_path}/later.zarr/ct/c/1")
    assert fs.exists(f"{tmp_path}/later.zarr/ct/c/1")
    early = sharded(f"{tmp_path}/other.zarr/ct/c/1")
    assert not early.exists(f"{tmp_path}/other.zarr/ct/c/1")
    os.rename(tmp_path / "later.zarr", tmp_path / "other.zarr")
    assert early.exists(f"{tmp_path}/other.zarr/ct/c/1")


def test_a_filesystem_understands_its_own_urls() -> None:
    fs, path = fsspec.url_to_fs("sharded::memory://safety/d", skip_instance_cache=True)
    fs.pipe("sharded::memory://safety/d/x", b"1")
    assert fs.cat(f"{path}/x") == fs.cat("memory://safety/d/x") == fs.cat("x") == b"1"
    assert fs.find("") == [f"{path}/x"]
    fs.rm("", recursive=True)


def test_there_is_nothing_where_nothing_was_written(tmp_path: Path) -> None:
    fs, path = fsspec.url_to_fs(f"sharded::file://{tmp_path}/nothing.zarr", skip_instance_cache=True)
    assert not fs.exists(path)
    assert not fs.isdir(path)
    assert fs.find(path) == []
    fs.pipe(f"{path}/a", b"1")
    assert fs.isdir(path)


@pytest.mark.parametrize("how", ["pipe", "put", "cp"])
def test_a_new_file_is_made_by_its_url_alone(tmp_path: Path, how: str) -> None:
    (tmp_path / "source").write_bytes(b"1")
    path = f"{tmp_path}/there/new"
    fs = sharded(path)
    if how == "pipe":
        fs.pipe({path: b"1"})
    elif how == "put":
        fs.put(f"{tmp_path}/source", path)
    else:
        sharded(f"{tmp_path}/there").pipe("old", b"1")
        fs.cp(f"{tmp_path}/there/old", path)
    assert Path(path).read_bytes() == b"1"


# -- names are names ---------------------------------------------------------------------------------------------------


def test_zarr_removes_what_it_names_and_nothing_that_looks_alike(tmp_path: Path) -> None:
    for name in ("run1.zarr", "run2.zarr"):
        zarr.open_group(shardstore.open(tmp_path / name), mode="w").create_array("x", shape=(4,), chunks=(2,), dtype="i4")
    zarr.open_group(f"sharded::file://{tmp_path}/run?.zarr", mode="w")
    assert (tmp_path / "run1.zarr/x/zarr.json").exists()
    assert (tmp_path / "run2.zarr/x/zarr.json").exists()
    group = zarr.open_group(f"sharded::file://{tmp_path}/names.zarr", mode="w")
    for name in ("a1", "b", "b*", "a[1]"):
        group.create_array(name, shape=(4,), chunks=(2,), dtype="i4")
    group.create_array("a[1]", shape=(4,), chunks=(4,), dtype="i4", overwrite=True)
    del group["b*"]
    assert sorted(group.array_keys()) == ["a1", "a[1]", "b"]


def test_the_users_own_rm_expands_globs(root: str) -> None:
    fs = sharded(root)
    fs.rm(f"{root}/ct/c/0/*")
    assert fs.find(f"{root}/ct/c/0") == []
    assert len(fs.find(f"{root}/ct/c")) == 56
    with pytest.raises(IsADirectoryError, match="recursive=True"):
        fs.rm("ct")
    with pytest.raises(NotFound):
        fs.rm("nothing")
    with pytest.raises(IsADirectoryError, match="recursive=True"):
        fs.mv("ct", "ct2")
    assert len(fs.find(f"{root}/ct/c")) == 56


def test_a_key_and_a_directory_of_one_name_are_both_removed() -> None:
    fs, _ = fsspec.url_to_fs("sharded::memory://safety/both", skip_instance_cache=True)
    fs.pipe({"both": b"1", "both/below": b"2", "other": b"3"})
    fs.rm("both", recursive=True)
    assert [path.rpartition("/")[2] for path in fs.find("")] == ["other"]
    fs.rm("", recursive=True)


# -- two into one ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["mv", "cp", "get", "put"])
def test_files_of_one_name_do_not_replace_each_other(root: str, tmp_path: Path, operation: str) -> None:
    fs = sharded(root)
    before = fs.cat(fs.find(""))
    (tmp_path / "target").mkdir()
    for name in ("p", "q"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same").write_bytes(name.encode())
    sources = [f"{tmp_path}/p/same", f"{tmp_path}/q/same"] if operation == "put" else [f"{root}/ct/c/0/0", f"{root}/ct/c/1/0"]
    target = f"{tmp_path}/target/" if operation == "get" else "backup/"
    with pytest.raises(InvalidInput, match="two of the files would be written to"):
        getattr(fs, operation)(sources, target)
    if operation == "mv":
        with pytest.raises(InvalidInput):
            fs.mv(["ct/c/4", "ct/c/5"], "backup/", recursive=True)
    assert fs.cat(fs.find("")) == before


def test_moving_into_or_onto_itself_changes_nothing(root: str) -> None:
    fs = sharded(root)
    before = fs.cat(fs.find(""))
    for source, target in (("ct", "ct/inside"), ("ct", "ct"), ("ct/c/0/0", "ct/c/0/"), (f"{root}/ct/c/0/0", "ct/c/0/0")):
        with pytest.raises((InvalidInput, NotFound)):
            fs.mv(source, target, recursive=True)
        assert fs.cat(fs.find("")) == before, (source, target)


def test_of_two_who_append_at_once_one_is_told() -> None:
    fs, _ = fsspec.url_to_fs("sharded::memory://safety/append", skip_instance_cache=True)
    fs.pipe("log", b"xxx")
    one, two = fs.open("log", "ab"), fs.open("log", "ab")
    one.write(b"AAAAAA")
    two.write(b"BB")
    two.close()
    with pytest.raises(InvalidInput, match="had 3 bytes when it was opened to append to it, and has 5 now"):
        one.close()
    assert fs.cat("log") == b"xxxBB"
    fs.rm("", recursive=True)


# -- beyond the store --------------------------------------------------------------------------------------------------


def test_erasing_removes_links_and_not_what_they_lead_to(root: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "k").write_bytes(b"precious")
    fs = sharded(root)
    for name in ("g/link", "g/inside/link", "top"):
        link = Path(root, name)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(outside)
    assert fs.cat(f"{root}/g/link/deep/k") == b"precious"
    fs.rm("g", recursive=True)
    assert not Path(root, "g").exists()
    fs.rm("top", recursive=True)
    assert not Path(root, "top").is_symlink()
    assert (outside / "deep" / "k").read_bytes() == b"precious"
    store = tmp_path / "linked.zarr"
    store.symlink_to(root)
    sharded(str(store)).rm("", recursive=True)  # the root itself is where it is
    assert not Path(root, "zarr.json").exists()


def test_an_array_opened_by_its_own_url_beside_its_group(root: str) -> None:
    """The group's engine learns at once that the array has been made anew with other shards."""
    url = f"sharded::file://{root}"
    group = zarr.open_group(url, mode="r+", storage_options={"chunks_per_shard": [4, 4]})
    old = group["ct"]
    assert isinstance(old, zarr.Array)
    options = {"chunks_per_shard": [2, 2]}
    zarr.create_array(f"{url}/ct", overwrite=True, shape=(16, 16), chunks=(2, 2), dtype="i4", storage_options=options)
    old[0:8, 0:8] = 6
    native = zarr.open_array(f"{root}/ct", mode="r")
    assert native.shards == (4, 4)
    assert np.all(native[:8, :8] == 6)
    assert np.all(native[8:] == 0)
