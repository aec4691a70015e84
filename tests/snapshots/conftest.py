"""Places that catalogs are kept in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shardstore.opening.open import open_storage
from shardstore.snapshots import Catalog, SQLCatalog, StorageCatalog
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from tests.harness.postgres import NoPostgres, postgres, postgres_url


@pytest.fixture(scope="session")
def postgres_place() -> Iterator[Path]:
    """The directory of the socket of a database of PostgreSQL."""
    pytest.importorskip("psycopg")
    try:
        with postgres() as place:
            yield place
    except NoPostgres as exc:
        pytest.skip(str(exc))


@pytest.fixture(
    params=[
        "memory",
        "local",
        "s3",
        "gcs",
        pytest.param("ceph", marks=pytest.mark.night),
        "sqlite",
        "postgresql",
    ]
)
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Catalog:
    """A catalog without stores, in each place."""
    match request.param:
        case "memory":
            return StorageCatalog(MemoryStorage(str(tmp_path)))
        case "local":
            return StorageCatalog(LocalStorage(tmp_path, fsync=False))
        case "sqlite":
            pytest.importorskip("sqlalchemy")
            return SQLCatalog(f"sqlite:///{tmp_path}/catalog.db")
        case "postgresql":
            return SQLCatalog(postgres_url(request.getfixturevalue("postgres_place")), catalog=tmp_path.name)
        case kind:
            url, options = request.getfixturevalue(f"{kind}_url")
            return StorageCatalog(open_storage(url, options))
