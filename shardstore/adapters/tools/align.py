"""``align``: chunks of dask arrays that match the shards which they are going to be written to.

A dask task that writes half of a shard is safe, but the shard is then committed twice, and each commit copies what the
other wrote. With aligned chunks every shard is committed once. xarray and dask are imported only if the data is theirs.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from fsspec.core import url_to_fs

from shardstore._sync import run_sync
from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
from shardstore.adapters.handle import Handle, values_of
from shardstore.errors import InvalidInput, Unsupported
from shardstore.extras import imported_zarr
from shardstore.format.json_text import JsonObject, loads_object
from shardstore.format.metadata_v3 import METADATA_NAME, ArrayLayout, is_array, parse_plain
from shardstore.format.store_keys import join
from shardstore.model.ranges import EVERYTHING
from shardstore.opening.address import text_of
from shardstore.plan.aligned import Chunks, shard_aligned_chunks
from shardstore.plan.policy import ShardingPolicy, validate_policy
from shardstore.plan.policy import chunks_per_shard as decide
from shardstore.presented.flavours import Presented

if TYPE_CHECKING:
    import xarray

Data = TypeVar("Data")
Region = Literal["auto"] | Mapping[Any, slice | Literal["auto"]] | Sequence[slice]

_UNNAMED = "__xarray_dataarray_variable__"  # what xarray calls in a store a DataArray without a name of its own
_CHAIN = "sharded::"
_CREATING = ("w", "w-")
_MODES = (*_CREATING, "a", "a-", "r+")


def align(
    data: Data,
    store: Any = None,
    *,
    group: str | None = None,
    name: str | None = None,
    mode: str | None = None,
    region: Region | None = None,
    append_dim: Hashable | None = None,
    chunks_per_shard: ShardingPolicy = None,
    chunk_bytes: int | str | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Data:
    """Return the same data in dask chunks of which no two write to one shard. Nothing is computed and nothing is stored.

    Chunks whose borders fit are left alone. Other borders move to the nearest border of shards, so chunks keep about their
    size, but hold one shard at least. Data that is not in dask chunks is returned unchanged: it is written in one piece.

    Args:
        data: an xarray Dataset or DataArray, or a dask array.
        store: where it will be written: what ``shardstore.open`` gave, a URL or path with or without ``sharded::``, or a group or
            array of zarr's. ``None``: a new store.
        group: as ``to_zarr`` will get it.
        mode: as ``to_zarr`` will get it.
        region: as ``to_zarr`` will get it; for a dask array, a slice for each dimension. Chunks are counted from where the data will lie
            in the stored array.
        append_dim: as ``to_zarr`` will get it; for a dask array, the number of a dimension.
        name: of the array in ``group``; needed for a dask array unless ``store`` is an array. The default for a DataArray is its name.
        chunks_per_shard: of arrays that do not exist yet; the default is what ``store`` would do. They get
            ``encoding["chunks"]`` of their present chunks: otherwise xarray would take the aligned ones for the stored chunks.
        chunk_bytes: chunks that have to grow are divided again, down to one shard, if they exceed this and twice what the
            largest was before; the default is dask's ``array.chunk-size``.
        storage_options: for the filesystem that a URL names.

    Raises:
        InvalidInput: an argument does not fit the data, what is stored, or another argument.
        Unsupported: an array that exists has chunks of several shapes.
    """
    if mode is not None and mode not in _MODES:
        raise InvalidInput(f"mode {mode!r} is not one of {', '.join(_MODES)}")
    if chunks_per_shard is not None:
        validate_policy(chunks_per_shard)
    plan = _Plan(store, storage_options, group, mode, region, append_dim, chunks_per_shard, chunk_bytes)
    xarray, dask_array = sys.modules.get("xarray"), sys.modules.get("dask.array")
    aligned: Any
    if xarray is not None and isinstance(data, xarray.Dataset):
        aligned = _dataset(data, plan)
    elif xarray is not None and isinstance(data, xarray.DataArray):
        aligned = _data_array(data, plan, name)
    elif dask_array is not None and isinstance(data, dask_array.Array):
        aligned = _dask_array(data, plan, name)
    else:
        raise InvalidInput(
            f"align takes an xarray Dataset or DataArray or a dask array, not {type(data).__name__}: other data is written "
            "in one piece and needs no alignment"
        )
    return aligned  # type: ignore[no-any-return]  # of the type of data, as each branch returns what it was given


@dataclass(frozen=True)
class _Plan:
    """The arguments of ``align``, apart from the data."""

    store: Any
    storage_options: dict[str, Any] | None
    group: str | None
    mode: str | None
    region: Region | None
    append_dim: Hashable | None
    chunks_per_shard: ShardingPolicy
    chunk_bytes: int | str | None

    @cached_property
    def target(self) -> AlignTarget | None:
        return None if self.store is None else open_target(self.store, self.storage_options)

    def path(self, name: str) -> str:
        below = "/".join(part.strip("/") for part in (self.target.path if self.target else "", self.group or "") if part.strip("/"))
        return join(below, name).rstrip("/")

    def existing(self, paths: Sequence[str]) -> dict[str, TargetArray]:
        """Return the arrays that will be written to and exist; none if the mode replaces all."""
        return {} if self.target is None or self.mode in _CREATING else self.target.arrays(paths)

    def new_shard_shape(self, path: str, shape: tuple[int, ...], chunk_shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
        policy = self.chunks_per_shard
        if policy is None:
            policy = "auto" if self.target is None else self.target.engine.options.chunks_per_shard
        per_shard = decide(policy, path, _document(shape, chunk_shape, dtype)) or (1,) * len(shape)
        return tuple(c * n for c, n in zip(chunk_shape, per_shard, strict=True))

    def max_elements(self, itemsize: int) -> int:
        import dask
        import dask.utils

        wanted = dask.config.get("array.chunk-size", "128MiB") if self.chunk_bytes is None else self.chunk_bytes
        return max(1, int(dask.utils.parse_bytes(wanted)) // max(1, itemsize))


@dataclass(frozen=True, slots=True)
class _BlockPosition:
    """The place of a block in an array: ``start`` in elements of the array."""

    shard_shape: tuple[int, ...]
    start: tuple[int, ...]


# -- xarray --------------------------------------------------------------------------------------------------------------


def _dataset(data: xarray.Dataset, plan: _Plan) -> xarray.Dataset:
    aligned = data.copy()
    chunked = {plan.path(str(name)): variable for name, variable in aligned.variables.items() if variable.chunks}
    existing = plan.existing(list(chunked))
    region = _xarray_region(data, plan)
    for path, variable in chunked.items():
        if (array := existing.get(path)) is not None:
            place = _existing_place(array, variable, plan.append_dim, region)
        else:
            chunk_shape = _stored_chunks(variable, path)
            place = _new_place(variable, path, chunk_shape, plan)
            variable.encoding = {**variable.encoding, "chunks": chunk_shape}
        variable.data = _rechunked(variable.data, place, plan)
    return aligned


def _data_array(data: xarray.DataArray, plan: _Plan, name: str | None) -> xarray.DataArray:
    """Make the array as xarray itself does: through a dataset of one variable and its coordinates."""
    known = name or data.name
    stored_name = _UNNAMED if known is None or known in data.coords else str(known)
    aligned = _dataset(data.to_dataset(name=stored_name), plan)
    return aligned[stored_name].rename(data.name)


def _new_place(variable: xarray.Variable, path: str, chunk_shape: tuple[int, ...], plan: _Plan) -> _BlockPosition:
    """Return where a variable goes that will be created."""
    if plan.region is not None:
        raise InvalidInput(
            f"array {path!r} does not exist, so it has no regions: first create it, with to_zarr(compute=False) of the whole dataset"
        )
    if shards := variable.encoding.get("shards"):  # these are what is stored, whatever the store's options say
        return _BlockPosition(tuple(shards), (0,) * variable.ndim)
    dtype = np.dtype(variable.encoding.get("dtype", variable.dtype))
    return _BlockPosition(plan.new_shard_shape(path, variable.shape, chunk_shape, dtype), (0,) * variable.ndim)


def _stored_chunks(variable: xarray.Variable, path: str) -> tuple[int, ...]:
    """Return the chunk shape that ``to_zarr`` would store: of the encoding, otherwise of the dask chunks, which must be uniform."""
    encoded = variable.encoding.get("chunks")
    if isinstance(encoded, int):
        encoded = (encoded,) * variable.ndim
    if encoded and len(encoded) == variable.ndim:
        return tuple(encoded)
    return _uniform(variable.chunks or (), path)


def _uniform(chunks: Chunks, path: str) -> tuple[int, ...]:
    if any(len(set(lengths[:-1])) > 1 or lengths[0] < lengths[-1] for lengths in chunks):
        raise InvalidInput(
            f"array {path!r} does not exist and its dask chunks {chunks} are of several sizes: say which chunks to store by "
            'encoding["chunks"] of the variable, or rechunk it'
        )
    return tuple(max(1, lengths[0]) for lengths in chunks)


def _document(shape: tuple[int, ...], chunk_shape: tuple[int, ...], dtype: np.dtype[Any]) -> JsonObject:
    """Return as much of the metadata of a new array as a policy looks at."""
    data_type: Any = dtype.name
    if dtype.kind in "mM":
        data_type = "int64"  # CF times
    elif dtype.kind in "US":
        data_type = {"name": "fixed_length_utf32" if dtype.kind == "U" else "null_terminated_bytes", "configuration": {}}
        data_type["configuration"]["length_bytes"] = dtype.itemsize
    elif dtype.kind in "OT":
        data_type = "string"
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk_shape)}},
        "chunk_key_encoding": {"name": "default"},
    }


def _existing_place(
    array: TargetArray, variable: xarray.Variable, append_dim: Hashable | None, region: Mapping[Hashable, slice] | None
) -> _BlockPosition:
    """Return where a variable goes in an array that exists, in the order of the variable's dimensions."""
    order = list(array.dimension_names or variable.dims)
    if sorted(map(str, order)) != sorted(map(str, variable.dims)):
        raise InvalidInput(f"array {array.path!r} has the dimensions {tuple(order)}, the data {variable.dims}")
    axes = [(dim, order.index(dim)) for dim in variable.dims]
    return _place_in(array, axes, variable.shape, append_dim, region or {})


