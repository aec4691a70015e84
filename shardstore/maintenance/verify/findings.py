"""Findings of verification: errors, and notes about things that are valid, or harm no reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "note"]
ErrorKind = Literal[
    "not-json",
    "contradiction",
    "stale-consolidated",
    "index",
    "entry",
    "entry-in-index",
    "chunk-size",
    "chunk-header",
    "chunk-checksum",
    "undecodable",
    "differs",
    "missing",
    "surplus",
    "misplaced",
    "tail",
    "file",
]
NoteKind = Literal[
    "unknown",
    "outside",
    "overlap",
    "dead",
    "stray",
    "temporary",
    "lock",
    "upload",
    "changed",
    "unstable",
    "not-checked",
]
Kind = ErrorKind | NoteKind

_RESTORE_SHARD = "restore the object from a copy, or erase it and write its chunks again"
_RESTORE_CHUNK = "write the chunk again, or restore its object from a copy"
_RESTORE_DOCUMENT = "restore the document from a copy, or write it again as the creator of the node did"

ERRORS: Mapping[str, str] = {
    "not-json": _RESTORE_DOCUMENT,
    "contradiction": _RESTORE_DOCUMENT,
    "stale-consolidated": "renew it: zarr.consolidate_metadata",
    "index": _RESTORE_SHARD,
    "entry": _RESTORE_SHARD,
    "entry-in-index": _RESTORE_SHARD,
    "chunk-size": _RESTORE_CHUNK,
    "chunk-header": _RESTORE_CHUNK,
    "chunk-checksum": _RESTORE_CHUNK,
    "undecodable": _RESTORE_CHUNK,
    "differs": "find out which of the two is right, and copy it over the other",
    "missing": "restore it from a copy, unless it was erased on purpose",
    "surplus": "it was written after the other copy was made, or should not be there",
    "misplaced": "restore both objects from a copy: one of them lies at the place of the other",
    "tail": "the next write there removes it, or shardstore repair",
    "file": "restore the file from a copy, or write the chunks again that lie in it",
}
"""Kinds of errors, each with the advice for it."""

NOTES: Mapping[str, str] = {
    "unknown": "look with a program that knows the extension",
    "outside": "a smaller shape leaves such; they come back when the array grows. Erase them if they are not wanted",
    "overlap": "valid; writers that change a shard in place must not",
    "dead": "valid; shardstore compact gives the space back",
    "stray": "nothing of the hierarchy refers to it: remove it if it is not wanted",
    "temporary": "the next write in the directory removes it, or LocalStorage.sweep",
    "lock": "the next write in the directory removes it, or LocalStorage.sweep",
    "upload": "it costs what its parts cost: abort it, unless a writer is at work, or let a lifecycle rule of the bucket do so",
    "changed": "it was written since; if no program did, restore it from a copy",
    "unstable": "it was written again and again while it was looked at: run it once more later",
    "not-checked": "see the reason",
}
"""Kinds of notes, each with possible advice."""

_REMEDIES: dict[str, str] = {**ERRORS, **NOTES}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found, at ``key``, in the node at ``path``."""

    kind: Kind
    path: str
    key: str
    what: str

    @property
    def severity(self) -> Severity:
        return "error" if self.kind in ERRORS else "note"

    @property
    def remedy(self) -> str:
        return _REMEDIES[self.kind]


@dataclass(frozen=True, slots=True)
class Fault:
    """A finding whose place is not yet known, or need not be given."""

    kind: Kind
    what: str

    def at(self, path: str, key: str) -> Finding:
        return Finding(self.kind, path, key, self.what)

    @property
    def is_error(self) -> bool:
        return self.kind in ERRORS
