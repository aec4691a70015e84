"""``benchmarks/snapshots.py`` at a small size: what it counts holds its bars, and the page has a row of each measurement."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("icechunk", minversion="2")


ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """The results and the page of a quick run."""
    place = tmp_path_factory.mktemp("snapshots")
    results, page = place / "results.json", place / "page.md"
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/snapshots.py", "--quick", "--directory", place, "--json", results, "--page", page],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert results.exists(), done.stdout + done.stderr  # it may end with 1: times are not judged here
    assert {path.name for path in place.iterdir()} == {"results.json", "page.md"}
    return json.loads(results.read_text()), page.read_text()


def test_what_is_counted_holds_its_bars(run: tuple[Any, str]) -> None:
    results, _ = run
    assert len(results["counts"]) == 5
    assert [one for one in results["counts"] if not one["is_held"]] == []


def test_a_commit_of_one_chunk_writes_as_much_as_it_says(run: tuple[Any, str]) -> None:
    results, _ = run
    counted, commit = results["counted"], results["rows"]["commit_to_million"]["shardstore"]
    assert counted["commit_writes"] == commit["objects"] == 5  # chunk, manifest, structure, state, pointer
    assert abs(counted["commit_nbytes"] - commit["nbytes"]) < 8192  # states grow with each commit
    assert results["rows"]["rename_million"]["shardstore"]["manifests"] == 0


def test_no_commit_of_many_writers_is_lost(run: tuple[Any, str]) -> None:
    results, _ = run
    assert {by_side["shardstore"]["lost"] for name, by_side in results["rows"].items() if name.startswith("writers")} == {0}


def test_both_ways_of_reading_were_measured(run: tuple[Any, str]) -> None:
    results, page = run
    assert len(results["reads"]) == len({name for name, _ in results["reads"]}) == 24
    assert all(f"| {name} |" in page for name, _ in results["reads"])


def test_the_published_page_has_the_rows_of_the_program(run: tuple[Any, str]) -> None:
    _, page = run
    published = (ROOT / "docs/evidence/snapshots.md").read_text().partition("## Tables")[2]

    def rows(text: str) -> list[str]:
        return [re.sub(r"[\d,]+", "n", row) for row in re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE)]

    assert rows(page.partition("## Tables")[2]) == rows(published)
