"""Selections of arrays in the calling thread: zarr's indexers, buffers and event loops take ten times as long as the read of a chunk.

``read_selection`` answers integers, slices and ``...`` if the array's document is fresh, and its shards can be read in any thread. Whatever
is not as expected gets ``None``, with nothing changed: then zarr does the same, and has the words for errors.

``write_selection`` hands whole shards of an assigned array to the engine: zarr would make objects for each of their chunks, which takes a
sixth of the processor time of a full write of plain chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import zarr
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import cpu, default_buffer_prototype

from shardstore._sync import on_io_loop, run_sync
from shardstore.adapters.handle import raise_first
from shardstore.adapters.zarr.chunk_pipeline import ChunkPipeline, EnginePlace, PipelineLimits, PlanWork, place_of
from shardstore.adapters.zarr.chunks import ChunkCodec, MemoryGetter, fill_value, scatter_chunks, writer_from
from shardstore.adapters.zarr.codec_chains import AnyArray, DirectChain
from shardstore.adapters.zarr.kernel_codecs import KernelReader, KernelWriter
from shardstore.engine.engine import Engine
from shardstore.engine.index_cache import CachedIndex
from shardstore.engine.metadata.hierarchy import LocatedChunks, Node, shard_key
from shardstore.engine.reading.read_plan import Planner, ReadPlan
from shardstore.engine.writing.contents import ShardContents
from shardstore.errors import ShardStoreError
from shardstore.format.metadata_v3 import ArrayLayout, PlainArray
from shardstore.model.chunks import ChunkCoords
from shardstore.native.kernel import SelectedAlong
from shardstore.storage.base import Absent
from shardstore.threads import threads_at_once, work_in_threads

Ints = npt.NDArray[np.int64]

_settings = zarr.config.config  # the dictionary itself: to ask for a setting takes ten times as long


@dataclass(frozen=True, slots=True, eq=False)
class ReadingFacts:
    """The facts of an array that hold as long as its metadata, its configuration and zarr's choice of buffers are the same objects."""

    metadata: Any
    config: Any
    buffers: tuple[str, str]
    place: EnginePlace
    engine: Engine
    path: str
    limits: PipelineLimits
    codec: ChunkCodec
    spec: ArraySpec
    chain: DirectChain
    dtype: np.dtype[Any]
    fill: Any
    kernel_reader: KernelReader | None

    def still_hold(self, array: Any) -> bool:
        """Return whether they hold for an ``AsyncArray``. A resize gives it other metadata; buffers may be configured at any time."""
        is_same = self.metadata is array.metadata and self.config is array.config
        return is_same and (_settings["buffer"], _settings["ndbuffer"]) == self.buffers


