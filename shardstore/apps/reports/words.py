"""Facts of a store in words for people: line by line, as ``info``, the report and notebooks show them, and as advice. Each piece of
advice has a number that gives rise to it, and a command that helps.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from shardstore.errors import Unsupported
from shardstore.maintenance.advice import Access, Candidate, advise, facts_of_array, objects_by_default, read_limits
from shardstore.maintenance.appends import Appends
from shardstore.maintenance.survey.run import ArraySurvey, Stored, Survey, Usage
from shardstore.model.capabilities import Capabilities
from shardstore.model.words import count, plural, row_numbers, shape, size, some_of

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
    rows += [("appends", _appends(one)) for one in array.appends]
    return rows


def _appends(record: Appends) -> str:
    """Return what the record of appends along a dimension says."""
    if record.committed is None or record.shown is None:
        return f"{record.key} cannot be read, and appends are refused: {record.fault}"
    waiting = f", and {count(record.committed - record.shown)} more that are not shown yet" if record.committed > record.shown else ""
    said = [f"{plural(record.shown, 'row')} of {record.dim!r}{waiting}"]
    if record.reserved:
        states = [f"({one.id}, {'stored' if one.done else 'not stored yet'})" for one in record.reserved]
        numbers = [row_numbers(one.start, one.start + one.rows) for one in record.reserved]
        said.append(f"reserved: {some_of([f'{a} {b}' for a, b in zip(numbers, states, strict=True)])}")
    if record.evicted:
        said.append(f"{plural(record.evicted, 'reservation')} taken back")
    if record.closed:
        said.append("closed, since the arrays are being moved")
    return "; ".join(said)


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


# -- advice --------------------------------------------------------------------------------------------------------------

_MANY_OBJECTS = 100_000
_SEVERAL_OBJECTS = 100  # of fewer the size does not matter
_SMALL_SHARD_NBYTES = 2**20
_LARGE_SHARD_NBYTES = 2**30
_FEW_CHUNKS = 5  # a shard
_DEAD_RATIO = 0.25  # as compact has it
_FEWER = 4  # times fewer objects are worth the work
_FASTER = 1.5  # times less cost of what is read is worth the work

_NEW = "NEW.zarr"  # the place that a user has to choose


PlaceOf = Callable[[str], "str | None"]
"""A function that returns the URL of the node at a path, as commands take it; ``None`` if they cannot reach it by a URL alone."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice."""

    path: str
    """The path of the array or group."""
    kind: str
    """A word by which programs recognise it."""
    what: str
    """What was found, with its number, and why it matters."""
    command: str
    """The command that helps; empty if there is none."""


def advice_on_store(found: Survey, kind: str, place_of: PlaceOf) -> Iterator[Advice]:
    """Return advice on what belongs to no single array. ``kind``: of storage."""
    here = place_of(found.path)
    for unreadable in found.unreadable:
        what = f"zarr.json is not that of a node: {unreadable.reason}. Restore it from a copy, or write it again"
        yield Advice(unreadable.path, "unreadable", what, "")
    for group in found.consolidated:
        if group.is_stale and kind != SNAPSHOT:
            what = f"its consolidated metadata of {plural(group.arrays, 'array')} are out of date: readers that use them see old shapes"
            place = None if kind == "http" else place_of(group.path)
            code = f"import zarr; zarr.consolidate_metadata({place!r})"
            yield Advice(group.path, "stale-consolidated", what, "" if place is None else shlex.join(["python", "-c", code]))
    if found.v2_documents:
        what = f"{plural(len(found.v2_documents), 'node')} of Zarr v2, with one object a chunk: pack makes shards of them, without recoding"
        yield Advice(found.path, "zarr-v2", what, _command("pack", here, _NEW))
    if found.other_objects and (found.arrays or found.groups) and kind != SNAPSHOT and not found.v2_documents:
        what = f"{plural(found.other_objects, 'object')}, {size(found.other_nbytes or 0)}, that belong to no node: verify names them"
        yield Advice(found.path, "strays", what, _command("verify", here))


def advice_on_array(array: ArraySurvey, kind: str, place_of: PlaceOf, accesses: Sequence[Access] = ()) -> Iterator[Advice]:
    """Return advice on one array. ``accesses`` with as many dimensions as the array has are what is read of it at once."""
    place = place_of(array.path)
    usage = array.usage
    if usage is not None:
        yield from _on_health(array, usage, kind, place)
        if kind != SNAPSHOT:
            yield from _on_objects(array, usage, place)
    if (fitting := [access for access in accesses if len(access.extents) == len(array.shape or ())]) and kind != SNAPSHOT:
        yield from _on_reading(array, fitting, kind, place)


