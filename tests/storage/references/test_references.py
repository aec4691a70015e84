"""Sets of references, as they are opened when nothing is said of templates: all of the specification holds."""

from __future__ import annotations

import copy
import json
import pickle
import sys
import warnings
from importlib import util
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.cached import SimpleCacheFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.implementations.reference import ReferenceFileSystem

import shardstore
from shardstore.errors import Corruption, InvalidInput, NotFound, Unsupported
from shardstore.opening.address import Address
from shardstore.opening.open import open_storage
from shardstore.opening.references import ReferenceTargets, SetAddress, TargetOptions, split_url
from shardstore.storage.references.storage import ReferenceStorage
from shardstore.testing.storage_suite import SyncStorage

VALUES = np.arange(64, dtype="i4").reshape(8, 8)


def generated(place: Path) -> dict[str, Any]:
    """A set whose shards are all generated, with a template that has a variable; the shards lie in one file at ``place``."""
    source = shardstore.open(place / "source", chunks_per_shard=(2, 2))
    zarr.create_array(source, name="a", shape=(8, 8), chunks=(2, 2), dtype="i4", compressors=None, fill_value=0)[...] = VALUES
    shards = [(place / f"source/a/c/{i}/{j}").read_bytes() for i in range(2) for j in range(2)]
    (place / "shards").write_bytes(b"head" + b"".join(shards))
    (nbytes,) = {len(shard) for shard in shards}
    return {
        "version": 1,
        "templates": {"f": "file://{{c}}"},
        "gen": [
            {
                "key": "a/c/{{i}}/{{j}}",
                "url": f"{{{{f(c='{place}/shards')}}}}",
                "offset": f"{{{{4 + (2 * i + j) * {nbytes}}}}}",
                "length": str(nbytes),
                "dimensions": {"i": {"stop": 2}, "j": [0, 1]},
            }
        ],
        "refs": {
            "zarr.json": {"zarr_format": 3, "node_type": "group", "attributes": {}},
            "a/zarr.json": (place / "source/a/zarr.json").read_text(),
        },
    }


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    return generated(tmp_path)


@pytest.fixture
def path(document: dict[str, Any], tmp_path: Path) -> Path:
    found = tmp_path / "refs.json"
    found.write_text(json.dumps(document))
    return found


def check(store: Any) -> None:
    np.testing.assert_array_equal(zarr.open_array(store, path="a", mode="r")[...], VALUES)


def test_generated_keys_are_there_however_the_set_is_opened(path: Path, document: dict[str, Any], tmp_path: Path) -> None:
    url = f"reference::file://{path}"
    check(shardstore.open(url))
    check(shardstore.open("reference://", storage_options={"fo": str(path)}))
    check(shardstore.open("reference://", storage_options={"reference": {"fo": document}}))
    check(shardstore.open(url, storage_options={"simple_templates": False}))
    check(shardstore.open(f"sharded::{url}"))
    check(shardstore.open(f"simplecache::{url}", storage_options={"cache_storage": str(tmp_path / "cache")}))
    mapping = shardstore.get_mapper(url)
    assert len([key for key in mapping if key.startswith("a/c/")]) == 16
    for outer in ("sharded::", "sharded::simplecache::"):
        cache = {"simplecache": {"cache_storage": str(tmp_path / "cache")}} if "simple" in outer else {}
        fs, root = fsspec.core.url_to_fs(f"{outer}{url}", **cache)
        assert len(fs.ls(f"{root}/a/c".lstrip("/"), detail=False)) == 4
    np.testing.assert_array_equal(zarr.open_array(f"sharded::{url}", path="a", mode="r")[...], VALUES)


def test_packing_a_generated_set_moves_every_chunk(path: Path, tmp_path: Path) -> None:
    report = shardstore.pack(f"reference::file://{path}", tmp_path / "packed.zarr", chunks_per_shard=(4, 4))
    assert report.complete
    check(str(tmp_path / "packed.zarr"))


def test_pickle_reads_the_set_again(path: Path) -> None:
    store = shardstore.open(f"reference::file://{path}")
    check(pickle.loads(pickle.dumps(store)))


