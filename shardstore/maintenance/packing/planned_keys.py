"""All keys that the target will have, to compare others with them: documents, chunks or shards, and other objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardstore.format.store_keys import ancestors, metadata_key
from shardstore.maintenance.packing.object_table import ObjectLayout
from shardstore.maintenance.packing.translation import TargetArray, TargetNodes


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
        """Return the key of the plan that could not be stored beside ``key`` in a file system: where one of the two would have to be a
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
