"""Random damages of shards of every strategy: what a repair gives is the latest acknowledged value, or the chunk is named."""

from __future__ import annotations

from tests.harness.scale import sized
from tests.maintenance.shard_damages import repaired
from tests.torture.conftest import Record

REMEDIES = ("corrected", "rebuilt", "dropped", "deleted", "cut", "left")


def test_no_repaired_shard_gives_an_old_value_without_naming_the_chunk(record: Record) -> None:
    counts, wrong = repaired(sized(10_000, 200), seed=1)
    assert wrong == []
    assert all(counts[remedy] for remedy in REMEDIES), counts
    remedies = ", ".join(f"{counts[remedy]} {remedy}" for remedy in REMEDIES)
    record(
        f"{counts['damages']} damages: {remedies}; {counts['chunks vouched for']} chunks vouched for, {counts['chunks named']} named; "
        f"0 wrong and not named"
    )
