"""Stored to presented and back: nothing is lost, and what cannot be shown chunk by chunk passes through."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardstore.errors import InvalidInput
from shardstore.format.metadata_v3 import ArrayLayout, item_nbytes, parse_layout
from shardstore.format.presentation import (
    asks_for_shards,
    can_be_presented,
    consolidated_arrays,
    map_consolidated,
    present_array,
    present_node,
    same_chunks,
    shard_document,
    update_stored,
)
from shardstore.format.shard_index import IndexCodecs, IndexFormat
from tests.documents import array_v3, sharding_codec


def presented(**members: Any) -> dict[str, Any]:
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd", "configuration": {"level": 3, "checksum": False}}]
    return array_v3([10, 7], [2, 3], data_type="uint16", codecs=codecs, attributes={"units": "K"}) | members


BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
FORMAT = IndexFormat((2, 4), IndexCodecs("little", True), "start")


def test_sharding_and_presenting_are_inverse() -> None:
    stored = shard_document(presented(dimension_names=["y", None], extra={"must_understand": False}), FORMAT)
    assert stored["chunk_grid"]["configuration"]["chunk_shape"] == [4, 12]
    assert [c["name"] for c in stored["codecs"]] == ["sharding_indexed"]
    assert present_array(stored) == presented(dimension_names=["y", None], extra={"must_understand": False})
    layout = parse_layout(stored)
    assert isinstance(layout, ArrayLayout)
    assert (layout.chunk_shape, layout.index_format) == ((2, 3), FORMAT)
    assert layout.chunk_grid_shape == (5, 3)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99)), max_size=5),
    st.sampled_from(["start", "end"]),
    st.booleans(),
)
def test_inverse_for_all_shapes(dims: list[tuple[int, int, int]], location: Any, checksum: bool) -> None:
    document = presented(shape=[d[2] for d in dims], chunk_grid={"name": "regular", "configuration": {"chunk_shape": [d[0] for d in dims]}})
    index_format = IndexFormat(tuple(d[1] for d in dims), IndexCodecs("little", checksum), location)
    stored = shard_document(document, index_format)
    layout = parse_layout(stored)
    assert isinstance(layout, ArrayLayout)
    assert layout.index_format == index_format
    assert present_array(stored) == document
    assert update_stored(document, stored) == stored


def test_an_update_keeps_the_sharding_and_the_spelling_of_the_stored_document() -> None:
    stored = shard_document(presented(codecs=["bytes", {"name": "zstd", "configuration": {"level": 3}}]), FORMAT)
    # zarr writes what it read in its own spelling, with defaults filled in.
    rewritten = presented(
        codecs=[{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 3, "checksum": False}}], shape=[99, 7], attributes={}
    )
    assert same_chunks(rewritten, present_array(stored))
    updated = update_stored(rewritten, stored)
    assert updated == stored | {"shape": [99, 7], "attributes": {}}


@pytest.mark.parametrize(
    "change",
    [
        {"data_type": "uint8"},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 4]}}},
        {"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "/"}}},
        {"codecs": [{"name": "bytes", "configuration": {"endian": "big"}}]},
    ],
)
def test_what_decides_the_bytes_of_a_chunk(change: dict[str, Any]) -> None:
    assert not same_chunks(presented(**change), presented())
    assert same_chunks(presented(fill_value=7, attributes={}, shape=[1, 1]), presented())


@pytest.mark.parametrize(
    ("data_type", "one", "other", "same"),
    [
        ("uint8", {"name": "bytes", "configuration": {"endian": "little"}}, {"name": "bytes"}, True),
        ("uint16", {"name": "bytes", "configuration": {"endian": "little"}}, {"name": "bytes"}, False),
        ("uint16", {"name": "endian", "configuration": {"endian": "big"}}, {"name": "bytes", "configuration": {"endian": "big"}}, True),
        ("uint8", {"name": "blosc", "configuration": {"shuffle": "noshuffle"}}, {"name": "blosc", "configuration": {"typesize": 2}}, True),
        ("uint8", {"name": "blosc", "configuration": {"cname": "lz4"}}, {"name": "blosc", "configuration": {"cname": "zstd"}}, False),
        ("uint8", "gzip", {"name": "gzip", "configuration": {"level": 5}}, True),
        ("uint8", {"name": "crc32c"}, {"name": "crc32c", "configuration": {}}, True),
        ("uint8", {"name": "zstd"}, {"name": "gzip"}, False),
        ("uint8", {"name": "x", "configuration": {"a": 1}}, {"name": "x"}, False),
        ("uint8", 3, 3, True),
    ],
)
def test_spellings_of_codecs(data_type: str, one: Any, other: Any, same: bool) -> None:
    assert same_chunks(presented(data_type=data_type, codecs=[one]), presented(data_type=data_type, codecs=[other])) is same
    assert same_chunks(presented(data_type=data_type, codecs=[other]), presented(data_type=data_type, codecs=[one])) is same


def _sharding(**configuration: Any) -> dict[str, Any]:
    little = [{"name": "bytes", "configuration": {"endian": "little"}}]
    codec = sharding_codec([2, 3], little, index_codecs=little)
    return codec | {"configuration": codec["configuration"] | configuration}


def stored(codecs: list[Any] | None = None, **members: Any) -> dict[str, Any]:
    grid = {"name": "regular", "configuration": {"chunk_shape": [4, 12]}}
    return presented(chunk_grid=grid, codecs=codecs if codecs is not None else [_sharding()], **members)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (presented(), "not sharded"),
        (stored([_sharding(), {"name": "gzip"}]), "wraps or precedes"),
        (stored([{"name": "numcodecs.delta", "configuration": {"dtype": "<u2"}}, _sharding()]), "wraps or precedes"),
        (stored([{"name": "transpose", "configuration": {"order": [1, 0]}}, _sharding()]), "does not divide the transposed shard shape"),
        (stored([{"name": "transpose", "configuration": {"order": [1, 1]}}, _sharding()]), "no order of 2 dimensions"),
        (stored() | {"chunk_grid": {"name": "rectangular", "configuration": {}}}, "not regular"),
        (stored(unheard_of={"name": "x"}), "must be understood"),
        (stored(storage_transformers=[{"name": "x"}]), "storage transformer 'x' is not known"),
        (stored([_sharding(chunk_shape=[3, 3])]), "does not divide"),
        (stored([_sharding(chunk_shape=[2])]), "not a shape"),
        (stored([_sharding(chunk_shape=[0, 3])]), "not a shape"),
        (stored([_sharding(index_codecs=[{"name": "zstd"}])]), "not supported"),
        (stored([_sharding(index_location="middle")]), "neither start nor end"),
        (stored([_sharding(codecs=[])]), "no inner codecs"),
        (stored([_sharding(novel=1)]), "not known"),
        (stored() | {"shape": [10, -1]}, "shape is not"),
        (stored() | {"shape": [True, 1]}, "shape is not"),
        (stored() | {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2**40, 2**40 * 3]}}}, "more than"),
    ],
)
def test_what_passes_through_says_why(document: dict[str, Any], reason: str) -> None:
    why = parse_layout(document)
    assert isinstance(why, str)
    assert reason in why
    assert present_array(document) == document


def test_nested_sharding_is_shown_one_level_down() -> None:
    inner = _sharding(chunk_shape=[1, 3])
    document = stored([_sharding(codecs=[inner])])
    assert present_array(document)["codecs"] == [inner]
    assert asks_for_shards(present_array(document), may_stack=True)
    assert same_chunks(present_array(document), present_array(document))


def test_consolidated_metadata_is_translated_at_every_depth() -> None:
    array = shard_document(presented(), FORMAT)
    group: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    below = group | {"consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": {"y": array}}}
    root = group | {"consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": {"x": array, "g": below, "h": group}}}
    shown = present_node(root)
    assert shown["consolidated_metadata"]["metadata"]["x"] == presented()
    assert shown["consolidated_metadata"]["metadata"]["g"]["consolidated_metadata"]["metadata"]["y"] == presented()
    assert shown["consolidated_metadata"]["metadata"]["h"] == group
    assert consolidated_arrays(shown) == {"x": presented(), "g/y": presented()}
    assert map_consolidated(shown, lambda path, document: shard_document(document, FORMAT)) == root


@pytest.mark.parametrize(
    "document", [{}, {"consolidated_metadata": None}, {"consolidated_metadata": {"metadata": 3}}, {"consolidated_metadata": 1}]
)
def test_groups_without_it_stay_as_they_are(document: dict[str, Any]) -> None:
    group = {"zarr_format": 3, "node_type": "group"} | document
    assert present_node(group) == group


def test_a_shard_of_another_rank_is_refused() -> None:
    with pytest.raises(InvalidInput, match="3 dimensions, the array has 2"):
        shard_document(presented(), IndexFormat((2, 2, 2)))


@pytest.mark.parametrize(
    ("data_type", "nbytes"),
    [
        ("bool", 1),
        ("int16", 2),
        ("float64", 8),
        ("complex64", 8),
        ("complex128", 16),
        ("r24", 3),
        ("string", None),
        ({"name": "fixed_length_utf32", "configuration": {"length_bytes": 40}}, 40),
        ({"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}, 8),
        ({"name": "structured", "configuration": {"fields": [["a", "int32"], ["b", "float64"]]}}, 12),
        ({"name": "structured", "configuration": {"fields": [["a", "string"]]}}, None),
        (None, None),
        (3, None),
    ],
)
def test_item_sizes(data_type: object, nbytes: int | None) -> None:
    assert item_nbytes(data_type) == nbytes


def test_what_older_drafts_spelled_otherwise_is_shown_in_todays_words() -> None:
    """ZEP 2's example document calls the codec ``bytes`` ``endian``; the stored spelling stays."""
    old = {"name": "endian", "configuration": {"endian": "little"}}
    nested = {"chunk_shape": [2, 1], "codecs": [old, "crc32c"], "index_codecs": [old]}
    for inner, shown in (
        ([old, {"name": "gzip"}], [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "gzip"}]),
        (["endian"], ["bytes"]),
        ([{"name": "transpose", "configuration": {"order": "F"}}, old], [{"name": "transpose", "configuration": {"order": [1, 0]}}, BYTES]),
        ([_sharding(**nested)], [_sharding(**nested | {"codecs": [BYTES, "crc32c"], "index_codecs": [BYTES]})]),
    ):
        document = stored([_sharding(codecs=inner, index_codecs=[old])])
        assert present_array(document)["codecs"] == shown
        updated = present_array(document) | {"attributes": {"a": 1}}
        assert same_chunks(updated, present_array(document))
        assert update_stored(updated, document) == document | {"attributes": {"a": 1}}


def test_a_client_that_creates_an_array_in_older_words_gets_shards() -> None:
    old = presented(codecs=[{"name": "endian", "configuration": {"endian": "little"}}, {"name": "crc32c"}])
    document = shard_document(old, FORMAT)
    assert can_be_presented(old, document)
    assert not can_be_presented(old | {"shape": [11, 7]}, document)
