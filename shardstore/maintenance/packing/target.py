"""The places of a run, the documents of its target, and objects of the target that have to go: they are in the way, belong to an old
hierarchy that is overwritten, or were made by runs for chunks, arrays and other objects that the source no longer has.

A hierarchy that is overwritten stays until it is replaced, object by object, or the new one is complete next to it. So a run that fails,
or reads nothing, has not lost it. Documents that would misread new chunks, objects where a directory will be, and links to directories are
obstacles: they are removed when the first unit that they are in the way of could be read, and before it is written. So a source that
cannot be read costs the target nothing. The same is true of a target that is renewed. The objects that are not replaced are removed at the
end.

Of a target that is renewed nothing else is touched: an object is removed if the record says that a run has made it, or was about to, and it
still has that version. Of a file, another mode or owner, or a loss of power, does not make another version here. Where a foreign object is
in the way, so that the target would not show the source, an error names it.

What links to directories lead to is not part of the store, and is neither written nor erased. A target that is not to be overwritten
and has such links is refused, and one that is to be and has something mounted in it.

Documents are written when all data are there, and removed before data that they would misread. Readers may have a target open that is
renewed, so what ``"auto"`` decides must not change. Where the meaning of an array's chunks changes, its document is removed first: no
reader finds new chunks under an old document, whenever the run is killed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from shardstore.errors import Conflict, Corruption
from shardstore.format.draft2022.keys import canonical_key
from shardstore.format.json_text import JsonObject, dumps, loads_object
from shardstore.format.metadata_v3 import METADATA_NAME, parse_layout, parse_plain
from shardstore.format.presentation import present_array
from shardstore.format.store_keys import ancestors, metadata_key, metadata_path
from shardstore.format.v2.keys import document_key, is_document
from shardstore.maintenance.execution import SharedStorage
from shardstore.maintenance.packing.listing import SizedObject, SourceArray, version_digest
from shardstore.maintenance.packing.record import Record, Recorded
from shardstore.maintenance.packing.translation import KeptShards, PlannedKeys, TargetArray, TargetNodes
from shardstore.maintenance.packing.units import Made, UnitName
from shardstore.model.containers import batched
from shardstore.model.generation import UNCONDITIONAL, IfGeneration
from shardstore.model.ranges import EVERYTHING
from shardstore.model.redaction import redacted
from shardstore.model.words import some_of
from shardstore.opening.snapshot_place import NewHierarchy
from shardstore.storage.base import ConditionFailed, Failed, Found, LeadsNowhere, ObjectInfo, Read, Storage
from shardstore.storage.boundaries import check_no_links, check_no_mounts
from shardstore.storage.local.storage import LocalFiles
from shardstore.storage.requests.outcomes import PROBE_PREFIX
from shardstore.tasks import gather_all

_AT_ONCE = 64
_DELETED_AT_ONCE = 1000
_NAMED = 20
_MEANING = ("node_type", "data_type", "chunk_grid", "chunk_key_encoding", "codecs", "storage_transformers")
"""Members of a document that define the meaning of a chunk's bytes, and their place."""


@dataclass(frozen=True, slots=True)
class Places:
    """The source and the target with the keys of final Zarr v3, and the record."""

    source: SharedStorage
    target: SharedStorage
    stored_target: Storage
    """The target with its stored keys."""
    record: Record
    record_inside: str | None
    """The prefix of the record, if it lies in the target."""
    hierarchy: NewHierarchy | None = None
    """The target, if it becomes part of a branch of a versioned store: no reader sees it before."""

    async def target_objects(self) -> AsyncIterator[ObjectInfo]:
        """Yield the objects of the target, with their stored keys, that are not a run's own: neither of a probe nor of the record."""
        own = (PROBE_PREFIX, *([] if self.record_inside is None else [self.record_inside]))
        async for info in self.stored_target.list(""):
            if not info.key.startswith(own):
                yield info

    @property
    def shown_source(self) -> str:
        return redacted(self.source.storage.url)

    @property
    def shown_target(self) -> str:
        return redacted(self.stored_target.url)


