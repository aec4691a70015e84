"""Repair of shards with a damaged newest index: proved by checksum, or left, or set back with every chunk named."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import Crc32cCodec

import shardstore
from shardstore.maintenance.repair.run import RepairReport, ShardRepair
from shardstore.storage.local.append_record import HAS_ATTRIBUTES, encode_record, set_under_way
from shardstore.testing.trace import TraceStorage
from tests.engine.hooked import fresh_memory
from tests.maintenance.laid_out import ANY_LENGTH, DEAD, appended, array_document, laid_out, put_array
from tests.maintenance.shard_damages import repaired, with_checksum
from tests.shards import MISSING, encode_index, index_entries
from tests.stored import StorageObjects

INDEX_NBYTES = 16 * 16 + 4
SHARD = "a/c/0"
CHUNKS = tuple(f"a/c/{n}" for n in range(16))


def store_of(root: Path, count: int) -> Path:
    """16 chunks with ``crc32c``, all written as 1, then ``count`` of them as 2; the file of their shard."""
    store = shardstore.open(str(root), chunks_per_shard=(16,), strategy="append", fsync=False)
    array = zarr.create_array(store, name="a", shape=(64,), chunks=(4,), dtype="u2", compressors=[Crc32cCodec()], fill_value=0)
    array[...] = 1
    array[: 4 * count] = 2
    return root / SHARD


def spoil(file: Path, damaged: bytes) -> None:
    """Another file: nothing of what the storage keeps beside the bytes of the first."""
    file.unlink()
    file.write_bytes(damaged)


def mend(root: Path, **options: Any) -> ShardRepair:
    report: RepairReport = shardstore.repair(str(root), **options)
    (finding,) = report.findings.first
    return finding


def values(root: Path) -> list[int]:
    array = zarr.open_array(shardstore.open(str(root), metadata_ttl=0), path="a", mode="r")
    return [int(value) for value in np.asarray(array[::4])]


def wrong_bytes(data: bytes, count: int, seed: int) -> bytes:
    rng = random.Random(seed)
    changed = bytearray(data)
    for position in rng.sample(range(len(data) - INDEX_NBYTES, len(data) - 4), count):
        changed[position] ^= rng.randrange(1, 256)
    return bytes(changed)


@pytest.mark.parametrize("count", [1, 3, 12])
@pytest.mark.parametrize("wrong", [2, 16, 64])
def test_the_newest_index_is_restored_where_its_checksum_proves_it(tmp_path: Path, count: int, wrong: int) -> None:
    file = store_of(tmp_path / "x", count)
    sound = file.read_bytes()
    for seed in range(3):
        spoil(file, wrong_bytes(sound, wrong, seed))
        finding = mend(tmp_path / "x")
        assert (finding.remedy, finding.lost, finding.reverted, finding.uncertain) == ("corrected", (), (), ())
        assert file.read_bytes() == sound
        assert values(tmp_path / "x") == [2] * count + [1] * (16 - count)


def test_an_index_without_its_last_byte_is_restored_and_says_that_more_may_be_missing(tmp_path: Path) -> None:
    file = store_of(tmp_path / "x", 3)
    sound = file.read_bytes()
    spoil(file, sound[:-1])
    finding = mend(tmp_path / "x")
    assert (finding.remedy, finding.uncertain, finding.reverted) == ("corrected", CHUNKS, ())
    assert file.read_bytes() == sound


UNPROVABLE: dict[str, Callable[[bytes], bytes]] = {
    "zeroed": lambda data: data[:-INDEX_NBYTES] + bytes(INDEX_NBYTES),
    "cut by the index": lambda data: data[:-INDEX_NBYTES],
    "cut in a chunk": lambda data: data[: -INDEX_NBYTES - 5],
    "longer": lambda data: data + b"something",
}


@pytest.mark.parametrize("damage", UNPROVABLE.values(), ids=UNPROVABLE)
def test_going_back_to_an_older_index_has_to_be_allowed_and_names_every_chunk(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    root = tmp_path / "x"
    file = store_of(root, 3)
    damaged = damage(file.read_bytes())
    spoil(file, damaged)
    report = shardstore.repair(str(root))
    (left,) = report.findings.first
    assert (left.remedy, left.reverted, left.lost, left.quarantined) == ("left", CHUNKS, (), None)
    assert "--allow-reverting" in left.how
    assert (report.left_count, report.reverted_count, report.damaged_count) == (1, 0, 1)
    assert file.read_bytes() == damaged
    assert not (tmp_path / "x.quarantine").exists()

    told = shardstore.repair(str(root), dry_run=True, allow_reverting=True)
    assert (told.reverted_count, told.left_count, file.read_bytes()) == (16, 0, damaged)
    cut = mend(root, allow_reverting=True)
    assert (cut.remedy, cut.reverted, cut.reverted_count, cut.lost) == ("cut", CHUNKS, 16, ())
    assert cut.quarantined is not None
    kept = tmp_path / "x.quarantine" / cut.quarantined
    assert kept.read_bytes() == damaged  # the older values and the newer ones
    note = json.loads(kept.with_name(kept.name + ".json").read_text())
    assert (note["reverted"], note["last_index_end"]) == (list(CHUNKS), file.stat().st_size)
    assert values(root) in ([1] * 16, [2] * 3 + [1] * 13)
    assert shardstore.repair(str(root)).findings.count == 0


def test_the_tail_of_an_append_that_the_file_says_was_not_finished_needs_no_permission(tmp_path: Path) -> None:
    """There it is known: no finished index ever followed, and every reader of shardstore sees the shard as it was before."""
    file = store_of(tmp_path / "x", 3)
    before = file.read_bytes()
    if not HAS_ATTRIBUTES:
        pytest.skip("appends are not made in place without extended attributes")
    with file.open("r+b") as stream:
        record = encode_record(file.stat())
        try:
            set_under_way(stream.fileno(), record)
        except OSError:
            pytest.skip("the file system has no extended attributes")
        stream.seek(0, 2)
        stream.write(record + b"the beginning of a chunk")
    report = shardstore.repair(str(tmp_path / "x"), older_than=0)
    assert (report.findings.count, report.leftovers.files) == (0, 1)
    assert file.read_bytes() == before
    assert values(tmp_path / "x") == [2] * 3 + [1] * 13


def test_an_index_that_more_followed_on_is_not_taken_for_the_newest() -> None:
    """The one before it is damaged, and could be proved; what was written after it is not in it."""
    storage = fresh_memory()
    objects = StorageObjects(storage)
    layout = put_array(objects, "a", array_document(codecs=[*ANY_LENGTH, {"name": "crc32c"}]))
    first = laid_out(layout, [(n, with_checksum(bytes([n]) * 30)) for n in range(8)])
    second = appended(layout, first, index_entries(layout, first), {1: with_checksum(b"second" * 5)})
    third = appended(layout, second, index_entries(layout, second), {2: with_checksum(b"third" * 5)})
    damaged = bytearray(third[: -layout.index_nbytes] + bytes(layout.index_nbytes))
    damaged[len(second) - 20] ^= 1
    damaged[len(second) - 60] ^= 1
    objects.put(SHARD, bytes(damaged))
    (finding,) = shardstore.repair(storage, quarantine=fresh_memory()).findings.first
    assert (finding.remedy, objects.get(SHARD)) == ("left", bytes(damaged))


def test_chunks_that_the_older_index_does_not_have_are_named_too() -> None:
    storage = fresh_memory()
    objects = StorageObjects(storage)
    layout = put_array(objects, "a", array_document(shape=(28,)))  # 7 chunks of the 8 that a shard has room for
    first = laid_out(layout, [(n, bytes([n]) * 30) for n in range(3)])
    second = appended(layout, first, index_entries(layout, first), {5: b"acknowledged"})
    objects.put(SHARD, second[: -layout.index_nbytes] + bytes(layout.index_nbytes))
    report = shardstore.repair(storage, allow_reverting=True, quarantine=fresh_memory())
    (finding,) = report.findings.first
    assert (finding.remedy, finding.kept, finding.reverted) == ("cut", 3, tuple(f"a/c/{n}" for n in range(7)))
    assert objects.get(SHARD) == first


def test_chunks_of_any_length_are_found_with_few_requests() -> None:
    storage = fresh_memory()
    objects = StorageObjects(storage)
    document = array_document(shape=(4 * 96,), per_shard=(96,), codecs=[*ANY_LENGTH, {"name": "crc32c"}])
    layout = put_array(objects, "a", document)
    rng = random.Random(5)
    sound = laid_out(layout, [(n, with_checksum(rng.randbytes(rng.choice([1, 100, 4000, 20_000])))) for n in range(96)])
    changed = bytearray(sound)
    for position in rng.sample(range(len(sound) - layout.index_nbytes, len(sound) - 4), 190):
        changed[position] ^= 0x55
    objects.put(SHARD, bytes(changed))
    traced = TraceStorage(storage)
    with traced.count() as block:
        (finding,) = shardstore.repair(traced, quarantine=fresh_memory()).findings.first
    assert (finding.remedy, finding.kept, finding.uncertain) == ("corrected", 96, ())
    assert objects.get(SHARD) == sound
    reads = [event for event in block.events if event.op == "read" and event.key == SHARD]
    assert len(reads) <= 10
    assert sum(event.nbytes for event in reads) < 3.2 * len(sound)  # the search for an index, that for chunks, and the copy


def test_random_damages_give_no_value_that_is_not_the_latest_or_named() -> None:
    """The same at full size is in ``tests/torture``."""
    counts, wrong = repaired(120, seed=2)
    assert wrong == []
    assert counts["corrected"] > 10
    assert counts["chunks vouched for"] > 100


# -- places ----------------------------------------------------------------------------------------------------------------


def test_exchanged_entries_are_told_by_the_checksum_of_the_index_or_named() -> None:
    storage = fresh_memory()
    objects = StorageObjects(storage)
    layout = put_array(objects, "a", array_document(codecs=[*ANY_LENGTH, {"name": "crc32c"}]))
    chunks = {f"a/c/{n}": with_checksum(bytes([n]) * (20 + n)) for n in range(8)}
    sound = laid_out(layout, list(enumerate(chunks.values())))
    entries = index_entries(layout, sound)
    entries[0], entries[1] = entries[1], entries[0]
    index = encode_index(layout, entries)[:-4]
    body, checksum = sound[: -layout.index_nbytes], sound[-4:]

    objects.put(SHARD, body + index + checksum)
    (finding,) = shardstore.repair(storage, quarantine=fresh_memory()).findings.first
    assert (finding.remedy, finding.uncertain, objects.get(SHARD)) == ("corrected", (), sound)

    objects.put(SHARD, body + index + bytes(4))
    report = shardstore.repair(storage, quarantine=fresh_memory())
    (finding,) = report.findings.first
    assert (finding.remedy, finding.kept, finding.lost, finding.uncertain) == ("rebuilt", 8, (), tuple(chunks))
    assert report.uncertain_count == finding.uncertain_count == 8


@pytest.mark.parametrize(("index_location", "strategy"), [("start", "rewrite"), ("end", "rewrite"), ("end", "append")])
@pytest.mark.parametrize("has_checksums", [True, False])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("first", [0, 3])
def test_where_bytes_of_chunks_are_missing_no_chunk_of_their_length_is_vouched_for(
    index_location: Any, strategy: Any, has_checksums: bool, count: int, first: int, tmp_path: Path
) -> None:
    """All behind them lie at the places of others, which an index that its checksum proves does not show."""
    store = shardstore.open(str(tmp_path / "x"), chunks_per_shard=(8,), index_location=index_location, strategy=strategy, fsync=False)
    codecs = [Crc32cCodec()] if has_checksums else None
    array = zarr.create_array(store, name="a", shape=(32,), chunks=(4,), dtype="u2", compressors=codecs, fill_value=0)
    for begin in (11, 1):
        array[...] = np.repeat(np.arange(begin, begin + 8), 4)
    file = tmp_path / "x" / SHARD
    shard, nbytes = file.read_bytes(), 12 if has_checksums else 8
    at = shard.rindex(np.full(4, 1, dtype="<u2").tobytes()) + nbytes * first
    spoil(file, shard[:at] + shard[at + nbytes * count :])
    finding = mend(tmp_path / "x", allow_reverting=True)
    named = {*finding.lost, *finding.reverted, *finding.uncertain}
    now = values(tmp_path / "x") if file.exists() else [0] * 8
    assert {f"a/c/{slot}" for slot in range(8) if now[slot] != slot + 1} <= named
    assert (finding.remedy, finding.uncertain_count + finding.lost_count) == ("dropped", 8)


def shard_of_own_lengths(index_location: str) -> tuple[Any, StorageObjects, list[bytes], bytes]:
    """Seven chunks with checksums, each of another length, and none in slot 5; they fill the shard."""
    storage = fresh_memory()
    objects = StorageObjects(storage)
    layout = put_array(objects, "a", array_document(codecs=[*ANY_LENGTH, {"name": "crc32c"}], index_location=index_location))
    chunks = [with_checksum(bytes([n]) * (20 + n)) for n in range(8)]
    return storage, objects, chunks, laid_out(layout, [(n, data) for n, data in enumerate(chunks) if n != 5])


@pytest.mark.parametrize("index_location", ["start", "end"])
@pytest.mark.parametrize("lost", [0, 3, 7])
def test_a_chunk_of_a_length_of_its_own_is_proved_or_refuted_at_its_place(index_location: str, lost: int) -> None:
    storage, objects, chunks, sound = shard_of_own_lengths(index_location)
    objects.put(SHARD, sound.replace(chunks[lost], b""))
    (finding,) = shardstore.repair(storage, quarantine=fresh_memory()).findings.first
    gone = [n for n in range(lost, 8) if n != 5]
    if lost:
        assert (finding.remedy, finding.uncertain, finding.lost) == ("dropped", ("a/c/5",), tuple(f"a/c/{n}" for n in gone))
    else:
        assert (finding.remedy, finding.lost_count) == ("deleted", 8)
    view = shardstore.get_mapper(storage)
    assert [view.get(f"a/c/{n}") for n in range(8)] == [None if n in (*gone, 5) else chunks[n] for n in range(8)]


def test_beside_bytes_that_no_entry_names_a_length_of_its_own_proves_nothing() -> None:
    """They may be an older chunk of this length, and have come to the place of the newer one."""
    storage = fresh_memory()
    objects = StorageObjects(storage)
    layout = put_array(objects, "a", array_document(codecs=[*ANY_LENGTH, {"name": "crc32c"}], index_location="start"))
    old, new, other = (with_checksum(data) for data in (b"old" * 5, b"new" * 5, b"another one"))
    sound = laid_out(layout, [(0, new), (DEAD, old), (1, other)])
    objects.put(SHARD, sound.replace(new, b""))
    (finding,) = shardstore.repair(storage, quarantine=fresh_memory()).findings.first
    assert shardstore.get_mapper(storage)["a/c/0"] == old
    assert (finding.remedy, finding.lost, "a/c/0" in finding.uncertain) == ("dropped", ("a/c/1",), True)


def test_entries_that_name_bytes_of_the_index_are_damage_for_repair_as_they_are_for_verification() -> None:
    storage, objects, chunks, sound = shard_of_own_lengths("end")
    objects.put(SHARD, sound.replace(chunks[7], chunks[7][:-1]))  # the index is one byte early: no entry ends past the object
    assert "entry-in-index" in [finding.kind for finding in shardstore.verify(storage).findings]
    (finding,) = shardstore.repair(storage, quarantine=fresh_memory()).findings.first
    assert (finding.remedy, finding.lost, finding.uncertain) == ("dropped", ("a/c/7",), ("a/c/5",))
    assert shardstore.verify(storage).errors == 0


def test_where_an_index_does_not_fit_its_object_slots_that_it_says_are_empty_are_named_too() -> None:
    """The beginning of an older, longer version lies over the newest one, which is shorter and has another chunk."""
    storage = fresh_memory()
    objects = StorageObjects(storage)
    layout = put_array(objects, "a", array_document(codecs=[*ANY_LENGTH, {"name": "crc32c"}], index_location="start"))
    older = laid_out(layout, [(n, with_checksum(bytes([n]) * 30)) for n in range(4)])
    newest = laid_out(layout, [(n, with_checksum(bytes([n]) * 20)) for n in (0, 1, 7)])
    objects.put(SHARD, older[: layout.index_nbytes] + newest[layout.index_nbytes :])
    (finding,) = shardstore.repair(storage, quarantine=fresh_memory()).findings.first
    assert {*finding.lost, *finding.uncertain} == {f"a/c/{n}" for n in range(8)}


def test_half_an_entry_does_not_say_that_bytes_are_missing() -> None:
    storage = fresh_memory()
    objects = StorageObjects(storage)
    layout = put_array(objects, "a", array_document(index_location="start"))
    sound = laid_out(layout, [(n, bytes([n]) * 9) for n in range(8)])
    entries = index_entries(layout, sound)
    entries[2] = (entries[2][0], MISSING)
    objects.put(SHARD, encode_index(layout, entries) + sound[layout.index_nbytes :])
    (finding,) = shardstore.repair(storage, quarantine=fresh_memory()).findings.first
    assert (finding.remedy, finding.lost, finding.uncertain) == ("dropped", ("a/c/2",), ())


@pytest.mark.parametrize("index_location", ["start", "end"])
@pytest.mark.parametrize("has_checksums", [True, False])
@pytest.mark.parametrize("wrong", [1, 3])
def test_under_a_corrected_index_no_place_is_certain_where_bytes_came_between_chunks(
    index_location: str, has_checksums: bool, wrong: int
) -> None:
    storage = fresh_memory()
    objects = StorageObjects(storage)
    codecs = [{"name": "bytes"}, {"name": "crc32c"}] if has_checksums else [{"name": "bytes"}]
    layout = put_array(objects, "a", array_document(codecs=codecs, index_location=index_location))
    chunks = [with_checksum(bytes([n]) * 4) if has_checksums else bytes([n]) * 4 for n in range(1, 9)]
    longer = bytearray(laid_out(layout, list(enumerate(chunks))).replace(chunks[3], chunks[3] * 2))
    index_at = 0 if index_location == "start" else len(longer) - layout.index_nbytes
    for slot in range(wrong):
        longer[index_at + 16 * slot + 2] ^= 0x40
    objects.put(SHARD, bytes(longer))
    (finding,) = shardstore.repair(storage, quarantine=fresh_memory()).findings.first
    assert shardstore.get_mapper(storage)["a/c/4"] == chunks[3]
    assert (finding.remedy, finding.uncertain) == ("corrected", tuple(f"a/c/{n}" for n in range(8)))


@pytest.mark.parametrize("wrong", [1, 2, 5])
@pytest.mark.parametrize("has_checksums", [True, False])
@pytest.mark.parametrize("has_one_length", [True, False])
def test_an_older_index_that_lies_over_the_newest_with_wrong_bytes_is_not_corrected(
    wrong: int, has_checksums: bool, has_one_length: bool
) -> None:
    """Its own checksum proves it; but newer chunks lie behind those that it names."""
    storage = fresh_memory()
    objects = StorageObjects(storage)
    codecs: list[Any] = [{"name": "bytes"}] if has_one_length else list(ANY_LENGTH)
    layout = put_array(objects, "a", array_document(codecs=[*codecs, {"name": "crc32c"}] if has_checksums else codecs))

    def chunk(number: int) -> bytes:
        data = bytes([number]) * (4 if has_one_length else 20 + number)
        return with_checksum(data) if has_checksums else data

    first = laid_out(layout, [(n, chunk(n)) for n in range(8)])
    second = appended(layout, first, index_entries(layout, first), {n: chunk(90 + n) for n in (0, 1)})
    index = bytearray(first[-layout.index_nbytes :])
    for number in range(wrong):
        index[16 * number + 3] ^= 0x21
    damaged = second[: -len(index)] + bytes(index)
    objects.put(SHARD, damaged)
    (finding,) = shardstore.repair(storage, quarantine=fresh_memory()).findings.first
    if finding.remedy == "left":
        assert (finding.reverted_count, objects.get(SHARD)) == (8, damaged)
    else:
        assert (finding.remedy, finding.lost_count + finding.uncertain_count) == ("rebuilt", 8)


@pytest.mark.parametrize("wrong", [1, 4])
def test_an_index_of_appends_that_only_erase_is_the_newest(wrong: int, tmp_path: Path) -> None:
    """They leave no chunk behind the index before."""
    file = store_of(tmp_path / "x", 3)
    array = zarr.open_array(shardstore.open(str(tmp_path / "x"), strategy="append", fsync=False), path="a")
    lengths = [file.stat().st_size]
    for slot in (1, 15, 0):
        array[4 * slot : 4 * slot + 4] = 0
        lengths.append(file.stat().st_size)
    assert len(set(np.diff(lengths))) == 1  # an index, and padding
    sound = file.read_bytes()
    spoil(file, wrong_bytes(sound, wrong, seed=3))
    finding = mend(tmp_path / "x")
    assert (finding.remedy, finding.lost, finding.reverted, finding.uncertain) == ("corrected", (), (), ())
    assert file.read_bytes() == sound


def test_places_that_only_the_order_tells_are_uncertain() -> None:
    storage = fresh_memory()
    objects = StorageObjects(storage)
    layout = put_array(objects, "a", array_document(codecs=[{"name": "bytes"}]))
    sound = laid_out(layout, [(n, bytes([n]) * 4) for n in range(8)])
    index = bytearray(sound[-layout.index_nbytes :])
    index[16 * 2 : 16 * 4] = b"\x07" * 32
    index[-4:] = bytes(4)
    objects.put(SHARD, sound[: -len(index)] + index)
    (finding,) = shardstore.repair(storage, quarantine=fresh_memory()).findings.first
    assert (finding.remedy, finding.uncertain, objects.get(SHARD)) == ("rebuilt", tuple(f"a/c/{n}" for n in range(8)), sound)


def test_entries_that_agree_with_an_order_by_the_length_of_the_object_are_uncertain() -> None:
    """A shard without one chunk that got a chunk's length longer is as long as a full one: entries are read one slot too early."""
    storage = fresh_memory()
    objects = StorageObjects(storage)
    layout = put_array(objects, "a", array_document(per_shard=(16,), shape=(64,), codecs=[{"name": "bytes"}]))
    sparse = laid_out(layout, [(n, bytes([n]) * 4) for n in range(16) if n != 3])
    index_at = len(sparse) - layout.index_nbytes
    damaged = sparse[:index_at] + b"?" * 4 + sparse[index_at : index_at + 48] + sparse[index_at + 64 : -4] + b"?" * 20
    objects.put(SHARD, damaged)
    (finding,) = shardstore.repair(storage, quarantine=fresh_memory()).findings.first
    view = shardstore.get_mapper(storage)
    wrong = {f"a/c/{n}" for n in range(16) if view.get(f"a/c/{n}") != (None if n == 3 else bytes([n]) * 4)}
    assert finding.remedy == "rebuilt"
    assert wrong
    assert wrong <= {*finding.lost, *finding.uncertain}


