"""Bad input gets an error that names key, shard and remedy, and changes nothing."""

from __future__ import annotations

import inspect
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.engine.options import EngineOptions
from shardstore.errors import Corruption, InvalidInput, ReadOnly, ShardStoreError, StorageError
from shardstore.maintenance.packing.pack import PackOptions
from shardstore.maintenance.pins import Pin
from shardstore.storage.memory import MemoryStorage
from tests import view
from tests.golden import FIXTURES, HandmadeCase, handmade_cases
from tests.shards import MISSING, encode_index, index_entries, sharded_arrays
from tests.stored import LocalObjects, StorageObjects, snapshot

CORRUPT_INDEX = [case for case in handmade_cases() if case.index_is_bad]
CORRUPT_CHUNK = [case for case in handmade_cases() if case.bad_chunks and not case.index_is_bad and not case.path.endswith("_length")]


def create(store: shardstore.ShardedStore, name: str = "x", **changes: Any) -> zarr.Array[Any]:
    options: dict[str, Any] = {"shape": (8,), "chunks": (2,), "dtype": "u1", "compressors": None, "fill_value": 0}
    return zarr.create_array(store, name=name, **{**options, **changes})


@pytest.fixture
def objects() -> StorageObjects:
    return StorageObjects(MemoryStorage(f"/bad-{uuid.uuid4().hex}"))


# -- corrupt shards -----------------------------------------------------------------------------------------------------


@pytest.fixture
def handmade(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    shutil.copytree(FIXTURES / "handmade_codec" / "index_end" / "store", root)
    return root


@pytest.mark.parametrize("pipeline", [True, False], ids=["pipeline", "no pipeline"])
@pytest.mark.parametrize("case", [*CORRUPT_INDEX, *CORRUPT_CHUNK], ids=lambda case: case.path)
def test_a_write_beside_corruption_changes_nothing(handmade: Path, case: HandmadeCase, pipeline: bool) -> None:
    """To keep the other chunks of the shard it would have to copy what cannot be read."""
    array = zarr.open_array(shardstore.open(str(handmade), pipeline=pipeline), path=case.path, mode="r+")
    beside = next(chunk for chunk in range(4) if case.index_is_bad or chunk not in case.bad_chunks)
    before = snapshot(LocalObjects(handmade))
    with pytest.raises(Corruption) as raised:
        array[2 * beside : 2 * beside + 2] = 99
    assert f"{case.path}/c/0" in str(raised.value)
    assert snapshot(LocalObjects(handmade)) == before


@pytest.mark.parametrize("case", CORRUPT_CHUNK, ids=lambda case: case.path)
def test_writing_a_corrupt_chunk_anew_mends_it(handmade: Path, case: HandmadeCase) -> None:
    array = zarr.open_array(shardstore.open(str(handmade)), path=case.path, mode="r+")
    (bad,) = case.bad_chunks
    expected = np.arange(1, 9, dtype="u1")
    array[2 * bad : 2 * bad + 2] = expected[2 * bad : 2 * bad + 2] = 99
    np.testing.assert_array_equal(zarr.open_array(str(handmade), path=case.path, mode="r")[...], expected)


@pytest.mark.parametrize("case", [*CORRUPT_INDEX, *CORRUPT_CHUNK], ids=lambda case: case.path)
def test_writing_the_whole_shard_anew_mends_it(handmade: Path, case: HandmadeCase) -> None:
    array = zarr.open_array(shardstore.open(str(handmade)), path=case.path, mode="r+")
    array[...] = np.arange(11, 19)
    np.testing.assert_array_equal(zarr.open_array(str(handmade), path=case.path, mode="r")[...], np.arange(11, 19))


@pytest.mark.parametrize("case", CORRUPT_INDEX, ids=lambda case: case.path)
def test_listing_a_corrupt_index_is_an_error(handmade: Path, case: HandmadeCase) -> None:
    """Nobody knows which chunks there are: to say none would be to say they are missing."""
    store = shardstore.open(str(handmade))
    with pytest.raises(Corruption, match=f"{case.path}/c/0"):
        view.keys(store, f"{case.path}/c/")
    with pytest.raises(Corruption, match=f"{case.path}/c/0"):
        view.exists(store, f"{case.path}/c/0")


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("checksum", [True, False], ids=["crc32c", "no checksum"])
def test_truncated_shards(objects: StorageObjects, location: Any, checksum: bool) -> None:
    """Every length shorter than the whole: an error or the right bytes, and never "missing"."""
    store = shardstore.open(objects.storage, chunks_per_shard=(4,), index_location=location, index_checksum=checksum)
    create(store)[...] = np.arange(1, 9)
    whole = objects.get("x/c/0")
    assert whole is not None
    for nbytes in range(len(whole)):
        objects.put("x/c/0", whole[:nbytes])
        for chunk in range(4):
            try:
                value = view.get(store, f"x/c/{chunk}")
            except Corruption as exc:
                assert "x/c/0" in str(exc)  # noqa: PT017 - either is right
            else:
                # With the index at the end and no checksum, other bytes are taken for the index, and no reader can tell.
                assert value == bytes([2 * chunk + 1, 2 * chunk + 2]) or (location == "end" and not checksum)


ENTRIES = {
    "past the end": (60, 2**32),
    "wholly past the end": (2**40, 2),
    "wraps": (2**64 - 2, 4),
    "wraps to zero": (2**63, 2**63),
    "half empty, offset": (MISSING, 2),
    "half empty, nbytes": (2, MISSING),
}


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES.keys())
def test_impossible_ranges(objects: StorageObjects, location: Any, entry: tuple[int, int]) -> None:
    store = shardstore.open(objects.storage, chunks_per_shard=(4,), index_location=location)
    array = create(store)
    array[...] = np.arange(1, 9)
    layout = sharded_arrays(objects)["x"]
    shard = objects.get("x/c/0")
    assert shard is not None
    entries = index_entries(layout, shard)
    entries[2] = entry
    encoded = encode_index(layout, entries)
    objects.put("x/c/0", shard[: -len(encoded)] + encoded if location == "end" else encoded + shard[len(encoded) :])
    before = snapshot(objects)
    with pytest.raises(Corruption) as raised:
        view.get(store, "x/c/2")
    assert "'c/2' of array 'x'" in str(raised.value)
    assert "'x/c/0'" in str(raised.value)  # the shard
    with pytest.raises(Corruption):
        array[...]
    with pytest.raises(Corruption):
        array[0] = 9
    assert [view.get(store, f"x/c/{chunk}") for chunk in (0, 1, 3)] == [b"\1\2", b"\3\4", b"\7\10"]
    assert snapshot(objects) == before


