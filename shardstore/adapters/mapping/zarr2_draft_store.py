"""A mapping that zarr-python 2.18 takes for a store of the 2022 draft, and so hands whole batches to. Importable with it only."""

from __future__ import annotations

from typing import Any

from zarr._storage.store import StoreV3  # type: ignore[import-not-found]  # of zarr-python 2.13 to 2.18

from shardstore._sync import run_sync
from shardstore.adapters.mapping.zarr2_store import Zarr2Map
from shardstore.adapters.transformer import ShardingTransformer
from shardstore.engine.moving import move_between
from shardstore.format.draft2022.keys import DATA_ROOT, META_ROOT, array_document_key, group_document_key
from shardstore.format.store_keys import join


class Zarr2DraftStore(Zarr2Map, ShardingTransformer, StoreV3):  # type: ignore[misc]  # which is Any where zarr-python 3 is installed
    """``ShardedMap`` as a store of the 2022 draft for zarr-python 2.18, with ``ZARR_V3_EXPERIMENTAL_API=1``.

    Open it with ``present="draft"``. Paths of ``rmdir`` and ``rename`` are those of nodes, as zarr-python 2.18 gives them.
    """

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or ``default``."""
        (value,) = self.get_partial_values([(key, None)])
        return default if value is None else value

    def rmdir(self, path: str = "") -> None:
        """Remove a node: whole shards unread, documents, and what is below."""
        path = path.strip("/")
        self.erase_prefix(DATA_ROOT + join(path, ""))
        self.erase_prefix(join(META_ROOT, join(path, "")))
        self.erase_values([array_document_key(path), group_document_key(path)])

    def rename(self, src_path: str, dst_path: str) -> None:
        """Move a node by its stored objects, shards and all.

        Raises:
            InvalidInput: there is something at ``dst_path`` already, or nothing at ``src_path``.
        """
        self._check_writable()
        engine = self.engine.canonical
        run_sync(move_between(engine, src_path.strip("/"), engine, dst_path.strip("/")))
