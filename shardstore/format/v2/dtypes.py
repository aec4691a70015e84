"""Data types and fill values in the spellings of Zarr v2 and of Zarr v3.

::

    v2 "dtype"                   v3 "data_type"                                              v3 "bytes" codec
    "|b1" "|i1" "|u1"            bool int8 uint8                                             no endian
    "<i4" ">u2" "<f8" "<c16"     int32 uint16 float64 complex128                             endian little, big
    "<M8[25s]" ">m8[ns]"         numpy.datetime64, numpy.timedelta64 {unit, scale_factor}    endian little, big
    "<U5"                        fixed_length_utf32 {length_bytes: 20}                       endian little, big
    "|S5" "|V5"                  null_terminated_bytes, raw_bytes {length_bytes: 5}          no endian
    [["a", "<i4"], …]            structured {fields: [["a", "int32"], …]}                    endian little
    "|O" with vlen-utf8, -bytes  string, variable_length_bytes                               (vlen-utf8, vlen-bytes)

The names are those that zarr-python 3 writes. A structured type has no byte order of its own in v3, and zarr-python
reads its fields as little-endian; so big-endian fields are refused, as are fields that are arrays.

Fill values of both are converted to the spelling that zarr-python writes: the value rounded to the element's type, ``0.0`` for a float,
base64 of the element's bytes for ``S``, ``V`` and structured types (whose fields zarr-python 3.4 names one by one; that is read too). The
caller keeps any other spelling of a document. Where the formats differ:

- v2 has ``null``: chunks that are missing hold anything. v3 requires a value: zero. A library of v3 may leave out chunks of
  zeros, as zarr-python 3 does by default; a v2 program that is shown ``null`` then reads whatever its memory held.
- v3 can name a NaN by its bits (``"0x7fc00001"``), v2 has one NaN; an element that was never written has other bits then.
- Complex values are the same in both. (zarr-python 2.18 reads ``[1.0, "Infinity"]`` as ``nan+infj``, as it adds a product
  with ``1j``, and writes that back when it resizes; the translation follows the document.)
- For objects zarr-python 2 writes ``0`` by default. Its codecs take ``0`` and ``null`` for an empty element, as
  does this module. An array of ``bytes`` objects has no other fill value in v2, because JSON holds no bytes.

Specifications: Zarr v2, "Data type encoding", "Fill value encoding"; Zarr v3, "Core data types", "Fill value"; zarr-extensions,
``data-types``.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from shardstore.format.codecs import codec_configuration, codec_name
from shardstore.format.json_text import NumberText
from shardstore.format.metadata_v3 import NUMBER_NAMES, NUMBERS

Endian = Literal["little", "big"]

_TYPESTR = re.compile(r"([<>|])([biufcmMUSV])([1-9][0-9]{0,8})(?:\[([1-9][0-9]{0,9})?([a-zA-Zμ]+)\])?")
_BYTE_ORDERS: dict[str, Endian | None] = {"<": "little", ">": "big", "|": None}
_TIME_UNITS = frozenset(["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"])
_TIME_NAMES = {"M": "numpy.datetime64", "m": "numpy.timedelta64"}
_TIME_KINDS = {name: kind for kind, name in _TIME_NAMES.items()}
_BYTES_NAMES = {"S": "null_terminated_bytes", "V": "raw_bytes"}
# Kind and bytes of a character of the types with a length.
_LENGTH_KINDS = {name: (kind, 1) for kind, name in _BYTES_NAMES.items()} | {"fixed_length_utf32": ("U", 4)}
_RAW_BITS = re.compile(r"r([1-9][0-9]{0,9})")
OBJECT_CODECS = {"vlen-utf8": "string", "vlen-bytes": "variable_length_bytes"}


class NoCounterpart(Exception):
    """A member of one format's document that the other cannot express, and why."""

    def __init__(self, member: str, reason: str) -> None:
        super().__init__(f"{member}: {reason}")
        self.member = member
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ElementType:
    """A data type that both formats have. ``kind`` is numpy's letter; ``item_nbytes`` is 0 where elements vary in size."""

    kind: str
    item_nbytes: int
    endian: Endian | None
    v2: Any
    v3: Any
    object_codec: str | None = None

    @property
    def is_structured(self) -> bool:
        return isinstance(self.v2, list)