def test_a_checksum_that_does_not_match(objects: StorageObjects) -> None:
    store = shardstore.open(objects.storage, chunks_per_shard=(4,))
    array = create(store)
    array[...] = np.arange(1, 9)
    shard = objects.get("x/c/0")
    assert shard is not None
    for position in range(len(shard) - 68, len(shard), 7):
        flipped = bytearray(shard)
        flipped[position] ^= 0x10
        objects.put("x/c/0", bytes(flipped))
        with pytest.raises(Corruption, match="x/c/0"):
            array[0]


# -- the policy ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [(2, 2), (), {"*": (2, 2)}, {"y": (1,), "x": (4, 4, 4)}, lambda info: (2,) * 3])
def test_wrong_rank_in_the_policy(objects: StorageObjects, policy: Any) -> None:
    store = shardstore.open(objects.storage, chunks_per_shard=policy)
    with pytest.raises(InvalidInput, match="'x'") as raised:
        create(store)
    assert "chunks_per_shard" in str(raised.value)
    assert "lambda info" in str(raised.value)  # the remedy
    assert "x/zarr.json" not in objects.keys()  # noqa: SIM118 - no mapping


@pytest.mark.parametrize("policy", ["automatic", (0,), (2, -1), (1.5,), 4, {"x": "all"}, {1: (2,)}, object()])
def test_a_policy_that_is_none(objects: StorageObjects, policy: Any) -> None:
    with pytest.raises(InvalidInput, match="chunks_per_shard"):
        shardstore.open(objects.storage, chunks_per_shard=policy)


@pytest.mark.parametrize("decided", [(0,), "all", (2.0,), [True]])
def test_a_policy_function_that_decides_nonsense(objects: StorageObjects, decided: Any) -> None:
    store = shardstore.open(objects.storage, chunks_per_shard=lambda info: decided)
    with pytest.raises(InvalidInput, match="'x'"):
        create(store)
    assert "x/zarr.json" not in objects.keys()  # noqa: SIM118 - no mapping


