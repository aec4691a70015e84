"""The version of zarr-python that a program uses, found without an import of it.

Version 2 has none of the modules that the face for zarr-python is made for.
"""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from types import ModuleType


@functools.cache
def has_zarr2() -> bool:
    """Return whether the zarr-python that is installed is version 2."""
    try:
        return importlib.metadata.version("zarr").startswith("2.")
    except importlib.metadata.PackageNotFoundError:
        return False


def imported_zarr() -> ModuleType | None:
    """Return zarr-python 3 or newer, if the program has imported it; ``None`` if it has not, or has version 2."""
    zarr = sys.modules.get("zarr")
    return None if zarr is None or has_zarr2() else zarr
