"""``shardstore.append``: rows of many writers at once, each acknowledged when every reader sees them."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import fields
from typing import Any, cast

from shardstore._sync import run_sync
from shardstore.adapters.handle import Handle, StoreFace, StoreOptions
from shardstore.adapters.zarr.rows import Rows, rows_to_append
from shardstore.adapters.zarr.store import ShardedStore
from shardstore.engine.appending.line import Append, Line, Place
from shardstore.engine.appending.view import GrownView
from shardstore.engine.options import EngineOptions
from shardstore.errors import InvalidInput, ReadOnly, ShardStoreError, Unsupported
from shardstore.format.store_keys import check_node_path
from shardstore.model.durations import Duration, seconds_of
from shardstore.storage.abilities import RestrictsKeys


def append(
    target: Any,
    data: Any,
    dim: str,
    *,
    path: str = "",
    lease: Duration = "30s",
    storage_options: dict[str, Any] | None = None,
) -> slice:
    """Append rows along a dimension while other programs do the same, and return which rows they became.

    A row is one index along ``dim``, in all arrays of the group that have it. On return the rows are durable, all readers see them, and no
    other append has any of them. Until then no reader sees a part of them, nor fill values in their place: lengths grow after the rows are
    stored, and consolidated metadata last. Programs that open several arrays without consolidated metadata may see one that has grown
    beside one that is about to.

    Appends are ordered: those that began before have the rows before. Each waits for those before it; a writer that dies holds up those
    behind it for its lease at most. So compute first, then append.

    Args:
        target: the store, as ``shardstore.open`` takes it, or one that it returned: Zarr v3, on a storage with conditional writes.
        data: an xarray Dataset or DataArray; for an array, also an array of numpy's or dask's. Variables without the dimension are left
            out. The arrays have to exist, with ``dimension_names``, and all that have the dimension have to be in the data.
        dim: the dimension along which arrays grow.
        path: the group, or the array, in the store.
        lease: the time without a sign of life after which this writer counts as dead, such as ``"30s"`` or a ``timedelta``; it gives
            one each third of that.
        storage_options: for the filesystem: credentials, endpoint, retries.

    Returns:
        The rows, ``slice(start, stop)``.

    Raises:
        InvalidInput: the data does not fit the arrays, no array has the dimension, or a transaction is open; nothing was changed.
        NotFound: there is nothing at ``path``.
        Conflict: another program changed the length of an array by other means meanwhile.
        Unsupported: the storage has no conditional writes, or is a snapshot or session of a versioned store, which have appends of their
            own.
        WriteOutcomeUnknown: the rows are stored, and may be shown later or not.
        StorageError: a request failed; nothing that any reader sees was changed, unless the message says so.
    """
    given: object = dim
    if not isinstance(given, str) or not dim:
        raise InvalidInput(f"dim={dim!r} is not the name of a dimension")
    lease_seconds = seconds_of("lease", lease)
    if not 0 < lease_seconds < math.inf:
        raise InvalidInput(f"lease {lease!r} never ends, or ends at once: give a time such as '30s'")
    handle = _handle(target, storage_options)
    line = handle.engine.canonical.append_line(check_node_path(path.strip("/")), dim, lease_seconds)
    run_sync(line.find())
    documents = line.documents
    rows = rows_to_append(data, dim, documents.path, documents.by_name())
    if not rows.count:
        run_sync(documents.read_arrays())
        length = documents.lengths()[documents.home]
        return slice(length, length)
    return _append(handle, line, rows)


def _append(handle: Handle, line: Line, rows: Rows) -> slice:
    one = Append(line, rows.count)
    try:
        place: Place | None = run_sync(one.begin())
        while place is not None:
            place = _stored(handle, one, rows, place)
    finally:
        run_sync(one.end())
    assert one.place is not None
    return slice(one.place.start, one.place.stop)


def _stored(handle: Handle, one: Append, rows: Rows, place: Place) -> Place | None:
    """Store the rows at a place; return the next place, if they have to be stored elsewhere."""
    storage = one.line.storage
    view = GrownView(storage, one.line.documents.grown(place.stop), one.line.key, place)
    try:
        rows.store(ShardedStore(view, **_options(handle.recipe.options)), place.start, is_far=not storage.capabilities.exactly_once)
    except Exception:
        elsewhere = run_sync(one.failed())
        if elsewhere is None:
            raise
        return elsewhere
    except BaseException:
        with suppress(ShardStoreError):
            run_sync(one.failed())
        raise
    return run_sync(one.stored())


def _options(given: EngineOptions) -> StoreOptions:
    """Return the options of the store that the rows are stored through: no array is created, nor shown in another way, and offsets are
    kept, for readers that have read the index of a shard do not compare versions.
    """
    of_creation = ("chunks_per_shard", "stored", "present", "present_level", "lost_transformers")
    options: dict[str, Any] = {each.name: getattr(given, each.name) for each in fields(given) if each.name not in of_creation}
    options["strategy"] = "keep"
    options["metadata_ttl"] = f"{given.metadata_ttl:f}s" if given.metadata_ttl < math.inf else math.inf
    return cast(StoreOptions, options)


def _handle(target: Any, storage_options: dict[str, Any] | None) -> Handle:
    if isinstance(target, StoreFace):
        if target.read_only:
            raise ReadOnly(f"{target.url} was opened read-only: open it with read_only=False to append to it")
        if storage_options is not None:
            raise InvalidInput("storage_options can be given only with a URL: a store has its own options")
        handle = target._handle
    else:
        handle = Handle.find(target, storage_options, {})
    if handle.engine.in_transaction:
        raise InvalidInput(f"a transaction is open on {handle.url}, and would not hold an append back: end it first")
    storage = handle.engine.storage
    if storage.kind == "snapshot":
        raise Unsupported(f"{handle.url} is part of a versioned store, which commits change: append to it by session.append")
    restricted = storage.ability(RestrictsKeys)
    if restricted is not None and not restricted.keeps_records:
        raise Unsupported(f"{handle.url} holds nothing but Zarr documents and chunks, so there is no place for the record of appends")
    return handle
