"""``shardstore advise``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zarr

import shardstore
from shardstore.maintenance.advice import ArrayFacts, advise, parse_access
from shardstore.model.coalescing import ReadLimits
from shardstore.model.words import count, size
from tests.apps.cli.running import Place, run, succeed

S3_LIMITS = ReadLimits(512 * 2**10, 16 * 2**20)


def described(*arguments: str, shape: str = "1024,1024,1024", chunks: str = "32,32,32", dtype: str = "uint16") -> list[str]:
    return ["advise", "--shape", shape, "--chunks", chunks, "--dtype", dtype, *arguments]


def test_without_data_it_is_the_plan_for_decoded_chunks() -> None:
    answer = succeed(*described("-a", "1,:,: x3", "-a", "64,64,64", "--objects", "50", "--json")).json
    accesses = [parse_access("1,:,: x3"), parse_access("64,64,64")]
    expected = advise(ArrayFacts((1024,) * 3, (32,) * 3, 2, 65536), accesses, S3_LIMITS, most_objects=50)
    assert [tuple(c["chunks_per_shard"]) for c in answer["candidates"]] == [c.chunks_per_shard for c in expected.candidates]
    assert [c["requests"] for c in answer["candidates"]] == [c.requests for c in expected.candidates]
    assert [c["chunks_per_shard"] for c in answer["compared"]] == [None]
    assert tuple(answer["recommended"]) == expected.candidates[0].chunks_per_shard
    assert (answer["most_objects"], answer["is_over"]) == (50, False)
    assert answer["accesses"] == [{"pattern": "1,:,:", "weight": 3.0}, {"pattern": "64,64,64", "weight": 1.0}]


def test_the_recommended_line_can_be_copied() -> None:
    told = succeed(*described("-a", "1,:,:")).out
    answer = succeed(*described("-a", "1,:,:", "--json")).json
    best = tuple(answer["recommended"])
    assert told.endswith(f"recommended: chunks_per_shard={best}\n")
    (marked,) = [line for line in told.splitlines() if line.startswith("*  ")]
    assert marked.startswith(f"*  {best}  ")
    assert "\n* recommended\n" in told
    assert "unsharded" in told


def test_an_array_that_exists_is_compared(place: Place) -> None:
    answer = succeed("advise", f"{place.url}/ct", "-a", ":,1", "--json", *place.options).json
    assert answer["array"]["shape"] == [30, 35]
    assert answer["array"]["chunk_nbytes"] == 50
    everything = [*answer["candidates"], *answer["compared"]]
    assert [tuple(c["chunks_per_shard"]) for c in everything if c["is_present"]] == [(2, 3)]
    by_option = succeed("advise", f"{place.url}/ct/", "-a", ":,1", "--json", *place.options).json
    assert by_option == answer
    told = succeed("advise", f"{place.url}/ct", "-a", ":,1", *place.options).out
    assert "\n=  (2, 3)  " in told
    assert "= present\n" in told


def test_sizes_are_those_of_the_stored_chunks(tmp_path: Path) -> None:
    store = shardstore.open(tmp_path / "x.zarr", chunks_per_shard=(4,))
    array = zarr.create_array(store, name="x", shape=(80_000,), chunks=(1000,), dtype="i8", fill_value=0)
    array[:40_000] = 1  # compresses well
    stored = succeed("advise", str(tmp_path / "x.zarr"), "-a", "5000", "--json").json["array"]["chunk_nbytes"]
    listed = succeed("ls", "-r", "--json", str(tmp_path / "x.zarr"), "x/c").json
    assert stored == round(sum(entry["nbytes"] for entry in listed) / len(listed)) < 1000
    assert succeed("advise", str(tmp_path / "x.zarr"), "-a", "5000", "--json", "--fast").json["array"]["chunk_nbytes"] == 8000


def test_limits_are_those_of_the_kind_of_storage(local: Place) -> None:
    gaps = [
        succeed("advise", f"{local.url}/ct", "-a", ":,1", "--json", *kind).json["limits"]["gap_bytes"] for kind in ([], ["--kind", "s3"])
    ]
    assert gaps == [8 * 2**10, 512 * 2**10]


@pytest.mark.parametrize("width", [200, 100, 80, 60, 20])
def test_no_number_is_cut_on_a_screen(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    asked = described("-a", "1,:,: x3", "-a", "64,64,64", "-a", ":,1,1", shape="102400,10240,10240", chunks="128,128,128")
    told = succeed(*asked, "--show", "3").out
    monkeypatch.setattr("shardstore.apps.cli.advise.columns_of_screen", lambda: width)
    narrow = succeed(*asked, "--show", "3").out
    answer = succeed(*asked, "--json").json
    assert "requests: #1 is 1,:,: x3, #2 is 64,64,64, #3 is :,1,1\n" in narrow
    for candidate in answer["candidates"][:3]:
        assert str(tuple(candidate["chunks_per_shard"])) in narrow
        assert size(candidate["nbytes"]) in narrow
        assert all(count(prediction["requests"]) in narrow for prediction in candidate["predictions"])
    if width == 200:
        assert narrow == told
        assert "decoded" in told
    elif width >= 80:
        table = [line for line in narrow.splitlines() if " #1 " in line or "(" in line.replace("(--json", "")[:20]]
        assert max(map(len, table)) <= width
        missing = {80: "shard shape, decoded, stored, one-chunk write", 100: "decoded, one-chunk write"}[width]
        assert f"\nno room for: {missing} (--json has all)\n" in narrow
    else:
        assert f"    fetched: {size(answer['candidates'][0]['nbytes'])}\n" in narrow


def test_an_access_longer_than_the_array_is_warned_of() -> None:
    outcome = succeed(*described("-a", "1000,:,:", shape="64,128,128"))
    assert outcome.err == "warning: access '1000,:,:' is longer than axis 0, which has 64 elements: all of it is taken\n"
    assert succeed(*described("-a", "64,:,:", shape="64,128,128")).err == ""


def test_chunks_that_suit_no_shard_are_told() -> None:
    told = succeed(*described("-a", ":,1,1 x2", "-a", "1,:,:", shape="3650,721,1440", chunks="1,721,1440", dtype="f4")).out
    assert "every shard shape reads at least 1,038,240 times what ':,1,1' needs: chunks are too long along axis 1, 2; rechunk" in told
    assert told.count("rechunk") == 1
    assert "rechunk" not in succeed(*described("-a", "32,32,32")).out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (described(), 2, "say what one read takes"),
        (described("-a", "1,2"), 2, "2 dimensions, the array has 3"),
        (described("-a", "1,:,what"), 2, "is not understood"),
        (described("-a", "1,:,:", "--objects", "0"), 2, "0 objects"),
        (described("-a", "1,:,:", shape="ten"), 2, "--shape 'ten' is not a list of sizes"),
        (described("-a", "1,:,:", chunks="0,1,1"), 2, "have to be positive"),
        (described("-a", "1,:,:", dtype="float99"), 2, "--dtype 'float99' is not known"),
        (["advise", "-a", "1", "--shape", "10"], 2, "--shape, --chunks and --dtype"),
    ],
)
def test_wrong_questions(arguments: list[str], code: int, said: str) -> None:
    outcome = run(*arguments)
    assert outcome.code == code
    assert said in outcome.error


def test_which_array(local: Place) -> None:
    outcome = run("advise", local.url, "-a", "1,:")
    assert outcome.code == 2
    assert "3 arrays (ct, scans/pt, time): choose one by the URL" in outcome.error
    assert run("advise", f"{local.url}/nothing", "-a", "1,:").code == 3
    assert run("advise", f"{local.url}/ct", "--shape", "1,2", "-a", "1,:").code == 2


@pytest.mark.parametrize("dtype", ["uint16", "<u2", "int16", "float16", "u2"])
def test_data_types(dtype: str) -> None:
    answer: Any = succeed(*described("-a", "1,1,1", "--json", dtype=dtype)).json
    assert answer["array"]["item_nbytes"] == 2


def test_an_array_of_a_single_chunk_is_left_alone() -> None:
    assert "leave it unsharded" in succeed(*described("-a", ":", shape="10", chunks="10")).out


@pytest.mark.parametrize("access", [":", "1,:"])
def test_an_array_without_dimensions_is_left_alone(access: str, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a.zarr", shape=(), chunks=(), dtype="f8")[...] = 1
    told = succeed("advise", str(tmp_path / "a.zarr"), "-a", access).out
    assert "leave it unsharded" in told
    assert succeed("advise", str(tmp_path / "a.zarr"), "-a", access, "--json").json["recommended"] is None
