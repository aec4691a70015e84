"""Arrays that sets have in common: each store has its own copy, which is compared by bytes where the sets refer to different places."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import zarr

import shardstore
from shardstore import references
from shardstore.apps.cli.words import in_own_words
from shardstore.errors import Conflict, Corruption, InvalidInput
from shardstore.references.combining import ComparisonBounds, combined
from shardstore.references.sets import reference_storage, set_source
from tests.references.reading import by_fsspec
from tests.storage.http.http_servers import WebServer

pytestmark = [pytest.mark.filterwarnings("ignore")]  # of pandas, about fastparquet

X = np.arange(12, dtype="i8")


def month(root: Path, name: str, *, x: Any = X, shards: int | None = None, base_url: str | None = None, **given: Any) -> str:
    """Write a store of four times with its own coordinate, in two chunks, and a set of it; return the path of the set."""
    of_x = None if shards is None else (shards,)
    store = shardstore.open(root / f"{name}.zarr", chunks_per_shard={"t": (2, 1), "x": of_x}, fsync=False)
    group = zarr.create_group(store)
    values = np.arange(48, dtype="i4").reshape(4, 12) + sum(map(ord, name))
    group.create_array("t", shape=(4, 12), chunks=(2, 6), dtype="i4", dimension_names=["time", "x"])[:] = values
    axis = group.create_array("x", shape=x.shape, chunks=(6,), dtype=x.dtype, dimension_names=["x"], fill_value=77, compressors=None)
    axis[:] = x
    references.write_json(root / f"{name}.zarr", root / f"{name}.json", base_url=base_url and f"{base_url}/{name}.zarr", **given)
    return str(root / f"{name}.json")


def joined(root: Path, sets: list[str], form: Literal["json", "parquet"] = "json", **given: Any) -> Path:
    references.combine(sets, root / "all", dim="time", format=form, overwrite=True, **given)
    return root / "all"


def values_of(target: Path, path: str) -> Any:
    return np.asarray(zarr.open_array(shardstore.open(f"reference::{target}"), path=path, mode="r", zarr_format=2)[...])


@pytest.fixture
def server() -> Iterator[WebServer]:
    served = WebServer()
    yield served
    served.close()


def serve(server: WebServer, root: Path) -> None:
    server.objects |= {f"/{path.relative_to(root)}": path.read_bytes() for path in root.rglob("*.zarr/**/*") if path.is_file()}


def compare(sets: list[str], bounds: ComparisonBounds) -> None:
    combined([set_source(reference_storage(one, None), lambda path: True) for one in sets], "time", bounds)


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_equal_coordinates_of_different_stores_are_taken_from_the_first(form: Any, tmp_path: Path) -> None:
    sets = [month(tmp_path, name) for name in ("january", "february", "march")]
    target = joined(tmp_path, sets, form)
    wanted = np.concatenate([values_of(Path(one), "t") for one in sets])
    np.testing.assert_array_equal(values_of(target, "t"), wanted)
    np.testing.assert_array_equal(by_fsspec(target, "t", 2), wanted)
    np.testing.assert_array_equal(values_of(target, "x"), X)


def test_the_new_set_is_pinned_to_what_it_refers_to_alone(tmp_path: Path) -> None:
    target = joined(tmp_path, [month(tmp_path, "one"), month(tmp_path, "two")])
    assert len(references.pins(target, store=tmp_path / "one.zarr")) == 2 + 2
    assert {pin.key.split("/")[0] for pin in references.pins(target, store=tmp_path / "two.zarr")} == {"t"}
    for chunk in (tmp_path / "two.zarr/x/c").iterdir():
        chunk.unlink()
    assert references.check(target).is_sound


@pytest.mark.parametrize("x", [X + 1, X[::-1].copy(), np.where(X == 11, 12, X)], ids=["all", "turned", "last"])
def test_coordinates_that_differ_are_refused_and_nothing_is_written(x: Any, tmp_path: Path) -> None:
    sets = [month(tmp_path, "one"), month(tmp_path, "two"), month(tmp_path, "three", x=x)]
    with pytest.raises(
        InvalidInput, match=r"'x' is not the same in \S*one.json and \S*three.json: chunk [01] differs.*'time'.*VirtualiZarr"
    ):
        joined(tmp_path, sets)
    assert not (tmp_path / "all").exists()


def test_a_chunk_that_only_one_store_has_is_a_difference(tmp_path: Path) -> None:
    sets = [month(tmp_path, "one", x=np.where(X < 6, X, 77)), month(tmp_path, "two")]
    with pytest.raises(InvalidInput, match="only one of them has chunk 1"):
        joined(tmp_path, sets)


INLINE = {"paths": {"x": {"inline_nbytes": 1000}}}


@pytest.mark.parametrize(("one", "two"), [(INLINE, {}), ({}, INLINE), (INLINE, INLINE)], ids=["first", "second", "both"])
def test_chunks_inside_of_a_set_are_compared_with_those_outside(one: Any, two: Any, tmp_path: Path) -> None:
    sets = [month(tmp_path, "one", **one), month(tmp_path, "two", **two)]
    np.testing.assert_array_equal(values_of(joined(tmp_path, sets), "x"), X)
    other = month(tmp_path, "other", x=X + 1, **two)
    with pytest.raises(InvalidInput, match="chunk 0 differs"):
        joined(tmp_path, [sets[0], other])


@pytest.mark.parametrize(("shards", "objects"), [(None, 2), (1, 2), (2, 1)])
def test_each_set_is_asked_for_each_object_of_its_coordinate_once(
    shards: int | None, objects: int, server: WebServer, tmp_path: Path
) -> None:
    sets = [month(tmp_path, name, shards=shards, base_url=server.url) for name in ("one", "two", "three")]
    serve(server, tmp_path)
    joined(tmp_path, sets)
    paths = [f"/{name}.zarr/x/c/{number}" for name in ("one", "two", "three") for number in range(objects)]
    assert sorted((asked.method, asked.path) for asked in server.asked) == sorted(("GET", path) for path in paths)


def test_what_the_sets_themselves_say_costs_no_request(server: WebServer, tmp_path: Path) -> None:
    one = month(tmp_path, "one", shards=2, base_url=server.url)
    longer = month(tmp_path, "longer", x=np.append(X, X), shards=2, base_url=server.url)
    sizes = month(tmp_path, "sizes", shards=2, base_url=server.url)
    text = json.loads(Path(sizes).read_text())
    text["refs"]["x/1"][2] -= 1
    Path(sizes).write_text(json.dumps(text))
    for other, why in ((longer, "their documents differ"), (sizes, "chunk 1 differs")):
        with pytest.raises(InvalidInput, match=why):
            joined(tmp_path, [one, other])
    joined(tmp_path, [one, one])
    assert server.asked == []


def test_sets_are_read_at_the_same_time(server: WebServer, tmp_path: Path) -> None:
    sets = [month(tmp_path, name, shards=2, base_url=server.url) for name in ("one", "two", "three")]
    serve(server, tmp_path)
    together = threading.Barrier(3)
    server.before = lambda asked: together.wait(60)  # breaks, and with it the request, unless all three are under way
    joined(tmp_path, sets)
    assert len(server.asked) == 3


@pytest.mark.parametrize("bounds", [ComparisonBounds(nbytes=95), ComparisonBounds(chunks=1)], ids=["bytes", "chunks"])
def test_what_is_too_large_is_refused_unread_and_what_the_error_suggests_works(
    bounds: ComparisonBounds, server: WebServer, tmp_path: Path
) -> None:
    sets = [month(tmp_path, name, shards=2, base_url=server.url) for name in ("one", "two")]
    with pytest.raises(InvalidInput, match=r"'x' .*too large.*inline_nbytes.*'x': None") as refused:
        compare(sets, bounds)
    assert server.asked == []
    compare(sets[:1] * 2, bounds)
    serve(server, tmp_path)
    compare(sets, ComparisonBounds(nbytes=96, chunks=2))
    assert "by --inline BYTES with" in in_own_words(str(refused.value))
    for name, paths in (("one", {"x": {"inline_nbytes": 48}}), ("two", {"x": {"inline_nbytes": 48}}), ("rest", {"x": None})):
        references.write_json(tmp_path / f"{name.replace('rest', 'two')}.zarr", tmp_path / f"{name}.json", paths=paths, overwrite=True)
    compare([str(tmp_path / "one.json"), str(tmp_path / "two.json")], bounds)
    compare([str(tmp_path / "one.json"), str(tmp_path / "rest.json")], bounds)


def test_whole_objects_are_compared_and_no_more_than_the_bound_is_read_of_them(server: WebServer, tmp_path: Path) -> None:
    sets = [month(tmp_path, name, base_url=server.url) for name in ("one", "two")]
    serve(server, tmp_path)
    server.objects["/two.zarr/x/c/0"] += bytes(1000)
    with pytest.raises(InvalidInput, match="too large"):
        compare(sets, ComparisonBounds(nbytes=1048 + 47))
    assert sorted(asked.range or "" for asked in server.asked if "two" in asked.path) == ["bytes=0-547", "bytes=0-547"]
    server.asked.clear()
    with pytest.raises(InvalidInput, match="chunk 0 differs"):
        compare(sets, ComparisonBounds(nbytes=1048 + 48))
    assert len([asked for asked in server.asked if "two" in asked.path]) == 3
    server.objects["/one.zarr/x/c/0"] += bytes(1000)
    compare(sets, ComparisonBounds(nbytes=1048 + 48))


def test_an_object_that_has_changed_since_its_set_was_made_is_a_conflict(tmp_path: Path) -> None:
    sets = [month(tmp_path, "one"), month(tmp_path, "two")]
    zarr.open_array(shardstore.open(tmp_path / "two.zarr"), path="x")[:] = X[::-1]
    with pytest.raises(Conflict, match=r"two.zarr/x/c/0 has changed.*refs update"):
        joined(tmp_path, sets)
    references.update(sets[1])
    with pytest.raises(InvalidInput, match="chunk 0 differs"):
        joined(tmp_path, sets)


def test_a_reference_behind_the_end_of_its_object_is_an_error_and_not_a_difference(tmp_path: Path) -> None:
    sets = [month(tmp_path, "one", shards=2, pins=False), month(tmp_path, "two", shards=2, pins=False)]
    (tmp_path / "two.zarr/x/c/0").write_bytes(bytes(50))
    with pytest.raises(Corruption, match=r"two.json refers for 'x/1'"):
        joined(tmp_path, sets)
    assert not (tmp_path / "all").exists()
