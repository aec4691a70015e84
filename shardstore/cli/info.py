"""``shardstore info``: shows the content of a store, how it is stored, and the abilities of the storage."""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import typer
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardstore._sync import run_sync
from shardstore.cli.arguments import AsJson, StorageOptions
from shardstore.cli.failures import ExitCode
from shardstore.cli.output import alike, complain, print_json, show, show_others, wrapped
from shardstore.cli.progress import progress_bar
from shardstore.cli.target import Target, resolve
from shardstore.errors import InvalidInput, NotFound
from shardstore.maintenance.survey.run import ArraySurvey, Survey, Usage, survey
from shardstore.model.capabilities import Capabilities
from shardstore.model.words import count, plural, shape, size
from shardstore.storage.opening.kinds import kind_named
from shardstore.storage.opening.snapshot_urls import holds_versioned_store
from shardstore.stored.detect import is_draft

_SNAPSHOT = "snapshot"  # the kind of storage

_Stored = Literal["v3", "2022 draft"]
# By what is stored: what it can be presented as, and the option in words.
_PRESENTABLE: dict[_Stored, dict[str, str]] = {
    "v3": {"v2": "Zarr v2"},
    "2022 draft": {"v2": "Zarr v2", "draft": "the draft itself"},
}

_PACKAGES = (
    *("shardstore", "zarr", "numpy", "fsspec", "s3fs", "gcsfs", "aiohttp", "google-crc32c"),
    *("xarray", "dask", "typer", "rich"),
)

_CAPABILITIES = {
    "read": {
        "pinned_reads": "one version of an object",
        "guarded_reads": "an array's metadata in the same step as its chunks",
        "static": "without another look, since nothing changes in it",
    },
    "write": {
        "create_if_absent": "only where nothing is",
        "compare_and_swap": "only over the version that was read",
        "conditional_delete": "and delete only the version that was read",
    },
    "copy": {
        "compose": "ranges of an object into its new version",
        "appends_in_place": "nothing where it only appends",
    },
    "promise": {
        "durable": "that what was acknowledged survives the loss of power",
        "across_machines": "all this between the writers of all machines that reach it",
    },
}


