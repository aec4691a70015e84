"""Other programs read the sets that are written; each by the interface that its own users open sets by."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import FsspecStore

import shardstore
from shardstore import references
from shardstore.errors import InvalidInput
from tests.harness.gcs_emulator import gcs_emulator
from tests.maintenance.packing.sources import cases, expected
from tests.maintenance.packing.sources import references as kerchunk_set
from tests.references.reading import filesystem
from tests.storage.http.http_servers import WebServer

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of pandas, about fastparquet, and of zarr, about types without a specification
]

Values = dict[str, npt.NDArray[Any]]
S3Url = tuple[str, dict[str, Any]]

# fsspec knows a set in Parquet behind HTTP by the end of its name; elsewhere it looks for a directory.
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "json v2": ("refs.json", {"flavour": "v2"}),
    "json v3": ("refs.json", {"flavour": "v3"}),
    "json dual": ("refs.json", {"flavour": "dual"}),
    "parquet v2": ("refs", {}),
    "parquet dual": ("refs.parquet", {"flavour": "dual"}),
}
VALUES = np.arange(1, 65, dtype=">i4").reshape(8, 8)


def make(place: Path | str, options: Mapping[str, Any] | None = None, *, nested: bool = True) -> Values:
    """A hierarchy with what peers are known to get wrong, and its values: missing chunks, big-endian, 0-d, groups in groups."""
    store = shardstore.open(place, chunks_per_shard={"scalar": None, "*": (2, 2)}, storage_options=dict(options or {}) or None)
    group = zarr.create_group(store, attributes={"title": "all kinds"})
    big = group.create_array("big", shape=(8, 8), chunks=(2, 2), dtype=">i4", dimension_names=["y", "x"], attributes={"units": "K"})
    big[...] = VALUES
    holes = group.create_array("holes", shape=(8, 8), chunks=(2, 2), dtype="f8", fill_value=float("nan"), dimension_names=["y", "x"])
    holes[:3] = VALUES[:3] / 2
    scalar = group.create_array("scalar", shape=(), dtype="i2")
    scalar[...] = 7
    arrays: dict[str, zarr.Array[Any]] = {"big": big, "holes": holes, "scalar": scalar}
    if nested:
        for path in ("g/h/deep", "g/shallow"):
            arrays[path] = group.create_array(path, shape=(4, 4), chunks=(1, 2), dtype="u2", compressors=None, fill_value=3)
            arrays[path][1:] = VALUES[1:4, :4]
    return {path: np.asarray(array[...]) for path, array in arrays.items()}


def write(form: str, source: Path | str, directory: Path | str, **options: Any) -> Any:
    name, given = FORMS[form]
    function = references.write_json if form.startswith("json") else references.write_parquet
    return function(source, f"{directory}/{name}", **given, **options)


def programs(report: Any) -> dict[str, str]:
    """The lines that a report prints, by the first word of their headings; those of Python only."""
    lines = report.how_to_open.splitlines()
    found = {heading.removeprefix("# ").partition(":")[0]: line for heading, line in zip(lines[::2], lines[1::2], strict=True)}
    return {heading: line for heading, line in found.items() if not heading.startswith("GDAL")}


def run(line: str) -> Any:
    names: dict[str, Any] = {"fsspec": fsspec, "shardstore": shardstore, "xr": xr, "zarr": zarr}
    exec(line, names)
    return next(names[name] for name in ("group", "array", "ds") if name in names)


def by_mapping(line: str) -> Any:
    """What the mapping holds that a line hands to zarr-python 2; zarr-python 3 would open its filesystem anew, with other options."""
    mapping = eval(line.partition("zarr.open_group(")[2].removesuffix(', mode="r")'), {"fsspec": fsspec})
    documents = ("zgroup", "zarray", "zattrs")
    keys = [f"{path}.{name}" for path in ("", "big/", "holes/", "scalar/", "g/", "g/shallow/", "g/h/", "g/h/deep/") for name in documents]
    keys += [*(f"{path}/{i}.{j}" for path in ("big", "holes", "g/shallow", "g/h/deep") for i in range(4) for j in range(4)), "scalar/0"]
    found = {key: mapping[key] for key in keys if key in mapping}
    store = zarr.storage.MemoryStore({key: default_buffer_prototype().buffer.from_bytes(data) for key, data in found.items()})
    return zarr.open_group(store, mode="r", zarr_format=2)


def check(opened: Any, values: Values) -> None:
    """Check a group of zarr, or a dataset of xarray, which has the arrays of the root only."""
    if isinstance(opened, xr.Dataset):
        values = {path: wanted for path, wanted in values.items() if "/" not in path}
        assert set(opened.variables) == set(values)
        assert opened["big"].dims == ("y", "x")
        assert (opened["big"].attrs["units"], opened.attrs["title"]) == ("K", "all kinds")
    else:
        assert opened.attrs["title"] == "all kinds"
        assert set(opened.keys()) == {path.partition("/")[0] for path in values}
    for path, wanted in values.items():
        np.testing.assert_array_equal(np.asarray(opened[path][...]), wanted, err_msg=path)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Values]:
    root = tmp_path_factory.mktemp("source") / "a store.zarr"
    return root, make(root)


# -- the printed lines -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_printed_lines_open_a_local_set(form: str, source: tuple[Path, Values], tmp_path: Path) -> None:
    report = write(form, source[0], tmp_path)
    lines = programs(report)
    assert set(lines) == {"shardstore", "zarr 3", "xarray"} | ({"zarr 2"} if form != "json v3" else set())
    for line in lines.values():
        check(run(line), source[1])


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_printed_lines_open_a_compressed_set(suffix: str, source: tuple[Path, Values], tmp_path: Path) -> None:
    report = references.write_json(source[0], tmp_path / f"refs.json{suffix}")
    assert "gdalmdiminfo" not in report.how_to_open
    lines = programs(report)
    check(run(lines.pop("shardstore")), source[1])
    if suffix == ".zst":
        assert report.how_to_open.count(": with the package zstandard, for fsspec") == len(lines)
        pytest.importorskip("zstandard", reason="fsspec reads Zstandard with that package only")
    for line in lines.values():
        check(run(line), source[1])


def test_printed_lines_open_an_array_at_the_root(tmp_path: Path) -> None:
    store = shardstore.open(tmp_path / "a.zarr", chunks_per_shard=(2, 2))
    zarr.create_array(store, shape=(8, 8), chunks=(2, 2), dtype="i4")[...] = VALUES
    lines = programs(references.write_json(tmp_path / "a.zarr", tmp_path / 'a "quoted" set.json'))
    assert set(lines) == {"shardstore", "zarr 3", "zarr 2"}
    for line in lines.values():
        np.testing.assert_array_equal(run(line)[...], VALUES)


@pytest.mark.night
@pytest.mark.parametrize(("form", "place"), [("json v2", "s3"), ("json v3", "local"), ("parquet dual", "s3"), ("parquet v2", "local")])
def test_printed_lines_open_a_set_of_s3(form: str, place: str, s3_url: S3Url, tmp_path: Path) -> None:
    url, options = s3_url
    values = make(f"{url}/a.zarr", options)
    report = write(form, f"{url}/a.zarr", url if place == "s3" else tmp_path, storage_options=options)
    given = ", ".join(f'"{name}": "{value}"' for name, value in options.items())
    lines = programs(report)
    for heading, line in lines.items():
        assert line.count("…") == 1 + (place == "s3" and heading != "shardstore")
        check(run(line.replace("…", given)) if heading != "zarr 2" else by_mapping(line.replace("…", given)), values)


def serve(server: WebServer, root: Path, path: str) -> None:
    for file in root.rglob("*"):
        if file.is_file():
            server.objects[f"{path}/{file.relative_to(root).as_posix()}"] = file.read_bytes()


@pytest.fixture
def server() -> Iterator[WebServer]:
    found = WebServer()
    found.behaviour.pages = True
    yield found
    found.close()


@pytest.mark.parametrize("form", ["json v2", "json v3", "parquet dual"])
def test_printed_lines_open_a_set_of_objects_behind_http(form: str, server: WebServer, source: tuple[Path, Values], tmp_path: Path) -> None:
    serve(server, source[0], "/a.zarr")
    report = write(form, source[0], tmp_path / "sets", base_url=f"{server.url}/a.zarr")
    serve(server, tmp_path / "sets", "/sets")
    for heading, line in programs(report).items():
        for place in (f"file://{tmp_path}", server.url):  # the objects are behind HTTP, and then the set as well
            moved = line.replace(f"file://{tmp_path}/sets", f"{place}/sets")
            check(run(moved) if heading != "zarr 2" else by_mapping(moved), source[1])


_NESTED = """
import sys, warnings
warnings.simplefilter("ignore")
import zarr
exec(sys.argv[1])
print(int(group["g/h/deep"][2, 1]), int(group["big"][7, 7]))
"""


@pytest.mark.night
def test_printed_lines_open_groups_in_groups_whatever_the_seed_of_hashes(source: tuple[Path, Values], tmp_path: Path) -> None:
    line = programs(write("parquet v2", source[0], tmp_path))["zarr 3"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _NESTED, line], env=os.environ | {"PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True
        )
        for seed in ("0", "1", "2")
    ]
    assert {process.communicate()[0] for process in processes} == {f"{source[1]['g/h/deep'][2, 1]} 64\n"}


# -- zarr-python -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_zarr_reads_it_by_store_and_by_mapper(form: str, source: tuple[Path, Values], tmp_path: Path) -> None:
    write(form, source[0], tmp_path)
    target = tmp_path / FORMS[form][0]
    formats: dict[str, Any] = {"v2": (2,), "v3": (3,), "dual": (2, 3)}
    for zarr_format in formats[form.rpartition(" ")[2]]:
        stores: list[Any] = [
            FsspecStore(filesystem(target), read_only=True),
            FsspecStore.from_url("reference://", storage_options={"fo": str(target), "remote_protocol": "file"}),
            fsspec.get_mapper("reference://", fo=str(target), remote_protocol="file"),
        ]
        for store in stores:
            check(zarr.open_group(store, mode="r", zarr_format=zarr_format, use_consolidated=False), source[1])


# -- xarray and kerchunk -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json v2", "json dual", "parquet v2"])
def test_xarray_opens_it_by_the_engine_of_kerchunk(form: str, source: tuple[Path, Values], tmp_path: Path) -> None:
    pytest.importorskip("kerchunk")
    write(form, source[0], tmp_path)
    target = str(tmp_path / FORMS[form][0])
    with xr.open_dataset(target, engine="kerchunk", storage_options={"remote_protocol": "file"}) as dataset:
        check(dataset, source[1])
        assert np.isnan(dataset["holes"][4:]).all()


def test_kerchunk_combines_two_sets_by_the_values_of_a_coordinate(tmp_path: Path) -> None:
    combine = pytest.importorskip("kerchunk.combine")
    sets = []
    for number in range(2):
        store = shardstore.open(tmp_path / f"{number}.zarr", chunks_per_shard={"t": (2, 2), "*": None})
        group = zarr.create_group(store)
        group.create_array("t", shape=(4, 4), chunks=(1, 2), dtype="i4", dimension_names=["time", "x"])[...] = VALUES[:4, :4] + 100 * number
        group.create_array("time", shape=(4,), chunks=(4,), dtype="i8", dimension_names=["time"])[...] = np.arange(4) + 10 * (1 - number)
        group.create_array("x", shape=(4,), chunks=(4,), dtype="i8", dimension_names=["x"])[...] = np.arange(4)
        report = references.write_json(
            tmp_path / f"{number}.zarr", tmp_path / f"{number}.json", paths={"t": {}, "*": {"inline_nbytes": 1000}}
        )
        assert report.inlined == 2
        sets.append(str(tmp_path / f"{number}.json"))
    combined = combine.MultiZarrToZarr(sets, concat_dims=["time"], identical_dims=["x"], remote_protocol="file").translate()
    (tmp_path / "combined.json").write_text(json.dumps(combined))
    options = {"fo": str(tmp_path / "combined.json"), "remote_protocol": "file"}
    dataset = xr.open_zarr("reference://", consolidated=False, zarr_format=2, storage_options=options)
    assert dataset["time"].values.tolist() == [0, 1, 2, 3, 10, 11, 12, 13]  # by value: the second set comes first
    np.testing.assert_array_equal(dataset["t"].values, np.concatenate([VALUES[:4, :4] + 100, VALUES[:4, :4]]))
    ours = zarr.open_array(shardstore.open(f"reference::{tmp_path}/combined.json"), path="t", mode="r", zarr_format=2)
    np.testing.assert_array_equal(ours[...], dataset["t"].values)


# -- GDAL --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("urls", ["absolute", "relative"])
def test_gdal_reads_a_set_in_json_by_the_printed_line(urls: Any, tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio", reason="GDAL before 3.11 knows no references, as the wheels for Python 3.11 have it")
    values = make(tmp_path / "a.zarr", nested=False)
    report = write("json v2", tmp_path / "a.zarr", tmp_path, urls=urls)
    line = next(line for line in report.how_to_open.splitlines() if line.startswith("gdalmdiminfo"))
    name = shlex.split(line)[1]
    seen = 0
    for path, wanted in values.items():
        if wanted.ndim == 2:
            with rasterio.open(f"{name}:/{path}") as opened:
                np.testing.assert_array_equal(opened.read(1), wanted)
            seen += 1
    assert seen


# -- VirtualiZarr ------------------------------------------------------------------------------------------------------


def by_virtualizarr(target: Path, parser: str) -> Any:
    virtualizarr = pytest.importorskip("virtualizarr", reason="VirtualiZarr wants Python 3.12")
    parsers = pytest.importorskip("virtualizarr.parsers")
    registry_of = pytest.importorskip("obspec_utils.registry")
    obstore = pytest.importorskip("obstore.store")
    del virtualizarr
    registry = registry_of.ObjectStoreRegistry({"file://": obstore.LocalStore()})
    return getattr(parsers, parser)()(f"file://{target}", registry=registry)


@pytest.mark.parametrize("form", ["json v2", "json v3", "parquet v2"])
def test_virtualizarr_reads_a_flat_set(form: str, tmp_path: Path) -> None:
    values = make(tmp_path / "a.zarr", nested=False)
    write(form, tmp_path / "a.zarr", tmp_path)
    store = by_virtualizarr(tmp_path / FORMS[form][0], "KerchunkJSONParser" if form.startswith("json") else "KerchunkParquetParser")
    check(xr.open_zarr(store, consolidated=False, zarr_format=3), values)


# -- versioned URLs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json v3", "parquet v2"])
def test_versioned_urls_of_s3_lead_to_what_was_referred_to(form: str, s3_url: S3Url, tmp_path: Path) -> None:
    import s3fs

    url, options = s3_url
    bucket = url.removeprefix("s3://").partition("/")[0]
    s3fs.S3FileSystem(**options).call_s3("put_bucket_versioning", Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    values = make(f"{url}/a.zarr", options)
    report = write(form, f"{url}/a.zarr", tmp_path, urls="versioned", storage_options=options)
    store = shardstore.open(f"{url}/a.zarr", storage_options=options)
    array = zarr.open_array(store, path="big")
    array[...] = VALUES + 1000
    given = ", ".join(f'"{name}": "{value}"' for name, value in options.items())
    for heading, line in programs(report).items():
        assert '"version_aware": True' in line or heading == "shardstore"
        check(run(line.replace("…", given)) if heading != "zarr 2" else by_mapping(line.replace("…", given)), values)
    np.testing.assert_array_equal(array[...], VALUES + 1000)


def test_versioned_urls_of_gcs_need_a_bucket_that_keeps_versions(tmp_path: Path) -> None:
    with gcs_emulator(with_versions=True) as endpoint:
        check_versions_of_gcs({"endpoint_url": endpoint, "token": "anon"}, tmp_path)


def check_versions_of_gcs(options: dict[str, Any], tmp_path: Path) -> None:
    import gcsfs

    fs = gcsfs.GCSFileSystem(**options)
    for name, settings in (("keeps-versions", {"versioning": {"enabled": True}}), ("keeps-none", {})):
        fs.call("POST", "b", project="test", json={"name": name, **settings})
        values = make(f"gs://{name}/a.zarr", options, nested=False)
    with pytest.raises(InvalidInput, match=r"the bucket of gs://keeps-none/a\.zarr keeps no versions of its objects"):
        write("json v2", "gs://keeps-none/a.zarr", tmp_path, urls="versioned", storage_options=options)
    write("json v2", "gs://keeps-versions/a.zarr", tmp_path, urls="versioned", storage_options=options)
    set_options = {"reference": {"remote_options": options}}
    array = zarr.open_array(shardstore.open("gs://keeps-versions/a.zarr", storage_options=options), path="big")
    array[...] = VALUES + 1000
    opened = shardstore.open(f"reference::{tmp_path}/refs.json", storage_options=set_options)
    check(zarr.open_group(opened, mode="r", zarr_format=2), values)


def test_versioned_urls_are_refused_where_no_versions_are_kept(s3_url: S3Url, source: tuple[Path, Values], tmp_path: Path) -> None:
    url, options = s3_url
    make(f"{url}/a.zarr", options, nested=False)
    with pytest.raises(InvalidInput, match=r"objects without a version, such as .*let the bucket keep versions"):
        write("json v2", f"{url}/a.zarr", tmp_path, urls="versioned", storage_options=options)
    with pytest.raises(InvalidInput, match="needs a bucket of S3 or Google Cloud Storage"):
        write("json v2", source[0], tmp_path, urls="versioned")
    assert not list(tmp_path.iterdir())


# -- packed and converted ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"generators": True, "templates": True}, {"inline_nbytes": 50}], ids=lambda given: " ".join(given))
@pytest.mark.parametrize("form", FORMS)
def test_packing_a_set_gives_what_it_says(form: str, options: dict[str, Any], source: tuple[Path, Values], tmp_path: Path) -> None:
    if "generators" in options and form.startswith("parquet"):
        pytest.skip("there are no rules in Parquet")
    write(form, source[0], tmp_path, **options)
    if "generators" in options:
        assert json.loads((tmp_path / "refs.json").read_text())["gen"]
    target = f"reference::{tmp_path}/{FORMS[form][0]}"
    report = shardstore.pack(target, tmp_path / "packed.zarr", chunks_per_shard={"scalar": None, "*": (2, 2)})
    assert report.complete
    check(zarr.open_group(str(tmp_path / "packed.zarr"), mode="r", zarr_format=3), source[1])


SETS = [folder for folder in cases("kerchunk") if (folder / "targets").is_dir()]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("folder", SETS, ids=lambda folder: folder.name)
def test_sets_of_kerchunk_are_converted(folder: Path, form: str, tmp_path: Path) -> None:
    found = kerchunk_set(folder)
    assert found is not None
    url, options = found
    report = write(form, url, tmp_path, storage_options=options)
    values = expected(folder)
    zarr_format: Any = 2 if report.flavour == "v2" else 3
    theirs = FsspecStore(filesystem(tmp_path / FORMS[form][0], "memory"), read_only=True)
    for store in (theirs, shardstore.open(f"reference::{tmp_path}/{FORMS[form][0]}")):
        for path, wanted in values.items():
            array = zarr.open_array(store, path=path, mode="r", zarr_format=zarr_format)
            np.testing.assert_array_equal(np.asarray(array[...]), wanted, err_msg=path)
