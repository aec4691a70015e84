"""``pack``, ``reshard`` and ``unpack``: move encoded chunks from any Zarr hierarchy into shards, other shards, or out of shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypedDict, Unpack

from fsspec.implementations.memory import MemoryFileSystem
from fsspec.mapping import FSMap
from fsspec.spec import AbstractFileSystem

from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.errors import Conflict, InvalidInput
from shardstore.format.shard_index import IndexLocation
from shardstore.format.snapshots.state import check_said
from shardstore.maintenance.cluster import ExecutorLike
from shardstore.maintenance.execution import MAX_MEMORY, PART, RETRIES, WHOLE, WORKERS, Execution, Part, SharedStorage
from shardstore.maintenance.packing.plan import look
from shardstore.maintenance.packing.record import INSIDE, SUFFIX, Record
from shardstore.maintenance.packing.run import PackReport, carry_out, packing_step, raise_if_incomplete, report
from shardstore.maintenance.packing.target import Places
from shardstore.maintenance.packing.translation import Mode, TargetForm
from shardstore.maintenance.pins import Pin, check_none_held
from shardstore.model.chunk_orders import ChunkOrder, check_chunk_order
from shardstore.model.options import (
    CHUNK_ORDER,
    COUNTED_IN_CHUNKS,
    DRY_RUN,
    EXCLUDE,
    INCLUDE,
    MESSAGE,
    OVERWRITE,
    check_flags,
    defaults_of,
    option,
    unknown_option,
    with_options,
)
from shardstore.model.redaction import redacted
from shardstore.opening.address import Address, text_of
from shardstore.opening.kinds import default_index_location
from shardstore.opening.location import Location, location_of, why_not_apart
from shardstore.opening.made_versions import options_of_new, with_versions
from shardstore.opening.open import open_storage
from shardstore.opening.options import options_of_another, protocol_of
from shardstore.opening.snapshot_place import SnapshotPlace
from shardstore.opening.snapshot_urls import named_snapshot, refuse_to_change
from shardstore.plan.policy import ShardingPolicy
from shardstore.presented.view import View
from shardstore.progress.shown import reported
from shardstore.progress.steps import Progress
from shardstore.storage.abilities import RestrictsKeys
from shardstore.storage.base import Storage
from shardstore.storage.boundaries import check_own
from shardstore.storage.generic.storage import GenericStorage
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.python_stores import MappingStorage
from shardstore.storage.wrappers import CheckedStorage
from shardstore.stored.detect import DetectedStorage
from shardstore.stored.draft2022.storage import DraftStorage

DEFAULT_MAX_MEMORY = 160 << 20
_LEAST_MEMORY = 16 << 20

_PRICED = ("list", "get", "put")


@dataclass(frozen=True)
class PackOptions:
    """Options of ``pack``, ``reshard`` and ``unpack``. Sizes in bytes."""

    stored: Literal["codec", "transformer"] = option(
        "codec", "Zarr v3, or the 2022 draft.", "codec|transformer", flags=("--stored-as",), group="Shape"
    )
    """The format of the target: Zarr v3 with ``sharding_indexed``, or a hierarchy of the 2022 draft."""
    chunk_order: ChunkOrder = option("C", CHUNK_ORDER)
    index_location: IndexLocation | None = option(None, "Place of the index.", "end|start", group="Shape", words="end, az: start")
    index_checksum: bool = option(True, "Write indices without a checksum.", group="Shape")
    chunk_checksums: bool = option(False, "Add a checksum to each chunk.", group="Shape")
    """Append the codec ``crc32c`` to the inner codecs, and its four bytes to each chunk."""
    ome: bool = option(False, "Rewrite metadata of OME-Zarr 0.4 to 0.5.", group="Shape")
    """Rewrite the metadata of OME-Zarr 0.4 to 0.5, the version for Zarr v3: into the attribute ``ome`` of each group, and
    ``dimension_names`` for the arrays of images.
    """
    include: str | Sequence[str] = option((), INCLUDE)
    """Patterns (``fnmatch``) of paths of nodes; a pattern also covers everything below a node that it matches. Groups above included nodes
    are included too.
    """
    exclude: str | Sequence[str] = option((), EXCLUDE)
    dry_run: bool = option(False, DRY_RUN)
    """Write nothing: report what would be done, with an estimate of its requests."""
    overwrite: bool = option(False, OVERWRITE)
    """Replace what is at the target: object by object, and the rest when the new hierarchy is complete next to it. Refused if it cannot
    be known that the target is not the source, and if something is mounted in the target.
    """
    pins: Sequence[Pin] = ()
    """Shards of the target that offsets are held into: ``overwrite`` is refused while they are there."""
    workers: int | None = option(None, WORKERS)
    """The number of concurrent units."""
    retries: int = option(2, RETRIES)
    """The number of retries of a unit after its storage failed, or its worker was lost."""
    part: str | Part = option(WHOLE, PART)
    """``"I/N"``: only the ``I``-th of ``N`` disjoint shares. The part that ends last makes the result visible."""
    only_failed: bool = option(False, "Do only what failed in the last run.", group="Selection")
    max_memory: int = option(DEFAULT_MAX_MEMORY, MAX_MEMORY)
    """Bytes that each process holds at once, whatever the size of shards."""
    record: Any = option(None, "Where finished work is recorded.", "URL", group="Expert", words="DST.pack")
    """The place of the record of finished work: a URL, path or storage. By default next to the target, with ``.pack`` after its name; of a
    store that takes no other objects, in memory, for this run.
    """
    prices: Mapping[str, float] | None = option(
        None,
        "The price of 1,000 list, get or put requests; repeatable.",
        "KIND=PRICE",
        form="prices",
        flags=("--price",),
        group="Expert",
    )
    """Prices for 1,000 requests, by ``"list"``, ``"get"`` and ``"put"``."""
    lost_transformers: Mapping[str, tuple[int, ...]] = option(
        dict,
        "Shards that documents of the draft have lost, by path.",
        "JSON",
        form="counts",
        group="Expert",
    )
    """The chunks per shard of arrays of the 2022 draft, by path, whose documents have lost their storage transformer."""
    storage_options: dict[str, Any] | None = None
    target_options: dict[str, Any] | None = None
    """Options of the target's filesystem: by default those of the source if both have the same protocol."""
    check_space: bool = option(True, "Begin even if a local disk seems to be too full.", flags=("--no-space-check",), group="Expert")
    """Refuse to begin if a local target does not have enough room. Quotas are not known before they are used up."""
    fsync: bool = option(True, "Do not wait until a local disk has the data.", group="Expert")
    """True if written data must survive the loss of power; concerns local disks."""
    message: str | None = option(None, MESSAGE)
    """The message of the commit, if the target is a branch of a versioned store; by default it names the source."""

    def __post_init__(self) -> None:
        if self.stored not in ("codec", "transformer"):
            raise InvalidInput(f"stored {self.stored!r} is not known: there are 'codec' and 'transformer'")
        check_chunk_order(self.chunk_order, "chunk_order")
        if type(self.max_memory) is not int or self.max_memory < _LEAST_MEMORY:
            raise InvalidInput(f"max_memory {self.max_memory!r} is not a number of bytes of at least {_LEAST_MEMORY >> 20} MiB")
        for name in ("index_checksum", "chunk_checksums", "ome", "dry_run", "overwrite", "only_failed", "check_space", "fsync"):
            check_flags(**{name: getattr(self, name)})
        prices: object = self.prices
        if prices is not None and not (isinstance(prices, Mapping) and all(name in _PRICED and _is_price(prices[name]) for name in prices)):
            raise InvalidInput(f"prices {prices!r} do not map {', '.join(map(repr, _PRICED))} to prices of 1,000 requests")
        if self.pins and not self.overwrite:
            raise InvalidInput("pins go with overwrite=True: nothing else replaces what is at the target")
        if self.overwrite and self.as_part != WHOLE:
            raise InvalidInput("a part cannot have overwrite=True, or it would erase what other parts have done: remove the target first")

    @property
    def as_part(self) -> Part:
        return self.part if isinstance(self.part, Part) else Part.parse(self.part)


