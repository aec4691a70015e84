"""Documents and data of a stored 2022-draft hierarchy, through their canonical keys."""

from __future__ import annotations

import asyncio
import json
import pickle
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shardstore.engine.metadata.hierarchy import Hierarchy
from shardstore.errors import InvalidInput, Unsupported
from shardstore.format.draft2022.keys import canonical_key, document_path
from shardstore.format.draft2022.metadata import array_to_v3, group_to_v3
from shardstore.format.json_text import loads_object
from shardstore.format.storage_transformers import sharding_transformer
from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, Condition, Generation, IfGeneration
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteSuffix
from shardstore.storage.base import Absent, Changed, ConditionFailed, Failed, Found, Guard, GuardChanged, Read, ReadOutcome, Storage
from shardstore.storage.memory import MemoryStorage
from shardstore.stored.draft2022.documents import IMPLICIT
from shardstore.stored.draft2022.storage import DraftStorage
from shardstore.testing.storage_suite import SyncStorage, on_io_loop
from tests.stored.hierarchies import (
    ENTRY_POINT,
    STORES,
    array,
    as_json,
    draft_array,
    draft_group,
    fill,
    generation_of,
    group,
    objects,
    objects_of,
    same_json,
    store_name,
)

# -- what zarr-python 2.18.7 wrote -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES, ids=store_name)
def test_fixtures(store: Path, i: SyncStorage, s: SyncStorage) -> None:
    stored = objects_of(store)
    fill(i, stored)
    scalars = {k.rpartition("/")[0] for k in stored if k.endswith("s0/c0")}
    expected: dict[str, bytes] = {}
    for key, data in stored.items():
        canonical = canonical_key(key)
        if canonical is None:
            continue
        if document_path(canonical) is None:
            expected["s0/c" if key.rpartition("/")[0] in scalars else canonical] = data
            continue
        document = loads_object(data)
        shown = array_to_v3(document) if key.endswith(".array.json") else group_to_v3(document)
        assert isinstance(shown, dict), shown
        assert shown.get("storage_transformers", []) == document.get("storage_transformers", [])
        expected[canonical] = as_json(shown)
    implicit = set(s.keys()) - set(expected)
    assert implicit == {f"{p}/zarr.json".lstrip("/") for p in groups_above(expected)} - set(expected)
    for key, data in expected.items():
        found = s.get(key)
        assert found is not None
        assert json.loads(found) == json.loads(data) if document_path(key) is not None else found == data, key
        info = s.stat(key)
        assert info is not None
        assert (info.key, info.nbytes, info.generation) == (key, len(found), generation_of(s, key))
    for key in implicit:
        assert s.get(key) == s.get("zarr.json") or "zarr.json" not in implicit
        assert generation_of(s, key) == IMPLICIT
    assert objects(i) == stored  # nothing was written


def groups_above(keys: dict[str, bytes]) -> set[str]:
    above = {""}
    for key in keys:
        path = document_path(key)
        while path:
            path = path.rpartition("/")[0]
            above.add(path)
    return above


def test_what_is_stored_by_this_is_what_the_draft_has(i: SyncStorage, s: SyncStorage) -> None:
    s.put("g/x/zarr.json", array([4, 4], [1, 1], (2, 2)), IF_ABSENT)
    s.put("g/zarr.json", group(a=1), IfGeneration(IMPLICIT))
    s.put("g/x/c/1/0", b"shard")
    s.put("g/x/c.0.1", b"dot")
    s.put("g/x/notes.txt", b"hello")
    assert list(objects(i)) == [
        "data/root/g/x/c0.1",
        "data/root/g/x/c1/0",
        "data/root/g/x/notes.txt",
        "meta/root/g.group.json",
        "meta/root/g/x.array.json",
        "zarr.json",
    ]
    assert json.loads(i.get("zarr.json") or b"") == ENTRY_POINT
    stored = json.loads(i.get("meta/root/g/x.array.json") or b"")
    assert stored["storage_transformers"] == [sharding_transformer((2, 2))]
    assert stored["data_type"] == "u1"
    assert i.get("data/root/g/x/c1/0") == b"shard"


# -- reading ---------------------------------------------------------------------------------------------------------------


