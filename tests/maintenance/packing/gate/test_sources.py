"""Every kind of source: what is packed holds its values for plain zarr-python 3 and tensorstore, and its chunks to the byte."""

from __future__ import annotations

import base64
import json
import pickle
import shutil
import sys
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from math import prod
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import tensorstore
import zarr
from zarr.storage import LocalStore

import shardstore
from shardstore._sync import run_sync
from shardstore.errors import Corruption, InvalidInput, NotFound, Unsupported
from shardstore.format.shard_index import IndexLocation
from shardstore.maintenance.packing.listing import list_source
from shardstore.opening.open import open_storage
from tests.golden import golden_cases, handmade_cases
from tests.maintenance.packing.sources import cases, expected, read_by_zarr, references, stored
from tests.shards import presented, sharded_arrays
from tests.stored import LocalObjects

pytestmark = [pytest.mark.filterwarnings("ignore")]  # of data types and codecs that zarr-python 3 knows and no specification does

GOLDEN = golden_cases()
DRAFTS = cases("transformer2022")
REFERENCES = [folder for folder in cases("kerchunk") if (folder / "targets").is_dir()]


def chunks(root: Path) -> dict[str, bytes]:
    """Inner chunks by key, and everything else that is no document."""
    return {key: data for key, data in presented(LocalObjects(root)).items() if not key.endswith("zarr.json")}


def read_by_tensorstore(root: Path, path: str) -> Any:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{root}/{path}"}}
    return tensorstore.open(spec, open=True, read=True).result().read().result()


def some_counts(info: Any) -> tuple[int, ...]:
    """Shards that neither the source has nor divide its own."""
    return tuple(2 + (axis % 2) for axis in range(len(info.shape)))


