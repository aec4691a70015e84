"""What files and directories there are in the fsspec filesystem, how large they are, and which version they have."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fsspec.asyn import AsyncFileSystem, sync
from fsspec.utils import tokenize

from shardstore._sync import iterate, run_async
from shardstore.engine.reading.listing import ListedValue
from shardstore.errors import InvalidInput, NotFound
from shardstore.format.store_keys import join, possible_owners
from shardstore.format.v2.keys import is_document
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.generic.calls import ABSENT_ERRORS

Info = dict[str, Any]

_LIKE_V2_CHUNK = re.compile(r"[0-9]+(\.[0-9]+)*", re.ASCII)


class FileLookups(AsyncFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The part of ``ShardedFileSystem`` that looks files up and lists them; the other part knows keys and the engine."""

    def _info_of(self, value: ListedValue) -> Info:
        return {"name": self._root.path_of(value.key), "size": value.nbytes, "type": "file"}

    def _directory(self, key: str) -> Info:
        return {"name": self._root.path_of(key), "size": 0, "type": "directory"}

    def _missing(self, key: str) -> NotFound:
        return NotFound(f"{key!r} does not exist in {self.handle.url}")

    async def _absence(self, key: str) -> NotFound | IsADirectoryError:
        """Return the error for a key that has no value. Of a chunk or a document no directory is looked for."""
        if await self._is_directory(key):
            return IsADirectoryError(f"{key!r} is a directory of {self.handle.url}, not a file")
        return self._missing(key)

    async def _absences(self, keys: Sequence[str]) -> list[Exception]:
        """Return the errors for keys that have no value. Among several, a name of numbers is taken for a chunk: chunks of arrays of Zarr v2
        are asked for by the thousand, and each directory that is looked for is a listing.
        """
        looks = [key for key in keys if len(keys) == 1 or not _LIKE_V2_CHUNK.fullmatch(key.rpartition("/")[2])]
        found = dict(zip(looks, await asyncio.gather(*map(self._absence, looks)), strict=True))
        return [found.get(key) or self._missing(key) for key in keys]

    async def _is_only_directory(self, path: str) -> bool:
        """Return whether a path is a directory, and not a file as well."""
        key = await self._key(path)
        if not key:
            return True
        return await self._is_directory(key) and not await run_async(self.engine.exists(key))

    async def _is_directory(self, key: str) -> bool:
        """Return whether a key that has no value is a directory; without a request where it is that of a chunk or a document."""
        if not key:
            return True
        engine, owners = self.engine, possible_owners(key)
        is_chunk = bool(owners) and (engine.canonical is not engine or engine.hierarchy.owner(owners) is not None)
        return not is_chunk and not is_document(key) and await self._has_any(key + "/")

    async def _info(self, path: str, **kwargs: Any) -> Info:
        """Return name, size in bytes and type. A chunk has its encoded size, a document its presented one."""
        key = await self._key(path)
        if not key and not await self._has_any(""):
            key = await self._file_key(path)
        if not key:
            return self._directory("")
        nbytes = await run_async(self.engine.size(key))
        if nbytes is not None:
            return self._info_of(ListedValue(key, nbytes))
        if not await self._has_any(key + "/"):
            raise self._missing(key)
        return self._directory(key)

    async def _isfile(self, path: str) -> bool:
        """Return whether there is such a file. Raises what keeps that from being known."""
        return await self._type_of(path) == "file"

    async def _isdir(self, path: str) -> bool:
        """Return whether there is such a directory. Raises what keeps that from being known."""
        return await self._type_of(path) == "directory"

    async def _type_of(self, path: str) -> str | None:
        await self._root.settle()
        try:
            return str((await self._info(path))["type"])
        except (*ABSENT_ERRORS, InvalidInput):  # no file has a name that is refused
            return None

    async def _has_any(self, prefix: str) -> bool:
        async for _ in iterate(lambda: self.engine.list(prefix)):
            return True
        return False

    async def _ls(self, path: str, detail: bool = True, *, with_sizes: bool = True, **kwargs: Any) -> list[Any]:
        """Return the direct children of a directory, exactly; for a file, the file."""
        key = await self._key(path)
        listed = await run_async(self.engine.list_dir(join(key, "")))
        values: Sequence[ListedValue] = listed.values
        if key and not listed.values and not listed.prefixes:
            nbytes = await run_async(self.engine.size(key))
            if nbytes is None:
                raise self._missing(key)
            values = [ListedValue(key, nbytes)]
        infos = [self._info_of(value) for value in values]
        if detail and with_sizes:
            await self._add_sizes(infos)
        infos += [self._directory(prefix.rstrip("/")) for prefix in listed.prefixes]
        infos.sort(key=lambda info: str(info["name"]))
        return infos if detail else [info["name"] for info in infos]

    async def _add_sizes(self, infos: Iterable[Info]) -> None:
        """Add the missing sizes: the presented size of a document is known only after reading it."""
        unknown = [info for info in infos if info["size"] is None]
        requests = [(self.key_of(info["name"]), EVERYTHING) for info in unknown]
        for info, value in zip(unknown, await run_async(self.engine.get_many(requests)), strict=True):
            info["size"] = None if value is None or isinstance(value, Exception) else len(value)

    async def _find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        prefix: str = "",
        *,
        with_sizes: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Return all files below a path, by one listing and one index request a shard."""
        key = await self._key(path)
        start = join(key, "")
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        if maxdepth == 1 and not prefix:  # deeper levels need not be listed
            found = await self._children(start, withdirs)
        else:
            found = await self._below(start, prefix, maxdepth, withdirs)
        if not found and key and not prefix:
            nbytes = await run_async(self.engine.size(key))
            if nbytes is not None:
                found[key] = self._info_of(ListedValue(key, nbytes))
        elif found and withdirs and not prefix:
            found[key] = self._directory(key)
        infos = {str(found[k]["name"]): found[k] for k in sorted(found)}
        if not detail:
            return list(infos)
        if with_sizes:
            await self._add_sizes(infos.values())
        return infos

    async def _children(self, start: str, withdirs: bool) -> dict[str, Info]:
        """Return the files directly below a directory, and with ``withdirs`` the directories, by key."""
        listed = await run_async(self.engine.list_dir(start))
        found = {value.key: self._info_of(value) for value in listed.values}
        if withdirs:
            found.update((p.rstrip("/"), self._directory(p.rstrip("/"))) for p in listed.prefixes)
        return found

    async def _below(self, start: str, prefix: str, maxdepth: int | None, withdirs: bool) -> dict[str, Info]:
        """Return the files below a directory whose names there start with ``prefix``, as ``_children`` does."""
        found: dict[str, Info] = {}
        async for value in iterate(lambda: self.engine.list(start + prefix)):
            parts = value.key[len(start) :].split("/")
            if withdirs:
                for depth in range(1, min(len(parts), (maxdepth or len(parts)) + 1)):
                    directory = start + "/".join(parts[:depth])
                    found.setdefault(directory, self._directory(directory))
            if maxdepth is None or len(parts) <= maxdepth:
                found[value.key] = self._info_of(value)
        return found

    async def _glob(self, path: str, maxdepth: int | None = None, **kwargs: Any) -> Any:
        await self._root.settle()
        if not kwargs.get("detail"):
            kwargs["with_sizes"] = False
        return await super()._glob(path, maxdepth, **kwargs)

    async def _walk(
        self, path: str, maxdepth: int | None = None, topdown: bool = True, on_error: Any = "omit", detail: bool = False, **kwargs: Any
    ) -> AsyncIterator[tuple[str, Any, Any]]:
        """Yield each directory with its direct children, from one listing, unless ``maxdepth`` makes single levels cheaper."""
        if maxdepth is not None:
            kwargs["with_sizes"] = detail  # of every level below, too
            async for level in super()._walk(path, maxdepth, topdown, on_error, detail=detail, **kwargs):
                yield level
            return
        await self._root.settle()
        top = self._root.full_path(path)
        try:
            found = await self._find(top, withdirs=True, detail=True, with_sizes=detail)
            if not found and top != self._root.path:
                raise self._missing(self.key_of(top))
        except OSError as exc:
            if on_error == "raise":
                raise
            if callable(on_error):
                on_error(exc)
            yield (top, {}, {}) if detail else (top, [], [])
            return
        for level in _levels(top, found, topdown, detail):
            yield level

    async def _du(self, path: str, total: bool = True, maxdepth: int | None = None, withdirs: bool = False, **kwargs: Any) -> Any:
        """Return the bytes of all files below a path: chunks as encoded, documents as presented."""
        infos = await self._find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True)
        sizes = {name: info["size"] or 0 for name, info in infos.items()}
        return sum(sizes.values()) if total else sizes

    async def _ukey(self, path: str) -> str:
        """Return a text that differs if the file's bytes may differ."""
        key = await self._file_key(path)
        value = await run_async(self.engine.pin(key))
        if value is None:
            raise self._missing(key)
        return str(tokenize(self._root.path_of(key), value.version))

    def ukey(self, path: str) -> str:
        """Return a text that differs if the file's bytes may differ; for a chunk, made of the version of its shard and its place in it."""
        return str(sync(self.loop, self._ukey, path))

    def checksum(self, path: str) -> int:
        return int(self.ukey(path), 16)


Level = tuple[str, Any, Any]
"""A directory, with its directories and its files."""


def _levels(top: str, found: Mapping[str, Info], topdown: bool, detail: bool) -> Iterator[Level]:
    """Yield each directory at and below ``top``, as ``os.walk`` does, by the infos of all that is found there."""
    levels: dict[str, tuple[dict[str, Info], dict[str, Info]]] = {top: ({}, {})}
    for name, info in found.items():
        if name == top:
            if info["type"] == "file":
                levels[top][1][""] = info
            continue
        parent, _, last = name.rpartition("/")
        levels.setdefault(parent, ({}, {}))[0 if info["type"] == "directory" else 1][last] = info
    pending = [top]
    visited: list[str] = []

    def level(here: str) -> Level:
        directories, files = levels.get(here, ({}, {}))
        return (here, directories, files) if detail else (here, list(directories), list(files))

    while pending:
        here = pending.pop()
        if topdown:
            shown = level(here)
            yield shown
            pending += [f"{here}/{name}" for name in reversed(list(shown[1]))]  # the caller may have removed some
        else:
            visited.append(here)
            pending += [f"{here}/{name}" for name in levels.get(here, ({}, {}))[0]]
    yield from map(level, reversed(visited))
