"""What is measured of each contender: chunks lost, torn reads, bytes and requests for single-chunk writes.

Each experiment is a value with the numbers that it runs with. ``measure`` runs one round of it on one contender and gives
plain figures; the array is created and judged by plain zarr-python in the parent process, whoever wrote it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from contenders import Contender, OpenArray, Place, Target, Values, create, plain_array
from counting_s3 import CountingS3
from crew import Crew, Job
from process_figures import process_io

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Arena:
    """Where one round runs. The crew is the contender's own; the name is new in each round."""

    crew: Crew
    contender: Any
    """A ``Contender``, or whatever else the experiment compares."""
    place: Place
    name: str
    server: CountingS3 | None = None


class Experiment(ABC):
    """One of the tests."""

    @abstractmethod
    def measure(self, arena: Arena) -> Figures:
        """One round. Raises ``CrewError`` where a process fails in a way that the experiment does not count."""


@dataclass(slots=True)
class Failures:
    """Calls that raised, with one message of each type."""

    count: int = 0
    types: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def note(self, exc: Exception) -> None:
        kind = type(exc).__name__
        self.count += 1
        self.types[kind] += 1
        self.examples.setdefault(kind, str(exc)[:300])

    def add(self, other: Failures) -> None:
        self.count += other.count
        self.types += other.types
        self.examples = {**other.examples, **self.examples}


# -- loss --------------------------------------------------------------------------------------------------------------


def mark_of(chunk: int) -> int:
    """What the items of a chunk are after it was written; never the fill value, 0."""
    return 1 + chunk % 250


@dataclass(frozen=True, slots=True)
class _Share:
    """What became of the writes of one process."""

    acknowledged: list[int]
    failures: Failures


@dataclass(frozen=True, slots=True)
class _WriteShare(Job[_Share]):
    contender: Contender
    target: Target
    chunks: range

    def prepare(self) -> Callable[[], _Share]:
        array = self.contender.open(self.target)

        def run() -> _Share:
            share = _Share([], Failures())
            for chunk in self.chunks:
                try:
                    array.write(self.target.chunk(chunk), np.full(self.target.items, mark_of(chunk), "u1"))
                    share.acknowledged.append(chunk)
                except Exception as exc:  # noqa: BLE001 - whatever a library raises is counted
                    share.failures.note(exc)
            return share

        return run


def chunks_lost(values: Values, chunks: int) -> list[int]:
    """The chunks in ``values``, a whole array, that are not as they were written by ``mark_of``."""
    expected = np.array([mark_of(chunk) for chunk in range(chunks)], "u1")
    found: list[int] = np.flatnonzero(np.any(values.reshape(chunks, -1) != expected[:, None], axis=1)).tolist()
    return found


def _found(target: Target, acknowledged: set[int]) -> Figures:
    """How many of the acknowledged chunks are lost, as plain zarr-python reads the shard; all where it cannot."""
    try:
        values = np.asarray(plain_array(target)[:])
    except Exception as exc:  # noqa: BLE001 - whatever zarr-python raises for a damaged shard
        return {"lost": len(acknowledged), "shard_damaged": str(exc)[:300]}
    return {"lost": len(acknowledged.intersection(chunks_lost(values, target.chunks))), "shard_damaged": None}


@dataclass(frozen=True, slots=True)
class Loss(Experiment):
    """Processes write disjoint chunks of one shard, one assignment a chunk; the shard does not exist before. Or, in place of chunks,
    equal parts of the only chunk of the shard.

    Lost is a chunk, or a part, whose write was acknowledged and that does not hold what was written. A write that raised is an error,
    and counted as such.
    """

    writers: int
    chunks: int
    chunk_nbytes: int
    are_parts: bool = False

    def measure(self, arena: Arena) -> Figures:
        target = Target(arena.place, arena.name, self.chunks, self.chunk_nbytes)
        stored = replace(target, chunks=1, items=self.chunks * self.chunk_nbytes) if self.are_parts else target
        create(stored, "u1", fill_value=0, compressed=False)
        shares = [_WriteShare(arena.contender, target, range(i, self.chunks, self.writers)) for i in range(self.writers)]
        failures = Failures()
        acknowledged: set[int] = set()
        for share in arena.crew.run(shares):
            failures.add(share.failures)
            acknowledged.update(share.acknowledged)
        return {**_found(target, acknowledged), "write_errors": failures.count, "errors": failures.examples}


# -- torn reads --------------------------------------------------------------------------------------------------------

