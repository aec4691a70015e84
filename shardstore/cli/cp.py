"""``shardstore cp``: copies whole nodes as they are stored."""

from __future__ import annotations

from typing import Annotated

import typer

from shardstore._sync import run_sync
from shardstore.cli.arguments import AsJson, Debug, OptionPairs, OptionsJson, Overwrite, TargetOptionsJson, storage_options
from shardstore.cli.consequences import check_overwritable, warn_of_missing_group, warn_of_stale
from shardstore.cli.output import plural, print_json, progress_bar
from shardstore.cli.target import pair_options, resolve_pair
from shardstore.engine.moving import copy_nodes


def cp(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="The node to copy: an array, a group, or a whole store.", show_default=False)
    ],
    destination: Annotated[str, typer.Argument(metavar="DST", help="Its new place, not the directory to put it into.", show_default=False)],
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    options_json: OptionsJson = None,
    options: OptionPairs = None,
    target_options_json: TargetOptionsJson = None,
    debug: Debug = False,
) -> None:
    """Copy a node with all that is in it, shards as they are: nothing is decoded or packed anew.

    Within one storage the storage copies, and no data passes through this machine where it can. Metadata is written last.

    Examples:

        shardstore cp s3://bucket/data.zarr/ct s3://bucket/data.zarr/ct-backup

        shardstore cp data.zarr s3://bucket/data.zarr -o endpoint_url=http://127.0.0.1:9000

        shardstore cp --overwrite s3://bucket/data.zarr/ct local.zarr/ct
    """
    given = storage_options(options_json, options)
    of_target = None if target_options_json is None else storage_options(target_options_json, None, "--target-options")
    one, other = resolve_pair(source, destination, *pair_options(source, destination, given, of_target))
    if overwrite:
        check_overwritable(other)
    with progress_bar("copying", "objects") as bar:
        copied = run_sync(
            copy_nodes(
                one.engine.canonical,
                one.path,
                other.engine.canonical,
                other.path,
                overwrite=overwrite,
                progress=lambda done, nbytes: bar(done, nbytes=nbytes),
            )
        )
    if as_json:
        print_json({"source": str(one.address), "target": str(other.address), "objects": copied})
    else:
        typer.echo(f"copied {plural(copied, 'object')} to {other.address}")
    warn_of_missing_group(other)
    warn_of_stale(other)
