"""Packing again after the source has changed: the target is what the source is now, whatever is gone, and nothing else is touched."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

import shardstore
from shardstore.errors import Conflict, Corruption
from shardstore.maintenance.packing.record import Announced
from shardstore.maintenance.packing.units import Made
from tests.maintenance.packing.sources import read_by_zarr, stored

Change = Callable[[Path], None]


class Died(Exception):
    """Stands for a driver that was killed."""


def array(root: Path, path: str = "a", shape: tuple[int, ...] = (8, 8), value: int | None = None, **options: Any) -> zarr.Array[Any]:
    group = zarr.open_group(root, mode="a", zarr_format=3)
    made = group.create_array(path, shape=shape, chunks=(1,) * len(shape), dtype="<i4", fill_value=0, compressors=None, **options)
    made[...] = np.arange(1, np.prod(shape) + 1).reshape(shape) if value is None else value
    return made


def source(root: Path, **options: Any) -> Path:
    array(root, **options)
    array(root, "g/b", (6,), 3)
    (root / "README").write_text("read me")
    (root / "a/notes.txt").write_text("notes")
    return root


def opened(root: Path, path: str = "a") -> zarr.Array[Any]:
    return zarr.open_array(root, path=path, mode="r+")


def erase(*keys: str) -> Change:
    def change(root: Path) -> None:
        for key in keys:
            shutil.rmtree(root / key) if (root / key).is_dir() else (root / key).unlink()

    return change


def append(root: Path) -> None:
    opened(root).resize((8, 10))
    opened(root)[:, 8:] = 7
    erase(*(f"a/c/{i}/{j}" for i in (6, 7) for j in (2, 3)))(root)


def created_anew(**options: Any) -> Change:
    def change(root: Path) -> None:
        erase("a")(root)
        array(root, **({"value": 5} | options))

    return change


def renamed(root: Path) -> None:
    os.rename(root / "a", root / "z")


def an_array_becomes_a_group(root: Path) -> None:
    erase("a")(root)
    array(root, "a/c", (4, 4))


def an_object_becomes_a_group(root: Path) -> None:
    erase("README")(root)
    array(root, "README/x", (4,))


def another_object(root: Path) -> None:
    (root / "A").write_text("first")


CHANGES: dict[str, Change] = {
    "chunks erased": erase("a/c/0/0", "a/c/1/1", "a/c/5"),
    "all chunks erased": erase("a/c"),
    "appended, and a block erased": append,
    "shrunk": lambda root: opened(root).resize((4, 4)),
    "array deleted": erase("g/b"),
    "group deleted": erase("g"),
    "renamed": renamed,
    "other objects deleted": erase("README", "a/notes.txt"),
    "another other object": another_object,
    "created anew, of another shape": created_anew(shape=(4, 16)),
    "created anew, of another rank": created_anew(shape=(5,), chunk_key_encoding={"name": "v2", "separator": "/"}),
    "created anew, with other keys": created_anew(chunk_key_encoding={"name": "default", "separator": "."}),
    "an array becomes a group": an_array_becomes_a_group,
    "an object becomes a group": an_object_becomes_a_group,
    "restored times": lambda root: replaced_in_place(root / "a/c/3/3"),
}


def replaced_in_place(path: Path) -> None:
    """Other bytes of the same size, and the times that it had."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def packed(root: Path, target: Path, **options: Any) -> Any:
    return shardstore.pack(root, target, fsync=False, **({"chunks_per_shard": {"a": (2, 2), "*": None}} | options))


def run(how: str, root: Path, target: Path) -> Any:
    if how == "unpacked":
        return shardstore.unpack(root, target, fsync=False)
    policies: Any = {"sharded": lambda info: (2,) * len(info.shape), "plain": None}
    return packed(root, target, chunks_per_shard=policies[how])


def cut_within_a_shard(root: Path) -> None:
    """The shards keep their chunks outside of the grid."""
    path = root / "a/zarr.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"shape": [6, 7]}))


