"""Random chunks on S3, read by several threads at once: each index, chunk and document by one request, on the wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from tests.harness.misbehaving_server import MisbehavingServer

THREADS = 8
SHARDS = 16
SIDE = 16  # chunks, of a shard
CHUNK = 32
CHUNKS = 200


@pytest.fixture
def server(s3_endpoint: str) -> Iterator[MisbehavingServer]:
    with MisbehavingServer(s3_endpoint) as running:
        yield running


@pytest.mark.parametrize("transport", ["fsspec", "obstore"])
@pytest.mark.parametrize("metadata_ttl", ["1h", "inf"])
def test_random_chunks_by_threads(s3_url: tuple[str, dict[str, Any]], server: MisbehavingServer, transport: Any, metadata_ttl: str) -> None:
    url, options = s3_url
    shape = (SHARDS, SIDE * CHUNK, SIDE * CHUNK)
    data = np.random.default_rng(0).integers(1, 255, shape, dtype="u1")
    store = shardstore.open(url, storage_options=options, chunks_per_shard=(1, SIDE, SIDE))
    zarr.create_array(store, name="x", data=data, chunks=(1, CHUNK, CHUNK), compressors=None)
    there = options | {"endpoint_url": server.url}
    array = zarr.open_array(
        # Shards are as small as tests need them: nothing but the index is to come with it.
        shardstore.open(url, storage_options=there, transport=transport, metadata_ttl=metadata_ttl, first_bytes=0, read_only=True),
        path="x",
        mode="r",
    )
    server.behave()

    cells = np.random.default_rng(1).permutation(SHARDS * SIDE * SIDE)[:CHUNKS]
    corners = [np.unravel_index(cell, (SHARDS, SIDE, SIDE)) for cell in cells]
    boxes = [(int(i), slice(j * CHUNK, (j + 1) * CHUNK), slice(k * CHUNK, (k + 1) * CHUNK)) for i, j, k in corners]
    with ThreadPoolExecutor(THREADS) as threads:
        found = list(threads.map(lambda box: array[box], boxes))
    assert all(np.array_equal(chunk, data[box]) for chunk, box in zip(found, boxes, strict=True))

    requests = Counter((request.path.partition("?")[0], request.header("Range") or "") for request in server.requests)
    indices = {key: count for key, count in requests.items() if key[1].startswith("bytes=-")}
    documents = sum(count for key, count in requests.items() if key[0].endswith("zarr.json"))
    chunks = {key: count for key, count in requests.items() if key not in indices and not key[0].endswith("zarr.json")}
    assert set(indices.values()) == set(chunks.values()) == {1}
    assert (len(indices), len(chunks)) == (SHARDS, CHUNKS)
    # The document proves the indices that were read before it, and is shared while it is read; one that never changes is not read again.
    assert documents <= (0 if metadata_ttl == "inf" else SHARDS + THREADS)
