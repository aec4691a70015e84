"""Messages, metadata, and names of branches and tags: what cannot be shown, or cannot be named by a URL, is refused before it is stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from hypothesis import example, given
from hypothesis import strategies as st

import shardstore
from shardstore.errors import InvalidInput
from shardstore.format.snapshots.state import check_ref_name
from shardstore.opening.snapshot_urls import _names
from shardstore.snapshots import ConflictDetector, Repository
from tests.snapshots.repositories import create_array, new_repository, read_array

HALF = "half of \ud83d"


# -- messages ------------------------------------------------------------------------------------------------------------


def files_below(place: Path) -> set[str]:
    return {str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()}


def committed(repo: Repository, said: Any) -> object:
    session = repo.writable_session()
    create_array(session, "new", np.ones(4, "u1"), (2,))
    return session.commit(**said)


def committed_onto_another(repo: Repository, said: Any) -> object:
    session = repo.writable_session()
    create_array(session, "new", np.ones(4, "u1"), (2,))
    return session.commit(**said, rebase_with=ConflictDetector())


def in_transaction(repo: Repository, said: Any) -> None:
    with repo.transaction(**said) as store:
        zarr.create_group(store, path="new")


def adopted(repo: Repository, said: Any) -> object:
    place = Path(repo.url.removeprefix("file://"))
    return Repository.adopt(place.parent / "source.zarr", place / "other.ice", fsync=False, **said)


def packed(repo: Repository, said: Any) -> object:
    place = Path(repo.url.removeprefix("file://"))
    return shardstore.pack(str(place.parent / "source.zarr"), f"{place}@main/new", **said)


DOORS: dict[str, Callable[[Repository, Any], object]] = {
    "commit": committed,
    "commit with a solver": committed_onto_another,
    "transaction": in_transaction,
    "rewrite_manifests": lambda repo, said: repo.rewrite_manifests(**said),
    "repack": lambda repo, said: repo.repack(**said),
    "adopt": adopted,
    "pack": packed,
}


@pytest.mark.parametrize("door", DOORS)
def test_message_that_cannot_be_shown_is_refused_before_anything_is_written(door: str, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "source.zarr", name="x", shape=(4,), chunks=(2,), dtype="u1")[...] = 1
    repo = Repository.create(tmp_path / "run.ice", fsync=False)
    with repo.transaction(message="data") as store:
        zarr.create_array(store, name="a", shape=(4,), chunks=(2,), dtype="u1")[:2] = 1
    with repo.transaction(message="data") as store:
        zarr.open_array(store, path="a")[2:] = 2
    before = files_below(tmp_path)
    with pytest.raises(InvalidInput, match=r"message .*half of a surrogate pair|message .* is no text"):
        DOORS[door](repo, {"message": HALF})
    assert files_below(tmp_path) == before
    assert [one.message for one in Repository.open(repo.url).ancestry()][:2] == ["data", "data"]


@pytest.mark.parametrize("door", ["commit", "commit with a solver", "transaction"])
@pytest.mark.parametrize("metadata", [{"a": HALF}, {HALF: 1}, {"a": {1, 2}}, {"a": np.ones(2)}, {1: 2}])
def test_metadata_that_cannot_be_stored_is_refused_before_anything_is_written(door: str, metadata: Any, tmp_path: Path) -> None:
    repo = Repository.create(tmp_path / "run.ice", fsync=False)
    before = files_below(tmp_path)
    with pytest.raises(InvalidInput, match="metadata of a commit cannot be stored"):
        DOORS[door](repo, {"message": "m", "metadata": metadata})
    assert files_below(tmp_path) == before


def test_session_can_be_committed_after_its_message_was_refused(tmp_path: Path) -> None:
    repo = new_repository(tmp_path)
    session = repo.writable_session()
    create_array(session, "a", np.ones(4, "u1"), (2,))
    with pytest.raises(InvalidInput):
        session.commit(HALF, {"by": "me"})
    session.commit("whole 👍 ", {"by": ["µ", 1.5, None, True, {"n": 2**70}]})
    (last, *_) = Repository.open(repo.url).ancestry()
    assert (last.message, last.metadata) == ("whole 👍 ", {"by": ["µ", 1.5, None, True, {"n": 2**70}]})
    assert read_array(repo.readonly_session(), "a").tolist() == [1] * 4


def test_document_with_half_of_a_pair_is_committed_and_read(tmp_path: Path) -> None:
    repo = new_repository(tmp_path)
    session = repo.writable_session()
    create_array(session, "a", np.ones(4, "u1"), (2,), attributes={HALF: HALF}, dimension_names=["x"])
    session.commit("attributes")
    assert zarr.open_array(repo.readonly_session().store, path="a", mode="r").attrs.asdict() == {HALF: HALF}


# -- names ---------------------------------------------------------------------------------------------------------------

NAMES = [
    "main",
    "try/more",
    "2024-05-01T12:00",
    "a b",
    "#1",
    "100%",
    "%2Fx",
    "~me",
    "-x",
    "...",
    "..a",
    "{x}",
    "é",
    "a|b",
    "a:b",
    ":a",
    "file:x",
    "zip",
    "v1.zip",
    "a;b",
    "a&b=c",
]
NO_NAMES = [
    "",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/../b",
    "./a",
    "a@b",
    "a::b",
    "zip::",
    "a:",
    "s3://b",
    "a?b",
    "a*b",
    "a[b]",
    " a",
    "a ",
    "a\0",
    "a\nb",
    "a\x7f",
    "a\\b",
    HALF,
    "a\t",
    "\u2003a",
]


def forms(name: str) -> dict[str, Any]:
    """Targets that name a snapshot of a store by the name of a branch or tag."""
    return {
        "local": f"/data/run.ice@{name}",
        "relative": f"run.ice@{name}",
        "in the directory": f"@{name}",
        "file": f"file:///data/run.ice@{name}",
        "memory": f"memory://run.ice@{name}",
        "s3": f"s3://bucket/run.ice@{name}",
        "http": f"https://host/run.ice@{name}",
        "http with a user": f"https://user:password@host/run.ice@{name}",
        "sharded": f"sharded::s3://bucket/run.ice@{name}",
        "chain": f"simplecache::s3://bucket/run.ice@{name}",
        "archive": f"zip://run.ice@{name}::/data/x.zip",
        "archive elsewhere": f"zip://run.ice@{name}::s3://bucket/x.zip",
        "path": Path(f"/data/run.ice@{name}"),
        "filesystem": (fsspec.filesystem("memory"), f"/run.ice@{name}"),
        "local filesystem": (fsspec.filesystem("file"), f"/data/run.ice@{name}"),
        "mapper": fsspec.filesystem("memory").get_mapper(f"/run.ice@{name}"),
    }


def is_name(name: object) -> bool:
    try:
        return check_ref_name(name) == name
    except InvalidInput:
        return False


@given(st.one_of(st.text(max_size=6), st.text("a/.:@?#%~ \\*[]{}", max_size=6)))
@example("a::b")
@example("a?b")
@example("zip:")
@example("s3://b/c")
@example("..")
def test_url_brings_back_every_name_that_is_accepted(name: str) -> None:
    if not is_name(name):
        return
    for form, target in forms(name).items():
        (found,) = _names(target, None, "fsspec")
        assert found.rest == name, form
    for below in ("file:///data/run.ice", "memory://run.ice", "simplecache::memory://data/run.ice"):
        link = fsspec.url_to_fs(f"sharded::{below}@{name}", skip_instance_cache=True)[0]._root._below
        (found,) = _names(link.target, None, "fsspec")
        assert found.rest == name, below


@pytest.mark.parametrize("name", NAMES)
def test_names_are_accepted(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", NO_NAMES)
def test_names_that_no_url_can_hold_are_refused(name: str, tmp_path: Path) -> None:
    repo = new_repository(tmp_path)
    (first,) = repo.ancestry()
    for create in (repo.create_branch, repo.create_tag):
        with pytest.raises(InvalidInput, match="cannot be the name of a branch or tag"):
            create(name, first.id)
    assert (repo.list_branches(), repo.list_tags()) == ({"main"}, set())


def test_snapshots_are_opened_by_every_name(tmp_path: Path) -> None:
    """All in one store, since a name may be the beginning of another."""
    url = str(tmp_path / "run.ice")
    repo = Repository.create(url, fsync=False)
    for number, name in enumerate(NAMES):
        with repo.transaction(message=name) as store:
            zarr.create_array(store, name="a", shape=(1,), chunks=(1,), dtype="u1", overwrite=True)[:] = number
        if name != "main":
            repo.create_tag(name, repo.lookup_branch("main"))
    for number, name in enumerate(NAMES):
        if name == "main":
            continue
        stores: list[Any] = [shardstore.open(f"{url}@{name}"), f"sharded::file://{url}@{name}"]
        for store in stores:
            assert zarr.open_array(store, path="a", mode="r")[0] == number, name
