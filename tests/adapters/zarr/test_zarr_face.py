"""The zarr store and its pipeline, where zarr's own suites do not look."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

import numpy as np
import pytest
import zarr
from zarr.core.buffer import Buffer, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import FsspecStore

import shardstore
from shardstore._sync import run_sync
from shardstore.adapters.zarr.pipeline import ShardedCodecPipeline
from shardstore.errors import Corruption, InvalidInput, Undecodable
from shardstore.format.json_text import dumps
from shardstore.model.generation import UNCONDITIONAL
from shardstore.model.ranges import EVERYTHING
from shardstore.storage.base import Found, Read
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests import view
from tests.documents import array_v3, sharding_codec
from tests.engine.hooked import fresh_memory as memory
from tests.limits import limit_pipeline
from tests.stored import StorageObjects

VALUES = np.arange(1, 65, dtype="i4")


def commits_of_an_assignment(store: shardstore.ShardedStore, **limits: int) -> int:
    array = zarr.create_array(store, name="a", shape=(64,), chunks=(1,), dtype="i4", overwrite=True)
    if limits:
        limit_pipeline(array, **limits)
    store.counters.reset()
    array[...] = VALUES
    return store.counters.commits


def test_the_pipeline_is_there_although_the_configuration_was_reset() -> None:
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}):
        store = shardstore.open(memory(), chunks_per_shard=(32,))
    zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"})
    assert commits_of_an_assignment(store) == 2
    assert isinstance(zarr.open_array(store, path="a")._async_array.codec_pipeline, ShardedCodecPipeline)


@pytest.mark.parametrize("by", ["option", "environment"])
def test_the_pipeline_can_be_switched_off(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = "zarr.core.codec_pipeline.BatchedCodecPipeline"
    with zarr.config.set({"codec_pipeline.path": plain}):
        if by == "environment":
            monkeypatch.setenv("SHARDSTORE_PIPELINE", "0")
        store = shardstore.open(memory(), chunks_per_shard=(32,), pipeline=by != "option")
        array = zarr.create_array(store, name="a", shape=(64,), chunks=(1,), dtype="i4")
        assert zarr.config.get("codec_pipeline.path") == plain
        assert not isinstance(array._async_array.codec_pipeline, ShardedCodecPipeline)
        array[...] = VALUES
        np.testing.assert_array_equal(array[...], VALUES)


def test_documents_of_sharded_arrays_come_back_as_zarr_wrote_them() -> None:
    """To the byte, as from any other store."""
    storage = memory()
    mine, plain = shardstore.open(storage, chunks_per_shard=(32,)), zarr.storage.MemoryStore()
    for store in (mine, plain):
        attributes: dict[str, Any] = {"units": "K", "levels": [1, 2.5, {"top": None}], "of": "Temperatur über Grund"}
        zarr.create_array(store, name="a", shape=(64,), chunks=(1,), dtype="i4", attributes=attributes, dimension_names=["x"])
    shown, as_written = (sync(store.get("a/zarr.json", default_buffer_prototype())) for store in (mine, plain))
    assert shown is not None
    assert as_written is not None
    assert shown.to_bytes() == as_written.to_bytes()
    (stored,) = run_sync(storage.read([Read("a/zarr.json", (EVERYTHING,))]))
    assert isinstance(stored, Found)
    assert b"sharding_indexed" in bytes(stored.buffers[0])


def test_arrays_of_other_stores_keep_the_pipeline_that_was_configured() -> None:
    shardstore.open(memory())
    array = zarr.create_array(zarr.storage.MemoryStore(), shape=(4,), chunks=(2,), dtype="i4")
    assert not isinstance(array._async_array.codec_pipeline, ShardedCodecPipeline)
    array[...] = [1, 2, 3, 4]
    assert array[2] == 3


class _Told(shardstore.ShardedStore):
    """Notes which chunks it is asked for, and which it is given."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.told: list[tuple[str, str]] = []

    async def get(self, key: str, *args: Any, **options: Any) -> Buffer | None:
        self.told.append(("get", key))
        return await super().get(key, *args, **options)

    async def set(self, key: str, value: Buffer) -> None:
        self.told.append(("set", key))
        await super().set(key, value)


class _ToldFsspec(FsspecStore):
    """The same, of zarr's store over a filesystem."""

    told: ClassVar[list[tuple[str, str]]] = []

    async def get(self, key: str, *args: Any, **options: Any) -> Buffer | None:
        self.told.append(("get", key))
        return await super().get(key, *args, **options)

    async def set(self, key: str, *args: Any, **options: Any) -> None:
        self.told.append(("set", key))
        await super().set(key, *args, **options)


