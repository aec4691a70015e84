"""Translate the stored metadata document to the presented one, and back.

Presented: the same array with ``chunk_grid`` of the inner chunk shape and the inner codecs. Stored: the shard shape, and
``sharding_indexed`` as the last codec; only ``transpose`` may precede it, which is presented in front of the inner codecs. Where the
2022 draft's storage transformer does the sharding, the stored document is the presented one with the member ``storage_transformers``.
Every other member, attribute and number form is carried over both ways; codecs in spellings of older drafts are presented in today's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from shardstore.errors import InvalidInput
from shardstore.format.codecs import SHARDING, Axes, codec_configuration, codec_name, in_current_spelling, leading_transposes, permuted
from shardstore.format.json_text import JsonObject, dumps, parse_object
from shardstore.format.metadata_v3 import (
    ArrayLayout,
    is_array,
    is_group,
    item_nbytes,
    mentions_sharding,
    parse_layout,
)
from shardstore.format.shard_index import IndexFormat
from shardstore.format.storage_transformers import parse_sharding_transformers, sharding_transformer, transformer_index_format

# Members that decide what the bytes of the chunks mean: they cannot change while chunks exist.
_CHUNK_MEMBERS = ("data_type", "chunk_grid", "chunk_key_encoding", "codecs")
_TRANSFORMERS = "storage_transformers"

# How a codec packs, which no reader has to know: left out or filled in by one library or another.
_PACKING = {"zstd": ("level", "checksum"), "gzip": ("level",), "blosc": ("cname", "clevel", "shuffle", "typesize", "blocksize")}


def present_array(stored: JsonObject) -> JsonObject:
    """Return the document that a client sees. An array that cannot be shown chunk by chunk is returned unchanged."""
    layout = parse_layout(stored)
    if isinstance(layout, str):
        return stored
    return _as_presented(stored, layout)


def _as_presented(stored: JsonObject, layout: ArrayLayout) -> JsonObject:
    if stored.get(_TRANSFORMERS):
        return _with_transformers(stored, stored[_TRANSFORMERS][:-1])
    grid = {"name": "regular", "configuration": {"chunk_shape": list(layout.chunk_shape)}}
    *transposes, sharding = stored["codecs"]
    codecs = [*transposes, *codec_configuration(sharding)["codecs"]]
    return stored | {"chunk_grid": grid, "codecs": in_current_spelling(codecs, layout.ndim)}


def _with_transformers(document: JsonObject, transformers: list[Any]) -> JsonObject:
    """Return the document with these storage transformers; an empty list means the same as none, and is left out."""
    rest = {member: value for member, value in document.items() if member != _TRANSFORMERS}
    return rest | {_TRANSFORMERS: transformers} if transformers else rest


def present_node(stored: JsonObject, layout: ArrayLayout | None = None) -> JsonObject:
    """Return the document that a client sees of any node; a group's consolidated metadata is translated document by document.

    ``layout`` is that of the document, if it is known already.
    """
    if layout is not None:
        return _as_presented(stored, layout)
    if is_array(stored):
        return present_array(stored)
    return map_consolidated(stored, lambda path, document: present_array(document))


def present_bytes(stored: bytes) -> bytes:
    """Return the bytes of the document that a client sees: unchanged where nothing has to be translated, or where they are no JSON."""
    document = parse_object(stored)
    presented = None if document is None else present_node(document)
    return stored if presented is None or presented == document else dumps(presented)


def documents_inside(document: JsonObject) -> JsonObject | None:
    """Return the documents in a document's consolidated metadata, by path relative to it; ``None`` where it has none."""
    consolidated = document.get("consolidated_metadata")
    inside = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    return inside if isinstance(inside, dict) else None


def nodes_in(document: JsonObject, path: str = "") -> Iterator[tuple[str, JsonObject]]:
    """Yield a document, and every document inside a group's consolidated metadata, with their paths as ``map_nodes`` gives them."""
    yield path, document
    for name, node in ((documents_inside(document) if is_group(document) else None) or {}).items():
        if isinstance(node, dict):
            yield from nodes_in(node, f"{path}/{name}" if path else name)