OF_SHARDS: dict[str, Change] = {
    "chunks inside of a shard erased": lambda root: opened(root).__setitem__((slice(4, 8), 3), 0),
    "shrunk": CHANGES["shrunk"],
    "shrunk within a shard": cut_within_a_shard,
    "restored times": lambda root: replaced_in_place(root / "a/c/1/1"),
}
OF_PLAIN = ("chunks erased", "appended, and a block erased", "shrunk", "created anew, of another rank")
CASES = [("sharded", name, change) for name, change in CHANGES.items()]
CASES += [("plain", name, CHANGES[name]) for name in OF_PLAIN]
CASES += [("unpacked", name, change) for name, change in OF_SHARDS.items()]


@pytest.mark.parametrize(("how", "change"), [pytest.param(how, change, id=f"{how}, {name}") for how, name, change in CASES])
def test_the_target_is_what_a_fresh_one_would_be(how: str, change: Change, tmp_path: Path) -> None:
    mine = source(tmp_path / "s.zarr", **({"shards": (4, 4)} if how == "unpacked" else {}))
    run(how, mine, tmp_path / "t.zarr")
    change(mine)
    report = run(how, mine, tmp_path / "t.zarr")
    assert report.complete
    run(how, mine, tmp_path / "fresh.zarr")
    assert stored(tmp_path / "t.zarr") == stored(tmp_path / "fresh.zarr")
    again = run(how, mine, tmp_path / "t.zarr")
    assert (again.done, again.complete) == (0, True)


def test_what_is_appended_is_all_that_is_done(tmp_path: Path) -> None:
    """Along an axis that is not the first, all numbers of chunks change; their keys do not."""
    mine, target = source(tmp_path / "s.zarr"), tmp_path / "t.zarr"
    first = packed(mine, target)
    opened(mine).resize((8, 10))
    opened(mine)[:, 8:] = 7
    report = packed(mine, target)
    assert (report.done, report.skipped) == (4, first.units)
    assert (read_by_zarr(target, "a") == opened(mine)[...]).all()


def test_one_more_other_object_is_all_that_is_copied(tmp_path: Path) -> None:
    mine, target = source(tmp_path / "s.zarr"), tmp_path / "t.zarr"
    for number in range(600):
        (mine / f"file-{number:03}").write_bytes(b"x")
    first = packed(mine, target)
    (mine / "file-000a").write_bytes(b"y")
    report = packed(mine, target)
    assert report.done <= 2 < first.units
    assert (target / "file-000a").read_bytes() == b"y"


def test_a_policy_whose_shards_grow(tmp_path: Path) -> None:
    mine, target = source(tmp_path / "s.zarr"), tmp_path / "t.zarr"
    counts = [2]

    def policy(info: Any) -> tuple[int, ...]:
        return tuple(counts * len(info.shape))

    packed(mine, target, chunks_per_shard=policy)
    counts[0] = 4
    erase(*(f"a/c/{i}" for i in range(4, 8)))(mine)
    assert packed(mine, target, chunks_per_shard=policy).complete
    assert packed(mine, tmp_path / "fresh.zarr", chunks_per_shard=policy).complete
    assert stored(target) == stored(tmp_path / "fresh.zarr")


@pytest.mark.parametrize("key", ["a/c/0/0", "g/b/c/3", "README"])
def test_a_replaced_object_of_the_target_is_written_again(key: str, tmp_path: Path) -> None:
    mine, target = source(tmp_path / "s.zarr"), tmp_path / "t.zarr"
    packed(mine, target)
    wanted = stored(target)
    replaced_in_place(target / key)
    assert stored(target) != wanted
    report = packed(mine, target)
    assert (report.done, report.complete) == (1, True)
    assert stored(target) == wanted