class Along(NamedTuple):
    """The selected elements along one dimension: the first one, the end, exclusive, and the step, at least 1."""

    start: int
    stop: int
    step: int
    is_integer: bool
    """True if the dimension is not one of the result's."""

    def pieces(self, side: int) -> Sequence[int]:
        """Return the numbers of the pieces of ``side`` elements that have selected ones."""
        if self.step > side:
            return [at // side for at in range(self.start, self.stop, self.step)]
        last = self.start + (self.stop - 1 - self.start) // self.step * self.step
        return range(self.start // side, last // side + 1)


class Projected(NamedTuple):
    """The selected elements of each chunk along one dimension, ``(n,)`` each."""

    chunks: Ints
    """The number of the chunk."""
    firsts: Ints
    """The first selected element within the chunk."""
    counts: Ints
    """How many there are."""
    begins: Ints
    """Where they begin in the result."""

    @classmethod
    def of(cls, along: Along, side: int) -> Projected:
        """Return them for chunks of ``side`` elements; chunks without a selected element are left out."""
        start, stop, step, _ = along
        chunks = np.arange(start // side, (stop - 1) // side + 1)
        origins = chunks * side
        firsts = start - (start - np.maximum(origins, start)) // step * step
        counts = -((firsts - np.minimum(origins + side, stop)) // step)
        kept = counts > 0
        return cls(chunks[kept], (firsts - origins)[kept], counts[kept], ((firsts - start) // step)[kept])


def facts_of(array: Any) -> ReadingFacts | None:
    """Return the facts of a ``zarr.AsyncArray``; ``None`` if its selections have to be left to zarr."""
    pipeline = array.codec_pipeline
    if not isinstance(pipeline, ChunkPipeline) or type(pipeline).read is not ChunkPipeline.read:
        return None
    known = pipeline.facts
    if isinstance(known, ReadingFacts) and known.still_hold(array):
        return known
    pipeline.facts = found = _find_facts(array, pipeline)
    return found


def _find_facts(array: Any, pipeline: ChunkPipeline) -> ReadingFacts | None:
    metadata, config, place = array.metadata, array.config, place_of(array.store_path.store)
    if place is None or not isinstance(place.engine, Engine) or place.engine.planner is None or metadata.zarr_format != 3:
        return None
    prototype, chunk_shape = default_buffer_prototype(), getattr(metadata.chunk_grid, "chunk_shape", None)
    is_plain = prototype.buffer is cpu.Buffer and prototype.nd_buffer is cpu.NDBuffer
    if not is_plain or not isinstance(chunk_shape, tuple) or not getattr(config, "read_missing_chunks", True):
        return None
    spec = ArraySpec(chunk_shape, metadata.data_type, metadata.fill_value, config, prototype)
    codec = pipeline.chunk_codec(spec)
    chain = codec.chain(spec) if codec.is_sync(spec) else None
    dtype = spec.dtype.to_native_dtype()
    if not isinstance(chain, DirectChain) or not chain.holds(dtype) or chain.nbytes * threads_at_once() > pipeline.limits.wave_bytes:
        return None
    buffers = (_settings["buffer"], _settings["ndbuffer"])
    path = place.key(array.store_path.path).rstrip("/")
    fill = fill_value(spec)
    reader = KernelReader.of(place.kernel, chain, fill)
    return ReadingFacts(metadata, config, buffers, place, place.engine, path, pipeline.limits, codec, spec, chain, dtype, fill, reader)


def selected(selection: Any, shape: tuple[int, ...]) -> tuple[list[Along], bool] | None:
    """Return what a selection selects, and whether its result is a scalar if it has no dimensions.

    Returns ``None`` if zarr has to look at it; whatever is empty, wrong or of another kind is among that.
    """
    parts = selection if type(selection) is tuple else (selection,)
    found: list[Along] = []
    has_ellipsis = False
    for part in parts:
        at = len(found)
        if part is Ellipsis and not has_ellipsis:
            has_ellipsis = True
            found += [Along(0, n, 1, False) for n in shape[at : len(shape) - (len(parts) - 1 - at)]]
        elif at >= len(shape):
            return None
        elif type(part) is int and -shape[at] <= part < shape[at]:
            start = part + shape[at] if part < 0 else part
            found.append(Along(start, start + 1, 1, True))
        elif type(part) is slice:
            try:
                start, stop, step = part.indices(shape[at])
            except (TypeError, ValueError):
                return None
            found.append(Along(start, stop, min(step, max(1, stop - start)), False))  # a longer step, of any size, selects as much
        else:
            return None
    found += [Along(0, n, 1, False) for n in shape[len(found) :]]
    if len(found) != len(shape) or any(along.step < 1 or along.start >= along.stop for along in found):
        return None
    return found, has_ellipsis or not shape  # for zarr, integers and slices alone are orthogonal indexing, which gives an array always


def read_selection(array: Any, selection: Any) -> Any:
    """Return the selected elements of a ``zarr.AsyncArray``; ``None`` if zarr has to read them."""
    facts = facts_of(array)
    if facts is None or not facts.place.store._is_open or (planner := facts.engine.planner) is None:
        return None
    node = planner.array(facts.path)
    stored = None if node is None else node.array
    if node is None or stored is None or (stored.shape, stored.chunk_shape) != (facts.metadata.shape, facts.spec.shape):
        return None
    chosen = selected(selection, stored.shape)
    if chosen is None:
        return None
    axes, gives_scalar = chosen
    shape = tuple([-((along.start - along.stop) // along.step) for along in axes if not along.is_integer])
    out = np.empty(shape, facts.chain.dtype, facts.config.order)
    full = out if len(shape) == len(axes) else out[tuple([None if along.is_integer else slice(None) for along in axes])]
    try:
        if facts.kernel_reader is not None and planner.reads_in_threads():
            is_read = _by_kernel(facts.kernel_reader, planner, node, stored, axes, full)
        else:
            is_read = isinstance(stored, ArrayLayout) and _by_python(facts, planner, node, stored, axes, full)
    except ShardStoreError:
        return None
    if not is_read:
        return None
    if out.dtype != facts.dtype:
        out = out.byteswap(inplace=True).view(facts.dtype)
    return out[()] if gives_scalar and not shape else out


def _by_kernel(reader: KernelReader, planner: Planner, node: Node, stored: PlainArray, axes: Sequence[Along], full: AnyArray) -> bool:
    """Put the selected elements into ``full``, which has all dimensions of the array, by the kernel. Without shards, each chunk is one."""
    per_shard = stored.grid.chunks_per_shard if isinstance(stored, ArrayLayout) else (1,) * stored.ndim
    shards = [along.pieces(side * n) for along, side, n in zip(axes, stored.chunk_shape, per_shard, strict=True)]
    coords = list(product(*shards))
    keys = [shard_key(node.path, stored, at) for at in coords]
    if isinstance(stored, ArrayLayout):
        indices, hits = _indices(planner, node, stored, coords, keys)
    else:
        indices, hits = planner.whole_objects(node, stored, keys), 0
    if indices is None:
        return False
    selected_along: list[SelectedAlong] = []
    slot_stride = shard_stride = 1
    for along, n, count, numbers in zip(reversed(axes), reversed(per_shard), reversed(full.shape), reversed(shards), strict=True):
        selected_along.append(SelectedAlong(along.start, count, along.step, n, slot_stride, shard_stride))
        slot_stride *= n
        shard_stride *= len(numbers)
    read = reader.read(planner.carrier, keys, indices, selected_along[::-1], full)
    if read is None:
        return False
    planner.carrier.counters.add(requests=read[0], bytes_read=read[1], chunks_read=read[0], index_hits=hits)
    return True


def _indices(
    planner: Planner, node: Node, layout: ArrayLayout, coords: list[ChunkCoords], keys: list[str]
) -> tuple[list[CachedIndex | None] | None, int]:
    """Return the indices of shards, ``None`` if zarr has to read them, and how many of them were known."""
    if (known := planner.known_indices(node, layout, keys, may_wait=True)) is not None:
        return known, len(known) - known.count(None)
    located = LocatedChunks(node, layout, coords, keys, np.arange(len(keys)), np.zeros(len(keys), np.int64))
    found = run_sync(planner.find_indices(located))
    if found is None or any(isinstance(index, ShardStoreError) for index, _ in found):
        return None, 0
    return [index for index, _ in found if not isinstance(index, ShardStoreError)], 0


def _by_python(facts: ReadingFacts, planner: Planner, node: Node, layout: ArrayLayout, axes: Sequence[Along], full: AnyArray) -> bool:
    """Put the selected elements into ``full``, which has all dimensions of the array, by the codecs of Python."""
    coords = tuple([along.start // side for along, side in zip(axes, layout.chunk_shape, strict=True)])
    if all((along.stop - 1) // side == at for along, side, at in zip(axes, layout.chunk_shape, coords, strict=True)):
        return _one(facts, planner, node, layout, coords, axes, full)
    return _many(facts, planner, node, layout, axes, full)


def _one(
    facts: ReadingFacts, planner: Planner, node: Node, layout: ArrayLayout, coords: tuple[int, ...], axes: Sequence[Along], full: AnyArray
) -> bool:
    """Put the selected elements of one chunk into ``full``, which has all dimensions of the array."""
    place = planner.place(node, layout, coords)
    if place is None:
        return False
    if isinstance(place, Absent):
        full[...] = facts.fill
        return True
    firsts = [along.start - at * side for along, at, side in zip(axes, coords, layout.chunk_shape, strict=True)]
    if (data := planner.read_chunk(place)) is None:
        return False
    inside = tuple([slice(first, first + along.stop - along.start, along.step) for first, along in zip(firsts, axes, strict=True)])
    region = facts.chain.place_for(full) if facts.chain.takes_destination else None
    try:
        chunk = facts.chain.decode(data, region)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - of any kind; the engine, which reads it again, has the words
        return False
    if region is None:
        full[...] = chunk[inside]
    return True


def _many(facts: ReadingFacts, planner: Planner, node: Node, layout: ArrayLayout, axes: Sequence[Along], full: AnyArray) -> bool:
    """Put the selected elements of several chunks into ``full``, which has all dimensions of the array."""
    projected = [Projected.of(along, side) for along, side in zip(axes, layout.chunk_shape, strict=True)]
    nbytes, limits, is_local = prod([len(one.chunks) for one in projected]) * facts.chain.nbytes, facts.limits, planner.reads_in_threads()
    if not is_local and nbytes > limits.request_bytes:
        return False
    cells = np.indices([len(one.chunks) for one in projected]).reshape(len(axes), -1)
    coords, firsts, counts, begins = (
        np.stack([column[mine] for column, mine in zip(columns, cells, strict=True)], axis=-1) for columns in zip(*projected, strict=True)
    )
    located = LocatedChunks.at(node, layout, coords)
    plan = _plan_of(planner, located)
    if plan is None or plan.rest:
        return False
    steps = np.array([along.step for along in axes])
    getter, out = MemoryGetter(node.path, None), cpu.NDBuffer.from_numpy_array(full)
    ends = firsts + (counts - 1) * steps + 1

    def scatter(numbers: Sequence[int], values: Sequence[memoryview | None]) -> None:
        mine = list(numbers)
        inside = [
            tuple(map(slice, first, end, steps.tolist())) for first, end in zip(firsts[mine].tolist(), ends[mine].tolist(), strict=True)
        ]
        outside = [tuple(map(slice, a, b)) for a, b in zip(begins[mine].tolist(), (begins[mine] + counts[mine]).tolist(), strict=True)]
        infos = [(getter, facts.spec, a, b) for a, b in zip(inside, outside, strict=True)]
        scatter_chunks(facts.codec, infos, values, out, ())

    threads = 1 if nbytes <= limits.inline_bytes or not is_local else threads_at_once()
    parts = plan.parts(threads)
    if not is_local and sum([len(part.read.ranges) for part in parts]) != 1:
        return False  # the engine makes several requests at once
    work = PlanWork(plan, parts, scatter, limits.announced_bytes)
    work_in_threads(threads, work.run, work.stop)
    plan.count_hits(len(work.failed))
    return not work.failed


def _plan_of(planner: Planner, located: LocatedChunks) -> ReadPlan | None:
    """Return the plan of a read in the calling thread, and in those that it starts; over a network, only of known chunks of one shard."""
    if planner.reads_in_threads():
        return planner.known_chunks(located, may_wait=True) or run_sync(planner.find_chunks(located))
    return planner.known_chunks(located) if len(located.shard_keys) == 1 else None


def write_selection(array: Any, selection: Any, value: Any) -> bool:
    """Write the selected elements of a ``zarr.AsyncArray``, if they are whole shards; return ``False`` if zarr has to write all of them."""
    facts = facts_of(array) if type(value) is np.ndarray else None
    if facts is None or facts.place.kernel is None or not facts.place.store._is_open or on_io_loop() or value.dtype != facts.dtype:
        return False
    hierarchy = facts.engine.hierarchy
    layout = hierarchy.stored_layout(hierarchy.known(facts.path))  # whether it is fresh is looked at in the engine
    if layout is None or (layout.shape, layout.chunk_shape) != (facts.metadata.shape, facts.spec.shape):
        return False
    chosen = selected(selection, layout.shape)
    shards = None if chosen is None else _whole_shards(chosen[0], layout, value.shape)
    found = None if shards is None else writer_from(facts.place.kernel, facts.codec, facts.spec, value)
    if shards is None or found is None:
        return False
    facts.place.check_writable()
    contents = _contents(*found, value, layout, shards)
    outcomes = run_sync(facts.engine.replace_shards(facts.path, layout, contents))
    raise_first(outcomes.values())
    return len(outcomes) == len(contents)


def _whole_shards(axes: Sequence[Along], layout: ArrayLayout, shape: tuple[int, ...]) -> list[range] | None:
    """Return the shards along each dimension, if what is selected is nothing but whole shards, and of this shape."""
    shards: list[range] = []
    for along, side in zip(axes, layout.shard_shape, strict=True):
        if along.is_integer or along.step != 1 or along.start % side or along.stop % side:
            return None
        shards.append(range(along.start // side, along.stop // side))
    is_same = tuple([len(along) * side for along, side in zip(shards, layout.shard_shape, strict=True)]) == shape
    return shards if is_same and shards else None


def _contents(
    writer: KernelWriter, fill: bytes | None, value: AnyArray, layout: ArrayLayout, shards: Sequence[range]
) -> dict[ChunkCoords, ShardContents]:
    """Return the contents of shards, given along each dimension, of which ``value`` has the elements."""
    strides = np.array(value.strides, dtype=np.int64)
    at = (strides * layout.chunk_shape) @ np.indices(layout.index_format.chunks_per_shard).reshape(len(strides), -1)
    firsts = [along[0] for along in shards]
    coords = list(product(*shards))
    begins: list[int] = ((np.array(coords) - firsts) @ (strides * layout.shard_shape)).tolist()
    threads = -(-threads_at_once() // len(coords))
    return {shard: writer.shard(value, begin, at, fill, threads) for shard, begin in zip(coords, begins, strict=True)}


_getitem: Callable[[Any, Any], Any] = zarr.Array.__getitem__
_setitem: Callable[[Any, Any, Any], None] = zarr.Array.__setitem__
is_enabled = True
"""To compare both ways in tests: if an attribute of a class is replaced hundreds of times, CPython 3.13.0 calls the wrong method."""


@wraps(_getitem)
def _short_getitem(self: Any, selection: Any) -> Any:
    if is_enabled and type(self) is zarr.Array and (found := read_selection(self._async_array, selection)) is not None:
        return found
    return _getitem(self, selection)


@wraps(_setitem)
def _short_setitem(self: Any, selection: Any, value: Any) -> None:
    if not (is_enabled and type(self) is zarr.Array and write_selection(self._async_array, selection, value)):
        _setitem(self, selection, value)


def shorten_selections() -> None:
    """Let ``zarr.Array`` ask here first; arrays of other stores lose less than a microsecond."""
    if zarr.Array.__getitem__ is not _short_getitem:  # setting it again would empty CPython's caches of the class's methods
        zarr.Array.__getitem__ = _short_getitem  # type: ignore[method-assign]
        zarr.Array.__setitem__ = _short_setitem  # type: ignore[method-assign]
