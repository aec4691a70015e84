"""Translate the source's documents to those of the target: exactly, or refused with the reason.

Everything that defines the meaning of a chunk's bytes is carried over. The grouping of chunks into objects changes, and, where that was
asked for, the checksum behind each chunk. Attributes, dimension names, fill values and unknown members stay unchanged.

Objects that belong to no array keep their keys. Chunks get keys of the target's encoding, and documents are called ``zarr.json``. So a
key without meaning in the source may be that of a shard, or of a document, in the target: ``Names`` finds all of these at once, before
anything is written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal

from shardstore.errors import InvalidInput, ShardStoreError, Unsupported
from shardstore.format.chunk_keys import parse_chunk_key_encoding
from shardstore.format.codecs import codec_name
from shardstore.format.draft2022.keys import data_key, unwritable_name
from shardstore.format.draft2022.metadata import array_from_v3, group_from_v3
from shardstore.format.json_text import JsonObject
from shardstore.format.metadata_v3 import METADATA_NAME, is_array, mentions_sharding, parse_layout, sizes
from shardstore.format.object_layout import ObjectLayout
from shardstore.format.ome_zarr import OmeAttributes, find_ome, level_axes, to_ome_05
from shardstore.format.presentation import present_array, shard_document
from shardstore.format.shard_index import IndexCodecs, IndexFormat, IndexLocation
from shardstore.format.storage_transformers import transformer_index_format
from shardstore.format.store_keys import ancestors, check_key, join, metadata_key
from shardstore.format.v2.documents import consolidated_from_v2
from shardstore.format.v2.keys import document_key
from shardstore.maintenance.packing.listing import SourceArray, SourceNodes
from shardstore.model.words import some_of
from shardstore.plan.policy import ShardingPolicy, automatic, chunks_per_shard, validate_policy
from shardstore.storage.local.files import is_reserved
from shardstore.storage.requests.outcomes import PROBE_PREFIX

Mode = Literal["pack", "reshard", "unpack"]

_CHECKSUM = {"name": "crc32c"}
_MOST_NAME_BYTES = 255  # of file systems
_MOST_ADDED_BYTES = 160  # to a key, in the path of a file: the folders of a draft hierarchy, and the name of a temporary file next to it
_PERIODS = re.compile(r"(?:.*/)?\.+(?:/.*)?", re.DOTALL)


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
            f"{count} cannot be expressed exactly, and nothing was written: {listed}. Leave them out by exclude, or correct them"
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


# -- keys that collide ------------------------------------------------------------------------------------------------


class PlannedKeys:
    """The keys of one plan. For arrays every chunk of the grid counts, whether it exists or not: it can be written later."""

    def __init__(self, target: TargetNodes, others: Iterable[str]) -> None:
        self._arrays = target.arrays
        self._objects = dict.fromkeys(others, "another object") | {
            metadata_key(path): f"the document of {path or '(root)'}" for path in target.documents
        }
        self._directories: dict[str, str] = {}
        for key in self._objects:
            for above in _above(key):
                self._directories.setdefault(above, key)

    def chunk(self, key: str, *, anywhere: bool = False) -> str | None:
        """Return the path of the array whose readers take ``key`` for a chunk or a shard; with ``anywhere`` also outside of its grid."""
        return next((array.path for array, rest in self._owners(key) if _is_chunk(array.layout, rest, anywhere)), None)

    def __contains__(self, key: object) -> bool:
        """Return whether the target will have, or may have, an object of the plan there."""
        return key in self._objects or (isinstance(key, str) and self.chunk(key) is not None)

    def in_the_way(self, key: str, *, anywhere: bool = False) -> str | None:
        """Return the key of the plan that could not be stored next to ``key`` in a file system: where one of the two would have to be a
        directory.
        """
        if key in self._directories:
            return repr(self._directories[key])
        for above in _above(key):
            if above in self._objects:
                return repr(above)
        for array, rest in self._owners(key):
            ndim = array.layout.ndim
            shorter = (above for above in _above(rest))
            longer = (rest + "/0" * n for n in range(1, ndim + 1))
            if any(_is_chunk(array.layout, name, anywhere) for name in (*shorter, *longer)):
                return f"chunks of {array.path or '(root)'}"
        return None

    def _owners(self, key: str) -> Iterator[tuple[TargetArray, str]]:
        for path, rest in ancestors(key):
            array = self._arrays.get(path)
            if array is not None:
                yield array, rest


def _is_chunk(layout: ObjectLayout, rest: str, anywhere: bool) -> bool:
    coords = layout.key_encoding.decode(rest, layout.ndim)
    return coords is not None and (anywhere or layout.number_of(coords) is not None)


def _above(key: str) -> Iterator[str]:
    while "/" in key:
        key = key.rpartition("/")[0]
        yield key


class Names:
    """The names that a target can hold: ``root`` is its directory, if it is a local one, and ``inside`` the prefix of the record, if that
    lies in the target.
    """

    def __init__(self, *, root: str | None, as_draft: bool, inside: str | None) -> None:
        self._root = root
        self._as_draft = as_draft
        self._reserved = tuple(filter(None, (PROBE_PREFIX, inside)))

    def refused(self, target: TargetNodes, others: Sequence[str]) -> dict[str, str]:
        """Return the paths of nodes, and keys of other objects, that cannot be in the target, with the reasons."""
        refused: dict[str, str] = {}
        for path in target.documents:
            if (reason := self._node_refusal(path, target)) is not None:
                refused[path] = reason
        planned = PlannedKeys(target, others)
        for key in others:
            if (reason := self._object_refusal(key, planned)) is not None:
                refused[key] = reason
        return refused

    def _node_refusal(self, path: str, target: TargetNodes) -> str | None:
        above = [path[:at] for at in (i for i, c in enumerate(path) if c == "/")]
        for array in ("", *above) if path else ():
            if array in target.arrays or array in target.passed:
                return f"it lies in the array {array or '(root)'!r}, and no node can be in an array"
        if METADATA_NAME in path.split("/"):
            return f"{METADATA_NAME!r} is the name of documents, and can be that of no node"
        if path in target.arrays:
            layout = target.arrays[path].layout
            last_key = layout.key_encoding.encode(tuple(max(0, n - 1) for n in layout.object_grid))
            if (reason := self._file_refusal(join(path, last_key))) is not None:
                return reason
        if self._as_draft:
            return unwritable_name(path)
        return self._key_refusal(metadata_key(path))

    def _object_refusal(self, key: str, planned: PlannedKeys) -> str | None:
        array = planned.chunk(key, anywhere=True)
        if array is not None:
            return f"it is not a chunk in the source, and would be one of the array {array or '(root)'!r} in the target"
        conflicting = planned.in_the_way(key, anywhere=True)
        if conflicting is not None:
            return f"it cannot exist next to {conflicting}, where one of the two would be a directory"
        if self._as_draft and data_key(key) is None:
            return "it has no counterpart in a hierarchy of the 2022 draft, where it would be taken for another key"
        return self._key_refusal(key)

    def _key_refusal(self, key: str) -> str | None:
        try:
            check_key(key)
            key.encode()
        except (InvalidInput, UnicodeEncodeError) as exc:
            return f"its name cannot be that of an object: {exc}"
        if _PERIODS.fullmatch(key):
            return "Zarr v3 allows no name of periods alone"
        if key.startswith(self._reserved):
            return "its name is one that a run uses for objects of its own"
        return self._file_refusal(key)

    def _file_refusal(self, key: str) -> str | None:
        """Return why no file of a local target can have this key."""
        if self._root is None:
            return None
        for name in key.split("/"):
            if len(os.fsencode(name)) > _MOST_NAME_BYTES:
                return f"a file can have no name of more than {_MOST_NAME_BYTES} bytes"
            if is_reserved(name):
                return f"{name!r} is the name of a lock or temporary file, which is never an object"
        most = _most_path_bytes() - _MOST_ADDED_BYTES
        if len(os.fsencode(f"{self._root}/{key}")) > most:
            return f"its path in {self._root} would have more than {most} bytes, too many for a file"
        return None


def _most_path_bytes() -> int:
    """Return how many bytes the path of a file can have on this system, the zero behind it included."""
    try:
        return os.pathconf("/", "PC_PATH_MAX")
    except (AttributeError, OSError, ValueError):  # the system does not know
        return 4096


def check_for_branch(target: TargetNodes, other_keys: Sequence[str], shown_source: str) -> None:
    """Raise ``Unsupported`` if a source has what a versioned store cannot hold; ``other_keys`` are those of objects that are not Zarr's."""
    nested = [path or "(root)" for path, one in target.arrays.items() if mentions_sharding(one.document.get("codecs"))]
    passed = [f"{path or '(root)'} ({reason})" for path, reason in target.reasons.items()]
    for found, what in (
        (nested, "arrays with shards in shards"),
        (passed, "arrays whose chunks cannot be taken out"),
        ([repr(key) for key in other_keys], "other objects than Zarr nodes and their chunks"),
    ):
        if found:
            raise Unsupported(
                f"{shown_source} has {what}: {some_of(found)}. A versioned store cannot hold them: leave them out by exclude. Nothing was "
                "written"
            )
