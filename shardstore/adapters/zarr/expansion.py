"""Expand selections of shards to selections of the chunks in them.

The tuples are zarr's: ``(getter, spec, chunk_selection, out_selection, is_complete)``. zarr's indexers make three kinds of selections of
one chunk: slices and integers; arrays that select along one dimension each, as ``numpy.ix_`` makes them, or one array with slices; and
arrays of the coordinates of points. Each is cut where chunks end, and the part of the output that belongs to each piece is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from zarr.storage import StorePath

if TYPE_CHECKING:
    from zarr.core.array_spec import ArraySpec

    from shardstore.adapters.zarr.chunks import Info
    from shardstore.format.metadata_v3 import ArrayLayout
    from shardstore.model.chunks import ChunkCoords

Positions = npt.NDArray[np.intp]
Along = slice | int | Positions


class Piece(NamedTuple):
    """The selection of one chunk along one dimension."""

    number: int
    """The number of the chunk within its shard."""
    selection: Along
    """Within the chunk."""
    places: slice | Positions | None
    """Its places in the selection of the shard; ``None``: an integer selected it, and the dimension is gone."""
    is_whole: bool


class Expansion:
    """The expansion of the shards of one array, as a client sees it, to chunks."""

    def __init__(self, layout: ArrayLayout) -> None:
        self._layout = layout
        encoding, ndim = layout.key_encoding, layout.ndim
        self._parts_of_key = encoding.encode((0,) * ndim).count("/") + 1

    def expand(self, infos: Sequence[Info], drop_axes: tuple[int, ...]) -> tuple[list[Info], list[int]]:
        """Return the same selections, chunk by chunk, and the number of the shard of each chunk."""
        chunks: list[Info] = []
        of_shard: list[int] = []
        specs: dict[int, ArraySpec] = {}
        for number, info in enumerate(infos):
            path, spec, selection, out_selection = info[:4]
            if (inner := specs.get(id(spec))) is None:
                inner = specs[id(spec)] = replace(spec, shape=self._layout.chunk_shape)
            array, shard = self.split_key(path.path)
            start = array + "/" if array else ""
            origin = tuple(s * n for s, n in zip(shard, self._layout.grid.chunks_per_shard, strict=True))
            for within, chunk_selection, out, is_complete in self._pieces(_tuple(selection), out_selection, drop_axes):
                coords = tuple(o + w for o, w in zip(origin, within, strict=True))
                chunk = StorePath(path.store, start + self._layout.key_encoding.encode(coords))
                chunks.append((chunk, inner, chunk_selection, out, is_complete))
                of_shard.append(number)
        return chunks, of_shard

    def split_key(self, key: str) -> tuple[str, ChunkCoords]:
        """Return the path of the array in the store, and the shard that the key names."""
        parts = key.split("/")
        array, rest = "/".join(parts[: -self._parts_of_key]), "/".join(parts[-self._parts_of_key :])
        shard = self._layout.key_encoding.decode(rest, self._layout.ndim)
        if shard is None:
            raise ValueError(f"{key!r} does not end with the key of a shard")
        return array, shard

    def chunk_keys(self, key: str) -> list[str]:
        """Return the keys of all chunks of the shard that a key names."""
        array, shard = self.split_key(key)
        start = array + "/" if array else ""
        axes = [range(s * n, (s + 1) * n) for s, n in zip(shard, self._layout.grid.chunks_per_shard, strict=True)]
        return [start + self._layout.key_encoding.encode(coords) for coords in product(*axes)]

    def _pieces(
        self, selection: tuple[Any, ...], out_selection: Any, drop_axes: tuple[int, ...]
    ) -> Iterator[tuple[ChunkCoords, tuple[Any, ...], Any, bool]]:
        """Yield the chunks within the shard, each with its selection, its part of the output, and whether all of it is selected."""
        arrays = [along for along in selection if isinstance(along, np.ndarray)]
        if len(selection) > 1 and len(arrays) == len(selection) and all(along.ndim == 1 for along in arrays):
            yield from self._points(arrays, out_selection)
            return
        shape = self._layout.shard_shape
        axes = [_cut(a, n, c) for a, n, c in zip(selection, shape, self._layout.chunk_shape, strict=True)]
        outs = _outs(selection, out_selection, drop_axes)
        for pieces in product(*axes):
            chosen = tuple(piece.selection for piece in pieces)
            places = tuple(_places_in(o, p.places) for o, p in zip(outs, pieces, strict=True) if o is not None)
            if arrays:
                chosen, places = _orthogonal(chosen), _orthogonal(places)
            yield tuple(piece.number for piece in pieces), chosen, places, all(piece.is_whole for piece in pieces)

    def _points(self, arrays: Sequence[Positions], out_selection: Any) -> Iterator[tuple[ChunkCoords, tuple[Any, ...], Any, bool]]:
        (out,) = _tuple(out_selection)
        numbers = [along // n for along, n in zip(arrays, self._layout.chunk_shape, strict=True)]
        flat = np.ravel_multi_index(numbers, self._layout.grid.chunks_per_shard)
        for places in _groups(flat):
            first = places.start if isinstance(places, slice) else places[0]
            within = tuple(int(along[first]) for along in numbers)
            chosen = tuple(a[places] - w * n for a, w, n in zip(arrays, within, self._layout.chunk_shape, strict=True))
            yield within, chosen, _places_in(out, places), False


def _tuple(selection: Any) -> tuple[Any, ...]:
    return selection if isinstance(selection, tuple) else (selection,)


def _outs(selection: tuple[Any, ...], out_selection: Any, drop_axes: tuple[int, ...]) -> list[Any]:
    """Return the place in the output along each dimension; ``None`` where it is gone from the output, whose selection has nothing of it."""
    out = iter(_tuple(out_selection))
    return [None if axis in drop_axes or not isinstance(a, slice | np.ndarray) else next(out) for axis, a in enumerate(selection)]


def _cut(along: Any, shard_length: int, length: int) -> list[Piece]:
    """Return what is selected along a dimension of a shard, in pieces that end where chunks of this length do."""
    if isinstance(along, slice):
        return list(_cut_slice(*along.indices(shard_length), length))
    if isinstance(along, np.ndarray):
        positions = np.flatnonzero(along) if along.dtype == bool else along.reshape(-1)
        return list(_cut_positions(positions, length))
    number, within = divmod(int(along), length)
    return [Piece(number, within, None, length == 1)]


def _cut_slice(start: int, stop: int, step: int, length: int) -> Iterator[Piece]:
    count = len(range(start, stop, step))
    for number in range(start // length, -(-stop // length)) if count else ():
        first, after = (max(0, -(-(edge - start) // step)) for edge in (number * length, (number + 1) * length))
        after = min(count, after)
        if first < after:  # or the step passes over the chunk
            begin = start + first * step - number * length
            end = begin + (after - first - 1) * step + 1
            yield Piece(number, slice(begin, end, step), slice(first, after), step == 1 and end - begin == length)


def _cut_positions(positions: Positions, length: int) -> Iterator[Piece]:
    numbers = positions // length
    for places in _groups(numbers):
        number = int(numbers[places.start if isinstance(places, slice) else places[0]])
        yield Piece(number, positions[places] - number * length, places, is_whole=False)


def _groups(numbers: Positions) -> Iterator[slice | Positions]:
    """Yield the places of each number, in their order."""
    order = None
    if len(numbers) and (numbers[1:] < numbers[:-1]).any():
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
    ends = [*(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
    for start, end in zip([0, *ends], ends, strict=False):
        if start < end:
            yield slice(start, end) if order is None else order[start:end]


def _places_in(out: Any, places: Any) -> slice | Positions:
    """Return where in the output these places are of a selection that belongs at ``out``."""
    if isinstance(out, np.ndarray):
        chosen: Positions = out.reshape(-1)[places]
        return chosen
    start, step = out.start or 0, out.step or 1
    if isinstance(places, slice):
        return slice(start + places.start * step, start + (places.stop - 1) * step + 1, step)
    at: Positions = start + places * step
    return at


def _orthogonal(selection: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an index that selects all of several slices, integers and arrays, one for each dimension; slices alone do that already."""
    if all(isinstance(along, slice) for along in selection):
        return selection
    ranges = (np.arange(a.start, a.stop, a.step or 1) if isinstance(a, slice) else np.atleast_1d(a) for a in selection)
    return np.ix_(*ranges)
