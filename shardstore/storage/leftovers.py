"""Leftovers of writers that died. Readers do not see them, but they take space, and on some servers cost money."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that was left: ``key`` is its place, or, for an upload, the object that it would have become."""

    key: str
    kind: Literal["temporary", "lock", "tail", "upload"]
    what: str


class ListsLeftovers(ABC):
    """A storage that can list them. Kinds without this ability leave nothing behind, or have no way to ask."""

    @abstractmethod
    async def leftovers(self, prefix: str) -> Sequence[Leftover]:
        """Return what is left below ``prefix``, which is ``""`` or ends with ``/``.

        Raises:
            StorageError: the request failed, or was denied.
        """
