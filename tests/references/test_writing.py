"""Sets that are written: other programs read from them what the source holds."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any, Literal

import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.reference import LazyReferenceMapper

import shardstore
from shardstore import references
from shardstore.errors import Conflict, Corruption, InvalidInput, NotFound
from shardstore.format.references.parquet import decode_metadata, decode_rows, record_name
from shardstore.format.references.pins import decode_pins
from shardstore.opening.open import open_storage
from shardstore.references import writing
from shardstore.references.writing_parquet import RecordWriter
from shardstore.testing.trace import TraceStorage
from tests.documents import array_v2
from tests.golden import golden_cases
from tests.maintenance.packing.sources import cases, expected
from tests.references.reading import by_fsspec

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of pandas, about fastparquet, and of zarr, about types without a specification
]

VALUES = np.arange(24 * 21, dtype="i4").reshape(24, 21)
GOLDEN = golden_cases()
DRAFTS = cases("transformer2022")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hierarchy with names that look like something else, chunks that are missing, and one without elements."""
    root = tmp_path_factory.mktemp("source") / "a #?% store.zarr"
    store = shardstore.open(root, chunks_per_shard={"*ct": (2, 3), "full": (2, 2), "*": None})
    group = zarr.create_group(store)
    ct = group.create_array("g/c/ct", shape=VALUES.shape, chunks=(3, 4), dtype="i4", fill_value=9)
    ct[...] = VALUES
    ct[3:6, 4:8] = 9  # which zarr erases
    full = group.create_array("full", shape=(8, 8), chunks=(2, 2), dtype=">u2", compressors=None, fill_value=1)
    full[...] = np.arange(64).reshape(8, 8)
    group.create_array("n#?% x", shape=(9,), chunks=(4,), dtype="f8", fill_value=float("nan"))[4:8] = 2.5
    group.create_array("scalar", shape=(), dtype="i2")[...] = 7
    group.create_array("empty", shape=(0, 5), chunks=(2, 5), dtype="i2")
    return root


def values_of(root: Path) -> dict[str, Any]:
    group = zarr.open_group(shardstore.open(root, read_only=True), mode="r")
    return {path: np.asarray(array[...]) for path, array in group.members(None) if isinstance(array, zarr.Array)}


def check(target: Path, values: dict[str, Any], flavour: str, **options: Any) -> None:
    formats: dict[str, tuple[Literal[2, 3], ...]] = {"v2": (2,), "v3": (3,), "dual": (2, 3)}
    for zarr_format in formats[flavour]:
        for path, wanted in values.items():
            np.testing.assert_array_equal(by_fsspec(target, path, zarr_format, **options), wanted)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"flavour": "v3"},
        {"flavour": "dual"},
        {"version": 0},
        {"templates": True},
        {"templates": True, "generators": True},
        {"inline_nbytes": 100},
        {"paths": {"full": {"flavour": "v3"}, "g/*": {"inline_nbytes": 10**6}}},
    ],
    ids=lambda given: " ".join(given) or "default",
)
def test_fsspec_reads_json(given: dict[str, Any], source: Path, tmp_path: Path) -> None:
    target = tmp_path / "refs.json"
    report = references.write_json(source, target, **given)
    values = values_of(source)
    own = values.pop("full") if "paths" in given else None
    options = {"simple_templates": False} if "generators" in given else {}
    check(target, values, report.flavour, **options)
    if own is not None:
        np.testing.assert_array_equal(by_fsspec(target, "full", 3), own)
    store = zarr.storage.FsspecStore.from_url("reference://", storage_options={"fo": str(target), "remote_protocol": "file", **options})
    assert "g" in set(zarr.open_group(store, mode="r", zarr_format=2 if report.flavour == "v2" else 3).group_keys())
    assert (report.arrays, report.references, report.missing) == (5, 47 + 16 + 1 + 1, 1 + 2)
    assert report.inlined == (48 if "paths" in given else 0 if "inline_nbytes" not in given else 65) - ("paths" in given)


@pytest.mark.parametrize(
    "given", [{}, {"flavour": "dual"}, {"record_size": 5}, {"record_size": 7, "max_memory": 200}, {"inline_nbytes": 60}]
)
def test_fsspec_reads_parquet_by_fastparquet(given: dict[str, Any], source: Path, tmp_path: Path) -> None:
    report = references.write_parquet(source, tmp_path / "refs", **given)
    check(tmp_path / "refs", values_of(source), report.flavour)
    assert (report.arrays, report.references, report.missing) == (5, 65, 3)


