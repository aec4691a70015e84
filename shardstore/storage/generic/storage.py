"""Objects in any fsspec filesystem that has no storage of its own here: archives, references, caches, FTP, SFTP, WebDAV, …

Everywhere fsspec can read ranges, write whole files, and show metadata; it has no conditions, and no reads of a given version. So no
capability is claimed; versions are compared as far as the metadata shows them.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from fsspec.core import OpenFile
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path, tokenize

from shardstore.errors import InvalidInput, StorageError, Unsupported
from shardstore.model.capabilities import Capabilities
from shardstore.model.containers import Lru
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation, IfAbsent, IfGeneration, Unconditional
from shardstore.model.ranges import EVERYTHING, BytesLike, Segment, resolve
from shardstore.model.redaction import redacted
from shardstore.storage.abilities import HasIdentity, OnFilesystem
from shardstore.storage.base import (
    ABSENT,
    CHANGED,
    DIRECTORY,
    UNKNOWN_NBYTES,
    Abilities,
    Changed,
    DirListing,
    Failed,
    Found,
    LeadsNowhere,
    ObjectInfo,
    Read,
    ReadOutcome,
    check_directory,
    no_compose,
    read_one,
)
from shardstore.storage.generic.calls import ABSENT_ERRORS, Info, Look, calls_of, contradicts, read_only, size_in, translated
from shardstore.storage.generic.links import (
    ARCHIVES,
    BUCKETS,
    CACHES,
    DIRECTORIES,
    READ_ONLY,
    REFERENCES,
    has_inherited_find,
    is_any,
    is_one,
    is_static,
    protocols_of,
    without_dirs,
)
from shardstore.storage.inferred_versions import agrees, trace_of, unversioned, version_from, version_of
from shardstore.storage.requests.outcomes import modified_seconds
from shardstore.storage.requests.writes import check_deletion, failed, groups, joined, warn_not_honoured

_MOST_SEEN = 1 << 15
"""The most objects of which the last look is kept for a storage; some 10 MiB."""

SPOOL_BYTES = 64 << 20
"""Bodies above this are collected in a local temporary file, not in memory."""

_ON_DISK = DIRECTORIES - {"memory"}
"""Filesystems where no file can be below the name of another: there, a directory in the place of an object hides it."""
_ATTEMPTS = 3
_COPY_ATTEMPTS = 20

_warned: WeakKeyDictionary[AbstractFileSystem, bool] = WeakKeyDictionary()


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
        """Return the version that was seen of an object that turned out to have so many bytes; without one, a name that equals no other."""
        return unversioned(nbytes) if self.trace is None else version_from(self.trace, nbytes, self.modified)

    def may_be(self, generation: Generation) -> bool:
        """Return whether the look may have been at this version."""
        return self.nbytes is None or agrees(generation, self.version(self.nbytes))


class GenericStorage(HasIdentity, OnFilesystem, Abilities):
    """Objects below ``path`` of ``fs``; an asynchronous ``fs`` must be of fsspec's IO loop.

    After each round of reads of an object its metadata are looked at. The reads answer ``Changed`` if these differ from what was
    asked for or from the look before, which may be the one of an earlier round. ``pinned_reads`` is still not claimed: a modification
    time may tick too seldom; an object may be replaced during a read so that both looks show the same; and if the metadata show only
    the size, only that is compared. As long as no shard is replaced, reads are right.

    Where it is ``static``, as archives, references and revisions always are, each object is looked at once, and nothing is written.

    Writes replace the whole object by the filesystem's own means: the filesystem decides whether readers can see a part of it, and what
    is left of the old object after an error. Conditions are checked before the write, which does not protect against a second writer.
    Archives, references, and caches are read-only.
    """

    kind = "generic"

    def __init__(
        self, fs: AbstractFileSystem, path: str, url: str | None = None, concurrency: int = 32, static: bool | None = None
    ) -> None:
        self._given = (fs, path, url, concurrency, static)
        fs, path = without_dirs(fs, path)
        if is_one(fs, ARCHIVES) and getattr(fs, "mode", "r") != "r":
            raise InvalidInput(
                f"an archive opened with mode={fs.mode!r} cannot be a store, because what is written to it cannot be read or replaced: "
                "write a directory, and make an archive of it"
            )
        self.fs = fs
        stripped = str(fs._strip_protocol(path))
        self.path = stripped.rstrip("/")
        self._base = "/" if stripped == "/" else self.path + "/" if self.path else ""
        self._url = redacted(url or described(fs, self.path))
        self._calls = calls_of(fs, concurrency)
        self._is_read_only = is_any(fs, READ_ONLY)
        self._is_cache = is_one(fs, CACHES)
        self.static = is_static(fs) if static is None else static
        """True if nothing changes while it is open."""
        self.spool_bytes = SPOOL_BYTES
        self._seen: Lru[str, Seen] = Lru(_MOST_SEEN)

    def with_static(self, static: bool) -> GenericStorage:
        """Return the same place with the statement that nothing changes in it, or that something may."""
        fs, path, url, concurrency, _ = self._given
        return GenericStorage(fs, path, url, concurrency, static)

    def with_filesystem(self, fs: AbstractFileSystem) -> GenericStorage:
        """Return the same place in another filesystem of the same kind."""
        return GenericStorage(fs, *self._given[1:])

    def __reduce__(self) -> tuple[type[GenericStorage], tuple[AbstractFileSystem, str, str | None, int, bool | None]]:
        return type(self), self._given

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GenericStorage) and (other.path, other.static, other.fs) == (self.path, self.static, self.fs)

    def __hash__(self) -> int:
        return hash((GenericStorage, self.path))

    def __repr__(self) -> str:
        return f"GenericStorage({self.url!r})"

    @property
    def url(self) -> str:
        return self._url

    @property
    def identity(self) -> str:
        """A text that identifies this place, which ``url`` does not: with what the filesystem was made of. Not to be shown."""
        own_store = id(self.fs) if isinstance(self.fs, MemoryFileSystem) else None
        place = f"{tokenize(type(self.fs), own_store, *self.fs.storage_args, **self.fs.storage_options)}/{self._base}"
        return f"static {place}" if self.static else place

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(static=self.static)

    def _full(self, key: str) -> str:
        return self._base + key

    def _directory(self, prefix: str) -> str:
        return self._full(prefix).rstrip("/") or self._base

    def _own(self, name: object) -> str:
        """Return the key of a listed name. Filesystems differ in whether names begin with ``/``."""
        full = str(self.fs._strip_protocol(stringify_path(name))).strip("/")
        root = self.path.strip("/")
        return full[len(root) + 1 :] if root else full

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        of_object: dict[tuple[str, int | None], list[int]] = {}
        for i, read in enumerate(reads):
            of_object.setdefault((read.key, read.most_nbytes), []).append(i)
        outcomes: list[ReadOutcome] = [ABSENT] * len(reads)

        async def read_object(numbers: Sequence[int]) -> None:
            together = [reads[i] for i in numbers]
            for i, outcome in zip(numbers, await self._read_object(together), strict=True):
                outcomes[i] = outcome

        await asyncio.gather(*(read_object(numbers) for numbers in of_object.values()))
        return outcomes

    async def _read_object(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        """Answer the reads of one object, which is looked at once for all of them."""
        generations = {read.generation for read in reads}
        (asked,) = generations if len(generations) == 1 else (None,)
        together = Read(reads[0].key, tuple(request for read in reads for request in read.ranges), asked, None, reads[0].most_nbytes)
        outcome = await self._read_one(together)
        if len(reads) == 1 or not isinstance(outcome, Found):
            return [outcome] * len(reads)
        outcomes: list[ReadOutcome] = []
        buffers = iter(outcome.buffers)
        for read in reads:
            mine = tuple(next(buffers) for _ in read.ranges)
            agreed = read.generation is None or agrees(read.generation, outcome.generation)
            outcomes.append(Found(read.generation or outcome.generation, outcome.nbytes, mine) if agreed else CHANGED)
        return outcomes

    async def _read_one(self, read: Read) -> ReadOutcome:
        outcome: ReadOutcome = CHANGED
        try:
            for _ in range(_ATTEMPTS + 1):  # one may have begun from what was true long ago
                known = self._seen.get(read.key)
                if known is not None and read.generation is not None and not known.may_be(read.generation):
                    known = None
                try:
                    outcome = await self._read_version(read, known)
                except ABSENT_ERRORS:
                    raise
                except Exception:
                    self._seen.pop(read.key)
                    if known is None or self.static:
                        raise
                    continue  # it may be shorter by now than it was
                if not isinstance(outcome, Changed) or read.generation is not None:
                    break
        except ABSENT_ERRORS as exc:
            return self._absence(read.key, exc)
        except Exception as exc:  # noqa: BLE001  # filesystems raise what they like; it is handed on as the outcome
            error = translated(exc, "reading", read.key, self.url)
            if error is not exc:
                error.__cause__ = exc
            return Failed(error)
        return outcome

    def _absence(self, key: str, exc: Exception) -> ReadOutcome:
        """Return the outcome of a read that ``exc`` says to be of no object."""
        self._seen.pop(key)
        if isinstance(exc, IsADirectoryError) and is_any(self.fs, _ON_DISK):
            return DIRECTORY
        if not self._is_referred(key):
            return ABSENT
        absent = self._refers_to_nothing(key)
        absent.__cause__ = exc
        return Failed(absent)

    async def _read_version(self, read: Read, known: Seen | None) -> ReadOutcome:
        """Read ranges of one version, as far as looks show. The first look is the ``known`` one, or is made before the read; the second is
        made after it. Where nothing changes there is no second look.
        """
        look = Look(None if known is None else known.nbytes, known is None, not self.static, read.most_nbytes)
        content = await self._calls.read(self._full(read.key), read.ranges, look)
        nbytes = content.nbytes
        before = known if content.before is None else Seen.of(content.before)
        assert before is not None  # if it was not known, it was looked at
        after = before if content.after is None else Seen.of(content.after)
        if not self._is_cache:
            self._seen.put(read.key, replace(after, nbytes=nbytes) if self.static else after)
        if before != after:
            return CHANGED
        found = after.version(nbytes)
        if read.generation is not None and not agrees(read.generation, found):
            return CHANGED
        for request, buffer in zip(read.ranges, content.buffers, strict=True):
            wanted = resolve(request, nbytes)
            if len(buffer) != wanted.end - wanted.start:
                raise StorageError(
                    f"reading {read.key!r} in {self.url}: the filesystem gave {len(buffer)} bytes for [{wanted.start}, {wanted.end}), and "
                    f"says that it has {nbytes}" + (": was it replaced, although it was opened with static=True?" * self.static)
                )
        return Found(read.generation or found, nbytes, tuple(memoryview(buffer) for buffer in content.buffers))

    async def _look(self, key: str, action: str = "looking up") -> Info | None:
        """Return the metadata of the object, ``None`` if there is no object."""
        try:
            info = await self._calls.info(self._full(key))
        except ABSENT_ERRORS:
            self._seen.pop(key)
            return None
        except Exception as exc:
            raise translated(exc, action, key, self.url) from exc
        if not self._is_cache:
            self._seen.put(key, Seen.of(info))
        return info

    async def _listed(self, key: str, entry: Info) -> ObjectInfo | None:
        """Return an object as a listing shows it; if that does not give the size, the object itself is looked at."""
        if size_in(entry) is None or is_one(self.fs, REFERENCES):
            found = await self.stat(key)
            return ObjectInfo(key, UNKNOWN_NBYTES) if found is None and self._is_referred(key) else found
        return await self._object_info(key, entry)

    def _is_referred(self, key: str) -> bool:
        """Return whether this is a set of references that has one for ``key``: nothing at its end is no absent object."""
        return is_one(self.fs, REFERENCES) and self._full(key) in object.__getattribute__(self.fs, "__dict__").get("references", {})

    async def _object_info(self, key: str, info: Info) -> ObjectInfo | None:
        nbytes = size_in(info)
        if nbytes is None:  # the filesystem does not know before it has read it
            found = await read_one(self, Read(key, (EVERYTHING,)))
            if not isinstance(found, Found):
                return None
            nbytes = found.nbytes
        return ObjectInfo(key, nbytes, None if self._is_cache else version_of(info, nbytes))

    async def stat(self, key: str) -> ObjectInfo | None:
        known = self._seen.get(key) if self.static else None
        if known is not None and known.nbytes is not None:
            return ObjectInfo(key, known.nbytes, None if known.trace is None else known.version(known.nbytes))
        info = await self._look(key)
        if info is None and self._is_referred(key):
            raise self._refers_to_nothing(key)
        return None if info is None else await self._object_info(key, info)

    def _refers_to_nothing(self, key: str) -> LeadsNowhere:
        return LeadsNowhere(f"{self.url} refers for {key!r} to what is not there: make it reachable again, or mend the reference")

    # -- writing -------------------------------------------------------------------------------------------------------

    def _must_be_writable(self, action: str, key: str) -> None:
        if self._is_read_only:
            raise read_only(action, key, self.url)
        if self.static:
            raise contradicts(action, key, self.url)

    async def _check_first(self, key: str, condition: Condition) -> None:
        if isinstance(condition, Unconditional):
            return
        if self.fs not in _warned:
            _warned[self.fs] = True
            warn_not_honoured(f"the filesystem {protocols_of(self.fs)[0]!r}", self.url)
        found = await self.stat(key)
        match condition:
            case IfAbsent():
                holds = found is None
            case IfGeneration(generation):
                holds = found is not None and agrees(generation, found.generation or unversioned(found.nbytes))
        if not holds:
            raise failed(key, self.url)

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        self._must_be_writable("writing", key)
        if not key:
            raise InvalidInput("an object needs a key that is not empty")
        path = self._full(key)
        await self._check_first(key, condition)
        if nbytes <= self.spool_bytes:
            data = await joined(body, nbytes, key)
            await self._store("writing", key, lambda: self._calls.call(path, "pipe_file", path, data))
        else:
            with tempfile.NamedTemporaryFile() as file:
                async for group in groups(body, nbytes, 1 << 20, key):
                    await asyncio.to_thread(file.writelines, group)
                file.flush()
                await self._store("writing", key, lambda: self._calls.call(path, "put_file", file.name, path))
        return await self._stored(key, nbytes)

    async def _store(self, action: str, key: str, store: Callable[[], Awaitable[object]]) -> None:
        """Store the object by ``store``; if the filesystem has directories, and that of the object is missing, make it."""
        for attempt in range(_ATTEMPTS):
            try:
                await store()
                return
            except (PermissionError, NotImplementedError, NotADirectoryError, IsADirectoryError) as exc:
                raise translated(exc, action, key, self.url, writes=True) from exc
            except Exception as exc:
                # That a directory is missing shows in many ways: FTP has nothing but a refusal. Another try is allowed for,
                # since who deletes the last object of a directory may remove it a moment after it was made.
                if attempt == _ATTEMPTS - 1 or is_one(self.fs, BUCKETS) or not await self._make_parent(key):
                    raise translated(exc, action, key, self.url, writes=True) from exc

    async def _make_parent(self, key: str) -> bool:
        parent = self._full(key).rpartition("/")[0]
        try:
            await self._calls.call(parent, "makedirs", parent, exist_ok=True)
        except (FileExistsError, FileNotFoundError):
            pass  # another client made it, or one above it, at the same time, and removes it by now
        except Exception:  # noqa: BLE001  # then the first error says more
            return False
        return bool(parent)

    async def _stored(self, key: str, nbytes: int) -> Generation:
        """Return the version that this write made, as far as the metadata show it: it must not be another writer's."""
        info = await self._look(key, "looking up what was written to")
        version = version_of(info, nbytes) if info is not None and size_in(info) == nbytes else None
        return version or unversioned(nbytes)

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        raise no_compose(key, self.url)

    async def copy(self, source: str, target: str) -> Generation | None:
        self._must_be_writable("copying to", target)
        for _ in range(_COPY_ATTEMPTS):
            before = await self._look(source)
            if before is None:
                return None
            nbytes = size_in(before)
            if source == target or nbytes is None or not await self._copy_file(source, target):
                found = await read_one(self, Read(source, (EVERYTHING,)))
                if isinstance(found, Found):
                    same = source == target
                    return found.generation if same else await self.write(target, found.buffers, found.nbytes, UNCONDITIONAL)
                continue
            after = await self._look(source)
            if after is not None and size_in(after) == nbytes and version_of(before, nbytes) == version_of(after, nbytes):
                return await self._stored(target, nbytes)
        raise StorageError(f"copying {source!r} to {target!r} in {self.url}: it is being replaced again and again. Copy it again later")

    async def _copy_file(self, source: str, target: str) -> bool:
        """Copy within the filesystem; return ``False`` if it cannot, or the object has gone."""

        async def copy() -> None:
            await self._calls.call(self._full(target), "cp_file", self._full(source), self._full(target))

        try:
            await self._store("copying to", target, copy)
        except (Unsupported, StorageError) as exc:
            if isinstance(exc, Unsupported) or await self._look(source) is None:
                return False
            raise
        return True

    async def rename_prefix(self, source: str, target: str) -> bool:
        return False

    # -- deleting ------------------------------------------------------------------------------------------------------

    async def delete(self, key: str, condition: Condition) -> bool:
        check_deletion(key, condition)
        self._must_be_writable("deleting", key)
        if await self._look(key) is None:
            return False
        if isinstance(condition, IfGeneration):
            await self._check_first(key, condition)
        existed = await self._remove(key)
        await self._prune(key.rpartition("/")[0])
        return existed

    async def _remove(self, key: str) -> bool:
        try:
            await self._calls.call(self._full(key), "rm_file", self._full(key))
        except ABSENT_ERRORS:
            return False
        except Exception as exc:
            if isinstance(exc, PermissionError) and await self._look(key) is None:
                return False  # how some systems refuse to unlink a directory
            raise translated(exc, "deleting", key, self.url, writes=True) from exc
        return True

    async def delete_many(self, keys: Sequence[str]) -> None:
        if not keys:
            return
        self._must_be_writable("deleting", keys[0])
        await asyncio.gather(*(self._remove(key) for key in keys))
        for directory in sorted({key.rpartition("/")[0] for key in keys}, reverse=True):
            await self._prune(directory)

    async def _prune(self, directory: str) -> None:
        """Remove ``directory`` and those above it, below the root, if they are empty."""
        if not is_one(self.fs, DIRECTORIES):
            return
        while directory:
            try:
                await self._calls.call(self._full(directory), "rmdir", self._full(directory))
            except Exception:  # noqa: BLE001  # not empty, as a rule; and an empty directory does no harm
                return
            directory = directory.rpartition("/")[0]

    # -- listing -------------------------------------------------------------------------------------------------------

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        directory = prefix.rpartition("/")[0]
        for key, entry in sorted((await self._find(directory)).items()):
            if key.startswith(prefix) and entry.get("type", "file") == "file":
                info = await self._listed(key, entry)
                if info is not None:
                    yield info

    async def _find(self, directory: str) -> dict[str, Info]:
        """Return everything below ``directory``, by key."""
        if not has_inherited_find(self.fs):
            path = self._directory(directory)
            try:
                found = await self._calls.call(path, "find", path, detail=True)
            except ABSENT_ERRORS:
                return {}
            except Exception as exc:
                raise translated(exc, "listing", directory, self.url) from exc
            return {self._own(name): entry for name, entry in found.items()}
        # fsspec's own walk leaves out what it is not allowed to list, below the first level whatever its options say.
        below: dict[str, Info] = {}
        level = [directory]
        while level:
            listings = await asyncio.gather(*(self._entries(prefix + "/" if prefix else "") for prefix in level))
            level = []
            for key, entry in (item for listing in listings for item in listing.items()):
                if entry.get("type") == "directory":
                    level.append(key)
                else:
                    below[key] = entry
        return below

    async def _entries(self, prefix: str) -> dict[str, Info]:
        """Return the direct children below ``prefix``, by key; the keys of directories have no ``/`` at the end either."""
        path = self._directory(prefix)
        try:
            entries = await self._calls.call(path, "ls", path, detail=True)
        except ABSENT_ERRORS:
            return {}
        except Exception as exc:
            raise translated(exc, "listing", prefix, self.url) from exc
        keys = ((self._own(entry["name"]), entry) for entry in entries)
        return {key: entry for key, entry in keys if key.startswith(prefix) and key != prefix}  # a file is listed as its own content

    async def list_dir(self, prefix: str) -> DirListing:
        check_directory(prefix)
        objects: list[ObjectInfo] = []
        prefixes: list[str] = []
        for key, entry in sorted((await self._entries(prefix)).items()):
            if entry.get("type") == "directory":
                prefixes.append(key + "/")
            elif (info := await self._listed(key, entry)) is not None:
                objects.append(info)
        return DirListing(tuple(objects), tuple(prefixes))


def described(fs: AbstractFileSystem, path: str) -> str:
    """Return a URL of ``path`` in ``fs``, as a chain if it reads through another filesystem."""
    attributes: dict[str, Any] = object.__getattribute__(fs, "__dict__")
    protocol = protocols_of(fs)[0]
    if is_one(fs, CACHES):
        return f"{protocol}::{described(attributes['fs'], path)}"
    url = str(fs.unstrip_protocol(path))
    if "://" not in url:
        url = f"{protocol}://{path}"
    file: Any = attributes.get("of")
    if is_one(fs, ARCHIVES) and isinstance(file, OpenFile):
        return f"{url}::{described(file.fs, str(file.path))}"
    return url
