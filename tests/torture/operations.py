"""Every operation of a client, on one small store: what it changes, told as a table, so that one driver can break each anywhere.

The store holds a group, arrays of one-byte elements whose chunks are four bytes, and an object::

    a/        8 chunks, 2 a shard; chunks 0 to 4 exist
    e/        4 chunks, 2 a shard; none exists
    g/b/      4 chunks, 2 a shard; all exist
    m/        2 x 2 chunks in one shard; all exist
    notes     an object of its own
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.core.sync import sync

import shardstore
from shardstore.engine.actions import ERASE, Action, EraseValue, Patch, Revise, SetIfMissing, SetValue, Swap
from shardstore.engine.engine import Engine
from shardstore.engine.reading.shard_chunks import Value
from shardstore.engine.values import KeyRequest, KeyUpdate
from shardstore.model.ranges import EVERYTHING, ByteRange, BytesLike, ByteSuffix
from shardstore.storage.base import Storage
from shardstore.testing.storage_suite import on_io_loop
from tests.engine.hooked import AS_THEY_ARE, document, fresh_memory
from tests.torture.contents import Contents, contents_of, layouts_of, presented_by, restore

Answers = dict[str, Value | Exception]
"""What became of each key: of a read its value, of a write ``None`` or the error."""

ZARRS_WARNINGS = [
    pytest.mark.filterwarnings("ignore:Object at notes is not recognized"),
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification"),
    # zarr prepares several writes, awaits one after the other, and leaves the rest where one fails.
    pytest.mark.filterwarnings("ignore:coroutine '(StorePath.set_if_not_exists|set_or_delete)' was never awaited:RuntimeWarning"),
    # The same, where it is collected while a frame without builtins runs, as those of named tuples are: it cannot even be warned of.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <coroutine object (StorePath.set_if_not_exists|set_or_delete):pytest.PytestUnraisableExceptionWarning"
    ),
]

POLICY = {"m": (2, 2), "**": (2,)}
SHAPES = {"a": ((32,), (4,)), "e": ((16,), (4,)), "g/b": ((16,), (4,)), "m": ((8, 8), (2, 2))}


def client(storage: Storage, **options: Any) -> shardstore.ShardedStore:
    """A client that shares nothing with any other."""
    return shardstore.open(storage, chunks_per_shard=POLICY, **options)


def old(key: str) -> bytes:
    """The four bytes that a key has at first."""
    return f"o{sum(key.encode()) % 1000:03}".encode()


def new(key: str) -> bytes:
    """What operations give a key: longer than the old value, so that everything behind it in its shard moves."""
    return f"new{sum(key.encode()) % 1000:03}".encode()


A = [f"a/c/{i}" for i in range(8)]
B = [f"g/b/c/{i}" for i in range(4)]
M = [f"m/c/{i}/{j}" for i in range(2) for j in range(2)]
VALUES = {key: old(key) for key in [*A[:5], *B, *M, "notes"]}


@cache
def before() -> Contents:
    """The stored objects that every operation starts from."""
    storage = fresh_memory()
    store = client(storage)
    group = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {"of": "old"}}).encode()
    documents = {f"{path}/zarr.json": document(*shapes, codecs=AS_THEY_ARE) for path, shapes in SHAPES.items()}
    updates: dict[str, bytes] = {"zarr.json": group, "g/zarr.json": group, **documents, **VALUES}
    errors = on_io_loop(store.engine.update_many([(key, SetValue(data)) for key, data in updates.items()]))
    assert errors == [None] * len(updates)
    return contents_of(storage)


# -- what an operation is ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Operation:
    """``run`` makes the change, or asks; both are the same however often it is run, unless ``repeat`` says how to do it again."""

    name: str
    run: Callable[[shardstore.ShardedStore], Answers | None]
    changes: dict[str, bytes | None] = field(default_factory=dict)
    """Chunks and objects after it, by presented key; ``None``: gone. Documents are not told: what a clean run makes of them is right."""
    answers: Answers | None = None
    """Of an operation that asks: what it has to be told."""
    is_one_commit: bool = True
    """Whether each shard goes from old to new in one step; otherwise chunk by chunk."""
    begins_with_nothing: bool = False
    """Whether it first erases what it then makes anew."""
    repeat: Callable[[shardstore.ShardedStore], Answers | None] | None = None
    removes_whole: str = ""
    """A prefix below which it removes all or nothing, if it is cancelled."""
    clean_up: Callable[[shardstore.ShardedStore], None] | None = None
    """What has to be done before it is repeated where its error says that something may be left."""

    def __str__(self) -> str:
        return self.name


@cache
def _after(name: str) -> Contents:
    storage = fresh_memory()
    on_io_loop(restore(storage, before()))
    operation = next(operation for operation in OPERATIONS if operation.name == name)
    answers = operation.run(client(storage))
    if operation.answers is None:
        assert not any((answers or {}).values()), answers
    return contents_of(storage)


def after(operation: Operation) -> Contents:
    """The stored objects after a clean run; whether that is right is a test of its own."""
    return _after(operation.name)


def check_table(operation: Operation) -> None:
    """A clean run changes what the table says, as an independent reader of shards sees it."""
    layouts = layouts_of(before(), after(operation))
    wanted = {**presented_by(before(), layouts), **operation.changes}
    found = presented_by(after(operation), layouts)
    for key in wanted.keys() | found.keys():
        if not key.endswith("zarr.json"):
            assert found.get(key) == wanted.get(key), key


# -- how they are run --------------------------------------------------------------------------------------------------


Given = Callable[[bytes], BytesLike]
"""Makes of some bytes the object that a client hands over."""


@dataclass(frozen=True, slots=True)
class OnIOLoop:
    """An operation as a coroutine, to be run on the IO loop; called, it is run there to its end."""

    start: Callable[[shardstore.ShardedStore, Given], Coroutine[Any, Any, Answers | None]]

    def __call__(self, store: shardstore.ShardedStore) -> Answers | None:
        return on_io_loop(self.start(store, bytes))


def _get(requests: Sequence[KeyRequest]) -> OnIOLoop:
    async def start(store: shardstore.ShardedStore, _given: Given) -> Answers:
        values = await store.engine.get_many(requests)
        return {f"{key} {request}": value for (key, request), value in zip(requests, values, strict=True)}

    return OnIOLoop(start)


def _update(*updates: KeyUpdate) -> OnIOLoop:
    async def start(store: shardstore.ShardedStore, given: Given) -> Answers:
        errors = await store.engine.update_many([(key, _handed_over(action, given)) for key, action in updates])
        return {key: error for (key, _), error in zip(updates, errors, strict=True)}

    return OnIOLoop(start)


def _handed_over(action: Action, given: Given) -> Action:
    return action if isinstance(action, EraseValue | Revise | Swap) else replace(action, data=given(bytes(action.data)))


def _set(*keys: str) -> OnIOLoop:
    return _update(*((key, SetValue(new(key))) for key in keys))


def _set_each(*keys: str) -> OnIOLoop:
    """Every key by a call of its own, all at once."""

    async def start(store: shardstore.ShardedStore, given: Given) -> Answers:
        calls = (store.engine.update((key, SetValue(given(new(key))))) for key in keys)
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert not any(isinstance(error, asyncio.CancelledError) for error in errors), "nobody cancelled these"
        return {key: error for key, error in zip(keys, errors, strict=True) if error is None or isinstance(error, Exception)}

    return OnIOLoop(start)


def _call(method: Callable[[Engine], Coroutine[Any, Any, object]]) -> OnIOLoop:
    async def start(store: shardstore.ShardedStore, _given: Given) -> None:
        await method(store.engine.canonical)

    return OnIOLoop(start)


def _ask(method: Callable[[Engine], Coroutine[Any, Any, object]]) -> OnIOLoop:
    """The answer of an engine's method, as bytes, so that answers of all sorts can be compared."""

    async def start(store: shardstore.ShardedStore, _given: Given) -> Answers:
        return _answer(await method(store.engine.canonical))

    return OnIOLoop(start)


