"""Tails of files: what writers left that died while they were appending; see ``append_record``.

Readers of this package do not see them. Other readers find no valid index at the end of such a file, until the next append, rewrite or
sweep.
"""

from __future__ import annotations

import os
import stat as stat_modes
import time
from collections.abc import Iterator
from contextlib import suppress

from shardstore.storage.leftovers import Leftover
from shardstore.storage.local.append_record import RECORD_NBYTES, cut_tail, set_done
from shardstore.storage.local.files import READ_FLAGS, UPDATE_FLAGS
from shardstore.storage.local.names import is_reserved
from shardstore.storage.local.rules import WriteRules
from shardstore.storage.local.versions import stamp, version_before


def find_tails(root: str, prefix: str) -> list[Leftover]:
    """Return the files below ``prefix`` (``""``, or ending with ``/``) of ``root`` that have a tail, or are being appended to just now."""
    found: list[Leftover] = []
    for path in _files(os.path.join(root, prefix)):
        with suppress(OSError):  # removed since then, or not ours to read
            fd = os.open(path, READ_FLAGS)
            try:
                status = os.fstat(fd)
                before = version_before(fd, status) if stat_modes.S_ISREG(status.st_mode) else None
            finally:
                os.close(fd)
            if before is not None and status.st_size > before.nbytes:
                key = os.path.relpath(path, root).replace(os.sep, "/")
                nbytes = status.st_size - before.nbytes
                found.append(
                    Leftover(
                        key,
                        "tail",
                        f"{nbytes} bytes behind the shard, of a writer that died while appending: other programs cannot read it",
                    )
                )
    return found


def cut_tails(root: str, rules: WriteRules, older_than_seconds: float, *, only_count: bool = False) -> int:
    """Cut off tails that are at least that old, and return the number of files. Waits for the writers of files that have a tail."""
    cut = 0
    for left in find_tails(root, ""):
        path = os.path.join(root, left.key)
        with suppress(OSError):  # removed since then, or not ours to write
            fd = os.open(path, UPDATE_FLAGS)
            try:
                with rules.locked(path):
                    status = os.fstat(fd)
                    if status.st_uid != os.geteuid() != 0:  # its times cannot be set; a rewrite leaves the tail out
                        continue
                    before = version_before(fd, status)
                    if before is None or time.time() - status.st_mtime < older_than_seconds:
                        continue
                    cut += 1
                    if not only_count:
                        cut_tail(fd, before.nbytes, fsync=rules.fsync)
                        set_done(fd)
                        stamp(fd)
                        if rules.fsync:
                            os.fsync(fd)
            finally:
                os.close(fd)
    return cut


def _files(top: str) -> Iterator[str]:
    for directory, _, names in os.walk(top):
        for name in sorted(names):
            path = os.path.join(directory, name)
            with suppress(OSError):  # removed since then
                if not is_reserved(name) and os.path.getsize(path) >= RECORD_NBYTES:
                    yield path
