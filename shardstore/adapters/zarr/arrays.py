"""Methods of zarr-python's arrays that are replaced for arrays that are seen by their shards.

zarr tells a pipeline neither which array it is of, nor that chunks are to be deleted because an array shrinks: it deletes their keys, which
for a store are those of other, smaller chunks. So the two methods of ``zarr.AsyncArray`` are replaced by ones that do the same for
every other array. Without them no array with shards of its own is accepted.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Collection
from functools import wraps
from typing import TYPE_CHECKING, Any

import zarr.core.array
from fsspec.asyn import get_loop
from zarr.abc.codec import CodecPipeline
from zarr.codecs import ShardingCodec
from zarr.core.array import AsyncArray
from zarr.core.buffer import default_buffer_prototype
from zarr.core.common import parse_shapelike

from shardstore._sync import run_sync
from shardstore.adapters.zarr.chunk_pipeline import place_behind
from shardstore.engine.metadata.translation import refusal_of_shards
from shardstore.errors import InvalidInput
from shardstore.format.json_text import JsonObject, loads_object
from shardstore.format.metadata_v3 import METADATA_NAME
from shardstore.format.presentation import same_chunks
from shardstore.format.store_keys import check_key, join, metadata_key
from shardstore.format.v2.keys import ARRAY_NAME
from shardstore.model.ranges import EVERYTHING
from shardstore.presented.flavours import Presented

if TYPE_CHECKING:
    from zarr.core.metadata.v3 import ArrayV3Metadata
    from zarr.storage import StorePath


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


_initialised = AsyncArray.__init__
_resized = AsyncArray.resize
_shards_initialized = getattr(zarr.core.array, "_shards_initialized", None)


def is_sharded(array_metadata: Any) -> bool:
    """Return whether zarr itself sees the array as sharded."""
    return any(isinstance(codec, ShardingCodec) for codec in getattr(array_metadata, "codecs", ()))


def document_of(metadata: ArrayV3Metadata) -> JsonObject:
    """Return the document of an array as zarr would store it."""
    return loads_object(metadata.to_buffer_dict(default_buffer_prototype())[METADATA_NAME].to_bytes())


def replace_methods() -> None:
    """Replace the methods of zarr's arrays; do nothing if that is done, or if this zarr's methods are not the known ones."""
    if AsyncArray.__init__ is _init or "delete_outside_chunks" not in inspect.signature(_resized).parameters:
        return
    array_class: Any = AsyncArray
    array_class.__init__ = _init
    array_class.resize = _resize
    if _shards_initialized is not None:
        zarr.core.array._shards_initialized = _with_chunks


@wraps(_initialised)
def _init(self: Any, *args: Any, **kwargs: Any) -> None:
    _initialised(self, *args, **kwargs)
    pipeline = self.codec_pipeline
    if isinstance(pipeline, ArrayPipeline):
        pipeline.bind(self.store_path)
    elif is_sharded(self.metadata) or (self.metadata.zarr_format == 2 and not self.store_path.read_only):
        _refuse_early(self)


def _refuse_early(array: Any) -> None:
    """Refuse now what a store of ours would refuse later, before anything of the array or of its parents is stored.

    Raises:
        InvalidInput: it is sharded for zarr, does not have our pipeline, and the store does not show it like that (nor is it there); or it
            is one of Zarr v2, new, and was to be sharded.
    """
    store = array.store_path.store
    if _runs_on_io_loop() or (place := place_behind(store)) is None:  # to wait here would block it; the store refuses then
        return
    path = place.key(array.store_path.path).rstrip("/")
    if array.metadata.zarr_format == 3:
        if not run_sync(_is_shown(place.engine, path, document_of(array.metadata))):
            raise InvalidInput(refusal_of_shards(path))
    elif place.engine.options.chunks_per_shard not in (None, "auto"):
        documents = array.metadata.to_buffer_dict(default_buffer_prototype())
        run_sync(place.engine.check_v2_array(join(path, ARRAY_NAME), documents[ARRAY_NAME].to_bytes()))


def _runs_on_io_loop() -> bool:
    try:
        return asyncio.get_running_loop() is get_loop()
    except RuntimeError:
        return False


async def _is_shown(engine: Presented, path: str, document: JsonObject) -> bool:
    data = await engine.get((check_key(metadata_key(path)), EVERYTHING))
    return data is not None and same_chunks(document, loads_object(data))


@wraps(_resized)
async def _resize(self: Any, new_shape: Any, delete_outside_chunks: bool = True) -> None:
    pipeline = self.codec_pipeline
    if delete_outside_chunks and isinstance(pipeline, ArrayPipeline):
        shape = parse_shapelike(new_shape)
        if len(shape) == len(self.metadata.shape):  # zarr has the words for it where it is not
            self.metadata.update_shape(shape)  # as there: what zarr refuses is refused before anything is deleted
            delete_outside_chunks = not await pipeline.erase_outside(self.store_path, self.metadata.shape, shape)
    await _resized(self, new_shape, delete_outside_chunks)


async def _with_chunks(array: Any) -> tuple[str, ...]:
    """Return the keys of the shards that hold a chunk, as zarr names them."""
    pipeline = getattr(array, "codec_pipeline", None)
    shards = await pipeline.shards_with_chunks(array.store_path) if isinstance(pipeline, ArrayPipeline) else None
    if shards is None:
        assert _shards_initialized is not None
        initialized: tuple[str, ...] = await _shards_initialized(array)
        return initialized
    return tuple(key for key in array._iter_shard_keys() if key in shards)
