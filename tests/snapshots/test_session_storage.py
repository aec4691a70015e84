"""Sessions as storages: conditions while files are read, and what the contract of storages leaves to each kind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from shardstore.errors import InvalidInput
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, IfGeneration
from shardstore.model.ranges import EVERYTHING
from shardstore.snapshots import Repository
from shardstore.snapshots.files import StoreFiles
from shardstore.snapshots.session import SessionCore
from shardstore.snapshots.session_storage import SessionStorage
from shardstore.storage.base import ConditionFailed, Found, Read
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.latency import LatencyStorage
from shardstore.testing.storage_suite import SyncStorage
from tests.snapshots.repositories import create_array, new_repository, run
from tests.snapshots.session_keys import array_document


def winners(attempt: Callable[[int], Awaitable[bool | None]]) -> list[int]:
    """Run an attempt for each of 16 numbers at once; return the numbers of those that changed something."""

    async def one(number: int) -> bool:
        try:
            return await attempt(number) is not False
        except ConditionFailed:
            return False

    async def race() -> list[bool]:
        return await asyncio.gather(*map(one, range(16)))

    return [number for number, won in enumerate(run(race())) if won]


LONG = {"text": "x" * 20_000}
"""Attributes that are stored in a file of their own."""


@pytest.fixture
def committed(tmp_path: Path) -> SyncStorage:
    """A new session on an array whose manifest and whose attributes have to be read, which takes its time."""
    session = new_repository(tmp_path).writable_session()
    array = create_array(session, "a", np.zeros(40, dtype="u1"), (2,), attributes=LONG)
    array[:2] = array[38:] = 1
    session.commit("data")
    slow = LatencyStorage(MemoryStorage(str(tmp_path)), 0.002)
    return SyncStorage(Repository.open(slow).writable_session().storage)


def test_one_of_many_creates_a_chunk(committed: SyncStorage) -> None:
    async def create(number: int) -> None:
        await committed.storage.write("a/c/5", [b"%2d" % number], 2, IF_ABSENT)

    (winner,) = winners(create)
    assert committed.get("a/c/5") == b"%2d" % winner


def session_of(s: SyncStorage) -> SessionCore:
    assert isinstance(s.storage, SessionStorage)
    return s.storage.session


def forget_files(s: SyncStorage) -> None:
    """Let the session read again what it has read, which takes its time."""
    session = session_of(s)
    session.files = StoreFiles(session.files.storage)


def version_of(s: SyncStorage, key: str) -> IfGeneration:
    info = s.stat(key)
    assert info is not None
    assert info.generation is not None
    return IfGeneration(info.generation)


def test_one_of_many_replaces_a_chunk_or_erases_it(committed: SyncStorage) -> None:
    condition = version_of(committed, "a/c/0")

    async def change(number: int) -> bool:
        if number % 2:
            return await committed.storage.delete("a/c/0", condition)
        await committed.storage.write("a/c/0", [b"%2d" % number], 2, condition)
        return True

    (winner,) = winners(change)
    assert committed.get("a/c/0") == (None if winner % 2 else b"%2d" % winner)


def test_one_of_many_replaces_a_document(committed: SyncStorage) -> None:
    condition = version_of(committed, "a/zarr.json")
    forget_files(committed)
    documents = [array_document([40], [2], attributes={"number": number}) for number in range(16)]

    async def change(number: int) -> None:
        await committed.storage.write("a/zarr.json", [documents[number]], len(documents[number]), condition)

    (winner,) = winners(change)
    assert committed.get("a/zarr.json") == documents[winner]


def test_an_array_that_is_deleted_while_its_document_is_replaced_is_a_new_one(committed: SyncStorage) -> None:
    document = array_document([40], [2])
    assert committed.get("a/c/0") is not None
    forget_files(committed)

    async def race() -> None:
        replacing = asyncio.ensure_future(committed.storage.write("a/zarr.json", [document], len(document), UNCONDITIONAL))
        await asyncio.sleep(0.001)
        assert not replacing.done()
        session_of(committed).remove_node("a")
        await replacing

    run(race())
    assert committed.keys() == ["a/zarr.json", "zarr.json"]


# -- what the contract leaves to each kind -----------------------------------------------------------------------------


def test_prefixes_that_no_node_is_below_are_not_renamed(tmp_path: Path) -> None:
    session = new_repository(tmp_path).writable_session()
    create_array(session, "a", np.arange(8), (2,))
    s = SyncStorage(session.storage)
    before = s.infos()
    for source, target in [("a/c", "b"), ("nothing", "b"), ("a/c", "a/c/1")]:
        assert s.rename_prefix(source, target) is False
    with pytest.raises(InvalidInput, match="inside of it"):
        s.rename_prefix("a", "a/b")
    assert s.infos() == before


def test_other_keys_are_refused_with_the_remedy(tmp_path: Path) -> None:
    session = new_repository(tmp_path).writable_session()
    create_array(session, "a", np.arange(8), (2,))
    s = SyncStorage(session.storage)
    before = s.infos()
    for key in ("notes.txt", "a/notes.txt", "a/c/00", "a/c/1/1", "a/c/99999999999999999999", "b/c/0", "c/0", "a/b/c/0"):
        assert s.get(key) is None
        assert s.delete(key) is False
        with pytest.raises(InvalidInput, match="Create the array first"):
            s.put(key, b"1")
    assert s.infos() == before


def test_chunks_of_several_arrays_are_read_in_the_rounds_of_one(tmp_path: Path) -> None:
    """Each array has a manifest and a chunk file of its own."""
    repo = new_repository(tmp_path)
    for name in "abcde":
        session = repo.writable_session()
        create_array(session, name, np.arange(1000), (1000,), compressors=None)
        session.commit(name)
    at_once: list[int] = []
    waiting = 0

    async def sleep(seconds: float) -> None:
        nonlocal waiting
        waiting += 1
        at_once.append(waiting)
        await asyncio.sleep(seconds)
        waiting -= 1

    slow = LatencyStorage(MemoryStorage(str(tmp_path)), 0.005, sleep=sleep)
    storage = Repository.open(slow).readonly_session().storage
    at_once.clear()
    outcomes = run(storage.read([Read(f"{name}/c/0", (EVERYTHING,)) for name in "abcde"]))
    assert all(isinstance(outcome, Found) for outcome in outcomes)
    assert at_once == [1, 2, 3, 4, 5] * 2, "first the manifests, then the chunks"
