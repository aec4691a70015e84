"""The encoded bytes of a chunk that holds nothing but the fill value: for readers of Parquet that cannot tell a missing chunk."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from shardstore.errors import Unsupported
from shardstore.extras import how_to_install
from shardstore.format.json_text import JsonObject, NumberText


def fill_chunk(path: str, zarray: JsonObject) -> bytes:
    """Return one chunk of a Zarr v2 array, encoded by its own filters and compressor; zeros where the array has no fill value.

    Raises:
        Unsupported: the fill value or a codec is not known, or numcodecs is not installed.
    """
    try:
        dtype = np.dtype(zarray["dtype"])
        chunk: Any = np.empty(zarray["chunks"], dtype)
        chunk[...] = _value(zarray.get("fill_value"), dtype)
        steps = [*(zarray.get("filters") or ()), *([zarray["compressor"]] if zarray.get("compressor") else ())]
        if not steps:
            return bytes(chunk.tobytes())
        import numcodecs

        for configuration in steps:
            chunk = numcodecs.get_codec(dict(configuration)).encode(chunk)
        return bytes(memoryview(chunk).cast("B")) if not isinstance(chunk, np.ndarray) else chunk.tobytes()
    except ModuleNotFoundError as exc:
        raise Unsupported(f"missing='fill' needs numcodecs to encode a chunk of array {path!r}: {how_to_install('zarr')}") from exc
    except (TypeError, ValueError, KeyError) as exc:
        raise Unsupported(
            f"missing='fill' cannot make a chunk of array {path!r} from its fill value: {exc}; missing='null' leaves it out"
        ) from exc


def _value(value: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(value, NumberText):
        value = float(value.text)
    if value is None:
        return np.zeros((), dtype)
    if isinstance(value, str) and dtype.kind in "SV":
        return np.frombuffer(base64.standard_b64decode(value), dtype)[0]
    if isinstance(value, str) and dtype.kind not in "fUO":
        raise ValueError(f"fill value {value!r}")
    if isinstance(value, list):  # of complex numbers
        return complex(*(float(part) for part in value))
    return np.array(value, dtype)
