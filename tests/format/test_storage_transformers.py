"""The ``storage_transformers`` member: every form that a draft gave it, and what is refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from shardstore.format.metadata_v3 import ArrayLayout, parse_layout
from shardstore.format.presentation import present_array, same_chunks, shard_document, update_stored
from shardstore.format.shard_index import MAX_SLOTS, IndexCodecs
from shardstore.format.storage_transformers import (
    parse_sharding_transformers,
    scalar_key_name,
    sharding_transformer,
    transformer_index_format,
    transformers_to_show,
)

NOV_2022 = {
    "configuration": {"chunks_per_shard": [32, 2]},
    "extension": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
    "type": "indexed",
}
PER_SHARD = {"chunks_per_shard": [32, 2]}


@pytest.mark.parametrize(
    "transformer",
    [
        NOV_2022,
        {
            "storage_transformer": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
            "configuration": PER_SHARD | {"format": "indexed"},
        },
        NOV_2022 | {"extension": "http://purl.org/zarr/spec/storage-transformers/sharding/1.0"},
        NOV_2022 | {"extension": "https://purl.org/zarr/spec/extensions/storage_transformers/sharding/1.0"},
        NOV_2022 | {"extension": "sharding"},
        NOV_2022 | {"must_understand": True},
        {"name": "sharding", "configuration": PER_SHARD},
    ],
)
def test_every_form_of_2022_and_2023(transformer: dict[str, Any]) -> None:
    assert parse_sharding_transformers([transformer], 2) == ((32, 2),)


def test_none_is_no_sharding() -> None:
    assert parse_sharding_transformers([], 2) == ()
    assert parse_sharding_transformers(None, 2) == ()


def test_one_upon_the_other() -> None:
    """The first shards the chunks, the last is next to the storage: its chunks are the first one's shards."""
    second = NOV_2022 | {"configuration": {"chunks_per_shard": [3, 5]}}
    assert parse_sharding_transformers([NOV_2022, second], 2) == ((32, 2), (3, 5))
    document: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [1000, 1000],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 10]}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": [{"name": "bytes"}],
    }
    upper = document | {"storage_transformers": [NOV_2022]}
    stored = shard_document(upper, transformer_index_format((3, 5)), by_transformer=True)
    layout = parse_layout(stored)
    assert isinstance(layout, ArrayLayout)
    assert (layout.chunk_shape, layout.shard_shape, layout.chunk_grid_shape) == ((64, 20), (192, 100), (16, 50))
    assert present_array(stored) == upper
    assert present_array(upper) == document
    assert same_chunks(upper, present_array(stored))
    assert same_chunks(document, upper), "zarr-python 2.18 loses them on a resize"
    assert not same_chunks(document | {"storage_transformers": [second]}, upper)
    assert update_stored(document, stored)["storage_transformers"] == stored["storage_transformers"]


@pytest.mark.parametrize("value", [[], [1]])
def test_0d(value: list[int]) -> None:
    assert parse_sharding_transformers([NOV_2022 | {"configuration": {"chunks_per_shard": value}}], 0) == ((),)


def test_a_shorter_list_is_padded() -> None:
    """zarr-python 2.18 writes ``[2]`` for shape ``[4, 3]`` where the data type is ``(3,)i4``."""
    assert parse_sharding_transformers([NOV_2022 | {"configuration": {"chunks_per_shard": [2]}}], 3) == ((2, 1, 1),)


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        ({}, "not a list"),
        ("sharding", "not a list"),
        (["sharding"], "not an object"),
        ([NOV_2022, {"name": "compaction"}], "'compaction' is not known"),
        ([{"configuration": PER_SHARD}], "named by none"),
        ([NOV_2022 | {"name": "sharding"}], "or by several"),
        ([NOV_2022 | {"extension": "https://example.org/compaction"}], "is not known"),
        ([NOV_2022 | {"extension": "https://purl.org/zarr/spec/storage_transformers/sharding/2.0"}], "is not known"),
        ([NOV_2022 | {"extension": 1}], "is not known"),
        ([NOV_2022 | {"strategy": "append"}], "'strategy' that is not known"),
        ([NOV_2022 | {"type": "hashed"}], "'hashed'"),
        ([NOV_2022 | {"type": None}], "None"),
        ([NOV_2022 | {"configuration": PER_SHARD | {"format": "hashed"}}], "'hashed'"),
        ([NOV_2022 | {"configuration": PER_SHARD | {"order": "C"}}], "'order' that is not known"),
        ([NOV_2022 | {"configuration": [2, 2]}], "no configuration"),
        ([{"name": "sharding"}], "no configuration"),
    ],
)
def test_what_cannot_be_understood(member: Any, reason: str) -> None:
    parsed = parse_sharding_transformers(member, 2)
    assert isinstance(parsed, str)
    assert reason in parsed


@pytest.mark.parametrize(
    ("value", "ndim"),
    [
        (None, 2),
        (4, 1),
        ("22", 2),
        ([0, 2], 2),
        ([-1, 2], 2),
        ([True, 2], 2),
        ([2.0, 2], 2),
        ([2**63, 1], 2),
        ([2, 2, 2], 2),
        ([], 2),
        ([2], 0),
        ([1, 1], 0),
        ([MAX_SLOTS, 2], 2),
    ],
)
def test_numbers_that_cannot_be(value: Any, ndim: int) -> None:
    parsed = parse_sharding_transformers([NOV_2022 | {"configuration": {"chunks_per_shard": value}}], ndim)
    assert isinstance(parsed, str)
    assert "chunks" in parsed


def test_what_is_written_is_zarr_pythons() -> None:
    assert sharding_transformer((32, 2)) == NOV_2022
    assert sharding_transformer(())["configuration"] == {"chunks_per_shard": [1]}
    for chunks_per_shard in ((), (3,), (2, 1, 4)):
        assert parse_sharding_transformers([sharding_transformer(chunks_per_shard)], len(chunks_per_shard)) == (chunks_per_shard,)


def test_the_index() -> None:
    index_format = transformer_index_format((32, 2))
    assert index_format.codecs == IndexCodecs("little", checksum=False)
    assert index_format.location == "end"
    assert index_format.nbytes == 1024
    assert transformer_index_format(()).nbytes == 16


def test_override() -> None:
    spelled = {"name": "sharding", "configuration": PER_SHARD}
    assert transformers_to_show({"storage_transformers": [spelled]}, None, 2) == [spelled]
    assert transformers_to_show({"storage_transformers": [spelled]}, (32, 2), 2) == [spelled]
    assert transformers_to_show({}, None, 2) == []
    assert transformers_to_show({}, (32, 2), 2) == [NOV_2022]
    for document, override in (({"storage_transformers": [spelled]}, (2, 2)), ({}, (2, 2, 2)), ({}, (0, 1))):
        assert "override" in transformers_to_show(document, override, 2)
    assert "no draft" in transformers_to_show({"storage_transformer": "sharding"}, None, 2)


def test_the_name_of_a_scalars_chunk() -> None:
    assert scalar_key_name({}) == "c0"
    assert scalar_key_name({"storage_transformers": []}) == "c0"
    assert scalar_key_name({"storage_transformers": [sharding_transformer(())]}) == "c0"
    assert scalar_key_name({"storage_transformers": [NOV_2022 | {"configuration": {"chunks_per_shard": []}}]}) == "c"
    assert scalar_key_name({"storage_transformers": ["sharding"]}) == "c0"
