"""Local directories as the prefixes of an object store: listed, with one directory per level in memory, and renamed; and the links in them.

Links in the middle of a store lead to directories or to nowhere, below its root or below that of a store that it lies in. What they lead to
is no part of the store. Reads and writes follow them; what erases or moves a place cuts them, or is refused. For readers who are not to see
what a link leads to elsewhere (``Inside``), what lies outside is denied, and not absent: a chunk whose directory is a link to another disk
would be read as the fill value.
"""

from __future__ import annotations

import errno
import os
import stat as stat_modes
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from shardstore.errors import LEADS_OUTSIDE, AccessDenied, Conflict
from shardstore.storage.base import ConditionFailed, DirListing, ObjectInfo
from shardstore.storage.local.files import fsync_directory, is_reserved, special_file
from shardstore.storage.local.rules import PARENT_ATTEMPTS, WriteRules, kept_names
from shardstore.storage.local.versions import listed_generation


class Inside:
    """The real place of a directory. The directory itself may be a link, and lead elsewhere later."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._start = self._real_start()

    def _real_start(self) -> str:
        return os.path.join(os.path.realpath(self._root), "")

    @property
    def start(self) -> str:
        """The real path as it was last seen, with a slash at its end."""
        return self._start

    def has(self, path: str) -> bool:
        """Return whether a path leads to a place in the directory, or to the directory itself, whether anything is there or not."""
        return self._has_real(os.path.realpath(path))

    def check(self, path: str, key: str) -> None:
        """Raise ``AccessDenied`` if a path leads to a place outside."""
        if not self.has(path):
            raise outside(key)

    def check_open(self, fd: int, path: str, key: str) -> None:
        """Raise ``AccessDenied`` if an open file lies outside. ``path`` is how it was opened; links on it may have been changed since."""
        try:
            real = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # not Linux, or without /proc
            real = os.path.realpath(path)
        if not self._has_real(real):
            raise outside(key)

    def _has_real(self, real: str) -> bool:
        real = os.path.join(real, "")
        if not real.startswith(self._start):
            self._start = self._real_start()
        return real.startswith(self._start)


def outside(key: str) -> AccessDenied:
    """Return the error of a key that does not lie in the directory."""
    error = AccessDenied(
        f"{key!r} is, or lies behind, a link that leads out of the store, and such links are not followed here: allow them by "
        "follow_links=True (serve --follow-links) if you trust the author of the store"
    )
    error.code = LEADS_OUTSIDE
    return error


# -- links -------------------------------------------------------------------------------------------------------------


_DOCUMENTS = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")


def _links(top: str) -> Iterator[str]:
    """Yield the paths of all links below ``top``; they are not followed."""
    waiting = [top]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        yield entry.path
                    elif entry.is_dir():
                        waiting.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):  # removed since then, or never there
            continue


def _leads_to_file(link: str) -> bool:
    """Return whether a link is that of an object. It is replaced and removed itself, as any object is."""
    return os.path.isfile(link)


def linked_directories(root: str, prefix: str = "") -> list[str]:
    """Return the keys of links to directories, or to nowhere, at or below ``prefix`` (``""``, or ending with ``/``), in key order. The
    root itself may be a link. Their targets are not searched.
    """
    top = os.path.join(root, prefix.rstrip("/")) if prefix else root
    if prefix and os.path.islink(top):
        return [] if _leads_to_file(top) else [prefix.rstrip("/")]
    return sorted(os.path.relpath(link, root).replace(os.sep, "/") for link in _links(top) if not _leads_to_file(link))


def cut_links(rules: WriteRules, prefix: str) -> None:
    """Remove the links to directories, or to nowhere, at or below ``prefix`` (``""``, or ending with ``/``); their targets stay.

    Objects are found through links as well, but must not be erased through them.
    """
    for key in linked_directories(rules.root, prefix):
        os.unlink(os.path.join(rules.root, key))
        if key != prefix.rstrip("/"):
            rules.prune(os.path.dirname(os.path.join(rules.root, key)))


def links_above(root: str, paths: Sequence[str | None]) -> list[str | None]:
    """Return the path of the first link on the way to each of ``paths``, which lie at or below ``root``; ``None`` where there is none.

    A link at the end of the way is none on it. One at or above the root counts if a directory above it holds a Zarr document: then the
    root lies in the middle of another store.
    """
    known = {root: _link_in_a_store(root)}

    def first(directory: str) -> str | None:
        if directory not in known:
            above = first(os.path.dirname(directory))
            known[directory] = directory if above is None and os.path.islink(directory) else above
        return known[directory]

    return [None if path is None else first(path if path == root else os.path.dirname(path)) for path in paths]


def _link_in_a_store(root: str) -> str | None:
    """Return the first link among ``root`` and the directories above it that lies below a Zarr document."""
    above = os.path.dirname(root)
    if above == root:
        return None
    if (link := _link_in_a_store(above)) is not None or not os.path.islink(root):
        return link
    return root if _lies_in_a_store(above) else None


def _lies_in_a_store(directory: str) -> bool:
    if any(os.path.exists(os.path.join(directory, name)) for name in _DOCUMENTS):
        return True
    above = os.path.dirname(directory)
    return above != directory and _lies_in_a_store(above)


def check_links_can_move(source: str, target: str) -> None:
    """Raise ``Conflict`` if a link at any depth below the directory ``source`` leads elsewhere when that is renamed to ``target``."""
    here = os.path.realpath(source)
    there = os.path.join(os.path.realpath(os.path.dirname(target)), os.path.basename(target))
    for link in _links(here):
        text = os.readlink(link)
        before = os.path.normpath(os.path.join(os.path.dirname(link), text))
        if os.path.isabs(text):
            stays = not (_is_in(before, source) or _is_in(os.path.realpath(text), here))
        else:
            after = os.path.normpath(os.path.join(os.path.dirname(there + link[len(here) :]), text))
            stays = after == (there + before[len(here) :] if _is_in(before, here) else before)
        if not stays:
            raise Conflict(
                f"{source} cannot be moved: the link {link} in it, to {text!r}, would lead elsewhere from its new place. Replace it by an "
                "absolute link to a place that is not moved, or by what it leads to. Nothing was changed"
            )


def _is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + os.sep)


# -- listings ----------------------------------------------------------------------------------------------------------


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