_VERSIONS = 12
_TORN_DTYPE = "u2"
_TORN_FILL = 65535


def versions_of(chunks: int, items: int) -> Values:
    """The contents that the writers put into the shard, ``(version, chunk, item)``.

    Each chunk begins with its version, from 1, and its number. The first part of it is noise and the rest constant, another
    part in each version, so that compressed chunks differ in length and lie elsewhere in each version of the shard.
    """
    rng = np.random.default_rng(5)
    contents = np.full((_VERSIONS, chunks, items), 7, _TORN_DTYPE)
    for version, share in enumerate(rng.permutation(np.linspace(0.05, 0.95, _VERSIONS))):
        noisy = int(items * share)
        contents[version, :, :noisy] = rng.integers(0, _TORN_FILL, (chunks, noisy))
        contents[version, :, 0] = version + 1
    contents[:, :, 1] = np.arange(chunks)
    return contents


def version_read(contents: Values, chunk: int, values: Values) -> int | None:
    """Which version the ``values`` that were read for a chunk are, from 1; ``None`` where nobody ever wrote them."""
    version = int(values[0])
    if 1 <= version <= len(contents) and np.array_equal(values, contents[version - 1, chunk]):
        return version
    return None


@dataclass(slots=True)
class Reads:
    """What readers saw: of single chunks, and of several chunks in one read."""

    single: int = 0
    single_wrong: int = 0
    several: int = 0
    several_wrong: int = 0
    several_mixed: int = 0
    """Each chunk right, but from more than one version of the shard."""
    wrong_were_fill: int = 0
    """Of the wrong reads, those with the fill value in place of a chunk."""
    failures: Failures = field(default_factory=Failures)

    def judge(self, contents: Values, first: int, values: Values) -> None:
        """Count one read, of the chunks from ``first`` on: ``(chunk, item)``."""
        versions = [version_read(contents, first + i, chunk) for i, chunk in enumerate(values)]
        wrong = None in versions
        if len(values) == 1:
            self.single += 1
            self.single_wrong += wrong
        else:
            self.several += 1
            self.several_wrong += wrong
            self.several_mixed += not wrong and len(set(versions)) > 1
        if wrong:
            self.wrong_were_fill += bool(np.any(np.all(values == _TORN_FILL, axis=1)))


@dataclass(frozen=True, slots=True)
class _Rewrite(Job[tuple[int, Failures]]):
    contender: Contender
    target: Target
    seconds: float
    pause_seconds: float
    writer: int

    def prepare(self) -> Callable[[], tuple[int, Failures]]:
        contents = versions_of(self.target.chunks, self.target.items)
        array = self.contender.open(self.target)
        everything = self.target.chunk(0, self.target.chunks)

        def run() -> tuple[int, Failures]:
            failures, writes = Failures(), 0
            version, end = self.writer, time.monotonic() + self.seconds
            while time.monotonic() < end:
                try:
                    array.write(everything, contents[version % _VERSIONS].reshape(-1))
                    writes += 1
                except Exception as exc:  # noqa: BLE001 - whatever a library raises is counted
                    failures.note(exc)
                version += 1
                time.sleep(self.pause_seconds)
            return writes, failures

        return run


@dataclass(frozen=True, slots=True)
class _ReadOn(Job[Reads]):
    contender: Contender
    target: Target
    seconds: float
    reader: int
    at_once: int

    def prepare(self) -> Callable[[], Reads]:
        contents = versions_of(self.target.chunks, self.target.items)
        array = self.contender.open(self.target)
        rng = np.random.default_rng(self.reader)

        def run() -> Reads:
            reads = Reads()
            end = time.monotonic() + self.seconds
            turn = 0
            while time.monotonic() < end:
                count = self.at_once if turn % 8 == 7 else 1
                first = int(rng.integers(0, self.target.chunks - count + 1))
                turn += 1
                try:
                    values = array.read(self.target.chunk(first, count))
                except Exception as exc:  # noqa: BLE001 - whatever a library raises is counted
                    reads.failures.note(exc)
                else:
                    reads.judge(contents, first, values.reshape(count, -1))
            return reads

        return run