def info(
    *,
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="A path, URL or chain of URLs: of a store, or a node in it.", show_default=False)
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Metadata only: no shard is counted or looked into.")] = False,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe", help="Ask the server what it honours. Writes nothing on servers that do; may write and remove an empty object."
        ),
    ] = False,
    runtime: Annotated[
        bool, typer.Option("--runtime", help="Versions of what is installed, and the codec pipeline that zarr would use.")
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
        raise InvalidInput("no URL is given: name a store, or ask for --runtime alone")
    if runtime:
        document["runtime"] = runtime_facts()
    damaged = False
    if url is not None:
        target = resolve(url, storage.parsed())
        found = _survey(target, fast)
        engine = target.engine
        capabilities = run_sync(engine.storage.probe()) if probe else engine.storage.capabilities
        kind = kind_named(engine.storage.kind)
        is_known = probe or kind is None or not kind.is_probed or capabilities.atomic_commits
        damaged = found.damaged_objects > 0
        stored: _Stored = "2022 draft" if is_draft(engine.storage) else "v3"
        flavour = {"stored": stored, "presented": engine.options.present.name, "presentable": ["v3", *_PRESENTABLE[stored]]}
        document |= _document(found, engine.storage.kind, capabilities, is_known) | {"flavour": flavour}
        if target.snapshot is not None:
            document["snapshot"] = {"ref": target.snapshot.pinned.ref, "id": target.snapshot.pinned.snapshot_id}
        if not as_json:
            _show(str(target.address), found, engine.storage.kind, capabilities, is_known)
            if target.snapshot is not None:
                show(wrapped("snapshot ", target.snapshot.described, "bold"))
            if found.arrays or found.groups:
                show(_flavours(stored))
            elif run_sync(holds_versioned_store(engine.storage)):
                show(wrapped("", f"a versioned store: name a snapshot, such as {target.address}@main; shardstore snapshots log shows them"))
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


def no_v3(found: Survey) -> str | None:
    """Return the message for a place without any node of Zarr v3, or ``None``."""
    if found.arrays or found.groups or found.unreadable:
        return None
    if found.v2_documents:
        names = sorted({key.rpartition("/")[2] for key in found.v2_documents}, reverse=True)
        return f"Zarr v2 ({', '.join(names)}): passes through as it is; shards are of Zarr v3"
    unseen = "" if found.objects is not None else " (without --fast all is looked at)"
    return f"no Zarr here: no zarr.json, .zgroup or .zarray was found{unseen}"


def _survey(target: Target, fast: bool) -> Survey:
    with progress_bar("looking", "objects") as bar:
        found = run_sync(survey(target.engine.canonical, target.path, indices=not fast, progress=bar, shown=str(target.address)))
    if found.kind == "directory" and not found.arrays and not found.groups and target.has_root:
        raise NotFound(f"there is no node at {target.address}: shardstore ls and cat show keys")
    return found


# -- for programs ------------------------------------------------------------------------------------------------------


def _document(found: Survey, kind: str, capabilities: Capabilities, is_known: bool) -> dict[str, Any]:
    document = asdict(found)
    for array, surveyed in zip(document["arrays"], found.arrays, strict=True):
        array["stored"] = {"shape": array.pop("stored_shape"), "codecs": array.pop("stored_codecs")}
        array["presented"] = {"chunk_shape": array.pop("chunk_shape"), "codecs": array.pop("codecs")}
        array["passes_through"] = None if surveyed.is_sharded else array["reason"]
        del array["reason"]
    safe = capabilities.atomic_commits
    writers = ("safe" if capabilities.across_machines else "safe on one machine") if safe else "one a shard" if is_known else "unknown"
    return document | {
        "damaged_objects": found.damaged_objects,
        "storage": {
            "kind": kind,
            "capabilities": asdict(capabilities) | {"atomic_commits": safe},
            "is_known": is_known,
            "writers": writers,
        },
    }


# -- for people --------------------------------------------------------------------------------------------------------


def _show(where: str, found: Survey, kind: str, capabilities: Capabilities, is_known: bool) -> None:
    parts = [plural(found.groups, "group"), plural(len(found.arrays), "array")]
    if found.objects is not None and found.stored_nbytes is not None:
        parts += [plural(found.objects, "object"), size(found.stored_nbytes)]
    show(Text.assemble((where, "bold"), "  ", ", ".join(parts)))
    for array in found.arrays:
        show("")
        show(_array(array, kind))
    if found.other_objects:
        show("")
        show(Text(f"{plural(found.other_objects, 'other object')}, {size(found.other_nbytes or 0)}: stored as they are"))
    if (nothing := no_v3(found)) is not None:
        show("", Text(nothing))
    elif found.v2_documents:
        show("", Text(f"{plural(len(found.v2_documents), 'node')} of Zarr v2: passes through as it is; shards are of Zarr v3"))
    for unreadable in found.unreadable:
        show(Text.assemble(("not a node  ", "yellow"), f"{unreadable.path or '/'}: {unreadable.reason}"))
    show("")
    for group in found.consolidated:
        state = ("out of date: renew it by zarr.consolidate_metadata", "yellow") if group.is_stale else ("up to date", "")
        show(Text.assemble(f"consolidated metadata of {group.path or '/'}: {plural(group.arrays, 'array')}, ", state))
    show(*_capabilities(kind, capabilities, is_known))
    for first, others in alike(found.damage, lambda damage: damage.what):
        show(wrapped("damaged  ", f"{first.key}: {first.what}", "bold red"))
        show_others([damage.key for damage in others], "         ")


def _rows(rows: list[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def _array(array: ArraySurvey, kind: str) -> Group:
    title = Text.assemble((array.path or "/", "bold cyan"), f"  {shape(array.shape)}  {array.data_type}")
    rows = [("presented", f"chunks of {shape(array.chunk_shape)}, {_pipeline(array.codecs)}")]
    if array.is_sharded and array.chunks_per_shard is not None:
        checksum = "with checksum" if array.index_checksum else "without checksum"
        per_shard, index = shape(array.chunks_per_shard), f"index at the {array.index_location} {checksum}"
        by = ", by the storage transformer of 2022" if array.by_transformer else ""
        before = f", behind {_pipeline(array.stored_codecs[:-1])}" if len(array.stored_codecs) > 1 and not by else ""
        rows.append(("stored", f"shards of {shape(array.stored_shape)}: {per_shard} chunks, {index}{by}{before}"))
    elif kind != _SNAPSHOT:
        rows.append(("stored", f"as presented: {array.reason}"))
    if array.usage is not None:
        rows += _usage(array, array.usage)
    return Group(title, Padding(_rows(rows), (0, 0, 0, 2), expand=False))


def _pipeline(codecs: tuple[str, ...]) -> str:
    return " + ".join(codecs) if codecs else "no codecs"


def _usage(array: ArraySurvey, usage: Usage) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if array.is_sharded:
        rows.append(("shards", _of(usage.objects, usage.possible_objects)))
        rows.append(("chunks", f"{_of(usage.chunks, usage.possible_chunks)}, {size(usage.chunk_nbytes)}"))
        dead = (
            f", {size(usage.dead_nbytes)} of it dead ({usage.dead_nbytes / usage.stored_nbytes:.1%})"
            if usage.dead_nbytes
            else ", nothing dead"
        )
        indices = f", {usage.index_nbytes / usage.stored_nbytes:.1%} of it indices" if usage.stored_nbytes else ""
        rows.append(("bytes", size(usage.stored_nbytes) + indices + (dead if usage.stored_nbytes else "")))
    else:
        rows.append(("chunks", f"{_of(usage.objects, usage.possible_objects)}, {size(usage.stored_nbytes)}"))
    if usage.chunks_outside:
        rows.append(("outside", f"{plural(usage.chunks_outside, 'chunk')} outside the shape, {size(usage.chunk_nbytes_outside)}"))
    if usage.other_objects:
        rows.append(("other", f"{plural(usage.other_objects, 'object')} that are no chunks, {size(usage.other_nbytes)}"))
    if usage.damaged_objects:
        rows.append(("damaged", plural(usage.damaged_objects, "shard")))
    return rows


def _flavours(stored: _Stored) -> Text:
    others = ", ".join(f"present={name!r} shows {words}" for name, words in _PRESENTABLE[stored].items())
    what = "final Zarr v3" if stored == "v3" else "a hierarchy of the 2022 draft"
    return Text.assemble(("stored ", "bold"), what, ("  presented ", "bold"), f"as final Zarr v3 ({others})")


def _of(present: int, possible: int | None) -> str:
    return count(present) if possible is None else f"{count(present)} of {count(possible)}"


def _capabilities(kind: str, capabilities: Capabilities, is_known: bool) -> list[Text]:
    if kind == _SNAPSHOT:
        return [wrapped(f"storage {kind}: ", "it never changes; its chunks are in the chunk files of a versioned store", "bold")]
    if capabilities.atomic_commits and not capabilities.across_machines:
        said = "writers that share a shard: safe on one machine, and on several only if opened with locks='cluster'"
    elif capabilities.atomic_commits:
        said = "writers that share a shard: safe, none loses what another one wrote"
    elif is_known:
        said = "writers that share a shard: not safe, let one writer at a time write to each shard"
        if kind == "local":
            said += " (its file system keeps neither fractions of seconds nor extended attributes, which tell versions of a file apart)"
    else:
        said = "writers that share a shard: not known before the server is asked (at the first write, or by --probe)"
    able = {verb: [words for name, words in flags.items() if getattr(capabilities, name)] for verb, flags in _CAPABILITIES.items()}
    lines = [wrapped(f"storage {kind}: ", said, "bold")]
    if any(able.values()):
        lines.append(Text("  it can"))
    width = max(map(len, able)) + 2
    lines += [wrapped(verb.ljust(width), "; ".join(words), "dim", indent=4) for verb, words in able.items() if words]
    return lines


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
    """Return the path of the pipeline that zarr is configured with once a store of ours is open; ``None`` without zarr."""
    if find_spec("zarr") is None:
        return None
    from shardstore.adapters.zarr.pipeline import install_pipeline

    install_pipeline()
    return str(import_module("zarr").config.get("codec_pipeline.path"))
