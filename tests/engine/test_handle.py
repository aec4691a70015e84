"""What a face carries with it: engines are shared by target and options, and made anew at the other end of a pickle."""

from __future__ import annotations

import pickle
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest

from shardstore import InvalidInput, ShardingTransformer
from shardstore._sync import run_sync
from shardstore.adapters.handle import Handle
from shardstore.engine.actions import SetValue
from shardstore.model.ranges import EVERYTHING
from shardstore.testing.trace import TraceStorage
from tests.engine.hooked import document, fresh_memory
from tests.harness.own_memory import OwnMemory


def test_a_pickle_carries_the_arrays_but_not_the_trust_in_them() -> None:
    mine = ShardingTransformer(TraceStorage(fresh_memory()), chunks_per_shard=(4,), metadata_ttl="1000s")
    mine.set("a/zarr.json", document((16,), (1,)))
    mine.set("a/c/0", b"0")
    theirs = pickle.loads(pickle.dumps(mine))
    trace = theirs._handle.recipe.target
    trace.reset()
    assert theirs.get("a/c/0") == b"0"
    # Known from the pickle, and checked in the same step as the index, then the chunk. With the index the first read of a store
    # looks for what is stored there.
    assert [event.key for event in trace.events] == ["a/c/0", "zarr.json", "a/c/0"]
    assert trace.summary().rounds == 2
    again = pickle.loads(pickle.dumps(mine))
    trace = again._handle.recipe.target
    trace.reset()
    again.set("a/c/1", b"1")
    assert [event.key for event in trace.events if event.op == "read"].count("a/zarr.json") == 1


def test_engines_are_shared_by_target_and_options() -> None:
    url = f"memory:/{fresh_memory().path}"
    one, two = Handle.make(url, None, {"metadata_ttl": "5s"}), Handle.make(url, None, {"metadata_ttl": "5s"})
    assert one.engine is two.engine
    assert one == two
    assert hash(one) == hash(two)
    other = Handle.make(url, None, {"metadata_ttl": "6s"})
    assert other.engine is not one.engine
    assert other != one
    assert pickle.loads(pickle.dumps(one)).engine is one.engine


def test_a_relative_path_is_meant_where_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    mine = ShardingTransformer("x.zarr")
    mine.set("k", b"here")
    monkeypatch.chdir(there)
    other = ShardingTransformer("x.zarr")
    assert other.get("k") is None
    assert other != mine
    assert pickle.loads(pickle.dumps(mine)).get("k") == b"here"
    same = [f"{here}/x.zarr", f"{here}/x.zarr/", f"file://{here}/x.zarr", here / "x.zarr"]
    assert len({id(Handle.make(target, None, {}).engine) for target in same}) == 1


