"""``shardstore cp`` and ``shardstore mv``: copy, rename and move whole nodes as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import typer

from shardstore._sync import run_sync
from shardstore.cli.arguments import AsJson, Overwrite, PairOptions
from shardstore.cli.consequences import check_overwritable, warn_of_missing_group, warn_of_stale
from shardstore.cli.output import print_json
from shardstore.cli.progress import progress_bar
from shardstore.cli.target import Target, pair_options, resolve_pair
from shardstore.engine.moving import copy_nodes, move_between
from shardstore.model.words import plural

Destination = Annotated[str, typer.Argument(metavar="DST", help="Its new place, not the directory to put it into.", show_default=False)]


def cp(
    *,
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="The node to copy: an array, a group, or a whole store.", show_default=False)
    ],
    destination: Destination,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    storage: PairOptions,
) -> None:
    """Copy a node with all that is in it, shards as they are: nothing is decoded or packed anew.

    Within one storage the storage copies, and no data passes through this machine where it can. Metadata is written last.

    Examples:

        shardstore cp s3://bucket/data.zarr/ct s3://bucket/data.zarr/ct-backup

        shardstore cp data.zarr s3://bucket/data.zarr -o endpoint_url=http://127.0.0.1:9000

        shardstore cp --overwrite s3://bucket/data.zarr/ct local.zarr/ct
    """
    one, other, copied = _transfer("copying", copy_nodes, source, destination, storage, overwrite=overwrite)
    if as_json:
        print_json({"source": str(one.address), "target": str(other.address), "objects": copied})
    else:
        typer.echo(f"copied {plural(copied, 'object')} to {other.address}")
    warn_of_missing_group(other)
    warn_of_stale(other)


def mv(
    *,
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="The node to move: an array, a group, or a whole store.", show_default=False)
    ],
    destination: Destination,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    storage: PairOptions,
) -> None:
    """Move a node with all that is in it, shards as they are.

    On local disks this is one rename, of however many chunks. Object stores have no rename: there the storage copies the
    shards, and what was moved is removed once all of it has arrived. Nobody should write to the node meanwhile.

    Examples:

        shardstore mv data.zarr/ct data.zarr/ct-old

        shardstore mv s3://bucket/data.zarr/ct s3://bucket/data.zarr/scans/ct

        shardstore mv s3://bucket/new.zarr s3://bucket/data.zarr --overwrite
    """
    one, other, moved = _transfer("moving", move_between, source, destination, storage, overwrite=overwrite)
    if as_json:
        print_json({"source": str(one.address), "target": str(other.address), "operations": moved})
    else:
        typer.echo(f"moved {one.address} to {other.address}")
    warn_of_missing_group(other)
    warn_of_stale(one, other)


def _transfer(
    action: str, function: Callable[..., Coroutine[Any, Any, int]], source: str, destination: str, storage: PairOptions, *, overwrite: bool
) -> tuple[Target, Target, int]:
    """Copy or move a node under a progress bar; return both targets, and the number that ``function`` returns."""
    one, other = resolve_pair(source, destination, *pair_options(source, destination, storage.parsed(), storage.parsed_target()))
    if function is move_between:
        one.check_changeable("moving")
    other.check_changeable(f"{action} to")
    if overwrite:
        check_overwritable(other)
    with progress_bar(action, "objects") as bar:
        places = one.engine.canonical, one.path, other.engine.canonical, other.path
        count = run_sync(function(*places, overwrite=overwrite, progress=lambda done, nbytes: bar(done, nbytes=nbytes)))
    return one, other, count
