"""A snapshot of a versioned store, as a target that ``open_storage`` opens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from shardstore.errors import InvalidInput
from shardstore.opening.transports import Transport
from shardstore.storage.base import Storage

POINTER_KEY = "catalog.json"
"""The object next to the files of a versioned store that says which state is the current one."""
MOST_POINTER_NBYTES = 1 << 20

WHY_READ_ONLY = "it shows a snapshot, which never changes"
HOW_TO_CHANGE = "Write to what Repository.transaction(branch, message=…) gives, or to the store of a Repository.writable_session(branch)"


@dataclass(frozen=True, slots=True)
class SnapshotName:
    """A target cut at an ``@``."""

    target: Any = field(repr=False)  # with user and password
    """The text before the ``@``, as ``open_storage`` takes it."""
    rest: str
    """The text behind it: the name of a branch or tag, or the id of a snapshot, and a path. All of them may hold ``/``."""
    depth: int
    """The number of segments of the path before the one that holds the ``@``."""
    storage_options: dict[str, Any] | None = field(repr=False)
    transport: Transport


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a name stood for once: a branch may point elsewhere by now, or be gone."""

    ref: str
    snapshot_id: str

    @classmethod
    def parse(cls, text: str) -> Pinned:
        """Return what ``str`` has made a text of. Raises ``InvalidInput``."""
        ref, at, snapshot_id = text.rpartition("@")
        if not (ref and at and snapshot_id):
            raise InvalidInput(f"snapshot={text!r} is not of the form 'name@id': the branch or tag in the URL, and the id of a snapshot")
        return cls(ref, snapshot_id)

    def __str__(self) -> str:
        return f"{self.ref}@{self.snapshot_id}"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class SnapshotPlace(ABC):
    """One snapshot of a versioned store, or what lies below a path in it. It is opened without requests, so in a forked child too.

    It can be pickled. The copy shows the same snapshot, wherever a branch points by then.
    """

    name: SnapshotName
    pinned: Pinned
    """The name in the target, and the snapshot that it stands for."""
    path: str
    """The path in the snapshot that follows in the target; ``""`` if none does."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL of the snapshot by its name in the target, without credentials."""

    @property
    @abstractmethod
    def described(self) -> str:
        """The snapshot in words: its id, time and message."""

    @property
    @abstractmethod
    def depth(self) -> int:
        """The number of segments, of the path in the target, which name the snapshot."""

    @abstractmethod
    def below(self, path: str) -> SnapshotPlace:
        """Return what lies below a path in the snapshot, with that as its root; ``""`` for the whole."""

    @abstractmethod
    def open(self) -> Storage:
        """Return a storage, to be read only, whose root is that of the snapshot, or the path that ``below`` was asked for."""

    @abstractmethod
    def new_hierarchy(self, pack: Any, max_memory: int) -> NewHierarchy:
        """Return a hierarchy to be written, which takes the place of what is at the path.

        Args:
            pack: a ``ShardingPolicy``: how many chunks go into one chunk file.
            max_memory: bytes of chunks that are held.

        Raises:
            ReadOnly: the name is not that of a branch.
        """


class NewHierarchy(ABC):
    """A hierarchy that is written apart from a branch of a versioned store. A commit makes it part of the branch as a whole."""

    storage: Storage
    """What it is written into: empty, and without any other node than its own. Documents of arrays go before their chunks."""
    files: Storage
    """The storage of the files of the versioned store."""
    takes_place_of: str | None
    """What is at its path in the branch, in words; ``None`` if that is nothing, or a group without nodes and attributes."""

    @abstractmethod
    async def commit(self, message: str) -> str:
        """Make it part of the branch, in place of what is at its path; return the id of the snapshot.

        Raises:
            ConflictError: another writer has changed what is at the path. Nothing is committed.
            InvalidInput: a node above the path is an array.
        """
