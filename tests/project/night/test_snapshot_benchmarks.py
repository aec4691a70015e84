"""Benchmarks of versioned stores at a small size: what they count holds its bars, and their pages have a row of each measurement."""

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


def program(name: str, place: Path, left: set[str], *arguments: str) -> str:
    """Run a benchmark, which leaves these files behind, and return its page."""
    command: list[str | Path] = [sys.executable, ROOT / "benchmarks" / name, "--directory", place, "--page", place / "page.md", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False)
    assert (place / "page.md").exists(), done.stdout + done.stderr  # it may end with 1: times are not judged here
    assert {path.name for path in place.iterdir()} == {"page.md", *left}
    return (place / "page.md").read_text()


def rows(text: str) -> list[str]:
    return [re.sub(r"[\d,]+", "n", row) for row in re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """The results and the page of a quick run."""
    place = tmp_path_factory.mktemp("snapshots")
    page = program("snapshots.py", place, {"results.json"}, "--quick", "--json", str(place / "results.json"))
    return json.loads((place / "results.json").read_text()), page


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
    assert rows(page.partition("## Tables")[2]) == rows(published)


def test_a_year_ends_with_a_sound_store_of_what_is_needed(tmp_path: Path) -> None:
    sizes = ["--files", "600", "--kept", "60", "--commits", "60", "--rounds", "1"]
    page = program("snapshot_upkeep.py", tmp_path, {"year.svg"}, *sizes, "--plot", str(tmp_path / "year.svg"))
    assert "<svg" in (tmp_path / "year.svg").read_text()
    assert "a collection of 600 files, of which 540 go" in page
    published = (ROOT / "docs/evidence/upkeep.md").read_text()
    assert rows(page) == rows(published)
    assert (ROOT / "docs/evidence" / re.findall(r"\]\((.*svg)\)", published)[0]).exists()
