"""Append to a local file in place: the old bytes are neither read nor written. See ``append_record``.

This is not possible for every file: one with several names would change under all of them, and the times of a file that another user
owns cannot be set. Such files are copied, which is always right.

Writers that die while they append leave tails, which readers of this package do not see. Other readers find no valid index at the end of
such a file, until the next append, rewrite or sweep.
"""

from __future__ import annotations

import os
import stat as stat_modes
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from shardstore.model.generation import Condition, Generation, IfAbsent, IfGeneration
from shardstore.model.ranges import APPEND_PADDING_NBYTES, CopiedRange, NewBytes, Padding, Segment
from shardstore.storage.abilities import Leftover
from shardstore.storage.base import ConditionFailed
from shardstore.storage.local.append_record import HAS_ATTRIBUTES, RECORD_NBYTES, cut_tail, encode_record, set_done, set_under_way
from shardstore.storage.local.files import READ_FLAGS, UPDATE_FLAGS, VIEWS_A_CALL, is_reserved, unwritten
from shardstore.storage.local.rules import WriteRules, kept_names
from shardstore.storage.local.versions import FileVersion, generation_of, stamp, version_before, version_of, wait_to_settle
from shardstore.storage.requests.writes import byte_view

APPENDS_IN_PLACE = HAS_ATTRIBUTES and hasattr(os, "pwritev")


def append_to(
    path: str, key: str, source: Generation, segments: Sequence[Segment], condition: Condition, rules: WriteRules
) -> Generation | None:
    """Carry out ``Storage.compose`` by appending to the file at ``path``; return ``None``, with nothing done, if that is not possible.

    Raises:
        ConditionFailed: the file is not the version ``source``, or the condition does not hold. Nothing was done.
    """
    rules.sweep_once(os.path.dirname(path))
    try:
        fd = os.open(path, UPDATE_FLAGS)
    except OSError:
        return None  # copying reports why, or can do it nevertheless
    try:
        with rules.locked(path):
            status, named = os.fstat(fd), rules.status(path)
            if named is None or not os.path.samestat(named, status):
                raise ConditionFailed(f"{key!r} was replaced, or removed, before it could be appended to")
            if not _may_grow(status):
                return None
            version = version_of(fd, status)
            if version.generation != source:
                wait_to_settle(source, status)
                raise ConditionFailed(f"{key!r} is not the version to append to")
            if isinstance(condition, IfAbsent) or (isinstance(condition, IfGeneration) and condition.generation != source):
                raise ConditionFailed(f"{key!r} is not the version that was asked for")
            views = _appended(segments, version)
            if views is None:
                return None
            if rules.fsync:  # the one who stored it may have died before that
                kept_names.flush_object(path, status, rules.status)
            if status.st_size != version.nbytes:  # another writer died here
                cut_tail(fd, version.nbytes, fsync=rules.fsync)
                status = os.fstat(fd)
            if not _append(fd, status, views, fsync=rules.fsync):
                return None
            status = stamp(fd)
            if rules.fsync:
                kept_names.remember(path, status)
            return generation_of(status, fd)
    except FileNotFoundError as exc:
        raise ConditionFailed(f"{key!r}, to append to, is gone") from exc
    finally:
        with suppress(OSError):  # what was acknowledged was complete before
            os.close(fd)


def _may_grow(status: os.stat_result) -> bool:
    """Return whether a file may be appended to: a regular file of this user's that has no other name."""
    return stat_modes.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == os.geteuid()


def _appended(segments: Sequence[Segment], version: FileVersion) -> list[memoryview] | None:
    """Return the new bytes, without the padding before them, if ``segments`` only append to ``version``; ``None`` if they do more."""
    if len(segments) < 3 or segments[:2] != [CopiedRange(0, version.nbytes), Padding(APPEND_PADDING_NBYTES)]:
        return None
    rest = segments[2:]
    if any(isinstance(segment, CopiedRange) for segment in rest):
        return None
    return [byte_view(s.data if isinstance(s, NewBytes) else bytes(s.nbytes)) for s in rest if not isinstance(s, CopiedRange)]


def _append(fd: int, old: os.stat_result, views: Sequence[memoryview], *, fsync: bool) -> bool:
    """Put ``views`` behind the ``old.st_size`` bytes of the file, behind a record; durable on return with ``fsync``.

    Returns ``False``, with nothing done, if the file system has no extended attributes. An error before the attribute marks the
    append as complete leaves the old version. An error during that step, or after it, leaves either version.
    """
    record = encode_record(old)
    try:
        set_under_way(fd, record)
    except OSError:
        return False
    try:
        if fsync:
            os.fsync(fd)  # the attribute: before the file can be longer
        _write(fd, [memoryview(record), *views], old.st_size)
        if fsync:
            os.fdatasync(fd)
    except BaseException:
        with suppress(OSError):  # what stays of it is never read, and the next writer cuts it off
            cut_tail(fd, old.st_size, fsync=fsync)
            set_done(fd)
        raise
    set_done(fd)
    if fsync:
        os.fsync(fd)
    return True


def _write(fd: int, views: Sequence[memoryview], offset: int) -> None:
    """Write ``views`` one behind the other, from front to back."""
    for waiting in _calls([view for view in views if view]):
        while waiting:
            done = os.pwritev(fd, waiting, offset)
            offset += done
            waiting = unwritten(waiting, done)


def _calls(views: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """Yield lists of as many views as one call takes. Only the last ends where a view does: a chunk that is a shard has its index there."""
    held: list[memoryview] = []
    for start in range(0, len(views), VIEWS_A_CALL - 1):
        some = [*held, *views[start : start + VIEWS_A_CALL - 1]]
        held = []
        if start + VIEWS_A_CALL - 1 < len(views):
            some[-1], held = some[-1][:-1], [some[-1][-1:]]
        yield [view for view in some if view]


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
