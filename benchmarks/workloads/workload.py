"""What a workload is: work that every contender does on the same data, and that is measured in a process of its own."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from aging_store import let_age
from contenders import Address, Contender, OpenArray, Place, StorageName, Values
from counting_s3 import Counts
from datasets import Form, Scale, warm

Extra = dict[str, float]


@dataclass(frozen=True, slots=True)
class Arena:
    """Where one contender does its work once."""

    contender: Contender
    place: Place
    scale: Scale
    run_name: str
    """Of what it writes: new in each run."""

    @property
    def storage(self) -> StorageName:
        return self.place.storage

    def address(self, name: str) -> Address:
        return Address(self.place, name)

    @property
    def directory(self) -> Path:
        """Of storage that is one, or a delayed one."""
        return Path(self.place.path)


def _nothing() -> None:
    return None


@dataclass(slots=True)
class Task:
    """Work that is prepared."""

    run: Callable[[], Extra | None]
    """What is measured. Figures that it returns replace those of the same name that were taken around it."""
    checksum: Callable[[], int | None] = _nothing
    """Of what was read, or of what is stored now; called afterwards. ``None`` of those who decode nothing."""
    counts: Callable[[], Counts | None] = _nothing
    """Requests so far, where they are counted inside the process."""
    facts: Callable[[], Extra] = dict
    """What else is to be known of the work, such as the bytes it was about; called afterwards."""
    before: Callable[[], None] = _nothing
    """What each run needs and is not measured."""


@dataclass(frozen=True, slots=True)
class Workload(ABC):
    """One of the benchmarks."""

    name: str
    title: str
    storages: tuple[StorageName, ...]
    entrants: tuple[Contender, ...]

    @abstractmethod
    def prepare(self, arena: Arena) -> Task:
        """Do what is not to be measured, such as importing and opening."""

    def make(self, root: Path, scale: Scale, storage: StorageName) -> None:
        """Make the data below ``root``, where another workload has not made it; in the driver, once."""
        return

    def rounds(self, scale: Scale, storage: StorageName) -> int:
        return scale.rounds[storage]

    def turns(self, scale: Scale) -> tuple[int, int] | None:
        """Of workloads whose contenders take turns in one process: of those with bars, and of the others; ``None`` of all else."""
        return None


def checksum(parts: Iterable[Values | bytes]) -> int:
    """Of values, in order."""
    value = 0
    for part in parts:
        value = zlib.crc32(part if isinstance(part, bytes) else np.ascontiguousarray(part).reshape(-1).view("u1").data, value)
    return value


def made(root: Path, name: str, make: Callable[..., None], form: Form | int, **options: Any) -> None:
    """Make an array below ``root``, unless it is there."""
    if not (root / name / "zarr.json").exists():
        make(root, name, form, **options)
        let_age(root / name)


def opened(arena: Arena, name: str) -> OpenArray:
    """The array, whose files are in the page cache: what has not been touched for seconds, some systems take out of it."""
    if arena.place.endpoint is None:
        warm(arena.directory / name)
    return arena.contender.open(arena.address(name))


def decodes(contender: Contender) -> bool:
    """Whether what it reads are the values."""
    return bool(getattr(contender, "codecs", True))


def percentile(seconds: Sequence[float], share: int) -> float:
    return float(np.percentile(np.array(seconds), share))
