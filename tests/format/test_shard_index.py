"""The shard index: golden bytes, round trips, and what is refused."""

from __future__ import annotations

import struct
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.errors import Corruption, InvalidInput
from shardstore.format.codecs import crc32c
from shardstore.format.shard_index import EMPTY, IndexCodecs, IndexFormat, ShardIndex, parse_index_codecs
from shardstore.model.chunks import ChunkLocation, ShardGrid
from shardstore.model.ranges import ByteOffset, ByteRange, ByteSuffix

LE, BE = {"name": "bytes", "configuration": {"endian": "little"}}, {"name": "bytes", "configuration": {"endian": "big"}}
shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)


def test_crc32c_is_that_of_the_standard() -> None:
    assert crc32c(b"123456789") == (0xE3069283).to_bytes(4, "little")  # RFC 3720, B.4


def test_golden_bytes() -> None:
    index = ShardIndex(np.array([[0, 5], [EMPTY, EMPTY], [5, 0], [9, 2]], dtype=np.uint64).reshape(2, 2, 2))
    body = struct.pack("<8Q", 0, 5, EMPTY, EMPTY, 5, 0, 9, 2)
    assert IndexFormat((2, 2), IndexCodecs("little", False)).encode(index) == body
    assert IndexFormat((2, 2)).encode(index) == body + crc32c(body)
    assert IndexFormat((2, 2), IndexCodecs("big", False)).encode(index) == struct.pack(">8Q", 0, 5, EMPTY, EMPTY, 5, 0, 9, 2)
    assert IndexFormat((2, 2)).nbytes == 68  # the specification's own example


def test_where_it_is_asked_for() -> None:
    assert IndexFormat((2, 2)).request() == ByteSuffix(68)
    assert IndexFormat((2, 2), location="start").request() == ByteRange(0, 68)
    assert IndexFormat((2, 2)).request_from(10) == ByteOffset(10)
    assert IndexFormat((2, 2), location="start").request_from(10) == ByteOffset(0)


@given(shapes, st.sampled_from(["little", "big"]), st.booleans(), st.data())
def test_round_trip(shape: tuple[int, ...], endian: str, checksum: bool, data: st.DataObject) -> None:
    flat = data.draw(st.lists(st.integers(0, EMPTY), min_size=2 * prod(shape), max_size=2 * prod(shape)))
    index = ShardIndex(np.array(flat, dtype=np.uint64).reshape(*shape, 2))
    index_format = IndexFormat(shape, IndexCodecs(endian, checksum))  # type: ignore[arg-type]  # drawn from its literals
    encoded = index_format.encode(index)
    assert len(encoded) == index_format.nbytes
    decoded = index_format.decode(memoryview(encoded))
    assert decoded.entries.dtype == np.uint64
    assert (decoded.entries == index.entries).all()


@given(st.data())
def test_a_flipped_bit_is_noticed_by_the_checksum(data: st.DataObject) -> None:
    index_format = IndexFormat((2, 3))
    encoded = bytearray(index_format.encode(index_format.empty()))
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Corruption, match="checksum"):
        index_format.decode(encoded)


@pytest.mark.parametrize("nbytes", [0, 67, 69])
def test_a_wrong_length_is_refused(nbytes: int) -> None:
    with pytest.raises(Corruption, match="68 bytes was expected"):
        IndexFormat((2, 2)).decode(bytes(nbytes))


def test_an_object_shorter_than_its_index() -> None:
    with pytest.raises(Corruption, match="its index alone needs 68"):
        IndexFormat((2, 2)).slice_from(memoryview(bytes(67)), 67)


@pytest.mark.parametrize(
    ("entry", "size", "expected"),
    [
        ((EMPTY, EMPTY), 10, None),
        ((0, 0), 10, ChunkLocation(0, 0)),
        ((10, 0), 10, ChunkLocation(10, 0)),
        ((3, 7), 10, ChunkLocation(3, 7)),
        ((3, 8), 10, "names bytes"),
        ((11, 0), 10, "names bytes"),
        ((EMPTY, 2), 10, "half empty"),
        ((2, EMPTY), 10, "half empty"),
        ((EMPTY - 1, 3), 10, "names bytes"),
    ],
)
def test_entries(entry: tuple[int, int], size: int, expected: ChunkLocation | str | None) -> None:
    index = ShardIndex(np.array([[0, 1], entry], dtype=np.uint64))
    if isinstance(expected, str):
        with pytest.raises(Corruption, match=expected):
            index.location(1, size)
    else:
        assert index.location(1, size) == expected
    assert index.invalid(size).tolist() == [False, isinstance(expected, str)]
    assert index.present().tolist() == [True, expected is not None]


