"""The objects of a simulated bucket by name, and what the requests of all kinds of buckets share: pages of listings, and ranges."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

PAGE = 5
"""Names in one page of a listing: few, so that what changes between two pages is seen."""

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class Version(Protocol):
    """One version of an object."""

    @property
    def data(self) -> bytes: ...

    @property
    def etag(self) -> str:
        """A text that names the version."""
        ...


V = TypeVar("V", bound=Version)


class Objects(Generic[V]):
    """The current versions of all objects. ``on_change`` is told each change: the name, and the new version or ``None``."""

    def __init__(self) -> None:
        self.versions: dict[str, V] = {}
        self.on_change: Callable[[str, V | None], None] = lambda name, version: None
        self._names: list[str] = []
        self._replaced: list[tuple[float, str, V | None]] = []

    def as_of(self, now: float, lag_seconds: float) -> Objects[V]:
        """Return the objects as they were so long ago, as a listing shows them that is late."""
        while self._replaced and self._replaced[0][0] < now - lag_seconds:
            self._replaced.pop(0)
        before = dict(self.versions)
        for _, name, version in reversed(self._replaced):
            if version is None:
                before.pop(name, None)
            else:
                before[name] = version
        listed: Objects[V] = Objects()
        listed.versions, listed._names = before, sorted(before)
        return listed

    def note(self, now: float, name: str) -> None:
        """Note, for listings that are late, what an object is that is about to change."""
        self._replaced.append((now, name, self.versions.get(name)))

    def put(self, name: str, version: V) -> V:
        """Let this be the version of an object; return it."""
        if name not in self.versions:
            bisect.insort(self._names, name)
        self.versions[name] = version
        self.on_change(name, version)
        return version

    def remove(self, name: str) -> None:
        """Remove an object, if there is one."""
        if self.versions.pop(name, None) is not None:
            self._names.remove(name)
            self.on_change(name, None)

    def page(self, prefix: str, delimiter: str | None, after: str) -> tuple[list[str], list[str], str | None]:
        """Return one page of a listing behind ``after``: names, prefixes, and the name that it ends with, if more follow."""
        found: list[str] = []
        prefixes: list[str] = []
        last = after
        for name in self._names[bisect.bisect_right(self._names, after) :]:
            if not name.startswith(prefix):
                if name > prefix:
                    break
                continue
            cut = -1 if delimiter is None else name.find(delimiter, len(prefix))
            group = name[: cut + 1] if cut >= 0 else None
            if group is None or not (after.startswith(group) or group in prefixes[-1:]):
                if len(found) + len(prefixes) == PAGE:
                    return found, prefixes, last
                (found if group is None else prefixes).append(name if group is None else group)
            last = name
        return found, prefixes, None


def asked_range(header: str, nbytes: int) -> range | None:
    """Return the bytes that a header ``Range`` asks for of an object; ``None`` if there are none there, which is answered by 416."""
    matched = _RANGE.fullmatch(header)
    assert matched is not None
    if matched[1]:
        asked = range(int(matched[1]), min(nbytes, int(matched[2] or nbytes - 1) + 1))
    else:
        asked = range(max(0, nbytes - int(matched[2])), nbytes)
    return asked or None
