"""Commands of ``shardstore snapshots`` that maintain a store: ``expire``, ``gc``, ``stats``, ``verify``, ``rewrite`` and ``adopt``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from shardstore.adapters.store_paths import pair_options, refuse_snapshot
from shardstore.adapters.versioned.repository import Repository
from shardstore.apps.cli.arguments import AsJson, DryRun, Shards, StorageOptions, StoreUrl, Yes, argument, parse_policy
from shardstore.apps.cli.output import ExitCode, ask, complain, print_json, print_result
from shardstore.apps.cli.snapshots_bridges import place_for, progress
from shardstore.errors import InvalidInput
from shardstore.model.options import CommandOption
from shardstore.model.redaction import redacted
from shardstore.model.words import plural, size
from shardstore.snapshots.collect import Expired
from shardstore.snapshots.inspection import Checked, StoreStats
from shardstore.snapshots.lookup import FIRST_BRANCH
from shardstore.snapshots.named import needing_pyarrow
from shardstore.snapshots.rewriting import Repacked

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_FOLDERS = {"t/": "states", "s/": "structures", "a/": "attribute files", "m/": "manifests", "c/": "chunk files"}
_SHOWN_FINDINGS = 20


def expire(
    *,
    url: StoreUrl,
    older_than: Annotated[str, CommandOption("A duration, as 30d, 12h or 8w; or a time with its zone, as 2026-01-31T00:00:00Z.", "TIME")],
    branches: Annotated[bool, CommandOption("Delete branches whose snapshot is older, too, but for main.")] = False,
    tags: Annotated[bool, CommandOption("Delete tags whose snapshot is older, too.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Remove old snapshots from the history: those to which no branch and no tag points.

    No file is removed: snapshots gc does that later. What branches and tags show stays unchanged.

    Examples:

        shardstore snapshots expire run.ice --older-than 30d --dry-run

        shardstore snapshots expire s3://bucket/run.ice --older-than 2026-01-31T00:00:00Z --yes
    """
    before = _time_before(older_than)
    repository = _opened(url, storage.parsed())
    flags = {"delete_expired_branches": branches, "delete_expired_tags": tags}
    found = repository.expire_snapshots(before, **flags, dry_run=True)
    if not dry_run and _is_any(found):
        if not yes:
            ask(f"let {_expired_names(found)} of {redacted(url)} expire", "nothing was changed")
        found = repository.expire_snapshots(before, **flags)
    document = {name: sorted(getattr(found, name)) for name in ("snapshots", "branches", "tags")} | {"dry_run": dry_run}
    expired = f"{_expired_names(found)} {'would expire' if dry_run else 'expired'}" if _is_any(found) else "nothing has expired"
    print_result(as_json, document, expired)


