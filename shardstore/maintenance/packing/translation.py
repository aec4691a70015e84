"""Translate the source's documents to those of the target: exactly, or refused with the reason.

Everything that defines the meaning of a chunk's bytes is carried over. The grouping of chunks into objects changes, and, where that was
asked for, the checksum behind each chunk. Attributes, dimension names, fill values and unknown members stay unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal

from shardstore.errors import InvalidInput, ShardStoreError, Unsupported
from shardstore.format.chunk_keys import parse_chunk_key_encoding
from shardstore.format.codecs import codec_name
from shardstore.format.draft2022.metadata import array_from_v3, group_from_v3
from shardstore.format.json_text import JsonObject
from shardstore.format.metadata_v3 import is_array, parse_layout, sizes
from shardstore.format.ome_zarr import OmeAttributes, find_ome, level_axes, to_ome_05
from shardstore.format.presentation import present_array, shard_document
from shardstore.format.shard_index import IndexCodecs, IndexFormat, IndexLocation
from shardstore.format.storage_transformers import transformer_index_format
from shardstore.format.store_keys import join
from shardstore.format.v2.documents import consolidated_from_v2
from shardstore.format.v2.keys import document_key
from shardstore.maintenance.packing.listing import SourceArray, SourceNodes
from shardstore.maintenance.packing.object_table import ObjectLayout
from shardstore.model.words import some_of
from shardstore.plan.policy import ShardingPolicy, automatic, chunks_per_shard, validate_policy

Mode = Literal["pack", "reshard", "unpack"]

_CHECKSUM = {"name": "crc32c"}


@dataclass(frozen=True, slots=True)
class TargetForm:
    """The wanted form of the target."""

    mode: Mode = "pack"
    """The mode: ``"reshard"`` leaves unsharded arrays alone; ``"unpack"`` makes every chunk an object."""
    policy: ShardingPolicy = "auto"
    """The sharding. One tuple is for the arrays with that number of dimensions; ``"auto"`` decides for all other arrays."""
    as_draft: bool = False
    """True for a hierarchy of the 2022 draft, sharded by its storage transformer."""
    index_location: IndexLocation = "end"
    index_checksum: bool = True
    chunk_checksums: bool = False
    """Append the codec ``crc32c`` to the codecs of every array whose last codec is another one."""
    ome: bool = False
    """Rewrite the metadata of OME-Zarr 0.4 to 0.5."""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    """Patterns (``fnmatch``) of the paths of nodes; a pattern also covers what lies below a node that it matches."""

    def __post_init__(self) -> None:
        validate_policy(self.policy)
        if self.index_location not in ("start", "end"):
            raise InvalidInput(f"index_location {self.index_location!r} is neither 'start' nor 'end'")
        if self.as_draft and (self.index_location != "end" or self.chunk_checksums):
            what = "keeps no checksums of chunks" if self.chunk_checksums else "has its index at the end of a shard"
            raise InvalidInput(f"the 2022 draft {what}: leave that option out, or pack into final Zarr v3")

        if self.as_draft and self.ome:
            raise InvalidInput("OME-Zarr 0.5 is of final Zarr v3: leave ome out, or pack into that")

    def includes(self, path: str) -> bool:
        """Return whether the node at ``path`` is to be in the target."""
        return (not self.include or _matches(path, self.include)) and not self.excludes(path)

    def includes_object(self, key: str) -> bool:
        """Return whether an object is to be in the target: the node that it lies in is, and it is not left out itself."""
        return self.includes(key.rpartition("/")[0]) and not self.excludes(key)

    def excludes(self, key: str) -> bool:
        """Return whether the node or object at ``key`` is left out, because of its own name or that of a node above it."""
        return _matches(key, self.exclude)


def _matches(path: str, patterns: Iterable[str]) -> bool:
    while True:
        if any(fnmatchcase(path, pattern.strip("/")) for pattern in patterns):
            return True
        if not path:
            return False
        path = path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class TargetArray:
    """An array of the target."""

    source: SourceArray
    document: JsonObject
    layout: ObjectLayout
    adds_checksums: bool
    """True if four bytes are added behind each chunk."""

    @property
    def path(self) -> str:
        return self.source.path


@dataclass(frozen=True, slots=True)
class TargetNodes:
    """All documents of the target, by path, as final Zarr v3."""

    arrays: dict[str, TargetArray] = field(default_factory=dict)
    groups: dict[str, JsonObject] = field(default_factory=dict)
    passed: dict[str, JsonObject] = field(default_factory=dict)
    """Arrays whose stored documents and objects are copied unchanged."""
    reasons: dict[str, str] = field(default_factory=dict)
    """The reasons why they are copied unchanged, by path."""
    refused: dict[str, str] = field(default_factory=dict)
    """Nodes that cannot be expressed, with the reason: see ``raise_refused``."""

    @property
    def documents(self) -> dict[str, JsonObject]:
        return {**self.groups, **self.passed, **{path: array.document for path, array in self.arrays.items()}}


KeptShards = Mapping[str, tuple[int, ...] | None]
"""Chunks per shard, by path, of arrays that the target already has; ``None`` for one that is not sharded."""


def translate(nodes: SourceNodes, wanted: TargetForm, kept: KeptShards | None = None) -> TargetNodes:
    """Return the document that every included node becomes. For arrays in ``kept``, ``"auto"`` means what they have.

    Raises:
        Unsupported: the consolidated metadata of a group cannot be expressed.
        InvalidInput: the policy does not fit an array.
    """
    target = TargetNodes(refused={path: reason for path, reason in nodes.refused.items() if wanted.includes(path)})
    refused = target.refused
    for path, source in nodes.arrays.items():
        if not wanted.includes(path):
            continue
        try:
            target.arrays[path] = _array(source, wanted, kept or {})
        except InvalidInput:
            raise
        except ShardStoreError as exc:
            refused[path] = str(exc)
    _check_rank(target, wanted)
    for path, (document, reason) in nodes.passed.items():
        if not wanted.includes(path):
            continue
        if wanted.as_draft:
            refused[path] = f"the 2022 draft cannot express it: {reason}"
        target.passed[path], target.reasons[path] = document, reason
    _add_groups(target, nodes, wanted)
    if wanted.as_draft:
        checks = [(path, array.document, array_from_v3) for path, array in target.arrays.items()]
        checks += [(path, document, group_from_v3) for path, document in target.groups.items()]
        for path, document, as_draft in checks:
            try:
                as_draft(document, None)
            except ShardStoreError as exc:
                refused[path] = str(exc)
    return target


def raise_refused(refused: Mapping[str, str]) -> None:
    """Raise ``Unsupported`` if some nodes or objects cannot be expressed; the message names all with their reasons."""
    if refused:
        listed = "; ".join(f"{path or '(root)'!r}: {reason}" for path, reason in sorted(refused.items()))
        count = "1 node or object" if len(refused) == 1 else f"{len(refused)} nodes or objects"
        raise Unsupported(
            f"{count} cannot be expressed exactly, and nothing was written: {listed}. Leave them out by exclude, or mend them"
        )


def _check_rank(target: TargetNodes, wanted: TargetForm) -> None:
    """Raise ``InvalidInput`` if one tuple was given for the chunks per shard, and fits no array."""
    ranks = sorted({array.source.layout.ndim for array in target.arrays.values()})
    if isinstance(wanted.policy, tuple) and ranks and len(wanted.policy) not in ranks:
        raise InvalidInput(
            f"chunks_per_shard {wanted.policy} has {len(wanted.policy)} dimensions, the arrays have {', '.join(map(str, ranks))}: give one "
            "number a dimension, or a mapping from patterns of paths"
        )


def _array(source: SourceArray, wanted: TargetForm, kept: KeptShards) -> TargetArray:
    counts = _chunks_per_shard(source, wanted, kept)
    document, adds_checksums = _with_checksums(source.document, wanted)
    index_format = None
    if counts is not None:
        if wanted.as_draft:
            index_format = transformer_index_format(counts)
        else:
            index_format = IndexFormat(counts, IndexCodecs("little", wanted.index_checksum), wanted.index_location)
        document = shard_document(document, index_format, by_transformer=wanted.as_draft)
    encoding = parse_chunk_key_encoding(document.get("chunk_key_encoding"))
    assert encoding is not None  # the listing takes no other for an array whose chunks can be identified
    return TargetArray(source, document, ObjectLayout(encoding, source.layout.chunk_grid, index_format), adds_checksums)


def _chunks_per_shard(source: SourceArray, wanted: TargetForm, kept: KeptShards) -> tuple[int, ...] | None:
    is_sharded = source.layout.index_format is not None
    if wanted.mode == "unpack" or (wanted.mode == "reshard" and not is_sharded):
        return None
    # Hierarchies have arrays of several ranks: one tuple is for those that it fits.
    fits = not isinstance(wanted.policy, tuple) or len(wanted.policy) == source.layout.ndim
    decide = (lambda info: kept[source.path]) if source.path in kept else partial(automatic, may_grow=False)
    counts = chunks_per_shard(wanted.policy if fits else "auto", source.path, source.document, decide)
    if wanted.mode == "reshard" and counts is None:
        return source.layout.chunks_per_object
    return counts


def _with_checksums(document: JsonObject, wanted: TargetForm) -> tuple[JsonObject, bool]:
    codecs = document.get("codecs")
    if not wanted.chunk_checksums or not isinstance(codecs, list) or (codecs and codec_name(codecs[-1]) == "crc32c"):
        return document, False
    return document | {"codecs": [*codecs, _CHECKSUM]}, True


# -- groups ------------------------------------------------------------------------------------------------------------


def _add_groups(target: TargetNodes, nodes: SourceNodes, wanted: TargetForm) -> None:
    """Add the groups that are included, and those above included nodes."""
    needed: set[str] = set()
    for path in (*target.arrays, *target.passed, *(path for path in nodes.groups if wanted.includes(path))):
        needed.add(path)
        while path:
            path = path.rpartition("/")[0]
            needed.add(path)
    for path, document in nodes.groups.items():
        if path not in needed:
            continue
        if wanted.as_draft:  # it has no consolidated metadata; they only repeat other documents
            target.groups[path] = {name: value for name, value in document.items() if name != "consolidated_metadata"}
            continue
        if path in nodes.consolidated_v2:
            zmetadata = _without_left_out(nodes.consolidated_v2[path], path, needed)
            try:
                document = document | {"consolidated_metadata": consolidated_from_v2(zmetadata, _below(nodes, path))}
            except InvalidInput as exc:
                raise Unsupported(f"the consolidated metadata of group {path or '(root)'!r} cannot be expressed: {exc}") from exc
        target.groups[path] = _with_consolidated(path, document, target, wanted)


def _without_left_out(zmetadata: JsonObject, path: str, needed: set[str]) -> JsonObject:
    """Return ``.zmetadata`` of the group at ``path`` without the parts for nodes that are left out."""
    inside = zmetadata.get("metadata")
    if not isinstance(inside, dict):
        return zmetadata
    prefix = f"{path}/" if path else ""
    kept = {
        key: value for key, value in inside.items() if (found := document_key(key)) is None or (prefix + found.path).rstrip("/") in needed
    }
    return zmetadata | {"metadata": kept}


def _below(nodes: SourceNodes, path: str) -> Mapping[str, JsonObject]:
    prefix = f"{path}/" if path else ""
    return {array.path[len(prefix) :]: array.document for array in nodes.arrays.values() if array.path.startswith(prefix) and array.path}


def _with_consolidated(path: str, document: JsonObject, target: TargetNodes, wanted: TargetForm) -> JsonObject:
    """Return the group's document with translated copies of the documents that it repeats; left-out nodes are not repeated."""
    consolidated = document.get("consolidated_metadata")
    inside = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    if not isinstance(consolidated, dict) or not isinstance(inside, dict):
        return document
    translated: JsonObject = {}
    for name, child in inside.items():
        below = f"{path}/{name}" if path else name
        if isinstance(child, dict) and is_array(child):
            if below in target.arrays:
                translated[name] = _repeated(child, target.arrays[below], wanted)
            elif below in target.passed:
                translated[name] = child
        elif below in target.groups or wanted.includes(below) or any(p.startswith(f"{below}/") for p in target.arrays):
            translated[name] = _with_consolidated(below, child, target, wanted) if isinstance(child, dict) else child
    return document | {"consolidated_metadata": {**consolidated, "metadata": translated}}


