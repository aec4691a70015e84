"""What is not a run's own stays as it is: other things where the record is to be, what links lead to, the source by whatever name."""

from __future__ import annotations

import io
import json
import os
import shutil
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.dirfs import DirFileSystem

import shardstore
from shardstore._sync import run_sync
from shardstore.engine.engine import Engine
from shardstore.engine.moving import copy_nodes
from shardstore.errors import Conflict, Corruption, Incomplete, InvalidInput, NotFound
from shardstore.opening.location import Location, location_of
from shardstore.opening.open import open_storage
from shardstore.storage.python_stores import MappingStorage


def made(path: Path, value: int = 3, name: str = "a", chunks: int = 1) -> Path:
    array = zarr.open_group(path, mode="a").create_array(name, shape=(8,), chunks=(chunks,), dtype="i4", compressors=None)
    array[...] = value
    return path


def files(path: Path) -> dict[str, bytes]:
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file() and "shardstore-lock" not in p.name}


def values(path: Path, name: str = "a") -> list[int]:
    found: list[int] = np.asarray(zarr.open_group(path, mode="r")[name]).tolist()
    return found


def pack(source: Any, target: Any, **options: Any) -> Any:
    return shardstore.pack(source, target, chunks_per_shard=(4,), fsync=False, **options)


# -- the record --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("other", ["thesis.txt", "other/job.json", "units-mine.jsonl"])
def test_a_record_is_not_kept_among_other_things(tmp_path: Path, other: str, overwrite: bool) -> None:
    source, place = made(tmp_path / "s"), tmp_path / "records"
    (place / other).parent.mkdir(parents=True)
    (place / other).write_text("mine")
    with pytest.raises(Conflict, match="cannot be the place of a record: it holds other objects"):
        pack(source, tmp_path / "t", record=place, overwrite=overwrite)
    assert files(place) == {other: b"mine"}
    assert not (tmp_path / "t").exists()


def test_the_record_of_another_target_is_refused(tmp_path: Path) -> None:
    source, place = made(tmp_path / "s"), tmp_path / "record"
    pack(source, tmp_path / "t", record=place)
    before = files(place)
    for overwrite in (False, True):
        with pytest.raises(Conflict, match=r"is of another target, file://.*/t: give each a record of its own"):
            pack(source, tmp_path / "other", record=place, overwrite=overwrite)
        assert files(place) == before
    assert pack(source, tmp_path / "t", record=place).skipped == 2
    assert pack(source, tmp_path / "t", record=place, overwrite=True).done == 2


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_record_beside_another_target_is_refused(tmp_path: Path, overwrite: bool) -> None:
    """It does not say whose it is: its name does."""
    source, other = made(tmp_path / "s"), made(tmp_path / "s2", 5)
    pack(source, tmp_path / "t")
    before = files(tmp_path / "t.pack")
    with pytest.raises(Conflict, match=r"is of another target, file://.*/t: give each a record of its own"):
        pack(other, tmp_path / "u", record=tmp_path / "t.pack", overwrite=overwrite)
    assert files(tmp_path / "t.pack") == before
    assert pack(source, tmp_path / "t", record=tmp_path / "t.pack").skipped == 2


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_record_of_another_target_is_refused_beside_the_target_too(tmp_path: Path, overwrite: bool) -> None:
    source, place = made(tmp_path / "s"), tmp_path / "w.pack"
    pack(source, tmp_path / "t", record=place)
    before = files(place)
    with pytest.raises(Conflict, match=r"is of another target, file://.*/t: give each a record of its own"):
        pack(source, tmp_path / "w", overwrite=overwrite)
    assert files(place) == before
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("is_beside", [False, True])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("job.json", '{"mine": 1}'),
        ("job.json", "mine"),
        ("failed-1-of-1.jsonl", '["a", "c/0", "mine"]'),
        (f"units-{0:032x}.jsonl", "mine"),
    ],
)
def test_names_alone_make_no_record(tmp_path: Path, name: str, content: str, is_beside: bool, overwrite: bool) -> None:
    source, place = made(tmp_path / "s"), tmp_path / ("t.pack" if is_beside else "project")
    place.mkdir()
    (place / name).write_text(content)
    with pytest.raises((Conflict, Corruption), match=r"cannot be the place of a record|belongs to no record of packing"):
        pack(source, tmp_path / "t", overwrite=overwrite, **({} if is_beside else {"record": place}))
    assert files(place) == {name: content.encode()}
    assert not (tmp_path / "t").exists()


