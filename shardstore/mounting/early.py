"""Chunks that come before the document of their array, as copies of directories send them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from shardstore.engine.options import Flavour
from shardstore.format.chunk_keys import looks_like_chunk_key
from shardstore.format.metadata_v3 import METADATA_NAME
from shardstore.format.store_keys import join, possible_owners
from shardstore.format.v2.keys import ARRAY_NAME
from shardstore.mounting.held_back import HeldBack
from shardstore.mounting.names import is_array_document, name_of, parent_of
from shardstore.mounting.reading import Values
from shardstore.mounting.tree import Tree

_MOST_KNOWN = 100_000


@dataclass(eq=False)
class Early:
    """Tells which files are early: they look like chunks, and no array has them yet. ``find`` is that of the files."""

    _flavour: Flavour
    _find: Callable[[str], Awaitable[int | None]]
    _tree: Tree
    _values: Values
    _held: HeldBack
    _attr_seconds: float
    _clock: Callable[[], float]
    _known: dict[str, tuple[bool, float]] = field(default_factory=dict)  # by directory, and since when
    _epoch: int = 0

    def forget(self) -> None:
        """Look anew: a document has been stored or held back, or a directory has been renamed."""
        self._known.clear()
        self._epoch += 1

    async def is_early(self, path: str) -> bool:
        """Return whether a file looks like a chunk of an array that has no document yet."""
        kept = self._known.get(parent_of(path))
        if kept is not None and looks_like_chunk_key(name_of(path)) and self._clock() - kept[1] < self._attr_seconds:
            return kept[0]
        at, epoch = self._clock(), -1
        while epoch != self._epoch:  # its document may be stored meanwhile
            epoch = self._epoch
            is_early = await self._find_early(path)
        if looks_like_chunk_key(name_of(path)):
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            self._known[parent_of(path)] = is_early, at
        return is_early

    async def _find_early(self, path: str) -> bool:
        owners = [owner for owner, _ in possible_owners(path)]
        if not owners or self._flavour.shows_draft or await self._tree.is_chunk(path):
            return False
        for owner in owners:
            document = join(owner, METADATA_NAME if self._flavour.is_canonical else ARRAY_NAME)
            held = self._held.pending.get(document)
            if held is not None and held.data is not None:
                if is_array_document(document, bytes(self._held.read(document) or b"")):
                    return True  # it is stored before its chunks
                continue
            if await self._find(document) is None:
                continue
            value = await self._values.read(document)
            if value is not None and is_array_document(document, bytes(value.data)):
                return False
        return True
