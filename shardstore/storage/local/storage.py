"""Objects as files below a directory, read and written by direct descriptor calls.

fsspec is not used: its thread for each call costs a hundred microseconds. Here a batch of reads is one hop into a
thread. Writes and deletes have threads of their own, since they may wait for a lock, and reads shall not wait with them.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import closing, suppress
from functools import cached_property, partial
from itertools import islice
from typing import TypeVar

from shardstore.errors import InvalidInput
from shardstore.model.capabilities import Capabilities
from shardstore.model.containers import batched
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation
from shardstore.model.ranges import ByteRange, BytesLike, Padding, Segment
from shardstore.storage.abilities import (
    BlockingReads,
    CopiesFrom,
    FileTree,
    HasIdentity,
    Leftover,
    ListsLeftovers,
    VersionedFile,
    WritesAsMade,
)
from shardstore.storage.base import (
    ABSENT,
    GUARD_CHANGED,
    Abilities,
    Absent,
    ConditionFailed,
    DirListing,
    Found,
    Guard,
    ObjectInfo,
    Read,
    ReadOutcome,
    Storage,
    check_directory,
)
from shardstore.storage.local import walk as local_walk
from shardstore.storage.local.append import APPENDS_IN_PLACE, append_to, cut_tails, find_tails
from shardstore.storage.local.files import is_reserved, make_like, missing, stat_file, translating
from shardstore.storage.local.mounts import Mounts, mount_of
from shardstore.storage.local.reading import READS_CACHED, fetch_soon, read_cached, read_file
from shardstore.storage.local.rules import Locks, WriteRules, check_follow_links, check_locks, find_left, sweep_tree
from shardstore.storage.local.temporary import TemporaryFile, compose_file, copy_file
from shardstore.storage.local.versions import FileGeneration, generation_of, listed_generation, names_versions, wait_to_settle
from shardstore.storage.local.walk import Inside
from shardstore.storage.requests.writes import byte_view, check_deletion, checked_views, groups, wrong_length
from shardstore.tasks import SharedThreads, gather_all

T = TypeVar("T")

_READING = SharedThreads("shardstore-read", min(16, 4 + (os.cpu_count() or 1)))
_WRITING = SharedThreads("shardstore-write", 16)
_READS_A_HOP = 16  # about 100 µs of cached small reads: a hop costs 50
_SHORT_READ_BYTES = 64 << 10  # some ten microseconds' copying
_FILES_REMEMBERED = 4096
_GROUP_BYTES = 1 << 20
_LISTED_A_HOP = 1000
_FILES_A_LOOK = 256

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

    async def _hop(self, threads: SharedThreads, key: str, action: str, work: Callable[[], T]) -> T:
        """Return the result of ``work``, done in a thread. A cancelled caller still waits: the thread uses its descriptors."""
        future = threads.call(work)
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
        return await self._hop(_WRITING, key, action, work)

    async def _read_hop(self, key: str, action: str, work: Callable[[], T]) -> T:
        return await self._hop(_READING, key, action, work)

    # -- names ---------------------------------------------------------------------------------------------------------

    def _path(self, key: str) -> str | None:
        """Return the path of the object of ``key``; ``None`` if none can be: hidden files of this package, and steps out of the root."""
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
        """Return temporary and lock files below ``prefix`` whose writers are gone, and tails of files that are, or were, appended to."""
        check_directory(prefix)
        if not self._is_prefix(prefix):
            return []

        def look() -> list[Leftover]:
            left = find_left(self.root, prefix, self._rules.is_network)
            return left + find_tails(self.root, prefix) if self._appends_in_place else left

        return await self._read_hop(prefix, "looking for leftovers", look)


class LocalStorage(LocalFiles, BlockingReads, WritesAsMade, CopiesFrom, HasIdentity, Abilities):
    """Files below ``root``, a path; safe between the threads and processes of one machine.

    With ``fsync`` (the default), acknowledged writes survive the loss of power. ``locks="cluster"`` says that the locks of the file
    system hold between machines; the storage is then safe between these too. Without ``follow_links``, what a link leads to elsewhere than
    below ``root`` is neither read nor listed: it is absent.

    Raises:
        InvalidInput: ``locks`` or ``follow_links`` has another value.
        Unsupported: this system has no locks that hold between machines.
    """

    kind = "local"

    def __init__(self, root: str | os.PathLike[str], fsync: bool = True, locks: Locks = "auto", follow_links: bool = True) -> None:
        super().__init__(root, fsync, locks, follow_links)
        self.short_read_bytes = _SHORT_READ_BYTES
        """Reads of more bytes are never made without a hop into a thread."""
        self._lately: set[str] = set()  # paths of files of which single short reads were asked for

    @property
    def _arguments(self) -> tuple[str, bool, Locks, bool]:
        return self.root, self.fsync, self.locks, self.follow_links

    def __reduce__(self) -> tuple[type[LocalStorage], tuple[str, bool, Locks, bool]]:
        return type(self), self._arguments

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalStorage) and other._arguments == self._arguments

    def __hash__(self) -> int:
        return hash((LocalStorage, *self._arguments))

    def __repr__(self) -> str:
        links = "" if self.follow_links else ", follow_links=False"
        return f"LocalStorage({self.root!r}, fsync={self.fsync}, locks={self.locks!r}{links})"

    @property
    def url(self) -> str:
        return f"file://{self.root}"

    @property
    def identity(self) -> str:
        """A text that identifies this place, and what is seen of it."""
        return self.url if self.follow_links else f"inside {self.url}"

    @cached_property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            pinned_reads=True,
            create_if_absent=True,
            compare_and_swap=self._names_versions,
            conditional_delete=self._names_versions,
            compose=True,
            appends_in_place=self._appends_in_place,
            unique_versions=True,
            exactly_once=True,
            durable=self.fsync,
            guarded_reads=self._names_versions and not self._rules.is_network,  # where what is known of a file may be a while old
            across_machines=self._rules.is_cluster or not self._rules.is_network,
        )

    # -- the protocol --------------------------------------------------------------------------------------------------

    def read_blocking(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Read as ``read`` does, in the calling thread, whichever it is."""
        outcomes: list[ReadOutcome] = []
        for read in reads:
            path = self._path(read.key)
            outcome = ABSENT if path is None else read_file(path, read, self._inside)
            if read.guard is not None and isinstance(outcome, Found | Absent) and not self._is_there(read.guard):
                outcome = GUARD_CHANGED
            outcomes.append(outcome)
        return outcomes

    def file_of(self, key: str, version: Generation) -> VersionedFile | None:
        path = self._path(key)
        if path is None or type(version) is not FileGeneration:  # an unsettled version is equal to none
            return None
        return VersionedFile(os.fsencode(path), version.numbers, None if self._inside is None else os.fsencode(self._inside.start))

    def _is_there(self, other: Guard) -> bool:
        path = self._path(other.key)
        status = None if path is None else stat_file(path)
        if path is None or status is None:
            return False
        if generation_of(status, path) == other.generation:
            return True
        wait_to_settle(other.generation, status)
        return False

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        if not reads:
            return []
        if len(reads) == 1 and (cached := self.read_page_cache(reads[0])) is not None:
            return [cached]
        if len(reads) <= _READS_A_HOP:
            return await self._read_hop(reads[0].key, "reading", lambda: self.read_blocking(reads))
        shares = batched(reads, max(_READS_A_HOP, -(-len(reads) // _READING.most)))

        async def one(mine: Sequence[Read]) -> list[ReadOutcome]:
            return await self._read_hop(mine[0].key, "reading", lambda: self.read_blocking(mine))

        return [outcome for outcomes in await asyncio.gather(*(one(mine) for mine in shares)) for outcome in outcomes]

    def read_page_cache(self, read: Read) -> Found | None:
        """Read a short range of one version without a hop into a thread, which takes longer than the read. From any thread. ``None`` if
        the read might have to wait: it is done only if the file was read a moment ago, and the bytes seem to be in the page cache.
        """
        if read.generation is None or read.guard is not None or not READS_CACHED or self._rules.is_network:
            return None
        path = self._path(read.key)
        if path is None:
            return None
        most = self.short_read_bytes
        nbytes = sum(wanted.end - wanted.start if isinstance(wanted, ByteRange) else most + 1 for wanted in read.ranges)
        if nbytes > most:
            return None
        if path in self._lately:
            return read_cached(path, read, self._inside)
        if len(self._lately) >= _FILES_REMEMBERED:
            self._lately.clear()
        self._lately.add(path)
        return None

    def reads_in_threads(self) -> bool:
        return READS_CACHED and not self._rules.is_network

    def read_in_memory(self, read: Read) -> Found | None:
        path = self._path(read.key)
        found = None if path is None else read_cached(path, read, self._inside)
        if found is None and path is not None:
            fetch_soon(path, read)
        return found

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        path = self._path_to_write(key)
        if isinstance(body, Sequence):
            views = checked_views(body, nbytes, key)
            return await self._write_hop(key, "writing", lambda: self._write_whole(path, key, lambda file: file.append(views), condition))
        # What survives at every await below: the old object, until the thread of the last hop has replaced it.
        file = await self._write_hop(key, "writing", lambda: TemporaryFile(path, key, self._rules))
        try:
            async for group in groups(body, nbytes, _GROUP_BYTES, key):
                await self._write_hop(key, "writing", lambda views=group: file.append(views))  # type: ignore[misc]  # mypy cannot infer a default
            return await self._write_hop(key, "writing", lambda: file.publish(condition))
        finally:
            await self._write_hop(key, "writing", file.close)

    async def write_made(self, key: str, make: Callable[[int], BytesLike], condition: Condition) -> Generation:
        path = self._path_to_write(key)
        return await self._write_hop(key, "writing", lambda: self._write_whole(path, key, lambda file: file.append_made(make), condition))

    def _write_whole(self, path: str, key: str, append: Callable[[TemporaryFile], None], condition: Condition) -> Generation:
        with closing(TemporaryFile(path, key, self._rules)) as file:
            append(file)
            return file.publish(condition)

    # -- for callers that have a thread of their own -------------------------------------------------------------------

    def concatenate_blocking(
        self,
        key: str,
        source: LocalStorage,
        files: Sequence[tuple[str, int, int]],
        look: Callable[[], object],
        before: bytes,
        after: bytes,
        condition: Condition,
    ) -> Generation | None:
        """Store whole objects of ``source`` one behind the other between ``before`` and ``after``; each is given by key, size and
        ``Generation.digest``.

        This runs in the calling thread; the kernel copies the bytes if it can. Returns ``None``, with nothing stored, if one of
        them is not as it was given. ``look`` is called now and then; an exception from it ends this, with nothing stored.
        """
        path = self._path_to_write(key)
        with translating(key, "writing"), closing(TemporaryFile(path, key, self._rules)) as file:
            file.append([memoryview(before)])
            for some in batched(files, _FILES_A_LOOK):
                look()
                for where, (_, nbytes, version) in zip(source._paths([name for name, _, _ in some]), some, strict=True):
                    if where is None or not file.append_file(where, nbytes, version):
                        return None
            file.append([memoryview(after)])
            return file.publish(condition)

    def write_blocking(self, key: str, groups: Iterable[Sequence[BytesLike]], nbytes: int, condition: Condition) -> Generation:
        """Write as ``write`` does, in the calling thread, with pieces that come in groups."""
        path = self._path_to_write(key)
        with translating(key, "writing"), closing(TemporaryFile(path, key, self._rules)) as file:
            given = 0
            for group in groups:
                views = [byte_view(piece) for piece in group]
                given += sum(map(len, views))
                if given > nbytes:
                    break
                file.append(views)
            if given != nbytes:
                raise wrong_length(key, nbytes, given)
            return file.publish(condition)

    # -- the rest of the protocol --------------------------------------------------------------------------------------

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        path = self._path_to_write(key)
        return await self._write_hop(key, "rewriting", lambda: self._compose(path, key, source, segments, condition))

    def _compose(self, path: str, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        if self.capabilities.appends_in_place and any(isinstance(segment, Padding) for segment in segments):
            appended = append_to(path, key, source, segments, condition, self._rules)
            if appended is not None:
                return appended
        return compose_file(path, key, source, segments, condition, self._rules, has_versions=self.capabilities.compare_and_swap)

    async def copy(self, source: str, target: str) -> Generation | None:
        return await self.copy_from(self, source, target)

    async def copy_from(self, source: Storage, key: str, target_key: str) -> Generation | None:
        origin = source.ability(LocalFiles)
        if origin is None:
            return None
        old, new = origin._path(key), self._path_to_write(target_key)
        if old is None:
            return None
        return await self._write_hop(target_key, f"copying {key!r} to", lambda: copy_file(old, new, key, target_key, self._rules))

    async def rename_prefix(self, source: str, target: str) -> bool:
        if target.startswith(f"{source}/"):
            raise InvalidInput(f"what lies below {source!r} cannot be moved to {target!r}, inside of itself")
        old, new = self._path(source), self._path_to_write(target)
        if old is None:
            return False
        return await self._write_hop(target, f"renaming {source!r} to", lambda: local_walk.rename_directory(old, new, self._rules))

    async def delete(self, key: str, condition: Condition) -> bool:
        check_deletion(key, condition)
        path = self._path(key)
        if path is None:
            return False
        return await self._write_hop(key, "deleting", lambda: self._rules.delete(path, key, condition))

    async def delete_many(self, keys: Sequence[str]) -> None:
        def delete_some(mine: Sequence[str]) -> None:
            for key in mine:
                path = self._path(key)
                if path is not None:
                    self._rules.delete(path, key, UNCONDITIONAL)

        async def one(mine: Sequence[str]) -> None:
            await self._write_hop(mine[0], "deleting", lambda: delete_some(mine))

        # An error is raised when all have ended: nothing is removed any more when this returns.
        await gather_all(*map(one, batched(keys, max(1, -(-len(keys) // _WRITING.most)))))

    async def delete_for_good(self, keys: Sequence[str]) -> None:
        """Remove objects under whose keys no process writes any more, faster than ``delete_many``, which waits for the writers of each.

        They are gone durably when this returns; absent ones are no error.
        """
        by_directory: dict[str, list[str]] = {}
        for path in self._paths(keys):
            if path is not None:
                by_directory.setdefault(path[: path.rindex(os.sep)], []).append(path)
        for directory, paths in by_directory.items():  # one thread each: the kernel changes a directory for one at a time
            await self._write_hop(keys[0], "deleting", partial(self._rules.delete_all, directory, paths))

    # -- looking -------------------------------------------------------------------------------------------------------

    async def stat(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        if path is None:
            return None

        def look() -> os.stat_result | None:
            if self._inside is not None:
                self._inside.check(path, key)
            status = self._rules.status(path)
            if status is None and (error := missing(path, f"looking up {key!r}")) is not None:
                raise error
            return status

        status = await self._read_hop(key, "looking up", look)
        return None if status is None else ObjectInfo(key, status.st_size, listed_generation(status, path))

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        if not self._is_prefix(prefix):
            return
        walk = local_walk.walk(self.root, prefix, self._inside)
        while found := await self._read_hop(prefix, "listing", lambda: tuple(islice(walk, _LISTED_A_HOP))):
            for info in found:
                yield info

    async def list_dir(self, prefix: str) -> DirListing:
        check_directory(prefix)
        if prefix.startswith("/") or not self._is_prefix(prefix):  # "/" would be the root directory of the machine
            return DirListing((), ())
        return await self._read_hop(prefix, "listing", lambda: local_walk.list_directory(self.root, prefix, self._inside))
