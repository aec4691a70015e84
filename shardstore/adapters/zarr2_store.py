"""Mappings that zarr-python 2 takes for stores of its own, and so hands whole batches to.

zarr-python 2 wraps any other mapping in a store that passes one key at a time. Importable with zarr-python 2 only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zarr._storage.store import StoreV3  # type: ignore[import-not-found]  # of zarr-python 2
from zarr.storage import Store  # type: ignore[attr-defined]

from shardstore._sync import run_sync
from shardstore.adapters.mapping import ShardedMap
from shardstore.adapters.transformer import ShardingTransformer
from shardstore.engine.moving import move_nodes
from shardstore.format.draft2022_keys import DATA_ROOT, META_ROOT, array_document_key, group_document_key


class Zarr2Store(ShardedMap, Store):  # type: ignore[misc]  # which is Any where zarr-python 3 is installed
    """``ShardedMap`` as a ``zarr.storage.Store`` of zarr-python 2.

    Open it with ``present="v2"``: one selection is one batch of reads, one assignment one commit a shard.
    """

    _dimension_separator = None  # left to the array, as in zarr-python's own stores

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._writeable = self._erasable = not self.read_only

    # zarr-python 2 says what is to become of missing keys by no argument, and passes another one.
    def getitems(  # type: ignore[override]
        self, keys: Iterable[str], *, contexts: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        """The values of many keys, in one batch; those that are missing are left out. ``contexts`` are not used."""
        return super().getitems(keys, **({"on_error": "omit"} | options))


class Zarr2DraftStore(ShardedMap, ShardingTransformer, StoreV3):  # type: ignore[misc]
    """``ShardedMap`` as a store of the 2022 draft for zarr-python 2.18, with ``ZARR_V3_EXPERIMENTAL_API=1``.

    Open it with ``present="draft"``. Paths of ``rmdir`` and ``rename`` are those of nodes, as zarr-python 2.18 gives them.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._writeable = self._erasable = not self.read_only

    def getitems(  # type: ignore[override]
        self, keys: Iterable[str], *, contexts: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        """The values of many keys, in one batch; those that are missing are left out. ``contexts`` are not used."""
        return super().getitems(keys, **({"on_error": "omit"} | options))

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or ``default``."""
        (value,) = self.get_partial_values([(key, None)])
        return default if value is None else value

    def rmdir(self, path: str = "") -> None:
        """Remove a node: whole shards unread, documents, and what is below."""
        path = path.strip("/")
        self.erase_prefix(f"{DATA_ROOT}{path}/" if path else DATA_ROOT)
        self.erase_prefix(f"{META_ROOT}/{path}/" if path else f"{META_ROOT}/")
        self.erase_values([array_document_key(path), group_document_key(path)])

    def rename(self, src_path: str, dst_path: str) -> None:
        """Move a node as it is stored, shards and all.

        Raises:
            InvalidInput: there is something at ``dst_path`` already, or nothing at ``src_path``.
        """
        self._check_writable()
        run_sync(move_nodes(self.engine, src_path.strip("/"), dst_path.strip("/")))
