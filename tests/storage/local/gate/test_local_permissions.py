"""What replaces a file has its permissions, from before the first byte: mode, group and owner as far as the user may, access list."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import shardstore
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, IfGeneration
from shardstore.model.ranges import APPEND_PADDING_NBYTES, EVERYTHING, BytesLike, CopiedRange, NewBytes, Padding
from shardstore.storage.base import Found
from shardstore.storage.local.files import TEMP_SUFFIX
from shardstore.storage.local.rules import WriteRules
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.local.temporary import TemporaryFile
from shardstore.testing.storage_suite import SyncStorage
from tests.harness.crash import Crasher
from tests.harness.system_calls import SystemCalls
from tests.storage.local import user_workers
from tests.storage.local.gate.test_local_users import A, B, crasher, shared, told, two_users  # noqa: F401  # fixtures
from tests.storage.local.on_disk import NETWORK, mount_everything, set_access_list

ACCESS_LIST = "system.posix_acl_access"
DEFAULT_LIST = "system.posix_acl_default"
OLD = b"old" * 100


@pytest.fixture(params=[False, True], ids=["local", "network"])
def s(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyncStorage:
    mount_everything(monkeypatch, NETWORK if request.param else None)
    return SyncStorage(LocalStorage(tmp_path / "root", fsync=False))


@pytest.fixture(params=[0o022, 0o077], ids=["umask 022", "umask 077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def body() -> AsyncIterator[BytesLike]:
    yield b"ne"
    yield b"w"


def compose(s: SyncStorage, *segments: CopiedRange | NewBytes | Padding) -> None:
    found = s.read("d/a", EVERYTHING)
    assert isinstance(found, Found)
    s.compose("d/a", found.generation, list(segments), IfGeneration(found.generation))


REPLACING: dict[str, Callable[[SyncStorage], object]] = {
    "put": lambda s: s.put("d/a", b"new"),
    "stream": lambda s: s.write("d/a", body(), 3, UNCONDITIONAL),
    "rewrite": lambda s: compose(s, CopiedRange(3, 100), NewBytes(b"new")),
    "append": lambda s: compose(s, CopiedRange(0, len(OLD)), Padding(APPEND_PADDING_NBYTES), NewBytes(b"new")),
    "copy": lambda s: s.copy("d/b", "d/a"),
    "write_blocking": lambda s: s.storage.write_blocking("d/a", [[b"new"]], 3, UNCONDITIONAL),  # type: ignore[attr-defined]  # of local files
}


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o660, 0o604, 0o666, 0o444, 0o400])
@pytest.mark.parametrize("how", REPLACING)
def test_the_mode_is_kept(s: SyncStorage, tmp_path: Path, umask: int, how: str, mode: int) -> None:
    s.put("d/a", OLD)
    s.put("d/b", b"another")
    path = tmp_path / "root/d/a"
    path.chmod(mode)
    inode = path.stat().st_ino
    REPLACING[how](s)
    assert path.read_bytes() != OLD or how == "append"
    assert mode_of(path) == mode
    assert mode_of(tmp_path / "root/d/b") == 0o666 & ~umask
    if how not in ("append", "copy"):
        assert path.stat().st_ino != inode
    info = s.stat("d/a")
    found = s.read("d/a", EVERYTHING)
    assert isinstance(found, Found)
    assert info is not None
    assert info.generation == found.generation


def test_a_new_object_has_what_the_umask_leaves(s: SyncStorage, tmp_path: Path, umask: int) -> None:
    s.put("d/a", b"1", IF_ABSENT)
    s.put("d/b", b"1")
    assert [mode_of(tmp_path / "root/d" / name) for name in "ab"] == [0o666 & ~umask] * 2


def test_bits_that_run_programs_with_other_rights_are_dropped(s: SyncStorage, tmp_path: Path) -> None:
    s.put("d/a", b"1")
    (tmp_path / "root/d/a").chmod(0o6755)
    s.put("d/a", b"2")
    assert mode_of(tmp_path / "root/d/a") == 0o755


def test_a_copy_has_the_permissions_of_what_it_is_a_copy_of(s: SyncStorage, tmp_path: Path) -> None:
    """A move ends with one: what nobody else could read would be there for all to read."""
    s.put("d/a", b"1")
    (tmp_path / "root/d/a").chmod(0o600)
    s.copy("d/a", "e/b")
    assert mode_of(tmp_path / "root/e/b") == 0o600


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400])
def test_the_file_that_is_being_written_is_never_open_to_others(tmp_path: Path, mode: int, umask: int) -> None:
    """Not at any call: who opens it then reads all that is written later."""
    s = SyncStorage(LocalStorage(tmp_path, fsync=False))
    s.put("a", OLD)
    (tmp_path / "a").chmod(mode)
    seen = 0

    def look(name: str) -> None:
        nonlocal seen
        for path in tmp_path.glob(f".a.*{TEMP_SUFFIX}"):
            seen += 1
            assert mode_of(path) & ~mode & 0o177 == 0, name

    for at in range(1, 100):
        with SystemCalls(at, look, after=True, threads="shardstore-write") as counted:
            s.put("a", b"new")
        if not counted.has_struck:
            break
    assert seen > 3
    assert mode_of(tmp_path / "a") == mode


@pytest.mark.parametrize("is_network", [False, True])
def test_a_mode_that_is_changed_meanwhile(tmp_path: Path, is_network: bool) -> None:
    path = tmp_path / "a"
    rules = WriteRules(str(tmp_path), True, is_network, False)
    for before, later in ((0o644, 0o600), (0o600, 0o640), (None, 0o604)):
        path.unlink(missing_ok=True)
        if before is not None:
            path.write_bytes(OLD)
            path.chmod(before)
        file = TemporaryFile(str(path), "a", rules)
        file.append([memoryview(b"new")])
        path.write_bytes(OLD)
        path.chmod(later)
        file.publish(UNCONDITIONAL)
        file.close()
        assert path.read_bytes() == b"new"
        assert mode_of(path) == later


def test_what_it_costs(tmp_path: Path) -> None:
    """Two calls more than without, for an object with the permissions of a new one."""
    s = SyncStorage(LocalStorage(tmp_path, fsync=False))
    s.put("a", b"1")
    with SystemCalls(threads="shardstore-write") as counted:
        s.put("a", b"2")
    assert [counted.calls.count(name) for name in ("getxattr", "chmod", "chown", "setxattr")] == [1, 0, 0, 0]
    assert counted.calls.count("stat") == 3  # what is replaced, at the start and under the lock, and the name of the lock file


# -- access control lists ----------------------------------------------------------------------------------------------


def test_an_access_list_is_kept(s: SyncStorage, tmp_path: Path, umask: int) -> None:
    s.put("d/a", OLD)
    s.put("d/b", OLD)
    path = tmp_path / "root/d/a"
    set_access_list(path, B, 4, owner=6, group=0)
    before = os.getxattr(path, ACCESS_LIST)
    for how in REPLACING:
        REPLACING[how](s)
        assert os.getxattr(path, ACCESS_LIST) == before
        assert mode_of(path) == 0o640
        s.put("d/a", OLD)


def test_what_a_directory_gives_new_files_is_not_given_to_old_ones(s: SyncStorage, tmp_path: Path) -> None:
    """Whoever the directory's default list names could not read the file before."""
    s.put("d/a", OLD)
    path = tmp_path / "root/d/a"
    path.chmod(0o640)
    set_access_list(tmp_path / "root/d", B, 7)
    os.setxattr(path.parent, DEFAULT_LIST, os.getxattr(path.parent, ACCESS_LIST))
    s.put("d/a", b"new")
    assert ACCESS_LIST not in os.listxattr(path)
    assert mode_of(path) == 0o640
    s.put("d/new", b"new")
    assert ACCESS_LIST in os.listxattr(path.parent / "new")


