"""The codecs of numcodecs that zarr wraps (``zarr.codecs.numcodecs``, ``numcodecs.zarr3``), called without zarr's event loop.

Older versions of zarr call them from coroutines only, one thread hop a chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from zarr.abc.codec import SupportsSyncCodec
from zarr.codecs import numcodecs as wrappers
from zarr.core.buffer.cpu import as_numpy_array_wrapper

if TYPE_CHECKING:
    from zarr.abc.codec import Codec
    from zarr.core.array_spec import ArraySpec


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
    """Return whether ``decode_sync`` and ``encode_sync`` may be called."""
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


def decode_sync(codec: Any, value: Any, spec: ArraySpec) -> Any:
    """Decode like the codec's own method, which older versions do not have."""
    if isinstance(codec, SupportsSyncCodec):
        return codec._decode_sync(value, spec)
    return as_numpy_array_wrapper(codec._codec.decode, value, spec.prototype)


def encode_sync(codec: Any, value: Any, spec: ArraySpec) -> Any:
    """Encode like the codec's own method, which older versions do not have; ``None`` where it drops the chunk."""
    if isinstance(codec, SupportsSyncCodec):
        return codec._encode_sync(value, spec)
    return spec.prototype.buffer.from_bytes(encode_bytes(codec._codec, value.as_array_like()))
