"""Swaps whose answer gets lost: their caller hears the truth, whatever the network does at that moment.

A swap that was carried out is a success, never a conflict with itself; if somebody else was first, that is told; and only if the catalog
cannot be asked any more, the outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shardstore.errors import StorageError, WriteOutcomeUnknown
from shardstore.snapshots import PointerMoved, SQLCatalog, StorageCatalog
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.catalog_suite import SyncCatalog, pointer
from shardstore.testing.faults import Cancel, DropReply, Fail, Fault, FaultStorage, Refuse
from shardstore.testing.storage_suite import SyncStorage
from tests.harness import misbehaviours as mis
from tests.harness.cut_connections import CARRIED_OUT, LATE, LOST, CutConnections, Fate
from tests.harness.misbehaving_server import MisbehavingServer, Rule
from tests.harness.postgres import postgres_url
from tests.limits import resend_at_once
from tests.torture.wire import wire


@pytest.fixture(autouse=True)
def without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    resend_at_once(monkeypatch)


END = "COMMIT\0"  # and not that of BEGIN ISOLATION LEVEL READ COMMITTED

Change = Callable[[SyncCatalog], Any]

CHANGES: dict[str, tuple[Change, Change, str]] = {
    "create": (lambda c: c.swap("new", None, pointer(0)), lambda c: c.get("new") == pointer(0), "INSERT"),
    "swap": (lambda c: c.swap("a", pointer(0), pointer(1)), lambda c: c.get("a") == pointer(1), "UPDATE"),
    "delete": (lambda c: c.delete("a", pointer(0)), lambda c: c.get("a") is None, "DELETE"),
}
"""A change, whether it was carried out, and its statement in SQL. There is a store ``a``."""

OTHERS: dict[str, Change] = {
    "create": lambda c: c.swap("new", None, pointer(0, "other")),
    "swap": lambda c: c.swap("a", pointer(0), pointer(1, "other")),
    "delete": lambda c: c.swap("a", pointer(0), pointer(1, "other")),
}
"""What somebody else does at the same moment."""


def repeat(name: str, client: SyncCatalog) -> None:
    """Ask again for a change that has been carried out: a swap is a success, and what is gone was removed by somebody."""
    change, _, _ = CHANGES[name]
    if name == "delete":
        with pytest.raises(PointerMoved, match="it is gone"):
            change(client)
    else:
        change(client)


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


class Database:
    """A catalog behind a proxy, and as others have it."""

    def __init__(self, place: Path, proxy: CutConnections, catalog: str) -> None:
        self.proxy = proxy
        self.sql = SQLCatalog(proxy.url, catalog=catalog)
        self.ours = SyncCatalog(self.sql)
        self.others = SyncCatalog(SQLCatalog(postgres_url(place), catalog=catalog))
        self.others.swap("a", None, pointer(0))


@pytest.fixture
def database(postgres_place: Path, tmp_path: Path) -> Iterator[Database]:
    with CutConnections(postgres_place) as proxy:
        yield Database(postgres_place, proxy, tmp_path.name)


@pytest.mark.parametrize("fate", Fate)
@pytest.mark.parametrize("name", CHANGES)
def test_a_commit_whose_answer_is_lost_is_a_success(database: Database, name: str, fate: Fate) -> None:
    """Also where the server never got it, or gets it when it is asked again."""
    change, is_done, statement = CHANGES[name]
    database.proxy.cut(END, fate, until=statement)
    change(database.ours)
    assert database.proxy.cuts == 1
    assert is_done(database.others)


@pytest.mark.parametrize("name", CHANGES)
def test_a_commit_that_was_lost_before_somebody_else_came_is_a_conflict(database: Database, name: str) -> None:
    change, _, _ = CHANGES[name]
    database.proxy.cut(END, LOST, lambda: OTHERS[name](database.others))
    with pytest.raises(PointerMoved) as caught:
        change(database.ours)
    assert database.proxy.cuts == 1
    now = database.others.get("new" if name == "create" else "a")
    assert caught.value.now == now
    assert now is not None
    assert now.location.endswith("other.json")


def test_a_deleted_store_that_somebody_has_made_again_was_deleted(database: Database) -> None:
    again = pointer(0, "y", "another")
    database.proxy.cut(END, CARRIED_OUT, lambda: database.others.swap("a", None, again))
    database.ours.delete("a", pointer(0))
    assert database.proxy.cuts == 1
    assert database.others.get("a") == again


@pytest.mark.parametrize("name", CHANGES)
def test_a_statement_whose_answer_is_lost_has_changed_nothing(database: Database, name: str) -> None:
    change, is_done, statement = CHANGES[name]
    for fate in (CARRIED_OUT, LOST):
        database.proxy.cut(statement, fate)
        with pytest.raises(StorageError):
            change(database.ours)
        assert not is_done(database.others)
    assert database.proxy.cuts == 2
    change(database.ours)
    assert is_done(database.others)


@pytest.mark.parametrize("fate", [CARRIED_OUT, LOST])
@pytest.mark.parametrize("name", CHANGES)
def test_a_commit_is_unknown_while_the_database_cannot_be_asked(database: Database, name: str, fate: Fate) -> None:
    change, is_done, _ = CHANGES[name]
    database.proxy.cut(END, fate, database.proxy.go_down)
    with pytest.raises(WriteOutcomeUnknown, match="cannot be asked"):
        change(database.ours)
    assert is_done(database.others) == (fate is CARRIED_OUT)
    database.proxy.come_up()
    if fate is CARRIED_OUT:
        repeat(name, database.ours)
    else:
        change(database.ours)
    assert is_done(database.others)


@pytest.mark.parametrize("name", CHANGES)
def test_nobody_waits_for_ever_for_a_transaction_whose_client_has_vanished(database: Database, name: str) -> None:
    """The server has not heard that the connection is gone, and still holds the row."""
    change, is_done, _ = CHANGES[name]
    database.sql.busy_seconds = 0.05
    database.proxy.cut(END, LATE, until="said at last")
    with pytest.raises(WriteOutcomeUnknown, match="may yet be carried out"):
        change(database.ours)
    assert not is_done(database.others)
    database.ours.get("said at last")
    repeat(name, database.ours)
    assert is_done(database.others)


# -- SQLite ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def losing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, bool], None]:
    """Lets the next ends of transactions fail, carried out or not: a disk on a network."""
    sa = pytest.importorskip("sqlalchemy")
    commit = sa.engine.RootTransaction.commit

    def lose(times: int, is_carried_out: bool) -> None:
        left = [None] * times

        def lost(self: Any) -> None:
            is_lost = bool(left)
            if is_carried_out or not is_lost:
                commit(self)
            if not is_lost:
                return
            left.pop()
            raise sa.exc.OperationalError("COMMIT", {}, Exception("disk I/O error"))

        monkeypatch.setattr(sa.engine.RootTransaction, "commit", lost)

    return lose


@pytest.mark.parametrize("times", [1, 3, 4, 5])
@pytest.mark.parametrize("is_carried_out", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_a_lost_end_of_a_transaction_of_sqlite(
    losing: Callable[[int, bool], None], name: str, is_carried_out: bool, times: int, tmp_path: Path
) -> None:
    change, is_done, _ = CHANGES[name]
    client = SyncCatalog(SQLCatalog(f"sqlite:///{tmp_path}/catalog.db"))
    client.swap("a", None, pointer(0))
    losing(times, is_carried_out)
    if times < 4 or (times == 4 and is_carried_out):
        change(client)
    else:
        message = "may yet be carried out" if times == 4 else "cannot be asked"
        with pytest.raises(WriteOutcomeUnknown, match=message):
            change(client)
    assert is_done(client) == (is_carried_out or times < 4)


# -- storages ----------------------------------------------------------------------------------------------------------


def faulty(place: Path, *faults: Fault) -> tuple[SyncCatalog, SyncCatalog]:
    """A catalog in memory with a store ``a``, whose requests from now on have faults, and as others have it."""
    others = SyncCatalog(StorageCatalog(MemoryStorage(str(place))))
    others.swap("a", None, pointer(0))
    return SyncCatalog(StorageCatalog(FaultStorage(MemoryStorage(str(place)), faults))), others


CHANGING = frozenset({"write", "delete"})


def no_looks(name: str) -> Fault:
    """No read is answered any more, once the change has been asked for."""
    return Fault(1 if name == "create" else 2, Fail(), frozenset({"read"}), times=None)


@pytest.mark.parametrize("name", CHANGES)
def test_a_lost_answer_of_a_storage_is_settled_by_looking(name: str, tmp_path: Path) -> None:
    change, is_done, _ = CHANGES[name]
    ours, others = faulty(tmp_path, Fault(1, DropReply(), CHANGING))
    change(ours)
    assert is_done(others)


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_storage_did_not_carry_out_is_sent_again(name: str, tmp_path: Path) -> None:
    change, is_done, _ = CHANGES[name]
    ours, others = faulty(tmp_path, Fault(1, Cancel(), CHANGING))  # its own client has broken off
    change(ours)
    assert is_done(others)
    ours, others = faulty(tmp_path / "again", Fault(1, Cancel(), CHANGING, times=None))
    with pytest.raises(WriteOutcomeUnknown, match="may have been carried out"):
        change(ours)
    assert not is_done(others)


@pytest.mark.parametrize("name", CHANGES)
def test_a_request_that_is_lost_may_still_arrive_after_the_next_one_has_failed(name: str, tmp_path: Path) -> None:
    """A certain failure would be a reason to remove the files that the pointer leads to."""
    change, is_done, _ = CHANGES[name]
    ours, others = faulty(tmp_path, Fault(1, Cancel(), CHANGING), Fault(2, Fail(), CHANGING))
    with pytest.raises(WriteOutcomeUnknown):
        change(ours)
    assert not is_done(others)


@pytest.mark.parametrize("name", CHANGES)
def test_what_cannot_be_looked_at_is_unknown(name: str, tmp_path: Path) -> None:
    change, is_done, _ = CHANGES[name]
    ours, others = faulty(
        tmp_path, Fault(1, DropReply(), CHANGING), Fault(1 if name == "create" else 2, Fail(), frozenset({"read"}), times=9)
    )
    with pytest.raises(WriteOutcomeUnknown, match="cannot be read"):
        change(ours)
    assert is_done(others)


@pytest.mark.parametrize("name", CHANGES)
def test_a_refusal_that_cannot_be_looked_at_is_unknown(name: str, tmp_path: Path) -> None:
    """It may be that the storage refuses a request that it has carried out, and a proxy has sent twice."""
    change, is_done, _ = CHANGES[name]
    ours, others = faulty(tmp_path, Fault(1, Refuse(), CHANGING), no_looks(name))
    with pytest.raises(WriteOutcomeUnknown, match="cannot be read"):
        change(ours)
    assert not is_done(others)


@pytest.mark.parametrize("name", CHANGES)
def test_a_refusal_of_what_is_still_there_is_no_conflict(name: str, tmp_path: Path) -> None:
    """The object may have been written again, with the same pointer: a copy that was restored."""
    change, is_done, _ = CHANGES[name]
    ours, others = faulty(tmp_path, Fault(1, Refuse(), CHANGING))
    change(ours)
    assert is_done(others)
    ours, others = faulty(tmp_path / "again", Fault(1, Refuse(), CHANGING, times=None))
    with pytest.raises(StorageError, match="refuses"):
        change(ours)
    assert not is_done(others)


def test_a_pointer_that_was_stored_again_is_swapped(tmp_path: Path) -> None:
    storage = MemoryStorage(str(tmp_path))
    client = SyncCatalog(StorageCatalog(storage))
    first = client.swap("a", None, pointer(0))
    data = SyncStorage(storage).get("a.json")
    assert data is not None
    assert SyncStorage(storage).put("a.json", data) != first.version
    assert client.swap("a", first, pointer(1)) == pointer(1)


@dataclass
class Server:
    """A catalog behind a proxy, and as others have it."""

    proxy: MisbehavingServer
    ours: SyncCatalog
    others: SyncCatalog
    conditional_delete: bool

    def lose(self, *, is_carried_out: bool, then: Callable[[], Any] = lambda: None, looks: bool = False, times: int = 1) -> Rule:
        """Lose the answers to the next requests that change a pointer; ``looks``: those to all others too, from then on."""

        async def behave(request: mis.Request, send: mis.Send) -> mis.Outcome:
            if is_carried_out:
                await send(request)
            await asyncio.to_thread(then)
            if looks:
                self.proxy.on(mis.break_off())
            return mis.Broken(is_reset=True)

        return self.proxy.on(behave, method={"PUT", "POST", "DELETE"}, nth=range(1, times + 1))


@pytest.fixture(params=["s3", "s3 over obstore", "gcs"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    kind, _, transport = request.param.partition(" over ")
    with wire(kind, request.getfixturevalue(f"{kind}_endpoint"), transport or "fsspec") as running:
        storages = [running.storage(tmp_path.name, direct=is_direct) for is_direct in (False, True)]
        ours, others = (SyncCatalog(StorageCatalog(storage)) for storage in storages)
        for client, name in ((others, "a"), (ours, "b")):  # both find out what the server can do
            client.swap(name, None, pointer(0))
        running.server.behave()
        yield Server(running.server, ours, others, storages[0].capabilities.conditional_delete)


@pytest.mark.parametrize("is_carried_out", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_a_swap_whose_answer_is_lost_is_a_success(server: Server, name: str, is_carried_out: bool) -> None:
    change, is_done, _ = CHANGES[name]
    lost = server.lose(is_carried_out=is_carried_out)
    change(server.ours)
    assert lost.acted == 1
    assert is_done(server.others)


@pytest.mark.parametrize("name", CHANGES)
def test_a_swap_that_was_lost_before_somebody_else_came_is_a_conflict(server: Server, name: str) -> None:
    change, _, _ = CHANGES[name]
    if name == "delete" and not server.conditional_delete:
        pytest.skip("this server deletes on no condition")
    lost = server.lose(is_carried_out=False, then=lambda: OTHERS[name](server.others))
    with pytest.raises(PointerMoved) as caught:
        change(server.ours)
    assert lost.acted == 1
    now = server.others.get("new" if name == "create" else "a")
    assert caught.value.now == now
    assert now is not None
    assert now.location.endswith("other.json")


@pytest.mark.parametrize("name", CHANGES)
def test_a_swap_that_is_carried_out_twice_is_a_success(server: Server, name: str) -> None:
    change, is_done, _ = CHANGES[name]
    sent = server.proxy.on(mis.twice(), method={"PUT", "POST", "DELETE"})
    change(server.ours)
    assert sent.acted
    assert is_done(server.others)


@pytest.mark.parametrize("is_carried_out", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_a_swap_is_unknown_while_the_server_cannot_be_asked(server: Server, name: str, is_carried_out: bool) -> None:
    change, is_done, _ = CHANGES[name]
    lost = server.lose(is_carried_out=is_carried_out, looks=True)
    with pytest.raises(WriteOutcomeUnknown):
        change(server.ours)
    assert lost.acted == 1
    assert is_done(server.others) == is_carried_out
    server.proxy.behave()
    if is_carried_out:
        repeat(name, server.ours)
    else:
        change(server.ours)
    assert is_done(server.others)
