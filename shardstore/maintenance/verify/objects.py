"""The task of verification: look at some objects of one array, as often as it takes to know that a fault is not a write in progress.

While writers run, an object may be replaced, and an array created again, between the listing and the look. So an object that looks
wrong is looked at again: damage is reported for a version that was seen twice, under metadata that have not changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from shardstore._sync import run_sync
from shardstore.engine.metadata.hierarchy import Hierarchy
from shardstore.errors import Corruption, ShardStoreError, Unsupported
from shardstore.format.metadata_v3 import ArrayLayout
from shardstore.format.shard_index import ShardIndex
from shardstore.format.store_keys import join, metadata_key
from shardstore.format.v2.keys import ARRAY_NAME
from shardstore.maintenance.census import NO_DIGEST, ObjectEntry, Unread, content_digest, digest_of
from shardstore.maintenance.execution import SharedStorage, check_running, in_windows
from shardstore.maintenance.nodes import ArrayPlan, plan_array, plan_v2_array, read_v2
from shardstore.maintenance.shards import dead_nbytes, entry_fault, slots_inside
from shardstore.maintenance.verify.chunks import (
    WINDOW_BYTES,
    ChunkBytes,
    ChunkLook,
    Decode,
    Decoder,
    ObjectChanged,
    look_at_heads,
    look_into,
)
from shardstore.maintenance.verify.findings import ERRORS, Fault, Finding
from shardstore.model.chunks import ChunkCoords
from shardstore.model.generation import Generation
from shardstore.model.ranges import EVERYTHING, ByteRange
from shardstore.plan.commits import covered_nbytes
from shardstore.storage.base import UNKNOWN_NBYTES, Failed, Found, Read, ReadOutcome, Storage, document_read, read_one

_LOOKS = 4


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object of an array, as it was listed."""

    coords: ChunkCoords
    nbytes: int
    expected: ObjectEntry | None = None
    """The entry of a census for it."""


@dataclass(frozen=True, slots=True)
class VerifyTask:
    """A task: objects of one array."""

    run: str
    place: SharedStorage
    plan: ArrayPlan
    objects: tuple[ListedObject, ...]
    decoder: Decoder | None = None
    of_contents: bool = False
    """True if the digests of the census are of whole objects."""
    window_bytes: int = WINDOW_BYTES

    def keys(self) -> list[str]:
        return [self.plan.key(listed.coords) for listed in self.objects]


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a task."""

    findings: tuple[Finding, ...]
    objects: int
    """The number of objects that exist."""
    chunks: int
    """The number of chunks that exist, and whose place can be right."""
    nbytes_read: int
    unread: tuple[Unread, ...]
    changed: tuple[tuple[ListedObject, bytes], ...] = ()
    """Objects that differ from the census, and the digests that they have now."""


@dataclass(slots=True)
class Look:
    """One look at one object."""

    listed: ListedObject
    generation: Generation | None = None
    is_there: bool = False
    has_moved: bool = False
    chunks: int = 0
    nbytes_read: int = 0
    faults: list[Fault] = field(default_factory=list)
    error: ShardStoreError | None = None
    digest: bytes | None = None
    """The digest, if it differs from the expected one."""

    @property
    def needs_recheck(self) -> bool:
        """True if the object has to be looked at once more."""
        return self.has_moved or self.error is not None or any(fault.kind in ERRORS for fault in self.faults)

    def confirms(self, before: Look) -> bool:
        """Return whether an earlier look saw this version, and it was no better."""
        return self.generation is not None and self.generation == before.generation and not self.has_moved and self.error is None


def verify_objects(task: VerifyTask) -> Verified:
    """Look at the objects of the task. Runs in a thread other than the IO loop's."""
    storage, plan = task.place.storage, task.plan
    inspector = _Inspector(storage, plan, task)
    looks = {look.listed: look for look in inspector.look(task.objects)}
    doubtful = _doubtful(looks.values())
    for _ in range(_LOOKS - 1):
        if not doubtful:
            break
        check_running(task.run)
        now = plan_now(storage, plan)
        if now is None:  # the array is gone, or its document damaged: that is said elsewhere
            return Verified((), 0, 0, sum(look.nbytes_read for look in looks.values()), ())
        if now != plan:
            plan, inspector = now, _Inspector(storage, now, task)
            same_rank = [listed for listed in task.objects if len(listed.coords) == len(plan.shape)]
            looks = {look.listed: look for look in inspector.look(same_rank, fresh=True)}
            doubtful = _doubtful(looks.values())
            continue
        again = inspector.look(list(doubtful), fresh=True)
        looks |= {look.listed: look for look in again}
        doubtful = _doubtful(look for look in again if not look.confirms(doubtful[look.listed]))
    return _outcome(plan, looks.values())


