"""A codec pipeline for zarr-python that hands whole selections and assignments to the engine.

zarr's own pipelines ask the store for one chunk after the other, ten at a time; nothing below it knows where an
assignment ends. Here one selection is one batch of reads, and one assignment is one batch of writes and deletes: one
commit a shard. Arrays of other stores go to the pipeline that was configured before; arrays that are sharded for zarr too, to
``own_shards``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from zarr.abc.codec import CodecPipeline
from zarr.abc.store import Store
from zarr.core.array import create_codec_pipeline
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.core.config import config
from zarr.storage import FsspecStore, StorePath, WrapperStore

from shardstore._sync import run_async
from shardstore.adapters.handle import Face, FilesystemFace, raise_first, values_of
from shardstore.adapters.zarr.chunks import (
    ChunkCodec,
    Info,
    MemoryGetter,
    MemorySetter,
    elements_of,
    gather_chunks,
    scatter_chunks,
    status,
    wave_bytes,
    whole_chunks,
)
from shardstore.adapters.zarr.codec_chains import DESTINATION_NBYTES
from shardstore.engine.actions import ERASE, Action, Revise, SetValue
from shardstore.engine.metadata.hierarchy import MANY_KEYS, LocatedChunks
from shardstore.engine.reading.read_plan import ReadPart, ReadPlan
from shardstore.engine.writing.contents import ShardContents
from shardstore.model.chunks import ChunkCoords
from shardstore.model.containers import batched
from shardstore.model.ranges import EVERYTHING
from shardstore.native.kernel import Kernel, kernel
from shardstore.tasks import gather_all
from shardstore.threads import INLINE_BYTES, in_threads, pieces, run_in_threads, threads_at_once

if TYPE_CHECKING:
    from typing import Self

    from zarr.abc.codec import Codec
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer

    from shardstore.presented.flavours import Presented


_SINGLE_KEY_METHODS = ("get", "set", "delete")

T = TypeVar("T")

_WAVES_AT_ONCE = 2  # at least, however large: one is decoded while the next one is being fetched


@dataclass(frozen=True, slots=True)
class PipelineLimits:
    """The bounds on the memory of one selection or assignment. Sizes are decoded bytes of chunks, unless said otherwise."""

    wave_bytes: int = 2**27
    """Chunks of at most this size are fetched, or encoded, together; shards up to it are read as one."""
    usual_wave_bytes: int = 2**22
    """A wave of this size is full: small, so that chunks are decoded while those of later waves are on their way."""
    shards_per_wave: int = 8
    """A wave has at least so many, up to ``large_wave_bytes``: over a network each wave checks the array's document, a request more."""
    large_wave_bytes: int = 2**24
    read_bytes: int = 2**27
    """The waves of a selection that are under way together."""
    write_bytes: int = 2**25
    """The waves of an assignment that are under way together: their encoded chunks are all held until they are stored."""
    announced_bytes: int = 2**26
    """The stored bytes of local files that the system is asked to fetch before they are waited for: it has to hold them until then."""
    inline_bytes: int = INLINE_BYTES
    """A batch of at most this size is decoded in the thread in which it arrives."""
    request_bytes: int = 2**20
    """A selection of at most this size that is one request over a network is read and decoded in the thread that asks."""
    destination_bytes: int = DESTINATION_NBYTES
    """Chunks of at least this size are decompressed into memory that is there already."""


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """The engine behind a zarr store, and the prefix of the store's keys in it: ``""``, or one that ends with ``/``."""

    store: Store
    engine: Presented
    prefix: str

    def key(self, path: str) -> str:
        """Return the engine's key of a path in the store."""
        return self.prefix + path

    @property
    def kernel(self) -> Kernel | None:
        """The kernel, if there is one and the store's options do not switch it off."""
        return kernel() if self.engine.options.kernel else None

    async def ensure_open(self) -> None:
        if not self.store._is_open:
            await self.store._ensure_open()

    def check_writable(self) -> None:
        """Raise if the store, or the filesystem behind it, may not be written."""
        self.store._check_writable()
        if isinstance(self.store, FsspecStore):
            self.store.fs.check_writable()


