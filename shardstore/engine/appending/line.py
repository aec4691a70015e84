"""The line of those who append along one dimension: reservations of rows, in a record that changes by compare-and-swap.

::

    A  reserves [113, 120)            stores rows, done: committed 120     publishes, shown 120     acknowledged
    B     reserves [120, 123)         stores rows, done          waits                     sees shown 123, acknowledged
    D           reserves [123, 125)   dies
    E                reserves [125, 131), stores, done    no sign of D for a lease: evicts it, is [123, 129), stores again

Safety depends on no clock. Each commit of a shard reads the version of the shard first, then asks the record whether the reservation still
stands (the *fence*), then writes on condition of that version. A late write of a reservation that was given away meets a version that the
new owner has changed. Clocks decide only when a writer counts as dead: each waiting writer measures by its own how long it saw no sign.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from shardstore.engine.appending.documents import GrowingDocuments
from shardstore.engine.contention import Contention, Outdated
from shardstore.errors import Conflict, InvalidInput, ShardStoreError, Unsupported, WriteOutcomeUnknown
from shardstore.format.append_record import AppendRecord, Reservation, record_key
from shardstore.model.generation import Generation
from shardstore.storage.base import ConditionFailed, Found, Storage, document_read, read_one

logger = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.005
_LONGEST_PAUSE_SECONDS = 0.25
_LONGEST_LOOK_SECONDS = 10.0
_SILENT_PUBLISHER_SECONDS = 1.0
_SIGNS_PER_LEASE = 3
_MOST_EVICTIONS = 20


class ReservationMoved(Conflict):
    """A reservation has not the rows any more that it had: those of a dead writer before it, or its own, were taken back."""


class LengthChanged(Conflict):
    """Another program has changed the length of an array while rows were reserved."""


@dataclass(frozen=True, slots=True)
class Place:
    """The rows of a reservation: ``start`` inclusive, ``stop`` exclusive."""

    id: str
    start: int
    stop: int

    def check(self, key: str, record: AppendRecord | None) -> Reservation:
        """Return the reservation, if it still has these rows.

        Raises:
            ReservationMoved: it has not.
        """
        found = None if record is None else record.find(self.id)
        if found is None or record is None or record.start_of(self.id) != self.start:
            raise ReservationMoved(f"rows {self.start} to {self.stop} are not those of reservation {self.id} of {key!r} any more")
        return found


async def read_record(storage: Storage, key: str) -> tuple[AppendRecord | None, Generation | None]:
    """Return the record and its version; ``None`` where there is none yet."""
    outcome = await read_one(storage, document_read(key))
    if not isinstance(outcome, Found):
        return None, None
    return AppendRecord.parse(key, outcome.buffers[0]), outcome.generation


class Line:
    """The line along one dimension of the arrays at or below one path."""

    def __init__(self, storage: Storage, contention: Contention, documents: GrowingDocuments, lease_seconds: float) -> None:
        self.storage = storage
        self.contention = contention
        self.documents = documents
        self.lease_seconds = lease_seconds
        self._known: tuple[AppendRecord, Generation] | None = None
        self._signs: dict[str, tuple[int, float]] = {}
        """The last beat of each reservation that was seen, and when it was seen first."""
        self._looked = 0.0

    @property
    def key(self) -> str:
        return record_key(self.documents.home, self.documents.dim)

    async def find(self) -> None:
        """Find the arrays, and what the storage can do.

        Raises:
            NotFound, InvalidInput: as ``GrowingDocuments.find`` does.
            Unsupported: the storage has no conditional writes.
        """
        capabilities = await self.storage.probe()
        if not capabilities.atomic_commits:
            raise Unsupported(
                f"{self.storage.url} offers no compare-and-swap, so appends of several writers could lose rows: let one program at a time "
                "append with zarr or xarray, or copy the data to a storage that has it"
            )
        await self.documents.find()

    async def reserve(self, rows: int) -> Place:
        """Reserve rows behind all that are reserved.

        Raises:
            Conflict: another program changed the length of an array.
            InvalidInput: the arrays have different lengths.
        """
        id_ = _new_id()

        are_known = False
        """Whether the arrays were as long as the record said; since then only the record has changed."""

        async def attempt() -> AppendRecord:
            nonlocal id_, are_known
            stored, generation = await read_record(self.storage, self.key)
            are_known = are_known and stored is not None
            if not are_known:
                await self.documents.read_arrays()  # behind the record: so they are at least as new
            lengths = self.documents.lengths()
            length = max(lengths.values())
            record = stored or AppendRecord(self.documents.dim, length, length)
            if record.closed:
                raise Conflict(
                    f"{self.key!r} says that the arrays are being moved elsewhere: append to them at their new place. If the move was "
                    f"broken off and they stay, remove {self.key!r}"
                )
            if not are_known and not all(record.shown <= each <= record.committed for each in lengths.values()):
                if (await read_record(self.storage, self.key))[1] != generation:
                    raise Outdated  # the documents are newer than the record for this reason
                self._check_changed(record, lengths)
                record = record.take_over(length)
            are_known = True
            if id_ in record.evicted:  # stored by an attempt whose answer was lost, and taken back since
                id_ = _new_id()
            reserved = record.reserve(id_, rows, self.lease_seconds)
            return record if reserved is record else await self._store(reserved, generation)

        while True:
            try:
                record = await self._swap(attempt)
            except LengthChanged:
                if not await self._all_are_dead():
                    raise
                continue
            start = record.start_of(id_)
            return Place(id_, start, start + rows)

    async def _all_are_dead(self) -> bool:
        """Wait until all reservations are taken back, or have ended; return ``False`` once one of their writers gives a sign of life."""
        beats: dict[str, int] = {}
        while True:
            record, _ = await self._read()
            if record is None or not record.open:
                return True
            if any(beats.setdefault(one.id, one.beat) != one.beat for one in record.open):
                return False
            await self._evict_dead(record.open)
            await self.contention.sleep(_LONGEST_PAUSE_SECONDS)

    def _check_changed(self, record: AppendRecord, lengths: dict[str, int]) -> None:
        shown = ", ".join(f"{path or '/'} {length}" for path, length in lengths.items())
        if record.open:
            raise LengthChanged(
                f"another program changed the length of {self.documents.dim!r} while appends were under way: {self.key!r} has "
                f"{record.shown} to {record.committed} rows and {len(record.open)} reservations, the arrays have {shown}. Wait until "
                "nothing is being appended, look at the arrays, and repeat"
            )
        if len(set(lengths.values())) > 1:
            raise InvalidInput(
                f"the arrays have different lengths along {self.documents.dim!r} ({shown}): another program broke off an append. Resize "
                "them to one length first"
            )
        if min(lengths.values()) < record.shown:
            raise Conflict(
                f"the arrays are shorter along {self.documents.dim!r} ({shown}) than they were shown, {record.shown} by {self.key!r}: "
                "another program has made them shorter, or stored documents from an old copy. To bring the rows back, resize the arrays to "
                f"{record.shown}; if it is meant, remove {self.key!r} while nothing is being appended"
            )

    async def finish(self, place: Place) -> AppendRecord:
        """Note that all rows of a place are stored, and return the record.

        Raises:
            ReservationMoved: they have to be stored elsewhere.
            WriteOutcomeUnknown: too much has happened since to say what has become of the rows.
        """
        since: int | None = None
        """The turn in which the reservation was seen last."""

        def change(record: AppendRecord) -> AppendRecord:
            nonlocal since
            if since is not None and record.fate(place.id, since) in ("committed", "unknown"):
                return record  # the answer was lost
            place.check(self.key, record)
            since = record.turn
            return record.finish(place.id)

        record = await self._change(change)
        if since is None or record.fate(place.id, since) == "unknown":
            raise self._forgotten(place)
        return record

    async def give_back(self, place: Place) -> bool:
        """Take a reservation back, by its own writer; return whether that was in time: its rows are not committed."""
        record = await self._change(lambda record: record.evict(place.id))
        return place.id in record.evicted

    async def give_sign(self, place: Place) -> None:
        await self._change(lambda record: record.give_sign(place.id))

    async def give_signs(self, place: Place) -> None:
        """Give a sign of life each third of a lease, until cancelled."""
        while True:
            await self.contention.sleep(self.lease_seconds / _SIGNS_PER_LEASE)
            try:
                await self.give_sign(place)
            except ShardStoreError as exc:
                logger.info("no sign of life of the append %s in %r: %s", place.id, self.key, exc)

    async def locate(self, place: Place) -> Place | None:
        """Return where the rows of a reservation are now; ``None`` if it was evicted."""
        record, _ = await self._read()
        if record is None or record.find(place.id) is None:
            return None
        start = record.start_of(place.id)
        return Place(place.id, start, start + place.stop - place.start)

    async def wait_until_shown(self, place: Place, record: AppendRecord) -> None:
        """Wait until the rows of a place, which is done in ``record``, are shown; publish them if it is our turn, evict the dead before us.

        Raises:
            ReservationMoved: the rows have to be stored elsewhere.
            Conflict: another program has changed the arrays.
            WriteOutcomeUnknown: too much has happened since to say what has become of the rows.
        """
        clock, rng = self.contention.clock, self.contention.rng
        publishes_at: float | None = None if record.find(place.id) is not None else clock()
        pause, turn = _FIRST_PAUSE_SECONDS, record.turn
        while True:
            match record.fate(place.id, turn):
                case "committed":
                    if record.shown >= place.stop:
                        return
                    if publishes_at is None:  # whoever committed it publishes it, unless that writer has died
                        publishes_at = clock() + _SILENT_PUBLISHER_SECONDS * (1 + rng.random())
                    if clock() >= publishes_at:
                        await self._publish(record)
                        return
                case "open":
                    if not place.check(self.key, record).done:
                        raise ReservationMoved(f"the rows before those of {place.id} of {self.key!r} were taken back")
                    await self._evict_dead(record.open[: record.open.index(place.check(self.key, record))])
                case "evicted":
                    raise ReservationMoved(f"reservation {place.id} of {self.key!r} was taken back")
                case "unknown":
                    raise self._forgotten(place)
            turn = record.turn
            await self.contention.sleep(rng.uniform(pause / 2, pause))
            pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
            found, _ = await self._read()
            if found is None:
                raise Conflict(f"another program removed {self.key!r} during an append: look at the arrays before it is repeated")
            record = found

    def _forgotten(self, place: Place) -> WriteOutcomeUnknown:
        return WriteOutcomeUnknown(
            f"the rows that were appended as {place.id} may be in {self.key!r} or not: this program was stopped so long that the record "
            "has forgotten. Look whether they are there before they are appended again"
        )

    async def _publish(self, record: AppendRecord) -> None:
        """Show all that is committed."""
        longest = await self.documents.publish(record.shown, record.committed)
        shown = await self._change(lambda newer: newer.show(record.committed))
        if longest > shown.committed:
            raise Conflict(
                f"another program made an array {longest} long along {self.documents.dim!r} during an append that ends with row "
                f"{record.committed}, by the record {self.key!r}: rows of both may lie in the same place. Look at the array before either "
                "is repeated"
            )

    async def _evict_dead(self, line: Sequence[Reservation]) -> None:
        """Evict the reservations whose writers gave no sign of life for their leases; ``line``: the first ones.

        One that is done stays, unless one before it goes: then its rows would have to be stored elsewhere.
        """
        now = self.contention.clock()
        is_late, self._looked = now - self._looked > _LONGEST_LOOK_SECONDS, now
        if is_late:  # this program was stopped: perhaps all were
            self._signs.clear()
        dead: list[Reservation] = []
        for one in line:
            beat, since = self._signs.get(one.id, (-1, now))
            if beat != one.beat:
                self._signs[one.id] = one.beat, now
            elif now - since > one.lease_seconds and (dead or not one.done):
                dead.append(one)
        if dead:
            ids = ", ".join(one.id for one in dead)
            logger.warning("%r: reservations are taken back, since their writers gave no sign of life: %s", self.key, ids)
            await self._change(partial(_without, dead))

    # -- the record ----------------------------------------------------------------------------------------------------

    async def _change(self, change: Callable[[AppendRecord], AppendRecord]) -> AppendRecord:
        """Store what ``change`` makes of the record, and return it. It makes the same of a record that it has made."""
        remembered = self._known

        async def attempt() -> AppendRecord:
            nonlocal remembered
            known, remembered = remembered, None
            record, generation = known or await self._read()
            if record is None:
                raise Conflict(f"another program removed {self.key!r} during an append: look at the arrays before it is repeated")
            try:
                changed = change(record)
            except ReservationMoved:
                if known is not None:
                    raise Outdated from None
                raise
            if changed is not record:
                return await self._store(changed, generation)
            if known is not None:
                raise Outdated
            return record

        return await self._swap(attempt)

    async def _swap(self, attempt: Callable[[], Awaitable[AppendRecord]]) -> AppendRecord:
        turn = self.contention.turn(self.key)
        unknown: WriteOutcomeUnknown | None = None

        async def one() -> AppendRecord:
            nonlocal unknown
            try:
                return await attempt()
            except WriteOutcomeUnknown as exc:  # each change finds out whether it was made
                unknown = exc
                raise ConditionFailed(str(exc)) from exc

        try:
            return await turn.swap(f"the record of appends {self.key!r}", one)
        except Conflict as exc:
            if unknown is None or isinstance(exc, ReservationMoved | LengthChanged):
                raise
            raise unknown from exc

    async def _read(self) -> tuple[AppendRecord | None, Generation | None]:
        record, generation = await read_record(self.storage, self.key)
        self._known = None if record is None or generation is None else (record, generation)
        return record, generation

    async def _store(self, record: AppendRecord, generation: Generation | None) -> AppendRecord:
        data = record.encode()
        self._known = None
        generation = await self.storage.write(self.key, [data], len(data), self.storage.capabilities.condition_on(generation))
        self._known = record, generation
        return record


def _without(dead: Sequence[Reservation], record: AppendRecord) -> AppendRecord:
    """Return the record without reservations, unless one of them has changed since."""
    if any(record.find(one.id) != one for one in dead):
        return record
    for one in dead:
        record = record.evict(one.id)
    return record


def _new_id() -> str:
    return uuid4().hex[:16]


class Append:
    """One append: says where its rows have to be stored, again and again if they move, until all readers see them."""

    def __init__(self, line: Line, rows: int) -> None:
        self.line = line
        self.rows = rows
        self.place: Place | None = None
        self._evictions = 0
        self._signs: asyncio.Task[None] | None = None

    async def begin(self) -> Place:
        """Reserve the rows, and give signs of life from now on."""
        self.place = await self.line.reserve(self.rows)
        self._signs = asyncio.ensure_future(self.line.give_signs(self.place))
        return self.place

    async def stored(self) -> Place | None:
        """Go on after the rows were stored at ``place``: return where they have to be stored instead, or ``None`` if all readers see them.

        Raises:
            Conflict: another program has changed the arrays.
            WriteOutcomeUnknown: the rows are stored, and it is unknown whether readers will see them.
        """
        assert self.place is not None
        try:
            record = await self.line.finish(self.place)
            await self.line.wait_until_shown(self.place, record)
        except ReservationMoved:
            return await self._elsewhere(self.place)
        except ShardStoreError as exc:
            if isinstance(exc, Conflict) or await self._is_given_back():
                raise
            raise WriteOutcomeUnknown(
                f"rows {self.place.start} to {self.place.stop} of {self.line.documents.dim!r} are stored, and readers see them after the "
                f"next append at the latest, unless they are taken back before: {self.line.key!r} could not be changed ({exc}). Look "
                "whether they are there before they are appended again"
            ) from exc
        return None

    async def _is_given_back(self) -> bool:
        assert self.place is not None
        try:
            return await self.line.give_back(self.place)
        except ShardStoreError:
            return False

    async def failed(self) -> Place | None:
        """Go on after the rows could not be stored at ``place``: return where they have to be stored, if it was for that. If not, the
        reservation is given back, and ``None`` returned.
        """
        assert self.place is not None
        if await self.line.locate(self.place) != self.place:
            return await self._elsewhere(self.place)
        await self.line.give_back(self.place)
        return None

    async def _elsewhere(self, before: Place) -> Place:
        place = await self.line.locate(before)
        if place is not None:
            self.place = place
            return place
        self._evictions += 1
        if self._evictions > _MOST_EVICTIONS:
            raise Conflict(
                f"the rows of this append were taken back {self._evictions} times, since no sign of life was seen for "
                f"{self.line.lease_seconds} s: give it a longer lease"
            )
        await self.end()
        return await self.begin()

    async def end(self) -> None:
        """Give no more signs of life."""
        if self._signs is not None:
            self._signs.cancel()
            with suppress(asyncio.CancelledError):
                await self._signs
            self._signs = None
