"""What is stored at a place is found out, at the price of one request at most, and everything works on it as on final Zarr v3."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import zarr

import shardstore
from shardstore._sync import run_sync
from shardstore.engine.actions import SetValue
from shardstore.engine.engine import Engine
from shardstore.engine.moving import copy_nodes, move_between
from shardstore.engine.options import EngineOptions
from shardstore.errors import AccessDenied, Corruption, InvalidInput, ShardStoreError, StorageError
from shardstore.format.draft2022.metadata import entry_point
from shardstore.format.json_text import dumps_zarr2
from shardstore.model.generation import UNCONDITIONAL, Condition, Generation
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Failed, Found, Read, ReadOutcome
from shardstore.storage.wrappers import StorageWrapper
from shardstore.stored.detect import DetectedStorage, is_draft
from tests.engine.hooked import HookedStorage, document, fresh_memory

FIXTURES = Path(__file__).parents[1] / "fixtures"
CASES = sorted(path.name for path in (FIXTURES / "transformer2022").iterdir() if path.is_dir())
VALUES = np.arange(64, dtype="<i4").reshape(8, 8)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")
@pytest.mark.parametrize("case", CASES)
def test_values_and_chunks_of_fixtures(case: str) -> None:
    folder = FIXTURES / "transformer2022" / case
    store = shardstore.open(str(folder / "store"), read_only=True)
    with np.load(folder / "expected.npz") as expected:
        for name, value in expected.items():
            array = zarr.open_array(store, path="" if name == "__root__" else name, mode="r")
            np.testing.assert_array_equal(np.asarray(array[...]), value)


@pytest.mark.parametrize("case", sorted(json.loads((FIXTURES / "handmade_transformer/layout2022/case.json").read_text())["cases"]))
def test_values_and_errors_made_by_hand(case: str) -> None:
    folder = FIXTURES / "handmade_transformer/layout2022"
    expected = json.loads((folder / "case.json").read_text())["cases"][case]
    array: Any = zarr.open_array(shardstore.open(str(folder / "store"), read_only=True), path=case, mode="r")  # a scalar is typed otherwise
    error_at = expected.get("error_at")
    if error_at is None:
        assert array[...].tolist() == expected["values"]
    for chunk in range(4):
        where = slice(2 * chunk, 2 * chunk + 2)
        if error_at == "index" or (error_at is not None and chunk in error_at):
            with pytest.raises(Corruption, match=case):
                array[where]
        elif error_at is None:
            assert array[where].tolist() == expected["values"][where]
        else:
            array[where]


def draft(root: Path) -> zarr.Array[Any]:
    store = shardstore.open(str(root), stored="transformer", chunks_per_shard=(2, 2))
    array = zarr.create_array(store, name="a", shape=(8, 8), chunks=(2, 2), dtype="<i4", compressors=None, fill_value=0)
    array[...] = VALUES
    return array


def test_created_and_found(tmp_path: Path) -> None:
    draft(tmp_path)
    stored = json.loads((tmp_path / "meta/root/a.array.json").read_bytes())
    assert stored["storage_transformers"][0]["configuration"] == {"chunks_per_shard": [2, 2]}
    assert sorted(p.name for p in (tmp_path / "data/root/a").rglob("*") if p.is_file()) == ["0", "0", "1", "1"]
    store = shardstore.open(str(tmp_path), chunks_per_shard=(2, 2))
    np.testing.assert_array_equal(zarr.open_array(store, path="a", mode="r")[...], VALUES)
    zarr.create_array(store, name="b", shape=(8, 8), chunks=(2, 2), dtype="<i4")[...] = VALUES  # of the flavour that is there
    assert (tmp_path / "meta/root/b.array.json").exists()
    assert not (tmp_path / "b").exists()


def test_in_a_transaction_and_pickled(tmp_path: Path) -> None:
    draft(tmp_path)
    store = pickle.loads(pickle.dumps(shardstore.open(str(tmp_path), chunks_per_shard=(2, 2))))
    with store.transaction():
        array = zarr.create_array(store, name="b", shape=(8, 8), chunks=(2, 2), dtype="<i4", compressors=None)
        array[...] = VALUES
        assert not (tmp_path / "meta/root/b.array.json").exists()
    again = pickle.loads(pickle.dumps(zarr.open_array(shardstore.open(str(tmp_path)), path="b", mode="r")))
    np.testing.assert_array_equal(again[...], VALUES)


def test_a_lost_transformer(tmp_path: Path) -> None:
    draft(tmp_path)
    path = tmp_path / "meta/root/a.array.json"
    stored = json.loads(path.read_bytes())
    lost = {name: value for name, value in stored.items() if name != "storage_transformers"}
    path.write_text(json.dumps(lost))
    store = shardstore.open(str(tmp_path), lost_transformers={"a": (2, 2)})
    array = zarr.open_array(store, path="a", mode="r+")
    np.testing.assert_array_equal(array[...], VALUES)
    array.attrs["found"] = True
    assert json.loads(path.read_bytes())["storage_transformers"] == stored["storage_transformers"]
    assert zarr.open_array(shardstore.open(str(tmp_path)), path="a", mode="r")[7, 7] == 63


def test_moved_to_final_v3_and_back(tmp_path: Path) -> None:
    """The shards are carried as they are; the documents are translated."""
    draft(tmp_path / "draft")
    source, target = (
        shardstore.open(str(tmp_path / "draft")).engine.canonical,
        shardstore.open(str(tmp_path / "v3"), stored="transformer-v3").engine.canonical,
    )
    run_sync(move_between(source, "a", target, "b"))
    np.testing.assert_array_equal(zarr.open_array(shardstore.open(str(tmp_path / "v3")), path="b", mode="r")[...], VALUES)
    assert json.loads((tmp_path / "v3/b/zarr.json").read_bytes())["storage_transformers"]
    run_sync(move_between(target, "b", source, "c"))
    np.testing.assert_array_equal(zarr.open_array(shardstore.open(str(tmp_path / "draft")), path="c", mode="r")[...], VALUES)
    assert not (tmp_path / "v3/b").exists()


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")
@pytest.mark.parametrize("case", CASES)
def test_a_copy_is_read_by_everything(case: str, tmp_path: Path) -> None:
    """Copied into final Zarr v3 the same shards are those of the codec: zarr-python and tensorstore read them natively."""
    folder = FIXTURES / "transformer2022" / case
    source, target = shardstore.open(str(folder / "store")).engine.canonical, shardstore.open(str(tmp_path)).engine.canonical
    run_sync(copy_nodes(source, "", target, ""))
    with np.load(folder / "expected.npz") as expected:
        for name, value in expected.items():
            path = tmp_path if name == "__root__" else tmp_path / name
            document = json.loads((path / "zarr.json").read_bytes())
            stored = json.loads((folder / f"store/meta/root{'' if name == '__root__' else f'/{name}'}.array.json").read_bytes())
            is_sharded = [codec["name"] for codec in document["codecs"]] == ["sharding_indexed"]
            assert is_sharded is bool(stored.get("storage_transformers"))
            assert "storage_transformers" not in document
            array: Any = zarr.open_array(str(path), mode="r", zarr_format=3)
            np.testing.assert_array_equal(np.asarray(array[...]), value)
            if b"numcodecs." not in (path / "zarr.json").read_bytes():
                spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
                np.testing.assert_array_equal(tensorstore.open(spec).result().read().result(), value)


def test_a_copy_goes_back_into_the_draft(tmp_path: Path) -> None:
    """Where the index of its shards is as the transformer has it; an index with a checksum is none of its own."""
    draft(tmp_path / "draft")
    engines = {name: shardstore.open(str(tmp_path / name)).engine.canonical for name in ("draft", "v3")}
    run_sync(copy_nodes(engines["draft"], "a", engines["v3"], "a"))
    run_sync(copy_nodes(engines["v3"], "a", engines["draft"], "b"))
    one, other = ((tmp_path / f"draft/meta/root/{name}.array.json").read_bytes() for name in "ab")
    assert one == other
    np.testing.assert_array_equal(zarr.open_array(shardstore.open(str(tmp_path / "draft")), path="b", mode="r")[...], VALUES)
    store = shardstore.open(str(tmp_path / "v3"), chunks_per_shard=(2, 2))
    zarr.create_array(store, name="c", shape=(8, 8), chunks=(2, 2), dtype="<i4")[...] = VALUES
    with pytest.raises(InvalidInput, match="2022 draft"):
        run_sync(copy_nodes(engines["v3"], "c", engines["draft"], "c"))


def test_removed(tmp_path: Path) -> None:
    def stored() -> set[str]:
        return {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file() and not p.name.startswith(".")}

    draft(tmp_path)
    of_array = {"meta/root/a.array.json", *(f"data/root/a/c{i}/{j}" for i in range(2) for j in range(2))}
    others = stored() - of_array
    assert stored() > of_array
    filesystem = shardstore.ShardedFileSystem(fo=str(tmp_path), target_protocol="file")
    filesystem.rm("a", recursive=True)
    assert stored() == others


def test_what_the_draft_cannot_hold_is_refused(tmp_path: Path) -> None:
    draft(tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*.json")}
    store = shardstore.open(str(tmp_path), chunks_per_shard=(2, 2))
    with pytest.raises(InvalidInput, match="consolidated_metadata"):
        zarr.consolidate_metadata(store)
    with pytest.raises(InvalidInput, match="2022 draft"):
        zarr.create_array(store, name="complex name!", shape=(4, 4), chunks=(2, 2), dtype="<i4")
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.json")} == before


def test_final_v3_is_not_taken_for_a_draft(tmp_path: Path) -> None:
    zarr.create_array(shardstore.open(str(tmp_path)), name="a", shape=(4,), chunks=(2,), dtype="<i4")
    with pytest.raises(InvalidInput, match="document of a Zarr v3 node"):
        zarr.create_array(shardstore.open(str(tmp_path), stored="transformer"), name="b", shape=(4,), chunks=(2,), dtype="<i4")
    with pytest.raises(InvalidInput, match="document of a Zarr v3 node"):
        zarr.open_array(shardstore.open(str(tmp_path), stored="transformer"), path="a", mode="r")
    with pytest.raises(InvalidInput, match="document of a Zarr v3 node"):
        list(shardstore.get_mapper(str(tmp_path), stored="transformer"))
    assert not (tmp_path / "meta").exists()


# -- requests --------------------------------------------------------------------------------------------------------------


def hooked() -> HookedStorage:
    return HookedStorage(fresh_memory())


def test_a_node_that_is_found_tells() -> None:
    async def read() -> None:
        place = hooked()
        engine = Engine(place, EngineOptions(stored="codec"))
        await engine.update(("a/zarr.json", SetValue(document((8,), (1,)))))
        place.seen.clear()
        assert await Engine(place).get(("a/zarr.json", EVERYTHING)) is not None
        assert place.seen == [("read", "a/zarr.json")]

    asyncio.run(read())


def test_one_request_in_every_other_case() -> None:
    async def read() -> None:
        place = hooked()
        engine = Engine(place)
        for _ in range(3):
            assert await engine.get(("a/zarr.json", EVERYTHING)) is None
        assert [key for _, key in place.seen] == ["a/zarr.json", "zarr.json", "a/zarr.json", "a/zarr.json"]
        assert not is_draft(engine.storage)

    asyncio.run(read())


def test_no_round_of_its_own_for_data() -> None:
    async def read() -> None:
        place = hooked()
        storage = DetectedStorage(place, {})
        assert len(await storage.read([Read("a/c/0", (EVERYTHING,))])) == 1
        assert place.seen == [("read", "a/c/0"), ("read", "zarr.json")]
        assert len(await storage.read([Read("a/c/0", (EVERYTHING,))])) == 1
        assert len(place.seen) == 3

    asyncio.run(read())


@pytest.mark.parametrize(("error", "asked"), [(AccessDenied("no"), 1), (StorageError("timed out"), 3)])
def test_where_the_root_cannot_be_read(error: ShardStoreError, asked: int) -> None:
    """Refused, it is not asked for again; where the request failed it is."""

    class Refusing(StorageWrapper):
        async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
            outcomes: list[ReadOutcome] = await self.inner.read(reads)
            return [Failed(error) if read.key == "zarr.json" else outcome for read, outcome in zip(reads, outcomes, strict=True)]

        async def write(self, key: str, body: Any, nbytes: int, condition: Condition) -> Generation:
            return await self.inner.write(key, body, nbytes, condition)

    async def read() -> None:
        place = hooked()
        await place.write("x", [b"x"], 1, UNCONDITIONAL)
        storage = DetectedStorage(Refusing(place), {})
        for _ in range(3):
            (outcome,) = await storage.read([Read("x", (EVERYTHING,))])
            assert isinstance(outcome, Found)
        assert place.count("read", "zarr.json") == asked

    asyncio.run(read())


@pytest.mark.parametrize("operation", ["list", "stat", "write", "delete"])
def test_whatever_comes_first(operation: str) -> None:
    async def first() -> None:
        place = fresh_memory()
        data = dumps_zarr2(entry_point())
        await place.write("zarr.json", [data], len(data), UNCONDITIONAL)
        await place.write("data/root/x/c0/1", [b"shard"], 5, UNCONDITIONAL)
        storage = DetectedStorage(place, {})
        if operation == "list":
            assert [found.key async for found in storage.list("x/")] == ["x/c/0/1"]
        elif operation == "stat":
            assert (await storage.stat("x/c/0/1")) is not None
        elif operation == "write":
            await storage.write("x/c/0/2", [b"other"], 5, UNCONDITIONAL)
            assert await place.stat("data/root/x/c0/2") is not None
        else:
            await storage.delete("x/c/0/1", UNCONDITIONAL)
            assert await place.stat("data/root/x/c0/1") is None
        assert storage.is_draft
        assert is_draft(pickle.loads(pickle.dumps(storage))) is False  # not yet

    asyncio.run(first())