@pytest.mark.parametrize("place", ["s3", "s3 by obstore", "gcs", "memory"])
def test_listings_tell_the_versions_that_were_written(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Of shards, chunks that are objects, other objects, and documents: or all would be written again and again, or never be removed."""
    mine = source(tmp_path / "s.zarr")
    url, options = f"memory://{tmp_path}/t.zarr", {}
    if place != "memory":
        url, options = request.getfixturevalue("gcs_url" if place == "gcs" else "s3_url")
    if place == "s3 by obstore":
        pytest.importorskip("obstore")
        options = {**options, "transport": "obstore"}

    def again() -> Any:
        return shardstore.pack(mine, url, chunks_per_shard={"a": (2, 2), "*": None}, target_options=options)

    first = again()
    assert first.complete
    assert again().skipped == first.units
    erase("g", "a/c/0", "a/c/1", "README")(mine)
    report = again()
    assert (report.done, report.complete) == (1, True)  # the other objects, which are a unit
    fs, root = fsspec.url_to_fs(url, **{name: value for name, value in options.items() if name != "transport"})
    fs.invalidate_cache()
    keys = {name.removeprefix(root).strip("/") for name in fs.find(root)}
    assert keys == {"zarr.json", "a/zarr.json", "a/notes.txt", *(f"a/c/{i}/{j}" for i in (1, 2, 3) for j in range(4))}


@pytest.mark.parametrize("key", ["g/b/c/3", "g/b/zarr.json", "README", "a/c/0/0"])
def test_what_has_got_another_mode_is_still_what_was_made(key: str, tmp_path: Path) -> None:
    """It has another version from then on, as also after a loss of power, and was taken for somebody else's."""
    mine, target = source(tmp_path / "s.zarr"), tmp_path / "t.zarr"
    packed(mine, target)
    erase("g/b", "README", *(f"a/c/{i}/{j}" for i in range(2) for j in range(2)))(mine)
    (target / key).chmod(0o600)
    packed(mine, target)
    packed(mine, tmp_path / "fresh.zarr")
    assert stored(target) == stored(tmp_path / "fresh.zarr")
    assert not (target / key).exists()


# -- what is somebody else's ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["g/b/c/3", "g/b/zarr.json", "README"])
def test_what_was_replaced_since_is_not_removed(key: str, tmp_path: Path) -> None:
    mine, target = source(tmp_path / "s.zarr"), tmp_path / "t.zarr"
    packed(mine, target)
    erase("g/b", "README")(mine)
    (target / key).write_bytes(b"mine")
    before = stored(target)
    with pytest.raises(Conflict, match=f"nothing for '{key}', but another program has written them") as caught:
        packed(mine, target)
    assert "overwrite" in str(caught.value)
    assert stored(target) == before
    (target / key).unlink()
    assert packed(mine, target).complete
    assert not (target / "g/b").exists()
    assert not (target / "README").exists()


def test_a_shard_that_somebody_has_added_is_an_error_and_notes_are_not(tmp_path: Path) -> None:
    mine, target = source(tmp_path / "s.zarr"), tmp_path / "t.zarr"
    erase(*(f"a/c/{i}/{j}" for i in (0, 1) for j in (0, 1)))(mine)
    packed(mine, target)
    shutil.copy(target / "a/c/1/1", target / "a/c/0/0")
    (target / "g/remarks.txt").write_text("theirs")
    with pytest.raises(Conflict, match="another program has written 'a/c/0/0', which would be replaced, or taken for chunks"):
        packed(mine, target)
    (target / "a/c/0/0").unlink()
    assert packed(mine, target).complete
    assert (target / "g/remarks.txt").read_text() == "theirs"


@pytest.mark.parametrize("key", ["new.txt", "g/new/zarr.json", "g/new/c/1", "a/c/3/4"])
def test_what_somebody_has_put_where_the_source_has_something_now_is_not_replaced(key: str, tmp_path: Path) -> None:
    mine, target = source(tmp_path / "s.zarr"), tmp_path / "t.zarr"
    packed(mine, target)
    (target / key).parent.mkdir(parents=True, exist_ok=True)
    (target / key).write_bytes(b"theirs")
    before = stored(target)
    (mine / "new.txt").write_text("new")
    array(mine, "g/new", (3,))
    opened(mine).resize((8, 10))
    opened(mine)[:, 8:] = 7
    if key == "g/new/c/1":  # as a chunk it is one that others have written; alone it was nothing
        (target / "g/new/zarr.json").write_bytes((mine / "g/new/zarr.json").read_bytes())
        before = stored(target)
    with pytest.raises(Conflict, match=f"another program has written '{key}'.*Nothing was written"):
        packed(mine, target)
    assert stored(target) == before
    for name in (key, "g/new/zarr.json"):
        (target / name).unlink(missing_ok=True)
    assert packed(mine, target).complete
    packed(mine, tmp_path / "fresh.zarr")
    assert stored(target) == stored(tmp_path / "fresh.zarr")


def test_an_array_that_goes_over_as_it_is_loses_its_document_before_new_chunks_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its grid is irregular: nobody here knows which of the other objects are its chunks."""
    from shardstore.maintenance.execution import Execution

    mine, target = source(tmp_path / "s.zarr"), tmp_path / "t.zarr"
    document = json.loads((mine / "g/b/zarr.json").read_text())
    document["chunk_grid"] = {"name": "rectilinear", "configuration": {"chunk_shapes": [[2, 4]]}}
    (mine / "g/b/zarr.json").write_text(json.dumps(document))
    assert packed(mine, target).complete
    document["chunk_grid"]["configuration"] = {"chunk_shapes": [[4, 2]]}
    (mine / "g/b/zarr.json").write_text(json.dumps(document))
    (mine / "g/b/c/0").write_bytes(b"other")

    def die(_self: Any, _do: Any, units: Any, *_: Any) -> Any:
        assert (target / "g/b/zarr.json").exists()
        assert any(found.key == "g/b/c/0" for unit in units for found in getattr(unit, "objects", ()))
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Execution, "carry_out", die)
        with pytest.raises(Died):
            packed(mine, target)
    assert not (target / "g/b/zarr.json").exists()
    assert packed(mine, target).complete
    assert (target / "g/b/c/0").read_bytes() == b"other"


# -- the order -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore:Object at")
def test_no_reader_finds_new_chunks_under_an_old_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The array gets other shards at the same keys: its document goes before they come, and that of the group which repeats it."""
    from shardstore.maintenance.execution import Execution

    mine, target = source(tmp_path / "s.zarr"), tmp_path / "t.zarr"
    zarr.consolidate_metadata(mine)
    counts = [2]
    packed(mine, target, chunks_per_shard=lambda info: tuple(counts * len(info.shape)))
    counts[0] = 4

    def die(_self: Any, _do: Any, units: Any, *_: Any) -> Any:
        """Begin with the units, and carry none out."""
        for unit in units:
            assert unit.path is None or not (target / unit.path / "zarr.json").exists()
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Execution, "carry_out", die)
        with pytest.raises(Died):
            packed(mine, target, chunks_per_shard=lambda info: tuple(counts * len(info.shape)))
    documents = {key for key in stored(target) if key.endswith("zarr.json")}
    assert documents == {"g/zarr.json"}


