"""Methods and functions of zarr-python that are replaced: for arrays that are seen by their shards, for arrays that shrink, and before
nodes are created.

zarr gives a pipeline neither the array that it is of, nor the chunks that go because an array shrinks. It deletes their keys one by one,
whether the chunks are there or not; of an array that is seen by its shards these are the keys of other, smaller chunks. So the two methods
of ``zarr.AsyncArray`` are replaced by ones that do the same for arrays in other stores. Without them no array with shards of its own is
accepted.

What changes the shape or the attributes of an array stores the whole document, as it was when the array was opened, with the change. If
another client has changed the shape since, that would take rows away. So the store gets to know the shape that the document began with.

What creates a node deletes what is there (``overwrite=True``), stores the parents, and only then the node's document, which the store may
refuse. So it is replaced by a function that first asks the store whether it will.

What creates an array from data (``data=``) copies it chunk by chunk, ten at a time, so each shard would be committed dozens of times. Here
the regions are whole shards. Each is one assignment, so each shard is one commit, and is durable before the copy has ended. A few regions
are held in memory at once, however large the source is.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from functools import wraps
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
import zarr.api.asynchronous
import zarr.core.array
import zarr.core.group
import zarr.core.sync_group
from fsspec.asyn import get_loop
from zarr.abc.codec import CodecPipeline
from zarr.codecs import ShardingCodec
from zarr.core.array import AsyncArray, create_codec_pipeline
from zarr.core.buffer import default_buffer_prototype
from zarr.core.common import parse_shapelike
from zarr.core.group import AsyncGroup, GroupMetadata
from zarr.storage import MemoryStore, StorePath
from zarr.storage._common import make_store_path

from shardstore._sync import run_async, run_sync
from shardstore.adapters.own_shards import seen_shape
from shardstore.adapters.zarr.chunk_pipeline import (
    ChunkPipeline,
    EnginePlace,
    PipelineLimits,
    has_place_behind,
    in_waves,
    place_behind,
    place_of,
)
from shardstore.adapters.zarr.chunks import item_bytes
from shardstore.adapters.zarr_storage import storage_of
from shardstore.engine.actions import SetValue
from shardstore.engine.metadata.translation import OwnShards, refusal_of_shards
from shardstore.errors import InvalidInput
from shardstore.format.json_text import JsonObject, loads_object
from shardstore.format.metadata_v3 import METADATA_NAME
from shardstore.format.presentation import same_chunks
from shardstore.format.store_keys import check_key, join, metadata_key
from shardstore.format.v2.keys import ARRAY_NAME, GROUP_NAME
from shardstore.model.chunks import RemovedChunks
from shardstore.model.ranges import EVERYTHING
from shardstore.opening.location import location_of
from shardstore.storage.base import Storage

if TYPE_CHECKING:
    from zarr.core.metadata.v3 import ArrayV3Metadata

Region = tuple[slice, ...]


class ArrayPipeline(CodecPipeline):
    """A pipeline that knows which array it is of, and what of it is stored."""

    def bind(self, store_path: StorePath) -> None:
        """Note that this is the pipeline of the array at ``store_path``."""
        raise NotImplementedError

    async def erase_outside(self, store_path: StorePath, shape: tuple[int, ...], new_shape: tuple[int, ...]) -> bool:
        """Erase the chunks that a smaller shape leaves outside; return ``False`` if zarr has to do it."""
        raise NotImplementedError

    async def shards_with_chunks(self, store_path: StorePath) -> Collection[str] | None:
        """Return the keys of the shards that hold a chunk; ``None`` if zarr has to find out."""
        raise NotImplementedError


_CREATE_ONE = ((zarr.core.array, "init_array"), (AsyncArray, "_create_v2"), (AsyncArray, "_create_v3"), (AsyncGroup, "from_store"))
"""The functions of zarr that create one node, which all other functions call."""
_WHERE = ("store_path", "store")
"""The parameters of zarr's functions that say where a node is to be created."""
_COPYING_PARAMETERS = frozenset({"store", "name", "data", "write_data", "storage_options", "overwrite"})
"""The parameters of zarr's ``from_array`` that decide where it creates an array, and what it copies."""
_is_replaced = False
_initialised = AsyncArray.__init__
_resized = AsyncArray.resize
_STORING = ("_resize", "_update_attributes")
"""The functions of zarr that store an array's document again, which its methods call; the array is their first argument."""
_shards_initialized = getattr(zarr.core.array, "_shards_initialized", None)