def test_a_target_that_is_moved_with_its_record_goes_on(tmp_path: Path) -> None:
    source = made(tmp_path / "s")
    pack(source, tmp_path / "t")
    (tmp_path / "t").rename(tmp_path / "elsewhere")
    (tmp_path / "t.pack").rename(tmp_path / "elsewhere.pack")
    assert pack(source, tmp_path / "elsewhere").skipped == 2


def test_what_an_overwritten_record_had_made_goes(tmp_path: Path) -> None:
    source, target = made(tmp_path / "s"), tmp_path / "t"
    pack(source, target)
    first = set(files(tmp_path / "t.pack"))
    pack(source, target, overwrite=True)
    assert set(files(tmp_path / "t.pack")) & first == {"job.json"}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("place", ["s", "s/a", "t", "t/record", "."])
def test_the_record_is_neither_in_the_source_nor_in_the_target(tmp_path: Path, place: str, overwrite: bool) -> None:
    source = made(tmp_path / "s")
    before = files(tmp_path)
    with pytest.raises(InvalidInput, match="overlap"):
        pack(source, tmp_path / "t", record=tmp_path / place, overwrite=overwrite)
    assert files(tmp_path) == before


# -- links -------------------------------------------------------------------------------------------------------------


def with_linked_directory(tmp_path: Path) -> tuple[Path, Path]:
    target, elsewhere = made(tmp_path / "t", 5), made(tmp_path / "elsewhere", 9)
    shutil.rmtree(target / "a/c")
    (target / "a/c").symlink_to(elsewhere / "a/c")
    return target, elsewhere


def test_what_links_lead_to_is_not_overwritten(tmp_path: Path) -> None:
    target, elsewhere = with_linked_directory(tmp_path)
    before = files(elsewhere)
    assert pack(made(tmp_path / "s"), target, overwrite=True).complete
    assert files(elsewhere) == before
    assert not (target / "a/c").is_symlink()
    assert values(target) == [3] * 8


def test_nothing_is_written_through_links(tmp_path: Path) -> None:
    source, target, elsewhere = made(tmp_path / "s"), tmp_path / "t", tmp_path / "elsewhere"
    pack(source, target)
    shutil.move(target / "a/c", elsewhere)
    (target / "a/c").symlink_to(elsewhere)
    before = files(elsewhere)
    zarr.open_group(source)["a"][0] = 4  # type: ignore[index]  # an array
    with pytest.raises(Conflict, match=r"'a/c' leads elsewhere: nothing is written or removed through a link"):
        pack(source, target)
    assert files(elsewhere) == before


