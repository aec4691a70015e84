"""Compare a hierarchy with an earlier census of it, or with another copy of it, whatever shards either has.

With a census: objects that are gone, lie elsewhere, or have changed. With a copy: the same metadata, and the same bytes of every chunk.
There are two passes over objects: those here are compared with the chunks of the copy; those of the copy only show which are missing here.
Copies of Zarr v2 are compared as well. Where the chunks of only one of the two end with a checksum, they are compared without checksums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.errors import Corruption, InvalidInput, NotFound, ShardStoreError
from shardstore.format.codecs import CRC32C_NBYTES, codec_name
from shardstore.format.json_text import JsonObject, loads_object, same_text
from shardstore.format.metadata_v3 import is_array, is_group
from shardstore.format.presentation import present_array, same_chunks
from shardstore.format.store_keys import ancestors, join, metadata_key
from shardstore.format.v2.documents import array_from_v2, group_from_v2
from shardstore.format.v2.kept import hide_kept
from shardstore.format.v2.keys import ARRAY_NAME, ATTRIBUTES_NAME, GROUP_NAME
from shardstore.maintenance.census import NO_DIGEST, ArrayCensus, Census, ObjectEntry
from shardstore.maintenance.execution import Execution, SharedStorage, check_running, in_windows, work_on_objects
from shardstore.maintenance.nodes import ArrayPlan, read_v2
from shardstore.maintenance.verify.chunks import WINDOW_BYTES, ObjectChanged, StoredChunk, object_of, read_chunks, stored_chunks
from shardstore.maintenance.verify.findings import Finding
from shardstore.maintenance.verify.objects import ListedObject
from shardstore.maintenance.walk import Located, Walk, gathered
from shardstore.model.chunks import ChunkCoords
from shardstore.model.containers import batched
from shardstore.storage.base import Found, document_read, unless_failed

_CHUNKS_AT_ONCE = 4096
_NODES_AT_ONCE = 256
_LOOKS = 3
_TELLING_CHUNKS = 2  # of sizes that vary: an index of so many is taken for a shard's fingerprint


@dataclass(frozen=True, slots=True)
class CompareTask:
    """A task: objects of one array here, or, with ``of_copy``, of the copy."""

    run: str
    here: SharedStorage
    plan: ArrayPlan
    there: SharedStorage
    plan_there: ArrayPlan
    objects: tuple[ChunkCoords, ...]
    of_copy: bool
    cut: tuple[int, int]
    """Bytes at the end of each chunk that are not compared, here and there."""
    window_bytes: int
    """Bytes of chunks of both copies at once in memory; at least one chunk of each."""

    def keys(self) -> list[str]:
        plan = self.plan_there if self.of_copy else self.plan
        return [plan.key(coords) for coords in self.objects]


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of a task."""

    findings: tuple[Finding, ...]
    nbytes_read: int


def compare_with_copy(
    engine: Engine,
    path: str,
    copy: Engine,
    copy_path: str,
    execution: Execution,
    found: Callable[[Finding], None],
    done: Callable[[int, int], None],
    failed: Callable[[str, ShardStoreError], None],
) -> None:
    """Compare everything at and below ``path`` with everything at and below ``copy_path`` of ``copy``.

    ``done`` is called with numbers of objects and bytes, ``failed`` with keys of objects that could not be compared.

    Raises:
        NotFound: the other copy has no node.
        StorageError: a listing failed, or a metadata document could not be read.
    """
    there = _listed(copy, copy_path)
    if not there.paths():
        where = f"{copy.storage.url.rstrip('/')}/{there.walk.path}".rstrip("/")
        raise NotFound(f"there is no node to compare with at {where}: check the address of the other copy")
    _Comparison(_listed(engine, path), there, execution, found, done, failed).run()


def _listed(engine: Engine, path: str) -> Side:
    walk = Walk(engine, path)
    documents = [located.info.key.rpartition("/") for located in walk.located() if located.role == "v2-document"]
    run_sync(walk.v2.load(path for path, _, name in documents if name == ARRAY_NAME))
    nodes = (path for path, _, name in documents if name in (ARRAY_NAME, GROUP_NAME))
    return Side(engine, walk, frozenset(path[len(walk.prefix) :] for path in nodes))


