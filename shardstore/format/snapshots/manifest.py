"""Chunk manifests: where the chunks of arrays are, a row for each, as Parquet.

::

    array_id      uint32                the node's id in the structure; rows are sorted by it, then by coord (D23)
    coord         binary                its elements, big-endian, one behind the other, so that bytes sort as coordinates do: (5, 30, 10) is
                                        00 05 00 1e 00 0a; four or eight bytes an element where two are too few (D16), the same in a file
    inline_data   optional binary       the bytes of the chunk themselves; b"" is a chunk of no bytes (D26)
    chunk_id      optional binary       12 bytes: the chunk file c/<name> (D28)
    virtual_path  optional utf8         an absolute URI: a file that is not the store's own (D31)
    offset        optional uint64       its first byte; 0 if null (D29)
    length        uint32                how many; uint64 in a file that is marked as wide, where a chunk has 4 GiB or more (D36)
    etag, last_modified                 optional utf8 and int64, seconds, of virtual files; the columns are there where rows have them (D30)

At most one of the three that say where the bytes are is given (D29); a row with none of them is a chunk that is no more (D26), and hides
what earlier manifests say of it (D25). Specification: Icechunk draft, "Chunk Manifest Files".
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption, InvalidInput
from shardstore.format.arrow_tables import bytes_column, column, is_valid, numbers_column, numbers_of
from shardstore.format.snapshots.file_names import ID_NBYTES
from shardstore.model.chunks import strides
from shardstore.model.words import is_utf8

if TYPE_CHECKING:  # an extra
    import pyarrow as pa

# -- coordinates -------------------------------------------------------------------------------------------------------

DRAFT_WIDTH = 2
WIDTHS = (DRAFT_WIDTH, 4, 8)
"""Bytes of an element."""


def width_for(most: int) -> int:
    """Return the fewest bytes that hold every element up to ``most``. Raises ``InvalidInput`` if eight do not."""
    for width in WIDTHS:
        if 0 <= most < 1 << 8 * width:
            return width
    raise InvalidInput(f"{most} cannot be an element of a chunk's coordinates: they are from 0 to 2^64 - 1")


def encode_coords(coords: npt.NDArray[np.uint64], width: int) -> npt.NDArray[np.uint8]:
    """Return ``(n, ndim * width)`` bytes of ``(n, ndim)`` coordinates, all of which are less than ``2 ** (8 * width)``."""
    return coords.astype(f">u{width}", order="C").view(np.uint8).reshape(len(coords), coords.shape[1] * width)


def decode_coords(data: bytes | memoryview, n: int, ndim: int) -> npt.NDArray[np.uint64]:
    """Return ``(n, ndim)`` coordinates from their bytes, one behind the other. Raises ``Corruption`` if the length fits no width."""
    if not n or not ndim:
        if len(data):
            raise Corruption(f"{n} coordinates of {ndim} dimensions have {len(data)} bytes")
        return np.zeros((n, ndim), dtype=np.uint64)
    width, rest = divmod(len(data), n * ndim)
    if rest or width not in WIDTHS:
        raise Corruption(f"{n} coordinates of {ndim} dimensions have {len(data)} bytes, which is not 2, 4 or 8 an element")
    return np.frombuffer(data, dtype=f">u{width}").reshape(n, ndim).astype(np.uint64)


class CoordSearch:
    """Finds coordinates among ``(n, ndim)`` ascending ones, many at once."""

    def __init__(self, coords: npt.NDArray[np.uint64]) -> None:
        self._n, ndim = coords.shape
        self._low = coords.min(axis=0) if len(coords) else np.zeros(ndim, dtype=np.uint64)
        high = coords.max(axis=0) if len(coords) else self._low
        extent = [int(b) - int(a) + 1 for a, b in zip(self._low, high, strict=True)]
        self._high = high
        self._strides: npt.NDArray[np.uint64] | None = None
        if prod(extent) < 2**63:
            self._strides = strides(extent).astype(np.uint64)
        self._keys = self._keys_of(coords)

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes

    def find(self, wanted: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
        """Return the row of each of ``(k, ndim)`` coordinates, -1 where it is not there."""
        rows = np.full(len(wanted), -1, dtype=np.intp)
        inside = np.flatnonzero(((wanted >= self._low) & (wanted <= self._high)).all(axis=1)) if self._n else np.zeros(0, dtype=np.intp)
        if not len(inside):
            return rows
        keys = self._keys_of(wanted[inside])
        at = np.minimum(np.searchsorted(self._keys, keys), self._n - 1)
        is_there = self._keys[at] == keys
        rows[inside[is_there]] = at[is_there]
        return rows

    def _keys_of(self, coords: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
        """Return one value for each position, that sorts as the positions do."""
        if self._strides is not None:
            keys: npt.NDArray[np.uint64] = (coords - self._low) @ self._strides
            return keys
        return sortable(coords, 8)


def sortable(coords: npt.NDArray[np.uint64], width: int) -> npt.NDArray[np.bytes_]:
    """Return the bytes of ``(n, ndim)`` coordinates as an array of texts, which sort as the coordinates do. ``ndim`` is at least 1."""
    # Texts of numpy end before their last zeros; all have one length here, so this makes no two the same, and changes no order.
    return encode_coords(coords, width).view(f"S{coords.shape[1] * width}").reshape(-1)


# -- references --------------------------------------------------------------------------------------------------------

GONE, INLINE = -2, -1
"""In place of a file's number: the chunk is no more; its bytes are in the manifest."""

