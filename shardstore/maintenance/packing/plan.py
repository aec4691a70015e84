"""The plan of one run: decided before anything is written, and never changed.

::

    look at the target ─► list the source ─► translate, or refuse ─► units
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from shardstore._sync import run_sync
from shardstore.errors import Conflict, InvalidInput, NoSpace, NotFound, StorageError
from shardstore.format.codecs import CRC32C_NBYTES
from shardstore.format.json_text import JsonObject, dumps
from shardstore.format.store_keys import ancestors, groups_above, metadata_key
from shardstore.maintenance.execution import WHOLE, Execution
from shardstore.maintenance.packing.listing import SizedObject, SourceNodes, list_source
from shardstore.maintenance.packing.record import Finished
from shardstore.maintenance.packing.target import Places, check_target, kept_shards
from shardstore.maintenance.packing.translation import (
    KeptShards,
    Names,
    PlannedKeys,
    TargetForm,
    TargetNodes,
    check_for_branch,
    ome_nodes,
    ome_notice,
    raise_refused,
    translate,
    with_ome_05,
)
from shardstore.maintenance.packing.units import AnyUnit, ArrayJob, ArrayUnits, CopyUnit, Job, Unit, UnitName, copy_units
from shardstore.model.chunk_orders import ChunkOrder
from shardstore.model.words import size, some_of
from shardstore.progress.steps import Progress
from shardstore.storage.base import Storage
from shardstore.storage.local.storage import LocalFiles
from shardstore.storage.local.walk import LINK_TO_NOWHERE, Obstacle
from shardstore.storage.room import Room, room_at

_KEYS_A_PAGE = 1000
_PUT_BYTES = 64 << 20  # objects above this are uploaded in parts
_PART_BYTES = 8 << 20
_REQUEST_BYTES = 16 << 20


@dataclass(frozen=True, eq=False)
class Plan:
    """One run of ``pack``, ``reshard`` or ``unpack``: from where to where, what becomes of each node, and in which units."""

    places: Places
    wanted: TargetForm
    execution: Execution
    order: ChunkOrder
    nodes: SourceNodes
    """The nodes and objects of the source."""
    target: TargetNodes
    """The documents of the target."""
    arrays: tuple[ArrayUnits, ...]
    copies: tuple[CopyUnit, ...]
    """The units that copy other objects unchanged."""
    notes: tuple[str, ...] = ()

    def units(self) -> Iterator[AnyUnit]:
        """Yield the units of all parts; each is made when it is needed."""
        for units in self.arrays:
            yield from units
        yield from self.copies

    def own_units(self) -> Iterator[AnyUnit]:
        """Yield the units of this part."""
        part = self.execution.part
        return (unit for unit in self.units() if part.has(unit.path or "", unit.number))

    @cached_property
    def total_units(self) -> int:
        return sum(map(len, self.arrays)) + len(self.copies)

    @cached_property
    def totals(self) -> tuple[int, int]:
        """The number of objects and bytes of the source for this part."""
        part = self.execution.part
        objects = nbytes = 0
        for units in self.arrays:
            mine = np.array([part.has(units.job.path, n) for n in units.numbers.tolist()], dtype=np.bool_)
            objects += int(units.counts()[mine].sum())
            nbytes += int(units.sizes()[mine].sum())
        for unit in self.copies:
            if part.has("", unit.number):
                objects, nbytes = objects + unit.source_objects, nbytes + unit.nbytes
        return objects, nbytes

    @cached_property
    def unit_names(self) -> frozenset[UnitName]:
        """The names of the units of all parts."""
        names: set[UnitName] = {(units.job.path, name) for units in self.arrays for name in units.names}
        return frozenset(names.union(unit.unit_name for unit in self.copies))

    @cached_property
    def documents(self) -> dict[str, JsonObject]:
        """The documents of the target by key."""
        return {metadata_key(path): document for path, document in self.target.documents.items()}

    @cached_property
    def encoded_documents(self) -> list[bytes]:
        return [dumps(document) for document in self.documents.values()]

    @cached_property
    def keys(self) -> PlannedKeys:
        """The keys that the target will have, or may have."""
        return PlannedKeys(self.target, [found.key for unit in self.copies for found in unit.objects])

    @cached_property
    def unversioned(self) -> tuple[str | None, ...]:
        """The arrays, and ``None`` for other objects, that have a source object without a version."""
        arrays = (units.job.path for units in self.arrays if not units.is_versioned)
        return (*arrays, *([] if all(unit.is_versioned for unit in self.copies) else [None]))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings that all runs with one record have in common."""
        return _settings(self.places, self.wanted, self.order)

    def arrays_of(self, unit: AnyUnit) -> Iterator[str]:
        """Yield the paths of the arrays whose chunks a unit writes."""
        if isinstance(unit, Unit):
            yield unit.path
        elif self.target.passed:
            yield from (path for found in unit.objects for path, _ in ancestors(found.key) if path in self.target.passed)


