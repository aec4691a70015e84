"""Parts of manifests: one chunk is found by the footer and one group, and what is damaged is never taken for references."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.errors import Corruption
from shardstore.format.snapshots.manifest import INLINE, ChunkRefs, CoordSearch, VirtualCheck, encode_manifest, in_a_row, sortable
from shardstore.format.snapshots.manifest_groups import (
    ManifestGroups,
    decode_rows,
    footer_range,
    manifest_file,
    manifest_rows,
    missing_footer_nbytes,
)

pytest.importorskip("pyarrow")

SHAPES = {3: (30, 20, 50), 8: (70, 100), 9: (), 12: (5,)}


def references(shape: tuple[int, ...], file: int) -> ChunkRefs:
    places = list(np.ndindex(*shape))
    coords = np.array(places, dtype=np.uint64).reshape(len(places), len(shape))
    n = len(coords)
    nbytes = np.arange(n, dtype=np.uint64) % 97 + 1
    return ChunkRefs(coords, np.zeros(n, dtype=np.int32), np.cumsum(nbytes) - nbytes, nbytes, [bytes([file] * 12)])


ARRAYS = {array: references(shape, array) for array, shape in SHAPES.items()}
DATA = encode_manifest(ARRAYS)
FILE = manifest_file("7CETCYESXYW6ZQ59MB70", DATA, sum(map(len, ARRAYS.values())))
NDIMS = {array: len(shape) for array, shape in SHAPES.items()}


def opened() -> ManifestGroups:
    return ManifestGroups.decode(FILE, DATA[footer_range(FILE).start :])


def found(array: int, coords: np.ndarray) -> list[tuple[int, int]]:
    """Return offset and length of chunks, read by groups; (-1, -1) where there is none."""
    groups = opened()
    places = [(-1, -1)] * len(coords)
    for number, which in groups.with_chunks(array, coords).items():
        part = groups.ranges[number]
        refs = groups.decode_group(number, DATA[part.start : part.end], NDIMS).get(array)
        if refs is None:
            continue
        rows = CoordSearch(refs.coords).find(coords[which])
        for at, row in zip(which.tolist(), rows.tolist(), strict=True):
            if row >= 0:
                places[at] = int(refs.offset[row]), int(refs.nbytes[row])
    return places


def test_every_chunk_is_found_in_few_groups() -> None:
    assert len(opened().ranges) == 5
    for array, refs in ARRAYS.items():
        assert found(array, refs.coords) == list(zip(refs.offset.tolist(), refs.nbytes.tolist(), strict=True))
    assert len(opened().with_chunks(3, ARRAYS[3].coords[:100])) == 1
    assert len(opened().with_chunks(3, ARRAYS[3].coords)) == 4


@given(st.sampled_from([3, 8, 12]), st.data())
def test_chunks_are_found_or_are_not_there(array: int, data: st.DataObject) -> None:
    shape = SHAPES[array]
    one = data.draw(st.tuples(*(st.integers(0, size + 3) for size in shape)))
    is_there = all(c < size for c, size in zip(one, shape, strict=True))
    expected = (-1, -1)
    if is_there:
        row = int(np.ravel_multi_index(one, shape))
        expected = int(ARRAYS[array].offset[row]), int(ARRAYS[array].nbytes[row])
    assert found(array, np.array([one], dtype=np.uint64)) == [expected]


def test_pieces_in_a_row_are_the_whole() -> None:
    groups = opened()
    for array, refs in ARRAYS.items():
        numbers = groups.numbers_for(array)
        pieces = [groups.decode_group(number, DATA[groups.ranges[number].start : groups.ranges[number].end], NDIMS) for number in numbers]
        whole = in_a_row([piece[array] for piece in pieces if array in piece], NDIMS[array])
        for name in ("coords", "offset", "nbytes"):
            np.testing.assert_array_equal(getattr(whole, name), getattr(refs, name))
        assert {whole.files[number] for number in whole.file.tolist()} == {bytes([array] * 12)}
    assert len(in_a_row([], 3)) == 0
    zeros = np.zeros(2, dtype=np.uint64)
    coords = np.array([[0], [1]], dtype=np.uint64)
    first = ChunkRefs(coords, np.array([INLINE, 0], dtype=np.int32), zeros, zeros, ["x"], {0: b"a"}, {0: VirtualCheck("e")})
    both = in_a_row([first, replace(first, coords=first.coords + np.uint64(2), files=["y"], inline={0: b"b"})], 1)
    assert (both.file.tolist(), both.files, both.inline) == ([INLINE, 0, INLINE, 1], ["x", "y"], {0: b"a", 2: b"b"})
    assert both.checks == {0: VirtualCheck("e"), 1: VirtualCheck("e")}


def test_arrays_that_are_not_there_and_far_coordinates_are_in_no_group() -> None:
    groups = opened()
    assert groups.with_chunks(99, ARRAYS[3].coords) == {}
    assert groups.with_chunks(3, np.array([[1 << 40, 0, 0]], dtype=np.uint64)) == {}
    assert groups.with_chunks(3, np.zeros((0, 3), dtype=np.uint64)) == {}


def test_a_footer_that_is_longer_than_expected_is_read_in_two_parts() -> None:
    assert missing_footer_nbytes(DATA[-100:]) == FILE.footer[0] - 100  # type: ignore[index]
    assert missing_footer_nbytes(DATA) == 0
    unknown = manifest_file("x", DATA, FILE.rows)
    object.__setattr__(unknown, "footer", None)
    assert footer_range(unknown).start == max(0, len(DATA) - (64 << 10))


def test_damaged_manifests_are_refused_whole_and_in_parts() -> None:
    rng = np.random.default_rng(0)
    assert {array: refs.coords.tolist() for array, refs in decode_rows(manifest_rows(DATA, FILE), FILE, NDIMS).items()} == {
        array: refs.coords.tolist() for array, refs in ARRAYS.items()
    }
    groups = opened()
    part = groups.ranges[1]
    right = groups.decode_group(1, DATA[part.start : part.end], NDIMS)[3]
    for _ in range(200):
        damaged = bytearray(DATA)
        damaged[rng.integers(len(DATA))] ^= 1 << int(rng.integers(8))
        with pytest.raises(Corruption, match="is not what its structure says"):
            manifest_rows(bytes(damaged), FILE)
        end = bytearray(DATA[footer_range(FILE).start :])
        end[rng.integers(len(end))] ^= 1 << int(rng.integers(8))
        with pytest.raises(Corruption):
            ManifestGroups.decode(FILE, bytes(end))
        group = bytearray(DATA[part.start : part.end])
        group[rng.integers(len(group))] ^= 1 << int(rng.integers(8))
        try:  # a bit that means nothing is no damage
            refs = groups.decode_group(1, bytes(group), NDIMS)[3]
        except Corruption:
            continue
        for name in ("coords", "file", "offset", "nbytes"):
            np.testing.assert_array_equal(getattr(refs, name), getattr(right, name))
    with pytest.raises(Corruption, match="m/7CETCYESXYW6ZQ59MB70"):
        manifest_rows(DATA[:-1], FILE)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 300)), min_size=1, max_size=30, unique=True))
def test_coordinates_are_found_however_large(pairs: list[tuple[int, int]]) -> None:
    coords = np.array(sorted(pairs), dtype=np.uint64)
    search = CoordSearch(coords)
    assert search.find(coords).tolist() == list(range(len(coords)))
    others = np.array([(a, b + 301) for a, b in pairs] + [(a ^ 1, b) for a, b in pairs], dtype=np.uint64)
    expected = [sorted(pairs).index(tuple(one)) if tuple(one) in pairs else -1 for one in others.tolist()]
    assert search.find(others).tolist() == expected
    assert np.argsort(sortable(coords, 8), kind="stable").tolist() == list(range(len(pairs)))
