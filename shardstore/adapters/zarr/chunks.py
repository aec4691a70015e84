"""Decoding and encoding single chunks with zarr's codecs, and the bytes between the engine and zarr's pipelines."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from zarr.codecs import BloscCodec
from zarr.core.codec_pipeline import BatchedCodecPipeline

from shardstore.adapters.zarr.direct import DESTINATION_NBYTES, DirectChain, compile_chain
from shardstore.adapters.zarr.numcodecs import decode_sync, encode_sync, has_sync
from shardstore.errors import Undecodable
from shardstore.format.chunk_coding import check_blosc_header

if TYPE_CHECKING:
    from zarr.abc.codec import Codec
    from zarr.abc.store import ByteRequest
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, BufferPrototype, NDBuffer

_ASSUMED_ITEM_BYTES = 16  # of object arrays
_CHAINS = 64  # that are kept: chunks of irregular grids may each have a shape of their own


@dataclass(frozen=True, slots=True)
class Entry:
    """One chunk of a selection or assignment, as zarr hands it to a pipeline."""

    getter: Any
    spec: ArraySpec
    chunk_selection: Any
    out_selection: Any
    is_complete: bool = False

    @property
    def key(self) -> str:
        path: str = self.getter.path
        return path

    @property
    def info(self) -> tuple[Any, ...]:
        return self.with_getter(self.getter)

    def with_getter(self, getter: Any) -> tuple[Any, ...]:
        return (getter, self.spec, self.chunk_selection, self.out_selection, self.is_complete)


def wave_bytes(spec: ArraySpec) -> int:
    """Decoded bytes of a chunk, for bounding memory."""
    dtype = spec.dtype.to_native_dtype()
    return prod(spec.shape) * (_ASSUMED_ITEM_BYTES if dtype.hasobject else max(1, dtype.itemsize))


def status(present: bool) -> dict[str, str]:
    """Return what newer versions of zarr want to know of each chunk (``GetResult``)."""
    return {"status": "present" if present else "missing"}


class MemoryGetter:
    """A chunk that has been fetched, as a ``ByteGetter``."""

    def __init__(self, key: str, value: memoryview | None) -> None:
        self.path = key
        self._value = value

    async def get(self, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        assert byte_range is None  # only partial decoding asks for ranges, and that goes elsewhere
        return None if self._value is None else prototype.buffer.from_bytes(self._value)


class MemorySetter(MemoryGetter):
    """Keeps what a pipeline stores, as a ``ByteSetter``."""

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
        """The new bytes, or ``None`` to erase the chunk."""
        assert self._decided
        return None if self._new is None else _view(self._new)


class ChunkCodec:
    """The codecs of one array, fitted to its chunks.

    Where there is a ``chain`` it does the same as what is here, faster.
    """

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
        self.is_sync = all(has_sync(codec) for codec in fitted)
        """True where every codec can be called directly; others go through zarr's own pipeline, in memory."""
        self._chains: dict[Any, DirectChain | None] = {}

    def chain(self, spec: ArraySpec) -> DirectChain | None:
        """Direct calls for chunks of this spec, where there are any."""
        key = (spec.shape, spec.dtype, spec.prototype)
        try:
            return self._chains[key]
        except KeyError:
            if len(self._chains) >= _CHAINS:
                self._chains.clear()
            chain = self._chains[key] = compile_chain(self.codecs, spec)
            return chain

    def _steps(self, spec: ArraySpec) -> list[tuple[Any, ArraySpec]]:
        steps: list[tuple[Any, ArraySpec]] = []
        for codec in self.codecs:
            steps.append((codec, spec))
            spec = codec.resolve_metadata(spec)
        return steps

    def decode(self, entry: Entry, data: memoryview) -> NDBuffer:
        """The elements of one chunk.

        Raises:
            Undecodable: the codecs cannot make them of these bytes.
        """
        value: Any = entry.spec.prototype.buffer.from_bytes(data)
        try:
            for i, (codec, spec) in reversed(list(enumerate(self._steps(entry.spec)))):
                if isinstance(codec, BloscCodec):
                    check_blosc_header(_view(value), self._nbytes_before(i, entry.spec))
                value = decode_sync(codec, value, spec)
        except MemoryError:
            raise
        except Exception as exc:
            raise undecodable(entry.key, len(data), exc) from exc
        decoded: NDBuffer = value
        if decoded.shape != entry.spec.shape:
            raise undecodable(entry.key, len(data), f"it has shape {decoded.shape}, {entry.spec.shape} was expected")
        return decoded

    def _nbytes_before(self, number: int, spec: ArraySpec) -> int | None:
        """The bytes that the codec of this number gets when a chunk is encoded; ``None`` where that depends on the elements."""
        dtype = spec.dtype.to_native_dtype()
        if dtype.hasobject:
            return None
        nbytes = prod(spec.shape) * dtype.itemsize
        for codec, before in self._steps(spec)[:number]:
            if not codec.is_fixed_size:
                return None
            nbytes = codec.compute_encoded_size(nbytes, before)
        return nbytes

    def encode(self, entry: Entry, array: NDBuffer) -> memoryview | None:
        """The bytes of one chunk; ``None`` where a codec drops it."""
        value: Any = array
        for codec, spec in self._steps(entry.spec):
            value = encode_sync(codec, value, spec)
            if value is None:
                return None
        return _view(value)

    def scatter(self, entry: Entry, data: memoryview | None, out: NDBuffer, drop_axes: tuple[int, ...]) -> None:
        """Put the selected elements of a chunk, or the fill value, where they belong in ``out``."""
        if data is None:
            out[entry.out_selection] = fill_value(entry.spec)
            return
        selected = self.decode(entry, data)[entry.chunk_selection]
        out[entry.out_selection] = selected.squeeze(axis=drop_axes) if drop_axes else selected

    def merge_and_encode(self, entry: Entry, old: memoryview | None, value: NDBuffer, drop_axes: tuple[int, ...]) -> memoryview | None:
        """The new bytes of a chunk after its part of ``value`` was assigned; ``None`` where it equals the fill value."""
        chunk = self._merge(entry, old, value, drop_axes)
        spec = entry.spec
        if not spec.config.write_empty_chunks and chunk.all_equal(fill_value(spec)):
            return None
        return self.encode(entry, chunk)

    def _merge(self, entry: Entry, old: memoryview | None, value: NDBuffer, drop_axes: tuple[int, ...]) -> NDBuffer:
        spec = entry.spec
        is_scalar = value.shape == ()
        part = value if is_scalar else value[entry.out_selection]
        if entry.is_complete and not is_scalar and part.shape == spec.shape:
            return part  # a view of what the caller assigns: encoded, never changed
        if old is None:
            chunk = spec.prototype.nd_buffer.create(
                shape=spec.shape, dtype=spec.dtype.to_native_dtype(), order=spec.order, fill_value=fill_value(spec)
            )
        else:
            chunk = self.decode(entry, old).copy()
        if drop_axes and not is_scalar:
            # Axes that an integer selected are gone from the value; put them back with length one.
            part = part[tuple(None if axis in drop_axes else slice(None) for axis in range(len(spec.shape)))]
        chunk[entry.chunk_selection] = part
        return chunk


def fill_value(spec: ArraySpec) -> Any:
    """The value of elements that no chunk holds."""
    return spec.dtype.default_scalar() if spec.fill_value is None else spec.fill_value


def undecodable(key: str, nbytes: int, why: object) -> Undecodable:
    """The error for a chunk of so many bytes of which nothing can be made."""
    what = f"{type(why).__name__}: {why}" if isinstance(why, Exception) else why
    return Undecodable(f"chunk {key!r} ({nbytes} bytes) cannot be decoded: {what}. Write the chunk again, or restore its shard")


def _view(value: Buffer) -> memoryview:
    return memoryview(value.as_numpy_array().data).cast("B") if len(value) else memoryview(b"")