def gc(
    *,
    url: StoreUrl,
    grace: Annotated[
        str,
        CommandOption(
            "Keep files that were unreferenced for less than this (7d, 12h, 0). It has to be longer than any session.", "DURATION"
        ),
    ] = "7d",
    dry_run: DryRun = False,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Remove the files that no snapshot needs: of snapshots that have expired, and of sessions that were never committed.

    The time counts from the gc that first finds a file: the first run only records the files, unless --grace is 0. Commits may happen at
    the same time. If it was interrupted, run it again.

    Examples:

        shardstore snapshots gc run.ice --dry-run

        shardstore snapshots gc s3://bucket/run.ice --grace 2d
    """
    repository = _opened(url, storage.parsed())
    with progress("files") as say:
        found = repository.garbage_collect(_duration("--grace", grace), dry_run=dry_run, progress=say)
    if as_json:
        print_json(asdict(found) | {"dry_run": dry_run})
        return
    removed = ", ".join(plural(n, _FOLDERS[folder].removesuffix("s")) for folder, n in found.removed.items())
    verb = "would remove" if dry_run else "removed"
    typer.echo(f"{verb} {removed} of {size(found.removed_nbytes)}" if removed else f"nothing {'would be' if dry_run else 'was'} removed")
    if found.left:
        typer.echo(
            f"{plural(found.left, 'file')} of {size(found.left_nbytes)} that no snapshot needs stay until {grace} after they were found"
        )
    if found.unknown:
        complain("warning", f"{plural(found.unknown, 'file')} with names that this store does not give were left alone")


def stats(*, url: StoreUrl, as_json: AsJson = False, storage: StorageOptions) -> None:
    """Show how much a versioned store has: snapshots, files and bytes, and what of them no snapshot needs.

    Examples:

        shardstore snapshots stats run.ice
    """
    repository = _opened(url, storage.parsed())
    with progress("files") as say:
        found = repository.stats(say)
    print_result(as_json, asdict(found), *(f"{label:<22}{text}" for label, text in _stats_rows(found)))


def verify(*, url: StoreUrl, as_json: AsJson = False, storage: StorageOptions) -> None:
    """Check that every file that a snapshot needs exists and is complete, and that all references lie inside of their files.

    The bytes of chunks are not read: shardstore verify URL@REF does that for one snapshot. The exit code is 5 if something is wrong.

    Examples:

        shardstore snapshots verify run.ice

        shardstore verify run.ice@main
    """
    repository = _opened(url, storage.parsed())
    with progress("files") as say:
        found = repository.verify(say)
    if as_json:
        print_json(asdict(found) | {"is_sound": found.is_sound})
    else:
        typer.echo(_check_line(found))
        for one in found.findings[:_SHOWN_FINDINGS]:
            complain(one.kind, f"{one.message} (needed by {plural(len(one.snapshots), 'snapshot')}, such as {one.snapshots[0]})")
        if len(found.findings) > _SHOWN_FINDINGS:
            complain("failed", f"{len(found.findings) - _SHOWN_FINDINGS:,} more: --json names all")
    if not found.is_sound:
        raise typer.Exit(ExitCode.CORRUPT)


def rewrite(
    *,
    url: StoreUrl,
    chunks: Annotated[bool, CommandOption("Also combine chunks of one shard that several commits wrote.")] = False,
    shards: Shards = "auto",
    branch: Annotated[str, CommandOption("The branch whose tip is rewritten.", "NAME")] = FIRST_BRANCH,
    message: Annotated[str | None, CommandOption("Of the commit.", "TEXT", flags=("--message", "-m"))] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Merge the manifests of each array into one, as a commit, so that reading is as fast as possible.

    When older snapshots have expired, gc can then remove chunks that were overwritten. No chunk gets another value, so it conflicts with no
    session.

    Examples:

        shardstore snapshots rewrite run.ice

        shardstore snapshots rewrite --chunks -s 8,8,8 s3://bucket/run.ice --branch main
    """
    repository = _opened(url, storage.parsed(), pack=parse_policy(shards))
    said = {} if message is None else {"message": message}
    repacked: Repacked | None = None
    ids: list[str] = []
    if chunks:
        with progress("files") as say:
            snapshot, repacked = repository.repack(branch=branch, dry_run=dry_run, progress=say, **said)
        ids += [snapshot] if snapshot is not None else []
    snapshot = repository.rewrite_manifests(branch=branch, dry_run=dry_run, **said)
    if as_json:
        ids += [snapshot] if snapshot is not None and not dry_run else []
        merges = snapshot is not None
        print_json(
            {"snapshots": ids, "merges_manifests": merges, "repacked": None if repacked is None else asdict(repacked), "dry_run": dry_run}
        )
        return
    if repacked is not None and repacked.cells:
        were = f"{plural(repacked.chunks, 'chunk')} of {size(repacked.nbytes)}"
        typer.echo(f"{were} {'would be' if dry_run else 'were'} put together in {plural(repacked.cells, 'chunk file')}")
    if dry_run:
        typer.echo("manifests would be merged" if snapshot is not None else "no manifests would be merged")
        return
    ids += [snapshot] if snapshot is not None else []
    typer.echo(f"branch {branch} is at snapshot {ids[-1]}" if ids else "there was nothing to do")


def adopt(
    *,
    source: Annotated[str, argument("SRC", "A Zarr hierarchy, sharded or not, or reference::URL.")],
    url: Annotated[str, argument("URL", "Where the versioned store goes.")],
    message: Annotated[str, CommandOption("The message of the commit.", "TEXT", flags=("--message", "-m"))] = "Adopted",
    virtual_prefix: Annotated[
        list[str] | None, CommandOption("A URL, with / at its end, below which the objects of a set of references may lie.", "URL")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Make a versioned store of a hierarchy that exists, without copying a chunk: from then on it has a history.

    Chunks stay in the shards of SRC. Do not change SRC: if an object there is replaced, reading it is an error. Programs that open the
    store in Python have to give virtual_prefixes=["SRC/"].

    Examples:

        shardstore snapshots adopt data.zarr data.ice

        shardstore snapshots adopt s3://bucket/data.zarr s3://bucket/data.ice -m "as of today"
    """
    source_options, target_options = map(dict, pair_options(source, url, storage.parsed(), None))
    with needing_pyarrow("to make a versioned store"), progress("chunks") as say, place_for(url, target_options, dry_run) as place:
        made = Repository.adopt(
            source,
            place,
            message=message,
            source_options=source_options or None,
            progress=say,
            storage_options=None if dry_run else target_options or None,
            virtual_prefixes=virtual_prefix or (),
        )
        found = made.stats()
    if as_json:
        snapshot = None if dry_run else made.lookup_branch(FIRST_BRANCH)
        document = {"url": None if dry_run else made.url, "snapshot": snapshot, "references": found.references, "dry_run": dry_run}
        print_json(document | {"virtual_prefixes": list(made.virtual_prefixes)})
        return
    said = f"would make the versioned store {redacted(url)}" if dry_run else f"made the versioned store {redacted(made.url)}"
    typer.echo(f"{said}, with {plural(found.references, 'reference')} to chunks of {redacted(source)}")
    if not dry_run:
        typer.echo(f"open it with virtual_prefixes={list(map(redacted, made.virtual_prefixes))}")


COMMANDS: Mapping[str, Callable[..., None]] = {
    "expire": expire,
    "gc": gc,
    "stats": stats,
    "verify": verify,
    "rewrite": rewrite,
    "adopt": adopt,
}
"""The commands, by name."""


# -- arguments ---------------------------------------------------------------------------------------------------------


def _opened(url: str, options: dict[str, Any], pack: Any = "auto") -> Repository:
    refuse_snapshot(url, options)
    with needing_pyarrow("to look into a versioned store"):
        return Repository.open(url, storage_options=options or None, pack=pack)


def _duration(name: str, text: str) -> timedelta:
    """Return a duration such as 7d. Raises ``InvalidInput``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if found is None or (found[2] not in _UNITS and float(found[1])):
        raise InvalidInput(f"{name} {text!r} is no duration: give a number and a unit, such as 12h, 7d or 8w")
    try:
        return timedelta(seconds=float(found[1]) * _UNITS.get(found[2], 1))
    except OverflowError as exc:
        raise InvalidInput(f"{name} {text!r} is longer than a time can be: give a shorter one, such as 7d") from exc


def _time_before(text: str) -> datetime:
    """Return the time that a text means: a duration before now, or a time with its zone. Raises ``InvalidInput``."""
    if re.match(r"\d+(\.\d+)?\s*[a-z]*$", text.strip().lower()):
        try:
            return datetime.now(UTC) - _duration("--older-than", text)
        except OverflowError as exc:
            raise InvalidInput(f"--older-than {text!r} is before all times: give a shorter one, such as 30d") from exc
    try:
        found = datetime.fromisoformat(text)
    except ValueError as exc:
        raise InvalidInput(f"--older-than {text!r} is neither a duration, such as 30d, nor a time, such as 2026-01-31T00:00:00Z") from exc
    if found.tzinfo is None:
        midnight = "" if "T" in text or " " in text else "T00:00:00"
        raise InvalidInput(f"--older-than {text!r} has no time zone: write it as {text}{midnight}Z, or with +01:00")
    return found


# -- output ------------------------------------------------------------------------------------------------------------


def _is_any(found: Expired) -> bool:
    return bool(found.snapshots or found.branches or found.tags)


def _expired_names(found: Expired) -> str:
    parts = [plural(len(found.snapshots), "snapshot")]
    parts += [f"{kind} {name}" for kind, names in (("branch", found.branches), ("tag", found.tags)) for name in sorted(names)]
    return ", ".join(parts)


def _stats_rows(found: StoreStats) -> Iterator[tuple[str, str]]:
    yield "snapshots", f"{found.snapshots:,}"
    yield "branches and tags", f"{found.branches:,} and {found.tags:,}"
    for folder, amount in found.stored.items():
        yield _FOLDERS[folder], f"{amount.files:,} of {size(amount.nbytes)}"
    yield "needed by no snapshot", f"{plural(found.unneeded.files, 'file')} of {size(found.unneeded.nbytes)}"
    yield "arrays and groups", f"{found.arrays:,} and {found.groups:,} on {FIRST_BRANCH}"
    yield "references", f"{found.references:,}, in up to {plural(found.most_levels, 'manifest')} for an array"


def _check_line(found: Checked) -> str:
    looked = (
        f"{plural(found.snapshots, 'snapshot')}, {plural(found.structures, 'structure')}, {plural(found.manifests, 'manifest')}, "
        f"{plural(found.references, 'reference')}, {plural(found.chunk_files, 'chunk file')}"
    )
    return f"{looked}: {'all are there and whole' if found.is_sound else plural(len(found.findings), 'finding')}"
