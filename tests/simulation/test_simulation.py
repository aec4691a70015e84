"""Clients, network and servers in one process, on virtual time: no promise is broken, and a seed is always the same run."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import get_args

import pytest

from tests.harness.scale import STAGE
from tests.simulation import campaign
from tests.simulation.calls import FAULTS as DISK_FAULTS
from tests.simulation.campaign import run
from tests.simulation.histories import FAULTS, Limits
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.network import FAULTS as NETWORK_FAULTS
from tests.simulation.registers import NEVER, Operation, explanation
from tests.simulation.world import Kind

ROOT = Path(__file__).parents[2]
STAYING = {"test": 3, "gate": 10, "night": 15}[STAGE]
NEW = {"test": 2, "gate": 10, "night": 400}[STAGE]
"""So many seeds of each kind, the same ones each time and new ones."""

KINDS: tuple[Kind, ...] = get_args(Kind)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Uploads that stay are warned of, which is right, and much."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_that_stay(kind: Kind) -> None:
    for seed in range(STAYING):
        result = run(seed, kind)
        assert result.violation is None, f"seed {seed} of {kind}: {result.violation}"
        assert not result.unchecked


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bare"])
def test_appends(kind: Kind) -> None:
    for seed in [seed for seed in range(8 * STAYING) if campaign.form_of(seed) == "appends"]:
        result = run(seed, kind)
        assert result.violation is None, f"seed {seed} of {kind}: {result.violation}"


@pytest.mark.gate
@pytest.mark.parametrize("kind", KINDS)
def test_clients_that_keep_offsets(kind: Kind) -> None:
    for seed in range(1000, 1000 + STAYING):
        result = run(seed, kind, Limits(strategy="keep"))
        assert result.violation is None, f"seed {seed} of {kind}: {result.violation}"


@pytest.mark.parametrize("kind", KINDS)
def test_new_seeds(kind: Kind) -> None:
    first = int(time.time() * 1000)
    totals = campaign.campaign(iter(range(first, first + NEW)), [kind], 600.0, 1, limits=Limits())
    assert [(failed.seed, failed.violation) for failed in totals.failed] == []
    assert totals.histories == NEW
    assert not totals.unchecked


# Seeds that found something, and what it was.
FOUND: dict[tuple[Kind, int], str] = {
    ("gcs", 1): "a late request to create a shard brought erased chunks back",
    ("weak", 1): "likewise",
    ("weak", 352): "a late request to replace a shard found its old ETag again, after a chunk had been written and erased",
    ("gcs", 55): "an upload that was cancelled was reported as one that stays",
    ("bare", 3168): "a client of Zarr v2 that could not read an array's document stored its chunks as other objects",
    ("local", 7073300): "what one had erased who could not make that durable, and then another, who found nothing, came back",
    ("local", 8000647): "where times are whole seconds, a directory made anew was taken for the one whose name had been flushed",
    # These two are other runs since, and would not find it any more: test_hostile_servers and test_local_append do.
    ("s3", 7015270): "a probe of uploads that somebody had aborted was taken for a server that ignores conditions",
    ("local", 7020780): "after a failed append the attribute that hides its tail was cleared before the tail was cut off durably",
    ("azure", 18): "the list of the blocks of a blob that has none names no version, and each append failed on that",
    ("local", 983): "a loss of power kept what was appended to a file, and not the record before it",
}


@pytest.mark.gate
@pytest.mark.parametrize(("kind", "seed"), FOUND)
def test_seeds_that_found_something(kind: Kind, seed: int) -> None:
    result = run(seed, kind)
    assert result.violation is None, result.violation


@pytest.mark.gate
def test_a_seed_is_always_the_same_run() -> None:
    """To the byte; in other processes too, whatever the hashes of texts are there, and whatever ran before."""
    mine = [run(3, kind).digest for kind in KINDS]
    assert [run(3, kind).digest for kind in KINDS] == mine
    assert len(set(mine)) == len(mine)
    done = subprocess.run(
        [sys.executable, "-c", f"from tests.simulation.campaign import run; print(*(run(3, kind).digest for kind in {KINDS}))"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},  # here it is another one
    )
    assert done.stdout.split() == mine


@pytest.mark.gate
@pytest.mark.parametrize(("kind", "faults", "least"), [("aws", NETWORK_FAULTS, 20), ("local", DISK_FAULTS, 10)])
def test_everything_happens(kind: Kind, faults: Sequence[str], least: int) -> None:
    """In some seeds together, each kind of fault, kills and pauses; the most of what is asked for is done all the same."""
    totals = campaign.campaign(iter(range(50)), [kind], 600.0, 1, limits=Limits(), most_failed=100)
    assert all(totals.faults[name] > least for name in faults), totals.faults
    assert totals.kills > 5
    assert totals.pauses > 2
    for what in (
        "compact",
        "repair",
        "verify",
        "resize",
        "recreate",
        "move",
        "pickled",
        "packed",
        "list",
        "in transactions",
        "appended",
    ):
        assert totals.outcomes[what] > 2, what
    assert totals.outcomes["written"] > 5 * sum(count for name, count in totals.outcomes.items() if name.startswith("write "))


@pytest.mark.gate
def test_appends_meet_each_other() -> None:
    """Rows are stored again elsewhere, because a program before them is dead, and most appends end well all the same."""
    seeds = islice((seed for seed in count() if campaign.form_of(seed) == "appends"), 20)
    totals = campaign.campaign(seeds, ["aws"], 600.0, 1, limits=Limits())
    assert not totals.failed
    assert totals.outcomes["stored elsewhere"] > 5
    assert totals.outcomes["appended"] > 100


@pytest.mark.parametrize(
    ("operations", "is_explained"),
    [
        ([("w", "a", 0, 1), ("r", "a", 2, 3)], True),
        ([("w", "a", 0, 1), ("r", None, 2, 3)], False),
        ([("w", "a", 0, 5), ("r", None, 1, 2), ("r", "a", 3, 4)], True),
        ([("w", "a", 0, 5), ("r", "a", 1, 2), ("r", None, 3, 4)], False),
        ([("w", "a", 0, 1), ("w", "b", 2, 3), ("r", "a", 4, 5)], False),
        ([("w", "a", 0, NEVER), ("w", "b", 2, 3), ("r", "a", 4, 5)], True),
        ([("w", "a", 0, NEVER), ("r", None, 1, 2)], True),
        ([("w", "a", 0, 9), ("r", "a", 1, 2), ("w", "b", 3, 4), ("r", "a", 5, 6)], True),  # made once more, see the module
        ([("w", "a", 0, 3), ("r", "a", 1, 2), ("w", "b", 4, 5), ("r", "a", 6, 7)], False),
        ([("w", None, 0, 1), ("w", "a", 2, 3), ("w", None, 4, 5), ("r", "a", 6, 7)], False),
    ],
)
def test_registers(operations: list[tuple[str, str | None, float, float]], is_explained: bool) -> None:
    given = [Operation("x", kind == "w", value, began, ended) for kind, value, began, ended in operations]
    found = explanation(given)
    assert (found is not None) is is_explained


@pytest.mark.gate
@pytest.mark.parametrize(
    "name",
    [
        "a commit without a condition",
        "chunks are read from any version",
        "GCS: a shard is replaced without a condition",
        "Azure: a list of blocks is committed without a condition",
        "local: a removal is not synced",
    ],
)
def test_mutants_are_found(name: str) -> None:
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.mutants", "--one", mutant.name, "--most", "100"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.strip().isdecimal(), done.stdout


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutants_fit_the_code(mutant: Mutant) -> None:
    spec = importlib.util.find_spec(mutant.module)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).read_text().count(mutant.old) == 1


def test_a_failing_seed_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(seed: int, kind: Kind, limits: Limits | None = None, **_: object) -> object:
        limits = limits or Limits()
        fails = limits.operations >= 7 and "torn" not in limits.without and limits.clients >= 2
        return run(seed, kind, Limits(1, 1, ("late",))) if not fails else type("Failed", (), {"violation": "as planned"})()

    monkeypatch.setattr(campaign, "run", found)
    smaller = campaign.shrunk(1, "aws")
    assert (smaller.operations, smaller.clients, smaller.kills) == (7, 2, False)
    assert "torn" not in smaller.without
    assert len(smaller.without) == len(FAULTS) - 1
    assert str(smaller).startswith("--operations 7 --clients 2 --without ")
