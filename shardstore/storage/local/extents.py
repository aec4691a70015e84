"""Extents of data and holes in a file, so that a copy of a sparse file is as sparse."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

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