def test_ranges_and_versions_of_documents(i: SyncStorage, s: SyncStorage) -> None:
    fill(i, {"zarr.json": as_json(ENTRY_POINT), "meta/root/x.array.json": draft_array([4], [2])})
    shown = s.get("x/zarr.json") or b""
    stored = i.stat("meta/root/x.array.json")
    assert stored is not None
    assert stored.generation is not None
    outcome = s.read("x/zarr.json", ByteRange(1, 5), ByteSuffix(3), ByteRange(9999, 10000), generation=stored.generation)
    assert outcome == Found(stored.generation, len(shown), (memoryview(shown[1:5]), memoryview(shown[-3:]), memoryview(b"")))
    assert s.read("x/zarr.json") == Found(stored.generation, len(shown), ())
    assert s.read("x/zarr.json", EVERYTHING, generation=Generation("another")) == Changed()
    assert s.read("zarr.json", EVERYTHING, generation=stored.generation) == Changed()  # an implicit group
    assert s.read("y/zarr.json", EVERYTHING, generation=stored.generation) == Absent()


class Rounds(MemoryStorage):
    """Notes how many reads came in each round."""

    def __init__(self, path: str = "") -> None:
        super().__init__(path)
        self.rounds: list[int] = []

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        self.rounds.append(len(reads))
        return await super().read(reads)


def test_one_round_for_documents_and_data() -> None:
    inner = Rounds(f"/rounds-{uuid.uuid4().hex}")
    fill(
        SyncStorage(inner),
        {"meta/root/x.array.json": draft_array([4], [2]), "data/root/x/c0": b"1", "meta/root/g.group.json": draft_group()},
    )
    s = SyncStorage(DraftStorage(inner))
    outcomes = s.read_many(
        Read("x/zarr.json", (EVERYTHING,)), Read("x/c/0", (EVERYTHING,)), Read("g/zarr.json", (EVERYTHING,)), Read("c", ())
    )
    assert [type(outcome) for outcome in outcomes] == [Found, Found, Found, Absent]
    assert inner.rounds == [2 + 1 + 2 + 3]


def test_reads_beside_a_document(i: SyncStorage, s: SyncStorage) -> None:
    fill(i, {"meta/root/x.array.json": draft_array([4], [2]), "data/root/x/c0": b"1", "meta/root/y.array.json": draft_array([], [])})
    guard = Guard("x/zarr.json", generation_of(s, "x/zarr.json"))
    reads = [Read(key, (EVERYTHING,), None, guard) for key in ("x/c/0", "x/c/1", "x/zarr.json", "y/c")]
    assert [type(outcome) for outcome in s.read_many(*reads)] == [Found, Absent, Found, Absent]
    i.put("meta/root/x.array.json", draft_array([6], [2]))
    assert s.read_many(*reads) == [GuardChanged()] * 4


@pytest.mark.parametrize(
    "data",
    [b"", b"hello", b'{"shape": [', b'{"shape": [1]}', draft_array([4], [2], data_type="x9"), array([4], [2]), group()],
    ids=["empty", "text", "cut", "poor", "type", "v3 array", "v3 group"],
)
def test_what_cannot_be_translated_is_never_an_array(data: bytes, i: SyncStorage, s: SyncStorage) -> None:
    i.put("meta/root/x.array.json", data)
    shown = s.get("x/zarr.json")
    assert shown is not None
    assert shown == data or b"zarr_format" in data
    hierarchy = Hierarchy(s.storage, 1.0, lambda: 0.0)
    node, _ = hierarchy.describe("x", shown, IMPLICIT)
    assert node.kind == "other"
    assert node.damage == ("json" if data.startswith(b"{") else "" if data else "empty")
    info = s.stat("x/zarr.json")
    assert info is not None
    assert info.nbytes == len(shown)
    # It can be replaced, by who has seen it.
    s.put("x/zarr.json", array([4], [2], (2,)), IfGeneration(generation_of(s, "x/zarr.json")))
    node, _ = hierarchy.describe("x", s.get("x/zarr.json") or b"", IMPLICIT)
    assert node.kind == "sharded"


def test_the_group_beside_an_array_is_not_seen(i: SyncStorage, s: SyncStorage) -> None:
    fill(i, {"meta/root/x.array.json": draft_array([4], [2]), "meta/root/x.group.json": draft_group(a=1)})
    assert b'"array"' in (s.get("x/zarr.json") or b"")
    assert s.keys("x") == ["x/zarr.json"]
    assert s.infos("x")[0].generation == generation_of(s, "x/zarr.json")
    s.put("x/zarr.json", array([8], [2]), IfGeneration(generation_of(s, "x/zarr.json")))
    assert list(objects(i)) == ["meta/root/x.array.json", "zarr.json"]
    i.put("meta/root/x.group.json", draft_group(a=1))
    assert s.delete("x/zarr.json")
    assert (s.get("x/zarr.json"), list(objects(i))) == (None, ["zarr.json"])


