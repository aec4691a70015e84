"""What a server of S3 honours is found out through obstore, and the client of s3fs is made only where something needs it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.model.generation import IF_ABSENT, IfGeneration
from shardstore.model.ranges import EVERYTHING
from shardstore.opening.open import open_storage
from shardstore.storage.base import ABSENT, Found
from shardstore.storage.obstore.s3 import ObstoreS3Storage
from shardstore.storage.requests.bucket import forget_facts
from shardstore.storage.s3.storage import S3Storage
from shardstore.testing.storage_suite import SyncStorage, on_io_loop
from tests.harness import misbehaviours as mis
from tests.harness.misbehaving_server import MisbehavingServer
from tests.storage.obstore.obstore_proxied import OURS, THEIRS, Proxied, Url

pytestmark = pytest.mark.usefixtures("fresh_facts")


@pytest.fixture
def unprobed(s3_url: Url) -> Iterator[Proxied]:
    """A storage over a filesystem of its own, whose server has not been asked anything."""
    forget_facts()
    with MisbehavingServer(s3_url[1]["endpoint_url"]) as server:
        options = {**s3_url[1], "endpoint_url": server.url, "client_kwargs": {"region_name": "us-east-1"}, "use_listings_cache": False}
        storage = open_storage(s3_url[0], {**options, "default_block_size": uuid.uuid4().int % 2**30 + 2**23})
        assert isinstance(storage, ObstoreS3Storage)
        yield Proxied(server, storage)


def fs_of(place: Proxied) -> Any:
    return place.storage.inner.fs


def test_a_server_is_probed_as_by_s3fs(unprobed: Proxied) -> None:
    found = on_io_loop(unprobed.storage.probe())
    conditions = [(r.method, r.header("If-Match") is not None, r.header("If-None-Match")) for r in unprobed.server.requests]
    assert conditions == [
        ("PUT", True, None),
        ("PUT", False, None),
        ("PUT", False, "*"),
        ("DELETE", True, None),
        ("HEAD", False, None),
        ("DELETE", False, None),
    ]
    assert {is_ours for _, is_ours in unprobed.sent()} == {OURS}
    assert fs_of(unprobed)._s3 is None
    assert unprobed.s.keys() == []
    assert found.atomic_commits
    assert found.conditional_delete
    assert isinstance(unprobed.storage.inner, S3Storage)
    assert unprobed.storage.inner.capabilities == found
    forget_facts()
    assert on_io_loop(unprobed.storage.inner.probe()) == found


def test_amazon_is_probed_by_two_requests(unprobed: Proxied, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(unprobed.storage.inner.client), "is_aws", True)
    assert on_io_loop(unprobed.storage.probe()).atomic_commits
    assert sorted(unprobed.sent()) == [("DELETE", OURS), ("PUT", OURS)]
    assert fs_of(unprobed)._s3 is None


@pytest.mark.parametrize("ignored", [("If-Match",), ("If-None-Match",), ("If-Match", "If-None-Match")])
def test_a_server_that_ignores_conditions(unprobed: Proxied, ignored: tuple[str, ...]) -> None:
    for name in ignored:
        unprobed.server.on(mis.without_header(name), header=name)
    found = on_io_loop(unprobed.storage.probe())
    assert (found.compare_and_swap, found.conditional_delete) == ("If-Match" not in ignored,) * 2
    assert found.create_if_absent == ("If-None-Match" not in ignored)
    unprobed.server.behave()
    assert unprobed.s.keys() == []


@pytest.mark.parametrize("status", [400, 501])
def test_s3fs_asks_what_gets_no_plain_answer(unprobed: Proxied, status: int) -> None:
    unprobed.server.on(mis.refuse(status), where=lambda request: "object_store" in (request.header("User-Agent") or ""))
    assert on_io_loop(unprobed.storage.probe()).atomic_commits
    assert THEIRS in {is_ours for _, is_ours in unprobed.sent()}


def test_reads_writes_and_listings_need_no_client_of_s3fs(unprobed: Proxied) -> None:
    store = shardstore.ShardedStore(unprobed.storage, chunks_per_shard=(4,))
    zarr.create_array(store, name="a", shape=(16,), chunks=(2,), dtype="i4")[:] = np.arange(16)
    array = zarr.open_array(shardstore.ShardedStore(unprobed.storage), path="a", mode="r+")
    array[3] = 7
    assert np.asarray(array[:5]).tolist() == [0, 1, 2, 7, 4]
    assert unprobed.s.read("none", EVERYTHING) == ABSENT
    assert unprobed.s.stat("none") is None
    first = unprobed.s.put("b", b"1", IF_ABSENT)
    unprobed.s.put("b", b"2", IfGeneration(first))
    assert "b" in set(unprobed.s.keys())
    assert {is_ours for _, is_ours in unprobed.sent()} == {OURS}
    assert fs_of(unprobed)._s3 is None
    unprobed.s.delete("b")
    assert fs_of(unprobed)._s3 is not None
    assert unprobed.s.get("a/zarr.json") is not None
    assert unprobed.storage.why_left_out is None


def test_an_object_is_absent_only_if_the_server_says_so(unprobed: Proxied) -> None:
    """A server that does not know what obstore asks for may answer 404, too."""

    async def not_found(_request: mis.Request, _send: mis.Send) -> mis.Outcome:
        return mis.Answer(404, (("Content-Type", "text/plain"),), b"")

    SyncStorage(unprobed.storage.inner).put("a", b"1")
    unprobed.server.on(not_found, where=lambda request: "object_store" in (request.header("User-Agent") or ""))
    assert unprobed.s.stat("a") is not None
    assert isinstance(unprobed.s.read("a", EVERYTHING), Found)
    unprobed.server.behave()
    assert unprobed.s.stat("none") is None
    assert unprobed.sent() == [("HEAD", OURS), ("GET", OURS)]  # the refusal of a HEAD has no text
    assert unprobed.s.stat("none") is None
    assert unprobed.sent() == [("HEAD", OURS)]


@pytest.mark.parametrize("chunks", [1, 3, 8])
def test_a_commit_of_chunks_to_a_shard_is_a_get_or_head_and_a_put(unprobed: Proxied, chunks: int) -> None:
    array = zarr.create_array(
        shardstore.ShardedStore(unprobed.storage, chunks_per_shard=(8,)), name="a", shape=(800,), chunks=(100,), dtype="i4", fill_value=-1
    )
    array[...] = np.arange(800)
    array = zarr.open_array(shardstore.ShardedStore(unprobed.storage, metadata_ttl="1h"), path="a", mode="r+")
    unprobed.server.behave()
    array[: 100 * chunks] = np.arange(100 * chunks) + 1
    of_shard = [request.method for request in unprobed.server.requests if request.path.endswith("/a/c/0")]
    assert of_shard == (["GET", "PUT"] if chunks < 8 else ["HEAD", "PUT"])
    assert {is_ours for _, is_ours in unprobed.sent()} == {OURS}
    assert np.asarray(array[:]).tolist() == [*range(1, 100 * chunks + 1), *range(100 * chunks, 800)]
