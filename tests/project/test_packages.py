"""What hosts and package managers read agrees with pyproject.toml and the Makefile. ``make wheel-test`` checks what is built."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from shardstore.plan.policy import ArrayInfo, automatic

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HOSTED = [path for path in (ROOT / ".github").rglob("*") if path.is_file()]


def test_the_recipe_for_conda_needs_what_pip_installs() -> None:
    recipe = (ROOT / ".ci/conda/recipe.yaml").read_text()
    needed: dict[str, Any] = {}
    for section in ("host", "run"):
        [block] = re.findall(rf"^  {section}:\n((?:    - .*\n)+)", recipe, re.MULTILINE)
        needed[section] = {line.removeprefix("    - ").replace(" ", "") for line in block.splitlines()}
    extras = PROJECT["optional-dependencies"]
    assert needed["run"] == {"python" + PROJECT["requires-python"], *PROJECT["dependencies"], *extras["zarr"], *extras["cli"]}
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert needed["host"] == {"python", "pip", *build}


@pytest.mark.parametrize(
    "path",
    [ROOT / "pyproject.toml", ROOT / "CITATION.cff", ROOT / ".ci/conda/recipe.yaml", *HOSTED],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_there_is_one_address(path: Path) -> None:
    """A host elsewhere changes ``project.urls``; this names what else has the address."""
    found = re.findall(r"https://(?:github\.com/[\w-]*shardstore[\w/-]*|[\w-]*shardstore[\w-]*\.readthedocs\.io)", path.read_text())
    bases = tuple(PROJECT["urls"][name].rstrip("/") for name in ("Repository", "Documentation"))
    assert [url for url in found if not url.startswith(bases)] == []


@pytest.mark.parametrize("path", HOSTED, ids=lambda path: path.name)
def test_workflows_and_guides_call_what_there_is(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+)(?: [a-z -]+)?:", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", path.read_text())) <= targets
    assert all((ROOT / name).is_file() for name in re.findall(r"\.(?:ci|github)/[\w./-]*\w", path.read_text()) if "." in Path(name).name)


def test_the_classifiers_name_the_tested_versions_of_python() -> None:
    named = [found[1] for each in PROJECT["classifiers"] if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each))]
    matrix = re.findall(r'"(3\.\d+)"', re.findall(r"python: \[.*\]", (ROOT / ".github/workflows/tests.yml").read_text())[0])
    assert named[0] == PROJECT["requires-python"].removeprefix(">=")
    assert named == matrix[: len(named)]


def test_the_numbers_of_the_readme_are_those_of_the_pages() -> None:
    readme = (ROOT / "README.md").read_text()
    [ours, zarr_python] = re.findall(
        r"^\| Full reads, zstd \| ([\d.]+) .* \*\*([\d.]+)\*\* \|$", (ROOT / "docs/evidence/benchmarks.md").read_text(), re.MULTILINE
    )[0]
    assert f"| 1 by tensorstore, {zarr_python} by zarr-python | {ours} |" in readme
    assert "| 39, 37, 41, 37, 38 | " in (ROOT / "docs/evidence/safety.md").read_text()
    assert "| 37 to 41, by zarr-python | 0 |" in readme
    assert "| 37,463 | 156 |" in readme


def test_the_files_of_the_packed_image_are_counted() -> None:
    """An image of Zarr v2 has ``.zgroup``, and ``.zarray`` and ``.zattrs`` by node; one of v3 a document."""
    levels = 6
    chunks = shards = 0
    for level in range(levels):
        side = (2048 >> level) // 64
        per_shard = automatic(ArrayInfo("", (64 * side,) * 3, (64,) * 3, 1, {}), may_grow=False) or (1, 1, 1)
        chunks += side**3
        shards += math.prod(math.ceil(side / n) for n in per_shard)
    assert (chunks + 2 * (levels + 1), shards + levels + 1) == (37_463, 156)
