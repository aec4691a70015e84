"""Repair: what can be proved comes back, byte for byte; the rest is kept elsewhere; and nothing happens that was not agreed to."""

from __future__ import annotations

import itertools
import json
import struct
import uuid
from concurrent.futures import CancelledError, ProcessPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import s3fs
import zarr
from fsspec.implementations.memory import MemoryFileSystem

import shardstore
from shardstore.errors import Conflict, InvalidInput, NotFound, ShardStoreError, Unsupported
from shardstore.maintenance.repair import shard as repair_shard
from shardstore.maintenance.repair.run import RepairReport, ShardRepair, _beside
from shardstore.model.capabilities import Capabilities
from shardstore.model.generation import UNCONDITIONAL
from shardstore.opening.open import open_storage
from shardstore.plan.commits import NONCE_NBYTES
from shardstore.storage.local.files import LOCK_SUFFIX, TEMP_SUFFIX
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.testing.faults import Cancel, Change, DropReply, Fail, Fault, FaultStorage, Refuse, Truncate
from shardstore.testing.trace import TraceStorage
from tests.engine.hooked import HookedStorage, document, fresh_memory
from tests.harness.scale import at_requests, moments
from tests.maintenance.laid_out import DEAD, appended, array_document, laid_out, put_array
from tests.shards import MISSING, Sharding, crc32c, encode_index, index_entries, presented
from tests.stored import Objects, StorageObjects, on_io_loop, snapshot

SHARD = "a/c/0"
SWAPS = Capabilities(pinned_reads=True, create_if_absent=True, compare_and_swap=True, across_machines=True)


ONE_LENGTH = ({"name": "bytes"},)
"""Codecs that make as many bytes of every chunk."""


class Damaged:
    """A store in memory with one array, and a quarantine beside it."""

    def __init__(self, storage: Any = None, quarantine: Any = None, **how: Any) -> None:
        self.storage = storage or fresh_memory()
        self.quarantine = quarantine or fresh_memory()
        self.objects = StorageObjects(self.storage)
        self.kept = StorageObjects(self.quarantine)
        self.layout = put_array(self.objects, "a", array_document(**how))

    def put(self, shard: bytes) -> None:
        self.objects.put(SHARD, shard)

    def get(self) -> bytes | None:
        return self.objects.get(SHARD)

    def values(self) -> dict[str, bytes]:
        return {key: data for key, data in presented(self.objects).items() if "/c/" in key}

    def repair(self, **options: Any) -> RepairReport:
        options = {"allow_reverting": True, "quarantine": self.quarantine, "workers": 2, **options}
        return shardstore.repair(self.storage, **options)

    def mended(self, shard: bytes) -> ShardRepair:
        """The one finding where ``shard`` is mended; what was there is kept whole, with a note, and nothing is left to do."""
        self.put(shard)
        self.empty_quarantine()
        before = snapshot(self.objects)
        (told,) = self.repair(dry_run=True).findings.first
        assert snapshot(self.objects) == before
        assert snapshot(self.kept) == {}
        report = self.repair()
        assert (report.failed.count, report.findings.count) == (0, 1)
        finding = report.findings.first[0]
        assert replace(finding, quarantined=None) == told
        assert finding.quarantined is not None
        assert self.kept.get(finding.quarantined) == shard
        note = json.loads(self.kept.get(f"{finding.quarantined}.json") or b"")
        assert (note["key"], note["array"], note["nbytes"], note["chunks_kept"]) == (SHARD, "a", len(shard), finding.kept)
        assert (note["what"], note["lost"], note["store"]) == (finding.what, list(finding.lost), self.storage.url)
        after = snapshot(self.objects)
        again = self.repair()
        assert (again.findings.count, snapshot(self.objects)) == (0, after)
        return finding

    def empty_quarantine(self) -> None:
        for key in snapshot(self.kept):
            self.kept.delete(key)


def chunk(number: int, nbytes: int = 40) -> bytes:
    return bytes(np.random.default_rng(number).integers(0, 256, nbytes, dtype="u1"))


def chunks(numbers: range, nbytes: int = 40) -> list[tuple[int | None, bytes]]:
    return [(n, chunk(n, nbytes)) for n in numbers]


# -- torn appends ----------------------------------------------------------------------------------------------------------


