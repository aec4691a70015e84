"""A store that is served, and requests to it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import zarr
from zarr.codecs import GzipCodec

from shardstore.apps.server import Serving, serve

DATA = np.arange(64 * 64 * 8, dtype="u2").reshape(64, 64, 8)


def make_store(place: Path) -> Path:
    """A group with a sharded array, one that is not, and an object besides."""
    group = zarr.create_group(place, attributes={"title": "in May"})
    array = group.create_array("ct", shape=DATA.shape, chunks=(8, 8, 8), shards=(32, 32, 8), dtype=DATA.dtype)
    array[:48] = DATA[:48]  # the last row of shards has chunks in its first half only
    group.create_array("gz", data=DATA, chunks=(16, 16, 8), shards=(32, 32, 8), compressors=[GzipCodec()])
    group.create_array("deep/plain", data=np.arange(10), chunks=(3,))
    (place / "notes").mkdir()
    (place / "notes/read me.txt").write_bytes(b"something else")
    (place / "notes/empty").write_bytes(b"")
    return place


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("made") / "data.zarr")


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "data.zarr")
    return tmp_path / "data.zarr"


@dataclass
class Client:
    """Requests to a server."""

    serving: Serving
    http: httpx.Client

    def get(self, path: str, method: str = "GET", **headers: str) -> httpx.Response:
        """Send a request; header names have ``_`` for ``-``."""
        return self.http.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})


def connected(serving: Serving) -> httpx.Client:
    return httpx.Client(base_url=serving.url, trust_env=False, timeout=60)


@pytest.fixture(scope="session")
def client(made: Path) -> Iterator[Client]:
    """For tests that change neither the store nor the server."""
    with serve(made, port=0) as serving, connected(serving) as http:
        yield Client(serving, http)


@pytest.fixture
def own(store: Path) -> Iterator[Client]:
    """A server of ``store``, for tests that change either."""
    with serve(store, port=0) as serving, connected(serving) as http:
        yield Client(serving, http)


def reading(place: Any) -> dict[str, bytes]:
    """All presented values of a store, read without a server."""
    import shardstore

    found = shardstore.get_mapper(str(place), read_only=True)
    return {key: bytes(found[key]) for key in found}
