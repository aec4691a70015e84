"""Objects of the target that a unit has made: their keys, sizes and versions, in some 40 bytes each; and digests of their bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardstore.model.ranges import ByteRange
from shardstore.storage.base import Found, Read, Storage, read_one

_BETWEEN = "\0"  # no key holds it
_BYTES_AT_ONCE = 4 << 20


class MadeObject(NamedTuple):
    """One object. ``version`` is ``version_digest``, 0 if the storage gave none."""

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
        """Return the objects as one value. Raises ``ValueError`` if the numbers of keys, sizes and versions differ."""
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
        """True if the storage has given the version of each."""
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


async def digest_of_contents(storage: Storage, made: Made) -> str:
    """Return a digest by which these objects are recognised when they are read again; empty if one is absent, or has another length.
    Raises ``StorageError`` if a request failed.
    """
    digest = hashlib.blake2b(digest_size=16)
    for key, nbytes, _ in made:
        digest.update(f"{key}\0{nbytes}\0".encode(errors="surrogatepass"))
        for start in range(0, max(1, nbytes), _BYTES_AT_ONCE):
            wanted = ByteRange(start, min(nbytes, start + _BYTES_AT_ONCE))
            outcome = await read_one(storage, Read(key, (wanted,)))
            if not isinstance(outcome, Found) or outcome.nbytes != nbytes:
                return ""
            digest.update(outcome.buffers[0])
    return digest.hexdigest()
