"""What was part of a snapshot that has expired, and was collected, is an error through every face, and never an absent chunk."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fsspec
import httpx
import numpy as np
import pytest
import zarr
from zarr.storage import FsspecStore

import shardstore
from shardstore.apps.mounting.errnos import error_number
from shardstore.apps.server import serve
from shardstore.errors import Corruption, NotFound, ShardStoreError, SnapshotExpired
from shardstore.snapshots import Repository
from shardstore.snapshots.session_storage import SessionStorage
from shardstore.storage.wrappers import innermost
from tests.snapshots.repositories import create_array, read_array, run
from tests.together.gate.test_processes import in_fork, may_fork, needs_fork

DATA = np.full(4000, 7, dtype="u1")
FUTURE = datetime(2200, 1, 1, tzinfo=UTC)


class Store:
    """A versioned store whose first commit can be made to expire, and all files to be removed that only that needs."""

    def __init__(self, place: Path) -> None:
        self.url = str(place / "run.ice")
        self.repo = Repository.create(self.url, fsync=False, pack=(2,))
        session = self.repo.writable_session()
        create_array(session, "a", DATA, (1000,), compressors=None, fill_value=0, attributes={"long": "x" * 20_000})
        self.first = session.commit("sevens")

    def session(self) -> Any:
        """A session that knows nothing yet but its structure."""
        return Repository.open(self.url, fsync=False).readonly_session()

    def expire(self) -> None:
        with self.repo.transaction(message="nines") as store:
            zarr.open_array(store, path="a")[...] = 9
            zarr.open_array(store, path="a").attrs["long"] = "y" * 20_000
        self.repo.rewrite_manifests()
        self.repo.expire_snapshots(FUTURE)
        removed = self.repo.garbage_collect(timedelta()).removed
        assert removed.keys() >= {"c/", "m/", "a/", "s/"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def raised(read: Callable[[], object]) -> BaseException:
    with pytest.raises(ShardStoreError) as caught:
        read()
    return caught.value


def is_no_absence(error: BaseException) -> bool:
    return isinstance(error, SnapshotExpired) and not isinstance(error, KeyError | OSError)


MAPPINGS: dict[str, Callable[[Store], Any]] = {
    "session": lambda store: store.session().mapping(),
    "session, v2": lambda store: store.session().mapping("v2"),
    "get_mapper": lambda store: shardstore.get_mapper(f"{store.url}@main"),
    "get_mapper of a path": lambda store: shardstore.get_mapper(f"{store.url}@main/a"),
    "fsspec": lambda store: fsspec.get_mapper(f"sharded::file://{store.url}@main"),
    "fsspec of the session": lambda store: store.session().filesystem.get_mapper(""),
}
OF_MAPPINGS: dict[str, Callable[[Any, str], object]] = {
    "[]": lambda mapping, key: mapping[key],
    "get": lambda mapping, key: mapping.get(key, b"the default"),
    "pop": lambda mapping, key: mapping.pop(key, b"the default"),
    "getitems": lambda mapping, key: mapping.getitems([key]),
    "getitems, omit": lambda mapping, key: mapping.getitems([key, "none"], on_error="omit"),
}
LOOKS: dict[str, Callable[[Any, str], object]] = {
    "in": lambda mapping, key: key in mapping,
    "keys": lambda mapping, _: list(mapping),
    "len": lambda mapping, _: len(mapping),
}


def key_in(name: str) -> str:
    return {"session, v2": "a/0", "get_mapper of a path": "c/0"}.get(name, "a/c/0")


@pytest.mark.parametrize("is_known", [True, False], ids=["manifests known", "nothing known"])
@pytest.mark.parametrize("name", MAPPINGS)
def test_no_mapping_takes_it_for_a_missing_key(name: str, is_known: bool, store: Store) -> None:
    mapping, key = MAPPINGS[name](store), key_in(name)
    if is_known:
        assert mapping[key] == bytes([7] * 1000)
    store.expire()
    for way, read in (OF_MAPPINGS | ({} if is_known else LOOKS)).items():
        assert is_no_absence(raised(lambda read=read: read(mapping, key))), way  # type: ignore[misc]


def test_errors_are_returned_where_that_is_asked_for(store: Store) -> None:
    mapping = store.session().mapping()
    assert mapping["a/c/0"]
    store.expire()
    found = mapping.getitems(["a/c/0", "a/c/9"], on_error="return")
    assert isinstance(found["a/c/0"], SnapshotExpired)
    assert isinstance(found["a/c/9"], NotFound)


OF_FILESYSTEMS: dict[str, Callable[[Any, str], object]] = {
    "cat": lambda fs, path: fs.cat(path),
    "cat, omit": lambda fs, path: fs.cat(path, on_error="omit"),
    "cat several, omit": lambda fs, path: fs.cat([path, "none"], on_error="omit"),
    "cat several, return": lambda fs, path: fs.cat([path, "none"], on_error="return"),
    "cat_file": lambda fs, path: fs.cat_file(path),
    "cat_ranges": lambda fs, path: fs.cat_ranges([path], [0], [1]),
    "open": lambda fs, path: fs.open(path).read(),
    "get": lambda fs, path: fs.get(path, "/nowhere/at/all"),
    "size": lambda fs, path: fs.size(path),
    "info": lambda fs, path: fs.info(path),
    "exists": lambda fs, path: fs.exists(path),
    "isfile": lambda fs, path: fs.isfile(path),
    "isdir": lambda fs, path: fs.isdir(path),
    "find": lambda fs, path: fs.find(""),
    "ls": lambda fs, path: fs.ls("a/c"),
    "glob": lambda fs, path: fs.glob("a/c/*"),
    "walk": lambda fs, path: list(fs.walk("")),
    "du": lambda fs, path: fs.du(""),
}


@pytest.mark.parametrize("way", OF_FILESYSTEMS)
def test_no_filesystem_takes_it_for_a_missing_file(way: str, store: Store) -> None:
    filesystems = [store.session().filesystem, fsspec.url_to_fs(f"sharded::file://{store.url}@main")[0]]
    for fs in filesystems:
        fs.cat("zarr.json")  # it knows its snapshot
    store.expire()
    for fs in filesystems:
        assert is_no_absence(raised(lambda fs=fs: OF_FILESYSTEMS[way](fs, "a/c/0")))  # type: ignore[misc]


ARRAYS: dict[str, Callable[[Store], Any]] = {
    "session": lambda store: store.session().store,
    "open": lambda store: shardstore.open(f"{store.url}@main"),
    "sharded": lambda store: f"sharded::file://{store.url}@main",
    "without the pipeline": lambda store: FsspecStore.from_url(
        f"sharded::file://{store.url}@main", storage_options={"pipeline": False}, read_only=True
    ),
}


@pytest.mark.parametrize("is_known", [True, False], ids=["manifests known", "nothing known"])
@pytest.mark.parametrize("name", ARRAYS)
def test_no_array_shows_fill_values(name: str, is_known: bool, store: Store) -> None:
    array = zarr.open_array(ARRAYS[name](store), path="a", mode="r")
    data = pickle.dumps(array)
    if is_known:
        assert np.asarray(array[:1000]).tolist() == [7] * 1000
    store.expire()
    for read in (lambda: array[...], lambda: array[:10], lambda: array[1500], lambda: pickle.loads(data)[...]):
        assert is_no_absence(raised(read))


@needs_fork
@may_fork
def test_forked_child_shows_no_fill_values(store: Store) -> None:
    array = zarr.open_array(f"sharded::file://{store.url}@main", path="a", mode="r")
    store.expire()

    def child() -> None:
        assert is_no_absence(raised(lambda: array[...]))

    in_fork(child)


def test_tools_say_that_it_has_expired(store: Store, tmp_path: Path) -> None:
    session = store.session()
    mapping = shardstore.get_mapper(f"{store.url}@main")
    known = innermost(mapping.engine.storage)
    assert isinstance(known, SessionStorage)
    documents = known.known_documents
    store.expire()
    for tool in (
        lambda: shardstore.pack(session.storage, str(tmp_path / "packed.zarr")),
        lambda: shardstore.census(session.storage),
        lambda: run(session.storage.known_documents()),
        lambda: run(session.storage.known_references("a")),
        lambda: run(documents()),
    ):
        error = raised(tool)
        assert is_no_absence(error) or is_no_absence(error.__cause__ or error), repr(error)
    assert not (tmp_path / "packed.zarr/zarr.json").exists()


def test_mount_gives_no_enoent() -> None:
    assert error_number(SnapshotExpired("gone")) == errno.EIO


def test_server_answers_what_no_client_takes_for_a_missing_chunk(store: Store) -> None:
    """fsspec takes 404 for it, and this project's client 410 as well."""
    with serve(f"{store.url}@main", port=0) as serving, httpx.Client(base_url=serving.url, trust_env=False) as http:
        name = next(iter(serving.application.served.buckets))
        assert http.get(f"/{name}/zarr.json").status_code == 200
        store.expire()
        answer = http.get(f"/{name}/a/c/0")
        assert (answer.status_code, "has expired" in answer.text) == (500, True)


def test_copy_of_what_showed_an_expired_snapshot_is_refused(store: Store) -> None:
    session = store.session()
    fs = fsspec.url_to_fs(f"sharded::file://{store.url}@main")[0]
    fs.cat("zarr.json")
    copies = [pickle.dumps(one) for one in (session, session.storage, shardstore.open(f"{store.url}@main"), fs)]
    store.expire()
    for data in copies:
        error = raised(lambda data=data: pickle.loads(data).cat("a/c/0"))  # type: ignore[misc]
        assert is_no_absence(error)
        assert "has expired" in str(error)


def test_state_that_is_missing_is_no_missing_store(store: Store) -> None:
    """The pointer is there: something has been lost."""
    session = store.session()
    for file in (Path(store.url) / "t").iterdir():
        file.unlink()
    for look in (
        lambda: Repository.open(store.url),
        lambda: shardstore.open(f"{store.url}@main"),
        lambda: Repository.open_or_create(store.url),
    ):
        error = raised(look)
        assert isinstance(error, Corruption)
        assert "the state file" in str(error)
    assert read_array(session, "a").tolist() == DATA.tolist()
