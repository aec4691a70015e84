"""Leftovers of writers that died in the middle: nothing that a reader sees, but space, and on some servers money.

A storage that can tell has a coroutine method ``leftovers(prefix)``, which is no part of the protocol: kinds without it have none, or
no way to ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shardstore.storage.base import Storage
from shardstore.storage.wrappers.base import innermost


@dataclass(frozen=True, slots=True)
class Leftover:
    """One of them: ``key`` is where it lies, or, of an upload, the object that it would have become."""

    key: str
    kind: Literal["temporary", "lock", "tail", "upload"]
    what: str


async def leftovers_of(storage: Storage, prefix: str) -> Sequence[Leftover] | None:
    """Return what is left below ``prefix`` (``""``, or ending with ``/``) of the storage inside all wrappers; ``None`` where that cannot
    be asked.

    Raises:
        StorageError: the request failed, or was denied.
    """
    ask = getattr(innermost(storage), "leftovers", None)
    if ask is None:
        return None
    found: Sequence[Leftover] = await ask(prefix)
    return found
