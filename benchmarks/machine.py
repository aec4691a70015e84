"""The machine and the versions that something was measured on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Iterable
from pathlib import Path


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _file_system(directory: str) -> str:
    """The type of the file system that ``directory`` lies on."""
    try:
        mounts = [line.split(" ")[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown file system"
    path = os.path.realpath(directory)
    above = [(mount, kind) for mount, kind in mounts if os.path.commonpath([mount, path]) == mount]
    return max(above, key=lambda found: len(found[0]))[1] if above else "unknown file system"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Of those packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine(directory: str | None) -> str:
    """In one line, with the file system of ``directory``, or of temporary files."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} × {_processor()}, {memory:.0f} GiB; {platform.system()} {platform.release()}, "
        f"{_file_system(directory or tempfile.gettempdir())}"
    )
