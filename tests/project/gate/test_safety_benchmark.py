"""``benchmarks/safety.py`` runs, counts what it says, and its judges know wrong values from right ones."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardstore.plan.commits import NONCE_NBYTES

ROOT = Path(__file__).parents[3]
BENCHMARKS = ROOT / "benchmarks"
# Of a quick run: a shard of 8 chunks of 5,000 bytes, with its index.
CHUNKS, CHUNK_NBYTES, SHARD_NBYTES = 8, 5000, 8 * 5016 + 4


def quick_run(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """What a quick run writes as JSON."""
    result = tmp_path / "result.json"
    command = [sys.executable, str(BENCHMARKS / "safety.py"), "--quick", "--json", str(result), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "command: python benchmarks/safety.py --quick" in done.stdout
    found: dict[str, Any] = json.loads(result.read_text())
    return found


def rounds(run: dict[str, Any], contender: str, experiment: str, **settings: Any) -> list[dict[str, Any]]:
    """The figures of the only experiment of this kind and these settings."""
    (result,) = [
        each
        for each in run["results"]
        if (each["contender"], each["experiment"]) == (contender, experiment) and settings.items() <= each["settings"].items()
    ]
    found: list[dict[str, Any]] = result["rounds"]
    return found


def amplification(run: dict[str, Any], contender: str, way: str) -> dict[str, Any]:
    (only,) = rounds(run, contender, "Amplification", way=way)
    return only


def check_shardstore_is_safe(run: dict[str, Any]) -> None:
    for loss in [*rounds(run, "shardstore", "Loss", are_parts=False), *rounds(run, "shardstore", "Loss", are_parts=True)]:
        assert (loss["lost"], loss["write_errors"], loss["shard_damaged"]) == (0, 0, None), loss["errors"]
    (appends,) = rounds(run, "shardstore", "Appends")
    assert appends["appends"] == 8
    assert appends["views"] > 0
    bad = ("lost", "displaced", "append_errors", "fill", "lengths", "different", "read_errors")
    assert {name: appends[name] for name in bad} == dict.fromkeys(bad, 0), appends["errors"]
    (torn,) = rounds(run, "shardstore", "TornReads")
    assert torn["single"] > 0
    assert torn["rewrites"] > 0
    wrong = ("single_wrong", "several_wrong", "several_mixed", "read_errors", "write_errors")
    assert {name: torn[name] for name in wrong} == dict.fromkeys(wrong, 0), torn["errors"]


@pytest.mark.night
def test_on_a_local_disk(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    run = quick_run(tmp_path, "--storage", "local", "--directory", str(tmp_path), "--markdown", str(table))
    names = ["zarr-python", "tensorstore", "shardstore"]
    for name in names:
        if sys.platform == "linux":
            # Everybody rewrites the shard for each chunk, so all of that must have been counted: what the kernel copied too.
            singly = amplification(run, name, "one by one")
            assert CHUNKS * SHARD_NBYTES <= singly["bytes_written"] < (CHUNKS + 1) * SHARD_NBYTES
            assert CHUNKS * (SHARD_NBYTES - 2 * CHUNK_NBYTES) <= singly["bytes_read"] < (CHUNKS + 1) * SHARD_NBYTES
            at_once = amplification(run, name, "in one assignment")
            assert SHARD_NBYTES <= at_once["bytes_written"] < 1.1 * SHARD_NBYTES
        assert all(each["rewrites"] > 0 for each in rounds(run, name, "TornReads"))
    check_shardstore_is_safe(run)
    assert [each["lost"] for each in rounds(run, "tensorstore", "Loss", are_parts=False)] == [0, 0]
    lines = table.read_text().splitlines()
    assert f"| local | {' | '.join(names)} |" in lines
    assert f"| local, appends | {' | '.join(names)} |" in lines
    assert sum(line.startswith("| ") for line in lines) == 2 + len(run["table"])
    assert sorted(tmp_path.iterdir()) == [tmp_path / "result.json", table]


@pytest.mark.night
def test_on_s3(tmp_path: Path) -> None:
    run = quick_run(tmp_path, "--storage", "s3", "--only", "zarr-python", "shardstore")
    check_shardstore_is_safe(run)
    for name in ("zarr-python", "shardstore"):
        singly = amplification(run, name, "one by one")
        assert singly["requests"]["PUT"] == CHUNKS
        nonce = NONCE_NBYTES if name == "shardstore" else 0
        assert singly["bytes_written"] == CHUNKS * (SHARD_NBYTES + nonce)
        at_once = amplification(run, name, "in one assignment")
        assert at_once["requests"]["PUT"] == 1
        assert at_once["bytes_written"] == SHARD_NBYTES + nonce


def test_who_cannot_take_part_is_left_out_with_a_reason(tmp_path: Path) -> None:
    run = quick_run(tmp_path, "--storage", "local", "--only", "zarr-python, obstore")
    assert run["results"] == []
    assert run["left_out"] == {"zarr-python, obstore on local": "it is for object stores"}


# -- the judges --------------------------------------------------------------------------------------------------------


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module of the benchmark."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for path in BENCHMARKS.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_lost_chunks_are_found(modules: Any) -> None:
    experiments = modules("experiments")
    values = np.repeat([experiments.mark_of(chunk) for chunk in range(6)], 10).astype("u1")
    assert experiments.chunks_lost(values, 6) == []
    values[10:20] = 0  # never arrived
    values[49] = 0  # not whole
    assert experiments.chunks_lost(values, 6) == [1, 4]


def test_wrong_and_mixed_reads_are_found(modules: Any) -> None:
    experiments = modules("experiments")
    contents = experiments.versions_of(8, 50)
    right = contents[3, 2]
    assert experiments.version_read(contents, 2, right) == 4
    fill = np.full_like(right, 65535)
    noisiest = int(np.argmax(np.sum(contents != 7, axis=(1, 2))))
    assert noisiest != 3
    half = np.concatenate([right[:25], contents[noisiest, 2][25:]])
    for wrong in (fill, half, contents[3, 1], np.zeros_like(right)):  # the others: two versions in one chunk, another chunk, nonsense
        assert experiments.version_read(contents, 2, wrong) is None

    reads = experiments.Reads()
    reads.judge(contents, 2, contents[3, 2:3])
    reads.judge(contents, 2, fill[None])
    reads.judge(contents, 2, half[None])
    assert (reads.single, reads.single_wrong, reads.wrong_were_fill) == (3, 2, 1)
    reads.judge(contents, 2, contents[3, 2:5])
    reads.judge(contents, 2, np.stack([contents[3, 2], contents[4, 3], contents[3, 4]]))
    reads.judge(contents, 2, np.stack([contents[3, 2], fill, contents[4, 4]]))
    assert (reads.several, reads.several_wrong, reads.several_mixed) == (3, 1, 1)


def test_rows_that_are_lost_or_displaced_are_found(modules: Any) -> None:
    appends = modules("appends")
    time, a = np.arange(1, 9), np.repeat(np.arange(1, 9)[:, None], 6, 1)
    numbers = np.arange(3, 9)
    assert appends.fate(time, a, numbers) == (0, 0)
    assert appends.fate(time[:-1], a, numbers) == (1, 0)
    assert appends.fate(time, np.roll(a, 1, 0), numbers) == (0, 6)
    torn = a.copy()
    torn[4, 0] = 0
    assert appends.fate(time, torn, numbers) == (1, 0)
    twice = np.append(time, 8), np.append(a, a[-1:], 0)
    assert appends.fate(*twice, numbers) == (0, 1)


def test_views_that_are_wrong_are_found(modules: Any) -> None:
    views = modules("appends").Views()
    time, a = np.arange(1, 9), np.repeat(np.arange(1, 9)[:, None], 6, 1)

    def found() -> tuple[int, int, int]:
        return views.fill, views.lengths, views.different

    views.judge(time, a)
    assert found() == (0, 0, 0)
    views.judge(time, np.where(a == 8, 0, a))
    assert found() == (1, 0, 0)
    views.judge(time[:-1], a)
    assert found() == (1, 1, 0)
    views.judge(time, np.where(a == 8, 7, a))
    assert found() == (1, 1, 1)


def test_versions_of_a_shard_differ_in_length(modules: Any) -> None:
    """Otherwise an index of one version and a chunk of another would go together, and no torn read could show."""
    contents = modules("experiments").versions_of(4, 2500)
    noisy = [int(np.sum(version != 7)) for version in contents]
    assert len(set(noisy)) == len(noisy)
    assert max(noisy) > 5 * min(noisy)


def test_a_process_that_fails_is_no_result(modules: Any, tmp_path: Path) -> None:
    contenders, crew, experiments = modules("contenders"), modules("crew"), modules("experiments")
    target = contenders.Target(contenders.Place(str(tmp_path)), "absent", 4, 10)
    job = experiments._WriteShare(contenders.ZarrPython(), target, range(4))
    with crew.Crew() as members, pytest.raises(crew.CrewError, match="NotFoundError"):
        members.run([job])
