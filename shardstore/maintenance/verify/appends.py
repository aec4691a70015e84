"""Check records of appends: that they can be read, and that the arrays are as long as they say."""

from __future__ import annotations

from shardstore.engine.appending.line import read_record
from shardstore.engine.engine import Engine
from shardstore.errors import Corruption
from shardstore.format.append_record import AppendRecord, record_place
from shardstore.maintenance.nodes import NodeRecord, SurveyedNodes
from shardstore.maintenance.verify.findings import Finding
from shardstore.model.words import plural, row_numbers, some_of

_TRIES = 5


async def record_findings(engine: Engine, nodes: SurveyedNodes, key: str) -> list[Finding]:
    """Return what is wrong with the record at ``key``, and which reservations are open. ``nodes`` are those that the walk has read.

    Record and documents change while rows are appended, so a contradiction counts only if the record is unchanged after the documents
    were read. Raises ``StorageError`` if a request failed.
    """
    place = record_place(key)
    assert place is not None
    path, dim = place
    for _ in range(_TRIES):
        try:
            record, generation = await read_record(engine.storage, key)
        except Corruption as exc:
            return [Finding("append-record", path, key, f"it cannot be read: {exc.__cause__}")]
        if record is None:
            return []
        lengths = await _lengths(engine, [path, *_beside(nodes, path, dim)], dim)
        found = _contradiction(path, key, record, lengths)
        if found is None or (await read_record(engine.storage, key))[1] == generation:
            break
    else:
        return [Finding("unstable", path, key, "it changed again and again")]
    reserved = [row_numbers(start := record.start_of(one.id), start + one.rows) + f" ({one.id})" for one in record.open]
    notes = [Finding("reserved", path, key, f"reserved for appends: {some_of(reserved)}")] if reserved else []
    return notes if found is None else [found, *notes]


def _beside(nodes: SurveyedNodes, path: str, dim: str) -> list[str]:
    """Return the other arrays of a group that have a dimension, if the array at ``path`` is the coordinate of it: the record is of all."""
    group, _, name = path.rpartition("/")
    if name != dim:
        return []
    return [each.node.path for each in nodes.records(group) if each.node.path.rpartition("/")[0] == group and each.node.path != path]


async def _lengths(engine: Engine, paths: list[str], dim: str) -> dict[str, int]:
    """Return how long the arrays are now along a dimension, of those that have it."""
    found = await SurveyedNodes(engine).load(paths)
    lengths = {path: _length(each, dim) for path, each in found.items() if each is not None and each.is_array}
    return {path: length for path, length in lengths.items() if length is not None}


def _length(array: NodeRecord, dim: str) -> int | None:
    names, shape = array.facts.dimension_names or (), array.facts.shape or ()
    return shape[names.index(dim)] if dim in names and len(names) == len(shape) else None


def _contradiction(path: str, key: str, record: AppendRecord, lengths: dict[str, int]) -> Finding | None:
    if record.closed:
        return Finding("append-record", path, key, "it is closed, since the arrays are moved elsewhere, or a move was broken off")
    if all(record.shown <= length <= record.committed for length in lengths.values()):
        return None
    has = some_of([f"{name or '/'} {length}" for name, length in lengths.items()])
    what = f"by it {record.shown} rows are shown and {record.committed} committed, and the arrays have {has}"
    if record.open:
        return Finding("append-record", path, key, f"{what}, while {plural(len(record.open), 'reservation is', 'reservations are')} open")
    if len(set(lengths.values())) > 1:
        goes_on = "appends are refused until all have one length"
    elif max(lengths.values()) < record.shown:
        goes_on = "appends are refused until they have that length again, or the record is removed"
    else:
        goes_on = "the next append goes on from there"
    return Finding("changed", path, key, f"{what}: another program changed the length, and {goes_on}")
