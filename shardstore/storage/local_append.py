"""Appending to a local file in place: the bytes that were there are neither read nor written. See ``local_append_record``.

Not every file can be: one with several names would change under all of them, and of one that somebody else owns the times cannot be
set. What cannot is copied, which is always right.
"""

from __future__ import annotations

import os
import stat as stat_modes
from collections.abc import Sequence
from contextlib import suppress

from shardstore.model.generation import Condition, Generation, IfAbsent, IfGeneration
from shardstore.storage.base import APPEND_ROOM_NBYTES, APPEND_TAIL_NBYTES, ConditionFailed, Copy, New, Segment
from shardstore.storage.body import byte_view
from shardstore.storage.local_append_record import RECORD_NBYTES, FileVersion, encode_record, last_record, version_before, version_of
from shardstore.storage.local_files import READ_FLAGS, generation_of, stamp_mtime
from shardstore.storage.local_rules import WriteRules

APPENDS_IN_PLACE = hasattr(os, "pwritev")  # not on Windows

_APPEND_FLAGS = READ_FLAGS & ~os.O_RDONLY | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)
_VIEWS_A_CALL = 1024  # as many as Linux and macOS take


def append_to(
    path: str, key: str, source: Generation, segments: Sequence[Segment], condition: Condition, rules: WriteRules
) -> Generation | None:
    """Carry out ``Storage.compose`` by appending to the file at ``path``; ``None``, and nothing was done, where that cannot be.

    Raises:
        ConditionFailed: the file is not the version ``source``, or the condition does not hold. Nothing was done.
    """
    try:
        fd = os.open(path, _APPEND_FLAGS)
    except OSError:
        return None  # copying tells why, or can do it nevertheless
    try:
        with rules.locked(path):
            status, named = os.fstat(fd), rules.status(path)
            if named is None or (named.st_dev, named.st_ino) != (status.st_dev, status.st_ino):
                raise ConditionFailed(f"{key!r} was replaced, or removed, before it could be appended to")
            if not stat_modes.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid != os.geteuid():
                return None
            version = version_of(fd, status)
            if version.generation != source:
                raise ConditionFailed(f"{key!r} is not the version to append to")
            if isinstance(condition, IfAbsent) or (isinstance(condition, IfGeneration) and condition.generation != source):
                raise ConditionFailed(f"{key!r} is not the version that was asked for")
            views = _appended(segments, version)
            if views is None:
                return None
            if status.st_size != version.nbytes:  # another writer died here
                os.ftruncate(fd, version.nbytes)
                status = os.fstat(fd)
            try:
                _append(fd, status, views, fsync=rules.fsync)
            except BaseException:
                with suppress(OSError):  # it stays: readers see the old version, and the next writer cuts it off
                    if version_before(fd, os.fstat(fd)) is not None:
                        os.ftruncate(fd, status.st_size)
                raise
            stamp_mtime(fd)
            return generation_of(os.fstat(fd))
    except FileNotFoundError as exc:
        raise ConditionFailed(f"{key!r}, to append to, is gone") from exc
    finally:
        with suppress(OSError):  # what was acknowledged was complete before
            os.close(fd)


def _appended(segments: Sequence[Segment], version: FileVersion) -> list[memoryview] | None:
    """The new bytes, without the room before them, where ``segments`` only append to ``version``; ``None`` where they do more."""
    if len(segments) < 3 or segments[0] != Copy(0, version.nbytes):
        return None
    first, *rest = segments[1:]
    if isinstance(first, Copy | New) or first.nbytes < APPEND_ROOM_NBYTES or any(isinstance(segment, Copy) for segment in rest):
        return None
    views = [memoryview(bytes(first.nbytes - APPEND_ROOM_NBYTES))]
    views += [byte_view(s.data if isinstance(s, New) else bytes(s.nbytes)) for s in rest if not isinstance(s, Copy)]
    return views if sum(map(len, views)) >= APPEND_TAIL_NBYTES else None


def _append(fd: int, old: os.stat_result, views: Sequence[memoryview], *, fsync: bool) -> None:
    """Put ``views`` behind the ``old.st_size`` bytes of the file, behind a record; durable on return with ``fsync``.

    Nothing is behind them yet. An error before the last write leaves the old version, with a tail; an error of it, or behind it, either.
    """
    start = old.st_size + RECORD_NBYTES
    end = start + sum(map(len, views))
    flip = last_record(end)
    assert flip >= start
    before, last, behind = _split(views, flip - start, RECORD_NBYTES)
    _write(fd, [memoryview(encode_record(flip, old)), *behind], flip)
    _write(fd, [memoryview(encode_record(old.st_size, old)), *before], old.st_size)
    if fsync:
        _flush(fd)
    _write(fd, [memoryview(b"".join(last))], flip)
    if fsync:
        _flush(fd)


def _flush(fd: int) -> None:
    """Make the contents and the length of a file survive the loss of power."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:  # macOS
        os.fsync(fd)


def _split(views: Sequence[memoryview], first: int, second: int) -> tuple[list[memoryview], list[memoryview], list[memoryview]]:
    """The first bytes of ``views``, the next, and those behind them."""
    parts: tuple[list[memoryview], list[memoryview], list[memoryview]] = [], [], []
    left = [first, second]
    at = 0
    for view in views:
        while at < 2 and len(view) >= left[at]:
            parts[at].append(view[: left[at]])
            view = view[left[at] :]
            at += 1
        if view:
            parts[at].append(view)
            if at < 2:
                left[at] -= len(view)
    return parts


def _write(fd: int, views: Sequence[memoryview], offset: int) -> None:
    waiting = [view for view in views if view]
    while waiting:
        done = os.pwritev(fd, waiting[:_VIEWS_A_CALL], offset) if len(waiting) > 1 else os.pwrite(fd, waiting[0], offset)
        offset += done
        taken = 0
        while taken < len(waiting) and done >= len(waiting[taken]):
            done -= len(waiting[taken])
            taken += 1
        del waiting[:taken]
        if done:
            waiting[0] = waiting[0][done:]