def history(layout: Sharding) -> list[bytes]:
    """A shard, and what two appends make of it."""
    first = laid_out(layout, chunks(range(5)))
    second = appended(layout, first, index_entries(layout, first), {5: chunk(50), 1: chunk(51, 70)})
    third = appended(layout, second, index_entries(layout, second), {0: chunk(60, 33), 7: b""})
    return [first, second, third]


@pytest.mark.parametrize("kind", ["random", "zeros"])
def test_an_append_torn_at_every_byte_loses_nothing_that_was_acknowledged(kind: str) -> None:
    place = Damaged()
    layout = place.layout
    versions = history(layout)
    if kind == "zeros":  # which look like entries at every place
        first = laid_out(layout, [(n, bytes(40)) for n in range(5)])
        second = appended(layout, first, index_entries(layout, first), {5: bytes(300)})
        versions = [first, second]
    for old, new in itertools.pairwise(versions):
        place.put(old)
        expected = place.values()
        for length in moments(range(len(old) + 1, len(new))):
            place.put(new[:length])
            (finding,) = place.repair().findings.first
            assert (finding.remedy, finding.lost) == ("cut", ()), length
            assert place.get() == old, length
            assert place.values() == expected
            assert finding.kept == len(expected)
        place.put(new)
        assert place.repair().findings.count == 0
    assert place.get() == versions[-1]


def test_torn_appends_of_many_chunks_are_found_by_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair_shard.Diagnosing, "window_bytes", 100)
    place = Damaged()
    first, second, third = history(place.layout)
    for old, new in ((first, second), (second, third)):
        for extra in (1, 40, 99, 100, 101, 150):
            place.put(new[: len(old) + extra])
            (finding,) = place.repair().findings.first
            assert (finding.remedy, place.get()) == ("cut", old)
    place.put(third + bytes(5000))
    assert place.repair().findings.first[0].remedy == "cut"
    assert place.get() == third