def _doubtful(looks: Iterable[Look]) -> dict[ListedObject, Look]:
    """Return those looks that have to be repeated."""
    return {look.listed: look for look in looks if look.needs_recheck}


def _outcome(plan: ArrayPlan, looks: Iterable[Look]) -> Verified:
    findings: list[Finding] = []
    unread: list[Unread] = []
    changed: list[tuple[ListedObject, bytes]] = []
    objects = chunks = nbytes_read = 0
    for look in looks:
        key = plan.key(look.listed.coords)
        objects += look.is_there
        chunks += look.chunks
        nbytes_read += look.nbytes_read
        if look.error is not None:
            unread.append(Unread(key, look.error))
            continue
        findings += [fault.at(plan.path, key) for fault in look.faults]
        if look.digest is not None:
            changed.append((look.listed, look.digest))
        if look.has_moved:
            findings.append(Finding("unstable", plan.path, key, "it was replaced each time that it was checked"))
    return Verified(tuple(findings), objects, chunks, nbytes_read, tuple(unread), tuple(changed))


def plan_now(storage: Storage, plan: ArrayPlan) -> ArrayPlan | None:
    """Return the plan of the array by its present document; ``None`` if there is none, or it does not show where its objects are.
    Raises ``StorageError`` if a request failed.
    """
    if plan.is_v2:
        (read,) = run_sync(read_v2(storage, [join(plan.path, ARRAY_NAME)]))
        return None if read is None or read.document is None else plan_v2_array(plan.path, read.document)
    outcome = run_sync(read_one(storage, document_read(metadata_key(plan.path))))
    if not isinstance(outcome, Found):
        return None
    return plan_array(*Hierarchy(storage, 0.0, time.monotonic).describe(plan.path, outcome.buffers[0], outcome.generation))


