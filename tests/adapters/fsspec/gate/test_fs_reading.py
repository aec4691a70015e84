"""Looking and reading through ``sharded``, at the level of chunks, against fsspec's own memory filesystem with plain files."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from shardstore.adapters.fsspec.filesystem import ShardedFileSystem
from shardstore.errors import Corruption, InvalidInput, NotFound
from tests.adapters.places import Place, array_document, is_document, memory_place, put_sample


@pytest.fixture
def expected(place: Place) -> dict[str, bytes]:
    """The sample is put there; its values by key, those of documents as the view says them."""
    return put_sample(place.objects)


@pytest.fixture
def fs(place: Place, expected: dict[str, bytes]) -> ShardedFileSystem:
    fs = place.filesystem()
    for key in filter(is_document, expected):
        document = fs.cat_file(key)
        assert b"sharding_indexed" not in document
        expected[key] = document
    return fs


class Plain:
    """The same values as plain files of fsspec's own memory filesystem; answers are made relative to the root."""

    def __init__(self, values: dict[str, bytes]) -> None:
        self.fs = MemoryFileSystem()
        self.root = f"/plain-{uuid.uuid4().hex}"
        for key, value in values.items():
            self.fs.pipe_file(f"{self.root}/{key}", value)

    def close(self) -> None:
        self.fs.rm(self.root, recursive=True)


@pytest.fixture
def plain(fs: ShardedFileSystem, expected: dict[str, bytes]) -> Iterator[Plain]:
    plain = Plain(expected)
    yield plain
    plain.close()


def relative(answer: Any, root: str) -> Any:
    """Names without the root, in dictionaries, lists and tuples too; of information on a file what every filesystem knows."""
    match answer:
        case str():
            return answer.removeprefix(root)
        case {"name": name, "size": size, "type": kind}:
            return name.removeprefix(root), size, kind
        case dict():
            return {relative(k, root): relative(v, root) for k, v in answer.items()}
        case tuple():
            return tuple(relative(x, root) for x in answer)
        case list():
            return [relative(x, root) for x in answer]
    return answer


def same(fs: ShardedFileSystem, place: Place, plain: Plain, method: str, path: str, **kwargs: Any) -> Any:
    """The answer of ``method``, which must be that of plain files: the same, or an error of the same class of fsspec's."""
    try:
        theirs = getattr(plain.fs, method)(f"{plain.root}/{path}", **kwargs)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as exc:
        with pytest.raises(type(exc).__mro__[0]):
            getattr(fs, method)(f"{place.path}/{path}", **kwargs)
        return None
    theirs = relative(theirs, plain.root)
    for given in (f"{place.path}/{path}", path, f"sharded://{place.path}/{path}"):
        ours = relative(getattr(fs, method)(given, **kwargs), place.path)
        assert _sorted(ours) == _sorted(theirs), (method, given, kwargs)
    return theirs


def some(place: Place, paths: list[str]) -> list[str]:
    """All of them, but where each costs requests to a server."""
    return paths[::7] if place.url.startswith("s3://") else paths


def _sorted(answer: Any) -> Any:
    return sorted(answer, key=str) if isinstance(answer, list) else answer


PATHS = [
    "", "ct", "ct/c", "ct/c/1", "ct/c/1/1", "ct/c/1/2", "ct/c/9", "ct/c/1/1/1", "ct/zarr.json", "g", "g/lung", "g/lung/c.3", "g/lung/c",
    "g/lung/c.9", "g/time", "g/time/c", "g/time/c/1", "g/data", "g/data/raw.bin", "notes.txt", "notes", "c", "no/such",
]  # fmt: skip


