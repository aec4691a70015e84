"""A fault at the n-th request, for every n, of every operation, on every storage that speaks HTTP, once with the client library's own
retries and once without them: success or a documented error, and each shard is the old one or the new one.

A request fails, its connection is reset, its answer is lost or cut short, never comes, or it is carried out twice. What is not put
to the test, because a client has to believe it: a 404 to a read or a deletion (it is not there), one to a copy (nothing is there to
be copied), and a document whose end is missing without a sign of it from a server that sends no checksums.
"""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import botocore.retryhandler
import gcsfs.retry
import pytest

from shardstore.errors import ShardStoreError
from shardstore.model.generation import IF_ABSENT, Generation, IfGeneration
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.azure.storage import AzureStorage
from shardstore.storage.base import ConditionFailed, Found, Read, Storage
from shardstore.storage.gcs import client as gcs_client
from shardstore.storage.gcs.storage import GCSStorage
from shardstore.storage.s3 import client as s3_client
from shardstore.storage.s3.storage import S3Storage
from shardstore.storage.wrappers import innermost
from shardstore.testing.storage_suite import SyncStorage, on_io_loop
from tests.harness import misbehaviours as mis
from tests.harness.scale import FULL, sized
from tests.limits import resend_at_once
from tests.torture import places
from tests.torture.conftest import Record
from tests.torture.wire import A_SHARD, CHUNKS, DOCUMENT, INITIAL, PRESENTED, Case, Client, Kind, Values, Wire, forget, value, wire

SERVERS = ["s3", "s3 over obstore", "gcs", "azure", "azure over obstore", "http"]
if FULL and os.environ.get("SHARDSTORE_MINISTACK"):
    SERVERS.append("ministack")

FLAGS = ("pinned_reads", "compare_and_swap", "create_if_absent", "conditional_delete")


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Wire]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.retryhandler, "delay_exponential", lambda **_: 0.001)  # taken over when a client is made
        if request.param == "ministack":
            with places.ministack(os.environ["SHARDSTORE_MINISTACK"]) as endpoint, wire("s3", endpoint) as running:
                yield running
            return
        kind, _, transport = request.param.partition(" over ")
        endpoint = "" if kind == "http" else request.getfixturevalue(f"{kind}_endpoint")
        with wire(kind, endpoint, transport or "fsspec") as running:
            yield running


