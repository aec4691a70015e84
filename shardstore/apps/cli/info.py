"""``shardstore info`` and ``report``: the content of a store, how it is stored, its state, and the abilities of the storage."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardstore._sync import run_sync
from shardstore.adapters.store_paths import StorePath, resolve
from shardstore.adapters.tools.versions import rows_of, runtime_facts
from shardstore.apps.cli.arguments import AsJson, OptionsJson, StorageOptions, Url, argument, storage_options
from shardstore.apps.cli.execution import check_writable
from shardstore.apps.cli.output import ExitCode, alike, end, print_json, progress_bar, show, show_more, wrapped
from shardstore.apps.reports.facts import MOST_ARRAYS, store_document
from shardstore.apps.reports.reporting import Report, page_module, report_on, write_whole
from shardstore.apps.reports.words import abilities, array_rows, no_v3, presented_as, stored_as, writers
from shardstore.errors import InvalidInput, NotFound
from shardstore.maintenance.survey.run import ArraySurvey, StorageFacts, Stored, Survey, storage_facts, survey
from shardstore.model.options import CommandOption, option
from shardstore.model.words import plural, shape, size


def info(
    *,
    url: Annotated[str | None, argument("URL", "A path, URL or chain of URLs: of a store, or a node in it.")] = None,
    fast: Annotated[bool, CommandOption("Metadata only: shards are neither counted nor read.")] = False,
    probe: Annotated[
        bool, CommandOption("Ask the server which conditions it honours. May write and remove an empty object if it honours none.")
    ] = False,
    runtime: Annotated[
        bool, CommandOption("Versions of installed packages, the codec pipeline that zarr would use, and whether there is a kernel.")
    ] = False,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Show each array: how it is stored and presented, which shards and chunks exist, bytes, dead bytes, and damage.

    Makes one listing, and one request for the index of each shard. Damaged shards are listed, and the exit code is 5 then.

    Examples:

        shardstore info data.zarr

        shardstore info --fast s3://bucket/data.zarr -o anon=true

        shardstore info --json s3://bucket/data.zarr/ct

        shardstore info --runtime
    """
    document: dict[str, Any] = {}
    if url is None and not runtime:
        raise InvalidInput("no URL is given: give that of a store, or only --runtime")
    if runtime:
        document["runtime"] = runtime_facts()
    damaged = False
    if url is not None:
        target = storage.resolve(url)
        found = _survey(target, fast)
        engine = target.engine
        facts = storage_facts(engine, target.handle.snapshot, run_sync(engine.storage.probe()) if probe else None)
        damaged = found.damaged_objects > 0
        document |= store_document(found, facts)
        if not as_json:
            _show(str(target), found, facts)
            if target.handle.snapshot is not None:
                show(wrapped("snapshot ", target.handle.snapshot.described, "bold"))
            if found.arrays or found.groups:
                show(_flavours(facts.stored))
            elif target.is_versioned_store():
                show(wrapped("", f"a versioned store: name a snapshot, such as {target}@main; shardstore snapshots log shows them"))
    if as_json:
        print_json(document)
    elif runtime:
        _show_runtime(document["runtime"], is_alone=url is None)
    if damaged:
        how_many = plural(found.damaged_objects, "shard is", "shards are")
        end(ExitCode.CORRUPT, f"{how_many} damaged: write all their chunks again, or restore them")


def _survey(target: StorePath, fast: bool) -> Survey:
    with progress_bar("looking", "objects") as bar:
        found = run_sync(survey(target.engine.canonical, target.path, indices=not fast, progress=bar, shown=str(target)))
    if found.kind == "directory" and not found.arrays and not found.groups and target.has_root:
        raise NotFound(f"there is no node at {target}: shardstore ls and cat show keys")
    return found


# -- for people --------------------------------------------------------------------------------------------------------


def _show(where: str, found: Survey, storage: StorageFacts) -> None:
    parts = [plural(found.groups, "group"), plural(len(found.arrays), "array")]
    if found.objects is not None and found.stored_nbytes is not None:
        parts += [plural(found.objects, "object"), size(found.stored_nbytes)]
    show(Text.assemble((where, "bold"), "  ", ", ".join(parts)))
    for array in found.arrays:
        show("")
        show(_array(array, storage.kind))
    if found.other_objects:
        show("")
        show(Text(f"{plural(found.other_objects, 'other object')}, {size(found.other_nbytes or 0)}: not part of any node"))
    if (nothing := no_v3(found)) is not None:
        show("", Text(nothing))
    elif found.v2_documents:
        show("", Text(f"{plural(len(found.v2_documents), 'node')} of Zarr v2: shown unchanged; shards are of Zarr v3"))
    for unreadable in found.unreadable:
        show(Text.assemble(("not a node  ", "yellow"), f"{unreadable.path or '/'}: {unreadable.reason}"))
    show("")
    for group in found.consolidated:
        state = ("out of date: renew it by zarr.consolidate_metadata", "yellow") if group.is_stale else ("up to date", "")
        show(Text.assemble(f"consolidated metadata of {group.path or '/'}: {plural(group.arrays, 'array')}, ", state))
    show(*_capabilities(storage))
    for first, more in alike(found.damage, lambda damage: damage.what):
        show(wrapped("damaged  ", f"{first.key}: {first.what}", "bold red"))
        show_more([damage.key for damage in more], "         ")


