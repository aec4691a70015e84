"""What is somebody else's stays: after any run of anything that writes, every object has its bytes that the run did not make, and was not
told to replace.

A small world of stores lies in one directory, and in a bucket: hierarchies in each other's directories, links between them, to directories
and to files, archives and sets of references of them, and objects of other people. Runs have random sources, by random names, targets,
records and options. Behind each run all of the world is compared with what was there before.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import fsspec
import pytest
from fsspec.implementations.cached import SimpleCacheFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import shardstore
from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.engine.moving import copy_nodes, move_between
from shardstore.errors import InvalidInput, ShardStoreError
from shardstore.opening.open import open_storage
from tests.apps.cli.running import run
from tests.documents import array_v3
from tests.harness.scale import sized

World = dict[str, bytes]
"""What each path holds: of a file its bytes, of a link where it leads, behind ``link:``. Objects of the bucket begin with ``s3:``."""

STORES = ("s0", "s1", "s2")
TARGETS = ("s0", "s1", "s2", "s1/a", "s1/sub", "l0", "l1", "s2/through", "new", "deep/new")
RECORDS = (None, None, "rec", "s0", "s1/a", "s2/rec", "new", "others", "l1", "new.pack")
NODES = ("", "a", "g", "g/b", "g/b/c", "through", "through/a", "notes.txt")
LINKS = {"l0": "s0", "l1": "s1", "s2/through": "s0", "s1/g/b": "s2/g/b", "s0/file": "s1/zarr.json", "s2/a/c": "s0/a/c", "s1/loop": "."}
RELATIVE = {"s0/g/near": "b", "s1/a/far": "../../s2/g", "s2/g/nowhere": "../absent"}
OWN = ("job.json", "units-", "begun-", "failed-")


HOWS = (
    *("path", "path", "cache", "caches", "mapper", "ours", "directory", "sharded"),
    *("archive", "archive inside", "references", "references inside", "dict"),
)


class Run(NamedTuple):
    """What is packed, but for ``overwrite``."""

    way: str
    store: str
    how: str
    goal: str
    record: str | None
    per_shard: int


STEPS = ("pack",) * 5 + ("pack_over", "pack_again") * 2 + ("copy",) * 3 + ("remove", "keep_up", "somebody_writes", "somebody_writes")


def run_of(random: Random) -> Run:
    store = random.choice([*STORES, *STORES, "l0", "l1", "s1/sub", "s3:b0"])
    goal = random.choice([*TARGETS, "new", "deep/new", "s3:b1", "s3:new"])
    way = random.choice(["pack", "pack", "reshard", "unpack"])
    return Run(way, store, random.choice(HOWS), goal, random.choice(RECORDS), random.choice([2, 4]))


def documents(value: int) -> dict[str, bytes]:
    """A hierarchy of two arrays, of which one is in a group, and an object of somebody's."""
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    array = array_v3([4], [1], attributes={})
    found = {"zarr.json": group, "g/zarr.json": group, "a/zarr.json": array, "g/b/zarr.json": array}
    chunks = {f"{path}/c/{i}": bytes([value + i]) for path in ("a", "g/b") for i in range(4)}
    return {key: json.dumps(document).encode() for key, document in found.items()} | chunks | {"notes.txt": b"somebody's"}


def write(root: Path, objects: dict[str, bytes]) -> None:
    for key, data in objects.items():
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(data)