# -- two users ---------------------------------------------------------------------------------------------------------


def owned(shared: Path, mode: int, owner: int = A, group: int = A) -> Path:  # noqa: F811
    path = shared / "d/a"
    path.write_bytes(OLD)
    os.chown(path, owner, group)
    path.chmod(mode)
    return path


@two_users
@pytest.mark.parametrize("mode", ["local", "network"])
@pytest.mark.parametrize(("old", "new"), [(0o600, 0o600), (0o640, 0o600), (0o664, 0o644), (0o604, 0o604), (0o666, 0o666)])
def test_a_group_that_cannot_be_kept_lets_no_other_group_in(crasher: Crasher, shared: Path, mode: str, old: int, new: int) -> None:  # noqa: F811
    path = owned(shared, old)
    assert told(crasher, user_workers.put, B, 0o022, str(shared), "d/a", b"new", mode) == "stored"
    assert path.read_bytes() == b"new"
    assert (path.stat().st_uid, path.stat().st_gid, mode_of(path)) == (B, B, new)


@two_users
def test_a_group_that_the_user_belongs_to_is_kept(crasher: Crasher, shared: Path) -> None:  # noqa: F811
    path = owned(shared, 0o660, group=60_007)
    assert told(crasher, user_workers.put, B, 0o077, str(shared), "d/a", b"new", "local", (60_007,)) == "stored"
    assert (path.stat().st_uid, path.stat().st_gid, mode_of(path)) == (B, 60_007, 0o660)


