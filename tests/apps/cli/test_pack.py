"""``shardstore pack``, ``reshard`` and ``unpack``."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr

from shardstore.apps.cli.arguments import parse_bytes
from shardstore.apps.cli.execution import cluster
from shardstore.errors import InvalidInput
from shardstore.maintenance.packing import pack as packing
from shardstore.maintenance.packing.pack import PackOptions
from shardstore.model.options import KEY
from shardstore.progress.steps import Lines, Step
from shardstore.snapshots.named import _BranchHierarchy
from tests.apps.cli.running import PLAIN, run, succeed
from tests.maintenance.packing.sources import stored


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "old.zarr"
    group = zarr.open_group(root, mode="w", zarr_format=2)
    group.create_array("a", data=np.arange(96).reshape(12, 8), chunks=(2, 2))
    group.create_array("line", data=np.arange(10), chunks=(2,))
    return root


def test_there_and_back(source: Path, tmp_path: Path) -> None:
    new, other, plain = (str(tmp_path / name) for name in ("new.zarr", "other.zarr", "plain.zarr"))
    out = succeed("pack", "-s", "3,2", str(source), new).out
    assert "24 → 4" in out
    assert "5 units done, 0 had been done before, 0 failed; 29 chunks moved" in out
    assert f"{new}.pack" in out
    assert "0 units done, 5 had been done before" in succeed("pack", "-s", "3,2", str(source), new).out
    assert zarr.open_array(f"{new}/a", mode="r").shards == (6, 4)
    assert "not sharded" not in succeed("reshard", "-s", '{"a": [2, 4], "*": "none"}', new, other).out
    assert zarr.open_array(f"{other}/a", mode="r").shards == (4, 8)
    succeed("unpack", other, plain)
    assert zarr.open_array(f"{plain}/a", mode="r").shards is None
    again = succeed("reshard", "-s", "2,4", plain, str(tmp_path / "again.zarr")).out
    assert "not sharded, and stays so: a, line. To have shards of its chunks, pack it" in again
    for place in (new, other, plain, str(tmp_path / "again.zarr")):
        np.testing.assert_array_equal(zarr.open_array(f"{place}/a", mode="r")[...], np.arange(96).reshape(12, 8))


def test_the_order_of_the_chunks_in_a_shard(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "old.zarr", data=np.arange(6, dtype="u1").reshape(2, 3), chunks=(1, 1), compressors=None, fill_value=9)
    for order, first in (("C", [0, 1, 2, 3, 4, 5]), ("F", [0, 3, 1, 4, 2, 5]), ("morton", [0, 1, 3, 4, 2, 5])):
        new = tmp_path / f"{order}.zarr"
        succeed("pack", "-s", "2,3", "--chunk-order", order, str(tmp_path / "old.zarr"), str(new))
        assert list((new / "c/0/0").read_bytes()[:6]) == first


def test_json(source: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.zarr"
    report = succeed("pack", "--dry-run", "--json", "--price", "put=5", str(source), str(new)).json
    assert report["dry_run"]
    assert report["price"] == pytest.approx(5 * report["requests"]["puts"] / 1000)
    assert not new.exists()
    report = succeed("pack", "--json", str(source), str(new)).json
    assert (report["complete"], report["failed"], report["missing"]) == (True, [], 0)
    assert report["objects_after"] == len(stored(new))


def test_what_failed_is_named_and_done_alone(source: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.zarr"
    shards = tmp_path / "shards.zarr"
    succeed("pack", "-s", "2,2", str(source), str(shards))
    victim = shards / "a/c.1.1"
    data = bytearray(victim.read_bytes())
    data[-20] ^= 1
    victim.write_bytes(data)
    outcome = run("reshard", "-s", "2,2", str(shards), str(new))
    assert outcome.code == 5
    assert "failed: unit c.1.1 of a: " in outcome.err
    assert "would have become about" in outcome.out
    assert "1 unit still to be done" in outcome.err
    assert "error: 1 of " in outcome.err
    assert not (new / "zarr.json").exists()
    data[-20] ^= 1
    victim.write_bytes(data)
    assert "1 unit done" in succeed("reshard", "-s", "2,2", "--only-failed", str(shards), str(new)).out
    np.testing.assert_array_equal(zarr.open_array(new / "a", mode="r")[...], np.arange(96).reshape(12, 8))


def test_parts(source: Path, tmp_path: Path) -> None:
    new = str(tmp_path / "new.zarr")
    first = succeed("pack", "-s", "2,2", "--part", "1/2", str(source), new)
    assert "still to be done" in first.err
    assert "will become about" in first.out
    assert "still to be done" not in succeed("pack", "-s", "2,2", "--part", "2/2", str(source), new).err
    zarr.open_array(f"{new}/a", mode="r")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("-s", "2,x"), 2, "give a number for each dimension"),
        (("-s", "{"), 2, "is not JSON"),
        (("-s", "[1]"), 2, "give a number"),
        (("--part", "3"), 2, "not of the form I/N"),
        (("--max-memory", "lots"), 2, "is not a number of bytes"),
        (("--max-memory", "1MiB"), 2, "at least 16 MiB"),
        (("--price", "put"), 2, "not of the form"),
        (("--price", "head=1"), 2, "prices"),
        (("--stored-as", "v3"), 2, "'codec' and 'transformer'"),
        (("--chunk-order", "Z"), 2, "--chunk-order Z is not known: there are 'C', 'F', 'morton'"),
        (("--lost-transformers", "5"), 2, "give an object"),
        (("--scheduler", "tcp://127.0.0.1:9"), 1, "no dask scheduler answers"),
        (("--include", "nothing"), 3, "no Zarr node"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_wrong_usage(
    arguments: tuple[str, ...], code: int, said: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardstore.apps.cli.pack.cluster", partial(cluster, connect_seconds=0.5))
    outcome = run("pack", *arguments, str(source), str(tmp_path / "new.zarr"))
    assert outcome.code == code, outcome.err
    assert said in outcome.err
    assert not (tmp_path / "new.zarr").exists()


def test_not_there_and_in_the_way(source: Path, tmp_path: Path) -> None:
    assert run("pack", str(tmp_path / "nowhere"), str(tmp_path / "new.zarr")).code == 3
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").write_text("mine")
    assert run("pack", str(source), str(tmp_path / "taken")).code == 6
    assert (tmp_path / "taken/file").read_text() == "mine"
    (source / "a/.zarray").write_text('{"zarr_format": 2}')
    outcome = run("pack", str(source), str(tmp_path / "new.zarr"))
    assert outcome.code == 7
    assert "'a'" in outcome.err


@pytest.mark.gate
def test_interrupted_it_ends_cleanly_and_goes_on(tmp_path: Path) -> None:
    old, new = tmp_path / "old.zarr", tmp_path / "new.zarr"
    array = zarr.create_array(old, shape=(8_000,), chunks=(2,), dtype="u1", compressors=None)
    (old / "c").mkdir()
    for i in range(4_000):
        (old / f"c/{i}").write_bytes(bytes((i % 256, 7)))
    command = [sys.executable, "-m", "shardstore", "pack", "-s", "10", "--workers", "1", str(old), str(new)]
    # Where tests run in the background SIGINT is ignored, which children inherit.
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=os.environ | PLAIN,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # Three whole shards: what lies there under a hidden name is being written.
    while sum(not path.name.startswith(".") for path in new.glob("c/*")) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert b"run the same command again" in said
    assert not (new / "zarr.json").exists()
    assert not list(new.rglob(".*"))
    before = int(succeed("pack", "-s", "10", str(old), str(new)).out.split(" had been done before")[0].rpartition(", ")[2].replace(",", ""))
    assert before > 0
    np.testing.assert_array_equal(zarr.open_array(new, mode="r")[...], array[...])


LISTS_FOR_EVER = """
import asyncio, sys
from shardstore.maintenance.packing import plan
async def list_source(storage, progress=None):
    sys.stderr.write("listing\\n"); sys.stderr.flush()
    await asyncio.sleep(600)
