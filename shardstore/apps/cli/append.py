"""``shardstore append``: append what xarray opens to the arrays of a group, while other programs append too."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Annotated, Any

import typer

import shardstore
from shardstore._sync import run_sync
from shardstore.adapters.store_paths import StorePath, pair_options, resolve
from shardstore.apps.cli.arguments import AsJson, PairOptions, argument
from shardstore.apps.cli.execution import interruptible
from shardstore.apps.cli.output import complain, print_json, progress_bar
from shardstore.errors import InvalidInput, ShardStoreError
from shardstore.extras import needed
from shardstore.model.durations import seconds_of
from shardstore.model.options import DIM, CommandOption
from shardstore.model.redaction import redacted
from shardstore.model.words import plural, row_numbers


def append(
    *,
    sources: Annotated[list[str], argument("SRC", "What xarray opens, such as netCDF files or Zarr stores.")],
    destination: Annotated[str, argument("DST", "A Zarr v3 store, or a group in it: a path, URL or chain of URLs.")],
    dim: Annotated[str, DIM],
    lease: Annotated[str, CommandOption("How long a silent writer counts as alive.", "TIME", "duration", group="Expert")] = "30s",
    as_json: AsJson = False,
    storage: PairOptions,
) -> None:
    """Append rows to the arrays of a group, while other programs append too. Readers see all rows of a source at once, or none.

    The arrays have to exist, with dimension names. Each SRC is an append of its own, in their order. The rows that it became are printed.
    Variables without the dimension are left out. With dask, a source is read piece by piece.

    Examples:
      shardstore append monday.nc data.zarr --dim time
      shardstore append monday.nc tuesday.nc s3://bucket/data.zarr/model/surface --dim time
      shardstore append s3://bucket/new.zarr s3://bucket/data.zarr --dim time -o endpoint_url=http://127.0.0.1:9000
    """
    if not 0 < seconds_of("--lease", lease) < math.inf:
        raise InvalidInput(f"--lease {lease} never ends, or ends at once: give a time such as 30s")
    datasets = needed("shardstore.adapters.tools.datasets", "zarr", "shardstore append stores rows by zarr-python")
    given, target_options = storage.parsed(), storage.parsed_target()
    target = resolve(destination, pair_options(sources[0], destination, given, target_options)[1])
    target.check_changeable("appending to")
    appending = _Appending(target, dim, lease)
    with ExitStack() as opened:
        data = [
            opened.enter_context(datasets.opened_dataset(source, pair_options(source, destination, given, target_options)[0]))
            for source in sources
        ]
        opened.enter_context(interruptible(appending.after_interruption))
        bar = opened.enter_context(progress_bar("appending", "sources"))
        try:
            for number, (source, rows) in enumerate(zip(sources, data, strict=True), 1):
                appending.append(redacted(source), rows, as_json)
                bar(number, len(sources))
        except Exception:
            if appending.done:
                complain("warning", appending.after_error())
            raise
        finally:
            if as_json and appending.done:
                print_json({"target": str(target), "dim": dim, "appended": appending.done})


class _Appending:
    """Appends of several sources to one group, one behind the other."""

    def __init__(self, target: StorePath, dim: str, lease: str) -> None:
        self._target = target
        self._dim = dim
        self._path = target.path.rstrip("/")
        self._lease = lease
        self.done: list[dict[str, Any]] = []
        """The sources that were appended, and which rows they became."""

    def append(self, source: str, data: Any, as_json: bool) -> None:
        root, options = self._target.address.at(self._target.depth), dict(self._target.options)
        try:
            rows = shardstore.append(root, data, self._dim, path=self._path, lease=self._lease, storage_options=options or None)
        except ShardStoreError as exc:
            node = run_sync(self._target.engine.hierarchy.node(self._path)) if isinstance(exc, InvalidInput) else None
            if node is not None and node.kind in ("sharded", "array"):
                shown = self._target.shown(self._path)
                raise InvalidInput(f"{shown} is an array: name the group that it is in, since all its arrays grow at once") from exc
            exc.add_note(f"while {source} was to be appended")
            raise
        self.done.append({"source": source, "start": rows.start, "stop": rows.stop})
        if not as_json:
            typer.echo(f"{source}: {row_numbers(rows.start, rows.stop)} of {self._dim!r}")

    def after_error(self) -> str:
        """Return, in words, what was appended already."""
        return f"appended already: {plural(len(self.done), 'source')}, up to {self.done[-1]['source']}. Leave out what is there already"

    def after_interruption(self) -> str:
        """Return, in words, what was appended already, and what may have been."""
        before = f"{self.after_error()}. " if self.done else ""
        return f"{before}Whether the rows of the next source were appended is not known: look before it is repeated"
