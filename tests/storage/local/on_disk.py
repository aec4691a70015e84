"""What the tests of local files share."""

from __future__ import annotations

import errno
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from shardstore.storage.local.mounts import Mount

NETWORK = Mount("/shared", "nfs4")


def files_below(root: Path) -> list[str]:
    """Everything below a directory, hidden files too."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Another process of Python, whose output can be read."""
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)


def mount_everything(monkeypatch: pytest.MonkeyPatch, mount: Mount | None) -> None:
    """Let every root lie on ``mount``."""
    monkeypatch.setattr("shardstore.storage.local.storage.mount_of", lambda path: mount)
    monkeypatch.setattr("shardstore.storage.local.locks.mount_of", lambda path: mount)


def set_access_list(path: Path, user: int, rights: int, owner: int = 7, group: int = 0, others: int = 0) -> None:
    """Give a file a POSIX access control list that names one user; skips where there are none.

    Rights: 4 to read, 2 to write, 1 to execute.
    """
    if sys.platform != "linux":
        pytest.skip("only on Linux are access control lists attributes")
    # acl(5), as linux/posix_acl_xattr.h encodes it: version; entries of tag, rights and id.
    nobody = 2**32 - 1
    entries = ((0x01, owner, nobody), (0x02, rights, user), (0x04, group, nobody), (0x10, rights, nobody), (0x20, others, nobody))
    data = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", data)
    except OSError as exc:
        if exc.errno in (errno.EOPNOTSUPP, errno.EINVAL):
            pytest.skip("the file system has no access control lists")
        raise
