"""Faults of a metadata document of Zarr v3: contradictions, which no reader can interpret, and extensions unknown here.

This is stricter than reading, which passes through what it does not need to know. Specification: Zarr v3, "Array metadata", "Group
metadata"; sharding codec 1.0, "Configuration parameters".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from shardstore.format.chunk_keys import parse_chunk_key_encoding
from shardstore.format.codecs import SHARDING, codec_configuration, codec_name, leading_transposes, permuted, transpose_order
from shardstore.format.json_text import JsonObject, NumberText
from shardstore.format.metadata_v3 import ARRAY_MEMBERS, NUMBERS, is_array, is_group, must_understand, parse_layout, sizes
from shardstore.format.storage_transformers import parse_sharding_transformers

_REQUIRED = ("shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs")

_ARRAY_TO_ARRAY = frozenset({"transpose"})
_ARRAY_TO_BYTES = frozenset({"bytes", "endian", SHARDING, "vlen-utf8", "vlen-bytes"})
_BYTES_TO_BYTES = frozenset({"gzip", "zstd", "blosc", "crc32c"})
_KNOWN_CODECS = _ARRAY_TO_ARRAY | _ARRAY_TO_BYTES | _BYTES_TO_BYTES
_REGISTERED = "numcodecs."  # in zarr-extensions; zarr-python has them wherever numcodecs is

_RAW = re.compile(r"r([0-9]{1,10})")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_NONE = object()
_NOT_NUMBERS = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True, slots=True)
class MetadataFault:
    """A fault of a document: it cannot be right, ``contradiction``, or only for a reader that knows an extension, ``unknown``."""

    kind: Literal["contradiction", "unknown"]
    what: str


def metadata_faults(document: JsonObject) -> list[MetadataFault]:
    """Return all faults of the stored document of a node."""
    if not is_array(document) and not is_group(document):
        version, kind = document.get("zarr_format"), document.get("node_type")
        return [
            MetadataFault("contradiction", f"zarr_format {_shown(version)} and node_type {_shown(kind)} are not those of a Zarr v3 node")
        ]
    faults = list(_array_faults(document)) if is_array(document) else []
    consolidated = None if is_array(document) else document.get("consolidated_metadata")
    if consolidated is not None and not (isinstance(consolidated, dict) and isinstance(consolidated.get("metadata"), dict)):
        faults.append(MetadataFault("contradiction", "its consolidated_metadata hold no object of documents"))
    if not isinstance(document.get("attributes", {}), dict):
        faults.append(MetadataFault("contradiction", "its attributes are not an object"))
    return faults


def missing_members(document: JsonObject) -> list[str]:
    """Return the members that the document of an array has to have, and that this one has not."""
    return [member for member in _REQUIRED if member not in document]


def looks_like_metadata(data: bytes) -> bool:
    """Return whether bytes that are not JSON seem to have been the document of a node: a name that each has is in them."""
    return data.lstrip().startswith(b"{") or b'"zarr_format"' in data or b'"node_type"' in data


def _contradictions(*what: str | None) -> Iterator[MetadataFault]:
    for one in what:
        if one is not None:
            yield MetadataFault("contradiction", one)


def _array_faults(document: JsonObject) -> Iterator[MetadataFault]:
    yield from _contradictions(*(f"it has no {member}" for member in missing_members(document)))
    unknown = sorted(name for name, value in document.items() if name not in ARRAY_MEMBERS and must_understand(value))
    if unknown:
        yield MetadataFault("unknown", f"it has a member {unknown[0]!r} that must be understood and is not known")
    shape = sizes(document.get("shape"), 0)
    if shape is not None:
        yield from _member_faults(document, len(shape))
        if "chunk_grid" in document:
            yield from _chunk_faults(document, len(shape), is_understood=not unknown)
    elif "shape" in document:
        yield from _contradictions(f"its shape {_shown(document['shape'])} is not a list of sizes")


def _member_faults(document: JsonObject, ndim: int) -> Iterator[MetadataFault]:
    """Yield the faults of each member by itself, but for those that say how chunks are cut and encoded."""
    names = document.get("dimension_names")
    if names is not None and not _are_names(names, ndim):
        yield from _contradictions(f"its dimension_names are not {ndim} names, one a dimension")
    if "chunk_key_encoding" in document and parse_chunk_key_encoding(document["chunk_key_encoding"]) is None:
        yield MetadataFault("unknown", f"its chunk key encoding {_shown(document['chunk_key_encoding'])} is not known")
    if "fill_value" in document:
        value, name = document["fill_value"], codec_name(document.get("data_type")) or ""
        if _fits(value, name) is False:
            yield from _contradictions(f"its fill value {_shown(value)} is not a value of data type {name}")
    if "data_type" in document and codec_name(document["data_type"]) is None:
        yield from _contradictions(f"its data type {_shown(document['data_type'])} has no name")
    transformers = document.get("storage_transformers")
    if transformers and isinstance(reason := parse_sharding_transformers(transformers, ndim), str):
        yield MetadataFault("unknown", reason)


def _chunk_faults(document: JsonObject, ndim: int, *, is_understood: bool) -> Iterator[MetadataFault]:
    """Yield the faults of chunk grid and codecs. ``is_understood``: no member that must be understood is unknown."""
    yield from _grid_faults(document["chunk_grid"], ndim)
    if "codecs" not in document:
        return
    chunk_shape = sizes(codec_configuration(document["chunk_grid"]).get("chunk_shape"), 1, ndim)
    yield from codec_faults(document["codecs"], ndim, chunk_shape, document.get("data_type"))
    sharded = None if chunk_shape is None else _sharded_shape(document["codecs"], chunk_shape)
    if sharded is None or document.get("storage_transformers") or not is_understood:
        return
    contradictions = _sharding_faults(codec_configuration(document["codecs"][-1]), sharded, document.get("data_type"))
    if isinstance(layout := parse_layout(document), str) and not list(contradictions):
        yield MetadataFault("unknown", layout)


def _sharded_shape(codecs: Any, chunk_shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the shape that the sharding divides; ``None`` without sharding, or with more than a transposition before it."""
    if not isinstance(codecs, list):
        return None
    transposes = leading_transposes(codecs, len(chunk_shape))
    if isinstance(transposes, str) or [codec_name(codec) for codec in codecs[transposes.number :]] != [SHARDING]:
        return None
    return permuted(chunk_shape, transposes.axes)