@given(st.integers(0, EMPTY), st.integers(0, EMPTY), st.integers(0, 2**40))
def test_the_vectorised_check_agrees_with_the_single_one(offset: int, nbytes: int, size: int) -> None:
    index = ShardIndex(np.array([[offset, nbytes]], dtype=np.uint64))
    try:
        index.location(0, size)
        damaged = False
    except Corruption:
        damaged = True
    assert index.invalid(size).tolist() == [damaged]


def test_an_index_of_another_shape_is_not_encoded() -> None:
    with pytest.raises(InvalidInput, match="does not fit"):
        IndexFormat((3,)).encode(IndexFormat((2,)).empty())


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ([LE, {"name": "crc32c"}], IndexCodecs("little", True)),
        ([LE, "crc32c"], IndexCodecs("little", True)),
        ([BE], IndexCodecs("big", False)),
        ([{"name": "endian", "configuration": {"endian": "big"}}, {"name": "crc32c"}], IndexCodecs("big", True)),
        ([LE, {"name": "gzip"}], "not supported"),
        ([LE, "crc32c", "crc32c"], "not supported"),
        ([{"name": "transpose"}, LE], "not supported"),
        ([], "not a list"),
        (None, "not a list"),
        ([3], "not a codec"),
    ],
)
def test_index_codecs(document: object, expected: IndexCodecs | str) -> None:
    parsed = parse_index_codecs(document)
    assert expected in parsed if isinstance(expected, str) and isinstance(parsed, str) else parsed == expected


@given(st.lists(st.integers(1, 5), max_size=4).map(tuple), st.data())
def test_slots_and_coordinates_are_inverse(per_shard: tuple[int, ...], data: st.DataObject) -> None:
    grid = ShardGrid(per_shard)
    coords = tuple(data.draw(st.integers(0, 1000)) for _ in per_shard)
    slot = grid.slot_of(coords)
    assert 0 <= slot < grid.nslots
    assert grid.coords_of(grid.shard_of(coords), slot) == coords
    inside = tuple(c % n for c, n in zip(coords, per_shard, strict=True))
    assert slot == int(np.ravel_multi_index(inside, per_shard)) if per_shard else slot == 0


def test_a_long_index_stays_in_memory_that_nobody_writes_to_and_is_copied_out_of_any_other() -> None:
    index_format = IndexFormat((2**16,))
    index = index_format.index(np.arange(2**17, dtype=np.uint64).reshape(-1, 2))
    encoded = index_format.encode(index)

    def shares(data: bytes | memoryview) -> bool:
        decoded = index_format.decode(data)
        assert np.array_equal(decoded.entries, index.entries)
        return np.shares_memory(decoded.entries, np.frombuffer(data, np.uint8))

    assert shares(memoryview(encoded))
    array = np.frombuffer(encoded, np.uint8).copy()
    assert shares(array.data.toreadonly())
    assert not shares(array.data)
    writable = bytearray(encoded)
    assert not shares(memoryview(writable).toreadonly())
    assert not shares(memoryview(bytes(2**20) + encoded)[2**20 :]), "it would keep the chunks before it in memory"
    odd = b"x" + encoded
    assert np.array_equal(index_format.decode(memoryview(odd)[1:]).entries, index.entries)
    big = IndexFormat((2**16,), IndexCodecs("big"))
    assert np.array_equal(big.decode(memoryview(big.encode(index))).entries, index.entries)


def test_entries_are_looked_at_in_blocks_alike() -> None:
    entries = np.array([[0, 8], [EMPTY, EMPTY], [3, 9], [8, 8], [EMPTY, 8], [2**63, 2**63], [40, 8]], dtype=np.uint64)
    for chunk_nbytes in (None, 8, 2**70):
        index = IndexFormat((7,), chunk_nbytes=chunk_nbytes).index(entries.copy())
        expected = index.present().tolist(), index.invalid(40).tolist()
        many = IndexFormat((7 * 2**16,), chunk_nbytes=chunk_nbytes).index(np.tile(entries, (2**16, 1)))  # a block has 2**18
        for found, of_seven in zip((many.present(), many.invalid(40)), expected, strict=True):
            assert np.array_equal(found, np.tile(of_seven, 2**16))
        for slot, wrong in enumerate(expected[1]):
            if wrong:
                with pytest.raises(Corruption):
                    index.location(slot, 40)
            else:
                assert (index.location(slot, 40) is not None) == expected[0][slot]
        places = index.places(range(7), 40)
        assert places.is_damaged.tolist() == expected[1]
        assert (places.exists | places.is_damaged).tolist() == expected[0]
