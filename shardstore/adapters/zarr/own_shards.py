"""The codec pipeline of arrays whose shards zarr's user has chosen: ``shards=``, ``encoding["shards"]``.

For zarr such an array has chunks as large as shards; everybody else sees the chunks in them. So that both write the same shards safely,
whatever is read or assigned here is expanded to chunks, and no key of a shard reaches the store: what a key means there does not depend on
who asks. Arrays that are shown as zarr has them (no client sees what is in their shards) go to zarr's own pipeline, unchanged.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zarr.abc.codec import CodecPipeline
from zarr.codecs import ShardingCodec
from zarr.core.metadata.v3 import ArrayV3Metadata

from shardstore._sync import run_async
from shardstore.adapters.batch_values import values_of
from shardstore.adapters.own_shards import note_view
from shardstore.adapters.zarr.arrays import ArrayPipeline, document_of, erase_removed, removed_chunks, replace_methods
from shardstore.adapters.zarr.chunk_pipeline import ChunkPipeline, place_of, place_of_all, previous_of_codecs, zarrs_own
from shardstore.adapters.zarr.chunks import status
from shardstore.adapters.zarr.expansion import Expansion
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
    from zarr.storage import StorePath

    from shardstore.adapters.zarr.chunk_pipeline import EnginePlace
    from shardstore.adapters.zarr.chunks import Info
    from shardstore.engine.own_shards import ClientView
    from shardstore.model.chunks import ChunkCoords

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