def test_explicit_simple_templates_stay_and_warn_of_generated_keys(path: Path) -> None:
    with pytest.warns(UserWarning, match="generated keys"):
        storage = open_storage(f"reference::file://{path}", {"simple_templates": True})
    assert SyncStorage(storage).keys() == ["a/zarr.json", "zarr.json"]
    plain = {"version": 1, "templates": {"u": "file:///x"}, "refs": {"a": ["{{u}}"]}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(open_storage("reference://", {"fo": plain, "simple_templates": True}), ReferenceStorage)


def test_filesystem_that_left_generated_keys_out_is_refused(path: Path, document: dict[str, Any], tmp_path: Path) -> None:
    lost: list[Any] = [
        fsspec.filesystem("reference", fo=str(path)),
        ReferenceFileSystem(copy.deepcopy(document)),
        fsspec.filesystem(
            "reference", fo="refs.json", target_protocol="dir", target_options={"path": str(tmp_path), "target_protocol": "file"}
        ),
    ]
    for fs in [*lost, SimpleCacheFileSystem(fs=lost[0], cache_storage=str(tmp_path / "cache"))]:
        with pytest.raises(InvalidInput, match="generated keys"):
            open_storage((fs, ""))
    with pytest.raises(InvalidInput, match="generated keys"):
        shardstore.pack(fsspec.get_mapper("reference://", fo=str(path)), tmp_path / "packed.zarr")
    check(shardstore.open((fsspec.filesystem("reference", fo=str(path), simple_templates=False), "")))
    said = fsspec.filesystem("reference", fo=str(path), simple_templates=True)
    assert SyncStorage(open_storage((said, ""))).keys()[-2:] == ["a/zarr.json", "zarr.json"]  # older fsspec generates keys all the same


def test_references_to_several_protocols(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/fx/several", b"from memory")
    (tmp_path / "x").write_bytes(b"from a file")
    refs: dict[str, Any] = {"a": [f"file://{tmp_path}/x"], "b": ["memory://fx/several", 5, 6], "c": ["nothing://x/y", 0, 1]}
    s = SyncStorage(open_storage("reference://", {"fo": refs}))
    assert (s.get("a"), s.get("b")) == (b"from a file", b"memory")
    with pytest.raises(InvalidInput, match=r"for 'c' to nothing://x/y: the protocol 'nothing' of 'nothing://x' is not known"):
        s.get("c")


def test_templates_whose_protocol_differs_from_the_first_reference(tmp_path: Path) -> None:
    own = MemoryFileSystem(skip_instance_cache=True)
    own.pipe_file("/fx/t", b"12345")
    refs = {"version": 1, "templates": {"m": "memory://fx"}, "refs": {"a": [f"file://{tmp_path}/none"], "b": ["{{m}}/t", 1, 3]}}
    assert SyncStorage(open_storage("reference://", {"fo": refs})).get("b") == b"234"


def test_errors_of_sets_name_set_and_key(tmp_path: Path) -> None:
    path = tmp_path / "refs.json"
    path.write_text(json.dumps({"version": 1, "refs": {"a": ["{{u}}"]}}))
    with pytest.raises(Corruption, match=r"refs\.json: the URL of 'a'.*'u' is undefined"):
        open_storage(f"reference::file://{path}")
    with pytest.raises(NotFound, match=r"none\.json"):
        open_storage(f"reference::file://{tmp_path}/none.json")
    with pytest.raises(NotFound, match="is a directory"):
        open_storage(f"reference::file://{tmp_path}")
    with pytest.raises(InvalidInput, match="is not the URL of a set"):
        open_storage("reference://")


def test_without_jinja_the_specification_is_read(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    check(shardstore.open(f"reference::file://{path}"))
    path.write_text(json.dumps({"version": 1, "refs": {"a": ["{{ 1 / 2 }}"]}}))
    with pytest.raises(Unsupported, match=r"refs\.json: .*pip install 'shardstore\[report]'"):
        open_storage(f"reference::file://{path}")
    find = util.find_spec
    monkeypatch.setattr("shardstore.storage.references.filesystems.find_spec", lambda name: None if name == "jinja2" else find(name))
    with pytest.raises(Unsupported, match=r"pip install 'shardstore\[report]'"):
        open_storage(f"simplecache::reference::file://{path}")


@pytest.mark.parametrize(
    ("place", "url", "absolute"),
    [
        ("s3://bucket/sets/refs.json", "../data/c/0", "s3://bucket/data/c/0"),
        ("memory://a/refs.json", "data", "memory://a/data"),
        ("http://127.0.0.1:9/a/refs.json", "../b c/0", "http://127.0.0.1:9/b%20c/0"),
        ("gs://bucket/refs.json", "c/0", "gs://bucket/c/0"),
        ("/a/b/refs.json", "../c", "file:///a/c"),
        ("/a/b/refs.json", "/c", "/c"),
        ("file:///a/refs.json", "s3://b/c", "s3://b/c"),
        ("simplecache::s3://bucket/refs.json", "c", None),
        ("/a/refs.json", "../../c", None),
    ],
)
def test_relative_urls_made_absolute(place: str, url: str, absolute: str | None) -> None:
    directory, name = split_url(place)
    origin = SetAddress(Address.parse(directory), name, frozenset(), {})
    targets = ReferenceTargets(TargetOptions(), origin, open_storage)
    if absolute is None:
        with pytest.raises((InvalidInput, Corruption)):
            targets.absolute(url)
    else:
        assert targets.absolute(url) == absolute
