"""Transactions of several writers, what each has read and written, and whether there is an order in which one after the other could have.

Every value is written once, so a value that was read names its writer; and the order of snapshots is that of the versions of each
register. From these follow, as in Elle (Kingsbury and Alvaro, 2020), the dependencies of transactions::

    write-read     who read a version comes after its writer
    write-write    who wrote a version comes after the writer of the one before
    read-write     who wrote a version comes after everybody who read the one before

A cycle means that no order explains the history.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import zarr

from shardstore.snapshots import BasicConflictSolver, ConflictDetector, ConflictError, Repository

ARRAYS, CHUNKS, CHUNK = ("a", "b"), 4, 4
GROUPS = ("g", "h")

Register = tuple[str, int]
"""A chunk of an array, or the attribute of a group."""
REGISTERS: list[Register] = [*((path, number) for path in ARRAYS for number in range(CHUNKS)), *((path, 0) for path in GROUPS)]

SOLVERS = (ConflictDetector(), BasicConflictSolver(), BasicConflictSolver(on_chunk_conflict="theirs"))


@dataclass(frozen=True)
class Transaction:
    """A transaction that was committed."""

    number: int
    reads: Mapping[Register, int]
    """What it read of others: 0 is what was there in the beginning."""
    writes: Mapping[Register, int]
    snapshot: str


Steps = Generator[None, None, "Transaction | None"]


def create(repo: Repository) -> None:
    """Make the registers."""
    with repo.transaction(message="registers") as store:
        for path in ARRAYS:
            zarr.create_array(store, name=path, shape=(CHUNKS * CHUNK,), chunks=(CHUNK,), dtype="i8")
        for path in GROUPS:
            zarr.create_group(store, path=path, attributes={"value": 0})


def read(session: Any, register: Register) -> int:
    path, number = register
    if path in GROUPS:
        return int(zarr.open_group(session.store, path=path, mode="r").attrs["value"])  # type: ignore[arg-type]  # a number
    values = zarr.open_array(session.store, path=path, mode="r")[number * CHUNK : number * CHUNK + CHUNK]
    assert values.min() == values.max(), (register, values)  # type: ignore[union-attr]  # an array
    return int(values[0])  # type: ignore[index, arg-type]


def write(session: Any, register: Register, value: int) -> None:
    path, number = register
    if path in GROUPS:
        zarr.open_group(session.store, path=path, mode="r+").attrs["value"] = value
    else:
        zarr.open_array(session.store, path=path, mode="r+")[number * CHUNK : number * CHUNK + CHUNK] = value


def steps(repo: Repository, number: int, seed: int, isolation: Any) -> Steps:
    """Carry out a transaction, step by step; return ``None`` if it ends with a conflict."""
    rng = random.Random(f"{seed}-{number}")
    # Under snapshot isolation, the first who commits a chunk wins: cycles are then of what was read, and not of lost updates.
    solver = rng.choice(SOLVERS) if isolation == "serializable" else ConflictDetector()
    session = repo.writable_session(isolation=isolation)
    place = session.fork() if rng.random() < 0.25 else session
    reads: dict[Register, int] = {}
    writes: dict[Register, int] = {}
    yield
    try:
        for step in range(rng.randint(2, 5)):
            register = rng.choice(REGISTERS)
            if register not in writes and (step == 0 or rng.random() < 0.5):
                value = read(place, register)
                assert reads.setdefault(register, value) == value or isolation == "snapshot", "what was read has changed"
            else:
                # Whoever writes an attribute reads the document first.
                if register[0] in GROUPS and register not in writes:
                    reads.setdefault(register, read(place, register))
                writes[register] = 10 * number + step
                write(place, register, writes[register])
            yield
            if place is session and rng.random() < 0.1:
                session.rebase(solver)
        if place is not session:
            session.merge(place)  # type: ignore[arg-type]  # it is a fork then
        if not writes:
            return None
        return Transaction(number, reads, writes, session.commit(f"{number}", rebase_with=solver))
    except ConflictError:
        return None


def in_turns(repo: Repository, transactions: int, seed: int, isolation: Any, *, clients: int = 8) -> list[Transaction]:
    """Let clients carry out transactions, step by step in a random order that the seed decides."""
    rng = random.Random(seed)
    done: list[Transaction] = []
    waiting = [steps(repo, number, seed, isolation) for number in range(1, transactions + 1)]
    running, waiting = waiting[:clients], waiting[clients:]
    while running:
        place = rng.randrange(len(running))
        try:
            next(running[place])
        except StopIteration as end:
            if end.value is not None:
                done.append(end.value)
            running[place : place + 1] = waiting[:1]
            waiting = waiting[1:]
    return done


def in_threads(repo: Repository, transactions: int, seed: int, isolation: Any, *, clients: int = 8) -> list[Transaction]:
    """Let clients carry out transactions, each in a thread."""

    def carry_out(number: int) -> Transaction | None:
        running = steps(repo, number, seed, isolation)
        while True:
            try:
                next(running)
            except StopIteration as end:
                found: Transaction | None = end.value
                return found

    with ThreadPoolExecutor(clients) as pool:
        return [done for done in pool.map(carry_out, range(1, transactions + 1)) if done is not None]


def dependencies(order: Sequence[Transaction]) -> dict[int, set[int]]:
    """Return who comes after whom, of transactions in the order of their snapshots: all that come after each.

    Raises:
        AssertionError: a value was read that nobody has committed.
    """
    versions: dict[Register, list[tuple[int, int]]] = {register: [(0, 0)] for register in REGISTERS}
    for transaction in order:
        for register, value in transaction.writes.items():
            versions[register].append((value, transaction.number))
    after: dict[int, set[int]] = {number: set() for number in (0, *(transaction.number for transaction in order))}
    for known in versions.values():
        for (_, earlier), (_, later) in itertools.pairwise(known):
            after[earlier].add(later)
    for transaction in order:
        for register, value in transaction.reads.items():
            known = versions[register]
            place = next((place for place, (version, _) in enumerate(known) if version == value), None)
            assert place is not None, f"{transaction} read {value} of {register}, which nobody has committed"
            after[known[place][1]].add(transaction.number)
            if place + 1 < len(known):
                after[transaction.number].add(known[place + 1][1])
    return {one: later - {one} for one, later in after.items()}


def cycle(after: Mapping[int, set[int]]) -> list[int] | None:
    """Return transactions of which each comes after the one before, and the first after the last; ``None`` if there are none."""
    state: dict[int, bool] = {}  # False: on the path
    for start in after:
        if start in state:
            continue
        path, left = [start], [iter(sorted(after[start]))]
        state[start] = False
        while path:
            following = next(left[-1], None)
            if following is None:
                state[path.pop()] = True
                left.pop()
            elif following not in state:
                state[following] = False
                path.append(following)
                left.append(iter(sorted(after[following])))
            elif not state[following]:
                return path[path.index(following) :]
    return None


def in_order(repo: Repository, done: Sequence[Transaction]) -> list[Transaction]:
    """Return transactions in the order of their snapshots. Raises ``AssertionError`` if these are not their snapshots."""
    by_snapshot = {transaction.snapshot: transaction for transaction in done}
    order = [info.id for info in repo.ancestry()][::-1][2:]  # the first two made the repository and the registers
    assert sorted(order) == sorted(by_snapshot)
    return [by_snapshot[snapshot] for snapshot in order]


def assert_contents(repo: Repository, order: Sequence[Transaction], every: int) -> None:
    """Compare the contents of some snapshots, and of the last, with what was committed until then."""
    expected = dict.fromkeys(REGISTERS, 0)
    for place, transaction in enumerate(order):
        expected.update(transaction.writes)
        if place % every == 0 or place == len(order) - 1:
            session = repo.readonly_session(snapshot_id=transaction.snapshot)
            assert {register: read(session, register) for register in REGISTERS} == expected, transaction