ROWS_A_GROUP = 8192

_OWN = b"shardstore"
_CHECK_COLUMNS = "etag", "last_modified"
_MOST_DRAFT_LENGTH = 2**32 - 1
_MOST_END = np.uint64(2**63 - 1)
"""No object is longer: sizes of objects are signed 64-bit integers."""


@dataclass(frozen=True, slots=True)
class VirtualCheck:
    """The version of a virtual file that was referred to, by which a reader sees whether it is still the same."""

    etag: str | None = None
    last_modified: int | None = None
    """Seconds since the epoch."""


NO_CHECK = VirtualCheck()


@dataclass(frozen=True, slots=True, eq=False)
class ChunkRefs:
    """Where chunks of one array are, in the order of their coordinates; ``(n,)`` each."""

    coords: npt.NDArray[np.uint64]
    """``(n, ndim)``, ascending, each once."""
    file: npt.NDArray[np.int32]
    """The number of each chunk's file in ``files``, or ``INLINE``, or ``GONE``."""
    offset: npt.NDArray[np.uint64]
    nbytes: npt.NDArray[np.uint64]
    files: Sequence[bytes | str]
    """Ids of chunk files, and URIs of virtual ones."""
    inline: Mapping[int, bytes] = field(default_factory=dict)
    """The bytes of chunks that are in the manifest, by row."""
    checks: Mapping[int, VirtualCheck] = field(default_factory=dict)
    """What is known of virtual files, by their numbers."""

    def __len__(self) -> int:
        return len(self.coords)


def manifest_schema(*, wide: bool = False, checks: bool = False) -> pa.Schema:
    """Return the schema of a manifest: the draft's, or that with wider lengths, or with columns about virtual files."""
    import pyarrow as pa  # an extra

    members = [
        pa.field("array_id", pa.uint32(), nullable=False),
        pa.field("coord", pa.binary(), nullable=False),
        pa.field("inline_data", pa.binary()),
        pa.field("chunk_id", pa.binary()),
        pa.field("virtual_path", pa.string()),
        pa.field("offset", pa.uint64()),
        pa.field("length", pa.uint64() if wide else pa.uint32(), nullable=False),
    ]
    if checks:
        members += [pa.field("etag", pa.string()), pa.field("last_modified", pa.int64())]
    return pa.schema(members)