def _place_in(
    array: TargetArray,
    axes: Sequence[tuple[Hashable, int]],
    shape: Sequence[int],
    append_dim: Hashable | None,
    region: Mapping[Hashable, slice],
) -> _BlockPosition:
    """Return where a block of this shape goes; ``axes`` are the block's dimensions in their order, each with that of the array."""
    start = []
    for (dim, axis), length in zip(axes, shape, strict=True):
        stored = array.shape[axis]
        if dim in region:
            start.append(_start_of(region[dim], stored, length, f"dimension {dim!r} of array {array.path!r}"))
        elif dim == append_dim:
            start.append(stored)
        else:
            start.append(0)
    return _BlockPosition(tuple(array.shard_shape[axis] for _, axis in axes), tuple(start))


def _start_of(wanted: slice, stored: int, length: int, where: str) -> int:
    start, stop, step = wanted.indices(stored)
    if step != 1:
        raise InvalidInput(f"the region of {where} has step {step}: only 1 can be written")
    if stop - start != length:
        raise InvalidInput(f"the region {wanted} of {where} has {max(0, stop - start)} elements, the data {length}")
    return start


def _xarray_region(data: xarray.Dataset, plan: _Plan) -> dict[Hashable, slice] | None:
    """Return the region by dimension, ``"auto"`` resolved by the stored coordinates."""
    if plan.region is None:
        return None
    wanted = dict.fromkeys(data.dims, "auto") if plan.region == "auto" else plan.region
    if not isinstance(wanted, Mapping) or not set(wanted) <= set(data.dims):
        raise InvalidInput(
            f"region {plan.region!r} is neither 'auto' nor a dictionary of dimensions of the data {tuple(data.dims)} to slices"
        )
    if plan.append_dim is not None and plan.append_dim in wanted:
        raise InvalidInput(f"dimension {plan.append_dim!r} cannot be in region and be append_dim")
    automatic = [dim for dim, part in wanted.items() if isinstance(part, str) and part == "auto"]
    for dim, part in wanted.items():
        if dim not in automatic and not isinstance(part, slice):
            raise InvalidInput(f"the region of dimension {dim!r} is {part!r}, neither a slice nor 'auto'")
    found: dict[Hashable, slice] = {dim: part for dim, part in wanted.items() if isinstance(part, slice)}
    return found | _automatic(data, automatic, plan)


