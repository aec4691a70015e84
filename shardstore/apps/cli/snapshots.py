"""``shardstore snapshots``: makes versioned stores, and shows and changes their history.

``snapshots_upkeep`` and ``snapshots_bridges`` have the other commands of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from itertools import islice
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from shardstore._sync import run_sync
from shardstore.adapters.store_paths import refuse_snapshot, snapshot_in
from shardstore.adapters.versioned.repository import Repository
from shardstore.apps.cli import snapshots_bridges, snapshots_upkeep
from shardstore.apps.cli.arguments import AsJson, StorageOptions, StoreUrl, Yes, argument
from shardstore.apps.cli.output import ask, print_json, print_result, show
from shardstore.errors import InvalidInput
from shardstore.format.snapshots.state import RefType, State
from shardstore.model.options import option
from shardstore.model.redaction import redacted
from shardstore.model.words import plural
from shardstore.snapshots.diffs import Diff
from shardstore.snapshots.lookup import FIRST_BRANCH, SnapshotInfo, snapshot_of
from shardstore.snapshots.named import needing_pyarrow, state_at

_CHUNKS_SHOWN = 8  # of each array


@dataclass(frozen=True)
class RefOptions:
    """The branch or tag that is made or deleted."""

    name: Annotated[str | None, argument("[NAME]", "Without it, all are listed.")] = None
    at: str | None = option(None, "The snapshot: a branch, a tag or an id; main, if not given.", "REF")
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
    number: Annotated[int | None, typer.Option("-n", metavar="N", help="The newest N only.", min=1, show_default=False)] = None,
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
    """List tags, or make one, or delete one. A tag never points elsewhere; the name of a deleted one can be given again.

    Examples:

        shardstore snapshots tag s3://bucket/run.ice

        shardstore snapshots tag run.ice v1

        shardstore snapshots tag run.ice v0 --at 1CZ33ZREE1WVR4D62DV0
    """
    _refs("tag", Repository.create_tag, Repository.delete_tag, url, given, as_json, storage.parsed())


def reset(
    *,
    url: StoreUrl,
    branch: Annotated[str, argument("BRANCH", "The branch that is to point elsewhere.")],
    ref: Annotated[str, argument("REF", "A branch, a tag or the id of a snapshot.")],
    yes: Yes = False,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Let a branch point to another snapshot. Later commits are then no longer part of the branch.

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
    if before != after:
        if not yes:
            ask(f"reset {change}", "nothing was changed")
        Repository.open(url, storage_options=options or None).reset_branch(branch, after, from_snapshot_id=before)
    line = f"is at snapshot {after} already" if before == after else f"was at snapshot {before}, and is at {after}"
    print_result(as_json, {"branch": branch, "before": before, "snapshot": after, "left": unreachable}, f"branch {branch} {line}")


def diff(
    *,
    url: StoreUrl,
    from_ref: Annotated[str, argument("FROM", "A branch, a tag or the id of a snapshot.")],
    to_ref: Annotated[str, typer.Argument(metavar="[TO]", help="Another one.")] = FIRST_BRANCH,
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


COMMANDS: Mapping[str, Callable[..., None]] = {
    "init": init,
    "log": log,
    "branch": branch,
    "tag": tag,
    "reset": reset,
    "diff": diff,
    **snapshots_upkeep.COMMANDS,
    **snapshots_bridges.COMMANDS,
}
"""The commands of the group, by name."""


# -- stores ------------------------------------------------------------------------------------------------------------


def _state_of_whole(url: str, options: Mapping[str, Any]) -> State:
    refuse_snapshot(url, options)
    return run_sync(state_at(url, options))


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
