"""The places of a session's chunks: in memory, in chunk files, in manifests or in files elsewhere; and texts that name their versions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shardstore.format.snapshots.file_names import encode_id
from shardstore.format.snapshots.manifest import GONE, INLINE, ChunkRefs, VirtualCheck, merged
from shardstore.model.chunks import ChunkCoords
from shardstore.snapshots.chunk_files import Written
from shardstore.snapshots.files import KnownRefs

FOLDED_AT = 1 << 16
"""The number of stored chunks of an array at which they become references."""
FOLDED_SHARE = 8
"""They are at least the references that there are, divided by this: so each of these is merged a few times only."""

ABSENT, HELD = -3, -4
"""In place of a file's number: nothing is known of the chunk; the session has its bytes, or knows where they are."""


@dataclass(slots=True, eq=False)
class ArrayChanges:
    """The chunks of one array that a session has changed."""

    chunks: dict[ChunkCoords, Written | None] = field(default_factory=dict)
    """``None``: erased."""
    bulk: KnownRefs | None = None
    """References that were given all at once, or folded, behind ``chunks``."""
    next_look: int = 0
    """The number of ``chunks`` at which they are looked at again."""

    def fold(self, ndim: int, folded_at: int) -> None:
        """Keep chunks that are stored as references, which take a tenth of the memory, once there are ``folded_at`` of them."""
        if len(self.chunks) < max(folded_at, self.next_look):
            return
        stored = {coords: one for coords, one in self.chunks.items() if one is not None and one.file is not None and one.data is None}
        self.next_look = len(self.chunks) + folded_at
        known = 0 if self.bulk is None else len(self.bulk.refs)
        if len(stored) < max(folded_at, known // FOLDED_SHARE):
            return
        refs = refs_of_written(stored, ndim)
        self.bulk = KnownRefs(refs if self.bulk is None else merged(self.bulk.refs, refs))
        self.chunks = {coords: one for coords, one in self.chunks.items() if coords not in stored}
        self.next_look = len(self.chunks) + folded_at

    def __bool__(self) -> bool:
        return bool(self.chunks) or self.bulk is not None

    def stored_files(self) -> set[bytes]:
        """Return the ids of the chunk files to which they refer, of those that are stored."""
        found = {one.file for one in self.chunks.values() if one is not None and one.file is not None and one.data is None}
        return found if self.bulk is None else found | {file for file in self.bulk.refs.files if isinstance(file, bytes)}

    def refs(self, ndim: int) -> ChunkRefs:
        """Return all of them as references, erased chunks included."""
        recent = refs_of_written(self.chunks, ndim)
        return recent if self.bulk is None else merged(self.bulk.refs, recent)


def refs_of_written(chunks: Mapping[ChunkCoords, Written | None], ndim: int) -> ChunkRefs:
    """Return the references of chunks as a session has written them."""
    ordered = sorted(chunks)
    numbers: dict[bytes | str, int] = {}
    file = np.zeros(len(ordered), dtype=np.int32)
    offset, nbytes = np.zeros(len(ordered), dtype=np.uint64), np.zeros(len(ordered), dtype=np.uint64)
    inline: dict[int, bytes] = {}
    for row, coords in enumerate(ordered):
        chunk = chunks[coords]
        if chunk is None:
            file[row] = GONE
        elif chunk.file is None:
            assert chunk.data is not None  # it waits for no file, or is planned: then it has one
            file[row], inline[row] = INLINE, chunk.data
            nbytes[row] = chunk.nbytes
        else:
            file[row] = numbers.setdefault(chunk.file, len(numbers))
            offset[row], nbytes[row] = chunk.offset, chunk.nbytes
    coords_array = np.array(ordered, dtype=np.uint64).reshape(len(ordered), ndim)
    return ChunkRefs(coords_array, file, offset, nbytes, list(numbers), inline)


@dataclass(slots=True, eq=False)
class ChunkPlaces:
    """The places of ``n`` chunks of one array."""

    file: npt.NDArray[np.int32]
    """``(n,)``: numbers in ``files``, or ``INLINE``, ``HELD``, ``GONE`` or ``ABSENT``."""
    offset: npt.NDArray[np.uint64]
    nbytes: npt.NDArray[np.uint64]
    files: list[bytes | str] = field(default_factory=list)
    checks: dict[int, VirtualCheck] = field(default_factory=dict)
    data: dict[int, bytes] = field(default_factory=dict)
    """The bytes of chunks that are inline or held in memory, by number."""
    serials: dict[int, int] = field(default_factory=dict)
    """The serials of the session's own chunks, by number."""

    @classmethod
    def unknown(cls, n: int) -> ChunkPlaces:
        """Return ``n`` places of which nothing is known yet."""
        return cls(np.full(n, ABSENT, dtype=np.int32), np.zeros(n, dtype=np.uint64), np.zeros(n, dtype=np.uint64))

    @property
    def exists(self) -> npt.NDArray[np.bool_]:
        there: npt.NDArray[np.bool_] = (self.file >= INLINE) | (self.file == HELD)
        return there

    def take(self, known: KnownRefs, numbers: npt.NDArray[np.intp], rows: npt.NDArray[np.intp]) -> None:
        """Note where the chunks of these numbers are, which ``known`` has in these rows."""
        refs = known.refs
        file = refs.file[rows]
        self.file[numbers] = np.where(file >= 0, file + len(self.files), file)
        self.offset[numbers], self.nbytes[numbers] = refs.offset[rows], refs.nbytes[rows]
        self.checks |= {number + len(self.files): check for number, check in refs.checks.items()}
        self.files += refs.files
        for place in np.flatnonzero(file == INLINE).tolist():
            self.data[int(numbers[place])] = refs.inline[int(rows[place])]


# -- versions ----------------------------------------------------------------------------------------------------------


def token_of_written(serial: int) -> str:
    """Return the version of what a session has written."""
    return f"w{serial}"


def token_of_inline(data: bytes) -> str:
    """Return the version of a chunk that is in a manifest."""
    return f"i{hashlib.blake2b(data, digest_size=16).hexdigest()}"


def token_in_file(name: str, offset: int, nbytes: int, check: VirtualCheck | None) -> str:
    """Return the version of a chunk in a file: its place, since chunk files never change; of a virtual file, with what is known of it."""
    return f"{name}:{offset}:{nbytes}" if check is None else f"{name}:{offset}:{nbytes}:{check.etag or ''}:{check.last_modified or ''}"


def file_name(file: bytes | str) -> str:
    """Return the name of a chunk file, or the URI of a virtual one."""
    return encode_id(file) if isinstance(file, bytes) else file
