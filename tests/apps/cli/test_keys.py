"""``shardstore ls`` and ``shardstore cat``: the chunk-level view on the command line."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import shardstore
from shardstore.apps.cli.keys import write_out
from tests import view
from tests.apps.cli.running import VALUES, Place, run, spawn, succeed
from tests.shards import presented


def contents(place: Place) -> dict[str, bytes]:
    """Every presented value, read through the store."""
    return view.contents(shardstore.open(place.url, storage_options=place.storage_options or None))


def test_everything_is_listed_with_its_size(place: Place) -> None:
    expected = {key: len(data) for key, data in contents(place).items()}
    assert set(expected) == set(presented(place.objects))
    listed = succeed("ls", "-r", "--json", place.url, *place.options).json
    assert {entry["key"]: entry["nbytes"] for entry in listed} == expected
    assert len(listed) == len(expected)
    assert {entry["type"] for entry in listed} == {"key"}
    lines = succeed("ls", "-r", "-l", place.url, *place.options).lines
    assert {line.split()[1]: int(line.split()[0]) for line in lines} == expected
    assert sorted(succeed("ls", "-r", place.url, *place.options).lines) == sorted(expected)


def test_one_level(place: Place) -> None:
    assert succeed("ls", place.url, *place.options).lines == ["ct/", "scans/", "time/", "zarr.json"]
    assert succeed("ls", f"{place.url}/ct", *place.options).lines == ["c/", "zarr.json"]
    assert succeed("ls", place.url, "ct/c", *place.options).lines == ["ct/c/0/", "ct/c/1/", "ct/c/2/"]
    chunks = succeed("ls", "-l", place.url, "scans/pt/c/", *place.options).lines
    assert [line.split() for line in chunks] == [["16", f"scans/pt/c/{i}"] for i in range(10)]  # c/9 comes last, as a number


def test_names_are_relative_to_the_url(place: Place) -> None:
    listed = succeed("ls", "--json", f"{place.url}/ct", "c/2", *place.options).json
    assert [(e["name"], e["key"]) for e in listed] == [(f"c/2/{i}", f"ct/c/2/{i}") for i in range(7)]
    for entry in listed:
        assert succeed("cat", f"{place.url}/ct", entry["name"], *place.options).raw == contents(place)[entry["key"]]


def test_a_key_is_listed_by_itself(place: Place) -> None:
    (entry,) = succeed("ls", "--json", place.url, "ct/c/0/3", *place.options).json
    assert (entry["key"], entry["nbytes"], entry["type"]) == ("ct/c/0/3", 50, "key")
    assert succeed("ls", "-r", f"{place.url}/ct/c/0/3", *place.options).lines == ["ct/c/0/3"]


def test_stored_objects(place: Place) -> None:
    listed = succeed("ls", "-r", "--stored", "--json", place.url, *place.options).json
    expected = {key: len(place.objects.get(key) or b"") for key in place.objects.keys()}  # noqa: SIM118 - no mapping
    assert {entry["key"]: entry["nbytes"] for entry in listed} == expected
    assert succeed("ls", "--stored", place.url, "scans/pt/c", *place.options).lines == [f"scans/pt/c/{i}" for i in range(3)]


def test_a_name_is_no_prefix_of_another(place: Place) -> None:
    """``c/1`` shall not show ``c/10``, nor ``ct`` what is in ``ct2``."""
    succeed("cp", f"{place.url}/ct", f"{place.url}/ct2", *place.options)
    keys = succeed("ls", "-r", place.url, "ct", *place.options).lines
    assert [key for key in keys if not key.startswith("ct/")] == []


@pytest.mark.parametrize("arguments", [["nothing"], ["ct/c/9"], ["-r", "nothing"], ["--stored", "nothing"]])
def test_listing_nothing_is_not_found(place: Place, arguments: list[str]) -> None:
    *flags, name = arguments
    outcome = run("ls", *flags, place.url, name, *place.options)
    assert outcome.code == 3
    assert f"{name}: list the directory above it" in outcome.error


def test_damage_while_listing(local: Place) -> None:
    local.objects.put("ct/c/0/0", b"short")
    outcome = run("ls", "-r", local.url)
    assert outcome.code == 5
    assert "'ct/c/0/0'" in outcome.err
    assert "shardstore ls --stored lists the stored objects" in outcome.err
    assert "ct/c/0/0" in succeed("ls", "-r", "--stored", local.url).lines


# -- cat ---------------------------------------------------------------------------------------------------------------


def test_every_key_can_be_read(place: Place) -> None:
    for key, data in contents(place).items():
        assert succeed("cat", place.url, key, *place.options).raw == data
    assert succeed("cat", f"{place.url}/ct/c/1/2", *place.options).raw == VALUES[5:10, 10:15].tobytes()


def test_metadata_is_the_presented_one(place: Place) -> None:
    shown = json.loads(succeed("cat", place.url, "ct/zarr.json", *place.options).out)
    assert shown["chunk_grid"]["configuration"]["chunk_shape"] == [5, 5]
    assert [codec["name"] for codec in shown["codecs"]] == ["bytes"]


@pytest.mark.parametrize("text", ["0:4", "2:", ":7", "-6:", ":-6", "-6:-2", "40:90", "9:3", ":"])
@pytest.mark.parametrize("key", ["ct/c/0/0", "ct/zarr.json", "time/c/0"])
def test_ranges(local: Place, text: str, key: str) -> None:
    start, _, end = text.partition(":")
    data = contents(local)[key]
    assert succeed("cat", local.url, key, f"--range={text}").raw == data[int(start) if start else None : int(end) if end else None]


@pytest.mark.parametrize("text", ["", "1", "a:b", "1:2:3", "1.5:2"])
def test_wrong_ranges(local: Place, text: str) -> None:
    outcome = run("cat", local.url, "ct/c/0/0", f"--range={text}")
    assert outcome.code == 2
    assert "not of the form A:B" in outcome.error


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("ct/c/5/0", "there is no key"),
        ("ct", "is a node, not a key: its document is 'ct/zarr.json'"),
        ("ct/c/0", "is a directory, not a key"),
        ("nothing/at/all", "there is no key"),
    ],
)
def test_what_cannot_be_read_is_not_found(place: Place, key: str, said: str) -> None:
    outcome = run("cat", place.url, key, *place.options)
    assert outcome.code == 3
    assert said in outcome.error
    assert run("cat", f"{place.url}/{key}", *place.options).code == 3


def test_a_file_that_belongs_to_no_store(tmp_path: Path) -> None:
    (tmp_path / "notes.bin").write_bytes(b"\0\1\2" * 10)
    assert succeed("cat", str(tmp_path / "notes.bin")).raw == b"\0\1\2" * 10
    assert succeed("ls", "-l", str(tmp_path)).lines == ["            30  notes.bin"]


def test_large_values_come_in_pieces(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardstore.apps.cli.keys.write_out", partial(write_out, piece_nbytes=7))
    assert succeed("cat", local.url, "ct/c/0/0").raw == VALUES[:5, :5].tobytes()


@pytest.mark.gate
def test_bytes_reach_a_pipe_as_they_are(local: Place) -> None:
    done = spawn("cat", f"{local.url}/ct/c/0/1")
    assert (done.returncode, done.stderr) == (0, b"")
    assert np.array_equal(np.frombuffer(done.stdout, "u2").reshape(5, 5), VALUES[:5, 5:10])


def test_keys_that_climb_out_are_refused(local: Place) -> None:
    assert run("cat", local.url, "../secret").code == 2
    assert run("ls", local.url, "ct/../..").code == 2
