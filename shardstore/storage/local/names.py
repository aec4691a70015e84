"""Names of the hidden files next to objects: locks, and new versions that are being written."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import socket

LOCK_SUFFIX = ".shardstore-lock"
TEMP_SUFFIX = ".shardstore-tmp"

# File names have at most 255 bytes on nearly every system; longer stems than this are named by their hash.
_MAX_STEM_BYTES = 255 - len("." + LOCK_SUFFIX)

# What NFS and FUSE call a file that was removed while this machine has it open.
_REMOVED_WHILE_OPEN = re.compile(r"\.(nfs|fuse_hidden)[0-9a-f]{8,}")


def is_reserved(name: str) -> bool:
    """Return whether ``name`` is that of a lock file, a temporary file or a removed file that is still open: never an object."""
    return name.startswith(".") and (name.endswith((LOCK_SUFFIX, TEMP_SUFFIX)) or _REMOVED_WHILE_OPEN.fullmatch(name) is not None)


def lock_path(path: str) -> str:
    """Return the name of the lock file of the object at ``path``."""
    parent, name = os.path.split(path)
    stem = name
    if len(os.fsencode(name)) > _MAX_STEM_BYTES:
        stem = hashlib.sha256(os.fsencode(name)).hexdigest()
    return os.path.join(parent, f".{stem}{LOCK_SUFFIX}")


def host_token() -> str:
    """Return the token that stands for this machine in the names of temporary files."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]


def temporary_path(path: str) -> str:
    """Return a new name for a temporary file of ``path``: ``.{start of name}.{host}-{pid}.{random}.shardstore-tmp``, never too long."""
    parent, name = os.path.split(path)
    stem = os.fsencode(name)[:64].decode("utf-8", "ignore")
    return os.path.join(parent, f".{stem}.{host_token()}-{os.getpid()}.{secrets.token_hex(6)}{TEMP_SUFFIX}")


def writer_of(name: str) -> tuple[str, int] | None:
    """Return the host and process in the name of a temporary file; ``None`` if ``temporary_path`` did not make it."""
    host, separator, pid = name.removesuffix(TEMP_SUFFIX).rpartition(".")[0].rpartition(".")[2].partition("-")
    return (host, int(pid)) if separator and pid.isdecimal() else None
