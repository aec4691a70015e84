"""Catalogs: of those who swap a pointer at once, one succeeds; whatever holds the pointers (D1)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pytest

from shardstore.errors import Corruption, InvalidInput, StorageError, Unsupported
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import UNCONDITIONAL
from shardstore.snapshots.catalog import Catalog, Pointer, PointerMoved, StorageCatalog
from shardstore.snapshots.sql_catalog import SQLCatalog
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.catalog_suite import ROUNDS, CatalogSuite, attempt, pointer
from shardstore.testing.storage_suite import on_io_loop
from shardstore.testing.trace import TraceStorage
from tests.harness.postgres import postgres_url

T = TypeVar("T")

QUICK_ROUNDS = 6
"""Of races in every run; those of ``make test-all`` are longer."""


class WithoutConditions(TraceStorage):
    """A storage that honours no conditions."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def probe(self) -> Capabilities:
        return self.capabilities


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return on_io_loop(coroutine)


async def names(catalog: Catalog) -> list[str]:
    return sorted([name async for name in catalog.list()])


class TestCatalogs(CatalogSuite):
    @pytest.fixture(params=[QUICK_ROUNDS, pytest.param(ROUNDS, marks=[pytest.mark.night, pytest.mark.timeout(1800)])])
    def rounds(self, request: pytest.FixtureRequest) -> int:
        return int(request.param)


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
    catalog = StorageCatalog(storage)
    for call in (catalog.check_able(), catalog.swap("a", None, pointer(0)), catalog.delete("a", pointer(0))):
        with pytest.raises(Unsupported, match="SQLCatalog"):
            run(call)
    assert run(names(catalog)) == []


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
def test_a_database_whose_transactions_are_isolated_otherwise(isolation: str, postgres_place: Path, tmp_path: Path) -> None:
    """The losers of a race are told that somebody was first, and not that the database failed."""
    setting = quote(f"-c default_transaction_isolation={isolation}".replace("e r", "e\\ r"))
    catalog = SQLCatalog(postgres_url(postgres_place, f"options={setting}"), catalog=tmp_path.name)

    async def race(now: Pointer | None, number: int) -> list[bool]:
        return await asyncio.gather(*(attempt(catalog.swap("a", now, pointer(number, str(who)))) for who in range(8)))

    now: Pointer | None = None
    for number in range(4):
        outcomes = run(race(now, number))
        assert sum(outcomes) == 1
        now = run(catalog.get("a"))
        assert now == pointer(number, str(outcomes.index(True)))


def test_who_only_looks_makes_no_table(tmp_path: Path) -> None:
    sa = pytest.importorskip("sqlalchemy")
    catalog = SQLCatalog(f"sqlite:///{tmp_path}/catalog.db")
    assert run(catalog.get("a")) is None
    assert run(names(catalog)) == []
    for call in (catalog.swap("a", pointer(0), pointer(1)), catalog.delete("a", pointer(0))):
        with pytest.raises(PointerMoved, match="it is gone"):
            run(call)
    engine = sa.create_engine(f"sqlite:///{tmp_path}/catalog.db", poolclass=sa.pool.NullPool)
    assert sa.inspect(engine).get_table_names() == []
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
