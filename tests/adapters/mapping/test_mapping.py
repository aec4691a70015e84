"""``ShardedMap``: presented keys and their bytes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, MutableMapping
from typing import Literal

import numpy as np
import pytest

import shardstore
from shardstore import ShardedMap
from shardstore.errors import Corruption, InvalidInput, NotFound, ReadOnly
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests.adapters.places import Place, array_document, is_document, memory_place
from tests.shards import presented
from tests.stored import snapshot


@pytest.fixture
def mapping(place: Place, sample: dict[str, bytes]) -> ShardedMap:
    return shardstore.get_mapper(place.url, storage_options=place.storage_options or None)


ARRAY = array_document((32,), (2,))


def test_it_is_a_mapping(mapping: ShardedMap, sample: dict[str, bytes]) -> None:
    assert isinstance(mapping, MutableMapping)
    assert list(mapping) == sorted(sample)
    assert len(mapping) == len(sample)
    assert {key: value for key, value in mapping.items() if not is_document(key)} == {k: v for k, v in sample.items() if not is_document(k)}
    assert mapping["ct/c/1/1"] == sample["ct/c/1/1"]
    assert type(mapping["ct/c/1/1"]) is bytes
    assert "ct/c/1/1" in mapping
    for missing in ("ct/c/1/2", "nothing", "ct/c", "", 5, None):
        assert missing not in mapping
    for missing in ("ct/c/1/2", "nothing", "ct"):
        with pytest.raises(KeyError, match=f"{missing}.* does not exist"):
            mapping[missing]
        assert mapping.get(missing, b"d") == b"d"
    with pytest.raises(NotFound):
        del mapping["ct/c/1/2"]
    assert mapping.pop("ct/c/1/2", None) is None
    assert mapping.getsize("ct/c/1/1") == 8
    with pytest.raises(NotFound):
        mapping.getsize("ct/c/1/2")
    assert mapping.list_prefix("g/lung/c.") == [f"g/lung/c.{i}" for i in range(6)]
    assert mapping.list_prefix("ct/c/1") == ["ct/c/1/0", "ct/c/1/1", "ct/c/1/3"]


def test_changes(mapping: ShardedMap, place: Place) -> None:
    mapping["ct/c/1/2"] = bytearray(b"12345678")
    del mapping["ct/c/0/0"]
    mapping["notes.txt"] = memoryview(b"new")
    assert mapping.pop("g/lung/c.0") == b"\x01\x02"
    assert mapping.setdefault("g/lung/c.1", b"no") == b"\x03\x04"
    mapping.update({"g/lung/c.2": b"zz"})
    shown = presented(place.objects)
    assert shown["ct/c/1/2"] == b"12345678"
    assert "ct/c/0/0" not in shown
    assert "g/lung/c.0" not in shown
    assert (shown["notes.txt"], shown["g/lung/c.2"]) == (b"new", b"zz")
    fortran = np.arange(6, dtype="u1").reshape(2, 3).copy(order="F")
    mapping["notes.txt"] = fortran  # type: ignore[assignment]  # as zarr-python 2 does it with chunks of order F
    assert mapping["notes.txt"] == fortran.tobytes("A") == bytes([0, 3, 1, 4, 2, 5])
    mapping["notes.txt"] = np.array([5], dtype="<M8[s]")  # type: ignore[assignment]  # as above
    assert mapping["notes.txt"] == bytes([5, 0, 0, 0, 0, 0, 0, 0])
    mapping.rmdir("ct")
    assert not [key for key in place.objects.keys() if key.startswith("ct/")]  # noqa: SIM118 - no mapping
    mapping.rmdir("/g/data/")
    assert mapping.list_prefix("g/data") == []
    mapping.clear()
    assert place.objects.keys() == []
    assert len(mapping) == 0


def test_many_at_once(mapping: ShardedMap, sample: dict[str, bytes]) -> None:
    keys = ["ct/c/3/3", "notes.txt", "g/lung/c.5", "ct/c/3/3"]
    assert mapping.getitems(keys) == {key: sample[key] for key in keys}
    with pytest.raises(NotFound):
        mapping.getitems(["ct/c/1/2", "notes.txt"])
    assert mapping.getitems(["ct/c/1/2", "notes.txt"], on_error="omit") == {"notes.txt": b"about this"}
    returned = mapping.getitems(["ct/c/1/2", "notes.txt"], on_error="return")
    assert isinstance(returned["ct/c/1/2"], NotFound)
    assert returned["notes.txt"] == b"about this"
    assert mapping.getitems([]) == {}
    with pytest.raises(InvalidInput, match="'skip' is not"):
        mapping.getitems(keys, on_error="skip")  # type: ignore[arg-type]
    mapping.delitems(["ct/c/1/2", "notes.txt", "ct/c/3/3"])
    assert mapping.getitems(keys, on_error="omit") == {"g/lung/c.5": sample["g/lung/c.5"]}
    mapping.delitems([])
    mapping.setitems({})


def test_damage_is_no_missing_key(mapping: ShardedMap, place: Place) -> None:
    shard = place.objects.get("ct/c/0/0") or b""
    place.objects.put("ct/c/0/0", shard[:-1] + bytes([shard[-1] ^ 1]))
    on_errors: list[Literal["raise", "omit"]] = ["raise", "omit"]
    for on_error in on_errors:
        with pytest.raises(Corruption):
            mapping.getitems(["ct/c/0/0", "ct/c/3/3"], on_error=on_error)
    returned = mapping.getitems(["ct/c/0/0", "ct/c/3/3"], on_error="return")
    assert isinstance(returned["ct/c/0/0"], Corruption)
    assert isinstance(returned["ct/c/3/3"], bytes)
    with pytest.raises(Corruption):
        mapping["ct/c/1/1"]
    with pytest.raises(Corruption):
        mapping.get("ct/c/1/1")


def traced() -> tuple[TraceStorage, ShardedMap]:
    trace = TraceStorage(MemoryStorage(memory_place().path))
    mapping = ShardedMap(trace, chunks_per_shard=(4,), gap_bytes=0)
    mapping.setitems({**{f"a/c/{i}": bytes([i, i]) for i in range(16)}, "a/zarr.json": ARRAY})
    return trace, mapping


def test_batches_are_batches() -> None:
    trace, mapping = traced()
    assert [event.op for event in trace.events if "/c/" in event.key and event.op in ("write", "compose")] == ["write"] * 4
    assert next(event.key for event in trace.events if event.op == "write") == "a/zarr.json"
    fresh = ShardedMap(trace, chunks_per_shard=(4,), gap_bytes=0)
    fresh.getitems(["a/zarr.json"])
    with trace.count() as block:
        assert len(fresh.getitems(f"a/c/{i}" for i in range(0, 16, 2))) == 8
    assert len({event.round for event in block.events if event.op == "read" and "/c/" in event.key}) <= 2
    mapping.counters.reset()
    with trace.count() as block:
        mapping.setitems({f"a/c/{i}": b"xy" for i in (0, 1, 5)})
    assert mapping.counters.commits == 2
    with trace.count() as block:
        mapping.delitems(f"a/c/{i}" for i in range(4))
    assert [event.op for event in block.events if event.op in ("delete", "write", "compose")] == ["delete"]
    with trace.count() as block:
        mapping.rmdir("a")
    assert not [event for event in block.events if event.op == "read" and "/c/" in event.key and event.nbytes]
    with trace.count() as block:
        mapping.delitems(["a/zarr.json"])
    assert trace.summary().requests > 0


def test_errors_of_a_batch_say_how_many(mapping: ShardedMap) -> None:
    sharded = {"name": "sharding_indexed", "configuration": {"chunk_shape": [1], "codecs": [], "index_codecs": []}}
    with pytest.raises(InvalidInput) as caught:
        mapping.setitems({"new/zarr.json": array_document((32,), (2,), codecs=[sharded]), "fine": b"1"})
    assert caught.value.__notes__ == ["1 of 2 keys of this batch failed, the rest are stored"]
    assert mapping["fine"] == b"1"


@pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/./b", "a\\b", "a\0"])
def test_keys_that_are_refused(key: str) -> None:
    mapping = shardstore.get_mapper(memory_place().url)
    uses: list[Callable[[], object]] = [
        lambda: mapping.__setitem__(key, b"x"),
        lambda: mapping.setitems({"fine": b"x", key: b"x"}),
        lambda: mapping[key],
        lambda: mapping.getitems([key]),
        lambda: mapping.delitems([key]),
        lambda: mapping.getsize(key),
    ]
    for use in uses:
        with pytest.raises(InvalidInput):
            use()
    assert list(mapping) == []


def test_what_is_no_key_or_value(mapping: ShardedMap, place: Place) -> None:
    before = snapshot(place.objects)
    with pytest.raises(InvalidInput, match="a key has to be a string, not 5"):
        mapping[5] = b"x"  # type: ignore[index]
    with pytest.raises(InvalidInput, match="a key has to be a string"):
        mapping[None]  # type: ignore[index]
    for value in ("text", None, 5, [1, 2]):
        with pytest.raises((InvalidInput, TypeError)):
            mapping["ct/c/0/0"] = value  # type: ignore[assignment]
        with pytest.raises((InvalidInput, TypeError)):
            mapping.setitems({"ct/c/0/0": value})  # type: ignore[dict-item]
    assert snapshot(place.objects) == before


def test_transactions(mapping: ShardedMap, place: Place) -> None:
    before = snapshot(place.objects)
    with mapping.transaction():
        mapping["ct/c/0/0"] = b"held for"
        mapping.delitems(["notes.txt"])
        assert mapping["ct/c/0/0"] == b"held for"
        assert "notes.txt" not in list(mapping)
        assert snapshot(place.objects) == before
    assert presented(place.objects)["ct/c/0/0"] == b"held for"
    before = snapshot(place.objects)
    with pytest.raises(RuntimeError), mapping.transaction():  # noqa: PT012 - the block is what is tested
        mapping.clear()
        assert list(mapping) == []
        raise RuntimeError
    assert snapshot(place.objects) == before


def test_read_only(place: Place, sample: dict[str, bytes]) -> None:
    mapping = shardstore.get_mapper(place.url, read_only=True, storage_options=place.storage_options or None)
    assert mapping.read_only
    before = snapshot(place.objects)
    uses: list[Callable[[], object]] = [
        lambda: mapping.__setitem__("a", b""),
        lambda: mapping.setitems({"a": b""}),
        lambda: mapping.__delitem__("notes.txt"),
        lambda: mapping.delitems(["notes.txt"]),
        lambda: mapping.pop("notes.txt"),
        lambda: mapping.clear(),
        lambda: mapping.rmdir("ct"),
        lambda: mapping.transaction().__enter__(),
    ]
    for use in uses:
        with pytest.raises(ReadOnly, match="opened read-only"):
            use()
    assert snapshot(place.objects) == before
    assert mapping["notes.txt"] == sample["notes.txt"]


def test_maps_are_comparable_and_travel(place: Place, mapping: ShardedMap) -> None:
    again = pickle.loads(pickle.dumps(mapping))
    assert again == mapping
    assert hash(again) == hash(mapping)
    assert again["ct/c/1/1"] == mapping["ct/c/1/1"]
    assert again.engine is mapping.engine
    read_only = shardstore.get_mapper(place.url, read_only=True, storage_options=place.storage_options or None)
    assert read_only != mapping
    assert mapping != dict(mapping)
    assert shardstore.get_mapper(memory_place().url) != mapping
    assert repr(mapping) == f"ShardedMap({mapping.url!r})"
    assert mapping.url.endswith(place.path.lstrip("/"))


def test_options() -> None:
    url = memory_place().url
    with pytest.raises(InvalidInput, match="did you mean 'chunks_per_shard'"):
        ShardedMap(url, chunk_per_shard=(2,))  # type: ignore[call-arg]  # refused
    with pytest.raises(InvalidInput, match="present 'v4'"):
        shardstore.get_mapper(url, present="v4")  # type: ignore[arg-type]  # refused
    with pytest.raises(TypeError):
        shardstore.get_mapper(url, "r")  # type: ignore[call-arg,arg-type]
