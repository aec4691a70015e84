"""A transposition before the sharding, as tensorstore writes it: shards keep the array's own grid, their chunks are permuted."""

from __future__ import annotations

import itertools
import json
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import zarr
from hypothesis import strategies as st
from zarr.storage import LocalStore

import shardstore
from shardstore.engine.options import StrategyName
from shardstore.errors import Corruption, InvalidInput
from shardstore.format.metadata_v3 import ArrayLayout, parse_layout
from tests import view
from tests.apps.cli.running import run, succeed
from tests.documents import array_v3, sharding_codec
from tests.together.gate.test_levels import CHECKSUM, LITTLE, Values, by_tensorstore, read_by_tensorstore, stored_document

# As zarr-python warns of every codec before the sharding.
pytestmark = [pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")]

EMPTY = 2**64 - 1


def transpose(*order: int) -> dict[str, Any]:
    return {"name": "transpose", "configuration": {"order": list(order)}}


@dataclass(frozen=True)
class Made:
    """An array of tensorstore's. ``inner`` is the shape that the sharding gives to chunks, in the order of the transposed dimensions."""

    shape: tuple[int, ...]
    orders: tuple[tuple[int, ...], ...]
    inner: tuple[int, ...]
    counts: tuple[int, ...]
    codecs: tuple[dict[str, Any], ...] = (LITTLE,)
    location: str = "end"
    checksum: bool = True
    separator: str = "/"

    @property
    def axes(self) -> tuple[int, ...]:
        axes = tuple(range(len(self.shape)))
        for order in self.orders:
            axes = tuple(axes[i] for i in order)
        return axes

    def in_array(self, transposed: tuple[int, ...]) -> tuple[int, ...]:
        """One number a dimension of the array, out of one a dimension behind the transposition."""
        return tuple(transposed[self.axes.index(i)] for i in range(len(self.shape)))

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        return self.in_array(self.inner)

    @property
    def shard_shape(self) -> tuple[int, ...]:
        return self.in_array(tuple(c * n for c, n in zip(self.inner, self.counts, strict=True)))

    @property
    def metadata(self) -> dict[str, Any]:
        index_codecs = [LITTLE, CHECKSUM] if self.checksum else [LITTLE]
        sharding = sharding_codec(self.inner, self.codecs, index_codecs=index_codecs, index_location=self.location)
        return array_v3(
            self.shape,
            self.shard_shape,
            data_type="uint16",
            chunk_key_encoding={"name": "default", "configuration": {"separator": self.separator}},
            fill_value=7,
            codecs=[*(transpose(*order) for order in self.orders), sharding],
            attributes={"by": "tensorstore"},
        )

    @property
    def values(self) -> Values:
        return (np.arange(int(np.prod(self.shape))) % 60_000 + 100).astype("u2").reshape(self.shape)


def written(root: Path, made: Made) -> Values:
    by_tensorstore(root, made.metadata)[...] = made.values
    return made.values


def read_natively(root: Path, made: Made) -> Values | None:
    """By zarr-python alone, where it opens it: it compares the inner chunk shape with the shard shape that is not transposed."""
    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}):
        if any(shard % chunk for shard, chunk in zip(made.shard_shape, made.inner, strict=True)):
            with pytest.raises(ValueError, match="divisible"):
                zarr.open_array(LocalStore(root), mode="r")
            return None
        return np.asarray(zarr.open_array(LocalStore(root), mode="r")[...])


def opened(root: Path, **options: Any) -> zarr.Array[Any]:
    return zarr.open_array(shardstore.open(str(root), **options), mode="r+")


ONLY_TRANSPOSED_DIVIDES = Made((9, 13), ((1, 0),), (3, 2), (2, 2))
"""Shards of 4 × 6 become 6 × 4, which chunks of 3 × 2 divide; they do not divide 4 × 6."""
THREE = Made((5, 7, 11), ((2, 0, 1), (1, 0, 2)), (1, 3, 2), (2, 2, 3), (transpose(1, 2, 0), LITTLE, CHECKSUM), "start", separator=".")

assert ONLY_TRANSPOSED_DIVIDES.shard_shape == (4, 6)


@st.composite
def arrays(draw: st.DrawFn) -> Made:
    ndim = draw(st.integers(0, 4))
    sizes = st.tuples(*[st.integers(1, 3)] * ndim)
    permutations = st.permutations(range(ndim)).map(tuple)
    inner_first = [transpose(*draw(permutations))] if draw(st.booleans()) else []
    inner_last: list[dict[str, Any]] = draw(st.sampled_from([[], [CHECKSUM], [{"name": "gzip", "configuration": {"level": 1}}]]))
    return Made(
        shape=draw(st.tuples(*[st.integers(1, 9)] * ndim)),
        orders=tuple(draw(st.lists(permutations, min_size=1, max_size=3))),
        inner=draw(sizes),
        counts=draw(sizes),
        codecs=(*inner_first, LITTLE, *inner_last),
        location=draw(st.sampled_from(["start", "end"])),
        checksum=draw(st.booleans()),
        separator=draw(st.sampled_from(["/", "."])),
    )


