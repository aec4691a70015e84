"""``combine``: one set of several, by their structure alone: nothing is decoded.

Arrays of different paths stand side by side. Arrays of one path are put one behind the other along ``dim``, if their chunks are of one
shape and coded alike, and all but the last end with a whole chunk. Arrays without that dimension have to be the same in all sets: they are
compared by documents and references, and where these differ, by bytes. Each store has its own copy of the coordinates, so equal arrays have
references to different objects. Small ones are read: of each set the bytes and the requests are bounded, all its chunks are asked for in
one batch, and several sets are read concurrently.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import numpy as np

from shardstore._sync import run_sync
from shardstore.errors import Conflict, InvalidInput
from shardstore.format.json_text import JsonObject, same_text
from shardstore.format.references.documents import NodeDocuments
from shardstore.format.v2.documents import ARRAY_DIMENSIONS
from shardstore.model.chunks import strides
from shardstore.model.containers import batched
from shardstore.model.options import check_flags
from shardstore.model.ranges import EVERYTHING, ByteRange, ByteRequest
from shardstore.model.words import plural, size
from shardstore.references.batches import ReferenceBatch, ReferencedArray, ReferenceSource, content, size_of
from shardstore.references.choices import Choices, Flavour
from shardstore.references.places import JSON_SUFFIXES, check_apart, open_set, options_for
from shardstore.references.report import ReferenceReport
from shardstore.references.sets import PinsByUrl, SetArray, reference_storage, set_source
from shardstore.references.writing import Form, JSONForm, ParquetForm, Progress, put
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
            f"size of its largest chunk, or write all but one of them without it, by paths={{{path!r}: None}}"
        )


def _nbytes(entry: _Content) -> int | None:
    """Return the size of a chunk; ``None`` if the set refers to a whole object."""
    return len(entry) if isinstance(entry, bytes) else entry[2] or None


_WHO_DOES_IT = "combining by the values of coordinates takes decoding: VirtualiZarr and kerchunk do it"


class JoinedArray(ReferencedArray):
    """Arrays one behind the other along an axis."""

    def __init__(self, parts: Sequence[ReferencedArray], axis: int, node: NodeDocuments) -> None:
        self._parts = parts
        self._axis = axis
        self._begins = np.cumsum([0, *(part.chunk_grid[axis] for part in parts)]).tolist()
        grid = parts[0].chunk_grid
        super().__init__(parts[0].path, node, (*grid[:axis], self._begins[-1], *grid[axis + 1 :]))

    def batches(self, start: int, stop: int) -> Iterator[ReferenceBatch]:
        inner = prod(self.chunk_grid[self._axis :])
        for part, begin in zip(self._parts, self._begins, strict=False):
            own = prod(part.chunk_grid[self._axis :])
            if not own or not inner:
                continue
            first, last = start // inner * own, -(-stop // inner) * own
            if self._axis == 0:  # one range of rows after the other
                shift = begin * int(strides(self.chunk_grid)[0])
                first, last = max(0, start - shift), min(own, stop - shift)
            if first < last:
                yield from self._shifted(part, begin, part.batches(first, last))

    def _shifted(self, part: ReferencedArray, begin: int, batches: Iterator[ReferenceBatch]) -> Iterator[ReferenceBatch]:
        """Yield batches of a part with the numbers of the joined array."""
        for chunks, rows, *_ in batches:
            coords = np.array(np.unravel_index(chunks, part.chunk_grid), dtype=np.int64).T
            coords[:, self._axis] += begin
            yield ReferenceBatch(coords @ strides(self.chunk_grid), rows)


def combine(
    sets: Sequence[Any],
    target: Any,
    *,
    dim: str | None = None,
    format: Literal["json", "parquet"] | None = None,
    flavour: Flavour | None = None,
    mixed_protocols: bool = False,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    progress: Progress | bool | None = None,
) -> ReferenceReport:
    """Make one set of several, by structure alone; nothing is decoded.

    Args:
        sets: paths or URLs of sets, of whatever program, in their order.
        target: the path or URL of the new set.
        dim: the name of the dimension along which arrays are put one behind the other. Arrays without it have to be the same in all sets:
            where sets refer to different places, as each store has its own coordinates, the bytes are read and compared, of each set at
            most 256 chunks and 16 MiB. The new set refers to those of the first set that has the array.
        format: of the new set; by default JSON if ``target`` ends in .json, .json.gz or .json.zst, and Parquet otherwise.
        flavour: as for ``write_json`` and ``write_parquet``.
        mixed_protocols: as for ``write_json``.
        overwrite: replace a set that is there.
        storage_options: of the filesystem of the sets.
        target_options: of the new set's; by default those of the sets, if the first one has the same protocol.
        progress: called now and then with a ``ReferenceProgress``; or ``True``: it is shown on stderr.

    Raises:
        InvalidInput: the sets do not fit together; the message says why, and which other program can combine them.
        Conflict: an object that had to be compared has changed since its set was made.
        ShardStoreError: as ``write_json``.
    """
    check_flags(mixed_protocols=mixed_protocols, overwrite=overwrite)
    if format not in ("json", "parquet", None):
        raise InvalidInput(f"format {format!r} is neither 'json' nor 'parquet'")
    is_json = format == "json" or (format is None and os.fspath(target).endswith(JSON_SUFFIXES))
    given = list(sets)
    if len(given) < 2:
        raise InvalidInput("combine takes two sets or more")
    options = options_for(given[0], target, storage_options, target_options)
    place = open_set(target, options, is_directory=not is_json)
    sources: list[ReferenceSource] = []
    shared = PinsByUrl()
    for one in given:
        references = reference_storage(one, storage_options)
        check_apart(references, place)
        sources.append(set_source(references, lambda path: True, shared))
    form: Form = JSONForm(flavour=flavour or "auto") if is_json else ParquetForm(flavour=flavour or "v2")
    choices = Choices(mixed_protocols=mixed_protocols)
    whole = combined(sources, dim)
    whole.pins = shared
    return put(whole, place, form, choices, overwrite=overwrite, progress=progress, has_options=bool(storage_options))


def combined(sources: Sequence[ReferenceSource], dim: str | None, bounds: ComparisonBounds | None = None) -> ReferenceSource:
    """Return one source of several sets. ``bounds`` are those of the bytes that are compared.

    Raises:
        InvalidInput: they do not fit together; the message says why, and which other program can combine them.
        Conflict: an object that had to be compared has changed since its set was made.
        StorageError: references, or what has to be compared, could not be read.
    """
    whole = ReferenceSource(" + ".join(source.url for source in sources), {}, [])
    arrays: dict[str, list[tuple[str, ReferencedArray]]] = {}
    for source in sources:
        for path, node in source.groups.items():
            first = whole.groups.setdefault(path, node)
            if not same_text(_attributes(first), _attributes(node)):
                whole.left_out.setdefault(path, f"its attributes in {source.url} differ: those of the first set with this group count")
        for array in source.arrays:
            arrays.setdefault(array.path, []).append((source.url, array))
    why = "names no dimension to put them one behind the other" if dim is None else f"does not have the dimension {dim!r}"
    comparison = Comparison((source.url for source in sources), f"{why}. {_WHO_DOES_IT}", bounds or ComparisonBounds())
    for path, parts in sorted(arrays.items()):
        axes = {names.index(dim) for _, array in parts if dim in (names := _dimensions(array))} if dim is not None else set()
        if axes and len(sources) > 1:
            whole.arrays.append(_joined(path, parts, axes, len(sources)))
        else:
            if len(parts) > 1:
                _compare(comparison, path, parts)
            whole.arrays.append(parts[0][1])
    for source in sources:
        whole.left_out |= source.left_out
        whole.impossible |= source.impossible
    if both := sorted(set(whole.groups) & set(arrays)):
        raise InvalidInput(f"{both[0]!r} is a group in one set and an array in another")
    comparison.finish()
    return whole


def _compare(comparison: Comparison, path: str, parts: Sequence[tuple[str, ReferencedArray]]) -> None:
    """Compare an array that several sets have to have in common. Raises ``InvalidInput`` if they have not."""
    (first_url, first), *later = parts
    for url, other in later:
        documents = ([_document(array), _attributes(array.node)] for array in (first, other))
        if first.chunk_grid != other.chunk_grid or not same_text(*documents):
            raise comparison.refusal(path, first_url, url, "their documents differ")
    comparison.add(path, [(url, array) for url, array in parts if isinstance(array, SetArray)])


def _joined(path: str, parts: Sequence[tuple[str, ReferencedArray]], axes: set[int], sources: int) -> JoinedArray:
    if len(axes) != 1 or len(parts) != sources:
        raise InvalidInput(f"array {path!r} does not have the dimension at one place in all sets. {_WHO_DOES_IT}")
    (axis,) = axes
    _check_fits(path, parts, axis)
    node = parts[0][1].node
    shape = list(_document(parts[0][1])["shape"])
    shape[axis] = sum(_document(part)["shape"][axis] for _, part in parts)
    if node.v3 is not None:
        joined = NodeDocuments(node.v3 | {"shape": shape}, is_array=True)
    else:
        assert node.v2 is not None
        joined = NodeDocuments(None, node.v2 | {"shape": shape}, node.attributes, is_array=True)
    return JoinedArray([part for _, part in parts], axis, joined)


def _check_fits(path: str, parts: Sequence[tuple[str, ReferencedArray]], axis: int) -> None:
    """Raise ``InvalidInput`` if arrays cannot be put one behind the other along an axis."""
    (_, first), *later = parts
    shape = list(_document(first)["shape"])
    for url, other in later:
        theirs = list(_document(other)["shape"])
        same_across = shape[:axis] == theirs[:axis] and shape[axis + 1 :] == theirs[axis + 1 :]
        if not same_text(_attributes(first.node), _attributes(other.node)):
            raise InvalidInput(f"array {path!r} has other attributes in {url}, so its values may mean something else. {_WHO_DOES_IT}")
        if len(shape) != len(theirs) or not same_across or not same_text(_coding(first), _coding(other)):
            raise InvalidInput(
                f"array {path!r} in {url} has another shape across the dimension, other chunks, data type, codecs or fill value. "
                f"{_WHO_DOES_IT}"
            )
    document = _document(first)
    chunk = (document["chunks"] if "chunks" in document else document["chunk_grid"]["configuration"]["chunk_shape"])[axis]
    for url, part in parts[:-1]:
        if _document(part)["shape"][axis] % chunk:
            raise InvalidInput(f"array {path!r} in {url} does not end with a whole chunk along the dimension. {_WHO_DOES_IT}")


def _document(array: ReferencedArray) -> JsonObject:
    document = array.node.v3 or array.node.v2
    assert document is not None
    return document


def _coding(array: ReferencedArray) -> JsonObject:
    """Return the members of an array's document that say how its chunks are coded."""
    coding = ("chunks", "dtype", "compressor", "filters", "order", "fill_value", "data_type", "chunk_grid", "codecs")
    return {name: value for name, value in _document(array).items() if name in coding}


def _attributes(node: NodeDocuments) -> Any:
    return node.attributes if node.v3 is None else [node.v3.get("attributes"), node.v3.get("dimension_names")]


def _dimensions(array: ReferencedArray) -> list[Any]:
    """Return the names of an array's dimensions."""
    if array.node.v3 is not None:
        names = array.node.v3.get("dimension_names") or (array.node.v3.get("attributes") or {}).get(ARRAY_DIMENSIONS)
    else:
        names = (array.node.attributes or {}).get(ARRAY_DIMENSIONS)
    return names if isinstance(names, list) else []
