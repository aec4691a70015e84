"""The kernel at work on arrays: chunks of local files are read straight into the result of a selection, and chunks of an assignment are
encoded where they lie in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardstore.adapters.zarr.codec_chains import AnyArray, DirectChain
from shardstore.adapters.zarr.codec_threads import INLINE_BYTES, threads_at_once
from shardstore.engine.reading.read_plan import ChunkPlace, PlannedObject, ReadPlan
from shardstore.native.kernel import CHUNK_DTYPE, MAX_DIMENSIONS, ChunkParams, Codec, Kernel
from shardstore.storage.abilities import BlockingReads, OpenVersion

Ints = npt.NDArray[np.int64]

_MOST_NBYTES = 2**27  # of decoded chunks that one call reads: until it returns, nobody can interrupt it
_MOST_FILES = 64  # that are open at once
_READ_NBYTES = 2**10  # that are decoded in the time of a read
_COPIED = 8  # times as many bytes are copied as decoded in one time
_CODECS = {"zstd": Codec.ZSTD, "blosc": Codec.BLOSC, "gzip": Codec.GZIP}


@dataclass(frozen=True, slots=True, eq=False)
class KernelReader:
    """Reads chunks of one shape and data type."""

    kernel: Kernel
    params: ChunkParams
    order: tuple[int, ...]
    """For each dimension of the stored elements, the dimension of the array."""

    @classmethod
    def of(cls, kernel: Kernel | None, chain: DirectChain) -> KernelReader | None:
        """Return the reader for what a chain decodes; ``None`` if the kernel does not decode that."""
        found = _codec_of(chain)
        if kernel is None or found is None or not kernel.decodes(*found):
            return None
        params = kernel.chunk_params(chain.stored_shape, chain.dtype.itemsize, found[0], has_crc=found[1])
        return cls(kernel, params, _order_of(chain))

    def read(self, storage: BlockingReads, plan: ReadPlan, selections: Ints, begins: Ints, full: AnyArray) -> bool:
        """Put the selected elements of the planned chunks into ``full``; return ``False`` if they have to be read in another way.

        ``selections``, ``(n, 3, ndim)``: first element, count and step along each dimension, for each chunk of the batch. ``begins``,
        ``(n, ndim)``: the first of these elements in ``full``. The objects of the plan are in ascending order.
        """
        chunks = np.empty(len(plan.numbers), CHUNK_DTYPE)
        chunks["offset"], chunks["nbytes"], chunks["file"] = plan.offsets, plan.nbytes, plan.of_object
        chunks["at"] = begins[plan.numbers] @ np.array(full.strides, dtype=np.int64)
        params = self.params.with_strides([full.strides[axis] for axis in self.order])
        chosen = self._in_stored_order(selections[plan.numbers])
        for first in range(0, len(plan.objects), _MOST_FILES):
            begin, end = np.searchsorted(plan.of_object, (first, first + _MOST_FILES)).tolist()
            chunks["file"][begin:end] -= first
            objects = plan.objects[first : first + _MOST_FILES]
            if begin < end and not self._read_files(storage, objects, params, chunks[begin:end], chosen[begin:end], full):
                return False
        plan.carrier.counters.add(requests=len(chunks), bytes_read=int(plan.nbytes.sum()), chunks_read=len(chunks))
        return True

    def _read_files(
        self,
        storage: BlockingReads,
        objects: Sequence[PlannedObject],
        params: ChunkParams,
        chunks: npt.NDArray[Any],
        selections: Ints,
        full: AnyArray,
    ) -> bool:
        """Read the chunks of some objects, which are open at the same time."""
        opened: list[OpenVersion] = []
        descriptors = np.full(len(objects), -1, np.int32)
        try:
            for number in set(chunks["file"].tolist()):
                file = storage.open_version(objects[number].key, objects[number].version)
                if file is None:
                    return False
                opened.append(file)
                descriptors[number] = file.fd
            at_once = max(1, _MOST_NBYTES // params.nbytes)
            for start in range(0, len(chunks), at_once):
                some, chosen = chunks[start : start + at_once], selections[start : start + at_once]
                if self.kernel.read(params, descriptors, some, chosen, full, self._threads(chosen)):
                    return False
            return all(file.is_unchanged() for file in opened)
        finally:
            for file in opened:
                file.close()

    def _in_stored_order(self, selections: Ints) -> Ints:
        return selections if self.order == tuple(range(len(self.order))) else np.ascontiguousarray(selections[:, :, self.order])

    def read_one(self, storage: BlockingReads, place: ChunkPlace, selection: Ints, full: AnyArray) -> bool:
        """Put the selected elements of one chunk into ``full``, as ``read`` does. ``selection``: ``(1, 3, ndim)``."""
        file = storage.open_version(place.shard_key, place.version)
        if file is None:
            return False
        try:
            chunks = np.array([(place.offset, place.nbytes, 0, 0, 0)], CHUNK_DTYPE)
            params = self.params.with_strides([full.strides[axis] for axis in self.order])
            chosen = self._in_stored_order(selection)
            return not self.kernel.read(params, np.array([file.fd], np.int32), chunks, chosen, full, 1) and file.is_unchanged()
        finally:
            file.close()

    def _threads(self, selections: Ints) -> int:
        """Return how many threads are worth starting: of plain and Blosc chunks only what lies around selected elements is decoded."""
        nbytes = len(selections) * self.params.nbytes
        if self.params.codec in (Codec.NONE, Codec.BLOSC) and not self.params.has_crc:
            spans = ((selections[:, 1] - 1) * selections[:, 2]) @ self.params.chunk_strides
            spanned = int(spans.sum()) // (_COPIED if self.params.codec is Codec.NONE else 1)
            nbytes = min(nbytes, spanned + len(selections) * _READ_NBYTES)
        return 1 if nbytes <= INLINE_BYTES else min(threads_at_once(), len(selections))


@dataclass(frozen=True, slots=True, eq=False)
class KernelWriter:
    """Encodes whole chunks of one shape and data type."""

    kernel: Kernel
    params: ChunkParams
    order: tuple[int, ...]
    """For each dimension of the stored elements, the dimension of the array."""
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, kernel: Kernel, chain: DirectChain) -> KernelWriter | None:
        """Return what encodes as a chain does; ``None`` if the kernel does not."""
        found = _codec_of(chain)
        if found is None or not kernel.encodes(*found):
            return None
        settings = chain.steps[0][0].settings() if found[0] is not Codec.NONE else {}
        if settings is None:
            return None
        params = kernel.chunk_params(chain.stored_shape, chain.dtype.itemsize, found[0], has_crc=found[1], **settings)
        return cls(kernel, params, _order_of(chain), chain.dtype)

    def encode(self, source: AnyArray, at: Ints, fill: bytes | None) -> list[memoryview | None] | None:
        """Return the chunks that begin so many bytes behind the first element of ``source``, as ``Kernel.encode`` does, in this thread."""
        params = self.params.with_strides([source.strides[axis] for axis in self.order])
        return self.kernel.encode(params, source, at, fill, 1)


def _codec_of(chain: DirectChain) -> tuple[Codec, bool] | None:
    """Return the codec of a chain, and whether ``crc32c`` comes after it; ``None`` if the kernel has no such chain."""
    names = [step.name for step, _ in chain.steps]
    has_crc = names[-1:] == ["crc32c"]
    names = names[: len(names) - has_crc]
    codec = Codec.NONE if not names else _CODECS.get(names[0])
    return None if codec is None or len(names) > 1 or len(chain.shape) > MAX_DIMENSIONS else (codec, has_crc)


def _order_of(chain: DirectChain) -> tuple[int, ...]:
    return tuple(range(len(chain.shape))) if chain.order is None else chain.order