# -- the one way to remove -----------------------------------------------------------------------------------------------


async def remove(storage: Storage, objects: Sequence[ObjectInfo]) -> None:
    """Remove objects in the versions that were looked at, the documents before the rest: a reader has to find an array gone, not empty.

    Raises:
        Conflict: one was replaced just now.
        StorageError: a request failed.
    """
    await _remove_together(storage, [info for info in objects if metadata_path(info.key) is not None])
    await _remove_together(storage, [info for info in objects if metadata_path(info.key) is None])


async def _remove_together(storage: Storage, objects: Sequence[ObjectInfo]) -> None:
    """Remove objects as ``remove`` does, in any order: many by one request where their versions, or conditions of DELETE, are missing."""
    can_condition = storage.capabilities.conditional_delete
    blind = [info.key for info in objects if not can_condition or info.generation is None]
    for keys in batched(blind, _DELETED_AT_ONCE):
        await storage.delete_many(keys)
    pinned = [(info.key, info.generation) for info in objects if can_condition and info.generation is not None]
    for some in batched(pinned, _AT_ONCE):
        try:
            await gather_all(*(storage.delete(key, IfGeneration(version)) for key, version in some))
        except ConditionFailed as exc:
            raise Conflict(f"an object at {storage.url} was replaced while it was to be removed: run it again ({exc})") from exc


# -- what runs have made for things that are gone ------------------------------------------------------------------------

Candidates = Mapping[str, Sequence[SizedObject]]
"""Keys that must not be at the target, with the recorded objects of each."""


def superseded(
    recorded: Recorded, planned: Iterable[UnitName], documents: Iterable[str], more: Iterable[str], *, as_draft: bool
) -> Candidates:
    """Return the objects of units that are not ``planned``, or were done again with other results; and ``more`` keys, which are not
    recorded.

    For ``planned`` units the last result counts: its objects are never returned, nor are ``documents``.
    """
    kept = [entry for name in planned if (entry := recorded.units.get(name)) is not None]
    is_kept = set(map(id, kept))
    old = [entry.made for entry in (*recorded.units.values(), *recorded.older) if id(entry) not in is_kept]
    renamed = _renamed(old) if as_draft else {}
    more = list(dict.fromkeys((*more, *renamed)))
    if not old and not more:  # as of a first run: there may be very many objects
        return {}
    present = np.concatenate([_hashes(documents), *(entry.made.hashes() for entry in kept)])
    is_gone = ~np.isin(np.concatenate([_hashes(more), *(made.hashes() for made in old)]), present)
    of_more, *of_made = np.split(is_gone, np.cumsum([len(more), *map(len, old)])[:-1])
    found: dict[str, list[SizedObject]] = {key: [renamed[key]] if key in renamed else [] for key in compress(more, of_more.tolist())}
    for made, of_one in zip(old, of_made, strict=True):
        if of_one.any():
            for one in compress(made, of_one.tolist()):
                found.setdefault(one.key, []).append(one)
    return found


def _renamed(old: Iterable[Made]) -> dict[str, SizedObject]:
    """Return the chunks of 0-d arrays of the 2022 draft by the keys that they have as soon as their documents are gone."""
    return {f"{one.key}/0": one for made in old for one in made if one.key == "c" or one.key.endswith("/c")}


def _hashes(keys: Iterable[str]) -> npt.NDArray[np.int64]:
    return np.array(list(map(hash, keys)), dtype=np.int64)


