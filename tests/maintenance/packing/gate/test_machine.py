"""A source that changes at random between runs, some of which die: whenever a run says that it is complete, the target is what the source
is now.

A model of arrays, chunks and other objects is changed, put at the place of the source in one of many forms, and packed into a target that
is renewed again and again. Then the target has every key and byte that a fresh one has, its chunks are those of the model, and
``verify`` finds nothing against the source.

Histories of some rounds are run for each form.
"""

from __future__ import annotations

import base64
import json
import os
import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import fsspec
import pytest

import shardstore
from shardstore.errors import ShardStoreError
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.stored.draft2022.storage import DraftStorage
from shardstore.testing.trace import TraceStorage
from tests.documents import array_v2, array_v3
from tests.harness.scale import sized
from tests.maintenance.packing.sources import as_dict, as_tar, as_zip, stored
from tests.stored import StorageObjects, snapshot

SEEDS = sized(20, 1)
ROUNDS = sized(5, 2)

Objects = dict[str, bytes]
Coords = tuple[int, ...]

PATHS = ("a", "b", "g/a", "g/h/c", "z")
OTHERS = ("README", "a.txt", "g/notes", "g/h/notes", "x/y/z", "z.d/0")


# -- the model -----------------------------------------------------------------------------------------------------------


@dataclass
class Array:
    """An array of chunks of one element."""

    shape: Coords
    dtype: str = "i4"
    separator: str = "."
    attribute: int = 0
    chunks: dict[Coords, bytes] = field(default_factory=dict)

    def grid(self) -> Iterator[Coords]:
        return product(*map(range, self.shape))


@dataclass
class Model:
    """A hierarchy, of Zarr v2 or v3."""

    random: random.Random
    version: int
    separators: str = "./"
    arrays: dict[str, Array] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    others: Objects = field(default_factory=dict)

    def value(self) -> bytes:
        return self.random.randbytes(4)

    def some(self) -> tuple[str, Array] | None:
        return self.random.choice(sorted(self.arrays.items(), key=lambda item: item[0])) if self.arrays else None

    # changes; each says what it has done

    def create(self) -> str:
        path = self.random.choice(PATHS)
        shape = tuple(self.random.randint(1, 5) for _ in range(self.random.choice((0, 1, 2, 2))))
        array = self.arrays[path] = Array(shape, self.random.choice(("i4", "f4")), self.random.choice(self.separators))
        share = self.random.choice((0.2, 0.9))
        array.chunks = {at: self.value() for at in array.grid() if self.random.random() < share}
        self.groups.discard(path)
        return f"create {path} {shape}"

    def delete(self) -> str:
        if (found := self.some()) is None:
            return ""
        del self.arrays[found[0]]
        return f"delete {found[0]}"

    def rename(self) -> str:
        if (found := self.some()) is None:
            return ""
        path = self.random.choice(PATHS)
        self.arrays[path] = self.arrays.pop(found[0])
        self.groups.discard(path)
        return f"rename {found[0]} {path}"

    def becomes_group(self) -> str:
        if (found := self.some()) is None:
            return ""
        del self.arrays[found[0]]
        self.groups.add(found[0])
        return f"group {found[0]}"

    def resize(self) -> str:
        if (found := self.some()) is None:
            return ""
        path, array = found
        array.shape = tuple(max(1, n + self.random.randint(-2, 2)) for n in array.shape)
        if self.random.random() < 0.5:
            inside = set(array.grid())
            array.chunks = {at: data for at, data in array.chunks.items() if at in inside}
        return f"resize {path} {array.shape}"

    def set_chunks(self) -> str:
        if (found := self.some()) is None:
            return ""
        path, array = found
        at = self.random.choice(list(array.grid()))
        array.chunks[at] = self.value()
        return f"set {path} {at}"

    def erase_chunks(self) -> str:
        if (found := self.some()) is None:
            return ""
        path, array = found
        share = self.random.choice((0.2, 0.6, 1.0))
        array.chunks = {at: data for at, data in array.chunks.items() if self.random.random() >= share}
        return f"erase {share} of {path}"

    def attribute(self) -> str:
        if (found := self.some()) is None:
            return ""
        found[1].attribute += 1
        return f"attribute of {found[0]}"

    def other(self) -> str:
        key = self.random.choice(OTHERS)
        if key in self.others and self.random.random() < 0.5:
            del self.others[key]
            return f"remove {key}"
        self.others[key] = self.value()
        return f"other {key}"

    def change(self) -> str:
        changes = (self.create, self.delete, self.rename, self.becomes_group, self.resize, self.attribute)
        often = (self.set_chunks, self.erase_chunks, self.other)
        return self.random.choice((*changes, *often, *often))()

    # what is stored

    def objects(self) -> Objects:
        found = dict(self.others)
        groups = {"", *self.groups}
        for path in (*self.arrays, *self.groups):
            while path:
                path = path.rpartition("/")[0]
                groups.add(path)
        for path in groups:
            document = {"zarr_format": 2} if self.version == 2 else {"zarr_format": 3, "node_type": "group", "attributes": {}}
            found[_join(path, ".zgroup" if self.version == 2 else "zarr.json")] = json.dumps(document).encode()
        for path, array in self.arrays.items():
            found |= _v2(path, array) if self.version == 2 else _v3(path, array)
        return found

    def presented(self) -> Objects:
        """The chunks as readers of the target see them, and other objects."""
        found = dict(self.others)
        for path, array in self.arrays.items():
            inside = set(array.grid())
            separator = array.separator
            found |= {_join(path, separator.join(["c", *map(str, at)])): data for at, data in array.chunks.items() if at in inside}
        return found


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _v2(path: str, array: Array) -> Objects:
    document = array_v2(array.shape, [1] * len(array.shape), f"<{array.dtype}", dimension_separator=array.separator)
    keys = {_join(path, array.separator.join(map(str, at)) or "0"): data for at, data in array.chunks.items()}
    attributes = json.dumps({"n": array.attribute}).encode()
    return {f"{path}/.zarray": json.dumps(document).encode(), f"{path}/.zattrs": attributes, **keys}


