"""What is known of a client that stores an array's document: whether it expands shards to chunks, and the shape that it has seen.

Permission to store arrays that are themselves sharded is for clients of this process that expand shards to chunks.

An array's document arrives as the bytes of a key, from any client. Before zarr stores the document, our pipeline notes here that it
handles the array. So zarr will never take a shard for a chunk.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Protocol
from weakref import WeakSet

from shardstore.engine.actions import SetValue
from shardstore.engine.metadata.translation import OwnShards
from shardstore.engine.own_shards import ClientView
from shardstore.errors import Corruption
from shardstore.format.json_text import JsonObject, loads_object
from shardstore.format.metadata_v3 import ArrayLayout, is_array, mentions_sharding, parse_layout
from shardstore.format.presentation import same_chunks
from shardstore.format.store_keys import metadata_path
from shardstore.model.ranges import BytesLike
from shardstore.presented.flavours import Presented


class ShardView(Protocol):
    """The reader and writer of one array by its shards, which expands them to chunks; it is forgotten when nothing else refers to it."""

    is_new: bool
    """True until something of it was stored: the array may be created."""
    sight: ClientView | None
    """How the store shows the array, if that is known."""

    @property
    def document(self) -> JsonObject:
        """The array's document as this client has it."""

    def is_at(self, engine: Presented, path: str) -> bool:
        """Return whether it is of the array at ``path`` of this engine."""


_lock = threading.Lock()
_views: dict[str, WeakSet[ShardView]] = {}
"""Views by the name of the array, the last part of its path: the root of a filesystem may not be known yet."""


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def note_view(name: str, view: ShardView) -> None:
    """Allow documents of this view to be stored, while the view exists. ``name`` is that of the array in its store, ``""`` at the root."""
    with _lock:
        for empty in [known for known, views in _views.items() if not views]:
            del _views[empty]
        _views.setdefault(name, WeakSet()).add(view)


def _views_at(engine: Presented, path: str) -> list[ShardView]:
    with _lock:
        noted = [view for name in {path.rpartition("/")[2], ""} for view in _views.get(name, ())]
    return [view for view in noted if view.is_at(engine, path)]


seen_shape: ContextVar[tuple[int, ...] | None] = ContextVar("seen_shape", default=None)
"""While zarr stores a document that it made of one which it has: the shape in that. Another one is a conflict."""


async def set_value(engine: Presented, key: str, data: BytesLike, seen: tuple[int, ...] | None = None) -> None:
    """Store a value, as ``engine.update`` does; the document of a sharded array too, if a view of it is noted.

    Runs on the IO loop. Raises as ``engine.update`` does, and ``Conflict`` if the array has not the shape that the client has ``seen``.
    """
    path = metadata_path(key)
    if path is None or b"sharding_indexed" not in (data := bytes(data)) or not (views := _views_at(engine, path)):
        await engine.update((key, SetValue(data, seen_shape=seen)))
        return
    document = _array(data)
    layout = parse_layout(document)
    views = [view for view in views if mentions_sharding(document.get("codecs")) and _is_of(document, layout, view)]
    await engine.update((key, SetValue(data, _permission(views, layout), seen)))
    node = None if not views or engine.in_transaction else engine.hierarchy.known(path)
    for view in views:
        view.is_new = False
        if node is not None and node.layout == (None if isinstance(layout, str) else layout):
            view.sight = ClientView(node.generation, by_shards=node.layout is not None)


def _permission(views: Sequence[ShardView], layout: ArrayLayout | str) -> OwnShards:
    """Return what a client may store that has these views of an array. One that cannot be shown by chunks (``layout`` says why) is the same
    for every client, however it changes.
    """
    if not views:
        return OwnShards.REFUSED
    return OwnShards.NEW if isinstance(layout, str) or any(view.is_new for view in views) else OwnShards.SAME


def _is_of(document: JsonObject, layout: ArrayLayout | str, view: ShardView) -> bool:
    """Return whether a document of a sharded array is one that the array of this view may have."""
    if same_chunks(document, view.document):
        return True
    return isinstance(layout, str) and isinstance(parse_layout(view.document), str)  # irregular grids change with the shape


def _array(data: BytesLike) -> JsonObject:
    """Return the document of an array; an empty one for anything else."""
    try:
        document = loads_object(data)
    except Corruption:
        return {}
    return document if is_array(document) else {}
