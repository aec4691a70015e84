"""``DraftStorage`` against plain dictionaries: what is written through canonical keys, in any order, is what is read and listed."""

from __future__ import annotations

import json
import uuid
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from shardstore.errors import InvalidInput
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, Condition, IfGeneration
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import ConditionFailed, Found
from shardstore.storage.memory import MemoryStorage
from shardstore.stored.draft2022.storage import DraftStorage
from shardstore.testing.storage_suite import SyncStorage
from tests.harness.scale import EXAMPLES
from tests.stored.hierarchies import array, group

pytestmark = pytest.mark.timeout(300 + 5 * EXAMPLES)

# Nodes are called like chunks, and chunks lie where nodes are called.
PATHS = ["", "x", "c", "0", "x/c", "x/c0", "x/c/0", "c0/1", "g/c", "two", "two/c/c"]
TWO_D = ("two", "g/c")  # below whose rows nothing else is put: directories leave that out
DATA = [
    *("c", "c/0", "c/1", "c.0.1", "c/0/1", "notes", "zarr.json.old"),
    *("x/c", "x/c/0", "x/c/12", "x/c/1/2", "x/c.0.1", "x/c/notes", "x/c0/notes", "x/c0/1/notes", "x/c/0/notes"),
    *("x/c/c", "x/c/c/0", "x/c/0/c", "x/c/0/c/1", "x/c0/c/2", "0/c/0", "0/c", "c0/1/c/0", "c0/1/c"),
    *("g/c/c", "g/c/c/0", "g/c/c/0/1", "g/c/c/1/10", "two/c/0/0", "two/c/0/1", "two/c.1.1", "two/notes", "two/c/c/c/3"),
]
NEVER = ["c0/1/2", "x/c0", "x/c/00", "c0/0", "two/c0/1", "x/c.1"]

GROUP = json.loads(group())


def documents(path: str) -> list[dict[str, Any]]:
    chosen = [group(), group(a=1), array([], []), array([], [], ()), array([9], [2], (2,)), array([9], [2])]
    if path in TWO_D:
        chosen += [array([9, 9], [2, 2], (2, 1)), array([9, 9], [2, 2])]
    chosen.append(array([9, 9], [2, 2], chunk_key_encoding={"name": "default", "configuration": {"separator": "."}}))
    return [json.loads(document) for document in chosen]


class Model:
    """What is shown, from documents and from the objects of data under the keys that they have where no array is 0-d."""

    def __init__(self) -> None:
        self.documents: dict[str, dict[str, Any]] = {}
        self.data: dict[str, bytes] = {}
        self.has_entry_point = False

    def is_scalar(self, path: str) -> bool:
        return self.documents.get(path, {}).get("shape") == []

    def shown_documents(self) -> dict[str, dict[str, Any]]:
        implicit = {""} if self.has_entry_point else set()
        for path in self.documents:
            while path:
                path = path.rpartition("/")[0]
                implicit.add(path)
        return dict.fromkeys(implicit, GROUP) | self.documents

    def put_document(self, path: str, document: dict[str, Any]) -> None:
        """A new array's chunk gets its proper place: it is new where no array was."""
        was_array = "shape" in self.documents.get(path, {})
        self.documents[path] = document
        first, second = self.objects(path)
        if not was_array and self.is_scalar(path) and first not in self.data and second in self.data:
            self.data[first] = self.data.pop(second)

    def objects(self, path: str) -> tuple[str, str]:
        """Of the chunk of a 0-d array, the one that counts first."""
        start = f"{path}/" if path else ""
        return f"{start}c/0", f"{start}c"

    def place(self, key: str) -> str | None:
        """Where data of this key is or would be, ``None`` where there is no place."""
        if (key == "c/0" or key.endswith("/c/0")) and self.is_scalar(key[:-3].rstrip("/")):
            return None
        if (key == "c" or key.endswith("/c")) and self.is_scalar(path := key[:-1].rstrip("/")):
            first, second = self.objects(path)
            return second if first not in self.data and second in self.data else first
        return key

    def shown_data(self) -> dict[str, bytes]:
        shown = dict(self.data)
        for path in self.documents:
            if self.is_scalar(path):
                first, second = self.objects(path)
                chunk = shown.pop(first, None)
                if chunk is not None:
                    shown[second] = chunk
        return shown

    def keys(self) -> set[str]:
        return {f"{path}/zarr.json".lstrip("/") for path in self.shown_documents()} | set(self.shown_data())