def _repeated(child: JsonObject, array: TargetArray, wanted: TargetForm) -> JsonObject:
    """Return a repeated document of an array, which may be stale, in the same new form."""
    presented, _ = _with_checksums(present_array(child), wanted)
    if array.layout.index_format is None or not isinstance(parse_layout(presented), str):
        return presented
    try:
        return shard_document(presented, array.layout.index_format, by_transformer=wanted.as_draft)
    except (InvalidInput, KeyError):  # so far out of date that it has another rank
        return child


# -- OME-Zarr 0.4: rewritten to 0.5 if that was asked for, otherwise reported ---------------------------------------------


@dataclass(frozen=True, slots=True)
class OmeNodes:
    """The nodes to rewrite, by path."""

    groups: Mapping[str, OmeAttributes]
    dimension_names: Mapping[str, list[str]]
    """The dimension names for the arrays of images: 0.5 demands that they are the names of the axes."""

    @property
    def refused(self) -> dict[str, str]:
        return {path: found.reason for path, found in self.groups.items() if found.reason}


def ome_nodes(target: TargetNodes) -> OmeNodes:
    """Find metadata of OME-Zarr before 0.5 in the groups of the target."""
    groups: dict[str, OmeAttributes] = {}
    names: dict[str, list[str]] = {}
    for path, document in target.groups.items():
        found = find_ome(_attributes(document), path.rpartition("/")[2], partial(_is_image, target, path))
        if found is None:
            continue
        groups[path] = found
        if not found.reason:
            names |= {join(path, below): axes for below, axes in level_axes(_attributes(document)).items()}
    return OmeNodes(groups, names)