def test_chunks_per_shard_that_were_lost(i: SyncStorage, inner: Storage) -> None:
    fill(i, {"meta/root/x.array.json": draft_array([4], [2], unknown={"must_understand": False}, extensions=[]), "data/root/x/c0": b"1"})
    s = SyncStorage(pickle.loads(pickle.dumps(DraftStorage(inner, {"x": (2,)}))))
    shown = json.loads(s.get("x/zarr.json") or b"")
    assert shown["storage_transformers"] == [sharding_transformer((2,))]
    s.copy("x/zarr.json", "y/zarr.json")  # of which no override tells
    again = json.loads(s.get("y/zarr.json") or b"")
    assert again == shown
    s.put("x/zarr.json", as_json(shown | {"shape": [6]}), IfGeneration(generation_of(s, "x/zarr.json")))
    plain = SyncStorage(DraftStorage(inner))
    assert json.loads(plain.get("x/zarr.json") or b"") == shown | {"shape": [6]}
    assert json.loads(i.get("meta/root/x.array.json") or b"")["unknown"] == {"must_understand": False}


def test_an_override_that_does_not_agree_shows_no_array(i: SyncStorage, inner: Storage) -> None:
    stored = draft_array([4], [2], [2])
    i.put("meta/root/x.array.json", stored)
    assert SyncStorage(DraftStorage(inner, {"x": (3,)})).get("x/zarr.json") == stored


# -- implicit groups -------------------------------------------------------------------------------------------------------


def test_implicit_groups(i: SyncStorage, s: SyncStorage) -> None:
    assert s.get("zarr.json") is None
    i.put("meta/root/a/b/x.array.json", draft_array([4], [2]))
    for path in ("", "a/", "a/b/"):
        assert same_json(s.get(f"{path}zarr.json"), group())
        assert generation_of(s, f"{path}zarr.json") == IMPLICIT
        assert s.read(f"{path}zarr.json") == Absent()  # only what is asked for whole is looked for
    for path in ("b", "a/b/x/y", "a/bc"):
        assert s.get(f"{path}/zarr.json") is None
    assert s.delete("a/zarr.json") is False
    assert s.delete("a/zarr.json", IfGeneration(IMPLICIT)) is False
    s.put("a/zarr.json", group(t=1), IfGeneration(IMPLICIT))
    with pytest.raises(ConditionFailed):
        s.put("a/zarr.json", group(t=2), IfGeneration(IMPLICIT))
    with pytest.raises(ConditionFailed):
        s.delete("a/zarr.json", IfGeneration(IMPLICIT))
    assert same_json(s.get("a/zarr.json"), group(t=1))
    s.put("a/b/zarr.json", group(t=3), IF_ABSENT)
    assert s.delete("a/b/zarr.json")
    assert generation_of(s, "a/b/zarr.json") == IMPLICIT


def test_the_root_of_a_hierarchy_is_a_group(i: SyncStorage, s: SyncStorage) -> None:
    i.put("meta/root/junk.txt", b"")
    assert s.get("zarr.json") is None
    i.put("zarr.json", as_json(ENTRY_POINT))
    assert (s.keys(), s.children()) == (["zarr.json"], (["zarr.json"], []))
    assert same_json(s.get("zarr.json"), group())
    i.put("zarr.json", group())  # somebody else's
    assert s.get("zarr.json") is None
    assert s.keys() == []


# -- conditions ------------------------------------------------------------------------------------------------------------


def test_conditions_of_documents(i: SyncStorage, s: SyncStorage) -> None:
    first = s.put("x/zarr.json", array([4], [2]), IF_ABSENT)
    assert generation_of(s, "x/zarr.json") == first
    second = s.put("x/zarr.json", array([6], [2]), IfGeneration(first))
    before = objects(i)
    refused: list[tuple[bytes, Condition]] = [
        (array([8], [2]), IfGeneration(first)),
        (group(), IfGeneration(first)),
        (array([8], [2]), IF_ABSENT),
        (group(), IF_ABSENT),
        (group(), IfGeneration(IMPLICIT)),
    ]
    for data, condition in refused:
        with pytest.raises(ConditionFailed):
            s.put("x/zarr.json", data, condition)
    with pytest.raises(ConditionFailed):
        s.put("y/zarr.json", array([8], [2]), IfGeneration(second))
    with pytest.raises(ConditionFailed):
        s.delete("x/zarr.json", IfGeneration(first))
    assert objects(i) == before
    with pytest.raises(InvalidInput):
        s.delete("x/zarr.json", IF_ABSENT)
    assert s.delete("x/zarr.json", IfGeneration(second)) is True
    assert s.delete("x/zarr.json", IfGeneration(second)) is False