class PackKeywords(TypedDict, total=False):
    """The options of ``PackOptions``, by name and type."""

    stored: Literal["codec", "transformer"]
    chunk_order: ChunkOrder
    index_location: IndexLocation | None
    index_checksum: bool
    chunk_checksums: bool
    ome: bool
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    dry_run: bool
    overwrite: bool
    pins: Sequence[Pin]
    workers: int | None
    retries: int
    part: str | Part
    only_failed: bool
    max_memory: int
    record: Any
    prices: Mapping[str, float] | None
    lost_transformers: Mapping[str, tuple[int, ...]]
    storage_options: dict[str, Any] | None
    target_options: dict[str, Any] | None
    check_space: bool
    fsync: bool
    message: str | None


_takes_options = with_options(PackKeywords, defaults_of(PackOptions))


def _is_price(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


@_takes_options
def pack(
    source: Any,
    target: Any,
    *,
    chunks_per_shard: ShardingPolicy = "auto",
    executor: ExecutorLike | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
    **options: Unpack[PackKeywords],
) -> PackReport:
    """Pack a Zarr hierarchy into shards, chunk by chunk and unchanged: nothing is decoded or compressed again.

    Running the same call again continues where it stopped, and packs again what has changed in the source since.

    Args:
        source: a Zarr hierarchy: v2, v3, sharded or not, of the 2022 draft, at any URL, path, chain of URLs or ``(fs, path)``; a mapping
            from keys to bytes; a store of zarr-python, such as that of an Icechunk session; or a storage.
        target: the place of the result: the same kinds, except a mapping. It may only hold what an earlier run has made. Or ``URL@branch``,
            with or without a path, of a versioned store: then the hierarchy becomes part of the branch by one commit, when all of it is
            written, and ``chunks_per_shard`` says how many chunks go into one chunk file.
        chunks_per_shard: as for ``shardstore.open``: ``"auto"``, a tuple, a mapping from patterns of paths, a function. One tuple is
            for the arrays with that number of dimensions; ``"auto"`` decides for all other arrays. Arrays with ``None`` keep one object per
            chunk.
        executor: carries out the work: any ``concurrent.futures.Executor``, or the ``distributed.Client`` of a dask cluster; by
            default threads of this process.
        progress: called now and then, in the calling thread or on the IO loop; or ``True``: it is shown on stderr.
        stored: ``"codec"``, Zarr v3 with ``sharding_indexed``; or ``"transformer"``, a hierarchy of the 2022 draft.
        chunk_order: the order of the chunks in a shard: ``"C"``, ``"F"`` or ``"morton"``.
        index_location: where a shard has its index, ``"end"`` or ``"start"``; ``None``: at the end, on Azure at the start.
        index_checksum: protect the index by a CRC-32C.
        chunk_checksums: append the codec ``crc32c`` to the codecs of chunks: then every reader finds damage.
        ome: rewrite the metadata of OME-Zarr 0.4 to 0.5, the version for Zarr v3.
        include: patterns (``fnmatch``) of paths of nodes; each covers everything below a node that it matches.
        exclude: such patterns of nodes that are left out.
        lost_transformers: by path, the chunks per shard of arrays of the 2022 draft whose documents have lost them.
        overwrite: replace what is at the target, as soon as the new hierarchy is complete.
        message: of the commit, if the target is a branch of a versioned store.
        dry_run: write nothing, and report what would be done, with an estimate of its requests.
        prices: for that estimate, prices of 1,000 requests, by ``"list"``, ``"get"`` and ``"put"``.
        workers: the number of concurrent units.
        retries: the number of retries of a unit after its storage failed, or its worker was lost.
        part: ``"I/N"``, only the ``I``-th of ``N`` disjoint shares. The part that ends last makes the result visible.
        only_failed: do only what failed in the last run.
        max_memory: bytes that each process holds at once, whatever the size of shards.
        record: the place of the record of finished work; by default next to the target, with ``.pack`` after its name.
        pins: shards of the target that offsets are held into: ``overwrite`` is refused while they are there.
        storage_options: for the filesystem of the source.
        target_options: for that of the target; by default those of the source, if both have the same protocol.
        check_space: refuse to begin if a local disk does not have enough room.
        fsync: on local disks, written data survives the loss of power.

    Raises:
        InvalidInput: an option has a value that cannot be right; or source, target and record overlap, or, with ``overwrite``, it
            cannot be known whether they do.
        NotFound: there is no Zarr node at the source.
        Unsupported: arrays cannot be expressed exactly; the message names all of them; nothing was written.
        Conflict: pinned shards are at the target, or something that no earlier run of the same has made, or a link to a directory, or,
            with ``overwrite``, something is mounted in it; the record's place holds something else; or one of both lies behind a link in
            the middle of a store; or there is something at the path in the branch, or another client has changed that since.
        NoSpace: a local target does not have enough room; nothing was written. With ``check_space`` false the run continues regardless.
        Incomplete: units failed, or the target was full, which stops the run; its ``report`` names the units, its cause is the error
            of the first. The work done stays.

    Specification: Zarr v3, sharding codec 1.0; the bytes of inner chunks are those of the source.
    """
    return _pack("pack", source, target, chunks_per_shard, executor, progress, options)


@_takes_options
def reshard(
    source: Any,
    target: Any,
    *,
    chunks_per_shard: ShardingPolicy = "auto",
    executor: ExecutorLike | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
    **options: Unpack[PackKeywords],
) -> PackReport:
    """Move sharded arrays into other shards, as ``pack`` does, the inner chunks unchanged. Arrays that are not sharded stay so.

    Arguments and errors are those of ``pack``.
    """
    return _pack("reshard", source, target, chunks_per_shard, executor, progress, options)


@_takes_options
def unpack(
    source: Any,
    target: Any,
    *,
    executor: ExecutorLike | None = None,
    progress: Callable[[Progress], None] | bool | None = None,
    **options: Unpack[PackKeywords],
) -> PackReport:
    """Move all chunks out of shards, as ``pack`` moves them in: every chunk becomes an object, and no array is sharded.

    Arguments and errors are those of ``pack``.
    """
    return _pack("unpack", source, target, None, executor, progress, options)


def _pack(
    mode: Mode,
    source: Any,
    target: Any,
    policy: ShardingPolicy,
    executor: ExecutorLike | None,
    progress: Callable[[Progress], None] | bool | None,
    given: PackKeywords,
) -> PackReport:
    with reported(progress, packing_step) as say:
        options = _options(given)
        target_options = options_of_another(target, options.target_options, source, options.storage_options)
        place = run_sync(named_snapshot(target, target_options))
        if place is not None and mode != "pack":
            refuse_to_change(place, "packing into")
        if place is not None:
            _check_for_branch(options, executor, target)
        elif options.message is not None:
            raise InvalidInput(f"message is for a commit to a branch of a versioned store, such as URL@main, and {target!r} is none")
        execution = Execution(executor, options.workers, options.retries, options.as_part)
        places = _open_places(source, target, options, target_options) if place is None else _open_branch(source, place, policy, options)
        is_draft = options.stored == "transformer"
        wanted = TargetForm(
            mode=mode if place is None else "unpack",  # versioned stores gather chunks into shards by themselves
            policy=policy if place is None else None,
            as_draft=is_draft,
            index_location=options.index_location or ("end" if is_draft else default_index_location(places.stored_target.kind)),
            index_checksum=options.index_checksum and options.stored == "codec",
            chunk_checksums=options.chunk_checksums,
            ome=options.ome,
            include=_patterns("include", options.include),
            exclude=_patterns("exclude", options.exclude),
        )
        if options.pins:
            run_sync(check_none_held(places.stored_target, options.pins))
        overwrite = options.overwrite and places.hierarchy is None  # there it is next to what is there, until the commit
        plan = look(
            places,
            wanted,
            execution,
            order=options.chunk_order,
            max_memory=options.max_memory,
            overwrite=overwrite,
            dry_run=options.dry_run,
            progress=say,
        )
        if options.dry_run:
            return report(plan, None, options.prices)
        outcome = carry_out(plan, overwrite=overwrite, check_space=options.check_space, only_failed=options.only_failed, progress=say)
        packed = report(plan, outcome, options.prices)
        raise_if_incomplete(plan, outcome, packed)
        if places.hierarchy is None:
            return packed
        message = f"Packed from {places.shown_source}" if options.message is None else options.message
        return replace(packed, snapshot_id=run_sync(places.hierarchy.commit(message)))


def _check_for_branch(options: PackOptions, executor: ExecutorLike | None, target: Any) -> None:
    """Raise ``InvalidInput`` if an option does not go with a branch of a versioned store."""
    defaults = PackOptions()
    not_for_it = ("stored", "chunk_order", "index_location", "index_checksum", "part", "only_failed", "record")
    given = [name for name in not_for_it if getattr(options, name) != getattr(defaults, name)]
    given += [name for name, value in (("pins", options.pins), ("executor", executor)) if value]
    if given:
        raise InvalidInput(
            f"{', '.join(given)} cannot be given for {redacted(str(target))}, a branch of a versioned store: one process packs into "
            "it, and one commit makes the result visible. Leave it out"
        )
    message: object = options.message
    if message is not None and not (isinstance(message, str) and message):
        raise InvalidInput(f"message {options.message!r} is no text: a commit needs one")
    check_said(message or "")


def _options(given: PackKeywords) -> PackOptions:
    known = {f.name for f in fields(PackOptions)}
    if unknown := sorted(set(given) - known):
        meant = {"mode": "did you mean overwrite=True?", "shards": COUNTED_IN_CHUNKS}
        raise unknown_option(unknown[0], known, meant.get(unknown[0]))
    return PackOptions(**given)


def _patterns(name: str, given: object) -> tuple[str, ...]:
    patterns = (given,) if isinstance(given, str) else given
    if not isinstance(patterns, Sequence) or not all(isinstance(pattern, str) for pattern in patterns):
        raise InvalidInput(f"{name} {given!r} is neither a pattern nor a sequence of patterns")
    return tuple(patterns)


# -- the places ---------------------------------------------------------------------------------------------------------


def _open_branch(source: Any, place: SnapshotPlace, policy: ShardingPolicy, options: PackOptions) -> Places:
    """Open the storages that a run into a branch of a versioned store needs.

    Raises:
        InvalidInput: an argument names no storage, or the files of the versioned store are in the source.
        ReadOnly: the name in the target is not that of a branch.
        Conflict: there is something at its path, and ``overwrite`` is false.
        Unsupported, StorageError: as ``open_storage`` does.
    """
    inner = _source(source, options.storage_options)
    new = place.new_hierarchy(policy, options.max_memory)
    if new.takes_place_of is not None and not options.overwrite:
        raise Conflict(
            f"there is something at {redacted(new.storage.url)} already ({new.takes_place_of}): choose another path in the branch, or "
            "give overwrite=True to replace it, which leaves it in the snapshots before. Nothing was written"
        )
    if inner.kind != new.storage.kind:  # files of a versioned store are never altered, so one snapshot may become part of another
        _check_not_within(
            ("the source", inner.url, location_of(inner, links=True)), ("the versioned store", new.files.url, location_of(new.files))
        )
    target = _checked(new.storage)
    record = Record(_in_memory(), "", target=redacted(target.url))
    return Places(SharedStorage(_detected(source, inner, options)), SharedStorage(target), target, record, None, new)


def _open_places(source: Any, target: Any, options: PackOptions, target_options: dict[str, Any] | None) -> Places:
    """Open the storages that a run needs.

    Raises:
        InvalidInput: an argument names no storage, two of source, target and record overlap, or, with ``overwrite``, that cannot be known.
        Conflict: the target or the record is reached through a link in the middle of a store.
        Unsupported, StorageError: as ``open_storage`` does.
    """
    inner = _source(source, options.storage_options)
    written = open_storage(target, target_options, fsync=options.fsync)
    kept, prefix = place_of_record(target, written, options, target_options)
    _check_apart(inner, written, kept, options.overwrite)
    settled = _detected(source, inner, options)
    shown = DraftStorage(_checked(written)) if options.stored == "transformer" else _checked(written)
    made = Record(_checked(kept), prefix, target=redacted(written.url))
    return Places(SharedStorage(settled), SharedStorage(shown), _checked(written), made, prefix if kept is written else None)


def _source(source: Any, options: dict[str, Any] | None) -> Storage:
    if isinstance(engine := getattr(source, "engine", None), Engine | View):
        engine.hierarchy.distrust_all()  # a mapping of ours: another client may have changed what its engine remembers
    if isinstance(source, Mapping) and not isinstance(source, FSMap):
        return MappingStorage(source)
    place = run_sync(named_snapshot(source, options))
    return open_storage(source, options_of_new(source, options)) if place is None else place.below(place.path).open()


def _detected(source: Any, inner: Storage, options: PackOptions) -> Storage:
    checked = _checked(with_versions(inner, is_new=isinstance(source, str)))
    return run_sync(DetectedStorage(checked, options.lost_transformers or {}).settled())


def _check_apart(source: Storage, target: Storage, record: Storage, overwrite: bool) -> None:
    """Check that nothing is written, or erased, where something else is read or kept, or through a link in the middle of a store.

    Raises:
        InvalidInput: it would be, or with ``overwrite`` that cannot be known.
        Conflict: it would be through a link.
    """
    roles = [("the source", source), ("the target", target)]
    if record is not target:
        roles.append(("the record", record))
    found = [(role, storage.url, location_of(storage, links=storage is source)) for role, storage in roles]
    for i, one in enumerate(found):
        for other in found[i + 1 :]:
            _check_not_within(one, other)
    doubt = why_not_apart([(f"{role} {redacted(url)}", location) for role, url, location in found]) if overwrite else None
    if doubt is not None:
        raise InvalidInput(
            f"{doubt}, so data that is still to be read might be overwritten: choose a target where nothing is, or name "
            "the place by its URL. Nothing was changed"
        )
    for storage in (target, record):
        run_sync(check_own(storage, ""))


def _check_not_within(one: tuple[str, str, Location], other: tuple[str, str, Location]) -> None:
    """Raise ``InvalidInput`` if two places overlap; each with what it is, and its URL."""
    (role, url, location), (other_role, other_url, other_location) = one, other
    if location.overlaps(other_location):
        raise InvalidInput(
            f"{role} {redacted(url)} and {other_role} {redacted(other_url)} overlap: one is the other, lies in it, or is read from "
            f"what lies in it. {other_role.capitalize()} has to be another place; nothing was changed"
        )


def _checked(storage: Storage) -> Storage:
    """Return the storage with checks of its answers; this package's own reads of files need none."""
    return CheckedStorage(storage) if storage.ability(LocalStorage) is None else storage


def _in_memory() -> Storage:
    """Return a storage of its own in memory, for the record of one run."""
    fs = MemoryFileSystem(skip_instance_cache=True)
    fs.store, fs.pseudo_dirs = {}, [""]  # of its own: fsspec has an option for that from 2026.9 on, which older ones take and ignore
    return GenericStorage(fs, "")


def place_of_record(target: Any, written: Storage, options: PackOptions, target_options: dict[str, Any] | None) -> tuple[Storage, str]:
    """Return the storage of the record, and its prefix there: as it was asked for, next to the target, inside where nothing can be next to
    it, or in memory, for this run, where it cannot be inside.
    """
    record, fsync = options.record, options.fsync
    if record is not None:
        takes_options = isinstance(record, str | os.PathLike) and protocol_of(record) == protocol_of(target)
        return open_storage(record, target_options if takes_options else None, fsync=fsync), ""
    if (local := written.ability(LocalStorage)) is not None:
        return LocalStorage(local.root + SUFFIX, fsync=fsync, locks=local.locks), ""
    if (restricted := written.ability(RestrictsKeys)) is not None:
        if not restricted.keeps_records:
            return _in_memory(), ""
        place = restricted.beside(SUFFIX)
        return (written, INSIDE) if place is None else (place, "")
    if isinstance(target, str | os.PathLike):
        beside = Address.parse(text_of(target)).beside(SUFFIX)
        if beside is not None:
            return open_storage(beside, target_options, fsync=fsync), ""
    if isinstance(target, tuple) and isinstance(target[0], AbstractFileSystem) and str(target[1]).strip("/"):
        return open_storage((target[0], str(target[1]).rstrip("/") + SUFFIX), fsync=fsync), ""
    return written, INSIDE
