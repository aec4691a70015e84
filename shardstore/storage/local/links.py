"""Links in the middle of a local store: to directories or to nowhere, below its root or below that of a store that it lies in.

What they lead to is no part of the store. Reads and writes follow them; what erases or moves a place cuts them, or is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from shardstore.errors import Conflict
from shardstore.storage.local.rules import WriteRules

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
    """Check that no link at any depth below the directory ``source`` leads elsewhere when that is renamed to ``target``.

    Raises:
        Conflict: one does.
    """
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