@pytest.mark.parametrize("over", ["engine", "filesystem"])
def test_a_subclass_with_methods_of_its_own_is_asked_for_each_chunk(over: str) -> None:
    """Going to the engine would pass by what it does there."""
    store: _Told | _ToldFsspec
    if over == "engine":
        store = _Told(memory(), chunks_per_shard=(2,))
    else:
        _ToldFsspec.told.clear()
        options = {"sharded": {"chunks_per_shard": (2,)}}
        made = _ToldFsspec.from_url(f"sharded::memory://face-{uuid.uuid4().hex}", storage_options=options)
        assert isinstance(made, _ToldFsspec)
        store = made
    array = zarr.create_array(store, name="a", shape=(4,), chunks=(1,), dtype="i4")
    store.told.clear()
    array[1:4] = [1, 2, 3]
    assert sorted(store.told) == [("set", f"a/c/{i}") for i in (1, 2, 3)]
    store.told.clear()
    np.testing.assert_array_equal(array[:3], [0, 1, 2])
    assert sorted(store.told) == [("get", f"a/c/{i}") for i in (0, 1, 2)]


def test_what_codecs_refuse_is_corruption_and_a_value_error() -> None:
    """Codecs raise ``ValueError`` as a rule, and that is what callers of zarr may expect."""
    store = shardstore.open(memory(), chunks_per_shard=(2,))
    array = zarr.create_array(store, name="a", shape=(4,), chunks=(2,), dtype="i4", compressors=zarr.codecs.GzipCodec())
    view.put(store, "a/c/1", b"nothing that gzip knows")
    with pytest.raises(ValueError, match="'a/c/1'") as raised:
        array[...]
    assert isinstance(raised.value, Undecodable)
    assert isinstance(raised.value, Corruption)
    assert raised.value.__cause__ is not None


def test_selections_and_assignments_past_the_memory_bound_go_in_waves() -> None:
    """Writing, a shard is one commit however large it is; reading, it is split, so that it does not have to be held whole."""
    trace = TraceStorage(memory())
    store = shardstore.open(trace, chunks_per_shard=(32,))
    assert commits_of_an_assignment(store, wave_bytes=64) == 2
    array = zarr.open_array(store, path="a")
    limit_pipeline(array, wave_bytes=64)
    trace.reset()
    np.testing.assert_array_equal(array[...], VALUES)
    largest = max(event.nbytes for event in trace.events if event.op == "read" and event.key.startswith("a/c/"))
    assert largest < 32 * 16 + 100  # an index, or the chunks of a wave; never the shard
    array[5:50] = -1
    expected = VALUES.copy()
    expected[5:50] = -1
    np.testing.assert_array_equal(array[...], expected)


def test_asking_whether_anything_is_there_reads_few_indices() -> None:
    trace = TraceStorage(memory())
    store = shardstore.open(trace, chunks_per_shard=(2,), metadata_ttl="1000s")
    zarr.create_array(store, name="a", shape=(400,), chunks=(1,), dtype="i4")[...] = 1
    trace.reset()
    assert not sync(store.is_empty("a/c"))
    assert trace.summary().requests <= 10
    assert sync(store.is_empty("b"))


def consolidated(store: Any) -> Any:
    found = zarr.open_group(store, mode="r").metadata.consolidated_metadata
    assert found is not None
    return found


def test_a_group_stays_writable_when_its_consolidated_metadata_is_out_of_date() -> None:
    storage = memory()
    store = shardstore.open(storage, chunks_per_shard=(2,))
    group = zarr.open_group(store, mode="w")
    group.create_array("a", shape=(8,), chunks=(2,), dtype="i4")[:] = 1
    group.create_array("g/b", shape=(8,), chunks=(2,), dtype="i4")[:] = 2
    zarr.consolidate_metadata(store)
    group.create_array("a", shape=(8,), chunks=(4,), dtype="i4", overwrite=True)[:] = 3
    zarr.open_group(store, mode="r+").attrs["x"] = 1
    assert consolidated(store).metadata["a"].chunk_grid.chunk_shape == (2,)  # as it was consolidated, and so with plain zarr-python
    assert zarr.open_array(store, path="a").chunks == (4,)
    zarr.consolidate_metadata(store)
    shown = consolidated(store)
    assert shown.metadata["a"].chunk_grid.chunk_shape == (4,)
    np.testing.assert_array_equal(zarr.open_array(shardstore.open(storage, chunks_per_shard=None), path="g/b")[...], [2] * 8)


