"""The identity of one version of a stored object, and conditions on it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import google_crc32c


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """The name of one version of an object: an ETag, a generation number, a file's identity.

    Two equal generations of one key mean equal bytes. The token is opaque above the storage layer.
    """

    token: str
    modified: float | None = None
    """When the version was stored, in seconds since the epoch, if the storage says so along with the version. It is for people and for
    programs that compare files by their times: nothing here is decided by it, and versions that differ in it alone are equal.
    """

    def __eq__(self, other: object) -> bool:
        return self.token == other.token if isinstance(other, Generation) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.token)

    @property
    def digest(self) -> int:
        """64 bits of the token, never 0 and the same in every process, to compare with those of generations of the same storage."""
        data = self.token.encode(errors="surrogatepass")
        return (google_crc32c.value(data) << 32 | zlib.crc32(data)) or 1

    def may_be(self, digest: int) -> bool:
        """Return whether a digest is that of this version, or of one that perhaps has the same bytes: of a file that has got another mode,
        owner or name since, or was found again after a loss of power.
        """
        return digest == self.digest


@dataclass(frozen=True, slots=True)
class Unconditional:
    """The condition to write or delete whatever is there."""


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """The condition to write only where there is no object."""


@dataclass(frozen=True, slots=True)
class IfGeneration:
    """The condition to write or delete only where the object still is this version."""

    generation: Generation


Condition = Unconditional | IfAbsent | IfGeneration

UNCONDITIONAL = Unconditional()
IF_ABSENT = IfAbsent()
