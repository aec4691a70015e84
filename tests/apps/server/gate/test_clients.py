"""Real clients read what is served: zarr and xarray's filesystems, tensorstore, obstore, our own storage, GDAL, curl."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fsspec
import numpy as np
import obstore
import pytest
import s3fs
import tensorstore
import zarr

import shardstore
from shardstore.apps.server import Serving, serve
from shardstore.opening.open import open_storage
from shardstore.testing.storage_suite import SyncStorage
from tests.apps.server.conftest import DATA, make_store, reading

pytestmark = [pytest.mark.filterwarnings("ignore")]

WANTED = np.where(np.arange(64)[:, None, None] < 48, DATA, 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("served") / "data.zarr")


@pytest.fixture(scope="module")
def serving(place: Path) -> Iterator[Serving]:
    with serve(place, port=0) as made:
        yield made


def s3_options(serving: Serving) -> dict[str, Any]:
    return {"endpoint_url": serving.url.rstrip("/"), "key": "any", "secret": "any"}


@pytest.mark.parametrize(("view", "zarr_format"), [("zarr3", 3), ("zarr2", 2), ("stored", 3)])
def test_zarr_over_http_and_s3(serving: Serving, view: str, zarr_format: Any) -> None:
    for url, options in ((f"{serving.url}{view}", None), (f"s3://{view}", s3_options(serving))):
        group = zarr.open_group(url, mode="r", zarr_format=zarr_format, storage_options=options, use_consolidated=False)
        array = group["ct"]
        assert isinstance(array, zarr.Array)
        np.testing.assert_array_equal(array[...], WANTED)
        np.testing.assert_array_equal(array[3:50:7, 5, -1], WANTED[3:50:7, 5, -1])
        assert group.attrs["title"] == "in May"
        if options is not None:
            assert sorted(group.keys()) == ["ct", "deep", "gz"]


@pytest.mark.parametrize("anon", [False, True])
def test_s3fs(serving: Serving, place: Path, anon: bool) -> None:
    options: dict[str, Any] = {"endpoint_url": serving.url.rstrip("/"), "anon": True} if anon else s3_options(serving)
    fs = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    wanted = reading(place)
    assert sorted(fs.find("zarr3")) == sorted(f"zarr3/{key}" for key in wanted)
    assert sorted(fs.ls("zarr3/", detail=False)) == ["zarr3/ct", "zarr3/deep", "zarr3/gz", "zarr3/notes", "zarr3/zarr.json"]
    assert fs.info("zarr3/ct/c/0/0/0")["size"] == len(wanted["ct/c/0/0/0"])
    assert fs.cat_file("zarr3/ct/c/0/0/0", start=3, end=9) == wanted["ct/c/0/0/0"][3:9]
    assert fs.cat([f"zarr3/{key}" for key in wanted]) == {f"zarr3/{key}": data for key, data in wanted.items()}
    with pytest.raises(FileNotFoundError):
        fs.cat_file("zarr3/ct/c/7/7/0")
    assert not fs.exists("zarr3/nothing")
    with pytest.raises((OSError, PermissionError, NotImplementedError)):
        fs.pipe_file("zarr3/new", b"x")
    if not anon:
        assert sorted(fs.ls("")) == ["stored", "zarr2", "zarr3"]


@pytest.mark.parametrize("view", ["zarr3", "zarr2", "stored"])
@pytest.mark.parametrize("kind", ["http", "s3"])
def test_tensorstore(serving: Serving, view: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    name = "gz" if view == "zarr2" else "ct"  # its zarr driver takes no zstd with the member checksum, which all of today have
    store: dict[str, Any] = {"driver": "http", "base_url": f"{serving.url}{view}/{name}/"}
    if kind == "s3":
        store = {"driver": "s3", "bucket": view, "path": f"{name}/", "endpoint": serving.url.rstrip("/"), "aws_region": "us-east-1"}
        store["host_header"] = "127.0.0.1"
    found = tensorstore.open({"driver": "zarr" if view == "zarr2" else "zarr3", "kvstore": store}).result()
    np.testing.assert_array_equal(found.read().result(), DATA if name == "gz" else WANTED)


@pytest.mark.parametrize("kind", ["http", "s3"])
def test_obstore(serving: Serving, place: Path, kind: str) -> None:
    wanted = reading(place)
    if kind == "http":
        store: Any = obstore.store.HTTPStore.from_url(f"{serving.url}zarr3", client_options={"allow_http": True})
    else:
        store = obstore.store.S3Store(
            "zarr3",
            endpoint=serving.url.rstrip("/"),
            access_key_id="any",
            secret_access_key="any",
            region="us-east-1",
            client_options={"allow_http": True},
        )
        listed = [one["path"] for page in obstore.list(store) for one in page]
        assert sorted(listed) == sorted(wanted)
    data = wanted["ct/c/0/0/0"]
    assert bytes(obstore.get(store, "ct/c/0/0/0").bytes()) == data
    assert bytes(obstore.get_range(store, "ct/c/0/0/0", start=3, end=9)) == data[3:9]
    assert [bytes(one) for one in obstore.get_ranges(store, "ct/c/0/0/0", starts=[0, 9], ends=[4, 12])] == [data[:4], data[9:12]]
    head = obstore.head(store, "ct/c/0/0/0")
    assert head["size"] == len(data)
    assert head["e_tag"]
    with pytest.raises(FileNotFoundError):
        obstore.head(store, "ct/c/7/7/0")


def test_own_storage_reads_what_is_stored(serving: Serving, place: Path) -> None:
    """Shards through the server, as pinned reads."""
    store = shardstore.open(f"{serving.url}stored/", read_only=True)
    array = zarr.open_array(store, path="ct", mode="r")
    np.testing.assert_array_equal(array[...], WANTED)
    storage = SyncStorage(open_storage(f"{serving.url}stored/", {}))
    assert storage.get("ct/zarr.json") == (place / "ct/zarr.json").read_bytes()
    assert storage.storage.capabilities.pinned_reads


def test_fsspec_http(serving: Serving, place: Path) -> None:
    wanted = reading(place)
    fs = fsspec.filesystem("http")
    urls = {f"{serving.url}zarr3/{key}": data for key, data in wanted.items()}
    assert fs.cat(list(urls)) == urls
    with fsspec.open(f"{serving.url}stored/ct/c/0/0/0", block_size=100) as file:
        file.seek(10)
        assert file.read(50) == (place / "ct/c/0/0/0").read_bytes()[10:60]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Do not say what is asked for."""


