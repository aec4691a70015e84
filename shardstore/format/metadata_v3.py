"""Zarr v3 metadata documents: the members of an array's document that define how its chunks are stored.

A document is read in one of three ways: a group, an array whose shards can be shown chunk by chunk (``ArrayLayout``),
or anything else, which passes through whole with a reason in words. Passing through is always right. An array can be sharded
by its codec or by a storage transformer. Specification: Zarr v3, "Array metadata"; sharding codec 1.0, "Configuration
parameters"; sharding storage transformer 1.0 (draft), "Configuration".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from shardstore.format.chunk_keys import ChunkKeyEncoding, parse_chunk_key_encoding
from shardstore.format.codecs import CRC32C_NBYTES, SHARDING, codec_configuration, codec_name, inverse, leading_transposes, permuted
from shardstore.format.json_text import JsonObject
from shardstore.format.shard_index import MAX_SLOTS, IndexFormat, parse_index_codecs
from shardstore.format.storage_transformers import parse_sharding_transformers, transformer_index_format
from shardstore.model.chunks import ShardGrid

METADATA_NAME = "zarr.json"
MAX_NDIM = 64

# Members of an array document that Zarr v3 defines; another one must be understood unless it says otherwise.
ARRAY_MEMBERS = frozenset(
    (
        *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs"),
        *("attributes", "storage_transformers", "dimension_names", "extensions", "consolidated_metadata"),
    )
)


@dataclass(frozen=True, slots=True)
class PlainArray:
    """The members of an array that is not sharded, as far as they can be read."""

    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    key_encoding: ChunkKeyEncoding

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def chunk_grid_shape(self) -> tuple[int, ...]:
        """The number of chunks along each dimension that hold elements of the array."""
        return tuple(-(-n // c) for n, c in zip(self.shape, self.chunk_shape, strict=True))


@dataclass(frozen=True, slots=True)
class ArrayLayout(PlainArray):
    """The layout of the chunks of a sharded array. ``chunk_shape`` is the inner chunk's, in elements of the array's own dimensions."""

    index_format: IndexFormat
    by_transformer: bool = False
    """True where the 2022 draft's storage transformer shards the array, not a codec."""
    decoded_chunk_nbytes: int | None = None
    """The size of a chunk's elements, where their type is known."""

    @property
    def encoded_chunk_nbytes(self) -> int | None:
        """The size of every encoded chunk, where the codecs give all of them the same."""
        return self.index_format.chunk_nbytes

    def for_any_chunks(self) -> ArrayLayout:
        """Return the same layout for chunks whose codecs may differ from those of the document."""
        return replace(self, index_format=replace(self.index_format, chunk_nbytes=None))

    @property
    def grid(self) -> ShardGrid:
        return ShardGrid(self.index_format.chunks_per_shard)

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """The shape of a shard, in elements."""
        return tuple(c * n for c, n in zip(self.chunk_shape, self.index_format.chunks_per_shard, strict=True))

    @property
    def decoded_shard_nbytes(self) -> int | None:
        """The size of the elements of a shard, where their type is known."""
        return None if self.decoded_chunk_nbytes is None else self.decoded_chunk_nbytes * self.grid.nslots


def is_array(document: JsonObject) -> bool:
    return document.get("zarr_format") == 3 and document.get("node_type") == "array"


def is_group(document: JsonObject) -> bool:
    return document.get("zarr_format") == 3 and document.get("node_type") == "group"


def mentions_sharding(codecs: Any) -> bool:
    """Return whether a list of codecs has ``sharding_indexed`` at its own level."""
    return isinstance(codecs, list) and any(codec_name(codec) == SHARDING for codec in codecs)


def sizes(value: Any, minimum: int, ndim: int | None = None) -> tuple[int, ...] | None:
    """Return a JSON list of whole numbers of at least ``minimum``, with ``ndim`` items where that is given; ``None`` for anything else."""
    if not isinstance(value, list) or len(value) > MAX_NDIM or (ndim is not None and len(value) != ndim):
        return None
    if not all(type(v) is int and minimum <= v < 2**63 for v in value):
        return None
    return tuple(value)


def _regular_grid(document: JsonObject, ndim: int) -> tuple[int, ...] | None:
    grid = document.get("chunk_grid")
    if not isinstance(grid, dict) or grid.get("name") != "regular":
        return None
    configuration = codec_configuration(grid)
    return None if set(configuration) - {"chunk_shape"} else sizes(configuration.get("chunk_shape"), 1, ndim)