async def removable(
    storage: Storage, candidates: Candidates, recorded: Recorded, arrays: Mapping[str, TargetArray], shown_target: str
) -> list[ObjectInfo]:
    """Return the candidates that exist and are the runs' own. Foreign objects that lie in none of the ``arrays`` are left out.

    Raises:
        Conflict: a foreign object is in the way.
        StorageError: a request failed.
    """
    found: list[ObjectInfo] = []
    foreign: list[str] = []
    for some in batched(list(candidates), _AT_ONCE):
        for key, info in zip(some, await gather_all(*map(storage.stat, some)), strict=True):
            if info is None:
                continue
            if any(_is_made(made, info) for made in candidates[key]) or key in recorded.announced:
                found.append(info)
            elif candidates[key] or _is_chunk(key, arrays):
                foreign.append(key)
    if foreign:
        raise Conflict(
            f"at {shown_target} the source has nothing for {_named(foreign)}, but another program has written them since, so they are "
            "not removed: remove them, and the same call goes on from there; or give overwrite=True to begin again"
        )
    return sorted(found, key=lambda info: (info.key.count("/"), info.key))


def _is_made(made: SizedObject, info: ObjectInfo) -> bool:
    if info.generation is None or not info.generation.digest or not made.version:
        return info.nbytes == made.nbytes
    return info.generation.may_be(made.version)


def _is_chunk(key: str, arrays: Mapping[str, TargetArray]) -> bool:
    """Return whether readers of the target take the key for a chunk, or a shard."""
    return any(path in arrays and arrays[path].layout.has_key(rest) for path, rest in ancestors(key))


def foreign_keys(unknown: Iterable[str], planned: Container[str], recorded: Recorded, *, as_draft: bool) -> list[str]:
    """Return those of the ``unknown`` keys that the plan has too, although no run has made them or was about to."""
    doubtful = [key for key in unknown if key in planned and key not in recorded.announced]
    if not doubtful:
        return []
    made = {key for entry in (*recorded.units.values(), *recorded.older) for key in entry.made.keys()}  # noqa: SIM118  # no mapping
    return [key for key in doubtful if key not in made and not (as_draft and key.removesuffix("/0") in made)]


def check_foreign(keys: list[str], shown_target: str) -> None:
    """Raise ``Conflict`` if there are such keys."""
    if keys:
        raise Conflict(
            f"at {shown_target} another program has written {_named(keys)}, which would be replaced, or taken for chunks of an array of "
            "the source: remove them, choose another target, or give overwrite=True to begin again. Nothing was written"
        )


def _named(keys: Iterable[str]) -> str:
    return some_of([repr(key) for key in sorted(keys)], _NAMED)


# -- a hierarchy that is overwritten -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Overwritten:
    """The old objects, by their stored keys, each with the key that the new hierarchy would give it, if any."""

    keys: dict[str, str | None] = field(default_factory=dict)
    nbytes: int = 0
    cuts_links: bool = False
    """True if the target is overwritten, even if it holds no object: there may be links to nowhere."""

    @classmethod
    async def of(cls, places: Places, *, as_draft: bool) -> Overwritten:
        """Look up the old objects. Raises ``StorageError`` if a request failed."""
        keys: dict[str, str | None] = {}
        nbytes = 0
        async for key, size, _ in places.target_objects():
            keys[key] = canonical_key(key) if as_draft else key
            nbytes += max(0, size)
        return cls(keys, nbytes, cuts_links=True)

    def __bool__(self) -> bool:
        return bool(self.keys)

    def shown(self) -> set[str]:
        """Return the keys of old objects that the new hierarchy may have too."""
        return {key for key in self.keys.values() if key is not None}

    async def v2_documents(self, storage: Storage) -> list[ObjectInfo]:
        """Return the documents of Zarr v2, which would misread new chunks with keys of v2."""
        found = [await storage.stat(shown) for key, shown in self.keys.items() if key == shown and document_key(key) is not None]
        return [info for info in found if info is not None]

    async def clear_for_documents(self, storage: Storage) -> None:
        """Remove objects without a key in the new hierarchy, now that it is complete next to them: a hierarchy of another format, with its
        root.
        """
        local = storage.ability(LocalFiles)
        if self.cuts_links and local is not None:
            await local.cut_links("")
        await _remove_together(storage, [ObjectInfo(key, 0) for key, shown in self.keys.items() if shown is None])

    async def clear_up(self, storage: Storage, kept: Collection[str]) -> None:
        """Remove objects that were not replaced: all whose key the new hierarchy does not have."""
        with_key = ((key, shown) for key, shown in self.keys.items() if shown is not None)
        stale = [key for key, shown in with_key if shown not in kept and not (key != shown and _may_be_of_scalar(shown, kept))]
        await remove(storage, [ObjectInfo(key, 0) for key in stale])


