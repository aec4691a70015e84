"""``shardstore refs``: what its commands take, print and end with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.apps.cli.output import ExitCode
from tests.apps.cli.running import run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A hierarchy of two arrays."""
    opened = shardstore.open(tmp_path / "a.zarr", chunks_per_shard=(2,))
    for name in ("x", "sub/y"):
        zarr.create_array(opened, name=name, shape=(8,), chunks=(2,), dtype="i4")[...] = np.arange(1, 9)
    return tmp_path / "a.zarr"


@pytest.mark.parametrize(
    ("options", "arrays"),
    [
        ([], ["x", "sub/y"]),
        (["--include", "*"], ["x", "sub/y"]),
        (["--include", "x"], ["x"]),
        (["--exclude", "sub/*"], ["x"]),
        (["--include", "*", "--exclude", "x"], ["sub/y"]),
        (["--include", "x", "--whole-shards", "x"], ["x"]),
        (["--whole-shards", "*"], ["x", "sub/y"]),
    ],
)
def test_arrays_are_chosen(options: list[str], arrays: list[str], store: Path) -> None:
    done = run("refs", "write", str(store), str(store.parent / "set.json"), "--json", *options)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert report["arrays"] == len(arrays)
    refs = json.loads((store.parent / "set.json").read_text())["refs"]
    assert {path for path in ("x", "sub/y") if f"{path}/.zarray" in refs or f"{path}/zarr.json" in refs} == set(arrays)
    assert report["references"] == len(arrays) * (2 if "--whole-shards" in options else 4)


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("set.json", ["--record-size", "5"]),
        ("set.json", ["--missing", "fill"]),
        ("set", ["--templates"]),
        ("set", ["--json-version", "0"]),
        ("set.json", ["--include", "x", "--whole-shards", "sub/*"]),
        ("set.json", ["--exclude", "x", "--include", "x"]),
    ],
)
def test_options_that_mean_nothing_are_refused(target: str, options: list[str], store: Path) -> None:
    done = run("refs", "write", str(store), str(store.parent / target), *options)
    assert done.code == ExitCode.INVALID, done.err
    assert options[0] in done.err
    assert sorted(store.parent.iterdir()) == [store]


def test_a_set_from_its_writing_to_its_update(store: Path) -> None:
    target = str(store.parent / "set")
    assert run("refs", "write", str(store), target).code == 0
    assert run("refs", "check", target).code == 0
    zarr.open_array(shardstore.open(store), path="x")[0] = 99
    done = run("refs", "check", target, "--indices")
    assert done.code == ExitCode.CONFLICT
    assert "x/c/0: changed" in done.out
    done = run("refs", "update", target)
    assert done.code == 0, done.err
    assert "1 index read again" in done.out
    assert "pinned to 4 objects" in run("refs", "info", target).out
    both = str(store.parent / "both.json")
    assert run("refs", "combine", target, target, "--output", both).code == 0
    assert run("refs", "pins", both).code == ExitCode.INVALID
    lines = run("refs", "pins", both, "--store", str(store / "sub")).out.splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["y/c/0", "y/c/1"]
    done = run("compact", str(store), "--pins-of", both, "--json")
    assert done.code == 0, done.err


@pytest.mark.parametrize("of_group", [False, True])
@pytest.mark.parametrize("below", ["", "/sub", "/sub/y"])
def test_upkeep_of_a_group_leaves_what_a_set_holds(below: str, of_group: bool, store: Path) -> None:
    """Also where an array at the root has shards of the same names, which are others."""
    opened = shardstore.open(store, chunks_per_shard=(2,))
    zarr.create_array(opened, name="y", shape=(8,), chunks=(2,), dtype="i4")[...] = 7
    shard = store / "sub/y/c/0"
    data = shard.read_bytes()
    index = 2 * 16 + 4
    shard.write_bytes(data[:-index] + b"\0" * 1000 + data[-index:])
    target = str(store.parent / "set.json")
    assert run("refs", "write", str(store / "sub") if of_group else str(store), target).code == 0
    for command in (["compact"], ["repair", "--yes"]):
        done = run(*command, str(store) + below, "--pins-of", target)
        assert done.code == 0, done.err
        assert run("refs", "check", target).code == 0
    assert len(shard.read_bytes()) == len(data) + 1000
    assert run("compact", str(store) + below).code == 0
    assert len(shard.read_bytes()) == len(data)
