"""Commits, and changes of branches and tags, whose swap was carried out without an answer: they are successes, once, whoever came next
(D37).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from shardstore.errors import NotFound, WriteOutcomeUnknown
from shardstore.opening.transports import Transport
from shardstore.snapshots import Catalog, ConflictDetector, ConflictError, Pointer, Repository, Session, SQLCatalog, StorageCatalog
from shardstore.snapshots.catalog import moved
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.storage_suite import on_io_loop
from tests.harness import misbehaviours as mis
from tests.harness.cut_connections import CARRIED_OUT, CutConnections
from tests.harness.misbehaving_server import Rule
from tests.harness.postgres import postgres_url
from tests.limits import resend_at_once
from tests.snapshots.repositories import create_array, read_array
from tests.snapshots.whole import check_whole, messages_of
from tests.torture.wire import Kind, wire

DATA = np.arange(64, dtype="i4")


class LosingCatalog:
    """Loses the answer to the next swap, when told to."""

    def __init__(self, inner: Catalog) -> None:
        self.inner = inner
        self.then: Callable[[], object] | None = None
        self.is_carried_out = True
        self.is_answered = True
        self.lost = 0

    @property
    def url(self) -> str:
        return self.inner.url

    def lose(self, then: Callable[[], object] = lambda: None, *, is_carried_out: bool = True, is_answered: bool = True) -> None:
        """Lose the answer of the next swap, and call ``then``; then look, as every catalog does, if that ``is_answered``."""
        self.then, self.is_carried_out, self.is_answered = then, is_carried_out, is_answered

    async def get(self, name: str) -> Pointer | None:
        return await self.inner.get(name)

    async def check_able(self) -> None:
        await self.inner.check_able()

    async def swap(self, name: str, before: Pointer | None, after: Pointer) -> Pointer:
        then, self.then = self.then, None
        if then is None:
            return await self.inner.swap(name, before, after)
        self.lost += 1
        if self.is_carried_out:
            await self.inner.swap(name, before, after)
        await asyncio.to_thread(then)
        if not self.is_answered:
            raise WriteOutcomeUnknown("nobody can be asked")
        return await self.inner.swap(name, before, after)

    async def delete(self, name: str, before: Pointer) -> None:
        await self.inner.delete(name, before)

    def list(self) -> AsyncIterator[str]:
        return self.inner.list()


class World:
    """A repository with an array ``a``: as we have it, whose catalog can lose answers, and as others have it."""

    def __init__(self, place: str) -> None:
        self.storage = MemoryStorage(place)
        self.others = Repository.create(self.storage)
        session = self.others.writable_session()
        create_array(session, "a", DATA, (8,))
        self.first = session.commit("begin")
        self.catalog = LosingCatalog(StorageCatalog(self.storage))
        self.ours = Repository.open(self.storage, catalog=self.catalog, name="catalog")

    def changed(self, value: int = -1) -> Session:
        session = self.ours.writable_session()
        set_chunk(session, 0, value)
        return session

    def others_commit(self, number: int = 1, *, times: int = 1) -> None:
        for more in range(times):
            session = self.others.writable_session()
            set_chunk(session, number + more, -2)
            session.commit("theirs")

    def others_tag(self, times: int = 1) -> None:
        for number in range(times):
            self.others.create_tag(f"tag {number}", self.first)

    def values(self) -> list[int]:
        """The first item of each chunk."""
        session = Repository.open(self.storage).readonly_session()
        return [int(one) for one in read_array(session, "a")[::8]]

    def check(self) -> None:
        assert self.catalog.lost == 1
        check_whole(self.storage)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(str(tmp_path))


def set_chunk(session: Session, number: int, value: int) -> None:
    zarr.open_array(session.store, path="a")[8 * number : 8 * number + 8] = value


FIRST = [8 * number for number in range(8)]

# -- commits -----------------------------------------------------------------------------------------------------------

Meanwhile = Callable[[World], object]

MEANWHILE: dict[str, Meanwhile] = {
    "nothing": lambda world: None,
    "a tag": lambda world: world.others_tag(),
    "a commit": lambda world: world.others_commit(),
    "a commit of the same chunk": lambda world: world.others_commit(0),
    "many commits": lambda world: world.others_commit(times=3),
    "more than are remembered": lambda world: world.others_tag(80),
}


@pytest.mark.parametrize("solver", [None, ConflictDetector()], ids=["alone", "rebase"])
@pytest.mark.parametrize("name", MEANWHILE)
def test_a_commit_that_was_carried_out_is_a_success_whoever_came_next(world: World, name: str, solver: ConflictDetector | None) -> None:
    session = world.changed()
    world.catalog.lose(lambda: MEANWHILE[name](world))
    snapshot = session.commit("ours", rebase_with=solver)
    world.check()
    assert messages_of(world.others).count("ours") == 1
    assert world.others.lookup_snapshot(snapshot).message == "ours"
    assert session.read_only
    assert session.snapshot_id == snapshot
    ours, theirs = world.values()[0], world.values()[1:]
    assert ours == (-2 if name.endswith("same chunk") else -1)
    assert (-2 in theirs) == ("commits" in name or name == "a commit")


def test_a_commit_that_was_not_carried_out_before_somebody_came_is_a_conflict(world: World) -> None:
    session = world.changed()
    world.catalog.lose(world.others_commit, is_carried_out=False)
    with pytest.raises(ConflictError, match="another session has committed"):
        session.commit("ours")
    world.check()
    assert messages_of(world.others)[-2:] == ["begin", "theirs"]
    session.rebase(ConflictDetector())
    session.commit("ours")
    assert messages_of(world.others)[-2:] == ["theirs", "ours"]
    assert world.values()[:3] == [-1, -2, 16]


def test_a_catalog_that_calls_our_own_swap_a_conflict_is_not_believed(world: World) -> None:
    """As a catalog of somebody else may, whose contract is not tested."""
    inner = world.catalog.inner
    swap = inner.swap

    async def careless(name: str, before: Pointer | None, after: Pointer) -> Pointer:
        raise moved(name, inner.url, await swap(name, before, after))

    inner.swap = careless  # type: ignore[method-assign]
    session = world.changed()
    assert session.commit("ours") == world.others.lookup_branch("main")
    world.ours.create_tag("new", world.first)
    assert world.others.list_tags() == {"new"}
    assert world.values()[0] == -1
    check_whole(world.storage)


# -- commits whose outcome is unknown ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_carried_out", [True, False])
@pytest.mark.parametrize("name", MEANWHILE)
def test_a_commit_of_unknown_outcome_can_be_asked_for_again(world: World, name: str, is_carried_out: bool) -> None:
    session = world.changed()
    world.catalog.lose(is_carried_out=is_carried_out, is_answered=False)
    with pytest.raises(WriteOutcomeUnknown):
        session.commit("ours")
    world.check()
    assert session.has_uncommitted_changes
    MEANWHILE[name](world)
    if "commit" in name and not is_carried_out:
        with pytest.raises(ConflictError):
            session.commit("ours")
        world.check()
        assert "ours" not in messages_of(world.others)
        return
    snapshot = session.commit("ours")
    world.check()
    assert messages_of(world.others).count("ours") == 1
    assert world.others.lookup_snapshot(snapshot).message == "ours"
    assert session.read_only
    assert world.values()[0] == (-2 if name.endswith("same chunk") else -1)


def test_an_unknown_commit_that_is_carried_out_behind_the_next_one_is_that(world: World) -> None:
    """The swap is on its way while the session commits again."""
    session = world.changed()
    late: list[Any] = []
    swap = world.catalog.inner.swap

    async def delayed(name: str, before: Pointer | None, after: Pointer) -> Pointer:
        late.append((name, before, after))
        if len(late) == 1:
            raise WriteOutcomeUnknown("on its way")
        await swap(*late[0])
        return await swap(name, before, after)

    world.catalog.inner.swap = delayed  # type: ignore[method-assign]
    with pytest.raises(WriteOutcomeUnknown):
        session.commit("ours")
    snapshot = session.commit("ours, again")
    assert messages_of(world.others) == ["Repository initialized", "begin", "ours"]
    assert world.others.lookup_branch("main") == snapshot
    check_whole(world.storage)
    assert world.values()[0] == -1


@pytest.mark.parametrize("change", ["write", "erase", "node", "discard", "move"])
def test_what_was_changed_after_an_unknown_commit_that_was_carried_out_is_a_conflict(world: World, change: str) -> None:
    session = world.changed()
    world.catalog.lose(is_answered=False)
    with pytest.raises(WriteOutcomeUnknown):
        session.commit("ours")
    match change:
        case "write":
            set_chunk(session, 5, -1)
        case "erase":
            del session.mapping()["a/c/5"]
        case "node":
            zarr.create_group(session.store, path="g")
        case "discard":
            session.discard_changes()
        case "move":
            session.move("a", "b")
    with pytest.raises(ConflictError, match="an earlier commit of this session"):
        session.commit("more", allow_empty=True)
    with pytest.raises(ConflictError, match="an earlier commit of this session"):
        session.commit("more", rebase_with=ConflictDetector(), allow_empty=True)
    world.check()
    assert messages_of(world.others)[-1] == "ours"
    assert world.values() == [-1, *FIRST[1:]]


def test_what_was_written_after_an_unknown_commit_that_was_not_carried_out_is_committed_with_it(world: World) -> None:
    session = world.changed()
    world.catalog.lose(is_carried_out=False, is_answered=False)
    with pytest.raises(WriteOutcomeUnknown):
        session.commit("ours")
    set_chunk(session, 5, -3)
    large = zarr.create_array(session.store, name="large", shape=(4096,), chunks=(1024,), dtype="i4", compressors=None)
    large[:3000] = 7  # chunks that wait for the others of their file
    world.others_commit()
    with pytest.raises(ConflictError, match="another session has committed"):
        session.commit("ours")
    assert read_array(session, "a")[40] == -3
    session.commit("ours", rebase_with=ConflictDetector())
    world.check()
    assert messages_of(world.others)[-2:] == ["theirs", "ours"]
    assert world.values() == [-1, -2, 16, 24, 32, -3, 48, 56]
    assert read_array(world.others.readonly_session(), "large").tolist() == [7] * 3000 + [0] * 1096


def test_a_session_is_not_brought_onto_its_own_commit(world: World) -> None:
    session = world.changed()
    world.catalog.lose(is_answered=False)
    with pytest.raises(WriteOutcomeUnknown):
        session.commit("ours")
    world.others_commit()
    session.rebase(ConflictDetector())
    snapshot = session.commit("ours")
    world.check()
    assert messages_of(world.others)[-2:] == ["ours", "theirs"]
    assert world.others.lookup_snapshot(snapshot).message == "ours"


# -- branches and tags -------------------------------------------------------------------------------------------------

REFS: dict[str, tuple[Callable[[World], object], Callable[[World], bool]]] = {
    "create branch": (lambda w: w.ours.create_branch("new", w.first), lambda w: w.others.lookup_branch("new") == w.first),
    "create tag": (lambda w: w.ours.create_tag("new", w.first), lambda w: w.others.lookup_tag("new") == w.first),
    "delete branch": (lambda w: w.ours.delete_branch("old"), lambda w: w.others.list_branches() == {"main"}),
    "delete tag": (lambda w: w.ours.delete_tag("v0"), lambda w: "v0" not in w.others.list_tags()),
    "reset branch": (
        lambda w: w.ours.reset_branch("old", w.first, from_snapshot_id=w.others.lookup_tag("v0")),
        lambda w: w.others.lookup_branch("old") == w.first,
    ),
}


@pytest.mark.parametrize("meanwhile", ["nothing", "a tag", "a commit", "many commits"])
@pytest.mark.parametrize("name", REFS)
def test_a_change_of_a_ref_that_was_carried_out_is_a_success(world: World, name: str, meanwhile: str) -> None:
    root = list(world.others.ancestry("main"))[-1].id
    world.others.create_branch("old", root)
    world.others.create_tag("v0", root)
    change, is_done = REFS[name]
    world.catalog.lose(lambda: MEANWHILE[meanwhile](world))
    change(world)
    world.check()
    assert is_done(world)


def test_a_change_of_a_ref_that_somebody_undid_was_carried_out(world: World) -> None:
    world.catalog.lose(lambda: world.others.delete_tag("new"))
    world.ours.create_tag("new", world.first)
    world.check()
    with pytest.raises(NotFound):
        world.others.lookup_tag("new")


# -- making and removing a repository ----------------------------------------------------------------------------------


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_repository_that_was_made_without_an_answer_is_made(meanwhile: bool, tmp_path: Path) -> None:
    storage = MemoryStorage(str(tmp_path))
    catalog = LosingCatalog(StorageCatalog(storage))

    def others() -> None:
        if meanwhile:
            Repository.open(storage).create_tag("theirs", Repository.open(storage).lookup("main"))

    catalog.lose(others)
    repo = Repository.create(storage, catalog=catalog, name="catalog")
    assert catalog.lost == 1
    assert repo.list_tags() == ({"theirs"} if meanwhile else set())
    check_whole(storage)


# -- the same through networks -----------------------------------------------------------------------------------------


def check_lost_commit(ours: Repository, others: Repository, lose: Callable[[Callable[[], Any]], Any]) -> None:
    """A commit whose answer is lost, and on top of which somebody else commits before its writer can look."""
    session = others.writable_session()
    create_array(session, "a", DATA, (8,))
    session.commit("begin")

    def others_commit() -> None:
        theirs = others.writable_session()
        set_chunk(theirs, 1, -2)
        theirs.commit("theirs")

    session = ours.writable_session()
    set_chunk(session, 0, -1)
    lose(others_commit)
    snapshot = session.commit("ours")
    assert messages_of(others)[-2:] == ["ours", "theirs"]
    assert others.lookup_snapshot(snapshot).message == "ours"
    assert read_array(others.readonly_session(), "a")[::8].tolist() == [-1, -2, *FIRST[2:]]


@pytest.mark.parametrize(
    ("kind", "transport"), [("s3", "fsspec"), ("s3", "obstore"), ("gcs", "fsspec"), ("azure", "fsspec"), ("azure", "obstore")]
)
def test_a_commit_on_a_server(
    kind: Kind, transport: Transport, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resend_at_once(monkeypatch)
    with wire(kind, request.getfixturevalue(f"{kind}_endpoint"), transport) as server:
        storages = [server.storage(tmp_path.name, direct=is_direct) for is_direct in (False, True)]
        others = Repository.create(storages[1])
        on_io_loop(storages[0].probe())
        rules: list[Rule] = []

        def lose(then: Callable[[], Any]) -> None:
            async def behave(request: mis.Request, send: mis.Send) -> mis.Outcome:
                await send(request)
                await asyncio.to_thread(then)
                return mis.Broken(is_reset=True)

            def is_swap(request: mis.Request) -> bool:
                return request.method in ("PUT", "POST") and ("catalog.json" in request.target or b"catalog.json" in request.body)

            rules.append(server.server.on(behave, where=is_swap, nth=1))

        check_lost_commit(Repository.open(storages[0]), others, lose)
        assert rules[0].acted == 1
        check_whole(storages[1])


def test_a_commit_in_a_database(postgres_place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resend_at_once(monkeypatch)
    storage = MemoryStorage(str(tmp_path))
    with CutConnections(postgres_place) as proxy:
        ours, theirs = (SQLCatalog(url, catalog=tmp_path.name) for url in (proxy.url, postgres_url(postgres_place)))
        others = Repository.create(storage, catalog=theirs, name="x")
        check_lost_commit(Repository.open(storage, catalog=ours, name="x"), others, lambda then: proxy.cut("COMMIT\0", CARRIED_OUT, then))
        assert proxy.cuts == 1
        check_whole(storage, theirs, "x")
