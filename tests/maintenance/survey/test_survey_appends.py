"""Records of appends in surveys, and in what is made of them for people and programs."""

from __future__ import annotations

import uuid

import pytest

from shardstore.apps.reports.words import array_rows
from shardstore.engine.engine import Engine
from shardstore.format.append_record import AppendRecord
from shardstore.maintenance.appends import Appends, Reserved
from shardstore.maintenance.survey.run import ArraySurvey, survey
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests.maintenance.records import KEY, make, put, record
from tests.stored import on_io_loop

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")


@pytest.fixture
def storage() -> MemoryStorage:
    place = MemoryStorage(f"/survey-appends-{uuid.uuid4().hex}")
    make(place)
    return place


def surveyed(storage: MemoryStorage | TraceStorage, path: str = "", *, indices: bool = True) -> dict[str, ArraySurvey]:
    return {array.path: array for array in on_io_loop(survey(Engine(storage), path, indices=indices)).arrays}


def text(array: ArraySurvey) -> str:
    (found,) = [words for label, words in array_rows(array, "memory") if label == "appends"]
    return found


def test_a_record_is_read_and_is_no_other_object(storage: MemoryStorage) -> None:
    put(storage, record(12, 10).reserve("aa", 3, 30).reserve("bb", 1, 30).finish("bb").reserve("cc", 1, 30).evict("cc"))
    expected = Appends(KEY, "time", 12, 10, (Reserved("aa", 12, 3, False), Reserved("bb", 15, 1, True)), 1)
    for path in ("", "g", "g/time"):
        arrays = surveyed(storage, path)
        time = arrays["g/time"]
        assert time.appends == (expected,)
        assert time.usage is not None
        assert time.usage.other_objects == 0
        assert all(array.appends == () for name, array in arrays.items() if name != "g/time")
    assert text(time) == (
        "10 rows of 'time', and 2 more that are not shown yet; reserved: rows 12 to 14 (aa, not stored yet), row 15 (bb, stored); "
        "1 reservation taken back"
    )


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (record(10), "10 rows of 'time'"),
        (record(1).close(True), "1 row of 'time'; closed, since the arrays are being moved"),
        (b"{}", f"{KEY} cannot be read, and appends are refused: "),
    ],
)
def test_each_state_is_in_the_rows_of_its_array(storage: MemoryStorage, stored: AppendRecord | bytes, words: str) -> None:
    put(storage, stored)
    assert text(surveyed(storage)["g/time"]).startswith(words)


@pytest.mark.parametrize("key", ["g/y/time.append.json", "g/time.append.json"])
def test_what_is_no_record_is_another_object(storage: MemoryStorage, key: str) -> None:
    put(storage, record(10), key)
    arrays = surveyed(storage)
    assert not any(array.appends for array in arrays.values())
    assert [label for label, _ in array_rows(arrays["g/y"], "memory") if label == "other"] == ["other"] * key.startswith("g/y")


def test_a_record_costs_one_request_and_none_where_none_is_listed(storage: MemoryStorage) -> None:
    def requests(*, indices: bool = True) -> int:
        trace = TraceStorage(storage)
        surveyed(trace, indices=indices)
        return trace.summary().requests

    before, before_fast = requests(), requests(indices=False)
    put(storage, record(10))
    assert (requests(), requests(indices=False)) == (before + 1, before_fast)
