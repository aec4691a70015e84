"""A mapping that zarr-python 2 takes for a store of its own, and so hands whole batches to.

zarr-python 2 wraps any other mapping in a store that passes one key at a time. Importable with zarr-python 2 only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zarr.storage import Store  # type: ignore[attr-defined]  # of zarr-python 2

from shardstore.adapters.mapping.mapping import ShardedMap


class Zarr2Map(ShardedMap):
    """``ShardedMap`` with what zarr-python 2 asks of its stores in addition to a mapping."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._writeable = self._erasable = not self.read_only

    # zarr-python 2 gives no argument for missing keys, and passes another one.
    def getitems(  # type: ignore[override]  # by the signature that zarr-python 2 calls
        self, keys: Iterable[str], *, contexts: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        """Return the values of many keys, in one batch; missing keys are left out. ``contexts`` are not used."""
        return super().getitems(keys, **({"on_error": "omit"} | options))


class Zarr2Store(Zarr2Map, Store):  # type: ignore[misc]  # which is Any where zarr-python 3 is installed
    """``ShardedMap`` as a ``zarr.storage.Store`` of zarr-python 2.

    Open it with ``present="v2"``: one selection is one batch of reads, one assignment one commit a shard.
    """

    _dimension_separator = None  # left to the array, as in zarr-python's own stores
