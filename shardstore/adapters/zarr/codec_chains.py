"""The codecs of an array as a chain of synchronous calls, which decodes and encodes whole chunks: two kinds of chain.

A ``DirectChain`` calls the libraries behind zarr's common codecs: chunks are decoded into the output, and encoded from the input, while
zarr's codecs wrap the same calls in buffers and make a new array at every step. It is used only if class, data type and memory are
known to the letter.

A ``SyncChain`` calls zarr's own codecs one after the other, without its event loop, for everything else that has synchronous codecs.
Codecs of numcodecs that zarr wraps (``zarr.codecs.numcodecs``, ``numcodecs.zarr3``) are called without the wrapper: older versions of
zarr call them from coroutines only, one thread hop a chunk.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs import blosc, zstd
from zarr.abc.codec import SupportsSyncCodec
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as wrappers
from zarr.core.buffer import cpu
from zarr.core.buffer.cpu import as_numpy_array_wrapper

from shardstore.errors import Corruption
from shardstore.format.chunk_coding import ChunkCoding, check_blosc_header, header_fault, zstd_frame_header
from shardstore.format.codecs import CRC32C_NBYTES

if TYPE_CHECKING:
    from zarr.abc.codec import Codec
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer


AnyArray = npt.NDArray[Any]

DESTINATION_NBYTES = 2**16
"""Chunks of at least this size are decompressed into memory that is there already. To look at that memory costs the library 1.5 µs a call,
as much as to copy 16 KiB; new memory costs page faults, which begin where ``malloc`` no longer reuses its blocks (128 KiB).
"""


class Step:
    """One codec from bytes to bytes. What it is given may be any contiguous buffer, and is not changed."""

    name = ""
    """The name of the codec, if this is all that it does."""
    takes_destination = False
    makes_copy = True
    """True if the result of ``encode`` shares no memory with its argument."""

    def encoded_nbytes(self, nbytes: int | None) -> int | None:
        """Return the number of encoded bytes of ``nbytes``; ``None`` if it depends on the bytes."""
        return None

    def settings(self) -> dict[str, Any] | None:
        """Return what the kernel needs to know to encode in the same way, as options of ``Kernel.chunk_params``; ``None``: it cannot."""
        return None

    def decode(self, data: Any, nbytes: int | None, destination: AnyArray | None) -> Any:
        """Return ``data`` decoded, in ``nbytes`` bytes if that is known. The result is ``destination``, which has so many bytes, if it is
        given and the step takes it.

        Raises:
            Exception: of any kind, if it cannot be decoded.
        """
        raise NotImplementedError

    def encode(self, data: AnyArray) -> Any:
        raise NotImplementedError


class _Numcodec(Step):
    """A step that calls a codec of numcodecs."""

    makes_copy = False  # as far as is known

    def __init__(self, numcodec: Any) -> None:
        self._numcodec = numcodec

    def decode(self, data: Any, nbytes: int | None, destination: AnyArray | None) -> Any:
        return self._numcodec.decode(np.frombuffer(data, "B"))

    def encode(self, data: AnyArray) -> Any:
        return encode_bytes(self._numcodec, data)


class _Blosc(_Numcodec):
    name = "blosc"
    takes_destination = makes_copy = True

    def settings(self) -> dict[str, Any] | None:
        codec = self._numcodec
        if codec.shuffle not in (0, 1, 2):  # -1 looks at the elements
            return None
        return {
            "level": codec.clevel,
            "shuffle": codec.shuffle,
            "blocksize": codec.blocksize,
            "typesize": getattr(codec, "_typesize", None) or 1,
            "compressor_name": codec.cname.encode(),
        }

    def decode(self, data: Any, nbytes: int | None, destination: AnyArray | None) -> Any:
        check_blosc_header(data, nbytes)
        if destination is None:
            return blosc.decompress(data)
        blosc.decompress(data, destination)
        return destination


class _Zstd(_Numcodec):
    name = "zstd"
    takes_destination = makes_copy = True

    def settings(self) -> dict[str, Any]:
        return {"level": self._numcodec.level, "checksum": self._numcodec.checksum}

    def decode(self, data: Any, nbytes: int | None, destination: AnyArray | None) -> Any:
        if nbytes is None:
            return zstd.decompress(data)
        header = zstd_frame_header(memoryview(data))
        if header is None or header[1] != nbytes:
            # Several frames, one without a size, or damaged; the library would allocate any size that the header names.
            fault = header_fault(ChunkCoding(compressor="zstd", compressed_nbytes=nbytes), data, len(data))
            if fault is not None:
                raise Corruption(fault)
            return zstd.decompress(data)
        if destination is None:
            return zstd.decompress(data)
        # More bytes than the header says do not fit, and fewer are an error: the destination is filled, or the call raises.
        zstd.decompress(data, destination)
        return destination


class _Gzip(_Numcodec):
    name = "gzip"
    makes_copy = True

    def decode(self, data: Any, nbytes: int | None, destination: AnyArray | None) -> Any:
        if nbytes is not None:
            single = zlib.decompressobj(wbits=31)
            try:
                decoded = single.decompress(data, nbytes + 1)  # one more, or it stops before the checksum
            except zlib.error:
                pass  # if it is an error, the other decoder has the words for it
            else:
                if single.eof and not single.unused_data:
                    return decoded
        return self._numcodec.decode(data)  # several members, or zeros behind them


class _Crc32c(Step):
    name = "crc32c"

    def encoded_nbytes(self, nbytes: int | None) -> int | None:
        return None if nbytes is None else nbytes + CRC32C_NBYTES

    def decode(self, data: Any, nbytes: int | None, destination: AnyArray | None) -> Any:
        array = np.frombuffer(data, "B")
        body = array[:-CRC32C_NBYTES]
        stored, computed = array[-CRC32C_NBYTES:].tobytes(), _crc32c(body)
        if stored != computed:
            raise Corruption(f"its checksum is {stored.hex()} but its bytes give {computed.hex()}")
        return body

    def encode(self, data: AnyArray) -> Any:
        encoded = np.empty(len(data) + CRC32C_NBYTES, "B")
        encoded[:-CRC32C_NBYTES] = data
        encoded[-CRC32C_NBYTES:] = np.frombuffer(_crc32c(data), "B")
        return encoded


def _crc32c(data: AnyArray) -> bytes:
    return int(google_crc32c.value(data)).to_bytes(CRC32C_NBYTES, "little")


def _step(codec: Codec) -> Step | None:
    """Return the step that does the same as a codec of zarr; ``None`` if there is none."""
    kind: Any = type(codec)
    own: Any = codec
    if kind is Crc32cCodec:
        return _Crc32c()
    if kind is BloscCodec:
        return _Blosc(own._blosc_codec)
    if kind is ZstdCodec:
        return _Zstd(own._zstd_codec)
    if kind is GzipCodec:
        return _Gzip(own._gzip_codec)
    numcodec = numcodec_of(codec)
    if numcodec is None:
        return None
    by_id = {"blosc": _Blosc, "zstd": _Zstd, "gzip": _Gzip}
    return by_id.get(numcodec.codec_id, _Numcodec)(numcodec)


@dataclass(frozen=True, slots=True)
class DirectChain:
    """The direct calls that do the same as zarr's codecs to chunks of one shape and data type."""

    shape: tuple[int, ...]
    """The shape of a chunk."""
    dtype: np.dtype[Any]
    """The data type of the elements as they are stored, byte order included."""
    order: tuple[int, ...] | None
    """The order of the axes of stored elements; ``None``: they are not transposed."""
    stored_shape: tuple[int, ...]
    """The shape of a chunk whose axes are transposed."""
    nbytes: int
    """The bytes of the elements of a chunk."""
    steps: tuple[tuple[Step, int | None], ...]
    """The steps in the order of encoding, each with the number of bytes that it is given, if that is known."""

    @property
    def takes_destination(self) -> bool:
        """True if ``decode`` can be given memory to decompress into."""
        return bool(self.steps) and self.steps[0][0].takes_destination

    @property
    def takes_scratch(self) -> bool:
        """True if ``encode`` can be given memory in which to lay out elements: its result shares no memory with that."""
        return bool(self.steps) and self.steps[0][0].makes_copy

    def holds(self, dtype: np.dtype[Any]) -> bool:
        """Return whether elements of this type become stored ones by no more than a change of their byte order."""
        return dtype == self.dtype or (self.dtype.fields is None and dtype == self.dtype.newbyteorder("S"))

    def decode(self, data: memoryview, destination: AnyArray | None = None) -> AnyArray:
        """Return the elements of a chunk, in its shape: in ``destination`` if given, else in memory of their own or of ``data``.

        ``destination`` has ``nbytes`` bytes and one dimension; to be given if ``takes_destination``.

        Raises:
            Exception: of any kind, if it cannot be decoded; in ``destination`` there may be anything then.
        """
        value: Any = data
        for step, nbytes in self.steps[:0:-1]:
            value = step.decode(value, nbytes, None)
        if self.steps:
            value = self.steps[0][0].decode(value, self.nbytes, destination)
        flat = np.frombuffer(value, self.dtype)
        if flat.nbytes != self.nbytes:
            raise Corruption(f"it decodes to {flat.nbytes} bytes, {self.nbytes} were expected")
        if destination is not None and value is not destination:
            # Several frames, or one that does not tell its size, are decoded in memory of their own.
            destination[:] = flat.view("B")
            flat = destination.view(self.dtype)
        chunk = flat.reshape(self.stored_shape)
        return chunk if self.order is None else chunk.transpose(np.argsort(self.order))

    def place_for(self, region: AnyArray) -> AnyArray | None:
        """Return the memory of ``region``, as ``decode`` takes it, if a whole chunk can be decoded there; otherwise ``None``."""
        if self.order is not None:
            if region.shape != self.shape:
                return None
            region = region.transpose(self.order)
        if region.nbytes != self.nbytes or region.dtype != self.dtype or not region.flags.c_contiguous or not region.flags.writeable:
            return None
        return region.reshape(-1).view("B")

    def encode(self, chunk: AnyArray, scratch: AnyArray | None = None) -> memoryview:
        """Return the bytes of a chunk whose type this ``holds``; they may be those of ``chunk`` itself.

        ``scratch`` has ``nbytes`` bytes, to be used until this returns; to be given if ``takes_scratch``.
        """
        if self.order is not None:
            chunk = chunk.transpose(self.order)
        if chunk.dtype != self.dtype or not chunk.flags.c_contiguous:
            if scratch is not None:
                there = scratch.view(self.dtype).reshape(chunk.shape)
                there[...] = chunk
                chunk = there
            else:
                chunk = np.ascontiguousarray(chunk, self.dtype)
        value: Any = chunk.reshape(-1).view("B")
        for step, _ in self.steps:
            value = step.encode(np.frombuffer(value, "B"))
        return memoryview(value)


