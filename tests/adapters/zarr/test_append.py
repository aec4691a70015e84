"""The strategy ``append`` through zarr: what is written, what is refused, and that everybody reads the same."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import InvalidInput, StorageError, Unsupported
from shardstore.opening.open import open_storage
from shardstore.plan.commits import NONCE_NBYTES
from shardstore.plan.strategies import Append
from shardstore.storage.azure.storage import AzureStorage
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.requests.bucket import forget_facts
from shardstore.storage.s3.client import facts_of
from shardstore.storage.s3.storage import S3Storage
from shardstore.testing.storage_suite import on_io_loop
from shardstore.testing.trace import TraceStorage
from tests.shards import index_entries, sharding
from tests.storage.s3.gate.test_s3 import Calls, S3Url, honour_on_completion, unfinished_uploads

INDEX_NBYTES = 16 * 64 + 4
CHUNK_NBYTES = 4096


def appending(place: Any, **options: Any) -> shardstore.ShardedStore:
    return shardstore.open(place, chunks_per_shard=(8, 8), **{"strategy": "append", **options})


def filled(store: shardstore.ShardedStore) -> tuple[zarr.Array[Any], np.ndarray[Any, Any]]:
    """8 by 8 chunks of 64 by 64 bytes in one shard."""
    array = zarr.create_array(store, name="a", shape=(512, 512), chunks=(64, 64), dtype="u1", compressors=None, fill_value=0)
    values = np.random.default_rng(0).integers(1, 256, (512, 512), dtype="u1")
    array[:] = values
    return array, values


def test_single_chunks_cost_what_they_bring(tmp_path: Path) -> None:
    trace = TraceStorage(LocalStorage(tmp_path, fsync=False))
    array, values = filled(appending(trace))
    inode = (tmp_path / "a/c/0/0").stat().st_ino
    old_nbytes = (tmp_path / "a/c/0/0").stat().st_size
    with trace.count() as block:
        for i in range(20):
            new = np.full((64, 64), i + 1, dtype="u1")
            array[64:128, 64 * (i % 8) : 64 * (i % 8 + 1)] = values[64:128, 64 * (i % 8) : 64 * (i % 8 + 1)] = new
    written = block.summary().bytes_written
    assert written <= 1.1 * 20 * (CHUNK_NBYTES + INDEX_NBYTES)
    assert (tmp_path / "a/c/0/0").stat().st_size == old_nbytes + written
    assert (tmp_path / "a/c/0/0").stat().st_ino == inode
    np.testing.assert_array_equal(array[:], values)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a", mode="r")[:], values)
    np.testing.assert_array_equal(zarr.open_array(shardstore.open(tmp_path), path="a", mode="r")[:], values)


def test_chunks_of_a_shard_one_by_one(tmp_path: Path) -> None:
    trace = TraceStorage(LocalStorage(tmp_path, fsync=False))
    array = zarr.create_array(appending(trace), name="a", shape=(512, 512), chunks=(64, 64), dtype="u1", compressors=None, fill_value=0)
    with trace.count() as block:
        for i in range(64):
            y, x = divmod(i, 8)
            array[64 * y : 64 * (y + 1), 64 * x : 64 * (x + 1)] = i + 1
    assert block.summary().bytes_written <= 1.1 * 64 * (CHUNK_NBYTES + INDEX_NBYTES)
    native = zarr.open_array(tmp_path / "a", mode="r")
    np.testing.assert_array_equal(native[::64, ::64], np.arange(1, 65).reshape(8, 8))


def test_erasing(tmp_path: Path) -> None:
    array, values = filled(appending(tmp_path))
    array[0:64, :] = values[0:64, :] = 0  # the fill value: eight chunks less
    layout = sharding("a", json.loads((tmp_path / "a/zarr.json").read_bytes()))
    assert layout is not None
    shard = (tmp_path / "a/c/0/0").read_bytes()
    assert sum(nbytes != 2**64 - 1 for _, nbytes in index_entries(layout, shard)) == 56
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a", mode="r")[:], values)
    array[:] = 0
    assert not (tmp_path / "a/c/0/0").exists()


def test_dead_bytes_are_bounded(tmp_path: Path) -> None:
    array, values = filled(appending(tmp_path, strategy=Append(dead_bytes_kept=0), max_dead_fraction=0.25))
    live_nbytes = values.nbytes + INDEX_NBYTES
    sizes = []
    for i in range(100):
        array[0:64, 0:64] = values[0:64, 0:64] = i % 255 + 1
        sizes.append((tmp_path / "a/c/0/0").stat().st_size)
        assert sizes[-1] - live_nbytes <= 0.25 * sizes[-1]
    assert sizes.count(live_nbytes) > 2  # rewritten, without a dead byte
    np.testing.assert_array_equal(array[:], values)


def test_compaction_of_what_was_appended_to(tmp_path: Path) -> None:
    array, values = filled(appending(tmp_path))
    for i in range(100):
        array[0:64, 0:64] = values[0:64, 0:64] = i + 1
    assert (tmp_path / "a/c/0/0").stat().st_size > values.nbytes + 100 * CHUNK_NBYTES
    shardstore.compact(tmp_path)
    assert (tmp_path / "a/c/0/0").stat().st_size == values.nbytes + INDEX_NBYTES
    np.testing.assert_array_equal(array[:], values)


# -- a slice at a time, slices without compression, chunks that grow and shrink: the use cases of ZEP 2 -----------------------


def test_slices_appended_to_shards(tmp_path: Path) -> None:
    """A stream of slices: each is a chunk thick, and eight of them share a shard."""
    trace = TraceStorage(LocalStorage(tmp_path, fsync=False))
    store = shardstore.open(trace, chunks_per_shard=(8, 2, 2), strategy="append")
    array = zarr.create_array(store, name="a", shape=(0, 128, 128), chunks=(1, 64, 64), dtype="u2", compressors=None)
    planes = np.random.default_rng(0).integers(0, 2**16, (20, 128, 128), dtype="u2")
    with trace.count() as block:
        for plane in planes:
            array.append(plane[np.newaxis])
    index_nbytes = 16 * 32 + 4
    assert sum(event.nbytes for event in block.events if "/c/" in event.key and event.op in ("write", "compose")) <= 1.1 * (
        planes.nbytes + 20 * index_nbytes
    )
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a", mode="r")[:], planes)


def test_chunks_that_grow_and_shrink(tmp_path: Path) -> None:
    """Compressed sizes change with every version; nothing moves but what was written."""
    store = shardstore.open(tmp_path, chunks_per_shard=(16,), strategy="append")
    array = zarr.create_array(store, name="a", shape=(16 * 4096,), chunks=(4096,), dtype="u1")
    rng = np.random.default_rng(0)
    values = np.ones(16 * 4096, dtype="u1")
    array[:] = values
    for number in range(40):
        start = 4096 * int(rng.integers(16))
        values[start : start + 4096] = rng.integers(0, 2 ** (1 + number % 8), 4096, dtype="u1")
        array[start : start + 4096] = values[start : start + 4096]
        np.testing.assert_array_equal(zarr.open_array(tmp_path / "a", mode="r")[:], values)


# -- where it cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [{"index_location": "start"}, {"index_checksum": False}])
def test_arrays_whose_shards_would_not_show_it_are_refused(tmp_path: Path, option: dict[str, Any]) -> None:
    rewriting = shardstore.open(tmp_path, chunks_per_shard=(8, 8), **option)
    _, values = filled(rewriting)
    array = zarr.open_array(appending(tmp_path), path="a")
    with pytest.raises(Unsupported, match="strategy='rewrite'"):
        array[0:64, 0:64] = 1
    np.testing.assert_array_equal(array[:], values)


def test_storages_that_copy_nothing_are_refused() -> None:
    with pytest.raises(Unsupported, match="use strategy='rewrite' there"):
        shardstore.open("http://127.0.0.1:9/x", strategy="append")
    with pytest.raises(InvalidInput, match="max_dead_fraction"):
        shardstore.open("memory://x", strategy="append", max_dead_fraction=1.5)


# -- S3 ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def s3(s3_url: S3Url, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A storage, and its calls, of a server that makes completions conditional."""
    storage = open_storage(*s3_url, transport="fsspec")
    assert isinstance(storage, S3Storage)
    on_io_loop(storage.probe())
    calls = Calls(storage.fs, monkeypatch)
    honour_on_completion(storage, calls)
    facts = facts_of(storage.client)
    facts.multipart_conditions = facts.copies_parts = facts.copies_on_condition = True
    yield storage, calls
    forget_facts()


