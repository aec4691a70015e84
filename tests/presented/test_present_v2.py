"""The v2 view of a store beside its v3 view, by zarr-python 3, which knows both formats; and what only the view itself can do."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

import shardstore
from shardstore._sync import run_sync
from shardstore.engine.actions import SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.options import EngineOptions
from shardstore.errors import Corruption, InvalidInput, NotFound, StorageError, Unsupported
from shardstore.model.durations import Duration
from shardstore.model.ranges import EVERYTHING
from shardstore.opening.open import open_storage
from shardstore.presented.flavours import Presented, presented
from shardstore.presented.v2 import V2Flavour
from shardstore.storage.base import Storage
from shardstore.testing.faults import Fail, Fault, FaultStorage
from shardstore.testing.trace import TraceStorage
from tests.documents import array_v2
from tests.engine.hooked import HookedStorage, fresh_memory

VALUES = np.arange(100, dtype="<i4").reshape(10, 10)
RESERVED = "_shardstore_v2"


def v2(root: Path, **options: Any) -> shardstore.ShardedMap:
    return shardstore.get_mapper(str(root), present="v2", chunks_per_shard=(2, 2), **options)


def zarray(**members: Any) -> bytes:
    return json.dumps(array_v2([10, 10], [2, 5], "<i4") | members).encode()


def written(root: Path, metadata_ttl: Duration = "1s", **members: Any) -> shardstore.ShardedMap:
    """An array ``a`` of v2, all of whose chunks are written."""
    mapper = v2(root, metadata_ttl=metadata_ttl)
    mapper[".zgroup"] = b'{"zarr_format": 2}'
    mapper["a/.zarray"] = zarray(**members)
    dot = members.get("dimension_separator", ".")
    mapper.setitems({f"a/{i}{dot}{j}": VALUES[2 * i : 2 * i + 2, 5 * j : 5 * j + 5].tobytes() for i in range(5) for j in range(2)})
    return mapper


def natively(root: Path) -> Any:
    return zarr.open_array(LocalStore(root), path="a", mode="r+", zarr_format=3)


def stored(root: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((root / "a/zarr.json").read_bytes())
    return loaded


def test_keys_and_bytes(tmp_path: Path) -> None:
    mapper = written(tmp_path)
    assert sorted(mapper) == [".zgroup", "a/.zarray", *(f"a/{i}.{j}" for i in range(5) for j in range(2))]
    assert json.loads(mapper["a/.zarray"]) == json.loads(zarray())
    assert mapper["a/3.1"] == VALUES[6:8, 5:].tobytes()
    np.testing.assert_array_equal(natively(tmp_path)[...], VALUES)
    assert natively(tmp_path).shards == (4, 10)
    assert mapper.listdir() == [".zgroup", "a"]
    assert mapper.listdir("a")[:3] == [".zarray", "0.0", "0.1"]
    assert (mapper.getsize("a/0.0"), mapper.getsize("a/.zarray")) == (40, len(mapper["a/.zarray"]))


def test_one_commit_a_shard(tmp_path: Path) -> None:
    assert written(tmp_path).counters.commits == 3


def test_attributes_and_documents_are_parts_of_one(tmp_path: Path) -> None:
    mapper = written(tmp_path)
    assert "a/.zattrs" not in mapper
    mapper["a/.zattrs"] = b'{"_ARRAY_DIMENSIONS": ["y", "x"], "unit": "K"}'
    assert (natively(tmp_path).metadata.dimension_names, dict(natively(tmp_path).attrs)["unit"]) == (("y", "x"), "K")
    mapper["a/.zarray"] = zarray(shape=[12, 10])
    assert natively(tmp_path).shape == (12, 10)
    assert json.loads(mapper["a/.zattrs"]) == {"_ARRAY_DIMENSIONS": ["y", "x"], "unit": "K"}
    del mapper["a/.zattrs"]
    assert "a/.zattrs" not in mapper
    np.testing.assert_array_equal(natively(tmp_path)[:10], VALUES)


def test_a_native_change_is_seen(tmp_path: Path) -> None:
    mapper = written(tmp_path)
    native = natively(tmp_path)
    native.attrs["unit"] = "K"
    native.resize((8, 10))
    fresh = v2(tmp_path, index_cache_bytes=0)
    assert (json.loads(fresh["a/.zarray"])["shape"], json.loads(fresh["a/.zattrs"])) == ([8, 10], {"unit": "K"})
    assert mapper["a/0.0"] == VALUES[:2, :5].tobytes()


def test_what_v3_cannot_hold_is_kept_and_hidden(tmp_path: Path) -> None:
    mapper = written(tmp_path, fill_value=None)
    assert json.loads(mapper["a/.zarray"])["fill_value"] is None
    assert "a/.zattrs" not in mapper
    assert RESERVED in stored(tmp_path)["attributes"]
    view = shardstore.open(str(tmp_path))
    array = zarr.open_array(view, path="a", mode="r+")
    assert dict(array.attrs) == {}
    array.attrs["unit"] = "K"  # by a client that does not see what is kept
    assert set(stored(tmp_path)["attributes"]) == {RESERVED, "unit"}
    fresh = v2(tmp_path, index_cache_bytes=0)
    assert json.loads(fresh["a/.zarray"])["fill_value"] is None
    assert json.loads(fresh["a/.zattrs"]) == {"unit": "K"}
    with pytest.raises(InvalidInput, match="reserved"):
        array.attrs[RESERVED] = 1


def test_consolidated_metadata(tmp_path: Path) -> None:
    mapper = written(tmp_path, fill_value=None)
    nodes = {key: json.loads(mapper[key]) for key in (".zgroup", "a/.zarray")}
    mapper[".zmetadata"] = json.dumps({"zarr_consolidated_format": 1, "metadata": nodes}).encode()
    assert json.loads(mapper[".zmetadata"])["metadata"] == nodes
    group = zarr.open_group(LocalStore(tmp_path), mode="r", zarr_format=3, use_consolidated=True)
    assert group.metadata.consolidated_metadata is not None
    array = group["a"]
    assert isinstance(array, zarr.Array)
    np.testing.assert_array_equal(array[...], VALUES)
    zarr.consolidate_metadata(shardstore.open(str(tmp_path)))  # by a client of the v3 view
    again = json.loads(v2(tmp_path, index_cache_bytes=0)[".zmetadata"])["metadata"]
    assert again == nodes | {".zattrs": {}}  # which zarr-python 3 writes of a group, even of nothing
    del mapper[".zmetadata"]
    assert ".zmetadata" not in mapper


def test_attributes_ahead_of_their_node(tmp_path: Path) -> None:
    """Copies in the order of keys bring the attributes of a group before the group."""
    mapper = v2(tmp_path)
    mapper["g/.zattrs"] = b'{"k": 1}'
    assert mapper["g/.zattrs"] == b'{"k": 1}'
    mapper["g/.zgroup"] = b'{"zarr_format": 2}'
    assert json.loads(mapper["g/.zattrs"]) == {"k": 1}
    assert sorted(mapper) == ["g/.zattrs", "g/.zgroup"]
    assert [p.name for p in (tmp_path / "g").iterdir()] == ["zarr.json"]
    mapper.setitems({"h/0.0": b"x" * 40, "h/.zattrs": b'{"k": 2}', "h/.zarray": zarray(shape=[2, 5])})
    assert sorted(p.name for p in (tmp_path / "h").iterdir() if not p.name.startswith(".")) == ["c.0.0", "zarr.json"]
    assert (json.loads(mapper["h/.zattrs"]), mapper["h/0.0"]) == ({"k": 2}, b"x" * 40)


def test_one_keys_trouble_is_not_anothers(tmp_path: Path) -> None:
    mapper = written(tmp_path)
    mapper["b/.zarray"] = zarray()
    mapper["b/0.0"] = b"b" * 40
    updates = [(".zmetadata", b"no JSON"), ("a/.zattrs", b"no JSON"), ("b/0.1", b"c" * 40), ("c/.zarray", zarray(dtype="<f16"))]
    errors = run_sync(mapper.engine.update_many([(key, SetValue(value)) for key, value in updates]))
    assert [type(error) for error in errors] == [InvalidInput, InvalidInput, type(None), InvalidInput]
    assert mapper["b/0.1"] == b"c" * 40
    (tmp_path / "a/zarr.json").write_bytes(b'{"cut')
    fresh = v2(tmp_path, index_cache_bytes=0)
    values = fresh.getitems(["a/0.0", "a/.zarray", "b/0.0"], on_error="return")
    assert isinstance(values["a/0.0"], Corruption)
    assert isinstance(values["a/.zarray"], Corruption)
    assert values["b/0.0"] == b"b" * 40
    updates = [("a/0.0", b"x" * 40), ("b/0.0", b"d" * 40)]
    errors = run_sync(fresh.engine.update_many([(key, SetValue(value)) for key, value in updates]))
    assert [type(error) for error in errors] == [Corruption, type(None)]


def v2_view(storage: Storage) -> Presented:
    return presented(Engine(storage, EngineOptions(present=V2Flavour())))


@pytest.mark.parametrize("first", ["node", "attributes"])
def test_attributes_race_with_their_node(first: str) -> None:
    """One client creates a node while another one, who has seen none, writes its attributes: they are not lost."""

    async def race() -> None:
        place = fresh_memory()
        hooked, other = HookedStorage(place), v2_view(place)
        mine = v2_view(hooked)
        node, attributes = ("g/.zgroup", SetValue(b'{"zarr_format": 2}')), ("g/.zattrs", SetValue(b'{"k": 1}'))
        (key, wanted), theirs, when = (node, attributes, "g/zarr.json") if first == "node" else (attributes, node, "g/.zattrs")
        done = False

        async def meanwhile(operation: str, at: str) -> None:
            nonlocal done
            if (operation, at, done) == ("write", when, False):
                done = True
                await other.update(theirs)

        hooked.before = meanwhile
        await mine.update((key, wanted))
        assert done
        shown = await v2_view(place).get(("g/.zattrs", EVERYTHING))
        assert shown is not None
        assert json.loads(bytes(shown)) == {"k": 1}
        assert [found.key async for found in place.list("")] == ["g/zarr.json"]

    asyncio.run(race())


def test_what_was_left_beside_a_node_is_not_of_it(tmp_path: Path) -> None:
    """Attributes that came ahead of their node are removed when it is there; where that failed they are still not shown."""
    mapper = written(tmp_path)
    (tmp_path / "a/.zattrs").write_bytes(b'{"left": "over"}')
    assert "a/.zattrs" not in mapper
    assert "a/.zattrs" not in list(mapper)
    assert ".zattrs" not in mapper.listdir("a")
    mapper["a/.zattrs"] = b'{"k": 1}'
    assert json.loads(mapper["a/.zattrs"]) == {"k": 1}


def test_what_is_stored_as_v2_passes_through(tmp_path: Path) -> None:
    array = zarr.create_array(LocalStore(tmp_path), name="a", shape=(10, 10), chunks=(2, 5), dtype="<i4", zarr_format=2)
    array[...] = VALUES
    mapper = v2(tmp_path)
    assert mapper["a/.zarray"] == (tmp_path / "a/.zarray").read_bytes()
    assert mapper["a/0.0"] == (tmp_path / "a/0.0").read_bytes()
    view = zarr.open_array(shardstore.open(str(tmp_path), present="v2"), path="a", mode="r+", zarr_format=2)
    view[0, 0] = 77
    view.resize((12, 10))
    assert not (tmp_path / "a/zarr.json").exists()
    assert zarr.open_array(LocalStore(tmp_path), path="a", mode="r", zarr_format=2)[0, 0] == 77


def test_v3_is_hidden(tmp_path: Path) -> None:
    mapper = written(tmp_path)
    for key in ("a/zarr.json", "zarr.json", "a/c.0.0"):
        assert key not in mapper
        with pytest.raises(InvalidInput, match=r"Zarr v(2|3)"):
            mapper[key] = b"x"
    assert (tmp_path / "a/c.0.0").stat().st_size > 40
    with pytest.raises(NotFound):
        mapper["a/0.0.0"]
    mapper["a/notes.txt"] = b"kept as it is"
    assert (tmp_path / "a/notes.txt").read_bytes() == b"kept as it is"


def test_a_raw_v2_reader_finds_nothing(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(FileNotFoundError):
        zarr.open_array(LocalStore(tmp_path), path="a", mode="r", zarr_format=2)
    names = {p.name for p in tmp_path.rglob("*") if p.is_file()}
    assert not [name for name in names if name[0].isdigit() or name.startswith(".z")]


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"dtype": "|O", "filters": [{"id": "pickle"}]}, "pickle"),
        ({"compressor": {"id": "unheard-of"}}, "unheard-of"),
        ({"dtype": "<f16"}, "f16"),
        ({"zarr_format": 3}, "zarr_format"),
    ],
)
def test_what_has_no_counterpart_is_refused(tmp_path: Path, members: dict[str, Any], reason: str) -> None:
    mapper = v2(tmp_path)
    with pytest.raises((InvalidInput, Unsupported), match=reason):
        mapper["a/.zarray"] = zarray(**members)
    assert list(mapper) == []
    assert not (tmp_path / "a").exists()


def test_native_arrays_without_counterpart(tmp_path: Path) -> None:
    """They are no part of the view, and reading their documents says why."""
    codecs: Any = {"filters": [zarr.codecs.TransposeCodec(order=(1, 2, 0))]}
    zarr.create_array(LocalStore(tmp_path), name="t", shape=(4, 4, 4), chunks=(2, 2, 2), dtype="<i4", **codecs)
    mapper = v2(tmp_path)
    assert not [key for key in mapper if key.endswith(".zarray")]
    with pytest.raises(Unsupported, match="transpose"):
        mapper["t/.zarray"]


def test_erasing(tmp_path: Path) -> None:
    mapper = written(tmp_path)
    mapper.delitems([f"a/{i}.{j}" for i in range(2) for j in range(2)])
    assert not (tmp_path / "a/c.0.0").exists()
    with pytest.raises(InvalidInput, match="has shards"):
        del mapper["a/.zarray"]
    mapper["b/.zarray"] = zarray(shape=[2, 5])
    mapper["b/0.0"] = b"x" * 40
    mapper.delitems(["b/.zarray", "b/0.0"])
    assert not (tmp_path / "b/zarr.json").exists()
    mapper.rmdir("a")
    assert list(mapper) == [".zgroup"]


def test_prefixes_inside_an_array(tmp_path: Path) -> None:
    """``c/`` is where an array's shards lie: in this view nothing is there, and nothing below it is erased."""
    mapper = written(tmp_path, dimension_separator="/")
    mapper["b/.zarray"] = zarray(dimension_separator="/")
    assert sorted(mapper.listdir("a")) == [".zarray", "0", "1", "2", "3", "4"]
    assert mapper.listdir("a/1") == ["0", "1"]
    assert mapper.listdir("a/c") == []
    mapper.rmdir("a/c")
    mapper.rmdir("a/1")
    assert [key for key in mapper if key.startswith("a/1")] == []
    assert len([key for key in mapper if key.startswith("a/")]) == 9


