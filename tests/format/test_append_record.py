"""The record of appends: reservations lie one behind the other, and only what never moves is committed."""

from __future__ import annotations

import random

import pytest

from shardstore.errors import Corruption
from shardstore.format.append_record import EVICTED_KEPT, AppendRecord, is_record_key, record_key, record_place


def line(*rows: int, committed: int = 10) -> AppendRecord:
    """Return a record with open reservations "0", "1", … of so many rows."""
    record = AppendRecord("time", committed, committed)
    for number, count in enumerate(rows):
        record = record.reserve(str(number), count, 30.0)
    return record


def test_reservations_follow_one_another() -> None:
    record = line(3, 2, 5)
    assert [record.start_of(one.id) for one in record.open] == [10, 13, 15]
    assert (record.end, record.committed, record.shown) == (20, 10, 10)


def test_a_reservation_that_is_repeated_finds_itself() -> None:
    record = line(3)
    assert record.reserve("0", 3, 30.0) is record


def test_only_the_beginning_of_the_line_is_committed() -> None:
    record = line(3, 2, 5).finish("1")
    assert record.committed == 10
    assert record.start_of("2") == 15
    record = record.finish("0")
    assert record.committed == 15
    assert [one.id for one in record.open] == ["2"]
    assert record.start_of("2") == 15


def test_those_behind_an_evicted_one_move_down_and_are_not_done() -> None:
    record = line(3, 2, 5).finish("2").finish("0").evict("1")
    assert record.committed == 13
    assert record.start_of("2") == 13
    assert not record.open[0].done
    assert record.fate("1", 0) == "evicted"


def test_what_is_unknown_is_changed_by_nothing() -> None:
    record = line(3).finish("0")
    for same in (record.finish("0"), record.evict("0"), record.give_sign("0"), record.show(10)):
        assert same is record
    assert record.fate("0", 1) == "committed"


def test_every_change_gives_other_bytes() -> None:
    first = line(3)
    signs = [first, first.give_sign("0"), first.give_sign("0").give_sign("0"), first.finish("0"), first.evict("0"), first.take_over(10)]
    assert len({record.encode() for record in signs}) == len(signs)


def test_what_became_of_a_reservation_is_unknown_if_it_may_have_been_forgotten() -> None:
    record = line(1, 1)
    turn = record.turn
    record = record.evict("0")
    for number in range(EVICTED_KEPT):
        record = record.reserve(f"x{number}", 1, 30.0).evict(f"x{number}")
    assert "0" not in record.evicted
    assert record.fate("0", turn) == "unknown"


@pytest.mark.parametrize("seed", range(20))
def test_rows_never_overlap_and_starts_only_fall(seed: int) -> None:
    rng = random.Random(seed)
    record = AppendRecord("time", 0, 0)
    starts: dict[str, int] = {}
    committed: dict[str, int] = {}
    for number in range(200):
        before = record
        name = rng.choice([one.id for one in record.open] or [""])
        match rng.choice(["reserve", "finish", "evict", "sign"]):
            case "reserve":
                record = record.reserve(f"{number}", rng.randint(1, 5), 1.0)
            case "finish":
                record = record.finish(name)
            case "evict":
                record = record.evict(name)
            case "sign":
                record = record.give_sign(name)
        committed.update({one.id: before.start_of(one.id) for one in before.open if record.fate(one.id, 0) == "committed"})
        assert record.committed >= before.committed
        at = record.committed
        for one in record.open:
            assert record.start_of(one.id) == at
            assert at <= starts.get(one.id, at)
            starts[one.id] = at
            at += one.rows
        assert AppendRecord.parse("key", record.encode()) == record


def test_a_name_that_no_key_could_have_is_quoted() -> None:
    assert record_key("a/time", "time") == "a/time/time.append.json"
    assert record_key("", "x/y ä") == "x%2Fy%20%C3%A4.append.json"
    assert is_record_key("a/time/time.append.json")
    assert not is_record_key("a/time/zarr.json")


@pytest.mark.parametrize(("path", "dim"), [("a/time", "time"), ("", "x/y ä"), ("t", "a.append.json"), ("t", "50%")])
def test_the_place_of_a_record_is_known_by_its_key(path: str, dim: str) -> None:
    assert record_place(record_key(path, dim)) == (path, dim)


@pytest.mark.parametrize("key", ["a/time/zarr.json", "a/x y.append.json", "a/%74ime.append.json", "a.append.json/c"])
def test_another_key_is_the_place_of_no_record(key: str) -> None:
    assert record_place(key) is None


def test_a_record_that_is_closed_is_so_when_it_is_read() -> None:
    record = line(3).finish("0")
    closed = record.close(True)
    assert AppendRecord.parse("key", closed.encode()).closed
    assert closed.close(True) is closed
    again = closed.close(False)
    assert not AppendRecord.parse("key", again.encode()).closed
    assert len({record.encode(), closed.encode(), again.encode()}) == 3


@pytest.mark.parametrize("change", ['"committed":-1', '"committed":true', '"open":[{}]', '"dim":3', '"turn":"1"', '"open":0'])
def test_what_is_no_record_is_refused(change: str) -> None:
    name = change.partition(":")[0]
    text = line(3).encode().decode()
    at = text.index(name)
    broken = text[:at] + change + "," + text[at:].partition(",")[2] if name != '"open"' else text[:at] + change + ',"evicted":[]}'
    with pytest.raises(Corruption, match="when nothing is being appended, remove it"):
        AppendRecord.parse("time/time.append.json", broken.encode())