def test_what_is_kept_and_told_of_a_torn_append() -> None:
    place = Damaged()
    first, second, _ = history(place.layout)
    finding = place.mended(second[:-9])
    behind = len(second) - len(first) - 9
    assert finding.what == f"{behind} bytes follow its last valid index: of an append that did not finish, or that is damaged"
    assert (finding.path, finding.key, finding.remedy, finding.kept, finding.lost_count) == ("a", SHARD, "cut", 5, 0)


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_torn_appends_on_other_storages(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if kind == "local":
        place = Damaged(LocalStorage(tmp_path / "x", fsync=False), LocalStorage(tmp_path / "q", fsync=False))
    else:
        url, options = request.getfixturevalue("s3_url")
        place = Damaged(open_storage(url, options), open_storage(f"{url}.q", options))
    first, second, third = history(place.layout)
    assert place.mended(second[: len(first) + 77]).remedy == "cut"
    assert place.get() == first
    assert place.mended(third[:-1]).remedy == "cut"
    assert place.get() == second


def test_a_real_array_after_a_torn_append() -> None:
    storage = fresh_memory()
    values = np.arange(4096, dtype="u4").reshape(64, 64)
    array = zarr.create_array(shardstore.open(storage, chunks_per_shard=(4, 4)), name="x", shape=(64, 64), chunks=(8, 8), dtype="u4")
    array[...] = values
    objects = StorageObjects(storage)
    whole = snapshot(objects)
    for number, key in enumerate(sorted(key for key in whole if "/c/" in key)):
        objects.put(key, whole[key] + whole[key][: 100 * (number + 1)])
    report = shardstore.repair(storage, allow_reverting=True, quarantine=fresh_memory())
    assert [finding.remedy for finding in report.findings.first] == ["cut"] * 4
    assert snapshot(objects) == whole
    assert np.array_equal(zarr.open_array(shardstore.open(storage), path="x", mode="r")[...], values)


def test_the_indices_of_chunks_that_are_shards_are_not_taken_for_that_of_the_shard() -> None:
    inner = array_document()["codecs"][0]
    place = Damaged(codecs=[inner], chunk=(32,), per_shard=(8,), shape=(512,))
    layout = place.layout
    nested = laid_out(layout, chunks(range(8)))  # with as many chunks, so that it would pass for one
    shard = laid_out(layout, [(0, nested), (1, nested)])
    finding = place.mended(shard[: len(shard) - 30])
    assert finding.remedy == "deleted"


# -- entries that cannot be right ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index_location", ["start", "end"])
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("wrong", [(10**6, 4), (2**64 - 8, 16), (MISSING, 3), (3, MISSING)], ids=["past the end", "wraps", "half", "half"])
def test_entries_that_cannot_be_right_are_dropped(index_location: str, checksum: bool, wrong: tuple[int, int]) -> None:
    place = Damaged(index_location=index_location, checksum=checksum)
    layout = place.layout
    sound = laid_out(layout, [*chunks(range(6)), (DEAD, b"between")])
    place.put(sound)
    values = place.values()
    entries = index_entries(layout, sound)
    entries[2] = wrong
    index = encode_index(layout, entries)
    at = len(sound) - len(index) if layout.index_at_end else 0
    finding = place.mended(sound[:at] + index + sound[at + len(index) :])
    assert (finding.remedy, finding.kept, finding.lost) == ("dropped", 5, ("a/c/2",))
    del values["a/c/2"]
    assert place.values() == values
    now = place.get()
    assert now is not None
    body = slice(0, at) if layout.index_at_end else slice(len(index), None)
    assert now[body] == sound[body]


def test_a_shard_whose_tail_is_missing_keeps_what_is_before() -> None:
    place = Damaged(index_location="start")
    sound = laid_out(place.layout, chunks(range(8)))
    place.put(sound)
    values = place.values()
    finding = place.mended(sound[:-90])
    assert finding.lost == ("a/c/5", "a/c/6", "a/c/7")
    assert place.values() == {key: data for key, data in values.items() if key not in finding.lost}


def test_when_no_entry_is_left_the_shard_goes() -> None:
    place = Damaged()
    finding = place.mended(encode_index(place.layout, [(10**9, 5), *[(MISSING, MISSING)] * 7]))
    everything = tuple(f"a/c/{n}" for n in range(8))  # an index that does not fit its object may be that of another version
    assert (finding.remedy, finding.lost, place.get()) == ("deleted", everything, None)


def test_without_a_checksum_most_entries_have_to_make_sense() -> None:
    place = Damaged(checksum=False)
    shard = laid_out(place.layout, chunks(range(8)))
    finding = place.mended(shard[:-8])  # every entry is read from the wrong place
    assert (finding.remedy, place.get()) == ("deleted", None)


# -- indices that are proved -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_any_one_wrong_byte_of_an_index_is_put_right(index_location: str) -> None:
    place = Damaged(index_location=index_location)
    layout = place.layout
    sound = laid_out(layout, [*chunks(range(3)), (DEAD, bytes(99)), *chunks(range(4, 7), 2000)])
    at = len(sound) - layout.index_nbytes if layout.index_at_end else 0
    for position in range(layout.index_nbytes):
        damaged = bytearray(sound)
        damaged[at + position] ^= 1 << position % 8 | position % 5 << 3
        place.put(bytes(damaged))
        (finding,) = place.repair().findings.first
        assert (finding.remedy, finding.kept, finding.lost) == ("corrected", 6, ())
        assert place.get() == sound
    damaged = bytearray(sound)
    damaged[at + 5] ^= 7
    assert place.mended(bytes(damaged)).remedy == "corrected"


def with_checksum(data: bytes) -> bytes:
    return data + struct.pack("<I", crc32c(data))


def scrambled(layout: Sharding, shard: bytes, slots: list[int], entry: tuple[int, int] = (7, 9)) -> bytes:
    """The shard with other entries in some slots, under a checksum that is wrong."""
    entries = index_entries(layout, shard)
    for slot in slots:
        entries[slot] = entry
    index = encode_index(layout, entries)
    index = index[:-4] + bytes(4) if layout.checksum else index
    return shard[: -len(index)] + index if layout.index_at_end else index + shard[len(index) :]


@pytest.mark.parametrize("index_location", ["start", "end"])
def test_chunks_with_checksums_prove_themselves(index_location: str) -> None:
    place = Damaged(index_location=index_location, codecs=[{"name": "zstd"}, {"name": "crc32c"}])
    layout = place.layout
    sound = laid_out(layout, [(n, with_checksum(chunk(n, 30 + n))) for n in range(7)])
    place.put(sound)
    values = place.values()
    finding = place.mended(scrambled(layout, sound, [1, 4]))
    assert (finding.remedy, finding.kept, finding.lost) == ("rebuilt", 5, ("a/c/1", "a/c/4"))
    assert place.values() == {key: data for key, data in values.items() if key not in finding.lost}


def test_a_chunk_that_two_slots_claim_is_neither_ones() -> None:
    place = Damaged(codecs=[{"name": "zstd"}, "crc32c"])
    sound = laid_out(place.layout, [(n, with_checksum(chunk(n))) for n in range(7)])
    finding = place.mended(scrambled(place.layout, sound, [2], index_entries(place.layout, sound)[5]))
    assert finding.lost == ("a/c/2", "a/c/5")


def test_chunks_of_the_wrong_size_do_not_prove_themselves() -> None:
    place = Damaged(codecs=[{"name": "bytes"}, "crc32c"])  # chunks of four bytes, and their checksum
    parts: list[tuple[int | None, bytes]] = [(0, with_checksum(b"good")), (1, with_checksum(b"too long")), (2, with_checksum(b"good"))]
    finding = place.mended(scrambled(place.layout, laid_out(place.layout, parts), [7]))
    assert finding.lost == ("a/c/1", "a/c/7")


@pytest.mark.parametrize("index_location", ["start", "end"])
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5, 6, 7], [0, 4, 1, 5, 2, 6, 3, 7], [0, 1, 4, 5, 2, 3, 6, 7]], ids=["C", "F", "morton"])
def test_full_shards_of_equal_chunks_are_told_by_half_of_their_index(index_location: str, checksum: bool, order: list[int]) -> None:
    how: dict[str, Any] = {"index_location": index_location, "checksum": checksum, "codecs": ONE_LENGTH}
    place = Damaged(shape=(8, 16), chunk=(2, 2), per_shard=(2, 4), **how)
    layout = place.layout
    sound = laid_out(layout, [(slot, chunk(slot, 4)) for slot in order])
    place.objects.put("a/c/0/0", sound)
    entry = (7, 9) if checksum else (MISSING, 3)
    place.objects.put("a/c/0/0", scrambled(layout, sound, [1, 2, 5, 6], entry))
    (finding,) = place.repair().findings.first
    assert (finding.remedy, finding.kept, finding.lost) == ("rebuilt", 8, ())
    assert place.objects.get("a/c/0/0") == sound


