"""What fsspec's own local and memory filesystems do with lists, patterns, directories and ``on_error``, and what this one does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
from shardstore.errors import NotFound
from shardstore.storage.local.storage import LocalStorage
from shardstore.testing.trace import TraceStorage

FILES = {"z": b"zz", "g/x": b"xxx", "g/b/y": b"y", "g/b/w": b"wwww", "e/f": b""}
ONE = {"file": "z", "directory": "g", "root": "", "missing": "no", "in a directory": "g/b/y", "missing in one": "g/no"}
LISTS = {
    "files": ["z", "g/x"],
    "twice": ["z", "z"],
    "mixed": ["z", "g", "no"],
    "nested": ["g", "g/b", "z"],
    "root and file": ["", "z"],
    "all missing": ["no", "nope"],
}
PATTERNS = {"names": "g/*", "all": "**", "none": "no*"}

Operation = Callable[[Any, Any, Path], Any]
"""Done with a filesystem, on paths in it, with a local directory beside it."""


def got(fs: Any, paths: Any, local: Path, **options: Any) -> list[str]:
    fs.get(paths, f"{local}/out/", **options)
    return sorted(str(path.relative_to(local)) for path in local.rglob("out/**/*") if path.is_file())


def walked(fs: Any, path: Any, **options: Any) -> list[Any]:
    return sorted((here, sorted(directories), sorted(files)) for here, directories, files in fs.walk(path, **options))


def cat(mode: str, recursive: bool = False) -> Operation:
    return lambda fs, paths, local: fs.cat(paths, recursive=recursive, on_error=mode)


def cat_ranges(mode: str) -> Operation:
    return lambda fs, paths, local: fs.cat_ranges(paths, 0, 2, on_error=mode)


def rm(recursive: bool) -> Operation:
    return lambda fs, paths, local: fs.rm(paths, recursive=recursive)


def expand(recursive: bool) -> Operation:
    return lambda fs, paths, local: sorted(fs.expand_path(paths, recursive=recursive))


def get(recursive: bool) -> Operation:
    return lambda fs, paths, local: got(fs, paths, local, recursive=recursive)


def cp(recursive: bool, **options: Any) -> Operation:
    return lambda fs, paths, local: fs.cp(paths, f"{fs.top}/new/", recursive=recursive, **options)


def called(name: str, *arguments: Any, **options: Any) -> Operation:
    return lambda fs, path, local: getattr(fs, name)(path, *arguments, **options)


OF_ANY: dict[str, Operation] = {
    **{f"cat {mode}": cat(mode) for mode in ("raise", "omit", "return")},
    **{f"cat recursive {mode}": cat(mode, recursive=True) for mode in ("raise", "omit", "return")},
    **{f"rm {recursive}": rm(recursive) for recursive in (False, True)},
    **{f"expand_path {recursive}": expand(recursive) for recursive in (False, True)},
    **{f"get {recursive}": get(recursive) for recursive in (False, True)},
    **{f"cp {recursive}": cp(recursive) for recursive in (False, True)},
    "cp ignore": cp(False, on_error="ignore"),
}
OF_LISTS: dict[str, Operation] = {f"cat_ranges {mode}": cat_ranges(mode) for mode in ("raise", "return")}
OF_ONE: dict[str, Operation] = {
    **{name: called(name) for name in ("glob", "exists", "isdir", "isfile", "info", "du", "find", "rm_file", "cat_file")},
    "ls": lambda fs, path, local: sorted(fs.ls(path, detail=False)),
    "find withdirs": called("find", withdirs=True),
    "find maxdepth": called("find", maxdepth=1),
    "du each": called("du", total=False),
    "walk": lambda fs, path, local: walked(fs, path),
    "walk raise": lambda fs, path, local: walked(fs, path, on_error="raise"),
    "head": called("head", 2),
    "open": lambda fs, path, local: fs.open(path, "rb").read(),
    "mapper get": lambda fs, path, local: fs.get_mapper(fs.top).get(path[len(fs.top) + 1 :] or "g"),
}

_WITH_DIRECTORIES = {"directory", "root", "mixed", "nested", "root and file", "all", "names"}

# Where this filesystem differs from both of fsspec's, and means to; docs/howto/fsspec.md says so.
MEANT: dict[str, Callable[[str, str], bool]] = {
    "directories are left out of a recursive cat": lambda what, name: what.startswith("cat recursive") and name in _WITH_DIRECTORIES,
    "on_error holds for one path as for several": lambda what, name: what in ("cat omit", "cat return") and name in ONE,
    "nothing is erased where one of the paths is a directory": lambda what, name: what == "rm False" and name in _WITH_DIRECTORIES,
    "to erase a file that is not there is no error": lambda what, name: what == "rm_file" and (name in PATTERNS or "missing" in name),
    "a directory that is not there is an empty one": lambda what, name: what == "walk" and (name in PATTERNS or "missing" in name),
}


def cases() -> Iterator[Any]:
    operations: tuple[tuple[dict[str, Any], dict[str, Operation]], ...] = ((ONE | PATTERNS, OF_ANY | OF_ONE), (LISTS, OF_ANY | OF_LISTS))
    for given, of_given in operations:
        for what, operation in of_given.items():
            for name, paths in given.items():
                yield pytest.param(what, name, paths, operation, id=f"{what}-{name}")


def made(kind: str, base: Path) -> Any:
    base.mkdir()
    top = f"{base}/s"
    fs: Any
    if kind == "local":
        fs = LocalFileSystem(auto_mkdir=True, skip_instance_cache=True)
    elif kind == "memory":
        fs = MemoryFileSystem(skip_instance_cache=True)
        fs.store, fs.pseudo_dirs = {}, [""]  # its own
    else:
        fs = fsspec.filesystem("sharded", fo=top, target_protocol="file", fsync=False, skip_instance_cache=True)
    fs.top = top
    fs.pipe({f"{top}/{name}": value for name, value in FILES.items()})
    return fs


def told(value: Any, fs: Any) -> Any:
    """A result without the place of its filesystem; of an error, the class of Python's."""
    if isinstance(value, OSError):
        return "no file" if isinstance(value, FileNotFoundError) else type(value).__name__
    if isinstance(value, Exception):
        return type(value).__name__
    if isinstance(value, dict) and {"name", "type"} <= value.keys():
        return told(value["name"], fs), value["type"], value["size"] if value["type"] == "file" else None
    if isinstance(value, dict):
        return {told(key, fs): told(one, fs) for key, one in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [told(one, fs) for one in value]
    return value.replace(fs.top, "") if isinstance(value, str) else value


def done(kind: str, base: Path, given: Any, operation: Operation) -> tuple[Any, list[str]]:
    """What an operation returned or raised, and the files that are there then."""
    fs = made(kind, base)
    paths = [f"{fs.top}/{one}".rstrip("/") for one in given] if isinstance(given, list) else f"{fs.top}/{given}".rstrip("/")
    found: Any
    try:
        found = operation(fs, paths, base)
    except Exception as exc:  # noqa: BLE001  # compared
        found = exc
    try:
        return told(found, fs), sorted(name.removeprefix(fs.top) for name in fs.find(fs.top))
    except FileNotFoundError:
        return told(found, fs), []


@pytest.mark.parametrize(("what", "name", "given", "operation"), list(cases()))
def test_it_does_as_fsspecs_own(what: str, name: str, given: Any, operation: Operation, tmp_path: Path) -> None:
    ours, local, memory = (done(kind, tmp_path / kind, given, operation) for kind in ("sharded", "local", "memory"))
    assert ours in (local, memory) or any(is_meant(what, name) for is_meant in MEANT.values())


@pytest.mark.parametrize("recursive", [False, True])
@pytest.mark.parametrize("given", [["a", "d/c"], ["a", "d"], "", ["no"]], ids=str)
def test_it_stores_as_fsspecs_own(given: Any, recursive: bool, tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "d/e").mkdir(parents=True)
    for name in ("a", "d/c", "d/e/h"):
        (source / name).write_text(name)

    def put(fs: Any, _: Any, local: Path) -> None:
        paths = [f"{source}/{one}" for one in given] if isinstance(given, list) else os.fspath(source)
        fs.put(paths, f"{fs.top}/put/", recursive=recursive)

    ours, local, memory = (done(kind, tmp_path / kind, given, put) for kind in ("sharded", "local", "memory"))
    assert ours in (local, memory)


@pytest.mark.parametrize("mode", ["raise", "omit", "return"])
def test_mappings_do_as_fsspecs_own(mode: str, tmp_path: Path) -> None:
    def items(fs: Any, _: Any, local: Path) -> Any:
        return fs.get_mapper(fs.top).getitems(["z", "g/x", "no", "g"], on_error=mode)

    ours, local, memory = (done(kind, tmp_path / kind, "", items) for kind in ("sharded", "local", "memory"))
    assert ours in (local, memory)


def test_what_is_meant_to_differ(tmp_path: Path) -> None:
    fs = made("sharded", tmp_path / "s")
    top = fs.top
    assert set(fs.cat(f"{top}/g", recursive=True)) == {f"{top}/g/x", f"{top}/g/b/y", f"{top}/g/b/w"}
    assert fs.cat(f"{top}/no", on_error="omit") == {}
    assert isinstance(fs.cat(f"{top}/g", on_error="return")[f"{top}/g"], IsADirectoryError)
    with pytest.raises(IsADirectoryError):
        fs.rm([f"{top}/z", f"{top}/g"])
    assert fs.exists(f"{top}/z")
    fs.rm_file(f"{top}/no")
    assert list(fs.walk(f"{top}/no")) == [(f"{top}/no", [], [])]


@pytest.mark.parametrize("mode", ["omit", "return"])
def test_missing_chunks_of_zarr_v2_cost_a_read_each_and_no_listing(mode: str, tmp_path: Path) -> None:
    for key, value in {".zgroup": b'{"zarr_format": 2}', "u/0.0": b"u", "v/0": b"v"}.items():
        (tmp_path / key).parent.mkdir(exist_ok=True)
        (tmp_path / key).write_bytes(value)
    trace = TraceStorage(LocalStorage(tmp_path))
    fs = ShardedFileSystem(fs=trace, skip_instance_cache=True)
    fs.cat("u/0.0")
    trace.events.clear()
    keys = [f"u/{number}.0" for number in range(20)] + [f"v/{number}" for number in range(20)]
    found = fs.cat(keys, on_error=mode)
    assert sum(isinstance(value, bytes) for value in found.values()) == 2
    assert all(isinstance(value, bytes | NotFound) for value in found.values())
    assert {event.op for event in trace.events} == {"read"}
    assert sum(event.key in keys for event in trace.events) == len(keys)
    assert len(trace.events) <= len(keys) + 8  # documents
