"""Listings of sessions: keys in order, of what was committed and what was not."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import zarr
from hypothesis import given

from shardstore.format.chunk_keys import ChunkKeyEncoding
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Found, Read, Storage, direct_children
from shardstore.testing.storage_suite import SyncStorage
from tests.snapshots.repositories import new_repository, run
from tests.snapshots.session_keys import array_document

ENCODINGS = [ChunkKeyEncoding("default", "/"), ChunkKeyEncoding("default", "."), ChunkKeyEncoding("v2", "/"), ChunkKeyEncoding("v2", ".")]
NUMBERS = st.sampled_from([0, 1, 2, 9, 10, 11, 19, 20, 99, 100, 2**32, 10**18])


@st.composite
def hierarchies(draw: st.DrawFn) -> dict[str, bytes]:
    """Keys and values of a store: groups, arrays of every encoding, and some of their chunks."""
    values: dict[str, bytes] = {"zarr.json": json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {"a": 1}}).encode()}
    paths = draw(st.lists(st.sampled_from(["a", "a-b", "a.b", "a0", "g/a", "g/c", "c", "1", "g-/x", "g/a1"]), unique=True))
    if draw(st.integers(0, 5)) == 0:
        paths = [""]
    for path in paths:
        encoding = draw(st.sampled_from(ENCODINGS))
        ndim = draw(st.integers(0, 3))
        prefix = f"{path}/" if path else ""
        named = {"name": encoding.name, "configuration": {"separator": encoding.separator}}
        values[f"{prefix}zarr.json"] = array_document([0] * ndim, [1] * ndim, chunk_key_encoding=named)
        for coords in draw(st.sets(st.tuples(*[NUMBERS] * ndim), max_size=12)):
            values[prefix + encoding.encode(coords)] = draw(st.sampled_from([b"", b"1", b"x" * 600]))
    return values


def prefixes_of(keys: list[str]) -> Iterator[str]:
    yield from ("", "nothing/", "a/c/01/", "c/")
    yield from sorted({key[: i + 1] for key in keys for i, letter in enumerate(key) if letter == "/"})


async def check_listings(storage: Storage, values: dict[str, bytes]) -> None:
    keys = sorted(values)
    infos = [info async for info in storage.list("")]
    assert [info.key for info in infos] == keys
    assert infos == [await storage.stat(key) for key in keys]
    for info, outcome in zip(infos, await storage.read([Read(key, (EVERYTHING,)) for key in keys]), strict=True):
        assert isinstance(outcome, Found)
        assert (outcome.generation, outcome.nbytes) == (info.generation, info.nbytes)
        assert info.key.endswith("zarr.json") or bytes(outcome.buffers[0]) == values[info.key]
    for prefix in prefixes_of(keys):
        for cut in (prefix, prefix[:-1]):
            assert [info.key async for info in storage.list(cut)] == [key for key in keys if key.startswith(cut)], cut
        names, deeper = direct_children([key for key in keys if key.startswith(prefix)], prefix)
        listing = await storage.list_dir(prefix)
        assert [info.key for info in listing.objects] == names, prefix
        assert listing.prefixes == deeper, prefix
        assert set(listing.objects) <= set(infos)


@given(hierarchies(), st.data())
def test_listings_have_the_keys_in_order_with_sizes_and_versions(values: dict[str, bytes], data: st.DataObject) -> None:
    """Of what was written, of what was committed, and of both with something erased."""
    repo = new_repository(f"listings-{uuid.uuid4().hex}")
    session = repo.writable_session()
    s = SyncStorage(session.storage)
    for key in sorted(values, key=lambda key: not key.endswith("zarr.json")):
        s.put(key, values[key])
    run(check_listings(s.storage, values))
    session.commit("all")
    run(check_listings(repo.readonly_session().storage, values))
    s = SyncStorage(repo.writable_session().storage)
    chunks = [key for key in sorted(values) if not key.endswith("zarr.json")]
    some = st.lists(st.sampled_from(chunks), unique=True) if chunks else st.just([])
    left = dict(values)
    for key in data.draw(some):
        assert s.delete(key)
        del left[key]
    for key in data.draw(some):
        left[key] = b"new"
        s.put(key, left[key])
    run(check_listings(s.storage, left))


def test_the_chunks_of_an_array_at_the_root_are_below_the_root(tmp_path: Path) -> None:
    session = new_repository(tmp_path).writable_session()
    zarr.create_array(session.store, shape=(4, 4), chunks=(2, 2), dtype="i4", overwrite=True)[:] = 1
    assert SyncStorage(session.storage).children() == (["zarr.json"], ["c/"])