def large(store: shardstore.ShardedStore) -> tuple[zarr.Array[Any], np.ndarray[Any, Any]]:
    """A shard of 16 MiB: 64 chunks of 256 KiB."""
    array = zarr.create_array(store, name="a", shape=(64 * 2**18,), chunks=(2**18,), dtype="u1", compressors=None, fill_value=0)
    values = np.random.default_rng(0).integers(1, 256, 64 * 2**18, dtype="u1")
    array[:] = values
    return array, values


@pytest.mark.parametrize("strategy", ["append", "keep"])
def test_on_s3_what_is_new_is_sent_and_nothing_fetched(s3: tuple[S3Storage, Calls], strategy: Any) -> None:
    storage, calls = s3
    array, values = large(shardstore.open(storage, chunks_per_shard=(64,), strategy=strategy, metadata_ttl="1h"))
    calls.made.clear()
    for chunk in (5, 40):
        array[chunk * 2**18 : (chunk + 1) * 2**18] = values[chunk * 2**18 : (chunk + 1) * 2**18] = chunk
    sent = sum(len(parameters.get("Body", b"")) for _, parameters in calls.made)
    assert sent == 2 * (2**18 + NONCE_NBYTES + INDEX_NBYTES)
    assert "get_object" not in calls.methods
    np.testing.assert_array_equal(array[:], values)


