"""The view of an array by a client that chose the shards itself: its chunk is what other clients call a shard.

Such a client is safe only if all that it reads and writes is expanded to the chunks that other clients see. Zarr's arrays with our codec
pipeline do that. What is stored decides whether an array is expanded; it is looked up again when the document has changed.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardstore.engine.metadata.documents import Documents
from shardstore.engine.metadata.hierarchy import Hierarchy
from shardstore.engine.transaction_view import Overlay
from shardstore.errors import Corruption, InvalidInput, NotFound
from shardstore.format.json_text import JsonObject, loads_object
from shardstore.format.metadata_v3 import is_array, mentions_sharding, parse_layout
from shardstore.format.presentation import present_array, same_chunks
from shardstore.format.store_keys import metadata_key
from shardstore.model.generation import Generation


@dataclass(frozen=True, slots=True)
class ClientView:
    """The way in which a client sees an array, by chunks or by shards, while the stored document has this version.

    Without a version it is looked up each time.
    """

    generation: Generation | None
    by_shards: bool
    """True if its chunks are shards of the chunks that other clients see; false if they are those chunks."""


async def client_view(
    path: str,
    document: JsonObject,
    *,
    overlay: Overlay | None,
    hierarchy: Hierarchy,
    documents: Documents,
    for_write: bool,
    last: ClientView | None,
) -> ClientView:
    """Return how a client with ``document`` sees the array at ``path``. ``last`` is what this returned before.

    Raises:
        NotFound: (writes) there is no array.
        InvalidInput: the stored array has other chunks by now.
        Corruption: its metadata is damaged.
    """
    key = metadata_key(path)
    if overlay is not None and overlay.decides(key):
        data = overlay.get(key)
        return _view_of(path, document, None if data is None else loads_object(data), None, for_write)
    known = hierarchy.known(path)
    if last is not None and known is not None and known.generation == last.generation and hierarchy.may_trust(known, for_write):
        return last
    stored = await documents.read(path)
    if stored is None:
        return _view_of(path, document, None, None, for_write)
    if stored.document is None or not is_array(stored.document):
        raise Corruption(f"{key!r} is not the metadata of an array any more: {stored.node.reason or 'it is a group'}")
    if last is not None and last.generation == stored.generation:
        return last
    if isinstance(parse_layout(stored.document), str) and mentions_sharding(stored.document.get("codecs")):
        return ClientView(stored.generation, by_shards=False)  # every client sees it as it lies in the storage
    return _view_of(path, document, present_array(stored.document), stored.generation, for_write)


def _view_of(path: str, document: JsonObject, shown: JsonObject | None, generation: Generation | None, for_write: bool) -> ClientView:
    if shown is None:
        if for_write:
            raise NotFound(f"array {path!r} has been deleted: create it again, or open what is there now, before writing its chunks")
        return ClientView(None, True)
    if same_chunks(document, shown):
        return ClientView(generation, False)
    if same_chunks(present_array(document), shown):
        return ClientView(generation, True)
    raise InvalidInput(
        f"array {path!r} is not what it was when it was created or opened here (chunk shape, data type or codecs differ): open it again"
    )