@pytest.mark.parametrize("location", ["end", "start"])
@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.name)
def test_sharded_v3(case: Any, location: IndexLocation, tmp_path: Path) -> None:
    target = tmp_path / "packed.zarr"
    report = shardstore.pack(case.store, target, chunks_per_shard=some_counts, index_location=location)
    assert report.complete
    for path, values in case.arrays.items():
        np.testing.assert_array_equal(read_by_zarr(target, path), values)
    source, layouts = presented(LocalObjects(case.store)), sharded_arrays(LocalObjects(target))
    inside = {key for key in source if not key.endswith("zarr.json")}
    for path, layout in sharded_arrays(LocalObjects(case.store)).items():
        outside = [
            k for k in inside if (c := layout.coords(k)) is not None and any(i >= n for i, n in zip(c, layout.grid_shape, strict=True))
        ]
        inside -= set(outside)
        assert path in layouts or not layout.shape
    assert chunks(target) == {key: source[key] for key in inside}


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.name)
def test_out_of_shards_and_into_them_again(case: Any, tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain.zarr", tmp_path / "packed.zarr"
    assert shardstore.unpack(case.store, plain).complete
    for path, values in case.arrays.items():
        np.testing.assert_array_equal(read_by_zarr(plain, path), values)
    if "nested" not in case.name:  # of which the inner shards are left
        assert not sharded_arrays(LocalObjects(plain))
    assert shardstore.pack(plain, packed, chunks_per_shard=some_counts, chunk_order="morton").complete
    assert chunks(packed) == chunks(plain)
    for path, values in case.arrays.items():
        np.testing.assert_array_equal(read_by_zarr(packed, path), values)


@pytest.mark.parametrize("folder", DRAFTS, ids=lambda folder: folder.name)
def test_drafts(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "packed.zarr"
    assert shardstore.pack(folder / "store", target, chunks_per_shard=some_counts).complete
    for path, values in expected(folder).items():
        np.testing.assert_array_equal(read_by_zarr(target, path), values)
    with np.load(folder / "expected_chunks.npz") as loaded:
        wanted = sorted(loaded[key].tobytes() for key in loaded.files)
    assert sorted(chunks(target).values()) == wanted


@pytest.mark.parametrize("folder", DRAFTS, ids=lambda folder: folder.name)
def test_into_a_draft(folder: Path, tmp_path: Path) -> None:
    plain, target, back = tmp_path / "plain.zarr", tmp_path / "draft.zarr", tmp_path / "back.zarr"
    shardstore.unpack(folder / "store", plain)
    assert shardstore.pack(plain, target, chunks_per_shard=some_counts, stored="transformer").complete
    assert json.loads((target / "zarr.json").read_text())["metadata_key_suffix"] == ".json"
    for path, values in expected(folder).items():
        array = zarr.open_array(shardstore.open(target, read_only=True), path=path, mode="r")
        np.testing.assert_array_equal(np.asarray(array[...]), values)
    assert shardstore.unpack(target, back).complete
    assert chunks(back) == chunks(plain)


@pytest.mark.parametrize("folder", REFERENCES, ids=lambda folder: folder.name)
def test_references(folder: Path, tmp_path: Path) -> None:
    found = references(folder)
    assert found is not None
    url, options = found
    target = tmp_path / "packed.zarr"
    assert shardstore.pack(url, target, chunks_per_shard=some_counts, storage_options=options).complete
    for path, values in expected(folder).items():
        np.testing.assert_array_equal(read_by_zarr(target, path), values)
    assert shardstore.unpack(target, tmp_path / "plain.zarr").complete
    assert chunks(tmp_path / "plain.zarr") == referred_chunks(folder)


def referred_chunks(folder: Path) -> dict[str, bytes]:
    """What the fixture says that each chunk is, by the key that it has in Zarr v3."""
    found: dict[str, bytes] = {}
    expanded = json.loads((folder / "expected_refs.json").read_text())
    for key, reference in expanded.items():
        above, _, name = key.rpartition("/")
        if "json" in reference:
            continue
        if "data_b64" in reference:
            data = base64.b64decode(reference["data_b64"])
        else:
            target = (folder / "targets" / reference["url"].rpartition("fx/")[2]).read_bytes()
            start = reference.get("offset", 0)
            data = target[start : start + reference.get("length", len(target))]
        array = expanded.get(f"{above}/.zarray" if above else ".zarray", {"json": None})["json"]
        if array is not None:
            separator = array.get("dimension_separator", ".")
            name = f"c{separator}{name.replace('.', separator)}" if array["shape"] else "c"
        found[f"{above}/{name}" if above else name] = data
    return found


@pytest.fixture
def parquet_set() -> tuple[Path, dict[str, Any]]:
    """A set in Parquet, and the options of its references."""
    folder = next(folder for folder in REFERENCES if folder.name == "k_parquet_pyarrow")
    found = references(folder)
    assert found is not None
    return folder, {"remote_protocol": "memory"}


def test_a_chain_to_a_set_in_parquet(parquet_set: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, options = parquet_set
    url = f"reference::file://{folder}/refs.parquet"
    assert shardstore.pack(url, tmp_path / "packed.zarr", chunks_per_shard=some_counts, storage_options=options).complete
    np.testing.assert_array_equal(read_by_zarr(tmp_path / "packed.zarr", "name"), expected(folder)["name"])
    # In what a pickle holds there are no references: the set is read again.
    storage = open_storage(url, options)
    assert len(pickle.dumps(storage)) < 1000


def test_a_set_in_parquet_on_a_server_that_does_not_list(parquet_set: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, options = parquet_set

    class Silent(SimpleHTTPRequestHandler):
        def list_directory(self, path: Any) -> None:
            self.send_error(404)

        def log_message(self, *arguments: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"reference::http://127.0.0.1:{server.server_port}/refs.parquet"
        try:
            report = shardstore.pack(url, tmp_path / "packed.zarr", chunks_per_shard=some_counts, storage_options=options)
        finally:
            server.shutdown()
            thread.join()
    assert report.chunks == len(referred_chunks(folder))
    for path, values in expected(folder).items():
        np.testing.assert_array_equal(read_by_zarr(tmp_path / "packed.zarr", path), values)


def test_names_in_a_set_in_parquet_are_no_patterns(parquet_set: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, options = parquet_set
    root = shutil.copytree(folder / "refs.parquet", tmp_path / "set[1]")
    (root / "name").rename(root / "name[x]")
    document = json.loads((root / ".zmetadata").read_text())
    document["metadata"] = {("name[x]" + key[4:] if key.startswith("name/") else key): value for key, value in document["metadata"].items()}
    (root / ".zmetadata").write_text(json.dumps(document))
    given = options | {"fo": str(root)}
    assert shardstore.pack("reference://", tmp_path / "packed.zarr", chunks_per_shard=some_counts, storage_options=given).complete
    np.testing.assert_array_equal(read_by_zarr(tmp_path / "packed.zarr", "name[x]"), expected(folder)["name"])


@pytest.mark.parametrize("fault", ["a file", "its metadata", "a document", "the size of records", "another schema"])
def test_damaged_sets_in_parquet(fault: str, parquet_set: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder, options = parquet_set
    root = shutil.copytree(folder / "refs.parquet", tmp_path / "set")
    metadata = json.loads((root / ".zmetadata").read_text())
    match fault:
        case "a file":
            (root / "name/refs.1.parq").write_bytes(b"PAR1")
        case "its metadata":
            (root / ".zmetadata").write_text("{")
        case "a document":
            del metadata["metadata"]["name/.zarray"]["chunks"]
        case "the size of records":
            metadata["record_size"] = 0
        case "another schema":
            pq.write_table(pa.table({"path": ["a"]}), root / "name/refs.1.parq")
    if fault in ("a document", "the size of records"):
        (root / ".zmetadata").write_text(json.dumps(metadata))
    with pytest.raises(Corruption, match=r"zmetadata|zarray|refs\.1\.parq"):
        shardstore.pack("reference://", tmp_path / "packed.zarr", storage_options=options | {"fo": str(root)})
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_sets_in_parquet_need_pyarrow(parquet_set: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, options = parquet_set
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Unsupported, match="pyarrow"):
        shardstore.pack("reference://", tmp_path / "packed.zarr", storage_options=options | {"fo": str(folder / "refs.parquet")})


def test_references_to_no_zarr(tmp_path: Path) -> None:
    """The specification's own example."""
    (folder,) = (folder for folder in cases("kerchunk") if folder not in REFERENCES)
    options = {"fo": str(folder / "refs.json"), "remote_protocol": "memory"}
    with pytest.raises(NotFound, match="no Zarr node"):
        shardstore.pack("reference://", tmp_path / "packed.zarr", storage_options=options)
    assert not list(tmp_path.iterdir())


# -- Zarr v2, zip, mappings ----------------------------------------------------------------------------------------------


def v2_hierarchy(root: Path) -> dict[str, Any]:
    """Arrays of Zarr v2 as zarr-python 3 writes it."""
    group = zarr.open_group(root, mode="w", zarr_format=2)
    rng = np.random.default_rng(3)
    written: dict[str, Any] = {}
    arrays: dict[str, dict[str, Any]] = {
        "dots": {"chunks": (3, 4)},
        "img/0": {"chunks": (3, 4), "chunk_key_encoding": {"name": "v2", "separator": "/"}},
        "fortran": {"chunks": (3, 4), "order": "F"},
        "line": {"chunks": (5,)},
        "coordinate": {"chunks": (20,)},
    }
    for name, kwargs in arrays.items():
        ndim = len(kwargs["chunks"])
        data = rng.integers(0, 1000, (13, 17)[:ndim] if name != "coordinate" else (20,)).astype("<i4")
        array = group.create_array(name, shape=data.shape, dtype="<i4", fill_value=-1, **kwargs)
        array[...] = data
        array.attrs["units"] = name
        written[name] = data
    group["img"].attrs["multiscales"] = [{"version": "0.4"}]
    partly = group.create_array("partly", shape=(9, 9), chunks=(3, 3), dtype="<f8", fill_value=float("nan"))
    partly[3:6, 3:6] = 1.5
    written["partly"] = np.asarray(partly[...])
    group.create_array("scalar", shape=(), dtype="<i8", fill_value=0)[()] = 42
    written["scalar"] = np.int64(42)
    group.create_array("empty", shape=(0, 3), chunks=(1, 3), dtype="u1")
    written["empty"] = np.empty((0, 3), "u1")
    (root / "README.md").write_text("something else")
    zarr.consolidate_metadata(root, zarr_format=2)
    return written


@pytest.fixture
def v2(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    return tmp_path / "v2.zarr", v2_hierarchy(tmp_path / "v2.zarr")


def test_v2(v2: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    source, written = v2
    target = tmp_path / "packed.zarr"
    report = shardstore.pack(source, target, chunks_per_shard=some_counts)
    assert report.complete
    assert report.objects_before == len(stored(source))
    assert report.objects_after == len(stored(target))
    for path, values in written.items():
        np.testing.assert_array_equal(read_by_zarr(target, path), values)
        if prod(np.shape(values)) and path != "partly":
            np.testing.assert_array_equal(read_by_tensorstore(target, path), values)
    root = zarr.open_group(LocalStore(target, read_only=True), mode="r", use_consolidated=True)
    assert sorted(path for path, _ in root.members(max_depth=None)) == sorted([*written, "img"])
    assert root["img"].attrs["multiscales"] == [{"version": "0.4"}]
    assert (target / "README.md").read_text() == "something else"
    # Presented as Zarr v2 again it is what it was, to the byte.
    view = shardstore.get_mapper(str(target), present="v2", read_only=True)
    before = stored(source)
    assert sorted(view) == sorted(before)
    for key, data in before.items():
        is_document = key.rpartition("/")[2].startswith(".z")
        assert (json.loads(view[key]) if is_document else view[key]) == (json.loads(data) if is_document else data), key


def test_zip_and_mappings(v2: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    source, _ = v2
    shardstore.pack(source, tmp_path / "from files", chunks_per_shard=some_counts)
    with zipfile.ZipFile(tmp_path / "v2.zip", "w") as archive:
        for key, data in stored(source).items():
            archive.writestr(key, data)
    assert shardstore.pack(f"zip://::{tmp_path}/v2.zip", tmp_path / "from zip", chunks_per_shard=some_counts).complete
    assert shardstore.pack(stored(source), tmp_path / "from a dictionary", chunks_per_shard=some_counts).complete
    mapper = fsspec.get_mapper(str(source))
    assert shardstore.pack(mapper, tmp_path / "from a mapper", chunks_per_shard=some_counts).complete
    fs = fsspec.filesystem("file")
    assert shardstore.pack((fs, str(source)), (fs, str(tmp_path / "by a filesystem")), chunks_per_shard=some_counts).complete
    assert shardstore.pack(_Lazy(stored(source)), tmp_path / "from a mapping", chunks_per_shard=some_counts).complete
    wanted = stored(tmp_path / "from files")
    for name in ("from zip", "from a dictionary", "from a mapper", "by a filesystem", "from a mapping"):
        assert stored(tmp_path / name) == wanted, name


class _Lazy(dict[str, bytes]):
    """A mapping that is not known to hold its values in memory."""


def test_the_array_at_the_root(tmp_path: Path) -> None:
    source, target = tmp_path / "a.zarr", tmp_path / "b.zarr"
    zarr.create_array(source, data=np.arange(60).reshape(6, 10), chunks=(2, 3), zarr_format=2)
    assert shardstore.pack(source, target, chunks_per_shard=(2, 2)).complete
    np.testing.assert_array_equal(read_by_zarr(target, ""), np.arange(60).reshape(6, 10))


def test_a_node_inside(v2: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    source, written = v2
    assert shardstore.pack(source / "img", tmp_path / "img.zarr").complete
    np.testing.assert_array_equal(read_by_zarr(tmp_path / "img.zarr", "0"), written["img/0"])


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize("path", ["", "0", "img/1"])
def test_v3_with_the_keys_of_v2(path: str, separator: str, tmp_path: Path) -> None:
    """Whose chunks are listed before their documents; nothing has to wait for the end of the listing."""
    encoding: Any = {"name": "v2", "separator": separator}
    data = np.arange(60).reshape(6, 10)
    source, target = tmp_path / "a.zarr", tmp_path / "b.zarr"
    zarr.create_array(source, name=path or None, data=data, chunks=(2, 3), chunk_key_encoding=encoding)
    assert run_sync(list_source(open_storage(source), most_waiting=0)).objects > 12
    assert shardstore.pack(source, target, chunks_per_shard=(2, 2)).chunks == 12
    np.testing.assert_array_equal(read_by_zarr(target, path), data)


# -- what comes along, and what does not ---------------------------------------------------------------------------------


def test_include_and_exclude(v2: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    source, _ = v2
    only, rest = tmp_path / "only.zarr", tmp_path / "rest.zarr"
    shardstore.pack(source, only, include="img")
    assert {key.split("/c.")[0].split("/c/")[0] for key in stored(only)} == {"zarr.json", "img/zarr.json", "img/0", "img/0/zarr.json"}
    assert set(json.loads((only / "zarr.json").read_text())["consolidated_metadata"]["metadata"]) == {"img", "img/0"}
    shardstore.pack(source, rest, exclude=["img", "part*"])
    names = {key.split("/")[0] for key in stored(rest)}
    assert names == {"zarr.json", "README.md", "dots", "fortran", "line", "coordinate", "scalar", "empty"}


def test_checksums_of_chunks(v2: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    source, written = v2
    plain, target, again = tmp_path / "plain.zarr", tmp_path / "packed.zarr", tmp_path / "again.zarr"
    shardstore.unpack(source, plain)
    shardstore.pack(source, target, chunks_per_shard=some_counts, chunk_checksums=True)
    for path, values in written.items():
        np.testing.assert_array_equal(read_by_zarr(target, path), values)
        if prod(np.shape(values)) and path != "partly":
            np.testing.assert_array_equal(read_by_tensorstore(target, path), values)
    checked = chunks(target)
    assert {key: data[:-4] if key != "README.md" else data for key, data in checked.items()} == chunks(plain)
    shardstore.pack(target, again, chunks_per_shard=(3, 3), include="dots", chunk_checksums=True)  # which has them already
    assert chunks(again) == {k: v for k, v in checked.items() if k.startswith("dots/")}
    for shard in target.glob("dots/c*"):
        data = bytearray(shard.read_bytes())
        data[0] ^= 1
        shard.write_bytes(data)
    with pytest.raises(ValueError, match=r"(?i)checksum|crc"):
        read_by_zarr(target, "dots")


def test_small_arrays_stay_as_they_are(v2: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    source, _ = v2
    report = shardstore.pack(source, tmp_path / "packed.zarr")
    counts = {array.path: array.chunks_per_shard for array in report.arrays}
    assert counts["coordinate"] is None
    assert counts["dots"] is not None
    array = zarr.open_array(LocalStore(tmp_path / "packed.zarr"), path="coordinate", mode="r")
    assert array.shards is None


def test_one_tuple_is_for_arrays_of_as_many_dimensions(v2: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    source, _ = v2
    counts = {
        array.path: array.chunks_per_shard for array in shardstore.pack(source, tmp_path / "packed.zarr", chunks_per_shard=(2, 3)).arrays
    }
    assert counts["dots"] == counts["img/0"] == (2, 3)
    assert counts["line"] not in ((2, 3), None)
    with pytest.raises(InvalidInput, match="has 3 dimensions, the arrays have 0, 1, 2"):
        shardstore.pack(source, tmp_path / "none.zarr", chunks_per_shard=(2, 3, 4))


def test_what_cannot_be_expressed_is_refused_before_anything_is_written(v2: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    source, _ = v2
    for name, change in {"dots": {"filters": [{"id": "unheard"}]}, "line": {"dtype": "|O"}}.items():
        document = source / name / ".zarray"
        document.write_text(json.dumps(json.loads(document.read_text()) | change))
    (source / "fortran/.zarray").write_text("{")
    before = stored(source)
    with pytest.raises(Unsupported, match="3 nodes or objects cannot be expressed") as caught:
        shardstore.pack(source, tmp_path / "packed.zarr")
    assert all(name in str(caught.value) for name in ("'dots'", "'line'", "'fortran'", "unheard"))
    assert not (tmp_path / "packed.zarr").exists()
    assert not (tmp_path / "packed.zarr.pack").exists()
    assert stored(source) == before
    zmetadata = json.loads((source / ".zmetadata").read_text())
    zmetadata["metadata"]["dots/.zarray"]["filters"] = [{"id": "unheard"}]
    (source / ".zmetadata").write_text(json.dumps(zmetadata))
    assert shardstore.pack(source, tmp_path / "rest.zarr", exclude=["dots", "line", "fortran"]).complete
    listed = json.loads((tmp_path / "rest.zarr/zarr.json").read_text())["consolidated_metadata"]["metadata"]
    assert sorted(listed) == ["coordinate", "empty", "img", "img/0", "partly", "scalar"]


def test_a_draft_that_cannot_be(v2: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    source = tmp_path / "v3.zarr"
    zarr.create_array(
        source, name="a", shape=(4,), chunks=(2,), dtype="<i4", compressors=[zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]
    )
    with pytest.raises(Unsupported, match="'a'"):
        shardstore.pack(source, tmp_path / "packed.zarr", stored="transformer")
    assert not (tmp_path / "packed.zarr").exists()


@pytest.mark.parametrize("case", [case for case in GOLDEN if case.folder.name == "gzip_over_shard"], ids=lambda case: case.name)
def test_arrays_whose_chunks_cannot_be_told_go_over_as_they_are(case: Any, tmp_path: Path) -> None:
    report = shardstore.pack(case.store, tmp_path / "packed.zarr")
    assert report.notes
    assert stored(tmp_path / "packed.zarr") == stored(case.store)


def test_a_damaged_shard_is_named_and_nothing_of_it_is_packed(tmp_path: Path) -> None:
    source, target = tmp_path / "a.zarr", tmp_path / "b.zarr"
    zarr.create_array(source, data=np.arange(64), chunks=(2,), shards=(8,), compressors=None)
    path = source / "c/3"
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    with pytest.raises(shardstore.Incomplete, match=r"c/3.*checksum") as caught:
        shardstore.reshard(source, target, chunks_per_shard=(8,))
    assert [unit.name for unit in caught.value.report.failed] == ["c/1"]  # type: ignore[attr-defined]
    assert not (target / "zarr.json").exists()
    assert sorted(stored(target)) == ["c/0", "c/2", "c/3"]
    data[-10] ^= 1
    path.write_bytes(data)
    assert shardstore.reshard(source, target, chunks_per_shard=(8,), only_failed=True).complete
    np.testing.assert_array_equal(read_by_zarr(target, ""), np.arange(64))


def test_objects_outside_of_the_grid_are_left_out(tmp_path: Path) -> None:
    source, target = tmp_path / "a.zarr", tmp_path / "b.zarr"
    array = zarr.create_array(source, data=np.arange(20), chunks=(2,), compressors=None)
    shutil.copy(source / "c/3", source / "c/77")
    report = shardstore.pack(source, target, chunks_per_shard=(4,))
    assert report.arrays[0].outside == 1
    np.testing.assert_array_equal(read_by_zarr(target, ""), np.asarray(array[...]))
    assert sorted(stored(target)) == ["c/0", "c/1", "c/2", "zarr.json"]


def test_unusual_shards(tmp_path: Path) -> None:
    """By hand: gaps, overlaps, foreign headers are packed for what they mean; damaged entries are refused, the others packed."""
    for case in handmade_cases():
        target = tmp_path / case.path
        source = case.store / case.path
        if case.values is None:
            with pytest.raises((shardstore.Incomplete, Corruption)):
                shardstore.pack(source, target)
        else:
            assert shardstore.pack(source, target).complete
            assert read_by_zarr(target, "").tolist() == case.values
