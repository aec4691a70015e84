"""Verification finds every fault that can be found, and nothing in hierarchies that are healthy.

``SHARDSTORE_VERIFY_TRIALS`` says how many hierarchies are damaged; each has a fault of its own, in turn.
"""

from __future__ import annotations

import os
import random
import uuid
from collections import Counter

import pytest

from shardstore.engine.engine import Engine
from shardstore.maintenance.execution import Execution
from shardstore.maintenance.verify import VerifyReport, verify_engine
from shardstore.storage.base import Storage
from shardstore.storage.memory import MemoryStorage
from tests.maintenance.damaging import CHUNK, FAULTS, INDEX, Injected, make_healthy
from tests.stored import StorageObjects

TRIALS = int(os.environ.get("SHARDSTORE_VERIFY_TRIALS", "150"))
_SHARES = 10


def verified(storage: Storage) -> VerifyReport:
    return verify_engine(Engine(storage), execution=Execution(workers=2))


def is_found(report: VerifyReport, injected: Injected) -> bool:
    return any(finding.kind in injected.kinds and finding.key == injected.key for finding in report.findings)


@pytest.mark.parametrize("share", range(_SHARES))
def test_every_fault_is_found_and_health_is_believed(share: int) -> None:
    outcomes: Counter[tuple[str, bool]] = Counter()
    for trial in range(share, TRIALS, _SHARES):
        rng = random.Random(trial)
        storage = MemoryStorage(f"/faults-{uuid.uuid4().hex}")
        hierarchy = make_healthy(storage, StorageObjects(storage), rng)
        before = verified(storage)
        assert (before.findings, before.unread) == ((), ()), f"trial {trial}"
        injected = FAULTS[trial % len(FAULTS)](hierarchy, rng)
        report = verified(storage)
        said = f"trial {trial}, {injected}: {report.findings}"
        outcomes[injected.fault.partition(":")[0], injected.must] += 1
        if injected.must:
            assert is_found(report, injected), said
        else:
            # A header may give away what nothing else does; apart from that, what cannot be known is not said.
            assert {f.kind for f in report.findings if f.severity == "error"} <= {"chunk-header"}, said
        touched = [path for path in hierarchy.layouts if injected.key.startswith(path + "/")]
        assert {f.path for f in report.findings if f.kind in INDEX | CHUNK} <= set(touched), said
    assert sum(outcomes.values()) == len(range(share, TRIALS, _SHARES))