def place_of(store: object) -> EnginePlace | None:
    """Return the place of a ``ShardedStore``, or of zarr's own store over a ``ShardedFileSystem``; ``None`` for any other.

    A subclass that handles keys in its own way has no place.
    """
    if not isinstance(store, Store) or not issubclass(type(store), Store):
        return None  # or it only says that it is one, as mocks do
    if isinstance(store, Face) and store.uses_pipeline:
        return EnginePlace(store, store.engine, "")
    if not isinstance(store, FsspecStore) or not handles_keys_as(store, FsspecStore):
        return None
    if isinstance(store.fs, FilesystemFace) and store.fs.uses_pipeline:
        prefix = store.fs.key_of(store.path)
        return EnginePlace(store, store.fs.engine, prefix + "/" if prefix else "")
    return None


def has_place_behind(store: Store) -> bool:
    """Return whether the keys of a store end up in an engine, also where zarr's wrappers, or a subclass, handle them on the way."""
    innermost: object = _without_wrappers(store)
    return isinstance(innermost, Face) or (isinstance(innermost, FsspecStore) and isinstance(innermost.fs, FilesystemFace))


async def place_behind(store: Store) -> EnginePlace | None:
    """Return where the keys of a store end up; see ``has_place_behind``."""
    innermost: object = _without_wrappers(store)
    if isinstance(innermost, Face):
        return EnginePlace(store, innermost.engine, "")
    if not isinstance(innermost, FsspecStore) or not isinstance(innermost.fs, FilesystemFace):
        return None
    await innermost.fs.find_root()
    prefix = innermost.fs.key_of(innermost.path)
    return EnginePlace(store, innermost.fs.engine, prefix + "/" if prefix else "")


def _without_wrappers(store: Store) -> Store | None:
    if not issubclass(type(store), Store):
        return None  # it only says that it is one, as mocks do
    while isinstance(store, WrapperStore):
        store = store._store
    return store


def handles_keys_as(store: Store, base: type[Store]) -> bool:
    """Return whether ``store`` gets, sets and deletes one key as ``base`` does: a method that a subclass changed must not be bypassed."""
    return all(getattr(type(store), name) is getattr(base, name) for name in _SINGLE_KEY_METHODS)


_previous_path = "zarr.core.codec_pipeline.BatchedCodecPipeline"


def put_in_front(path: str) -> None:
    """Configure the pipeline at ``path`` as zarr's, in front of the configured one; do nothing if it is configured already."""
    global _previous_path
    configured = config.get("codec_pipeline.path")
    if configured != path:
        _previous_path = configured
        config.set({"codec_pipeline.path": path})


def previous_pipeline() -> type[CodecPipeline]:
    """Return the class that was configured before; it is looked up by name, since all threads share the configuration."""
    module, _, name = _previous_path.rpartition(".")
    pipeline: type[CodecPipeline] = getattr(import_module(module), name)
    return pipeline


def zarrs_own(array_metadata: Any, store: Store) -> CodecPipeline:
    """Return the pipeline that the array would have without this one."""
    try:
        return previous_pipeline().from_array_metadata_and_store(array_metadata=array_metadata, store=store)
    except NotImplementedError:
        return create_codec_pipeline(array_metadata)  # without a store it asks this class for no more than from_codecs


def previous_of_codecs(codecs: Iterable[Codec], spec: ArraySpec) -> CodecPipeline:
    """Return the previous pipeline of these codecs for chunks of this spec."""
    return previous_pipeline().from_codecs(ChunkCodec(codecs, spec).codecs)