def encode_manifest(arrays: Mapping[int, ChunkRefs], *, draft: bool = False) -> bytes:
    """Return the bytes of a manifest of the chunks of arrays, by their ids. Raises ``InvalidInput`` if ``decode_table`` would refuse it;
    or, with ``draft``, something does not fit the draft's types. The sentence names it.
    """
    import pyarrow.parquet as pq  # an extra

    table = manifest_table(arrays, draft=draft)
    file = io.BytesIO()
    pq.write_table(
        table,
        file,
        row_group_size=ROWS_A_GROUP,
        compression="zstd",
        compression_level=3,
        use_dictionary=["array_id", "chunk_id", "virtual_path"],
        column_encoding={"coord": "DELTA_BYTE_ARRAY", "offset": "DELTA_BINARY_PACKED", "length": "DELTA_BINARY_PACKED"},
        write_statistics=["array_id", "coord"],
        write_page_checksum=True,  # parts of a file can be checked
    )
    return file.getvalue()


def manifest_table(arrays: Mapping[int, ChunkRefs], *, draft: bool = False) -> pa.Table:
    """Return the table of a manifest; see ``encode_manifest``."""
    import pyarrow as pa  # an extra

    if (wrong := next(filter(None, map(_wrong_refs, arrays, arrays.values())), None)) is not None:
        raise InvalidInput(f"references of chunks cannot be stored: {wrong}. Nothing was stored")
    ids = sorted(arrays)
    refs = [arrays[one] for one in ids]
    longest = _largest([one.nbytes for one in refs])
    width, wide = width_for(_largest([one.coords for one in refs])), longest > _MOST_DRAFT_LENGTH
    if draft:
        _check_draft(width, longest, refs)
    checks = any(one.checks for one in refs)
    schema = manifest_schema(wide=wide, checks=checks)
    if width != DRAFT_WIDTH or schema != manifest_schema():
        schema = schema.with_metadata({_OWN: json.dumps({"coord_width": width, "wide": wide}).encode()})
    counts = [len(one) for one in refs]
    lengths = np.repeat([one.coords.shape[1] * width for one in refs], counts)
    coords = b"".join(encode_coords(one.coords, width).tobytes() for one in refs)
    whole = {
        "array_id": [numbers_column(pa.uint32(), np.repeat(np.array(ids, dtype=np.uint32), counts))],
        "coord": [bytes_column(pa.binary(), lengths, coords)],
    }
    by_array = [_place_columns(one, schema) for one in refs]
    pieces = {member.name: whole.get(member.name) or [one[member.name] for one in by_array] for member in schema}
    return pa.Table.from_arrays([pa.chunked_array(pieces[member.name], type=member.type) for member in schema], schema=schema)


def _largest(columns: Sequence[npt.NDArray[np.uint64]]) -> int:
    return max((int(one.max()) for one in columns if one.size), default=0)


def _place_columns(refs: ChunkRefs, schema: pa.Schema) -> dict[str, pa.Array]:
    """Return the columns that say where the chunks of one array are."""
    import pyarrow as pa  # an extra

    length = schema.field("length").type
    found = {
        "inline_data": _inline_column(refs),
        "chunk_id": _by_file(refs, [file if isinstance(file, bytes) else None for file in refs.files], pa.binary()),
        "virtual_path": _by_file(refs, [file if isinstance(file, str) else None for file in refs.files], pa.string()),
        "offset": numbers_column(pa.uint64(), refs.offset, refs.file < 0),
        "length": numbers_column(length, refs.nbytes.astype(f"u{length.bit_width // 8}")),
    }
    if "etag" in schema.names:
        checks = [refs.checks.get(number, NO_CHECK) for number in range(len(refs.files))]
        found["etag"] = _by_file(refs, [check.etag for check in checks], pa.string())
        found["last_modified"] = _by_file(refs, [check.last_modified for check in checks], pa.int64())
    return found


