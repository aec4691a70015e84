"""Storages that travel with tasks: opened once in each process, however many tasks bring them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass

from shardstore.storage.base import Storage

_opened: dict[bytes, Storage] = {}


def _forget() -> None:
    _opened.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@dataclass(frozen=True)
class Place:
    """A storage that can be pickled again and again: whoever unpickles it in one process has the same storage, with its threads."""

    storage: Storage

    def __reduce__(self) -> tuple[Callable[[bytes], Place], tuple[bytes]]:
        return _unpickled, (pickle.dumps(self.storage),)


def _unpickled(data: bytes) -> Place:
    storage = _opened.get(data)
    if storage is None:
        storage = _opened[data] = pickle.loads(data)
    return Place(storage)
