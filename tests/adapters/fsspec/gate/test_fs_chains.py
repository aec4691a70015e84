"""Chains of links with ``sharded`` among them: caches above and below it, archives and references below, options by link."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

import shardstore
from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
from shardstore.errors import NotFound, ShardStoreError
from tests.adapters.places import Place, array_document, is_document, memory_place, put_sample
from tests.shards import presented

EXPECTED_CT = np.arange(64).reshape(8, 8) + 10
EXPECTED_CT[2:4, 4:6] = 9


def check_sample(fs: Any, root: str, sample: dict[str, bytes]) -> None:
    """The whole sample is there, by every way to ask."""
    root = root.rstrip("/")
    names = {f"{root}/{key}" for key in sample}
    assert {str(name) for name in fs.find(root)} == names
    for key, value in sample.items():
        if not is_document(key):
            assert fs.cat_file(f"{root}/{key}") == value, key
            with fs.open(f"{root}/{key}", "rb") as file:
                assert file.read() == value
    assert fs.cat_ranges([f"{root}/ct/c/0/0"] * 2, [0, -2], [3, None]) == [sample["ct/c/0/0"][:3], sample["ct/c/0/0"][-2:]]
    assert fs.cat_file(f"{root}/g/data/raw.bin", 10, 20) == bytes(range(10, 20))
    assert not fs.exists(f"{root}/ct/c/1/2")
    assert fs.isdir(f"{root}/ct/c")
    assert b"sharding_indexed" not in fs.cat_file(f"{root}/ct/zarr.json")
    assert len(fs.glob(f"{root}/ct/c/*/1")) == 4


# -- above ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["simplecache", "filecache", "blockcache"])
# zarr takes a cache for asynchronous where what is below it is, with s3fs below as well; and blockcache leaves its files open.
@pytest.mark.filterwarnings("ignore:fs .*CacheFileSystem.* was not created with:zarr.errors.ZarrUserWarning")
@pytest.mark.filterwarnings("ignore:fs .*CachingFileSystem.* was not created with:zarr.errors.ZarrUserWarning")
@pytest.mark.filterwarnings("ignore:.*cache.*:pytest.PytestUnraisableExceptionWarning")
def test_a_cache_above(place: Place, sample: dict[str, bytes], tmp_path: Path, cache: str) -> None:
    url = f"{cache}::sharded::{place.url}"
    options = {cache: {"cache_storage": str(tmp_path / "cache")}, **place.link_options()}
    fs, root = fsspec.core.url_to_fs(url, **options)
    assert root == place.path
    for key in ("ct/c/0/0", "notes.txt", "g/lung/c.3"):
        assert fs.cat(f"{root}/{key}") == sample[key]
        with fs.open(f"{root}/{key}", "rb") as file:
            assert file.read() == sample[key]
    assert fs.find(f"{root}/ct/c/1") == place.full("ct/c/1/0", "ct/c/1/1", "ct/c/1/3")
    if cache != "filecache":  # whose own ``_cat_file``, which zarr calls, raises TypeError whatever is below it
        x = zarr.open_array(f"{url}/ct", mode="r", storage_options=options)
        np.testing.assert_array_equal(x[...], EXPECTED_CT)
    counters = place.filesystem().counters
    counters.reset()
    with fsspec.open(f"{url}/ct/c/0/0", "rb", **options) as file:
        assert file.read() == sample["ct/c/0/0"]
    assert counters.chunks_read == 0, "it is in the cache"


def test_a_cache_that_checks_sees_changes(tmp_path: Path) -> None:
    """``filecache`` asks ``ukey``, which is another one for other bytes."""
    place = memory_place()
    put_sample(place.objects)
    options = {"filecache": {"cache_storage": str(tmp_path), "check_files": True}, **place.link_options()}
    fs, root = fsspec.core.url_to_fs(f"filecache::sharded::{place.url}", **options)

    def read() -> bytes:
        with fs.open(f"{root}/ct/c/0/0", "rb") as file:
            return bytes(file.read())

    before = read()
    assert read() == before
    place.filesystem().pipe_file("ct/c/0/0", b"8 others")
    assert read() == b"8 others"


def test_writing_through_a_cache(place: Place, sample: dict[str, bytes], tmp_path: Path) -> None:
    fs, root = fsspec.core.url_to_fs(
        f"simplecache::sharded::{place.url}", simplecache={"cache_storage": str(tmp_path)}, **place.link_options()
    )
    with fs.open(f"{root}/ct/c/0/0", "wb") as file:
        file.write(b"12345678")
    fs.pipe_file(f"{root}/ct/c/1/2", b"abcdefgh")
    shown = presented(place.objects)
    assert (shown["ct/c/0/0"], shown["ct/c/1/2"]) == (b"12345678", b"abcdefgh")
    assert shown["ct/c/0/1"] == sample["ct/c/0/1"]


def test_a_directory_of_it(place: Place, sample: dict[str, bytes]) -> None:
    """``dir`` makes paths relative: names in it are presented keys."""
    fs = DirFileSystem(path=place.path, fs=place.filesystem())
    assert fs.find("g/lung") == sorted(key for key in sample if key.startswith("g/lung/"))
    assert fs.cat("ct/c/0/0") == sample["ct/c/0/0"]
    fs.pipe("ct/c/1/2", b"abcdefgh")
    assert presented(place.objects)["ct/c/1/2"] == b"abcdefgh"
    inside = DirFileSystem(path=f"{place.path}/ct", fs=place.filesystem())
    assert inside.ls("c/1", detail=False) == ["c/1/0", "c/1/1", "c/1/2", "c/1/3"]
    inside.rm("c/1/2")
    inside.rm("c/0", recursive=True)
    assert "ct/c/0/0" not in presented(place.objects)


# -- below ---------------------------------------------------------------------------------------------------------------


def test_a_cache_below(place: Place, sample: dict[str, bytes], tmp_path: Path) -> None:
    url = f"sharded::simplecache::{place.url}"
    options = {**place.link_options(), "simplecache": {"cache_storage": str(tmp_path / "cache")}}
    fs, root = fsspec.core.url_to_fs(url, **options)
    assert isinstance(fs, ShardedFileSystem)
    check_sample(fs, root, sample)
    np.testing.assert_array_equal(zarr.open_array(url, path="ct", mode="r", storage_options=options)[...], EXPECTED_CT)


def test_an_archive_below(tmp_path: Path) -> None:
    """A native hierarchy in a ZIP file: read chunk by chunk, without unpacking."""
    source = Place(f"file://{tmp_path}/store")
    sample = put_sample(source.objects)
    archive = tmp_path / "store.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for key in source.objects.keys():  # noqa: SIM118 - no mapping
            file.writestr(key, source.objects.get(key) or b"")
    url = f"sharded::zip::file://{archive}"
    fs, root = fsspec.core.url_to_fs(url)
    check_sample(fs, root, sample)
    np.testing.assert_array_equal(zarr.open_array(url, path="ct", mode="r")[...], EXPECTED_CT)
    np.testing.assert_array_equal(zarr.open_array(f"sharded://ct::zip::file://{archive}", mode="r")[...], EXPECTED_CT)
    with fsspec.open(f"sharded://ct/c/0/0::zip::file://{archive}", "rb") as opened:
        assert opened.read() == sample["ct/c/0/0"]
    with pytest.raises((ShardStoreError, OSError)):
        fs.pipe_file(f"{root}/notes.txt", b"x")
    with zipfile.ZipFile(archive) as file:
        assert file.read("notes.txt") == b"about this"


def test_references_below(place: Place, sample: dict[str, bytes], tmp_path: Path) -> None:
    """Documents inline, shards as ranges of one large file: what virtual datasets are made of."""
    blob = bytearray()
    references: dict[str, Any] = {}
    for key in place.objects.keys():  # noqa: SIM118 - no mapping
        data = place.objects.get(key) or b""
        if is_document(key):
            references[key] = data.decode()
        else:
            references[key] = [f"file://{tmp_path}/blob", len(blob), len(data)]
            blob += data
    (tmp_path / "blob").write_bytes(blob)
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": references}))
    url = f"sharded::reference::file://{tmp_path}/refs.json"
    fs, root = fsspec.core.url_to_fs(url, reference={"remote_protocol": "file"})
    assert fs.cat_file("ct/c/3/3") == sample["ct/c/3/3"]
    assert fs.cat_file("g/data/raw.bin", 10, 20) == bytes(range(10, 20))
    found = {fs.key_of(path) for path in fs.find(root)}
    assert found == set(sample)
    with pytest.raises(NotFound):
        fs.cat_file("ct/c/1/2")
    x = zarr.open_array(url, path="ct", mode="r", storage_options={"reference": {"remote_protocol": "file"}})
    np.testing.assert_array_equal(x[...], EXPECTED_CT)


def test_another_filesystem_below(sample: dict[str, bytes], place: Place) -> None:
    """``dir``, given as an object."""
    shard_keys = place.objects.keys()
    below, path = fsspec.core.url_to_fs(place.url, **place.storage_options)
    head, _, last = path.rpartition("/")
    if not head:
        below.mv(path, f"{path}-deep/{last}", recursive=True)
        head = f"{path}-deep"
    fs = ShardedFileSystem(fo=last, fs=DirFileSystem(path=head, fs=below))
    check_sample(fs, last, sample)
    fs.pipe_file("ct/c/0/0", b"12345678")
    assert fs.cat_file("ct/c/0/0") == b"12345678"
    assert fs.cat_file("ct/c/0/1") == sample["ct/c/0/1"]
    assert sorted(below.find(head)) == sorted(f"{head}/{last}/{key}" for key in shard_keys)


# -- urls and options ----------------------------------------------------------------------------------------------------


def test_a_file_before_the_rest_of_the_chain(place: Place, sample: dict[str, bytes]) -> None:
    """As with archives: ``sharded://path::target``."""
    options = place.link_options()
    for key in ("ct/c/0/0", "g/lung/c.3", "notes.txt"):
        with fsspec.open(f"sharded://{key}::{place.url}", "rb", **options) as file:
            assert file.read() == sample[key]
    fs, path = fsspec.core.url_to_fs(f"sharded://ct/c::{place.url}", **options)
    assert fs.find(path) == place.full(*(key for key in sample if key.startswith("ct/c/")))
    assert fsspec.get_mapper(f"sharded://ct::{place.url}", **options)["c/0/0"] == sample["ct/c/0/0"]
    np.testing.assert_array_equal(zarr.open_array(f"sharded://ct::{place.url}", mode="r+", storage_options=options)[...], EXPECTED_CT)
    with fsspec.open(f"sharded://ct/c/1/2::{place.url}", "wb", **options) as file:
        file.write(b"abcdefgh")
    assert presented(place.objects)["ct/c/1/2"] == b"abcdefgh"


