"""Sources that tell no versions: a change of equal size is noticed all the same, or the units are done again and the report says so."""

from __future__ import annotations

import base64
import http.server
import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

import shardstore
from shardstore.errors import InvalidInput
from shardstore.storage.local.versions import FileGeneration
from tests.maintenance.packing.sources import as_dict, as_tar, as_zip, read_by_zarr, stored

Objects = dict[str, bytes]


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    root = tmp_path / "objects"
    zarr.create_array(root, name="a", shape=(6,), chunks=(1,), dtype="<i4", compressors=None)[...] = 3
    zarr.create_array(root, name="b", shape=(4,), chunks=(1,), shards=(2,), dtype="<i4", compressors=None)[...] = 5
    (root / "notes.txt").write_text("notes")
    return stored(root)


def pack(source: Any, target: Path, **options: Any) -> Any:
    return shardstore.pack(source, target, chunks_per_shard=(2,), fsync=False, **options)


class Values(Mapping[str, bytes]):
    """A mapping that does not tell how long its values are."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def __getitem__(self, key: str) -> bytes:
        return self._objects[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)


def as_mapping(root: Path, objects: Objects) -> Any:
    return Values(dict(objects))


def as_directory(root: Path, objects: Objects) -> Any:
    """Times that are what they were."""
    for key, data in objects.items():
        path = root / "directory" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, ns=(10**18 + 1, 10**18 + 1))
    return root / "directory"


def as_fsmap(root: Path, objects: Objects) -> Any:
    return fsspec.get_mapper(str(as_directory(root, objects)))


def as_cache(root: Path, objects: Objects) -> Any:
    return f"simplecache::file://{as_directory(root, objects)}"


def as_cache_that_stays(root: Path, objects: Objects) -> Any:
    fs = fsspec.filesystem("filecache", target_protocol="file", cache_storage=str(root / "cache"), check_files=False, expiry_time=10**6)
    path = str(as_directory(root, objects))
    for key in objects:
        fs.cat_file(f"{path}/{key}")  # and so it is in the cache
    return fs, path


def references(root: Path, found: dict[str, Any]) -> str:
    (root / "refs.json").write_text(json.dumps(found))
    return f"reference::{root / 'refs.json'}"


def as_references_to_files(root: Path, objects: Objects) -> Any:
    return references(root, {key: [f"file://{as_directory(root, {key: data})}/{key}"] for key, data in objects.items()})


def as_references_into_one_file(root: Path, objects: Objects) -> Any:
    """Equal references, another file."""
    start, found = 0, {}
    for key, data in objects.items():
        found[key] = ["memory://" + f"/{root}/all", start, len(data)]
        start += len(data)
    fsspec.filesystem("memory").pipe_file(f"/{root}/all", b"".join(objects.values()))
    return references(root, found)


def as_memory_in_place(root: Path, objects: Objects) -> Any:
    """Written into the objects that are there."""
    memory = fsspec.filesystem("memory")
    for key, data in objects.items():
        path = f"/{root}/in-place/{key}"
        with memory.open(path, "r+b" if memory.exists(path) else "wb") as file:
            file.write(data)
    return f"memory://{root}/in-place"


def as_inline_references(root: Path, objects: Objects) -> Any:
    return references(root, {key: "base64:" + base64.b64encode(data).decode() for key, data in objects.items()})


def as_moved_references(root: Path, objects: Objects) -> Any:
    """The file stays, the references lead elsewhere in it."""
    data = b"".join(objects.values())
    path = root / "history"
    before = path.read_bytes() if path.exists() else b""
    if data not in before:
        with path.open("ab") as file:
            file.write(data)
    start, found = path.read_bytes().index(data), {}
    for key, value in objects.items():
        found[key] = [f"file://{path}", start, len(value)]
        start += len(value)
    return references(root, found)


KINDS: list[Callable[[Path, Objects], Any]] = [
    as_dict,
    as_mapping,
    as_directory,
    as_fsmap,
    as_cache,
    as_cache_that_stays,
    as_zip,
    as_tar,
    as_references_to_files,
    as_references_into_one_file,
    as_memory_in_place,
    as_inline_references,
    as_moved_references,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_change_of_equal_size_is_noticed(kind: Callable[[Path, Objects], Any], objects: Objects, tmp_path: Path) -> None:
    target = tmp_path / "t.zarr"
    source = kind(tmp_path, objects)
    first = pack(source, target)
    assert (first.complete, first.unversioned) == (True, ())
    again = pack(source, target)
    assert (again.done, again.skipped, again.complete) == (0, first.units, True)
    objects["a/c/0"] = (9).to_bytes(4, "little")
    objects["b/c/1"] = objects["b/c/1"].replace((5).to_bytes(4, "little"), (8).to_bytes(4, "little"))
    objects["notes.txt"] = b"NOTES"
    report = pack(kind(tmp_path, objects), target)
    assert report.complete
    assert read_by_zarr(target, "a").tolist() == [9, 3, 3, 3, 3, 3]
    assert read_by_zarr(target, "b").tolist() == [5, 5, 8, 8]
    assert (target / "notes.txt").read_bytes() == b"NOTES"
    assert pack(kind(tmp_path, objects), target).complete


class Dated(http.server.BaseHTTPRequestHandler):
    """Serves what ``server.objects`` holds, with dates of whole seconds and no ETags. Its clock stands still at ``server.now``."""

    def date_time_string(self, timestamp: float | None = None) -> str:
        server: Any = self.server
        return super().date_time_string(server.now if timestamp is None else int(timestamp))

    def do_GET(self) -> None:
        server: Any = self.server
        data = server.objects.get(self.path.strip("/"))
        whole = len(data or b"")
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        start, end = (int(wanted[1]), min(int(wanted[2]) + 1, whole)) if wanted else (0, whole)
        self.send_response(404 if data is None else 206 if wanted else 200)
        self.send_header("Content-Length", str(end - start))
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{whole}")
        self.send_header("Last-Modified", self.date_time_string(server.stored))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write((data or b"")[start:end])

    do_HEAD = do_GET  # noqa: N815  # the name that the server looks for

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


@pytest.mark.parametrize("age", [0, 60])
def test_references_to_what_has_dates_of_whole_seconds(age: int, objects: Objects, tmp_path: Path) -> None:
    """Within the second of its date an object can change, and be as old as it was."""
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dated)
    server.objects, server.now = dict(objects), int(time.time())
    server.stored = server.now - age
    threading.Thread(target=server.serve_forever, daemon=True).start()
    target, url = tmp_path / "t.zarr", f"http://127.0.0.1:{server.server_port}"
    source = references(tmp_path, {key: [f"{url}/{key}"] for key in objects})
    first = pack(source, target)
    assert first.complete
    assert first.unversioned == (() if age else ("a", "b", None))
    server.objects["a/c/0"] = (9).to_bytes(4, "little")
    server.stored += bool(age)
    assert pack(source, target).complete
    assert read_by_zarr(target, "a").tolist() == [9, 3, 3, 3, 3, 3]
    server.shutdown()
    server.server_close()


def test_a_mapping_of_ours_shows_what_another_client_has_just_made(tmp_path: Path) -> None:
    """Its engine believes what it has read for a second."""
    group = zarr.open_group(tmp_path / "s", mode="w")
    group.create_array("a", shape=(8,), chunks=(1,), dtype="i4", compressors=None, fill_value=7)[...] = 1
    source, target = shardstore.get_mapper(tmp_path / "s"), tmp_path / "t"
    assert pack(source, target).complete
    del group["a"]
    array = group.create_array("a", shape=(8,), chunks=(1,), shards=(2,), dtype="i4", compressors=None, fill_value=7)
    array[...] = np.arange(8)
    assert pack(source, target).complete
    assert read_by_zarr(target, "a").tolist() == list(range(8))


# -- what tells nothing at all -------------------------------------------------------------------------------------------


class Bare(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Tells names and sizes."""

    protocol = "bare"
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    find = AbstractFileSystem.find
    walk = AbstractFileSystem.walk

    @staticmethod
    def _bared(info: Mapping[str, Any]) -> dict[str, Any]:
        return {name: info[name] for name in ("name", "size", "type")}

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return self._bared(super().info(path, **kwargs))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        found = super().ls(path, detail=True, **kwargs)
        return [self._bared(info) for info in found] if detail else [info["name"] for info in found]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("bare://").strip("/")


