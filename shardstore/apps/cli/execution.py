"""Options of commands that work for long: where the work is done, which part of it, what stays unchanged, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from shardstore._sync import run_sync
from shardstore.adapters.store_paths import StorePath, is_versioned_store, options_for
from shardstore.apps.cli.output import ExitCode, complain, end, exit_code, message
from shardstore.errors import InvalidInput, StorageError, Unsupported
from shardstore.maintenance.cluster import ExecutorLike
from shardstore.maintenance.execution import DEFAULT_MAX_MEMORY, MAX_MEMORY, PART, RETRIES, WORKERS
from shardstore.maintenance.packing.unfinished import unfinished
from shardstore.maintenance.pins import Pin, parse_pins
from shardstore.maintenance.shards import FailedShard, FirstItems
from shardstore.model.options import CommandOption, option
from shardstore.model.words import plural
from shardstore.progress.shown import step_bar
from shardstore.progress.steps import Step

if TYPE_CHECKING:
    from shardstore.maintenance.census import Unread

P = ParamSpec("P")

Scheduler = Annotated[str | None, CommandOption("A dask cluster that does the work.", "HOST:PORT", group="Run")]

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
    failures: Annotated[Path | None, CommandOption("Write the keys that failed into this file.", "FILE", group="Run")] = None
    failed_from: Annotated[
        Path | None, CommandOption("Do only the keys in this file, which --failures wrote.", "FILE", group="Selection")
    ] = None

    @contextmanager
    def running(self, advice: str, step: Callable[P, Step]) -> Iterator[tuple[dict[str, Any], Callable[P, None]]]:
        """Yield the arguments of ``Execution.of``, and the function that shows progress, for a block that Ctrl-C ends with ``advice``.

        Raises:
            InvalidInput: an option cannot be right.
            Unsupported, StorageError: as ``cluster``.
        """
        check_writable("--failures", self.failures)
        only = None if self.failed_from is None else read_failures(self.failed_from)
        given = {"part": self.part, "workers": self.workers, "retries": self.retries, "max_memory": self.max_memory, "only": only}
        with interruptible(advice), cluster(self.scheduler) as executor, step_bar() as bar:
            yield given | {"executor": executor}, lambda *args, **kwargs: bar(step(*args, **kwargs))

    def write_failures(self, failed: Iterable[FailedShard | Unread]) -> None:
        """Write what failed into the file of ``--failures``, if one is given: one JSON object per line, with key and error.

        Raises:
            InvalidInput: the file cannot be written.
        """
        if self.failures is None:
            return
        lines = [json.dumps({"key": failure.key, "error": message(failure.error)}) for failure in failed]
        try:
            self.failures.write_text("".join(line + "\n" for line in lines))
        except OSError as exc:
            raise InvalidInput(f"--failures {self.failures} cannot be written: {exc.strerror}") from exc


@dataclass(frozen=True, slots=True)
class ReplaceOptions(WorkOptions):
    """The options of work that replaces shards."""

    exclusive: bool = option(False, "Confirm that no other program writes meanwhile.", group="Expert")
    locks: str = option("auto", "cluster: locks also hold between machines.", "auto|cluster", group="Expert")

    def replacing(self) -> dict[str, Any]:
        """Return the arguments that say how shards are replaced."""
        return {"exclusive": self.exclusive, "locks": self.locks}


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
        raise InvalidInput(f"--failed-from {file} cannot be read: {exc.strerror}") from exc
    except (ValueError, KeyError, TypeError) as exc:
        raise InvalidInput(f"--failed-from {file} is not what --failures has written: {exc}") from exc


def check_writable(name: str, file: Path | None) -> None:
    """Check, before work begins, that its result can be written there; does nothing without a file.

    Raises:
        InvalidInput: there is no directory for it, or it cannot be written.
    """
    if file is not None and (file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK)):
        raise InvalidInput(f"{name} {file} cannot be written: it is a directory, or its directory is missing or not writable")


def unfinished_pack(target: StorePath) -> str | None:
    """Return, in words, that a pack into a store has not ended; ``None`` if no record next to the store shows that. Makes one listing."""
    if target.handle.snapshot is not None:
        return None
    root = target.address.at(target.depth)
    record = run_sync(unfinished(root, target.engine.canonical.storage, dict(target.options) or None, is_there=target.has_root))
    if record is None:
        return None
    return f"a pack into it has not ended, as its record {record} shows: run the same pack again to end it"


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


def end_with(failed: FirstItems[FailedShard], damaged: int) -> None:
    """Report what was not done, and end with an exit code that shows it; does nothing if all was done."""
    for failure in failed.first[:_MOST_SAID]:
        complain("error", f"{failure.key}: {message(failure.error)}")
    if failed.count > _MOST_SAID:
        complain("error", f"and {failed.count - _MOST_SAID:,} more: --failures FILE writes their keys")
    if failed.count:
        end(exit_code(failed.first[0].error), f"{plural(failed.count, 'shard')} failed; run the same command again to retry")
    if damaged:
        raise typer.Exit(ExitCode.CORRUPT)


@dataclass(frozen=True, slots=True)
class HeldOptions:
    """The options that name pinned shards: offsets into them are held elsewhere."""

    pins: Annotated[Path | None, CommandOption("Do not change the shards that this file names.", "FILE", group="Selection")] = None
    pins_of: Annotated[
        list[str] | None, CommandOption("Do not change shards that this refers to; repeatable.", "SET", group="Selection")
    ] = None

    def held(self, url: str, options: Mapping[str, Any]) -> list[Pin]:
        """Return all pins, whose keys are from ``url``, the root of the store. Sets of its protocol are opened with its ``options``.

        Raises:
            InvalidInput: a file cannot be read, or holds something else; or a set, or versioned store, refers to nothing below ``url``.
            NotFound: there is no such set, or it has no pins.
        """
        found: list[Pin] = []
        if self.pins is not None:
            try:
                found = parse_pins(self.pins.read_text())
            except (OSError, UnicodeError) as exc:
                raise InvalidInput(f"--pins {self.pins} cannot be read: {exc}") from exc
        for target in self.pins_of or ():
            found += _pins_of(target, url, options)
        return found


def _pins_of(target: str, url: str, options: Mapping[str, Any]) -> list[Pin]:
    from shardstore.references import pins  # imports much that most commands do not need

    shared = options_for(target, url, options)
    if not is_versioned_store(target, shared):
        return pins(target, store=url, target_options=shared)
    from shardstore.adapters.versioned.repository import Repository

    return Repository.open(target, storage_options=shared).pins(url, storage_options=options)