class ChunkPipeline(CodecPipeline):
    """Reads and writes of one array behind which there is an engine."""

    def __init__(self, codecs: Iterable[Codec]) -> None:
        self.limits = PipelineLimits()
        self._codecs = tuple(codecs)
        self._codec: ChunkCodec | None = None
        self.facts: object = None
        """What ``short_path`` knows of the array."""

    # -- what zarr asks when it makes a pipeline -------------------------------------------------------------------

    @classmethod
    def from_codecs(cls, codecs: Iterable[Codec]) -> CodecPipeline:  # type: ignore[override]  # zarr has it return this class
        return previous_pipeline().from_codecs(codecs)

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:
        return self

    # -- reading and writing ---------------------------------------------------------------------------------------

    async def read(self, batch_info: Iterable[Any], out: NDBuffer, drop_axes: tuple[int, ...] = ()) -> Any:
        """Read the whole selection in one batch: at most two rounds of requests, unless it exceeds the memory bound."""
        infos = list(batch_info)
        if not infos:
            return ()
        place = place_of_all(infos)
        if place is None:
            return await self._elsewhere(infos[0][1]).read(infos, out, drop_axes)
        codec, limits = self.chunk_codec(infos[0][1]), self.limits
        is_sync = codec.is_sync(infos[0][1])
        keys = [info[0].path for info in infos]
        sizes = _sizes(infos)
        present, missing = status(True), status(False)
        found = [present] * len(infos)

        def note(numbers: Sequence[int], values: Sequence[memoryview | None]) -> None:
            for i, value in zip(numbers, values, strict=True):
                found[i] = missing if value is None else present

        def scatter(numbers: Sequence[int], values: Sequence[memoryview | None]) -> None:
            note(numbers, values)
            scatter_chunks(codec, _at(infos, numbers), values, out, drop_axes)

        rest: Sequence[int] = range(len(infos))
        plan = await _plan(place, keys, sizes, limits) if is_sync else None
        if plan is not None:
            rest = await _carry_out(plan, sum(sizes), scatter, limits)
            if not rest:
                return tuple(found)

        async def wave(within: Sequence[int]) -> None:
            numbers = _at(rest, within)
            values = await _fetch(place, _at(keys, numbers), None if located is None else located.subset(within))
            if is_sync:
                nbytes = sum(_at(sizes, numbers))
                await in_threads(len(numbers), nbytes, lambda a, b: scatter(numbers[a:b], values[a:b]), limits.inline_bytes)
                return
            note(numbers, values)
            fetched = [(MemoryGetter(keys[i], value), *infos[i][1:]) for i, value in zip(numbers, values, strict=True)]
            await codec.pipeline.read(fetched, out, drop_axes)

        keys_left, sizes_left = _at(keys, rest), _at(sizes, rest)
        waves, located = await _waves(place, keys_left, sizes_left, limits, split_shards=True)
        await in_waves(waves, sizes_left, limits.read_bytes, wave)
        return tuple(found)

    async def write(self, batch_info: Iterable[Any], value: NDBuffer, drop_axes: tuple[int, ...] = ()) -> None:
        """Write the whole assignment in one batch: one commit a shard, deletes of chunks that equal the fill value included.

        A chunk that is only partly assigned is read, decoded and encoded within the commit, and again if another client has changed it
        meanwhile: writers of different elements of one chunk lose nothing.
        """
        infos = list(batch_info)
        if not infos:
            return
        place = place_of_all(infos)
        if place is None:
            await self._elsewhere(infos[0][1]).write(infos, value, drop_axes)
            return
        place.check_writable()
        codec, limits = self.chunk_codec(infos[0][1]), self.limits
        is_sync = codec.is_sync(infos[0][1])
        keys = [info[0].path for info in infos]
        sizes = _sizes(infos)

        loop = asyncio.get_running_loop()

        def revised(number: int, old: bytes | None) -> bytes | None:
            mine, was = [infos[number]], [None if old is None else memoryview(old)]
            if is_sync:
                (new,) = gather_chunks(codec, mine, was, value, drop_axes)
            else:
                (new,) = asyncio.run_coroutine_threadsafe(_encoded_elsewhere(codec, mine, was, value, drop_axes), loop).result()
            return None if new is None else bytes(new)

        def revision(number: int) -> Revise:
            # A thread may wait for this loop, while the engine's cannot.
            return Revise(partial(revised, number), sizes[number] if is_sync else max(sizes[number], INLINE_BYTES + 1))

        async def wave(numbers: Sequence[int]) -> None:
            whole = [i for i in numbers if infos[i][4]]
            mine = _at(infos, whole)
            if is_sync:
                parts = await in_threads(
                    len(mine),
                    sum(_at(sizes, whole)),
                    lambda a, b: gather_chunks(codec, mine[a:b], [None] * (b - a), value, drop_axes, place.kernel),
                    limits.inline_bytes,
                )
                encoded = dict(zip(whole, chain.from_iterable(parts), strict=True))
            else:
                encoded = dict(zip(whole, await _encoded_elsewhere(codec, mine, [None] * len(mine), value, drop_axes), strict=True))
            updates: list[tuple[str, Action]] = []
            for i in numbers:
                data = encoded.get(i)
                action = revision(i) if i not in encoded else ERASE if data is None else SetValue(data)
                updates.append((place.key(keys[i]), action))
            await place.ensure_open()
            raise_first(await run_async(place.engine.update_many(updates)))

        rest: Sequence[int] = range(len(infos))
        if is_sync and not drop_axes and value.shape != () and all(info[4] for info in infos):
            rest = await _write_shards(place, codec, infos, keys, value)
        if rest:
            waves, _ = await _waves(place, _at(keys, rest), _at(sizes, rest), limits, split_shards=False)
            await in_waves([_at(rest, numbers) for numbers in waves], sizes, limits.write_bytes, wave)

    def chunk_codec(self, spec: ArraySpec) -> ChunkCodec:
        """Return the codecs fitted to the array's chunks."""
        if self._codec is None:
            self._codec = ChunkCodec(self._codecs, spec, self.limits.destination_bytes)
        return self._codec

    def _elsewhere(self, spec: ArraySpec) -> CodecPipeline:
        """Return the pipeline for byte getters that are not ours, such as those of a wrapped store."""
        return previous_pipeline().from_codecs(self.chunk_codec(spec).codecs)

    # -- the rest of zarr's interface ------------------------------------------------------------------------------

    @property
    def _plain(self) -> BatchedCodecPipeline:
        return self._codec.pipeline if self._codec is not None else BatchedCodecPipeline.from_codecs(self._codecs)

    @property
    def supports_partial_decode(self) -> bool:
        return False

    @property
    def supports_partial_encode(self) -> bool:
        return False

    def validate(self, **kwargs: Any) -> None:
        self._plain.validate(**kwargs)

    def compute_encoded_size(self, byte_length: int, array_spec: ArraySpec) -> int:
        return self._plain.compute_encoded_size(byte_length, array_spec)

    async def decode(self, chunk_bytes_and_specs: Iterable[tuple[Buffer | None, ArraySpec]]) -> Iterable[NDBuffer | None]:
        return await self._plain.decode(chunk_bytes_and_specs)

    async def encode(self, chunk_arrays_and_specs: Iterable[tuple[NDBuffer | None, ArraySpec]]) -> Iterable[Buffer | None]:
        return await self._plain.encode(chunk_arrays_and_specs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._codecs == other._codecs  # zarr compares arrays by their pipelines too

    def __hash__(self) -> int:
        return hash(self._codecs)

    def __getstate__(self) -> dict[str, Any]:
        return {"codecs": self._codecs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ChunkPipeline.__init__(self, state["codecs"])


def place_of_all(infos: Sequence[Info]) -> EnginePlace | None:
    """Return the place that all chunks belong to; ``None`` if there is no common one."""
    getter = infos[0][0]
    if not isinstance(getter, StorePath):
        return None
    store = getter.store
    for info in infos:
        if not isinstance(info[0], StorePath) or info[0].store is not store:
            return None
    return place_of(store)


def _at(items: Sequence[T], numbers: Sequence[int]) -> list[T]:
    """Return the items of these numbers."""
    return [items[i] for i in numbers]


def _sizes(infos: Sequence[Info]) -> list[int]:
    """Return the decoded bytes of each chunk; all are of one array, so equal shapes have equal sizes."""
    known: dict[tuple[int, ...], int] = {}
    sizes: list[int] = []
    for info in infos:
        spec = info[1]
        nbytes = known.get(spec.shape)
        if nbytes is None:
            nbytes = known[spec.shape] = wave_bytes(spec)
        sizes.append(nbytes)
    return sizes


async def _fetch(place: EnginePlace, keys: Sequence[str], located: LocatedChunks | None = None) -> list[memoryview | None]:
    if not keys:
        return []
    await place.ensure_open()
    return values_of(await run_async(place.engine.get_many([(place.key(key), EVERYTHING) for key in keys], located)))


async def _plan(place: EnginePlace, keys: Sequence[str], sizes: Sequence[int], limits: PipelineLimits) -> ReadPlan | None:
    """Return the plan by which this process reads chunks of so many decoded bytes in its threads; ``None`` if it cannot."""
    if not place.engine.plans_reads or max(sizes) * threads_at_once() > limits.wave_bytes:
        return None
    if 1 < len(keys) < MANY_KEYS and sum(sizes) > limits.inline_bytes and not place.engine.keeps_chunks:
        return None  # they come by one request, and are decoded by several threads
    await place.ensure_open()
    mine = [place.key(key) for key in keys]
    known = place.engine.known_plan(mine)
    if isinstance(known, ReadPlan):
        return known
    if len(keys) < MANY_KEYS and not place.engine.keeps_chunks:
        return None  # the engine locates and reads few in one call
    return await run_async(place.engine.plan_read(mine, known))


async def _write_shards(
    place: EnginePlace, codec: ChunkCodec, infos: Sequence[Info], keys: Sequence[str], value: NDBuffer
) -> Sequence[int]:
    """Write the shards whose chunks the kernel encodes in the threads that store them; return the numbers of the chunks that are left."""
    numbers: Sequence[int] = range(len(infos))
    if (kernel := place.kernel) is None:
        return numbers
    whole = whole_chunks(kernel, codec, infos, elements_of(value))
    if whole is None or len(whole.numbers) < len(infos):
        return numbers
    mine = [place.key(key) for key in keys]
    if (located := await run_async(place.engine.locate_chunks(mine))) is None:
        return numbers
    of_shards = dict(zip(located.shard_coords, located.numbers(), strict=True))
    contents: dict[ChunkCoords, ShardContents] = {}
    for coords, shard in of_shards.items():
        at = np.full(located.layout.grid.nslots, -1, dtype=np.int64)
        at[located.slots[shard]] = whole.at[shard]
        if (at >= 0).all():
            contents[coords] = whole.writer.shard(whole.source, 0, at, whole.fill, -(-threads_at_once() // len(of_shards)))
    if not contents:
        return numbers
    outcomes = await run_async(place.engine.replace_shards(located.node.path, located.layout, contents))
    raise_first(list(outcomes.values()))
    return [number for coords, shard in of_shards.items() if coords not in outcomes for number in shard.tolist()]


async def _encoded_elsewhere(
    codec: ChunkCodec, infos: Sequence[Info], old: Sequence[memoryview | None], value: NDBuffer, drop_axes: tuple[int, ...]
) -> list[memoryview | None]:
    """Return what ``gather_chunks`` does, by zarr's own pipeline: codecs that cannot be called without a loop, or arrays on a GPU."""
    setters = [MemorySetter(info[0].path, data) for info, data in zip(infos, old, strict=True)]
    await codec.pipeline.write([(setter, *info[1:]) for setter, info in zip(setters, infos, strict=True)], value, drop_axes)
    return [setter.result() for setter in setters]


Scatter = Callable[[Sequence[int], Sequence[memoryview | None]], None]
"""A function that puts chunks, given by their numbers, into the output."""


async def _carry_out(plan: ReadPlan, nbytes: int, scatter: Scatter, limits: PipelineLimits) -> Sequence[int]:
    """Read and scatter chunks of so many decoded bytes; the numbers of those that are left, in whose place there may be anything."""
    is_short = nbytes <= limits.inline_bytes  # then it is done here, unless it has to be waited for
    work = PlanWork(plan, plan.parts(1 if is_short else threads_at_once()), scatter, limits.announced_bytes)
    if is_short:
        work.run_without_waiting()
    if tasks := len(work.waiting) + len(work.late):
        await run_in_threads(tasks, nbytes, work.run, work.stop, inline_bytes=0)
    plan.count_hits(len(work.failed))
    return sorted([*plan.rest, *(i for at in work.failed for i in plan.objects[at].numbers.tolist())])


class PlanWork:
    """The work of several threads on one plan: each takes the next part when it asks."""

    def __init__(self, plan: ReadPlan, parts: Sequence[ReadPart], scatter: Scatter, announced_bytes: int) -> None:
        self._plan = plan
        self._scatter = scatter
        self.waiting: deque[ReadPart | Sequence[int]] = deque(parts)
        """Parts, and the numbers of chunks that are missing."""
        self.waiting.extend(plan.missing[start:end] for start, end in pieces(len(plan.missing)))
        self.late: deque[ReadPart] = deque()
        """Parts that the system was asked to fetch."""
        self._most_late = max(1, announced_bytes // max([1, *(part.nbytes for part in parts)]))
        self.failed: set[int] = set()
        """The numbers of objects of which nothing counts."""

    def stop(self) -> None:
        self.waiting.clear()
        self.late.clear()

    def run(self) -> None:
        """Work until nothing is left."""
        while (task := self._next()) is not None:
            task()

    def run_without_waiting(self) -> None:
        """Work until only parts are left that have to be waited for."""
        while self.waiting:
            self._begin(self.waiting.popleft())

    def _next(self) -> Callable[[], None] | None:
        while self.waiting or self.late:
            try:
                if len(self.late) > self._most_late or not self.waiting:
                    return partial(self._wait_for, self.late.popleft())
                return partial(self._begin, self.waiting.popleft())
            except IndexError:  # another thread took it
                continue
        return None

    def _begin(self, part: ReadPart | Sequence[int]) -> None:
        if not isinstance(part, ReadPart):
            self._scatter(part, [None] * len(part))
        elif part.at not in self.failed:
            values = self._plan.in_memory(part)
            if values is None:
                self.late.append(part)
            else:
                self._scatter(part.numbers, values)

    def _wait_for(self, part: ReadPart) -> None:
        values = None if part.at in self.failed else self._plan.wait_for(part)
        if values is None:
            self.failed.add(part.at)
        else:
            self._scatter(part.numbers, values)


async def _waves(
    place: EnginePlace, keys: Sequence[str], sizes: Sequence[int], limits: PipelineLimits, *, split_shards: bool
) -> tuple[list[Sequence[int]], LocatedChunks | None]:
    """Return the numbers of chunks that are handled together: whole shards, as many as make a wave full; and where the chunks are.

    A shard that exceeds the bound on memory is one commit all the same; for reading it is split.
    """
    most = limits.wave_bytes
    full, large = min(limits.usual_wave_bytes, most), min(max(limits.usual_wave_bytes, limits.large_wave_bytes), most)
    if place.engine.keeps_chunks:  # a file of chunks may be shared by many of these groups
        full = large
    if sum(sizes) <= full:
        return [range(len(keys))], None
    groups, located = await _shards(place, keys)
    waves: list[list[int]] = [[]]
    held = shards = 0
    for group in groups:
        nbytes = sum(sizes[i] for i in group)
        if split_shards and nbytes > most:
            at_once = max(1, most // max(sizes[i] for i in group))
            waves[-1:-1] = map(list, batched(group, at_once))
            continue
        if waves[-1] and held + nbytes > (full if shards >= limits.shards_per_wave else large):
            waves.append([])
            held = shards = 0
        waves[-1] += group
        held += nbytes
        shards += 1
    return [wave for wave in waves if wave], located


async def _shards(place: EnginePlace, keys: Sequence[str]) -> tuple[Sequence[Sequence[int]], LocatedChunks | None]:
    """Return the numbers of the chunks of each shard; and where the chunks are, if that is known."""
    mine = [place.key(key) for key in keys]
    located = await run_async(place.engine.locate_chunks(mine))
    if located is None:
        return await run_async(place.engine.shard_groups(mine)), None
    return [numbers.tolist() for numbers in located.numbers()], located


async def in_waves(waves: Sequence[Sequence[int]], sizes: Sequence[int], at_once_bytes: int, run: Any) -> None:
    """Run several waves at once, if there are any; the first error is raised when all that have begun have ended."""
    if len(waves) == 1:
        await run(waves[0])
        return
    largest = max((sum(sizes[i] for i in wave) for wave in waves), default=0)
    bound = asyncio.Semaphore(max(_WAVES_AT_ONCE, at_once_bytes // max(1, largest)))
    failed = False

    async def one(numbers: Sequence[int]) -> None:
        nonlocal failed
        async with bound:
            if failed:
                return
            try:
                await run(numbers)
            except BaseException:
                failed = True
                raise

    await gather_all(*(one(numbers) for numbers in waves))
