"""Files of the fsspec filesystem, many at once: copied, moved, and brought from and to local files.

They go in batches of bounded memory, metadata first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fsspec.asyn import AsyncFileSystem, sync

from shardstore._sync import run_async
from shardstore.adapters.handle import raise_failed, values_of
from shardstore.engine.actions import ERASE, Action, SetValue
from shardstore.errors import InvalidInput, NotFound
from shardstore.format.v2.keys import is_document
from shardstore.model.containers import batched
from shardstore.model.ranges import EVERYTHING
from shardstore.presented.flavours import Presented

_READ_AT_ONCE = 64

Pair = tuple[str, str]


class FileTransfers(AsyncFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The part of ``ShardedFileSystem`` that copies and moves many files; the other part knows keys and the engine."""

    # -- copying ---------------------------------------------------------------------------------------------------

    async def _cp_file(self, path1: str, path2: str, *, pairs: list[tuple[str, str]] | None = None, **kwargs: Any) -> None:
        if pairs is not None:  # a caller that collects them
            pairs.append((path1, path2))
            return
        self.check_writable()
        source = await self._file_key(path1)
        target = await self._file_key(path2, to_create=True)
        await run_async(copied_in_batches(self.engine, [(source, target)]))

    async def _copy(
        self,
        path1: Any,
        path2: Any,
        recursive: bool = False,
        on_error: str | None = None,
        maxdepth: int | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Copy files in batches; whole nodes by their stored objects, if there is nothing at the target."""
        self.check_writable()
        if recursive and maxdepth is None and (ends := await self._whole(path1, path2)) is not None:
            await run_async(self.engine.copy_prefix(*ends))
            return
        if isinstance(path2, str) and not await self._key(path2) and not await self._has_any(""):
            await self._root.settle(to_create=True)
        missing_ok = on_error == "ignore" or (on_error is None and recursive)
        files = await self._files_to_copy(path1, path2, recursive, maxdepth)
        await run_async(copied_in_batches(self.engine, files, missing_ok=missing_ok))

    async def _files_to_copy(self, path1: Any, path2: Any, recursive: bool, maxdepth: int | None) -> list[tuple[str, str]]:
        """Return pairs of keys, by fsspec's rules for globs, lists and directories; directories themselves are left out."""
        pairs: list[tuple[str, str]] = []
        await super()._copy(path1, path2, recursive, maxdepth=maxdepth, pairs=pairs)
        parents = {self._root.full_path(a).rpartition("/")[0] for a, _ in pairs} if recursive else set()
        files = [(a, b) for a, b in pairs if self._root.full_path(a) not in parents]
        if not recursive and not isinstance(path1, str):
            files = [(a, b) for a, b in files if not await self._is_only_directory(a)]
        sources = await self._file_keys(a for a, _ in files)
        targets = await self._file_keys((b for _, b in files), to_create=True)
        _refuse_collisions(targets)
        return list(zip(sources, targets, strict=True))

    async def _whole(self, path1: Any, path2: Any) -> tuple[str, str] | None:
        """Return both paths, if stored objects can be used: the source is no part of an array, and the target does not exist."""
        if not isinstance(path1, str) or not isinstance(path2, str) or has_magic(path1):
            return None
        source, target = await self._key(path1), await self._key(path2)
        into = path2.endswith("/") or await self._isdir(path2)
        if into and not path1.endswith("/"):
            target = f"{target}/{source.rpartition('/')[2]}".lstrip("/")
        if not source or not target or _overlap(source, target) or not await self._has_any(source + "/") or await self._exists(target):
            return None
        engine = self.engine
        if engine.in_transaction:  # a transaction holds back values, and knows nothing of objects
            return None
        inside = [await run_async(engine.is_inside_array(path)) for path in (source, target)]
        return None if any(inside) else (source, target)

    async def _mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Move files; whole nodes by their stored objects, if there is nothing at the target: a rename if the storage has one.

        Raises:
            InvalidInput: something would be moved into or onto itself. Nothing was changed.
        """
        self.check_writable()
        if recursive and maxdepth is None and (ends := await self._whole(path1, path2)) is not None:
            await run_async(self.engine.move_prefix(*ends))
            return
        files = await self._files_to_copy(path1, path2, recursive, maxdepth)
        if not files:
            raise await self._no_files(path1)
        sources, targets = {source for source, _ in files}, {target for _, target in files}
        directories = await self._directories(path1) if recursive else ()
        if not sources.isdisjoint(targets) or any(target.startswith(directories) for target in targets):
            raise InvalidInput(f"moving {path1!r} to {path2!r} would move files onto or into themselves: name another target")
        await run_async(copied_in_batches(self.engine, files))
        await self._update([(source, ERASE) for source in sources])
        if self.engine.in_transaction and maxdepth is None:
            await self._erase_moved(directories)

    async def _erase_moved(self, directories: Iterable[str]) -> None:
        """Erase moved directories as a whole: they may become something else before the commit, such as another array."""
        for directory in directories:
            if directory != "/" and not has_magic(directory):
                await run_async(self.engine.erase_prefix(directory))

    async def _directories(self, paths: Any) -> tuple[str, ...]:
        """Return the prefixes of keys below paths."""
        return tuple([f"{await self._key(path)}/" for path in ([paths] if isinstance(paths, str) else paths)])

    async def _no_files(self, path: Any) -> Exception:
        """Return the error of a path, pattern or list that means no file."""
        if not isinstance(path, str) or has_magic(path):
            return NotFound(f"no file of {self.handle.url} matches {path!r}")
        await self._info(path)
        return IsADirectoryError(f"{self.key_of(path)!r} is a directory: mv(…, recursive=True) moves it with what is in it")

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Move files or directories; nodes are moved by their stored objects."""
        sync(self.loop, self._mv, path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)

    # -- to and from local files -----------------------------------------------------------------------------------

    async def _put_file(
        self, lpath: str, rpath: str, mode: str = "overwrite", *, pairs: list[tuple[str, str]] | None = None, **kwargs: Any
    ) -> None:
        if pairs is not None:
            pairs.append((lpath, rpath))
            return
        if mode == "create":
            data = await asyncio.to_thread(Path(lpath).read_bytes)
            await self._pipe_file(rpath, data, mode="create")
            return
        self.check_writable()
        key = await self._file_key(rpath, to_create=True)
        await run_async(uploaded_in_batches(self.engine, [(lpath, key)]))

    async def _put(self, lpath: Any, rpath: Any, recursive: bool = False, callback: Any = None, **kwargs: Any) -> None:
        """Store local files in batches, metadata first whatever the order in which they are found."""
        self.check_writable()
        await self._root.settle()
        if kwargs.get("mode", "overwrite") != "overwrite":
            await super()._put(lpath, rpath, recursive, **({} if callback is None else {"callback": callback}), **kwargs)
            return
        pairs: list[tuple[str, str]] = []
        await super()._put(lpath, rpath, recursive, pairs=pairs, **kwargs)
        keys = await self._file_keys((remote for _, remote in pairs), to_create=True)
        _refuse_collisions(keys)
        await run_async(uploaded_in_batches(self.engine, [(local, key) for (local, _), key in zip(pairs, keys, strict=True)], callback))

    async def _get_file(self, rpath: str, lpath: str, *, pairs: list[tuple[str, str]] | None = None, **kwargs: Any) -> None:
        if pairs is not None:
            pairs.append((rpath, lpath))
            return
        key = await self._file_key(rpath)
        await run_async(downloaded_in_batches(self.engine, [(key, lpath)]))

    async def _get(self, rpath: Any, lpath: Any, recursive: bool = False, callback: Any = None, **kwargs: Any) -> None:
        """Fetch files in batches: two rounds of requests for each."""
        await self._root.settle()
        pairs: list[tuple[str, str]] = []
        await super()._get(rpath, lpath, recursive, pairs=pairs, **kwargs)
        files: list[tuple[str, str]] = []
        parents = {self._root.full_path(a).rpartition("/")[0] for a, _ in pairs} if recursive else set()
        for remote, local in pairs:
            is_listed = not recursive and not isinstance(rpath, str)
            if self._root.full_path(remote) in parents or (is_listed and await self._is_only_directory(remote)):
                await asyncio.to_thread(Path(local).mkdir, parents=True, exist_ok=True)
            else:
                files.append((await self._file_key(remote), local))
        _refuse_collisions([local for _, local in files])
        await run_async(downloaded_in_batches(self.engine, files, callback))


def _refuse_collisions(targets: Sequence[str]) -> None:
    """Refuse files that would replace one another: fsspec flattens lists of paths, so equal last names collide.

    Raises:
        InvalidInput: two files have the same target.
    """
    seen: set[str] = set()
    for target in targets:
        if target in seen:
            raise InvalidInput(
                f"two of the files would be written to {target!r}: fsspec flattens lists. Give directories, or a target for each file"
            )
        seen.add(target)


def _overlap(one: str, other: str) -> bool:
    """Return whether one of two directories is the other, or in it."""
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def has_magic(path: Any) -> bool:
    return any(character in path for character in "*?[")


# -- batches ----------------------------------------------------------------------------------------------------


async def copied_in_batches(engine: Presented, pairs: Sequence[Pair], *, missing_ok: bool = False) -> None:
    """Copy values from keys to keys of one store.

    Raises:
        NotFound: a key has no value, unless ``missing_ok``; those before it may be copied.
    """
    batch = _Batch(engine)
    for part in batched(sorted(pairs, key=lambda pair: not is_document(pair[1])), _READ_AT_ONCE):
        values = values_of(await engine.get_many([(source, EVERYTHING) for source, _ in part]))
        for (source, target), value in zip(part, values, strict=True):
            if value is not None:
                await batch.add(target, bytes(value))
            elif not missing_ok:
                raise NotFound(f"{source!r} does not exist in {engine.storage.url}")
    await batch.flush()


async def uploaded_in_batches(engine: Presented, pairs: Sequence[Pair], callback: Any = None) -> None:
    """Store local files, ``(path, key)`` each; ``callback`` is fsspec's."""
    if callback is not None:
        callback.set_size(len(pairs))
    batch = _Batch(engine)
    for path, key in sorted(pairs, key=lambda pair: not is_document(pair[1])):
        await batch.add(key, await asyncio.to_thread(Path(path).read_bytes))
        if callback is not None:
            callback.relative_update(1)
    await batch.flush()


async def downloaded_in_batches(engine: Presented, pairs: Sequence[Pair], callback: Any = None) -> None:
    """Fetch values into local files, ``(key, path)`` each.

    Raises:
        NotFound: a key has no value.
    """
    if callback is not None:
        callback.set_size(len(pairs))
    for part in batched(pairs, _READ_AT_ONCE):
        values = values_of(await engine.get_many([(key, EVERYTHING) for key, _ in part]))
        for (key, path), value in zip(part, values, strict=True):
            if value is None:
                raise NotFound(f"{key!r} does not exist in {engine.storage.url}")
            await asyncio.to_thread(Path(path).write_bytes, value)
        if callback is not None:
            callback.relative_update(len(part))


class _Batch:
    """Updates that go to the engine together, so that each shard is committed once, up to its bound on memory."""

    def __init__(self, engine: Presented) -> None:
        self._engine = engine
        self._updates: list[tuple[str, Action]] = []
        self._held = 0

    async def add(self, key: str, data: bytes) -> None:
        self._updates.append((key, SetValue(data)))
        self._held += len(data)
        if self._held > self._engine.options.max_memory:
            await self.flush()

    async def flush(self) -> None:
        updates, self._updates, self._held = self._updates, [], 0
        raise_failed(await self._engine.update_many(updates))
