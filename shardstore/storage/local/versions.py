"""Names for versions of a local file, whatever times its file system keeps.

::

    device-inode-size-mtime-ctime              as status(2) gives them, in hexadecimal; times in nanoseconds
    device-inode-size-mtime-ctime-mark         the same, where mtime is a whole millisecond and ctime a whole microsecond
    unsettled-device-inode-size-mtime-ctime-…  the same, without a mark, of a file of the last two seconds: equal to no other name

An inode number is used again as soon as a file is gone, and the kernel's clock for timestamps ticks every few milliseconds: two
versions of equal length, written one after the other, can agree in everything that status(2) gives. So a writer of a version draws the
nanoseconds of its modification time at random, below a millisecond.

Some file systems do not keep them: ext4 with inodes of 128 bytes keeps whole seconds, FAT every other second. There the writer marks
the file: 64 random bits in an extended attribute, which are a part of the name from then on. Whether a mark is looked for depends on
the file's times alone, so all processes give one name to one version, and reads on other file systems need no other system call.

A file without a mark was written by another program, or lies on a file system without extended attributes. Its times identify a version
only after the clock has moved on, because then no later version can get the same times. Until then each look gives the file a new name; a
reader that comes back with such a name has to wait, and finds the file changed. So no name ever stands for other bytes, whatever a file
system keeps or forgets, and no probe is needed for that."""

from __future__ import annotations

import errno
import os
import secrets
import sys
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import sleep, time_ns

from shardstore.model.generation import Generation
from shardstore.storage.local.append_record import APPEND_ATTRIBUTE, RECORD_NBYTES, AppendRecord, decode_record, may_be_record
from shardstore.storage.local.files import READ_FLAGS, pread

_TOKEN = "%x-%x-%x-%x-%x"  # takes half the time of an f-string
_MARKED_TOKEN = _TOKEN + "-%x"
_UNSETTLED = "unsettled-"

Numbers = tuple[int, ...]
"""Device, inode, size, mtime and ctime of a file, and the rest of what its name is made of."""

_STATUS_NUMBERS = 5
_MTIME = 3  # the places of times among them
_CTIME = 4

# NTFS and SMB keep times in units of 100 ns, which leaves 10,000 of them in the millisecond that is drawn from.
_KEPT_NS = 100
_MICROSECOND_NS = 1000
_MILLISECOND_NS = 1_000_000

# FAT keeps every other second, the one before or, on Windows, the one after; the kernel's clock lags behind by one tick, 10 ms at most.
_SETTLED_NS = 2_050_000_000

_MARK = "user.shardstore.version"
_MARK_NBYTES = 8
_NOT_SUPPORTED = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_NO_MARK = (errno.ENODATA, errno.EPERM, errno.EACCES, errno.ENOENT, errno.ENOTDIR, *_NOT_SUPPORTED)
_NOT_MARKED = (errno.EEXIST, errno.EPERM, errno.EACCES, *_NOT_SUPPORTED)

# As many as a process can write within the millisecond that is drawn from.
_drawn: deque[int] = deque(maxlen=64)


class FileGeneration(Generation):
    """The version of a file: numbers that cannot all stay the same when the bytes change.

    The token is made when it is needed: most files of a large listing never need theirs.
    """

    __slots__ = ("numbers",)
    numbers: Numbers

    def __init__(self, numbers: Numbers) -> None:
        object.__setattr__(self, "numbers", numbers)

    @property
    def token(self) -> str:
        return (_TOKEN if len(self.numbers) == _STATUS_NUMBERS else _MARKED_TOKEN) % self.numbers

    @property
    def modified(self) -> float:
        return self.numbers[_MTIME] / 10**9

    @property
    def digest(self) -> int:
        # Of integers, hashes are the same in every process. The upper half is of all numbers but ctime.
        return self._digest_without_ctime << 32 | hash(self.numbers) & (2**32 - 1) or 1

    @property
    def _digest_without_ctime(self) -> int:
        return hash((*self.numbers[:_CTIME], *self.numbers[_CTIME + 1 :])) & (2**32 - 1)

    def may_be(self, digest: int) -> bool:
        return digest >> 32 == self._digest_without_ctime

    def __reduce__(self) -> tuple[type[FileGeneration], tuple[Numbers]]:
        return type(self), (self.numbers,)


class Unsettled(FileGeneration):
    """The state of a file at one look, while another version could still get the same times; equal to no other."""

    __slots__ = ()

    @property
    def token(self) -> str:
        return _UNSETTLED + _MARKED_TOKEN % self.numbers

    @property
    def digest(self) -> int:
        return 0


def same_bytes(before: os.stat_result, after: os.stat_result) -> bool:
    """Return whether an open file was left alone. Giving it another name, or taking one, changes nothing but its ctime."""
    if before.st_size != after.st_size or before.st_mtime_ns != after.st_mtime_ns:
        return False
    return before.st_ctime_ns == after.st_ctime_ns or before.st_nlink != after.st_nlink