@pytest.fixture(autouse=True)
def fresh(server: Wire, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    async def sleep(_seconds: float) -> None:
        pass

    resend_at_once(monkeypatch)
    monkeypatch.setattr(gcsfs.retry, "asyncio", SimpleNamespace(sleep=sleep))
    forget()
    yield
    forget()
    server.server.behave()


# -- faults ------------------------------------------------------------------------------------------------------------


def _of_writes(behaviour: mis.Behaviour) -> mis.Behaviour:
    async def behave(request: mis.Request, send: mis.Send) -> mis.Outcome:
        return await (behaviour(request, send) if request.method in ("PUT", "POST") else send(request))

    return behave


def faults(kind: Kind) -> dict[str, mis.Behaviour]:
    """By name. A made-up 404 or 412 is an answer to believe; the others say nothing of what is stored."""
    dialect: mis.Dialect = "s3" if kind == "http" else kind
    return {
        **{str(status): mis.refuse(status, dialect) for status in (500, 503, 429, 403, 409, 412, 416)},
        "404 to a write": _of_writes(mis.refuse(404, dialect)),
        "break off": mis.break_off(),
        "lose the answer": mis.drop_reply(),
        "lose the answer by reset": mis.drop_reply(is_reset=True),
        "cut the answer": mis.cut_body(),
        "twice": mis.twice(),
    }


SAY_THAT_IT_CHANGED = ("412", "404 to a write", "409")


# -- operations --------------------------------------------------------------------------------------------------------


class Outcome:
    """What is known after an operation: whether it was acknowledged, and what must be true of what is stored."""

    def __init__(self, case: Case, fault: str) -> None:
        self.case = case
        self.fault = fault
        self.errors: list[Exception] = []

    def failed(self, error: Exception | None, *, may_be_condition: bool = False) -> bool:
        """Note an error, which has to be a documented one."""
        if error is None:
            return False
        assert isinstance(error, ShardStoreError), repr(error)
        if isinstance(error, ConditionFailed):  # nobody else writes here: a server that says so has to be behind it
            assert may_be_condition, repr(error)
            assert self.fault in SAY_THAT_IT_CHANGED, (self.fault, error)
        self.errors.append(error)
        return True

    def attempt(self, act: Callable[[], Any]) -> Any:
        """What a call to a storage gives; ``None`` where it failed."""
        try:
            return act()
        except ShardStoreError as exc:
            self.failed(exc, may_be_condition=True)
            return None

    def values(self, found: list[bytes | Exception | None], truth: list[bytes | None]) -> None:
        """Reads: right, or an error that names the key, or the root where a bucket turned out to be missing."""
        for one, expected in zip(found, truth, strict=True):
            if isinstance(one, Exception):
                self.failed(one)
                assert any(name in str(one) for name in ("'x/", "'x'", self.case.prefix)), repr(one)
            else:
                assert one == expected

    def shards(self, old: Values, new: Values, acknowledged: dict[int, bool]) -> None:
        """Each shard is the old one or the new one; the new one where that was acknowledged."""
        stored = self.case.stored()
        for first in range(0, CHUNKS, A_SHARD):
            chunks = range(first, first + A_SHARD)
            before, after, now = ({chunk: values[chunk] for chunk in chunks} for values in (old, new, stored))
            said = [acknowledged[chunk] for chunk in chunks if chunk in acknowledged]
            assert now == after or (now == before and not all(said)), (first, said)
            assert len(set(said)) <= 1  # one commit
        again = self.case.client(direct=True).read(*range(CHUNKS))
        assert again == [stored[chunk] for chunk in range(CHUNKS)]


@dataclass(frozen=True, slots=True)
class Operation:
    """``prepare`` sees to what the client knows before; ``run`` is what meets the fault, and checks what came of it."""

    run: Callable[[Case, Client, Outcome, Any], None]
    prepare: Callable[[Case, Client], Any] = lambda _case, _client: None
    kinds: tuple[Kind, ...] = ("s3", "gcs", "azure")
    storage_options: tuple[tuple[Kind, str], ...] = ()
    excluded: tuple[str, ...] = ()


def _writing(new: Values) -> Callable[[Case, Client, Outcome, Any], None]:
    """Write, and once more where it failed: a client that met a fault is as good as before."""

    def run(case: Case, client: Client, outcome: Outcome, _prepared: Any) -> None:
        errors = client.write(new)
        case.wire.server.behave()
        acknowledged = {chunk: not outcome.failed(error) for chunk, error in zip(new, errors, strict=True)}
        outcome.shards(INITIAL, INITIAL | new, acknowledged)
        assert client.write(new) == [None] * len(new)
        outcome.shards(INITIAL | new, INITIAL | new, dict.fromkeys(new, True))
        assert client.read(*range(CHUNKS)) == list((INITIAL | new).values())

    return run


def _create(case: Case, client: Client, outcome: Outcome, _prepared: Any) -> None:
    try:
        client.put(DOCUMENT, PRESENTED)
        created = True
    except ShardStoreError as exc:
        created = not outcome.failed(exc)
    new: Values = {chunk: value(chunk, 2) for chunk in range(CHUNKS)}
    errors = client.write(new) if created else []
    case.wire.server.behave()
    acknowledged = {chunk: not outcome.failed(error) for chunk, error in zip(new, errors, strict=False)}
    stored = case.objects.get(DOCUMENT)
    assert stored is not None or not created
    if stored is not None:
        assert json.loads(stored)["codecs"][0]["name"] == "sharding_indexed"
        outcome.shards(dict.fromkeys(range(CHUNKS)), new, acknowledged)
    client.put(DOCUMENT, PRESENTED)
    assert client.write(new) == [None] * CHUNKS
    outcome.shards(new, new, dict.fromkeys(new, True))


def _emptied(case: Case, _client: Client) -> None:
    for key in case.objects.keys():  # noqa: SIM118 - no mapping
        case.objects.delete(key)


def _document(case: Case, client: Client, outcome: Outcome, _prepared: Any) -> None:
    changed = json.loads(PRESENTED) | {"attributes": {"what": "changed"}}
    acknowledged = True
    try:
        client.put(DOCUMENT, json.dumps(changed).encode())
    except ShardStoreError as exc:
        acknowledged = not outcome.failed(exc)
    case.wire.server.behave()
    stored = case.objects.get(DOCUMENT)
    assert stored is not None
    attributes = json.loads(stored)["attributes"]
    assert attributes == changed["attributes"] or (attributes == json.loads(PRESENTED)["attributes"] and not acknowledged)
    outcome.shards(INITIAL, INITIAL, {})


def _read(case: Case, client: Client, outcome: Outcome, _prepared: Any) -> None:
    chunks = (2, 5, CHUNKS - 1)
    try:
        found = client.read(*chunks)
    except ShardStoreError as exc:  # of the metadata, which all of them need
        found = [exc] * len(chunks)
    outcome.values(found, [INITIAL[chunk] for chunk in chunks])
    case.wire.server.behave()
    assert client.read(*range(CHUNKS)) == list(INITIAL.values())


def _known(_case: Case, client: Client) -> None:
    assert client.read(1, 4) == [INITIAL[1], INITIAL[4]]


def _generation(case: Case, _client: Client) -> Generation:
    (found,) = on_io_loop(case.storage(direct=True).read([Read("x/c/0", (EVERYTHING,))]))
    assert isinstance(found, Found)
    return found.generation


def _store_new(case: Case, client: Client, outcome: Outcome, _prepared: Any) -> None:
    data = b"new" * 1000
    made = outcome.attempt(lambda: SyncStorage(client.storage).put("new", data, IF_ABSENT))
    case.wire.server.behave()
    stored = case.objects.get("new")
    assert stored == data or (stored is None and made is None)
    if made is not None:
        info = SyncStorage(case.storage(direct=True)).infos()
        assert made in [one.generation for one in info if one.key == "new"]


def _swap(case: Case, client: Client, outcome: Outcome, generation: Generation) -> None:
    old, data = case.objects.get("x/c/0"), b"swapped" * 1000
    made = outcome.attempt(lambda: SyncStorage(client.storage).put("x/c/0", data, IfGeneration(generation)))
    case.wire.server.behave()
    stored = case.objects.get("x/c/0")
    assert stored == data or (stored == old and made is None)


def _delete(case: Case, client: Client, outcome: Outcome, generation: Generation) -> None:
    old = case.objects.get("x/c/0")

    def act() -> str:
        on_io_loop(client.storage.delete("x/c/0", IfGeneration(generation)))
        return "gone"

    acknowledged = outcome.attempt(act)
    case.wire.server.behave()
    stored = case.objects.get("x/c/0")
    assert stored is None or (stored == old and acknowledged is None)


def _delete_many(case: Case, client: Client, outcome: Outcome, _prepared: Any) -> None:
    keys = ["x/c/0", "x/c/1", "p/c/0", "nothing"]
    old = {key: case.objects.get(key) for key in keys}

    def act() -> str:
        on_io_loop(client.storage.delete_many(keys))
        return "gone"

    acknowledged = outcome.attempt(act)
    case.wire.server.behave()
    for key in keys:
        stored = case.objects.get(key)
        assert stored is None or (stored == old[key] and acknowledged is None)
    assert case.objects.get(DOCUMENT) is not None


def _copy(case: Case, client: Client, outcome: Outcome, _prepared: Any) -> None:
    whole = case.objects.get("x/c/0")
    made = outcome.attempt(lambda: on_io_loop(client.storage.copy("x/c/0", "copied")))
    case.wire.server.behave()
    stored = case.objects.get("copied")
    assert stored == whole or (stored is None and made is None)
    assert case.objects.get("x/c/0") == whole


def _list(case: Case, client: Client, outcome: Outcome, _prepared: Any) -> None:
    keys = outcome.attempt(lambda: SyncStorage(client.storage).keys())
    assert keys is None or keys == case.objects.keys()


def _stat(case: Case, client: Client, outcome: Outcome, _prepared: Any) -> None:
    def act() -> int:
        found = on_io_loop(client.storage.stat("x/c/0"))
        assert found is not None
        return found.nbytes

    whole = case.objects.get("x/c/0")
    assert whole is not None
    assert outcome.attempt(act) in (None, len(whole))


IN_PARTS: tuple[tuple[Kind, str], ...] = (("s3", "multipart_bytes"), ("gcs", "resumable_bytes"), ("azure", "put_bytes"))
DELETES_BELIEVE = ("404 to a write",)
OPERATIONS: dict[str, Operation] = {
    "create": Operation(_create, _emptied),
    "one chunk": Operation(_writing({1: value(1, 2)})),
    "one chunk, index known": Operation(_writing({1: value(1, 2)}), _known),
    "several shards": Operation(_writing({0: value(0, 2), 3: None, 5: value(5, 2)})),
    "erase to empty": Operation(_writing({4: None, 5: None, 6: None})),
    "whole shard": Operation(_writing({chunk: value(chunk, 2) for chunk in range(A_SHARD)})),
    "in parts": Operation(_writing({1: value(1, 2)}), storage_options=IN_PARTS),
    "in parts, whole shard": Operation(_writing({chunk: value(chunk, 2) for chunk in range(A_SHARD)}), storage_options=IN_PARTS),
    "document": Operation(_document),
    "read cold": Operation(_read, kinds=("s3", "gcs", "azure", "http")),
    "read, index known": Operation(_read, _known, kinds=("s3", "gcs", "azure", "http")),
    "store if absent": Operation(_store_new),
    "store if absent, in parts": Operation(_store_new, storage_options=IN_PARTS),
    "swap": Operation(_swap, _generation),
    "delete": Operation(_delete, _generation, excluded=DELETES_BELIEVE),
    "delete many": Operation(_delete_many, excluded=DELETES_BELIEVE),
    "copy": Operation(_copy, excluded=DELETES_BELIEVE),
    "list": Operation(_list),
    "stat": Operation(_stat, kinds=("s3", "gcs", "azure", "http")),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, at one request."""

    name: str
    behaviour: mis.Behaviour
    nth: int


def carried_out(server: Wire, name: str, fault: Fault | None, *, retries: bool, hasty: bool = False) -> tuple[int, bool]:
    """Run an operation on a case of its own; how many requests it took, and whether all of it was acknowledged."""
    operation = OPERATIONS[name]
    case = Case(server)
    options = {option: 1 for kind, option in operation.storage_options if kind == server.kind}
    client = Client(case.storage(retries=retries, hasty=hasty, **options))
    if server.kind != "http":
        on_io_loop(client.storage.probe())  # faults of which have a test of their own
    prepared = operation.prepare(case, client)
    server.server.behave()
    requests = 0

    async def behave(request: mis.Request, send: mis.Send) -> mis.Outcome:
        nonlocal requests
        requests += 1
        return await (send(request) if fault is None or requests != fault.nth else fault.behaviour(request, send))

    server.server.on(behave)
    outcome = Outcome(case, "" if fault is None else fault.name)
    try:
        operation.run(case, client, outcome, prepared)
    except BaseException as exc:
        exc.add_note(f"{fault}, of {requests} requests")
        raise
    server.server.behave()
    return requests, not outcome.errors


@pytest.mark.parametrize("retries", [pytest.param(True, marks=pytest.mark.night), False], ids=["retries of the client", "no retries"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_fault_at_the_nth_request(server: Wire, name: str, retries: bool, record: Record) -> None:
    operation = OPERATIONS[name]
    if server.kind not in operation.kinds:
        pytest.skip(f"{server.kind} is for reading")
    count = 2
    if FULL or not retries:
        count, acknowledged = carried_out(server, name, None, retries=retries)
        assert acknowledged
    behaviours = {fault: one for fault, one in faults(server.kind).items() if fault not in operation.excluded}
    rng = random.Random(f"{server.kind} {name} {retries}")
    # The client's retries leave little to find: two faults at each request, of those that are all tried without.
    tries = [
        Fault(fault, behaviours[fault], nth)
        for nth in range(1, count + 1)
        for fault in (rng.sample(sorted(behaviours), 2) if retries else behaviours)
    ]
    tries = rng.sample(tries, sized(len(tries), 1 if retries else 2))
    succeeded = sum(carried_out(server, name, fault, retries=retries)[1] for fault in tries)
    record(f"{len(tries)} faults over {count} requests: {succeeded} times success, {len(tries) - succeeded} an error, 0 mixtures")


@pytest.mark.parametrize("is_carried_out", [True, False], ids=["carried out", "not carried out"])
@pytest.mark.parametrize("name", ["one chunk, index known", "read cold", "swap", "in parts", "delete"])
def test_an_answer_that_never_comes(server: Wire, name: str, is_carried_out: bool, record: Record) -> None:
    operation = OPERATIONS[name]
    if server.kind not in operation.kinds:
        pytest.skip(f"{server.kind} is for reading")
    behaviour = mis.never_answer(is_carried_out=is_carried_out)
    if not FULL and name not in ("swap", "read cold"):
        pytest.skip("takes its time")
    count, _ = carried_out(server, name, None, retries=False)
    moments = range(1, count + 1) if FULL else [1]
    outcomes = [carried_out(server, name, Fault("never", behaviour, nth), retries=False, hasty=True)[1] for nth in moments]
    record(f"{len(outcomes)} answers that never came: {sum(outcomes)} times success, {len(outcomes) - sum(outcomes)} an error")


# -- what is believed of a server --------------------------------------------------------------------------------------


@pytest.mark.parametrize("retries", [True, False], ids=["retries of the client", "no retries"])
@pytest.mark.parametrize("hostile", [False, True], ids=["honours", "ignores conditions"])
def test_a_fault_while_a_server_is_asked_what_it_can_do(server: Wire, hostile: bool, retries: bool, record: Record) -> None:
    """It is never believed to do what it does not, and nothing is left behind but where removing it failed."""
    if server.kind == "http":
        pytest.skip("http is for reading")
    storage = server.storage("probing", retries=retries)
    truth = on_io_loop(server.storage("probing", direct=True).probe())
    behaviours = {name: one for name, one in faults(server.kind).items() if name not in (*SAY_THAT_IT_CHANGED, "416")}

    def probed(fault: mis.Behaviour | None, nth: int) -> tuple[int, bool]:
        forget()
        server.server.behave()
        if hostile:
            server.server.on(mis.ignore_conditions(), method=("PUT", "POST", "DELETE"))
        if fault is not None:
            server.server.on(fault, nth=nth)
        try:
            found = on_io_loop(storage.probe())
            large = on_io_loop(_large(storage))
        except ShardStoreError:
            return len(server.server.requests), False
        for flag in FLAGS[1:]:
            assert not getattr(found, flag) or (getattr(truth, flag) and not hostile), flag
        assert not (large and hostile)
        return len(server.server.requests), True

    count, answered = probed(None, 0)
    assert answered
    tries = list(itertools.product(range(1, count + 1), behaviours))
    if not FULL:  # a request that is sent again meets what the first one did: that is the trap
        lost = [one for one in tries if one[1] == "lose the answer"]
        tries = lost if hostile and retries else random.Random(f"{server.kind} {retries}").sample(tries, 2)
    succeeded = 0
    for nth, fault in tries:
        try:
            succeeded += probed(behaviours[fault], nth)[1]
        except BaseException as exc:
            exc.add_note(f"{fault!r} at request {nth} of {count}")
            raise
    record(f"{len(tries)} faults over {count} requests: {succeeded} times an answer, none of them too good")


async def _large(storage: Storage) -> bool:
    below = innermost(storage)
    if isinstance(below, S3Storage):
        return await s3_client.probe_multipart(below.client)
    if isinstance(below, AzureStorage):  # the probe has asked about lists of blocks, too
        return (await below.probe()).compare_and_swap
    assert isinstance(below, GCSStorage)
    return await gcs_client.probe_resumable(below.client)
