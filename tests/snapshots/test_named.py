"""``URL@ref``: one snapshot of a versioned store, wherever a URL is taken; and other places with ``@`` in their names, as ever."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr

import shardstore
from shardstore.errors import AccessDenied, InvalidInput, NotFound, ReadOnly, StorageError, Unsupported
from shardstore.opening import snapshot_urls
from shardstore.opening.open import open_storage
from shardstore.opening.snapshot_urls import holds_versioned_store, may_name_snapshot, named_snapshot
from shardstore.snapshots import Repository
from shardstore.storage.base import Failed, Read, ReadOutcome, Storage
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests.snapshots.repositories import run
from tests.together.gate.test_processes import in_fork, may_fork, needs_fork

SHAPE, CHUNKS = (16, 8), (4, 4)


def commit(repo: Repository, value: int, branch: str = "main") -> str:
    """Commit an array ``ct`` in the group ``scans`` whose elements all are ``value``; return the snapshot."""
    session = repo.writable_session(branch)
    zarr.create_array(session.store, name="scans/ct", shape=SHAPE, chunks=CHUNKS, dtype="i4", overwrite=True)[...] = value
    return session.commit(f"value {value}")


def value_in(store: Any, path: str = "scans/ct") -> int:
    """The one value of all elements."""
    (value,) = np.unique(np.asarray(zarr.open_array(store, path=path, mode="r")[...])).tolist()
    return int(value)


class Store:
    """A versioned store in which each name means another value."""

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        self.url, self.options = url, options
        self.repo = Repository.create(url, storage_options=options)
        self.first = commit(self.repo, 1)
        self.repo.create_tag("v1", self.first)
        self.repo.create_branch("try/more", self.first)
        self.other = commit(self.repo, 2, "try/more")
        commit(self.repo, 3)

    @property
    def values(self) -> dict[str, int]:
        return {"main": 3, "v1": 1, "try/more": 2, self.first: 1, self.other: 2}


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "run.ice"))


@pytest.fixture(params=["local", "file", "memory", pytest.param("s3", marks=pytest.mark.gate)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "s3":
            url, options = request.getfixturevalue("s3_url")
            return Store(f"{url}/run.ice", options)
        case "memory":
            return Store(f"memory://{tmp_path.name}-run.ice")
        case "file":
            return Store(f"file://{tmp_path}/run.ice")
        case _:
            return Store(str(tmp_path / "run.ice"))


# -- names -------------------------------------------------------------------------------------------------------------


def test_a_url_names_a_snapshot_by_branch_tag_or_id(store: Store) -> None:
    for ref, value in store.values.items():
        assert value_in(shardstore.open(f"{store.url}@{ref}", storage_options=store.options)) == value, ref


def test_a_path_may_follow_the_name(store: Store) -> None:
    for ref, value in store.values.items():
        assert value_in(shardstore.open(f"{store.url}@{ref}/scans/", storage_options=store.options), "ct") == value, ref
        mapping = shardstore.get_mapper(f"{store.url}@{ref}/scans/ct", storage_options=store.options)
        assert sorted(mapping)[0] == "c/0/0"
        assert len(mapping) == 9


def test_a_branch_counts_before_the_id_of_a_snapshot(local: Store) -> None:
    local.repo.create_branch(local.first, local.other)
    assert value_in(shardstore.open(f"{local.url}@{local.first}")) == 2


def test_the_longest_name_counts(local: Store) -> None:
    """Names of branches may hold ``/``, and be the beginning of others."""
    local.repo.create_branch("try", local.first)
    assert value_in(shardstore.open(f"{local.url}@try/more")) == 2
    assert value_in(shardstore.open(f"{local.url}@try/scans"), "ct") == 1


@pytest.mark.parametrize(
    ("target", "may"),
    [
        ("/a/run.ice@main", True),
        ("run.ice@main/ct", True),
        ("@main", True),
        ("s3://bucket/a/run.ice@main", True),
        ("s3://bucket/@main", True),
        ("memory://run.ice@main", True),
        ("sharded::s3://bucket/run.ice@main", True),
        ("simplecache::s3://bucket/run.ice@main", True),
        ("zip://run.ice@main::/x.zip", True),
        ("file:///a@b/c", True),
        (Path("run.ice@main"), True),
        ((fsspec.filesystem("memory"), "run.ice@main"), True),
        (fsspec.get_mapper("memory://run.ice@main"), True),
        ("/a/run.ice", False),
        ("s3://bucket@main", False),
        ("sftp://user:password@host/data.zarr", False),
        ("https://user:password@host/data.zarr", False),
        ("https://host/data.zarr?signature=a@b", False),
        ("github://org:repo@main/data.zarr", False),
        ("zip://data.zarr::/a@b/x.zip", False),
        ("zip::/a@b/x.zip", False),
        ("reference::/a@b/refs.json", False),
        ("s3://bucket/a//b@c", False),
        ("file://a@b", False),
        ("", False),
        ({}, False),
        (MemoryStorage("a@b"), False),
    ],
)
def test_only_the_path_of_the_first_link_is_looked_at(target: Any, may: bool) -> None:
    assert may_name_snapshot(target) is may


def test_a_store_in_the_current_directory_can_be_named(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(local.url)
    assert value_in(shardstore.open("@v1")) == 1
    monkeypatch.chdir("..")
    assert value_in(shardstore.open("run.ice@v1")) == 1
    assert value_in(shardstore.open(Path("run.ice@v1"))) == 1


def test_a_store_is_named_through_chains_filesystems_and_archives(local: Store, tmp_path: Path) -> None:
    fs = fsspec.filesystem("file")
    assert value_in(shardstore.open((fs, f"{local.url}@v1"))) == 1
    assert value_in(shardstore.open(fs.get_mapper(f"{local.url}@v1"))) == 1
    assert value_in(shardstore.open(f"simplecache::file://{local.url}@v1")) == 1
    assert value_in(shardstore.open(f"sharded::file://{local.url}@v1")) == 1
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for file in Path(local.url).rglob("*"):
            archive.write(file, f"in/{file.relative_to(local.url)}")
    assert value_in(shardstore.open(f"zip://in@try/more::{tmp_path}/x.zip")) == 2


def test_a_store_on_a_web_server_is_read(local: Store, tmp_path: Path) -> None:
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/run.ice@try/more"
        assert value_in(shardstore.open(url)) == 2
        assert value_in(zarr.open_group(f"sharded::{url}/scans", mode="r").store_path, "ct") == 2
        with pytest.raises(ReadOnly):
            shardstore.get_mapper(url)["scans/ct/c/0/0"] = b"x"
        server.shutdown()


def test_a_name_that_is_not_there_lists_what_is(local: Store) -> None:
    for rest in ("nothing", "nothing/scans", ""):
        with pytest.raises(NotFound, match=r"not a branch, tag or snapshot.*branch 'main', branch 'try/more', tag 'v1'"):
            shardstore.open(f"{local.url}@{rest}")


def test_without_pyarrow_the_error_says_what_to_install(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Unsupported, match=r"versioned store.*pip install 'shardstore\[parquet]'"):
        shardstore.open(f"{local.url}@main")


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_a_store_shows_the_snapshot_that_the_branch_was_when_it_was_opened(local: Store) -> None:
    opened = shardstore.open(f"{local.url}@main")
    commit(local.repo, 4)
    travelled = pickle.loads(pickle.dumps(opened))
    assert (value_in(opened), value_in(travelled)) == (3, 3)
    assert travelled == opened
    assert value_in(shardstore.open(f"{local.url}@main")) == 4


def test_what_is_opened_twice_is_equal_if_the_snapshot_is_the_same(local: Store) -> None:
    one, same = shardstore.open(f"{local.url}@main"), shardstore.open(f"{local.url}@main")
    assert one == same
    assert one.engine is same.engine
    commit(local.repo, 4)
    assert shardstore.open(f"{local.url}@main") != one
    assert shardstore.open(f"{local.url}@main/scans") != shardstore.open(f"{local.url}@main")


@needs_fork
@may_fork
def test_a_forked_child_reads_the_snapshot(store: Store) -> None:
    """Clients of S3 do not survive a fork: the child has to build its own, without a request on the event loop."""
    opened = shardstore.open(f"{store.url}@v1", storage_options=store.options)
    filesystem, _ = fsspec.url_to_fs(f"sharded::{store.url}@v1", **({"s3": store.options} if store.options else {}))
    assert value_in(opened) == 1
    assert filesystem.exists("scans/ct/zarr.json")

    def child() -> None:
        assert value_in(opened) == 1
        assert json.loads(filesystem.cat("scans/ct/zarr.json"))["shape"] == list(SHAPE)

    in_fork(child)


# -- sharded:: ---------------------------------------------------------------------------------------------------------


def test_sharded_urls_name_snapshots_too(store: Store) -> None:
    options = {"s3": store.options} if store.options else None
    prefix = "sharded::" if "://" in store.url else "sharded::file://"
    for ref, value in store.values.items():
        url = f"{prefix}{store.url}@{ref}"
        assert value_in(zarr.open_group(url, mode="r", storage_options=options).store_path) == value
        assert value_in(zarr.open_group(f"{url}/scans", mode="r", storage_options=options).store_path, "ct") == value, ref


def test_xarray_opens_a_snapshot_by_url(tmp_path: Path) -> None:
    url = str(tmp_path / "run.ice")
    repo = Repository.create(url)
    days = [xr.Dataset({"t": ("x", np.arange(8) + day)}, coords={"x": np.arange(8)}) for day in range(2)]
    for day, data in enumerate(days):
        with repo.transaction(message=f"day {day}") as target:
            data.to_zarr(target, mode="w", consolidated=False)
        repo.create_tag(f"day{day}", repo.lookup_branch("main"))
    for name, expected in (("day0", days[0]), ("main", days[1])):
        with xr.open_zarr(f"sharded::file://{url}@{name}", consolidated=False) as opened:
            xr.testing.assert_identical(opened.load(), expected)
            assert pickle.loads(pickle.dumps(opened)).equals(expected)


def test_a_filesystem_shows_files_by_full_and_relative_paths(local: Store) -> None:
    fs, root = fsspec.url_to_fs(f"sharded::file://{local.url}@try/more/scans")
    whole = f"{local.url}@try/more"
    assert root == f"{whole}/scans"
    assert fs.ls(root, detail=False) == [f"{whole}/scans/ct", f"{whole}/scans/zarr.json"]
    assert fs.cat(f"{whole}/scans/ct/c/0/0") == fs.cat("scans/ct/c/0/0")
    file, path = fsspec.url_to_fs(f"sharded::file://{local.url}@try/more/scans/ct/c/0/0")
    assert file.cat(path) == fs.cat("scans/ct/c/0/0")


def test_a_filesystem_that_is_asked_for_again_shows_the_branch_as_it_is_then(local: Store) -> None:
    """fsspec keeps instances by their arguments, and a branch moves."""
    url = f"sharded::file://{local.url}@main"
    before = zarr.open_group(url, mode="r")
    assert value_in(before.store_path) == 3
    commit(local.repo, 4)
    assert value_in(zarr.open_group(url, mode="r").store_path) == 4
    assert value_in(before.store_path) == 3


def test_copies_of_a_filesystem_show_the_same_snapshot(local: Store) -> None:
    """Also if the first thing that a copy is asked for is the chunks of an array, whose document is known."""
    array = zarr.open_array(f"sharded::file://{local.url}@try/more/scans", path="ct", mode="r")
    assert np.unique(np.asarray(array[...])).tolist() == [2]
    commit(local.repo, 4, "try/more")
    np.testing.assert_array_equal(np.asarray(pickle.loads(pickle.dumps(array))[...]), 2)
    fs = array.store.fs  # type: ignore[attr-defined]
    again = fsspec.AbstractFileSystem.from_json(fs.to_json())
    assert again.to_json() == fs.to_json()
    assert "snapshot" in json.loads(again.to_json())
    assert again.cat("scans/ct/c/0/0") == fsspec.filesystem("sharded", fo=f"file://{local.url}@{local.other}").cat("scans/ct/c/0/0")
    local.repo.delete_branch("try/more")
    np.testing.assert_array_equal(np.asarray(pickle.loads(pickle.dumps(array))[...]), 2)


def mapping_value(mapping: Any) -> int:
    """The value of the array, by its attributes' document in a mapping."""
    return int(json.loads(mapping["scans/ct/zarr.json"])["attributes"]["value"])