@pytest.mark.parametrize(
    ("option", "error", "message"),
    [
        ({"chunk_per_shard": (2,)}, InvalidInput, "option 'chunk_per_shard' is not known: did you mean 'chunks_per_shard'"),
        ({"mode": "r"}, InvalidInput, "option 'mode' is not known: did you mean read_only=True"),
        ({"zzz": 1}, InvalidInput, "option 'zzz' is not known: there are chunk_order, chunks_per_shard, "),
        ({"stored": "draft"}, InvalidInput, "'auto', 'codec', 'transformer', 'transformer-v3'"),
        ({"lost_transformers": {"a": 2}}, InvalidInput, "tuples of positive whole numbers"),
        ({"present": "v4"}, InvalidInput, "'v3', 'v2'"),
        ({"strategy": "in_place"}, InvalidInput, "strategy 'in_place' is not known: there are 'rewrite', 'append', 'keep'"),
        ({"strategy": "append", "index_location": "start"}, InvalidInput, "a checksum at the end of the shard"),
        ({"strategy": "append", "index_checksum": False}, InvalidInput, "a checksum at the end of the shard"),
        ({"strategy": "append", "stored": "transformer"}, InvalidInput, "a checksum at the end of the shard"),
        ({"max_dead_fraction": 1.0}, InvalidInput, "from 0 to less than 1"),
        ({"max_dead_fraction": "half"}, InvalidInput, "from 0 to less than 1"),
        ({"index_location": "middle"}, InvalidInput, "neither 'start' nor 'end'"),
        ({"chunk_order": "hilbert"}, InvalidInput, "chunk_order 'hilbert' is not known: there are 'C', 'F', 'morton'"),
        ({"metadata_ttl": -1}, InvalidInput, "is not a duration"),
        ({"max_memory": 0}, InvalidInput, "at least 1"),
        ({"max_memory": "1GB"}, InvalidInput, "not a whole number"),
        ({"max_memory": 1e9}, InvalidInput, "not a whole number"),
        ({"gap_bytes": -1}, InvalidInput, "at least 0"),
        ({"metadata_ttl": "1"}, InvalidInput, "is not a duration"),
        ({"metadata_ttl": float("nan")}, InvalidInput, "is not a duration"),
        ({"index_checksum": "no"}, InvalidInput, "neither True nor False"),
        ({"fsync": "no"}, InvalidInput, "neither True nor False"),
        ({"storage_options": "anon"}, InvalidInput, "not a dictionary"),
        ({"chunks_per_shard": (2, 0)}, InvalidInput, "chunks_per_shard"),
    ],
)
def test_options_that_cannot_be_right(option: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ShardingTransformer(fresh_memory(), **option)


def test_engines_with_other_options_tell_each_other_what_they_change() -> None:
    """The time to live is long, and nothing but their siblings tells them."""
    url = f"memory://{uuid.uuid4().hex}"
    one = Handle.make(url, None, {"chunks_per_shard": (2,), "metadata_ttl": "1000s"})
    two = Handle.make(url, None, {"chunks_per_shard": (4,), "metadata_ttl": "1000s"})
    assert one.engine is not two.engine

    def value(handle: Handle, key: str) -> bytes | None:
        found = run_sync(handle.engine.get((key, EVERYTHING)))
        return None if found is None else bytes(found)

    def put(handle: Handle, **values: bytes) -> None:
        errors = run_sync(handle.engine.update_many([(key.replace("_", "/"), SetValue(data)) for key, data in values.items()]))
        assert errors == [None] * len(values)

    assert value(two, "a/c/3") is None, "from now on it is known that there is no such array"
    put(one, **{"a/zarr.json": document((16,), (1,)), "a/c/3": b"old"})
    assert value(two, "a/c/3") == b"old"

    run_sync(one.engine.erase_prefix("a/"))
    put(two, **{"a/zarr.json": document((16,), (1,)), "a/c/3": b"new", "a/c/0": b"zero"})
    for key, expected in (("a/c/3", b"new"), ("a/c/0", b"zero"), ("a/c/1", None)):
        assert value(one, key) == expected
    put(one, **{"a/c/1": b"one"})
    assert [value(two, f"a/c/{i}") for i in range(4)] == [b"zero", b"one", None, b"new"]
    layout = run_sync(one.engine.layout("a"))
    assert layout is not None
    assert layout.index_format.chunks_per_shard == (4,)


def test_a_filesystem_with_a_path_names_the_same_engine_each_time() -> None:
    fs = fsspec.filesystem("memory")
    path = uuid.uuid4().hex
    one, two = Handle.make((fs, path), None, {}), Handle.make((fsspec.filesystem("memory"), path), None, {})
    assert one.engine is two.engine
    assert Handle.make((fs, path), None, {"metadata_ttl": "3s"}).engine is not one.engine


def test_places_that_only_look_alike_have_engines_of_their_own() -> None:
    private = [OwnMemory() for _ in range(2)]
    one, two = (Handle.make((fs, "x"), None, {}) for fs in private)
    run_sync(one.engine.update(("k", SetValue(b"mine"))))
    assert run_sync(two.engine.get(("k", EVERYTHING))) is None
    users = [Handle.make(f"http://{user}:secret@127.0.0.1:9/x", None, {}) for user in ("ann", "bob")]
    assert users[0].engine is not users[1].engine
    assert {handle.url for handle in users} == {"http://127.0.0.1:9/x"}


def test_a_pickle_carries_credentials_and_nothing_that_is_shown_does() -> None:
    handle = Handle.make("http://ann:in-the-url@127.0.0.1:9/x", {"headers": {"X-Key": "in-the-options"}}, {})
    carried = pickle.dumps(handle)
    assert b"ann:in-the-url@" in carried  # docs/howto/storages.md says so
    assert b"in-the-options" in carried
    there = pickle.loads(carried)
    assert there.engine is handle.engine
    for shown in (repr(there), repr(there.recipe), there.url, repr(there.engine.storage)):
        assert "in-the" not in shown
        assert "ann" not in shown
    assert repr(there.recipe) == "Recipe('http://127.0.0.1:9/x')"


@pytest.mark.parametrize(("root", "inside"), [("", "g/a"), ("g", "a"), ("", "a")])
def test_engines_at_other_roots_of_one_store_are_told_too(root: str, inside: str) -> None:
    """An array by its own URL beside the group that it is in: here, a shard of the wrong layout would be written otherwise."""
    url = f"memory://{uuid.uuid4().hex}"
    options = {"metadata_ttl": "1000s"}
    outer = Handle.make(f"{url}/{root}".rstrip("/"), None, {"chunks_per_shard": (2,), **options})
    array = Handle.make(
        f"{url}/{root}/{inside}".replace("//g", "/g").replace(f"{url}//", f"{url}/"), None, {"chunks_per_shard": (4,), **options}
    )

    def update(handle: Handle, key: str, data: bytes) -> None:
        run_sync(handle.engine.update((key, SetValue(data))))

    update(outer, f"{inside}/zarr.json", document((16,), (1,)))
    update(outer, f"{inside}/c/0", b"old")
    assert bytes(run_sync(array.engine.get(("c/0", EVERYTHING))) or b"") == b"old"
    run_sync(array.engine.erase_prefix(""))
    update(array, "zarr.json", document((16,), (1,)))
    update(outer, f"{inside}/c/3", b"three")
    assert bytes(run_sync(array.engine.get(("c/3", EVERYTHING))) or b"") == b"three"
    layout = run_sync(outer.engine.layout(inside))
    assert layout is not None
    assert layout.index_format.chunks_per_shard == (4,)
    run_sync(outer.engine.erase_prefix(f"{inside}/"))
    assert run_sync(array.engine.get(("c/3", EVERYTHING))) is None


def test_options_by_link_name_the_same_engine(s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url
    one, two = Handle.make(url, options, {}), Handle.make(url, {"s3": options}, {})
    assert one.engine is two.engine
    assert Handle.make(url, {**options, "default_cache_type": "none"}, {}).engine is not one.engine
