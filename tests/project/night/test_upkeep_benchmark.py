"""``benchmarks/snapshot_upkeep.py`` at a small size: a year ends with a sound store, and the page has a row of each measurement."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("icechunk", minversion="2")


ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a quick run."""
    place = tmp_path_factory.mktemp("upkeep")
    sizes = ["--files", "600", "--kept", "60", "--commits", "60", "--rounds", "1"]
    made = ["--directory", str(place), "--page", str(place / "page.md"), "--plot", str(place / "year.svg")]
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/snapshot_upkeep.py", *sizes, *made],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (place / "page.md").exists(), done.stdout + done.stderr  # it may end with 1: times are not judged here
    assert {path.name for path in place.iterdir()} == {"page.md", "year.svg"}
    assert "<svg" in (place / "year.svg").read_text()
    return (place / "page.md").read_text()


def test_both_sides_removed_all_that_nothing_needs(page: str) -> None:
    assert "a collection of 600 files, of which 540 go" in page


def test_published_page_has_the_rows_of_the_program(page: str) -> None:
    published = (ROOT / "docs/evidence/upkeep.md").read_text()

    def rows(text: str) -> list[str]:
        return [re.sub(r"[\d,]+", "n", row) for row in re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE)]

    assert rows(page) == rows(published)
    assert (ROOT / "docs/evidence" / re.findall(r"\]\((.*svg)\)", published)[0]).exists()
