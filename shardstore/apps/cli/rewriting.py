"""``shardstore compact`` and ``repair``: rewrite shards with dead bytes, and damaged ones, by what can be proved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from shardstore.adapters.store_paths import StorePath
from shardstore.apps.cli.arguments import AsJson, StorageOptions, Url
from shardstore.apps.cli.execution import HeldOptions, ReplaceOptions, end_with
from shardstore.apps.cli.output import complain, print_result
from shardstore.maintenance.compact import CompactReport, compact_step
from shardstore.maintenance.compact import compact as compact_store
from shardstore.maintenance.repair.run import RepairReport, ShardRepair, repair_step
from shardstore.maintenance.repair.run import repair as repair_store
from shardstore.model.chunk_orders import check_chunk_order
from shardstore.model.options import CommandOption, option
from shardstore.model.words import plural, size
from shardstore.progress.steps import Progress, Step

Report = TypeVar("Report", CompactReport, RepairReport)

_MOST_SHOWN = 20  # chunks by name, of one shard


@dataclass(frozen=True)
class CompactOptions:
    """Options of ``shardstore.compact``."""

    dead_ratio: Annotated[float, CommandOption("Rewrite shards if more than this fraction of their bytes is dead.", "RATIO")] = 0.25
    dead_bytes: Annotated[int | None, CommandOption("Also rewrite shards with at least this many dead bytes.", "N")] = None
    order: str = option("C", "The order of the chunks in rewritten shards.", "C|F|morton")
    dry_run: bool = option(False, "Change nothing: show what would be done.")


def compact(
    *,
    url: Url,
    options: CompactOptions,
    held: HeldOptions,
    work: ReplaceOptions,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Rewrite the shards with too many dead bytes, and delete those that hold no chunk. Chunks are kept byte for byte.

    Dead bytes of a shard belong neither to its index nor to a chunk. Programs that use shardstore may read and write the store at the same
    time; no other library may. Damaged shards are left unchanged, and the exit code is 5: shardstore repair is for them.

    Examples:

        shardstore compact --dry-run data.zarr

        shardstore compact s3://bucket/data.zarr/ct --dead-ratio 0.5

        shardstore compact s3://bucket/data.zarr --pins-of s3://bucket/data.refs --part $SLURM_ARRAY_TASK_ID/16
    """
    check_chunk_order(options.order, "--order")  # before pins are read, and a cluster is reached
    target = storage.resolve(url)
    target.check_changeable("compacting")
    report = _carry_out(compact_store, target, storage, held, work, compact_step, vars(options))
    print_result(as_json, _compact_document(target, report), *_compact_lines(report))
    work.write_failures(report.failed.first)
    for damage in report.damaged.first:
        complain("warning", f"{damage.key} is damaged and was left unchanged: {damage.what}")
    for path in report.unreadable:
        complain("warning", f"{path or 'the root'} has metadata that cannot be read: nothing below it was examined")
    end_with(report.failed, report.damaged.count)


def _carry_out(
    function: Callable[..., Report],
    target: StorePath,
    storage: StorageOptions,
    held: HeldOptions,
    work: ReplaceOptions,
    step: Callable[[Progress], Step],
    options: dict[str, Any],
) -> Report:
    """Replace shards at and below a place, and show progress; return what ``function`` returns."""
    root, given = target.handle.recipe.target, storage.parsed()
    with work.running("every shard is either unchanged or done: the same command continues", step) as (arguments, progress):
        return function(
            root,
            path=target.path,
            pins=held.held(root, given),
            storage_options=given or None,
            progress=progress,
            **options,
            **arguments,
            **work.replacing(),
        )


def _compact_lines(report: CompactReport) -> Iterator[str]:
    yield f"{plural(report.shards, 'shard')} looked at, {size(report.dead_nbytes)} dead"
    did = ("would be rewritten", "would be deleted", "would be freed") if report.is_dry_run else ("rewritten", "deleted", "freed")
    yield f"{report.rewritten:,} {did[0]}, {report.deleted:,} {did[1]}: {size(report.nbytes_freed)} {did[2]}"
    if report.pinned.count:
        yield f"{plural(report.pinned.count, 'shard')} left alone, because pinned"


def _compact_document(target: StorePath, report: CompactReport) -> dict[str, Any]:
    counts = {name: getattr(report, name) for name in ("shards", "dead_nbytes", "rewritten", "deleted", "nbytes_before", "nbytes_after")}
    return {
        "url": str(target),
        "dry_run": report.is_dry_run,
        **counts,
        "pinned": {"count": report.pinned.count, "keys": list(report.pinned.first)},
        "damaged": {"count": report.damaged.count, "shards": [{"key": d.key, "what": d.what} for d in report.damaged.first]},
        **_not_done(report),
    }


def _not_done(report: CompactReport | RepairReport) -> dict[str, Any]:
    failed = [{"key": failure.key, "why": str(failure.error)} for failure in report.failed.first]
    return {"failed": {"count": report.failed.count, "shards": failed}, "unreadable": list(report.unreadable)}


