"""A filesystem in memory that nothing else sees, with any version of fsspec."""

from __future__ import annotations

from typing import Any

from fsspec.implementations.memory import MemoryFileSystem


class OwnMemory(MemoryFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """fsspec's filesystem in memory, each instance with files of its own. (fsspec has an option for that from 2026.9 on.)"""

    cachable = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]
