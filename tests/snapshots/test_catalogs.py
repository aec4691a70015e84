"""Catalogs: of those who swap a pointer at once, one succeeds; whatever holds the pointers."""

from __future__ import annotations

import asyncio
import os
import pickle
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from shardstore.errors import Corruption, InvalidInput, StorageError, Unsupported, WriteOutcomeUnknown
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import UNCONDITIONAL
from shardstore.snapshots.catalog import Catalog, Pointer, PointerMoved, StorageCatalog, check_store_name
from shardstore.snapshots.sql_catalog import SQLCatalog
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.opening.open import open_storage
from shardstore.testing.storage_suite import on_io_loop
from shardstore.testing.trace import TraceStorage

T = TypeVar("T")
SWAPPERS, ROUNDS = 32, 40


class WithoutConditions(TraceStorage):
    """A storage that honours no conditions."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def probe(self) -> Capabilities:
        return self.capabilities


def pointer(number: int, of: str = "x") -> Pointer:
    return Pointer(f"t/{number:020d}-{of}.json", number, "id")


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a database of PostgreSQL that is started here."""
    pytest.importorskip("psycopg")
    programs = [
        Path(found).parent for found in (shutil.which("pg_ctl"), *map(str, Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))) if found
    ]
    if not programs:
        pytest.skip("PostgreSQL is not installed")
    user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
    if user is not None and user not in {entry.pw_name for entry in pwd.getpwall()}:
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
    place = Path(tempfile.mkdtemp(prefix="shardstore-postgres-"))
    place.chmod(0o777)

    def call(name: str, *arguments: str) -> None:
        command = [str(programs[0] / name), "-D", str(place / "data"), *arguments]
        subprocess.run(command, check=True, user=user, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    call("initdb", "-A", "trust", "-U", "me", "--no-sync")
    try:
        call("pg_ctl", "-w", "-o", f"-k {place} -c listen_addresses='' -c fsync=off", "start")
        yield f"postgresql+psycopg://me@/postgres?host={place}"
        call("pg_ctl", "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(params=["memory", "local", "s3", "gcs", "sqlite", "postgresql"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Catalog:
    match request.param:
        case "memory":
            return StorageCatalog(MemoryStorage(str(tmp_path)))
        case "local":
            return StorageCatalog(LocalStorage(tmp_path, fsync=False))
        case "sqlite":
            pytest.importorskip("sqlalchemy")
            return SQLCatalog(f"sqlite:///{tmp_path}/catalog.db")
        case "postgresql":
            return SQLCatalog(request.getfixturevalue("postgres"), catalog=tmp_path.name)
        case kind:
            url, options = request.getfixturevalue(f"{kind}_url")
            return StorageCatalog(open_storage(url, options))


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return on_io_loop(coroutine)


async def names(catalog: Catalog) -> list[str]:
    return sorted([name async for name in catalog.list()])


def test_a_pointer_is_made_once_swapped_and_removed(catalog: Catalog) -> None:
    assert run(catalog.get("a")) is None
    assert run(names(catalog)) == []
    first = run(catalog.swap("a", None, pointer(0)))
    assert run(catalog.get("a")) == first == pointer(0)
    with pytest.raises(PointerMoved, match="generation 0") as caught:
        run(catalog.swap("a", None, pointer(0, "y")))
    assert caught.value.now == pointer(0)
    second = run(catalog.swap("a", first, pointer(1)))
    with pytest.raises(PointerMoved, match="generation 1"):
        run(catalog.swap("a", first, pointer(1, "y")))
    third = run(catalog.swap("a", pointer(1), pointer(2)))  # without what the catalog knows of it
    assert second == pointer(1)
    run(catalog.swap("b", None, pointer(7)))
    assert run(names(catalog)) == ["a", "b"]
    with pytest.raises(PointerMoved):
        run(catalog.delete("a", pointer(1)))
    run(catalog.delete("a", third))
    assert run(catalog.get("a")) is None
    assert run(names(catalog)) == ["b"]
    with pytest.raises(PointerMoved, match="it is gone"):
        run(catalog.swap("a", third, pointer(3)))
    with pytest.raises(PointerMoved, match="it is gone"):
        run(catalog.delete("a", third))


def test_of_those_who_swap_at_once_one_succeeds(catalog: Catalog) -> None:
    async def swap(before: Pointer | None, number: int, who: int) -> Pointer | None:
        try:
            return await catalog.swap("a", before, pointer(number, str(who)))
        except PointerMoved:
            return None

    async def race() -> None:
        now: Pointer | None = None
        for number in range(ROUNDS if "memory" in repr(catalog).lower() else 4):
            outcomes = await asyncio.gather(*(swap(now, number, who) for who in range(SWAPPERS)))
            (now,) = [one for one in outcomes if one is not None]
            assert await catalog.get("a") == now

    run(race())


def test_a_catalog_is_pickled(catalog: Catalog) -> None:
    run(catalog.swap("a", None, pointer(0)))
    assert run(pickle.loads(pickle.dumps(catalog)).get("a")) == pointer(0)


@pytest.mark.parametrize("name", ["", "a/b", "a@b", ".a", " a", "a\\b"])
def test_names_that_cannot_be(name: str, catalog: Catalog) -> None:
    for call in (catalog.get(name), catalog.swap(name, None, pointer(0)), catalog.delete(name, pointer(0))):
        with pytest.raises(InvalidInput, match="name of a store"):
            run(call)
    with pytest.raises(InvalidInput):
        check_store_name(name)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"location": "", "generation": 1, "id": "x"}', b'{"location": "t", "generation": "1", "id": "x"}']
)
def test_what_is_no_pointer_is_told(data: bytes, tmp_path: Path) -> None:
    storage = MemoryStorage(str(tmp_path))
    catalog = StorageCatalog(storage)
    run(catalog.swap("a", None, pointer(0)))
    run(storage.write("a.json", [data], len(data), UNCONDITIONAL))
    with pytest.raises(Corruption, match=r"'a\.json' at .* is no pointer"):
        run(catalog.get("a"))
    with pytest.raises(Corruption):
        run(catalog.swap("a", pointer(0), pointer(1)))


