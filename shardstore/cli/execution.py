"""Options of commands that work for long: where the work is done, how much of it, and how it ends when it is interrupted."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from shardstore.cli.failures import ExitCode, exit_code, message
from shardstore.cli.output import complain, plural
from shardstore.errors import InvalidInput, StorageError, Unsupported
from shardstore.maintenance.execution import WHOLE, Execution, Part
from shardstore.maintenance.shard_work import FailedShard, Listed

Workers = Annotated[int | None, typer.Option("--workers", metavar="N", help="Tasks at work at once.", show_default=False)]
Scheduler = Annotated[
    str | None,
    typer.Option("--scheduler", metavar="tcp://HOST:PORT", help="Let the workers of this dask cluster do the work.", show_default=False),
]
PartOption = Annotated[
    str | None,
    typer.Option(
        "--part", metavar="I/N", help="Do the I-th of N disjoint shares only: any number may run at once, anywhere.", show_default=False
    ),
]
Exclusive = Annotated[bool, typer.Option("--exclusive", help="Nobody else writes: needed where the storage has no compare-and-swap.")]
Retries = Annotated[
    int, typer.Option("--retries", metavar="N", help="Try a task again whose storage failed or whose worker was lost.", min=0)
]
MaxMemory = Annotated[str, typer.Option("--max-memory", metavar="BYTES", help="Held at once in each process, such as 512MiB.")]

CONNECT_SECONDS = 15.0
"""For the scheduler of a cluster to answer."""

_BYTES = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?b?)\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(name: str, text: str) -> int:
    """``512MiB``, ``1.5 GB``, ``65536``: with ``i`` in powers of 1024, without in powers of 1000.

    Raises:
        InvalidInput: it is no such thing.
    """
    match = _BYTES.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{name} {text!r} is no number of bytes: give one such as 512MiB or 2GB")
    base = 1024 if match[3].lower().startswith("i") else 1000
    return int(float(match[1]) * base ** _POWERS[match[2].lower()])


@contextmanager
def cluster(address: str | None) -> Iterator[Executor | None]:
    """The executor of a dask cluster, or ``None`` without an address.

    Raises:
        Unsupported: dask.distributed is not installed.
        StorageError: nobody answers there.
    """
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ModuleNotFoundError as exc:
        raise Unsupported("--scheduler needs dask.distributed: pip install distributed") from exc
    try:
        client = Client(address, timeout=CONNECT_SECONDS)  # type: ignore[no-untyped-call]  # distributed has no types
    except OSError as exc:
        raise StorageError(f"no dask scheduler answers at {address}: {exc}") from exc
    with client:
        yield client.get_executor(pure=False)  # type: ignore[no-untyped-call]  # as above


@contextmanager
def execution_of(part: str | None, workers: int | None, scheduler: str | None) -> Iterator[Execution]:
    """How the options ``--part``, ``--workers`` and ``--scheduler`` ask the work to be done; raises as ``cluster`` and ``Part`` do."""
    share = WHOLE if part is None else Part.parse(part)
    with cluster(scheduler) as executor:
        yield Execution(executor, workers, part=share)


@contextmanager
def interruptible(advice: str) -> Iterator[None]:
    """One Ctrl-C ends the block cleanly, with ``advice``; a second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    has_come = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal has_come
        if has_come:
            sys.stderr.write("\n")
            os._exit(ExitCode.INTERRUPTED)
        has_come = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    except KeyboardInterrupt:
        complain("warning", advice)
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def end_with(failed: Listed[FailedShard], damaged: int) -> None:
    """Say what was not done, and end with an exit code that tells; nothing where all was done."""
    for failure in failed.first:
        complain("error", f"{failure.key}: {message(failure.error)}")
    if failed.count:
        complain("error", f"{plural(failed.count, 'shard')} could not be dealt with; the same command tries again")
        raise typer.Exit(exit_code(failed.first[0].error))
    if damaged:
        raise typer.Exit(ExitCode.CORRUPT)
