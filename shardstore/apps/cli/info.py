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
from shardstore.adapters.store_paths import StorePath
from shardstore.adapters.tools.versions import rows_of, runtime_facts
from shardstore.apps.cli.arguments import AsJson, Explain, Fast, Overwrite, StorageOptions, Url, argument
from shardstore.apps.cli.execution import check_writable, unfinished_pack
from shardstore.apps.cli.output import ExitCode, alike, end, print_json, progress_bar, show, show_more, wrapped
from shardstore.apps.reports.facts import MOST_ARRAYS, store_document
from shardstore.apps.reports.reporting import Report, page_module, report_on, write_whole
from shardstore.apps.reports.words import abilities, array_rows, no_v3, presented_as, stored_as, writers
from shardstore.errors import InvalidInput, NotFound
from shardstore.maintenance.survey.run import ArraySurvey, StorageFacts, Stored, Survey, storage_facts, survey
from shardstore.model.options import ACCESS, FAST, OUTPUT, SHOW, CommandOption, option
from shardstore.model.words import plural, shape, size


def info(
    *,
    url: Annotated[str | None, argument("URL", "A path, URL or chain of URLs: of a store, or a node in it.")] = None,
    fast: Fast = False,
    probe: Annotated[bool, CommandOption("Ask the server which conditions it honours.")] = False,
    runtime: Annotated[bool, CommandOption("Show versions of packages, the codec pipeline, and what carries requests.")] = False,
    explain: Explain = False,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Show the state of a store: its arrays, shards, chunks, bytes, and damage.

    The verdict comes first; --explain adds what it is based on, and what the storage can do. Makes one listing, one request for the index
    of each shard, and without --fast one more listing for the record of a pack. The exit code is 5 if shards are damaged.

    Examples:
      shardstore info data.zarr
      shardstore info --fast s3://bucket/data.zarr -o anon=true
      shardstore info --json s3://bucket/data.zarr/ct
      shardstore info --runtime
    """
    document: dict[str, Any] = {}
    if url is None and not runtime:
        raise InvalidInput("give the URL of a store, or --runtime without a URL")
    damaged = False
    if url is None:
        document["runtime"] = runtime_facts()
    else:
        target = storage.resolve(url)
        packing = unfinished_pack(target) if not (fast and target.has_root) else None
        found = _survey(target, fast, packing)
        engine = target.engine
        facts = storage_facts(engine, target.handle.snapshot, run_sync(engine.storage.probe()) if probe else None)
        damaged = found.damaged_objects > 0
        document |= store_document(found, facts) | {"unfinished_pack": packing}
        if not as_json:
            show(_verdict(target, found, fast=fast, packing=packing))
            _show(found, facts, explain=explain)
            if target.handle.snapshot is not None:
                show(wrapped("snapshot ", target.handle.snapshot.described, "bold"))
            if found.arrays or found.groups:
                show(_flavours(facts.stored))
            if explain:
                show("", wrapped("", _EXPLAINED))
        if runtime:
            document["runtime"] = runtime_facts(storage=engine.storage)
    if as_json:
        print_json(document)
    elif runtime:
        _show_runtime(document["runtime"], is_alone=url is None)
    if damaged:
        how_many = plural(found.damaged_objects, "shard is", "shards are")
        end(ExitCode.CORRUPT, f"{how_many} damaged: write all their chunks again, or restore them")


def _survey(target: StorePath, fast: bool, packing: str | None) -> Survey:
    try:
        with progress_bar("looking", "objects") as bar:
            found = run_sync(survey(target.engine.canonical, target.path, indices=not fast, progress=bar, shown=str(target)))
    except NotFound as exc:
        if packing is None:
            raise
        raise NotFound(f"{target} is not complete: {packing}") from exc
    if found.kind == "directory" and not found.arrays and not found.groups and target.has_root:
        raise NotFound(f"there is no node at {target}: shardstore ls and cat show keys")
    return found


# -- for people --------------------------------------------------------------------------------------------------------


_EXPLAINED = (
    "Damage of the index of a shard is found here, and an index that leads out of its shard. Damage of the chunks themselves is not: "
    "shardstore verify reads those that have checksums, and with --deep all of them."
)


def _verdict(target: StorePath, found: Survey, *, fast: bool, packing: str | None) -> Text:
    where = Text.assemble((str(target), "bold"), ": ")
    if packing is not None:
        return where + Text.assemble(("not complete", "bold red"), f": {packing}")
    if found.damaged_objects or found.unreadable:
        amounts = [(found.damaged_objects, "shard"), (len(found.unreadable), "node that cannot be read")]
        nouns = {"node that cannot be read": "nodes that cannot be read"}
        return where + Text.assemble(
            ("damaged", "bold red"), ": ", ", ".join(plural(number, noun, nouns.get(noun)) for number, noun in amounts if number)
        )
    if not found.arrays and not found.groups and target.is_versioned_store():
        return where + Text(f"a versioned store: name a snapshot, such as {target}@main; shardstore snapshots log shows them")
    if (nothing := no_v3(found)) is not None:
        return where + Text(nothing)
    if fast:
        return where + Text("not looked for damage: --fast reads metadata only")
    return where + Text.assemble(("no damage was found", "bold green"))


def _show(found: Survey, storage: StorageFacts, *, explain: bool) -> None:
    parts = [plural(found.groups, "group"), plural(len(found.arrays), "array")]
    if found.objects is not None and found.stored_nbytes is not None:
        parts += [plural(found.objects, "object"), size(found.stored_nbytes)]
    show(Text(", ".join(parts)))
    for first, more in alike(found.damage, lambda damage: damage.what):
        show(wrapped("damaged  ", f"{first.key}: {first.what}", "bold red"))
        show_more([damage.key for damage in more], "         ")
    for unreadable in found.unreadable:
        show(Text.assemble(("not a node  ", "yellow"), f"{unreadable.path or '/'}: {unreadable.reason}"))
    for array in found.arrays:
        show("")
        show(_array(array, storage.kind))
    if found.other_objects:
        show("")
        show(Text(f"{plural(found.other_objects, 'other object')}, {size(found.other_nbytes or 0)}: not part of any node"))
    if no_v3(found) is None and found.v2_documents:
        show("", Text(f"{plural(len(found.v2_documents), 'node')} of Zarr v2: shown unchanged; shards are of Zarr v3"))
    show("")
    for group in found.consolidated:
        state = ("out of date: renew it by zarr.consolidate_metadata", "yellow") if group.is_stale else ("up to date", "")
        show(Text.assemble(f"consolidated metadata of {group.path or '/'}: {plural(group.arrays, 'array')}, ", state))
    show(*_capabilities(storage, explain=explain))


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


def _capabilities(storage: StorageFacts, *, explain: bool) -> list[Text]:
    lines = [wrapped(f"storage {storage.kind}: ", writers(storage.kind, storage.capabilities, storage.is_known), "bold")]
    able = abilities(storage.kind, storage.capabilities) if explain else []
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


@dataclass(frozen=True)
class PageOptions:
    """Options of ``shardstore.report``."""

    fast: bool = option(False, FAST)
    pictures: bool = option(True, "Do not draw which chunks exist.")
    preview: bool = option(False, "Show a slice of each array, of 4 MiB at most.")
    access: Sequence[str] = option((), ACCESS)
    verified: str | None = option(None, "A result of verify --json, to be shown on the page.", "FILE")
    most_arrays: int = option(MOST_ARRAYS, SHOW)


def report(
    *,
    url: Url,
    output: Annotated[str | None, replace(OUTPUT, default=f"{_DEFAULT_FILE}; - is stdout")] = None,
    as_json: AsJson = False,
    overwrite: Overwrite = False,
    shown: PageOptions,
    storage: StorageOptions,
) -> None:
    """Make one page about a store and its state. It shows arrays, shards, sizes, which chunks exist, damage, and advice.

    The page needs no network and no other file. --json prints the same facts. Makes one listing, and one request for the index of each
    shard. Where something is damaged, the page is made, and the exit code is 5.

    Examples:
      shardstore report data.zarr
      shardstore report s3://bucket/data.zarr --output report.html -o anon=true
      shardstore verify --deep --json data.zarr > verified.json; shardstore report data.zarr --verified verified.json --preview
      shardstore report --json data.zarr
    """
    file = _checked_file(output, as_json, overwrite)
    if not as_json:
        page_module()  # its package may be missing: that is reported before the work
    target = storage.resolve(url)
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


def _checked_file(output: str | None, as_json: bool, overwrite: bool) -> Path | None:
    """Return the file for the page, which can be written; ``None`` for stdout. Raises ``InvalidInput``."""
    if as_json and output is not None:
        raise InvalidInput("--json prints on stdout: give no file with it")
    if as_json or output == _STDOUT:
        return None
    file = Path(output or _DEFAULT_FILE)
    check_writable("--output", file)
    if file.exists() and not overwrite:
        raise InvalidInput(f"{file} exists: give another file, or --overwrite to replace it")
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