def map_nodes(document: JsonObject, change: Callable[[str, JsonObject], JsonObject], path: str = "") -> JsonObject:
    """Return a document changed, and with it every document inside a group's consolidated metadata.

    ``change`` gets the path relative to the first document. Groups inside may hold consolidated metadata of their own.
    """
    changed = change(path, document)
    inside = documents_inside(document) if is_group(document) else None
    if inside is None:
        return changed
    nodes = {n: map_nodes(node, change, f"{path}/{n}" if path else n) if isinstance(node, dict) else node for n, node in inside.items()}
    return changed | {"consolidated_metadata": document["consolidated_metadata"] | {"metadata": nodes}}


def map_consolidated(document: JsonObject, translate: Callable[[str, JsonObject], JsonObject]) -> JsonObject:
    """Return ``document`` with every array document inside its ``consolidated_metadata`` replaced by its translation.

    ``translate`` gets the path relative to the group.
    """
    return map_nodes(document, lambda path, node: translate(path, node) if node is not document and is_array(node) else node)


def consolidated_arrays(document: JsonObject) -> dict[str, JsonObject]:
    """Return the array documents inside a group's consolidated metadata, by path relative to the group."""
    return {path: node for path, node in nodes_in(document) if node is not document and is_array(node)}


def same_chunks(presented: JsonObject, other: JsonObject) -> bool:
    """Return whether two presented documents agree on everything that defines the meaning of a chunk's bytes.

    Libraries spell the same thing in several ways: zarr-python leaves the endianness of single bytes out, and adds how a compressor
    packs, which makes no difference to a reader.
    """
    if any(_canonical(member, presented.get(member)) != _canonical(member, other.get(member)) for member in _CHUNK_MEMBERS[:-1]):
        return False
    if not _same_transformers(presented, other):
        return False
    single_bytes = item_nbytes(presented.get("data_type")) == 1
    return _same_codecs(presented.get("codecs"), other.get("codecs"), single_bytes)


def with_sizes_for_zeros(stored: JsonObject, document: JsonObject) -> JsonObject:
    """Return the stored document of an array with a client's chunk sizes in place of those that are 0.

    Older versions of zarr-python 3 stored the size 0 for dimensions of length 0. Since 3.4.2 it is read as the smallest size that the
    dimension can have, and stored so before a chunk is written. No chunk can be stored under a size of 0, so no other size changes what a
    chunk means.
    """
    sizes, wanted = _regular_sizes(stored), _regular_sizes(document)
    if sizes is None or wanted is None or len(sizes) != len(wanted) or all(sizes):
        return stored
    grid = stored["chunk_grid"]
    chunk_shape = [other if size == 0 else size for size, other in zip(sizes, wanted, strict=True)]
    return {**stored, "chunk_grid": {**grid, "configuration": {**grid["configuration"], "chunk_shape": chunk_shape}}}


def _regular_sizes(document: JsonObject) -> list[Any] | None:
    """Return the chunk shape of a regular grid as it stands in the document, sound or not."""
    grid = document.get("chunk_grid")
    sizes = codec_configuration(grid).get("chunk_shape") if isinstance(grid, dict) and grid.get("name") == "regular" else None
    return sizes if isinstance(sizes, list) else None


def has_chunks_of(document: JsonObject, stored: JsonObject) -> bool:
    """Return whether a client's document, of chunks or of shards of them, describes the chunks that are shown of ``stored``."""
    shown = present_array(stored)
    return same_chunks(document, shown) or same_chunks(present_array(document), shown)


