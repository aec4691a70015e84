"""Previews of arrays for reports: one slice of each, read by zarr, as grey values."""

from __future__ import annotations

from math import isqrt, prod
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from shardstore.adapters.handle import Handle
from shardstore.adapters.zarr.store import ShardedStore
from shardstore.apps.reports.facts import Preview
from shardstore.errors import ShardStoreError
from shardstore.maintenance.survey.run import ArraySurvey
from shardstore.model.words import size

MOST_NBYTES = 4 * 2**20
"""Of chunks, decoded, that are read for one preview."""
MOST_CHUNKS = 256
"""Chunks that are read for one preview: each may be a request."""
SIDE = 512

_DARKEST, _BRIGHTEST = 2, 98  # percentiles
_NUMBERS = "biuf"  # kinds of numpy's data types


class Previews:
    """Makes previews of the arrays of one store."""

    def __init__(self, handle: Handle) -> None:
        recipe = handle.recipe
        self._store = ShardedStore(recipe.target, storage_options=recipe.storage_options, read_only=True)
        self._levels: dict[str, tuple[str, ...]] = {}  # of a pyramid, by the path of its group

    def __call__(self, array: ArraySurvey) -> Preview | str:
        """Return the middle of an array, or why there is no preview of it; arrays without two axes have none."""
        if array.shape is None or array.chunk_shape is None or len(array.shape) < 2:
            return ""
        if 0 in array.shape:
            return "the array is empty"
        try:
            return self._of(array, array.shape, array.chunk_shape)
        except (ShardStoreError, ValueError, TypeError, KeyError, RuntimeError, ArithmeticError) as exc:  # of codecs too
            return f"it cannot be read: {exc}"

    def _of(self, array: ArraySurvey, shape: tuple[int, ...], chunk_shape: tuple[int, ...]) -> Preview | str:
        levels = self._levels_beside(array.path)
        if array.path in levels and array.path != levels[-1]:
            return f"a coarser level of the same picture is {levels[-1]}"
        found = zarr.open_array(self._store, path=array.path, mode="r")
        if found.dtype.kind not in _NUMBERS:
            return "its values are not numbers"
        chunk_nbytes = prod(chunk_shape) * found.dtype.itemsize
        if chunk_nbytes > MOST_NBYTES:
            return f"a chunk has {size(chunk_nbytes)}, decoded: more than is read for a preview"
        rows, columns = _middle(shape[-2:], chunk_shape[-2:], min(MOST_CHUNKS, MOST_NBYTES // chunk_nbytes))
        places: list[int] = [n // 2 for n in shape[:-2]]
        selection: tuple[int | slice, ...] = (*places, rows, columns)
        values = np.asarray(found[selection])
        where = ", ".join([*map(str, places), f"{rows.start}:{rows.stop}", f"{columns.start}:{columns.stop}"])
        steps = tuple(-(-n // SIDE) for n in values.shape)
        return Preview(_stretched(values[:: steps[0], :: steps[1]]), f"[{where}]")

    def _levels_beside(self, path: str) -> tuple[str, ...]:
        """Return the arrays of the pyramid that an array belongs to, by the metadata of OME-Zarr, the finest first; or none."""
        above = path.rpartition("/")[0]
        if not path:
            return ()
        if above not in self._levels:
            self._levels[above] = self._levels_of(above)
        return self._levels[above]

    def _levels_of(self, group: str) -> tuple[str, ...]:
        try:
            attributes: Any = zarr.open_group(self._store, path=group, mode="r").attrs.asdict()
            scales = (attributes.get("ome") or attributes)["multiscales"][0]["datasets"]
            return tuple(f"{group}/{one['path']}".lstrip("/") for one in scales)
        except (ShardStoreError, LookupError, TypeError, ValueError, AttributeError, FileNotFoundError):
            return ()  # not a group, or not one of a pyramid


def _middle(shape: tuple[int, ...], chunk_shape: tuple[int, ...], most_chunks: int) -> tuple[slice, slice]:
    """Return the middle of a plane that takes at most so many chunks, about as many down as across."""
    grid = [-(-n // c) for n, c in zip(shape, chunk_shape, strict=True)]
    down = min(grid[0], max(1, isqrt(most_chunks)))
    across = min(grid[1], most_chunks // down)
    down = min(grid[0], most_chunks // across)
    slices = []
    for held, there, n, c in zip((down, across), grid, shape, chunk_shape, strict=True):
        first = (there - held) // 2
        slices.append(slice(first * c, min(n, (first + held) * c)))
    return slices[0], slices[1]


def _stretched(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return grey values, so that the 2nd percentile is black and the 98th white; what is not finite is black."""
    numbers = values.astype(np.float64)
    finite = np.isfinite(numbers)
    if not finite.any():
        return np.zeros(values.shape, dtype=np.uint8)
    low, high = np.percentile(numbers[finite], (_DARKEST, _BRIGHTEST))
    if not high > low:
        low, high = numbers[finite].min(), numbers[finite].max()
    span = high - low
    scaled = np.zeros_like(numbers) if not span > 0 else (np.where(finite, numbers, low) - low) / span
    return np.rint(255 * np.clip(scaled, 0, 1)).astype(np.uint8)
