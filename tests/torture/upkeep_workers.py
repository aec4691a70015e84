"""What writers, readers, and those who compact and repair do to one array at the same time: importable by a spawned child.

Each chunk has one writer, which writes one version of it after the other, and tells on the board which it has begun and which was
acknowledged. So whoever reads knows what it may see: no version that was acknowledged is ever gone, and none is seen that was not begun.

What there is to compact and to repair is made on purpose, on condition, so that it loses nothing itself: a shard is stored once more
with gaps, or with the beginning of an append behind it. Until that is repaired, reads and writes of the shard fail, and are repeated.

Cells of the board: for each chunk the version that was begun, then for each the one that was acknowledged, then for each of those who
compact and repair whether it has done its rounds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import shardstore
from shardstore.errors import Conflict, Corruption
from shardstore.model.generation import IfGeneration
from shardstore.model.ranges import EVERYTHING
from shardstore.opening.open import open_storage
from shardstore.storage.base import ConditionFailed, Found, Read, Storage
from shardstore.testing.storage_suite import on_io_loop
from tests.maintenance.laid_out import DEAD, Part, laid_out
from tests.shards import Sharding, index_entries
from tests.torture.payloads import Payload, WrongValue, parse
from tests.torture.places import Place

PATH = "x"
SHARDS, SLOTS, WORDS = 3, 8, 64
CHUNKS = SHARDS * SLOTS
WRITERS, READERS = 4, 4
COMPACTING, REPAIRING = 0, 1
CELLS = 2 * CHUNKS + 2

_PATIENCE = 0.002  # seconds, after what cannot be read or written just now


class Together(Protocol):
    """What those have in common who begin together, whether they are processes or threads."""

    @property
    def board(self) -> npt.NDArray[np.int64]: ...

    def start(self) -> None: ...

    def check(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Done:
    """What one of them did; ``waited``: operations that met a shard that was torn just then."""

    operations: int
    waited: int = 0
    conflicts: int = 0
    versions: Mapping[int, int] = field(default_factory=dict)
    """Of each chunk that it wrote, the last."""


def storage_of(place: Place) -> Storage:
    """A client's own: it shares nothing with others of the same process."""
    return open_storage(place.url, place.storage_options or None, fsync=False)


def quarantine_of(place: Place) -> Storage:
    return open_storage(f"{place.url}.quarantine", place.storage_options or None, fsync=False)


class _Board:
    def __init__(self, together: Together) -> None:
        self.begun = together.board[:CHUNKS]
        self.acknowledged = together.board[CHUNKS : 2 * CHUNKS]
        self.has_ended = together.board[2 * CHUNKS :]


def key(chunk: int) -> str:
    return f"{PATH}/c/{chunk}"


# -- clients ---------------------------------------------------------------------------------------------------------------


def write(place: Place, writer: int, together: Together) -> Done:
    """Write chunks of this writer's own until those who look after the store have done their rounds."""
    store = shardstore.get_mapper(storage_of(place), require_atomic=True)
    board, rng = _Board(together), random.Random(writer)
    mine = range(writer, CHUNKS, WRITERS)
    writes = waited = 0
    together.start()
    while not board.has_ended.all():
        together.check()
        some = rng.sample(mine, rng.choice([1, 1, 2, len(mine)]))
        for chunk in some:
            board.begun[chunk] += 1
        values = {key(chunk): Payload(0, 0, chunk, writer, int(board.begun[chunk])).words(WORDS).tobytes() for chunk in some}
        while True:
            try:
                store.setitems(values)
            except Corruption:  # torn just now; what was stored of it is stored again
                waited += 1
                together.check()
                time.sleep(_PATIENCE)
            else:
                break
        for chunk in some:
            board.acknowledged[chunk] = board.begun[chunk]
        writes += len(some)
    return Done(writes, waited, store.counters.conflicts, {chunk: int(board.acknowledged[chunk]) for chunk in mine})


def read(place: Place, reader: int, together: Together) -> Done:
    """Read chunks in batches, and look at every byte."""
    store = shardstore.get_mapper(storage_of(place))
    board, rng = _Board(together), random.Random(1000 + reader)
    reads = waited = 0
    together.start()
    while not board.has_ended.all():
        together.check()
        some = rng.sample(range(CHUNKS), rng.choice([1, 3, CHUNKS]))
        least = [int(board.acknowledged[chunk]) for chunk in some]
        found = store.getitems([key(chunk) for chunk in some], on_error="return")
        for chunk, version in zip(some, least, strict=True):
            value = found.get(key(chunk))
            if isinstance(value, Corruption):
                waited += 1
                continue
            if isinstance(value, Exception) and not isinstance(value, KeyError):
                raise value
            check(chunk, None if value is None or isinstance(value, KeyError) else value, version, int(board.begun[chunk]))
            reads += 1
    return Done(reads, waited)


