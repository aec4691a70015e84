"""Merging of manifests: few are read for one chunk, and none is written again often."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from shardstore.format.snapshots.manifest import INLINE, ChunkRefs
from shardstore.format.snapshots.structure import ManifestFile, ManifestPart
from shardstore.snapshots import Repository, Session
from shardstore.snapshots.commit import MOST_LEVELS, MOST_MERGED_ROWS, divided, first_to_merge, levels_of
from tests.snapshots.repositories import create_array, new_repository, read_array, run, traced_repository


def part(name: str, run: str = "", rows: int = 1) -> ManifestPart:
    return ManifestPart(ManifestFile(name, 10, rows, 0, None, run), 0, ((0, 1),))


def test_manifests_of_one_commit_are_one_level() -> None:
    parts = [part("a", "x"), part("b", "x"), part("c"), part("d"), part("e", "y"), part("f", "y")]
    assert [[one.file.name for one in level] for level in levels_of(parts)] == [["a", "b"], ["c"], ["d"], ["e", "f"]]


@given(st.integers(0, 10**6), st.lists(st.integers(1, 5000), min_size=1, max_size=400))
def test_levels_stay_few_and_a_reference_is_rarely_written_again(base: int, commits: list[int]) -> None:
    levels = [base] if base else []
    written = 0
    for rows in commits:
        first = first_to_merge(levels)
        if first is not None:
            merged = sum(levels[first:])
            written += merged
            levels[first:] = [merged]
        levels.append(rows)
        assert len(levels) <= MOST_LEVELS
    total = base + sum(commits)
    assert sum(levels) == total
    assert written <= total * (2 + math.log2(1 + len(commits)))


def test_what_is_too_large_for_a_commit_is_not_merged() -> None:
    assert first_to_merge([MOST_MERGED_ROWS, *[1] * 20]) == 1
    assert first_to_merge([5, 1, MOST_MERGED_ROWS, *[1] * 20]) == 3
    assert first_to_merge([1] * 10 + [MOST_MERGED_ROWS, 1]) is None


def test_a_large_base_is_left_alone_by_small_commits(tmp_path: Path) -> None:
    repo, trace = traced_repository(tmp_path)
    session = repo.writable_session()
    data = np.arange(600)
    array = create_array(session, "a", data, (1,))
    session.commit("base")
    for number in range(12):
        session = repo.writable_session()
        array = zarr.open_array(session.store, path="a")
        array[number] = -1 - number
        data[number] = -1 - number
        with trace.count() as block:
            session.commit("one")
        assert sum(event.nbytes for event in block.events if event.op == "write" and event.key.startswith("m/")) < 4000
        assert len(repo.readonly_session()._core.nodes["a"].manifests) <= MOST_LEVELS
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "a"), data)


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(1, 20), st.integers(0, 20))
def test_references_are_divided_in_order_and_arrays_begin_where_they_may(sizes: list[int], most: int, last_begin: int) -> None:
    arrays = {}
    for array, n in enumerate(sizes):
        columns = np.zeros(n, np.int32), np.arange(n, dtype=np.uint64), np.ones(n, np.uint64)
        arrays[array] = ChunkRefs(np.arange(n, dtype=np.uint64)[:, None], *columns, [b"x" * 12])
    pieces = divided(arrays, most, last_begin, 1 << 30)
    found = [(array, int(coord)) for piece in pieces for array, refs in piece.items() for (coord,) in refs.coords]
    assert found == [(array, coord) for array, n in enumerate(sizes) for coord in range(n)]
    for piece in pieces:
        ends = np.cumsum([len(refs) for refs in piece.values()]).tolist()
        assert ends[-1] <= most
        assert all(end <= last_begin for end in ends[:-1])  # where the next array begins
    if last_begin >= most:
        assert len(pieces) == -(-sum(sizes) // most)


def refer(session: Session, url: str, begin: int, nchunks: int) -> None:
    """Let chunks of the arrays a, b and c be one byte each of one file."""
    coords = np.arange(begin, begin + nchunks)
    for name in "abc":
        session.set_virtual_refs(name, coords[:, None], url, coords, 1)


def check_draft(repo: Repository, data: np.ndarray) -> list[ManifestPart]:
    """Check what arrays hold, and that the numbers of the draft can say where their rows begin; return the parts of manifests."""
    nodes = Repository.open(repo.url).readonly_session()._core.nodes
    parts = [part for name in "abc" for part in nodes[name].manifests]
    assert max(part.row for part in parts) <= 65_535
    again = Repository.open(repo.url, virtual_prefixes=repo.virtual_prefixes)
    for name in "abc":
        np.testing.assert_array_equal(zarr.open_array(again.readonly_session().store, path=name, mode="r")[::1000], data[::1000])
    return parts


@pytest.mark.gate
def test_commits_of_the_draft_go_on_however_many_references_there_are(tmp_path: Path) -> None:
    """D16: the draft numbers rows by 16 bits. Where the next array would begin behind them, another manifest begins."""
    data = np.arange(40_000).astype("u1") | 1
    (tmp_path / "blob").write_bytes(data.tobytes())
    url = f"file://{tmp_path}/blob"
    repo = new_repository(tmp_path / "run", schema="draft", virtual_prefixes=[f"file://{tmp_path}/"])
    session = repo.writable_session()
    for name in "abc":
        zarr.create_array(session.store, name=name, shape=data.shape, chunks=(1,), dtype="u1", compressors=None, fill_value=0)
    refer(session, url, 0, len(data))
    session.commit("all at once")
    parts = check_draft(repo, data)
    assert (len(parts), len({part.file.name for part in parts})) == (3, 2)
    for number in range(MOST_LEVELS + 2):
        session = repo.writable_session()
        refer(session, url, 20_000 * (number % 2), 20_000)
        session.commit("again")
        check_draft(repo, data)
    repo.rewrite_manifests()
    parts = check_draft(repo, data)
    assert (len(parts), len({part.file.name for part in parts})) == (3, 2)
    with repo.transaction(message="one chunk of each") as store:
        for name in "abc":
            zarr.open_array(store, path=name)[1000] = data[1000] = 9
    check_draft(repo, data)


def test_attributes_of_the_draft_are_divided_among_files(tmp_path: Path) -> None:
    """D16, D19: rows of a file of attributes have numbers of 16 bits, too."""
    for schema, nfiles in (("draft", 3), ("auto", 1)):
        repo = new_repository(tmp_path / schema, schema=schema)
        repo._store.files.draft_row = 2
        with repo.transaction(message="attributes") as store:
            for number in range(7):
                zarr.create_group(store, path=f"g{number}", attributes={"long": f"{number}" * 20_000})
        nodes = Repository.open(repo.url).readonly_session()._core.nodes
        places = [node.attributes for path, node in nodes.items() if path]
        assert len({place.file for place in places if place is not None}) == nfiles
        found = Repository.open(repo.url).readonly_session()
        for number in range(7):
            assert zarr.open_group(found.store, path=f"g{number}", mode="r").attrs["long"] == f"{number}" * 20_000


@pytest.mark.parametrize("what", ["urls", "etags", "inline", "long"])
def test_columns_of_manifests_stay_within_what_arrow_can_hold(tmp_path: Path, what: str) -> None:
    """A column of text has less than 2 GiB: of rows with long values fewer go into one manifest."""
    prefix = f"file://{tmp_path}/"
    repo = new_repository(tmp_path / "run", virtual_prefixes=[prefix])
    repo._store.files.column_nbytes = 100_000
    session = repo.writable_session()
    zarr.create_array(session.store, name="a", shape=(100,), chunks=(1,), dtype="u1", compressors=None, fill_value=0)
    urls = f"{prefix}{'x' * {'urls': 2000, 'long': 150_000}.get(what, 1)}"
    coords = np.arange(4 if what == "long" else 100)[:, None]
    session.set_virtual_refs("a", coords, urls, 0, 1, etags="e" * 2000 if what == "etags" else None)
    if what == "inline":  # as an import from Icechunk has them
        n = len(coords)
        columns = np.full(n, INLINE, dtype=np.int32), np.zeros(n, np.uint64), np.full(n, 2000, np.uint64)
        session._core.set_refs(
            session._core.nodes["a"], ChunkRefs(coords.astype(np.uint64), *columns, [], dict.fromkeys(range(n), b"i" * 2000))
        )
    session.commit("long values")
    parts = repo.readonly_session()._core.nodes["a"].manifests
    assert len(levels_of(parts)) == 1
    assert len(parts) == {"urls": 3, "long": 4}.get(what, 2)
    core = Repository.open(repo.url).readonly_session()._core
    refs = run(core.all_refs(core.nodes["a"]))
    assert refs is not None
    assert refs.coords.tolist() == coords.tolist()
    assert len(refs.inline) == (100 if what == "inline" else 0)


def test_many_references_are_divided_among_manifests(tmp_path: Path) -> None:
    repo = new_repository(tmp_path)
    repo._store.files.manifest_rows = 100
    session = repo.writable_session()
    one, two = np.arange(250), np.arange(130).reshape(10, 13)
    create_array(session, "one", one, (1,))
    create_array(session, "two", two, (1, 1))
    session.commit("data")
    again = Repository.open(repo.url)
    for path, data in (("one", one), ("two", two)):
        parts = repo.readonly_session()._core.nodes[path].manifests
        assert len(levels_of(parts)) == 1
        assert len(parts) >= 2
        np.testing.assert_array_equal(read_array(again.readonly_session(), path), data)
    for number in range(20):
        with repo.transaction(message="more") as store:
            zarr.open_array(store, path="one")[number * 10 : number * 10 + 30] = number
        one[number * 10 : number * 10 + 30] = number
    assert len(levels_of(repo.readonly_session()._core.nodes["one"].manifests)) <= MOST_LEVELS
    np.testing.assert_array_equal(read_array(again.readonly_session(), "one"), one)
