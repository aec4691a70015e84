"""Histories of eight writers: there is an order that explains what they read and wrote if their sessions are serializable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardstore.snapshots import Repository
from tests.snapshots.histories import Transaction, assert_contents, create, cycle, dependencies, in_order, in_threads, in_turns
from tests.snapshots.repositories import new_repository

Run = Callable[..., list[Transaction]]


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    repo = new_repository(tmp_path)
    create(repo)
    return repo


@pytest.mark.parametrize(("run", "seed", "transactions"), [(in_turns, 1, 150), (in_threads, 2, 150)])
def test_serializable_sessions_could_have_come_one_after_the_other(repo: Repository, run: Run, seed: int, transactions: int) -> None:
    done = run(repo, transactions, seed, "serializable")
    order = in_order(repo, done)
    assert len(done) > transactions / 5
    assert cycle(dependencies(order)) is None
    assert_contents(repo, order, every=20)


def test_sessions_of_snapshot_isolation_could_not(repo: Repository) -> None:
    """The same transactions: so the cycles that serializable sessions do not have would be found. No write is lost all the same."""
    order = in_order(repo, in_turns(repo, 100, 1, "snapshot"))
    assert cycle(dependencies(order)) is not None
    assert_contents(repo, order, every=20)


@pytest.mark.night
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("run", [in_turns, in_threads])
@pytest.mark.parametrize("seed", range(5))
def test_long_histories(repo: Repository, run: Run, seed: int) -> None:
    order = in_order(repo, run(repo, 2000, 100 + seed, "serializable"))
    assert len(order) > 400
    assert cycle(dependencies(order)) is None
    assert_contents(repo, order, every=100)


@pytest.mark.night
@pytest.mark.parametrize("seed", range(10))
def test_write_skew_is_found_in_every_history_of_snapshot_isolation(repo: Repository, seed: int) -> None:
    assert cycle(dependencies(in_order(repo, in_turns(repo, 300, seed, "snapshot")))) is not None


def _transaction(number: int, reads: dict[Any, int], writes: dict[Any, int]) -> Transaction:
    return Transaction(number, reads, writes, f"{number}")


X, Y = ("a", 0), ("a", 1)


@pytest.mark.parametrize(
    ("order", "has_cycle"),
    [
        ([(1, {X: 0}, {Y: 10}), (2, {Y: 10}, {X: 20})], False),
        ([(1, {X: 0}, {Y: 10}), (2, {Y: 0}, {X: 20})], True),  # write skew
        ([(1, {X: 0}, {X: 10}), (2, {X: 0}, {X: 20})], True),  # a lost update
        ([(1, {}, {X: 10, Y: 11}), (2, {X: 10, Y: 0}, {("b", 0): 20})], True),  # a torn read
        ([(1, {}, {X: 10}), (2, {X: 0}, {Y: 20}), (3, {Y: 20}, {X: 30})], False),
    ],
)
def test_cycles_are_found(order: list[Any], has_cycle: bool) -> None:
    after = dependencies([_transaction(*one) for one in order])
    assert (cycle(after) is not None) == has_cycle


def test_a_value_that_nobody_has_committed_is_found() -> None:
    with pytest.raises(AssertionError, match="nobody has committed"):
        dependencies([_transaction(1, {X: 5}, {Y: 10})])
