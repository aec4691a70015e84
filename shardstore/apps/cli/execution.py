"""Options of commands that work for long: where the work is done, which part of it, and how it ends when it is interrupted."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Protocol

import typer

from shardstore.apps.cli.failures import ExitCode, exit_code, message
from shardstore.apps.cli.output import complain
from shardstore.errors import InvalidInput, StorageError, Unsupported
from shardstore.maintenance.cluster import ExecutorLike
from shardstore.maintenance.execution import DEFAULT_MAX_MEMORY, MAX_MEMORY, PART, RETRIES, WORKERS
from shardstore.maintenance.shards import FailedShard, FirstItems
from shardstore.model.options import option
from shardstore.model.words import plural

Scheduler = Annotated[
    str | None,
    typer.Option("--scheduler", metavar="tcp://HOST:PORT", help="Let the workers of this dask cluster do the work.", show_default=False),
]
Exclusive = Annotated[
    bool, typer.Option("--exclusive", help="Confirm that no other program writes: needed if the storage has no compare-and-swap.")
]
Failures = Annotated[
    Path | None,
    typer.Option("--failures", metavar="FILE", help="Write the keys that failed into this file, for --only-failed.", show_default=False),
]
OnlyFailed = Annotated[
    Path | None,
    typer.Option("--only-failed", metavar="FILE", help="Do only what failed: a file that --failures has written.", show_default=False),
]
LocksOption = Annotated[
    str, typer.Option("--locks", metavar="auto|cluster", help="cluster: locks of this file system also hold between machines.")
]

CONNECT_SECONDS = 15.0
"""The time for the scheduler of a cluster to answer."""

_MOST_SAID = 10


@contextmanager
def cluster(address: str | None, connect_seconds: float = CONNECT_SECONDS) -> Iterator[ExecutorLike | None]:
    """Connect to a dask cluster; yield its client, or ``None`` without an address.

    Raises:
        Unsupported: dask.distributed is not installed.
        StorageError: no scheduler answers there.
    """
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ModuleNotFoundError as exc:
        raise Unsupported("--scheduler needs dask.distributed: pip install distributed") from exc
    try:
        client = Client(address, timeout=connect_seconds)  # type: ignore[no-untyped-call]  # distributed has no types
    except OSError as exc:
        raise StorageError(f"no dask scheduler answers at {address}: {exc}") from exc
    with client:
        yield client


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """The options of work on all objects of a store."""

    part: str | None = option(None, PART)
    workers: int | None = option(None, WORKERS)
    scheduler: Scheduler = None
    retries: int = option(2, RETRIES)
    max_memory: int = option(DEFAULT_MAX_MEMORY, MAX_MEMORY)
    failures: Failures = None
    only_failed: OnlyFailed = None

    @contextmanager
    def arguments(self, advice: str) -> Iterator[dict[str, Any]]:
        """Yield the arguments of ``Execution.of`` for a block that Ctrl-C ends with ``advice``.

        Raises:
            InvalidInput: an option cannot be right.
            Unsupported, StorageError: as ``cluster``.
        """
        check_writable("--failures", self.failures)
        only = None if self.only_failed is None else read_failures(self.only_failed)
        given = {"part": self.part, "workers": self.workers, "retries": self.retries, "max_memory": self.max_memory, "only": only}
        with interruptible(advice), cluster(self.scheduler) as executor:
            yield given | {"executor": executor}

    def write_failures(self, failed: Iterable[FailedObject]) -> None:
        """Write the objects that failed into the file of ``--failures``, if one is given. Raises as ``write_failures``."""
        if self.failures is not None:
            write_failures(self.failures, failed)


@dataclass(frozen=True, slots=True)
class ReplaceOptions(WorkOptions):
    """The options of work that replaces shards."""

    exclusive: Exclusive = False
    locks: LocksOption = "auto"

    @contextmanager
    def arguments(self, advice: str) -> Iterator[dict[str, Any]]:
        """Yield the arguments as ``WorkOptions.arguments`` does, with those that say how shards are replaced."""
        with WorkOptions.arguments(self, advice) as arguments:
            yield arguments | {"exclusive": self.exclusive, "locks": self.locks}


def read_failures(file: Path) -> list[str]:
    """Return the keys in a file that ``write_failures`` has written.

    Raises:
        InvalidInput: there is no such file, or it is something else.
    """
    try:
        keys = [json.loads(line)["key"] for line in file.read_text().splitlines()]
        if not all(isinstance(key, str) for key in keys):
            raise TypeError("a key is not a text")
        return keys
    except OSError as exc:
        raise InvalidInput(f"--only-failed {file} cannot be read: {exc.strerror}") from exc
    except (ValueError, KeyError, TypeError) as exc:
        raise InvalidInput(f"--only-failed {file} is not what --failures has written: {exc}") from exc


def check_writable(name: str, file: Path | None) -> None:
    """Check, before work begins, that its result can be written there; does nothing without a file.

    Raises:
        InvalidInput: there is no directory for it, or it cannot be written.
    """
    if file is not None and (file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK)):
        raise InvalidInput(f"{name} {file} cannot be written: it is a directory, or its directory is missing or not writable")


def write_failures(file: Path, failed: Iterable[FailedObject]) -> None:
    """Write the failures, one JSON object per line, with key and error.

    Raises:
        InvalidInput: the file cannot be written.
    """
    lines = [json.dumps({"key": failure.key, "error": message(failure.error)}) for failure in failed]
    try:
        file.write_text("".join(line + "\n" for line in lines))
    except OSError as exc:
        raise InvalidInput(f"--failures {file} cannot be written: {exc.strerror}") from exc


@contextmanager
def interruptible(advice: str | Callable[[], str]) -> Iterator[None]:
    """Make one Ctrl-C end the block cleanly, with ``advice``, which is called then; a second one ends the process at once."""
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
        complain("warning", advice if isinstance(advice, str) else advice())
        raise
    finally:
        signal.signal(signal.SIGINT, before)


class FailedObject(Protocol):
    """Something that was given up."""

    @property
    def key(self) -> str: ...

    @property
    def error(self) -> Exception: ...


def end_with(failed: FirstItems[FailedShard], damaged: int) -> None:
    """Report what was not done, and end with an exit code that shows it; does nothing if all was done."""
    for failure in failed.first[:_MOST_SAID]:
        complain("error", f"{failure.key}: {message(failure.error)}")
    if failed.count > _MOST_SAID:
        complain("error", f"and {failed.count - _MOST_SAID:,} more: --failures FILE writes their keys")
    if failed.count:
        complain("error", f"{plural(failed.count, 'shard')} failed; run the same command again to retry")
        raise typer.Exit(exit_code(failed.first[0].error))
    if damaged:
        raise typer.Exit(ExitCode.CORRUPT)
