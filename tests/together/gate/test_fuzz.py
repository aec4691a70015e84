"""Arbitrary bytes as a shard or as a metadata document never crash, hang or allocate without bound.

Address space is limited while
these tests run, so that an allocation by a number that was read from a document is a MemoryError and not a dead machine; a hang
is ended by the run's timeout.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import resource
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import zarr
from hypothesis import given
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest

import shardstore
from shardstore.errors import Corruption, InvalidInput, NotFound, ShardStoreError
from shardstore.plan.policy import ArrayInfo
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.trace import TraceStorage
from tests import view
from tests.documents import array_v3, sharding_codec
from tests.harness.scale import EXAMPLES
from tests.shards import MISSING, Sharding, encode_index, index_entries, sharding
from tests.stored import StorageObjects

settings = hypothesis.settings(suppress_health_check=list(hypothesis.HealthCheck))

# The run's timeout is for the usual number of examples.
pytestmark = pytest.mark.timeout(300 + EXAMPLES)

HEADROOM = 2**30  # threads reserve 8 MiB of address space each, and malloc 64 MiB for each of the first few


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """Allow this process little more address space than it has, where the system can tell how much that is."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        yield
        return
    size = int(statm.read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + HEADROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def array_document(index_location: str = "end", *, checksum: bool = True, big: bool = False, one_length: bool = True) -> dict[str, Any]:
    """Eight bytes, two a chunk, four chunks a shard: one shard. ``one_length``: the codecs make as many bytes of every chunk."""
    codecs: list[Any] = [{"name": "bytes"}] if one_length else [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}]
    index_codecs: list[Any] = [{"name": "bytes", "configuration": {"endian": "big" if big else "little"}}]
    if checksum:
        index_codecs.append({"name": "crc32c"})
    codec = sharding_codec([2], codecs, index_codecs=index_codecs, index_location=index_location)
    return array_v3([8], [8], codecs=[codec], attributes={"a": 1})


def only_shardstore_errors(action: Callable[[], object]) -> None:
    """Do it; an error that shardstore raises on purpose is fine."""
    with contextlib.suppress(ShardStoreError):
        action()


# -- shards --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Impossible:
    """An index entry that cannot be right."""

    entry: tuple[int, int]


class OneShard:
    """An array of one shard, whose bytes are whatever they are."""

    def __init__(self, location: str, *, checksum: bool, big: bool, one_length: bool) -> None:
        storage = MemoryStorage(f"/fuzz-{uuid.uuid4().hex}")
        self.objects = StorageObjects(storage)
        document = array_document(location, checksum=checksum, big=big, one_length=one_length)
        self.nbytes = 2 if one_length else None
        self.objects.put("x/zarr.json", json.dumps(document).encode())
        layout = sharding("x", document)
        assert layout is not None
        self.layout: Sharding = layout
        self.store = shardstore.open(storage)
        self.array = zarr.open_array(self.store, path="x", mode="r+")

    def expected(self, shard: bytes) -> list[bytes | Impossible | None] | None:
        """What each chunk must be; ``None``: there is no index."""
        try:
            entries = index_entries(self.layout, shard)
        except AssertionError:
            return None
        chunks: list[bytes | Impossible | None] = []
        for offset, nbytes in entries:
            if (offset, nbytes) == (MISSING, MISSING):
                chunks.append(None)
            elif MISSING in (offset, nbytes) or offset + nbytes > len(shard) or self.nbytes not in (None, nbytes):
                chunks.append(Impossible((offset, nbytes)))
            else:
                chunks.append(shard[offset : offset + nbytes])
        return chunks


FORMATS = list(itertools.product(("start", "end"), (True, False), (True, False), (True, False)))


@pytest.fixture(scope="module")
def one_shards() -> list[OneShard]:
    return [OneShard(location, checksum=checksum, big=big, one_length=one_length) for location, checksum, big, one_length in FORMATS]


u64 = st.integers(0, 2**64 - 1) | st.integers(0, 200) | st.sampled_from([MISSING, MISSING - 1, 2**63, 2**63 - 1, 2**32, 2**31])
entries = st.just((MISSING, MISSING)) | st.tuples(st.integers(0, 12), st.integers(0, 4)) | st.tuples(u64, u64)


