"""Random operations on files, compared with a dictionary; what is there at the end is read natively."""

from __future__ import annotations

import errno
import itertools
from typing import Any

import pytest
import zarr
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import shardstore
from shardstore.adapters.file_access import FileAccess
from shardstore.adapters.handle import Handle
from shardstore.apps.mounting.errnos import Refused
from shardstore.apps.mounting.files import Files
from shardstore.apps.mounting.held_back import Limits
from shardstore.apps.mounting.names import DIRECTORY
from shardstore.errors import NotFound
from shardstore.model.ranges import EVERYTHING
from shardstore.testing.storage_suite import on_io_loop as run_sync
from tests.harness.scale import EXAMPLES, FULL

_numbers = itertools.count()

CHUNKS = [f"ct/c/{i}/{j}" for i in range(4) for j in range(4)]
OTHERS = ["notes.txt", "ct/README", "deep/er/file", "moved/er/file", "moved/notes.txt"]
SCRATCH = ["ct/c/0/0.abcdef0123456789.partial", "ct/c/1/1.__lock", "ct/.zarr.json.XyZ123", "some.tmp", "notes.txt~", "ct/c/2/unknown name"]
KEYS = CHUNKS + OTHERS
paths = st.sampled_from(KEYS)
anything = st.sampled_from(KEYS + SCRATCH)
contents = st.binary(max_size=40)


