"""Whatever is done to an array through shardstore gives what zarr-python alone gives on an unsharded array.

Two arrays are made alike, one in zarr's own MemoryStore and one behind a view, and the same random operations are carried out on
both. Every result must agree, errors included, and in the end so must every key and every byte of every chunk.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import hypothesis
import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given, note
from zarr.abc.store import Store
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, TransposeCodec, ZstdCodec
from zarr.storage import MemoryStore
from zarr.testing.strategies import basic_indices

import shardstore
from shardstore.model.chunk_orders import CHUNK_ORDERS, ChunkOrder
from shardstore.plan.policy import ArrayInfo, ShardingPolicy
from shardstore.storage.memory import MemoryStorage
from tests import view
from tests.harness.scale import EXAMPLES
from tests.shards import presented, sharded_arrays
from tests.stored import StorageObjects, as_zarr_memory

settings = hypothesis.settings(
    suppress_health_check=[
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.data_too_large,
        hypothesis.HealthCheck.large_base_example,
    ],
)

# Types without a specification, and arrays with more chunks than elements: zarr warns, and neither matters here.
pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning", "ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.timeout(300 + EXAMPLES),  # the run's is for the usual number of examples
]

AnyArray = zarr.Array[Any]
Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Made:
    """How both arrays are created, and what only the view's store is told."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    fill: int
    encoding: Literal["default", "v2"]
    separator: Literal["/", "."]
    transposed: bool
    endian: Literal["little", "big"]
    compressors: tuple[Any, ...]
    write_empty_chunks: bool
    order: Literal["C", "F"]
    policy: ShardingPolicy
    index_location: Literal["start", "end"]
    index_checksum: bool
    chunk_order: ChunkOrder

    @property
    def fill_value(self) -> Any:
        return values_of(self.dtype, np.array([self.fill]))[0]

    def create(self, store: Store) -> AnyArray:
        has_bytes = np.dtype(self.dtype).itemsize > 1 and np.dtype(self.dtype).kind in "iufcMm"
        return zarr.create_array(
            store,
            name=self.path or None,
            shape=self.shape,
            chunks=self.chunks,
            dtype=self.dtype,
            fill_value=self.fill_value,
            chunk_key_encoding={"name": self.encoding, "separator": self.separator},
            filters=[TransposeCodec(order=tuple(reversed(range(len(self.shape)))))] if self.transposed else None,
            serializer=BytesCodec(endian=self.endian) if has_bytes else "auto",
            compressors=list(self.compressors) or None,
            config={"write_empty_chunks": self.write_empty_chunks, "order": self.order},
            attributes={"made by": "a test", "nan": "NaN", "pi": 3.25},
            dimension_names=[f"d{i}" for i in range(len(self.shape))],
        )


DTYPES = ("bool", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "M8[s]", "m8[ms]", "U2", "S3")
# No gzip, whose header holds the time at which it was written.
COMPRESSORS: tuple[tuple[Any, ...], ...] = (
    (),
    (ZstdCodec(level=1),),
    (ZstdCodec(level=3, checksum=True), Crc32cCodec()),
    (Crc32cCodec(),),
    (BloscCodec(cname="lz4", clevel=1, shuffle="shuffle", typesize=4),),
)


def values_of(dtype: str, numbers: npt.NDArray[np.int64]) -> Values:
    """Small numbers as values of any type: few distinct ones, so that whole chunks become equal to the fill value."""
    values: Values = numbers % 2 == 1 if dtype == "bool" else numbers.astype(dtype)
    return values


@st.composite
def policies(draw: st.DrawFn, ndim: int) -> ShardingPolicy:
    counts = draw(st.tuples(*[st.integers(1, 4)] * ndim))

    def by_function(info: ArrayInfo) -> tuple[int, ...]:
        assert len(info.shape) == ndim
        return counts

    return draw(st.sampled_from([counts, {"*": counts}, by_function, "auto", None]))