class _Inspector:
    """A reader that looks at objects of one array, under one version of its metadata."""

    def __init__(self, storage: Storage, plan: ArrayPlan, task: VerifyTask) -> None:
        self._storage = storage
        self._plan = plan
        self._of_contents = task.of_contents
        decode: Decode | None = None
        self._hindrance: Fault | None = None
        if task.decoder is not None:
            try:
                decode = task.decoder(plan.document)
            except Unsupported as exc:
                self._hindrance = Fault("not-checked", f"its chunks are not decoded: {exc}")
        self._chunk_look = ChunkLook(plan.coding, decode, task.window_bytes)

    def look(self, objects: Sequence[ListedObject], *, fresh: bool = False) -> list[Look]:
        """Look at each object once; with ``fresh`` the listing is not trusted."""
        looks = self._at_shards(objects) if self._plan.layout is not None else self._at_chunks(objects, fresh)
        for look in looks:
            if self._hindrance is not None and look.is_there:
                look.faults.append(self._hindrance)
            if look.is_there and not self._plan.holds(look.listed.coords):
                look.faults = [fault for fault in look.faults if fault.kind != "outside"]
                look.faults.append(Fault("outside", "it lies outside of the array's grid"))
        return looks

    # -- shards --------------------------------------------------------------------------------------------------------

    def _at_shards(self, objects: Sequence[ListedObject]) -> list[Look]:
        layout = self._plan.layout
        assert layout is not None
        request = layout.index_format.request()
        outcomes = run_sync(self._storage.read([Read(self._plan.key(o.coords), (request,)) for o in objects]))
        looks: list[Look] = []
        heads: list[tuple[Look, ChunkBytes]] = []
        for listed, outcome in zip(objects, outcomes, strict=True):
            look = _begun(listed, outcome)
            looks.append(look)
            if not isinstance(outcome, Found):
                continue
            try:
                index = layout.index_format.decode(layout.index_format.slice_from(outcome.buffers[0], outcome.nbytes))
            except Corruption as exc:
                look.faults.append(Fault("index", f"its index cannot be read: {exc}"))
                continue
            faults, readable = check_index(layout, listed.coords, outcome.nbytes, index)
            look.faults += faults
            self._compare(look, outcome, index)
            slots = np.flatnonzero(readable).tolist()
            look.chunks = len(slots)
            if self._chunk_look.reads_all:
                self._look_into(look, [self._chunk(listed.coords, index, slot) for slot in slots])
            elif slots and self._plan.coding.compressor is not None:
                heads.append((look, self._chunk(listed.coords, index, slots[0])))
        if heads:
            asked = [(self._plan.key(look.listed.coords), look.generation, chunk) for look, chunk in heads if look.generation is not None]
            head_faults, nbytes = look_at_heads(self._storage, asked, self._chunk_look)
            heads[0][0].nbytes_read += nbytes
            for (look, _), fault in zip(heads, head_faults, strict=True):
                look.faults += [] if fault is None else [fault]
        return looks

    def _chunk(self, coords: ChunkCoords, index: ShardIndex, slot: int) -> ChunkBytes:
        layout = self._plan.layout
        assert layout is not None
        offset, nbytes = (int(v) for v in index.flat[slot])
        key = layout.key_encoding.encode(layout.grid.coords_of(coords, slot))
        return ChunkBytes(f"chunk {join(self._plan.path, key)!r}", ByteRange(offset, offset + nbytes))

    def _look_into(self, look: Look, chunks: Sequence[ChunkBytes]) -> None:
        assert look.generation is not None
        try:
            faults, nbytes = look_into(self._storage, self._plan.key(look.listed.coords), look.generation, chunks, self._chunk_look)
        except ObjectChanged:
            look.has_moved = True
        except ShardStoreError as exc:
            look.error = exc
        else:
            look.faults += faults
            look.nbytes_read += nbytes

    def _compare(self, look: Look, found: Found, index: ShardIndex) -> None:
        """Compare a shard with the entry of a census."""
        layout, expected = self._plan.layout, look.listed.expected
        assert layout is not None
        if expected is None:
            return
        existed = np.unpackbits(np.frombuffer(expected.bitmap, np.uint8), count=layout.grid.nslots).astype(np.bool_)
        gone = existed & ~index.present() & slots_inside(layout, look.listed.coords)  # a smaller shape may have taken the rest away
        if gone.any():
            first = layout.key_encoding.encode(layout.grid.coords_of(look.listed.coords, int(np.flatnonzero(gone)[0])))
            what = f"{int(gone.sum())} of its chunks that the census has are gone, the first of them {join(self._plan.path, first)!r}"
            look.faults.append(Fault("missing", what))
        if self._of_contents:
            self._compare_contents(look, found.nbytes)
        elif (digest := digest_of(layout.index_format.slice_from(found.buffers[0], found.nbytes))) != expected.digest:
            look.digest = digest
        elif found.nbytes != expected.nbytes:
            look.digest = NO_DIGEST

    def _compare_contents(self, look: Look, nbytes: int) -> None:
        assert look.generation is not None
        assert look.listed.expected is not None
        try:
            window = self._chunk_look.window_bytes
            digest = content_digest(self._storage, self._plan.key(look.listed.coords), look.generation, nbytes, window)
        except ShardStoreError as exc:
            look.error = exc
            return
        look.has_moved = look.has_moved or digest is None
        look.nbytes_read += nbytes
        if digest != look.listed.expected.digest:
            look.digest = digest

    # -- objects that are one chunk --------------------------------------------------------------------------------------

    def _at_chunks(self, objects: Sequence[ListedObject], fresh: bool) -> list[Look]:
        reads_nothing = not self._chunk_look.reads_all and not self._of_contents
        if reads_nothing and not fresh:
            return [self._sized(Look(listed, is_there=True, chunks=1), listed.nbytes) for listed in objects]
        looks: list[Look] = []
        for some in in_windows(objects, lambda listed: listed.nbytes, self._chunk_look.window_bytes):
            ranges = (EVERYTHING,) if self._chunk_look.reads_all else ()
            outcomes = run_sync(self._storage.read([Read(self._plan.key(o.coords), ranges) for o in some]))
            for listed, outcome in zip(some, outcomes, strict=True):
                look = _begun(listed, outcome)
                looks.append(look)
                if not isinstance(outcome, Found):
                    continue
                look.chunks = 1
                self._sized(look, outcome.nbytes)
                if outcome.buffers and not look.faults:
                    (data,) = outcome.buffers
                    fault = self._chunk_look.fault(f"chunk {self._plan.key(listed.coords)!r}", data)
                    look.faults += [] if fault is None else [fault]
                if self._of_contents and listed.expected is not None:
                    self._compare_contents(look, outcome.nbytes)
        return looks

    def _sized(self, look: Look, nbytes: int) -> Look:
        wanted = self._plan.coding.nbytes
        if wanted is not None and nbytes not in (wanted, UNKNOWN_NBYTES):
            look.faults.append(Fault("chunk-size", f"it has {nbytes} bytes, the codecs make {wanted} of each chunk"))
        expected = look.listed.expected
        if expected is not None and not self._of_contents and nbytes not in (expected.nbytes, UNKNOWN_NBYTES):
            look.digest = NO_DIGEST
        return look


