"""The protocol that every kind of underlying storage implements, and bases for kinds that lack some of its operations.

Keys are relative to the storage's root: non-empty segments joined by ``/``, no leading or trailing ``/``. All methods are coroutines
that run on fsspec's IO loop. Implementations translate their library's exceptions at this edge, ``from exc``: ``AccessDenied`` for
refused access, ``StorageError`` for the rest. Absence is a value, not an exception.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from shardstore.errors import InvalidInput, ReadOnly, ShardStoreError, StorageError, Unsupported
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation
from shardstore.model.ranges import EVERYTHING, ByteRequest, BytesLike, Segment

__all__ = [
    "ABSENT",
    "CHANGED",
    "Abilities",
    "Absent",
    "Changed",
    "ConditionFailed",
    "DirListing",
    "Failed",
    "Found",
    "Guard",
    "GuardChanged",
    "ObjectInfo",
    "Read",
    "ReadOutcome",
    "ReadsAndWrites",
    "ReadsOnly",
    "Storage",
]

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Guard:
    """Another object and its version. If the version changes, what was read means nothing."""

    key: str
    generation: Generation


@dataclass(frozen=True, slots=True)
class Read:
    """Ranges of one object, all of one version; with a ``generation``, of that version only.

    With ``guard``, the other object must still have its version after the ranges were read, or found absent; otherwise the outcome is
    ``GuardChanged``. Kinds without the capability ``guarded_reads`` ignore it.
    """

    key: str
    ranges: tuple[ByteRequest, ...]
    generation: Generation | None = None
    guard: Guard | None = None
    most_nbytes: int | None = None
    """The most bytes of an object that is asked for whole: a longer one is not read, and the outcome is ``Failed``."""


MOST_DOCUMENT_NBYTES = 256 << 20
"""More bytes than any metadata document has: consolidated metadata of 100,000 arrays have about 100 MiB. Their JSON takes ten times the
memory.
"""


def document_read(key: str) -> Read:
    """Return the read of a whole metadata document."""
    return Read(key, (EVERYTHING,), most_nbytes=MOST_DOCUMENT_NBYTES)


class ServerTimes(NamedTuple):
    """When a server stored a version, and when it was asked for that version: seconds since the epoch by the server's own clock, which
    clients cannot set.
    """

    stored: float
    asked: float


@dataclass(frozen=True, slots=True)
class Found:
    """The bytes that were read: one buffer for each range, clipped to the object, which is ``nbytes`` long."""

    generation: Generation
    nbytes: int
    buffers: tuple[memoryview, ...]
    times: ServerTimes | None = None
    """The server's times, if it gives them and they can be trusted."""


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no object at the key."""

    is_directory: bool = False
    """True if the storage knows that there is a directory of this name. Storages without directories have objects below such a key."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The object does not have the version that was asked for, or did not have it during the whole read."""


@dataclass(frozen=True, slots=True)
class GuardChanged:
    """The object was read, but the guard has changed."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The read failed; other reads of the same batch may have succeeded."""

    error: ShardStoreError


ReadOutcome = Found | Absent | Changed | GuardChanged | Failed
"""The answer to one ``Read``."""

ABSENT = Absent()
"""There is no object, nor a directory that is known of."""
DIRECTORY = Absent(is_directory=True)
CHANGED = Changed()
"""The answer to a read of a version that the object does not have."""
GUARD_CHANGED = GuardChanged()


def unless_failed(outcome: ReadOutcome) -> Found | Absent | Changed | GuardChanged:
    """Return the outcome of a read; raise the error of one that failed."""
    if isinstance(outcome, Failed):
        raise outcome.error
    return outcome


async def read_one(storage: Storage, read: Read) -> Found | Absent | Changed | GuardChanged:
    """Carry out one read; raise the error if it fails."""
    (outcome,) = await storage.read([read])
    return unless_failed(outcome)


