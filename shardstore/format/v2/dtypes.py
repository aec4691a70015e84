"""Data types in the spellings of Zarr v2 and of Zarr v3.

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
reads its fields as little-endian; so big-endian fields are refused, as are fields that are arrays. Specifications: Zarr
v2, "Data type encoding"; Zarr v3, "Core data types"; zarr-extensions, ``data-types``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from shardstore.format.codecs import codec_configuration, codec_name
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
    """Return the type that a v3 ``data_type`` names, whose ``bytes`` codec says ``endian``. Raises ``NoCounterpart`` if v2 has no such
    type.
    """
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
