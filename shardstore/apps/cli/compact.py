"""``shardstore compact``: rewrites shards with many dead bytes, which nothing refers to."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shardstore.adapters.store_paths import StorePath
from shardstore.apps.cli.arguments import AsJson, StorageOptions, Url
from shardstore.apps.cli.execution import ReplaceOptions, end_with
from shardstore.apps.cli.held import HeldOptions
from shardstore.apps.cli.output import complain, print_json
from shardstore.errors import InvalidInput
from shardstore.maintenance.compact import CompactReport, compact_step
from shardstore.maintenance.compact import compact as compact_store
from shardstore.model.words import plural, size
from shardstore.progress.shown import step_bar


def compact(
    *,
    url: Url,
    dead_ratio: Annotated[
        float, typer.Option("--dead-ratio", metavar="RATIO", help="Rewrite shards if more than this fraction of their bytes is dead.")
    ] = 0.25,
    dead_bytes: Annotated[
        int | None,
        typer.Option("--dead-bytes", metavar="N", help="Also rewrite shards with at least this many dead bytes.", show_default=False),
    ] = None,
    order: Annotated[str, typer.Option("--order", metavar="C|morton", help="The order of the chunks in rewritten shards.")] = "C",
    held: HeldOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing: show what would be done.")] = False,
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
    given = storage.parsed()
    if order not in ("C", "morton"):
        raise InvalidInput(f"--order {order} is neither C nor morton")
    target = storage.resolve(url)
    target.check_changeable("compacting")
    with work.arguments("every shard is either unchanged or done: the same command continues") as arguments, step_bar() as bar:
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
        complain("warning", f"{damage.key} is damaged and was left unchanged: {damage.what}")
    for path in report.unreadable:
        complain("warning", f"{path or 'the root'} has metadata that cannot be read: nothing below it was examined")
    end_with(report.failed, report.damaged.count)


def _show(report: CompactReport) -> None:
    typer.echo(f"{plural(report.shards, 'shard')} looked at, {size(report.dead_nbytes)} dead")
    did = ("would be rewritten", "would be deleted", "would be freed") if report.is_dry_run else ("rewritten", "deleted", "freed")
    typer.echo(f"{report.rewritten:,} {did[0]}, {report.deleted:,} {did[1]}: {size(report.nbytes_freed)} {did[2]}")
    if report.pinned.count:
        typer.echo(f"{plural(report.pinned.count, 'shard')} left alone, because pinned")


def _document(target: StorePath, report: CompactReport) -> dict[str, Any]:
    return {
        "url": str(target),
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
