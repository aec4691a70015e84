"""The codecs of numcodecs that zarr wraps (``zarr.codecs.numcodecs``, ``numcodecs.zarr3``): the one that is wrapped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zarr.codecs import numcodecs as wrappers

if TYPE_CHECKING:
    from zarr.abc.codec import Codec


def numcodec_of(codec: Codec) -> Any | None:
    """The codec from bytes to bytes that one of zarr's own wrappers calls; ``None`` for everything else, classes derived from them too."""
    wrapper: Any = codec
    kind = type(codec)
    is_wrapper = issubclass(kind, wrappers._codecs._NumcodecsBytesBytesCodec) and getattr(wrappers, kind.__name__, None) is kind
    return wrapper._codec if is_wrapper else None