def test_an_array_that_another_client_deleted(tmp_path: Path) -> None:
    """Its chunks do not become objects of their own, that a raw v2 reader would take for chunks."""
    mapper = written(tmp_path, metadata_ttl=0.0)
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(InvalidInput, match="deleted or moved"):
        mapper["a/0.0"] = b"x" * 40
    assert not (tmp_path / "a").exists()
    assert "a/0.0" not in mapper
    mapper["a/.zarray"] = zarray()
    mapper["a/0.0"] = b"x" * 40
    assert mapper["a/0.0"] == b"x" * 40


def test_in_a_transaction(tmp_path: Path) -> None:
    mapper = v2(tmp_path)
    with mapper.transaction():
        mapper["a/.zarray"] = zarray()
        mapper["a/.zattrs"] = b'{"k": 1}'
        mapper["a/0.0"] = VALUES[:2, :5].tobytes()
        assert mapper["a/0.0"] == VALUES[:2, :5].tobytes()
        assert sorted(mapper) == ["a/.zarray", "a/.zattrs", "a/0.0"]
        assert not (tmp_path / "a").exists()
    assert mapper.counters.commits == 1
    assert sorted(v2(tmp_path, index_cache_bytes=0)) == ["a/.zarray", "a/.zattrs", "a/0.0"]
    np.testing.assert_array_equal(natively(tmp_path)[:2, :5], VALUES[:2, :5])