def test_fsspec_reads_parquet_by_pyarrow_where_missing_chunks_are_filled(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "refs"
    references.write_parquet(source, target, missing="fill", record_size=4)
    check(target, values_of(source), "v2", engine="pyarrow")
    check(target, values_of(source), "v2")


@pytest.mark.gate
@pytest.mark.parametrize("form", ["json", "parquet"])
@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.name)
def test_shards_of_other_programs(case: Any, form: str, tmp_path: Path) -> None:
    target = tmp_path / "refs"
    if form == "json":
        report = references.write_json(case.store, target)
    else:
        report = references.write_parquet(case.store, target, flavour="auto", root_as="data")
    named = {path or ("data" if form == "parquet" else ""): values for path, values in case.arrays.items()}
    check(target, named, "v3" if report.flavour == "dual" else report.flavour)  # v2 cannot read all of a dual set
    assert references.check(target).is_sound


@pytest.mark.gate
@pytest.mark.parametrize("folder", DRAFTS, ids=lambda folder: folder.name)
def test_hierarchies_of_the_2022_draft(folder: Path, tmp_path: Path) -> None:
    report = references.write_json(folder / "store", tmp_path / "refs.json")
    check(tmp_path / "refs.json", expected(folder), report.flavour)


def test_json_is_the_same_each_time_and_one_entry_a_line(source: Path, tmp_path: Path) -> None:
    texts = []
    for name in ("a.json", "b.json"):
        references.write_json(source, tmp_path / name)
        texts.append((tmp_path / name).read_bytes())
    assert texts[0] == texts[1]
    lines = texts[0].decode().splitlines()
    assert len(lines) == 2 + len(json.loads(texts[0])["refs"])
    keys = [next(iter(json.loads("{" + line.rstrip(",") + "}"))) for line in lines[1:-1]]
    chunks = [key for key in keys if key.startswith("full/") and "." not in key.split("/")[1][:1]]
    assert chunks[:5] == ["full/0.0", "full/0.1", "full/1.0", "full/1.1", "full/0.2"]  # shard by shard


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_json(suffix: str, source: Path, tmp_path: Path) -> None:
    import pyarrow as pa

    references.write_json(source, tmp_path / "plain.json")
    references.write_json(source, tmp_path / f"refs.json{suffix}")
    data = (tmp_path / f"refs.json{suffix}").read_bytes()
    text = gzip.decompress(data) if suffix == ".gz" else pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
    assert text == (tmp_path / "plain.json").read_bytes()


