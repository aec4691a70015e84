"""A new version of a file, while it is being written and until it is put in the object's place in one step. Of files that are
copied into it, extents of data and holes are distinguished, so that a copy of a sparse file is as sparse.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from shardstore.errors import InvalidInput, StorageError
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation, IfAbsent
from shardstore.model.ranges import BytesLike, CopiedRange, NewBytes, Segment
from shardstore.storage.base import ConditionFailed
from shardstore.storage.local.files import (
    READ_FLAGS,
    VIEWS_A_CALL,
    Permissions,
    are_those_of,
    fsync_directory,
    give,
    is_object,
    permissions_at,
    pread,
    stat_file,
    temporary_path,
    unwritten,
)
from shardstore.storage.local.locks import NO_HARD_LINKS, close_locked, lock_whole, open_to_lock
from shardstore.storage.local.rules import PARENT_ATTEMPTS, WriteRules, kept_names
from shardstore.storage.local.versions import generation_of, shows_the_same, stamp, still_shows, version_of, wait_to_settle
from shardstore.storage.requests.writes import byte_view

# Only a file that takes this much less space than it is long is asked for its holes: other files have none worth two calls a range.
_WORTHWHILE_BYTES = 1 << 20
_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own
_END = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Extent:
    """``nbytes`` bytes from ``offset``: data, or a hole, which reads as zeros."""

    offset: int
    nbytes: int
    is_data: bool


class Extents:
    """The data and holes of an open file. Moves its file offset. A range that the file system does not describe counts as data."""

    def __init__(self, fd: int, status: os.stat_result) -> None:
        self.fd = fd
        blocks = getattr(status, "st_blocks", None)
        self._has_holes = hasattr(os, "SEEK_HOLE") and blocks is not None and status.st_size - blocks * _BLOCK_BYTES >= _WORTHWHILE_BYTES
        # What is known: a hole from the first to the second, data from there to the third.
        self._asked, self._data, self._end = 0, 0, 0

    def within(self, offset: int, nbytes: int) -> Iterator[Extent]:
        """Yield the pieces of a range, in order and without gaps. Bytes behind the end of the file count as data; a read shows the end."""
        end = offset + nbytes
        while offset < end:
            if self._has_holes and not self._asked <= offset < self._end:
                self._look(offset)
            if not self._has_holes:
                yield Extent(offset, end - offset, True)
                return
            is_data = offset >= self._data
            stop = min(end, self._end if is_data else self._data)
            yield Extent(offset, stop - offset, is_data)
            offset = stop

    def _look(self, offset: int) -> None:
        self._asked = offset
        try:
            self._data = os.lseek(self.fd, offset, os.SEEK_DATA)
            self._end = os.lseek(self.fd, self._data, os.SEEK_HOLE)
        except OSError as exc:
            if exc.errno == errno.ENXIO:  # no data from here to the end
                self._data, self._end = max(offset, os.fstat(self.fd).st_size), _END
            else:
                self._has_holes = False


_COPY_BUFFER_BYTES = 1 << 20
_COPY_ATTEMPTS = 3
_COPY_CALL_BYTES = 1 << 30  # the kernel stops a little below 2 GiB in any case

_CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)

_TARGET_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class TemporaryFile:
    """A new version of the object at ``path``, until it is published or discarded. One thread at a time uses it.

    It is locked while it is open, which shows sweepers that its writer lives. It has the permissions of the file at ``path``, or,
    if there is no file, those of ``like``, if given.
    """

    def __init__(self, path: str, key: str, rules: WriteRules, like: Permissions | None = None) -> None:
        self._path = path
        self._key = key
        self._rules = rules
        self._parent = os.path.dirname(path)
        self._copies_in_kernel = hasattr(os, "copy_file_range")
        self._has_holes = False
        self._temp = ""
        self._fd = -1
        replaced = stat_file(path)
        self._permissions = like if replaced is None else permissions_at(path, replaced)
        rules.sweep_once(self._parent)
        try:
            self._create()
        except BaseException:
            self.close()
            raise

    def _create(self) -> None:
        mode = 0o666 if self._permissions is None else self._permissions.mode_to_create
        for attempt in range(PARENT_ATTEMPTS):
            temp = temporary_path(self._path)
            try:
                self._fd = open_to_lock(temp, _CREATE_FLAGS, mode)
            except FileNotFoundError:
                # The first write here; or someone deleted the last object here and pruned the directory again.
                if attempt == PARENT_ATTEMPTS - 1:
                    raise
                self._rules.make_directory(self._parent)
                continue
            self._temp = temp
            lock_whole(self._fd, temp)
            status = os.fstat(self._fd)
            self._identity = status.st_dev, status.st_ino
            if status.st_nlink:
                if self._permissions is not None:
                    give(self._fd, self._permissions, status)
                return
            # A sweeper was faster with the lock, and took the file for one that was left behind.
            self._close_descriptor()
        raise StorageError(f"writing {self._key!r} failed: another process removes its temporary file at once")

    # -- contents ------------------------------------------------------------------------------------------------------

    def append(self, views: Iterable[memoryview]) -> None:
        waiting = [view for view in views if view]
        while len(waiting) > 1 and hasattr(os, "writev"):
            waiting = unwritten(waiting, os.writev(self._fd, waiting[:VIEWS_A_CALL]))
        for view in waiting:
            while view:
                view = view[os.write(self._fd, view) :]

    def append_made(self, make: Callable[[int], BytesLike]) -> None:
        """Append what ``make`` writes to the descriptor that it is given, and what it returns behind that."""
        self.append([byte_view(make(self._fd))])

    def copy(self, source: Extents, offset: int, nbytes: int) -> None:
        """Append bytes of an open file, holes as holes; the kernel copies them if it can. Raises ``EOFError`` if the file ends before."""
        for extent in source.within(offset, nbytes):
            if extent.is_data:
                self.copy_data(source.fd, extent.offset, extent.nbytes)
            else:
                os.lseek(self._fd, extent.nbytes, os.SEEK_CUR)
                self._has_holes = True

    def copy_data(self, source: int, offset: int, nbytes: int) -> None:
        """Append bytes of an open file; the kernel copies them if it can. Raises ``EOFError`` if the file ends before."""
        while nbytes and self._copies_in_kernel:
            try:
                done = os.copy_file_range(source, self._fd, min(nbytes, _COPY_CALL_BYTES), offset)
            except OSError as exc:
                if exc.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
                    raise
                self._copies_in_kernel = False
                break
            if not done:
                raise self._ended(offset)
            offset, nbytes = offset + done, nbytes - done
        while nbytes:
            data = pread(source, min(nbytes, _COPY_BUFFER_BYTES), offset)
            if not data:
                raise self._ended(offset)
            self.append([memoryview(data)])
            offset, nbytes = offset + len(data), nbytes - len(data)

    def append_file(self, path: str, nbytes: int, version: int) -> bool:
        """Append all of a file of ``nbytes``; the kernel copies it if it can.

        Returns whether it was the version with this ``digest`` all the time; if not, the appended bytes are of no use.
        """
        try:
            fd = os.open(path, READ_FLAGS)
        except OSError:
            return False
        try:
            self.copy_data(fd, 0, nbytes)
            # It was named before: what it is called now, it has been since.
            return generation_of(os.fstat(fd), fd).digest == version != 0
        except EOFError:
            return False
        except OSError as exc:
            if exc.errno in _TARGET_IS_FULL:
                raise
            return False  # reading it by itself shows whose fault it was
        finally:
            os.close(fd)

    def _ended(self, offset: int) -> EOFError:
        return EOFError(f"{self._key!r} ended at byte {offset} while it was being copied")

    # -- publishing ----------------------------------------------------------------------------------------------------

    def publish(self, condition: Condition) -> Generation:
        """Put this file in the object's place. Raises ``ConditionFailed``, and leaves the old object, if ``condition`` does not hold."""
        if self._has_holes:  # the last of which may be at its end
            os.ftruncate(self._fd, os.lseek(self._fd, 0, os.SEEK_CUR))
        stamp(self._fd if os.utime in os.supports_fd else self._temp)
        if self._permissions is not None and not self._permissions.owner_writes:
            give(self._fd, self._permissions, os.fstat(self._fd), is_done=True)
        if self._rules.fsync:
            os.fsync(self._fd)
        if self._rules.is_network:
            # Only then has the server all of it; other machines may open the name once it is there.
            self._close_descriptor()
        # Unconditional writes take the lock as well: one of them between another writer's check and its replacing would be lost,
        # although it came after that check.
        with self._rules.locked(self._path):
            replaced = self._rules.check(self._path, self._key, condition)
            is_kept = self._rules.fsync and self._is_kept(replaced)
            if isinstance(condition, IfAbsent):
                self._link()
            else:
                if replaced is not None:
                    self._take_permissions(replaced)
                self._replace()
            self._temp = ""
            if self._rules.fsync:
                self._sync_names(is_kept)
            return self._generation()

    def _take_permissions(self, replaced: os.stat_result) -> None:
        """Take the permissions of the file that is replaced, if it is not the file that was found first, or has changed."""
        if are_those_of(self._permissions, replaced):
            return
        permissions = permissions_at(self._path, replaced)
        if permissions == self._permissions:
            return
        file = self._temp if self._fd < 0 else self._fd
        give(file, permissions, os.stat(file), is_done=True)
        if self._rules.fsync and self._fd >= 0:
            os.fsync(self._fd)

    def _link(self) -> None:
        try:
            os.link(self._temp, self._path)  # fails if a writer that takes no locks has stored one before
        except FileExistsError as exc:
            if not self._arrived():
                raise ConditionFailed(f"{self._key!r} exists") from exc
        except OSError as exc:
            if exc.errno not in NO_HARD_LINKS:
                raise
            self._replace()  # it was absent, and who writes through shardstore waits for the lock
            return
        with suppress(OSError):  # it is stored; another name that it keeps is swept up
            os.unlink(self._temp)

    def _replace(self) -> None:
        try:
            os.replace(self._temp, self._path)
        except FileNotFoundError:
            if not self._arrived():
                raise

    def _arrived(self) -> bool:
        """Return whether this file has its name after all: a network file system may do a request twice, and report the second outcome."""
        status = self._rules.status(self._path)
        return status is not None and (status.st_dev, status.st_ino) == self._identity

    def _is_kept(self, replaced: os.stat_result | None) -> bool:
        """Return whether the directory's name, and those above, survive a loss of power; called before ``replaced`` is, which shows it."""
        if replaced is not None and kept_names.keeps_object(self._path, replaced):
            return True
        return kept_names.keeps_directory(self._parent, self._rules.status)

    def _sync_names(self, is_kept: bool) -> None:
        fsync_directory(self._parent)
        if not is_kept:
            kept_names.flush_above(self._parent, self._rules.status)

    def _generation(self) -> Generation:
        """Return the version that was stored; looked up last, because a new name changes the ctime, which belongs to the version."""
        status = os.fstat(self._fd) if self._fd >= 0 else self._rules.status(self._path)
        if status is None:
            raise StorageError(f"{self._key!r} was stored, and removed at once by a program that takes no locks")
        # Replaced at once, by a program that takes no locks: matches nothing any more.
        if self._fd < 0 and (status.st_dev, status.st_ino) != self._identity:
            return Generation(f"replaced-{secrets.token_hex(8)}")
        if self._rules.fsync:
            kept_names.remember(self._path, status)
        return generation_of(status, self._path if self._fd < 0 else self._fd)

    def _close_descriptor(self) -> None:
        fd, self._fd = self._fd, -1
        close_locked(fd)

    def close(self) -> None:
        """Release the file, and remove it if it was not published. Never fails: a file that cannot be removed is swept up later."""
        temp, self._temp = self._temp, ""
        try:
            if temp:
                with suppress(OSError):
                    os.unlink(temp)
        finally:
            if self._fd >= 0:
                with suppress(OSError):  # what was published was complete before
                    self._close_descriptor()


