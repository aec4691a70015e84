"""Rows to append: data along one dimension, checked against the arrays that are there, and stored by zarr or xarray at their place."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import zarr

from shardstore.adapters.zarr.store import ShardedStore
from shardstore.errors import InvalidInput
from shardstore.format.json_text import JsonObject

_ARRAYS_AT_ONCE = 16


@dataclass(frozen=True)
class Rows(ABC):
    """``count`` rows for the node at ``path``."""

    path: str
    dim: str
    count: int

    @abstractmethod
    def store(self, store: ShardedStore, start: int, *, is_far: bool, empty_chunks: bool = True) -> None:
        """Store them from row ``start`` on, in arrays that are long enough.

        Args:
            is_far: requests take long, so arrays are stored at the same time.
            empty_chunks: store chunks of nothing but fill values too.
        """

    def only(self, names: Collection[str]) -> Rows:
        """Return the rows of these arrays, by their names in the group."""
        return self


@dataclass(frozen=True)
class ArrayRows(Rows):
    """Of one array: ``(…, count, …)``."""

    data: Any
    axis: int

    def store(self, store: ShardedStore, start: int, *, is_far: bool, empty_chunks: bool = True) -> None:
        region = (*[slice(None)] * self.axis, slice(start, start + self.count))
        with zarr.config.set({"array.write_empty_chunks": empty_chunks}):
            array = zarr.open_array(store, path=self.path, mode="r+")
            if _is_dask(self.data):
                import dask.array

                dask.array.store(self.data, cast(Any, array), regions=region, lock=False)
            else:
                array[region] = self.data


@dataclass(frozen=True)
class DatasetRows(Rows):
    """Of all arrays of a group that have the dimension: an xarray Dataset of just these variables."""

    data: Any

    def only(self, names: Collection[str]) -> Rows:
        return replace(self, data=self.data.drop_vars([name for name in self.data.variables if str(name) not in names]))

    def store(self, store: ShardedStore, start: int, *, is_far: bool, empty_chunks: bool = True) -> None:
        data, scheduler = self._as_tasks() if is_far else (self.data, nullcontext())
        with scheduler:
            data.to_zarr(
                store,
                group=self.path or None,
                region={self.dim: slice(start, start + self.count)},
                mode="r+",
                consolidated=False,
                safe_chunks=False,  # parts of chunks are merged when they are stored
                write_empty_chunks=empty_chunks,
            )

    def _as_tasks(self) -> tuple[Any, AbstractContextManager[object]]:
        """Return the data as tasks of dask, with threads to run them, if there is dask, and nothing of the data is dask's: xarray stores
        arrays that are in memory one after the other.
        """
        if any(_is_dask(variable.data) for variable in self.data.variables.values()) or find_spec("dask") is None:
            return self.data, nullcontext()
        import dask

        return self.data.chunk(), dask.config.set(scheduler="threads", num_workers=_ARRAYS_AT_ONCE)


def rows_to_append(data: Any, dim: str, path: str, arrays: Mapping[str, JsonObject]) -> Rows:
    """Return the rows of ``data`` for the node at ``path``.

    Args:
        data: an xarray Dataset or DataArray, or, for an array, anything that numpy makes an array of, or a dask array.
        arrays: the documents of the arrays that have the dimension, by their names in the group; by ``""`` that of the array itself.

    Raises:
        InvalidInput: the data does not fit: a variable is missing, or its dimensions or sizes differ.
    """
    xarray = sys.modules.get("xarray")
    of_array = arrays.get("")
    if of_array is not None:
        return _array_rows(data, dim, path, of_array, xarray)
    if xarray is not None and isinstance(data, xarray.DataArray):
        if data.name is None:
            raise InvalidInput(
                f"the DataArray has no name, so it is not known which array of {_node(path)} it is for: give it a name, as by rename('tas')"
            )
        data = data.to_dataset()
    if xarray is None or not isinstance(data, xarray.Dataset):
        raise InvalidInput(
            f"{_node(path)} is a group: append an xarray Dataset or DataArray to it, not {type(data).__name__}, or name one of its arrays"
        )
    with_dim = data.drop_vars([name for name, variable in data.variables.items() if dim not in variable.dims])
    _check_variables({str(name): variable for name, variable in with_dim.variables.items()}, dim, path, arrays)
    # xarray leaves variables that have an index out of what it writes to a region, without a word.
    return DatasetRows(path, dim, int(with_dim.sizes[dim]), with_dim.drop_indexes(list(with_dim.xindexes)))


def _check_variables(variables: Mapping[str, Any], dim: str, path: str, arrays: Mapping[str, JsonObject]) -> None:
    where = _node(path)
    if missing := sorted(arrays.keys() - variables.keys()):
        raise InvalidInput(
            f"the data has no {', '.join(map(repr, missing))} along {dim!r}, and {where} has: append all variables at once, or "
            "their rows would be fill values"
        )
    if unknown := sorted(variables.keys() - arrays.keys()):
        raise InvalidInput(f"{where} has no {', '.join(map(repr, unknown))} along {dim!r}: create the arrays first, or drop the variables")
    for name, variable in variables.items():
        _check_shape(name, tuple(map(str, variable.dims)), variable.shape, dim, arrays[name])


def _array_rows(data: Any, dim: str, path: str, document: JsonObject, xarray: Any) -> ArrayRows:
    names = tuple(document["dimension_names"])
    if xarray is not None and isinstance(data, xarray.Dataset):
        raise InvalidInput(f"{_node(path)} is an array: append an array to it, not a Dataset, or name the group that it is in")
    if xarray is not None and isinstance(data, xarray.DataArray):
        dims, data = tuple(map(str, data.dims)), data.data
    else:
        dims, data = names, data if _is_dask(data) else np.asarray(data)
    _check_shape(path, dims, data.shape, dim, document)
    axis = names.index(dim)
    return ArrayRows(path, dim, int(data.shape[axis]), data, axis)


def _check_shape(name: str, dims: tuple[str, ...], shape: Sequence[int], dim: str, document: JsonObject) -> None:
    names, stored = tuple(document["dimension_names"]), tuple(document["shape"])
    sizes = tuple(n if each == dim else size for each, n, size in zip(names, shape, stored, strict=False))
    if dims != names or tuple(shape) != sizes:
        raise InvalidInput(
            f"what is appended to {_node(name)} along {dim!r} has the dimensions {dict(zip(dims, shape, strict=False))} "
            f"({len(shape)} of them), and the array has {dict(zip(names, stored, strict=True))}: order and all other sizes have to be the "
            "same"
        )


def _node(path: str) -> str:
    return repr(path) if path else "the root"


def _is_dask(data: Any) -> bool:
    dask_array = sys.modules.get("dask.array")
    return dask_array is not None and isinstance(data, dask_array.Array)
