"""Listing local directories as an object store would list keys, with one directory in memory a level."""

from __future__ import annotations

import os
import stat as stat_modes
from collections.abc import Iterator
from contextlib import suppress

from shardstore.storage.base import DirListing, ObjectInfo
from shardstore.storage.local_files import generation_of, is_reserved, is_stale


def _entries(directory: str, name_prefix: str) -> list[tuple[str, os.DirEntry[str]]]:
    """The entries whose names start with ``name_prefix``, sorted as their keys are; a directory's name ends with ``/``."""
    try:
        with os.scandir(directory) as found:
            entries = [
                (entry.name + "/" if entry.is_dir() else entry.name, entry)
                for entry in found
                if entry.name.startswith(name_prefix) and not is_reserved(entry.name)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    # "a.b" comes before "a/c": the slash takes part in the order of keys.
    entries.sort(key=lambda pair: pair[0])
    return entries


def _object(key: str, entry: os.DirEntry[str]) -> ObjectInfo | None:
    try:
        status = entry.stat()
    except FileNotFoundError:  # deleted meanwhile, or a link to nowhere
        return None
    return ObjectInfo(key, status.st_size, generation_of(status)) if stat_modes.S_ISREG(status.st_mode) else None


def walk(root: str, prefix: str) -> Iterator[ObjectInfo]:
    """Every object below ``root`` whose key starts with ``prefix``, in key order; links are followed, loops are not."""
    above, slash, name_prefix = prefix.rpartition("/")
    yield from _walk(os.path.join(root, above) if above else root, above + slash, name_prefix, frozenset())


def _walk(directory: str, key_prefix: str, name_prefix: str, ancestors: frozenset[tuple[int, int]]) -> Iterator[ObjectInfo]:
    for name, entry in _entries(directory, name_prefix):
        if not name.endswith("/"):
            info = _object(key_prefix + name, entry)
            if info is not None:
                yield info
            continue
        below = ancestors
        if entry.is_symlink():
            # Only a link can lead back up, and then to where it was before.
            with suppress(OSError):
                status = entry.stat()
                identity = (status.st_dev, status.st_ino)
                if identity in ancestors:
                    continue
                below = ancestors | {identity}
        yield from _walk(entry.path, key_prefix + name, "", below)


def list_directory(root: str, prefix: str) -> DirListing:
    """The direct children of ``prefix``. Directories that hold nothing are shown too: looking into each would cost more."""
    objects: list[ObjectInfo] = []
    prefixes: list[str] = []
    for name, entry in _entries(os.path.join(root, prefix) if prefix else root, ""):
        if name.endswith("/"):
            prefixes.append(prefix + name)
        else:
            info = _object(prefix + name, entry)
            if info is not None:
                objects.append(info)
    return DirListing(tuple(objects), tuple(prefixes))


def sweep(root: str, older_than_seconds: float) -> int:
    """Remove the temporary files that dead writers left; the number of them."""
    removed = 0
    for directory, _, names in os.walk(root):
        for name in names:
            if not is_reserved(name):
                continue
            path = os.path.join(directory, name)
            with suppress(FileNotFoundError):
                if is_stale(name, os.stat(path), older_than_seconds):
                    os.unlink(path)
                    removed += 1
    return removed
