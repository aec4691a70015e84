"""The kernel's face in Python: it checks arguments, hands pointers over, and knows which codecs there are functions for.

``kernel()`` returns ``None`` where there is no kernel: it was not built, it is switched off (``SHARDSTORE_KERNEL=0``), or its binary
interface is another one. A codec whose functions are not found is one that the kernel does not decode: its arrays are decoded in Python.

Both calls release the interpreter's lock and return when all chunks are done. Signals are handled after that, so a caller gives no more
than about 128 MiB of decoded chunks at once. Calls from several threads at once are allowed.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardstore.errors import InvalidInput
from shardstore.native.libraries import LIBRARIES, FoundFunctions, Functions, Library, Use, find_functions

ABI = 2
"""The version of the binary interface, as in ``kernel.c``."""
MAX_DIMENSIONS = 16

_ALONG = struct.Struct("6q")
_SHARD = struct.Struct("Q3q2Q4qQ")
_OFF = ("0", "false", "no", "off")
_EQUALS_FILL = -1
_POINTER, _BYTES, _INT32, _INT64 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64
_Counted = _INT64 * 3
_NO_SHARD = bytes(_SHARD.size)


class Codec(IntEnum):
    """The codec from elements to bytes that chunks are stored with; ``crc32c`` may come after it."""

    NONE = 0
    ZSTD = 1
    BLOSC = 2
    GZIP = 3


_DECODING = {Codec.ZSTD: Use.DECODE_ZSTD, Codec.BLOSC: Use.DECODE_BLOSC, Codec.GZIP: Use.DECODE_GZIP}
_ENCODING = {Codec.ZSTD: Use.ENCODE_ZSTD, Codec.BLOSC: Use.ENCODE_BLOSC}


class _Params(ctypes.Structure):
    """``Params`` of ``kernel.c``."""

    _fields_ = (
        ("functions", ctypes.POINTER(Functions)),
        *((name, _INT32) for name in ("ndim", "itemsize", "codec", "has_crc", "is_partial")),
        *((name, _INT32) for name in ("level", "has_checksum", "shuffle", "typesize", "blocksize")),
        ("chunk_nbytes", _INT64),
        ("chunk_shape", _INT64 * MAX_DIMENSIONS),
        ("strides", _INT64 * MAX_DIMENSIONS),
        ("compressor", ctypes.c_char * 16),
    )


class SelectedAlong(NamedTuple):
    """The selected elements of an array along one dimension, and how its chunks are numbered."""

    start: int
    elements: int
    step: int
    chunks_per_shard: int
    slot_stride: int
    """From the slot of a chunk in its shard to that of the next chunk."""
    shard_stride: int
    """From the number of a shard among the selected ones to that of the next shard."""


class ShardVersion(NamedTuple):
    """One version of a shard: what its index says, and what its file shows as long as it is this version."""

    entries: npt.NDArray[np.uint64]
    """Offset and length of each slot, contiguous."""
    nbytes: int
    path: bytes
    numbers: tuple[int, ...]
    """Device, inode, size, mtime and ctime in nanoseconds, and a mark if there is one: as ``versions.py`` has them."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkParams:
    """What all chunks of an array have in common, and the strides of one caller's memory; made by ``Kernel.chunk_params``."""

    shape: tuple[int, ...]
    """The shape of a chunk as its elements are stored, so with transposed dimensions."""
    itemsize: int
    codec: Codec
    has_crc: bool
    _structure: _Params
    _found: FoundFunctions
    """Kept, since the structure has a pointer into it."""

    @property
    def nbytes(self) -> int:
        """The bytes of a decoded chunk."""
        return prod(self.shape) * self.itemsize

    def with_strides(self, strides: Sequence[int]) -> ChunkParams:
        """Return a copy for memory with these strides, in bytes, one for each stored dimension in the stored order.

        Raises:
            InvalidInput: there are not as many as dimensions, or one is negative.
        """
        if len(strides) != len(self.shape) or any(stride < 0 for stride in strides):
            raise InvalidInput(
                f"strides {tuple(strides)} do not fit chunks of shape {self.shape}: give one for each dimension, none negative"
            )
        structure = _Params.from_buffer_copy(self._structure)
        structure.strides[: len(strides)] = strides
        return ChunkParams(self.shape, self.itemsize, self.codec, self.has_crc, structure, self._found)


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A kernel that is loaded, and the functions of codecs that were found for it."""

    file: str
    _library: ctypes.CDLL
    _found: FoundFunctions

    def decodes(self, codec: Codec, has_crc: bool) -> bool:
        """Return whether chunks of a codec, with or without ``crc32c`` after it, are read."""
        return (codec is Codec.NONE or _DECODING[codec] in self._found.origins) and self._has_crc32c(has_crc)

    def encodes(self, codec: Codec, has_crc: bool) -> bool:
        """Return whether chunks of a codec, with or without ``crc32c`` after it, are encoded. Zstandard's own checksum is written too, if
        ``chunk_params`` is asked for it. Nothing is encoded with gzip.
        """
        return (codec is Codec.NONE or _ENCODING.get(codec) in self._found.origins) and self._has_crc32c(has_crc)

    def _check_decodes(self, params: ChunkParams) -> None:
        if not self.decodes(params.codec, params.has_crc) or params._found is not self._found:
            raise InvalidInput(f"functions are missing for {params.codec.name}, or params are of another kernel")

    def _has_crc32c(self, is_needed: bool) -> bool:
        return not is_needed or Use.CRC32C in self._found.origins

    def libraries(self) -> dict[str, str]:
        """Return the version and the file of the functions that are used, by codec; what is missing there is done in Python."""
        return {use.value: str(origin) for use, origin in self._found.origins.items()}

    def chunk_params(
        self,
        shape: tuple[int, ...],
        itemsize: int,
        codec: Codec,
        *,
        has_crc: bool = False,
        partial: bool = True,
        level: int = 0,
        checksum: bool = False,
        shuffle: int = 0,
        typesize: int = 0,
        blocksize: int = 0,
        compressor_name: bytes = b"",
    ) -> ChunkParams:
        """Return what chunks have in common, with the strides of one chunk in C order.

        ``partial``: of plain and Blosc chunks, bytes that no selected element needs are neither read nor decoded, so damage there is not
        seen; chunks with ``crc32c``, and those of the other codecs, are always decoded whole. The other options are for encoding:
        ``level`` and ``checksum`` as of ``numcodecs.zstd.compress``, and those of ``numcodecs.blosc.compress``, where ``shuffle`` is 0, 1
        or 2.

        Raises:
            InvalidInput: the shape has no elements or more than 16 dimensions, or the compressor's name is too long.
        """
        if len(shape) > MAX_DIMENSIONS or itemsize < 1 or any(length < 1 for length in shape):
            raise InvalidInput(f"chunks of shape {shape} with {itemsize} bytes an element are not for the kernel")
        if len(compressor_name) >= _Params.compressor.size:
            raise InvalidInput(f"Blosc has no compressor {compressor_name!r}")
        structure = _Params(
            functions=ctypes.pointer(self._found.functions),
            ndim=len(shape),
            itemsize=itemsize,
            codec=codec,
            has_crc=has_crc,
            is_partial=partial,
            level=level,
            has_checksum=checksum,
            shuffle=shuffle,
            typesize=typesize,
            blocksize=blocksize,
            chunk_nbytes=prod(shape) * itemsize,
            compressor=compressor_name,
        )
        structure.chunk_shape[: len(shape)] = shape
        structure.strides[: len(shape)] = [prod(shape[axis + 1 :]) * itemsize for axis in range(len(shape))]
        return ChunkParams(shape, itemsize, codec, has_crc, structure, self._found)

    def read_selection(
        self,
        params: ChunkParams,
        along: Sequence[SelectedAlong],
        shards: Sequence[ShardVersion | None],
        inside: bytes | None,
        fill: bytes,
        strides: Sequence[int],
        out: npt.NDArray[Any],
        threads: int,
    ) -> tuple[int, int] | None:
        """Read selected elements of an array into ``out``, all of these versions of its shards; return how many chunks are stored, and how
        many bytes they have. ``None``: some could not be read so, and elements of ``out`` may have any value.

        ``along`` and ``strides``, those of ``out`` in bytes: for each stored dimension. ``shards``: those that have selected elements,
        ``None`` for one that is not there. ``inside``: the directory that the files have to lie in, with a slash at its end. ``fill``: an
        element in place of chunks that are not stored. ``threads``: all calls together start fewer than so many threads, and work in
        those of their callers; fewer, where that is not worth it.

        Raises:
            InvalidInput: an argument has another type or shape, or the codec's functions are missing.
        """
        if not out.flags.writeable or out.itemsize != params.itemsize or out.dtype.hasobject or len(fill) != params.itemsize:
            raise InvalidInput(f"out and fill have to have {params.itemsize} bytes an element; out has {out.dtype}")
        if not len(along) == len(strides) == len(params.shape):
            raise InvalidInput(f"{len(along)} dimensions and {len(strides)} strides do not fit chunks of shape {params.shape}")
        self._check_decodes(params)
        try:
            table, paths = _packed_shards(shards)
            packed_along = b"".join([_ALONG.pack(*each) for each in along])
        except struct.error:  # more than 64 bits: a place in a huge array, or the time of a file after the year 2262, in nanoseconds
            return None
        packed_strides = struct.pack(f"{len(strides)}q", *strides)
        address, extent = out.ctypes.data, _extent(out, "out")
        counted = _Counted(0, 0, 1)
        done = 0
        while counted[2]:
            found: int = self._library.shardstore_read_selection(
                ctypes.addressof(params._structure),
                packed_strides,
                packed_along,
                table,
                len(shards),
                paths,
                len(paths) + 1,
                inside,
                fill,
                done,
                address,
                extent,
                threads,
                counted,
            )
            if found < 0:
                return None
            done += found
        return counted[0], counted[1]

    def encode(
        self, params: ChunkParams, source: npt.NDArray[Any], at: npt.NDArray[np.int64], fill: bytes | None, threads: int
    ) -> list[memoryview | None] | None:
        """Return whole chunks encoded, in the order of ``at``, as views of one piece of memory; ``None`` for a chunk each element of which
        equals ``fill`` bit for bit. If a chunk cannot be encoded, ``None`` is returned in place of the list: the caller encodes in Python.

        ``at``: where the first element of each chunk lies in ``source``, in bytes from its first element; ``params`` has the strides.
        ``fill``: an element as it is stored. ``threads`` as in ``read_selection``.

        Raises:
            InvalidInput: an argument has another type or shape, or is not contiguous, or the codec's functions are missing.
        """
        self._check_to_encode(params, source, at, fill)
        n = len(at)
        slot_nbytes: int = self._library.shardstore_encoded_bound(ctypes.addressof(params._structure))
        if slot_nbytes < 0:
            return None
        arena = np.empty(n * slot_nbytes, "B")  # pages that no chunk reaches take no memory
        sizes = np.empty(n, np.int64)
        if self._library.shardstore_encode(
            ctypes.addressof(params._structure),
            source.ctypes.data,
            _extent(source, "source"),
            at.ctypes.data,
            n,
            fill,
            arena.ctypes.data,
            arena.nbytes,
            sizes.ctypes.data,
            threads,
        ):
            return None
        starts = range(0, n * slot_nbytes, slot_nbytes)
        return [
            None if size == _EQUALS_FILL else arena.data[start : start + size] for start, size in zip(starts, sizes.tolist(), strict=True)
        ]

    def encode_to_file(
        self, params: ChunkParams, source: npt.NDArray[Any], at: npt.NDArray[np.int64], fill: bytes | None, file: int, threads: int
    ) -> npt.NDArray[np.int64] | None:
        """Encode whole chunks as ``encode`` does, and write each behind the one before, from where the descriptor ``file`` is.

        Returns how many bytes each has, -1 for one that equals ``fill`` and is not written. ``None`` if a chunk cannot be encoded; some
        may be written then.

        Raises:
            InvalidInput: as ``encode``.
            OSError: they cannot be written.
        """
        self._check_to_encode(params, source, at, fill)
        sizes = np.empty(len(at), np.int64)
        bad: int = self._library.shardstore_encode_to_file(
            ctypes.addressof(params._structure),
            source.ctypes.data,
            _extent(source, "source"),
            at.ctypes.data,
            len(at),
            fill,
            file,
            sizes.ctypes.data,
            threads,
        )
        if bad < 0:
            raise OSError(-bad, os.strerror(-bad))
        return None if bad else sizes

    def _check_to_encode(self, params: ChunkParams, source: npt.NDArray[Any], at: npt.NDArray[np.int64], fill: bytes | None) -> None:
        """Check what is handed over as pointers. Raises ``InvalidInput``."""
        _check(at, np.dtype(np.int64), (len(at),), "at")
        if source.itemsize != params.itemsize or source.dtype.hasobject:
            raise InvalidInput(f"source has to have {params.itemsize} bytes an element; it has {source.dtype}")
        if fill is not None and len(fill) != params.itemsize:
            raise InvalidInput(f"fill has {len(fill)} bytes, an element {params.itemsize}")
        if not self.encodes(params.codec, params.has_crc) or params._found is not self._found:
            raise InvalidInput(f"functions are missing for {params.codec.name}, or params are of another kernel")


def _packed_shards(shards: Sequence[ShardVersion | None]) -> tuple[bytes, bytes]:
    """Return the table of shards for the kernel, and the paths that it has places of. Raises ``InvalidInput`` and ``struct.error``."""
    rows: list[bytes] = []
    at = 0
    for shard in shards:
        if shard is None:
            rows.append(_NO_SHARD)
            continue
        entries, nbytes, path, numbers = shard
        if not entries.flags.c_contiguous or entries.itemsize != 8:
            raise InvalidInput(f"entries of an index have to be contiguous, of uint64; they are {entries.dtype}")
        mark = (1, numbers[5]) if len(numbers) > 5 else (0, 0)
        rows.append(_SHARD.pack(entries.ctypes.data, entries.size // 2, nbytes, at, *numbers[:5], *mark))
        at += len(path) + 1
    return b"".join(rows), b"\0".join([shard.path for shard in shards if shard is not None])


def _check(array: npt.NDArray[Any], dtype: np.dtype[Any], shape: tuple[int, ...], name: str) -> None:
    """Check an array that is handed over as a pointer. Raises ``InvalidInput``."""
    flags = array.flags
    if array.dtype != dtype or array.shape != shape or not flags.c_contiguous or not flags.aligned:
        raise InvalidInput(f"{name} has to be contiguous, of {dtype} and shape {shape}; it has {array.dtype} and {array.shape}")


def _extent(array: npt.NDArray[Any], name: str) -> int:
    """Return the bytes from an array's first element to the end of its last. Raises ``InvalidInput`` for negative strides."""
    if min(array.strides, default=0) < 0:
        raise InvalidInput(f"{name} has negative strides {array.strides}")
    if not array.size:
        return 0
    extent: int = sum((length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)) + array.itemsize
    return extent


