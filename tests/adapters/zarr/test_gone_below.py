"""An archive, a set of references or a target of one that was there and is gone: never an absent chunk."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import NotFound, ShardStoreError, StorageError
from shardstore.snapshots import Repository
from tests.snapshots.repositories import create_array

DATA = np.arange(1, 9, dtype="u1")


def zipped(directory: Path, archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w") as file:
        for path in directory.rglob("*"):
            if path.is_file():
                file.write(path, str(path.relative_to(directory)))
    return archive


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    zarr.create_array(tmp_path / "plain.zarr", name="a", data=DATA, chunks=(4,), compressors=None)
    return tmp_path / "plain.zarr"


def in_a_file(name: str, tmp_path: Path) -> tuple[str, Callable[[], None]]:
    """The URL of a file of values that lies in a directory or, as ``zip``, in an archive; and what removes both."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/data.bin").write_bytes(DATA.tobytes())
    archive = zipped(tmp_path / "in", tmp_path / "x.zip")

    def remove() -> None:
        (tmp_path / "in/data.bin").unlink()
        archive.unlink()

    return f"file://{tmp_path}/in/data.bin" if name == "data.bin" else f"zip://data.bin::file://{archive}", remove


def raised(read: Callable[[], object]) -> BaseException:
    with pytest.raises(ShardStoreError) as caught:
        read()
    return caught.value


def reads_of(mapping: Any) -> list[Callable[[], object]]:
    return [
        lambda: mapping["a/c/0"],
        lambda: mapping.get("a/c/0", b"the default"),
        lambda: mapping.getitems(["a/c/0"], on_error="omit"),
        lambda: "a/c/0" in mapping,
        lambda: list(mapping),
    ]


def check_no_absence(read: Callable[[], object]) -> None:
    error = raised(read)
    assert isinstance(error, StorageError), repr(error)
    assert not isinstance(error, NotFound | KeyError | FileNotFoundError)


@pytest.mark.parametrize("name", ["x.zip", "refs.json"])
def test_archive_or_set_of_references_that_is_gone_when_a_copy_is_read(name: str, plain: Path, tmp_path: Path) -> None:
    if name == "x.zip":
        url = f"zip://::{zipped(plain, tmp_path / name)}"
    else:
        shardstore.references.write_json(plain, tmp_path / name)
        url = f"reference::{tmp_path}/{name}"
    mapping = shardstore.get_mapper(url)
    array = zarr.open_array(shardstore.open(url), path="a", mode="r")
    copies = pickle.dumps(mapping), pickle.dumps(array)
    (tmp_path / name).unlink()
    if name == "x.zip":
        with pytest.raises(NotFound):
            shardstore.get_mapper(url)  # opening it says that there is none
    for read in reads_of(pickle.loads(copies[0])):
        check_no_absence(read)
    check_no_absence(lambda: pickle.loads(copies[1])[...])


@pytest.mark.parametrize("name", ["data.bin", "zip"])
def test_target_of_a_reference_that_is_gone(name: str, tmp_path: Path) -> None:
    """The file itself, or the archive in which it lies."""
    target, remove = in_a_file(name, tmp_path)
    zarr.create_array(tmp_path / "d.zarr", shape=(8,), chunks=(4,), dtype="u1", compressors=None)
    document = (tmp_path / "d.zarr/zarr.json").read_text()
    group = '{"zarr_format": 3, "node_type": "group"}'
    refs = {"zarr.json": group, "a/zarr.json": document, "a/c/0": [target, 0, 4], "a/c/1": [target, 4, 4]}
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    remove()
    mapping = shardstore.get_mapper(f"reference::{tmp_path}/refs.json")
    for read in reads_of(mapping)[:3]:
        check_no_absence(read)
    check_no_absence(lambda: zarr.open_array(shardstore.open(f"reference::{tmp_path}/refs.json"), path="a", mode="r")[...])
    mapper = fsspec.get_mapper(f"sharded::reference::{tmp_path}/refs.json")
    for read in reads_of(mapper)[:2]:
        check_no_absence(read)


def test_reference_to_a_whole_file_that_is_gone_is_no_missing_key(tmp_path: Path) -> None:
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": {"a/c/0": [f"file://{tmp_path}/gone"]}}))
    mapping = shardstore.get_mapper(f"reference::{tmp_path}/refs.json")
    mapper = fsspec.get_mapper(f"sharded::reference::{tmp_path}/refs.json")
    of_fsspec = shardstore.get_mapper(fsspec.filesystem("reference", fo=str(tmp_path / "refs.json")).get_mapper(""))
    for read in (*reads_of(mapping)[:4], *reads_of(mapper)[:2], reads_of(mapper)[3], *reads_of(of_fsspec)[:4]):
        check_no_absence(read)
    check_no_absence(lambda: mapping.getsize("a/c/0"))
    assert list(mapping) == ["a/c/0"]


