"""``shardstore info``: shows the content of a store, how it is stored, and the abilities of the storage."""

from __future__ import annotations

import platform
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardstore._sync import run_sync
from shardstore.adapters.store_paths import StorePath
from shardstore.adapters.zarr_version import has_zarr2
from shardstore.apps.cli.arguments import AsJson, StorageOptions
from shardstore.apps.cli.failures import ExitCode
from shardstore.apps.cli.output import alike, complain, print_json, show, show_more, wrapped
from shardstore.apps.cli.progress import progress_bar
from shardstore.apps.reports.facts import store_document
from shardstore.apps.reports.words import abilities, array_rows, no_v3, presented_as, stored_as, writers
from shardstore.errors import InvalidInput, NotFound
from shardstore.maintenance.survey.run import ArraySurvey, StorageFacts, Stored, Survey, storage_facts, survey
from shardstore.model.words import plural, shape, size

_PACKAGES = (
    *("shardstore", "zarr", "numpy", "fsspec", "s3fs", "gcsfs", "aiohttp", "google-crc32c"),
    *("xarray", "dask", "typer", "rich"),
)


def info(
    *,
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="A path, URL or chain of URLs: of a store, or a node in it.", show_default=False)
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Metadata only: shards are neither counted nor read.")] = False,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe", help="Ask the server which conditions it honours. May write and remove an empty object if it honours none."
        ),
    ] = False,
    runtime: Annotated[
        bool, typer.Option("--runtime", help="Versions of installed packages, and the codec pipeline that zarr would use.")
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
        sys.stdout.flush()
        complain(
            "error", f"{plural(found.damaged_objects, 'shard is', 'shards are')} damaged: write all their chunks again, or restore them"
        )
        raise typer.Exit(ExitCode.CORRUPT)


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
    versions = [(name, version or "not installed") for name, version in facts["versions"].items()]
    show(_rows([*versions, ("pipeline", facts["pipeline"] or "none: zarr is not installed"), ("python", facts["python"])]))


# -- the installation ------------------------------------------------------------------------------------------------


def runtime_facts() -> dict[str, Any]:
    """Return versions by package (``None``: not installed), and the codec pipeline that zarr uses for stores of ours."""
    return {
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "versions": {name: _version(name) for name in _PACKAGES},
        "pipeline": _zarr_pipeline(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _zarr_pipeline() -> str | None:
    """Return the path of the pipeline that zarr is configured with once a store of ours is open; ``None`` without zarr-python 3."""
    if find_spec("zarr") is None or has_zarr2():
        return None
    from shardstore.adapters.zarr.pipeline import install_pipeline

    install_pipeline()
    return str(import_module("zarr").config.get("codec_pipeline.path"))
