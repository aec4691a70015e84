"""The faults that verification can and cannot detect in an array, by its codecs, its index, and what it is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from shardstore.maintenance.array_plans import ArrayPlan


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