@pytest.fixture
def bare() -> tuple[Bare, str]:
    return Bare(), f"/{uuid.uuid4().hex}"


def test_units_without_versions_are_done_again_and_the_report_says_so(bare: tuple[Bare, str], objects: Objects, tmp_path: Path) -> None:
    fs, root = bare
    for key, data in objects.items():
        fs.pipe_file(f"{root}/{key}", data)
    target = tmp_path / "t.zarr"
    first = pack((fs, root), target)
    assert first.unversioned == ("a", "b", None)
    fs.pipe_file(f"{root}/a/c/0", (9).to_bytes(4, "little"))
    report = pack((fs, root), target)
    assert (report.done, report.skipped, report.complete) == (first.units, 0, True)
    assert "gives no versions of what a, b, the other objects are made from" in report.notes[-1]
    assert read_by_zarr(target, "a").tolist() == [9, 3, 3, 3, 3, 3]
    with pytest.raises(InvalidInput, match="cannot be packed in parts: it has no versions for a, b, other objects"):
        pack((fs, root), tmp_path / "u.zarr", part="1/2")
    assert not (tmp_path / "u.zarr").exists()


@pytest.mark.parametrize("mode", ["pack", "unpack"])
def test_a_target_without_versions_is_compared_by_its_bytes(mode: str, bare: tuple[Bare, str], objects: Objects, tmp_path: Path) -> None:
    fs, root = bare
    source = as_directory(tmp_path, objects)
    target: Any = (fs, root)

    def again() -> Any:
        if mode == "pack":
            return pack(source, target, record=tmp_path / "record")
        return shardstore.unpack(source, target, record=tmp_path / "record")

    first = again()
    wanted = {key: fs.cat_file(key) for key in fs.find(root)}
    assert first.complete
    assert again().done == 0
    key = f"{root}/a/c/0"
    fs.pipe_file(key, b"\xff" + wanted[key][1:])  # a byte of a chunk: the index of a shard is what it was
    fs.pipe_file(f"{root}/notes.txt", b"NOTES")
    report = again()
    assert (report.done, report.complete) == (2, True)
    assert {key: fs.cat_file(key) for key in fs.find(root)} == wanted
    (source / "a/c/0").unlink()
    (source / "notes.txt").unlink()
    assert again().complete
    assert set(wanted) - set(fs.find(root)) == {f"{root}/notes.txt"} | ({key} if mode == "unpack" else set())


