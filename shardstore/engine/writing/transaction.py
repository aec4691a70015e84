"""The overlay of a transaction. It holds values back by presented key: in memory up to a bound, and in a temporary file past it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from shardstore.engine.actions import ERASE, EraseValue, SetIfMissing, SetValue
from shardstore.errors import StorageError
from shardstore.model.ranges import BytesLike


@dataclass(frozen=True, slots=True)
class Spilled:
    """Bytes in the temporary file."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class HeldKeys:
    """The decisions of a transaction at one moment: the size of each key's value, ``None`` where it is erased, and erased prefixes."""

    sizes: dict[str, int | None]
    erased_prefixes: tuple[str, ...]

    def decides(self, key: str) -> bool:
        return key in self.sizes or any(key.startswith(prefix) for prefix in self.erased_prefixes)


class Overlay:
    """The writes of one open transaction, as a layer over what is stored. Used on one event loop only."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._in_memory = 0
        self._values: dict[str, bytes | Spilled | None] = {}  # None: erased
        self._conditional: set[str] = set()
        self._instead: dict[str, SetValue] = {}
        self._erased_prefixes: list[str] = []
        self._file: IO[bytes] | None = None

    def set(self, key: str, data: BytesLike, *, only_if_missing: bool = False, instead: SetValue | None = None) -> None:
        """Hold a value back. ``only_if_missing``: on condition that there is none, which holds again at the commit.

        ``instead`` is carried out at the commit, if it is given: then ``data`` is only what clients see.

        Raises:
            StorageError: the temporary file cannot take it; what was held back before is still held back.
        """
        kept = self._kept(bytes(data))
        self._forget(key)
        self._values[key] = kept
        if isinstance(kept, bytes):
            self._in_memory += len(kept)
        if only_if_missing:
            self._conditional.add(key)
        if instead is not None:
            self._instead[key] = instead

    def _kept(self, data: bytes) -> bytes | Spilled:
        if self._in_memory + len(data) <= self._memory_bytes:
            return data
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="shardstore-transaction-")  # noqa: SIM115  # closed with the overlay
            offset = self._file.seek(0, 2)
            self._file.write(data)
            self._file.flush()
        except OSError as exc:
            raise StorageError(f"a transaction cannot hold back {len(data)} bytes more in {tempfile.gettempdir()}: {exc}") from exc
        return Spilled(offset, len(data))

    def erase(self, key: str) -> None:
        self._forget(key)
        self._values[key] = None

    def erase_prefix(self, prefix: str) -> None:
        """Erase everything below ``prefix``, stored or held back."""
        for key in [key for key in self._values if key.startswith(prefix)]:
            self._forget(key)
        self._erased_prefixes.append(prefix)

    def _forget(self, key: str) -> None:
        self._conditional.discard(key)
        self._instead.pop(key, None)
        value = self._values.pop(key, None)
        if isinstance(value, bytes):
            self._in_memory -= len(value)

    def decides(self, key: str) -> bool:
        """Return whether the transaction says what the key's value is."""
        return key in self._values or self.erased_below(key)

    def erased_below(self, key: str) -> bool:
        return any(key.startswith(prefix) for prefix in self._erased_prefixes)

    def get(self, key: str) -> bytes | None:
        """Return the value that the transaction gave a key; ``None`` where it erased it."""
        value = self._values.get(key)
        if not isinstance(value, Spilled):
            return value
        assert self._file is not None
        self._file.seek(value.offset)
        return self._file.read(value.nbytes)

    def instead(self, key: str) -> SetValue | None:
        """Return what is carried out at the commit instead of setting the value that clients see."""
        return self._instead.get(key)

    def action(self, key: str) -> SetValue | SetIfMissing | EraseValue:
        """Return what the transaction does to a key, for the commit."""
        if (instead := self._instead.get(key)) is not None:
            return instead
        data = self.get(key)
        if data is None:
            return ERASE
        return SetIfMissing(data) if key in self._conditional else SetValue(data)

    def nbytes(self, key: str) -> int | None:
        value = self._values.get(key)
        return value.nbytes if isinstance(value, Spilled) else None if value is None else len(value)

    def held(self) -> Iterator[str]:
        """Return the keys with a value or an erasure of their own."""
        return iter(list(self._values))

    def snapshot(self) -> HeldKeys:
        return HeldKeys({key: self.nbytes(key) for key in self._values}, tuple(self._erased_prefixes))

    @property
    def erased_prefixes(self) -> list[str]:
        return list(self._erased_prefixes)

    def close(self) -> None:
        self._values.clear()
        if self._file is not None:
            self._file.close()
            self._file = None
