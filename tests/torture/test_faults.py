"""Something goes wrong at the n-th request, for every n, of every operation, on every storage.

The operation succeeds or raises a documented error. Then the store holds the old or the new state of each shard and each other object,
whole; what was acknowledged is there; the client that met the fault and one that knows nothing see what is stored; and the same
operation succeeds when nothing goes wrong.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

import shardstore
from shardstore.engine.actions import SetValue
from shardstore.errors import NotFound, StorageError, WriteOutcomeUnknown
from shardstore.model.ranges import EVERYTHING
from shardstore.opening.open import open_storage
from shardstore.storage.base import Storage
from shardstore.storage.generic.storage import GenericStorage
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.faults import (
    Change,
    Delay,
    DropReply,
    Effect,
    Fail,
    Fault,
    FaultStorage,
    Refuse,
    Request,
    TimeOut,
    Truncate,
    at_every_request,
)
from shardstore.testing.storage_suite import on_io_loop
from tests.engine.hooked import HookedStorage, document
from tests.harness.own_memory import OwnMemory
from tests.harness.scale import FULL, at_requests, moments
from tests.harness.virtual_time import no_sleep
from tests.torture.conftest import Record
from tests.torture.contents import Contents, check_old_or_new, contents_of, layouts_of, presented_by, restore
from tests.torture.operations import BY_NAME, OPERATIONS, ZARRS_WARNINGS, Answers, B, Operation, after, before, check_table, client
from tests.torture.places import s3_place
from tests.torture.settling import settled

pytestmark = [
    pytest.mark.usefixtures("collected"),
    pytest.mark.filterwarnings("ignore:the filesystem .* does not honour conditional writes"),
    pytest.mark.filterwarnings("ignore:.* offers no compare-and-swap"),
    *ZARRS_WARNINGS,
]

EFFECTS: list[Effect] = [Fail(), TimeOut(), DropReply(), Delay(), Truncate(3), Change(), Refuse()]
CHANGING = frozenset({"write", "compose", "copy", "rename_prefix", "delete", "delete_many"})
EVERY_WAY = list(itertools.product(EFFECTS, (False, True)))
"""What goes wrong, and whether the client's caches are filled before."""

SAMPLE = [BY_NAME[name] for name in ("set_batch", "erase_values", "move")]


# -- storages ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of storage: makes an empty one, another each time."""

    name: str
    make: Callable[[], Storage]
    strategy: str = "rewrite"


def _memory() -> MemoryStorage:
    return MemoryStorage(f"/faults-{uuid.uuid4().hex}")


def _plainest() -> Storage:
    """As a server of objects may be: nothing is composed or renamed, and deletes take no condition."""
    storage = HookedStorage(_memory())
    storage.capabilities_override = replace(storage.capabilities, compose=False, conditional_delete=False)
    storage.renames = False
    return storage


@pytest.fixture
def memory() -> Iterator[Kind]:
    yield Kind("memory", _memory)
    for path in [path for path in MemoryFileSystem.store if path.startswith("/faults-")]:
        del MemoryFileSystem.store[path]


@pytest.fixture(params=["memory", "plainest", "local", "appending"])
def local_kind(request: pytest.FixtureRequest, memory: Kind, tmp_path: Path) -> Iterator[Kind]:
    """Kinds that are fast enough for every run."""
    if request.param == "memory":
        yield memory
    elif request.param == "plainest":
        yield Kind("plainest", _plainest)
    else:
        made: list[LocalStorage] = []

        def make() -> Storage:
            made.append(LocalStorage(tmp_path / str(len(made)), fsync=False))
            return made[-1]

        yield Kind(request.param, make, "append" if request.param == "appending" else "rewrite")
        for storage in made:
            on_io_loop(storage.close())
            assert not [path for path in Path(storage.root).rglob(".*") if path.is_file()], "a lock or a temporary file is left"