def test_files_whose_times_say_nothing_yet_are_read_again(objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written on a file system of whole seconds a moment ago: listings tell no version of them."""
    source, target = as_directory(tmp_path, objects), tmp_path / "t.zarr"
    unsettled = {str(path.stat().st_ino) for path in source.rglob("*") if path.is_file()}
    digest = vars(FileGeneration)["digest"].fget
    monkeypatch.setattr(FileGeneration, "digest", property(lambda self: 0 if str(self.numbers[1]) in unsettled else digest(self)))
    first = pack(source, target)
    assert first.unversioned == ("a", "b", None)
    assert pack(source, target).done == first.units
    monkeypatch.undo()
    assert pack(source, target).done == first.units  # now they have versions, which the record does not know
    assert pack(source, target).done == 0


def test_bytes_are_read_once_to_be_compared(objects: Objects, tmp_path: Path) -> None:
    """Of a mapping each value is read to be listed, and again to be packed."""
    asked: list[str] = []

    class Counted(Values):
        def __getitem__(self, key: str) -> bytes:
            asked.append(key)
            return super().__getitem__(key)

    assert pack(Counted(objects), tmp_path / "t.zarr").complete
    chunks = [key for key in asked if "/c/" in key]
    assert np.unique(chunks, return_counts=True)[1].max() <= 3  # a shard also for its index