@pytest.mark.parametrize("detail", [False, True])
def test_looking_is_as_with_plain_files(fs: ShardedFileSystem, place: Place, plain: Plain, detail: bool) -> None:
    for path in some(place, PATHS):
        same(fs, place, plain, "ls", path, detail=detail)
        for options in ({}, {"maxdepth": 1}, {"maxdepth": 2}, {"withdirs": True}, {"withdirs": True, "maxdepth": 2}):
            same(fs, place, plain, "find", path, detail=detail, **options)
    assert same(fs, place, plain, "find", "ct", detail=False) == [
        f"/ct/c/{i}/{j}" for i in range(4) for j in range(4) if (i, j) != (1, 2)
    ] + ["/ct/zarr.json"]


def test_asking_is_as_with_plain_files(fs: ShardedFileSystem, place: Place, plain: Plain) -> None:
    for path in some(place, PATHS):
        for method in ("exists", "isdir", "isfile", "du"):
            same(fs, place, plain, method, path)
        if path:
            same(fs, place, plain, "info", path)
        if fs.isfile(path):
            same(fs, place, plain, "size", path)
    assert fs.size("ct/c/1/1") == 8
    assert same(fs, place, plain, "du", "ct", total=False)["/ct/c/1/1"] == 8
    assert fs.sizes(["ct/c/0/0", "notes.txt"]) == [8, 10]
    with pytest.raises(NotFound, match="'ct/c/1/2' does not exist"):
        fs.info("ct/c/1/2")


def test_walking_is_as_with_plain_files(fs: ShardedFileSystem, place: Place, plain: Plain) -> None:
    def walked(of: Any, root: str, path: str, **options: Any) -> list[Any]:
        return [
            (here.removeprefix(root), relative(_sorted(dirs), root), relative(_sorted(files), root))
            for here, dirs, files in of.walk(f"{root}/{path}".rstrip("/"), **options)
        ]

    for path in some(place, PATHS):
        for options in ({}, {"maxdepth": 1}, {"maxdepth": 2}, {"detail": True}, {"topdown": False}, {"topdown": False, "maxdepth": 2}):
            theirs = walked(plain.fs, plain.root, path, **options)
            ours = walked(fs, place.path, path, **options)
            if not fs.isdir(path):  # fsspec's filesystems disagree on whether that has an empty level
                assert [level[1:] for level in ours] == [({}, {}) if "detail" in options else ([], [])] or ours == theirs, (path, options)
                continue
            assert sorted(ours, key=str) == sorted(theirs, key=str), (path, options)
            heres = [here for here, _, _ in ours]
            for n, here in enumerate(heres):
                parents = [m for m, other in enumerate(heres) if here.startswith(f"{other}/")]
                assert all(m < n if options.get("topdown", True) else m > n for m in parents), (path, options)


def test_a_walk_goes_where_the_caller_lets_it(fs: ShardedFileSystem, place: Place) -> None:
    """As with ``os.walk``: directories taken out of the list are not entered."""
    seen = []
    for here, directories, _ in fs.walk(place.path):
        seen.append(here.removeprefix(place.path))
        if here.endswith("ct"):
            directories.remove("c")
        if here == place.path:
            directories[:] = [name for name in reversed(directories) if name != "g"]
    assert seen == ["", "/ct"]
    seen = []
    for here, directories, _ in fs.walk(place.path, detail=True):
        seen.append(here.removeprefix(place.path))
        directories.pop("g", None)
        directories.pop("c", None)
    assert seen == ["", "/ct"]


def test_a_walk_of_what_is_not_there(fs: ShardedFileSystem) -> None:
    assert [levels[1:] for levels in fs.walk("no/such")] == [([], [])]
    with pytest.raises(FileNotFoundError):
        list(fs.walk("no/such", on_error="raise"))
    errors: list[OSError] = []
    list(fs.walk("no/such", on_error=errors.append))
    assert [type(error) for error in errors] == [NotFound]


GLOBS = [
    "*", "**", "*/*", "ct/c/*/1", "ct/c/[12]/?", "ct/**", "**/zarr.json", "g/lung/c.*", "g/*/c*", "g/**/c/1", "ct/c/1/2", "ct/c/1/1",
    "ct/*/", "nothing*", "**/[0-2]", "g/data/*.bin",
]  # fmt: skip


