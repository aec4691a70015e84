"""The copy of an array, or of anything that can be indexed like one, into a new array: what ``data=`` means to zarr's creating functions.

zarr copies chunk by chunk, ten at a time, so each shard would be committed dozens of times. Here the regions are whole shards. Each is one
assignment, so each shard is one commit, and is durable before the copy has ended. A few regions are held in memory at once, however large
the source is.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import product
from math import prod
from typing import Any

import numpy as np
import zarr
from zarr.storage import StorePath
from zarr.storage._common import make_store_path

from shardstore.adapters.zarr.chunk_pipeline import PipelineLimits, has_place_behind, in_waves, place_behind
from shardstore.adapters.zarr.chunks import item_bytes
from shardstore.adapters.zarr_storage import storage_of
from shardstore.errors import InvalidInput
from shardstore.opening.location import location_of
from shardstore.storage.base import Storage

Region = tuple[slice, ...]

COPYING_PARAMETERS = frozenset({"store", "name", "data", "write_data", "storage_options", "overwrite"})
"""The parameters of zarr's ``from_array`` that decide where it creates an array, and what it copies."""


def copying_by_shards(from_array: Callable[..., Any]) -> Callable[..., Any]:
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
