"""The write-behind buffer of a mount: changes that are held back, so that many become one commit a shard; and immediate commits.

Commits that are asked for while another is under way are carried out together. With ``durable="fsync"`` everything that is closed is held
back; otherwise chunks whose array has no document yet, since copies of directories send files in any order, and what was emptied and could
not be stored. Erasures that follow one another, and those of the old names of renamed files, are held back too, for a much shorter time.
"""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, BinaryIO, Literal, NamedTuple, cast

from shardstore.adapters.file_access import ERASE, Change, FileAccess, KeyChange
from shardstore.apps.mounting.errnos import ErrorLog
from shardstore.apps.mounting.names import ByPath, document_rank, is_array_document, is_document, moved_path
from shardstore.errors import InvalidInput, ShardStoreError, StorageError
from shardstore.format.metadata_v3 import METADATA_NAME
from shardstore.format.store_keys import join, possible_owners
from shardstore.format.v2.keys import ARRAY_NAME
from shardstore.model.ranges import BytesLike
from shardstore.tasks import TickBatch

Durable = Literal["close", "fsync"]
"""When a file is stored: when it is closed, or in batches, by ``fsync`` and some time after it was closed."""

MOST_ERASURES = 50_000


@dataclass(frozen=True, slots=True)
class Limits:
    """When what is held back is stored."""

    idle_seconds: float = 1.0
    """Held-back changes are stored when none was added for so many seconds."""
    age_seconds: float = 5.0
    """Held-back changes are stored at the latest after so many seconds."""
    wait_seconds: float = 30.0
    """Chunks whose array still has no document are stored as plain objects when no change was added for so many seconds."""
    erase_seconds: float = 0.1
    """An erasure that follows another one within this time is held back for this time."""


class _Spill:
    """A temporary file of values. It is deleted when no value in it is referred to any more."""

    def __init__(self) -> None:
        # Without a buffer, whose bytes might find no room later. Closed by __del__.
        self.file = cast(BinaryIO, tempfile.TemporaryFile(buffering=0))  # noqa: SIM115

    def __del__(self) -> None:
        self.file.close()

    def add(self, data: bytes) -> _Spilled:
        """Write a value behind the rest. Raises ``OSError`` if there is no room for it."""
        offset = self.file.seek(0, 2)
        left = memoryview(data)
        try:
            while left:
                left = left[self.file.write(left) :]
        except OSError:
            self.file.truncate(offset)
            raise
        return _Spilled(self, offset, len(data))


class _Spilled(NamedTuple):
    """Bytes in a temporary file."""

    spill: _Spill
    offset: int
    nbytes: int

    def read(self) -> bytes:
        self.spill.file.seek(self.offset)
        return self.spill.file.read(self.nbytes)


@dataclass(slots=True, eq=False)
class Held:
    """A value that is not stored yet. ``change`` makes the change that stores it; ``note_stored`` is called once that was carried out."""

    data: bytes | memoryview | _Spilled | None
    """A ``memoryview`` is of a temporary file of its own, and takes no memory. ``None``: it is erased."""
    change: Callable[[BytesLike], Change]
    note_stored: Callable[[Change], None]
    waits: bool = False
    """True of a chunk whose array has no document yet."""
    has_backup: bool = False
    """True of an erasure of what has got the name of a scratch file: it is carried out when that is removed."""
    error: Exception | None = None

    @property
    def nbytes(self) -> int | None:
        return None if self.data is None else self.data.nbytes if isinstance(self.data, _Spilled) else len(self.data)


class GroupCommit(TickBatch[KeyChange, None]):
    """Changes that arrive while earlier ones are being carried out are carried out together, after those."""

    def __init__(self, run: Callable[[Sequence[KeyChange]], Awaitable[Sequence[Exception | None]]]) -> None:
        super().__init__(self._one_at_a_time)
        self._carries_out = run
        self._is_busy = False

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_busy:
            self._is_busy = True
            super()._begin(loop)

    async def _one_at_a_time(self, changes: Sequence[KeyChange]) -> Sequence[Exception | None]:
        try:
            return await self._carries_out(changes)
        finally:
            self._is_busy = False
            if self._waiting:
                self._begin(asyncio.get_running_loop())


