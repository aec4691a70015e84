"""Checks new arrays of Zarr v2 in a store that shards arrays of Zarr v3: they would stay without shards, unnoticed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

from shardstore.engine.options import EngineOptions
from shardstore.errors import Corruption, InvalidInput
from shardstore.format.json_text import loads_object
from shardstore.format.store_keys import join
from shardstore.format.v2.arrays import array_from_v2
from shardstore.format.v2.keys import ARRAY_NAME
from shardstore.model.ranges import BytesLike
from shardstore.plan.policy import chunks_per_shard
from shardstore.storage.base import Storage


@dataclass(eq=False, repr=False)
class WrittenV2Arrays:
    """Checks each document of a new array of Zarr v2 that passes through one store."""

    _storage: Storage
    _options: EngineOptions
    _has_warned: bool = field(default=False, init=False)

    async def check(self, key: str, data: BytesLike, *, nothing_there: bool = False) -> None:
        """Refuse a new array that would be sharded if it were one of Zarr v3, if the sharding was asked for; otherwise warn, once.

        With ``nothing_there``, everything that is stored will have been erased. Keys of anything else are accepted.

        Raises:
            InvalidInput: it would be sharded by ``chunks_per_shard``.
        """
        path, _, name = key.rpartition("/")
        policy = self._options.chunks_per_shard
        if name != ARRAY_NAME or policy is None or not self._options.present.is_canonical or (policy == "auto" and self._has_warned):
            return
        if not self._would_be_sharded(path, bytes(data)) or (not nothing_there and await self._storage.stat(key) is not None):
            return
        what = f"array {path!r} is one of Zarr v2 ({join(path, ARRAY_NAME)!r})"
        remedy = (
            "open the store with present='v2', which shards what clients of Zarr v2 write, or with chunks_per_shard=None, which stores it "
            "unchanged; or write Zarr v3 (zarr_format=3)"
        )
        if policy != "auto":
            raise InvalidInput(f"{what}, and would be stored without the shards that chunks_per_shard={policy!r} asks for: {remedy}")
        self._has_warned = True
        warnings.warn(
            f"{what}, and is stored without shards: {remedy}. Further arrays of this store are not reported", UserWarning, stacklevel=2
        )

    def _would_be_sharded(self, path: str, data: bytes) -> bool:
        """Return whether the array would be sharded if it were one of Zarr v3. If it cannot be one, a tuple is meant for it too."""
        policy = self._options.chunks_per_shard
        try:
            written = loads_object(data)
            document = array_from_v2(written, None)
        except (Corruption, InvalidInput):
            return isinstance(policy, tuple | list)  # a type that Zarr v3 does not have, say
        return chunks_per_shard(policy, path, document, written=written) is not None