@pytest.mark.parametrize("at", ["a", "a/c", "b"])
def test_links_to_nowhere_are_cut_or_refused(tmp_path: Path, at: str) -> None:
    source, target = made(tmp_path / "s"), made(tmp_path / "t", 5)
    if (target / at).exists():
        shutil.rmtree(target / at)
    (target / at).symlink_to(tmp_path / "nowhere")
    assert pack(source, target, overwrite=True).complete
    assert (values(target), (target / "b").is_symlink()) == ([3] * 8, False)
    (tmp_path / "new" / at).parent.mkdir(parents=True)
    (tmp_path / "new" / at).symlink_to(tmp_path / "nowhere")
    with pytest.raises(Conflict, match=f"'{at}' leads elsewhere"):
        pack(source, tmp_path / "new")
    assert f"'{at}' leads elsewhere" in " ".join(pack(source, tmp_path / "new", dry_run=True).notes)
    assert pack(source, tmp_path / "new", overwrite=True).complete  # where there is nothing else
    assert (values(tmp_path / "new"), (tmp_path / "new/b").is_symlink(), (tmp_path / "nowhere").exists()) == ([3] * 8, False, False)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_target_or_record_behind_a_link_of_a_store_is_refused(tmp_path: Path, overwrite: bool) -> None:
    source, place, elsewhere = made(tmp_path / "s"), made(tmp_path / "p"), made(tmp_path / "elsewhere", 9)
    (place / "lnk").symlink_to(elsewhere)
    before = files(tmp_path)
    for options in ({"target": place / "lnk/new"}, {"target": place / "lnk"}, {"target": tmp_path / "t", "record": place / "lnk/rec"}):
        with pytest.raises(Conflict, match=f"is reached through the link {place}/lnk in the middle of a store"):
            pack(source, overwrite=overwrite, **options)
    assert files(tmp_path) == before
    assert pack(source, elsewhere / "new").complete


def test_a_link_to_the_target_itself_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "t").symlink_to(tmp_path / "disk")
    source = made(tmp_path / "s")
    assert pack(source, tmp_path / "t").complete
    assert pack(source, tmp_path / "t", overwrite=True).complete
    assert values(tmp_path / "disk") == [3] * 8


# -- the source by other names -----------------------------------------------------------------------------------------


def zipped(source: Path, archive: Path) -> str:
    with zipfile.ZipFile(archive, "w") as file:
        for key, data in files(source).items():
            file.writestr(key, data)
    return f"zip://::{archive}"


def references(source: Path, place: Path) -> str:
    sets = {key: data.decode() if key.endswith("json") else [str(source / key)] for key, data in files(source).items()}
    place.write_text(json.dumps(sets))
    return f"reference::{place}"


def linked(source: Path) -> Path:
    link = source.with_name("link")
    link.symlink_to(source)
    return link


NAMES: dict[str, Callable[[Path], Any]] = {
    "itself": lambda p: p,
    "below": lambda p: p / "a",
    "local://": lambda p: f"local://{p}",
    "link": lambda p: linked(p),
    "simplecache": lambda p: f"simplecache::file://{p}",
    "filecache": lambda p: f"filecache::file://{p}",
    "blockcache": lambda p: f"blockcache::file://{p}",
    "directory": lambda p: (DirFileSystem(str(p.parent), fsspec.filesystem("file")), p.name),
    "fsspec's mapper": lambda p: fsspec.get_mapper(str(p)),
    "our mapper": lambda p: shardstore.get_mapper(p),
    "sharded::": lambda p: f"sharded::file://{p}",
    "archive in it": lambda p: zipped(p, p / "old.zip"),
    "tar in it": lambda p: f"tar://::{shutil.make_archive(str(p / 'old'), 'tar', p)}",
    "references to it": lambda p: references(p, p.with_name("refs.json")),
    "references that lie in it": lambda p: references(made(p.with_name("far")), p / "refs.json"),
    "references behind a cache": lambda p: f"reference::simplecache::file://{references(p, p.with_name('refs.json'))[11:]}",
}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_source_is_known_by_whatever_name(tmp_path: Path, name: str, overwrite: bool) -> None:
    target = made(tmp_path / "s")
    source = NAMES[name](target)
    before = files(tmp_path)
    with pytest.raises(InvalidInput, match="overlap"):
        pack(source, target, overwrite=overwrite)
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", ["itself", "link", "simplecache", "directory", "sharded::"])
def test_a_copy_onto_itself_is_known_by_whatever_name(tmp_path: Path, name: str) -> None:
    target = made(tmp_path / "s")
    source = NAMES[name](target)
    before = files(target)
    here, there = Engine(open_storage(source)), Engine(open_storage(target))
    with pytest.raises(InvalidInput, match="overlap"):
        run_sync(copy_nodes(here, "a", there, "a", overwrite=True))
    assert files(target) == before


