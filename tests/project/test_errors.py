"""Errors reach users as classes that they can import; the classes that code inside catches stay inside."""

from __future__ import annotations

import asyncio
import itertools
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem
from zarr.core.buffer import default_buffer_prototype

import shardstore
from shardstore import errors
from shardstore._sync import as_known, run_async, run_sync
from shardstore.errors import NO_SUCH_BUCKET, Conflict, NotFound, ShardStoreError, StorageError, WriteOutcomeUnknown
from shardstore.snapshots import ConflictError, Repository
from shardstore.storage.base import ConditionFailed, Failed, Read, ReadOutcome
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.requests.outcomes import RequestFailed
from tests.apps.cli.running import run
from tests.project.trees import MODULES, PACKAGE

_serial = itertools.count()


def classes_below(cls: type[ShardStoreError]) -> Iterator[type[ShardStoreError]]:
    for below in cls.__subclasses__():
        yield below
        yield from classes_below(below)


def defined_inside() -> list[type[ShardStoreError]]:
    """Return the classes of errors that are defined anywhere but among the public ones."""
    for path in MODULES:
        if "(ShardStoreError" in (text := path.read_text()) or any(f"({name}" in text for name in errors.__all__):
            with suppress(ImportError):  # of an extra that is not installed
                import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"))
    found = {cls for cls in classes_below(ShardStoreError) if cls.__module__.startswith("shardstore.")}
    return sorted((cls for cls in found if not is_public(cls)), key=lambda cls: f"{cls.__module__}.{cls.__qualname__}")


def is_public(cls: type[BaseException]) -> bool:
    return cls is ConflictError or (cls.__module__ == errors.__name__ and cls.__name__ in errors.__all__)


def made(cls: type[ShardStoreError]) -> ShardStoreError:
    error = cls.__new__(cls, "what went wrong")
    error.args = ("what went wrong",)
    return error


INSIDE = defined_inside()


def test_classes_inside_are_found() -> None:
    assert {RequestFailed, ConditionFailed} < set(INSIDE)
    assert len(INSIDE) > 10


@pytest.mark.parametrize("cls", [*INSIDE, ConflictError, Conflict], ids=lambda cls: cls.__name__)
def test_an_error_leaves_as_a_public_class_and_keeps_what_it_says(cls: type[ShardStoreError]) -> None:
    cause = ValueError("below")
    try:
        raise made(cls) from cause
    except ShardStoreError as exc:
        error = exc
    error.add_note("a note")
    vars(error)["where"] = "an attribute"
    known = as_known(error)
    assert is_public(type(known))
    assert type(error) is cls  # code inside may still ask
    assert isinstance(error, type(known)) or (cls, type(known)) == (ConditionFailed, Conflict)
    assert (str(known), known.__notes__, vars(known)["where"]) == (str(error), ["a note"], "an attribute")
    assert (known.__cause__, known.__suppress_context__) == (cause, True)
    assert traceback.extract_tb(known.__traceback__) == traceback.extract_tb(error.__traceback__)


def test_classes_of_programs_and_plug_ins_stay() -> None:
    class Own(StorageError):
        """A storage's own error."""

    for error in (Own("x"), KeyError("x")):
        assert as_known(error) is error


def test_causes_are_public_too() -> None:
    error: ShardStoreError = WriteOutcomeUnknown("who knows")
    error.__cause__, error.__cause__.__cause__ = RequestFailed("lost"), error  # leads back
    assert as_known(error) is error
    assert type(error.__cause__) is StorageError


def test_an_error_of_a_missing_bucket_stands_alone() -> None:
    try:
        raise RequestFailed("no bucket") from ValueError("below")
    except RequestFailed as exc:
        exc.code = NO_SUCH_BUCKET
        error = as_known(exc)
    assert (error.__cause__, error.__suppress_context__, error.__traceback__) == (None, True, None)


async def raises(error: ShardStoreError) -> None:
    raise error


async def on_the_loop(error: ShardStoreError) -> None:
    await run_async(raises(error))


