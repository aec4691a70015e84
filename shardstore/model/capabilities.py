"""The capabilities of a storage, as positive flags: absent means no."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Positive flags; a kind sets one only where the conformance suite in ``shardstore.testing`` passes for it."""

    pinned_reads: bool = False
    """``read`` with a generation never returns bytes of another version."""
    create_if_absent: bool = False
    """``write`` honours ``IfAbsent`` atomically."""
    compare_and_swap: bool = False
    """``write`` honours ``IfGeneration`` atomically."""
    conditional_delete: bool = False
    """``delete`` honours ``IfGeneration`` atomically."""
    compose: bool = False
    """``compose`` copies ranges of the old version without sending them through this process's requests."""
    copy_pays_nbytes: int = 0
    """A range of fewer bytes takes longer to copy by a request of its own than to read and write."""
    appends_in_place: bool = False
    """``compose`` carries out what only appends behind the old bytes, which it neither reads nor writes."""
    durable: bool = False
    """A write that returned survives the loss of power."""
    guarded_reads: bool = False
    """``read`` honours ``guard``, without another request."""
    across_machines: bool = False
    """Conditions hold between the writers of all machines that can reach the storage."""

    static: bool = False
    """Nothing changes while it is open: what was once seen need not be looked at again. Nothing can be written."""

    @property
    def atomic_commits(self) -> bool:
        """Return whether writers that share an object cannot lose each other's updates."""
        return self.pinned_reads and self.create_if_absent and self.compare_and_swap