def test_on_azure_what_is_new_is_sent_and_nothing_fetched(azure_url: S3Url, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second append on: the first one stores all of the shard as blocks, which the later ones keep."""
    from tests.storage.azure.gate.test_azure import Calls as AzureCalls

    storage = open_storage(*azure_url, transport="fsspec")
    assert isinstance(storage, AzureStorage)
    array, values = large(shardstore.open(storage, chunks_per_shard=(64,), strategy="append", metadata_ttl="1h"))
    array[: 2**18] = values[: 2**18] = 7
    calls = AzureCalls(storage.fs, monkeypatch)
    for number, chunk in enumerate((5, 40, 63), 1):
        array[chunk * 2**18 : (chunk + 1) * 2**18] = values[chunk * 2**18 : (chunk + 1) * 2**18] = chunk
        assert calls.names == ["blocks", "block", "block", "commit"] * number
        assert calls.sent_nbytes <= number * (2**18 + INDEX_NBYTES + 4096)
    np.testing.assert_array_equal(array[:], values)
    forget_facts()


def test_on_s3_where_it_cannot_be_conditional_it_rewrites(s3: tuple[S3Storage, Calls]) -> None:
    """As with moto: found out at the first append, which is written whole; the next one is planned otherwise."""
    storage, calls = s3
    array, values = large(shardstore.open(storage, chunks_per_shard=(64,), strategy="append", metadata_ttl="1h"))
    facts_of(storage.client).multipart_conditions = False
    for chunk in (5, 40):
        array[chunk * 2**18 : (chunk + 1) * 2**18] = values[chunk * 2**18 : (chunk + 1) * 2**18] = chunk
    assert "create_multipart_upload" not in calls.methods
    info = on_io_loop(storage.stat("a/c/0"))
    assert info is not None
    assert info.nbytes == values.nbytes + NONCE_NBYTES + INDEX_NBYTES
    np.testing.assert_array_equal(array[:], values)
    with pytest.raises(Unsupported, match="use strategy='rewrite' there"):
        shardstore.open(storage, strategy="append")


@pytest.mark.gate
def test_rewriting_copies_what_is_long_enough(s3: tuple[S3Storage, Calls]) -> None:
    storage, calls = s3
    array, values = large(shardstore.open(storage, chunks_per_shard=(64,), metadata_ttl="1h"))
    calls.made.clear()
    array[: 2**18] = values[: 2**18] = 9
    assert calls.methods.count("upload_part_copy") == 1
    # What is new has to be a part of 5 MiB: the copy behind it lends the rest.
    sent = sum(len(parameters.get("Body", b"")) for _, parameters in calls.made)
    assert sent == 5 * 2**20 + NONCE_NBYTES + INDEX_NBYTES
    np.testing.assert_array_equal(array[:], values)
    calls.made.clear()
    for chunk in range(0, 64, 8):  # no range of 10 MiB is left
        values[chunk * 2**18 : (chunk + 1) * 2**18] = chunk
    array.oindex[np.concatenate([np.arange(c * 2**18, (c + 1) * 2**18) for c in range(0, 64, 8)])] = np.repeat(
        np.arange(0, 64, 8, dtype="u1"), 2**18
    )
    assert "upload_part_copy" not in calls.methods
    np.testing.assert_array_equal(array[:], values)


@pytest.mark.parametrize("effect", ["fails", "answer is lost"])
def test_on_s3_every_request_of_an_append_fails_once(s3: tuple[S3Storage, Calls], effect: str) -> None:
    """The old values or the new ones, whole; the new ones where the assignment returned; no upload is left that is known."""
    storage, calls = s3
    store = shardstore.open(storage, chunks_per_shard=(64,), strategy="append", metadata_ttl="1h")
    array, values = large(store)
    for at in range(1, 20):
        version = 100 + at
        new = values.copy()
        new[2**18 : 2 * 2**18] = version
        seen = 0

        def strike(method: str, parameters: dict[str, Any], *response: Any, when: int = at) -> Any:
            nonlocal seen
            if effect == "fails" or response:
                seen += 1
                if seen == when:
                    raise ConnectionResetError("the connection broke")
            return response[0] if response else parameters

        setattr(calls, "before" if effect == "fails" else "after", strike)
        try:
            array[2**18 : 2 * 2**18] = version
        except StorageError:
            done = False
        else:
            done = True
        calls.before = lambda _method, parameters: parameters
        calls.after = lambda _method, _parameters, response: response
        found = zarr.open_array(shardstore.open(storage, metadata_ttl="1h"), path="a", mode="r")[:]
        is_new = np.array_equal(found, new)
        assert is_new or np.array_equal(found, values)
        assert is_new or not done
        # Of an upload whose beginning was not answered nobody knows the name: `repair` finds it.
        assert unfinished_uploads(storage) == (effect == "answer is lost")
        values = np.asarray(found)
        if seen < at:
            break
    assert at > 4


# -- readers that know nothing of it -----------------------------------------------------------------------------------------


def test_a_native_reader_in_the_middle_sees_an_error_or_one_of_the_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever part of the file is there: it is written from front to back."""
    array, values = filled(appending(tmp_path))
    seen: list[str] = []
    real = os.pwritev

    def short(fd: int, buffers: list[Any], offset: int) -> int:
        done = real(fd, [buffers[0][:700]], offset)
        try:
            found = np.asarray(zarr.open_array(tmp_path / "a", mode="r")[:])
        except ValueError:
            seen.append("error")  # the index's checksum
        else:
            seen.append("new" if (found[:64, :64] == 77).all() else "old")
            assert np.array_equal(found[64:], values[64:])
            assert seen[-1] == "new" or np.array_equal(found, values)
        return done

    monkeypatch.setattr(os, "pwritev", short)
    array[:64, :64] = 77
    assert seen.count("error") > 5
    assert seen[-1] == "new"
    values[:64, :64] = 77
    np.testing.assert_array_equal(array[:], values)


def test_a_file_that_is_copied_meanwhile_is_no_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads it from front to back, at whatever pace, has one version or finds no index."""
    array, _ = filled(appending(tmp_path))
    shard = tmp_path / "a/c/0/0"
    copied = bytearray(shard.read_bytes()[:200_000])
    real = os.pwritev

    def short(fd: int, buffers: list[Any], offset: int) -> int:
        done = real(fd, [buffers[0][:700]], offset)
        with shard.open("rb") as file:
            file.seek(len(copied))
            copied.extend(file.read(9_000))
        return done

    monkeypatch.setattr(os, "pwritev", short)
    array[:64, :64] = 77
    (tmp_path / "copy/c/0").mkdir(parents=True)
    (tmp_path / "copy/zarr.json").write_bytes((tmp_path / "a/zarr.json").read_bytes())
    shard_copy = tmp_path / "copy/c/0/0"
    complete = shard.read_bytes()
    assert complete.startswith(copied)
    for nbytes in range(len(copied) - 3, len(copied) + 1):
        shard_copy.write_bytes(copied[:nbytes])
        if copied[:nbytes] == complete:
            np.testing.assert_array_equal(zarr.open_array(tmp_path / "copy", mode="r")[:], array[:])
        else:
            with pytest.raises(ValueError, match="checksum"):
                zarr.open_array(tmp_path / "copy", mode="r")[:]
