"""``shardstore mv``: renames and moves whole nodes as they are stored."""

from __future__ import annotations

from typing import Annotated

import typer

from shardstore._sync import run_sync
from shardstore.cli.arguments import AsJson, Debug, OptionPairs, OptionsJson, Overwrite, TargetOptionsJson, storage_options
from shardstore.cli.consequences import check_overwritable, warn_of_missing_group, warn_of_stale
from shardstore.cli.output import print_json, progress_bar
from shardstore.cli.target import pair_options, resolve_pair
from shardstore.engine.moving import move_between


def mv(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="The node to move: an array, a group, or a whole store.", show_default=False)
    ],
    destination: Annotated[str, typer.Argument(metavar="DST", help="Its new place, not the directory to put it into.", show_default=False)],
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    options_json: OptionsJson = None,
    options: OptionPairs = None,
    target_options_json: TargetOptionsJson = None,
    debug: Debug = False,
) -> None:
    """Move a node with all that is in it, shards as they are.

    On local disks this is one rename, of however many chunks. Object stores have no rename: there the storage copies the
    shards, and what was moved is removed once all of it has arrived. Nobody should write to the node meanwhile.

    Examples:

        shardstore mv data.zarr/ct data.zarr/ct-old

        shardstore mv s3://bucket/data.zarr/ct s3://bucket/data.zarr/scans/ct

        shardstore mv s3://bucket/new.zarr s3://bucket/data.zarr --overwrite
    """
    given = storage_options(options_json, options)
    of_target = None if target_options_json is None else storage_options(target_options_json, None, "--target-options")
    one, other = resolve_pair(source, destination, *pair_options(source, destination, given, of_target))
    if overwrite:
        check_overwritable(other)
    with progress_bar("moving", "objects") as bar:
        moved = run_sync(
            move_between(
                one.engine.canonical,
                one.path,
                other.engine.canonical,
                other.path,
                overwrite=overwrite,
                progress=lambda done, nbytes: bar(done, nbytes=nbytes),
            )
        )
    if as_json:
        print_json({"source": str(one.address), "target": str(other.address), "operations": moved})
    else:
        typer.echo(f"moved {one.address} to {other.address}")
    warn_of_missing_group(other)
    warn_of_stale(one, other)
