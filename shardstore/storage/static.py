"""Places in which nothing changes while they are open, because nothing can or because the user says so.

Everything seen of an object stays true there: filesystems without versions are not asked again for changes, and metadata documents are
not read again. Nothing is written to such a place, since that would contradict the promise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from shardstore.errors import ReadOnly
from shardstore.model.capabilities import Capabilities
from shardstore.storage.abilities import BlockingReads, HasIdentity
from shardstore.storage.base import ReadsOnly, Storage
from shardstore.storage.generic.calls import contradicts
from shardstore.storage.wrappers import StorageWrapper

A = TypeVar("A")


class StaticStorage(ReadsOnly, StorageWrapper, HasIdentity):
    """The same place as ``inner``, where nothing changes. It may be passed by where local files are read in the calling thread."""

    def __reduce__(self) -> tuple[type[StaticStorage], tuple[Storage]]:
        return type(self), (self.inner,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticStorage) and other.inner == self.inner

    def __hash__(self) -> int:
        return hash((StaticStorage, self.inner))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    @property
    def identity(self) -> str:
        known = self.inner.ability(HasIdentity)
        return f"static {self.inner.url if known is None else known.identity}"

    def ability(self, kind: type[A]) -> A | None:
        return self.inner.ability(kind) if kind is BlockingReads else super().ability(kind)

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, static=True)

    async def probe(self) -> Capabilities:
        return self.capabilities  # there is nothing to write

    def refusal(self, action: str, key: str) -> ReadOnly:
        return contradicts(action, key, self.url)