@pytest.mark.parametrize("has_checksums", [True, False])
def test_an_entry_that_an_older_index_has_too_is_uncertain_where_no_checksum_says_that_it_is_the_newest(has_checksums: bool) -> None:
    """Bytes of the older index came over those of the newest, as when a block of a disk is written to the wrong place."""
    storage = fresh_memory()
    objects = StorageObjects(storage)
    codecs = [*ANY_LENGTH, {"name": "crc32c"}] if has_checksums else ANY_LENGTH
    layout = put_array(objects, "a", array_document(codecs=codecs))
    first = laid_out(layout, [(n, with_checksum(bytes([n]) * (20 + n))) for n in range(8)])
    older = index_entries(layout, first)
    second = appended(layout, first, older, {n: with_checksum(bytes([90 + n]) * 30) for n in (0, 1)})
    entries = index_entries(layout, second)
    entries[0] = older[0]
    objects.put(SHARD, second[: -layout.index_nbytes] + encode_index(layout, entries)[:-4] + bytes(4))
    (finding,) = shardstore.repair(storage, quarantine=fresh_memory()).findings.first
    assert finding.remedy == "rebuilt"
    assert shardstore.get_mapper(storage)["a/c/0"] == with_checksum(bytes(20))  # the old value
    assert "a/c/0" in finding.uncertain