def with_ome_05(target: TargetNodes, found: OmeNodes) -> TargetNodes:
    """Return the same nodes with the metadata of OME-Zarr 0.5, also if consolidated metadata repeat them.

    Raises:
        Unsupported: some cannot be rewritten; the message names all of them.
    """
    if refused := found.refused:
        listed = "; ".join(f"{path or '(root)'!r}: {reason}" for path, reason in sorted(refused.items()))
        raise Unsupported(
            f"OME-Zarr metadata cannot be rewritten to 0.5, and nothing was written: {listed}. Leave the nodes out by exclude, or pack "
            "without ome (--ome), which leaves all attributes unchanged"
        )
    return TargetNodes(
        arrays={path: replace(array, document=_rewritten(path, array.document, found)) for path, array in target.arrays.items()},
        groups={path: _rewritten(path, document, found) for path, document in target.groups.items()},
        passed={path: _rewritten(path, document, found) for path, document in target.passed.items()},
        reasons=target.reasons,
    )


def ome_notice(found: OmeNodes) -> str | None:
    """Return the notice about metadata that stay unchanged, or ``None``."""
    if not found.groups:
        return None
    named = some_of([path or "(root)" for path in found.groups])
    remedy = "pack with --ome (ome=True), which rewrites them to 0.5" if not found.refused else "bring them to 0.4, then pack with --ome"
    what = f"metadata of OME-Zarr for Zarr v2 ({named})"
    return f"{what}: its readers look for those of 0.5 in Zarr v3, and find no images here. To have them, {remedy}"


def _is_image(target: TargetNodes, path: str, below: str) -> bool:
    return bool(level_axes(_attributes(target.groups.get(join(path, below.strip("/")), {}))))


def _attributes(document: JsonObject) -> JsonObject:
    attributes = document.get("attributes")
    return attributes if isinstance(attributes, dict) else {}


def _rewritten(path: str, document: JsonObject, found: OmeNodes) -> JsonObject:
    if path in found.groups and not is_array(document):
        document = document | {"attributes": to_ome_05(_attributes(document), found.groups[path])}
    names = found.dimension_names.get(path)
    if names is not None and is_array(document) and sizes(document.get("shape"), 0, len(names)) is not None:
        document = document | {"dimension_names": names}
    consolidated = document.get("consolidated_metadata")
    inside = consolidated.get("metadata") if isinstance(consolidated, dict) else None
    if not isinstance(consolidated, dict) or not isinstance(inside, dict):
        return document
    repeated = {name: _rewritten(join(path, name), child, found) if isinstance(child, dict) else child for name, child in inside.items()}
    return document | {"consolidated_metadata": consolidated | {"metadata": repeated}}