def _answer(value: object) -> Answers:
    return {"answer": memoryview(repr(value).encode())}


async def _listed(engine: Engine, prefix: str) -> list[str]:
    return sorted([value.key async for value in engine.list(prefix)])


async def _directory(engine: Engine, prefix: str) -> list[str]:
    listed = await engine.list_dir(prefix)
    return sorted((*listed.keys, *listed.prefixes))


async def _pinned(engine: Engine, key: str) -> bytes | None:
    opened = await engine.pin(key)
    return None if opened is None else bytes(await opened.read(0, 4))


def _numbers(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8)


def _assign(store: shardstore.ShardedStore) -> None:
    zarr.open_array(store, path="a", mode="r+")[6:22] = _numbers(bytes(range(100, 116)))


_ASSIGNED: dict[str, bytes | None] = {
    A[1]: old(A[1])[:2] + bytes((100, 101)),
    A[2]: bytes(range(102, 106)),
    A[3]: bytes(range(106, 110)),
    A[4]: bytes(range(110, 114)),
    A[5]: bytes((114, 115, 0, 0)),
}


def _select(store: shardstore.ShardedStore) -> Answers:
    return _answer(np.asarray(zarr.open_array(store, path="a", mode="r")[2:18]).tobytes())


def _create_by_zarr(store: shardstore.ShardedStore) -> None:
    array = zarr.create_array(store, name="made", shape=(16,), chunks=(4,), dtype="u1", compressors=None, fill_value=0, overwrite=True)
    array[:] = _numbers(bytes(range(16)))