def test_a_group_stays_writable_when_an_array_that_passes_through_whole_is_gone() -> None:
    """Members are deleted through one handle at once: each of them stores the consolidated metadata of what it knows to be left."""
    bytes_codec = {"name": "bytes", "configuration": {"endian": "little"}}
    around = {"name": "crc32c"}  # what is in the shards is not shown
    whole = array_v3([4, 4], [4, 4], data_type="int32", codecs=[sharding_codec([2, 2], [bytes_codec]), around])

    def group(*members: str) -> bytes:
        consolidated = {"kind": "inline", "must_understand": False, "metadata": dict.fromkeys(members, whole)}
        return dumps({"zarr_format": 3, "node_type": "group", "attributes": {}, "consolidated_metadata": consolidated})

    storage = memory()
    objects = StorageObjects(storage)
    objects.put("zarr.json", group("a", "b"))
    for name in "ab":
        objects.put(f"{name}/zarr.json", dumps(whole))
    store = shardstore.open(storage)
    assert set(consolidated(store).metadata) == {"a", "b"}
    for name, left in (("a", "b"), ("b", "a")):
        view.delete_dir(store, name)
        view.put(store, "zarr.json", group())
        view.put(store, "zarr.json", group(left))
        assert objects.get("zarr.json") == view.get(store, "zarr.json") == group(left)
    with pytest.raises(InvalidInput, match="asks for shards itself"):
        view.put(store, "a/zarr.json", dumps(whole))


@pytest.mark.parametrize("update", ["attributes", "resize", "consolidate"])
def test_native_arrays_in_other_spellings_can_be_updated(update: str) -> None:
    """tensorstore, zarrs and zarr-python leave out, or fill in, different parts of the same configuration."""
    storage = memory()
    inner = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "noshuffle", "blocksize": 0}},
    ]
    document = array_v3([8], [4], chunk_key_encoding={"name": "default"}, codecs=[sharding_codec([2], inner)])
    raw = shardstore.ShardingTransformer(storage, chunks_per_shard=None)
    # Written past the view: a client of it could not create a sharded array itself.
    run_sync(storage.write("zarr.json", [b'{"zarr_format": 3, "node_type": "group"}'], 40, UNCONDITIONAL))
    data = dumps(document)
    run_sync(storage.write("x/zarr.json", [data], len(data), UNCONDITIONAL))
    store = shardstore.open(storage)
    array = zarr.open_array(store, path="x", mode="r+")
    array[...] = np.arange(8)
    match update:
        case "attributes":
            array.attrs["q"] = 1
        case "resize":
            array.resize((12,))
        case "consolidate":
            zarr.consolidate_metadata(store)
    assert store.chunks_per_shard("x") == (2,)
    np.testing.assert_array_equal(zarr.open_array(store, path="x")[:8], np.arange(8))
    assert raw.get("x/c/3") is not None


def test_arrays_of_one_place_are_equal() -> None:
    """zarr compares arrays by their pipelines too."""
    store = shardstore.open(MemoryStorage(f"/{uuid.uuid4().hex}"), chunks_per_shard=(2,))
    array = zarr.create_array(store, name="a", shape=(8,), chunks=(2,), dtype="i4")
    again = zarr.open_array(store, path="a")
    assert again == array
    assert hash(again.async_array.codec_pipeline) == hash(array.async_array.codec_pipeline)
    other = zarr.create_array(store, name="b", shape=(8,), chunks=(2,), dtype="i4", compressors=None)
    assert other.async_array.codec_pipeline != array.async_array.codec_pipeline


class _Inverted(zarr.codecs.GzipCodec):
    """As somebody may write a codec of their own: by the method that zarr's pipelines call."""

    async def _encode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        encoded = await super()._encode_single(chunk_data, chunk_spec)
        assert encoded is not None
        return chunk_spec.prototype.buffer.from_bytes(bytes(255 - byte for byte in encoded.to_bytes()))

    async def _decode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        inverted = bytes(255 - byte for byte in chunk_data.to_bytes())
        return await super()._decode_single(chunk_spec.prototype.buffer.from_bytes(inverted), chunk_spec)


def test_a_codec_of_ones_own_is_asked_by_the_method_that_it_has() -> None:
    storage = MemoryStorage(f"/{uuid.uuid4().hex}")
    store = shardstore.open(storage, chunks_per_shard=(2,))
    array = zarr.create_array(store, name="a", shape=(8,), chunks=(2,), dtype="i4", compressors=[_Inverted()])
    array[:] = range(1, 9)
    np.testing.assert_array_equal(array[:], range(1, 9))
    chunk = run_sync(store.engine.get(("a/c/0", EVERYTHING)))
    assert chunk is not None
    assert bytes(chunk[:2]) == bytes((255 - 0x1F, 255 - 0x8B))  # gzip's magic number, inverted
