"""Parts of manifests. Parquet keeps rows in groups, and its footer says where each group is and which rows it has: so one chunk is found by
reading the footer and one group.

::

    | "PAR1" | group of 8,192 rows | group | … | footer | its length | "PAR1" |

    footer: where each group is, its least and greatest array_id and coord
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption
from shardstore.format.arrow_tables import read_parquet
from shardstore.format.snapshots.file_names import ID_NBYTES
from shardstore.format.snapshots.manifest import WIDTHS, ChunkRefs, decode_table, sortable
from shardstore.format.snapshots.structure import ManifestFile
from shardstore.model.ranges import ByteRange

if TYPE_CHECKING:  # an extra
    import pyarrow as pa
    import pyarrow.parquet as pq

USUAL_FOOTER_NBYTES = 64 << 10
"""The bytes at the end of a manifest that are read where the length of its footer is not known."""

_TAIL_NBYTES = 8
_MAGIC = b"PAR1"
_COLUMN_ID, _COLUMN_COORD = 0, 1


def manifest_file(name: str, data: bytes, nrows: int, run: str = "") -> ManifestFile:
    """Return what structures say of a manifest with these bytes."""
    footer = data[len(data) - _footer_nbytes(data) :]
    return ManifestFile(name, len(data), nrows, google_crc32c.value(data), (len(footer), google_crc32c.value(footer)), run)


def virtual_files(data: bytes | memoryview, file: ManifestFile) -> set[tuple[str, str | None]]:
    """Return the URIs of the virtual files to which a whole manifest refers, each with its ETag, ``None`` if it is not known. Raises
    ``Corruption`` if the bytes are not the ones that were written.
    """
    rows = manifest_rows(data, file)
    paths = rows["virtual_path"].combine_chunks()
    if paths.null_count == len(paths):
        return set()
    etags = rows["etag"].to_pylist() if "etag" in rows.column_names else [None] * len(paths)
    return {(path, etag) for path, etag in zip(paths.to_pylist(), etags, strict=True) if path is not None}


def chunk_ids(data: bytes | memoryview, file: ManifestFile) -> list[bytes]:
    """Return the ids of the chunk files to which a manifest refers, each once. Raises as ``manifest_rows``."""
    column = manifest_rows(data, file, ["chunk_id"])["chunk_id"].combine_chunks()
    found: list[bytes] = column.drop_null().unique().to_pylist() if column.null_count < len(column) else []
    if any(len(one) != ID_NBYTES for one in found):
        raise Corruption(f"manifest m/{file.name} has the id of a chunk file that has not {ID_NBYTES} bytes")
    return found


def manifest_rows(data: bytes | memoryview, file: ManifestFile, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a manifest, of all columns or some. Raises ``Corruption`` if it is not the file that the structure says."""
    import pyarrow as pa  # an extra

    if len(data) != file.nbytes or google_crc32c.value(bytes(data)) != file.crc32c:
        raise Corruption(f"manifest m/{file.name} is not what its structure says: it has {len(data)} bytes, or their checksum is wrong")
    try:
        return read_parquet(data, columns)
    except (pa.ArrowException, OSError, ValueError) as exc:
        raise _unreadable(file, exc) from exc


def decode_rows(rows: pa.Table, file: ManifestFile, ndims: Mapping[int, int]) -> dict[int, ChunkRefs]:
    """Return the references in rows of a manifest, of arrays whose dimensions are given. Raises ``Corruption`` if it contradicts itself."""
    return _named(file, lambda: decode_table(rows, ndims))


