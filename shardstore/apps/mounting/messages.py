"""What the process that starts a mount, and the process of the mount, tell each other by pipes, pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Durable = Literal["close", "fsync"]
"""When a file is stored: when it is closed, or in batches, by ``fsync`` and some time after it was closed."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is mounted, where and how."""

    url: str | Path
    """A path object is never taken for the URL of a snapshot, where it exists."""
    directory: str
    ready: int
    """The descriptor of the pipe by which the process reports."""
    storage_options: Mapping[str, Any]
    options: Mapping[str, Any]
    read_only: bool
    durable: Durable
    attr_seconds: float
    read_ahead: int
    write_memory: int
    allow_other: bool
    uid: int | None
    gid: int | None
    umask: int
    xattrs: bool
    log_file: str | None
    outlives: bool
    """True if it goes on when the process that started it has ended."""


@dataclass(frozen=True, slots=True)
class Ready:
    """It is mounted; the URL has no credentials."""

    url: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """It cannot be mounted."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Ended:
    """It is not mounted any more; ``unstored`` are the keys of values that could not be stored."""

    unstored: tuple[str, ...]


Report = Ready | Failed | Ended
