"""Fill values in the spellings of Zarr v2 and of Zarr v3.

Both are converted to the spelling that zarr-python writes: the value rounded to the element's type, ``0.0`` for a float, base64 of the
element's bytes for ``S``, ``V`` and structured types (whose fields zarr-python 3.4 names one by one; that is read too). The caller keeps
any other spelling of a document. Where the formats differ:

- v2 has ``null``: chunks that are missing hold anything. v3 requires a value: zero. A library of v3 may leave out chunks of
  zeros, as zarr-python 3 does by default; a v2 program that is shown ``null`` then reads whatever its memory held.
- v3 can name a NaN by its bits (``"0x7fc00001"``), v2 has one NaN; an element that was never written has other bits then.
- Complex values are the same in both. (zarr-python 2.18 reads ``[1.0, "Infinity"]`` as ``nan+infj``, as it adds a product
  with ``1j``, and writes that back when it resizes; the translation follows the document.)
- For objects zarr-python 2 writes ``0`` by default. Its codecs take ``0`` and ``null`` for an empty element, as
  does this module. An array of ``bytes`` objects has no other fill value in v2, because JSON holds no bytes.

Specifications: Zarr v2, "Fill value encoding"; Zarr v3, "Fill value", and zarr-extensions for the types beyond the core.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from typing import Any

import numpy as np

from shardstore.format.json_text import NumberText
from shardstore.format.v2 import dtypes
from shardstore.format.v2.dtypes import ElementType, NoCounterpart

_NOT_A_TIME = -(2**63)
_SPECIAL_FLOATS = ("NaN", "Infinity", "-Infinity")
_HEX_FLOAT = re.compile(r"0x([0-9a-fA-F]{4}|[0-9a-fA-F]{8}|[0-9a-fA-F]{16})")
_FLOAT_FORMATS = {2: ">e", 4: ">f", 8: ">d"}
_FLOAT_TYPES: dict[int, type[np.floating[Any]]] = {2: np.float16, 4: np.float32, 8: np.float64}


def from_v2(value: Any, element: ElementType) -> Any:
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


def to_v2(value: Any, element: ElementType) -> Any:
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
        field = dtypes.from_v2(spelling)
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