@pytest.mark.parametrize(
    "options", [{"index_location": "middle"}, {"chunk_order": "Z"}, {"metadata_ttl": -1.0}, {"strategy": "hope"}], ids=str
)
def test_unknown_options(options: dict[str, Any]) -> None:
    ((name, _),) = options.items()
    with pytest.raises(InvalidInput, match=name):
        shardstore.open("memory://bad-options", **options)


# -- shards by the client ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [(4,), None])
def test_shards_given_by_the_client(objects: StorageObjects, policy: Any) -> None:
    """zarr does not use our pipeline there, and would store whole shards under the keys of chunks. Without a policy, the array would be
    shown at chunk level, once it is opened again, to a client that believes in shards.
    """
    store = shardstore.open(objects.storage, chunks_per_shard=policy, pipeline=False)
    with pytest.raises(InvalidInput, match="'x'") as raised:
        create(store, shards=(4,))
    assert "shards=" in str(raised.value)
    assert "chunks_per_shard" in str(raised.value)  # the remedy
    assert "encoding" in str(raised.value)  # where xarray hides it
    assert "x/zarr.json" not in objects.keys()  # noqa: SIM118 - no mapping


def test_shards_given_by_the_client_over_an_existing_array(objects: StorageObjects) -> None:
    store = shardstore.open(objects.storage, chunks_per_shard=(4,))
    create(store)[...] = np.arange(1, 9)
    before = snapshot(objects)
    document = view.get(store, "x/zarr.json")
    assert document is not None
    native = zarr.storage.MemoryStore()
    zarr.create_array(native, name="x", shape=(8,), chunks=(2,), shards=(4,), dtype="u1", compressors=None, fill_value=0)
    sharded = view.get(native, "x/zarr.json")
    assert sharded is not None
    with pytest.raises(InvalidInput, match="x"):
        view.put(store, "x/zarr.json", sharded)
    assert snapshot(objects) == before


# -- where to ------------------------------------------------------------------------------------------------------------


def test_unknown_protocol() -> None:
    with pytest.raises(InvalidInput, match="nosuchthing") as raised:
        shardstore.open("nosuchthing://bucket/data.zarr")
    assert "nosuchthing://bucket/data.zarr" in str(raised.value)


@pytest.mark.parametrize("url", ["", None, 7, b"x", ["a"]])
def test_no_url_at_all(url: Any) -> None:
    with pytest.raises(InvalidInput):
        shardstore.open(url)


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    # Without this botocore asks the network for an instance's credentials, and waits.
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")