@pytest.mark.parametrize("pattern", GLOBS)
def test_globs_are_as_with_plain_files(fs: ShardedFileSystem, place: Place, plain: Plain, pattern: str) -> None:
    for options in ({}, {"maxdepth": 1}, {"maxdepth": 2}, {"detail": True}):
        same(fs, place, plain, "glob", pattern, **options)


# -- whole values --------------------------------------------------------------------------------------------------------


def test_cat(fs: ShardedFileSystem, place: Place, expected: dict[str, bytes]) -> None:
    for key, value in expected.items():
        assert fs.cat_file(key) == value, key
        assert fs.cat(f"{place.path}/{key}") == value
    chosen = ["ct/c/3/3", "notes.txt", "g/lung/c.5", "ct/zarr.json"]
    assert fs.cat(chosen) == {f"{place.path}/{key}": expected[key] for key in chosen}
    assert fs.cat("ct/c/2/*") == {f"{place.path}/ct/c/2/{i}": expected[f"ct/c/2/{i}"] for i in range(4)}
    assert fs.cat("", recursive=True) == {f"{place.path}/{key}": value for key, value in expected.items()}
    assert fs.cat("g/lung/", recursive=True) == {f"{place.path}/{k}": v for k, v in expected.items() if k.startswith("g/lung/")}
    assert fs.cat(["ct/c/0/0"]) == {f"{place.path}/ct/c/0/0": expected["ct/c/0/0"]}
    assert fs.head("notes.txt", 5) == b"about"
    assert fs.tail("ct/c/0/0", 2) == expected["ct/c/0/0"][-2:]


def test_cat_of_what_is_not_there(fs: ShardedFileSystem, place: Place, expected: dict[str, bytes]) -> None:
    both = ["ct/c/1/2", "ct/c/1/1"]
    for missing in ("ct/c/1/2", "nothing", "g/lung/c.6"):
        with pytest.raises(NotFound, match=f"'{missing}' does not exist in "):
            fs.cat(missing)
        with pytest.raises(FileNotFoundError):
            fs.cat_file(missing)
    with pytest.raises(NotFound):
        fs.cat(both)
    assert fs.cat(both, on_error="omit") == {f"{place.path}/ct/c/1/1": expected["ct/c/1/1"]}
    returned = fs.cat(both, on_error="return")
    assert isinstance(returned[f"{place.path}/ct/c/1/2"], NotFound)
    assert returned[f"{place.path}/ct/c/1/1"] == expected["ct/c/1/1"]
    with pytest.raises(FileNotFoundError):
        fs.cat("nothing*")


def test_a_directory_is_no_file(fs: ShardedFileSystem) -> None:
    """An error, as with every filesystem; a directory is nothing that object stores know."""
    with pytest.raises(IsADirectoryError, match="root of the store"):
        fs.cat_file("")
    for directory in ("ct", "ct/c", "g"):
        with pytest.raises(IsADirectoryError):
            fs.cat_file(directory)
        with pytest.raises(IsADirectoryError):
            fs.open(directory)


# -- ranges --------------------------------------------------------------------------------------------------------------

BOUNDS = [None, 0, 1, 3, 7, 8, 9, 1000, -1, -3, -7, -8, -9, -1000]


@pytest.mark.parametrize("key", ["ct/c/1/1", "g/lung/c.5", "notes.txt", "ct/zarr.json", "g/time/c/1"])
def test_ranges_are_slices(fs: ShardedFileSystem, expected: dict[str, bytes], key: str) -> None:
    """Whatever the bounds: negative ones, ones past the end, ones that cross."""
    pairs = [(start, end) for start in BOUNDS for end in BOUNDS]
    got = fs.cat_ranges([key] * len(pairs), [start for start, _ in pairs], [end for _, end in pairs])
    for (start, end), data in zip(pairs, got, strict=True):
        assert data == expected[key][start:end], (start, end)
    for start, end in pairs[::7]:
        assert fs.cat_file(key, start, end) == expected[key][start:end]


