"""Repair damaged shards from what can be proved, on condition that they are unchanged, and keep their old bytes elsewhere.

First all shards are looked at, many per task, by one request each. Then those whose index cannot be right are repaired, one per task:
looked at again, diagnosed, copied to quarantine, and replaced on condition. So a shard that another client has written since is
looked at once more, and mostly found to be sound. Metadata are never guessed: they are trusted, and where they cannot be read, nothing
below them is touched.

In the quarantine, by default next to the store, the bytes of damaged objects are kept, each with a note, before anything replaces them.
``<key>/<token>`` is the object as it was, ``<key>/<token>.json`` says what was wrong with it and what was done. The token is made from
the version of the object, so storing it again does no harm. Leftovers of writers that died are removed without a copy: no index has
referred to them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from fsspec.spec import AbstractFileSystem

from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.engine.index_cache import StaleLayout
from shardstore.engine.metadata.hierarchy import same_shards
from shardstore.engine.writing.committer import Shard
from shardstore.engine.writing.plan_writer import PlanWriter
from shardstore.errors import Conflict, Corruption, InvalidInput, NotFound
from shardstore.format.codecs import codec_name
from shardstore.format.metadata_v3 import mentions_sharding
from shardstore.format.presentation import present_array
from shardstore.format.store_keys import join, metadata_key
from shardstore.maintenance.cluster import ExecutorLike
from shardstore.maintenance.execution import DEFAULT_MAX_MEMORY, Execution, Part, SharedStorage
from shardstore.maintenance.pins import Pin, Pins, is_held
from shardstore.maintenance.repair.shard import Diagnosing, Diagnosis, InnerCodecs, Remedy, wrong_entries
from shardstore.maintenance.shards import (
    MOST_FAILED,
    FailedShard,
    FirstItems,
    LookTask,
    ShardRun,
    StoredShard,
    can_delete_emptied,
    check_can_swap,
    look_at,
    shard_step,
)
from shardstore.model.durations import Duration, seconds_of
from shardstore.model.generation import UNCONDITIONAL, Generation
from shardstore.model.options import check_flags
from shardstore.model.ranges import CopiedRange
from shardstore.model.showing import ShownInNotebooks
from shardstore.opening.address import has_host, links_of_url, scheme_of, text_of
from shardstore.opening.location import location_of
from shardstore.opening.open import open_storage
from shardstore.opening.snapshot_urls import named_snapshot, refuse_to_change
from shardstore.progress.shown import reported
from shardstore.progress.steps import Progress
from shardstore.storage.base import Found, Storage, document_read, read_one
from shardstore.storage.boundaries import check_own
from shardstore.storage.local.rules import Locks
from shardstore.storage.local.storage import LocalFiles
from shardstore.storage.s3.storage import S3Storage
from shardstore.storage.wrappers import innermost

_ATTEMPTS = 8  # at a shard that other clients keep writing
_MOST_NAMED = 1000  # chunks in a note
_SUFFIX = ".quarantine"
repair_step = partial(shard_step, work="repairing")
"""Make the step of the progress that is shown."""
_HOW = "say quarantine=URL (--quarantine URL) to name a place for the bytes of damaged objects"


def open_quarantine(target: Any, given: Any, storage: Storage, storage_options: Mapping[str, Any] | None) -> Storage:
    """Return the storage at ``given``, by default the place next to ``target``, which ``storage`` is.

    Raises:
        InvalidInput: there is no default place, or the two overlap, by whatever names.
        Conflict: the quarantine is reached through a link in the middle of a store.
    """
    place = _beside(target) if given is None else given
    is_alike = isinstance(place, str) and isinstance(target, str) and place.partition("://")[0] == target.partition("://")[0]
    options = storage_options if is_alike and ("://" in str(place)) == ("://" in str(target)) else None
    quarantine = open_storage(place, options)
    if location_of(storage, links=True).overlaps(location_of(quarantine)):
        raise InvalidInput(f"the quarantine {quarantine.url} and the store {storage.url} overlap: {_HOW} elsewhere")
    run_sync(check_own(quarantine, ""))
    return quarantine


def _beside(target: Any) -> Any:
    if isinstance(target, os.PathLike):
        target = text_of(target)
    if isinstance(target, tuple) and len(target) == 2 and isinstance(target[0], AbstractFileSystem):
        path = str(target[1]).rstrip("/")
        if "/" in path.strip("/"):
            return target[0], path + _SUFFIX
    elif isinstance(target, str) and len(links_of_url(target)) == 1:
        protocol = scheme_of(target)
        separator, path = bool(protocol), target.rstrip("/").removeprefix(f"{protocol}://")
        if path and (not separator or not has_host(protocol) or "/" in path):
            return target.rstrip("/") + _SUFFIX
    # Not every target may be shown: a store of icechunk waits for its writers first.
    named = repr(target) if isinstance(target, str) else f"this {type(target).__name__}"
    raise InvalidInput(f"there is no place next to {named}: {_HOW}")


async def keep(
    quarantine: Storage, store: Storage, plans: PlanWriter, key: str, generation: Generation, nbytes: int, note: Mapping[str, Any]
) -> str:
    """Store one version of an object of ``store``, and a note about it, durably; return the key under which it is kept. On local disks only
    those can read it who can read it in the store. Raises ``ConditionFailed`` if the object is another version now.
    """
    token = hashlib.sha256(f"{nbytes} {generation.token}".encode()).hexdigest()[:16]
    kept = f"{key}/{token}"
    here, there = quarantine.ability(LocalFiles), store.ability(LocalFiles)
    if here is not None and there is not None:
        for name in (kept, f"{kept}.json"):
            await here.make_like(name, there, key)
    body = plans.pieces(key, generation, [CopiedRange(0, nbytes)] if nbytes else [])
    await quarantine.write(kept, body, nbytes, UNCONDITIONAL)
    document = {"key": key, "generation": generation.token, "nbytes": nbytes, **note}
    text = json.dumps(document, indent=2).encode()
    await quarantine.write(f"{kept}.json", [text], len(text), UNCONDITIONAL)
    return kept


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The number of leftovers that are old enough, or were until they were removed."""

    files: int = 0
    uploads: int = 0