def _automatic(data: xarray.Dataset, dims: list[Hashable], plan: _Plan) -> dict[Hashable, slice]:
    """Return where the coordinates of the data lie among those stored; a dimension without coordinates is written from 0."""
    found: dict[Hashable, slice] = {dim: slice(0, data.sizes[dim]) for dim in dims if dim not in data.variables}
    if len(found) == len(dims):
        return found
    with _open_for_reading(plan) as stored:
        for dim in dims:
            if dim in found:
                continue
            if dim not in stored.indexes:
                raise InvalidInput(f"region 'auto': the store has no coordinate {dim!r}")
            positions = stored.indexes[dim].get_indexer(data.indexes[dim])
            if (positions < 0).any() or (np.diff(positions) != 1).any() or not len(positions):
                raise InvalidInput(f"region 'auto': the values of coordinate {dim!r} are not a contiguous part of those stored")
            found[dim] = slice(int(positions[0]), int(positions[-1]) + 1)
    return found


def _open_for_reading(plan: _Plan) -> xarray.Dataset:
    """Return the group as xarray sees it, through shardstore."""
    import xarray

    store, group, options = plan.store, plan.group, plan.storage_options
    if not is_zarr(store) and not (isinstance(store, str) and store.startswith(_CHAIN)):
        from shardstore.adapters.zarr.store import ShardedStore

        store, options = ShardedStore(store, read_only=True, storage_options=options), None
    elif hasattr(store, "store_path"):  # a group of zarr's
        store, group = store.store, "/".join(part for part in (store.path, group) if part)
    return xarray.open_dataset(store, engine="zarr", group=group, chunks=None, consolidated=False, storage_options=options)