def must_understand(value: Any) -> bool:
    """Return whether a reader that does not know this member has to refuse the document."""
    return not (isinstance(value, dict) and value.get("must_understand") is False)


def parse_plain(document: JsonObject) -> PlainArray | str:
    """Return shape, chunk shape and keys of an array, whatever its codecs, or the reason in words why its chunks are not known."""
    plain = _parse_members(document)
    if isinstance(plain, PlainArray) and document.get("storage_transformers"):
        return "it has storage transformers"
    return plain


def parse_shown(document: JsonObject) -> PlainArray | str:
    """Parse, as ``parse_plain`` does, a document that clients see, with the chunks that the last of its storage transformers stores."""
    plain = _parse_members(document)
    if isinstance(plain, str):
        return plain
    transformers = parse_sharding_transformers(document.get("storage_transformers"), len(plain.shape))
    return transformers if isinstance(transformers, str) else replace(plain, chunk_shape=_stacked(plain.chunk_shape, transformers))


def _stacked(chunk_shape: tuple[int, ...], transformers: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of the chunks that reach the layer below these transformers."""
    for counts in transformers:
        chunk_shape = tuple(c * n for c, n in zip(chunk_shape, counts, strict=True))
    return chunk_shape


def _parse_members(document: JsonObject) -> PlainArray | str:
    shape = sizes(document.get("shape"), 0)
    if shape is None:
        return "its shape is not a list of sizes"
    chunk_shape = _regular_grid(document, len(shape))
    if chunk_shape is None:
        return "its chunk grid is not regular"
    key_encoding = parse_chunk_key_encoding(document.get("chunk_key_encoding"))
    if key_encoding is None:
        return "its chunk key encoding is not known"
    unknown = sorted(k for k, v in document.items() if k not in ARRAY_MEMBERS and must_understand(v))
    if unknown:
        return f"its member {unknown[0]!r} must be understood and is not known"
    return PlainArray(shape, chunk_shape, key_encoding)


def parse_layout(document: JsonObject) -> ArrayLayout | str:
    """Return the layout of an array that can be shown chunk by chunk, or the reason in words why it cannot."""
    plain = _parse_members(document)
    if isinstance(plain, str):
        return plain
    if document.get("storage_transformers"):
        return _transformed_layout(document, plain)
    if not mentions_sharding(document.get("codecs")):
        return "it is not sharded"
    return _sharded_layout(document, plain)


def _sharded_layout(document: JsonObject, plain: PlainArray) -> ArrayLayout | str:
    """Return the layout of an array that is sharded by its codec."""
    codecs: list[Any] = document["codecs"]
    transposes = leading_transposes(codecs, len(plain.shape))
    if isinstance(transposes, str):
        return transposes
    if len(codecs) != transposes.number + 1:
        return f"another codec wraps or precedes {SHARDING}"
    configuration = codec_configuration(codecs[-1])
    sharded = permuted(plain.chunk_shape, transposes.axes)
    inner = sizes(configuration.get("chunk_shape"), 1, len(plain.shape))
    if inner is None:
        return f"the chunk_shape of {SHARDING} is not a shape of the array's rank"
    if any(outer % i for outer, i in zip(sharded, inner, strict=True)):
        what = "shard shape" if sharded == plain.chunk_shape else "transposed shard shape"
        return f"the inner chunk shape {inner} does not divide the {what} {sharded}"
    inner = permuted(inner, inverse(transposes.axes))
    chunks_per_shard = tuple(outer // i for outer, i in zip(plain.chunk_shape, inner, strict=True))
    if prod(chunks_per_shard) > MAX_SLOTS:
        return f"{prod(chunks_per_shard)} chunks per shard are more than {MAX_SLOTS}"
    if not isinstance(configuration.get("codecs"), list) or not configuration["codecs"]:
        return f"{SHARDING} names no inner codecs"
    location = configuration.get("index_location", "end")
    if location not in ("start", "end"):
        return f"index_location {location!r} is neither start nor end"
    index_codecs = parse_index_codecs(configuration.get("index_codecs"))
    if isinstance(index_codecs, str):
        return index_codecs
    known = {"chunk_shape", "codecs", "index_codecs", "index_location"}
    unknown = sorted(set(configuration) - known)
    if unknown:
        return f"{SHARDING} has a member {unknown[0]!r} that is not known"
    is_transposed = transposes.axes != tuple(range(len(plain.shape)))
    nbytes = encoded_chunk_nbytes(inner, document.get("data_type"), configuration["codecs"])
    axes = transposes.axes if is_transposed else None
    index_format = IndexFormat(chunks_per_shard, index_codecs, location, axes, nbytes)
    decoded = decoded_chunk_nbytes(inner, document.get("data_type"))
    return ArrayLayout(plain.shape, inner, plain.key_encoding, index_format, decoded_chunk_nbytes=decoded)


def decoded_chunk_nbytes(chunk_shape: tuple[int, ...], data_type: Any) -> int | None:
    """Return the size of a chunk's elements; ``None`` where their type is not known, or has no size."""
    nbytes = item_nbytes(data_type)
    return None if nbytes is None else prod(chunk_shape) * nbytes


def encoded_chunk_nbytes(chunk_shape: tuple[int, ...], data_type: Any, codecs: Any) -> int | None:
    """Return the size of every encoded chunk, where the codecs only arrange its elements and add checksums; else ``None``."""
    nbytes = decoded_chunk_nbytes(chunk_shape, data_type)
    names = [codec_name(codec) for codec in codecs] if isinstance(codecs, list) else []
    if nbytes is None or not {"bytes", "endian"} & set(names) or not set(names) <= {"bytes", "endian", "transpose", "crc32c"}:
        return None
    return nbytes + CRC32C_NBYTES * names.count("crc32c")


def _transformed_layout(document: JsonObject, plain: PlainArray) -> ArrayLayout | str:
    """Return the layout of an array that the 2022 draft's storage transformer shards: its chunk grid is that of the chunks in the shards.

    Of several transformers in a list the last is meant: its chunks are the shards of the one before.
    """
    chunks_per_shard = parse_sharding_transformers(document["storage_transformers"], len(plain.shape))
    if isinstance(chunks_per_shard, str):
        return chunks_per_shard
    *before, last = chunks_per_shard
    chunk_shape = _stacked(plain.chunk_shape, before)
    nbytes = None if before else encoded_chunk_nbytes(chunk_shape, document.get("data_type"), document.get("codecs"))
    decoded = decoded_chunk_nbytes(chunk_shape, document.get("data_type"))
    index_format = replace(transformer_index_format(last), chunk_nbytes=nbytes)
    return ArrayLayout(plain.shape, chunk_shape, plain.key_encoding, index_format, True, decoded)


NUMBERS: dict[str, tuple[str, int]] = {"bool": ("b", 1), "complex64": ("c", 8), "complex128": ("c", 16)}
NUMBERS |= {f"{name}{8 * n}": (name[0], n) for name in ("int", "uint", "float") for n in (1, 2, 4, 8) if (name, n) != ("float", 1)}
"""numpy's letter, and the bytes of an element, of the core data types of Zarr v3 whose elements are numbers."""
NUMBER_NAMES = {number: name for name, number in NUMBERS.items()}
_ITEM_NBYTES = {name: nbytes for name, (_, nbytes) in NUMBERS.items()} | {"numpy.datetime64": 8, "numpy.timedelta64": 8}


def item_nbytes(data_type: Any) -> int | None:
    """Return the decoded bytes of one element, or ``None`` where the type has no fixed size that is known here."""
    name, configuration = codec_name(data_type) or "", codec_configuration(data_type)
    length = configuration.get("length_bytes")
    if type(length) is int and 0 < length < 2**31:
        return length
    if name.startswith("r") and name[1:].isdecimal() and len(name) < 12:
        bits = int(name[1:])
        return bits // 8 if bits and not bits % 8 else None
    if name in ("struct", "structured"):
        fields = configuration.get("fields")
        if not isinstance(fields, list) or not fields or set(configuration) - {"fields"}:
            return None
        found = [nbytes for field in fields if (nbytes := item_nbytes(_field_type(field))) is not None]
        return sum(found) if len(found) == len(fields) else None
    return _ITEM_NBYTES.get(name)


def _field_type(field: Any) -> Any:
    """Return the data type of a field of a structured type, in either form of such fields; ``None`` where it has neither."""
    if isinstance(field, dict):
        return field.get("data_type")
    return field[1] if isinstance(field, list) and len(field) == 2 else None