def test_full_shards_of_equal_chunks_come_back_with_part_of_their_index() -> None:
    place = Damaged(codecs=ONE_LENGTH)
    sound = laid_out(place.layout, [(slot, chunk(slot, 4)) for slot in range(8)])
    for missing in range(1, place.layout.index_nbytes - 16, 9):
        place.put(sound[:-missing])
        (finding,) = place.repair().findings.first
        assert (finding.remedy, place.get()) == ("rebuilt", sound)
    assert place.mended(sound[: 8 * 4]).remedy == "deleted"  # in which order they were, nothing tells


def test_with_less_than_half_of_the_index_equal_chunks_are_not_believed() -> None:
    place = Damaged(codecs=ONE_LENGTH)
    sound = laid_out(place.layout, [(slot, chunk(slot, 4)) for slot in range(8)])
    finding = place.mended(scrambled(place.layout, sound, [0, 1, 2, 3, 4]))
    assert (finding.remedy, place.get()) == ("deleted", None)


def test_the_index_of_an_append_that_was_finished_is_not_taken_for_a_torn_one() -> None:
    """Going back to the older index would show old values as if they were new."""
    place = Damaged()
    first, second, _ = history(place.layout)
    place.put(second)
    values = place.values()
    finding = place.mended(scrambled(place.layout, second, [3]))
    assert finding.remedy == "rebuilt"
    assert finding.lost == ("a/c/1", "a/c/3", "a/c/5")
    assert place.values() == {key: data for key, data in values.items() if key not in finding.lost}
    assert place.values()["a/c/0"] == chunk(0)
    everything = appended(place.layout, first, index_entries(place.layout, first), {n: chunk(80 + n) for n in range(8)})
    finding = place.mended(everything[:-4] + bytes(4))
    assert (finding.remedy, finding.reverted) == ("cut", tuple(f"a/c/{n}" for n in range(8)))


