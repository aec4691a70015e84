"""Facts of a store in words for people, line by line: the command ``info``, the report and notebooks show the same ones."""

from __future__ import annotations

from collections.abc import Mapping

from shardstore.maintenance.survey.run import ArraySurvey, Stored, Survey, Usage
from shardstore.model.capabilities import Capabilities
from shardstore.model.words import count, plural, shape, size

Row = tuple[str, str]
"""A label and a text."""

SNAPSHOT = "snapshot"
"""The kind of the storage that a snapshot of a versioned store is."""

# By what is stored: what it can be presented as, and the option in words.
PRESENTABLE: Mapping[Stored, Mapping[str, str]] = {
    "v3": {"v2": "Zarr v2"},
    "2022 draft": {"v2": "Zarr v2", "draft": "the draft itself"},
}

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


def no_v3(found: Survey) -> str | None:
    """Return the message for a place without any node of Zarr v3, or ``None``."""
    if found.arrays or found.groups or found.unreadable:
        return None
    if found.v2_documents:
        names = sorted({key.rpartition("/")[2] for key in found.v2_documents}, reverse=True)
        return f"Zarr v2 ({', '.join(names)}): shown unchanged; shards are of Zarr v3"
    unseen = "" if found.objects is not None else " (without --fast all is looked at)"
    return f"no Zarr here: no zarr.json, .zgroup or .zarray was found{unseen}"


# -- arrays ------------------------------------------------------------------------------------------------------------


def array_rows(array: ArraySurvey, kind: str) -> list[Row]:
    """Return how an array on a storage of this ``kind`` is presented and stored, and what of it exists."""
    rows = [("presented", f"chunks of {shape(array.chunk_shape)}, {_pipeline(array.codecs)}")]
    if array.is_sharded and array.chunks_per_shard is not None:
        checksum = "with checksum" if array.index_checksum else "without checksum"
        per_shard, index = shape(array.chunks_per_shard), f"index at the {array.index_location} {checksum}"
        by = ", by the storage transformer of 2022" if array.by_transformer else ""
        before = f", behind {_pipeline(array.stored_codecs[:-1])}" if len(array.stored_codecs) > 1 and not by else ""
        rows.append(("stored", f"shards of {shape(array.stored_shape)}: {per_shard} chunks, {index}{by}{before}"))
    elif kind != SNAPSHOT:
        rows.append(("stored", f"as presented: {array.reason}"))
    if array.usage is not None:
        rows += _usage(array, array.usage)
    return rows


def _pipeline(codecs: tuple[str, ...]) -> str:
    return " + ".join(codecs) if codecs else "no codecs"


def _usage(array: ArraySurvey, usage: Usage) -> list[Row]:
    rows: list[Row] = []
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


def _of(present: int, possible: int | None) -> str:
    return count(present) if possible is None else f"{count(present)} of {count(possible)}"


# -- the storage -------------------------------------------------------------------------------------------------------


def stored_as(stored: Stored) -> str:
    """Return what lies on the storage."""
    return "final Zarr v3" if stored == "v3" else "a hierarchy of the 2022 draft"


def presented_as(stored: Stored) -> str:
    """Return what it is presented as, and what else it could be."""
    flavours = ", ".join(f"present={name!r} shows {words}" for name, words in PRESENTABLE[stored].items())
    return f"as final Zarr v3 ({flavours})"


def writers(kind: str, capabilities: Capabilities, is_known: bool) -> str:
    """Return how safe several writers are."""
    if kind == SNAPSHOT:
        return "it never changes; its chunks are in the chunk files of a versioned store"
    if capabilities.atomic_commits and not capabilities.across_machines:
        return "writers that share a shard: safe on one machine, and on several only if opened with locks='cluster'"
    if capabilities.atomic_commits:
        return "writers that share a shard: safe, none loses what another one wrote"
    if is_known:
        said = "writers that share a shard: not safe, let one writer at a time write to each shard"
        if kind == "local":
            said += " (its file system keeps neither fractions of seconds nor extended attributes, which tell versions of a file apart)"
        return said
    return "writers that share a shard: not known before the server is asked (at the first write, or by --probe)"


def abilities(kind: str, capabilities: Capabilities) -> list[Row]:
    """Return what the storage can do, by verbs; nothing for a snapshot."""
    if kind == SNAPSHOT:
        return []
    able = {verb: [words for name, words in flags.items() if getattr(capabilities, name)] for verb, flags in _CAPABILITIES.items()}
    return [(verb, "; ".join(words)) for verb, words in able.items() if words]
