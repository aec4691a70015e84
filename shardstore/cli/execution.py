"""Where the tasks of a command run: threads of this process, or the workers of a dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shardstore.errors import StorageError, Unsupported
from shardstore.maintenance.execution import WHOLE, Execution, Part

_CONNECT_SECONDS = 30


@contextmanager
def execution_of(part: str | None, workers: int | None, scheduler: str | None) -> Iterator[Execution]:
    """How the options ``--part``, ``--workers`` and ``--scheduler`` ask the work to be done.

    Raises:
        InvalidInput: an option has a value that cannot be right.
        Unsupported: a scheduler is named, and dask.distributed is not installed.
        StorageError: the scheduler cannot be reached.
    """
    share = WHOLE if part is None else Part.parse(part)
    if scheduler is None:
        yield Execution(None, workers, part=share)
        return
    try:
        from distributed import Client
    except ModuleNotFoundError as exc:
        raise Unsupported("--scheduler takes dask.distributed: pip install distributed") from exc
    try:
        client = Client(scheduler, timeout=_CONNECT_SECONDS)  # type: ignore[no-untyped-call]  # distributed has few types
    except OSError as exc:
        raise StorageError(f"the scheduler at {scheduler} cannot be reached: {exc}") from exc
    with client, client.get_executor() as executor:  # type: ignore[no-untyped-call]
        yield Execution(executor, workers, part=share)