def may_be_same_bytes(token: str, other: str) -> bool:
    """Return whether two tokens are equal, or are those of local files that differ only in ctime: then perhaps only a name, mode or owner
    has changed in between.
    """
    if token == other:
        return True
    one, two = (text.removeprefix(_UNSETTLED).split("-") for text in (token, other))
    if min(len(one), len(two)) < _STATUS_NUMBERS or one[:_CTIME] != two[:_CTIME]:
        return False
    is_settled = not (token.startswith(_UNSETTLED) or other.startswith(_UNSETTLED))
    return not is_settled or one[_STATUS_NUMBERS:] == two[_STATUS_NUMBERS:]


def _numbers_of(status: os.stat_result) -> Numbers:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def generation_of(status: os.stat_result, file: int | str) -> Generation:
    """Return the version of a file with this status; the file is open, or given by its path."""
    return generation_of_numbers(_numbers_of(status), file)


def generation_of_numbers(numbers: Numbers, file: int | str) -> Generation:
    """Return the version as ``generation_of`` does, from the five numbers that are taken from a status."""
    # Of files that were just written on a file system that keeps nanoseconds, where both are one time, this is one in 10^6.
    if numbers[3] % _MILLISECOND_NS or numbers[4] % _MICROSECOND_NS:
        return FileGeneration(numbers)
    mark = _mark_of(file)
    if mark is not None:
        return FileGeneration((*numbers, mark))
    if _left_ns(numbers):
        return Unsettled((*numbers, secrets.randbits(64)))
    return FileGeneration(numbers)


def listed_generation(status: os.stat_result, file: int | str) -> Generation | None:
    """Return the version as ``generation_of`` does; ``None`` if it is ``Unsettled``, since no later look can match that."""
    generation = generation_of(status, file)
    return None if isinstance(generation, Unsettled) else generation


def _left_ns(numbers: Numbers) -> int:
    """Return how many nanoseconds another version can still get these times; 0 if none can. Some systems round times up, some down."""
    now = time_ns()
    ages = (now - numbers[3], now - numbers[4])
    return max((_SETTLED_NS - age for age in ages if -_SETTLED_NS < age < _SETTLED_NS), default=0)


def is_unsettled(token: str) -> bool:
    """Return whether a token is that of an ``Unsettled`` version: a read of that version waits until the file has a name that lasts."""
    return token.startswith(_UNSETTLED)


def _is_unsettled_at(asked: Generation, numbers: Numbers) -> bool:
    """Return whether ``asked`` is an ``Unsettled`` version with these five numbers; by its token alone, which may have been pickled."""
    return asked.token.startswith(f"{_UNSETTLED}{_TOKEN % numbers}-")


def modified_ns(token: str) -> int | None:
    """Return the modification time, in nanoseconds since the epoch, of the version of a file with this token; ``None`` if it is none."""
    numbers = token.removeprefix(_UNSETTLED).split("-")
    return int(numbers[_MTIME], 16) if len(numbers) >= _STATUS_NUMBERS else None


def wait_to_settle(asked: Generation, status: os.stat_result | None) -> None:
    """Block the thread, four seconds at most, if ``asked`` is an ``Unsettled`` version and the file's status is still the same: after that
    the file has a name that lasts.
    """
    if status is not None and _is_unsettled_at(asked, _numbers_of(status)):
        sleep(_left_ns(_numbers_of(status)) / 1e9)


def shows_the_same(asked: Generation, found: Generation) -> bool:
    """Return whether two versions differ only in that one is ``Unsettled``; for callers who know that no other process writes there."""
    if asked == found:
        return True
    if not isinstance(found, FileGeneration):
        return False
    is_marked = len(found.numbers) > _STATUS_NUMBERS and not isinstance(found, Unsettled)
    return not is_marked and _is_unsettled_at(asked, found.numbers[:_STATUS_NUMBERS])


# -- versions of open files --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileVersion:
    """The version that an open file shows: its first ``nbytes`` bytes."""

    nbytes: int
    generation: Generation


def _under_way(fd: int) -> bytes | None:
    """Return the record of the append that the file's attribute says is under way, if it has the attribute."""
    if sys.platform == "linux":
        try:
            return os.getxattr(fd, APPEND_ATTRIBUTE)
        except OSError as exc:
            if exc.errno not in (errno.ENODATA, errno.EPERM, *_NOT_SUPPORTED):
                raise
    return None


def _began_with(record: AppendRecord, fd: int, status: os.stat_result) -> FileVersion:
    """Return the version that the append to this file began with."""
    numbers = (status.st_dev, status.st_ino, record.nbytes, record.mtime_ns, record.ctime_ns)
    return FileVersion(record.nbytes, generation_of_numbers(numbers, fd))


