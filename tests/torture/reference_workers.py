"""What the processes of ``test_references`` do: one reads through a set of references, others rewrite the shards that it refers to."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

import shardstore
from shardstore import references
from shardstore.errors import Conflict
from tests.harness.scale import sized
from tests.torture.crew import Together
from tests.torture.places import Place

SIDE, SHARD = sized(128, 32), 8  # elements; chunks are of 2 × 2
READS_A_COMMIT = 40  # of one writer: at the end of a full run nearly all shards have been rewritten

# Cells of the board: reads so far, and 1 where the reader has ended.
_READS, _ENDED = 0, 1
CELLS = 2


def values_at_first() -> npt.NDArray[np.int32]:
    return np.arange(1, SIDE * SIDE + 1, dtype="i4").reshape(SIDE, SIDE)


def prepare(place: Place) -> None:
    store = place.store(chunks_per_shard=(SHARD // 2,) * 2)
    zarr.create_array(store, name="x", shape=(SIDE, SIDE), chunks=(2, 2), dtype="i4", compressors=None, fill_value=0)[...] = (
        values_at_first()
    )


def rewrite(place: Place, writer: int, together: Together) -> int:
    """Write other values into shards, as fast as the reader reads, until it has ended; return how many commits."""
    array = zarr.open_array(place.store(), path="x", mode="r+")
    rng = random.Random(writer)
    together.start()
    commits = 0

    def is_next() -> bool:
        return bool(together.board[_ENDED]) or together.board[_READS] // READS_A_COMMIT > commits

    while True:
        together.wait(is_next)
        if together.board[_ENDED]:
            return commits
        row, column = (2 * rng.randrange(SIDE // 2) for _ in range(2))
        array[row : row + 2, column : column + 2] = -rng.randrange(1, 2**31)
        commits += 1


def read(place: Place, form: str, directory: str, reads: int, together: Together) -> Counter[str]:
    """Read chunks through a new set: each has the values of the time when the set was written, or is refused."""
    array, refusals = _through_icechunk(place) if form == "icechunk" else _through_set(place, form, Path(directory) / "set")
    values = values_at_first()
    rng = random.Random(1)
    np.testing.assert_array_equal(array[:2], values[:2])
    together.start()
    outcomes: Counter[str] = Counter()
    try:
        for number in range(100 * reads):
            if number >= reads and outcomes["refused"]:
                break  # few reads may end before the first commit
            together.check()
            row, column = (2 * rng.randrange(SIDE // 2) for _ in range(2))
            try:
                found = array[row : row + 2, column : column + 2]
            except refusals as exc:
                outcomes["refused" if isinstance(exc, Conflict) or "checksum" in str(exc) else "errors"] += 1
            else:
                np.testing.assert_array_equal(found, values[row : row + 2, column : column + 2])
                outcomes["right"] += 1
            together.board[_READS] = number + 1
    finally:
        together.board[_ENDED] = 1
    return outcomes


def _through_set(place: Place, form: str, target: Path) -> tuple[zarr.Array[Any], tuple[type[Exception], ...]]:
    write = references.write_json if form == "json" else references.write_parquet
    assert write(place.url, target, storage_options=place.storage_options).is_pinned
    options = {"reference": {"remote_options": place.storage_options}}
    return zarr.open_array(shardstore.open(f"reference::{target}", storage_options=options), path="x", mode="r", zarr_format=2), (Conflict,)


def _through_icechunk(place: Place) -> tuple[zarr.Array[Any], tuple[type[Exception], ...]]:
    import icechunk

    prefix, server = place.url.rstrip("/") + "/", place.storage_options["endpoint_url"]
    store = icechunk.s3_store(region="us-east-1", endpoint_url=server, allow_http=True, force_path_style=True)
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, store))
    access = icechunk.containers_credentials({prefix: icechunk.s3_credentials(access_key_id="test", secret_access_key="test")})
    repository = icechunk.Repository.create(icechunk.in_memory_storage(), config, authorize_virtual_chunk_access=access)
    assert references.write_icechunk(place.url, repository, storage_options=place.storage_options, checksum="etag").is_pinned
    # The server of the tests fails by itself now and then: that is an error too, which is counted.
    return zarr.open_array(repository.readonly_session("main").store, path="x", mode="r"), (icechunk.IcechunkError, ValueError)
