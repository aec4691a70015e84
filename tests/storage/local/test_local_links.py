"""Links in the middle of a local store: which ones are found, on the way to a key and below a prefix, and which can be moved."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem

import shardstore
from shardstore._sync import run_sync
from shardstore.errors import AccessDenied, Conflict, InvalidInput, StorageError
from shardstore.model.generation import UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING, ByteRange
from shardstore.opening.open import open_storage
from shardstore.storage.base import Absent, Failed, Found, Read
from shardstore.storage.boundaries import check_no_links, check_own
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.wrappers import CheckedStorage
from shardstore.stored.draft2022.storage import DraftStorage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Files below ``root``, and links: to a directory, to a file, to nowhere, and in a loop."""
    for key in ("root/a/x", "root/b/y/z", "elsewhere/d/f", "elsewhere/file"):
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(b"1")
    root = tmp_path / "root"
    for name, to in {"b/link": "d", "b/file": "file", "b/y/nowhere": "absent"}.items():
        (root / name).symlink_to(tmp_path / "elsewhere" / to)
    (root / "b/y/loop").symlink_to("loop")
    return root


def test_links_below_a_prefix_are_found(root: Path) -> None:
    def found(prefix: str = "") -> list[str]:
        return run_sync(LocalStorage(root).linked_directories(prefix))

    assert found() == ["b/link", "b/y/loop", "b/y/nowhere"]
    assert found("b/y/") == ["b/y/loop", "b/y/nowhere"]
    assert found("b/link/") == ["b/link"]
    assert found("b/y/nowhere/") == ["b/y/nowhere"]
    assert found("b/file/") == found("a/") == found("absent/") == []


@pytest.mark.parametrize("prefix", ["", "b/", "b/y/", "b/link/", "b/y/nowhere/", "b/file/"])
def test_links_are_cut(root: Path, tmp_path: Path, prefix: str) -> None:
    storage = LocalStorage(root)
    left = set(run_sync(storage.linked_directories())) - set(run_sync(storage.linked_directories(prefix)))
    run_sync(storage.cut_links(prefix))
    assert set(run_sync(storage.linked_directories())) == left
    assert (root / "b/file").is_symlink()
    assert (root / "b/y/z").exists()
    assert (tmp_path / "elsewhere/d/f").exists()


def test_links_on_the_way_are_found(root: Path, tmp_path: Path) -> None:
    keys = ["a/x", "b/link/f", "b/link/new/deep", "b/link", "b/file", "b/y/nowhere/x", "", "absent/x"]
    link, nowhere = str(root / "b/link"), str(root / "b/y/nowhere")
    assert run_sync(LocalStorage(root).links_above(keys)) == [None, link, link, None, None, nowhere, None, None]
    (tmp_path / "alias").symlink_to(root)
    assert run_sync(LocalStorage(tmp_path / "alias").links_above(["a/x", ""])) == [None, None]


@pytest.mark.parametrize("document", ["zarr.json", ".zgroup", ".zarray"])
@pytest.mark.parametrize("below", ["", "d", "d/f"])
def test_a_root_in_the_middle_of_another_store_is_found(root: Path, document: str, below: str) -> None:
    place = LocalStorage(root / "b/link" / below)
    assert run_sync(place.links_above(["", "x"])) == [None, None]
    (root / document).write_text("{}")
    assert run_sync(place.links_above(["", "x"])) == [str(root / "b/link")] * 2


