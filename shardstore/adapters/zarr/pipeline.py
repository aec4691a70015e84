"""The pipeline that zarr-python is configured with: it chooses, for each array, which pipeline reads and writes it.

Arrays behind which there is an engine get the ``ChunkPipeline``; those that are sharded for zarr too, the ``ShardPipeline``; all other
arrays the pipeline that was configured before.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from zarr.abc.codec import Codec, CodecPipeline
from zarr.codecs._v2 import V2Codec
from zarr.core.metadata.v2 import ArrayV2Metadata
from zarr.registry import register_pipeline

from shardstore.adapters.zarr.arrays import is_sharded, replace_methods
from shardstore.adapters.zarr.chunk_pipeline import ChunkPipeline, place_of, previous_pipeline, put_in_front
from shardstore.adapters.zarr.own_shards import ShardPipeline
from shardstore.adapters.zarr.short_path import shorten_selections

if TYPE_CHECKING:
    from zarr.abc.store import Store

DISABLED_BY = "SHARDSTORE_PIPELINE"


class ShardedCodecPipeline(ChunkPipeline):
    """The class that zarr asks for the pipeline of an array."""

    # What it returns need not be of this class, as zarr's types have it.
    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: Any, store: Store) -> CodecPipeline:  # type: ignore[override]
        codecs = _codecs_of(array_metadata)
        place = None if codecs is None else place_of(store)
        if place is None or codecs is None:
            # If that is not implemented, zarr goes on with from_codecs, which is the previous pipeline's too.
            return previous_pipeline().from_array_metadata_and_store(array_metadata=array_metadata, store=store)
        return ShardPipeline(array_metadata, store) if is_sharded(array_metadata) else cls(codecs)


def _codecs_of(array_metadata: Any) -> tuple[Codec, ...] | None:
    """Return the codecs of an array; those of Zarr v2 are one for zarr-python. ``None``: they are unknown."""
    if isinstance(array_metadata, ArrayV2Metadata):
        return (V2Codec(filters=array_metadata.filters, compressor=array_metadata.compressor),)
    codecs: tuple[Codec, ...] | None = getattr(array_metadata, "codecs", None)
    return codecs


register_pipeline(ShardedCodecPipeline)


def install_pipeline() -> None:
    """Configure this as zarr's pipeline, in front of the configured one; do nothing if that is done, or switched off."""
    replace_methods()
    shorten_selections()
    if os.environ.get(DISABLED_BY, "1").strip().lower() not in ("0", "false", "no", "off"):
        put_in_front(f"{ShardedCodecPipeline.__module__}.{ShardedCodecPipeline.__qualname__}")
