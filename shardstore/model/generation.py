"""The identity of one version of a stored object, and conditions on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Generation:
    """Names one version of an object: an ETag, a generation number, a file's identity.

    Two equal generations of one key mean equal bytes. The token is opaque above the storage layer.
    """

    token: str


@dataclass(frozen=True, slots=True)
class Unconditional:
    """Write or delete whatever is there."""


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """Write only where there is no object."""


@dataclass(frozen=True, slots=True)
class IfGeneration:
    """Write or delete only where the object is still this version."""

    generation: Generation


Condition = Unconditional | IfAbsent | IfGeneration

UNCONDITIONAL = Unconditional()
IF_ABSENT = IfAbsent()
