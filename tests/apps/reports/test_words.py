"""Which advice is given, on layouts as people have them; and that ordinary ones get none."""

from __future__ import annotations

import shlex
from dataclasses import replace
from math import prod
from typing import Any

import pytest

from shardstore.apps.reports.words import Advice, advice_on_array, advice_on_store
from shardstore.maintenance.advice import parse_access
from shardstore.maintenance.survey.run import ArraySurvey, ConsolidatedMetadata, Survey, Unreadable, Usage

MiB = 2**20


def array(
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    per_shard: tuple[int, ...] | None = None,
    *,
    itemsize: int = 4,
    ratio: float = 0.5,
    usage: dict[str, Any] | None = None,
) -> ArraySurvey:
    """An array all of whose chunks exist, each compressed by ``ratio``."""
    grid = [-(-n // c) for n, c in zip(shape, chunks, strict=True)]
    objects = prod(-(-g // p) for g, p in zip(grid, per_shard or (1,) * len(grid), strict=True))
    nbytes = int(prod(grid) * prod(chunks) * itemsize * ratio)
    counted = Usage(objects, objects, 0, nbytes, prod(grid), prod(grid), nbytes, 0, 0, 0, 0, 0, 0, 0)
    return ArraySurvey(
        path="a",
        is_sharded=per_shard is not None,
        reason="",
        shape=shape,
        dimension_names=None,
        data_type="float32",
        item_nbytes=itemsize,
        chunk_shape=chunks,
        codecs=(),
        stored_shape=tuple(c * p for c, p in zip(chunks, per_shard or (1,) * len(chunks), strict=True)),
        stored_codecs=(),
        chunks_per_shard=per_shard,
        index_location=None if per_shard is None else "end",
        index_checksum=None if per_shard is None else True,
        by_transformer=False,
        usage=replace(counted, **(usage or {})),
    )


def counted(found: ArraySurvey, **usage: Any) -> ArraySurvey:
    """The same array with other counts."""
    assert found.usage is not None
    return replace(found, usage=replace(found.usage, **usage))


def advised(found: ArraySurvey, *accesses: str, kind: str = "s3") -> list[Advice]:
    return list(advice_on_array(found, kind, lambda path: f"s3://b/x.zarr/{path}", [parse_access(text) for text in accesses]))


ORDINARY = {
    "image volume": array((2048, 2048, 2048), (64, 64, 64), (4, 4, 4), itemsize=2),
    "climate in months": array((120000, 721, 1440), (24, 721, 1440), (8, 1, 1)),
    "climate in tiles": array((120000, 721, 1440), (240, 90, 90), (2, 4, 4)),
    "a coordinate": array((120000,), (120000,)),
    "a coordinate in chunks": array((120000,), (1000,)),
    "small array": array((512, 512), (64, 64), (2, 2)),
    "small array of many small shards": array((640, 640), (64, 64), (2, 2)),
    "table": array((10**9,), (10**6,), (16,), itemsize=8),
    "scalar": array((), ()),
    "pathology slide": array((120000, 100000, 3), (512, 512, 3), (16, 16, 1), itemsize=1),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_layouts_get_no_advice(name: str) -> None:
    assert advised(ORDINARY[name]) == []


@pytest.mark.parametrize(
    ("found", "kind", "number", "verb"),
    [
        (array((10000, 2048, 2048), (64, 64, 64)), "many-objects", "160,768 objects", "pack"),
        (
            array((20000, 4096, 4096), (64, 64, 64), (1, 1, 4)),
            "many-objects",
            "320,512 shards",
            "reshard",
        ),
        (array((4096, 4096), (16, 16), (4, 4)), "small-shards", "8.0 KiB", "reshard"),
        (
            array((4096, 4096, 64), (128, 128, 64), (1, 1, 1)),
            "few-chunks",
            "at most 1 chunk:",
            "reshard",
        ),
        (
            array((40960, 40960, 40960), (64, 64, 64), (64, 64, 64)),
            "large-shards",
            "128.0 GiB",
            "reshard",
        ),
    ],
)
def test_objects_of_unfortunate_sizes(found: ArraySurvey, kind: str, number: str, verb: str) -> None:
    (advice,) = advised(found)
    assert (advice.kind, advice.command) == (kind, f"shardstore {verb} s3://b/x.zarr/a NEW.zarr")
    assert number in advice.what
    assert advised(found, kind="snapshot") == []  # its objects are the chunk files of a versioned store


def test_dead_bytes_from_a_quarter_on() -> None:
    found = array((512, 512), (64, 64), (2, 2), usage={"stored_nbytes": 4 * MiB, "dead_nbytes": MiB})
    assert advised(found) == []
    (advice,) = advised(counted(found, dead_nbytes=MiB + 1))
    assert advice.kind == "dead-bytes"
    assert "1.0 MiB of 4.0 MiB are dead (25%)" in advice.what
    assert advice.command == "shardstore compact s3://b/x.zarr/a"


def test_chunks_outside_damage_and_missing_checksums() -> None:
    found = array((512, 512), (64, 64), (2, 2), usage={"chunks_outside": 3, "chunk_nbytes_outside": 9, "damaged_objects": 2})
    kinds = [(advice.kind, advice.command) for advice in advised(replace(found, index_checksum=False))]
    assert kinds == [
        ("damaged", "shardstore repair s3://b/x.zarr/a"),
        ("outside", "shardstore verify s3://b/x.zarr/a"),
        ("no-index-checksum", "shardstore reshard -s 2,2 s3://b/x.zarr/a NEW.zarr"),
    ]


def test_advice_for_a_way_of_reading() -> None:
    found = array((1024, 1024, 1024), (64, 64, 64), (16, 1, 1))
    (advice,) = advised(found, "1,:,:")
    assert advice.kind == "access"
    assert "takes 512 requests" in advice.what
    assert advice.command.startswith("shardstore reshard -s ")
    per_shard = tuple(map(int, advice.command.split()[3].split(",")))
    assert advised(replace(found, chunks_per_shard=per_shard), "1,:,:") == []  # whoever follows it is not told again
    assert advised(found, "1,:") == []  # of another rank
    (packed,) = advised(array((1024, 1024, 1024), (64, 64, 64)), "1,:,:")
    assert packed.command.startswith("shardstore pack -s ")


def test_sparse_arrays_and_single_large_chunks_are_left_alone() -> None:
    sparse = array((100_000, 100_000), (50, 50), (2, 2), usage={"objects": 120, "chunks": 130, "stored_nbytes": 10_000})
    assert advised(sparse) == []  # larger shards would be more objects, each with a larger index
    large = array((256, 256, 30_720), (256, 256, 256), (1, 1, 1), itemsize=128, usage={"stored_nbytes": 120 * 1400 * MiB})
    assert advised(large) == []  # no shard is smaller than its chunk


def test_means_are_of_all_objects_whose_bytes_are_counted() -> None:
    found = array((4096, 4096), (16, 16), (4, 4))
    assert found.usage is not None
    outside = counted(found, objects_outside=found.usage.objects, stored_nbytes=2 * found.usage.objects * 1024)
    (advice,) = advised(outside)
    assert advice.what.startswith("shards have 1.0 KiB on average")


def test_no_command_is_given_where_none_could_reach_the_place() -> None:
    found = array((512, 512), (64, 64), (2, 2), usage={"damaged_objects": 2})
    (advice,) = advice_on_array(found, "memory", lambda path: None)
    assert (advice.kind, advice.command) == ("damaged", "")


def test_advice_that_would_gain_little_is_not_given() -> None:
    best = array((1024, 1024, 1024), (64, 64, 64), (1, 16, 16))
    assert advised(best, "1,:,:") == []
    near = array((1024, 1024, 1024), (64, 64, 64), (1, 16, 8))  # a few more requests, as many bytes
    assert advised(near, "1,:,:") == []
    half = array((65536, 16384), (512, 512), (4, 4), itemsize=8, ratio=0.02)  # by default they would be half as many
    assert advised(half) == []


def test_advice_on_the_store() -> None:
    found = Survey(
        url="s3://b/x.zarr",
        path="g",
        kind="group",
        arrays=(),
        groups=1,
        consolidated=(ConsolidatedMetadata("g/h", 3, True), ConsolidatedMetadata("g", 3, False)),
        unreadable=(Unreadable("g/bad", "it is not JSON"),),
        damage=(),
        objects=9,
        stored_nbytes=9,
        other_objects=2,
        other_nbytes=5,
    )
    advice = list(advice_on_store(found, "s3", lambda path: f"s3://b/x.zarr/{path}"))
    assert [(one.kind, one.path) for one in advice] == [("unreadable", "g/bad"), ("stale-consolidated", "g/h"), ("strays", "g")]
    assert advice[1].command == shlex.join(["python", "-c", "import zarr; zarr.consolidate_metadata('s3://b/x.zarr/g/h')"])
    for kind in ("snapshot", "http"):
        assert "consolidate" not in "".join(one.command for one in advice_on_store(found, kind, lambda path: path))
    old = list(
        advice_on_store(
            replace(found, consolidated=(), unreadable=(), v2_documents=("g/a/.zarray",)), "s3", lambda path: f"s3://b/x y.zarr/{path}"
        )
    )
    assert [(one.kind, one.command) for one in old] == [("zarr-v2", "shardstore pack 's3://b/x y.zarr/g' NEW.zarr")]