plan.list_source = list_source
from shardstore.__main__ import main
main()
"""


@pytest.mark.gate
def test_interrupted_while_it_lists_it_says_that_nothing_was_done(source: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LISTS_FOR_EVER, "pack", str(source), str(tmp_path / "new.zarr")],
        stderr=subprocess.PIPE,
        env=os.environ | PLAIN,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    while b"listing" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert b"nothing was done yet" in said
    assert b"is recorded" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("phase", ["look", "commit"])
def test_interrupted_on_the_way_into_a_branch_it_says_what_became_of_the_commit(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    succeed("snapshots", "init", str(tmp_path / "run.ice"))
    monkeypatch.setattr(packing if phase == "look" else _BranchHierarchy, phase, interrupt)
    done = run("pack", str(source), f"{tmp_path}/run.ice@main/old")
    assert done.code == 130
    assert ("nothing was committed" in done.err) is (phase == "look")
    assert ("may have been stored" in done.err) is (phase == "commit")


def test_a_disk_without_room(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = SimpleNamespace(f_blocks=10**6, f_bavail=0, f_frsize=4096, f_files=0, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    outcome = run("pack", str(source), str(tmp_path / "new.zarr"))
    assert outcome.code == 1
    assert "0 B are free in" in outcome.error
    assert "--no-space-check" in outcome.error
    assert "it does not fit" in succeed("pack", "--dry-run", str(source), str(tmp_path / "new.zarr")).out
    assert not (tmp_path / "new.zarr").exists()
    succeed("pack", "--no-space-check", str(source), str(tmp_path / "new.zarr"))


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("512MiB", 512 << 20), ("2GB", 2 * 10**9), ("1.5 KiB", 1536), ("65536", 65536), ("1g", 10**9), ("3 b", 3)],
)
def test_numbers_of_bytes(text: str, nbytes: int) -> None:
    assert parse_bytes("--max-memory", text) == nbytes
    with pytest.raises(InvalidInput):
        parse_bytes("--max-memory", "-" + text)


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines = Lines(lambda: now)
    for second in range(26):
        now = float(second)
        lines(Step("copying", second, 100, second * 2**20, 100 * 2**20))
    lines(Step("ending", 1))
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "copying: 2 of 100 objects, 2.0 MiB of 100.0 MiB, 1.0 MiB/s, about 1.6 min left",
        "copying: 12 of 100 objects, 12.0 MiB of 100.0 MiB, 1.0 MiB/s, about 1.5 min left",
        "copying: 22 of 100 objects, 22.0 MiB of 100.0 MiB, 1.0 MiB/s, about 1.3 min left",
        "ending: 1 objects",
    ]


def test_no_line_is_repeated_while_nothing_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines = Lines(lambda: now)
    for second in range(60):
        now = float(second)
        lines(Step("verifying", 3, 5))
    lines.end()
    assert capsys.readouterr().err.splitlines() == ["verifying: 3 of 5 objects"]


def test_what_is_done_at_once_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    lines = Lines(lambda: now)
    for _ in range(18):
        lines(Step("looking", 1))
        now += 0.1
    assert capsys.readouterr().err == ""


def test_lines_of_work_whose_bytes_are_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines = Lines(lambda: now)
    for second in range(13):
        now = float(second)
        lines(Step("repairing", second, 100, noun="shards"))
    assert capsys.readouterr().err.splitlines()[-1] == "repairing: 12 of 100 shards, 1 shards/s, about 1.5 min left"


def test_lines_of_work_of_which_only_the_objects_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    lines = Lines(lambda: now)
    for second in range(13):
        now = float(second)
        lines(Step("verifying", 2 * second, None if second < 5 else 100, nbytes=second * 2**20))
    assert capsys.readouterr().err.splitlines() == [
        "verifying: 4 objects, 2.0 MiB, 1.0 MiB/s",
        "verifying: 24 of 100 objects, 12.0 MiB, 1.0 MiB/s, about 38 s left",
    ]


def test_json_of_what_failed(source: Path, tmp_path: Path) -> None:
    (source / "a/0.0").write_bytes(b"")
    zarray: dict[str, Any] = json.loads((source / "a/.zarray").read_text())
    (source / "a/.zarray").write_text(json.dumps(zarray | {"compressor": None}))
    outcome = run("pack", "-s", "2,2", "--json", str(source), str(tmp_path / "new.zarr"))
    assert outcome.code == 5
    failed = outcome.json["failed"]
    assert failed[0]["path"] == "a"
    assert "its codecs give 32 to each" in failed[0]["error"]


def test_the_options_of_pack_are_those_of_the_function() -> None:
    """Their flags and helps are in the metadata of its fields, and nothing is left out but what other options of the command give."""
    shown = {field.name for field in fields(PackOptions) if KEY in field.metadata}
    assert {field.name for field in fields(PackOptions)} - shown == {"pins", "storage_options", "target_options"}
    flags = {
        *(
            "--stored-as",
            "--chunk-order",
            "--index-location",
            "--no-index-checksum",
            "--chunk-checksums",
            "--ome",
            "--include",
            "--exclude",
        ),
        *("--dry-run", "--overwrite", "--workers", "--retries", "--part", "--only-failed", "--max-memory", "--record", "--price"),
        *("--lost-transformers", "--no-space-check", "--no-fsync", "--message"),
    }
    of_command = {name: set(re.findall(r"--[a-z][a-z-]+", succeed(name, "--help").out)) for name in ("pack", "reshard", "unpack")}
    assert flags <= of_command["pack"]
    assert flags - of_command["reshard"] == {"--message"}
    assert flags - of_command["unpack"] == {"--message", "--stored-as", "--chunk-order", "--index-location", "--no-index-checksum"}


def test_values_on_the_command_line_become_those_of_the_function(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def record(source: str, target: str, **options: Any) -> None:
        given.append(options)
        raise InvalidInput("only looked at")

    monkeypatch.setattr("shardstore.maintenance.packing.pack.unpack", record)
    texts = ["--no-space-check", "--no-fsync", "--include", "a", "--include", "b/*", "--max-memory", "1GiB", "--price", "put=0.5"]
    for arguments in ([], [*texts, "--lost-transformers", '{"a": [2, 3]}', "--part", "3/16", "--retries", "5"]):
        assert run("unpack", *arguments, str(source), str(tmp_path / "new.zarr")).code == 2
    first, second = given
    defaults = PackOptions()
    named = {field.name for field in fields(PackOptions)} - {"pins", "target_options"}
    assert {name: first[name] for name in named} == {name: getattr(defaults, name) for name in named}
    assert {name: value for name, value in second.items() if name in named and value != first[name]} == {
        "check_space": False,
        "fsync": False,
        "include": ["a", "b/*"],
        "max_memory": 1 << 30,
        "prices": {"put": 0.5},
        "lost_transformers": {"a": (2, 3)},
        "part": "3/16",
        "retries": 5,
    }