# -- looking -------------------------------------------------------------------------------------------------------------


def look(
    places: Places,
    wanted: TargetForm,
    execution: Execution,
    *,
    order: ChunkOrder,
    max_memory: int,
    overwrite: bool,
    dry_run: bool,
    progress: Callable[[Progress], None],
) -> Plan:
    """Look at the target, list the source and translate its documents; nothing is written.

    Raises:
        Conflict: the target holds something else, or another run with other settings; a dry run reports it instead.
        NotFound: there is no node.
        StorageError: a request failed, or what the source names is not there.
        Unsupported: nodes cannot be expressed.
    """
    settings = _settings(places, wanted, order)
    nodes, kept, obstacles, notes = run_sync(_look_at_both(places, settings, overwrite=overwrite, dry_run=dry_run, progress=progress))
    target = translate(nodes, wanted, kept)
    others = sorted(_included(nodes, target, wanted))
    _check(places, wanted, nodes, obstacles, target, [other.key for other in others])
    target, ome_notes = _with_ome(target, wanted, is_for_branch=places.hierarchy is not None)
    if not target.documents:
        raise NotFound(
            f"there is no Zarr node at {places.shown_source}"
            + (", of those that include and exclude let through" if nodes.arrays or nodes.groups else ": check the address")
        )
    job = Job(execution.run, places.source, places.target, max_memory)
    jobs = [ArrayJob.of(array, job, order) for array in target.arrays.values()]
    plan = Plan(
        places,
        wanted,
        execution,
        order,
        nodes,
        target,
        arrays=tuple(ArrayUnits(one, nodes.arrays[one.path].table.rows()) for one in jobs),
        copies=tuple(copy_units(job, others)),
        notes=(*notes, *ome_notes),
    )
    if execution.part != WHOLE and plan.unversioned:
        named = some_of(["other objects" if path is None else path or "(root)" for path in plan.unversioned])
        raise InvalidInput(
            f"{places.shown_source} cannot be packed in parts: it has no versions for {named}, so parts cannot detect whether they "
            "read the same data. Run it without part (files that were just written on a file system of whole seconds have versions "
            "two seconds later)"
        )
    return plan


async def _look_at_both(
    places: Places, settings: dict[str, Any], *, overwrite: bool, dry_run: bool, progress: Callable[[Progress], None]
) -> tuple[SourceNodes, KeptShards | None, Sequence[Obstacle], list[str]]:
    """Return the listed source, what the target has of it already, what is in the place of objects of a local source, and notes."""
    is_renewed = False
    notes: list[str] = []
    try:
        await check_target(places, overwrite=overwrite)
        is_renewed = not overwrite and await has_begun(places, settings)
    except Conflict as exc:
        if not dry_run:
            raise
        notes = [f"it would be refused: {exc}"]
    nodes = await list_source(places.source.storage, lambda n: progress(Progress("listing", n)))
    kept = await kept_shards(places.target.storage, nodes.arrays.values()) if is_renewed else None
    local = places.source.storage.ability(LocalFiles)
    obstacles = [] if local is None else await local.obstacles("", nodes.has_key)
    return nodes, kept, obstacles, notes


