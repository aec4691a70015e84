"""The model of latency over local files, as AWS presents an archive: it tells when it stored each object,
and cannot look at another one in the same step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from shardstore.model.capabilities import Capabilities
from shardstore.storage.base import Found, Read, ReadOutcome, ServerTimes
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.latency import LatencyStorage

_ONE_DAY = 24 * 3600.0


class AgingStore(LatencyStorage):
    """Requests to the files below ``root`` that each take ``seconds``, before they are carried out."""

    def __init__(self, root: Path, seconds: float) -> None:
        super().__init__(LocalStorage(root, fsync=False), seconds)
        self._root = root

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, guarded_reads=False)

    async def probe(self) -> Capabilities:
        return self.capabilities

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        await self._requests([0] * sum(max(1, len(read.ranges)) for read in reads))
        asked = time.time()
        return [self._timed(read, outcome, asked) for read, outcome in zip(reads, await self.inner.read(reads), strict=True)]

    def _timed(self, read: Read, outcome: ReadOutcome, asked: float) -> ReadOutcome:
        if not isinstance(outcome, Found):
            return outcome
        return replace(outcome, times=ServerTimes(os.stat(self._root / read.key).st_mtime, asked))


def let_age(root: Path) -> None:
    """Make all that was stored below ``root`` a day old, as what one comes to read mostly is."""
    then = time.time() - _ONE_DAY
    for directory, _, names in os.walk(root):
        for name in names:
            os.utime(Path(directory, name), (then, then))