@pytest.fixture(scope="module")
def files(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of Python's own web server, of the same values as plain files."""
    root = tmp_path_factory.mktemp("plain")
    for key, data in reading(place).items():
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(data)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=root)) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("ls", "/"),
        ("ls", "/ct/c/0/0/"),
        ("ls", "/ct"),
        ("glob", "/notes/*.txt"),
        ("glob", "/ct/c/*/0/0"),
        ("glob", "/*/zarr.json"),
        ("glob", "/gz/**/0"),
        ("find", "/ct/"),
        ("find", "/deep"),
        ("exists", "/ct/c/7/7/0"),
        ("exists", "/ct/c/0"),
        ("isdir", "/deep"),
        ("isdir", "/zarr.json"),
    ],
)
def test_fsspec_http_finds_what_it_finds_in_plain_files(serving: Serving, files: str, method: str, path: str) -> None:
    fs = fsspec.filesystem("http", skip_instance_cache=True)
    found = {}
    for base in (files, f"{serving.url}zarr3"):
        options = {"detail": False} if method == "ls" else {}
        answer = getattr(fs, method)(base + path, **options)
        found[base] = answer if isinstance(answer, bool) else sorted(url.removeprefix(base).rstrip("/") for url in answer)
    assert found[f"{serving.url}zarr3"] == found[files]


@pytest.mark.parametrize("view", ["zarr3", "zarr2", "stored"])
def test_fsspec_http_walks_every_view(serving: Serving, place: Path, view: str) -> None:
    fs = fsspec.filesystem("http", skip_instance_cache=True)
    base = f"{serving.url}{view}"
    wanted = {
        "zarr3": lambda: list(reading(place)),
        "zarr2": lambda: list(shardstore.get_mapper(str(place), read_only=True, present="v2")),
        "stored": lambda: [str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()],
    }[view]()
    walked = [f"{above}/{name}" for above, _, names in fs.walk(f"{base}/") for name in names]
    assert sorted(unquote(url).replace("//", "/") for url in walked) == sorted(f"{base}/{key}".replace("//", "/") for key in wanted)


_GDAL = """
import sys
import numpy as np
import rasterio
with rasterio.open(f'ZARR:"{sys.argv[1]}"') as found:
    np.save(sys.argv[2], found.read())
"""


@pytest.mark.parametrize("way", ["vsicurl", "vsis3"])
def test_gdal(serving: Serving, way: str, tmp_path: Path) -> None:
    pytest.importorskip("rasterio", reason="rasterio has the newest GDAL from Python 3.12 on")
    path = f"/vsicurl/{serving.url}zarr2/ct" if way == "vsicurl" else "/vsis3/zarr2/ct"
    settings = {
        "AWS_S3_ENDPOINT": serving.url.removeprefix("http://").rstrip("/"),
        "AWS_HTTPS": "NO",
        "AWS_VIRTUAL_HOSTING": "FALSE",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_REGION": "us-east-1",
    }
    done = subprocess.run(
        [sys.executable, "-c", _GDAL, path, str(tmp_path / "found.npy")],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), WANTED)  # the first axis is that of bands


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl(serving: Serving, place: Path, tmp_path: Path) -> None:
    data = reading(place)["ct/c/0/0/0"]

    def curl(*arguments: str) -> bytes:
        return subprocess.run(["curl", "-sS", "--noproxy", "*", *arguments], check=True, capture_output=True).stdout

    url = f"{serving.url}zarr3/ct/c/0/0/0"
    assert curl(url) == data
    assert curl("-r", "0-9", url) == data[:10]
    assert curl("-C", "100", url) == data[100:]
    headers = curl("-I", url).decode()
    assert f"content-length: {len(data)}" in headers
    etag = next(line for line in headers.splitlines() if line.startswith("etag")).partition(": ")[2]
    assert curl("-o", "/dev/null", "-w", "%{http_code}", "-H", f"If-None-Match: {etag}", url) == b"304"
    assert curl("-o", "/dev/null", "-w", "%{http_code}", "--path-as-is", f"{serving.url}zarr3/../../etc/passwd") == b"400"
