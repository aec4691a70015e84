"""Arrays whose shards are sharded again: the levels of sharding, from the stored objects to the innermost chunks.

::

    level 0   stored          one object per shard
    level 1   presented       the chunks of a shard; of nested sharding each is a shard itself
    level 2                   the chunks of these, and so on

Codecs nest (``sharding_indexed`` inside ``sharding_indexed``); storage transformers are listed, the last one next to the storage. No
other program reads storage transformers, so all of them are always removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from shardstore.format.json_text import JsonObject
from shardstore.format.presentation import present_array, same_chunks, update_stored

PresentLevel = int | Literal["innermost"]
"""The number of levels of sharding to remove, if there are as many."""


def levels_of(document: JsonObject) -> list[JsonObject]:
    """Return the array's document at each level, the stored one first; only that one where the array is not sharded, or passes through
    whole.
    """
    documents = [document]
    while (below := present_array(documents[-1])) is not documents[-1]:
        documents.append(below)
    return documents


def levels_below(documents: Sequence[JsonObject], wanted: PresentLevel) -> int:
    """Return how many levels have to be removed from the stored array before the last one: removing one more gives the level that a client
    wants.
    """
    transformers = documents[0].get("storage_transformers")
    count = len(transformers) if isinstance(transformers, list) else 0
    there = len(documents) - 1
    return max(0, there - 1 if wanted == "innermost" else min(there, max(count, wanted)) - 1)


def restored(shown: JsonObject, documents: Sequence[JsonObject]) -> JsonObject | None:
    """Return the document to store for ``shown``, a new document at the last of the levels ``documents``; ``None`` where its chunks are
    others.
    """
    if not same_chunks(shown, documents[-1]):
        return None
    for above in reversed(documents[:-1]):
        shown = update_stored(shown, above)
    return shown
