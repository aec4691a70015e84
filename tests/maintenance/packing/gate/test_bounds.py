"""Memory: of the plan of very many chunks, and of shards that are longer than what may be held."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

pytest.importorskip("resource")

# Not what getrusage says, which begins with what the process had that started this one.
MEASURE = """
import resource, sys
from pathlib import Path
def peak():
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
"""

PLAN = (
    MEASURE
    + """
import json, shardstore, time
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.base import ObjectInfo
from shardstore.model.generation import Generation
from shardstore.model.generation import UNCONDITIONAL
from shardstore._sync import run_sync

SIDE = 1000
DOCUMENT = json.dumps({"zarr_format": 2, "shape": [SIDE * 4, SIDE * 4], "chunks": [4, 4], "dtype": "<f4", "fill_value": 0,
    "order": "C", "filters": None, "compressor": {"id": "zlib", "level": 1}, "dimension_separator": sys.argv[1]}).encode()

class Listed(MemoryStorage):
    async def list(self, prefix):
        yield ObjectInfo("image/.zarray", len(DOCUMENT), Generation("document"))
        for i in range(SIDE):
            for j in range(SIDE):
                number = i * SIDE + j
                yield ObjectInfo(f"image/{i}{sys.argv[1]}{j}", 100 + number % 50, Generation(f'"{number:032x}"'))

source = Listed("/planned")
run_sync(source.write("image/.zarray", [DOCUMENT], len(DOCUMENT), UNCONDITIONAL))
shardstore.pack  # imported before it is measured
before = peak()
began = time.monotonic()
report = shardstore.pack(source, MemoryStorage("/nowhere"), chunks_per_shard=(10, 10), dry_run=True)
print(json.dumps({"objects": report.objects_before, "units": report.units, "after": report.objects_after, "nbytes": report.nbytes_before,
    "peak": peak(), "before": before, "seconds": time.monotonic() - began}))
"""
)


def run(program: str, *arguments: str) -> Any:
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("separator", ["/"])  # the one that takes more directories
def test_a_million_chunks_are_planned_in_little_memory(separator: str) -> None:
    found = run(PLAN, separator)
    assert found["objects"] == 10**6 + 1
    assert found["units"] == 10**4
    assert found["after"] == 10**4 + 2  # the group above the array gets a document
    assert found["peak"] < 500 * 2**20
    assert found["peak"] - found["before"] < 200 * 2**20


PACK = (
    MEASURE
    + """
import json, shardstore, os
shardstore.pack
source, target, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
if "target_options" in options:  # the client itself takes 50 MiB
    import fsspec
    fsspec.url_to_fs(target, **options["target_options"])[0].exists(target)
before = peak()
report = shardstore.pack(source, target, **options)
print(json.dumps({"peak": peak(), "before": before, "written": report.written_nbytes, "complete": report.complete}))
"""
)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """160 chunks of 1 MiB, and one of 64 MiB."""
    root = tmp_path_factory.mktemp("large") / "a.zarr"
    group = zarr.open_group(root, mode="w")
    data = np.random.default_rng(0).integers(0, 256, 2**20, dtype="u1")
    small = group.create_array("small", shape=(160 * 2**20,), chunks=(2**20,), dtype="u1", compressors=None)
    for i in range(160):
        small[i * 2**20 : (i + 1) * 2**20] = data
    group.create_array("long", data=np.tile(data, 64), chunks=(2**26,), compressors=None)
    return root


def test_shards_that_are_longer_than_the_memory(large: Path, tmp_path: Path) -> None:
    max_memory = 16 * 2**20
    given: dict[str, Any] = {"chunks_per_shard": [256], "max_memory": max_memory, "fsync": False}
    found = run(PACK, str(large), str(tmp_path / "b.zarr"), json.dumps(given))
    assert found["complete"]
    assert found["written"] > 220 * 2**20
    assert found["peak"] - found["before"] < max_memory + 40 * 2**20


def test_uploads_stay_within_the_memory(large: Path, s3_url: tuple[str, dict[str, Any]]) -> None:
    """Of shards that are uploaded in parts; the client makes a copy of each part that is under way."""
    url, options = s3_url
    max_memory = 160 * 2**20
    given: dict[str, Any] = {"chunks_per_shard": [256], "max_memory": max_memory, "target_options": options}
    found = run(PACK, str(large), url, json.dumps(given))
    assert found["complete"]
    assert found["written"] > 220 * 2**20
    assert found["peak"] - found["before"] < max_memory + 70 * 2**20
