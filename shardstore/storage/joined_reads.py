"""Reads that several callers make at the same moment, and that one request can answer."""

from __future__ import annotations

from collections.abc import Sequence

from shardstore.storage.abilities import ReadsOneByOne
from shardstore.storage.base import Read, ReadOutcome, Storage
from shardstore.tasks import Answered, Joined, answered, gather_all

_MOST_JOINED = 32
"""So many reads of one call are worth the time to look for one that is under way."""


class JoinedReads:
    """The reads of one storage. Used on one event loop only.

    Requests are shared where each read is one. Other storages may have a better way to read many at once, or need no longer for a read than
    it takes to share one.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._shares = storage.ability(ReadsOneByOne) is not None
        self._joined: Joined[ReadOutcome] = Joined()

    async def read(self, reads: Sequence[Read], since: Sequence[int | None]) -> list[Answered[ReadOutcome]]:
        """Read as ``Storage.read`` does. An answer may be that of an equal read that is under way, if that began after the moment
        ``since``; ``None``: that is not looked for, as no other caller would ask for the same.
        """
        joined = [i for i, at in enumerate(since) if at is not None]
        if len(joined) > _MOST_JOINED or not self._shares:
            joined = []
        answers: dict[int, Answered[ReadOutcome]] = {}

        async def read_own(numbers: Sequence[int]) -> None:
            outcomes, began, ended = await answered(self._storage.read([reads[i] for i in numbers]))
            answers.update({i: Answered(outcome, began, ended) for i, outcome in zip(numbers, outcomes, strict=True)})

        async def read_joined(i: int) -> None:
            answers[i] = await self._joined.get(reads[i], lambda: self._read_one(reads[i]), since[i] or 0)

        own = [i for i in range(len(reads)) if i not in joined]
        parts = [read_own(own)] if own else []
        parts += [read_joined(i) for i in joined]
        if len(parts) == 1:
            await parts[0]
        else:
            await gather_all(*parts)
        return [answers[i] for i in range(len(reads))]

    async def _read_one(self, read: Read) -> ReadOutcome:
        (outcome,) = await self._storage.read([read])
        return outcome
