"""A catalog in a database: any that SQLAlchemy speaks to; tested with SQLite and PostgreSQL.

::

    icechunk_stores(catalog, name, location, previous_location, generation, store_id, updated_ms)      key: catalog, name

A pointer is created by INSERT, and swapped by an UPDATE of the row that still has the location that was seen: of several at once, one
changes a row. If the answer to the end of a transaction gets lost, the statement is sent again: it waits for the row until that transaction
has ended, and then changes the row, or finds what the transaction has left.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from shardstore.errors import InvalidInput, StorageError, WriteOutcomeUnknown
from shardstore.extras import how_to_install
from shardstore.model.redaction import redacted
from shardstore.snapshots.catalog import Pointer, check_store_name, is_gone, moved
from shardstore.storage.requests import lost_answers

if TYPE_CHECKING:  # an extra
    import sqlalchemy as sa

T = TypeVar("T")

_BUSY_SECONDS = 60.0
"""The longest wait for a transaction of another client."""

_ASKED = 4
"""Tries of a statement, if the answer to the end of its transaction gets lost each time."""


class _AnswerLost(StorageError):
    """The answer to the end of a transaction did not come."""


class SQLCatalog:
    """Pointers as rows of a table, which is made for the first store.

    ``url`` is SQLAlchemy's: ``sqlite:///catalog.db``, ``postgresql+psycopg://user@host/database``. ``catalog`` keeps apart what several
    groups have in one table. Raises ``InvalidInput`` if SQLAlchemy cannot read the URL, or is not installed.
    """

    def __init__(self, url: str, *, table: str = "icechunk_stores", catalog: str = "default") -> None:
        try:
            import sqlalchemy as sa  # an extra
        except ImportError as exc:
            raise InvalidInput(f"a catalog in a database needs SQLAlchemy: {how_to_install('sql')}") from exc
        self.busy_seconds = _BUSY_SECONDS
        """The longest wait for another client's transaction on the same row."""
        try:
            self._url = sa.make_url(url)
        except sa.exc.ArgumentError as exc:
            raise InvalidInput(
                f"{redacted(url)!r} is no URL of a database, such as postgresql+psycopg://user@host/database or sqlite:///catalog.db"
            ) from exc
        self._backend = self._url.get_backend_name()
        self._name, self._catalog = table, catalog
        self._engines: dict[int, sa.Engine] = {}  # by process
        self._known: set[int] = set()  # processes that know the table to be there

    def __reduce__(self) -> tuple[Callable[..., SQLCatalog], tuple[str]]:
        return partial(SQLCatalog, table=self._name, catalog=self._catalog), (self._url.render_as_string(hide_password=False),)

    def __repr__(self) -> str:
        return f"SQLCatalog({self.url!r})"

    @property
    def url(self) -> str:
        return self._url.render_as_string(hide_password=True)

    @property
    def _engine(self) -> sa.Engine:
        """The engine of this process: connections do not survive a fork."""
        import sqlalchemy as sa  # an extra
        from sqlalchemy.pool import NullPool

        if (engine := self._engines.get(os.getpid())) is None:
            is_sqlite = self._backend == "sqlite"
            options: dict[str, Any] = {"connect_args": {"timeout": self.busy_seconds}} if is_sqlite else {}
            if self._backend == "postgresql":  # else it would call a lost race a failure, where the database's default is another
                options["isolation_level"] = "READ COMMITTED"
            engine = sa.create_engine(self._url, poolclass=NullPool, **options)
            if is_sqlite:
                sa.event.listen(engine, "connect", _set_up_sqlite)
                sa.event.listen(engine, "begin", _begin_sqlite)
            self._engines[os.getpid()] = engine
        return engine

    @cached_property
    def _table(self) -> sa.Table:
        import sqlalchemy as sa  # an extra

        return sa.Table(
            self._name,
            sa.MetaData(),
            sa.Column("catalog", sa.String(255), primary_key=True),
            sa.Column("name", sa.String(255), primary_key=True),
            sa.Column("location", sa.String(1024), nullable=False),
            sa.Column("previous_location", sa.String(1024)),
            sa.Column("generation", sa.BigInteger, nullable=False),
            sa.Column("store_id", sa.String(255), nullable=False),
            sa.Column("updated_ms", sa.BigInteger, nullable=False),
        )

    async def get(self, name: str) -> Pointer | None:
        check_store_name(name)
        return await self._do(lambda connection: self._found(connection, name), None)

    async def check_able(self) -> None:
        """Do nothing: every database can swap a pointer."""

    async def swap(self, name: str, before: Pointer | None, after: Pointer) -> Pointer:
        check_store_name(name)
        await self._change(
            name,
            before,
            lambda connection: self._swapped(connection, name, before, after),
            lambda now, _: now == after,
            makes=before is None,
        )
        return after

    async def delete(self, name: str, before: Pointer) -> None:
        table = self._table
        where = (table.c.catalog == self._catalog) & (table.c.name == check_store_name(name)) & (table.c.location == before.location)
        await self._change(
            name,
            before,
            lambda connection: connection.execute(table.delete().where(where)).rowcount == 1,
            lambda now, is_lost: is_lost and is_gone(now, before),
        )

    async def list(self) -> AsyncIterator[str]:
        table = self._table
        query = table.select().with_only_columns(table.c.name).where(table.c.catalog == self._catalog).order_by(table.c.name)
        nothing: Sequence[str] = ()
        for name in await self._do(lambda connection: [*connection.execute(query).scalars()], nothing):
            yield name

    # -- statements ----------------------------------------------------------------------------------------------------

    def _found(self, connection: sa.Connection, name: str) -> Pointer | None:
        table = self._table
        row = connection.execute(table.select().where((table.c.catalog == self._catalog) & (table.c.name == name))).one_or_none()
        return None if row is None else Pointer(row.location, row.generation, row.store_id)

    def _swapped(self, connection: sa.Connection, name: str, before: Pointer | None, after: Pointer) -> bool:
        import sqlalchemy as sa  # an extra

        table = self._table
        values = {
            "location": after.location,
            "previous_location": None if before is None else before.location,
            "generation": after.generation,
            "store_id": after.store_id,
            "updated_ms": time.time_ns() // 1_000_000,
        }
        if before is None:
            try:
                connection.execute(table.insert().values(catalog=self._catalog, name=name, **values))
            except sa.exc.IntegrityError:
                return False
            return True
        where = (table.c.catalog == self._catalog) & (table.c.name == name) & (table.c.location == before.location)
        return connection.execute(table.update().where(where).values(**values)).rowcount == 1

    def _has_table(self, *, makes: bool) -> bool:
        """Return whether the table is there; made if it ``makes`` one, so that who only reads needs no right to do that."""
        import sqlalchemy as sa  # an extra

        if os.getpid() in self._known:
            return True
        with self._engine.connect() as connection:
            is_there = sa.inspect(connection).has_table(self._name)
        if not is_there and not makes:
            return False
        if not is_there:
            try:
                with self._engine.begin() as connection:
                    self._table.create(connection)
            except sa.exc.DBAPIError:  # another process makes it at the same time
                with self._engine.connect() as connection:
                    if not sa.inspect(connection).has_table(self._name):
                        raise
        self._known.add(os.getpid())
        return True

    async def _change(
        self,
        name: str,
        before: Pointer | None,
        statement: Callable[[sa.Connection], bool],
        is_done: Callable[[Pointer | None, bool], bool],
        *,
        makes: bool = False,
    ) -> None:
        """Carry out a statement that changes the row of a store, as ``_do`` does; and again, where the answer to the end of the transaction
        was lost.

        The statement waits in the database until that transaction has ended, since both change the same row: then it changes the row, or
        finds that it was changed: ``is_done`` says so, by the pointer that is there and whether an answer was lost. If it is not answered
        either, the outcome is unknown. Raises as ``Catalog.swap``, and ``StorageError`` if the database fails, and nothing was changed.
        """
        lost: StorageError | None = None
        is_unknown = True  # every answer was lost
        for asked in range(_ASKED):
            if asked:
                await lost_answers.wait_to_resend(asked)
            try:
                if await self._do(statement, False, makes=makes, is_bounded=lost is not None):
                    return
                is_unknown = False
                break
            except _AnswerLost as exc:
                lost = exc
            except StorageError as exc:
                if lost is None:
                    raise
                lost = exc
        try:
            now = await self.get(name)
        except StorageError as exc:
            if lost is None:
                raise
            raise WriteOutcomeUnknown(f"the answer of {self.url} was lost, and it cannot be asked what it has: {exc}. {lost}") from exc
        if is_done(now, lost is not None):
            return
        if now == before and is_unknown:
            raise WriteOutcomeUnknown(f"{lost}. It may yet be carried out: look at the store again, or repeat the call")
        raise moved(name, self.url, now) from lost

    async def _do(self, statement: Callable[[sa.Connection], T], without: T, *, makes: bool = False, is_bounded: bool = False) -> T:
        """Carry out a statement in a transaction of its own, in a thread. Where there is no table, one is made, or ``without`` returned.

        ``is_bounded``: it does not wait for ever for a transaction whose client has vanished.

        Raises:
            StorageError: the database fails, and nothing was changed; ``_AnswerLost`` if the transaction may have been carried out.
        """
        import sqlalchemy as sa  # an extra

        def carry_out() -> T:
            kind: type[StorageError] = StorageError
            try:
                if not self._has_table(makes=makes):
                    return without
                with self._engine.connect() as connection:
                    transaction = connection.begin()
                    if is_bounded and self._backend == "postgresql":
                        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {int(self.busy_seconds * 1000)}")
                    outcome = statement(connection)
                    kind = _AnswerLost
                    transaction.commit()
                    return outcome
            except sa.exc.SQLAlchemyError as exc:
                raise kind(f"the catalog {self.url}: {redacted(str(exc)).partition(chr(10))[0]}") from exc

        return await asyncio.to_thread(carry_out)


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver begins no transactions by itself
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def _begin_sqlite(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
