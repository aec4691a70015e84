"""Programs for S3 list, get and copy what is served, and copy nothing a second time: those of PyPI, each as its users run it.

``SHARDSTORE_CLIENTS`` is the directory of the programs: ``make test-all`` installs them into an environment of their own, since awscli
insists on another botocore than s3fs.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import obstore
import pytest
import s3fs
import zarr
from botocore.config import Config

import shardstore
from shardstore.apps.server import Serving, serve
from tests.apps.server.conftest import make_store

pytestmark = [pytest.mark.filterwarnings("ignore")]

KEYS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
CHUNK = "ct/c/0/0/0"
ODD = "notes/a+b %41 ä"
_BIN = os.environ.get("SHARDSTORE_CLIENTS")

needs_programs = [
    pytest.mark.gate,
    pytest.mark.skipif(_BIN is None, reason="SHARDSTORE_CLIENTS does not name a directory with aws, s3cmd and rclone"),
]


def of_view(place: Path, view: str) -> dict[str, bytes]:
    if view == "stored":
        return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    found = shardstore.get_mapper(str(place), read_only=True, present="v2" if view == "zarr2" else "v3")
    return {key: bytes(found[key]) for key in found}


def of_directory(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    made = make_store(tmp_path / "data.zarr")
    (made / ODD).write_bytes(b"odd")
    for path in made.rglob("*"):  # copies take the times over: what changes later has another one
        os.utime(path, (1.7e9, 1.7e9))
    return made


@pytest.fixture
def serving(place: Path) -> Iterator[Serving]:
    with serve(place, port=0) as made:
        yield made


@dataclass
class Program:
    """One of the programs, and its words for what is done with it."""

    name: str
    home: Path
    list_: Callable[[str], list[str]]
    """Takes the view."""
    get: Callable[[str, str], list[str]]
    """Takes the path of an object, and the file to copy it to."""
    head: Callable[[str, str], list[str]]
    """Takes the view and the key."""
    sync: Callable[[str, str], list[str]]
    """Takes the view, and the directory to copy it to."""

    def run(self, arguments: list[str]) -> str:
        """Run the program, and return what it says. Fails if it fails."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.home), "LANG": "C.UTF-8", "no_proxy": "*", **KEYS}
        done = subprocess.run([f"{_BIN}/{self.name}", *arguments], env=env, capture_output=True, check=False, timeout=240)
        said = (done.stdout + done.stderr).decode(errors="replace")
        assert done.returncode == 0, said
        assert "WARNING" not in said, said
        return said


def program(name: str, serving: Serving, home: Path) -> Program:
    url = serving.url.rstrip("/")
    host = url.removeprefix("http://")
    if name == "aws":
        start = ["--endpoint-url", url]
        return Program(
            name,
            home,
            lambda view: [*start, "s3", "ls", "--recursive", f"s3://{view}"],
            lambda path, file: [*start, "s3", "cp", f"s3://{path}", file],
            lambda view, key: [*start, "s3api", "head-object", "--bucket", view, "--key", key],
            lambda view, to: [*start, "s3", "sync", "--no-progress", "--exact-timestamps", f"s3://{view}", to],
        )
    if name == "s3cmd":
        keys = ["--access_key=any", "--secret_key=any"]
        start = ["--config=/dev/null", *keys, "--no-ssl", f"--host={host}", f"--host-bucket={host}", "--no-progress"]
        return Program(
            name,
            home,
            lambda view: [*start, "ls", "--recursive", f"s3://{view}"],
            lambda path, file: [*start, "get", f"s3://{path}", file],
            lambda view, key: [*start, "info", f"s3://{view}/{key}"],
            lambda view, to: [*start, "sync", f"s3://{view}/", f"{to}/"],
        )
    start = ["--config=/dev/null", "--s3-provider=Other", f"--s3-endpoint={url}", "--s3-env-auth"]
    return Program(
        name,
        home,
        lambda view: [*start, "lsl", f":s3:{view}"],
        lambda path, file: [*start, "copyto", f":s3:{path}", file],
        lambda view, key: [*start, "lsl", f":s3:{view}/{key}"],
        lambda view, to: [*start, "sync", "-v", f":s3:{view}", to],
    )