def _on_health(array: ArraySurvey, usage: Usage, kind: str, place: str | None) -> Iterator[Advice]:
    if usage.damaged_objects:
        what = f"{plural(usage.damaged_objects, 'shard is', 'shards are')} damaged, and readers fail there: repair says what can be saved"
        yield Advice(array.path, "damaged", what, _command("repair", place))
    if usage.stored_nbytes and usage.dead_nbytes > _DEAD_RATIO * usage.stored_nbytes and kind != SNAPSHOT:
        what = f"{size(usage.dead_nbytes)} of {size(usage.stored_nbytes)} are dead ({usage.dead_nbytes / usage.stored_nbytes:.0%})"
        yield Advice(array.path, "dead-bytes", f"{what}: compact gives them back", _command("compact", place))
    if usage.chunks_outside:
        what = f"{plural(usage.chunks_outside, 'chunk')}, {size(usage.chunk_nbytes_outside)}, outside the shape"
        why = "a smaller shape left them, or an append is under way; they come back if it grows"
        yield Advice(array.path, "outside", f"{what}: {why}", _command("verify", place))
    if array.is_sharded and array.index_checksum is False:
        what = "the indices have no checksum: an entry that changes is not noticed. A copy by reshard, with the same shards, has them"
        same = ",".join(map(str, array.chunks_per_shard or ()))
        yield Advice(array.path, "no-index-checksum", what, _command("reshard", "-s", same, place, _NEW))


def _on_objects(array: ArraySurvey, usage: Usage, place: str | None) -> Iterator[Advice]:
    if usage.objects < _SEVERAL_OBJECTS:
        return
    fewer = objects_by_default(array)
    found = None if fewer is None else _on_sizes(array, usage, fewer)
    if found is not None:
        yield Advice(array.path, *found, _command("reshard" if array.is_sharded else "pack", place, _NEW))


def _on_sizes(array: ArraySurvey, usage: Usage, fewer: int) -> tuple[str, str] | None:
    """Return the kind of advice on the size of an array's objects, and what was found; default shards would be ``fewer`` objects."""
    nbytes = usage.stored_nbytes / (usage.objects + usage.objects_outside)
    average = f"shards have {size(nbytes)} on average"
    larger = f"larger ones would be at most {count(fewer)}"
    if array.is_sharded and nbytes > _LARGE_SHARD_NBYTES and fewer > usage.objects:
        return "large-shards", f"{average}: a write of one chunk may rewrite one, unless it appends"
    if fewer * _FEWER > usage.objects:
        return None  # not worth the work
    if not array.is_sharded:
        what = f"{count(usage.objects)} objects, one a chunk, of {size(nbytes)} each: in shards they would be at most {count(fewer)}"
        return ("many-objects", what) if usage.objects > _MANY_OBJECTS else None
    if usage.objects > _MANY_OBJECTS:
        return "many-objects", f"{count(usage.objects)} shards of {size(nbytes)} on average: {larger}"
    if nbytes < _SMALL_SHARD_NBYTES:
        return "small-shards", f"{average}: {larger} instead of {count(usage.objects)}"
    if array.chunks_per_shard is not None and prod(array.chunks_per_shard) < _FEW_CHUNKS:
        return "few-chunks", f"a shard holds at most {plural(prod(array.chunks_per_shard), 'chunk')}: {larger}"
    return None


def _on_reading(array: ArraySurvey, accesses: Sequence[Access], kind: str, place: str | None) -> Iterator[Advice]:
    try:
        facts = facts_of_array(array)
    except Unsupported:
        return
    if not facts.shape or 0 in facts.shape:
        return
    found = advise(facts, accesses, read_limits(kind), exists=True, present=array.chunks_per_shard)
    now = next((one for one in (*found.candidates, *found.compared) if one.is_present), None)
    if not found.candidates or now is None or now is found.candidates[0] or now.cost < _FASTER * found.candidates[0].cost:
        return
    best = found.candidates[0]
    assert best.chunks_per_shard is not None
    asked = ", ".join(f"'{access}'" for access in accesses)
    what = (
        f"to read {asked} takes {_cost(now)}; with {' × '.join(map(str, best.chunks_per_shard))} chunks a shard it would be {_cost(best)}"
    )
    command = _command("reshard" if array.is_sharded else "pack", "-s", ",".join(map(str, best.chunks_per_shard)), place, _NEW)
    yield Advice(array.path, "access", what, command)


def _cost(candidate: Candidate) -> str:
    return f"{count(candidate.requests)} requests and {size(candidate.nbytes)}"


def _command(verb: str, *arguments: str | None) -> str:
    """Return a command to be pasted into a shell; none if there is no URL for one of its arguments."""
    given = [argument for argument in arguments if argument is not None]
    return shlex.join(["shardstore", verb, *given]) if len(given) == len(arguments) else ""