def test_what_cannot_be_proved_is_removed_and_kept_elsewhere() -> None:
    for shard in (b"", b"short", chunk(1, 1000), bytes(1000)):
        place = Damaged()
        finding = place.mended(shard)
        assert (finding.remedy, finding.kept, place.get()) == ("deleted", 0, None)


def test_emptied_shards_go_and_need_no_quarantine_unless_they_hold_bytes() -> None:
    place = Damaged()
    place.put(laid_out(place.layout, []))
    report = place.repair()
    assert [finding.remedy for finding in report.findings.first] == ["emptied"]
    assert (place.get(), snapshot(place.kept)) == (None, {})
    assert place.mended(laid_out(place.layout, [(DEAD, b"something")])).remedy == "emptied"


def test_an_emptied_shard_with_a_nonce_is_not_damaged_where_no_checksum_says_that_its_index_is_one() -> None:
    place = Damaged(checksum=False)
    finding = place.mended(laid_out(place.layout, [(DEAD, bytes(NONCE_NBYTES))]))
    assert (finding.remedy, finding.lost_count, place.get()) == ("emptied", 0, None)
    assert place.mended(laid_out(place.layout, [(DEAD, bytes(NONCE_NBYTES + 1))])).remedy == "deleted"


# -- what is left alone ----------------------------------------------------------------------------------------------------


def many(place: Damaged) -> dict[str, bytes]:
    """Damage of every kind; the values that can be saved."""
    layout = place.layout
    first, second, _ = history(layout)
    entries = index_entries(layout, first)
    entries[1] = (10**9, 1)
    shards = {
        "a/c/0": second[:-5],
        "a/c/1": first[: -layout.index_nbytes] + encode_index(layout, entries),
        "a/c/2": b"lost",
        "a/c/3": first,
    }
    shards["a/c/4"] = laid_out(layout, [])
    for key, data in shards.items():
        place.objects.put(key, data)
    saved = {f"a/c/{n}": chunk(n) for n in range(5)}
    saved |= {f"a/c/{8 + n}": chunk(n) for n in range(5) if n != 1}
    return saved | {f"a/c/{24 + n}": chunk(n) for n in range(5)}


