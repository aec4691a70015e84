"""The face as a mapping from keys to bytes, for zarr-python 2 and whatever else takes one.

The other modules make ``ShardedMap`` a store of zarr-python 2. Begin with ``mapping.py``.
"""

from __future__ import annotations

from shardstore.adapters.mapping.mapping import ShardedMap
from shardstore.extras import has_zarr2


def mapping_class(present: object) -> type[ShardedMap]:
    """Return the class of mappings for a flavour; with zarr-python 2, one that zarr-python takes for a store of its own."""
    if present == "v2" and has_zarr2():
        from shardstore.adapters.mapping.zarr2_store import Zarr2Store

        return Zarr2Store
    if present == "draft" and has_zarr2():
        from shardstore.adapters.mapping.zarr2_draft_store import Zarr2DraftStore

        return Zarr2DraftStore
    return ShardedMap
