"""``shardstore.append`` on S3 and Google Cloud Storage: several programs at once, and what a plain reader sees meanwhile."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import shardstore
from tests.adapters.zarr.test_appending import ENCODING, SHARDS, rows

xr = pytest.importorskip("xarray")


@pytest.mark.parametrize("kind", ["s3", "gcs"])
def test_programs_append_at_once(kind: str, request: pytest.FixtureRequest) -> None:
    url, options = request.getfixturevalue(f"{kind}_url")
    store = shardstore.open(url, storage_options=options, chunks_per_shard=SHARDS)
    rows(1, 3).to_zarr(store, mode="w", encoding=ENCODING, consolidated=True)
    writers, appends = (3, 4) if kind == "s3" else (2, 2)
    is_over = threading.Event()

    def work(writer: int) -> list[tuple[slice, int]]:
        found = []
        for number in range(appends):
            first = 1000 * writer + 10 * number
            # Each with a client of its own, as another program has.
            other = shardstore.open(url, storage_options=options, commit_attempts=100 + writer)
            found.append((shardstore.append(other, rows(first, 1 + number), "time"), first))
        return found

    def look() -> int:
        """Look as a program does that knows nothing of shardstore; return how often."""
        looks = 0
        while not is_over.is_set():
            seen = xr.open_zarr(url, storage_options=options, consolidated=True).load()
            for values in (seen.a.values[:, 0], seen.b.values[0], seen.plain.values):
                np.testing.assert_array_equal(values, seen.time.values)
            assert (seen.time.values > 0).all()
            looks += 1
        return looks

    with ThreadPoolExecutor(writers + 1) as pool:
        looking = pool.submit(look)
        try:
            done = sorted((each for some in pool.map(work, range(1, writers + 1)) for each in some), key=lambda one: one[0].start)
        finally:
            is_over.set()
        assert looking.result() > 0
    expected = [np.arange(1, 4)]
    at = 3
    for where, first in done:
        assert where.start == at
        at = where.stop
        expected.append(np.arange(first, first + where.stop - where.start))
    seen: Any = xr.open_zarr(url, storage_options=options, consolidated=True).load()
    np.testing.assert_array_equal(seen.time.values, np.concatenate(expected))
    np.testing.assert_array_equal(seen.a.values[:, 5], np.concatenate(expected))
