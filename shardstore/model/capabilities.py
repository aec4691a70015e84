"""Abilities of a kind of storage, as positive flags: without a flag it does not have the ability."""

from __future__ import annotations

from dataclasses import dataclass

from shardstore.model.generation import IF_ABSENT, UNCONDITIONAL, Condition, Generation, IfGeneration


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Positive flags; a kind sets one only where the conformance suite in ``shardstore.testing`` passes for it."""

    pinned_reads: bool = False
    """True where ``read`` with a generation never returns bytes of another version."""
    create_if_absent: bool = False
    """True where ``write`` honours ``IfAbsent`` atomically."""
    compare_and_swap: bool = False
    """True where ``write`` honours ``IfGeneration`` atomically."""
    conditional_delete: bool = False
    """True where ``delete`` honours ``IfGeneration`` atomically."""
    compose: bool = False
    """True where ``compose`` copies ranges of the old version without sending them through this process's requests."""
    copy_pays_nbytes: int = 0
    """The least size of a range that is worth a copy: a shorter one takes longer to copy by its own request than to read and write."""
    appends_in_place: bool = False
    """True where ``compose`` appends new bytes behind the old ones, which it neither reads nor writes."""
    unique_versions: bool = False
    """True where no two versions of an object have one generation, though their bytes are equal."""
    exactly_once: bool = False
    """True where a request is carried out before it returns, or never. Elsewhere the network may bring one to the server after its client
    has given it up and sent it again, and other clients have gone on.
    """
    durable: bool = False
    """True where a write that returned survives the loss of power."""
    guarded_reads: bool = False
    """True where ``read`` honours ``guard``, without another request."""
    across_machines: bool = False
    """True where these promises hold between the writers of all machines that can reach the storage."""

    static: bool = False
    """True where nothing changes while the storage is open: known facts need not be looked up again. Nothing can be written."""

    @property
    def atomic_commits(self) -> bool:
        """True where writers that share an object cannot lose each other's updates."""
        return self.pinned_reads and self.create_if_absent and self.compare_and_swap

    def condition_on(self, generation: Generation | None) -> Condition:
        """Return the condition that the object still is this version (``None``: is absent), as far as the storage honours it."""
        if generation is None:
            return IF_ABSENT if self.create_if_absent else UNCONDITIONAL
        return IfGeneration(generation) if self.compare_and_swap else UNCONDITIONAL
