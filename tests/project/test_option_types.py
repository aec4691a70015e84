"""Options have types: a type checker finds what is misspelt, and what has a wrong value, before the program runs.

The type checker of this project reads this file too, and complains about each comment that says that an error is expected where it finds
none. At runtime the same calls are refused by a message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

import shardstore
from shardstore.adapters.handle import StoreOptions
from shardstore.adapters.versioned.opened import RepositoryArguments, RepositoryOptions
from shardstore.engine.options import EngineOptions
from shardstore.errors import InvalidInput
from shardstore.maintenance.packing.pack import PackKeywords, PackOptions

URL = "memory://option-types"

WRONG: list[Callable[[], object]] = [
    lambda: shardstore.open(URL, strategyy="append"),  # type: ignore[call-arg]  # misspelt
    lambda: shardstore.open(URL, strategy="apend"),  # type: ignore[arg-type]  # no strategy
    lambda: shardstore.open(URL, gap_byte=1),  # type: ignore[call-arg]  # misspelt
    lambda: shardstore.open(URL, chunk_order="Z"),  # type: ignore[arg-type]  # no order
    lambda: shardstore.get_mapper(URL, pipeline=True),  # type: ignore[call-arg]  # of zarr's stores alone
    lambda: shardstore.get_mapper(URL, present="v4"),  # type: ignore[arg-type]  # no flavour
    lambda: shardstore.ShardingTransformer(URL, chunk_per_shard=(2, 2)),  # type: ignore[call-arg]  # misspelt
    lambda: shardstore.ShardedStore(URL, presnt="v3"),  # type: ignore[call-arg]  # misspelt
    lambda: shardstore.pack(URL, URL + "-2", chunk_ordr="C"),  # type: ignore[call-arg]  # misspelt
    lambda: shardstore.pack(URL, URL + "-2", chunk_order="Z"),  # type: ignore[arg-type]  # no order
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_options_are_errors_of_types_and_at_runtime(number: int) -> None:
    with pytest.raises(InvalidInput):
        WRONG[number]()


def test_right_options_have_the_right_types() -> None:
    shardstore.open(URL, gap_bytes=4096, present_level="innermost", pipeline=False, chunks_per_shard={"a/*": (2, 2), "b": None})
    shardstore.get_mapper(URL, present="v2", stored="codec", static=True)
    shardstore.ShardingTransformer(URL, chunks_per_shard=(2, 2), fsync=False)
    shardstore.ShardedStore.from_url(URL, read_only=True, strategy="append")


def test_every_option_has_a_type() -> None:
    of_handles = {"fsync", "locks", "transport", "static"}
    assert set(StoreOptions.__annotations__) == {field.name for field in fields(EngineOptions)} | of_handles
    assert get_type_hints(PackKeywords) == get_type_hints(PackOptions)
    assert get_type_hints(RepositoryArguments) | {"url": Any} == get_type_hints(RepositoryOptions)


def test_dir_shows_the_public_names() -> None:
    assert dir(shardstore) == sorted(shardstore.__all__)
    assert all(getattr(shardstore, name) is not None for name in dir(shardstore))