def decode_table(table: pa.Table, ndims: Mapping[int, int]) -> dict[int, ChunkRefs]:
    """Return the references of a manifest's rows, or of some row groups, by array; ``ndims`` gives the dimensions of each array.

    Rows of arrays that are not in ``ndims`` are left out. Raises ``Corruption`` if a row contradicts itself, or the order of rows is wrong.
    """
    ids = numbers_of(table["array_id"], np.uint32)
    if not len(ids):
        return {}
    if (ids[1:] < ids[:-1]).any():
        raise Corruption("a manifest is not sorted by its arrays")
    starts = np.append(0, 1 + np.flatnonzero(ids[1:] != ids[:-1]))
    ends = np.append(starts[1:], len(ids))
    return {
        int(ids[start]): _refs_of(table.slice(start, end - start), ndims[int(ids[start])])
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        if int(ids[start]) in ndims
    }


def check_settable(refs: ChunkRefs) -> None:
    """Raise ``InvalidInput`` if a manifest cannot hold a URI or an ETag, or if a reference ends behind every possible object."""
    if (wrong := _wrong_texts(refs) or _wrong_ends(refs)) is not None:
        raise InvalidInput(f"chunks cannot be referred to: {wrong}. Nothing was changed")


def _wrong_ends(refs: ChunkRefs) -> str | None:
    is_wrong = (refs.file >= 0) & (refs.offset > _MOST_END - np.minimum(refs.nbytes, _MOST_END)) | (refs.nbytes > _MOST_END)
    if not is_wrong.any():
        return None
    row = int(np.flatnonzero(is_wrong)[0])
    return f"one has {refs.nbytes[row]} bytes from byte {refs.offset[row]}, and no object has so many bytes"


def _wrong_texts(refs: ChunkRefs) -> str | None:
    texts = [
        *(file for file in refs.files if isinstance(file, str)),
        *(check.etag for check in refs.checks.values() if check.etag is not None),
    ]
    wrong = next((text for text in texts if not is_utf8(text)), None)
    return None if wrong is None else f"{wrong!r} holds half of a surrogate pair, which UTF-8 cannot hold"


def _wrong_refs(array: int, refs: ChunkRefs) -> str | None:
    """Return why references of an array would be refused when they are read, or ``None``."""
    n = len(refs)
    if not 0 <= array < 2**32:
        return f"{array} is no id of an array"
    if any(len(column) != n for column in (refs.file, refs.offset, refs.nbytes)):
        return f"there are {n} coordinates, {len(refs.file)} files, {len(refs.offset)} offsets and {len(refs.nbytes)} lengths"
    if n > 1 and not _ascends(refs.coords):
        return "the coordinates are not sorted, or one is there twice"
    if n and (int(refs.file.min()) < GONE or int(refs.file.max()) >= len(refs.files)):
        return f"a chunk is in file {int(refs.file.max())} of {len(refs.files)}"
    if sorted(refs.inline) != np.flatnonzero(refs.file == INLINE).tolist():
        return "the bytes that are given are not those of the chunks that are to be in the manifest"
    if (short := next((one for one in refs.files if isinstance(one, bytes) and len(one) != ID_NBYTES), None)) is not None:
        return f"the id of a chunk file has {len(short)} bytes, and not {ID_NBYTES}: {short!r}"
    return _wrong_texts(refs)


def _check_draft(width: int, longest: int, refs: Sequence[ChunkRefs]) -> None:
    if width != DRAFT_WIDTH:
        raise InvalidInput("the draft's coordinates of chunks go to 65,535, and these go further: use schema='auto'")
    if longest > _MOST_DRAFT_LENGTH:
        raise InvalidInput(f"the draft's chunks have less than 4 GiB, and one of these has {longest} bytes: use schema='auto'")
    if any(one.checks for one in refs):
        raise InvalidInput("the draft's manifests have no checksums of virtual files: use schema='auto'")