def _same_transformers(one: JsonObject, other: JsonObject) -> bool:
    """Return whether two documents have the same transformers, or only one has any: zarr-python 2.18 loses them on every resize."""
    mine, theirs = one.get(_TRANSFORMERS), other.get(_TRANSFORMERS)
    if not mine or not theirs or mine == theirs:
        return True
    shape = one.get("shape")
    ndim = len(shape) if isinstance(shape, list) else 0
    parsed = parse_sharding_transformers(mine, ndim)
    return not isinstance(parsed, str) and parsed == parse_sharding_transformers(theirs, ndim)


def _same_codecs(one: Any, other: Any, single_bytes: bool) -> bool:
    if not isinstance(one, list) or not isinstance(other, list):
        return bool(one == other)
    return len(one) == len(other) and all(_same_codec(a, b, single_bytes) for a, b in zip(one, other, strict=True))


def _same_codec(one: Any, other: Any, single_bytes: bool) -> bool:
    name, configuration = _spelled_out(one)
    other_name, other_configuration = _spelled_out(other)
    if name is None or name != other_name:
        return bool(one == other)
    ignored = {"endian"} if name == "bytes" and single_bytes else set()
    for member in _PACKING.get(name, ()):
        if member not in configuration or member not in other_configuration:
            ignored.add(member)
    nested = ("codecs", "index_codecs") if name == SHARDING else ()
    for member in (set(configuration) | set(other_configuration)) - ignored:
        mine, theirs = configuration.get(member), other_configuration.get(member)
        same = _same_codecs(mine, theirs, single_bytes and member == "codecs") if member in nested else mine == theirs
        if not same:
            return False
    return True


def _spelled_out(codec: Any) -> tuple[str | None, JsonObject]:
    name = codec_name(codec)
    configuration = {k: v for k, v in codec_configuration(codec).items() if v is not None}
    if name == SHARDING:
        configuration.setdefault("index_location", "end")
    return ("bytes" if name == "endian" else name), configuration


def update_stored(presented: JsonObject, previous: JsonObject) -> JsonObject:
    """Return the stored document for new attributes, a new shape and the like; the sharding of ``previous`` is kept.

    Called only where ``same_chunks(presented, present_array(previous))``.
    """
    kept = {member: previous[member] for member in _CHUNK_MEMBERS if member in previous}
    if previous.get(_TRANSFORMERS):
        kept[_TRANSFORMERS] = previous[_TRANSFORMERS]
    return presented | kept


def shard_document(presented: JsonObject, index_format: IndexFormat, *, by_transformer: bool = False) -> JsonObject:
    """Return the stored document of a new sharded array; ``index_format`` names the chunks per shard.

    With ``by_transformer``, the 2022 draft's storage transformer shards the chunks, not a codec; then ``index_format`` is the
    transformer's. Raises ``InvalidInput`` if the shard's rank is not the array's; or the codecs do not begin with the transposition that
    ``index_format`` is of.
    """
    chunk_shape = codec_configuration(presented["chunk_grid"])["chunk_shape"]
    if len(chunk_shape) != len(index_format.chunks_per_shard):
        raise InvalidInput(
            f"chunks_per_shard {index_format.chunks_per_shard} has {len(index_format.chunks_per_shard)} dimensions, the array has "
            f"{len(chunk_shape)}: give one number for each dimension"
        )
    if by_transformer:
        return _with_transformers(presented, [*(presented.get(_TRANSFORMERS) or []), sharding_transformer(index_format.chunks_per_shard)])
    shard_shape = [c * n for c, n in zip(chunk_shape, index_format.chunks_per_shard, strict=True)]
    outer, inner = _split_transposes(presented["codecs"], index_format.axes)
    sharding = {
        "name": SHARDING,
        "configuration": {
            "chunk_shape": list(chunk_shape if index_format.axes is None else permuted(chunk_shape, index_format.axes)),
            "codecs": inner,
            "index_codecs": index_format.codecs.to_json(),
            "index_location": index_format.location,
        },
    }
    grid = {"name": "regular", "configuration": {"chunk_shape": shard_shape}}
    return presented | {"chunk_grid": grid, "codecs": [*outer, sharding]}


