"""Hierarchies that are packed into a branch of a versioned store: by one commit, in chunk files that are shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import Conflict, Corruption, Incomplete, InvalidInput, ReadOnly, Unsupported
from shardstore.snapshots import Repository
from shardstore.snapshots.chunk_files import MOST_INLINE_NBYTES
from tests.golden import golden_cases
from tests.maintenance.packing.sources import cases, expected, references

DATA = np.arange(64 * 48, dtype="<f4").reshape(64, 48)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    Repository.create(tmp_path / "repo", fsync=False)
    return tmp_path / "repo"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A group of v3 with an array in a group and one beside it."""
    group = zarr.create_group(tmp_path / "source", attributes={"title": "in May"})
    array = group.create_array("deep/a", shape=DATA.shape, chunks=(16, 16), dtype=DATA.dtype, compressors=None)
    array[...] = DATA
    group.create_array("b", shape=(3,), chunks=(1,), dtype="i2", fill_value=7)[:2] = [1, 2]
    return tmp_path / "source"


def stored(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def of(place: Path, path: str = "") -> zarr.Group:
    found = zarr.open_group(Repository.open(place).readonly_session().store, path=path, mode="r")
    assert isinstance(found, zarr.Group)
    return found


def values(group: zarr.Group, name: str) -> Any:
    array = group[name]
    assert isinstance(array, zarr.Array)
    return array[...]


def test_hierarchy_becomes_part_of_branch_by_one_commit(place: Path, source: Path) -> None:
    repository = Repository.open(place)
    before = repository.lookup_branch("main")
    report = shardstore.pack(str(source), f"{place}@main", message="as of May")
    history = list(repository.ancestry("main"))
    assert history[0].message == "as of May"
    assert [one.id for one in history] == [report.snapshot_id, before]
    assert (report.complete, report.record, report.chunks) == (True, "", 12 + 2)
    group = of(place)
    assert group.attrs.asdict() == {"title": "in May"}
    np.testing.assert_array_equal(values(group, "deep/a"), DATA)
    np.testing.assert_array_equal(values(group, "b"), [1, 2, 7])
    assert shardstore.verify(f"{place}@main", against=str(source)).is_sound


def test_message_names_the_source_by_default(place: Path, source: Path) -> None:
    shardstore.pack(str(source), f"{place}@main")
    assert next(iter(Repository.open(place).ancestry("main"))).message == f"Packed from file://{source}"


def test_chunks_of_full_shard_are_one_native_shard(place: Path, source: Path, tmp_path: Path) -> None:
    shardstore.pack(str(source), f"{place}@main", chunks_per_shard=(2, 3))
    files = sorted((place / "c").iterdir())
    shardstore.pack(str(source), str(tmp_path / "sharded"), chunks_per_shard=(2, 3))
    shards = sorted((tmp_path / "sharded" / "deep" / "a" / "c").rglob("*"))
    assert sorted(file.read_bytes() for file in files) == sorted(shard.read_bytes() for shard in shards if shard.is_file())
    assert len(files) == 2


def test_hierarchy_goes_to_path_beside_what_is_there(place: Path, source: Path) -> None:
    repository = Repository.open(place)
    with repository.transaction(message="first") as store:
        zarr.create_array(store, name="old/kept", shape=(2,), chunks=(2,), dtype="u1")[:] = [8, 9]
    shardstore.pack(str(source), f"{place}@main/old/new/packed")
    group = of(place, "old")
    np.testing.assert_array_equal(values(group, "kept"), [8, 9])
    np.testing.assert_array_equal(values(group, "new/packed/deep/a"), DATA)
    assert repository.verify().is_sound


@pytest.mark.parametrize("path", ["", "/deep", "/deep/a"])
def test_what_is_there_is_refused_and_replaced_only_if_asked(place: Path, source: Path, path: str) -> None:
    shardstore.pack(str(source), f"{place}@main")
    repository = Repository.open(place)
    tip, before = repository.lookup_branch("main"), stored(place)
    with pytest.raises(Conflict, match=r"there is something at .* already \(\d nodes?\): choose another path"):
        shardstore.pack(str(source), f"{place}@main{path}")
    assert stored(place) == before
    other = zarr.create_array(source.parent / "other", shape=(5,), chunks=(5,), dtype="u1")
    other[:] = range(5)
    report = shardstore.pack(str(source.parent / "other"), f"{place}@main{path}", overwrite=True)
    assert report.snapshot_id == repository.lookup_branch("main")
    found = zarr.open_array(repository.readonly_session().store, path=path, mode="r")
    np.testing.assert_array_equal(found[:], range(5))
    np.testing.assert_array_equal(values(zarr.open_group(repository.readonly_session(snapshot_id=tip).store, mode="r"), "deep/a"), DATA)
    assert repository.verify().is_sound


def test_replaced_group_keeps_its_identity_for_others(place: Path, source: Path) -> None:
    """Who writes beside it meanwhile is not contradicted."""
    repository = Repository.open(place)
    session = repository.writable_session()
    zarr.create_array(session.store, name="beside", shape=(1,), chunks=(1,), dtype="u1")[:] = 3
    shardstore.pack(str(source), f"{place}@main/below")
    session.commit("beside", rebase_with=shardstore.snapshots.ConflictDetector())
    assert set(of(place).keys()) == {"beside", "below"}


def test_commit_of_others_while_packing_is_kept(place: Path, source: Path) -> None:
    repository = Repository.open(place)
    done = False

    def commit(progress: Any) -> None:
        nonlocal done
        if progress.phase == "packing" and not done:
            done = True
            with repository.transaction(message="meanwhile") as store:
                zarr.create_array(store, name="meanwhile", shape=(1,), chunks=(1,), dtype="u1")[:] = 3

    shardstore.pack(str(source), f"{place}@main/packed", progress=commit)
    assert done
    assert [one.message for one in repository.ancestry("main")][1:] == ["meanwhile", "Repository initialized"]
    assert set(of(place).keys()) == {"meanwhile", "packed"}


def test_change_of_others_at_the_path_meanwhile_is_conflict(place: Path, source: Path) -> None:
    repository = Repository.open(place)

    def commit(progress: Any) -> None:
        if progress.phase == "finishing":
            with repository.transaction(message="meanwhile") as store:
                zarr.create_array(store, name="packed", shape=(1,), chunks=(1,), dtype="u1")[:] = 3

    with pytest.raises(Conflict, match="packed"):
        shardstore.pack(str(source), f"{place}@main/packed", progress=commit)
    assert [one.message for one in repository.ancestry("main")] == ["meanwhile", "Repository initialized"]


def test_dry_run_writes_nothing(place: Path, source: Path) -> None:
    before = stored(place)
    report = shardstore.pack(str(source), f"{place}@main", dry_run=True)
    assert (report.dry_run, report.snapshot_id, report.units) == (True, None, 2)
    assert stored(place) == before


def test_damaged_source_commits_nothing_and_leaves_no_chunk_waiting(place: Path, source: Path) -> None:
    (source / "deep" / "a" / "c" / "0" / "1").write_bytes(b"short")
    tip = Repository.open(place).lookup_branch("main")
    with pytest.raises(Incomplete, match="Nothing was committed: the same call starts from the beginning") as caught:
        shardstore.pack(str(source), f"{place}@main")
    assert isinstance(caught.value.__cause__, Corruption)
    assert Repository.open(place).lookup_branch("main") == tip
    assert shardstore.pack(str(source), f"{place}@main", exclude="deep").complete


def test_other_objects_are_refused_by_name(place: Path, source: Path) -> None:
    (source / "README.md").write_text("hello")
    before = stored(place)
    with pytest.raises(Unsupported, match=r"other objects than Zarr nodes and their chunks: 'README\.md'.*by exclude"):
        shardstore.pack(str(source), f"{place}@main")
    assert stored(place) == before
    assert shardstore.pack(str(source), f"{place}@main", exclude="README.md").complete


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"part": "1/2"}, "part"),
        ({"record": "memory://record"}, "record"),
        ({"stored": "transformer"}, "stored"),
        ({"index_location": "start", "only_failed": True}, "index_location, only_failed"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_name(place: Path, source: Path, options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{named} cannot be given for "):
        shardstore.pack(str(source), f"{place}@main", **options)


def test_only_branches_can_be_packed_into(place: Path, source: Path) -> None:
    repository = Repository.open(place)
    repository.create_tag("v1", repository.lookup_branch("main"))
    for name in ("v1", repository.lookup_branch("main")):
        with pytest.raises(ReadOnly, match="is not a branch"):
            shardstore.pack(str(source), f"{place}@{name}")
    for function in (shardstore.reshard, shardstore.unpack):
        with pytest.raises(ReadOnly, match="never changes"):
            function(str(source), f"{place}@main")
    with pytest.raises(InvalidInput, match="message is for a commit to a branch"):
        shardstore.pack(str(source), str(place.parent / "new"), message="no")


def test_source_that_holds_the_repository_is_refused(source: Path) -> None:
    Repository.create(source / "repo", fsync=False)
    with pytest.raises(InvalidInput, match="overlap"):
        shardstore.pack(str(source), f"{source / 'repo'}@main")


def test_snapshot_becomes_part_of_another_branch(place: Path, source: Path) -> None:
    shardstore.pack(str(source), f"{place}@main")
    repository = Repository.open(place)
    repository.create_branch("dev", repository.lookup_branch("main"))
    shardstore.pack(f"{place}@main/deep", f"{place}@dev/again")
    found = zarr.open_array(repository.readonly_session("dev").store, path="again/a", mode="r")
    np.testing.assert_array_equal(found[...], DATA)


def test_small_chunks_stay_in_the_manifest(place: Path, tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "small", shape=(4,), chunks=(2,), dtype="u1", compressors=None)
    array[:] = [1, 2, 3, 4]
    shardstore.pack(str(tmp_path / "small"), f"{place}@main/small")
    assert MOST_INLINE_NBYTES > 2
    assert not (place / "c").exists()
    np.testing.assert_array_equal(values(of(place), "small"), [1, 2, 3, 4])


REFUSED = {
    "nested_sharding": "arrays with shards in shards: ",
    "ts_nested_v2keys": "arrays with shards in shards: ",
    "gzip_over_shard": r"arrays whose chunks cannot be taken out: gz \(",
}


@pytest.mark.parametrize("case", golden_cases(), ids=lambda case: case.name)
def test_sharded_hierarchies_of_others(place: Path, case: Any) -> None:
    if (why := REFUSED.get(case.name.rpartition("/")[2])) is not None:
        with pytest.raises(Unsupported, match=why):
            shardstore.pack(case.store, f"{place}@main")
        return
    shardstore.pack(case.store, f"{place}@main/packed")
    for path, wanted in case.arrays.items():
        np.testing.assert_array_equal(values_at(place, f"packed/{path}"), wanted)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("folder", cases("transformer2022"), ids=lambda folder: folder.name)
def test_drafts(place: Path, folder: Path) -> None:
    shardstore.pack(folder / "store", f"{place}@main/packed")
    for path, wanted in expected(folder).items():
        np.testing.assert_array_equal(values_at(place, f"packed/{path}"), wanted)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("folder", [one for one in cases("kerchunk") if (one / "targets").is_dir()], ids=lambda folder: folder.name)
def test_references(place: Path, folder: Path) -> None:
    found = references(folder)
    assert found is not None
    url, options = found
    shardstore.pack(url, f"{place}@main/packed", storage_options=options, exclude="note")
    assert shardstore.verify(f"{place}@main/packed", against=url, against_options=options).is_sound


def test_v2(place: Path, tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "v2", zarr_format=2)
    group.create_array("a", shape=DATA.shape, chunks=(16, 16), dtype=DATA.dtype)[...] = DATA
    zarr.consolidate_metadata(tmp_path / "v2", zarr_format=2)
    shardstore.pack(tmp_path / "v2", f"{place}@main")
    np.testing.assert_array_equal(values(of(place), "a"), DATA)


def values_at(place: Path, path: str) -> Any:
    return zarr.open_array(Repository.open(place).readonly_session().store, path=path.rstrip("/"), mode="r")[...]


@pytest.mark.parametrize("path", ["late", ""])
@pytest.mark.parametrize("what", ["attributes", "array", "both"])
def test_overwriting_what_others_change_meanwhile_is_a_conflict(place: Path, source: Path, path: str, what: str) -> None:
    """What is committed is theirs or ours, never a mixture."""
    repository = Repository.open(place)
    with repository.transaction(message="there") as store:
        zarr.create_group(store, path="late", attributes={"who": "they"})
        zarr.create_array(store, name="late/old", data=np.arange(3))
    before = ""

    def theirs(progress: Any) -> None:
        nonlocal before
        if progress.phase == "finishing":
            with repository.transaction(message="meanwhile") as store:
                if what != "array":
                    zarr.open_group(store, path="late").attrs["u"] = 1
                if what != "attributes":
                    zarr.create_array(store, name="late/theirs" if path or what == "both" else "beside", data=np.arange(3))
            before = repository.lookup_branch("main")

    with pytest.raises(Conflict):
        shardstore.pack(str(source), f"{place}@main/{path}".rstrip("/"), overwrite=True, progress=theirs)
    assert repository.lookup_branch("main") == before


def test_overwriting_one_path_beside_changes_of_others_is_merged(place: Path, source: Path) -> None:
    repository = Repository.open(place)
    with repository.transaction(message="there") as store:
        zarr.create_array(store, name="late/old", data=np.arange(3))

    def theirs(progress: Any) -> None:
        if progress.phase == "finishing":
            with repository.transaction(message="meanwhile") as store:
                zarr.create_array(store, name="beside", data=np.arange(3))

    shardstore.pack(str(source), f"{place}@main/late", overwrite=True, progress=theirs)
    assert sorted(of(place).keys()) == ["beside", "late"]
    assert sorted(of(place, "late").keys()) == ["b", "deep"]