@pytest.fixture(params=["s3", "gcs", "generic"])
def server_kind(request: pytest.FixtureRequest) -> Kind:
    """Kinds that take longer, and one without conditions."""
    if request.param == "generic":
        return Kind("generic", lambda: GenericStorage(OwnMemory(), "/root"))
    if request.param == "gcs":
        url, options = request.getfixturevalue("gcs_url")
    else:
        place = s3_place("moto", request.getfixturevalue("moto_endpoint"))
        url, options = place.url, place.storage_options
    return Kind(request.param, lambda: open_storage(f"{url}/{uuid.uuid4().hex}", options))


# -- one attempt -------------------------------------------------------------------------------------------------------


def attempt(operation: Operation, kind: Kind, fault: Fault, *, warm: bool) -> bool:
    """Run an operation from the old state with one fault, and check everything that has to hold after it; whether it was struck."""
    inner = kind.make()
    on_io_loop(restore(inner, before()))
    storage = FaultStorage(inner, sleep=no_sleep)
    store = client(storage, strategy=kind.strategy)
    if warm:
        check_view(store, before())
    storage.plan(fault)
    answers: Answers = {}
    errors: list[Exception] = []
    with settled():
        try:
            answers = operation.run(store) or {}
            errors += [answer for answer in answers.values() if isinstance(answer, Exception)]
        except Exception as exc:  # noqa: BLE001  # whether it may be raised is what is tested
            errors.append(exc)
    struck = [request for _, request in storage.struck]
    storage.plan()
    for error in errors:
        check_error(error, fault.effect, struck)
    now = contents_of(inner)
    check_old_or_new(now, before(), after(operation), or_nothing=operation.begins_with_nothing, chunk_by_chunk=not operation.is_one_commit)
    if operation.answers is not None:
        assert now == before()
        check_answers(operation, answers)
    elif answers or not errors:
        check_acknowledged(operation, answers, now)
    check_view(client(inner), now, operation.changes)
    check_view(store, now, operation.changes)
    if operation.clean_up is not None and any("have to be erased" in note for e in errors for note in getattr(e, "__notes__", ())):
        operation.clean_up(store)
    again = (operation.repeat or operation.run)(store) or {}
    if operation.answers is not None:
        check_answers(operation, again)
    assert not any(isinstance(answer, Exception) for answer in again.values()), again
    check_new(operation, contents_of(inner))
    return bool(struck)


def check_error(error: Exception, effect: Effect, struck: list[Request]) -> None:
    """It is one of those that ``shardstore.errors`` documents, and says no more than is known."""
    assert type(error).__module__ == "shardstore.errors", repr(error)
    assert struck, f"nothing went wrong, but: {error!r}"
    if isinstance(effect, DropReply) and struck[0].operation in CHANGING:
        assert isinstance(error, WriteOutcomeUnknown), repr(error)


def check_answers(operation: Operation, answers: Answers) -> None:
    """What was read is right, or an error; never anything else."""
    assert operation.answers is not None
    for key, answer in answers.items():
        assert isinstance(answer, Exception) or answer == operation.answers.get(key), (key, answer)


def check_acknowledged(operation: Operation, answers: Answers, now: Contents) -> None:
    """What was reported as done is done."""
    if not any(answers.values()):
        check_new(operation, now)
        return
    shown = presented_by(now, layouts_of(before(), after(operation)))
    for key, error in answers.items():
        if error is None:
            assert shown.get(key) == operation.changes.get(key, shown.get(key)), key


def check_new(operation: Operation, now: Contents) -> None:
    """The new state, whole."""
    check_old_or_new(now, after(operation), after(operation))


def check_view(store: shardstore.ShardedStore, contents: Contents, also: Iterable[str] = ()) -> None:
    """A client shows what is stored, and nothing where there was something, or at the keys ``also``."""
    shown = presented_by(contents, layouts_of(contents))
    keys = sorted({*AT_FIRST, *shown, *also})
    for some in (keys[::2], keys[1::2]):  # parts of shards, which remembered indices serve; whole shards are read without
        for key, value in zip(some, on_io_loop(store.engine.get_many([(key, EVERYTHING) for key in some])), strict=True):
            assert not isinstance(value, Exception), value
            if key.endswith("zarr.json"):
                assert (value is None) == (key not in shown), (key, value)
            else:
                assert (None if value is None else bytes(value)) == shown.get(key), key