@pytest.fixture
def described(local: Store) -> Store:
    """A store whose documents tell the snapshots, too."""
    describe(local, 3)
    return local


def describe(store: Store, value: int) -> None:
    commit(store.repo, value)
    with store.repo.transaction(message="attributes") as target:
        zarr.open_array(target, path="scans/ct").attrs["value"] = value


def test_a_mapper_shows_the_snapshot_of_when_it_was_made(described: Store) -> None:
    """With all that is opened over it, before or after its first key is asked for."""
    mapping = fsspec.get_mapper(f"sharded::file://{described.url}@main")
    describe(described, 4)
    before = zarr.open_group(mapping, mode="r")["scans/ct"]
    describe(described, 5)
    assert mapping_value(mapping) == 3
    describe(described, 6)
    after = zarr.open_group(mapping, mode="r")["scans/ct"]
    assert [np.unique(np.asarray(array[...])).tolist() for array in (before, after)] == [[3], [3]]  # type: ignore[index]
    travelled = pickle.loads(pickle.dumps(mapping))
    assert mapping_value(travelled) == 3
    assert mapping_value(fsspec.get_mapper(f"sharded::file://{described.url}@main")) == 6


@pytest.mark.parametrize("copy", [lambda fs: pickle.loads(pickle.dumps(fs)), lambda fs: fsspec.AbstractFileSystem.from_json(fs.to_json())])
def test_a_copy_of_a_filesystem_that_has_read_nothing_shows_the_same_snapshot(copy: Callable[[Any], Any], described: Store) -> None:
    fs = fsspec.filesystem("sharded", fo=f"file://{described.url}@main", skip_instance_cache=True)
    again = copy(fs)
    describe(described, 4)
    shown = [json.loads(one.cat("scans/ct/zarr.json"))["attributes"]["value"] for one in (again, fs)]
    assert shown == [3, 3]