def _create_again(store: shardstore.ShardedStore) -> None:
    zarr.create_array(store, name="g/b", shape=(16,), chunks=(4,), dtype="u1", compressors=None, fill_value=7, overwrite=True)


def _attributes(store: shardstore.ShardedStore) -> None:
    zarr.open_array(store, path="a", mode="r+").attrs["of"] = "new"


def _delete_dir(store: shardstore.ShardedStore) -> None:
    sync(store.delete_dir("g"))


def _resize(shape: int) -> Callable[[shardstore.ShardedStore], None]:
    def run(store: shardstore.ShardedStore) -> None:
        zarr.open_array(store, path="a", mode="r+").resize((shape,))

    return run


def _consolidate(store: shardstore.ShardedStore) -> None:
    zarr.consolidate_metadata(store)


_IN_TRANSACTION = {
    "x/zarr.json": document((16,), (4,), codecs=AS_THEY_ARE),
    "y/zarr.json": document((8,), (4,), codecs=AS_THEY_ARE),
    **{key: new(key) for key in ("x/c/0", "x/c/1", "x/c/2", "y/c/0", "y/c/1", A[1], A[2], A[6])},
}


async def _transaction(store: shardstore.ShardedStore, given: Given) -> None:
    engine = store.engine
    await engine.begin()
    try:
        for key, data in _IN_TRANSACTION.items():
            await engine.update((key, SetValue(given(data))))
        await engine.update(("notes", ERASE))
        await engine.erase_prefix("g/")
    except BaseException:
        await engine.rollback()
        raise
    await engine.commit()


def _transaction_by_zarr(store: shardstore.ShardedStore) -> None:
    with store.transaction():
        for path, numbers in (("u", bytes(range(16))), ("v", bytes(range(8)))):
            array = zarr.create_array(store, name=path, shape=(len(numbers),), chunks=(4,), dtype="u1", compressors=None, overwrite=True)
            array[:] = _numbers(numbers)
        zarr.open_array(store, path="a", mode="r+")[6:22] = _numbers(bytes(range(100, 116)))
        sync(store.delete_dir("g"))


def _erase_uncommitted(store: shardstore.ShardedStore) -> None:
    for prefix in ("u/", "v/", "x/", "y/"):
        on_io_loop(store.engine.erase_prefix(prefix))


def _move_again(store: shardstore.ShardedStore) -> None:
    """The source is whole, and can be moved over what is there; or it is not, and then what is there is whole."""
    if all(on_io_loop(store.engine.exists(key)) for key in ("g/zarr.json", "g/b/zarr.json", *B)):
        on_io_loop(store.engine.move_prefix("g", "moved", overwrite=True))
    on_io_loop(store.engine.erase_prefix("g/"))


def _changed(*keys: str) -> dict[str, bytes | None]:
    return {key: new(key) for key in keys}


def _gone(*keys: str) -> dict[str, bytes | None]:
    return dict.fromkeys(keys)


_RANGES: list[KeyRequest] = [
    (A[0], ByteRange(1, 3)),
    (A[0], ByteSuffix(1)),
    (A[3], EVERYTHING),
    (A[5], EVERYTHING),
    (A[7], EVERYTHING),
    (B[2], EVERYTHING),
    (M[3], ByteRange(0, 2)),
    ("notes", EVERYTHING),
    ("nothing", EVERYTHING),
]
_RANGE_ANSWERS: Answers = {
    f"{key} {request}": memoryview(data)
    for (key, request), data in zip(
        _RANGES[:3] + _RANGES[5:8], [old(A[0])[1:3], old(A[0])[3:], old(A[3]), old(B[2]), old(M[3])[:2], old("notes")], strict=True
    )
}
_ALL_KEYS = sorted([*VALUES, "zarr.json", "g/zarr.json", *(f"{path}/zarr.json" for path in SHAPES)])

