"""``shardstore snapshots``: makes versioned stores, shows, changes and maintains their history.

``snapshots_bridges`` has the other commands of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from shardstore._sync import run_sync
from shardstore.adapters.store_paths import refuse_snapshot, snapshot_in
from shardstore.adapters.versioned.repository import Repository
from shardstore.apps.cli import snapshots_bridges
from shardstore.apps.cli.arguments import AsJson, DryRun, Shards, StorageOptions, StoreUrl, Yes, argument, parse_policy
from shardstore.apps.cli.output import ExitCode, ask, complain, print_json, print_result, show
from shardstore.apps.cli.snapshots_bridges import progress
from shardstore.errors import InvalidInput
from shardstore.format.snapshots.state import RefType, State
from shardstore.model.durations import is_duration, time_before
from shardstore.model.options import AT, MESSAGE, OLDER_THAN, SHOW, CommandOption, option
from shardstore.model.redaction import redacted
from shardstore.model.words import plural, size
from shardstore.snapshots.collect import Expired
from shardstore.snapshots.diffs import Diff
from shardstore.snapshots.inspection import Checked, StoreStats
from shardstore.snapshots.lookup import FIRST_BRANCH, SnapshotInfo, snapshot_of
from shardstore.snapshots.named import needing_pyarrow, state_at
from shardstore.snapshots.rewriting import Repacked

_CHUNKS_SHOWN = 8  # of each array
_FOLDERS = {"t/": "states", "s/": "structures", "a/": "attribute files", "m/": "manifests", "c/": "chunk files"}
_SHOWN_FINDINGS = 20


@dataclass(frozen=True)
class RefOptions:
    """The branch or tag that is made or deleted."""

    name: Annotated[str | None, argument("NAME", "Without it, all are listed.")] = None
    at: str | None = option(None, AT)
    delete: bool = option(False, "Delete it. Its snapshots stay, and can be found by their ids.")


def snapshots() -> None:
    """Make versioned stores, show and change their history, and maintain them."""


def init(*, url: StoreUrl, as_json: AsJson = False, storage: StorageOptions) -> None:
    """Make a versioned store, with the branch main and a first snapshot that holds an empty group.

    The pointer to its current state is the object catalog.json next to its files.

    Examples:
      shardstore snapshots init run.ice
      shardstore snapshots init s3://bucket/run.ice
    """
    with needing_pyarrow("to make a versioned store"):
        repository = Repository.create(url, storage_options=storage.parsed() or None)
    document = {"url": repository.url, "branch": FIRST_BRANCH, "snapshot": repository.lookup_branch(FIRST_BRANCH)} if as_json else None
    print_result(as_json, document, f"made the versioned store {redacted(repository.url)}, with the branch {FIRST_BRANCH}")


def log(
    *,
    url: Annotated[str, argument("URL[@REF]", "A versioned store, or one snapshot of it; main, if none is named.")],
    number: Annotated[int | None, SHOW] = None,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """List a snapshot and its ancestors, the newest first.

    Examples:
      shardstore snapshots log run.ice
      shardstore snapshots log s3://bucket/run.ice@v1 -n 10
    """
    options = storage.parsed()
    place = snapshot_in(url, options)
    if place is not None and place.path:
        raise InvalidInput(f"{redacted(url)} names {place.path!r} in a snapshot: the log shows whole snapshots, leave the path out")
    state = run_sync(state_at(url if place is None else place.name.target, options))
    newest = state.ref(FIRST_BRANCH, "branch").snapshot if place is None else place.pinned.snapshot_id
    found = [SnapshotInfo.of(one) for one in islice(state.ancestry(newest), number)]
    if as_json:
        print_json([_document(info) for info in found])
    else:
        _show_table(("snapshot", "time (UTC)", "message"), map(_row, found))


def branch(*, url: StoreUrl, given: RefOptions, as_json: AsJson = False, storage: StorageOptions) -> None:
    """List branches, or make one, or delete one.

    Examples:
      shardstore snapshots branch run.ice
      shardstore snapshots branch run.ice try --at v1
      shardstore snapshots branch run.ice try --delete
    """
    _refs("branch", Repository.create_branch, Repository.delete_branch, url, given, as_json, storage.parsed())


def tag(*, url: StoreUrl, given: RefOptions, as_json: AsJson = False, storage: StorageOptions) -> None:
    """List tags, or make one, or delete one. A tag never moves; the name of a deleted one can be given again.

    Examples:
      shardstore snapshots tag s3://bucket/run.ice
      shardstore snapshots tag run.ice v1
      shardstore snapshots tag run.ice v0 --at 1CZ33ZREE1WVR4D62DV0
    """
    _refs("tag", Repository.create_tag, Repository.delete_tag, url, given, as_json, storage.parsed())


def reset(
    *,
    url: StoreUrl,
    branch: Annotated[str, argument("BRANCH", "The branch that is to move.")],
    ref: Annotated[str, argument("REF", "A branch, a tag or the id of a snapshot.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Make a branch point to another snapshot. Later commits are then no longer part of the branch.

    Nothing is removed: those snapshots can be found by their ids, which this prints. If another client commits to the branch at the same
    time, nothing is changed, and the exit code is 6.

    Examples:
      shardstore snapshots reset run.ice main v1
    """
    options = storage.parsed()
    state = _state_of_whole(url, options)
    before, after = state.ref(branch, "branch").snapshot, snapshot_of(state, ref).id
    unreachable = _unreachable_after_reset(state, branch, after)
    change = f"branch {branch} of {redacted(url)} from snapshot {before} to {after}"
    if unreachable:
        change += f", and leave {plural(len(unreachable), 'snapshot')} that no branch or tag leads to: they can be found by their ids only"
    if before != after and not dry_run:
        if not yes:
            ask(f"reset {change}", "nothing was changed")
        Repository.open(url, storage_options=options or None).reset_branch(branch, after, from_snapshot_id=before)
    moved = f"is at {before}, and would be at {after}" if dry_run else f"was at snapshot {before}, and is at {after}"
    line = f"is at snapshot {after} already" if before == after else moved
    document = {"branch": branch, "before": before, "snapshot": after, "left": unreachable, "dry_run": dry_run}
    print_result(as_json, document, f"branch {branch} {line}")


