"""Where the paths of the filesystem begin, whatever the URL points to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
from shardstore.errors import NotFound


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