def compile_chain(codecs: Iterable[Codec], spec: ArraySpec) -> DirectChain | None:
    """Return direct calls for codecs that are fitted to ``spec``; ``None`` if they are not known to do all that zarr does."""
    if spec.prototype.buffer is not cpu.Buffer or spec.prototype.nd_buffer is not cpu.NDBuffer:
        return None  # the memory of a GPU, say
    order: Sequence[int] = range(len(spec.shape))
    steps: list[tuple[Step, int | None]] = []
    dtype: np.dtype[Any] | None = None
    nbytes: int | None = None
    for codec in codecs:
        if type(codec) is TransposeCodec and dtype is None:
            order = [order[axis] for axis in codec.order]
        elif type(codec) is BytesCodec and dtype is None:
            dtype = _stored_dtype(codec, spec)
            if dtype is None:
                return None
            nbytes = prod(spec.shape) * dtype.itemsize
        elif dtype is not None and (step := _step(codec)) is not None:
            steps.append((step, nbytes))
            nbytes = step.encoded_nbytes(nbytes)
        else:
            return None
    if dtype is None or not prod(spec.shape):
        return None
    is_in_order = list(order) == list(range(len(spec.shape)))
    return DirectChain(
        shape=spec.shape,
        dtype=dtype,
        order=None if is_in_order else tuple(order),
        stored_shape=tuple(spec.shape[axis] for axis in order),
        nbytes=prod(spec.shape) * dtype.itemsize,
        steps=tuple(steps),
    )


