"""A history as one of Icechunk: the same values at every snapshot, and no chunk copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from shardstore.errors import InvalidInput
from shardstore.snapshots import Repository

icechunk = pytest.importorskip("icechunk")

pytestmark = [pytest.mark.zarr, pytest.mark.filterwarnings("ignore")]

IS_2 = not icechunk.__version__.startswith("1.")
DATA = np.arange(1, 4097, dtype="i4").reshape(64, 64)


def new_target(place: Path, *prefixes: str) -> Any:
    config = icechunk.RepositoryConfig.default()
    for prefix in prefixes:
        folder = icechunk.local_filesystem_store(prefix.removeprefix("file://").rstrip("/"))
        config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, folder))
    local = getattr(icechunk.credentials, "LocalFileSystemAccess", None)  # icechunk 1 has none
    access = icechunk.containers_credentials(dict.fromkeys(prefixes, local))
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(place)), config, authorize_virtual_chunk_access=access)


def contents(session: Any) -> dict[str, Any]:
    root = zarr.open_group(session.store, mode="r")
    found: dict[str, Any] = {"": root.attrs.asdict()}
    for path, node in root.members(max_depth=None):
        values = np.asarray(node[...]).tolist() if isinstance(node, zarr.Array) else None
        found[path] = node.attrs.asdict(), values
    return found


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    """A history with every kind of change."""
    made = Repository.create(tmp_path / "run.ice", pack=(2, 2))

    def commit(message: str, branch: str = "main") -> Any:
        session = made.writable_session(branch)
        yield zarr.open_group(session.store, mode="r+"), session
        session.commit(message, {"who": branch}, allow_empty=True)

    for root, _ in commit("arrays"):
        root.attrs["title"] = "first"
        group = root.create_group("g", attributes={"a": 1})
        group.create_array("a", data=DATA, chunks=(16, 16), compressors=None)
        group.create_array("b", data=DATA[:4, :4], chunks=(2, 2), compressors=None)
        root.create_array("s", data=np.array(7, dtype="i2"))
        root.create_array("empty", shape=(4,), chunks=(1,), dtype="i2")
    for root, _ in commit("chunks"):
        root["g/a"][:16, :16] = -1
        root["g/a"][48:, 48:] = 0
    made.create_tag("v1", made.lookup_branch("main"))
    made.create_branch("side", made.lookup_branch("main"))
    for root, _ in commit("attributes"):
        del root.attrs["title"]
        root["g"].attrs["a"] = 2
        root["g/b"].attrs["unit"] = "K"
    for _, session in commit("moved"):
        session.move("g", "h/g")
    for root, _ in commit("resized"):
        root["h/g/a"].resize((32, 80))
        root["h/g/a"][:, 64:] = 5
    for root, _ in commit("deleted"):
        del root["h/g/b"]
        del root["s"]
        root.create_array("s", data=np.arange(3))
    for _ in commit("nothing"):
        pass
    for root, _ in commit("on the side", "side"):
        root["g/b"][0, 0] = 99
    return made


def test_every_snapshot_is_the_same(repo: Repository, tmp_path: Path) -> None:
    target = new_target(tmp_path / "out", f"file://{tmp_path}/run.ice/c/")
    said: list[str] = []
    ids = repo.export_icechunk(target, progress=lambda what, done, total: said.append(what))
    assert said
    assert len(ids) == len(set(ids)) == 9
    first = list(repo.ancestry())[-1].id
    assert ids[first] == list(target.ancestry(branch="main"))[-1].id  # which is empty
    for ours, theirs in ids.items():
        if ours == first:
            continue
        wanted = contents(repo.readonly_session(snapshot_id=ours))
        assert contents(target.readonly_session(snapshot_id=theirs)) == wanted, repo.lookup_snapshot(ours).message
    assert target.list_branches() == {"main", "side"}
    assert target.list_tags() == {"v1"}
    assert target.lookup_branch("main") == ids[repo.lookup_branch("main")]
    assert target.lookup_branch("side") == ids[repo.lookup_branch("side")]
    assert target.lookup_tag("v1") == ids[repo.lookup_tag("v1")]
    for branch in ("main", "side"):
        mine = [one.message for one in repo.ancestry(branch=branch) if IS_2 or one.message != "nothing"]
        assert [one.message for one in target.ancestry(branch=branch)] == mine
    newest = next(iter(target.ancestry(branch="side")))
    assert newest.metadata["shardstore.snapshot"] == repo.lookup_branch("side")
    assert newest.metadata["who"] == "side"
    copied = sum(path.stat().st_size for path in (tmp_path / "out/chunks").rglob("*")) if (tmp_path / "out/chunks").exists() else 0
    assert copied < 4096 < sum(path.stat().st_size for path in (tmp_path / "run.ice/c").iterdir())


def test_virtual_chunks_go_on_as_such(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "old.zarr", data=DATA, chunks=(16, 16), compressors=None)
    prefix = f"file://{tmp_path}/old.zarr/"
    repo = Repository.adopt(tmp_path / "old.zarr", tmp_path / "run.ice", message="old")
    session = repo.writable_session()
    zarr.open_array(session.store, mode="r+")[:16, :16] = 3
    session.commit("new")
    target = new_target(tmp_path / "out", f"file://{tmp_path}/run.ice/c/", prefix)
    ids = repo.export_icechunk(target)
    found = zarr.open_array(target.readonly_session(snapshot_id=ids[repo.lookup_branch("main")]).store, mode="r")[...]
    wanted = DATA.copy()
    wanted[:16, :16] = 3
    np.testing.assert_array_equal(found, wanted)


def test_bad_targets(repo: Repository, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"(?s)in no virtual chunk container.*set_virtual_chunk_container"):
        repo.export_icechunk(new_target(tmp_path / "without"))
    used = new_target(tmp_path / "used", f"file://{tmp_path}/run.ice/c/")
    repo.export_icechunk(used)
    with pytest.raises(InvalidInput, match="has a history already"):
        repo.export_icechunk(used)
    memory = Repository.create(f"memory://{tmp_path}")
    with memory.transaction(message="array") as store:
        zarr.create_array(store, name="a", data=DATA, chunks=(16, 16))
    with pytest.raises(InvalidInput, match=r"no URL of their own|icechunk does not read"):
        memory.export_icechunk(new_target(tmp_path / "other"))