class LeadsNowhere(StorageError):
    """What a link or a reference leads to is not there, such as a disk that is not mounted: the key is not absent for that."""


def in_its_place(key: str, what: str, where: str = "") -> StorageError:
    """Return the error to raise where ``what`` is in the place of an object, which an answer of "absent" would hide."""
    return StorageError(
        f"{key!r}: there is {what} of this name{where}, in the place of an object: remove it, or move it out of the store, and look "
        "whether the object is elsewhere"
    )


UNKNOWN_NBYTES = 2**63 - 1
"""The size of an object if a listing, or a read of a part, does not give it; more than any object has."""


class ObjectInfo(NamedTuple):
    """One object as a listing or ``stat`` shows it; with ``generation`` if that costs nothing more."""

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
        """The URL of the root, as a user would write it; without credentials."""

    @property
    def kind(self) -> str:
        """The kind's name: ``memory``, ``local``, ``s3``, …"""

    @property
    def capabilities(self) -> Capabilities:
        """The known capabilities of this storage; of a server nothing is claimed before ``probe``."""

    def ability(self, kind: type[A]) -> A | None:
        """Return what gives an optional ability, by its class, such as ``VersionedByRange``; ``None`` if this storage does not have it.

        The classes are in ``shardstore.storage.abilities``. Kinds derive from ``Abilities``, and wrappers from ``StorageWrapper``, which
        implement this. It is asked where something is set up, not at each read.
        """

    async def probe(self) -> Capabilities:
        """Find out what a server honours, once for each endpoint and process; called before the first write."""

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Read every range of every read in one round, concurrently within the storage's own bound; outcomes are in order.

        All ranges of one ``Read`` come from one version or the outcome is ``Changed``. A range that starts at or
        after the end gives an empty buffer. A suffix longer than the object gives all of it.
        """

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        """Store the pieces of ``body``, ``nbytes`` in all, as one object, and return its version.

        The object is durable and visible when this returns, never partly. Raises ``ConditionFailed`` if the condition did not hold,
        ``WriteOutcomeUnknown`` if the answer was lost and reading back could not settle it. An error, or a body that ends early,
        leaves the old object. The exception is an error while a stored object is made durable.
        """

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        """Replace the object by ``segments``, its copies taken from version ``source`` of the same key.

        Called only if ``capabilities.compose``. Raises as ``write`` does; also ``ConditionFailed`` if ``source`` is gone, and
        ``Unsupported``, with nothing written, if the server turns out not to be able to do it; then the capability is gone too.

        If ``capabilities.appends_in_place``, segments may be appended in place if they are all of the old object, then
        ``Padding(APPEND_PADDING_NBYTES)``, then new bytes; the old bytes stay unchanged. Readers that do not go through this protocol
        may see any beginning of the new object: it may end with a page of the file, or inside one of the pieces. The caller makes sure
        that no such beginning looks whole.
        """

    async def copy(self, source: str, target: str) -> Generation | None:
        """Store one version of the object at ``source``, whole, under ``target`` too, whatever is there; return ``None`` if there is no
        source.

        Where the kind can, the bytes do not go through this process. The copy is durable and visible when this returns.
        """

    async def rename_prefix(self, source: str, target: str) -> bool:
        """Move all objects below ``source/`` to ``target/`` in one step; return ``False``, with nothing done, if the kind cannot.

        Neither prefix is empty or ends with ``/``. Raises ``ConditionFailed`` if there is something below ``target`` already, or an
        object at it, and ``Conflict`` if a link below ``source`` would lead elsewhere from there; nothing was changed. The caller makes
        sure that nothing writes below ``source`` until then.
        """

    async def delete(self, key: str, condition: Condition) -> bool:
        """Remove the object; return ``False`` if there was none. Raises ``ConditionFailed`` (``IfGeneration`` only)."""

    async def delete_many(self, keys: Sequence[str]) -> None:
        """Remove the objects unconditionally, in as few requests as the kind offers; absent ones are no error."""

    async def stat(self, key: str) -> ObjectInfo | None:
        """Return size and generation of one object, or ``None``."""

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Yield every object whose key starts with the string ``prefix`` (which need not end at a ``/``), in key order within what one
        request returns. Listing caches are bypassed. Temporary and lock files are not objects.
        """

    async def list_dir(self, prefix: str) -> DirListing:
        """Return the direct children of ``prefix``, which is ``""`` or ends with ``/``. Listing caches are bypassed."""

    async def close(self) -> None:
        """Release descriptors and threads. Acknowledged writes stay."""


