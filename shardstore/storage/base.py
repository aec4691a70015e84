"""The protocol that every kind of underlying storage implements.

Keys are relative to the storage's root: non-empty segments joined by ``/``, no leading or trailing ``/``. All methods
are coroutines that run on fsspec's IO loop. Implementations translate their library's exceptions at this edge, ``from
exc``: ``AccessDenied`` for refused access, ``StorageError`` for the rest. What is absent is a value, not an exception.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from shardstore.errors import ShardStoreError
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import Condition, Generation
from shardstore.model.ranges import EVERYTHING, ByteRequest, BytesLike
from shardstore.model.segments import Segment


@dataclass(frozen=True, slots=True)
class Guard:
    """Another object, and the version of it without which what is read means nothing."""

    key: str
    generation: Generation


@dataclass(frozen=True, slots=True)
class Read:
    """Ranges of one object, all of one version; with a ``generation``, of that version only.

    With ``guard``, the other object still was of its version after the ranges had been read, or were found absent, or the outcome is
    ``GuardChanged``. Kinds
    without the capability ``guarded_reads`` take no notice of it.
    """

    key: str
    ranges: tuple[ByteRequest, ...]
    generation: Generation | None = None
    guard: Guard | None = None
    most_nbytes: int | None = None
    """An object that is asked for whole and is longer is not read: the outcome is ``Failed``."""


MOST_DOCUMENT_NBYTES = 256 << 20
"""More than any metadata document has: consolidated metadata of 100,000 arrays has about 100 MiB. Its JSON takes ten times the memory."""


def document_read(key: str) -> Read:
    """The read of a whole metadata document."""
    return Read(key, (EVERYTHING,), most_nbytes=MOST_DOCUMENT_NBYTES)


class ServerTimes(NamedTuple):
    """The times at which a server stored a version, which nobody else can set, and at which it was asked for it; seconds since the epoch
    by its own clock.
    """

    stored: float
    asked: float


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to a read: one buffer a range, clipped to the object, which is ``nbytes`` long."""

    generation: Generation
    nbytes: int
    buffers: tuple[memoryview, ...]
    times: ServerTimes | None = None
    """The times of the server, where it tells them and can be believed."""


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no object at the key."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The object is not, or was not during the whole read, the version that was asked for."""


@dataclass(frozen=True, slots=True)
class GuardChanged:
    """The object was read, but the one beside it has changed."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The read failed; others of the same batch may have succeeded."""

    error: ShardStoreError


ReadOutcome = Found | Absent | Changed | GuardChanged | Failed

ABSENT = Absent()
CHANGED = Changed()
GUARD_CHANGED = GuardChanged()


UNKNOWN_NBYTES = 2**63 - 1
"""The size of an object of which a listing, or a read of a part, does not tell it; more than any object has."""


class ObjectInfo(NamedTuple):
    """One object as a listing or ``stat`` shows it; ``generation`` where that costs nothing more."""

    key: str
    nbytes: int
    generation: Generation | None = None


@dataclass(frozen=True, slots=True)
class DirListing:
    """The direct children below a prefix: objects by full key, and names of deeper levels by full prefix ending in ``/``."""

    objects: tuple[ObjectInfo, ...]
    prefixes: tuple[str, ...]


class ConditionFailed(ShardStoreError):
    """The condition of a write or delete did not hold; nothing was changed. The engine plans again on this."""


@runtime_checkable
class Storage(Protocol):
    """One root in one kind of storage.

    Reads return what some completed write stored, whole; a write is visible to every later read once it returned.
    """

    @property
    def url(self) -> str:
        """Return where the root is, as a user would write it; without credentials."""
        ...

    @property
    def kind(self) -> str:
        """``memory``, ``local``, ``s3``, …"""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """Return what is known of the abilities of this storage; of a server nothing is claimed before ``probe``."""
        ...

    async def probe(self) -> Capabilities:
        """Find out, once an endpoint and process, what a server honours; called before the first write."""
        ...

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """One round: every range of every read, concurrently within the storage's own bound; outcomes in order.

        All ranges of one ``Read`` come from one version or the outcome is ``Changed``. A range that starts at or
        after the end gives an empty buffer. A suffix longer than the object gives all of it.
        """
        ...

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        """Store the pieces of ``body``, ``nbytes`` in all, as one object, and return its version.

        Durable and visible when this returns, never partly. Raises ``ConditionFailed`` where the condition did not
        hold, ``WriteOutcomeUnknown`` where the answer was lost and reading back could not settle it. An error, or a
        body that ends early, leaves the old object; but for an error of making a stored one durable.
        """
        ...

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        """Replace the object by ``segments``, its copies taken from version ``source`` of the same key.

        Only where ``capabilities.compose``. Raises as ``write`` does; ``ConditionFailed`` too where ``source`` is gone, and
        ``Unsupported``, with nothing written, where the server turned out not to be able to; then the capability is gone too.

        Where ``capabilities.appends_in_place``, segments of the form all of the old object, ``Padding(APPEND_PADDING_NBYTES)``, and what is
        new may be carried out behind the old bytes, which stay as they are. Readers that do not go through this protocol may see any
        beginning of it: where a page of the file ends, or in one of the pieces. The caller sees to it that none of these looks whole.
        """
        ...

    async def copy(self, source: str, target: str) -> Generation | None:
        """Store one version of the object at ``source``, whole, under ``target`` too, whatever is there; ``None``: no source.

        Without sending its bytes through this process where the kind can. Durable and visible when this returns.
        """
        ...

    async def rename_prefix(self, source: str, target: str) -> bool:
        """Move all objects below ``source/`` to ``target/`` in one step; ``False``, and nothing was done, where the kind cannot.

        Neither prefix is empty or ends with ``/``. Raises ``ConditionFailed`` where there is something below ``target``
        already, or an object at it. The caller sees to it that nobody writes below ``source`` meanwhile.
        """
        ...

    async def delete(self, key: str, condition: Condition) -> bool:
        """Remove the object; ``False`` where there was none. Raises ``ConditionFailed`` (``IfGeneration`` only)."""
        ...

    async def delete_many(self, keys: Sequence[str]) -> None:
        """Remove the objects unconditionally, in as few requests as the kind offers; absent ones are no error."""
        ...

    async def stat(self, key: str) -> ObjectInfo | None:
        """Size and generation of one object, or ``None``."""
        ...

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Every object whose key starts with the string ``prefix`` (which need not end at a ``/``), in key order
        within what one request returns. Past any listing cache. Temporary and lock files are not objects."""
        ...

    async def list_dir(self, prefix: str) -> DirListing:
        """The direct children of ``prefix``, which is ``""`` or ends with ``/``. Past any listing cache."""
        ...

    async def close(self) -> None:
        """Release descriptors and threads. What was acknowledged stays."""
        ...


@runtime_checkable
class ToldByRanges(Protocol):
    """A storage that knows no versions but what a range of an object holds: the range that was read first is read again.

    What ``write`` returns names nothing that could be read by it.
    """

    def version_by(self, request: ByteRequest, data: BytesLike) -> Generation | None:
        """The version of an object in which ``request`` gives ``data``; ``None`` where these are too many to be read again each time."""
