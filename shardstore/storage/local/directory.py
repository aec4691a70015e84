"""The files below one directory, apart from the objects that they are: its threads, the names of its files, links and mounts in it, and
what killed writers left.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from typing import TypeVar

from shardstore.errors import InvalidInput
from shardstore.storage.abilities import FileTree, Leftover, ListsLeftovers
from shardstore.storage.base import ConditionFailed, check_directory
from shardstore.storage.local import walk as local_walk
from shardstore.storage.local.append import APPENDS_IN_PLACE, cut_tails, find_tails
from shardstore.storage.local.files import is_reserved, make_like, translating
from shardstore.storage.local.mounts import Mounts, mount_of
from shardstore.storage.local.rules import Locks, WriteRules, check_follow_links, check_locks, find_left, sweep_tree
from shardstore.storage.local.versions import names_versions
from shardstore.storage.local.walk import Inside
from shardstore.tasks import leave_to_main_thread

T = TypeVar("T")

READ_WORKERS = min(16, 4 + (os.cpu_count() or 1))
WRITE_WORKERS = 16

# What makes a key peculiar, in a text of one key a line: a segment that is empty or begins with a dot, or a NUL.
_PECULIAR = re.compile(r"[/\n][./\n]|/\n|\0")


class LocalFiles(FileTree, ListsLeftovers):
    """The files below ``root``, a path, by their keys; an ability of every storage that shows them, through all wrappers.

    See ``LocalStorage`` for the parameters.
    """

    def __init__(self, root: str | os.PathLike[str], fsync: bool, locks: Locks, follow_links: bool) -> None:
        check_locks(locks)
        check_follow_links(follow_links)
        self.root = os.path.abspath(os.path.expanduser(os.fspath(root)))
        self.fsync = fsync
        self.locks: Locks = locks
        self.follow_links = follow_links
        self._inside = None if follow_links else Inside(self.root)
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._pools_pid = os.getpid()

    @cached_property
    def _rules(self) -> WriteRules:
        """Return the rules of writing. They are found out at the first use: where the root lies can change until then, by mounting."""
        mount = mount_of(self.root)
        return WriteRules(self.root, self.fsync, mount is not None and mount.is_network, self.locks == "cluster")

    @cached_property
    def _names_versions(self) -> bool:
        return names_versions(self.root)

    @cached_property
    def _appends_in_place(self) -> bool:
        is_shared = self._rules.is_network or self._rules.is_cluster  # other machines may see half of it
        return APPENDS_IN_PLACE and self._names_versions and not is_shared

    # -- threads -------------------------------------------------------------------------------------------------------

    def _pool(self, name: str, workers: int) -> ThreadPoolExecutor:
        if self._pools_pid != os.getpid():  # forked: the threads stayed behind
            self._pools, self._pools_pid = {}, os.getpid()
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = ThreadPoolExecutor(workers, f"shardstore-{name}", leave_to_main_thread)
        return pool

    async def _hop(self, name: str, workers: int, key: str, action: str, work: Callable[[], T]) -> T:
        """Return the result of ``work``, done in a thread. A cancelled caller still waits for the thread, which uses the caller's
        descriptors.
        """
        future = asyncio.get_running_loop().run_in_executor(self._pool(name, workers), work)
        try:
            with translating(key, action):
                return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():  # however often it is cancelled
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # seen; the cancellation matters more
            raise

    async def _write_hop(self, key: str, action: str, work: Callable[[], T]) -> T:
        return await self._hop("write", WRITE_WORKERS, key, action, work)

    async def _read_hop(self, key: str, action: str, work: Callable[[], T]) -> T:
        return await self._hop("read", READ_WORKERS, key, action, work)

    # -- names ---------------------------------------------------------------------------------------------------------

    def _path(self, key: str) -> str | None:
        """Return the path of the object of ``key``; ``None`` if no object can be: hidden files of this package, and steps out of the
        root.
        """
        # Most keys have nothing that would have to be looked at segment by segment.
        if os.sep == "/" and "/." not in key and "//" not in key and "\0" not in key and key.strip("/") == key and key[:1] not in ("", "."):
            return f"{self.root}/{key}" if self.root != "/" else f"/{key}"
        segments = key.split("/")
        if "\0" in key or any(segment in ("", ".", "..") or is_reserved(segment) for segment in segments):
            return None
        return os.path.join(self.root, *segments)

    def _paths(self, keys: Sequence[str]) -> list[str | None]:
        """Return the paths of many keys, as ``_path`` does; all keys are checked together first."""
        if os.sep == "/" and self.root != "/" and not _PECULIAR.search("\n".join(("", *keys, ""))):
            return [f"{self.root}/{key}" for key in keys]
        return [self._path(key) for key in keys]

    def _path_to_write(self, key: str) -> str:
        path = self._path(key)
        if path is None:
            raise InvalidInput(f"{key!r} cannot be the key of an object on a file system")
        return path

    def _is_prefix(self, prefix: str) -> bool:
        """Return whether keys can start with ``prefix``: paths that step out of the root do not belong to this storage."""
        above = prefix.rpartition("/")[0]
        return not above or ("\0" not in above and all(segment not in ("", ".", "..") for segment in above.split("/")))

    async def keep_seen(self, key: str) -> None:
        path = self._path(key.rstrip("/")) if key.rstrip("/") else self.root
        if path is not None and self.fsync:
            await self._write_hop(key, "flushing", lambda: self._rules.keep_seen(path))

    # -- what is not the store's own -----------------------------------------------------------------------------------

    async def cut_links(self, prefix: str) -> None:
        def cut() -> None:
            local_walk.cut_links(self._rules, prefix)
            local_walk.remove_special(self._rules, prefix)

        if self._is_prefix(prefix):
            await self._write_hop(prefix, "deleting", cut)

    async def linked_directories(self, prefix: str = "") -> list[str]:
        """Return the keys of links to directories, and to nowhere, at or below ``prefix``: their targets do not belong to the store."""
        if not self._is_prefix(prefix):
            return []
        return await self._read_hop(prefix, "listing", lambda: local_walk.linked_directories(self.root, prefix))

    async def links_above(self, keys: Sequence[str]) -> list[str | None]:
        """Return the path of the link through which each of ``keys`` is reached, if any; ``""`` is the root. See ``links.links_above``."""
        paths = [self._path(key) if key else self.root for key in keys]
        return await self._read_hop(keys[0] if keys else "", "looking up", lambda: local_walk.links_above(self.root, paths))

    async def mounts_below(self, prefix: str = "") -> list[str]:
        """Return the paths at which other file systems, or other directories, are mounted below ``prefix``; not at it."""
        if not self._is_prefix(prefix):
            return []

        def look() -> list[str]:
            return sorted(mount.point for mount in Mounts().below([os.path.realpath(os.path.join(self.root, prefix))]))

        return await self._read_hop(prefix, "listing", look)

    async def stored_names(self, name: str) -> tuple[str, ...]:
        return (name,)

    async def make_like(self, key: str, source: LocalFiles, source_key: str) -> None:
        """Make an empty object at ``key``, unless there is one, that is closed to everybody who cannot read the object of ``source``.

        A later version that replaces it keeps its permissions. Raises ``ConditionFailed`` if the object of ``source`` is gone.
        """
        self._path_to_write(key)

        def make() -> None:
            try:
                make_like(self.root, key, source.root, source_key)
            except FileNotFoundError as exc:
                raise ConditionFailed(f"{source_key!r} is gone") from exc

        await self._write_hop(key, "writing", make)

    async def obstacles(self, prefix: str = "", is_key: Callable[[str], bool] = lambda key: False) -> list[local_walk.Obstacle]:
        """Return what lies below ``prefix`` where an object would be, and is none. Listings leave it out.

        That are links to what is not there, of which reads find nothing; named pipes, sockets and devices, whose reads fail; and
        directories, where ``is_key`` says that an object would have that key.
        """
        return await self._read_hop("", "listing", lambda: list(local_walk.obstacles(self.root, prefix, is_key)))

    async def sweep(self, older_than_seconds: float = 3600.0, *, only_count: bool = False) -> int:
        """Remove temporary files, lock files and tails of files left by writers that died; return how many.

        With ``only_count`` they are counted and kept.

        Younger ones are kept, and so are those of writers that live. On network file systems the least age is a day: there, locks may
        not show whether a writer on another machine lives. The first write in a directory removes such files in that directory too,
        whatever their age.
        """

        def sweep() -> int:
            files = sweep_tree(self.root, self._rules.is_network, older_than_seconds, only_count=only_count)
            if self._appends_in_place:
                files += cut_tails(self.root, self._rules, older_than_seconds, only_count=only_count)
            return files

        return await self._write_hop("", "sweeping", sweep)

    async def leftovers(self, prefix: str) -> Sequence[Leftover]:
        """Return the temporary and lock files below ``prefix`` whose writers are gone, and tails of files that are or were being appended
        to.
        """
        check_directory(prefix)
        if not self._is_prefix(prefix):
            return []

        def look() -> list[Leftover]:
            left = find_left(self.root, prefix, self._rules.is_network)
            return left + find_tails(self.root, prefix) if self._appends_in_place else left

        return await self._read_hop(prefix, "looking for leftovers", look)