class Odd(dict[str, Any]):
    """A mapping of which nobody knows where its values come from."""


def test_what_cannot_be_traced_is_not_overwritten(tmp_path: Path) -> None:
    source, target = Odd(files(made(tmp_path / "s"))), made(tmp_path / "t", 5)
    before = files(target)
    with pytest.raises(InvalidInput, match="mapping://Odd cannot be traced to where its bytes are"):
        pack(source, target, overwrite=True)
    assert files(target) == before
    assert pack(source, tmp_path / "new").complete
    assert pack(dict(source), target, overwrite=True).complete


def linked_chunks(source: Path) -> Path:
    """A hierarchy of its own, whose chunks are those of ``source``."""
    own = made(source.with_name("own"))
    shutil.rmtree(own / "a/c")
    (own / "between").symlink_to(source)
    (own / "a/c").symlink_to(own / "between/a/c")
    return own


LINKED: dict[str, Callable[[Path], Any]] = {
    "directly": lambda p: linked_chunks(p),
    "through a cache": lambda p: f"simplecache::file://{linked_chunks(p)}",
    "by our mapper": lambda p: shardstore.get_mapper(linked_chunks(p)),
}


@pytest.mark.parametrize("name", LINKED)
def test_a_target_is_not_overwritten_to_which_links_of_the_source_lead(tmp_path: Path, name: str) -> None:
    target = made(tmp_path / "s")
    source = LINKED[name](target)
    before = files(tmp_path)
    with pytest.raises(InvalidInput, match="overlap"):
        pack(source, target, overwrite=True)
    if name == "directly":
        with pytest.raises(InvalidInput, match="overlap"):
            run_sync(copy_nodes(Engine(open_storage(source)), "a", Engine(open_storage(target)), "a", overwrite=True))
    assert files(tmp_path) == before
    assert pack(source, tmp_path / "new").complete
    assert values(tmp_path / "new") == [3] * 8


@pytest.mark.parametrize("options", [{"record": "s/rec"}, {}])
def test_nothing_is_written_to_where_links_of_the_source_lead(tmp_path: Path, options: dict[str, str]) -> None:
    """A source that is read through a link would hold the new target, or the record, and what the next run makes of them."""
    place = made(tmp_path / "s")
    source = linked_chunks(place)
    before = files(tmp_path)
    given = {name: tmp_path / value for name, value in options.items()}
    with pytest.raises(InvalidInput, match="overlap"):
        pack(source, tmp_path / "new" if options else place / "new", **given)
    assert files(tmp_path) == before


@pytest.mark.parametrize("inside", ["", "a"])
def test_a_mount_of_the_source_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str) -> None:
    """``mount --bind``: the same directory, with the same number, by another path."""
    source, mounted, look = made(tmp_path / "s"), made(tmp_path / "mounted", 5), os.stat

    def stat(path: Any, *args: Any, **options: Any) -> os.stat_result:
        return look(str(path).replace(str(mounted), str(source)), *args, **options)

    monkeypatch.setattr("shardstore.opening.location.os.stat", stat)
    before = files(tmp_path)
    with pytest.raises(InvalidInput, match="overlap"):
        pack(source, mounted / inside, overwrite=True)
    assert files(tmp_path) == before


def test_an_archive_in_memory_overwrites(tmp_path: Path) -> None:
    source, target = made(tmp_path / "s"), made(tmp_path / "t", 5)
    zipped(source, tmp_path / "s.zip")
    held = io.BytesIO((tmp_path / "s.zip").read_bytes())
    assert pack((fsspec.filesystem("zip", fo=held), ""), target, overwrite=True).complete
    assert values(target) == [3] * 8


