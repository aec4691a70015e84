"""The references of a set, in columns: some 60 bytes each, where Python's objects would take 400.

::

    key      the keys' characters, one behind the other, in pieces of text; start and length of each, and its hash
    target   (n,) int32: the number of the URL; or INLINE
    offset   (n,) int64: the first byte; of INLINE, the number of the value
    nbytes   (n,) int64: how many; WHOLE: all of the object

A key is found by its hash, by bisection. Of two references with one key the later one counts, as in JSON. The rows are put in the order of
keys when they are first listed.
"""

from __future__ import annotations

import base64
import binascii
import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardstore.errors import Corruption, ShardStoreError

INLINE = -1
WHOLE = -1

MOST_NBYTES = 2**63 - 1

_ENCODED = "base64:"
_BEHIND_SLASH = chr(ord("/") + 1)


class Reference(NamedTuple):
    """``nbytes`` bytes of the object at ``url`` from ``offset``; without ``nbytes``, all of it."""

    url: str | None
    """``None``: the URL that the user gives for such references."""
    offset: int
    nbytes: int | None


class ReferenceTable:
    """The references of a set by key; values that are in the set itself are bytes."""

    def __init__(
        self,
        targets: Sequence[str | None],
        keys: _Keys,
        target: npt.NDArray[np.int32],
        offset: npt.NDArray[np.int64],
        nbytes: npt.NDArray[np.int64],
        inline: Sequence[str],
    ) -> None:
        self.targets = targets
        """The URLs, each once."""
        self._keys = keys
        self._target = target
        self._offset = offset
        self._nbytes = nbytes
        self._inline = inline
        self._by_key: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self._keys.rows)

    def find(self, key: str) -> Reference | bytes | None:
        """Return the reference or the value of a key, or ``None``. Raises ``Corruption`` if the value is not what it says."""
        row = self._keys.row_of(key)
        return None if row is None else self._at(row)

    def _at(self, row: int) -> Reference | bytes:
        target, offset, nbytes = int(self._target[row]), int(self._offset[row]), int(self._nbytes[row])
        if target == INLINE:
            return value_of(self._inline[offset], self._keys.key(row))
        return Reference(self.targets[target], offset, None if nbytes == WHOLE else nbytes)

    def items(self, prefix: str = "") -> Iterator[tuple[str, Reference | bytes]]:
        """Yield the keys that start with ``prefix``, in order, with their references."""
        by_key = self._rows_by_key()
        for i in range(self._first(by_key, prefix), len(by_key)):
            row = int(by_key[i])
            key = self._keys.key(row)
            if not key.startswith(prefix):
                break
            yield key, self._at(row)

    def children(self, prefix: str) -> tuple[list[str], list[str]]:
        """Return the keys directly below ``prefix``, which is empty or ends with ``/``, and the prefixes of deeper ones."""
        by_key = self._rows_by_key()
        keys: list[str] = []
        prefixes: list[str] = []
        i = self._first(by_key, prefix)
        while i < len(by_key) and (key := self._keys.key(int(by_key[i]))).startswith(prefix):
            name, slash, _ = key[len(prefix) :].partition("/")
            if slash:
                prefixes.append(f"{prefix}{name}/")
                i = self._first(by_key, f"{prefix}{name}{_BEHIND_SLASH}", i)
                continue
            if name:
                keys.append(key)
            i += 1
        return keys, prefixes

    def _first(self, by_key: npt.NDArray[np.int32], key: str, lo: int = 0) -> int:
        return bisect_left(range(len(by_key)), key, lo, key=lambda i: self._keys.key(int(by_key[i])))

    def _rows_by_key(self) -> npt.NDArray[np.int32]:
        if self._by_key is None:
            rows = np.sort(self._keys.rows)
            keys = [self._keys.key(row) for row in rows.tolist()]
            order = sorted(range(len(keys)), key=keys.__getitem__)
            self._by_key = rows[np.array(order, dtype=np.intp)]
        return self._by_key


