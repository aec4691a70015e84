"""``shardstore report``: where the page goes, what is refused, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardstore
from shardstore.apps.cli.output import ExitCode
from tests.apps.cli.running import run, succeed


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    store = shardstore.open("data.zarr", chunks_per_shard=(2, 2))
    group = zarr.create_group(store)
    group.create_array("a", data=np.arange(64, dtype="i4").reshape(8, 8), chunks=(2, 2))
    return tmp_path / "data.zarr"


def test_the_page_goes_into_report_html_by_default(store: Path, tmp_path: Path) -> None:
    done = succeed("report", "data.zarr")
    assert done.lines == ["report.html: 1 array, not looked at, 0 pieces of advice"]
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []
    refused = run("report", "data.zarr")
    assert refused.code == ExitCode.INVALID
    assert "report.html exists" in refused.error
    assert (tmp_path / "report.html").read_text() == page
    succeed("report", "data.zarr", "--overwrite")


def _umask() -> int:
    import os

    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_the_file_and_an_option_of_the_filesystem(store: Path, tmp_path: Path) -> None:
    succeed("report", "data.zarr", "--output", "out.html", "-o", "auto_mkdir=true")
    assert (tmp_path / "out.html").exists()
    succeed("report", "data.zarr", "--output", "a=b.html")
    assert (tmp_path / "a=b.html").exists()
    assert succeed("report", "data.zarr", "--output", "-").out.startswith("<!doctype html>")
    assert "--json prints on stdout" in run("report", "data.zarr", "--json", "--output", "x.html").error
    assert "cannot be written" in run("report", "data.zarr", "--output", "none/x.html").error
    assert "is not of the form key=value" in run("report", "data.zarr", "-o", "z.html").error


def test_json_is_the_facts_and_nothing_else(store: Path) -> None:
    document = succeed("report", "data.zarr", "--json").json
    assert document["url"] == str(store)
    assert [array["path"] for array in document["arrays"]] == ["a"]
    of_node = succeed("report", "data.zarr/a", "--json", "--fast").json
    assert (of_node["path"], of_node["objects"]) == ("a", None)


def test_a_verification_is_shown(store: Path, tmp_path: Path) -> None:
    (tmp_path / "verified.json").write_text(succeed("verify", "--deep", "--json", "data.zarr").out)
    done = succeed("report", "data.zarr", "--verified", "verified.json", "--preview", "--access", "1,:")
    assert "1 array, sound" in done.out
    assert "every chunk was read, and no error was found" in (tmp_path / "report.html").read_text()


def test_damage_is_exit_code_5_and_the_page_is_there(store: Path, tmp_path: Path) -> None:
    shard = store / "a/c/0/0"
    shard.write_bytes(shard.read_bytes()[:-1])
    done = run("report", "data.zarr")
    assert done.code == ExitCode.CORRUPT
    assert "is damaged: 1 shard" in done.err
    assert "shardstore repair" in (tmp_path / "report.html").read_text()
    assert json.loads(run("report", "data.zarr", "--json").out)["state"] == "damaged"


def test_places_without_a_node(store: Path, tmp_path: Path) -> None:
    assert run("report", "none.zarr").code == ExitCode.NOT_FOUND
    assert run("report", "data.zarr/none").code == ExitCode.NOT_FOUND
    assert not (tmp_path / "report.html").exists()


def test_a_snapshot_and_a_versioned_store(store: Path, tmp_path: Path) -> None:
    succeed("snapshots", "init", "run.ice")
    succeed("pack", "data.zarr", "run.ice@main", "-m", "all")
    succeed("report", "run.ice@main")
    page = (tmp_path / "report.html").read_text()
    assert "it never changes" in page
    assert ">snapshot<" in page
    assert "name a snapshot, such as" in run("report", "run.ice", "--output", "x.html").error
