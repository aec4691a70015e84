"""Chunk key encodings of Zarr v3: the ways to write a chunk's grid position in its key.

::

    default, "/":  c/0/3/1      0-d: c
    default, ".":  c.0.3.1      0-d: c
    v2, "/":       0/3/1        0-d: 0
    v2, ".":       0.3.1        0-d: 0

Keys here are relative to the array: without its path. Parsing is strict, because two spellings of one position would
be two keys for one chunk: ASCII decimal digits, no sign, no leading zero, exactly the array's rank. Specification:
Zarr v3, "Chunk key encoding".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shardstore.model.chunks import ChunkCoords

_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,18})", re.ASCII)  # below 10**19 < 2**64: no array has more chunks along a side
_LOOKS_LIKE_CHUNK = re.compile(r"c|(?:c[/.])?[0-9]+(?:/[0-9]+)*|(?:c[/.])?[0-9]+(?:\.[0-9]+)*", re.ASCII)
_DIGITS_OF_CHUNK = re.compile(r"(?:c[/.]?)?[0-9/.]*", re.ASCII)
_LOOKS_LIKE_CHUNK_PREFIX = re.compile(r"(?:c(?:[/.]|$))?(?:[0-9]+[/.])*[0-9]*", re.ASCII)


@lru_cache
def _all_canonical(name: str, separator: str, ndim: int) -> re.Pattern[str]:
    """Return a pattern for canonical keys, one per line, of numbers that fit 64 bits."""
    number, between = "(?:0|[1-9][0-9]{0,17})", re.escape(separator)
    key = ("c" + between if name == "default" else "") + between.join([number] * ndim)
    return re.compile(rf"{key}(?:\n{key})*", re.ASCII)


def _texts(numbers: npt.NDArray[np.int64]) -> list[str]:
    """Return numbers as text, of which many are the same."""
    if not len(numbers):
        return []
    first, count = int(numbers.min()), int(numbers.max()) - int(numbers.min()) + 1
    if count > len(numbers):
        return list(map(str, numbers.tolist()))
    found: list[str] = np.array(list(map(str, range(first, first + count))), dtype=object)[numbers - first].tolist()
    return found


@dataclass(frozen=True, slots=True)
class ChunkKeyEncoding:
    name: Literal["default", "v2"] = "default"
    separator: Literal["/", "."] = "/"

    def encode(self, coords: ChunkCoords) -> str:
        if self.name == "default":
            return self.separator.join(("c", *map(str, coords)))
        return self.separator.join(map(str, coords)) if coords else "0"

    def encode_all(self, axes: Sequence[Sequence[int]]) -> list[str]:
        """Return the keys of many positions, given dimension by dimension (at least one), all with the same number of coordinates."""
        head = f"c{self.separator}" if self.name == "default" else ""
        return [head + self.separator.join(coords) for coords in zip(*(map(str, axis) for axis in axes), strict=True)]

    def encode_halves(self, axes: Sequence[npt.NDArray[np.int64]], above: str = "") -> tuple[list[str], list[str]]:
        """Return the keys of many positions, given as ``encode_all`` takes them, each in two parts: ``above`` and the key up to its last
        coordinate, and that.

        Fast where neighbours differ in the last coordinate only, and the coordinates of each dimension are near to each other.
        """
        *leading, last = axes
        head = above + (f"c{self.separator}" if self.name == "default" else "")
        changes = np.zeros(len(last), dtype=np.bool_)
        changes[:1] = True
        for axis in leading:
            changes[1:] |= axis[1:] != axis[:-1]
        begins = np.flatnonzero(changes)
        beginnings = [
            head + "".join(f"{n}{self.separator}" for n in coords)
            for coords in zip(*(axis[begins].tolist() for axis in leading), strict=True)
        ] or [head] * len(begins)
        lengths = np.diff(begins, append=len(last))
        return np.repeat(np.array(beginnings, dtype=object), lengths).tolist(), _texts(last)

    def decode(self, key: str, ndim: int) -> ChunkCoords | None:
        """Return the position that ``key`` writes canonically for an array of ``ndim`` dimensions, else ``None``."""
        if ndim == 0:
            return () if key == self.encode(()) else None
        parts = key.split(self.separator)
        if self.name == "default" and parts.pop(0) != "c":
            return None
        if len(parts) != ndim or not all(map(_NUMBER.fullmatch, parts)):
            return None
        return tuple(map(int, parts))

    def decode_all(self, keys: Sequence[str], ndim: int) -> npt.NDArray[np.int64] | None:
        """Return ``(len(keys), ndim)``: the positions that ``keys`` write canonically. ``None`` where one of them does not, or needs more
        than 18 digits, or ``ndim`` is 0. Takes at least one key.
        """
        text = "\n".join(keys)
        if not ndim or text.count("\n") != len(keys) - 1 or _all_canonical(self.name, self.separator, ndim).fullmatch(text) is None:
            return None
        head = f"c{self.separator}" if self.name == "default" else ""
        numbers = text.replace(head, "").replace(self.separator, " ")
        return np.fromstring(numbers, dtype=np.int64, sep=" ").reshape(len(keys), ndim)

    def leading_coords(self, prefix: str, ndim: int) -> ChunkCoords:
        """Return the leading coordinates that a key prefix fixes: those followed by a separator, and all of a full key.

        ``c/5/1`` fixes ``(5,)`` of three dimensions (``1`` may continue as ``12``), ``c/5/1/`` fixes ``(5, 1)``. A string that cannot
        be a prefix of a canonical key fixes nothing; a caller filters by the prefix in any case.
        """
        if ndim == 0:
            return ()
        parts = prefix.split(self.separator)
        if self.name == "default" and parts.pop(0) != "c":
            return ()
        settled = parts[:-1][:ndim]
        if not all(map(_NUMBER.fullmatch, settled)):
            return ()
        return tuple(map(int, settled))

    def prefix_of(self, leading: ChunkCoords, ndim: int) -> str:
        """Return the longest prefix of every key below these leading coordinates."""
        if ndim == 0:
            return self.encode(())
        if len(leading) == ndim:
            return self.encode(leading)
        head = ["c"] if self.name == "default" else []
        head += [str(c) for c in leading]
        return "".join(part + self.separator for part in head)


@dataclass(frozen=True, slots=True)
class NumberedChunks:
    """The chunks of an array at ``path``, numbered in C order of its grid, and how their keys are written."""

    path: str
    grid: tuple[int, ...]
    encoding: ChunkKeyEncoding

    @property
    def above(self) -> str:
        """What comes before its chunks' names in their keys."""
        return f"{self.path}/" if self.path else ""

    @property
    def count(self) -> int:
        return prod(self.grid)

    def number_of(self, name: str) -> int | None:
        """Return the number of a chunk by its key without ``above``, or ``None`` if it is none."""
        coords = self.encoding.decode(name, len(self.grid))
        if coords is None or any(c >= n for c, n in zip(coords, self.grid, strict=True)):
            return None
        number = 0
        for c, n in zip(coords, self.grid, strict=True):
            number = number * n + c
        return number

    def keys_of(self, numbers: Sequence[int] | npt.NDArray[np.int64]) -> list[str]:
        """Return the keys of chunks by their numbers."""
        if not self.grid:
            return [self.above + self.encoding.encode(())] * len(numbers)
        axes = [axis.tolist() for axis in np.unravel_index(np.array(numbers, dtype=np.int64), self.grid)]
        return [self.above + name for name in self.encoding.encode_all(axes)]

    def numbers_below(self, prefix: str) -> range:
        """Return the numbers of the chunks whose keys can start with ``prefix``; there may be more among them."""
        if not prefix.startswith(self.above):
            return range(self.count if self.above.startswith(prefix) else 0)
        rest = prefix[len(self.above) :]
        if _DIGITS_OF_CHUNK.fullmatch(rest) is None:
            return range(0)
        leading = self.encoding.leading_coords(rest, len(self.grid))
        if any(c >= n for c, n in zip(leading, self.grid, strict=False)):
            return range(0)
        first, width = 0, self.count
        for c, n in zip(leading, self.grid, strict=False):
            width //= n
            first += c * width
        return range(first, first + width)


def parse_chunk_key_encoding(document: Any) -> ChunkKeyEncoding | None:
    """Return the encoding that an array's ``chunk_key_encoding`` member names, or ``None`` where it is not known here."""
    if isinstance(document, str):
        document = {"name": document}
    if not isinstance(document, dict) or document.get("name") not in ("default", "v2"):
        return None
    name = document["name"]
    configuration = document.get("configuration", {})
    if not isinstance(configuration, dict) or set(configuration) - {"separator"}:
        return None
    separator = configuration.get("separator", "/" if name == "default" else ".")
    if separator not in ("/", "."):
        return None
    return ChunkKeyEncoding(name, separator)


def looks_like_chunk_key(relative_key: str) -> bool:
    """Return whether some encoding of some rank could write this key; only the array's metadata can show whether it does."""
    return _LOOKS_LIKE_CHUNK.fullmatch(relative_key) is not None


def looks_like_chunk_prefix(relative_prefix: str) -> bool:
    """Return whether a chunk key could start with this; true for the empty prefix."""
    return _LOOKS_LIKE_CHUNK_PREFIX.fullmatch(relative_prefix) is not None