# -- dask ----------------------------------------------------------------------------------------------------------------


def _dask_array(data: Any, plan: _Plan, name: str | None) -> Any:
    array, new_shard_shape = _dask_target(data, plan, name)
    region, append_dim = plan.region, plan.append_dim
    if array is None:
        if region is not None or append_dim is not None:
            raise InvalidInput("region and append_dim need an array that exists")
        return _rechunked(data, _BlockPosition(new_shard_shape, (0,) * data.ndim), plan)
    if len(array.shape) != data.ndim:
        raise InvalidInput(f"array {array.path!r} has {len(array.shape)} dimensions, the data {data.ndim}")
    by_axis: dict[Hashable, slice] = {}
    if region is not None:
        if isinstance(region, str | Mapping) or len(region) != data.ndim or not all(isinstance(part, slice) for part in region):
            raise InvalidInput(f"region {region!r} of a dask array has to be a slice for each of its {data.ndim} dimensions")
        by_axis.update(enumerate(region))
    axes = [(axis, axis) for axis in range(data.ndim)]
    place = _place_in(array, axes, data.shape, append_dim if isinstance(append_dim, int) else None, by_axis)
    if append_dim is not None and (not isinstance(append_dim, int) or not 0 <= append_dim < data.ndim or region is not None):
        raise InvalidInput(f"append_dim {append_dim!r} of a dask array has to be the number of a dimension, without a region")
    return _rechunked(data, place, plan)


def _dask_target(data: Any, plan: _Plan, name: str | None) -> tuple[TargetArray | None, tuple[int, ...]]:
    """Return the array that will be written to, if it exists, and the shape of its shards."""
    if (native := array_of_zarr(plan.store)) is not None:
        return native, native.shard_shape
    path = plan.path(name or "")
    existing = plan.existing([path]).get(path)
    if existing is not None:
        return existing, existing.shard_shape
    if name is None and plan.store is not None:
        raise InvalidInput(f"there is no array {path!r}: give an array of zarr's as store, or the name of the array")
    chunk_shape = _uniform(data.chunks, path)
    return None, plan.new_shard_shape(path, data.shape, chunk_shape, data.dtype)


def _rechunked(data: Any, place: _BlockPosition, plan: _Plan) -> Any:
    """Return a dask array in chunks that fit its place; the same array if its chunks fit already."""
    if any(math.isnan(length) for lengths in data.chunks for length in lengths):
        raise InvalidInput("the sizes of some dask chunks are not known: call compute_chunk_sizes() on the dask array first")
    chunks = shard_aligned_chunks(
        data.shape, place.shard_shape, start=place.start, chunks=data.chunks, max_elements=plan.max_elements(data.dtype.itemsize)
    )
    return data if chunks == data.chunks else data.rechunk(chunks)


# -- targets: the arrays that data is going to be written to ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TargetArray:
    """An array that exists. ``shard_shape`` in elements; of an array without shards, the shape of a chunk."""

    path: str
    shape: tuple[int, ...]
    shard_shape: tuple[int, ...]
    dimension_names: tuple[str | None, ...] | None


