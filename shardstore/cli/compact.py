"""``shardstore compact``: rewrites shards with many dead bytes, which nothing refers to."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shardstore.cli.arguments import AsJson, StorageOptions, Url
from shardstore.cli.execution import ReplaceOptions, end_with
from shardstore.cli.held import HeldOptions
from shardstore.cli.output import complain, print_json
from shardstore.cli.target import Target, resolve
from shardstore.errors import InvalidInput
from shardstore.maintenance.compact import CompactReport, compact_step
from shardstore.maintenance.compact import compact as compact_store
from shardstore.model.words import plural, size
from shardstore.progress.shown import step_bar


def compact(
    *,
    url: Url,
    dead_ratio: Annotated[float, typer.Option("--dead-ratio", metavar="RATIO", help="Rewrite shards of which more is dead.")] = 0.25,
    dead_bytes: Annotated[
        int | None, typer.Option("--dead-bytes", metavar="N", help="Or shards that hold so many dead bytes.", show_default=False)
    ] = None,
    order: Annotated[str, typer.Option("--order", metavar="C|morton", help="Of the chunks in rewritten shards.")] = "C",
    held: HeldOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only look, and say what would be done.")] = False,
    work: ReplaceOptions,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Rewrite the shards whose dead bytes pass a bound, and delete those that hold no chunk. Chunks are kept byte for byte.

    Dead are bytes of a shard that neither its index nor a chunk refers to. Safe beside readers and writers of shardstore; let no other
    library write, or read, meanwhile. Damaged shards are left as they are: shardstore repair is for them, and the exit code is 5.

    Examples:

        shardstore compact --dry-run data.zarr

        shardstore compact s3://bucket/data.zarr/ct --dead-ratio 0.5

        shardstore compact s3://bucket/data.zarr --pins-of s3://bucket/data.refs --part $SLURM_ARRAY_TASK_ID/16
    """
    given = storage.parsed()
    if order not in ("C", "morton"):
        raise InvalidInput(f"--order {order} is neither C nor morton")
    target = resolve(url, given)
    target.check_changeable("compacting")
    with work.arguments("every shard is as it was, or done: the same command goes on") as arguments, step_bar() as bar:
        report = compact_store(
            target.handle.recipe.target,
            path=target.path,
            pins=held.held(target.handle.recipe.target, given),
            dead_ratio=dead_ratio,
            dead_bytes=dead_bytes,
            order="morton" if order == "morton" else "C",
            dry_run=dry_run,
            storage_options=given or None,
            progress=lambda progress: bar(compact_step(progress)),
            **arguments,
        )
    if as_json:
        print_json(_document(target, report))
    else:
        _show(report)
    work.write_failures(report.failed.first)
    for damage in report.damaged.first:
        complain("warning", f"{damage.key} is damaged and was left as it is: {damage.what}")
    for path in report.unreadable:
        complain("warning", f"{path or 'the root'} has metadata that cannot be read: what lies below was not looked at")
    end_with(report.failed, report.damaged.count)


def _show(report: CompactReport) -> None:
    typer.echo(f"{plural(report.shards, 'shard')} looked at, {size(report.dead_nbytes)} dead")
    did = ("would be rewritten", "would be deleted", "would be freed") if report.is_dry_run else ("rewritten", "deleted", "freed")
    typer.echo(f"{report.rewritten:,} {did[0]}, {report.deleted:,} {did[1]}: {size(report.nbytes_freed)} {did[2]}")
    if report.pinned.count:
        typer.echo(f"{plural(report.pinned.count, 'shard')} left alone, because pinned")


def _document(target: Target, report: CompactReport) -> dict[str, Any]:
    return {
        "url": str(target.address),
        "dry_run": report.is_dry_run,
        "shards": report.shards,
        "dead_nbytes": report.dead_nbytes,
        "rewritten": report.rewritten,
        "deleted": report.deleted,
        "nbytes_before": report.nbytes_before,
        "nbytes_after": report.nbytes_after,
        "pinned": {"count": report.pinned.count, "keys": list(report.pinned.first)},
        "damaged": {"count": report.damaged.count, "shards": [{"key": d.key, "what": d.what} for d in report.damaged.first]},
        "failed": {"count": report.failed.count, "shards": [{"key": f.key, "why": str(f.error)} for f in report.failed.first]},
        "unreadable": list(report.unreadable),
    }
