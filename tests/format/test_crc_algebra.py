"""Checksums of windows, and what a wrong one tells, against the checksum itself."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from shardstore.format.codecs import crc32c
from shardstore.format.crc_algebra import BEGUN, first_checked_end, single_corrections, window_checksums


def number(data: bytes) -> int:
    return int.from_bytes(crc32c(data), "little")


@given(st.binary(min_size=1, max_size=700), st.data())
def test_the_checksum_of_every_window(data: bytes, draws: st.DataObject) -> None:
    nbytes = draws.draw(st.integers(0, len(data)))
    found = window_checksums(np.frombuffer(data, dtype=np.uint8), nbytes)
    assert found.tolist() == [number(data[start : start + nbytes]) for start in range(len(data) - nbytes + 1)]


def test_windows_of_more_than_a_row() -> None:
    data = np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8)
    for nbytes in (1, 255, 256, 257, 65_540):
        found = window_checksums(data, nbytes)
        for start in (0, 1, 255, 256, 12_345, len(data) - nbytes):
            assert found[start] == number(data[start : start + nbytes].tobytes())


@given(st.binary(min_size=1, max_size=400), st.data())
def test_one_wrong_byte_is_told(data: bytes, draws: st.DataObject) -> None:
    position = draws.draw(st.integers(0, len(data) - 1))
    bits = draws.draw(st.integers(1, 255))
    wrong = bytearray(data)
    wrong[position] ^= bits
    assert (position, bits) in single_corrections(len(data), number(data) ^ number(bytes(wrong)))


@given(st.binary(min_size=1, max_size=200), st.integers(1, 2**32 - 1))
def test_every_correction_gives_the_checksum(data: bytes, difference: int) -> None:
    for position, bits in single_corrections(len(data), difference):
        right = bytearray(data)
        right[position] ^= bits
        assert number(bytes(right)) == number(data) ^ difference


@given(st.binary(min_size=1, max_size=600), st.binary(max_size=50), st.data())
def test_the_end_of_bytes_with_their_checksum_is_found_in_any_windows(body: bytes, rest: bytes, draws: st.DataObject) -> None:
    data = body + crc32c(body) + rest
    expected = next(n for n in range(5, len(data) + 1) if crc32c(data[: n - 4]) == data[n - 4 : n])
    register, done, found = BEGUN, 0, None
    while done < len(data) and found is None:
        window = data[done : done + draws.draw(st.integers(1, 300))]
        end, register = first_checked_end(np.frombuffer(window, dtype=np.uint8), register)
        found = None if end is None else done + end
        done += len(window)
    assert found == expected


def test_without_a_checksum_no_end_is_found() -> None:
    data = np.arange(200, dtype=np.uint8)
    end, register = first_checked_end(data)
    assert (end, (register ^ BEGUN).to_bytes(4, "little")) == (None, crc32c(data.tobytes()))
