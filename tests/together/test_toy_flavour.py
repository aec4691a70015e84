"""A flavour that is written outside of the package: a value for ``present``."""

from __future__ import annotations

import json
import pickle
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.engine.reading.listing import ListedDir, ListedValue, directly_below
from shardstore.engine.reading.shard_chunks import Value
from shardstore.engine.values import KeyUpdate
from shardstore.errors import InvalidInput
from shardstore.format.store_keys import metadata_path
from shardstore.presented.view import Canonical, DocumentPart, Meaning, PresentedFlavour, ShownPart, View

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
