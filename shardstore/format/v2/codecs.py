"""Filters, compressor, order and byte order of Zarr v2, as the codecs of Zarr v3.

::

    v2    elements in `order`  →  filters[0]  →  filters[1]  → … →  compressor
    v3    [transpose]  →  [numcodecs.delta, …]  →  bytes | vlen-utf8 | vlen-bytes  →  [numcodecs.shuffle, blosc, …]
           order F         array → array                array → bytes                    bytes → bytes

The core names of v3 are used for blosc, gzip, zstd and crc32c; for the rest zarr-python 3's own, ``numcodecs.<id>`` with numcodecs'
configuration. The bytes of a chunk are the same in both, or the codecs are refused. These codecs are refused, because zarr-python 2
would read other values than zarr-python 3 wrote, or neither could read them:

- a filter of elements behind one of bytes, and codecs that v3 has no name for (pickle, json2, categorize, base64, …);
- filters that flatten an array (delta, fixedscaleoffset, packbits, vlen-utf8, vlen-bytes) in order F with two dimensions
  or more: in numcodecs they follow the layout of memory, which ``transpose`` does not change;
- filters with the type of their elements in the configuration (delta, fixedscaleoffset, quantize, astype) on big-endian elements, or
  with another type than they get: numcodecs reinterprets the bytes then. (zarr-python 3.1 gives a filter little-endian elements when
  it writes, and big-endian ones when it reads, so that no spelling of the type is right for both.)
- filters that make elements of several bytes out of single bytes: zarr-python 3 derives no byte order for them;
- quantize to another type: zarr-python 3 does not follow it.

In order F numcodecs' bitround loses the order of what zarr-python 2 writes; both versions read the same values from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardstore.format.codecs import codec_configuration, codec_name, leading_transposes
from shardstore.format.json_text import JsonObject
from shardstore.format.v2.dtypes import OBJECT_CODECS, ElementType, NoCounterpart, number_from_v2
from shardstore.format.v2.dtypes import from_v3 as type_from_v3

NUMCODECS = "numcodecs."

# As zarr-python 3 classifies what numcodecs has. pcodec and zfpy (array to bytes) are not among them.
_ELEMENT_FILTERS = frozenset(("delta", "bitround", "fixedscaleoffset", "quantize", "packbits", "astype"))
_CHECKSUMS = frozenset(("crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"))
_LOCATED = frozenset(("crc32", "crc32c", "adler32"))  # at the start or the end
_COMPRESSORS = frozenset(("blosc", "lz4", "zstd", "zlib", "gzip", "bz2", "lzma"))
_BYTES_CODECS = _COMPRESSORS | _CHECKSUMS | {"shuffle"}

# The members of a filter's configuration that name the type of what it gets, and of what it returns.
_TYPE_MEMBERS = dict.fromkeys(("delta", "fixedscaleoffset", "quantize"), ("dtype", "astype")) | {"astype": ("decode_dtype", "encode_dtype")}
_FILTER_MEMBERS = {"fixedscaleoffset": ("offset", "scale"), "quantize": ("digits",)}
_FLATTENING = frozenset(("delta", "fixedscaleoffset", "packbits", *OBJECT_CODECS))
# What numcodecs assumes of a member that is left out, and then writes.
DEFAULTS: dict[str, JsonObject] = {
    "blosc": {"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    "zstd": {"level": 0, "checksum": False},
    "gzip": {"level": 1},
    "zlib": {"level": 1},
    "bz2": {"level": 1},
    "lz4": {"acceleration": 1},
    "lzma": {"format": 1, "check": -1, "preset": None, "filters": None},
    "shuffle": {"elementsize": 4},
    "jenkins_lookup3": {"initval": 0, "prefix": None},
}
_BLOSC_NAMES = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")  # by Blosc's number
_BLOSC_AUTOSHUFFLE = -1
_BLOSC_MAX_TYPESIZE = 255  # of larger elements c-blosc shuffles none: it takes them for single bytes
_ZSTD_LEVELS = range(-131072, 23)


@dataclass(frozen=True, slots=True)
class V2Codecs:
    """The members of a ``.zarray`` that define the encoding of a chunk, as zarr-python 2 writes them."""

    element: ElementType
    order: str
    filters: list[JsonObject] | None
    compressor: JsonObject | None


@dataclass(slots=True)
class _Chain:
    """The codecs of v3 so far, and the input of the next one: elements of a type, or bytes."""

    ndim: int
    order: str
    array: ElementType
    element: ElementType | None
    to_array: list[JsonObject]
    to_bytes: list[JsonObject]

    @property
    def item_nbytes(self) -> int:
        return 1 if self.element is None or self.element.item_nbytes == 0 else self.element.item_nbytes


def to_v3(members: V2Codecs, ndim: int) -> list[JsonObject]:
    """Return the v3 ``codecs`` for the chunks of a v2 array. Raises ``NoCounterpart`` if v3 has none for exactly these bytes."""
    chain = _Chain(ndim, members.order, members.element, members.element, [], [])
    if members.order == "F" and ndim > 1:
        chain.to_array.append({"name": "transpose", "configuration": {"order": list(range(ndim))[::-1]}})
    steps = [("filters", config) for config in members.filters or []]
    steps += [("compressor", members.compressor)] if members.compressor is not None else []
    if members.element.object_codec is not None:
        _, config = steps.pop(0)
        _known_members("filters", config, set())
        _refuse_flattening("filters", members.element.object_codec, chain)
        chain.element = None
    for member, config in steps:
        _step_to_v3(member, config, chain)
    element = members.element
    to_bytes: JsonObject = {"name": element.object_codec or "bytes"}
    if element.object_codec is None and element.endian is not None:
        to_bytes["configuration"] = {"endian": element.endian}
    return [*chain.to_array, to_bytes, *chain.to_bytes]


def codec_id(config: Any) -> str | None:
    identifier = config.get("id") if isinstance(config, dict) else None
    return identifier if isinstance(identifier, str) else None


def _known_members(member: str, config: JsonObject, known: set[str]) -> None:
    unknown = sorted(set(config) - known - {"id"})
    if unknown:
        raise NoCounterpart(member, f"{codec_id(config)} has a member {unknown[0]!r} that is not known")


def _refuse_flattening(member: str, identifier: str, chain: _Chain) -> None:
    if identifier in _FLATTENING and chain.order == "F" and chain.ndim > 1:
        raise NoCounterpart(member, f"{identifier} in order F: libraries of Zarr v3 encode the elements in another order; use order C")


def _step_to_v3(member: str, config: Any, chain: _Chain) -> None:
    identifier = codec_id(config)
    if identifier in _ELEMENT_FILTERS:
        if chain.element is None:
            raise NoCounterpart(member, f"{identifier} takes elements, and follows a codec that returns bytes")
        _refuse_flattening(member, identifier, chain)
        configuration, chain.element = _element_filter(member, config, chain.element)
        if chain.element.endian is not None and chain.array.endian is None:
            raise NoCounterpart(
                member, f"{identifier} makes elements of several bytes out of single bytes, without a byte order in Zarr v3"
            )
        chain.to_array.append({"name": NUMCODECS + identifier, "configuration": configuration})
    elif identifier in _BYTES_CODECS:
        chain.to_bytes.append(_bytes_codec(member, config, chain.item_nbytes))
        chain.element = None
    else:
        raise NoCounterpart(member, f"{identifier!r} is no codec that Zarr v3 has a name for")


def _element_filter(member: str, config: JsonObject, element: ElementType) -> tuple[JsonObject, ElementType]:
    """Return the configuration in v3, and the type of the filter's output."""
    identifier = config["id"]
    configuration = {name: value for name, value in config.items() if name != "id"}
    if identifier == "packbits":
        _known_members(member, config, set())
        if element.kind != "b":
            raise NoCounterpart(member, f"packbits takes booleans, and gets {element.v2!r}")
        return configuration, number_from_v2("|u1", member)
    if identifier == "bitround":
        _known_members(member, config, {"keepbits"})
        if element.kind != "f" or type(config.get("keepbits")) is not int or config["keepbits"] < 0:
            raise NoCounterpart(member, "bitround takes floats, and a number of bits to keep")
        return configuration, element
    return _typed_filter(member, identifier, configuration, element)


def _typed_filter(member: str, identifier: str, configuration: JsonObject, element: ElementType) -> tuple[JsonObject, ElementType]:
    """Return what ``_element_filter`` does, for a filter that names the types of its elements."""
    decoded, encoded = _TYPE_MEMBERS[identifier]
    _known_members(member, configuration | {"id": identifier}, {decoded, encoded, *_FILTER_MEMBERS.get(identifier, ())})
    if encoded == "astype" and configuration.get("astype") is None:
        configuration["astype"] = configuration.get("dtype")
    types = {name: number_from_v2(configuration.get(name), member) for name in (decoded, encoded)}
    if "big" in (element.endian, *(t.endian for t in types.values())):
        raise NoCounterpart(member, f"{identifier} of big-endian elements: libraries of Zarr v3 give it them little-endian")
    if types[decoded].v2 != element.v2:
        raise NoCounterpart(member, f"{identifier} is configured for elements {types[decoded].v2!r}, and gets {element.v2!r}")
    if identifier == "quantize" and types[encoded].v2 != element.v2:
        raise NoCounterpart(member, f"quantize to {types[encoded].v2!r}: libraries of Zarr v3 do not follow the change of type")
    return configuration | {name: t.v2 for name, t in types.items()}, types[encoded]


def _bytes_codec(member: str, config: JsonObject, item_nbytes: int) -> JsonObject:
    """Return a v3 codec from bytes to bytes; ``item_nbytes`` is the element size of its input buffer in v2."""
    identifier = config["id"]
    if identifier == "blosc":
        return {"name": "blosc", "configuration": _blosc_to_v3(member, config, item_nbytes)}
    if identifier in ("zstd", "gzip"):
        return {"name": identifier, "configuration": (_zstd_to_v3 if identifier == "zstd" else _gzip_to_v3)(member, config)}
    defaults = DEFAULTS.get(identifier, {})
    _known_members(member, config, {*defaults, *(("location",) if identifier in _LOCATED else ())})
    configuration = defaults | {name: value for name, value in config.items() if name != "id"}
    if identifier == "crc32c" and configuration in ({}, {"location": "end"}):
        return {"name": "crc32c"}
    if identifier == "shuffle" and type(configuration["elementsize"]) is not int:
        raise NoCounterpart(member, f"shuffle has no elementsize {configuration['elementsize']!r}")
    return {"name": NUMCODECS + identifier, "configuration": configuration}


def _zstd_to_v3(member: str, config: JsonObject) -> JsonObject:
    _known_members(member, config, set(DEFAULTS["zstd"]))
    values = DEFAULTS["zstd"] | config
    level, checksum = values["level"], values["checksum"]
    if type(level) is not int or level < _ZSTD_LEVELS.start or not isinstance(checksum, bool):
        raise NoCounterpart(member, f"zstd has no level {level!r} with checksum {checksum!r}")
    return {"level": min(level, _ZSTD_LEVELS.stop - 1), "checksum": checksum}


def _gzip_to_v3(member: str, config: JsonObject) -> JsonObject:
    _known_members(member, config, set(DEFAULTS["gzip"]))
    level = config.get("level", DEFAULTS["gzip"]["level"])
    if type(level) is not int or not -1 <= level <= 9:
        raise NoCounterpart(member, f"gzip has no level {level!r}")
    return {"level": 6 if level == -1 else level}  # zlib's default


def _blosc_to_v3(member: str, config: JsonObject, item_nbytes: int) -> JsonObject:
    _known_members(member, config, set(DEFAULTS["blosc"]))
    values = DEFAULTS["blosc"] | config
    numbers = [values["clevel"], values["shuffle"], values["blocksize"]]
    if values["cname"] not in _BLOSC_NAMES or not all(type(number) is int for number in numbers):
        raise NoCounterpart(member, f"blosc has no {values!r}")
    if not 0 <= values["clevel"] <= 9 or values["blocksize"] < 0 or not _BLOSC_AUTOSHUFFLE <= values["shuffle"] < len(BLOSC_SHUFFLES):
        raise NoCounterpart(member, f"blosc has no {values!r}")
    shuffle = values["shuffle"]
    if shuffle == _BLOSC_AUTOSHUFFLE:
        shuffle = 2 if item_nbytes == 1 else 1
    return {
        "typesize": item_nbytes if item_nbytes <= _BLOSC_MAX_TYPESIZE else 1,
        "cname": values["cname"],
        "clevel": values["clevel"],
        "shuffle": BLOSC_SHUFFLES[shuffle],
        "blocksize": values["blocksize"],
    }


def from_v3(codecs: Any, data_type: Any, ndim: int) -> V2Codecs:
    """Return the members of a ``.zarray`` whose chunks are those of a v3 array with these ``codecs``, without sharding. Raises
    ``NoCounterpart`` if v2 has no such codecs, or none for exactly these bytes.
    """
    if not isinstance(codecs, list):
        raise NoCounterpart("codecs", "they are no list")
    transposes = leading_transposes(codecs, ndim)
    if isinstance(transposes, str):
        raise NoCounterpart("codecs", transposes)
    names = [codec_name(codec) for codec in codecs]
    at = next((i for i, name in enumerate(names) if name in ("bytes", "endian", *OBJECT_CODECS)), len(names))
    filters = [_config_from_v3(codec, takes_bytes=False) for codec in codecs[transposes.number : at]]
    compressors = [_config_from_v3(codec, takes_bytes=True) for codec in codecs[at + 1 :]]
    if at == len(names):
        raise NoCounterpart("codecs", "none of them is known to turn elements into bytes")
    to_bytes = "bytes" if names[at] == "endian" else names[at]
    element = type_from_v3(data_type, codec_configuration(codecs[at]).get("endian"))
    if to_bytes != (element.object_codec or "bytes"):
        raise NoCounterpart("codecs", f"in Zarr v2 elements of type {data_type!r} do not become bytes through {to_bytes}")
    configs = [*filters, *([] if element.object_codec is None else [{"id": element.object_codec}]), *compressors]
    compressor = configs.pop() if configs and configs[-1]["id"] in _COMPRESSORS else None
    in_order_c = tuple(range(ndim))
    if transposes.axes not in (in_order_c, in_order_c[::-1]):
        raise NoCounterpart("codecs", f"transpose to {list(transposes.axes)}, which is neither order C nor F")
    members = V2Codecs(element, "C" if transposes.axes == in_order_c else "F", configs or None, compressor)
    to_v3(members, ndim)  # refuses what libraries of the two formats encode differently
    return members


def _config_from_v3(codec: Any, *, takes_bytes: bool) -> JsonObject:
    """Return the configuration that numcodecs writes for a v3 codec, which takes bytes or elements."""
    name, configuration = codec_name(codec), codec_configuration(codec)
    identifier = name.removeprefix(NUMCODECS) if name is not None else None
    core = identifier in ("blosc", "zstd", "gzip", "crc32c")
    if identifier is None or identifier not in _ELEMENT_FILTERS | _BYTES_CODECS or (name == identifier and not core):
        raise NoCounterpart("codecs", f"{name!r} has no counterpart in Zarr v2, or not at its place")
    if (identifier in _BYTES_CODECS) != takes_bytes:
        raise NoCounterpart("codecs", f"{name!r} is not a codec of {'bytes' if takes_bytes else 'elements'}")
    config = {"id": identifier} | {member: value for member, value in configuration.items() if member != "id"}
    if name == identifier:
        return _core_config_from_v3(identifier, config)
    if identifier == "shuffle" and "elementsize" not in config:
        raise NoCounterpart("codecs", f"{name!r} without elementsize means another thing in Zarr v2")
    config = DEFAULTS.get(identifier, {}) | config
    if "astype" in _TYPE_MEMBERS.get(identifier, ()) and config.get("astype") is None:
        config["astype"] = config.get("dtype")
    for member in _TYPE_MEMBERS.get(identifier, ()):
        config[member] = number_from_v2(config.get(member), "codecs").v2
    return config


def _core_config_from_v3(identifier: str, config: JsonObject) -> JsonObject:
    """Return ``config`` with the defaults that a v3 library assumes for missing members; only blosc has other terms for them."""
    if identifier == "zstd":
        return DEFAULTS["zstd"] | config
    if identifier == "gzip":
        return {"level": 5} | config
    if identifier == "crc32c":
        return config
    config = {"cname": "zstd", "clevel": 5, "blocksize": 0} | config
    config.pop("typesize", None)  # how it was packed, which a reader finds in the buffer, and numcodecs in the elements
    shuffle = config.get("shuffle")
    if shuffle is not None and shuffle not in BLOSC_SHUFFLES:
        raise NoCounterpart("codecs", f"blosc has no shuffle {shuffle!r}")
    return config | {"shuffle": _BLOSC_AUTOSHUFFLE if shuffle is None else BLOSC_SHUFFLES.index(shuffle)}
