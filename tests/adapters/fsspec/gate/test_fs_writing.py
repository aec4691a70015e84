"""Storing, erasing, copying and transactions through ``sharded``, at the level of chunks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
from shardstore.errors import Conflict, InvalidInput, NotFound, ReadOnly
from tests.adapters.places import RAW, Place, array_document, is_document, memory_place, put_sample
from tests.shards import presented, sharded_arrays
from tests.stored import as_zarr_memory, copy_tree, snapshot


@pytest.fixture
def fs(place: Place) -> ShardedFileSystem:
    """An empty store whose arrays get four chunks a shard in each dimension."""
    return place.filesystem(chunks_per_shard=four_a_side)


def four_a_side(info: Any) -> tuple[int, ...]:
    return (4,) * len(info.shape)


GROUP = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()
ARRAY = array_document((32,), (2,), codecs=RAW)  # 16 chunks in 4 shards


def array(path: str, chunks: range = range(16), value: int = 0) -> dict[str, bytes]:
    """An array of two bytes a chunk, in the order in which fsspec and mappings send them: chunks before metadata."""
    return {**{f"{path}/c/{i}": bytes([value, i]) for i in chunks}, f"{path}/zarr.json": ARRAY}


def commits(fs: ShardedFileSystem) -> int:
    return fs.counters.commits


def shards(place: Place, path: str) -> list[str]:
    return [key for key in place.objects.keys() if key.startswith(f"{path}/c/")]  # noqa: SIM118 - no mapping


# -- pipe ----------------------------------------------------------------------------------------------------------------


def test_one_commit_a_shard_and_metadata_first(fs: ShardedFileSystem, place: Place) -> None:
    values = array("a")
    assert list(values)[-1] == "a/zarr.json"
    fs.pipe(values)
    assert commits(fs) == 4
    assert shards(place, "a") == [f"a/c/{i}" for i in range(4)]
    got = fs.cat(list(values))
    assert {fs.key_of(path): value for path, value in got.items() if not is_document(path)} == {
        key: value for key, value in values.items() if not is_document(key)
    }
    fs.pipe({f"{place.path}/a/c/{i}": b"xy" for i in (0, 1, 5)})
    assert commits(fs) == 4 + 2
    fs.pipe_file("a/c/9", bytearray(b"zz"))
    fs.pipe("a/c/10", memoryview(b"zy"))
    assert presented(place.objects)["a/c/9"] == b"zz"
    assert fs.cat_file("a/c/10") == b"zy"
    fs.pipe_file("a/c/11", np.frombuffer(b"ab", "u1"))
    assert fs.cat_file("a/c/11") == b"ab"


def test_files_of_a_batch_fail_by_themselves(fs: ShardedFileSystem) -> None:
    sharded = {"name": "sharding_indexed", "configuration": {"chunk_shape": [1], "codecs": [], "index_codecs": []}}
    with pytest.raises(InvalidInput) as caught:
        fs.pipe({"a/zarr.json": array_document((32,), (2,), codecs=[sharded]), "b/zarr.json": ARRAY, "b/c/0": b"12", "notes": b"n"})
    assert caught.value.__notes__ == ["1 of 4 keys of this batch failed, the rest are stored"]
    assert fs.cat_file("b/c/0") == b"12"
    assert fs.cat_file("notes") == b"n"
    with pytest.raises(ValueError, match="dictionary"):
        fs.pipe(["a"], b"x")
    with pytest.raises(InvalidInput, match="'append'"):
        fs.pipe_file("notes", b"x", mode="append")


@pytest.mark.parametrize("key", ["a/c/5", "plain.bin", "n/zarr.json"])
@pytest.mark.parametrize("place", ["memory", "local", "s3"], indirect=True)
def test_of_many_who_create_one_wins(place: Place, fs: ShardedFileSystem, key: str) -> None:
    """On a chunk that shares its shard, a plain object and a document; by threads and by two engines."""
    fs.pipe({"a/zarr.json": ARRAY, "a/c/4": b"44"})
    other = place.filesystem(chunks_per_shard=four_a_side, index_cache_bytes=1000)
    assert other.engine is not fs.engine
    together = threading.Barrier(8)

    def value(n: int) -> bytes:
        return array_document((32,), (2,), attributes={"n": n}) if is_document(key) else bytes([n, n])

    def create(n: int) -> bool:
        together.wait()
        try:
            (fs if n % 2 else other).pipe_file(key, value(n), mode="create")
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(create, range(8)))
    assert sum(won) == 1, won
    stored = fs.cat_file(key)
    winner = won.index(True)
    assert json.loads(stored)["attributes"] == {"n": winner} if is_document(key) else stored == value(winner)
    assert fs.cat_file("a/c/4") == b"44"
    with pytest.raises(FileExistsError, match=f"'{key}' exists in "):
        fs.pipe({key: b"xx"}, mode="create")
    assert fs.cat_file(key) == stored


def test_touch(fs: ShardedFileSystem) -> None:
    fs.touch("empty")
    assert fs.cat_file("empty") == b""
    assert fs.size("empty") == 0
    fs.pipe(array("a", range(2)) | {"a/zarr.json": array_document((32,), (2,))})
    fs.touch("a/c/0")
    assert fs.cat_file("a/c/0") == b""
    with pytest.raises(NotImplementedError):
        fs.touch("a/c/1", truncate=False)


# -- rm ------------------------------------------------------------------------------------------------------------------


def with_chunks(place: Place, path: str) -> list[str]:
    """The shards of an array that hold chunks, four in each. On object stores one that was emptied stays."""
    chunks = {int(key.rpartition("/")[2]) for key in presented(place.objects) if key.startswith(f"{path}/c/")}
    found = sorted({f"{path}/c/{chunk // 4}" for chunk in chunks})
    assert place.url.startswith("s3://") or shards(place, path) == found
    return found


def without_emptied(place: Place) -> list[str]:
    """All keys but those of shards without chunks, which object stores keep."""
    emptied = set(shards(place, "g/a")) - set(with_chunks(place, "g/a"))
    keys = place.objects.keys()
    return [key for key in keys if key not in emptied]


def test_rm(fs: ShardedFileSystem, place: Place) -> None:
    fs.pipe({**array("a"), **array("g/b"), "g/zarr.json": GROUP, "notes": b"n", "g/x/y": b"1"})
    fs.counters.reset()
    fs.rm(["a/c/0", "a/c/1", "a/c/4", "notes"])
    assert commits(fs) == 2
    assert sorted(presented(place.objects)) == sorted(
        [f"a/c/{i}" for i in range(16) if i not in (0, 1, 4)] + ["a/zarr.json", "g/zarr.json", "g/x/y", *array("g/b")]
    )
    fs.rm("a/c/1?")
    assert not fs.glob("a/c/1?")
    assert with_chunks(place, "a") == ["a/c/0", "a/c/1", "a/c/2"], "a shard without chunks goes, or is emptied"
    fs.rm_file("a/c/2")
    fs.rm_file("a/c/2")  # as on object stores
    fs.rm("a/c/3")
    assert with_chunks(place, "a") == ["a/c/1", "a/c/2"]
    with pytest.raises(FileNotFoundError):
        fs.rm("nothing*")
    with pytest.raises(NotFound, match="'nothing' does not exist"):
        fs.rm("nothing", recursive=True)
    fs.rm("g/x/y", recursive=True)
    assert not fs.exists("g/x")


def test_whole_shards_are_removed_unread(fs: ShardedFileSystem, place: Place) -> None:
    fs.pipe({**array("g/a"), **array("g/b"), "g/zarr.json": GROUP, "other": b"1"})
    fs.counters.reset()
    fs.rm("g", recursive=True)
    assert place.objects.keys() == ["other"]
    assert commits(fs) == 0
    assert fs.counters.chunks_read == 0
    assert fs.counters.index_misses == 0
    assert fs.counters.bytes_read <= 6 * 500, "documents only"
    fs.pipe(array("g/a"))
    fs.counters.reset()
    fs.rm("g/a/c", recursive=True)
    assert without_emptied(place) == ["g/a/zarr.json", "other"]
    assert commits(fs) == 0
    assert fs.counters.chunks_read == 0
    fs.pipe(array("g/a"))
    fs.rm("g/a/c/*", recursive=True)
    assert without_emptied(place) == ["g/a/zarr.json", "other"]
    fs.rm("", recursive=True)
    assert place.objects.keys() == []


def test_rm_down_to_a_depth(fs: ShardedFileSystem) -> None:
    fs.pipe({"d/x": b"1", "d/e/y": b"2", "d/e/f/z": b"3"})
    fs.rm("d", recursive=True, maxdepth=2)
    assert [fs.key_of(path) for path in fs.find("")] == ["d/e/f/z"]


def test_directories_need_not_be_made(fs: ShardedFileSystem) -> None:
    fs.mkdir("d")
    fs.makedirs("d/e/f", exist_ok=True)
    assert not fs.exists("d")
    fs.pipe_file("d/x", b"1")
    with pytest.raises(FileExistsError, match="'d' exists"):
        fs.mkdir("d")
    with pytest.raises(FileExistsError):
        fs.makedirs("d", exist_ok=False)
    with pytest.raises(OSError, match=r"'d' of .* is not empty"):
        fs.rmdir("d")
    fs.rm("d/x")
    assert not fs.exists("d")


# -- cp and mv -----------------------------------------------------------------------------------------------------------


def values_of(fs: ShardedFileSystem, prefix: str) -> dict[str, bytes]:
    """Every value below a prefix, by what follows it."""
    return {fs.key_of(path)[len(prefix) :]: value for path, value in fs.cat(fs.find(prefix)).items()} if fs.find(prefix) else {}


def test_copying_a_node_copies_shards(fs: ShardedFileSystem, place: Place) -> None:
    fs.pipe({**array("g/a"), "g/zarr.json": GROUP, "g/notes": b"n"})
    stored = {key: value for key, value in snapshot(place.objects).items() if key.startswith("g/")}
    before = values_of(fs, "g")
    fs.counters.reset()
    fs.cp("g", "h", recursive=True)
    assert commits(fs) == 0
    assert fs.counters.chunks_read == 0
    assert {key: value for key, value in snapshot(place.objects).items() if key.startswith("h/")} == {
        f"h/{key[2:]}": value for key, value in stored.items()
    }
    fs.mv("h", "k", recursive=True)
    assert commits(fs) == 0
    assert fs.counters.chunks_read == 0
    assert not fs.exists("h")
    assert values_of(fs, "k") == before == values_of(fs, "g")
    assert np.asarray(zarr.open_array(as_zarr_memory(place.objects), path="k/a"))[:4].tolist() == [0, 0, 0, 1]


def test_copying_chunks(fs: ShardedFileSystem, place: Place) -> None:
    """Parts of arrays, files onto files, and directories into those that are there: value by value."""
    fs.pipe({**array("a"), **array("b", range(4), value=7), "notes": b"n"})
    fs.counters.reset()
    fs.cp("a/c/5", "b/c/6")
    assert fs.cat_file("b/c/6") == bytes([0, 5])
    fs.cp(["a/c/0", "a/c/1", "a/c/8"], ["b/c/8", "b/c/9", "b/c/10"])
    assert commits(fs) == 2, "one a batch and shard"
    assert [fs.cat_file(f"b/c/{i}") for i in (8, 9, 10)] == [bytes([0, i]) for i in (0, 1, 8)]
    fs.cp("a/c/1?", "b/c/")
    assert [fs.cat_file(f"b/c/{i}") for i in range(10, 16)] == [bytes([0, i]) for i in range(10, 16)]
    fs.cp("a/c/", "b/c/", recursive=True)
    assert values_of(fs, "b") == values_of(fs, "a")
    fs.cp("a/c/", "elsewhere/", recursive=True)  # chunks of an array, beside any: plain files
    assert values_of(fs, "elsewhere") == {f"/{i}": bytes([0, i]) for i in range(16)}
    assert len(shards(place, "b")) == 4
    fs.mv("a/c/0", "b/c/0")
    assert not fs.exists("a/c/0")
    fs.mv("notes", "more/notes")
    assert fs.cat_file("more/notes") == b"n"
    assert not fs.exists("notes")
    with pytest.raises(FileNotFoundError):
        fs.cp("nothing", "b/c/0")
    with pytest.raises(FileNotFoundError):
        fs.mv("a/c/0", "b/c/0")


def test_moving_onto_itself_loses_nothing(fs: ShardedFileSystem) -> None:
    fs.pipe({**array("g/a", range(3)), "g/zarr.json": GROUP, "notes": b"n"})
    before = values_of(fs, "")
    for source, target in (("g", "g"), ("g/a", "g/a"), ("g", "g/h"), ("g/a/c", "g/a/c/7"), ("notes", "notes"), ("notes", "./notes"[2:])):
        try:
            fs.mv(source, target, recursive=True)
        except InvalidInput as exc:
            assert "itself" in str(exc) or "themselves" in str(exc)  # noqa: PT017 - either is right, as long as nothing is lost
        assert values_of(fs, "") == before, (source, target)


def test_a_copy_onto_another_array_keeps_the_layout_there(fs: ShardedFileSystem, place: Place) -> None:
    """Where there is an array already, chunks go into its shards, whatever those of the source are."""
    fs.pipe(array("a"))
    other = place.filesystem(chunks_per_shard=(8,))
    other.pipe(array("b", range(1), value=9))
    fs.cp("a/", "b/", recursive=True)
    assert values_of(fs, "b") == values_of(fs, "a")
    assert len(shards(place, "b")) == 2
    assert sharded_arrays(place.objects)["b"].chunks_per_shard == (8,)


# -- put and get ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [sorted, lambda found: sorted(found, reverse=True)])
def test_a_plain_directory_becomes_shards_and_comes_back(
    fs: ShardedFileSystem, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Callable[[Any], list[str]]
) -> None:
    """``put`` of a hierarchy without sharding, in whatever order files are found; ``get`` gives the same values back."""
    plain = tmp_path / "plain"
    group = zarr.create_group(plain, attributes={"a": 1})
    x = group.create_array("deep/x", shape=(16, 6), chunks=(2, 2), dtype="i2")
    x[...] = np.arange(96).reshape(16, 6)
    files = {path.relative_to(plain).as_posix(): path.read_bytes() for path in plain.rglob("*") if path.is_file()}
    walked = fsspec.implementations.local.LocalFileSystem.find
    monkeypatch.setattr(fsspec.implementations.local.LocalFileSystem, "find", lambda *a, **k: order(walked(*a, **k)))
    fs.put(f"{plain}/", "imported/", recursive=True)
    assert commits(fs) == 2
    assert len(shards(place, "imported/deep/x")) == 2
    assert {k[len("imported/") :] for k in presented(place.objects)} == set(files)
    native = zarr.open_array(as_zarr_memory(place.objects), path="imported/deep/x")
    np.testing.assert_array_equal(np.asarray(native[...]), np.asarray(x[...]))
    back = tmp_path / "back"
    fs.get("imported", str(back), recursive=True)
    again = zarr.open_array(back, path="deep/x", mode="r")
    np.testing.assert_array_equal(np.asarray(again[...]), np.asarray(x[...]))
    got = {path.relative_to(back).as_posix(): path.read_bytes() for path in back.rglob("*") if path.is_file()}
    assert {k: json.loads(v) if is_document(k) else v for k, v in got.items()} == {
        k: json.loads(v) if is_document(k) else v for k, v in files.items()
    }


def test_metadata_goes_first_however_little_memory_there_is(place: Place, tmp_path: Path) -> None:
    """Where a copy or an upload is more than one batch, chunks that came before their document would be plain objects."""
    fs = place.filesystem(chunks_per_shard=four_a_side, max_memory=1)
    values = array("a")
    for key, value in values.items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(value)
    fs.put([str(tmp_path / key) for key in values], [f"put/{key}" for key in values])
    fs.cp([f"put/{key}" for key in values], [f"copied/{key}" for key in values])
    for where in ("put", "copied"):
        assert len(shards(place, f"{where}/a")) == 4
        assert {key: fs.cat_file(f"{where}/{key}") for key in values if not is_document(key)} == {
            key: value for key, value in values.items() if not is_document(key)
        }


def test_single_files_to_and_from_disk(fs: ShardedFileSystem, tmp_path: Path) -> None:
    fs.pipe(array("a", range(2)))
    local = tmp_path / "in.bin"
    local.write_bytes(b"hi")
    fs.put_file(str(local), "a/c/7")
    fs.put(str(local), "a/c/8")
    assert fs.cat_file("a/c/7") == fs.cat_file("a/c/8") == b"hi"
    with pytest.raises(FileExistsError):
        fs.put_file(str(local), "a/c/1", mode="create")
    with pytest.raises(FileExistsError):
        fs.put(str(local), "a/c/1", mode="create")
    assert fs.cat_file("a/c/1") == bytes([0, 1])
    fs.put(str(local), "a/c/9", mode="create")
    assert fs.cat_file("a/c/9") == b"hi"
    fs.get_file("a/c/7", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == b"hi"
    fs.get(["a/c/0", "a/c/1"], [str(tmp_path / "0"), str(tmp_path / "deep/1")])
    assert (tmp_path / "deep/1").read_bytes() == bytes([0, 1])
    with pytest.raises(FileNotFoundError):
        fs.get("a/c/3", str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_progress_is_told(fs: ShardedFileSystem, tmp_path: Path) -> None:
    fs.pipe(array("a"))
    callback = fsspec.callbacks.Callback()
    fs.get("a", str(tmp_path / "a"), recursive=True, callback=callback)
    assert callback.size == callback.value == 17
    callback = fsspec.callbacks.Callback()
    fs.put(str(tmp_path / "a"), "b", recursive=True, callback=callback)
    assert callback.size == callback.value == 17
    assert values_of(fs, "b") == values_of(fs, "a")


# -- transactions --------------------------------------------------------------------------------------------------------


def test_a_transaction_is_one_commit_a_shard(fs: ShardedFileSystem, place: Place) -> None:
    """Writes by the filesystem, by files, and by zarr over another instance take part, and are seen inside."""
    fs.pipe({"zarr.json": GROUP, **array("a")})
    store = zarr.storage.FsspecStore.from_url(f"sharded::{place.url}", storage_options=place.link_options(chunks_per_shard=four_a_side))
    z: Any = zarr.open_array(store, path="a", mode="r+")
    before = snapshot(place.objects)
    fs.counters.reset()
    with fs.transaction:
        for i in range(8):
            fs.pipe_file(f"a/c/{i}", b"pp")
        with fs.open("a/c/8", "wb") as file:
            file.write(b"ff")
        z[18:20] = 122
        fs.rm("a/c/15")
        fs.pipe({"notes": b"n"})
        assert [fs.cat_file(f"a/c/{i}") for i in (0, 8, 9)] == [b"pp", b"ff", b"zz"]
        assert z[16:18].tolist() == [102, 102]
        assert not fs.exists("a/c/15")
        assert f"{place.path}/notes" in fs.ls("", detail=False)
        assert snapshot(place.objects) == before
        assert commits(fs) == 0
    assert commits(fs) == 4
    shown = presented(place.objects)
    assert [shown[f"a/c/{i}"] for i in (0, 7, 8, 9)] == [b"pp", b"pp", b"ff", b"zz"]
    assert shown["notes"] == b"n"
    assert "a/c/15" not in shown
    fs.pipe_file("a/c/15", b"ll")
    assert presented(place.objects)["a/c/15"] == b"ll", "after the block writes are durable at once"


def test_an_exception_rolls_everything_back(fs: ShardedFileSystem, place: Place) -> None:
    fs.pipe({"zarr.json": GROUP, **array("a")})
    before = snapshot(place.objects)
    with pytest.raises(RuntimeError) as caught, fs.transaction:  # noqa: PT012 - the block is what is tested
        fs.pipe_file("a/c/0", b"pp")
        with fs.open("a/c/1", "wb") as file:
            file.write(b"ff")
        fs.rm("a/c/2", recursive=True)
        raise RuntimeError("mine")
    assert "rolled back: 3 held-back keys" in "".join(caught.value.__notes__)
    assert snapshot(place.objects) == before
    assert fs.cat_file("a/c/0") == bytes([0, 0])
    assert not fs._intrans
    with fs.transaction:
        fs.pipe_file("a/c/0", b"ok")
    assert presented(place.objects)["a/c/0"] == b"ok"
    fs.start_transaction()
    fs.pipe_file("a/c/0", b"no")
    fs.end_transaction()
    assert presented(place.objects)["a/c/0"] == b"no"


def test_transactions_do_not_nest(fs: ShardedFileSystem, place: Place) -> None:
    fs.pipe(array("a"))
    other = place.filesystem(chunks_per_shard=four_a_side, read_only=False)
    with fs.transaction:
        fs.pipe_file("a/c/0", b"pp")
        with pytest.raises(InvalidInput, match="cannot be nested"), other.transaction:
            raise AssertionError("not reached")
        fs.pipe_file("a/c/1", b"pp")
    assert presented(place.objects)["a/c/0"] == presented(place.objects)["a/c/1"] == b"pp"


def test_creating_in_a_transaction(fs: ShardedFileSystem, place: Place) -> None:
    fs.pipe(array("a", range(2)))
    with fs.transaction:
        fs.pipe_file("a/c/5", b"55", mode="create")
        with pytest.raises(FileExistsError):
            fs.pipe_file("a/c/5", b"66", mode="create")
        with pytest.raises(FileExistsError):
            fs.pipe_file("a/c/1", b"66", mode="create")
    assert presented(place.objects)["a/c/5"] == b"55"


def test_copies_take_part_in_a_transaction(fs: ShardedFileSystem, place: Place) -> None:
    fs.pipe({**array("g/a"), "g/zarr.json": GROUP})
    before = snapshot(place.objects)
    with fs.transaction:
        fs.cp("g", "h", recursive=True)
        fs.mv("g/a/c/0", "g/a/c/1")
        assert values_of(fs, "h/a")["/c/3"] == bytes([0, 3])
        assert snapshot(place.objects) == before
    assert values_of(fs, "h/a")["/c/0"] == bytes([0, 0])
    assert fs.cat_file("g/a/c/1") == bytes([0, 0])
    assert not fs.exists("g/a/c/0")
    assert len(shards(place, "h/a")) == 4


# -- read only -----------------------------------------------------------------------------------------------------------


def test_read_only(tmp_path: Path) -> None:
    place = memory_place()
    put_sample(place.objects)
    before = snapshot(place.objects)
    fs = place.filesystem(read_only=True)
    (tmp_path / "f").write_bytes(b"x")
    uses: list[Callable[[], object]] = [
        lambda: fs.pipe_file("ct/c/0/0", b"x"),
        lambda: fs.pipe({"new": b"x"}),
        lambda: fs.pipe({"new": b"x"}, mode="create"),
        lambda: fs.open("new", "wb"),
        lambda: fs.open("ct/c/0/0", "ab"),
        lambda: fs.open("new", "xb"),
        lambda: fs.rm("ct/c/0/0"),
        lambda: fs.rm("ct", recursive=True),
        lambda: fs.rm_file("ct/c/0/0"),
        lambda: fs.cp("ct/c/0/0", "new"),
        lambda: fs.cp("ct", "new", recursive=True),
        lambda: fs.mv("ct", "new", recursive=True),
        lambda: fs.put(str(tmp_path / "f"), "new"),
        lambda: fs.put_file(str(tmp_path / "f"), "new"),
        lambda: fs.touch("new"),
        lambda: fs.mkdir("new"),
        lambda: fs.start_transaction(),
        lambda: fs.get_mapper("").__setitem__("new", b"x"),
    ]
    for use in uses:
        with pytest.raises(ReadOnly, match="was opened read-only"):
            use()
    assert snapshot(place.objects) == before
    assert fs.cat_file("notes.txt") == b"about this"
    writer = place.filesystem()
    assert writer.engine is fs.engine
    writer.pipe_file("notes.txt", b"changed")
    assert fs.cat_file("notes.txt") == b"changed"


# -- arrays that are there already ---------------------------------------------------------------------------------------


def test_a_document_is_not_put_over_plain_chunks(fs: ShardedFileSystem, place: Place) -> None:
    """Objects that would turn into shards by it keep what they are."""
    copy = {f"a/c/{i}": bytes([i]) for i in range(4)}
    fs.pipe(copy)
    with pytest.raises((InvalidInput, Conflict)):
        fs.pipe_file("a/zarr.json", ARRAY)
    assert {key: place.objects.get(key) for key in copy} == copy


def test_native_data_is_left_as_it_is(tmp_path: Path) -> None:
    """Looking at a hierarchy in every way writes nothing, not even a hidden file."""
    place = Place(f"file://{tmp_path}/store")
    put_sample(place.objects)
    files = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    fs = place.filesystem()
    fs.cat("", recursive=True)
    fs.du("")
    fs.glob("**")
    list(fs.walk(""))
    fs.get("", str(tmp_path / "out"), recursive=True)
    assert {p: p.read_bytes() for p in (tmp_path / "store").rglob("*") if p.is_file()} == files
    copied = memory_place()
    copy_tree(tmp_path / "out", copied.objects)
    assert set(snapshot(copied.objects)) == {fs.key_of(path) for path in fs.find("")}


def test_another_array_takes_the_place_of_one_that_a_transaction_moved(fs: ShardedFileSystem, place: Place) -> None:
    fs.pipe(array("a"))
    with fs.transaction:
        fs.mv("a", "b", recursive=True)
        fs.pipe({"a/zarr.json": array_document((8,), (1,)), "a/c/7": b"7"})
    assert sorted(values_of(fs, "a")) == ["/c/7", "/zarr.json"]
    assert len(values_of(fs, "b")) == 17
    assert len(shards(place, "a")) == 1
