"""From a URL to the root of its hierarchy and the path in it."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from shardstore.adapters.store_paths import pair_options, resolve, resolve_pair
from shardstore.errors import InvalidInput
from shardstore.opening.address import Address
from tests.apps.cli.running import Place, run, succeed
from tests.stored import snapshot


@pytest.mark.parametrize(
    ("url", "head", "segments", "tail"),
    [
        ("s3://bucket/a/b", "s3://bucket", ("a", "b"), ""),
        ("s3://bucket", "s3://bucket", (), ""),
        ("s3://bucket/a/", "s3://bucket", ("a",), ""),
        ("gs://bucket/a", "gs://bucket", ("a",), ""),
        ("http://127.0.0.1:80/a/b", "http://127.0.0.1:80", ("a", "b"), ""),
        ("https://host/a?token=x/y", "https://host/a?token=x/y", (), ""),
        ("memory://a/b", "memory://", ("a", "b"), ""),
        ("memory://", "memory://", (), ""),
        ("file:///a/b", "file://", ("a", "b"), ""),
        ("/a/b/", "", ("a", "b"), ""),
        ("/", "", (), ""),
        ("simplecache::s3://bucket/a", "simplecache::s3://bucket", ("a",), ""),
        ("zip://a/b::s3://bucket/x.zip", "zip://", ("a", "b"), "::s3://bucket/x.zip"),
        ("zip://::/x.zip", "zip://", (), "::/x.zip"),
        ("reference://a::/refs.json", "reference://", ("a",), "::/refs.json"),
        ("zip::file:///x/z.zip", "zip::file:///x/z.zip", (), ""),
        ("sharded::zip::z.zip", "zip::z.zip", (), ""),
        ("reference::s3://bucket/refs.json", "reference::s3://bucket/refs.json", (), ""),
        ("sharded::s3://bucket/a", "s3://bucket", ("a",), ""),
        ("s3://bucket/a//b", "s3://bucket/a//b", (), ""),
    ],
)
def test_addresses(url: str, head: str, segments: tuple[str, ...], tail: str) -> None:
    address = Address.parse(url)
    assert (address.head, address.segments, address.tail) == (head, segments, tail)


@pytest.mark.parametrize(
    ("url", "roots"),
    [
        ("s3://bucket/a/b", ["s3://bucket", "s3://bucket/a", "s3://bucket/a/b"]),
        ("memory://a/b", ["memory://", "memory://a", "memory://a/b"]),
        ("file:///a/b", ["file:///", "file:///a", "file:///a/b"]),
        ("/a/b", ["/", "/a", "/a/b"]),
        ("zip://a::/x.zip", ["zip://::/x.zip", "zip://a::/x.zip"]),
    ],
)
def test_addresses_of_what_is_above(url: str, roots: list[str]) -> None:
    address = Address.parse(url)
    assert [address.at(depth) for depth in range(len(address.segments) + 1)] == roots


def test_paths_are_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert str(Address.parse("a/b")) == str(tmp_path / "a/b")
    assert str(Address.parse(".")) == str(tmp_path)
    assert str(Address.parse("~/a")) == str(tmp_path / "home/a")
    with pytest.raises(InvalidInput, match="names no place"):
        Address.parse("")


@pytest.mark.parametrize(
    ("url", "path", "shown"),
    [
        ("/a/b", "c/0", "/a/b/c/0"),
        ("s3://bucket", "c", "s3://bucket/c"),
        ("memory://", "c", "memory://c"),
        ("zip://a::file:///z.zip", "c", "zip://a/c::file:///z.zip"),
        ("zip::file:///z.zip", "c", "zip://c::file:///z.zip"),
        ("https://host/a?token=x", "c", "https://host/a?…/c"),
        ("/a", "", "/a"),
    ],
)
def test_places_below_are_shown(url: str, path: str, shown: str) -> None:
    address = Address.parse(url)
    assert address.shown_below(len(address.segments), path) == shown


@pytest.mark.parametrize("form", ["zip::file://{}/z.zip", "zip::z.zip", "sharded::zip::z.zip", "zip://::file://{}/z.zip"])
def test_archives_and_what_is_in_them(local: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.chdir(tmp_path)
    url = form.format(tmp_path)
    outcome = run("info", url)
    assert (outcome.code, "there is no such file" in outcome.error) == (3, True)
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        for key, data in snapshot(local.objects).items():
            archive.writestr(key, data)
    assert succeed("ls", url).lines == succeed("ls", local.url).lines
    assert "2 groups, 3 arrays" in succeed("info", url).out
    missing = run("ls", url, "nothing")
    assert (missing.code, "there is nothing at zip://nothing::" in missing.error) == (3, True)


def test_secrets_are_not_shown() -> None:
    address = Address.parse("http://me:secret@host/a/b")
    assert address.at(1) == "http://me:secret@host/a"
    assert (address.shown(1), str(address)) == ("http://host/a", "http://host/a/b")
    assert "secret" not in str(Address.parse("https://host/a?token=secret"))


@pytest.mark.parametrize("below", ["", "ct", "ct/c/0/3", "scans", "scans/pt", "scans/pt/c/9", "nothing/here", "ct/zarr.json"])
def test_the_root_is_the_topmost_node(place: Place, below: str) -> None:
    target = resolve(f"{place.url}/{below}", place.storage_options)
    assert target.has_root
    assert target.path == below.rstrip("/")
    assert target.address.at(target.depth) == str(Address.parse(place.url))


def test_the_root_behind_a_chain(local: Place) -> None:
    target = resolve(f"simplecache::file://{local.url}/ct/c/0/0", {})
    assert (target.address.at(target.depth), target.path) == (f"simplecache::file://{local.url}", "ct/c/0/0")


def test_a_root_is_told_from_nodes_that_are_not_connected(local: Place) -> None:
    """``a/inner`` has no node above it but further up: it is a hierarchy of its own."""
    for key in ("zarr.json", "ct/zarr.json"):
        data = local.objects.get(key)
        assert data is not None
        local.objects.put(f"loose/inner/{key}", data)
    target = resolve(f"{local.url}/loose/inner/ct/c/0/0", {})
    assert (target.address.at(target.depth), target.path) == (f"{local.url}/loose/inner", "ct/c/0/0")


def test_without_any_node_the_url_is_the_root(tmp_path: Path) -> None:
    target = resolve(f"{tmp_path}/a/b", {})
    assert (target.has_root, target.path, target.engine.storage.url) == (False, "", f"file://{tmp_path}/a/b")
    key = target.as_key()
    assert (key.path, key.engine.storage.url) == ("b", f"file://{tmp_path}/a")
    assert key.as_key() is key


def test_a_deep_path_is_looked_up_within_bounds(local: Place) -> None:
    deep = f"{local.url}/" + "/".join(["d"] * 40)
    assert not resolve(deep, {}).has_root
    assert resolve(f"{local.url}/" + "/".join(["d"] * 20), {}).has_root


@pytest.mark.parametrize(
    ("source", "target", "root", "paths"),
    [
        ("ct", "ct2", "", ("ct", "ct2")),
        ("ct", "scans/ct", "", ("ct", "scans/ct")),
        ("", "../copy.zarr", "..", ("data.zarr", "copy.zarr")),
        ("ct", "../deep/copy.zarr", "..", ("data.zarr/ct", "deep/copy.zarr")),
        ("", "inside", "..", ("data.zarr", "data.zarr/inside")),
    ],
)
def test_pairs_in_one_storage_share_an_engine(local: Place, source: str, target: str, root: str, paths: tuple[str, str]) -> None:
    one, other = resolve_pair(os.path.join(local.url, source), os.path.join(local.url, target), {}, {})
    assert one.engine is other.engine
    assert one.engine.storage.url == "file://" + os.path.normpath(os.path.join(local.url, root))
    assert (one.path, other.path) == paths


def test_pairs_in_two_storages_do_not(local: Place) -> None:
    one, other = resolve_pair(local.url, "memory://somewhere/else.zarr", {}, {})
    assert (one.path, other.path) == ("", "else.zarr")
    assert (one.engine.storage.kind, other.engine.storage.kind) == ("local", "memory")


@pytest.mark.parametrize(
    ("source", "target", "of_target", "expected"),
    [
        ("s3://b/x", "s3://b/y", None, ({"a": 1}, {"a": 1})),
        ("s3://b/x", "/y", None, ({"a": 1}, {})),
        ("/x", "s3://b/y", None, ({}, {"a": 1})),
        ("memory://x", "/y", None, ({"a": 1}, {"a": 1})),  # refused by the storage, with a message
        ("s3://b/x", "s3://c/y", {"b": 2}, ({"a": 1}, {"b": 2})),
        ("s3://b/x", "/y", {}, ({"a": 1}, {})),
    ],
)
def test_options_of_two_urls(source: str, target: str, of_target: dict[str, Any] | None, expected: tuple[Any, Any]) -> None:
    assert pair_options(source, target, {"a": 1}, of_target) == expected
