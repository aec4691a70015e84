"""Values as open files read them: whole, of one version, and those that are likely to be asked for next read ahead."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice, takewhile

from shardstore.adapters.file_access import FileAccess
from shardstore.adapters.value_reads import ValueRead, VersionedValue, VersionGone
from shardstore.apps.mounting.names import is_document
from shardstore.errors import Conflict, ShardStoreError
from shardstore.model.containers import Lru
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING

_KEPT = 8  # times the bytes that are read ahead at once, or 1 MiB
_DISTANCE = 64  # names between two files that are opened in order
_RECENT = 256
_CANDIDATES = 4096
_TRIES = 5


@dataclass(slots=True, eq=False)
class Value:
    """One version of a value, whole. ``shared`` are the keys that were read together with it."""

    data: memoryview
    version: Generation
    at: float
    shared: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return len(self.data)


@dataclass(eq=False)
class Values:
    """Reads whole values of a store.

    What was read ahead is used for ``attr_seconds``; after that it is compared with the current versions, all chunks that were read
    together by one request.
    """

    store: FileAccess
    attr_seconds: float
    read_ahead: int
    """Bytes that are read ahead at once; 0: none."""
    clock: Callable[[], float] = time.monotonic
    _changed: dict[int, set[str]] = field(default_factory=dict)  # of each read that is under way: what was changed here since it began

    def __post_init__(self) -> None:
        self._kept: Lru[str, Value] = Lru(_KEPT * max(self.read_ahead, 2**20), lambda value: value.nbytes)
        self._recent: Lru[str, bool] = Lru(_RECENT)

    async def read(self, key: str) -> Value | None:
        """Return the value of a key, ``None`` if there is none.

        Raises:
            ShardStoreError: it could not be read.
        """
        if (value := await self._known(key)) is not None:
            return value
        (value,) = await self._read_and_keep([key])
        return value

    async def open(self, key: str, preceding: Iterable[str], following: Iterable[str], nbytes: Callable[[str], int | None]) -> Value | None:
        """Return the value of a file that is opened, and read ahead if files before it, in the order of listings, were opened recently.

        ``nbytes`` returns the sizes of the values that follow, as far as they are known. Raises as ``read``.
        """
        value = await self._known(key)
        if value is None:
            ahead: list[str] = []
            if self.read_ahead and any(other in self._recent for other in islice(preceding, _DISTANCE)):
                ahead = await self._next(key, following, nbytes)
            value = (await self._read_and_keep([key, *ahead], keep=bool(ahead)))[0]
        self._recent.put(key, True)
        return value

    async def _read_and_keep(self, keys: list[str], *, keep: bool = True) -> list[Value | None]:
        """Read values as ``_read`` does, and keep those that have not been changed here since; the first one is read again if it has."""
        for _ in range(_TRIES):
            changed: set[str] = set()
            self._changed[id(changed)] = changed
            try:
                values = await self._read(keys)
            finally:
                del self._changed[id(changed)]
            shared = tuple(keys)
            for key, found in zip(keys, values, strict=True):
                if keep and found is not None and key not in changed:
                    found.shared = shared
                    self._kept.put(key, found)
            if keys[0] not in changed:
                return values
        return values

    async def _next(self, key: str, following: Iterable[str], nbytes: Callable[[str], int | None]) -> list[str]:
        """Return the keys after ``key`` that lie in its shard, and are not known yet, up to the bytes that are read ahead."""
        # Documents come last in a directory, so the first one ends an array.
        inside = takewhile(lambda other: not is_document(other), islice(following, _CANDIDATES))
        candidates = [other for other in inside if other not in self._kept]
        groups = await self.store.shard_groups([key, *candidates])
        mine = next(group for group in groups if 0 in group)
        total = nbytes(key) or 0
        chosen: list[str] = []
        for number in mine:
            if number == 0:
                continue
            size = nbytes(candidates[number - 1])
            if size is None or total + size > self.read_ahead:
                break
            total += size
            chosen.append(candidates[number - 1])
        return chosen

    async def _known(self, key: str) -> Value | None:
        """Return the value of a key if it is in memory and still the current one."""
        value = self._kept.peek(key)
        if value is None:
            return None
        if self.clock() - value.at < self.attr_seconds:
            return self._kept.get(key)
        before = {other: kept for other in value.shared if (kept := self._kept.peek(other)) is not None}
        at = self.clock()
        for (other, kept), result in zip(before.items(), await self.store.read([ValueRead(other) for other in before]), strict=True):
            if self._kept.peek(other) is not kept:
                continue  # read again since then
            if isinstance(result, VersionedValue) and result.version == kept.version:
                kept.at = at
            else:
                self._kept.pop(other)
        return self._kept.peek(key)

    async def _read(self, keys: list[str]) -> list[Value | None]:
        """Read the first key, and the rest as far as they can be read."""
        values: list[Value | None] = [None] * len(keys)
        pending = list(range(len(keys)))
        for _ in range(_TRIES):
            at = self.clock()
            again: list[int] = []
            for i, result in zip(pending, await self.store.read([ValueRead(keys[i], (EVERYTHING,)) for i in pending]), strict=True):
                match result:
                    case VersionedValue(version, _, (data,)):
                        values[i] = Value(data, version, at)
                    case VersionGone() if i == 0:
                        again.append(i)
                    case ShardStoreError() if i == 0:
                        raise result
            if not again:
                return values
            pending = again
        raise Conflict(f"{keys[0]!r} was replaced again and again while it was read; try again")

    def forget(self, key: str) -> None:
        """Read a value again when it is asked for next: it has been changed here."""
        for changed in self._changed.values():
            changed.add(key)
        self._kept.pop(key)

    def forget_all(self) -> None:
        for key in self._kept:
            self.forget(key)
