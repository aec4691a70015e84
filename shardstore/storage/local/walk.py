"""Local directories as the prefixes of an object store: listed, with one directory per level in memory, and renamed."""

from __future__ import annotations

import errno
import os
import stat as stat_modes
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from shardstore.storage.base import ConditionFailed, DirListing, ObjectInfo
from shardstore.storage.local.durability import kept_names
from shardstore.storage.local.files import fsync_directory, special_file
from shardstore.storage.local.inside import Inside
from shardstore.storage.local.links import check_links_can_move
from shardstore.storage.local.names import is_reserved
from shardstore.storage.local.rules import PARENT_ATTEMPTS, WriteRules
from shardstore.storage.local.versions import listed_generation

# What rename(2) answers where a directory that is not empty, or something that is no directory, is at the target.
_IN_THE_WAY = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


def _names(directory: str, name_prefix: str, inside: Inside | None) -> list[str]:
    """Return the names that start with ``name_prefix``, sorted as their keys are; a directory's name ends with ``/``. Links that do not
    lead to anything ``inside`` are left out.

    Nothing more is kept of each: there may be a million.
    """
    try:
        with os.scandir(directory) as found:
            names = [
                entry.name + "/" if entry.is_dir() else entry.name
                for entry in found
                if entry.name.startswith(name_prefix) and not is_reserved(entry.name) and _is_shown(entry, inside)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    names.sort()  # "a.b" comes before "a/c": the slash takes part in the order of keys
    return names


def _is_shown(entry: os.DirEntry[str], inside: Inside | None) -> bool:
    return inside is None or not entry.is_symlink() or (inside.has(entry.path) and os.path.exists(entry.path))


def _object(key: str, path: str) -> ObjectInfo | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:  # deleted since then, or a link to nowhere
        return None
    return ObjectInfo(key, status.st_size, listed_generation(status, path)) if stat_modes.S_ISREG(status.st_mode) else None


def walk(root: str, prefix: str, inside: Inside | None = None) -> Iterator[ObjectInfo]:
    """Yield every object below ``root`` whose key starts with ``prefix``, in key order; links are followed, loops are not. Links to what
    does not lie ``inside`` are left out, and access to a prefix behind one is denied.
    """
    above, slash, name_prefix = prefix.rpartition("/")
    directory = os.path.join(root, above) if above else root
    if inside is not None:
        inside.check(directory, prefix)
    yield from _walk(directory, above + slash, name_prefix, frozenset(), inside)


def _walk(
    directory: str, key_prefix: str, name_prefix: str, ancestors: frozenset[tuple[int, int]], inside: Inside | None
) -> Iterator[ObjectInfo]:
    for name in _names(directory, name_prefix, inside):
        path = os.path.join(directory, name)
        if not name.endswith("/"):
            info = _object(key_prefix + name, path)
            if info is not None:
                yield info
            continue
        path = path[:-1]
        below = ancestors
        if os.path.islink(path):
            # Only a link can lead back up, and then to where it was before.
            with suppress(OSError):
                status = os.stat(path)
                identity = (status.st_dev, status.st_ino)
                if identity in ancestors:
                    continue
                below = ancestors | {identity}
        yield from _walk(path, key_prefix + name, "", below, inside)


LINK_TO_NOWHERE = "a link to what is not there"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Something in the place of an object. ``what`` is said of it in words, as ``"a named pipe"``."""

    key: str
    what: str


def obstacles(root: str, prefix: str, is_key: Callable[[str], bool], above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Obstacle]:
    """Yield what lies below ``prefix`` (``""``, or ending with ``/``) and is no object: links to what is not there, special files, and
    directories at keys of which ``is_key`` is true. Links to directories are followed; ``above`` are the directories that this has been
    called from through links.
    """
    try:
        with os.scandir(os.path.join(root, prefix)) as found:
            entries = [entry for entry in found if not is_reserved(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        below = above
        if entry.is_symlink():
            try:
                status = entry.stat()
            except OSError:  # to nowhere, in a circle, or to where this user may not look
                yield Obstacle(prefix + entry.name, LINK_TO_NOWHERE)
                continue
            identity = (status.st_dev, status.st_ino)
            if identity in above:
                continue
            below = above | {identity}
        if entry.is_dir():
            if is_key(prefix + entry.name):
                yield Obstacle(prefix + entry.name, "a directory")
            yield from obstacles(root, f"{prefix}{entry.name}/", is_key, below)
        elif not entry.is_file():
            with suppress(FileNotFoundError):  # removed since then
                if (what := special_file(entry.stat())) is not None:
                    yield Obstacle(prefix + entry.name, what)


def remove_special(rules: WriteRules, prefix: str) -> None:
    """Remove named pipes, sockets and devices below ``prefix`` (``""``, or ending with ``/``), before the objects there are erased."""
    for one in list(obstacles(rules.root, prefix, lambda key: False)):
        if one.what != LINK_TO_NOWHERE:
            path = os.path.join(rules.root, one.key)
            with suppress(FileNotFoundError):
                os.unlink(path)
            rules.prune(os.path.dirname(path))


def list_directory(root: str, prefix: str, inside: Inside | None = None) -> DirListing:
    """Return the direct children of ``prefix``. Directories that hold nothing are shown too: looking into each would cost more. Links to
    what does not lie ``inside`` are left out, and access to a prefix behind one is denied.
    """
    objects: list[ObjectInfo] = []
    prefixes: list[str] = []
    directory = os.path.join(root, prefix) if prefix else root
    if inside is not None:
        inside.check(directory, prefix)
    for name in _names(directory, "", inside):
        if name.endswith("/"):
            prefixes.append(prefix + name)
        else:
            info = _object(prefix + name, os.path.join(directory, name))
            if info is not None:
                objects.append(info)
    return DirListing(tuple(objects), tuple(prefixes))


def rename_directory(source: str, target: str, rules: WriteRules) -> bool:
    """Rename the directory ``source`` to ``target``; return ``False``, with nothing changed, if that takes more than a rename.

    The locks of single objects are not taken. A writer at work below ``source`` finds its temporary file gone and fails, with nothing
    stored. Its hidden files move along, and disturb no process.

    Raises:
        ConditionFailed: there is an object or a hidden file at ``target`` or below it.
        Conflict: a link in it would lead elsewhere from its new place.
    """
    # A link would be moved, not what it leads to.
    if os.path.islink(source) or not os.path.isdir(source):
        return False
    check_links_can_move(source, target)
    if not _remove_empty(target, rules) and os.path.lexists(target):
        raise ConditionFailed(f"there is something at {target} already")
    parent = os.path.dirname(target)
    for attempt in range(PARENT_ATTEMPTS):
        rules.make_directory(parent)
        try:
            os.rename(source, target)
            break
        except FileNotFoundError:  # the source is gone, or the new parents were empty and another process removed them
            if os.path.isdir(source) and attempt < PARENT_ATTEMPTS - 1:
                continue
            rules.prune(parent)
            return False
        except OSError as exc:
            rules.prune(parent)
            if exc.errno == errno.EXDEV:  # another file system is mounted in between
                return False
            if exc.errno in _IN_THE_WAY:
                raise ConditionFailed(f"another writer was faster: there is something at {target} now") from exc
            raise
    if rules.fsync:
        for directory in {parent, os.path.dirname(source)}:
            fsync_directory(directory)
        kept_names.flush_above(parent, rules.status)
    rules.prune(os.path.dirname(source))
    return True


def _remove_empty(directory: str, rules: WriteRules) -> bool:
    """Remove a directory if it holds nothing but empty directories; return whether it was removed."""
    if os.path.islink(directory):
        return False
    try:
        with os.scandir(directory) as entries:
            below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # not there, or no directory
        return False
    return all(_remove_empty(path, rules) for path in below) and rules.remove_empty(directory)
