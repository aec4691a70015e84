"""A store that is made with a whole history: it is visible when all of it is stored.

::

    1  of each snapshot, parents first: chunk files, manifest of the differences, attributes, structure      nothing refers to them yet
    2  the state, with all snapshots, branches and tags, and the catalog's pointer                          the store is there

A process that dies before 2 leaves files that nothing refers to, and no store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardstore.errors import ShardStoreError, WriteOutcomeUnknown
from shardstore.format.snapshots.file_names import CHUNKS, encode_id
from shardstore.format.snapshots.state import Ref, Snapshot, check_said
from shardstore.format.snapshots.structure import Structure
from shardstore.plan.policy import ShardingPolicy
from shardstore.snapshots.commit import plan_commit, properties, store_all, store_commit
from shardstore.snapshots.session import MAX_MEMORY, SessionCore
from shardstore.snapshots.versioned_store import CurrentState, History, VersionedStore

_NONE = Snapshot("", None, 0, "none")
"""Stands for the parent of a snapshot that has none."""


class NewHistory:
    """The history of a store to be, for which ``check_new`` has been called. Runs on the IO loop."""

    def __init__(self, store: VersionedStore, *, pack: ShardingPolicy = "auto", max_memory: int = MAX_MEMORY) -> None:
        self.snapshots: dict[str, Snapshot] = {}
        """By id, those that are stored."""
        self._store = store
        self._pack = pack
        self._max_memory = max_memory
        self._session: SessionCore | None = None
        self._keys: set[str] = set()
        """All files that were stored, or may have been."""
        self._may_be_there = False

    async def first(self) -> Snapshot:
        """Store the snapshot with which every store begins that is not imported, of nothing but the root group (D11)."""
        history = self._store.first()
        self._keys.update(file.key for file in history.files)
        await store_all(self._store.files, history.files)
        self.snapshots |= history.snapshots
        (made,) = history.snapshots.values()
        return made

    async def session(self, parent: str | None) -> SessionCore:
        """Return a session on a snapshot; on nothing, if ``parent`` is ``None``. It ends with ``add``."""
        at = _NONE if parent is None else self.snapshots[parent]
        structure = Structure({}) if parent is None else await self._store.files.structure(at.structure)
        self._session = SessionCore(self._store.files, at, structure, "", pack=self._pack, max_memory=self._max_memory)
        return self._session

    async def add(self, id_: str, timestamp_ms: int, message: str, metadata: Mapping[str, Any] | None) -> Snapshot:
        """Store what the session holds as a snapshot. Its time is later than that of its parent, whatever ``timestamp_ms`` says (D7)."""
        session, store = self._session, self._store
        assert session is not None
        check_said(message, metadata)
        parent = self.snapshots.get(session.snapshot.id)
        async with session.frozen("it is being stored"):
            planned = await plan_commit(session, draft=store.draft)
            self._keys.update(planned.keys, (CHUNKS + encode_id(file.id) for file in planned.chunks), self._chunk_keys(session))
            await store_commit(session, planned)
        store.files.keep_structure(planned.name, planned.structure)
        when = timestamp_ms if parent is None else max(timestamp_ms, parent.timestamp_ms + 1)
        said = properties(message, metadata, store.writer)
        made = Snapshot(id_, None if parent is None else parent.id, when, planned.name, said)
        self.snapshots[id_] = made
        session.committed(made)
        self._session = None
        return made

    async def publish(self, refs: Mapping[str, Ref]) -> CurrentState:
        """Make the store. Raises as ``VersionedStore.create``."""
        self._may_be_there = True
        try:
            return await self._store.create(History(self.snapshots, refs))
        except WriteOutcomeUnknown:
            raise
        except ShardStoreError:
            self._may_be_there = False
            raise

    async def give_up(self) -> None:
        """Remove the files that were stored, as far as that can be done; nothing, if the store may be there."""
        if self._may_be_there:
            return
        if self._session is not None:
            self._keys.update(self._chunk_keys(self._session))
        await self._store.remove_unused(sorted(self._keys))

    @staticmethod
    def _chunk_keys(session: SessionCore) -> set[str]:
        return {CHUNKS + encode_id(file) for file in session.stored_files()}