@dataclass(frozen=True, slots=True)
class TornReads(Experiment):
    """Writers rewrite a whole shard over and over with other contents, one assignment each, while readers read chunks of it.

    Every eighth read is of ``at_once`` neighbouring chunks, the others of one. A writer rests for ``pause_seconds`` after each.
    """

    writers: int
    readers: int
    seconds: float
    pause_seconds: float = 0.0
    chunks: int = 64
    chunk_items: int = 2500
    at_once: int = 8

    def measure(self, arena: Arena) -> Figures:
        target = Target(arena.place, arena.name, self.chunks, self.chunk_items)
        create(target, _TORN_DTYPE, fill_value=_TORN_FILL, compressed=True)
        plain_array(target)[:] = versions_of(self.chunks, self.chunk_items)[0].reshape(-1)
        who = arena.contender
        jobs: list[Job[Any]] = [_Rewrite(who, target, self.seconds, self.pause_seconds, 1 + i * 5) for i in range(self.writers)]
        jobs += [_ReadOn(who, target, self.seconds, i, self.at_once) for i in range(self.readers)]
        results = arena.crew.run(jobs)
        return self._figures(results[: self.writers], results[self.writers :])

    def _figures(self, written: list[tuple[int, Failures]], read: list[Reads]) -> Figures:
        read_failures, write_failures = Failures(), Failures()
        for reads in read:
            read_failures.add(reads.failures)
        for _, failed in written:
            write_failures.add(failed)
        names = ("single", "single_wrong", "several", "several_wrong", "several_mixed", "wrong_were_fill")
        return {
            "rewrites": sum(writes for writes, _ in written),
            "write_errors": write_failures.count,
            **{name: sum(getattr(reads, name) for reads in read) for name in names},
            "read_errors": read_failures.count,
            "read_error_types": dict(read_failures.types),
            "errors": {**write_failures.examples, **read_failures.examples},
        }


# -- amplification -----------------------------------------------------------------------------------------------------

Way = Literal["one by one", "together", "in a transaction", "in one assignment"]


@dataclass(frozen=True, slots=True)
class _Update(Job[Figures | None]):
    """Replace every chunk of a full shard; ``None`` where the library has no such way."""

    contender: Contender
    target: Target
    warm_up: Target
    way: Way

    def prepare(self) -> Callable[[], Figures | None]:
        # Modules are imported, connections made and servers probed before anything is counted.
        self._update(self.contender.open(self.warm_up), self.warm_up)
        array = self.contender.open(self.target)

        def run() -> Figures | None:
            before = process_io()
            failed = self._update(array, self.target)
            after = process_io()
            if failed is None:
                return None
            figures: Figures = {"write_errors": failed}
            if before is not None and after is not None:
                figures |= {"bytes_read": after.bytes_read - before.bytes_read, "bytes_written": after.bytes_written - before.bytes_written}
            return figures

        return run

    def _update(self, array: OpenArray, target: Target) -> int | None:
        writes = [(target.chunk(i), np.full(target.items, mark_of(i), "u1")) for i in range(target.chunks)]
        if self.way == "together":
            return array.write_together(writes)
        if self.way == "in one assignment":
            array.write(target.chunk(0, target.chunks), np.concatenate([values for _, values in writes]))
        elif self.way == "one by one":
            for selection, values in writes:
                array.write(selection, values)
        else:
            try:
                with array.transaction():
                    for selection, values in writes:
                        array.write(selection, values)
            except NotImplementedError:
                return None
        return 0


@dataclass(frozen=True, slots=True)
class Amplification(Experiment):
    """One process replaces every chunk of a full shard; what that reads and writes, counted outside of the libraries."""

    way: Way
    chunks: int
    chunk_nbytes: int

    def shard_nbytes(self) -> int:
        """The shard with its index: 16 bytes a chunk, and a checksum."""
        return self.chunks * (self.chunk_nbytes + 16) + 4

    def measure(self, arena: Arena) -> Figures:
        target = Target(arena.place, arena.name, self.chunks, self.chunk_nbytes)
        warm_up = Target(arena.place, f"{arena.name}-warm-up", self.chunks, self.chunk_nbytes)
        for each in (target, warm_up):
            create(each, "u1", fill_value=0, compressed=False)
            plain_array(each)[:] = 255
        server = arena.server
        at_start = None if server is None else _forget(server)
        [figures] = arena.crew.run([_Update(arena.contender, target, warm_up, self.way)], at_start)
        counts = None if server is None else server.take_counts()
        if figures is None:
            return {"supported": False}
        if counts is not None:
            figures |= asdict(counts)
        return {"supported": True, **_found(target, set(range(self.chunks))), **figures}


def _forget(server: CountingS3) -> Callable[[], None]:
    def forget() -> None:
        server.take_counts()

    return forget
