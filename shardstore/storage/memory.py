"""Objects in fsspec's process-wide memory filesystem, the one behind ``memory://``.

Readers and writers that use fsspec directly see the same objects. A generation is a token stamped on the file object that fsspec
stores; replacing that object, or changing its bytes, makes a new generation.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading
from collections.abc import AsyncIterator, Sequence

from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from shardstore.errors import InvalidInput, StorageError
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation, IfAbsent, IfGeneration
from shardstore.model.ranges import BytesLike, CopiedRange, NewBytes, Segment, resolve
from shardstore.storage.base import (
    ABSENT,
    CHANGED,
    GUARD_CHANGED,
    Abilities,
    ConditionFailed,
    DirListing,
    Failed,
    Found,
    ObjectInfo,
    Read,
    ReadOutcome,
    check_directory,
    direct_children,
)
from shardstore.storage.requests.writes import byte_view, check_deletion, joined

__all__ = ["MemoryStorage"]

_STAMP = "_shardstore_stamp"

# Held for dictionary operations only, never across an await: with it, "check, then replace" is one step.
_lock = threading.Lock()
# Tokens must differ between processes too, since a generation may travel in a pickle.
_process_token = secrets.token_hex(6)
_serial = itertools.count(1)


def _renew_after_fork() -> None:
    global _lock, _process_token
    _lock = threading.Lock()
    _process_token = secrets.token_hex(6)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_after_fork)


def _generation(file: MemoryFile, data: bytes) -> Generation:
    """Return the version of ``file``, of which ``data`` is ``getvalue()``; call with the lock held. A foreign object gets its token when it
    is first seen.

    The bytes are kept with the token: while anything refers to them, ``BytesIO`` copies them before it writes in place. So they are
    rarely compared: the same object is the same content.
    """
    stamp: tuple[Generation, bytes] | None = getattr(file, _STAMP, None)
    if stamp is None or stamp[1] != data:  # of one object that is known at once
        stamp = (Generation(f"{_process_token}-{next(_serial)}-{len(data)}", file.modified.timestamp()), data)
        setattr(file, _STAMP, stamp)
    return stamp[0]


class MemoryStorage(Abilities):
    """Objects below ``path`` of ``memory://``. Every operation is atomic; nothing survives the process."""

    kind = "memory"

    def __init__(self, path: str = "") -> None:
        self.path: str = MemoryFileSystem._strip_protocol(path)
        self._fs = MemoryFileSystem()
        self._files: dict[str, MemoryFile] = MemoryFileSystem.store

    def __reduce__(self) -> tuple[type[MemoryStorage], tuple[str]]:
        return type(self), (self.path,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemoryStorage) and other.path == self.path

    def __hash__(self) -> int:
        return hash((MemoryStorage, self.path))

    def __repr__(self) -> str:
        return f"MemoryStorage({self.path!r})"

    @property
    def url(self) -> str:
        return f"memory:/{self.path}" if self.path else "memory://"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            pinned_reads=True,
            create_if_absent=True,
            compare_and_swap=True,
            conditional_delete=True,
            compose=True,
            guarded_reads=True,
            unique_versions=True,
            exactly_once=True,
            across_machines=True,  # only this process can reach it
        )

    def _snapshot(self, key: str) -> tuple[Generation, bytes] | None:
        """Return one version and its bytes, which are immutable: ``getvalue`` shares them, and a foreign write in place unshares them."""
        with _lock:
            file = self._files.get(f"{self.path}/{key}")
            if file is None:
                return None
            data = file.getvalue()
            return _generation(file, data), data

    def _read_one(self, read: Read) -> ReadOutcome:
        found = self._snapshot(read.key)
        if read.guard is not None:
            other = self._snapshot(read.guard.key)
            if other is None or other[0] != read.guard.generation:
                return GUARD_CHANGED
        if found is None:
            return ABSENT
        generation, data = found
        if read.generation is not None and read.generation != generation:
            return CHANGED
        view = memoryview(data)
        ranges = [resolve(request, len(data)) for request in read.ranges]
        return Found(generation, len(data), tuple(view[r.start : r.end] for r in ranges))

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        outcomes: list[ReadOutcome] = []
        for read in reads:
            try:
                outcomes.append(self._read_one(read))
            except (MemoryError, ValueError) as exc:  # a foreign file object that was closed
                error = StorageError(f"{read.key!r} in {self.url} cannot be read: {exc}")
                error.__cause__ = exc
                outcomes.append(Failed(error))
        return outcomes

    def _check(self, key: str, condition: Condition) -> None:
        """Raise ``ConditionFailed`` if ``condition`` does not hold; call with the lock held."""
        file = self._files.get(f"{self.path}/{key}")
        if isinstance(condition, IfAbsent) and file is not None:
            raise ConditionFailed(f"{key!r} exists in {self.url}")
        if isinstance(condition, IfGeneration) and (file is None or _generation(file, file.getvalue()) != condition.generation):
            raise ConditionFailed(f"{key!r} in {self.url} is not the version that was asked for")

    def _replace(self, key: str, data: bytes, condition: Condition) -> Generation:
        path = f"{self.path}/{key}"
        file = MemoryFile(self._fs, path, data)
        with _lock:
            self._check(key, condition)
            generation = _generation(file, file.getvalue())
            self._place(path, file)
        return generation

    def _place(self, path: str, file: MemoryFile) -> None:
        """Put ``file`` at ``path``; call with the lock held."""
        self._files[path] = file
        # fsspec keeps empty directories that someone made in a list; a name in both would be a directory to it.
        while path in MemoryFileSystem.pseudo_dirs:
            MemoryFileSystem.pseudo_dirs.remove(path)

    async def write(self, key: str, body: Sequence[BytesLike] | AsyncIterator[BytesLike], nbytes: int, condition: Condition) -> Generation:
        if not key:
            raise InvalidInput("an object needs a key that is not empty")
        return self._replace(key, await joined(body, nbytes, key), condition)

    async def compose(self, key: str, source: Generation, segments: Sequence[Segment], condition: Condition) -> Generation:
        found = self._snapshot(key)
        if found is None or found[0] != source:
            raise ConditionFailed(f"{key!r} in {self.url} is not the version to copy from")
        old = memoryview(found[1])
        pieces: list[memoryview] = []
        for segment in segments:
            if isinstance(segment, CopiedRange):
                if segment.offset + segment.nbytes > len(old):
                    raise InvalidInput(
                        f"bytes [{segment.offset}, {segment.offset + segment.nbytes}) of {key!r} cannot be copied: it has {len(old)}"
                    )
                pieces.append(old[segment.offset : segment.offset + segment.nbytes])
            else:
                pieces.append(byte_view(segment.data if isinstance(segment, NewBytes) else bytes(segment.nbytes)))
        return self._replace(key, b"".join(pieces), condition)

    async def copy(self, source: str, target: str) -> Generation | None:
        found = self._snapshot(source)
        return None if found is None else self._replace(target, found[1], UNCONDITIONAL)

    async def rename_prefix(self, source: str, target: str) -> bool:
        if target.startswith(f"{source}/"):
            raise InvalidInput(f"what lies below {source!r} cannot be moved to {target!r}, inside of itself")
        old, new = f"{self.path}/{source}/", f"{self.path}/{target}"
        with _lock:
            if any(path == new or path.startswith(f"{new}/") for path in self._files):
                raise ConditionFailed(f"{target!r} exists in {self.url}")
            moving = [path for path in self._files if path.startswith(old)]
            for path in moving:
                file = self._files.pop(path)
                file.path = f"{new}/{path[len(old) :]}"  # where committing it would put it
                self._place(file.path, file)
        return bool(moving)

    async def delete(self, key: str, condition: Condition) -> bool:
        check_deletion(key, condition)
        with _lock:
            if f"{self.path}/{key}" not in self._files:
                return False
            self._check(key, condition)
            del self._files[f"{self.path}/{key}"]
        return True

    async def delete_many(self, keys: Sequence[str]) -> None:
        with _lock:
            for key in keys:
                self._files.pop(f"{self.path}/{key}", None)

    async def stat(self, key: str) -> ObjectInfo | None:
        found = self._snapshot(key)
        return None if found is None else ObjectInfo(key, len(found[1]), found[0])

    def _keys(self, prefix: str) -> list[str]:
        start = f"{self.path}/{prefix}"
        cut = len(self.path) + 1
        return sorted(path[cut:] for path in tuple(self._files) if path.startswith(start) and len(path) > cut)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        for key in self._keys(prefix):
            info = await self.stat(key)
            if info is not None:
                yield info

    async def list_dir(self, prefix: str) -> DirListing:
        check_directory(prefix)
        keys, prefixes = direct_children(self._keys(prefix), prefix)
        infos = [await self.stat(key) for key in keys]
        return DirListing(tuple(info for info in infos if info is not None), prefixes)
