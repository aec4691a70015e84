"""Common mistakes of new users that need a server, or a process in which a package is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import zarr

import shardstore
from shardstore.errors import StorageError
from tests.apps.cli.running import PLAIN
from tests.together.mistakes import Mistake, check, make_places, mistake, said

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_places(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


S3 = (
    mistake("zarr.open_group(shardstore.open('s3://nope/a.zarr', storage_options=s3), mode='r')", "the bucket 'nope' does not exist at"),
    mistake(
        "zarr.create_array(shardstore.open('s3://nope/a.zarr', storage_options=s3), shape=(8,), chunks=(2,), dtype='i4')",
        "Create it, or correct its name",
        "give the address of that: storage_options={'s3': {'endpoint_url': …}}",
    ),
    mistake("shardstore.pack('plain.zarr', 's3://nope/a.zarr', target_options=s3)", "the bucket 'nope' does not exist at"),
    mistake("snapshots.Repository.create('s3://nope/a.ice', storage_options=s3)", "the bucket 'nope' does not exist at"),
    mistake(
        "zarr.open_group(shardstore.open('s3://b/a.zarr', storage_options=s3 | {'profile': 'lab'}), mode='r')",
        "no usable credentials were found (The config profile (lab) could not be found)",
        "storage_options={'s3': {'profile': …}}; for a public bucket storage_options={'s3': {'anon': True}}",
    ),
    mistake(
        "zarr.open_group(shardstore.open('s3://b/a.zarr', storage_options=s3 | {'config_kwargs': 'x'}), mode='r')",
        "check these options of the filesystem: config_kwargs, endpoint_url, key, secret",
    ),
    mistake("$ shardstore info s3://nope/a.zarr -o endpoint_url=S3", "the bucket 'nope' does not exist at", "that: -o endpoint_url=…"),
    mistake("$ shardstore snapshots init s3://nope/a.ice -o endpoint_url=S3", "the bucket 'nope' does not exist at"),
    mistake(
        "$ shardstore info s3://b/a.zarr -o profile=lab -o endpoint_url=S3",
        "no usable credentials were found (The config profile (lab) could not be found)",
        "Give key and secret, or -o profile=…; for a public bucket -o anon=true",
    ),
    mistake("$ shardstore pack plain.zarr s3://nope/a.zarr -o endpoint_url=S3", "the bucket 'nope' does not exist at"),
)


@pytest.mark.parametrize("one", S3, ids=lambda one: one.made)
def test_a_mistake_on_s3(one: Mistake, s3_endpoint: str) -> None:
    options = {"key": "test", "secret": "test", "endpoint_url": s3_endpoint}
    check(one, said(Mistake(one.made.replace("=S3", f"={s3_endpoint}"), one.says), {"s3": options}))


def test_a_missing_bucket_is_one_error_with_a_short_traceback(s3_endpoint: str) -> None:
    store = shardstore.open("s3://nope/a.zarr", storage_options={"key": "test", "secret": "test", "endpoint_url": s3_endpoint})
    with pytest.raises(StorageError) as raised:
        zarr.open_group(store, mode="r")
    error = raised.value
    assert (type(error), error.has_no_place, error.__cause__, error.__suppress_context__) == (StorageError, True, None, True)
    frames = traceback.extract_tb(error.__traceback__)
    assert len([frame for frame in frames if "shardstore" in frame.filename and "tests" not in frame.filename]) <= 3


GOOGLE = (
    mistake("zarr.open_group(shardstore.open('gs://nope/a.zarr', storage_options=gs), mode='r')", "the bucket 'nope' does not exist at"),
    mistake("$ shardstore info gs://nope/a.zarr -o token=anon -o endpoint_url=GS", "'nope' does not exist at", "that: -o endpoint_url=…"),
)


@pytest.mark.parametrize("one", GOOGLE, ids=lambda one: one.made)
def test_a_mistake_on_gcs(one: Mistake, gcs_endpoint: str) -> None:
    options = {"token": "anon", "endpoint_url": gcs_endpoint}
    check(one, said(Mistake(one.made.replace("=GS", f"={gcs_endpoint}"), one.says), {"gs": options}))


UNREACHABLE = (
    mistake(
        f"$ shardstore info s3://b/a.zarr -o endpoint_url={NOWHERE}",
        "the server cannot be reached: check the network, and the address of the server, -o endpoint_url=…",
    ),
    mistake(f"$ shardstore info {NOWHERE}/a.zarr", f"{NOWHERE} cannot be reached: check the network, and host and port of the URL"),
    mistake("$ shardstore verify data.zarr --scheduler tcp://127.0.0.1:9", "no dask scheduler answers at tcp://127.0.0.1:9"),
)


@pytest.mark.parametrize("one", UNREACHABLE, ids=lambda one: one.made)
def test_a_server_that_does_not_answer(one: Mistake) -> None:
    check(one, said(one))


MISSING = {
    "typer": mistake("$ shardstore info data.zarr", "pip install 'shardstore[cli]'"),
    "starlette": mistake("$ shardstore serve data.zarr", "shardstore serve needs starlette: pip install 'shardstore[serve]'"),
    "s3fs": mistake("$ shardstore info s3://bucket/a.zarr", "'s3://bucket", "pip install 'shardstore[s3]'"),
    "pyarrow": mistake("$ shardstore refs write data.zarr refs.parquet", "pip install 'shardstore[parquet]'"),
    "jinja2": mistake("$ shardstore report data.zarr --output r.html", "pip install 'shardstore[report]'"),
    "xarray": mistake("$ shardstore append plain.zarr data.zarr --dim time", "pip install 'shardstore[xarray]'"),
    "matplotlib": mistake("$ shardstore census data.zarr --picture p.png", "pip install 'shardstore[plot]'"),
}


@pytest.mark.parametrize("package", MISSING)
def test_a_package_that_is_missing(package: str) -> None:
    one = MISSING[package]
    code = f"import sys; sys.modules[{package!r}] = None; from shardstore.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *one.made.split()[2:]], env={**os.environ, **PLAIN}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    check(one, done.stderr.removeprefix("error: ").strip())
