"""What is proved of a damaged index, and above all what is not."""

from __future__ import annotations

import numpy as np
import pytest

from shardstore.format import index_proofs
from shardstore.format.index_proofs import (
    agreeing,
    claims,
    contiguous,
    continues,
    corrected,
    erases_only,
    have_unique_length,
    is_sound,
    last_chunk_end,
    names_missing_bytes,
    only,
    without_checksum,
)
from shardstore.format.shard_index import EMPTY, IndexFormat, ShardIndex

FORMAT = IndexFormat((4,))
START = IndexFormat((4,), location="start")
GONE = (EMPTY, EMPTY)


def index_of(*entries: tuple[int, int]) -> ShardIndex:
    return ShardIndex(np.array(entries, dtype=np.uint64).reshape(-1, 2))


def entries_of(index: ShardIndex) -> list[tuple[int, int]]:
    return [tuple(entry) for entry in index.flat.tolist()]


SOUND = index_of((0, 10), (10, 5), GONE, (20, 0))
NBYTES = 30 + FORMAT.nbytes


def test_sound_is_what_overlaps_nothing() -> None:
    assert is_sound(FORMAT, SOUND, NBYTES)
    assert is_sound(FORMAT, index_of((0, 10), (5, 0), GONE, GONE), NBYTES)  # nothing lies nowhere
    assert not is_sound(FORMAT, index_of((0, 10), (9, 1), GONE, GONE), NBYTES)
    assert not is_sound(FORMAT, index_of((0, 31), GONE, GONE, GONE), NBYTES)  # on the index
    assert not is_sound(START, SOUND, NBYTES)
    assert is_sound(START, index_of((START.nbytes, 30), GONE, GONE, GONE), NBYTES)


def test_a_wrong_checksum_over_right_entries_is_one_wrong_byte_too() -> None:
    encoded = bytearray(FORMAT.encode(SOUND))
    encoded[-2] ^= 0x10
    found = corrected(FORMAT, bytes(encoded), NBYTES)
    assert found is not None
    assert entries_of(found) == entries_of(SOUND)


def test_of_two_corrections_that_make_sense_neither_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = bytearray(FORMAT.encode(SOUND))
    encoded[8] ^= 3
    assert corrected(FORMAT, bytes(encoded), NBYTES) is not None
    monkeypatch.setattr(index_proofs, "single_corrections", lambda nbytes, difference: [(8, 3), (8, 1)])
    assert corrected(FORMAT, bytes(encoded), NBYTES) is None
    monkeypatch.setattr(index_proofs, "single_corrections", lambda nbytes, difference: [(8, 3), (0, 5)])  # the other one overlaps
    assert corrected(FORMAT, bytes(encoded), NBYTES) is not None


def test_two_wrong_bytes_are_not_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        encoded = bytearray(FORMAT.encode(SOUND))
        for position in rng.choice(FORMAT.nbytes - 4, 2, replace=False):
            encoded[position] ^= int(rng.integers(1, 256))
        assert corrected(FORMAT, bytes(encoded), NBYTES) is None


def test_claims_are_of_bytes_that_are_nobody_elses() -> None:
    on_the_index = (NBYTES - 8, 8)
    found = claims(FORMAT, index_of((0, 10), (20, 5), (20, 5), on_the_index), NBYTES)
    assert entries_of(found) == [(0, 10), GONE, GONE, GONE]
    assert entries_of(claims(START, index_of((0, 10), (START.nbytes - 1, 2), (START.nbytes, 2), (99, 9)), NBYTES))[:3] == [
        GONE,
        GONE,
        (68, 2),
    ]
    assert entries_of(claims(FORMAT, index_of((EMPTY, 4), (4, EMPTY), GONE, (EMPTY - 1, 9)), NBYTES)) == [GONE] * 4


def test_the_order_has_to_be_told_by_what_is_left() -> None:
    """Of two orders that agree in some entries, none is chosen by those."""
    one, other = np.array([0, 1, 2, 3]), np.array([0, 2, 1, 3])
    encoded = FORMAT.encode(index_of((0, 7), (7, 7), (14, 7), (21, 7)))
    found = contiguous(FORMAT, 7, encoded, [one, other])
    assert found is not None
    assert entries_of(found) == [(0, 7), (7, 7), (14, 7), (21, 7)]
    undecided = encoded[:16] + bytes(32) + encoded[48:]
    assert contiguous(FORMAT, 7, undecided, [one, other]) is None
    assert contiguous(FORMAT, 7, undecided, [one, one]) is not None
    assert contiguous(FORMAT, 7, bytes(len(encoded)), [one, one]) is None
    assert contiguous(FORMAT, 7, b"", [one, one]) is None
    alone = IndexFormat((1,))
    assert contiguous(alone, 7, bytes(alone.nbytes), [np.array([0])]) is not None
    assert contiguous(alone, 7, b"", [np.array([0])]) is None