@pytest.mark.parametrize("unconditional", [False, True])
def test_a_node_changes_its_kind(unconditional: bool, i: SyncStorage, s: SyncStorage) -> None:
    def put(data: bytes) -> None:
        now = generation_of(s, "x/zarr.json")
        assert s.put("x/zarr.json", data, UNCONDITIONAL if unconditional else IfGeneration(now)) == generation_of(s, "x/zarr.json")

    s.put("x/zarr.json", group(a=1))
    put(array([4], [2]))
    assert list(objects(i)) == ["meta/root/x.array.json", "zarr.json"]
    put(group(a=2))
    assert list(objects(i)) == ["meta/root/x.group.json", "zarr.json"]
    assert same_json(s.get("x/zarr.json"), group(a=2))


def test_what_is_not_shown_survives_an_update(i: SyncStorage, s: SyncStorage) -> None:
    stored = b'{"shape": [4], "data_type": "<i2", "chunk_grid": {"type": "regular", "chunk_shape": [2], "separator": "."},'
    stored += b'"chunk_memory_layout": "C", "fill_value": null, "extensions": [], "attributes": {"n": 1.50, "big": 1e400}, "odd": [1.0]}'
    i.put("meta/root/x.array.json", stored)
    i.put("meta/root/g.group.json", b'{"attributes": {"n": 0.10}, "odd": 2}')
    shown = s.get("x/zarr.json") or b""
    s.put("x/zarr.json", shown.replace(b"1e400", b"1e500"), IfGeneration(generation_of(s, "x/zarr.json")))
    now = i.get("meta/root/x.array.json") or b""
    for text in (b"1.50", b"1e500", b'"odd"', b'"separator": "."', b"null", b'"<i2"'):
        assert text in now
    s.put("g/zarr.json", s.get("g/zarr.json") or b"", IfGeneration(generation_of(s, "g/zarr.json")))
    assert b"0.10" in (i.get("meta/root/g.group.json") or b"")
    assert b'"odd": 2' in (i.get("meta/root/g.group.json") or b"")


async def _attempt(storage: Storage, key: str, data: bytes, condition: Condition) -> bool:
    try:
        await storage.write(key, [data], len(data), condition)
    except ConditionFailed:
        return False
    return True


class Yielding(MemoryStorage):
    """Lets others in before each step, so that racers interleave."""

    async def read(self, reads: Any) -> Any:
        await asyncio.sleep(0)
        return await super().read(reads)

    async def write(self, key: str, body: Any, nbytes: int, condition: Condition) -> Generation:
        await asyncio.sleep(0)
        return await super().write(key, body, nbytes, condition)


@pytest.mark.parametrize("kinds", ["arrays", "groups", "both", "change"])
@pytest.mark.parametrize("late", [0, 1, 2, 3, 4, 5])
def test_racing_creators_have_at_most_one_winner(kinds: str, late: int, inner: Storage) -> None:
    inner = Yielding(inner.path) if isinstance(inner, MemoryStorage) else inner
    storages = [DraftStorage(inner) for _ in range(8)]
    s = SyncStorage(storages[0])
    condition: Condition = IF_ABSENT
    if kinds == "change":
        condition = IfGeneration(s.put("x/zarr.json", group(n=-1)))
    documents = [
        (array([4], [2], attributes={"n": n}) if kinds == "arrays" or (kinds in ("both", "change") and n % 2) else group(n=n))
        for n in range(8)
    ]

    async def one(n: int) -> bool:
        for _ in range(late if n % 2 else 0):
            await asyncio.sleep(0)
        return await _attempt(storages[n], "x/zarr.json", documents[n], condition)

    async def race() -> list[bool]:
        return list(await asyncio.gather(*map(one, range(8))))

    won = [n for n, mine in enumerate(on_io_loop(race())) if mine]
    assert len(won) <= 1
    if kinds in ("arrays", "groups"):
        assert len(won) == 1
    if won:
        assert json.loads(s.get("x/zarr.json") or b"{}")["attributes"] == {"n": won[0]}
    elif kinds == "both":
        assert s.get("x/zarr.json") is None
    left = SyncStorage(inner).keys("meta/root/x.")
    assert len(left) == len(won) if kinds != "change" else len(left) <= 1


