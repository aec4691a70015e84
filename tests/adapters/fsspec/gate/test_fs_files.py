"""Files of ``sharded``: one version while they are read, stored whole when they are closed."""

from __future__ import annotations

import gc
import io
import pickle
import warnings
from typing import Any

import fsspec
import pytest

from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
from shardstore.errors import Conflict, InvalidInput, NotFound
from tests.adapters.places import Place, array_document
from tests.shards import presented
from tests.stored import snapshot

ARRAY = array_document((1 << 20,), (1 << 18,), attributes={"n": 1})  # four chunks of 256 KiB
CHUNK = bytes(range(256)) * 1024


@pytest.fixture
def fs(place: Place) -> ShardedFileSystem:
    """An array of one shard of four chunks, two of them there, and a plain object."""
    fs = place.filesystem(chunks_per_shard=(4,))
    fs.pipe({"zarr.json": ARRAY, "c/0": CHUNK, "c/2": CHUNK[::-1], "lines.txt": "ein\nzwei\ndrei über\n".encode()})
    return fs


# -- reading -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_type", ["none", "readahead", "bytes", "all", "blockcache", "first"])
def test_seeking_and_ranges(fs: ShardedFileSystem, cache_type: str) -> None:
    with fs.open("c/2", "rb", block_size=1000, cache_type=cache_type) as file:
        value = CHUNK[::-1]
        assert file.size == len(value)
        assert file.readable()
        assert file.seekable()
        assert not file.writable()
        assert file.read(10) == value[:10]
        assert file.tell() == 10
        file.seek(100_000)
        assert file.read(5000) == value[100_000:105_000]
        file.seek(-3, 2)
        assert file.read() == value[-3:]
        assert file.read() == b""
        assert file.seek(-10, 1) == len(value) - 10
        into = bytearray(7)
        assert file.readinto(into) == 7
        assert into == value[-10:-3]
        file.seek(0)
        assert file.read() == value
        assert file.info()["size"] == len(value)
    assert file.closed


def test_text_and_lines(fs: ShardedFileSystem) -> None:
    with fs.open("lines.txt", "r", encoding="utf-8") as text:
        assert text.read() == "ein\nzwei\ndrei über\n"
    with fs.open("lines.txt", "rb") as file:
        assert list(file) == [b"ein\n", b"zwei\n", "drei über\n".encode()]
    with fs.open("lines.txt") as file:
        assert file.readline() == b"ein\n"
        assert file.readuntil(b"e", blocks=4) == b"zwe"
    with fs.open("more.txt.gz", "wt", compression="infer", encoding="utf-8") as text:
        text.write("viel " * 1000)
    assert fs.size("more.txt.gz") < 200
    with fs.open("more.txt.gz", "rt", compression="gzip", encoding="utf-8") as text:
        assert text.read() == "viel " * 1000
    assert fs.read_text("lines.txt", encoding="utf-8").startswith("ein")
    fs.write_text("c/1", "text")
    assert fs.cat_file("c/1") == b"text"
    assert fs.read_block("c/0", 10, 20) == CHUNK[10:30]


def test_files_cost_the_ranges_that_are_read(place: Place, fs: ShardedFileSystem) -> None:
    reader = place.filesystem(chunks_per_shard=(4,), index_cache_bytes=10_000)
    reader.ls("")
    reader.counters.reset()
    with reader.open("c/2", "rb", cache_type="none") as file:
        file.seek(1000)
        file.read(100)
        file.read(50)
    assert reader.counters.bytes_read < 150 + 64 + 4 + 2 * len(ARRAY) * 3, "the ranges, the index, documents"
    reader.counters.reset()
    with reader.open("c/2", "rb", cache_type="none") as file:
        file.read(10)
    assert reader.counters.requests <= 1 + 1 + 3, "the range, the index, and the documents that may be there"


def test_what_is_not_there(fs: ShardedFileSystem) -> None:
    for key in ("c/1", "nothing", "c/4"):
        with pytest.raises(NotFound, match=f"'{key}' does not exist"):
            fs.open(key, "rb")
    for mode in ("r+b", "w+b", "q", "rwb"):
        with pytest.raises(InvalidInput, match="is not one of rb, wb, xb, ab"):
            fs.open("lines.txt", mode)