def test_the_rule_holds_through_wrappers_and_for_both_halves_of_a_draft(root: Path, tmp_path: Path) -> None:
    run_sync(check_own(CheckedStorage(LocalStorage(root)), "a/x"))
    with pytest.raises(Conflict, match=f"'b/link/f' in file://{root} is reached through the link {root}/b/link in the middle of a store"):
        run_sync(check_own(CheckedStorage(LocalStorage(root)), "b/link/f"))
    for half in ("data/root", "meta/root"):
        draft = DraftStorage(LocalStorage(tmp_path / half[:4]))
        place = tmp_path / half[:4] / half
        place.mkdir(parents=True)
        (place / "g").symlink_to(tmp_path / "elsewhere/d")
        run_sync(check_own(draft, "g"))
        for path in ("g/a", "g/a/c/0/1"):
            with pytest.raises(Conflict, match="reached through the link"):
                run_sync(check_own(draft, path))
        for path in ("", "g"):
            with pytest.raises(Conflict, match=f"'{half}/g' leads elsewhere"):
                run_sync(check_no_links(draft, path))
        run_sync(check_no_links(draft, "other"))
    (tmp_path / "data/data/root/c0").symlink_to(tmp_path / "elsewhere/d")
    with pytest.raises(Conflict, match="data/root/c0 in the middle"):
        run_sync(check_own(DraftStorage(LocalStorage(tmp_path / "data")), "c/0/1"))


@pytest.mark.parametrize(
    ("link", "text", "target", "moves"),
    [
        ("b/l", "../../elsewhere/d", "new/b", False),
        ("b/l", "../../elsewhere/d", "c", True),  # as deep as it was
        ("b/y/l", "../../../elsewhere/file", "new/b", False),
        ("b/l", "{tmp}/elsewhere/d", "new/b", True),
        ("b/l", "y", "new/b", True),
        ("b/y/l", "../y/z", "new/b", True),
        ("b/l", "../b/y", "c", False),
        ("b/l", "{tmp}/root/b/y", "c", False),
        ("b/l", "{tmp}/alias/b/y", "c", False),
        ("b/l", "../absent", "new/b", False),
        ("b/l", "absent", "new/b", True),
    ],
)
def test_only_links_that_still_lead_there_are_moved(root: Path, tmp_path: Path, link: str, text: str, target: str, moves: bool) -> None:
    (tmp_path / "alias").symlink_to(root)
    (root / "b/y/loop").unlink()
    (root / link).symlink_to(text.format(tmp=tmp_path))
    leads = os.path.realpath(root / link)
    rename = LocalStorage(root).rename_prefix("b", target)
    if not moves:
        with pytest.raises(Conflict, match=f"the link {root}/{link} in it, to '.*', would lead elsewhere from its new place"):
            run_sync(rename)
        assert os.path.realpath(root / link) == leads
        return
    assert run_sync(rename) is True
    moved = os.path.realpath(root / target / link.removeprefix("b/"))
    assert moved == leads.replace(f"{root}/b/", f"{root}/{target}/")


def test_the_error_of_a_write_names_a_link_to_nowhere(root: Path) -> None:
    with pytest.raises(StorageError, match=f"or a link that leads nowhere, as {root}/b/y/nowhere does"):
        run_sync(LocalStorage(root).write("b/y/nowhere/x", [b"1"], 1, UNCONDITIONAL))


# -- links that are not followed out of the root ---------------------------------------------------------------------------


@pytest.fixture
def kept(root: Path) -> LocalStorage:
    """Files and links of ``root``, of which nothing outside is seen; two links lead to places inside."""
    (root / "b/inside").symlink_to(root / "a")
    (root / "b/x").symlink_to("../a/x")
    return LocalStorage(root, follow_links=False)


