"""The same work on other executors: processes, a dask cluster, one of whose workers dies."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.progress.steps import Progress
from tests.clusters import dask_cluster
from tests.maintenance.packing.sources import stored

pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "a.zarr"
    zarr.create_array(root, data=np.random.default_rng(2).integers(0, 99, 6000), chunks=(10,), zarr_format=2)
    return root


def pack(source: Any, target: Any, **options: Any) -> Any:
    return shardstore.pack(source, target, chunks_per_shard=(10,), **options)


@pytest.fixture(scope="module")
def wanted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    target = tmp_path_factory.mktemp("wanted") / "b.zarr"
    pack(source, target)
    return stored(target)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_executors_of_python(kind: str, source: Path, tmp_path: Path, wanted: dict[str, bytes]) -> None:
    executor = ThreadPoolExecutor(2) if kind == "threads" else ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    with executor:
        assert pack(source, tmp_path / "b.zarr", executor=executor).complete
    assert stored(tmp_path / "b.zarr") == wanted


def test_a_process_that_dies_costs_the_run_but_nothing_that_was_done(source: Path, tmp_path: Path, wanted: dict[str, bytes]) -> None:
    """A pool of processes of Python's own cannot go on without one; the same call can."""
    killed: list[int] = []
    executor = ProcessPoolExecutor(2, mp_context=get_context("spawn"))

    def kill(progress: Progress) -> None:
        if progress.phase == "packing" and progress.objects > 50 and not killed:
            killed.extend(list(executor._processes)[:1])
            os.kill(killed[0], signal.SIGKILL)

    with executor, pytest.raises(shardstore.Incomplete) as caught:
        pack(source, tmp_path / "b.zarr", executor=executor, progress=kill)
    report: Any = caught.value.report
    assert report.done > 0
    assert not (tmp_path / "b.zarr/zarr.json").exists()
    again = pack(source, tmp_path / "b.zarr")
    assert again.skipped >= report.done
    assert stored(tmp_path / "b.zarr") == wanted


def test_a_dask_cluster_that_loses_a_worker(source: Path, tmp_path: Path, wanted: dict[str, bytes]) -> None:
    killed: list[int] = []
    with dask_cluster(2) as client:

        def kill(progress: Progress) -> None:
            if progress.phase == "packing" and progress.objects > 50 and not killed:
                worker = next(iter(client.cluster.workers.values()))
                killed.append(worker.pid)
                os.kill(worker.pid, signal.SIGKILL)

        report = pack(source, tmp_path / "b.zarr", executor=client, progress=kill)
    assert killed
    assert report.complete
    assert report.done == report.units
    assert stored(tmp_path / "b.zarr") == wanted
