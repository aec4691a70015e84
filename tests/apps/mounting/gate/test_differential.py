"""Random operations of two programs on a mount and on a plain directory: every outcome is the same, but for what the guide says."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.apps.mounting.mounts import Mount
from shardstore.apps.mounting.names import is_scratch, name_of, parent_of
from shardstore.errors import StorageError
from shardstore.format.store_keys import possible_owners
from tests.apps.mounting import worker
from tests.harness.scale import EXAMPLES, sized

OPERATIONS = 5 * EXAMPLES
"""The full size is 20000, some minutes for each seed."""

_CHECKED = 200  # operations between two comparisons of everything

_DIRECTORIES = ["red", "blue", "5", "deep"]
_FILES = ["one", "two", "7", "x~", "y.tmp"]
_CHUNK_SCRATCH = ["0.partial", "1.__lock"]
_NOREPLACE = 1
_READING, _WRITING = os.O_RDONLY, os.O_RDWR
_CREATING = [os.O_CREAT, os.O_CREAT | os.O_TRUNC, os.O_CREAT | os.O_EXCL, os.O_CREAT | os.O_APPEND, os.O_TRUNC, 0]


class _Program:
    def __init__(self, mounted: str, plain: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, worker.__file__, mounted, plain], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def do(self, which: int, *request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([which, *request]) + "\n")
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@dataclass
class _Slot:
    """A file or directory that a program has open; ``began`` is what a file held then."""

    program: int
    is_directory: bool
    writes: bool
    began: str = ""


@dataclass
class _Run:
    """One sequence of operations. The plain directory is also the model: what there is to choose from is looked up in it."""

    random: random.Random
    mounted: Path
    plain: Path
    programs: list[_Program]
    slots: dict[str, _Slot] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)
    refused: int = 0
    _number: int = 0
    _seen: tuple[int, tuple[list[str], list[str], list[str]]] | None = None  # what there was after so many operations

    # -- what there is ---------------------------------------------------------------------------------------------------

    def _all(self) -> tuple[list[str], list[str], list[str]]:
        """Return the directories that are not in an array, the files but documents, and the arrays."""
        if self._seen is not None and self._seen[0] == len(self.trace):
            return self._seen[1]
        directories, files, arrays = [""], [], []
        for top, inner, names in os.walk(self.plain):
            path = os.path.relpath(top, self.plain)
            path = "" if path == "." else path
            if path and (self.plain / path / "c").is_dir() and "zarr.json" in names:
                arrays.append(path)
            if not any(path == array or path.startswith(f"{array}/") for array in arrays):
                directories += [f"{path}/{name}".lstrip("/") for name in sorted(inner)]
            inner.sort()
            files += [f"{path}/{name}".lstrip("/") for name in sorted(names) if name != "zarr.json"]
        self._seen = len(self.trace), (directories, files, arrays)
        return self._seen[1]

    def _some_file(self) -> str:
        directories, files, arrays = self._all()
        if files and self.random.random() < 0.5:
            return self.random.choice(files)
        if arrays and self.random.random() < 0.5:
            array = self.random.choice(arrays)
            name = self.random.choice([*_CHUNK_SCRATCH, *"0123"])
            return f"{array}/c/{self.random.randrange(4)}/{name}" if self.random.random() < 0.9 else f"{array}/notes"
        return self._in(directories, self.random.choice(_FILES + _DIRECTORIES[:3]))

    def _some_directory(self) -> str:
        directories, _, arrays = self._all()
        directories = [path for path in directories if path not in arrays]
        if self.random.random() < 0.6 and len(directories) > 1:
            return self.random.choice(directories[1:])
        return self._in(directories, self.random.choice(_DIRECTORIES + _FILES[:3]))

    def _in(self, directories: list[str], name: str) -> str:
        _, _, arrays = self._all()
        parent = self.random.choice([path for path in directories if path.count("/") < 3 and path not in arrays])
        return f"{parent}/{name}".lstrip("/")

    def _text(self) -> str:
        if self.random.random() < 0.15:
            return ""
        self._number += 1
        return f"{self._number}-" * self.random.randrange(1, 9)

    # -- operations ------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        who = self.random.randrange(2)
        mine = [name for name, slot in self.slots.items() if slot.program == who]
        kind = self.random.random()
        if mine and kind < 0.22:
            self._use(who, self.random.choice(mine))
        elif kind < 0.28 and len(mine) < 4:
            self._open(who)
        elif kind < 0.50:
            data = self._text()
            flags = self.random.choice(_CREATING)
            self._same(who, "put", self._some_file(), _WRITING | flags, self.random.choice([0, 0, 3]), data)
        elif kind < 0.60:
            self._same(who, "rename", self._some_file(), self._some_file(), self.random.choice([0, 0, 0, _NOREPLACE]))
        elif kind < 0.68:
            _, _, arrays = self._all()
            source = self.random.choice(arrays) if arrays and self.random.random() < 0.3 else self._some_directory()
            self._same(who, "rename", source, self._some_directory(), self.random.choice([0, 0, 0, _NOREPLACE]))
        elif kind < 0.74:
            self._same(who, "mkdir", self._some_directory())
        elif kind < 0.80:
            self._same(who, "unlink", self._some_file())
        elif kind < 0.86:
            self._same(who, "rmdir", self._some_directory())
        elif kind < 0.90:
            self._list(who, self._some_directory())
        elif kind < 0.93:
            self._same(who, "get", self._some_file())
        elif kind < 0.97:
            self._same(who, "size", self._some_file())
        elif kind < 0.985:
            self._same(who, "truncate", self._some_file(), self.random.randrange(20))
        else:
            self._same(who, "sync", "")

    def _open(self, who: int) -> None:
        slot = f"{who}-{len(self.trace)}"
        if self.random.random() < 0.3:
            if self._same(who, "open", slot, self._some_directory(), _READING | os.O_DIRECTORY) is None:
                self.slots[slot] = _Slot(who, True, False)
            return
        writes = self.random.random() < 0.7
        path = self._some_file()
        flags = _WRITING | self.random.choice(_CREATING) if writes else _READING
        if self._same(who, "open", slot, path, flags) is None:
            self.slots[slot] = _Slot(who, False, writes, self.programs[who].do(1, "read", slot))

    def _use(self, who: int, name: str) -> None:
        slot, kind = self.slots[name], self.random.random()
        if kind < 0.3:
            self._same(who, "close", name)
            del self.slots[name]
        elif slot.is_directory and kind < 0.6:
            flags = self.random.choice(_CREATING)
            self._same(who, "put_at", name, self.random.choice(_FILES), _WRITING | flags, 0, self._text())
        elif slot.is_directory:
            self._same(who, "list_at", name)
        elif slot.writes and kind < 0.6:
            self._same(who, "write", name, self.random.choice([0, 2, 30]), self._text())
        elif slot.writes and kind < 0.7:
            self._same(who, "cut", name, self.random.randrange(10))
        elif slot.writes and kind < 0.8:
            self._same(who, "fsync", name)
        else:
            self._same(who, "read", name)

    def _same(self, who: int, *request: Any) -> Any:
        """Let a program do the same in both directories, and compare the outcomes; return that of the plain one."""
        shown = self.programs[who].do(0, *request)
        if self._may_be_refused(request, shown):
            self.trace.append(f"{who} {request} refused: {shown}")
            self.refused += 1
            return shown
        expected = self.programs[who].do(1, *request)
        self.trace.append(f"{who} {request} -> {str(expected)[:80]}")
        if shown != expected and not (request[0] == "read" and not self.slots[request[1]].writes and shown == self.slots[request[1]].began):
            self.fail(f"{request}: the mount says {shown!r}, a plain directory {expected!r}")
        return expected

    def _may_be_refused(self, request: tuple[Any, ...], shown: Any) -> bool:
        """Return whether the guide says that a mount refuses this: a stored file is not renamed to a chunk that has no document yet, nor a
        directory into an array.
        """
        if shown != {"error": "EXDEV"} or request[0] != "rename":
            return False
        source, target = request[1:3]
        return bool(possible_owners(target)) if (self.plain / source).is_file() else self._is_in_array(target)

    def _is_in_array(self, path: str) -> bool:
        return any((self.plain / parent / "zarr.json").exists() for parent in Path(path).parents if parent != Path("."))

    def _list(self, who: int, path: str) -> None:
        shown, expected = (self._without_chunk_directories(path, self.programs[who].do(which, "entries", path)) for which in (0, 1))
        self.trace.append(f"{who} list {path!r}")
        if shown != expected:
            self.fail(f"listing of {path!r}: the mount shows {shown!r}, a plain directory {expected!r}")

    def _without_chunk_directories(self, path: str, names: dict[str, Any]) -> dict[str, Any]:
        """Return a listing without the directories in an array: a mount shows those alone in which there is something."""
        if path and self._is_in_array(f"{path}/x"):
            return {name: nbytes for name, nbytes in names.items() if nbytes != -1}
        return names

    def compare_all(self) -> None:
        for top, _, _ in os.walk(self.plain):
            path = os.path.relpath(top, self.plain)
            self._list(0, "" if path == "." else path)

    def fail(self, message: str) -> None:
        pytest.fail(
            "\n".join([*self.trace[-int(os.environ.get("SHARDSTORE_TRACE", "60")) :], f"after {len(self.trace)} operations", message])
        )

    def finish(self) -> None:
        """Close what is open, and remove what never reaches the storage: what was stored under another name is erased then."""
        for name, slot in list(self.slots.items()):
            self._same(slot.program, "close", name)
        for path in self._all()[1]:
            if self._is_scratch(path):
                self._same(0, "unlink", path)
        self.compare_all()

    def _is_scratch(self, path: str) -> bool:
        is_inside = "/c/" in path and (self.plain / path.partition("/c/")[0] / "zarr.json").exists()
        return is_scratch(name_of(path)) or (is_inside and not name_of(path).isdecimal())


@contextmanager
def _programs(mounted: str, plain: str) -> Iterator[list[_Program]]:
    programs = [_Program(mounted, plain) for _ in range(2)]
    try:
        yield programs
    finally:
        for program in programs:
            program.end()


@pytest.mark.parametrize("durable", ["close", "fsync"])
@pytest.mark.parametrize("seed", range(sized(3, 1)))
def test_a_mount_behaves_as_a_plain_directory(mount: Callable[..., Mount], tmp_path: Path, durable: str, seed: int) -> None:
    url, plain = str(tmp_path / "data.zarr"), tmp_path / "plain"
    group: Any = zarr.open_group(shardstore.open(url, chunks_per_shard=(2, 2), fsync=False), mode="w")
    for number, name in enumerate(["ct", "mr"]):
        group.create_array(name, shape=(16, 16), chunks=(4, 4), dtype="u2")[:8] = np.arange(128).reshape(8, 16) + number
    group.create_group("red")
    mounted = mount(url, durable=durable, fsync=False, watchdog_seconds=100 + OPERATIONS / 5)
    for name in ("ct", "mr"):  # numbers for the bytes of chunks, which are no text
        for path in Path(mounted.directory, name, "c").rglob("*"):
            if path.is_file():
                path.write_text(f"of {name}, {path.name}")
    shutil.copytree(mounted.directory, plain)
    for name in ("ct", "mr"):
        for number in range(4):
            (plain / name / "c" / str(number)).mkdir(exist_ok=True)
    with _programs(mounted.directory, str(plain)) as programs:
        run = _Run(random.Random(1000 * seed), Path(mounted.directory), plain, programs)
        for number in range(OPERATIONS):
            run.step()
            if number % _CHECKED == _CHECKED - 1:
                run.compare_all()
        run.finish()
    if seed % 2:
        mounted.unmount()
    else:
        run_sync_directory(mounted.directory)
        os.kill(mounted.pid, signal.SIGKILL)
        with pytest.raises(StorageError, match="has died"):
            mounted.wait(60)
    stored = {key: bytes(value) for key, value in shardstore.get_mapper(url, metadata_ttl=0).items()}
    expected = {str(path.relative_to(plain)): path.read_bytes() for path in plain.rglob("*") if path.is_file()}
    assert {key: stored[key] for key in stored if name_of(key) != "zarr.json"} == {
        key: expected[key] for key in expected if name_of(key) != "zarr.json"
    }
    assert {parent_of(key) for key in stored if name_of(key) == "zarr.json"} == {
        parent_of(key) for key in expected if name_of(key) == "zarr.json"
    }
    print(f"{len(run.trace)} operations, {run.refused} refused as the guide says")  # noqa: T201


def run_sync_directory(directory: str) -> None:
    """Let all that is held back be stored."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
