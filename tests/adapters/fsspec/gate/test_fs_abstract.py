"""fsspec's own suites for filesystems, as they are, on ``sharded`` over every kind of storage.

They run at the root of an empty store, and once more inside a group, between two sharded arrays. What is left out is named here,
with its reason, and in ``docs/howto/fsspec.md``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
from tests.adapters.places import Place, make_place
from tests.engine.hooked import document

# The suites ask for nothing that fsspec calls optional but directories without anything in them.
SUPPORTS_EMPTY_DIRECTORIES = False


class Sharded(AbstractFixtures):  # type: ignore[misc]  # no types
    """What the suites ask: a filesystem, a path in it, and how paths are joined."""

    kind: str
    in_a_hierarchy = False

    @pytest.fixture
    def place(self, request: pytest.FixtureRequest) -> Place:
        return make_place(self.kind, request)

    @pytest.fixture
    def fs(self, place: Place) -> Iterator[ShardedFileSystem]:
        fs = place.filesystem(chunks_per_shard=(2,))
        if not self.in_a_hierarchy:
            yield fs
            return
        fs.pipe({**_array("a"), "g/zarr.json": json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()})
        fs.pipe({**_array("g/b"), **_array("g/under")})
        before = {path: fs.cat_file(path) for path in fs.find("")}
        yield fs
        assert {path: fs.cat_file(path) for path in fs.find("") if path in before} == before
        shards = [key for key in place.objects.keys() if "/c/" in key]  # noqa: SIM118 - no mapping
        assert len(shards) == 3 * 2, "chunks are in shards, two in each"

    @pytest.fixture
    def fs_path(self, place: Place) -> str:
        return place.path + ("/g" if self.in_a_hierarchy else "")

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return SUPPORTS_EMPTY_DIRECTORIES


def _array(path: str) -> dict[str, bytes]:
    """An array of four chunks, of which three are there."""
    metadata = json.loads(document((8,), (2,)))
    return {f"{path}/zarr.json": json.dumps(metadata).encode(), **{f"{path}/c/{i}": bytes([i, i + 1]) for i in range(3)}}


class Suites(AbstractCopyTests, AbstractGetTests, AbstractPutTests, AbstractPipeTests, AbstractOpenTests):  # type: ignore[misc]  # no types
    """All five; each of them with its fixtures from ``Sharded``."""


class TestMemory(Suites, Sharded):
    kind = "memory"


@pytest.mark.night
class TestLocal(Suites, Sharded):
    kind = "local"


class TestS3(Suites, Sharded):
    kind = "s3"


class TestGCS(Suites, Sharded):
    kind = "gcs"


class TestMemoryInAHierarchy(TestMemory):
    in_a_hierarchy = True


class TestLocalInAHierarchy(TestLocal):
    in_a_hierarchy = True
