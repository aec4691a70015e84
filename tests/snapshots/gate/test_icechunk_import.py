"""A history of Icechunk as one of ours, and back: the same values at every snapshot, and the same history."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import icechunk
import numpy as np
import pytest
import s3fs
import zarr

from shardstore.errors import Corruption, InvalidInput, NotFound, StorageError, Unsupported, WriteOutcomeUnknown
from shardstore.format.snapshots.state import Ref
from shardstore.snapshots import Repository
from shardstore.snapshots.new_history import NewHistory
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.faults import DropReply, Fail, Fault, FaultStorage
from shardstore.testing.storage_suite import SyncStorage
from tests import golden
from tests.apps.cli.running import succeed
from tests.snapshots.icechunk_histories import IS_2, change, contents, history, new_icechunk, set_document, write_key
from tests.snapshots.repositories import run

pytestmark = [pytest.mark.filterwarnings("ignore")]
needs_2 = pytest.mark.skipif(not IS_2, reason="icechunk 1 does not say where its chunks lie")

FIXTURES = golden.FIXTURES / "icechunk"
DATA = np.arange(1, 4097, dtype="i4").reshape(64, 64)


def check_same(ours: Repository, theirs: Any, *, is_export: bool = False, values: bool = True) -> int:
    """Compare all snapshots to which branches and tags lead; return how many. ``is_export``: of what an export of ours has written.
    ``values``: compare what is in them too.
    """
    assert (ours.list_branches(), ours.list_tags()) == (theirs.list_branches(), theirs.list_tags())
    seen: set[str] = set()
    tips = [({"branch": name}, theirs.lookup_branch(name)) for name in sorted(theirs.list_branches())]
    tips += [({"tag": name}, theirs.lookup_tag(name)) for name in sorted(theirs.list_tags())]
    for given, tip in tips:
        line = list(theirs.ancestry(snapshot_id=tip))[: -1 if is_export else None]
        mine = list(ours.ancestry(**given))
        assert [one.message for one in mine] == [one.message for one in line]
        for one, other in zip(mine, line, strict=True):
            if other.id in seen:
                continue
            seen.add(other.id)
            if values:
                wanted = contents(theirs.readonly_session(snapshot_id=other.id))
                assert contents(ours.readonly_session(snapshot_id=one.id)) == (wanted or {"": {}}), one
            if not is_export:
                assert one.id == other.id
                assert (one.parent_id, one.message) == (other.parent_id, other.message)
                assert one.metadata == {name: value for name, value in other.metadata.items() if not name.startswith("__")}
                assert abs((one.written_at - other.written_at).total_seconds()) < 0.1
    return len(seen)


@pytest.fixture
def source(tmp_path: Path) -> Any:
    """A history with every kind of change, in Icechunk."""
    zarr.create_array(tmp_path / "old.zarr", data=DATA, chunks=(16, 16), compressors=None)
    made = new_icechunk(tmp_path / "theirs", f"file://{tmp_path}/old.zarr/")

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
        root.create_array("shards", data=DATA, chunks=(8, 8), shards=(32, 32), compressors=None)
        root.create_array("tiny", data=DATA[:4, :4], chunks=(1, 1), shards=(2, 2), compressors=None)
        virtual = root.create_array("v", shape=DATA.shape, chunks=(16, 16), dtype="i4", compressors=None)
        assert virtual.shape
        specs = [icechunk.VirtualChunkSpec([i, j], f"file://{tmp_path}/old.zarr/c/{i}/{j}", 0, 1024) for i in range(4) for j in range(4)]
        assert not session.store.set_virtual_refs("v", specs)
    for root, _ in commit("chunks"):
        root["g/a"][:16, :16] = -1
        root["g/a"][48:, 48:] = 0
        root["v"][:16, :16] = 3
        root["shards"][:8, :8] = 0
        root["shards"][32:, 32:] = 0
        root["tiny"][0, 0] = 0
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
        root["shards"].resize((40, 40))
    for root, _ in commit("replaced"):
        del root["h/b"]
        del root["s"]
        root.create_array("s", data=np.arange(3))
    for root, _ in commit("on the side", "side"):
        root["g/b"][0] = 99
    return made


@needs_2
@pytest.mark.parametrize("copy", [False, True])
def test_every_snapshot_is_the_same(source: Any, tmp_path: Path, copy: bool) -> None:
    prefix = f"file://{tmp_path}/old.zarr/"
    said: list[tuple[int, int | None]] = []
    repo = Repository.import_icechunk(
        source, tmp_path / "run.ice", copy=copy, virtual_prefixes=[prefix], progress=lambda what, done, total: said.append((done, total))
    )
    assert check_same(repo, source) == 8
    assert said == [(number, 8) for number in range(9)]
    assert (tmp_path / "run.ice/c").exists() is copy
    assert repo.verify().is_sound
    moved = [one.id for one in repo.ancestry() if one.message in ("moved", "attributes")]
    assert ("g", "h") in repo.diff(moved[1], moved[0]).moved_nodes
    assert repo.diff(moved[1], moved[0]).new_arrays == frozenset()
    again = Repository.open(tmp_path / "run.ice", virtual_prefixes=repo.virtual_prefixes)
    with again.transaction(message="goes on") as store:
        zarr.open_array(store, path="v", mode="r+")[:] = 1
        zarr.open_array(store, path="shards", mode="r+")[:] = 1
    chunks = [path.stat().st_mtime_ns for path in sorted((tmp_path / "theirs/chunks").iterdir())]
    assert chunks == [path.stat().st_mtime_ns for path in sorted((tmp_path / "theirs/chunks").iterdir())]


@needs_2
@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_random_histories_there_and_back_again(seed: int, copy: bool, tmp_path: Path) -> None:
    rng = random.Random(seed)
    source = new_icechunk(tmp_path / "theirs")
    for number in range(25):
        branch = rng.choice(sorted(source.list_branches()))
        nodes = [path for path in contents(source.readonly_session(branch)) if path]
        free = [path for path in ("k", "m", "n") if path not in nodes]
        if nodes and free and rng.random() < 0.2:
            session = source.rearrange_session(branch)
            session.move(f"/{rng.choice(nodes)}", f"/{rng.choice(free)}")
        else:
            session = source.writable_session(branch)
            for _ in range(rng.randint(0, 3)):
                change(session, rng, shards=True)
        session.commit(f"{number}", {"seed": seed, "list": [1, None]}, allow_empty=True)
        if rng.random() < 0.15:
            source.create_branch(f"b{number}", rng.choice(list(source.ancestry(branch=branch))).id)
        if rng.random() < 0.15:
            source.create_tag(f"t{number}", source.lookup_branch(branch))
    if seed % 2:
        line = list(source.ancestry(branch="main"))
        assert source.expire_snapshots(line[len(line) // 3].written_at)
    first = Repository.import_icechunk(source, tmp_path / "one.ice", copy=copy, pack=rng.choice([None, "auto", (2, 2)]))
    check_same(first, source)
    assert first.verify().is_sound
    done = first.export_icechunk(tmp_path / "out")
    storage = icechunk.local_filesystem_storage(str(tmp_path / "out"))
    target = icechunk.Repository.open(storage, authorize_virtual_chunk_access=done.authorize_virtual_chunk_access)
    check_same(first, target, is_export=True)
    prefixes = [f"file://{tmp_path}/one.ice/c/", *first.virtual_prefixes]
    second = Repository.import_icechunk(target, tmp_path / "two.ice", copy=copy, virtual_prefixes=prefixes)
    assert history(second) == history(first)
    check_same(second, source)


@pytest.mark.skipif(IS_2, reason="icechunk 2 does")
def test_icechunk_1_is_refused(tmp_path: Path) -> None:
    new_icechunk(tmp_path / "theirs")
    with pytest.raises(Unsupported, match="import with icechunk 2"):
        Repository.import_icechunk(tmp_path / "theirs", tmp_path / "new.ice", copy=True)
    assert not (tmp_path / "new.ice").exists()


# -- what others have written ------------------------------------------------------------------------------------------


def expected(case: str) -> dict[tuple[str, str, str], Any]:
    """The arrays of a fixture: branch or tag, its name, the path, and the elements."""
    found = np.load(FIXTURES / case / "expected.npz")
    named = [(*name.partition("/")[0].partition(".")[::2], name.partition("/")[2]) for name in found.files]
    return {(kind, ref, path): found[f"{kind}.{ref}/{path}"] for kind, ref, path in named}


def check_fixture(repo: Repository, case: str) -> None:
    for (kind, ref, path), values in expected(case).items():
        given: dict[str, Any] = {kind: ref}
        np.testing.assert_array_equal(zarr.open_array(repo.readonly_session(**given).store, path=path, mode="r")[...], values)


@needs_2
@pytest.mark.parametrize("copy", [False, True])
def test_repository_that_icechunk_1_has_written(tmp_path: Path, copy: bool) -> None:
    shutil.copytree(FIXTURES / "ic_native/repo", tmp_path / "repo")
    repo = Repository.import_icechunk(tmp_path / "repo", tmp_path / "run.ice", copy=copy)
    check_fixture(repo, "ic_native")
    check_same(repo, icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "repo"))), values=False)
    assert zarr.open_array(repo.readonly_session().store, path="g/sharded", mode="r").chunks == (4, 6)
    (tmp_path / "repo").rename(tmp_path / "away")
    again = Repository.open(tmp_path / "run.ice", virtual_prefixes=repo.virtual_prefixes)
    if copy:
        check_fixture(again, "ic_native")
    else:
        with pytest.raises(Corruption, match=r"the virtual file .*/repo/chunks/.* is not there"):
            zarr.open_array(again.readonly_session().store, path="g/big", mode="r")[...]


@needs_2
@pytest.mark.night
def test_virtual_shards_of_another_bucket(s3_endpoint: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"key": "test", "secret": "test", "endpoint_url": s3_endpoint}
    bucket = s3fs.S3FileSystem(**options)
    bucket.call_s3("create_bucket", Bucket="shardstore-fx")
    for file in (FIXTURES / "ic_virtual_shard/targets").rglob("*"):
        if file.is_file():
            bucket.pipe_file(f"shardstore-fx/{file.relative_to(FIXTURES / 'ic_virtual_shard/targets')}", file.read_bytes())
    given: dict[str, Any] = {"virtual_prefixes": ["s3://shardstore-fx/"], "virtual_options": {"s3": options}}
    repo = Repository.import_icechunk(FIXTURES / "ic_virtual_shard/repo", tmp_path / "run.ice", **given)
    check_fixture(repo, "ic_virtual_shard")
    assert list((tmp_path / "run.ice").rglob("c/*")) == []


@needs_2
@pytest.mark.night
def test_source_on_s3(s3_url: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    url, options = s3_url
    first = Repository.create(f"{url}/run.ice", storage_options=options, pack=(2, 2))
    with first.transaction(message="array") as store:
        zarr.create_array(store, name="a", data=DATA, chunks=(16, 16), compressors=None)
    done = first.export_icechunk(f"{url}/theirs", target_options=options)
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    place: dict[str, Any] = {"endpoint_url": options["endpoint_url"], "allow_http": True, "force_path_style": True, "region": "us-east-1"}
    storage = icechunk.s3_storage(bucket=bucket, prefix=f"{prefix}/theirs", access_key_id="test", secret_access_key="test", **place)
    source = icechunk.Repository.open(storage, authorize_virtual_chunk_access=done.authorize_virtual_chunk_access)
    session = source.writable_session("main")
    zarr.create_array(session.store, name="b", data=DATA, chunks=(16, 16), compressors=None)
    zarr.create_array(session.store, name="c", data=DATA, chunks=(16, 16), shards=(32, 32), compressors=None)
    session.commit("native")
    given: dict[str, Any] = {"virtual_prefixes": [f"{url}/run.ice/c/"], "virtual_options": {"s3": options}}
    ways: list[tuple[Any, dict[str, Any]]] = [
        (f"{url}/theirs", {"source_options": options}),
        (source, {"source_url": f"{url}/theirs"}),
    ]
    for number, (where, more) in enumerate(ways):
        repo = Repository.import_icechunk(where, tmp_path / f"{number}.ice", **more, **given)
        check_same(repo, source, is_export=True, values=False)
        for path in "abc":
            np.testing.assert_array_equal(zarr.open_array(repo.readonly_session().store, path=path, mode="r")[...], DATA)
        assert not (tmp_path / f"{number}.ice/c").exists()


# -- histories -----------------------------------------------------------------------------------------------------------


@needs_2
def test_what_follows_an_export_is_imported_behind_it(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "run.ice")
    with repo.transaction(message="array", metadata={"who": "me"}) as store:
        zarr.create_array(store, name="a", data=DATA, chunks=(16, 16))
    done = repo.export_icechunk(tmp_path / "out")
    storage = icechunk.local_filesystem_storage(str(tmp_path / "out"))
    target = icechunk.Repository.open(storage, authorize_virtual_chunk_access=done.authorize_virtual_chunk_access)
    metadata = dict(next(iter(target.ancestry(branch="main"))).metadata)
    for message, said in (("theirs", {"x": 1}), ("copied", metadata), ("forged", metadata | {"shardstore.written_at": "yesterday"})):
        session = target.writable_session("main")
        array: Any = zarr.open_array(session.store, path="a", mode="r+")
        array[0, 0] += 1
        session.commit(message, metadata=said)
    prefixes = [f"file://{tmp_path}/run.ice/c/"]
    back = Repository.import_icechunk(tmp_path / "out", tmp_path / "back.ice", virtual_prefixes=prefixes)
    line = list(back.ancestry())
    assert [one.message for one in line] == ["forged", "copied", "theirs", "array", "Repository initialized"]
    assert line[3:] == list(repo.ancestry())
    assert [one.id for one in line[:3]] == [one.id for one in list(target.ancestry(branch="main"))[:3]]
    assert [one.metadata for one in line[:3]] == [metadata | {"shardstore.written_at": "yesterday"}, metadata, {"x": 1}]
    np.testing.assert_array_equal(zarr.open_array(back.readonly_session().store, path="a", mode="r")[0, :2], [4, 2])


@needs_2
def test_first_snapshot_of_an_export_stays_where_something_points_to_it(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "run.ice")
    repo.export_icechunk(tmp_path / "out")
    target = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "out")))
    target.create_tag("empty", list(target.ancestry(branch="main"))[-1].id)
    back = Repository.import_icechunk(tmp_path / "out", tmp_path / "back.ice")
    assert [one.message for one in back.ancestry()] == ["Repository initialized"] * 2
    assert contents(back.readonly_session(tag="empty")) == {"": {}}


@needs_2
def test_times_ascend_from_parent_to_child(tmp_path: Path) -> None:
    source = new_icechunk(tmp_path / "theirs")
    for number in range(6):
        session = source.writable_session("main")
        zarr.open_group(session.store, mode="a").attrs["n"] = number
        session.commit(str(number))
    repo = Repository.import_icechunk(tmp_path / "theirs", tmp_path / "run.ice")
    times = [one.written_at for one in repo.ancestry()][::-1]
    assert all(earlier < later for earlier, later in itertools.pairwise(times))
    for info in source.ancestry(branch="main"):
        mine = repo.lookup_snapshot(info.id).written_at
        assert info.written_at - timedelta(milliseconds=1) < mine <= info.written_at + timedelta(milliseconds=6)
    at = list(source.ancestry(branch="main"))[2].written_at + timedelta(milliseconds=6)
    assert zarr.open_group(repo.readonly_session(as_of=at).store, mode="r").attrs["n"] >= 3  # type: ignore[operator]  # a number


@needs_2
@pytest.mark.parametrize("copy", [False, True])
def test_names_that_urls_encode(tmp_path: Path, copy: bool) -> None:
    place = tmp_path / "old 100%25 #1? ä"
    zarr.create_array(place / "a.zarr", data=DATA, chunks=(16, 16), compressors=None)
    source = new_icechunk(tmp_path / "their %20 #s", f"file://{tmp_path}/")
    session = source.writable_session("main")
    zarr.create_array(session.store, name="v", shape=DATA.shape, chunks=(16, 16), dtype="i4", compressors=None)
    zarr.create_array(session.store, name="n", data=DATA, chunks=(16, 16), compressors=None)
    encoded = str(place).replace("%", "%25").replace("#", "%23").replace("?", "%3F")
    specs = [icechunk.VirtualChunkSpec([i, j], f"file://{encoded}/a.zarr/c/{i}/{j}", 0, 1024) for i in range(4) for j in range(4)]
    assert not session.store.set_virtual_refs("v", specs)
    session.commit("both")
    np.testing.assert_array_equal(zarr.open_array(source.readonly_session("main").store, path="v", mode="r")[...], DATA)
    repo = Repository.import_icechunk(source, tmp_path / "run.ice", copy=copy, virtual_prefixes=[f"file://{place}/"])
    for path in ("v", "n"):
        np.testing.assert_array_equal(zarr.open_array(repo.readonly_session().store, path=path, mode="r")[...], DATA)


@needs_2
def test_array_at_the_root_and_arrays_that_change_their_kind(tmp_path: Path) -> None:
    source = new_icechunk(tmp_path / "theirs")
    made: list[dict[str, Any]] = [
        {"chunks": (16, 16)},
        {"chunks": (8, 8), "shards": (32, 32)},
        {"chunks": (8, 8), "shards": (16, 16)},
        {"chunks": (8, 8)},
    ]
    for number, how in enumerate(made):
        session = source.writable_session("main")
        zarr.create_array(session.store, name="", data=DATA + number, overwrite=True, **how)
        session.commit(str(number))
    session = source.writable_session("main")
    zarr.create_array(session.store, name="", data=np.arange(8), chunks=(2,), shards=(4,), overwrite=True)
    session.commit("another rank")
    session = source.writable_session("main")
    zarr.create_group(session.store, overwrite=True)
    zarr.create_array(session.store, name="a", data=DATA, chunks=(16, 16))
    session.commit("group")
    for copy in (False, True):
        repo = Repository.import_icechunk(source, tmp_path / f"{copy}.ice", copy=copy)
        line = list(repo.ancestry())[::-1][1:]
        for number, (info, how) in enumerate(zip(line, made, strict=False)):
            found = zarr.open_array(repo.readonly_session(snapshot_id=info.id).store, mode="r")
            np.testing.assert_array_equal(found[...], DATA + number)
            assert found.chunks == how["chunks"]
        np.testing.assert_array_equal(zarr.open_array(repo.readonly_session(snapshot_id=line[4].id).store, mode="r")[...], np.arange(8))
        np.testing.assert_array_equal(zarr.open_array(repo.readonly_session().store, path="a", mode="r")[...], DATA)


@needs_2
@pytest.mark.parametrize("copy", [False, True])
def test_shards_of_an_array_that_shrinks_and_grows(tmp_path: Path, copy: bool) -> None:
    source = new_icechunk(tmp_path / "theirs")
    for number, (shape, how) in enumerate(
        ((32, "create"), (18, "document"), (24, "document"), (9, "resize"), (40, "resize"), (10, "document"), (38, "resize"))
    ):
        session = source.writable_session("main")
        if how == "create":
            zarr.create_array(session.store, name="a", data=np.arange(1, 33), chunks=(2,), shards=(8,), compressors=None, fill_value=0)
        elif how == "resize":
            zarr.open_array(session.store, path="a", mode="r+").resize((shape,))
        else:
            set_document(session, "a", shape=[shape])
        if number in (3, 5):
            zarr.open_array(session.store, path="a", mode="r+")[3:9] = number
        session.commit(how, allow_empty=True)
    repo = Repository.import_icechunk(source, tmp_path / "run.ice", copy=copy)
    for info in list(source.ancestry(branch="main"))[:-1]:
        wanted = zarr.open_array(source.readonly_session(snapshot_id=info.id).store, path="a", mode="r")[...]
        found = zarr.open_array(repo.readonly_session(snapshot_id=info.id).store, path="a", mode="r")[...]
        np.testing.assert_array_equal(found, wanted, err_msg=info.message)


@needs_2
@pytest.mark.parametrize("copy", [False, True])
def test_inner_chunks_that_appear_with_a_larger_shape(tmp_path: Path, copy: bool) -> None:
    source = new_icechunk(tmp_path / "theirs")
    session = source.writable_session("main")
    for name, size in (("a", None), ("b", (8,))):
        zarr.create_array(session.store, name=name, data=np.arange(1, 33), chunks=(2,), shards=size, compressors=None, fill_value=0)
        set_document(session, name, shape=[18])
    session.commit("smaller than what was written")
    session = source.writable_session("main")
    for name in "ab":
        set_document(session, name, shape=[22])
    session.commit("larger")
    repo = Repository.import_icechunk(source, tmp_path / "run.ice", copy=copy)
    check_same(repo, source)
    assert zarr.open_array(repo.readonly_session().store, path="b", mode="r")[...].tolist()[18:] == [19, 20, 21, 22]  # type: ignore[union-attr]  # an array


@needs_2
@pytest.mark.parametrize("copy", [False, True])
def test_array_that_loses_its_shards_in_place(tmp_path: Path, copy: bool) -> None:
    source = new_icechunk(tmp_path / "theirs")
    session = source.writable_session("main")
    zarr.create_array(session.store, name="a", data=np.arange(1, 513), chunks=(64,), shards=(128,), compressors=None, fill_value=0)
    session.commit("shards")
    session = source.writable_session("main")
    set_document(session, "a", codecs=[{"name": "bytes", "configuration": {"endian": "little"}}])
    write_key(session, "a/c/0", np.full(128, 7).tobytes())
    for number in (1, 2):
        write_key(session, f"a/c/{number}", None)
    write_key(session, "a/c/3", np.full(128, 8).tobytes())
    session.commit("none")
    repo = Repository.import_icechunk(source, tmp_path / "run.ice", copy=copy)
    check_same(repo, source)


# -- what cannot be imported, and what goes wrong --------------------------------------------------------------------------


@needs_2
def test_sources_that_are_none_are_refused(source: Any, tmp_path: Path) -> None:
    new = tmp_path / "new.ice"
    memory = icechunk.in_memory_storage()
    icechunk.Repository.create(memory)
    for given, arguments, said in (
        (7, {}, "not of type int"),
        (memory, {}, "give copy=True to copy its chunks"),
        (source, {"copy": True, "source_url": "file:///x"}, "give one of the two"),
        (
            source,
            {"virtual_prefixes": [f"file://{tmp_path}/old.zarr/"], "source_url": str(tmp_path / "elsewhere")},
            "give copy=True to copy its chunks",
        ),
        (source, {}, r"if you trust it, give virtual_prefixes=\['file://.*/old.zarr/c/0/'\]"),
    ):
        arguments_: Any = arguments
        with pytest.raises(InvalidInput, match=said):
            Repository.import_icechunk(given, new, **arguments_)
        assert not Repository.exists(new)
        assert [path for path in new.rglob("*") if path.is_file()] == []
    with pytest.raises(NotFound, match="there is no repository of icechunk at file://"):
        Repository.import_icechunk(tmp_path / "nothing", new)
    Repository.import_icechunk(memory, new, copy=True)
    with pytest.raises(InvalidInput, match="there is a versioned store at"):
        Repository.import_icechunk(memory, new, copy=True)
    assert Repository.open(new).verify().is_sound


@needs_2
def test_names_and_arrays_that_a_store_cannot_have_are_refused(tmp_path: Path) -> None:
    source = new_icechunk(tmp_path / "theirs")
    first = source.lookup_branch("main")
    source.create_branch("both", first)
    source.create_tag("both", first)
    with pytest.raises(InvalidInput, match="'both' is a branch and a tag"):
        Repository.import_icechunk(source, tmp_path / "new.ice")
    source.delete_tag("both")
    source.create_branch("a@b", first)
    with pytest.raises(InvalidInput, match="'a@b' cannot be the name of a branch or tag"):
        Repository.import_icechunk(source, tmp_path / "new.ice")
    source.delete_branch("a@b")
    session = source.writable_session("main")
    inner = zarr.codecs.ShardingCodec(chunk_shape=(2,))
    zarr.create_array(
        session.store,
        name="nested",
        shape=(8,),
        dtype="i4",
        chunks=(8,),
        compressors=None,
        serializer=zarr.codecs.ShardingCodec(chunk_shape=(4,), codecs=[inner]),
        filters=None,
    )
    session.commit("nested")
    with pytest.raises(InvalidInput, match="'nested' has shards inside of shards"):
        Repository.import_icechunk(source, tmp_path / "new.ice")
    assert not Repository.exists(tmp_path / "new.ice")


@needs_2
@pytest.mark.parametrize("copy", [False, True])
def test_import_that_fails_at_any_request_leaves_nothing(source: Any, tmp_path: Path, copy: bool) -> None:
    given: dict[str, Any] = {"copy": copy, "virtual_prefixes": [f"file://{tmp_path}/old.zarr/"]}
    for at in itertools.count(1):
        inner = MemoryStorage(f"{tmp_path}/{copy}{at}")
        storage = FaultStorage(inner, [Fault(at, Fail(), frozenset({"write", "read", "stat"}))])
        try:
            made = Repository.import_icechunk(source, storage, **given)
        except StorageError:
            assert storage.struck
            assert not Repository.exists(inner)
            left = [info.key for info in SyncStorage(inner).infos() if not info.key.startswith("t/")]
            is_last = any(request.key.startswith("t/") or "catalog" in request.key for _, request in storage.struck)
            assert left == [] or is_last, (at, left)
            continue
        if not storage.struck:
            break
        assert made.verify().is_sound
    assert at > (20 if copy else 15)
    check_same(Repository.open(inner, virtual_prefixes=made.virtual_prefixes), source)


@needs_2
def test_import_whose_last_answer_is_lost_keeps_all_files(source: Any, tmp_path: Path) -> None:
    inner = MemoryStorage(str(tmp_path))
    storage = FaultStorage(inner, [Fault(1, DropReply(), frozenset({"write"}), "catalog.json")])
    given: dict[str, Any] = {"virtual_prefixes": [f"file://{tmp_path}/old.zarr/"]}
    with suppress(WriteOutcomeUnknown):
        Repository.import_icechunk(source, storage, **given)
    assert storage.struck
    found = Repository.open(inner, virtual_prefixes=[*given["virtual_prefixes"], f"file://{tmp_path}/theirs/chunks/"])
    check_same(found, source)


@needs_2
@pytest.mark.parametrize("other", [(1024, 1024), (0, 512)], ids=["another offset", "another length"])
def test_virtual_chunk_that_gets_another_place_in_the_same_file(tmp_path: Path, other: tuple[int, int]) -> None:
    data = np.arange(512, dtype="<i4")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/file").write_bytes(data.tobytes())
    prefix = f"file://{tmp_path}/raw/"
    source = new_icechunk(tmp_path / "theirs", prefix)
    for number, (offset, length) in enumerate(((0, 1024), other)):
        session = source.writable_session("main")
        if not number:
            zarr.create_array(session.store, name="v", shape=(256,), chunks=(256,), dtype="i4", compressors=None, filters=None)
        elif length < 1024:  # half as long: of half as many elements
            set_document(session, "v", shape=[128], chunk_grid={"name": "regular", "configuration": {"chunk_shape": [128]}})
        assert not session.store.set_virtual_refs("v", [icechunk.VirtualChunkSpec([0], f"{prefix}file", offset, length)])
        session.commit(str(number))
    repo = Repository.import_icechunk(source, tmp_path / "run.ice", virtual_prefixes=[prefix])
    check_same(repo, source)


@needs_2
@pytest.mark.parametrize("copy", [False, True])
def test_array_that_loses_its_shards_and_keeps_the_bytes_of_some_chunks(tmp_path: Path, copy: bool) -> None:
    """The same bytes of a chunk are a shard before, and elements after."""
    source = new_icechunk(tmp_path / "theirs")
    session = source.writable_session("main")
    zarr.create_array(session.store, name="a", data=np.arange(1, 513), chunks=(64,), shards=(128,), compressors=None, fill_value=0)
    session.commit("shards")
    session = source.writable_session("main")
    size = 1024 + 36  # chunks and index of a shard
    grid = {"name": "regular", "configuration": {"chunk_shape": [size]}}
    set_document(session, "a", codecs=[{"name": "bytes"}], shape=[4 * size], data_type="uint8", chunk_grid=grid)
    session.commit("bytes")
    repo = Repository.import_icechunk(source, tmp_path / "run.ice", copy=copy)
    check_same(repo, source)


@needs_2
@pytest.mark.parametrize("copy", [False, True])
def test_damaged_index_of_a_shard_is_told(tmp_path: Path, copy: bool) -> None:
    source = new_icechunk(tmp_path / "theirs")
    session = source.writable_session("main")
    codec = zarr.codecs.ShardingCodec(chunk_shape=(64,), codecs=[zarr.codecs.BytesCodec()], index_codecs=[zarr.codecs.BytesCodec()])
    array = zarr.create(store=session.store, path="a", shape=(128,), chunks=(128,), dtype="i8", zarr_format=3, codecs=[codec])
    array[...] = np.arange(128)
    shard = bytearray(np.arange(128).tobytes() + np.array([0, 512, 512, 512], dtype="<u8").tobytes())
    shard[-8:] = (5000).to_bytes(8, "little")
    write_key(session, "a/c/0", bytes(shard))
    session.commit("damaged")
    with pytest.raises(Corruption):
        Repository.import_icechunk(source, tmp_path / "run.ice", copy=copy)
    assert not Repository.exists(tmp_path / "run.ice")


@needs_2
def test_export_that_icechunk_has_expired_is_imported(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "run.ice")
    for number in range(4):
        with repo.transaction(message=str(number)) as store:
            zarr.create_array(store, name=f"a{number}", data=DATA, chunks=(16, 16))
    done = repo.export_icechunk(tmp_path / "out")
    storage = icechunk.local_filesystem_storage(str(tmp_path / "out"))
    target = icechunk.Repository.open(storage, authorize_virtual_chunk_access=done.authorize_virtual_chunk_access)
    target.expire_snapshots(datetime.now(UTC) + timedelta(days=1))
    target.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    again = Repository.import_icechunk(target, tmp_path / "again", source_url=str(tmp_path / "out"), virtual_prefixes=prefixes_of(done))
    tip = repo.lookup_branch("main")
    assert again.lookup_branch("main") == tip
    assert contents(again.readonly_session()) == contents(repo.readonly_session())


def prefixes_of(done: Any) -> list[str]:
    return list(done.authorize_virtual_chunk_access)


@needs_2
def test_times_ascend_though_commits_are_of_one_millisecond() -> None:
    new = NewHistory(Repository.create(MemoryStorage("times-that-are-equal"))._store)
    run(new.session(None))
    run(_with_root(new))
    made = [run(new.add("A", 5, "", None))]
    for name in "BC":
        run(new.session(made[-1].id))
        made.append(run(new.add(name, 5, "", None)))
    assert [one.timestamp_ms for one in made] == [5, 6, 7]


async def _with_root(new: NewHistory) -> None:
    assert new._session is not None
    new._session.make_group("")


@needs_2
def test_nothing_is_removed_once_the_store_may_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryStorage(str(tmp_path))
    made = Repository.create(storage)
    new = NewHistory(made._store)
    first = run(new.first())
    assert SyncStorage(storage).get(f"s/{first.structure}") is not None
    with monkeypatch.context() as lost:
        lost.setattr(made._store, "create", AsyncMock(side_effect=WriteOutcomeUnknown("the answer was lost")))
        with pytest.raises(WriteOutcomeUnknown):
            run(new.publish({"main": Ref(first.id, "branch")}))
    run(new.give_up())
    assert SyncStorage(storage).get(f"s/{first.structure}") is not None
    with pytest.raises(InvalidInput, match="already"):  # of another store, which cannot refer to these files
        run(new.publish({"main": Ref(first.id, "branch")}))
    run(new.give_up())
    assert SyncStorage(storage).get(f"s/{first.structure}") is None
    begun = NewHistory(made._store)
    other = run(begun.first())
    run(begun.give_up())
    assert SyncStorage(storage).get(f"s/{other.structure}") is None


@needs_2
def test_source_with_options_of_its_own_and_a_target_elsewhere(s3_url: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    """The options that open the source are those of its chunks too, and a trial asks for no others."""
    url, options = s3_url
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    place: dict[str, Any] = {"endpoint_url": options["endpoint_url"], "allow_http": True, "force_path_style": True, "region": "us-east-1"}
    storage = icechunk.s3_storage(bucket=bucket, prefix=f"{prefix}/theirs", access_key_id="test", secret_access_key="test", **place)
    session = icechunk.Repository.create(storage).writable_session("main")
    zarr.create_array(session.store, name="b", data=DATA, chunks=(16, 16), compressors=None)
    zarr.create_array(session.store, name="c", data=DATA, chunks=(16, 16), shards=(32, 32), compressors=None)
    session.commit("native")
    ways: list[dict[str, Any]] = [{"source_options": options}, {"source_options": options, "virtual_options": {"http": {}}}]
    for number, given in enumerate(ways):
        repo = Repository.import_icechunk(f"{url}/theirs", tmp_path / f"{number}.ice", **given)
        for path in "bc":
            np.testing.assert_array_equal(zarr.open_array(repo.readonly_session().store, path=path, mode="r")[...], DATA)
    words = json.dumps(options)
    for more in ([], ["--copy"]):
        said = succeed(
            "snapshots", "import", f"{url}/theirs", str(tmp_path / "c.ice"), "--storage-options", words, "--dry-run", "--json", *more
        )
        assert said.json["snapshots"] == 2
        assert bool(said.json["virtual_prefixes"]) is not bool(more)
    assert not (tmp_path / "c.ice").exists()


@needs_2
def test_shards_in_shards_are_told_with_their_snapshot(tmp_path: Path) -> None:
    source = new_icechunk(tmp_path / "theirs")
    session = source.writable_session("main")
    inner = zarr.codecs.ShardingCodec(chunk_shape=(2,), codecs=[zarr.codecs.BytesCodec()])
    outer = zarr.codecs.ShardingCodec(chunk_shape=(4,), codecs=[inner])
    zarr.create(store=session.store, path="n", shape=(16,), chunks=(8,), dtype="f8", zarr_format=3, codecs=[outer])
    snapshot = session.commit("nested")
    session = source.writable_session("main")
    zarr.create_array(session.store, name="n", data=np.arange(16), chunks=(4,), overwrite=True)
    session.commit("anew")
    with pytest.raises(InvalidInput, match=rf"snapshot {snapshot} of .* cannot be imported: .*shards inside of shards.*expire_snapshots"):
        Repository.import_icechunk(source, tmp_path / "run.ice")
    source.expire_snapshots(datetime.now(UTC) + timedelta(days=1))
    Repository.import_icechunk(source, tmp_path / "run.ice")


@pytest.mark.parametrize(
    "given", [{"source_options": 3}, {"source_url": 5}, {"virtual_prefixes": None}, {"virtual_prefixes": "file:///x/"}]
)
def test_arguments_of_wrong_types_are_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    new_icechunk(tmp_path / "theirs")
    with pytest.raises((InvalidInput, Unsupported)):
        Repository.import_icechunk(str(tmp_path / "theirs"), tmp_path / "run.ice", **given)
