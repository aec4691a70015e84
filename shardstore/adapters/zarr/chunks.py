"""Decode chunks into the output of a selection, and encode chunks of an assignment: one pass over many chunks, in one thread.

The tuples are zarr's: ``(getter, spec, chunk_selection, out_selection, is_complete)``. Tens of thousands of them come at once, so facts
that all share are looked up once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from zarr.core.buffer import cpu
from zarr.core.codec_pipeline import BatchedCodecPipeline

from shardstore.adapters.zarr.codec_chains import DESTINATION_NBYTES, AnyArray, DirectChain, SyncChain, bytes_of, compile_chain, has_sync
from shardstore.adapters.zarr.kernel_codecs import KernelWriter
from shardstore.errors import Undecodable
from shardstore.native.kernel import Kernel

if TYPE_CHECKING:
    from zarr.abc.codec import Codec
    from zarr.abc.store import ByteRequest
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, BufferPrototype, NDBuffer

Info = tuple[Any, ...]

_ASSUMED_ITEM_BYTES = 16  # of object arrays
_CHAINS = 64  # that are kept: chunks of irregular grids may each have a shape of their own
_FIRST_COMPARED = 2**14  # elements: enough to be worth a call of numpy, few enough to cost next to nothing where they differ


def wave_bytes(spec: ArraySpec) -> int:
    """Return the decoded bytes of a chunk, for bounding memory."""
    return prod(spec.shape) * item_bytes(spec.dtype.to_native_dtype())


def item_bytes(dtype: np.dtype[Any]) -> int:
    """Return the bytes of an element, for bounding memory."""
    return _ASSUMED_ITEM_BYTES if dtype.hasobject else max(1, dtype.itemsize)


def status(present: bool) -> dict[str, str]:
    """Return the status of a chunk for newer versions of zarr (``GetResult``)."""
    return {"status": "present" if present else "missing"}


class ChunkCodec:
    """The codecs of one array, fitted to its chunks."""

    def __init__(self, codecs: Iterable[Codec], spec: ArraySpec, destination_bytes: int = DESTINATION_NBYTES) -> None:
        self.destination_bytes = destination_bytes
        """Chunks of at least this size are decompressed into memory that is there already."""
        fitted: list[Codec] = []
        for codec in codecs:
            codec = codec.evolve_from_array_spec(spec)
            fitted.append(codec)
            spec = codec.resolve_metadata(spec)
        self.codecs: tuple[Codec, ...] = tuple(fitted)
        self.pipeline = BatchedCodecPipeline.from_codecs(self.codecs)
        self._have_sync = all(has_sync(codec) for codec in fitted)
        self._chains: dict[Any, DirectChain | SyncChain] = {}
        self._writers: dict[DirectChain, KernelWriter | None] = {}

    def is_sync(self, spec: ArraySpec) -> bool:
        """Return whether there is a chain for chunks of this spec. Any other chunk goes through zarr's own pipeline, in memory."""
        return self._have_sync and issubclass(spec.prototype.nd_buffer, cpu.NDBuffer)

    def chain(self, spec: ArraySpec) -> DirectChain | SyncChain:
        """Return the fastest calls that do what the codecs do with chunks of this spec."""
        key = (spec.shape, spec.dtype, spec.prototype)
        chain = self._chains.get(key)
        if chain is None:
            if len(self._chains) >= _CHAINS:
                self._chains.clear()
            chain = self._chains[key] = compile_chain(self.codecs, spec) or SyncChain(self.codecs, spec)
        return chain

    def kernel_writer(self, kernel: Kernel, spec: ArraySpec) -> KernelWriter | None:
        """Return what encodes chunks of this spec without the interpreter's lock, if there is anything."""
        chain = self.chain(spec)
        if not isinstance(chain, DirectChain):
            return None
        if chain not in self._writers:
            self._writers[chain] = KernelWriter.of(kernel, chain)
        return self._writers[chain]


