"""What verification says of records of appends."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence

import pytest

from shardstore.engine.engine import Engine
from shardstore.format.append_record import AppendRecord
from shardstore.maintenance.execution import Execution
from shardstore.maintenance.verify.findings import Finding
from shardstore.maintenance.verify.run import VerifyReport, verify_engine
from shardstore.model.generation import UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Found, Read, ReadOutcome
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.wrappers import StorageWrapper
from shardstore.testing.trace import TraceStorage
from tests.maintenance.records import KEY, make, put, record, resize

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")


@pytest.fixture
def storage() -> MemoryStorage:
    place = MemoryStorage(f"/verify-appends-{uuid.uuid4().hex}")
    make(place)
    return place


def verified(storage: MemoryStorage | StorageWrapper, path: str = "") -> VerifyReport:
    return verify_engine(Engine(storage), path, execution=Execution(workers=1))


def of_record(report: VerifyReport) -> list[Finding]:
    """Return the findings, without those on chunks that a shorter array leaves."""
    found = [finding for finding in report.findings if finding.kind != "outside"]
    assert {finding.key for finding in found} == {KEY}
    return found


def only(report: VerifyReport) -> Finding:
    (finding,) = of_record(report)
    return finding


@pytest.mark.parametrize("stored", [record(10), record(12, 10), record(11, 10), record(12, 8)])
def test_a_record_that_fits_is_no_finding(storage: MemoryStorage, stored: AppendRecord) -> None:
    put(storage, stored)
    for path in ("", "g", "g/time"):
        assert verified(storage, path).findings == ()


def test_open_reservations_are_noted(storage: MemoryStorage) -> None:
    put(storage, record(10).reserve("aa", 3, 30).reserve("bb", 1, 30).finish("bb"))
    report = verified(storage)
    finding = only(report)
    assert (finding.severity, finding.kind, finding.path) == ("note", "reserved", "g/time")
    assert "rows 10 to 12 (aa), row 13 (bb)" in finding.what
    assert report.is_sound


@pytest.mark.parametrize("bad", [b"", b"{}", b"[1]", b'{"dim": "time"}'])
def test_a_record_that_cannot_be_read_is_an_error_with_a_remedy(storage: MemoryStorage, bad: bytes) -> None:
    put(storage, bad)
    finding = only(verified(storage))
    assert (finding.severity, finding.kind) == ("error", "append-record")
    assert "remove it" in finding.remedy


@pytest.mark.parametrize("lengths", [{"time": 8, "t": 8}, {"time": 20, "t": 20}, {"t": 9}])
def test_lengths_that_contradict_a_record_with_reservations_are_an_error(storage: MemoryStorage, lengths: dict[str, int]) -> None:
    put(storage, record(10).reserve("aa", 3, 30))
    resize(storage, **lengths)
    found = of_record(verified(storage))
    assert [(finding.severity, finding.kind) for finding in found] == [("error", "append-record"), ("note", "reserved")]
    assert "1 reservation is open" in found[0].what
    assert all(f"{name} {length}" in found[0].what for name, length in lengths.items())


def test_other_lengths_without_reservations_are_noted(storage: MemoryStorage) -> None:
    put(storage, record(10))
    resize(storage, time=8, t=8)
    finding = only(verified(storage))
    assert (finding.severity, finding.kind) == ("note", "changed")
    assert "refused until they have that length again" in finding.what
    resize(storage, time=12, t=12)
    assert "the next append goes on from there" in only(verified(storage)).what
    resize(storage, t=10)
    assert "refused until all have one length" in only(verified(storage)).what


def test_a_record_that_stayed_closed_is_an_error(storage: MemoryStorage) -> None:
    put(storage, record(10).close(True))
    finding = only(verified(storage))
    assert (finding.severity, finding.kind) == ("error", "append-record")
    assert "closed" in finding.what


@pytest.mark.parametrize("key", ["g/y/time.append.json", "g/time.append.json", "g/time/c/time.append.json", "time.append.json"])
def test_a_record_where_no_array_has_the_dimension_is_stray(storage: MemoryStorage, key: str) -> None:
    put(storage, record(10), key)
    (finding,) = verified(storage).findings
    assert (finding.kind, finding.key) == ("stray", key)


class Appending(StorageWrapper):
    """Beside an append that ends between the reading of the record and that of the documents, so many times."""

    def __init__(self, inner: MemoryStorage, times: int) -> None:
        super().__init__(inner)
        self.left = times
        self.at = 10

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        outcomes = await self.inner.read(reads)
        if self.left and [read.key for read in reads] == [KEY]:
            self.left -= 1
            self.at += 5
            await self._append(self.at)
        return outcomes

    async def _append(self, length: int) -> None:
        for name in ("time", "t"):
            (found,) = await self.inner.read([Read(f"g/{name}/zarr.json", (EVERYTHING,))])
            assert isinstance(found, Found)
            document = json.loads(bytes(found.buffers[0]))
            document["shape"][0] = length
            await self._put(f"g/{name}/zarr.json", json.dumps(document).encode())
        await self._put(KEY, record(length).encode())

    async def _put(self, key: str, data: bytes) -> None:
        await self.inner.write(key, [data], len(data), UNCONDITIONAL)


def test_appends_while_it_looks_are_no_contradiction(storage: MemoryStorage) -> None:
    put(storage, record(10))
    assert verified(Appending(storage, 3)).findings == ()
    put(storage, record(10))
    resize(storage, time=10, t=10)
    assert only(verified(Appending(storage, 99))).kind == "unstable"


def test_a_record_costs_two_requests_and_one_for_each_array(storage: MemoryStorage) -> None:
    def requests() -> int:
        trace = TraceStorage(storage)
        verified(trace)
        return trace.summary().requests

    without = requests()
    put(storage, record(10))
    assert requests() - without == 1 + 3  # the record, and the documents of the group's arrays again