@pytest.mark.parametrize("call", [lambda error: run_sync(raises(error)), lambda error: asyncio.run(run_async(raises(error)))])
def test_the_bridge_raises_public_errors_without_a_context(call: Callable[[ShardStoreError], None]) -> None:
    with pytest.raises(StorageError) as raised:
        call(RequestFailed("x"))
    assert type(raised.value) is StorageError
    assert raised.value.__context__ is None


def test_an_error_that_is_awaited_on_the_loop_is_public_too() -> None:
    with pytest.raises(StorageError) as raised:
        asyncio.run_coroutine_threadsafe(on_the_loop(RequestFailed("x")), fsspec.asyn.get_loop()).result()
    assert type(raised.value) is StorageError


# -- faces over a storage that fails -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written() -> dict[str, bytes]:
    """The objects of a small store."""
    url = f"memory://errors-{next(_serial)}"
    store = shardstore.open(url, chunks_per_shard=(2,))
    zarr.create_array(store, name="a", shape=(8,), chunks=(2,), dtype="i4")[...] = np.arange(8)
    root = MemoryFileSystem._strip_protocol(url)
    return {path.removeprefix(root): file.getvalue() for path, file in MemoryFileSystem.store.items() if path.startswith(f"{root}/")}


def new_place(written: dict[str, bytes]) -> str:
    """Return the URL of another store with the same objects, which no engine knows."""
    url = f"memory://errors-{next(_serial)}"
    for path, data in written.items():
        MemoryFileSystem().pipe(url + path, data)
    return url


def fail(monkeypatch: pytest.MonkeyPatch, error: ShardStoreError, *, documents: bool) -> None:
    """Have every request fail, or only those for shards."""
    read = MemoryStorage.read

    async def failing_read(self: MemoryStorage, reads: Sequence[Read]) -> list[ReadOutcome]:
        outcomes = await read(self, reads)
        return [Failed(error) if documents or "/c/" in one.key else outcome for one, outcome in zip(reads, outcomes, strict=True)]

    async def failing(self: MemoryStorage, *_arguments: Any) -> None:
        raise error

    monkeypatch.setattr(MemoryStorage, "read", failing_read)
    for name in ("write", "compose", "delete", "delete_many", *(("stat",) if documents else ())):
        monkeypatch.setattr(MemoryStorage, name, failing)


async def zarr_get(url: str) -> object:
    return await shardstore.open(url).get("a/c/0", default_buffer_prototype())


async def zarr_parts(url: str) -> object:
    return await shardstore.open(url).get_partial_values(default_buffer_prototype(), [("a/c/0", None), ("a/c/1", None)])


async def zarr_ranges(url: str) -> object:
    return [part async for part in shardstore.open(url).get_ranges("a/c/0", [None], prototype=default_buffer_prototype())]


async def zarr_set(url: str) -> None:
    await shardstore.open(url).set("a/c/0", default_buffer_prototype().buffer.from_bytes(b"x" * 8))


def on_io_loop(coroutine: Any) -> object:
    return asyncio.run_coroutine_threadsafe(coroutine, fsspec.asyn.get_loop()).result()


async def fsspec_cat(url: str) -> object:
    return await fsspec.filesystem("sharded", fo=url, target_protocol="memory", asynchronous=True)._cat_file("a/c/0")


def assign(url: str) -> None:
    zarr.open_array(shardstore.open(url), path="a", mode="r+")[:] = 1


def commit(url: str) -> None:
    with Repository.create(url + "-versions").transaction(message="m") as store:
        zarr.create_array(store, name="b", data=np.arange(4))