async def clear_leftovers(storage: Storage, path: str, older_than_seconds: float, now: datetime, *, only_count: bool) -> Leftovers:
    """Remove leftovers that are that old; of local files, those in the whole store, and only if ``path`` is empty.

    Raises:
        StorageError: the server does not list unfinished uploads, or failed.
    """
    if (local := storage.ability(LocalFiles)) is not None:
        return Leftovers(files=0 if path else await local.sweep(older_than_seconds, only_count=only_count))
    kind = innermost(storage)
    if not isinstance(kind, S3Storage):
        return Leftovers()
    count = 0
    async for upload in kind.unfinished_uploads(join(path, "")):
        if (now - upload.begun).total_seconds() >= older_than_seconds:
            count += 1
            if not only_count:
                await kind.abort_upload(upload)
    return Leftovers(uploads=count)


# -- results ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShardRepair:
    """A damaged shard, and the repair that was done, or would be done."""

    path: str
    """The path of the array."""
    key: str
    """The key of the shard's object."""
    what: str
    remedy: Remedy
    how: str
    """The remedy in words."""
    kept: int
    """The number of chunks that the shard holds after the repair."""
    lost: tuple[str, ...]
    """Keys of chunks that it held, or may have held, and does not hold after the repair: at most 1,000, as in the other lists."""
    lost_count: int
    reverted: tuple[str, ...]
    """Keys of chunks that have the state of an older index of the shard, existing or not, or would have it with the remedy ``left``. They
    may have been written or erased since.
    """
    reverted_count: int
    uncertain: tuple[str, ...]
    """Keys of chunks whose state after the repair, existing or not, is not proved to be right. A chunk's checksum proves that it is a
    chunk, not which one.
    """
    uncertain_count: int
    quarantined: str | None
    """The key from the root of the quarantine where the old object is kept; ``None``: no bytes of it were left out."""


