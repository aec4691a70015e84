"""Objects of the target that a unit has made: their keys, sizes and versions, in some 40 bytes each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_BETWEEN = "\0"  # no key holds it


class MadeObject(NamedTuple):
    """One object. ``version`` is ``version_digest``, 0 where the storage gave none."""

    key: str
    nbytes: int
    version: int


@dataclass(frozen=True, slots=True)
class Made:
    """Objects by key, relative to the target."""

    prefix: str = ""
    """The common start of all keys; ``names`` has the rest, joined."""
    names: str = ""
    numbers: bytes = b""
    """The sizes, then the versions: ``(2, n)``, uint64."""

    @classmethod
    def of(cls, prefix: str, names: Sequence[str], sizes: Sequence[int], versions: Sequence[int]) -> Made:
        """Return the objects as one value. Raises ``ValueError`` where the numbers of keys, sizes and versions differ."""
        if not len(names) == len(sizes) == len(versions):
            raise ValueError(f"{len(names)} objects have {len(sizes)} sizes and {len(versions)} versions")
        return cls(prefix, _BETWEEN.join(names), np.array([sizes, versions], dtype=np.uint64).tobytes())

    def __len__(self) -> int:
        return len(self.numbers) // 16

    @property
    def sizes(self) -> npt.NDArray[np.uint64]:
        """``(n,)``"""
        return np.frombuffer(self.numbers, dtype=np.uint64)[: len(self)]

    @property
    def versions(self) -> npt.NDArray[np.uint64]:
        """``(n,)``"""
        return np.frombuffer(self.numbers, dtype=np.uint64)[len(self) :]

    @property
    def nbytes(self) -> int:
        return int(self.sizes.sum())

    @property
    def tells_versions(self) -> bool:
        """True where the storage has given the version of each."""
        return bool(self.versions.all())

    def relative(self) -> list[str]:
        """Return the keys without the prefix."""
        return self.names.split(_BETWEEN) if len(self) else []

    def keys(self) -> list[str]:
        return [self.prefix + name for name in self.relative()]

    def hashes(self) -> npt.NDArray[np.int64]:
        """Return ``(n,)``: ``hash`` of each key, valid in this process."""
        return np.array(list(map(hash, self.keys())), dtype=np.int64)

    def __iter__(self) -> Iterator[MadeObject]:
        for key, nbytes, version in zip(self.keys(), self.sizes.tolist(), self.versions.tolist(), strict=True):
            yield MadeObject(key, nbytes, version)


NOTHING = Made()