@dataclass(frozen=True, slots=True)
class AlignTarget:
    """A store, and the node of it that was named."""

    engine: Presented
    path: str

    def arrays(self, paths: Sequence[str]) -> dict[str, TargetArray]:
        """Return the present arrays at ``paths``, in two rounds of requests; other paths are left out.

        Raises:
            Unsupported: the chunks of one are not of one shape.
        """
        keys = [join(path, name) for path in paths for name in (METADATA_NAME, ".zarray", ".zattrs")]
        values = iter(values_of(run_sync(self.engine.get_many([(key, EVERYTHING) for key in keys]))))
        v3: dict[str, JsonObject] = {}
        found: dict[str, TargetArray] = {}
        for path in paths:
            document, v2, v2_attributes = (None if value is None else loads_object(value) for value in islice(values, 3))
            if document is not None and is_array(document):
                v3[path] = document
            elif document is None and v2 is not None:
                found[path] = _v2_array(path, v2, v2_attributes or {})
        nodes = run_sync(self.engine.hierarchy.load(v3))
        for path, document in v3.items():
            node = nodes[path]
            found[path] = self._v3_array(path, document, None if node is None else node.layout)
        return found

    def _v3_array(self, path: str, presented: JsonObject, layout: ArrayLayout | None) -> TargetArray:
        plain = parse_plain(presented)
        if isinstance(plain, str):
            raise Unsupported(f"array {path!r} in {self.engine.storage.url} has no shards to align with: {plain}")
        per_shard = (1,) * len(plain.shape) if layout is None else layout.index_format.chunks_per_shard
        shard_shape = tuple(c * n for c, n in zip(plain.chunk_shape, per_shard, strict=True))
        names = presented.get("dimension_names")
        return TargetArray(path, plain.shape, shard_shape, tuple(names) if isinstance(names, list) else None)


def _v2_array(path: str, document: JsonObject, attributes: JsonObject) -> TargetArray:
    """Return an array of Zarr v2, which has no shards; xarray keeps the names of its dimensions in an attribute."""
    names = attributes.get("_ARRAY_DIMENSIONS")
    return TargetArray(path, tuple(document["shape"]), tuple(document["chunks"]), tuple(names) if isinstance(names, list) else None)


def open_target(store: Any, storage_options: Mapping[str, Any] | None) -> AlignTarget:
    """Open the target that ``store`` names.

    Args:
        store: a store of shardstore's, a URL or path with or without ``sharded::``, or an array, group or store of zarr's on one of
            shardstore's.

    Raises:
        InvalidInput: it is something else.
    """
    if isinstance(store, os.PathLike):
        store = text_of(store)
    if isinstance(store, str) and store.startswith(_CHAIN):
        return _filesystem_target(*url_to_fs(store, **(storage_options or {})))
    if isinstance(store, str):
        return AlignTarget(Handle.make(store, dict(storage_options) if storage_options else None, {}).engine, "")
    if storage_options:
        raise InvalidInput(f"storage_options can be given only with a URL, not with {store!r}")
    node_path = ""
    if is_zarr(store) and hasattr(store, "store_path"):
        store, node_path = store.store, store.path
    if isinstance(engine := getattr(store, "engine", None), Presented):
        return AlignTarget(engine, node_path)
    if isinstance(filesystem := getattr(store, "fs", None), ShardedFileSystem):  # zarr's FsspecStore
        below = _filesystem_target(filesystem, store.path)
        return AlignTarget(below.engine, join(below.path, node_path).strip("/"))
    raise InvalidInput(
        f"{type(store).__name__} is not a store of shardstore's: give what shardstore.open returned, its URL, or sharded:: and its URL. "
        "For zarr's own stores xarray does it: to_zarr(align_chunks=True)"
    )


def array_of_zarr(store: Any) -> TargetArray | None:
    """Return the shapes of an array of zarr's on a store that is not shardstore's; ``None`` if ``store`` is something else."""
    zarr = imported_zarr()
    if zarr is None or not isinstance(store, zarr.Array) or _is_ours(store.store):
        return None
    return TargetArray(store.path, store.shape, store.shards or store.chunks, None)


def _is_ours(store: Any) -> bool:
    return isinstance(getattr(store, "engine", None), Presented) or isinstance(getattr(store, "fs", None), ShardedFileSystem)


def is_zarr(store: Any) -> bool:
    """Return whether it is a store or a node of zarr's."""
    zarr = imported_zarr()
    return zarr is not None and isinstance(store, zarr.Array | zarr.Group | zarr.abc.store.Store)


def _filesystem_target(filesystem: Any, path: str) -> AlignTarget:
    if not isinstance(filesystem, ShardedFileSystem):
        raise InvalidInput(f"{type(filesystem).__name__} is not the filesystem of a store of shardstore's: write sharded:: before the URL")
    return AlignTarget(filesystem.engine, filesystem.key_of(path))
