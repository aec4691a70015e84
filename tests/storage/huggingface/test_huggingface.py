"""Repositories of the Hugging Face Hub, through huggingface_hub itself and a server that speaks the Hub's API."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import AccessDenied, InvalidInput, NotFound, ReadOnly, StorageError
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteSuffix
from shardstore.opening.open import open_storage
from shardstore.storage.base import ABSENT, Failed, Found, Read
from shardstore.storage.generic.storage import GenericStorage
from shardstore.storage.http.client import forget_facts
from shardstore.testing.storage_suite import SyncStorage
from tests.harness.hub import Hub, Repository

HfFileSystem = pytest.importorskip("huggingface_hub").HfFileSystem

SMALL, LARGE = b"small", bytes(range(256)) * 8
FILES = {"data/a": SMALL, "data/b/c": LARGE, "data/b/d e%": b"odd", "other": b""}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    forget_facts()
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    with Hub() as running:
        yield running


class Place:
    def __init__(self, hub: Hub, token: str | None = None) -> None:
        self.hub = hub
        self.name = f"someone/data-{uuid.uuid4().hex[:8]}"  # the filesystem remembers repositories
        self.repository = hub.repositories[self.name] = Repository(token)
        self.commit = self.repository.commit(FILES)
        self.options = {"endpoint": hub.url} | ({} if token is None else {"token": token})

    def url(self, revision: str = "", path: str = "data") -> str:
        return f"hf://datasets/{self.name}{revision}/{path}"

    def open(self, revision: str = "", path: str = "data") -> SyncStorage:
        return SyncStorage(open_storage(self.url(revision, path), self.options))


@pytest.fixture
def place(hub: Hub) -> Place:
    return Place(hub)


def found(outcome: Any) -> list[bytes]:
    assert isinstance(outcome, Found)
    return [bytes(buffer) for buffer in outcome.buffers]


def test_reads(place: Place) -> None:
    s = place.open()
    assert s.storage.url == f"hf://datasets/{place.name}@{place.commit}/data"
    assert s.storage.capabilities.pinned_reads
    assert s.storage.capabilities.static
    assert not s.storage.capabilities.compare_and_swap
    assert found(s.read("a", EVERYTHING)) == [SMALL]
    assert found(s.read("b/c", ByteRange(3, 7), ByteSuffix(5), ByteRange(5000, 6000))) == [LARGE[3:7], LARGE[-5:], b""]
    assert found(s.read("b/d e%", EVERYTHING)) == [b"odd"]
    assert s.read("absent", EVERYTHING) == ABSENT
    first = s.read("b/c", ByteRange(0, 1))
    assert isinstance(first, Found)
    assert first.nbytes == len(LARGE)
    assert found(s.read("b/c", ByteRange(1, 2), generation=first.generation)) == [LARGE[1:2]]
    info = s.stat("b/c")
    assert info is not None
    assert (info.nbytes, info.generation) == (len(LARGE), first.generation)
    assert {info.generation for info in s.infos()} == {first.generation}
    assert s.stat("absent") is None
    assert found(place.open(path="").read("other", EVERYTHING)) == [b""]


def test_requests(place: Place) -> None:
    """Two to find the commit, one for each range, and one more where the server sends it on; nothing of the Hub's is asked for again."""
    s = place.open()
    assert [asked.method for asked in place.hub.count()] == ["GET"] * 2
    s.read("a", ByteRange(0, 2))
    s.read("absent", EVERYTHING)
    assert [(asked.range, asked.path.rpartition("/")[2]) for asked in place.hub.count()] == [("bytes=0-1", "a"), (None, "absent")]
    s.read("b/c", ByteSuffix(4))
    assert [asked.range for asked in place.hub.count()] == ["bytes=-4"] * 2
    place.open(f"@{place.commit}")
    assert len(place.hub.count()) == 1


def test_listings(place: Place) -> None:
    s = place.open()
    assert s.keys() == ["a", "b/c", "b/d e%"]
    assert s.keys("b/c") == ["b/c"]
    assert s.keys("absent/") == []
    assert {info.key: info.nbytes for info in s.infos()} == {"a": 5, "b/c": len(LARGE), "b/d e%": 3}
    assert s.children() == (["a"], ["b/"])
    assert s.children("b/") == (["b/c", "b/d e%"], [])
    assert s.children("absent/") == s.children("a/") == ([], [])
    assert place.open(path="").children() == (["other"], ["data/"])