@st.composite
def made_arrays(draw: st.DrawFn) -> Made:
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    ndim = len(shape)
    return Made(
        path=draw(st.sampled_from(["", "x", "ct/0", "c/0/1"])),
        dtype=draw(st.sampled_from(DTYPES)),
        shape=shape,
        chunks=draw(st.tuples(*[st.integers(1, 5)] * ndim)),
        fill=draw(st.integers(0, 2)),
        encoding=draw(st.sampled_from(["default", "v2"])),
        separator=draw(st.sampled_from(["/", "."])),
        transposed=draw(st.booleans()) and ndim > 0,
        endian=draw(st.sampled_from(["little", "big"])),
        compressors=draw(st.sampled_from(COMPRESSORS)),
        write_empty_chunks=draw(st.booleans()),
        order=draw(st.sampled_from(["C", "F"])),
        policy=draw(policies(ndim)),
        index_location=draw(st.sampled_from(["start", "end"])),
        index_checksum=draw(st.booleans()),
        chunk_order=draw(st.sampled_from(sorted(CHUNK_ORDERS))),
    )


# -- selections: each is a way to read and a way to write ---------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    kind: Literal["basic", "oindex", "vindex", "mask", "blocks"]
    key: Any

    def read(self, array: AnyArray) -> Any:
        match self.kind:
            case "basic":
                return array[self.key]
            case "oindex":
                return array.oindex[self.key]
            case "vindex" | "mask":
                return array.vindex[self.key]
            case "blocks":
                return array.blocks[self.key]

    def write(self, array: AnyArray, value: Any) -> None:
        match self.kind:
            case "basic":
                array[self.key] = value
            case "oindex":
                array.oindex[self.key] = value
            case "vindex" | "mask":
                array.vindex[self.key] = value
            case "blocks":
                array.blocks[self.key] = value


def along(size: int, *, unique: bool) -> st.SearchStrategy[Any]:
    """Orthogonal selections along one dimension: slices with steps, integers (which drop it), masks, lists of positions."""
    slices = st.builds(
        slice, st.none() | st.integers(-size - 1, size + 1), st.none() | st.integers(-size - 1, size + 1), st.none() | st.integers(1, 3)
    )
    masks = st.lists(st.booleans(), min_size=size, max_size=size).map(lambda m: np.array(m, dtype=bool))
    if size == 0:
        return slices | masks
    positions = st.lists(st.integers(0, size - 1), min_size=0, max_size=5, unique=unique).map(lambda p: np.array(p, dtype=np.intp))
    return slices | masks | positions | st.integers(-size, size - 1)


@st.composite
def selections(draw: st.DrawFn, array: AnyArray, *, unique: bool) -> Selection:
    """``unique``: no element twice, because which value wins is then anyone's guess."""
    shape, ndim = array.shape, array.ndim
    kinds: list[Literal["basic", "oindex", "vindex", "mask", "blocks"]] = ["basic"]
    if ndim:
        kinds += ["oindex", "mask", "blocks"]
    if ndim and all(shape):
        kinds += ["vindex"]
    kind = draw(st.sampled_from(kinds))
    if kind == "basic":
        return Selection(kind, draw(basic_indices(shape=shape)))
    if kind == "oindex":
        return Selection(kind, tuple(draw(along(size, unique=unique)) for size in shape))
    if kind == "mask":
        picked = draw(st.lists(st.booleans(), min_size=array.size, max_size=array.size))
        return Selection(kind, np.array(picked, dtype=bool).reshape(shape))
    if kind == "vindex":
        points = draw(st.lists(st.tuples(*[st.integers(0, size - 1) for size in shape]), min_size=1, max_size=8, unique=unique))
        return Selection(kind, tuple(np.array(axis, dtype=np.intp) for axis in zip(*points, strict=True)))
    blocks = tuple(
        draw(st.integers(0, n - 1) | st.builds(slice, st.integers(0, n - 1), st.integers(1, n))) if n else slice(None)
        for n in array.cdata_shape
    )
    return Selection(kind, blocks)


def outcome(action: Callable[[], Any]) -> tuple[str, Any]:
    """What an action gives, or the kind of error it raises."""
    try:
        return "value", action()
    except Exception as exc:  # noqa: BLE001 - whatever zarr alone raises is right
        return "error", type(exc)


def agree(ours: AnyArray, plain: AnyArray, action: Callable[[AnyArray], Any]) -> bool:
    """Do ``action`` to both; whether it went well."""
    expected_kind, expected = outcome(lambda: action(plain))
    got_kind, got = outcome(lambda: action(ours))
    assert (got_kind, type(got)) == (expected_kind, type(expected)), (got, expected)
    if expected_kind == "error":
        assert got is expected
        return False
    if expected is not None:
        np.testing.assert_array_equal(got, expected)
        assert np.asarray(got).dtype == np.asarray(expected).dtype
        assert np.asarray(got).shape == np.asarray(expected).shape
    return True