@dataclass(frozen=True, slots=True, eq=False)
class ManifestGroups:
    """What the footer of a manifest says of its ``g`` groups of rows."""

    file: ManifestFile
    metadata: pq.FileMetaData
    ranges: Sequence[ByteRange]
    """The bytes of each group."""
    arrays: npt.NDArray[np.int64]
    """``(g, 2)``: the least and the greatest id of an array in each."""
    coords: Sequence[tuple[bytes, bytes]]
    """The least and the greatest coordinates in each, which mean something in a group of one array."""

    @classmethod
    def decode(cls, file: ManifestFile, end: bytes | memoryview) -> ManifestGroups:
        """Return what a footer says, from the bytes of ``footer_range`` at least, up to the end. Raises ``Corruption`` if they are none."""
        import pyarrow as pa  # an extra
        import pyarrow.parquet as pq

        footer = bytes(end[len(end) - _footer_nbytes(end) :])
        if file.footer is not None and (len(footer), google_crc32c.value(footer)) != file.footer:
            raise Corruption(f"the footer of manifest m/{file.name} is not what its structure says: its checksum is wrong")
        try:
            metadata = pq.read_metadata(pa.BufferReader(footer))
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            bounds = [_bounds(group) for group in groups]
            ranges = [_range(group) for group in groups]
        except (pa.ArrowException, OSError, ValueError) as exc:
            raise _unreadable(file, exc) from exc
        if any(one.end > file.nbytes for one in ranges):
            raise Corruption(f"manifest m/{file.name} says that it has rows after its end")
        arrays = np.array([ids for ids, _ in bounds], dtype=np.int64).reshape(-1, 2)
        return cls(file, metadata, ranges, arrays, [coords for _, coords in bounds])

    @property
    def nbytes(self) -> int:
        """About the memory that this takes."""
        return len(self.ranges) * 600

    def numbers_for(self, array: int) -> list[int]:
        """Return the groups that may have rows of an array."""
        found: list[int] = np.flatnonzero((self.arrays[:, 0] <= array) & (array <= self.arrays[:, 1])).tolist()
        return found

    def with_chunks(self, array: int, coords: npt.NDArray[np.uint64]) -> dict[int, npt.NDArray[np.intp]]:
        """Return the groups in which some of ``(n, ndim)`` chunks may be, each with the numbers of these chunks."""
        candidates = self.numbers_for(array)
        if not candidates or not len(coords):
            return {}
        everything = np.arange(len(coords))
        width, rest = divmod(len(self.coords[candidates[0]][0]), max(1, coords.shape[1]))
        if not coords.shape[1] or rest or width not in WIDTHS:  # of no dimensions; or the group says nothing, so it has to be read
            return dict.fromkeys(candidates, everything)
        fits = (coords < np.uint64(1 << 8 * width)).all(axis=1) if width < 8 else np.ones(len(coords), dtype=np.bool_)
        keys = sortable(coords, width)
        found: dict[int, npt.NDArray[np.intp]] = {}
        for number in candidates:
            is_inside = fits
            if self._is_pure(number):
                low, high = self.coords[number]
                is_inside = fits & (keys >= np.bytes_(low)) & (keys <= np.bytes_(high))
            else:  # a group of several arrays has what lies between the groups around it
                if number - 1 in candidates and self._is_pure(number - 1):
                    is_inside = is_inside & (keys > np.bytes_(self.coords[number - 1][1]))
                if number + 1 in candidates and self._is_pure(number + 1):
                    is_inside = is_inside & (keys < np.bytes_(self.coords[number + 1][0]))
            if is_inside.any():
                found[number] = np.flatnonzero(is_inside)
        return found

    def _is_pure(self, number: int) -> bool:
        """Return whether a group has rows of one array only."""
        return bool(self.arrays[number, 0] == self.arrays[number, 1])

    def decode_group(self, number: int, data: bytes | memoryview, ndims: Mapping[int, int]) -> dict[int, ChunkRefs]:
        """Return the references of one group, whose bytes are given, by array. Raises ``Corruption`` if they are damaged."""
        import pyarrow as pa  # an extra
        import pyarrow.parquet as pq

        window = _PartOfFile(self.file.nbytes, self.ranges[number].start, memoryview(data))
        try:
            opened = pq.ParquetFile(pa.PythonFile(window, mode="r"), metadata=self.metadata, page_checksum_verification=True)
            table = opened.read_row_group(number, use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as exc:
            raise _unreadable(self.file, exc) from exc
        return _named(self.file, lambda: decode_table(table, ndims))


def footer_range(file: ManifestFile) -> ByteRange:
    """Return the range of a manifest in which its footer is, as far as is known."""
    nbytes = USUAL_FOOTER_NBYTES if file.footer is None else file.footer[0]
    return ByteRange(max(0, file.nbytes - nbytes), file.nbytes)


def missing_footer_nbytes(end: bytes | memoryview) -> int:
    """Return how many bytes before ``end``, the end of a manifest, its footer begins. Raises ``Corruption`` if it is no such end."""
    return max(0, _footer_nbytes(end, complete=False) - len(end))


def _footer_nbytes(end: bytes | memoryview, *, complete: bool = True) -> int:
    if len(end) < _TAIL_NBYTES or bytes(end[-4:]) != _MAGIC:
        raise Corruption("a manifest does not end as Parquet files do: it is damaged, or cut off")
    nbytes = int.from_bytes(end[-8:-4], "little") + _TAIL_NBYTES
    if complete and nbytes > len(end):
        raise Corruption("the footer of a manifest is longer than the file")
    return nbytes


def _bounds(group: Any) -> tuple[tuple[int, int], tuple[bytes, bytes]]:
    ids, coords = group.column(_COLUMN_ID).statistics, group.column(_COLUMN_COORD).statistics
    arrays = (0, 2**32 - 1) if ids is None or not ids.has_min_max else (ids.min, ids.max)
    if coords is None or not coords.has_min_max or arrays[0] != arrays[1]:
        return arrays, (b"", b"")
    return arrays, (coords.min, coords.max)


def _range(group: Any) -> ByteRange:
    columns = [group.column(number) for number in range(group.num_columns)]
    starts = [one.dictionary_page_offset if one.has_dictionary_page else one.data_page_offset for one in columns]
    ends = [start + one.total_compressed_size for start, one in zip(starts, columns, strict=True)]
    return ByteRange(min(starts), max(ends))


def _unreadable(file: ManifestFile, exc: Exception) -> Corruption:
    return Corruption(f"manifest m/{file.name} cannot be read: {type(exc).__name__}: {exc}")


def _named(file: ManifestFile, decoded: Any) -> dict[int, ChunkRefs]:
    try:
        found: dict[int, ChunkRefs] = decoded()
    except Corruption as exc:
        raise Corruption(f"manifest m/{file.name}: {exc}") from exc
    return found


class _PartOfFile(io.RawIOBase):
    """A file of which only one range is there."""

    def __init__(self, nbytes: int, start: int, data: memoryview) -> None:
        self._nbytes, self._start, self._data, self._at = nbytes, start, data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._nbytes}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        begin = self._at - self._start
        end = len(self._data) if size < 0 else begin + size
        if begin < 0 or end > len(self._data):
            raise OSError(f"bytes from {self._at} are asked for, which are not in the group's range")
        self._at += end - begin
        return bytes(self._data[begin:end])
