"""A reader of references beside four writers of the shards: the bytes that were referred to, or a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.scale import FULL, sized
from tests.torture.conftest import Record
from tests.torture.crew import Crew, Job
from tests.torture.places import Place
from tests.torture.reference_workers import CELLS, prepare, read, rewrite

WRITERS = 4


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_sets(place: Place, form: str, crew: Crew, record: Record, tmp_path: Path) -> None:
    check(place, form, crew, record, tmp_path)


@pytest.mark.parametrize("place", ["moto", *(["ministack", "ceph"] if FULL else [])], indirect=True)
def test_icechunk_by_etags(place: Place, crew: Crew, record: Record, tmp_path: Path) -> None:
    check(place, "icechunk", crew, record, tmp_path)


def check(place: Place, form: str, crew: Crew, record: Record, directory: Path) -> None:
    prepare(place)
    reads = sized(10_000, 400)
    jobs = [Job(read, (place, form, str(directory), reads)), *(Job(rewrite, (place, writer)) for writer in range(WRITERS))]
    outcomes, *commits = crew.run(jobs, cells=CELLS)
    assert all(commits)
    assert outcomes["right"]
    assert outcomes["refused"]
    assert outcomes["errors"] < reads // 10
    record(
        f"{place.kind}, {form}: {outcomes['right']} reads right, {outcomes['refused']} refused, {outcomes['errors']} errors beside "
        f"{sum(commits)} commits; 0 wrong"
    )