@pytest.mark.parametrize("view", ["zarr3", "zarr2", "stored"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=needs_programs) for name in ("aws", "s3cmd", "rclone")])
def test_program_lists_gets_and_synchronises(serving: Serving, place: Path, tmp_path: Path, name: str, view: str) -> None:
    client = program(name, serving, tmp_path)
    wanted = of_view(place, view)
    chunk = CHUNK.replace("/c/", "/") if view == "zarr2" else CHUNK

    listed = client.run(client.list_(view))
    assert all(key in listed for key in wanted)
    client.run(client.get(f"{view}/{chunk}", str(tmp_path / "one")))
    assert (tmp_path / "one").read_bytes() == wanted[chunk]
    assert "2023" in client.run(client.head(view, chunk))  # the year of 1.7e9

    copied = tmp_path / "copied"
    copied.mkdir()
    client.run(client.sync(view, str(copied)))
    assert of_directory(copied) == wanted
    again = client.run(client.sync(view, str(copied)))
    assert not [key for key in wanted if key in again]  # nothing is copied twice

    array = zarr.open_array(shardstore.open(str(place), fsync=False), path="ct", mode="r+")
    array[:8, :8, :8] = 7
    if name != "s3cmd":  # which compares sizes, and MD5 sums where it takes a tag for one
        (place / "notes/read me.txt").write_bytes(b"something ELSE")
    now = of_view(place, view)
    assert len(now[chunk]) != len(wanted[chunk])
    said = client.run(client.sync(view, str(copied)))
    assert of_directory(copied) == now
    assert chunk in said
    assert "gz/" not in said  # what did not change


# -- packages --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["zarr3", "zarr2", "stored"])
def test_packages_list_get_and_tell_times(serving: Serving, place: Path, view: str) -> None:
    wanted = of_view(place, view)
    endpoint = serving.url.rstrip("/")
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
        aws_access_key_id="any",
        aws_secret_access_key="any",
        region_name="us-east-1",
    )
    entries = {one["Key"]: one for page in client.get_paginator("list_objects_v2").paginate(Bucket=view) for one in page["Contents"]}
    assert {key: one["Size"] for key, one in entries.items()} == {key: len(data) for key, data in wanted.items()}
    fs = s3fs.S3FileSystem(key="any", secret="any", endpoint_url=endpoint, skip_instance_cache=True)
    store = obstore.store.S3Store(
        view, endpoint=endpoint, access_key_id="any", secret_access_key="any", region="us-east-1", client_options={"allow_http": True}
    )
    of_obstore = {one["path"]: one for page in obstore.list(store) for one in page}
    assert sorted(of_obstore) == sorted(wanted)
    for key, data in wanted.items():
        head, got = client.head_object(Bucket=view, Key=key), client.get_object(Bucket=view, Key=key)
        assert got["Body"].read() == data
        for name in ("ETag", "LastModified"):
            assert head[name] == got[name] == entries[key][name], (key, name)
        assert head["LastModified"].timestamp() == 1.7e9, key
        assert (of_obstore[key]["e_tag"], of_obstore[key]["last_modified"]) == (head["ETag"], head["LastModified"])
        assert fs.modified(f"{view}/{key}") == head["LastModified"]
        assert fs.checksum(f"{view}/{key}") == int(head["ETag"].strip('"').partition("-")[0], 16)


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_presigned_urls(place: Path, version: str) -> None:
    import httpx

    for token, status in ((None, 200), ("any", 403), ("other", 403)):
        with serve(place, port=0, token=token) as serving:
            client = boto3.client(
                "s3",
                endpoint_url=serving.url.rstrip("/"),
                config=Config(s3={"addressing_style": "path"}, signature_version=version),
                aws_access_key_id="any",
                aws_secret_access_key="any",
                region_name="us-east-1",
            )
            asked = {"Bucket": "zarr3", "Key": CHUNK}
            shown = {"ResponseContentType": "image/png", "ResponseExpires": "0"}
            found = httpx.get(client.generate_presigned_url("get_object", {**asked, **shown}), trust_env=False)
            assert found.status_code == status
            assert (found.content == of_view(place, "zarr3")[CHUNK]) is (token is None)
            assert httpx.head(client.generate_presigned_url("head_object", asked), trust_env=False).status_code == status
            for operation, given in (("list_objects_v2", {"Bucket": "zarr3"}), ("list_objects", {"Bucket": "zarr3"}), ("list_buckets", {})):
                listed = httpx.get(client.generate_presigned_url(operation, given), trust_env=False)
                assert listed.status_code == status, operation
                assert (b"Result" in listed.content) is (token is None)
            missing = httpx.get(client.generate_presigned_url("get_object", {"Bucket": "zarr3", "Key": "ct"}), trust_env=False)
            assert missing.status_code == (404 if token is None else 403)  # an object is asked for, not a directory
