"""Writers of sets that fail, or are killed, at any request: there is no set then, or a whole one."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardstore
from shardstore import references
from shardstore.errors import NotFound, ShardStoreError
from shardstore.opening.open import open_storage
from shardstore.references import places
from shardstore.storage.base import Storage
from shardstore.testing.faults import DropReply, Effect, Fail, Fault, FaultStorage, Kill
from tests.harness.crash import Child, Crasher
from tests.harness.scale import FULL, moments
from tests.references.reading import by_fsspec

pytestmark = [pytest.mark.filterwarnings("ignore")]  # of pandas, about fastparquet

ROOT = Path(__file__).parents[3]
OLD, NEW = np.arange(40, dtype="i4"), np.arange(40, dtype="i4")[::-1]
FORMS: dict[str, dict[str, Any]] = {
    "json": {},
    "parquet": {"record_size": 6},
    "json without pins": {"pins": False},
    "parquet without pins": {"pins": False, "record_size": 6},
    "json of sets": {"format": "json"},
    "parquet of sets": {"format": "parquet"},
}


def make(root: Path) -> None:
    """Stores, and sets of them."""
    for name, path, values in (("old.zarr", "x", OLD), ("new.zarr", "x", NEW), ("other.zarr", "y", OLD)):
        store = shardstore.open(root / name, chunks_per_shard=(4,))
        zarr.create_array(store, name=path, shape=(40,), chunks=(2,), dtype="i4")[...] = values
        references.write_json(root / name, root / f"{name}.json")


def write(root: Path, source: str, form: str, faults: list[Fault]) -> list[FaultStorage]:
    """Write a set through storages with faults, which are returned."""
    opened: list[FaultStorage] = []

    def faulty(*arguments: Any) -> Storage:
        opened.append(FaultStorage(open_storage(*arguments), faults))
        return opened[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "open_storage", faulty)
        if form.endswith("of sets"):
            sets = [root / f"{source}.json", root / "other.zarr.json"]
            references.combine(sets, root / "set", overwrite=True, **FORMS[form])
        else:
            getattr(references, f"write_{form.split()[0]}")(root / source, root / "set", overwrite=True, **FORMS[form])
    return opened


def write_killed(child: Child, root: str, form: str, at: int, after: bool) -> None:
    write(Path(root), "new.zarr", form, [Fault(at, Kill(after))])
    child.acknowledge("whole")


def check_none_or_whole(root: Path, form: str, *, had_one: bool) -> str:
    """Check what is there; return which."""
    try:
        place = places.find_set(root / "set", None)
    except NotFound:
        assert form.startswith("parquet") or not had_one  # a set in JSON is replaced in one step
        return "none"
    values = by_fsspec(root / "set", "x", 2)
    is_new = bool((values == NEW).all())
    np.testing.assert_array_equal(values, NEW if is_new else OLD)
    ours = shardstore.open(f"reference::{root}/set")
    np.testing.assert_array_equal(zarr.open_array(ours, path="x", mode="r", zarr_format=2)[...], values)
    store = root / ("new.zarr" if is_new else "old.zarr")
    if is_new and form.endswith("without pins"):
        with pytest.raises(NotFound, match="does not say"):
            places.pins_of(place)
        return "new"
    assert len(references.pins(root / "set", store=store)) == 5
    if is_new and form.endswith("of sets"):
        assert references.check(root / "set").objects == 10
        return "new"
    assert references.check(root / "set").is_sound
    assert places.pins_of(place).origin.store.endswith(store.name)
    return "new" if is_new else "old"


@pytest.mark.parametrize("had_one", [False, True], ids=["first", "replacing"])
@pytest.mark.parametrize("effect", [Fail(), DropReply()], ids=["fails", "answer lost"])
@pytest.mark.parametrize("form", FORMS)
def test_fails_at_every_request(form: str, effect: Effect, had_one: bool, tmp_path: Path) -> None:
    seen = set()
    for at in moments(itertools.count(1)):
        root = tmp_path / str(at)
        make(root)
        if had_one:
            write(root, "old.zarr", form.split()[0], [])
        try:
            opened = write(root, "new.zarr", form, [Fault(at, effect)])
        except ShardStoreError:
            pass
        else:
            assert check_none_or_whole(root, form, had_one=had_one) == "new"
            if not any(storage.struck for storage in opened):
                break
        seen.add(check_none_or_whole(root, form, had_one=had_one))
        write(root, "new.zarr", form, [])  # which always goes on from there
        assert check_none_or_whole(root, form, had_one=had_one) == "new"
    assert at > (3 if FULL else 2)
    assert not FULL or seen >= ({"old"} if had_one and form.startswith("json") else {"none"})


@pytest.mark.parametrize("effect", [Fail(), DropReply()], ids=["fails", "answer lost"])
@pytest.mark.parametrize("form", ["json", "parquet"])
def test_an_update_fails_at_every_request(form: str, effect: Effect, tmp_path: Path) -> None:
    for at in moments(itertools.count(1)):
        root = tmp_path / str(at)
        make(root)
        write(root, "old.zarr", form, [])
        zarr.open_array(shardstore.open(root / "old.zarr"), path="x")[:8] = NEW[:8]
        opened: list[FaultStorage] = []

        def faulty(*arguments: Any, opened: list[FaultStorage] = opened, at: int = at) -> Storage:
            opened.append(FaultStorage(open_storage(*arguments), [Fault(at, effect)]))
            return opened[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(places, "open_storage", faulty)
            with contextlib.suppress(ShardStoreError):
                references.update(root / "set")
        if form == "json" or (root / "set/.zmetadata").exists():
            assert references.check(root / "set").changed in ((), ("x/c/0",))
        references.update(root / "set")
        assert references.check(root / "set", indices=True).is_sound
        np.testing.assert_array_equal(by_fsspec(root / "set", "x", 2), [*NEW[:8], *OLD[8:]])
        if not any(storage.struck for storage in opened):
            break
    assert at > (3 if FULL else 2)


@pytest.mark.night
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("had_one", [False, True], ids=["first", "replacing"])
@pytest.mark.parametrize("form", FORMS)
def test_killed_at_every_request(form: str, had_one: bool, after: bool, tmp_path: Path) -> None:
    with Crasher(["shardstore.references", "tests.references.gate.test_writing_faults"], [str(ROOT)]) as crasher:
        for at in moments(itertools.count(1)):
            root = tmp_path / str(at)
            make(root)
            if had_one:
                write(root, "old.zarr", form.split()[0], [])
            ended = crasher.run(write_killed, str(root), form, at, after)
            found = check_none_or_whole(root, form, had_one=had_one)
            if not ended.was_killed:
                assert found == "new"
                break
            write(root, "new.zarr", form, [])
            assert check_none_or_whole(root, form, had_one=had_one) == "new"
    assert at > (3 if FULL else 2)


def update_killed(child: Child, root: str, at: int, after: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "open_storage", lambda *given: FaultStorage(open_storage(*given), [Fault(at, Kill(after))]))
        references.update(f"{root}/set")
    child.acknowledge("whole")


def icechunk_killed(child: Child, root: str, at: int, after: bool) -> None:
    import icechunk

    config = icechunk.RepositoryConfig.default()
    prefix = f"file://{root}/"
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, icechunk.local_filesystem_store(root)))
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(f"{root}/repository"), config)
    references.write_icechunk(FaultStorage(open_storage(f"{root}/new.zarr"), [Fault(at, Kill(after))]), repository)
    child.acknowledge("whole")


@pytest.mark.night
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("form", ["json", "parquet"])
def test_an_update_killed_at_every_request(form: str, after: bool, tmp_path: Path) -> None:
    with Crasher(["shardstore.references", "tests.references.gate.test_writing_faults"], [str(ROOT)]) as crasher:
        for at in moments(itertools.count(1)):
            root = tmp_path / str(at)
            make(root)
            write(root, "old.zarr", form, [])
            zarr.open_array(shardstore.open(root / "old.zarr"), path="x")[:8] = NEW[:8]
            ended = crasher.run(update_killed, str(root), at, after)
            if form == "json" or (root / "set/.zmetadata").exists():
                assert references.check(root / "set").changed in ((), ("x/c/0",))
            references.update(root / "set")
            assert references.check(root / "set", indices=True).is_sound
            np.testing.assert_array_equal(by_fsspec(root / "set", "x", 2), [*NEW[:8], *OLD[8:]])
            if not ended.was_killed:
                break
    assert at > (3 if FULL else 2)


@pytest.mark.night
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_writer_into_icechunk_killed_at_every_request(after: bool, tmp_path: Path) -> None:
    import icechunk

    with Crasher(["shardstore.references", "tests.references.gate.test_writing_faults"], [str(ROOT)]) as crasher:
        for at in moments(itertools.count(1)):
            root = tmp_path / str(at)
            make(root)
            repository = icechunk.Repository.create(icechunk.local_filesystem_storage(f"{root}/repository"))
            ended = crasher.run(icechunk_killed, str(root), at, after)
            assert len(list(repository.ancestry(branch="main"))) == (1 if ended.was_killed else 2)
            if not ended.was_killed:
                break
    assert at > 8
