"""The ends of a store: links and mounts in the middle of it, behind which lies what is not its own.

One rule holds for all that erases, replaces or moves stored objects by command (``rm``, ``mv``, ``cp``, packing, compaction, repair): what
is reached through a link to a directory, below the root of the store, is neither erased nor rewritten, moved or added to. A link in a
place that is erased is cut. What is mounted in a place is not erased with it. Both are refused with an error that names the link or the
mount. Ordinary reads and writes of arrays follow links: users put a part of a store on another disk by one.

Only local files have either; elsewhere there is nothing to ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from shardstore.errors import Conflict
from shardstore.model.redaction import redacted
from shardstore.storage.abilities import FileTree
from shardstore.storage.base import Storage
from shardstore.storage.local.storage import LocalFiles

_NAMED = 3


async def links_above(storage: Storage, keys: Sequence[str]) -> list[str | None]:
    """Return the path of the link in the middle of the store through which each key is reached; ``None`` where it is the store's own."""
    local, names = await _inside(storage, keys)
    if local is None:
        return [None] * len(keys)
    found = iter(await local.links_above(list(chain.from_iterable(names))))
    links = [[next(found) for _ in some] for some in names]
    return [next((link for link in some if link is not None), None) for some in links]


def is_reached_through(link: str, what: str, storage: Storage) -> Conflict:
    """Return the error to raise, or to report, for what is reached through a link."""
    place = f"{what!r} in {redacted(storage.url)}" if what else redacted(storage.url)
    return Conflict(
        f"{place} is reached through the link {link} in the middle of a store: what that leads to is neither "
        "erased nor rewritten, moved or added to. Name the place that it leads to, or put that in its place. Nothing was changed"
    )


async def check_own(storage: Storage, path: str) -> None:
    """Raise ``Conflict`` if ``path``, a key, a node or ``""`` for the root, is reached through a link; one of its own name is none."""
    (link,) = await links_above(storage, [path])
    if link is not None:
        raise is_reached_through(link, path, storage)


async def check_no_links(storage: Storage, path: str) -> None:
    """Raise ``Conflict`` if a link to a directory, or to nowhere, lies at ``path`` or below: a place that is not erased first."""
    local, ((*names,),) = await _inside(storage, [path])
    if local and (found := [link for name in names for link in await local.linked_directories(f"{name}/" if name else "")]):
        raise Conflict(
            f"at {redacted(storage.url)} {_some_of(found)} leads elsewhere: nothing is written or removed through a link to a directory. "
            "Name what it leads to as the target, or remove the link. Nothing was changed"
        )


async def check_no_mounts(storage: Storage, path: str) -> None:
    """Raise ``Conflict`` if something is mounted below ``path``, which is to be erased, replaced or moved as a whole."""
    local, ((*names,),) = await _inside(storage, [path])
    if local and (found := [point for name in names for point in await local.mounts_below(f"{name}/" if name else "")]):
        raise Conflict(
            f"in {redacted(storage.url)} another directory or file system is mounted at {_some_of(found)}: what lies there is not erased "
            "or moved with what is around it. Unmount it, or name a place without it. Nothing was changed"
        )


def _some_of(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_NAMED])) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


async def _inside(storage: Storage, names: Sequence[str]) -> tuple[LocalFiles | None, list[tuple[str, ...]]]:
    """Return the local files, ``None`` where there are none, and what each name is in them: the documents of a hierarchy of the 2022
    draft lie apart from its data.
    """
    local, tree = storage.ability(LocalFiles), storage.ability(FileTree)
    if local is None or tree is None:
        return None, [(name,) for name in names]
    return local, [await tree.stored_names(name) for name in names]
