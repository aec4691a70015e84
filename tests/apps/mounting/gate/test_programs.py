"""Real programs on a real mount. None of them knows of shards."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import zarr
from zarr.storage import LocalStore

import shardstore
from shardstore.apps.mounting.mounts import Mount
from tests.apps.mounting.conftest import DATA, make_store, needs, run

MakeMount = Callable[..., Mount]
ZARR2 = os.environ.get("SHARDSTORE_ZARR2")


def stored(url: str | Path, path: str = "ct", **options: Any) -> np.ndarray:
    """Read an array natively, past the mount."""
    group: Any = zarr.open_group(shardstore.open(str(url), **options), mode="r")
    return np.asarray(group[path][:])


def files_in(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, object]]:
    """A store, on a local disk or, if the test's parameter ``where`` says so, on S3; and the options of its filesystem."""
    if request.getfixturevalue("where") == "local":
        url, options = str(tmp_path / "data.zarr"), {}
    else:
        url, options = request.getfixturevalue("s3_url")
    make_store(url, storage_options=options)
    return url, options


@pytest.mark.parametrize(("where", "durable"), [("local", "close"), ("local", "fsync"), ("moto", "close")])
def test_zarr_reads_and_writes_through_its_local_store(
    where: str, place: tuple[str, dict[str, object]], mount: MakeMount, durable: str
) -> None:
    url, options = place
    expected = DATA.copy()
    with mount(url, storage_options=options, durable=durable) as mounted:
        group: Any = zarr.open_group(LocalStore(mounted.directory), mode="r+")
        array = group["ct"]
        np.testing.assert_array_equal(array[:], DATA)
        array[5:9, 3:40, 7] = 5  # parts of chunks
        array[16:24] = 6  # whole ones
        expected[5:9, 3:40, 7] = 5
        expected[16:24] = 6
        np.testing.assert_array_equal(array[:], expected)
        new = group.create_array("new/one", shape=(40, 40), chunks=(5, 5), dtype="i4", fill_value=-1)
        new[:30] = 3
        group.attrs["seen"] = True
        assert group["new/one"][29, 0] == 3
        assert group["new/one"][30, 0] == -1
    np.testing.assert_array_equal(stored(url, storage_options=options), expected)
    native: Any = zarr.open_group(shardstore.open(url, storage_options=options), mode="r")
    assert native.attrs["seen"] is True
    assert native["new/one"][:].sum() == 30 * 40 * 3 - 10 * 40
    document = json.loads(shardstore.get_mapper(url, storage_options=options)["new/one/zarr.json"])
    assert document["codecs"][0]["name"] != "sharding_indexed"
    raw: Any = zarr.open_group(url, mode="r", storage_options=options or None)
    assert raw["new/one"].shards is not None, "below the mount there are no shards"