@dataclass(slots=True, eq=False)
class _Comparison:
    """The state of one comparison."""

    here: Side
    there: Side
    execution: Execution
    found: Callable[[Finding], None]
    done: Callable[[int, int], None]
    failed: Callable[[str, ShardStoreError], None]
    pairs: dict[str, tuple[ArrayPlan, ArrayPlan, tuple[int, int]]] = field(default_factory=dict)
    """The arrays that are compared, by relative path, and how many bytes at the end of their chunks are not."""

    def run(self) -> None:
        for finding in self._compare_nodes():
            if self.execution.takes(finding.key):
                self.found(finding)
        work_on_objects(self.execution, compare_objects, self._tasks(), self._take, self.failed)

    def _compare_nodes(self) -> Iterator[Finding]:
        """Yield what differs in the nodes, and pair the arrays whose chunks can be compared."""
        paths, paths_there = set(self.here.paths()), set(self.there.paths())
        mine = run_sync(self.here.documents(sorted(paths)))
        theirs = run_sync(self.there.documents(sorted(paths_there)))
        plans, plans_there = self.here.plans(), self.there.plans()
        for relative in sorted(paths | paths_there):
            path = self.here.below(relative)
            one, other = mine.get(relative), theirs.get(relative)
            if relative not in paths:
                yield Finding("missing", path, metadata_key(path), "the other copy has such a node")
            elif relative not in paths_there:
                yield Finding("surplus", path, metadata_key(path), "the other copy has no such node")
            elif one is None or other is None:
                what = "the metadata of one of the copies cannot be read as Zarr v3: they are not compared"
                yield Finding("not-checked", path, metadata_key(path), what)
            elif members := differing_members(one, other):
                yield Finding("differs", path, metadata_key(path), f"it differs from the other copy's in {', '.join(members)}")
            if one is None or other is None:
                continue
            if relative in plans and relative in plans_there:
                if plans[relative].chunk_shape == plans_there[relative].chunk_shape:  # or else that has been said
                    self.pairs[relative] = plans[relative], plans_there[relative], _cut(one, other)
            elif is_array(one) and is_array(other):
                what = "the metadata of one of the copies does not say where its chunks are: they are not compared"
                yield Finding("not-checked", path, metadata_key(path), what)

    def _tasks(self) -> Iterator[CompareTask]:
        window = min(WINDOW_BYTES, self.execution.window_bytes)
        for of_copy, side in ((False, self.here), (True, self.there)):
            objects = (located for located in Walk(side.engine, side.walk.path).located() if self._is_mine(side, located))
            for plan, some in gathered(objects, reads_all=lambda plan, of_copy=of_copy: not of_copy):  # type: ignore[misc]  # mypy cannot infer a default
                here, there, cut = self.pairs[side.relative(plan.path)]
                coords = tuple(located.coords for located in some)
                places = SharedStorage(self.here.engine.storage), SharedStorage(self.there.engine.storage)
                yield CompareTask(self.execution.run, places[0], here, places[1], there, coords, of_copy, cut, window)

    def _is_mine(self, side: Side, located: Located) -> bool:
        if located.plan is None or side.relative(located.plan.path) not in self.pairs or not located.plan.holds(located.coords):
            return False
        return self.execution.takes(located.info.key, located.plan.path, located.plan.number(located.coords))

    def _take(self, task: CompareTask, compared: Compared, total: int | None) -> None:
        for finding in compared.findings:
            self.found(finding)
        self.done(0 if task.of_copy else len(task.objects), compared.nbytes_read)


# -- tasks -------------------------------------------------------------------------------------------------------------


def _cut(one: JsonObject, other: JsonObject) -> tuple[int, int]:
    """Return how many bytes at the end of each chunk are not compared, here and there: a checksum that only one of the two has."""
    here, there = checksums(one), checksums(other)
    return CRC32C_NBYTES * (here and not there), CRC32C_NBYTES * (there and not here)


