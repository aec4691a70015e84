"""``shardstore snapshots expire|gc|stats|verify|rewrite|adopt``: what they take, print and end with."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.apps.cli.output import ExitCode
from shardstore.apps.cli.snapshots import _time_before
from shardstore.errors import InvalidInput
from shardstore.snapshots import Repository
from tests.apps.cli.running import run, succeed

DATA = np.repeat(np.arange(1, 17), 400)


@pytest.fixture
def store(tmp_path: Path) -> Repository:
    """Three snapshots besides the first, of one array of 16 chunks."""
    made = Repository.create(tmp_path / "run.ice", fsync=False, pack=(4,))
    with made.transaction(message="array") as new:
        zarr.create_array(new, name="a", data=DATA, chunks=(400,), compressors=None)
    for value in (7, 8):
        with made.transaction(message=f"all {value}") as new:
            zarr.open_array(new, path="a", mode="r+")[:] = value
    return made


def snapshots(repo: Repository, command: str, *arguments: str) -> list[str]:
    return succeed("snapshots", command, repo.url, *arguments).lines


def test_what_expired_is_removed(store: Repository, tmp_path: Path) -> None:
    assert snapshots(store, "rewrite", "--dry-run") == ["manifests would be merged"]
    assert len(list(store.ancestry())) == 4
    assert snapshots(store, "rewrite", "-m", "one manifest") == [f"branch main is at snapshot {store.lookup_branch('main')}"]
    assert next(store.ancestry()).message == "one manifest"
    assert snapshots(store, "rewrite", "--repack", "-s", "4") == ["there was nothing to do"]
    assert snapshots(store, "rewrite", "--repack", "-s", "4", "--dry-run") == ["no manifests would be merged"]
    assert snapshots(store, "expire", "--older-than", "1h") == ["nothing has expired"]
    assert snapshots(store, "expire", "--older-than", "0", "--dry-run") == ["4 snapshots would expire"]
    assert len(list(store.ancestry())) == 5
    assert snapshots(store, "expire", "--older-than", "0", "--yes") == ["4 snapshots expired"]
    assert len(list(store.ancestry())) == 1
    (planned,) = snapshots(store, "gc", "--dry-run", "--grace", "0")
    assert re.fullmatch(r"would remove 4 structures, 3 manifests, 8 chunk files of 1\d\d\.\d KiB", planned)
    first = snapshots(store, "gc")
    assert first[0] == "nothing was removed"
    assert first[1].endswith("that no snapshot needs stay until 7d after they were found")
    found = succeed("snapshots", "stats", store.url, "--json").json
    assert (found["snapshots"], found["unneeded"]["files"], found["stored"]["c/"]["files"]) == (1, 15, 12)
    removed = succeed("snapshots", "gc", store.url, "--grace", "0", "--json").json
    assert {folder: n for folder, n in removed["removed"].items() if folder != "t/"} == {"s/": 4, "m/": 3, "c/": 8}
    assert len(list((tmp_path / "run.ice/c").iterdir())) == 4
    assert snapshots(store, "stats")[0].split() == ["snapshots", "1"]
    assert snapshots(store, "verify") == ["1 snapshot, 1 structure, 1 manifest, 16 references, 4 chunk files: all are there and whole"]
    np.testing.assert_array_equal(zarr.open_array(shardstore.open(f"{store.url}@main"), path="a", mode="r")[:], 8)


def test_without_a_terminal_an_expiry_asks_for_yes(store: Repository) -> None:
    store.create_tag("v1", next(iter(store.ancestry())).id)
    refused = run("snapshots", "expire", store.url, "--older-than", "0", "--tags")
    assert refused.code == ExitCode.INVALID
    assert "this would let 3 snapshots, tag v1 of" in refused.error
    assert len(list(store.ancestry())) == 4


def test_damage_is_shown_and_is_exit_code_5(store: Repository, tmp_path: Path) -> None:
    for file in (tmp_path / "run.ice/c").iterdir():
        file.unlink()
    done = run("snapshots", "verify", store.url)
    assert done.code == ExitCode.CORRUPT
    assert "12 chunk files: 12 findings" in done.out
    assert done.err.count("missing: c/") == 12
    assert "(needed by 3 snapshots, such as" in done.err
    found = run("snapshots", "verify", store.url, "--json")
    assert found.code == ExitCode.CORRUPT
    assert (found.json["is_sound"], len(found.json["findings"])) == (False, 12)


def test_a_hierarchy_is_adopted(tmp_path: Path) -> None:
    source, target = str(tmp_path / "data.zarr"), str(tmp_path / "data.ice")
    array = zarr.create_array(shardstore.open(source, chunks_per_shard=(4,)), name="a", shape=DATA.shape, chunks=(400,), dtype="i8")
    array[:] = DATA
    lines = succeed("snapshots", "adopt", source, target, "-m", "as it was").lines
    assert lines[0] == f"made the versioned store file://{target}, with 16 references to chunks of {source}"
    assert lines[1] == f"open it with virtual_prefixes=['file://{source}/']"
    repo = Repository.open(target, virtual_prefixes=[f"file://{source}/"])
    assert next(repo.ancestry()).message == "as it was"
    np.testing.assert_array_equal(zarr.open_array(repo.readonly_session().store, path="a", mode="r")[:], DATA)
    assert run("snapshots", "adopt", source, target).code == ExitCode.INVALID
    assert run("snapshots", "adopt", source, target, "--dry-run").code == ExitCode.INVALID
    planned = succeed("snapshots", "adopt", source, f"{target}2", "--dry-run").lines
    assert planned == [f"would make the versioned store {target}2, with 16 references to chunks of {source}"]
    assert succeed("snapshots", "adopt", source, f"{target}2", "--dry-run", "--json").json["dry_run"]
    assert not Path(f"{target}2").exists()
    assert succeed("snapshots", "adopt", source, f"{target}2", "--json").json["references"] == 16


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["expire", "run.ice"], ExitCode.INVALID, "--older-than"),
        (["expire", "run.ice", "--older-than", "tomorrow"], ExitCode.INVALID, "neither a duration, such as 30d, nor a time"),
        (["expire", "run.ice", "--older-than", "2026-01-31T00:00:00"], ExitCode.INVALID, "has no time zone: write it as"),
        (["expire", "run.ice", "--older-than", "2026-01-31"], ExitCode.INVALID, "write it as 2026-01-31T00:00:00Z"),
        (["expire", "run.ice", "--older-than", "200000w"], ExitCode.INVALID, "is longer ago than a time can be"),
        (["gc", "run.ice", "--grace", "99999999999d"], ExitCode.INVALID, "is longer than a time can be"),
        (["gc", "run.ice", "--grace", "7 moons"], ExitCode.INVALID, "is not a duration"),
        (["gc", "run.ice", "--grace", "7"], ExitCode.INVALID, "is not a duration"),
        (["gc", "run.ice@main"], ExitCode.INVALID, "names a snapshot: give the store itself"),
        (["verify", "nothing.ice"], ExitCode.NOT_FOUND, "shardstore snapshots init"),
        (["rewrite", "run.ice", "--branch", "nothing"], ExitCode.NOT_FOUND, "no branch 'nothing'"),
        (["adopt", "nothing.zarr", "new.ice"], ExitCode.NOT_FOUND, "nothing.zarr"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_done_says_why(
    command: list[str], code: ExitCode, message: str, store: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    done = run("snapshots", *command)
    assert done.code == code
    assert message in done.error
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before


def test_times_are_dates_or_durations_before_now() -> None:
    assert _time_before("2026-01-31T00:00:00Z") == datetime(2026, 1, 31, tzinfo=UTC)
    assert abs(datetime.now(UTC) - timedelta(days=30) - _time_before("30d")) < timedelta(minutes=10)
    with pytest.raises(InvalidInput):
        _time_before("-1d")


def test_pack_into_branch(store: Repository, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "old.zarr", data=DATA, chunks=(400,))
    lines = succeed("pack", str(tmp_path / "old.zarr"), f"{store.url}@main/old/a", "-m", "as it was").lines
    newest = next(store.ancestry())
    assert newest.message == "as it was"
    amount = r"16 chunks of 1 array in 17 objects of [\d,]+ B moved"
    assert len(lines) == 1
    assert re.fullmatch(rf"{amount}; {re.escape(store.url)}@main/old/a is at snapshot {newest.id}", lines[0])
    planned = succeed("pack", str(tmp_path / "old.zarr"), f"{store.url}@main/more", "--dry-run").lines
    assert planned[0].endswith(f"would become part of {store.url}@main/more")
    assert planned[1] == "nothing was written"
    refused = run("pack", str(tmp_path / "old.zarr"), f"{store.url}@main/old/a")
    assert refused.code == ExitCode.CONFLICT
    assert "there is something at" in refused.err
    found = succeed("pack", str(tmp_path / "old.zarr"), f"{store.url}@main/old/a", "--overwrite", "--json").json
    assert found["snapshot_id"] == store.lookup_branch("main")
