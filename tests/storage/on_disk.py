"""What the tests of local files share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shardstore.storage.local_mounts import Mount

NETWORK = Mount("/shared", "nfs4")


def files_below(root: Path) -> list[str]:
    """Everything below a directory, hidden files too."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Another process of Python, whose output can be read."""
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)


def mount_everything(monkeypatch: pytest.MonkeyPatch, mount: Mount | None) -> None:
    """Let every root lie on ``mount``."""
    monkeypatch.setattr("shardstore.storage.local.mount_of", lambda path: mount)
    monkeypatch.setattr("shardstore.storage.local_locks.mount_of", lambda path: mount)
