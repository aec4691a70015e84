"""Findings of verification: errors, and notes about things that are valid, or harm no reader; and which faults it can find in an array."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from shardstore.maintenance.nodes import ArrayPlan

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
    "append-record",
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
    "reserved",
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
    "misplaced": "restore both objects from a copy: one of them is stored under the key of the other",
    "tail": "the next write there removes it, or shardstore repair",
    "file": "restore the file from a copy, or write its chunks again",
    "append-record": "until then appends are refused. When no program is appending, remove it: the next append begins a new one",
}
"""Kinds of errors, each with the advice for it."""

NOTES: Mapping[str, str] = {
    "unknown": "check it with a program that knows the extension",
    "outside": "a smaller shape leaves such chunks, and so does an append until its rows are shown; they come back when the array grows. "
    "Erase them if they are not wanted",
    "overlap": "valid; writers that change a shard in place must not",
    "dead": "valid; shardstore compact gives the space back",
    "stray": "nothing of the hierarchy refers to it: remove it if it is not wanted",
    "temporary": "the next write in the directory removes it, or shardstore repair",
    "lock": "the next write in the directory removes it, or shardstore repair",
    "upload": "it costs what its parts cost: abort it, unless a writer is at work, or let a lifecycle rule of the bucket do so",
    "changed": "it was written since; if no program did, restore it from a copy",
    "unstable": "it was written again and again during the check: run verify again later",
    "reserved": "a program is appending them; if it has died, the next append takes them back",
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


# -- what can be found ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VerifyLevel:
    """The checks of a run beyond indices, headers, checksums and metadata."""

    deep: bool = False
    against: bool = False
    census: bool = False
    contents: bool = False
    """True if the census has digests of whole objects."""


@dataclass(frozen=True, slots=True)
class Detectable:
    """Sentences about the faults that are certainly found in an array, and those that are not."""

    found: tuple[str, ...]
    missed: tuple[str, ...]
    reads_chunks: bool = False
    """True if every chunk is read, and checked by its checksum, its codecs or a copy."""


def detectable(plan: ArrayPlan, how: VerifyLevel) -> Detectable:
    """Return the sentences for the objects of one array."""
    found: list[str] = []
    missed: list[str] = []
    if plan.layout is not None:
        _add_index_faults(plan, found, missed)
    elif plan.coding.nbytes is not None:
        found.append("objects that are not as long as a chunk")
    _add_chunk_faults(plan, how, found, missed)
    if how.against:
        found.append("every byte in which a chunk differs from the other copy, and chunks that only one of the two has")
        return Detectable(tuple(found), (), reads_chunks=True)
    if how.census:
        found.append("objects and chunks that the census has and that are gone")
        if how.contents:
            found.append("every object that is not, byte for byte, what the census has: noted, since writers change objects too")
        elif plan.layout is not None:
            found.append("shards whose index is not the one that the census has: noted, since writers change indexes too")
            if plan.coding.nbytes is not None:
                missed.append("a shard that lies under the key of another one with the same chunks: their indexes are equal, too")
    else:
        what = "objects that are gone, or that lie under another one's key, where all that can be checked fits there too"
        missed.append(f"{what}: a census or another copy shows them")
    reads_chunks = how.contents or plan.coding.has_checksum or (how.deep and bool(plan.document))
    return Detectable(tuple(found), tuple(missed), reads_chunks)


def _add_index_faults(plan: ArrayPlan, found: list[str], missed: list[str]) -> None:
    assert plan.layout is not None
    index = plan.layout.index_format
    always = "entries that are half empty, wrap, end past the object or reach into the index"
    if plan.coding.nbytes is not None:
        always += ", or name a chunk that is not as long as the codecs make each"
    if index.codecs.checksum:
        found.append(f"every change of an index, which has a checksum; {always}")
        if index.location == "end":
            found.append("shards that were cut or to which bytes were appended, unless what is at the end then is an index itself")
            missed.append(
                "that a shard was cut exactly behind an older index of its own, or that a copy of an index was appended: the second shows "
                "as dead bytes; a census or another copy shows both"
            )
        else:
            found.append("shards that were cut inside a chunk")
            missed.append("bytes behind the last chunk: valid, and noted as dead")
        return
    found.append(f"in an index, which has no checksum: {always}")
    missed.append("other changes of an index: without a checksum an entry that names other bytes of the shard, or none, is as good as any")
    if index.location == "end":
        missed.append(
            "that a shard was cut, or that bytes were appended to it, where what is at its end then happens to make sense as an index"
        )


def _add_chunk_faults(plan: ArrayPlan, how: VerifyLevel, found: list[str], missed: list[str]) -> None:
    coding = plan.coding
    if how.contents:
        return
    if coding.has_checksum:
        found.append("every flipped bit inside a chunk: chunks end with a checksum")
        return
    if how.deep and plan.document:
        found.append("chunks that zarr's codecs cannot decode")
        missed.append("a flipped bit inside a chunk, where what it decodes to is of the right size: chunks have no checksum")
        return
    if coding.compressor is not None and plan.layout is not None:
        what = "that says another decoded size" if coding.has_size_in_header else f"that is not {coding.compressor}'s"
        found.append(f"shards whose first chunk has a header {what}")
    missed.append("a flipped bit inside a chunk: without a checksum it shows only with --deep, and not always")
