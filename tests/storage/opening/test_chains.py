"""Chains of links, and local paths that look like them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec
import pytest

from shardstore.errors import InvalidInput
from shardstore.opening.address import Address, links_of_url, text_of
from shardstore.opening.open import open_storage
from shardstore.storage.local.storage import LocalStorage

NAMES = (
    "run::v2",
    "run@main",
    "run#1",
    "run?x=1",
    "run%41",
    "~run",
    "run*",
    "run[1]",
    "zip::run",
    "file::run",
    "s3:",
    "a::b::c",
    "c::x",
    "::",
)
"""Names of directories that mean something in URLs, patterns or shells."""


@pytest.mark.parametrize("name", NAMES)
def test_a_path_object_is_the_path_itself(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / name
    assert text_of(path) == str(path)
    assert open_storage(path) == LocalStorage(str(path)), "before it is there"
    path.mkdir()
    assert open_storage(path) == LocalStorage(str(path))
    monkeypatch.chdir(tmp_path)
    assert open_storage(Path(name)) == LocalStorage(str(path))
    assert open_storage(path / "a") == LocalStorage(f"{path}/a")


@pytest.mark.parametrize("name", NAMES)
def test_an_absolute_path_as_text_is_the_path_itself(name: str, tmp_path: Path) -> None:
    for text in (f"{tmp_path}/{name}", f"file://{tmp_path}/{name}", f"local://{tmp_path}/{name}", f"sharded::{tmp_path}/{name}"):
        assert open_storage(text) == LocalStorage(f"{tmp_path}/{name}"), text
        address = Address.parse(text)
        assert address.segments[-1] == name
        assert open_storage(address.at(len(address.segments))) == LocalStorage(f"{tmp_path}/{name}")
        beside = address.beside(".record")
        assert beside is not None
        assert open_storage(beside) == LocalStorage(f"{tmp_path}/{name}.record")


def test_a_relative_path_with_a_slash_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_storage("./run::v2") == open_storage("x/../run::v2") == LocalStorage(f"{tmp_path}/run::v2")
    assert Address.parse("./run::v2/a").segments[-2:] == ("run::v2", "a")


def test_a_name_alone_is_a_path_if_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    for text in ("run::v2", "run::v2/a", "file::run", "c::x"):
        with pytest.raises(InvalidInput, match=r"pathlib\.Path"):
            open_storage(text)
        with pytest.raises(InvalidInput, match=r"pathlib\.Path"):
            Address.parse(text)
    for name in ("run::v2", "file::run", "c::x"):
        Path(name).mkdir()
        assert open_storage(name) == LocalStorage(f"{tmp_path}/{name}")
    assert open_storage("run::v2/a") == LocalStorage(f"{tmp_path}/run::v2/a")
    Path("zip::run").mkdir()
    assert links_of_url("zip::run") == ["zip", "run"]  # a chain, whatever lies here


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("/data/run::s3://bucket/x", "a path reads through no other link"),
        ("run.zarr::s3://bucket/x", r"protocol 'run\.zarr'.* is not known.*pathlib\.Path"),
        ("file:///data/run::memory://x", "'file' reads through no other link"),
        ("s3://bucket/run::v2", r"'s3' reads through no other link.*\(fs, path\)"),
        ("memory://run::v2", "'memory' reads through no other link"),
        ("https://host/run::v2", "'https' reads through no other link"),
        ("simplecache::memory://run::v2", "'memory' reads through no other link"),
        ("memory::run", "'memory' reads through no other link"),
        ("zip::/data/run::v2.zip", "where fsspec would cut it"),
        ("simplecache::file:///data/run::v2", "where fsspec would cut it"),
    ],
)
def test_what_is_neither_a_chain_nor_a_path_is_refused(url: str, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        open_storage(url)


def test_chains_are_cut_at_their_links() -> None:
    for url, links in {
        "/data/run": ["/data/run"],
        "s3://bucket/x": ["s3://bucket/x"],
        "simplecache::s3://bucket/x": ["simplecache", "s3://bucket/x"],
        "zip://a/b::simplecache::https://host/x.zip": ["zip://a/b", "simplecache", "https://host/x.zip"],
        "zip://a::/data/x.zip": ["zip://a", "/data/x.zip"],
        "reference::/data/run::v2/refs.json": ["reference", "/data/run::v2/refs.json"],
        "sharded::sharded::memory://x": ["sharded", "sharded", "memory://x"],
    }.items():
        assert links_of_url(url) == links


def test_path_objects_of_packages_that_know_urls_are_urls() -> None:
    class Elsewhere(os.PathLike[str]):
        def __fspath__(self) -> str:
            return "memory://x/y"

    assert text_of(Elsewhere()) == "memory://x/y"
    assert open_storage(Elsewhere()) == open_storage("memory://x/y")


@pytest.mark.parametrize("below", ["/run::v2", "file:///run::v2", "simplecache::file:///run::v2", "file:///run::file:///v2"])
def test_the_filesystem_refuses_what_fsspec_has_cut(below: str, tmp_path: Path) -> None:
    """fsspec cuts at every ``::``, and gives what is before it as the store."""
    url = f"sharded::{below}".replace("/run", f"{tmp_path}/run")
    with pytest.raises(InvalidInput, match=r"'file', the link of .* reads through no other link"):
        fsspec.url_to_fs(url)


def test_the_filesystem_takes_such_a_path_by_arguments(tmp_path: Path) -> None:
    made: Any = fsspec.filesystem("sharded", fo=f"{tmp_path}/run::v2", target_protocol="file")
    made.pipe("k", b"v")
    assert (tmp_path / "run::v2/k").read_bytes() == b"v"
    assert made.cat(f"{tmp_path}/run::v2/k") == b"v"
    assert [path.name for path in tmp_path.iterdir()] == ["run::v2"]