@two_users
def test_root_keeps_the_owner(crasher: Crasher, shared: Path) -> None:  # noqa: F811
    path = owned(shared, 0o640)
    assert told(crasher, user_workers.put, 0, 0o022, str(shared), "d/a", b"new", "local") == "stored"
    assert (path.stat().st_uid, path.stat().st_gid, mode_of(path)) == (A, A, 0o640)


@two_users
def test_another_users_object_is_appended_to_by_copying_it(crasher: Crasher, shared: Path) -> None:  # noqa: F811
    """Times of another's file cannot be set. The copy has its permissions."""
    path = owned(shared, 0o664, group=60_007)
    assert told(crasher, user_workers.append, B, 0o022, str(shared), "d/a", b"new", "local") == "stored"
    assert path.read_bytes().startswith(OLD)
    assert path.read_bytes().endswith(b"new")
    assert mode_of(path) == 0o644


@two_users
def test_an_access_list_lets_no_other_group_in(crasher: Crasher, shared: Path) -> None:  # noqa: F811
    """Who it names keeps their rights; the file's group is another one now."""
    path = owned(shared, 0o600)
    set_access_list(path, 60_009, 6, owner=6, group=6, others=4)
    assert told(crasher, user_workers.put, B, 0o022, str(shared), "d/a", b"new", "local") == "stored"
    assert path.stat().st_gid == B
    expected = shared / "expected"
    expected.touch()
    set_access_list(expected, 60_009, 6, owner=6, group=4, others=4)
    assert os.getxattr(path, ACCESS_LIST) == os.getxattr(expected, ACCESS_LIST)


# -- a store -----------------------------------------------------------------------------------------------------------


def document(chunks: int) -> bytes:
    return (
        b'{"zarr_format":3,"node_type":"array","shape":[%d],"data_type":"uint8","chunk_grid":{"name":"regular","configuration":'
        b'{"chunk_shape":[1]}},"chunk_key_encoding":{"name":"default"},"fill_value":0,"codecs":[{"name":"bytes"}]}' % chunks
    )


@pytest.mark.parametrize("strategy", ["rewrite", "append"])
def test_a_private_array_stays_private(tmp_path: Path, strategy: Any) -> None:
    root = tmp_path / "root"
    store = shardstore.get_mapper(str(root), chunks_per_shard=(4,), strategy=strategy)
    store["a/zarr.json"] = document(8)
    store.setitems({f"a/c/{i}": bytes([i]) for i in range(8)})
    files = sorted(path for path in root.rglob("*") if path.is_file())
    assert len(files) == 3
    for path in files:
        path.chmod(0o600)

    def check(top: Path) -> None:
        found = sorted(path for path in top.rglob("*") if path.is_file())
        assert len(found) == 3
        assert [mode_of(path) for path in found] == [0o600] * 3

    for i in range(4):
        store[f"a/c/{i}"] = bytes([i + 10])
        store[f"a/c/{i + 4}"] = bytes([i + 20])
    del store["a/c/1"]
    store["a/zarr.json"] = document(9)
    check(root)
    before = (root / "a/c/0").stat()
    shardstore.compact(str(root), dead_ratio=0.0)
    check(root)
    assert ((root / "a/c/0").stat().st_ino != before.st_ino) is (strategy == "append")
    store.rename("a", "b")
    check(root / "b")
    assert store["b/c/0"] == bytes([10])


def test_what_is_repaired_is_as_private_in_the_quarantine(tmp_path: Path) -> None:
    root, kept = tmp_path / "root", tmp_path / "root.quarantine"
    store = shardstore.get_mapper(str(root), chunks_per_shard=(4,))
    store["a/zarr.json"] = document(8)
    store.setitems({f"a/c/{i}": bytes([i]) for i in range(8)})
    shard = root / "a/c/0"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    shard.chmod(0o640)
    root.chmod(0o711)
    (root / "a/c").chmod(0o750)
    before = os.umask(0o022)
    try:
        report = shardstore.repair(str(root))
    finally:
        os.umask(before)
    (finding,) = report.findings.first
    assert [mode_of(kept), mode_of(kept / "a"), mode_of(kept / "a/c"), mode_of(kept / "a/c/0")] == [
        0o711,
        mode_of(root / "a"),
        0o750,
        0o750,
    ]
    files = sorted(path for path in kept.rglob("*") if path.is_file())
    assert [mode_of(path) for path in files] == [0o640, 0o640]
    assert str(files[0].relative_to(kept)) == finding.quarantined
    assert files[0].read_bytes().endswith(b"?")
    assert mode_of(shard) == 0o640
    assert store["a/c/0"] == bytes([0])
