"""``shardstore verify`` and ``shardstore census``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zarr

import shardstore
from shardstore.apps.cli import checking
from shardstore.apps.cli.execution import WorkOptions
from shardstore.apps.cli.output import show_more, wrapped
from shardstore.errors import StorageError
from shardstore.maintenance.census import Unread
from shardstore.storage.base import Failed
from shardstore.storage.local.storage import LocalStorage
from tests.apps.cli.running import PLAIN, Place, run, succeed
from tests.clusters import dask_cluster
from tests.stored import LocalObjects, document, snapshot


def test_a_sound_store(place: Place) -> None:
    outcome = succeed("verify", place.url, *place.options)
    assert outcome.err == ""
    assert outcome.lines[0].endswith(": sound: 0 errors, 0 notes")
    assert outcome.lines[-1] == "--explain shows which damage this can find, and which it cannot"
    assert "detects every change" not in outcome.out
    told = " ".join(succeed("verify", place.url, "--explain", *place.options).out.split())
    assert "ct 6 objects, 21 chunks, 0 errors" in told
    assert "detects every change of an index" in told
    assert "cannot detect a flipped bit inside a chunk: without a checksum it shows only with --deep, and not always" in told


def test_json_has_everything(place: Place) -> None:
    report = succeed("verify", place.url, "--json", *place.options).json
    assert (report["errors"], report["notes"], report["findings"], report["unread"]) == (0, 0, [], [])
    assert [array["path"] for array in report["arrays"]] == ["ct", "scans/pt", "time"]
    assert report["arrays"][0]["detectable"]["missed"]


def test_errors_have_their_exit_code_and_notes_have_none(place: Place) -> None:
    place.objects.put("ct/c/0/1", b"short")
    place.objects.put("notes.txt", b"note")
    outcome = run("verify", place.url, *place.options)
    assert (outcome.code, outcome.err) == (5, "error: 1 error was found\n")
    assert outcome.lines[0].endswith(": damaged: 1 error, 1 note")
    told = " ".join(outcome.out.split())
    assert "error index ct/c/0/1: its index cannot be read: the object has 5 bytes" in told
    assert "note stray notes.txt: 4 bytes that belong to no node. Nothing of the hierarchy refers to it" in told
    as_json = run("verify", place.url, "--json", *place.options)
    assert as_json.code == 5
    error, note = as_json.json["findings"]
    assert (error["severity"], error["kind"], error["key"], error["path"]) == ("error", "index", "ct/c/0/1", "ct")
    assert error["remedy"].startswith("restore the object")
    assert (note["severity"], note["kind"]) == ("note", "stray")
    place.objects.delete("ct/c/0/1")
    assert succeed("verify", place.url, *place.options).lines[0].endswith(": sound: 0 errors, 1 note")


def test_what_is_found_many_times_is_said_once(local: Place) -> None:
    for i in range(12):
        local.objects.put(f"ct/stray{i}.txt", b"x" * i)
    for key in ("ct/c/0/0", "ct/c/0/1"):
        shard = bytearray(local.objects.get(key) or b"")
        shard[-1] ^= 1
        local.objects.put(key, bytes(shard))
    local.objects.put("ct/c/0/2", b"short")
    outcome = run("verify", local.url)
    told = " ".join(outcome.out.split())
    # Those whose checksums differ are alike, though no two have the same; what is short is another thing.
    assert told.count("error index ct/c/0/") == 2
    assert "write its chunks again and 1 more like this: ct/c/0/1 error index ct/c/0/2: its index cannot be read: the object has 5" in told
    assert told.count("note stray") == 1
    assert "and 11 more like this: ct/stray1.txt, ct/stray10.txt, " in told
    assert "ct/stray6.txt and 3 more ct 6 objects" in told
    assert len(run("verify", local.url, "--json").json["findings"]) == 15
    info = " ".join(run("info", local.url).out.split())
    assert info.count("damaged ct/c/0/") == 2
    assert "and 1 more like this: ct/c/0/1 damaged ct/c/0/2: its index is damaged: the object has 5 bytes" in info


def test_several_findings_in_one_object_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    show_more(["a/c/0", "a/c/0", "a/c/1"], "   ")
    assert capsys.readouterr().out == "   and 3 more like this, in 2 objects: a/c/0, a/c/1\n"


def test_arrays_of_one_kind_share_what_is_said_of_them(local: Place) -> None:
    lines = succeed("verify", local.url, "--explain").lines
    assert lines[3:8] == ["ct  6 objects, 21 chunks, 0 errors", lines[4], "time  2 objects, 2 chunks, 0 errors", "", "in ct, scans/pt"]
    assert sum("cannot detect" in line for line in lines) == 5


@pytest.mark.parametrize("command", ["verify", "info"])
def test_sentences_are_not_wrapped_where_there_is_no_screen(local: Place, command: str) -> None:
    local.objects.put("ct/c/0/1", b"short")
    local.objects.put("ct/notes.txt", b"note")
    first, *lines = run(command, local.url, "--explain").lines
    assert local.url in first
    assert max(map(len, lines)) > 100
    assert [line for line in lines if line != line.rstrip()] == []
    assert not any(line.startswith(" " * 12) for line in lines)  # a line that goes on


def test_verify_says_that_a_pack_has_not_ended(local: Place, tmp_path: Path) -> None:
    target = str(tmp_path / "packed.zarr")
    succeed("pack", local.url, target, "--part", "1/4", "--quiet")
    refused = run("verify", target)
    assert (refused.code, f"{target} is not complete: a pack into it has not ended" in refused.error) == (3, True)
    succeed("pack", local.url, target, "--quiet")
    assert succeed("verify", target).lines[0] == f"{target}: sound: 0 errors, 0 notes"


def test_keys_are_never_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardstore.apps.cli.output.columns_of_screen", lambda: 80)
    key = "a/" * 60 + "zarr.json"
    text = wrapped("note  ", f"{key}: it is long. {'word ' * 30}", indent=2).plain
    assert key in text
    lines = text.splitlines()
    assert [line.startswith(" " * 8) for line in lines[1:]] == [True] * (len(lines) - 1)
    assert all(len(line) <= 80 for line in lines if key not in line)


def test_a_node_alone(place: Place) -> None:
    place.objects.put("ct/c/0/1", b"short")
    report = succeed("verify", f"{place.url}/time", "--json", *place.options).json
    assert [array["path"] for array in report["arrays"]] == ["time"]


def test_parts_and_workers(local: Place) -> None:
    for i in range(3):
        local.objects.put(f"ct/c/1/{i}", b"short")
    found = [run("verify", local.url, "--part", f"{i}/3", "--workers", "1", "--json").json["errors"] for i in (1, 2, 3)]
    assert sum(found) == 3
    assert run("verify", local.url, "--part", "4/3").code == 2
    assert "not of the form I/N" in run("verify", local.url, "--part", "x").error
    assert "not a positive whole number" in run("verify", local.url, "--workers", "0").error


def test_deep_and_against(local: Place, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy.zarr")
    succeed("cp", local.url, copy)
    assert succeed("verify", local.url, "--deep", "--against", copy).lines[0].endswith(": sound: 0 errors, 0 notes")
    stored = document(local.objects, "time/zarr.json")
    local.objects.put("time/zarr.json", json.dumps(stored | {"attributes": {"units": "s"}}).encode())
    local.objects.put("time/c/1", b"12345678" * 2)
    outcome = run("verify", local.url, "--against", copy)
    assert outcome.code == 5
    told = " ".join(outcome.out.split())
    assert "error differs time/zarr.json: it differs from the other copy's in attributes" in told
    assert "error differs time/c/1: its 16 bytes differ from the other copy's, from byte 0 on" in told
    nothing = run("verify", local.url, "--against", str(tmp_path / "nothing"))
    assert (nothing.code, "no node to compare with" in nothing.error) == (3, True)


def test_against_takes_options_of_its_own(local: Place, s3_url: tuple[str, dict[str, Any]]) -> None:
    bucket, options = s3_url
    succeed("cp", local.url, f"{bucket}/copy.zarr", "--target-options", json.dumps(options))
    outcome = succeed("verify", local.url, "--against", f"{bucket}/copy.zarr", "--target-options", json.dumps(options))
    assert outcome.lines[0].endswith(": sound: 0 errors, 0 notes")


def test_nothing_there(local: Place) -> None:
    assert run("verify", f"{local.url}/nowhere/at/all").code == 3
    assert run("census", f"{local.url}/nowhere/at/all").code == 3
    assert run("verify", local.url, "--census", f"{local.url}/zarr.json").code == 5
    assert run("verify", local.url, "--census", "nowhere.census").code == 3


def test_a_scheduler(local: Place) -> None:
    local.objects.put("ct/c/0/1", b"short")
    with dask_cluster(threads_per_worker=2, processes=False) as client:
        outcome = run("verify", local.url, "--scheduler", client.cluster.scheduler_address, "--json")
        assert outcome.code == 5
        assert [finding["key"] for finding in outcome.json["findings"]] == ["ct/c/0/1"]


# -- census ------------------------------------------------------------------------------------------------------------


def test_the_table(place: Place) -> None:
    lines = succeed("census", place.url, *place.options).lines
    assert lines[0].split() == ["array", "grid", "of", "chunks", "chunks", "of", "objects", "of", "bytes"]
    assert lines[1].split()[:7] == ["ct", "6", "×", "7", "21", "42", "50.0%"]
    assert [line.split()[0] for line in lines[1:]] == ["ct", "scans/pt", "time"]


def test_census_as_json(place: Place) -> None:
    counted = succeed("census", place.url, "--json", *place.options).json
    ct = counted["arrays"][0]
    assert (ct["path"], ct["chunks"], ct["possible_chunks"], ct["objects"], ct["possible_objects"]) == ("ct", 21, 42, 6, 9)
    assert (ct["chunk_grid"], ct["chunks_per_object"], ct["sharded"], counted["damaged"]) == ([6, 7], [2, 3], True, [])


def test_a_census_shows_later_what_is_gone(place: Place, tmp_path: Path) -> None:
    file = str(tmp_path / "x.census")
    succeed("census", place.url, "--output", file, "--contents", *place.options)
    assert succeed("verify", place.url, "--census", file, *place.options).lines[0].endswith(": sound: 0 errors, 0 notes")
    place.objects.delete("ct/c/0/1")
    outcome = run("verify", place.url, "--census", file, *place.options)
    assert outcome.code == 5
    assert "error  missing  ct/c/0/1: the census has such an object" in outcome.out


def test_damaged_shards_have_their_exit_code(local: Place) -> None:
    local.objects.put("ct/c/0/1", b"short")
    outcome = run("census", local.url)
    assert outcome.code == 5
    assert outcome.err == "error: 1 shard could not be counted, the first of them ct/c/0/1: its index is damaged\n"
    assert "15  42" in outcome.out


@pytest.mark.gate
def test_pictures(local: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = succeed("census", local.url, "--draw").lines
    ct = drawn[drawn.index("ct") + 1 :][:8]
    assert ct == ["┌───────┐", *["│███████│"] * 3, *["│       │"] * 3, "└───────┘"]
    monkeypatch.setattr(checking, "has_colours", lambda: True)
    assert "│▀▀▀▀▀▀▀│" in succeed("census", local.url, "--draw").out
    assert "not of the form I,J" in run("census", local.url, "--draw", "--axes", "x").error
    assert "are not two axes" in run("census", local.url, "--draw", "--axes", "1,1").err
    pytest.importorskip("matplotlib")
    for name in ("ct.png", "ct.svg"):
        succeed("census", local.url, "--picture", str(tmp_path / name), "--axes", "1,0")
        assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.parametrize(("share", "shade"), [(0.0, " "), (1e-9, "░"), (0.5, "▒"), (0.999, "▓"), (1.0, "█")])
def test_anything_that_exists_is_seen(share: float, shade: str) -> None:
    assert checking._shade(share) == shade


def test_a_census_in_parts(local: Place, tmp_path: Path) -> None:
    files = [str(tmp_path / f"{i}.census") for i in (1, 2)]
    for i, file in enumerate(files, 1):
        succeed("census", local.url, "--part", f"{i}/2", "--output", file)
    local.objects.delete("ct/c/0/1")
    local.objects.delete("ct/c/1/2")
    found = run("verify", local.url, "--json", *(word for file in files for word in ("--census", file))).json["findings"]
    assert [(finding["kind"], finding["key"]) for finding in found] == [("missing", "ct/c/0/1"), ("missing", "ct/c/1/2")]


@pytest.mark.parametrize("command", ["verify", "census", "compact", "repair"])
def test_what_failed_is_written_and_can_be_fed_back(command: str, local: Place, tmp_path: Path) -> None:
    failures = tmp_path / "failures"
    more = ["--dry-run"] if command == "repair" else []
    succeed(command, local.url, "--failures", str(failures), *more)
    assert failures.read_text() == ""
    WorkOptions(failures=failures).write_failures(
        [Unread("ct/c/0/1", StorageError("the server is tired")), Unread("ct/c/1/2", StorageError("as before"))]
    )
    assert json.loads(failures.read_text().splitlines()[0]) == {"key": "ct/c/0/1", "error": "the server is tired"}
    found = succeed(command, local.url, "--failed-from", str(failures), "--json", *more).json
    looked_at = found["shards"] if "shards" in found else sum(array["objects"] for array in found["arrays"])
    assert looked_at == 2
    failures.write_text("what is this")
    refused = run(command, local.url, "--failed-from", str(failures), *more)
    assert (refused.code, "is not what --failures has written" in refused.error) == (2, True)
    assert run(command, local.url, "--failed-from", str(tmp_path / "nowhere")).code == 2
    before = snapshot(local.objects)
    assert run(command, local.url, "--failures", str(tmp_path / "nowhere/failures")).code == 2
    failures.write_text('{"key": "nonsense/c/0", "error": ""}\n')
    absent = run(command, local.url, "--failed-from", str(failures), *more)
    assert (absent.code, "nonsense/c/0" in absent.err) == (3, True)
    failures.write_text('{"key": 5}\n')
    assert run(command, local.url, "--failed-from", str(failures)).code == 2
    assert snapshot(local.objects) == before


@pytest.mark.parametrize("command", [["verify"], ["census"], ["compact"], ["repair", "--yes"]])
def test_one_object_that_cannot_be_read_concerns_no_other(
    command: list[str], local: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = local.objects.get("ct/c/1/2")
    assert shard is not None
    local.objects.put("ct/c/1/2", shard[:-1] + bytes([shard[-1] ^ 1]))
    failures = tmp_path / "failures"
    read_some = LocalStorage.read_blocking

    def breaks(storage: LocalStorage, reads: Any) -> Any:
        outcomes = read_some(storage, reads)
        broken = Failed(StorageError("the disk is tired"))
        return [broken if read.key == "ct/c/0/1" else outcome for read, outcome in zip(reads, outcomes, strict=True)]

    monkeypatch.setattr(LocalStorage, "read_blocking", breaks)
    outcome = run(*command, local.url, "--retries", "0", "--failures", str(failures))
    assert outcome.code != 0
    assert [json.loads(line)["key"] for line in failures.read_text().splitlines()] == ["ct/c/0/1"]
    if command == ["repair", "--yes"]:
        assert local.objects.get("ct/c/1/2") == shard
    monkeypatch.undo()
    assert run(*command, local.url, "--failed-from", str(failures)).code == 0


def test_results_that_cannot_be_written_are_refused_before_the_work(local: Place, tmp_path: Path) -> None:
    for option in ("--output", "--picture"):
        outcome = run("census", local.url, option, str(tmp_path / "nowhere/file.png"))
        assert (outcome.code, option in outcome.error) == (2, True)
    failures, output = tmp_path / "failures", tmp_path / "all.census"
    failures.write_text('{"key": "ct/c/0/1", "error": ""}\n')
    succeed("census", local.url, "--output", str(output))
    before = output.read_bytes()
    assert run("census", local.url, "--failed-from", str(failures), "--output", str(output)).code == 2
    assert output.read_bytes() == before


@pytest.mark.parametrize("command", ["verify", "census", "compact", "repair"])
def test_options_of_long_work(command: str, local: Place) -> None:
    succeed(command, local.url, *(["--dry-run"] if command == "repair" else []), "--workers", "2", "--retries", "0", "--max-memory", "1MiB")
    assert run(command, local.url, "--max-memory", "much").code == 2
    assert run(command, local.url, "--max-memory", "0").code == 2
    assert run(command, local.url, "--workers", "0").code == 2


@pytest.mark.parametrize(
    "command",
    [["verify", "--deep"], *(pytest.param(one, marks=pytest.mark.gate) for one in (["census"], ["compact"], ["repair", "--yes"]))],
)
def test_interrupted_it_ends_cleanly(command: list[str], tmp_path: Path) -> None:
    store = shardstore.open(str(tmp_path / "a.zarr"), chunks_per_shard=(1,), fsync=False)
    zarr.create_array(store, shape=(300,), chunks=(1,), dtype="u1", compressors=None, fill_value=0)[...] = 1
    before = snapshot(LocalObjects(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, *command, "--workers", "1", str(tmp_path / "a.zarr")],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | PLAIN,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    out, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert b"warning: " in said
    assert b"Traceback" not in said
    assert out == b""
    assert snapshot(LocalObjects(tmp_path)) == before


INTERRUPTED = """
import os, signal
import shardstore.maintenance.execution as execution
from shardstore.apps.cli.app import main

take = execution._TasksInFlight._take

def take_and_interrupt(run, future):
    take(run, future)
    os.kill(os.getpid(), signal.SIGINT)

execution._TasksInFlight._take = take_and_interrupt
main()
"""
