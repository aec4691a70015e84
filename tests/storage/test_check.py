"""What the engine relies on holds whatever a storage does."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import CancelledError

import pytest

from shardstore.errors import Conflict, NotFound, StorageError, WriteOutcomeUnknown
from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import EVERYTHING, ByteRange, BytesLike, ByteSuffix
from shardstore.storage.base import CHANGED, DirListing, Failed, Found, ObjectInfo, Read, ReadOutcome
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.wrappers import CheckedStorage
from shardstore.testing.faults import Cancel, Change, Delay, Fault, FaultStorage, Truncate
from shardstore.testing.storage_suite import SyncStorage, on_io_loop, values
from tests.harness.virtual_time import no_sleep
from tests.testing.test_faults import CHANGING, change


@pytest.fixture
def faults() -> FaultStorage:
    return FaultStorage(MemoryStorage(f"/check-{uuid.uuid4().hex}"))


@pytest.fixture
def storage(faults: FaultStorage) -> CheckedStorage:
    return CheckedStorage(faults, no_sleep)


def test_short_ranges_are_errors(faults: FaultStorage, s: SyncStorage) -> None:
    s.put("a", b"0123456789")
    wanted = (ByteRange(2, 5), ByteSuffix(4), ByteRange(8, 20), ByteRange(20, 30), EVERYTHING)
    whole = s.read("a", *wanted)
    assert isinstance(whole, Found)
    for at, buffer in enumerate(values(whole), 1):
        faults.plan(Fault(at, Truncate(1)))
        cut, other = s.read_many(Read("a", wanted), Read("a", (EVERYTHING,)))
        assert isinstance(other, Found)
        if len(buffer) > 1:
            assert isinstance(cut, Failed)
            assert isinstance(cut.error, StorageError)
        else:
            assert cut == whole


def test_what_keeps_changing_is_not_absent(faults: FaultStorage, s: SyncStorage) -> None:
    generation = s.put("a", b"1")
    s.put("b", b"2")
    s.put("before", b"3")
    reads = [Read("before", (EVERYTHING,)), Read("a", (EVERYTHING,)), Read("b", (EVERYTHING,))]
    faults.plan(Fault(1, Change(), keys="a", times=2))
    assert [values(found) for found in s.read_many(*reads) if isinstance(found, Found)] == [[b"3"], [b"1"], [b"2"]]
    # What comes later in the round is to be true of what comes before: it is read again as well.
    assert [request.key for request in faults.requests] == ["before", "a", "b", "a", "b", "a", "b"]
    faults.plan(Fault(1, Change(), keys="a", times=None))
    _, changing, found = s.read_many(*reads)
    assert isinstance(changing, Failed)
    assert isinstance(changing.error, Conflict)
    assert isinstance(found, Found)
    faults.plan(Fault(1, Change()))
    assert s.read_many(Read("a", (EVERYTHING,), generation)) == [CHANGED]  # of one version that is an answer
    assert len(faults.requests) == 1


@pytest.mark.parametrize("after", [False, True])
def test_what_nobody_cancelled_is_an_error(faults: FaultStorage, s: SyncStorage, after: bool) -> None:
    for operation in CHANGING:
        s.delete_many(*s.keys())
        s.put("a/x", b"1")
        faults.plan(Fault(1, Cancel(after), operations=frozenset({operation})))
        with pytest.raises(WriteOutcomeUnknown, match="broken off"):
            change(s, operation)
    s.put("a/x", b"1")
    questions: dict[str, Callable[[str], object]] = {"stat": s.stat, "list": s.keys, "list_dir": s.children, "read": s.get}
    for operation, ask in questions.items():
        faults.plan(Fault(1, Cancel(after), operations=frozenset({operation})))
        with pytest.raises(StorageError, match="broken off"):
            ask("a/")


def test_who_is_cancelled_is_cancelled(faults: FaultStorage, s: SyncStorage) -> None:
    s.put("a", b"1")

    async def waits(_seconds: float) -> None:
        await asyncio.Event().wait()

    waiting = CheckedStorage(FaultStorage(faults, [Fault(1, Delay())], waits))

    async def cancelled() -> None:
        task = asyncio.ensure_future(waiting.read([Read("a", (EVERYTHING,))]))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(CancelledError):
        on_io_loop(cancelled())


# -- absence -------------------------------------------------------------------------------------------------------------


class ReadsThroughWhatIsGone(MemoryStorage):
    """Says ``NotFound`` of everything, in each of the ways in which a storage can."""

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        if len(reads) > 1:
            raise NotFound("the archive is gone")
        return [Failed(NotFound("the archive is gone"))]

    async def stat(self, key: str) -> ObjectInfo | None:
        raise NotFound("the archive is gone")

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for _ in (prefix,):
            raise NotFound("the archive is gone")
        yield ObjectInfo(prefix, 0)

    async def list_dir(self, prefix: str) -> DirListing:
        raise NotFound("the archive is gone")


def test_what_a_storage_reads_through_and_is_gone_is_no_missing_key() -> None:
    s = SyncStorage(CheckedStorage(ReadsThroughWhatIsGone("/gone"), no_sleep))
    one, both = s.read_many(Read("a", ())), s.read_many(Read("a", ()), Read("b", ()))
    for outcome in (*one, *both):
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, StorageError)
        assert not isinstance(outcome.error, NotFound | KeyError | FileNotFoundError)
        assert "reading 'a' in " in str(outcome.error)
        assert "the archive is gone" in str(outcome.error)
    for look in (lambda: s.stat("a"), lambda: s.infos(), lambda: on_io_loop(s.storage.list_dir(""))):
        with pytest.raises(StorageError, match="what it reads through is gone: the archive is gone") as caught:
            look()
        assert not isinstance(caught.value, NotFound)


class ArrayDeleted(MemoryStorage):
    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        raise NotFound("the array was deleted")


def test_what_is_to_be_written_to_and_is_gone_is_said_as_it_is() -> None:
    with pytest.raises(NotFound, match="the array was deleted"):
        SyncStorage(CheckedStorage(ArrayDeleted("/deleted"), no_sleep)).put("a", b"x")