async def has_begun(places: Places, settings: dict[str, Any]) -> bool:
    """Return whether an earlier run of the same has begun; writes nothing.

    Raises:
        Conflict: the target holds something else, or another run with other settings.
    """
    record = places.record
    earlier = await record.settings()
    if earlier is None and await anext(places.target_objects(), None) is not None:
        earlier = await record.settings()  # another part may have begun in between
        if earlier is None:
            raise Conflict(
                f"there is something at {places.shown_target} already that no earlier run has made: choose another target, "
                "remove it first, or give overwrite=True to replace it"
            )
    if earlier is not None:
        check_settings(places, settings, earlier)
    return earlier is not None


def check_settings(places: Places, settings: dict[str, Any], earlier: dict[str, Any]) -> None:
    """Raise ``Conflict`` if the settings of an ``earlier`` run differ."""
    if earlier != settings:
        differing = sorted(name for name in settings.keys() | earlier.keys() if settings.get(name) != earlier.get(name))
        said = ", ".join(f"{name} was {earlier.get(name)!r} and is {settings.get(name)!r}" for name in differing)
        raise Conflict(
            f"the record at {places.record.shown} is of a run with other options ({said}): give the same to continue that run, choose "
            "another target, or give overwrite=True to begin again"
        )


def _settings(places: Places, wanted: TargetForm, order: ChunkOrder) -> dict[str, Any]:
    policy = wanted.policy
    return {
        "source": places.shown_source,
        "mode": wanted.mode,
        "chunks_per_shard": f"function {getattr(policy, '__qualname__', '?')}" if callable(policy) else _jsonable(policy),
        "stored": "transformer" if wanted.as_draft else "codec",
        "chunk_order": order,
        "index_location": wanted.index_location,
        "index_checksum": wanted.index_checksum,
        "chunk_checksums": wanted.chunk_checksums,
        "include": list(wanted.include),
        "exclude": list(wanted.exclude),
        **({"ome": True} if wanted.ome else {}),
    }


def _jsonable(policy: Any) -> Any:
    if isinstance(policy, Mapping):
        return {pattern: _jsonable(decided) for pattern, decided in policy.items()}
    return list(policy) if isinstance(policy, tuple) else policy


# -- refusing ------------------------------------------------------------------------------------------------------------


def _included(nodes: SourceNodes, target: TargetNodes, wanted: TargetForm) -> Iterator[SizedObject]:
    """Yield the other objects that are included: each goes with the node that it lies in."""
    left_out = {*nodes.arrays, *nodes.passed, *nodes.groups} - target.documents.keys()
    for found in nodes.others:
        if wanted.includes_object(found.key) and left_out.isdisjoint(groups_above(found.key)):
            yield found


def _check(
    places: Places,
    wanted: TargetForm,
    nodes: SourceNodes,
    obstacles: Sequence[Obstacle],
    target: TargetNodes,
    other_keys: Sequence[str],
) -> None:
    """Check that all nodes, and the other objects with the keys ``other_keys``, can be in the target, and that everything is there.

    Raises:
        Unsupported: nodes or objects cannot be expressed.
        StorageError: references, or links in a local source, lead to nothing; or something else is in the place of an object. To leave it
            out would call a target complete that shows fill values.
    """
    local = places.stored_target.ability(LocalFiles)
    names = Names(root=None if local is None else local.root, as_draft=wanted.as_draft, inside=places.record_inside)
    raise_refused(target.refused | names.refused(target, other_keys))
    obstacles = [one for one in obstacles if wanted.includes_object(one.key)]
    missing = [key for key in nodes.unreachable if wanted.includes_object(key)]
    missing += [one.key for one in obstacles if one.what == LINK_TO_NOWHERE]
    if missing:
        raise StorageError(
            f"{places.shown_source} names {some_of(sorted(missing))}, and what these lead to is not there: make it reachable "
            "again, or leave them out by exclude. Nothing was written"
        )
    if obstacles:
        named = some_of(sorted(f"{one.key} ({one.what})" for one in obstacles))
        raise StorageError(
            f"{places.shown_source} has something else in the place of objects: {named}. Remove it, or leave it out by exclude. Nothing "
            "was written"
        )
    if places.hierarchy is not None:
        check_for_branch(target, other_keys, places.shown_source)


