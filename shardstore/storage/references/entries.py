"""What a set of references has, where it is, and where it leads to; ``opening.references`` makes the targets."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shardstore.format.references.table import Reference
from shardstore.storage.base import Storage


class PinnedReference(NamedTuple):
    """A reference, with the token of the version of the object that it was made of, if that is known."""

    reference: Reference
    token: str | None


Entry = bytes | PinnedReference
"""A value that is in the set itself, or a reference."""


@dataclass(frozen=True, slots=True)
class ReferenceTarget:
    """One object that a reference leads to."""

    storage: Storage
    key: str
    gap_bytes: int
    """Ranges at most this far apart share a request."""


class Targets(Protocol):
    """The storages that the references of one set lead to; each is opened when it is first needed."""

    def target(self, url: str | None) -> ReferenceTarget:
        """Return the object that the URL of a reference means; an error does not name it.

        Raises:
            InvalidInput: the URL means nothing, or the set may not lead there.
            ShardStoreError: the storage cannot be opened.
        """
        ...

    def absolute(self, url: str) -> str:
        """Return the URL that means the same object in a set at another place. Raises ``InvalidInput`` if there is none."""
        ...

    def settle(self, *, is_directory: bool) -> None:
        """Say whether the set is a directory, as sets in Parquet are: then its relative URLs are relative to that."""
        ...

    def allow(self, urls: Sequence[str]) -> None:
        """Let the set lead to where these URLs lead too, if they are those of servers."""
        ...


class SetPlace:
    """The place of a set: the object, or the directory, ``name`` in the storage that ``open_`` opens. ``url`` is for people."""

    def __init__(self, open_: Callable[[], Storage], name: str, url: str) -> None:
        self._open = open_
        self.name = name
        self.url = url
        self._opened = open_()
        self._pid = os.getpid()

    @property
    def storage(self) -> Storage:
        """The storage, opened in this process: connections do not survive a fork."""
        if self._pid != os.getpid():
            self._opened, self._pid = self._open(), os.getpid()
        return self._opened

    def key(self, name: str) -> str:
        """Return the key of something in the directory."""
        return f"{self.name}/{name}" if self.name else name