def _may_be_of_scalar(shown: str, kept: Collection[str]) -> bool:
    """Return whether an object of the draft may be the chunk of a 0-d array that was just written; only the array's document shows that."""
    return shown.endswith("c/0") and shown.removesuffix("/0") in kept


@dataclass(frozen=True, slots=True)
class Obstacles:
    """Objects of the target, and links to directories, that are in the way of new objects."""

    objects: tuple[ObjectInfo, ...] = ()
    links: tuple[str, ...] = ()
    as_draft: bool = False

    def __bool__(self) -> bool:
        return bool(self.objects or self.links)

    def at(self, path: str) -> Obstacles:
        """Return those that are in the way of the node at ``path``: they lie at it, below it, or above it."""
        objects = tuple(info for info in self.objects if _touch(info.key.rpartition("/")[0] if is_document(info.key) else info.key, path))
        # In a draft hierarchy the keys of files differ from those that are shown: links lie at the beginning of any.
        return Obstacles(objects, tuple(link for link in self.links if self.as_draft or _touch(link, path)))

    def without(self, known: Iterable[Obstacles]) -> Obstacles:
        """Return the objects that are in none of the ``known``, and all links: an array above which a link lies may have no unit."""
        keys = {info.key for some in known for info in some.objects}
        return Obstacles(tuple(info for info in self.objects if info.key not in keys), self.links)

    async def remove(self, places: Places) -> None:
        """Remove the links themselves, and the objects in the versions that were looked at; what is gone already is no error.

        Raises:
            Conflict: an object was replaced since.
            StorageError: a request failed.
        """
        local, storage = places.stored_target.ability(LocalFiles), places.target.storage
        if local is not None:
            for link in self.links:
                await local.cut_links(f"{link}/")
        documents = [info for info in self.objects if is_document(info.key)]
        for infos in (documents, [info for info in self.objects if not is_document(info.key)]):
            for some in batched(infos, _AT_ONCE):
                there = await gather_all(*(storage.stat(info.key) for info in some))
                await remove(storage, [info for info, found in zip(some, there, strict=True) if found is not None])


def _touch(one: str, other: str) -> bool:
    """Return whether one path is the other, or lies below it."""
    return not one or not other or f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


async def links_of(places: Places) -> tuple[str, ...]:
    """Return the keys of links to directories, and to nowhere, in a local target."""
    local = places.stored_target.ability(LocalFiles)
    return () if local is None else tuple(await local.linked_directories())


async def check_target(places: Places, *, overwrite: bool) -> None:
    """Refuse to write through links, and to erase what is mounted in the target.

    Raises:
        Conflict: a directory of the target is a link, which ``overwrite`` removes; or with that, something is mounted there.
    """
    await (check_no_mounts if overwrite else check_no_links)(places.stored_target, "")


# -- documents ----------------------------------------------------------------------------------------------------------


async def _read(storage: Storage, keys: list[str]) -> dict[str, Found]:
    outcomes = await storage.read([Read(key, (EVERYTHING,)) for key in keys]) if keys else []
    found: dict[str, Found] = {}
    for key, outcome in zip(keys, outcomes, strict=True):
        if isinstance(outcome, Failed) and not isinstance(outcome.error, LeadsNowhere):  # such links of a target are cut, or refused
            raise outcome.error
        if isinstance(outcome, Found):
            found[key] = outcome
    return found