def _with_ome(target: TargetNodes, wanted: TargetForm, *, is_for_branch: bool) -> tuple[TargetNodes, list[str]]:
    """Rewrite the metadata of OME-Zarr 0.4, or report them; they are ignored if the target is not final Zarr v3."""
    found = ome_nodes(target)
    if wanted.ome:
        images = len(found.groups)
        return with_ome_05(target, found), [f"OME-Zarr 0.5: {images} {'group was' if images == 1 else 'groups were'} of 0.4"]
    is_reported = (wanted.mode == "pack" or is_for_branch) and not wanted.as_draft
    notice = ome_notice(found) if is_reported else None
    return target, [] if notice is None else [notice]


# -- estimates --------------------------------------------------------------------------------------------------------
#
# Chunks are moved unchanged, so their need of room is known. It is nearly exact: the last blocks of files are estimated, directories and
# the record are not counted, and the dead bytes of a sharded source count as chunks. A file system that compresses or shares blocks needs
# less.


@dataclass(frozen=True, slots=True)
class Requests:
    """An estimate of the requests of a run that begins from nothing; lists are of pages of 1,000."""

    lists: int
    gets: int
    puts: int

    def price(self, per_thousand: Mapping[str, float]) -> float:
        """Return the price at list prices for 1,000 requests, by ``"list"``, ``"get"`` and ``"put"``; a missing name costs nothing."""
        counts = {"list": self.lists, "get": self.gets, "put": self.puts}
        return sum(per_thousand.get(name, 0.0) * number / 1000 for name, number in counts.items())


def estimated_objects(units: ArrayUnits) -> int:
    """Return the number of target objects that hold chunks; where chunks become objects out of shards, as many as the shards can hold."""
    job = units.job
    if job.target_layout.index_format is not None:
        return len(units)
    rows = int(units.counts().sum())
    if job.source_layout.index_format is None:
        return rows
    return min(rows * prod(job.source_layout.chunks_per_object), prod(job.source_layout.chunk_grid))


def estimated_nbytes(units: ArrayUnits) -> int:
    """Return the bytes of the target's objects: those of the source's objects, without the source's indices, with the target's indices and
    checksums.
    """
    job = units.job
    source, target = job.source_layout.index_format, job.target_layout.index_format
    rows = int(units.counts().sum())
    nbytes = units.nbytes
    if source is not None:
        nbytes -= rows * source.nbytes
    if target is not None:
        nbytes += len(units) * target.nbytes
    chunks = rows if source is None else estimated_objects(units) if target is None else 0
    return nbytes + (CRC32C_NBYTES * chunks if job.adds_checksums else 0)