@pytest.mark.usefixtures("no_credentials")
def test_missing_credentials(s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url
    anonymous = {k: v for k, v in options.items() if k not in ("key", "secret", "token", "anon")}
    store = shardstore.open(url, storage_options={**anonymous, "skip_instance_cache": True})
    with pytest.raises(StorageError) as raised:
        view.get(store, "x/c/0")
    assert "credentials" in str(raised.value).lower()
    with pytest.raises(StorageError):
        create(store)


def test_a_bucket_that_does_not_exist(s3_url: tuple[str, dict[str, Any]]) -> None:
    _, options = s3_url
    store = shardstore.open("s3://there-is-no-such-bucket/data.zarr", storage_options=options)
    with pytest.raises(ShardStoreError, match="there-is-no-such-bucket"):
        create(store)


def test_a_directory_without_zarr(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no array here")
    (tmp_path / "sub").mkdir()
    store = shardstore.open(str(tmp_path))
    for open_it in (zarr.open_group, zarr.open_array):
        with pytest.raises(FileNotFoundError) as raised:
            open_it(store, mode="r")
        assert tmp_path.name in str(raised.value)
    assert view.keys(store) == ["notes.txt"]
    assert view.get(store, "notes.txt") == b"no array here"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "sub"]


def test_a_directory_that_does_not_exist(tmp_path: Path) -> None:
    store = shardstore.open(str(tmp_path / "nowhere"))
    assert view.keys(store) == []
    assert view.get(store, "zarr.json") is None
    with pytest.raises(FileNotFoundError):
        zarr.open_group(store, mode="r")
    assert not (tmp_path / "nowhere").exists()


def test_a_file_where_a_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(ShardStoreError, match="file"):
        create(shardstore.open(str(tmp_path / "file")))
    assert (tmp_path / "file").read_text() == "no directory"


# -- read-only -----------------------------------------------------------------------------------------------------------


def writes(store: shardstore.ShardedStore) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "set", lambda: view.put(store, "x/c/0", b"12")
    yield "set metadata", lambda: view.put(store, "y/zarr.json", b"{}")
    yield "set_if_not_exists", lambda: view.put_if_absent(store, "y/c/0", b"12")
    yield "set many", lambda: view.put_many(store, [("y", b"1"), ("z", b"2")])
    yield "delete", lambda: view.delete(store, "x/c/0")
    yield "delete_dir", lambda: view.delete_dir(store, "x")
    yield "create", lambda: create(store, "y")
    yield "assign", lambda: zarr.open_array(store, path="x", mode="r+").__setitem__(0, 9)
    yield "attributes", lambda: zarr.open_array(store, path="x", mode="r+").update_attributes({"a": 1})


def test_a_read_only_store_is_not_written(objects: StorageObjects) -> None:
    create(shardstore.open(objects.storage, chunks_per_shard=(2,)))[...] = np.arange(1, 9)
    before = snapshot(objects)
    store = shardstore.open(objects.storage, read_only=True)
    for what, write in writes(store):
        with pytest.raises(ValueError, match="read-only"):
            write()
        assert snapshot(objects) == before, what
    with pytest.raises(ReadOnly):
        view.put(store, "x/c/0", b"12")
    np.testing.assert_array_equal(zarr.open_array(store, path="x", mode="r")[...], np.arange(1, 9))


# -- keys ----------------------------------------------------------------------------------------------------------------

BAD_KEYS = [
    "../x",
    "a/../../x",
    "..",
    "a/..",
    ".",
    "./a",
    "a/./b",
    "/etc/passwd",
    "a//b",
    "a\\b",
    "a\0b",
    "..\\x",
    "a/",
    "a\ud800",
    "\udcff/x",
]


@pytest.mark.parametrize("key", BAD_KEYS, ids=repr)
def test_keys_that_climb_out(tmp_path: Path, key: str) -> None:
    root = tmp_path / "store"
    root.mkdir()
    (tmp_path / "x").write_text("outside")
    store = shardstore.open(str(root), chunks_per_shard=(2,))
    transformer = shardstore.ShardingTransformer(str(root))
    attempts: list[Callable[[], object]] = [
        lambda: view.put(store, key, b"1"),
        lambda: view.put_if_absent(store, key, b"1"),
        lambda: view.put_many(store, [("fine", b"1"), (key, b"1")]),
        lambda: view.delete(store, key),
        lambda: view.get(store, key),
        lambda: view.exists(store, key),
        lambda: view.getsize(store, key),
        lambda: transformer.set(key, b"1"),
        lambda: transformer.get(key),
        lambda: transformer.erase(key),
        lambda: transformer.erase_values([key]),
        lambda: transformer.set_partial_values([(key, 0, b"1")]),
        lambda: transformer.get_partial_values([(key, (0, None))]),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidInput):
            attempt()
    assert [path.name for path in tmp_path.rglob("*")] in (["x", "store"], ["store", "x"])


@pytest.mark.parametrize("prefix", ["../", "a/../../", "..", "a/../", "./", "a//b/", "a\\b/", "a\0/", "a\ud800/", "\udcff"], ids=repr)
def test_prefixes_that_climb_out(tmp_path: Path, prefix: str) -> None:
    root = tmp_path / "store"
    root.mkdir()
    (tmp_path / "x").write_text("outside")
    store = shardstore.open(str(root))
    transformer = shardstore.ShardingTransformer(str(root))
    attempts: list[Callable[[], object]] = [
        lambda: view.keys(store, prefix),
        lambda: view.list_dir(store, prefix),
        lambda: view.delete_dir(store, prefix),
        lambda: list(transformer.list_prefix(prefix)),
        lambda: transformer.list_dir(prefix),
        lambda: transformer.erase_prefix(prefix),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidInput):
            attempt()
    assert (tmp_path / "x").read_text() == "outside"


@pytest.mark.parametrize("key", [".x.shardstore-lock", "a/.shardstore-tmp", "a/.shardstore-lock/x", "a/.x.shardstore-tmp/b/c"])
def test_names_of_lock_and_temporary_files_are_refused(tmp_path: Path, key: str) -> None:
    """On a disk they are no objects: what was stored there would be read, and neither listed nor ever erased."""
    store = shardstore.open(str(tmp_path))
    with pytest.raises(InvalidInput, match="shardstore-"):
        view.put(store, key, b"1")
    assert view.get(store, key) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["memory", "local"])
