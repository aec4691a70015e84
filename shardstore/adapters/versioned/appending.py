"""One append to a session: its rows, written at the end of the arrays of whatever snapshot the session stands on."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextvars import copy_context
from typing import Any

from shardstore._sync import run_sync
from shardstore.adapters.zarr.rows import Rows, rows_to_append
from shardstore.adapters.zarr.store import ShardedStore
from shardstore.errors import InvalidInput, NotFound
from shardstore.format.json_text import JsonObject
from shardstore.format.store_keys import check_node_path, join
from shardstore.snapshots.appends import with_lengths
from shardstore.snapshots.session import SessionCore


class SessionAppend:
    """Rows that are appended along a dimension to the arrays of a session, at or directly below a path."""

    def __init__(self, core: SessionCore, store: ShardedStore, data: Any, dim: str, path: str) -> None:
        given: object = dim
        if not isinstance(given, str) or not dim:
            raise InvalidInput(f"dim={dim!r} is not the name of a dimension")
        check_node_path(path.strip("/"))
        self._core = core
        self._store = store
        self._data = data
        self._dim = dim
        self._path = path.strip("/")
        self._context = copy_context()
        self._checked()

    @property
    def count(self) -> int:
        return self._rows.count

    @property
    def rows(self) -> slice:
        """The place of the rows in the session."""
        stop = next(length for _, length in self._lengths(self._documents()).values())
        return slice(stop - self.count, stop)

    def write(self, paths: Collection[str] | None) -> None:
        """Make the arrays longer, and write the rows; or, where they are long enough, only the last rows of the arrays at ``paths``.

        Raises:
            InvalidInput: the rows do not fit what is there now.
        """
        with self._core.appending():
            self._checked()
            if paths is None:
                run_sync(self._lengthen())
            if paths is None or paths:
                rows = self._rows if paths is None else self._rows.only([path.rpartition("/")[2] for path in paths])
                rows.store(self._store, self.rows.start, is_far=False, empty_chunks=False)

    async def write_in_thread(self, paths: Collection[str] | None) -> None:
        """Write as ``write`` does, called on the IO loop, which zarr and xarray need."""
        await asyncio.to_thread(self._context.run, self.write, paths)

    def _checked(self) -> None:
        documents = self._documents()
        self._rows: Rows = rows_to_append(self._data, self._dim, self._path, documents)
        lengths = {name: length for name, (_, length) in self._lengths(documents).items()}
        if len(set(lengths.values())) > 1:
            raise InvalidInput(f"arrays of {self._path or '/'!r} have different lengths along {self._dim!r}: {lengths}. Make them the same")

    def _documents(self) -> dict[str, JsonObject]:
        """Return the documents of the arrays that have the dimension, by their names in the group; by ``""`` that of an array itself."""
        core, path = self._core, self._path
        if path not in core.nodes:
            raise NotFound(f"there is nothing at {path!r} in this session of {core.files.url}")
        if core.nodes[path].is_array:
            nodes = {"": core.nodes[path]}
        else:
            below = [node for node in core.nodes.values() if node.is_array and node.path.rpartition("/")[0] == path]
            nodes = {node.path.rpartition("/")[2]: node for node in below}
        documents = {name: node.document for name, node in nodes.items()}
        found = {name: document for name, document in documents.items() if self._dim in (document.get("dimension_names") or ())}
        if not found:
            names = sorted({name for document in documents.values() for name in document.get("dimension_names") or () if name})
            raise InvalidInput(f"no array at {path or '/'!r} has the dimension {self._dim!r}; dimensions that have names: {names}")
        return found

    def _lengths(self, documents: Mapping[str, JsonObject]) -> dict[str, tuple[int, int]]:
        """Return the axis of the dimension, and the length along it, of each array, by its name."""
        axes = {name: document["dimension_names"].index(self._dim) for name, document in documents.items()}
        return {name: (axis, documents[name]["shape"][axis]) for name, axis in axes.items()}

    async def _lengthen(self) -> None:
        core, count = self._core, self.count
        lengths = {
            join(self._path, name) if name else self._path: (axis, length + count)
            for name, (axis, length) in self._lengths(self._documents()).items()
        }
        core.new_serial()
        core.replace_nodes(core.nodes | with_lengths(core.nodes, lengths))
