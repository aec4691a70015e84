"""Verification finds every fault that can be found, and nothing in hierarchies that are healthy.

Hierarchies are damaged at random; each has a fault of its own, in turn.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import shardstore
from shardstore.engine.engine import Engine
from shardstore.maintenance.census import Census, census_from_bytes, take_census
from shardstore.maintenance.execution import Execution
from shardstore.maintenance.verify.run import VerifyReport, verify_engine
from shardstore.storage.base import Storage
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from tests.harness.scale import EXAMPLES
from tests.maintenance.damaging import BESIDE_A_CENSUS, CHUNK, FAULTS, INDEX, Injected, leftover_file, make_healthy, unfinished_upload
from tests.maintenance.damaging import Census as Against
from tests.stored import FsspecObjects, LocalObjects, StorageObjects

_SHARES = 10
_KINDS = len(FAULTS) + len(BESIDE_A_CENSUS) + 1
TRIALS = _KINDS * (EXAMPLES // 20)
AGAINST: tuple[Against, ...] = ("", "index", "contents")


def verified(storage: Storage, census: Census | None = None) -> VerifyReport:
    return verify_engine(Engine(storage), execution=Execution(workers=2), census=census)


def is_found(report: VerifyReport, injected: Injected) -> bool:
    return any(finding.kind in injected.kinds and finding.key == injected.key for finding in report.findings)


def one_trial(trial: int) -> Injected:
    rng = random.Random(trial)
    storage = MemoryStorage(f"/faults-{uuid.uuid4().hex}")
    hierarchy = make_healthy(storage, StorageObjects(storage), rng)
    against = rng.choice(AGAINST)
    census = None
    if against:
        taken = take_census(Engine(storage), of_contents=against == "contents", execution=Execution(workers=2))
        census = census_from_bytes(taken.to_bytes())
    before = verified(storage, census)
    assert (before.findings, before.unread) == ((), ()), f"trial {trial}"
    number = trial % _KINDS
    if number < len(FAULTS):
        injected = FAULTS[number](hierarchy, rng)
        report = verified(storage)
    else:
        injected = BESIDE_A_CENSUS[number - len(FAULTS)](hierarchy, rng, against)
        report = verified(storage, census)
    said = f"trial {trial}, {injected}, {against or 'no'} census: {report.findings}"
    if injected.must:
        assert is_found(report, injected), said
    else:
        # A header may give away what nothing else does; apart from that, what cannot be known is not said.
        assert {f.kind for f in report.findings if f.severity == "error"} <= {"chunk-header"}, said
    touched = [path for path in ("a", "g/b", "plain") if injected.key.startswith(path + "/")]
    assert {f.path for f in report.findings if f.kind in INDEX | CHUNK} <= set(touched), said
    return injected


def one_trial_on_disk(trial: int, root: Path) -> Injected:
    rng = random.Random(trial)
    storage = LocalStorage(root, fsync=False)
    make_healthy(str(root), LocalObjects(root), rng)
    assert verified(storage).findings == ()
    injected = leftover_file(root, rng)
    report = verified(storage)
    assert [(f.kind, f.key) for f in report.findings] == [(*injected.kinds, injected.key)], f"trial {trial}, {injected}: {report.findings}"
    return injected


@pytest.mark.parametrize("share", range(_SHARES))
def test_every_fault_is_found_and_health_is_believed(share: int, tmp_path: Path) -> None:
    outcomes: Counter[tuple[str, bool]] = Counter()
    for trial in range(share, TRIALS, _SHARES):
        is_on_disk = trial % _KINDS == _KINDS - 1
        injected = one_trial_on_disk(trial, tmp_path / str(trial)) if is_on_disk else one_trial(trial)
        outcomes[injected.fault.partition(":")[0], injected.must] += 1
    for (fault, must), count in sorted(outcomes.items()):
        print(f"{'found' if must else 'cannot be known'}  {fault}  {count}")  # noqa: T201 - shown by -rP
    assert sum(outcomes.values()) == len(range(share, TRIALS, _SHARES))


@pytest.mark.gate
def test_every_unfinished_upload_is_found(s3_url: tuple[str, dict[str, Any]]) -> None:
    import s3fs

    url, options = s3_url
    for trial in range(max(2, TRIALS // 30)):
        rng = random.Random(trial)
        root = f"{url}-{trial}"
        hierarchy = make_healthy(root, FsspecObjects(root, options), rng, options)
        assert shardstore.verify(root, storage_options=options).findings == ()
        injected = unfinished_upload(s3fs.S3FileSystem(**options), root, hierarchy, rng)
        report = shardstore.verify(root, storage_options=options)
        assert [(f.kind, f.key) for f in report.findings] == [("upload", injected.key)], f"trial {trial}"