# -- the two sides ------------------------------------------------------------------------------------------------------


class Sides:
    """The same array twice."""

    def __init__(self, made: Made, *, pipeline: bool) -> None:
        self.made = made
        self.storage = MemoryStorage(f"/differential-{uuid.uuid4().hex}")
        self.objects = StorageObjects(self.storage)
        self.store = shardstore.open(
            self.storage,
            chunks_per_shard=made.policy,
            index_location=made.index_location,
            index_checksum=made.index_checksum,
            chunk_order=made.chunk_order,
            pipeline=pipeline,
        )
        self.plain_store = MemoryStore()
        self.ours = made.create(self.store)
        self.plain = made.create(self.plain_store)

    def reopen(self) -> None:
        config: Any = {"write_empty_chunks": self.made.write_empty_chunks, "order": self.made.order}
        self.ours = zarr.open_array(self.store, path=self.made.path, mode="r+", config=config)
        self.plain = zarr.open_array(self.plain_store, path=self.made.path, mode="r+", config=config)

    def both(self, action: Callable[[AnyArray], Any]) -> bool:
        return agree(self.ours, self.plain, action)

    def check(self) -> None:
        assert self.ours.metadata.to_dict() == self.plain.metadata.to_dict()
        shown, expected = view.contents(self.store), view.contents(self.plain_store)
        assert sorted(shown) == sorted(expected)
        for key, value in expected.items():
            if key.endswith("zarr.json"):
                assert json.loads(shown[key]) == json.loads(value), key
            else:
                assert shown[key] == value, key
        # The second reader finds the same chunks in the shards, and zarr-python alone the same values.
        in_shards = presented(self.objects)
        assert {key: value for key, value in in_shards.items() if not key.endswith("zarr.json")} == {
            key: value for key, value in expected.items() if not key.endswith("zarr.json")
        }
        if sharded_arrays(self.objects) and self.made.shape == ():
            return  # zarr 3.1 can read a sharded array without dimensions only where it was written by others
        native = zarr.open_array(as_zarr_memory(self.objects), path=self.made.path, mode="r")
        np.testing.assert_array_equal(native[...], self.plain[...])


def random_values(data: st.DataObject, dtype: str, shape: tuple[int, ...]) -> Values:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    return values_of(dtype, rng.integers(0, data.draw(st.integers(1, 3)), size=shape))


def step(data: st.DataObject, sides: Sides) -> str:
    """One random operation on both sides, and what it was."""
    plain, dtype = sides.plain, sides.made.dtype
    operation = data.draw(st.sampled_from(["write", "write", "write", "read", "read", "resize", "append", "attributes", "reopen", "erase"]))
    match operation:
        case "read":
            selection = data.draw(selections(plain, unique=False))
            sides.both(selection.read)
            return f"read {selection}"
        case "write":
            selection = data.draw(selections(plain, unique=True))
            kind, current = outcome(lambda: selection.read(plain))
            shape = np.shape(current) if kind == "value" else ()
            scalar = data.draw(st.booleans())
            value = random_values(data, dtype, (1,))[0] if scalar else random_values(data, dtype, shape)
            sides.both(lambda array: selection.write(array, value))
            return f"write {value!r} to {selection}"
        case "resize":
            shape = tuple(data.draw(st.integers(0, 9)) for _ in plain.shape)
            sides.both(lambda array: array.resize(shape))
            return f"resize to {shape}"
        case "append" if plain.ndim:
            axis = data.draw(st.integers(0, plain.ndim - 1))
            shape = tuple(data.draw(st.integers(0, 4)) if i == axis else size for i, size in enumerate(plain.shape))
            values = random_values(data, dtype, shape)
            sides.both(lambda array: array.append(values, axis=axis))
            return f"append {shape} along {axis}"
        case "attributes":
            attributes: dict[str, Any] = data.draw(
                st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3) | st.none(), max_size=2)
            )

            def update(array: AnyArray) -> None:
                array.update_attributes(attributes)

            sides.both(update)
            return f"attributes {attributes}"
        case "erase" if plain.ndim and all(plain.shape):
            coords = tuple(data.draw(st.integers(0, n - 1)) for n in plain.cdata_shape)
            prefix = f"{plain.path}/" if plain.path else ""
            key = prefix + plain.metadata.encode_chunk_key(coords)
            for store in (sides.store, sides.plain_store):
                view.delete(store, key)
            return f"erase {key}"
    sides.reopen()
    return "reopen"