def _v3(path: str, array: Array) -> Objects:
    document = array_v3(
        array.shape,
        [1] * len(array.shape),
        data_type={"i4": "int32", "f4": "float32"}[array.dtype],
        chunk_key_encoding={"name": "default", "configuration": {"separator": array.separator}},
        codecs=[{"name": "bytes", "configuration": {"endian": "little"}}],
        attributes={"n": array.attribute},
    )
    keys = {_join(path, array.separator.join(["c", *map(str, at)])): data for at, data in array.chunks.items()}
    return {f"{path}/zarr.json": json.dumps(document).encode(), **keys}


# -- the forms of the source ---------------------------------------------------------------------------------------------


def as_directory(root: Path, objects: Objects) -> Path:
    """What has changed is written again, and all times are restored."""
    place = root / "directory"
    place.mkdir(exist_ok=True)
    there = stored(place)
    for key in there.keys() - objects.keys():
        (place / key).unlink()
        for above in (place / key).parents:
            with suppress(OSError):
                above.rmdir()
    for key, data in objects.items():
        if there.get(key) != data:
            (place / key).parent.mkdir(parents=True, exist_ok=True)
            (place / key).write_bytes(data)
            os.utime(place / key, ns=(10**18 + 1, 10**18 + 1))
    return place


def as_fsmap(root: Path, objects: Objects) -> Any:
    return fsspec.get_mapper(str(as_directory(root, objects)))


def as_cache(root: Path, objects: Objects) -> Any:
    return f"simplecache::file://{as_directory(root, objects)}"


def as_memory(root: Path, objects: Objects) -> Any:
    fs, place = fsspec.filesystem("memory"), f"/machine{root}"
    there = {name.removeprefix(f"{place}/"): fs.cat_file(name) for name in fs.find(place)}
    for key in there.keys() - objects.keys():
        fs.rm_file(f"{place}/{key}")
    for key, data in objects.items():
        if there.get(key) != data:
            fs.pipe_file(f"{place}/{key}", data)
    return f"memory:/{place}"


