"""``update``: write a set again as it was written, reading the indices only of shards that have changed since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from shardstore._sync import run_sync
from shardstore.errors import Conflict
from shardstore.format.references.pins import PinnedObject
from shardstore.maintenance.pins import is_held
from shardstore.references.batches import ReferenceBatch, strides
from shardstore.references.opening import open_source
from shardstore.references.places import find_set, open_set, options_of_set, pins_of
from shardstore.references.report import ReferenceReport
from shardstore.references.sets import PinsByUrl, SetArray, reference_storage, set_source, store_of
from shardstore.references.storing import ParquetForm, Progress, form_of, put
from shardstore.storage.references.storage import ReferenceStorage


class OlderSet:
    """The references of a set into objects that are still what they were."""

    def __init__(self, references: ReferenceStorage, objects: Mapping[str, PinnedObject]) -> None:
        self._objects = objects
        source = set_source(references, lambda path: True, PinsByUrl(keeps_relative=True))
        self._arrays = {array.path: array for array in source.arrays if isinstance(array, SetArray)}

    def references(
        self, path: str, chunk_grid: tuple[int, ...], key: str, token: str | None, chunks: npt.NDArray[np.int64]
    ) -> ReferenceBatch | None:
        """Return the references of an array into the object at ``key``; ``None`` if that has changed, or the array has."""
        pinned, array = self._objects.get(key), self._arrays.get(path)
        if pinned is None or array is None or len(array.chunk_grid) != len(chunk_grid):
            return None
        if token is None or not is_held(frozenset({pinned.generation}), token):
            return None
        older = chunks
        if array.chunk_grid != chunk_grid:
            coords = np.array(np.unravel_index(chunks, chunk_grid), dtype=np.int64).reshape(len(chunk_grid), len(chunks))
            if (coords >= np.array(array.chunk_grid, dtype=np.int64)[:, None]).any():
                return None  # the shard may hold chunks that were outside of the array
            older = coords.T @ strides(array.chunk_grid)
        try:
            found = array.references_to(older)
        except Conflict:  # its file was replaced by one of the new set
            return None
        if older is chunks:
            return found
        order = np.argsort(older)
        return ReferenceBatch(chunks[order[np.searchsorted(older, found.chunks, sorter=order)]], found.rows)


def update(
    target: Any,
    source: Any = None,
    *,
    output: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    progress: Progress | bool | None = None,
) -> ReferenceReport:
    """Write a set again with the arguments that it was written with. Only shards that have changed since are read, by one request each;
    all of them where ``missing="fill"`` does not tell which chunks are missing.

    Args:
        target: the path or URL of the set.
        source: the store, if it is not where the set says.
        output: another place for the new set; by default it replaces the old one. One in JSON is replaced in one step; one in Parquet is
            no set until it is whole again. If that is interrupted, the next ``update`` writes all of it.
        storage_options: of the store's filesystem.
        target_options: of the set's filesystem; by default those of the store, if both have the same protocol.
        progress: called now and then with a ``ReferenceProgress``; or ``True``: it is shown on stderr.

    Raises:
        NotFound: there is no set, or it does not say what it was made of: write it again.
        ShardStoreError: as ``write_json`` and ``write_parquet``.
    """
    options = options_of_set(target, storage_options, target_options)
    place = find_set(target, options, or_pins=True)
    section = pins_of(place)
    is_whole = run_sync(place.storage.stat(place.main_key)) is not None
    older = OlderSet(reference_storage(place.url, options), section.objects) if is_whole else None
    form, choices = form_of(section.origin.arguments)
    new = open_set(place.url if output is None else output, options, is_directory=isinstance(form, ParquetForm))
    store = store_of(place, section) if source is None else source
    # Chunks that hold the fill value may stand for missing ones, and that value may have changed.
    reuse = None if isinstance(form, ParquetForm) and form.missing == "fill" else older
    found = open_source(store, new, choices, pins=True, options=storage_options, reuse=reuse, is_new=False)
    return put(found, new, form, choices, overwrite=output is None, progress=progress, has_options=bool(storage_options))