FACES: dict[str, Callable[[str], object]] = {
    "zarr selection": lambda url: zarr.open_array(shardstore.open(url), path="a", mode="r")[:],
    "zarr assignment": assign,
    "zarr get": lambda url: asyncio.run(zarr_get(url)),
    "zarr set": lambda url: asyncio.run(zarr_set(url)),
    "zarr parts": lambda url: asyncio.run(zarr_parts(url)),
    "zarr ranges": lambda url: asyncio.run(zarr_ranges(url)),
    "zarr get on the IO loop": lambda url: on_io_loop(zarr_get(url)),
    "mapping": lambda url: shardstore.get_mapper(url)["a/c/0"],
    "mapping errors": lambda url: shardstore.get_mapper(url).getitems(["a/c/0"], on_error="return"),
    "mapping write": lambda url: shardstore.get_mapper(url).__setitem__("a/c/0", b"x" * 8),
    "fsspec": lambda url: fsspec.filesystem("sharded", fo=url, target_protocol="memory").cat("a/c/0"),
    "fsspec errors": lambda url: fsspec.filesystem("sharded", fo=url, target_protocol="memory").cat(["a/c/0", "a/c/1"], on_error="return"),
    "fsspec copy": lambda url: fsspec.filesystem("sharded", fo=url, target_protocol="memory").cp_file("a/c/0", "a/c/1"),
    "fsspec file": lambda url: fsspec.filesystem("sharded", fo=url, target_protocol="memory").open("a/c/0").read(),
    "fsspec awaited": lambda url: asyncio.run(fsspec_cat(url)),
    "fsspec on the IO loop": lambda url: on_io_loop(fsspec_cat(url)),
    "verify": shardstore.verify,
    "census": shardstore.census,
    "compact": shardstore.compact,
    "repair": lambda url: shardstore.repair(url, dry_run=True),
    "pack": lambda url: shardstore.pack(url, f"{url}-packed"),
    "transaction": commit,
}


def errors_in(value: object) -> list[BaseException]:
    """Return the errors in place of values, and those in a report."""
    values = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    failed = getattr(value, "failed", getattr(value, "unread", ()))
    values += [one.error for one in getattr(failed, "first", failed)]
    return [one for one in values if isinstance(one, BaseException)]


@pytest.mark.parametrize("documents", [True, False], ids=["all fails", "shards fail"])
@pytest.mark.parametrize("face", FACES)
def test_no_class_from_inside_leaves_a_public_call(
    monkeypatch: pytest.MonkeyPatch, written: dict[str, bytes], face: str, documents: bool
) -> None:
    left: list[BaseException] = []
    for cls in INSIDE:
        url = new_place(written)
        with monkeypatch.context() as patched:
            fail(patched, made(cls), documents=documents)
            try:
                left += errors_in(FACES[face](url))
            except Exception as exc:  # noqa: BLE001 - of any class: that is what is asked
                left += exc.exceptions if isinstance(exc, ExceptionGroup) else [exc]
    ours = [error for error in left if isinstance(error, ShardStoreError)]
    assert {type(error) for error in ours if not is_public(type(error))} == set()
    assert ours, left
    assert not any(isinstance(error, TypeError | AttributeError) for error in left), left
    shown = "".join(line for error in ours for line in traceback.format_exception(error))
    assert [cls.__name__ for cls in INSIDE if f".{cls.__name__}:" in shown] == []


def test_no_class_from_inside_is_named_by_a_command(monkeypatch: pytest.MonkeyPatch, written: dict[str, bytes]) -> None:
    for cls in INSIDE:
        with monkeypatch.context() as patched:
            url = new_place(written)
            fail(patched, made(cls), documents=True)
            outcome = run("cat", "--verbose", f"{url}/a/c/0")
        assert "what went wrong" in outcome.err
        assert cls.__name__ not in outcome.err


def test_faces_leave_out_their_own_frames_where_there_is_no_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RequestFailed(NO_SUCH_BUCKET)
    error.code = NO_SUCH_BUCKET
    fail(monkeypatch, error, documents=True)
    chunks = shardstore.get_mapper(f"memory://errors-{next(_serial)}")
    for use in (lambda: chunks["k"], lambda: chunks.update(k=b"1"), lambda: "k" in chunks):
        with pytest.raises(StorageError, match=NO_SUCH_BUCKET) as raised:
            use()
        assert len(traceback.extract_tb(raised.value.__traceback__)) <= 7, use


def test_absence_is_still_absence() -> None:
    with pytest.raises(NotFound):
        shardstore.get_mapper(f"memory://errors-{next(_serial)}")["k"]