def value_of(text: str, key: str) -> bytes:
    """Return the bytes that a text in a set stands for. Raises ``Corruption`` if it is no base64, and says so."""
    if not text.startswith(_ENCODED):
        return text.encode(errors="surrogatepass")
    try:
        return base64.b64decode(text[len(_ENCODED) :])
    except (binascii.Error, ValueError) as exc:
        raise Corruption(f"the value of {key!r} in a set of references is not base64, as it says: {exc}") from exc


class _Keys:
    """Keys by row; ``rows`` are those that count, in the order of their hashes."""

    def __init__(
        self,
        texts: Sequence[str],
        first_rows: Sequence[int],
        starts: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int32],
        hashes: npt.NDArray[np.int64],
    ) -> None:
        self._texts = texts
        self._first_rows = np.array(first_rows, dtype=np.int64)
        self._starts = starts
        self._lengths = lengths
        order = np.argsort(hashes, kind="stable")
        self._hashes, self.rows = hashes[order], order.astype(np.int32)
        self._drop_replaced()

    def key(self, row: int) -> str:
        text = self._texts[int(self._first_rows.searchsorted(row, side="right")) - 1]
        start = int(self._starts[row])
        return text[start : start + int(self._lengths[row])]

    def row_of(self, key: str) -> int | None:
        wanted = hash(key)
        i = int(self._hashes.searchsorted(wanted))
        while i < len(self._hashes) and self._hashes[i] == wanted:
            if self.key(int(self.rows[i])) == key:
                return int(self.rows[i])
            i += 1
        return None

    def _drop_replaced(self) -> None:
        """Drop all rows but the last of each key. Rows of one hash are in the order in which they came."""
        same = np.flatnonzero(self._hashes[1:] == self._hashes[:-1])
        if not len(same):
            return
        stays = np.ones(len(self.rows), dtype=np.bool_)
        last: dict[str, int] = {}
        for i in np.unique(np.concatenate((same, same + 1))).tolist():
            key = self.key(int(self.rows[i]))
            if key in last:
                stays[last[key]] = False
            last[key] = i
        self._hashes, self.rows = self._hashes[stays], self.rows[stays]


class _Numbers(dict[str | None, int]):
    """The number of each URL, in the order in which they came."""

    def __missing__(self, url: str | None) -> int:
        self[url] = number = len(self)
        return number