class Machine(RuleBasedStateMachine):
    s3: tuple[str, dict[str, Any]] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="whose-")).resolve()
        self.made: set[str] = set()  # by runs of pack
        self.kept: dict[str, str] = {}  # objects of records, each with the target of the run that made it
        self.last: Run | None = None
        self.bucket = ""
        self.fs: Any = None
        if self.s3 is not None:
            url, options = self.s3
            self.fs = fsspec.filesystem("s3", **options)
            self.bucket = url.removeprefix("s3://").rstrip("/")

    @initialize(seed=st.integers(0, 2**64 - 1))
    def begin(self, seed: int) -> None:
        links = [name for name in (*LINKS, *RELATIVE) if Random(f"{name} {seed}").random() < 0.4]
        for i, store in enumerate(STORES):
            write(self.root / store, documents(10 * (i + 1)))
        write(self.root, {"others/thesis.txt": b"mine", "others/deep/job.json": b"{}", "s1/sub/notes.txt": b"theirs"})
        for name in sorted(links):
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.rmtree(path)
            path.symlink_to(RELATIVE[name] if name in RELATIVE else self.root / LINKS[name])
        if self.fs is not None:
            self.fs.rm(self.bucket, recursive=True) if self.fs.exists(f"{self.bucket}/b0") else None
            self.fs.pipe({f"{self.bucket}/{store}/{key}": data for store in ("b0", "b1") for key, data in documents(90).items()})

    def teardown(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    # -- what is there -------------------------------------------------------------------------------------------------

    def world(self) -> World:
        found: World = {}
        for directory, names, files in os.walk(self.root):
            for name in (*names, *files):
                path = os.path.join(directory, name)
                key = os.path.relpath(path, self.root)
                if os.path.islink(path):
                    found[key] = b"link:" + os.readlink(path).encode()
                elif name in files and not name.startswith("shardstore-") and "shardstore-lock" not in name:
                    found[key] = Path(path).read_bytes()
        if self.fs is not None:
            self.fs.invalidate_cache()
            keys = self.fs.find(self.bucket)
            found |= {f"s3:{key.removeprefix(self.bucket + '/')}": data for key, data in (self.fs.cat(keys) if keys else {}).items()}
        return found

    def at(self, name: str, *, itself: bool = False) -> str:
        """Where a name leads to, as a path of the world; ``itself``: where it is, though it may be a link."""
        if name.startswith("s3:"):
            return name
        path = self.root / name
        found = path.parent.resolve() / path.name if itself else path.resolve()
        return os.path.relpath(found, self.root)

    def is_reached_by_link(self, top: str, node: str = "") -> bool:
        """Whether a link is on the way to a node below a root, or to a root in the middle of a store: nothing may change there."""
        if top.startswith("s3:"):
            return False
        inside = [self.root / top / above for above in Path(node).parents if node and above != Path()]
        above = [path for path in (self.root / top, *(self.root / top).parents) if path.is_relative_to(self.root)]
        in_store = [path for path in above if any((directory / "zarr.json").exists() for directory in path.parents)]
        return any(path.is_symlink() for path in (*inside, *in_store))

    def read(self, source: Any, store: str) -> set[str]:
        """The files, as paths of the world, that a run reads from a source; none may change."""
        if store.startswith("s3:"):
            return {path for path in self.world() if _is_in(path, store)}
        if isinstance(source, dict):
            return set()
        found: set[str] = set()
        if isinstance(source, str) and source.startswith(("zip:", "reference:")):
            file = source.rpartition("::")[2]
            found.add(os.path.relpath(file, self.root))
            if source.startswith("reference:"):
                places = (value[0].removeprefix("file://") for value in json.loads(Path(file).read_bytes()).values())
                found |= {os.path.relpath(os.path.realpath(place), self.root) for place in places}
            return found
        waiting, seen = [os.path.realpath(self.root / store)], set[str]()
        while waiting:
            top = waiting.pop()
            if top in seen:
                continue
            seen.add(top)
            for directory, names, files in os.walk(top):
                found |= {os.path.relpath(os.path.realpath(os.path.join(directory, name)), self.root) for name in files}
                waiting += [os.path.realpath(path) for name in names if os.path.islink(path := os.path.join(directory, name))]
        return found

    def check(self, before: World, allowed: Callable[[str, bool], bool], run: str, read: Collection[str] = ()) -> None:
        """``allowed`` says of a path whether the run may have changed what was there, or have made something; ``read`` has not changed."""
        after = self.world()
        lost = [p for p in read if before.get(p) != after.get(p)]
        assert not lost, f"{run} changed {sorted(lost)}, which it reads"
        wrong = [p for p in before.keys() | after.keys() if before.get(p) != after.get(p) and not allowed(p, p in before)]
        assert not wrong, f"{run} changed {sorted(wrong)}, which it did not make and was not told to replace"

    # -- names ---------------------------------------------------------------------------------------------------------

    def source(self, store: str, how: str) -> Any:
        if store.startswith("s3:"):
            path = f"{self.bucket}/{store[3:]}"
            ways: dict[str, Callable[[], Any]] = {
                "cache": lambda: (SimpleCacheFileSystem(fs=self.fs), path),
                "mapper": lambda: fsspec.FSMap(path, self.fs),
                "directory": lambda: (DirFileSystem(self.bucket, self.fs), store[3:]),
            }
            return ways.get(how, lambda: (self.fs, path))()  # type: ignore[no-untyped-call]  # fsspec has no types
        path, local = str(self.root / store), fsspec.filesystem("file")
        ways = {
            "cache": lambda: f"simplecache::file://{path}",
            "caches": lambda: f"filecache::simplecache::file://{path}",
            "mapper": lambda: fsspec.get_mapper(path),
            "ours": lambda: shardstore.get_mapper(path),
            "directory": lambda: (DirFileSystem(str(self.root), local), store),
            "sharded": lambda: f"sharded::file://{path}",
            "archive": lambda: self._archive(store, f"{store}.zip"),
            "archive inside": lambda: self._archive(store, "s1/old.zip"),
            "references": lambda: self._references(store, "refs.json"),
            "references inside": lambda: self._references(store, "s2/refs.json"),
            "dict": lambda: {key: (self.root / store / key).read_bytes() for key in self._keys(store)},
        }
        return ways.get(how, lambda: path)()

    def _keys(self, store: str) -> list[str]:
        top = self.root / store
        return [p.relative_to(top).as_posix() for p in sorted(top.rglob("*")) if p.is_file() and "shardstore-lock" not in p.name]

    def _archive(self, store: str, name: str) -> str:
        path = self.root / name
        if not path.exists():
            with zipfile.ZipFile(path, "w") as archive:
                for key in self._keys(store):
                    if not key.endswith(".zip"):
                        archive.write(self.root / store / key, key)
        return f"zip://::{path}"

    def _references(self, store: str, name: str) -> str:
        path = self.root / name
        if not path.exists():
            keys = [key for key in self._keys(store) if not key.endswith("refs.json")]
            path.write_text(json.dumps({key: [f"file://{self.root}/{store}/{key}"] for key in keys}))
        return f"reference::{path}"

    # -- runs ----------------------------------------------------------------------------------------------------------

    @rule(seed=st.integers(0, 2**64 - 1))
    def step(self, seed: int) -> None:
        """One step, drawn evenly: what Hypothesis would choose by itself are few packings, and most of them alike."""
        random = Random(seed)
        what = random.choice(STEPS)
        if what == "pack":
            self.last = run_of(random)
            self.pack(*self.last, overwrite=random.random() < 0.6)
        elif what == "pack_over":
            self.pack_over(random.choice([*STORES, "l0"]), random.choice(HOWS), random.choice(RECORDS))
        elif what == "pack_again":
            self.pack_again()
        elif what == "copy":
            store, goal = random.choice([*STORES, "l0", "l1"]), random.choice([*STORES, "l0", "new"])
            how = random.choice(["path", "path", "cache", "directory", "archive inside"])
            node, into = random.choice(NODES), random.choice([*NODES, "copy", "copy"])
            self.copy(random.random() < 0.5, store, node, how, goal, into, random.random() < 0.6)
        elif what == "remove":
            self.remove(random.choice([*STORES, "l0"]), random.choice(NODES[1:]))
        elif what == "keep_up":
            self.keep_up(random.choice([*STORES, "new", "l1"]), random.random() < 0.5)
        else:
            name = random.choice(["mine.txt", "a/mine.txt", "g/deep/mine.txt", "z"])
            self.somebody_writes(random.choice([*STORES, "new", "new"]), name, random.choice([None, *STORES, "others"]))

    def pack_over(self, store: str, how: str, record: str | None) -> None:
        """What was packed last is replaced by something else."""
        if self.last is not None:
            self.last = Run(self.last.way, store, how, self.last.goal, record, self.last.per_shard)
            self.pack(*self.last, overwrite=True)

    def pack_again(self) -> None:
        """What was packed last is renewed."""
        if self.last is not None:
            self.pack(*self.last, overwrite=False)

    def pack(self, way: str, store: str, how: str, goal: str, record: str | None, per_shard: int, *, overwrite: bool) -> None:
        if self.fs is None and (store.startswith("s3:") or goal.startswith("s3:")):
            return
        source = self.source(store, how)
        before, read = self.world(), self.read(source, store)
        top = self.at(goal)
        kept = f"{top}.pack" if record is None else self.at(record)
        if record is None and not goal.startswith("s3:"):
            kept = f"{os.path.relpath(self.root / goal, self.root)}.pack"  # beside the name that was given
            kept = self.at(kept)
        given: Any = (self.fs, f"{self.bucket}/{goal[3:]}") if goal.startswith("s3:") else str(self.root / goal)
        options: dict[str, Any] = {} if way == "unpack" else {"chunks_per_shard": (per_shard,)}
        if record is not None:
            options["record"] = str(self.root / record)
        through = self.is_reached_by_link(goal) or (record is not None and self.is_reached_by_link(record))
        refused = False
        try:
            report = getattr(shardstore, way)(source, given, overwrite=overwrite, fsync=False, workers=1, **options)
        except InvalidInput:
            refused = True
        except ShardStoreError:
            report = None

        def allowed(path: str, was_there: bool) -> bool:
            if refused or through:
                return False
            directory, _, name = path.rpartition("/")
            if directory == kept and name.startswith(OWN):
                return not was_there or self.kept.get(path) == top
            return _is_in(path, top) and (overwrite or not was_there or path in self.made)

        run = f"{way} of {store} by {how} into {goal}, overwrite={overwrite}, record={record}"
        self.check(before, allowed, run, read)
        after = self.world()
        changed = {path for path in after if before.get(path) != after[path]}
        self.made = {path for path in self.made if path in after} | changed
        self.kept |= dict.fromkeys((path for path in changed if path.rpartition("/")[0] == kept), top)
        if not refused and report is not None:
            assert report.complete, run
            assert any(_is_in(path, top) for path in after), f"{run} is complete, and nothing is there"

    def copy(self, move: bool, store: str, node: str, how: str, goal: str, into: str, overwrite: bool) -> None:
        source = self.source(store, "path" if move else how)
        before = self.world()
        below = f"{store}/{node}" if node and not str(source).startswith("zip:") else store
        read = set() if move else self.read(source, below)
        through = self.is_reached_by_link(goal, into) or (move and self.is_reached_by_link(store, node))
        try:
            here, there = Engine(open_storage(source, fsync=False)), Engine(open_storage(str(self.root / goal), fsync=False))
            run_sync((move_between if move else copy_nodes)(here, node, there, into, overwrite=overwrite))
        except InvalidInput:
            refused = True
        except ShardStoreError:
            refused = False
        else:
            refused = False
        gone = self._below(store, node) if move else None
        new = self._below(goal, into)

        def allowed(path: str, was_there: bool) -> bool:
            if refused or through:
                return False
            return (_is_in(path, new) and (overwrite or not was_there)) or (gone is not None and was_there and _is_in(path, gone))

        self.check(before, allowed, f"{'mv' if move else 'cp'} of {node!r} in {store} by {how} to {into!r} in {goal}, {overwrite=}", read)
        self.made &= set(self.world())

    def _below(self, store: str, node: str) -> str:
        """Where a node of a store is itself, though it may be a link."""
        return self.at(f"{store}/{node}", itself=True) if node else self.at(store)

    def remove(self, store: str, node: str) -> None:
        before = self.world()
        gone, through = self._below(store, node), self.is_reached_by_link(store, node)
        run("rm", "-r", "-y", f"{self.root}/{store}/{node}")
        self.check(before, lambda path, was_there: was_there and not through and _is_in(path, gone), f"rm of {node!r} in {store}")

    def keep_up(self, store: str, repairs: bool) -> None:
        """Nothing is damaged, and no shard has dead bytes: there is nothing to do."""
        before = self.world()
        with suppress(ShardStoreError):
            if repairs:
                shardstore.repair(str(self.root / store), older_than=0)
            else:
                shardstore.compact(str(self.root / store))
        self.check(before, lambda path, was_there: False, f"{'repair' if repairs else 'compact'} of {store}")

    def somebody_writes(self, store: str, name: str, to: str | None) -> None:
        """A file, or a link to something else."""
        path = self.root / store / name
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(path):
                path.write_bytes(b"somebody's") if to is None else path.symlink_to(self.root / to)
                self.made.discard(os.path.relpath(path.parent.resolve() / path.name, self.root))


def _is_in(path: str, top: str) -> bool:
    return top == "." or path == top or path.startswith(f"{top}/")


def run_machine(machine: type[Machine], examples: int, steps: int) -> None:
    checks = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(machine, settings=checks)


def test_nothing_of_others_changes_on_local_disks() -> None:
    run_machine(Machine, sized(1000, 4), sized(12, 6))


@pytest.mark.night
def test_nothing_of_others_changes_in_buckets(s3_url: tuple[str, dict[str, Any]]) -> None:
    run_machine(type("OnS3", (Machine,), {"s3": s3_url}), sized(200, 3), 6)
