"""The origin of a commit, in its metadata: the snapshot of a versioned store that an export has written it of.

::

    {"shardstore.snapshot": "1CZ3…", "shardstore.parent": "9B2W…" or null, "shardstore.written_at": "2026-01-31T09:30:00.123000+00:00"}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

_SNAPSHOT, _PARENT, _WRITTEN_AT = "shardstore.snapshot", "shardstore.parent", "shardstore.written_at"
_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{20}")


@dataclass(frozen=True, slots=True)
class Origin:
    """The snapshot of which a commit was made."""

    snapshot: str
    parent: str | None
    written_at: datetime


def origin_metadata(snapshot: str, parent: str | None, written_at: datetime) -> dict[str, Any]:
    """Return the members of a commit's metadata that say of which snapshot it is."""
    return {_SNAPSHOT: snapshot, _PARENT: parent, _WRITTEN_AT: written_at.isoformat()}


def origin_in(metadata: Mapping[str, Any]) -> Origin | None:
    """Return what a commit's metadata says of its origin; ``None`` if it says nothing, or nothing that an export would have written."""
    snapshot, parent, written_at = metadata.get(_SNAPSHOT), metadata.get(_PARENT), metadata.get(_WRITTEN_AT)
    if not isinstance(snapshot, str) or not _ID.fullmatch(snapshot) or not isinstance(written_at, str) or _PARENT not in metadata:
        return None
    if parent is not None and not isinstance(parent, str):
        return None
    try:
        when = datetime.fromisoformat(written_at)
    except ValueError:
        return None
    return None if when.tzinfo is None else Origin(snapshot, parent, when)


def without_origin(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata without what it says of the origin."""
    return {name: value for name, value in metadata.items() if name not in (_SNAPSHOT, _PARENT, _WRITTEN_AT)}
