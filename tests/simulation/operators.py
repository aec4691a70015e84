"""What operators run beside clients: compaction, repair and verification, with the code that users call."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime

from shardstore.engine.engine import Engine
from shardstore.maintenance.compact import compact
from shardstore.maintenance.execution import Execution
from shardstore.maintenance.repair.run import RepairReport, repair
from shardstore.maintenance.verify.run import VerifyReport, verify_engine
from shardstore.model.durations import Duration
from shardstore.storage.base import Storage
from tests.simulation.loop import Process
from tests.simulation.registers import Violation
from tests.simulation.threads import in_thread
from tests.simulation.world import World

QUARANTINE = "quarantine"
_WORKERS = 2


def _now() -> datetime:
    return datetime.fromtimestamp(time.time(), UTC)


async def compacted(storage: Storage, rng: random.Random) -> None:
    """Rewrite all shards with dead bytes, or those of which half is dead."""
    ratio = rng.choice([0.0, 0.0, 0.5])
    await in_thread(lambda: compact(storage, dead_ratio=ratio, workers=_WORKERS))


async def repaired(storage: Storage, quarantine: Storage, *, older_than: Duration = "24h", alone: bool = False) -> RepairReport:
    """Repair what is damaged, which must be nothing.

    Raises:
        Violation: a shard is damaged.
    """
    report = await in_thread(
        lambda: repair(storage, quarantine=quarantine, older_than=older_than, workers=_WORKERS, exclusive=alone, now=_now(), retries=2)
    )
    if damaged := [finding for finding in report.findings.first if finding.remedy != "emptied"]:
        raise Violation(f"a shard was damaged: {damaged[0]}")
    return report


async def verified(storage: Storage, *, with_tails: bool = False) -> VerifyReport:
    """Verify the store, which must be sound but for what could not be read. ``with_tails``: there may be tails of writers that died while
    they were appending, which the next write or repair removes.

    Raises:
        Violation: something is not.
    """
    report = await in_thread(lambda: verify_engine(Engine(storage), execution=Execution(workers=_WORKERS)))
    if errors := [finding for finding in report.findings if finding.severity == "error" and not (with_tails and finding.kind == "tail")]:
        raise Violation(f"verify found {errors[0]}")
    return report


async def operate(world: World, process: Process, rng: random.Random) -> str:
    """Run one program, and return its name.

    Raises:
        ShardStoreError: it failed.
        Violation: what it says cannot be.
    """
    storage = world.storage(process)
    name = rng.choice(["compact", "compact", "compact", "repair", "verify"])
    world.trace.note(f"{process.name} begins to {name}")
    match name:
        case "compact":
            await compacted(storage, rng)
        case "repair":
            await repaired(storage, world.storage(process, QUARANTINE))
        case _:
            await verified(storage, with_tails=True)
    return name
