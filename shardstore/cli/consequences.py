"""Warnings after nodes were copied, moved or removed, each with its remedy."""

from __future__ import annotations

from contextlib import suppress

from shardstore._sync import run_sync
from shardstore.cli.output import complain
from shardstore.cli.target import Target
from shardstore.engine.metadata.consolidated import stale_consolidated
from shardstore.errors import InvalidInput
from shardstore.format.store_keys import join
from shardstore.maintenance.survey.run import V2_DOCUMENTS
from shardstore.storage.base import LeadsNowhere


def warn_of_stale(*targets: Target) -> None:
    """Warn of each group above ``targets`` whose consolidated metadata is stale."""
    named: set[str] = set()
    for target in targets:
        for group in run_sync(stale_consolidated(target.engine.storage, target.path)):
            url = target.address.shown(target.depth + (group.count("/") + 1 if group else 0))
            if url not in named:
                named.add(url)
                complain("warning", f"the consolidated metadata of {url} is out of date: renew it by zarr.consolidate_metadata")


def warn_of_missing_group(target: Target) -> None:
    """Warn of a missing group: a node inside a store is found from its root only if each directory in between is a group."""
    parent = target.path.rpartition("/")[0]
    if target.has_root and target.path and not run_sync(target.engine.is_node(parent)):
        url = target.address.shown(len(target.address.segments) - 1)
        complain("warning", f"{url} is not a group, so {target.address} is not found from the root: make one by zarr.create_group")


def check_overwritable(target: Target) -> None:
    """Check that a target may be overwritten, which removes it: a node or a single key may be, a directory of other things has to be
    removed by name.

    Raises:
        InvalidInput: the target is such a directory, or a whole bucket.
    """
    with suppress(LeadsNowhere):  # a link to nowhere is cut
        run_sync(_check_overwritable(target))


async def _check_overwritable(target: Target) -> None:
    engine, path = target.engine, target.path
    if await engine.hierarchy.node(path, fresh=True) is not None or (path and await engine.size(path) is not None):
        return
    if any([await engine.storage.stat(join(path, name)) is not None for name in V2_DOCUMENTS]):
        return
    async for _ in engine.storage.list(join(path, "")):
        raise InvalidInput(
            f"{target.address} is no Zarr node, and --overwrite would erase all that is in it: name the new node, such as "
            f"{target.address}/NAME, or remove the directory first by shardstore rm -r"
        )