def test_a_storage_without_conditions_is_refused(tmp_path: Path) -> None:
    storage = WithoutConditions(MemoryStorage(str(tmp_path)))
    for call in (StorageCatalog(storage).swap("a", None, pointer(0)), StorageCatalog(storage).delete("a", pointer(0))):
        with pytest.raises(Unsupported, match="SQLCatalog"):
            run(call)
    assert run(names(StorageCatalog(storage))) == []


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_a_lost_end_of_a_transaction_is_settled_by_looking(is_carried_out: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sa = pytest.importorskip("sqlalchemy")
    catalog = SQLCatalog(f"sqlite:///{tmp_path}/catalog.db")
    first = run(catalog.swap("a", None, pointer(0)))
    commit = sa.engine.RootTransaction.commit

    def lost(self: Any) -> None:
        if is_carried_out:
            commit(self)
        monkeypatch.setattr(sa.engine.RootTransaction, "commit", commit)
        raise sa.exc.OperationalError("COMMIT", {}, Exception("the connection was closed"))

    monkeypatch.setattr(sa.engine.RootTransaction, "commit", lost)
    if is_carried_out:
        assert run(catalog.swap("a", first, pointer(1))) == pointer(1)
    else:
        with pytest.raises(WriteOutcomeUnknown, match="may yet be carried out"):
            run(catalog.swap("a", first, pointer(1)))
    assert run(catalog.get("a")) == pointer(1 if is_carried_out else 0)


def test_who_only_looks_makes_no_table(tmp_path: Path) -> None:
    sa = pytest.importorskip("sqlalchemy")
    catalog = SQLCatalog(f"sqlite:///{tmp_path}/catalog.db")
    assert run(catalog.get("a")) is None
    assert run(names(catalog)) == []
    for call in (catalog.swap("a", pointer(0), pointer(1)), catalog.delete("a", pointer(0))):
        with pytest.raises(PointerMoved, match="it is gone"):
            run(call)
    assert sa.inspect(sa.create_engine(f"sqlite:///{tmp_path}/catalog.db")).get_table_names() == []
    run(catalog.swap("a", None, pointer(0)))
    assert run(names(catalog)) == ["a"]


def test_a_database_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no URL of a database"):
        SQLCatalog("nonsense")
    catalog = SQLCatalog(f"sqlite:///{tmp_path}/missing/catalog.db")
    with pytest.raises(StorageError, match="unable to open"):
        run(catalog.get("a"))
    with pytest.raises(StorageError, match="unable to open"):
        run(catalog.swap("a", None, pointer(0)))
    assert "secret" not in repr(SQLCatalog("postgresql+psycopg://me:secret@host/db"))