def test_a_branch_that_moves_on_is_read_at_the_commit_of_the_opening(place: Place) -> None:
    s = place.open("@main")
    place.repository.commit({"data/a": b"newer"})
    assert s.get("a") == SMALL
    assert s.keys() == ["a", "b/c", "b/d e%"]
    assert pickle.loads(pickle.dumps(s.storage)) == s.storage
    assert SyncStorage(pickle.loads(pickle.dumps(s.storage))).get("a") == SMALL


@pytest.mark.parametrize("revision", ["@v1", "@refs%2Fconvert%2Fparquet", "@refs/pr/1"])
def test_other_revisions(place: Place, revision: str) -> None:
    sha = place.repository.commit({"data/a": b"of another"}, revision[1:].replace("%2F", "/"))
    s = place.open(revision)
    assert sha in s.storage.url
    assert s.get("a") == b"of another"


def test_a_token_goes_to_the_hub_alone(hub: Hub) -> None:
    place = Place(hub, "hf_secret")
    s = place.open()
    assert s.get("b/c") == LARGE
    assert s.keys() == ["a", "b/c", "b/d e%"]
    asked = hub.count()
    assert {one.has_token for one in asked if "/resolve/" in one.path or one.path.startswith("/api/")} == {True}
    assert [one.has_token for one in asked if one.path.startswith("/someone/")] == [False]
    assert "hf_secret" not in repr(s.storage) + s.storage.url


def test_what_is_private_says_how_a_token_is_given(hub: Hub) -> None:
    place = Place(hub, "hf_secret")
    with pytest.raises(AccessDenied, match=r"storage_options=\{'hf': \{'token': …"):
        open_storage(place.url(), {"endpoint": hub.url})
    with pytest.raises(NotFound, match=r"no such repository.*token"):
        open_storage(place.url(), {"endpoint": hub.url, "token": "hf_other"})
    s = place.open()
    place.repository.token = "hf_changed"
    (outcome,) = s.read_many(_read("a"))
    assert isinstance(outcome, Failed)
    place.repository.token = "hf_secret"
    assert s.get("a") == SMALL


def test_what_becomes_private(place: Place) -> None:
    s = place.open()
    place.repository.token = "hf_secret"
    with pytest.raises(AccessDenied, match="hf auth login"):
        s.get("a")
    (outcome,) = s.read_many(_read("a"))
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, AccessDenied)


def _read(key: str) -> Read:
    return Read(key, (EVERYTHING,))


def test_what_does_not_exist(place: Place) -> None:
    with pytest.raises(NotFound, match="no such revision"):
        place.open("@absent")
    with pytest.raises(InvalidInput, match="hf://datasets/OWNER/NAME@REVISION/PATH"):
        open_storage("hf://alone", place.options)
    with pytest.raises(StorageError, match="cannot be reached"):
        open_storage(place.url(), {"endpoint": "http://127.0.0.1:9"})


@pytest.mark.parametrize("lost", ["content", "repository", "commit"])
def test_what_is_gone_is_not_taken_for_absence(place: Place, lost: str) -> None:
    s = place.open()
    if lost == "content":
        place.hub.lost.add("data/b/c")
    elif lost == "commit":
        place.repository.commits.clear()
        place.repository.revisions.clear()
    else:
        place.hub.repositories.clear()
    (outcome,) = s.read_many(_read("b/c"))
    assert isinstance(outcome, Failed)
    with pytest.raises(StorageError):
        s.stat("b/c")


def test_writes_are_refused_with_the_remedy(place: Place) -> None:
    s = place.open()
    for change in (lambda: s.put("a", b"x"), lambda: s.delete("a"), lambda: s.copy("a", "z"), lambda: s.rename_prefix("b", "c")):
        with pytest.raises(ReadOnly, match=f"hf upload {place.name} DIRECTORY --repo-type dataset"):
            change()


