"""``URL@ref`` on the command line, and ``shardstore snapshots``: what its commands take, print and end with."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.apps.cli.output import ExitCode
from shardstore.snapshots import Repository
from tests.apps.cli.running import options_of, run, succeed

DATA = np.arange(1, 65, dtype="u2").reshape(8, 8)


class Store:
    """A versioned store with an array ``scans/ct``, which a tag and a branch show as it was."""

    def __init__(self, url: str, options: dict[str, object] | None = None) -> None:
        self.url = url
        self.options = options_of(options) if options else []
        self.repo = Repository.create(url, storage_options=options)
        with self.repo.transaction(message="first") as store:
            zarr.create_array(store, name="scans/ct", data=DATA, chunks=(4, 4), compressors=None)
        self.first = self.repo.lookup_branch("main")
        self.repo.create_tag("v1", self.first)
        self.repo.create_branch("try/more", self.first)
        with self.repo.transaction(message="second") as store:
            zarr.open_array(store, path="scans/ct")[:4, :4] = 0
        self.second = self.repo.lookup_branch("main")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "run.ice"))


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.gate)])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "s3":
            url, options = request.getfixturevalue("s3_url")
            return Store(f"{url}/run.ice", options)
        case "memory":
            return Store(f"memory://{tmp_path.name}-run.ice")
        case _:
            return Store(str(tmp_path / "run.ice"))


# -- URL@ref -----------------------------------------------------------------------------------------------------------


def test_ls_and_cat_show_a_snapshot(anywhere: Store) -> None:
    url = f"{anywhere.url}@v1"
    assert succeed("ls", url, *anywhere.options).lines == ["scans/", "zarr.json"]
    assert succeed("ls", f"{url}/scans", "ct/c", *anywhere.options).lines == ["ct/c/0/", "ct/c/1/"]
    assert succeed("ls", "-r", f"{anywhere.url}@try/more/scans/ct/c", *anywhere.options).lines == ["0/0", "0/1", "1/0", "1/1"]
    assert succeed("cat", f"{url}/scans/ct/c/0/0", *anywhere.options).raw == DATA[:4, :4].tobytes()
    assert succeed("cat", f"{anywhere.url}@main", "scans/ct/c/1/1", *anywhere.options).raw == DATA[4:, 4:].tobytes()
    assert run("cat", f"{anywhere.url}@main", "scans/ct/c/0/0", *anywhere.options).code == ExitCode.NOT_FOUND  # it is all fill values


def test_info_shows_which_snapshot(anywhere: Store) -> None:
    done = succeed("info", f"{anywhere.url}@v1", *anywhere.options)
    assert done.lines[0].startswith(f"{anywhere.url}@v1: no damage was found")
    assert f"snapshot {anywhere.first} of " in done.out
    assert "UTC: first" in done.out
    assert "writers" not in done.out
    document = succeed("info", "--json", f"{anywhere.url}@try/more/scans", *anywhere.options).json
    assert document["snapshot"] == {"ref": "try/more", "id": anywhere.first}
    assert [array["path"] for array in document["arrays"]] == ["scans/ct"]


def test_info_of_the_store_itself_says_how_to_name_a_snapshot(anywhere: Store) -> None:
    assert f"{anywhere.url}@main" in " ".join(succeed("info", anywhere.url, *anywhere.options).out.split())


def test_nodes_are_copied_out_of_a_snapshot(anywhere: Store, tmp_path: Path) -> None:
    succeed("cp", f"{anywhere.url}@v1/scans", str(tmp_path / "scans.zarr"), *anywhere.options)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "scans.zarr", path="ct", mode="r")[...], DATA)
    succeed("cp", f"{anywhere.url}@main", str(tmp_path / "all.zarr"), *anywhere.options)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "all.zarr", path="scans/ct", mode="r")[4:], DATA[4:])


def test_snapshots_are_packed_verified_and_counted(anywhere: Store, tmp_path: Path) -> None:
    packed = str(tmp_path / "packed.zarr")
    succeed("pack", "-s", "2,2", f"{anywhere.url}@v1", packed, *anywhere.options)
    np.testing.assert_array_equal(zarr.open_array(shardstore.open(packed), path="scans/ct", mode="r")[...], DATA)
    assert succeed("verify", f"{anywhere.url}@v1/scans/ct", "--json", *anywhere.options).json["objects"] == 5
    against = ["--against", f"{anywhere.url}@v1", "--target-options", anywhere.options[1]] if anywhere.options else []
    succeed("verify", packed, *(against or ["--against", f"{anywhere.url}@v1"]))
    (array,) = succeed("census", "--json", f"{anywhere.url}@main/scans", *anywhere.options).json["arrays"]
    assert (array["path"], array["chunks"]) == ("scans/ct", 3)


def test_shapes_of_shards_are_compared_for_an_array_in_a_snapshot(store: Store) -> None:
    assert "recommended" in succeed("advise", f"{store.url}@main/scans/ct", "-a", "1,:").out


@pytest.mark.parametrize(
    "command",
    [
        ["cp", "plain.zarr", "run.ice@main/new"],
        ["cp", "--overwrite", "plain.zarr", "run.ice@main/scans"],
        ["mv", "plain.zarr", "run.ice@main/new"],
        ["mv", "run.ice@main/scans", "moved.zarr"],
        ["rm", "-r", "run.ice@main/scans"],
        ["rm", "run.ice@main/scans/ct/c/0/1"],
        ["reshard", "plain.zarr", "run.ice@main"],
        ["unpack", "plain.zarr", "run.ice@main/new"],
        ["compact", "run.ice@main"],
        ["repair", "run.ice@main", "--yes"],
    ],
    ids=lambda command: " ".join(command),
)
def test_what_would_change_a_snapshot_is_refused(command: list[str], store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    zarr.create_array("plain.zarr", shape=(4,), chunks=(2,), dtype="u1")
    before = sorted(tmp_path.rglob("*"))
    done = run(*command)
    assert done.code == ExitCode.INVALID
    assert "a snapshot, which never changes. Write to what Repository.transaction" in done.error
    assert sorted(tmp_path.rglob("*")) == before


def test_a_name_that_is_not_there_lists_what_is(store: Store) -> None:
    done = run("ls", f"{store.url}@nothing")
    assert done.code == ExitCode.NOT_FOUND
    assert "'nothing' is not a branch, tag or snapshot: there are branch 'main', branch 'try/more', tag 'v1'" in done.error


# -- shardstore snapshots ----------------------------------------------------------------------------------------------


@pytest.mark.gate
def test_a_store_is_made_once(tmp_path: Path) -> None:
    url = str(tmp_path / "new.ice")
    made = succeed("snapshots", "init", url, "--json").json
    assert made == {"url": f"file://{url}", "branch": "main", "snapshot": Repository.open(url).lookup_branch("main")}
    done = run("snapshots", "init", url)
    assert done.code == ExitCode.INVALID
    assert "already" in done.error
    other = f"memory://{tmp_path.name}-new.ice"
    assert succeed("snapshots", "init", other).lines == [f"made the versioned store {other}, with the branch main"]
    assert Repository.exists(other)


def test_the_log_is_that_of_a_branch_a_tag_or_a_snapshot(anywhere: Store) -> None:
    first, second = (anywhere.repo.lookup_snapshot(one) for one in (anywhere.first, anywhere.second))
    printed = succeed("snapshots", "log", anywhere.url, *anywhere.options).lines
    assert printed[0].split() == ["snapshot", "time", "(UTC)", "message"]
    assert printed[1].split() == [second.id, f"{second.written_at:%Y-%m-%d}", f"{second.written_at:%H:%M:%S}", "second"]
    assert [line.split()[0] for line in printed[1:3]] == [second.id, first.id]
    assert printed[3].endswith("Repository initialized")
    for ref in ("v1", "try/more", first.id):
        document = succeed("snapshots", "log", f"{anywhere.url}@{ref}", "-n", "1", "--json", *anywhere.options).json
        assert document == [
            {"id": first.id, "parent": first.parent_id, "written_at": first.written_at.isoformat(), "message": "first", "metadata": {}}
        ]


def test_long_messages_are_one_line_of_the_table(store: Store) -> None:
    with store.repo.transaction(message="third: \n\nmore of it", metadata={"by": "me"}) as target:
        zarr.create_group(target, path="new")
    assert succeed("snapshots", "log", store.url, "-n", "1").lines[1].endswith("third:")
    (info,) = succeed("snapshots", "log", store.url, "-n", "1", "--json").json
    assert (info["message"], info["metadata"]) == ("third: \n\nmore of it", {"by": "me"})


def test_the_log_needs_no_pyarrow_and_what_needs_it_says_so(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert len(succeed("snapshots", "log", store.url).lines) == 4
    for command in (["init", str(tmp_path / "new.ice")], ["diff", store.url, "v1"]):
        done = run("snapshots", *command)
        assert done.code == ExitCode.UNSUPPORTED
        assert "pip install 'shardstore[parquet]'" in done.error
    assert not (tmp_path / "new.ice/catalog.json").exists()


@pytest.mark.parametrize("kind", ["branch", "tag"])
def test_branches_and_tags_are_made_listed_and_deleted(kind: str, anywhere: Store) -> None:
    url, options, repo = anywhere.url, anywhere.options, anywhere.repo
    known = [("main", anywhere.second), ("try/more", anywhere.first)] if kind == "branch" else [("v1", anywhere.first)]
    listed = succeed("snapshots", kind, url, *options).lines
    assert listed[0].split()[:2] == [kind, "snapshot"]
    assert [tuple(line.split()[:2]) for line in listed[1:]] == known
    assert succeed("snapshots", kind, url, "new", *options).lines == [f"made {kind} new at snapshot {anywhere.second}"]
    made = succeed("snapshots", kind, url, "old/one", "--at", anywhere.first, "--json", *options).json
    assert made == {"name": "old/one", "type": kind, "snapshot": anywhere.first, "deleted": False}
    document = succeed("snapshots", kind, url, "--json", *options).json
    assert {(one["name"], one["snapshot"]) for one in document} == {*known, ("new", anywhere.second), ("old/one", anywhere.first)}
    assert succeed("snapshots", kind, url, "new", "--delete", *options).lines == [
        f"deleted {kind} new, which was at snapshot {anywhere.second}"
    ]
    assert "new" not in repo.list_branches() | repo.list_tags()


def test_there_may_be_no_tags(tmp_path: Path) -> None:
    url = str(tmp_path / "new.ice")
    Repository.create(url)
    assert succeed("snapshots", "tag", url).lines == ["there are no tags"]
    assert succeed("snapshots", "tag", url, "--json").json == []


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["branch", "run.ice", "v1"], ExitCode.INVALID, "there is a tag 'v1'"),
        (["branch", "run.ice", "a@b"], ExitCode.INVALID, "cannot be the name"),
        (["branch", "run.ice", "main", "--delete"], ExitCode.INVALID, "'main' cannot be deleted"),
        (["branch", "run.ice", "--at", "v1"], ExitCode.INVALID, "--at is for one branch"),
        (["tag", "run.ice", "--delete"], ExitCode.INVALID, "--delete is for one tag"),
        (["tag", "run.ice", "v1", "--delete", "--at", "main"], ExitCode.INVALID, "give one of them"),
        (["tag", "run.ice", "new", "--at", "nothing"], ExitCode.NOT_FOUND, "'nothing' is not a branch, tag or snapshot"),
        (["tag", "run.ice", "main", "--delete"], ExitCode.NOT_FOUND, "no tag 'main'"),
        (["tag", "run.ice@v1", "new"], ExitCode.INVALID, "names a snapshot: give the store itself"),
        (["log", "run.ice@nothing"], ExitCode.NOT_FOUND, "'nothing' is not a branch, tag or snapshot"),
        (["log", "run.ice@v1/scans"], ExitCode.INVALID, "leave the path out"),
        (["log", "nothing.ice"], ExitCode.NOT_FOUND, "shardstore snapshots init"),
        (["reset", "run.ice", "nothing", "v1"], ExitCode.NOT_FOUND, "no branch 'nothing'"),
        (["reset", "run.ice", "v1", "main"], ExitCode.NOT_FOUND, "no branch 'v1'"),
        (["reset", "run.ice", "main", "nothing"], ExitCode.NOT_FOUND, "'nothing' is not a branch, tag or snapshot"),
        (["reset", "run.ice@main", "main", "v1"], ExitCode.INVALID, "names a snapshot"),
        (["diff", "run.ice", "nothing"], ExitCode.NOT_FOUND, "'nothing' is not a branch, tag or snapshot"),
        (["diff", "run.ice@v1", "main"], ExitCode.INVALID, "names a snapshot"),
        (["diff", "run.ice"], ExitCode.INVALID, "FROM"),
        (["nothing"], ExitCode.INVALID, "nothing"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_done_says_why(
    command: list[str], code: ExitCode, message: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(Path(store.url).rglob("*"))
    done = run("snapshots", *command)
    assert done.code == code
    assert message in done.error
    assert sorted(Path(store.url).rglob("*")) == before


def test_a_branch_is_reset_after_a_question(anywhere: Store) -> None:
    url, options, repo = anywhere.url, anywhere.options, anywhere.repo
    refused = run("snapshots", "reset", url, "main", "v1", *options)
    assert refused.code == ExitCode.INVALID
    assert f"this would reset branch main of {url} from snapshot {anywhere.second} to {anywhere.first}" in refused.error
    assert "and leave 1 snapshot that no branch or tag leads to" in refused.error
    assert "Give --yes to do it" in refused.error
    assert repo.lookup_branch("main") == anywhere.second
    looked = succeed("snapshots", "reset", url, "main", "v1", "--dry-run", *options)
    assert looked.lines == [f"branch main is at {anywhere.second}, and would be at {anywhere.first}"]
    assert repo.lookup_branch("main") == anywhere.second
    done = succeed("snapshots", "reset", url, "main", "v1", "--yes", *options)
    assert done.lines == [f"branch main was at snapshot {anywhere.second}, and is at {anywhere.first}"]
    assert repo.lookup_branch("main") == anywhere.first
    assert succeed("snapshots", "reset", url, "main", "v1", *options).lines == [f"branch main is at snapshot {anywhere.first} already"]
    back = succeed("snapshots", "reset", url, "main", anywhere.second, "--yes", "--json", *options).json
    assert back == {"branch": "main", "before": anywhere.first, "snapshot": anywhere.second, "left": [], "dry_run": False}
    assert succeed("snapshots", "reset", url, "main", "try/more", "--yes", "--json", *options).json["left"] == [anywhere.second]


@pytest.mark.parametrize(("answer", "code"), [("y\n", ExitCode.OK), ("n\n", ExitCode.FAILED), ("", ExitCode.INTERRUPTED)])
def test_on_a_terminal_it_asks(answer: str, code: ExitCode, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardstore.apps.cli.output.is_interactive", lambda: True)
    done = run("snapshots", "reset", store.url, "main", "v1", stdin=answer)
    assert done.code == code
    assert f"This would reset branch main of {store.url} from snapshot" in done.err
    assert store.repo.lookup_branch("main") == (store.first if code == ExitCode.OK else store.second)


def test_a_commit_while_somebody_thinks_is_a_conflict(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*arguments: object, **options: object) -> bool:
        with store.repo.transaction(message="meanwhile") as target:
            zarr.create_group(target, path="new")
        return True

    monkeypatch.setattr("shardstore.apps.cli.output.is_interactive", lambda: True)
    monkeypatch.setattr("typer.confirm", answer)
    done = run("snapshots", "reset", store.url, "main", "v1")
    assert done.code == ExitCode.CONFLICT
    assert [info.message for info in store.repo.ancestry()][:2] == ["meanwhile", "second"]


def test_differences_are_shown(anywhere: Store) -> None:
    url, options = anywhere.url, anywhere.options
    assert succeed("snapshots", "diff", url, "v1", "try/more", *options).lines == ["nothing differs"]
    assert succeed("snapshots", "diff", url, "v1", *options).lines == ["chunks         scans/ct: 1 chunk, 0/0"]
    session = anywhere.repo.writable_session()
    session.move("scans/ct", "moved")
    zarr.open_array(session.store, path="moved")[:] = 9
    zarr.create_array(session.store, name="one", data=np.array(5.0))
    zarr.create_array(session.store, name="many", data=np.arange(1, 21), chunks=(1,))
    zarr.open_group(session.store)["scans"].attrs["by"] = "me"
    anywhere.repo.create_tag("before", anywhere.second)
    session.commit("third")
    assert succeed("snapshots", "diff", url, "before", *options).lines == [
        "new array      many",
        "new array      one",
        "updated group  scans",
        "moved          scans/ct to moved",
        "chunks         many: 20 chunks, 0, 1, 2, 3, 4, 5, 6, 7 and 12 more",
        "chunks         moved: 4 chunks, 0/0, 0/1, 1/0, 1/1",
        "chunks         one: 1 chunk, the only one",
    ]
    document = succeed("snapshots", "diff", url, "main", "before", "--json", *options).json
    chunks = document.pop("updated_chunks")
    assert document == {
        "new_groups": [],
        "new_arrays": [],
        "deleted_groups": [],
        "deleted_arrays": ["many", "one"],
        "updated_groups": ["scans"],
        "updated_arrays": [],
        "moved_nodes": [["moved", "scans/ct"]],
    }
    assert chunks == {"scans/ct": [[0, 0], [0, 1], [1, 0], [1, 1]]}


def test_a_group_of_commands_without_a_command_shows_its_help() -> None:
    for group, command in (("snapshots", "reset"), ("refs", "combine")):
        done = succeed(group)
        assert done.out == succeed(group, "--help").out
        assert command in done.out
