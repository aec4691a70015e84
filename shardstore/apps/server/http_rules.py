"""HTTP's rules for ranges and preconditions, as functions of header values.

Specification: RFC 9110, sections 8.8.3 (entity tags), 13 (conditional requests) and 14 (range requests).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardstore.model.ranges import ByteOffset, ByteRange, ByteRequest, ByteSuffix, resolve

_OPAQUE = r'"[\x21\x23-\x7e\x80-\xff]*"'
_TAG = re.compile(rf"(W/)?({_OPAQUE})")
_TAGS = re.compile(rf"[ \t,]*(?:(?:W/)?{_OPAQUE}[ \t]*(?:,[ \t,]*|$))+")
_RANGES = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(.*)")
_INT_RANGE = re.compile(r"([0-9]+)-([0-9]*)")
_SUFFIX_RANGE = re.compile(r"-([0-9]+)")

_MOST = 2**62
"""More bytes than any value has; positions behind it are this one."""
_DIGITS = len(str(_MOST)) + 1


@dataclass(frozen=True, slots=True)
class EntityTags:
    """The value of ``If-Match`` or ``If-None-Match``: all entity tags that exist, or some, each with its quotes."""

    any: bool = False
    strong: frozenset[str] = frozenset()
    weak: frozenset[str] = frozenset()

    @property
    def only(self) -> str | None:
        """The entity tag, if it is a single strong one."""
        return next(iter(self.strong)) if len(self.strong) == 1 and not self.weak else None

    def match_strongly(self, etag: str | None) -> bool:
        """Return whether one of them is the strong ``etag`` of what exists (``None``: it has none), by strong comparison."""
        return self.any or etag in self.strong

    def match_weakly(self, etag: str | None) -> bool:
        """Return the same by weak comparison."""
        return self.any or etag in self.strong or etag in self.weak


def parse_entity_tags(text: str) -> EntityTags:
    """Return the entity tags of a list. A malformed one has none: no precondition holds by it, and no cached answer."""
    text = text.strip(" \t")
    if text == "*":
        return EntityTags(any=True)
    if _TAGS.fullmatch(text) is None:
        return EntityTags()
    found = _TAG.findall(text)
    return EntityTags(strong=frozenset(tag for weak, tag in found if not weak), weak=frozenset(tag for weak, tag in found if weak))


def parse_range(text: str) -> ByteRequest | None:
    """Return the one range of bytes that ``Range`` asks for.

    ``None`` if it is to be ignored, so that all of the value is sent: it is malformed, in another unit, or of several ranges.
    """
    found = _RANGES.fullmatch(text.strip(" \t"))
    if found is None or found[1].lower() != "bytes":
        return None
    specs = [spec.strip(" \t") for spec in found[2].split(",")]
    specs = [spec for spec in specs if spec]  # a list may have empty elements
    if len(specs) != 1:
        return None
    if (inside := _INT_RANGE.fullmatch(specs[0])) is not None:
        first = _number(inside[1])
        if not inside[2]:
            return ByteOffset(first)
        last = _number(inside[2])
        return None if last < first else ByteRange(first, last + 1)
    if (suffix := _SUFFIX_RANGE.fullmatch(specs[0])) is not None:
        return ByteSuffix(_number(suffix[1]))
    return None


def _number(digits: str) -> int:
    # Python refuses to read numbers of thousands of digits.
    digits = digits.lstrip("0")
    return min(int(digits or "0"), _MOST) if len(digits) < _DIGITS else _MOST


def satisfied(request: ByteRequest, nbytes: int) -> ByteRange | None:
    """Return the part of ``nbytes`` bytes that a range names, which is not empty; ``None`` if it cannot be satisfied."""
    inside = resolve(request, nbytes)
    return inside if inside.end > inside.start else None


def if_range(text: str) -> str | None:
    """Return the strong entity tag of ``If-Range``. ``None`` for anything else, a date or a weak one, by which no range is sent."""
    found = _TAG.fullmatch(text.strip(" \t"))
    return found[2] if found is not None and not found[1] else None
