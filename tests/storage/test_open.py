"""What users call targets."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.registry import _registry

from shardstore.errors import InvalidInput, Unsupported
from shardstore.storage.local import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.open import open_storage
from shardstore.storage.s3 import S3Storage


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = LocalStorage(tmp_path / "a b")
    for target in (
        tmp_path / "a b",
        str(tmp_path / "a b"),
        f"{tmp_path}/a b/",
        "a b",
        "./a b",
        f"file://{tmp_path}/a b",
        f"local://{tmp_path}/a b",
    ):
        assert open_storage(target) == expected, target
    assert open_storage(tmp_path, fsync=False) == LocalStorage(tmp_path, fsync=False)
    assert open_storage(f"file://{tmp_path}", {"auto_mkdir": True}) == LocalStorage(tmp_path)
    assert open_storage((fsspec.filesystem("file"), str(tmp_path))) == LocalStorage(tmp_path)
    assert open_storage(fsspec.get_mapper(f"file://{tmp_path}/x")) == LocalStorage(tmp_path / "x")


def test_memory() -> None:
    expected = MemoryStorage("/x/y")
    for target in ("memory://x/y", "memory:///x/y", (fsspec.filesystem("memory"), "x/y"), fsspec.get_mapper("memory://x/y")):
        assert open_storage(target) == expected, target
    own = fsspec.filesystem("memory", global_store=False, skip_instance_cache=True)
    with pytest.raises(Unsupported, match="store of their own"):
        open_storage((own, "x"))


def test_storages_are_returned_as_they_are() -> None:
    storage = MemoryStorage("/x")
    assert open_storage(storage) is storage


def test_s3(s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url
    storage = open_storage(url, options)
    assert isinstance(storage, S3Storage)
    assert storage.url == url
    assert open_storage(url, {"s3": options}) == storage
    assert open_storage(url.replace("s3://", "s3a://") + "/", options) == storage
    assert open_storage((storage.fs, url)) == storage
    with pytest.raises(InvalidInput, match="bucket"):
        open_storage("s3://", options)


def test_missing_s3fs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    for protocol in ("s3", "s3a"):
        monkeypatch.delitem(_registry, protocol, raising=False)
    with pytest.raises(Unsupported, match=r"pip install shardstore\[s3\]"):
        open_storage("s3://bucket/x")


@pytest.mark.parametrize("url", ["sss://bucket/x", "simplecach::s3://bucket/x", "foo::s3://bucket/x", "simplecache::foo://bucket/x"])
def test_unknown_protocols(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not known: .*memory"):
        open_storage(url)


def test_errors_name_what_was_meant_and_no_secrets() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'memory'"):
        open_storage("memry://x")
    with pytest.raises(Unsupported) as caught:
        open_storage("ftp://user:secret@host/x")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("https://host/x", "https"),
        ("simplecache::s3://b/x", "simplecache::s3"),
        ("zip://x::memory://a.zip", "zip::memory"),
        ("gs://b/x", "gs"),
    ],
)
def test_kinds_of_later_versions(url: str, kind: str) -> None:
    with pytest.raises(Unsupported, match=f"'{kind}'"):
        open_storage(url)


def test_windows_drives_are_no_protocols() -> None:
    for target in ("c:\\data", "C:/data", "c://data"):
        assert isinstance(open_storage(target), LocalStorage)


@pytest.mark.parametrize("target", ["", 3, None, ("x", "y"), fsspec.filesystem("memory"), ["x"]])
def test_what_is_no_target(target: object) -> None:
    with pytest.raises(InvalidInput):
        open_storage(target)


@pytest.mark.parametrize("target", ["x", "memory://x", "file:///x", Path("x"), MemoryStorage("x")])
def test_options_that_mean_nothing(target: object) -> None:
    with pytest.raises(InvalidInput, match="storage_options"):
        open_storage(target, {"key": "x"})
