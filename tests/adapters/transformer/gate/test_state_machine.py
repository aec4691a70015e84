"""The transformer's operations against a plain dictionary, over one layer and two, over memory, local disk and S3."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from shardstore.opening.open import open_storage
from shardstore.storage.base import Storage
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.storage_suite import SyncStorage
from tests.adapters.transformer.layers import document, layered
from tests.harness.scale import EXAMPLES

SIZE = 4
"""Bytes of every chunk of an array without compressor."""


@dataclass(frozen=True)
class Array:
    path: str
    grid: tuple[int, ...]
    separator: str = "/"
    compressed: bool = False

    @property
    def prefix(self) -> str:
        return f"data/root/{self.path}/"

    @property
    def document(self) -> bytes:
        chunk = (SIZE,) + (1,) * (len(self.grid) - 1) if self.grid else ()
        shape = tuple(g * c for g, c in zip(self.grid, chunk, strict=True))
        return document(shape, chunk, separator=self.separator, compressed=self.compressed)

    def key(self, coords: tuple[int, ...]) -> str:
        return f"{self.prefix}c{self.separator.join(map(str, coords)) or '0'}"  # of a 0-d array as zarr-python 2.18 has it

    @property
    def keys(self) -> dict[str, tuple[int, ...]]:
        return {self.key(coords): coords for coords in itertools.product(*map(range, self.grid))}

    @property
    def whole_shards(self) -> dict[tuple[int, ...], list[str]]:
        """The chunks of every shard that lies inside the array, where a shard has two chunks along each dimension."""
        shards: dict[tuple[int, ...], list[str]] = {}
        for key, coords in self.keys.items():
            shards.setdefault(tuple(c // 2 for c in coords), []).append(key)
        return {shard: keys for shard, keys in shards.items() if len(keys) == 2 ** len(self.grid)}

    @property
    def rows(self) -> set[str]:
        """Every prefix that ends inside the coordinates."""
        if self.separator != "/":
            return set()
        return {key[: i + 1] for key in self.keys for i, letter in enumerate(key) if letter == "/" and i >= len(self.prefix)}


ARRAYS = [
    Array("one", (9,)),
    Array("g/two", (5, 6)),
    Array("dots", (3, 4), separator="."),
    Array("packed", (4, 4), compressed=True),
    Array("three", (2, 3, 4), compressed=True),
    Array("scalar", (), compressed=True),
    Array("c0", (3, 4), compressed=True),  # names that parts of chunk keys have
    Array("c/0", (5,)),
]
OWNERS = {key: array for array in ARRAYS for key in array.keys}
FOREIGN = [
    "data/root/one/c00",
    "data/root/one/notes.txt",
    "data/root/g/two/c0/00",
    "data/root/packed/c0/x/y",
    "data/root/packed/c/0",
    "meta/notes",
    "other/key",
]
CHUNKS = sorted(OWNERS)
KEYS = CHUNKS + FOREIGN
PREFIXES = sorted(
    {"data/root/one/c/", "data/root/packed/c/", "data/root/packed/c/0/", "data/root/c/", "data/root/c/0/", "data/root/c0/0/"}
    | {"data/", "data/root/", "data/root/g/", "other/", "meta/", "nothing/", "data/root/packed/c0/x/", "data/root/one/c3/"}
    | {array.prefix for array in ARRAYS}
    | {row for array in ARRAYS for row in array.rows}
)
RANGES = st.none() | st.tuples(st.integers(-6, 6), st.none() | st.integers(0, 6))
DOCUMENTS = {f"meta/root/{array.path}.array.json": array.document for array in ARRAYS}


def value_of(key: str) -> st.SearchStrategy[bytes]:
    fixed = key in OWNERS and not OWNERS[key].compressed
    return st.binary(min_size=SIZE, max_size=SIZE) if fixed else st.binary(max_size=9)


class Machine(RuleBasedStateMachine):
    layers = 1

    def storage(self) -> Storage:
        return MemoryStorage(f"/machine-{uuid.uuid4().hex}")

    @initialize()
    def begin(self) -> None:
        self.place = self.storage()
        self.top, self.counted = layered(self.place, self.layers)
        for key, data in DOCUMENTS.items():
            self.top.set(key, data)
        self.model = dict(DOCUMENTS) | {"zarr.json": self.top.get("zarr.json") or b""}

    # -- writing -------------------------------------------------------------------------------------------------------

    @rule(key=st.sampled_from(KEYS), data=st.data())
    def set(self, key: str, data: st.DataObject) -> None:
        value = data.draw(value_of(key))
        self.top.set(key, value)
        self.model[key] = value

    @rule(keys=st.lists(st.sampled_from(KEYS), unique=True, max_size=5), data=st.data())
    def set_partial_values(self, keys: list[str], data: st.DataObject) -> None:
        updates: list[tuple[str, int, bytes]] = []
        for key in keys:
            old = self.model.get(key)
            if old is None:
                updates.append((key, 0, data.draw(value_of(key))))
                continue
            cut = data.draw(st.integers(0, len(old)))
            most = len(old) if key in OWNERS and not OWNERS[key].compressed else 12
            head = data.draw(st.binary(max_size=cut))
            updates += [(key, cut, data.draw(st.binary(max_size=most - cut))), (key, 0, head)]
        new = dict(self.model)
        for key, start, piece in sorted(updates, key=lambda update: update[1]):
            before = new.get(key, b"")
            new[key] = before[:start] + piece + before[start + len(piece) :]
        self._where_a_shard_is_given_whole(updates, new)
        self.top.set_partial_values(updates)
        self.model = new

    def _where_a_shard_is_given_whole(self, updates: list[tuple[str, int, bytes]], new: dict[str, bytes]) -> None:
        """Then it is built of what is given, and nothing is left of longer chunks."""
        given: dict[str, bytes] = {}
        for key in {key for key, _, _ in updates}:
            pieces = sorted((start, piece) for k, start, piece in updates if k == key)
            pieces = [(start, piece) for start, piece in pieces if piece]
            together = b"".join(piece for _, piece in pieces)
            if (
                pieces and pieces[0][0] == 0 and len(together) == pieces[-1][0] + len(pieces[-1][1])
            ):  # from the first byte on, without a gap
                given[key] = together
        for array in ARRAYS:
            for keys in array.whole_shards.values() if array.compressed else ():
                if given.keys() >= set(keys):
                    new.update({key: given[key] for key in keys})

    @rule(array=st.sampled_from(ARRAYS), data=st.data())
    def set_whole_shard(self, array: Array, data: st.DataObject) -> None:
        keys = array.whole_shards[data.draw(st.sampled_from(sorted(array.whole_shards)))]
        values = {key: data.draw(value_of(key)) or b"some" for key in keys}  # nothing at all is not a whole chunk
        with self.counted.block() as calls:
            self.top.set_partial_values([(key, 0, value) for key, value in values.items()])
        # A chunk without dimensions may have two names: which is there is looked at.
        assert calls == ({"set": 1} if array.grid else {"set": 1, "get_partial_values": 1})
        self.model |= values

    @rule(key=st.sampled_from(KEYS))
    def erase(self, key: str) -> None:
        self.top.erase(key)
        self.model.pop(key, None)

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=12))
    def erase_values(self, keys: list[str]) -> None:
        self.top.erase_values(keys)
        for key in keys:
            self.model.pop(key, None)

    @rule(array=st.sampled_from(ARRAYS))
    def erase_every_chunk(self, array: Array) -> None:
        """No object is left of an array that has no chunks."""
        self.top.erase_values(array.keys)
        for key in array.keys:
            self.model.pop(key, None)
        stored = SyncStorage(self.place).keys(array.prefix)
        if self.place.capabilities.conditional_delete:  # elsewhere shards of nothing but an index are left
            assert [key for key in stored if key not in FOREIGN] == []

    @rule(prefix=st.sampled_from([p for p in PREFIXES if not p.startswith("meta")]))
    def erase_prefix(self, prefix: str) -> None:
        self.top.erase_prefix(prefix)
        self.model = {key: value for key, value in self.model.items() if not key.startswith(prefix)}

    # -- reading -------------------------------------------------------------------------------------------------------

    @rule(asked=st.lists(st.tuples(st.sampled_from(KEYS + list(DOCUMENTS)), RANGES), max_size=12))
    def get_partial_values(self, asked: list[tuple[str, Any]]) -> None:
        with self.counted.block() as calls:
            values = self.top.get_partial_values(asked)
        assert calls["get_partial_values"] <= 2 + any(key in DOCUMENTS or key in FOREIGN for key, _ in asked)
        assert set(calls) <= {"get_partial_values"}
        for (key, wanted), value in zip(asked, values, strict=True):
            stored = self.model.get(key)
            if stored is not None and wanted is not None:
                start, length = wanted
                stored = stored[start:] if length is None else stored[start:][:length]
            assert value == stored, (key, wanted)

    @rule(key=st.sampled_from(KEYS))
    def get(self, key: str) -> None:
        assert self.top.get(key) == self.model.get(key)

    @rule(prefix=st.sampled_from(["", "/", *PREFIXES, *KEYS]))
    def list_prefix(self, prefix: str) -> None:
        assert self.top.list_prefix(prefix) == sorted(key for key in self.model if key.startswith(prefix.lstrip("/")))

    @rule(prefix=st.sampled_from(["", *PREFIXES]))
    def list_dir(self, prefix: str) -> None:
        """Keys are exact. A prefix may be listed that holds nothing, where a shard lies that could hold such keys; over another layer,
        which lists exactly, a row may be missing that holds no chunk but something else (``DraftListing.directory``).
        """
        keys, prefixes = self.top.list_dir(prefix)
        below = [key[len(prefix) :].partition("/") for key in self.model if key.startswith(prefix)]
        assert keys == sorted(prefix + name for name, slash, _ in below if not slash)
        exact = {f"{prefix}{name}/" for name, slash, _ in below if slash}
        if self.layers > 1:
            exact -= {row for array in ARRAYS for row in array.rows if not any(key.startswith(row) for key in CHUNKS if key in self.model)}
        assert exact <= set(prefixes)
        assert set(prefixes) - exact <= {row for array in ARRAYS for row in array.rows}

    def teardown(self) -> None:
        """Another client sees the same, one that knows nothing."""
        if hasattr(self, "top"):
            other, _ = layered(self.place, self.layers)
            assert dict(zip(other.list(), other.get_partial_values([(key, None) for key in other.list()]), strict=True)) == self.model


def run(machine: type[Machine], examples: int, steps: int = 30) -> None:
    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        suppress_health_check=list(hypothesis.HealthCheck),
        print_blob=True,
        phases=[hypothesis.Phase.reuse, hypothesis.Phase.generate],  # to shrink a failure takes longer than a test may
    )
    run_state_machine_as_test(machine, settings=settings)


@pytest.mark.parametrize("layers", [1, 2])
def test_in_memory(layers: int) -> None:
    run(type("InMemory", (Machine,), {"layers": layers}), EXAMPLES // 5)


@pytest.mark.parametrize("layers", [1, 2])
def test_on_local_disk(layers: int, tmp_path: Path) -> None:
    def storage(self: Machine) -> Storage:
        return LocalStorage(tmp_path / uuid.uuid4().hex, fsync=False)

    run(type("OnLocalDisk", (Machine,), {"layers": layers, "storage": storage}), EXAMPLES // 5)


@pytest.mark.parametrize("layers", [1, 2])
def test_on_s3(layers: int, s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url

    def storage(self: Machine) -> Storage:
        return open_storage(f"{url}/{uuid.uuid4().hex}", options)

    run(type("OnS3", (Machine,), {"layers": layers, "storage": storage}), EXAMPLES // 20, 20)
