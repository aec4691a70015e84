"""``shardstore cp``, ``mv`` and ``rm``: copy, move and remove whole nodes, and ``rm`` single chunks too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from shardstore.adapters.store_paths import StorePath
from shardstore.adapters.whole_nodes import copy, missing_group, move, removal, remove, stale_groups
from shardstore.apps.cli.arguments import AsJson, DryRun, Overwrite, PairOptions, Recursive, StorageOptions, Url, Yes, argument
from shardstore.apps.cli.output import ask, complain, print_result, progress_bar
from shardstore.errors import InvalidInput
from shardstore.model.words import plural, size

Destination = Annotated[str, argument("DST", "Its new place, not the directory to put it into.")]


def cp(
    *,
    source: Annotated[str, argument("SRC", "The node to copy: an array, a group, or a whole store.")],
    destination: Destination,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    storage: PairOptions,
) -> None:
    """Copy a node with all that is in it; shards stay unchanged. Metadata is written last.

    Within one storage, the storage copies where it can, and no data passes through this machine.

    Examples:
      shardstore cp s3://bucket/data.zarr/ct s3://bucket/data.zarr/ct-backup
      shardstore cp data.zarr s3://bucket/data.zarr -o endpoint_url=http://127.0.0.1:9000
      shardstore cp --overwrite s3://bucket/data.zarr/ct local.zarr/ct
    """
    one, other, copied = _transfer("copying", copy, source, destination, storage, overwrite=overwrite)
    document = {"source": str(one), "target": str(other), "objects": copied}
    print_result(as_json, document, f"copied {plural(copied, 'object')} to {other}")
    _warn_of_missing_group(other)
    _warn_of_stale(other)


def mv(
    *,
    source: Annotated[str, argument("SRC", "The node to move: an array, a group, or a whole store.")],
    destination: Destination,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    storage: PairOptions,
) -> None:
    """Move a node with all that is in it; shards stay unchanged. No program should write to the node meanwhile.

    On local disks this is one rename. Object stores have no rename: the storage copies, and the source is removed when all has arrived.

    Examples:
      shardstore mv data.zarr/ct data.zarr/ct-old
      shardstore mv s3://bucket/data.zarr/ct s3://bucket/data.zarr/scans/ct
      shardstore mv s3://bucket/new.zarr s3://bucket/data.zarr --overwrite
    """
    one, other, moved = _transfer("moving", move, source, destination, storage, overwrite=overwrite)
    print_result(as_json, {"source": str(one), "target": str(other), "operations": moved}, f"moved {one} to {other}")
    _warn_of_missing_group(other)
    _warn_of_stale(one, other)


def rm(
    *,
    url: Url,
    dry_run: DryRun = False,
    yes: Yes = False,
    recursive: Recursive = False,
    as_json: AsJson = False,
    storage: StorageOptions,
) -> None:
    """Remove an array, a group, a directory, or a single chunk.

    A single chunk is taken out of its shard at once. Anything else is removed after a question; without a terminal, --yes is needed. A
    place without Zarr data is left alone.

    Examples:
      shardstore rm data.zarr/ct/c/0/3/1
      shardstore rm s3://bucket/data.zarr/ct --yes
      shardstore rm -r s3://bucket/data.zarr/scans
    """
    target = storage.resolve(url).as_key()
    target.check_changeable("removing from")
    found = removal(target)
    amount = f"{plural(found.number, found.noun)}, {size(found.nbytes)}"
    described = f"{found.what} {target}: {amount}"
    if found.needs_recursive and not recursive:
        raise InvalidInput(f"{target} is a {found.what} of {amount}: give --recursive to remove it with all that is in it")
    if dry_run:
        print_result(as_json, {"would_remove": str(target), "kind": found.what, "dry_run": True}, f"would remove {described}")
        return
    if found.needs_consent and not yes:
        ask(f"remove {described}", "nothing was removed")
    remove(target, found)
    document = {"removed": str(target), "kind": found.what, f"{found.noun}s": found.number, "nbytes": found.nbytes}
    print_result(as_json, document, f"removed {described}")
    _warn_of_stale(target)


def _transfer(
    action: str, function: Callable[..., int], source: str, destination: str, storage: PairOptions, *, overwrite: bool
) -> tuple[StorePath, StorePath, int]:
    """Copy or move a node under a progress bar; return both places, and the number that ``function`` returns."""
    one, other = storage.resolve_pair(source, destination)
    with progress_bar(action, "objects") as bar:
        number = function(one, other, overwrite=overwrite, progress=lambda done, nbytes: bar(done, nbytes=nbytes))
    return one, other, number


def _warn_of_stale(*targets: StorePath) -> None:
    """Warn of each group above ``targets`` whose consolidated metadata is stale."""
    for url in dict.fromkeys(url for target in targets for url in stale_groups(target)):
        complain("warning", f"the consolidated metadata of {url} is out of date: renew it by zarr.consolidate_metadata")


def _warn_of_missing_group(target: StorePath) -> None:
    if (url := missing_group(target)) is not None:
        complain("warning", f"{url} is not a group, so {target} is not found from the root: make one by zarr.create_group")