@dataclass(frozen=True)
class RepairOptions:
    """Options of ``shardstore.repair``."""

    yes: Annotated[bool, CommandOption("Repair. Without this, nothing is changed.", flags=("--yes", "-y"))] = False
    allow_reverting: bool = option(
        False, "Go back to the older index of a shard whose newest one cannot be proved: acknowledged writes may be undone."
    )
    quarantine: str | None = option(None, "Where damaged objects are kept; next to the store by default.", "URL")
    older_than_hours: Annotated[
        float, CommandOption("Age of leftover files and unfinished uploads that are removed.", "HOURS", flags=("--older-than",))
    ] = 24.0


def repair(
    *,
    url: Url,
    options: RepairOptions,
    held: HeldOptions,
    work: ReplaceOptions,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Show how damaged shards would be repaired; with --yes, repair them.

    Only what can be proved is restored: wrong bytes of an index are corrected, impossible entries removed. The rest is removed. If only an
    older index of a shard is found, the shard is left unchanged; with --allow-reverting it is cut after that index. The output names
    chunks that are lost, that may be old (reverted), and whose position is not proved (uncertain). Before an object is replaced or
    removed, it is copied to a quarantine, with a note. Metadata is never guessed. Without --yes the exit code is 5 if something is
    damaged; with --yes, if chunks were lost, are reverted or uncertain, or a shard was left.

    Examples:

        shardstore repair data.zarr

        shardstore repair data.zarr --yes

        shardstore repair s3://bucket/data.zarr/ct --yes --quarantine s3://bucket/damaged
    """
    target = storage.resolve(url)
    target.check_changeable("repairing")
    report = _carry_out(repair_store, target, storage, held, work, repair_step, vars(options))
    print_result(as_json, _repair_document(target, report), *_repair_lines(report))
    work.write_failures(report.failed.first)
    for path in report.unreadable:
        complain("warning", f"{path or 'the root'} has metadata that cannot be read, which is never guessed: restore it")
    if report.damaged_count and report.is_dry_run:
        complain("warning", "nothing was changed: --yes does it")
    elif report.left_count:
        what = plural(report.left_count, "damaged shard")
        complain("warning", f"{what} left: restore from a copy, or say --allow-reverting to go back to an older index")
    if report.pinned_count:
        complain(
            "warning", f"{plural(report.pinned_count, 'damaged shard')} left, because pinned: sets of references hold offsets into them"
        )
    doubtful = report.pinned_count + report.lost_count + report.reverted_count + report.uncertain_count + report.left_count
    end_with(report.failed, len(report.unreadable) + (report.damaged_count if report.is_dry_run else doubtful))


def _repair_lines(report: RepairReport) -> Iterator[str]:
    yield from map(_in_words, report.findings.first)
    if report.findings.count > len(report.findings.first):
        yield f"… and {report.findings.count - len(report.findings.first):,} more"
    did = "would be dealt with" if report.is_dry_run else "dealt with"
    yield f"{plural(report.shards, 'shard')} looked at, {report.findings.count:,} {did}"
    gone = "would be removed" if report.is_dry_run else "removed"
    if report.leftovers.files:
        yield f"{plural(report.leftovers.files, 'file')} of writers that died {gone}"
    if report.leftovers.uploads:
        yield f"{plural(report.leftovers.uploads, 'unfinished upload')} {gone}"
    if any(finding.quarantined for finding in report.findings.first):
        yield f"damaged objects are kept in {report.quarantine}"


def _in_words(finding: ShardRepair) -> str:
    words = f"{finding.key}: {finding.what}; {finding.how}"
    if finding.remedy == "emptied":
        return words
    if finding.remedy == "pinned":
        return f"{words}: {plural(finding.kept, 'chunk')} in it"
    if finding.remedy == "left":
        return f"{words}: {plural(finding.kept, 'chunk')} in it; may be old: {_named(finding.reverted, finding.reverted_count)}"
    words += f": {plural(finding.kept, 'chunk')} kept" + (f", {finding.lost_count:,} lost" if finding.lost_count else "")
    for name, keys, count in (
        ("reverted, may be old", finding.reverted, finding.reverted_count),
        ("uncertain", finding.uncertain, finding.uncertain_count),
    ):
        words += f"; {name}: {_named(keys, count)}" if count else ""
    return words


def _named(keys: tuple[str, ...], count: int) -> str:
    shown = keys[:_MOST_SHOWN]
    return ", ".join(shown) + (f" and {count - len(shown):,} more (--json)" if count > len(shown) else "")


def _repair_document(target: StorePath, report: RepairReport) -> dict[str, Any]:
    return {
        "url": str(target),
        "dry_run": report.is_dry_run,
        "quarantine": report.quarantine,
        "shards": report.shards,
        "findings": {"count": report.findings.count, "shards": list(map(_finding_document, report.findings.first))},
        "leftovers": {"files": report.leftovers.files, "uploads": report.leftovers.uploads},
        **_not_done(report),
    }


def _finding_document(finding: ShardRepair) -> dict[str, Any]:
    lists = {
        name: {"count": getattr(finding, f"{name}_count"), "chunks": list(getattr(finding, name))}
        for name in ("lost", "reverted", "uncertain")
    }
    facts = {name: getattr(finding, name) for name in ("key", "what", "remedy", "how", "kept")}
    return facts | lists | {"quarantined": finding.quarantined}