def test_ranges_have_errors_of_their_own(place: Place, fs: ShardedFileSystem, expected: dict[str, bytes]) -> None:
    paths = ["ct/c/1/1", "ct/c/1/2", "notes.txt", "nothing"]
    got = fs.cat_ranges(paths, 1, 3)
    assert [type(x) for x in got] == [bytes, NotFound, bytes, NotFound]
    assert got[0] == expected["ct/c/1/1"][1:3]
    assert got[2] == b"bo"
    with pytest.raises(NotFound, match="ct/c/1/2"):
        fs.cat_ranges(paths, 1, 3, on_error="raise")
    shard = place.objects.get("ct/c/1/1") or b""
    place.objects.put("ct/c/1/1", shard[:-1] + bytes([shard[-1] ^ 1]))
    damaged = fs.cat_ranges(["ct/c/2/2", "ct/c/1/1"], [0, 0], [2, 2])
    assert isinstance(damaged[0], Corruption)
    assert damaged[1] == expected["ct/c/1/1"][:2]


def test_ranges_that_do_not_belong_together(fs: ShardedFileSystem) -> None:
    with pytest.raises(ValueError, match="2 paths, 1 starts and 2 ends"):
        fs.cat_ranges(["a", "b"], [0], [1, 2])
    with pytest.raises(TypeError, match="paths must be a list"):
        fs.cat_ranges("a", [0], [1])


# -- requests ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def wide() -> tuple[ShardedFileSystem, Place]:
    """1,000 chunks of 100 bytes in 10 shards, and an engine that knows nothing of them yet."""
    place = memory_place()
    writer = place.filesystem(chunks_per_shard=(100,))
    writer.pipe({"zarr.json": array_document((100_000,), (100,)), **{f"c/{i}": bytes([i % 256]) * 100 for i in range(1000)}})
    return place.filesystem(gap_bytes=0, metadata_ttl="1h"), place


def requests(fs: ShardedFileSystem) -> int:
    count = fs.counters.requests
    fs.counters.reset()
    return count


def test_many_ranges_are_two_rounds_of_requests(wide: tuple[ShardedFileSystem, Place]) -> None:
    """One index a shard, then a request for each run of chunks that lie side by side; nothing a chunk."""
    fs, _ = wide
    fs.exists("zarr.json")
    requests(fs)
    assert fs.cat_ranges([f"c/{i}" for i in range(0, 1000, 2)], 0, 100) == [bytes([i % 256]) * 100 for i in range(0, 1000, 2)]
    assert requests(fs) <= 10 + 500, "an index a shard and a request a chunk, since no two lie side by side"
    assert fs.counters.index_misses == 0 or fs.counters.index_misses <= 10
    chosen = [f"c/{100 * shard + i}" for shard in range(10) for i in range(20, 50)]
    fs.cat_ranges(chosen, 0, 100)
    assert requests(fs) == 10, "the indices are known, and the chunks of a shard lie side by side"
    values = fs.cat([f"c/{i}" for i in range(1000)])
    assert requests(fs) == 10
    assert len(values) == 1000


def test_listing_reads_indices_and_sizes_cost_nothing_more(wide: tuple[ShardedFileSystem, Place]) -> None:
    fs, place = wide
    assert len(fs.find("c")) == 1000
    assert requests(fs) <= 1 + 10 + 4, "the listing, the indices, and the documents that may be there"
    fresh = place.filesystem(gap_bytes=1)
    assert fresh.du("c") == 100_000
    assert requests(fresh) <= 1 + 10 + 4
    assert fresh.counters.bytes_read == 0, "reset"
    fresh.ls("", detail=False)
    assert requests(fresh) <= 2, "one level of the storage"
    assert fresh.exists("c/7")
    assert fresh.size("c/999") == 100
    assert requests(fresh) <= 4, "indices tell"
    assert len(list(fresh.walk("c"))) == 1
    assert requests(fresh) <= 1 + 10 + 4


