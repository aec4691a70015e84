"""``ShardedMap`` and ``ShardedFileSystem`` against a plain dictionary: two clients that take turns, whatever they do."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import tempfile
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import zarr
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from shardstore import ShardedMap
from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
from shardstore.engine.metadata.hierarchy import HierarchyRegistry
from shardstore.errors import InvalidInput, NotFound
from shardstore.plan.policy import ArrayInfo
from tests.adapters.places import Place, array_document
from tests.engine.hooked import AS_THEY_ARE
from tests.harness.scale import EXAMPLES
from tests.shards import presented
from tests.stored import as_zarr_memory

pytestmark = pytest.mark.timeout(300 + 5 * EXAMPLES)

Values = dict[str, bytes]


# -- what is drawn -------------------------------------------------------------------------------------------------------


def two_a_side(array: ArrayInfo) -> tuple[int, ...]:
    return (2,) * len(array.shape)


def uneven(array: ArrayInfo) -> tuple[int, ...]:
    return (3, 1, 2)[: len(array.shape)]


def some_not(array: ArrayInfo) -> tuple[int, ...] | None:
    return None if array.path.startswith("g/") else uneven(array)


POLICIES: list[Any] = [two_a_side, uneven, some_not, {"g/*": None, "*": "auto"}, None]

# Names that chunk keys have too. An array is never below another.
NODES = ["x", "0", "c/x", "g/0", "g/c", "g/deep/1"]
GROUPS = ["", "g", "c", "g/deep"]
PLAIN = ["notes", "g/notes", "x/extra", "0/c.extra", "g/c/more/1", "c/x/c-1", "more/c/0/0", "more/7"]

PREFIXES = ["", "x", "x/", "x/c", "x/c/1", "0/", "0/1", "g", "g/", "g/0/c.", "c/", "c/x/0", "more/c"]
BOUND = st.none() | st.integers(-25, 25)


def faces() -> st.SearchStrategy[str]:
    return st.sampled_from(["map", "fs"])


@dataclass(frozen=True)
class ArraySpec:
    """A small array of bytes: what decides which chunk keys it has."""

    grid: tuple[int, ...]
    chunk: tuple[int, ...]
    encoding: str
    separator: str

    @property
    def document(self) -> bytes:
        return self.document_with({})

    def document_with(self, attributes: dict[str, Any]) -> bytes:
        return array_document(
            tuple(g * c for g, c in zip(self.grid, self.chunk, strict=True)),
            self.chunk,
            chunk_key_encoding={"name": self.encoding, "configuration": {"separator": self.separator}},
            attributes=attributes,
            codecs=AS_THEY_ARE,
        )

    @property
    def chunk_nbytes(self) -> int:
        return math.prod(self.chunk)

    def keys(self, path: str) -> list[str]:
        """Of all its chunks."""
        return [f"{path}/{self.name(coords)}" for coords in itertools.product(*map(range, self.grid))]

    def name(self, coords: Iterable[int]) -> str:
        parts = [str(c) for c in coords]
        if self.encoding == "default":
            return self.separator.join(["c", *parts])
        return self.separator.join(parts) or "0"


@st.composite
def specs(draw: st.DrawFn) -> ArraySpec:
    ndim = draw(st.integers(0, 3))
    grid = tuple(draw(st.integers(1, 5 if ndim < 3 else 3)) for _ in range(ndim))
    chunk = tuple(draw(st.integers(1, 2)) for _ in range(ndim))
    return ArraySpec(grid, chunk, draw(st.sampled_from(["default", "v2"])), draw(st.sampled_from(["/", "."])))


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "chunks_per_shard": draw(st.sampled_from(POLICIES)),
        "index_location": draw(st.sampled_from(["start", "end"])),
        "index_checksum": draw(st.booleans()),
        "chunk_order": draw(st.sampled_from(["C", "F", "morton"])),
        "index_cache_bytes": draw(st.sampled_from([0, 500, 1 << 20])),
        "gap_bytes": draw(st.sampled_from([0, 10, None])),
        "metadata_ttl": 0.0,
        "max_memory": draw(st.sampled_from([1, 100, 1 << 20])),
    }


# -- clients -------------------------------------------------------------------------------------------------------------


class Client:
    """Both faces on one engine, which knows nothing of what other clients do."""

    def __init__(self, place: Place, number: int, **options: Any) -> None:
        options = {**options, "commit_attempts": 100 + number}  # so that each has an engine of its own
        self.map = ShardedMap(place.url, **options)
        protocol = place.url.partition(":")[0]
        self.fs = ShardedFileSystem(fo=place.path, target_protocol=protocol, skip_instance_cache=True, **options)
        assert self.fs.engine is self.map.engine
        self.fs.engine.hierarchy.join(HierarchyRegistry(), self.map.url)  # as if in a process of its own
        self.root = place.path

    def set(self, face: str, values: Values) -> None:
        if face == "map":
            self.map.setitems(values)
        else:
            self.fs.pipe(values)

    def erase(self, face: str, keys: list[str]) -> None:
        if face == "map":
            self.map.delitems(keys)
        else:
            self.fs.rm(keys)

    def erase_below(self, face: str, path: str) -> None:
        if face == "map":
            self.map.rmdir(path)
        else:
            self.fs.rm(path, recursive=True)

    def get(self, face: str, keys: list[str]) -> Values:
        """Those of the keys that are there."""
        if face == "map":
            return {k: v for k, v in self.map.getitems(keys, on_error="omit").items() if isinstance(v, bytes)}
        values = self.fs.cat_ranges(keys, None, None)
        errors = [v for v in values if isinstance(v, Exception) and not isinstance(v, NotFound)]
        if errors:
            raise errors[0]
        return {k: v for k, v in zip(keys, values, strict=True) if isinstance(v, bytes)}

    def list(self, face: str, prefix: str) -> list[str]:
        """Every key below a directory, or with the map that starts with a prefix."""
        if face == "map":
            return self.map.list_prefix(prefix)
        return [self.fs.key_of(path) for path in self.fs.find(prefix.rstrip("/"))]


def is_document(key: str) -> bool:
    return key == "zarr.json" or key.endswith("/zarr.json")


def comparable(values: Values) -> dict[str, Any]:
    """Documents by what they say."""
    return {key: json.loads(value) if is_document(key) else value for key, value in values.items()}


def group(**attributes: Any) -> bytes:
    return json.dumps({"zarr_format": 3, "node_type": "group", "attributes": attributes}).encode()


# -- the machine ---------------------------------------------------------------------------------------------------------


class TwoClients(RuleBasedStateMachine):
    """``model`` is what must be seen; inside a transaction by its client ``held``, and nothing of it by the other."""

    def __init__(self) -> None:
        super().__init__()
        self.model: Values = {}
        self.arrays: dict[str, ArraySpec] = {}
        self.attributes = 0
        self.in_transaction: int | None = None
        self.held: Values = {}
        self.held_arrays: dict[str, ArraySpec] = {}
        self.directory: str | None = None

    @initialize(kind=st.sampled_from(["memory"] * 9 + ["local"]), first=options(), second=options())
    def open(self, kind: str, first: dict[str, Any], second: dict[str, Any]) -> None:
        name = f"state-{uuid.uuid4().hex}"
        if kind == "local":
            self.directory = tempfile.mkdtemp(prefix=name)
            self.place = Place(f"file://{self.directory}/root")
            first, second = {**first, "fsync": False}, {**second, "fsync": False}
        else:
            self.place = Place(f"memory://{name}")
        self.clients = [Client(self.place, 0, **first), Client(self.place, 1, **second)]
        assert self.clients[0].map.engine is not self.clients[1].map.engine

    def teardown(self) -> None:
        try:
            if hasattr(self, "clients"):
                if self.in_transaction is not None:
                    self.rollback()
                self.check_everything()
        finally:
            for key in self.place.objects.keys() if hasattr(self, "place") else []:
                self.place.objects.delete(key)
            if self.directory is not None:
                shutil.rmtree(self.directory)

    # What a client is to see, and may change.

    def seen(self, client: int) -> tuple[Values, dict[str, ArraySpec]]:
        return (self.held, self.held_arrays) if client == self.in_transaction else (self.model, self.arrays)

    def writer(self, client: int) -> tuple[Client, Values, dict[str, ArraySpec]]:
        """While one client has a transaction, it is the one that writes."""
        if self.in_transaction is not None:
            client = self.in_transaction
        return self.clients[client], *self.seen(client)

    # Nodes

    @rule(client=st.integers(0, 1), face=faces(), path=st.sampled_from(NODES), spec=specs(), data=st.data())
    def create_array(self, client: int, face: str, path: str, spec: ArraySpec, data: st.DataObject) -> None:
        """Anew, in whatever order its keys come; what was there is erased before."""
        mine, values, arrays = self.writer(client)
        if any(key.startswith(f"{path}/") for key in values):
            mine.erase_below(face, path)
            for key in [key for key in values if key.startswith(f"{path}/")]:
                del values[key]
        chosen = data.draw(st.lists(st.sampled_from(spec.keys(path)), unique=True, max_size=8))
        new = {key: self._chunk(data, spec) for key in chosen}
        new[f"{path}/zarr.json"] = spec.document
        mine.set(face, new)
        values.update(new)
        arrays[path] = spec

    def _chunk(self, data: st.DataObject, spec: ArraySpec) -> bytes:
        n = spec.chunk_nbytes
        return data.draw(st.binary(min_size=n, max_size=n) | st.binary(min_size=n, max_size=n) | st.binary(max_size=20))

    @rule(client=st.integers(0, 1), face=faces(), path=st.sampled_from(GROUPS))
    def set_group(self, client: int, face: str, path: str) -> None:
        mine, values, _ = self.writer(client)
        self.attributes += 1
        key = f"{path}/zarr.json".lstrip("/")
        new = {key: group(n=self.attributes)}
        mine.set(face, new)
        values.update(new)

    @rule(client=st.integers(0, 1), face=faces(), data=st.data())
    def update_attributes(self, client: int, face: str, data: st.DataObject) -> None:
        """What is read is changed and written back; the chunks stay."""
        mine, values, arrays = self.writer(client)
        paths = sorted(path for path in arrays if f"{path}/zarr.json" in values)
        if not paths:
            return
        key = f"{data.draw(st.sampled_from(paths))}/zarr.json"
        self.attributes += 1
        (document,) = (json.loads(value) for value in mine.get(face, [key]).values())
        document["attributes"] = {"n": self.attributes}
        new = {key: json.dumps(document).encode()}
        mine.set(face, new)
        values.update(new)

    @rule(client=st.integers(0, 1), face=faces(), path=st.sampled_from([*NODES, *GROUPS]))
    def erase_node(self, client: int, face: str, path: str) -> None:
        mine, values, arrays = self.writer(client)
        below = [key for key in values if not path or key.startswith(f"{path}/")]
        if not below and face == "fs" and path:
            with pytest.raises(NotFound):
                mine.erase_below(face, path)
            return
        mine.erase_below(face, path)
        for key in below:
            del values[key]
        for array in [array for array in arrays if not path or f"{array}/".startswith(f"{path}/")]:
            del arrays[array]

    @precondition(lambda self: self.in_transaction is None)
    @rule(client=st.integers(0, 1), data=st.data())
    def erase_document_only(self, client: int, data: st.DataObject) -> None:
        """Without its document an array's chunks would be shards that nobody can read: erased with it, or refused; nothing between."""
        mine, values, arrays = self.writer(client)
        paths = sorted(path for path in arrays if not any(key in values for key in arrays[path].keys(path)))
        if paths:
            path = data.draw(st.sampled_from(paths))
            mine.erase("map", [f"{path}/zarr.json"])
            values.pop(f"{path}/zarr.json", None)
            del arrays[path]

    # Values

    def _some_keys(self, data: st.DataObject, values: Values, arrays: dict[str, ArraySpec], most: int = 12) -> list[str]:
        """Keys of chunks and of plain objects, there or not."""
        chunks = [key for path in sorted(arrays) for key in arrays[path].keys(path)]
        return data.draw(st.lists(st.sampled_from(chunks + PLAIN), unique=True, min_size=1, max_size=most))

    def _drawn(self, data: st.DataObject, arrays: dict[str, ArraySpec], keys: Iterable[str]) -> Values:
        owner = {key: arrays[path] for path in arrays for key in arrays[path].keys(path)}
        return {key: self._chunk(data, owner[key]) if key in owner else data.draw(st.binary(max_size=20)) for key in keys}

    @rule(client=st.integers(0, 1), face=faces(), data=st.data())
    def set_values(self, client: int, face: str, data: st.DataObject) -> None:
        mine, values, arrays = self.writer(client)
        new = self._drawn(data, arrays, self._some_keys(data, values, arrays))
        mine.set(face, new)
        values.update(new)

    @rule(client=st.integers(0, 1), how=st.sampled_from(["item", "pipe_file", "open", "append"]), data=st.data())
    def set_one(self, client: int, how: str, data: st.DataObject) -> None:
        mine, values, arrays = self.writer(client)
        ((key, value),) = self._drawn(data, arrays, self._some_keys(data, values, arrays, most=1)).items()
        match how:
            case "item":
                mine.map[key] = value
            case "pipe_file":
                mine.fs.pipe_file(key, value)
            case "open":
                with mine.fs.open(key, "wb") as file:
                    file.write(value)
            case "append":
                with mine.fs.open(key, "ab") as file:
                    file.write(value)
                value = values.get(key, b"") + value
        values[key] = value

    @rule(client=st.integers(0, 1), data=st.data())
    def create_one(self, client: int, data: st.DataObject) -> None:
        mine, values, arrays = self.writer(client)
        ((key, value),) = self._drawn(data, arrays, self._some_keys(data, values, arrays, most=1)).items()
        if key in values:
            with pytest.raises(FileExistsError):
                mine.fs.pipe_file(key, value, mode="create")
        else:
            mine.fs.pipe_file(key, value, mode="create")
            values[key] = value

    @rule(client=st.integers(0, 1), face=faces(), data=st.data())
    def erase_values(self, client: int, face: str, data: st.DataObject) -> None:
        mine, values, arrays = self.writer(client)
        keys = self._some_keys(data, values, arrays)
        if face == "fs" and any(key not in values for key in keys):
            with pytest.raises((NotFound, IsADirectoryError)):
                mine.erase(face, keys)  # nothing is erased then
            keys = [key for key in keys if key in values]
        if keys:
            mine.erase(face, keys)
        for key in keys:
            values.pop(key, None)

    @rule(client=st.integers(0, 1), data=st.data())
    def copy_or_move_one(self, client: int, data: st.DataObject) -> None:
        mine, values, arrays = self.writer(client)
        source, *targets = self._some_keys(data, values, arrays, most=2)
        if not targets:
            return
        move = data.draw(st.booleans())
        act = mine.fs.mv if move else mine.fs.cp
        if any(key.startswith(f"{k}/") for k in (source, targets[0]) for key in values):
            return  # a directory is something else
        if source not in values:
            with pytest.raises(FileNotFoundError):
                act(source, targets[0])
            return
        act(source, targets[0])
        values[targets[0]] = values[source]
        if move:
            del values[source]

    @precondition(lambda self: self.arrays or self.held_arrays)
    @rule(client=st.integers(0, 1), data=st.data(), move=st.booleans())
    def copy_or_move_array(self, client: int, data: st.DataObject, move: bool) -> None:
        """As it is stored, or value by value inside a transaction."""
        mine, values, arrays = self.writer(client)
        sources = sorted(path for path in arrays if any(key.startswith(f"{path}/") for key in values))
        free = [path for path in NODES if not any(key.startswith(f"{path}/") for key in values) and path not in arrays]
        if not sources or not free:
            return
        source, target = data.draw(st.sampled_from(sources)), data.draw(st.sampled_from(free))
        (mine.fs.mv if move else mine.fs.cp)(source, target, recursive=True)
        for key in [key for key in values if key.startswith(f"{source}/")]:
            values[target + key[len(source) :]] = values[key]
            if move:
                del values[key]
        arrays[target] = arrays[source]
        if move:
            del arrays[source]

    # Reading

    @rule(client=st.integers(0, 1), face=faces(), data=st.data())
    def read(self, client: int, face: str, data: st.DataObject) -> None:
        values, arrays = self.seen(client)
        keys = self._some_keys(data, values, arrays)
        assert self.clients[client].get(face, keys) == {key: values[key] for key in keys if key in values}
        for key in keys[:3]:
            assert (key in self.clients[client].map) == self.clients[client].fs.isfile(key) == (key in values)
            if key in values:
                assert self.clients[client].map.getsize(key) == self.clients[client].fs.size(key) == len(values[key])

    @rule(client=st.integers(0, 1), data=st.data(), bounds=st.lists(st.tuples(BOUND, BOUND), min_size=1, max_size=6))
    def read_ranges(self, client: int, data: st.DataObject, bounds: list[tuple[int | None, int | None]]) -> None:
        values, arrays = self.seen(client)
        keys = data.draw(st.lists(st.sampled_from(self._some_keys(data, values, arrays)), min_size=len(bounds), max_size=len(bounds)))
        got = self.clients[client].fs.cat_ranges(keys, [start for start, _ in bounds], [end for _, end in bounds])
        for key, (start, end), found in zip(keys, bounds, got, strict=True):
            if key in values:
                assert found == values[key][start:end], (key, start, end)
            else:
                assert isinstance(found, NotFound)

    @rule(client=st.integers(0, 1), prefix=st.sampled_from(PREFIXES))
    def list_prefix(self, client: int, prefix: str) -> None:
        values, _ = self.seen(client)
        assert self.clients[client].list("map", prefix) == sorted(key for key in values if key.startswith(prefix))

    @rule(client=st.integers(0, 1), path=st.sampled_from([*NODES, *GROUPS, "x/c", "g/0/c", "c/x/1", "notes", "nothing"]))
    def look(self, client: int, path: str) -> None:
        values, _ = self.seen(client)
        fs = self.clients[client].fs
        below = sorted(key for key in values if not path or key.startswith(f"{path}/"))
        expected = below or [key for key in [path] if key in values]
        assert self.clients[client].list("fs", path) == expected
        assert fs.isdir(path) == fs.isdir(f"{path}/") == bool(below)
        start = len(path) + 1 if path else 0
        if below:
            names = {key[:start] + key[start:].partition("/")[0] for key in below}
            assert [fs.key_of(name) for name in fs.ls(path, detail=False)] == sorted(names)
            sizes = {info["name"]: info["size"] for info in fs.ls(path) if info["type"] == "file"}
            assert {fs.key_of(name): size for name, size in sizes.items() if not is_document(name)} == {
                key: len(values[key]) for key in below if "/" not in key[start:] and not is_document(key)
            }
            documents = sum(fs.size(key) for key in below if is_document(key))
            assert fs.du(path) == documents + sum(len(values[key]) for key in below if not is_document(key))
            walked = [f"{here}/{name}" for here, _, names in fs.walk(path) for name in names]
            assert sorted(fs.key_of(name) for name in walked) == below

    # Transactions

    @precondition(lambda self: self.in_transaction is None)
    @rule(client=st.integers(0, 1))
    def begin(self, client: int) -> None:
        self.clients[client].fs.start_transaction()
        self.in_transaction = client
        self.held, self.held_arrays = dict(self.model), dict(self.arrays)
        with pytest.raises(InvalidInput, match="cannot be nested"):
            self.clients[client].map.transaction().__enter__()

    @precondition(lambda self: self.in_transaction is not None)
    @rule()
    def commit(self) -> None:
        assert self.in_transaction is not None
        self.clients[self.in_transaction].fs.end_transaction()
        self.in_transaction = None
        self.model, self.arrays = self.held, self.held_arrays

    @precondition(lambda self: self.in_transaction is not None)
    @rule()
    def rollback(self) -> None:
        assert self.in_transaction is not None
        self.clients[self.in_transaction].fs.transaction.complete(commit=False)
        self.in_transaction = None

    # Always

    @invariant()
    def nothing_is_lost_or_made_up(self) -> None:
        if hasattr(self, "clients"):
            stored = presented(self.place.objects)
            assert {key: value for key, value in stored.items() if not is_document(key)} == {
                key: value for key, value in self.model.items() if not is_document(key)
            }
            assert {key for key in stored if is_document(key)} == {key for key in self.model if is_document(key)}

    def check_everything(self) -> None:
        """Both clients see all there is, and plain zarr reads the same out of the stored shards."""
        expected = comparable(self.model)
        for client, face in itertools.product(self.clients, ["map", "fs"]):
            keys = client.list(face, "")
            assert keys == sorted(expected)
            assert comparable(client.get(face, keys)) == expected
        native = as_zarr_memory(self.place.objects)
        for path, spec in self.arrays.items():
            chunks = {key: self.model[key] for key in spec.keys(path) if key in self.model}
            if f"{path}/zarr.json" not in self.model or any(len(value) != spec.chunk_nbytes for value in chunks.values()):
                continue
            array = np.zeros([g * c for g, c in zip(spec.grid, spec.chunk, strict=True)], "u1")
            for coords in itertools.product(*map(range, spec.grid)):
                if (value := chunks.get(f"{path}/{spec.name(coords)}")) is not None:
                    where = tuple(slice(i * c, (i + 1) * c) for i, c in zip(coords, spec.chunk, strict=True))
                    array[where] = np.frombuffer(value, "u1").reshape(spec.chunk)
            np.testing.assert_array_equal(zarr.open_array(native, path=path, mode="r")[...], array)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")
def test_two_clients_against_a_dictionary() -> None:
    run_state_machine_as_test(
        TwoClients,
        settings=hypothesis.settings(
            max_examples=EXAMPLES // 4,
            stateful_step_count=40,
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )
