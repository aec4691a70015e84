"""Metadata documents of the 2022 draft, as final Zarr v3 documents and back.

::

    draft (zarr-python 2.18)                        canonical (final v3)
    data_type "<i4", ">f8", "u1", "int32"           data_type "int32" + codec bytes{endian}
    data_type {extension, type "<M8[ns]"}           data_type numpy.datetime64 ...
    chunk_grid {type, chunk_shape, separator}       chunk_grid regular, chunk_key_encoding default{separator}
    chunk_memory_layout "F"                         codec transpose{order reversed}
    compressor {codec: URI, configuration}          codec gzip, zstd, blosc, numcodecs.*
    codecs [{type: URI, configuration}]             the same (November 2022; zarr-python 2.18 does not know it)
    fill_value null, "NaN", "0x7fc0"                fill_value zero, "NaN", "0x7fc0"
    storage_transformers [...]                      storage_transformers [...], verbatim; chunk_grid is the chunk's
    attributes._ARRAY_DIMENSIONS ["y", "x"]         dimension_names ["y", "x"]

The draft has no dimension names. They are kept in the attribute where xarray then kept them: on every resize zarr-python 2.18 drops
members that it does not know, but no attribute. A member that the draft does not define is shown only where it is an object with
``must_understand: false``; it is kept in any case as long as the chunks keep their meaning. Specification: draft core protocol 3.0,
"Metadata" (24 Feb 2022 and 18 Nov 2022); Zarr v3, "Array metadata".
"""

from __future__ import annotations

import re
from typing import Any

from shardstore.errors import InvalidInput
from shardstore.format.codecs import codec_configuration, codec_name
from shardstore.format.draft2022.types import DataType, fill_from_v3, fill_to_v3, parse_draft_type, parse_v3_type, same_fill
from shardstore.format.json_text import JsonObject
from shardstore.format.metadata_v3 import PlainArray, is_array, is_group, must_understand, parse_plain
from shardstore.format.presentation import same_chunks
from shardstore.format.storage_transformers import parse_sharding_transformers, transformers_to_show
from shardstore.format.v2.codecs import BLOSC_SHUFFLES, DEFAULTS, NUMCODECS
from shardstore.format.v2.documents import ARRAY_DIMENSIONS as _DIMENSIONS
from shardstore.format.v2.kept import RESERVED as KEPT

_CORE_URI = re.compile(r"https?://purl\.org/zarr/spec/(?:protocol/)?core/3\.[0-9]+/?", re.ASCII)
_WRITTEN_CORE_URI = "https://purl.org/zarr/spec/protocol/core/3.0"
_CODEC_URI = re.compile(r"https?://purl\.org/zarr/spec/codecs?/([a-z0-9]+)(?:/1\.[0-9]+)?/?", re.ASCII)
_WRITTEN_CODEC_URI = "https://purl.org/zarr/spec/codec/{}/1.0"
_AS_STORED = "draft2022"
_TRANSFORMERS = "storage_transformers"
_FILTERS = "filters"  # an attribute that zarr-python 2.18 takes for the filters of its v2 arrays

# What array documents of the draft and of final v3 define: a member of another name has no meaning.
_SHARED_MEMBERS = frozenset(
    ("attributes", "chunk_grid", "codecs", "data_type", "extensions", "fill_value", "shape", _TRANSFORMERS),
)
_DRAFT_MEMBERS = _SHARED_MEMBERS | {"chunk_memory_layout", "compressor", "dimension_separator", "storage_transformer"}
_V3_MEMBERS = _SHARED_MEMBERS | {"chunk_key_encoding", "consolidated_metadata", "dimension_names", "node_type", "zarr_format"}

# Configurations with numcodecs' defaults. Those with a prefix are known to zarr-python 3 by numcodecs' own name and members.
_CODECS = {name: DEFAULTS[name] for name in ("gzip", "zstd", "blosc")}
_CODECS |= {NUMCODECS + name: DEFAULTS[name] for name in ("zlib", "bz2", "lz4", "lzma")}


def entry_point() -> JsonObject:
    """Return a new ``zarr.json``, as zarr-python 2.18 writes it."""
    return {"zarr_format": _WRITTEN_CORE_URI, "metadata_encoding": _WRITTEN_CORE_URI, "metadata_key_suffix": ".json", "extensions": []}


def is_entry_point(document: Any) -> bool:
    """Return whether this is the entry point of a draft hierarchy, of either spelling of its URI."""
    version = document.get("zarr_format") if isinstance(document, dict) else None
    return isinstance(version, str) and _CORE_URI.fullmatch(version) is not None


def entry_point_problem(document: JsonObject) -> str | None:
    """Return why a hierarchy with this entry point cannot be shown, or ``None`` where it can."""
    encoding = document.get("metadata_encoding", _WRITTEN_CORE_URI)
    if not isinstance(encoding, str) or not _CORE_URI.fullmatch(encoding):
        return f"its metadata_encoding {encoding!r} is not known"
    suffix = document.get("metadata_key_suffix", ".json")
    if suffix != ".json":
        return f"its metadata_key_suffix is {suffix!r}, only '.json' is known"
    return _extension_problem(document.get("extensions"))


def _extension_problem(extensions: Any) -> str | None:
    if not isinstance(extensions or [], list):
        return "its extensions are not a list"
    for extension in extensions or ():
        if must_understand(extension):
            name = extension.get("extension") if isinstance(extension, dict) else extension
            return f"its extension {name!r} must be understood and is not known"
    return None


def implicit_group() -> JsonObject:
    """Return the canonical document of a group that exists only because nodes lie below it."""
    return {"zarr_format": 3, "node_type": "group", "attributes": {}}


def group_to_v3(document: JsonObject) -> JsonObject:
    """Return the canonical document of a group."""
    attributes = document.get("attributes")
    return _optional(document) | implicit_group() | {"attributes": attributes if isinstance(attributes, dict) else {}}


def group_from_v3(canonical: JsonObject, previous: JsonObject | None) -> JsonObject:
    """Return the draft's document of a group; members of ``previous`` that are not shown are kept. Raises ``InvalidInput`` if a member is
    one that the draft cannot express, as consolidated metadata: a draft writer, who does not know it, would leave it stale.
    """
    if not is_group(canonical):
        raise InvalidInput("a group of the 2022 draft can only be written from a Zarr v3 group document")
    if canonical.get("consolidated_metadata") is not None:
        raise InvalidInput("consolidated_metadata: the 2022 draft has none; open the hierarchy without it")
    return _hidden(previous or {}) | _checked_extra(canonical) | {"attributes": _attributes(canonical)}


def with_stored(canonical: JsonObject, stored: JsonObject) -> JsonObject:
    """Return the canonical document with the draft's in one more member, which readers may ignore; for callers that show the draft's."""
    return canonical | {_AS_STORED: {"must_understand": False, "document": stored}}


def split_stored(canonical: JsonObject) -> tuple[JsonObject, JsonObject | None]:
    """Return the canonical document and the draft's, where ``with_stored`` has added one."""
    member = canonical.get(_AS_STORED)
    stored = member.get("document") if isinstance(member, dict) else None
    if not isinstance(stored, dict):
        return canonical, None
    return {member: value for member, value in canonical.items() if member != _AS_STORED}, stored


def given_array(canonical: JsonObject, given: JsonObject) -> JsonObject:
    """Return the document to store for an array that a client has ``given`` as a document of the draft: that document, with the storage
    transformers, and the kept attributes, of the canonical document made from it. Raises ``InvalidInput`` if it would not be shown as
    ``canonical``.
    """
    document = given_group(canonical, {m: v for m, v in given.items() if m != _TRANSFORMERS})
    transformers = canonical.get(_TRANSFORMERS) or given.get(_TRANSFORMERS)
    document |= {} if transformers is None else {_TRANSFORMERS: transformers}
    shown = array_to_v3(document)
    if isinstance(shown, str) or not same_chunks(shown, canonical) or shown["shape"] != canonical["shape"]:
        raise InvalidInput(
            f"the 2022 draft cannot express this array: {shown if isinstance(shown, str) else 'its chunks have another form'}"
        )
    return document


def given_group(canonical: JsonObject, given: JsonObject) -> JsonObject:
    """Return the document to store for a group, as ``given_array`` does for an array."""
    attributes, shown = canonical.get("attributes"), given.get("attributes")
    if not isinstance(attributes, dict) or KEPT not in attributes:
        return given
    return given | {"attributes": (shown if isinstance(shown, dict) else {}) | {KEPT: attributes[KEPT]}}


def _optional(document: JsonObject) -> JsonObject:
    """Return the members of a stored document that neither side defines and that may be ignored: they are shown unchanged."""
    return {m: v for m, v in document.items() if m not in _DRAFT_MEMBERS | _V3_MEMBERS and not must_understand(v)}


def _hidden(document: JsonObject) -> JsonObject:
    """Return the members of a stored document that are not shown, or, for an array, are shown in another form."""
    shown = _optional(document)
    return {m: v for m, v in document.items() if m not in shown}


def _checked_extra(canonical: JsonObject) -> JsonObject:
    """Return the members that final v3 does not define. Raises ``InvalidInput`` for those that the draft cannot have."""
    extra = {m: v for m, v in canonical.items() if m not in _V3_MEMBERS}
    for member, value in extra.items():
        if must_understand(value):
            raise InvalidInput(f"{member}: it must be understood and is not known")
        if member in _DRAFT_MEMBERS:
            raise InvalidInput(f"{member}: in the 2022 draft this name means something else")
    return extra


def _attributes(canonical: JsonObject) -> JsonObject:
    attributes = canonical.get("attributes", {})
    if not isinstance(attributes, dict):
        raise InvalidInput("attributes: they are not an object")
    return attributes


def array_to_v3(document: JsonObject, transformers_override: tuple[int, ...] | None = None) -> JsonObject | str:
    """Return the canonical document of a stored array, or the reason in words why it cannot be shown.

    ``transformers_override`` are the chunks per shard of an array whose ``storage_transformers`` were lost, as
    zarr-python 2.18's ``resize`` loses them; it has to agree with the document where that still has them.
    """
    shape, grid = document.get("shape"), document.get("chunk_grid")
    if not isinstance(shape, list):
        return "its shape is not a list of sizes"
    if not isinstance(grid, dict) or grid.get("type") != "regular" or "extension" in grid:
        return "its chunk grid is not regular"
    separator = "/" if len(shape) == 1 else grid.get("separator", "/")  # the key "c5" does not tell it
    problem = _extension_problem(document.get("extensions"))
    if problem is not None:
        return problem
    parsed = parse_draft_type(document.get("data_type"))
    if isinstance(parsed, str):
        return parsed
    codecs = _codecs_to_v3(document, parsed[0], parsed[1], len(shape))
    if isinstance(codecs, str):
        return codecs
    fill_value = fill_to_v3(parsed[0], document.get("fill_value"))
    if fill_value is None:
        return f"its fill_value {document.get('fill_value')!r} is not a value of its data type"
    transformers = transformers_to_show(document, transformers_override, len(shape))
    if isinstance(transformers, str):
        return transformers
    canonical = _optional(document) | {
        "shape": shape,
        "data_type": parsed[0].v3_name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": _chunk_shape(grid.get("chunk_shape"), shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": separator}},
        "fill_value": fill_value,
        "codecs": codecs,
        **_attributes_to_v3(document.get("attributes"), len(shape)),
        "zarr_format": 3,
        "node_type": "array",
    }
    plain = parse_plain(canonical)
    if isinstance(plain, str):
        return plain
    return canonical | {_TRANSFORMERS: transformers} if transformers else canonical


def _chunk_shape(chunk_shape: Any, shape: list[Any]) -> Any:
    """Return the chunk shape. zarr-python 2.18 writes a chunk of 0 elements along a dimension of length 0; final v3 has no such chunk."""
    if not isinstance(chunk_shape, list) or len(chunk_shape) != len(shape):
        return chunk_shape
    return [1 if n == 0 and c == 0 and type(c) is int else c for n, c in zip(shape, chunk_shape, strict=True)]


def _attributes_to_v3(attributes: Any, ndim: int) -> JsonObject:
    if not isinstance(attributes, dict):
        return {"attributes": {}}
    names = attributes.get(_DIMENSIONS)
    if not _are_dimension_names(names, ndim):
        return {"attributes": attributes}
    return {"attributes": {k: v for k, v in attributes.items() if k != _DIMENSIONS}, "dimension_names": names}


def _are_dimension_names(names: Any, ndim: int) -> bool:
    """Return whether these are dimension names, at least one of them not null: final v3 leaves the member out where all are null."""
    if not isinstance(names, list) or len(names) != ndim:
        return False
    return all(n is None or isinstance(n, str) for n in names) and (ndim == 0 or any(n is not None for n in names))


def _codecs_to_v3(document: JsonObject, data_type: DataType, endian: str | None, ndim: int) -> list[JsonObject] | str:
    layout = document.get("chunk_memory_layout", "C")
    if layout not in ("C", "F"):
        return f"its chunk_memory_layout {layout!r} is not known"
    attributes = document.get("attributes")
    filters = attributes.get(_FILTERS) if isinstance(attributes, dict) else None
    if isinstance(filters, list) and any(isinstance(f, dict) and "id" in f for f in filters):
        return "its attributes name filters of zarr-python 2.18, which the draft does not have"
    stored = _stored_codecs(document)
    if isinstance(stored, str):
        return stored
    if stored and stored[0][0] == "endian":
        named = stored.pop(0)[1].get("endian")
        if named not in ("little", "big") or endian not in (None, named):
            return f"the endianness {named!r} of its codec does not fit its data type"
        endian = named
    codecs: list[JsonObject] = []
    if layout == "F" and ndim > 1:
        codecs.append({"name": "transpose", "configuration": {"order": list(range(ndim))[::-1]}})
    codecs.append({"name": "bytes"} | ({"configuration": {"endian": endian or "little"}} if data_type.has_endian else {}))
    for name, configuration in stored:
        codec = _compressor_to_v3(name, configuration, data_type)
        if isinstance(codec, str):
            return codec
        codecs.append(codec)
    return codecs


def _stored_codecs(document: JsonObject) -> list[tuple[str, JsonObject]] | str:
    """Return short names and configurations of ``compressor`` (February 2022) or ``codecs`` (November 2022)."""
    compressor, codecs = document.get("compressor"), document.get("codecs") or []
    if not isinstance(codecs, list) or (compressor is not None and codecs):
        return "its codecs are not a list, or there is a compressor as well"
    named: list[tuple[str, JsonObject]] = []
    for codec in codecs if compressor is None else [compressor]:
        uri = (codec.get("codec") or codec.get("type")) if isinstance(codec, dict) else None
        match = _CODEC_URI.fullmatch(uri) if isinstance(uri, str) else None
        if match is None:
            return f"its codec {uri!r} is not known"
        named.append((match[1], dict(codec_configuration(codec))))
    return named


def _compressor_to_v3(short: str, configuration: JsonObject, data_type: DataType) -> JsonObject | str:
    name = short if short in _CODECS else f"numcodecs.{short}"
    unknown = sorted(set(configuration) - set(_CODECS.get(name, ())))
    if name not in _CODECS or unknown:
        return f"its codec {short!r} " + (f"has a member {unknown[0]!r} that is not known" if name in _CODECS else "is not known")
    if name != short:
        return {"name": name, "configuration": configuration}
    values = _CODECS[name] | configuration
    if name == "gzip" and values["level"] == -1:
        values["level"] = 6  # what zlib means by -1, which final v3 does not have
    if name == "blosc":
        shuffle = values["shuffle"]
        if shuffle == -1:  # Blosc's own choice
            shuffle = 2 if data_type.nbytes == 1 else 1
        if type(shuffle) is not int or not 0 <= shuffle < len(BLOSC_SHUFFLES):
            return f"the shuffle {shuffle!r} of its codec 'blosc' is not known"
        values |= {"shuffle": BLOSC_SHUFFLES[shuffle]} | ({"typesize": data_type.nbytes} if shuffle else {})
    return {"name": name, "configuration": values}


def array_from_v3(canonical: JsonObject, previous: JsonObject | None) -> JsonObject:
    """Return the draft's document of an array whose canonical document is to be ``canonical``.

    ``previous`` is the stored document that it replaces. Where the chunks keep their meaning, all other unchanged members keep their
    spelling, also members that are not shown. A new document is written as by zarr-python 2.18. Raises ``InvalidInput`` if a member is
    one that the draft, or zarr-python 2.18, cannot express.
    """
    if not is_array(canonical):
        raise InvalidInput("an array of the 2022 draft can only be written from a Zarr v3 array document")
    plain = parse_plain({m: v for m, v in canonical.items() if m != _TRANSFORMERS})
    if isinstance(plain, str):
        raise InvalidInput(f"the 2022 draft cannot express this array: {plain}")
    if len(plain.shape) == 1 and plain.key_encoding.separator != "/":
        raise InvalidInput('chunk_key_encoding: the chunk keys of a 1-d array of the 2022 draft have no separator; choose "/"')
    extra = _checked_extra(canonical)
    attributes = _attributes_from_v3(canonical, len(plain.shape), previous or {})
    shown = array_to_v3(previous) if previous is not None else None
    if previous is None or not isinstance(shown, dict) or not same_chunks(canonical, shown):
        document = _new_array(canonical, plain)
        written = array_to_v3(document)
        if isinstance(written, str) or not same_chunks(canonical, written):
            reason = written if isinstance(written, str) else "it would be shown with other codecs"
            raise InvalidInput(f"codecs: the 2022 draft cannot express them exactly ({reason})")
    else:
        document = _kept_array(canonical, previous, shown)
    return document | extra | {"shape": canonical["shape"], "attributes": attributes} | _transformers_from_v3(canonical, document)


def _kept_array(canonical: JsonObject, previous: JsonObject, shown: JsonObject) -> JsonObject:
    """Return the members of the previous document that stay: all hidden ones, and all shown and unchanged ones."""
    document = _hidden(previous)
    if 0 in previous["chunk_grid"]["chunk_shape"] and 0 not in canonical["shape"]:
        document["chunk_grid"] = previous["chunk_grid"] | {"chunk_shape": shown["chunk_grid"]["configuration"]["chunk_shape"]}
    data_type = parse_v3_type(canonical["data_type"])
    assert data_type is not None  # same_chunks: it is the previous one's
    same = same_fill(data_type, canonical.get("fill_value"), shown["fill_value"])
    return document if same else document | {"fill_value": _new_fill(data_type, canonical)}


def _new_array(canonical: JsonObject, plain: PlainArray) -> JsonObject:
    separator = plain.key_encoding.separator
    if plain.key_encoding.name != "default":
        raise InvalidInput(f"chunk_key_encoding: the 2022 draft has no encoding {plain.key_encoding.name!r}")
    data_type = parse_v3_type(canonical.get("data_type"))
    if data_type is None:
        raise InvalidInput(f"data_type: the 2022 draft (zarr-python 2.18) has no {canonical.get('data_type')!r}")
    layout, endian, compressor = _codecs_from_v3(canonical.get("codecs"), data_type, len(plain.shape))
    return {
        "attributes": {},
        "chunk_grid": {"chunk_shape": list(plain.chunk_shape), "separator": separator, "type": "regular"},
        "chunk_memory_layout": layout,
        **({"compressor": compressor} if compressor is not None else {}),
        "data_type": data_type.draft_name(endian),
        "dimension_separator": separator,
        "extensions": [],
        "fill_value": _new_fill(data_type, canonical),
        "shape": canonical["shape"],
    }


def _new_fill(data_type: DataType, canonical: JsonObject) -> Any:
    fill_value = fill_from_v3(data_type, canonical.get("fill_value"))
    if fill_value is None:
        raise InvalidInput(f"fill_value: {canonical.get('fill_value')!r} has no form that zarr-python 2.18 reads")
    return fill_value


def _attributes_from_v3(canonical: JsonObject, ndim: int, previous: JsonObject) -> JsonObject:
    attributes, names = _attributes(canonical), canonical.get("dimension_names")
    before = previous.get("attributes")
    if attributes.get(_FILTERS) and not (isinstance(before, dict) and before.get(_FILTERS) == attributes[_FILTERS]):
        raise InvalidInput(f"attributes: zarr-python 2.18 takes {_FILTERS!r} for the names of codecs; choose another name")
    if names is None or (ndim and names == [None] * ndim):
        return attributes
    if not _are_dimension_names(names, ndim):
        raise InvalidInput(f"dimension_names: {names!r} are not the names of {ndim} dimensions")
    if attributes.get(_DIMENSIONS, names) != names:
        raise InvalidInput(f"dimension_names: the 2022 draft keeps them in the attribute {_DIMENSIONS}, which says otherwise")
    return attributes | {_DIMENSIONS: names}


def _transformers_from_v3(canonical: JsonObject, document: JsonObject) -> JsonObject:
    """Return the member where it has to be written. Raises ``InvalidInput`` where it could not be read again."""
    wanted, has = canonical.get(_TRANSFORMERS) or [], document.get(_TRANSFORMERS) or []
    if wanted == has:
        return {}
    problem = parse_sharding_transformers(wanted, len(canonical["shape"]))
    if isinstance(problem, str):
        raise InvalidInput(f"storage_transformers: {problem}")
    return {_TRANSFORMERS: wanted}


def _codecs_from_v3(codecs: Any, data_type: DataType, ndim: int) -> tuple[str, str, JsonObject | None]:
    """Return ``chunk_memory_layout``, endianness and ``compressor``."""
    remaining = list(codecs) if isinstance(codecs, list) else []
    layout = "C"
    if remaining and codec_name(remaining[0]) == "transpose":
        if ndim < 2 or codec_configuration(remaining.pop(0)).get("order") != list(range(ndim))[::-1]:
            raise InvalidInput("codecs: of all transpose codecs the 2022 draft has only the one that reverses all dimensions")
        layout = "F"
    if not remaining or codec_name(remaining[0]) not in ("bytes", "endian"):
        name = codec_name(remaining[0]) if remaining else None
        raise InvalidInput(f"codecs: the 2022 draft writes plain elements (codec bytes), not {name!r}")
    endian = codec_configuration(remaining.pop(0)).get("endian")
    if data_type.has_endian and endian not in ("little", "big"):
        raise InvalidInput(f"codecs: bytes has the endian {endian!r}, neither 'little' nor 'big'")
    if len(remaining) > 1:
        raise InvalidInput("codecs: the 2022 draft (zarr-python 2.18) has at most one compressor")
    return layout, endian or "little", _compressor_from_v3(remaining[0], data_type) if remaining else None


def _compressor_from_v3(codec: Any, data_type: DataType) -> JsonObject:
    name, configuration = codec_name(codec) or "", dict(codec_configuration(codec))
    if name not in _CODECS:
        raise InvalidInput(f"codecs: the 2022 draft (zarr-python 2.18) has no compressor {name!r}")
    if name == "blosc":
        if configuration.get("shuffle") not in BLOSC_SHUFFLES:
            raise InvalidInput(f"codecs: blosc has the shuffle {configuration.get('shuffle')!r}, which is not known")
        configuration["shuffle"] = BLOSC_SHUFFLES.index(configuration["shuffle"])
        typesize = configuration.pop("typesize", data_type.nbytes)
        if configuration["shuffle"] and typesize != data_type.nbytes:
            raise InvalidInput(f"codecs: the typesize of blosc has to be that of an element, {data_type.nbytes}")
    return {"codec": _WRITTEN_CODEC_URI.format(name.removeprefix("numcodecs.")), "configuration": configuration}