def _grid_faults(grid: Any, ndim: int) -> Iterator[MetadataFault]:
    if codec_name(grid) != "regular":
        yield MetadataFault("unknown", f"its chunk grid {_shown(codec_name(grid))} is not known")
        return
    chunk_shape = codec_configuration(grid).get("chunk_shape")
    if sizes(chunk_shape, 1, ndim) is None:
        yield from _contradictions(f"its chunk shape {_shown(chunk_shape)} is not {ndim} positive sizes, one a dimension")


# -- codecs ------------------------------------------------------------------------------------------------------------


def codec_faults(codecs: Any, ndim: int, chunk_shape: tuple[int, ...] | None, data_type: Any) -> Iterator[MetadataFault]:
    """Yield the faults of a chain of codecs, including those inside shards."""
    if (fault := _list_fault(codecs)) is not None:
        yield from _contradictions(fault)
        return
    names = [str(codec_name(codec)) for codec in codecs]
    for name in names:
        if name not in _KNOWN_CODECS and not name.startswith(_REGISTERED):
            yield MetadataFault("unknown", f"its codec {name!r} is not of Zarr v3: chunks can be decoded only where it is installed")
    yield from _contradictions(_order_fault(names))
    # What precedes the sharding may have changed the order of dimensions, and with it what has to be divisible.
    sharded = chunk_shape if chunk_shape is None or "transpose" not in names else _sharded_shape(codecs, chunk_shape)
    for name, codec in zip(names, codecs, strict=True):
        configuration = codec_configuration(codec)
        if name == "transpose" and transpose_order(codec, ndim) is None:
            order = _shown(configuration.get("order"))
            yield from _contradictions(f"the order {order} of its codec transpose is no order of {ndim} dimensions")
        elif name in ("bytes", "endian"):
            yield from _contradictions(_endian_fault(configuration.get("endian"), data_type))
        elif name == SHARDING and chunk_shape is not None:
            yield from _sharding_faults(configuration, sharded, data_type, ndim)


