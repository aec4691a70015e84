"""Data types and fill values of the 2022 draft, as those of final Zarr v3 and back.

::

    draft (zarr-python 2.18)                        canonical (final v3)
    "<i4", ">f8", "u1", "int32"                     "int32", "float64" ...; the endianness is the bytes codec's
    {extension: URI, type: "<M8[ns]"}               {name: "numpy.datetime64", configuration: {unit, scale_factor}}
    {extension: ..., type: "|S8", "<U4"}            null_terminated_bytes, fixed_length_utf32
    fill_value null                                 zero: the draft says "undefined"

Specification: draft core protocol 3.0, "Data types", "Fill value"; Zarr v3, "Data types", "Fill value list".
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from math import isnan
from typing import Any

import numpy as np

from shardstore.format.codecs import codec_configuration, codec_name
from shardstore.format.json_text import NumberText
from shardstore.format.metadata_v3 import NUMBER_NAMES, NUMBERS

_V3_EXTENSIONS = {"M": "numpy.datetime64", "m": "numpy.timedelta64", "S": "null_terminated_bytes", "U": "fixed_length_utf32"}
_EXTENSION_KINDS = {word: kind for kind, word in _V3_EXTENSIONS.items()}
# The sizes in bytes of the kinds that are not of any size.
_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16), "M": (8,), "m": (8,)}
_TYPESTR = re.compile(r"([<>|]?)([biufcMmSU])([1-9][0-9]{0,8})(?:\[(Y|M|W|D|h|m|s|ms|us|μs|ns|ps|fs|as)\])?", re.ASCII)
_DATE_URI = "https://zarr-specs.readthedocs.io/en/latest/extensions/data-types/datetime/v1.0.html"
_EXTENSIONS = {  # what zarr-python 2.18 writes, and the word by which the drafts' other URIs are known
    "c": ("https://zarr-specs.readthedocs.io/en/core-protocol-v3.0-dev/protocol/extensions/complex-dtypes/v1.0.html", "complex"),
    "M": (_DATE_URI, "datetime"),
    "m": (_DATE_URI, "datetime"),
    # Not ours to do: these very words stand where zarr-python 2.18 has no URI, and what it wrote has to be recognised.
    "S": ("TODO: bytestring array protocol URL", "bytestring"),
    "U": ("TODO: unicode array protocol URL", "unicode"),
}
_NON_FINITE = {"NaN": "NaN", "Infinity": "Infinity", "+Infinity": "Infinity", "-Infinity": "-Infinity"}
_NAT = -(2**63)


@dataclass(frozen=True, slots=True)
class DataType:
    """A data type of both sides: numpy's letter of its kind, bytes of an element, unit of a date."""

    kind: str
    nbytes: int
    unit: str = ""

    @property
    def has_endian(self) -> bool:
        return self.nbytes > 1 and self.kind != "S"

    @property
    def is_sized(self) -> bool:
        """True where elements of this size exist."""
        return self.nbytes in _SIZES.get(self.kind, (self.nbytes,)) and self.nbytes % (4 if self.kind == "U" else 1) == 0

    @property
    def v3_name(self) -> Any:
        if self.kind in "Mm":
            return {"name": _V3_EXTENSIONS[self.kind], "configuration": {"unit": self.unit, "scale_factor": 1}}
        if self.kind in "SU":
            return {"name": _V3_EXTENSIONS[self.kind], "configuration": {"length_bytes": self.nbytes}}
        return NUMBER_NAMES[self.kind, self.nbytes]

    def draft_name(self, endian: str) -> Any:
        """Return the name as zarr-python 2.18 writes it."""
        if self.kind == "b":
            return "bool"
        order = ("<" if endian == "little" else ">") if self.has_endian else "|" if self.kind == "S" else ""
        size = self.nbytes // 4 if self.kind == "U" else self.nbytes
        name = f"{order}{self.kind}{size}" + (f"[{self.unit}]" if self.unit else "")
        return {"extension": _EXTENSIONS[self.kind][0], "fallback": None, "type": name} if self.kind in _EXTENSIONS else name


def parse_draft_type(value: Any) -> tuple[DataType, str | None] | str:
    """Return the type and its endianness (``None`` where its name leaves that open), or the reason in words why it is not known."""
    name = value
    if isinstance(value, dict):
        name, uri = value.get("type"), str(value.get("extension"))
        is_known = isinstance(name, str) and any(kind in name[:2] and word in uri for kind, (_, word) in _EXTENSIONS.items())
        if not is_known:
            if value.get("fallback") is None:
                return f"its data type {name!r} of the extension {uri!r} is not known"
            name = value["fallback"]
    if not isinstance(name, str):
        return f"its data type {name!r} is not known"
    if (core := parse_v3_type(name)) is not None:
        return core, None
    match = _TYPESTR.fullmatch(name)
    if match is not None and (match[4] is not None) == (match[2] in "Mm"):
        data_type = DataType(match[2], int(match[3]) * (4 if match[2] == "U" else 1), (match[4] or "").replace("μ", "u"))
        if data_type.is_sized and data_type.has_endian == (match[1] in ("<", ">")):
            return data_type, {"<": "little", ">": "big"}.get(match[1])
    return f"its data type {name!r} is not known"


def parse_v3_type(value: Any) -> DataType | None:
    """Return a data type of final v3 that the draft has too, or ``None``."""
    name, configuration = codec_name(value) or "", codec_configuration(value)
    if name in NUMBERS:
        return DataType(*NUMBERS[name])
    kind = _EXTENSION_KINDS.get(name)
    if kind not in ("M", "m"):
        return _sized_type(kind, configuration.get("length_bytes"))
    unit = str(configuration.get("unit")).replace("μ", "u")
    is_known = _TYPESTR.fullmatch(f"<M8[{unit}]") is not None and configuration.get("scale_factor") == 1
    return _sized_type(kind, 8, unit) if is_known else None


