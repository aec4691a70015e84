"""Options of commands that work through a store in tasks, and what carries the tasks out."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer

from shardstore.cli.failures import ExitCode, exit_code, message
from shardstore.cli.output import complain, plural
from shardstore.errors import StorageError, Unsupported
from shardstore.maintenance.shard_work import FailedShard, Listed

Workers = Annotated[int | None, typer.Option("--workers", metavar="N", help="How many shards are worked on at once.", show_default=False)]
Scheduler = Annotated[
    str | None,
    typer.Option("--scheduler", metavar="tcp://HOST:PORT", help="Let the workers of this dask scheduler do the work.", show_default=False),
]
Share = Annotated[
    str | None,
    typer.Option(
        "--part", metavar="I/N", help="Only this share of the shards: shares are disjoint, as for job arrays.", show_default=False
    ),
]
Exclusive = Annotated[bool, typer.Option("--exclusive", help="Nobody else writes: needed where the storage has no compare-and-swap.")]


@contextmanager
def executor_at(scheduler: str | None) -> Iterator[Executor | None]:
    """What runs tasks on the cluster of a scheduler; ``None``, this process, without one.

    Raises:
        Unsupported: dask.distributed is missing.
        StorageError: there is no scheduler at that address.
    """
    if scheduler is None:
        yield None
        return
    try:
        distributed: Any = import_module("distributed")
    except ModuleNotFoundError as exc:
        raise Unsupported("--scheduler needs dask.distributed: pip install distributed") from exc
    try:
        client = distributed.Client(scheduler, set_as_default=False)
    except (OSError, ValueError) as exc:
        raise StorageError(f"there is no dask scheduler at {scheduler}: {exc}") from exc
    with client:
        yield client.get_executor()


def end_with(failed: Listed[FailedShard], damaged: int) -> None:
    """Say what was not done, and end with an exit code that tells; nothing where all was done."""
    for failure in failed.first:
        complain("error", f"{failure.key}: {message(failure.error)}")
    if failed.count:
        complain("error", f"{plural(failed.count, 'shard')} could not be dealt with; the same command tries again")
        raise typer.Exit(exit_code(failed.first[0].error))
    if damaged:
        raise typer.Exit(ExitCode.CORRUPT)