def compare_objects(task: CompareTask) -> Compared:
    """Compare some objects. Runs in a thread other than the IO loop's. Raises ``StorageError`` if a request failed."""
    plan = task.plan_there if task.of_copy else task.plan
    objects: list[ChunkCoords] = list(task.objects)
    confirmed: dict[ChunkCoords, Finding] = {}
    before: dict[ChunkCoords, Finding] = {}
    nbytes = 0
    step = max(1, _CHUNKS_AT_ONCE // max(1, prod(plan.chunks_per_object)))
    for _ in range(_LOOKS):
        found: dict[ChunkCoords, Finding] = {}
        moved: list[ChunkCoords] = []
        for some in batched(objects, step):
            check_running(task.run)
            try:
                nbytes += _missing_here(task, some, found) if task.of_copy else _differing(task, some, found)
            except ObjectChanged:
                moved += some
        # Writers may be at work between the two looks at one chunk: what differs is what differs twice.
        confirmed |= {chunk: finding for chunk, finding in found.items() if chunk in before}
        before = {chunk: finding for chunk, finding in found.items() if chunk not in confirmed}
        objects = list(dict.fromkeys([*moved, *(object_of(plan, chunk) for chunk in before)]))
        if not objects:
            break
    unstable = (Finding("unstable", task.plan.path, plan.key(coords), "it was replaced each time that it was compared") for coords in moved)
    return Compared((*confirmed.values(), *unstable), nbytes)


def _chunk_key(task: CompareTask, chunk: ChunkCoords) -> str:
    return join(task.plan.path, task.plan.key_encoding.encode(chunk))


def _there(task: CompareTask, chunks: Sequence[ChunkCoords]) -> tuple[Mapping[ChunkCoords, StoredChunk], dict[ChunkCoords, Corruption]]:
    """Return the places of chunks in the copy, and the faults of its damaged objects."""
    objects = list(dict.fromkeys(object_of(task.plan_there, chunk) for chunk in chunks))
    try:
        return stored_chunks(task.there.storage, task.plan_there, objects), {}
    except Corruption:
        found: dict[ChunkCoords, StoredChunk] = {}
        damaged: dict[ChunkCoords, Corruption] = {}
        for coords in objects:
            try:
                found |= stored_chunks(task.there.storage, task.plan_there, [coords])
            except Corruption as exc:
                damaged[coords] = exc
        return found, damaged


def _missing_here(task: CompareTask, objects: Sequence[ChunkCoords], found: dict[ChunkCoords, Finding]) -> int:
    """Note the chunks in these objects of the copy that do not exist here."""
    try:
        theirs = stored_chunks(task.there.storage, task.plan_there, objects)
        wanted = list(dict.fromkeys(object_of(task.plan, chunk) for chunk in theirs))
        mine = stored_chunks(task.here.storage, task.plan, wanted)
    except Corruption:
        if len(objects) > 1:  # the rest can be looked at
            return sum(_missing_here(task, [coords], found) for coords in objects)
        return 0  # reported of the copy where its chunks are compared, and of this one by the rest of verification
    for chunk in theirs:
        if chunk not in mine:
            found[chunk] = Finding("missing", task.plan.path, _chunk_key(task, chunk), "the other copy has such a chunk")
    return 0


def _differing(task: CompareTask, objects: Sequence[ChunkCoords], found: dict[ChunkCoords, Finding]) -> int:
    """Note the chunks in these objects that differ from the copy; return how many bytes were read here.

    Raises:
        ObjectChanged: an object was replaced in between.
        StorageError: a request failed.
    """
    try:
        mine = stored_chunks(task.here.storage, task.plan, objects)
    except Corruption:
        if len(objects) > 1:  # the rest can be compared
            return sum(_differing(task, [coords], found) for coords in objects)
        return 0  # reported by the rest of verification
    theirs, damaged = _there(task, list(mine))
    nbytes = 0
    for chunk in mine:
        if (exc := damaged.get(object_of(task.plan_there, chunk))) is not None:
            found[chunk] = Finding("not-checked", task.plan.path, _chunk_key(task, chunk), f"the other copy is damaged: {exc}")
        elif chunk not in theirs:
            found[chunk] = Finding("surplus", task.plan.path, _chunk_key(task, chunk), "the other copy has no such chunk")
    both = [(chunk, mine[chunk], theirs[chunk]) for chunk in mine if chunk in theirs]
    for window in in_windows(both, lambda pair: pair[1].nbytes + pair[2].nbytes, task.window_bytes):
        here = read_chunks(task.here.storage, [one for _, one, _ in window])
        there = read_chunks(task.there.storage, [other for _, _, other in window])
        nbytes += sum(map(len, here))
        for (chunk, _, _), one, other in zip(window, here, there, strict=True):
            what = _difference(one[: len(one) - task.cut[0]], other[: len(other) - task.cut[1]])
            if what is not None:
                found[chunk] = Finding("differs", task.plan.path, _chunk_key(task, chunk), what)
    return nbytes


def _difference(one: memoryview, other: memoryview) -> str | None:
    if one == other:
        return None
    if len(one) != len(other):
        return f"it has {len(one)} bytes, the other copy's has {len(other)}"
    first = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    return f"its {len(one)} bytes differ from the other copy's, from byte {first} on"


# -- the nodes of a copy, as presented in Zarr v3 ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two copies, listed; paths of nodes are relative to ``walk.path``."""

    engine: Engine
    walk: Walk
    v2_nodes: frozenset[str]
    """The relative paths of nodes that have documents of Zarr v2, including those without chunks."""

    def below(self, relative: str) -> str:
        return join(self.walk.path, relative) if relative else self.walk.path

    def relative(self, path: str) -> str:
        return path[len(self.walk.prefix) :] if path != self.walk.path else ""

    def plans(self) -> dict[str, ArrayPlan]:
        """Return the arrays whose objects can be identified, by relative path."""
        return {self.relative(plan.path): plan for plan in self.walk.plans()}

    def paths(self) -> list[str]:
        """Return the paths of all nodes, relative and sorted."""
        return sorted(self._v3_paths() | self.plans().keys() | self.v2_nodes | self._implicit_groups())

    def _v3_paths(self) -> set[str]:
        return {self.relative(record.node.path) for record in self.walk.nodes.records(self.walk.path) if record.node.kind != "other"}

    def _implicit_groups(self) -> set[str]:
        """Return the implicit groups of Zarr v2, which need no document: every path above a node is a group."""
        above = {path for node in self.v2_nodes if node for path, _ in ancestors(node)}
        return above - self.v2_nodes - self._v3_paths()

    async def documents(self, paths: Iterable[str]) -> dict[str, JsonObject]:
        """Return the presented documents by relative path; nodes without a readable document are left out.
        Raises ``StorageError`` if a request failed.
        """
        found: dict[str, JsonObject] = {}
        missing: list[str] = []
        for some in batched(list(paths), _NODES_AT_ONCE):
            reads = [document_read(metadata_key(self.below(path))) for path in some]
            for path, outcome in zip(some, await self.engine.storage.read(reads), strict=True):
                outcome = unless_failed(outcome)
                if not isinstance(outcome, Found):
                    missing.append(path)
                    continue
                try:
                    document = loads_object(outcome.buffers[0])
                except Corruption:
                    continue
                if is_array(document) or is_group(document):
                    found[path] = present_array(document) if is_array(document) else document
        implicit = self._implicit_groups()
        for path in missing:
            document_of_v2 = group_from_v2({"zarr_format": 2}, None) if path in implicit else await self._v2_document(path)
            if document_of_v2 is not None:
                found[path] = document_of_v2
        return found

    async def _v2_document(self, path: str) -> JsonObject | None:
        names = (ARRAY_NAME, GROUP_NAME, ATTRIBUTES_NAME)
        array, group, attributes = await read_v2(self.engine.storage, [join(self.below(path), name) for name in names])
        zattrs = None if attributes is None else attributes.document
        try:
            if array is not None and array.document is not None:
                return array_from_v2(array.document, zattrs)
            if group is not None and group.document is not None:
                return group_from_v2(group.document, zattrs)
        except InvalidInput:
            return None
        return None


def differing_members(one: JsonObject, other: JsonObject) -> list[str]:
    """Return the members in which two presented documents differ in meaning; an additional checksum at the end of chunks does not count."""
    if is_array(one) != is_array(other):
        return ["node_type"]
    one, other = hide_kept(one), hide_kept(other)
    members = ["attributes"]
    differing = []
    if is_array(one):
        members += ["shape", "fill_value", "dimension_names"]
        spelled = {"chunk_key_encoding": one.get("chunk_key_encoding"), "codecs": _without_checksum(one)}
        if not same_chunks(one | spelled, other | spelled | {"codecs": _without_checksum(other)}):
            differing.append("data_type, chunk shape or codecs")
    return [name for name in members if not same_text(_value(one, name), _value(other, name))] + differing


def _value(document: JsonObject, name: str) -> object:
    """Return a value to compare: absent attributes and names equal empty ones, and a fill value of zero is spelled ``0`` or ``0.0``."""
    value = document.get(name)
    if name == "dimension_names":
        return value if value is not None and any(v is not None for v in value) else None
    if name == "fill_value" and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**53 else value
    return value or {} if name == "attributes" else value


def checksums(document: Mapping[str, object]) -> bool:
    """Return whether chunks end with a checksum, after some other codec."""
    codecs = document.get("codecs")
    return isinstance(codecs, list) and len(codecs) > 1 and codec_name(codecs[-1]) == "crc32c"


def _without_checksum(document: JsonObject) -> object:
    return document["codecs"][:-1] if checksums(document) else document.get("codecs")


# -- a store and an earlier census of it ------------------------------------------------------------------------------


class CensusComparison:
    """The entries of the census, and which of them have been seen."""

    def __init__(self, census: Census, path: str, execution: Execution) -> None:
        inside = path + "/" if path else ""
        self._arrays = {a.path: _Expected(a) for a in census.arrays if a.path == path or a.path.startswith(inside)}
        self._execution = execution
        self._places: dict[bytes, list[tuple[str, int]]] | None = None
        self.of_contents = census.of_contents

    def expected(self, plan: ArrayPlan, coords: ChunkCoords) -> ObjectEntry | None:
        """Return the census's entry for an object, and mark the object as seen."""
        array = self._arrays.get(plan.path)
        return array.see(coords) if array is not None and array.fits(plan) else None

    def layout_findings(self, plans: Sequence[ArrayPlan]) -> Iterator[Finding]:
        """Yield findings for arrays that are gone, or have another layout than before."""
        now = {plan.path: plan for plan in plans}
        for path, array in self._arrays.items():
            plan = now.get(path)
            if plan is None:
                yield Finding("missing", path, metadata_key(path), "the census has such an array, and it is gone or cannot be read")
            elif not array.fits(plan):
                was, is_now = (
                    f"chunks of {chunk}, {per_object} of them an object"
                    for chunk, per_object in (
                        (array.census.chunk_shape, array.census.chunks_per_object),
                        (plan.chunk_shape, plan.chunks_per_object),
                    )
                )
                yield Finding("differs", path, metadata_key(path), f"the census has {was}; the metadata says {is_now}")

    def unseen(self, plans: Sequence[ArrayPlan]) -> Iterator[tuple[ArrayPlan, ChunkCoords]]:
        """Yield objects of this run that the census has, and that were not listed."""
        for plan in plans:
            array = self._arrays.get(plan.path)
            if array is None or not array.fits(plan):
                continue
            for coords in array.unseen():
                if plan.holds(coords) and self._execution.takes(plan.key(coords), plan.path, plan.number(coords)):
                    yield plan, coords

    def change(self, plan: ArrayPlan, listed: ListedObject, digest: bytes) -> Finding:
        """Return the finding about an object that differs from the census."""
        key = plan.key(listed.coords)
        assert listed.expected is not None
        chunks = int(np.unpackbits(np.frombuffer(listed.expected.bitmap, np.uint8)).sum())
        # Chunks of one size give all full shards the same index.
        is_telling = self.of_contents or (plan.coding.nbytes is None and plan.layout is not None and chunks >= _TELLING_CHUNKS)
        places = self._index().get(digest, []) if is_telling and digest != NO_DIGEST else []
        if len(places) == 1:
            (path, i) = places[0]
            coords = tuple(int(c) for c in self._arrays[path].census.coords[i])
            return Finding("misplaced", plan.path, key, f"it is what the census has of the object at {coords} of array {path or '/'!r}")
        return Finding("changed", plan.path, key, "it is not what the census has")

    def _index(self) -> dict[bytes, list[tuple[str, int]]]:
        """Return where the census has each digest; made when something is out of place."""
        if self._places is None:
            self._places = {}
            for path, array in self._arrays.items():
                for i, digest in enumerate(array.census.digests):
                    self._places.setdefault(digest.tobytes(), []).append((path, i))
        return self._places


class _Expected:
    """One array of a census, its objects found by their numbers."""

    def __init__(self, census: ArrayCensus) -> None:
        self.census = census
        self._seen = np.zeros(census.objects, dtype=np.bool_)
        # Numbers beyond 64 bits do not sort as integers: such arrays are rare, and are searched by coordinates.
        self._numbers: npt.NDArray[np.int64] | None = None
        if prod(census.object_grid) < 2**63:
            self._numbers = np.zeros(census.objects, dtype=np.int64)
            for axis, size in enumerate(census.object_grid):
                self._numbers = self._numbers * max(1, size) + census.coords[:, axis]

    def fits(self, plan: ArrayPlan) -> bool:
        return (plan.chunk_shape, plan.chunks_per_object) == (self.census.chunk_shape, self.census.chunks_per_object)

    def _find(self, coords: ChunkCoords) -> int | None:
        if not all(c < g for c, g in zip(coords, self.census.object_grid, strict=True)):
            return None
        if self._numbers is None:
            found = np.flatnonzero((self.census.coords == np.array(coords, dtype=np.int64)).all(axis=1))
            return int(found[0]) if len(found) else None
        number = 0
        for c, size in zip(coords, self.census.object_grid, strict=True):
            number = number * max(1, size) + c
        i = int(np.searchsorted(self._numbers, number))
        return i if i < len(self._numbers) and self._numbers[i] == number else None

    def see(self, coords: ChunkCoords) -> ObjectEntry | None:
        i = self._find(coords)
        if i is None:
            return None
        self._seen[i] = True
        census = self.census
        return ObjectEntry(int(census.nbytes[i]), census.digests[i].tobytes(), census.bitmaps[i].tobytes())

    def unseen(self) -> Iterator[ChunkCoords]:
        for i in np.flatnonzero(~self._seen).tolist():
            yield tuple(int(c) for c in self.census.coords[i])