@dataclass(frozen=True, slots=True)
class RepairReport(ShownInNotebooks):
    """The results of a run, or with ``is_dry_run`` the results that it would have had."""

    url: str
    path: str
    is_dry_run: bool
    quarantine: str | None
    """The URL of the quarantine; ``None`` if a dry run was given none, and there is no default."""
    shards: int
    """The number of shards that were looked at."""
    findings: FirstItems[ShardRepair]
    damaged_count: int
    """The number of findings other than empty shards."""
    lost_count: int
    """The number of chunks that could not be saved, in all findings."""
    reverted_count: int
    """The number of chunks that were set back to an older index, in all findings."""
    uncertain_count: int
    """The number of chunks whose place, or absence, is not proved, in all findings."""
    left_count: int
    """The number of damaged shards that stay unchanged, since the possible repair was not allowed."""
    pinned_count: int
    """The number of damaged shards that stay unchanged, since offsets into them are held elsewhere."""
    leftovers: Leftovers
    failed: FirstItems[FailedShard]
    unreadable: tuple[str, ...]
    """Paths of nodes whose documents cannot be read; they stay unchanged."""

    def __repr__(self) -> str:
        dry = "dry run, " if self.is_dry_run else ""
        counts = f"{self.shards} shards, {self.damaged_count} damaged, {self.left_count} left unchanged, {self.failed.count} failed"
        return f"<RepairReport of {self.url!r}: {dry}{counts}>"


# -- tasks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MendTask:
    """A task: repair one shard, if it is damaged; without a quarantine only report the repair."""

    place: SharedStorage
    shard: StoredShard
    quarantine: SharedStorage | None
    window_bytes: int
    allow_reverting: bool = False
    held: frozenset[str | None] = frozenset()


def look(task: LookTask) -> tuple[StoredShard, ...]:
    """Return the shards whose index cannot be right, or is empty."""
    seen = run_sync(look_at(Engine(task.place.storage), task.objects))
    return tuple(
        shard
        for shard, one in zip(task.objects, seen, strict=True)
        if one is not None
        and (
            isinstance(one.index, Corruption)
            or wrong_entries(shard.layout.index_format, one.index, one.nbytes).any()
            or not one.index.present().any()
        )
    )


def mend(task: MendTask) -> ShardRepair | None:
    """Repair one shard; return ``None`` if it is no longer damaged, or its array is another by now.

    Raises:
        Conflict: other clients kept writing the shard; the next run has to repair it.
    """
    engine = Engine(task.place.storage)
    plans = PlanWriter(engine.storage, task.window_bytes, task.window_bytes)
    capabilities = engine.storage.capabilities if task.quarantine is None else run_sync(engine.storage.probe())
    for _ in range(_ATTEMPTS):
        found = run_sync(_current(engine, task.shard))
        (seen,) = run_sync(look_at(engine, [task.shard]))
        if found is None or seen is None:
            return None
        shard, codecs = found
        try:
            can_delete = can_delete_emptied(capabilities)
            looking = Diagnosing(plans, shard, codecs, seen, can_delete=can_delete, allow_reverting=task.allow_reverting)
            diagnosis = looking.diagnose()
            if diagnosis is None:
                return None
            if diagnosis.plan is not None and is_held(task.held, seen.generation.token):
                return _finding(shard, replace(diagnosis, remedy="pinned", how="left, because it is pinned", plan=None), None)
            if task.quarantine is None or diagnosis.plan is None:
                return _finding(shard, diagnosis, None)
            kept = None
            if diagnosis.remedy != "emptied" or seen.nbytes > shard.layout.index_format.nbytes:
                note = _note(shard, diagnosis, task.place.storage.url)
                here = task.quarantine.storage, task.place.storage
                kept = run_sync(keep(*here, plans, shard.key, seen.generation, seen.nbytes, note))
            run_sync(engine.committer.replace(shard, seen.generation, diagnosis.plan))
        except Conflict:
            continue
        except (StaleLayout, NotFound):
            return None
        return _finding(shard, diagnosis, kept)
    raise Conflict(f"other writers kept changing shard {task.shard.key!r} while it was being repaired: run it again")