def _sized_type(kind: str | None, nbytes: Any, unit: str = "") -> DataType | None:
    """Return the type of elements of this kind and size, or ``None`` where there are none."""
    if kind is None or type(nbytes) is not int or not 0 < nbytes < 2**31:
        return None
    data_type = DataType(kind, nbytes, unit)
    return data_type if data_type.is_sized else None


def fill_to_v3(data_type: DataType, value: Any) -> Any:
    """Return the final v3 form of a draft's fill value; zero for ``null``, which is "undefined"; ``None`` where it is not valid."""
    if value is None:
        value = _ZEROS.get(data_type.kind, 0)
    return _FILLS_TO_V3.get(data_type.kind, _whole_to_v3)(data_type, value)


def _complex_to_v3(data_type: DataType, value: Any) -> Any:
    parts = [_float_to_v3(DataType("f", data_type.nbytes // 2), part) for part in value] if isinstance(value, list) else []
    return parts if len(parts) == 2 and None not in parts else None


def _text_to_v3(data_type: DataType, value: Any) -> Any:
    if not isinstance(value, str):
        return None
    nbytes = 4 * len(value) if data_type.kind == "U" else _base64_nbytes(value)
    return value if nbytes <= data_type.nbytes else None


def _float_to_v3(data_type: DataType, value: Any) -> Any:
    if (bits := _bits(value, data_type.nbytes)) is not None:
        return "0x" + bits.hex()
    if isinstance(value, NumberText) and value.text in _NON_FINITE:
        value = value.text
    if isinstance(value, str):
        return _NON_FINITE.get(value)
    return value if type(value) in (float, NumberText) or (type(value) is int and abs(value) <= 10**308) else None


def _whole_to_v3(data_type: DataType, value: Any) -> Any:
    """Return the fill value of booleans, integers, dates and durations."""
    kind, nbytes = data_type.kind, data_type.nbytes
    if kind in "Mm" and value == "NaT":
        return value
    if (bits := _bits(value, nbytes)) is not None:
        value = int.from_bytes(bits, "big", signed=kind not in "ub")
    number = _integer(value)
    if kind == "b":
        return bool(number) if number in (0, 1) else None
    low = 0 if kind == "u" else -(2 ** (8 * nbytes - 1))
    return number if number is not None and low <= number < low + 2 ** (8 * nbytes) else None


_ZEROS = {"c": [0, 0], "S": "", "U": ""}
_FILLS_TO_V3 = {"c": _complex_to_v3, "S": _text_to_v3, "U": _text_to_v3, "f": _float_to_v3}


def fill_from_v3(data_type: DataType, value: Any) -> Any:
    """Return the form that zarr-python 2.18 writes, or ``None`` where it has none: a NaN with unusual bits, an invalid value."""
    if data_type.kind == "c" and isinstance(value, list) and len(value) == 2:
        parts = [fill_from_v3(DataType("f", data_type.nbytes // 2), v) for v in value]
        return None if None in parts else parts
    shown = None if value is None else fill_to_v3(data_type, value)
    if data_type.kind != "f" or shown is None or isinstance(shown, NumberText):
        return _NAT if shown == "NaT" else shown
    for text in ("NaN", "Infinity", "-Infinity"):
        if _fill_bits(data_type, text) == _fill_bits(data_type, shown):
            return text
    number = float(np.frombuffer(_fill_bits(data_type, shown), f">f{data_type.nbytes}")[0])
    return None if isnan(number) else number


def _fill_bits(data_type: DataType, shown: Any) -> Any:
    """Return a value to compare two canonical fill values: for a float the element's bytes, big-endian."""
    if data_type.kind == "c":
        return [_fill_bits(DataType("f", data_type.nbytes // 2), v) for v in shown]
    if data_type.kind != "f":
        return _NAT if shown == "NaT" else shown
    if isinstance(shown, str) and shown.startswith("0x"):
        return bytes.fromhex(shown[2:])
    with np.errstate(over="ignore"):
        value = float(shown.text if isinstance(shown, NumberText) else shown)
        return np.array(value).astype(f">f{data_type.nbytes}").tobytes()


def same_fill(data_type: DataType, one: Any, other: Any) -> bool:
    one, other = (None if v is None else fill_to_v3(data_type, v) for v in (one, other))
    return one is not None and other is not None and bool(_fill_bits(data_type, one) == _fill_bits(data_type, other))


def _bits(value: Any, nbytes: int) -> bytes | None:
    """Return the element's bytes, most significant first, of a value such as ``0x7fc0`` or ``0b0111...`` of full length."""
    match = re.fullmatch(f"0x([0-9a-fA-F]{{{2 * nbytes}}})|0b([01]{{{8 * nbytes}}})", value, re.ASCII) if isinstance(value, str) else None
    return int(match[1] or match[2], 16 if match[1] else 2).to_bytes(nbytes, "big") if match else None


def _integer(value: Any) -> int | None:
    value = float(value.text) if isinstance(value, NumberText) else value
    return int(value) if isinstance(value, int) or (isinstance(value, float) and value.is_integer()) else None


def _base64_nbytes(text: str) -> int:
    try:
        return len(base64.b64decode(text, validate=True))
    except ValueError:
        return 2**31  # longer than any element: it is refused
