"""``shardstore repair``: repairs damaged shards from what can be proved."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shardstore.adapters.store_paths import StorePath
from shardstore.apps.cli.arguments import AsJson, StorageOptions, Url
from shardstore.apps.cli.execution import ReplaceOptions, end_with
from shardstore.apps.cli.held import HeldOptions
from shardstore.apps.cli.output import complain, print_json
from shardstore.maintenance.repair.run import RepairReport, ShardRepair, repair_step
from shardstore.maintenance.repair.run import repair as repair_store
from shardstore.model.words import plural
from shardstore.progress.shown import step_bar

_MOST_SHOWN = 20  # chunks by name, of one shard


def repair(
    *,
    url: Url,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Repair. Without this, nothing is changed.")] = False,
    allow_reverting: Annotated[
        bool,
        typer.Option(
            "--allow-reverting",
            help="Go back to the older index of a shard whose newest one cannot be proved: acknowledged writes may be undone.",
        ),
    ] = False,
    quarantine: Annotated[
        str | None,
        typer.Option(
            "--quarantine", metavar="URL", help="Where damaged objects are kept; next to the store by default.", show_default=False
        ),
    ] = None,
    older_than: Annotated[
        float, typer.Option("--older-than", metavar="HOURS", help="Age of leftover files and unfinished uploads that are removed.")
    ] = 24.0,
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
    given = storage.parsed()
    target = storage.resolve(url)
    target.check_changeable("repairing")
    with work.arguments("every shard is either unchanged or done: the same command continues") as arguments, step_bar() as bar:
        report = repair_store(
            target.handle.recipe.target,
            path=target.path,
            yes=yes,
            allow_reverting=allow_reverting,
            quarantine=quarantine,
            pins=held.held(target.handle.recipe.target, given),
            older_than_hours=older_than,
            storage_options=given or None,
            progress=lambda progress: bar(repair_step(progress)),
            **arguments,
        )
    if as_json:
        print_json(_document(target, report))
    else:
        _show(report)
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


def _show(report: RepairReport) -> None:
    for finding in report.findings.first:
        typer.echo(_in_words(finding))
    if report.findings.count > len(report.findings.first):
        typer.echo(f"… and {report.findings.count - len(report.findings.first):,} more")
    did = "would be dealt with" if report.is_dry_run else "dealt with"
    typer.echo(f"{plural(report.shards, 'shard')} looked at, {report.findings.count:,} {did}")
    gone = "would be removed" if report.is_dry_run else "removed"
    if report.leftovers.files:
        typer.echo(f"{plural(report.leftovers.files, 'file')} of writers that died {gone}")
    if report.leftovers.uploads:
        typer.echo(f"{plural(report.leftovers.uploads, 'unfinished upload')} {gone}")
    if any(finding.quarantined for finding in report.findings.first):
        typer.echo(f"damaged objects are kept in {report.quarantine}")


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


def _document(target: StorePath, report: RepairReport) -> dict[str, Any]:
    return {
        "url": str(target),
        "dry_run": report.is_dry_run,
        "quarantine": report.quarantine,
        "shards": report.shards,
        "findings": {
            "count": report.findings.count,
            "shards": [
                {
                    "key": finding.key,
                    "what": finding.what,
                    "remedy": finding.remedy,
                    "how": finding.how,
                    "kept": finding.kept,
                    "lost": {"count": finding.lost_count, "chunks": list(finding.lost)},
                    "reverted": {"count": finding.reverted_count, "chunks": list(finding.reverted)},
                    "uncertain": {"count": finding.uncertain_count, "chunks": list(finding.uncertain)},
                    "quarantined": finding.quarantined,
                }
                for finding in report.findings.first
            ],
        },
        "leftovers": {"files": report.leftovers.files, "uploads": report.leftovers.uploads},
        "failed": {"count": report.failed.count, "shards": [{"key": f.key, "why": str(f.error)} for f in report.failed.first]},
        "unreadable": list(report.unreadable),
    }