async def _current(engine: Engine, shard: StoredShard) -> tuple[Shard, InnerCodecs] | None:
    """Return the shard with its node as the storage has it now, and the proofs of its chunks' codecs; ``None`` if it belongs to another
    array now.
    """
    outcome = await read_one(engine.storage, document_read(metadata_key(shard.path)))
    if not isinstance(outcome, Found):
        return None
    node, document = engine.hierarchy.describe(shard.path, outcome.buffers[0], outcome.generation)
    if node.layout is None or document is None or not same_shards(node.layout, shard.layout):
        return None
    inner = present_array(document)
    codecs = inner.get("codecs")
    is_sharded = mentions_sharding(codecs) or bool(inner.get("storage_transformers"))
    ends_with_checksum = isinstance(codecs, list) and bool(codecs) and codec_name(codecs[-1]) == "crc32c"
    return Shard(node, node.layout, shard.coords), InnerCodecs(ends_with_checksum and not is_sharded, is_sharded)


def _finding(shard: Shard, diagnosis: Diagnosis, kept: str | None) -> ShardRepair:
    return ShardRepair(
        path=shard.node.path,
        key=shard.key,
        what=diagnosis.what,
        remedy=diagnosis.remedy,
        how=diagnosis.how,
        kept=diagnosis.kept,
        lost=_keys(shard, diagnosis.lost[:_MOST_NAMED]),
        lost_count=len(diagnosis.lost),
        reverted=_keys(shard, diagnosis.reverted[:_MOST_NAMED]),
        reverted_count=len(diagnosis.reverted),
        uncertain=_keys(shard, diagnosis.uncertain[:_MOST_NAMED]),
        uncertain_count=len(diagnosis.uncertain),
        quarantined=kept,
    )


