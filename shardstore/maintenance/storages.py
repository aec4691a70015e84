"""Storages as tasks use them: opened once in each process, however many tasks bring them, and read so that failed requests raise."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from shardstore.storage.base import Storage

_MOST_OPEN = 64


@lru_cache(maxsize=_MOST_OPEN)
def _opened(data: bytes) -> Storage:
    storage: Storage = pickle.loads(data)
    return storage


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_opened.cache_clear)


@dataclass(frozen=True)
class SharedStorage:
    """A storage that can be pickled again and again: all copies unpickled in one process share one storage, with its threads."""

    storage: Storage

    def __reduce__(self) -> tuple[Callable[[bytes], SharedStorage], tuple[bytes]]:
        return _unpickled, (pickle.dumps(self.storage),)


def _unpickled(data: bytes) -> SharedStorage:
    return SharedStorage(_opened(data))
