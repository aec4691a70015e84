"""The documents that show how long the arrays of an append are: of the arrays themselves, and the consolidated metadata of groups.

Shapes become longer only, each document by compare-and-swap. The outermost consolidated document is the last: by that, programs that open
by consolidated metadata see all arrays grow at one moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardstore.engine.contention import Contention
from shardstore.errors import AccessDenied, Conflict, InvalidInput, NotFound
from shardstore.format.json_text import JsonObject, dumps, loads_object
from shardstore.format.metadata_v3 import is_array, parse_shown
from shardstore.format.presentation import consolidated_arrays, documents_inside, map_nodes
from shardstore.format.store_keys import groups_above, join, metadata_key
from shardstore.model.generation import Generation
from shardstore.storage.base import Failed, Found, Storage, document_read

_NO_LENGTH = 2**63


@dataclass(frozen=True, slots=True)
class _Document:
    content: JsonObject
    generation: Generation


class GrowingDocuments:
    """The documents of the arrays at or directly below ``path`` that have the dimension ``dim``, and of the groups that show these."""

    def __init__(self, storage: Storage, contention: Contention, path: str, dim: str) -> None:
        self._storage = storage
        self._contention = contention
        self.path = path
        self.dim = dim
        self.axes: dict[str, int] = {}
        """The axis of the dimension in each array, by path."""
        self.described: dict[str, JsonObject] = {}
        """The documents of the arrays as they were found: their lengths may be old."""
        self._longest_chunk = 0
        self._groups: list[str] = []
        """The groups whose consolidated metadata shows the arrays, the innermost first."""
        self._read_last: dict[str, _Document] = {}

    @property
    def home(self) -> str:
        """The array in whose directory the record lies: the coordinate of the dimension, or the first array that has it."""
        coordinate = join(self.path, self.dim)
        return coordinate if coordinate in self.axes else min(self.axes)

    @property
    def _where(self) -> str:
        return f"{self.path!r} in {self._storage.url}" if self.path else self._storage.url

    async def find(self) -> None:
        """Find the arrays.

        Raises:
            NotFound: there is no node of Zarr v3 at the path.
            InvalidInput: no array has the dimension, or an array has it twice.
        """
        paths = [self.path, *groups_above(self.path)]
        found = await self._read(paths)
        if self.path not in found:
            raise NotFound(f"there is no array or group of Zarr v3 at {self._where} to append to")
        node = found[self.path].content
        arrays = {self.path: node} if is_array(node) else await self._arrays_below(self.path, found)
        if is_array(node) and self.path:
            await self._check_alone(found)
        self.axes = {path: axis for path, document in sorted(arrays.items()) if (axis := self._axis(path, document)) is not None}
        if not self.axes:
            names = {name for document in arrays.values() for name in document.get("dimension_names") or () if name}
            has = f"they have {', '.join(map(repr, sorted(names)))}" if names else "they were made without dimension_names"
            raise InvalidInput(f"no array at {self._where} has the dimension {self.dim!r}: {has}")
        self.described = {path: arrays[path] for path in self.axes}
        self._groups = [path for path in paths if path in found and self._shows_arrays(path, found[path].content)]
        self._read_last = {path: found[path] for path in self._groups}

    async def _check_alone(self, found: Mapping[str, _Document]) -> None:
        """Check that no other array of the group has the dimension: alone, this one would become longer than they are."""
        group = self.path.rpartition("/")[0]
        arrays = await self._arrays_below(group, found)
        more = [path for path, document in arrays.items() if path != self.path and self.dim in (document.get("dimension_names") or ())]
        if more:
            raise InvalidInput(
                f"array {self.path!r} is not the only one of its group along {self.dim!r}: {', '.join(map(repr, sorted(more)))} would "
                f"become shorter. Append to all of them at once, with path={group!r}"
            )

    async def _arrays_below(self, group: str, found: Mapping[str, _Document]) -> dict[str, JsonObject]:
        """Return the documents of the arrays directly below a group, as consolidated metadata has them or as they are."""
        for path, document in found.items():
            if documents_inside(document.content) is not None:
                arrays = {join(path, name): each for name, each in consolidated_arrays(document.content).items()}
                if below := {name: each for name, each in arrays.items() if name.rpartition("/")[0] == group}:
                    return below  # else it may be older than the group
        prefix = join(group, "")
        listed = await self._storage.list_dir(prefix)
        found_there = await self._read(name.rstrip("/") for name in listed.prefixes)
        return {path: document.content for path, document in found_there.items() if is_array(document.content)}

    def _axis(self, path: str, document: JsonObject) -> int | None:
        names = document.get("dimension_names") or ()
        if self.dim not in names:
            return None
        shown = parse_shown(document)
        if isinstance(shown, str) or names.count(self.dim) > 1 or len(names) != len(shown.shape):
            reason = shown if isinstance(shown, str) else f"its dimension_names are {names}"
            raise InvalidInput(f"nothing can be appended to array {path!r} along {self.dim!r}: {reason}")
        axis: int = names.index(self.dim)
        self._longest_chunk = max(self._longest_chunk, shown.chunk_shape[axis])
        return axis

    def _shows_arrays(self, path: str, document: JsonObject) -> bool:
        return any(join(path, name) in self.axes for name in consolidated_arrays(document))

    async def read_arrays(self) -> None:
        """Read the documents of all arrays.

        Raises:
            Conflict: an array is gone, or has other dimensions by now.
        """
        found = await self._read(self.axes)
        for path, axis in self.axes.items():
            if path not in found or self._axis(path, found[path].content) != axis:
                raise Conflict(
                    f"another program removed array {path!r}, or changed its dimensions, during an append: look at it, and repeat"
                )
        self._read_last.update(found)

    def by_name(self) -> dict[str, JsonObject]:
        """Return the documents as they were found, by the names of the arrays in their group; by ``""`` if the path is an array."""
        return {path.removeprefix(self.path).lstrip("/"): document for path, document in self.described.items()}

    def lengths(self) -> dict[str, int]:
        """Return how long each array is along the dimension, by the documents that were read last."""
        return {path: self._read_last[path].content["shape"][axis] for path, axis in self.axes.items()}

    def grown(self, stop: int) -> dict[str, bytes]:
        """Return the documents of the arrays and of their group, by key, to store rows by that end at ``stop``.

        Arrays are longer than that: a chunk that ended with the array would count as whole, though other appends have rows of it.
        """
        length = stop + self._longest_chunk
        shown = {path: dumps(self._with_length(path, self._read_last[path].content, length)) for path in self.axes}
        if self.path not in self.axes:
            shown[self.path] = dumps({"zarr_format": 3, "node_type": "group", "attributes": {}})
        return {metadata_key(path): data for path, data in shown.items()}

    async def publish(self, shown: int, stop: int) -> int:
        """Make all arrays ``stop`` long, then what groups say of them; return how long the longest is now. ``shown``: they have been that
        long.

        Raises:
            Conflict: another program has made an array shorter, or removed it.
        """
        await asyncio.gather(*(self._publish(path, shown, stop) for path in self.axes))
        for group in self._groups:
            await self._publish(group, shown, stop)
        return max(self.lengths().values())

    async def _publish(self, path: str, shown: int, stop: int) -> None:
        """Store one document with longer shapes, if it has shorter ones."""
        key = metadata_key(path)
        remembered = self._read_last.get(path)

        async def attempt() -> None:
            nonlocal remembered
            current, remembered = remembered, None
            if current is None or self._length(path, current) < shown:
                current = (await self._read([path])).get(path)
                self._read_last |= {} if current is None else {path: current}
            if current is None and path not in self.axes:
                return  # no group any more
            if current is None or self._length(path, current) < shown:
                raise Conflict(
                    f"another program removed array {path!r}, or made it shorter, during an append. What was appended is stored, and not "
                    "shown: look at the array, and repeat the append"
                )
            grown = map_nodes(current.content, lambda inside, document: self._with_length(inside, document, stop), path)
            if grown != current.content:
                data = dumps(grown)
                condition = self._storage.capabilities.condition_on(current.generation)
                self._read_last[path] = _Document(grown, await self._storage.write(key, [data], len(data), condition))

        turn = self._contention.turn(key)
        await turn.swap(f"the metadata of {path!r}", attempt)
        turn.won()

    def _length(self, path: str, document: _Document) -> int:
        """Return how long an array is; of a group, which has no length, more than any."""
        length: int = document.content["shape"][self.axes[path]] if path in self.axes else _NO_LENGTH
        return length

    def _with_length(self, path: str, document: JsonObject, stop: int) -> JsonObject:
        """Return the document of a node, ``stop`` long if it is of an array that grows; never shorter than it is."""
        axis = self.axes.get(path)
        if axis is None or document["shape"][axis] >= stop:
            return document
        shape = document["shape"]
        return document | {"shape": [*shape[:axis], stop, *shape[axis + 1 :]]}

    async def _read(self, paths: Iterable[str]) -> dict[str, _Document]:
        """Return the documents that exist, by path."""
        wanted = list(paths)
        outcomes = await self._storage.read([document_read(metadata_key(path)) for path in wanted])
        found: dict[str, _Document] = {}
        for path, outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, Failed) and (path == self.path or not isinstance(outcome.error, AccessDenied)):
                raise outcome.error  # a server may refuse so what is absent: a group above need not be there
            if isinstance(outcome, Found):
                found[path] = _Document(loads_object(outcome.buffers[0]), outcome.generation)
        return found