def _inline_column(refs: ChunkRefs) -> pa.Array:
    import pyarrow as pa  # an extra

    if not refs.inline:
        return pa.nulls(len(refs), pa.binary())
    lengths = np.zeros(len(refs), dtype=np.int64)
    rows = sorted(refs.inline)
    lengths[rows] = [len(refs.inline[row]) for row in rows]
    missing = np.ones(len(refs), dtype=np.bool_)
    missing[rows] = False
    return bytes_column(pa.binary(), lengths, b"".join(refs.inline[row] for row in rows), missing)


def _by_file(refs: ChunkRefs, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return for each row the value of its file, or null."""
    import pyarrow as pa  # an extra

    if not any(value is not None for value in values):
        return pa.nulls(len(refs), kind)
    return column(kind, values).take(numbers_column(pa.int32(), refs.file, refs.file < 0))


def _refs_of(rows: pa.Table, ndim: int) -> ChunkRefs:
    n = len(rows)
    coords = _coords_of(rows["coord"].combine_chunks(), n, ndim)
    inline_column = rows["inline_data"].combine_chunks()
    ids, paths = (_encoded(rows[name]) for name in ("chunk_id", "virtual_path"))
    given = [is_valid(inline_column), ids.numbers < len(ids.values), paths.numbers < len(paths.values)]
    if (np.sum(given, axis=0) > 1).any():
        raise Corruption(f"a chunk of a manifest is in two places: row {int(np.flatnonzero(np.sum(given, axis=0) > 1)[0])} of its array")
    file = np.full(n, GONE, dtype=np.int32)
    file[given[0]] = INLINE
    file[given[1]] = ids.numbers[given[1]]
    for one in ids.values:
        if len(one) != ID_NBYTES:
            raise Corruption(f"the id of a chunk file has {len(one)} bytes, and not {ID_NBYTES}: {one!r}")
    checks = [_encoded(rows[name]) if name in rows.column_names else _Encoded(np.zeros(n, np.int64), []) for name in _CHECK_COLUMNS]
    virtual = _distinct_rows([paths, *checks], given[2])
    file[given[2]] = len(ids.values) + virtual.numbers
    files: list[bytes | str] = [*ids.values, *(path for path, *_ in virtual.values)]
    known = [(number, VirtualCheck(*check)) for number, (_, *check) in enumerate(virtual.values, len(ids.values))]
    inline = {int(row): inline_column[int(row)].as_py() for row in np.flatnonzero(given[0])}
    offset = numbers_of(rows["offset"], np.uint64)
    nbytes = numbers_of(rows["length"], np.uint64 if rows["length"].type.bit_width == 64 else np.uint32).astype(np.uint64)
    return ChunkRefs(coords, file, offset, nbytes, files, inline, {number: check for number, check in known if check != NO_CHECK})


@dataclass(frozen=True, slots=True, eq=False)
class _Encoded:
    """A column as numbers of values that differ; a null has the number behind the last one."""

    numbers: npt.NDArray[np.int64]
    values: Sequence[Any]


def _encoded(column: pa.ChunkedArray) -> _Encoded:
    encoded = column.combine_chunks().dictionary_encode()
    values = encoded.dictionary.to_pylist()
    numbers = numbers_of(encoded.indices, np.int32).astype(np.int64)
    return _Encoded(np.where(is_valid(encoded.indices), numbers, len(values)), values)


def _distinct_rows(columns: Sequence[_Encoded], is_given: npt.NDArray[np.bool_]) -> _Encoded:
    """Return the given rows as numbers of tuples that differ in any column: one URI may be in a manifest with several checks."""
    first, *later = columns
    numbers, rows = first.numbers[is_given], np.zeros(0, dtype=np.intp)
    if not any(one.values for one in later):
        return _Encoded(numbers, [(value,) for value in first.values])
    for one in later:
        both = numbers * (len(one.values) + 1) + one.numbers[is_given]
        _, rows, numbers = np.unique(both, return_index=True, return_inverse=True)
    shown = [[*one.values, None] for one in columns]
    places = np.flatnonzero(is_given)[rows].tolist()
    return _Encoded(numbers, [tuple(values[one.numbers[at]] for one, values in zip(columns, shown, strict=True)) for at in places])


def _coords_of(column: pa.Array, n: int, ndim: int) -> npt.NDArray[np.uint64]:
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)[column.offset : column.offset + n + 1]
    lengths = np.unique(np.diff(offsets))
    if len(lengths) > 1 or (ndim and int(lengths[0]) // ndim not in WIDTHS):
        raise Corruption(f"coordinates of an array of {ndim} dimensions have {lengths.tolist()} bytes")
    coords = decode_coords(memoryview(data or b"")[offsets[0] : offsets[-1]], n, ndim)
    if n > 1 and not _ascends(coords):
        raise Corruption("the chunks of an array are not sorted in a manifest, or one is there twice")
    return coords


def _ascends(coords: npt.NDArray[np.uint64]) -> bool:
    """Return whether the rows are in lexicographic order, each once."""
    before, after = coords[:-1], coords[1:]
    is_less = np.zeros(len(before), dtype=np.bool_)
    is_equal = np.ones(len(before), dtype=np.bool_)
    for axis in range(coords.shape[1]):
        is_less |= is_equal & (before[:, axis] < after[:, axis])
        is_equal &= before[:, axis] == after[:, axis]
    return bool(is_less.all())


def merged(older: ChunkRefs, newer: ChunkRefs) -> ChunkRefs:
    """Return the references of both; where both know a chunk, the newer one counts (D25). Chunks that are gone stay as such."""
    both = in_a_row([older, newer], older.coords.shape[1])
    coords = both.coords
    is_newer = np.repeat([0, 1], [len(older), len(newer)])
    order = np.lexsort((-is_newer, *coords.T[::-1]))
    ordered = coords[order]
    is_first = np.ones(len(order), dtype=np.bool_)
    is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1) if coords.shape[1] else False
    return subset(both, order[is_first])


def in_a_row(pieces: Sequence[ChunkRefs], ndim: int) -> ChunkRefs:
    """Return the references of pieces as one: those of each piece behind those of the one before."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        empty = np.zeros(0, dtype=np.uint64)
        return ChunkRefs(np.zeros((0, ndim), dtype=np.uint64), np.zeros(0, dtype=np.int32), empty, empty, [])
    rows = np.cumsum([0, *(len(one) for one in pieces)]).tolist()
    numbers = np.cumsum([0, *(len(one.files) for one in pieces)]).tolist()
    files = [np.where(one.file >= 0, one.file + number, one.file) for one, number in zip(pieces, numbers, strict=False)]
    return ChunkRefs(
        np.concatenate([one.coords for one in pieces]),
        np.concatenate(files).astype(np.int32),
        np.concatenate([one.offset for one in pieces]),
        np.concatenate([one.nbytes for one in pieces]),
        [file for one in pieces for file in one.files],
        {row + first: data for one, first in zip(pieces, rows, strict=False) for row, data in one.inline.items()},
        {at + number: check for one, number in zip(pieces, numbers, strict=False) for at, check in one.checks.items()},
    )


def without_gone(refs: ChunkRefs) -> ChunkRefs:
    """Return the references of chunks that are there."""
    kept = np.flatnonzero(refs.file != GONE)
    return refs if len(kept) == len(refs) else subset(refs, kept)


def subset(refs: ChunkRefs, rows: npt.NDArray[np.intp]) -> ChunkRefs:
    """Return the references in these rows, in their order."""
    inline = {place: refs.inline[row] for place, row in enumerate(rows.tolist()) if row in refs.inline} if refs.inline else {}
    return ChunkRefs(refs.coords[rows], refs.file[rows], refs.offset[rows], refs.nbytes[rows], refs.files, inline, refs.checks)