def _split_transposes(codecs: Any, axes: Axes | None) -> tuple[list[Any], Any]:
    """Return the codecs that make the transposition before the sharding, and those of the chunks in the shards."""
    if axes is None:
        return [], codecs
    transposes = leading_transposes(codecs, len(axes), axes)
    if isinstance(transposes, str):
        raise InvalidInput(f"the array cannot be sharded as it was: {transposes}")
    return codecs[: transposes.number], codecs[transposes.number :]


def can_be_presented(document: JsonObject, stored: JsonObject) -> bool:
    """Return whether ``stored`` is shown as ``document``, which a client wants to create, except for the spelling of its codecs."""
    if stored.get(_TRANSFORMERS):
        return present_array(stored) == _with_transformers(document, document.get(_TRANSFORMERS) or [])
    shape = document.get("shape")
    spelled = in_current_spelling(document.get("codecs"), len(shape) if isinstance(shape, list) else 0)
    return present_array(stored) == document | {"codecs": spelled}


def sharded_otherwise(stored: JsonObject, *, by_transformer: bool) -> JsonObject:
    """Return the document that shards the same way by the other means, storage transformer or codec; unchanged where there is none.

    A transformer's shard is one of the codec whose index has no checksum and lies at the end.
    """
    layout = parse_layout(stored)
    if isinstance(layout, str) or layout.by_transformer is by_transformer:
        return stored
    presented = _as_presented(stored, layout)
    of_transformer = replace(transformer_index_format(layout.index_format.chunks_per_shard), chunk_nbytes=layout.encoded_chunk_nbytes)
    if presented.get(_TRANSFORMERS) or layout.index_format != of_transformer:
        return stored
    return shard_document(presented, layout.index_format, by_transformer=by_transformer)


def asks_for_shards(presented: JsonObject, *, may_stack: bool) -> bool:
    """Return whether a client tries to create an array that is itself sharded; ``may_stack`` permits it transformers."""
    return mentions_sharding(presented.get("codecs")) or (bool(presented.get(_TRANSFORMERS)) and not may_stack)


def _canonical(member: str, value: Any) -> Any:
    """Return a form in which two spellings of one meaning are equal."""
    configuration = dict(codec_configuration(value))
    if member == "chunk_key_encoding":
        configuration.setdefault("separator", "/" if codec_name(value) == "default" else ".")
    return (codec_name(value), configuration)


# -- levels of sharding ------------------------------------------------------------------------------------------------
#
# Arrays whose shards are sharded again:
#
#     level 0   stored          one object per shard
#     level 1   presented       the chunks of a shard; of nested sharding each is a shard itself
#     level 2                   the chunks of these, and so on
#
# Codecs nest (``sharding_indexed`` inside ``sharding_indexed``); storage transformers are listed, the last one next to the storage. No
# other program reads storage transformers, so all of them are always removed.

PresentLevel = int | Literal["innermost"]
"""The number of levels of sharding to remove, if there are as many."""


def levels_of(document: JsonObject) -> list[JsonObject]:
    """Return the array's document at each level, the stored one first; only that where it is not sharded, or passes through whole."""
    documents = [document]
    while (below := present_array(documents[-1])) is not documents[-1]:
        documents.append(below)
    return documents


def levels_below(documents: Sequence[JsonObject], wanted: PresentLevel) -> int:
    """Return how many levels have to be removed from the stored array, where removing one more gives the level that a client wants."""
    transformers = documents[0].get("storage_transformers")
    count = len(transformers) if isinstance(transformers, list) else 0
    there = len(documents) - 1
    return max(0, there - 1 if wanted == "innermost" else min(there, max(count, wanted)) - 1)


def restored(shown: JsonObject, documents: Sequence[JsonObject]) -> JsonObject | None:
    """Return the document to store for ``shown``, at the last of the levels ``documents``; ``None`` where its chunks are different."""
    if not same_chunks(shown, documents[-1]):
        return None
    for above in reversed(documents[:-1]):
        shown = update_stored(shown, above)
    return shown