@pytest.mark.parametrize("kind", ["memory", "local", "s3"])
def test_without_yes_nothing_changes_anywhere(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    options: dict[str, Any] = {}
    match kind:
        case "s3":
            url, options = request.getfixturevalue("s3_url")
        case "local":
            url = str(tmp_path / "x.zarr")
        case _:
            url = f"memory://{uuid.uuid4().hex}/x.zarr"
    place = Damaged(open_storage(url, options or None))
    saved = many(place)
    before = snapshot(place.objects)
    beside = StorageObjects(open_storage(f"{url}.quarantine", options or None))
    told = shardstore.repair(url, dry_run=True, allow_reverting=True, storage_options=options or None)
    assert told.is_dry_run
    assert sorted({finding.remedy for finding in told.findings.first} - {"emptied"}) == ["cut", "deleted", "dropped"]
    assert snapshot(place.objects) == before
    assert snapshot(beside) == {}
    if kind == "local":
        assert not (tmp_path / "x.zarr.quarantine").exists()
    report = shardstore.repair(url, allow_reverting=True, storage_options=options or None)
    assert report.quarantine == f"{place.storage.url}.quarantine"
    assert {f.key: f.remedy for f in report.findings.first if f.remedy != "emptied"} == {
        f.key: f.remedy for f in told.findings.first if f.remedy != "emptied"
    }
    assert place.values() == saved
    kept = {key.rpartition("/")[0]: data for key, data in snapshot(beside).items() if not key.endswith(".json")}
    assert kept == {key: before[key] for key in ("a/c/0", "a/c/1", "a/c/2")}


def test_only_what_lies_below_the_path_and_in_this_part() -> None:
    place = Damaged(shape=(1000,))
    layout = put_array(place.objects, "g/b", array_document(shape=(1000,)))
    for number in range(12):
        for name in ("a", "g/b"):
            place.objects.put(f"{name}/c/{number}", laid_out(layout, chunks(range(3))) + b"torn")
    assert place.repair(path="g").findings.count == 12
    counts = [place.repair(part=f"{i}/3").findings.count for i in (1, 2, 3)]
    assert sum(counts) == 12
    assert min(counts) > 0
    with pytest.raises(NotFound):
        place.repair(path="nowhere")


def test_metadata_is_not_guessed() -> None:
    place = Damaged()
    place.put(b"lost")
    text = place.objects.get("a/zarr.json")
    assert text is not None
    place.objects.put("a/zarr.json", text[:-20])
    before = snapshot(place.objects)
    report = place.repair()
    assert (report.unreadable, report.findings.count) == (("a",), 0)
    assert snapshot(place.objects) == before


def test_arguments_that_cannot_be_right() -> None:
    place = Damaged()
    url = place.storage.url
    for wrong in ({"older_than": "-1h"}, {"part": "3/2"}, {"path": "../x"}, {"quarantine": f"{url}/inside"}, {"quarantine": url}):
        with pytest.raises(InvalidInput):
            place.repair(**wrong)
    with pytest.raises(InvalidInput, match="quarantine"):
        shardstore.repair(place.storage)
    assert shardstore.repair(place.storage, dry_run=True).quarantine is None


def test_the_place_beside_a_store() -> None:
    fs = MemoryFileSystem()
    assert _beside("data/x.zarr/") == "data/x.zarr.quarantine"
    assert _beside(Path("/data/x.zarr")) == "/data/x.zarr.quarantine"
    assert _beside("s3://bucket/x") == "s3://bucket/x.quarantine"
    assert _beside("memory://x") == "memory://x.quarantine"
    assert _beside((fs, "/x/y/")) == (fs, "/x/y.quarantine")
    for nowhere in ("s3://bucket", "s3://bucket/", (fs, "bucket"), "zip://x::file:///y.zip", 3):
        with pytest.raises(InvalidInput, match="--quarantine"):
            _beside(nowhere)


def test_without_compare_and_swap_only_when_nobody_else_writes() -> None:
    hooked = HookedStorage(fresh_memory())
    place = Damaged(hooked)
    saved = many(place)
    hooked.capabilities_override = Capabilities()
    with pytest.raises(Unsupported, match="exclusive"):
        place.repair()
    assert place.repair(dry_run=True).findings.count == 4
    assert place.repair(exclusive=True).findings.count == 4
    assert place.values() == saved


def test_a_lost_shard_is_not_deleted_where_that_could_hit_a_new_one() -> None:
    hooked = HookedStorage(fresh_memory())
    hooked.capabilities_override = SWAPS
    place = Damaged(hooked)
    saved = many(place)
    assert place.repair().findings.count == 3  # of the emptied one nothing is to be done there
    assert hooked.count("delete") == 0
    assert place.values() == saved
    assert place.objects.get("a/c/2") == laid_out(place.layout, [])
    assert place.repair().findings.count == 0


def test_processes_do_the_work_too(tmp_path: Path) -> None:
    place = Damaged(LocalStorage(tmp_path / "x", fsync=False))
    saved = many(place)
    with ProcessPoolExecutor(2) as executor:
        report = shardstore.repair(str(tmp_path / "x"), allow_reverting=True, executor=executor)
    assert report.findings.count == 4
    assert place.values() == saved


def test_requests_of_a_sound_store() -> None:
    place = Damaged()
    for number in range(20):
        place.objects.put(f"a/c/{number}", laid_out(place.layout, chunks(range(3))))
    traced = TraceStorage(place.storage)
    with traced.count() as block:
        report = shardstore.repair(traced, quarantine=place.quarantine)
    assert (report.shards, report.findings.count) == (20, 0)
    reads = [event for event in block.events if event.op == "read" and "/c/" in event.key]
    assert [event.nbytes for event in reads] == [place.layout.index_nbytes] * 20
    assert {event.op for event in block.events} <= {"read", "list", "list_dir", "stat"}


# -- leftovers -------------------------------------------------------------------------------------------------------------


def test_temporary_and_lock_files_of_dead_writers(tmp_path: Path) -> None:
    place = Damaged(LocalStorage(tmp_path / "x", fsync=False))
    place.put(laid_out(place.layout, chunks(range(3))))
    left = [tmp_path / f"x/a/c/.0.abcdef-999999.1{TEMP_SUFFIX}", tmp_path / f"x/a/.zarr.json{LOCK_SUFFIX}"]
    for file in left:
        file.write_bytes(b"")
    assert place.repair(dry_run=True, older_than=0).leftovers.files == 2
    assert all(file.exists() for file in left)
    assert place.repair(older_than="1h").leftovers.files == 0
    assert place.repair(older_than=0, part="2/2").leftovers.files == 0
    assert place.repair(older_than=0, path="a").leftovers.files == 0
    assert all(file.exists() for file in left)
    assert place.repair(older_than=0).leftovers.files == 2
    assert not any(file.exists() for file in left)


def test_unfinished_uploads(s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url
    place = Damaged(open_storage(url, options), fresh_memory())
    place.put(laid_out(place.layout, chunks(range(3))))
    fs = s3fs.S3FileSystem(**options)
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    for key in (f"{prefix}/a/c/0", f"{prefix}/b/c/0", f"{prefix}x/a/c/0"):
        fs.call_s3("create_multipart_upload", Bucket=bucket, Key=key)

    def listed() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = fs.call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads", [])
        return found

    def unfinished() -> list[str]:
        return sorted(upload["Key"] for upload in listed())

    now = max(upload["Initiated"] for upload in listed())  # by the server's clock
    everything = unfinished()
    assert len(everything) == 3
    assert place.repair(now=now, older_than="24h").leftovers.uploads == 0
    later = now + timedelta(hours=25)
    assert place.repair(dry_run=True, now=later).leftovers.uploads == 2
    assert unfinished() == everything
    assert place.repair(now=later, path="a").leftovers.uploads == 1
    assert place.repair(now=later).leftovers.uploads == 1
    assert unfinished() == [f"{prefix}x/a/c/0"]


# -- beside others, and when things fail -----------------------------------------------------------------------------------


def test_a_shard_that_a_writer_has_mended_meanwhile_stays_as_it_is() -> None:
    inner = fresh_memory()
    hooked = HookedStorage(inner)
    place = Damaged(hooked)
    place.put(b"lost")
    new = laid_out(place.layout, chunks(range(8)))

    async def interfere(operation: str, key: str) -> None:
        if operation == "delete" and key == SHARD and hooked.count("delete") == 1:
            await inner.write(SHARD, [new], len(new), UNCONDITIONAL)

    hooked.before = interfere
    report = place.repair()
    assert (report.findings.count, report.failed.count) == (0, 0)
    assert place.get() == new
    assert [data for key, data in snapshot(place.kept).items() if not key.endswith(".json")] == [b"lost"]


def test_a_shard_that_is_replaced_while_it_is_searched_is_looked_at_again() -> None:
    inner = fresh_memory()
    hooked = HookedStorage(inner)
    place = Damaged(hooked)
    _, second, third = history(place.layout)
    place.put(second[:-7])
    torn = third[:-3]

    async def interfere(operation: str, key: str) -> None:
        if operation == "read" and key == SHARD and hooked.count("read", SHARD) == 3:  # after two of the index
            await inner.write(SHARD, [torn], len(torn), UNCONDITIONAL)

    hooked.before = interfere
    assert place.repair().findings.first[0].remedy == "cut"
    assert place.get() == second


def test_whoever_keeps_writing_wins() -> None:
    inner = fresh_memory()
    hooked = HookedStorage(inner)
    place = Damaged(hooked)
    place.put(b"lost")

    async def interfere(operation: str, key: str) -> None:
        if operation == "delete":
            await inner.write(SHARD, [b"lost again"], 10, UNCONDITIONAL)

    hooked.before = interfere
    (failed,) = place.repair().failed.first
    assert isinstance(failed.error, Conflict)
    assert place.get() == b"lost again"


@pytest.mark.parametrize("other", [None, array_document(per_shard=(4,), chunk=(8,))], ids=["gone", "laid out otherwise"])
def test_shards_of_an_array_that_changed_meanwhile_are_left(other: dict[str, Any] | None) -> None:
    for at in range(1, 6):
        inner = fresh_memory()
        hooked = HookedStorage(inner)
        place = Damaged(hooked)
        place.put(b"lost")
        count = 0

        async def interfere(operation: str, key: str, inner: MemoryStorage = inner, at: int = at) -> None:
            nonlocal count
            count += key in (SHARD, "a/zarr.json")
            if count == at and operation == "read":
                count = 100
                if other is None:
                    await inner.delete("a/zarr.json", UNCONDITIONAL)
                else:
                    data = json.dumps(other).encode()
                    await inner.write("a/zarr.json", [data], len(data), UNCONDITIONAL)

        hooked.before = interfere
        report = place.repair()
        assert count >= 100
        if at > 1 or other is None:
            assert (report.findings.count, place.get()) == (0, b"lost")


EFFECTS = [Fail(), Change(), DropReply(), Truncate(nbytes=7), Refuse(), Cancel(), Cancel(after=True)]


@pytest.mark.parametrize("effect", EFFECTS, ids=repr)
@pytest.mark.parametrize("which", ["store", "quarantine"])
@pytest.mark.parametrize("can_compose", [True, False])
def test_at_every_request_old_or_mended_and_never_without_a_copy(effect: Any, which: str, can_compose: bool) -> None:
    hooked = HookedStorage(fresh_memory())
    if not can_compose:
        hooked.capabilities_override = replace(SWAPS, conditional_delete=True)
    place = Damaged(hooked)
    many(place)
    before = snapshot(place.objects)
    place.repair()
    after = snapshot(place.objects)

    def attempt(fault: Fault) -> bool:
        for key, data in before.items():
            place.objects.put(key, data)
        place.empty_quarantine()
        faulty = FaultStorage(hooked if which == "store" else place.quarantine, [fault])
        targets = {"store": (faulty, place.quarantine), "quarantine": (hooked, faulty)}[which]
        try:
            assert shardstore.repair(targets[0], allow_reverting=True, quarantine=targets[1], workers=1).failed.count <= 1
        except (ShardStoreError, CancelledError):
            raised = True
        else:
            raised = False
        assert bool(faulty.struck) or not raised
        now = snapshot(place.objects)
        kept = set(snapshot(place.kept).values())
        for key, data in before.items():
            assert now.get(key) in (data, after.get(key))
            assert now.get(key) == data or data in kept or key == "a/c/4"
        place.repair()
        assert snapshot(place.objects) == after
        return bool(faulty.struck)

    at_requests(effect, attempt, least=6 if which == "quarantine" else 12)


def test_a_repaired_shard_is_durable_before_it_is_told(tmp_path: Path) -> None:
    """What the quarantine holds is whole, as any object is that a storage has acknowledged."""
    place = Damaged(LocalStorage(tmp_path / "x"), LocalStorage(tmp_path / "q"))
    place.put(b"lost")
    traced = TraceStorage(place.quarantine)
    done: list[str] = []

    async def note(operation: str, key: str) -> None:
        if operation in ("delete", "compose", "write"):
            done.append(f"{operation} with {len([e for e in traced.events if e.op == 'write'])} kept")

    hooked = HookedStorage(place.storage)
    hooked.before = note
    shardstore.repair(hooked, quarantine=traced)
    assert done == ["delete with 2 kept"]


def test_a_draft_hierarchy() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    store = shardstore.get_mapper(url, stored="transformer", chunks_per_shard=(4,))
    store["a/zarr.json"] = document((16,), (4,))
    for number in range(4):
        store[f"a/c/{number}"] = chunk(number)
    objects: Objects = StorageObjects(open_storage(url))
    (key,) = (key for key in objects.keys() if key.startswith("data/"))  # noqa: SIM118 - no mapping
    shard = objects.get(key)
    assert shard is not None
    objects.put(key, shard[:-16] + struct.pack("<2Q", 10**9, 1))
    (finding,) = shardstore.repair(url).findings.first
    assert (finding.remedy, finding.lost) == ("dropped", ("a/c/3",))
    view = shardstore.get_mapper(url)
    assert [view.get(f"a/c/{n}") for n in range(4)] == [chunk(0), chunk(1), chunk(2), None]


def test_on_the_io_loop_nothing_waits_for_itself() -> None:
    """Repair is for threads: it would wait for the loop that it blocks."""
    place = Damaged()

    async def call() -> None:
        with pytest.raises(RuntimeError, match="block"):
            place.repair()

    on_io_loop(call())
