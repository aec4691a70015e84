"""What the clients of one run saw, and whether it can have happened.

Every chunk is a linearisable register; what one batch wrote to one shard appears at once; listings show what is there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

from tests.simulation.registers import NEVER, Operation, TooLong, Value, Violation, explanation


@dataclass(frozen=True, slots=True)
class Batch:
    """What one call wrote to one shard, by key."""

    keys: tuple[str, ...]
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """The keys of chunks that a listing gave, of all that it could give; what is listed may be as old as ``since``."""

    since: float
    ended: float
    asked: tuple[str, ...]
    found: frozenset[str]


@dataclass
class History:
    """What the clients of one run saw."""

    operations: defaultdict[str, list[Operation]] = field(default_factory=lambda: defaultdict(list))
    """By key."""
    seen_together: list[tuple[tuple[str, Value], ...]] = field(default_factory=list)
    """Chunks of one shard that came from one read."""
    batches: list[Batch] = field(default_factory=list)
    listings: list[Listing] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)

    def forget_unacknowledged(self) -> None:
        """Let the reads say nothing that saw what a loss of power may undo: writes that had not ended."""
        for operations in self.operations.values():
            writes = [one for one in operations if one.is_write and one.is_open]
            values = {one.value for one in writes} - {None}
            erased = min((one.began for one in writes if one.value is None), default=NEVER)
            for place, one in enumerate(operations):
                if not one.is_write and (one.value in values or (one.value is None and one.ended >= erased)):
                    operations[place] = replace(one, ended=NEVER)

    def check(self) -> int:
        """Return how many chunks had too many operations at once for the search: nothing is known of these.

        Raises:
            Violation: it cannot have happened.
        """
        unchecked = 0
        for key, operations in sorted(self.operations.items()):
            try:
                is_explained = explanation(operations) is not None
            except TooLong:
                unchecked += 1
                continue
            if not is_explained:
                lines = "\n".join(f"  {one}" for one in sorted(operations, key=lambda one: one.began))
                raise Violation(f"{key} is no register: no order explains\n{lines}")
        self._check_batches()
        for listing in self.listings:
            self._check_listing(listing)
        return unchecked

    def _check_listing(self, listing: Listing) -> None:
        """A chunk that is there all the time is listed, and one that is not there all the time is not."""
        for key in listing.asked:
            writes = [one for one in self.operations[key] if one.is_write]
            was_listed = key in listing.found
            # What the listing says happened before it; then something else, surely, and nothing of the first again until it ended.
            first = [one for one in writes if (one.value is not None) is was_listed and one.began <= listing.ended]
            others = [one for one in writes if (one.value is None) is was_listed and one.ended < listing.since]
            surely = any(all(one.ended < other.began for one in first) for other in others)
            if surely or (was_listed and not first):
                raise Violation(f"{key} was {'' if was_listed else 'not '}listed, from {listing.since:.4f} to {listing.ended:.4f}")

    def _check_batches(self) -> None:
        """Of what one batch wrote to a shard, a reader sees all or nothing, but for what was written later."""
        batch_of: dict[tuple[str, Value], Batch] = {}
        for written in self.batches:
            batch_of |= {pair: written for pair in zip(written.keys, written.values, strict=True) if pair[1] is not None}
        # A value that was moved away and back was written when it was written first.
        written_by = {(key, one.value): one for key, some in self.operations.items() for one in reversed(some) if one.is_write}
        for together in self.seen_together:
            seen = dict(together)
            for key, value in together:
                batch = batch_of.get((key, value))
                if batch is None:
                    continue
                began = written_by[key, value].began
                for other, theirs in zip(batch.keys, batch.values, strict=True):
                    if other == key or other not in seen or seen[other] == theirs:
                        continue
                    # What is there instead must not be older than the batch, as a write is that had ended before the batch began.
                    instead = seen[other]
                    later = [one for one in self.operations[other] if one.is_write and one.value == instead and one.ended >= began]
                    if not later:
                        raise Violation(f"{key} was read as {value} of a batch, and {other} as {instead}, which is older than that")
