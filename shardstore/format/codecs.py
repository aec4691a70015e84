"""Codecs as metadata documents name them, the effect of those before the sharding on the dimensions of an array, and ``crc32c`` itself.

::

    array (d0, d1, d2)  →  transpose, order [2, 0, 1]  →  (d2, d0, d1)  →  transpose, order [1, 0, 2]  →  (d0, d2, d1)
    axes                                                  (2, 0, 1)                                       (0, 2, 1)

Older drafts used other spellings: the order of ``transpose`` by a letter, ``bytes`` as ``endian`` (ZEP 2). Specification: Zarr v3,
"Codecs"; transpose codec 1.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import google_crc32c
import numpy as np

from shardstore.format.json_text import JsonObject
from shardstore.model.ranges import BytesLike

SHARDING = "sharding_indexed"
TRANSPOSE = "transpose"
CRC32C_NBYTES = 4

_COPIED_NBYTES = 2**12  # so many are copied in less time than an array is made

Axes = tuple[int, ...]
"""The dimensions behind a transposition: ``axes[i]`` is the array's dimension that has become dimension ``i``."""

T = TypeVar("T")


class LeadingTransposes(NamedTuple):
    """Transpose codecs at the beginning of a list of codecs: their number, and their effect together."""

    number: int
    axes: Axes


def codec_name(codec: Any) -> str | None:
    """Return the name of a codec, which is written as a string (``"crc32c"``) or as an object."""
    if isinstance(codec, str):
        return codec
    name = codec.get("name") if isinstance(codec, dict) else None
    return name if isinstance(name, str) else None


def codec_configuration(codec: Any) -> JsonObject:
    """Return the configuration of a codec; empty where there is none."""
    configuration = codec.get("configuration") if isinstance(codec, dict) else None
    return configuration if isinstance(configuration, dict) else {}


def transpose_order(codec: Any, ndim: int) -> Axes | None:
    """Return the permutation that a transpose codec names, or ``None`` where that is no permutation of ``ndim`` dimensions."""
    order = codec_configuration(codec).get("order")
    if order in ("C", "F"):
        return tuple(range(ndim)) if order == "C" else tuple(range(ndim))[::-1]
    if not isinstance(order, list) or not all(type(n) is int for n in order) or sorted(order) != list(range(ndim)):
        return None
    return tuple(order)


def leading_transposes(codecs: Sequence[Any], ndim: int, wanted: Axes | None = None) -> LeadingTransposes | str:
    """Return all transpose codecs at the beginning of a list; with ``wanted``, the fewest that make those axes.

    Returns the reason in words where one of them names no permutation, or where they do not make the wanted axes.
    """
    axes: Axes = tuple(range(ndim))
    number = 0
    for codec in codecs:
        if codec_name(codec) != TRANSPOSE or axes == wanted:
            break
        order = transpose_order(codec, ndim)
        if order is None:
            return f"the order of its codec {TRANSPOSE} is no order of {ndim} dimensions"
        axes = permuted(axes, order)
        number += 1
    if wanted is not None and axes != wanted:
        return f"its codecs do not begin with a {TRANSPOSE} to the order {list(wanted)}"
    return LeadingTransposes(number, axes)


def permuted(values: Sequence[T], axes: Axes) -> tuple[T, ...]:
    """Return one value for each dimension behind a transposition, from one for each dimension of the array."""
    return tuple(values[axis] for axis in axes)


def inverse(axes: Axes) -> Axes:
    """Return the axes of the inverse transposition: ``permuted(permuted(values, axes), inverse(axes)) == values``."""
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def in_current_spelling(codecs: Any, ndim: int) -> Any:
    """Return a list of codecs, including those inside shards, with today's spellings: today's libraries read no older ones."""
    return [_in_current_spelling(codec, ndim) for codec in codecs] if isinstance(codecs, list) else codecs


def _in_current_spelling(codec: Any, ndim: int) -> Any:
    name, configuration = codec_name(codec), codec_configuration(codec)
    if name == "endian":
        return codec | {"name": "bytes"} if isinstance(codec, dict) else "bytes"
    if name == TRANSPOSE and configuration.get("order") in ("C", "F"):
        return codec | {"configuration": configuration | {"order": list(transpose_order(codec, ndim) or ())}}
    if name == SHARDING:
        lists = {name: in_current_spelling(value, ndim) for name, value in configuration.items() if name in ("codecs", "index_codecs")}
        return codec | {"configuration": configuration | lists} if lists else codec
    return codec


def crc32c(data: BytesLike) -> bytes:
    """Return the checksum as the four bytes that are stored (Zarr v3 ``crc32c`` codec). Long data are not copied."""
    readable = bytes(data) if len(data) < _COPIED_NBYTES else np.frombuffer(data, np.uint8)  # it takes no memoryview
    return int(google_crc32c.value(readable)).to_bytes(CRC32C_NBYTES, "little")