@hypothesis.settings(suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(made=arrays(), data=st.data(), pipeline=st.booleans())
@hypothesis.example(made=ONLY_TRANSPOSED_DIVIDES, data=None, pipeline=True)
@hypothesis.example(made=THREE, data=None, pipeline=True)
def test_values_go_both_ways(tmp_path: Path, made: Made, data: st.DataObject | None, pipeline: bool) -> None:
    root = tmp_path / "x"
    shutil.rmtree(root, ignore_errors=True)
    expected = written(root, made)
    stored = stored_document(root)
    array = opened(root, pipeline=pipeline)
    assert array.chunks == made.chunk_shape
    np.testing.assert_array_equal(np.asarray(array[...]), expected)
    starts = [0 if data is None else data.draw(st.integers(0, n - 1)) for n in made.shape]
    region = tuple(slice(a, a + (2 if data is None else data.draw(st.integers(1, 9)))) for a in starts)
    expected[region] = expected[region] + 1 if made.shape else 3
    array[region] = expected[region]
    np.testing.assert_array_equal(read_by_tensorstore(root), expected)
    native = read_natively(root, made)
    assert native is None or np.array_equal(native, expected)
    array.attrs["by"] = "shardstore"
    stored_now = stored_document(root)
    assert stored_now == stored | {"attributes": {"by": "shardstore"}}
    assert json.dumps(stored_now["codecs"]) == json.dumps(stored["codecs"])
    check_listed(root, made)


def check_listed(root: Path, made: Made) -> None:
    """Every chunk of a full array is listed once, and found by its key."""
    store = shardstore.open(str(root))
    grid = [-(-n // c) for n, c in zip(made.shape, made.chunk_shape, strict=True)]
    keys = sorted("c" + "".join(made.separator + str(i) for i in coords) for coords in itertools.product(*map(range, grid)))
    assert [key for key in view.keys(store) if key != "zarr.json"] == keys
    assert all(view.exists(store, key) for key in keys)


def test_stored_bytes_are_in_the_transposed_order(tmp_path: Path) -> None:
    """Built by hand: chunk (0, 1) of the array is the second row of slots of a shard that is 2 × 2 chunks."""
    document = ONLY_TRANSPOSED_DIVIDES.metadata | {"shape": [4, 6]}
    (tmp_path / "zarr.json").write_text(json.dumps(document))
    shardstore.get_mapper(str(tmp_path))["c/0/1"] = struct.pack("<6H", *range(6))
    entries = [EMPTY, EMPTY, EMPTY, EMPTY, 0, 12, EMPTY, EMPTY]
    assert (tmp_path / "c/0/0").read_bytes()[: 12 + 64] == struct.pack("<6H8Q", *range(6), *entries)
    # Chunk (0, 1) is rows 0 and 1 of columns 3 to 5, stored column by column.
    expected = np.full((4, 6), 7, "u2")
    expected[:2, 3:] = [[0, 2, 4], [1, 3, 5]]
    np.testing.assert_array_equal(read_by_tensorstore(tmp_path), expected)
    np.testing.assert_array_equal(np.asarray(opened(tmp_path)[...]), expected)


def test_presented_document(tmp_path: Path) -> None:
    written(tmp_path, THREE)
    shown = json.loads(shardstore.get_mapper(str(tmp_path))["zarr.json"])
    assert shown["chunk_grid"]["configuration"]["chunk_shape"] == list(THREE.chunk_shape)
    assert shown["codecs"] == [transpose(2, 0, 1), transpose(1, 0, 2), transpose(1, 2, 0), LITTLE, CHECKSUM]


@pytest.mark.parametrize("made", [ONLY_TRANSPOSED_DIVIDES, THREE], ids=["two dimensions", "three dimensions"])
@pytest.mark.parametrize("strategy", ["rewrite", "append"])
def test_erasing_resizing_and_transactions(tmp_path: Path, made: Made, strategy: StrategyName) -> None:
    if strategy == "append" and made.location == "start":
        pytest.skip("shards with their index at the start are rewritten")
    expected = written(tmp_path, made)
    stored = stored_document(tmp_path)
    store = shardstore.open(str(tmp_path), strategy=strategy)
    array = zarr.open_array(store, mode="r+", config={"write_empty_chunks": False})
    gone = tuple(slice(0, c) for c in made.chunk_shape)
    array[gone] = expected[gone] = 7  # the fill value: the chunk is erased
    first = "c" + made.separator + made.separator.join("0" * len(made.shape))
    assert not view.exists(store, first)
    np.testing.assert_array_equal(read_by_tensorstore(tmp_path), expected)

    with store.transaction():
        array[...] = expected = expected[...] + 5
        np.testing.assert_array_equal(np.asarray(array[...]), expected)
    np.testing.assert_array_equal(read_by_tensorstore(tmp_path), expected)

    smaller = tuple(max(1, n - made.chunk_shape[i]) for i, n in enumerate(made.shape))
    array.resize(smaller)
    assert stored_document(tmp_path) == stored | {"shape": list(smaller)}
    expected = expected[tuple(map(slice, smaller))]
    np.testing.assert_array_equal(read_by_tensorstore(tmp_path), expected)
    grid = [-(-n // c) for n, c in zip(smaller, made.chunk_shape, strict=True)]
    assert len(view.keys(store, "c")) == np.prod(grid), "chunks outside of the shape are erased"
    array.append(expected, axis=1)
    np.testing.assert_array_equal(read_by_tensorstore(tmp_path), np.concatenate([expected, expected], axis=1))
    for key in view.keys(store, "c"):
        view.delete(store, key)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [tmp_path / "zarr.json"]


def test_consolidated_metadata(tmp_path: Path) -> None:
    zarr.create_group(shardstore.open(str(tmp_path)))
    written(tmp_path / "x", ONLY_TRANSPOSED_DIVIDES)
    stored = stored_document(tmp_path / "x")
    store = shardstore.open(str(tmp_path))
    group = zarr.consolidate_metadata(store)
    inside = json.loads((tmp_path / "zarr.json").read_bytes())["consolidated_metadata"]["metadata"]["x"]
    assert (inside["codecs"], inside["chunk_grid"]) == (stored["codecs"], stored["chunk_grid"])
    array = zarr.open_consolidated(store)["x"]
    assert isinstance(array, zarr.Array)
    assert array.chunks == (2, 3)
    group.attrs["note"] = "written again"
    inside = json.loads((tmp_path / "zarr.json").read_bytes())["consolidated_metadata"]["metadata"]["x"]
    assert (inside["codecs"], inside["chunk_grid"]) == (stored["codecs"], stored["chunk_grid"])


def test_a_damaged_document_is_restored_with_its_transposition(tmp_path: Path) -> None:
    expected = written(tmp_path, THREE)
    stored = stored_document(tmp_path)
    store = shardstore.open(str(tmp_path), metadata_ttl=0)
    shown = view.get(store, "zarr.json")
    assert shown is not None
    (tmp_path / "zarr.json").write_bytes(b"{")
    with pytest.raises(Corruption):
        view.put(store, "c.0.0.0", b"x" * 16)
    view.put(store, "zarr.json", shown)
    assert stored_document(tmp_path) == stored
    np.testing.assert_array_equal(read_by_tensorstore(tmp_path), expected)


# -- layouts ---------------------------------------------------------------------------------------------------------------


def parsed(codecs_before: list[Any], **changes: Any) -> ArrayLayout | str:
    metadata = ONLY_TRANSPOSED_DIVIDES.metadata | changes
    return parse_layout(metadata | {"codecs": [*codecs_before, metadata["codecs"][-1]]})


def test_orders_by_letters_of_older_drafts() -> None:
    by_list, by_letter = parsed([transpose(1, 0)]), parsed([{"name": "transpose", "configuration": {"order": "F"}}])
    assert by_list == by_letter
    assert isinstance(by_list, ArrayLayout)
    assert by_list.chunk_shape == (2, 3)


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ([], "does not divide the shard shape"),
        ([transpose(0, 1)], "does not divide the shard shape"),
        ([transpose(1, 0), transpose(1, 0)], "does not divide the shard shape"),
        ([transpose(1, 1)], "no order of 2 dimensions"),
        ([transpose(1, 0, 2)], "no order of 2 dimensions"),
        (["transpose"], "no order of 2 dimensions"),
        ([transpose(1, 0), {"name": "numcodecs.delta", "configuration": {"dtype": "<u2"}}], "another codec wraps or precedes"),
        ([{"name": "numcodecs.delta", "configuration": {"dtype": "<u2"}}, transpose(1, 0)], "another codec wraps or precedes"),
    ],
)
def test_what_passes_through_whole(before: list[Any], reason: str) -> None:
    layout = parsed(before)
    assert isinstance(layout, str)
    assert reason in layout


def test_a_transposition_that_changes_nothing_leaves_the_layout_as_it_is() -> None:
    changes = {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [6, 4]}}}
    assert parsed([transpose(0, 1)], **changes) == parsed([transpose(1, 0), transpose(1, 0)], **changes) == parsed([], **changes)


# -- maintenance -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[ONLY_TRANSPOSED_DIVIDES, THREE], ids=["two dimensions", "three dimensions"])
def made(request: pytest.FixtureRequest) -> Made:
    chosen = request.param
    assert isinstance(chosen, Made)
    return chosen


def test_commands_look_into_it(tmp_path: Path, made: Made) -> None:
    source, census = str(tmp_path / "x"), str(tmp_path / "census")
    expected = written(tmp_path / "x", made)
    told = succeed("info", source, "--json").json
    (array,) = told["arrays"]
    assert array["presented"]["chunk_shape"] == list(made.chunk_shape)
    assert array["stored"]["shape"] == list(made.shard_shape)
    named = [codec.partition("(")[0] for codec in array["stored"]["codecs"]]
    assert named == [*["transpose"] * len(made.orders), "sharding_indexed"]
    assert array["usage"]["chunks"] == array["usage"]["possible_chunks"]
    assert array["usage"]["chunks_outside"] == array["usage"]["dead_nbytes"] == 0
    assert ", behind transpose(order=[" in " ".join(succeed("info", source).out.split())
    succeed("verify", source, "--deep")
    succeed("census", source, "--output", census)
    succeed("verify", source, "--census", census)
    expected[...] = expected + 1
    opened(tmp_path / "x", strategy="append" if made.location == "end" else "rewrite")[...] = expected
    succeed("compact", source, "--dead-ratio", "0")
    np.testing.assert_array_equal(read_by_tensorstore(tmp_path / "x"), expected)


@pytest.mark.parametrize("how", ["pack", "reshard", "unpack"])
def test_moved_into_other_shards(tmp_path: Path, made: Made, how: str) -> None:
    """The target's shards are not transposed: its chunks are, one by one, which are the same bytes."""
    expected = written(tmp_path / "x", made)
    source, target = str(tmp_path / "x"), str(tmp_path / "y")
    if how == "unpack":
        shardstore.unpack(source, target)
    else:
        getattr(shardstore, how)(source, target, chunks_per_shard=(2,) * len(made.shape))
    assert stored_document(tmp_path / "y")["codecs"][0]["name"] == ("transpose" if how == "unpack" else "sharding_indexed")
    np.testing.assert_array_equal(read_by_tensorstore(tmp_path / "y"), expected)
    before, after = shardstore.get_mapper(source), shardstore.get_mapper(target)
    keys = sorted(key for key in before if key != "zarr.json")
    assert sorted(key for key in after if key != "zarr.json") == keys
    assert before.getitems(keys) == after.getitems(keys)


@pytest.mark.parametrize("order", ["by tensorstore", "C", "F", "morton"])
def test_a_lost_index_is_made_anew(tmp_path: Path, order: Any) -> None:
    """All chunks of a shard are there, of one size: the order in which they lie is told by what is left of the index."""
    made = Made((4, 6), ((1, 0),), (3, 2), (2, 2))
    expected = written(tmp_path, made)
    if order != "by tensorstore":
        expected += 1
        opened(tmp_path, chunk_order=order)[...] = expected
    shard = tmp_path / "c/0/0"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 0xFF
    data[-2] ^= 0xFF
    data[-20] ^= 0xFF
    shard.write_bytes(data)
    with pytest.raises(Corruption):
        opened(tmp_path)[...]
    outcome = run("repair", str(tmp_path), "--yes", "--json")
    (finding,) = outcome.json["findings"]["shards"]
    assert (outcome.code, finding["lost"]["count"]) == (5, 0)
    assert finding["uncertain"]["count"] == finding["kept"]  # only the order tells their places
    np.testing.assert_array_equal(read_by_tensorstore(tmp_path), expected)


def test_the_view_of_zarr_v2(tmp_path: Path) -> None:
    """Order F is what Zarr v2 calls the reversal of all dimensions."""
    expected = written(tmp_path, ONLY_TRANSPOSED_DIVIDES)
    array = zarr.open_array(shardstore.open(str(tmp_path), present="v2"), mode="r+", zarr_format=2)
    assert array.chunks == (2, 3)
    assert array.order == "F"
    np.testing.assert_array_equal(np.asarray(array[...]), expected)
    array[3:5] = expected[3:5] = 1
    np.testing.assert_array_equal(read_by_tensorstore(tmp_path), expected)


def test_a_document_that_means_other_chunks_is_refused(tmp_path: Path) -> None:
    written(tmp_path, ONLY_TRANSPOSED_DIVIDES)
    store = shardstore.open(str(tmp_path))
    shown = json.loads(view.get(store, "zarr.json") or b"")
    with pytest.raises(InvalidInput, match="cannot change while it has chunks"):
        view.put(store, "zarr.json", json.dumps(shown | {"codecs": shown["codecs"][1:]}).encode())