@dataclass(eq=False)
class HeldBack:
    """The values of one mount that are not stored yet, and their commits. ``pending`` are those that the mount already shows.

    ``stored`` is called with the key and the size of each value that has been stored, or ``None`` if it was erased. A value that could not
    be stored stays pending, is tried again, and fails each ``sync`` until it is stored.
    """

    store: FileAccess
    write_memory: int
    """Bytes that are held in memory; more go to a temporary file, or are stored at once."""
    stored: Callable[[str, int | None], None]
    log: ErrorLog
    limits: Limits = field(default_factory=Limits)
    clock: Callable[[], float] = time.monotonic
    pending: ByPath[Held] = field(default_factory=ByPath)
    _nbytes: int = 0
    _first: float = 0.0
    _last: float = 0.0
    _failures: int = 0
    _erased: float = -math.inf
    _timer: asyncio.TimerHandle | None = None
    _eraser: asyncio.TimerHandle | None = None
    _drains: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._commits = GroupCommit(lambda changes: self.store.change(changes))
        self._draining = asyncio.Lock()
        self._spill: Callable[[], _Spill | None] = lambda: None  # a weak reference: the values in it hold it
        self._changing: dict[str, asyncio.Future[None]] = {}
        self._erasures: set[str] = set()  # the keys of ``pending`` that are erased

    # -- at once -------------------------------------------------------------------------------------------------------

    async def commit(
        self, key: str, data: BytesLike, change: Change, note_stored: Callable[[Change], None], still: Callable[[], bool]
    ) -> None:
        """Store a value now, if it is ``still`` to be when its turn comes; a document together with the chunks that wait for it, whose
        errors are raised then.

        Raises:
            ShardStoreError: it, or a chunk that waited for it, could not be stored.
        """
        before = self.pending.get(key)
        async with self._under_way([key]):
            if not still():
                return
            await self._commits.submit((key, change))
        note_stored(change)
        if (after := self.pending.get(key)) is None or after is before:  # what was held back since then comes later
            self._forget(key)
            self.stored(key, len(data))
        if is_document(key) and is_array_document(key, bytes(data)):
            waiting = [other for other, held in self.pending.items() if held.waits and key in _documents_of(other)]
            for other in waiting:
                self.pending[other].waits = False
            if waiting:
                await self._drain(waiting)
                self._raise_first(waiting)

    async def erase_document(self, key: str) -> None:
        """Erase a document now, after what is held back of its node. Raises ``ShardStoreError`` if there is anything left below it."""
        await self._drain(self.pending.below(key.rpartition("/")[0]))
        async with self._under_way([key]):
            await self._commits.submit((key, ERASE))
        self._forget(key)
        self.stored(key, None)

    @asynccontextmanager
    async def _under_way(self, keys: Sequence[str]) -> AsyncIterator[None]:
        """Wait until none of these keys is being changed, and let later changes of them wait until this one has ended: those of one key
        are carried out one after the other, in the order in which they were made.
        """
        while earlier := {self._changing[key] for key in keys if key in self._changing}:
            await asyncio.wait(earlier)
        ended = asyncio.get_running_loop().create_future()
        for key in keys:
            self._changing[key] = ended
        try:
            yield
        finally:
            ended.set_result(None)
            for key in keys:
                del self._changing[key]

    # -- held back -----------------------------------------------------------------------------------------------------

    async def put(
        self,
        key: str,
        data: bytes | memoryview,
        change: Callable[[BytesLike], Change],
        note_stored: Callable[[Change], None],
        still: Callable[[], bool],
        *,
        waits: bool = False,
    ) -> None:
        """Hold a value back, if it is ``still`` to be when there is room. Raises ``OSError`` if there is no room for it."""
        is_in_memory = isinstance(data, bytes)
        if is_in_memory and self._nbytes + len(data) > self.write_memory and not waits:
            await self._drain([other for other, held in self.pending.items() if not held.waits and other != key])
        if not still():
            return
        place: bytes | memoryview | _Spilled = data
        if isinstance(data, bytes) and self._nbytes + len(data) > self.write_memory:
            spill = self._spill() or _Spill()
            self._spill = weakref.ref(spill)
            place = spill.add(data)
        self._forget(key)
        self.pending[key] = Held(place, change, note_stored, waits)
        if isinstance(place, bytes):
            self._nbytes += len(place)
        self._noted()

    async def erase(self, key: str) -> None:
        """Erase a value: at once; or hold the erasure back if it follows another one, as those of ``rm -r`` do, or if held-back changes are
        being stored just now.

        Raises:
            ShardStoreError: it was to be erased at once, and could not be.
        """
        follows = self.clock() - self._erased < self.limits.erase_seconds or self._draining.locked()
        held = self._hold_erasure(key, ERASE)
        if not follows:
            await self._drain([key])
            if held.error is not None:
                if self.pending.get(key) is held:
                    self._forget(key)
                raise held.error
        elif len(self.pending) > MOST_ERASURES:
            await self._drain([other for other, held in self.pending.items() if not held.waits])
        else:
            self._erase_soon()
        self._erased = self.clock()

    async def carry_out_erasure(self, key: str) -> None:
        """Carry out the erasure of a key, if one is held back, and all other erasures with it.

        Raises:
            ShardStoreError: that of the key fails.
        """
        if (held := self.pending.get(key)) is not None and held.data is None:
            await self._drain([other for other, held in self.pending.items() if held.data is None])
            self._raise_first([key])

    async def make_way(self, path: str, *, is_directory: bool) -> None:
        """Carry out the erasures that are held back below a path that becomes a file, or of the file whose path becomes a directory; also
        those of files that have a scratch name now. Storages with directories of their own cannot hold both.

        Raises:
            ShardStoreError: something could not be erased.
        """
        keys = [key for key in self._erasures if (key == path and is_directory) or key.startswith(f"{path}/")]
        for key in keys:
            self.pending[key].has_backup = False
        await self.settle(keys)

    def erase_later(self, key: str, change: Change, *, has_backup: bool) -> None:
        """Hold an erasure back; with ``has_backup``, until ``without_backup`` is called."""
        self._hold_erasure(key, change, has_backup=has_backup)
        if not has_backup:
            self._erase_soon()

    def _hold_erasure(self, key: str, change: Change, *, has_backup: bool = False) -> Held:
        self._forget(key)
        held = self.pending[key] = Held(None, lambda _: change, lambda _: None, has_backup=has_backup)
        self._erasures.add(key)
        return held

    def without_backup(self, key: str) -> None:
        """Let what ``erase_later`` holds back be erased: it has no other name any more."""
        held = self.pending.get(key)
        if held is not None and held.has_backup:
            held.has_backup = False
            self._erase_soon()

    def read(self, key: str) -> bytes | memoryview | None:
        """Return the bytes of a pending value; ``None`` if it is erased."""
        return self._bytes(self.pending[key].data)

    async def sync(self) -> None:
        """Store all that is held back.

        Raises:
            ShardStoreError: some of it could not be stored; it is still held back.
        """
        await self._drain(list(self.pending))
        self._raise_first(list(self.pending))

    async def settle(self, keys: Iterable[str]) -> None:
        """Store these keys, as far as they are held back. Raises as ``sync``."""
        mine = [key for key in keys if key in self.pending]
        if mine:
            await self._drain(mine)
            self._raise_first(mine)

    async def wait_below(self, directory: str) -> None:
        """Wait until no commit of anything below a directory is under way."""
        while changes := {ended for key, ended in self._changing.items() if key.startswith(f"{directory}/")}:
            await asyncio.wait(changes)

    def drop_below(self, directory: str) -> None:
        """Forget what is held back below a directory that has been replaced."""
        for key in self.pending.below(directory):
            self._forget(key)

    def moved(self, source: str, target: str) -> None:
        """Give the chunks that wait below a directory the names that they have after it was renamed."""
        for key in self.pending.below(source):
            held = self.pending.remove(key)
            assert held is not None
            moved = moved_path(key, source, target)
            self.pending[moved] = held
            if key in self._erasures:
                self._erasures.remove(key)
                self._erasures.add(moved)

    def _raise_first(self, keys: Iterable[str]) -> None:
        for key in keys:
            held = self.pending.get(key)
            if held is not None and held.error is not None:
                raise held.error

    def _forget(self, key: str) -> None:
        held = self.pending.remove(key)
        self._erasures.discard(key)
        if held is not None and isinstance(held.data, bytes):
            self._nbytes -= len(held.data)

    @staticmethod
    def _bytes(place: bytes | memoryview | _Spilled | None) -> bytes | memoryview | None:
        return place.read() if isinstance(place, _Spilled) else place

    # -- when ----------------------------------------------------------------------------------------------------------

    def _noted(self) -> None:
        self._last = self.clock()
        if self._timer is None:
            self._first = self._last
            self._wake_in(self.limits.idle_seconds)

    def _wake_in(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """Store what is due, and look again later if anything is left."""
        self._timer = None
        if not self.pending:
            self._failures = 0
            return
        now = self.clock()
        is_due = now - self._last >= self.limits.idle_seconds or now - self._first >= self.limits.age_seconds
        is_given_up = now - self._last >= self.limits.wait_seconds
        if not is_due:
            self._wake_in(max(0.01, min(self._last + self.limits.idle_seconds, self._first + self.limits.age_seconds) - now))
            return
        keys = [key for key, held in self.pending.items() if is_given_up or not held.waits]
        self._begin(lambda: self._drain_and_look(keys))

    def _begin(self, drain: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.get_running_loop().create_task(drain())
        self._drains.add(task)
        task.add_done_callback(self._drains.discard)

    def _erase_soon(self) -> None:
        if self._eraser is None:
            self._eraser = asyncio.get_running_loop().call_later(self.limits.erase_seconds, self._begin, self._drain_erasures)

    async def _drain_erasures(self) -> None:
        """Carry out the erasures that are held back, and look again soon if there are more by then. Those that fail are retried later."""
        try:
            await self._drain([key for key, held in self.pending.items() if held.data is None])
        finally:
            self._eraser = None
            erasures = [held for held in self.pending.values() if held.data is None and not held.has_backup]
            if any(held.error is None for held in erasures):
                self._erase_soon()
            if any(held.error is not None for held in erasures):
                self._noted()

    async def _drain_and_look(self, keys: list[str]) -> None:
        try:
            await self._drain(keys)
        finally:
            if self.pending and self._timer is None:
                failed = any(held.error is not None for held in self.pending.values())
                self._failures = self._failures + 1 if failed else 0
                self._first = self.clock()
                self._wake_in(self.limits.idle_seconds * 2 ** min(self._failures, 5))

    # -- storing -------------------------------------------------------------------------------------------------------

    async def _drain(self, keys: Sequence[str]) -> None:
        """Store what is held back of these keys: documents first, then the rest shard by shard, and last the erasures of documents."""
        async with self._draining:
            mine = {key: held for key in keys if (held := self.pending.get(key)) is not None and not held.has_backup}
            documents = sorted((key for key, held in mine.items() if held.data is not None and is_document(key)), key=document_rank)
            arrays = {key for key in documents if is_array_document(key, bytes(self._bytes(mine[key].data) or b""))}
            stored: set[str] = set()
            for _, level in groupby(documents, document_rank):
                stored.update(await self._store(list(level), mine))
            self._add_waiting(arrays & stored, mine)
            await self._store_by_shard(self._with_document(mine, set(documents) - stored), mine)
            erased = sorted((key for key, held in mine.items() if held.data is None and is_document(key)), key=document_rank, reverse=True)
            for key in erased:
                await self._store([key], mine)

    def _add_waiting(self, arrays: set[str], mine: dict[str, Held]) -> None:
        """Add to ``mine`` the chunks that waited for the documents of these arrays, which are stored now."""
        for key, held in self.pending.items():
            if held.waits and not arrays.isdisjoint(_documents_of(key)):
                held.waits = False
                mine[key] = held

    def _with_document(self, mine: dict[str, Held], refused: set[str]) -> list[str]:
        """Return the keys that are no documents, without those whose array's document was refused."""
        keys: list[str] = []
        for key, held in mine.items():
            if is_document(key):
                continue
            if held.waits and not refused.isdisjoint(_documents_of(key)):
                held.error = StorageError(f"{key!r} waits for the document of its array, which could not be stored")
            else:
                keys.append(key)
        return keys

    async def _store_by_shard(self, keys: list[str], mine: dict[str, Held]) -> None:
        if not keys:
            return
        piece: list[str] = []
        nbytes = 0
        for group in await self._groups(keys):
            for number in group:
                piece.append(keys[number])
                nbytes += mine[keys[number]].nbytes or 0
            if nbytes >= self.write_memory:
                await self._store(piece, mine)
                piece, nbytes = [], 0
        await self._store(piece, mine)

    async def _store(self, keys: Sequence[str], mine: dict[str, Held]) -> list[str]:
        """Carry out the changes of these keys together; return the keys of those that succeeded."""
        keys = [key for key in keys if self.pending.get(key) is mine[key]]  # the rest has been written again since then
        if not keys:
            return []
        async with self._under_way(keys):
            # Again: what was waited for may have stored something later.
            return await self._store_now([key for key in keys if self.pending.get(key) is mine[key]], mine)

    async def _groups(self, keys: list[str]) -> Sequence[Sequence[int]]:
        try:
            return await self.store.shard_groups(keys)
        except ShardStoreError:  # storing them will raise it again
            return [range(len(keys))]

    async def _store_now(self, keys: Sequence[str], mine: dict[str, Held]) -> list[str]:
        if not keys:
            return []
        changes: list[KeyChange] = []
        outcomes: list[tuple[str, Change, Exception | None]] = []
        for key in keys:
            try:
                changes.append((key, mine[key].change(self._bytes(mine[key].data) or b"")))
            except OSError as exc:  # of a temporary file
                outcomes.append((key, ERASE, exc))
        errors: Sequence[Exception | None]
        try:
            errors = await self.store.change(changes)
        except ShardStoreError as exc:
            errors = [exc] * len(changes)
        outcomes += [(key, change, error) for (key, change), error in zip(changes, errors, strict=True)]
        done: list[str] = []
        for key, change, error in outcomes:
            held = mine[key]
            if error is not None:
                held.error = error  # which the next sync raises
                self.log.note(f"{key!r} could not be {'erased' if held.data is None else 'stored'}", error)
                if held.data is None and isinstance(error, InvalidInput) and self.pending.get(key) is held:
                    self._forget(key)  # it never will be: it is there again
                continue
            held.note_stored(change)
            done.append(key)
            if self.pending.get(key) is held:
                self._forget(key)
                self.stored(key, held.nbytes)
        return done

    async def end(self) -> list[str]:
        """Store what is left, and return the keys of what could not be stored."""
        for timer in (self._timer, self._eraser):
            if timer is not None:
                timer.cancel()
        self._timer = self._eraser = None
        for key in [key for key, held in self.pending.items() if held.has_backup]:
            self._forget(key)  # it keeps its old name: the new one was of this mount alone
        await self._drain(list(self.pending))
        return sorted(self.pending)


def _documents_of(key: str) -> set[str]:
    """Return the documents of the arrays that could own a chunk key."""
    return {join(path, name) for path, _ in possible_owners(key) for name in (METADATA_NAME, ARRAY_NAME)}