def _list_fault(codecs: Any) -> str | None:
    if not isinstance(codecs, list) or not codecs:
        return "its codecs are not a list that holds one"
    nameless = next((codec for codec in codecs if codec_name(codec) is None), _NONE)
    return None if nameless is _NONE else f"its codec {_shown(nameless)} has no name"


def _order_fault(names: Sequence[str]) -> str | None:
    """Return the fault in the order of codecs: it must be codecs of arrays, then one that makes bytes, then codecs of bytes."""
    if any(name not in _KNOWN_CODECS for name in names):
        return None
    makers = [i for i, name in enumerate(names) if name in _ARRAY_TO_BYTES]
    if len(makers) != 1:
        return f"{len(makers) or 'none'} of its codecs {', '.join(names)} make bytes of an array: it takes one"
    (maker,) = makers
    if any(name in _BYTES_TO_BYTES for name in names[:maker]) or any(name in _ARRAY_TO_ARRAY for name in names[maker + 1 :]):
        return f"its codecs {', '.join(names)} are in an impossible order"
    return None


def _endian_fault(endian: Any, data_type: Any) -> str | None:
    if endian in ("little", "big"):
        return None
    if endian is not None:
        return f"the endian {_shown(endian)} of its codec bytes is neither little nor big"
    name = codec_name(data_type) or ""
    if name in NUMBERS and NUMBERS[name][1] > 1:
        return f"its codec bytes names no endian, and elements of {name} have several bytes"
    return None


def _sharding_faults(
    configuration: JsonObject, shard_shape: tuple[int, ...] | None, data_type: Any, ndim: int | None = None
) -> Iterator[MetadataFault]:
    rank = len(shard_shape) if shard_shape is not None else ndim
    inner = sizes(configuration.get("chunk_shape"), 1, rank)
    if inner is None:
        yield from _contradictions(
            f"the chunk_shape {_shown(configuration.get('chunk_shape'))} of {SHARDING} is not a shape of the array's rank"
        )
        return
    if shard_shape is not None and any(outer % i for outer, i in zip(shard_shape, inner, strict=True)):
        yield from _contradictions(f"the inner chunk shape {inner} does not divide the shard shape {shard_shape}")
    location = configuration.get("index_location", "end")
    if location not in ("start", "end"):
        yield from _contradictions(f"its index_location {_shown(location)} is neither start nor end")
    if not isinstance(configuration.get("index_codecs"), list) or not configuration["index_codecs"]:
        yield from _contradictions(f"{SHARDING} names no index_codecs")
    yield from codec_faults(configuration.get("codecs"), len(inner), inner, data_type)


# -- fill values -------------------------------------------------------------------------------------------------------


def _fits(value: Any, name: str) -> bool | None:
    """Return whether a fill value is one of a data type; ``None`` for types whose fill values are not known here."""
    kind, nbytes = NUMBERS.get(name, ("", 0))
    match kind:
        case "b":
            return isinstance(value, bool)
        case "i" | "u":
            low = 0 if kind == "u" else -(2 ** (8 * nbytes - 1))
            number = _number(value)
            return number is not None and number == int(number) and low <= number < low + 2 ** (8 * nbytes)
        case "f":
            return _is_float(value, nbytes)
        case "c":
            return isinstance(value, list) and len(value) == 2 and all(_is_float(part, nbytes // 2) for part in value)
    if (match := _RAW.fullmatch(name)) is not None and isinstance(value, list):
        return len(value) * 8 == int(match[1]) and all(type(n) is int and 0 <= n < 256 for n in value)
    return None


def _number(value: Any) -> float | int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, NumberText):
        try:
            value = float(value.text)
        except ValueError:
            return None
        return value if abs(value) < float("inf") else None
    return value if isinstance(value, int | float) else None


def _is_float(value: Any, nbytes: int) -> bool:
    if isinstance(value, str):
        return value in _NOT_NUMBERS or (_HEX.fullmatch(value) is not None and len(value) == 2 + 2 * nbytes)
    return isinstance(value, NumberText) or _number(value) is not None


def _are_names(names: Any, ndim: int) -> bool:
    return isinstance(names, list) and len(names) == ndim and all(name is None or isinstance(name, str) for name in names)


def _shown(value: Any) -> str:
    text = value.text if isinstance(value, NumberText) else repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