def is_sharded(array_metadata: Any) -> bool:
    """Return whether zarr itself sees the array as sharded."""
    return any(isinstance(codec, ShardingCodec) for codec in getattr(array_metadata, "codecs", ()))


def document_of(metadata: ArrayV3Metadata) -> JsonObject:
    """Return the document of an array as zarr would store it."""
    return loads_object(metadata.to_buffer_dict(default_buffer_prototype())[METADATA_NAME].to_bytes())


def replace_methods() -> None:
    """Replace the methods and functions of zarr, once; those that are not as they are known stay."""
    global _is_replaced
    if _is_replaced:
        return
    _is_replaced = True
    _replace_creation()
    for name in _STORING:
        if (known := getattr(zarr.core.array, name, None)) is not None and "array" in inspect.signature(known).parameters:
            setattr(zarr.core.array, name, _storing_what_was_seen(known))
    if "delete_outside_chunks" not in inspect.signature(_resized).parameters:
        return
    array_class: Any = AsyncArray
    array_class.__init__ = _init
    array_class.resize = _resize
    if _shards_initialized is not None:
        zarr.core.array._shards_initialized = _with_chunks


def _replace_creation() -> None:
    """Make zarr ask before it creates: each of its functions that is as it is known."""
    place: Any
    for place, name in _CREATE_ONE:
        known = inspect.getattr_static(place, name, None)
        create = known.__func__ if isinstance(known, classmethod) else known
        if create is None or not any({"overwrite", where} <= inspect.signature(create).parameters.keys() for where in _WHERE):
            continue
        asking = _asking_first(create)
        setattr(place, name, classmethod(asking) if isinstance(known, classmethod) else asking)
    hierarchy = zarr.core.group.create_hierarchy
    if {"store", "nodes"} <= inspect.signature(hierarchy).parameters.keys():
        _replace_everywhere(hierarchy, _asking_of_each(hierarchy))
    from_array = zarr.core.array.from_array
    if inspect.signature(from_array).parameters.keys() >= _COPYING_PARAMETERS:
        _replace_everywhere(from_array, _copying_by_shards(from_array))


