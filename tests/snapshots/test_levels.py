"""Merging of manifests: few are read for one chunk, and none is written again often."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from shardstore.format.snapshots.structure import ManifestFile, ManifestPart
from shardstore.snapshots import Repository
from shardstore.snapshots.levels import MOST_LEVELS, MOST_MERGED_ROWS, first_to_merge, levels_of
from tests.snapshots.repositories import create_array, new_repository, read_array, traced_repository


def part(name: str, run: str = "", rows: int = 1) -> ManifestPart:
    return ManifestPart(ManifestFile(name, 10, rows, 0, None, run), 0, ((0, 1),))


def test_manifests_of_one_commit_are_one_level() -> None:
    parts = [part("a", "x"), part("b", "x"), part("c"), part("d"), part("e", "y"), part("f", "y")]
    assert [[one.file.name for one in level] for level in levels_of(parts)] == [["a", "b"], ["c"], ["d"], ["e", "f"]]


@given(st.integers(0, 10**6), st.lists(st.integers(1, 5000), min_size=1, max_size=400))
def test_levels_stay_few_and_a_reference_is_rarely_written_again(base: int, commits: list[int]) -> None:
    levels = [base] if base else []
    written = 0
    for rows in commits:
        first = first_to_merge(levels)
        if first is not None:
            merged = sum(levels[first:])
            written += merged
            levels[first:] = [merged]
        levels.append(rows)
        assert len(levels) <= MOST_LEVELS
    total = base + sum(commits)
    assert sum(levels) == total
    assert written <= total * (2 + math.log2(1 + len(commits)))


def test_what_is_too_large_for_a_commit_is_not_merged() -> None:
    assert first_to_merge([MOST_MERGED_ROWS, *[1] * 20]) == 1
    assert first_to_merge([5, 1, MOST_MERGED_ROWS, *[1] * 20]) == 3
    assert first_to_merge([1] * 10 + [MOST_MERGED_ROWS, 1]) is None


@pytest.mark.zarr
def test_a_large_base_is_left_alone_by_small_commits(tmp_path: Path) -> None:
    repo, trace = traced_repository(tmp_path)
    session = repo.writable_session()
    data = np.arange(600)
    array = create_array(session, "a", data, (1,))
    session.commit("base")
    for number in range(12):
        session = repo.writable_session()
        array = zarr.open_array(session.store, path="a")
        array[number] = -1 - number
        data[number] = -1 - number
        with trace.count() as block:
            session.commit("one")
        assert sum(event.nbytes for event in block.events if event.op == "write" and event.key.startswith("m/")) < 4000
        assert len(repo.readonly_session()._core.nodes["a"].manifests) <= MOST_LEVELS
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "a"), data)


@pytest.mark.zarr
def test_many_references_are_divided_among_manifests(tmp_path: Path) -> None:
    repo = new_repository(tmp_path)
    repo._store.files.manifest_rows = 100
    session = repo.writable_session()
    one, two = np.arange(250), np.arange(130).reshape(10, 13)
    create_array(session, "one", one, (1,))
    create_array(session, "two", two, (1, 1))
    session.commit("data")
    again = Repository.open(repo.url)
    for path, data in (("one", one), ("two", two)):
        parts = repo.readonly_session()._core.nodes[path].manifests
        assert len(levels_of(parts)) == 1
        assert len(parts) >= 2
        np.testing.assert_array_equal(read_array(again.readonly_session(), path), data)
    for number in range(20):
        with repo.transaction(message="more") as store:
            zarr.open_array(store, path="one")[number * 10 : number * 10 + 30] = number
        one[number * 10 : number * 10 + 30] = number
    assert len(levels_of(repo.readonly_session()._core.nodes["one"].manifests)) <= MOST_LEVELS
    np.testing.assert_array_equal(read_array(again.readonly_session(), "one"), one)