class _Chains:
    """The chain for one chunk after the other; it is looked up only when the spec changes."""

    def __init__(self, codec: ChunkCodec) -> None:
        self._codec = codec
        self._spec: ArraySpec | None = None
        self.chain: DirectChain | SyncChain
        self.destination: AnyArray | None = None
        """Memory to decode into, which the next chunk overwrites."""

    def turn_to(self, spec: ArraySpec) -> DirectChain | SyncChain:
        last, self._spec = self._spec, spec
        if last is None or spec.shape != last.shape or spec.dtype is not last.dtype or spec.prototype is not last.prototype:
            self.chain = chain = self._codec.chain(spec)
            is_large = chain.takes_destination and chain.nbytes >= self._codec.destination_bytes
            self.destination = np.empty(chain.nbytes, "B") if is_large else None
        return self.chain


def scatter_chunks(
    codec: ChunkCodec, infos: Sequence[Info], values: Sequence[memoryview | None], out: NDBuffer, drop_axes: tuple[int, ...]
) -> None:
    """Put the selected elements of each chunk, or the fill value, where they belong in ``out``.

    Raises:
        Undecodable: a chunk cannot be decoded; what ``out`` holds then is undefined.
    """
    array: Any = out.as_ndarray_like()
    is_numpy = isinstance(array, np.ndarray)
    chains = _Chains(codec)
    for info, data in zip(infos, values, strict=True):
        getter, spec, chunk_selection, out_selection = info[:4]
        if data is None:
            out[out_selection] = fill_value(spec)
            continue
        chain = chains.turn_to(spec)
        destination = chains.destination
        region = None
        if destination is not None and is_numpy and _is_whole(chunk_selection, spec.shape) and _is_basic(out_selection):
            # Of an array without dimensions, ``array[()]`` may be a copy.
            region = chain.place_for(array[out_selection] if out_selection else array)
        chunk = decode_chunk(chain, getter, data, destination if region is None else region)
        if region is not None:
            continue
        part = chunk[chunk_selection]
        if drop_axes:
            part = part.reshape([n for axis, n in enumerate(part.shape) if axis not in drop_axes])
        array[out_selection] = part


def gather_chunks(
    codec: ChunkCodec,
    infos: Sequence[Info],
    old: Sequence[memoryview | None],
    value: NDBuffer,
    drop_axes: tuple[int, ...],
    kernel: Kernel | None = None,
) -> list[memoryview | None]:
    """Return the new bytes of each chunk after its part of ``value`` was assigned; ``None`` if it equals the fill value.

    They may lie in the memory of ``value``. Whole chunks are encoded by the kernel, where one is given that can.

    Raises:
        Undecodable: a chunk that is only partly assigned cannot be decoded.
    """
    source = elements_of(value)
    is_scalar = value.shape == ()
    chains = _Chains(codec)
    scratch: AnyArray | None = None
    encoded = {} if not infos or is_scalar or drop_axes or kernel is None else _encoded_by_kernel(kernel, codec, infos, source)
    new: list[memoryview | None] = []
    for number, (info, was) in enumerate(zip(infos, old, strict=True)):
        if number in encoded:
            new.append(encoded[number])
            continue
        getter, spec, chunk_selection, out_selection, is_complete = info
        chain = chains.turn_to(spec)
        if not chain.holds(source.dtype):
            chain = SyncChain(codec.codecs, spec)
        part = _as_numpy(source if is_scalar else source[out_selection], source.dtype)
        if is_complete and not is_scalar and part.shape == spec.shape:
            chunk = part
        else:
            chunk = _old_chunk(chain, getter, spec, was)
            if drop_axes and not is_scalar:
                part = part[_with_axes(drop_axes, len(spec.shape))]
            chunk[chunk_selection] = part
        if _is_dropped(spec, chunk):
            new.append(None)
            continue
        if chain.takes_scratch and (scratch is None or len(scratch) != chain.nbytes):
            scratch = np.empty(chain.nbytes, "B")
        new.append(chain.encode(chunk, scratch if chain.takes_scratch else None))
    return new


def elements_of(value: NDBuffer) -> Any:
    """Return the array of the value of an assignment; of a masked array the elements, whether they are masked or not."""
    source: Any = value.as_ndarray_like()
    return source.view(np.ndarray) if isinstance(source, np.ndarray) else source


@dataclass(frozen=True, slots=True, eq=False)
class WholeChunks:
    """The whole chunks of an assignment that the kernel encodes where they lie in the assigned value."""

    writer: KernelWriter
    source: AnyArray
    numbers: list[int]
    at: npt.NDArray[np.int64]
    """Where the first element of each lies, in bytes from the first one of ``source``."""
    fill: bytes | None
    """An element of chunks that are not stored."""