@pytest.mark.parametrize("key", ["c/0", "lines.txt"])
def test_a_file_that_is_replaced_while_it_is_read_is_a_conflict(place: Place, fs: ShardedFileSystem, key: str) -> None:
    """By another client; never some bytes of the one and some of the other."""
    other = place.filesystem(chunks_per_shard=(4,), index_cache_bytes=1000)
    assert other.engine is not fs.engine
    old = fs.cat_file(key)
    with fs.open(key, "rb", cache_type="none") as file:
        assert file.read(5) == old[:5]
        other.pipe_file(key, b"\xff" * len(old))
        with pytest.raises(Conflict, match=f"'{key}' was being read in pieces.*open it again"):
            file.read(5)
    with fs.open(key, "rb", cache_type="none") as file:
        assert file.read() == b"\xff" * len(old)
        other.rm(key)
        file.seek(0)
        if key == "c/0" or not place.url.startswith("file:"):
            with pytest.raises(Conflict):
                file.read(5)


def test_a_file_whose_neighbour_is_replaced(place: Place, fs: ShardedFileSystem) -> None:
    """The shard is another object then: a conflict too, or the same bytes; never others."""
    with fs.open("c/0", "rb", cache_type="none") as file:
        assert file.read(5) == CHUNK[:5]
        fs.pipe_file("c/2", b"short")
        try:
            assert file.read(5) == CHUNK[5:10]
        except Conflict:
            assert fs.cat_file("c/0") == CHUNK


def test_files_travel(fs: ShardedFileSystem) -> None:
    with fs.open("c/0", "rb") as file:
        file.seek(1000)
        with pickle.loads(pickle.dumps(file)) as again:
            assert again.tell() == 1000
            assert again.read(10) == CHUNK[1000:1010]
            assert again == file
            assert hash(again) == hash(file)
        fs.pipe_file("c/0", b"another")
        with pytest.raises(Conflict, match="'c/0' was replaced since the file was pickled: open it again"):
            pickle.loads(pickle.dumps(file))
    with fs.open("new", "wb") as file, pytest.raises(RuntimeError, match="not supported"):
        pickle.dumps(file)
    opened = fsspec.core.OpenFile(fs, "c/2", mode="rb")
    with pickle.loads(pickle.dumps(opened)) as file:
        assert file.read(3) == CHUNK[::-1][:3]


@pytest.mark.parametrize("key", ["c/0", "lines.txt", "zarr.json"])
def test_a_pickled_file_is_of_its_version(fs: ShardedFileSystem, key: str) -> None:
    """What was read before the pickle and what is read after it belong together: of another version of that size, nothing is read."""
    with fs.open(key, "rb", cache_type="none") as file:
        first = file.read(5)
        travelling = pickle.dumps(file)
        value = first + file.read()
    with pickle.loads(travelling) as again:
        assert first + again.read() == value
    fs.pipe_file(key, value.replace(b'"n": 1', b'"n": 2') if key == "zarr.json" else value[::-1])
    with pytest.raises(Conflict, match="was replaced since the file was pickled"):
        pickle.loads(travelling)


def test_array_metadata_is_one_version(place: Place, fs: ShardedFileSystem) -> None:
    other = place.filesystem(chunks_per_shard=(4,), index_cache_bytes=1000)
    with fs.open("zarr.json", "rb", cache_type="none", block_size=10) as file:
        first = file.read(10)
        other.pipe_file("zarr.json", array_document((1 << 20,), (1 << 18,), attributes={"long": "x" * 100}))
        assert first + file.read() in (fs.cat_file("zarr.json"), first + file.cache.fetcher(10, file.size))
        assert b"long" not in first + file.cache.fetcher(10, file.size)


# -- writing -------------------------------------------------------------------------------------------------------------


def test_writing(fs: ShardedFileSystem, place: Place) -> None:
    before = snapshot(place.objects)
    file = fs.open("c/1", "wb", block_size=1 << 10)
    for start in range(0, len(CHUNK), 5000):
        assert file.write(CHUNK[start : start + 5000]) == len(CHUNK[start : start + 5000])
        file.flush()
    assert snapshot(place.objects) == before, "stored when it is closed"
    assert file.tell() == len(CHUNK)
    file.close()
    file.close()
    assert presented(place.objects)["c/1"] == CHUNK
    with pytest.raises(ValueError, match="not in write mode"):
        file.write(b"x")
    with fs.open("c/1", "wb") as file:
        file.write(bytearray(b"12"))
        file.write(memoryview(b"34"))
    assert fs.cat_file("c/1") == b"1234"
    with fs.open("c/1", "wb"):
        pass
    assert fs.cat_file("c/1") == b""
    assert fs.exists("c/1")


def test_a_document_written_as_a_file(fs: ShardedFileSystem, place: Place) -> None:
    with fs.open("g/a/zarr.json", "wb") as file:
        file.write(array_document((32,), (2,)))
    with fs.open("g/a/c/0", "wb") as file:
        file.write(b"ab")
    assert b"sharding_indexed" in (place.objects.get("g/a/zarr.json") or b"")
    assert presented(place.objects)["g/a/c/0"] == b"ab"


