"""Commits what a transaction held back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from shardstore.engine.actions import SetValue
from shardstore.engine.metadata.documents import Documents, PlannedArray
from shardstore.engine.metadata.hierarchy import ChunkTarget, Hierarchy
from shardstore.engine.options import EngineOptions
from shardstore.engine.values import KeyUpdate, Values
from shardstore.engine.writing.committer import Committer
from shardstore.engine.writing.erasing import Erasing
from shardstore.engine.writing.transaction import Overlay
from shardstore.format.store_keys import metadata_path


@dataclass(eq=False, repr=False)
class OverlayCommit:
    """One commit of one overlay: erasures, documents of arrays that are laid out anew, chunks (one commit a shard), other documents."""

    _overlay: Overlay
    _values: Values
    _documents: Documents
    _hierarchy: Hierarchy
    _erasing: Erasing
    _committer: Committer
    _options: EngineOptions
    documents_first: bool
    _stored: int = field(default=0, init=False)
    _erased: list[str] = field(default_factory=list, init=False)

    async def run(self) -> None:
        """Carry out the commit. Raises the first error, with a note that says what was stored before it."""
        keys = list(self._overlay.held())
        try:
            documents = [key for key in keys if metadata_path(key) is not None]
            planned = await self._plan(documents)  # before anything is changed
            for prefix in self._overlay.erased_prefixes:
                await self._erasing.erase_prefix(prefix)
                self._erased.append(prefix)
            if self.documents_first:
                await self._run_documents_first(keys)
                return
            for array in planned.values():
                await self._documents.check_planned(array)
            await self._write([array for array in planned.values() if array.goes_first])
            last = [array for array in planned.values() if not array.goes_first]
            with self._hierarchy.pending(array.node for array in last):
                await self._commit_values([key for key in keys if metadata_path(key) is None])
            await self._write(last)
            self._committer.forget_created_shards()
            await self._commit_wave([key for key in documents if key not in planned])
        except (Exception, asyncio.CancelledError) as exc:
            if left := await self._committer.rollback_created_shards():
                exc.add_note(
                    "shards of arrays that the transaction was to create may be left, and have to be erased before it is tried again: "
                    + ", ".join(left)
                )
            erased = f"; what lay below {', '.join(map(repr, self._erased))} had been erased" if self._erased else ""
            exc.add_note(
                f"the transaction failed: {self._stored} of {len(keys)} held-back keys were committed (chunks before the metadata of new "
                f"arrays), the rest is discarded{erased}"
            )
            raise

    async def _write(self, arrays: Iterable[PlannedArray]) -> None:
        for array in arrays:
            await self._documents.write_planned(array)
            self._stored += 1

    async def _run_documents_first(self, keys: list[str]) -> None:
        """Write documents first. That is needed if the storage is another engine: it takes a value for a chunk only after its document."""
        are_set = [key for key in keys if metadata_path(key) is not None and self._overlay.get(key) is not None]
        await self._commit_wave(are_set)
        await self._commit_values([key for key in keys if metadata_path(key) is None])
        await self._commit_wave([key for key in keys if metadata_path(key) is not None and key not in set(are_set)])

    async def _plan(self, documents: list[str]) -> dict[str, PlannedArray]:
        """Return the arrays that the transaction creates or changes. A document that would be refused later is refused here."""
        planned: dict[str, PlannedArray] = {}
        for key in documents:
            path, action = metadata_path(key), self._overlay.action(key)
            if path is None or not isinstance(action, SetValue):
                continue  # a condition is looked at when the value is set
            data, erased = bytes(action.data), self._overlay.erased_below(key)
            array = await self._documents.plan_array(path, data, erased_first=erased, own_shards=action.own_shards)
            if array is not None:
                planned[key] = array
            elif b'"consolidated_metadata"' not in data:  # its arrays are there only once this transaction has written them
                await self._documents.check(path, data)
        return planned

    async def _commit_values(self, keys: list[str]) -> None:
        """Commit chunks of one shard together, and no more bytes at once than the memory bound."""
        targets = await self._hierarchy.locate(keys, for_write=True)
        groups: dict[str, list[str]] = {}
        for key, target in zip(keys, targets, strict=True):
            groups.setdefault(target.shard_key if isinstance(target, ChunkTarget) else f"/{key}", []).append(key)
        wave: list[str] = []
        held = 0
        for group in groups.values():
            nbytes = sum(self._overlay.nbytes(key) or 0 for key in group)
            if wave and held + nbytes > self._options.max_memory:
                await self._commit_wave(wave)
                wave, held = [], 0
            wave += group
            held += nbytes
        await self._commit_wave(wave)

    async def _commit_wave(self, keys: list[str]) -> None:
        updates: list[KeyUpdate] = [(key, self._overlay.action(key)) for key in keys]
        errors = await self._values.update_many(updates)
        self._stored += errors.count(None)
        for error in errors:
            if error is not None:
                raise error