def _rows(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def _array(array: ArraySurvey, kind: str) -> Group:
    title = Text.assemble((array.path or "/", "bold cyan"), f"  {shape(array.shape)}  {array.data_type}")
    return Group(title, Padding(_rows(array_rows(array, kind)), (0, 0, 0, 2), expand=False))


def _flavours(stored: Stored) -> Text:
    return Text.assemble(("stored ", "bold"), stored_as(stored), ("  presented ", "bold"), presented_as(stored))


def _capabilities(storage: StorageFacts) -> list[Text]:
    lines = [wrapped(f"storage {storage.kind}: ", writers(storage.kind, storage.capabilities, storage.is_known), "bold")]
    able = abilities(storage.kind, storage.capabilities)
    if able:
        lines.append(Text("  it can"))
    width = len("promise") + 2
    return lines + [wrapped(verb.ljust(width), words, "dim", indent=4) for verb, words in able]


def _show_runtime(facts: dict[str, Any], *, is_alone: bool) -> None:
    if not is_alone:
        show("")
    show(_rows(rows_of(facts)))


_STDOUT = "-"
_DEFAULT_FILE = "report.html"


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The file for the page, and options of the filesystem: ``-o`` may be either, since it is common for both."""

    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where the page goes: a file, or - for stdout.", show_default=_DEFAULT_FILE)
    ] = None
    options: Annotated[
        list[str] | None,
        CommandOption(
            "As --output; or, with a =, one option of the filesystem; may be repeated.", "FILE|KEY=VALUE", flags=("-o", "--option")
        ),
    ] = None
    options_json: OptionsJson = None

    def parsed(self) -> tuple[str | None, dict[str, object]]:
        """Return the file, if one is given, and the options of the filesystem. Raises ``InvalidInput``."""
        files = [text for text in self.options or () if "=" not in text]
        if self.output is not None:
            files.append(self.output)
        if len(files) > 1:
            raise InvalidInput(f"{' and '.join(files)}: give one file for the page")
        return (files[0] if files else None), storage_options(self.options_json, [text for text in self.options or () if "=" in text])


@dataclass(frozen=True)
class PageOptions:
    """Options of ``shardstore.report``."""

    fast: bool = option(False, "Metadata only: shards are neither counted nor read.")
    pictures: bool = option(True, "Do not draw which chunks exist.")
    preview: bool = option(False, "Show a slice of each array: at most 4 MiB of chunks each.")
    access: Sequence[str] = option(
        (), "What is read at once, for advice, as for shardstore advise.", "PATTERN", form="texts", flags=("--access", "-a")
    )
    verified: str | None = option(None, "A file with the output of shardstore verify --json, to be shown on the page.", "FILE")
    most_arrays: int = option(MOST_ARRAYS, "Show at most this many arrays; all are counted.", "N", form="number")


def report(
    *,
    url: Url,
    given: ReportOptions,
    as_json: AsJson = False,
    force: Annotated[bool, CommandOption("Replace the file, if there is one.")] = False,
    shown: PageOptions,
) -> None:
    """Make one page about a store and its state: arrays, shards, sizes, which chunks exist, damage, and advice.

    The page needs no network and no other file. Makes one listing, and one request for the index of each shard. --json prints the same
    facts. Where something is damaged, the page is made, and the exit code is 5.

    Examples:

        shardstore report data.zarr

        shardstore report s3://bucket/data.zarr -o report.html -o anon=true

        shardstore verify --deep --json data.zarr > verified.json; shardstore report data.zarr --verified verified.json --preview

        shardstore report --json data.zarr
    """
    output, options = given.parsed()
    file = _checked_file(output, as_json, force)
    if not as_json:
        page_module()  # its package may be missing: that is reported before the work
    target = resolve(url, options)
    if as_json:
        shown = replace(shown, pictures=False, preview=False)
    with progress_bar("looking", "objects") as bar:
        made = report_on(target.handle, target.path, str(target), progress=bar, **vars(shown))
    _check_found(target, made)
    if as_json or file is None:
        sys.stdout.write(made.json + "\n" if as_json else made.html)
    else:
        write_whole(file, made.html)
        arrays = plural(len(made.facts.survey.arrays), "array")
        advice = plural(len(made.facts.advice), "piece of advice", "pieces of advice")
        typer.echo(f"{file}: {arrays}, {made.facts.state}, {advice}")
    if made.facts.state == "damaged":
        end(ExitCode.CORRUPT, f"{target} is damaged: {_damage(made)}")


def _checked_file(output: str | None, as_json: bool, force: bool) -> Path | None:
    """Return the file for the page, which can be written; ``None`` for stdout. Raises ``InvalidInput``."""
    if as_json and output is not None:
        raise InvalidInput("--json prints on stdout: give no file with it")
    if as_json or output == _STDOUT:
        return None
    file = Path(output or _DEFAULT_FILE)
    check_writable("--output", file)
    if file.exists() and not force:
        raise InvalidInput(f"{file} exists: give another file, or --force to replace it")
    return file


def _check_found(target: StorePath, made: Report) -> None:
    """Check that there is something to report on.

    Raises:
        NotFound: there is no node.
        InvalidInput: the URL is that of a versioned store.
    """
    found = made.facts.survey
    if found.kind != "directory" or found.arrays or found.groups:
        return
    if target.has_root:
        raise NotFound(f"there is no node at {target}: shardstore ls and cat show keys")
    if target.is_versioned_store():
        raise InvalidInput(f"{target} is a versioned store: name a snapshot, such as {target}@main")


def _damage(made: Report) -> str:
    facts = made.facts
    parts = []
    if facts.survey.damaged_objects:
        parts.append(plural(facts.survey.damaged_objects, "shard"))
    if facts.survey.unreadable:
        parts.append(f"the metadata of {plural(len(facts.survey.unreadable), 'node')}")
    if facts.verified is not None and facts.verified.errors:
        parts.append(f"{plural(facts.verified.errors, 'error')} of the verification")
    return ", ".join(parts)