@pytest.mark.parametrize("half", [0xD800, 0xDCFF], ids=hex)
def test_keys_that_utf8_cannot_hold_are_refused_wherever_they_come_in(tmp_path: Path, kind: str, half: int) -> None:
    url = f"memory://{uuid.uuid4().hex}/x" if kind == "memory" else str(tmp_path / "x")
    store = shardstore.open(url)
    create(store)
    mapping, fs = shardstore.get_mapper(url), shardstore.ShardedFileSystem(fo=url)
    name, before = f"a{chr(half)}b", dict(mapping)
    attempts: list[Callable[[], object]] = [
        lambda: mapping[name],
        lambda: name in mapping,
        lambda: mapping.update({"fine": b"1", name: b"1"}),
        lambda: mapping.getitems([name]),
        lambda: mapping.setitems({"fine": b"1", name: b"1"}),
        lambda: mapping.delitems([name]),
        lambda: fs.cat_file(name),
        lambda: fs.pipe_file(name, b"1"),
        lambda: fs.ls(name),
        lambda: fs.rm(name, recursive=True),
        lambda: fs.mv("x", name, recursive=True),
        lambda: create(store, name),
        lambda: zarr.open_array(store, path=name, mode="r"),
        lambda: shardstore.verify(url, path=name),
        lambda: shardstore.compact(url, path=name),
        lambda: shardstore.repair(url, path=name),
        lambda: Pin(f"x/{name}"),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidInput, match="UTF-8"):
            attempt()
    assert {key: data for key, data in mapping.items() if key != "fine"} == before


def test_a_place_that_utf8_cannot_hold_is_refused(tmp_path: Path) -> None:
    for place in (str(tmp_path / "x\ud800"), "memory://x\ud800", "s3://bucket/x\ud800"):
        with pytest.raises(InvalidInput, match="UTF-8"):
            shardstore.open(place)


