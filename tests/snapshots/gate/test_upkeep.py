"""Manifests rewritten, chunks put together, and all files looked at; hierarchies that become repositories."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import Conflict, Corruption, InvalidInput, NotFound, StorageError, Unsupported
from shardstore.snapshots import ConflictDetector, Repository
from shardstore.snapshots.inspection import Amount
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.trace import TraceStorage
from tests.apps.cli.running import succeed
from tests.golden import golden_cases, handmade_cases
from tests.maintenance.packing.gate.test_sources import v2_hierarchy
from tests.maintenance.packing.sources import cases, expected, references
from tests.snapshots.repositories import create_array, new_repository, read_array, run
from tests.snapshots.whole import check_whole

FAST = {"connect_timeout": 1, "retries": {"max_attempts": 1}}
DATA = np.repeat(np.arange(1, 17), 100)
CHUNKS = (100,)


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    """An array of four shards of four chunks, of which later commits have changed a chunk each."""
    made = Repository.create(tmp_path / "repo", fsync=False, pack=(4,))
    session = made.writable_session()
    create_array(session, "a", DATA, CHUNKS, compressors=None)
    create_array(session, "b", DATA[:1], (1,))
    session.commit("array")
    for chunk in (0, 5, 6):
        set_chunk(made, chunk, 100 + chunk)
    return made


def set_chunk(repo: Repository, chunk: int, value: int) -> None:
    session = repo.writable_session()
    zarr.open_array(session.store, path="a", mode="r+")[chunk * 100 : chunk * 100 + 100] = value
    session.commit(f"chunk {chunk}")


def manifests_of(repo: Repository, path: str = "a") -> int:
    return len(repo.readonly_session()._core.nodes[path].manifests)


def files_of(repo: Repository, path: str = "a") -> list[int]:
    """How many chunk files each shard of the array has."""
    session = repo.readonly_session()._core
    node = session.nodes[path]
    refs = run(session.all_refs(node))
    assert refs is not None
    return [len({int(file) for file, (at,) in zip(refs.file, refs.coords, strict=True) if at // 4 == shard}) for shard in range(4)]


# -- rewriting ---------------------------------------------------------------------------------------------------------


def test_the_manifests_of_each_array_become_one(repo: Repository) -> None:
    before = read_array(repo.readonly_session(), "a")
    assert (manifests_of(repo), manifests_of(repo, "b")) == (4, 1)
    id_ = repo.rewrite_manifests("together")
    assert (repo.lookup_branch("main"), next(repo.ancestry()).message) == (id_, "together")
    assert (manifests_of(repo), manifests_of(repo, "b")) == (1, 1)
    np.testing.assert_array_equal(read_array(Repository.open(repo.url).readonly_session(), "a"), before)
    assert not repo.diff(str(next(iter(repo.ancestry())).parent_id)).updated_chunks
    assert repo.rewrite_manifests() is None


def test_chunks_of_a_shard_are_put_together(repo: Repository) -> None:
    before = read_array(repo.readonly_session(), "a")
    assert files_of(repo) == [2, 3, 1, 1]
    tip, stored = repo.lookup_branch("main"), repo.stats().stored
    planned = repo.repack(dry_run=True)
    assert (repo.lookup_branch("main"), repo.stats().stored) == (tip, stored)
    id_, done = repo.repack("together")
    assert planned == (None, done)
    assert (repo.lookup_branch("main"), done.cells, done.chunks, done.nbytes) == (id_, 2, 8, 8 * 100 * DATA.itemsize)
    assert files_of(repo) == [1, 1, 1, 1]
    np.testing.assert_array_equal(read_array(Repository.open(repo.url).readonly_session(), "a"), before)
    assert repo.repack() == (None, type(done)())
    check_whole(LocalStorage(repo.url.removeprefix("file://"), fsync=False))


def test_small_chunks_are_put_where_they_would_be_at_once(tmp_path: Path) -> None:
    repo = new_repository(tmp_path, pack=(64,))
    session = repo.writable_session()
    create_array(session, "a", np.arange(64) + 1, (1,))
    session.commit("array")
    for chunk in range(12):
        session = repo.writable_session()
        zarr.open_array(session.store, path="a", mode="r+")[chunk] = 7
        session.commit("one")
    _, done = repo.repack()
    assert (done.cells, done.chunks) == (1, 64)
    assert repo.repack()[0] is None
    assert read_array(repo.readonly_session(), "a").tolist() == [7] * 12 + list(range(13, 65))


@pytest.mark.parametrize("upkeep", [Repository.rewrite_manifests, Repository.repack])
def test_nobodys_session_is_contradicted(repo: Repository, upkeep: Callable[[Repository], object]) -> None:
    """A snapshot says that its chunks have only moved (D39)."""
    sessions = [repo.writable_session(isolation=isolation) for isolation in ("snapshot", "serializable")]
    for number, session in enumerate(sessions):
        array: Any = zarr.open_array(session.store, path="a", mode="r+")
        array[number * 100 : number * 100 + 100] = array[500:600] + 1
    upkeep(repo)
    for session in sessions:
        session.commit("meanwhile", rebase_with=ConflictDetector())
    found = read_array(Repository.open(repo.url).readonly_session(), "a")
    assert (found[0], found[100], found[500]) == (106, 106, 105)


def test_what_others_write_while_chunks_are_put_together_counts(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    real = repo._store.commit

    async def commit(*arguments: Any) -> str:
        monkeypatch.undo()
        await asyncio.to_thread(lambda: set_chunk(Repository.open(repo.url, pack=(4,)), 5, 999))
        return await real(*arguments)

    monkeypatch.setattr(repo._store, "commit", commit)
    repo.repack()
    found = read_array(Repository.open(repo.url).readonly_session(), "a")
    assert (found[0], found[500], found[600]) == (100, 999, 106)
    assert files_of(repo)[1] == 2


def test_a_chunk_that_cannot_be_read_is_no_commit(repo: Repository, tmp_path: Path) -> None:
    before = repo.lookup_branch("main")
    for file in (tmp_path / "repo/c").iterdir():
        file.unlink()
    with pytest.raises(Corruption, match="is not there"):
        repo.repack()
    assert repo.lookup_branch("main") == before


# -- inspection --------------------------------------------------------------------------------------------------------


def test_a_sound_repository(repo: Repository) -> None:
    session = repo.writable_session()
    zarr.open_group(session.store).attrs["long"] = "x" * 100_000
    session.commit("attributes")
    found = repo.verify()
    assert (found.is_sound, found.snapshots, found.structures, found.manifests) == (True, 6, 6, 4)
    assert (found.references, found.chunk_files) == (16 + 1 + 3, 4 + 3)


@pytest.mark.parametrize(
    ("folder", "harm", "kind"),
    [
        ("c", lambda path: path.unlink(), "missing"),
        ("c", lambda path: path.write_bytes(path.read_bytes()[:-200]), "out of bounds"),
        ("m", lambda path: path.unlink(), "missing"),
        ("m", lambda path: path.write_bytes(path.read_bytes()[:-1]), "damaged"),
        ("m", lambda path: path.write_bytes(path.read_bytes().replace(b"PAR1", b"PAR2")), "damaged"),
        ("s", lambda path: path.unlink(), "missing"),
        ("s", lambda path: path.write_bytes(b"PAR1"), "damaged"),
        ("a", lambda path: path.unlink(), "missing"),
        ("a", lambda path: path.write_bytes(b""), "damaged"),
    ],
)
def test_each_harm_is_found(repo: Repository, tmp_path: Path, folder: str, harm: Callable[[Path], Any], kind: str) -> None:
    session = repo.writable_session()
    zarr.open_group(session.store).attrs["long"] = "x" * 100_000
    session.commit("attributes")
    last = max((tmp_path / "repo" / folder).iterdir(), key=lambda path: path.stat().st_mtime_ns)
    harm(last)
    found = Repository.open(repo.url).verify()
    assert [(one.kind, one.file) for one in found.findings] == [(kind, f"{folder}/{last.name}")]
    assert found.findings[0].snapshots
    assert last.name in found.findings[0].message


def test_stats(repo: Repository, tmp_path: Path) -> None:
    repo.create_tag("v1", repo.lookup_branch("main"))
    found = repo.stats()
    assert (found.snapshots, found.branches, found.tags, found.arrays, found.groups) == (5, 1, 1, 2, 1)
    assert (found.references, found.most_levels, found.unneeded.files) == (16 + 1 + 3, 4, 0)
    for folder, amount in found.stored.items():
        sizes = [path.stat().st_size for path in (tmp_path / "repo" / folder).glob("*")]
        assert (amount.files, amount.nbytes) == (len(sizes), sum(sizes))
    (tmp_path / "repo/c/0123456789ABCDEFGHJG").write_bytes(bytes(10))  # of a session that was never committed
    assert repo.stats().unneeded == Amount(1, 10)


# -- adoption ----------------------------------------------------------------------------------------------------------


def sharded(place: Any, **options: Any) -> Any:
    store = shardstore.open(place, chunks_per_shard=(4,), **options)
    zarr.create_group(store, attributes={"title": "old"})
    array = zarr.create_array(store, name="x/a", shape=DATA.shape, chunks=CHUNKS, dtype=DATA.dtype)
    array[...] = DATA
    return array


def test_a_hierarchy_becomes_a_repository(tmp_path: Path) -> None:
    array = sharded(tmp_path / "data.zarr")
    repo = Repository.adopt(tmp_path / "data.zarr", tmp_path / "data.ice", message="as it was")
    assert [info.message for info in repo.ancestry()] == ["as it was", "Repository initialized"]
    assert not (tmp_path / "data.ice/c").exists()
    again = Repository.open(tmp_path / "data.ice", virtual_prefixes=repo.virtual_prefixes)
    np.testing.assert_array_equal(read_array(again.readonly_session(), "x/a"), DATA)
    assert zarr.open_group(again.readonly_session().store, mode="r").attrs["title"] == "old"
    session = again.writable_session()
    zarr.open_array(session.store, path="x/a", mode="r+")[:100] = 7
    session.commit("changed")
    assert (array[:100] == 1).all()
    assert (read_array(again.readonly_session(), "x/a")[:100] == 7).all()
    array[1500:1600] = 3
    with pytest.raises(Conflict, match="has changed since"):
        read_array(Repository.open(tmp_path / "data.ice", virtual_prefixes=repo.virtual_prefixes).readonly_session(), "x/a")
    assert again.verify().is_sound


def test_adoption_of_1000_shards_asks_for_each_index_once(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "data.zarr", name="a", shape=(4000,), shards=(4,), chunks=(2,), dtype="u2", fill_value=9)
    array[...] = np.arange(4000)
    trace = TraceStorage(LocalStorage(tmp_path / "data.zarr"))
    repo = Repository.adopt(trace, tmp_path / "data.ice")
    reads = [event for event in trace.events if event.op == "read" and "/c/" in event.key]
    assert sum(event.requests for event in reads) == 1000
    assert sum(event.nbytes for event in reads) == 1000 * (2 * 16 + 4)
    assert len([event for event in trace.events if event.op == "list"]) == 1
    assert len(list(repo.ancestry())) == 2
    again = Repository.open(tmp_path / "data.ice", virtual_prefixes=repo.virtual_prefixes)
    np.testing.assert_array_equal(read_array(again.readonly_session(), "a"), np.arange(4000))


@pytest.mark.parametrize("case", golden_cases(), ids=lambda case: case.name)
def test_each_family_of_sharded_hierarchies_is_adopted(case: Any, tmp_path: Path) -> None:
    if case.name.endswith("gzip_over_shard"):
        with pytest.raises(Unsupported, match=r"the chunks of 'gz' cannot be referred to one by one.*Leave such arrays out by paths="):
            Repository.adopt(case.store, tmp_path / "data.ice")
        assert not Repository.exists(tmp_path / "data.ice")
        return
    adopted_with(case.store, tmp_path, case.arrays)


@pytest.mark.filterwarnings("ignore")  # of data types that no specification knows
@pytest.mark.parametrize("folder", cases("transformer2022"), ids=lambda folder: folder.name)
def test_each_hierarchy_of_the_2022_draft_is_adopted(folder: Path, tmp_path: Path) -> None:
    adopted_with(folder / "store", tmp_path, expected(folder))


@pytest.mark.filterwarnings("ignore")  # of codecs that no specification knows
@pytest.mark.parametrize("folder", [one for one in cases("kerchunk") if (one / "targets").is_dir()], ids=lambda folder: folder.name)
def test_each_set_of_references_is_adopted(folder: Path, tmp_path: Path) -> None:
    found = references(folder)
    assert found is not None
    made = Repository.adopt(f"reference::{found[1]['fo']}", tmp_path / "data.ice", virtual_prefixes=["memory://fx/", "memory:///fx/"])
    for path, wanted in expected(folder).items():
        np.testing.assert_array_equal(read_array(made.readonly_session(), path), wanted)
    assert made.verify().is_sound


def test_damaged_hierarchy_is_not_adopted_and_the_rest_of_it_is(tmp_path: Path) -> None:
    damaged = [case for case in handmade_cases() if case.index_is_bad]
    sound = next(case for case in handmade_cases() if not case.bad_chunks and case.values is not None)
    with pytest.raises(Corruption):
        Repository.adopt(sound.store, tmp_path / "data.ice")
    assert not Repository.exists(tmp_path / "data.ice")
    made = Repository.adopt(sound.store, tmp_path / "data.ice", paths={sound.path: "chunks", "*": None})
    assert damaged
    np.testing.assert_array_equal(read_array(made.readonly_session(), sound.path), sound.values)


@pytest.mark.filterwarnings("ignore")
def test_hierarchies_of_zarr_v2_are_adopted(tmp_path: Path) -> None:
    written = v2_hierarchy(tmp_path / "v2.zarr")
    (tmp_path / "v2.zarr" / "README.md").unlink()  # at which zarr stumbles when it compares
    adopted_with(tmp_path / "v2.zarr", tmp_path, written)


def adopted_with(source: Path, tmp_path: Path, arrays: dict[str, Any]) -> None:
    copy = tmp_path / "copy.zarr"  # which is rewritten in the end
    shutil.copytree(source, copy)
    repo = Repository.adopt(copy, tmp_path / "data.ice")
    assert arrays
    for path, wanted in arrays.items():
        np.testing.assert_array_equal(read_array(repo.readonly_session(), path), wanted)
    assert repo.verify().is_sound
    for file in copy.rglob("*"):  # behind its back
        if file.is_file():
            data = file.read_bytes()
            file.unlink()
            file.write_bytes(data[::-1])
    again = Repository.open(tmp_path / "data.ice", virtual_prefixes=repo.virtual_prefixes).readonly_session()
    stored = [path for path in arrays if run(has_virtual_chunks(again, path))]
    assert stored
    for path in stored:
        with pytest.raises(Conflict, match="has changed since"):
            read_array(again, path)


async def has_virtual_chunks(session: Any, path: str) -> bool:
    return any("://" in file for file in (await session.storage.known_references(path)).files)


# -- pins --------------------------------------------------------------------------------------------------------------


def test_shards_that_any_snapshot_refers_to_are_left_alone_where_they_are(tmp_path: Path) -> None:
    array = sharded(tmp_path / "data.zarr", strategy="append")
    for chunk in (0, 400):  # so two shards have dead bytes
        array[chunk : chunk + 100] = 5
    was = array[...]
    repo = Repository.adopt(tmp_path / "data.zarr", tmp_path / "data.ice")
    adopted = repo.lookup_branch("main")
    session = repo.writable_session()
    zarr.open_array(session.store, path="x/a", mode="r+")[:] = 7
    session.commit("the newest refers to nothing there")
    pins = repo.pins(tmp_path / "data.zarr")
    assert [pin.key for pin in pins] == [f"x/a/c/{shard}" for shard in range(4)]
    assert all(pin.generation for pin in pins)
    bounds: dict[str, Any] = {"dead_ratio": 0.01, "dead_bytes": 1}
    assert sorted(shardstore.compact(tmp_path / "data.zarr", pins=pins, **bounds).pinned.first) == ["x/a/c/0", "x/a/c/1"]
    again = Repository.open(tmp_path / "data.ice", virtual_prefixes=repo.virtual_prefixes)
    np.testing.assert_array_equal(read_array(again.readonly_session(snapshot_id=adopted), "x/a"), was)
    report = succeed("compact", str(tmp_path / "data.zarr"), "--pins-of", str(tmp_path / "data.ice"), "--dead-ratio", "0.01", "--json").json
    assert report["pinned"]["count"] == 2
    assert shardstore.compact(tmp_path / "data.zarr", **bounds).rewritten == 2  # nobody has told it
    with pytest.raises(Conflict, match="has changed since"):
        read_array(Repository.open(again.url, virtual_prefixes=repo.virtual_prefixes).readonly_session(snapshot_id=adopted), "x/a")
    below = repo.pins(tmp_path / "data.zarr" / "x")
    assert [pin.key for pin in below] == [f"a/c/{shard}" for shard in range(4)]
    with pytest.raises(InvalidInput, match="refers to anything in"):
        repo.pins(tmp_path / "elsewhere")


def test_pins_of_draft_hierarchy_have_the_keys_that_are_shown(tmp_path: Path) -> None:
    (folder, *_) = [one for one in cases("transformer2022") if expected(one)]
    shutil.copytree(folder / "store", tmp_path / "draft")
    repo = Repository.adopt(tmp_path / "draft", tmp_path / "draft.ice")
    pins = repo.pins(tmp_path / "draft")
    assert pins
    shardstore.compact(tmp_path / "draft", pins=pins)  # a pin that holds nothing would be refused


def test_an_adoption_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        Repository.adopt(tmp_path / "nothing", tmp_path / "data.ice")
    assert not Repository.exists(tmp_path / "data.ice")
    assert not [path for path in (tmp_path / "data.ice").rglob("*") if path.is_file()]
    sharded(tmp_path / "data.zarr")
    Repository.create(tmp_path / "there.ice")
    with pytest.raises(InvalidInput, match="there is a versioned store"):
        Repository.adopt(tmp_path / "data.zarr", tmp_path / "there.ice")
    assert Repository.exists(tmp_path / "there.ice")


# -- options of other places -------------------------------------------------------------------------------------------


def test_options_of_the_repository_count_for_other_places_of_its_protocol(s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url
    sharded(f"{url}/data.zarr", storage_options=options)
    adopted = Repository.adopt(f"{url}/data.zarr", f"{url}/data.ice", storage_options=options)
    np.testing.assert_array_equal(read_array(adopted.readonly_session(), "x/a"), DATA)
    again = Repository.open(f"{url}/data.ice", storage_options=options, virtual_prefixes=adopted.virtual_prefixes)
    np.testing.assert_array_equal(read_array(again.readonly_session(), "x/a"), DATA)
    assert [pin.key for pin in again.pins(f"{url}/data.zarr")] == [f"x/a/c/{shard}" for shard in range(4)]
    again.export_zarr(f"{url}/out.zarr")
    assert shardstore.verify(f"{url}/out.zarr", storage_options=options).is_sound
    session = again.writable_session()
    assert session.set_virtual_hierarchy(f"{url}/data.zarr", "twice") == 16


def test_other_options_than_those_of_the_repository_count_where_they_are_given(s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url
    sharded(f"{url}/data.zarr", storage_options=options)
    other = {**options, "endpoint_url": "http://127.0.0.1:9"}  # where nobody listens
    with pytest.raises(StorageError):
        Repository.adopt(f"{url}/data.zarr", f"{url}/data.ice", storage_options=options, source_options={**other, "config_kwargs": FAST})
    adopted = Repository.adopt(f"{url}/data.zarr", f"{url}/data.ice", storage_options=options)
    with pytest.raises(StorageError):
        adopted.pins(f"{url}/data.zarr", storage_options={**other, "config_kwargs": FAST})
    wrong = {"s3": {**other, "config_kwargs": FAST}}
    opened = Repository.open(f"{url}/data.ice", storage_options=options, virtual_prefixes=adopted.virtual_prefixes, virtual_options=wrong)
    with pytest.raises(StorageError):
        read_array(opened.readonly_session(), "x/a")