class Machine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        inner = MemoryStorage(f"/machine-{uuid.uuid4().hex}")
        self.i = SyncStorage(inner)
        self.s = SyncStorage(DraftStorage(inner))
        self.model = Model()
        # Other things are there too, without canonical keys.
        for key in ("README", "data/root/c00", "meta/root.txt", "data/other/x"):
            self.i.put(key, b"junk")

    def teardown(self) -> None:
        if hasattr(self, "i"):
            self.i.delete_many(*self.i.keys())

    @rule(
        choice=st.sampled_from(PATHS).flatmap(lambda p: st.tuples(st.just(p), st.sampled_from(documents(p)))),
        condition=st.sampled_from("uag"),
    )
    def write_document(self, choice: tuple[str, dict[str, Any]], condition: str) -> None:
        path, document = choice
        key = f"{path}/zarr.json".lstrip("/")
        asked: Condition = UNCONDITIONAL
        if condition == "a":
            asked = IF_ABSENT
        elif condition == "g":
            found = self.s.read(key, EVERYTHING)
            asked = IfGeneration(found.generation) if isinstance(found, Found) else IF_ABSENT
        data = json.dumps(document).encode()
        if condition == "a" and path in self.model.documents:
            with pytest.raises(ConditionFailed):
                self.s.put(key, data, asked)
            return
        generation = self.s.put(key, data, asked)
        self.model.put_document(path, document)
        self.model.has_entry_point = True
        assert [info.generation for info in self.s.infos(key) if info.key == key] == [generation]

    @rule(key=st.sampled_from(DATA), data=st.binary(max_size=3), if_absent=st.booleans())
    def write(self, key: str, data: bytes, if_absent: bool) -> None:
        place = self.model.place(key)
        if place is None:
            with pytest.raises(InvalidInput):
                self.s.put(key, data)
        elif if_absent and place in self.model.data:
            with pytest.raises(ConditionFailed):
                self.s.put(key, data, IF_ABSENT)
        else:
            self.s.put(key, data, IF_ABSENT if if_absent else UNCONDITIONAL)
            self.model.data[place] = data

    @rule(key=st.sampled_from(NEVER))
    def write_what_has_no_place(self, key: str) -> None:
        with pytest.raises(InvalidInput):
            self.s.put(key, b"")
        assert self.s.get(key) is None

    @rule(path=st.sampled_from(PATHS), many=st.booleans())
    def delete_document(self, path: str, many: bool) -> None:
        key = f"{path}/zarr.json".lstrip("/")
        if many:
            self.s.delete_many(key)
            self.model.documents.pop(path, None)
        else:
            assert self.s.delete(key) is (self.model.documents.pop(path, None) is not None)

    @rule(key=st.sampled_from(DATA), many=st.booleans())
    def delete(self, key: str, many: bool) -> None:
        place = self.model.place(key)
        places = () if place is None else self.model.objects(key[:-1].rstrip("/")) if place != key or self._is_scalar_chunk(key) else (key,)
        if many:
            self.s.delete_many(key)
        else:
            assert self.s.delete(key) is any(p in self.model.data for p in places)
        for p in places:
            self.model.data.pop(p, None)

    def _is_scalar_chunk(self, key: str) -> bool:
        return key.endswith("c") and self.model.is_scalar(key[:-1].rstrip("/"))

    @rule(source=st.sampled_from(DATA), to=st.sampled_from(DATA))
    def copy(self, source: str, to: str) -> None:
        old, new = self.model.place(source), self.model.place(to)
        if old is None or old not in self.model.data:
            if new is not None:
                assert self.s.copy(source, to) is None
        elif new is None:
            with pytest.raises(InvalidInput):
                self.s.copy(source, to)
        else:
            assert self.s.copy(source, to) is not None
            self.model.data[new] = self.model.data[old]

    @rule(source=st.sampled_from(PATHS), to=st.sampled_from(PATHS))
    def copy_document(self, source: str, to: str) -> None:
        keys = [f"{path}/zarr.json".lstrip("/") for path in (source, to)]
        shown = self.model.shown_documents()
        generation = self.s.copy(*keys)
        assert (generation is not None) is (source in shown)
        if source in self.model.documents:
            self.model.put_document(to, self.model.documents[source])
        elif source in shown and (to in self.model.documents or to not in shown):
            self.model.put_document(to, GROUP)
        self.model.has_entry_point |= source in self.model.documents or (generation is not None and to in self.model.documents)

    @rule(key=st.sampled_from([*PATHS, *DATA, "", "z", "x/c/z", "tw", "nothing"]), cut=st.integers(0, 4))
    def list(self, key: str, cut: int) -> None:
        prefix = key[: len(key) - cut] if cut < 4 else f"{key}/".lstrip("/")
        keys = self.s.keys(prefix)
        assert sorted(keys) == sorted(k for k in self.model.keys() if k.startswith(prefix)), prefix  # noqa: SIM118 - no mapping

    @rule(path=st.sampled_from([*PATHS, *DATA, "nothing", "x/c/1", "g", "c/0/c", "x/c0/1", "two/c", "two/c/0"]))
    def list_dir(self, path: str) -> None:
        prefix = f"{path}/" if path else ""
        below = [key[len(prefix) :].partition("/") for key in self.model.keys() if key.startswith(prefix)]  # noqa: SIM118 - no mapping
        objects, prefixes = self.s.children(prefix)
        assert objects == sorted(prefix + name for name, slash, _ in below if not slash)
        assert prefixes == sorted({f"{prefix}{name}/" for name, slash, _ in below if slash})

    @invariant()
    def everything_is_as_in_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        infos = self.s.infos()
        assert sorted(info.key for info in infos) == sorted(self.model.keys())
        for info in infos:
            found = self.s.read(info.key, EVERYTHING)
            assert isinstance(found, Found), info.key
            assert found.generation == info.generation
        for path, document in self.model.shown_documents().items():
            assert json.loads(self.s.get(f"{path}/zarr.json".lstrip("/")) or b"{}") == document
        for key, data in self.model.shown_data().items():
            assert self.s.get(key) == data


def test_any_order_of_operations() -> None:
    settings = hypothesis.settings(
        max_examples=EXAMPLES // 2, stateful_step_count=30, suppress_health_check=list(hypothesis.HealthCheck), print_blob=True
    )
    run_state_machine_as_test(Machine, settings=settings)