def load(file: Path, libraries: Sequence[Library] = LIBRARIES) -> Kernel | str:
    """Load a kernel; return in words why not, if it cannot be used."""
    if not file.exists():
        return "it was not built: shardstore was installed without a C compiler, on another system than 64-bit Linux, or without its kernel"
    try:
        library = ctypes.CDLL(str(file))
        abi, params_nbytes = library.shardstore_kernel_abi, library.shardstore_params_nbytes
        read, encode, bound = library.shardstore_read_selection, library.shardstore_encode, library.shardstore_encoded_bound
        encode_to_file = library.shardstore_encode_to_file
    except (OSError, AttributeError) as exc:
        return f"it cannot be loaded: {exc}"
    params_nbytes.restype = _INT64
    if abi() != ABI or params_nbytes() != ctypes.sizeof(_Params) + _ALONG.size + _SHARD.size:
        return f"{file} is of another version: install the package again"
    read.restype = encode.restype = encode_to_file.restype = bound.restype = _INT64
    read.argtypes = [
        *(_POINTER, _BYTES, _BYTES, _BYTES, _INT64, _BYTES, _INT64, _BYTES, _BYTES, _INT64),
        *(_POINTER, _INT64, _INT32, _Counted),
    ]
    encode.argtypes = [_POINTER, _POINTER, _INT64, _POINTER, _INT64, ctypes.c_char_p, _POINTER, _INT64, _POINTER, _INT32]
    encode_to_file.argtypes = [_POINTER, _POINTER, _INT64, _POINTER, _INT64, ctypes.c_char_p, _INT32, _POINTER, _INT32]
    bound.argtypes = [_POINTER]
    return Kernel(str(file), library, find_functions(libraries))


def _load_built() -> Kernel | str:
    if os.environ.get("SHARDSTORE_KERNEL", "").strip().lower() in _OFF:
        return "SHARDSTORE_KERNEL switches it off"
    return load(Path(os.environ.get("SHARDSTORE_KERNEL_FILE") or Path(__file__).with_name("libkernel.2.so")))


@cache
def kernel() -> Kernel | None:
    """Return the kernel; ``None`` if there is none. The environment is looked at once."""
    loaded = _load_built()
    return loaded if isinstance(loaded, Kernel) else None


def why_no_kernel() -> str | None:
    """Return in words why there is no kernel; ``None`` if there is one."""
    loaded = _load_built()
    return loaded if isinstance(loaded, str) else None