def test_values_differ_by_their_ukey(fs: ShardedFileSystem) -> None:
    """What caches ask: equal as long as the bytes are, another one after a change."""
    keys = ["ct/c/1/1", "ct/c/1/0", "notes.txt", "ct/zarr.json"]
    before = {key: fs.ukey(key) for key in keys}
    assert len(set(before.values())) == len(keys)
    assert before == {key: fs.ukey(key) for key in keys}
    assert fs.checksum("notes.txt") == int(before["notes.txt"], 16)
    fs.pipe({"ct/c/1/1": b"12345678", "notes.txt": b"about that"})
    assert fs.ukey("ct/c/1/1") != before["ct/c/1/1"]
    assert fs.ukey("notes.txt") != before["notes.txt"]
    assert fs.ukey("ct/zarr.json") == before["ct/zarr.json"]
    with pytest.raises(NotFound):
        fs.ukey("ct/c/1/2")


# -- paths ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["ct/../notes.txt", "./notes.txt", "a//b", "a/./b", "..", "a\\b", "a\0b"])
def test_keys_that_are_refused(key: str) -> None:
    """On every way in, and nothing is made of them."""
    place = memory_place()
    put_sample(place.objects)
    fs = place.filesystem()
    before = fs.find("")
    uses: list[Callable[[], object]] = [
        lambda: fs.cat_file(key),
        lambda: fs.pipe_file(key, b"x"),
        lambda: fs.pipe({key: b"x", "other": b"y"}),
        lambda: fs.info(key),
        lambda: fs.rm_file(key),
        lambda: fs.open(key, "rb"),
        lambda: fs.cat_ranges([key], 0, 1),
    ]
    for use in uses:
        with pytest.raises(InvalidInput):
            use()
    with pytest.raises(InvalidInput), fs.open(key, "wb") as file:
        file.write(b"x")
    assert fs.find("") == before


def test_nothing_is_percent_decoded(fs: ShardedFileSystem, place: Place) -> None:
    fs.pipe_file("a%20b/ü%2F.txt", b"x")
    assert fs.cat_file("a%20b/ü%2F.txt") == b"x"
    assert fs.ls("a%20b", detail=False) == [f"{place.path}/a%20b/ü%2F.txt"]
    assert place.objects.get("a%20b/ü%2F.txt") == b"x"


def test_paths_are_those_of_the_filesystem_below(fs: ShardedFileSystem, place: Place) -> None:
    """So what ``glob`` and ``open_files`` give back can be used, with and without the protocols."""
    url = f"sharded::{place.url}/ct/c/0/0"
    opened = fsspec.open(f"sharded::{place.url}", **place.link_options())
    assert opened.fs is fs
    assert fs.cat_file(fs.glob("ct/c/0/*")[0]) == fs.cat_file("ct/c/0/0")
    assert fs.cat_file(fs.unstrip_protocol("ct/c/0/0")) == fs.cat_file("ct/c/0/0")
    assert fs.key_of(fs._parent("ct/c/0/0")) == "ct/c/0"
    with fsspec.open(url, "rb", **place.link_options()) as file:
        assert file.read() == fs.cat_file("ct/c/0/0")
    files = fsspec.open_files(f"sharded::{place.url}/ct/c/3/*", **place.link_options())
    assert [file.path for file in files] == place.full(*(f"ct/c/3/{i}" for i in range(4)))
    with files[1] as file:
        assert file.read() == fs.cat_file("ct/c/3/1")
    mapper = fsspec.get_mapper(f"sharded::{place.url}", **place.link_options())
    assert mapper["ct/c/0/0"] == fs.cat_file("ct/c/0/0")
    assert sorted(mapper) == sorted(path[len(place.path) + 1 :] for path in fs.find(""))
    assert os.path.basename(mapper.root) == os.path.basename(place.path)
