"""Listings of a stored 2022-draft hierarchy by canonical keys."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from shardstore.errors import InvalidInput
from shardstore.storage.base import DirListing, ObjectInfo, Read, ReadOutcome
from shardstore.storage.memory import MemoryStorage
from shardstore.stored.draft2022.storage import DraftStorage
from shardstore.testing.storage_suite import SyncStorage, on_io_loop
from tests.stored.hierarchies import ENTRY_POINT, STORES, as_json, draft_array, draft_group, objects_of, store_name

STORED = {
    "zarr.json": as_json(ENTRY_POINT),
    "README": b"",
    "meta/root.group.json": draft_group(),
    # arrays of 3, 2, 1 and 0 dimensions
    "meta/root/three.array.json": draft_array([4, 4, 4], [1, 1, 1], [2, 2, 2]),
    "data/root/three/c0/0/1": b"1",
    "data/root/three/c0/1/0": b"22",
    "data/root/three/c1/0/0": b"333",
    "meta/root/dots.array.json": draft_array([4, 4], [1, 1], chunk_grid={"type": "regular", "chunk_shape": [1, 1], "separator": "."}),
    "data/root/dots/c0.1": b"1",
    "data/root/dots/c10.0": b"1",
    "meta/root/one.array.json": draft_array([9], [1]),
    "data/root/one/c0": b"1",
    "data/root/one/c8": b"1",
    "data/root/one/notes.txt": b"foreign",
    "data/root/one/c00": b"read as chunk 0 by zarr-python 2.18",
    "meta/root/none.array.json": draft_array([], []),
    "data/root/none/c0": b"1",
    # nodes that are called like chunks, in groups without documents
    "meta/root/g/c/0.array.json": draft_array([9], [1]),
    "data/root/g/c/0/c1": b"1",
    "meta/root/g/c0.array.json": draft_array([9, 9], [1, 1]),
    "data/root/g/c0/c0/5": b"1",
    "meta/root/g/c/c/c1.group.json": draft_group(),
    # what is left of arrays without documents
    "data/root/gone/c0/1/2": b"1",
    "data/root/gone/c0/1/notes": b"1",
    "data/root/gone/c1/c3": b"1",
    "data/root/gone/c2/deep/notes": b"1",
    "data/root/gone/c3/4/deep/notes": b"1",
    "data/root/left/c/c0/1": b"1",  # of an array that was called c
}

DIRECTORIES = {
    "": (["zarr.json"], ["dots/", "g/", "gone/", "left/", "none/", "one/", "three/"]),
    "three/": (["three/zarr.json"], ["three/c/"]),
    "three/c/": ([], ["three/c/0/", "three/c/1/"]),
    "three/c/0/": ([], ["three/c/0/0/", "three/c/0/1/"]),
    "three/c/0/1/": (["three/c/0/1/0"], []),
    "three/c/0/0/": (["three/c/0/0/1"], []),
    "three/c/1/": ([], ["three/c/1/0/"]),
    "three/c/1/0/": (["three/c/1/0/0"], []),
    "three/c0/": ([], []),
    "dots/": (["dots/c.0.1", "dots/c.10.0", "dots/zarr.json"], []),
    "one/": (["one/notes.txt", "one/zarr.json"], ["one/c/"]),
    "one/c/": (["one/c/0", "one/c/8"], []),
    "none/": (["none/c", "none/zarr.json"], []),
    "none/c/": ([], []),
    "g/": (["g/zarr.json"], ["g/c/", "g/c0/"]),
    "g/c/": (["g/c/zarr.json"], ["g/c/0/", "g/c/c/"]),
    "g/c/0/": (["g/c/0/zarr.json"], ["g/c/0/c/"]),
    "g/c/0/c/": (["g/c/0/c/1"], []),
    "g/c/c/": (["g/c/c/zarr.json"], ["g/c/c/c1/"]),
    "g/c/c/c1/": (["g/c/c/c1/zarr.json"], []),
    "g/c0/c/0/": (["g/c0/c/0/5"], []),
    "gone/c1/c/": (["gone/c1/c/3"], []),
    "g/c0/": (["g/c0/zarr.json"], ["g/c0/c/"]),
    "g/c0/c/": ([], ["g/c0/c/0/"]),
    "gone/": ([], ["gone/c/", "gone/c0/", "gone/c1/", "gone/c2/", "gone/c3/"]),
    "gone/c/": ([], ["gone/c/0/"]),
    "gone/c/0/": ([], ["gone/c/0/1/"]),
    "gone/c/0/1/": (["gone/c/0/1/2"], []),
    "gone/c0/": ([], ["gone/c0/1/"]),
    "gone/c0/1/": (["gone/c0/1/notes"], []),
    "gone/c2/": ([], ["gone/c2/deep/"]),
    "gone/c2/deep/": (["gone/c2/deep/notes"], []),
    "gone/c3/": ([], ["gone/c3/4/"]),
    "gone/c3/4/": ([], ["gone/c3/4/deep/"]),
    "gone/c3/4/deep/": (["gone/c3/4/deep/notes"], []),
    "gone/c1/": ([], ["gone/c1/c/"]),
    "left/": ([], ["left/c/"]),
    "left/c/": ([], ["left/c/c/"]),
    "left/c/c/": ([], ["left/c/c/0/"]),
    "left/c/c/0/": (["left/c/c/0/1"], []),
    "nothing/": ([], []),
    "three//": ([], []),
    "../": ([], []),
}

KEYS = sorted({key for keys, _ in DIRECTORIES.values() for key in keys})


@pytest.fixture
def hierarchy(i: SyncStorage, s: SyncStorage) -> SyncStorage:
    for key, data in STORED.items():
        i.put(key, data)
    return s


def test_every_key_once(hierarchy: SyncStorage) -> None:
    assert sorted(hierarchy.keys()) == KEYS


@pytest.mark.parametrize(
    "prefix", ["", "z", "zarr.json", "g", "g/", "g/z", "g/c", "g/c/", "g/c/zarr.json", "g/c/0", "three/c/0/", "none/c", "none/c/"]
)
def test_keys_by_prefix(prefix: str, hierarchy: SyncStorage) -> None:
    assert sorted(hierarchy.keys(prefix)) == [key for key in KEYS if key.startswith(prefix)]


def test_keys_by_every_prefix(hierarchy: SyncStorage) -> None:
    prefixes = {key[:n] for key in KEYS for n in range(len(key) + 1)} | {key + "/" for key in KEYS} | {"/", "//", "gone/c/0/1/2/"}
    for prefix in prefixes:
        assert sorted(hierarchy.keys(prefix)) == [key for key in KEYS if key.startswith(prefix)], prefix


@pytest.mark.parametrize("prefix", DIRECTORIES)
def test_directories(prefix: str, hierarchy: SyncStorage) -> None:
    assert hierarchy.children(prefix) == DIRECTORIES[prefix]


def test_a_directory_ends_with_a_slash(hierarchy: SyncStorage) -> None:
    with pytest.raises(InvalidInput, match="'g' names no directory"):
        hierarchy.children("g")


def test_sizes_and_versions(hierarchy: SyncStorage, i: SyncStorage) -> None:
    for key, inside in {
        "three/c/0/1/0": "data/root/three/c0/1/0",
        "none/c": "data/root/none/c0",
        "three/zarr.json": "meta/root/three.array.json",
    }.items():
        stored = i.stat(inside)
        assert stored is not None
        wanted = ObjectInfo(key, stored.nbytes, stored.generation)
        assert hierarchy.infos(key) == [wanted]
        found = {info.key: info for info in directory(hierarchy, key.rpartition("/")[0] + "/").objects}
        assert (found[key].nbytes, found[key].generation) == (wanted.nbytes, found[key].generation and wanted.generation)


def directory(s: SyncStorage, prefix: str) -> DirListing:
    return on_io_loop(s.storage.list_dir(prefix))


def test_what_is_no_chunk_among_rows_of_chunks(hierarchy: SyncStorage, i: SyncStorage) -> None:
    """The one thing that a directory leaves out: looking for it would take a request a row."""
    i.put("data/root/three/c0/notes", b"")
    assert hierarchy.keys("three/c0") == ["three/c0/notes"]
    assert hierarchy.children("three/c0/") == (["three/c0/notes"], [])
    assert hierarchy.children("three/") == DIRECTORIES["three/"]
    assert hierarchy.children("three/c/") == DIRECTORIES["three/c/"]


class Counted(MemoryStorage):
    """Counts listings and rounds of reads."""

    def __init__(self, path: str = "") -> None:
        super().__init__(path)
        self.directories = 0
        self.listings: list[str] = []
        self.rounds = 0

    async def list_dir(self, prefix: str) -> DirListing:
        self.directories += 1
        return await super().list_dir(prefix)

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        self.rounds += 1
        return await super().read(reads)

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        self.listings.append(prefix)
        return super().list(prefix)


def test_directories_of_a_large_array_are_cheap() -> None:
    inner = Counted(f"/counted-{uuid.uuid4().hex}")
    s = SyncStorage(DraftStorage(inner))
    i = SyncStorage(inner)
    i.put("meta/root/x.array.json", draft_array([100, 4, 4], [1, 1, 1]))
    for n in range(100):
        i.put(f"data/root/x/c{n}/0/0", b"")
    for prefix, most in {"x/": 2, "x/c/": 3, "x/c/7/": 3, "x/c/7/0/": 3}.items():
        inner.directories = inner.rounds = 0
        assert s.children(prefix) != ([], [])
        assert (inner.directories, inner.rounds, inner.listings) == (most, 1, []), prefix
    for n in range(100):
        i.put(f"meta/root/one{n}.array.json", draft_array([4], [1]))
        i.put(f"data/root/one{n}/c0", b"")
    inner.rounds, inner.listings = 0, []
    assert len(s.keys()) == 302
    assert (inner.rounds, inner.listings) == (1, ["data/root/", "meta/root"])  # one round of documents, for the objects c0


@pytest.mark.parametrize("store", STORES, ids=store_name)
def test_directories_and_keys_of_fixtures_agree(store: Path, i: SyncStorage, s: SyncStorage) -> None:
    for key, data in objects_of(store).items():
        i.put(key, data)
    keys = s.keys()
    assert len(set(keys)) == len(keys)
    above = {""} | {key[: n + 1] for key in keys for n, c in enumerate(key) if c == "/"}
    for prefix in above:
        below = [key[len(prefix) :].partition("/") for key in keys if key.startswith(prefix)]
        expected = (sorted({prefix + n for n, slash, _ in below if not slash}), sorted({f"{prefix}{n}/" for n, slash, _ in below if slash}))
        assert s.children(prefix) == expected
        assert sorted(s.keys(prefix)) == sorted(key for key in keys if key.startswith(prefix))
