"""Stores that earlier versions have written stay readable for ever, and can be gone on from."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shardstore.snapshots import Repository
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.storage_suite import SyncStorage
from tests.fixtures.versioned_store.make import digest
from tests.snapshots.committing import contents_of
from tests.snapshots.whole import check_whole, messages_of

GOLDEN = Path(__file__).parents[1] / "fixtures" / "versioned_store"
NAMES = sorted(path.parent.name for path in GOLDEN.glob("*/expected.json"))


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[MemoryStorage, Any]:
    """A copy of a store, and what it shows."""
    place = GOLDEN / request.param
    storage = MemoryStorage(str(tmp_path))
    for path in (place / "files").rglob("*"):
        if path.is_file():
            SyncStorage(storage).put(str(path.relative_to(place / "files")), path.read_bytes())
    return storage, json.loads((place / "expected.json").read_text())


def check(repo: Repository, expected: Any) -> None:
    for id_, contents in expected["snapshots"].items():
        assert {key: digest(data) for key, data in contents_of(repo.readonly_session(snapshot_id=id_)).items()} == contents, id_


def test_every_snapshot_is_as_it_was(golden: tuple[MemoryStorage, Any]) -> None:
    storage, expected = golden
    repo = Repository.open(storage)
    assert {ref: repo.lookup(ref) for ref in expected["refs"]} == expected["refs"]
    assert {ref: messages_of(repo, ref)[::-1] for ref in expected["messages"]} == expected["messages"]
    check(repo, expected)
    assert repo.verify().findings == []


def test_it_goes_on(golden: tuple[MemoryStorage, Any]) -> None:
    storage, expected = golden
    repo = Repository.open(storage, pack=(4,))
    session = repo.writable_session("side")
    session.mapping()["h/moved/c/2"] = bytes([77]) * 1024
    session.commit("on top")
    repo.rewrite_manifests(branch="side")
    repo.garbage_collect(timedelta())
    check(repo, expected)
    check_whole(storage)
    assert contents_of(Repository.open(storage).readonly_session("side"))["h/moved/c/2"] == bytes([77]) * 1024


def test_pandas_reads_manifests() -> None:
    pandas = pytest.importorskip("pandas")
    for name in NAMES:
        rows = pandas.concat([pandas.read_parquet(path) for path in (GOLDEN / name / "files/m").iterdir()])
        assert {"array_id", "coord", "chunk_id", "offset", "length", "inline_data", "virtual_path"} <= set(rows.columns)
        assert rows["inline_data"].notna().sum() >= 8
        assert set(rows["chunk_id"].dropna().map(len)) == {12}