def test_nothing_is_percent_decoded(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = shardstore.open(str(root))
    view.put(store, "%2e%2e/x", b"1")
    assert LocalObjects(root).keys() == ["%2e%2e/x"]


# -- parts of values -----------------------------------------------------------------------------------------------------


def test_partial_writes_that_leave_a_hole(objects: StorageObjects) -> None:
    store = shardstore.open(objects.storage, chunks_per_shard=(4,))
    create(store, compressors="auto")  # else all chunks have one length
    transformer = shardstore.ShardingTransformer(objects.storage)
    transformer.set_partial_values([("x/c/0", 0, b"\1\2"), ("x/c/1", 0, b"\3\4")])
    before = snapshot(objects)
    for key, start in (("x/c/0", 3), ("x/c/2", 1), ("x/c/0", -1)):
        with pytest.raises(InvalidInput, match=key):
            transformer.set_partial_values([(key, start, b"99")])
    with pytest.raises(InvalidInput, match=r"zarr\.json"):
        transformer.set_partial_values([("x/zarr.json", 0, b"{")])
    assert snapshot(objects) == before
    transformer.set_partial_values([("x/c/0", 2, b"99"), ("x/c/2", 0, b"88"), ("x/c/1", 1, b"7")])
    assert [transformer.get(f"x/c/{i}") for i in range(4)] == [b"\1\x0299", b"\x037", b"88", None]


def test_overlapping_partial_writes_of_one_key(objects: StorageObjects) -> None:
    """The specification forbids it: which of the two counts would depend on an order that a set does not have."""
    store = shardstore.open(objects.storage, chunks_per_shard=(4,))
    create(store)[0:4] = [1, 2, 3, 4]
    before = snapshot(objects)
    transformer = shardstore.ShardingTransformer(objects.storage)
    with pytest.raises(InvalidInput, match="x/c/0"):
        transformer.set_partial_values([("x/c/0", 0, b"99"), ("x/c/0", 1, b"8")])
    assert snapshot(objects) == before


@pytest.mark.parametrize("key_range", [(0, -1), (2, -2), (-2, -1)])
def test_partial_reads_that_are_no_ranges(objects: StorageObjects, key_range: tuple[int, int | None]) -> None:
    create(shardstore.open(objects.storage, chunks_per_shard=(4,)))[...] = np.arange(1, 9)
    with pytest.raises(InvalidInput):
        shardstore.ShardingTransformer(objects.storage).get_partial_values([("x/c/0", key_range)])


def test_ranges_end_with_the_chunk(objects: StorageObjects) -> None:
    """Ranges longer than the chunk must not leak its neighbours' bytes, nor the index."""
    create(shardstore.open(objects.storage, chunks_per_shard=(4,)))[...] = np.arange(1, 9)
    transformer = shardstore.ShardingTransformer(objects.storage)
    asked: list[tuple[str, tuple[int, int | None]]] = [
        ("x/c/1", (0, 100)),
        ("x/c/1", (1, None)),
        ("x/c/1", (1, 5)),
        ("x/c/1", (2, 5)),
        ("x/c/1", (4, None)),
        ("x/c/1", (0, 0)),
        ("x/c/9", (0, None)),
        ("x/c/1", (0, 1)),
        ("x/c/1", (-1, None)),
        ("x/c/1", (-100, None)),
    ]
    assert transformer.get_partial_values(asked) == [b"\3\4", b"\4", b"\4", b"", b"", b"", None, b"\3", b"\4", b"\3\4"]


# -- options ------------------------------------------------------------------------------------------------------------


def flags_of(function: Callable[..., Any]) -> list[str]:
    return [name for name, parameter in inspect.signature(function).parameters.items() if parameter.annotation in ("bool", bool)]


def all_flags() -> list[tuple[str, str]]:
    """Every option that is true or false, of every public name that takes options."""
    of_engine, of_pack = ([field.name for field in fields(options) if field.type == "bool"] for options in (EngineOptions, PackOptions))
    fsync_too = [*of_engine, "fsync"]
    found: list[tuple[str, str]] = []
    for name in ("open", "ShardedStore", "ShardedMap", "get_mapper", "ShardingTransformer", "ShardedFileSystem"):
        found += [(name, flag) for flag in [*flags_of(getattr(shardstore, name)), *fsync_too] if flag != "asynchronous"]  # fsspec's own
    for name in ("pack", "reshard", "unpack"):
        found += [(name, flag) for flag in of_pack]
    for name in ("compact", "repair", "verify", "census", "align"):
        found += [(name, flag) for flag in flags_of(getattr(shardstore, name))]
    return found


def test_all_flags_are_found() -> None:
    found = set(all_flags())
    assert {("open", "read_only"), ("ShardedStore", "pipeline"), ("ShardedMap", "require_atomic"), ("pack", "overwrite")} <= found
    assert {("compact", "dry_run"), ("repair", "dry_run"), ("verify", "deep"), ("census", "contents")} <= found


@pytest.fixture(scope="module")
def stored_array(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("flags") / "store"
    create(shardstore.open(str(root)))[...] = 1
    return root


@pytest.mark.parametrize(("name", "flag"), all_flags())
def test_a_flag_that_is_neither_true_nor_false_is_refused(stored_array: Path, name: str, flag: str) -> None:
    """``read_only="no"`` would mean yes."""
    before = snapshot(LocalObjects(stored_array))
    arguments = [str(stored_array)]
    if name in ("pack", "reshard", "unpack"):
        arguments.append(str(stored_array.with_name("target")))
    for value in ("no", 0, None):
        with pytest.raises(InvalidInput, match=f"{flag} {value!r} is neither True nor False"):
            getattr(shardstore, name)(*arguments, **{flag: value})
    assert snapshot(LocalObjects(stored_array)) == before
    assert [path.name for path in stored_array.parent.iterdir()] == ["store"]


def test_a_store_is_not_made_read_only_by_what_is_no_flag(tmp_path: Path) -> None:
    store = shardstore.open(str(tmp_path))
    with pytest.raises(InvalidInput, match="read_only 'no' is neither True nor False"):
        store.with_read_only("no")  # type: ignore[arg-type]  # that is the point