def test_locations(tmp_path: Path) -> None:
    def at(target: Any, path: str = "") -> Location:
        return location_of(open_storage(target), path)

    assert at(tmp_path, "a").overlaps(at(tmp_path))
    assert not at(tmp_path, "a").overlaps(at(tmp_path, "ab"))
    assert at("/").overlaps(at(tmp_path))
    assert at("memory://x/y").overlaps(at("simplecache::memory://x"))
    assert at("memory://").overlaps(at("memory://x"))
    assert not at("memory://x").overlaps(at("memory://xy"))
    assert not at("memory://x").overlaps(at(tmp_path))
    assert not location_of(MappingStorage({})).overlaps(location_of(MappingStorage({})))
    http = at("http://127.0.0.1:9/data")
    assert http.overlaps(at("simplecache::http://127.0.0.1:9/data/x"))
    assert not http.overlaps(at("http://127.0.0.1:8/data"))
    assert at("https://host/x").is_known
    data = {"a": ["s3://bucket/root/x", 0, 1], "b": [f"file://{tmp_path}/y"]}
    options = {"fo": data, "remote_options": {"anon": True}}
    refs = location_of(open_storage("reference://", options))
    assert refs.is_known
    assert refs.overlaps(location_of(open_storage("s3://bucket/root", {"anon": True})))
    assert refs.overlaps(at(tmp_path))
    assert not refs.overlaps(location_of(open_storage("s3://bucket/other", {"anon": True})))


# -- the order ---------------------------------------------------------------------------------------------------------


def test_an_old_target_outlives_a_run_that_fails(tmp_path: Path) -> None:
    """What was not replaced is there and can be read; the same call without overwrite goes on, and clears up."""
    source, target = made(made(tmp_path / "s"), 4, "b"), made(made(made(tmp_path / "t", 7, chunks=4), 8, "b", chunks=4), 9, "old")
    (target / "notes.txt").write_text("old")
    chunk = source / "b/c/1"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:-1])
    with pytest.raises(Incomplete):
        pack(source, target, overwrite=True)
    assert values(target, "old") == [9] * 8
    assert (target / "notes.txt").read_text() == "old"
    assert (target / "b/c/1").read_bytes() == (8).to_bytes(4, "little") * 4 or values(source, "a") == [3] * 8
    chunk.write_bytes(whole)
    assert pack(source, target).complete
    assert (values(target, "a"), values(target, "b")) == ([3] * 8, [4] * 8)
    assert set(files(target)) == {"zarr.json", *(f"{name}/{key}" for name in "ab" for key in ("zarr.json", "c/0", "c/1"))}


def test_a_source_that_is_not_there_leaves_the_target(tmp_path: Path) -> None:
    target = made(tmp_path / "t")
    before = files(target)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound):
        pack(tmp_path / "empty", target, overwrite=True)
    assert files(target) == before


@pytest.mark.parametrize("options", [{}, {"stored": "transformer"}])
@pytest.mark.parametrize("old", ["v2", "v3", "shards", "draft", "scalar", "foreign"])
def test_nothing_is_left_of_what_was_overwritten(tmp_path: Path, old: str, options: dict[str, Any]) -> None:
    source, target, fresh = made(tmp_path / "s"), tmp_path / "t", tmp_path / "fresh"
    zarr.open_group(source).create_array("scalar", shape=(), dtype="i4")[...] = 6
    if old == "v2":
        zarr.open_group(target, mode="w", zarr_format=2).create_array("a", shape=(8,), chunks=(1,), dtype="i4")[...] = 1
    elif old == "foreign":
        for key in ("a/c/0/deeper", "scalar", "zarr.json/x", "data/root/x", "c"):
            (target / key).parent.mkdir(parents=True, exist_ok=True)
            (target / key).write_text("foreign")
    else:
        stored: dict[str, Any] = {"stored": "transformer"} if old == "draft" else {}
        pack(made(tmp_path / "o", 1, "old"), target, **stored)
        shutil.rmtree(f"{target}.pack")
    if old == "v3":
        made(target, 1, "more")
    pack(source, fresh, **options)
    assert pack(source, target, overwrite=True, **options).complete
    assert files(target) == files(fresh)
    shown = zarr.open_group(shardstore.open(target), mode="r")
    assert np.asarray(shown["a"]).tolist() == [3] * 8
    assert np.asarray(shown["scalar"]) == 6


