"""The kernel at work on arrays: chunks of local files are read straight into the result of a selection, and chunks of an assignment are
encoded where they lie in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from shardstore.adapters.zarr.codec_chains import AnyArray, DirectChain
from shardstore.engine.index_cache import CachedIndex
from shardstore.engine.reading.read_plan import Carrier
from shardstore.engine.writing.contents import NotMade, ShardContents
from shardstore.native.kernel import MAX_DIMENSIONS, ChunkParams, Codec, Kernel, SelectedAlong, ShardVersion
from shardstore.threads import threads_at_once

Ints = npt.NDArray[np.int64]

_MOST_NBYTES = 2**27  # of chunks that one call encodes: until it returns, nobody can interrupt it
_CODECS = {"zstd": Codec.ZSTD, "blosc": Codec.BLOSC, "gzip": Codec.GZIP}


@dataclass(frozen=True, slots=True, eq=False)
class KernelReader:
    """Reads chunks of one shape and data type."""

    kernel: Kernel
    params: ChunkParams
    order: tuple[int, ...]
    """For each dimension of the stored elements, the dimension of the array."""
    fill: bytes
    """An element in place of chunks that are not stored."""

    @classmethod
    def of(cls, kernel: Kernel | None, chain: DirectChain, fill: Any) -> KernelReader | None:
        """Return the reader for what a chain decodes; ``None`` if the kernel does not decode that."""
        found = _codec_of(chain)
        if kernel is None or found is None or not kernel.decodes(*found):
            return None
        params = kernel.chunk_params(chain.stored_shape, chain.dtype.itemsize, found[0], has_crc=found[1])
        element = np.empty((), chain.dtype)
        element[...] = fill
        return cls(kernel, params, _order_of(chain), element.tobytes())

    def read(
        self, carrier: Carrier, keys: Sequence[str], indices: Sequence[CachedIndex | None], along: Sequence[SelectedAlong], full: AnyArray
    ) -> tuple[int, int] | None:
        """Put selected elements into ``full``; return the number of chunks that are stored, and their bytes. ``None``: they have to be read
        in another way.

        ``keys`` and ``indices`` are those of the shards that have selected elements, in C order, ``None`` where there is no shard;
        ``along`` is for each dimension of the array.
        """
        shards: list[ShardVersion | None] = []
        inside: bytes | None = None
        for key, index in zip(keys, indices, strict=True):
            if index is None:
                shards.append(None)
                continue
            file = carrier.storage.file_of(key, index.generation)
            if file is None:
                return None
            inside = file.inside
            shards.append(ShardVersion(index.index.flat, index.object_nbytes, file.path, file.numbers))
        in_order, strides = [along[axis] for axis in self.order], [full.strides[axis] for axis in self.order]
        return self.kernel.read_selection(self.params, in_order, shards, inside, self.fill, strides, full, threads_at_once())


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

    def shard(self, source: AnyArray, begin: int, at: Ints, fill: bytes | None, threads: int) -> EncodedShard:
        """Return the contents of a shard that begins so many bytes behind the first element of ``source``, and its chunks, by slot, so many
        behind that.
        """
        params = self.params.with_strides([source.strides[axis] for axis in self.order])
        return EncodedShard(self.kernel, params, source, begin, at, fill, threads if params.codec is not Codec.NONE else 1)

    def encode(self, source: AnyArray, at: Ints, fill: bytes | None) -> list[memoryview | None] | None:
        """Return the chunks that begin so many bytes behind the first element of ``source``, as ``Kernel.encode`` does, in this thread.
        Chunks that lie in ``source`` as they are stored are left to Python, which makes no copy of them.
        """
        strides = [source.strides[axis] for axis in self.order]
        shape, nbytes = self.params.shape, self.params.itemsize
        are_as_stored = strides == [prod(shape[axis + 1 :]) * nbytes for axis in range(len(shape))]
        if are_as_stored and self.params.codec is Codec.NONE and not self.params.has_crc:
            return None
        params = self.params.with_strides(strides)
        return self.kernel.encode(params, source, at, fill, 1)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedShard(ShardContents):
    """The chunks of one shard, encoded where they lie in the value of an assignment; see ``KernelWriter.shard``."""

    kernel: Kernel
    params: ChunkParams
    source: AnyArray
    begin: int
    at: Ints
    fill: bytes | None
    threads: int

    def write(self, file: int, slots: npt.NDArray[np.intp]) -> Ints:
        at, sizes = self.begin + self.at[slots], np.empty(len(slots), dtype=np.int64)
        at_once = max(1, _MOST_NBYTES // self.params.nbytes)
        for start in range(0, len(at), at_once):
            some = self.kernel.encode_to_file(self.params, self.source, at[start : start + at_once], self.fill, file, self.threads)
            if some is None:
                raise NotMade
            sizes[start : start + at_once] = some
        return sizes


def _codec_of(chain: DirectChain) -> tuple[Codec, bool] | None:
    """Return the codec of a chain, and whether ``crc32c`` comes after it; ``None`` if the kernel has no such chain."""
    names = [step.name for step, _ in chain.steps]
    has_crc = names[-1:] == ["crc32c"]
    names = names[: len(names) - has_crc]
    codec = Codec.NONE if not names else _CODECS.get(names[0])
    return None if codec is None or len(names) > 1 or len(chain.shape) > MAX_DIMENSIONS else (codec, has_crc)


def _order_of(chain: DirectChain) -> tuple[int, ...]:
    return tuple(range(len(chain.shape))) if chain.order is None else chain.order