def _replace_everywhere(known: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    """Replace a function in all modules of zarr that call it."""
    for module in (zarr.core.array, zarr.core.group, zarr.core.sync_group, zarr.api.asynchronous):
        for name in [name for name, value in vars(module).items() if value is known]:
            setattr(module, name, replacement)


@wraps(_initialised)
def _init(self: Any, *args: Any, **kwargs: Any) -> None:
    _initialised(self, *args, **kwargs)
    pipeline = self.codec_pipeline
    if isinstance(pipeline, ArrayPipeline):
        pipeline.bind(self.store_path)
    elif is_sharded(self.metadata) and has_place_behind(self.store_path.store) and not _runs_on_io_loop():
        run_sync(_refuse_unshown(self))  # which would block that loop; the store refuses then


async def _refuse_unshown(array: Any) -> None:
    """Refuse an array that is sharded for zarr and does not have our pipeline, unless the store shows it like that: it would take a whole
    shard for what the store calls a chunk.

    Raises:
        InvalidInput: it is one, or it is not there.
    """
    if (place := await place_behind(array.store_path.store)) is None:
        return
    path = place.key(array.store_path.path).rstrip("/")
    data = await place.engine.get((check_key(metadata_key(path)), EVERYTHING))
    if data is None or not same_chunks(document_of(array.metadata), loads_object(data)):
        raise InvalidInput(refusal_of_shards(path))


def _runs_on_io_loop() -> bool:
    try:
        return asyncio.get_running_loop() is get_loop()
    except RuntimeError:
        return False


# -- creation ----------------------------------------------------------------------------------------------------------


def _asking_first(create: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does what ``create`` does, but first asks the store whether it accepts the document of the new node.

    The node is created twice, first in memory: this gives the document, and zarr raises its own errors before anything is deleted. zarr's
    warnings come twice too; with Python's default filters the second is not shown.
    """
    signature = inspect.signature(create)
    where = next(name for name in _WHERE if name in signature.parameters)

    @wraps(create)
    async def creating(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        for name, value in given.arguments.items():
            if isinstance(value, Iterator):
                given.arguments[name] = tuple(value)  # it is gone through twice
        store_path = given.arguments[where] = await make_store_path(given.arguments[where])
        if not store_path.read_only and has_place_behind(store_path.store):
            in_memory = {where: StorePath(MemoryStore(), store_path.path), "overwrite": False}
            trial = inspect.BoundArguments(signature, OrderedDict(given.arguments | in_memory))
            await _refuse_creation(store_path, (await create(*trial.args, **trial.kwargs)).metadata)
        return await create(*given.args, **given.kwargs)

    return creating


def _asking_of_each(create: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same for what creates many nodes, from their metadata.

    Their arrays are made first, as newer versions of zarr do: the store accepts shards of their own from arrays that have our pipeline.
    """

    @wraps(create)
    async def creating(*, store: Any, nodes: Mapping[str, Any], **kwargs: Any) -> AsyncGenerator[Any, None]:
        arrays: list[object] = []
        if not store.read_only and has_place_behind(store):
            for path, metadata in nodes.items():
                await _refuse_creation(StorePath(store, path), metadata)
            arrays = [
                AsyncArray(metadata, StorePath(store, path)) for path, metadata in nodes.items() if not isinstance(metadata, GroupMetadata)
            ]
        async for node in create(store=store, nodes=nodes, **kwargs):
            yield node
        del arrays  # until here

    return creating


async def _refuse_creation(store_path: StorePath, metadata: Any) -> None:
    """Refuse a new node of which the store, which is one of ours, would refuse the document where nothing is.

    Raises:
        InvalidInput: it is sharded for zarr and does not have our pipeline, or does not fit the options of the store.
    """
    if (place := await place_behind(store_path.store)) is None:
        return
    await place.ensure_open()
    expands = is_sharded(metadata) and isinstance(create_codec_pipeline(metadata, store=store_path.store), ArrayPipeline)
    own_shards = OwnShards.NEW if expands else OwnShards.REFUSED
    documents = metadata.to_buffer_dict(default_buffer_prototype())
    path = place.key(store_path.path).rstrip("/")
    for name in (METADATA_NAME, ARRAY_NAME, GROUP_NAME):
        if name in documents:
            await run_async(place.engine.check_new(join(path, name), documents[name].to_bytes(), own_shards))


# -- documents that are stored again -----------------------------------------------------------------------------------


def _storing_what_was_seen(store: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does the same, and lets the store compare the shape that the array had when it was opened."""

    @wraps(store)
    async def storing(array: Any, *args: Any, **kwargs: Any) -> Any:
        token = seen_shape.set(array.metadata.shape)
        try:
            return await store(array, *args, **kwargs)
        finally:
            seen_shape.reset(token)

    return storing


# -- smaller arrays, and what there is of them -------------------------------------------------------------------------


@wraps(_resized)
async def _resize(self: Any, new_shape: Any, delete_outside_chunks: bool = True) -> None:
    if delete_outside_chunks and isinstance(self.codec_pipeline, ArrayPipeline | ChunkPipeline):
        shape = parse_shapelike(new_shape)
        if len(shape) == len(self.metadata.shape):  # zarr has the words for it where it is not
            self.metadata.update_shape(shape).to_buffer_dict(default_buffer_prototype())  # what zarr refuses is refused first
            if any(new < old for new, old in zip(shape, self.metadata.shape, strict=True)):
                await _refuse_unseen(self)
            delete_outside_chunks = not await _erase_outside(self, shape)
    await _resized(self, new_shape, delete_outside_chunks)


async def _refuse_unseen(array: Any) -> None:
    """Refuse to make an array smaller that has not the shape any more that it had when it was opened, before anything is erased.

    Raises:
        Conflict: another client has changed it.
    """
    if (place := place_of(array.store_path.store)) is None:
        return
    await place.ensure_open()
    name = METADATA_NAME if array.metadata.zarr_format == 3 else ARRAY_NAME
    key = place.key(join(array.store_path.path, name))
    SetValue(b"", seen_shape=array.metadata.shape).check_seen(key, await run_async(place.engine.get((key, EVERYTHING))))


async def _erase_outside(array: Any, new_shape: tuple[int, ...]) -> bool:
    """Erase the chunks that a smaller shape leaves outside, in one batch; return ``False`` if zarr has to do it, one by one."""
    pipeline, store_path = array.codec_pipeline, array.store_path
    if isinstance(pipeline, ArrayPipeline):
        return await pipeline.erase_outside(store_path, array.metadata.shape, new_shape)
    place = place_of(store_path.store)
    try:
        chunk_shape: tuple[int, ...] = array.chunks
    except NotImplementedError:  # zarr has no such shape of an array whose chunks are of several sizes
        return False
    return place is not None and await erase_removed(
        place, store_path.path, chunk_shape, removed_chunks(chunk_shape, array.metadata.shape, new_shape)
    )


def removed_chunks(
    cell_shape: tuple[int, ...], shape: tuple[int, ...], new_shape: tuple[int, ...], chunks_per_cell: tuple[int, ...] | None = None
) -> RemovedChunks:
    """Return the chunks that a smaller shape removes. zarr removes a cell, a chunk or a shard, if none of its elements is left."""
    counts = chunks_per_cell or (1,) * len(cell_shape)
    before, after = (tuple(-(-n // cell) * count for n, cell, count in zip(s, cell_shape, counts, strict=True)) for s in (shape, new_shape))
    return RemovedChunks(before, after)


async def erase_removed(place: EnginePlace, path: str, chunk_shape: tuple[int, ...], removed: RemovedChunks) -> bool:
    """Erase the chunks that an array at a path in the store loses; return ``False`` if zarr has to do it."""
    if removed.is_empty:
        return True
    await place.ensure_open()
    place.check_writable()
    return await run_async(place.engine.erase_removed(place.key(path).rstrip("/"), chunk_shape, removed))


async def _with_chunks(array: Any) -> tuple[str, ...]:
    """Return the keys of the shards that hold a chunk, as zarr names them."""
    pipeline = getattr(array, "codec_pipeline", None)
    shards = await pipeline.shards_with_chunks(array.store_path) if isinstance(pipeline, ArrayPipeline) else None
    if shards is None:
        assert _shards_initialized is not None
        initialized: tuple[str, ...] = await _shards_initialized(array)
        return initialized
    return tuple(key for key in array._iter_shard_keys() if key in shards)


# -- copies into new arrays --------------------------------------------------------------------------------------------


def _copying_by_shards(from_array: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does what zarr's ``from_array`` does, and copies whole shards into the stores that are ours."""
    signature = inspect.signature(from_array)

    @wraps(from_array)
    async def creating(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        options = given.arguments
        if not options["write_data"]:
            return await from_array(*args, **kwargs)
        store_path = await make_store_path(
            options["store"], path=options["name"], mode="a", storage_options=options["storage_options"]
        )  # as zarr does
        if not has_place_behind(store_path.store):
            return await from_array(*args, **kwargs)
        data = options["data"]
        if options["overwrite"] and isinstance(data, zarr.Array):
            await _refuse_overlap(data.store_path, store_path)
        if not (hasattr(data, "dtype") and hasattr(data, "shape")):
            data = np.array(data)
        options.update(store=store_path, name=None, storage_options=None, data=data, write_data=False)
        array = await from_array(*given.args, **given.kwargs)
        await _copy(data, array)
        return array

    return creating


async def _refuse_overlap(source: StorePath, target: StorePath) -> None:
    """Refuse to overwrite an array by a copy of itself, or of what lies below it or around it: it is erased before it is copied.

    Raises:
        InvalidInput: the two are one place, or one lies in the other.
    """
    one, other = await _storage_at(source), await _storage_at(target)
    if one is not None and other is not None and await asyncio.to_thread(lambda: location_of(*one).overlaps(location_of(*other))):
        raise InvalidInput(
            f"array {target.path!r} is not overwritten by a copy of {source.path!r}, which lies in the same place and would be erased "
            "before it is copied: write to another path, or pass its values, data=array[...]"
        )


async def _storage_at(store_path: StorePath) -> tuple[Storage, str] | None:
    """Return the storage that a node lies in, and its path there; ``None`` if its store cannot be used."""
    if has_place_behind(store_path.store):
        place = await place_behind(store_path.store)
        return None if place is None else (place.engine.storage, place.key(store_path.path).strip("/"))
    try:
        return storage_of(store_path), ""
    except InvalidInput:  # an archive that was closed
        return None


async def _copy(data: Any, array: Any) -> None:
    """Copy ``data`` into an array that has just been created, of the same shape and in a store of ours.

    The first error is raised when all assignments that have begun have ended; what they have written stays, as with zarr alone.
    """
    limits = PipelineLimits()
    regions, nbytes = await _regions(array, limits.large_wave_bytes)

    async def copy(numbers: Sequence[int]) -> None:
        for region in (regions[number] for number in numbers):
            part = await data.async_array.getitem(region) if isinstance(data, zarr.Array) else data[region]
            await array.setitem(region, part)

    await in_waves([[number] for number in range(len(regions))], [nbytes] * len(regions), limits.write_bytes, copy)


async def _regions(array: Any, most_bytes: int) -> tuple[list[Region], int]:
    """Return regions that cover an array, and the decoded bytes of the largest.

    Each has whole shards; of an array without shards, whole chunks. Small ones are taken together, neighbours along the last dimensions, up
    to ``most_bytes``.
    """
    item = item_bytes(array.dtype)
    place = await place_behind(array.store_path.store)
    assert place is not None
    node = place.engine.hierarchy.known(place.key(array.store_path.path).rstrip("/"))  # since it was created
    try:
        unit: Sequence[int] = (array.shards or array.chunks) if node is None or node.layout is None else node.layout.shard_shape
    except NotImplementedError:  # zarr has no such shape of an array whose chunks are of several sizes
        irregular: list[Region] = list(array._iter_shard_regions())
        return irregular, max([0, *(prod(s.stop - s.start for s in region) * item for region in irregular)])
    shape: tuple[int, ...] = array.shape
    region = _grown(unit, shape, most_bytes // item)
    along = [[slice(start, min(start + n, length)) for start in range(0, length, n)] for n, length in zip(region, shape, strict=True)]
    return list(product(*along)), prod(map(min, region, shape)) * item


def _grown(unit: Sequence[int], shape: Sequence[int], most: int) -> list[int]:
    """Return the shape of a region: as many units as fit into ``most`` elements, one at least, along the last dimension first."""
    region = list(unit)
    for axis in reversed(range(len(region))):
        count = -(-shape[axis] // unit[axis])
        fit = min(count, most // max(1, prod(map(min, region, shape))))
        region[axis] *= max(1, fit)
        if fit < count:
            break
    return region
