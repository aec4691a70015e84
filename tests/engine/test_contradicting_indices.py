"""Indices that contradict the array's codecs, or whose entries share bytes: what is read, written and refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore import ShardingTransformer
from shardstore.errors import Corruption, InvalidInput, StorageError
from shardstore.testing.trace import TraceStorage
from tests import view
from tests.engine.hooked import HookedStorage, fresh_memory
from tests.maintenance.laid_out import ANY_LENGTH, array_document
from tests.shards import MISSING, Sharding, encode_index, index_entries, sharding
from tests.stored import LocalObjects, Objects, StorageObjects

RAW = ({"name": "bytes"},)
WITH_CHECKSUM = ({"name": "bytes"}, {"name": "crc32c"})
TRANSPOSED = ({"name": "transpose", "configuration": {"order": [0]}}, {"name": "bytes"})
WRONG = {"long": (0, 2**16), "short": (0, 7), "empty": (0, 0), "one more": (0, 9)}
"""Entries of chunks of 8 bytes."""
BODY = bytes(range(200)) * 512


def put_shard(objects: Objects, body: bytes, entries: list[tuple[int, int]], codecs: Any = RAW, **how: Any) -> Sharding:
    """Store an array ``a`` of one shard of 8 chunks of 8 bytes; entries count from the first byte of ``body``."""
    document = array_document((64,), (8,), (8,), codecs=codecs, **how)
    layout = sharding("a", document)
    assert layout is not None
    first = 0 if layout.index_at_end else layout.index_nbytes
    index = encode_index(layout, [(offset + first if offset != MISSING else offset, nbytes) for offset, nbytes in entries])
    objects.put("a/zarr.json", json.dumps(document).encode())
    objects.put("a/c/0", body + index if layout.index_at_end else index + body)
    return layout


class Shard:
    """Such a shard in memory, where requests are counted."""

    def __init__(self, body: bytes, entries: list[tuple[int, int]], codecs: Any = RAW, **how: Any) -> None:
        self.storage = TraceStorage(fresh_memory())
        self.objects = StorageObjects(self.storage)
        self.layout = put_shard(self.objects, body, entries, codecs, **how)

    def open(self, **options: Any) -> shardstore.ShardedStore:
        return shardstore.open(self.storage, **options)

    def stored(self) -> bytes:
        found = self.objects.get("a/c/0")
        assert found is not None
        return found

    def traffic(self, action: Callable[[], object]) -> tuple[int, int]:
        """The bytes that ``action`` reads of the shard, and those that it writes to it."""
        with self.storage.count() as block:
            action()
        mine = [event for event in block.events if event.key == "a/c/0"]
        written = sum(event.nbytes + event.copied_nbytes for event in mine if event.op in ("write", "compose"))
        return sum(event.nbytes for event in mine if event.op == "read"), written


def sound(slot: int) -> tuple[int, int]:
    return 8 * slot, 8


# -- reads -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("index_location", ["start", "end"])
@pytest.mark.parametrize("codecs", [RAW, TRANSPOSED], ids=["bytes", "transpose"])
def test_an_entry_of_another_length_is_corruption_in_every_way_to_read(entry: tuple[int, int], index_location: str, codecs: Any) -> None:
    shard = Shard(BODY, [entry, *map(sound, range(1, 8))], codecs, index_location=index_location)
    limit = len(shard.stored())
    for pipeline in (True, False):
        store = shard.open(pipeline=pipeline)
        array = zarr.open_array(store, path="a", mode="r")

        def read(store: shardstore.ShardedStore = store, array: zarr.Array[Any] = array) -> None:
            for ask in (view.get, view.getsize):
                with pytest.raises(Corruption, match=r"a/c/0.*8 of each chunk"):
                    ask(store, "a/c/0")
            with pytest.raises(Corruption, match="a/c/0"):
                view.get_many(store, [("a/c/0", None), ("a/c/3", None)])
            with pytest.raises(Corruption, match="a/c/0"):
                array[:24]

        def read_all(array: zarr.Array[Any] = array) -> None:
            with pytest.raises(Corruption, match="a/c/0"):
                array[...]

        for action in (read_all, read):
            assert shard.traffic(action)[0] <= 10 * shard.layout.index_nbytes + limit
        assert view.get(store, "a/c/3") == BODY[24:32]
        np.testing.assert_array_equal(array[8:], list(BODY[8:64]))


def test_a_checksum_counts_among_the_bytes_of_a_chunk() -> None:
    shard = Shard(BODY, [(0, 8), (8, 12), *[(MISSING, MISSING)] * 6], WITH_CHECKSUM)
    with pytest.raises(Corruption, match="12 of each chunk"):
        view.get(shard.open(), "a/c/0")
    assert view.get(shard.open(), "a/c/1") == BODY[8:20]


def test_a_whole_shard_is_not_read_past_what_its_chunks_can_have() -> None:
    """An object that is much longer than its codecs allow is read by its index."""
    shard = Shard(b"".join(b"%08d" % i for i in range(2**19)), [(8 * i, 8) for i in range(8)])
    array = zarr.open_array(shard.open(), path="a", mode="r")
    read, _ = shard.traffic(lambda: np.testing.assert_array_equal(array[...], list(b"".join(b"%08d" % i for i in range(8)))))
    assert len(shard.stored()) > 2**22
    assert read < 2**21


def test_a_chunk_that_names_no_bytes_of_its_own_is_valid_in_any_number() -> None:
    """Entries of the right length may name the same bytes."""
    shard = Shard(BODY, [(8, 8)] * 8)
    array = zarr.open_array(shard.open(), path="a", mode="r")
    np.testing.assert_array_equal(array[...], list(BODY[8:16]) * 8)


def test_of_bytes_that_overlap_none_is_read_twice() -> None:
    """With no size that codecs fix: each chunk is nearly all of the shard, and longer than a request."""
    shard = Shard(BODY, [(i, len(BODY) - 2 * i) for i in range(8)], ANY_LENGTH)
    for gap in (0, 2**20):
        store = shard.open(request_bytes=2**10, gap_bytes=gap)
        keys = [f"a/c/{i}" for i in range(1, 8)]
        read, _ = shard.traffic(
            lambda store=store, keys=keys: view.get_many(store, [(key, None) for key in keys])  # type: ignore[misc]
        )
        assert read <= len(shard.stored())


SPARSE = 2**40
on_sparse_files = pytest.mark.skipif(not hasattr(os, "pread"), reason="sparse files of any size are had on POSIX systems")


def sparse(tmp_path: Path, codecs: Any) -> None:
    """A shard on disk, of which one entry names 1 TiB of holes."""
    index = put_shard(LocalObjects(tmp_path), BODY, [(0, SPARSE), *map(sound, range(1, 8))], codecs).index_nbytes
    path = tmp_path / "a" / "c" / "0"
    encoded = path.read_bytes()[-index:]
    try:
        with path.open("r+b") as file:
            file.truncate(SPARSE)
            file.seek(SPARSE)
            file.write(encoded)
    except OSError as exc:
        pytest.skip(f"the file system has no files of 1 TiB: {exc}")


@on_sparse_files
def test_a_tebibyte_of_holes_is_corruption_where_codecs_fix_the_length(tmp_path: Path) -> None:
    sparse(tmp_path, RAW)
    store = shardstore.open(str(tmp_path))
    for _ in range(2):
        with pytest.raises(Corruption, match="a/c/0"):
            view.get(store, "a/c/0")
        assert view.get(store, "a/c/1") == BODY[8:16]
    array = zarr.open_array(store, path="a", mode="r+")
    with pytest.raises(Corruption, match="a/c/0"):
        array[...]
    with pytest.raises(Corruption, match="a/c/0"):
        array[8:16] = 1
    np.testing.assert_array_equal(array[8:], list(BODY[8:64]))
    array[:16] = 7  # whoever replaces the chunk mends the shard
    np.testing.assert_array_equal(array[...], [7] * 16 + list(BODY[16:64]))
    assert (tmp_path / "a" / "c" / "0").stat().st_size == 64 + 8 * 16 + 4


@on_sparse_files
def test_a_tebibyte_of_holes_is_an_error_that_names_the_range_elsewhere(tmp_path: Path) -> None:
    sparse(tmp_path, ANY_LENGTH)
    store = shardstore.open(str(tmp_path))
    for _ in range(2):
        with pytest.raises(StorageError, match=r"'a/c/0': bytes \[0, 1099511627776\).* memory"):
            view.get(store, "a/c/0")
        assert view.get(store, "a/c/1") == BODY[8:16]


# -- writes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("strategy", ["rewrite", "append", "keep"])
def test_an_entry_of_another_length_is_not_carried_over(entry: tuple[int, int], strategy: Any) -> None:
    shard = Shard(BODY, [sound(0), entry, *map(sound, range(2, 8))])
    before = shard.stored()
    store = shard.open(strategy=strategy)
    for _ in range(2):  # with an index that was read just now, and by one that is remembered

        def write() -> None:
            with pytest.raises(Corruption, match=r"'a/c/0'.*index entry 1.*8 of each chunk"):
                view.put(store, "a/c/0", b"12345678")

        read, written = shard.traffic(write)
        assert (written, shard.stored()) == (0, before)
        assert read <= 4 * shard.layout.index_nbytes
    view.put_many(store, [("a/c/0", b"12345678"), ("a/c/1", b"abcdefgh")])
    assert [view.get(store, f"a/c/{i}") for i in range(3)] == [b"12345678", b"abcdefgh", BODY[16:24]]
    assert len(shard.stored()) <= len(before) + 16 + shard.layout.index_nbytes


@pytest.mark.parametrize("codecs", [RAW, ANY_LENGTH], ids=["one length", "any length"])
@pytest.mark.parametrize("strategy", ["rewrite", "append", "keep"])
@pytest.mark.parametrize("index_location", ["start", "end"])
def test_chunks_that_share_bytes_go_on_sharing_them(codecs: Any, strategy: Any, index_location: str) -> None:
    nbytes = 8 if codecs is RAW else 2**16
    if strategy == "append" and index_location == "start":
        pytest.skip("nothing is appended to a shard whose index is at the start")
    entries = [(0, nbytes)] * 6 + [(4, nbytes), (MISSING, MISSING)]
    shard = Shard(BODY, entries, codecs, index_location=index_location)
    before = len(shard.stored())
    store = shard.open(strategy=strategy)
    read, written = shard.traffic(lambda: view.put(store, "a/c/3", b"12345678"))
    assert read <= before
    assert written <= before + 8
    expected = [BODY[offset : offset + n] if offset != MISSING else None for offset, n in entries]
    expected[3] = b"12345678"
    for client in (store, shard.open()):
        assert [view.get(client, f"a/c/{i}") for i in range(8)] == expected
    for slot in range(6):
        view.put(store, f"a/c/{slot}", b"abcdefgh")
        assert len(shard.stored()) <= before + 8 * 6 + 6 * shard.layout.index_nbytes
    assert view.get(store, "a/c/6") == BODY[4 : 4 + nbytes]


def test_chunks_in_any_order_are_copied_without_reading_what_lies_between_them_again() -> None:
    """Where the storage cannot copy, a window is read at a time: the next chunk may be anywhere in a shard that is longer."""
    body = bytes(2**16)
    slots = np.random.default_rng(0).permutation(2**10)
    document = array_document((2**16,), (64,), (2**10,), codecs=RAW)
    hooked = HookedStorage(fresh_memory())
    hooked.capabilities_override = replace(hooked.inner.capabilities, compose=False)
    storage = TraceStorage(hooked)
    objects = StorageObjects(storage)
    layout = sharding("a", document)
    assert layout is not None
    objects.put("a/zarr.json", json.dumps(document).encode())
    objects.put("a/c/0", body + encode_index(layout, [(64 * slot, 64) for slot in slots.tolist()]))
    store = shardstore.open(storage, copy_window_bytes=2**12)
    with storage.count() as block:
        view.put(store, "a/c/3", bytes(64))
    read = sum(event.nbytes for event in block.events if event.op == "read" and event.key == "a/c/0")
    assert len(body) - 64 <= read - layout.index_nbytes <= len(body)


def test_nothing_of_another_length_is_stored_where_codecs_fix_it() -> None:
    shard = Shard(BODY, [*map(sound, range(7)), (MISSING, MISSING)])
    before = shard.stored()
    store = shard.open()
    for data in (b"", b"1234567", b"123456789"):
        for put in (view.put, view.put_if_absent):
            for slot in (1, 7):
                with pytest.raises(InvalidInput, match=f"'a/c/{slot}'.*8 of each chunk"):
                    put(store, f"a/c/{slot}", data)
    transformer = ShardingTransformer(shard.storage)
    for start, data in ((0, b"123"), (4, b"12345"), (8, b"1")):
        with pytest.raises(InvalidInput, match="a/c/7"):
            transformer.set_partial_values([("a/c/7", start, data)])
    with pytest.raises(InvalidInput, match=r"\[4, 9\)"):
        transformer.set_partial_values([("a/c/1", 4, b"12345")])
    assert shard.stored() == before
    transformer.set_partial_values([("a/c/1", 4, b"1234"), ("a/c/7", 0, b"abcd"), ("a/c/7", 4, b"efgh")])
    assert (transformer.get("a/c/1"), transformer.get("a/c/7")) == (BODY[8:12] + b"1234", b"abcdefgh")


def test_what_is_refused_in_a_batch_harms_nothing_else() -> None:
    shard = Shard(BODY, [*map(sound, range(8))])
    store = shard.open()
    with pytest.raises(InvalidInput, match="a/c/1"):
        view.put_many(store, [("a/c/0", b"12345678"), ("a/c/1", b"too short"), ("a/c/2", b"abcdefgh")])
    assert view.get(store, "a/c/1") == BODY[8:16]
    assert [entry[1] for entry in index_entries(shard.layout, shard.stored())] == [8] * 8


# -- upkeep ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [entry for entry in WRONG.values() if entry[1]], ids=[name for name, entry in WRONG.items() if entry[1]])
def test_upkeep_names_entries_of_another_length(entry: tuple[int, int]) -> None:
    shard = Shard(BODY[:64], [entry, *map(sound, range(1, 8))])
    before = shard.stored()
    compacted = shardstore.compact(shard.storage, dead_ratio=0.0)
    assert (compacted.rewritten, compacted.damaged.count, shard.stored()) == (0, 1, before)
    (fault,) = [fault for fault in shardstore.verify(shard.storage).findings if fault.kind in ("chunk-size", "entry")]
    assert "index entry 0" in fault.what
    mended = shardstore.repair(shard.storage, quarantine=fresh_memory())
    (finding,) = mended.findings.first
    assert (finding.remedy, finding.lost) == ("dropped", ("a/c/0",))
    assert view.get(shard.open(), "a/c/0") is None
    assert view.get(shard.open(), "a/c/5") == BODY[40:48]