class Abilities:
    """The base of every kind of storage: it has the abilities whose classes it derives from."""

    def ability(self, kind: type[A]) -> A | None:
        return self if isinstance(self, kind) else None

    async def probe(self: Storage) -> Capabilities:
        return self.capabilities  # as of every kind without a server

    async def close(self) -> None:
        """Leave open what the storage works through: it is the user's, or holds nothing."""


class ReadsAndWrites(Abilities):
    """The operations of a storage that reads and writes objects, and has no request that does more at once."""

    async def compose(self: Storage, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        raise no_compose(key, self.url)

    async def copy(self: Storage, source: str, target: str) -> Generation | None:
        outcome = await read_one(self, Read(source, (EVERYTHING,)))
        return await self.write(target, outcome.buffers, outcome.nbytes, UNCONDITIONAL) if isinstance(outcome, Found) else None

    async def rename_prefix(self, source: str, target: str) -> bool:
        return False

    async def stat(self: Storage, key: str) -> ObjectInfo | None:
        """Return size and version by reading no bytes of the object, or all of it if that does not show its size."""
        outcome = await read_one(self, Read(key, ()))
        if isinstance(outcome, Found) and outcome.nbytes == UNKNOWN_NBYTES:
            outcome = await read_one(self, Read(key, (EVERYTHING,)))
        return ObjectInfo(key, outcome.nbytes, outcome.generation) if isinstance(outcome, Found) else None


class ReadsOnly(Abilities):
    """The changing operations of a storage that is only read: each raises the error that ``refusal`` returns."""

    def refusal(self, action: str, key: str) -> ReadOnly:
        """Return the error for ``action``, such as "writing", on the object or prefix ``key``."""
        raise NotImplementedError

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        raise self.refusal("writing", key)

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        raise self.refusal("writing", key)

    async def copy(self, source: str, target: str) -> Generation | None:
        raise self.refusal(f"copying {source!r} to", target)

    async def rename_prefix(self, source: str, target: str) -> bool:
        raise self.refusal(f"moving {source!r} to", target)

    async def delete(self, key: str, condition: Condition) -> bool:
        raise self.refusal("deleting", key)

    async def delete_many(self, keys: Sequence[str]) -> None:
        if keys:
            raise self.refusal("deleting", keys[0])


def no_compose(key: str, url: str) -> Unsupported:
    return Unsupported(f"composing {key!r}: in {url} the bytes to keep have to be read and written")


def direct_children(keys: Iterable[str], prefix: str) -> tuple[list[str], tuple[str, ...]]:
    """Return those of ``keys``, which start with ``prefix``, that lie directly below it, and the prefixes of deeper ones, each once."""
    objects: list[str] = []
    prefixes: dict[str, None] = {}
    for key in keys:
        name, slash, _ = key[len(prefix) :].partition("/")
        if slash:
            prefixes[f"{prefix}{name}/"] = None
        elif name:
            objects.append(key)
    return objects, tuple(prefixes)


def check_directory(prefix: str) -> None:
    """Raise ``InvalidInput`` if a prefix to list directly below is not that of a directory."""
    if prefix and not prefix.endswith("/"):
        raise InvalidInput(f"{prefix!r} names no directory: it has to be empty or end with '/'")
