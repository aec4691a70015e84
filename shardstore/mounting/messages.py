"""What the process that starts a mount, and the process of the mount, tell each other by pipes, pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardstore.mounting.held_back import Durable


@dataclass(frozen=True, slots=True)
class Task:
    """What is mounted, where and how."""

    url: str
    directory: str
    ready: int
    """The descriptor of the pipe by which the process reports."""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    read_only: bool = False
    durable: Durable = "close"
    attr_seconds: float = 1.0
    read_ahead: int = 16 * 2**20
    write_memory: int = 256 * 2**20
    allow_other: bool = False
    uid: int | None = None
    gid: int | None = None
    umask: int = 0o022
    xattrs: bool = False
    log_file: str | None = None
    outlives: bool = False
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
