"""A history of Icechunk as one of ours, and back: the same values at every snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from shardstore.errors import InvalidInput, Unsupported
from shardstore.snapshots import Repository
from tests.snapshots.test_icechunk_export import DATA, contents, new_target

icechunk = pytest.importorskip("icechunk")

IS_2 = not icechunk.__version__.startswith("1.")

pytestmark = [pytest.mark.zarr, pytest.mark.filterwarnings("ignore")]
needs_2 = pytest.mark.skipif(not IS_2, reason="icechunk 1 does not say where its chunks lie")


@pytest.fixture
def source(tmp_path: Path) -> Any:
    """A history with every kind of change, in Icechunk."""
    zarr.create_array(tmp_path / "old.zarr", data=DATA, chunks=(16, 16), compressors=None)
    made = new_target(tmp_path / "theirs", f"file://{tmp_path}/old.zarr/")

    def commit(message: str, branch: str = "main", *, moves: bool = False) -> Any:
        session = made.rearrange_session(branch) if moves else made.writable_session(branch)
        yield session if moves else zarr.open_group(session.store, mode="a"), session
        session.commit(message, metadata={"who": branch})

    for root, session in commit("arrays"):
        root.attrs["title"] = "first"
        group = root.create_group("g", attributes={"a": 1})
        group.create_array("a", data=DATA, chunks=(16, 16), compressors=None)
        group.create_array("b", data=np.arange(1, 5), chunks=(1,), compressors=None)
        root.create_array("s", data=np.array(7, dtype="i2"))
        virtual = root.create_array("v", shape=DATA.shape, chunks=(16, 16), dtype="i4", compressors=None)
        assert virtual.shape
        specs = [icechunk.VirtualChunkSpec([i, j], f"file://{tmp_path}/old.zarr/c/{i}/{j}", 0, 1024) for i in range(4) for j in range(4)]
        assert not session.store.set_virtual_refs("v", specs)
    for root, _ in commit("chunks"):
        root["g/a"][:16, :16] = -1
        root["g/a"][48:, 48:] = 0
        root["v"][:16, :16] = 3
    made.create_tag("v1", made.lookup_branch("main"))
    made.create_branch("side", made.lookup_branch("main"))
    for root, _ in commit("attributes"):
        del root.attrs["title"]
        root["g"].attrs["a"] = 2
    for session, _ in commit("moved", moves=True):
        session.move("/g", "/h")
    for root, _ in commit("resized"):
        root["h/a"].resize((32, 80))
        root["h/a"][:, 64:] = 5
    for root, _ in commit("replaced"):
        del root["h/b"]
        del root["s"]
        root.create_array("s", data=np.arange(3))
    for root, _ in commit("on the side", "side"):
        root["g/b"][0] = 99
    return made


def check_same(ours: Repository, theirs: Any) -> None:
    """Compare all snapshots of all branches and tags."""
    assert (ours.list_branches(), ours.list_tags()) == (theirs.list_branches(), theirs.list_tags())
    for branch in sorted(theirs.list_branches()):
        line = list(theirs.ancestry(branch=branch))
        mine = list(ours.ancestry(branch=branch))
        assert [one.message for one in mine] == [one.message for one in line]
        for one, other in list(zip(mine, line, strict=True))[:-1]:  # the first ones are empty
            assert contents(ours.readonly_session(snapshot_id=one.id)) == contents(theirs.readonly_session(snapshot_id=other.id)), (
                one.message
            )
    for tag in theirs.list_tags():
        assert contents(ours.readonly_session(tag=tag)) == contents(theirs.readonly_session(tag=tag))


@needs_2
@pytest.mark.parametrize("copy", [False, True])
def test_every_snapshot_is_the_same(source: Any, tmp_path: Path, copy: bool) -> None:
    prefix = f"file://{tmp_path}/old.zarr/"
    where: Any = {"copy": True} if copy else {"source_url": f"file://{tmp_path}/theirs"}
    repo = Repository.import_icechunk(source, tmp_path / "run.ice", virtual_prefixes=[prefix], **where)
    check_same(repo, source)
    newest = next(iter(repo.ancestry(branch="side")))
    assert newest.metadata["who"] == "side"
    assert newest.metadata["icechunk.snapshot"] == source.lookup_branch("side")
    assert (tmp_path / "run.ice/c").exists() is copy
    assert repo.verify().is_sound
    moved = [one.id for one in repo.ancestry() if one.message in ("moved", "attributes")]
    assert ("g", "h") in repo.diff(moved[1], moved[0]).moved_nodes
    again = Repository.open(tmp_path / "run.ice", virtual_prefixes=repo.virtual_prefixes)
    session = again.writable_session()
    zarr.open_array(session.store, path="v", mode="r+")[:] = 1
    session.commit("goes on")


@needs_2
def test_there_and_back_again(source: Any, tmp_path: Path) -> None:
    prefixes = [f"file://{tmp_path}/old.zarr/"]
    first = Repository.import_icechunk(source, tmp_path / "one.ice", copy=True, virtual_prefixes=prefixes)
    target = new_target(tmp_path / "out", f"file://{tmp_path}/one.ice/c/", *prefixes)
    first.export_icechunk(target)
    check_same(first, target)
    second = Repository.import_icechunk(
        target, tmp_path / "two.ice", source_url=f"file://{tmp_path}/out", virtual_prefixes=[*prefixes, f"file://{tmp_path}/one.ice/c/"]
    )
    check_same(second, target)
    check_same(second, source)


@needs_2
def test_what_cannot_be_imported_leaves_nothing(source: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="virtual references"):
        Repository.import_icechunk(source, tmp_path / "new.ice", copy=True)
    assert not Repository.exists(tmp_path / "new.ice")
    for arguments in ({}, {"copy": True, "source_url": "file:///x"}):
        with pytest.raises(InvalidInput, match="give source_url"):
            Repository.import_icechunk(source, tmp_path / "new.ice", **arguments)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidInput, match="not a str"):
        Repository.import_icechunk("file:///x", tmp_path / "new.ice", copy=True)


@pytest.mark.skipif(IS_2, reason="icechunk 2 does")
def test_icechunk_1_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="import with icechunk 2"):
        Repository.import_icechunk(new_target(tmp_path / "theirs"), tmp_path / "new.ice", copy=True)