def _stored_dtype(codec: BytesCodec, spec: ArraySpec) -> np.dtype[Any] | None:
    """Return how zarr's codec reads bytes, found out by letting it read one element: versions of zarr treat structured types
    differently.
    """
    declared = spec.dtype.to_native_dtype()
    if declared.hasobject or not declared.itemsize:
        return None
    pattern = np.arange(declared.itemsize, dtype="B")
    read = codec._decode_sync(spec.prototype.buffer.from_array_like(pattern), replace(spec, shape=(1,))).as_numpy_array()
    for candidate in (declared, declared.newbyteorder("S")):
        if candidate.fields is not None and read.dtype != declared:
            continue
        if pattern.view(candidate).astype(read.dtype).tobytes() == read.tobytes():
            return candidate
    return None


def numcodec_of(codec: Codec) -> Any | None:
    """Return the codec from bytes to bytes that a wrapper of zarr calls; ``None`` for other codecs, and for subclasses of wrappers."""
    wrapper: Any = codec
    kind = type(codec)
    is_wrapper = issubclass(kind, wrappers._codecs._NumcodecsBytesBytesCodec) and getattr(wrappers, kind.__name__, None) is kind
    return wrapper._codec if is_wrapper else None


def encode_bytes(numcodec: Any, data: Any) -> Any:
    """Return an array of bytes encoded, as a buffer; checksums of numcodecs come as arrays of other types."""
    encoded = numcodec.encode(data)
    return encoded.tobytes() if isinstance(encoded, np.ndarray) else encoded