@pytest.mark.parametrize("name", ["data.bin", "zip"])
def test_virtual_file_that_is_gone(name: str, tmp_path: Path) -> None:
    target, remove = in_a_file(name, tmp_path)
    prefix = target.removesuffix("data.bin") if name == "data.bin" else "zip://"
    repo = Repository.create(f"memory://{tmp_path}", virtual_prefixes=[prefix if prefix.endswith("/") else f"{prefix}/"])
    session = repo.writable_session()
    create_array(session, "a", np.zeros(8, "u1"), (4,), compressors=None)
    session.set_virtual_refs("a", [[0], [1]], target, [0, 4], 4)
    session.commit("refers")
    remove()
    reading = repo.readonly_session()
    for read in (*reads_of(reading.mapping())[:3], lambda: zarr.open_array(reading.store, path="a", mode="r")[...]):
        error = raised(read)
        assert not isinstance(error, NotFound | KeyError | FileNotFoundError), repr(error)


def test_damaged_chunk_is_not_left_out_as_a_missing_one(plain: Path) -> None:
    zarr.create_array(plain, name="b", data=DATA, chunks=(2,), shards=(8,))
    (plain / "b/c/0").write_bytes(b"no shard")
    fs, root = fsspec.url_to_fs(f"sharded::file://{plain}")
    paths = [f"{root}/a/c/0", f"{root}/b/c/0", f"{root}/a/c/9"]
    with pytest.raises(shardstore.Corruption):
        fs.cat(paths, on_error="omit")
    assert list(fs.cat([paths[0], paths[2]], on_error="omit")) == paths[:1]
    returned = fs.cat(paths, on_error="return")
    assert [type(returned[path]).__name__ for path in paths] == ["bytes", "Corruption", "NotFound"]
    with pytest.raises(shardstore.Corruption):
        fs.isfile(paths[1])
    assert (fs.isfile(paths[0]), fs.isfile(paths[2]), fs.isfile(f"{root}/a//b"), fs.isdir(f"{root}/a"), fs.isdir(paths[0])) == (
        True,
        False,
        False,
        True,
        False,
    )


# -- links to a disk that is not mounted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["b", "b/c", "b/c/0"])
@pytest.mark.parametrize("shards", [None, (8,)])
def test_what_lies_behind_a_link_to_nowhere_is_not_absent(where: str, shards: Any, tmp_path: Path) -> None:
    root = tmp_path / "data.zarr"
    zarr.create_array(root, name="b", data=DATA, chunks=(2,), shards=shards)
    array = zarr.open_group(shardstore.open(root, metadata_ttl="10000w"), mode="r")["b"]
    assert isinstance(array, zarr.Array)
    (tmp_path / "disk").mkdir()
    (root / where).rename(tmp_path / "disk/x")
    (root / where).symlink_to(tmp_path / "disk/x")
    assert np.asarray(array[...]).tolist() == DATA.tolist()
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    mapping = shardstore.get_mapper(root)
    for read in (
        lambda: array[...],
        lambda: array[:2],
        lambda: mapping.get("b/c/0", b"the default"),
        lambda: "b/c/0" in mapping,
        lambda: mapping.getitems(["b/c/0"], on_error="omit"),
        lambda: zarr.open_array(shardstore.open(root), path="b", mode="r")[...],
    ):
        check_no_absence(read)
    (tmp_path / "unmounted").rename(tmp_path / "disk")
    assert np.asarray(array[...]).tolist() == DATA.tolist()


def test_what_is_missing_behind_a_link_that_leads_somewhere_is_absent(tmp_path: Path) -> None:
    root = tmp_path / "data.zarr"
    zarr.create_array(root, name="b", data=DATA, chunks=(2,), fill_value=5)
    (root / "b/c/1").unlink()
    (root / "b/c").rename(tmp_path / "c")
    (root / "b/c").symlink_to(tmp_path / "c")
    array = zarr.open_array(shardstore.open(root), path="b", mode="r")
    assert np.asarray(array[2:4]).tolist() == [5, 5]
    assert shardstore.get_mapper(root).get("b/c/1") is None


def test_place_of_a_store_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    mapping = shardstore.get_mapper(tmp_path / "no/such/place")
    assert (mapping.get("a"), list(mapping)) == (None, [])
