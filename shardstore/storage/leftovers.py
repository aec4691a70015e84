"""Leftovers of writers that died. Readers do not see them, but they take space, and on some servers cost money.

A storage that can list it has a coroutine method ``leftovers(prefix)``, which is no part of the protocol: kinds without it leave
nothing behind, or have no way to ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shardstore.storage.base import Storage
from shardstore.storage.wrappers import innermost


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that was left: ``key`` is its place, or, for an upload, the object that it would have become."""

    key: str
    kind: Literal["temporary", "lock", "tail", "upload"]
    what: str


async def leftovers_of(storage: Storage, prefix: str) -> Sequence[Leftover] | None:
    """Return what is left below ``prefix`` (``""``, or ending with ``/``) of the storage inside all wrappers; ``None`` if it cannot be
    asked.

    Raises:
        StorageError: the request failed, or was denied.
    """
    ask = getattr(innermost(storage), "leftovers", None)
    if ask is None:
        return None
    found: Sequence[Leftover] = await ask(prefix)
    return found
