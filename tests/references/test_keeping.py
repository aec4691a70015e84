"""Sets over time: checked, updated, converted and combined; and read while shards are rewritten."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any, Literal

import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.reference import LazyReferenceMapper
from hypothesis import given
from hypothesis import strategies as st

import shardstore
from shardstore import references
from shardstore.errors import Conflict, Corruption, InvalidInput, NotFound, StorageError
from shardstore.format.references.pins import SetDigest, decode_pins, encode_pins
from shardstore.opening.open import open_storage
from shardstore.references import writing
from shardstore.testing.trace import TraceStorage
from tests.golden import FIXTURES
from tests.references.reading import by_fsspec

pytestmark = [pytest.mark.filterwarnings("ignore")]  # of pandas, about fastparquet

FORMS: dict[str, dict[str, Any]] = {"json": {}, "parquet": {"record_size": 7}}


def store_at(root: Path, values: Any, name: str = "x", **options: Any) -> zarr.Array[Any]:
    """A sharded array of 4 × 3 chunks a shard."""
    store = shardstore.open(root, chunks_per_shard=(4, 3))
    array = zarr.create_array(store, name=name, shape=values.shape, chunks=(2, 2), dtype=values.dtype, fill_value=0, **options)
    array[...] = values
    return array


def ours(target: Path, path: str = "x", zarr_format: Literal[2, 3] = 2) -> Any:
    return np.asarray(zarr.open_array(shardstore.open(f"reference::{target}"), path=path, mode="r", zarr_format=zarr_format)[...])


@pytest.mark.parametrize("form", FORMS)
def test_update_reads_only_the_indices_of_changed_shards(form: str, tmp_path: Path) -> None:
    values = np.arange(1, 32 * 24 + 1, dtype="i4").reshape(32, 24)
    array = store_at(tmp_path / "a.zarr", values)
    getattr(references, f"write_{form}")(tmp_path / "a.zarr", tmp_path / "set", **FORMS[form])
    array[0, 0] = -1
    array[24:32, 12:18] = 0  # erases a shard
    trace = TraceStorage(open_storage(tmp_path / "a.zarr"))
    report = references.update(tmp_path / "set", trace)
    events = [event for event in trace.events if "/c/" in event.key and not event.key.endswith("zarr.json")]
    assert [(event.op, event.key) for event in events] == [("read", "x/c/0/0")]
    assert [event.op for event in trace.events].count("list") == 1
    assert (report.index_requests, report.targets) == (1, 15)
    assert references.check(tmp_path / "set", indices=True).is_sound
    np.testing.assert_array_equal(ours(tmp_path / "set"), array[...])
    np.testing.assert_array_equal(by_fsspec(tmp_path / "set", "x", 2), array[...])


def stored(target: Path) -> dict[str, bytes]:
    """Return the files of a set by name, without what tells it from others of the same content."""
    if target.is_file():
        return {name: target.with_name(target.name + name).read_bytes() for name in ("", ".pins")}
    set_id = json.loads((target / ".zmetadata").read_bytes())["shardstore"]["set"].encode()
    return {str(path.relative_to(target)): path.read_bytes().replace(set_id, b"") for path in target.rglob("*") if path.is_file()}


@pytest.mark.parametrize("form", FORMS)
def test_update_after_a_resize_and_of_new_arrays(form: str, tmp_path: Path) -> None:
    array = store_at(tmp_path / "a.zarr", np.arange(1, 65, dtype="i4").reshape(8, 8))
    options = FORMS[form] | {"inline_nbytes": 20}
    getattr(references, f"write_{form}")(tmp_path / "a.zarr", tmp_path / "set", **options)
    array.resize((20, 8))
    array[8:] = 7
    store_at(tmp_path / "a.zarr", np.ones((4, 4), dtype="u1"), "y")
    references.update(tmp_path / "set")
    getattr(references, f"write_{form}")(tmp_path / "a.zarr", tmp_path / "fresh", **options)
    assert stored(tmp_path / "set") == stored(tmp_path / "fresh")
    np.testing.assert_array_equal(ours(tmp_path / "set"), array[...])


@pytest.mark.gate
@given(data=st.data())
def test_an_updated_set_is_a_fresh_one(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("updated")
    form = data.draw(st.sampled_from(sorted(FORMS)))
    options = FORMS[form] | {"inline_nbytes": data.draw(st.sampled_from([0, 17, 1000]))}
    array = store_at(root / "a.zarr", data.draw(st.integers(0, 3)) * np.arange(16 * 13, dtype="i4").reshape(16, 13))
    write = getattr(references, f"write_{form}")
    write(root / "a.zarr", root / "set", **options)
    for _ in range(data.draw(st.integers(1, 3))):
        y, x = data.draw(st.integers(0, 15)), data.draw(st.integers(0, 12))
        array[y : y + data.draw(st.integers(1, 9)), x : x + data.draw(st.integers(1, 7))] = data.draw(st.integers(0, 5))
    references.update(root / "set")
    write(root / "a.zarr", root / "fresh", **options)
    assert references.check(root / "set", indices=True).is_sound
    assert stored(root / "set") == stored(root / "fresh")
    np.testing.assert_array_equal(ours(root / "set"), array[...])


def test_deep_check_finds_wrong_references(tmp_path: Path) -> None:
    store_at(tmp_path / "a.zarr", np.arange(1, 65, dtype="i4").reshape(8, 8))
    references.write_json(tmp_path / "a.zarr", tmp_path / "set")
    (section,) = decode_pins((tmp_path / "set.pins").read_bytes())
    document = json.loads((tmp_path / "set").read_text())
    document["refs"]["x/1.1"][1] += 1
    del document["refs"]["x/0.2"]
    text = json.dumps(document).encode()
    (tmp_path / "set").write_bytes(text)
    (tmp_path / "set.pins").write_bytes(encode_pins(section.origin, SetDigest(0, 0).extended(text), section.objects.values()))
    report = references.check(tmp_path / "set", indices=True)
    assert (report.changed, report.gone, report.wrong) == ((), (), ("x 2", "x 5"))


@pytest.mark.parametrize("form", FORMS)
def test_references_into_a_rewritten_shard_are_a_conflict_and_never_other_bytes(form: str, tmp_path: Path) -> None:
    values = np.arange(1, 65, dtype="i4").reshape(8, 8)
    array = store_at(tmp_path / "a.zarr", values, compressors=None)
    getattr(references, f"write_{form}")(tmp_path / "a.zarr", tmp_path / "set", **FORMS[form])
    opened = zarr.open_array(shardstore.open(f"reference::{tmp_path / 'set'}"), path="x", mode="r", zarr_format=2)
    assert opened[0, 0] == 1
    array[0:2, 0:2] = 99
    with pytest.raises(Conflict, match=r"x/c/0/0.*refs update"):
        opened[0, 0]
    assert opened[0, 7] == 8
    with pytest.raises(Conflict, match="refs update"):
        ours(tmp_path / "set")
    again = shardstore.open(f"reference::{tmp_path / 'set'}", storage_options={"pins": False})
    assert zarr.open_array(again, path="x", mode="r", zarr_format=2).shape == (8, 8)
    references.update(tmp_path / "set")
    np.testing.assert_array_equal(ours(tmp_path / "set"), array[...])


@pytest.mark.parametrize("flavour", ["v2", "v3", "dual"])
def test_sets_are_converted(flavour: Any, tmp_path: Path) -> None:
    values = np.arange(1, 65, dtype="i4").reshape(8, 8)
    values[2:4, 4:6] = 0  # a chunk that is missing
    store_at(tmp_path / "a.zarr", values, "g/x")
    references.write_json(tmp_path / "a.zarr", tmp_path / "one.json", inline_nbytes=30)
    references.write_json(f"reference::{tmp_path}/one.json", tmp_path / "two.json", flavour=flavour)
    for zarr_format in (2, 3):
        if flavour in (f"v{zarr_format}", "dual"):
            np.testing.assert_array_equal(by_fsspec(tmp_path / "two.json", "g/x", zarr_format), values)
    if flavour != "v3":
        report = references.write_parquet(f"reference::{tmp_path}/two.json", tmp_path / "three", flavour=flavour, record_size=5)
        np.testing.assert_array_equal(by_fsspec(tmp_path / "three", "g/x", 2), values)
        assert (report.references, report.missing) == (15, 1)
        back = references.write_json(f"reference::{tmp_path}/three", tmp_path / "back.json", flavour=flavour)
        assert back.references == 15
        mine, theirs = (json.loads((tmp_path / name).read_text())["refs"] for name in ("two.json", "back.json"))
        assert mine == theirs


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("axis", [0, 1])
def test_sets_are_combined_along_a_dimension(axis: int, form: Any, tmp_path: Path) -> None:
    values = np.arange(1, 16 * 16 + 1, dtype="i4").reshape(16, 16)
    sets = []
    for n, part in enumerate(np.split(values, [6], axis)):
        store_at(tmp_path / f"{n}.zarr", part, dimension_names=["t", "s"])
        references.write_json(tmp_path / f"{n}.zarr", tmp_path / f"{n}.json")
        sets.append(f"{tmp_path}/{n}.json")
    report = references.combine(sets, tmp_path / "both", dim="ts"[axis], format=form)
    assert report.references == 64
    np.testing.assert_array_equal(by_fsspec(tmp_path / "both", "x", 2), values)
    np.testing.assert_array_equal(ours(tmp_path / "both"), values)


def test_combining_puts_other_arrays_side_by_side_and_keeps_equal_ones(tmp_path: Path) -> None:
    shared = np.arange(1, 17, dtype="i4").reshape(4, 4)
    for name in ("p", "q"):
        store_at(tmp_path / f"{name}.zarr", shared + ord(name), name)
        zarr.create_array(
            shardstore.open(tmp_path / f"{name}.zarr", chunks_per_shard=None), name="same", shape=(4,), chunks=(2,), dtype="i2"
        )[...] = 3
        references.write_json(tmp_path / f"{name}.zarr", tmp_path / f"{name}.json", paths={"same": {"inline_nbytes": 1000}})
    references.combine([tmp_path / "p.json", tmp_path / "q.json"], tmp_path / "both")
    for name in ("p", "q"):
        np.testing.assert_array_equal(by_fsspec(tmp_path / "both", name, 2), shared + ord(name))
    np.testing.assert_array_equal(by_fsspec(tmp_path / "both", "same", 2), [3] * 4)


def test_what_does_not_fit_together_is_refused_with_the_name_of_who_does_it(tmp_path: Path) -> None:
    def written(name: str, values: Any, **options: Any) -> str:
        store_at(tmp_path / f"{name}.zarr", values, dimension_names=["t", "s"], **options)
        references.write_json(tmp_path / f"{name}.zarr", tmp_path / f"{name}.json")
        return f"{tmp_path}/{name}.json"

    first = written("first", np.ones((4, 4), "i4"))
    cases = {
        "does not end with a whole chunk": [written("odd", np.ones((3, 4), "i4")), first],
        "another shape across": [first, written("wide", np.ones((4, 6), "i4"))],
        "data type": [first, written("type", np.ones((4, 4), "i8"))],
        "codecs or fill": [first, written("codec", np.ones((4, 4), "i4"), compressors=None)],
    }
    for message, sets in cases.items():
        with pytest.raises(InvalidInput, match=f"{message}.*VirtualiZarr"):
            references.combine(sets, tmp_path / "both.json", dim="t", format="json")
    with pytest.raises(InvalidInput, match="names no dimension"):
        references.combine([first, written("other", np.zeros((4, 4), "i4") + 2)], tmp_path / "both.json", format="json")
    assert not (tmp_path / "both.json").exists()


def test_describe(tmp_path: Path) -> None:
    store_at(tmp_path / "a.zarr", np.ones((8, 8), "i4"))
    references.write_parquet(tmp_path / "a.zarr", tmp_path / "set", flavour="dual")
    found = references.describe(tmp_path / "set")
    assert (found.format, dict(found.arrays), found.objects) == ("parquet", {"x": (4, 4)}, 2)
    references.write_json(tmp_path / "a.zarr", tmp_path / "set.json", pins=False)
    assert references.describe(tmp_path / "set.json").store is None


@pytest.mark.parametrize("form", FORMS)
def test_sets_made_of_sets_stay_pinned(form: Any, tmp_path: Path) -> None:
    arrays, sets = [], []
    for name in ("p", "q"):
        arrays.append(store_at(tmp_path / f"{name}.zarr", np.arange(1, 65, dtype="i4").reshape(8, 8), name))
        references.write_parquet(tmp_path / f"{name}.zarr", tmp_path / f"{name}.refs")
        sets.append(tmp_path / f"{name}.refs")
    references.combine(sets, tmp_path / "both", format=form)
    assert references.check(tmp_path / "both").objects == 4
    with pytest.raises(InvalidInput, match="store="):
        references.pins(tmp_path / "both")
    held = references.pins(tmp_path / "both", store=tmp_path / "q.zarr")
    (tmp_path / "link").symlink_to(tmp_path / "q.zarr")
    assert references.pins(tmp_path / "both", store=tmp_path / "link") == held
    assert [pin.key for pin in held] == ["q/c/0/0", "q/c/0/1"]
    assert held == references.pins(tmp_path / "q.refs")
    arrays[1][0, 0] = 99
    assert references.check(tmp_path / "both").changed == (f"file://{tmp_path}/q.zarr/q/c/0/0",)
    ours(tmp_path / "both", "p")
    with pytest.raises(Conflict, match="q/c/0/0"):
        ours(tmp_path / "both", "q")
    with pytest.raises(InvalidInput, match="make it of them again"):
        references.update(tmp_path / "both")


def test_references_of_the_2022_draft_are_pinned(tmp_path: Path) -> None:
    root = tmp_path / "draft"
    shutil.copytree(FIXTURES / "transformer2022/t1d_raw/store", root)
    references.write_json(root, tmp_path / "set")
    path = next(p.name.removesuffix(".array.json") for p in (root / "meta/root").glob("*.array.json"))
    ours(tmp_path / "set", path)
    for shard in (root / "data/root" / path).iterdir():
        data = bytearray(shard.read_bytes())
        data[0] ^= 255
        shard.unlink()
        shard.write_bytes(data)
    with pytest.raises(Conflict):
        ours(tmp_path / "set", path)


@pytest.mark.parametrize("form", FORMS)
def test_a_store_that_moved_has_its_new_urls_after_an_update(form: str, tmp_path: Path) -> None:
    values = np.arange(1, 65, dtype="i4").reshape(8, 8)
    store_at(tmp_path / "a.zarr", values)
    getattr(references, f"write_{form}")(tmp_path / "a.zarr", tmp_path / "set", **FORMS[form])
    (tmp_path / "a.zarr").rename(tmp_path / "b.zarr")
    assert references.update(tmp_path / "set", tmp_path / "b.zarr").index_requests == 0
    np.testing.assert_array_equal(ours(tmp_path / "set"), values)
    references.write_json(tmp_path / "b.zarr", tmp_path / "rel.json", urls="relative")
    (tmp_path / "sub").mkdir()
    references.update(tmp_path / "rel.json", output=tmp_path / "sub/rel.json")
    np.testing.assert_array_equal(ours(tmp_path / "sub/rel.json"), values)
    for name, source in (("one", "rel.json"), ("two", "sub/rel.json")):
        report = getattr(references, f"write_{form}")(f"reference::{tmp_path}/{source}", tmp_path / f"sub/deep/{name}")
        assert report.is_pinned
        np.testing.assert_array_equal(ours(tmp_path / f"sub/deep/{name}"), values)
        np.testing.assert_array_equal(by_fsspec(tmp_path / f"sub/deep/{name}", "x", 2), values)


def test_sets_of_two_versions_of_an_object_are_not_combined(tmp_path: Path) -> None:
    array = store_at(tmp_path / "a.zarr", np.arange(1, 65, dtype="i4").reshape(8, 8), dimension_names=["y", "x"])
    for name in ("one.json", "two.json"):
        references.write_json(tmp_path / "a.zarr", tmp_path / name)
        array[0, 0] = 99
    with pytest.raises(InvalidInput, match="two versions"):
        references.combine([tmp_path / "one.json", tmp_path / "two.json"], tmp_path / "both.json", dim="y")
    references.update(tmp_path / "two.json")
    references.write_json(tmp_path / "a.zarr", tmp_path / "free.json", pins=False)
    report = references.combine([tmp_path / "two.json", tmp_path / "free.json"], tmp_path / "both.json", dim="y")
    assert report.is_pinned == (report.references == 0)


def test_a_set_in_parquet_that_was_replaced_while_it_is_open_is_a_conflict(tmp_path: Path) -> None:
    array = store_at(tmp_path / "a.zarr", np.arange(1, 65, dtype="i4").reshape(8, 8))
    references.write_parquet(tmp_path / "a.zarr", tmp_path / "set", record_size=5)
    opened = zarr.open_array(shardstore.open(f"reference::{tmp_path / 'set'}"), path="x", mode="r", zarr_format=2)
    array.resize((8, 16))
    array[:, 8:] = 7
    references.update(tmp_path / "set")
    with pytest.raises(Conflict, match="open it again"):
        opened[...]
    np.testing.assert_array_equal(ours(tmp_path / "set"), array[...])


def test_other_peoples_files_stay_and_bad_names_change_nothing(tmp_path: Path) -> None:
    store_at(tmp_path / "a.zarr", np.ones((4, 4), "i4"))
    (tmp_path / "set.json.pins").write_text("mine")
    with pytest.raises(InvalidInput, match="not what belongs to a set"):
        references.write_json(tmp_path / "a.zarr", tmp_path / "set.json")
    assert (tmp_path / "set.json.pins").read_text() == "mine"
    references.write_parquet(tmp_path / "a.zarr", tmp_path / "refs")
    before = (tmp_path / "refs/.zmetadata").read_bytes()
    with pytest.raises(InvalidInput):
        references.write_parquet(tmp_path / "a.zarr/x", tmp_path / "refs", root_as="../x", overwrite=True)
    assert (tmp_path / "refs/.zmetadata").read_bytes() == before


@pytest.mark.gate
def test_sets_on_s3_with_options(s3_url: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    url, options = s3_url
    store = shardstore.open(f"{url}/a.zarr", storage_options=options, chunks_per_shard=(4, 3))
    values = np.arange(1, 65, dtype="i4").reshape(8, 8)
    array = zarr.create_array(store, name="x", shape=(8, 8), chunks=(2, 2), dtype="i4")
    array[...] = values
    for target in (f"{url}/set", f"{url}/set.json", str(tmp_path / "set.json")):
        write = references.write_json if target.endswith("json") else references.write_parquet
        write(f"{url}/a.zarr", target, storage_options=options, overwrite=True)
        array[0, 0] = array[0, 0] + 1  # type: ignore[operator]  # an element of the array is a number
        assert references.check(target, storage_options=options).changed == ("x/c/0/0",)
        assert references.update(target, storage_options=options).index_requests == 1
        assert references.check(target, indices=True, storage_options=options).is_sound
    assert references.describe(f"{url}/set", target_options=options).objects == 2
    report = references.combine([f"{url}/set", f"{url}/set"], f"{url}/both.json", storage_options=options)
    assert report.references == 16


def test_missing_chunks_that_are_filled_are_neither_wrong_nor_reused(tmp_path: Path) -> None:
    array = store_at(tmp_path / "a.zarr", np.arange(64, dtype="i4").reshape(8, 8))
    array[4:] = 0
    references.write_parquet(tmp_path / "a.zarr", tmp_path / "set", missing="fill")
    assert references.check(tmp_path / "set", indices=True).is_sound
    document = json.loads((tmp_path / "a.zarr/x/zarr.json").read_text()) | {"fill_value": 77}
    (tmp_path / "a.zarr/x/zarr.json").write_text(json.dumps(document))
    references.update(tmp_path / "set")
    assert (ours(tmp_path / "set")[4:] == 77).all()
    assert references.check(tmp_path / "set", indices=True).is_sound


def test_an_update_leaves_damaged_shards_out_as_the_set_did(tmp_path: Path) -> None:
    array = store_at(tmp_path / "a.zarr", np.arange(1, 65, dtype="i4").reshape(8, 8))
    (tmp_path / "a.zarr/x/c/0/1").write_bytes(b"damaged")
    references.write_json(tmp_path / "a.zarr", tmp_path / "set", on_error="skip")
    array[0, 0] = 9
    assert list(references.update(tmp_path / "set").left_out) == ["x/c/0/1"]
    assert references.check(tmp_path / "set", indices=True).is_sound


def test_pins_for_another_store_are_an_error_not_none(tmp_path: Path) -> None:
    store_at(tmp_path / "a.zarr", np.ones((4, 4), "i4"))
    references.write_json(tmp_path / "a.zarr", tmp_path / "one.json")
    references.write_json(f"reference::{tmp_path}/one.json", tmp_path / "two.json")
    with pytest.raises(InvalidInput, match="refers to nothing in"):
        references.pins(tmp_path / "two.json", store=tmp_path / "b.zarr")


@pytest.mark.parametrize("form", FORMS)
def test_a_set_that_others_wrote_and_that_was_replaced_while_it_is_open_is_a_conflict(form: str, tmp_path: Path) -> None:
    values = np.arange(1, 65, dtype="i4").reshape(8, 8)
    store_at(tmp_path / "a.zarr", values)
    store_at(tmp_path / "b.zarr", values[::-1].copy())
    references.write_parquet(tmp_path / "a.zarr", tmp_path / "set", record_size=7)
    if form == "parquet":  # as fsspec leaves it when it adds to a set: without the names
        document = json.loads((tmp_path / "set/.zmetadata").read_bytes())
        del document["shardstore"]
    else:  # as fsspec makes it
        refs = LazyReferenceMapper(str(tmp_path / "set"), fs=fsspec.filesystem("file"))
        target = LazyReferenceMapper.create(str(tmp_path / "theirs"), fs=fsspec.filesystem("file"), record_size=7)
        for key in refs:
            target[key] = refs[key]
        target.flush()
        shutil.rmtree(tmp_path / "set")
        (tmp_path / "theirs").rename(tmp_path / "set")
        document = json.loads((tmp_path / "set/.zmetadata").read_bytes())
    (tmp_path / "set/.zmetadata").write_text(json.dumps(document))
    np.testing.assert_array_equal(ours(tmp_path / "set"), values)
    opened = zarr.open_array(shardstore.open(f"reference::{tmp_path / 'set'}"), path="x", mode="r", zarr_format=2)
    assert opened[0, 0] == 1
    references.write_parquet(tmp_path / "b.zarr", tmp_path / "set", record_size=7, overwrite=True)
    with pytest.raises(Conflict, match="belongs to another set"):
        opened[7, 7]
    np.testing.assert_array_equal(ours(tmp_path / "set"), values[::-1])


def test_pins_of_a_set_of_a_group_hold_in_the_whole_store(tmp_path: Path) -> None:
    values = np.arange(1, 65, dtype="i4").reshape(8, 8)
    for path in ("x", "sub/x"):
        store_at(tmp_path / "a.zarr", values, path)
    store_at(tmp_path / "c.zarr", values)
    references.write_json(tmp_path / "a.zarr/sub", tmp_path / "sub.json")
    references.write_json(tmp_path / "a.zarr", tmp_path / "all.json", urls="relative")
    of_sub = [pin.key for pin in references.pins(tmp_path / "sub.json")]
    assert of_sub == ["x/c/0/0", "x/c/0/1"]
    assert [pin.key for pin in references.pins(tmp_path / "sub.json", store=tmp_path / "a.zarr")] == [f"sub/{key}" for key in of_sub]
    assert [pin.key for pin in references.pins(tmp_path / "all.json", store=tmp_path / "a.zarr/sub")] == of_sub
    assert len(references.pins(tmp_path / "all.json", store=tmp_path / "a.zarr")) == 4
    with pytest.raises(InvalidInput, match="refers to nothing in"):
        references.pins(tmp_path / "sub.json", store=tmp_path / "c.zarr")


def test_a_relative_set_that_moved_with_its_store_is_of_the_store_beside_it(tmp_path: Path) -> None:
    values = np.arange(1, 65, dtype="i4").reshape(8, 8)
    (tmp_path / "one").mkdir()
    store_at(tmp_path / "one/a.zarr", values)
    for form in FORMS:
        getattr(references, f"write_{form}")(tmp_path / "one/a.zarr", tmp_path / f"one/{form}", urls="relative")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    zarr.open_array(shardstore.open(tmp_path / "two/a.zarr"), path="x")[0, 0] = 99
    for form in FORMS:
        report = references.check(tmp_path / "two" / form)
        assert (report.store, report.changed) == (f"file://{tmp_path}/two/a.zarr", ("x/c/0/0", "x/c/0/1"))  # copies are other files
        references.update(tmp_path / "two" / form)
        assert references.check(tmp_path / "two" / form, indices=True).is_sound
        assert ours(tmp_path / "two" / form)[0, 0] == 99
        np.testing.assert_array_equal(ours(tmp_path / "one" / form), values)


@pytest.mark.parametrize("form", FORMS)
def test_check_tells_of_what_is_new_and_of_other_documents_and_files(form: str, tmp_path: Path) -> None:
    array = store_at(tmp_path / "a.zarr", np.arange(1, 65, dtype="i4").reshape(8, 8))
    store_at(tmp_path / "a.zarr", np.ones((4, 4), dtype="u1"), "y")
    getattr(references, f"write_{form}")(tmp_path / "a.zarr", tmp_path / "set", paths={"y": "chunks"}, **FORMS[form])
    array.resize((20, 8))
    array[8:] = 7
    report = references.check(tmp_path / "set")
    assert (report.new, report.changed, report.is_sound) == (("x/c/1/0", "x/c/1/1", "x/c/2/0", "x/c/2/1"), (), False)
    updated = references.update(tmp_path / "set")
    assert updated.index_requests == 4  # those that were there are not read again
    np.testing.assert_array_equal(ours(tmp_path / "set"), array[...])
    assert references.check(tmp_path / "set", indices=True).is_sound
    document = json.loads((tmp_path / "a.zarr/x/zarr.json").read_bytes())
    (tmp_path / "a.zarr/x/zarr.json").write_text(json.dumps(document | {"fill_value": 5}))
    assert references.check(tmp_path / "set").is_sound
    assert references.check(tmp_path / "set", indices=True).wrong == ("x/.zarray (the document)",)
    shutil.rmtree(tmp_path / "a.zarr/y")
    assert references.check(tmp_path / "set", indices=True).gone == ("y/c/0/0",)
    references.update(tmp_path / "set")
    assert references.check(tmp_path / "set", indices=True).is_sound
    if form == "parquet":
        (tmp_path / "set/x/refs.1.parq").unlink()
        assert references.check(tmp_path / "set").wrong == ("x/refs.1.parq (a file of the set)",)


def test_a_set_whose_pins_are_of_another_is_not_sound(tmp_path: Path) -> None:
    array = store_at(tmp_path / "a.zarr", np.arange(1, 65, dtype="i4").reshape(8, 8))
    references.write_json(tmp_path / "a.zarr", tmp_path / "set")
    old = (tmp_path / "set").read_bytes()
    array[0, 0] = 99
    array.append(np.ones((1, 8), "i4"))
    references.update(tmp_path / "set")
    (tmp_path / "set").write_bytes(old)
    for function in (references.check, references.pins, references.update):
        with pytest.raises(Corruption, match="is of another set"):
            function(tmp_path / "set")


def test_an_update_goes_on_where_one_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = store_at(tmp_path / "a.zarr", np.arange(1, 65, dtype="i4").reshape(8, 8))
    references.write_parquet(tmp_path / "a.zarr", tmp_path / "set", record_size=7)

    async def interrupted(*_: Any) -> None:
        raise StorageError("as planned")

    with monkeypatch.context() as patch:
        patch.setattr(writing, "_finish", interrupted)
        with pytest.raises(StorageError, match="as planned"):
            references.update(tmp_path / "set")
    with pytest.raises(NotFound):
        references.check(tmp_path / "set")
    references.update(tmp_path / "set")
    assert references.check(tmp_path / "set", indices=True).is_sound
    np.testing.assert_array_equal(ours(tmp_path / "set"), array[...])


def test_groups_whose_attributes_differ_are_told_of(tmp_path: Path) -> None:
    for name in ("one", "two"):
        store_at(tmp_path / f"{name}.zarr", np.ones((8, 8), "i4"), dimension_names=["y", "x"])
        zarr.open_group(shardstore.open(tmp_path / f"{name}.zarr")).attrs["title"] = name
        references.write_json(tmp_path / f"{name}.zarr", tmp_path / f"{name}.json")
    report = references.combine([tmp_path / "one.json", tmp_path / "two.json"], tmp_path / "both.json", dim="y")
    assert "attributes in" in report.left_out[""]


def test_choices_that_mean_nothing_for_sets_are_refused_and_pins_are_left_out(tmp_path: Path) -> None:
    store_at(tmp_path / "a.zarr", np.arange(1, 65, dtype="i4").reshape(8, 8))
    references.write_json(tmp_path / "a.zarr", tmp_path / "one.json")
    source = f"reference::{tmp_path}/one.json"
    choices: list[dict[str, Any]] = [{"inline_nbytes": 5}, {"paths": {"x": "shards"}}, {"paths": {"x": {"inline_nbytes": 3}}}]
    for choice in choices:
        with pytest.raises(InvalidInput, match="are for hierarchies"):
            references.write_json(source, tmp_path / "two.json", **choice)
    assert not references.write_json(source, tmp_path / "two.json", pins=False).is_pinned
    assert not (tmp_path / "two.json.pins").exists()


@pytest.mark.parametrize("form", FORMS)
def test_sets_of_sets_without_chunks_are_pinned(form: Any, tmp_path: Path) -> None:
    """Nothing that they show can become another, so that there is nothing to write again."""
    for name in ("p", "q"):
        zarr.create_array(shardstore.open(tmp_path / f"{name}.zarr"), name=name, shape=(4,), chunks=(1,), dtype="i2")
        references.write_json(tmp_path / f"{name}.zarr", tmp_path / f"{name}.json", pins=name == "p")
    write = references.write_json if form == "json" else references.write_parquet
    for name in ("p", "q"):
        assert write(f"reference::{tmp_path}/{name}.json", tmp_path / f"{name}2").is_pinned
    assert references.combine([tmp_path / "p2", tmp_path / "q.json"], tmp_path / "both", format=form).is_pinned
    for name in ("p2", "q2", "both"):
        found = references.check(tmp_path / name)
        assert (found.is_sound, found.objects) == (True, 0)


def test_advice_of_a_check_names_the_sets_that_do_not_say_their_versions(tmp_path: Path) -> None:
    store_at(tmp_path / "a.zarr", np.ones((8, 8), "i4"))
    references.write_json(tmp_path / "a.zarr", tmp_path / "one.json", pins=False)
    references.write_json(f"reference::{tmp_path}/one.json", tmp_path / "two.json")
    with pytest.raises(NotFound, match=r"Write it again with pins, .*; of a set that was made of other sets, write these again first"):
        references.check(tmp_path / "two.json")


def test_a_huge_grid_in_a_set_is_refused_where_chunks_have_no_numbers(tmp_path: Path) -> None:
    document = {"zarr_format": 2, "chunks": [1, 1], "dtype": "|u1", "order": "C", "fill_value": 0, "compressor": None, "filters": None}
    (tmp_path / "data").write_bytes(b"abc")
    refs = {"x/.zarray": json.dumps(document | {"shape": [2**40, 2**40]}), "x/0.0": [f"{tmp_path}/data", 0, 1]}
    (tmp_path / "set.json").write_text(json.dumps(refs))
    assert zarr.open_array(shardstore.open(f"reference::{tmp_path}/set.json"), path="x", mode="r")[0, 0] == 97
    with pytest.raises(InvalidInput, match="its grid has more than"):
        references.write_json(f"reference::{tmp_path}/set.json", tmp_path / "two.json")


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_runs_that_write_json_the_second_is_a_conflict(overwrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(1, 65, dtype="i4").reshape(8, 8)
    for name in ("a", "b"):
        store_at(tmp_path / f"{name}.zarr", values)
        values = values[::-1].copy()
    if overwrite:
        references.write_json(tmp_path / "a.zarr", tmp_path / "set.json")
    for moment in ("write_bytes", "write_file"):
        step = getattr(writing, moment)
        entered: list[str] = []

        async def beside(*arguments: Any, step: Any = step, entered: list[str] = entered) -> Any:
            entered.append("")
            if len(entered) == 1:
                await asyncio.to_thread(references.write_json, tmp_path / "b.zarr", tmp_path / "set.json", overwrite=True)
            return await step(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(writing, moment, beside)
            with pytest.raises(Conflict, match="at the same time; that set stays"):
                references.write_json(tmp_path / "a.zarr", tmp_path / "set.json", overwrite=overwrite)
        np.testing.assert_array_equal(ours(tmp_path / "set.json"), values[::-1])
        assert references.check(tmp_path / "set.json", indices=True).is_sound
        if not overwrite:
            for name in ("set.json", "set.json.pins"):
                (tmp_path / name).unlink()


def test_pins_of_somebody_else_are_not_overwritten(tmp_path: Path) -> None:
    store_at(tmp_path / "a.zarr", np.ones((8, 8), "i4"))
    references.write_json(tmp_path / "a.zarr", tmp_path / "set.json")
    (tmp_path / "set.json.pins").write_text("my notes")
    with pytest.raises(InvalidInput, match="is not what belongs to a set"):
        references.write_json(tmp_path / "a.zarr", tmp_path / "set.json", overwrite=True)
    assert (tmp_path / "set.json.pins").read_text() == "my notes"


def test_a_rule_that_fails_costs_no_second_request(tmp_path: Path) -> None:
    values = np.arange(1, 257, dtype="i4").reshape(16, 16)
    array = store_at(tmp_path / "a.zarr", values, compressors=None)
    array[-1, -1] = 0
    report = references.write_json(tmp_path / "a.zarr", tmp_path / "one.json", generators=True)
    assert (report.index_requests, report.targets) == (6, 6)
    whole = zarr.create_array(
        shardstore.open(tmp_path / "b.zarr", chunks_per_shard=(2, 2)),
        name="x",
        shape=(8, 8),
        chunks=(2, 2),
        dtype="i4",
        compressors=None,
        fill_value=-1,
    )
    whole[...] = 7
    report = references.write_json(tmp_path / "b.zarr", tmp_path / "two.json", generators=True)
    assert json.loads((tmp_path / "two.json").read_text())["gen"]
    assert (report.index_requests, report.targets, report.references) == (4, 4, 16)
    np.testing.assert_array_equal(ours(tmp_path / "one.json"), array[...])


def test_braces_are_refused_where_templates_are_written(tmp_path: Path) -> None:
    store_at(tmp_path / "a.zarr", np.ones((8, 8), "i4"), "a{b}")
    with pytest.raises(InvalidInput, match="has a brace"):
        references.write_json(tmp_path / "a.zarr", tmp_path / "set.json", templates=True)
