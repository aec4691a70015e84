"""What verification says: of valid oddities, of leftovers, of Zarr v2, of what it cannot know, and beside writers."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import s3fs
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

import shardstore
from shardstore.adapters.tools.verification import decoder
from shardstore.engine.engine import Engine
from shardstore.errors import AccessDenied, InvalidInput, NotFound
from shardstore.maintenance.census import take_census
from shardstore.maintenance.execution import Execution, Part
from shardstore.maintenance.verify.findings import ERRORS, NOTES, ErrorKind, Finding, NoteKind
from shardstore.maintenance.verify.run import VerifyReport, verify_engine
from shardstore.storage.base import Failed, Read, ReadOutcome
from shardstore.storage.local.storage import LocalStorage
from shardstore.storage.memory import MemoryStorage
from shardstore.storage.wrappers import StorageWrapper
from shardstore.testing.trace import TraceStorage
from tests.golden import FIXTURES, handmade_cases
from tests.shards import MISSING, encode_index, index_entries, sharded_arrays
from tests.stored import LocalObjects, StorageObjects, document, snapshot

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")


def verified(storage: Any, path: str = "", **options: Any) -> VerifyReport:
    return verify_engine(Engine(storage), path, execution=Execution(workers=2), **options)


def kinds_at(report: VerifyReport) -> set[tuple[str, str]]:
    return {(finding.kind, finding.key) for finding in report.findings}


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage(f"/verify-{uuid.uuid4().hex}")


@pytest.fixture
def objects(storage: MemoryStorage) -> StorageObjects:
    return StorageObjects(storage)


def make(storage: Any, compressors: Any = None, **options: Any) -> zarr.Group:
    """``ct``: 6 shards of 2 × 3 chunks, all of it written; ``time``: three chunks that are objects."""
    root = zarr.open_group(shardstore.open(storage, chunks_per_shard={"ct": (2, 3), "*": None}, **options), mode="w")
    ct = root.create_array("ct", shape=(20, 45), chunks=(5, 5), dtype="u2", fill_value=0, compressors=compressors)
    ct[...] = np.random.default_rng(0).integers(1, 9999, (20, 45), dtype="u2")
    time = root.create_array("time", shape=(6,), chunks=(2,), dtype="i8", compressors=None)
    time[...] = np.arange(6)
    return root


# -- what is valid -------------------------------------------------------------------------------------------------------


def all_stores() -> list[Path]:
    return sorted(FIXTURES.glob("*/*/store"))


@pytest.mark.parametrize("store", [s for s in all_stores() if "handmade" not in str(s)], ids=lambda s: "/".join(s.parts[-3:-1]))
@pytest.mark.parametrize("deep", [False, True])
def test_what_other_implementations_wrote_is_sound(store: Path, deep: bool) -> None:
    from shardstore.adapters.tools.verification import decoder

    before = snapshot(LocalObjects(store))
    report = verified(LocalStorage(store), decoder=decoder() if deep else None)
    assert report.is_sound, report.findings
    assert report.arrays
    assert {finding.kind for finding in report.findings} <= {"dead"}  # where a chunk was erased
    assert snapshot(LocalObjects(store)) == before


def test_what_is_odd_and_valid_is_a_note_and_what_is_damaged_an_error() -> None:
    report = verified(LocalStorage(FIXTURES / "handmade_codec/index_end/store"))
    for case in handmade_cases():
        found = [finding for finding in report.findings if finding.path == case.path]
        assert any(finding.severity == "error" for finding in found) == (case.values is None), (case.path, case.note, found)
    noted = {finding.path: finding.kind for finding in report.findings if finding.path.startswith("v_")}
    assert noted == {
        "v_aliased": "overlap",
        "v_overlapping": "overlap",
        "v_prefix_and_gaps": "dead",
        "v_dead_index": "dead",
        "v_beyond_shape": "outside",
    }


def test_every_kind_has_a_severity_and_a_remedy() -> None:
    assert set(ERRORS) == set(get_args(ErrorKind))
    assert set(NOTES) == set(get_args(NoteKind))
    assert Finding("dead", "", "", "").severity == "note"
    assert Finding("entry", "", "", "").remedy == ERRORS["entry"]


def test_a_resized_array_is_sound(storage: MemoryStorage) -> None:
    root = make(storage)
    root["ct"].resize((7, 12))  # type: ignore[union-attr]  # an array
    root["time"].resize((3,))  # type: ignore[union-attr]
    report = verified(storage)
    assert report.is_sound
    assert {finding.kind for finding in report.findings} <= {"outside"}


# -- what can be known -----------------------------------------------------------------------------------------------------


def sentences(report: VerifyReport, path: str) -> tuple[str, str]:
    (array,) = (array for array in report.arrays if array.path == path)
    return " ".join(array.detectable.found), " ".join(array.detectable.missed)


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("compressors", [None, [Crc32cCodec()], [ZstdCodec()]])
def test_it_says_what_it_cannot_detect(storage: MemoryStorage, compressors: Any, checksum: bool) -> None:
    make(storage, compressors, index_checksum=checksum)
    found, missed = sentences(verified(storage), "ct")
    assert ("every change of an index" in found) == checksum
    assert ("other changes of an index" in missed) == (not checksum)
    has_chunk_checksums = compressors is not None and isinstance(compressors[0], Crc32cCodec)
    assert ("every flipped bit inside a chunk" in found) == has_chunk_checksums
    assert ("only with --deep, and not always" in missed) == (not has_chunk_checksums)
    assert "a census or another copy shows them" in missed
    assert ("unless what is at the end then is an index itself" in found) == checksum
    assert ("a copy of an index was appended" in missed) == checksum


def test_a_copy_of_the_index_behind_a_shard_is_dead_bytes_and_changed_since_a_census(
    storage: MemoryStorage, objects: StorageObjects
) -> None:
    """No checksum tells: what is at the end is a valid index."""
    make(storage)
    key = "ct/c/0/0"
    shard = objects.get(key)
    assert shard is not None
    index_nbytes = sharded_arrays(objects)["ct"].index_nbytes
    census = shardstore.census(storage)
    objects.put(key, shard + shard[-index_nbytes:])
    report = verified(storage)
    assert report.is_sound
    (dead,) = (finding for finding in report.findings if finding.key == key)
    assert (dead.kind, f"{index_nbytes} of its" in dead.what) == ("dead", True)
    assert "changed" in {finding.kind for finding in verified(storage, census=census).findings if finding.key == key}


def test_deep_finds_what_codecs_refuse(storage: MemoryStorage, objects: StorageObjects) -> None:
    from shardstore.adapters.tools.verification import decoder

    make(storage, [ZstdCodec(checksum=True)], index_location="start")
    shard = objects.get("ct/c/0/1")
    assert shard is not None
    layout = sharded_arrays(objects)["ct"]
    offset, nbytes = index_entries(layout, shard)[2]
    at = offset + nbytes - 3
    objects.put("ct/c/0/1", shard[:at] + bytes([shard[at] ^ 1]) + shard[at + 1 :])
    assert verified(storage).findings == ()
    report = verified(storage, decoder=decoder())
    assert kinds_at(report) == {("undecodable", "ct/c/0/1")}
    assert "'ct/c/0/5'" in report.findings[0].what
    assert verified(storage, decoder=decoder(), path="time").findings == ()


def test_deep_survives_blosc_buffers_that_would_crash_it(storage: MemoryStorage, objects: StorageObjects) -> None:
    from shardstore.adapters.tools.verification import decoder

    make(storage, [BloscCodec(cname="lz4")])
    shard = objects.get("ct/c/0/0")
    assert shard is not None
    layout = sharded_arrays(objects)["ct"]
    offset, _ = index_entries(layout, shard)[3]
    objects.put("ct/c/0/0", shard[: offset + 4] + b"\xff\xff\xff\x7f" + shard[offset + 8 :])  # decodes to 2 GiB, it says
    report = verified(storage, decoder=decoder())
    assert kinds_at(report) == {("chunk-header", "ct/c/0/0")}


def test_deep_says_what_it_cannot_decode(storage: MemoryStorage, objects: StorageObjects) -> None:
    from shardstore.adapters.tools.verification import decoder

    make(storage)
    stored = document(objects, "time/zarr.json")
    stored["codecs"].append({"name": "nobody.knows"})
    objects.put("time/zarr.json", json.dumps(stored).encode())
    report = verified(storage, decoder=decoder())
    assert report.is_sound
    assert {finding.kind for finding in report.findings} == {"unknown", "not-checked"}


def test_a_header_gives_away_the_shard_of_another_array(storage: MemoryStorage, objects: StorageObjects) -> None:
    root = make(storage, [ZstdCodec()])
    store = shardstore.open(storage, chunks_per_shard=(2, 3))
    other = zarr.open_group(store).create_array("pt", shape=(20, 45), chunks=(5, 5), dtype="f8", compressors=[ZstdCodec()])
    other[...] = np.random.default_rng(1).random((20, 45))
    assert root is not None
    objects.put("ct/c/0/0", objects.get("pt/c/0/0") or b"")
    report = verified(storage)
    assert kinds_at(report) == {("chunk-header", "ct/c/0/0")}
    assert "says 200 decoded bytes, 50 were expected" in report.findings[0].what


# -- metadata ----------------------------------------------------------------------------------------------------------


def test_stale_consolidated_metadata(storage: MemoryStorage, objects: StorageObjects) -> None:
    root = make(storage)
    zarr.consolidate_metadata(root.store)
    assert verified(storage).findings == ()
    stored = document(objects, "time/zarr.json")
    objects.put("time/zarr.json", json.dumps(stored | {"shape": [4]}).encode())
    assert ("stale-consolidated", "zarr.json") in kinds_at(verified(storage))


def test_an_array_inside_an_array_is_no_array(storage: MemoryStorage, objects: StorageObjects) -> None:
    make(storage)
    objects.put("ct/sub/zarr.json", objects.get("time/zarr.json") or b"")
    report = verified(storage)
    assert ("contradiction", "ct/sub/zarr.json") in kinds_at(report)


def test_objects_below_unreadable_metadata_are_not_called_strays(storage: MemoryStorage, objects: StorageObjects) -> None:
    make(storage)
    objects.put("ct/zarr.json", b"{")
    assert kinds_at(verified(storage)) == {("not-json", "ct/zarr.json")}


@pytest.mark.parametrize("separator", [".", "/"])
def test_zarr_v2_is_verified_as_far_as_it_goes(tmp_path: Path, separator: Any) -> None:
    root = zarr.open_group(str(tmp_path), mode="w", zarr_format=2)
    x = root.create_array(
        "g/x", shape=(6, 6), chunks=(2, 3), dtype="i4", compressors=None, chunk_key_encoding={"name": "v2", "separator": separator}
    )
    x[...] = np.arange(36).reshape(6, 6) + 1
    x.attrs["units"] = "mm"
    objects = LocalObjects(tmp_path)
    report = verified(LocalStorage(tmp_path))
    assert (report.findings, [(a.path, a.objects, a.chunks) for a in report.arrays]) == ((), [("g/x", 6, 6)])
    zarr.consolidate_metadata(str(tmp_path), zarr_format=2)
    assert verified(LocalStorage(tmp_path)).findings == ()

    chunk = f"g/x/1{separator}1"
    objects.put(chunk, (objects.get(chunk) or b"")[:-1])
    objects.put(f"g/x/9{separator}9", b"x" * 24)
    objects.put("g/x/notes", b"")
    assert kinds_at(verified(LocalStorage(tmp_path))) == {
        ("chunk-size", chunk),
        ("outside", f"g/x/9{separator}9"),
        ("stray", "g/x/notes"),
    }
    (tmp_path / "g/x/.zattrs").write_text(json.dumps({"units": "cm"}))
    assert ("stale-consolidated", ".zmetadata") in {(f.kind, f.key) for f in verified(LocalStorage(tmp_path)).findings}
    zarray = json.loads((tmp_path / "g/x/.zarray").read_text())
    (tmp_path / "g/x/.zarray").write_text(json.dumps(zarray | {"chunks": [2]}))
    assert ("contradiction", "g/x/.zarray") in kinds_at(verified(LocalStorage(tmp_path)))
    (tmp_path / "g/x/.zarray").write_text(json.dumps(zarray | {"fill_value": "red"}))
    assert ("contradiction", "g/x/.zarray") in kinds_at(verified(LocalStorage(tmp_path)))
    (tmp_path / "g/x/.zarray").write_text("{")
    assert ("not-json", "g/x/.zarray") in kinds_at(verified(LocalStorage(tmp_path)))


def test_chunks_that_are_objects_have_their_checksums_checked(storage: MemoryStorage, objects: StorageObjects) -> None:
    array = zarr.create_array(
        shardstore.open(storage, chunks_per_shard=None), shape=(4,), chunks=(2,), dtype="i4", compressors=[Crc32cCodec()]
    )
    array[...] = [1, 2, 3, 4]
    assert verified(storage).findings == ()
    chunk = objects.get("c/1") or b""
    objects.put("c/1", bytes([chunk[0] ^ 16]) + chunk[1:])
    assert kinds_at(verified(storage)) == {("chunk-checksum", "c/1")}


# -- what writers left -------------------------------------------------------------------------------------------------


def test_temporary_and_lock_files_of_dead_writers_are_noted_and_those_of_live_ones_are_not(tmp_path: Path) -> None:
    import fcntl

    make(LocalStorage(tmp_path))
    assert verified(LocalStorage(tmp_path)).findings == ()
    dead = [tmp_path / "ct/c/0/.0.abcdef-123.0123456789ab.shardstore-tmp", tmp_path / "ct/.zarr.json.shardstore-lock"]
    live = [tmp_path / "ct/c/0/.1.abcdef-123.0123456789ab.shardstore-tmp", tmp_path / "time/.zarr.json.shardstore-lock"]
    held = []
    for path in (*dead, *live):
        path.write_bytes(b"half")
    for path in live:
        held.append(path.open("r+b"))
        fcntl.flock(held[-1], fcntl.LOCK_EX)
    report = verified(LocalStorage(tmp_path))
    assert kinds_at(report) == {
        ("temporary", "ct/c/0/.0.abcdef-123.0123456789ab.shardstore-tmp"),
        ("lock", "ct/.zarr.json.shardstore-lock"),
    }
    assert report.is_sound
    assert all(path.read_bytes() == b"half" for path in (*dead, *live))
    assert kinds_at(verified(LocalStorage(tmp_path), "time")) == set()
    for file in held:
        file.close()


def test_unfinished_multipart_uploads_are_noted(s3_url: tuple[str, dict[str, Any]]) -> None:
    url, options = s3_url
    make(url, storage_options=options)
    assert shardstore.verify(url, storage_options=options).findings == ()
    fs = s3fs.S3FileSystem(**options)
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    for key in (f"{prefix}/ct/c/0/0", f"{prefix}/time/c/7", f"{prefix}-beside/ct/c/0/0"):
        fs.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
    report = shardstore.verify(url, storage_options=options)
    assert kinds_at(report) == {("upload", "ct/c/0/0"), ("upload", "time/c/7")}
    assert report.is_sound
    assert kinds_at(shardstore.verify(url, path="time", storage_options=options)) == {("upload", "time/c/7")}


# -- how it runs -------------------------------------------------------------------------------------------------------


def test_parts_together_are_the_whole(storage: MemoryStorage, objects: StorageObjects) -> None:
    make(storage)
    for i in range(3):
        objects.put(f"ct/c/1/{i}", b"short")
    objects.put("notes.txt", b"")
    objects.put("time/zarr.json", b"{")
    whole = verified(storage)
    parts = [verify_engine(Engine(storage), execution=Execution(workers=1, part=Part(i + 1, 4))) for i in range(4)]
    assert sorted(kinds_at(whole)) == sorted(pair for part in parts for pair in kinds_at(part))
    assert sum(array.objects for part in parts for array in part.arrays) == sum(array.objects for array in whole.arrays)
    assert sum(any(array.objects for array in part.arrays) for part in parts) > 1


def test_what_could_not_be_read_can_be_looked_at_later(storage: MemoryStorage, objects: StorageObjects) -> None:
    make(storage)
    objects.put("ct/c/1/2", b"short")
    objects.put("notes.txt", b"")
    refusing = Refusing(storage, frozenset({"ct/c/0/1"}))
    first = verify_engine(Engine(refusing), execution=Execution(workers=1, retries=0))
    failed = frozenset(unread.key for unread in first.unread)
    assert failed == {"ct/c/0/1"}
    assert kinds_at(first) == {("stray", "notes.txt"), ("index", "ct/c/1/2")}
    rest = verify_engine(Engine(storage), execution=Execution(only=failed | {"ct/c/1/2"}))
    assert kinds_at(rest) == {("index", "ct/c/1/2")}
    assert [array.objects for array in rest.arrays] == [2, 0]


def test_progress_tells_of_how_many(storage: MemoryStorage) -> None:
    make(storage)
    for function, kind in ((verify_engine, "verify"), (take_census, "census")):
        seen: list[tuple[int, int, int | None]] = []
        function(Engine(storage), execution=Execution(workers=1), progress=lambda *told, seen=seen: seen.append(told))
        assert len(seen) == 2, kind
        assert (seen[-1][0], [total for _, _, total in seen]) == (9, [9, 9]), kind


def test_keys_that_are_nowhere_are_told(storage: MemoryStorage) -> None:
    make(storage)
    report = verify_engine(Engine(storage), execution=Execution(only=frozenset({"ct/c/0/1", "nonsense/c/0"})))
    assert [(unread.key, type(unread.error)) for unread in report.unread] == [("nonsense/c/0", NotFound)]
    assert not report.is_sound


@pytest.mark.parametrize("max_memory", [1, 2**30])
def test_memory_is_shared_by_the_tasks(storage: MemoryStorage, max_memory: int) -> None:
    """Windows of a MiB at least, of 8 at most."""
    array = zarr.create_array(
        shardstore.open(storage, chunks_per_shard=(16,)), name="big", shape=(16 * 2**20,), chunks=(2**20,), dtype="u1", compressors=None
    )
    array[...] = 1
    traced = TraceStorage(storage)
    with traced.count() as block:
        assert verify_engine(Engine(traced), execution=Execution(workers=2, max_memory=max_memory), decoder=decoder()).is_sound
    longest = max(event.nbytes for event in block.events if event.op == "read")
    assert longest == (2**20 if max_memory == 1 else 8 * 2**20)


@pytest.mark.gate
def test_it_runs_on_other_executors(tmp_path: Path) -> None:
    make(str(tmp_path))
    (tmp_path / "ct/c/1/2").write_bytes(b"short")
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        report = shardstore.verify(str(tmp_path), deep=True, executor=executor)
    assert kinds_at(report) == {("index", "ct/c/1/2")}
    assert [array.objects for array in report.arrays] == [6, 3]


def test_one_listing_one_request_a_document_and_a_shard(storage: MemoryStorage) -> None:
    make(storage)
    trace = TraceStorage(storage)
    report = verified(trace)
    assert report.findings == ()
    assert [e.op for e in trace.events if e.op not in ("read", "list")] == []
    assert sum(e.op == "list" for e in trace.events) == 1
    shards = [e.key for e in trace.events if e.op == "read" and not e.key.endswith("zarr.json")]
    assert sorted(shards) == sorted(f"ct/c/{i}/{j}" for i in range(2) for j in range(3))
    assert report.nbytes_read == 6 * (6 * 16 + 4)


def test_only_what_is_below_the_path(storage: MemoryStorage, objects: StorageObjects) -> None:
    make(storage)
    objects.put("ct/c/0/0", b"")
    assert verified(storage, "time").is_sound
    assert [array.path for array in verified(storage, "ct/").arrays] == ["ct"]
    assert not verified(storage, "ct").is_sound
    with pytest.raises(NotFound, match="no node at"):
        verified(storage, "nowhere")


class Refusing(StorageWrapper):
    """Denies access to some keys, and forwards everything else."""

    def __init__(self, inner: Any, keys: frozenset[str]) -> None:
        super().__init__(inner)
        self._keys = keys

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        outcomes: list[ReadOutcome] = await self.inner.read(reads)
        return [Failed(AccessDenied("no")) if r.key in self._keys else o for r, o in zip(reads, outcomes, strict=True)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_what_cannot_be_read_is_told_and_the_rest_looked_at(storage: MemoryStorage, objects: StorageObjects) -> None:
    make(storage)
    objects.put("ct/c/1/1", b"short")
    report = verified(Refusing(storage, frozenset({"ct/c/0/0"})))
    assert [unread.key for unread in report.unread] == ["ct/c/0/0"]
    assert kinds_at(report) == {("index", "ct/c/1/1")}
    assert not report.is_sound


def test_findings_are_bounded_and_counted(storage: MemoryStorage, objects: StorageObjects) -> None:
    make(storage)
    for i in range(1100):
        objects.put(f"notes/{i}", b"")
    report = verified(storage)
    assert report.counts == {"stray": 1100}
    assert len(report.findings) == 1000
    assert report.notes == 1100


def test_public_names_refuse_what_cannot_be(tmp_path: Path) -> None:
    make(str(tmp_path))
    with pytest.raises(InvalidInput):
        shardstore.verify(str(tmp_path), part="5/4")
    with pytest.raises(InvalidInput):
        shardstore.verify(str(tmp_path), workers=0)
    assert shardstore.verify(str(tmp_path), deep=True, part="1/1").is_sound


# -- beside writers ----------------------------------------------------------------------------------------------------


class Hooked(StorageWrapper):
    """Calls back before each round of reads."""

    def __init__(self, inner: Any, hook: Any) -> None:
        super().__init__(inner)
        self._hook = hook

    async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
        await self._hook(self.inner, reads)
        outcomes: list[ReadOutcome] = await self.inner.read(reads)
        return outcomes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_an_array_that_is_created_anew_meanwhile_is_not_damaged(storage: MemoryStorage, objects: StorageObjects) -> None:
    """With another shard shape: the shards that are there now have indexes that the metadata of before does not fit."""
    make(storage)
    other = MemoryStorage(f"/verify-{uuid.uuid4().hex}")
    root = zarr.open_group(shardstore.open(other, chunks_per_shard={"ct": (4, 2), "*": None}), mode="w")
    root.create_array("ct", shape=(20, 45), chunks=(5, 5), dtype="u2", compressors=None)[...] = 7
    new = snapshot(StorageObjects(other))
    replaced: list[str] = []

    async def hook(inner: MemoryStorage, reads: Sequence[Read]) -> None:
        from shardstore.model.generation import UNCONDITIONAL

        if not replaced and any(read.key.startswith("ct/c/") for read in reads):
            await inner.delete_many([f"ct/c/1/{i}" for i in range(3)])
            for key, data in new.items():
                if key.startswith("ct/"):
                    replaced.append(key)
                    await inner.write(key, [data], len(data), UNCONDITIONAL)

    report = verified(Hooked(storage, hook))
    assert replaced
    assert report.is_sound, report.findings


def test_damage_is_what_is_seen_twice_of_one_version(storage: MemoryStorage, objects: StorageObjects) -> None:
    """As of a writer that replaces an object in several steps, each of which is a version."""
    make(storage)
    key = "ct/c/0/1"
    good = objects.get(key) or b""
    looks = 0

    async def hook(inner: MemoryStorage, reads: Sequence[Read]) -> None:
        from shardstore.model.generation import UNCONDITIONAL

        nonlocal looks
        if any(read.key == key for read in reads):
            looks += 1
            data = (b"first", b"second", good)[min(looks, 3) - 1]
            await inner.write(key, [data], len(data), UNCONDITIONAL)

    report = verified(Hooked(storage, hook))
    assert report.findings == ()
    assert looks == 3


def test_a_file_that_somebody_leaves_while_it_runs_may_be_in_use(tmp_path: Path) -> None:
    make(str(tmp_path))
    new = tmp_path / "ct/.zarr.json.shardstore-lock"
    old = tmp_path / "time/.zarr.json.shardstore-lock"
    old.touch()

    class HookedLocal(LocalStorage):
        async def read(self, reads: Sequence[Read]) -> list[ReadOutcome]:
            if any("/c/" in read.key for read in reads):
                new.touch()
            return await super().read(reads)

    assert kinds_at(verified(HookedLocal(tmp_path))) == {("lock", "time/.zarr.json.shardstore-lock")}
    old.unlink()
    assert kinds_at(verified(LocalStorage(tmp_path))) == {("lock", "ct/.zarr.json.shardstore-lock")}


@pytest.mark.gate
def test_no_false_alarm_beside_a_writer(tmp_path: Path) -> None:
    """A writer that rewrites chunks, resizes, erases and recreates an array with other shards, all the while."""
    rng = np.random.default_rng(0)
    stop = threading.Event()
    rounds = 0

    def write() -> None:
        nonlocal rounds
        while not stop.is_set():
            shape = ((2, 3), (1, 4), (4, 2))[rounds % 3]
            store = shardstore.open(str(tmp_path), chunks_per_shard={"ct": shape, "*": None}, fsync=False, index_checksum=rounds % 2 == 0)
            group = zarr.open_group(store, mode="a")
            array = group.create_array("ct", shape=(20, 45), chunks=(5, 5), dtype="u2", overwrite=True, compressors=[Crc32cCodec()])
            for _ in range(6):
                i, j = rng.integers(0, 15), rng.integers(0, 40)
                array[i : i + 5, j : j + 5] = rng.integers(1, 999, (5, 5), dtype="u2")
            array.resize((10 + 5 * int(rng.integers(0, 4)), 45))
            rounds += 1

    make(str(tmp_path), fsync=False)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        verifications = 0
        while verifications < 25 or rounds < 10:
            report = shardstore.verify(str(tmp_path), workers=2)
            assert report.errors == 0, report.findings
            assert not report.unread
            verifications += 1
    finally:
        stop.set()
        writer.join()
    assert shardstore.verify(str(tmp_path)).is_sound


# -- things that tests of this file are sure of --------------------------------------------------------------------------


def test_an_entry_that_reaches_into_the_index_is_an_error(storage: MemoryStorage, objects: StorageObjects) -> None:
    make(storage, [ZstdCodec()])
    layout = sharded_arrays(objects)["ct"]
    shard = objects.get("ct/c/0/0") or b""
    entries = index_entries(layout, shard)
    offset, nbytes = entries[-1]
    entries[-1] = (offset, nbytes + 1)
    objects.put("ct/c/0/0", shard[: -layout.index_nbytes] + encode_index(layout, entries))
    assert ("entry-in-index", "ct/c/0/0") in kinds_at(verified(storage))
    entries[-1] = (len(shard) - layout.index_nbytes, 0)  # nothing of the index
    entries[0] = (MISSING, MISSING)
    objects.put("ct/c/0/0", shard[: -layout.index_nbytes] + encode_index(layout, entries))
    assert "entry-in-index" not in {kind for kind, _ in kinds_at(verified(storage))}
