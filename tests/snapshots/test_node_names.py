"""Names that no node can have are refused at every door, before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardstore
from shardstore.engine.actions import SetValue
from shardstore.errors import InvalidInput
from shardstore.format.store_keys import check_node_path, metadata_key
from shardstore.snapshots import Repository
from shardstore.snapshots.named import insert, staging_session
from tests.snapshots.repositories import create_array, new_repository, run

DATA = np.arange(4, dtype="u1")
GROUP = b'{"zarr_format": 3, "node_type": "group"}'

ODD = ["g//x", "../x", "x/../y", ".", "./x", "x\0y", "a\\b", "half\ud83d"]
RESERVED = ["zarr.json", "g/zarr.json", "g/zarr.json/x"]


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    repo = new_repository(tmp_path)
    session = repo.writable_session()
    create_array(session, "b", DATA, (2,))
    zarr.create_group(session.store, path="g")
    session.commit("begin")
    return repo


def members(store: Any) -> dict[str, Any]:
    found = zarr.open_group(store, mode="r").members(max_depth=None)
    return {name: np.asarray(node[...]).tolist() if isinstance(node, zarr.Array) else None for name, node in found}


def in_transaction(mapping: Any, path: str) -> None:
    with mapping.transaction():
        mapping[metadata_key(path)] = GROUP


async def inserted(core: Any, path: str) -> None:
    staged = staging_session(core)
    await staged.set_document("", GROUP)
    insert(core, staged, path, replaces=False)


OF_FACES: dict[str, Callable[[Any, str], object]] = {
    "the filesystem moves it": lambda face, path: face.filesystem.mv("b", path, recursive=True),
    "the filesystem copies it": lambda face, path: face.filesystem.cp("b", path, recursive=True),
    "the filesystem writes it": lambda face, path: face.filesystem.pipe(metadata_key(path), GROUP),
    "the mapping renames it": lambda face, path: face.mapping().rename("b", path),
    "the mapping writes it": lambda face, path: face.mapping().__setitem__(metadata_key(path), GROUP),
    "the mapping writes several": lambda face, path: face.mapping().setitems({metadata_key(path): GROUP}),
    "a transaction writes it": lambda face, path: in_transaction(face.mapping(), path),
    "the zarr store writes it": lambda face, path: run(face.store.engine.update((metadata_key(path), SetValue(GROUP)))),
}
OF_SESSIONS: dict[str, Callable[[Any, str], object]] = {
    "the session moves it": lambda session, path: session.move("b", path),
    "the storage writes it": lambda session, path: run(session._core.set_document(path, GROUP)),
    "a hierarchy is put there": lambda session, path: run(inserted(session._core, path)),
    "nodes are rearranged": lambda session, path: run(rearranged(session._core, path)),
}


async def rearranged(core: Any, path: str) -> None:
    core.rearrange({"": "", "b": path})


class PlainFaces:
    """The faces of a store that is not versioned."""

    def __init__(self, url: str) -> None:
        self.store = shardstore.open(url, chunks_per_shard=(2,))
        self.filesystem = shardstore.ShardedFileSystem(url, chunks_per_shard=(2,))
        self._mapping = shardstore.get_mapper(url, chunks_per_shard=(2,))
        zarr.create_group(self.store)
        zarr.create_array(self.store, name="b", shape=(4,), chunks=(2,), dtype="u1")[...] = DATA
        zarr.create_group(self.store, path="g")

    def mapping(self) -> Any:
        return self._mapping


@pytest.mark.parametrize("door", [*OF_FACES, *OF_SESSIONS])
def test_name_of_no_node_is_refused_by_a_session(door: str, repo: Repository) -> None:
    session = repo.writable_session()
    for path in (*ODD, *RESERVED):
        with pytest.raises(InvalidInput):
            (OF_FACES | OF_SESSIONS)[door](session, path)
        assert not session.has_uncommitted_changes, path
    assert members(session.store) == members(repo.readonly_session().store) == {"b": DATA.tolist(), "g": None}


@pytest.mark.parametrize("door", OF_FACES)
def test_name_of_no_node_is_refused_by_a_plain_store(door: str, tmp_path: Path) -> None:
    faces = PlainFaces(f"memory://{tmp_path}")
    before = dict(faces.mapping())
    for path in (*ODD, *RESERVED):
        with pytest.raises(InvalidInput):
            OF_FACES[door](faces, path)
        assert dict(faces.mapping()) == before, path
    assert members(faces.store) == {"b": DATA.tolist(), "g": None}


@pytest.mark.parametrize("path", ["g//x", "../x", "a\\b", "g/zarr.json"])
def test_name_of_no_node_is_refused_to_virtual_hierarchies(path: str, repo: Repository, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "source.zarr", shape=(2,), chunks=(1,), dtype="u1")[...] = 1
    session = repo.writable_session()
    with pytest.raises(InvalidInput, match="cannot be the path of an array or a group"):
        session.set_virtual_hierarchy(str(tmp_path / "source.zarr"), path)
    assert not session.has_uncommitted_changes


def test_name_of_no_node_in_a_set_of_references_is_refused(tmp_path: Path) -> None:
    references = {"zarr.json": GROUP.decode(), "x/zarr.json": GROUP.decode(), "zarr.json/zarr.json": GROUP.decode()}
    (tmp_path / "set.json").write_text(json.dumps({"version": 1, "refs": references}))
    with pytest.raises(InvalidInput, match=r"'zarr.json' cannot be the path"):
        Repository.adopt(f"reference::{tmp_path}/set.json", tmp_path / "run.ice")
    assert not Repository.exists(tmp_path / "run.ice")


def test_name_of_no_node_is_refused_to_pack_before_anything_is_written(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "source.zarr", shape=(2,), chunks=(1,), dtype="u1")[...] = 1
    Repository.create(tmp_path / "run.ice", fsync=False)
    before = sorted((tmp_path / "run.ice").rglob("*"))
    with pytest.raises(InvalidInput, match="cannot be the path of an array or a group"):
        shardstore.pack(str(tmp_path / "source.zarr"), f"{tmp_path}/run.ice@main/g/zarr.json")
    assert sorted((tmp_path / "run.ice").rglob("*")) == before


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.text(max_size=4), st.text("a./\\\0zr", max_size=5), st.sampled_from(["zarr.json", "b", "g", "g/zarr.json", "c", ".zarray"])
    )
)
def test_what_was_moved_is_there_under_its_name_or_nothing_has_changed(repo: Repository, path: str) -> None:
    session = repo.writable_session()
    try:
        session.move("b", path)
    except InvalidInput:
        assert not session.has_uncommitted_changes
        return
    session.commit("move")
    moved = path.strip("/")
    assert check_node_path(moved) == moved
    assert members(repo.readonly_session().store)[moved] == DATA.tolist()
    repo.reset_branch("main", next(iter(list(repo.ancestry())[1:])).id)