@pytest.mark.parametrize("pipeline", [True, False], ids=["pipeline", "no pipeline"])
@settings
@given(data=st.data())
def test_everything_is_as_without_shards(pipeline: bool, data: st.DataObject) -> None:
    made = data.draw(made_arrays())
    sides = Sides(made, pipeline=pipeline)
    for _ in range(data.draw(st.integers(1, 6))):
        note(step(data, sides))
    sides.check()


@pytest.mark.parametrize("pipeline", [True, False], ids=["pipeline", "no pipeline"])
@settings
@given(data=st.data())
def test_every_selection_reads_alike(pipeline: bool, data: st.DataObject) -> None:
    """Many selections of one array full of different values, some of its chunks missing."""
    made = data.draw(made_arrays().filter(lambda made: made.dtype not in ("bool", "U2", "S3") and all(made.shape)))
    sides = Sides(made, pipeline=pipeline)
    numbers = np.arange(sides.plain.size, dtype=np.int64).reshape(made.shape) % 100
    sides.both(lambda array: array.set_basic_selection(Ellipsis, values_of(made.dtype, numbers)))
    if made.shape:
        sides.both(lambda array: array.set_basic_selection(slice(0, made.chunks[0]), made.fill_value))
    for _ in range(5):
        selection = data.draw(selections(sides.plain, unique=False))
        note(str(selection))
        sides.both(selection.read)
    sides.check()


@pytest.mark.parametrize("pipeline", [True, False], ids=["pipeline", "no pipeline"])
def test_deleting_an_array_leaves_its_neighbours(pipeline: bool) -> None:
    storage = MemoryStorage(f"/differential-{uuid.uuid4().hex}")
    store = shardstore.open(storage, chunks_per_shard=(2,), pipeline=pipeline)
    plain = MemoryStore()
    for side in (store, plain):
        root = zarr.create_group(side)
        for name in ("ct", "ct2", "c"):
            root.create_array(name, shape=(9,), chunks=(2,), dtype="u1", fill_value=0)[...] = np.arange(1, 10)
        del root["ct"]
    assert sorted(view.contents(store)) == sorted(view.contents(plain))
    assert not [key for key in StorageObjects(storage).keys() if key.startswith("ct/")]  # noqa: SIM118 - no mapping


def test_overwriting_an_array_makes_it_anew() -> None:
    storage = MemoryStorage(f"/differential-{uuid.uuid4().hex}")
    store = shardstore.open(storage, chunks_per_shard=(2,))
    plain = MemoryStore()
    for dtype, chunks in (("u1", 2), ("f4", 3), ("i8", 9)):
        for side in (store, plain):
            array = zarr.create_array(side, name="x", shape=(9,), chunks=(chunks,), dtype=dtype, overwrite=True, compressors=None)
            np.testing.assert_array_equal(array[...], 0)
            array[2:7] = 5
        shown, expected = view.contents(store), view.contents(plain)
        assert {key: value for key, value in shown.items() if not key.endswith("zarr.json")} == {
            key: value for key, value in expected.items() if not key.endswith("zarr.json")
        }


def test_zarr_v2_passes_through() -> None:
    """Version 2 knows no shards: every object is stored as it is shown."""
    storage = MemoryStorage(f"/differential-{uuid.uuid4().hex}")
    store = shardstore.open(storage, chunks_per_shard={"x": None, "*": (2, 2)})
    plain = MemoryStore()
    values = np.arange(63, dtype="f4").reshape(9, 7)
    for side in (store, plain):
        root = zarr.create_group(side, zarr_format=2, attributes={"a": 1})
        root.create_array("x", shape=(9, 7), chunks=(2, 3), dtype="f4")[...] = values
    shown = view.contents(store)
    assert shown == view.contents(plain)
    assert shown == presented(StorageObjects(storage))
    array = zarr.open_array(store, path="x", mode="r")
    np.testing.assert_array_equal(array[2:5, ::2], values[2:5, ::2])