def diff(
    *,
    url: StoreUrl,
    from_ref: Annotated[str, argument("FROM", "A branch, a tag or the id of a snapshot.")],
    to_ref: Annotated[str, typer.Argument(metavar="TO", help="Another one.")] = FIRST_BRANCH,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Show what differs between two snapshots: arrays and groups that are new, gone, moved or changed, and which chunks.

    No chunk is read, and of the manifests only those that the two snapshots do not share.

    Examples:
      shardstore snapshots diff run.ice v1
      shardstore snapshots diff --json s3://bucket/run.ice main try
    """
    options = storage.parsed()
    refuse_snapshot(url, options)
    with needing_pyarrow("to compare snapshots"):
        found = Repository.open(url, storage_options=options or None).diff(from_ref, to_ref)
    print_result(as_json, _document_of_diff(found) if as_json else None, *_diff_lines(found))


def expire(
    *,
    url: StoreUrl,
    older_than: Annotated[str, replace(OLDER_THAN, form="text")],
    branches: Annotated[bool, CommandOption("Delete branches, too, but for main.", group="Selection")] = False,
    tags: Annotated[bool, CommandOption("Delete tags, too.", group="Selection")] = False,
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
        CommandOption("Keep files that were needed so recently.", "TIME", "duration"),
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
        found = repository.garbage_collect(grace, dry_run=dry_run, progress=say)
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
    repack: Annotated[bool, CommandOption("Combine the chunks of a shard, too.")] = False,
    shards: Shards = "auto",
    branch: Annotated[str, CommandOption("The branch that is rewritten.", "NAME")] = FIRST_BRANCH,
    message: Annotated[str | None, MESSAGE] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Merge the manifests of each array into one, as a commit, so that reading is as fast as possible.

    When older snapshots have expired, gc can then remove chunks that were overwritten. No chunk gets another value, so it conflicts with no
    session.

    Examples:
      shardstore snapshots rewrite run.ice
      shardstore snapshots rewrite --repack -s 8,8,8 s3://bucket/run.ice --branch main
    """
    repository = _opened(url, storage.parsed(), pack=parse_policy(shards))
    said = {} if message is None else {"message": message}
    repacked: Repacked | None = None
    ids: list[str] = []
    if repack:
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


COMMANDS: Mapping[str, Callable[..., None]] = {
    "init": init,
    "log": log,
    "branch": branch,
    "tag": tag,
    "reset": reset,
    "diff": diff,
    "expire": expire,
    "gc": gc,
    "stats": stats,
    "verify": verify,
    "rewrite": rewrite,
    **snapshots_bridges.COMMANDS,
}
"""The commands of the group, by name."""


# -- stores and times -----------------------------------------------------------------------------------------------------


def _state_of_whole(url: str, options: Mapping[str, Any]) -> State:
    refuse_snapshot(url, options)
    return run_sync(state_at(url, options))


def _opened(url: str, options: dict[str, Any], pack: Any = "auto") -> Repository:
    refuse_snapshot(url, options)
    with needing_pyarrow("to look into a versioned store"):
        return Repository.open(url, storage_options=options or None, pack=pack)


def _time_before(text: str) -> datetime:
    """Return the time that a text means: a duration before now, or a time with its zone. Raises ``InvalidInput``."""
    if is_duration(text):
        return time_before("--older-than", text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as exc:
        raise InvalidInput(f"--older-than {text!r} is neither a duration, such as 30d, nor a time, such as 2026-01-31T00:00:00Z") from exc
    if found.tzinfo is None:
        midnight = "" if "T" in text or " " in text else "T00:00:00"
        raise InvalidInput(f"--older-than {text!r} has no time zone: write it as {text}{midnight}Z, or with +01:00")
    return found


# -- branches and tags -------------------------------------------------------------------------------------------------


def _refs(
    type_: RefType,
    create: Callable[[Repository, str, str], None],
    remove: Callable[[Repository, str], None],
    url: str,
    given: RefOptions,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    name, at, delete = given.name, given.at, given.delete
    if name is None and (at is not None or delete):
        raise InvalidInput(f"{'--delete' if delete else '--at'} is for one {type_}: name it behind the URL")
    if delete and at is not None:
        raise InvalidInput(f"--at is for a new {type_}, and --delete for an existing one: give one of them")
    state = _state_of_whole(url, options)
    if name is None:
        _list(state, type_, as_json)
        return
    repository = Repository.open(url, storage_options=options or None)
    if delete:
        snapshot = state.ref(name, type_).snapshot
        remove(repository, name)
    else:
        snapshot = snapshot_of(state, FIRST_BRANCH if at is None else at).id
        create(repository, name, snapshot)
    line = f"deleted {type_} {name}, which was at snapshot {snapshot}" if delete else f"made {type_} {name} at snapshot {snapshot}"
    print_result(as_json, {"name": name, "type": type_, "snapshot": snapshot, "deleted": delete}, line)


def _list(state: State, type_: RefType, as_json: bool) -> None:
    found = {name: SnapshotInfo.of(state.snapshots[ref.snapshot]) for name, ref in sorted(state.refs.items()) if ref.type == type_}
    if as_json:
        print_json([{"name": name, "type": type_, "snapshot": info.id} for name, info in found.items()])
    elif found:
        _show_table((type_, "snapshot", "time (UTC)", "message"), ((name, *_row(info)) for name, info in found.items()))
    else:
        typer.echo(f"there are no {type_}s")


def _unreachable_after_reset(state: State, branch: str, after: str) -> list[str]:
    """Return the snapshots, the newest first, that branches and tags lead to now, and not when a branch points to ``after``."""
    tips = {after, *(ref.snapshot for name, ref in state.refs.items() if name != branch)}
    kept = {snapshot.id for tip in tips for snapshot in state.ancestry(tip)}
    return [snapshot.id for snapshot in state.ancestry(state.refs[branch].snapshot) if snapshot.id not in kept]


# -- output ------------------------------------------------------------------------------------------------------------


def _row(info: SnapshotInfo) -> tuple[str, str, str]:
    return info.id, f"{info.written_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}", info.message.strip().partition("\n")[0]


def _show_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, no_wrap=title != "message")
    for row in rows:
        table.add_row(*map(Text, row))
    show(table)


def _document(info: SnapshotInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "parent": info.parent_id,
        "written_at": info.written_at.isoformat(),
        "message": info.message,
        "metadata": dict(info.metadata),
    }


_SETS = ("new_groups", "new_arrays", "deleted_groups", "deleted_arrays", "updated_groups", "updated_arrays")


def _document_of_diff(found: Diff) -> dict[str, Any]:
    return {
        **{name: sorted(getattr(found, name)) for name in _SETS},
        "moved_nodes": [list(pair) for pair in sorted(found.moved_nodes)],
        "updated_chunks": {path: [list(coords) for coords in chunks] for path, chunks in sorted(found.updated_chunks.items())},
    }


def _diff_lines(found: Diff) -> list[str]:
    lines: list[tuple[str, str]] = []
    for name in _SETS:
        did, _, kind = name.partition("_")
        lines += [(f"{did} {kind[:-1]}", path or "/") for path in sorted(getattr(found, name))]
    lines += [("moved", f"{before or '/'} to {after or '/'}") for before, after in sorted(found.moved_nodes)]
    lines += [("chunks", f"{path or '/'}: {_named_chunks(chunks)}") for path, chunks in sorted(found.updated_chunks.items())]
    return [f"{label:<15}{text}" for label, text in lines] or ["nothing differs"]


def _named_chunks(chunks: Sequence[Sequence[int]]) -> str:
    named = ", ".join("/".join(map(str, coords)) or "the only one" for coords in chunks[:_CHUNKS_SHOWN])
    more = f" and {len(chunks) - _CHUNKS_SHOWN:,} more" if len(chunks) > _CHUNKS_SHOWN else ""
    return f"{plural(len(chunks), 'chunk')}, {named}{more}"


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