def test_a_file_at_the_end_of_the_url(place: Place, sample: dict[str, bytes]) -> None:
    """The URL may point into the hierarchy, to a node or a chunk: where it begins is found out."""
    options = place.link_options()
    for key in ("ct/c/0/0", "g/lung/c.3", "notes.txt", "g/data/raw.bin"):
        with fsspec.open(f"sharded::{place.url}/{key}", "rb", **options) as file:
            assert file.read() == sample[key]
    with fsspec.open(f"sharded::{place.url}/ct/zarr.json", "rb", **options) as file:
        assert b"sharding_indexed" not in file.read()
    with fsspec.open(f"sharded::{place.url}/ct/c/1/2", "wb", **options) as file:
        file.write(b"abcdefgh")
    assert presented(place.objects)["ct/c/1/2"] == b"abcdefgh"
    with pytest.raises(FileNotFoundError):
        fsspec.open(f"sharded::{place.url}/ct/c/9/9", "rb", **options).open()


def test_options_by_link(s3_url: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    """Each link gets its own, however the URL is opened."""
    url, s3 = s3_url
    options = {"sharded": {"chunks_per_shard": (4,), "read_only": False}, "s3": s3}
    fs, _ = fsspec.core.url_to_fs(f"sharded::{url}", **options)
    assert fs.handle.recipe.options.chunks_per_shard == (4,)
    fs.pipe({"zarr.json": array_document((32,), (2,)), **{f"c/{i}": b"xy" for i in range(8)}})
    assert len([key for key in Place(url, s3).objects.keys() if key.startswith("c/")]) == 2  # noqa: SIM118 - no mapping
    top, _ = fsspec.core.url_to_fs(f"sharded::{url}", chunks_per_shard=(4,), read_only=False, s3=s3)
    assert top.engine is fs.engine
    assert shardstore.open(url, storage_options=s3, chunks_per_shard=(4,)).engine is fs.engine
    cached, path = fsspec.core.url_to_fs(f"simplecache::sharded::{url}", simplecache={"cache_storage": str(tmp_path)}, **options)
    assert cached.cat(f"{path}/c/3") == b"xy"
    assert cached.fs.engine is fs.engine


def test_unusual_ends_of_urls(tmp_path: Path) -> None:
    put_sample(Place(f"file://{tmp_path}/a b").objects)
    for start, end in (("file://", "/"), ("", ""), ("local://", ""), ("file:", "")):
        url = f"sharded::{start}{tmp_path}/a b{end}"
        fs, root = fsspec.core.url_to_fs(url)
        assert fs.cat_file("notes.txt") == b"about this", url
        assert fs.ls(root, detail=False) == sorted(f"{tmp_path}/a b/{name}" for name in ("ct", "g", "notes.txt", "zarr.json"))
    memory = memory_place()
    put_sample(memory.objects)
    for url in (f"sharded::{memory.url}", f"sharded::{memory.url}/", f"sharded::memory://{memory.path}"):
        assert fsspec.core.url_to_fs(url)[0].cat_file("notes.txt") == b"about this"


def test_the_root_of_a_filesystem() -> None:
    """``sharded::memory://`` is the whole of it; ``file:///`` reads like that, too."""
    place = memory_place()
    put_sample(place.objects)
    fs, root = fsspec.core.url_to_fs("sharded::memory://")
    assert root in ("", "/")
    name = place.path.strip("/")
    assert fs.cat_file(f"/{name}/notes.txt") == b"about this"
    assert b"sharding_indexed" not in fs.cat_file(f"/{name}/ct/zarr.json")
    assert f"/{name}/ct/c/0/0" in [f"/{path.lstrip('/')}" for path in fs.find(f"/{name}/ct/c")]
    assert place.path.strip("/") in [path.strip("/") for path in fs.ls(root, detail=False)]


def test_filesystems_below_are_left_alone(place: Place, sample: dict[str, bytes]) -> None:
    """Instances of fsspec's own that others use do not change by it."""
    before = {MemoryFileSystem(): MemoryFileSystem().storage_options, LocalFileSystem(): LocalFileSystem().auto_mkdir}
    fs = place.filesystem()
    fs.pipe_file("new/deep/file", b"1")
    assert before == {MemoryFileSystem(): MemoryFileSystem().storage_options, LocalFileSystem(): LocalFileSystem().auto_mkdir}
    below, path = fsspec.core.url_to_fs(place.url, **place.storage_options)
    below.invalidate_cache()
    assert below.cat_file(f"{path}/new/deep/file") == b"1"