def test_through_xarray_and_the_filesystem(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    dataset = xarray.Dataset({"t": (("y", "x"), VALUES.astype("<f4"))}, attrs={"title": "v2"})
    store = shardstore.open(str(tmp_path), present="v2", chunks_per_shard=(2, 2))
    dataset.to_zarr(store, zarr_format=2, consolidated=True, encoding={"t": {"chunks": (2, 5)}})
    xarray.testing.assert_equal(xarray.open_zarr(str(tmp_path)).load(), dataset)  # natively, as v3
    xarray.testing.assert_equal(xarray.open_zarr(store, zarr_format=2).load(), dataset)
    filesystem = shardstore.ShardedFileSystem(target_protocol="file", fo=str(tmp_path), present="v2", chunks_per_shard=(2, 2))
    assert [name for name in filesystem.find("") if name.endswith("t/.zarray")]


def test_a_selection_is_read_in_one_round_and_an_assignment_is_one_commit_a_shard(tmp_path: Path) -> None:
    trace = TraceStorage(open_storage(tmp_path / "a.zarr"))
    values = np.arange(64 * 64, dtype="<i4").reshape(64, 64)
    store = shardstore.open(trace, present="v2", chunks_per_shard=(16, 16))
    array = zarr.create_array(store, name="x", shape=(64, 64), chunks=(4, 4), dtype="<i4", zarr_format=2, filters=None)
    trace.reset()
    array[...] = values
    writes = [event for event in trace.events if event.op in ("write", "compose")]
    assert [event.key for event in writes] == ["x/c.0.0"]
    again = zarr.open_array(shardstore.open(trace, present="v2"), path="x", mode="r", zarr_format=2)
    trace.reset()
    np.testing.assert_array_equal(again[...], values)
    assert trace.summary().rounds <= 2


# -- what cannot be read -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [".", "/"])
def test_a_document_that_cannot_be_read_is_an_error_of_the_chunks_and_not_an_absent_array(separator: str) -> None:
    """The keys of chunks would be taken for those of other objects: written where nobody looks for them, and read as missing."""
    faults = FaultStorage(fresh_memory())
    maker = presented(Engine(faults, EngineOptions(present=V2Flavour(), chunks_per_shard=(2, 2))))
    chunk = f"a/0{separator}0"

    async def update(view: Presented, key: str, data: bytes) -> Exception | None:
        return (await view.update_many([(key, SetValue(data))]))[0]

    assert run_sync(update(maker, "a/.zarray", zarray(dimension_separator=separator))) is None
    before = sorted(run_sync(keys_of(faults)))
    for what in ("read", "size", "pin", "write"):
        faults.plan(Fault(1, Fail(), frozenset({"read"}), "a/zarr.json", times=2))  # together with others, then alone
        view = presented(Engine(faults, EngineOptions(present=V2Flavour())))
        match what:
            case "read":
                (value,) = run_sync(view.get_many([(chunk, EVERYTHING)]))
                assert isinstance(value, StorageError)
            case "write":
                assert isinstance(run_sync(update(view, chunk, b"x" * 40)), StorageError)
            case _:
                with pytest.raises(StorageError, match="planned to fail"):
                    run_sync(getattr(view, what)(chunk))
    assert sorted(run_sync(keys_of(faults))) == before
    faults.plan()
    assert run_sync(update(presented(Engine(faults, EngineOptions(present=V2Flavour()))), chunk, b"x" * 40)) is None
    (value,) = run_sync(maker.get_many([(chunk, EVERYTHING)]))
    assert isinstance(value, memoryview)
    assert bytes(value) == b"x" * 40


async def keys_of(storage: Storage) -> list[str]:
    return [info.key async for info in storage.list("")]
