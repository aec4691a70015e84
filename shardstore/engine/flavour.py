"""Flavours: under whose keys and documents clients see a store. The engine's own is final Zarr v3; ``presented`` has others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Flavour:
    """The facts that an engine has to know about the flavour that its clients see. By default that is final Zarr v3, the engine's own."""

    name: str = "v3"
    """The value of the option ``present``."""
    words: str = "final Zarr v3"
    """The flavour in messages."""
    shows_draft: bool = False
    """Only a stored hierarchy of the 2022 draft can be seen: documents come with the stored ones, clients shard by storage
    transformers of their own, and a document may be erased before the shards of its array, as the draft erases an array."""
    hides_kept: bool = True
    """Clients neither see nor write the attribute that keeps what Zarr v3 cannot hold of a document of Zarr v2."""
    moves_nodes: bool = True
    """Whole nodes can be copied and moved."""

    @property
    def is_canonical(self) -> bool:
        """Return whether this is final Zarr v3, under whose keys the engine itself works."""
        return self.name == "v3"


V3 = Flavour()
