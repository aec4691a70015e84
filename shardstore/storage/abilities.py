"""Optional abilities of storages, as classes: ``storage.ability(VersionedByRange)`` returns what has the methods, or ``None``.

A kind of storage has an ability if it derives from the class. A wrapper has those of the storage inside, except ``DirectAccess``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import ByteRequest, BytesLike
from shardstore.storage.base import Found, Read, ReadOutcome, Storage

__all__ = [
    "BlockingReads",
    "CopiesFrom",
    "DirectAccess",
    "DocumentsFirst",
    "FileTree",
    "HasIdentity",
    "Leftover",
    "ListsLeftovers",
    "NamesLocation",
    "ObstoreCarried",
    "OnFilesystem",
    "PinsRevision",
    "ReadsOneByOne",
    "RestrictsKeys",
    "VersionedByRange",
    "VersionedFile",
    "WritesAsMade",
]


class DirectAccess:
    """An ability by which objects are read or written past a wrapper, and so past its counts, checks and translations.

    A wrapper does not pass it on. One that may be passed by returns that of the storage inside from its own ``ability``.
    """


class BlockingReads(DirectAccess, ABC):
    """A storage that can read in the calling thread, whichever it is."""

    @abstractmethod
    def reads_in_threads(self) -> bool:
        """Return whether that is the best way, which is so for local files. Ask after the first use: that may mount the place."""

    @abstractmethod
    def read_page_cache(self, read: Read) -> Found | None:
        """Return the answer, of exactly the bytes that were asked for; ``None`` if it has to be waited for, or is any other."""

    @abstractmethod
    def read_in_memory(self, read: Read) -> Found | None:
        """Return the answer, of exactly these bytes, if they are in memory; ``None`` if not: then the system fetches them."""

    @abstractmethod
    def read_blocking(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Read as ``Storage.read`` does."""

    @abstractmethod
    def file_of(self, key: str, version: Generation) -> VersionedFile | None:
        """Return the file of one version of an object, without a look at it; ``None`` if the object is to be read in another way."""


class WritesAsMade(DirectAccess, ABC):
    """A storage that writes in threads of its own, in which the body of an object can be made."""

    @abstractmethod
    async def write_made(self, key: str, make: Callable[[int], BytesLike], condition: Condition) -> Generation:
        """Write as ``Storage.write`` does. ``make`` is called in a thread of the storage's with the descriptor of a new file: it writes the
        body from there on, and returns what comes behind. What it raises is raised, with nothing stored.
        """


class VersionedFile(NamedTuple):
    """A file that is one version of an object as long as its status shows these numbers."""

    path: bytes
    numbers: tuple[int, ...]
    """Device, inode, size, mtime and ctime in nanoseconds, and the mark of a file that has one."""
    inside: bytes | None
    """The real path, with a slash at its end, of the directory that the file has to lie in; ``None``: it may lie anywhere."""


class CopiesFrom(DirectAccess, ABC):
    """A storage into which the server, or the kernel, copies from other places of its kind: no bytes go through this process."""

    @abstractmethod
    async def copy_from(self, source: Storage, key: str, target_key: str) -> Generation | None:
        """Store one version of the object at ``key`` of another storage, whole, under ``target_key`` here, whatever is there.

        Returns ``None``, with nothing stored, if only this process can do it, as between two servers, or if there is no such object.
        """


class VersionedByRange(ABC):
    """A storage without versions of its own: a version is identified by the range that was read first, which is read again.

    The version that ``write`` returns cannot be used to read.
    """

    @abstractmethod
    def version_by(self, request: ByteRequest, data: BytesLike) -> Generation | None:
        """Return the version in which ``request`` gives ``data``; ``None`` if these bytes are too many to be read again each time."""


class RestrictsKeys(ABC):
    """A storage that may refuse keys: an Icechunk session takes Zarr documents and chunks only, a zip file no second object of a name."""

    @property
    @abstractmethod
    def keeps_records(self) -> bool:
        """True if objects of any name can be stored here, replaced and removed."""

    @abstractmethod
    def beside(self, suffix: str) -> Storage | None:
        """Return the place with this name and ``suffix`` behind it; ``None`` if this place has no name."""

    @property
    @abstractmethod
    def chunks_need_documents(self) -> bool:
        """True if a chunk can be stored only where the document of its array is."""


class DocumentsFirst:
    """A storage in which an object that is stored before the document that makes it a chunk is not taken for one: transactions write
    documents before chunks.
    """


class HasIdentity(ABC):
    """A storage whose URL does not identify it: two places may have the same, but for credentials, queries and the like."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """A text that only storages of the same place, shown in the same way, have in common. Not to be shown."""

    @property
    def content(self) -> str:
        """A text that identifies what was read once from this place, if that is kept."""
        return ""


class PinsRevision(ABC):
    """A storage of one revision, by its hash, of a place whose URL may name a branch or a tag."""

    @abstractmethod
    def pinned(self, target: object) -> object:
        """Return the target of ``open_storage`` that names this revision, for the one that was opened: so other processes read the same."""


class OnFilesystem:
    """A storage that works through an fsspec filesystem."""

    fs: Any


class ReadsOneByOne:
    """A storage whose server is asked for each range by a request of its own, wherever the reads of one call are made."""


class ObstoreCarried(ABC):
    """A storage whose requests obstore carries."""

    @property
    @abstractmethod
    def why_left_out(self) -> str | None:
        """Why all requests go another way in this process, or from now on; ``None``: obstore carries those that it can."""


class NamesLocation(ABC):
    """The storage of an object of another library. Its own URL is for people, and nothing else can open it or knows its versions."""

    @property
    @abstractmethod
    def place(self) -> object | None:
        """The same place as a target of ``open_storage`` that has a URL; ``None`` if there is none."""


class FileTree(ABC):
    """A storage of files in directories, which may have links among them, and shows changes before these survive a loss of power."""

    @abstractmethod
    async def cut_links(self, prefix: str) -> None:
        """Remove links to directories, and to nowhere, at or below ``prefix``, before the objects there are erased: the targets of the
        links do not belong to the store. Remove named pipes, sockets and devices below it, too.
        """

    @abstractmethod
    async def keep_seen(self, key: str) -> None:
        """Make durable what readers see at ``key`` now: the object, or that there is none; for a prefix, everything below it.

        Another process may have written or removed the object, and died before that was flushed.

        Raises:
            StorageError: it may not survive a loss of power.
        """

    @abstractmethod
    async def stored_names(self, name: str) -> tuple[str, ...]:
        """Return the keys or directories of ``LocalFiles`` that hold what is here at or below ``name``, a key or the path of a node."""


async def copy_between(source: Storage, key: str, target: Storage, target_key: str) -> Generation | None:
    """Copy as ``CopiesFrom`` does, if ``target`` can; return ``None``, with nothing stored, if not."""
    taker = target.ability(CopiesFrom)
    return None if taker is None else await taker.copy_from(source, key, target_key)


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
        """Return what is left below ``prefix`` (``""``, or ending with ``/``). Raises ``StorageError`` if a request fails or is denied."""
