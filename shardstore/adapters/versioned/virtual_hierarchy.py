"""Make a hierarchy, or a set of references, part of a session without copying its chunks: by virtual references to its objects.

Of a sharded hierarchy the references are to the inner chunks. What is in a set itself, and chunks without bytes, are stored in the session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shardstore._sync import run_sync
from shardstore.adapters.versioned.opened import OpenedStore
from shardstore.errors import InvalidInput, Unsupported
from shardstore.format.json_text import JsonObject, dumps
from shardstore.format.metadata_v3 import METADATA_NAME, mentions_sharding
from shardstore.format.references.parquet import MISSING
from shardstore.format.snapshots.manifest import ChunkRefs, VirtualCheck
from shardstore.format.snapshots.state import Ref, check_said
from shardstore.format.store_keys import check_node_path, check_node_paths, groups_above, join
from shardstore.model.options import check_flags
from shardstore.opening.location import location_of
from shardstore.references.batches import ReferenceBatch, ReferencedArray, ReferenceSource, size_of
from shardstore.references.choices import Choices, Paths, base_of, check_patterns, chosen, described
from shardstore.references.opening import open_hierarchy, open_set_source
from shardstore.references.sets import is_set, known_source
from shardstore.references.stores import store_source
from shardstore.snapshots.lookup import FIRST_BRANCH
from shardstore.snapshots.new_history import NewHistory
from shardstore.snapshots.reachable import Progress
from shardstore.snapshots.session import SessionCore
from shardstore.snapshots.virtual_files import VirtualFiles, place_of_all
from shardstore.storage.known_references import KnowsReferences

_GROUP: JsonObject = {"zarr_format": 3, "node_type": "group", "attributes": {}}


def place_of_objects(source: Any, options: Mapping[str, Any] | None) -> str:
    """Return the URL, with ``/`` at the end, below which the objects of a hierarchy lie, or the chunk files of a snapshot."""
    storage = open_hierarchy(source, options)
    known = storage.ability(KnowsReferences)
    return (storage if known is None else known.stored_in).url.rstrip("/") + "/"


def adopt_hierarchy(
    opened: OpenedStore,
    source: Any,
    message: str,
    *,
    paths: Paths | None,
    source_options: Mapping[str, Any] | None,
    progress: Progress,
) -> None:
    """Make a store whose first commit refers to all chunks of a source; see ``Repository.adopt``. It is there when all of it is."""
    check_said(message)
    store, options = opened.store, opened.options
    if not is_set(source) and location_of(open_hierarchy(source, source_options)).overlaps(location_of(store.files.given)):
        raise InvalidInput(
            f"the hierarchy and {store.url} overlap: one is the other, or lies in it. Give the repository a place of its own; nothing was "
            "changed"
        )
    new = NewHistory(store, pack=options.pack, max_memory=options.max_memory)
    run_sync(store.check_new())
    try:
        first = run_sync(new.first())
        session = run_sync(new.session(first.id))
        refer_to(session, opened.virtual, source, "", paths=paths, overwrite=True, storage_options=source_options, progress=progress)
        made = run_sync(new.add(store.files.new_name(), int(store.clock() * 1000), message, None))
        run_sync(new.publish({FIRST_BRANCH: Ref(made.id, "branch")}))
    except BaseException:
        run_sync(new.give_up())
        raise


def refer_to(
    session: SessionCore,
    virtual: VirtualFiles,
    source: Any,
    path: str,
    *,
    paths: Paths | None,
    overwrite: bool,
    storage_options: Mapping[str, Any] | None,
    progress: Progress,
) -> int:
    """Refer to all chunks of a source in a session; return the number of references. See ``Session.set_virtual_hierarchy``."""
    check_flags(overwrite=overwrite)
    check_node_path(path)
    found = _opened(source, Choices(paths), storage_options)
    shown = described(found, "v3", only_v2_keys=False)
    documents = {join(path, node) if node else path: by_name[METADATA_NAME] for node, by_name in shown.documents.items()}
    for group in groups_above(path):
        documents.setdefault(group, _GROUP)
    check_node_paths(documents)
    whole = sorted(node for node, document in documents.items() if mentions_sharding(document.get("codecs")))
    if whole:
        raise Unsupported(
            f"the chunks of {', '.join(map(repr, whole[:5]))} cannot be referred to one by one: a codec is applied to whole shards. Leave "
            f"such arrays out by paths={{{whole[0]!r}: None, '*': {{}}}}. Nothing was changed"
        )
    replaced = sorted(
        node
        for node, document in documents.items()
        if (there := session.nodes.get(node)) is not None and (there.is_array or document["node_type"] == "array")
    )
    if replaced and not overwrite:
        raise InvalidInput(
            f"there are {len(replaced)} nodes at the same paths, such as {', '.join(map(repr, replaced[:5]))}: overwrite=True replaces "
            "them. Nothing was changed"
        )
    run_sync(_write_documents(session, documents, replaced))
    total, references = sum(map(size_of, found.arrays)), 0
    for array in found.arrays:
        for more in _refer_to_array(session, virtual, array, join(path, array.path) if array.path else path, found.base_url):
            references += more
            progress("referring to chunks", references, total)
    return references


def _opened(source: Any, choices: Choices, options: Mapping[str, Any] | None) -> ReferenceSource:
    if is_set(source):
        return open_set_source(source, choices, options)[1]
    storage = open_hierarchy(source, options)
    if (known := storage.ability(KnowsReferences)) is not None:
        found = known_source(known, base_of(known.stored_in, "absolute", None, ""), lambda path: chosen(choices, path) is not None)
    else:
        found = store_source(storage, base_of(storage, "absolute", None, ""), lambda path: chosen(choices, path))
    check_patterns(choices, found.array_paths())
    return found


async def _write_documents(session: SessionCore, documents: Mapping[str, JsonObject], replaced: list[str]) -> None:
    for path in replaced:
        for below in session.nodes_below(path):
            session.remove_node(below)
    for path in sorted(documents, key=lambda path: path.split("/") if path else []):
        if documents[path] is _GROUP and path in session.nodes:
            continue
        await session.set_document(path, dumps(documents[path]))


def _refer_to_array(session: SessionCore, virtual: VirtualFiles, array: ReferencedArray, path: str, place: str) -> Iterator[int]:
    """Refer to the chunks of an array, and yield how many there are, batch by batch. ``place`` is what all objects lie below, if known."""
    node = session.array(path)
    for batch in array.batches(0, size_of(array)):
        kept = np.flatnonzero(batch.rows.target != MISSING)
        lead_into = place or place_of_all(batch.rows.targets)
        for url in batch.rows.targets:
            virtual.check_authorised(url, lead_into)
        run_sync(_set_refs(session, path, virtual, batch, kept, array.chunk_grid))
        for row, data in batch.rows.inline.items():
            coords = tuple(int(one) for one in np.unravel_index(int(batch.chunks[row]), array.chunk_grid)) if array.chunk_grid else ()
            run_sync(session.write_chunk(node, coords, data))
        yield len(batch.chunks)


async def _set_refs(
    session: SessionCore, path: str, virtual: VirtualFiles, batch: ReferenceBatch, kept: Any, grid: tuple[int, ...]
) -> None:
    rows = batch.rows
    order = np.argsort(batch.chunks[kept], kind="stable")
    kept = kept[order]
    chunks, file = batch.chunks[kept], rows.target[kept].astype(np.int32)
    offset, nbytes = rows.offset[kept].astype(np.uint64), rows.nbytes[kept].astype(np.uint64)
    whole = np.flatnonzero((offset == 0) & (nbytes == 0))
    if len(whole):
        sizes = await virtual.sizes([rows.targets[number] for number in file[whole].tolist()])
        nbytes[whole] = sizes
    checks = {number: check for number, check in enumerate(_checks_of(batch)) if check is not None}
    coords = np.stack(np.unravel_index(chunks, grid), axis=-1).astype(np.uint64) if grid else np.zeros((len(chunks), 0), dtype=np.uint64)
    if len(coords):
        session.set_refs(session.array(path), ChunkRefs(coords, file, offset, nbytes, list(rows.targets), {}, checks))


def _checks_of(batch: ReferenceBatch) -> Sequence[VirtualCheck | None]:
    """Return what is known of the object at each of a batch's targets: a URL may be there more than once, in several versions."""
    if batch.checks:
        return batch.checks
    tokens = [one.token for one in batch.objects] or [batch.rows.generations.get(url) for url in batch.rows.targets]
    return [None if token is None else VirtualCheck(token) for token in tokens]