def test_buckets_have_no_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read and written as any filesystem."""
    bucket = SimpleNamespace(bucket_id="someone/data", path="x")  # of huggingface_hub 1.9 and newer
    monkeypatch.setattr(HfFileSystem, "resolve_path", lambda *_, **__: bucket)
    opened = open_storage("hf://buckets/someone/data/x")
    assert isinstance(opened, GenericStorage)
    assert opened.url == "hf://buckets/someone/data/x"


def test_an_array(place: Place, tmp_path: Path) -> None:
    """Packed to local files, uploaded as a commit, and read: each index and chunk by one request; pickles read the same commit."""
    values = np.random.default_rng(0).integers(1, 255, (64, 64), dtype="u1")
    store = shardstore.open(tmp_path / "x.zarr", chunks_per_shard=(4, 4))
    zarr.create_array(store, name="x", data=values, chunks=(8, 8), compressors=None)
    root = tmp_path / "x.zarr"
    sha = place.repository.commit(
        {f"x.zarr/{file.relative_to(root)}": file.read_bytes() for file in root.rglob("*") if file.is_file() and file.name[0] != "."}
    )
    opened = shardstore.open(place.url("@main", "x.zarr"), storage_options=place.options)
    array = zarr.open_array(opened, path="x", mode="r")
    place.hub.count()
    assert np.array_equal(array[:8, :8], values[:8, :8])
    assert np.array_equal(array[8:16, :16], values[8:16, :16])
    hub_asked = [one for one in place.hub.count() if one.path.startswith("/datasets/")]
    assert len(hub_asked) == 3  # an index and a chunk, and then two chunks
    place.repository.commit({"x.zarr/zarr.json": b"broken"})
    again = pickle.loads(pickle.dumps(opened))
    assert sha in str(again)
    assert np.array_equal(zarr.open_array(again, path="x", mode="r")[...], values)
    with pytest.raises(ReadOnly):
        zarr.open_array(opened, path="x", mode="r+")[0, 0] = 1


@pytest.mark.parametrize("path", ["", "x.zarr"])
def test_a_revision_is_no_snapshot_of_a_versioned_store(place: Place, tmp_path: Path, path: str) -> None:
    """Nothing is asked of the default branch, although its root may be a versioned store."""
    zarr.create_array(shardstore.open(tmp_path / "x"), name="x", shape=(4,), chunks=(2,), dtype="u1")
    inside = f"{path}/" if path else ""
    place.repository.commit({f"{inside}{name}": (tmp_path / "x" / name).read_bytes() for name in ("zarr.json", "x/zarr.json")}, "v1")
    place.hub.count()
    opened = shardstore.open(place.url("@v1", path), storage_options=place.options)
    assert len(place.hub.count()) == 2
    assert zarr.open_array(opened, path="x", mode="r").shape == (4,)


def test_a_versioned_store_in_a_repository(place: Place, tmp_path: Path) -> None:
    repository = shardstore.snapshots.Repository.create(tmp_path / "x.ice")
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="x", data=np.arange(8, dtype="u1"), chunks=(2,))
    session.commit("first")
    root = tmp_path / "x.ice"
    place.repository.commit({f"x.ice/{file.relative_to(root)}": file.read_bytes() for file in root.rglob("*") if file.is_file()})
    # Version 1.0 of huggingface_hub takes the first @ for that of a revision, wherever it is.
    for revision in ("@main",) if version("huggingface_hub").startswith("1.") else ("", "@main"):
        opened = shardstore.open(place.url(revision, "x.ice@main"), storage_options=place.options)
        assert np.array_equal(zarr.open_array(opened, path="x", mode="r")[...], np.arange(8))


def test_repository_and_filesystem_as_targets(place: Place) -> None:
    fs = HfFileSystem(endpoint=place.hub.url)
    s = SyncStorage(open_storage((fs, f"datasets/{place.name}/data")))
    assert s.get("a") == SMALL
    opened = shardstore.open((fs, f"datasets/{place.name}/data"))
    assert place.commit in str(opened)
    with pytest.raises(InvalidInput, match="did you mean"):
        open_storage(place.url(), {"tokn": "x"})
