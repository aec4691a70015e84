"""Arrays that several sets have to have in common: compared by documents and references, and where these differ, by bytes.

Each store has its own copy of the coordinates, so equal arrays have references to different objects. Small ones are read: of each set the
bytes and the requests are bounded, all its chunks are asked for in one batch, and several sets are read concurrently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shardstore._sync import run_sync
from shardstore.errors import Conflict, InvalidInput
from shardstore.model.containers import batched
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteRequest
from shardstore.model.words import plural, size
from shardstore.references.batches import content, size_of
from shardstore.references.sets import PinsByUrl, SetArray
from shardstore.storage.base import Found, Read, unless_failed
from shardstore.storage.references.storage import ReferenceStorage

_Content = bytes | tuple[str, int, int]
_Name = tuple[str, int]
"""A chunk of the sets: the path of its array, and its number."""


@dataclass(frozen=True, slots=True)
class ComparisonBounds:
    """The most that is read of one set to compare its arrays with those of another set."""

    nbytes: int = 16 * 2**20
    chunks: int = 256
    sets_at_once: int = 8


@dataclass(slots=True)
class _NeededChunks:
    """The chunks of one set whose bytes are needed: their keys and sizes, ``None`` of objects that are referred to as a whole."""

    references: ReferenceStorage
    chunks: dict[_Name, tuple[str, int | None]] = field(default_factory=dict)

    def most_nbytes(self, bounds: ComparisonBounds) -> int:
        """Return the bytes that are left for each object of unknown size; negative if the bounds do not suffice."""
        sizes = [nbytes for _, nbytes in self.chunks.values()]
        left = bounds.nbytes - sum(nbytes for nbytes in sizes if nbytes is not None)
        if len(sizes) > bounds.chunks:
            return -1
        return left // max(1, sizes.count(None))


class Comparison:
    """The comparison of arrays that have to be the same in the sets at ``urls``, which are in their order. ``why`` says in errors why."""

    def __init__(self, urls: Iterable[str], why: str, bounds: ComparisonBounds) -> None:
        self._urls = list(dict.fromkeys(urls))
        self._why = why
        self._bounds = bounds
        self._firsts: dict[_Name, tuple[str, _Content]] = {}
        """The chunks to compare: the URL of the set whose chunk is kept, and its content."""
        self._compared: list[tuple[_Name, str, _Content]] = []
        self._wanted: dict[str, _NeededChunks] = {}
        """By URL of the set."""

    def add(self, path: str, parts: Sequence[tuple[str, SetArray]]) -> None:
        """Compare the references of an array in several sets, each given with its URL; what they lead to is left to ``finish``.

        Raises:
            InvalidInput: the arrays are not the same.
            StorageError: references could not be read.
        """
        (url, first), *later = parts
        pins = PinsByUrl()  # of its own: the new set refers to the objects of the first set alone
        mine = content(first.noting(pins).batches(0, size_of(first)))
        for other_url, other in later:
            theirs = content(other.noting(pins).batches(0, size_of(other)))
            if mine.keys() != theirs.keys():
                raise self.refusal(path, url, other_url, f"only one of them has chunk {min(mine.keys() ^ theirs.keys())}")
            for chunk in (chunk for chunk in mine if mine[chunk] != theirs[chunk]):
                sizes = {_nbytes(each[chunk]) for each in (mine, theirs)} - {None}
                if len(sizes) > 1 or all(isinstance(each[chunk], bytes) for each in (mine, theirs)):
                    raise self.refusal(path, url, other_url, f"chunk {chunk} differs")
                name = (path, chunk)
                self._firsts[name] = (url, mine[chunk])
                self._compared.append((name, other_url, theirs[chunk]))
                self._want(name, url, first, mine[chunk])
                self._want(name, other_url, other, theirs[chunk])

    def _want(self, name: _Name, url: str, array: SetArray, entry: _Content) -> None:
        if not isinstance(entry, bytes):
            wanted = self._wanted.setdefault(url, _NeededChunks(array.references))
            wanted.chunks[name] = (array.key(name[1]), _nbytes(entry))

    def finish(self) -> None:
        """Compare the bytes of what the sets refer to at different places.

        Raises:
            InvalidInput: they differ, or are too many to be read.
            Conflict: an object has changed since its set was made.
            StorageError: a request failed.
        """
        for name, other_url, _ in self._compared:
            for url in (self._firsts[name][0], other_url):
                if url in self._wanted and self._wanted[url].most_nbytes(self._bounds) < 0:
                    raise self._too_large(name[0], self._firsts[name][0], other_url)
        run_sync(self._compare())

    async def _compare(self) -> None:
        firsts = {name: entry for name, (_, entry) in self._firsts.items() if isinstance(entry, bytes)}
        compared: dict[str, list[tuple[_Name, _Content]]] = {}
        for name, url, entry in self._compared:
            compared.setdefault(url, []).append((name, entry))
        urls = [url for url in self._urls if url in compared or url in self._wanted]
        for some in batched(urls, self._bounds.sets_at_once):
            found = dict(zip(some, await asyncio.gather(*map(self._read, some)), strict=True))
            for url in some:
                firsts |= {name: data for name, data in found[url].items() if self._firsts[name][0] == url}
            for url in some:
                for name, entry in compared.get(url, ()):  # the set whose chunk is kept comes before, or among these
                    if firsts[name] != (entry if isinstance(entry, bytes) else found[url][name]):
                        raise self.refusal(name[0], self._firsts[name][0], url, f"chunk {name[1]} differs")

    async def _read(self, url: str) -> dict[_Name, bytes]:
        """Return the bytes of the wanted chunks of one set, which are asked for in one batch, or two if an object is long."""
        if url not in self._wanted:
            return {}
        wanted = self._wanted[url]
        most = wanted.most_nbytes(self._bounds)
        ranges = {name: EVERYTHING if nbytes is not None else ByteRange(0, most + 1) for name, (_, nbytes) in wanted.chunks.items()}
        found = await self._found(url, ranges)
        longer = [name for name, outcome in found.items() if wanted.chunks[name][1] is None and len(outcome.buffers[0]) > most]
        if longer:
            if sum(outcome.nbytes for outcome in found.values()) > self._bounds.nbytes:
                raise self._too_large(longer[0][0], self._firsts[longer[0]][0], url)
            found |= await self._found(url, dict.fromkeys(longer, EVERYTHING))
        return {name: bytes(outcome.buffers[0]) for name, outcome in found.items()}

    async def _found(self, url: str, ranges: Mapping[_Name, ByteRequest]) -> dict[_Name, Found]:
        """Return a range of each of some chunks of one set."""
        wanted = self._wanted[url]
        found: dict[_Name, Found] = {}
        reads = [Read(wanted.chunks[name][0], (request,)) for name, request in ranges.items()]
        for name, read, outcome in zip(ranges, reads, await wanted.references.read(reads), strict=True):
            outcome = unless_failed(outcome)
            if not isinstance(outcome, Found):
                raise Conflict(f"what {url} refers to for {read.key!r} has changed while it was read: combine the sets again")
            found[name] = outcome
        return found

    def refusal(self, path: str, url: str, other_url: str, why: str) -> InvalidInput:
        """Return the error of an array that is not the same in two sets."""
        return InvalidInput(f"array {path!r} is not the same in {url} and {other_url}: {why}; and it {self._why}")

    def _too_large(self, path: str, url: str, other_url: str) -> InvalidInput:
        bounds = f"{plural(self._bounds.chunks, 'chunk')} and {size(self._bounds.nbytes)}"
        return InvalidInput(
            f"array {path!r} is referred to at different places in {url} and {other_url}, and is too large to be read and compared: of a "
            f"set, at most {bounds} are. Write the sets with its chunks in them, by paths={{{path!r}: {{'inline_nbytes': …}}}} with the "
            f"size of its largest chunk (--inline BYTES), or write all but one of them without it, by paths={{{path!r}: None}} (--exclude)"
        )


def _nbytes(entry: _Content) -> int | None:
    """Return the size of a chunk; ``None`` if the set refers to a whole object."""
    return len(entry) if isinstance(entry, bytes) else entry[2] or None