@pytest.mark.parametrize("key", ["c/0", "c/1", "lines.txt", "new", "zarr.json"])
def test_creating(fs: ShardedFileSystem, place: Place, key: str) -> None:
    if fs.exists(key):
        before = snapshot(place.objects)
        with pytest.raises(FileExistsError, match=f"'{key}' exists"):
            fs.open(key, "xb")
        assert snapshot(place.objects) == before
        return
    file = fs.open(key, "xb")
    file.write(b"mine")
    fs.pipe_file(key, b"faster")
    with pytest.raises(FileExistsError, match=f"'{key}' exists"):
        file.close()
    assert fs.cat_file(key) == b"faster"
    fs.rm(key)
    with fs.open(key, "xb") as file:
        file.write(b"mine")
    assert fs.cat_file(key) == b"mine"
    fs.rm(key)
    with fs.open(key, "xb"):
        pass
    assert fs.cat_file(key) == b"", "closed without data"


@pytest.mark.parametrize("key", ["c/0", "c/1", "lines.txt", "new"])
def test_appending(fs: ShardedFileSystem, key: str) -> None:
    old = fs.cat_file(key) if fs.exists(key) else b""
    with fs.open(key, "ab") as file:
        assert file.tell() == len(old)
        file.write(b"more")
        file.write(b"!")
    assert fs.cat_file(key) == old + b"more!"
    with fs.open(key, "ab") as file:
        file.write(b"x" * 10)
    assert fs.cat_file(key) == old + b"more!" + b"x" * 10


@pytest.mark.parametrize("mode", ["wb", "xb", "ab"])
@pytest.mark.parametrize("key", ["c/1", "c/3", "new"])
def test_a_block_that_fails_stores_nothing(fs: ShardedFileSystem, place: Place, key: str, mode: str) -> None:
    before = snapshot(place.objects)
    with pytest.raises(RuntimeError) as caught, fs.open(key, mode, block_size=100) as file:  # noqa: PT012 - the block is what is tested
        file.write(b"half" * 100)
        raise RuntimeError("mine")
    assert caught.value.__notes__ == [f"{key!r} was being written and was not stored"]
    assert file.closed
    assert snapshot(place.objects) == before
    for compression in (None, "gzip"):
        with pytest.raises(RuntimeError) as caught, fs.open(key, mode[0], compression=compression) as text:  # noqa: PT012
            text.write("half" * 10_000)
            raise RuntimeError("mine")
        assert len(caught.value.__notes__) == 1
        assert snapshot(place.objects) == before
    with pytest.raises(RuntimeError), fs.open(key, mode, compression="bz2") as file:  # noqa: PT012
        file.write(b"half" * 10_000)
        raise RuntimeError("mine")
    assert snapshot(place.objects) == before


def test_a_file_that_is_never_closed_stores_nothing_and_says_so(fs: ShardedFileSystem, place: Place) -> None:
    before = snapshot(place.objects)
    for mode, compression in (("wb", None), ("w", None), ("wb", "gzip"), ("wt", "gzip")):
        file = fs.open("c/1", mode, compression=compression)
        file.write(b"x" if "b" in mode else "x")
        with pytest.warns(ResourceWarning, match="'c/1' was opened for writing and never closed: nothing was stored"):  # noqa: PT031
            del file
            gc.collect()
        assert snapshot(place.objects) == before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader = fs.open("c/0", "rb")
        del reader
        gc.collect()


def test_in_a_transaction(fs: ShardedFileSystem, place: Place) -> None:
    before = snapshot(place.objects)
    with fs.transaction:
        with fs.open("c/1", "wb") as file:
            file.write(b"held")
        with fs.open("c/0", "ab") as file:
            file.write(b"more")
        with fs.open("c/1", "rb") as file:
            assert file.read() == b"held"
        with fs.open("c/3", "xb") as file:
            file.write(b"new")
        with pytest.raises(FileExistsError):
            fs.open("c/3", "xb")
        assert snapshot(place.objects) == before
    assert fs.cat_file("c/0") == CHUNK + b"more"
    assert fs.cat_ranges(["c/1", "c/3"], None, None) == [b"held", b"new"]


def test_what_wraps_files(fs: ShardedFileSystem) -> None:
    buffered: Any = io.BufferedReader(fs.open("c/0", "rb"), 100)
    assert buffered.read(300) == CHUNK[:300]
    buffered.close()
