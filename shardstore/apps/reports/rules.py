"""What to advise about a store: each piece of advice has a number that gives rise to it, and a command that helps."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from shardstore.apps.reports.words import SNAPSHOT
from shardstore.errors import Unsupported
from shardstore.maintenance.advice import Access, Candidate, advise, facts_of_array, objects_by_default, read_limits
from shardstore.maintenance.survey.run import ArraySurvey, Survey, Usage
from shardstore.model.words import count, plural, size

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


# -- the store as a whole ----------------------------------------------------------------------------------------------


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


# -- one array ---------------------------------------------------------------------------------------------------------


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
        yield Advice(array.path, "outside", f"{what}: a smaller shape left them, and they come back if it grows", _command("verify", place))
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
