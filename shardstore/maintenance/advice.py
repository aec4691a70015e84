"""Advice on the shard shape for a way of reading: what each candidate would cost, computed from shapes alone.

An access is a box of so many elements along each dimension at a random place of the array, every place as likely as
another. The box falls into pieces, one a shard, and along each dimension a piece has only a few possible lengths; since
the dimensions are independent, the expected number of pieces of each form is a product. What one piece costs is what
the reader does: one request where all chunks of the shard are wanted, else one for the index and the coalesced ranges.

All of it supposes that every chunk of the array exists, has the mean size, and lies in C order in its shard.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from shardstore.engine.options import EngineOptions
from shardstore.errors import InvalidInput, Unsupported
from shardstore.format.shard_index import MAX_SLOTS, IndexCodecs
from shardstore.maintenance.survey.run import ArraySurvey
from shardstore.model.coalescing import ReadLimits, coalesce
from shardstore.model.ranges import ByteRange
from shardstore.plan.policy import AUTO_MAX_CHUNKS, AUTO_SHARD_NBYTES, ArrayInfo, automatic

ChunksPerShard = tuple[int, ...]
Scalar = TypeVar("Scalar", np.int64, np.float64)

_NEAR = 1.1  # costs that differ by less than a tenth count as equal: then the smaller shard is better
_FEW = 1.5  # requests of two that cost alike count as equal up to this factor: where bytes prevail, their costs hardly differ
_MOST_EVALUATED = 500
_REQUEST_NBYTES = 32 * 2**10  # that a request is worth where the storage's limits name no gap
_INDEX_CODECS = IndexCodecs()
_ASSUMED_ITEM_NBYTES = 16  # of strings and other types without a fixed size
_ACCESS = re.compile(r"(?P<extents>[^x]*?)\s*(?:x\s*(?P<weight>[0-9]+(?:\.[0-9]+)?))?")


@dataclass(frozen=True, slots=True)
class Access:
    """A box of ``extents`` elements (``None``: the whole dimension), read ``weight`` times as often as one of weight 1."""

    extents: tuple[int | None, ...]
    weight: float = 1.0

    def __str__(self) -> str:
        extents = ",".join(":" if n is None else str(n) for n in self.extents)
        return extents if self.weight == 1.0 else f"{extents} x{self.weight:g}"


def parse_access(text: str) -> Access:
    """Read ``"1,:,: x10"``: for each dimension a number of consecutive elements or ``:`` for all, and a weight.

    Raises:
        InvalidInput: it says something else.
    """
    match = _ACCESS.fullmatch(text.strip())
    parts = [part.strip() for part in match["extents"].split(",")] if match else []
    if match is None or not all(part == ":" or (part.isascii() and part.isdecimal() and int(part) > 0) for part in parts):
        raise InvalidInput(
            f"access {text!r} is not understood: for each dimension give ':' (all of it) or a number of elements, and at the end perhaps "
            "a weight, as in '1,:,:' or '64,64,64 x10'"
        )
    weight = float(match["weight"] or 1)
    if not weight > 0:
        raise InvalidInput(f"access {text!r} has weight 0: leave it out")
    return Access(tuple(None if part == ":" else int(part) for part in parts), weight)


@dataclass(frozen=True, slots=True)
class ArrayFacts:
    """The facts that the advice depends on. Shapes in elements; ``chunk_nbytes`` is the stored size of a chunk, on average."""

    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    item_nbytes: int
    chunk_nbytes: int
    index_codecs: IndexCodecs = _INDEX_CODECS

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.chunk_shape):
            raise InvalidInput(f"shape {self.shape} and chunk shape {self.chunk_shape} need the same rank")
        if min(*self.shape, *self.chunk_shape, self.item_nbytes, self.chunk_nbytes) < 1:
            raise InvalidInput(f"shape {self.shape}, chunk shape {self.chunk_shape} and sizes in bytes have to be positive")

    @property
    def grid(self) -> tuple[int, ...]:
        """Chunks along each dimension."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk_shape, strict=True))

    @property
    def decoded_chunk_nbytes(self) -> int:
        return prod(self.chunk_shape) * self.item_nbytes

    def objects(self, chunks_per_shard: ChunksPerShard | None) -> int:
        """Return how many objects hold the array's chunks; ``None``: one a chunk."""
        return prod(-(-g // p) for g, p in zip(self.grid, chunks_per_shard or (1,) * len(self.grid), strict=True))


@dataclass(frozen=True, slots=True)
class Prediction:
    """Expected values for one access by a reader that knows the array's metadata and no index."""

    requests: float
    nbytes: float
    """Bytes fetched, indices and gaps included."""
    objects: float
    """Objects touched."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to shard the array (``chunks_per_shard`` ``None``: not at all) and what it costs; means are weighted."""

    chunks_per_shard: ChunksPerShard | None
    shard_shape: tuple[int, ...]
    decoded_nbytes: int
    """The decoded bytes of one full shard; the next field has the stored ones, with the index."""
    stored_nbytes: int
    objects: int
    predictions: tuple[Prediction, ...]
    """One an access."""
    requests: float
    nbytes: float
    cost: float
    """The cost in bytes: those that are fetched, and for each request those that are worth reading to save one."""
    write_amplification: float
    """Bytes stored for each byte of a chunk that is written alone into a full shard."""
    is_present: bool = False


@dataclass(frozen=True, slots=True)
class Advice:
    """``candidates``, the recommended one first, then by cost."""

    candidates: tuple[Candidate, ...]
    compared: tuple[Candidate, ...]
    """The sharding that is there now, and no sharding at all, as far as they are not among the candidates."""
    most_objects: int
    """The limit that the candidates were chosen by, given or derived from what ``"auto"`` would make."""
    is_over: bool = False
    """No candidate stays below the limit; these are those with the fewest objects."""


# -- what one candidate costs ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    """Along one dimension: pieces of ``length`` chunks in shards that hold ``extent`` of them, and how many an access has."""

    length: npt.NDArray[np.int64]
    extent: npt.NDArray[np.int64]
    expected: npt.NDArray[np.float64]


def _runs(size: int, chunk: int, per_shard: int, wanted: int) -> _Runs:
    """Return the pieces of ``wanted`` consecutive elements out of ``size``, over all places where they can begin."""
    grid = -(-size // chunk)
    period = chunk * per_shard
    last = (grid - 1) // per_shard  # the last shard, which may be shorter
    places = size - wanted + 1
    inner = min(places, max(0, last * period - wanted + 1))  # places from which the last shard is not touched
    rounds, rest = divmod(inner, period)
    # What a place gives changes only where its first or its last element goes into another chunk.
    steps = np.arange(-1, 2 * per_shard + 1, dtype=np.int64) * chunk
    starts: list[npt.NDArray[np.int64]] = []
    counts: list[npt.NDArray[np.int64]] = []
    if inner:
        # Places a whole shard apart are alike: those below ``rest`` occur once more than the rest.
        cuts = _cuts(np.concatenate([steps, steps + (1 - wanted) % chunk, [rest]]), 0, period)
        starts.append(cuts[:-1])
        counts.append(np.diff(cuts) * (rounds + (cuts[:-1] < rest)))
    if places > inner:
        at = inner - inner % chunk
        cuts = _cuts(np.concatenate([at + steps, at + steps + (1 - wanted) % chunk]), inner, places)
        starts.append(cuts[:-1])
        counts.append(np.diff(cuts))
    pieces: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []  # lengths, extents, how often
    for number, (start, count) in enumerate(zip(starts, counts, strict=True)):
        is_inner = bool(inner) and number == 0
        first, final = start // chunk, (start + wanted - 1) // chunk
        a, b = first // per_shard, final // per_shard
        extent_of_b = np.full_like(b, per_shard) if is_inner else np.minimum(per_shard, grid - b * per_shard)
        one = a == b
        more = ~one
        full = np.full_like(b[more], per_shard)
        pieces += [
            ((final - first + 1)[one], extent_of_b[one], count[one]),
            ((per_shard - first % per_shard)[more], full, count[more]),
            (full, full, ((b - a - 1) * count)[more]),
            ((final - b * per_shard + 1)[more], extent_of_b[more], count[more]),
        ]
    lengths, extents, weights = (np.concatenate(column) for column in zip(*pieces, strict=True))
    forms, which = np.unique(np.stack([lengths, extents]), axis=1, return_inverse=True)
    expected = np.bincount(which.reshape(-1), weights=weights.astype(np.float64), minlength=forms.shape[1]) / places
    used = expected > 0
    return _Runs(forms[0][used], forms[1][used], expected[used])


def _cuts(points: npt.NDArray[np.int64], start: int, end: int) -> npt.NDArray[np.int64]:
    """Return ``points`` inside ``[start, end)``, sorted, with both ends."""
    inside = points[(points > start) & (points < end)]
    return np.unique(np.concatenate([inside, [start, end]]))


def box(facts: ArrayFacts, access: Access) -> tuple[int, ...]:
    """Return the elements that an access reads along each dimension, never more than there are.

    Raises:
        InvalidInput: the access has another rank than the array.
    """
    if len(access.extents) != len(facts.shape):
        raise InvalidInput(f"access '{access}' names {len(access.extents)} dimensions, the array has {len(facts.shape)}")
    return tuple(n if e is None else min(e, n) for e, n in zip(access.extents, facts.shape, strict=True))


def predict(facts: ArrayFacts, chunks_per_shard: ChunksPerShard | None, access: Access, limits: ReadLimits) -> Prediction:
    """Return what one access costs in requests for chunks and indices, on average over all places of the box.

    Raises:
        InvalidInput: the access or ``chunks_per_shard`` has another rank than the array.
    """
    wanted = box(facts, access)
    if chunks_per_shard is None:
        touched = _product(_runs(n, c, 1, w).expected.sum() for n, c, w in zip(facts.shape, facts.chunk_shape, wanted, strict=True))
        return Prediction(touched, touched * facts.chunk_nbytes, touched)
    if len(chunks_per_shard) != len(facts.shape):
        raise InvalidInput(f"chunks_per_shard {chunks_per_shard} has another rank than the array's shape {facts.shape}")
    pieces = [_runs(n, c, p, w) for n, c, p, w in zip(facts.shape, facts.chunk_shape, chunks_per_shard, wanted, strict=True)]
    index_nbytes = facts.index_codecs.nbytes(prod(chunks_per_shard))
    requests, nbytes = _cost_of_boxes(
        _spread([p.length for p in pieces]), _spread([p.extent for p in pieces]), facts.chunk_nbytes, index_nbytes, limits
    )
    expected = reduce(np.multiply, _spread([p.expected for p in pieces]))
    return Prediction(float((requests * expected).sum()), float((nbytes * expected).sum()), float(expected.sum()))


def _product(factors: Iterable[float]) -> float:
    return float(prod(float(f) for f in factors))


def _spread(columns: Sequence[npt.NDArray[Scalar]]) -> list[npt.NDArray[Scalar]]:
    """Return one-dimensional arrays, each along a dimension of its own."""
    ndim = len(columns)
    return [column.reshape([-1 if axis == d else 1 for axis in range(ndim)]) for d, column in enumerate(columns)]


def _cost_of_boxes(
    lengths: Sequence[npt.NDArray[np.int64]],
    extents: Sequence[npt.NDArray[np.int64]],
    chunk_nbytes: int,
    index_nbytes: int,
    limits: ReadLimits,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return requests and bytes of each piece: a box of ``lengths`` chunks out of the ``extents`` that the shard holds.

    Between two rows of a box along some dimension lie as many chunks as the box leaves out there and in all dimensions
    behind it: from dimension to dimension outwards the gaps only grow. So from one dimension inwards everything is within
    ``gap_bytes``; outside of it each row is a group of requests of its own, and all groups are alike.
    """
    ndim = len(lengths)
    shape = np.broadcast_shapes(*(column.shape for column in lengths))
    groups = reduce(np.multiply, lengths)  # so far: every chunk by itself
    span = np.ones(shape, dtype=np.int64)  # chunks from the first to the last of a group
    depth = np.full(shape, ndim)  # the dimensions from here on are inside a group
    stride = np.ones(shape, dtype=np.int64)
    joined = np.ones(shape, dtype=np.bool_)
    for d in reversed(range(ndim)):
        joined &= ((stride - span) * chunk_nbytes <= limits.gap_bytes) | (lengths[d] == 1)
        span = np.where(joined, span + (lengths[d] - 1) * stride, span)
        groups = np.where(joined, groups // lengths[d], groups)
        depth = np.where(joined, d, depth)
        stride = stride * extents[d]
    requests, nbytes = groups.astype(np.float64), (groups * span * chunk_nbytes).astype(np.float64)
    whole = reduce(np.logical_and, [length == extent for length, extent in zip(lengths, extents, strict=True)])
    long = ~whole & (span * chunk_nbytes > limits.request_bytes)
    known: dict[tuple[tuple[int, int], ...], tuple[int, int]] = {}
    for where in zip(*np.nonzero(long), strict=True):
        inside = range(int(depth[where]), ndim)
        form = tuple((_at(lengths[d], where), _at(extents[d], where)) for d in inside)
        if form not in known:
            known[form] = _coalesced(form, chunk_nbytes, limits)
        requests[where] = groups[where] * known[form][0]
        nbytes[where] = groups[where] * known[form][1]
    return np.where(whole, 1.0, requests + 1.0), np.where(whole, stride * chunk_nbytes, nbytes) + index_nbytes


def _at(column: npt.NDArray[np.int64], where: Sequence[int]) -> int:
    """Return the element of a broadcast array."""
    return int(column[tuple(min(i, n - 1) for i, n in zip(where, column.shape, strict=True))])


def _coalesced(form: Sequence[tuple[int, int]], chunk_nbytes: int, limits: ReadLimits) -> tuple[int, int]:
    """Return requests and bytes for a box of chunks, ``(length, extent)`` along each dimension, that is too long for one request."""
    positions = np.zeros(1, dtype=np.int64)
    for length, extent in form:
        positions = (positions[:, None] * extent + np.arange(length)).reshape(-1)
    starts = (positions * chunk_nbytes).tolist()
    requests = coalesce([ByteRange(start, start + chunk_nbytes) for start in starts], limits).requests
    return len(requests), sum(r.end - r.start for r in requests)


@dataclass(frozen=True, slots=True)
class Excess:
    """Chunks hold at least ``factor`` times what an access wants; ``axes`` are those along which they are too long for it."""

    factor: float
    axes: tuple[int, ...]


def excess(facts: ArrayFacts, access: Access) -> Excess:
    """Return what chunks alone cost an access, whatever the shards: elements of the chunks that it touches for each one wanted.

    Raises:
        InvalidInput: the access has another rank than the array.
    """
    factors = [
        float(_runs(n, c, 1, w).expected.sum()) * min(c, n) / w
        for n, c, w in zip(facts.shape, facts.chunk_shape, box(facts, access), strict=True)
    ]
    return Excess(_product(factors), tuple(axis for axis, factor in enumerate(factors) if factor > 2))


# -- candidates --------------------------------------------------------------------------------------------------------


def evaluate(
    facts: ArrayFacts,
    chunks_per_shard: ChunksPerShard | None,
    accesses: Sequence[Access],
    limits: ReadLimits,
    *,
    is_present: bool = False,
) -> Candidate:
    """Return what one way to shard the array costs for these accesses.

    Raises:
        InvalidInput: there is no access, or something has another rank than the array.
    """
    if not accesses:
        raise InvalidInput("no access is given: say what is read at once, as in '1,:,:'")
    predictions = tuple(predict(facts, chunks_per_shard, access, limits) for access in accesses)
    weights = [access.weight for access in accesses]
    requests = sum(w * p.requests for w, p in zip(weights, predictions, strict=True)) / sum(weights)
    nbytes = sum(w * p.nbytes for w, p in zip(weights, predictions, strict=True)) / sum(weights)
    per_shard = chunks_per_shard or (1,) * len(facts.shape)
    held = prod(min(p, g) for p, g in zip(per_shard, facts.grid, strict=True))
    stored = held * facts.chunk_nbytes + (0 if chunks_per_shard is None else facts.index_codecs.nbytes(prod(per_shard)))
    return Candidate(
        chunks_per_shard=chunks_per_shard,
        shard_shape=tuple(c * p for c, p in zip(facts.chunk_shape, per_shard, strict=True)),
        decoded_nbytes=held * facts.decoded_chunk_nbytes,
        stored_nbytes=stored,
        objects=facts.objects(chunks_per_shard),
        predictions=predictions,
        requests=requests,
        nbytes=nbytes,
        cost=nbytes + requests * (limits.gap_bytes or _REQUEST_NBYTES),
        write_amplification=stored / facts.chunk_nbytes,
        is_present=is_present,
    )


def advise(
    facts: ArrayFacts,
    accesses: Sequence[Access],
    limits: ReadLimits,
    *,
    exists: bool = False,
    present: ChunksPerShard | None = None,
    most_objects: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Advice:
    """Rank shard shapes for ``accesses``. Candidates are powers of two and whole dimensions.

    A candidate may make ``most_objects`` objects, by default twice as many as ``"auto"`` would, and a shard holds at most
    64 MiB decoded, or twice what ``most_objects`` forces. The recommended one is, of those whose cost is within a tenth of
    the least, the smallest that makes at most half as many requests again as the one with the fewest. Where the array
    ``exists``, ``present`` is how it is sharded now (``None``: it is not).

    Raises:
        InvalidInput: there is no access, something has another rank than the array, or ``most_objects`` is not positive.
    """
    if most_objects is not None and most_objects < 1:
        raise InvalidInput(f"{most_objects} objects cannot hold an array: give a positive number")
    for access in accesses:
        box(facts, access)
    info = ArrayInfo("", facts.shape, facts.chunk_shape, facts.item_nbytes, {})
    limit = most_objects or 2 * facts.objects(automatic(info, may_grow=False))
    few, is_over = _shapes(facts, limit, most_objects)
    if len(few) > _MOST_EVALUATED:
        few = sorted(few, key=lambda c: _touched(facts, c, accesses))[:_MOST_EVALUATED]
    candidates: list[Candidate] = []
    for number, chunks_per_shard in enumerate(few):
        candidates.append(evaluate(facts, chunks_per_shard, accesses, limits, is_present=exists and chunks_per_shard == present))
        if progress is not None:
            progress(number + 1, len(few))
    compared: list[ChunksPerShard | None] = [None]
    if exists and present is not None and present not in few:
        compared.insert(0, present)
    evaluated = tuple(evaluate(facts, c, accesses, limits, is_present=exists and c == present) for c in compared)
    return Advice(_ranked(candidates), evaluated, limit, is_over)


def _shapes(facts: ArrayFacts, limit: int, most_objects: int | None) -> tuple[list[ChunksPerShard], bool]:
    """Return the shard shapes that make at most ``limit`` objects; if there are none, those that make the fewest, and ``True``."""
    forced = 0 if most_objects is None else 2 * -(-facts.objects(None) // most_objects)  # chunks a shard
    most_slots = min(MAX_SLOTS, max(AUTO_MAX_CHUNKS, forced))
    most_nbytes = max(AUTO_SHARD_NBYTES, forced * facts.decoded_chunk_nbytes)
    possible = [c for c in _possible(facts.grid) if prod(c) <= most_slots and prod(c) * facts.decoded_chunk_nbytes <= most_nbytes]
    if few := [c for c in possible if facts.objects(c) <= limit]:
        return few, False
    fewest = min((facts.objects(c) for c in possible), default=0)
    return [c for c in possible if facts.objects(c) == fewest], True


def _ranked(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Return the recommended one first, then by cost."""
    ranked = sorted(candidates, key=lambda c: (c.cost, c.stored_nbytes, c.chunks_per_shard))
    if ranked:
        near = [c for c in ranked if c.cost <= _NEAR * ranked[0].cost]
        fewest_requests = min(c.requests for c in near)
        best = min((c for c in near if c.requests <= _FEW * fewest_requests), key=lambda c: (c.stored_nbytes, c.cost))
        ranked.remove(best)
        ranked.insert(0, best)
    return tuple(ranked)


def _possible(grid: tuple[int, ...]) -> Iterable[ChunksPerShard]:
    """Return powers of two up to each dimension of the grid, and the whole dimension; but for a shard of a single chunk."""
    lengths = [sorted({g, *(1 << k for k in range(g.bit_length()))}) for g in grid]
    return (c for c in itertools.product(*lengths) if prod(c) > 1)


def _touched(facts: ArrayFacts, chunks_per_shard: ChunksPerShard, accesses: Sequence[Access]) -> float:
    """Return the number of shards that the accesses touch, weighted."""
    total = 0.0
    for access in accesses:
        sizes = zip(facts.shape, facts.chunk_shape, chunks_per_shard, box(facts, access), strict=True)
        total += access.weight * _product(_runs(*dimension).expected.sum() for dimension in sizes)
    return total


# -- arrays of a survey -----------------------------------------------------------------------------------------------


def read_limits(kind: str) -> ReadLimits:
    """Return the limits by which a store on this kind of storage merges reads, with default options."""
    return EngineOptions().read_limits(kind)


def facts_of_array(array: ArraySurvey) -> ArrayFacts:
    """Return the facts that advice on shard shapes depends on. Raises ``Unsupported`` if the chunks cannot be identified."""
    usage = array.usage
    if array.shape is None or array.chunk_shape is None or (usage is not None and usage.possible_chunks is None):
        raise Unsupported(f"the chunks of array {array.path!r} cannot be identified, so it cannot be sharded: {array.reason}")
    item = array.item_nbytes or _ASSUMED_ITEM_NBYTES
    mean = round(usage.chunk_nbytes / usage.chunks) if usage is not None and usage.chunks else prod(array.chunk_shape) * item
    return ArrayFacts(array.shape, array.chunk_shape, item, max(1, mean), IndexCodecs("little", array.index_checksum is not False))


def objects_by_default(array: ArraySurvey) -> int | None:
    """Return how many objects shards of the default size would be; ``None`` if the array would not be sharded."""
    if array.shape is None or array.chunk_shape is None:
        return None
    per_shard = automatic(ArrayInfo("", array.shape, array.chunk_shape, array.item_nbytes or _ASSUMED_ITEM_NBYTES, {}), may_grow=False)
    if per_shard is None:
        return None
    return prod(-(-n // (c * p)) for n, c, p in zip(array.shape, array.chunk_shape, per_shard, strict=True))
