"""The commands of ``shardstore snapshots`` that carry whole histories into other formats, and back: ``export`` and ``import``.

A form of export is a member of ``Form`` and a function in ``_EXPORTS``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

import typer

from shardstore.adapters.versioned.repository import Repository
from shardstore.cli.arguments import AsJson, PairOptions
from shardstore.cli.output import complain, plural, print_json
from shardstore.cli.progress import Step, step_bar
from shardstore.cli.target import pair_options, refuse_snapshot
from shardstore.snapshots.named import needing_pyarrow
from shardstore.snapshots.reachable import Progress
from shardstore.snapshots.versioned_store import FIRST_BRANCH
from shardstore.storage.redaction import redacted


class Form(Enum):
    """What a versioned store can become."""

    ICECHUNK = "icechunk"


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export did: a line for people, and members of the JSON document."""

    line: str
    document: Mapping[str, Any]
    warning: str = ""


VirtualPrefix = Annotated[
    list[str] | None,
    typer.Option(
        "--virtual-prefix",
        metavar="URL",
        help="Below which chunks may be that lie elsewhere, with / at its end; may be repeated.",
        show_default=False,
    ),
]


def export(
    *,
    url: Annotated[str, typer.Argument(metavar="SRC", help="A versioned store: a path, URL or chain of URLs.", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="DST", help="A folder or URL at which there is nothing.", show_default=False)],
    to: Annotated[Form, typer.Option("--to", help="The format that the store becomes.", show_default=False)],
    prefix: VirtualPrefix = None,
    as_json: AsJson = False,
    storage: PairOptions,
) -> None:
    """Write the history of a versioned store in another format.

    icechunk: a repository of Icechunk with all snapshots, branches and tags, which xarray and other programs read. No chunk is copied:
    virtual references lead into the chunk files of SRC, so nothing of SRC may be removed as long as DST is used. Messages and metadata are
    kept, and the metadata of each commit has the id and the time of its snapshot. Branches and tags are made last: an export that was
    interrupted shows an empty branch main.

    Examples:

        shardstore snapshots export run.ice out.icechunk --to icechunk

        shardstore snapshots export s3://bucket/run.ice s3://bucket/out --to icechunk
    """
    given = storage.parsed()
    refuse_snapshot(url, given)
    of_source, of_target = (dict(options) for options in pair_options(url, target, given, storage.parsed_target()))
    with needing_pyarrow("to look into a versioned store"):
        repository = Repository.open(url, storage_options=of_source or None, virtual_prefixes=prefix or ())
    with _progress() as say:
        done = _EXPORTS[to](repository, target, of_target, say)
    if done.warning:
        complain("warning", done.warning)
    if as_json:
        print_json({"to": to.value, **done.document})
    else:
        typer.echo(done.line)


def import_(
    *,
    source: Annotated[str, typer.Argument(metavar="SRC", help="A repository of Icechunk: a folder or URL.", show_default=False)],
    url: Annotated[str, typer.Argument(metavar="DST", help="Where the versioned store goes.", show_default=False)],
    copy: Annotated[bool, typer.Option("--copy", help="Copy the chunks of SRC, instead of referring to them.")] = False,
    prefix: VirtualPrefix = None,
    as_json: AsJson = False,
    storage: PairOptions,
) -> None:
    """Make a versioned store of the whole history of a repository of Icechunk: snapshots, branches, tags, messages, metadata and times.

    Chunks stay where they are, unless --copy is given: then nothing of SRC may be removed as long as DST is used, and who opens DST from
    Python gives virtual_prefixes. It needs icechunk 2, and reads what icechunk 1 has written too. DST is there when all of it is.

    Examples:

        shardstore snapshots import theirs run.ice --copy

        shardstore snapshots import s3://bucket/theirs s3://bucket/run.ice
    """
    given = storage.parsed()
    of_source, of_target = (dict(options) for options in pair_options(source, url, given, storage.parsed_target()))
    _silence_icechunk()
    with needing_pyarrow("to make a versioned store"), _progress() as say:
        made = Repository.import_icechunk(
            source,
            url,
            copy=copy,
            source_options=of_source,
            storage_options=of_target or None,
            virtual_prefixes=prefix or (),
            progress=say,
        )
    branches, tags = len(made.list_branches()), len(made.list_tags())
    tips = [made.lookup(name) for name in (*made.list_branches(), *made.list_tags())]
    snapshots = len({one.id for tip in tips for one in made.ancestry(snapshot_id=tip)})
    if as_json:
        print_json(
            {
                "url": made.url,
                "snapshot": made.lookup_branch(FIRST_BRANCH),
                "snapshots": snapshots,
                "branches": branches,
                "tags": tags,
                "virtual_prefixes": list(made.virtual_prefixes),
            }
        )
        return
    amounts = f"{plural(snapshots, 'snapshot')}, {_named(branches, tags)}"
    typer.echo(f"made the versioned store {redacted(made.url)} of {redacted(source)}, with {amounts}")
    if made.virtual_prefixes:
        typer.echo(f"open it with virtual_prefixes={list(map(redacted, made.virtual_prefixes))}")


COMMANDS: Mapping[str, Callable[..., None]] = {"export": export, "import": import_}
"""The commands, by name."""


# -- forms -------------------------------------------------------------------------------------------------------------


def _to_icechunk(repository: Repository, target: str, options: Mapping[str, Any], say: Progress) -> Exported:
    _silence_icechunk()
    done = repository.export_icechunk(target, target_options=options, progress=say)
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
            "virtual_prefixes": sorted(done.authorize_virtual_chunk_access),
        },
        f"{plural(done.without_bytes, 'chunk')} of no bytes were left out: icechunk does not store them" if done.without_bytes else "",
    )


_EXPORTS: Mapping[Form, Callable[[Repository, str, Mapping[str, Any], Progress], Exported]] = {Form.ICECHUNK: _to_icechunk}


def _silence_icechunk() -> None:
    """Let icechunk print errors only: it warns of every local folder, on stdout in version 1."""
    os.environ.setdefault("ICECHUNK_LOG", "error")  # read when it is imported


def _named(branches: int, tags: int) -> str:
    return f"{branches:,} {'branch' if branches == 1 else 'branches'} and {plural(tags, 'tag')}"


@contextmanager
def _progress() -> Iterator[Progress]:
    with step_bar() as bar:
        yield lambda what, done, total: bar(Step(what, done, total, noun="snapshots"))