# -- refusals --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry_point", "error", "message"),
    [
        (group(), InvalidInput, "'zarr.json' in .* is the document of a Zarr v3 node: open it as what it is"),
        (array([4], [2]), InvalidInput, "the document of a Zarr v3 node"),
        (b"", InvalidInput, "not a JSON document"),
        (b"{}", InvalidInput, "not the entry point"),
        (as_json(ENTRY_POINT | {"metadata_key_suffix": ".xml"}), Unsupported, "its metadata_key_suffix is '.xml'"),
        (as_json(ENTRY_POINT | {"extensions": [{"extension": "e", "must_understand": True}]}), Unsupported, "its extension 'e'"),
    ],
)
def test_what_is_stored_in_another_format_is_left_alone(
    entry_point: bytes, error: type[Exception], message: str, i: SyncStorage, s: SyncStorage
) -> None:
    fill(i, {"zarr.json": entry_point, "data/root/y/c": b"1", "meta/root/y.array.json": draft_array([], [])})
    before = objects(i)
    for condition in (UNCONDITIONAL, IF_ABSENT):
        with pytest.raises(error, match=message):
            s.put("x/zarr.json", array([4], [2]), condition)
    with pytest.raises(error, match=message):
        s.copy("y/zarr.json", "x/zarr.json")
    assert isinstance(s.storage, DraftStorage)
    assert type(on_io_loop(s.storage.problem())) is error
    assert objects(i) == before


def test_there_is_no_problem_with_a_hierarchy_or_nothing(i: SyncStorage, s: SyncStorage) -> None:
    assert isinstance(s.storage, DraftStorage)
    assert on_io_loop(s.storage.problem()) is None
    i.put("zarr.json", as_json(ENTRY_POINT))
    assert on_io_loop(s.storage.problem()) is None


@pytest.mark.parametrize(
    ("key", "data"),
    [
        ("a b/zarr.json", group()),
        ("é/zarr.json", array([4], [2])),
        ("x/zarr.json", b"text"),
        ("x/zarr.json", b"[]"),
        ("x/zarr.json", b'{"zarr_format": 2}'),
        ("x/zarr.json", array([4], [2], data_type="bfloat16")),
        ("x/zarr.json", array([4], [2], chunk_key_encoding={"name": "v2"})),
        ("x/zarr.json", as_json(json.loads(group()) | {"consolidated_metadata": {"metadata": {}}})),
        ("x/c0", b""),
        ("x/c/00", b""),
        ("x/c.5", b""),
        ("x//c/0", b""),
        ("../x", b""),
    ],
)
def test_refusals_name_the_key_and_change_nothing(key: str, data: bytes, i: SyncStorage, s: SyncStorage) -> None:
    with pytest.raises(InvalidInput) as raised:
        s.put(key, data)
    assert repr(key) in str(raised.value)
    i.put("data/root/y", b"1")
    if data == b"":
        with pytest.raises(InvalidInput):
            s.copy("y", key)
    assert (s.get(key), s.stat(key), s.delete(key)) == (None, None, False)
    s.delete_many(key)
    assert list(objects(i)) == ["data/root/y"]


def test_documents_are_written_whole(i: SyncStorage, s: SyncStorage) -> None:
    first = s.put("x/zarr.json", array([4], [2]))
    before = objects(i)
    with pytest.raises(InvalidInput, match="is a document, which is translated"):
        s.compose("x/zarr.json", first, [], UNCONDITIONAL)
    with pytest.raises(InvalidInput, match="announced as 5 bytes"):
        s.write("x/zarr.json", [group()], 5)
    assert objects(i) == before


# -- the entry point -------------------------------------------------------------------------------------------------------


def test_an_entry_point_that_is_there_stays(i: SyncStorage, s: SyncStorage) -> None:
    mine = as_json(ENTRY_POINT | {"zarr_format": "https://purl.org/zarr/spec/core/3.0"})
    i.put("zarr.json", mine)
    s.put("x/zarr.json", group())
    assert i.get("zarr.json") == mine


def test_the_entry_point_is_looked_for_once() -> None:
    inner = Rounds(f"/rounds-{uuid.uuid4().hex}")
    i = SyncStorage(inner)
    i.put("zarr.json", as_json(ENTRY_POINT))
    s = SyncStorage(DraftStorage(inner))
    for n in range(3):
        s.put("x/zarr.json", group(n=n))
    assert inner.rounds == [3, 2, 2]  # with the documents of the first write