def test_an_array_in_the_place_of_a_group_of_the_draft(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    zarr.open_group(before, mode="w").create_group("a").create_array("b", shape=(2,), dtype="i4", chunks=(1,))[...] = 1
    pack(before, tmp_path / "t", stored="transformer")
    pack(made(after), tmp_path / "t", stored="transformer", overwrite=True)
    pack(after, tmp_path / "fresh", stored="transformer")
    assert files(tmp_path / "t") == files(tmp_path / "fresh")


def test_an_object_store_is_overwritten(tmp_path: Path, s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url
    pack(made(tmp_path / "o", 1, "old"), f"{url}/t", target_options=options)
    pack(made(tmp_path / "other"), f"{url}/t2", target_options=options)
    before = {info.key for info in listed(f"{url}/t2", options)}
    report = pack(made(tmp_path / "s"), f"{url}/t", target_options=options, overwrite=True)
    assert report.complete
    assert {info.key for info in listed(f"{url}/t", options)} == {"zarr.json", "a/zarr.json", "a/c/0", "a/c/1"}
    assert {info.key for info in listed(f"{url}/t2", options)} == before
    with pytest.raises(InvalidInput, match="overlap"):
        pack(f"simplecache::{url}/t", f"{url}/t", storage_options={"s3": options}, target_options=options, overwrite=True)
    assert {info.key for info in listed(f"{url}/t", options)} == {"zarr.json", "a/zarr.json", "a/c/0", "a/c/1"}


def listed(url: str, options: dict[str, Any]) -> list[Any]:
    storage = open_storage(url, options)

    async def collect() -> list[Any]:
        return [info async for info in storage.list("")]

    return run_sync(collect())


def test_readers_of_the_old_target_see_no_mixture(tmp_path: Path) -> None:
    """Old documents under which new shards would be misread go before these are written; others stay until they are replaced."""
    source, target = made(made(tmp_path / "s"), 4, "b"), made(made(tmp_path / "t", 7, chunks=2), 8, "b", chunks=1)
    (source / "a/c/5").write_bytes(b"short")
    with pytest.raises(Incomplete):
        pack(source, target, overwrite=True)
    assert not (target / "a/zarr.json").exists()
    assert not (target / "b/zarr.json").exists()
    assert os.path.exists(target / "zarr.json")


# -- consolidated metadata, of which the draft has none ----------------------------------------------------------------


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_consolidated_metadata_are_left_out_of_a_draft(tmp_path: Path, zarr_format: Any, overwrite: bool) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    root = zarr.open_group(source, mode="w", zarr_format=zarr_format)
    encoding: Any = {"name": "v2" if zarr_format == 2 else "default", "separator": "/"}
    array = root.create_array("g/a", shape=(8,), chunks=(1,), dtype="i4", compressors=None, chunk_key_encoding=encoding)
    array[...] = np.arange(8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr's, that they are in no specification
        zarr.consolidate_metadata(source)
    if overwrite:
        made(target, 5, "old")
    assert pack(source, target, stored="transformer", overwrite=overwrite).complete
    shown = zarr.open_group(shardstore.open(target), mode="r")
    assert sorted(shown.array_keys()) == []
    assert np.asarray(shown["g/a"]).tolist() == list(range(8))
    assert shardstore.verify(target, against=source).findings == ()