def as_references(root: Path, objects: Objects) -> Any:
    """A third inline, a third into one file, a third whole files."""
    references: dict[str, Any] = {}
    files: Objects = {}
    start = 0
    for number, (key, data) in enumerate(sorted(objects.items())):
        if number % 3 == 0:
            references[key] = "base64:" + base64.b64encode(data).decode()
        elif number % 3 == 1:
            references[key] = [f"file://{root}/directory/all", start, len(data)]
            files["all"] = files.get("all", b"") + data
            start += len(data)
        else:
            references[key] = [f"file://{root}/directory/whole/{key}"]
            files[f"whole/{key}"] = data
    as_directory(root, files)
    (root / "references.json").write_text(json.dumps(references))
    return f"reference::{root / 'references.json'}"


def as_sharded(root: Path, objects: Objects) -> Any:
    return as_directory(root, _packed(objects, chunks_per_shard=_twos))


def as_draft(root: Path, objects: Objects) -> Any:
    return as_directory(root, _packed(objects, chunks_per_shard=_twos, stored="transformer"))


def _packed(objects: Objects, **options: Any) -> Objects:
    target = MemoryStorage(f"/machine-{uuid.uuid4().hex}")
    shardstore.pack(objects, target, record=MemoryStorage(f"/machine-{uuid.uuid4().hex}"), **options)
    return snapshot(StorageObjects(target))


def _twos(info: Any) -> Coords:
    return (2,) * len(info.shape)


Form = Callable[[Path, Objects], Any]
FORMS: list[tuple[Form, int]] = [
    (as_directory, 2),
    (as_directory, 3),
    (as_fsmap, 2),
    (as_cache, 3),
    (as_dict, 3),
    (as_memory, 2),
    (as_zip, 3),
    (as_tar, 2),
    (as_references, 2),
    (as_references, 3),
    (as_sharded, 3),
    (as_draft, 3),
]


# -- runs ----------------------------------------------------------------------------------------------------------------


class Died(Exception):
    """Stands for a driver that was killed."""


class Life:
    """How many changes of target and record are carried out before the driver dies; the last one with or without being heard of."""

    def __init__(self, changes: int | None, *, is_last_done: bool) -> None:
        self.left = changes
        self._is_last_done = is_last_done

    def may(self) -> bool:
        """Whether the next change is carried out; raises where nothing is any more."""
        if self.left is None:
            return True
        self.left -= 1
        if self.left > 0:
            return True
        if self.left == 0 and self._is_last_done:
            return False
        raise Died


class Mortal(TraceStorage):
    """A storage that only takes changes from the living."""

    def __init__(self, inner: Any, life: Life) -> None:
        super().__init__(inner)
        self._life = life

    async def write(self, key: str, body: Any, nbytes: int, condition: Any) -> Any:
        lives = self._life.may()
        written = await super().write(key, body, nbytes, condition)
        if not lives:
            raise Died
        return written

    async def delete(self, key: str, condition: Any) -> bool:
        lives = self._life.may()
        existed = await super().delete(key, condition)
        if not lives:
            raise Died
        return existed

    async def delete_many(self, keys: Any) -> None:
        for key in keys:  # one by one, so that it can die in between
            lives = self._life.may()
            await super().delete_many([key])
            if not lives:
                raise Died


@dataclass
class Renewed:
    """A target that is renewed again and again, and how."""

    mode: str
    options: dict[str, Any]
    target: Any
    record: Any
    counts: int = 2

    def policy(self, info: Any) -> Coords | None:
        return (self.counts,) * len(info.shape) if self.counts else None

    def run(self, source: Any, target: Any, record: Any, **more: Any) -> Any:
        options = self.options | more | {"record": record, "fsync": False}
        if self.mode == "unpack":
            return shardstore.unpack(source, target, **options)
        return getattr(shardstore, self.mode)(source, target, chunks_per_shard=self.policy, **options)

    def shown(self, target: Any) -> Any:
        """What a target of the draft keeps of earlier documents is not compared."""
        return DraftStorage(target) if self.options.get("stored") == "transformer" else target

    def renew(self, source: Any, life: Life, **more: Any) -> Any:
        return self.run(source, Mortal(self.target, life), Mortal(self.record, life), **more)

    def fresh(self, source: Any) -> Objects:
        target = MemoryStorage(f"/machine-{uuid.uuid4().hex}")
        assert self.run(source, target, MemoryStorage(f"/machine-{uuid.uuid4().hex}")).complete
        return snapshot(StorageObjects(self.shown(target)))