def _begun(listed: ListedObject, outcome: ReadOutcome) -> Look:
    look = Look(listed)
    if isinstance(outcome, Failed):
        look.error = outcome.error
    elif isinstance(outcome, Found):
        look.is_there = True
        look.generation = outcome.generation
        look.nbytes_read = sum(map(len, outcome.buffers))
    return look


# -- one index -----------------------------------------------------------------------------------------------------------


def check_index(
    layout: ArrayLayout, coords: ChunkCoords, object_nbytes: int, index: ShardIndex
) -> tuple[list[Fault], npt.NDArray[np.bool_]]:
    """Return the faults and oddities of the index of the shard at ``coords`` of the shard grid, and ``(nslots,)`` the slots whose bytes can
    be looked at.
    """
    present, wrong = index.present(), replace(index, chunk_nbytes=None).invalid(object_nbytes)
    used = present & ~wrong
    flat = index.flat
    offsets = np.where(used, flat[:, 0], 0).astype(np.int64)  # what fits the object fits int64 as well
    lengths = np.where(used, flat[:, 1], 0).astype(np.int64)
    ends = offsets + lengths
    index_start = 0 if layout.index_format.location == "start" else object_nbytes - layout.index_format.nbytes
    index_end = index_start + layout.index_format.nbytes
    in_index = layout.index_format.on_index(index, object_nbytes)
    odd_size = used & index.invalid(object_nbytes)

    faults: list[Fault] = []
    if wrong.any():
        faults.append(Fault("entry", entry_fault(index, wrong, object_nbytes)))
    if in_index.any():
        slot = int(np.flatnonzero(in_index)[0])
        what = f"index entry {slot} names bytes [{offsets[slot]}, {ends[slot]}), the index itself is [{index_start}, {index_end})"
        faults.append(Fault("entry-in-index", what + _and_more(in_index)))
    if odd_size.any():
        slot = int(np.flatnonzero(odd_size)[0])
        what = f"index entry {slot} names a chunk of {lengths[slot]} bytes, the codecs make {index.chunk_nbytes} of each"
        faults.append(Fault("chunk-size", what + _and_more(odd_size)))
    outside = used & ~slots_inside(layout, coords)
    if outside.any():
        faults.append(Fault("outside", f"{int(outside.sum())} of its {int(used.sum())} chunks lie outside of the array's shape"))
    if not wrong.any():
        shared = int(lengths.sum()) - covered_nbytes(offsets[used], lengths[used])
        if shared:
            faults.append(Fault("overlap", f"chunks share {shared} bytes with other chunks"))
        dead = dead_nbytes(layout.index_format, index, object_nbytes)
        if dead > 0:
            behind = object_nbytes - max(int(ends.max(initial=0)), index_end)
            where = f", {behind} of them at its end" if behind else ""
            faults.append(Fault("dead", f"{dead} of its {object_nbytes} bytes are neither index nor part of a chunk{where}"))
    return faults, used & ~in_index & ~odd_size


def _and_more(slots: npt.NDArray[np.bool_]) -> str:
    count = int(slots.sum())
    return f", and {count - 1} more" if count > 1 else ""