def has_sync(codec: Codec) -> bool:
    """Return whether a ``SyncChain`` may hold it."""
    if isinstance(codec, SupportsSyncCodec):
        return getattr(codec, "_sync_capable", True) and _says_the_same(type(codec), "_decode") and _says_the_same(type(codec), "_encode")
    return numcodec_of(codec) is not None


def _says_the_same(kind: type, method: str) -> bool:
    """Return whether both forms agree: a subclass may override ``…_single``, which zarr calls, without the ``…_sync`` that goes with it."""
    asked, single = (
        next((i for i, base in enumerate(kind.__mro__) if f"{method}_{form}" in vars(base)), len(kind.__mro__))
        for form in ("sync", "single")
    )
    return asked <= single


class SyncChain:
    """zarr's codecs for chunks of one spec, one call after the other. The methods are those of ``DirectChain``."""

    takes_destination = takes_scratch = False
    nbytes = 0

    def __init__(self, codecs: Iterable[Codec], spec: ArraySpec) -> None:
        self._spec = spec
        self._steps: list[tuple[Any, ArraySpec, int | None]] = []
        """Each codec with the spec and the number of bytes that it encodes; ``None`` if that depends on the elements."""
        dtype = spec.dtype.to_native_dtype()
        nbytes = None if dtype.hasobject else prod(spec.shape) * dtype.itemsize
        for codec in codecs:
            self._steps.append((codec, spec, nbytes))
            nbytes = codec.compute_encoded_size(nbytes, spec) if nbytes is not None and codec.is_fixed_size else None
            spec = codec.resolve_metadata(spec)

    def holds(self, dtype: np.dtype[Any]) -> bool:
        return True

    def place_for(self, region: AnyArray) -> None:
        return None

    def decode(self, data: memoryview, destination: AnyArray | None = None) -> AnyArray:
        """Return the elements of a chunk, in memory of their own or of ``data``.

        Raises:
            Exception: of any kind, if it cannot be decoded.
        """
        value: Any = self._spec.prototype.buffer.from_bytes(data)
        for codec, spec, nbytes in reversed(self._steps):
            if isinstance(codec, BloscCodec):
                check_blosc_header(bytes_of(value), nbytes)
            if isinstance(codec, SupportsSyncCodec):
                value = codec._decode_sync(value, spec)
            else:
                value = as_numpy_array_wrapper(codec._codec.decode, value, spec.prototype)
        if value.shape != self._spec.shape:
            raise Corruption(f"it has shape {value.shape}, {self._spec.shape} was expected")
        decoded: AnyArray = value.as_numpy_array()
        return decoded

    def encode(self, chunk: AnyArray, scratch: AnyArray | None = None) -> memoryview | None:
        """Return the bytes of a chunk; ``None`` if a codec drops it."""
        value: Any = self._spec.prototype.nd_buffer.from_numpy_array(chunk)
        for codec, spec, _ in self._steps:
            if isinstance(codec, SupportsSyncCodec):
                value = codec._encode_sync(value, spec)
            else:
                value = spec.prototype.buffer.from_bytes(encode_bytes(codec._codec, value.as_array_like()))
            if value is None:
                return None
        return bytes_of(value)


def bytes_of(buffer: Buffer) -> memoryview:
    return memoryview(buffer.as_numpy_array().data).cast("B") if len(buffer) else memoryview(b"")