OPERATIONS = [
    # -- values
    Operation("get", _get([(A[1], EVERYTHING)]), answers={f"{A[1]} {EVERYTHING}": memoryview(old(A[1]))}),
    Operation("get_partial_values", _get(_RANGES), answers=_RANGE_ANSWERS),
    Operation("size", _ask(lambda engine: engine.size(A[1])), answers=_answer(4)),
    Operation("exists", _ask(lambda engine: engine.exists(A[5])), answers=_answer(False)),
    Operation("pin", _ask(lambda engine: _pinned(engine, B[1])), answers=_answer(old(B[1]))),
    Operation("set", _set(A[1]), _changed(A[1])),
    Operation("set_in_new_shard", _set(A[6]), _changed(A[6])),
    Operation("set_whole_shard", _set(A[0], A[1]), _changed(A[0], A[1])),
    Operation("set_together", _set_each(A[0], A[1], A[2], "notes"), _changed(A[0], A[1], A[2], "notes")),
    Operation("set_batch", _set(A[0], A[3], A[4], A[6], *B, M[1], "notes"), _changed(A[0], A[3], A[4], A[6], *B, M[1], "notes")),
    Operation(
        "set_if_missing",
        _update(*((key, SetIfMissing(new(key))) for key in (A[0], A[5], A[6], "more"))),
        _changed(A[5], A[6], "more"),
    ),
    Operation("create", _call(lambda engine: engine.create("made", new("made"))), _changed("made")),
    Operation(
        "set_partial_values",
        _update(*((key, Patch(2, new(key)[2:])) for key in (A[0], A[3], B[0], "notes"))),
        {key: old(key)[:2] + new(key)[2:] for key in (A[0], A[3], B[0], "notes")},
    ),
    Operation("erase_value", _update((A[1], ERASE)), _gone(A[1])),
    Operation("erase_last_of_shard", _update((A[4], ERASE)), _gone(A[4])),
    Operation(
        "erase_values",
        _update(*((key, ERASE) for key in (A[0], A[1], A[2], A[4], A[5], B[3], "notes", "nothing"))),
        _gone(A[0], A[1], A[2], A[4], B[3], "notes"),
    ),
    # -- through zarr
    Operation("selection", _select, answers=_answer(b"".join(old(key) for key in A[:5])[2:18])),
    Operation("assignment", _assign, _ASSIGNED),
    # -- prefixes
    Operation("list", _ask(lambda engine: _listed(engine, "")), answers=_answer(_ALL_KEYS)),
    Operation("list_array", _ask(lambda engine: _listed(engine, "m/c/1")), answers=_answer(M[2:])),
    Operation("list_dir", _ask(lambda engine: _directory(engine, "")), answers=_answer(["a/", "e/", "g/", "m/", "notes", "zarr.json"])),
    Operation("list_dir_of_chunks", _ask(lambda engine: _directory(engine, "a/c/")), answers=_answer(A[:5])),
    Operation("size_prefix", _ask(lambda engine: engine.size_prefix("g/b/c/")), answers=_answer(16)),
    Operation("erase_prefix_of_chunks", _call(lambda engine: engine.erase_prefix("m/c/0/")), _gone(*M[:2])),
    Operation("erase_prefix_of_shards", _call(lambda engine: engine.erase_prefix("a/c/")), _gone(*A[:5])),
    Operation("erase_prefix_of_all", _call(lambda engine: engine.erase_prefix("")), _gone(*VALUES)),
    Operation("delete_dir", _delete_dir, _gone(*B)),
    # -- documents
    Operation("create_array", _update(("made/zarr.json", SetValue(document((8,), (4,)))))),
    Operation("create_array_if_missing", _update(("made/zarr.json", SetIfMissing(document((8,), (4,)))))),
    Operation("create_by_zarr", _create_by_zarr, {f"made/c/{i}": bytes(range(4 * i, 4 * i + 4)) for i in range(4)}),
    Operation("create_again", _create_again, _gone(*B), begins_with_nothing=True),
    Operation("attributes", _attributes),
    Operation("grow", _resize(40)),
    Operation("shrink", _resize(6), _gone(*A[2:5]), is_one_commit=False),
    Operation("erase_document", _update(("e/zarr.json", ERASE))),
    Operation("consolidate", _consolidate),
    # -- whole nodes
    Operation("copy", _call(lambda engine: engine.copy_prefix("g", "copied", overwrite=True)), {f"copied{key[1:]}": old(key) for key in B}),
    Operation(
        "move",
        _call(lambda engine: engine.move_prefix("g", "moved", overwrite=True)),
        {**_gone(*B), **{f"moved{key[1:]}": old(key) for key in B}},
        repeat=_move_again,
        removes_whole="g/",
    ),
    # -- transactions
    Operation(
        "transaction",
        OnIOLoop(_transaction),
        _changed("x/c/0", "x/c/1", "x/c/2", "y/c/0", "y/c/1", A[1], A[2], A[6]) | _gone("notes", *B),
        clean_up=_erase_uncommitted,
    ),
    Operation(
        "transaction_by_zarr",
        _transaction_by_zarr,
        _ASSIGNED | _gone(*B) | {f"{p}/c/{i}": bytes(range(4 * i, 4 * i + 4)) for p, n in (("u", 4), ("v", 2)) for i in range(n)},
        clean_up=_erase_uncommitted,
    ),
]
BY_NAME = {operation.name: operation for operation in OPERATIONS}
