"""``shardstore advise``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zarr

import shardstore
from shardstore.plan.advice import ArrayFacts, advise, parse_access
from shardstore.plan.reads import ReadLimits
from tests.cli.running import Place, run, succeed

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
    first = next(line for line in told.splitlines() if line.startswith("("))
    assert first.startswith(str(best))
    assert first.endswith("recommended")
    assert "unsharded" in told


def test_an_array_that_exists_is_compared(place: Place) -> None:
    answer = succeed("advise", f"{place.url}/ct", "-a", ":,1", "--json", *place.options).json
    assert answer["array"]["shape"] == [30, 35]
    assert answer["array"]["chunk_nbytes"] == 50
    everything = [*answer["candidates"], *answer["compared"]]
    assert [tuple(c["chunks_per_shard"]) for c in everything if c["is_present"]] == [(2, 3)]
    by_option = succeed("advise", place.url, "--array", "ct", "-a", ":,1", "--json", *place.options).json
    assert by_option == answer
    assert "present" in succeed("advise", f"{place.url}/ct", "-a", ":,1", *place.options).out


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
    assert gaps == [32 * 2**10, 512 * 2**10]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (described(), 2, "no --access is given"),
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
    assert "3 arrays (ct, scans/pt, time): choose one by --array" in outcome.error
    assert run("advise", local.url, "--array", "nothing", "-a", "1,:").code == 3
    assert run("advise", f"{local.url}/ct", "--shape", "1,2", "-a", "1,:").code == 2


@pytest.mark.parametrize("dtype", ["uint16", "<u2", "int16", "float16", "u2"])
def test_data_types(dtype: str) -> None:
    answer: Any = succeed(*described("-a", "1,1,1", "--json", dtype=dtype)).json
    assert answer["array"]["item_nbytes"] == 2


def test_an_array_of_a_single_chunk_is_left_alone() -> None:
    assert "leave it unsharded" in succeed(*described("-a", ":", shape="10", chunks="10")).out