def version_before(fd: int, status: os.stat_result) -> FileVersion | None:
    """Return the old version if an append is under way, or was left unfinished; otherwise ``None``."""
    attribute = _under_way(fd)
    record = None if attribute is None else decode_record(attribute)
    if attribute is None or record is None or status.st_size < record.nbytes:
        return None
    if status.st_size == record.nbytes:  # nothing is written yet: then the attribute is all that has changed
        return _began_with(record, fd, status) if status.st_mtime_ns == record.mtime_ns else None
    there = pread(fd, min(RECORD_NBYTES, status.st_size - record.nbytes), record.nbytes)
    return _began_with(record, fd, status) if may_be_record(there, attribute) else None


def version_of(fd: int, status: os.stat_result) -> FileVersion:
    """Return the version that an open file shows."""
    return version_before(fd, status) or FileVersion(status.st_size, generation_of(status, fd))


def generation_at(path: str, status: os.stat_result) -> Generation:
    """Return the generation of the object at ``path``, whose status was looked up before; it is that of the file that is there now."""
    with suppress(OSError):
        fd = os.open(path, READ_FLAGS)
        try:
            return version_of(fd, os.fstat(fd)).generation
        finally:
            os.close(fd)
    return generation_of(status, path)


def still_shows(fd: int, version: FileVersion, before: os.stat_result) -> bool:
    """Return whether the bytes of ``version`` are still there in an open file, whose status was ``before``: nothing was written in place.

    Our own writers replace files, or append: to be appended to changes no byte of the version.
    """
    after = os.fstat(fd)
    if same_bytes(before, after):
        return True
    record = decode_record(pread(fd, RECORD_NBYTES, version.nbytes), version.nbytes)
    return (version_before(fd, after) if record is None else _began_with(record, fd, after)) == version


# -- writing -----------------------------------------------------------------------------------------------------------


def _draw(now: int) -> int:
    """Return a time within the millisecond of ``now`` that this process has not drawn recently; its microseconds have a fraction."""
    while True:
        drawn = now - now % _MILLISECOND_NS + secrets.randbelow(_MILLISECOND_NS)
        kept = drawn // _KEPT_NS
        if kept * _KEPT_NS % _MICROSECOND_NS and kept not in _drawn:
            _drawn.append(kept)
            return drawn


def stamp(file: int | str) -> os.stat_result:
    """Give a version (an open file or a path) unique times, or a mark if the file system does not keep such times; return its status."""
    now = time_ns()
    os.utime(file, ns=(now, _draw(now)))
    status = _status(file)
    if status.st_mtime_ns % _MICROSECOND_NS:
        return status
    if status.st_mtime_ns % _MILLISECOND_NS:  # too few to draw from: the file is given a time at which a mark is looked for
        os.utime(file, ns=(now, now - now % _MILLISECOND_NS))
    _set_mark(file)
    return _status(file)


def _status(file: int | str) -> os.stat_result:
    return os.fstat(file) if isinstance(file, int) else os.stat(file)


def _set_mark(file: int | str) -> None:
    """Mark a file that has no mark; a version that has one differs from its earlier versions in its size."""
    if sys.platform == "linux":
        try:
            os.setxattr(file, _MARK, secrets.token_bytes(_MARK_NBYTES), os.XATTR_CREATE)
        except OSError as exc:
            if exc.errno not in _NOT_MARKED:
                raise


def _mark_of(file: int | str) -> int | None:
    if sys.platform == "linux":
        try:
            mark = os.getxattr(file, _MARK)
        except OSError as exc:
            if exc.errno not in _NO_MARK:
                raise
        else:
            return int.from_bytes(mark, "little") if len(mark) == _MARK_NBYTES else None
    return None


# -- file systems ------------------------------------------------------------------------------------------------------


def names_versions(directory: str) -> bool:
    """Return whether each version of a file gets a unique name at once in ``directory``, which need not exist: by its times, or by a mark.

    Changes nothing. Looks at the times of the directory and, if these are whole milliseconds, of the directories above it on the
    same device.
    """
    there = [directory, *map(str, Path(directory).parents)]
    while not os.path.isdir(there[0]) and len(there) > 1:
        del there[0]
    try:
        device = os.stat(there[0]).st_dev
        for place in there:
            status = os.stat(place)
            if status.st_dev != device:
                break
            if any(time % _MILLISECOND_NS for time in (status.st_mtime_ns, status.st_ctime_ns, status.st_atime_ns)):
                return True
    except OSError:  # removed since then, or not ours to look at: what is read and written does not depend on it
        return True
    return _has_marks(there[0])


def _has_marks(directory: str) -> bool:
    if sys.platform == "linux":
        try:
            os.getxattr(directory, _MARK)
        except OSError as exc:
            return exc.errno not in _NOT_SUPPORTED
    return sys.platform == "linux"