def _keys(shard: Shard, slots: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(shard.chunk_key(slot) for slot in slots)


def _note(shard: Shard, diagnosis: Diagnosis, url: str) -> dict[str, Any]:
    """Return the note about a finding, with all chunks by name. The values of reverted ones, older and newer, are in the object that the
    note is about.
    """
    note: dict[str, Any] = {
        "store": url,
        "array": shard.node.path,
        "what": diagnosis.what,
        "done": diagnosis.how,
        "chunks_kept": diagnosis.kept,
        "chunks_lost": len(diagnosis.lost),
        "lost": list(_keys(shard, diagnosis.lost)),
        "reverted": list(_keys(shard, diagnosis.reverted)),
        "uncertain": list(_keys(shard, diagnosis.uncertain)),
    }
    if diagnosis.last_index_end is not None:
        note["last_index_end"] = diagnosis.last_index_end
    return note


# -- the run -----------------------------------------------------------------------------------------------------------


def repair(
    url: Any,
    *,
    path: str = "",
    dry_run: bool = False,
    allow_reverting: bool = False,
    quarantine: Any = None,
    pins: Iterable[Pin] = (),
    older_than: Duration = "24h",
    executor: ExecutorLike | None = None,
    workers: int | None = None,
    part: str | Part | None = None,
    retries: int = 2,
    max_memory: int = DEFAULT_MAX_MEMORY,
    only: Iterable[str] | None = None,
    exclusive: bool = False,
    storage_options: dict[str, Any] | None = None,
    locks: Locks = "auto",
    progress: Callable[[Progress], None] | bool | None = None,
    now: datetime | None = None,
) -> RepairReport:
    """Repair damaged shards at and below ``path``; with ``dry_run``, only report what would be repaired.

    This is safe while shardstore reads and writes: each shard is replaced on condition that it still is the version that was
    looked at. Its bytes are copied into the quarantine first, with a note. Arguments that are not described here are those of ``compact``.

    Args:
        url: the root of the store, as for ``shardstore.open``.
        path: the array or group that is looked at; all by default.
        dry_run: change nothing; the report says what would be done.
        allow_reverting: where the newest index of a shard cannot be proved and an older one lies in the shard, go back to that. All
            chunks of such a shard are named as ``reverted``: acknowledged writes may be undone. Without it such a shard stays as it
            is.
        quarantine: the place where the bytes of damaged objects are kept: a URL, or anything that ``url`` can be. By default next to the
            store, under its name with ``.quarantine`` behind.
        pins: shards that have to stay unchanged, because offsets into them are held elsewhere. They are left alone, and reported.
        older_than: leftover files and unfinished uploads of writers that died are removed at this age, such as ``"24h"``. A writer
            that lives keeps its files, but an upload does not show whether its writer lives.
        part: ``"I/N"``, the share of the shards that this call is for. Leftovers belong to the first part.
        storage_options: for the filesystem, and for that of the quarantine if it is of the same protocol.
        now: the time that ages of uploads are measured at; the present by default.

    Raises:
        InvalidInput: an argument cannot be right, there is no place for a quarantine, or a pin names no chunk and no shard of any array.
        NotFound: there is nothing at ``path``.
        Conflict: ``path`` is reached through a link in the middle of a store. Nothing was changed.
        Unsupported: the storage has no compare-and-swap, and ``exclusive`` is not given. Nothing was changed.
        StorageError: the storage cannot be listed.
        ShardStoreError: the executor was lost, with its scheduler or a process; the work done by then stays.
    """
    check_flags(dry_run=dry_run, exclusive=exclusive, allow_reverting=allow_reverting)
    older_than_seconds = seconds_of("older_than", older_than)
    execution = Execution.of(executor, workers, part, retries, max_memory, only)
    refuse_to_change(run_sync(named_snapshot(url, storage_options)), "repairing")
    place = SharedStorage(open_storage(url, storage_options, locks=locks))
    kept_in = None
    try:
        kept_in = SharedStorage(open_quarantine(url, quarantine, place.storage, storage_options))
    except InvalidInput:
        if not dry_run or quarantine is not None:
            raise
    with reported(progress, repair_step) as say:
        run = ShardRun(place, execution, say)
        if not dry_run:
            run_sync(check_can_swap(run.engine.storage, exclusive))
        held = run_sync(Pins.of(pins).resolved(run.engine))
        suspects: list[StoredShard] = []
        run.look_at_all(path, look, suspects.extend)
        findings: list[ShardRepair] = []

        def mended(task: MendTask, finding: ShardRepair | None) -> None:
            if finding is not None:
                findings.append(finding)

        tasks = (
            MendTask(place, shard, None if dry_run else kept_in, execution.window_bytes, allow_reverting, held.at(shard.key))
            for shard in suspects
        )
        run.work_on_each(mend, tasks, len(suspects), mended)
    findings.sort(key=lambda finding: finding.key)
    leftovers = Leftovers()
    if execution.part.number == 1 and execution.only is None:
        moment = now or datetime.now(UTC)
        leftovers = run_sync(clear_leftovers(run.engine.storage, path.strip("/"), older_than_seconds, moment, only_count=dry_run))
    return _report(run, path, findings, kept_in, leftovers, is_dry_run=dry_run)


def _report(
    run: ShardRun, path: str, findings: list[ShardRepair], quarantine: SharedStorage | None, leftovers: Leftovers, *, is_dry_run: bool
) -> RepairReport:
    return RepairReport(
        url=run.engine.storage.url,
        path=path.strip("/"),
        is_dry_run=is_dry_run,
        quarantine=None if quarantine is None else quarantine.storage.url,
        shards=run.shards,
        findings=FirstItems.of(findings),
        damaged_count=sum(finding.remedy != "emptied" for finding in findings),
        lost_count=sum(finding.lost_count for finding in findings),
        reverted_count=sum(finding.reverted_count for finding in findings if finding.remedy != "left"),
        uncertain_count=sum(finding.uncertain_count for finding in findings),
        left_count=sum(finding.remedy == "left" for finding in findings),
        pinned_count=sum(finding.remedy == "pinned" for finding in findings),
        leftovers=leftovers,
        failed=FirstItems.of(run.failed, MOST_FAILED),
        unreadable=tuple(node.path for node in run.unreadable),
    )