@st.composite
def shard_bytes(draw: st.DrawFn, layout: Sharding) -> bytes:
    """Anything, or an index that decodes, of entries that may be anything, perhaps cut, extended or flipped somewhere."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=120))
    chunks = draw(st.binary(max_size=20))
    index = encode_index(layout, draw(st.lists(entries, min_size=4, max_size=4)))
    shard = bytearray(chunks + index if layout.index_at_end else index + chunks)
    match draw(st.sampled_from(["whole", "whole", "whole", "cut", "extended", "flipped"])):
        case "cut":
            del shard[draw(st.integers(0, len(shard))) :]
        case "extended":
            shard += draw(st.binary(max_size=20))
        case "flipped":
            shard[draw(st.integers(0, len(shard) - 1))] ^= draw(st.integers(1, 255))
    return bytes(shard)


@settings
@given(data=st.data())
def test_any_bytes_as_a_shard(one_shards: list[OneShard], data: st.DataObject) -> None:
    """Each chunk is what the index says, missing where it says so, and otherwise an error: the same in every way to ask."""
    one = data.draw(st.sampled_from(one_shards))
    shard = data.draw(shard_bytes(one.layout))
    one.objects.put("x/c/0", shard)
    expected = one.expected(shard)
    if expected is None:
        for key in (f"x/c/{i}" for i in range(4)):
            for ask in (view.get, view.exists, view.getsize):
                with pytest.raises(Corruption):
                    ask(one.store, key)
        for prefix in ("", "x/c/"):
            with pytest.raises(Corruption):
                view.keys(one.store, prefix)
        with pytest.raises(Corruption):
            one.array[...]
        with pytest.raises(Corruption):
            view.put(one.store, "x/c/0", b"12")
        assert one.objects.get("x/c/0") == shard
        return
    for i, chunk in enumerate(expected):
        key = f"x/c/{i}"
        if isinstance(chunk, Impossible):
            with pytest.raises(Corruption):
                view.get(one.store, key)
            with pytest.raises(Corruption):
                view.getsize(one.store, key)
            continue
        assert view.get(one.store, key) == chunk
        assert view.exists(one.store, key) == (chunk is not None)
        if chunk is not None:
            assert view.getsize(one.store, key) == len(chunk)
            assert view.get(one.store, key, RangeByteRequest(1, 3)) == chunk[1:3]
            assert view.get(one.store, key, OffsetByteRequest(1)) == chunk[1:]
            assert view.get(one.store, key, SuffixByteRequest(1)) == chunk[-1:]
    only_shardstore_errors(lambda: one.array[...])
    only_shardstore_errors(lambda: view.keys(one.store, ""))
    only_shardstore_errors(lambda: view.list_dir(one.store, "x/c"))


@settings
@given(data=st.data())
def test_writing_to_any_bytes(one_shards: list[OneShard], data: st.DataObject) -> None:
    """A write keeps every chunk that there was, byte for byte, or changes nothing."""
    one = data.draw(st.sampled_from(one_shards))
    shard = data.draw(shard_bytes(one.layout))
    slot = data.draw(st.integers(0, 3))
    new = data.draw(st.none() | st.binary(max_size=6))
    one.objects.put("x/c/0", shard)
    before = one.expected(shard)
    try:
        view.delete(one.store, f"x/c/{slot}") if new is None else view.put(one.store, f"x/c/{slot}", new)
    except InvalidInput:
        assert one.objects.get("x/c/0") == shard
        assert new is not None
        assert one.nbytes not in (None, len(new))
        return
    except Corruption:
        assert one.objects.get("x/c/0") == shard
        return
    assert before is not None
    after = one.objects.get("x/c/0")
    got = [None] * 4 if after is None else one.expected(after)
    assert got == [new if i == slot else chunk for i, chunk in enumerate(before)]


COMPRESSORS: dict[str, Any] = {
    "zstd": zarr.codecs.ZstdCodec(level=1),
    "gzip": zarr.codecs.GzipCodec(level=1),
    "crc32c": zarr.codecs.Crc32cCodec(),
    "blosc": zarr.codecs.BloscCodec(cname="lz4", clevel=1, shuffle="shuffle", typesize=2),
}


@pytest.fixture(scope="module")
def compressed() -> dict[str, zarr.Array[Any]]:
    store = shardstore.open(MemoryStorage(f"/fuzz-{uuid.uuid4().hex}"), chunks_per_shard=(2,))
    arrays = {}
    for name, codec in COMPRESSORS.items():
        arrays[name] = zarr.create_array(store, name=name, shape=(80,), chunks=(20,), dtype="u2", compressors=[codec])
        arrays[name][...] = 7
    return arrays


@settings
@given(data=st.data())
def test_any_bytes_as_an_encoded_chunk(compressed: dict[str, zarr.Array[Any]], data: st.DataObject) -> None:
    """They are stored and given back as they are; decoding them gives elements or a Corruption that names the chunk."""
    name, array = data.draw(st.sampled_from(sorted(compressed.items(), key=str)))
    store = array.store
    encoded = bytearray(view.get(store, f"{name}/c/1") or b"")
    for _ in range(data.draw(st.integers(0, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    is_cut = name != "crc32c" and data.draw(st.booleans())  # chunks with nothing but a checksum have one length
    chunk = bytes(encoded[: data.draw(st.integers(0, len(encoded)))]) if is_cut else bytes(encoded)
    view.put(store, f"{name}/c/0", chunk)
    assert view.get(store, f"{name}/c/0") == chunk
    try:
        values = array[...]
    except Corruption as exc:
        assert f"{name}/c/0" in str(exc)  # noqa: PT017 - either is right
    except MemoryError:
        pass  # the codec itself believes a size in its header; what shardstore allocates is what is stored
    else:
        assert np.shape(values) == (80,)
    np.testing.assert_array_equal(array[20:], 7)


# -- documents -----------------------------------------------------------------------------------------------------------

numbers = st.integers() | st.integers(-3, 3) | st.sampled_from([2**31, 2**32, 2**53, 2**63, 2**64, 10**30]) | st.floats()
scalars = st.none() | st.booleans() | numbers | st.text(max_size=8) | st.sampled_from(["sharding_indexed", "bytes", "crc32c", "array", "c"])
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=8
)

EVIL = [
    b"",
    b"\xff\xfe{}",
    b"\xef\xbb\xbf{}",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b"9" * 100_000,
    b'{"zarr_format": 3, "node_type": "array", "shape": [' + b"1," * 50_000 + b"1]}",
    b'{"zarr_format": 3, "zarr_format": 2}',
    b'"\\ud800"',
    b"null",
    b"NaN",
]


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place inside a document."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths_of(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from paths_of(inner, (*path, i))


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """``value`` with ``new`` in that place."""
    if not path:
        return new
    key, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = changed(value[key], tuple(rest), new)
    return copy


@st.composite
def nearly(draw: st.DrawFn, document: dict[str, Any]) -> Any:
    """The document with up to three places changed."""
    result: Any = document
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(paths_of(result))))
        result = changed(result, path, draw(json_values))
    return result


def sharded_documents() -> st.SearchStrategy[Any]:
    return st.sampled_from([array_document(), array_document("start", checksum=False)]).flatmap(nearly)


@st.composite
def groups(draw: st.DrawFn) -> Any:
    inside = draw(st.dictionaries(st.text("xyz/.c0", max_size=4), json_values | sharded_documents(), max_size=3))
    group: dict[str, Any] = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {},
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": inside},
    }
    return draw(st.just(group) | nearly(group))


documents = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(EVIL),
    json_values.map(lambda value: json.dumps(value).encode()),
    sharded_documents().map(lambda value: json.dumps(value).encode()),
    groups().map(lambda value: json.dumps(value).encode()),
)


@pytest.fixture(scope="module")
def fuzzed() -> StorageObjects:
    return StorageObjects(MemoryStorage(f"/fuzz-{uuid.uuid4().hex}"))


def two_a_side(info: ArrayInfo) -> tuple[int, ...]:
    return (2,) * len(info.shape)


SHARD = bytes(range(1, 9)) + encode_index(sharding("x", array_document()) or pytest.fail("no layout"), [(0, 2), (2, 2), (4, 2), (6, 2)])


@pytest.fixture(scope="module")
def lasting(fuzzed: StorageObjects) -> shardstore.ShardedStore:
    """A store that lives through all the examples, so that each document replaces the last."""
    return shardstore.open(TraceStorage(fuzzed.storage), chunks_per_shard=two_a_side, metadata_ttl=0.0)


# zarr has many words for a document that it cannot read; running out of memory is none of them.
ZARRS_OWN_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)


def use(store: shardstore.ShardedStore) -> None:
    """Everything that a client may ask of a node of which it knows nothing."""
    for key in ("x/c/0", "x/c/3", "x/c", "x/0", "x/c.0", "x/c/0/0"):
        only_shardstore_errors(lambda key=key: view.get(store, key))  # type: ignore[misc]
        only_shardstore_errors(lambda key=key: view.exists(store, key))  # type: ignore[misc]
    for prefix in ("", "x/", "x", "x/c/"):
        only_shardstore_errors(lambda prefix=prefix: view.keys(store, prefix))  # type: ignore[misc]
        only_shardstore_errors(lambda prefix=prefix: view.list_dir(store, prefix))  # type: ignore[misc]


@settings
@given(data=documents)
def test_any_bytes_as_stored_metadata(fuzzed: StorageObjects, lasting: shardstore.ShardedStore, data: bytes) -> None:
    fuzzed.put("x/zarr.json", data)
    fuzzed.put("x/c/0", SHARD)
    for store in (shardstore.open(TraceStorage(fuzzed.storage), chunks_per_shard=two_a_side), lasting):
        shown = view.get(store, "x/zarr.json")
        assert shown is not None
        assert view.getsize(store, "x/zarr.json") == len(shown)
        use(store)
        with contextlib.suppress(*ZARRS_OWN_ERRORS):
            zarr.open(store, path="x", mode="r")
        only_shardstore_errors(lambda store=store: view.put(store, "x/c/1", b"12"))  # type: ignore[misc]
        only_shardstore_errors(lambda store=store: view.delete(store, "x/c/1"))  # type: ignore[misc]
        only_shardstore_errors(lambda store=store: view.put(store, "x/zarr.json", data))  # type: ignore[misc]
    view.delete_dir(lasting, "x")
    assert fuzzed.keys() == []


def exactly(data: bytes) -> Any:
    """A document with the text of its numbers."""
    return json.loads(data, parse_float=lambda n: f"float {n}", parse_int=lambda n: f"int {n}", parse_constant=lambda n: f"constant {n}")


@settings
@given(data=documents | sharded_documents().map(lambda document: json.dumps(unsharded(document)).encode()))
def test_any_bytes_written_as_metadata(fuzzed: StorageObjects, lasting: shardstore.ShardedStore, data: bytes) -> None:
    """What is accepted is shown again as it came, whatever is stored for it; what is refused leaves nothing."""
    try:
        view.put(lasting, "x/zarr.json", data)
    except InvalidInput:
        assert fuzzed.keys() == []
        return
    shown = view.get(lasting, "x/zarr.json")
    assert shown is not None
    try:
        expected = exactly(data)
    except (ValueError, RecursionError):
        assert shown == data
    else:
        assert exactly(shown) == expected
    only_shardstore_errors(lambda: view.put(lasting, "x/c/0", b"12"))
    use(lasting)
    view.delete_dir(lasting, "x")
    assert fuzzed.keys() == []


def unsharded(document: Any) -> Any:
    """The document with plain codecs, which a client may create."""
    return {**document, "codecs": [{"name": "bytes"}]} if isinstance(document, dict) else document


HUGE = [
    {"shape": [2**62], "outer": [2**62], "inner": [1]},  # an index of 2**66 bytes
    {"shape": [2**40], "outer": [2**40], "inner": [2]},
    {"shape": [2**31] * 2, "outer": [2**31] * 2, "inner": [1, 1]},
    {"shape": [4] * 32, "outer": [4] * 32, "inner": [1] * 32},
    {"shape": [2**62] * 8, "outer": [2**30] * 8, "inner": [2**30] * 8},
]


@pytest.mark.parametrize("size", HUGE, ids=lambda size: f"{len(size['shape'])}-d")
def test_sizes_beyond_reason(fuzzed: StorageObjects, size: dict[str, list[int]]) -> None:
    document = array_document()
    document["shape"] = size["shape"]
    document["chunk_grid"]["configuration"]["chunk_shape"] = size["outer"]
    document["codecs"][0]["configuration"]["chunk_shape"] = size["inner"]
    fuzzed.put("x/zarr.json", json.dumps(document).encode())
    zeros = "/".join(["0"] * len(size["shape"]))
    fuzzed.put(f"x/c/{zeros}", SHARD)
    store = shardstore.open(TraceStorage(fuzzed.storage))
    only_shardstore_errors(lambda: view.get(store, f"x/c/{zeros}"))
    only_shardstore_errors(lambda: view.put(store, f"x/c/{zeros}", b"12"))
    only_shardstore_errors(lambda: view.keys(store))
    only_shardstore_errors(lambda: view.list_dir(store, "x/c"))
    view.delete_dir(store, "x")
    assert fuzzed.keys() == []


def test_a_missing_array_is_not_found_and_not_a_crash(fuzzed: StorageObjects) -> None:
    store = shardstore.open(TraceStorage(fuzzed.storage))
    with pytest.raises((NotFound, FileNotFoundError)):
        zarr.open_array(store, path="nowhere", mode="r")
    with pytest.raises(FileNotFoundError):
        view.getsize(store, "x/c/0")
