"""Places in which nothing changes while they are open, because nothing can or because the user says so.

Everything seen of an object stays true there: filesystems without versions are not asked again for changes, and metadata documents are
not read again. Nothing is written to such a place, since that would contradict the promise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from shardstore.errors import InvalidInput, ReadOnly
from shardstore.model.capabilities import Capabilities
from shardstore.storage.abilities import BlockingReads, HasIdentity
from shardstore.storage.base import ReadsOnly, Storage
from shardstore.storage.generic.calls import contradicts
from shardstore.storage.generic.storage import GenericStorage
from shardstore.storage.references.storage import ReferenceStorage
from shardstore.storage.wrappers import StorageWrapper

A = TypeVar("A")


def check_static(static: object) -> bool | None:
    """Raise ``InvalidInput`` if the value is not true, false or ``None``, which leaves it to the kind of storage."""
    if static is None or isinstance(static, bool):
        return static
    raise InvalidInput(f"static={static!r} is neither True nor False: it says whether nothing changes while the place is open")


def as_said(static: bool | None, storage: Storage) -> Storage:
    """Return ``storage`` with the user's word that nothing changes in it, or that something may; ``None``: the user says neither."""
    if static is None:
        return storage
    if isinstance(storage, GenericStorage | ReferenceStorage):
        return storage.with_static(static)
    if not static or storage.capabilities.static:
        return storage
    return StaticStorage(storage)


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