def check(chunk: int, value: bytes | None, least: int, most: int) -> None:
    """Raises ``WrongValue`` where a chunk is none that its writer began to write, or older than what was acknowledged."""
    payload = None if value is None else parse(np.frombuffer(value, "<u4"))
    if payload is None:
        if least:
            raise WrongValue(f"chunk {chunk} is missing, version {least} was acknowledged")
        return
    if payload != Payload(0, 0, chunk, chunk % WRITERS, payload.version) or not least <= payload.version <= most:
        raise WrongValue(f"chunk {chunk} is {payload}; versions {least} to {most} are possible")


# -- upkeep ----------------------------------------------------------------------------------------------------------------

Spoil = Callable[[Sharding, bytes, random.Random], bytes]


def _loosened(layout: Sharding, shard: bytes, rng: random.Random) -> bytes:
    """The same chunks in another order, with gaps."""
    parts: list[Part] = [
        (slot, shard[offset : offset + nbytes])
        for slot, (offset, nbytes) in enumerate(index_entries(layout, shard))
        if offset + nbytes <= len(shard)
    ]
    rng.shuffle(parts)
    return laid_out(layout, [one for part in parts for one in ((DEAD, rng.randbytes(rng.randrange(200))), part)])


def _torn(layout: Sharding, shard: bytes, rng: random.Random) -> bytes:
    """As an append leaves it whose writer dies: its chunk is a value of a version that nobody has begun."""
    index_entries(layout, shard)
    chunk = Payload(0, 0, 0, 0, 10**6).words(WORDS).tobytes()
    return shard + (chunk + shard[-layout.index_nbytes :])[: rng.randrange(1, len(chunk) + layout.index_nbytes - 1)]


def _spoil(storage: Storage, layout: Sharding, how: Spoil, rng: random.Random) -> None:
    """Store a shard in another form, unless another client was faster, or it is torn already."""
    name = f"{PATH}/c/{rng.randrange(SHARDS)}"
    (found,) = on_io_loop(storage.read([Read(name, (EVERYTHING,))]))
    if isinstance(found, Found):
        # The second reader refuses an index that cannot be read by an assertion.
        with suppress(AssertionError, ConditionFailed):
            new = how(layout, bytes(found.buffers[0]), rng)
            on_io_loop(storage.write(name, [new], len(new), IfGeneration(found.generation)))


def compact(place: Place, layout: Sharding, rounds: int, together: Together) -> Done:
    """Loosen shards and compact them, until that was done to so many."""
    return _upkeep(place, layout, COMPACTING, rounds, _loosened, _compacted, together)


def repair(place: Place, layout: Sharding, rounds: int, together: Together) -> Done:
    """Tear shards and repair them, until that was done to so many."""
    return _upkeep(place, layout, REPAIRING, rounds, _torn, _repaired, together)


def _upkeep(
    place: Place, layout: Sharding, role: int, rounds: int, how: Spoil, work: Callable[[Place, Storage], int], together: Together
) -> Done:
    storage, rng = storage_of(place), random.Random(2000 + role)
    board = _Board(together)
    done = 0
    together.start()
    while not board.has_ended.all():
        together.check()
        _spoil(storage, layout, how, rng)
        done += work(place, storage)
        if done >= rounds:
            board.has_ended[role] = 1
    while work(place, storage):  # what was spoilt last
        pass
    return Done(done)


def _compacted(place: Place, storage: Storage) -> int:
    report = shardstore.compact(storage, dead_ratio=0.0, workers=2)
    _only_conflicts(report.failed.first)
    return report.rewritten


def _repaired(place: Place, storage: Storage) -> int:
    report = shardstore.repair(storage, allow_reverting=True, quarantine=quarantine_of(place), workers=2)
    _only_conflicts(report.failed.first)
    assert {finding.remedy for finding in report.findings.first} <= {"cut"}, report.findings.first
    return report.findings.count


def _only_conflicts(failed: Any) -> None:
    for failure in failed:
        if not isinstance(failure.error, Conflict):
            raise failure.error