AT_FIRST = sorted(presented_by(before(), layouts_of(before())))


# -- the tests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_a_clean_run_does_what_the_table_says(operation: Operation) -> None:
    check_table(operation)


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_every_request(operation: Operation, local_kind: Kind, record: Record) -> None:
    struck = 0
    for effect, warm in moments(EVERY_WAY, sparse=2):
        struck += at_requests(effect, partial(attempt, operation, local_kind, warm=warm), least=0, sparse=4)
    record(f"{struck} requests struck")


@pytest.mark.night
@pytest.mark.parametrize("operation", OPERATIONS if FULL else SAMPLE, ids=str)
def test_every_request_of_servers(operation: Operation, server_kind: Kind, record: Record) -> None:
    """In runs that are not ``make torture``: some requests of some operations."""
    struck = 0
    for effect, warm in ((Fail(), False), (DropReply(), True)):
        if FULL:
            struck += at_every_request(effect, partial(attempt, operation, server_kind, warm=warm))
        else:
            struck += sum(attempt(operation, server_kind, Fault(at, effect), warm=warm) for at in (3, 6))
    record(f"{struck} requests struck")


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_everything_fails_from_some_request_on(operation: Operation, memory: Kind, record: Record) -> None:
    """The storage is gone for good in the middle: what cleans up fails too."""

    def from_then_on(fault: Fault) -> bool:
        return attempt(operation, memory, replace(fault, times=None), warm=FULL and fault.at % 2 == 0)

    record(f"{at_requests(Fail(), from_then_on, least=0, sparse=4)} requests")


@pytest.mark.parametrize("effect", [DropReply(), Fail()], ids=lambda effect: type(effect).__name__)
def test_a_document_of_unknown_fate_is_read_again(effect: Effect, memory: Kind) -> None:
    """The client that wrote it must not lay out shards by what it knew, however short a time ago."""
    inner = memory.make()
    storage = FaultStorage(inner)
    store = shardstore.open(storage, chunks_per_shard=lambda array: (2,) if array.shape == (16,) else (4,), metadata_ttl="1h")
    engine = store.engine
    on_io_loop(engine.update(("e/zarr.json", SetValue(document((16,), (4,))))))
    storage.plan(Fault(1, effect, operations=frozenset({"write"})))
    with pytest.raises((WriteOutcomeUnknown, StorageError)):
        on_io_loop(engine.update(("e/zarr.json", SetValue(document((32,), (2,))))))
    assert storage.struck
    storage.plan()
    on_io_loop(engine.update(("e/c/1", SetValue(b"12"))))
    now = contents_of(inner)
    assert presented_by(now, layouts_of(now))["e/c/1"] == b"12"
    check_view(client(inner), now)


@pytest.mark.parametrize("effect", [DropReply(), Truncate()], ids=lambda effect: type(effect).__name__)
def test_erased_documents_of_unknown_fate_are_read_again(effect: Effect, memory: Kind) -> None:
    """A chunk that is written to an array which is gone must not become a shard that belongs to nothing."""
    inner = memory.make()
    on_io_loop(restore(inner, before()))
    storage = FaultStorage(inner)
    store = client(storage, metadata_ttl="1h")
    check_view(store, before())
    storage.plan(Fault(1, effect, operations=frozenset({"delete_many"}), keys="*zarr.json"))
    with pytest.raises((WriteOutcomeUnknown, StorageError)):
        on_io_loop(store.engine.erase_prefix("g/"))
    assert storage.struck
    assert "g/b/zarr.json" not in contents_of(inner)
    with suppress(NotFound):
        on_io_loop(store.engine.update((B[0], SetValue(b"new!"))))
    now = contents_of(inner)
    check_view(client(inner), now)
    assert now.get(B[0]) in (None, b"new!")