def renewed(rng: random.Random, form: Form, root: Path) -> Renewed:
    is_sharded = form in (as_sharded, as_draft)
    mode = rng.choice(("unpack", "reshard", "pack") if is_sharded else ("pack", "pack", "unpack"))
    options: dict[str, Any] = {"workers": rng.choice((1, 4))}
    if rng.random() < 0.25:
        options["stored"] = "transformer"
    elif rng.random() < 0.25:
        options["chunk_checksums"] = True
    place = uuid.uuid4().hex
    is_local = rng.random() < 0.5
    target = LocalStorage(str(root / "target"), fsync=False) if is_local else MemoryStorage(f"/machine-{place}")
    return Renewed(mode, options, target, MemoryStorage(f"/machine-record-{place}"))


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize(("form", "version"), FORMS, ids=[f"{form.__name__}-v{version}" for form, version in FORMS])
def test_complete_means_that_the_target_is_what_the_source_is_now(form: Form, version: int, seed: int, tmp_path: Path) -> None:
    rng = random.Random(f"{form.__name__} {version} {seed}")
    made = renewed(rng, form, tmp_path)
    is_draft = form is as_draft or made.options.get("stored") == "transformer"
    model = Model(rng, version, "/" if is_draft else "./")  # the draft has no "." in one dimension
    history: list[str] = [f"{made.mode} {made.options} to {made.target}"]
    history += [model.create() for _ in range(3)]
    for _ in range(ROUNDS):
        for _ in range(rng.randint(0, 2)):
            history += [model.change(), model.change()]
            if made.mode == "pack" and rng.random() < 0.3:
                made.counts = rng.choice((0, 1, 2, 3))
            changes = rng.randint(1, 20)
            life = Life(changes, is_last_done=rng.random() < 0.5)
            with suppress(Died, ShardStoreError):
                made.renew(form(tmp_path, model.objects()), life)
            history.append(f"died after {changes} changes, with {made.counts} chunks a shard; {life.left} left")
        history += [model.change() for _ in range(rng.randint(0, 4))]
        source = form(tmp_path, model.objects())
        wanted = made.fresh(source)
        if rng.random() < 0.2:
            history.append(f"replace {replace_one(made.target, wanted, rng)}")
        parts: tuple[dict[str, str], ...] = ({"part": "2/2"}, {"part": "1/2"}) if rng.random() < 0.2 else ({},)
        for part in parts:
            report = made.renew(source, Life(None, is_last_done=True), **part)
        history.append(f"ran {parts}")
        said = "\n".join(history)
        assert report.complete, said
        assert snapshot(StorageObjects(made.shown(made.target))) == wanted, said
        check(made, model, said)


def replace_one(target: Any, wanted: Objects, rng: random.Random) -> str:
    """Another object of the same size, by somebody else, in place of one that is there and stays: of an array or another object."""
    there = {key: data for key, data in snapshot(StorageObjects(target)).items() if key in wanted and data and not key.endswith(".json")}
    if not there:
        return ""
    key = rng.choice(sorted(there))
    StorageObjects(target).put(key, bytes([there[key][0] ^ 1]) + there[key][1:])
    return key


def check(made: Renewed, model: Model, said: str) -> None:
    """The target against the model, whatever a fresh one would be, and by ``verify``."""
    if made.options.get("stored") != "transformer" and not made.options.get("chunk_checksums"):
        shown = shardstore.get_mapper(made.target)
        assert {key: bytes(shown[key]) for key in shown if not key.endswith("zarr.json")} == model.presented(), said
    # Not against the source itself: a process remembers archives and references as they were when it opened them.
    copy = MemoryStorage(f"/machine-{uuid.uuid4().hex}")
    for key, data in model.objects().items():
        StorageObjects(copy).put(key, data)
    findings = shardstore.verify(made.target, against=copy).findings
    assert not [found for found in findings if found.kind != "stray" or found.key not in model.others], f"{said}\n{findings}"
