"""Copy, move and remove whole nodes by URL, and what has to be checked before that."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from shardstore._sync import run_sync
from shardstore.adapters.store_paths import StorePath
from shardstore.engine.actions import ERASE
from shardstore.engine.metadata.hierarchy import Node
from shardstore.engine.moving import copy_nodes, move_between
from shardstore.errors import InvalidInput, NotFound
from shardstore.format.store_keys import ancestors, join, metadata_path
from shardstore.maintenance.survey.run import V2_DOCUMENTS
from shardstore.presented.flavours import Presented
from shardstore.storage.base import LeadsNowhere
from shardstore.storage.boundaries import check_no_links, check_no_mounts, check_own

Progress = Callable[[int, int], None]
"""Called with the number of objects and of bytes that have been copied."""


# -- copying and moving ------------------------------------------------------------------------------------------------


def copy(source: StorePath, target: StorePath, *, overwrite: bool, progress: Progress) -> int:
    """Copy a node with all that is in it, as it is stored; return the number of objects.

    Raises as ``shardstore.engine.moving.copy_nodes``, and:
        ReadOnly: the target is in a snapshot.
        InvalidInput: it would overwrite a directory that is no node.
    """
    target.check_changeable("copying to")
    return _transfer(copy_nodes, source, target, overwrite, progress)


def move(source: StorePath, target: StorePath, *, overwrite: bool, progress: Progress) -> int:
    """Move a node with all that is in it; return how many objects were copied for it, or 1 if one rename did it.

    Raises as ``shardstore.engine.moving.move_between``, and as ``copy``.
    """
    source.check_changeable("moving")
    target.check_changeable("moving to")
    return _transfer(move_between, source, target, overwrite, progress)


def _transfer(
    function: Callable[..., Coroutine[Any, Any, int]], source: StorePath, target: StorePath, overwrite: bool, progress: Progress
) -> int:
    if overwrite:
        run_sync(_check_overwritable(target))
    places = source.engine.canonical, source.path, target.engine.canonical, target.path
    return run_sync(function(*places, overwrite=overwrite, progress=progress))


async def _check_overwritable(target: StorePath) -> None:
    """Raise ``InvalidInput`` if the target is a directory that is no node, or a whole bucket: these have to be removed by name."""
    engine, path = target.engine, target.path
    with suppress(LeadsNowhere):  # a link to nowhere is cut
        if await engine.hierarchy.node(path, fresh=True) is not None or (path and await engine.size(path) is not None):
            return
        if await _has_v2_document(engine, path):
            return
        async for _ in engine.storage.list(join(path, "")):
            raise InvalidInput(
                f"{target} is no Zarr node, and --overwrite would erase all that is in it: name the new node, such as "
                f"{target}/NAME, or remove the directory first by shardstore rm -r"
            )


def stale_groups(target: StorePath) -> list[str]:
    """Return the URLs of the groups above ``target`` whose consolidated metadata is stale."""
    groups = run_sync(target.engine.stale_consolidated(target.path))
    return [target.shown(group) for group in groups]


def missing_group(target: StorePath) -> str | None:
    """Return the URL of the directory that ``target`` is in, if it lies in a store and that is not a group; ``None`` otherwise.

    A node is found from the root of its store only if each directory in between is a group.
    """
    parent = target.path.rpartition("/")[0]
    is_missing = target.has_root and target.path and not run_sync(target.engine.is_node(parent))
    return target.shown(parent) if is_missing else None


# -- removing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Removal:
    """The things that would be removed: ``what`` in words, and how much."""

    what: str
    number: int
    nbytes: int
    noun: Literal["key", "object"]
    """The unit of ``number``."""
    is_key: bool = False
    """True if it is one key; otherwise everything below a prefix."""
    needs_recursive: bool = True
    needs_consent: bool = True
    """True if the user has to agree first."""


def removal(target: StorePath) -> Removal:
    """Return what the removal of ``target`` would remove.

    Raises:
        InvalidInput: it is the metadata of a node, a whole bucket, or nothing of Zarr.
        NotFound: there is nothing.
        Conflict: it lies behind a link, or something is mounted in it.
    """
    found = run_sync(_removal(target))
    if not found.number:
        raise NotFound(f"there is nothing at {target} to remove")
    return found


def remove(target: StorePath, found: Removal) -> None:
    """Remove what ``removal`` has found."""
    engine = target.engine
    run_sync(engine.update((target.path, ERASE)) if found.is_key else engine.erase_prefix(join(target.path, "")))


async def _removal(target: StorePath) -> Removal:
    engine, path = target.engine, target.path
    if metadata_path(path) is not None:
        raise InvalidInput(f"{path!r} is the metadata of a node, without which its data cannot be read: remove the node instead")
    await check_own(engine.storage, path)
    if path and (nbytes := await engine.size(path)) is not None:
        return await _key_removal(target, nbytes)
    node = await engine.hierarchy.node(path, fresh=True)
    if node is None and (array := await _array_above(engine, path)) is not None:
        await check_no_links(engine.storage, array)  # which shard a chunk is in, its key does not say
        return await _chunks_removal(engine, path)
    await check_no_mounts(engine.storage, path)
    return await _node_removal(target, node)


async def _key_removal(target: StorePath, nbytes: int) -> Removal:
    """Return the removal of a single key. A chunk is removed without consent."""
    engine, path = target.engine, target.path
    if not target.has_root and not await _has_v2_document(engine, path.rpartition("/")[0]):
        raise _not_zarr(target)
    array = await _array_above(engine, path) if target.has_root else None
    if array is not None:
        await check_no_links(engine.storage, array)
    return Removal("key", 1, nbytes, "key", is_key=True, needs_recursive=False, needs_consent=array is None)


async def _chunks_removal(engine: Presented, path: str) -> Removal:
    """Return the removal of a directory of chunks, which share shards with other chunks: they are counted one by one."""
    sizes = [value.nbytes or 0 async for value in engine.list(join(path, ""))]
    return Removal("directory", len(sizes), sum(sizes), "key")


_NODES = {None: "directory", "sharded": "array", "array": "array", "group": "group"}


async def _node_removal(target: StorePath, node: Node | None) -> Removal:
    """Return the removal of a node, or of a directory with Zarr nodes in it, as they are stored."""
    objects = documents = nbytes = 0
    is_v2 = False
    async for info in target.engine.storage.list(join(target.path, "")):
        objects += 1
        nbytes += info.nbytes
        documents += metadata_path(info.key) is not None
        # Of a bucket as a whole only its own documents count: it may hold unrelated stores.
        is_v2 = is_v2 or (info.key.rpartition("/")[2] if target.has_name else info.key) in V2_DOCUMENTS
    if objects and not target.has_root and not is_v2:
        if node is None and not target.has_name:
            raise InvalidInput(
                f"{target} is a whole bucket or storage, and no Zarr node itself: name the store in it that has to go, or use the "
                "tools of the storage"
            )
        if not documents:
            raise _not_zarr(target)
    what = _NODES.get(None if node is None else node.kind, "node")
    needs_recursive = documents > 1 or what == "directory" or (what == "group" and objects > 1)
    return Removal(what, objects, nbytes, "object", needs_recursive=needs_recursive)


def _not_zarr(target: StorePath) -> InvalidInput:
    return InvalidInput(
        f"nothing at or below {target} is Zarr: shardstore removes only arrays, groups and what is in them; use rm, or the "
        "tools of the storage"
    )


async def _has_v2_document(engine: Presented, path: str) -> bool:
    """Return whether there is a document of a Zarr v2 node at ``path``."""
    return any([await engine.storage.stat(join(path, name)) is not None for name in V2_DOCUMENTS])


async def _array_above(engine: Presented, path: str) -> str | None:
    """Return the path of the array that ``path`` lies in, if any."""
    nodes = await engine.hierarchy.load((above for above, rest in ancestors(path) if rest), even_damaged=True)
    return next((above for above, node in nodes.items() if node is not None and node.kind in ("sharded", "array")), None)
