"""The arrays that data is going to be written to: how they are cut, and along which dimensions.

A target is the ``store`` that ``align`` is given: a store, a URL, or a node of zarr. Other stores need no import.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fsspec.core import url_to_fs

from shardstore._sync import run_sync
from shardstore.adapters.batch_values import values_of
from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
from shardstore.adapters.handle import Handle
from shardstore.adapters.zarr_version import imported_zarr
from shardstore.errors import InvalidInput, Unsupported
from shardstore.format.json_text import JsonObject, loads_object
from shardstore.format.metadata_v3 import METADATA_NAME, ArrayLayout, is_array, parse_plain
from shardstore.format.store_keys import join
from shardstore.model.ranges import EVERYTHING
from shardstore.opening.address import text_of
from shardstore.plan.policy import ShardingPolicy
from shardstore.presented.flavours import Presented

_CHAIN = "sharded::"


@dataclass(frozen=True, slots=True)
class TargetArray:
    """An array that exists. ``shard_shape`` in elements; of an array without shards, the shape of a chunk."""

    path: str
    shape: tuple[int, ...]
    shard_shape: tuple[int, ...]
    dimension_names: tuple[str | None, ...] | None


@dataclass(frozen=True, slots=True)
class AlignTarget:
    """A store, and the node of it that was named."""

    engine: Presented
    path: str

    @property
    def policy(self) -> ShardingPolicy:
        """The policy for arrays that do not exist yet."""
        return self.engine.options.chunks_per_shard

    def arrays(self, paths: Sequence[str]) -> dict[str, TargetArray]:
        """Return the present arrays at ``paths``, in two rounds of requests; other paths are left out.

        Raises:
            Unsupported: the chunks of one are not of one shape.
        """
        keys = [join(path, name) for path in paths for name in (METADATA_NAME, ".zarray", ".zattrs")]
        values = iter(values_of(run_sync(self.engine.get_many([(key, EVERYTHING) for key in keys]))))
        v3: dict[str, JsonObject] = {}
        found: dict[str, TargetArray] = {}
        for path in paths:
            document, v2, v2_attributes = (None if value is None else loads_object(value) for value in islice(values, 3))
            if document is not None and is_array(document):
                v3[path] = document
            elif document is None and v2 is not None:
                found[path] = _v2_array(path, v2, v2_attributes or {})
        nodes = run_sync(self.engine.hierarchy.load(v3))
        for path, document in v3.items():
            node = nodes[path]
            found[path] = self._v3_array(path, document, None if node is None else node.layout)
        return found

    def _v3_array(self, path: str, presented: JsonObject, layout: ArrayLayout | None) -> TargetArray:
        plain = parse_plain(presented)
        if isinstance(plain, str):
            raise Unsupported(f"array {path!r} in {self.engine.storage.url} has no shards to align with: {plain}")
        per_shard = (1,) * len(plain.shape) if layout is None else layout.index_format.chunks_per_shard
        shard_shape = tuple(c * n for c, n in zip(plain.chunk_shape, per_shard, strict=True))
        names = presented.get("dimension_names")
        return TargetArray(path, plain.shape, shard_shape, tuple(names) if isinstance(names, list) else None)


def _v2_array(path: str, document: JsonObject, attributes: JsonObject) -> TargetArray:
    """Return an array of Zarr v2, which has no shards; xarray keeps the names of its dimensions in an attribute."""
    names = attributes.get("_ARRAY_DIMENSIONS")
    return TargetArray(path, tuple(document["shape"]), tuple(document["chunks"]), tuple(names) if isinstance(names, list) else None)


def open_target(store: Any, storage_options: Mapping[str, Any] | None) -> AlignTarget:
    """Open the target that ``store`` names.

    Args:
        store: a store of shardstore's, a URL or path with or without ``sharded::``, or an array, group or store of zarr's on one of
            shardstore's.

    Raises:
        InvalidInput: it is something else.
    """
    if isinstance(store, os.PathLike):
        store = text_of(store)
    if isinstance(store, str) and store.startswith(_CHAIN):
        return _filesystem_target(*url_to_fs(store, **(storage_options or {})))
    if isinstance(store, str):
        return AlignTarget(Handle.make(store, dict(storage_options) if storage_options else None, {}).engine, "")
    if storage_options:
        raise InvalidInput(f"storage_options go with a URL, not with {store!r}")
    node_path = ""
    if is_zarr(store) and hasattr(store, "store_path"):
        store, node_path = store.store, store.path
    if isinstance(engine := getattr(store, "engine", None), Presented):
        return AlignTarget(engine, node_path)
    if isinstance(filesystem := getattr(store, "fs", None), ShardedFileSystem):  # zarr's FsspecStore
        below = _filesystem_target(filesystem, store.path)
        return AlignTarget(below.engine, join(below.path, node_path).strip("/"))
    raise InvalidInput(
        f"{type(store).__name__} is not a store of shardstore's: give what shardstore.open returned, its URL, or sharded:: and its URL. "
        "For zarr's own stores xarray does it: to_zarr(align_chunks=True)"
    )


def array_of_zarr(store: Any) -> TargetArray | None:
    """Return the shapes of an array of zarr's on a store that is not shardstore's; ``None`` if ``store`` is something else."""
    zarr = imported_zarr()
    if zarr is None or not isinstance(store, zarr.Array) or _is_ours(store.store):
        return None
    return TargetArray(store.path, store.shape, store.shards or store.chunks, None)


def _is_ours(store: Any) -> bool:
    return isinstance(getattr(store, "engine", None), Presented) or isinstance(getattr(store, "fs", None), ShardedFileSystem)


def is_zarr(store: Any) -> bool:
    """Return whether it is a store or a node of zarr's."""
    zarr = imported_zarr()
    return zarr is not None and isinstance(store, zarr.Array | zarr.Group | zarr.abc.store.Store)


def _filesystem_target(filesystem: Any, path: str) -> AlignTarget:
    if not isinstance(filesystem, ShardedFileSystem):
        raise InvalidInput(f"{type(filesystem).__name__} is not the filesystem of a store of shardstore's: write sharded:: before the URL")
    return AlignTarget(filesystem.engine, filesystem.key_of(path))