def test_access_to_what_lies_outside_is_denied_without_follow_links(kept: LocalStorage) -> None:
    everything = (EVERYTHING,)
    outside = ["b/link/f", "b/link/d/none", "b/file"]
    for key in ["a/x", "b/x", "b/inside/x"]:
        for (outcome,) in (run_sync(kept.read([Read(key, everything)])), kept.read_blocking([Read(key, everything)])):
            assert isinstance(outcome, Found), key
        assert run_sync(kept.stat(key)) is not None
    for key in outside:  # a chunk there is none that was never written
        for (outcome,) in (run_sync(kept.read([Read(key, everything)])), kept.read_blocking([Read(key, everything)])):
            assert isinstance(outcome, Failed), key
            assert isinstance(outcome.error, AccessDenied), key
        with pytest.raises(AccessDenied, match=r"leads out of the store.*--follow-links"):
            run_sync(kept.stat(key))
    (outcome,) = run_sync(kept.read([Read("b/none", everything)]))
    assert isinstance(outcome, Absent)
    assert run_sync(kept.stat("b/none")) is None

    async def listed(prefix: str) -> list[str]:
        return [info.key async for info in kept.list(prefix)]

    assert run_sync(listed("")) == ["a/x", "b/inside/x", "b/x", "b/y/z"]
    assert run_sync(listed("b/file")) == []
    for prefix in ("b/link/", "b/link/f"):
        with pytest.raises(AccessDenied):
            run_sync(listed(prefix))
    directory = run_sync(kept.list_dir("b/"))
    assert ([info.key for info in directory.objects], directory.prefixes) == (["b/x"], ("b/inside/", "b/y/"))
    for prefix in ("b/link/", "b/link/d/"):
        with pytest.raises(AccessDenied):
            run_sync(kept.list_dir(prefix))


def test_bytes_in_memory_are_not_read_from_outside_without_follow_links(root: Path) -> None:
    """A file becomes a link while its generation is known: what the link leads to has that generation too."""
    followed, kept = LocalStorage(root), LocalStorage(root, follow_links=False)
    (info,) = [run_sync(followed.stat("b/file"))]
    assert info is not None
    read = Read("b/file", (ByteRange(0, 1),), info.generation)
    for _ in range(3):  # only what has been read a moment ago is looked for in memory
        assert isinstance(run_sync(followed.read([read]))[0], Found)
        assert isinstance(run_sync(kept.read([read]))[0], Failed)
        assert kept.read_in_memory(read) is None


def test_a_link_that_is_changed_while_it_is_read_does_not_lead_outside(
    root: Path, kept: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def swapping(path: str, flags: int) -> int:
        opened = real(path, flags)
        (root / "b/file").unlink()
        (root / "b/file").symlink_to("../a/x")
        return opened

    monkeypatch.setattr(os, "open", swapping)
    (outcome,) = kept.read_blocking([Read("b/file", (EVERYTHING,))])
    assert isinstance(outcome, Failed)


def test_the_root_may_be_a_link_and_lead_elsewhere_later(root: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(root)
    kept = LocalStorage(tmp_path / "current", follow_links=False)
    assert run_sync(kept.stat("a/x")) is not None
    (tmp_path / "current").unlink()
    (tmp_path / "current").symlink_to(tmp_path / "elsewhere")
    assert run_sync(kept.stat("d/f")) is not None
    assert isinstance(run_sync(kept.read([Read("d/f", (EVERYTHING,))]))[0], Found)
    (tmp_path / "elsewhere-too").mkdir()  # a name that only begins like the root
    (tmp_path / "elsewhere-too/f").write_bytes(b"1")
    (tmp_path / "elsewhere/link").symlink_to(tmp_path / "elsewhere-too/f")
    with pytest.raises(AccessDenied):
        run_sync(kept.stat("link"))


@pytest.mark.parametrize("spelled", ["{}", "file://{}", "local://{}"])
def test_follow_links_is_a_storage_option(root: Path, spelled: str) -> None:
    target = spelled.format(root)
    kept = open_storage(target, {"follow_links": False})
    with pytest.raises(AccessDenied):
        run_sync(kept.stat("b/file"))
    assert pickle.loads(pickle.dumps(kept)) == kept != open_storage(target)
    assert "follow_links=False" in repr(kept)
    assert run_sync(open_storage(target, {"follow_links": True}).stat("b/file")) is not None
    with pytest.raises(InvalidInput, match="follow_links=1 is neither True nor False"):
        open_storage(target, {"follow_links": 1})
    followed = shardstore.get_mapper(target)
    assert "b/file" in followed
    for place in (target, (LocalFileSystem(), str(root))):  # no engine is shared
        with pytest.raises(AccessDenied):
            shardstore.get_mapper(place, storage_options={"follow_links": False})["b/file"]
