"""The last look at each object of a filesystem whose reads show no versions."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from shardstore.model.generation import Generation
from shardstore.storage.generic.calls import Info, size_in
from shardstore.storage.inferred_versions import agrees, modified_seconds, trace_of, unversioned, version_from

MOST_REMEMBERED = 1 << 15
"""The most objects that are remembered for a storage; some 10 MiB."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at an object: its size, if the filesystem gives it, and what distinguishes its versions, if anything does."""

    nbytes: int | None
    trace: str | None
    modified: float | None = None

    @classmethod
    def of(cls, info: Info) -> Seen:
        return cls(size_in(info), trace_of(info), modified_seconds(info))

    def version(self, nbytes: int) -> Generation:
        """Return the version that was seen, for an object that turned out to have so many bytes; without a version, one that equals no
        other.
        """
        return unversioned(nbytes) if self.trace is None else version_from(self.trace, nbytes, self.modified)

    def may_be(self, generation: Generation) -> bool:
        """Return whether the look may have been at this version."""
        return self.nbytes is None or agrees(generation, self.version(self.nbytes))

    def of_size(self, nbytes: int) -> Seen:
        return replace(self, nbytes=nbytes)


class Memory:
    """The last look at each object; the least recently used one is dropped first. Used on one event loop only."""

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most = most
        self._last: OrderedDict[str, Seen] = OrderedDict()

    def get(self, key: str) -> Seen | None:
        seen = self._last.get(key)
        if seen is not None:
            self._last.move_to_end(key)
        return seen

    def put(self, key: str, seen: Seen) -> None:
        self._last[key] = seen
        self._last.move_to_end(key)
        if len(self._last) > self._most:
            self._last.popitem(last=False)

    def drop(self, key: str) -> None:
        self._last.pop(key, None)