# -- new versions that are made of old ones -----------------------------------------------------------------------------


def compose_file(
    path: str, key: str, source: Generation, segments: Sequence[Segment], condition: Condition, rules: WriteRules, *, has_versions: bool
) -> Generation:
    """Carry out ``Storage.compose`` by a new file. Without ``has_versions`` an ``Unsettled`` version counts as the source too.

    Raises:
        ConditionFailed: the file is not the version ``source`` all the time, or the condition does not hold.
    """
    try:
        old = os.open(path, READ_FLAGS)
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise ConditionFailed(f"{key!r}, to copy from, is gone") from exc
    try:
        status = os.fstat(old)
        version = version_of(old, status)
        # Where versions cannot be distinguished, one writer an object is the rule.
        if version.generation != source and (has_versions or not shows_the_same(source, version.generation)):
            wait_to_settle(source, status)
            raise ConditionFailed(f"{key!r} is not the version to copy from")
        extents = Extents(old, status)
        with closing(TemporaryFile(path, key, rules)) as file:
            for segment in segments:
                if not isinstance(segment, CopiedRange):
                    file.append([byte_view(segment.data if isinstance(segment, NewBytes) else bytes(segment.nbytes))])
                    continue
                end = segment.offset + segment.nbytes
                if end > version.nbytes:
                    raise InvalidInput(f"bytes [{segment.offset}, {end}) of {key!r} cannot be copied: it has {version.nbytes}")
                try:
                    file.copy(extents, segment.offset, segment.nbytes)
                except EOFError as exc:
                    raise ConditionFailed(str(exc)) from exc
            if not still_shows(old, version, status):
                raise ConditionFailed(f"{key!r} was changed in place while it was being copied")
            return file.publish(condition)
    except OSError as exc:
        if exc.errno == errno.ESTALE:
            raise ConditionFailed(f"{key!r} was replaced on another machine while it was being copied") from exc
        raise
    finally:
        os.close(old)


def copy_file(old: str, new: str, source: str, target: str, rules: WriteRules) -> Generation | None:
    """Copy the object at the path ``old`` to ``new``; ``None`` if there is none. ``source`` and ``target`` are their keys.

    Writers of this package replace files, so an open file keeps its bytes; only a writer in place makes this try again.
    """
    for _ in range(_COPY_ATTEMPTS):
        if rules.status(old) is None:
            return None
        try:
            fd = os.open(old, READ_FLAGS)
        except FileNotFoundError:
            return None
        try:
            status = os.fstat(fd)
            if not is_object(old, status, source):
                return None
            version = version_of(fd, status)
            with closing(TemporaryFile(new, target, rules, permissions_at(old, status))) as file:
                try:
                    file.copy(Extents(fd, status), 0, version.nbytes)
                except EOFError:
                    continue
                if still_shows(fd, version, status):
                    return file.publish(UNCONDITIONAL)
        except OSError as exc:
            if exc.errno != errno.ESTALE:  # replaced on another machine
                raise
        finally:
            os.close(fd)
    raise StorageError(f"{source!r} cannot be copied: it is being written in place, or replaced again and again; copy it when that is done")