def writer_from(kernel: Kernel, codec: ChunkCodec, spec: ArraySpec, source: Any) -> tuple[KernelWriter, bytes | None] | None:
    """Return what encodes whole chunks where they lie in ``source``, and an element of those that are not stored; ``None`` if the kernel
    does not encode them.
    """
    writer = codec.kernel_writer(kernel, spec)
    if writer is None or not isinstance(source, np.ndarray) or source.dtype != writer.dtype or source.ndim != len(spec.shape):
        return None  # an integer selects chunks of length one
    if min(source.strides, default=0) < 0:
        return None
    fill = b"" if spec.config.write_empty_chunks else _fill_bits(spec, writer.dtype)
    return None if fill is None else (writer, fill or None)


def whole_chunks(kernel: Kernel, codec: ChunkCodec, infos: Sequence[Info], source: Any) -> WholeChunks | None:
    """Return the whole chunks that the kernel encodes; ``None`` if there is none."""
    spec = infos[0][1]
    found = writer_from(kernel, codec, spec, source)
    if found is None:
        return None
    writer, fill = found
    numbers: list[int] = []
    at: list[int] = []
    shape = spec.shape
    axes = list(zip(source.strides, shape, source.shape, strict=True))
    for number, (_, mine, _, out_selection, is_complete) in enumerate(infos):
        if not is_complete or mine.shape != shape or type(out_selection) is not tuple or len(out_selection) != len(shape):
            continue
        offset = 0
        for along, (stride, n, end) in zip(out_selection, axes, strict=True):
            if type(along) is not slice or along.step not in (None, 1) or type(first := along.start) is not int:
                break
            if not 0 <= first <= end - n or along.stop != first + n:
                break
            offset += first * stride
        else:
            numbers.append(number)
            at.append(offset)
    return WholeChunks(writer, source, numbers, np.array(at, dtype=np.int64), fill) if at else None


def _encoded_by_kernel(kernel: Kernel, codec: ChunkCodec, infos: Sequence[Info], source: Any) -> dict[int, memoryview | None]:
    """Return the whole chunks that the kernel encodes, by number."""
    whole = whole_chunks(kernel, codec, infos, source)
    found = None if whole is None else whole.writer.encode(whole.source, whole.at, whole.fill)
    return {} if whole is None or found is None else dict(zip(whole.numbers, found, strict=True))


def _fill_bits(spec: ArraySpec, dtype: np.dtype[Any]) -> bytes | None:
    """Return the bits of the fill value, if zarr calls no other bits equal to it; else ``None``: there are many NaN, and two zeros in
    complex numbers.
    """
    fill = fill_value(spec)
    if dtype.kind not in "biuf" or (dtype.kind == "f" and dtype.itemsize > 8) or fill != fill:
        return None
    if dtype.kind == "f" and fill == 0.0 and np.asarray(fill).dtype.kind != "f":
        return None
    return np.asarray(fill).astype(dtype).tobytes()


def _is_dropped(spec: ArraySpec, chunk: AnyArray) -> bool:
    """Return whether a chunk is not stored, since all its elements equal the fill value."""
    return not spec.config.write_empty_chunks and _equals(spec, chunk, fill_value(spec))


def _as_numpy(part: Any, dtype: np.dtype[Any]) -> AnyArray:
    return part if type(part) is np.ndarray else np.asarray(part, dtype)


def _old_chunk(chain: DirectChain | SyncChain, getter: Any, spec: ArraySpec, was: memoryview | None) -> AnyArray:
    """Return the elements that a chunk has so far, which may be written to: fill values where it does not exist."""
    if was is not None:
        return decode_chunk(chain, getter, was).copy()
    create = spec.prototype.nd_buffer.create
    shape, dtype = spec.shape, spec.dtype.to_native_dtype()
    filled: AnyArray = create(shape=shape, dtype=dtype, order=spec.order, fill_value=fill_value(spec)).as_numpy_array()
    return filled


