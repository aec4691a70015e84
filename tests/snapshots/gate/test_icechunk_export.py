"""A history as one of Icechunk: the same values at every snapshot, and no chunk copied."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import icechunk
import numpy as np
import pytest
import xarray
import zarr

from shardstore.adapters.versioned import icechunk_export
from shardstore.adapters.versioned.opened import OpenedStore, RepositoryOptions
from shardstore.errors import InvalidInput
from shardstore.format.json_text import dumps
from shardstore.opening.open import open_storage
from shardstore.snapshots import IcechunkExport, Repository
from tests.harness.scale import EXAMPLES
from tests.snapshots.icechunk_histories import IS_2, change, contents, read_key, set_document, write_key
from tests.snapshots.repositories import run

pytestmark = [pytest.mark.filterwarnings("ignore")]

REFUSALS = (icechunk.IcechunkError, ValueError)
DATA = np.arange(1, 4097, dtype="i4").reshape(64, 64)


def opened(place: Path, done: IcechunkExport) -> Any:
    """The repository of icechunk, as somebody opens it who has the report of the export."""
    storage = icechunk.local_filesystem_storage(str(place))
    return icechunk.Repository.open(storage, authorize_virtual_chunk_access=done.authorize_virtual_chunk_access)


def check_all(repo: Repository, done: IcechunkExport, place: Path) -> None:
    """Compare every snapshot, and all branches and tags."""
    target = opened(place, done)
    assert list(done.snapshots) == [one.id for one in repo._now().state.snapshots.values()]
    for ours, theirs in done.snapshots.items():
        wanted = contents(repo.readonly_session(snapshot_id=ours))
        assert contents(target.readonly_session(snapshot_id=theirs)) == wanted, repo.lookup_snapshot(ours)
        line = [one.metadata.get("shardstore.snapshot") for one in target.ancestry(snapshot_id=theirs)]
        assert line == [*(one.id for one in repo.ancestry(snapshot_id=ours)), None]
    assert (target.list_branches(), target.list_tags()) == (repo.list_branches(), repo.list_tags())
    for name in repo.list_branches():
        assert target.lookup_branch(name) == done.snapshots[repo.lookup_branch(name)]
    for name in repo.list_tags():
        assert target.lookup_tag(name) == done.snapshots[repo.lookup_tag(name)]


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
    said: list[tuple[str, int, int | None]] = []
    done = repo.export_icechunk(tmp_path / "out", progress=lambda *one: said.append(one))
    assert [one[1:] for one in said if one[0] == "exporting snapshots"] == [(number, 9) for number in range(10)]
    target = opened(tmp_path / "out", done)
    assert len(done.snapshots) == len(set(done.snapshots.values())) == 9
    for ours, theirs in done.snapshots.items():
        wanted = contents(repo.readonly_session(snapshot_id=ours))
        assert contents(target.readonly_session(snapshot_id=theirs)) == wanted, repo.lookup_snapshot(ours).message
    assert target.list_branches() == {"main", "side"}
    assert target.list_tags() == {"v1"}
    assert target.lookup_branch("main") == done.snapshots[repo.lookup_branch("main")]
    assert target.lookup_branch("side") == done.snapshots[repo.lookup_branch("side")]
    assert target.lookup_tag("v1") == done.snapshots[repo.lookup_tag("v1")]
    for branch in ("main", "side"):
        line = list(target.ancestry(branch=branch))
        originals = list(repo.ancestry(branch=branch))
        assert [one.message for one in line[:-1]] == [one.message for one in originals]
        for one, mine in zip(line[:-1], originals, strict=True):
            assert one.metadata["shardstore.snapshot"] == mine.id
            assert one.metadata["shardstore.parent"] == mine.parent_id
            assert one.metadata["shardstore.written_at"] == mine.written_at.isoformat()
            assert {name: value for name, value in one.metadata.items() if not name.startswith("shardstore.")} == mine.metadata
    assert (done.branches, done.tags, done.without_bytes) == (2, 1, 0)
    copied = sum(path.stat().st_size for path in (tmp_path / "out/chunks").rglob("*")) if (tmp_path / "out/chunks").exists() else 0
    assert copied < 4096 < sum(path.stat().st_size for path in (tmp_path / "run.ice/c").iterdir())


@pytest.mark.filterwarnings("ignore")  # of xarray, about what it will do in future
def test_xarray_reads_every_snapshot(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "run.ice", pack=(2, 2))
    for number in range(3):
        with repo.transaction(message=f"{number}") as store:
            data = xarray.Dataset({"t": (("y", "x"), DATA + number)}, coords={"x": np.arange(DATA.shape[1])}, attrs={"number": number})
            data.to_zarr(store, mode="w", consolidated=False, encoding={"t": {"chunks": (16, 16)}})
    done = repo.export_icechunk(tmp_path / "out")
    target = opened(tmp_path / "out", done)
    for ours, theirs in list(done.snapshots.items())[1:]:
        with (
            xarray.open_zarr(repo.readonly_session(snapshot_id=ours).store, consolidated=False) as wanted,
            xarray.open_zarr(target.readonly_session(snapshot_id=theirs).store, consolidated=False) as found,
        ):
            xarray.testing.assert_identical(found.load(), wanted.load())
            assert found.attrs["number"] == int(repo.lookup_snapshot(ours).message)


@pytest.mark.parametrize("seed", range(EXAMPLES // 5))
def test_random_histories(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    repo = Repository.create(tmp_path / "run.ice", pack=rng.choice([None, "auto", (2, 2)]))
    for number in range(25):
        branch = rng.choice(sorted(repo.list_branches()))
        session = repo.writable_session(branch)
        for _ in range(rng.randint(0, 3)):
            change(session, rng)
        moved = [path for path in contents(session) if path]
        if moved and rng.random() < 0.25:
            with suppress(InvalidInput):  # there is something, or it is inside of itself
                session.move(rng.choice(moved), rng.choice(["k", "m", "g/m", "m/n"]))
        session.commit(f"{number}", {"seed": seed}, allow_empty=True)
        if rng.random() < 0.15:
            repo.create_branch(f"b{number}", rng.choice(list(repo.ancestry(branch=branch))).id)
        if rng.random() < 0.15:
            repo.create_tag(f"t{number}", repo.lookup_branch(branch))
        if rng.random() < 0.05:
            repo.reset_branch(branch, rng.choice(list(repo.ancestry(branch=branch))).id)
    if seed % 3 == 0:
        line = list(repo.ancestry())
        repo.expire_snapshots(line[len(line) // 2].written_at)
    done = repo.export_icechunk(tmp_path / "out")
    check_all(repo, done, tmp_path / "out")


# -- what cannot be exported, and what goes wrong -------------------------------------------------------------------------


class Failing:
    """A repository of icechunk of which a change fails, after ``left`` others."""

    CHANGES = frozenset({"create_branch", "delete_branch", "reset_branch", "create_tag", "writable_session"})

    def __init__(self, inner: Any, left: int) -> None:
        self._inner, self._left = inner, left

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in self.CHANGES:
            self._left -= 1
            if self._left < 0:
                raise RuntimeError("planned to fail")
        return found


def test_export_that_fails_anywhere_does_not_look_whole(repo: Repository, tmp_path: Path) -> None:
    opened_store = repo._opened
    moment = repo._now()
    for left in itertools.count():
        config = icechunk.RepositoryConfig.default()
        config.set_virtual_chunk_container(
            icechunk.VirtualChunkContainer(f"file://{tmp_path}/run.ice/c/", icechunk.local_filesystem_store(f"{tmp_path}/run.ice/c/"))
        )
        target = icechunk.Repository.create(icechunk.in_memory_storage(), config)
        try:
            icechunk_export._Export(opened_store, moment, Failing(target, left)).write(lambda *_: None)
        except RuntimeError:
            assert [one.message for one in target.ancestry(branch="main")] == ["Repository initialized"], left
            assert contents(target.readonly_session("main")) == {}
            continue
        break
    assert left > 12  # 9 snapshots, and what is done for branches and tags
    assert target.list_branches() == {"main", "side"}
    assert len(list(target.ancestry(branch="main"))) == 9


def test_export_that_was_killed_is_refused_as_a_target(repo: Repository, tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from shardstore.snapshots import Repository\n"
        "def say(what, done, total):\n"
        "    if (what, done) == ('exporting snapshots', 5): os.kill(os.getpid(), signal.SIGKILL)\n"
        "Repository.open(sys.argv[1]).export_icechunk(sys.argv[2], progress=say)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, repo.url, str(tmp_path / "out")], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "out")))
    assert len(list(left.ancestry(branch="main"))) == 1
    assert left.list_branches() == {"main", "shardstore-export"}
    assert not left.list_tags()
    with pytest.raises(InvalidInput, match=r"there is something at .*out already.*interrupted leaves a part"):
        repo.export_icechunk(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    check_all(repo, repo.export_icechunk(tmp_path / "out"), tmp_path / "out")


def test_targets_that_hold_something_are_refused_and_left_alone(repo: Repository, tmp_path: Path) -> None:
    repo.export_icechunk(tmp_path / "out")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/mine.txt").write_text("mine")
    used = icechunk.in_memory_storage()
    icechunk.Repository.create(used)
    for target in (tmp_path / "out", str(tmp_path / "data"), f"file://{tmp_path}/data", used):
        with pytest.raises(InvalidInput, match="there is something at"):
            repo.export_icechunk(target)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["mine.txt"]


def test_targets_that_are_none_are_refused(repo: Repository, tmp_path: Path) -> None:
    for target, said in (
        (icechunk.Repository.create(icechunk.in_memory_storage()), "not of type Repository"),
        (7, "not of type int"),
        ("ftp://host/x", "file, s3 and gs are"),
    ):
        with pytest.raises(InvalidInput, match=said):
            repo.export_icechunk(target)
    with pytest.raises(InvalidInput, match=r"an icechunk\.Storage has its own"):
        repo.export_icechunk(icechunk.in_memory_storage(), target_options={"anon": True})
    with pytest.raises(InvalidInput, match="no such option for s3://bucket/x: 'profile'"):
        repo.export_icechunk("s3://bucket/x", target_options={"profile": "me"})
    memory = Repository.create(f"memory://{tmp_path}")
    with memory.transaction(message="array") as store:
        zarr.create_array(store, name="a", data=DATA, chunks=(16, 16))
    with pytest.raises(InvalidInput, match=r"no URL of their own|icechunk does not read"):
        memory.export_icechunk(tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.skipif(IS_2, reason="icechunk 2 takes every name")
@pytest.mark.parametrize("name", ["a/b", "é"])
@pytest.mark.parametrize("kind", ["branch", "tag"])
def test_names_that_icechunk_does_not_take_are_refused_before_anything_is_written(
    repo: Repository, tmp_path: Path, name: str, kind: str
) -> None:
    getattr(repo, f"create_{kind}")(name, repo.lookup_branch("side"))
    with pytest.raises(InvalidInput, match=f"takes no {kind} of the name '{name}'"):
        repo.export_icechunk(tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -- other histories -----------------------------------------------------------------------------------------------------


def test_export_into_storage_with_own_config(repo: Repository, tmp_path: Path) -> None:
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 7
    folder = icechunk.VirtualChunkContainer(f"file://{tmp_path}/run.ice/", icechunk.local_filesystem_store(f"{tmp_path}/run.ice"))
    config.set_virtual_chunk_container(folder)
    storage = icechunk.in_memory_storage()
    done = repo.export_icechunk(storage, config)
    assert list(done.authorize_virtual_chunk_access) == [f"file://{tmp_path}/run.ice/"]
    found = icechunk.Repository.open(storage, authorize_virtual_chunk_access=done.authorize_virtual_chunk_access)
    assert found.config.inline_chunk_threshold_bytes == 7
    assert contents(found.readonly_session("main")) == contents(repo.readonly_session("main"))


def test_names_that_urls_encode(tmp_path: Path) -> None:
    place = tmp_path / "run 100%25 #1? ä.ice"
    repo = Repository.create(place, pack=(2, 2))
    with repo.transaction(message="array") as store:
        zarr.create_array(store, name="a", data=DATA, chunks=(16, 16), compressors=None)
    done = repo.export_icechunk(tmp_path / "out")
    check_all(repo, done, tmp_path / "out")


def test_store_of_one_array_and_of_groups_that_come_and_go(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "run.ice", pack=(2, 2))
    values: list[Any] = []
    for number in range(3):
        with repo.transaction(message=f"root {number}") as store:
            if number == 1:
                zarr.create_group(store, overwrite=True)
                zarr.create_array(store, name="a", data=DATA, chunks=(16, 16))
                values.append(None)
            else:
                zarr.create_array(store, name="", data=DATA + number, chunks=(16, 16), overwrite=True)
                values.append(DATA + number)
    done = repo.export_icechunk(tmp_path / "out")
    target = opened(tmp_path / "out", done)
    for value, info in zip(values, list(repo.ancestry())[-2::-1], strict=True):
        store = target.readonly_session(snapshot_id=done.snapshots[info.id]).store
        if value is None:
            np.testing.assert_array_equal(zarr.open_group(store, mode="r")["a"][...], DATA)  # type: ignore[index]  # an array
        else:
            np.testing.assert_array_equal(zarr.open_array(store, mode="r")[...], value)


def test_virtual_chunks_go_on_as_such_with_their_checksums(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "old.zarr", data=DATA, chunks=(16, 16), compressors=None)
    for file in (tmp_path / "old.zarr/c").rglob("*"):
        os.utime(file, (1_700_000_000.5, 1_700_000_000.5))
    repo = Repository.adopt(tmp_path / "old.zarr", tmp_path / "run.ice", message="old")
    with repo.transaction(message="new") as store:
        zarr.open_array(store, mode="r+")[:16, :16] = 3
    done = repo.export_icechunk(tmp_path / "out")
    target = opened(tmp_path / "out", done)
    for name, info in (("new", repo.lookup_branch("main")), ("old", next(one.id for one in repo.ancestry() if one.message == "old"))):
        found = zarr.open_array(target.readonly_session(snapshot_id=done.snapshots[info]).store, mode="r")
        wanted = DATA.copy()
        wanted[:16, :16] = 3 if name == "new" else DATA[:16, :16]
        np.testing.assert_array_equal(found[...], wanted)
    (tmp_path / "old.zarr/c/1/1").write_bytes(b"x" * 1024)
    np.testing.assert_array_equal(found[:16, 16:], DATA[:16, 16:])
    with pytest.raises(REFUSALS):
        found[16:32, 16:32]


def test_each_chunk_keeps_the_version_of_its_file(tmp_path: Path) -> None:
    """Two chunks in one file, in a version that was replaced, and in the one that is there; then both in that."""
    (tmp_path / "data").mkdir()
    tokens = []
    for number, values in enumerate((DATA[:16], DATA[16:32])):
        file = tmp_path / "other"
        file.write_bytes(values.tobytes())
        os.utime(file, (1_700_000_000.5 + 100 * number,) * 2)
        os.replace(file, tmp_path / "data/blob")
        info = run(open_storage(f"file://{tmp_path}/data").stat("blob"))
        assert info is not None
        assert info.generation is not None
        tokens.append(info.generation.token)
    repo = Repository.create(tmp_path / "run.ice", virtual_prefixes=[f"file://{tmp_path}/data/"])
    nbytes = 8 * DATA[0].nbytes
    ids: list[str] = []
    for etags in (tokens, [tokens[1]] * 2):
        session = repo.writable_session()
        if not ids:
            zarr.create_array(session.store, name="a", shape=(16, 64), chunks=(8, 64), dtype="i4", compressors=None)
        session.set_virtual_refs("a", [[0, 0], [1, 0]], f"file://{tmp_path}/data/blob", [0, nbytes], nbytes, etags=etags)
        ids.append(session.commit("refer"))
    done = repo.export_icechunk(tmp_path / "out")
    target = opened(tmp_path / "out", done)
    first, second = (zarr.open_array(target.readonly_session(snapshot_id=done.snapshots[one]).store, path="a", mode="r") for one in ids)
    np.testing.assert_array_equal(second[...], DATA[16:32])
    np.testing.assert_array_equal(first[8:], DATA[24:32])
    with pytest.raises(REFUSALS):
        first[:8]


def test_virtual_chunks_outside_of_what_is_authorised_are_refused(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "old.zarr", data=DATA, chunks=(16, 16), compressors=None)
    Repository.adopt(tmp_path / "old.zarr", tmp_path / "run.ice")
    for dry_run in (True, False):
        with pytest.raises(InvalidInput, match=r"no virtual chunk container: give virtual_prefixes=\['file://.*/old.zarr/c/0/'\]"):
            Repository.open(tmp_path / "run.ice").export_icechunk(tmp_path / "out", dry_run=dry_run)
        assert not (tmp_path / "out").exists()
    prefix = f"file://{tmp_path}/old.zarr/"
    Repository.open(tmp_path / "run.ice", virtual_prefixes=[prefix]).export_icechunk(tmp_path / "out")


@pytest.mark.parametrize("value", [math.nan, [1, math.inf], {"deep": {"er": -math.inf}}], ids=repr)
def test_attributes_that_icechunk_cannot_keep_become_texts(tmp_path: Path, value: Any) -> None:
    repo = Repository.create(tmp_path / "run.ice")
    with repo.transaction(message="array") as store:
        group = zarr.open_group(store, mode="a")
        group.attrs.update({"v": value, "n": 1.5})
        group.create_array("a", shape=(4,), chunks=(2,), dtype="f8", fill_value=math.nan, attributes={"v": value})[:2] = 3
        group.create_array("b", shape=(4,), chunks=(2,), dtype="f8", attributes={"n": 1.5})
    done = repo.export_icechunk(tmp_path / "out")
    assert done.texts == 2
    found = zarr.open_group(opened(tmp_path / "out", done).readonly_session("main").store, mode="r")
    texts = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
    wanted = json.loads(json.dumps(value), parse_constant=lambda text: texts.get(text, text))
    assert found.attrs.asdict() == {"v": wanted, "n": 1.5}
    array = found["a"]
    assert isinstance(array, zarr.Array)
    assert array.attrs.asdict() == {"v": wanted}
    np.testing.assert_array_equal(array[...], [3, 3, math.nan, math.nan])


def test_trial_writes_nothing_and_refuses_what_the_export_refuses(repo: Repository, tmp_path: Path) -> None:
    tried = repo.export_icechunk(tmp_path / "out", dry_run=True)
    assert not (tmp_path / "out").exists()
    done = repo.export_icechunk(tmp_path / "out")
    assert (len(tried.snapshots), tried.branches, tried.tags) == (len(done.snapshots), done.branches, done.tags)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_bytes(b"mine")
    (tmp_path / "file").write_bytes(b"mine")
    for target in (tmp_path / "out", tmp_path / "full", "memory://x", tmp_path / "file", tmp_path / "file/below", "", "s3://"):
        for dry_run in (True, False):
            with pytest.raises(InvalidInput):
                repo.export_icechunk(target, dry_run=dry_run)
    assert (tmp_path / "full/mine").read_bytes() == (tmp_path / "file").read_bytes() == b"mine"


def test_home_is_expanded_as_everywhere(repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for number, target in enumerate(("~/0", "file://~/1")):
        assert repo.export_icechunk(target).location == f"file://{tmp_path}/home/{number}"
        assert (tmp_path / "home" / str(number)).is_dir()
    assert not (tmp_path / "~").exists()


def test_config_of_the_caller_stays_as_it_is(repo: Repository, tmp_path: Path) -> None:
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 77
    done = repo.export_icechunk(tmp_path / "out", config)
    assert not config.virtual_chunk_containers
    assert opened(tmp_path / "out", done).config.inline_chunk_threshold_bytes == 77


@pytest.mark.parametrize(
    "given", [{"config": {}}, {"target_options": 5}, {"target_options": {"nonsense": 1}}, {"dry_run": 1}], ids=lambda given: str(given)
)
def test_arguments_of_wrong_types_are_refused(repo: Repository, tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        repo.export_icechunk(tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_options_of_the_repository_are_not_those_of_a_neighbour() -> None:
    own, other = {"key": "own", "secret": "s"}, {"key": "other", "secret": "s"}
    place = OpenedStore(RepositoryOptions("s3://b/run", storage_options=own, virtual_options={"s3": other}))
    options_of = partial(icechunk_export._options_of, place)
    assert [options_of(url) for url in ("s3://b/run/c/", "s3://b/run", "s3://b/run-data/")] == [own, own, other]


def test_metadata_that_icechunk_cannot_keep_become_texts(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "run.ice")
    session = repo.writable_session()
    zarr.create_group(session.store, path="g")
    metadata = {"nan": float("nan"), "large": 2**70, "deep": [{"x": -(2**65)}, 1.5, None, True], "shardstore.snapshot": "mine"}
    session.commit("odd", metadata)
    done = repo.export_icechunk(tmp_path / "out")
    found = dict(next(iter(opened(tmp_path / "out", done).ancestry(branch="main"))).metadata)
    assert found.pop("shardstore.snapshot") == repo.lookup_branch("main")
    assert {name: value for name, value in found.items() if not name.startswith("shardstore.")} == {
        "nan": "nan",
        "large": str(2**70),
        "deep": [{"x": str(-(2**65))}, 1.5, None, True],
    }


@pytest.mark.night
def test_export_on_s3(s3_url: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    url, options = s3_url
    repo = Repository.create(f"{url}/run.ice", storage_options=options, pack=(2, 2))
    with repo.transaction(message="array") as store:
        zarr.create_array(store, name="a", data=DATA, chunks=(16, 16), compressors=None)
    done = repo.export_icechunk(f"{url}/out", target_options=options)
    assert (done.location, done.references) == (f"{url}/out", 16)
    assert "test" not in repr(done)
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    storage = icechunk.s3_storage(
        bucket=bucket,
        prefix=f"{prefix}/out",
        region="us-east-1",
        endpoint_url=options["endpoint_url"],
        allow_http=True,
        access_key_id="test",
        secret_access_key="test",
        force_path_style=True,
    )
    target = icechunk.Repository.open(storage, authorize_virtual_chunk_access=done.authorize_virtual_chunk_access)
    np.testing.assert_array_equal(zarr.open_array(target.readonly_session("main").store, path="a", mode="r")[...], DATA)
    with pytest.raises(InvalidInput, match="there is something at s3://"):
        repo.export_icechunk(f"{url}/out", target_options=options)


def test_node_that_stays_where_its_group_was_moved_away(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "run.ice", pack=(2, 2))
    with repo.transaction(message="arrays") as store:
        zarr.create_array(store, name="g/a", data=DATA, chunks=(16, 16), compressors=None)
        zarr.create_array(store, name="g/b", data=DATA, chunks=(16, 16), compressors=None)
        zarr.create_group(store, path="g/h", attributes={"h": 1})
    session = repo.writable_session()
    session.move("g", "m")
    session.move("m/a", "g/a")
    session.move("m/h", "g/h")
    session.commit("all but a and h have moved")
    assert repo.diff(repo._now().state.snapshots[repo.lookup_branch("main")].parent or "").moved_nodes == (("g", "m"), ("g/b", "m/b"))
    check_all(repo, repo.export_icechunk(tmp_path / "out"), tmp_path / "out")


def test_chunks_that_change_while_they_are_outside_of_the_shape(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "run.ice", pack=None)
    with repo.transaction(message="array") as store:
        zarr.create_array(store, name="a", data=np.arange(1, 33, dtype="i2"), chunks=(4,), compressors=None, fill_value=0)
    for message, shape, changes in (
        ("smaller", 8, {}),
        ("changed outside", 8, {"a/c/3": None, "a/c/4": bytes([9] * 8), "a/c/1": bytes([8] * 8)}),
        ("larger", 20, {"a/c/0": None}),
        ("smaller again", 12, {"a/c/4": None, "a/c/7": None, "a/c/5": bytes([7] * 8)}),
        ("largest", 40, {}),
    ):
        session = repo.writable_session()
        set_document(session, "a", shape=[shape])
        for key, data in changes.items():
            write_key(session, key, data)
        session.commit(message, allow_empty=True)
    shown = zarr.open_array(repo.readonly_session().store, path="a", mode="r")[...]
    assert np.asarray(shown)[::4].tolist() == [0, 0x0808, 9, 0, 0, 0x0707, 25, 0, 0, 0]
    check_all(repo, repo.export_icechunk(tmp_path / "out"), tmp_path / "out")


def test_chunks_of_no_bytes_do_not_leave_older_ones(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "run.ice", pack=None)
    with repo.transaction(message="array") as store:
        zarr.create_array(store, name="a", data=np.arange(8), chunks=(4,), compressors=None)
    session = repo.writable_session()
    write_key(session, "a/c/1", b"")
    session.commit("no bytes")
    done = repo.export_icechunk(tmp_path / "out")
    assert done.without_bytes == (1 if IS_2 else 0)
    target = opened(tmp_path / "out", done).readonly_session("main")
    assert read_key(target, "a/c/1") == (None if IS_2 else b"")
    assert read_key(target, "a/c/0") == np.arange(4).tobytes()


def test_array_that_gets_chunks_of_another_shape_in_place(tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "run.ice", pack=None)
    with repo.transaction(message="array") as store:
        zarr.create_array(store, name="a", data=np.arange(1, 65, dtype="i2").reshape(8, 8), chunks=(4, 2), compressors=None)
    for other in ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 4]}}}, {"shape": [8, 16]}):
        session = repo.writable_session()
        document = session._core.nodes["a"].document | other
        run(session._core.set_document("a", dumps(document)))  # the store would refuse it
        session.commit(str(other))
    check_all(repo, repo.export_icechunk(tmp_path / "out"), tmp_path / "out")


def test_times_of_virtual_files_go_on(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(np.arange(4, dtype="i4").tobytes())
    os.utime(tmp_path / "data", (1_700_000_000.5, 1_700_000_000.5))
    repo = Repository.create(tmp_path / "run.ice", virtual_prefixes=[f"file://{tmp_path}/"])
    session = repo.writable_session()
    zarr.create_array(session.store, name="a", shape=(4,), chunks=(4,), dtype="i4", compressors=None)
    when = datetime.fromtimestamp(1_700_000_000.5, UTC)
    session.set_virtual_refs("a", [[0]], f"file://{tmp_path}/data", 0, 16, last_modified=when)
    session.commit("virtual")
    done = repo.export_icechunk(tmp_path / "out")
    found = zarr.open_array(opened(tmp_path / "out", done).readonly_session("main").store, path="a", mode="r")
    np.testing.assert_array_equal(found[...], np.arange(4))
    os.utime(tmp_path / "data", (1_700_000_002, 1_700_000_002))
    with pytest.raises(REFUSALS):
        found[...]
