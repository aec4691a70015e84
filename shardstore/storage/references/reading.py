"""Read what references lead to: a batch is grouped by object, neighbouring ranges share a request, and each storage is asked once.

Where the version is known that a reference was made of, the object is read at that version: other bytes at the same place mean something
else. The versions that are shown::

    ref-4b1c…90:"9a0364b9"        a reference, by a digest of URL, offset and length, and the version of the object that it leads to
    inline-5f0c…                  bytes that are in the set itself, by their digest
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardstore.errors import Conflict, Corruption, ShardStoreError, StorageError
from shardstore.format.references.table import Reference
from shardstore.model.coalescing import CoalescedReads, ReadLimits, coalesce_all
from shardstore.model.generation import Generation
from shardstore.model.ranges import ByteRange, resolve
from shardstore.model.redaction import redacted
from shardstore.storage.base import CHANGED, UNKNOWN_NBYTES, Absent, Changed, Failed, Found, LeadsNowhere, Read, ReadOutcome, Storage
from shardstore.storage.local.versions import may_be_same_bytes
from shardstore.storage.references.entries import PinnedReference, ReferenceTarget, Targets
from shardstore.storage.requests.ranged_reads import NOTHING, too_long


@dataclass(frozen=True, slots=True)
class ReferenceRead:
    """A read of what one reference leads to. ``number`` is its place in the batch."""

    number: int
    read: Read
    reference: Reference
    token: str | None
    url: str
    """The URL for people."""


@dataclass(slots=True)
class _ObjectReads:
    """The reads of one object, all of one version: ``token``, if that is known. ``is_pinned``: the set says so."""

    target: ReferenceTarget
    token: str | None
    is_pinned: bool
    wanted: list[ReferenceRead] = field(default_factory=list)
    bounds: list[tuple[int, int]] = field(default_factory=list)
    coalesced: CoalescedReads | None = None

    def request(self, limits: Mapping[str, int]) -> Read:
        """Return the read to send: that of a whole object unchanged, or the requests that hold all wanted ranges."""
        first = self.wanted[0]
        generation = None if self.token is None else Generation(self.token)
        if first.reference.nbytes is None:
            return Read(self.target.key, first.read.ranges, generation, None, first.read.most_nbytes)
        starts, ends = (np.array([bound[i] for bound in self.bounds], dtype=np.int64) for i in (0, 1))
        self.coalesced = coalesce_all(starts, ends, ReadLimits(**{"gap_bytes": self.target.gap_bytes, **limits}))
        return Read(self.target.key, self.coalesced.requests, generation)


class ReferenceReader:
    """Reads what the references of one set lead to. ``limits`` are for ``ReadLimits``; ``shown`` is the set's URL."""

    def __init__(self, targets: Targets, limits: Mapping[str, int], shown: str) -> None:
        self._targets = targets
        self._limits = dict(limits)
        self._shown = shown

    async def read(self, reads: Sequence[tuple[int, Read, PinnedReference]], outcomes: list[ReadOutcome]) -> None:
        """Put the outcome of each read at its number among ``outcomes``."""
        groups: dict[tuple[int, str, str | None, int], _ObjectReads] = {}
        for number, read, (reference, token) in reads:
            asked = None if read.generation is None else target_version(reference, read.generation)
            if (refused := self._refusal(read, reference, token, asked)) is not None:
                outcomes[number] = refused
                continue
            try:
                target = self._targets.target(reference.url)
            except ShardStoreError as exc:
                outcomes[number] = Failed(referring(exc, read.key, self._shown, shown_url(reference.url)))
                continue
            version = token or (None if asked is None else asked.token)
            name = (id(target.storage), target.key, version, number if reference.nbytes is None else -1)
            group = groups.setdefault(name, _ObjectReads(target, version, token is not None))
            group.wanted.append(ReferenceRead(number, read, reference, token, shown_url(reference.url)))
            if reference.nbytes is not None:
                parts = (resolve(request, reference.nbytes) for request in read.ranges)
                group.bounds += [(reference.offset + part.start, reference.offset + part.end) for part in parts if part.start < part.end]
        await self._send(list(groups.values()), outcomes)

    def _refusal(self, read: Read, reference: Reference, token: str | None, asked: Generation | None) -> ReadOutcome | None:
        """Return the outcome of a read that needs no request: of another version than the set names, or of too many bytes."""
        if read.generation is not None and (asked is None or (token is not None and asked.token != token)):
            return CHANGED
        if reference.nbytes is not None and read.most_nbytes is not None and reference.nbytes > read.most_nbytes:
            return Failed(too_long(reference.nbytes, read.most_nbytes, f"reading {read.key!r} in {self._shown}"))
        return None

    async def _send(self, groups: Sequence[_ObjectReads], outcomes: list[ReadOutcome]) -> None:
        found = await _read_all([(group.target.storage, group.request(self._limits)) for group in groups])
        found = await self._looked_at_again(groups, found)
        for group, outcome in zip(groups, found, strict=True):
            self._deal_out(group, outcome, outcomes)

    async def _looked_at_again(self, groups: Sequence[_ObjectReads], found: Sequence[ReadOutcome]) -> list[ReadOutcome]:
        """Return the outcomes; pinned local files that have changed are read again, if it may be that only a name, mode or owner has."""
        outcomes = list(found)
        again = [
            i
            for i, (group, outcome) in enumerate(zip(groups, found, strict=True))
            if group.is_pinned and isinstance(outcome, Changed) and group.target.storage.kind == "local"
        ]
        reads = [(groups[i].target.storage, groups[i].request(self._limits)) for i in again]
        unpinned = [(storage, Read(read.key, read.ranges, None, None, read.most_nbytes)) for storage, read in reads]
        for i, outcome in zip(again, await _read_all(unpinned), strict=True):
            token = groups[i].token
            if token is not None and isinstance(outcome, Found) and may_be_same_bytes(token, outcome.generation.token):
                outcomes[i] = outcome
        return outcomes

    def _deal_out(self, group: _ObjectReads, found: ReadOutcome, outcomes: list[ReadOutcome]) -> None:
        if not isinstance(found, Found):
            for wanted in group.wanted:
                outcomes[wanted.number] = self._not_found(group, wanted, found)
            return
        parts = iter(group.coalesced.cut(found.buffers) if group.coalesced is not None else ())
        for wanted in group.wanted:
            reference, read = wanted.reference, wanted.read
            version = found.generation if group.token is None else Generation(group.token, found.generation.modified)
            generation = read.generation or presented_version(reference, version)
            if reference.nbytes is None:
                outcomes[wanted.number] = Found(generation, found.nbytes, found.buffers, found.times)
                continue
            ranges = [resolve(request, reference.nbytes) for request in read.ranges]
            buffers = tuple(next(parts) if part.start < part.end else NOTHING for part in ranges)
            error = self._fault(wanted, found.nbytes, ranges, buffers)
            outcomes[wanted.number] = Found(generation, reference.nbytes, buffers, found.times) if error is None else Failed(error)

    def _fault(
        self, wanted: ReferenceRead, nbytes: int, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> ShardStoreError | None:
        """Return the error of a reference that ends behind its object, or of bytes that did not come."""
        reference = wanted.reference
        assert reference.nbytes is not None
        is_short = any(len(buffer) != part.end - part.start for buffer, part in zip(buffers, ranges, strict=True))
        end = reference.offset + reference.nbytes
        if end > nbytes or (is_short and nbytes == UNKNOWN_NBYTES):
            there = "it has fewer" if nbytes == UNKNOWN_NBYTES else f"it has {nbytes}"
            return Corruption(
                f"{self._shown} refers for {wanted.read.key!r} to bytes [{reference.offset}, {end}) of {wanted.url}, but {there}: the "
                "object was replaced, or the set is not of this object"
            )
        if is_short:
            return StorageError(f"reading {wanted.read.key!r} in {self._shown}: {wanted.url} gave fewer bytes than it has")
        return None

    def _not_found(self, group: _ObjectReads, wanted: ReferenceRead, found: ReadOutcome) -> ReadOutcome:
        key = wanted.read.key
        if isinstance(found, Absent):
            return Failed(refers_to_nothing(key, self._shown, wanted.url))
        if isinstance(found, Failed):
            return Failed(referring(found.error, key, self._shown, wanted.url))
        if isinstance(found, Changed) and group.is_pinned:
            return Failed(
                Conflict(
                    f"{wanted.url} has changed since {self._shown} was made, which refers to it for {key!r}: the bytes there now may "
                    "differ, so nothing was read. Bring the set up to date with `shardstore refs update`, or write it again; "
                    "storage_options={'reference': {'pins': False}} reads whatever is there"
                )
            )
        return found


def shown_url(url: str | None) -> str:
    """Return a URL of a set for people."""
    return "its target" if url is None else redacted(url)


def refers_to_nothing(key: str, shown: str, url: str) -> LeadsNowhere:
    """Return the error of a reference whose object is not there: the key is not absent for that."""
    return LeadsNowhere(f"{shown} refers for {key!r} to what is not there, {url}: make it reachable again, or mend the reference")


def referring(exc: ShardStoreError, key: str, shown: str, url: str) -> ShardStoreError:
    """Return the error of an object, with the key and the set that lead to it."""
    error = type(exc)(f"{shown} refers for {key!r} to {url}: {exc}")
    error.__cause__ = exc
    return error


async def _read_all(reads: Sequence[tuple[Storage, Read]]) -> list[ReadOutcome]:
    """Return the outcomes of reads in several storages, each of which is asked once."""
    of_storage: dict[int, list[int]] = {}
    for i, (storage, _) in enumerate(reads):
        of_storage.setdefault(id(storage), []).append(i)
    outcomes: list[ReadOutcome] = [CHANGED] * len(reads)

    async def read(numbers: Sequence[int]) -> None:
        found = await reads[numbers[0]][0].read([reads[i][1] for i in numbers])
        for i, outcome in zip(numbers, found, strict=True):
            outcomes[i] = outcome

    await asyncio.gather(*map(read, of_storage.values()))
    return outcomes


_REFERENCE = "ref-"
_DIGEST_NBYTES = 12


class _Passing(Generation):
    """The version of an object whose storage gave a version that equals no other."""

    __slots__ = ()

    @property
    def digest(self) -> int:
        return 0


def presented_version(reference: Reference, target: Generation) -> Generation:
    """Return the version of what a reference shows, from the version of the object that it leads to."""
    cls = Generation if target.digest else _Passing
    return cls(f"{_prefix(reference)}{target.token}", target.modified)


def target_version(reference: Reference, presented: Generation) -> Generation | None:
    """Return the version of the object that a presented version was made of; ``None`` if it is of another reference."""
    prefix = _prefix(reference)
    return Generation(presented.token[len(prefix) :]) if presented.token.startswith(prefix) else None


def inline_version(data: bytes) -> Generation:
    """Return the version of bytes that are in the set itself."""
    return Generation(f"inline-{_digest(data)}")


def _prefix(reference: Reference) -> str:
    return f"{_REFERENCE}{_digest(repr(tuple(reference)).encode(errors='surrogatepass'))}:"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_NBYTES).hexdigest()