def test_a_removed_array_loses_its_document_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardstore.storage.local.storage import LocalStorage

    mine, target = source(tmp_path / "s.zarr"), tmp_path / "t.zarr"
    packed(mine, target)
    erase("g")(mine)
    removed: list[str] = []
    delete = LocalStorage.delete

    async def noted(self: LocalStorage, key: str, condition: Any) -> bool:
        if self.root == str(target):
            assert key.endswith("zarr.json") or not list(target.glob("g/**/zarr.json"))
            removed.append(key)
        return await delete(self, key, condition)

    monkeypatch.setattr(LocalStorage, "delete", noted)
    assert packed(mine, target).complete
    assert sorted(removed) == sorted(["g/zarr.json", "g/b/zarr.json", *(f"g/b/c/{i}" for i in range(6))])


# -- runs that died ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["pack", "unpack"])
def test_what_a_run_that_died_has_written_goes_with_its_chunks(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had told what it was about to write, and died before it could record what it had."""
    from shardstore.maintenance.packing.record import Record

    mine, target = source(tmp_path / "s.zarr"), tmp_path / "t.zarr"

    def again() -> Any:
        return packed(mine, target) if mode == "pack" else shardstore.unpack(mine, target, fsync=False)

    again()
    array(mine, "new", (3,), 4)
    opened(mine)[0, 0] = 77
    (mine / "more").write_text("more")

    async def die(self: Record) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Record, "flush", die)
        with pytest.raises(Died):
            again()
    assert (target / "new/c/0").exists()
    assert (target / "more").exists()
    erase("new", "more", "a/c/0/0")(mine)
    report = again()
    assert report.complete
    keys = stored(target)
    assert not [key for key in keys if key.startswith("new/") or key == "more"]
    assert (read_by_zarr(target, "a") == opened(mine)[...]).all()
    assert not list(Path(f"{target}.pack").glob("begun-*"))


def test_a_complete_run_leaves_one_segment_and_no_announcement(tmp_path: Path) -> None:
    mine, target = source(tmp_path / "s.zarr"), tmp_path / "t.zarr"
    for name in (None, "chunks erased", "other objects deleted", "array deleted"):
        if name is not None:
            CHANGES[name](mine)
        packed(mine, target)
        assert sorted(path.name.partition("-")[0] for path in Path(f"{target}.pack").iterdir()) == ["job.json", "units"]


def test_the_chunk_of_a_scalar_goes_from_a_target_of_the_draft(tmp_path: Path) -> None:
    """It is called c0 there, which is a chunk of an array of one dimension where no document says otherwise."""
    mine, target = source(tmp_path / "s.zarr"), tmp_path / "t.zarr"
    zarr.open_group(mine, mode="a").create_array("scalar", shape=(), dtype="<i4", fill_value=0, compressors=None)[...] = 7
    packed(mine, target, stored="transformer")
    assert (target / "data/root/scalar/c0").exists()
    assert packed(mine, target, stored="transformer").done == 0
    erase("scalar")(mine)
    assert packed(mine, target, stored="transformer").complete
    assert not [key for key in stored(target) if "scalar" in key]


# -- the record ----------------------------------------------------------------------------------------------------------


def test_a_record_of_the_first_format_is_refused_with_a_remedy(tmp_path: Path) -> None:
    mine, target = source(tmp_path / "s.zarr"), tmp_path / "t.zarr"
    packed(mine, target)
    job = Path(f"{target}.pack/job.json")
    job.write_text(json.dumps(json.loads(job.read_text()) | {"format": 1}))
    with pytest.raises(Conflict, match=r"of format 1, which this version does not know .*overwrite"):
        packed(mine, target)


def test_segments_without_entries_are_no_damage_and_others_are(tmp_path: Path) -> None:
    mine, target = source(tmp_path / "s.zarr"), tmp_path / "t.zarr"
    packed(mine, target)
    segment = Path(f"{target}.pack/units-{0:032x}.jsonl")
    for text in ("", "\n", "\n\n"):
        segment.write_text(text)
        assert packed(mine, target).done == 0
    begun = Path(f"{target}.pack/begun-{0:032x}.jsonl")
    for file, text in (
        (segment, '["a", "c/0/0"]\n'),
        (segment, '["a", "c/0/0", "f", "", 1, ["c/0/0", "c/0/1"], [5], [5]]\n'),
        (segment, '["a", "c/0/0", "f", "", 1, ["c/0/0"], [-5], [5]]\n'),
        (segment, "no JSON\n"),
        (begun, '["a", "default", "/", [2, 2], [0, 0, 1]]\n'),
        (begun, '["a"]\n'),
    ):
        file.write_text(text)
        with pytest.raises(Corruption, match=f"{file.name[:9]}.*is damaged: give overwrite=True"):
            packed(mine, target)
        file.unlink()
    assert packed(mine, target).done == 0


def test_made_and_announced_objects_are_what_was_said() -> None:
    made = Made.of("a/", ["c/0", "c/1"], [5, 2**40], [0, 2**64 - 1])
    assert [tuple(one) for one in made] == [("a/c/0", 5, 0), ("a/c/1", 2**40, 2**64 - 1)]
    assert (made.nbytes, made.tells_versions, len(made)) == (5 + 2**40, False, 2)
    assert Made.of("", [], [], []).keys() == []
    announced = Announced({"x", "a/zarr.json"})
    for line in (b'["a", "default", "/", [2, 3], [0, 0, 4, 1]]', b'["s", "v2", ".", [], []]'):
        announced.add_line(line)
    read = Announced()
    for text in announced.lines():
        read.add_line(text.encode())
    for found in (announced, read):
        assert all(key in found for key in ("x", "a/zarr.json", "a/c/0/0", "a/c/1/2", "a/c/8/3", "a/c/9/5", "s/0"))
        assert not any(key in found for key in ("y", "a/c/2/0", "a/c/8/2", "a/c/8", "a/0/0", "s/0/0", "b/c/0/0"))