def estimated_requests(arrays: Sequence[ArrayUnits], others: int, listed: int, read_documents: int, documents: int) -> Requests:
    """Return the requests of a run from nothing. Each object of the source is read by one request; of shards also the index, and long ones
    in pieces.
    """
    gets, puts = others + read_documents, others + documents
    for units in arrays:
        job = units.job
        counts, sizes = units.counts(), units.sizes()
        if job.source_layout.index_format is None:
            gets += int(counts.sum())
        else:
            gets += int(2 * counts.sum() + (sizes // _REQUEST_BYTES).sum())
        if job.target_layout.index_format is None:
            puts += estimated_objects(units)
        else:
            puts += int(np.where(sizes <= _PUT_BYTES, 1, 2 + -(-sizes // _PART_BYTES)).sum())
    return Requests(lists=-(-max(1, listed) // _KEYS_A_PAGE), gets=gets, puts=puts)


@dataclass(frozen=True, slots=True)
class Need:
    """The bytes and files that are needed."""

    nbytes: int
    files: int

    def on(self, room: Room) -> int:
        """Return the bytes, with the unused part of each file's last block, half of it on average."""
        return self.nbytes + self.files * (room.block_nbytes - 1) // 2


def needed(
    arrays: Sequence[ArrayUnits],
    others: Sequence[CopyUnit],
    documents: Sequence[bytes],
    is_left: Callable[[UnitName], bool],
    finished: Mapping[UnitName, Finished],
) -> Need:
    """Return the need of the units for which ``is_left`` is true, beyond ``finished`` objects of an earlier run that will be replaced."""
    nbytes = sum(map(len, documents))
    files = len(documents)
    is_any_left = not finished
    for units in arrays:
        names = [(units.job.path, name) for name in units.names]
        left = np.array([is_left(name) for name in names], dtype=np.bool_)
        is_any_left |= bool(left.any())
        nbytes += _nbytes(units, left)
        replaced = [finished[name] for name, is_one in zip(names, left.tolist(), strict=True) if is_one and name in finished]
        nbytes -= sum(entry.made.nbytes for entry in replaced)
        if units.job.target_layout.index_format is not None:
            files += int(left.sum()) - len(replaced)
        elif not replaced and len(units):
            files += estimated_objects(units) * int(left.sum()) // len(units)
    for unit in others:
        if is_left((None, unit.name)):
            is_any_left = True
            replaced_nbytes = finished[None, unit.name].made.nbytes if (None, unit.name) in finished else 0
            nbytes += unit.nbytes - replaced_nbytes
            files += 0 if replaced_nbytes else len(unit.objects)
    # Where all units are done, documents at most are missing, and those of the earlier run are there.
    return Need(max(0, nbytes), files) if is_any_left else Need(0, 0)


def _nbytes(units: ArrayUnits, left: npt.NDArray[np.bool_]) -> int:
    """Return the bytes of the chunks of some units, and of the indices and checksums that the target adds."""
    job, counts, sizes = units.job, units.counts(), units.sizes()
    source, target = job.source_layout.index_format, job.target_layout.index_format
    rows, nbytes = int(counts[left].sum()), int(sizes[left].sum())
    chunks = rows
    if source is not None:
        # A shard of the source counts for each unit that takes chunks from it: by as much the sum is too large.
        share = units.distinct_nbytes / max(1, units.nbytes)
        chunks = round(estimated_objects(units) * left.mean()) if target is None and len(left) else 0
        nbytes = max(0, round((nbytes - rows * source.nbytes) * share))
    if target is not None:
        nbytes += int(left.sum()) * target.nbytes
    return nbytes + (CRC32C_NBYTES * chunks if job.adds_checksums else 0)


def room_of(storage: Storage) -> Room | None:
    """Return the room of a local directory; ``None`` for other storages, which do not show it."""
    local = storage.ability(LocalFiles)
    return None if local is None else room_at(local.root)


def check_room(room: Room, need: Need, old_nbytes: int = 0) -> None:
    """Compare need and room. ``old_nbytes`` are to be overwritten: they go only when the new hierarchy is complete, so they give no room.

    Raises:
        NoSpace: the need is larger than the room.
    """
    nbytes, free = need.on(room), room.nbytes
    old = f"What is there, {size(old_nbytes)}, stays until all else is written: erase it first, " if old_nbytes else "Make room, "
    regardless = (
        f"{old}or choose another target; where the file system compresses what is written, or the estimate is wrong, go on by "
        "check_space=False (--no-space-check). Nothing was written"
    )
    if nbytes > free:
        raise NoSpace(f"about {size(nbytes)} are to be written, and {size(free)} are free in {room.path}. {regardless}")
    if room.files is not None and need.files > room.files:
        raise NoSpace(f"about {need.files:,} files are to be made, and {room.path} can hold {room.files:,} more. {regardless}")