def test_data_needs_no_entry_point(i: SyncStorage, s: SyncStorage) -> None:
    s.put("x/c/0", b"1")
    assert list(objects(i)) == ["data/root/x/c0"]


def test_an_entry_point_of_another_format_that_comes_in_between(inner: Storage) -> None:
    class Late(MemoryStorage):
        async def write(self, key: str, body: Any, nbytes: int, condition: Condition) -> Generation:
            if key == "zarr.json" and condition == IF_ABSENT:
                await super().write(key, [group()], len(group()), UNCONDITIONAL)
            return await super().write(key, body, nbytes, condition)

    late = Late(f"/late-{id(inner)}")
    with pytest.raises(InvalidInput, match="Zarr v3 node"):
        SyncStorage(DraftStorage(late)).put("x/zarr.json", group())
    assert SyncStorage(late).keys() == ["zarr.json"]
    SyncStorage(late).delete("zarr.json")


# -- copying and deleting --------------------------------------------------------------------------------------------------


def test_copies_of_nodes(i: SyncStorage, s: SyncStorage) -> None:
    odd = draft_array([4], [2], odd=[1.0])
    fill(
        i,
        {"meta/root/x.array.json": odd, "data/root/x/c1": b"1", "meta/root/h/y.group.json": draft_group(), "meta/root/z.group.json": b"{}"},
    )
    assert s.copy("x/c/1", "z/c/1") is not None
    assert s.copy("x/zarr.json", "z/zarr.json") == generation_of(s, "z/zarr.json")
    assert i.get("meta/root/z.array.json") == odd
    assert i.get("meta/root/z.group.json") is None
    assert s.copy("h/y/zarr.json", "z/zarr.json") is not None
    assert (i.get("meta/root/z.array.json"), i.get("meta/root/z.group.json")) == (None, draft_group())
    assert s.copy("nothing/zarr.json", "z/zarr.json") is None
    assert s.copy("nothing", "z/c/1") is None
    assert s.get("z/c/1") == b"1"
    # An implicit group is one at its target too.
    assert s.copy("h/y/zarr.json", "n/y/zarr.json") is not None
    assert s.copy("h/zarr.json", "n/zarr.json") == IMPLICIT
    assert s.copy("h/zarr.json", "m/zarr.json") == generation_of(s, "m/zarr.json")
    assert i.keys("meta/root/n") == ["meta/root/n/y.group.json"]
    assert i.keys("meta/root/m") == ["meta/root/m.group.json"]
    assert s.copy("x/zarr.json", "x/backup") is not None
    assert i.get("data/root/x/backup") == s.get("x/zarr.json")
    assert s.copy("x/backup", "w/zarr.json") is not None
    assert s.get("w/zarr.json") == s.get("x/zarr.json")


def test_deleting_many(i: SyncStorage, s: SyncStorage) -> None:
    s.put("x/zarr.json", array([4], [2]))
    s.put("x/c/0", b"1")
    s.put("g/zarr.json", group())
    s.put("g/n/zarr.json", group())
    s.delete_many("x/zarr.json", "x/c/0", "g/zarr.json", "absent/zarr.json", "x/c0", "absent/c")
    assert list(objects(i)) == ["meta/root/g/n.group.json", "zarr.json"]
    assert s.rename_prefix("g", "h") is False


def test_failures_of_single_reads(inner: Storage) -> None:
    class Failing(MemoryStorage):
        async def read(self, reads: Any) -> Any:
            outcomes = await super().read(reads)
            return [Failed(Unsupported("no")) if r.key.endswith(".array.json") else o for r, o in zip(reads, outcomes, strict=True)]

    s = SyncStorage(DraftStorage(Failing(f"/failing-{id(inner)}")))
    outcomes = s.read_many(Read("x/zarr.json", (EVERYTHING,)), Read("x/c", (EVERYTHING,)), Read("x/c/0", (EVERYTHING,)))
    assert [type(outcome) for outcome in outcomes] == [Failed, Failed, Absent]
    for operation in (
        lambda: s.stat("x/c"),
        lambda: s.delete("x/zarr.json"),
        lambda: s.put("x/zarr.json", group()),
        lambda: s.put("x/c", b""),
    ):
        with pytest.raises(Unsupported, match="no"):
            operation()
