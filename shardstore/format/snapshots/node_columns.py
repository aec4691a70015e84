"""The document of a node, as the columns of a structure file hold it (D17, D18).

::

    array_metadata     {shape, data_type, fill_value, dimension_names, chunk_grid, chunk_key_encoding, codecs}; null for a group
        fill_value                  the element's bytes, little-endian, so that the payload of a NaN stays; a text in UTF-8
        codecs[].configuration      JSON in UTF-8; null where there is none
    attributes         JSON in UTF-8; null where there are none
    extra              the whole document but for its attributes, where the columns cannot say the same

What readers of Zarr take for the same is the same here: no attributes and empty ones, no storage transformers and an empty list of them.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from shardstore.errors import Corruption, InvalidInput
from shardstore.format.json_text import JsonObject, dumps, loads, loads_object, same_text
from shardstore.format.metadata_v3 import NUMBERS
from shardstore.model.words import is_utf8

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOATS = {2: "<e", 4: "<f", 8: "<d"}
_EMPTY_MEANS_NONE: tuple[tuple[str, Any], ...] = (("attributes", {}), ("storage_transformers", []), ("consolidated_metadata", None))


@dataclass(frozen=True, slots=True)
class NodeColumns:
    """The columns of one node."""

    array: dict[str, Any] | None
    """``array_metadata`` as Python objects; ``None`` for a group."""
    attributes: bytes | None
    extra: bytes | None


def to_columns(document: JsonObject) -> NodeColumns:
    """Return the columns of a document. Raises ``InvalidInput`` if it is not that of an array or a group, or lacks what every array has."""
    kind = document.get("node_type")
    if kind not in ("array", "group"):
        raise InvalidInput(f"this is not the document of an array or a group: its node_type is {kind!r}")
    attributes = document.get("attributes") or None
    array = _array_of(document) if kind == "array" else None
    columns = NodeColumns(array, None if attributes is None else dumps(attributes), None)
    try:
        is_said = same_text(_normal(to_document(columns)), _normal(document))
    except Corruption:  # something has no form in the columns
        is_said = False
    if is_said:
        return columns
    rest = {name: value for name, value in document.items() if name != "attributes"}
    return NodeColumns(array, columns.attributes, dumps(rest))


def to_document(columns: NodeColumns) -> JsonObject:
    """Return the document that the columns say. Raises ``Corruption`` if they contradict themselves."""
    attributes = {} if columns.attributes is None else loads_object(columns.attributes)
    if columns.extra is not None:
        return loads_object(columns.extra) | ({"attributes": attributes} if attributes else {})
    if columns.array is None:
        return {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    array = columns.array
    grid, encoding = array["chunk_grid"], array["chunk_key_encoding"]
    if grid is None or encoding is None or array["codecs"] is None:
        raise Corruption("an array of a structure file has no chunk grid, chunk key encoding or codecs")
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(array["shape"]),
        "data_type": array["data_type"],
        "chunk_grid": {"name": grid["name"], "configuration": {"chunk_shape": list(grid["configuration"]["chunk_shape"])}},
        "chunk_key_encoding": {"name": encoding["name"], "configuration": {"separator": encoding["configuration"]["separator"]}},
        "fill_value": _fill_of(array["fill_value"], array["data_type"]),
        "codecs": [
            {"name": codec["name"]} | ({} if (given := codec["configuration"]) is None else {"configuration": loads(given)})
            for codec in array["codecs"]
        ],
        "attributes": attributes,
        **({} if array["dimension_names"] is None else {"dimension_names": list(array["dimension_names"])}),
    }


def with_shape(columns: NodeColumns, shape: Sequence[int]) -> NodeColumns:
    """Return the columns of an array as they are with another shape."""
    assert columns.array is not None
    extra = None if columns.extra is None else dumps(loads_object(columns.extra) | {"shape": list(shape)})
    return replace(columns, array=columns.array | {"shape": list(shape)}, extra=extra)


def _normal(document: JsonObject) -> JsonObject:
    """Return a document without members that say nothing, in one order."""
    said = {name: value for name, value in document.items() if (name, value) not in _EMPTY_MEANS_NONE}
    return dict(sorted(said.items()))


def _array_of(document: JsonObject) -> dict[str, Any]:
    """Return ``array_metadata`` of a document; members that the columns cannot hold are ``None``, or what is nearest."""
    shape, data_type = document.get("shape"), document.get("data_type")
    if not _are_sizes(shape):
        raise InvalidInput(f"the document of an array has the shape {shape!r}")
    name = data_type if isinstance(data_type, str) else (data_type or {}).get("name") if isinstance(data_type, dict) else None
    if not _is_text(name):
        raise InvalidInput(f"the document of an array has the data_type {data_type!r}")
    names = document.get("dimension_names")
    return {
        "shape": shape,
        "data_type": name,
        "fill_value": _fill_bytes(document.get("fill_value"), name),
        "dimension_names": names if isinstance(names, list) and all(one is None or _is_text(one) for one in names) else None,
        "chunk_grid": _grid_of(document.get("chunk_grid")),
        "chunk_key_encoding": _encoding_of(document.get("chunk_key_encoding")),
        "codecs": _codecs_of(document.get("codecs")),
    }


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**64 for size in value)


def _is_text(value: Any) -> TypeGuard[str]:
    """Return whether a value is a text that a column can hold, as UTF-8."""
    return isinstance(value, str) and is_utf8(value)


def _grid_of(value: Any) -> dict[str, Any] | None:
    match value:
        case {"name": str() as name, "configuration": {"chunk_shape": list() as chunk_shape}} if _are_sizes(chunk_shape) and _is_text(name):
            return {"name": name, "configuration": {"chunk_shape": chunk_shape}}
    return None


def _encoding_of(value: Any) -> dict[str, Any] | None:
    match value:
        case {"name": str() as name, "configuration": {"separator": str() as separator}} if _is_text(name) and _is_text(separator):
            return {"name": name, "configuration": {"separator": separator}}
    return None


def _codecs_of(value: Any) -> list[dict[str, Any]] | None:
    if not isinstance(value, list) or not all(isinstance(codec, dict) and _is_text(codec.get("name")) for codec in value):
        return None
    return [
        {"name": codec["name"], "configuration": dumps(codec["configuration"]) if "configuration" in codec else None} for codec in value
    ]


# -- fill values -------------------------------------------------------------------------------------------------------


def _fill_bytes(value: Any, data_type: str) -> bytes | None:
    """Return the bytes of a fill value; ``None`` if the column has no form for it."""
    if data_type == "string":
        return value.encode() if _is_text(value) else None
    kind, nbytes = NUMBERS.get(data_type, ("", 0))
    try:
        match kind:
            case "b":
                return bytes([value]) if isinstance(value, bool) else None
            case "i" | "u":
                return value.to_bytes(nbytes, "little", signed=kind == "i") if type(value) is int else None
            case "f":
                return _float_bytes(value, nbytes)
            case "c":
                parts = [_float_bytes(part, nbytes // 2) for part in value] if isinstance(value, list) and len(value) == 2 else [None]
                return None if None in parts else b"".join(part for part in parts if part is not None)
    except (OverflowError, struct.error):
        pass
    return None


def _float_bytes(value: Any, nbytes: int) -> bytes | None:
    if isinstance(value, str) and _HEX.fullmatch(value) and len(value) == 2 + 2 * nbytes:
        return bytes.fromhex(value[2:])[::-1]
    number = _SPECIAL.get(value) if isinstance(value, str) else value if type(value) in (int, float) else None
    return None if number is None else struct.pack(_FLOATS[nbytes], number)


def _fill_of(data: bytes | None, data_type: str) -> Any:
    """Return the fill value in JSON's form. Raises ``Corruption`` if the bytes are not those of one element."""
    if data is None:
        raise Corruption(f"an array of {data_type!r} in a structure file has no fill value")
    if data_type == "string":
        return data.decode()
    kind, nbytes = NUMBERS.get(data_type, ("", -1))
    if len(data) != nbytes:
        raise Corruption(f"the fill value of an array of {data_type!r} in a structure file has {len(data)} bytes")
    match kind:
        case "b":
            return data != b"\0"
        case "i" | "u":
            return int.from_bytes(data, "little", signed=kind == "i")
        case "c":
            return [_float_of(data[: nbytes // 2]), _float_of(data[nbytes // 2 :])]
    return _float_of(data)


def _float_of(data: bytes) -> float | str:
    (number,) = struct.unpack(_FLOATS[len(data)], data)
    if math.isfinite(number):
        return float(number)
    for name, special in _SPECIAL.items():
        if data == struct.pack(_FLOATS[len(data)], special):
            return name
    return f"0x{data[::-1].hex()}"