async def write_documents(storage: Storage, documents: Mapping[str, JsonObject]) -> Made:
    """Write the documents, by key, that are missing or differ, the deepest first; return the documents that are there then.
    Raises ``StorageError`` if a request failed.
    """
    order = sorted(documents, key=lambda key: (-key.count("/"), key))
    there = await _read(storage, order)
    sizes: list[int] = []
    versions: list[int] = []
    for key in order:
        data, found = dumps(documents[key]), there.get(key)
        if found is not None and bytes(found.buffers[0]) == data:
            stored = found.generation
        else:
            stored = await storage.write(key, [data], len(data), UNCONDITIONAL)
        sizes.append(len(data))
        versions.append(version_digest(stored))
    return Made.of("", order, sizes, versions)


async def misread(storage: Storage, documents: Mapping[str, JsonObject], written: Collection[str], gone: Collection[str]) -> set[str]:
    """Return the keys of documents at the target that would misread new chunks of the arrays ``written``: they describe the chunks in
    another way than ``documents`` will. The keys of documents that repeat one of these, or one that is then ``gone``, are included
    (consolidated metadata).
    Raises ``StorageError`` if a request failed.
    """
    if not written and not gone:
        return set()
    there = await _read(storage, list(documents))
    wrong: set[str] = set()
    consolidated: list[str] = []
    for key, found in there.items():
        try:
            document = loads_object(found.buffers[0])
        except Corruption:
            continue  # no reader can read it
        if metadata_path(key) in written and _meaning(document) != _meaning(documents[key]):
            wrong.add(key)
        if document.get("consolidated_metadata") is not None:
            consolidated.append(key)
    return wrong | {key for key in consolidated if any(below.startswith(key.removesuffix(METADATA_NAME)) for below in (*wrong, *gone))}


def _meaning(document: JsonObject) -> str:
    return repr([_sorted(document.get(name)) for name in _MEANING])


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return [(name, _sorted(value[name])) for name in sorted(value)]
    return [_sorted(item) for item in value] if isinstance(value, list) else value


async def kept_shards(target: Storage, arrays: Iterable[SourceArray]) -> KeptShards:
    """Return the chunks per shard of those source arrays that the target has with the same chunk shape.
    Raises ``StorageError`` if a request failed.
    """
    sources = {metadata_key(source.path): source for source in arrays}
    kept: dict[str, tuple[int, ...] | None] = {}
    for key, found in (await _read(target, list(sources))).items():
        source = sources[key]
        try:
            document = loads_object(found.buffers[0])
        except Corruption:
            continue  # no reader can read that array; its document is written again
        layout = parse_layout(document)
        plain, wanted = parse_plain(present_array(document)), parse_plain(source.document)
        if isinstance(plain, str) or isinstance(wanted, str) or plain.chunk_shape != wanted.chunk_shape:
            continue
        kept[source.path] = None if isinstance(layout, str) else layout.grid.chunks_per_shard
    return kept


async def in_the_way(
    storage: Storage,
    target: TargetNodes,
    planned: PlannedKeys,
    candidates: Candidates,
    recorded: Recorded,
    written: Collection[str],
    shown: str,
) -> list[ObjectInfo]:
    """Return what has to be removed before anything is written: objects where a directory will be, or under one, and documents that would
    misread chunks of the arrays ``written``. ``shown`` is the name of the target in messages.

    Raises:
        Conflict: a foreign object is in the way.
        StorageError: a request failed.
    """
    blocking = {key: made for key, made in candidates.items() if planned.in_the_way(key) is not None}
    # An array that loses a chunk now loses its document before.
    above = {key for key in candidates if (path := metadata_path(key)) is not None and any(_is_below(k, path) for k in blocking)}
    wrong = await misread(storage, {metadata_key(path): document for path, document in target.documents.items()}, written, above)
    found = await removable(storage, {key: candidates[key] for key in (*blocking, *above)}, recorded, {}, shown)
    documents = [await storage.stat(key) for key in wrong]
    return [*(info for info in documents if info is not None), *found]


def _is_below(key: str, path: str) -> bool:
    return not path or key.startswith(path + "/")
