"""Codecs as metadata documents name them, and what those before the sharding do to the dimensions of an array.

::

    array (d0, d1, d2)  →  transpose, order [2, 0, 1]  →  (d2, d0, d1)  →  transpose, order [1, 0, 2]  →  (d0, d2, d1)
    axes                                                  (2, 0, 1)                                       (0, 2, 1)

Older drafts spelled some of it otherwise: the order of ``transpose`` by a letter, ``bytes`` as ``endian`` (ZEP 2). Specification: Zarr v3,
"Codecs"; transpose codec 1.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from shardstore.format.json_text import JsonObject

SHARDING = "sharding_indexed"
TRANSPOSE = "transpose"

Axes = tuple[int, ...]
"""``axes[i]`` is the array's dimension that dimension ``i`` behind a transposition is."""

T = TypeVar("T")


class LeadingTransposes(NamedTuple):
    """Transpose codecs at the beginning of a list of codecs: how many they are, and what they do together."""

    number: int
    axes: Axes


def codec_name(codec: Any) -> str | None:
    """The name of a codec, written short (``"crc32c"``) or as an object."""
    if isinstance(codec, str):
        return codec
    name = codec.get("name") if isinstance(codec, dict) else None
    return name if isinstance(name, str) else None


def codec_configuration(codec: Any) -> JsonObject:
    """The configuration of a codec; empty where there is none."""
    configuration = codec.get("configuration") if isinstance(codec, dict) else None
    return configuration if isinstance(configuration, dict) else {}


def transpose_order(codec: Any, ndim: int) -> Axes | None:
    """The permutation that a transpose codec names, or ``None`` where that is none of ``ndim`` dimensions."""
    order = codec_configuration(codec).get("order")
    if order in ("C", "F"):
        return tuple(range(ndim)) if order == "C" else tuple(range(ndim))[::-1]
    if not isinstance(order, list) or not all(type(n) is int for n in order) or sorted(order) != list(range(ndim)):
        return None
    return tuple(order)


def leading_transposes(codecs: Sequence[Any], ndim: int, wanted: Axes | None = None) -> LeadingTransposes | str:
    """All transpose codecs at the beginning of a list; with ``wanted``, the fewest that make those axes.

    In words why, where one of them names no permutation, or where those that are there do not make what is wanted.
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
    """One value for each dimension behind a transposition, out of one for each dimension of the array."""
    return tuple(values[axis] for axis in axes)


def inverse(axes: Axes) -> Axes:
    """The axes of the transposition back: ``permuted(permuted(values, axes), inverse(axes)) == values``."""
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def in_present_words(codecs: Any, ndim: int) -> Any:
    """A list of codecs, those inside shards included, without the spellings of older drafts, which libraries of today do not read."""
    return [_in_present_words(codec, ndim) for codec in codecs] if isinstance(codecs, list) else codecs


def _in_present_words(codec: Any, ndim: int) -> Any:
    name, configuration = codec_name(codec), codec_configuration(codec)
    if name == "endian":
        return codec | {"name": "bytes"} if isinstance(codec, dict) else "bytes"
    if name == TRANSPOSE and configuration.get("order") in ("C", "F"):
        return codec | {"configuration": configuration | {"order": list(transpose_order(codec, ndim) or ())}}
    if name == SHARDING:
        lists = {member: in_present_words(configuration[member], ndim) for member in ("codecs", "index_codecs") if member in configuration}
        return codec | {"configuration": configuration | lists} if lists else codec
    return codec
