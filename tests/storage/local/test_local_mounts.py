"""Which mount a path lies on, and which mounts other machines may share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from shardstore.storage.local import storage as local_storage
from shardstore.storage.local.mounts import Mount, mount_of, parse
from shardstore.storage.local.storage import LocalStorage

MOUNTINFO = rb"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:50 / /data rw,relatime shared:3 master:1 - nfs4 server:/export rw,vers=4.2
31 27 0:51 / /data/with\040space rw - xfs /dev/vdb rw
32 27 0:52 / /scratch rw - lustre 10.0.0.1@tcp:/s rw,flock
33 27 0:53 / /ssh rw - fuse.sshfs me@there: rw
34 27 0:54 / /merged rw - fuse.mergerfs a:b rw
35 27 0:55 / /twice rw - nfs server:/a rw
36 35 0:56 / /twice rw - ext4 /dev/vdc rw
37 27 0:57 / /fuse rw - fuse x rw
38 27 0:58 / /ntfs rw - fuseblk /dev/sda1 rw
nonsense
"""

MountOf = Callable[[str], Mount | None]


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MountOf:
    (tmp_path / "mountinfo").write_bytes(MOUNTINFO)
    return replaced(monkeypatch, tmp_path / "mountinfo")


def replaced(monkeypatch: pytest.MonkeyPatch, mountinfo: Path) -> MountOf:
    """Let storages, and the caller, find mounts in this file."""
    found = partial(mount_of, mountinfo=str(mountinfo))
    monkeypatch.setattr(local_storage, "mount_of", found)
    return found


@pytest.mark.parametrize(
    ("path", "kind", "is_network"),
    [
        ("/home/me/x.zarr", "ext4", False),
        ("/data", "nfs4", True),
        ("/data/x.zarr", "nfs4", True),
        ("/database", "ext4", False),
        ("/data/with space/x.zarr", "xfs", False),
        ("/scratch/../scratch/x", "lustre", True),
        ("/ssh/x", "fuse.sshfs", True),
        ("/merged/x", "fuse.mergerfs", False),
        ("/twice/x", "ext4", False),
        ("/fuse/x", "fuse", True),
        ("/ntfs/x", "fuseblk", False),
    ],
)
def test_mounts(mounts: MountOf, path: str, kind: str, is_network: bool) -> None:
    mount = mounts(path)
    assert mount is not None
    assert (mount.kind, mount.is_network) == (kind, is_network)
    assert LocalStorage(path).capabilities.across_machines is not is_network
    assert LocalStorage(path, locks="cluster").capabilities.across_machines


def test_a_link_to_a_network_mount(mounts: MountOf, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/data/x")
    mount = mounts(str(tmp_path / "link/y"))
    assert mount == Mount("/data", "nfs4")


def test_a_system_that_does_not_tell_its_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [mount.point for mount in parse(MOUNTINFO)][3] == "/data/with space"
    assert replaced(monkeypatch, tmp_path / "absent")("/data") is None
    assert LocalStorage(tmp_path).capabilities.across_machines