class FilesMachine(RuleBasedStateMachine):
    """Files over a store in memory."""

    @initialize(
        durable=st.sampled_from(["close", "fsync"]), attr_seconds=st.sampled_from([0.0, 1000.0]), read_ahead=st.sampled_from([0, 60, 2**20])
    )
    def begin(self, durable: Any, attr_seconds: float, read_ahead: int) -> None:
        self.url = f"memory://files-{next(_numbers)}"
        group = zarr.open_group(shardstore.open(self.url, chunks_per_shard=(2, 4)), mode="w")
        array = group.create_array("ct", shape=(8, 8), chunks=(2, 2), dtype="u1")
        array[:4] = 1
        self.files = Files(
            FileAccess.open(self.url, {}, {}),
            durable=durable,
            attr_seconds=attr_seconds,
            read_ahead=read_ahead,
            write_memory=100,  # so that values are spilled and stored early
            limits=Limits(idle_seconds=1e6, age_seconds=1e6, wait_seconds=1e6, erase_seconds=1e6),
        )
        self.model: dict[str, bytes] = {key: self._value(key) for key in CHUNKS[:8]}
        self.documents = {key: self._value(key) for key in ("zarr.json", "ct/zarr.json")}
        self.open: list[tuple[Any, bytes]] = []
        self.origins: dict[str, tuple[str, bytes]] = {}  # of scratch files that were stored under another name, which stays stored

    def _value(self, key: str) -> bytes:
        value = run_sync(self.files.values.read(key))
        assert value is not None
        return bytes(value.data)

    def _stored_again(self, path: str) -> None:
        """Note that a key, or a scratch file, has a new value."""
        self.origins = {name: origin for name, origin in self.origins.items() if origin[0] != path}

    # -- operations -----------------------------------------------------------------------------------------------------

    def _directory(self, path: str) -> None:
        parts = path.split("/")[:-1]
        for n in range(1, len(parts) + 1):
            if run_sync(self.files.find("/".join(parts[:n]))) is None:
                run_sync(self.files.mkdir("/".join(parts[:n])))

    @rule(path=anything, data=contents, exclusive=st.booleans())
    def write(self, path: str, data: bytes, exclusive: bool) -> None:
        self._directory(path)
        there = run_sync(self.files.find(path)) is not None
        assert there == (path in self.model)
        if there and exclusive:
            with pytest.raises(Refused) as caught:
                run_sync(self.files.create(path, exclusive=True))
            assert caught.value.number == errno.EEXIST
            return
        file = run_sync(self.files.edit(path, truncates=True) if there else self.files.create(path, exclusive=exclusive))
        half = len(data) // 2
        file.write(half, data[half:])
        file.write(0, data[:half])
        run_sync(self.files.flush(file))
        run_sync(self.files.release(file))
        self.model[path] = data
        self._stored_again(path)

    @rule(path=anything, offset=st.integers(0, 50), data=contents, appends=st.booleans())
    def write_part(self, path: str, offset: int, data: bytes, appends: bool) -> None:
        if path not in self.model:
            return
        file = run_sync(self.files.edit(path, truncates=False, appends=appends))
        if data:
            file.write(offset, data)
            old = self.model[path]
            at = len(old) if appends else offset
            self.model[path] = old.ljust(at, b"\0")[:at] + data + old[at + len(data) :]
        run_sync(self.files.flush(file))
        run_sync(self.files.release(file))

    @rule(path=anything, nbytes=st.integers(0, 50))
    def truncate(self, path: str, nbytes: int) -> None:
        if path in self.model:
            run_sync(self.files.truncate(path, nbytes))
            self.model[path] = self.model[path][:nbytes].ljust(nbytes, b"\0")

    @rule(path=anything)
    def remove(self, path: str) -> None:
        if path in self.model:
            run_sync(self.files.unlink(path))
            del self.model[path]
            self.origins.pop(path, None)
        else:
            with pytest.raises(NotFound):
                run_sync(self.files.unlink(path))

    @rule(source=anything, goal=anything, no_replace=st.booleans())
    def rename(self, source: str, goal: str, no_replace: bool) -> None:
        if source not in self.model:
            return
        self._directory(goal)
        if no_replace and goal in self.model:
            with pytest.raises(Refused):
                run_sync(self.files.rename(source, goal, no_replace=True))
            return
        run_sync(self.files.rename(source, goal, no_replace=no_replace))
        if source != goal:
            self.model[goal] = data = self.model.pop(source)
            origin = self.origins.pop(source, None)
            self.origins.pop(goal, None)
            self._stored_again(goal)
            if goal in SCRATCH:
                origin = (source, data) if source not in SCRATCH else origin
                if origin is not None:
                    self.origins[goal] = origin

    @rule(source=st.sampled_from(SCRATCH), goal=paths)
    def link(self, source: str, goal: str) -> None:
        if source not in self.model:
            return
        self._directory(goal)
        if goal in self.model:
            with pytest.raises(Refused):
                run_sync(self.files.link(source, goal))
        else:
            run_sync(self.files.link(source, goal))
            self.model[goal] = self.model[source]
            self._stored_again(goal)

    @rule(path=st.sampled_from(["ct/zarr.json"]))
    def save_as_editors_do(self, path: str) -> None:
        run_sync(self.files.rename(path, path + "~"))
        assert run_sync(self.files.find(path)) is None
        file = run_sync(self.files.create(path, exclusive=True))
        file.write(0, self.documents[path])
        run_sync(self.files.flush(file))
        run_sync(self.files.release(file))
        run_sync(self.files.unlink(path + "~"))

    @rule(path=anything)
    def hold_open(self, path: str) -> None:
        if path in self.model and len(self.open) < 4 and path not in SCRATCH:
            self.open.append((run_sync(self.files.open(path)), self.model[path]))

    @rule()
    def sync(self) -> None:
        run_sync(self.files.sync())

    @rule(name=st.sampled_from(["ct/c/0", "ct/c/1", "deep/er", "deep", "fresh"]))
    def remove_directory(self, name: str) -> None:
        inside = any(path.startswith(f"{name}/") for path in self.model)
        try:
            run_sync(self.files.rmdir(name))
            assert not inside
        except (Refused, NotFound):
            found = run_sync(self.files.find(name))
            assert inside or found is None or run_sync(self.files.names.entries(name))

    @rule(source=st.sampled_from(["deep", "moved", "deep/er"]), goal=st.sampled_from(["deep", "moved", "moved/er"]))
    def rename_directory(self, source: str, goal: str) -> None:
        if run_sync(self.files.find(source)) != DIRECTORY or source == goal or goal.startswith(f"{source}/"):
            return
        self._directory(f"{goal.rpartition('/')[0]}/x" if "/" in goal else goal)
        inside = {path: data for path, data in self.model.items() if path.startswith(f"{source}/")}
        if {goal + path[len(source) :] for path in inside} - set(KEYS):
            return  # names that the others do not know
        there = run_sync(self.files.find(goal)) == DIRECTORY and run_sync(self.files.names.entries(goal))
        if there:
            with pytest.raises(Refused) as caught:
                run_sync(self.files.rename(source, goal))
            assert caught.value.number == errno.ENOTEMPTY
            return
        run_sync(self.files.rename(source, goal))
        for path, data in inside.items():
            del self.model[path]
            self.model[goal + path[len(source) :]] = data
        assert run_sync(self.files.find(source)) is None
        self.origins = {
            name: (goal + origin[len(source) :] if origin.startswith(f"{source}/") else origin, data)
            for name, (origin, data) in self.origins.items()
        }

    # -- what has to hold -----------------------------------------------------------------------------------------------

    @invariant()
    def reads_what_was_written(self) -> None:
        if not hasattr(self, "files"):
            return
        for path in KEYS + SCRATCH:
            nbytes = run_sync(self.files.find(path))
            assert nbytes == (len(self.model[path]) if path in self.model else None), path
            if path in self.model:
                file = run_sync(self.files.open(path))
                assert bytes(run_sync(file.read(0, 1000))) == self.model[path]
                run_sync(self.files.release(file))
        for file, data in self.open:
            assert bytes(run_sync(file.read(0, 1000))) == data

    @invariant()
    def lists_what_was_written(self) -> None:
        if not hasattr(self, "files"):
            return
        found: dict[str, int] = {}
        waiting = [""]
        while waiting:
            path = waiting.pop()
            entries = run_sync(self.files.names.entries(path))
            assert len({entry.name for entry in entries}) == len(entries)
            for entry in entries:
                full = f"{path}/{entry.name}" if path else entry.name
                if entry.nbytes == DIRECTORY:
                    waiting.append(full)
                else:
                    found[full] = entry.nbytes
        expected = {path: len(data) for path, data in (self.model | self.documents).items()}
        assert found == expected

    def teardown(self) -> None:
        if not hasattr(self, "files"):
            return
        assert run_sync(self.files.end()) == []
        native = Handle.make(self.url, None, {}).engine

        async def everything() -> dict[str, bytes]:
            keys = [key async for batch in native.list_batches("") for key in batch.keys]
            return {key: bytes(await native.get((key, EVERYTHING)) or b"") for key in keys}

        stored = run_sync(everything())
        kept = dict(self.origins.values()) | {path: data for path, data in self.model.items() if path not in SCRATCH}
        assert stored == kept | self.documents


TestFiles = FilesMachine.TestCase
TestFiles.settings = settings(max_examples=EXAMPLES // (4 if FULL else 10), stateful_step_count=30)