def test_an_index_continues_another_where_chunks_were_kept_or_all_were_replaced() -> None:
    older = index_of((0, 10), (10, 5), GONE, GONE)
    end, start = 100, 150
    assert continues(index_of((0, 10), (100, 50), GONE, GONE), older, end, start)
    assert continues(index_of((100, 20), (120, 30), GONE, GONE), older, end, start)
    assert not continues(index_of((100, 20), (120, 29), GONE, GONE), older, end, start)  # something lies between
    assert not continues(index_of((100, 50), (1, 1), (EMPTY, 3), (10, 5)), index_of((7, 7), (8, 8), (9, 9), (6, 6)), end, start + 1)
    assert not continues(index_of((3, 3), (3, 3), (3, 3), (3, 3)), older, end, start)
    many = index_of((0, 1), (1, 1), (2, 1), (3, 1))
    assert not continues(index_of((0, 1), (9, 9), (9, 9), (9, 9)), many, end, start)  # by chance
    assert not continues(index_of(GONE, GONE, GONE, GONE), index_of(GONE, GONE, GONE, GONE), end, start)


def test_parts_of_an_index() -> None:
    assert entries_of(agreeing(index_of((0, 10), (10, 5), GONE, (9, 9)), SOUND)) == [(0, 10), (10, 5), GONE, GONE]
    assert entries_of(only(SOUND, np.array([False, True, True, False]))) == [GONE, (10, 5), GONE, GONE]
    assert entries_of(without_checksum(FORMAT, FORMAT.encode(SOUND)[:-4] + b"nope")) == entries_of(SOUND)


# -- where chunks lie ------------------------------------------------------------------------------------------------------


def test_entries_on_the_index() -> None:
    index = index_of((0, 10), (25, 5), (29, 2), (30, 0))
    assert FORMAT.on_index(index, NBYTES).tolist() == [False, False, True, False]
    assert FORMAT.on_index(index_of((0, NBYTES), (NBYTES - 1, 1), (NBYTES, 1), GONE), NBYTES).tolist() == [True, True, False, False]
    at = START.nbytes
    assert START.on_index(index_of((at, 10), (at - 1, 1), (0, 2**63), (2**64 - 3, 9)), NBYTES).tolist() == [False, True, False, False]


@pytest.mark.parametrize(("index_format", "begin"), [(FORMAT, 0), (START, START.nbytes)], ids=["end", "start"])
def test_an_entry_behind_the_last_byte_says_that_bytes_are_missing(index_format: IndexFormat, begin: int) -> None:
    def names_missing(*entry: int) -> bool:
        return names_missing_bytes(index_format, index_of((begin, 10), (entry[0], entry[1]), GONE, GONE), NBYTES)

    assert not names_missing(begin + 10, 20)
    assert names_missing(begin + 10, 21)
    assert names_missing(10**9, 0)
    for nonsense in [(EMPTY, 3), (3, EMPTY), (2**64 - 8, 16)]:  # which no object has ever had
        assert not names_missing(*nonsense)


def test_where_the_last_chunk_ends() -> None:
    assert last_chunk_end(FORMAT, SOUND) == 20
    assert (last_chunk_end(FORMAT, index_of(GONE)), last_chunk_end(START, index_of(GONE))) == (0, START.nbytes)


def test_what_only_erases_takes_no_entry_from_elsewhere() -> None:
    assert erases_only(index_of((0, 10), GONE, GONE, GONE), SOUND)
    assert not erases_only(SOUND, SOUND)
    assert not erases_only(index_of((0, 10), (10, 5), (15, 5), (20, 0)), SOUND)
    assert not erases_only(index_of((0, 9), GONE, GONE, GONE), SOUND)


def own(index_format: IndexFormat, *entries: tuple[int, int]) -> list[bool]:
    return [bool(is_own) for is_own in have_unique_length(index_format, index_of(*entries))]


def test_chunks_of_their_own_length_in_a_shard_without_gaps() -> None:
    at = START.nbytes
    assert own(FORMAT, (0, 10), (10, 5), GONE, (15, 10)) == [False, True, False, False]
    assert own(START, (at + 5, 10), (at, 5), GONE, (at + 15, 2**40)) == [True, True, False, True]
    assert own(FORMAT, (0, 10), (0, 10), (10, 5), GONE) == [True, True, True, False]  # two slots with the same bytes
    for entries in [
        ((1, 10), (11, 5)),  # something is before them
        ((0, 10), (11, 5)),  # or between them
        ((0, 10), (9, 5)),  # they overlap
        ((0, 10), (10, EMPTY)),  # one entry is nonsense: what lies where is not known
        ((0, 10), (10, 2**64 - 5)),
    ]:
        assert own(FORMAT, *entries, GONE, GONE) == [False] * 4
    assert own(FORMAT, GONE, GONE, GONE, GONE) == [False] * 4
