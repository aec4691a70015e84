"""Whole nodes, copied and moved as they are stored: what it costs, what is refused, and what an interruption leaves."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.abc.store import Store

import shardstore
from shardstore._sync import run_sync
from shardstore.engine.actions import SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.moving import copy_nodes, move_between
from shardstore.engine.options import EngineOptions
from shardstore.errors import Conflict, InvalidInput, NotFound, StorageError
from shardstore.format.append_record import AppendRecord
from shardstore.model.generation import UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING, BytesLike
from shardstore.opening.open import open_storage
from shardstore.storage.abilities import HasIdentity
from shardstore.storage.base import Storage
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.requests.bucket import forget_facts
from shardstore.testing.trace import TraceStorage
from tests.engine.hooked import HookedStorage, document, fresh_memory
from tests.harness.scale import moments
from tests.stored import StorageObjects, snapshot

SHARDS = 40
VALUES = np.random.default_rng(0).integers(1, 255, SHARDS * 4, dtype="u1")

Kind = Callable[[str], Storage]
"""Storages of one kind; the same name is the same place."""


@pytest.fixture(params=["memory", "local", "s3"])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kind]:
    base = f"moving-{uuid.uuid4().hex}"
    if request.param == "memory":
        yield lambda name: MemoryStorage(f"/{base}/{name}")
    elif request.param == "local":
        yield lambda name: LocalStorage(tmp_path / name, fsync=False)
    else:
        url, options = request.getfixturevalue("s3_url")
        yield lambda name: open_storage(f"{url}/{name}", options)
        forget_facts()


def fill(storage: Storage) -> None:
    """A group with an array of 40 shards, another of two in a group of its own, an array without shards, and a note."""
    store = shardstore.open(storage, chunks_per_shard={"g/a": (4,), "g/deep/b": (2,), "*": None})
    group = zarr.create_group(store, path="g", attributes={"title": "everything"})
    array = group.create_array("a", shape=VALUES.shape, chunks=(1,), dtype="u1", compressors=None, attributes={"unit": "m"})
    array[...] = VALUES
    group.create_array("deep/b", data=np.arange(4, dtype="i4"), chunks=(1,))
    group.create_array("plain", data=np.arange(3.0), chunks=(3,))
    StorageObjects(storage).put("g/notes.txt", b"a note")
    StorageObjects(storage).put("g2/notes.txt", b"a neighbour")


def check_group(storage: Storage, path: str) -> None:
    """Everything of ``fill`` can be read at ``path``, by a client that knows nothing yet."""
    group = zarr.open_group(shardstore.open(storage), path=path, mode="r")
    assert group.attrs["title"] == "everything"
    check_array(storage, f"{path}/a" if path else "a")
    np.testing.assert_array_equal(array_of(group.store, f"{group.path}/deep/b"), np.arange(4))
    np.testing.assert_array_equal(array_of(group.store, f"{group.path}/plain"), np.arange(3.0))
    assert StorageObjects(storage).get(f"{path}/notes.txt".lstrip("/")) == b"a note"


def check_array(storage: Storage, path: str) -> None:
    np.testing.assert_array_equal(array_of(shardstore.open(storage), path), VALUES)


def array_of(store: Store, path: str) -> Any:
    return zarr.open_array(store, path=path.lstrip("/"), mode="r")[...]


def moved(contents: dict[str, bytes], source: str, target: str, *, keep: bool = False) -> dict[str, bytes]:
    """What must be stored after everything at or below ``source`` was moved."""
    ours = {key: data for key, data in contents.items() if key == source or key.startswith(f"{source}/")}
    rest = contents if keep else {key: data for key, data in contents.items() if key not in ours}
    return {**rest, **{target + key[len(source) :]: data for key, data in ours.items()}}


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_moving_an_array_costs_no_reading_of_it(kind: Kind) -> None:
    fill(kind("x"))
    before = snapshot(StorageObjects(kind("x")))
    trace = TraceStorage(kind("x"))
    moves = run_sync(Engine(trace).move_prefix("g/a", "h/n"))
    assert snapshot(StorageObjects(kind("x"))) == moved(before, "g/a", "h/n")
    check_array(kind("x"), "h/n")
    data_reads = [event for event in trace.events if event.op == "read" and not event.key.endswith("zarr.json")]
    assert data_reads == []
    assert [event for event in trace.events if event.op in ("write", "compose")] == []
    copies = [event for event in trace.events if event.op == "copy"]
    if trace.kind == "s3":
        assert moves == len(copies) == SHARDS + 1
        assert copies[-1].key == "h/n/zarr.json"
        assert trace.summary().requests <= SHARDS + 1 + 16
    else:
        assert (moves, copies) == (1, [])
        assert [event.op for event in trace.events].count("rename_prefix") == 1
        assert trace.summary().requests <= 10


def test_a_rename_costs_the_same_however_many_shards_there_are() -> None:
    def requests(shards: int) -> int:
        storage = fresh_memory()
        store = shardstore.open(storage, chunks_per_shard=(1,))
        zarr.create_array(store, name="a", data=np.ones(shards, dtype="u1"), chunks=(1,), fill_value=0)
        trace = TraceStorage(storage)
        run_sync(Engine(trace).move_prefix("a", "b"))
        return trace.summary().requests

    assert requests(2) == requests(3000) <= 10


def test_the_counters_of_the_engine_see_it(kind: Kind) -> None:
    fill(kind("x"))
    engine = Engine(kind("x"))
    run_sync(engine.move_prefix("g/a", "h"))
    assert engine.counters.requests >= (SHARDS if engine.storage.kind == "s3" else 1)
    assert engine.counters.bytes_read < 5000  # documents


# -- what is stored ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["h", "g2/inside", "very/deep/down"])
def test_a_group_is_moved_with_everything_in_it(kind: Kind, path: str) -> None:
    fill(kind("x"))
    before = snapshot(StorageObjects(kind("x")))
    run_sync(Engine(kind("x")).move_prefix("g", path))
    assert snapshot(StorageObjects(kind("x"))) == moved(before, "g", path)
    check_group(kind("x"), path)
    with pytest.raises(FileNotFoundError):
        zarr.open_group(shardstore.open(kind("x")), path="g", mode="r")


def test_a_group_is_copied_with_everything_in_it(kind: Kind) -> None:
    fill(kind("x"))
    before = snapshot(StorageObjects(kind("x")))
    done: list[tuple[int, int]] = []
    engine = Engine(kind("x"))
    count = run_sync(copy_nodes(engine, "g", engine, "h", progress=lambda objects, nbytes: done.append((objects, nbytes))))
    after = snapshot(StorageObjects(kind("x")))
    assert after == moved(before, "g", "h", keep=True)
    assert count == len(after) - len(before)
    assert [objects for objects, _ in done] == list(range(1, count + 1))
    assert done[-1][1] == sum(len(data) for key, data in before.items() if key.startswith("g/"))
    check_group(kind("x"), "g")
    check_group(kind("x"), "h")


@pytest.mark.parametrize("into", ["", "there"])
def test_to_another_storage(kind: Kind, into: str) -> None:
    fill(kind("x"))
    before = snapshot(StorageObjects(kind("x")))
    ours = {key.removeprefix("g/"): data for key, data in before.items() if key.startswith("g/")}
    count = run_sync(copy_nodes(Engine(kind("x")), "g", Engine(kind("y")), into))
    assert count == len(ours)
    assert snapshot(StorageObjects(kind("y"))) == {f"{into}/{key}".lstrip("/"): data for key, data in ours.items()}
    assert snapshot(StorageObjects(kind("x"))) == before
    check_group(kind("y"), into)
    assert run_sync(move_between(Engine(kind("x")), "g", Engine(kind("z")), into)) == len(ours)
    check_group(kind("z"), into)
    assert sorted(snapshot(StorageObjects(kind("x")))) == ["g2/notes.txt", "zarr.json"]


def test_the_record_of_appends_stays_behind_and_goes_with_its_array(kind: Kind) -> None:
    fill(kind("x"))
    record = AppendRecord("n", len(VALUES), len(VALUES))
    StorageObjects(kind("x")).put("g/a/n.append.json", record.encode())
    contents = snapshot(StorageObjects(kind("x")))
    ours = {key: data for key, data in contents.items() if key.startswith("g/") and not key.endswith(".append.json")}
    assert run_sync(copy_nodes(Engine(kind("x")), "g", Engine(kind("y")), "g")) == len(ours)
    assert snapshot(StorageObjects(kind("y"))) == ours
    assert run_sync(move_between(Engine(kind("x")), "g", Engine(kind("z")), "g")) == len(ours)
    assert snapshot(StorageObjects(kind("z"))) == ours
    assert sorted(snapshot(StorageObjects(kind("x")))) == ["g2/notes.txt", "zarr.json"]
    StorageObjects(kind("y")).put("g/a/n.append.json", record.reserve("aa", 1, 30).encode())
    with pytest.raises(Conflict, match="under way"):
        run_sync(move_between(Engine(kind("y")), "g", Engine(kind("w")), "g"))
    run_sync(Engine(kind("y")).erase_prefix("g/a/"))
    assert not [key for key in snapshot(StorageObjects(kind("y"))) if key.startswith("g/a/")]


def test_the_whole_store(kind: Kind) -> None:
    fill(kind("x"))
    before = snapshot(StorageObjects(kind("x")))
    memory = fresh_memory()
    assert run_sync(move_between(Engine(kind("x")), "", Engine(memory), "")) == len(before)
    assert snapshot(StorageObjects(memory)) == before
    assert snapshot(StorageObjects(kind("x"))) == {}
    check_group(memory, "g")


def test_single_objects(kind: Kind) -> None:
    fill(kind("x"))
    before = snapshot(StorageObjects(kind("x")))
    engine = Engine(kind("x"))
    assert run_sync(engine.copy_prefix("g/notes.txt", "notes.txt")) == 1
    assert run_sync(engine.move_prefix("notes.txt", "n/o.txt")) == 1
    assert snapshot(StorageObjects(kind("x"))) == {**before, "n/o.txt": b"a note"}
    assert run_sync(move_between(engine, "n/o.txt", Engine(kind("y")), "o.txt")) == 1
    assert snapshot(StorageObjects(kind("y"))) == {"o.txt": b"a note"}
    assert snapshot(StorageObjects(kind("x"))) == before
    with pytest.raises(InvalidInput, match="single object"):
        run_sync(copy_nodes(engine, "g/notes.txt", Engine(kind("z")), ""))


def test_objects_that_are_no_nodes(kind: Kind) -> None:
    objects = StorageObjects(kind("x"))
    for key in ("raw/c/0/1", "raw/0/0", "raw/x.bin"):
        objects.put(key, key.encode())
    engine = Engine(kind("x"))
    run_sync(engine.move_prefix("raw", "cooked"))
    assert run_sync(engine.copy_prefix("cooked/c", "raw/c")) == 1
    assert sorted(snapshot(objects)) == ["cooked/0/0", "cooked/c/0/1", "cooked/x.bin", "raw/c/0/1"]


def test_an_object_and_what_is_below_its_key() -> None:
    storage = fresh_memory()
    objects = StorageObjects(storage)
    for key in ("a", "a/b", "a/zarr.json", "ab"):
        objects.put(key, key.encode())
    assert run_sync(Engine(storage).move_prefix("a", "n/a")) == 3
    assert snapshot(objects) == {"n/a": b"a", "n/a/b": b"a/b", "n/a/zarr.json": b"a/zarr.json", "ab": b"ab"}


@pytest.mark.parametrize("nbytes", [0, 1, 8 << 20, (16 << 20) + 5])
def test_large_objects_pass_in_pieces(nbytes: int) -> None:
    source, target = fresh_memory(), TraceStorage(fresh_memory())
    trace = TraceStorage(source)
    data = np.random.default_rng(1).bytes(nbytes)
    StorageObjects(source).put("big", data)
    run_sync(copy_nodes(Engine(trace), "big", Engine(target), "big"))
    assert StorageObjects(target.inner).get("big") == data
    assert max(event.nbytes for event in trace.events if event.op == "read") <= 8 << 20
    assert trace.summary().bytes_read == nbytes


class Busy(HookedStorage):
    """Counts the copies, or writes, that are under way at once."""

    def __init__(self, inner: MemoryStorage) -> None:
        super().__init__(inner)
        self.renames = False
        self.now = self.most = 0
        self.before = self.begin
        self.after = self.end

    async def begin(self, operation: str, key: str) -> None:
        if operation in ("copy", "write"):
            self.now += 1
            self.most = max(self.most, self.now)
            for _ in range(3):
                await asyncio.sleep(0)

    async def end(self, operation: str, key: str) -> None:
        if operation in ("copy", "write"):
            self.now -= 1


def test_so_many_objects_and_bytes_are_on_their_way_at_once() -> None:
    source = fresh_memory()
    for i in range(100):
        StorageObjects(source).put(f"small/{i}", b"1")
    for i in range(4):
        StorageObjects(source).put(f"large/{i}", bytes(1 << 20))
    busy = Busy(source)
    run_sync(Engine(busy).copy_prefix("small", "s"))
    assert busy.most == 32
    away = Busy(fresh_memory())
    run_sync(copy_nodes(Engine(source, EngineOptions(max_memory=4 << 20)), "large", Engine(away), "l"))
    assert away.most == 2  # each is held twice: as it was read, and as it is sent


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_refusals_leave_everything_as_it_was(kind: Kind) -> None:
    fill(kind("x"))
    before = snapshot(StorageObjects(kind("x")))
    engine = Engine(kind("x"))
    below = Engine(kind("x/g"))
    refused: list[tuple[type[Exception], str, Coroutine[Any, Any, int]]] = []
    for move in (copy_nodes, move_between):
        refused += [
            (NotFound, "nothing at 'nothing'", move(engine, "nothing", engine, "h")),
            (NotFound, "nothing at 'g/ab'", move(engine, "g/ab", engine, "h", overwrite=True)),
            (Conflict, "'g2'", move(engine, "g", engine, "g2")),
            (Conflict, "'g2/notes.txt'", move(engine, "g/notes.txt", engine, "g2/notes.txt")),
            (InvalidInput, "overlap", move(engine, "g", engine, "g", overwrite=True)),
            (InvalidInput, "overlap", move(engine, "g", engine, "g/deep", overwrite=True)),
            (InvalidInput, "overlap", move(engine, "g", engine, "g/new/one", overwrite=True)),
            (InvalidInput, "overlap", move(engine, "g/a", engine, "g", overwrite=True)),
            (InvalidInput, "overlap", move(engine, "g/a", engine, "", overwrite=True)),
            (InvalidInput, "overlap", move(engine, "", engine, "all", overwrite=True)),
            (InvalidInput, "overlap", move(engine, "g/a", below, "a", overwrite=True)),
            (InvalidInput, "overlap", move(engine, "g/a", below, "", overwrite=True)),
            (InvalidInput, "overlap", move(below, "", engine, "g/deep/x", overwrite=True)),
            (InvalidInput, "array 'g/a'", move(engine, "g/a/c", engine, "h")),
            (InvalidInput, "array 'g/a'", move(engine, "g/a/c/3", engine, "h")),
            (InvalidInput, "array 'g/a'", move(engine, "g/a/c/1000", engine, "h")),
            (InvalidInput, "array 'g/a'", move(engine, "g2", engine, "g/a/c", overwrite=True)),
            (InvalidInput, "array 'g/a'", move(engine, "g2/notes.txt", engine, "g/a/c/0", overwrite=True)),
            (InvalidInput, "array 'a'", move(engine, "g2", below, "a/c/5", overwrite=True)),
            (InvalidInput, "metadata of a node", move(engine, "g/a/zarr.json", engine, "h")),
            (InvalidInput, "metadata of a node", move(engine, "g/notes.txt", engine, "h/zarr.json")),
            (InvalidInput, "segment", move(engine, "g/../g", engine, "h")),
            (InvalidInput, "segment", move(engine, "g", engine, "h/")),
        ]
    for error, message, coroutine in refused:
        with pytest.raises(error, match=message):
            run_sync(coroutine)
    assert snapshot(StorageObjects(kind("x"))) == before


def test_links_do_not_hide_that_places_overlap(tmp_path: Path) -> None:
    fill(LocalStorage(tmp_path / "real"))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    here, there = Engine(LocalStorage(tmp_path / "real")), Engine(LocalStorage(tmp_path / "link"))
    with pytest.raises(InvalidInput, match="overlap"):
        run_sync(move_between(here, "g", there, "g", overwrite=True))
    check_group(LocalStorage(tmp_path / "real"), "g")


def test_the_same_bucket_name_on_another_server_is_another_place() -> None:
    class Elsewhere(MemoryStorage, HasIdentity):
        identity = "http://127.0.0.1:1"
        url = "s3://bucket"

    class Here(MemoryStorage, HasIdentity):
        identity = "http://127.0.0.1:2"
        url = "s3://bucket"

    one, other = Here(f"/{uuid.uuid4().hex}"), Elsewhere(f"/{uuid.uuid4().hex}")
    fill(one)
    run_sync(copy_nodes(Engine(one), "g", Engine(other), "g"))
    check_group(other, "g")


def test_keys_like_those_of_chunks_that_are_none(kind: Kind) -> None:
    fill(kind("x"))
    engine = Engine(kind("x"))
    StorageObjects(kind("x")).put("g/a/0/x", b"1")
    run_sync(engine.move_prefix("g/a/0", "g/a/1"))
    run_sync(engine.move_prefix("g2", "0"))
    assert {"g/a/1/x", "0/notes.txt"} <= set(snapshot(StorageObjects(kind("x"))))
    check_array(kind("x"), "g/a")


def test_chunk_keys_with_dots_are_recognised() -> None:
    storage = fresh_memory()
    engine = Engine(storage, EngineOptions(chunks_per_shard=(2, 2)))
    encoding = {"name": "v2", "configuration": {"separator": "."}}

    async def scenario() -> None:
        await engine.update(("zarr.json", SetValue(document((4, 4), (1, 1), chunk_key_encoding=encoding))))
        await engine.update(("0.1", SetValue(b"1")))
        await engine.update(("notes.txt", SetValue(b"n")))
        for source, target in (("0.0", "x"), ("notes.txt", "1.1")):
            with pytest.raises(InvalidInput, match="array ''"):
                await engine.move_prefix(source, target, overwrite=True)
        await engine.move_prefix("notes.txt", "1")

    run_sync(scenario())
    assert sorted(snapshot(StorageObjects(storage))) == ["0.0", "1", "zarr.json"]


def test_not_while_a_transaction_is_open() -> None:
    storage = fresh_memory()
    fill(storage)
    engine, other = Engine(storage), Engine(fresh_memory())

    async def scenario() -> None:
        await engine.begin()
        for copying in (engine.copy_prefix("g", "h"), copy_nodes(engine, "g", other, "g"), copy_nodes(other, "g", engine, "h")):
            with pytest.raises(InvalidInput, match="transaction"):
                await copying
        await engine.rollback()
        await engine.copy_prefix("g", "h")

    run_sync(scenario())
    check_group(storage, "h")


def test_overwriting_replaces_all_that_was_there(kind: Kind) -> None:
    fill(kind("x"))
    objects = StorageObjects(kind("x"))
    objects.put("h/left/over", b"1")
    objects.put("i/left/over", b"1")
    before = snapshot(objects)
    engine = Engine(kind("x"))
    run_sync(engine.copy_prefix("g", "h", overwrite=True))
    assert snapshot(objects) == moved({key: data for key, data in before.items() if key != "h/left/over"}, "g", "h", keep=True)
    run_sync(engine.move_prefix("g", "i", overwrite=True))
    assert not any(key.startswith("g/") or key == "i/left/over" for key in snapshot(objects))
    check_group(kind("x"), "i")
    run_sync(engine.copy_prefix("i/notes.txt", "g2/notes.txt", overwrite=True))
    assert objects.get("g2/notes.txt") == b"a note"


def test_a_group_takes_the_place_of_an_object(kind: Kind) -> None:
    fill(kind("x"))
    StorageObjects(kind("x")).put("h", b"1")
    engine = Engine(kind("x"))
    with pytest.raises(Conflict):
        run_sync(engine.move_prefix("g", "h"))
    run_sync(engine.move_prefix("g", "h", overwrite=True))
    check_group(kind("x"), "h")
    assert StorageObjects(kind("x")).get("h") is None


def test_an_object_is_there_until_another_takes_its_place() -> None:
    storage = HookedStorage(fresh_memory())
    fill(storage.inner)
    engine = Engine(storage)

    async def fail(operation: str, key: str) -> None:
        if operation == "copy":
            raise StorageError("no")

    storage.before = fail
    for move in (engine.copy_prefix, engine.move_prefix):
        with pytest.raises(StorageError, match="no"):
            run_sync(move("g/notes.txt", "g2/notes.txt", overwrite=True))
    assert StorageObjects(storage.inner).get("g2/notes.txt") == b"a neighbour"


# -- interruptions -----------------------------------------------------------------------------------------------------


def failing_at(storage: HookedStorage, n: int, *, afterwards: bool) -> None:
    """Let the ``n``-th operation fail; ``afterwards``: carried out, and the answer lost."""
    left = n

    async def fail(operation: str, key: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise StorageError(f"{operation} of {key}: gone")

    storage.before, storage.after = (None, fail) if afterwards else (fail, None)


def is_whole(storage: Storage, path: str) -> bool:
    """Whether the group of ``fill_small`` is at ``path``; fails where an array is there that is not what it was."""
    store = shardstore.open(storage)
    for name, shape in (("a", 6), ("b", 3)):
        try:
            array = zarr.open_array(store, path=f"{path}/{name}", mode="r")
        except FileNotFoundError:
            continue
        np.testing.assert_array_equal(array[...], np.arange(1, shape + 1))
    try:
        group = zarr.open_group(store, path=path, mode="r")
    except FileNotFoundError:
        return False
    assert sorted(group.array_keys()) == ["a", "b"]
    return True


def fill_small(storage: Storage) -> None:
    store = shardstore.open(storage, chunks_per_shard=(2,))
    zarr.create_group(store, path="g")
    zarr.create_array(store, name="g/a", data=np.arange(1, 7), chunks=(1,), fill_value=0)
    zarr.create_array(store, name="g/b", data=np.arange(1, 4), chunks=(1,), fill_value=0)


Operation = Callable[[Engine, Engine], Coroutine[Any, Any, int]]

OPERATIONS: dict[str, Operation] = {
    "copy": lambda engine, _: engine.copy_prefix("g", "h"),
    "copy over": lambda engine, _: engine.copy_prefix("g", "h", overwrite=True),
    "copy away": lambda engine, away: copy_nodes(engine, "g", away, "h"),
    "move": lambda engine, _: engine.move_prefix("g", "h"),
    "move away": lambda engine, away: move_between(engine, "g", away, "h"),
}


@pytest.mark.parametrize("afterwards", [False, True])
@pytest.mark.parametrize("renames", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
def test_failing_at_every_request(name: str, renames: bool, afterwards: bool) -> None:
    moves = name.startswith("move")
    for n in moments(range(1000)):
        source, elsewhere = fresh_memory(), fresh_memory()
        fill_small(source)
        hooked, hooked_elsewhere = HookedStorage(source), HookedStorage(elsewhere)
        hooked.renames = renames
        engine, away = Engine(hooked), Engine(hooked_elsewhere)
        failing_at(hooked, n, afterwards=afterwards)
        hooked_elsewhere.before, hooked_elsewhere.after = hooked.before, hooked.after
        error: Exception | None = None
        try:
            run_sync(OPERATIONS[name](engine, away))
        except StorageError as exc:
            error = exc
        target = elsewhere if name.endswith("away") else source
        target_is_whole = is_whole(target, "h")
        if not target_is_whole or not moves:
            assert is_whole(source, "g")
        if error is None:
            assert target_is_whole
            assert moves != any(key.startswith("g/") for key in snapshot(StorageObjects(source)))
            assert n >= (1 if afterwards and renames and name == "move" else 5)
            return
        # Doing it over gets there, also with what is remembered of the attempt.
        hooked.before = hooked.after = hooked_elsewhere.before = hooked_elsewhere.after = None
        if not (moves and target_is_whole):
            again = move_between if moves else copy_nodes
            run_sync(again(engine, "g", away if name.endswith("away") else engine, "h", overwrite=True))
            assert is_whole(target, "h")
    pytest.fail("it never ended")


def test_documents_come_last_and_the_topmost_at_the_very_end() -> None:
    storage = fresh_memory()
    fill(storage)
    for key in ("g/old/.zarray", "g/old/.zattrs", "g/old/0.0"):
        StorageObjects(storage).put(key, b"{}")
    trace = TraceStorage(storage)
    run_sync(Engine(trace).copy_prefix("g", "h"))
    keys = [event.key for event in trace.events if event.op == "copy"]
    names = ("zarr.json", ".zarray", ".zattrs")
    documents = [key for key in keys if key.endswith(names)]
    assert keys[-len(documents) :] == documents
    assert documents[-1] == "h/zarr.json"
    assert documents.index("h/old/.zattrs") < documents.index("h/old/.zarray")
    assert documents.index("h/deep/b/zarr.json") < documents.index("h/deep/zarr.json") < documents.index("h/zarr.json")


def test_a_failure_says_what_is_left() -> None:
    storage = HookedStorage(fresh_memory())
    fill(storage.inner)

    async def fail(operation: str, key: str) -> None:
        if key == "h/a/zarr.json":
            raise StorageError("no")

    storage.before = fail
    with pytest.raises(StorageError, match="no") as caught:
        run_sync(Engine(storage).copy_prefix("g", "h"))
    assert any("had been copied" in note for note in caught.value.__notes__)


def test_a_cancelled_copy_shows_no_node() -> None:
    storage = HookedStorage(fresh_memory())
    storage.renames = False
    fill(storage.inner)

    async def scenario() -> None:
        task: asyncio.Task[int] | None = None

        async def cancel(operation: str, key: str) -> None:
            if operation == "copy" and key == "h/a/c/7" and task is not None:
                task.cancel()
                await asyncio.sleep(0)

        storage.before = cancel
        for coroutine in (Engine(storage).copy_prefix("g", "h"), Engine(storage).move_prefix("g", "h", overwrite=True)):
            task = asyncio.ensure_future(coroutine)
            with pytest.raises(asyncio.CancelledError):
                await task

    run_sync(scenario())
    assert not any(key.startswith("h/") and key.endswith("zarr.json") for key in snapshot(StorageObjects(storage.inner)))
    check_group(storage.inner, "g")


def test_once_everything_is_copied_a_cancelled_move_is_carried_out() -> None:
    storage = HookedStorage(fresh_memory())
    storage.renames = False
    fill(storage.inner)

    async def scenario() -> None:
        task: asyncio.Task[int] | None = None

        async def cancel(operation: str, key: str) -> None:
            if operation == "delete" and key == "g/a/c/7" and task is not None:
                task.cancel()
                await asyncio.sleep(0)

        storage.before = cancel
        task = asyncio.ensure_future(Engine(storage).move_prefix("g", "h"))
        with pytest.raises(asyncio.CancelledError):
            await task

    run_sync(scenario())
    assert not any(key.startswith("g/") for key in snapshot(StorageObjects(storage.inner)))
    check_group(storage.inner, "h")


# -- others at work ----------------------------------------------------------------------------------------------------


def test_a_source_that_was_written_to_is_not_erased() -> None:
    for key in ("g/a/c/3", "g/a/c/1000", "g/zarr.json"):
        inner = fresh_memory()
        fill(inner)
        storage = HookedStorage(inner)
        storage.renames = False

        async def write(operation: str, at: str, key: str = key, inner: MemoryStorage = inner) -> None:
            if operation == "copy" and at == "h/zarr.json":
                await inner.write(key, [b"{}"], 2, UNCONDITIONAL)

        storage.before = write
        with pytest.raises(Conflict, match="written to while it was being moved"):
            run_sync(Engine(storage).move_prefix("g", "h"))
        assert StorageObjects(inner).get(key) == b"{}"
        assert "g/a/c/0" in snapshot(StorageObjects(inner))


@pytest.mark.parametrize("vanishing", [True, False])
def test_a_source_is_not_erased_where_the_target_is_not_what_was_copied(vanishing: bool) -> None:
    inner = fresh_memory()
    fill(inner)
    storage = HookedStorage(inner)
    storage.renames = False
    before = snapshot(StorageObjects(inner))

    async def interfere(operation: str, key: str) -> None:
        if operation == "copy" and key == "h/zarr.json":
            if vanishing:
                await inner.delete("h/a/c/3", UNCONDITIONAL)
            else:
                await inner.write("h/a/c/3", [b"other"], 5, UNCONDITIONAL)

    storage.before = interfere
    with pytest.raises(Conflict, match="another client writes there"):
        run_sync(Engine(storage).move_prefix("g", "h"))
    assert {key: data for key, data in snapshot(StorageObjects(inner)).items() if not key.startswith("h/")} == before


def test_a_target_that_another_client_makes_meanwhile() -> None:
    source, inner = fresh_memory(), fresh_memory()
    fill(source)
    target = HookedStorage(inner)

    async def write(operation: str, key: str) -> None:
        if operation == "write" and key == "g/zarr.json":
            await inner.write(key, [b"{}"], 2, UNCONDITIONAL)

    target.before = write
    with pytest.raises(Conflict, match=r"another client wrote 'g/zarr\.json'"):
        run_sync(copy_nodes(Engine(source), "g", Engine(target), "g"))
    assert StorageObjects(inner).get("g/zarr.json") == b"{}"

    storage = HookedStorage(source)

    async def appear(operation: str, key: str) -> None:
        if operation == "rename_prefix":
            await source.write("h/mine", [b"1"], 1, UNCONDITIONAL)

    storage.before = appear
    with pytest.raises(Conflict, match="another client wrote"):
        run_sync(Engine(storage).move_prefix("g", "h"))
    check_group(source, "g")
    assert StorageObjects(source).get("h/mine") == b"1"


def test_hidden_files_at_the_target_do_not_hinder(tmp_path: Path) -> None:
    fill(LocalStorage(tmp_path))
    (tmp_path / "h/c").mkdir(parents=True)
    (tmp_path / "h/c/.0.x-1.y.shardstore-tmp").write_bytes(b"left by one who died")
    assert run_sync(Engine(LocalStorage(tmp_path)).move_prefix("g", "h")) > 1
    check_group(LocalStorage(tmp_path), "h")
    assert not (tmp_path / "g").exists()
    (tmp_path / "i/empty/dirs").mkdir(parents=True)
    assert run_sync(Engine(LocalStorage(tmp_path)).move_prefix("g2", "i")) == 1


def test_each_object_is_of_one_version_while_it_is_replaced() -> None:
    inner = fresh_memory()
    objects = StorageObjects(inner)
    piece = 8 << 20
    objects.put("big", b"0" * (2 * piece + 1))
    storage, target = HookedStorage(inner), fresh_memory()
    replaced = 0

    async def replace(operation: str, key: str) -> None:
        nonlocal replaced
        if operation == "read" and key == "big":
            replaced += 1
            if replaced == 2:
                await inner.write("big", [b"1" * (2 * piece + 7)], 2 * piece + 7, UNCONDITIONAL)

    storage.before = replace
    run_sync(copy_nodes(Engine(storage), "big", Engine(target), "big"))
    assert StorageObjects(target).get("big") == b"1" * (2 * piece + 7)

    async def always(operation: str, key: str) -> None:
        if operation == "read" and key == "big":
            await inner.write("big", [b"2" * (2 * piece)], 2 * piece, UNCONDITIONAL)

    storage.before = always
    with pytest.raises(Conflict, match="kept changing"):
        run_sync(copy_nodes(Engine(storage), "big", Engine(target), "other"))
    assert StorageObjects(target).keys() == ["big"]


def test_an_object_that_vanishes_is_left_out() -> None:
    for away in (False, True):
        inner = fresh_memory()
        fill(inner)
        storage = HookedStorage(inner)
        target = fresh_memory() if away else inner

        async def vanish(operation: str, key: str, inner: MemoryStorage = inner) -> None:
            if (operation, key) in (("copy", "h/notes.txt"), ("read", "g/notes.txt")):
                await inner.delete("g/notes.txt", UNCONDITIONAL)

        before = snapshot(StorageObjects(inner))
        storage.before = vanish
        engine = Engine(storage)
        count = run_sync(copy_nodes(engine, "g", Engine(target) if away else engine, "h"))
        assert count == sum(key.startswith("g/") for key in before) - 1
        assert "h/notes.txt" not in snapshot(StorageObjects(target))
        check_array(target, "h/a")


# -- what is remembered ------------------------------------------------------------------------------------------------


def chunk(engine: Engine, key: str) -> bytes | None:
    value = run_sync(engine.get((key, EVERYTHING)))
    return None if value is None else bytes(value)


def put(engine: Engine, key: str, data: BytesLike) -> None:
    run_sync(engine.update((key, SetValue(data))))


@pytest.mark.parametrize("renames", [True, False])
def test_the_same_engine_knows_at_once(renames: bool) -> None:
    storage = HookedStorage(fresh_memory())
    storage.renames = renames
    fill(storage.inner)
    engine = Engine(storage, EngineOptions(metadata_ttl=1000.0))
    assert chunk(engine, "g/a/c/0") == VALUES[:1].tobytes()
    assert chunk(engine, "h/a/c/0") is None  # remembered as absent
    run_sync(engine.move_prefix("g", "h"))
    # An array that was opened before the move is gone: what is written to it must not become an object on its own.
    for key in ("g/a/c/100", "g/a/c/0"):  # one whose shard was not read, and one whose shard was
        with pytest.raises(NotFound, match="'g/a'"):
            put(engine, key, b"1")
    assert not any(key.startswith("g/") for key in snapshot(StorageObjects(storage.inner)))
    assert chunk(engine, "h/a/c/0") == VALUES[:1].tobytes()
    assert chunk(engine, "g/a/c/0") is None
    assert run_sync(engine.is_node("h/a"))
    assert not run_sync(engine.is_node("g/a"))
    put(engine, "h/a/c/0", b"9")
    put(engine, "g/a/zarr.json", document((8,), (1,)))
    put(engine, "g/a/c/0", b"1")
    assert chunk(engine, "g/a/c/0") == b"1"
    run_sync(engine.move_prefix("g/a", "h/a", overwrite=True))
    assert chunk(engine, "h/a/c/0") == b"1"
    assert chunk(engine, "h/a/c/1") is None


def test_the_same_engine_sees_a_copy_at_once() -> None:
    storage = fresh_memory()
    fill(storage)
    engine = Engine(storage, EngineOptions(metadata_ttl=1000.0))
    assert chunk(engine, "h/a/c/0") is None  # remembered as absent
    run_sync(engine.copy_prefix("g", "h"))
    assert chunk(engine, "h/a/c/0") == VALUES[:1].tobytes()
    put(engine, "h/a/c/0", b"9")
    assert (chunk(engine, "h/a/c/0"), chunk(engine, "g/a/c/0")) == (b"9", VALUES[:1].tobytes())


def test_a_move_that_failed_forgets_nothing_that_is_there() -> None:
    storage = HookedStorage(fresh_memory())
    storage.renames = False
    fill(storage.inner)
    engine = Engine(storage, EngineOptions(metadata_ttl=1000.0))
    assert chunk(engine, "g/a/c/0") == VALUES[:1].tobytes()
    seen: list[bytes | None] = []

    async def look(operation: str, key: str) -> None:
        if operation == "copy" and key == "h/zarr.json":
            storage.before = None
            value = await engine.get(("g/a/c/4", EVERYTHING))
            seen.append(None if value is None else bytes(value))
            raise StorageError("no")

    storage.before = look
    with pytest.raises(StorageError, match="no"):
        run_sync(engine.move_prefix("g", "h"))
    assert seen == [VALUES[4:5].tobytes()]
    assert chunk(engine, "g/a/c/0") == VALUES[:1].tobytes()
    put(engine, "g/a/c/0", b"1")
    assert chunk(engine, "g/a/c/0") == b"1"


def test_a_writer_with_an_old_view_is_told() -> None:
    storage = fresh_memory()
    fill(storage)
    now = 0.0
    writer = Engine(storage, EngineOptions(metadata_ttl=1.0), clock=lambda: now)
    assert chunk(writer, "g/a/c/0") == VALUES[:1].tobytes()
    run_sync(Engine(storage).move_prefix("g/a", "h"))
    before = snapshot(StorageObjects(storage))
    # Within the time to live: its shard was read, and is not there to be replaced.
    with pytest.raises(NotFound, match="deleted"):
        put(writer, "g/a/c/1", b"1")
    # Past it: the metadata is asked for first.
    now = 5.0
    for key in ("g/a/c/0", "g/a/c/100"):
        with pytest.raises(NotFound, match="has been deleted or moved"):
            put(writer, key, b"1")
    assert snapshot(StorageObjects(storage)) == before


def test_a_writer_that_has_read_nothing_of_the_array_is_told_past_the_time_to_live() -> None:
    storage = fresh_memory()
    fill(storage)
    now = 0.0
    writer = Engine(storage, EngineOptions(metadata_ttl=1.0), clock=lambda: now)
    assert run_sync(writer.layout("g/a")) is not None
    run_sync(Engine(storage).move_prefix("g/a", "h"))
    before = snapshot(StorageObjects(storage))
    now = 1.5
    for updates in (["g/a/c/1"], [f"g/a/c/{i}" for i in range(4)]):
        errors = run_sync(writer.update_many([(key, SetValue(b"1")) for key in updates]))
        assert all(isinstance(error, NotFound) for error in errors)
    assert snapshot(StorageObjects(storage)) == before


# -- consolidated metadata ---------------------------------------------------------------------------------------------


def test_groups_whose_consolidated_metadata_is_out_of_date_are_named(kind: Kind) -> None:
    storage = kind("x")
    store = shardstore.open(storage, chunks_per_shard=(2,))
    for name in ("top/g/a", "top/g/b"):
        zarr.create_array(store, name=name, data=np.arange(1.0, 7.0), chunks=(1,), fill_value="NaN", attributes={"n": 1})
    zarr.consolidate_metadata(store, path="top/g")
    zarr.consolidate_metadata(store, path="top")
    engine = Engine(storage)

    def stale(path: str) -> list[str]:
        return list(run_sync(engine.stale_consolidated(path)))

    assert [stale(path) for path in ("", "top", "top/g", "top/g/a", "top/g/nothing", "top/notes")] == [[]] * 6
    run_sync(engine.move_prefix("top/g/a", "top/g/z"))
    assert stale("top/g/a") == stale("top/g/z") == ["top", "top/g"]
    assert stale("top/g/b") == []
    zarr.consolidate_metadata(shardstore.open(storage), path="top/g")
    assert stale("top/g/z") == ["top"]
    run_sync(engine.copy_prefix("top/g", "other"))
    assert [stale(path) for path in ("other", "other/z", "other/b")] == [[], [], []]  # it travels with its group
    run_sync(engine.erase_prefix("top/g/"))
    assert stale("top/g") == ["top"]


def test_consolidated_metadata_that_describes_what_was_there_before() -> None:
    storage = fresh_memory()
    store = shardstore.open(storage, chunks_per_shard=(2,))
    zarr.create_group(store, path="g")
    zarr.create_array(store, name="g/a", data=np.arange(6), chunks=(1,))
    zarr.create_array(store, name="b", data=np.arange(8), chunks=(1,))
    zarr.consolidate_metadata(store, path="g")
    engine = Engine(storage)
    run_sync(engine.copy_prefix("b", "g/a", overwrite=True))
    assert run_sync(engine.stale_consolidated("g/a")) == ["g"]


def test_consolidated_metadata_of_version_2() -> None:
    storage = fresh_memory()
    objects = StorageObjects(storage)
    objects.put("g/.zgroup", b'{"zarr_format": 2}')
    for name in ("a", "ab"):
        objects.put(f"g/{name}/.zarray", b"{}")
    objects.put("g/.zmetadata", json.dumps({"metadata": {"a/.zarray": {}, "ab/.zarray": {}}, "zarr_consolidated_format": 1}).encode())
    engine = Engine(storage)
    assert run_sync(engine.stale_consolidated("g/a")) == []
    run_sync(engine.move_prefix("g/a", "g/b"))
    assert [run_sync(engine.stale_consolidated(path)) for path in ("g/a", "g/b", "g/ab", "g/c")] == [["g"], ["g"], [], []]
    assert sorted(snapshot(objects)) == ["g/.zgroup", "g/.zmetadata", "g/ab/.zarray", "g/b/.zarray"]
    objects.put("g/.zmetadata", json.dumps({"metadata": {"b/.zarray": {}, "ab/.zarray": {}}}).encode())
    assert [run_sync(engine.stale_consolidated(path)) for path in ("g/a", "g/b", "g/ab")] == [[], [], []]
