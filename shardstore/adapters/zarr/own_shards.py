"""The codec pipeline of arrays whose shards zarr's user has chosen: ``shards=``, ``encoding["shards"]``.

For zarr such an array has chunks as large as shards; everybody else sees the chunks in them. So that both write the same shards safely,
whatever is read or assigned here is expanded to chunks, and no key of a shard reaches the store: what a key means there does not depend on
who asks. Arrays that are shown as zarr has them (no client sees what is in their shards) go to zarr's own pipeline, unchanged.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from zarr.abc.codec import CodecPipeline
from zarr.codecs import ShardingCodec
from zarr.core.metadata.v3 import ArrayV3Metadata
from zarr.storage import StorePath

from shardstore._sync import run_async
from shardstore.adapters.handle import values_of
from shardstore.adapters.own_shards import note_view
from shardstore.adapters.zarr.arrays import ArrayPipeline, document_of, erase_removed, removed_chunks, replace_methods
from shardstore.adapters.zarr.chunk_pipeline import ChunkPipeline, place_of, place_of_all, previous_of_codecs, zarrs_own
from shardstore.adapters.zarr.chunks import status
from shardstore.format.codecs import codec_configuration
from shardstore.format.json_text import JsonObject
from shardstore.format.metadata_v3 import ArrayLayout, parse_layout
from shardstore.format.presentation import present_array
from shardstore.format.store_keys import join
from shardstore.model.ranges import ByteRange
from shardstore.presented.flavours import Presented

if TYPE_CHECKING:
    from typing import Self

    from zarr.abc.codec import Codec
    from zarr.abc.store import Store
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer

    from shardstore.adapters.zarr.chunk_pipeline import EnginePlace
    from shardstore.adapters.zarr.chunks import Info
    from shardstore.engine.own_shards import ClientView
    from shardstore.model.chunks import ChunkCoords

Positions = npt.NDArray[np.intp]
Along = slice | int | Positions

_making = threading.Lock()  # filters of warnings are those of the whole process
_NOTHING = ByteRange(0, 0)


class ArrayView:
    """One array as zarr has it, by its shards; see ``own_shards.ShardView``."""

    def __init__(self, metadata: ArrayV3Metadata, store: Store) -> None:
        self._metadata = metadata
        self.store = store
        self.path: str | None = None
        """The path of the array in the store; ``None`` until it is known."""
        self.is_new = True
        self.sight: ClientView | None = None
        self._document: JsonObject | None = None

    @property
    def document(self) -> JsonObject:
        if self._document is None:
            self._document = document_of(self._metadata)
        return self._document

    def bind(self, path: str) -> None:
        """Note that this is a view of the array at ``path`` of the store."""
        self.path = path
        note_view(path.rpartition("/")[2], self)

    def is_at(self, engine: Presented, path: str) -> bool:
        place = place_of(self.store)
        return self.path is not None and place is not None and place.engine is engine and place.key(self.path) == path

    def __getstate__(self) -> dict[str, Any]:
        return {"metadata": self._metadata, "store": self.store, "path": self.path, "is_new": self.is_new}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ArrayView.__init__(self, state["metadata"], state["store"])
        self.is_new = state["is_new"]
        if state["path"] is not None:
            self.bind(state["path"])


class ShardPipeline(ArrayPipeline):
    """Reads and writes of one array that is sharded for zarr, behind which there is an engine."""

    def __init__(self, metadata: ArrayV3Metadata, store: Store) -> None:
        self._metadata = metadata
        self.view = ArrayView(metadata, store)
        self._whole = zarrs_own(metadata, store)
        self._expansion: Expansion | None = None
        self._pipeline: CodecPipeline | None = None

    # -- how the array is seen -------------------------------------------------------------------------------------

    def bind(self, store_path: StorePath) -> None:
        """Note that this is the pipeline of the array at this path, which may now be created."""
        self.view.bind(store_path.path)

    @property
    def layout(self) -> ArrayLayout | None:
        """The chunks and shards of zarr's own document; ``None`` if its chunks cannot be shown."""
        layout = parse_layout(self.view.document)
        return layout if isinstance(layout, ArrayLayout) else None

    async def _by_shards(self, place: EnginePlace | None, path: str, *, for_write: bool) -> EnginePlace | None:
        """Return the place, if its engine reads and writes the array by chunks; ``None`` if zarr's own pipeline does."""
        if place is None or not place.engine.options.present.is_canonical:
            return None
        await place.ensure_open()
        look = place.engine.client_view(place.key(path), self.view.document, for_write=for_write, last=self.view.sight)
        sight = self.view.sight = await run_async(look)
        return place if sight.by_shards and self.layout is not None else None

    async def _expander(self, infos: Sequence[Info], *, for_write: bool) -> tuple[EnginePlace, Expansion, CodecPipeline] | None:
        """Return where the chunks of these shards are, how they are expanded, and what reads and writes the chunks."""
        place = place_of_all(infos)
        if place is None:
            return None
        expansion = self.expansion()
        if expansion is None:
            return None
        array, _ = expansion.split_key(infos[0][0].path)
        place = await self._by_shards(place, array, for_write=for_write)
        return None if place is None else (place, expansion, self._chunk_pipeline(infos[0][1]))

    def expansion(self) -> Expansion | None:
        """Return how shards are expanded to chunks, if that can be done."""
        if self._expansion is None and (layout := self.layout) is not None:
            self._expansion = Expansion(layout)
        return self._expansion

    def _chunk_pipeline(self, shard: ArraySpec) -> CodecPipeline:
        if self._pipeline is None:
            codecs = self._chunk_codecs()
            if any(isinstance(codec, ShardingCodec) for codec in codecs):  # shards in shards: the chunks of these are shown
                layout = self.layout
                assert layout is not None
                self._pipeline = previous_of_codecs(codecs, replace(shard, shape=layout.chunk_shape))
            else:
                self._pipeline = ChunkPipeline(codecs)
        return self._pipeline

    def _chunk_codecs(self) -> tuple[Codec, ...]:
        """Return the codecs of the chunks that are shown."""
        document = self.view.document
        presented = present_array(document)
        outer, inner = self._metadata.codecs[0], codec_configuration(document["codecs"][0]).get("codecs")
        if isinstance(outer, ShardingCodec) and len(self._metadata.codecs) == 1 and presented["codecs"] == inner:
            return tuple(outer.codecs)
        with _making, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zarr has warned of this array already
            return tuple(ArrayV3Metadata.from_dict(presented).codecs)

    # -- reading and writing ---------------------------------------------------------------------------------------

    async def read(self, batch_info: Iterable[Any], out: NDBuffer, drop_axes: tuple[int, ...] = ()) -> Any:
        """Read the whole selection in one batch of chunks."""
        infos = list(batch_info)
        expander = await self._expander(infos, for_write=False) if infos else None
        if expander is None:
            return await self._whole.read(infos, out, drop_axes)
        place, expansion, pipeline = expander
        chunks, of_shard = expansion.expand(infos, drop_axes)
        newer: Any = pipeline  # what newer versions of zarr return
        found = await newer.read(chunks, out, drop_axes)
        if getattr(infos[0][1].config, "read_missing_chunks", True):
            return (status(True),) * len(infos)  # the caller does not use it
        present = {number for number, of_chunk in zip(of_shard, found, strict=True) if of_chunk["status"] == "present"}
        for number in set(range(len(infos))) - present:
            if await _is_any_there(place, expansion.chunk_keys(infos[number][0].path)):
                present.add(number)
        return tuple(status(number in present) for number in range(len(infos)))

    async def write(self, batch_info: Iterable[Any], value: NDBuffer, drop_axes: tuple[int, ...] = ()) -> None:
        """Write the whole assignment in one batch of chunks: one commit a shard."""
        infos = list(batch_info)
        expander = await self._expander(infos, for_write=True) if infos else None
        if expander is None:
            await self._whole.write(infos, value, drop_axes)
            return
        _, expansion, pipeline = expander
        chunks, _ = expansion.expand(infos, drop_axes)
        await pipeline.write(chunks, value, drop_axes)

    async def erase_outside(self, store_path: StorePath, shape: tuple[int, ...], new_shape: tuple[int, ...]) -> bool:
        """Erase the shards that hold elements of the array while it has ``shape``, and none once it has ``new_shape``.

        Returns ``False``, and does nothing, if the store takes the shards for chunks.
        """
        place = await self._by_shards(place_of(store_path.store), store_path.path, for_write=True)
        layout = self.layout
        if place is None or layout is None:
            return False
        removed = removed_chunks(layout.shard_shape, shape, new_shape, layout.index_format.chunks_per_shard)
        return await erase_removed(place, store_path.path, layout.chunk_shape, removed)

    async def shards_with_chunks(self, store_path: StorePath) -> set[str] | None:
        """Return the keys of the shards that hold a chunk, relative to the array; ``None`` if the store lists shards itself."""
        layout = self.layout
        if layout is None or await self._by_shards(place_of(store_path.store), store_path.path, for_write=False) is None:
            return None
        encoding = layout.key_encoding
        start = join(store_path.path, "")
        shards: set[ChunkCoords] = set()
        async for key in store_path.store.list_prefix(join(store_path.path, encoding.prefix_of((), layout.ndim))):
            coords = encoding.decode(key[len(start) :], layout.ndim)
            if coords is not None:
                shards.add(layout.grid.shard_of(coords))
        return {encoding.encode(shard) for shard in shards}

    # -- the rest of zarr's interface, which zarr's own pipeline answers -------------------------------------------

    @classmethod
    def from_codecs(cls, codecs: Iterable[Codec]) -> CodecPipeline:  # type: ignore[override]  # whichever is right
        return ChunkPipeline.from_codecs(codecs)

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> Self:
        return self

    @property
    def supports_partial_decode(self) -> bool:
        return self._whole.supports_partial_decode

    @property
    def supports_partial_encode(self) -> bool:
        return self._whole.supports_partial_encode

    def validate(self, **kwargs: Any) -> None:
        self._whole.validate(**kwargs)

    def compute_encoded_size(self, byte_length: int, array_spec: ArraySpec) -> int:
        return self._whole.compute_encoded_size(byte_length, array_spec)

    async def decode(self, chunk_bytes_and_specs: Iterable[tuple[Buffer | None, ArraySpec]]) -> Iterable[NDBuffer | None]:
        return await self._whole.decode(chunk_bytes_and_specs)

    async def encode(self, chunk_arrays_and_specs: Iterable[tuple[NDBuffer | None, ArraySpec]]) -> Iterable[Buffer | None]:
        return await self._whole.encode(chunk_arrays_and_specs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._metadata.codecs == other._metadata.codecs

    def __hash__(self) -> int:
        return hash(self._metadata.codecs)

    def __getstate__(self) -> dict[str, Any]:
        return {"metadata": self._metadata, "view": self.view, "whole": self._whole}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._metadata, self.view, self._whole = state["metadata"], state["view"], state["whole"]
        self._expansion = self._pipeline = None
        replace_methods()


async def _is_any_there(place: EnginePlace, keys: Sequence[str]) -> bool:
    values = await run_async(place.engine.get_many([(place.key(key), _NOTHING) for key in keys]))
    return any(value is not None for value in values_of(values))


# -- selections of shards, expanded to selections of the chunks in them -----------------------------------------------


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
    """The expansion of the shards of one array, as a client sees it, to chunks.

    The tuples are zarr's: ``(getter, spec, chunk_selection, out_selection, is_complete)``. zarr's indexers make three kinds of selections
    of one chunk: slices and integers; arrays that select along one dimension each, as ``numpy.ix_`` makes them, or one array with slices;
    and arrays of the coordinates of points. Each is cut where chunks end, and the part of the output that belongs to each piece is found.
    """

    def __init__(self, layout: ArrayLayout) -> None:
        self._layout = layout
        self._parts_of_key = layout.key_encoding.encode((0,) * layout.ndim).count("/") + 1

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
