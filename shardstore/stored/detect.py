"""Detects which format of hierarchy is stored at a place, by the first request there.

A hierarchy of the 2022 draft has an entry point, ``zarr.json`` at its root, which no final Zarr v3 has. If it is found, everything
goes through ``DraftStorage`` from then on. Anything else is shown as it is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from shardstore.errors import AccessDenied
from shardstore.format.draft2022.keys import ENTRY_POINT_KEY, document_path
from shardstore.format.draft2022.metadata import is_entry_point
from shardstore.format.json_text import parse_object
from shardstore.storage.base import Absent, Failed, Found, Read, ReadOutcome, Storage, document_read
from shardstore.storage.wrappers import SettledStorage
from shardstore.stored.draft2022.storage import DraftStorage

_ROOT = document_read(ENTRY_POINT_KEY)


class DetectedStorage(SettledStorage):
    """``inner``, or, if a draft hierarchy is stored there, that hierarchy with the keys of final Zarr v3.

    To find out costs no request if the first read finds a node of final Zarr v3, or asks for the root's document. Otherwise it costs one
    request. If the first read is of data, both are sent together. With ``draft`` it is the draft's hierarchy, or an error if something
    else is stored; for ``with_stored`` see ``DraftStorage``.
    """

    def __init__(self, inner: Storage, override: Mapping[str, tuple[int, ...]], *, draft: bool = False, with_stored: bool = False) -> None:
        super().__init__(inner)
        self.override = dict(override)
        self._draft = draft
        self._with_stored = with_stored
        self.is_draft = draft
        """True if a draft hierarchy has been found, or asked for."""

    def __reduce__(self) -> tuple[partial[DetectedStorage], tuple[Storage, dict[str, tuple[int, ...]]]]:
        return partial(DetectedStorage, draft=self._draft, with_stored=self._with_stored), (self.inner, self.override)

    def __repr__(self) -> str:
        return f"DetectedStorage({self.inner!r})"

    async def settled(self) -> Storage:
        """Return the storage that everything goes to; ``inner`` for now if it could not be found out.

        Raises:
            InvalidInput, Unsupported: (``draft``) something else is stored here, or a hierarchy that is not understood.
        """
        if self.found is None and self._draft:
            draft = DraftStorage(self.inner, self.override, with_stored=self._with_stored)
            if (problem := await draft.problem()) is not None:
                raise problem
            self.found = draft
        if self.found is None:
            (outcome,) = await self.inner.read([_ROOT])
            self._settle([_ROOT], [outcome])
        return self.found or self.inner

    def _settle(self, reads: Sequence[Read], outcomes: Sequence[ReadOutcome]) -> None:
        """Conclude from reads of ``inner`` what is stored, if they show it."""
        is_v3 = False
        for read, outcome in zip(reads, outcomes, strict=True):
            if document_path(read.key) is None or read.ranges != _ROOT.ranges:
                continue
            if isinstance(outcome, Found) and read.key == ENTRY_POINT_KEY and is_entry_point(parse_object(outcome.buffers[0])):
                self.found = DraftStorage(self.inner, self.override, with_stored=self._with_stored)
                self.is_draft = True
                return
            # S3 without the right to list answers 403 to what does not exist.
            is_refused = isinstance(outcome, Failed) and isinstance(outcome.error, AccessDenied)
            is_v3 = is_v3 or isinstance(outcome, Found) or (read.key == ENTRY_POINT_KEY and (isinstance(outcome, Absent) or is_refused))
        if is_v3:
            self.found = self.inner

    async def first_read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        if self._draft:
            return await (await self.settled()).read(reads)
        is_enough = any(document_path(read.key) is not None and read.ranges == _ROOT.ranges for read in reads)
        asked = reads if is_enough else [*reads, _ROOT]
        outcomes = await self.inner.read(asked)
        self._settle(asked, outcomes)
        storage = await self.settled() if is_enough else self.found or self.inner
        return outcomes[: len(reads)] if storage is self.inner else await storage.read(reads)


def is_draft(storage: Storage) -> bool:
    """Return whether a draft hierarchy is stored, as far as is known."""
    found = storage.ability(DetectedStorage)
    return found is not None and found.is_draft


def restored_arrays(storage: Storage) -> Collection[str]:
    """Return the paths of arrays whose storage transformers were lost, and were given again when the storage was opened.

    More than one may have been lost: then the last one's shards do not hold the chunks of the document's codecs, but shards.
    """
    return storage.override if isinstance(storage, DetectedStorage | DraftStorage) else ()