class TableBuilder:
    """Collects references that are read in batches."""

    def __init__(self) -> None:
        self._numbers = _Numbers()
        self._texts: list[str] = []
        self._first_rows: list[int] = []
        self._count = 0
        self._columns: list[tuple[npt.NDArray[Any], ...]] = []
        self._inline: list[str] = []

    def add_values(self, values: Mapping[str, Any]) -> None:
        """Add text, objects, ``[url]`` and ``[url, offset, nbytes]`` by key. Raises ``Corruption``, with nothing added, if one is none."""
        if not values:
            return
        given = list(values.values())
        if set(map(type, given)) == {list} and set(map(len, given)) == {3}:
            urls, offsets, lengths = zip(*given, strict=True)
            if set(map(type, urls)) <= {str, type(None)}:
                start, nbytes = np.array(offsets), np.array(lengths)
                if _are_sizes(start, nbytes):
                    self._add(list(values), list(map(self._numbers.__getitem__, urls)), start, nbytes)
                    return
        checked = [_checked(key, value) for key, value in values.items()]
        target, start, nbytes = (np.empty(len(checked), dtype=np.int64) for _ in range(3))
        for i, value in enumerate(checked):
            if isinstance(value, str):
                target[i], start[i], nbytes[i] = INLINE, len(self._inline), 0
                self._inline.append(value)
            else:
                url, offset, length = value
                target[i], start[i], nbytes[i] = self._numbers[url], offset, WHOLE if length is None else length
        self._add(list(values), target, start, nbytes)

    def add_columns(self, keys: Sequence[str], urls: Sequence[str], offsets: Sequence[int] | None, lengths: Sequence[int] | None) -> None:
        """Add references by column; without ``offsets`` and ``lengths``, to whole objects. Raises ``Corruption`` if a number is negative,
        or has more than 63 bits; nothing was added.
        """
        if not keys:
            return
        if offsets is None or lengths is None:
            start, nbytes = np.zeros(len(keys), dtype=np.int64), np.full(len(keys), WHOLE, dtype=np.int64)
        else:
            start, nbytes = np.array(offsets), np.array(lengths)
            if not _are_sizes(start, nbytes):
                for key, url, offset, length in zip(keys, urls, offsets, lengths, strict=True):
                    _checked(key, [url, offset, length])
        self._add(keys, list(map(self._numbers.__getitem__, urls)), start, nbytes)

    def _add(self, keys: Sequence[str], target: Sequence[int] | npt.NDArray[np.int64], start: Any, nbytes: Any) -> None:
        lengths = np.fromiter(map(len, keys), np.int32, len(keys))
        starts = np.cumsum(lengths, dtype=np.int32) - lengths
        hashes = np.fromiter(map(hash, keys), np.int64, len(keys))
        self._texts.append("".join(keys))
        self._first_rows.append(self._count)
        self._count += len(keys)
        self._columns.append((starts, lengths, hashes, np.array(target, dtype=np.int32), start.astype(np.int64), nbytes.astype(np.int64)))

    def rename(self, url_of: Callable[[str, str], str]) -> None:
        """Replace all URLs by what they mean: ``url_of`` takes each once, with what it is in words. Raises as ``url_of`` does."""
        renamed = _Numbers()
        numbers = [renamed[None if url is None else self._meant(url_of, url, number)] for url, number in self._numbers.items()]
        self._numbers = renamed
        new = np.array([*numbers, INLINE], dtype=np.int32)  # so that INLINE, -1, stays what it is
        self._columns = [(*batch[:3], new[batch[3]], *batch[4:]) for batch in self._columns]

    def _meant(self, url_of: Callable[[str, str], str], url: str, number: int) -> str:
        try:
            return url_of(url, "a URL")
        except ShardStoreError:  # again, with the key that has it
            text, batch = next((text, batch) for text, batch in zip(self._texts, self._columns, strict=True) if number in batch[3])
            row = int(np.flatnonzero(batch[3] == number)[0])
            return url_of(url, f"the URL of {text[batch[0][row] : batch[0][row] + batch[1][row]]!r}")

    def finish(self) -> ReferenceTable:
        """Return the table; the builder has nothing left."""
        columns: list[Any] = []
        for i, kind in enumerate((np.int32, np.int32, np.int64, np.int32, np.int64, np.int64)):
            columns.append(np.concatenate([np.empty(0, kind), *(batch[i] for batch in self._columns)], dtype=kind))
            self._columns = [(*batch[:i], np.empty(0, kind), *batch[i + 1 :]) for batch in self._columns]  # lets go of what was copied
        starts, lengths, hashes, target, start, nbytes = columns
        keys = _Keys(self._texts, self._first_rows, starts, lengths, hashes)
        return ReferenceTable(list(self._numbers), keys, target, start, nbytes, self._inline)


def _are_sizes(start: npt.NDArray[Any], nbytes: npt.NDArray[Any]) -> bool:
    """Return whether these are integers that are not negative, and whose sums have no more than 63 bits."""
    if start.dtype != np.int64 or nbytes.dtype != np.int64:
        return False
    return bool(start.min() >= 0 and nbytes.min() >= 0 and (MOST_NBYTES - start >= nbytes).all())


def _checked(key: str, value: Any) -> str | tuple[str | None, int, int | None]:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return json.dumps(value)
    is_one = isinstance(value, list | tuple) and len(value) in (1, 3) and (value[0] is None or isinstance(value[0], str))
    if is_one and all(isinstance(n, int) and n >= 0 for n in value[1:]):
        if sum(value[1:]) > MOST_NBYTES:
            raise Corruption(f"the reference {key!r} is {value!r:.200}: no object has so many bytes")
        return (value[0], 0, None) if len(value) == 1 else (value[0], value[1], value[2])
    raise Corruption(f"the reference {key!r} is {value!r:.200}, and neither text, an object, [url] nor [url, offset, length]")
