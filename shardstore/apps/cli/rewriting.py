"""``shardstore compact`` and ``repair``: rewrite shards with dead bytes, and damaged ones, by what can be proved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from shardstore.adapters.store_paths import StorePath
from shardstore.apps.cli.arguments import AsJson, DryRun, StorageOptions, Url, Yes
from shardstore.apps.cli.execution import HeldOptions, ReplaceOptions, end_with
from shardstore.apps.cli.output import ask, complain, is_interactive, print_result
from shardstore.errors import InvalidInput
from shardstore.maintenance.compact import CompactReport, compact_step
from shardstore.maintenance.compact import compact as compact_store
from shardstore.maintenance.repair.run import RepairReport, ShardRepair, repair_step
from shardstore.maintenance.repair.run import repair as repair_store
from shardstore.model.chunk_orders import check_chunk_order
from shardstore.model.options import CHUNK_ORDER, DRY_RUN, OLDER_THAN, CommandOption, option
from shardstore.model.words import plural, size
from shardstore.progress.steps import Progress, Step

Report = TypeVar("Report", CompactReport, RepairReport)

_MOST_SHOWN = 20  # chunks by name, of one shard


@dataclass(frozen=True)
class CompactOptions:
    """Options of ``shardstore.compact``."""

    dead_ratio: Annotated[float, CommandOption("Rewrite shards with more than this share of dead bytes.", "SHARE", group="Selection")] = (
        0.25
    )
    dead_bytes: int | None = option(None, "Rewrite shards with as many dead bytes, too.", "BYTES", form="bytes", group="Selection")
    chunk_order: str = option("C", CHUNK_ORDER)
    dry_run: bool = option(False, DRY_RUN)


def compact(
    *,
    url: Url,
    options: CompactOptions,
    held: HeldOptions,
    work: ReplaceOptions,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Rewrite shards with too many dead bytes, and delete those that hold no chunk. Chunks stay unchanged.

    Dead bytes belong neither to the index of a shard nor to a chunk. Programs that use shardstore may read and write meanwhile; no other
    library may. Damaged shards stay unchanged, and the exit code is 5: shardstore repair is for them.

    Examples:
      shardstore compact --dry-run data.zarr
      shardstore compact s3://bucket/data.zarr/ct --dead-ratio 0.5
      shardstore compact s3://bucket/data.zarr --pins-of s3://bucket/data.refs --part $SLURM_ARRAY_TASK_ID/16
    """
    check_chunk_order(options.chunk_order, "--chunk-order")  # before pins are read, and a cluster is reached
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

    allow_reverting: bool = option(False, "Go back to an older index, which may undo writes.", group="Expert")
    quarantine: str | None = option(None, "Where damaged objects are kept.", "URL", group="Expert", words="next to the store")
    older_than: str = option("24h", OLDER_THAN)


def repair(
    *,
    url: Url,
    dry_run: DryRun = False,
    yes: Yes = False,
    options: RepairOptions,
    held: HeldOptions,
    work: ReplaceOptions,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Repair damaged shards, as far as can be proved. It shows what it would do, asks, and does it.

    Wrong entries of an index are removed, and the output names the chunks that are lost. Objects are first copied to a quarantine. Files
    and uploads of writers that died are removed, too. If only an older index of a shard is found, the shard stays unchanged, unless
    --allow-reverting is given. The exit code is 5 if damage is left, or chunks are lost.

    Examples:
      shardstore repair data.zarr --dry-run
      shardstore repair data.zarr
      shardstore repair s3://bucket/data.zarr/ct --yes --quarantine s3://bucket/damaged
    """
    if not (dry_run or yes or is_interactive()):
        raise InvalidInput("repair asks before it changes a store, and there is no terminal: give --dry-run to look, or --yes to repair")
    target = storage.resolve(url)
    target.check_changeable("repairing")
    report = _repaired(target, storage, held, work, options, dry_run=dry_run or not yes)
    if not (dry_run or yes) and (work_found := _repairs(report)):
        if not as_json:
            _say_repaired(target, report, as_json=False)
        ask(f"repair {target}: {work_found}", "nothing was changed")
        report = _repaired(target, storage, held, work, options, dry_run=False)
    _say_repaired(target, report, as_json=as_json)
    work.write_failures(report.failed.first)
    doubtful = report.pinned_count + report.lost_count + report.reverted_count + report.uncertain_count + report.left_count
    end_with(report.failed, len(report.unreadable) + (report.damaged_count if report.is_dry_run else doubtful))


def _repaired(
    target: StorePath, storage: StorageOptions, held: HeldOptions, work: ReplaceOptions, options: RepairOptions, *, dry_run: bool
) -> RepairReport:
    return _carry_out(repair_store, target, storage, held, work, repair_step, vars(options) | {"dry_run": dry_run})


def _repairs(report: RepairReport) -> str:
    """Return, in words, what a repair would do; nothing if there is nothing to do."""
    amounts = (
        (report.findings.count - report.left_count - report.pinned_count, "shard"),
        (report.leftovers.files, "file of a writer that died"),
        (report.leftovers.uploads, "unfinished upload"),
    )
    plurals = {"file of a writer that died": "files of writers that died"}
    return ", ".join(plural(count, noun, plurals.get(noun)) for count, noun in amounts if count)


def _say_repaired(target: StorePath, report: RepairReport, *, as_json: bool) -> None:
    print_result(as_json, _repair_document(target, report), *_repair_lines(report))
    for path in report.unreadable:
        complain("warning", f"{path or 'the root'} has metadata that cannot be read, which is never guessed: restore it")
    if report.left_count:
        what = plural(report.left_count, "damaged shard")
        complain("warning", f"{what} left: restore from a copy, or give --allow-reverting to go back to an older index")
    if report.pinned_count:
        complain(
            "warning", f"{plural(report.pinned_count, 'damaged shard')} left, because pinned: sets of references hold offsets into them"
        )
    if report.is_dry_run and report.damaged_count:
        complain("warning", "nothing was changed yet")


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
