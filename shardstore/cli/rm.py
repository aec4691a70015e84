"""``shardstore rm``: removes nodes, directories and single chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from shardstore._sync import run_sync
from shardstore.cli.arguments import AsJson, StorageOptions, Url
from shardstore.cli.consequences import warn_of_stale
from shardstore.cli.output import print_json
from shardstore.cli.questions import ask
from shardstore.cli.target import Target, resolve
from shardstore.engine.actions import ERASE
from shardstore.errors import InvalidInput, NotFound
from shardstore.format.store_keys import ancestors, join, metadata_path
from shardstore.maintenance.survey.run import V2_DOCUMENTS
from shardstore.model.words import plural, size
from shardstore.presented.flavours import Presented
from shardstore.storage.boundaries import check_no_links, check_no_mounts, check_own


@dataclass(frozen=True, slots=True)
class Doomed:
    """The things that would be removed: ``what`` in words, how much, and whether it is one key or all below a prefix.

    ``asks`` is true if somebody has to agree first.
    """

    what: str
    objects: int
    nbytes: int
    noun: str
    is_key: bool
    needs_recursive: bool
    asks: bool = True


def rm(
    *,
    url: Url,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Groups with what is in them, and directories.")] = False,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Remove an array, a group, a directory, or a single chunk.

    An array or group is removed as it is stored, its metadata last. A single chunk is taken out of its shard at once; anything
    else is asked for on a terminal, and refused without one unless --yes is given. What holds nothing of Zarr is left alone.

    Examples:

        shardstore rm data.zarr/ct/c/0/3/1

        shardstore rm s3://bucket/data.zarr/ct --yes

        shardstore rm -r s3://bucket/data.zarr/scans
    """
    target = resolve(url, storage.parsed()).as_key()
    target.check_changeable("removing from")
    doomed = run_sync(_look(target))
    much = f"{plural(doomed.objects, doomed.noun)}, {size(doomed.nbytes)}"
    told = f"{doomed.what} {target.address}: {much}"
    if doomed.needs_recursive and not recursive:
        raise InvalidInput(f"{target.address} is a {doomed.what} of {much}: give --recursive to remove it with all that is in it")
    if doomed.asks and not yes:
        ask(f"remove {told}", "nothing was removed")
    run_sync(_remove(target, doomed))
    if as_json:
        print_json({"removed": str(target.address), "kind": doomed.what, doomed.noun + "s": doomed.objects, "nbytes": doomed.nbytes})
    else:
        typer.echo(f"removed {told}")
    warn_of_stale(target)


async def _look(target: Target) -> Doomed:
    engine, path = target.engine, target.path
    if metadata_path(path) is not None:
        raise InvalidInput(f"{path!r} is the metadata of a node, without which its data cannot be read: remove the node instead")
    await check_own(engine.storage, path)
    if path and (nbytes := await engine.size(path)) is not None:
        if not target.has_root and not await _is_beside_v2(engine, path):
            raise _not_zarr(target)
        array = await _array_above(engine, path) if target.has_root else None
        if array is not None:
            await check_no_links(engine.storage, array)
        return Doomed("key", 1, nbytes, "key", is_key=True, needs_recursive=False, asks=array is None)
    node = await engine.hierarchy.node(path, fresh=True)
    below = join(path, "")
    if node is None and (array := await _array_above(engine, path)) is not None:
        await check_no_links(engine.storage, array)  # which shard a chunk is in, its key does not say
        # Chunks that share shards with others: counted one by one.
        keys = nbytes = 0
        async for value in engine.list(below):
            keys += 1
            nbytes += value.nbytes or 0
        doomed = Doomed("directory", keys, nbytes, "key", is_key=False, needs_recursive=True)
    else:
        await check_no_mounts(engine.storage, path)
        objects = documents = nbytes = 0
        is_v2 = False
        async for info in engine.storage.list(below):
            objects += 1
            nbytes += info.nbytes
            documents += metadata_path(info.key) is not None
            # Of a bucket as a whole its own documents count alone: others may keep their stores in it.
            is_v2 = is_v2 or (info.key if not target.address.segments else info.key.rpartition("/")[2]) in V2_DOCUMENTS
        is_whole_place = node is None and not target.address.segments
        if objects and not target.has_root and not is_v2 and (is_whole_place or not documents):
            raise _not_a_node(target) if is_whole_place else _not_zarr(target)
        what = "directory" if node is None else {"sharded": "array", "array": "array", "group": "group"}.get(node.kind, "node")
        others = documents > 1 or (what == "group" and objects > 1) or what == "directory"
        doomed = Doomed(what, objects, nbytes, "object", is_key=False, needs_recursive=others)
    if not doomed.objects:
        raise NotFound(f"there is nothing at {target.address} to remove")
    return doomed


def _not_zarr(target: Target) -> InvalidInput:
    return InvalidInput(
        f"nothing at or below {target.address} is Zarr: shardstore removes only arrays, groups and what is in them; use rm, or the "
        "tools of the storage"
    )


def _not_a_node(target: Target) -> InvalidInput:
    return InvalidInput(
        f"{target.address} is a whole bucket or storage, and no Zarr node itself: name the store in it that has to go, or use the tools "
        "of the storage"
    )


async def _is_beside_v2(engine: Presented, path: str) -> bool:
    """Return whether the key ``path`` is one of a Zarr v2 node, or lies next to its document."""
    parent = path.rpartition("/")[0]
    return any([await engine.storage.stat(join(parent, name)) is not None for name in V2_DOCUMENTS])


async def _array_above(engine: Presented, path: str) -> str | None:
    """Return the path of the array that ``path`` lies in, if any."""
    nodes = await engine.hierarchy.load((above for above, rest in ancestors(path) if rest), even_damaged=True)
    return next((above for above, node in nodes.items() if node is not None and node.kind in ("sharded", "array")), None)


async def _remove(target: Target, doomed: Doomed) -> None:
    if doomed.is_key:
        await target.engine.update((target.path, ERASE))
    else:
        await target.engine.erase_prefix(join(target.path, ""))
