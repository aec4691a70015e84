"""The record of those who append along one dimension: how many rows are committed and shown, and the line of reservations behind them.

::

    | rows that readers see | committed | reservation | reservation | ...
    0                       shown       committed

A row is one index along the dimension, in all arrays that have it. Reservations lie one behind the other in the order in which they were
made. One that is done is committed when all before it are. One whose writer gave no sign of life is evicted: those behind it move down, and
their rows have to be written again.

Every change gives a new record with a higher ``turn``, so no two records have equal bytes. The object is changed by compare-and-swap only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import quote, unquote

from shardstore.errors import Corruption
from shardstore.format.json_text import dumps_line, loads_object
from shardstore.format.store_keys import join
from shardstore.model.ranges import BytesLike

SUFFIX = ".append.json"
EVICTED_KEPT = 200

Fate = Literal["open", "committed", "evicted", "unknown"]


def record_key(array_path: str, dim: str) -> str:
    """Return the key of the record of a dimension; ``array_path``: the array in whose directory it lies, where no reader looks."""
    return join(array_path, quote(dim, safe="") + SUFFIX)


def is_record_key(key: str) -> bool:
    return key.endswith(SUFFIX)


def record_place(key: str) -> tuple[str, str] | None:
    """Return the array and the dimension whose record ``key`` would be; ``None`` if it is the key of no record."""
    path, _, name = key.rpartition("/")
    dim = unquote(name.removesuffix(SUFFIX))
    return (path, dim) if is_record_key(name) and key == record_key(path, dim) else None


@dataclass(frozen=True, slots=True)
class Reservation:
    """A place in the line, of one append."""

    id: str
    rows: int
    lease_seconds: float
    """A writer that raises ``beat`` no more for so long counts as dead."""
    beat: int = 0
    """Raised by its writer as a sign of life."""
    done: bool = False
    """True once all its rows are stored."""


@dataclass(frozen=True, slots=True)
class AppendRecord:
    """One version of a record."""

    dim: str
    committed: int
    """The rows that never move any more."""
    shown: int
    """The rows that the documents show to all readers."""
    turn: int = 0
    open: tuple[Reservation, ...] = ()
    evicted: tuple[str, ...] = ()
    """The ids of the last reservations that were evicted, the newest last."""
    closed: bool = False
    """True while the arrays are being moved elsewhere: nothing more is reserved."""

    @classmethod
    def parse(cls, key: str, data: BytesLike) -> AppendRecord:
        """Raises ``Corruption`` if the bytes are no such record."""
        try:
            record = loads_object(data)
            made = cls(
                _text(record, "dim"),
                _count(record, "committed"),
                _count(record, "shown"),
                _count(record, "turn"),
                tuple(_reservation(one) for one in record["open"]),
                tuple(str(one) for one in record["evicted"]),
                record.get("closed") is True,
            )
        except (KeyError, TypeError, ValueError, Corruption) as exc:
            raise Corruption(
                f"{key!r} is not the record of appends along a dimension ({exc}): when nothing is being appended, remove it, and the next "
                "append begins a new one"
            ) from exc
        return made

    def encode(self) -> bytes:
        open_ = [{"id": one.id, "rows": one.rows, "lease": one.lease_seconds, "beat": one.beat, "done": one.done} for one in self.open]
        counts = {"committed": self.committed, "shown": self.shown, "turn": self.turn}
        closed = {"closed": True} if self.closed else {}
        return dumps_line({"dim": self.dim, **counts, "open": open_, "evicted": list(self.evicted)} | closed).encode()

    @property
    def end(self) -> int:
        """The row behind the last reservation."""
        return self.committed + sum(one.rows for one in self.open)

    def find(self, id_: str) -> Reservation | None:
        return next((one for one in self.open if one.id == id_), None)

    def start_of(self, id_: str) -> int:
        """Return the first row of an open reservation."""
        start = self.committed
        for one in self.open:
            if one.id == id_:
                return start
            start += one.rows
        raise KeyError(id_)

    def fate(self, id_: str, since_turn: int) -> Fate:
        """Return what has become of a reservation that was open at ``since_turn``; ``"unknown"`` if too much has happened since."""
        if self.find(id_) is not None:
            return "open"
        if id_ in self.evicted:
            return "evicted"
        return "committed" if self.turn - since_turn <= EVICTED_KEPT else "unknown"

    # -- changes: each returns the new record, or the same one if there is nothing to change ---------------------------

    def reserve(self, id_: str, rows: int, lease_seconds: float) -> AppendRecord:
        if self.find(id_) is not None:
            return self
        return self._changed(open=(*self.open, Reservation(id_, rows, lease_seconds)))

    def give_sign(self, id_: str) -> AppendRecord:
        """Raise the beat of an open reservation, of one that is done too: it is done no longer if one before it is evicted."""
        found = self.find(id_)
        return self if found is None else self._changed(open=self._open_with(replace(found, beat=found.beat + 1)))

    def finish(self, id_: str) -> AppendRecord:
        """Note that the rows of an open reservation are stored; commit all at the beginning of the line that are done."""
        found = self.find(id_)
        if found is None or found.done:
            return self
        open_ = self._open_with(replace(found, done=True))
        committed = self.committed
        while open_ and open_[0].done:
            committed += open_[0].rows
            open_ = open_[1:]
        return self._changed(open=open_, committed=committed)

    def evict(self, id_: str) -> AppendRecord:
        """Take a reservation back. Those behind it move down, and are not done any more."""
        found = self.find(id_)
        if found is None:
            return self
        at = self.open.index(found)
        behind = tuple(replace(one, done=False) for one in self.open[at + 1 :])
        return self._changed(open=(*self.open[:at], *behind), evicted=(*self.evicted, id_)[-EVICTED_KEPT:])

    def show(self, stop: int) -> AppendRecord:
        return self if self.shown >= stop else self._changed(shown=stop)

    def take_over(self, length: int) -> AppendRecord:
        """Begin at a length that another program has set, while nothing is reserved."""
        return self._changed(committed=length, shown=length)

    def close(self, closed: bool) -> AppendRecord:
        return self if self.closed == closed else self._changed(closed=closed)

    def _open_with(self, changed: Reservation) -> tuple[Reservation, ...]:
        return tuple(changed if one.id == changed.id else one for one in self.open)

    def _changed(self, **changes: Any) -> AppendRecord:
        return replace(self, turn=self.turn + 1, **changes)


def _reservation(record: Mapping[str, object]) -> Reservation:
    lease = record["lease"]
    if not isinstance(lease, int | float) or not lease > 0:
        raise ValueError(f"lease is {lease!r}")
    return Reservation(_text(record, "id"), _count(record, "rows"), lease, _count(record, "beat"), record["done"] is True)


def _text(record: Mapping[str, object], name: str) -> str:
    value = record[name]
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}")
    return value


def _count(record: Mapping[str, object], name: str) -> int:
    value = record[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} is {value!r}")
    return value
