"""A storage kind, a flavour and a write strategy that are written outside of the package: values for ``register_kind`` and options."""

from __future__ import annotations

import json
import pickle
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem

import shardstore
from shardstore.engine.options import EngineOptions
from shardstore.engine.reading.listing import ListedDir, ListedValue, directly_below
from shardstore.engine.reading.shard_chunks import Value
from shardstore.engine.values import KeyUpdate
from shardstore.errors import InvalidInput, Unsupported
from shardstore.format.shard_index import IndexFormat
from shardstore.format.store_keys import metadata_path
from shardstore.opening import kinds
from shardstore.opening.kinds import StorageKind, register_kind
from shardstore.opening.open import open_storage
from shardstore.plan.commits import Commit, CommitPlan, Strategy, plan_rewrite
from shardstore.presented.view import Canonical, DocumentPart, Meaning, PresentedFlavour, ShownPart, View
from shardstore.storage.generic.storage import GenericStorage
from shardstore.storage.memory import MemoryStorage


class ToyFileSystem(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A filesystem that takes any option, with files of its own."""

    protocol = "toy"
    store: ClassVar[dict[str, Any]] = {}

    def __init__(self, colour: str = "red", **options: Any) -> None:
        super().__init__(**options)
        self.colour = colour

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix("toy://"))


class ToyStorage(MemoryStorage):
    def __init__(self, fs: ToyFileSystem, path: str) -> None:
        super().__init__(f"/of-{fs.colour}/{path.strip('/')}")

    kind = "toy"


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
    with pytest.raises(InvalidInput, match=r"storage option color .*'colour'"):
        open_storage("toy://box/a", {"color": "blue"})
    with pytest.raises(InvalidInput, match="no beige toys"):
        open_storage("toy://box/a", {"colour": "beige"})
    with pytest.raises(shardstore.Unsupported, match="transport='obstore' is for s3://, gs://"):
        open_storage("toy://box/a", transport="obstore")


def test_a_protocol_is_of_one_kind() -> None:
    with pytest.raises(InvalidInput, match="'rattle' for toy, rattle is already registered, as the storage kind 'toy'"):
        register_kind(StorageKind(name="rattle", protocols=("toy", "rattle"), filesystem=ToyFileSystem, storage=ToyStorage))
    with pytest.raises(InvalidInput, match="as the storage kind 's3'"):
        register_kind(StorageKind(name="s3", protocols=("s4",), filesystem=ToyFileSystem, storage=ToyStorage))
    register_kind(TOY)  # once more, as modules do that are loaded again


DOCUMENT = "node.json"


@dataclass(frozen=True)
class DashedFlavour(PresentedFlavour):
    """``a/c/0/1`` is ``a/c-0-1``, and ``a/zarr.json`` is ``a/node.json``, with a member that says so."""

    name: str = "dashed"
    words: str = "dashed keys"

    async def meanings(self, view: View, keys: Sequence[str], *, for_write: bool) -> list[Meaning]:
        return [_meaning(key) for key in keys]

    def shown(self, part: DocumentPart, document: bytes | None) -> bytes | None:
        return None if document is None else json.dumps({**json.loads(document), "dashed": True}).encode()

    def revised(self, part: DocumentPart, data: bytes | None, document: bytes | None) -> bytes | None:
        if data is None:
            return None
        written = json.loads(data)
        if not written.pop("dashed", False):
            raise InvalidInput(f"{part.path!r} is not written with dashes")
        return json.dumps(written).encode()

    async def show_parts(self, view: View, parts: Sequence[DocumentPart], documents: dict[str, Value]) -> list[ShownPart]:
        return [view.shown_part(part, documents[part.path]) for part in parts]

    async def update_many(self, view: View, updates: Sequence[KeyUpdate]) -> list[Exception | None]:
        return await view.update_meant(updates, [_meaning(key) for key, _ in updates])

    async def listed(self, view: View, prefix: str) -> AsyncIterator[ListedValue]:
        async for value in view.engine.list(""):
            path = metadata_path(value.key)
            key = _dashed(value.key) if path is None else f"{path}/{DOCUMENT}".lstrip("/")
            if key.startswith(prefix):
                yield ListedValue(key, value.nbytes if path is None else None)

    async def list_dir(self, view: View, prefix: str, *, approximate: bool) -> ListedDir:
        return await directly_below(prefix, self.listed(view, prefix))

    async def erase_prefix(self, view: View, prefix: str) -> None:
        await view.engine.erase_prefix(prefix)  # prefixes of nodes mean the same


def _meaning(key: str) -> Meaning:
    parent, _, name = key.rpartition("/")
    if name == DOCUMENT:
        return DocumentPart(parent, "document")
    return Canonical(f"{parent}/{name.replace('-', '/')}" if name.startswith("c-") else key)


def _dashed(key: str) -> str:
    path, c, chunk = key.partition("/c/")
    return f"{path}/c-{chunk.replace('/', '-')}" if c else key


def test_a_flavour_from_outside(tmp_path: Path) -> None:
    store = shardstore.open(str(tmp_path), chunks_per_shard=(2, 2))
    array = zarr.create_array(store, name="a", shape=(8, 8), chunks=(2, 2), dtype="u1", compressors=None)
    array[...] = np.arange(64).reshape(8, 8)

    view = shardstore.get_mapper(str(tmp_path), present=DashedFlavour())
    assert sorted(view) == [*(f"a/c-{i}-{j}" for i in range(4) for j in range(4)), "a/node.json", "node.json"]
    assert json.loads(view["a/node.json"])["dashed"] is True
    assert view["a/c-0-1"] == np.array([[2, 3], [10, 11]], dtype="u1").tobytes()

    view["a/c-0-1"] = b"\7\7\7\7"  # into its shard, as every flavour
    with pytest.raises(InvalidInput, match="not written with dashes"):
        view["a/node.json"] = b"{}"
    del view["a/c-1-1"]
    np.testing.assert_array_equal(array[0:2, 2:4], 7)
    np.testing.assert_array_equal(array[2:4, 2:4], 0)
    assert sum(path.is_file() for path in (tmp_path / "a").rglob("*")) == 1 + 4
    again = pickle.loads(pickle.dumps(view))
    assert again["a/c-0-1"] == b"\7\7\7\7"
    again.clear()
    assert not list(shardstore.get_mapper(str(tmp_path)))


@dataclass(frozen=True)
class Morton(Strategy):
    """Rewrites in Morton order, whatever the options say."""

    name: str = "morton"

    def unsuited(self, index_format: IndexFormat) -> str | None:
        return "an index at the end" if index_format.location == "start" else None

    def plan(self, commit: Commit) -> CommitPlan:
        return plan_rewrite(commit.index_format, commit.old, commit.old_nbytes, commit.updates, "morton")


@dataclass(frozen=True)
class CarefulMorton(Morton):
    needs: ClassVar[Mapping[str, str]] = {"compare_and_swap": "replace on condition"}


def test_a_strategy_from_outside(tmp_path: Path) -> None:
    store = shardstore.open(str(tmp_path), strategy=Morton(), chunks_per_shard=(4, 4))
    array = zarr.create_array(store, name="a", shape=(4, 4), chunks=(1, 1), dtype="u1", compressors=None)
    array[...] = np.arange(1, 17, dtype="u1").reshape(4, 4)
    (shard,) = (path for path in (tmp_path / "a").rglob("*") if path.is_file() and path.name != "zarr.json")
    assert list(shard.read_bytes()[:16]) == [1, 2, 5, 6, 3, 4, 7, 8, 9, 10, 13, 14, 11, 12, 15, 16]
    again = zarr.open_array(pickle.loads(pickle.dumps(store)), path="a")
    again[0, 0] = 99
    assert list(shard.read_bytes()[:4]) == [99, 2, 5, 6]
    np.testing.assert_array_equal(array[0], [99, 2, 3, 4])


def test_what_a_strategy_asks_for_is_asked(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="strategy='morton' needs an index at the end"):
        shardstore.open(str(tmp_path), strategy=Morton(), index_location="start")
    with pytest.raises(Unsupported, match="cannot replace on condition, which strategy='morton' needs"):
        shardstore.open(GenericStorage(fsspec.filesystem("memory"), "/toy"), strategy=CarefulMorton())
    shardstore.open(str(tmp_path), strategy=CarefulMorton())
