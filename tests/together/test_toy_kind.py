"""A storage kind that is written outside of the package: a record for ``register_kind``."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem

import shardstore
from shardstore.engine.options import EngineOptions
from shardstore.errors import InvalidInput
from shardstore.opening import kinds
from shardstore.opening.kinds import StorageKind, register_kind
from shardstore.opening.open import open_storage
from shardstore.storage.memory import MemoryStorage


class ToyFileSystem(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A filesystem that takes any option, with files of its own."""

    protocol = "toy"
    store: ClassVar[dict[str, Any]] = {}

    def __init__(self, colour: str = "red", **options: Any) -> None:
        super().__init__(**options)
        self.colour = colour


class ToyStorage(MemoryStorage):
    kind = "toy"

    def __init__(self, fs: ToyFileSystem, path: str) -> None:
        super().__init__(f"/of-{fs.colour}/{path.strip('/')}")


def _check_colour(url: str, options: Mapping[str, Any]) -> None:
    if options.get("colour") == "beige":
        raise InvalidInput(f"{url!r} has no beige toys")


TOY = StorageKind(
    name="toy", protocols=("toy",), filesystem=ToyFileSystem, storage=ToyStorage, gap_bytes=17, first_bytes=34, check_options=_check_colour
)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kinds, "_KINDS", dict(kinds._KINDS))
    fsspec.register_implementation("toy", ToyFileSystem, clobber=True)
    register_kind(TOY)
    yield
    memory = fsspec.filesystem("memory")
    for path in memory.glob("/of-*"):
        memory.rm(path, recursive=True)


def test_a_storage_kind_from_outside() -> None:
    store = shardstore.open("toy://box/a", storage_options={"colour": "blue"}, chunks_per_shard=(2, 2))
    array = zarr.create_array(store, name="a", shape=(8, 8), chunks=(2, 2), dtype="u1", compressors=None)
    array[...] = np.arange(64).reshape(8, 8)
    assert store.engine.storage.kind == "toy"
    again = zarr.open_array(pickle.loads(pickle.dumps(store)), path="a", mode="r")
    np.testing.assert_array_equal(again[...], np.arange(64).reshape(8, 8))
    assert sum("/a/c/" in path for path in fsspec.filesystem("memory").find("/of-blue")) == 4
    limits = EngineOptions().read_limits("toy")
    assert (limits.gap_bytes, limits.first_bytes) == (17, 34)


def test_what_the_record_says_of_options_counts() -> None:
    with pytest.raises(InvalidInput, match=r"storage option color .*did you mean 'colour'"):
        open_storage("toy://box/a", {"color": "blue"})
    with pytest.raises(InvalidInput, match="no beige toys"):
        open_storage("toy://box/a", {"colour": "beige"})
    with pytest.raises(shardstore.Unsupported, match="transport='obstore' is for s3:// and gs://"):
        open_storage("toy://box/a", transport="obstore")


def test_a_protocol_is_of_one_kind() -> None:
    with pytest.raises(InvalidInput, match="'rattle' for toy, rattle collides with 'toy'"):
        register_kind(StorageKind(name="rattle", protocols=("toy", "rattle"), filesystem=ToyFileSystem, storage=ToyStorage))
    with pytest.raises(InvalidInput, match="collides with 's3'"):
        register_kind(StorageKind(name="s3", protocols=("s4",), filesystem=ToyFileSystem, storage=ToyStorage))
    register_kind(TOY)  # once more, as modules do that are loaded again
