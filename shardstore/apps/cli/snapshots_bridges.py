"""The commands of ``shardstore snapshots`` that lead into other formats, and back: ``adopt``, ``import`` and ``export``.

A form of export is a member of ``Form`` and a function in ``_EXPORTS``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Annotated, Any
from uuid import uuid4

from shardstore import references
from shardstore._sync import run_sync
from shardstore.adapters.store_paths import pair_options, refuse_snapshot
from shardstore.adapters.versioned.repository import Repository
from shardstore.adapters.versioned.session import Session
from shardstore.apps.cli.arguments import AsJson, DryRun, PairOptions, StorageOptions, VirtualPrefix, argument, parse_policy
from shardstore.apps.cli.output import complain, print_result
from shardstore.errors import InvalidInput
from shardstore.format.metadata_v3 import is_array
from shardstore.model.options import AT, CHUNKS_PER_SHARD, DRY_RUN, MESSAGE, CommandOption, option
from shardstore.model.redaction import redacted
from shardstore.model.words import plural
from shardstore.progress.shown import step_bar
from shardstore.references.places import JSON_SUFFIXES, open_set
from shardstore.snapshots.lookup import FIRST_BRANCH
from shardstore.snapshots.named import needing_pyarrow
from shardstore.snapshots.reachable import Progress, step_of


class Form(Enum):
    """The formats that a versioned store can be exported to."""

    ICECHUNK = "icechunk"
    ZARR = "zarr"
    REFERENCES = "references"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The options of an export, apart from the format."""

    at: str | None = option(None, AT)
    chunks_per_shard: str | None = option(None, CHUNKS_PER_SHARD)
    check: bool = option(True, "zarr: do not compare the result with the snapshot.")
    virtual_prefix: VirtualPrefix = None
    dry_run: bool = option(False, DRY_RUN)
    policy: Any = "auto"
    """``chunks_per_shard``, parsed."""
    target_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def snapshot(self) -> str:
        """The branch, tag or id of the snapshot that is meant."""
        return FIRST_BRANCH if self.at is None else self.at


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export: a line for people, and members of the JSON document."""

    line: str
    document: Mapping[str, Any]
    warning: str = ""


def export(
    *,
    url: Annotated[str, argument("SRC", "A versioned store: a path, URL or chain of URLs.")],
    target: Annotated[str, argument("DST", "A folder or URL at which there is nothing.")],
    to: Annotated[Form, CommandOption("What the store becomes.", "|".join(form.value for form in Form))],
    request: ExportRequest,
    as_json: AsJson = False,
    storage: PairOptions,
) -> None:
    """Write a versioned store in another format: icechunk with its whole history; zarr and references one snapshot.

    icechunk: a repository of Icechunk with all snapshots, branches and tags. No chunk is copied: DST needs the files of SRC.

    zarr: a sharded hierarchy, which does not need SRC. The result is compared with the snapshot. After an interruption, the same command
    continues.

    references: a set of references into the files of SRC, in JSON if DST ends in .json, else in Parquet. No chunk is copied.

    Examples:
      shardstore snapshots export run.ice out.icechunk --to icechunk
      shardstore snapshots export s3://bucket/run.ice s3://bucket/out --to icechunk
      shardstore snapshots export s3://bucket/run.ice s3://bucket/out.zarr --to zarr --at v1
      shardstore snapshots export run.ice run.json --to references
    """
    for_zarr = {"-s": request.chunks_per_shard is not None, "--no-check": not request.check}
    refused = [name for name, is_given in for_zarr.items() if is_given and to is not Form.ZARR]
    refused += ["--at"] if request.at is not None and to is Form.ICECHUNK else []
    if refused:
        raise InvalidInput(f"{refused[0]} cannot be used with --to {to.value}")
    policy = "auto" if request.chunks_per_shard is None else parse_policy(request.chunks_per_shard)
    refuse_snapshot(url, storage.parsed())
    source_options, target_options = storage.parsed_pair(url, target)
    with needing_pyarrow("to look into a versioned store"):
        repository = Repository.open(url, storage_options=source_options or None, virtual_prefixes=request.virtual_prefix or ())
    with progress("snapshots") as say:
        done = _EXPORTS[to](repository, target, replace(request, policy=policy, target_options=target_options), say)
    if done.warning:
        complain("warning", done.warning)
    print_result(as_json, {"to": to.value, **done.document}, done.line)


def import_(
    *,
    source: Annotated[str, argument("SRC", "A repository of Icechunk: a folder or URL.")],
    url: Annotated[str, argument("DST", "Where the versioned store goes.")],
    copy: Annotated[bool, CommandOption("Copy the chunks of SRC, instead of referring to them.")] = False,
    virtual_prefix: VirtualPrefix = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    storage: PairOptions,
) -> None:
    """Make a versioned store of the whole history of a repository of Icechunk: snapshots, branches, tags, messages, metadata and times.

    Chunks stay in SRC, and no file of SRC may be removed as long as DST is used; --copy copies the chunks. Programs that open DST in Python
    have to give virtual_prefixes. The command needs icechunk 2, and also reads repositories of icechunk 1. DST appears when it is complete.

    Examples:
      shardstore snapshots import theirs run.ice --copy
      shardstore snapshots import s3://bucket/theirs s3://bucket/run.ice
    """
    source_options, target_options = storage.parsed_pair(source, url)
    _silence_icechunk()
    with needing_pyarrow("to make a versioned store"), progress("snapshots") as say, _place_for(url, target_options, dry_run) as place:
        made = Repository.import_icechunk(
            source,
            place,
            copy=copy and not dry_run,  # in memory by reference
            source_options=source_options,
            storage_options=None if dry_run else target_options or None,
            virtual_prefixes=virtual_prefix or (),
            progress=say,
        )
        counts = _counts_of(made)
        snapshot, prefixes = made.lookup_branch(FIRST_BRANCH), list(made.virtual_prefixes)
    if dry_run and copy:
        prefixes = list(virtual_prefix or ())
    shown = url if dry_run else made.url
    amounts = f"{plural(counts['snapshots'], 'snapshot')}, {_named(counts['branches'], counts['tags'])}"
    lines = [f"{'would make' if dry_run else 'made'} the versioned store {redacted(shown)} of {redacted(source)}, with {amounts}"]
    if prefixes and not dry_run:
        lines.append(f"open it with virtual_prefixes={list(map(redacted, prefixes))}")
    print_result(as_json, {"url": shown, "dry_run": dry_run, "snapshot": snapshot, **counts, "virtual_prefixes": prefixes}, *lines)


def adopt(
    *,
    source: Annotated[str, argument("SRC", "A Zarr hierarchy, sharded or not, or reference::URL.")],
    url: Annotated[str, argument("URL", "Where the versioned store goes.")],
    message: Annotated[str, MESSAGE] = "Adopted",
    virtual_prefix: VirtualPrefix = None,
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
    with needing_pyarrow("to make a versioned store"), progress("chunks") as say, _place_for(url, target_options, dry_run) as place:
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
    lines = [f"would make the versioned store {redacted(url)}" if dry_run else f"made the versioned store {redacted(made.url)}"]
    lines[0] += f", with {plural(found.references, 'reference')} to chunks of {redacted(source)}"
    if not dry_run:
        lines.append(f"open it with virtual_prefixes={list(map(redacted, made.virtual_prefixes))}")
    snapshot = made.lookup_branch(FIRST_BRANCH) if as_json and not dry_run else None
    document = {"url": None if dry_run else made.url, "snapshot": snapshot, "references": found.references, "dry_run": dry_run}
    print_result(as_json, document | {"virtual_prefixes": list(made.virtual_prefixes)}, *lines)


@contextmanager
def _place_for(url: str, options: dict[str, Any], dry_run: bool) -> Iterator[str]:
    """Yield the URL at which a versioned store is made: of a dry run a place in memory, which is gone after the block.

    Raises:
        InvalidInput: there would be a versioned store at the URL already.
    """
    if not dry_run:
        yield url
        return
    if Repository.exists(url, storage_options=options or None):
        raise InvalidInput(f"there is a versioned store at {redacted(url)} already: choose another place. Nothing was changed")
    place = f"memory://shardstore-{uuid4().hex}"
    yield place
    Repository.open(place).destroy(yes=True)


def _counts_of(made: Repository) -> dict[str, int]:
    branches, tags = made.list_branches(), made.list_tags()
    tips = [made.lookup(name) for name in (*branches, *tags)]
    snapshots = {one.id for tip in tips for one in made.ancestry(snapshot_id=tip)}
    return {"snapshots": len(snapshots), "branches": len(branches), "tags": len(tags)}


COMMANDS: Mapping[str, Callable[..., None]] = {"adopt": adopt, "export": export, "import": import_}
"""The commands, by name."""


# -- forms -------------------------------------------------------------------------------------------------------------


def _to_icechunk(repository: Repository, target: str, request: ExportRequest, say: Progress) -> Exported:
    _silence_icechunk()
    done = repository.export_icechunk(target, target_options=request.target_options, progress=say, dry_run=request.dry_run)
    if request.dry_run:
        document = {"snapshots": len(done.snapshots), "branches": done.branches, "tags": done.tags, "dry_run": True}
        named = f"{plural(len(done.snapshots), 'snapshot')}, {_named(done.branches, done.tags)}"
        return Exported(f"would write {named} to {redacted(done.location)}", document)
    chunks = f"{plural(done.references, 'reference')}, {done.copied:,} of them copied"
    line = f"wrote {plural(len(done.snapshots), 'snapshot')}, {_named(done.branches, done.tags)} to {redacted(done.location)}: {chunks}"
    return Exported(
        line,
        {
            "location": done.location,
            "snapshots": dict(done.snapshots),
            "branches": done.branches,
            "tags": done.tags,
            "references": done.references,
            "copied": done.copied,
            "without_bytes": done.without_bytes,
            "texts": done.texts,
            "virtual_prefixes": sorted(done.authorize_virtual_chunk_access),
        },
        "; ".join(
            [f"{plural(done.without_bytes, 'chunk')} of no bytes were left out: icechunk does not store them"] * bool(done.without_bytes)
            + [f"numbers that are not finite became texts in the attributes of {plural(done.texts, 'node')}"] * bool(done.texts)
        ),
    )


def _to_zarr(repository: Repository, target: str, request: ExportRequest, say: Progress) -> Exported:
    done = repository.export_zarr(
        target,
        request.snapshot,
        check=request.check,
        checked=lambda objects, _nbytes, total: say("comparing objects", objects, total),
        chunks_per_shard=request.policy,
        dry_run=request.dry_run,
        target_options=dict(request.target_options),
        progress=lambda now: say(now.phase, now.objects, now.total_objects),
    )
    if request.dry_run:
        amount = f"{plural(done.objects_before, 'object')} of {request.snapshot} would become about {plural(done.objects_after, 'object')}"
        return Exported("\n".join([f"{amount} at {redacted(done.target)}", *done.notes]), done.to_json())
    packed = f"{plural(done.chunks, 'chunk')} in {plural(done.done, 'object')}, {done.copied:,} of them copied unchanged"
    compared = "compared with the snapshot" if request.check else "not compared"
    return Exported(f"wrote {request.snapshot} to {redacted(done.target)}: {packed}; {compared}", done.to_json())


def _to_references(repository: Repository, target: str, request: ExportRequest, say: Progress) -> Exported:
    session = repository.readonly_session(snapshot_id=repository.lookup(request.snapshot))
    place = open_set(target, request.target_options, is_directory=not target.endswith(JSON_SUFFIXES))
    if run_sync(place.storage.stat(place.main_key)) is not None:
        raise InvalidInput(
            f"there is something at {place.shown} already: choose another place, or replace a set of references by `shardstore refs write "
            "--overwrite`. Nothing was written"
        )
    if request.dry_run:
        amount = sum(len(run_sync(session.storage.known_references(path)).coords) for path in _arrays_of(session))
        return Exported(f"would write {plural(amount, 'reference')} to {redacted(target)}", {"references": amount, "dry_run": True})
    write = references.write_json if target.endswith(JSON_SUFFIXES) else references.write_parquet
    done = write(
        session.storage,
        target,
        target_options=dict(request.target_options),
        progress=lambda now: say("writing references", now.references, None),
    )
    return Exported(f"wrote {plural(done.references, 'reference')} to chunks of {request.snapshot} to {redacted(target)}", asdict(done))


def _arrays_of(session: Session) -> list[str]:
    documents = run_sync(session.storage.known_documents())
    return [path for path, document in documents.items() if is_array(document)]


_EXPORTS: Mapping[Form, Callable[[Repository, str, ExportRequest, Progress], Exported]] = {
    Form.ICECHUNK: _to_icechunk,
    Form.ZARR: _to_zarr,
    Form.REFERENCES: _to_references,
}


def _silence_icechunk() -> None:
    """Let icechunk print errors only: it warns of every local folder, on stdout in version 1."""
    os.environ.setdefault("ICECHUNK_LOG", "error")  # read when it is imported


def _named(branches: int, tags: int) -> str:
    return f"{branches:,} {'branch' if branches == 1 else 'branches'} and {plural(tags, 'tag')}"


@contextmanager
def progress(noun: str) -> Iterator[Progress]:
    """Show progress in files, chunks or snapshots during the block, if stderr is a terminal or it takes long."""
    with step_bar() as bar:
        yield lambda what, done, total: bar(step_of(noun)(what, done, total))