def test_what_is_removed_names_all_that_it_may_have_held() -> None:
    storage = fresh_memory()
    objects = StorageObjects(storage)
    layout = put_array(objects, "a", array_document(shape=(22,)))  # 6 chunks of the 8 that a shard has room for
    objects.put(SHARD, bytes(50) + b"\xff" * layout.index_nbytes)
    shard = objects.get(SHARD)
    assert shard is not None
    objects.put(SHARD, shard[:-9] + bytes(9))
    (finding,) = shardstore.repair(storage, quarantine=fresh_memory()).findings.first
    assert (finding.remedy, finding.lost) == ("deleted", tuple(f"a/c/{n}" for n in range(6)))


def test_an_empty_index_without_checksum_does_not_say_that_the_shard_is_empty() -> None:
    storage = fresh_memory()
    objects = StorageObjects(storage)
    layout = put_array(objects, "a", array_document(checksum=False))
    sound = laid_out(layout, [(n, bytes([n]) * 40) for n in range(8)])
    objects.put(SHARD, sound[: -layout.index_nbytes] + b"\xff" * layout.index_nbytes)
    (finding,) = shardstore.repair(storage, quarantine=fresh_memory()).findings.first
    assert (finding.remedy, finding.lost_count) == ("deleted", 8)
    assert finding.quarantined is not None
