"""Find objects that cannot be in the target under the keys that they would get: all at once, before anything is written.

Objects that belong to no array keep their keys. Chunks get keys of the target's encoding, and documents are called ``zarr.json``. So a
key without meaning in the source may be that of a shard, or of a document, in the target.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from shardstore.errors import InvalidInput, Unsupported
from shardstore.format.draft2022.keys import data_key, unwritable_name
from shardstore.format.metadata_v3 import METADATA_NAME, mentions_sharding
from shardstore.format.store_keys import ancestors, check_key, join, metadata_key
from shardstore.maintenance.packing.object_table import ObjectLayout
from shardstore.maintenance.packing.translation import TargetArray, TargetNodes
from shardstore.model.words import some_of
from shardstore.storage.local.names import is_reserved
from shardstore.storage.requests.outcomes import PROBE_PREFIX

_MOST_NAME_BYTES = 255  # of file systems
_MOST_ADDED_BYTES = 160  # to a key, in the path of a file: the folders of a draft hierarchy, and the name of a temporary file next to it
_PERIODS = re.compile(r"(?:.*/)?\.+(?:/.*)?", re.DOTALL)


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
        if path in target.arrays and (reason := self._file_refusal(join(path, _longest_key(target.arrays[path].layout)))) is not None:
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


def _longest_key(layout: ObjectLayout) -> str:
    """Return the key of the last object of an array, relative to the array."""
    return layout.key_encoding.encode(tuple(max(0, n - 1) for n in layout.object_grid))


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
