"""Named pipes, sockets and directories in the place of objects on a local disk: an error names them, and nothing takes them for absent."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

import shardstore
from shardstore.errors import ShardStoreError, StorageError
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import DIRECTORY, Failed, Read
from shardstore.storage.generic.storage import GenericStorage
from shardstore.storage.local.storage import LocalStorage
from tests.stored import on_io_loop

pytestmark = [pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")]

Make = Callable[[Path], None]


def named_pipe(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # the names of sockets are short
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


def directory(path: Path) -> None:
    path.mkdir()


SPECIAL = {"a named pipe": named_pipe, "a socket": unix_socket}
ALL = SPECIAL | {"a directory": directory}
of_special = pytest.mark.parametrize(("what", "make"), SPECIAL.items(), ids=["pipe", "socket"])
of_all = pytest.mark.parametrize(("what", "make"), ALL.items(), ids=["pipe", "socket", "directory"])


def store_with(tmp_path: Path, make: Make, key: str = "a/c/1", *, shards: tuple[int, ...] | None = None, zarr_format: Any = 3) -> Path:
    """A store of ones with something else in the place of an object; chunk ``c/2`` of it was never written."""
    root = tmp_path / "data.zarr"
    options: dict[str, Any] = {"shards": shards} if shards else {}
    array = zarr.create_array(
        zarr.storage.LocalStore(root), name="a", shape=(8,), chunks=(2,), dtype="u1", fill_value=0, zarr_format=zarr_format, **options
    )
    array[:4] = 1
    array[6:] = 1
    path = root / key
    if path.exists():
        path.unlink()
    make(path)
    return root


@of_all
@pytest.mark.parametrize("shards", [None, (2,)], ids=["plain", "sharded"])
def test_reading_is_an_error_that_names_it(what: str, make: Make, shards: Any, tmp_path: Path) -> None:
    root = store_with(tmp_path, make, shards=shards)
    array = zarr.open_group(shardstore.open(root, read_only=True), mode="r")["a"]
    assert isinstance(array, zarr.Array)
    with pytest.raises(StorageError, match=rf"a/c/1'?: there is {what} of this name"):
        array[...]
    assert np.asarray(array[4:]).tolist() == [0, 0, 1, 1]  # the missing chunk is missing
    chunks = shardstore.get_mapper(root, read_only=True)
    with pytest.raises(StorageError, match=what):
        chunks["a/c/1"]
    assert "a/c/2" not in chunks


@of_all
def test_reading_an_array_of_zarr_v2_is_an_error_that_names_it(what: str, make: Make, tmp_path: Path) -> None:
    root = store_with(tmp_path, make, "a/1", zarr_format=2)
    array = zarr.open_group(shardstore.open(root, read_only=True), mode="r", zarr_format=2)["a"]
    assert isinstance(array, zarr.Array)
    with pytest.raises(StorageError, match=rf"a/1'?: there is {what} of this name"):
        array[...]
    assert np.asarray(array[4:]).tolist() == [0, 0, 1, 1]


@of_all
@pytest.mark.parametrize("shards", [None, (2,)], ids=["plain", "sharded"])
def test_writing_leaves_it_alone(what: str, make: Make, shards: Any, tmp_path: Path) -> None:
    root = store_with(tmp_path, make, shards=shards)
    with pytest.raises(ShardStoreError, match=f"{what}|there is a directory"):
        zarr.open_array(shardstore.open(root, fsync=False), path="a")[2:4] = 5
    assert not (root / "a/c/1").is_file()
    assert (root / "a/c/1").exists()


@of_all
@pytest.mark.parametrize("name", ["zarr.json", ".zarray"])
def test_documents(what: str, make: Make, name: str, tmp_path: Path) -> None:
    root = store_with(tmp_path, make, f"a/{name}", zarr_format=3 if name == "zarr.json" else 2)
    chunks = shardstore.get_mapper(root, read_only=True)
    with pytest.raises(StorageError, match=what):
        chunks[f"a/{name}"]
    with pytest.raises(StorageError, match=what):
        shardstore.pack(root, tmp_path / "packed.zarr", fsync=False)
    assert not (tmp_path / "packed.zarr").exists()


@of_all
@pytest.mark.parametrize(("zarr_format", "key"), [(3, "a/c/1"), (2, "a/1")])
def test_packing(what: str, make: Make, zarr_format: int, key: str, tmp_path: Path) -> None:
    root = store_with(tmp_path, make, key, zarr_format=zarr_format)
    target = tmp_path / "packed.zarr"
    with pytest.raises(StorageError, match=rf"{key} \({what}\).*Nothing was written"):
        shardstore.pack(root, target, chunks_per_shard=(2,), fsync=False)
    assert not target.exists()
    report = shardstore.pack(root, target, chunks_per_shard=(2,), exclude=[key], fsync=False)
    assert report.complete


def test_packing_takes_directories_of_chunks_and_of_others_for_what_they_are(tmp_path: Path) -> None:
    root = tmp_path / "data.zarr"
    zarr.create_array(zarr.storage.LocalStore(root), name="a", shape=(4, 4), chunks=(2, 2), dtype="u1")[...] = 1
    (root / "a/notes/1").mkdir(parents=True)
    (root / "empty").mkdir()
    assert shardstore.pack(root, tmp_path / "packed.zarr", fsync=False).complete


@of_all
@pytest.mark.parametrize("shards", [None, (2,)], ids=["plain", "sharded"])
def test_verify_and_census(what: str, make: Make, shards: Any, tmp_path: Path) -> None:
    root = store_with(tmp_path, make, shards=shards)
    assert [(one.key, what in str(one.error)) for one in shardstore.verify(root).unread] == [("a/c/1", True)]
    assert [(one.key, what in str(one.error)) for one in shardstore.census(root).failed] == [("a/c/1", True)]


def test_a_sound_store_has_nothing_unread(tmp_path: Path) -> None:
    root = store_with(tmp_path, directory, "a/d")
    assert not shardstore.verify(root).unread
    assert not shardstore.census(root).failed


@of_special
def test_listing_moving_and_erasing(what: str, make: Make, tmp_path: Path) -> None:
    root = store_with(tmp_path, make)
    files: Any = fsspec.filesystem("sharded", fo=str(root), target_protocol="file", fsync=False)
    assert [name.rpartition("/")[2] for name in files.ls(f"{root}/a/c", detail=False)] == ["0", "3"]
    for move in (files.mv, files.cp):
        with pytest.raises(StorageError, match=f"'a/c/1': there is {what}"):
            move(f"{root}/a", f"{root}/b", recursive=True)
    assert not (root / "b").exists()
    with pytest.raises(StorageError, match=what):
        files.rm_file(f"{root}/a/c/1")
    assert (root / "a/c/1").exists()
    files.rm(f"{root}/a", recursive=True)
    assert not (root / "a").exists()


def test_a_pipe_is_never_waited_for_and_a_read_of_a_file_is_not_looked_at_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named_pipe(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"value")
    (tmp_path / "directory").mkdir()
    storage = LocalStorage(tmp_path)
    calls: Counter[str] = Counter()
    for name in ("open", "stat", "fstat", "lstat", "read", "pread", "close"):
        true: Any = getattr(os, name)

        def counted(*arguments: Any, name: str = name, true: Any = true, **options: Any) -> Any:
            calls[name] += 1
            return true(*arguments, **options)

        monkeypatch.setattr(os, name, counted)
    read = storage.read_blocking([Read("file", (EVERYTHING,))])
    assert bytes(read[0].buffers[0]) == b"value"  # type: ignore[union-attr]
    assert calls == {"open": 1, "fstat": 2, "pread": 1, "close": 1}
    (pipe, there) = storage.read_blocking([Read("pipe", (EVERYTHING,)), Read("directory", (EVERYTHING,))])
    assert isinstance(pipe, Failed)
    assert "'pipe': there is a named pipe of this name" in str(pipe.error)
    assert there == DIRECTORY


def test_other_filesystems_on_disks(tmp_path: Path) -> None:
    """fsspec's own filesystem would wait for a pipe for ever."""
    named_pipe(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    for fs in (AsyncFileSystemWrapper(fsspec.filesystem("file")), fsspec.filesystem("simplecache", fs=fsspec.filesystem("file"))):
        storage = GenericStorage(fs, str(tmp_path))
        pipe, there = on_io_loop(asyncio.wait_for(storage.read([Read("pipe", (EVERYTHING,)), Read("directory", (EVERYTHING,))]), 20))
        assert isinstance(pipe, Failed)
        assert "in the place of an object" in str(pipe.error)
        assert there == DIRECTORY
