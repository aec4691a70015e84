"""Versions of the objects that a set of references shows.

::

    ref-4b1c…90:"9a0364b9"        a reference, by a digest of URL, offset and length, and the version of the object that it leads to
    inline-5f0c…                  bytes that are in the set itself, by their digest
"""

from __future__ import annotations

import hashlib

from shardstore.format.references.table import Reference
from shardstore.model.generation import Generation

_REFERENCE = "ref-"
_DIGEST_NBYTES = 12


class _Passing(Generation):
    """The version of an object whose storage gave a version that equals no other."""

    __slots__ = ()

    @property
    def digest(self) -> int:
        return 0


def presented_version(reference: Reference, target: Generation) -> Generation:
    """Return the version of what a reference shows, from the version of the object that it leads to."""
    cls = Generation if target.digest else _Passing
    return cls(f"{_prefix(reference)}{target.token}", target.modified)


def target_version(reference: Reference, presented: Generation) -> Generation | None:
    """Return the version of the object that a presented version was made of; ``None`` if it is of another reference."""
    prefix = _prefix(reference)
    return Generation(presented.token[len(prefix) :]) if presented.token.startswith(prefix) else None


def inline_version(data: bytes) -> Generation:
    """Return the version of bytes that are in the set itself."""
    return Generation(f"inline-{_digest(data)}")


def _prefix(reference: Reference) -> str:
    return f"{_REFERENCE}{_digest(repr(tuple(reference)).encode(errors='surrogatepass'))}:"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_NBYTES).hexdigest()
