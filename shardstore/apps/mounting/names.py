"""Names of files: those that programs use for a moment, and documents."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from shardstore.format.json_text import parse_object
from shardstore.format.metadata_v3 import METADATA_NAME, is_array
from shardstore.format.store_keys import join
from shardstore.format.v2.keys import ARRAY_NAME, DOCUMENT_NAMES

T = TypeVar("T")

_ATTRIBUTES = (".zattrs", ".zmetadata")  # of the documents of Zarr v2

DIRECTORY = -1
"""Stands for the size of a directory in listings."""

_SCRATCH = re.compile(
    r"""
    .*\.(partial|__lock|tmp|swp|swo|swx)   # zarr-python, tensorstore, many; vim
    | .*~ | \#.*\# | \.\#.*                # what editors keep for a moment
    | \.nfs.* | \.fuse_hidden.* | \.goutputstream-.* | \.~lock.*
    | \..+\.(?=[A-Za-z]*[A-Z0-9])[A-Za-z0-9]{6} | sed(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{6}   # rsync, sed -i: random letters and digits
    """,
    re.VERBOSE,
)


def is_scratch(name: str) -> bool:
    """Return whether programs give such a name to a file that they rename or remove soon. It never reaches the storage."""
    return _SCRATCH.fullmatch(name) is not None


def is_document(path: str) -> bool:
    """Return whether a path is that of a metadata document, in any format."""
    name = path.rpartition("/")[2]
    return name == METADATA_NAME or name in DOCUMENT_NAMES or (path.startswith("meta/") and name.endswith((".array.json", ".group.json")))


def is_array_document(path: str, data: bytes) -> bool:
    """Return whether a document, with these bytes, makes its node an array."""
    if name_of(path) == ARRAY_NAME:
        return True
    document = parse_object(data) if name_of(path) == METADATA_NAME else None
    return document is not None and is_array(document)


def document_rank(path: str) -> tuple[int, int]:
    """Return a key to sort documents by in the order in which they are created: nodes above first, attributes after their node."""
    return path.count("/"), path.endswith(_ATTRIBUTES)


def parent_of(path: str) -> str:
    return path.rpartition("/")[0]


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def in_order(name: str) -> tuple[int, int, str]:
    """Return a key to sort names by in which numbers are in their own order, as chunks are."""
    return (0, int(name), name) if name.isdecimal() and len(name) < 20 else (1, 0, name)


def shown_order(directory: str, names: Mapping[str, int]) -> list[str]:
    """Return the names in a directory, given with their sizes, in the order in which they are shown: directories first, documents last.

    Programs remove files in this order. Attributes come before the document of their node, with which they would be gone.
    """
    return sorted(names, key=lambda name: (names[name] != DIRECTORY, _document_order(join(directory, name)), in_order(name)))


def _document_order(path: str) -> int:
    return 0 if not is_document(path) else 1 if path.endswith(_ATTRIBUTES) else 2


def moved_path(path: str, source: str, target: str) -> str:
    """Return the name that ``path``, at or below ``source``, has after ``source`` was renamed to ``target``."""
    return target + path[len(source) :]


class ByPath(dict[str, T]):
    """Values by path, whose names in one directory are found at once."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[str, dict[str, None]] = {}

    def __setitem__(self, path: str, value: T) -> None:
        super().__setitem__(path, value)
        self._names.setdefault(parent_of(path), {})[name_of(path)] = None

    def remove(self, path: str) -> T | None:
        """Remove the value at ``path``, if there is one, and return it."""
        if path not in self:
            return None
        names = self._names[parent_of(path)]
        del names[name_of(path)]
        if not names:
            del self._names[parent_of(path)]
        return super().pop(path)

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory."""
        return list(self._names.get(directory, ()))

    def below(self, directory: str) -> list[str]:
        """Return all paths below a directory."""
        begin = f"{directory}/" if directory else ""
        return [path for path in self if path.startswith(begin)]
