"""What is left out of the run of zarr's tests is on the page, and what stands in for zarr's stores does shard.

The run itself (``make zarr-suite``) needs what this directory does not hold; here is what can be checked without it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.zarr_suite.exclusions import EXCLUDED, NOT_RUN, Exclusion

PAGE = (Path(__file__).parents[2] / "docs/evidence/zarr-tests.md").read_text()


def rows(heading: str) -> list[tuple[str, ...]]:
    """The cells of the table below a heading of the page, but for its first two lines."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines[2:]]


def test_the_page_has_every_exclusion() -> None:
    def row(exclusion: Exclusion) -> tuple[str, ...]:
        parameters = "all" if exclusion.parameters == "*" else f"`{exclusion.parameters}`"
        return f"`{exclusion.test}`", parameters, exclusion.only or "both", exclusion.reason

    assert rows("Excluded") == [row(exclusion) for exclusion in EXCLUDED]


def test_the_page_has_everything_that_is_not_run() -> None:
    assert rows("Not run") == [(f"`{path}`", reason) for path, reason in NOT_RUN.items()]


def test_no_test_is_listed_twice() -> None:
    assert len({(exclusion.test, exclusion.parameters) for exclusion in EXCLUDED}) == len(EXCLUDED)


def test_an_exclusion_covers_its_parameters_only() -> None:
    exclusion = Exclusion("test_array.py::test_info", "why", "*-None")
    assert exclusion.covers("tests/test_array.py::test_info[chunks0-None]")
    assert not exclusion.covers("tests/test_array.py::test_info[chunks0-shards1]")
    assert not exclusion.covers("tests/test_array.py::test_info_async[chunks0-None]")
    assert Exclusion("test_array.py::test_info", "why").covers("tests/test_array.py::test_info")


PROGRAM = """
import numpy, sys, zarr, zarr.storage
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from shardstore.adapters.zarr.pipeline import ShardedCodecPipeline
from tests.zarr_suite.stand_ins import forget_contents, replace_stores

replace_stores()
for target in (None, {}, sys.argv[1], zarr.storage.MemoryStore(), zarr.storage.LocalStore(sys.argv[1] + "/2")):
    array = zarr.create_array(target, shape=(6, 6), chunks=(1, 2), dtype="i4")
    array[...] = numpy.arange(36).reshape(6, 6)
    store = array.store
    assert store.chunks_per_shard("") == (2, 2), store
    assert isinstance(array.async_array.codec_pipeline, ShardedCodecPipeline)
    if hasattr(store, "_store_dict"):
        assert set(store._store_dict) == {"zarr.json", *(f"c/{i}/{j}" for i in range(6) for j in range(3))}
        assert store._store_dict["c/5/2"] == sync(store.get("c/5/2", default_buffer_prototype()))
    print(type(store).__name__, type(store).__qualname__, store.counters.chunks_written, store.counters.commits)
assert sum(counters.chunks_written for counters in forget_contents()) == 90
"""


def test_the_stores_that_stand_in_shard(tmp_path: Path) -> None:
    """In a process of its own: it replaces zarr's stores for good."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert run.returncode == 0, run.stderr
    memory, local = "MemoryStore MemoryStandIn 18 6", "LocalStore LocalStandIn 18 6"
    assert re.findall(r".+", run.stdout) == [memory, memory, local, memory, local]
