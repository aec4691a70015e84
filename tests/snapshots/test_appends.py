"""Appends of two sessions to the same arrays: a rebase joins them where that needs no chunk, and it is a conflict elsewhere."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from shardstore.errors import InvalidInput
from shardstore.snapshots import BasicConflictSolver, ConflictDetector, ConflictError, ConflictType, Repository, Session
from shardstore.snapshots.conflicts import Selection
from tests.snapshots.repositories import create_array, new_repository, read_array, run, traced_repository

Change = Callable[[Session], object]

BEFORE, CHUNK, WIDTH = 8, 4, 6
ARRAYS = ("g/time", "g/tas")
"""Of 4 and 2 by 3 elements a chunk, and of one dimension and two."""


def values(first: int, rows: int, path: str) -> np.ndarray[Any, Any]:
    """Return rows of which each is different, and none is a fill value."""
    numbers = np.arange(first, first + rows, dtype="i4") + 1
    return numbers if path.endswith("time") else numbers[:, None] * 100 + np.arange(WIDTH, dtype="i4")


def make(repo: Repository, **options: Any) -> None:
    """Commit two arrays of one dataset, and one of another group with a dimension of the same name."""
    session = repo.writable_session()
    zarr.create_group(session.store, path="g", attributes={"one": 1, "two": 2})
    for path, chunks, names in (("g/time", (4,), ["time"]), ("g/tas", (2, 3), ["time", "x"]), ("other/tas", (2, 3), ["time", "x"])):
        create_array(session, path, values(0, BEFORE, path), chunks, dimension_names=names, attributes={"one": 1}, **options)
    session.commit("begin")


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    repo = new_repository(tmp_path, pack={"g/tas": (3, 2), "*": "auto"})
    make(repo)
    return repo


def opened(session: Session, path: str) -> Any:
    return zarr.open_array(session.store, path=path, mode="r+")


def append(first: int, rows: int, paths: Sequence[str] = ARRAYS) -> Change:
    def change(session: Session) -> None:
        for path in paths:
            opened(session, path).append(values(first, rows, path))

    return change


def both(*changes: Change) -> Change:
    def change(session: Session) -> None:
        for one in changes:
            one(session)

    return change


def write(path: str, rows: slice) -> Change:
    def change(session: Session) -> None:
        opened(session, path)[rows] = -1

    return change


def resize(length: int, path: str = "g/tas") -> Change:
    def change(session: Session) -> None:
        array = opened(session, path)
        array.resize((length, *array.shape[1:]))

    return change


def attribute(path: str, name: str, value: int) -> Change:
    return lambda session: zarr.open(session.store, path=path, mode="r+").attrs.update({name: value})


def make_along_time(session: Session) -> None:
    create_array(session, "g/new", values(0, 12, "g/new"), (2, 3), dimension_names=["time", "x"])


def make_again(session: Session) -> None:
    opened(session, "g/tas")
    del zarr.open_group(session.store, path="g", mode="r+")["tas"]
    create_array(session, "g/tas", values(0, 12, "g/tas"), (2, 3), dimension_names=["time", "x"])


def wider(session: Session) -> None:
    array = opened(session, "g/tas")
    array.resize((12, WIDTH + 3))
    array[8:] = 1


def assert_rows(session: Session, firsts: Sequence[tuple[int, int]], paths: Sequence[str] = ARRAYS) -> None:
    """Check that these rows, (first value, number), follow those that were there in the beginning, and nothing else."""
    for path in paths:
        expected = np.concatenate([values(first, rows, path) for first, rows in ((0, BEFORE), *firsts)])
        np.testing.assert_array_equal(read_array(session, path), expected, err_msg=path)


def rebased(repo: Repository, ours: Change, theirs: Sequence[Change], solver: ConflictDetector | None = None) -> Session:
    """Let a session change something, other sessions commit, and the first one commit on top of that."""
    session = repo.writable_session()
    ours(session)
    for change in theirs:
        other = repo.writable_session()
        change(other)
        other.commit("theirs", rebase_with=solver)
    session.commit("ours", rebase_with=solver or BasicConflictSolver())
    return repo.readonly_session()


@pytest.mark.parametrize("ours", [1, 4, 5, 7, 24])
def test_our_rows_come_behind_theirs(repo: Repository, ours: int) -> None:
    """Whether our last row is at the end of a chunk or not, and whether the chunks of a file stay in one cell or not."""
    session, other = repo.writable_session(), repo.writable_session()
    append(200, ours)(session)
    append(100, 4)(other)
    assert_rows(session, [(200, ours)])
    other.commit("theirs")
    session.rebase(BasicConflictSolver())
    assert_rows(session, [(100, 4), (200, ours)])
    append(300, 2)(session)  # and it goes on
    assert_rows(session, [(100, 4), (200, ours), (300, 2)])
    session.commit("ours")
    assert_rows(Repository.open(repo.url).readonly_session(), [(100, 4), (200, ours), (300, 2)])
    assert repo.verify().is_sound


def test_a_session_is_rebased_again_and_again(repo: Repository) -> None:
    session = repo.writable_session()
    append(500, 6)(session)
    for number in range(1, 4):
        other = repo.writable_session()
        append(100 * number, 4 * number)(other)
        other.commit("theirs")
        session.rebase(BasicConflictSolver())
    session.commit("ours")
    assert_rows(repo.readonly_session(), [(100, 4), (200, 8), (300, 12), (500, 6)])


def test_what_they_committed_in_parts_counts_as_a_whole(repo: Repository) -> None:
    found = rebased(repo, append(500, 6), [append(100, 3), append(103, 5)])
    assert_rows(found, [(100, 8), (500, 6)])


def test_many_sessions_of_one_beginning(repo: Repository) -> None:
    sessions = [repo.writable_session() for _ in range(6)]
    for number, session in enumerate(sessions):
        append(100 * number, 4 * (number + 1))(session)
    for session in sessions[::-1]:
        session.commit("rows", rebase_with=BasicConflictSolver())
    assert_rows(repo.readonly_session(), [(100 * number, 4 * (number + 1)) for number in range(5, -1, -1)])


CASES: dict[str, tuple[Change, Change]] = {
    "their end is inside a chunk": (append(200, 4), append(100, 3)),
    "their end is inside a chunk of one of the arrays": (append(200, 4), append(100, 2)),
    "we wrote an old chunk too": (both(append(200, 4), write("g/tas", slice(0, 2))), append(100, 4)),
    "they wrote an old chunk too": (append(200, 4), both(append(100, 4), write("g/time", slice(0, 4)))),
    "we appended to fewer arrays": (append(200, 4, ARRAYS[:1]), append(100, 4)),
    "they appended to fewer arrays": (append(200, 4), append(100, 4, ARRAYS[1:])),
    "we appended different numbers of rows": (both(append(200, 4, ARRAYS[:1]), append(200, 8, ARRAYS[1:])), append(100, 4)),
    "they appended different numbers of rows": (append(200, 4), both(append(100, 4, ARRAYS[:1]), append(100, 8, ARRAYS[1:]))),
    "we made an array with the dimension": (both(append(200, 4), make_along_time), append(100, 4)),
    "they made an array with the dimension": (append(200, 4), both(append(100, 4), make_along_time)),
    "they made an array again": (append(200, 4), make_again),
    "we made an array again": (both(append(200, 4, ARRAYS[:1]), make_again), append(100, 4)),
    "we made it shorter": (resize(4), append(100, 4)),
    "they made it shorter": (append(200, 4), resize(4)),
    "we grow along another axis, too": (both(append(200, 4, ARRAYS[:1]), wider), append(100, 4)),
    "we changed an attribute of an array": (both(append(200, 4), attribute("g/tas", "one", 2)), append(100, 4)),
    "they changed an attribute of an array": (append(200, 4), both(append(100, 4), attribute("g/tas", "two", 2))),
    "they changed nothing but an attribute of an array": (append(200, 4), attribute("g/tas", "two", 2)),
    "we have only made it longer": (resize(12), append(100, 4, ARRAYS[1:])),
    "they have only made it longer": (append(200, 4, ARRAYS[1:]), resize(12)),
    "both have only made it longer": (resize(12), resize(12)),
    "both made it longer to write parts of it": (
        both(resize(12), write("g/tas", slice(8, 10))),
        both(resize(12), write("g/tas", slice(10, 12))),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_no_append_of_whole_chunks_on_both_sides_is_a_conflict(repo: Repository, name: str) -> None:
    ours, theirs = CASES[name]
    session, other = repo.writable_session(), repo.writable_session()
    ours(session)
    theirs(other)
    tip = other.commit("theirs")
    before = {path: read_array(session, path) for path in ARRAYS}
    with pytest.raises(ConflictError):
        session.commit("ours", rebase_with=BasicConflictSolver())
    assert repo.lookup_branch("main") == tip
    for path, data in before.items():
        np.testing.assert_array_equal(read_array(session, path), data)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_an_old_end_inside_a_chunk_of_an_array_is_a_conflict(repo: Repository, rows: int) -> None:
    """Of the coordinate only, or of both arrays."""
    with repo.transaction(message="rows") as store:
        for path in ARRAYS:
            zarr.open_array(store, path=path).append(values(8, rows, path))
    with pytest.raises(ConflictError):
        rebased(repo, append(200, 4), [append(100, 4)])
    assert_rows(repo.readonly_session(), [(8, rows), (100, 4)])


@pytest.mark.parametrize("ours", [True, False])
def test_an_attribute_of_an_array_that_was_changed_is_a_conflict_wherever_attributes_are_stored(repo: Repository, ours: bool) -> None:
    with repo.transaction(message="long") as store:
        zarr.open_array(store, path="g/tas").attrs["long"] = "x" * 20_000
    changed = attribute("g/tas", "one", 2)
    mine, other = (both(append(first, 4), changed if it_is else both()) for first, it_is in ((200, ours), (100, not ours)))
    with pytest.raises(ConflictError, match="g/tas: both have changed the metadata"):
        rebased(repo, mine, [other])


def test_a_moved_chunk_that_is_written_again_waits_once(repo: Repository) -> None:
    session = repo.writable_session()
    append(200, 2)(session)
    held = session._core.gatherer._held
    with repo.transaction(message="rows") as store:
        for path in ARRAYS:
            zarr.open_array(store, path=path).append(values(100, 4, path))
    session.rebase(BasicConflictSolver())
    for path in ARRAYS:
        opened(session, path)[12:14] = values(200, 2, path)
    assert session._core.gatherer._held == held
    session.commit("ours")
    assert_rows(repo.readonly_session(), [(100, 4), (200, 2)])


@pytest.mark.parametrize("solver", [ConflictDetector(), BasicConflictSolver(fail_on_append=True)])
def test_only_a_solver_joins_appends(repo: Repository, solver: ConflictDetector) -> None:
    with pytest.raises(ConflictError, match=r"Both have made 'g/tas', 'g/time' longer: session\.append") as caught:
        rebased(repo, append(200, 4), [append(100, 4)], solver)
    assert {conflict.conflict_type for conflict in caught.value.conflicts} == {
        ConflictType.ZarrMetadataDoubleUpdate,
        ConflictType.ChunksUpdatedInUpdatedArray,
    }


@pytest.mark.parametrize("on_chunk_conflict", ["ours", "theirs", "fail"])
def test_whose_chunk_counts_makes_no_difference_to_appends(repo: Repository, on_chunk_conflict: Selection) -> None:
    """They have written further than their end, and made the array shorter again."""
    theirs = both(append(100, 12), resize(12, "g/time"), resize(12, "g/tas"))
    found = rebased(repo, append(200, 8), [theirs], BasicConflictSolver(on_chunk_conflict=on_chunk_conflict))
    assert_rows(found, [(100, 4), (200, 8)])


def test_other_changes_are_brought_along(repo: Repository) -> None:
    ours = both(append(200, 4), attribute("g", "one", 5), write("other/tas", slice(0, 2)), lambda session: session.move("g", "h"))
    theirs = both(append(100, 4), attribute("g", "two", 6), write("other/tas", slice(4, 6)))
    found = rebased(repo, ours, [theirs])
    assert_rows(found, [(100, 4), (200, 4)], ("h/time", "h/tas"))
    assert zarr.open_group(found.store, path="h", mode="r").attrs.asdict() == {"one": 5, "two": 6}
    assert read_array(found, "other/tas")[:, 0].tolist() == [-1, -1, 300, 400, -1, -1, 700, 800]


def test_groups_grow_each_for_itself(repo: Repository) -> None:
    found = rebased(repo, both(append(200, 4), append(200, 2, ["other/tas"])), [both(append(100, 4), append(100, 6, ["other/tas"]))])
    assert_rows(found, [(100, 4), (200, 4)])
    assert_rows(found, [(100, 6), (200, 2)], ["other/tas"])
    found = rebased(repo, append(300, 4), [append(400, 8, ["other/tas"])])
    assert_rows(found, [(100, 4), (200, 4), (300, 4)])
    assert_rows(found, [(100, 6), (200, 2), (400, 8)], ["other/tas"])


def test_arrays_without_names_of_dimensions_grow_each_for_itself(repo: Repository) -> None:
    paths = ("a/time", "a/tas")
    with repo.transaction(message="more") as store:
        for path in paths:
            data = values(0, BEFORE, path)
            zarr.create_array(store, name=path, shape=data.shape, chunks=(2,) * data.ndim, dtype=data.dtype)[...] = data
    new: Change = lambda session: create_array(session, "a/new", values(0, 4, "a/new"), (2, 3))  # noqa: E731
    found = rebased(repo, both(append(200, 3, paths), new), [both(append(100, 4, paths[:1]), append(100, 6, paths[1:]))])
    assert_rows(found, [(100, 4), (200, 3)], paths[:1])
    assert_rows(found, [(100, 6), (200, 3)], paths[1:])


def test_an_axis_that_is_not_the_first(repo: Repository) -> None:
    with repo.transaction(message="more") as store:
        data = values(0, BEFORE, "tas").T
        zarr.create_array(store, name="turned", shape=data.shape, chunks=(4, 2), dtype=data.dtype, dimension_names=["x", "time"])[...] = (
            data
        )

    def along(first: int, rows: int) -> Change:
        return lambda session: opened(session, "turned").append(values(first, rows, "tas").T, axis=1)

    found = rebased(repo, along(200, 3), [along(100, 6)])
    expected = np.concatenate([values(first, rows, "tas") for first, rows in ((0, BEFORE), (100, 6), (200, 3))])
    np.testing.assert_array_equal(read_array(found, "turned"), expected.T)


def test_rows_of_fill_values_are_rows(repo: Repository) -> None:
    """Their chunks are not stored, so only the coordinate shows that rows were written."""

    def empty(first: int, rows: int) -> Change:
        return both(append(first, rows, ARRAYS[:1]), lambda session: opened(session, "g/tas").append(np.zeros((rows, WIDTH), "i4")))

    found = rebased(repo, append(200, 4), [empty(100, 4)])
    assert_rows(found, [(100, 4), (200, 4)], ARRAYS[:1])
    assert read_array(found, "g/tas")[8:, 0].tolist() == [0] * 4 + values(200, 4, "g/tas")[:, 0].tolist()
    found = rebased(repo, empty(300, 4), [append(400, 4)])
    assert read_array(found, "g/tas")[16:, 0].tolist() == values(400, 4, "g/tas")[:, 0].tolist() + [0] * 4


def test_an_array_that_was_empty(repo: Repository) -> None:
    with repo.transaction(message="more") as store:
        zarr.create_array(store, name="log", shape=(0,), chunks=(4,), dtype="i4", dimension_names=["time"])

    def log(*numbers: int) -> Change:
        return lambda session: opened(session, "log").append(np.array(numbers, "i4"))

    found = rebased(repo, log(5, 6, 7), [log(1, 2, 3, 4)])
    assert read_array(found, "log").tolist() == list(range(1, 8))


def test_stored_folded_and_virtual_chunks_move_too(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere"
    file.write_bytes(values(900, 4, "time").tobytes())
    repo = Repository.create(f"memory://{tmp_path}", pack=(3,), max_memory=1, virtual_prefixes=[f"file://{tmp_path}/"])
    session = repo.writable_session()
    create_array(session, "t", values(0, BEFORE, "time"), (CHUNK,), compressors=None, filters=None)
    session.commit("begin")
    session, other = repo.writable_session(), repo.writable_session()
    session._core.folded_at = 2
    opened(session, "t").append(values(200, 24, "time"))
    session.set_virtual_refs("t", [[3]], f"file://{file}", [0], [16])
    opened(session, "t").append(values(300, 4, "time"))
    assert session._core.changes[session._core.nodes["t"].id].bulk is not None
    opened(other, "t").append(values(100, 20, "time"))
    other.commit("theirs")
    session.commit("ours", rebase_with=BasicConflictSolver())
    mine = values(200, 24, "time")
    mine[4:8] = values(900, 4, "time")
    expected = np.concatenate([values(0, 8, "time"), values(100, 20, "time"), mine, values(300, 4, "time")])
    np.testing.assert_array_equal(read_array(repo.readonly_session(), "t"), expected)


def test_no_chunk_is_read_or_written_again(tmp_path: Path) -> None:
    repo, trace = traced_repository(tmp_path, pack=None)
    make(repo, compressors=None)
    session, other = repo.writable_session(), repo.writable_session()
    opened(session, "g/tas").append(np.random.default_rng(0).integers(1, 2**31, (64, WIDTH)).astype("i4"))
    opened(other, "g/tas").append(values(100, 64, "tas"))
    other.commit("theirs")
    run(session._core.gatherer.store(session._core.gatherer.plan()))
    with trace.count() as block:
        session.commit("ours", rebase_with=BasicConflictSolver())
    assert [event.key for event in block.events if event.key.startswith("c/")] == []
    assert sorted(event.key[:2] for event in block.events if event.op == "write") == ["ca", "m/", "s/", "t/"]
    assert read_array(repo.readonly_session(), "g/tas").shape == (BEFORE + 128, WIDTH)


def test_chunk_files_that_have_moved_are_exported_right(repo: Repository, tmp_path: Path) -> None:
    """A whole shard whose chunks lie in two cells now is not taken for one of them."""
    found = rebased(repo, append(200, 24), [append(100, 4)])
    repo.export_zarr(tmp_path / "out.zarr")
    for path in ARRAYS:
        np.testing.assert_array_equal(zarr.open_array(tmp_path / "out.zarr", path=path, mode="r")[...], read_array(found, path))
    repo.repack()
    assert_rows(repo.readonly_session(), [(100, 4), (200, 24)])


def test_an_append_meets_upkeep(repo: Repository) -> None:
    session = repo.writable_session()
    append(200, 4)(session)
    for number in range(1, 11):
        with repo.transaction(message="rows") as store:
            for path in ARRAYS:
                zarr.open_array(store, path=path).append(values(1000 * number, 4, path))
    repo.repack()
    repo.rewrite_manifests()
    session.commit("ours", rebase_with=BasicConflictSolver())
    assert_rows(repo.readonly_session(), [*((1000 * number, 4) for number in range(1, 11)), (200, 4)])


def test_commits_between_that_have_expired(repo: Repository) -> None:
    session = repo.writable_session()
    append(500, 3)(session)
    repo.create_tag("begin", session.snapshot_id)
    for number in (1, 2):
        with repo.transaction(message="rows") as store:
            for path in ARRAYS:
                zarr.open_array(store, path=path).append(values(100 * number, 4, path))
    repo.expire_snapshots(datetime(2200, 1, 1, tzinfo=UTC))
    assert len(list(repo.ancestry())) == 2
    session.commit("ours", rebase_with=BasicConflictSolver())
    assert_rows(repo.readonly_session(), [(100, 4), (200, 4), (500, 3)])


def test_what_was_read_counts(repo: Repository) -> None:
    """A session that knows the length has read it, and what it does next may depend on it."""
    session, other = repo.writable_session(isolation="serializable"), repo.writable_session()
    append(200, 4)(session)
    append(100, 4)(other)
    other.commit("theirs")
    with pytest.raises(ConflictError) as caught:
        session.commit("ours", rebase_with=BasicConflictSolver())
    assert ConflictType.ReadOfUpdatedNodes in {conflict.conflict_type for conflict in caught.value.conflicts}


# -- consolidated metadata ---------------------------------------------------------------------------------------------


def consolidated(session: Session) -> None:
    zarr.consolidate_metadata(session.store)


def shown_lengths(session: Session) -> dict[str, int]:
    members = zarr.open_consolidated(session.store, mode="r").members(max_depth=None)
    return {path: node.shape[0] for path, node in members if isinstance(node, zarr.Array)}


def test_consolidated_metadata_shows_the_rows_of_both(repo: Repository) -> None:
    with repo.transaction(message="consolidated") as store:
        zarr.consolidate_metadata(store)
    found = rebased(repo, both(append(200, 4), consolidated), [both(append(100, 4), consolidated)])
    assert shown_lengths(found) == {"g/time": 16, "g/tas": 16, "other/tas": 8}
    assert_rows(found, [(100, 4), (200, 4)])


@pytest.mark.parametrize(("ours", "theirs"), [(True, False), (False, True)])
def test_consolidated_metadata_of_one_side_shows_the_rows_of_both(repo: Repository, ours: bool, theirs: bool) -> None:
    with repo.transaction(message="consolidated") as store:
        zarr.consolidate_metadata(store)
    nothing = both()
    found = rebased(
        repo, both(append(200, 4), consolidated if ours else nothing), [both(append(100, 4), consolidated if theirs else nothing)]
    )
    assert shown_lengths(found) == {"g/time": 16, "g/tas": 16, "other/tas": 8}


@pytest.mark.parametrize("maker", ["ours", "theirs", "both"])
def test_what_one_side_has_made_stays_in_consolidated_metadata(repo: Repository, maker: str) -> None:
    with repo.transaction(message="consolidated") as store:
        zarr.consolidate_metadata(store)

    def rows(first: int, side: str) -> Change:
        make = lambda session: create_array(session, f"g/{side}", np.ones(4), (4,), dimension_names=["y"])  # noqa: E731
        return both(append(first, 4), *([make] if maker in (side, "both") else []), consolidated)

    if maker == "both":
        with pytest.raises(ConflictError, match="/: both have changed the metadata"):
            rebased(repo, rows(200, "ours"), [rows(100, "theirs")])
        return
    found = rebased(repo, rows(200, "ours"), [rows(100, "theirs")])
    assert shown_lengths(found) == {"g/time": 16, "g/tas": 16, f"g/{maker}": 4, "other/tas": 8}


# -- forks -------------------------------------------------------------------------------------------------------------


def test_forks_that_append_are_joined_in_the_order_in_which_they_are_merged(repo: Repository) -> None:
    session = repo.writable_session()
    forks = [session.fork() for _ in range(3)]
    for number, fork in enumerate(forks):
        append(100 * number + 100, 4 * number + 4)(fork)
    session.merge(*(pickle.loads(pickle.dumps(forks[number])) for number in (2, 0, 1)))
    assert_rows(session, [(300, 12), (100, 4), (200, 8)])
    other = repo.writable_session()
    append(900, 4)(other)
    other.commit("theirs")
    session.commit("ours", rebase_with=BasicConflictSolver())
    assert_rows(repo.readonly_session(), [(900, 4), (300, 12), (100, 4), (200, 8)])


def test_forks_that_append_can_be_a_conflict(repo: Repository) -> None:
    session = repo.writable_session()
    forks = [session.fork() for _ in range(4)]
    for number, (fork, rows) in enumerate(zip(forks, (4, 4, 3, 4), strict=True)):
        append(100 * number + 100, rows)(fork)
    first, second, third, fourth = forks
    session.merge(first)
    with pytest.raises(ConflictError):
        session.merge(second, on_chunk_conflict="fail")
    session.merge(second, third)
    with pytest.raises(ConflictError):  # behind 3 rows
        session.merge(fourth)
    assert_rows(session, [(100, 4), (200, 4), (300, 3)])


def test_fail_on_append_is_an_option_of_the_solver() -> None:
    with pytest.raises(InvalidInput):
        BasicConflictSolver(on_chunk_conflict="mine", fail_on_append=True)  # type: ignore[arg-type]
    assert BasicConflictSolver().joins_appends()
    assert not ConflictDetector().joins_appends()