def test_a_mapper_of_what_is_not_there_is_refused_when_it_is_made(local: Store) -> None:
    with pytest.raises(InvalidInput, match="'nothing' is not a branch, tag or snapshot"):
        fsspec.get_mapper(f"sharded::file://{local.url}@nothing")


def test_a_mapper_asks_once_for_its_snapshot(described: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    mapping = fsspec.get_mapper(f"sharded::file://{described.url}@main")
    folders = [key.partition("/")[0] for _, key in asked.requests]
    assert folders == ["catalog.json", "t", "s"]
    assert mapping_value(mapping) == 3
    assert len(asked.requests) == 3


def test_what_is_gone_is_no_missing_chunk(local: Store, tmp_path: Path) -> None:
    """zarr takes ``FileNotFoundError`` for a chunk that was never written, and shows the fill value."""
    array = zarr.open_array(f"sharded::file://{local.url}@v1", path="scans/ct", mode="r")
    data = pickle.dumps(array)
    with pytest.raises(InvalidInput, match="'nothing' is not a branch, tag or snapshot: there are branch 'main'"):
        zarr.open_group(f"sharded::file://{tmp_path}/run.ice@nothing", mode="r")
    Path(local.url).rename(tmp_path / "elsewhere")
    with pytest.raises(InvalidInput, match="is no snapshot of a versioned store"):
        pickle.loads(data)[...]


@pytest.mark.parametrize("snapshot", ["", "v1", "@", "v1@", "@X"])
def test_what_a_name_stands_for_is_a_name_and_an_id(snapshot: str, local: Store) -> None:
    with pytest.raises(InvalidInput, match="not of the form 'name@id'"):
        fsspec.filesystem("sharded", fo=f"file://{local.url}@v1", snapshot=snapshot)


def test_what_a_name_stands_for_needs_a_name_in_the_url(local: Store) -> None:
    with pytest.raises(InvalidInput, match="names no snapshot"):
        fsspec.filesystem("sharded", fo=f"file://{local.url}", snapshot=f"v1@{local.first}")
    other = fsspec.filesystem("sharded", fo=f"file://{local.url}@v1", snapshot=f"main@{local.first}")
    with pytest.raises(InvalidInput, match="was opened at 'main', and 'v1' is not in it"):
        other.find("")


# -- tools -------------------------------------------------------------------------------------------------------------


def test_tools_read_snapshots(store: Store, tmp_path: Path) -> None:
    assert shardstore.verify(f"{store.url}@v1", storage_options=store.options).is_sound
    assert shardstore.verify(f"{store.url}@v1/scans", path="ct", deep=True, storage_options=store.options).objects == 9
    assert shardstore.census(f"{store.url}@v1", storage_options=store.options).array("scans/ct").chunks == 8
    assert [array.path for array in shardstore.census(f"{store.url}@v1/scans", storage_options=store.options).arrays] == ["ct"]
    packed = tmp_path / "packed.zarr"
    shardstore.pack(f"{store.url}@try/more", packed, chunks_per_shard=(2, 2), storage_options=store.options)
    assert value_in(shardstore.open(packed)) == 2
    assert zarr.open_array(packed, path="scans/ct").shards == (8, 8)
    against = shardstore.verify(packed, against=f"{store.url}@try/more", against_options=store.options)
    assert against.is_sound
    assert not shardstore.verify(packed, against=f"{store.url}@main", against_options=store.options).is_sound


def test_packing_a_branch_again_moves_what_has_changed_since(local: Store, tmp_path: Path) -> None:
    first = shardstore.pack(f"{local.url}@main", tmp_path / "packed.zarr", chunks_per_shard=(2, 2))
    with local.repo.transaction(message="one chunk, and a document") as target:
        array = zarr.open_array(target, path="scans/ct")
        array[:4, :4] = 5
        array.attrs["by"] = "me"
    again = shardstore.pack(f"{local.url}@main", tmp_path / "packed.zarr", chunks_per_shard=(2, 2))
    assert (first.done, again.done, again.skipped) == (2, 1, 1)
    packed = zarr.open_array(tmp_path / "packed.zarr", path="scans/ct")
    assert (packed[0, 0], packed[4, 4], packed.attrs.asdict()) == (5, 3, {"by": "me"})


def test_packing_over_the_files_of_the_store_itself_is_refused(local: Store) -> None:
    before = sorted(Path(local.url).rglob("*"))
    for target in (local.url, f"{local.url}/c"):
        with pytest.raises(InvalidInput, match="overlap"):
            shardstore.pack(f"{local.url}@main", target, overwrite=True)
    assert sorted(Path(local.url).rglob("*")) == before


def writes() -> dict[str, Callable[[str, Path], object]]:
    return {
        "open": lambda url, _: zarr.open_array(shardstore.open(url), path="scans/ct", mode="r+").__setitem__(0, 1),
        "get_mapper": lambda url, _: shardstore.get_mapper(url).__setitem__("scans/ct/c/0/0", b"x"),
        "sharded": lambda url, _: zarr.open_array(f"sharded::file://{url}", path="scans/ct", mode="r+").__setitem__(0, 1),
        "new group": lambda url, _: zarr.open_group(f"sharded::file://{url}", mode="w"),
        "erase": lambda url, _: fsspec.filesystem("sharded", fo=f"file://{url}").rm("scans", recursive=True),
        "unpack": lambda url, tmp_path: shardstore.unpack(tmp_path / "plain.zarr", url),
        "reshard below": lambda url, tmp_path: shardstore.reshard(tmp_path / "plain.zarr", f"{url}/new"),
        "compact": lambda url, _: shardstore.compact(url),
        "repair": lambda url, _: shardstore.repair(url),
    }


@pytest.mark.parametrize("name", writes())
def test_writing_through_a_url_is_refused_and_says_how_to_commit(name: str, local: Store, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "plain.zarr", shape=(4,), chunks=(2,), dtype="u1")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ReadOnly, match=r"a snapshot, which never changes\. Write to what Repository\.transaction"):
        writes()[name](f"{local.url}@main", tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    assert value_in(shardstore.open(f"{local.url}@main")) == 3


# -- other places with an @ --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a@b.zarr", "x@1/y@2.zarr", "@.zarr", "a@"])
@pytest.mark.parametrize("prefix", ["", "file://", "memory://"])
def test_names_of_plain_stores_may_hold_an_at(name: str, prefix: str, tmp_path: Path) -> None:
    url = f"{prefix}{tmp_path}/{name}"
    zarr.create_array(shardstore.open(url, chunks_per_shard=(2,)), name="ct", shape=(8,), chunks=(2,), dtype="u1")[...] = 7
    assert value_in(shardstore.open(url), "ct") == 7
    assert value_in(zarr.open_group(f"sharded::{url}" if prefix else f"sharded::file://{url}", mode="r").store_path, "ct") == 7
    fs, path = fsspec.url_to_fs(f"sharded::{url}/ct/c/0" if prefix else f"sharded::file://{url}/ct/c/0")
    assert fs.cat(path)
    assert shardstore.get_mapper(url)["ct/c/0"] == fs.cat(path)
    assert shardstore.verify(url).is_sound
    shardstore.pack(url, f"{url}.packed")
    assert value_in(shardstore.open(f"{url}.packed"), "ct") == 7


class Asked:
    """Storages that are opened to ask for pointers, with every request recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: ReadOutcome | None = None) -> None:
        self.storages: list[TraceStorage] = []
        self.answer = answer

        def opened(target: object, options: Any = None, **others: Any) -> Storage:
            storage = TraceStorage(open_storage(target, options, **others))
            if answer is not None:
                monkeypatch.setattr(storage, "read", self.read)
            self.storages.append(storage)
            return storage

        monkeypatch.setattr(snapshot_urls, "open_storage", opened)

    async def read(self, reads: list[Read]) -> list[ReadOutcome]:
        assert self.answer is not None
        return [self.answer for _ in reads]

    @property
    def requests(self) -> list[tuple[str, str]]:
        return [(storage.url, event.key) for storage in self.storages for event in storage.events]


def test_one_request_for_each_at_and_none_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    for name in ("plain.zarr", "a.zarr", "at@b/c@d.zarr"):
        zarr.create_group(shardstore.open(tmp_path / name))
    one, other = (f"file://{tmp_path}/{name}" for name in ("at", "at@b/c"))
    assert asked.requests == [(one, "catalog.json"), (other, "catalog.json")]
    shardstore.get_mapper(f"{tmp_path}/at@b.zarr")["k"] = b""
    assert asked.requests[2:] == [(one, "catalog.json")]
    fsspec.filesystem("sharded", fo=f"file://{tmp_path}/plain.zarr").find("")
    zarr.open_group(f"sharded::file://{tmp_path}/at@b/c@d.zarr", mode="r")
    assert asked.requests[3:] == [(one, "catalog.json"), (other, "catalog.json")]


def test_a_snapshot_is_opened_by_three_requests(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pointer, the state and the structure; none again when arrays are opened."""
    asked = Asked(monkeypatch)
    opened = shardstore.open(f"{local.url}@main")
    assert [key.partition("/")[0] for _, key in asked.requests] == ["catalog.json", "t", "s"]
    assert zarr.open_array(opened, path="scans/ct", mode="r").shape == SHAPE
    assert len(asked.requests) == 3


@pytest.mark.parametrize(
    "content",
    [
        b'{"type": "Catalog", "id": "stac", "stac_version": "1.0.0", "description": "", "links": []}',
        b"[]",
        b"no JSON",
        b"",
        b'{"location": "", "generation": 1, "id": "x"}',
        b"x" * ((1 << 20) + 1),
    ],
    ids=["stac", "list", "text", "empty", "no location", "long"],
)
def test_catalogs_of_others_are_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/catalog.json").write_bytes(content)
    zarr.create_array(shardstore.open(tmp_path / "data@v1"), name="ct", shape=(2,), chunks=(2,), dtype="u1")[...] = 7
    assert value_in(shardstore.open(tmp_path / "data@v1"), "ct") == 7


def test_a_place_that_may_not_be_looked_at_is_no_versioned_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 answers so for what is not there, if listing is not allowed."""
    Asked(monkeypatch, Failed(AccessDenied("no")))
    zarr.create_group(shardstore.open(tmp_path / "a@b.zarr"))
    assert (tmp_path / "a@b.zarr/zarr.json").exists()


def test_a_place_that_cannot_be_looked_at_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Asked(monkeypatch, Failed(StorageError("the server does not answer")))
    with pytest.raises(StorageError, match="does not answer") as caught:
        shardstore.open(tmp_path / "a@b.zarr")
    assert "'catalog.json' of a versioned store" in caught.value.__notes__[0]
    fs = fsspec.filesystem("sharded", fo=f"file://{tmp_path}/a@b.zarr")
    with pytest.raises(StorageError, match="does not answer"):
        fs.find("")


def test_a_file_in_the_place_of_a_directory_is_no_versioned_store(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file")
    zarr.create_group(shardstore.open(tmp_path / "a@b.zarr"))
    assert (tmp_path / "a@b.zarr/zarr.json").exists()


def test_options_that_cannot_be_right_are_refused_as_ever(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="did you mean 'max_memory'"):
        shardstore.get_mapper(tmp_path / "a@b", max_memry=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="the storage option anon means nothing"):
        shardstore.get_mapper(f"{tmp_path}/a@b", storage_options={"anon": True})
    with pytest.raises(InvalidInput, match="protocol 'nothing'"):
        shardstore.get_mapper("nothing://bucket/a@b")


@pytest.mark.gate
def test_a_place_that_is_no_versioned_store_loads_nothing_more(tmp_path: Path) -> None:
    code = (
        f"import sys, shardstore; shardstore.get_mapper({str(tmp_path / 'a@b')!r})['k'] = b'v'; "
        "print([name for name in sys.modules if name.startswith(('shardstore.snapshots', 'pyarrow', 'zarr', 'typer'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert done.stdout == "[]\n"


def test_the_root_of_a_versioned_store_is_known(local: Store, tmp_path: Path) -> None:
    assert run(holds_versioned_store(open_storage(local.url)))
    assert not run(holds_versioned_store(open_storage(tmp_path)))
    assert run(named_snapshot(local.url)) is None