def test_tensorstore_reads_and_writes_by_its_file_driver(store: Path, mount: MakeMount) -> None:
    with mount(store) as mounted:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{mounted.directory}/ct"}}
        array = tensorstore.open(spec).result()
        np.testing.assert_array_equal(array.read().result(), DATA)
        array[1:3, 5:50, 9:11].write(np.full((2, 45, 2), 7, "u2")).result()
        new = tensorstore.open(
            {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{mounted.directory}/ts"}},
            create=True,
            dtype="uint8",
            shape=[64, 64],
            chunk_layout=tensorstore.ChunkLayout(chunk_shape=[8, 8]),
        ).result()
        new.write(np.full((64, 64), 3, "u1")).result()
    expected = DATA.copy()
    expected[1:3, 5:50, 9:11] = 7
    np.testing.assert_array_equal(stored(store), expected)
    assert (stored(store, "ts") == 3).all()
    assert not [name for name in files_in(store) if "lock" in name]


@pytest.mark.skipif(ZARR2 is None, reason="SHARDSTORE_ZARR2 names no Python with zarr-python 2")
def test_zarr_2_reads_and_writes_by_its_directory_store(store: Path, mount: MakeMount) -> None:
    program = """
import sys, numpy as np, zarr
root = zarr.open_group(sys.argv[1], mode="r+")
data = root["ct"][:]
root["ct"][:8] = 9
new = root.create_dataset("two", shape=(32, 32), chunks=(4, 4), dtype="i2")
new[:] = 4
np.save(sys.argv[2], data)
"""
    with mount(store, present="v2") as mounted:
        run(ZARR2 or "", "-c", program, mounted.directory, store.parent / "read.npy")
    np.testing.assert_array_equal(np.load(store.parent / "read.npy"), DATA)
    assert (stored(store)[:8] == 9).all()
    assert (stored(store, "two") == 4).all()


def test_gdal_reads_zarr_2(store: Path, mount: MakeMount, tmp_path: Path) -> None:
    needs("gdal_translate")
    flat = DATA[0]
    group = zarr.open_group(shardstore.open(str(store)), mode="r+")
    group.create_array("flat", shape=flat.shape, chunks=(16, 16), dtype=flat.dtype, compressors=None)[:] = flat
    with mount(store, present="v2", read_only=True) as mounted:
        run("gdal_translate", "-of", "ENVI", f'ZARR:"{mounted.directory}/flat"', tmp_path / "flat.raw")
    np.testing.assert_array_equal(np.fromfile(tmp_path / "flat.raw", "u2").reshape(flat.shape), flat)


_READ_BY_GDAL = """
import sys, numpy, rasterio
assert tuple(map(int, rasterio.__gdal_version__.split(".")[:2])) >= (3, 8), rasterio.__gdal_version__
numpy.save(sys.argv[2], rasterio.open(sys.argv[1]).read())
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="rasterio has a GDAL that knows Zarr v3 from Python 3.12 on")
def test_gdal_reads_zarr_3(store: Path, mount: MakeMount, tmp_path: Path) -> None:
    with mount(store) as mounted:
        run(sys.executable, "-c", _READ_BY_GDAL, f'ZARR:"{mounted.directory}/ct"', tmp_path / "found.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), DATA)  # the first axis is that of bands


@pytest.mark.parametrize(("where", "durable"), [("local", "close"), ("moto", "fsync")])
def test_trees_are_copied_out_and_in(
    where: str, place: tuple[str, dict[str, object]], mount: MakeMount, tmp_path: Path, durable: str
) -> None:
    url, options = place
    with mount(url, storage_options=options, durable=durable) as mounted:
        run("cp", "-r", f"{mounted.directory}/ct", tmp_path / "out")
        assert len(files_in(tmp_path / "out")) == 8 * 64 + 1
        run("diff", "-r", f"{mounted.directory}/ct", tmp_path / "out")
        run("cp", "-r", tmp_path / "out", f"{mounted.directory}/copy")
        run("diff", "-r", f"{mounted.directory}/copy", tmp_path / "out")
    np.testing.assert_array_equal(stored(url, "copy", storage_options=options), DATA)
    raw: Any = zarr.open_group(url, mode="r", storage_options=options or None)
    assert raw["copy"].shards is not None


@pytest.mark.parametrize("order", ["chunks first", "document first"])
def test_copies_need_no_order(store: Path, mount: MakeMount, tmp_path: Path, order: str) -> None:
    with mount(store) as mounted:
        run("cp", "-r", f"{mounted.directory}/ct", tmp_path / "out")
        target = Path(mounted.directory, "new")
        target.mkdir()
        for name in ("c", "zarr.json") if order == "chunks first" else ("zarr.json", "c"):
            run("cp", "-r", tmp_path / "out" / name, target)
    np.testing.assert_array_equal(stored(store, "new"), DATA)


def test_directories_of_a_new_array_can_be_made_after_its_document(store: Path, mount: MakeMount) -> None:
    """As ``cp -r`` does, in the order of inodes, without a look at what is there."""
    with mount(store, attr_ttl="0.1s") as mounted:
        root = Path(mounted.directory)
        (root / "new").mkdir()
        (root / "new/zarr.json").write_bytes((root / "ct/zarr.json").read_bytes())
        for name in ("new/c", "new/c/0", "new/c/0/1"):
            time.sleep(0.2)  # what was listed has expired
            (root / name).mkdir()
        (root / "new/c/0/1/2").write_bytes(b"x")
        time.sleep(0.2)
        assert [path.name for path in (root / "new/c/0").iterdir()] == ["1"]
        (root / "new/c/0/2").mkdir()
    assert shardstore.get_mapper(str(store))["new/c/0/1/2"] == b"x"


def test_tar_and_rsync(store: Path, mount: MakeMount, tmp_path: Path) -> None:
    needs("rsync")
    with mount(store) as mounted:
        root = mounted.directory
        run("tar", "-cf", tmp_path / "ct.tar", "-C", root, "ct")
        Path(root, "from_tar").mkdir()
        run("tar", "-xf", tmp_path / "ct.tar", "-C", f"{root}/from_tar")
        run("rsync", "-a", f"{root}/ct/", tmp_path / "out")
        run("diff", "-r", f"{root}/ct", tmp_path / "out")
        run("rsync", "-a", f"{tmp_path}/out/", f"{root}/synced")
        again = run("rsync", "-a", "--size-only", "--itemize-changes", f"{tmp_path}/out/", f"{root}/synced")
        assert not [line for line in again.stdout.splitlines() if line.startswith(">f")]
    np.testing.assert_array_equal(stored(store, "from_tar/ct"), DATA)
    np.testing.assert_array_equal(stored(store, "synced"), DATA)


def test_rm_removes_an_array_and_mv_moves_one(store: Path, mount: MakeMount) -> None:
    with mount(store) as mounted:
        root = Path(mounted.directory)
        run("cp", "-r", root / "ct", root / "other")
        run("mv", root / "ct", root / "moved")
        run("rm", "-r", root / "other")
        assert sorted(path.name for path in root.iterdir()) == ["moved", "zarr.json"]
    np.testing.assert_array_equal(stored(store, "moved"), DATA)
    assert sorted(path.name for path in store.iterdir()) == ["moved", "zarr.json"]


def test_mv_copies_directories_of_chunks(store: Path, mount: MakeMount) -> None:
    """They are no nodes, which are renamed as a whole."""
    with mount(store) as mounted:
        root = Path(mounted.directory)
        run("rm", "-r", root / "ct/c/7")
        run("mv", root / "ct/c/0", root / "ct/c/7")
        run("mv", root / "ct/c/1/2", root / "row")
        assert len(list((root / "row").iterdir())) == 8
    expected = DATA.copy()
    expected[28:], expected[:4], expected[4:8, 16:24] = expected[:4], 0, 0
    np.testing.assert_array_equal(stored(store), expected)


def test_a_document_is_not_removed_while_there_are_chunks(store: Path, mount: MakeMount) -> None:
    with mount(store) as mounted:
        refused = run("mv", f"{mounted.directory}/ct/zarr.json", f"{mounted.directory}/notes", check=False)
        assert refused.returncode == 1
        assert "Directory not empty" in refused.stderr
        refused = run("rm", f"{mounted.directory}/ct/zarr.json", check=False)
        assert refused.returncode == 1
        assert "Directory not empty" in refused.stderr
    np.testing.assert_array_equal(stored(store), DATA)


def test_dd_changes_the_middle_of_a_chunk(store: Path, mount: MakeMount) -> None:
    with mount(store) as mounted:
        chunk = Path(mounted.directory, "ct/c/1/2/3")
        before = chunk.read_bytes()
        run("dd", "if=/dev/zero", f"of={chunk}", "bs=1", "seek=10", "count=7", "conv=notrunc")
        assert chunk.read_bytes() == before[:10] + bytes(7) + before[17:]
    assert shardstore.get_mapper(str(store))["ct/c/1/2/3"] == before[:10] + bytes(7) + before[17:]


def test_of_many_who_create_a_file_one_succeeds(store: Path, mount: MakeMount) -> None:
    program = """
import os, sys
try:
    descriptor = os.open(sys.argv[1], os.O_CREAT | os.O_EXCL | os.O_WRONLY)
except FileExistsError:
    print("there"); sys.exit()
os.write(descriptor, sys.argv[2].encode()); os.close(descriptor); print("mine")
"""
    with mount(store) as mounted:
        os.unlink(f"{mounted.directory}/ct/c/0/0/0")

        def create(i: int) -> str:
            return run(sys.executable, "-c", program, f"{mounted.directory}/ct/c/0/0/0", f"by {i}").stdout.strip()

        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(create, range(8)))
        assert sorted(outcomes) == ["mine"] + ["there"] * 7
        winner = outcomes.index("mine")
    assert shardstore.get_mapper(str(store))["ct/c/0/0/0"] == f"by {winner}".encode()


@pytest.mark.parametrize("way", ["backup", "rename", "in place", "sed"])
def test_editors_save_documents(store: Path, mount: MakeMount, way: str) -> None:
    with mount(store) as mounted:
        path = Path(mounted.directory, "ct/zarr.json")
        document = json.loads(path.read_bytes())
        document["attributes"] = {"edited": way}
        text = json.dumps(document)
        if way == "backup":  # vim: a try, a swap file, the old one aside, the new one in its place
            path.with_name("4913").write_bytes(b"")
            path.with_name("4913").unlink()
            swap = path.with_name(".zarr.json.swp")
            swap.write_text("swap")
            path.rename(f"{path}~")
            path.write_text(text)
            Path(f"{path}~").unlink()
            swap.unlink()
        elif way == "rename":
            path.with_name(".goutputstream-ABCDEF").write_text(text)
            path.with_name(".goutputstream-ABCDEF").rename(path)
        elif way == "in place":
            path.write_text(text)
        else:
            run("sed", "-i", 's/"attributes": *{}/"attributes": {"edited": "sed"}/', path)
        assert json.loads(path.read_bytes())["attributes"] == {"edited": way}
    assert dict(zarr.open_group(shardstore.open(str(store)), mode="r")["ct"].attrs) == {"edited": way}
    np.testing.assert_array_equal(stored(store), DATA)
    assert sorted(path.name for path in (store / "ct").iterdir()) == ["c", "zarr.json"]


def test_cp_of_a_document_that_is_refused_fails(store: Path, mount: MakeMount, tmp_path: Path) -> None:
    with mount(store, log_file=tmp_path / "log") as mounted:
        document = json.loads(Path(mounted.directory, "ct/zarr.json").read_bytes())
        document["data_type"] = "float64"
        (tmp_path / "zarr.json").write_text(json.dumps(document))
        refused = run("cp", tmp_path / "zarr.json", f"{mounted.directory}/ct/zarr.json", check=False)
        assert refused.returncode == 1
        assert "Invalid argument" in refused.stderr
    np.testing.assert_array_equal(stored(store), DATA)
    assert "ct" in (tmp_path / "log").read_text()
