"""Cards for notebooks: surveys, censuses, verifications, what packing, compacting and repairing have done, counters and repositories."""

from __future__ import annotations

from functools import singledispatch

from shardstore.adapters.handle import Counters
from shardstore.adapters.versioned.repository import Repository, refs_of
from shardstore.apps.reports.page import Card, cards, picture_of
from shardstore.apps.reports.words import array_rows, no_v3
from shardstore.maintenance.census import Census
from shardstore.maintenance.compact import CompactReport
from shardstore.maintenance.packing.run import PackReport
from shardstore.maintenance.repair.run import RepairReport
from shardstore.maintenance.survey.run import Survey
from shardstore.maintenance.verify.run import VerifyReport
from shardstore.model.words import count, plural, shape, size

_MOST_ARRAYS = 50
_MOST_FINDINGS = 20
_PICTURE_SIDE = 128
_MOST_REFS = 20
_SECONDS = 2.0


@singledispatch
def html_of(result: object) -> str | None:
    """Return a result as HTML; ``None`` if it is of no known kind."""
    return None


@html_of.register
def _survey(result: Survey) -> str:
    rows = [("content", f"{plural(result.groups, 'group')}, {plural(len(result.arrays), 'array')}")]
    if result.objects is not None:
        rows.append(("objects", f"{count(result.objects)}, {size(result.stored_nbytes or 0)}"))
    if (nothing := no_v3(result)) is not None:
        rows.append(("content", nothing))
    rows += [("damaged", f"{damage.key}: {damage.what}") for damage in result.damage[:_MOST_FINDINGS]]
    arrays = [Card(f"{a.path or '/'}  {shape(a.shape)}  {a.data_type}", array_rows(a, "")) for a in result.arrays[:_MOST_ARRAYS]]
    return cards(f"Survey of {result.url}", rows, arrays, is_complete=len(result.arrays) <= _MOST_ARRAYS)


@html_of.register
def _census(result: Census) -> str:
    rows = [("arrays", count(len(result.arrays)))]
    rows += [("damaged", key) for key in result.damaged[:_MOST_FINDINGS]]
    rows += [("unread", f"{one.key}: {one.error}") for one in result.failed[:_MOST_FINDINGS]]
    arrays = [
        Card(
            f"{array.path or '/'}  {shape(array.chunk_grid)} chunks",
            [
                ("chunks", f"{count(array.chunks)} of {count(array.possible_chunks)}"),
                ("objects", f"{count(array.objects)} of {count(array.possible_objects)}, {size(array.stored_nbytes)}"),
            ],
            picture_of(array.density(_PICTURE_SIDE, _PICTURE_SIDE)),
        )
        for array in result.arrays[:_MOST_ARRAYS]
    ]
    return cards("Census", rows, arrays, is_complete=len(result.arrays) <= _MOST_ARRAYS)


@html_of.register
def _verify(result: VerifyReport) -> str:
    rows = [
        ("when", f"{result.at:%Y-%m-%d %H:%M:%S} UTC" + ("" if result.is_whole else ", a part of the objects")),
        ("found", f"{plural(result.errors, 'error')}, {plural(result.notes, 'note')}, {count(len(result.unread))} unread"),
        ("looked at", f"{plural(result.objects, 'object')}, {size(result.nbytes_read)} read"),
    ]
    rows += [(one.severity, f"{one.key or one.path or '/'}: {one.what}. {one.remedy}") for one in result.findings[:_MOST_FINDINGS]]
    rows += [("unread", f"{one.key}: {one.error}") for one in result.unread[:_MOST_FINDINGS]]
    arrays = [
        Card(
            f"{array.path or '/'}  {plural(array.errors, 'error')}",
            [
                ("looked at", f"{plural(array.objects, 'object')}, {plural(array.chunks, 'chunk')}, {size(array.nbytes_read)} read"),
                *(("detects", sentence) for sentence in array.detectable.found),
                *(("cannot detect", sentence) for sentence in array.detectable.missed),
            ],
        )
        for array in result.arrays[:_MOST_ARRAYS]
    ]
    return cards(f"Verification of {result.url}", rows, arrays, is_complete=len(result.arrays) <= _MOST_ARRAYS)


@html_of.register
def _pack(result: PackReport) -> str:
    state = "dry run" if result.dry_run else "complete" if result.complete else f"{plural(result.missing, 'unit')} missing"
    rows = [
        ("from", result.source),
        ("to", result.target),
        ("state", state),
        ("objects", f"{count(result.objects_before)} → {count(result.objects_after)}"),
        ("bytes", f"{size(result.nbytes_before)} → {size(result.nbytes_after)}"),
        *(("failed", f"{one}: {one.error}") for one in result.failed[:_MOST_FINDINGS]),
        *(("note", note) for note in result.notes),
    ]
    arrays = [
        Card(
            f"{array.path or '/'}  chunks of {shape(array.chunk_shape)}",
            [
                ("chunks a shard", shape(array.chunks_per_shard) if array.chunks_per_shard is not None else "unsharded"),
                ("objects", f"{count(array.objects_before)} → {count(array.objects_after)}"),
                ("bytes", f"{size(array.nbytes_before)} → {size(array.nbytes_after)}"),
            ],
        )
        for array in result.arrays[:_MOST_ARRAYS]
    ]
    return cards(result.mode.capitalize(), rows, arrays, is_complete=len(result.arrays) <= _MOST_ARRAYS)


@html_of.register
def _compact(result: CompactReport) -> str:
    did = "would be " if result.is_dry_run else ""
    rows = [
        ("shards", f"{count(result.shards)}, {size(result.dead_nbytes)} dead"),
        ("done", f"{count(result.rewritten)} {did}rewritten, {count(result.deleted)} {did}deleted, {size(result.nbytes_freed)} {did}freed"),
        *(("damaged", f"{one.key}: {one.what}") for one in result.damaged.first[:_MOST_FINDINGS]),
        *(("failed", f"{one.key}: {one.error}") for one in result.failed.first[:_MOST_FINDINGS]),
    ]
    return cards(f"Compaction of {result.url}", rows, (), is_complete=True)


@html_of.register
def _repair(result: RepairReport) -> str:
    rows = [
        ("state", "dry run" if result.is_dry_run else "done"),
        ("shards", f"{count(result.shards)} looked at, {count(result.damaged_count)} damaged, {count(result.left_count)} left unchanged"),
        ("chunks", f"{count(result.lost_count)} lost, {count(result.reverted_count)} reverted, {count(result.uncertain_count)} uncertain"),
        ("quarantine", result.quarantine or "–"),
        *(("failed", f"{one.key}: {one.error}") for one in result.failed.first[:_MOST_FINDINGS]),
    ]
    return cards(f"Repair of {result.url}", rows, (), is_complete=True)


@html_of.register
def _counters(result: Counters) -> str:
    rows = [
        (name.replace("_", " "), size(number) if name.startswith("bytes") else count(number)) for name, number in result.as_dict().items()
    ]
    return cards("Counters", rows, (), is_complete=True)


@html_of.register
def _repository(result: Repository) -> str:
    refs = refs_of(result, _SECONDS)
    rows = [
        (f"{kind} {name}", f"{info.written_at:%Y-%m-%d %H:%M:%S} UTC, {info.id}: {info.message}") for kind, name, info in refs[:_MOST_REFS]
    ]
    return cards(repr(result), rows, (), is_complete=len(refs) <= _MOST_REFS)
