"""zarr's own codecs, called directly, without its event loop: what ``direct`` does not know to the letter is done by these.

Codecs of numcodecs that zarr wraps (``zarr.codecs.numcodecs``, ``numcodecs.zarr3``) are called without the wrapper: older versions of zarr
call them from coroutines only, one thread hop a chunk.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from zarr.abc.codec import SupportsSyncCodec
from zarr.codecs import BloscCodec
from zarr.codecs import numcodecs as wrappers
from zarr.core.buffer.cpu import as_numpy_array_wrapper

from shardstore.errors import Corruption
from shardstore.format.chunk_coding import check_blosc_header

if TYPE_CHECKING:
    from zarr.abc.codec import Codec
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer

AnyArray = npt.NDArray[Any]


def numcodec_of(codec: Codec) -> Any | None:
    """The codec from bytes to bytes that one of zarr's own wrappers calls; ``None`` for everything else, classes derived from them too."""
    wrapper: Any = codec
    kind = type(codec)
    is_wrapper = issubclass(kind, wrappers._codecs._NumcodecsBytesBytesCodec) and getattr(wrappers, kind.__name__, None) is kind
    return wrapper._codec if is_wrapper else None


def encode_bytes(numcodec: Any, data: Any) -> Any:
    """Return what it makes of an array of bytes, as a buffer; its checksums come as arrays of other types."""
    encoded = numcodec.encode(data)
    return encoded.tobytes() if isinstance(encoded, np.ndarray) else encoded


def has_sync(codec: Codec) -> bool:
    """Return whether a ``SyncChain`` may hold it."""
    if isinstance(codec, SupportsSyncCodec):
        return getattr(codec, "_sync_capable", True) and _says_the_same(type(codec), "_decode") and _says_the_same(type(codec), "_encode")
    return numcodec_of(codec) is not None


def _says_the_same(kind: type, method: str) -> bool:
    """Not where a subclass has another ``…_single``, which zarr's pipelines call, and not the ``…_sync`` that goes with it."""
    asked, single = (
        next((i for i, base in enumerate(kind.__mro__) if f"{method}_{form}" in vars(base)), len(kind.__mro__))
        for form in ("sync", "single")
    )
    return asked <= single


class SyncChain:
    """zarr's codecs for chunks of one spec, one call after the other. The methods are those of ``direct.DirectChain``."""

    takes_destination = takes_scratch = False
    nbytes = 0

    def __init__(self, codecs: Iterable[Codec], spec: ArraySpec) -> None:
        self._spec = spec
        self._steps: list[tuple[Any, ArraySpec, int | None]] = []
        """Each codec with the spec and the number of bytes that it encodes; ``None`` where that depends on the elements."""
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
        """The elements of a chunk, in memory of their own or of ``data``.

        Raises:
            Exception: of whatever kind, where it cannot be decoded.
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
        """The bytes of a chunk; ``None`` where a codec drops it."""
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