def from_v2(dtype: Any, object_codec: str | None = None) -> ElementType:
    """Return the type that a v2 ``dtype`` names; ``object_codec`` is the id of the first filter, which decides what ``|O`` holds. Raises
    ``NoCounterpart`` if v3 has no such type, or none that is stored as the same bytes.
    """
    if isinstance(dtype, list):
        return _structured([_field_from_v2(field) for field in dtype])
    if dtype == "|O":
        if object_codec not in OBJECT_CODECS:
            raise NoCounterpart("dtype", f"objects need one of {sorted(OBJECT_CODECS)} as the first filter, this is {object_codec!r}")
        return ElementType("O", 0, None, "|O", OBJECT_CODECS[object_codec], object_codec)
    match = _TYPESTR.fullmatch(dtype) if isinstance(dtype, str) else None
    if match is None:
        raise NoCounterpart("dtype", f"{dtype!r} is none that can be stored as Zarr v3")
    order, kind, size, factor, unit = match.groups()
    if (unit is None) != (kind not in "mM"):
        raise NoCounterpart("dtype", f"{dtype!r} has to name a unit of time if, and only if, it is one")
    return _simple(dtype, kind, int(size), _BYTE_ORDERS[order], unit, int(factor or 1))


def from_v3(data_type: Any, endian: Endian | None) -> ElementType:
    """Return the type that a v3 ``data_type`` names, with the ``endian`` of codec ``bytes``. Raises ``NoCounterpart`` if v2 has none."""
    name, configuration = codec_name(data_type) or "", codec_configuration(data_type)
    if name in NUMBERS:
        kind, size = NUMBERS[name]
        return _simple(data_type, kind, size, endian, None, 1)
    if name in _TIME_KINDS:
        unit, factor = configuration.get("unit"), configuration.get("scale_factor")
        if type(factor) is not int:
            raise NoCounterpart("data_type", f"the scale_factor {factor!r} of {name} is no number")
        return _simple(data_type, _TIME_KINDS[name], 8, endian, "us" if unit == "μs" else unit, factor)
    if name in ("structured", "struct"):
        return _structured_from_v3(configuration.get("fields"), endian)
    if name in ("string", "variable_length_bytes", "bytes"):
        return from_v2("|O", "vlen-utf8" if name == "string" else "vlen-bytes")
    if (raw_bits := _RAW_BITS.fullmatch(name)) is not None and int(raw_bits[1]) % 8 == 0:
        return _simple(data_type, "V", int(raw_bits[1]) // 8, None, None, 1)
    kind, item_nbytes = _LENGTH_KINDS.get(name, ("", 1))
    length = configuration.get("length_bytes")
    if kind and type(length) is int and length > 0 and length % item_nbytes == 0:
        return _simple(data_type, kind, length // item_nbytes, endian, None, 1)
    raise NoCounterpart("data_type", f"Zarr v2 has no {data_type!r}")


def number_from_v2(dtype: Any, member: str) -> ElementType:
    """Return the type that a filter's configuration names, in any spelling of numpy's with a definite meaning.

    zarr-python 3 writes ``float64`` where numcodecs writes ``<f8``; it means little-endian, the byte order of nearly every machine.
    """
    if isinstance(dtype, str) and dtype in NUMBERS:
        kind, size = NUMBERS[dtype]
        return _simple(dtype, kind, size, "little", None, 1)
    match = re.fullmatch(r"([<>|=]?)([iuf])([1-8])", dtype) if isinstance(dtype, str) else None
    if match is None or (match[2], int(match[3])) not in NUMBER_NAMES:
        raise NoCounterpart(member, f"a filter of elements of type {dtype!r} is not known")
    return _simple(dtype, match[2], int(match[3]), _BYTE_ORDERS.get(match[1], "little"), None, 1)


def _simple(spelling: Any, kind: str, size: int, endian: Endian | None, unit: Any, factor: int) -> ElementType:
    """Return the type of a letter and a size, in its canonical spellings; ``size`` counts characters for ``U``, else bytes."""
    suffix = ""
    v3: Any
    if kind in _TIME_NAMES:
        if size != 8 or unit not in _TIME_UNITS or not 0 < factor < 2**31:
            raise NoCounterpart("dtype", f"{spelling!r} is no date or duration of both formats")
        suffix = f"[{factor if factor > 1 else ''}{unit}]"
        v3 = {"name": _TIME_NAMES[kind], "configuration": {"unit": unit, "scale_factor": factor}}
    elif kind == "U":
        v3 = {"name": "fixed_length_utf32", "configuration": {"length_bytes": 4 * size}}
    elif kind in _BYTES_NAMES:
        v3 = {"name": _BYTES_NAMES[kind], "configuration": {"length_bytes": size}}
    elif (kind, size) in NUMBER_NAMES:
        v3 = NUMBER_NAMES[kind, size]
    else:
        raise NoCounterpart("dtype", f"{spelling!r} has no data type in Zarr v3")
    nbytes = 4 * size if kind == "U" else size
    if kind in _BYTES_NAMES or nbytes == 1:
        return ElementType(kind, nbytes, None, f"|{kind}{size}", v3)
    if endian not in get_args(Endian):
        raise NoCounterpart("dtype", f"the byte order of {spelling!r} is not given")
    return ElementType(kind, nbytes, endian, f"{'<' if endian == 'little' else '>'}{kind}{size}{suffix}", v3)


def _structured(fields: list[tuple[str, ElementType]]) -> ElementType:
    names = [name for name, _ in fields if name]  # fields without a name are padding
    if not fields or len(set(names)) < len(names):
        raise NoCounterpart("dtype", "a structured type has fields, of different names")
    v2 = [[name, field.v2] for name, field in fields]
    v3 = {"name": "structured", "configuration": {"fields": [[name, field.v3] for name, field in fields]}}
    endian: Endian | None = "little" if any(_has_byte_order(field) for _, field in fields) else None
    return ElementType("V", sum(field.item_nbytes for _, field in fields), endian, v2, v3)


def _field_from_v2(field: Any) -> tuple[str, ElementType]:
    if not isinstance(field, list) or len(field) not in (2, 3) or not isinstance(field[0], str):
        raise NoCounterpart("dtype", f"{field!r} is no field of a structured type with a counterpart in Zarr v3")
    if len(field) == 3:
        raise NoCounterpart("dtype", f"the field {field[0]!r} holds an array, which a field in Zarr v3 cannot")
    element = from_v2(field[1])
    if element.endian == "big":
        raise NoCounterpart("dtype", f"the field {field[0]!r} is big-endian, and fields in Zarr v3 have no byte order of their own")
    return field[0], element


def _structured_from_v3(fields: Any, endian: Endian | None) -> ElementType:
    structured = _structured([_field_from_v3(field) for field in fields] if isinstance(fields, list) else [])
    if endian == "big" and _has_byte_order(structured):
        raise NoCounterpart("data_type", "whether the fields of a structured type are big-endian is read differently by libraries")
    return structured


def _field_from_v3(field: Any) -> tuple[str, ElementType]:
    if isinstance(field, dict):
        field = [field.get("name"), field.get("data_type")]
    if not isinstance(field, list) or len(field) != 2 or not isinstance(field[0], str):
        raise NoCounterpart("data_type", f"{field!r} is no field of a structured type")
    element = from_v3(field[1], "little")
    if element.object_codec is not None:
        raise NoCounterpart("data_type", f"the field {field[0]!r} varies in size")
    return field[0], element


def _has_byte_order(element: ElementType) -> bool:
    if element.is_structured:
        return any(_has_byte_order(from_v2(field[1])) for field in element.v2)
    return element.endian is not None


# -- fill values -------------------------------------------------------------------------------------------------------

_NOT_A_TIME = -(2**63)
_SPECIAL_FLOATS = ("NaN", "Infinity", "-Infinity")
_HEX_FLOAT = re.compile(r"0x([0-9a-fA-F]{4}|[0-9a-fA-F]{8}|[0-9a-fA-F]{16})")
_FLOAT_FORMATS = {2: ">e", 4: ">f", 8: ">d"}
_FLOAT_TYPES: dict[int, type[np.floating[Any]]] = {2: np.float16, 4: np.float32, 8: np.float64}


def fill_from_v2(value: Any, element: ElementType) -> Any:
    """Return the v3 ``fill_value`` for a v2 one. Raises ``NoCounterpart`` where it is no value of the type, or v3 has none for it."""
    if value is None:
        return _zero(element)
    if element.kind == "O":
        if type(value) is int and value == 0:
            return ""
        if isinstance(value, str) and (value == "" or element.object_codec == "vlen-utf8"):
            return value
        raise _no_value(value, element)
    return _normal(value, element)


def fill_to_v2(value: Any, element: ElementType) -> Any:
    """Return the v2 ``fill_value`` that zarr-python 2 writes for a v3 one. Raises ``NoCounterpart`` where there is none."""
    if element.object_codec == "vlen-bytes":
        if value not in ("", []):
            raise NoCounterpart("fill_value", "a v2 array of bytes objects cannot be filled with other than empty elements")
        return 0
    if element.kind == "O":
        if not isinstance(value, str):
            raise _no_value(value, element)
        return value
    if element.kind in "SV" and isinstance(value, list):
        if not all(type(byte) is int and 0 <= byte < 256 for byte in value):
            raise _no_value(value, element)
        value = base64.b64encode(bytes(value)).decode()
    if element.is_structured and isinstance(value, dict):
        value = base64.b64encode(_fields(value, element)).decode()
    return _normal(value, element)


def _zero(element: ElementType) -> Any:
    if element.kind in "USO":
        return ""
    if element.kind == "V":
        return base64.b64encode(bytes(element.item_nbytes)).decode()
    return {"b": False, "f": 0.0, "c": [0.0, 0.0]}.get(element.kind, 0)


def _normal(value: Any, element: ElementType) -> Any:
    kind = element.kind
    if kind == "b" and type(value) in (bool, int) and value in (0, 1):
        return bool(value)
    if kind in "mM" and value == "NaT":
        return _NOT_A_TIME
    if kind in "iumM":
        return _integer(value, element)
    if kind == "f":
        return _float(value, element, element.item_nbytes)
    if kind == "c" and isinstance(value, list) and len(value) == 2:
        return [_float(part, element, element.item_nbytes // 2) for part in value]
    if kind in "USV" and isinstance(value, str):
        return value[: element.item_nbytes // 4].rstrip("\0") if kind == "U" else _bytes(value, element)  # as numpy stores it
    raise _no_value(value, element)


def _integer(value: Any, element: ElementType) -> int:
    """Return an integer, or the number of a date or duration."""
    low = 0 if element.kind == "u" else -(2 ** (8 * element.item_nbytes - 1))
    if isinstance(value, NumberText):
        value = float(value.text)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if type(value) is not int or not low <= value < low + 2 ** (8 * element.item_nbytes):
        raise _no_value(value, element)
    return value


def _float(value: Any, element: ElementType, nbytes: int) -> float | str:
    if isinstance(value, str):
        if value in _SPECIAL_FLOATS:
            return value
        match = _HEX_FLOAT.fullmatch(value)
        if match is None or len(match[1]) != 2 * nbytes:
            raise _no_value(value, element)
        number = struct.unpack(_FLOAT_FORMATS[nbytes], bytes.fromhex(match[1]))[0]
    elif isinstance(value, NumberText):
        number = float(value.text)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            raise _no_value(value, element) from None
    else:
        raise _no_value(value, element)
    with np.errstate(over="ignore"):
        number = float(_FLOAT_TYPES[nbytes](number))
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def _bytes(text: str, element: ElementType) -> str:
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise NoCounterpart("fill_value", f"{text!r} is not base64, as the fill value of {element.v2!r} has to be") from None
    if element.kind == "S":
        value = value[: element.item_nbytes].rstrip(b"\0")  # as numpy stores it
    elif len(value) > element.item_nbytes:
        raise NoCounterpart("fill_value", f"{text!r} are {len(value)} bytes, an element has {element.item_nbytes}")
    else:
        value = value.ljust(element.item_nbytes, b"\0")
    return base64.b64encode(value).decode()


def _fields(values: dict[str, Any], element: ElementType) -> bytes:
    """Return the bytes of an element whose fields have the values that a v3 document names, one by one; those it does not name are zero."""
    if not set(values) <= {name for name, *_ in element.v2}:
        raise _no_value(values, element)
    packed = b""
    for name, spelling in element.v2:
        field = from_v2(spelling)
        if field.is_structured:
            packed += _fields(values.get(name, {}), field)
        elif name not in values:
            packed += bytes(field.item_nbytes)
        else:
            packed += _packed(_normal(values[name], field), field)
    return packed


def _packed(value: Any, element: ElementType) -> bytes:
    """Return the bytes of an element with a value as ``_normal`` spells it."""
    if element.kind in "SV":
        return base64.b64decode(value).ljust(element.item_nbytes, b"\0")
    number: Any = complex(*map(float, value)) if element.kind == "c" else float(value) if element.kind == "f" else value
    if element.kind in "mM":
        return np.array(number, "<i8").tobytes()
    return np.array(number, element.v2).tobytes()


def _no_value(value: Any, element: ElementType) -> NoCounterpart:
    return NoCounterpart("fill_value", f"{value!r} is none of {element.v2!r} that both formats can express")