def test_relative_urls_lead_from_the_directory_of_the_set(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = source.parent / "relative.json"
    references.write_json(source, target, urls="relative")
    refs = json.loads(target.read_text())["refs"]
    assert refs["full/0.0"][0] == "a #?% store.zarr/full/c/0/0"
    monkeypatch.chdir(source.parent)  # what fsspec takes for the beginning
    check(target, values_of(source), "v2")


def test_base_url_replaces_the_stores_own_and_leaves_pins_out(source: Path, tmp_path: Path) -> None:
    report = references.write_json(source, tmp_path / "refs.json", base_url="https://data.example/x.zarr/")
    assert not report.is_pinned
    assert json.loads((tmp_path / "refs.json").read_text())["refs"]["full/0.0"][0] == "https://data.example/x.zarr/full/c/0/0"
    assert json.loads((tmp_path / "refs.json").read_text())["refs"]["n#?% x/1"][0] == "https://data.example/x.zarr/n%23%3F%25%20x/c/1"
    with pytest.raises(NotFound, match="does not say which versions"):
        references.pins(tmp_path / "refs.json")


def test_whole_shards_and_left_out_arrays(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "refs.json"
    report = references.write_json(source, target, paths={"full": "shards", "g/*": "chunks", "*": None}, flavour="v3")
    refs = json.loads(target.read_text())["refs"]
    assert refs["full/c/0/1"] == [f"file://{source}/full/c/0/1"]
    assert set(report.left_out) == {"n#?% x", "scalar", "empty"}
    by_group = references.write_json(source, tmp_path / "g.json", paths={"g": "chunks", "*": None}, flavour="v3")  # and all below it
    below = {key for key in json.loads((tmp_path / "g.json").read_text())["refs"] if "/c/" in key}
    assert below == {key for key in refs if key.startswith("g/") and "/c/" in key}
    assert set(by_group.left_out) == {"n#?% x", "scalar", "empty", "full"}
    assert not [key for key in refs if key.startswith(("scalar", "empty"))]
    wanted = values_of(source)
    check(target, {"full": wanted["full"], "g/c/ct": wanted["g/c/ct"]}, "v3")


def test_parquet_of_missing_chunks_only_has_no_record(source: Path, tmp_path: Path) -> None:
    references.write_parquet(source, tmp_path / "refs", record_size=2)
    assert not (tmp_path / "refs/empty").exists()
    assert sorted(p.name for p in (tmp_path / "refs/n#?% x").iterdir()) == ["refs.0.parq"]


def test_root_array_needs_a_name_in_parquet(tmp_path: Path) -> None:
    store = shardstore.open(tmp_path / "a.zarr", chunks_per_shard=(2,))
    zarr.create_array(store, shape=(8,), chunks=(2,), dtype="i4")[...] = np.arange(8)
    with pytest.raises(InvalidInput, match="root_as='data' names it"):
        references.write_parquet(tmp_path / "a.zarr", tmp_path / "refs")
    assert not (tmp_path / "refs").exists()
    references.write_parquet(tmp_path / "a.zarr", tmp_path / "refs", root_as="data")
    np.testing.assert_array_equal(by_fsspec(tmp_path / "refs", "data", 2), np.arange(8))
    references.write_json(tmp_path / "a.zarr", tmp_path / "refs.json")
    np.testing.assert_array_equal(by_fsspec(tmp_path / "refs.json", "", 2), np.arange(8))


def test_arrays_that_v2_cannot_describe_are_named_all_at_once(tmp_path: Path) -> None:
    group = zarr.create_group(shardstore.open(tmp_path / "a.zarr", chunks_per_shard=(2, 2, 2)))
    values = np.arange(64, dtype="i4").reshape(4, 4, 4)
    for name in ("p", "q"):
        filters = [zarr.codecs.TransposeCodec(order=(1, 0, 2))]
        group.create_array(name, shape=(4, 4, 4), chunks=(2, 2, 2), dtype="i4", filters=filters)[...] = values
    with pytest.raises(InvalidInput, match=r"2 of the arrays .*'p': .*'q': "):
        references.write_json(tmp_path / "a.zarr", tmp_path / "refs.json", flavour="v2")
    assert references.write_json(tmp_path / "a.zarr", tmp_path / "refs.json").flavour == "v3"
    with pytest.raises(InvalidInput, match="without an error"):
        references.write_parquet(tmp_path / "a.zarr", tmp_path / "refs", flavour="v3")
    references.write_parquet(tmp_path / "a.zarr", tmp_path / "refs", flavour="dual")
    np.testing.assert_array_equal(by_fsspec(tmp_path / "refs", "p", 3), values)
    with pytest.raises(Exception, match="described-by-zarr-v3-only"):
        by_fsspec(tmp_path / "refs", "p", 2)
    assert shardstore.pack(f"reference::{tmp_path}/refs", tmp_path / "packed.zarr").complete
    np.testing.assert_array_equal(zarr.open_array(str(tmp_path / "packed.zarr"), path="q", mode="r")[...], values)


def test_one_listing_and_one_request_for_each_shard(source: Path, tmp_path: Path) -> None:
    trace = TraceStorage(open_storage(source))
    references.write_json(trace, tmp_path / "refs.json")
    events = trace.events
    assert [event.op for event in events].count("list") == 1
    assert sorted(e.key for e in events if e.op == "read" and "/c/" in e.key and not e.key.endswith(".json")) == sorted(
        p.relative_to(source).as_posix() for name in ("g/c/ct", "full") for p in (source / name / "c").rglob("*") if p.is_file()
    )


def test_refusals_leave_everything_as_it_was(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "refs.json"
    with pytest.raises(InvalidInput, match="overlap"):
        references.write_json(source, source / "refs.json")
    with pytest.raises(NotFound, match="no Zarr hierarchy"):
        references.write_json(tmp_path / "nothing", target)
    with pytest.raises(InvalidInput, match="is not one of"):
        references.write_json(source, target, flavour="v4")  # type: ignore[arg-type]  # what a user may give
    target.write_text("mine")
    with pytest.raises(InvalidInput, match="overwrite=True replaces it"):
        references.write_json(source, target)
    assert target.read_text() == "mine"
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs/notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match=r"something else .*'notes\.txt'"):
        references.write_parquet(source, tmp_path / "refs", overwrite=True)


def test_damaged_shards_end_the_run_or_are_left_out(tmp_path: Path) -> None:
    store = shardstore.open(tmp_path / "a.zarr", chunks_per_shard=(2,))
    zarr.create_array(store, name="x", shape=(8,), chunks=(2,), dtype="i4", fill_value=0)[...] = np.arange(1, 9)
    shard = tmp_path / "a.zarr/x/c/1"
    shard.write_bytes(shard.read_bytes()[:-3] + b"bad")
    with pytest.raises(Corruption, match=r"shard 'x/c/1' of array 'x' is damaged: .*on_error='skip'"):
        references.write_json(tmp_path / "a.zarr", tmp_path / "refs.json")
    assert not (tmp_path / "refs.json").exists()
    report = references.write_json(tmp_path / "a.zarr", tmp_path / "refs.json", on_error="skip")
    assert (report.references, list(report.left_out)) == (2, ["x/c/1"])
    np.testing.assert_array_equal(by_fsspec(tmp_path / "refs.json", "x", 2), [1, 2, 3, 4, 0, 0, 0, 0])


def test_pins_say_what_changed(tmp_path: Path) -> None:
    store = shardstore.open(tmp_path / "a.zarr", chunks_per_shard=(2,))
    array = zarr.create_array(store, name="x", shape=(12,), chunks=(2,), dtype="i4", fill_value=0)
    array[...] = np.arange(1, 13)
    for form in ("json", "parquet"):
        getattr(references, f"write_{form}")(tmp_path / "a.zarr", tmp_path / form)
        assert references.check(tmp_path / form).is_sound
        assert [pin.key for pin in references.pins(tmp_path / form)] == ["x/c/0", "x/c/1", "x/c/2"]
    array[0] = 0
    array[4:8] = 0  # erases the shard
    for form in ("json", "parquet"):
        report = references.check(f"reference::file://{tmp_path / form}")
        assert (report.objects, report.changed, report.gone) == (3, ("x/c/0",), ("x/c/1",))
    (tmp_path / "a.zarr/x/c/2").chmod(0o600)  # no other bytes
    assert references.check(tmp_path / "json").changed == ("x/c/0",)


def test_pins_of_a_replaced_set_are_there_at_each_moment(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "refs.json"
    references.write_json(source, target)
    before = target.read_bytes(), (tmp_path / "refs.json.pins").read_bytes()
    references.write_json(source, target, overwrite=True, flavour="v3")
    after = (tmp_path / "refs.json.pins").read_bytes()
    assert len(decode_pins(after)) == 1
    # Both, as they are while the set is replaced: the right one is told by the set's bytes.
    (tmp_path / "refs.json.pins").write_bytes(before[1] + after)
    assert references.check(target).is_sound
    target.write_bytes(before[0])
    assert references.check(target).is_sound
    target.write_bytes(b"{}")
    with pytest.raises(Corruption, match="of another set"):
        references.check(target)


def test_compact_leaves_what_a_set_refers_to(tmp_path: Path) -> None:
    store = shardstore.open(tmp_path / "a.zarr", chunks_per_shard=(4,), strategy="append")
    array = zarr.create_array(store, name="x", shape=(16,), chunks=(2,), dtype="i4", compressors=None)
    array[...] = np.arange(16)
    array[0:2] = 77  # leaves dead bytes in the first shard
    references.write_json(tmp_path / "a.zarr", tmp_path / "refs.json")
    held = references.pins(tmp_path / "refs.json")
    report = shardstore.compact(tmp_path / "a.zarr", pins=held, dead_ratio=0)
    assert (report.rewritten, report.pinned.first) == (0, ("x/c/0",))
    np.testing.assert_array_equal(by_fsspec(tmp_path / "refs.json", "x", 2)[:4], [77, 77, 2, 3])
    with pytest.raises(shardstore.Conflict, match=r"2 pinned objects are at .*'x/c/0'"):
        shardstore.pack(tmp_path / "b", tmp_path / "a.zarr", overwrite=True, pins=held)
    assert shardstore.compact(tmp_path / "a.zarr", dead_ratio=0).rewritten == 1
    assert references.check(tmp_path / "refs.json").changed == ("x/c/0",)


def test_repair_leaves_what_a_set_refers_to(tmp_path: Path) -> None:
    store = shardstore.open(tmp_path / "a.zarr", chunks_per_shard=(4,))
    zarr.create_array(store, name="x", shape=(16,), chunks=(2,), dtype="i4", compressors=None)[...] = np.arange(16)
    references.write_json(tmp_path / "a.zarr", tmp_path / "refs.json")
    shard = tmp_path / "a.zarr/x/c/0"
    data = bytearray(shard.read_bytes())
    data[-10] ^= 1
    shard.write_bytes(data)
    pin = shardstore.maintenance.pins.Pin("x/c/0")
    report = shardstore.repair(tmp_path / "a.zarr", pins=[pin])
    assert ([finding.remedy for finding in report.findings.first], report.pinned_count) == (["pinned"], 1)
    assert shard.read_bytes() == bytes(data)
    assert shardstore.repair(tmp_path / "a.zarr", pins=references.pins(tmp_path / "refs.json")).pinned_count == 0


def test_two_protocols_in_one_set_are_refused_unless_asked_for(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/refs/two", b"abcd")
    (tmp_path / "one").write_bytes(b"abcd")
    refs = {"x/.zarray": json.dumps(array_v2([2], [1], "<i4")), "x/0": [f"file://{tmp_path}/one"], "x/1": ["memory://refs/two"]}
    (tmp_path / "given.json").write_text(json.dumps(refs))
    with pytest.raises(InvalidInput, match="one protocol for a whole set"):
        references.write_json(f"reference::{tmp_path}/given.json", tmp_path / "refs.json")
    references.write_json(f"reference::{tmp_path}/given.json", tmp_path / "refs.json", mixed_protocols=True)


def test_fsspec_engines_see_integers(source: Path, tmp_path: Path) -> None:
    references.write_parquet(source, tmp_path / "refs")
    for engine in ("fastparquet", "pyarrow"):
        mapper = LazyReferenceMapper(str(tmp_path / "refs"), fs=fsspec.filesystem("file"), engine=engine)
        url, offset, nbytes = mapper["full/1.1"]
        assert (url, int(offset), int(nbytes)) == (f"file://{source}/full/c/0/0", 24, 8)
        assert all(isinstance(number, np.integer) for number in (offset, nbytes))


def test_a_huge_grid_of_few_chunks_takes_no_time_for_the_others(tmp_path: Path) -> None:
    store = shardstore.open(tmp_path / "a.zarr", chunks_per_shard=(2, 2))
    array = zarr.create_array(store, name="x", shape=(10**7, 10**7), chunks=(1, 1), dtype="u1", fill_value=0, compressors=None)
    places = [(0, 0), (0, 1), (12_345, 7), (10**7 - 1, 10**7 - 1), (10**7 - 1, 3)]
    for number, place in enumerate(places, 1):
        array[place] = number
    references.write_parquet(tmp_path / "a.zarr", tmp_path / "set", record_size=1000)
    assert len(list((tmp_path / "set/x").iterdir())) == 4
    references.write_json(tmp_path / "a.zarr", tmp_path / "set.json")
    report = references.write_json(f"reference::{tmp_path}/set.json", tmp_path / "again.json")
    assert report.references == 5
    references.write_parquet(f"reference::{tmp_path}/set", tmp_path / "again", record_size=100)
    for name in ("set", "set.json", "again.json", "again"):
        opened = zarr.open_array(shardstore.open(f"reference::{tmp_path / name}"), path="x", mode="r", zarr_format=2)
        assert [int(opened[place]) for place in places] == [1, 2, 3, 4, 5]  # type: ignore[arg-type]  # elements are numbers
        assert opened[5, 5] == 0


@pytest.mark.parametrize(
    ("name", "content", "is_set"),
    [
        ("a.json", b'\xef\xbb\xbf {"version": 1, "templates": {}, "gen": []}', True),
        ("a.json", b'{"a/.zgroup": {}}', True),
        ("a", b'{"zarr.json": "{}"}', True),
        ("a.json", b'{"name": "a program", "version": "1.0"}', False),
        ("a.json", b"", False),
        ("a.nc", b"\x89HDF", False),
        ("a.json.gz", b'{"refs": {}}', False),
        ("a.json.zst", b"\x1f\x8b", False),
        ("a.json.gz", gzip.compress(b'{"refs": {}}'), True),
    ],
    ids=range(9),
)
def test_only_a_set_is_overwritten(name: str, content: bytes, is_set: bool, source: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match="overwrite=True"):
        references.write_json(source, tmp_path / name)
    if is_set:
        references.write_json(source, tmp_path / name, overwrite=True)
        opened = zarr.open_array(shardstore.open(f"reference::{tmp_path / name}"), path="full", mode="r")
        np.testing.assert_array_equal(opened[...], values_of(source)["full"])
    else:
        with pytest.raises(InvalidInput, match="is not a set of references"):
            references.write_json(source, tmp_path / name, overwrite=True)
        assert (tmp_path / name).read_bytes() == content
    assert not is_set or (tmp_path / f"{name}.pins").exists()


def test_a_pattern_that_matches_nothing_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="'ful' matches the path of no array"):
        references.write_json(source, tmp_path / "refs.json", paths={"ful": None})
    with pytest.raises(InvalidInput, match="no mapping"):
        references.write_json(source, tmp_path / "refs.json", paths=["full"])  # type: ignore[arg-type]  # what a user may give
    assert not (tmp_path / "refs.json").exists()


def test_names_in_braces_get_no_generator(tmp_path: Path) -> None:
    values = np.arange(64, dtype="i4").reshape(8, 8)
    store = shardstore.open(tmp_path / "a.zarr", chunks_per_shard=(2, 2))
    zarr.create_array(store, name="x{#y", shape=(8, 8), chunks=(2, 2), dtype="i4", compressors=None, fill_value=-1)[...] = values
    with pytest.raises(InvalidInput, match="take for a template"):
        references.write_json(tmp_path / "a.zarr", tmp_path / "refs.json", generators=True)
    references.write_json(tmp_path / "a.zarr", tmp_path / "refs.json", version=0)
    np.testing.assert_array_equal(by_fsspec(tmp_path / "refs.json", "x{#y", 2), values)


def test_parquet_is_not_named_json_and_not_written_into_what_another_run_writes(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="name of a set in JSON"):
        references.write_parquet(source, tmp_path / "refs.json")
    references.write_parquet(source, tmp_path / "refs")
    (tmp_path / "refs/.zmetadata").unlink()
    before = sorted(path.name for path in (tmp_path / "refs").rglob("*"))
    with pytest.raises(InvalidInput, match="a part of a set"):
        references.write_parquet(source, tmp_path / "refs")
    assert sorted(path.name for path in (tmp_path / "refs").rglob("*")) == before
    references.write_parquet(source, tmp_path / "refs", overwrite=True)
    check(tmp_path / "refs", values_of(source), "v2")


@pytest.mark.parametrize("ends_at", range(8))
def test_of_two_runs_at_one_place_no_mixture_is_left(ends_at: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run begins and ends at each moment of one. Its records are fewer, or more."""
    refs = tmp_path / "refs"
    moments: list[str] = []

    def write_another() -> None:
        references.write_parquet(source, refs, overwrite=True, record_size=2, paths={"g/c/ct" if ends_at % 2 else "nothing*": None})

    def interrupted(name: str, step: Any) -> Any:
        async def first(*arguments: Any, **options: Any) -> Any:
            if len(moments) <= ends_at:  # the other run does not come here
                moments.append(name)
                if len(moments) == ends_at + 1:
                    await asyncio.to_thread(write_another)
            return await step(*arguments, **options)

        return first

    for owner, name in ((RecordWriter, "_store"), (writing, "_cleared"), (writing, "_finish")):
        monkeypatch.setattr(owner, name, interrupted(name, getattr(owner, name)))
    if ends_at == 0:
        references.write_parquet(source, refs, overwrite=True, record_size=2)
        check(refs, values_of(source), "v2")
        return
    with pytest.raises(Conflict, match="another process wrote a set at") as caught:
        references.write_parquet(source, refs, overwrite=True, record_size=2)
    assert len(moments) == ends_at + 1
    assert moments[0] == "_cleared"
    assert (moments[-1] == "_finish") == (ends_at == 7)
    is_there = (refs / ".zmetadata").exists()
    assert ("there is no set now" in str(caught.value)) is not is_there
    assert is_there == (ends_at == 7)
    if is_there:
        files = decode_metadata((refs / ".zmetadata").read_bytes()).files
        assert files is not None
        names = [refs / path / record_name(number) for path, runs in files.records.items() for run in runs for number in run]
        assert {decode_rows(name.read_bytes(), 2).set_id for name in names} == {files.set_id}
        check(refs, {path: values for path, values in values_of(source).items() if path != "g/c/ct"}, "v2")