def _with_axes(drop_axes: tuple[int, ...], ndim: int) -> tuple[slice | None, ...]:
    """Return the index that puts axes back, with length one, which are gone from a value because an integer selected them."""
    return tuple(None if axis in drop_axes else slice(None) for axis in range(ndim))


def decode_chunk(chain: DirectChain | SyncChain, getter: Any, data: memoryview, destination: AnyArray | None = None) -> AnyArray:
    """Return the elements of one chunk; see ``DirectChain.decode``.

    Raises:
        Undecodable: the codecs cannot make them of these bytes.
    """
    try:
        return chain.decode(data, destination)
    except MemoryError:
        raise
    except Exception as exc:
        raise Undecodable(
            f"chunk {getter.path!r} ({len(data)} bytes) cannot be decoded: {type(exc).__name__}: {exc}. Write the chunk again, or restore "
            "its shard"
        ) from exc


def fill_value(spec: ArraySpec) -> Any:
    """Return the value of elements that no chunk holds."""
    return spec.dtype.default_scalar() if spec.fill_value is None else spec.fill_value


def _equals(spec: ArraySpec, chunk: AnyArray, fill: Any) -> bool:
    """Return whether zarr calls all elements equal to the fill value: NaN equals NaN, and where that is a float 0.0, -0.0 differs.

    Most chunks with data differ in their first element.
    """
    kind, itemsize = chunk.dtype.kind, chunk.dtype.itemsize
    if chunk.size and kind in "biufc":
        first = chunk[(0,) * chunk.ndim]
        if first != fill and (first == first or fill == fill):
            return False
    if kind == "f" and itemsize in (2, 4, 8) and np.asarray(fill).dtype.kind == "f" and fill == 0.0:
        # zarr compares bits too, as elements of a void type, for which numpy has no loop of its own.
        bits = chunk.view(f"u{itemsize}")
        return _all_equal(bits, np.asarray(fill, chunk.dtype).view(bits.dtype))
    if kind in "biu":
        return _all_equal(chunk, fill)
    return spec.prototype.nd_buffer.from_numpy_array(chunk).all_equal(fill)


def _all_equal(chunk: AnyArray, fill: Any) -> bool:
    """Compare growing pieces, so that little is compared if something differs."""
    if not chunk.ndim:
        return bool(chunk == fill)
    step = max(1, _FIRST_COMPARED * len(chunk) // max(1, chunk.size))
    start = 0
    while start < len(chunk):
        if not (chunk[start : start + step] == fill).all():
            return False
        start, step = start + step, step * 2
    return True


def _is_whole(selection: Any, shape: tuple[int, ...]) -> bool:
    """Return whether it selects a whole chunk, element after element."""
    if type(selection) is not tuple or len(selection) != len(shape):
        return False
    for along, n in zip(selection, shape, strict=True):
        if type(along) is slice:
            if along.start not in (0, None) or along.stop not in (n, None) or along.step not in (1, None):
                return False
        elif n != 1 or not isinstance(along, (int, np.integer)):
            return False
    return True


def _is_basic(selection: Any) -> bool:
    """Return whether indexing with it gives a view of what is indexed, and not a copy."""
    return type(selection) is tuple and all(type(along) is slice for along in selection)


class MemoryGetter:
    """A chunk that has been fetched, as a ``ByteGetter``."""

    def __init__(self, key: str, value: memoryview | None) -> None:
        self.path = key
        self._value = value

    async def get(self, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        assert byte_range is None  # only partial decoding asks for ranges, and that goes elsewhere
        return None if self._value is None else prototype.buffer.from_bytes(self._value)


class MemorySetter(MemoryGetter):
    """A chunk that a pipeline stores, as a ``ByteSetter``."""

    def __init__(self, key: str, old: memoryview | None) -> None:
        super().__init__(key, old)
        self._new: Buffer | None = None
        self._decided = False

    async def set(self, value: Buffer) -> None:
        self._new, self._decided = value, True

    async def set_if_not_exists(self, default: Buffer) -> None:
        if self._value is None and not self._decided:
            await self.set(default)

    async def delete(self) -> None:
        self._new, self._decided = None, True

    def result(self) -> memoryview | None:
        """Return the new bytes, or ``None`` to erase the chunk."""
        assert self._decided
        return None if self._new is None else bytes_of(self._new)
